//! Ops without regions, on host values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meshloom::ir::{DType, GraphBuilder, Literal, Name, OpError, PortInfo, TensorType, Value};
use meshloom::ops::{
    ArgReduce, BinaryKind, Cumulative, CustomCall, DotGeneral, Op, RaggedForm, Reduce, ReduceKind, Scatter, Sort,
    Threefry, Unary, UnaryKind,
};
use meshloom::passes::evaluate;
use meshloom_mosaic::CALL_TARGET;

use super::cudnn;
use super::mosaic::{self, Array};
use super::moves::{Windows, concatenate, cut, pad, paste, pick, positions, positions_along, starts, strides};
use super::number::{binary, compare, cumulate, identity, is_better, packed, round, unary};
use super::opaque::opaque;
use super::{ragged, windows};

/// The results of an op, which have these types.
pub fn apply(op: &Op, operands: &[&Literal], types: &[&TensorType]) -> Vec<Literal> {
    match op {
        Op::Barrier(_) | Op::MoveTo(_) | Op::Named(_) | Op::Reshard(_) | Op::StopGradient(_) | Op::WithAxes(_) => {
            operands.iter().map(|&literal| literal.clone()).collect()
        }
        Op::Threefry(_) => threefry(operands, types),
        Op::CustomCall(op) if op.target == Name::new(CALL_TARGET) => kernel(op, operands),
        Op::CustomCall(op) => {
            cudnn::apply(op, operands).unwrap_or_else(|| panic!("{} is not interpreted", op.target.text()))
        }
        Op::RaggedDot(op) if op.form == RaggedForm::Instruction => vec![ragged::apply(op, operands, types[0])],
        Op::RaggedDot(op) => vec![ragged::masked(op, operands, types[0])],
        Op::ReduceWindow(op) => vec![windows::reduce_window(op, operands[0], types[0])],
        Op::ArgReduceWindow(op) => vec![windows::arg_reduce_window(op, operands[0], types[0])],
        Op::Convolution(op) => vec![windows::convolution(op, operands, types[0])],
        Op::TopK(op) => top_k(op.k, operands[0], types),
        Op::Sort(op) => sort(op, operands),
        Op::Opaque(op) => opaque(op, operands, types),
        Op::Attention(op) => defined(operands, |builder, inputs| op.define(builder, inputs)),
        Op::AttentionGradient(op) => defined(operands, |builder, inputs| op.define(builder, inputs)),
        Op::KernelCall(op) => defined(operands, |builder, inputs| op.define(builder, inputs)),
        op => {
            let ty = types[0];
            let found = moved(op, operands, ty).or_else(|| computed(op, operands, ty));
            let found = found.or_else(|| evaluate(op, operands)).or_else(|| small_integers(op, operands, ty));
            vec![found.unwrap_or_else(|| panic!("{} of {ty} is not interpreted", op.name()))]
        }
    }
}

/// The greatest elements of the last dimension, and where they are.
fn top_k(k: usize, operand: &Literal, types: &[&TensorType]) -> Vec<Literal> {
    let numbers = operand.to_f64_vec();
    let size = operand.ty().dims.last().copied().unwrap_or(1);
    let places = numbers.chunks(size).flat_map(|row| {
        let mut places: Vec<usize> = (0..size).collect();
        places.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        places.truncate(k);
        places
    });
    let places: Vec<usize> = places.collect();
    let number = |index: usize| numbers[index / k * size + places[index]];
    vec![Literal::from_fn(types[0].clone(), number), Literal::from_fn(types[1].clone(), |index| places[index] as f64)]
}

