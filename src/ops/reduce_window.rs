//! Reductions of windows that slide over a tensor: pooling.

use std::fmt;

use super::reduce::emit_arg_reduce;
use super::rules::*;
use super::shape::inverse;
use super::{
    ArgReduceKind, AxisList, Binary, Direction, Gather, GatherDims, IndexPromise, Pad, PadDim, ReduceKind, Scatter,
    ScatterKind,
};
use crate::hlo::proto;

/// A window along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDim {
    /// Number of elements.
    pub size: usize,
    /// Distance between windows.
    pub stride: usize,
    /// The number of copies of the reduction's initial value before the first element. A negative number drops
    /// elements.
    pub low: i64,
    /// The same after the last element.
    pub high: i64,
    /// Distance that neighbours of the operand are moved apart to; 1 for none.
    pub base_dilation: usize,
    /// Distance between the elements of a window.
    pub window_dilation: usize,
}

impl fmt::Display for WindowDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &WindowDim { size, stride, low, high, window_dilation, base_dilation } = self;
        write!(f, "a window of size {size}, stride {stride} and padding {low} and {high}")?;
        match (window_dilation, base_dilation) {
            (1, 1) => Ok(()),
            _ => write!(f, " (dilated by {window_dilation}, over elements dilated by {base_dilation})"),
        }
    }
}

/// The text is one entry of a list: `size=3 stride=2 lhs_dilate=1 rhs_dilate=1 pad=0_1`, without the numbers that are
/// 1, and without the padding if it is zero.
impl crate::ir::Attribute for WindowDim {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        let dilations = [("lhs_dilate", self.base_dilation), ("rhs_dilate", self.window_dilation)];
        out.words(&[("size", self.size), ("stride", self.stride), dilations[0], dilations[1]]);
        out.padding(self.low, self.high);
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<WindowDim, crate::ir::GraphTextError> {
        let keys = ["size", "stride", "lhs_dilate", "rhs_dilate"];
        let [size, stride, base_dilation, window_dilation] = reader.words(keys)?;
        let (low, high) = reader.padding()?;
        Ok(WindowDim { size, stride, low, high, base_dilation, window_dilation })
    }
}

impl WindowDim {
    /// Every element is a window.
    pub const ONE: WindowDim = WindowDim { size: 1, stride: 1, low: 0, high: 0, base_dilation: 1, window_dilation: 1 };

    /// Windows of a size, a stride apart, within the operand.
    pub const fn new(size: usize, stride: usize) -> WindowDim {
        WindowDim { size, stride, ..WindowDim::ONE }
    }

    /// Number of windows over a dimension of `size` elements; `None` if numbers are out of range.
    fn count(&self, size: usize) -> Option<usize> {
        let number = |number: usize| i64::try_from(number).ok();
        let spread = |count: usize, distance: usize| match count {
            0 => Some(0),
            _ => (number(count)? - 1).checked_mul(number(distance)?)?.checked_add(1),
        };
        if self.size == 0 || self.stride == 0 || self.base_dilation == 0 || self.window_dilation == 0 {
            return None;
        }
        // Their opposites must exist too.
        self.low.checked_neg().and(self.high.checked_neg())?;
        let padded = spread(size, self.base_dilation)?.checked_add(self.low)?.checked_add(self.high)?;
        let room = padded.checked_sub(spread(self.size, self.window_dilation)?)?;
        if padded < 0 {
            return None;
        }
        usize::try_from(if room < 0 { 0 } else { room / number(self.stride)? + 1 }).ok()
    }
}

/// Windows as HLO's messages have them.
pub(super) fn window_proto(window: &[WindowDim]) -> proto::Window {
    let dimension = |dim: &WindowDim| proto::WindowDimension {
        size: dim.size as i64,
        stride: dim.stride as i64,
        padding_low: dim.low,
        padding_high: dim.high,
        window_dilation: dim.window_dilation as i64,
        base_dilation: dim.base_dilation as i64,
        window_reversal: false,
    };
    proto::Window { dimensions: window.iter().map(dimension).collect() }
}

