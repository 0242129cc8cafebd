//! The contexts in which an op's rules of differentiation run.

use smallvec::SmallVec;

use crate::ir::{Graph, GraphBuilder, InternalError, OpError, TensorType, TypeError, Value, Values};
use crate::ops::{Linear, Op, Primitive};

/// Reverse mode for the graph that defines an op in terms of others, with the op's operands for its inputs: from the
/// cotangents of its outputs to those of the inputs marked. A zero cotangent is `None`.
pub(crate) type PullBack =
    fn(&mut GraphBuilder, &Graph, &[Value], &[bool], &[Option<Value>]) -> Result<Vec<Option<Value>>, OpError>;

/// Forward mode for such a graph: from tangents of its inputs to its outputs and their tangents.
pub(crate) type PushForward =
    fn(&mut GraphBuilder, &Graph, &[Value], &[Option<Value>]) -> Result<(Values, Vec<Option<Value>>), OpError>;

/// The accessors of a node's values that the contexts of both modes have.
macro_rules! node_values {
    () => {
        pub(crate) fn operand_count(&self) -> usize {
            self.operands.len()
        }

        /// An operand's value in the forward pass.
        pub(crate) fn operand(&self, index: usize) -> Value {
            self.operands[index]
        }

        /// The type of an operand, which is that of its cotangent or tangent.
        pub(crate) fn operand_type(&self, index: usize) -> &TensorType {
            self.builder.ty(self.operands[index])
        }

        /// A result's value in the forward pass.
        pub(crate) fn result(&self, index: usize) -> Value {
            self.results[index]
        }

        pub(crate) fn not_differentiable(&self, op: &'static str) -> OpError {
            OpError::new(op, TypeError::NotDifferentiable, self.operand_types(), self.builder.origin())
        }

        fn operand_types(&self) -> Vec<TensorType> {
            self.operands.iter().map(|&value| self.builder.ty(value).clone()).collect()
        }

        fn graph_of(
            &self,
            definition: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<Values, OpError>,
        ) -> Result<Graph, OpError> {
            GraphBuilder::definition(self.builder.origin(), self.operand_types(), definition)
        }
    };
}

/// One node's operands, results and result cotangents, as its `vjp` rule sees them.
pub struct VjpContext<'a> {
    /// The graph to which the rule adds nodes.
    pub builder: &'a mut GraphBuilder,
    pub(crate) operands: &'a [Value],
    pub(crate) results: &'a [Value],
    pub(crate) cotangents: &'a [Option<Value>],
    pub(crate) needs: &'a [bool],
    pub(crate) gradients: &'a mut [Option<Value>],
    pub(crate) definition: PullBack,
}

impl VjpContext<'_> {
    node_values!();

    /// The cotangent of a result; `None` where no gradient flows into it.
    pub(crate) fn cotangent(&self, index: usize) -> Option<Value> {
        self.cotangents[index]
    }

    /// Whether the cotangent of an operand is needed.
    pub(crate) fn needs(&self, index: usize) -> bool {
        self.needs[index]
    }

    /// States the cotangent of an operand. It is ignored if it is not needed.
    pub(crate) fn set(&mut self, index: usize, gradient: Value) {
        if self.needs[index] {
            self.gradients[index] = Some(gradient);
        }
    }

    /// The rule of an op with one result, in which only the first operand has a gradient. `rule` makes the operand's
    /// cotangent from the result's, if the result has one.
    pub(crate) fn pull_back(
        &mut self,
        rule: impl FnOnce(&mut GraphBuilder, Value) -> Result<Value, OpError>,
    ) -> Result<(), OpError> {
        let Some(ct) = self.cotangents[0] else { return Ok(()) };
        let gradient = rule(self.builder, ct)?;
        self.set(0, gradient);
        Ok(())
    }

    /// States the cotangent of an operand, which is made only if it is needed.
    pub(crate) fn set_with(
        &mut self,
        index: usize,
        gradient: impl FnOnce(&mut GraphBuilder) -> Result<Value, OpError>,
    ) -> Result<(), OpError> {
        if self.needs[index] {
            self.gradients[index] = Some(gradient(self.builder)?);
        }
        Ok(())
    }

    /// The rule of an op that other ops can express: `definition` makes its results, and is differentiated.
    pub(crate) fn by_definition(
        &mut self,
        definition: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<Values, OpError>,
    ) -> Result<(), OpError> {
        let graph = self.graph_of(definition)?;
        let gradients = (self.definition)(self.builder, &graph, self.operands, self.needs, self.cotangents)?;
        self.gradients.iter_mut().zip(gradients).for_each(|(slot, gradient)| *slot = gradient);
        Ok(())
    }
}

