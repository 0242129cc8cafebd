//! Ops that look at windows of an operand: folds, places of extremes, and convolutions.

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::ops::{ArgReduceWindow, Convolution, ReduceKind, ReduceWindow, Window, WindowDim};

use super::moves::{positions, strides};
use super::number::{binary, identity, is_better, packed, round};

/// The index of an element of a shape along each dimension.
pub fn index_of(mut position: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for dim in (0..dims.len()).rev() {
        index[dim] = position % dims[dim];
        position /= dims[dim];
    }
    index
}

/// Returns the place in the operand of an element of a window along one dimension, if it is not padding.
fn place(window: &WindowDim, size: usize, result: usize, element: usize) -> Option<usize> {
    let place = (result * window.stride + element * window.window_dilation) as i64 - window.low;
    let distance = window.base_dilation as i64;
    let inside = place >= 0 && place % distance == 0 && place / distance < size as i64;
    inside.then_some((place / distance) as usize)
}

/// Returns, for every element of the result, the positions of its window's elements in an operand of `dims`, in order.
fn windows(window: &[WindowDim], dims: &[usize], result: &[usize]) -> Vec<Vec<usize>> {
    let sizes: Vec<usize> = window.iter().map(|window| window.size).collect();
    let elements: Vec<Vec<usize>> = (0..sizes.iter().product()).map(|position| index_of(position, &sizes)).collect();
    let own = strides(dims);
    let all = (0..result.iter().product()).map(|position| {
        let at = index_of(position, result);
        let position = |element: &Vec<usize>| {
            let along = |dim: usize| {
                place(&window[dim], dims[dim], at[dim], element[dim]).map(|place| place * own[dim] as usize)
            };
            (0..dims.len()).map(along).sum::<Option<usize>>()
        };
        elements.iter().filter_map(position).collect()
    });
    all.collect()
}

fn combine(kind: ReduceKind, dtype: DType, x: f64, y: f64) -> f64 {
    match kind {
        ReduceKind::And => (x as i64 & y as i64) as f64,
        ReduceKind::Or => (x as i64 | y as i64) as f64,
        kind => round(dtype, binary(kind.into(), x, y)),
    }
}

pub fn reduce_window(op: &ReduceWindow, operand: &Literal, ty: &TensorType) -> Literal {
    let numbers = operand.to_f64_vec();
    let fold = |window: Vec<usize>| {
        let elements = window.into_iter().map(|position| numbers[position]);
        elements.reduce(|x, y| combine(op.kind, ty.dtype, x, y)).unwrap_or(identity(op.kind, ty.dtype))
    };
    let folded: Vec<f64> = windows(&op.window, &operand.ty().dims, &ty.dims).into_iter().map(fold).collect();
    packed(ty, &folded)
}

/// Finds the first of equal extremes, or the first NaN, if there is one. Places count along the dimensions that have
/// windows.
pub fn arg_reduce_window(op: &ArgReduceWindow, operand: &Literal, ty: &TensorType) -> Literal {
    let (numbers, dims) = (operand.to_f64_vec(), &operand.ty().dims);
    let counted = |position: usize| {
        let windowed = |dim: &usize| op.window[*dim] != WindowDim::ONE;
        let index = index_of(position, dims);
        (0..dims.len()).filter(windowed).fold(0, |place, dim| place * dims[dim] + index[dim]) as f64
    };
    let place = |window: Vec<usize>| {
        let best = window
            .into_iter()
            .reduce(|best, at| if is_better(op.kind, numbers[at], numbers[best]) { at } else { best });
        best.map_or(i32::MAX.into(), counted)
    };
    let places: Vec<f64> = windows(&op.window, dims, &ty.dims).into_iter().map(place).collect();
    packed(ty, &places)
}

/// Rounds every product and every sum. Taps are added up in order, and within each the features.
pub fn convolution(op: &Convolution, operands: &[&Literal], ty: &TensorType) -> Literal {
    let [input, kernel] = [0, 1].map(|index| operands[index].to_f64_vec());
    let [of_input, of_kernel] = [0, 1].map(|index| &operands[index].ty().dims);
    let (input_strides, kernel_strides) = (strides(of_input), strides(of_kernel));
    let per_group = of_kernel[0] / op.feature_groups;
    let own_features = of_kernel[1];
    let window = |(window, &size): (&Window, &usize)| WindowDim {
        stride: window.stride,
        low: window.padding_low,
        high: window.padding_high,
        base_dilation: window.input_dilation,
        window_dilation: window.kernel_dilation,
        size,
    };
    let space: Vec<WindowDim> = op.windows.iter().zip(&of_kernel[2..]).map(window).collect();
    let taps = positions(0, &of_kernel[2..], &kernel_strides[2..]);
    let sum = |position: usize| {
        let at = index_of(position, &ty.dims);
        let group = at[1] / per_group;
        let mut sum = 0.0;
        for (number, &tap) in taps.iter().enumerate() {
            let element = index_of(number, &of_kernel[2..]);
            let along = |dim: usize| {
                let place = place(&space[dim], of_input[dim + 2], at[dim + 2], element[dim]);
                place.map(|place| place * input_strides[dim + 2] as usize)
            };
            let Some(from) = (0..space.len()).map(along).sum::<Option<usize>>() else { continue };
            for feature in 0..own_features {
                let from = from
                    + at[0] * input_strides[0] as usize
                    + (group * own_features + feature) * input_strides[1] as usize;
                let of = tap as usize + at[1] * kernel_strides[0] as usize + feature * kernel_strides[1] as usize;
                sum = round(ty.dtype, sum + round(ty.dtype, input[from] * kernel[of]));
            }
        }
        sum
    };
    packed(ty, &(0..ty.element_count()).map(sum).collect::<Vec<f64>>())
}