/// Sorts all operands by the first ones; equal elements keep their order. There is one zero, and one NaN, which is the
/// greatest.
fn sort(op: &Sort, operands: &[&Literal]) -> Vec<Literal> {
    let dims = &operands[0].ty().dims;
    let (size, stride) = (dims[op.axis], dims[op.axis + 1..].iter().product::<usize>());
    let numbers: Vec<Vec<f64>> = operands.iter().map(|operand| operand.to_f64_vec()).collect();
    let canonical = |&x: &f64| if x.is_nan() { f64::NAN } else { x + 0.0 };
    let keys: Vec<Vec<f64>> =
        numbers[..op.key_count].iter().map(|numbers| numbers.iter().map(canonical).collect()).collect();
    let mut sorted = numbers.clone();
    for start in (0..numbers[0].len()).filter(|index| index / stride % size == 0) {
        let mut places: Vec<usize> = (0..size).map(|index| start + index * stride).collect();
        places.sort_by(|&a, &b| {
            let [a, b] = if op.descending { [b, a] } else { [a, b] };
            let orders = keys.iter().map(|keys| keys[a].total_cmp(&keys[b]));
            orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        });
        for (sorted, numbers) in sorted.iter_mut().zip(&numbers) {
            places.iter().enumerate().for_each(|(index, &place)| sorted[start + index * stride] = numbers[place]);
        }
    }
    let literal =
        |(numbers, operand): (&Vec<f64>, &&Literal)| Literal::from_fn(operand.ty().clone(), |index| numbers[index]);
    sorted.iter().zip(operands).map(literal).collect()
}

/// Computes an op from its definition in other ops.
fn defined<R: IntoIterator<Item = Value>>(
    operands: &[&Literal],
    define: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<R, OpError>,
) -> Vec<Literal> {
    let mut builder = GraphBuilder::new("definition");
    let inputs: Vec<Value> =
        operands.iter().map(|literal| builder.input(literal.ty().clone(), PortInfo::default())).collect();
    let outputs: Vec<Value> = define(&mut builder, &inputs).expect("operands of the op").into_iter().collect();
    let info = vec![PortInfo::default(); outputs.len()];
    let inputs: Vec<Literal> = operands.iter().map(|&literal| literal.clone()).collect();
    super::interpret(&builder.finish(outputs, info), &inputs)
}

/// Runs a kernel for TPUs on its operands: its text is interpreted.
fn kernel(call: &CustomCall, operands: &[&Literal]) -> Vec<Literal> {
    let config: serde_json::Value = serde_json::from_str(&call.config).expect("a configuration");
    let body = config["custom_call_config"]["body"].as_str().expect("the kernel");
    let text = String::from_utf8(STANDARD.decode(body).expect("base 64")).expect("text");
    let array = |literal: &&Literal| {
        let ty = literal.ty();
        Array::new(ty.dtype, &ty.dims, &literal.to_f64_vec())
    };
    let operands: Vec<Array> = operands.iter().map(array).collect();
    let results = mosaic::run(&text, &operands, &call.results);
    let literal = |(array, ty): (&Array, &TensorType)| Literal::from_fn(ty.clone(), |index| array.data()[index]);
    results.iter().zip(&*call.results).map(literal).collect()
}

