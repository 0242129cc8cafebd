//! The two walks of reverse mode: recording a graph, and pulling cotangents back through it.

mod calls;
mod halves;
mod regions;
mod residual;
mod split;

pub use halves::Halves;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::activity::{activity, demand};
use super::error::GradientError;
use super::keep::{self, Kept};
use crate::ir::{Graph, GraphBuilder, InternalError, Node, OpError, Phase, PortInfo, Value, ValueMap, Values};
use crate::ops::VjpContext;
use calls::CallCache;
use regions::{Recording, RegionTape};

/// A graph that has been copied into a builder in such a way that cotangents can be pulled back through it.
#[derive(Debug)]
pub struct Tape<'g> {
    graph: &'g Graph,
    /// The value in the builder for each value of `graph`.
    map: ValueMap,
    /// For each value of `graph`, whether it depends differentiably on an active input.
    active: Vec<bool>,
    /// The tapes of ops with regions.
    regions: FxHashMap<Node, RegionTape<'g>>,
    calls: CallCache,
}

impl<'g> Tape<'g> {
    /// Copies `graph` into `builder` with `arguments` for its inputs. Cotangents will be asked of the inputs marked
    /// active, and may be given for the outputs marked wanted.
    ///
    /// # Errors
    /// An op inside a region refuses to be differentiated.
    pub fn record(
        builder: &mut GraphBuilder,
        graph: &'g Graph,
        arguments: &[Value],
        active_inputs: &[bool],
        wanted_outputs: &[bool],
    ) -> Result<Tape<'g>, OpError> {
        let map = ValueMap::for_inputs(graph, arguments);
        Tape::record_onto(builder, graph, map, active_inputs, wanted_outputs, &[], &CallCache::default())
    }

    /// As [`Tape::record`], but `map` holds the inputs already, and values that checkpoints have kept are not computed
    /// again.
    fn record_onto(
        builder: &mut GraphBuilder,
        graph: &'g Graph,
        mut map: ValueMap,
        active_inputs: &[bool],
        wanted_outputs: &[bool],
        kept: &[Kept],
        calls: &CallCache,
    ) -> Result<Tape<'g>, OpError> {
        for kept in kept {
            kept.fill_slots(builder, &mut map)?;
        }
        let active = activity(graph, active_inputs);
        let wanted = demand(graph, &active, wanted_outputs);
        let mut tape = Tape { graph, map, active, regions: FxHashMap::default(), calls: calls.clone() };
        for node in graph.nodes() {
            let differentiated = node.results().any(|result| wanted[result.index()]);
            let Some(op) = node.op().region_kind().filter(|_| differentiated) else {
                if !node.results().all(|result| tape.map.find(result).is_some()) {
                    let kept = keep::at_node(kept, node.id);
                    keep::copy_node(builder, graph, node, &mut tape.map, &kept, None, &calls.copies)?;
                }
                continue;
            };
            // Even if its results are at hand, an op with regions runs again for the values that its backward pass
            // needs.
            let operands = tape.map.operands(node);
            let active: SmallVec<[bool; 8]> = node.operands().iter().map(|value| tape.active[value.index()]).collect();
            let wanted: SmallVec<[bool; 8]> = node.results().map(|result| wanted[result.index()]).collect();
            let kept = keep::at_node(kept, node.id);
            let outer = builder.origin();
            builder.set_origin(node.origin().copied_in(outer.phase));
            let recording = Recording { operands: &operands, active: &active, wanted: &wanted, kept: &kept, calls };
            let (results, region) = regions::record(builder, op, &recording)?;
            builder.set_origin(outer);
            for (old, new) in node.results().zip(results) {
                if tape.map.find(old).is_none() {
                    tape.map.set(old, new);
                }
            }
            tape.regions.insert(node.id, region);
        }
        Ok(tape)
    }

    /// The values in the builder of the graph's outputs.
    pub fn outputs(&self) -> Vec<Value> {
        self.graph.outputs().iter().map(|&value| self.map.get(value)).collect()
    }

    /// Walks backwards: from one cotangent for each output (`None` for zero) to one for each input.
    ///
    /// # Errors
    /// A cotangent reaches an op that is not differentiable.
    pub fn pullback(
        &self,
        builder: &mut GraphBuilder,
        output_cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>, OpError> {
        let graph = self.graph;
        let mut cotangents: Vec<Option<Value>> = vec![None; graph.value_count()];
        let outer = builder.origin();
        for (&output, &cotangent) in graph.outputs().iter().zip(output_cotangents) {
            if let Some(cotangent) = cotangent
                && self.active[output.index()]
            {
                accumulate(builder, &mut cotangents[output.index()], cotangent)?;
            }
        }
        for node in graph.nodes().rev() {
            let incoming: SmallVec<[Option<Value>; 2]> =
                node.results().map(|result| cotangents[result.index()]).collect();
            if incoming.iter().all(Option::is_none) {
                continue;
            }
            builder.set_origin(node.origin().in_phase(Phase::Backward));
            let operands = self.map.operands(node);
            let needs: SmallVec<[bool; 4]> = node.operands().iter().map(|value| self.active[value.index()]).collect();
            let mut gradients: SmallVec<[Option<Value>; 4]> = SmallVec::from_elem(None, operands.len());
            match node.op().as_primitive() {
                Some(primitive) => {
                    let results: Values = node.results().map(|value| self.map.get(value)).collect();
                    primitive.vjp(&mut VjpContext {
                        builder,
                        operands: &operands,
                        results: &results,
                        cotangents: &incoming,
                        needs: &needs,
                        gradients: &mut gradients,
                        definition: pull_back,
                    })?;
                }
                None => {
                    let region = self.regions.get(&node.id).ok_or_else(|| {
                        InternalError::new(node.op().name(), "a record of its forward pass").at(node.origin())
                    })?;
                    let found = regions::pullback(builder, region, &operands, &needs, &incoming, &self.calls)?;
                    gradients.iter_mut().zip(found).for_each(|(slot, gradient)| *slot = gradient);
                }
            }
            for (index, operand) in node.operands().iter().enumerate() {
                if let Some(gradient) = gradients[index]
                    && needs[index]
                {
                    accumulate(builder, &mut cotangents[operand.index()], gradient)?;
                }
            }
        }
        builder.set_origin(outer);
        Ok(graph.inputs().iter().map(|input| cotangents[input.index()]).collect())
    }
}