fn window_counts(window: &[WindowDim], operand: &TensorType) -> Result<Dims, TypeError> {
    expect_rank(0, operand, window.len())?;
    let count = |(dim, (window, &size)): (usize, (&WindowDim, &usize))| {
        window
            .count(size)
            .ok_or_else(|| TypeError::Attribute(format!("{window} does not fit dimension {dim} of size {size}")))
    };
    window.iter().zip(&operand.dims).enumerate().map(count).collect()
}

/// Dimensions with a window of their own are needed whole; the others are loops.
fn window_factors(window: &[WindowDim], operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
    let mut rule = FactorRule::empty(operands, results);
    for (dim, (&size, window)) in operands[0].dims.iter().zip(window).enumerate() {
        if *window == WindowDim::ONE {
            rule.add(size, FactorKind::Parallel, &[(0, dim)], &[(0, dim)]);
        }
    }
    rule.with_rest_replicated(operands, results)
}

fn batched(window: &[WindowDim]) -> Box<[WindowDim]> {
    [&[WindowDim::ONE], window].concat().into()
}

/// Folds every window to one element. The elements that pad the operand, or fill it where it is dilated, change
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceWindow {
    /// How elements combine.
    pub kind: ReduceKind,
    /// One window for each dimension.
    pub window: Box<[WindowDim]>,
}

crate::ir::op_text!(ReduceWindow = ReduceKind {
    And = "reduce-window-and",
    Max = "reduce-window-max",
    Min = "reduce-window-min",
    Or = "reduce-window-or",
    Prod = "reduce-window-prod",
    Sum = "reduce-window-sum",
} => { kind, window: key("window") });

impl ReduceWindow {
    /// The cotangent of a sum of windows: every element collects from the windows that it is in, which is a sum of
    /// windows over the cotangent, moved apart by the stride.
    fn spread(&self, builder: &mut GraphBuilder, ct: Value, operand: &TensorType) -> Result<Value, OpError> {
        let counts = builder.ty(ct).dims.clone();
        if counts.contains(&0) || operand.dims.contains(&0) {
            return Ok(builder.splat(operand.clone(), 0.0));
        }
        let (mut padding, mut window) = (Vec::new(), Vec::new());
        for ((dim, &count), &size) in self.window.iter().zip(&counts).zip(&operand.dims) {
            let reach = ((dim.size - 1) * dim.window_dilation) as i64;
            let spread = ((count - 1) * dim.stride) as i64 + 1;
            let needed = ((size - 1) * dim.base_dilation) as i64 + reach + 1;
            let low = reach - dim.low;
            padding.push(PadDim { low, high: needed - low - spread, interior: dim.stride - 1 });
            window.push(WindowDim { stride: dim.base_dilation, low: 0, high: 0, base_dilation: 1, ..*dim });
        }
        let zero = builder.splat(TensorType::scalar(operand.dtype), 0.0);
        let padded = builder.push1(Pad { padding: padding.into() }, &[ct, zero])?;
        builder.push1(ReduceWindow { kind: ReduceKind::Sum, window: window.into() }, &[padded])
    }

    fn positions(&self, builder: &mut GraphBuilder, x: Value) -> Result<Positions, OpError> {
        let kind = if self.kind == ReduceKind::Max { ArgReduceKind::Max } else { ArgReduceKind::Min };
        let positions = builder.push1(ArgReduceWindow { kind, window: self.window.clone() }, &[x])?;
        Positions::new(builder, &self.window, x, positions)
    }
}

/// Positions of extrema, with the dimensions that have windows of their own after the others.
struct Positions {
    /// The others, then those with windows.
    order: AxisList,
    /// Sizes of the others.
    batch: Dims,
    windowed: Dims,
    positions: Value,
}

impl Positions {
    fn new(builder: &mut GraphBuilder, window: &[WindowDim], x: Value, positions: Value) -> Result<Positions, OpError> {
        let dims = builder.ty(x).dims.clone();
        let (windowed, batch): (AxisList, AxisList) = (0..window.len()).partition(|&dim| window[dim] != WindowDim::ONE);
        let order: AxisList = batch.iter().chain(&windowed).copied().collect();
        let sizes = |axes: &AxisList| axes.iter().map(|&axis| dims[axis]).collect();
        let positions = builder.transpose(positions, &order)?;
        Ok(Positions { batch: sizes(&batch), windowed: sizes(&windowed), order, positions })
    }

