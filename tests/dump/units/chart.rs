use hlo_dump::internals::{byte_ticks, fitting, shortened, ticks};

#[test]
fn long_names_keep_both_ends() {
    assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
    assert_eq!(shortened("abcdefghijk", 7), "abc…ijk");
    assert_eq!(fitting("layer/attention/dot", 40), "layer/attention/dot");
    assert_eq!(fitting("layer/attention/dot", 15), "attention/dot");
    assert_eq!(fitting("layer/attention/dot_general", 6), "dot_g…");
}

#[test]
fn ticks_are_round() {
    assert_eq!(ticks(9.0, 4), [0.0, 5.0]);
    assert_eq!(ticks(1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
    assert_eq!(byte_ticks(1000.0, 4), [0.0, 256.0, 512.0, 768.0]);
    assert_eq!(byte_ticks(0.0, 4), [0.0]);
    assert_eq!(ticks(f64::NAN, 4), [0.0]);
}
