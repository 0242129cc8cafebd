//! Results that take over the memory of an operand that their instruction is the last to read.

use rustc_hash::FxHashMap;

use super::dataflow::{Class, Flow, after_start, is_apart};
use crate::cost::is_by_element;
use crate::index::{Computation, Module};
use meshloom_hlo::proto::{HloInstructionProto, PrimitiveType, ShapeProto};

/// The most pairs of a result and a parameter of one fusion that are examined; few fusions have many of both.
const MOST_PAIRS: usize = 4096;

/// A result that may lie where an operand does: an element of the result's tuple, if it is one, and the operand's
/// position.
type SharedPair = (Option<i64>, usize);

/// A time at which a result may take over the memory of an operand, which is read for the last time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handover {
    pub(super) time: u32,
    pub(super) operand: u32,
    pub(super) result: u32,
}

/// Puts results where the operands are that they update (`GetInPlaceInputOutputPairs`, alias_info.cc in XLA), if
/// nothing reads those later. Returns the results that may take over an operand that they are computed from element by
/// element (`CanShareOperandBufferWithUser`, hlo_dataflow_analysis.cc).
pub(super) fn update(flow: &mut Flow<'_, '_>, is_donated: impl Fn(u32) -> bool) -> Vec<Handover> {
    let mut fusions = Fusions::default();
    let mut handovers = Vec::new();
    for time in 0..flow.schedule.point_count() {
        let point = flow.schedule.point_at(time);
        let instruction = flow.instruction(point);
        let (updated, elementwise) = match instruction.opcode.as_str() {
            "fusion" => fusions.pairs(flow.walk.module(), instruction),
            _ => (updated(instruction), elementwise(instruction)),
        };
        let taken: Vec<Option<i64>> = updated.iter().map(|&(element, _)| element).collect();
        for pair in updated {
            if let Some(handover) = handover(flow, point, pair) {
                update_at(flow, handover, &is_donated);
            }
        }
        for pair @ (element, operand) in elementwise {
            if !taken.contains(&element) && same_layout(flow, point, element, operand) {
                handovers.extend(handover(flow, point, pair));
            }
        }
    }
    handovers.retain(|&handover| is_possible(flow, handover));
    handovers
}

/// Lets values in the heap take over from others, if these are alone in their buffers, as in XLA's
/// `HeapSimulator::RunComputation`.
pub(super) fn share(flow: &mut Flow<'_, '_>, handovers: &[Handover], is_in_heap: impl Fn(u32) -> bool) {
    for &handover in handovers {
        let Handover { time, operand, result } = handover;
        let (old, new) = (*flow.class(operand), *flow.class(result));
        // A result that has taken over another operand starts before; an operand that another result has taken over
        // ends later.
        let is_free = old.end == time && new.start == time;
        let is_heap = is_in_heap(flow.find(operand)) && is_in_heap(flow.find(result));
        if is_free && is_heap && !old.is_merged && !new.is_merged {
            flow.merge(operand, result);
        }
    }
}

fn handover(flow: &mut Flow<'_, '_>, point: usize, (element, operand): SharedPair) -> Option<Handover> {
    let operand = flow.nodes(flow.operand(point, operand)?).start;
    let result = match element {
        Some(element) => flow.element(point, element).start,
        None => flow.nodes(point).start,
    };
    let time = flow.schedule.time(point);
    flow.nodes(point).contains(&result).then_some(Handover { time, operand, result })
}

/// Whether the operand ends and the result starts at the time, and one fits where the other is.
fn is_possible(flow: &mut Flow<'_, '_>, Handover { time, operand, result }: Handover) -> bool {
    let (old, new) = (*flow.class(operand), *flow.class(result));
    let space = |class: Class| class.elsewhere.map(|(space, _)| space);
    let fits = old.bytes == new.bytes && space(old) == space(new);
    let fits = fits && !old.is_tuple && !new.is_tuple && !old.is_virtual && !new.is_virtual;
    let is_other = flow.find(operand) != flow.find(result);
    let ends = flow.ranges(operand).range(..time).next_back().is_some_and(|(_, &end)| end == time);
    fits && is_other && ends && flow.ranges(result).contains_key(&time)
}

fn update_at(flow: &mut Flow<'_, '_>, handover: Handover, is_donated: impl Fn(u32) -> bool) {
    let Handover { time, operand, result } = handover;
    let (old, new) = (*flow.class(operand), *flow.class(result));
    let is_fixed = old.is_constant || old.is_argument && !is_donated(flow.find(operand));
    // Arguments and results of the program have memory of their own, and one memory cannot be that of two of them.
    let is_clash = new.is_output && (old.is_argument || old.is_output);
    let before = flow.ranges(operand);
    let is_free = is_apart(&before, &after_start(flow.ranges(result), time))
        && new.argument.is_none_or(|argument| is_apart(&before, &flow.ranges(argument)));
    if !is_fixed && !is_clash && is_free && is_possible(flow, handover) {
        flow.put_together(operand, result);
    }
}

/// Whether a result and an operand have the same type, sizes and layout.
fn same_layout(flow: &Flow<'_, '_>, point: usize, element: Option<i64>, operand: usize) -> bool {
    let Some(result) = flow.instruction(point).shape.as_ref() else { return false };
    let result = match element.and_then(|element| usize::try_from(element).ok()) {
        Some(element) => result.tuple_shapes.get(element),
        None => Some(result),
    };
    let operand = flow.operand(point, operand).and_then(|operand| flow.instruction(operand).shape.as_ref());
    result.zip(operand).is_some_and(|(a, b)| is_same(a, b))
}

