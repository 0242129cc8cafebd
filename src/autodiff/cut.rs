//! What the early half of a graph keeps for its late half: the fewest bytes, as a smallest cut.
//!
//! The graph is one whose nodes can each be in either half as a whole (`weights.rs` sees to that). The early half
//! returns some outputs, the late half the others.
//! - What an early output depends on is computed early. What of it is cheap may be computed again late.
//! - What only late outputs depend on is computed late if it is work, such as a dot: that is what a late half is for.
//!   What moves and folds elements may be on either side: a sum over tokens is made early, rather than all tokens kept.
//! - A barrier's results have nothing to do with each other, so each is taken for itself. What is computed again behind
//!   a barrier is behind one in the late half too.

use smallvec::SmallVec;

use super::max_flow::{Network, UNBOUNDED};
use crate::ir::{Definition, Graph, NodeRef, Value};
use crate::ops::{Call, Class, Effect, Op, Scan};

/// What an input of a graph is for its halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// Both halves can have it. The late half pays its bytes this many times if it reads it.
    Early {
        /// Zero for what lies there anyway.
        times: usize,
    },
    /// What an iteration gets from the one before, in the early half: the late half has what the early half returns.
    Carry,
    /// The late half alone can have it.
    Late,
    /// What an iteration gets from the one before, in the late half.
    LateCarry,
}

impl Input {
    /// Whether the early half can have it.
    pub(super) fn is_early(self) -> bool {
        matches!(self, Input::Early { .. } | Input::Carry)
    }
}

/// Which half returns an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Output {
    Early,
    Late,
    /// Nobody reads it.
    Unread,
}

/// A graph that is to be cut.
pub(super) struct Task<'g> {
    pub(super) graph: &'g Graph,
    pub(super) outputs: &'g [Output],
    pub(super) inputs: &'g [Input],
    /// How often the graph runs, each time keeping anew.
    pub(super) times: usize,
}

/// Which values each output needs, by when they are needed.
pub(super) struct Needs {
    /// For early outputs, and for what happens besides giving results.
    pub(super) early: Vec<bool>,
    /// For late outputs.
    pub(super) late: Vec<bool>,
}

/// The outputs that a half returns, in order.
pub(super) fn returned<'g>(graph: &'g Graph, outputs: &'g [Output], half: Output) -> impl Iterator<Item = Value> + 'g {
    graph.outputs().iter().zip(outputs).filter(move |(_, output)| **output == half).map(|(&value, _)| value)
}

/// How far needs are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A node needs all its operands.
    AtNodes,
    /// A loop or a call needs what its body needs for the results in question.
    IntoBodies,
}

impl Needs {
    pub(super) fn of(graph: &Graph, outputs: &[Output], look: Look) -> Needs {
        let returned = |half: Output| -> Vec<bool> { outputs.iter().map(|&output| output == half).collect() };
        let late = needed(graph, &returned(Output::Late), look, |_| false);
        // What late outputs depend on happens where it is computed.
        let early = needed(graph, &returned(Output::Early), look, |node| happens_early(node, &late));
        Needs { early, late }
    }
}

/// Whether a node has to be in the early half for what it does besides giving results.
pub(super) fn happens_early(node: NodeRef<'_>, late: &[bool]) -> bool {
    node.op().has_side_effect() && !node.results().any(|result| late[result.index()])
}

