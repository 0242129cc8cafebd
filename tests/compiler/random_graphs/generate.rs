//! Random graphs from random numbers.
//!
//! A [`Recipe`] is a list of steps; each names a row of [`ROWS`] and holds a few numbers, from which the row chooses
//! operands among the values at hand, and attributes. A row that finds no operands does nothing. So every recipe makes
//! a valid graph, and a recipe with steps left out or smaller numbers makes a simpler one: that is how failures shrink.
//!
//! To add an op, add a row.

use std::collections::HashSet;
use std::sync::Arc;

use meshloom::ir::DType::{self, BF16, F32, F64, Pred, S32, U8};
use meshloom::ir::{Graph, GraphBuilder, Literal, Name, PortInfo, TensorType, Value};
use meshloom::ops::*;
use proptest::prelude::*;

use support::interpret::literal;

/// One step of a recipe: the row of the table and its choices.
#[derive(Clone, Debug)]
pub struct Step {
    /// Chooses the row.
    pub row: u16,
    /// Choose operands and attributes.
    pub numbers: [u8; 5],
    /// The steps of a region.
    pub body: Vec<Step>,
}

pub type Recipe = Vec<Step>;

/// Recipes of up to `length` steps, with regions nested up to `depth` deep.
pub fn recipe(length: usize, depth: usize) -> BoxedStrategy<Recipe> {
    let body = if depth == 0 { Just(Vec::new()).boxed() } else { recipe(6, depth - 1) };
    let step = (any::<u16>(), any::<[u8; 5]>(), body).prop_map(|(row, numbers, body)| Step { row, numbers, body });
    prop::collection::vec(step, 1..=length).boxed()
}

/// The purpose of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any op, any type, any number.
    Any,
    /// Smooth functions of `f64`, with values and slopes around one, whose gradient can be measured.
    Smooth,
}

/// The types of every graph's inputs.
pub fn input_types() -> Vec<TensorType> {
    let types: [(DType, &[usize]); 10] = [
        (F64, &[8]),
        (F64, &[3]),
        (F64, &[2, 3]),
        (F64, &[3, 3]),
        (F64, &[]),
        (S32, &[3]),
        (Pred, &[2, 3]),
        (F32, &[2, 3]),
        (BF16, &[3]),
        (U8, &[2]),
    ];
    types.map(|(dtype, dims)| TensorType::new(dtype, dims)).into()
}

/// Numbers for the inputs; those of kind `Any` hold what arithmetic treats in a way of its own.
pub fn inputs(kind: Kind, seed: u64) -> Vec<Literal> {
    const SPECIAL: [f64; 8] = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -128.0];
    let mut state = seed;
    let mut next = move || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut number = move |dtype: DType| {
        let (bits, unit) = (next(), next() as f64 / u64::MAX as f64);
        match (kind, dtype) {
            (_, Pred) => (bits % 2) as f64,
            (Kind::Any, _) if bits % 3 == 0 => SPECIAL[(bits >> 8) as usize % SPECIAL.len()],
            _ if dtype.is_float() => 2.0 * unit - 1.0,
            _ => (8.0 * unit).floor(),
        }
    };
    input_types().iter().map(|ty| literal(ty, &mut (0..ty.element_count()).map(|_| number(ty.dtype)))).collect()
}

/// The graph of a recipe. A smooth one returns one `f64` number.
pub fn graph(kind: Kind, recipe: &[Step]) -> Graph {
    graph_and_rows(kind, recipe).0
}

/// The graph, and the rows that made something of it, regions not counted.
pub fn graph_and_rows(kind: Kind, recipe: &[Step]) -> (Graph, Vec<&'static str>) {
    let mut maker = Maker { builder: GraphBuilder::new("random"), values: Vec::new(), kind };
    for ty in input_types() {
        maker.input(ty);
    }
    let rows = maker.run(recipe);
    let outputs: Vec<Value> = match kind {
        Kind::Any => maker.unread(),
        Kind::Smooth => {
            let floats: Vec<Value> = maker.unread().into_iter().filter(|&value| maker.ty(value).dtype == F64).collect();
            let mut total = maker.push(Splat::new(TensorType::scalar(F64), 0.25), &[]).expect("a splat");
            for value in floats {
                let axes = (0..maker.ty(value).rank()).collect();
                let sum = maker.push(Reduce { kind: ReduceKind::Sum, axes }, &[value]).expect("a sum");
                total = maker.push(Binary(BinaryKind::Add), &[total, sum]).expect("numbers");
            }
            vec![total]
        }
    };
    (maker.finish(outputs), rows)
}

/// A graph on its way.
pub struct Maker {
    builder: GraphBuilder,
    /// The values that operands are chosen from, oldest first.
    values: Vec<Value>,
    kind: Kind,
}

