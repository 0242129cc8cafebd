//! The values that the early half of a graph keeps for its late half: the fewest bytes, found as a smallest cut.
//!
//! Each node of the graph can be in either half as a whole (`weight_split.rs` sees to that). The early half returns
//! some outputs, the late half the others.
//! - Values that an early output depends on are computed early. The cheap ones among them may be computed again late.
//! - Values that only late outputs depend on are computed late if they take work, such as a dot: that is what a late
//!   half is for. Ops that move and fold elements may be on either side: a sum over tokens is made early, rather than
//!   all tokens kept.
//! - The results of a barrier are independent of each other, so each is treated separately. A value that is computed
//!   again from a barrier's result is behind a barrier in the late half too.

use std::sync::Arc;

use smallvec::SmallVec;

use super::max_flow::{Network, UNBOUNDED};
use crate::ir::{Definition, Graph, NodeRef, Value};
use crate::ops::{Call, Class, Effect, Op, Scan};

/// The role of a graph's input for the two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// Both halves can have it. The late half pays its bytes this many times if it reads it.
    Early {
        /// Zero for a value that is in memory anyway.
        times: usize,
    },
    /// The input takes its value from the previous iteration, in the early half: the late half has what the early half
    /// returns.
    Carry,
    /// The late half alone can have it.
    Late,
    /// The input takes its value from the previous iteration, in the late half.
    LateCarry,
}

impl Input {
    pub(super) fn is_early(self) -> bool {
        matches!(self, Input::Early { .. } | Input::Carry)
    }
}

/// The half that returns an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Output {
    Early,
    Late,
    /// The output is not read.
    Unread,
}

/// A graph that is to be cut.
pub(super) struct GraphToCut<'g> {
    pub(super) graph: &'g Graph,
    pub(super) outputs: &'g [Output],
    pub(super) inputs: &'g [Input],
    /// How often the graph runs; each run keeps its own values.
    pub(super) times: usize,
}

/// The values that the outputs need, by the half that needs them.
pub(super) struct Needs {
    /// The values that early outputs and side effects need.
    pub(super) early: Vec<bool>,
    /// The values that late outputs need.
    pub(super) late: Vec<bool>,
}

impl Needs {
    /// Returns the needs of a graph whose nodes are each in one half as a whole.
    pub(super) fn of(graph: &Graph, outputs: &[Output]) -> Needs {
        Needs::walk(graph, outputs, |_, early, late| (of_all(early), of_all(late)))
    }

    /// Returns the needs of a graph in which loops and calls are cut in two if both halves need results of them.
    pub(super) fn before_cutting(graph: &Graph, outputs: &[Output]) -> Needs {
        Needs::walk(graph, outputs, |node, early, late| match Cuttable::of(node, early, late) {
            Some(cuttable) => (cuttable.early_operands, cuttable.late_operands),
            None => (of_all(early), of_all(late)),
        })
    }

    /// `of_operands` says which operands of a node are needed, early and late, given which results are needed: one flag
    /// for each, or one for all.
    fn walk(
        graph: &Graph,
        outputs: &[Output],
        of_operands: impl Fn(NodeRef<'_>, &[bool], &[bool]) -> (Flags, Flags),
    ) -> Needs {
        let mut needs = Needs { early: vec![false; graph.value_count()], late: vec![false; graph.value_count()] };
        returned(graph, outputs, Output::Early).for_each(|value| needs.early[value.index()] = true);
        returned(graph, outputs, Output::Late).for_each(|value| needs.late[value.index()] = true);
        for node in graph.nodes().rev() {
            let early: Flags = node.results().map(|result| needs.early[result.index()]).collect();
            let late: Flags = node.results().map(|result| needs.late[result.index()]).collect();
            let (of_early, of_late) = match node.op() {
                Op::Barrier(_) => (early, late),
                // The node is treated as if an early output needed it.
                _ if happens_early(node, &needs.late) => (Flags::from_elem(true, 1), late),
                _ => of_operands(node, &early, &late),
            };
            for (index, operand) in node.operands().iter().enumerate() {
                let flag = |flags: &Flags| flags.get(index).or(flags.first()).is_some_and(|&flag| flag);
                needs.early[operand.index()] |= flag(&of_early);
                needs.late[operand.index()] |= flag(&of_late);
            }
        }
        needs
    }
}

/// A flag for each operand or result of a node.
type Flags = SmallVec<[bool; 4]>;

/// One flag for all operands of a node that is in one half as a whole.
fn of_all(results: &[bool]) -> Flags {
    Flags::from_elem(results.contains(&true), 1)
}

/// A loop or a call that is cut in two because both halves need results of it.
pub(super) struct Cuttable<'g> {
    pub(super) kind: CuttableKind<'g>,
    /// The half that returns each output of the body.
    pub(super) outputs: Vec<Output>,
    /// Whether each operand is needed early, and whether it is needed late.
    early_operands: Flags,
    late_operands: Flags,
}

