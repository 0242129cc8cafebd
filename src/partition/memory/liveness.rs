//! How much of a graph's values is live at once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::LiveValue;
use crate::ir::{Graph, NodeRef, Value};
use crate::ops::{Edge, Op, Port};

/// Where an input of a graph lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In memory that is counted elsewhere.
    Elsewhere,
    /// In a buffer of the graph's own, from the start: a carry.
    Owned,
    /// In a buffer of the graph's own, from its first use: a slice of a stacked value.
    Sliced,
}

/// The most that is live, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peak {
    pub(super) bytes: u64,
    /// The node that runs then; none for a graph without nodes.
    node: Option<usize>,
}

/// The peaks of bodies met so far, by address and by what of their ports is counted elsewhere.
#[derive(Default)]
pub(super) struct Liveness {
    known: FxHashMap<(*const Graph, Vec<Place>, Vec<bool>), Peak>,
}

/// A body that runs within a node, with where its ports lie.
struct Inner<'g> {
    body: &'g Graph,
    inputs: Vec<Place>,
    elsewhere: Vec<bool>,
}

impl Liveness {
    /// The most bytes that values take which are not `elsewhere`.
    pub(super) fn peak(
        &mut self,
        graph: &Graph,
        inputs: &[Place],
        elsewhere: &[bool],
        aliases: &[(usize, usize)],
    ) -> Peak {
        let plan = Plan::of(graph, inputs, elsewhere, aliases);
        let mut peak = Peak::default();
        plan.run(|node, live| {
            let inner = plan.inner(node).iter().map(|inner| self.inner_peak(inner).bytes).max().unwrap_or(0);
            if live + inner >= peak.bytes {
                peak = Peak { bytes: live + inner, node: Some(node.id.index()) };
            }
        });
        // A graph without nodes holds what it was given.
        if peak.node.is_none() {
            peak.bytes = plan.at_start();
        }
        peak
    }

    fn inner_peak(&mut self, inner: &Inner<'_>) -> Peak {
        let key = (std::ptr::from_ref(inner.body), inner.inputs.clone(), inner.elsewhere.clone());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let peak = self.peak(inner.body, &inner.inputs, &inner.elsewhere, &[]);
        self.known.insert(key, peak);
        peak
    }

    /// The values that are live at a peak.
    pub(super) fn live_at(
        &mut self,
        graph: &Graph,
        inputs: &[Place],
        elsewhere: &[bool],
        aliases: &[(usize, usize)],
        peak: &Peak,
    ) -> Vec<LiveValue> {
        let plan = Plan::of(graph, inputs, elsewhere, aliases);
        let describe = |value: Value| {
            let bytes = plan.bytes[value.index()];
            match graph.defining_node(value) {
                Some(node) => LiveValue::made_by(node.op().name(), bytes, node.origin()),
                None => LiveValue { name: "a loop's carry or slice".to_owned(), bytes, source: None },
            }
        };
        let Some(at) = peak.node else {
            return graph.inputs().iter().map(|&input| describe(input)).filter(|value| value.bytes > 0).collect();
        };
        let mut found: Vec<LiveValue> = graph.values().filter(|&value| plan.is_live(value, at)).map(describe).collect();
        let inner = graph.nodes().nth(at).map(|node| plan.inner(node)).unwrap_or_default();
        let largest = inner.iter().max_by_key(|inner| self.inner_peak(inner).bytes);
        if let Some(inner) = largest {
            let peak = self.inner_peak(inner);
            found.extend(self.live_at(inner.body, &inner.inputs, &inner.elsewhere, &[], &peak));
        }
        found
    }
}

/// When each value of a graph has a buffer.
struct Plan<'g> {
    graph: &'g Graph,
    /// For each value, the bytes of its own buffer: none if it is counted elsewhere or has none.
    bytes: Vec<u64>,
    /// For each value, the node from which it is live, and the last node at which it is.
    span: Vec<(usize, usize)>,
}

