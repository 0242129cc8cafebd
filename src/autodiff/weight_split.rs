//! The backward half of a function, cut in two: the cotangents of its inputs now, those of its weights later.
//!
//! Pipelines without bubbles run the two at different times: the stage before waits for the cotangents of activations
//! (B), while those of the weights (W) fill gaps. [`Halves::split`] cuts a backward half like that. The values that B
//! computes and W reads are held in between, and the arguments of the backward half that W reads are held for longer.
//! `min_cut.rs` chooses them so that the fewest bytes are held.
//!
//! A loop or a call that both halves need is cut too, from the inside out. A loop over layers carries the activations'
//! cotangent from layer to layer and stacks the weights' gradients: it becomes a loop that carries the cotangent and
//! stacks what W reads of each layer, and one over these stacks that carries nothing but the sums of gradients of
//! weights that all iterations share. Other ops with regions, and those with side effects, are left whole: if B needs
//! any of their results, all are B's.

use std::sync::Arc;

use super::min_cut::{
    Cuttable, CuttableKind, GraphToCut, Input, Needs, Output, happens_early, is_mixed, is_work, kept, mark_needed,
    returned,
};
use super::reverse::Halves;
use crate::ir::{Definition, Graph, GraphCopy, Memo, NodeRef, OpError, Value, Values};
use crate::ops::{Call, Op, Scan};

/// The source of an input of the later half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldRead {
    /// The argument of the backward half with this index.
    Argument(usize),
    /// The value with this index of those that the earlier half returns for it.
    Between(usize),
}

/// A backward half cut in two.
#[derive(Clone, Debug)]
pub struct SplitBackward {
    inputs_half: Graph,
    weights_half: Graph,
    reads: Vec<HeldRead>,
    inputs: Vec<usize>,
    weights: Vec<usize>,
    kept: KeptBytes,
}

/// The memory that cutting a backward half costs, from the end of the earlier half until the later half runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBytes {
    /// Values that the earlier half returns for the later.
    pub between: usize,
    /// Arguments of the backward half that the later half reads, weights apart: residuals and cotangents.
    pub arguments: usize,
}

impl SplitBackward {
    /// The graph that takes the arguments of the backward half, and returns the cotangents of
    /// [`SplitBackward::inputs`], then the values between.
    pub fn inputs_half(&self) -> &Graph {
        &self.inputs_half
    }

    /// The graph that takes the values that [`SplitBackward::reads`] lists, and returns the cotangents of
    /// [`SplitBackward::weights`].
    pub fn weights_half(&self) -> &Graph {
        &self.weights_half
    }

    /// The source of each input of the weights' half.
    pub fn reads(&self) -> &[HeldRead] {
        &self.reads
    }

    /// The inputs of the function whose cotangents the earlier half returns, in order.
    pub fn inputs(&self) -> &[usize] {
        &self.inputs
    }

    /// The inputs of the function whose cotangents the later half returns, in order.
    pub fn weights(&self) -> &[usize] {
        &self.weights
    }

    /// The arguments of the weights' half, taken from the arguments of the backward half and all results of the inputs'
    /// half.
    pub fn arguments<T: Copy>(&self, arguments: &[T], results: &[T]) -> Vec<T> {
        let read = |read: &HeldRead| match *read {
            HeldRead::Argument(index) => arguments[index],
            HeldRead::Between(index) => results[self.inputs.len() + index],
        };
        self.reads.iter().map(read).collect()
    }

    /// The bytes that are held for the weights' half.
    pub fn kept_bytes(&self) -> KeptBytes {
        self.kept
    }
}

impl Halves {
    /// Cuts the backward half in two: the cotangents of inputs that are no weights, and those of weights.
    ///
    /// # Errors
    /// A part of a loop does not fit together, which would be a defect.
    pub fn split(&self, is_weight: impl Fn(usize) -> bool) -> Result<SplitBackward, OpError> {
        let half = |&input: &usize| if is_weight(input) { Output::Late } else { Output::Early };
        let outputs: Vec<Output> = self.active().iter().map(half).collect();
        let lies_there: Vec<bool> = self.argument_inputs().map(|input| input.is_some_and(&is_weight)).collect();
        let inputs: Vec<Input> =
            lies_there.iter().map(|&lies_there| Input::Early { times: usize::from(!lies_there) }).collect();
        let backward = self.backward();
        let parts = divide(backward, &outputs, &inputs, 1, true, &MadeCuts::default())?;
        let between = parts.early.output_types().skip(number_of(&outputs, Output::Early));
        let read = |read: &HeldRead| match *read {
            HeldRead::Argument(index) if !lies_there[index] => backward.ty(backward.inputs()[index]).byte_count(),
            _ => 0,
        };
        let kept = KeptBytes {
            between: between.map(|ty| ty.byte_count()).sum(),
            arguments: parts.reads.iter().map(read).sum(),
        };
        let (weights, inputs) = self.active().iter().partition(|&&input| is_weight(input));
        Ok(SplitBackward {
            inputs_half: Arc::unwrap_or_clone(parts.early),
            weights_half: Arc::unwrap_or_clone(parts.late),
            reads: parts.reads,
            inputs,
            weights,
            kept,
        })
    }
}