/// Which values the outputs marked depend on, and the nodes that are needed anyway.
fn needed(graph: &Graph, outputs: &[bool], look: Look, anyway: impl Fn(NodeRef<'_>) -> bool) -> Vec<bool> {
    let mut live = vec![false; graph.value_count()];
    let wanted = graph.outputs().iter().zip(outputs).filter(|(_, wanted)| **wanted);
    wanted.for_each(|(output, _)| live[output.index()] = true);
    mark_needed(graph, &mut live, look, anyway);
    live
}

/// Marks what the values marked depend on, and the nodes that are needed anyway.
pub(super) fn mark_needed(graph: &Graph, live: &mut [bool], look: Look, anyway: impl Fn(NodeRef<'_>) -> bool) {
    for node in graph.nodes().rev() {
        let results: SmallVec<[bool; 4]> = node.results().map(|result| live[result.index()]).collect();
        if results.contains(&true) || anyway(node) {
            let operands = needed_operands(node, &results, look);
            node.operands().iter().zip(operands).for_each(|(operand, needed)| live[operand.index()] |= needed);
        }
    }
}

/// Which operands a node needs for the results marked.
fn needed_operands(node: NodeRef<'_>, results: &[bool], look: Look) -> SmallVec<[bool; 4]> {
    match node.op() {
        Op::Barrier(_) => results.into(),
        _ if look == Look::AtNodes => SmallVec::from_elem(true, node.operands().len()),
        Op::Scan(scan) if !node.op().has_side_effect() => {
            let (outputs, mut inputs) = needed_in_loop(scan, results);
            for carry in 0..scan.carry_count {
                inputs[scan.invariant_count + carry] |= outputs[carry];
            }
            inputs.into()
        }
        Op::Call(Call { function }) if !node.op().has_side_effect() => {
            let live = needed(function, results, Look::IntoBodies, |_| false);
            function.inputs().iter().map(|input| live[input.index()]).collect()
        }
        _ => SmallVec::from_elem(true, node.operands().len()),
    }
}

/// Which outputs and inputs of a loop's body its results marked depend on, from iteration to iteration.
pub(super) fn needed_in_loop(scan: &Scan, results: &[bool]) -> (Vec<bool>, Vec<bool>) {
    let mut outputs = results.to_vec();
    loop {
        let live = needed(&scan.body, &outputs, Look::IntoBodies, |_| false);
        let inputs: Vec<bool> = scan.body.inputs().iter().map(|input| live[input.index()]).collect();
        let mut settled = true;
        for carry in 0..scan.carry_count {
            settled &= outputs[carry] || !inputs[scan.invariant_count + carry];
            outputs[carry] |= inputs[scan.invariant_count + carry];
        }
        if settled {
            return (outputs, inputs);
        }
    }
}

/// Whether a node is what the late half is for, if no early output needs it.
pub(super) fn is_work(op: &Op) -> bool {
    let facts = op.facts();
    match facts.class {
        // What is fused, and what folds, is read from memory once, as what it would be made of later.
        Class::Source | Class::Reshape | Class::Broadcast | Class::Elementwise | Class::Movement | Class::Fold => {
            facts.effect == Effect::Side
        }
        Class::Identity => !facts.is_cheap && !matches!(op, Op::Barrier(_)),
        Class::Kernel => true,
    }
}

/// Whether the late half may compute again what the early half does.
fn is_repeatable(op: &Op) -> bool {
    let facts = op.facts();
    matches!(op, Op::Barrier(_)) || (facts.is_cheap && facts.effect == Effect::None)
}

/// What the late half reads, in the order of their definitions: inputs, and values that the early half computes.
pub(super) fn kept(task: &Task<'_>, needs: &Needs) -> Vec<Value> {
    let graph = task.graph;
    // Where bytes are equal, the fewest of these: values kept besides inputs (2), nodes computed twice (1), nodes moved
    // to the early half (1).
    let unit = 4 * (graph.value_count() + graph.node_count() + 1) as u128;
    let mut network = Network::new();
    // The vertex of what makes each value, and of the value where the late half has it.
    let mut made = vec![None; graph.value_count()];
    let mut had = vec![None; graph.value_count()];
    let bytes = |value: Value| graph.ty(value).byte_count() as u128;
    for (&value, input) in graph.inputs().iter().zip(task.inputs) {
        if !needs.late[value.index()] {
            continue;
        }
        let (maker, value) = (network.vertex(), value);
        made[value.index()] = Some(maker);
        let price = match *input {
            Input::Early { times } => bytes(value) * times as u128 * unit,
            Input::Carry => bytes(value) * task.times as u128 * unit + 2,
            Input::Late | Input::LateCarry => {
                network.arc(maker, Network::SINK, UNBOUNDED);
                continue;
            }
        };
        let vertex = network.vertex();
        had[value.index()] = Some(vertex);
        network.arc(Network::SOURCE, maker, UNBOUNDED);
        network.arc(maker, vertex, price);
    }
    for node in graph.nodes() {
        let is_barrier = matches!(node.op(), Op::Barrier(_));
        let mut maker = None;
        for (index, result) in node.results().enumerate() {
            if !needs.late[result.index()] {
                continue;
            }
            if maker.is_none() || is_barrier {
                let vertex = network.vertex();
                maker = Some(vertex);
                let operands = if is_barrier { &node.operands()[index..=index] } else { node.operands() };
                let early = match is_barrier {
                    true => needs.early[result.index()],
                    false => node.results().any(|result| needs.early[result.index()]),
                };
                place(&mut network, node, vertex, early);
                for operand in operands {
                    if let Some(had) = had[operand.index()] {
                        network.arc(had, vertex, UNBOUNDED);
                    }
                    // What is moved to the early half needs its operands there.
                    let is_there = needs.early[operand.index()];
                    if let Some(made) = made[operand.index()].filter(|_| !early && !is_there) {
                        network.arc(vertex, made, UNBOUNDED);
                    }
                }
            }
            let Some(maker) = maker else { continue };
            made[result.index()] = Some(maker);
            let vertex = network.vertex();
            had[result.index()] = Some(vertex);
            network.arc(maker, vertex, bytes(result) * task.times as u128 * unit + 2);
        }
    }
    let late_outputs = || returned(graph, task.outputs, Output::Late);
    for had in late_outputs().filter_map(|value| had[value.index()]) {
        network.arc(had, Network::SINK, UNBOUNDED);
    }
    let near = network.cut();
    let is_early = |value: Value| made[value.index()].is_some_and(|maker| near[maker]);
    // Of what is early, what the late half reads.
    let mut wanted = vec![false; graph.value_count()];
    late_outputs().for_each(|value| wanted[value.index()] = true);
    for node in graph.nodes().rev() {
        let results: SmallVec<[bool; 4]> =
            node.results().map(|result| wanted[result.index()] && !is_early(result)).collect();
        if results.contains(&true) {
            let operands = needed_operands(node, &results, Look::AtNodes);
            node.operands().iter().zip(operands).for_each(|(operand, needed)| wanted[operand.index()] |= needed);
        }
    }
    graph
        .values()
        .filter(|&value| {
            let is_input = matches!(graph.definition(value), Definition::Input(_));
            wanted[value.index()] && (is_input || is_early(value))
        })
        .collect()
}

/// Where the maker of a value that the late half needs may be.
fn place(network: &mut Network, node: NodeRef<'_>, maker: usize, early: bool) {
    let op = node.op();
    let is_free = matches!(op, Op::Barrier(_)) || op.facts().class == Class::Source;
    match (early, if early { is_repeatable(op) } else { !is_work(op) }) {
        (true, false) => network.arc(Network::SOURCE, maker, UNBOUNDED),
        (true, true) if is_free => {}
        (true, true) => network.arc(Network::SOURCE, maker, 1),
        (false, false) => network.arc(maker, Network::SINK, UNBOUNDED),
        (false, true) => network.arc(maker, Network::SINK, 1),
    }
}