/// Copies `graph` into `builder` and pulls cotangents back through it. The rules of ops with a definition call it.
pub(super) fn pull_back(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Value],
    active: &[bool],
    output_cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>, OpError> {
    let wanted: SmallVec<[bool; 4]> = output_cotangents.iter().map(Option::is_some).collect();
    Tape::record(builder, graph, arguments, active, &wanted)?.pullback(builder, output_cotangents)
}

fn accumulate(builder: &mut GraphBuilder, slot: &mut Option<Value>, cotangent: Value) -> Result<(), OpError> {
    *slot = Some(match *slot {
        Some(sum) => builder.add(sum, cotangent)?,
        None => cotangent,
    });
    Ok(())
}

/// A graph that returns the outputs of `graph` followed by the gradients of its first output, a floating-point scalar,
/// with respect to the inputs listed.
///
/// # Errors
/// The first output is no floating-point scalar, or a gradient would have to pass an op that has none.
pub fn value_and_grad(graph: &Graph, inputs: &[usize]) -> Result<Graph, GradientError> {
    let mut builder = GraphBuilder::new(format!("grad_{}", graph.name()));
    let arguments: Vec<Value> =
        graph.input_types().zip(graph.input_info()).map(|(ty, info)| builder.input(ty.clone(), info.clone())).collect();
    let mut active = vec![false; arguments.len()];
    for &input in inputs {
        let Some(slot) = active.get_mut(input) else {
            let (graph, count) = (graph.name().to_owned(), arguments.len());
            return Err(GradientError::NoInput { input, graph, count });
        };
        *slot = true;
    }
    let (mut outputs, gradients) = gradient_of_first(&mut builder, graph, &arguments, &active)?;
    let mut info = graph.output_info().to_vec();
    for &input in inputs {
        let ty = graph.ty(graph.inputs()[input]);
        outputs.push(gradients[input].unwrap_or_else(|| builder.splat(ty.clone(), 0.0)));
        let port = &graph.input_info()[input];
        info.push(PortInfo { path: format!("grad.{}", port.path).into(), ..port.clone() });
    }
    Ok(builder.finish(outputs, info))
}

/// Records `graph` and pulls 1 back from its first output; returns all outputs and the inputs' cotangents.
pub(crate) fn gradient_of_first(
    builder: &mut GraphBuilder,
    graph: &Graph,
    arguments: &[Value],
    active: &[bool],
) -> Result<(Vec<Value>, Vec<Option<Value>>), GradientError> {
    let scalar = graph.output_types().next().filter(|ty| ty.rank() == 0 && ty.dtype.is_float());
    let Some(scalar) = scalar else {
        let found = graph.output_types().next().map_or("nothing".to_owned(), ToString::to_string);
        return Err(GradientError::NotScalar { found, origin: builder.origin() });
    };
    let mut wanted = vec![false; graph.outputs().len()];
    wanted[0] = true;
    let tape = Tape::record(builder, graph, arguments, active, &wanted)?;
    let one = builder.splat(scalar.clone(), 1.0);
    let mut seeds = vec![None; graph.outputs().len()];
    seeds[0] = Some(one);
    let gradients = tape.pullback(builder, &seeds)?;
    Ok((tape.outputs(), gradients))
}
