//! A reference interpreter: graphs run on host values, op by op, every result rounded to its element type.
//!
//! Nothing is fused, so two graphs that say the same give the same bits. Ops that move elements, and integers, go
//! through [`evaluate`], which `tests/fold.rs` compares with a real back end; floating-point arithmetic is done here.

use half::{bf16, f16};
use meshloom::ir::{DType, Graph, Literal, TensorType};
use meshloom::ops::{BinaryKind, Direction, DotGeneral, Gather, Op, ReduceKind, Scan, Scatter, UnaryKind};
use meshloom::passes::evaluate;

/// The outputs of a graph.
pub fn interpret(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let mut values: Vec<Option<Literal>> = vec![None; graph.value_count()];
    graph.inputs().iter().zip(inputs).for_each(|(value, literal)| values[value.index()] = Some(literal.clone()));
    for node in graph.nodes() {
        let operands: Vec<&Literal> =
            node.operands().iter().map(|value| values[value.index()].as_ref().expect("an earlier value")).collect();
        let types: Vec<&TensorType> = node.results().map(|value| graph.ty(value)).collect();
        let results = apply(node.op(), &operands, &types);
        node.results().zip(results).for_each(|(value, literal)| values[value.index()] = Some(literal));
    }
    graph.outputs().iter().map(|value| values[value.index()].clone().expect("an earlier value")).collect()
}

fn apply(op: &Op, operands: &[&Literal], types: &[&TensorType]) -> Vec<Literal> {
    let clone = || operands.iter().map(|&literal| literal.clone()).collect::<Vec<_>>();
    let is_float = operands.iter().any(|literal| literal.ty().dtype.is_float());
    let floats = |index: usize| operands[index].to_f64_vec();
    let float = |values: &mut dyn Iterator<Item = f64>| vec![literal(types[0], values)];
    match op {
        Op::Named(_) | Op::WithAxes(_) | Op::Reshard(_) | Op::StopGradient(_) | Op::Barrier(_) => clone(),
        Op::Call(op) => interpret(&op.function, &clone()),
        Op::Checkpoint(op) => interpret(&op.body, &clone()),
        Op::CustomVjp(op) => interpret(&op.primal, &clone()),
        Op::Scan(op) => scan(op, clone(), types),
        Op::Unary(op) if is_float => float(&mut floats(0).into_iter().map(|x| unary(op.0, x))),
        Op::Binary(op) if is_float => float(&mut floats(0).into_iter().zip(floats(1)).map(|(x, y)| binary(op.0, x, y))),
        Op::Compare(op) if is_float => {
            float(&mut floats(0).into_iter().zip(floats(1)).map(|(x, y)| f64::from(u8::from(compare(op.0, x, y)))))
        }
        Op::Convert(op) if is_float || op.0.is_float() => float(&mut floats(0).into_iter()),
        Op::Reduce(op) if is_float => {
            let rank = operands[0].ty().rank();
            let kept: Vec<usize> = (0..rank).filter(|dim| !op.axes.contains(dim)).collect();
            let start = if op.kind == ReduceKind::Sum { Some(0.0) } else { None };
            let mut folded = vec![start; types[0].element_count()];
            let values = floats(0);
            for (index, value) in indices(&operands[0].ty().dims).iter().zip(values) {
                let slot =
                    &mut folded[position(&types[0].dims, &kept.iter().map(|&dim| index[dim]).collect::<Vec<_>>())];
                let next = slot.map_or(value, |before| binary(op.kind.combiner(), before, value));
                *slot = Some(round(types[0].dtype, next));
            }
            float(&mut folded.into_iter().map(|value| value.unwrap_or(f64::NAN)))
        }
        Op::DotGeneral(op) => float(&mut dot(op, operands, types[0]).into_iter()),
        Op::Gather(op) => vec![gather(op, operands, types[0])],
        Op::Scatter(op) => float(&mut scatter(op, operands, types[0]).into_iter()),
        op => vec![evaluate(op, operands).unwrap_or_else(|| panic!("{} is not interpreted", op.name()))],
    }
}

fn scan(scan: &Scan, operands: Vec<Literal>, types: &[&TensorType]) -> Vec<Literal> {
    let first_slice = scan.invariant_count + scan.carry_count;
    let mut carries = operands[scan.invariant_count..first_slice].to_vec();
    let mut rows: Vec<Vec<Vec<u8>>> = vec![vec![Vec::new(); scan.length]; types.len() - scan.carry_count];
    for step in 0..scan.length {
        let row = if scan.reverse { scan.length - 1 - step } else { step };
        let slice = |stacked: &Literal| {
            let ty = TensorType::new(stacked.ty().dtype, &stacked.ty().dims[1..]);
            let start = row * ty.byte_count();
            Literal::from_bytes(ty.clone(), &stacked.bytes()[start..start + ty.byte_count()]).expect("a row")
        };
        let mut inputs = operands[..scan.invariant_count].to_vec();
        inputs.extend(carries.iter().cloned());
        inputs.extend(operands[first_slice..].iter().map(slice));
        let mut outputs = interpret(&scan.body, &inputs);
        let stacked = outputs.split_off(scan.carry_count);
        carries = outputs;
        for (rows, output) in rows.iter_mut().zip(stacked) {
            rows[row] = output.bytes().to_vec();
        }
    }
    let stack = |(rows, ty): (Vec<Vec<u8>>, &&TensorType)| {
        Literal::from_bytes((*ty).clone(), rows.concat()).expect("as many bytes as the type has")
    };
    carries.into_iter().chain(rows.into_iter().zip(&types[scan.carry_count..]).map(stack)).collect()
}

