//! Cutting a joint forward-and-backward graph in two.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Tape;
use super::calls::CallCache;
use super::residual::Residual;
use crate::autodiff::keep::{NodeKept, inside_body};
use crate::ir::{DType, Definition, Graph, GraphBuilder, GraphCopy, NodeRef, OpError, PortInfo, Value, ValueMap};
use crate::ops::{Class, Effect, Op};

/// A body's forward and backward pass in one graph: the body's inputs, then one cotangent for each wanted output.
pub(super) struct Joint {
    builder: GraphBuilder,
    /// Nodes from this index on belong to the backward pass.
    boundary: usize,
    /// Number of inputs of the forward half: the body's own, and the values of it that have been kept.
    forward_inputs: usize,
    /// The body's outputs.
    outputs: Vec<Value>,
    /// For each input of the body, its cotangent if one flows.
    pub(super) gradients: Vec<Option<Value>>,
}

pub(super) struct JointHalves {
    /// Body inputs to body outputs, then the computed residuals.
    pub(super) forward: Graph,
    /// Residuals, then cotangents of the wanted outputs, to the cotangents listed in `gradients`.
    pub(super) backward: Graph,
    /// The residuals, in the order of the backward half's inputs.
    pub(super) residuals: Vec<Residual>,
    /// The same as values of the joint graph.
    pub(super) saved: Vec<Value>,
}

impl Joint {
    /// Differentiates the body of an op, its region `index`, with respect to the inputs marked active. Outputs marked
    /// wanted get a cotangent input. Values of the body that checkpoints around it have kept are not computed again:
    /// they enter as inputs after the body's own.
    pub(super) fn new(
        body: &Graph,
        index: usize,
        active: &[bool],
        wanted: &[bool],
        kept: &[NodeKept],
        calls: &CallCache,
    ) -> Result<Joint, OpError> {
        let mut builder = GraphBuilder::new(body.name());
        let map = ValueMap::for_inputs(body, &builder.inputs_like(body));
        let kept = inside_body(&mut builder, index, kept);
        let forward_inputs = builder.graph().inputs().len();
        let tape = Tape::record_onto(&mut builder, body, map, active, wanted, &kept, calls)?;
        let boundary = builder.graph().node_count();
        let cotangents: Vec<Option<Value>> = body
            .output_types()
            .zip(wanted)
            .map(|(ty, &wanted)| wanted.then(|| builder.input(ty.clone(), PortInfo::default())))
            .collect();
        let gradients = tape.pullback(&mut builder, &cotangents)?;
        let outputs = tape.outputs();
        Ok(Joint { builder, boundary, forward_inputs, outputs, gradients })
    }

    /// Gives the inputs marked a cotangent even where none flows, which is then zero.
    pub(super) fn require(&mut self, required: impl Fn(usize) -> bool) {
        for (index, gradient) in self.gradients.iter_mut().enumerate() {
            if required(index) && gradient.is_none() {
                *gradient = Some(self.builder.zeros_like(self.builder.graph().inputs()[index]));
            }
        }
    }

    /// Cuts the graph in two. `results` are the cotangents that the backward half returns; `kept` tells of each body
    /// input whether the backward pass has it anyway, so that neither it nor values cheaply computed from it need be
    /// saved. The same holds for the body's outputs from `first_kept_output` on.
    pub(super) fn split(
        &self,
        results: &[Value],
        kept: impl Fn(usize) -> bool,
        first_kept_output: usize,
    ) -> JointHalves {
        let graph = self.builder.graph();
        let kept: Vec<bool> = (0..self.forward_inputs).map(kept).collect();
        let kept = &kept[..];
        let live = self.live_backward_nodes(results);
        let is_forward = |value: Value| match graph.definition(value) {
            Definition::Input(index) => (index as usize) < self.forward_inputs,
            Definition::Result(node, _) => node.index() < self.boundary,
        };
        let mut read: FxHashSet<Value> = FxHashSet::default();
        for node in graph.nodes().skip(self.boundary).filter(|node| live[node.id.index()]) {
            read.extend(node.operands().iter().copied().filter(|&value| is_forward(value)));
        }
        read.extend(results.iter().copied().filter(|&value| is_forward(value)));
        let recomputed = self.choose_recomputation(&mut read, kept);

        let mut saved: Vec<Value> = read.into_iter().collect();
        saved.sort_unstable();
        let mut outputs = self.outputs.clone();
        let kept_outputs: FxHashMap<Value, usize> =
            self.outputs.iter().enumerate().skip(first_kept_output).map(|(index, &value)| (value, index)).collect();
        let residuals = saved
            .iter()
            .map(|&value| match (graph.definition(value), kept_outputs.get(&value)) {
                (Definition::Input(index), _) if kept[index as usize] => Residual::Input(index as usize),
                (_, Some(&index)) => Residual::Output(index),
                _ => {
                    outputs.push(value);
                    Residual::Computed(outputs.len() - 1 - self.outputs.len())
                }
            })
            .collect();
        JointHalves {
            forward: self
                .extract(&graph.inputs()[..self.forward_inputs], &outputs, |node| node.id.index() < self.boundary),
            backward: {
                let inputs: Vec<Value> = saved.iter().chain(&graph.inputs()[self.forward_inputs..]).copied().collect();
                self.extract(&inputs, results, |node| {
                    let index = node.id.index();
                    recomputed.contains(&index) || (index >= self.boundary && live[index])
                })
            },
            residuals,
            saved,
        }
    }

