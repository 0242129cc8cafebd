//! Ops that are small libraries of their own: sorting, random words, grouped products, convolutions, custom calls. Each
//! against plain loops.

use std::cmp::Ordering;

use meshloom::ir::DType::{self, *};
use meshloom::ir::Name;
use meshloom::ops::*;

use crate::harness::*;

const FLOATS: [DType; 4] = [BF16, F16, F32, F64];

/// All positions with `axis` at 0, each with the positions along it.
fn lines(dims: &[usize], axis: usize) -> Vec<Vec<Vec<usize>>> {
    let starts = indices(dims).into_iter().filter(|index| index[axis] == 0);
    let line = |start: Vec<usize>| {
        let at = |position| {
            let mut index = start.clone();
            index[axis] = position;
            index
        };
        (0..dims[axis]).map(at).collect()
    };
    starts.map(line).collect()
}

/// The total order of sorted keys: NaN last, zeros equal.
fn key_order(x: f64, y: f64) -> Ordering {
    x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
}

fn sorted(op: &Sort, operands: &[Tensor]) -> Vec<Tensor> {
    let dims = operands[0].dims();
    let mut results = operands.to_vec();
    let flat = |index: &[usize]| index.iter().zip(dims).fold(0, |position, (&i, &size)| position * size + i);
    for line in lines(dims, op.axis) {
        let mut order = line.clone();
        order.sort_by(|x, y| {
            let keys = operands[..op.key_count].iter();
            let ordering = keys.fold(Ordering::Equal, |so_far, key| so_far.then(key_order(key.at(x), key.at(y))));
            if op.descending { ordering.reverse() } else { ordering }
        });
        for (to, from) in line.iter().zip(&order) {
            for (result, operand) in results.iter_mut().zip(operands) {
                result.values[flat(to)] = operand.at(from);
            }
        }
    }
    results
}

pub fn sort() -> Entry {
    let op = |axis, key_count, descending| Sort { axis, key_count, descending };
    let mut entry = Entry::new("sort")
        .accept(op(1, 2, false), "f32[2,3] s32[2,3] bf16[2,3] -> f32[2,3] s32[2,3] bf16[2,3]")
        .accept(op(0, 1, true), "pred[4] -> pred[4]")
        .reject(op(0, 1, false), "", "expected 1 operand, found 0")
        .reject(op(1, 1, false), "f32[3]", "axis 1 is out of range")
        .reject(op(0, 0, false), "f32[3]", "it sorts by 0 keys, but has 1 operands")
        .reject(op(0, 3, false), "f32[3] f32[3]", "it sorts by 3 keys, but has 2 operands")
        .reject(op(0, 1, false), "f32[3] f32[4]", "dimension 0 of operand 1 must have size 3, found 4")
        .with_vjp_snapshot();
    for dtype in DType::ALL {
        for (axis, descending) in [(0, false), (1, true)] {
            // Few different keys, so that stability shows in the positions.
            let keys = random(dtype, &[5, 6], 0.0, 4.0);
            let rounded = Tensor::new(dtype, &[5, 6], &keys.values.iter().map(|key| key.floor()).collect::<Vec<_>>());
            let operands = [rounded, distinct(S32, &[5, 6])];
            let op = op(axis, 1, descending);
            entry = entry.run(op.clone(), &operands, sorted(&op, &operands), 0.0);
        }
    }
    for dtype in FLOATS {
        let special = [f64::NAN, 1.0, 0.0, -0.0, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY, -f64::NAN, -2.0];
        for descending in [false, true] {
            let operands = [Tensor::new(dtype, &[10], &special), distinct(S32, &[10])];
            let op = op(0, 1, descending);
            entry = entry.run(op.clone(), &operands, sorted(&op, &operands), 0.0);
        }
    }
    for key_count in 1..=3 {
        let few = |seed: f64| random(S32, &[4, 9], seed, seed + 2.0);
        let operands = [few(0.0), few(1.0), random(F32, &[4, 9], -1.0, 1.0)];
        let op = op(1, key_count, key_count == 2);
        entry = entry.run(op.clone(), &operands, sorted(&op, &operands), 0.0);
    }
    let empty = Tensor::new(F32, &[0, 2], &[]);
    entry
        .run(op(0, 1, false), std::slice::from_ref(&empty), [empty.clone()], 0.0)
        .gradient(op(1, 1, false), &[f64s(&[3, 4])])
        .gradient(op(0, 1, true), &[f64s(&[4, 2]), random(F64, &[4, 2], 3.0, 4.0), distinct(S32, &[4, 2])])
        .gradient(op(0, 1, false), &[distinct(S32, &[5]), f64s(&[5])])
        .gradient_in(op(0, 2, false), &[f64s(&[5]), random(F64, &[5], 3.0, 4.0)], &[1])
}