/// One row of the table: a name, the kinds of graphs it is for, and what it makes of a step.
pub struct Row {
    pub name: &'static str,
    pub smooth: bool,
    pub make: fn(&mut Maker, &Step) -> Option<Vec<Value>>,
}

/// The rows for graphs of a kind.
pub fn rows(kind: Kind) -> Vec<&'static Row> {
    ROWS.iter().filter(|row| row.smooth || kind == Kind::Any).collect()
}

const fn row(name: &'static str, smooth: bool, make: fn(&mut Maker, &Step) -> Option<Vec<Value>>) -> Row {
    Row { name, smooth, make }
}

/// Tensors stay small: the point is how ops meet, not how large they are.
const LARGEST: usize = 64;

/// Whether `support::interpret` knows the elementwise function: what neither it nor the standard library has stays out.
fn is_interpreted(kind: UnaryKind) -> bool {
    use UnaryKind::{CountLeadingZeros, Erf, ErfInv, Erfc, PopulationCount};
    !matches!(kind, CountLeadingZeros | Erf | ErfInv | Erfc | PopulationCount)
}

pub const ROWS: &[Row] = &[
    row("splat", true, |m, step| {
        const ANY: [f64; 10] = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.75, f64::INFINITY, f64::NAN, 255.0];
        let like = m.choose(step.numbers[0], |_| true)?;
        let number =
            if m.kind == Kind::Any { ANY[step.numbers[1] as usize % 10] } else { ANY[step.numbers[1] as usize % 7] };
        let ty = m.ty(like).clone();
        m.one(Splat::new(ty, number), &[])
    }),
    row("iota", true, |m, step| {
        let like = m.choose(step.numbers[0], |ty| ty.rank() > 0 && ty.dtype != Pred)?;
        let ty = m.ty(like).clone();
        let axis = step.numbers[1] as usize % ty.rank();
        m.one(Iota { ty, axis }, &[])
    }),
    row("constant", true, |m, step| {
        let like = m.choose(step.numbers[0], |_| true)?;
        let ty = m.ty(like).clone();
        let number = |index: usize| f64::from(step.numbers[1 + index % 4]) / 256.0;
        let scale = if ty.dtype.is_float() { 1.0 } else { 4.0 };
        let values = literal(&ty, &mut (0..ty.element_count()).map(|index| scale * number(index)));
        m.one(Constant(Box::new(values)), &[])
    }),
    row("smooth unary", true, |m, step| {
        const KINDS: [UnaryKind; 5] =
            [UnaryKind::Sine, UnaryKind::Cosine, UnaryKind::Tanh, UnaryKind::Logistic, UnaryKind::Negate];
        let x = m.choose_float(step.numbers[0])?;
        m.one(Unary(KINDS[step.numbers[1] as usize % 5]), &[x])
    }),
    row("unary", false, |m, step| {
        let kind = UnaryKind::ALL[step.numbers[1] as usize % UnaryKind::ALL.len()];
        let x = m.choose(step.numbers[0], |ty| is_interpreted(kind) && kind.class().contains(ty.dtype))?;
        m.one(Unary(kind), &[x])
    }),
    row("one after the other", false, |m, step| {
        use UnaryKind::{Abs, Ceil, Floor, Negate, Not, RoundNearestEven, Sign};
        const KINDS: [UnaryKind; 7] = [Negate, Abs, Sign, Not, Floor, Ceil, RoundNearestEven];
        let kinds = [step.numbers[1], step.numbers[2]].map(|number| KINDS[number as usize % 7]);
        let accept = |ty: &TensorType| kinds.iter().all(|kind| kind.class().contains(ty.dtype));
        let x = m.choose(step.numbers[0], accept)?;
        let once = m.push(Unary(kinds[0]), &[x])?;
        m.one(Unary(kinds[1]), &[once])
    }),
    row("negated operands", false, |m, step| {
        const KINDS: [BinaryKind; 4] =
            [BinaryKind::Add, BinaryKind::Subtract, BinaryKind::Multiply, BinaryKind::Divide];
        let (mut x, mut y) = m.choose_pair(step, |ty| ty.dtype != Pred)?;
        if step.numbers[3] % 3 < 2 {
            x = m.push(Unary(UnaryKind::Negate), &[x])?;
        }
        if step.numbers[3] % 3 > 0 {
            y = m.push(Unary(UnaryKind::Negate), &[y])?;
        }
        m.one(Binary(KINDS[step.numbers[2] as usize % 4]), &[x, y])
    }),
    row("choice in a choice", true, |m, step| {
        let p = m.choose(step.numbers[2], |ty| ty.dtype == Pred)?;
        let not = m.push(Unary(UnaryKind::Not), &[p])?;
        let dims = m.ty(p).dims.clone();
        let (x, y) = m.choose_pair(step, |ty| ty.dims == dims)?;
        let inner = m.push(Select, &[if step.numbers[3] % 2 == 0 { p } else { not }, x, y])?;
        let outer = if step.numbers[3] / 2 % 2 == 0 { p } else { not };
        m.one(Select, &if step.numbers[4] % 2 == 0 { [outer, inner, y] } else { [outer, x, inner] })
    }),
    row("smooth product", true, |m, step| {
        let (x, y) = m.choose_pair(step, |ty| ty.dtype.is_float())?;
        let product = m.push(Binary(BinaryKind::Multiply), &[x, y])?;
        m.one(Unary(UnaryKind::Tanh), &[product])
    }),
    row("smooth sum", true, |m, step| {
        const KINDS: [BinaryKind; 2] = [BinaryKind::Add, BinaryKind::Subtract];
        let (x, y) = m.choose_pair(step, |ty| ty.dtype.is_float())?;
        let sum = m.push(Binary(KINDS[step.numbers[2] as usize % 2]), &[x, y])?;
        m.one(Unary(UnaryKind::Sine), &[sum])
    }),
    row("binary", false, |m, step| {
        let kind = BinaryKind::ALL[step.numbers[2] as usize % BinaryKind::ALL.len()];
        let (x, y) = m.choose_pair(step, |ty| kind.class().contains(ty.dtype))?;
        m.one(Binary(kind), &[x, y])
    }),
    row("binary with a constant", true, |m, step| {
        const SMOOTH: [BinaryKind; 4] =
            [BinaryKind::Add, BinaryKind::Subtract, BinaryKind::Multiply, BinaryKind::Divide];
        const NUMBERS: [f64; 7] = [1.0, -1.0, 2.0, 0.5, 0.0, -0.0, f64::INFINITY];
        let smooth = m.kind == Kind::Smooth;
        let kinds = if smooth { &SMOOTH[..] } else { BinaryKind::ALL };
        let kind = kinds[step.numbers[2] as usize % kinds.len()];
        let x = m.choose(step.numbers[0], |ty| kind.class().contains(ty.dtype) && (!smooth || ty.dtype == F64))?;
        let ty = m.ty(x).clone();
        let count = if kind == BinaryKind::Divide && smooth {
            3
        } else if smooth {
            6
        } else {
            7
        };
        let number = m.push(Splat::new(ty, NUMBERS[step.numbers[3] as usize % count]), &[])?;
        // A constant divided by a value has no bound.
        let exchanged = step.numbers[1] % 2 == 1 && !(smooth && kind == BinaryKind::Divide);
        m.one(Binary(kind), &if exchanged { [number, x] } else { [x, number] })
    }),
    row("compare", false, |m, step| {
        let (x, y) = m.choose_pair(step, |_| true)?;
        m.one(Compare(Direction::ALL[step.numbers[2] as usize % 6]), &[x, y])
    }),
    row("select", true, |m, step| {
        let p = m.choose(step.numbers[2], |ty| ty.dtype == Pred)?;
        let dims = m.ty(p).dims.clone();
        let (x, y) = m.choose_pair(step, |ty| ty.dims == dims)?;
        m.one(Select, &[p, x, y])
    }),
    row("convert", false, |m, step| {
        const TO: [DType; 6] = [F64, F32, BF16, S32, U8, Pred];
        let x = m.choose(step.numbers[0], |_| true)?;
        m.one(Convert(TO[step.numbers[1] as usize % 6]), &[x])
    }),
    row("bitcast", false, |m, step| {
        let to = if step.numbers[1] % 2 == 0 { F32 } else { S32 };
        let x = m.choose(step.numbers[0], |ty| matches!(ty.dtype, F32 | S32))?;
        m.one(BitcastConvert(to), &[x])
    }),
    row("broadcast", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() < 4)?;
        let mut dims = m.ty(x).dims.clone();
        let axis = step.numbers[1] as usize % (dims.len() + 1);
        dims.insert(axis, 1 + step.numbers[2] as usize % 3);
        let mapping = (0..dims.len()).filter(|&dim| dim != axis).collect();
        m.one(BroadcastInDim { dims, mapping }, &[x])
    }),
    row("reshape", true, |m, step| {
        let x = m.choose(step.numbers[0], |_| true)?;
        let ty = m.ty(x).clone();
        // Flat; with a new dimension; or as another value of as many elements.
        let dims = match step.numbers[1] % 3 {
            0 => [ty.element_count()].into_iter().collect(),
            1 => [1].into_iter().chain(ty.dims.iter().copied()).collect(),
            _ => {
                let like = m.choose(step.numbers[2], |other| other.element_count() == ty.element_count())?;
                m.ty(like).dims.clone()
            }
        };
        m.one(Reshape { dims }, &[x])
    }),
    row("transpose", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 1)?;
        let mut permutation: AxisList = (0..m.ty(x).rank()).collect();
        permutation.rotate_left(step.numbers[1] as usize % m.ty(x).rank());
        if step.numbers[2] % 2 == 1 {
            permutation.swap(0, 1);
        }
        m.one(Transpose { permutation }, &[x])
    }),
    row("slice", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0)?;
        let dims = m.ty(x).dims.clone();
        let range = |(dim, &size): (usize, &usize)| {
            let number = step.numbers[1 + dim % 4] as usize;
            let start = number % (size + 1);
            let limit = start + (number / 8) % (size - start + 1);
            SliceDim { start, limit: limit.max((start + 1).min(size)), stride: 1 + number / 64 % 2 }
        };
        m.one(Slice { ranges: dims.iter().enumerate().map(range).collect() }, &[x])
    }),
    row("slice of a slice", true, |m, step| {
        let mut x = m.choose(step.numbers[0], |ty| ty.rank() > 0 && ty.dims[0] > 3)?;
        for number in &step.numbers[1..3] {
            let dims = m.ty(x).dims.clone();
            let mut ranges: Vec<SliceDim> = dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
            let (start, stride) = ((number % 3) as usize, 1 + (number / 4 % 3) as usize);
            ranges[0] = SliceDim { start: start.min(dims[0]), stride, ..ranges[0] };
            x = m.push(Slice { ranges: ranges.into() }, &[x])?;
        }
        Some(vec![x])
    }),
    row("pad", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0)?;
        let ty = m.ty(x).clone();
        let number = if step.numbers[4] % 2 == 0 { 0.0 } else { 1.0 };
        let value = m.push(Splat::new(TensorType::scalar(ty.dtype), number), &[])?;
        let padding = |dim: usize| {
            let number = i64::from(step.numbers[1 + dim % 3]);
            PadDim { low: number % 4 - 1, high: number / 4 % 4 - 1, interior: (number / 16 % 2) as usize }
        };
        m.one(Pad { padding: (0..ty.rank()).map(padding).collect() }, &[x, value])
    }),
    row("concatenate", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0)?;
        let ty = m.ty(x).clone();
        let axis = step.numbers[2] as usize % ty.rank();
        let fits = |other: &TensorType| {
            let same = |dim| dim == axis || other.dims[dim] == ty.dims[dim];
            other.dtype == ty.dtype && other.rank() == ty.rank() && (0..ty.rank()).all(same)
        };
        let y = m.choose(step.numbers[1], fits)?;
        m.one(Concatenate { axis }, &[x, y, x][..1 + step.numbers[3] as usize % 3])
    }),
    row("halves joined", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0 && ty.dims[0] > 1)?;
        let dims = m.ty(x).dims.clone();
        let half = |m: &mut Maker, start: usize, limit: usize| {
            let mut ranges: Vec<SliceDim> = dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
            ranges[0] = SliceDim { start, limit, stride: 1 };
            m.push(Slice { ranges: ranges.into() }, &[x])
        };
        let (first, second) = (half(m, 0, 1)?, half(m, 1, dims[0])?);
        let swapped = step.numbers[1] % 2 == 1;
        m.one(Concatenate { axis: 0 }, &if swapped { [second, first] } else { [first, second] })
    }),
    row("reverse", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0)?;
        let axes = (0..m.ty(x).rank()).filter(|dim| step.numbers[1] >> dim & 1 == 1).collect();
        m.one(Reverse { axes }, &[x])
    }),
    row("dynamic slice", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0)?;
        let ty = m.ty(x).clone();
        let starts = m.starts(ty.rank(), step)?;
        let sizes = ty.dims.iter().map(|&size| size - (step.numbers[1] as usize % 2).min(size)).collect();
        m.one(DynamicSlice { sizes }, &[&[x], &starts[..]].concat())
    }),
    row("dynamic update slice", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0)?;
        let ty = m.ty(x).clone();
        let fits = |other: &TensorType| {
            let smaller = other.dims.iter().zip(&ty.dims).all(|(own, size)| own <= size);
            other.dtype == ty.dtype && other.rank() == ty.rank() && smaller
        };
        let update = m.choose(step.numbers[1], fits)?;
        let starts = m.starts(ty.rank(), step)?;
        m.one(DynamicUpdateSlice, &[&[x, update], &starts[..]].concat())
    }),
    row("sum", true, |m, step| {
        let x = m.choose_float(step.numbers[0])?;
        let axes = (0..m.ty(x).rank()).filter(|dim| step.numbers[1] >> dim & 1 == 0).collect();
        let sum = m.push(Reduce { kind: ReduceKind::Sum, axes }, &[x])?;
        m.one(Unary(UnaryKind::Sine), &[sum])
    }),
    row("reduce", false, |m, step| {
        let kind = ReduceKind::ALL[step.numbers[2] as usize % ReduceKind::ALL.len()];
        let x =
            m.choose(step.numbers[0], |ty| BinaryKind::from(kind).class().contains(ty.dtype) && !ty.dims.contains(&0))?;
        let axes = (0..m.ty(x).rank()).filter(|dim| step.numbers[1] >> dim & 1 == 0).collect();
        m.one(Reduce { kind, axes }, &[x])
    }),
    row("dot", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.dtype.is_float() && ty.rank() > 0)?;
        let ty = m.ty(x).clone();
        let lhs_contract = step.numbers[2] as usize % ty.rank();
        let fits = |other: &TensorType| other.dtype == ty.dtype && other.dims.contains(&ty.dims[lhs_contract]);
        let y = m.choose(step.numbers[1], fits)?;
        let rhs_contract = m.ty(y).dims.iter().position(|&size| size == ty.dims[lhs_contract])?;
        let dims = DotDims {
            lhs_contract: [lhs_contract].into_iter().collect(),
            rhs_contract: [rhs_contract].into_iter().collect(),
            ..DotDims::default()
        };
        let op = DotGeneral { dims: Box::new(dims), dtype: ty.dtype, precision: Precision::Default };
        let product = m.push(op, &[x, y])?;
        m.one(Unary(UnaryKind::Tanh), &[product])
    }),
    row("gather", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0 && ty.dims[0] > 0)?;
        let indices = m.choose(step.numbers[1], |ty| ty.dtype == S32 && ty.rank() == 1)?;
        let ty = m.ty(x).clone();
        let mut slice_sizes = ty.dims.clone();
        slice_sizes[0] = 1;
        let dims = GatherDims {
            offset_dims: (1..ty.rank()).collect(),
            collapsed_dims: [0].into_iter().collect(),
            start_index_map: [0].into_iter().collect(),
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        m.one(Gather { dims: Box::new(dims), slice_sizes, promise: Default::default() }, &[x, indices])
    }),
    row("dot of batches", true, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.dtype.is_float() && ty.rank() > 1)?;
        let ty = m.ty(x).clone();
        let y = m.choose(step.numbers[1], |other| other.dtype == ty.dtype && other.dims == ty.dims)?;
        // Two dimensions are paired: one in step, the other in step or summed over.
        let batch = step.numbers[2] as usize % ty.rank();
        let other = (batch + 1 + step.numbers[3] as usize % (ty.rank() - 1)) % ty.rank();
        let (batch, contract): (AxisList, AxisList) = if step.numbers[4] % 4 == 0 {
            ([batch, other].into_iter().collect(), AxisList::new())
        } else {
            ([batch].into_iter().collect(), [other].into_iter().collect())
        };
        let dims = DotDims {
            lhs_batch: batch.clone(),
            rhs_batch: batch,
            lhs_contract: contract.clone(),
            rhs_contract: contract,
        };
        let op = DotGeneral { dims: Box::new(dims), dtype: ty.dtype, precision: Precision::Default };
        let product = m.push(op, &[x, y])?;
        m.one(Unary(UnaryKind::Tanh), &[product])
    }),
    row("cumulative", true, |m, step| {
        let kind = if m.kind == Kind::Smooth {
            CumulativeKind::Sum
        } else {
            CumulativeKind::ALL[step.numbers[1] as usize % CumulativeKind::ALL.len()]
        };
        let x = m.choose_float(step.numbers[0]).filter(|&x| m.ty(x).rank() > 0)?;
        let axis = step.numbers[2] as usize % m.ty(x).rank();
        let folded = m.push(Cumulative { kind, axis, reverse: step.numbers[3] % 2 == 1 }, &[x])?;
        m.one(Unary(UnaryKind::Sine), &[folded])
    }),
    row("clamp", false, |m, step| {
        let (low, x) = m.choose_pair(step, |ty| ty.dtype != Pred)?;
        let ty = m.ty(x).clone();
        let high = m.choose(step.numbers[2], |other| *other == ty)?;
        m.one(Clamp, &[low, x, high])
    }),
    row("arg reduce", false, |m, step| {
        let x = m.choose(step.numbers[0], |ty| ty.rank() > 0 && !ty.dims.contains(&0) && ty.dtype != Pred)?;
        let kind = ArgReduceKind::ALL[step.numbers[1] as usize % 2];
        let axis = step.numbers[2] as usize % m.ty(x).rank();
        m.one(ArgReduce { kind, axis }, &[x])
    }),
    row("scatter", true, |m, step| {
        // Rows are taken from one list of places, and added in at another.
        let x = m.choose_float(step.numbers[0]).filter(|&x| m.ty(x).dims.first().is_some_and(|&size| size > 0))?;
        let from = m.choose(step.numbers[1], |ty| ty.dtype == S32 && ty.rank() == 1)?;
        let places = m.ty(from).clone();
        let to = m.choose(step.numbers[2], |ty| *ty == places)?;
        let ty = m.ty(x).clone();
        let mut slice_sizes = ty.dims.clone();
        slice_sizes[0] = 1;
        let dims = Box::new(GatherDims {
            offset_dims: (1..ty.rank()).collect(),
            collapsed_dims: [0].into_iter().collect(),
            start_index_map: [0].into_iter().collect(),
            index_vector_dim: 1,
            ..GatherDims::default()
        });
        let rows = m.push(Gather { dims: dims.clone(), slice_sizes, promise: Default::default() }, &[x, from])?;
        let kinds = if m.kind == Kind::Smooth { &[ScatterKind::Add][..] } else { &ScatterKind::ALL[..4] };
        let kind = kinds[step.numbers[3] as usize % kinds.len()];
        let sum = m.push(Scatter { dims, kind, promise: Default::default() }, &[x, to, rows])?;
        m.one(Unary(UnaryKind::Sine), &[sum])
    }),
    row("barrier", true, |m, step| {
        let (x, y) = (m.choose(step.numbers[0], |_| true)?, m.choose(step.numbers[1], |_| true)?);
        m.many(Barrier, &[x, y])
    }),
    row("name", true, |m, step| {
        let x = m.choose(step.numbers[0], |_| true)?;
        m.one(Named(Name::new("named")), &[x])
    }),
    row("stop gradient", false, |m, step| {
        let x = m.choose(step.numbers[0], |_| true)?;
        m.one(StopGradient, &[x])
    }),
    row("scan", true, make_scan),
    row("scan again", true, make_scan),
    row("cond", true, make_cond),
    row("while", false, make_while),
    row("call", true, |m, step| {
        let operands = m.operands(step);
        // Traced twice, or once and called twice.
        let (first, second) = (m.region(&operands, &step.body, 2), m.region(&operands, &step.body, 2));
        let second = if step.numbers[4] % 2 == 0 { first.clone() } else { second };
        let mut results = m.many(Call { function: Arc::new(first) }, &operands)?;
        results.extend(m.many(Call { function: Arc::new(second) }, &operands)?);
        Some(results)
    }),
    row("checkpoint", true, |m, step| {
        let operands = m.operands(step);
        let names = vec![Name::new("named")];
        let policies = [RematPolicy::Full, RematPolicy::Dots, RematPolicy::Save(names), RematPolicy::None];
        let policy = policies[step.numbers[4] as usize % 4].clone();
        let body = m.region(&operands, &step.body, 2);
        m.many(Checkpoint { body: Arc::new(body), policy }, &operands)
    }),
    row("custom vjp", true, |m, step| {
        let x = m.choose_float(step.numbers[0])?;
        let ty = m.ty(x).clone();
        let function = |inputs: usize, make: &dyn Fn(&mut GraphBuilder, &[Value]) -> Vec<Value>| {
            let mut builder = GraphBuilder::new("part");
            let inputs: Vec<Value> = (0..inputs).map(|_| builder.input(ty.clone(), PortInfo::default())).collect();
            let outputs = make(&mut builder, &inputs);
            let info = vec![PortInfo::default(); outputs.len()];
            Arc::new(builder.finish(outputs, info))
        };
        let sine = |b: &mut GraphBuilder, x: Value| b.push1(Unary(UnaryKind::Sine), &[x]).expect("a float");
        let op = CustomVjp {
            primal: function(1, &|b, x| vec![sine(b, x[0])]),
            forward: function(1, &|b, x| vec![sine(b, x[0]), x[0]]),
            backward: function(2, &|b, x| {
                let slope = b.push1(Unary(UnaryKind::Cosine), &[x[0]]).expect("a float");
                vec![b.push1(Binary(BinaryKind::Multiply), &[x[1], slope]).expect("floats")]
            }),
        };
        m.many(op, &[x])
    }),
];