/// One node's operands, results and operand tangents, as its `jvp` rule sees them.
pub struct JvpContext<'a> {
    /// The graph to which the rule adds nodes.
    pub builder: &'a mut GraphBuilder,
    pub(crate) operands: &'a [Value],
    pub(crate) results: &'a [Value],
    pub(crate) tangents: &'a [Option<Value>],
    pub(crate) found: &'a mut [Option<Value>],
    pub(crate) definition: PushForward,
}

impl JvpContext<'_> {
    node_values!();

    /// The rule of an op that other ops can express: `definition` makes its results, and is differentiated.
    pub(crate) fn by_definition(
        &mut self,
        definition: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<Values, OpError>,
    ) -> Result<(), OpError> {
        let graph = self.graph_of(definition)?;
        let (_, tangents) = (self.definition)(self.builder, &graph, self.operands, self.tangents)?;
        self.found.copy_from_slice(&tangents);
        Ok(())
    }

    /// The tangent of an operand; `None` for zero.
    pub(crate) fn tangent(&self, index: usize) -> Option<Value> {
        self.tangents[index]
    }

    pub(crate) fn set(&mut self, result: usize, tangent: Value) {
        self.found[result] = Some(tangent);
    }

    pub(crate) fn add(&mut self, result: usize, tangent: Value) -> Result<(), OpError> {
        self.found[result] = Some(match self.found[result] {
            Some(sum) => self.builder.add(sum, tangent)?,
            None => tangent,
        });
        Ok(())
    }

    /// The rule of an op that is linear in the operands that its [facts](crate::ops::Facts::linear) name.
    pub(crate) fn linear(&mut self, op: &(impl Primitive + Clone + Into<Op>)) -> Result<(), OpError> {
        let count = self.operands.len();
        match op.facts().linear {
            Linear::Together(operands) | Linear::OfFloats(operands) => self.linear_in(op.clone(), &operands.of(count)),
            Linear::Each(operands) => {
                operands.of(count).iter().try_for_each(|&operand| self.linear_in(op.clone(), &[operand]))
            }
            Linear::No => Err(InternalError::new(op.name(), "operands in which it is linear").into()),
        }
    }

    /// The rule of an op that is linear in the operands listed, taken together, while the others are held fixed: the op
    /// itself, applied to their tangents. It may be called several times for an op that is linear in each of several
    /// groups.
    pub(crate) fn linear_in(&mut self, op: impl Into<Op>, operands: &[usize]) -> Result<(), OpError> {
        if operands.iter().all(|&index| self.tangents[index].is_none()) {
            return Ok(());
        }
        let mut arguments: SmallVec<[Value; 4]> = SmallVec::from_slice(self.operands);
        for &index in operands {
            arguments[index] = match self.tangents[index] {
                Some(tangent) => tangent,
                None => self.builder.zeros_like(self.operands[index]),
            };
        }
        let tangents = self.builder.push(op, &arguments)?;
        for (result, tangent) in tangents.into_iter().enumerate() {
            self.add(result, tangent)?;
        }
        Ok(())
    }
}
