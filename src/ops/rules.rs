//! The items that the files of all ops use: the contexts of the rules, types and checks, and the rules that many ops
//! share.

pub(super) use super::context::{applied, axes, combiner, import};
pub(super) use super::{
    BatchContext, EmitContext, FactorKind, FactorRule, Facts, JvpContext, PartitionContext, Primitive, ResultTypes,
    VjpContext, expect_axes, expect_dims, expect_dtype, expect_operands, expect_rank, one,
};
pub(super) use super::{Import, ImportContext, Recognized};
pub(super) use crate::ir::{DType, Dims, GraphBuilder, OpError, OpName, TensorType, TypeError, Value, Values};

/// Refuses attributes that do not fit the operands, with a message as for `format!`.
macro_rules! refuse_if {
    ($wrong:expr, $($message:tt)+) => {
        if $wrong {
            return Err(TypeError::Attribute(format!($($message)+)));
        }
    };
}
pub(super) use refuse_if;

/// Rules of a [`Primitive`] that many ops share, by name. An op still states every one of its rules:
///
/// | rule | |
/// |---|---|
/// | `infer: identity` | it has one operand, whose type is the result's |
/// | `facts: NAME`, `facts = EXPRESSION` | those of a constant of [`Facts`], or others that do not depend on attributes |
/// | `derivatives: passed_on` | cotangents and tangents go through as they are |
/// | `derivatives: none` | no result has a tangent, or none that depends on an operand: it is an integer, or a constant |
/// | `derivatives: refused` | the op is not differentiable, and says so |
/// | `vjp: itself` | the op is its own transpose |
/// | `jvp: linear` | the op itself, applied to the tangents of the operands in which its facts say that it is linear |
/// | `jvp: by_definition`, `derivatives: by_definition` | those of its method `define` |
/// | `factors: pointwise` | all tensors have the same dimensions; each dimension is a loop of its own |
/// | `factors: whole_axis` | as `pointwise`, but every device needs all of dimension `axis` |
/// | `factors: replicated` | every device needs all of every dimension |
/// | `batch: unchanged` | its attributes say nothing of dimensions that a batch moves |
/// | `batch: axis` | its attribute `axis` counts the batch, and the others say nothing of dimensions |
/// | `batch: never` | it has no operands, so it is the same for all examples, and batching never gets here |
/// | `batch: refused` | the op cannot be batched, and says so |
/// | `partition: unchanged` | its attributes say nothing of dimensions that are split |
/// | `emit: simple` | one instruction of its name, without attributes |
/// | `emit: forwarded` | none: its result is its operand |
/// | `emit: by_definition` | those of its method `define` |
macro_rules! rules {
    (infer: identity) => {
        fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
            expect_operands(operands, 1)?;
            Ok(one(operands[0].clone()))
        }
    };
    (facts: $facts:ident) => {
        fn facts(&self) -> Facts<'_> {
            Facts::$facts
        }
    };
    (facts = $facts:expr) => {
        fn facts(&self) -> Facts<'_> {
            $facts
        }
    };
    (derivatives: passed_on) => {
        fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
            context.pull_back(|_, ct| Ok(ct))
        }

        fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
            context.tangent(0).into_iter().for_each(|tangent| context.set(0, tangent));
            Ok(())
        }
    };
    (derivatives: none) => {
        fn vjp(&self, _: &mut VjpContext<'_>) -> Result<(), OpError> {
            Ok(())
        }

        fn jvp(&self, _: &mut JvpContext<'_>) -> Result<(), OpError> {
            Ok(())
        }
    };
    (derivatives: refused) => {
        fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
            Err(context.not_differentiable(self.name()))
        }

        fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
            Err(context.not_differentiable(self.name()))
        }
    };
    (derivatives: by_definition) => {
        fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
            context.by_definition(|builder, operands| self.define(builder, operands))
        }

        rules!(jvp: by_definition);
    };
    (vjp: itself) => {
        fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
            context.pull_back(|builder, ct| builder.push1(self.clone(), &[ct]))
        }
    };
    (jvp: by_definition) => {
        fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
            context.by_definition(|builder, operands| self.define(builder, operands))
        }
    };
    (jvp: linear) => {
        fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
            context.linear(self)
        }
    };
    (factors: pointwise) => {
        fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
            FactorRule::pointwise(operands, results)
        }
    };
    (factors: whole_axis) => {
        fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
            let kind = |dim: usize| if dim == self.axis { FactorKind::Replicated } else { FactorKind::Parallel };
            FactorRule::aligned(operands, results, kind)
        }
    };
    (factors: replicated) => {
        fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
            FactorRule::empty(operands, results).with_rest_replicated(operands, results)
        }
    };
    (batch: unchanged) => {
        fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
            context.all(self.clone())
        }
    };
    (batch: axis) => {
        fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
            let mut batched = self.clone();
            batched.axis += 1;
            context.all(batched)
        }
    };
    (batch: never) => {
        fn batch(&self, _: &mut BatchContext<'_>) -> Result<(), OpError> {
            Ok(())
        }
    };
    (batch: refused) => {
        fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
            let operands = (0..context.operand_count()).map(|index| context.example_type(index)).collect();
            Err(OpError::new(self.name(), TypeError::NotBatchable, operands, context.builder.origin()))
        }
    };
    (partition: unchanged) => {
        fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
            context.apply(self.clone())
        }
    };
    (emit: simple) => {
        fn emit(&self, context: &mut dyn EmitContext) {
            context.simple(self.name());
        }
    };
    (emit: forwarded) => {
        fn emit(&self, context: &mut dyn EmitContext) {
            context.forward_operand();
        }
    };
    (emit: by_definition) => {
        fn emit(&self, context: &mut dyn EmitContext) {
            context.by_definition(&|builder, operands| self.define(builder, operands));
        }
    };
    ($($rule:ident: $how:ident),+) => { $(rules!($rule: $how);)+ };
}
pub(super) use rules;
