use meshloom::analysis::trace_sharding;
use meshloom::hlo::parse::parse;

#[test]
fn names_are_found_by_their_parts() {
    let text = "HloModule m\nENTRY main {\n  p__w1__.1 = f32[4] parameter(0)\n  w.1 = f32[4] parameter(1)\n  \
                ROOT both = f32[4] add(p__w1__.1, w.1)\n}\n";
    let module = parse(text).ok().and_then(|parsed| parsed.hlo_module).unwrap_or_default();
    let found = |query: &str| -> Vec<String> {
        let found = trace_sharding(&module, query, 9).unwrap_or_default();
        found.into_iter().map(|it| it.steps[0].name.clone()).collect()
    };
    assert_eq!(found("w.1"), ["w.1"]);
    // A word comes before a part.
    assert_eq!(found("w"), ["w.1"]);
    assert_eq!(found("w1"), ["p__w1__.1"]);
    assert!(found("").is_empty() && found("%").is_empty() && found("x").is_empty());
}
