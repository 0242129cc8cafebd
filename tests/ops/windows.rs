//! Running folds and reductions of windows, against index loops.

use meshloom::ir::DType::{self, *};
use meshloom::ir::OpName;
use meshloom::ops::*;

use crate::elementwise::tolerance;
use crate::harness::*;
use crate::reductions::fold;

fn running(kind: CumulativeKind, left: f64, right: f64) -> f64 {
    match kind {
        CumulativeKind::LogSumExp => {
            let larger = left.max(right);
            larger + ((left - larger).exp() + (right - larger).exp()).ln()
        }
        CumulativeKind::Max => left.max(right),
        CumulativeKind::Min => left.min(right),
        CumulativeKind::Prod => left * right,
        CumulativeKind::Sum => left + right,
    }
}

fn accumulated(op: &Cumulative, x: &Tensor) -> Tensor {
    let mut result = x.clone();
    let size = x.dims()[op.axis];
    let stride: usize = x.dims()[op.axis + 1..].iter().product();
    let previous = |position: usize| if op.reverse { position + stride } else { position - stride };
    let mut order = indices(x.dims());
    if op.reverse {
        order.reverse();
    }
    for index in order {
        let is_first = index[op.axis] == if op.reverse { size - 1 } else { 0 };
        let position = index.iter().zip(x.dims()).fold(0, |position, (&i, &size)| position * size + i);
        if !is_first {
            result.values[position] = running(op.kind, result.values[previous(position)], x.at(&index));
        }
    }
    Tensor::new(x.ty.dtype, x.dims(), &result.values)
}

/// Numbers whose sums a floating-point type holds exactly, in whatever order: whole ones, and with 8 bits few ones.
fn exact_in_sums(x: Tensor) -> Tensor {
    let dtype = x.ty.dtype;
    let number = |(index, &value): (usize, &f64)| match dtype {
        F8E4M3FN | F8E5M2 => f64::from(index % 6 == 1),
        dtype if dtype.is_float() => value.floor(),
        _ => value,
    };
    Tensor { values: x.values.iter().enumerate().map(number).collect(), ..x }
}

pub fn cumulative(kind: CumulativeKind) -> Entry {
    let op = |axis, reverse| Cumulative { kind, axis, reverse };
    let text = if kind == CumulativeKind::LogSumExp { "a floating-point type" } else { "a number type" };
    let mut entry = Entry::new(op(0, false).name().replace('-', "_"))
        .accept(op(1, false), "f32[2,5] -> f32[2,5]")
        .accept(op(0, true), "bf16[0,3] -> bf16[0,3]")
        .reject(op(0, false), "", "expected 1 operand, found 0")
        .reject(op(2, false), "f32[2,3]", "axis 2 is out of range or repeated for an operand with 2 dimensions")
        .reject(op(0, false), "pred[3]", &format!("the element type of operand 0 must be {text}, found pred"));
    for dtype in DType::ALL.into_iter().filter(|&dtype| kind.class().contains(dtype)) {
        for (dims, axis) in [(&[2, 5, 3][..], 1), (&[7], 0), (&[4, 1], 1), (&[2, 0], 1), (&[37], 0)] {
            for reverse in [false, true] {
                let x = match kind {
                    // Powers of two of either sign, as many up as down, are exact in every type.
                    CumulativeKind::Prod => Tensor::from_fn(dtype, dims, |i| match i.iter().sum::<usize>() % 5 {
                        0 if dtype.is_float() || dtype.is_signed_integer() => -1.0,
                        1 if dtype.is_float() => 0.5,
                        2 if dtype.is_float() || dims[axis] < 8 => 2.0,
                        _ => 1.0,
                    }),
                    CumulativeKind::LogSumExp => random(dtype, dims, -3.0, 3.0),
                    _ if dims[axis] > 7 => random(dtype, dims, 0.0, 3.0),
                    _ => distinct(dtype, dims),
                };
                let x = if kind == CumulativeKind::Sum { exact_in_sums(x) } else { x };
                let y = accumulated(&op(axis, reverse), &x);
                // The tree of a long fold rounds more often in bf16 than one element's rounding.
                let bound = if kind == CumulativeKind::LogSumExp { 4.0 * tolerance(dtype) } else { 0.0 };
                entry = entry.run(op(axis, reverse), &[x], [y], bound);
            }
        }
    }
    for (dims, axis) in [(&[2, 5, 3][..], 1), (&[9], 0), (&[2, 1], 1)] {
        for reverse in [false, true] {
            entry = entry.gradient(op(axis, reverse), &[f64s(dims)]);
        }
    }
    if kind == CumulativeKind::Prod {
        let mut x = f64s(&[9]);
        [2, 5].into_iter().for_each(|index| x.values[index] = 0.0);
        entry = entry.gradient(op(0, false), &[x]);
    }
    if kind == CumulativeKind::LogSumExp {
        // Numbers whose exponentials overflow or vanish; no element so far; and NaN from one on.
        let far = Tensor::new(F64, &[6], &[-1000.0, 1000.0, 999.0, -2000.0, 1001.0, 1000.5]);
        let y = accumulated(&op(0, false), &far);
        let none = Tensor::new(F32, &[3], &[f64::NEG_INFINITY, f64::NEG_INFINITY, 2.0]);
        let undefined = Tensor::new(F32, &[3], &[1.0, f64::NAN, 2.0]);
        entry = entry
            .run(op(0, false), std::slice::from_ref(&far), [y], tolerance(F64))
            .run(op(0, false), std::slice::from_ref(&none), [none.clone()], 0.0)
            .run(op(0, false), &[undefined], [Tensor::new(F32, &[3], &[1.0, f64::NAN, f64::NAN])], 0.0)
            .gradient(op(0, false), std::slice::from_ref(&far))
            .gradient(op(0, true), &[far]);
    }
    entry.with_vjp_snapshot()
}

