//! Quantized tensors against the plain definition of their formats, and folders in which their parts do not fit.

use super::boxes::e4m3;
use super::support::{Random, Raw, bits, cut, folder, message, open, serialized, weights};
use half::bf16;
use meshloom_models::weights::{Encoding, Weights, whole};
use safetensors::Dtype;

/// A tensor in FP8 with its scales, and the numbers that they stand for.
fn fp8(shape: &[usize], block: [usize; 2], random: &mut Random) -> (Raw, Raw, Vec<f32>) {
    let values = Raw::random(Dtype::F8_E4M3, shape, random);
    let [outer @ .., rows, columns] = shape else { panic!("rows and columns") };
    let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
    let scale_shape = [outer, &grid[..]].concat();
    let count = scale_shape.iter().product();
    let scales: Vec<f32> = (0..count).map(|_| random.below(1000) as f32 / 7.0 + 0.01).collect();
    let numbers = values.bytes.iter().enumerate().map(|(position, code)| {
        let (matrix, row, column) = (position / (rows * columns), position / columns % rows, position % columns);
        e4m3(*code) * scales[(matrix * grid[0] + row / block[0]) * grid[1] + column / block[1]]
    });
    let numbers = numbers.collect();
    (values, Raw::numbers(&scale_shape, &scales), numbers)
}

/// A tensor in MXFP4 with its scales, and the numbers that they stand for, as `[.., 32 * groups, rows]`.
fn mxfp4(outer: &[usize], rows: usize, groups: usize, random: &mut Random) -> (Raw, Raw, Vec<f32>) {
    let blocks = Raw::random(Dtype::U8, &[outer, &[rows, groups, 16]].concat(), random);
    let scales = Raw::random(Dtype::U8, &[outer, &[rows, groups]].concat(), random);
    let columns = 32 * groups;
    let mut numbers = vec![0.0; 2 * blocks.bytes.len()];
    for (position, number) in numbers.iter_mut().enumerate() {
        let (matrix, column, row) = (position / (columns * rows), position / rows % columns, position % rows);
        let stored = (matrix * rows + row) * columns + column;
        let code = blocks.bytes[stored / 2] >> (4 * (stored % 2));
        let scale = match scales.bytes[stored / 32] {
            255 => f64::NAN,
            scale => 2f64.powi(i32::from(scale) - 127),
        };
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        *number = (if code & 8 == 0 { magnitude } else { -magnitude } * scale) as f32;
    }
    (blocks, scales, numbers)
}

#[test]
fn fp8_blocks_against_their_definition() {
    let mut random = Random(11);
    for (shape, block) in [
        (&[1, 1][..], [128, 128]),
        (&[128, 256], [128, 128]),
        (&[300, 130], [128, 128]),
        (&[129, 127], [128, 128]),
        (&[20, 17], [8, 5]),
        (&[3, 20, 17], [8, 5]),
        (&[7, 9], [1, 4]),
        (&[0, 9], [2, 4]),
    ] {
        let (values, scales, numbers) = fp8(shape, block, &mut random);
        let tensors = [("a.weight", &values), ("a.weight_scale_inv", &scales)];
        let folder = folder(&[("model.safetensors", serialized(&tensors))]);
        let weights = Weights::open(folder.path(), block).unwrap();
        let [tensor] = weights.tensors() else { panic!("the scales are no tensor of their own") };
        assert_eq!((tensor.name(), tensor.shape()), ("a.weight", shape));
        assert_eq!(tensor.encoding(), Encoding::Fp8Blocks { block });
        assert_eq!(bits(&weights.read("a.weight", &whole(shape)).unwrap()), bits(&numbers));
        for _ in 0..40 {
            let region = random.region(shape);
            let found = weights.read("a.weight", &region).unwrap();
            assert_eq!(bits(&found), bits(&cut(&numbers, shape, &region)), "{shape:?} {block:?} {region:?}");
        }
    }
}