/// A scan over values at hand: up to two invariants, up to three carries (two of them may be the same), one or two
/// stacked inputs; it returns its carries and up to two values more.
fn make_scan(m: &mut Maker, step: &Step) -> Option<Vec<Value>> {
    let [first, second, third, fourth, flags] = step.numbers;
    let stacked = m.choose(first, |ty| ty.rank() > 0 && (1..=4).contains(&ty.dims[0]));
    let length = stacked.map_or(2, |value| m.ty(value).dims[0]);
    let stacked = stacked.filter(|_| flags & 1 == 0);
    let invariants: Vec<Value> = [second, third].iter().filter_map(|&number| m.choose(number, |_| true)).collect();
    let invariants = &invariants[..(flags >> 1 & 3).min(2) as usize];
    let carry = m.choose(fourth, |_| true)?;
    let other = m.choose(first / 2, |_| true)?;
    let carries = &[carry, carry, other][..1 + (flags >> 3 & 3).min(2) as usize];
    let stacks: Vec<Value> =
        stacked.into_iter().flat_map(|value| [value, value]).take(1 + (flags >> 5 & 1) as usize).collect();
    let operands = [invariants, carries, &stacks].concat();
    let mut inner = Maker { builder: GraphBuilder::new("scan"), values: Vec::new(), kind: m.kind };
    for (index, &operand) in operands.iter().enumerate() {
        let mut ty = m.ty(operand).clone();
        if index >= invariants.len() + carries.len() {
            ty.dims.remove(0);
        }
        inner.input(ty);
    }
    let inputs = inner.values.clone();
    inner.run(&step.body);
    let mut outputs: Vec<Value> = Vec::new();
    for index in 0..carries.len() {
        let own = inner.ty(inputs[invariants.len() + index]).clone();
        // The newest value of the type; or another one, or the carry itself.
        let number = if flags >> 6 & 1 == 1 { third.wrapping_mul(index as u8) } else { 0 };
        outputs.push(inner.choose(number, |ty| *ty == own)?);
    }
    outputs.extend(inner.values.iter().rev().take((flags >> 6) as usize % 3));
    outputs.extend(inner.values.first());
    let body = inner.finish(outputs);
    let scan = Scan {
        body: Arc::new(body),
        length,
        invariant_count: invariants.len(),
        carry_count: carries.len(),
        reverse: flags % 2 == 1,
        parallel: false,
        unroll: 1,
    };
    m.many(scan, &operands)
}