    /// One row of all windowed positions for each of the other dimensions' elements.
    fn rows(&self) -> Dims {
        let count: usize = self.windowed.iter().product();
        self.batch.iter().copied().chain([count]).collect()
    }

    fn dims(&self, builder: &GraphBuilder) -> Box<GatherDims> {
        Box::new(GatherDims::along_last(self.batch.len(), builder.ty(self.positions).rank()))
    }

    fn restore(&self, builder: &mut GraphBuilder, value: Value) -> Result<Value, OpError> {
        builder.transpose(value, &inverse(&self.order))
    }

    /// Adds one element for each window to zeros of the operand's dimensions, at its position.
    fn scatter(&self, builder: &mut GraphBuilder, updates: Value) -> Result<Value, OpError> {
        let updates = builder.transpose(updates, &self.order)?;
        let zeros = builder.splat(TensorType { dtype: builder.ty(updates).dtype, dims: self.rows() }, 0.0);
        let dims = self.dims(builder);
        // Windows without elements have a position far outside, where they are dropped.
        let scatter = Scatter { dims, kind: ScatterKind::Add, promise: IndexPromise::default() };
        let sums = builder.push1(scatter, &[zeros, self.positions, updates])?;
        let full: Dims = self.batch.iter().chain(&self.windowed).copied().collect();
        let sums = builder.reshape(sums, &full)?;
        self.restore(builder, sums)
    }

    /// The element of a tensor with the operand's dimensions at the position of each window; 0 for those without
    /// elements.
    fn gather(&self, builder: &mut GraphBuilder, source: Value) -> Result<Value, OpError> {
        let source = builder.transpose(source, &self.order)?;
        let rows = self.rows();
        let source = builder.reshape(source, &rows)?;
        let (dims, slice_sizes) = (self.dims(builder), Dims::from_elem(1, rows.len()));
        let promise = IndexPromise::default();
        let found = builder.push1(Gather { dims, slice_sizes, promise }, &[source, self.positions])?;
        let limit = builder.splat_like(self.positions, rows[rows.len() - 1] as f64);
        let exists = builder.compare(Direction::Lt, self.positions, limit)?;
        let found = builder.or_zero(exists, found)?;
        self.restore(builder, found)
    }
}

impl Primitive for ReduceWindow {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        Binary(self.kind.into()).infer(&[operands[0], operands[0]])?;
        Ok(one(TensorType { dtype: operands[0].dtype, dims: window_counts(&self.window, operands[0])? }))
    }

    /// The first of a window's equal extrema gets the cotangent. Products of windows have no gradient, as in JAX.
    fn facts(&self) -> Facts<'_> {
        if self.kind == ReduceKind::Sum { Facts::LINEAR } else { Facts::KERNEL }
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let (x, ty) = (context.operand(0), context.operand_type(0).clone());
        let gradient = match self.kind {
            ReduceKind::Sum => self.spread(context.builder, ct, &ty)?,
            ReduceKind::Max | ReduceKind::Min if ty.element_count() == 0 => context.builder.splat(ty, 0.0),
            ReduceKind::Max | ReduceKind::Min => self.positions(context.builder, x)?.scatter(context.builder, ct)?,
            ReduceKind::Prod => return Err(context.not_differentiable(self.name())),
            ReduceKind::And | ReduceKind::Or => return Ok(()),
        };
        context.set(0, gradient);
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let Some(tangent) = context.tangent(0) else { return Ok(()) };
        match self.kind {
            ReduceKind::Sum => context.linear_in(self.clone(), &[0]),
            // All windows, if any, are without elements.
            ReduceKind::Max | ReduceKind::Min if context.operand_type(0).element_count() == 0 => Ok(()),
            ReduceKind::Max | ReduceKind::Min => {
                let positions = self.positions(context.builder, context.operand(0))?;
                let tangent = positions.gather(context.builder, tangent)?;
                context.set(0, tangent);
                Ok(())
            }
            ReduceKind::Prod => Err(context.not_differentiable(self.name())),
            ReduceKind::And | ReduceKind::Or => Ok(()),
        }
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        window_factors(&self.window, operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(ReduceWindow { kind: self.kind, window: batched(&self.window) })
    }

    rules!(partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        let dtype = context.operand_type(0).dtype;
        let identity = context.number(dtype, self.kind.identity(dtype));
        let combiner = context.combiner(self.kind.name(), dtype);
        let operand = context.operand_id(0);
        let instruction = context.begin_with("reduce-window", 0, &[operand, identity]);
        instruction.window = Some(window_proto(&self.window));
        instruction.called_computation_ids.push(combiner);
        context.finish();
    }
}