/// IEEE's total order.
fn total_order(x: f64, y: f64) -> Ordering {
    x.total_cmp(&y)
}

fn largest(k: usize, operand: &Tensor) -> [Tensor; 2] {
    let (&size, leading) = operand.dims().split_last().expect("a dimension");
    let dims = [leading, &[k]].concat();
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for row in operand.values.chunks(size.max(1)) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&x, &y| total_order(row[y], row[x]));
        values.extend(order[..k].iter().map(|&place| row[place]));
        places.extend(order[..k].iter().map(|&place| place as f64));
    }
    [Tensor::new(operand.ty.dtype, &dims, &values), Tensor::new(S32, &dims, &places)]
}

pub fn top_k() -> Entry {
    let mut entry = Entry::new("top_k")
        .accept(TopK { k: 2 }, "f32[3,5] -> f32[3,2] s32[3,2]")
        .accept(TopK { k: 0 }, "s32[5] -> s32[0] s32[0]")
        .reject(TopK { k: 2 }, "", "expected 1 operand, found 0")
        .reject(TopK { k: 2 }, "f32[]", "axis -1 is out of range")
        .reject(TopK { k: 2 }, "pred[3]", "the element type of operand 0 must be a number type")
        .reject(TopK { k: 6 }, "f32[3,5]", "the 6 largest of 5 elements do not exist")
        .with_vjp_snapshot();
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != Pred) {
        let keys = random(dtype, &[3, 9], 0.0, 4.0);
        let ties = Tensor::new(dtype, &[3, 9], &keys.values.iter().map(|key| key.floor()).collect::<Vec<_>>());
        for k in if dtype == F32 { vec![1, 4, 9] } else { vec![4] } {
            entry = entry.run(TopK { k }, std::slice::from_ref(&ties), largest(k, &ties), 0.0);
        }
    }
    let special = [1.0, 0.0, -0.0, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY, f64::NAN, -2.0];
    for dtype in FLOATS {
        let operand = Tensor::new(dtype, &[9], &special);
        entry = entry.run(TopK { k: 9 }, std::slice::from_ref(&operand), largest(9, &operand), 0.0);
    }
    entry.gradient(TopK { k: 3 }, &[f64s(&[2, 5])]).gradient(TopK { k: 4 }, &[f64s(&[4])])
}

pub fn threefry() -> Entry {
    let words = |dims: &[usize], seed: f64| random(U32, dims, seed, 4294967295.0);
    let mut entry = Entry::new("threefry")
        .accept(Threefry, "u32[3] u32[3] u32[3] u32[3] -> u32[3] u32[3]")
        .reject(Threefry, "u32[] u32[] u32[]", "expected 4 operands, found 3")
        .reject(Threefry, "s32[] s32[] s32[] s32[]", "the element type of operand 0 must be u32")
        .reject(Threefry, "u32[2] u32[2] u32[2] u32[3]", "dimension 0 of operand 3 must have size 2, found 3");
    for dims in [&[][..], &[5], &[2, 3]] {
        let operands = [words(dims, 0.0), words(dims, 1.0), words(dims, 2.0), words(dims, 3.0)];
        let count = operands[0].values.len();
        let word = |operand: usize, index: usize| operands[operand].values[index] as u32;
        let results: Vec<[u32; 2]> =
            (0..count).map(|i| Threefry::evaluate([word(0, i), word(1, i)], [word(2, i), word(3, i)])).collect();
        let result = |part: usize| {
            let values: Vec<f64> = results.iter().map(|words| words[part].into()).collect();
            Tensor::new(U32, dims, &values)
        };
        entry = entry.run(Threefry, &operands, [result(0), result(1)], 0.0);
    }
    entry.without_gradient("integers have none")
}

