use hlo_dump::internals::{BAR, bar};

#[test]
fn bars_are_in_proportion() {
    assert_eq!(bar(0, 100), "");
    assert_eq!(bar(100, 100), "█".repeat(BAR));
    assert_eq!(bar(50, 100), "█".repeat(BAR / 2));
    assert_eq!(bar(1, 1_000_000), "▏", "a small number has a bar");
    assert_eq!(bar(5, 0), "");
}