/// A graph in two parts.
#[derive(Clone, Debug)]
struct Parts {
    /// Takes the inputs in `taken`; returns the early outputs, then the values that the late part reads.
    early: Arc<Graph>,
    /// The inputs that the early part takes.
    taken: Vec<usize>,
    /// Takes the values that `reads` lists; returns the late outputs.
    late: Arc<Graph>,
    /// Inputs of the graph, in order, then results of the early part, in order.
    reads: Vec<HeldRead>,
}

/// Functions cut so far, by everything else that the outcome depends on: calls that agree in it share the parts.
type MadeCuts = Memo<(Vec<Output>, Vec<Input>, usize), Parts>;

/// The number of outputs that a half returns.
fn number_of(outputs: &[Output], half: Output) -> usize {
    outputs.iter().filter(|output| **output == half).count()
}

/// Cuts a graph, which runs `times` times, in two. The early part takes all inputs that it can have, or those that it
/// reads.
fn divide(
    graph: &Graph,
    outputs: &[Output],
    inputs: &[Input],
    times: usize,
    all: bool,
    cuts: &MadeCuts,
) -> Result<Parts, OpError> {
    let flat = separate(graph, outputs, inputs, times, cuts)?;
    let outputs: Vec<Output> = outputs.iter().copied().filter(|&output| output != Output::Unread).collect();
    let outputs = &outputs[..];
    let needs = Needs::of(&flat, outputs);
    let kept = kept(&GraphToCut { graph: &flat, outputs, inputs, times }, &needs);
    let argument = |value: Value| match flat.definition(value) {
        Definition::Input(index) if inputs[index as usize] != Input::Carry => Some(index as usize),
        Definition::Input(_) | Definition::Result(..) => None,
    };
    let chosen = |half: Output| returned(&flat, outputs, half);

    let between: Vec<Value> = kept.iter().copied().filter(|&value| argument(value).is_none()).collect();
    let results: Vec<Value> = chosen(Output::Early).chain(between.iter().copied()).collect();
    let mut live = vec![false; flat.value_count()];
    results.iter().for_each(|value| live[value.index()] = true);
    let happens = |node: NodeRef<'_>| happens_early(node, &needs.late);
    mark_needed(&flat, &mut live, |_| false, happens);
    let taken: Vec<usize> = (0..inputs.len())
        .filter(|&input| {
            let is_read = live[flat.inputs()[input].index()];
            inputs[input].is_early() && (all || is_read || inputs[input] == Input::Carry)
        })
        .collect();
    let mut copy = GraphCopy::of_body(&flat, taken.iter().map(|&input| flat.inputs()[input]));
    copy_live(&flat, &mut copy, &live, happens);
    let early_part = copy.finish_body(results);

    // A carry has its place whether it is read or not.
    let read: Vec<usize> = (0..inputs.len())
        .filter(|&input| {
            let value = flat.inputs()[input];
            inputs[input] == Input::LateCarry || (argument(value).is_some() && kept.binary_search(&value).is_ok())
        })
        .collect();
    let read_values: Vec<Value> =
        read.iter().map(|&input| flat.inputs()[input]).chain(between.iter().copied()).collect();
    let mut copy = GraphCopy::of_body(&flat, read_values.iter().copied());
    let mut live = vec![false; flat.value_count()];
    chosen(Output::Late).for_each(|value| live[value.index()] = true);
    let mut at_hand = vec![false; flat.value_count()];
    read_values.iter().for_each(|value| at_hand[value.index()] = true);
    mark_needed(&flat, &mut live, |value| at_hand[value.index()], |_| false);
    read_values.iter().for_each(|value| live[value.index()] = false);
    copy_live(&flat, &mut copy, &live, |_| false);
    let late_part = copy.finish_body(chosen(Output::Late));
    let reads = read.into_iter().map(HeldRead::Argument).chain((0..between.len()).map(HeldRead::Between)).collect();
    let late_part = late_part.renamed(format!("{}_weights", graph.name()));
    Ok(Parts { early: Arc::new(early_part), taken, late: Arc::new(late_part), reads })
}

