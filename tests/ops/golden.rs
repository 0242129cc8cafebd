//! The golden values of tests/oracle/ops.safetensors (its README says how they are compared), by the ops of the table.

use std::collections::BTreeMap;

use meshloom::ir::{DType, GraphBuilder, Literal, TensorType, Value};
use meshloom::ops::*;
use safetensors::{Dtype, SafeTensors};

use crate::computer::By;
use crate::harness::*;

fn unary(b: &mut GraphBuilder, kind: UnaryKind, x: Value) -> Value {
    push(b, Unary(kind), &[x])
}

fn binary(b: &mut GraphBuilder, kind: BinaryKind, x: Value, y: Value) -> Value {
    push(b, Binary(kind), &[x, y])
}

/// Repeats along the last dimension.
fn broadcast_last(b: &mut GraphBuilder, x: Value, size: usize) -> Value {
    let mut dims = b.ty(x).dims.clone();
    let mapping = (0..dims.len()).collect();
    dims.push(size);
    push(b, BroadcastInDim { dims, mapping }, &[x])
}

/// Dimension numbers of rows of a matrix at a list of indices with `rank` dimensions.
fn rows(rank: usize) -> Box<GatherDims> {
    Box::new(GatherDims {
        offset_dims: [rank].into_iter().collect(),
        collapsed_dims: [0].into_iter().collect(),
        start_index_map: [0].into_iter().collect(),
        index_vector_dim: rank,
        ..GatherDims::default()
    })
}

/// The cotangent of one operand of an op.
fn pulled_back(b: &mut GraphBuilder, op: impl Into<Op>, x: &[Value], operand: usize, ct: Value) -> Option<Value> {
    let types: Vec<TensorType> = x.iter().map(|&x| b.ty(x).clone()).collect();
    let primal = graph("primal", &types, |b, x| vec![push(b, op, x)]);
    let active: Vec<bool> = (0..x.len()).map(|index| index == operand).collect();
    let tape = meshloom::autodiff::Tape::record(b, &primal, x, &active, &[true]).expect("a tape");
    tape.pullback(b, &[Some(ct)]).expect("a gradient")[operand]
}

fn matmul(dtype: DType) -> DotGeneral {
    let dims = DotDims {
        lhs_contract: [1].into_iter().collect(),
        rhs_contract: [0].into_iter().collect(),
        ..DotDims::default()
    };
    DotGeneral { dims: Box::new(dims), dtype, precision: Precision::Default }
}

/// Cases whose 8-bit floating-point operands and results are given as bits: `operation_type[_result]`.
fn f8_computation(name: &str, b: &mut GraphBuilder, x: &[Value]) -> Option<Value> {
    let dtype = [DType::F8E4M3FN, DType::F8E5M2].into_iter().find(|dtype| name.contains(dtype.name()))?;
    let bits = |b: &mut GraphBuilder, x: Value| push(b, BitcastConvert(DType::U8), &[x]);
    if let Some(from) = name.strip_prefix("convert_").and_then(|rest| rest.strip_suffix(&format!("_{dtype}"))) {
        assert_eq!(from, b.ty(x[0]).dtype.name());
        let converted = push(b, Convert(dtype), x);
        return Some(bits(b, converted));
    }
    let operands: Vec<Value> = x.iter().map(|&x| push(b, BitcastConvert(dtype), &[x])).collect();
    Some(match name.split_once('_')?.0 {
        "add" => {
            let sum = push(b, Binary(BinaryKind::Add), &operands);
            bits(b, sum)
        }
        "multiply" => {
            let product = push(b, Binary(BinaryKind::Multiply), &operands);
            bits(b, product)
        }
        "convert" => push(b, Convert(DType::F32), &operands),
        "dot" => push(b, matmul(DType::F32), &operands),
        _ => return None,
    })
}

