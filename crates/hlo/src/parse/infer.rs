//! Shapes that hand-written text leaves out: `%c = add(%a, %b)`.

use super::Parser;
use super::computation::Scope;
use super::error::{Result, fault};
use super::shape::{MAX_RANK, array, tuple};
use crate::proto::{FftType, HloInstructionProto, PrimitiveType, ShapeProto, WindowDimension};
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
    if let Some(shape) = infer_sizes(parser, instruction, operands) {
        return Some(shape);
    }
    match instruction.opcode.as_str() {
        "abs" | "real" | "imag" if first.is_some_and(is_complex) => with_type(first?, part_type(first?)?),
        "complex" => with_type(first?, complex_type(first?)?),
        "compare" | "is-finite" => with_type(first?, PrimitiveType::Pred),
        "select" => Some((*operands.get(1)?).clone()),
        "clamp" => Some((*operands.get(1)?).clone()),
        "tuple" => Some(tuple(copies(operands))),
        "sort" if operands.len() > 1 => Some(tuple(copies(operands))),
        "scatter" if operands.len() > 3 => Some(tuple(copies(&operands[..operands.len() / 2]))),
        "batch-norm-inference" | "select-and-scatter" => first.cloned(),
        "batch-norm-grad" | "batch-norm-training" => {
            let statistics = *operands.get(1)?;
            Some(tuple(copies(&[first?, statistics, statistics])))
        }
        "triangular-solve" => operands.get(1).copied().cloned(),
        // Complex operands are read above.
        "imag" | "real" => first.cloned(),
        // XLA takes it without the dimensions that a result of another shape needs.
        "broadcast" if instruction.dimensions.is_empty() => first.cloned(),
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
        "concatenate" => concatenated(operands, usize::try_from(*instruction.dimensions.first()?).ok()?),
        opcode if Operation::has_mark(opcode, Mark::Same) => first.cloned(),
        _ => None,
    }
}

/// The shape of an instruction whose dimensions have other sizes than those of its operands, if it is such a one.
fn infer_sizes(parser: &Parser<'_>, instruction: &HloInstructionProto, operands: &[&ShapeProto]) -> Option<ShapeProto> {
    let first = operands.first().copied();
    let of_first = |sizes: Vec<i64>| Some(array(PrimitiveType::try_from(first?.element_type).ok()?, sizes));
    let called = instruction.called_computation_ids.first();
    let root = || parser.result_of(usize::try_from(*called?).ok()?);
    match instruction.opcode.as_str() {
        "convolution" => of_first(convolution(instruction, first?, operands.get(1)?)?),
        "dot" => dot(instruction, operands),
        "fft" => transform(instruction, first?),
        "gather" => of_first(gather(instruction, operands.get(1)?)?),
        "map" => with_type(first?, PrimitiveType::try_from(root()?.element_type).ok()?),
        "pad" => of_first(padded(instruction, first?)?),
        "reduce" | "reduce-window" => {
            let inputs = operands.get(..operands.len() / 2)?;
            let results = inputs.iter().map(|input| {
                let sizes = match instruction.opcode.as_str() {
                    "reduce" => without(&input.dimensions, &instruction.dimensions),
                    _ => windowed(&input.dimensions, &instruction.window.as_ref()?.dimensions)?,
                };
                Some(array(PrimitiveType::try_from(input.element_type).ok()?, sizes))
            });
            let mut results: Vec<ShapeProto> = results.collect::<Option<_>>()?;
            if results.len() == 1 { results.pop() } else { Some(tuple(results)) }
        }
        "scaled-dot" => dot(instruction, &[first?, *operands.get(2)?]),
        "scan" => scanned(instruction, first?, root()?),
        "set-dimension-size" => {
            let mut shape = first?.clone();
            shape.is_dynamic_dimension.resize(shape.dimensions.len(), false);
            let dimension = usize::try_from(*instruction.dimensions.first()?).ok()?;
            *shape.is_dynamic_dimension.get_mut(dimension)? = true;
            Some(shape)
        }
        "topk" => {
            let mut sizes = first?.dimensions.clone();
            *sizes.last_mut()? = instruction.k;
            Some(tuple(vec![of_first(sizes.clone())?, array(PrimitiveType::S32, sizes)]))
        }
        _ => None,
    }
}

fn copies(shapes: &[&ShapeProto]) -> Vec<ShapeProto> {
    shapes.iter().map(|&shape| shape.clone()).collect()
}

/// Sizes without those of some dimensions.
fn without(sizes: &[i64], dimensions: &[i64]) -> Vec<i64> {
    // A text may have lists of any length, and this takes the product of two.
    let kept = sizes.iter().take(MAX_RANK).enumerate().filter(|(place, _)| !dimensions.contains(&(*place as i64)));
    kept.map(|(_, &size)| size).collect()
}

