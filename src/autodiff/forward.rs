//! Forward mode: values and their tangents, in one walk.

use smallvec::SmallVec;

use super::forward_regions::{self, JvpCache};
use crate::ir::{Graph, GraphBuilder, InternalError, OpError, TensorType, TypeError, Value, ValueMap, Values};
use crate::ops::{Linear, Op, Primitive};

/// One node's operands, results and operand tangents, as its `jvp` rule sees them.
pub struct JvpContext<'a> {
    /// Where the rule pushes its nodes.
    pub builder: &'a mut GraphBuilder,
    operands: &'a [Value],
    results: &'a [Value],
    tangents: &'a [Option<Value>],
    found: &'a mut [Option<Value>],
}

impl JvpContext<'_> {
    /// Number of operands.
    pub fn operand_count(&self) -> usize {
        self.operands.len()
    }

    /// An operand's value.
    pub fn operand(&self, index: usize) -> Value {
        self.operands[index]
    }

    /// The type of an operand, which is that of its tangent.
    pub fn operand_type(&self, index: usize) -> &TensorType {
        self.builder.ty(self.operands[index])
    }

    /// A result's value.
    pub fn result(&self, index: usize) -> Value {
        self.results[index]
    }

    /// The tangent of an operand; `None` for zero.
    pub fn tangent(&self, index: usize) -> Option<Value> {
        self.tangents[index]
    }

    /// States the tangent of a result.
    pub fn set(&mut self, result: usize, tangent: Value) {
        self.found[result] = Some(tangent);
    }

    /// Adds to the tangent of a result.
    ///
    /// # Errors
    /// The tangents have different types.
    pub fn add(&mut self, result: usize, tangent: Value) -> Result<(), OpError> {
        self.found[result] = Some(match self.found[result] {
            Some(sum) => self.builder.add(sum, tangent)?,
            None => tangent,
        });
        Ok(())
    }

    /// The rule of an op that is linear in the operands that its [facts](crate::ops::Facts::linear) name.
    ///
    /// # Errors
    /// The op refuses the tangents, which have the operands' types; or it is not linear.
    pub fn linear(&mut self, op: &(impl Primitive + Clone + Into<Op>)) -> Result<(), OpError> {
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
    /// itself, applied to their tangents. May be called several times for an op linear in each of several groups.
    ///
    /// # Errors
    /// The op refuses the tangents, which have the operands' types.
    pub fn linear_in(&mut self, op: impl Into<Op>, operands: &[usize]) -> Result<(), OpError> {
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

    /// The error of an op without a derivative.
    pub fn not_differentiable(&self, op: &'static str) -> OpError {
        let operands = self.operands.iter().map(|&value| self.builder.ty(value).clone()).collect();
        OpError::new(op, TypeError::NotDifferentiable, operands, self.builder.origin())
    }
}

/// Copies `graph` into `builder` with `arguments` for its inputs, and pushes tangents through it: from one tangent for each
/// input (`None` for zero) to one for each output. Nothing is stored for later, so a loop needs no more memory than twice
/// that of the values themselves.
///
/// # Errors
/// A tangent reaches an op that is not differentiable.
pub fn jvp(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Value],
    tangents: &[Option<Value>],
) -> Result<(Values, Vec<Option<Value>>), OpError> {
    walk(builder, graph, arguments, tangents, &JvpCache::new(walk))
}

/// As [`jvp`], with the functions called so far.
fn walk(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Value],
    tangents: &[Option<Value>],
    cache: &JvpCache,
) -> Result<(Values, Vec<Option<Value>>), OpError> {
    let mut map = ValueMap::for_inputs(graph, arguments);
    let mut flowing: Vec<Option<Value>> = vec![None; graph.value_count()];
    for (&input, &tangent) in graph.inputs().iter().zip(tangents) {
        flowing[input.index()] = tangent.filter(|_| graph.ty(input).dtype.is_float());
    }
    for node in graph.nodes() {
        let incoming: SmallVec<[Option<Value>; 4]> =
            node.operands().iter().map(|value| flowing[value.index()]).collect();
        let is_differentiable = node.results().any(|result| graph.ty(result).dtype.is_float());
        if !is_differentiable || incoming.iter().all(Option::is_none) {
            builder.copy_node(graph, node, &mut map);
            continue;
        }
        let mut found: SmallVec<[Option<Value>; 2]> = SmallVec::from_elem(None, node.results().len());
        let operands: Values = node.operands().iter().map(|&value| map.get(value)).collect();
        let outer = builder.origin();
        if let Some(primitive) = node.op().as_primitive() {
            let results = builder.copy_node(graph, node, &mut map);
            builder.set_origin(node.origin().copied_in(outer.phase));
            primitive.jvp(&mut JvpContext {
                builder,
                operands: &operands,
                results: &results,
                tangents: &incoming,
                found: &mut found,
            })?;
        } else if let Some(op) = node.op().region_kind() {
            builder.set_origin(node.origin().copied_in(outer.phase));
            let (results, outgoing) = forward_regions::jvp(builder, op, &operands, &incoming, cache)?;
            node.results().zip(results).for_each(|(old, new)| map.set(old, new));
            found.copy_from_slice(&outgoing);
        }
        builder.set_origin(outer);
        for (result, tangent) in node.results().zip(found) {
            flowing[result.index()] = tangent.filter(|_| graph.ty(result).dtype.is_float());
        }
    }
    let outputs = graph.outputs().iter().map(|&value| map.get(value)).collect();
    Ok((outputs, graph.outputs().iter().map(|value| flowing[value.index()]).collect()))
}
