//! Files that are damaged or made to do harm. Each is refused with a message that names file and tensor.

use super::support::{file, folder, message, open};

fn refused(bytes: Vec<u8>) -> String {
    let folder = folder(&[("model.safetensors", bytes)]);
    message(folder.path(), open(folder.path()))
}

/// The bytes of a file that claims a header of a length.
fn with_length(length: u64, rest: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes()[..], rest].concat()
}

#[test]
fn damaged_headers() {
    let cases = [
        (vec![], "it has 0 bytes, and a safetensors file at least 8; download the file again"),
        (vec![1; 7], "it has 7 bytes, and a safetensors file at least 8; download the file again"),
        (with_length(1, b""), "its header has 1 byte, but only 0 are there; it is cut off, so download the file again"),
        (
            with_length(9, b"{}"),
            "its header has 9 bytes, but only 2 are there; it is cut off, so download the file \
             again",
        ),
        (
            with_length(100_000_001, b"{}"),
            "its header has 100000001 bytes by its first 8 bytes, and at most 100000000 are allowed; this is no \
             safetensors file, so download the file again",
        ),
        (
            with_length(u64::MAX, b"{}"),
            "its header has 18446744073709551615 bytes by its first 8 bytes, and at most 100000000 are allowed; this \
             is no safetensors file, so download the file again",
        ),
        (
            b"PK\x03\x04 a zip file, as of torch.save".to_vec(),
            "its header has 8800140462016121680 bytes by its first 8 bytes, and at most 100000000 are allowed; this \
             is no safetensors file, so download the file again",
        ),
        (file("", b""), "its header is damaged: EOF while parsing a value at line 1 column 0; download the file again"),
        (
            file("{", b""),
            "its header is damaged: EOF while parsing an object at line 1 column 1; download the file \
             again",
        ),
        (file("{}}", b""), "its header is damaged: trailing characters at line 1 column 3; download the file again"),
        (file("{} ", b"x"), "no tensor has its last 1 byte; download the file again"),
        (
            file("[1]", b""),
            "its header is damaged: invalid type: sequence, expected an object whose keys are the names of tensors at \
             line 1 column 0; download the file again",
        ),
        (
            [&with_length(3, b"")[..], b"{\"\xff"].concat(),
            "its header is damaged: EOF while parsing a string at line 1 column 3; download the file again",
        ),
        (
            [&with_length(7, b"")[..], b"{\"\xff\":1}"].concat(),
            "its header is damaged: invalid unicode code point at line 1 column 3; download the file again",
        ),
        (
            file(&format!("{{\"__metadata__\":{}", "[".repeat(1_000_000)), b""),
            "its header is damaged: EOF while parsing a list at line 1 column 1000016; download the file again",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(refused(bytes), format!("\"model.safetensors\" cannot be used: {expected}"));
    }
}

#[test]
fn damaged_entries() {
    let cases = [
        (
            r#"{"a":1}"#,
            "its header is damaged: tensor \"a\": invalid type: integer `1`, expected an object with dtype, shape and \
             data_offsets at line 1 column 6",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2]}}"#,
            r#"its header is damaged: tensor "a": missing field `data_offsets` at line 1 column 32"#,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#,
            r#"its header is damaged: tensor "a": invalid value: integer `-2`, expected usize at line 1 column 31"#,
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}"#,
            "its header is damaged: tensor \"a\": invalid type: floating point `2.0`, expected usize at line 1 column \
             32",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}}"#,
            "its header is damaged: tensor \"a\": invalid type: floating point `1.8446744073709552e+19`, expected \
             usize at line 1 column 49",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}}"#,
            r#"its header is damaged: tensor "a": trailing characters at line 1 column 53"#,
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"","shape":[],"data_offsets":[1,2]}}"#,
            r#"its header is damaged: tensor "a" occurs twice at line 1 column 101"#,
        ),
    ];
    for (header, expected) in cases {
        let said = refused(file(header, &[0; 8]));
        let expected = format!("\"model.safetensors\" cannot be used: {expected}; download the file again");
        assert_eq!(said, expected, "{header}");
    }
}