/// Running folds, windows and products.
fn fold_computation(name: &str, b: &mut GraphBuilder, x: &[Value]) -> Option<Value> {
    use CumulativeKind as C;
    let running = |kind, axis, reverse| Op::from(Cumulative { kind, axis, reverse });
    let window = |kind| {
        let rows = WindowDim { low: 1, window_dilation: 2, ..WindowDim::new(2, 2) };
        let columns = WindowDim { high: 2, base_dilation: 2, ..WindowDim::new(3, 1) };
        Op::from(ReduceWindow { kind, window: [rows, columns].into() })
    };
    let op = match name {
        "cumlogsumexp_last" => running(C::LogSumExp, 1, false),
        "cumlogsumexp_reverse" => running(C::LogSumExp, 1, true),
        "cummax_nan" => running(C::Max, 1, false),
        "cummin_reverse" => running(C::Min, 0, true),
        "cumprod_first" => running(C::Prod, 0, false),
        "cumsum_first" | "cumsum_s32" => running(C::Sum, 0, false),
        "cumsum_last_reverse" => running(C::Sum, 1, true),
        "reduce_prod" => Reduce { kind: ReduceKind::Prod, axes: [1].into_iter().collect() }.into(),
        "reduce_window_max" => window(ReduceKind::Max),
        "reduce_window_sum" => window(ReduceKind::Sum),
        "reduce_window_max_vjp" => {
            let op = ReduceWindow { kind: ReduceKind::Max, window: [WindowDim::new(2, 2); 2].into() };
            return pulled_back(b, op, &x[..1], 0, x[1]);
        }
        _ => return None,
    };
    Some(push(b, op, x))
}

