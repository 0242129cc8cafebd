use hlo_dump::internals::{Span, visible};

#[test]
fn a_drawing_has_no_more_marks_than_pixels() {
    let span =
        |at: u32| Span { start: f64::from(at), end: f64::from(at) + 1.0, label: format!("op{at}"), ..Span::default() };
    let spans: Vec<Span> = (0..200_000).map(span).collect();
    let shown = visible(&spans, 200_000.0);
    assert!(shown.len() < 2000, "{}", shown.len());
    assert_eq!((shown[0].start, shown[shown.len() - 1].end), (0.0, 200_000.0));
    assert_eq!(visible(&spans[..10], 10.0).len(), 10);
    let same: Vec<Span> = spans[..10].iter().map(|span| Span { label: "layer".into(), ..span.clone() }).collect();
    let shown = visible(&same, 10.0);
    assert_eq!((shown.len(), shown[0].start, shown[0].end), (1, 0.0, 10.0));
}
