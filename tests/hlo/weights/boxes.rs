//! Boxes of plain tensors, as numbers and as bytes, and how much is read for them.

use super::support::{Random, Raw, bits, cut, folder, index, message, open, serialized, weights};
use half::{bf16, f16};
use meshloom_models::weights::{Encoding, whole};
use safetensors::Dtype;

/// Returns the numbers of a tensor of floats, decoded by other means.
fn numbers(raw: &Raw) -> Vec<f32> {
    let pairs = raw.bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match raw.dtype {
        Dtype::F32 => raw.bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect(),
        Dtype::BF16 => pairs.map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        Dtype::F16 => pairs.map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        Dtype::F8_E4M3 => raw.bytes.iter().map(|code| e4m3(*code)).collect(),
        dtype => panic!("{dtype} has no numbers"),
    }
}

/// The number of a code of F8_E4M3, from its definition (arXiv 2209.05433, table 1).
pub fn e4m3(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    match (exponent, mantissa) {
        (15, 7.0) => f32::NAN,
        (0, mantissa) => sign * mantissa / 8.0 * 2f32.powi(-6),
        (exponent, mantissa) => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

#[test]
fn random_boxes_are_parts_of_the_whole() {
    let mut random = Random(1);
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E4M3] {
        for shape in [&[][..], &[7], &[5, 1], &[6, 9], &[3, 4, 5], &[2, 3, 1, 4], &[3, 0, 2]] {
            let (other, raw) = (Raw::random(dtype, &[3], &mut random), Raw::random(dtype, shape, &mut random));
            let (_folder, weights) = weights(&[("other", &other), ("x", &raw)]);
            let all = numbers(&raw);
            assert_eq!(bits(&weights.read("x", &whole(shape)).unwrap()), bits(&all));
            assert_eq!(weights.read_bytes("x", &whole(shape)).unwrap(), raw.bytes);
            let size = dtype.bitsize() / 8;
            let elements: Vec<&[u8]> = raw.bytes.chunks_exact(size).collect();
            for _ in 0..40 {
                let region = random.region(shape);
                let (before, expected) = (weights.bytes_read(), cut(&all, shape, &region));
                assert_eq!(bits(&weights.read("x", &region).unwrap()), bits(&expected), "{dtype} {shape:?} {region:?}");
                let bytes = weights.read_bytes("x", &region).unwrap();
                assert_eq!(bytes, cut(&elements, shape, &region).concat(), "{dtype} {shape:?} {region:?}");
                // Both ways read the bytes of the box and nothing else.
                assert_eq!(weights.bytes_read() - before, 2 * (expected.len() * size) as u64);
            }
        }
    }
}

#[test]
fn a_run_longer_than_what_is_read_at_once() {
    let raw = Raw::random(Dtype::BF16, &[3, 200_001], &mut Random(2));
    let (_folder, weights) = weights(&[("x", &raw)]);
    let region = [1..3, 1..200_001];
    let expected = cut(&numbers(&raw), &raw.shape, &region);
    assert_eq!(bits(&weights.read("x", &region).unwrap()), bits(&expected));
    assert_eq!(weights.bytes_read(), 2 * 400_000);
}

#[test]
fn opening_reads_headers_and_lists_tensors_in_natural_order() {
    let mut random = Random(3);
    let mut raw = |dtype, shape: &[usize]| Raw::random(dtype, shape, &mut random);
    let (ten, two, flag) = (raw(Dtype::I64, &[4]), raw(Dtype::BF16, &[2, 3]), raw(Dtype::BOOL, &[]));
    let folder = folder(&[
        ("a.safetensors", serialized(&[("layers.10.w", &ten)])),
        ("b.safetensors", serialized(&[("layers.2.w", &two), ("flag", &flag)])),
        (
            "model.safetensors.index.json",
            index(&[("layers.10.w", "a.safetensors"), ("layers.2.w", "b.safetensors"), ("flag", "b.safetensors")]),
        ),
    ]);
    let weights = open(folder.path()).unwrap();
    assert_eq!(weights.bytes_read(), 0);
    let listed: Vec<_> =
        weights.tensors().iter().map(|tensor| (tensor.name(), tensor.shape(), tensor.encoding())).collect();
    let plain = Encoding::Plain;
    assert_eq!(
        listed,
        [
            ("flag", &[][..], plain(Dtype::BOOL)),
            ("layers.2.w", &[2, 3], plain(Dtype::BF16)),
            ("layers.10.w", &[4], plain(Dtype::I64)),
        ]
    );
    assert_eq!(weights.read_bytes("layers.10.w", &whole(&[4])).unwrap(), ten.bytes);
    assert_eq!(weights.read_bytes("flag", &[]).unwrap(), flag.bytes);
}

#[test]
fn what_is_asked_must_be_there() {
    let mut random = Random(4);
    let (numbers, integers) =
        (Raw::random(Dtype::F32, &[2, 3], &mut random), Raw::random(Dtype::I32, &[2], &mut random));
    let nibbles = Raw::random(Dtype::F4, &[2, 2], &mut random);
    let tensors = [("model.norm.weight", &numbers), ("positions", &integers), ("nibbles", &nibbles)];
    let (folder, weights) = weights(&tensors);
    let folder = folder.path();
    assert_eq!(
        message(folder, weights.read("model.norm.weigth", &whole(&[2, 3]))),
        "\"FOLDER\" has no tensor \"model.norm.weigth\" (did you mean \"model.norm.weight\"?); ask for one that is \
         listed"
    );
    for region in [vec![0..2, 0..4], vec![0..2, 0..3, 0..1], vec![0..2, 4..4]] {
        assert_eq!(
            message(folder, weights.read_bytes("model.norm.weight", &region)),
            format!(
                "the box {region:?} is not in tensor \"model.norm.weight\" of shape [2, 3]; give a range within each \
                 dimension"
            )
        );
    }
    assert_eq!(
        message(folder, weights.read("positions", &whole(&[2]))),
        "tensor \"positions\" is of dtype I32, which is not read as numbers; those of F32, BF16, F16 and F8_E4M3 are, \
         and all others as bytes"
    );
    assert_eq!(
        message(folder, weights.read_bytes("nibbles", &whole(&[2, 2]))),
        "tensor \"nibbles\" is of dtype F4, whose elements are not whole bytes; this crate does not read them"
    );
}

#[test]
fn threads_read_at_once() {
    let raw = Raw::random(Dtype::F32, &[64, 1000], &mut Random(5));
    let (_folder, weights) = weights(&[("x", &raw)]);
    let all = numbers(&raw);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (weights, all, shape) = (&weights, &all, &raw.shape);
            scope.spawn(move || {
                for row in (thread..64).step_by(4) {
                    let region = [row..row + 1, row..1000];
                    let found = weights.read("x", &region).unwrap();
                    assert_eq!(bits(&found), bits(&cut(all, shape, &region)));
                }
            });
        }
    });
}
