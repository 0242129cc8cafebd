//! Ops: each makes a part of what a global op makes.

use smallvec::SmallVec;

use super::layout::{ANYWHERE, Begin, FIRST};
use super::walk::{Finding, Findings, Meaning, Prover, Whole};
use crate::ir::{AxisSet, Graph, NodeRef, TensorType, Value};
use crate::ops::{BinaryKind, Devices, Effect, FactorKind, FactorRule, Linear, Op, ReduceKind, Reshape, SliceDim};

/// How many ways to read the operands of one op are tried.
const MOST_READINGS: usize = 64;

/// An operand of a global op in the program of one device: a part of it, or a number that is the same everywhere.
type ReadOperand<'a> = (Value, Option<&'a Meaning>);

/// The part of a factor that the devices run over.
#[derive(Clone, Copy, PartialEq)]
struct FactorRange {
    begin: Begin,
    size: usize,
}

impl Prover {
    /// Adds what the results of an op are.
    pub(super) fn matched(
        &mut self,
        whole: &Whole<'_>,
        local: &Graph,
        facts: &Findings,
        node: NodeRef<'_>,
        found: &mut [Finding],
    ) {
        let operands = node.operands();
        let mut tried = Vec::new();
        for &operand in operands {
            for meaning in &facts.of(operand).meanings {
                for &id in whole.readers(meaning.whole) {
                    if !tried.contains(&id) {
                        tried.push(id);
                    }
                }
            }
        }
        let swapped = match operands {
            &[left, right] if is_commutative(node.op()) => Some([right, left]),
            _ => None,
        };
        for id in tried {
            let global = whole.graph.node(id);
            self.read(whole, local, facts, (node, global), operands, found);
            if let Some(swapped) = &swapped {
                self.read(whole, local, facts, (node, global), swapped, found);
            }
        }
    }

