use meshloom_mosaic::{Cost, Kernel};

/// The configuration of a call has the text of a kernel in base 64. The examples are those of RFC 4648, section 10.
#[test]
fn base_64_is_that_of_the_standard() {
    let pairs = [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ];
    for (plain, coded) in pairs {
        let text = plain.to_owned();
        let config = Kernel { text, operands: Vec::new(), results: Vec::new(), cost: Cost::default() }.config();
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        assert_eq!(config["custom_call_config"]["body"], coded);
    }
}