/// Ops that move elements.
fn moved(op: &Op, operands: &[&Literal], ty: &TensorType) -> Option<Literal> {
    let from = |base: isize, strides: &[isize]| Some(pick(operands[0], ty, &positions(base, &ty.dims, strides)));
    let operand_strides = || strides(&operands[0].ty().dims);
    match op {
        Op::BroadcastInDim(op) => {
            let dims = &operands[0].ty().dims;
            let mut own = vec![0; ty.rank()];
            op.mapping.iter().zip(strides(dims)).for_each(|(&dim, stride)| own[dim] = stride);
            from(0, &own)
        }
        Op::Reshape(_) => Literal::from_bytes(ty.clone(), operands[0].bytes()).ok(),
        Op::Transpose(op) => {
            let before = operand_strides();
            from(0, &op.permutation.iter().map(|&dim| before[dim]).collect::<Vec<_>>())
        }
        Op::Slice(op) => {
            let before = operand_strides();
            let base = op.ranges.iter().zip(&before).map(|(range, stride)| range.start as isize * stride).sum();
            let steps = op.ranges.iter().zip(&before).map(|(range, stride)| range.stride as isize * stride);
            from(base, &steps.collect::<Vec<_>>())
        }
        Op::Reverse(op) => {
            let mut steps = operand_strides();
            let base = op.axes.iter().map(|&dim| (ty.dims[dim] as isize - 1) * steps[dim]).sum();
            op.axes.iter().for_each(|&dim| steps[dim] = -steps[dim]);
            from(base, &steps)
        }
        Op::Roll(op) => {
            let dims = &ty.dims;
            let first = (-op.shift).rem_euclid(dims[op.axis].max(1) as i64) as usize;
            let part = |start: usize, size: usize| {
                let (mut starts, mut sizes) = (vec![0; dims.len()], dims.to_vec());
                (starts[op.axis], sizes[op.axis]) = (start, size);
                cut(operands[0], &starts, &sizes)
            };
            Some(concatenate(&[&part(first, dims[op.axis] - first), &part(0, first)], op.axis))
        }
        Op::DynamicSlice(op) => {
            Some(cut(operands[0], &starts(&operands[1..], &operands[0].ty().dims, &op.sizes), &op.sizes))
        }
        Op::DynamicUpdateSlice(_) => {
            let mut bytes = operands[0].bytes().to_vec();
            paste(&mut bytes, &ty.dims, operands[1], &starts(&operands[2..], &ty.dims, &operands[1].ty().dims));
            Literal::from_bytes(ty.clone(), bytes).ok()
        }
        Op::Concatenate(op) => Some(concatenate(operands, op.axis)),
        Op::Pad(op) => Some(pad(&op.padding, operands[0], operands[1], ty)),
        Op::Gather(op) => {
            let dims = &operands[0].ty().dims;
            let windows = Windows::new(&op.dims, operands[1], dims, &op.slice_sizes, &ty.dims);
            Some(pick(operands[0], ty, &windows.positions().map(|(position, _)| position).collect::<Vec<_>>()))
        }
        _ => None,
    }
}

/// Applies ops that compute, if a floating-point number is among the operands and the result; and some of them without
/// one.
fn computed(op: &Op, operands: &[&Literal], ty: &TensorType) -> Option<Literal> {
    let is_float = operands.iter().any(|literal| literal.ty().dtype.is_float());
    let floats = |index: usize| operands[index].to_f64_vec();
    let each = |f: &dyn Fn(f64) -> f64| Some(packed(ty, &floats(0).into_iter().map(f).collect::<Vec<_>>()));
    let pairs = |f: &dyn Fn(f64, f64) -> f64| {
        Some(packed(ty, &floats(0).into_iter().zip(floats(1)).map(|(x, y)| f(x, y)).collect::<Vec<_>>()))
    };
    match op {
        Op::Unary(op) if is_float => each(&|x| unary(op.0, x)),
        Op::Binary(op) if is_float => pairs(&|x, y| binary(op.0, x, y)),
        Op::Compare(op) if is_float => pairs(&|x, y| f64::from(u8::from(compare(op.0, x, y)))),
        Op::Convert(op) if is_float || op.0.is_float() => each(&|x| x),
        Op::Clamp(_) => {
            let at = |bound: &[f64], index: usize| bound[if bound.len() == 1 { 0 } else { index }];
            let (low, high) = (floats(0), floats(2));
            let clamped = floats(1).into_iter().enumerate().map(|(index, x)| {
                binary(BinaryKind::Minimum, binary(BinaryKind::Maximum, x, at(&low, index)), at(&high, index))
            });
            Some(packed(ty, &clamped.collect::<Vec<_>>()))
        }
        Op::Unary(Unary(kind @ (UnaryKind::CountLeadingZeros | UnaryKind::PopulationCount))) => {
            Some(packed(ty, &counted_bits(*kind, operands[0])))
        }
        Op::Reduce(op) if operands[0].bytes().is_empty() => {
            Some(packed(ty, &vec![identity(op.kind, ty.dtype); ty.element_count()]))
        }
        Op::Reduce(op) if is_float => Some(packed(ty, &reduce(op, operands[0], ty))),
        Op::ArgReduce(op) => Some(packed(ty, &arg_reduce(op, operands[0], ty))),
        Op::Cumulative(op) => Some(packed(ty, &cumulative(op, operands[0]))),
        Op::DotGeneral(op) => Some(packed(ty, &dot(op, operands, ty))),
        Op::Scatter(op) => Some(packed(ty, &scatter(op, operands, ty))),
        _ => None,
    }
}

