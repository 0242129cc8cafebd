//! The Rust of XLA's messages is checked in, at `crates/hlo/src/proto/generated.rs`, and made by `proto/generator`. Its
//! first line is a digest of what it was made from and of the rest.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn generated_messages_are_those_of_the_proto_files() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut digest = Sha256::new();
    for file in ["hlo.proto", "xla_data.proto", "xla.proto", "compile_options.proto", "generator/src/main.rs"] {
        digest.update(read(&format!("proto/{file}")));
    }
    let generated = read("crates/hlo/src/proto/generated.rs");
    let (stated, code) = generated.split_once('\n').expect("a first line");
    digest.update(code);
    let found = support::hex(&digest.finalize());
    assert!(
        stated.ends_with(&format!(" {found}")),
        "a proto file, the generator or the generated file has changed; make it again: \
         cargo run --manifest-path proto/generator/Cargo.toml"
    );
}
