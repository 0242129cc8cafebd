//! Reductions.

use super::rules::*;
use super::{
    AxisList, Binary, BinaryKind, Class, Direction, InstructionId, ReduceKind, after_batch, complement, to_i64,
};
use crate::hlo::proto::HloInstructionProto;

crate::ir::word_attribute!(ReduceKind);

/// The elementwise op that combines two elements.
impl From<ReduceKind> for BinaryKind {
    fn from(kind: ReduceKind) -> BinaryKind {
        match kind {
            ReduceKind::And => BinaryKind::And,
            ReduceKind::Max => BinaryKind::Maximum,
            ReduceKind::Min => BinaryKind::Minimum,
            ReduceKind::Or => BinaryKind::Or,
            ReduceKind::Prod => BinaryKind::Multiply,
            ReduceKind::Sum => BinaryKind::Add,
        }
    }
}

/// Folds the listed dimensions away. `bf16` and `f16` are accumulated in the operand's type; convert first for more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// How elements combine.
    pub kind: ReduceKind,
    /// The dimensions folded.
    pub axes: AxisList,
}

crate::ir::op_text!(Reduce = ReduceKind {
    And = "reduce-and",
    Max = "reduce-max",
    Min = "reduce-min",
    Or = "reduce-or",
    Prod = "reduce-prod",
    Sum = "reduce-sum",
} => { kind, axes: key("axes") });

impl Reduce {
    /// Marks the elements of `x` that attain the extremum `y`, as ones among zeros, and counts them. Each of them has
    /// an equal share in the extremum.
    fn attained(&self, builder: &mut GraphBuilder, x: Value, y: Value) -> Result<(Value, Value), OpError> {
        let ty = builder.ty(x).clone();
        let kept = complement(&self.axes, ty.rank());
        let extremum = builder.broadcast(y, &ty.dims, &kept)?;
        let attained = builder.compare(Direction::Eq, x, extremum)?;
        let ones = builder.convert(attained, ty.dtype)?;
        let count = builder.reduce(ReduceKind::Sum, &self.axes, ones)?;
        Ok((ones, count))
    }

    /// For each element of `x`, the product of all others that it is folded with, one dimension after the other. There
    /// is no division, so zeros do no harm.
    fn others(&self, builder: &mut GraphBuilder, x: Value) -> Result<Value, OpError> {
        let dims = builder.ty(x).dims.clone();
        let mut axes = self.axes.clone();
        // The last axis comes first, so that the numbers of the others stay the same.
        axes.sort_unstable();
        let (mut product, mut rest) = (x, (0..dims.len()).collect::<AxisList>());
        let mut others = builder.splat_like(x, 1.0);
        for axis in axes.into_iter().rev() {
            let along = builder.product_of_others(product, axis)?;
            let along = builder.broadcast(along, &dims, &rest)?;
            others = builder.mul(others, along)?;
            product = builder.reduce(ReduceKind::Prod, &[axis], product)?;
            rest.remove(axis);
        }
        Ok(others)
    }
}

impl Primitive for Reduce {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        Binary(self.kind.into()).infer(&[operands[0], operands[0]])?;
        expect_axes(&self.axes, operands[0].rank())?;
        let kept = complement(&self.axes, operands[0].rank());
        let dims = kept.iter().map(|&axis| operands[0].dims[axis]).collect();
        Ok(one(TensorType { dtype: operands[0].dtype, dims }))
    }

    fn facts(&self) -> Facts<'_> {
        // The fold of no elements is zero only if it is a sum.
        let facts = if self.kind == ReduceKind::Sum { Facts::LINEAR } else { Facts::KERNEL };
        Facts { class: Class::Fold, ..facts }
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let (x, y) = (context.operand(0), context.result(0));
        let dims = context.operand_type(0).dims.clone();
        let kept = complement(&self.axes, dims.len());
        let builder = &mut *context.builder;
        let gradient = match self.kind {
            ReduceKind::Sum => builder.broadcast(ct, &dims, &kept)?,
            ReduceKind::Max | ReduceKind::Min => {
                let (attained, count) = self.attained(builder, x, y)?;
                let share = builder.div(ct, count)?;
                let share = builder.broadcast(share, &dims, &kept)?;
                builder.mul(share, attained)?
            }
            ReduceKind::Prod => {
                let ct = builder.broadcast(ct, &dims, &kept)?;
                let others = self.others(builder, x)?;
                builder.mul(ct, others)?
            }
            // Not defined on floating point, so there is never a cotangent.
            ReduceKind::And | ReduceKind::Or => return Ok(()),
        };
        context.set(0, gradient);
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let Some(tangent) = context.tangent(0) else { return Ok(()) };
        let (x, y) = (context.operand(0), context.result(0));
        let builder = &mut *context.builder;
        let tangent = match self.kind {
            ReduceKind::Sum => builder.reduce(ReduceKind::Sum, &self.axes, tangent)?,
            ReduceKind::Max | ReduceKind::Min => {
                let (attained, count) = self.attained(builder, x, y)?;
                let chosen = builder.mul(tangent, attained)?;
                let total = builder.reduce(ReduceKind::Sum, &self.axes, chosen)?;
                builder.div(total, count)?
            }
            ReduceKind::Prod => {
                let others = self.others(builder, x)?;
                let shares = builder.mul(tangent, others)?;
                builder.reduce(ReduceKind::Sum, &self.axes, shares)?
            }
            // Not defined on floating point, so there is never a tangent.
            ReduceKind::And | ReduceKind::Or => return Ok(()),
        };
        context.set(0, tangent);
        Ok(())
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (result_dim, dim) in complement(&self.axes, operands[0].rank()).into_iter().enumerate() {
            rule.add(operands[0].dims[dim], FactorKind::Parallel, &[(0, dim)], &[(0, result_dim)]);
        }
        for &dim in &self.axes {
            rule.add(operands[0].dims[dim], FactorKind::Reduction(self.kind), &[(0, dim)], &[]);
        }
        rule
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(Reduce { kind: self.kind, axes: after_batch(&self.axes) })
    }

    rules!(partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        let dtype = context.operand_type(0).dtype;
        let identity = context.number(dtype, self.kind.identity(dtype));
        let combiner = context.combiner(self.kind.name(), dtype);
        let operand = context.operand_id(0);
        let instruction = context.begin_with("reduce", 0, &[operand, identity]);
        instruction.dimensions.extend(to_i64(&self.axes));
        instruction.called_computation_ids.push(combiner);
        context.finish();
    }
}