/// Computes with integers of types that `evaluate` does not know.
fn small_integers(op: &Op, operands: &[&Literal], ty: &TensorType) -> Option<Literal> {
    let numbers: Vec<f64> = match op {
        Op::Convert(_) => operands[0].to_f64_vec(),
        Op::Iota(op) => {
            positions_along(&ty.dims, &[op.axis], &[1]).into_iter().map(|position| position as f64).collect()
        }
        _ => return None,
    };
    Some(packed(ty, &numbers.into_iter().map(|x| round(ty.dtype, x)).collect::<Vec<_>>()))
}

/// Counts, for each integer, the bits that are ones, or the zeros above the first one.
fn counted_bits(kind: UnaryKind, operand: &Literal) -> Vec<f64> {
    let dtype = operand.ty().dtype;
    let unused = u64::BITS - dtype.bit_count() as u32;
    let count = |element: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..element.len()].copy_from_slice(element);
        let bits = u64::from_le_bytes(bytes) << unused;
        let count = if kind == UnaryKind::PopulationCount {
            bits.count_ones()
        } else {
            bits.leading_zeros().min(u64::BITS - unused)
        };
        f64::from(count)
    };
    operand.bytes().chunks(dtype.byte_count()).map(count).collect()
}

/// For each element of an operand the element of the result that it is folded into.
fn folded_into(operand: &TensorType, axes: &[usize], result: &TensorType) -> Vec<isize> {
    let kept: Vec<usize> = (0..operand.rank()).filter(|dim| !axes.contains(dim)).collect();
    positions_along(&operand.dims, &kept, &strides(&result.dims))
}

fn reduce(op: &Reduce, operand: &Literal, ty: &TensorType) -> Vec<f64> {
    let start = if op.kind == ReduceKind::Sum { Some(0.0) } else { None };
    let mut folded = vec![start; ty.element_count()];
    let combiner = BinaryKind::from(op.kind);
    for (slot, value) in folded_into(operand.ty(), &op.axes, ty).into_iter().zip(operand.to_f64_vec()) {
        let slot = &mut folded[slot as usize];
        *slot = Some(round(ty.dtype, slot.map_or(value, |before| binary(combiner, before, value))));
    }
    folded.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect()
}

/// The first of equals; the first NaN, if there is one.
fn arg_reduce(op: &ArgReduce, operand: &Literal, ty: &TensorType) -> Vec<f64> {
    let mut best: Vec<Option<(f64, isize)>> = vec![None; ty.element_count()];
    let slots = folded_into(operand.ty(), &[op.axis], ty);
    let places = positions_along(&operand.ty().dims, &[op.axis], &[1]);
    for ((slot, place), value) in slots.into_iter().zip(places).zip(operand.to_f64_vec()) {
        let best = &mut best[slot as usize];
        if best.is_none_or(|(before, _)| is_better(op.kind, value, before)) {
            *best = Some((value, place));
        }
    }
    best.into_iter().map(|best| best.map_or(f64::NAN, |(_, place)| place as f64)).collect()
}

fn cumulative(op: &Cumulative, operand: &Literal) -> Vec<f64> {
    let ty = operand.ty();
    let (length, stride) = (ty.dims[op.axis], strides(&ty.dims)[op.axis]);
    let mut rest = ty.dims.clone();
    rest[op.axis] = rest[op.axis].min(1);
    let mut values = operand.to_f64_vec();
    for line in positions(0, &rest, &strides(&ty.dims)) {
        let mut before: Option<f64> = None;
        for step in 0..length as isize {
            let place = if op.reverse { length as isize - 1 - step } else { step };
            let value = &mut values[(line + place * stride) as usize];
            *value = round(ty.dtype, before.map_or(*value, |before| cumulate(op.kind, before, *value)));
            before = Some(*value);
        }
    }
    values
}

