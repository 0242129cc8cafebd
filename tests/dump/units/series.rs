use hlo_dump::internals::{overrides, spread_bytes};

#[test]
fn overlap_spreads_what_was_sent() {
    let spread_of = |overlap, bytes: &[u64]| spread_bytes(bytes, overlap, 6);
    let sent = [0, 12, 0, 24, 0, 6];
    // Bytes sent after step 2 go with steps 3 and 4, and those sent after step 6 with steps 7 and 8, which are as 1 and
    // 2.
    assert_eq!(spread_of(2, &sent), [3.0, 3.0, 6.0, 6.0, 12.0, 12.0].map(Some));
    // Two are under way at a time.
    assert_eq!(spread_of(3, &sent), [10.0, 2.0, 6.0, 4.0, 12.0, 8.0].map(Some));
    assert_eq!(spread_of(0, &sent), [None; 6]);
    assert_eq!(spread_of(1, &sent[..4]), [None; 4], "less than a period");
}

#[test]
fn names_are_overrides() {
    assert_eq!(overrides("streaming+int4").expect("words"), ["diloco.streaming=true", "diloco.transport=int4"]);
    assert_eq!(overrides("microbatches=4").expect("words"), ["train.microbatches=4"]);
    assert!(overrides("steaming").is_err());
}