#[test]
fn lying_headers() {
    let tensor = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let a = |begin, end| tensor("a", "F32", "[2]", begin, end);
    let b = |begin, end| tensor("b", "F32", "[2]", begin, end);
    let cases = [
        (
            vec![tensor("a", "F7", "[2]", 0, 8)],
            r#"tensor "a" is of dtype "F7", which safetensors files do not have; convert it to another"#,
        ),
        (vec![a(8, 0)], r#"tensor "a" begins at byte 8 and ends at byte 0; download the file again"#),
        (
            vec![a(u64::MAX, 0)],
            r#"tensor "a" begins at byte 18446744073709551615 and ends at byte 0; download the file again"#,
        ),
        (
            vec![a(0, 8), b(16, 24)],
            "tensor \"b\" ends at byte 24 of 16; the file is cut off, so download the file \
             again",
        ),
        (
            vec![a(0, u64::MAX)],
            r#"tensor "a" ends at byte 18446744073709551615 of 16; the file is cut off, so download the file again"#,
        ),
        (
            vec![a(0, 8), b(8, 15)],
            r#"tensor "b" of shape [2] and dtype F32 needs 8 bytes, but has 7; download the file again"#,
        ),
        (
            vec![tensor("a", "F32", "[]", 0, 16)],
            r#"tensor "a" of shape [] and dtype F32 needs 4 bytes, but has 16; download the file again"#,
        ),
        (
            vec![tensor("a", "F32", "[0,5]", 0, 16)],
            r#"tensor "a" of shape [0, 5] and dtype F32 needs 0 bytes, but has 16; download the file again"#,
        ),
        (
            vec![tensor("a", "F4", "[3]", 0, 1)],
            r#"tensor "a" of shape [3] and dtype F4 has no number of bytes; download the file again"#,
        ),
        // The products wrap around to the sizes that are there.
        (
            vec![tensor("a", "U8", "[4294967296,4294967296]", 0, 0)],
            "tensor \"a\" of shape [4294967296, 4294967296] and dtype U8 has no number of bytes; download the file \
             again",
        ),
        (
            vec![tensor("a", "F32", "[4611686018427387908]", 0, 16)],
            "tensor \"a\" of shape [4611686018427387908] and dtype F32 has no number of bytes; download the file again",
        ),
        // A size of zero hides sizes whose product no stride can be.
        (
            vec![tensor("a", "U8", "[0,4294967296,4294967296]", 0, 0)],
            "tensor \"a\" of shape [0, 4294967296, 4294967296] and dtype U8 has no number of bytes; download the file \
             again",
        ),
        (vec![a(0, 8), b(0, 8)], r#"tensors "a" and "b" overlap; download the file again"#),
        (vec![a(4, 12), b(0, 8)], r#"tensors "b" and "a" overlap; download the file again"#),
        (vec![a(0, 8), tensor("b", "F32", "[0]", 4, 4)], r#"tensors "a" and "b" overlap; download the file again"#),
        (vec![b(8, 16)], r#"no tensor has the 8 bytes before tensor "b"; download the file again"#),
        (
            vec![tensor("a", "U8", "[7]", 0, 7), b(8, 16)],
            r#"no tensor has the 1 byte before tensor "b"; download the file again"#,
        ),
        (vec![a(0, 8)], "no tensor has its last 8 bytes; download the file again"),
        (vec![], "no tensor has its last 16 bytes; download the file again"),
    ];
    for (entries, expected) in cases {
        let header = format!("{{{}}}", entries.join(","));
        let said = refused(file(&header, &[0; 16]));
        assert_eq!(said, format!("\"model.safetensors\" cannot be used: {expected}"), "{header}");
    }
}

#[test]
fn unusual_headers_that_are_right() {
    let header = r#"{"__metadata__":{"format":"pt","shape":"[2]"}, "z":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},
        "empty":{"data_offsets":[8,8],"shape":[3,0],"dtype":"F8_E5M2","more":[{}]},
        "a\u002fb":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}   "#;
    let folder = folder(&[("model.safetensors", file(header, &[7; 9]))]);
    let weights = open(folder.path()).unwrap();
    assert_eq!(weights.read_bytes("a/b", &[]).unwrap(), [7]);
    assert_eq!(weights.read_bytes("empty", &[1..3, 0..0]).unwrap(), [0; 0]);
    assert_eq!(weights.tensors().len(), 3);
}

#[test]
fn random_damage_never_panics() {
    let mut random = super::support::Random(31);
    let header = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b_blocks":{"dtype":"U8","shape":[1,1,16],"data_offsets":[24,40]},
        "b_scales":{"dtype":"U8","shape":[1,1],"data_offsets":[40,41]}}"#;
    let whole = file(header, &[9; 41]);
    let folder = folder(&[]);
    let mut opened = 0;
    for _ in 0..500 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let at = 8 + random.below(header.len());
            bytes[at] = match random.below(3) {
                0 => b"0123456789"[random.below(10)],
                1 => b"[]{},:\""[random.below(7)],
                _ => b' ' + random.below(95) as u8,
            };
        }
        bytes.truncate(whole.len() - usize::from(random.below(8) == 0));
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let Ok(weights) = open(folder.path()) else { continue };
        opened += 1;
        for tensor in weights.tensors() {
            let region = random.region(tensor.shape());
            // A damaged name or dtype is not a fault of the file.
            let _ = (weights.read(tensor.name(), &region), weights.read_bytes(tensor.name(), &region));
        }
    }
    assert!(opened > 0);
}