/// Sizes, and a window for each dimension.
type Case = (&'static [usize], &'static [WindowDim]);

const ONE: WindowDim = WindowDim::ONE;

const CASES: [Case; 9] = [
    (&[7], &[WindowDim { low: 1, high: 1, ..WindowDim::new(3, 2) }]),
    (&[2, 5, 4], &[ONE, WindowDim::new(2, 1), WindowDim::new(2, 2)]),
    // A dimension without a window between two that have one.
    (&[4, 2, 5], &[WindowDim::new(2, 2), ONE, WindowDim { low: 2, high: 0, ..WindowDim::new(3, 1) }]),
    // Dilation of the window, of the operand, and of both.
    (&[9], &[WindowDim { window_dilation: 3, ..WindowDim::new(2, 2) }]),
    (&[4], &[WindowDim { base_dilation: 3, low: 1, high: 2, ..WindowDim::new(3, 1) }]),
    (&[5], &[WindowDim { base_dilation: 2, window_dilation: 2, low: 3, high: 1, ..WindowDim::new(3, 2) }]),
    // Windows that hold no element of the operand, borders that are cut off, and one window over all.
    (&[3], &[WindowDim { low: 3, high: 2, ..WindowDim::new(2, 1) }]),
    (&[8], &[WindowDim { low: -1, high: -2, ..WindowDim::new(2, 1) }]),
    (&[3, 3], &[WindowDim::new(3, 1), WindowDim::new(3, 1)]),
];

/// For every window its elements, with their indices in the operand.
fn windows(dims: &[usize], window: &[WindowDim]) -> (Vec<usize>, Vec<Vec<Vec<usize>>>) {
    let spread = |count: usize, distance: usize| (count as i64 - 1) * distance as i64 + 1;
    let count = |(window, &size): (&WindowDim, &usize)| {
        let room =
            spread(size, window.base_dilation) + window.low + window.high - spread(window.size, window.window_dilation);
        (room / window.stride as i64 + 1) as usize
    };
    let counts: Vec<usize> = window.iter().zip(dims).map(count).collect();
    let sizes: Vec<usize> = window.iter().map(|window| window.size).collect();
    let elements = |result: &Vec<usize>| {
        let element = |offset: Vec<usize>| {
            let along = |dim: usize| {
                let window = window[dim];
                let place = (result[dim] * window.stride + offset[dim] * window.window_dilation) as i64 - window.low;
                let distance = window.base_dilation as i64;
                let inside = place >= 0 && place % distance == 0 && place / distance < dims[dim] as i64;
                inside.then_some((place / distance) as usize)
            };
            (0..dims.len()).map(along).collect::<Option<Vec<usize>>>()
        };
        indices(&sizes).into_iter().filter_map(element).collect()
    };
    let all = indices(&counts).iter().map(elements).collect();
    (counts, all)
}