impl<'g> Plan<'g> {
    fn of(graph: &'g Graph, inputs: &[Place], elsewhere: &[bool], aliases: &[(usize, usize)]) -> Plan<'g> {
        let end = graph.node_count();
        let computed = computed_in_readers(graph);
        let mut last = vec![0; graph.value_count()];
        let mut bytes: Vec<u64> = vec![0; graph.value_count()];
        for node in graph.nodes() {
            for result in node.results().filter(|result| !computed[result.index()]) {
                bytes[result.index()] = graph.ty(result).byte_count() as u64;
            }
        }
        for (&input, place) in graph.inputs().iter().zip(inputs) {
            let owned = *place != Place::Elsewhere;
            bytes[input.index()] = if owned { graph.ty(input).byte_count() as u64 } else { 0 };
        }
        // What an output is made of without a copy lies where the output does.
        for (&output, _) in graph.outputs().iter().zip(elsewhere).filter(|(_, elsewhere)| **elsewhere) {
            bytes[root(graph, output).index()] = 0;
        }
        graph.outputs().iter().for_each(|output| last[output.index()] = end);
        let mut first_use = vec![end; graph.value_count()];
        for node in graph.nodes().rev() {
            let index = node.id.index();
            let within_readers = node.results().all(|result| computed[result.index()]);
            let read_until = match node.results().map(|result| last[result.index()]).max() {
                Some(last) if within_readers => last.max(index),
                _ => index,
            };
            for operand in node.operands() {
                last[operand.index()] = last[operand.index()].max(read_until);
                first_use[operand.index()] = index;
            }
        }
        // An output in a donated argument waits until the argument has been read for the last time.
        for &(output, input) in aliases {
            let (Some(&output), Some(&input)) = (graph.outputs().get(output), graph.inputs().get(input)) else {
                continue;
            };
            if let Some(node) = graph.defining_node(output)
                && node.id.index() < last[input.index()]
            {
                bytes[output.index()] = graph.ty(output).byte_count() as u64;
                last[output.index()] = last[input.index()];
            }
        }
        let mut span = vec![(0, 0); graph.value_count()];
        for node in graph.nodes() {
            let index = node.id.index();
            // What nobody reads, as the last carry of a loop may be, has its buffer all the same.
            node.results().for_each(|result| span[result.index()] = (index, last[result.index()].max(index)));
        }
        for (&input, place) in graph.inputs().iter().zip(inputs) {
            let from = if *place == Place::Sliced { first_use[input.index()] } else { 0 };
            span[input.index()] = (from, last[input.index()]);
        }
        let mut plan = Plan { graph, bytes, span };
        plan.share();
        plan
    }

    /// Lets ops that can work in place take over what they are the last to read, and loops the buffers of their first
    /// carries.
    fn share(&mut self) {
        let graph = self.graph;
        for node in graph.nodes() {
            carries(node).for_each(|(operand, result)| {
                self.take_over(node, operand, result);
            });
            let taken = match node.op() {
                Op::DynamicUpdateSlice(_) | Op::Scatter(_) => &node.operands()[..1],
                op if is_elementwise(op) => node.operands(),
                _ => continue,
            };
            // One result has room in one operand.
            let _ = taken.iter().any(|&operand| self.take_over(node, operand, node.result()));
        }
    }

    /// Ends an operand before the node, if its buffer can be the result's.
    fn take_over(&mut self, node: NodeRef<'_>, operand: Value, result: Value) -> bool {
        let operand = root(self.graph, operand);
        let (index, size) = (node.id.index(), self.bytes[result.index()]);
        let (from, until) = self.span[operand.index()];
        let fits = size > 0 && self.bytes[operand.index()] == size;
        let is_older = from < index || self.graph.defining_node(operand).is_none();
        if !fits || until != index || !is_older {
            return false;
        }
        // What ends before the first node is never live.
        self.span[operand.index()] = if index == 0 { (1, 0) } else { (from, index - 1) };
        true
    }

    fn is_live(&self, value: Value, at: usize) -> bool {
        let (from, until) = self.span[value.index()];
        // A loop's results are the carries of its body, which are counted there, until it is through.
        let in_body = self
            .graph
            .defining_node(value)
            .is_some_and(|node| node.id.index() == at && carries(node).any(|(_, carry)| carry == value));
        self.bytes[value.index()] > 0 && (from..=until).contains(&at) && !in_body
    }

    /// Bytes of the inputs that are live from the start.
    fn at_start(&self) -> u64 {
        self.graph.inputs().iter().map(|input| self.bytes[input.index()]).sum()
    }

    /// Calls `visit` with each node and the bytes that are live while it runs, without those of its bodies.
    fn run(&self, mut visit: impl FnMut(NodeRef<'g>, u64)) {
        let count = self.graph.node_count();
        let (mut made, mut freed) = (vec![0u64; count + 1], vec![0u64; count + 2]);
        for value in self.graph.values() {
            let (from, until) = self.span[value.index()];
            // A value may end where it starts: it is live at one node.
            if from <= until && from < count {
                made[from] += self.bytes[value.index()];
                freed[until + 1] += self.bytes[value.index()];
            }
        }
        let mut live = 0;
        for node in self.graph.nodes() {
            let index = node.id.index();
            live = live + made[index] - freed[index];
            let carried: u64 = carries(node).map(|(_, carry)| self.bytes[carry.index()]).sum();
            visit(node, live - carried);
        }
    }

    /// The bodies that run within a node, one after the other.
    fn inner(&self, node: NodeRef<'g>) -> Vec<Inner<'g>> {
        let (edges, results): (Vec<Edge>, Vec<Value>) = (node.op().edges(), node.results().collect());
        let inner = |(region, body): (usize, &'g Arc<Graph>)| {
            let inputs = vec![Place::Elsewhere; body.inputs().len()];
            let mut inner = Inner { body, inputs, elsewhere: vec![true; body.outputs().len()] };
            for edge in &edges {
                // Carries lie where the loop's results do.
                let carry = edge.result().filter(|_| edge.is_carried());
                let is_owned = carry.is_some_and(|result| self.bytes[results[result].index()] > 0);
                let place = match edge.sliced {
                    true => Place::Sliced,
                    false if is_owned => Place::Owned,
                    false => Place::Elsewhere,
                };
                let within = |port: &&Port| port.region == region;
                edge.inputs.iter().filter(within).for_each(|port| inner.inputs[port.index] = place);
                let elsewhere = place == Place::Elsewhere;
                edge.outputs.iter().filter(within).for_each(|port| inner.elsewhere[port.index] = elsewhere);
            }
            inner
        };
        node.op().running_regions().map(inner).collect()
    }
}

/// The carries of a loop: what each begins with, and the result that it ends in.
fn carries(node: NodeRef<'_>) -> impl Iterator<Item = (Value, Value)> {
    let carried = node.op().edges().into_iter().filter_map(|edge| Some((edge.operand()?, edge.result()?)));
    carried.zip(node.results()).map(move |((operand, _), result)| (node.operands()[operand], result))
}

/// The value in whose buffer a value lies.
fn root(graph: &Graph, mut value: Value) -> Value {
    while let Some(node) = graph.defining_node(value) {
        match node.op() {
            op if is_alias(op) => value = node.operands()[0],
            Op::Barrier(_) => {
                // Result and operand of one place are one buffer.
                let mut pairs = node.results().zip(node.operands());
                let Some((_, &operand)) = pairs.find(|(result, _)| *result == value) else { break };
                value = operand;
            }
            _ => break,
        }
    }
    value
}

/// For each value, whether it has no buffer of its own: it is another value's, or computed within what reads it.
fn computed_in_readers(graph: &Graph) -> Vec<bool> {
    let mut readers = vec![0u32; graph.value_count()];
    let mut within = vec![true; graph.value_count()];
    for node in graph.nodes() {
        let absorbs =
            is_elementwise(node.op()) || moves_elements(node.op()) || is_free(node.op()) || is_fold(node.op());
        for operand in node.operands() {
            readers[operand.index()] += 1;
            within[operand.index()] &= absorbs;
        }
    }
    graph.outputs().iter().for_each(|output| within[output.index()] = false);
    let mut computed = vec![false; graph.value_count()];
    for node in graph.nodes() {
        let op = node.op();
        let fuses = is_elementwise(op) || moves_elements(op);
        for result in node.results() {
            let index = result.index();
            computed[index] = is_alias(op)
                || matches!(op, Op::Barrier(_) | Op::Splat(_) | Op::Constant(_) | Op::Iota(_) | Op::AxisIndex(_))
                || within[index] && (is_free(op) || fuses && readers[index] <= 1);
        }
    }
    computed
}

fn is_alias(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Named(_) | Op::StopGradient(_) | Op::WithAxes(_) | Op::Reshard(_))
}

fn is_free(op: &Op) -> bool {
    is_alias(op)
        || matches!(op, Op::BroadcastInDim(_) | Op::Splat(_) | Op::Iota(_) | Op::Constant(_) | Op::AxisIndex(_))
}

fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Binary(_)
            | Op::BitcastConvert(_)
            | Op::Clamp(_)
            | Op::Compare(_)
            | Op::Convert(_)
            | Op::Select(_)
            | Op::Unary(_)
    )
}

fn moves_elements(op: &Op) -> bool {
    matches!(
        op,
        Op::Concatenate(_)
            | Op::DynamicSlice(_)
            | Op::Gather(_)
            | Op::Pad(_)
            | Op::Reverse(_)
            | Op::Slice(_)
            | Op::Transpose(_)
    )
}

fn is_fold(op: &Op) -> bool {
    matches!(op, Op::Reduce(_) | Op::ArgReduce(_))
}