/// The test vectors that Random123 publishes for threefry2x32 with 20 rounds (`kat_vectors`): counter, key, result.
#[test]
fn threefry_gives_the_published_vectors() {
    let vectors = [
        ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
        ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
        ([0x243f_6a88, 0x85a3_08d3], [0x1319_8a2e, 0x0370_7344], [0xc492_3a9c, 0x483d_f7a0]),
    ];
    for (counter, key, expected) in vectors {
        assert_eq!(Threefry::evaluate(key, counter), expected);
    }
}

fn ragged(mode: RaggedMode, batch_count: usize, dtype: DType) -> RaggedDot {
    RaggedDot { mode, batch_count, block_count: 0, dtype, precision: Precision::Default, form: RaggedForm::Masked }
}

/// With one dimension of blocks.
fn ragged_blocks(mode: RaggedMode, batch_count: usize, dtype: DType) -> RaggedDot {
    RaggedDot { block_count: 1, ..ragged(mode, batch_count, dtype) }
}

/// A ragged dot of two blocks, from those of each.
fn grouped_product_of_blocks(mode: RaggedMode, operands: &[Tensor; 3]) -> Tensor {
    let block = |operand: &Tensor, block: usize| {
        let size = operand.values.len() / 2;
        Tensor::new(operand.ty.dtype, &operand.dims()[1..], &operand.values[block * size..][..size])
    };
    let [lhs, rhs, sizes] = operands;
    let dtype = lhs.ty.dtype;
    let each = [0, 1].map(|index| {
        let own = if mode == RaggedMode::Contracted { block(rhs, index) } else { rhs.clone() };
        grouped_product(mode, dtype, &block(lhs, index), &own, &block(sizes, index))
    });
    match mode {
        RaggedMode::Rows | RaggedMode::Transposed => {
            let values = [&each[0].values[..], &each[1].values].concat();
            Tensor::new(dtype, &[&[2], each[0].dims()].concat(), &values)
        }
        RaggedMode::Contracted => {
            let sums: Vec<f64> = each[0].values.iter().zip(&each[1].values).map(|(x, y)| x + y).collect();
            Tensor::new(dtype, each[0].dims(), &sums)
        }
    }
}

/// A ragged dot without batch dimensions, by loops.
fn grouped_product(mode: RaggedMode, dtype: DType, lhs: &Tensor, rhs: &Tensor, sizes: &Tensor) -> Tensor {
    let (rows, inner) = (lhs.dims()[0], lhs.dims()[1]);
    let columns = rhs.dims()[rhs.dims().len() - if mode == RaggedMode::Transposed { 2 } else { 1 }];
    let groups = sizes.values.len();
    let dims = match mode {
        RaggedMode::Rows | RaggedMode::Transposed => vec![rows, columns],
        RaggedMode::Contracted => vec![groups, inner, columns],
    };
    let mut group_of_row = Vec::new();
    for (group, &size) in sizes.values.iter().enumerate() {
        group_of_row.extend(std::iter::repeat_n(group, size as usize));
    }
    group_of_row.truncate(rows);
    let mut values = vec![0.0; dims.iter().product()];
    for (row, &group) in group_of_row.iter().enumerate() {
        for k in 0..inner {
            for n in 0..columns {
                match mode {
                    RaggedMode::Rows => {
                        values[row * columns + n] += lhs.at(&[row, k]) * rhs.at(&[group, k, n]);
                    }
                    RaggedMode::Transposed => {
                        values[row * columns + n] += lhs.at(&[row, k]) * rhs.at(&[group, n, k]);
                    }
                    RaggedMode::Contracted => {
                        values[(group * inner + k) * columns + n] += lhs.at(&[row, k]) * rhs.at(&[row, n]);
                    }
                }
            }
        }
    }
    Tensor::new(dtype, &dims, &values)
}