/// The computation of a case; `None` for one that this test does not know.
fn computation(name: &str, b: &mut GraphBuilder, x: &[Value]) -> Option<Value> {
    let last: AxisList = [b.ty(x[0]).rank().saturating_sub(1)].into_iter().collect();
    if name.starts_with("dynamic_slice_") {
        return Some(push(b, DynamicSlice { sizes: [2, 3].into_iter().collect() }, x));
    }
    if name.starts_with("dynamic_update_slice_") {
        return Some(push(b, DynamicUpdateSlice, x));
    }
    let promise = IndexPromise::default();
    let by_opcode = |kinds: &[(&str, UnaryKind)]| kinds.iter().find(|(case, _)| *case == name).map(|&(_, kind)| kind);
    use UnaryKind as U;
    let smooth = [
        ("abs_s32", U::Abs),
        ("acos", U::Acos),
        ("acosh", U::Acosh),
        ("asin", U::Asin),
        ("asinh", U::Asinh),
        ("atan", U::Atan),
        ("atanh", U::Atanh),
        ("cbrt", U::Cbrt),
        ("ceil", U::Ceil),
        ("cos", U::Cosine),
        ("cosh", U::Cosh),
        ("count_leading_zeros", U::CountLeadingZeros),
        ("erf", U::Erf),
        ("erf_inv", U::ErfInv),
        ("erfc", U::Erfc),
        ("exp", U::Exponential),
        ("expm1", U::ExponentialMinusOne),
        ("floor", U::Floor),
        ("log", U::Log),
        ("log1p", U::LogPlusOne),
        ("logistic", U::Logistic),
        ("negate_s32", U::Negate),
        ("popcnt", U::PopulationCount),
        ("round_nearest_afz", U::RoundNearestAwayFromZero),
        ("round_nearest_even", U::RoundNearestEven),
        ("rsqrt", U::Rsqrt),
        ("sign_f32", U::Sign),
        ("sign_s32", U::Sign),
        ("sin", U::Sine),
        ("sinh", U::Sinh),
        ("sqrt", U::Sqrt),
        ("tan", U::Tan),
        ("tanh", U::Tanh),
    ];
    if let Some(kind) = by_opcode(&smooth) {
        return Some(unary(b, kind, x[0]));
    }
    use BinaryKind as B;
    if let Some(value) = f8_computation(name, b, x).or_else(|| fold_computation(name, b, x)) {
        return Some(value);
    }
    let value = match name {
        "atan2" => binary(b, B::Atan2, x[0], x[1]),
        "divide_f32" | "divide_s32" | "divide_u32" => binary(b, B::Divide, x[0], x[1]),
        "maximum_nan" => binary(b, B::Maximum, x[0], x[1]),
        "minimum_nan" => binary(b, B::Minimum, x[0], x[1]),
        "multiply_s32" => binary(b, B::Multiply, x[0], x[1]),
        "power" => binary(b, B::Power, x[0], x[1]),
        "remainder_f32" | "remainder_s32" | "remainder_u32" => binary(b, B::Remainder, x[0], x[1]),
        "shift_left_s32" => binary(b, B::ShiftLeft, x[0], x[1]),
        "shift_right_arithmetic_s32" => binary(b, B::ShiftRightArithmetic, x[0], x[1]),
        "shift_right_logical_s32" | "shift_right_logical_u32" => binary(b, B::ShiftRightLogical, x[0], x[1]),
        "clamp" => push(b, Clamp, x),
        "argmax_last" => push(b, ArgReduce { kind: ArgReduceKind::Max, axis: 1 }, x),
        "argmin_last" => push(b, ArgReduce { kind: ArgReduceKind::Min, axis: 1 }, x),
        "reduce_max_last" => push(b, Reduce { kind: ReduceKind::Max, axes: last }, x),
        "reduce_min_last" => push(b, Reduce { kind: ReduceKind::Min, axes: last }, x),
        "compare_eq" => push(b, Compare(Direction::Eq), x),
        "compare_ge" => push(b, Compare(Direction::Ge), x),
        "compare_gt" => push(b, Compare(Direction::Gt), x),
        "compare_le" => push(b, Compare(Direction::Le), x),
        "compare_lt" => push(b, Compare(Direction::Lt), x),
        "compare_ne" => push(b, Compare(Direction::Ne), x),
        "select_nan" => push(b, Select, x),
        "convert_f32_bf16" => push(b, Convert(DType::BF16), x),
        "convert_f32_bf16_f32" => {
            let rounded = push(b, Convert(DType::BF16), x);
            push(b, Convert(DType::F32), &[rounded])
        }
        "convert_f32_pred" => push(b, Convert(DType::Pred), x),
        "convert_f32_s32" => push(b, Convert(DType::S32), x),
        "convert_s32_f32" | "convert_u32_f32" => push(b, Convert(DType::F32), x),
        "convert_s32_u32" => push(b, Convert(DType::U32), x),
        "dot_s8_s32" => push(b, matmul(DType::S32), x),
        "dot_bf16_f32" | "dot_bf16_f32_bf16" => {
            let product = push(b, matmul(DType::F32), x);
            if name == "dot_bf16_f32" { product } else { push(b, Convert(DType::BF16), &[product]) }
        }
        "gather_rows_clip" | "gather_rows_clip_2d" => {
            let width = b.ty(x[0]).dims[1];
            let rank = b.ty(x[1]).rank();
            push(b, Gather { dims: rows(rank), slice_sizes: [1, width].into_iter().collect(), promise }, x)
        }
        "gather_rows_clip_vjp" => {
            let op = Gather { dims: rows(1), slice_sizes: [1, 3].into_iter().collect(), promise };
            pulled_back(b, op, &x[..2], 0, x[2])?
        }
        "gather_rows_fill" => {
            let dims = b.ty(x[0]).dims.clone();
            let gather = Gather { dims: rows(1), slice_sizes: [1, dims[1]].into_iter().collect(), promise };
            let found = push(b, gather, x);
            let ty = b.ty(x[1]).clone();
            let bounds = [-1.0, dims[0] as f64].map(|bound| push(b, Splat::new(ty.clone(), bound), &[]));
            let above = push(b, Compare(Direction::Gt), &[x[1], bounds[0]]);
            let below = push(b, Compare(Direction::Lt), &[x[1], bounds[1]]);
            let inside = binary(b, B::And, above, below);
            let inside = broadcast_last(b, inside, dims[1]);
            let half = push(b, Splat::new(b.ty(found).clone(), 0.5), &[]);
            push(b, Select, &[inside, found, half])
        }
        "scatter_max_out_of_range" => push(b, Scatter { dims: rows(1), kind: ScatterKind::Max, promise }, x),
        "scatter_min_out_of_range" => push(b, Scatter { dims: rows(1), kind: ScatterKind::Min, promise }, x),
        "scatter_multiply_out_of_range" => push(b, Scatter { dims: rows(1), kind: ScatterKind::Multiply, promise }, x),
        "scatter_set_out_of_range" => push(b, Scatter { dims: rows(1), kind: ScatterKind::Set, promise }, x),
        "scatter_set_vjp" => {
            let op = Scatter { dims: rows(1), kind: ScatterKind::Set, promise };
            pulled_back(b, op, &x[..3], 2, x[3])?
        }
        "scatter_add_duplicates" | "scatter_add_out_of_range" => {
            push(b, Scatter { dims: rows(1), kind: ScatterKind::Add, promise }, x)
        }
        "take_along_last" => {
            let dims = GatherDims {
                collapsed_dims: [1].into_iter().collect(),
                operand_batch_dims: [0].into_iter().collect(),
                indices_batch_dims: [0].into_iter().collect(),
                start_index_map: [1].into_iter().collect(),
                index_vector_dim: 1,
                ..GatherDims::default()
            };
            push(b, Gather { dims: Box::new(dims), slice_sizes: [1, 1].into_iter().collect(), promise }, x)
        }
        "softmax_masked" => {
            let low = push(b, Splat::new(b.ty(x[0]).clone(), -1e30), &[]);
            let masked = push(b, Select, &[x[1], x[0], low]);
            let largest = push(b, Reduce { kind: ReduceKind::Max, axes: last.clone() }, &[masked]);
            let largest = broadcast_last(b, largest, 5);
            let shifted = binary(b, B::Subtract, masked, largest);
            let powers = unary(b, U::Exponential, shifted);
            let sum = push(b, Reduce { kind: ReduceKind::Sum, axes: last }, &[powers]);
            let sum = broadcast_last(b, sum, 5);
            binary(b, B::Divide, powers, sum)
        }
        _ => return None,
    };
    Some(value)
}

