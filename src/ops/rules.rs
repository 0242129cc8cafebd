//! The items that the files of all ops use: the contexts of the rules, types and checks, and the rules that many ops
//! share.

pub(super) use super::{
    BatchContext, EmitContext, FactorKind, FactorRule, Facts, JvpContext, PartitionContext, Primitive, ResultTypes,
    VjpContext, expect_axes, expect_dims, expect_dtype, expect_operands, expect_rank, one,
};
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
/// | `facts: NAME` | those of a constant of [`Facts`] |
/// | `derivatives: passed_on` | cotangents and tangents go through as they are |
/// | `derivatives: none` | no result has a tangent, or none that depends on an operand: it is an integer, or a constant |
/// | `derivatives: refused` | the op is not differentiable, and says so |
/// | `jvp: linear` | the op itself, applied to the tangents of the operands in which its facts say that it is linear |
/// | `factors: pointwise` | all tensors have the same dimensions; each dimension is a loop of its own |
/// | `factors: replicated` | every device needs all of every dimension |
/// | `batch: unchanged` | its attributes say nothing of dimensions that a batch moves |
/// | `batch: never` | it has no operands, so it is the same for all examples, and batching never gets here |
/// | `batch: refused` | the op cannot be batched, and says so |
/// | `partition: unchanged` | its attributes say nothing of dimensions that are split |
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
    ($($rule:ident: $how:ident),+) => { $(rules!($rule: $how);)+ };
}
pub(super) use rules;