/// Adds signatures of rows and groups of matrices: some with dimensions that fit, and others that are refused.
fn of_matrices(entry: Entry, mode: RaggedMode, matrix: &str, wrong: &str) -> Entry {
    let op = |batch_dims| ragged(mode, batch_dims, F32);
    let blocks = |batch_dims| ragged_blocks(mode, batch_dims, F32);
    let inner = if mode == RaggedMode::Rows { 1 } else { 2 };
    entry
        .accept(op(0), &format!("f32[6,3] f32[4,{matrix}] s32[4] -> f32[6,2]"))
        .accept(op(1), &format!("bf16[5,6,3] bf16[5,4,{matrix}] s32[5,4] -> f32[5,6,2]"))
        .accept(blocks(0), &format!("f32[5,6,3] f32[4,{matrix}] s32[5,4] -> f32[5,6,2]"))
        .accept(blocks(1), &format!("f32[7,5,6,3] f32[7,4,{matrix}] s32[7,5,4] -> f32[7,5,6,2]"))
        .reject(blocks(0), &format!("f32[5,6,3] f32[5,4,{matrix}] s32[5,4]"), "operand 1 must have 3 dimensions")
        .reject(
            op(0),
            &format!("f32[6,3] f32[4,{wrong}] s32[4]"),
            &format!("dimension {inner} of operand 1 must have size 3, found 5"),
        )
        .reject(
            op(0),
            &format!("f32[6,3] f32[4,{matrix}] s32[5]"),
            "dimension 0 of operand 1 must have size 5, found 4",
        )
        .reject(op(0), "f32[6,3] f32[3,2] s32[4]", "operand 1 must have 3 dimensions, found 2")
}

