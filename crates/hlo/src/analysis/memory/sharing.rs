//! Which results take over the memory of an operand that their instruction is the last to read.

use rustc_hash::FxHashMap;

use super::dataflow::Flow;
use crate::analysis::cost::is_by_element;
use crate::analysis::index::{Computation, Module};
use crate::proto::{HloInstructionProto, PrimitiveType, ShapeProto};

/// The number of pairs of a result and a parameter of one fusion that are examined; few fusions have many of both.
const MOST_PAIRS: usize = 4096;

/// A result that may lie where an operand does: an element of the result's tuple, if it is one, and the operand's
/// position.
type Pair = (Option<i64>, usize);

/// Joins results with the operands that they update (`GetInPlaceInputOutputPairs`, alias_info.cc in XLA) or are
/// computed from element by element (`CanShareOperandBufferWithUser`, hlo_dataflow_analysis.cc), where nothing reads
/// those later.
pub(super) fn share(flow: &mut Flow<'_, '_>, is_donated: impl Fn(u32) -> bool) {
    let mut fusions = Fusions::default();
    for time in 0..flow.schedule.point_count() {
        let point = flow.schedule.point_at(time);
        let instruction = flow.instruction(point);
        let (updated, elementwise) = match instruction.opcode.as_str() {
            "fusion" => fusions.pairs(flow.walk.module(), instruction),
            _ => (updated(instruction), elementwise(instruction)),
        };
        for &(element, operand) in &updated {
            take_over(flow, point, time as u32, element, operand, &is_donated);
        }
        // A result has room in one operand.
        let mut taken: Vec<Option<i64>> = updated.iter().map(|&(element, _)| element).collect();
        for &(element, operand) in &elementwise {
            if !taken.contains(&element)
                && same_layout(flow, point, element, operand)
                && take_over(flow, point, time as u32, element, operand, &is_donated)
            {
                taken.push(element);
            }
        }
    }
}

fn take_over(
    flow: &mut Flow<'_, '_>,
    point: usize,
    time: u32,
    element: Option<i64>,
    operand: usize,
    is_donated: impl Fn(u32) -> bool,
) -> bool {
    let Some(operand) = flow.operand(point, operand) else { return false };
    let result = match element {
        Some(element) => flow.element(point, element).start,
        None => flow.nodes(point).start,
    };
    let operand = flow.nodes(operand).start;
    if !flow.nodes(point).contains(&result) || flow.find(result) == flow.find(operand) {
        return false;
    }
    let (old, new) = (*flow.class(operand), *flow.class(result));
    let is_fixed = old.is_constant || old.is_argument && !is_donated(flow.find(operand));
    let fits = old.bytes == new.bytes && !old.is_tuple && !new.is_tuple && !old.is_virtual && !new.is_virtual;
    // Arguments and results of the program have memory of their own, that both cannot be in one of.
    let is_clash = new.is_output && (old.is_argument || old.is_output);
    // The memory of a donated argument is free once the argument has been read for the last time.
    let is_free = new.argument.is_none_or(|argument| flow.class(argument).end < old.start);
    let is_older = old.start < time;
    let shares = fits && is_older && !is_fixed && !is_clash && is_free && old.end <= time;
    if shares {
        flow.join(operand, result);
    }
    shares
}

/// Whether a result and an operand are of the same type, sizes and layout.
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

/// What an instruction updates in place.
fn updated(instruction: &HloInstructionProto) -> Vec<Pair> {
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
            let pair = |aliasing: &crate::proto::OutputOperandAliasing| {
                let operand = usize::try_from(aliasing.operand_index).ok()?;
                let is_whole = aliasing.operand_shape_index.is_empty() && aliasing.output_shape_index.len() <= 1;
                is_whole.then(|| (aliasing.output_shape_index.first().copied(), operand))
            };
            instruction.output_operand_aliasing.iter().filter_map(pair).collect()
        }
        _ => Vec::new(),
    }
}

/// Of what an instruction computes its result element by element.
fn elementwise(instruction: &HloInstructionProto) -> Vec<Pair> {
    match instruction.opcode.as_str() {
        opcode if is_by_element(opcode) => (0..instruction.operand_ids.len()).map(|operand| (None, operand)).collect(),
        "triangular-solve" => vec![(None, 1)],
        "sort" if instruction.operand_ids.len() == 1 => vec![(None, 0)],
        "sort" => (0..instruction.operand_ids.len()).map(|nth| (Some(nth as i64), nth)).collect(),
        _ => Vec::new(),
    }
}

/// What fusions update and compute element by element, by computation.
#[derive(Default)]
struct Fusions(FxHashMap<i64, (Vec<Pair>, Vec<Pair>)>);

impl Fusions {
    fn pairs(&mut self, module: &Module<'_>, fusion: &HloInstructionProto) -> (Vec<Pair>, Vec<Pair>) {
        let Some(callee) = module.callee(fusion, 0) else { return Default::default() };
        let found = self.0.entry(callee.proto().id).or_insert_with(|| {
            let is_loop = matches!(fusion.fusion_kind.as_str(), "kLoop" | "kInput");
            let elementwise = if is_loop { elementwise_in_fusion(callee) } else { Vec::new() };
            (updated_in_fusion(callee), elementwise)
        });
        found.clone()
    }
}

/// The results of a fusion, each with the element of its tuple that it is.
fn roots<'a>(callee: &Computation<'a>) -> Vec<(Option<i64>, &'a HloInstructionProto)> {
    match callee.root() {
        Some(root) if root.opcode == "tuple" => {
            let operands = (0..).zip(callee.operands(root));
            operands.filter_map(|(nth, operand)| Some((Some(nth), operand?))).collect()
        }
        root => root.map(|root| (None, root)).into_iter().collect(),
    }
}

/// The parameters that a fusion updates in place.
fn updated_in_fusion(callee: &Computation<'_>) -> Vec<Pair> {
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

/// The parameters of a fusion whose uses, and the uses of these, are all elementwise.
fn elementwise_in_fusion(callee: &Computation<'_>) -> Vec<Pair> {
    let instructions = callee.instructions();
    // From the last to the first: a user follows what it uses.
    let mut is_elementwise_on = vec![true; instructions.len()];
    for (position, instruction) in instructions.iter().enumerate().rev() {
        let passes = match instruction.opcode.as_str() {
            "tuple" => true,
            opcode => is_by_element(opcode),
        };
        for operand in instruction.operand_ids.iter().filter_map(|&id| callee.position(id)) {
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