/// Copies the nodes with results that are marked, and the nodes needed anyway. Only the marked results of a barrier are
/// copied.
fn copy_live(graph: &Graph, copy: &mut GraphCopy<'_>, live: &[bool], anyway: impl Fn(NodeRef<'_>) -> bool) {
    for node in graph.nodes() {
        if node.results().any(|result| live[result.index()]) || anyway(node) {
            copy_whole(graph, copy, node, |value| live[value.index()]);
        }
    }
}

/// Copies a node. Only the wanted results of a barrier are copied.
fn copy_whole(graph: &Graph, copy: &mut GraphCopy<'_>, node: NodeRef<'_>, wanted: impl Fn(Value) -> bool) {
    if !matches!(node.op(), Op::Barrier(_)) {
        copy.node(node);
        return;
    }
    let (results, operands): (Vec<Value>, Vec<Value>) = node
        .results()
        .zip(node.operands())
        .filter(|(result, _)| wanted(*result))
        .map(|(result, &operand)| (result, copy.map.get(operand)))
        .unzip();
    let types = results.iter().map(|&result| graph.ty(result).clone());
    let new = copy.builder.push_from(node.origin(), node.op().clone(), &operands, types);
    results.into_iter().zip(new).for_each(|(old, new)| copy.map.set(old, new));
}

/// The same graph without outputs that are not read. Every loop or call that both early and late outputs need becomes
/// two, one for each half.
fn separate(
    graph: &Graph,
    outputs: &[Output],
    inputs: &[Input],
    times: usize,
    cuts: &MadeCuts,
) -> Result<Graph, OpError> {
    let needs = Needs::before_cutting(graph, outputs);
    let needed_of = |node: NodeRef<'_>| -> [Vec<bool>; 2] {
        [&needs.early, &needs.late].map(|needs| node.results().map(|result| needs[result.index()]).collect())
    };
    let open = open_wrappers(graph, |node| {
        let [early, late] = needed_of(node);
        is_mixed(&early, &late) && !node.op().has_side_effect()
    });
    if let Some(open) = open {
        return separate(&open, outputs, inputs, times, cuts);
    }
    // The values that the early half can have: its own, and those that may be moved there.
    let mut can_be_early = needs.early.clone();
    let mut lies_there = vec![false; graph.value_count()];
    for (value, input) in graph.inputs().iter().zip(inputs) {
        can_be_early[value.index()] = input.is_early();
        lies_there[value.index()] = *input == Input::Early { times: 0 };
    }
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let operands_early = node.operands().iter().all(|operand| can_be_early[operand.index()]);
        for (index, result) in node.results().enumerate() {
            can_be_early[result.index()] |= match node.op() {
                Op::Barrier(_) => can_be_early[node.operands()[index].index()],
                op => operands_early && !is_work(op),
            };
        }
        let is_needed = |value: Value| needs.early[value.index()] || needs.late[value.index()];
        if !node.results().any(is_needed) && !node.op().has_side_effect() {
            continue;
        }
        let [early, late] = needed_of(node);
        let Some(Cuttable { kind, outputs, .. }) = Cuttable::of(node, &early, &late) else {
            copy_whole(graph, &mut copy, node, is_needed);
            continue;
        };
        let input = |value: &Value, times: usize| match can_be_early[value.index()] {
            true => Input::Early { times: if lies_there[value.index()] { 0 } else { times } },
            false => Input::Late,
        };
        match kind {
            CuttableKind::Call(function) => {
                let inputs: Vec<Input> = node.operands().iter().map(|value| input(value, times)).collect();
                let key = (outputs.clone(), inputs.clone(), times);
                let parts = cuts.of(function, key, || divide(function, &outputs, &inputs, times, false, cuts))?;
                push_parts(&mut copy, node, parts, &outputs, None)?;
            }
            CuttableKind::Scan(scan) => {
                let runs = times.saturating_mul(scan.length);
                let input = |(index, value): (usize, &Value)| {
                    let carry = index.checked_sub(scan.invariant_count).filter(|&carry| carry < scan.carry_count);
                    match carry.map(|carry| outputs[carry]) {
                        Some(Output::Early) => Input::Carry,
                        Some(Output::Late) => Input::LateCarry,
                        // A carry that is not read is dropped.
                        Some(Output::Unread) => Input::Late,
                        None => input(value, if index < scan.invariant_count { times } else { runs }),
                    }
                };
                let inputs: Vec<Input> = node.operands().iter().enumerate().map(input).collect();
                let parts = divide(&scan.body, &outputs, &inputs, runs, false, cuts)?;
                push_parts(&mut copy, node, parts, &outputs, Some(scan))?;
            }
        }
    }
    let read = graph.outputs().iter().zip(outputs).filter(|(_, output)| **output != Output::Unread);
    Ok(copy.finish_body(read.map(|(&value, _)| value)))
}

