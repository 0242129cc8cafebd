//! The context in which an op's batching rule runs.

use smallvec::SmallVec;

use crate::ir::{Graph, GraphBuilder, Name, OpError, TensorType, Value};
use crate::ops::{Op, batched_dims};

/// A value of the batched graph, which stands for one value per example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batched {
    /// The value.
    pub value: Value,
    /// Whether its leading dimension is the batch; else it is the same for all examples.
    pub batched: bool,
}

/// The graph that defines an op in terms of others, over the batch that its inputs hold: pushes its nodes, and returns
/// the batched values of its outputs.
pub(crate) type BatchDefinition<'a> =
    dyn Fn(&mut GraphBuilder, &Graph, &[Batched]) -> Result<Vec<Batched>, OpError> + 'a;

/// One node's operands, as its batching rule sees them.
pub struct BatchContext<'a> {
    /// The graph to which the rule adds nodes.
    pub builder: &'a mut GraphBuilder,
    /// Number of examples.
    pub size: usize,
    /// The logical axis name of the batch dimension; the empty name for none.
    pub axis_name: Name,
    pub(crate) operands: &'a [Batched],
    pub(crate) results: SmallVec<[Batched; 2]>,
    pub(crate) definition: &'a BatchDefinition<'a>,
}

impl BatchContext<'_> {
    pub(crate) fn operand_count(&self) -> usize {
        self.operands.len()
    }

    /// An operand, with a leading batch dimension if it [is batched](BatchContext::is_batched).
    pub(crate) fn operand(&self, index: usize) -> Value {
        self.operands[index].value
    }

    /// Whether an operand differs between examples.
    pub(crate) fn is_batched(&self, index: usize) -> bool {
        self.operands[index].batched
    }

    pub(crate) fn example_type(&self, index: usize) -> TensorType {
        let mut ty = self.builder.ty(self.operands[index].value).clone();
        if self.operands[index].batched {
            ty.dims.remove(0);
        }
        ty
    }

    /// An operand with the batch dimension, repeated along it if it is the same for all examples.
    pub(crate) fn aligned(&mut self, index: usize) -> Result<Value, OpError> {
        aligned(self.builder, self.operands[index], self.size)
    }

    /// States the next result.
    pub(crate) fn push_result(&mut self, value: Value, batched: bool) {
        self.results.push(Batched { value, batched });
    }

    /// States the results of `op`, applied to `operands`, as the next results, with the batch as their leading
    /// dimension.
    pub(crate) fn apply(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<(), OpError> {
        let results = self.builder.push(op, operands)?;
        self.results.extend(results.into_iter().map(|value| Batched { value, batched: true }));
        Ok(())
    }

    /// The rule of an op with a factor rule: `op`, whose dimension numbers already count the batch, applied to operands
    /// that all have it. The batch is one more parallel factor of the op ([`FactorRule::batched`]); the op table's test
    /// holds every op to this.
    ///
    /// [`FactorRule::batched`]: crate::ops::FactorRule::batched
    pub(crate) fn all(&mut self, op: impl Into<Op>) -> Result<(), OpError> {
        let operands =
            (0..self.operands.len()).map(|index| self.aligned(index)).collect::<Result<SmallVec<[Value; 4]>, _>>()?;
        self.apply(op, &operands)
    }

    /// The rule of an op with one result that other ops can express: `definition` makes the result for one example.
    pub(crate) fn by_definition(
        &mut self,
        definition: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<Value, OpError>,
    ) -> Result<(), OpError> {
        let types = (0..self.operands.len()).map(|index| self.example_type(index));
        let define =
            |builder: &mut GraphBuilder, inputs: &[Value]| Ok(std::iter::once(definition(builder, inputs)?).collect());
        let graph = GraphBuilder::definition(self.builder.origin(), types, define)?;
        self.results.extend((self.definition)(self.builder, &graph, self.operands)?);
        Ok(())
    }
}

/// A value with the batch dimension, repeated along it if it is the same for all examples.
pub(crate) fn aligned(builder: &mut GraphBuilder, value: Batched, size: usize) -> Result<Value, OpError> {
    if value.batched {
        return Ok(value.value);
    }
    let dims = builder.ty(value.value).dims.clone();
    let mapping: SmallVec<[usize; 6]> = (1..=dims.len()).collect();
    builder.broadcast(value.value, &batched_dims(size, &dims), &mapping)
}

/// `value`, whose dimension `from` is the batch, with that dimension in front.
pub(crate) fn batch_in_front(builder: &mut GraphBuilder, value: Value, from: usize) -> Result<Value, OpError> {
    let rank = builder.ty(value).rank();
    let order: SmallVec<[usize; 6]> = std::iter::once(from).chain((0..rank).filter(|&dim| dim != from)).collect();
    builder.transpose(value, &order)
}
