use hlo_dump::internals::{clipped, human_bytes, human_count, seconds, thousands};

#[test]
fn numbers_are_words() {
    let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (4_404_019, "4.20 MiB"), (u64::MAX, "16.0 EiB")];
    for (bytes, expected) in cases {
        assert_eq!(human_bytes(bytes), expected);
    }
    assert_eq!((thousands(0), thousands(999), thousands(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
    assert_eq!((human_count(12.0), human_count(4.2e12)), ("12".to_owned(), "4.20 T".to_owned()));
    let times = [(0.0, "0 s"), (2.5, "2.50 s"), (0.0123, "12.3 ms"), (3e-7, "300 ns")];
    for (value, expected) in times {
        assert_eq!(seconds(value), expected);
    }
}

#[test]
fn long_text_loses_its_middle() {
    assert_eq!(clipped("short", 10), "short");
    assert_eq!(clipped("transformer/layers/attention/dot", 16), "trans…ention/dot");
}