fn is_same(a: &ShapeProto, b: &ShapeProto) -> bool {
    let order = |shape: &ShapeProto| shape.layout.as_ref().map(|layout| layout.minor_to_major.clone());
    let orders = order(a).zip(order(b));
    a.element_type == b.element_type && a.dimensions == b.dimensions && orders.is_none_or(|(a, b)| a == b)
}

/// Returns the operands that an instruction updates in place.
fn updated(instruction: &HloInstructionProto) -> Vec<SharedPair> {
    let operands = instruction.operand_ids.len();
    let each = |count: usize| match count {
        1 => vec![(None, 0)],
        count => (0..count).map(|nth| (Some(nth as i64), nth)).collect(),
    };
    match instruction.opcode.as_str() {
        "dynamic-update-slice" | "set-dimension-size" => vec![(None, 0)],
        "scatter" => each(operands / 2),
        "all-reduce-start" => each(operands),
        "ragged-all-to-all" => vec![(None, 1)],
        "collective-permute" if operands == 4 => vec![(None, 1)],
        "custom-call" => {
            let pair = |aliasing: &meshloom_hlo::proto::OutputOperandAliasing| {
                let operand = usize::try_from(aliasing.operand_index).ok()?;
                let is_whole = aliasing.operand_shape_index.is_empty() && aliasing.output_shape_index.len() <= 1;
                is_whole.then(|| (aliasing.output_shape_index.first().copied(), operand))
            };
            instruction.output_operand_aliasing.iter().filter_map(pair).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the operands from which an instruction computes its result element by element.
fn elementwise(instruction: &HloInstructionProto) -> Vec<SharedPair> {
    match instruction.opcode.as_str() {
        opcode if is_by_element(opcode) => (0..instruction.operand_ids.len()).map(|operand| (None, operand)).collect(),
        "triangular-solve" => vec![(None, 1)],
        "sort" if instruction.operand_ids.len() == 1 => vec![(None, 0)],
        "sort" => (0..instruction.operand_ids.len()).map(|nth| (Some(nth as i64), nth)).collect(),
        _ => Vec::new(),
    }
}

/// The operands that fusions update, and those that they compute from element by element, by computation.
#[derive(Default)]
struct Fusions(FxHashMap<i64, (Vec<SharedPair>, Vec<SharedPair>)>);

impl Fusions {
    fn pairs(&mut self, module: &Module<'_>, fusion: &HloInstructionProto) -> (Vec<SharedPair>, Vec<SharedPair>) {
        let Some(callee) = module.callee(fusion, 0) else { return Default::default() };
        let found = self.0.entry(callee.proto().id).or_insert_with(|| {
            let is_loop = matches!(fusion.fusion_kind.as_str(), "kLoop" | "kInput");
            let elementwise = if is_loop { elementwise_in_fusion(callee) } else { Vec::new() };
            (updated_in_fusion(callee), elementwise)
        });
        found.clone()
    }
}

/// Returns the results of a fusion, each with its element of the tuple.
fn roots<'a>(callee: &Computation<'a>) -> Vec<(Option<i64>, &'a HloInstructionProto)> {
    match callee.root() {
        Some(root) if root.opcode == "tuple" => {
            let operands = (0..).zip(callee.operands(root));
            operands.filter_map(|(nth, operand)| Some((Some(nth), operand?))).collect()
        }
        root => root.map(|root| (None, root)).into_iter().collect(),
    }
}

/// Returns the parameters that a fusion updates in place.
fn updated_in_fusion(callee: &Computation<'_>) -> Vec<SharedPair> {
    let pair = |(element, root): (Option<i64>, &HloInstructionProto)| {
        let mut source = match root.opcode.as_str() {
            "dynamic-update-slice" | "scatter" => callee.operand(root, 0)?,
            _ => return None,
        };
        if source.opcode == "bitcast" {
            source = callee.operand(source, 0)?;
        }
        (source.opcode == "parameter").then_some((element, usize::try_from(source.parameter_number).ok()?))
    };
    roots(callee).into_iter().filter_map(pair).collect()
}

/// Returns the parameters of a fusion whose uses, and the uses of these, are all elementwise.
fn elementwise_in_fusion(callee: &Computation<'_>) -> Vec<SharedPair> {
    let instructions = callee.instructions();
    // From the last to the first: a user follows what it uses.
    let mut is_elementwise_on = vec![true; instructions.len()];
    for (position, instruction) in instructions.iter().enumerate().rev() {
        let passes = match instruction.opcode.as_str() {
            "tuple" => true,
            opcode => is_by_element(opcode),
        };
        for operand in callee.operand_positions(instruction) {
            is_elementwise_on[operand] &= passes && is_elementwise_on[position];
        }
    }
    let parameters = instructions.iter().enumerate().filter(|(position, instruction)| {
        instruction.opcode == "parameter"
            && is_elementwise_on[*position]
            && instruction.shape.as_ref().is_some_and(|shape| shape.element_type != i32::from(PrimitiveType::Tuple))
    });
    let numbers: Vec<usize> =
        parameters.filter_map(|(_, parameter)| usize::try_from(parameter.parameter_number).ok()).collect();
    let roots = roots(callee);
    let pairs = roots.iter().flat_map(|&(element, _)| numbers.iter().map(move |&number| (element, number)));
    pairs.take(MOST_PAIRS).collect()
}