/// A choice between branches whose results have the types of their operands. The selector is the first element of a
/// value.
fn make_cond(m: &mut Maker, step: &Step) -> Option<Vec<Value>> {
    let chooser = m.choose(step.numbers[4], |ty| matches!(ty.dtype, Pred | S32) && ty.element_count() > 0)?;
    let first = m.ty(chooser).dims.iter().map(|_| SliceDim { start: 0, limit: 1, stride: 1 }).collect();
    let first = m.push(Slice { ranges: first }, &[chooser])?;
    let selector = m.push(Reshape { dims: Default::default() }, &[first])?;
    let operands = m.operands(step);
    // A pred chooses between two.
    let count = if m.ty(selector).dtype == Pred { 2 } else { 1 + step.numbers[0] as usize % 3 };
    let branch = |index: usize| {
        let steps = &step.body[step.body.len().min(index)..];
        let mut inner = m.inner("branch", &operands);
        inner.run(steps);
        let outputs: Option<Vec<Value>> =
            operands.iter().map(|&operand| inner.choose(0, |ty| ty == m.ty(operand))).collect();
        Some(Arc::new(inner.finish(outputs?)))
    };
    let branches: Option<Vec<Arc<Graph>>> = (0..count).map(branch).collect();
    m.many(Cond::of(branches?), &[&[selector], &operands[..]].concat())
}