#[test]
fn mxfp4_against_its_definition() {
    let mut random = Random(12);
    for (outer, rows, groups) in
        [(&[][..], 1, 1), (&[2], 5, 3), (&[3], 130, 2), (&[2, 2], 7, 1), (&[2], 64, 4), (&[1], 0, 2)]
    {
        let (blocks, scales, numbers) = mxfp4(outer, rows, groups, &mut random);
        let (_folder, weights) = weights(&[("a.gate_up_proj_blocks", &blocks), ("a.gate_up_proj_scales", &scales)]);
        let [tensor] = weights.tensors() else { panic!("blocks and scales are one tensor") };
        let shape = [outer, &[32 * groups, rows]].concat();
        assert_eq!((tensor.name(), tensor.shape(), tensor.encoding()), ("a.gate_up_proj", &shape[..], Encoding::Mxfp4));
        assert_eq!(bits(&weights.read(tensor.name(), &whole(&shape)).unwrap()), bits(&numbers));
        for _ in 0..40 {
            let region = random.region(&shape);
            let found = weights.read(tensor.name(), &region).unwrap();
            assert_eq!(bits(&found), bits(&cut(&numbers, &shape, &region)), "{outer:?} {rows} {groups} {region:?}");
        }
    }
}

#[test]
fn mxfp4_by_hand() {
    // 1.5 and -6 in the first byte, then zeros; the scale is 2.
    let blocks = Raw { dtype: Dtype::U8, shape: vec![1, 1, 1, 16], bytes: [vec![0xf3], vec![0; 15]].concat() };
    let scales = Raw { dtype: Dtype::U8, shape: vec![1, 1, 1], bytes: vec![128] };
    let (_folder, weights) = weights(&[("x_blocks", &blocks), ("x_scales", &scales)]);
    assert_eq!(weights.read("x", &[0..1, 0..3, 0..1]).unwrap(), [3.0, -12.0, 0.0]);
}

#[test]
fn only_the_box_and_its_scales_are_read() {
    let mut random = Random(13);
    let (values, scales, _) = fp8(&[512, 1024], [128, 128], &mut random);
    let (blocks, codes, _) = mxfp4(&[4], 256, 8, &mut random);
    let (_folder, weights) =
        weights(&[("a.weight", &values), ("a.weight_scale_inv", &scales), ("b_blocks", &blocks), ("b_scales", &codes)]);
    let mut last = 0;
    let mut read = || {
        let read = weights.bytes_read() - last;
        last += read;
        read
    };
    weights.read("a.weight", &[100..200, 300..400]).unwrap();
    assert_eq!(read(), 100 * 100 + 4 * 2 * 2);
    weights.read("a.weight", &[128..256, 0..1024]).unwrap();
    assert_eq!(read(), 128 * 1024 + 4 * 8);
    // 40 columns lie in two groups of 32.
    weights.read("b", &[1..3, 40..80, 10..100]).unwrap();
    assert_eq!(read(), 2 * 90 * 2 * (16 + 1));
    weights.read("b", &[0..4, 0..256, 0..0]).unwrap();
    assert_eq!(read(), 0);
}

#[test]
fn scales_in_bf16() {
    let values = Raw { dtype: Dtype::F8_E4M3, shape: vec![1, 2], bytes: vec![0x38, 0x40] };
    let scales = Raw { dtype: Dtype::BF16, shape: vec![1, 1], bytes: bf16::from_f32(1.5).to_le_bytes().to_vec() };
    let (_folder, weights) = weights(&[("w", &values), ("w_scale_inv", &scales)]);
    assert_eq!(weights.read("w", &[0..1, 0..2]).unwrap(), [1.5, 3.0]);
}

#[test]
fn the_bytes_of_a_quantized_tensor_are_no_dtype() {
    let mut random = Random(14);
    let (values, scales, _) = fp8(&[2, 2], [128, 128], &mut random);
    let (blocks, codes, _) = mxfp4(&[1], 2, 1, &mut random);
    let tensors = [("w", &values), ("w_scale_inv", &scales), ("x_blocks", &blocks), ("x_scales", &codes)];
    let (folder, weights) = weights(&tensors);
    assert_eq!(
        message(folder.path(), weights.read_bytes("w", &[0..1, 0..1])),
        "tensor \"w\" is stored as F8_E4M3 in blocks of 128 x 128, which no dtype stands for; read it as numbers"
    );
    assert_eq!(
        message(folder.path(), weights.read_bytes("x", &[0..1, 0..1, 0..1])),
        "tensor \"x\" is stored as MXFP4, which no dtype stands for; read it as numbers"
    );
}

#[test]
fn what_only_looks_quantized_is_plain() {
    let mut random = Random(15);
    let unscaled = Raw::random(Dtype::F8_E4M3, &[2, 2], &mut random);
    let count = Raw::random(Dtype::I64, &[1], &mut random);
    let (_folder, weights) = weights(&[("w", &unscaled), ("num_blocks", &count), ("num_scales", &count)]);
    let encodings: Vec<Encoding> = weights.tensors().iter().map(|tensor| tensor.encoding()).collect();
    assert_eq!(encodings, [Dtype::I64, Dtype::I64, Dtype::F8_E4M3].map(Encoding::Plain));
}

