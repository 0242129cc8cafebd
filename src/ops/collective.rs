//! Communication between devices: the ops of partitioned graphs, and of manual regions within others.
//!
//! A partitioned graph is the program of one device of a mesh, the same on all, with local shapes. In a manual region
//! ([`ManualBorder`](super::ManualBorder)) it is so along some axes, and the partitioner splits values along the
//! others. A collective runs within groups of devices that differ only in their positions along some mesh axes. The
//! meanings are XLA's (`AllGather`, `ReduceScatter`, ... in its operation semantics), with groups given by axes instead
//! of device lists.
//!
//! All-gather, all-reduce and reduce-scatter take any number of operands and give one result for each: one exchange
//! that moves them all. In HLO it is that of all operands laid side by side: not every plugin takes more than one
//! operand, or treats them right. All-to-all and collective-permute take one: HLO reads an all-to-all of several
//! operands as one whose parts are the operands, and a permute of several is unknown to plugins of API 0.81.

use super::rules::*;
use super::{Convert, Devices, Group, Linear, Op, ReduceKind};
use meshloom_hlo::CollectiveKind;

/// Joins the parts of the group's devices along a dimension, in the order of their ranks: every device gets the whole.
/// Each operand is joined by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllGather {
    /// The devices that take part.
    pub group: Group,
    /// The dimension that grows.
    pub dim: usize,
}

crate::ir::op_text!(AllGather = "all-gather" { group: key("axes"), dim: key("dim") });

/// Combines the group's values elementwise: every device gets the result. Each operand is combined by itself; all have
/// one element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllReduce {
    /// The devices that take part.
    pub group: Group,
    /// How elements combine.
    pub kind: ReduceKind,
}

crate::ir::op_text!(AllReduce = "all-reduce" { group: key("axes"), kind: bare });

/// Adds up the group's values, and gives each device its rank's part of the sum along a dimension. Each operand is
/// treated by itself; all have one element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceScatter {
    /// The devices that take part.
    pub group: Group,
    /// The dimension that shrinks.
    pub dim: usize,
}

crate::ir::op_text!(ReduceScatter = "reduce-scatter" { group: key("axes"), dim: key("dim") });

/// Cuts a dimension into as many parts as the group has devices; part `i` goes to rank `i`, and the arriving parts are
/// joined along the same dimension in the order of the senders' ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllToAll {
    /// The devices that take part.
    pub group: Group,
    /// The dimension cut and joined.
    pub dim: usize,
}

crate::ir::op_text!(AllToAll = "all-to-all" { group: key("axes"), dim: key("dim") });

/// Sends each device's value to another one of its group. A device that no other sends to gets zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CollectivePermute {
    /// The devices that take part.
    pub group: Group,
    /// Pairs of ranks: sender and receiver, each at most once.
    pub pairs: Box<[(u32, u32)]>,
}

crate::ir::op_text!(CollectivePermute = "collective-permute" { group: key("axes"), pairs: key("pairs") });

/// This device's rank in its group: a scalar of type `s32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AxisIndex {
    /// The group.
    pub group: Group,
}

crate::ir::op_text!(AxisIndex = "axis-index" { group: key("axes") });

impl Op {
    /// The same exchange, or rank, in another group; `None` for any other op.
    pub(crate) fn with_group(&self, group: impl Fn(&Group) -> Group) -> Option<Op> {
        Some(match self {
            Op::AllGather(op) => AllGather { group: group(&op.group), ..op.clone() }.into(),
            Op::AllReduce(op) => AllReduce { group: group(&op.group), ..op.clone() }.into(),
            Op::AllToAll(op) => AllToAll { group: group(&op.group), ..op.clone() }.into(),
            Op::AxisIndex(op) => AxisIndex { group: group(&op.group) }.into(),
            Op::CollectivePermute(op) => CollectivePermute { group: group(&op.group), ..op.clone() }.into(),
            Op::ReduceScatter(op) => ReduceScatter { group: group(&op.group), ..op.clone() }.into(),
            _ => return None,
        })
    }
}

/// The factor rule of an exchange: a dimension is a loop of its own in each operand and its result, but for one that
/// the exchange cuts or joins. Devices along other axes than the group's exchange parts of the others.
fn exchanged(operands: &[&TensorType], results: &[&TensorType], whole: Option<usize>) -> FactorRule {
    let mut rule = FactorRule { separate: operands.len() > 1, ..FactorRule::empty(operands, results) };
    for (index, ty) in operands.iter().enumerate() {
        for (dim, &size) in ty.dims.iter().enumerate().filter(|&(dim, _)| Some(dim) != whole) {
            rule.add(size, FactorKind::Parallel, &[(index, dim)], &[(index, dim)]);
        }
    }
    rule.with_rest_replicated(operands, results)
}

/// The rules of an exchange that is linear, but for its typing rule. Only programs that are partitioned, wholly or in
/// manual regions, have the ops of this file; they are neither differentiated nor batched.
macro_rules! exchange {
    ($kind:ident, |$op:ident, $context:ident| $emit:expr) => {
        exchange!($kind, whole: |op| Some(op.dim), |$op, $context| $emit);
    };
    ($kind:ident, whole: $whole:expr, |$op:ident, $context:ident| $emit:expr) => {
        rules!(derivatives: refused, batch: refused, partition: unchanged);

        fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
            let whole: fn(&Self) -> Option<usize> = $whole;
            exchanged(operands, results, whole(self))
        }

        fn facts(&self) -> Facts<'_> {
            Facts::exchange(CollectiveKind::$kind, &self.group)
        }

        fn emit(&self, context: &mut dyn EmitContext) {
            let ($op, $context) = (self, context);
            $emit
        }
    };
}