/// A loop of up to three iterations, counted by its first carry. The first operand is an invariant, if there are
/// several.
fn make_while(m: &mut Maker, step: &Step) -> Option<Vec<Value>> {
    let counter = TensorType::scalar(S32);
    let start = m.push(Splat::new(counter.clone(), 0.0), &[])?;
    let mut operands = m.operands(step);
    let invariant_count = operands.len().min(2) / 2;
    operands.insert(invariant_count, start);
    let mut condition = m.inner("condition", &operands);
    let limit = condition.push(Splat::new(counter.clone(), f64::from(step.numbers[4] % 4)), &[])?;
    let goes_on = condition.push(Compare(Direction::Lt), &[condition.values[invariant_count], limit])?;
    let mut body = m.inner("body", &operands);
    let one = body.push(Splat::new(counter, 1.0), &[])?;
    let next = body.push(Binary(BinaryKind::Add), &[body.values[invariant_count], one])?;
    body.run(&step.body);
    let mut outputs = vec![next];
    for &operand in &operands[invariant_count + 1..] {
        outputs.push(body.choose(0, |ty| ty == m.ty(operand))?);
    }
    let (condition, body) = (Arc::new(condition.finish(vec![goes_on])), Arc::new(body.finish(outputs)));
    m.many(While { condition, body, invariant_count, at_most: 0, often: Often::default() }, &operands)
}