/// The element that [`ArgReduce`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ArgReduceKind {
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl ArgReduceKind {
    /// Every kind.
    pub const ALL: [ArgReduceKind; 2] = [ArgReduceKind::Max, ArgReduceKind::Min];

    /// The reduction that gives the element itself.
    pub(crate) const fn reduction(self) -> ReduceKind {
        match self {
            ArgReduceKind::Max => ReduceKind::Max,
            ArgReduceKind::Min => ReduceKind::Min,
        }
    }
}

/// Position (`s32`) of the largest or smallest element along one dimension, which is folded away; the first of equals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    /// The element to look for.
    pub kind: ArgReduceKind,
    /// The dimension folded.
    pub axis: usize,
}

crate::ir::op_text!(ArgReduce = ArgReduceKind {
    Max = "argmax",
    Min = "argmin",
} => { kind, axis: key("axis") });

impl Primitive for ArgReduce {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let types = Reduce { kind: self.kind.reduction(), axes: AxisList::from_slice(&[self.axis]) }.infer(operands)?;
        refuse_if!(operands[0].dims[self.axis] == 0, "dimension {} is empty, so no element is extreme", self.axis);
        refuse_if!(
            i32::try_from(operands[0].dims[self.axis]).is_err(),
            "dimension {} has more positions than s32 can count",
            self.axis
        );
        Ok(one(types[0].with_dtype(DType::S32)))
    }

    rules!(facts = Facts { class: Class::Fold, ..Facts::KERNEL });
    rules!(derivatives: none, batch: axis, partition: unchanged);

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (result_dim, dim) in complement(&[self.axis], operands[0].rank()).into_iter().enumerate() {
            rule.add(operands[0].dims[dim], FactorKind::Parallel, &[(0, dim)], &[(0, result_dim)]);
        }
        rule.with_rest_replicated(operands, results)
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let positions = context.operand_type(0).with_dtype(DType::S32);
        let positions = context.positions(&positions, self.axis);
        emit_arg_reduce(context, self.kind, ("reduce", positions, 0.0), |instruction| {
            instruction.dimensions.push(self.axis as i64);
        });
    }
}

/// A fold of pairs (operand, position) by an opcode, which starts at the worst value and the position given; `describe`
/// adds the opcode's own attributes. Result 0 is the position of the best value, the first of equals.
pub(super) fn emit_arg_reduce(
    context: &mut dyn EmitContext,
    kind: ArgReduceKind,
    (opcode, positions, start): (&str, InstructionId, f64),
    describe: impl FnOnce(&mut HloInstructionProto),
) {
    let dtype = context.operand_type(0).dtype;
    let better = match kind {
        ArgReduceKind::Max => Direction::Gt,
        ArgReduceKind::Min => Direction::Lt,
    };
    let combiner = context.arg_reduce_combiner(better.name(), dtype);
    let worst = context.number(dtype, kind.reduction().identity(dtype));
    let start = context.number(DType::S32, start);
    let index_type = context.result_type(0).clone();
    let value_type = index_type.with_dtype(dtype);
    let operands = [context.operand_id(0), positions, worst, start];
    let reduce = context.begin_tuple(opcode, &[&value_type, &index_type], &operands);
    describe(reduce);
    reduce.called_computation_ids.push(combiner);
    let pair = context.commit();
    let position = context.element(pair, 1, &index_type);
    context.set_result(0, position);
}

impl Import for Reduce {
    const OPCODES: &'static [&'static str] = &["reduce"];

    /// A fold of one array by a kind. One that starts at another element than the identity combines with it at last.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let &[operand, start] = context.operands() else { return Ok(None) };
        let found = context.computation(0).and_then(combiner);
        let dimensions: Option<AxisList> = axes(&context.instruction().dimensions);
        let (Some((kind, dtype)), Some(dimensions)) = (found, dimensions) else { return Ok(None) };
        let [result] = context.result_types() else { return Ok(None) };
        let (is_narrow, result) = (result.dtype != dtype, result.clone());
        let builder = context.builder();
        if is_narrow || builder.ty(operand).dtype != dtype {
            return Ok(None);
        }
        let folded = builder.push1(Reduce { kind, axes: dimensions }, &[operand])?;
        if *builder.ty(folded) != result {
            return Ok(None);
        }
        let is_identity = builder.graph().splat(start) == Some(kind.identity(dtype));
        if is_identity {
            return Ok(Some(Values::from_slice(&[folded])));
        }
        let start = builder.broadcast(start, &result.dims, &[])?;
        let combined = builder.binary(super::BinaryKind::from(kind), folded, start)?;
        Ok(Some(Values::from_slice(&[combined])))
    }
}

import!(ArgReduce: in_parts);