/// How often each window fits into its dimension.
fn windowed(sizes: &[i64], windows: &[WindowDimension]) -> Option<Vec<i64>> {
    let dilated = |size: i64, by: i64| size.checked_sub(1)?.checked_mul(by)?.checked_add(1);
    let fits = |(&size, window): (&i64, &WindowDimension)| {
        let base = if size == 0 { 0 } else { dilated(size, window.base_dilation)? };
        let space = base.checked_add(window.padding_low)?.checked_add(window.padding_high)?;
        let room = space.checked_sub(dilated(window.size, window.window_dilation)?)?;
        if room < 0 { Some(0) } else { room.checked_div(window.stride)?.checked_add(1) }
    };
    if windows.len() == sizes.len() { sizes.iter().zip(windows).map(fits).collect() } else { None }
}

fn convolution(instruction: &HloInstructionProto, input: &ShapeProto, kernel: &ShapeProto) -> Option<Vec<i64>> {
    let numbers = instruction.convolution_dimension_numbers.as_ref()?;
    let size = |shape: &ShapeProto, dimension: i64| shape.dimensions.get(usize::try_from(dimension).ok()?).copied();
    let spatial: Option<Vec<i64>> = numbers.input_spatial_dimensions.iter().map(|&it| size(input, it)).collect();
    let windows = instruction.window.as_ref().map_or(&[][..], |window| window.dimensions.as_slice());
    let mut sizes = vec![0; input.dimensions.len()];
    let mut set = |dimension: i64, size: i64| -> Option<()> {
        *sizes.get_mut(usize::try_from(dimension).ok()?)? = size;
        Some(())
    };
    let batch = size(input, numbers.input_batch_dimension)?;
    set(numbers.output_batch_dimension, batch.checked_div(instruction.batch_group_count.max(1))?)?;
    set(numbers.output_feature_dimension, size(kernel, numbers.kernel_output_feature_dimension)?)?;
    for (&dimension, size) in numbers.output_spatial_dimensions.iter().zip(windowed(&spatial?, windows)?) {
        set(dimension, size)?;
    }
    Some(sizes)
}

fn transform(instruction: &HloInstructionProto, input: &ShapeProto) -> Option<ShapeProto> {
    let length = instruction.fft_length.last().copied();
    let (element_type, last) = match instruction.fft_type() {
        FftType::Fft | FftType::Ifft => return Some(input.clone()),
        FftType::Rfft => (complex_type(input)?, length? / 2 + 1),
        FftType::Irfft => (part_type(input)?, length?),
    };
    let mut result = with_type(input, element_type)?;
    *result.dimensions.last_mut()? = last;
    Some(result)
}

fn gather(instruction: &HloInstructionProto, indices: &ShapeProto) -> Option<Vec<i64>> {
    let numbers = instruction.gather_dimension_numbers.as_ref()?;
    let left_out = [numbers.collapsed_slice_dims.as_slice(), &numbers.operand_batching_dims].concat();
    let mut offsets = without(&instruction.gather_slice_sizes, &left_out).into_iter();
    let mut batch = without(&indices.dimensions, &[numbers.index_vector_dim]).into_iter();
    let rank = offsets.len() + batch.len();
    let is_offset = |dimension: usize| numbers.offset_dims.contains(&(dimension as i64));
    (0..rank).map(|dimension| if is_offset(dimension) { offsets.next() } else { batch.next() }).collect()
}

fn padded(instruction: &HloInstructionProto, input: &ShapeProto) -> Option<Vec<i64>> {
    let padding = &instruction.padding_config.as_ref()?.dimensions;
    let sizes = input.dimensions.iter().zip(padding).map(|(&size, padding)| {
        let between = size.saturating_sub(1).max(0).checked_mul(padding.interior_padding)?;
        let edges = padding.edge_padding_low.checked_add(padding.edge_padding_high)?;
        size.checked_add(between)?.checked_add(edges)
    });
    sizes.collect()
}

/// The carries as they are, the other results with the dimension along which the scan goes.
fn scanned(instruction: &HloInstructionProto, input: &ShapeProto, root: &ShapeProto) -> Option<ShapeProto> {
    let dimension = usize::try_from(*instruction.dimensions.first()?).ok()?;
    let steps = *input.dimensions.get(dimension)?;
    let stacked = |shape: &ShapeProto| {
        let mut sizes = shape.dimensions.clone();
        sizes.splice(dimension.min(sizes.len())..dimension.min(sizes.len()), [steps]);
        Some(array(PrimitiveType::try_from(shape.element_type).ok()?, sizes))
    };
    let carries = usize::try_from(instruction.num_carries).ok()?;
    if !is_tuple(root) {
        return if carries > 0 { Some(root.clone()) } else { stacked(root) };
    }
    let stacks = root.tuple_shapes.len().saturating_sub(carries);
    let results = root.tuple_shapes.iter().enumerate();
    let results = results.map(|(place, shape)| if place < stacks { stacked(shape) } else { Some(shape.clone()) });
    results.collect::<Option<_>>().map(tuple)
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