fn expect_divides(ty: &TensorType, dim: usize, group: &Group) -> Result<(), TypeError> {
    expect_axes(&[dim], ty.rank())?;
    refuse_if!(
        group.size == 0 || !ty.dims[dim].is_multiple_of(group.size),
        "dimension {dim} of size {} cannot be cut into {} parts",
        ty.dims[dim],
        group.size
    );
    Ok(())
}

/// Checks that the op has an operand, and that all operands have one element type, as the combiner of a reduction
/// requires.
fn expect_one_dtype(operands: &[&TensorType]) -> Result<(), TypeError> {
    let Some((first, rest)) = operands.split_first() else {
        return Err(TypeError::OperandCount { expected: 1, found: 0 });
    };
    rest.iter().enumerate().try_for_each(|(index, ty)| expect_dtype(index + 1, ty, first.dtype))
}

impl Primitive for AllGather {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_one_dtype(operands)?;
        let gathered = |&ty: &&TensorType| {
            expect_axes(&[self.dim], ty.rank())?;
            let mut ty = ty.clone();
            ty.dims[self.dim] = ty.dims[self.dim].saturating_mul(self.group.size);
            Ok(ty)
        };
        operands.iter().map(gathered).collect()
    }

    exchange!(AllGather, |op, context| context.all_gather(&op.group, op.dim));
}

impl Primitive for AllReduce {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_one_dtype(operands)?;
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    fn facts(&self) -> Facts<'_> {
        let facts = Facts::exchange(CollectiveKind::AllReduce, &self.group);
        if self.kind == ReduceKind::Sum { facts } else { facts.linear(Linear::No) }
    }

    rules!(derivatives: refused, batch: refused, partition: unchanged);

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        exchanged(operands, results, None)
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.all_reduce(&self.group, self.kind);
    }
}

impl Primitive for ReduceScatter {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_one_dtype(operands)?;
        let part = |&ty: &&TensorType| {
            expect_divides(ty, self.dim, &self.group)?;
            let mut ty = ty.clone();
            ty.dims[self.dim] /= self.group.size;
            Ok(ty)
        };
        operands.iter().map(part).collect()
    }

    exchange!(ReduceScatter, |op, context| context.reduce_scatter(&op.group, op.dim));
}

impl Primitive for AllToAll {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        expect_divides(operands[0], self.dim, &self.group)?;
        Ok(one(operands[0].clone()))
    }

    exchange!(AllToAll, |op, context| context.all_to_all(&op.group, op.dim));
}

impl Primitive for CollectivePermute {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        for (index, &(source, target)) in self.pairs.iter().enumerate() {
            let repeated = self.pairs[..index].iter().any(|&(from, to)| from == source || to == target);
            refuse_if!(
                source as usize >= self.group.size || target as usize >= self.group.size || repeated,
                "the pair {source} -> {target} repeats a rank, or names one beyond the group's {}",
                self.group.size
            );
        }
        Ok(one(operands[0].clone()))
    }

    exchange!(CollectivePermute, whole: |_| None, |op, context| context.collective_permute(&op.group, &op.pairs));
}

impl Primitive for AxisIndex {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 0)?;
        Ok(one(TensorType::scalar(DType::S32)))
    }

    fn facts(&self) -> Facts<'_> {
        Facts { devices: Devices::Rank(&self.group), ..Facts::SOURCE }
    }

    rules!(derivatives: refused, factors: replicated, batch: refused, partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        context.axis_index(&self.group);
    }
}

import!(AllGather: "all-gather" => |context| {
    Some(AllGather { group: context.group()?, dim: only(&context.instruction().dimensions)? })
});
import!(AllReduce: "all-reduce" => |context| {
    let (kind, _) = combiner(context.computation(0)?)?;
    Some(AllReduce { group: context.group()?, kind })
});
import!(ReduceScatter: "reduce-scatter" => |context| {
    let (kind, _) = combiner(context.computation(0)?)?;
    let dim = only(&context.instruction().dimensions)?;
    (kind == ReduceKind::Sum).then_some(ReduceScatter { group: context.group()?, dim })
});
import!(AllToAll: "all-to-all" => |context| {
    Some(AllToAll { group: context.group()?, dim: only(&context.instruction().dimensions)? })
});
import!(CollectivePermute: "collective-permute" => |context| {
    let (group, pairs) = context.permutation()?;
    Some(CollectivePermute { group, pairs: pairs.into() })
});

impl Import for AxisIndex {
    const OPCODES: &'static [&'static str] = &["partition-id"];

    /// A partition's number is its rank among all devices.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let (Some(group), [ty]) = (context.all_devices(), context.result_types()) else { return Ok(None) };
        let dtype = ty.dtype;
        let builder = context.builder();
        let rank = builder.push1(AxisIndex { group }, &[])?;
        builder.push(Convert(dtype), &[rank]).map(Some)
    }
}

/// The only number of a list of dimensions.
fn only(dimensions: &[i64]) -> Option<usize> {
    match dimensions {
        &[dim] => usize::try_from(dim).ok(),
        _ => None,
    }
}
