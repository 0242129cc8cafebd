//! Analyses that go with the data, through regions too.
//!
//! An [`Analysis`] says how the facts of an op's results follow from those of its operands, for ops without regions.
//! For loops, branches and calls, it follows from their [edges](super::Edge), and is written here once.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Op;
use super::edges::{Edge, Executions, Port, Target};
use crate::ir::{Graph, TensorType};

/// One fact for each operand or result.
pub(crate) type ValueFacts<F> = SmallVec<[F; 4]>;

/// A property of each value that follows from the properties of the values it is made of.
///
/// In a loop, facts of carries are joined until no iteration changes them: joining facts again must change nothing, and
/// the chain of joins must be finite.
pub(crate) trait Analysis {
    /// The fact of a value.
    type Fact: Clone + Default + PartialEq;

    /// Whether a carry must have one fact before, in and after its loop, as where the fact decides about its type. Else
    /// the fact of a loop's result comes from the last iteration alone.
    const CARRY_IS_ONE: bool;

    /// The fact of a value that is one of two.
    fn join(&self, one: Self::Fact, other: &Self::Fact) -> Self::Fact;

    /// The fact of a value that depends on a choice, or on the number of iterations of a loop. `control` is the fact of
    /// the choice or of that number.
    fn controlled(&self, fact: Self::Fact, _control: &Self::Fact) -> Self::Fact {
        fact
    }

    /// Whether facts go through the regions of an op. An op that is not looked into is passed to [`Analysis::transfer`]
    /// like an op without regions.
    fn looks_into(&self, _op: &Op) -> bool {
        true
    }

    /// The facts of an op's results, from those of its operands.
    fn transfer(&self, op: &Op, operands: &[Self::Fact], result_count: usize) -> ValueFacts<Self::Fact>;

    /// The part of a fact that can hold for a result of this type.
    fn of_type(&self, fact: Self::Fact, _ty: &TensorType) -> Self::Fact {
        fact
    }

    /// The facts of all values of a graph.
    fn values(&self, graph: &Graph, inputs: &[Self::Fact]) -> Vec<Self::Fact> {
        let mut facts = vec![Self::Fact::default(); graph.value_count()];
        graph.inputs().iter().zip(inputs).for_each(|(input, fact)| facts[input.index()] = fact.clone());
        for node in graph.nodes() {
            let operands: ValueFacts<_> = node.operands().iter().map(|value| facts[value.index()].clone()).collect();
            let results = self.results(node.op(), &operands, node.results().len());
            for (result, fact) in node.results().zip(results) {
                facts[result.index()] = self.of_type(fact, graph.ty(result));
            }
        }
        facts
    }

    /// The facts of a graph's outputs.
    fn outputs(&self, graph: &Graph, inputs: &[Self::Fact]) -> Vec<Self::Fact> {
        let facts = self.values(graph, inputs);
        graph.outputs().iter().map(|output| facts[output.index()].clone()).collect()
    }

    /// The facts of an op's results.
    fn results(&self, op: &Op, operands: &[Self::Fact], result_count: usize) -> ValueFacts<Self::Fact> {
        if op.as_primitive().is_none() && self.looks_into(op) {
            self.through(op, operands).results
        } else {
            self.transfer(op, operands, result_count)
        }
    }

    /// The op with each body that runs made anew by `f`, which gets the facts of the body's inputs; `None` for an op
    /// without bodies.
    fn map_bodies(
        &self,
        op: &Op,
        operands: &[Self::Fact],
        mut f: impl FnMut(&Arc<Graph>, Vec<Self::Fact>) -> Arc<Graph>,
    ) -> Option<Op> {
        op.as_region()?;
        let mut inputs = self.through(op, operands).inputs.into_iter();
        op.map_regions(|body| match inputs.next() {
            Some(inputs) if inputs.len() == body.inputs().len() => f(body, inputs),
            // The body does not run.
            _ => body.clone(),
        })
    }

    /// The facts in an op with regions, from those of its operands.
    fn through(&self, op: &Op, operands: &[Self::Fact]) -> Flow<Self::Fact> {
        let (edges, bodies): (Vec<Edge>, SmallVec<[&Arc<Graph>; 2]>) = (op.edges(), op.regions().collect());
        let runs = |region: usize| op.executions(region) != Executions::InDerivative;
        let mut entering: Vec<Option<Self::Fact>> =
            edges.iter().map(|edge| edge.operand().map(|operand| operands[operand].clone())).collect();
        loop {
            let inputs = inputs_of(&bodies, &edges, &entering, runs);
            let of_body = |(region, body): (usize, &&Arc<Graph>)| match runs(region) {
                true => self.outputs(body, &inputs[region]),
                false => Vec::new(),
            };
            let outputs: SmallVec<[Vec<_>; 2]> = bodies.iter().enumerate().map(of_body).collect();
            let made = |edge: &Edge| {
                let ports = edge.outputs.iter().filter(|port| runs(port.region));
                let facts = ports.map(|port| outputs[port.region][port.index].clone());
                facts.reduce(|one, other| self.join(one, &other))
            };
            let controls = edges.iter().zip(&entering).filter(|(edge, _)| edge.target == Target::Control);
            let control = controls
                .filter_map(|(edge, entering)| entering.clone().or_else(|| made(edge)))
                .reduce(|one, other| self.join(one, &other));
            let leaving = |edge: &Edge| match (made(edge), &control) {
                (Some(fact), Some(control)) => Some(self.controlled(fact, control)),
                (fact, _) => fact,
            };
            let (mut results, mut settled) = (ValueFacts::new(), true);
            for (edge, entering) in edges.iter().zip(&mut entering) {
                let mut fact = leaving(edge);
                if edge.is_carried()
                    && let (Some(before), Some(after)) = (&mut *entering, &mut fact)
                {
                    let joined = self.join(before.clone(), after);
                    settled &= joined == *before;
                    *before = joined;
                    let may_not_run = matches!(op.executions(0), Executions::Times(0) | Executions::Unknown);
                    if Self::CARRY_IS_ONE || may_not_run {
                        *after = before.clone();
                    }
                }
                if let (Some(fact), Some(_)) = (fact, edge.result()) {
                    results.push(fact);
                }
            }
            if settled {
                return Flow { inputs, results };
            }
        }
    }
}

/// The facts inside an op with regions, and of its results.
pub(crate) struct Flow<F> {
    /// The facts of each region's inputs, in any iteration; the default for a region that does not run.
    pub(crate) inputs: SmallVec<[Vec<F>; 2]>,
    pub(crate) results: ValueFacts<F>,
}

/// One item for each input of each region, from one for each edge.
fn inputs_of<F: Clone + Default>(
    bodies: &[&Arc<Graph>],
    edges: &[Edge],
    entering: &[Option<F>],
    runs: impl Fn(usize) -> bool,
) -> SmallVec<[Vec<F>; 2]> {
    let count = |(region, body): (usize, &&Arc<Graph>)| if runs(region) { body.inputs().len() } else { 0 };
    let mut inputs: SmallVec<[Vec<F>; 2]> =
        bodies.iter().enumerate().map(|body| vec![F::default(); count(body)]).collect();
    for (edge, entering) in edges.iter().zip(entering) {
        for &Port { region, index } in edge.inputs.iter().filter(|port| runs(port.region)) {
            inputs[region][index] = entering.clone().unwrap_or_default();
        }
    }
    inputs
}