/// Position (`s32`) of every window's largest or smallest element, the first of equals; the largest `s32` for a window
/// without elements. Positions count, in row-major order, along the dimensions that have windows of their own
/// (that are not [`WindowDim::ONE`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduceWindow {
    /// The element to look for.
    pub kind: ArgReduceKind,
    /// One window for each dimension.
    pub window: Box<[WindowDim]>,
}

crate::ir::op_text!(ArgReduceWindow = ArgReduceKind {
    Max = "argmax-window",
    Min = "argmin-window",
} => { kind, window: key("window") });

impl Primitive for ArgReduceWindow {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        super::OperandClass::Numeric.check(0, operands[0])?;
        let dims = window_counts(&self.window, operands[0])?;
        let windowed = operands[0].dims.iter().zip(&self.window).filter(|(_, window)| **window != WindowDim::ONE);
        let count = windowed.fold(1, |count: usize, (&size, _)| count.saturating_mul(size));
        refuse_if!(i32::try_from(count).is_err(), "there are {count} positions, more than s32 can count");
        Ok(one(TensorType { dtype: DType::S32, dims }))
    }

    rules!(facts: KERNEL, derivatives: none, partition: unchanged);

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        window_factors(&self.window, operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(ArgReduceWindow { kind: self.kind, window: batched(&self.window) })
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let operand = context.operand_type(0).clone();
        let windowed: AxisList = (0..operand.rank()).filter(|&dim| self.window[dim] != WindowDim::ONE).collect();
        let sizes: Dims = windowed.iter().map(|&dim| operand.dims[dim]).collect();
        let flat = TensorType::new(DType::S32, &[sizes.iter().product()]);
        let positions = context.positions(&flat, 0);
        let positions = context.instruction("reshape", &TensorType { dtype: DType::S32, dims: sizes }, &[positions]);
        let positions = context.broadcast(&operand.with_dtype(DType::S32), positions, &windowed);
        emit_arg_reduce(context, self.kind, ("reduce-window", positions, i32::MAX.into()), |instruction| {
            instruction.window = Some(window_proto(&self.window));
        });
    }
}

/// The windows of a message; `None` for windows that are reversed, or of a negative size.
pub(super) fn windows_of(window: &proto::Window) -> Option<Vec<WindowDim>> {
    let dimension = |dim: &proto::WindowDimension| {
        let at_least_one = |number: i64| usize::try_from(number).ok().map(|number| number.max(1));
        (!dim.window_reversal).then_some(WindowDim {
            size: usize::try_from(dim.size).ok()?,
            stride: at_least_one(dim.stride)?,
            low: dim.padding_low,
            high: dim.padding_high,
            window_dilation: at_least_one(dim.window_dilation)?,
            base_dilation: at_least_one(dim.base_dilation)?,
        })
    };
    window.dimensions.iter().map(dimension).collect()
}

impl Import for ReduceWindow {
    const OPCODES: &'static [&'static str] = &["reduce-window"];

    /// A fold of one array by a kind that starts at the identity: padding is made of what it starts at.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let &[operand, start] = context.operands() else { return Ok(None) };
        let found = context.computation(0).and_then(combiner);
        let window = context.instruction().window.as_ref().and_then(windows_of);
        let (Some((kind, dtype)), Some(window)) = (found, window) else { return Ok(None) };
        let result = context.result_types().to_vec();
        let builder = context.builder();
        let is_plain = builder.ty(operand).dtype == dtype && builder.graph().splat(start) == Some(kind.identity(dtype));
        let op = ReduceWindow { kind, window: window.into() };
        let fits = is_plain && op.infer(&[builder.ty(operand)]).is_ok_and(|types| types.as_slice() == result);
        if fits { builder.push(op, &[operand]).map(Some) } else { Ok(None) }
    }
}

import!(ArgReduceWindow: in_parts);
