use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloModuleProto, LiteralProto};
use meshloom::hlo::text::{TextOptions, print};

fn read(text: &str) -> Option<HloModuleProto> {
    parse(text).ok()?.hlo_module
}

fn program(element: &str, dims: &str, value: &str) -> String {
    format!("HloModule m\nENTRY main {{\n  ROOT c = {element}[{dims}] constant({value})\n}}\n")
}

fn literal(module: &mut HloModuleProto) -> &mut LiteralProto {
    module.computations[0].instructions[0].literal.as_mut().expect("a constant")
}

/// Each pattern of bits has a text that is read back as these bits, even infinities and NaNs of every sign and payload.
#[test]
fn every_pattern_reads_back() {
    type Field = fn(&mut LiteralProto) -> &mut Vec<u8>;
    let types: [(&str, usize, Field); 11] = [
        ("f8e5m2", 256, |it| &mut it.f8e5m2s),
        ("f8e4m3", 256, |it| &mut it.f8e4m3s),
        ("f8e4m3fn", 256, |it| &mut it.f8e4m3fns),
        ("f8e4m3b11fnuz", 256, |it| &mut it.f8e4m3b11fnuzs),
        ("f8e3m4", 256, |it| &mut it.f8e3m4s),
        ("f8e5m2fnuz", 256, |it| &mut it.f8e5m2fnuzs),
        ("f8e4m3fnuz", 256, |it| &mut it.f8e4m3fnuzs),
        ("f4e2m1fn", 16, |it| &mut it.f4e2m1fns),
        ("f6e3m2fn", 64, |it| &mut it.f6e3m2fns),
        ("f6e2m3fn", 64, |it| &mut it.f6e2m3fns),
        ("f8e8m0fnu", 256, |it| &mut it.f8e8m0fnus),
    ];
    for (element, patterns, field) in types {
        let ones = format!("{{{}}}", vec!["1"; patterns].join(", "));
        let mut module = read(&program(element, &patterns.to_string(), &ones)).expect(element);
        let expected: Vec<u8> = (0..patterns).map(|bits| bits as u8).collect();
        let bits = field(literal(&mut module));
        assert_eq!(bits.len(), patterns, "{element}");
        bits.clone_from(&expected);
        let text = print(&module, &TextOptions { constant_limit: None, ..TextOptions::canonical() });
        let mut found = read(&text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(*field(literal(&mut found)), expected, "{element}");
    }
}

#[test]
fn numbers_between_values_round_to_even() {
    let value = |number: &str| {
        let text = print(&read(&program("f8e4m3fn", "", number))?, &TextOptions::canonical());
        Some(text.split_once("constant(")?.1.split_once(')')?.0.parse::<f64>().expect("a number"))
    };
    assert_eq!(value("1.0625"), Some(1.0));
    assert_eq!(value("1.1875"), Some(1.25));
    assert_eq!(value("448"), Some(448.0));
    assert_eq!(value("1000"), None);
    assert_eq!(value("inf"), None);
}