    /// For each of some values of the forward half, whether it depends on the first `input_count` inputs alone; and a
    /// graph that computes those that do from these inputs.
    pub(super) fn part_of_inputs(&self, input_count: usize, values: &[Value]) -> (Vec<bool>, Graph) {
        let graph = self.builder.graph();
        let mut known = vec![false; graph.value_count()];
        graph.inputs()[..input_count].iter().for_each(|input| known[input.index()] = true);
        for node in graph.nodes().take(self.boundary) {
            let all = node.operands().iter().all(|operand| known[operand.index()]);
            node.results().for_each(|result| known[result.index()] = all && node.op().facts().effect == Effect::None);
        }
        let chosen: Vec<bool> = values.iter().map(|value| known[value.index()]).collect();
        let mut live = vec![false; graph.value_count()];
        let outputs: Vec<Value> = values.iter().copied().filter(|value| known[value.index()]).collect();
        outputs.iter().for_each(|value| live[value.index()] = true);
        for node in graph.nodes().take(self.boundary).collect::<Vec<_>>().into_iter().rev() {
            if node.results().any(|result| live[result.index()]) {
                node.operands().iter().for_each(|operand| live[operand.index()] = true);
            }
        }
        let is_live = |node: NodeRef<'_>| node.results().any(|result| live[result.index()]);
        let part = self
            .extract(&graph.inputs()[..input_count], &outputs, |node| node.id.index() < self.boundary && is_live(node));
        (chosen, part)
    }

    /// Backward nodes that the results depend on.
    fn live_backward_nodes(&self, results: &[Value]) -> Vec<bool> {
        let mut live = vec![false; self.builder.graph().node_count()];
        let mark = |value: Value, live: &mut Vec<bool>| {
            if let Definition::Result(node, _) = self.builder.graph().definition(value) {
                live[node.index()] = true;
            }
        };
        results.iter().for_each(|&value| mark(value, &mut live));
        for node in self.builder.graph().nodes().rev() {
            if node.id.index() >= self.boundary && live[node.id.index()] {
                node.operands().iter().for_each(|&value| mark(value, &mut live));
            }
        }
        live
    }

    /// Takes values out of `read` that the backward half can compute again from other residuals at next to no cost, and
    /// returns the nodes that do so. A broadcast is always undone (its operand is smaller), an elementwise op without
    /// transcendental functions if all its operands are at hand.
    fn choose_recomputation(&self, read: &mut FxHashSet<Value>, kept: &[bool]) -> FxHashSet<usize> {
        let graph = self.builder.graph();
        let mut recomputed = FxHashSet::default();
        for node in graph.nodes().take(self.boundary).rev() {
            if node.results().len() != 1 || !read.contains(&node.result()) {
                continue;
            }
            let facts = node.op().facts();
            let widens = |from: DType, to: DType| from != DType::Pred && from.bit_count() < to.bit_count();
            let shrinks = facts.class == Class::Broadcast
                || matches!(node.op(), Op::Convert(to) if widens(graph.ty(node.operands()[0]).dtype, to.0));
            let mut chain = Vec::new();
            let at_hand = |value: Value, chain: &mut Vec<usize>| self.at_hand(value, read, kept, chain, 0);
            if shrinks {
                read.remove(&node.result());
                read.insert(node.operands()[0]);
                recomputed.insert(node.id.index());
            } else if facts.is_cheap && node.operands().iter().all(|&value| at_hand(value, &mut chain)) {
                read.remove(&node.result());
                recomputed.insert(node.id.index());
                recomputed.extend(chain);
                // Inputs that are at hand are residuals only if something reads them.
                for &value in node.operands() {
                    self.read_inputs(value, read, &recomputed);
                }
            }
        }
        recomputed
    }

    /// Whether the backward half has `value` without saving anything more; collects the nodes it must copy for that.
    fn at_hand(
        &self,
        value: Value,
        read: &FxHashSet<Value>,
        kept: &[bool],
        chain: &mut Vec<usize>,
        depth: usize,
    ) -> bool {
        if read.contains(&value) {
            return true;
        }
        match self.builder.graph().definition(value) {
            Definition::Input(index) => kept.get(index as usize).copied().unwrap_or(false),
            Definition::Result(node, _) => {
                let node = self.builder.graph().node(node);
                // The bound keeps the search linear; longer chains of cheap ops do not occur between residuals.
                let found = depth < 4
                    && node.op().facts().is_cheap
                    && node.operands().iter().all(|&operand| self.at_hand(operand, read, kept, chain, depth + 1));
                if found {
                    chain.push(node.id.index());
                }
                found
            }
        }
    }

    /// Adds the body inputs that recomputing `value` reads.
    fn read_inputs(&self, value: Value, read: &mut FxHashSet<Value>, recomputed: &FxHashSet<usize>) {
        match self.builder.graph().definition(value) {
            Definition::Input(_) => {
                read.insert(value);
            }
            Definition::Result(node, _) if recomputed.contains(&node.index()) && !read.contains(&value) => {
                for &operand in self.builder.graph().node(node).operands() {
                    self.read_inputs(operand, read, recomputed);
                }
            }
            Definition::Result(..) => {}
        }
    }

    fn extract(&self, inputs: &[Value], outputs: &[Value], keep: impl Fn(NodeRef<'_>) -> bool) -> Graph {
        let mut copy = GraphCopy::of_body(self.builder.graph(), inputs.iter().copied());
        for node in self.builder.graph().nodes().filter(|&node| keep(node)) {
            copy.node(node);
        }
        copy.finish_body(outputs.iter().copied())
    }
}