pub fn reduce_window(kind: ReduceKind) -> Entry {
    let op = |window: &[WindowDim]| ReduceWindow { kind, window: window.into() };
    let class = BinaryKind::from(kind).class();
    let first = if class.contains(F32) { F32 } else { Pred };
    let mut entry = Entry::new(op(&[]).name().replace('-', "_"))
        .accept(op(CASES[2].1), &format!("{first}[4,2,5] -> {first}[2,2,5]"))
        .accept(op(&[]), &format!("{first}[] -> {first}[]"))
        .accept(op(&[WindowDim::new(3, 1)]), &format!("{first}[2] -> {first}[0]"))
        .reject(op(&[ONE]), "", "expected 1 operand, found 0")
        .reject(op(&[ONE]), &format!("{first}[2,3]"), "operand 0 must have 1 dimension, found 2");
    let wrong = [
        WindowDim { size: 0, ..ONE },
        WindowDim { stride: 0, ..ONE },
        WindowDim { base_dilation: 0, ..ONE },
        WindowDim { window_dilation: usize::MAX, size: 2, ..ONE },
        WindowDim { low: -4, ..ONE },
        WindowDim { high: i64::MIN, ..ONE },
    ];
    for window in wrong {
        entry = entry.reject(op(&[window]), &format!("{first}[3]"), "does not fit dimension 0 of size 3");
    }
    for dtype in DType::ALL {
        if !class.contains(dtype) {
            entry = entry.reject(op(&[ONE]), &format!("{dtype}[2]"), "the element type of operand 0 must be");
            continue;
        }
        for (dims, window) in CASES {
            let mut x = distinct(dtype, dims);
            if kind == ReduceKind::Prod {
                x.values.iter_mut().for_each(|value| *value = if value.rem_euclid(8.0) == 0.0 { 2.0 } else { 1.0 });
            }
            if kind == ReduceKind::Sum {
                x = exact_in_sums(x);
            }
            let (counts, windows) = windows(dims, window);
            let nothing = crate::reductions::identity(kind, dtype);
            let fold = |window: &Vec<Vec<usize>>| {
                window.iter().map(|index| x.at(index)).reduce(|a, b| fold(kind, a, b)).unwrap_or(nothing)
            };
            let values: Vec<f64> = windows.iter().map(fold).collect();
            entry = entry.run(op(window), &[x], [Tensor::new(dtype, &counts, &values)], 0.0);
        }
    }
    if !class.contains(F64) {
        return entry.without_gradient("not defined on floating point");
    }
    if kind == ReduceKind::Prod {
        let message = "reduce-window-prod(f64[7]): it is not differentiable";
        return entry.refuse_gradient(op(CASES[0].1), "f64[7]", message).without_gradient("products have none");
    }
    for (dims, window) in CASES {
        // An infinite extremum of no elements has no differences.
        if kind == ReduceKind::Sum || windows(dims, window).1.iter().all(|window| !window.is_empty()) {
            entry = entry.gradient(op(window), &[f64s(dims)]);
        }
    }
    entry.with_vjp_snapshot()
}

pub fn arg_reduce_window(kind: ArgReduceKind) -> Entry {
    let op = |window: &[WindowDim]| ArgReduceWindow { kind, window: window.into() };
    let mut entry = Entry::new(op(&[]).name().replace('-', "_"))
        .accept(op(CASES[2].1), "f32[4,2,5] -> s32[2,2,5]")
        .accept(op(&[ONE]), "u8[3000000000] -> s32[3000000000]")
        .reject(op(&[ONE]), "", "expected 1 operand, found 0")
        .reject(op(&[ONE]), "f32[2,3]", "operand 0 must have 1 dimension, found 2")
        .reject(op(&[ONE]), "pred[3]", "the element type of operand 0 must be a number type, found pred")
        .reject(op(&[WindowDim::new(2, 1)]), "u8[3000000000]", "there are 3000000000 positions, more than s32 can");
    for dtype in DType::ALL.into_iter().filter(|&dtype| OperandClass::Numeric.contains(dtype)) {
        for (dims, window) in CASES {
            let windowed: Vec<usize> = (0..dims.len()).filter(|&dim| window[dim] != ONE).collect();
            let position = |index: &[usize]| windowed.iter().fold(0, |at, &dim| at * dims[dim] + index[dim]) as f64;
            // Few different values, so that the first of equals is asked for.
            for x in [distinct(dtype, dims), random(dtype, dims, 0.0, 1.9)] {
                let better = |new: f64, old: f64| if kind == ArgReduceKind::Max { new > old } else { new < old };
                let (counts, windows) = windows(dims, window);
                let best = |window: &Vec<Vec<usize>>| {
                    let best = window.iter().reduce(|a, b| if better(x.at(b), x.at(a)) { b } else { a });
                    best.map_or(i32::MAX.into(), |index| position(index))
                };
                let values: Vec<f64> = windows.iter().map(best).collect();
                entry = entry.run(op(window), &[x], [Tensor::new(S32, &counts, &values)], 0.0);
            }
        }
    }
    // The worst number of all, which is also the start of the fold.
    let worst = if kind == ArgReduceKind::Max { f64::NEG_INFINITY } else { f64::INFINITY };
    let x = Tensor::new(F32, &[3], &[worst; 3]);
    entry = entry.run(op(&[WindowDim::new(2, 1)]), &[x], [Tensor::new(S32, &[2], &[0.0, 1.0])], 0.0);
    entry.without_gradient("the result is an integer")
}
