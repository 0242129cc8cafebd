//! Loops: what holds of the carried values in front of a loop, and is kept by its body, holds behind it.

use smallvec::SmallVec;

use super::layout::{ANYWHERE, Begin};
use super::walk::{Finding, Findings, Meaning, Prover, Whole};
use crate::ir::{AxisSet, Graph, NodeRef, Value};
use crate::ops::{Op, While};

/// How deep loops may be nested.
const NESTING: usize = 8;

/// How often the meanings of carried values are weakened.
const ROUNDS: usize = 12;

/// How many meanings of a constant in front of a loop are tried.
const MOST_GUESSES: usize = 64;

impl Prover {
    /// The results of a loop, as those of the first global loop that it is.
    pub(super) fn loops(
        &mut self,
        whole: &Whole<'_>,
        local: &Graph,
        facts: &Findings,
        node: NodeRef<'_>,
    ) -> Vec<Finding> {
        let mut found = vec![Finding::default(); node.results().count()];
        let Op::While(own) = node.op() else { return found };
        if self.depth >= NESTING {
            return found;
        }
        for global in whole.graph.nodes() {
            let Op::While(other) = global.op() else { continue };
            self.depth += 1;
            let results = self.one_loop(whole, local, facts, (node, own), (global, other));
            self.depth -= 1;
            if let Some(results) = results {
                found = results;
                // One that says something of every result is the one.
                if found.iter().all(|fact| !fact.is_empty()) {
                    break;
                }
            }
        }
        found
    }