    /// Tries all readings of the operands as parts of the operands of a global op.
    fn read(
        &mut self,
        whole: &Whole<'_>,
        local: &Graph,
        facts: &Findings,
        (node, global): (NodeRef<'_>, NodeRef<'_>),
        operands: &[Value],
        found: &mut [Finding],
    ) {
        if std::mem::discriminant(node.op()) != std::mem::discriminant(global.op())
            || operands.len() != global.operands().len()
        {
            return;
        }
        let mut readings: Vec<SmallVec<[ReadOperand<'_>; 4]>> = vec![SmallVec::new()];
        for (&operand, &of_global) in operands.iter().zip(global.operands()) {
            let fact = facts.of(operand);
            let same_type = local.ty(operand).dtype == whole.graph.ty(of_global).dtype;
            let number = fact.uniform.filter(|_| same_type);
            let splat = whole.graph.splat(of_global);
            let is_number = number.is_some_and(|number| splat.is_some_and(|splat| splat.to_bits() == number.to_bits()));
            let mut choices: Vec<ReadOperand<'_>> =
                fact.meanings.iter().filter(|it| it.whole == of_global).map(|it| (operand, Some(it))).collect();
            if is_number && choices.is_empty() {
                choices.push((operand, None));
            }
            let longer = readings.iter().flat_map(|reading| {
                choices.iter().map(move |&choice| {
                    let mut reading = reading.clone();
                    reading.push(choice);
                    reading
                })
            });
            readings = longer.take(MOST_READINGS).collect();
        }
        for reading in readings {
            let Some(results) = self.results(whole, local, facts, node, global, &reading) else { continue };
            for ((meaning, result), fact) in results.into_iter().zip(node.results()).zip(found.iter_mut()) {
                self.admit(whole, local, result, meaning, fact);
            }
        }
    }

    /// The meanings of the results, if the operands are read like this.
    fn results(
        &mut self,
        whole: &Whole<'_>,
        local: &Graph,
        facts: &Findings,
        node: NodeRef<'_>,
        global: NodeRef<'_>,
        reading: &[ReadOperand<'_>],
    ) -> Option<Vec<Meaning>> {
        let of_op = global.op().facts();
        if of_op.effect != Effect::None || of_op.devices != Devices::Alone {
            return None;
        }
        let global_types: Vec<&TensorType> = global.operands().iter().map(|&value| whole.graph.ty(value)).collect();
        let result_types: Vec<&TensorType> = global.results().map(|value| whole.graph.ty(value)).collect();
        let local_types: Vec<&TensorType> = reading.iter().map(|&(value, _)| local.ty(value)).collect();
        let local_results: Vec<&TensorType> = node.results().map(|value| local.ty(value)).collect();
        let pairs = || local_types.iter().chain(&local_results).zip(global_types.iter().chain(&result_types));
        if pairs().any(|(part, ty)| part.rank() != ty.rank() || part.dtype != ty.dtype) {
            return None;
        }
        if !is_same(node.op(), global.op(), &local_types, &global_types) {
            return None;
        }
        let partial = self.passed_on(local, facts, global, reading, &result_types, &global_types)?;
        let whole_result = |index: usize| global.results().nth(index);
        if let (Op::Reshape(_), &[(_, Some(meaning))]) = (global.op(), reading) {
            let begins = self.reshaped(meaning, local_types[0], local_results[0], global_types[0], result_types[0])?;
            return Some(vec![Meaning { whole: whole_result(0)?, begins, partial }]);
        }
        let rule = FactorRule::of(whole.graph, global)?;
        if rule.is_compound() {
            return None;
        }
        let mut parts: SmallVec<[Option<FactorRange>; 4]> = SmallVec::from_elem(None, rule.factors.len());
        for (index, &(_, meaning)) in reading.iter().enumerate() {
            for dim in 0..global_types[index].rank() {
                let (part, size) = (local_types[index].dims[dim], global_types[index].dims[dim]);
                let mut begin = meaning.map_or(ANYWHERE, |meaning| meaning.begins[dim]);
                if part == size {
                    begin = FIRST;
                }
                let Some(&factor) = rule.operands[index][dim].first() else {
                    if part != size {
                        return None;
                    }
                    continue;
                };
                let of_rule = rule.factors[factor as usize];
                let may_split = matches!(of_rule.kind, FactorKind::Parallel | FactorKind::Reduction(_));
                if part != size && (!may_split || of_rule.size != size) {
                    return None;
                }
                let merged = match parts[factor as usize] {
                    _ if !may_split => continue,
                    None => FactorRange { begin, size: part },
                    Some(before) if before.size != part => return None,
                    Some(before) if before.begin == ANYWHERE => FactorRange { begin, size: part },
                    Some(before) if begin == ANYWHERE || begin == before.begin => before,
                    Some(_) => return None,
                };
                parts[factor as usize] = Some(merged);
            }
        }
        let mut added = AxisSet::default();
        for (factor, part) in rule.factors.iter().zip(&parts) {
            let (FactorKind::Reduction(kind), Some(part)) = (factor.kind, part) else { continue };
            if part.size == factor.size {
                continue;
            }
            let axes = self.layouts.axes(part.begin);
            let is_sum = kind == ReduceKind::Sum && rule.initial.is_none();
            let covers = part.begin != ANYWHERE && self.layouts.covers(part.begin, part.size, factor.size, axes);
            if !is_sum || !covers || !(axes & (added | partial)).is_empty() {
                return None;
            }
            added |= axes;
        }
        let is_split =
            parts.iter().zip(&rule.factors).any(|(part, factor)| part.is_some_and(|it| it.size != factor.size))
                || local_results.iter().zip(&result_types).any(|(part, ty)| part.dims != ty.dims);
        if is_split && !may_be_split(global.op()) {
            return None;
        }
        let mut results = Vec::new();
        for (index, ty) in result_types.iter().enumerate() {
            let mut begins: SmallVec<[Begin; 4]> = SmallVec::new();
            for dim in 0..ty.rank() {
                let (part, size) = (local_results[index].dims[dim], ty.dims[dim]);
                let factor = rule.results[index][dim].first().map(|&factor| factor as usize);
                let kind = factor.map(|factor| rule.factors[factor].kind);
                begins.push(match (factor, kind) {
                    (Some(factor), Some(FactorKind::Parallel)) => match parts[factor] {
                        Some(it) if it.size == part && rule.factors[factor].size == size => it.begin,
                        None if part == size => FIRST,
                        // The result is the same along a dimension that no operand has.
                        None if part < size => ANYWHERE,
                        _ => return None,
                    },
                    _ if part == size => FIRST,
                    _ => return None,
                });
            }
            let depends = begins.iter().any(|&begin| !(self.layouts.axes(begin) & (added | partial)).is_empty());
            if depends {
                return None;
            }
            results.push(Meaning { whole: whole_result(index)?, begins, partial: partial | added });
        }
        Some(results)
    }

    /// The axes over which the results of an op add up, of operands that do; `None` if the op is not linear in them.
    fn passed_on(
        &self,
        local: &Graph,
        facts: &Findings,
        global: NodeRef<'_>,
        reading: &[ReadOperand<'_>],
        results: &[&TensorType],
        operands: &[&TensorType],
    ) -> Option<AxisSet> {
        let of = |index: usize| reading[index].1.map_or_else(AxisSet::default, |meaning| meaning.partial);
        let axes = (0..reading.len()).map(of).find(|axes| !axes.is_empty()).unwrap_or_default();
        if axes.is_empty() {
            return Some(axes);
        }
        let is_float = results.iter().chain(operands).all(|ty| ty.dtype.is_float());
        let (which, alone) = match global.op().facts().linear {
            Linear::Together(which) => (which, false),
            Linear::OfFloats(which) if is_float => (which, false),
            Linear::Each(which) => (which, true),
            Linear::OfFloats(_) | Linear::No => return None,
        };
        let which = which.of(reading.len());
        let is_zero = |index: usize| {
            let (value, meaning) = reading[index];
            meaning.is_none() && facts.of(value).uniform == Some(0.0) && !local.ty(value).dims.contains(&0)
        };
        let sums = (0..reading.len()).filter(|&index| !of(index).is_empty()).count();
        let fits = (0..reading.len()).all(|index| match of(index) {
            own if own.is_empty() => alone || !which.contains(&index) || is_zero(index),
            found => which.contains(&index) && found == axes,
        });
        // An operand that is no sum is the same on all devices that add up.
        let alike = reading.iter().filter_map(|(_, meaning)| *meaning).flat_map(|meaning| &meaning.begins);
        let alike = alike.into_iter().all(|&begin| (self.layouts.axes(begin) & axes).is_empty());
        (fits && alike && (!alone || sums == 1)).then_some(axes)
    }

    /// The beginnings of a part in other dimensions: within each stretch of dimensions with as many elements on both
    /// sides, only the first one that is not of one element may be split.
    fn reshaped(
        &mut self,
        meaning: &Meaning,
        part: &TensorType,
        result: &TensorType,
        from: &TensorType,
        to: &TensorType,
    ) -> Option<SmallVec<[Begin; 4]>> {
        if from.element_count() == 0 {
            return None;
        }
        let mut begins: SmallVec<[Begin; 4]> = SmallVec::from_elem(FIRST, to.rank());
        let (mut source, mut place) = (0, 0);
        while source < from.rank() || place < to.rank() {
            let (first_source, first_place) = (source, place);
            let (mut left, mut right) = (1, 1);
            if source < from.rank() {
                left *= from.dims[source];
                source += 1;
            } else {
                right *= to.dims[place];
                place += 1;
            }
            while left != right {
                if left < right {
                    left *= from.dims.get(source)?;
                    source += 1;
                } else {
                    right *= to.dims.get(place)?;
                    place += 1;
                }
            }
            let (sources, places) = (first_source..source, first_place..place);
            let split: Vec<usize> = sources.clone().filter(|&dim| part.dims[dim] != from.dims[dim]).collect();
            match split.as_slice() {
                [] => {
                    if places.clone().any(|dim| result.dims[dim] != to.dims[dim]) {
                        return None;
                    }
                }
                &[dim] => {
                    let is_first = (first_source..dim).all(|before| from.dims[before] == 1);
                    let target = places.clone().find(|&dim| to.dims[dim] != 1)?;
                    let rest = |dims: &[usize], from: usize, to: usize| dims[from + 1..to].iter().product::<usize>();
                    let inner = rest(&from.dims, dim, source);
                    let outer = rest(&to.dims, target, place);
                    let is_whole = places.clone().all(|dim| dim == target || result.dims[dim] == to.dims[dim]);
                    let elements = part.dims[dim] * inner;
                    if !is_first || !is_whole || !elements.is_multiple_of(outer) {
                        return None;
                    }
                    if result.dims[target] != elements / outer {
                        return None;
                    }
                    begins[target] = match meaning.begins[dim] {
                        // A number for each row does not tell where a row begins.
                        ANYWHERE if inner == 1 && outer == 1 => ANYWHERE,
                        ANYWHERE => return None,
                        begin => {
                            let flat: Vec<i64> =
                                self.layouts.begins(begin).iter().map(|begin| begin * inner as i64).collect();
                            if flat.iter().any(|begin| begin % outer as i64 != 0) {
                                return None;
                            }
                            self.layouts.number(flat.iter().map(|begin| begin / outer as i64).collect())
                        }
                    };
                }
                _ => return None,
            }
        }
        Some(begins)
    }
}

fn is_commutative(op: &Op) -> bool {
    let Op::Binary(binary) = op else { return false };
    matches!(binary.0, BinaryKind::Add | BinaryKind::Multiply | BinaryKind::Maximum | BinaryKind::Minimum)
}

/// Whether an op does to its parts what the global op does to the whole, as far as the attributes say.
fn is_same(own: &Op, global: &Op, parts: &[&TensorType], wholes: &[&TensorType]) -> bool {
    match (own, global) {
        (Op::BroadcastInDim(own), Op::BroadcastInDim(global)) => own.mapping == global.mapping,
        (Op::Reshape(Reshape { .. }), Op::Reshape(_)) => true,
        (Op::Slice(own), Op::Slice(global)) => {
            own.ranges.iter().zip(&global.ranges).enumerate().all(|(dim, (a, b))| {
                let is_whole = *a == SliceDim::whole(parts[0].dims[dim]) && *b == SliceDim::whole(wholes[0].dims[dim]);
                is_whole || a == b && parts[0].dims[dim] == wholes[0].dims[dim]
            })
        }
        (Op::DynamicSlice(own), Op::DynamicSlice(global)) => {
            own.sizes.iter().zip(&global.sizes).enumerate().all(|(dim, (a, b))| {
                let is_whole = *a == parts[0].dims[dim] && *b == wholes[0].dims[dim];
                is_whole || a == b && parts[0].dims[dim] == wholes[0].dims[dim]
            })
        }
        (Op::DynamicUpdateSlice(_), Op::DynamicUpdateSlice(_)) => (0..parts[0].rank()).all(|dim| {
            let is_whole = parts[0].dims[dim] == parts[1].dims[dim] && wholes[0].dims[dim] == wholes[1].dims[dim];
            is_whole || parts[0].dims[dim] == wholes[0].dims[dim] && parts[1].dims[dim] == wholes[1].dims[dim]
        }),
        (own, global) => own == global,
    }
}

/// Ops that do the same to a part along a parallel or reduced factor, with the attributes that [`is_same`] compares.
fn may_be_split(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select(_)
            | Op::Clamp(_)
            | Op::Convert(_)
            | Op::BroadcastInDim(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::Concatenate(_)
            | Op::Reduce(_)
            | Op::DotGeneral(_)
            | Op::DynamicSlice(_)
            | Op::DynamicUpdateSlice(_)
    )
}
