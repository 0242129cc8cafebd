//! The operations of a convolution.

use super::operands::Operands;
use crate::size::product;
use meshloom_hlo::mesh::common_divisor;
use meshloom_hlo::proto::{ShapeProto, WindowDimension};

/// Counts two operations for each product of an element of the input with one of the kernel that is in the result
/// (`GetConvolutionFlops`, hlo_cost_analysis.cc in XLA): padding and the holes of a dilated input are not multiplied.
pub(super) fn flops(operands: &Operands<'_, '_>) -> u64 {
    let shapes = || Some((operands.shape(0)?, operands.shape(1)?, operands.first_result()?));
    shapes().map_or(0, |(input, kernel, output)| of_shapes(operands, input, kernel, output))
}

/// Counts the same for an input, a kernel and an output that may be operands and result in any order: the gradients of
/// a convolution multiply the same elements.
pub(super) fn of_shapes(
    operands: &Operands<'_, '_>,
    input: &ShapeProto,
    kernel: &ShapeProto,
    output: &ShapeProto,
) -> u64 {
    let instruction = operands.instruction;
    let Some(numbers) = instruction.convolution_dimension_numbers.as_deref() else { return 0 };
    let size = |shape: &ShapeProto, dimension: i64| {
        let size = usize::try_from(dimension).ok().and_then(|dimension| shape.dimensions.get(dimension));
        size.copied().unwrap_or(0).max(0)
    };
    let groups = instruction.feature_group_count.max(1);
    let features = size(input, numbers.input_feature_dimension) / groups;
    let batch = size(input, numbers.input_batch_dimension) / instruction.batch_group_count.max(1);
    let window = instruction.window.iter().flat_map(|window| &window.dimensions);
    let spatial = window.enumerate().map(|(nth, window)| {
        let at = |dimensions: &[i64], shape| dimensions.get(nth).map_or(0, |&dimension| size(shape, dimension));
        valid_positions(
            window,
            at(&numbers.input_spatial_dimensions, input),
            at(&numbers.kernel_spatial_dimensions, kernel),
            at(&numbers.output_spatial_dimensions, output),
        )
    });
    let fixed = [features, size(output, numbers.output_feature_dimension), batch];
    spatial.fold(product(fixed), u64::saturating_mul).saturating_mul(2)
}

/// Counts the pairs of a position in the kernel and one in the output that meet an element of the input.
fn valid_positions(window: &WindowDimension, input: i64, kernel: i64, output: i64) -> u64 {
    /// Positions of the kernel are examined one by one; if that takes too long, padding is ignored.
    const MOST_STEPS: i64 = 1 << 16;
    let (stride, dilation, holes) = (window.stride.max(1), window.window_dilation.max(1), window.base_dilation.max(1));
    // The outputs that meet an element repeat with this period.
    let period = holes / common_divisor(holes as usize, stride as usize) as i64;
    if kernel.saturating_mul(period) > MOST_STEPS {
        return product([kernel, output]);
    }
    let count = |position: i64| {
        // The output `o` meets `o * stride + offset`, which must be an element: a multiple of `holes` in the dilated
        // input.
        let offset = position.checked_mul(dilation)?.checked_sub(window.padding_low)?;
        let last = i128::from(input - 1) * i128::from(holes);
        let (offset, stride, holes) = (i128::from(offset), i128::from(stride), i128::from(holes));
        let from = (-offset).max(0).div_euclid(stride) + i128::from((-offset).max(0).rem_euclid(stride) != 0);
        let until = (last - offset).div_euclid(stride).min(i128::from(output) - 1);
        if input <= 0 || until < from {
            return Some(0);
        }
        let meets = |output: i128| (output * stride + offset).rem_euclid(holes) == 0;
        let period = i128::from(period);
        let first = (from..=until.min(from + period - 1)).find(|&output| meets(output));
        first.map_or(Some(0), |first| u64::try_from((until - first) / period + 1).ok())
    };
    (0..kernel).map(|position| count(position).unwrap_or(0)).fold(0, u64::saturating_add)
}