/// Relative error allowed, as the README of the oracle states it; 0 for exact values.
fn tolerance(case: &str) -> f64 {
    match case {
        "erf_inv" => 5e-6,
        "acos" | "acosh" | "asin" | "asinh" | "atan" | "atanh" | "cbrt" | "cosh" | "erfc" | "sinh" | "tan" => 3e-6,
        "atan2" | "cumlogsumexp_last" | "cumlogsumexp_reverse" => 1e-6,
        "logistic" | "power" => 2e-6,
        "cos" | "erf" | "exp" | "expm1" | "log" | "log1p" | "rsqrt" | "sin" | "softmax_masked" | "sqrt" | "tanh" => {
            1e-6
        }
        _ => 0.0,
    }
}

fn difference(found: &Literal, expected: &Literal, tolerance: f64) -> Option<String> {
    if found.ty() != expected.ty() {
        return Some(format!("expected {}, found {}", expected.ty(), found.ty()));
    }
    let pairs = found.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate();
    for (index, (found, expected)) in pairs {
        let exact = found == expected && found.is_sign_negative() == expected.is_sign_negative();
        let near = tolerance > 0.0 && (found == expected || (found - expected).abs() <= tolerance * expected.abs());
        if !(exact || near || found.is_nan() && expected.is_nan()) {
            return Some(format!("element {index} is {found:?} instead of {expected:?}"));
        }
    }
    None
}

#[test]
fn golden_values() {
    let bytes = std::fs::read(support::path("tests/oracle/ops.safetensors")).expect("the file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let literal = |name: &str| {
        let view = file.tensor(name).ok()?;
        let dtype = match view.dtype() {
            Dtype::BOOL => DType::Pred,
            Dtype::I8 => DType::S8,
            Dtype::U8 => DType::U8,
            Dtype::I32 => DType::S32,
            Dtype::U32 => DType::U32,
            Dtype::BF16 => DType::BF16,
            Dtype::F32 => DType::F32,
            other => panic!("{name} is of type {other:?}"),
        };
        Literal::from_bytes(TensorType::new(dtype, view.shape()), view.data()).ok()
    };
    let mut cases: BTreeMap<String, Vec<Literal>> = BTreeMap::new();
    for name in file.names() {
        let case = name.split('.').next().expect("a case");
        let inputs = (0..).map_while(|index| literal(&format!("{case}.in{index}"))).collect();
        cases.insert(case.to_owned(), inputs);
    }
    assert!(cases.len() >= 110, "only {} cases", cases.len());

    let inputs: Vec<Literal> = cases.values().flatten().cloned().collect();
    let types: Vec<TensorType> = inputs.iter().map(|literal| literal.ty().clone()).collect();
    let graph = graph("golden", &types, |builder, values| {
        let mut values = values.iter().copied();
        let compute = |(case, inputs): (&String, &Vec<Literal>)| {
            let operands: Vec<Value> = values.by_ref().take(inputs.len()).collect();
            let result = computation(case, builder, &operands);
            result.unwrap_or_else(|| panic!("case {case} is not computed here"))
        };
        cases.iter().map(compute).collect()
    });
    let outputs = By::Xla.run(&graph, &inputs);
    let check = |(case, found): (&String, &Literal)| {
        let expected = literal(&format!("{case}.out0")).expect("an expected value");
        difference(found, &expected, tolerance(case)).map(|difference| format!("{case}: {difference}"))
    };
    let problems: Vec<String> = cases.keys().zip(&outputs).filter_map(check).collect();
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
}