impl Maker {
    /// The start of a region with values of these types for inputs.
    fn inner(&self, name: &str, operands: &[Value]) -> Maker {
        let mut inner = Maker { builder: GraphBuilder::new(name), values: Vec::new(), kind: self.kind };
        operands.iter().for_each(|&operand| inner.input(self.ty(operand).clone()));
        inner
    }

    fn input(&mut self, ty: TensorType) {
        let value = self.builder.input(ty, PortInfo::default());
        self.values.push(value);
    }

    fn ty(&self, value: Value) -> &TensorType {
        self.builder.ty(value)
    }

    /// Returns the values that no node reads, newest first. With all of them as results, no node that a pass keeps is
    /// untested.
    fn unread(&self) -> Vec<Value> {
        let read: HashSet<Value> = self.builder.graph().nodes().flat_map(|node| node.operands().to_vec()).collect();
        self.values.iter().rev().copied().filter(|value| !read.contains(value)).collect()
    }

    /// Takes all steps; returns the rows that made something.
    fn run(&mut self, recipe: &[Step]) -> Vec<&'static str> {
        let rows = rows(self.kind);
        let mut used = Vec::new();
        for step in recipe {
            let row = rows[step.row as usize % rows.len()];
            if let Some(results) = (row.make)(self, step) {
                self.values.extend(results);
                used.push(row.name);
            }
        }
        used
    }

    /// One of the values whose type is accepted; 0 is the newest, and newer ones are chosen more often.
    fn choose(&self, number: u8, accept: impl Fn(&TensorType) -> bool) -> Option<Value> {
        let accepted: Vec<Value> = self.values.iter().copied().filter(|&value| accept(self.ty(value))).collect();
        (!accepted.is_empty()).then(|| accepted[accepted.len() - 1 - (number as usize).pow(2) / 256 % accepted.len()])
    }

    /// A value that may be differentiated.
    fn choose_float(&self, number: u8) -> Option<Value> {
        let smooth = self.kind == Kind::Smooth;
        self.choose(number, |ty| if smooth { ty.dtype == F64 } else { ty.dtype.is_float() })
    }

    /// Two values of one type.
    fn choose_pair(&self, step: &Step, accept: impl Fn(&TensorType) -> bool) -> Option<(Value, Value)> {
        let smooth = self.kind == Kind::Smooth;
        let x = self.choose(step.numbers[0], |ty| accept(ty) && (!smooth || ty.dtype == F64))?;
        let ty = self.ty(x).clone();
        Some((x, self.choose(step.numbers[1], |other| *other == ty)?))
    }

    /// A few operands for a function.
    fn operands(&self, step: &Step) -> Vec<Value> {
        let count = 1 + step.numbers[3] as usize % 3;
        step.numbers[..count].iter().filter_map(|&number| self.choose(number, |_| true)).collect()
    }

    /// Start indices: known ones, or computed.
    fn starts(&mut self, rank: usize, step: &Step) -> Option<Vec<Value>> {
        let scalar = TensorType::scalar(S32);
        let computed = self.choose(step.numbers[2], |ty| *ty == scalar);
        (0..rank)
            .map(|dim| match computed {
                Some(value) if step.numbers[3] >> dim & 1 == 1 => Some(value),
                _ => self.push(Splat::new(scalar.clone(), f64::from(step.numbers[4]) / 32.0 - 2.0), &[]),
            })
            .collect()
    }

    /// The function that steps make of values of these types; it returns its newest values.
    fn region(&self, operands: &[Value], steps: &[Step], outputs: usize) -> Graph {
        let mut inner = self.inner("region", operands);
        inner.run(steps);
        let outputs = inner.values.iter().rev().take(outputs).copied().collect();
        inner.finish(outputs)
    }

    fn finish(self, outputs: Vec<Value>) -> Graph {
        let info = vec![PortInfo::default(); outputs.len()];
        self.builder.finish(outputs, info)
    }

    /// Pushes a node; none if its result would be large.
    fn push(&mut self, op: impl Into<Op>, operands: &[Value]) -> Option<Value> {
        Some(self.many(op, operands)?[0])
    }

    fn one(&mut self, op: impl Into<Op>, operands: &[Value]) -> Option<Vec<Value>> {
        self.many(op, operands)
    }

    fn many(&mut self, op: impl Into<Op>, operands: &[Value]) -> Option<Vec<Value>> {
        let op = op.into();
        let types: Vec<&TensorType> = operands.iter().map(|&value| self.ty(value)).collect();
        let results = op.infer(&types).ok()?;
        let fits = results.iter().all(|ty| ty.element_count() <= LARGEST && ty.rank() <= 4);
        fits.then(|| self.builder.push(op, operands).expect("its types have been inferred").to_vec())
    }
}
