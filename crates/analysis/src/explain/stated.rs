//! The way from a value to the nearest stated sharding, through operands and readers, in and out of computations.
//!
//! Compiled programs have most values inside of fusions and loops, and state shardings at the parameters of the entry.
//! A tuple's elements are told apart: an element of a loop's carry leads to its initial value, and not to its
//! neighbours.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::iter::successors;

use rustc_hash::FxHashMap;

use crate::index::{Computation, Module};
use crate::partitioning::is_scalar;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, OpSharding, ShapeProto};

/// A value: an instruction by the number of its computation and its position, and the element if it is in a tuple.
type TracedValue = (usize, usize, Option<i64>);

/// How the operands of an instruction are parameters of a computation that it runs.
#[derive(Clone, Copy, PartialEq)]
enum PassedOperands {
    /// Each operand is the parameter of its number.
    All,
    /// The one operand is the parameter.
    Carry,
    /// The operand with this position is the parameter.
    One(usize),
}

/// A module in which stated shardings are searched for.
pub(super) struct StatedShardings<'m, 'a> {
    module: &'m HloModuleProto,
    index: &'m Module<'a>,
    /// The instructions that run each computation.
    callers: Vec<Vec<(usize, usize, PassedOperands)>>,
    readers: Vec<Vec<Vec<usize>>>,
}

/// Returns how the operands are passed to each computation that an instruction runs; nothing for reducers and the like,
/// which compute scalars.
fn passes(instruction: &HloInstructionProto, nth: usize) -> Option<PassedOperands> {
    match instruction.opcode.as_str() {
        "fusion" | "call" | "async-start" => Some(PassedOperands::All),
        "while" => Some(PassedOperands::Carry),
        "conditional" => Some(PassedOperands::One(nth + 1)),
        _ => None,
    }
}

impl<'m, 'a> StatedShardings<'m, 'a> {
    pub(super) fn of(module: &'m HloModuleProto, index: &'m Module<'a>) -> StatedShardings<'m, 'a> {
        let mut callers = vec![Vec::new(); index.computations().len()];
        for (number, computation) in index.computations().iter().enumerate() {
            for (position, instruction) in computation.instructions().iter().enumerate() {
                for (nth, &callee) in instruction.called_computation_ids.iter().enumerate() {
                    if let (Some(passes), Some(callee)) = (passes(instruction, nth), index.number(callee)) {
                        callers[callee].push((number, position, passes));
                    }
                }
            }
        }
        let readers = index.computations().iter().map(Computation::readers).collect();
        StatedShardings { module, index, callers, readers }
    }

    /// Returns the instructions from a value to the nearest stated sharding, with that; only the value if there is
    /// none.
    pub(super) fn nearest(
        &self,
        number: usize,
        start: &'a HloInstructionProto,
    ) -> Vec<(&'a HloInstructionProto, Option<&'m OpSharding>)>
    where
        'a: 'm,
    {
        /// More values than any search that people wait for.
        const MOST: usize = 1 << 20;
        let Some(position) = self.index.computations()[number].position(start.id) else { return vec![(start, None)] };
        let first = (number, position, None);
        let mut came_from: FxHashMap<TracedValue, Option<TracedValue>> = FxHashMap::from_iter([(first, None)]);
        let mut queue = VecDeque::from([first]);
        let mut around = Vec::new();
        while let Some(at) = queue.pop_front() {
            if let Some(sharding) = self.stated(at) {
                let way = successors(Some(at), |at| came_from.get(at).copied().flatten());
                let mut way: Vec<_> = way.map(|value| (self.instruction(value), None)).collect();
                way[0].1 = Some(sharding);
                way.reverse();
                let last = way.len() - 1;
                // Instructions that only pass values on say nothing to a reader.
                let mut nth = 0..;
                way.retain(|(it, _)| nth.next().is_some_and(|nth| nth == 0 || nth == last || !is_plumbing(it)));
                return way;
            }
            self.operands(at, &mut around);
            self.read_by(at, &mut around);
            for next in around.drain(..) {
                // A scalar has no sharding to pass on.
                if !self.shape(next).is_some_and(is_scalar)
                    && came_from.len() < MOST
                    && let Entry::Vacant(entry) = came_from.entry(next)
                {
                    entry.insert(Some(at));
                    queue.push_back(next);
                }
            }
        }
        vec![(start, None)]
    }

