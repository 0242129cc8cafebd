//! Running folds along a dimension.

use super::rules::*;
use super::{BinaryKind, Direction, OperandClass, Operands, ReduceKind, Select, UnaryKind, WindowDim, window_proto};

meshloom_hlo::words! {
    /// How [`Cumulative`] folds.
    #[derive(PartialOrd, Ord)]
    pub enum CumulativeKind {
        /// log(sum(exp)), without overflow: the larger of two is taken out before anything is exponentiated.
        LogSumExp = "cumulative-logsumexp",
        /// Maximum; NaN from the first one on.
        Max = "cumulative-max",
        /// Minimum; NaN from the first one on.
        Min = "cumulative-min",
        /// Product.
        Prod = "cumulative-prod",
        /// Sum.
        Sum = "cumulative-sum",
    }
}

impl CumulativeKind {
    /// The element types that it takes.
    pub const fn class(self) -> OperandClass {
        match self {
            CumulativeKind::LogSumExp => OperandClass::Float,
            _ => OperandClass::Numeric,
        }
    }

    /// The reduction of the same name; `None` for the kind that HLO has no opcode for.
    const fn reduction(self) -> Option<ReduceKind> {
        match self {
            CumulativeKind::LogSumExp => None,
            CumulativeKind::Max => Some(ReduceKind::Max),
            CumulativeKind::Min => Some(ReduceKind::Min),
            CumulativeKind::Prod => Some(ReduceKind::Prod),
            CumulativeKind::Sum => Some(ReduceKind::Sum),
        }
    }
}

/// Element i of the result folds elements 0 to i of one dimension (i to the last, in reverse).
///
/// It is emitted as a reduce-window over the whole dimension, which XLA's `ReduceWindowRewriter` turns into a tree of
/// short ones on every backend: the work grows with the length, not with its square.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cumulative {
    /// How to fold.
    pub kind: CumulativeKind,
    /// The dimension folded along.
    pub axis: usize,
    /// Whether the fold starts at the end.
    pub reverse: bool,
}

crate::ir::op_text!(Cumulative = name of CumulativeKind::ALL, |kind| kind.name() => {
    kind,
    axis: key("axis"),
    reverse: flag("reverse"),
});

impl Cumulative {
    /// The element `distance` places before each, in the direction of the fold; `fill` where that is outside.
    fn before(&self, builder: &mut GraphBuilder, x: Value, distance: usize, fill: f64) -> Result<Value, OpError> {
        let distance = distance as i64;
        builder.displace(x, self.axis, if self.reverse { -distance } else { distance }, fill)
    }

    /// The slopes of `y[i] = f(y[i - 1], x[i])` in its two arguments. The first is zero at the start.
    fn slopes(&self, builder: &mut GraphBuilder, x: Value, y: Value) -> Result<[Value; 2], OpError> {
        let dtype = builder.ty(x).dtype;
        match self.kind {
            CumulativeKind::Sum => {
                let ones = builder.splat_like(x, 1.0);
                Ok([self.before(builder, ones, 1, 0.0)?, ones])
            }
            CumulativeKind::Prod => {
                let is_later = builder.splat_like(x, 1.0);
                let is_later = self.before(builder, is_later, 1, 0.0)?;
                Ok([builder.mul(x, is_later)?, self.before(builder, y, 1, 1.0)?])
            }
            CumulativeKind::Max | CumulativeKind::Min => {
                let (direction, start) = match self.kind {
                    CumulativeKind::Max => (Direction::Le, dtype.lowest()),
                    _ => (Direction::Ge, dtype.highest()),
                };
                let previous = self.before(builder, y, 1, start)?;
                let stays = builder.compare(direction, x, previous)?;
                let stays = builder.convert(stays, dtype)?;
                let is_later = builder.splat_like(x, 1.0);
                let is_later = self.before(builder, is_later, 1, 0.0)?;
                let stays = builder.mul(stays, is_later)?;
                Ok([stays, builder.reverse_sub(1.0, stays)?])
            }
            CumulativeKind::LogSumExp => {
                let previous = self.before(builder, y, 1, dtype.lowest())?;
                let first = share(builder, previous, y)?;
                let is_later = builder.splat_like(x, 1.0);
                let is_later = self.before(builder, is_later, 1, 0.0)?;
                Ok([builder.mul(first, is_later)?, share(builder, x, y)?])
            }
        }
    }

    /// Solves `s[i] = slope[i] * s[i - 1] + input[i]`. Every round doubles how far back the equation looks, so the
    /// number of rounds is the number of bits of the length.
    fn solve(&self, builder: &mut GraphBuilder, mut slope: Value, input: Value) -> Result<Value, OpError> {
        let (mut sum, length) = (input, builder.ty(input).dims[self.axis]);
        let mut distance = 1;
        while distance < length {
            let earlier = self.before(builder, sum, distance, 0.0)?;
            let earlier = builder.mul(slope, earlier)?;
            sum = builder.add(sum, earlier)?;
            let earlier = self.before(builder, slope, distance, 0.0)?;
            slope = builder.mul(slope, earlier)?;
            distance *= 2;
        }
        Ok(sum)
    }
}