pub fn ragged_dot(mode: RaggedMode) -> Entry {
    let op = |dtype| ragged(mode, 0, dtype);
    let name = match mode {
        RaggedMode::Rows => "ragged_dot_rows",
        RaggedMode::Transposed => "ragged_dot_transposed",
        RaggedMode::Contracted => "ragged_dot_contracted",
    };
    let entry = Entry::new(name);
    let mut entry = match mode {
        RaggedMode::Rows => of_matrices(entry, mode, "3,2", "5,2"),
        RaggedMode::Transposed => of_matrices(entry, mode, "2,3", "2,5"),
        RaggedMode::Contracted => entry
            .accept(op(F32), "f32[6,3] f32[6,2] s32[4] -> f32[4,3,2]")
            .accept(ragged(mode, 1, F32), "f32[5,6,3] f32[5,6,2] s32[5,4] -> f32[5,4,3,2]")
            .accept(ragged_blocks(mode, 0, F32), "f32[5,6,3] f32[5,6,2] s32[5,4] -> f32[4,3,2]")
            .accept(ragged_blocks(mode, 1, F32), "f32[7,5,6,3] f32[7,5,6,2] s32[7,5,4] -> f32[7,4,3,2]")
            .reject(ragged_blocks(mode, 0, F32), "f32[5,6,3] f32[6,2] s32[5,4]", "operand 1 must have 3 dimensions")
            .reject(op(F32), "f32[6,3] f32[5,2] s32[4]", "dimension 0 of operand 1 must have size 6, found 5"),
    };
    entry = entry
        .reject(op(F32), "f32[6,3]", "expected 3 operands, found 1")
        .reject(op(F32), "f32[6,3] bf16[4,3,2] s32[4]", "the element type of operand 1 must be f32")
        .reject(op(S32), "f32[6,3] f32[4,3,2] s32[4]", "a floating-point type that can be accumulated in s32")
        .reject(op(F32), "f32[6,3] f32[4,3,2] u32[4]", "the element type of operand 2 must be a signed integer type")
        .reject(ragged(mode, 1, F32), "f32[5,6,3] f32[4,4,3,2] s32[5,4]", "must have");
    let rhs_dims: &[usize] = match mode {
        RaggedMode::Rows => &[4, 3, 2],
        RaggedMode::Transposed => &[4, 2, 3],
        RaggedMode::Contracted => &[6, 2],
    };
    // Whole numbers, whose products and sums every type holds.
    let whole = |dtype, dims: &[usize]| random(S32, dims, -3.0, 4.0).with_dtype(dtype);
    // Full, short, with empty groups, and one that reaches too far.
    let all_sizes = [[1.0, 2.0, 0.0, 3.0], [0.0, 4.0, 0.0, 0.0], [0.0; 4], [2.0, 9.0, 1.0, 0.0]];
    for dtype in FLOATS {
        for sizes in if dtype == F32 { &all_sizes[..] } else { &all_sizes[..1] } {
            for groups in [S32, S64] {
                let sizes = Tensor::new(groups, &[4], sizes);
                let operands = [whole(dtype, &[6, 3]), whole(dtype, rhs_dims), sizes];
                let expected = grouped_product(mode, dtype, &operands[0], &operands[1], &operands[2]);
                entry = entry.run(op(dtype), &operands, [expected], 0.0);
            }
        }
    }
    let narrow = [whole(BF16, &[6, 3]), whole(BF16, rhs_dims), Tensor::new(S32, &[4], &all_sizes[0])];
    let expected = grouped_product(mode, F32, &narrow[0], &narrow[1], &narrow[2]);
    entry = entry.run(op(F32), &narrow, [expected], 0.0);
    for sizes in &all_sizes[..2] {
        let sizes = Tensor::new(S32, &[4], sizes);
        entry = entry.gradient(op(F64), &[f64s(&[6, 3]), f64s(rhs_dims), sizes]);
    }
    let batched = |dims: &[usize]| f64s(&[&[2], dims].concat());
    let sizes = Tensor::new(S32, &[2, 4], &[1.0, 2.0, 0.0, 3.0, 2.0, 0.0, 1.0, 1.0]);
    // Blocks of rows share the matrices; of columns there are as many as of rows.
    let of_blocks = |x: Tensor, y: Tensor| if mode == RaggedMode::Contracted { y } else { x };
    for dtype in [F32, BF16] {
        let rhs = of_blocks(whole(dtype, rhs_dims), whole(dtype, &[2, 6, 2]));
        let operands = [whole(dtype, &[2, 6, 3]), rhs, sizes.clone()];
        let expected = grouped_product_of_blocks(mode, &operands);
        entry = entry.run(ragged_blocks(mode, 0, dtype), &operands, [expected], 0.0);
    }
    let rhs = of_blocks(f64s(rhs_dims), batched(rhs_dims));
    entry = entry.gradient(ragged_blocks(mode, 0, F64), &[batched(&[6, 3]), rhs, sizes.clone()]);
    let twice = |dims: &[usize]| f64s(&[&[2, 2], dims].concat());
    let rhs = of_blocks(batched(rhs_dims), twice(rhs_dims));
    let all_sizes = Tensor::new(S32, &[2, 2, 4], &[sizes.values.clone(), sizes.values.clone()].concat());
    entry
        .gradient(ragged_blocks(mode, 1, F64), &[twice(&[6, 3]), rhs, all_sizes])
        .gradient(ragged(mode, 1, F64), &[batched(&[6, 3]), batched(rhs_dims), sizes])
        .with_vjp_snapshot()
}

fn convolve(op: &Convolution, input: &Tensor, kernel: &Tensor, dtype: DType) -> Tensor {
    let result = op.infer(&[&input.ty, &kernel.ty]).unwrap_or_else(|error| panic!("{error}"));
    let per_group = kernel.dims()[0] / op.feature_groups;
    let own_features = kernel.dims()[1];
    Tensor::from_fn(dtype, &result[0].dims, |at| {
        let group = at[1] / per_group;
        let mut sum = 0.0;
        for tap in indices(&kernel.dims()[2..]) {
            let mut place = vec![at[0], 0];
            let mut inside = true;
            for (dim, window) in op.windows.iter().enumerate() {
                let padded = (at[dim + 2] * window.stride + tap[dim] * window.kernel_dilation) as i64;
                let position = padded - window.padding_low;
                let dilation = window.input_dilation as i64;
                inside &= position >= 0 && position % dilation == 0;
                inside &= position / dilation < input.dims()[dim + 2] as i64;
                place.push((position / dilation).max(0) as usize);
            }
            for feature in 0..if inside { own_features } else { 0 } {
                place[1] = group * own_features + feature;
                sum += input.at(&place) * kernel.at(&[&[at[1], feature], &tap[..]].concat());
            }
        }
        sum
    })
}