    fn instruction(&self, (number, position, _): TracedValue) -> &'a HloInstructionProto {
        &self.index.computations()[number].instructions()[position]
    }

    fn shape(&self, value: TracedValue) -> Option<&'a ShapeProto> {
        let shape = self.instruction(value).shape.as_ref()?;
        match value.2 {
            Some(element) => shape.tuple_shapes.get(usize::try_from(element).ok()?),
            None => Some(shape),
        }
    }

    /// Returns the sharding that a value states: at its instruction, or, for a parameter of the program, in the header.
    fn stated(&self, value: TracedValue) -> Option<&'m OpSharding>
    where
        'a: 'm,
    {
        let instruction = self.instruction(value);
        let in_header = || {
            let is_entry = Some(value.0) == self.index.entry() && instruction.opcode == "parameter";
            let number = usize::try_from(instruction.parameter_number).ok().filter(|_| is_entry)?;
            self.module.spmd_parameters_shardings.get(number)
        };
        let sharding = instruction.sharding.as_deref().or_else(in_header)?;
        match (value.2, sharding.r#type()) {
            (Some(element), Type::Tuple) => sharding.tuple_shardings.get(usize::try_from(element).ok()?),
            _ => Some(sharding),
        }
    }

    /// Adds the values from which a value is computed.
    fn operands(&self, (number, position, element): TracedValue, found: &mut Vec<TracedValue>) {
        let computation = &self.index.computations()[number];
        let instruction = &computation.instructions()[position];
        let operand = |nth: usize| computation.position(*instruction.operand_ids.get(nth)?);
        let nth = |element: Option<i64>| element.and_then(|element| usize::try_from(element).ok());
        match instruction.opcode.as_str() {
            "get-tuple-element" => {
                found.extend(operand(0).map(|at| (number, at, Some(instruction.tuple_index))));
            }
            "tuple" if element.is_some() => found.extend(nth(element).and_then(operand).map(|at| (number, at, None))),
            "while" | "opt-barrier" => found.extend(operand(0).map(|at| (number, at, element))),
            "parameter" => {
                for &(caller, at, passes) in &self.callers[number] {
                    let computation = &self.index.computations()[caller];
                    let operand = match passes {
                        PassedOperands::All => usize::try_from(instruction.parameter_number).unwrap_or(usize::MAX),
                        PassedOperands::Carry => 0,
                        PassedOperands::One(operand) => operand,
                    };
                    let id = computation.instructions()[at].operand_ids.get(operand);
                    found.extend(id.and_then(|&id| computation.position(id)).map(|at| (caller, at, element)));
                }
            }
            _ if self.callees(instruction).next().is_some() => {}
            _ => found.extend(computation.operand_positions(instruction).map(|at| (number, at, None))),
        }
        for (callee, _) in self.callees(instruction) {
            let computation = &self.index.computations()[callee];
            found.extend(computation.position(computation.proto().root_id).map(|root| (callee, root, element)));
        }
    }

    /// Adds the values that are computed from a value.
    fn read_by(&self, (number, position, element): TracedValue, found: &mut Vec<TracedValue>) {
        let computation = &self.index.computations()[number];
        let id = computation.instructions()[position].id;
        for &reader in &self.readers[number][position] {
            let instruction = &computation.instructions()[reader];
            let places = || (0i64..).zip(&instruction.operand_ids).filter(move |(_, operand)| **operand == id);
            match instruction.opcode.as_str() {
                "get-tuple-element" if element.is_none_or(|element| element == instruction.tuple_index) => {
                    found.push((number, reader, None));
                }
                "get-tuple-element" => {}
                "tuple" => found.extend(places().map(|(nth, _)| (number, reader, Some(nth)))),
                "while" | "opt-barrier" => found.push((number, reader, element)),
                _ if self.callees(instruction).next().is_some() => {}
                _ => found.push((number, reader, None)),
            }
            for (callee, passes) in self.callees(instruction) {
                let parameters = places().map(|(nth, _)| match passes {
                    PassedOperands::All => Some(nth),
                    PassedOperands::Carry => Some(0),
                    PassedOperands::One(operand) => (usize::try_from(nth) == Ok(operand)).then_some(0),
                });
                for number in parameters.flatten() {
                    let all = self.index.computations()[callee].instructions().iter();
                    let is_it = |it: &HloInstructionProto| it.opcode == "parameter" && it.parameter_number == number;
                    found.extend(all.enumerate().find(|(_, it)| is_it(it)).map(|(at, _)| (callee, at, element)));
                }
            }
        }
        if computation.proto().root_id == id {
            found.extend(self.callers[number].iter().map(|&(caller, at, _)| (caller, at, element)));
        }
    }

    /// Returns the computations that an instruction runs on its operands.
    fn callees<'s>(
        &'s self,
        instruction: &'s HloInstructionProto,
    ) -> impl Iterator<Item = (usize, PassedOperands)> + 's {
        let called = instruction.called_computation_ids.iter().enumerate();
        called.filter_map(|(nth, &id)| Some((self.index.number(id)?, passes(instruction, nth)?)))
    }
}

/// Whether an instruction only passes values on.
fn is_plumbing(instruction: &HloInstructionProto) -> bool {
    matches!(instruction.opcode.as_str(), "parameter" | "tuple" | "get-tuple-element" | "opt-barrier")
}