/// A literal of numbers, each rounded to the element type.
pub fn literal(ty: &TensorType, values: &mut dyn Iterator<Item = f64>) -> Literal {
    let mut bytes = Vec::with_capacity(ty.byte_count());
    for x in values {
        match ty.dtype {
            DType::Pred => bytes.push(u8::from(x != 0.0)),
            DType::S8 => bytes.extend((x as i8).to_le_bytes()),
            DType::U8 => bytes.extend((x as u8).to_le_bytes()),
            DType::S32 => bytes.extend((x as i32).to_le_bytes()),
            DType::U32 => bytes.extend((x as u32).to_le_bytes()),
            DType::S64 => bytes.extend((x as i64).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(x as f32).to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(x as f32).to_le_bytes()),
            DType::F32 => bytes.extend((x as f32).to_le_bytes()),
            DType::F64 => bytes.extend(x.to_le_bytes()),
            other => panic!("{other} is not interpreted"),
        }
    }
    Literal::from_bytes(ty.clone(), bytes).unwrap_or_else(|| panic!("not as many numbers as {ty} has"))
}

fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::F32 => f64::from(x as f32),
        _ => x,
    }
}

fn unary(kind: UnaryKind, x: f64) -> f64 {
    match kind {
        UnaryKind::Abs => x.abs(),
        UnaryKind::Ceil => x.ceil(),
        UnaryKind::Cosine => x.cos(),
        UnaryKind::Exponential => x.exp(),
        UnaryKind::ExponentialMinusOne => x.exp_m1(),
        UnaryKind::Floor => x.floor(),
        UnaryKind::IsFinite => f64::from(u8::from(x.is_finite())),
        UnaryKind::Log => x.ln(),
        UnaryKind::LogPlusOne => x.ln_1p(),
        UnaryKind::Logistic => 1.0 / (1.0 + (-x).exp()),
        UnaryKind::Negate => -x,
        UnaryKind::RoundNearestEven => x.round_ties_even(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Sign if x == 0.0 || x.is_nan() => x,
        UnaryKind::Sign => x.signum(),
        UnaryKind::Sine => x.sin(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Tanh => x.tanh(),
        other => panic!("{} is not interpreted", other.name()),
    }
}

fn binary(kind: BinaryKind, x: f64, y: f64) -> f64 {
    match kind {
        BinaryKind::Add => x + y,
        BinaryKind::Divide => x / y,
        BinaryKind::Multiply => x * y,
        BinaryKind::Subtract => x - y,
        BinaryKind::Power => x.powf(y),
        BinaryKind::Remainder => x % y,
        BinaryKind::Maximum | BinaryKind::Minimum if x.is_nan() || y.is_nan() => f64::NAN,
        BinaryKind::Maximum => {
            if y > x {
                y
            } else {
                x
            }
        }
        BinaryKind::Minimum => {
            if y < x {
                y
            } else {
                x
            }
        }
        other => panic!("{} is not interpreted", other.name()),
    }
}

fn compare(direction: Direction, x: f64, y: f64) -> bool {
    match direction {
        Direction::Eq => x == y,
        Direction::Ne => x != y,
        Direction::Ge => x >= y,
        Direction::Gt => x > y,
        Direction::Le => x <= y,
        Direction::Lt => x < y,
    }
}

/// All indices of a shape, in row-major order.
pub fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &size in dims {
        all = all.iter().flat_map(|prefix| (0..size).map(|last| [&prefix[..], &[last]].concat())).collect();
    }
    all
}

fn position(dims: &[usize], index: &[usize]) -> usize {
    index.iter().zip(dims).fold(0, |position, (&i, &size)| position * size + i)
}

fn dot(op: &DotGeneral, operands: &[&Literal], ty: &TensorType) -> Vec<f64> {
    let (lhs, rhs, dims) = (operands[0].ty(), operands[1].ty(), &*op.dims);
    let (x, y) = (operands[0].to_f64_vec(), operands[1].to_f64_vec());
    let free = |rank: usize, batch: &[usize], contract: &[usize]| -> Vec<usize> {
        (0..rank).filter(|dim| !batch.contains(dim) && !contract.contains(dim)).collect()
    };
    let left = free(lhs.rank(), &dims.lhs_batch, &dims.lhs_contract);
    let right = free(rhs.rank(), &dims.rhs_batch, &dims.rhs_contract);
    let contracted: Vec<usize> = dims.lhs_contract.iter().map(|&dim| lhs.dims[dim]).collect();
    let element = |index: Vec<usize>| {
        let (batch, rest) = index.split_at(dims.lhs_batch.len());
        let (of_left, of_right) = rest.split_at(left.len());
        let place = |rank: usize, pairs: [(&[usize], &[usize]); 3]| {
            let mut full = vec![0; rank];
            for (axes, index) in pairs {
                axes.iter().zip(index).for_each(|(&axis, &i)| full[axis] = i);
            }
            full
        };
        indices(&contracted).iter().fold(0.0, |sum, k| {
            let at = place(lhs.rank(), [(&dims.lhs_batch, batch), (&left, of_left), (&dims.lhs_contract, k)]);
            let bt = place(rhs.rank(), [(&dims.rhs_batch, batch), (&right, of_right), (&dims.rhs_contract, k)]);
            round(ty.dtype, sum + round(ty.dtype, x[position(&lhs.dims, &at)] * y[position(&rhs.dims, &bt)]))
        })
    };
    indices(&ty.dims).into_iter().map(element).collect()
}

/// For each element of a gather's result or a scatter's updates: where it is in the operand, before any bounds.
fn windows(
    dims: &meshloom::ops::GatherDims,
    indices_literal: &Literal,
    rank: usize,
    updates: &[usize],
) -> Vec<(Vec<i64>, Vec<i64>)> {
    assert!(dims.operand_batch_dims.is_empty(), "batch dimensions are not interpreted");
    let starts = indices_literal.to_f64_vec();
    let ty = indices_literal.ty();
    let window_dims: Vec<usize> = (0..rank).filter(|dim| !dims.collapsed_dims.contains(dim)).collect();
    let place = |index: Vec<usize>| {
        let batch: Vec<usize> =
            (0..index.len()).filter(|dim| !dims.offset_dims.contains(dim)).map(|dim| index[dim]).collect();
        let (mut start, mut offset) = (vec![0; rank], vec![0; rank]);
        for (component, &axis) in dims.start_index_map.iter().enumerate() {
            let mut at = batch.clone();
            if dims.index_vector_dim < ty.rank() {
                at.insert(dims.index_vector_dim, component);
            }
            start[axis] = starts[position(&ty.dims, &at)] as i64;
        }
        for (&axis, &dim) in window_dims.iter().zip(&dims.offset_dims) {
            offset[axis] = index[dim] as i64;
        }
        (start, offset)
    };
    indices(updates).into_iter().map(place).collect()
}

fn gather(op: &Gather, operands: &[&Literal], ty: &TensorType) -> Literal {
    let dims = &operands[0].ty().dims;
    let width = ty.dtype.byte_count();
    let mut bytes = Vec::new();
    for (start, offset) in windows(&op.dims, operands[1], dims.len(), &ty.dims) {
        let at: Vec<usize> = (0..dims.len())
            .map(|dim| (start[dim].clamp(0, (dims[dim] - op.slice_sizes[dim]) as i64) + offset[dim]) as usize)
            .collect();
        bytes.extend_from_slice(&operands[0].bytes()[position(dims, &at) * width..][..width]);
    }
    Literal::from_bytes(ty.clone(), bytes).expect("as many bytes as the type has")
}

/// Adds; indices are taken to be in bounds, as a gather's gradient has them.
fn scatter(op: &Scatter, operands: &[&Literal], ty: &TensorType) -> Vec<f64> {
    let mut result = operands[0].to_f64_vec();
    let updates = operands[2].to_f64_vec();
    let places = windows(&op.dims, operands[1], ty.rank(), &operands[2].ty().dims);
    for ((start, offset), update) in places.into_iter().zip(updates) {
        let at: Vec<usize> = start.iter().zip(&offset).map(|(start, offset)| (start + offset) as usize).collect();
        let slot = &mut result[position(&ty.dims, &at)];
        *slot = round(ty.dtype, *slot + update);
    }
    result
}

/// Whether two literals are equal in every bit; one NaN is as good as another.
pub fn same_bits(a: &Literal, b: &Literal) -> bool {
    let width = a.ty().dtype.byte_count();
    let equal = |(index, (x, y)): (usize, (f64, f64))| {
        let bits = |literal: &Literal| literal.bytes()[index * width..][..width].to_vec();
        (x.is_nan() && y.is_nan()) || bits(a) == bits(b)
    };
    a.ty() == b.ty() && a.to_f64_vec().into_iter().zip(b.to_f64_vec()).enumerate().all(equal)
}