pub fn convolution() -> Entry {
    let op = |windows: &[Window], feature_groups, dtype| Convolution {
        windows: windows.into(),
        feature_groups,
        dtype,
        precision: Precision::Default,
    };
    let plain = Window::default();
    let causal = Window { padding_low: 3, ..plain };
    let strided = Window { stride: 2, padding_low: 1, padding_high: 2, ..plain };
    let dilated = Window { kernel_dilation: 2, padding_low: 4, ..plain };
    let transposed = Window { input_dilation: 3, padding_low: 2, padding_high: 1, ..plain };
    let cut = Window { padding_low: -1, padding_high: -2, stride: 3, ..plain };
    let all = Window { stride: 2, padding_low: 3, padding_high: 1, input_dilation: 2, kernel_dilation: 3 };
    let huge = Window { padding_low: i64::MAX, padding_high: i64::MAX, ..plain };
    let mut entry = Entry::new("convolution")
        .accept(op(&[causal], 1, F32), "f32[2,3,8] f32[5,3,4] -> f32[2,5,8]")
        .accept(op(&[causal], 3, F32), "bf16[2,3,8] bf16[3,1,4] -> f32[2,3,8]")
        .accept(op(&[strided, plain], 1, F32), "f32[2,3,8,6] f32[5,3,4,2] -> f32[2,5,4,5]")
        .accept(op(&[plain], 1, F32), "f32[2,3,2] f32[5,3,4] -> f32[2,5,0]")
        .accept(op(&[], 1, F32), "f32[2,3] f32[5,3] -> f32[2,5]")
        .reject(op(&[plain], 1, F32), "f32[2,3,8]", "expected 2 operands, found 1")
        .reject(op(&[plain], 1, F32), "s32[2,3,8] s32[5,3,4]", "a floating-point type that can be accumulated in f32")
        .reject(op(&[plain], 1, F32), "f32[2,3,8] bf16[5,3,4]", "the element type of operand 1 must be f32")
        .reject(op(&[plain], 1, F32), "f32[2,3] f32[5,3,4]", "operand 0 must have 3 (batch, features and 1 of space)")
        .reject(op(&[plain], 2, F32), "f32[2,3,8] f32[4,1,4]", "3 input and 4 output features cannot be divided into 2")
        .reject(op(&[plain], 0, F32), "f32[2,3,8] f32[4,1,4]", "cannot be divided into 0 groups")
        .reject(op(&[plain], 1, F32), "f32[2,3,8] f32[5,2,4]", "dimension 1 of operand 1 must have size 3, found 2")
        .reject(op(&[plain], 1, F32), "f32[2,3,8] f32[5,3,0]", "a kernel of at least one element")
        .reject(op(&[cut], 1, F32), "f32[2,3,2] f32[5,3,1]", "an input of no less than none")
        .reject(op(&[huge], 1, F32), "f32[2,3,2] f32[5,3,1]", "is larger than 2^31")
        .reject(op(&[Window { stride: 0, ..plain }], 1, F32), "f32[2,3,8] f32[5,3,4]", "must be positive");
    let whole = |dtype, dims: &[usize]| random(S32, dims, -3.0, 4.0).with_dtype(dtype);
    // Windows, groups, input and kernel.
    /// Windows, groups, and the sizes of input and kernel.
    type Case<'a> = (&'a [Window], usize, &'a [usize], &'a [usize]);
    let cases: [Case<'_>; 11] = [
        (&[plain], 1, &[2, 3, 6], &[4, 3, 2]),
        (&[causal], 1, &[2, 3, 6], &[4, 3, 4]),
        (&[causal], 3, &[2, 3, 6], &[3, 1, 4]),
        (&[causal], 2, &[2, 4, 5], &[6, 2, 4]),
        (&[strided], 1, &[2, 3, 7], &[2, 3, 3]),
        (&[dilated], 3, &[1, 3, 6], &[6, 1, 3]),
        (&[transposed], 1, &[2, 2, 3], &[3, 2, 4]),
        (&[cut], 1, &[1, 2, 9], &[2, 2, 2]),
        (&[all], 2, &[2, 4, 5], &[4, 2, 3]),
        (&[strided, dilated], 2, &[1, 2, 5, 4], &[4, 1, 2, 3]),
        (&[], 1, &[2, 3], &[4, 3]),
    ];
    for (case, &(windows, groups, input, kernel)) in cases.iter().enumerate() {
        for dtype in if case == 0 { &FLOATS[..] } else { &[F32] } {
            let operands = [whole(*dtype, input), whole(*dtype, kernel)];
            let op = op(windows, groups, *dtype);
            let expected = convolve(&op, &operands[0], &operands[1], *dtype);
            entry = entry.run(op, &operands, [expected], 0.0);
        }
        entry = entry.gradient(op(windows, groups, F64), &[f64s(input), f64s(kernel)]);
    }
    let narrow = [whole(BF16, &[2, 3, 6]), whole(BF16, &[4, 3, 2])];
    let expected = convolve(&op(&[plain], 1, F32), &narrow[0], &narrow[1], F32);
    entry
        .run(op(&[plain], 1, F32), &narrow, [expected], 0.0)
        // No position at all.
        .gradient(op(&[plain], 1, F64), &[f64s(&[1, 2, 2]), f64s(&[2, 2, 3])])
        .with_vjp_snapshot()
}

