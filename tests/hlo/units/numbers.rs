use meshloom::hlo::parse::parse;
use meshloom::hlo::text::{TextOptions, print};

/// Prints a constant that is written with enough digits.
fn printed(element: &str, value: &str) -> String {
    let text = format!("HloModule m\nENTRY main {{\n  ROOT c = {element}[] constant({value})\n}}\n");
    let module = parse(&text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module");
    let text = print(&module, &TextOptions::canonical());
    let constant = text.split_once("constant(").and_then(|(_, rest)| rest.split_once(')'));
    constant.expect("a constant").0.to_owned()
}

#[test]
fn floats_print_as_in_c() {
    let cases: &[(f32, &str)] = &[
        (0.0, "0"),
        (-0.0, "-0"),
        (0.1, "0.1"),
        (1.0 / 3.0, "0.333333343"),
        (1e6, "1e+06"),
        (123456.0, "123456"),
        (1234567.0, "1234567"),
        (1e-5, "1e-05"),
        (f32::MAX, "3.40282347e+38"),
        (f32::NEG_INFINITY, "-inf"),
    ];
    for (value, expected) in cases {
        assert_eq!(printed("f32", &format!("{value:?}")), *expected);
    }
    assert_eq!(printed("f32", "nan"), "nan");
    assert_eq!(printed("f64", "0.1"), "0.1");
    assert_eq!(printed("f64", &format!("{:?}", 1.0 / 3.0)), "0.33333333333333331");
    assert_eq!(printed("bf16", "0.1"), "0.1001");
}
