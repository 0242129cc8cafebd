use meshloom::analysis::memory;
use meshloom::hlo::parse::parse;

/// Returns the number of bytes that a TPU needs for a parameter.
fn bytes(shape: &str) -> u64 {
    let text = format!("HloModule m\nENTRY main {{\n  ROOT x = {shape} parameter(0)\n}}\n");
    let module = parse(&text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module");
    memory(&module).expect("a small module").in_tiles.expect("it is not compiled").arguments
}

#[test]
fn arrays_are_padded_to_tiles() {
    assert_eq!(bytes("f32[]"), 512);
    assert_eq!(bytes("f32[600]"), 4096);
    assert_eq!(bytes("f32[600,1000]"), 600 * 1024 * 4);
    assert_eq!(bytes("f32[5,3,16]"), 5 * 8 * 128 * 4);
    assert_eq!(bytes("bf16[3,16]"), 16 * 128 * 2);
    assert_eq!(bytes("f32[0,16]"), 0);
}