pub fn custom_call() -> Entry {
    let types = |text: &str| types(text).into_boxed_slice();
    let top_k =
        CustomCall { api: CustomCallApi::StatusReturning, ..CustomCall::new("TopK", types("f32[2,2] s32[2,2]")) };
    let update = CustomCall { results: types("f32[3]"), aliases: Box::new([(0, 1)]), ..top_k.clone() };
    let aliased = |result, operand| CustomCall { aliases: Box::new([(result, operand)]), ..update.clone() };
    let x = distinct(F32, &[2, 5]);
    let laid_out = |operand: &[usize], result: &[usize]| CustomCall {
        operand_layouts: Box::new([operand.into()]),
        result_layouts: Box::new([result.into()]),
        cost: Some(KernelCost { operations: 60, transcendentals: 6, bytes: 96, scratch: 128 }),
        ..CustomCall::new("transposed", types("f32[2,5]"))
    };
    Entry::new("custom_call")
        .accept(top_k.clone(), "f32[2,5] -> f32[2,2] s32[2,2]")
        .accept(update.clone(), "s32[] f32[3] -> f32[3]")
        .accept(laid_out(&[0, 1], &[1, 0]), "f32[5,2] -> f32[2,5]")
        .reject(laid_out(&[0, 1], &[1, 0]), "f32[2] f32[5,2]", "it states layouts of 1 operand, but has 2")
        .reject(laid_out(&[0, 0], &[1, 0]), "f32[5,2]", "the layout [0, 0] of operand 0 of type f32[5,2] must name")
        .reject(laid_out(&[0, 1], &[1]), "f32[5,2]", "the layout [1] of result 0 of type f32[2,5] must name")
        .reject(CustomCall { target: Name::new(""), ..top_k.clone() }, "", "the target needs a name")
        .reject(CustomCall { results: types(""), ..top_k.clone() }, "", "it needs a result")
        .reject(aliased(1, 0), "f32[3]", "the alias of result 1 and operand 0 names one that does not exist")
        .reject(aliased(0, 0), "f32[4]", "result 0 of type f32[3] cannot share the buffer of operand 0 of type f32[4]")
        .reject(
            CustomCall { aliases: Box::new([(0, 0), (0, 1)]), ..update.clone() },
            "f32[3] f32[3]",
            "result 0 or operand 1 is in two aliases",
        )
        // XLA's CPU backend registers this target itself.
        .run(top_k.clone(), std::slice::from_ref(&x), largest(2, &x), 0.0)
        .refuse_gradient(top_k, "f32[2,5]", "custom-call(f32[2,5]): it is not differentiable")
        .without_batching("custom-call(f32[2,5]): it has no batching rule; apply it in a scan over the batch")
        .without_gradient("nothing is known of the target")
        .without_batching("custom-call(f32[2,5]): it has no batching rule; apply it in a scan over the batch")
}
