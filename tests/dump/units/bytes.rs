use hlo_dump::internals::parse_bytes;

#[test]
fn bytes_are_read() {
    let cases = [("4096", 4096), ("16KiB", 16384), ("2MiB", 2 << 20), ("1.5GB", 1_500_000_000), ("1,024 k", 1 << 20)];
    for (text, expected) in cases {
        assert_eq!(parse_bytes(text), Ok(expected));
    }
    for text in ["", "x", "1.5.2", "-1", "4 parsecs", "99999999999999999999"] {
        assert!(parse_bytes(text).is_err(), "{text}");
    }
}