/// Computes exp(part - whole), which is 1 for equal ones even if both are infinite.
fn share(builder: &mut GraphBuilder, part: Value, whole: Value) -> Result<Value, OpError> {
    let equal = builder.compare(Direction::Eq, part, whole)?;
    let difference = builder.sub(part, whole)?;
    let zero = builder.zeros_like(difference);
    let difference = builder.push1(Select, &[equal, zero, difference])?;
    builder.unary(UnaryKind::Exponential, difference)
}

impl Primitive for Cumulative {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        self.kind.class().check(0, operands[0])?;
        expect_axes(&[self.axis], operands[0].rank())?;
        Ok(one(operands[0].clone()))
    }

    /// With `y'[i] = a[i] y'[i - 1] + c[i] x'[i]`, cotangents run the other way: `s[i] = a[i + 1] s[i + 1] + y*[i]` and
    /// `x*[i] = c[i] s[i]`. There is no division, so zeros in a product do no harm. The first of equal extrema gets the
    /// whole cotangent.
    fn facts(&self) -> Facts<'_> {
        match self.kind {
            CumulativeKind::Sum => Facts::LINEAR,
            CumulativeKind::Max | CumulativeKind::Min | CumulativeKind::Prod => Facts::KERNEL.zero_of(Operands::All),
            CumulativeKind::LogSumExp => Facts::KERNEL,
        }
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let (x, y) = (context.operand(0), context.result(0));
        let builder = &mut *context.builder;
        let backward = Cumulative { reverse: !self.reverse, ..self.clone() };
        let gradient = if self.kind == CumulativeKind::Sum {
            builder.push1(backward, &[ct])?
        } else {
            let [slope, own] = self.slopes(builder, x, y)?;
            let slope = backward.before(builder, slope, 1, 0.0)?;
            let sum = backward.solve(builder, slope, ct)?;
            builder.mul(own, sum)?
        };
        context.set(0, gradient);
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        if self.kind == CumulativeKind::Sum {
            return context.linear_in(self.clone(), &[0]);
        }
        let Some(tangent) = context.tangent(0) else { return Ok(()) };
        let (x, y) = (context.operand(0), context.result(0));
        let builder = &mut *context.builder;
        let [slope, own] = self.slopes(builder, x, y)?;
        let input = builder.mul(own, tangent)?;
        let tangent = self.solve(builder, slope, input)?;
        context.set(0, tangent);
        Ok(())
    }

    rules!(factors: whole_axis, batch: axis, partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        let ty = context.operand_type(0).clone();
        let length = ty.dims[self.axis];
        if length <= 1 {
            return context.forward_operand();
        }
        let (start, combiner) = match self.kind.reduction() {
            Some(kind) => (kind.identity(ty.dtype), context.combiner(kind.name(), ty.dtype)),
            None => (ty.dtype.lowest(), context.log_add_exp(ty.dtype)),
        };
        let mut window = vec![WindowDim::ONE; ty.rank()];
        let border = length as i64 - 1;
        let (low, high) = if self.reverse { (0, border) } else { (border, 0) };
        window[self.axis] = WindowDim { size: length, low, high, ..WindowDim::ONE };
        let (operand, start) = (context.operand_id(0), context.number(ty.dtype, start));
        let instruction = context.begin_with("reduce-window", 0, &[operand, start]);
        instruction.window = Some(window_proto(&window));
        instruction.called_computation_ids.push(combiner);
        context.finish();
    }
}

impl GraphBuilder {
    /// `x` moved `distance` places along a dimension (negative towards the front), with `fill` coming in.
    pub(crate) fn displace(&mut self, x: Value, axis: usize, distance: i64, fill: f64) -> Result<Value, OpError> {
        let mut padding = vec![super::PadDim { low: 0, high: 0, interior: 0 }; self.ty(x).rank()];
        padding[axis] = super::PadDim { low: distance, high: -distance, interior: 0 };
        let fill = self.splat(TensorType::scalar(self.ty(x).dtype), fill);
        self.push1(super::Pad { padding: padding.into() }, &[x, fill])
    }

    /// For each element, the product of all others along a dimension. There is no division, so zeros do no harm.
    pub(crate) fn product_of_others(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        let products = [(false, 1), (true, -1)].map(|(reverse, distance)| {
            let product = self.push1(Cumulative { kind: CumulativeKind::Prod, axis, reverse }, &[x])?;
            self.displace(product, axis, distance, 1.0)
        });
        let [before, after] = products;
        self.binary(BinaryKind::Multiply, before?, after?)
    }
}

import!(Cumulative: in_parts);