/// Pushes the two parts of a loop, or of a call, in its place.
fn push_parts(
    copy: &mut GraphCopy<'_>,
    node: NodeRef<'_>,
    parts: Parts,
    outputs: &[Output],
    scan: Option<&Scan>,
) -> Result<(), OpError> {
    let Parts { early: early_part, taken, late: late_part, reads } = parts;
    let operands = copy.operands(node);
    let outer = copy.builder.origin();
    copy.builder.set_origin(node.origin());
    let early_count = number_of(outputs, Output::Early);
    let early_op = match scan {
        None => Op::from(Call { function: early_part }),
        Some(scan) => Op::from(Scan {
            body: early_part,
            invariant_count: taken.iter().filter(|&&input| input < scan.invariant_count).count(),
            carry_count: number_of(&outputs[..scan.carry_count], Output::Early),
            ..scan.clone()
        }),
    };
    let arguments: Vec<Value> = taken.iter().map(|&input| operands[input]).collect();
    let early_results = copy.builder.push(early_op, &arguments)?;
    let arguments: Vec<Value> = reads
        .iter()
        .map(|read| match *read {
            HeldRead::Argument(input) => operands[input],
            HeldRead::Between(index) => early_results[early_count + index],
        })
        .collect();
    let first_slice = scan.map_or(0, |scan| scan.invariant_count + scan.carry_count);
    let is_slice = |read: &HeldRead| {
        matches!(*read, HeldRead::Between(_)) || matches!(*read, HeldRead::Argument(input) if input >= first_slice)
    };
    // An output that is an input of the body needs neither loop nor call. A carry does need the loop: its result is the
    // value of the last iteration.
    let carries = scan.map_or(0, |scan| number_of(&outputs[..scan.carry_count], Output::Late));
    let passed = |&output: &Value| match late_part.definition(output) {
        Definition::Input(index) if carries == 0 && is_slice(&reads[index as usize]) => Some(arguments[index as usize]),
        Definition::Input(_) | Definition::Result(..) => None,
    };
    let late_results: Values = match late_part.outputs().iter().map(passed).collect::<Option<Values>>() {
        Some(passed) => passed,
        None => {
            let is_invariant = |scan: &Scan, read: &HeldRead| matches!(*read, HeldRead::Argument(input) if input < scan.invariant_count);
            let late_op = match scan {
                None => Op::from(Call { function: late_part }),
                Some(scan) => Op::from(Scan {
                    invariant_count: reads.iter().filter(|read| is_invariant(scan, read)).count(),
                    carry_count: carries,
                    body: late_part,
                    ..scan.clone()
                }),
            };
            copy.builder.push(late_op, &arguments)?
        }
    };
    copy.builder.set_origin(outer);
    for (half, values) in [(Output::Early, early_results), (Output::Late, late_results)] {
        let results = node.results().zip(outputs).filter(|(_, output)| **output == half);
        results.zip(values).for_each(|((result, _), value)| copy.map.set(result, value));
    }
    Ok(())
}

/// The same graph with mixed wrappers other than calls written in place; `None` if it has no such wrapper.
fn open_wrappers(graph: &Graph, is_mixed: impl Fn(NodeRef<'_>) -> bool) -> Option<Graph> {
    let opens = |node: NodeRef<'_>| matches!(node.op(), Op::Checkpoint(_) | Op::CustomVjp(_)) && is_mixed(node);
    if !graph.nodes().any(opens) {
        return None;
    }
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match node.op().regions().next() {
            Some(body) if opens(node) => copy.inline(node, body),
            _ => drop(copy.node(node)),
        }
    }
    Some(copy.finish_body(graph.outputs().iter().copied()))
}