#[test]
fn parts_that_do_not_fit() {
    let mut random = Random(16);
    let mut raw = |dtype, shape: &[usize]| Raw::random(dtype, shape, &mut random);
    let (fp8, scales) = (raw(Dtype::F8_E4M3, &[130, 5]), raw(Dtype::F32, &[2, 1]));
    let (blocks, codes) = (raw(Dtype::U8, &[2, 3, 1, 16]), raw(Dtype::U8, &[2, 3, 1]));
    let cases: [(&[(&str, &Raw)], &str); 12] = [
        (
            &[("w_scale_inv", &scales)],
            "\"w\" of \"FOLDER\" cannot be dequantized: there is \"w_scale_inv\", but no \"w\"; download the \
             checkpoint again",
        ),
        (
            &[("w_blocks", &blocks)],
            "\"w\" of \"FOLDER\" cannot be dequantized: there is \"w_blocks\", but no \"w_scales\"; download the \
             checkpoint again",
        ),
        (
            &[("w_scales", &codes)],
            "\"w\" of \"FOLDER\" cannot be dequantized: there is \"w_scales\", but no \"w_blocks\"; download the \
             checkpoint again",
        ),
        (
            &[("w", &scales), ("w_blocks", &blocks), ("w_scales", &codes)],
            "\"w\" of \"FOLDER\" cannot be dequantized: it is stored both under its name and as \"w_blocks\"; remove \
             one of the two",
        ),
        (
            &[("w", &raw(Dtype::BF16, &[2, 2])), ("w_scale_inv", &scales)],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w\" is of dtype BF16, but F8_E4M3 is needed; dequantize it \
             with the program that quantized it",
        ),
        (
            &[("w", &fp8), ("w_scale_inv", &codes)],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w_scale_inv\" is of dtype U8, but F32, BF16 or F16 is \
             needed; dequantize it with the program that quantized it",
        ),
        (
            &[("w", &raw(Dtype::F8_E4M3, &[3])), ("w_scale_inv", &scales)],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w\" is of shape [3], but [.., rows, columns] is needed; \
             dequantize it with the program that quantized it",
        ),
        (
            &[("w", &fp8), ("w_scale_inv", &raw(Dtype::F32, &[1, 2]))],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w_scale_inv\" is of shape [1, 2], but [2, 1] is needed for \
             values [130, 5] in blocks of [128, 128]; give weight_block_size of config.json",
        ),
        (
            &[("w_blocks", &raw(Dtype::U8, &[2, 3, 1, 8])), ("w_scales", &codes)],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w_blocks\" is of shape [2, 3, 1, 8], but [.., rows, groups, \
             16] of a size that memory can have is needed; dequantize it with the program that quantized it",
        ),
        (
            &[("w_blocks", &raw(Dtype::U8, &[0, 1 << 55, 16])), ("w_scales", &codes)],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w_blocks\" is of shape [0, 36028797018963968, 16], but [.., \
             rows, groups, 16] of a size that memory can have is needed; dequantize it with the program that quantized \
             it",
        ),
        (
            &[("w_blocks", &blocks), ("w_scales", &raw(Dtype::U8, &[2, 3, 2]))],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w_scales\" is of shape [2, 3, 2], but [2, 3, 1] is needed \
             for values [2, 3, 1, 16]; download the checkpoint again",
        ),
        (
            &[("w_blocks", &blocks), ("w_scales", &raw(Dtype::F32, &[2, 3, 1]))],
            "\"w\" of \"FOLDER\" cannot be dequantized: \"w_scales\" is of dtype F32, but U8 is needed; dequantize it \
             with the program that quantized it",
        ),
    ];
    for (tensors, expected) in cases {
        let folder = folder(&[("model.safetensors", serialized(tensors))]);
        assert_eq!(message(folder.path(), open(folder.path())), format!("tensor {expected}"));
    }
    let folder = folder(&[("model.safetensors", serialized(&[("w", &fp8), ("w_scale_inv", &scales)]))]);
    assert_eq!(
        message(folder.path(), Weights::open(folder.path(), [0, 128])),
        "tensor \"w\" of \"FOLDER\" cannot be dequantized: its blocks are of [0, 128] elements; give \
         weight_block_size of config.json"
    );
}