/// The elements of an operand of a dot, with its dimensions in the order batch, free, contracted.
fn rows(operand: &Literal, batch: &[usize], contract: &[usize], contracted_first: bool) -> ([usize; 3], Vec<f64>) {
    let ty = operand.ty();
    let free: Vec<usize> = (0..ty.rank()).filter(|dim| !batch.contains(dim) && !contract.contains(dim)).collect();
    let order = if contracted_first { [batch, contract, &free].concat() } else { [batch, &free, contract].concat() };
    let before = strides(&ty.dims);
    let dims: Vec<usize> = order.iter().map(|&dim| ty.dims[dim]).collect();
    let from = positions(0, &dims, &order.iter().map(|&dim| before[dim]).collect::<Vec<_>>());
    let values = operand.to_f64_vec();
    let count = |axes: &[usize]| axes.iter().map(|&dim| ty.dims[dim]).product();
    ([count(batch), count(&free), count(contract)], from.into_iter().map(|at| values[at as usize]).collect())
}

/// Every product and every sum rounded, terms in order.
fn dot(op: &DotGeneral, operands: &[&Literal], ty: &TensorType) -> Vec<f64> {
    let dims = &*op.dims;
    let ([batch, left, terms], x) = rows(operands[0], &dims.lhs_batch, &dims.lhs_contract, false);
    let ([_, right, _], y) = rows(operands[1], &dims.rhs_batch, &dims.rhs_contract, true);
    let is_single = ty.dtype == DType::F32 && operands.iter().all(|operand| operand.ty().dtype == DType::F32);
    let mut result = vec![0.0; batch * left * right];
    for row in 0..batch * left {
        let sums = &mut result[row * right..(row + 1) * right];
        for term in 0..terms {
            let factor = x[row * terms + term];
            let others = &y[(row / left * terms + term) * right..][..right];
            if is_single {
                for (sum, &other) in sums.iter_mut().zip(others) {
                    *sum = f64::from(*sum as f32 + factor as f32 * other as f32);
                }
            } else {
                for (sum, &other) in sums.iter_mut().zip(others) {
                    *sum = round(ty.dtype, *sum + round(ty.dtype, factor * other));
                }
            }
        }
    }
    result
}

/// Drops updates that do not fit. If several updates replace the same element, that of the last window stays.
fn scatter(op: &Scatter, operands: &[&Literal], ty: &TensorType) -> Vec<f64> {
    let mut result = operands[0].to_f64_vec();
    let (dims, updates) = (&operands[0].ty().dims, operands[2].ty());
    let left_out = |dim: &usize| op.dims.collapsed_dims.contains(dim) || op.dims.operand_batch_dims.contains(dim);
    let mut sizes = vec![1; ty.rank()];
    for (dim, &offset) in (0..ty.rank()).filter(|dim| !left_out(dim)).zip(&op.dims.offset_dims) {
        sizes[dim] = updates.dims[offset];
    }
    let windows = Windows::new(&op.dims, operands[1], dims, &sizes, &updates.dims);
    let updates = operands[2].to_f64_vec();
    let mut places: Vec<_> = windows.positions().zip(updates).zip(windows.numbers()).collect();
    places.sort_by_key(|&(_, window)| window);
    for (((position, fits), update), _) in places {
        if fits {
            let slot = &mut result[position as usize];
            *slot = op.kind.combiner().map_or(update, |kind| round(ty.dtype, binary(kind, *slot, update)));
        }
    }
    result
}

fn threefry(operands: &[&Literal], types: &[&TensorType]) -> Vec<Literal> {
    let words: Vec<Vec<u32>> = operands.iter().map(|operand| operand.to_vec().expect("u32")).collect();
    let count = types[0].element_count();
    let both = (0..count).map(|at| Threefry::evaluate([words[0][at], words[1][at]], [words[2][at], words[3][at]]));
    let (first, second): (Vec<u32>, Vec<u32>) = both.map(|[first, second]| (first, second)).unzip();
    [first, second].iter().map(|words| Literal::from_slice(&types[0].dims, words).expect("a word each")).collect()
}
