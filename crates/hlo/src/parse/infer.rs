//! Shapes that hand-written text leaves out: `%c = add(%a, %b)`.

use super::Parser;
use super::computation::Scope;
use super::error::{Result, fault};
use super::shape::{array, tuple};
use crate::proto::{HloInstructionProto, PrimitiveType, ShapeProto};
use crate::shape::is_tuple;
use crate::syntax::opcodes::{Mark, Operation};

/// The shape of an instruction whose operands and attributes are known.
pub(super) fn shape(
    parser: &mut Parser<'_>,
    scope: &Scope<'_>,
    start: usize,
    instruction: &HloInstructionProto,
) -> Result<ShapeProto> {
    let operands: Option<Vec<&ShapeProto>> = instruction.operand_ids.iter().map(|&id| scope.shape_of(id)).collect();
    // A tuple of two tuples of two tuples is large long before its text is. So the total size of inferred shapes is
    // limited by the size of the text.
    let called = instruction.called_computation_ids.iter().filter_map(|&id| parser.result_of(id as usize));
    let inputs = operands.iter().flatten().copied().chain(called);
    let size = inputs.fold(1usize, |size, shape| size.saturating_add(nodes(shape)));
    parser.inferred = parser.inferred.saturating_add(size);
    if parser.inferred > parser.lexer.bytes().len() {
        return fault(start, "write the shapes before the opcodes: those to be inferred are too large");
    }
    let result = operands.and_then(|operands| infer(parser, instruction, &operands));
    match result {
        Some(shape) => parser.memory.take_shape(&shape, start).map(|()| shape),
        None => fault(start, format!("write the shape of {} before it: it cannot be inferred", instruction.opcode)),
    }
}

/// The number of shapes that a shape consists of, itself included.
fn nodes(shape: &ShapeProto) -> usize {
    1 + shape.tuple_shapes.iter().map(nodes).sum::<usize>()
}

fn infer(parser: &Parser<'_>, instruction: &HloInstructionProto, operands: &[&ShapeProto]) -> Option<ShapeProto> {
    let called = |place: usize| {
        let id = usize::try_from(*instruction.called_computation_ids.get(place)?).ok()?;
        parser.result_of(id).cloned()
    };
    let first = operands.first().copied();
    match instruction.opcode.as_str() {
        "abs" | "real" | "imag" if first.is_some_and(is_complex) => with_type(first?, part_type(first?)?),
        "complex" => with_type(first?, complex_type(first?)?),
        "compare" | "is-finite" => with_type(first?, PrimitiveType::Pred),
        "select" => Some((*operands.get(1)?).clone()),
        "clamp" => Some((*operands.get(1)?).clone()),
        "tuple" => Some(tuple(operands.iter().map(|&shape| shape.clone()).collect())),
        "sort" if operands.len() > 1 => Some(tuple(operands.iter().map(|&shape| shape.clone()).collect())),
        "get-tuple-element" => {
            let index = usize::try_from(instruction.tuple_index).ok()?;
            first.filter(|shape| is_tuple(shape))?.tuple_shapes.get(index).cloned()
        }
        "after-all" => Some(ShapeProto { element_type: PrimitiveType::Token.into(), ..Default::default() }),
        "partition-id" | "replica-id" => Some(array(PrimitiveType::U32, Vec::new())),
        "get-dimension-size" => Some(array(PrimitiveType::S32, Vec::new())),
        "call" | "conditional" => called(0),
        "transpose" => {
            let first = first?;
            let size = |&dimension: &i64| first.dimensions.get(usize::try_from(dimension).ok()?).copied();
            let sizes: Option<Vec<i64>> = instruction.dimensions.iter().map(size).collect();
            let mut result = array(PrimitiveType::try_from(first.element_type).ok()?, sizes?);
            // The elements stay where they are.
            if let (Some(from), Some(to)) = (&first.layout, &mut result.layout) {
                let place = |dimension: &i64| instruction.dimensions.iter().position(|other| other == dimension);
                let order: Option<Vec<i64>> =
                    from.minor_to_major.iter().map(|dimension| Some(place(dimension)? as i64)).collect();
                to.minor_to_major = order.filter(|order| order.len() == result.dimensions.len())?;
            }
            Some(result)
        }
        "reduce" if operands.len() == 2 => {
            let first = first?;
            let kept = first.dimensions.iter().enumerate();
            let kept = kept.filter(|(place, _)| !instruction.dimensions.contains(&(*place as i64)));
            let sizes = kept.map(|(_, &size)| size).collect();
            Some(array(PrimitiveType::try_from(first.element_type).ok()?, sizes))
        }
        "concatenate" => concatenated(operands, usize::try_from(*instruction.dimensions.first()?).ok()?),
        "dot" => dot(instruction, operands),
        opcode if Operation::has_mark(opcode, Mark::Same) => first.cloned(),
        _ => None,
    }
}

fn is_complex(shape: &ShapeProto) -> bool {
    matches!(PrimitiveType::try_from(shape.element_type), Ok(PrimitiveType::C64 | PrimitiveType::C128))
}

fn part_type(shape: &ShapeProto) -> Option<PrimitiveType> {
    match PrimitiveType::try_from(shape.element_type).ok()? {
        PrimitiveType::C64 => Some(PrimitiveType::F32),
        PrimitiveType::C128 => Some(PrimitiveType::F64),
        _ => None,
    }
}

fn complex_type(shape: &ShapeProto) -> Option<PrimitiveType> {
    match PrimitiveType::try_from(shape.element_type).ok()? {
        PrimitiveType::F32 => Some(PrimitiveType::C64),
        PrimitiveType::F64 => Some(PrimitiveType::C128),
        _ => None,
    }
}

fn with_type(shape: &ShapeProto, element_type: PrimitiveType) -> Option<ShapeProto> {
    Some(ShapeProto { element_type: element_type.into(), ..shape.clone() })
}

fn concatenated(operands: &[&ShapeProto], dimension: usize) -> Option<ShapeProto> {
    let mut result = (*operands.first()?).clone();
    let mut sizes = operands.iter().map(|shape| shape.dimensions.get(dimension).copied());
    let total = sizes.try_fold(0i64, |total, size| total.checked_add(size?))?;
    *result.dimensions.get_mut(dimension)? = total;
    Some(result)
}

/// The shape of a dot: the batch dimensions, then the remaining ones of each operand.
fn dot(instruction: &HloInstructionProto, operands: &[&ShapeProto]) -> Option<ShapeProto> {
    let &[lhs, rhs] = operands else { return None };
    let default = Default::default();
    let numbers = instruction.dot_dimension_numbers.as_deref().unwrap_or(&default);
    let size = |&dimension: &i64| lhs.dimensions.get(usize::try_from(dimension).ok()?).copied();
    let mut sizes: Vec<i64> = numbers.lhs_batch_dimensions.iter().map(size).collect::<Option<_>>()?;
    for (shape, batch, contracting) in [
        (lhs, &numbers.lhs_batch_dimensions, &numbers.lhs_contracting_dimensions),
        (rhs, &numbers.rhs_batch_dimensions, &numbers.rhs_contracting_dimensions),
    ] {
        let is_left = |place: usize| !batch.contains(&(place as i64)) && !contracting.contains(&(place as i64));
        sizes.extend(shape.dimensions.iter().enumerate().filter(|(place, _)| is_left(*place)).map(|(_, &size)| size));
    }
    Some(array(PrimitiveType::try_from(lhs.element_type).ok()?, sizes))
}