/// The op that is cut.
#[derive(Clone, Copy)]
pub(super) enum CuttableKind<'g> {
    Call(&'g Arc<Graph>),
    Scan(&'g Scan),
}

impl<'g> Cuttable<'g> {
    /// Finds the cut from what is needed of the node's results. Returns `None` if the node stays whole.
    pub(super) fn of(node: NodeRef<'g>, early: &[bool], late: &[bool]) -> Option<Cuttable<'g>> {
        if !is_mixed(early, late) || node.op().has_side_effect() {
            return None;
        }
        let mut outputs: Vec<Output> = early
            .iter()
            .zip(late)
            .map(|(&early, &late)| match (early, late) {
                (true, _) => Output::Early,
                (false, true) => Output::Late,
                (false, false) => Output::Unread,
            })
            .collect();
        let of_inputs = |body: &Graph, needs: &[bool]| -> Flags {
            body.inputs().iter().map(|input| needs[input.index()]).collect()
        };
        match node.op() {
            Op::Call(Call { function }) => {
                let needs = Needs::before_cutting(function, &outputs);
                let early_operands = of_inputs(function, &needs.early);
                let late_operands = of_inputs(function, &needs.late);
                Some(Cuttable { kind: CuttableKind::Call(function), outputs, early_operands, late_operands })
            }
            Op::Scan(scan) => loop {
                let needs = Needs::before_cutting(&scan.body, &outputs);
                let mut early_operands = of_inputs(&scan.body, &needs.early);
                let mut late_operands = of_inputs(&scan.body, &needs.late);
                // A half that reads a carry must also compute it. The early half does so for both if it needs the carry
                // itself.
                let mut settled = true;
                for (carry, made) in outputs.iter_mut().enumerate().take(scan.carry_count) {
                    let input = scan.invariant_count + carry;
                    let output = match (early_operands[input], late_operands[input], *made) {
                        (true, _, _) => Output::Early,
                        (false, true, Output::Unread) => Output::Late,
                        (false, _, output) => output,
                    };
                    settled &= output == *made;
                    *made = output;
                    early_operands[input] = output == Output::Early;
                    late_operands[input] = output == Output::Late;
                }
                if settled {
                    return Some(Cuttable { kind: CuttableKind::Scan(scan), outputs, early_operands, late_operands });
                }
            },
            _ => None,
        }
    }
}

/// Whether both halves need results of a node, and the late half needs some that the early one does not.
pub(super) fn is_mixed(early: &[bool], late: &[bool]) -> bool {
    early.contains(&true) && early.iter().zip(late).any(|(&early, &late)| late && !early)
}

/// The outputs that a half returns, in order.
pub(super) fn returned<'g>(graph: &'g Graph, outputs: &'g [Output], half: Output) -> impl Iterator<Item = Value> + 'g {
    graph.outputs().iter().zip(outputs).filter(move |(_, output)| **output == half).map(|(&value, _)| value)
}

/// Whether a node has to be in the early half for its side effects. A node that late outputs depend on has its effects
/// where it is computed.
pub(super) fn happens_early(node: NodeRef<'_>, late: &[bool]) -> bool {
    node.op().has_side_effect() && !node.results().any(|result| late[result.index()])
}

/// Marks the values that the marked ones depend on, and those that the nodes needed anyway depend on. A value for
/// which `ends` holds needs none of its operands.
pub(super) fn mark_needed(
    graph: &Graph,
    live: &mut [bool],
    ends: impl Fn(Value) -> bool,
    anyway: impl Fn(NodeRef<'_>) -> bool,
) {
    for node in graph.nodes().rev() {
        let results: Flags = node.results().map(|result| live[result.index()] && !ends(result)).collect();
        let any = results.contains(&true) || anyway(node);
        for (index, operand) in node.operands().iter().enumerate() {
            live[operand.index()] |= if matches!(node.op(), Op::Barrier(_)) { results[index] } else { any };
        }
    }
}

/// Whether the late half exists for ops like this one, if no early output needs the node.
pub(super) fn is_work(op: &Op) -> bool {
    let facts = op.facts();
    match facts.class {
        // Ops that are fused, and folds, read their operands from memory once, in whichever half they are.
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

/// The values that the late half reads, in the order of their definitions: inputs, and values that the early half
/// computes.
pub(super) fn kept(task: &GraphToCut<'_>, needs: &Needs) -> Vec<Value> {
    let graph = task.graph;
    let unit = 4 * (graph.value_count() + graph.node_count() + 1) as u128;
    let (made, had) = (vec![None; graph.value_count()], vec![None; graph.value_count()]);
    let mut cutting = Cutting { task, needs, unit, network: Network::new(), made, had };
    for (&value, &input) in graph.inputs().iter().zip(task.inputs).filter(|(value, _)| needs.late[value.index()]) {
        cutting.input(value, input);
    }
    graph.nodes().for_each(|node| cutting.node(node));
    let late_outputs = || returned(graph, task.outputs, Output::Late);
    let Cutting { mut network, made, had, .. } = cutting;
    for had in late_outputs().filter_map(|value| had[value.index()]) {
        network.arc(had, Network::SINK, UNBOUNDED);
    }
    let near = network.cut();
    let is_early = |value: Value| made[value.index()].is_some_and(|maker| near[maker]);
    let mut wanted = vec![false; graph.value_count()];
    late_outputs().for_each(|value| wanted[value.index()] = true);
    mark_needed(graph, &mut wanted, is_early, |_| false);
    let is_input = |value: Value| matches!(graph.definition(value), Definition::Input(_));
    graph.values().filter(|&value| wanted[value.index()] && (is_input(value) || is_early(value))).collect()
}

/// The network whose smallest cut parts the two halves.
struct Cutting<'t> {
    task: &'t GraphToCut<'t>,
    needs: &'t Needs,
    /// The price of a byte. Where bytes are equal, the cut with the fewest of these is taken: values kept besides
    /// inputs (2), nodes computed twice (1), nodes moved to the early half (1).
    unit: u128,
    network: Network,
    /// The vertex of each value's maker.
    made: Vec<Option<usize>>,
    /// The vertex of each value where the late half has it.
    had: Vec<Option<usize>>,
}

impl Cutting<'_> {
    fn price(&self, value: Value, times: usize) -> u128 {
        self.task.graph.ty(value).byte_count() as u128 * times as u128 * self.unit
    }

    fn input(&mut self, value: Value, input: Input) {
        let maker = self.network.vertex();
        self.made[value.index()] = Some(maker);
        let price = match input {
            Input::Early { times } => self.price(value, times),
            Input::Carry => self.price(value, self.task.times) + 2,
            Input::Late | Input::LateCarry => return self.network.arc(maker, Network::SINK, UNBOUNDED),
        };
        let vertex = self.network.vertex();
        self.had[value.index()] = Some(vertex);
        self.network.arc(Network::SOURCE, maker, UNBOUNDED);
        self.network.arc(maker, vertex, price);
    }

    /// Enters the results of a node that the late half needs. Each result of a barrier has a maker of its own.
    fn node(&mut self, node: NodeRef<'_>) {
        let is_barrier = matches!(node.op(), Op::Barrier(_));
        let mut known = None;
        for (index, result) in node.results().enumerate().filter(|(_, result)| self.needs.late[result.index()]) {
            let maker = match known.filter(|_| !is_barrier) {
                Some(maker) => maker,
                None if is_barrier => {
                    self.maker(node, &node.operands()[index..=index], self.needs.early[result.index()])
                }
                None => {
                    let early = node.results().any(|result| self.needs.early[result.index()]);
                    self.maker(node, node.operands(), early)
                }
            };
            known = Some(maker);
            self.made[result.index()] = Some(maker);
            let vertex = self.network.vertex();
            self.had[result.index()] = Some(vertex);
            self.network.arc(maker, vertex, self.price(result, self.task.times) + 2);
        }
    }

    /// The vertex of a node that makes values from these operands, connected to theirs.
    fn maker(&mut self, node: NodeRef<'_>, operands: &[Value], early: bool) -> usize {
        let maker = self.network.vertex();
        place(&mut self.network, node, maker, early);
        for operand in operands {
            if let Some(had) = self.had[operand.index()] {
                self.network.arc(had, maker, UNBOUNDED);
            }
            // A node that is moved to the early half needs its operands there.
            let is_there = self.needs.early[operand.index()];
            if let Some(made) = self.made[operand.index()].filter(|_| !early && !is_there) {
                self.network.arc(maker, made, UNBOUNDED);
            }
        }
        maker
    }
}

/// Connects the maker of a value that the late half needs to the halves in which it may be.
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