    fn one_loop(
        &mut self,
        whole: &Whole<'_>,
        local: &Graph,
        facts: &Findings,
        (node, own): (NodeRef<'_>, &While),
        (global, other): (NodeRef<'_>, &While),
    ) -> Option<Vec<Finding>> {
        let (operands, of_global) = (node.operands(), global.operands());
        let (fixed, fixed_global) = (own.invariant_count, other.invariant_count);
        // For each input of the body, the inputs of the global body that it may be a part of.
        let inputs = other.body.inputs();
        let same = |whole_value: Value, from: std::ops::Range<usize>| -> Vec<usize> {
            from.filter(|&index| of_global[index] == whole_value).collect()
        };
        let mut start: Vec<Finding> = Vec::new();
        for (index, &operand) in operands.iter().enumerate() {
            let fact = facts.of(operand);
            let range = if index < fixed { 0..fixed_global } else { fixed_global..of_global.len() };
            let mut of_input = Finding::default();
            for meaning in &fact.meanings {
                for number in same(meaning.whole, range.clone()) {
                    of_input.meanings.push(Meaning { whole: inputs[number], ..meaning.clone() });
                }
            }
            if index < fixed {
                of_input.uniform = fact.uniform;
                of_input.known = fact.known.clone();
            }
            if let Some(number) = fact.uniform {
                for place in range {
                    let splat = whole.graph.splat(of_global[place]);
                    if splat.is_some_and(|splat| splat.to_bits() == number.to_bits()) {
                        let guesses = self.guesses((whole.graph, of_global[place]), (local, operand), number);
                        let meaning = |(begins, partial)| Meaning { whole: inputs[place], begins, partial };
                        of_input.meanings.extend(guesses.into_iter().map(meaning));
                    }
                }
            }
            start.push(of_input);
        }
        let of_body = Whole::new(&other.body);
        let is_carry = |value: Value| inputs.iter().position(|&input| input == value).filter(|&it| it >= fixed_global);
        for _ in 0..ROUNDS {
            let behind = self.walk(&of_body, &own.body, start.clone());
            let mut changed = false;
            for (carry, &output) in own.body.outputs().iter().enumerate() {
                let fact = behind.of(output);
                let kept = |meaning: &Meaning| {
                    let Some(place) = is_carry(meaning.whole) else { return false };
                    let next = other.body.outputs()[place - fixed_global];
                    holds(fact, &Meaning { whole: next, ..meaning.clone() }, &other.body)
                };
                let before = start[fixed + carry].meanings.len();
                start[fixed + carry].meanings.retain(|meaning| kept(meaning));
                changed |= before != start[fixed + carry].meanings.len();
            }
            if changed {
                continue;
            }
            // Both loops run equally often: the conditions are the same number.
            let asked = self.walk(&Whole::new(&other.condition), &own.condition, at(&start, inputs, &other.condition));
            let asked = asked.of(own.condition.outputs()[0]);
            let condition =
                Meaning { whole: other.condition.outputs()[0], begins: SmallVec::new(), partial: AxisSet::default() };
            if !holds(asked, &condition, &other.condition) {
                return None;
            }
            let mut results = Vec::new();
            for carry in &start[fixed..] {
                let mut result = Finding::default();
                for meaning in &carry.meanings {
                    let place = is_carry(meaning.whole)? - fixed_global;
                    result.add(Meaning { whole: global.results().nth(place)?, ..meaning.clone() });
                }
                results.push(result);
            }
            return Some(results);
        }
        None
    }

    /// The parts of a constant that a carried value may begin as.
    fn guesses(
        &self,
        (whole, value): (&Graph, Value),
        (local, own): (&Graph, Value),
        number: f64,
    ) -> Vec<(SmallVec<[Begin; 4]>, AxisSet)> {
        let (ty, part) = (whole.ty(value), local.ty(own));
        if ty.dtype != part.dtype || ty.rank() != part.rank() {
            return Vec::new();
        }
        let mut begins: Vec<SmallVec<[Begin; 4]>> = vec![SmallVec::new()];
        for (&size, &part) in ty.dims.iter().zip(&part.dims) {
            let fitting = self.layouts.fitting(part, size);
            let longer = begins.iter().flat_map(|before| {
                fitting.iter().map(move |&begin| {
                    let mut begins = before.clone();
                    begins.push(begin);
                    begins
                })
            });
            begins = longer.take(MOST_GUESSES).collect();
        }
        let mut all: Vec<AxisSet> = vec![AxisSet::default()];
        if number == 0.0 && ty.dtype.is_float() {
            for axis in self.layouts.mesh.axes() {
                let more: Vec<AxisSet> = all.iter().map(|axes| *axes | AxisSet::of([axis])).collect();
                all.extend(more.into_iter().take(16));
            }
        }
        let pairs = all.iter().flat_map(|&partial| begins.iter().map(move |begins| (begins.clone(), partial)));
        let apart = |(begins, partial): &(SmallVec<[Begin; 4]>, AxisSet)| {
            begins.iter().all(|&begin| (self.layouts.axes(begin) & *partial).is_empty())
        };
        pairs.filter(apart).take(MOST_GUESSES).collect()
    }
}

/// Whether a value is shown to have a meaning.
fn holds(fact: &Finding, meaning: &Meaning, whole: &Graph) -> bool {
    let number = fact.uniform.zip(whole.splat(meaning.whole));
    if number
        .is_some_and(|(own, global)| own.to_bits() == global.to_bits() && (meaning.partial.is_empty() || own == 0.0))
    {
        return true;
    }
    fact.meanings.iter().any(|found| {
        found.whole == meaning.whole
            && found.partial == meaning.partial
            && found.begins.iter().zip(&meaning.begins).all(|(&found, &wanted)| found == wanted || found == ANYWHERE)
    })
}

/// The facts of a body's inputs as those of the condition's, which reads the same values.
fn at(start: &[Finding], inputs: &[Value], condition: &Graph) -> Vec<Finding> {
    let moved = |meaning: &Meaning| {
        let place = inputs.iter().position(|&input| input == meaning.whole)?;
        Some(Meaning { whole: *condition.inputs().get(place)?, ..meaning.clone() })
    };
    let fact = |fact: &Finding| Finding { meanings: fact.meanings.iter().filter_map(moved).collect(), ..fact.clone() };
    start.iter().map(fact).collect()
}
