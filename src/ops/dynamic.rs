//! Slices at computed positions.
//!
//! As in XLA, a start index that would let the slice leave the operand is moved back until the slice fits.

use meshloom_hlo::message::counted;

use super::rules::*;
use super::{
    AxisList, BinaryKind, Class, Concatenate, Gather, GatherDims, IndexPromise, OperandClass, Operands, Scatter,
    ScatterKind, batched_dims, to_i64,
};

/// Checks the start indices: one integer scalar for each dimension, all of one type.
fn expect_starts(operands: &[&TensorType], first: usize, rank: usize) -> Result<(), TypeError> {
    expect_operands(operands, first + rank)?;
    for (index, ty) in operands.iter().enumerate().skip(first) {
        expect_dims(index, ty, &[])?;
        OperandClass::Integer.check(index, ty)?;
        expect_dtype(index, ty, operands[first].dtype)?;
    }
    Ok(())
}

fn expect_fits(sizes: &[usize], operand: &TensorType) -> Result<(), TypeError> {
    expect_rank(0, operand, sizes.len())?;
    for (dim, (&size, &available)) in sizes.iter().zip(&operand.dims).enumerate() {
        let elements = counted(size, "element");
        refuse_if!(size > available, "a slice of {elements} does not fit dimension {dim} of size {available}");
    }
    Ok(())
}

/// `dynamic-slice(operand, start...)`: a sub-tensor of fixed sizes at a computed position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicSlice {
    /// Sizes of the result.
    pub sizes: Dims,
}

crate::ir::op_text!(DynamicSlice = "dynamic-slice" { sizes: result });

impl Primitive for DynamicSlice {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let rank = operands.first().map_or(0, |ty| ty.rank());
        expect_starts(operands, 1, rank)?;
        expect_fits(&self.sizes, operands[0])?;
        Ok(one(TensorType { dtype: operands[0].dtype, dims: self.sizes.clone() }))
    }

    rules!(facts: MOVEMENT, jvp: linear);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let ty = context.operand_type(0).clone();
        let starts: Values = (1..context.operand_count()).map(|index| context.operand(index)).collect();
        context.pull_back(|builder, ct| {
            let zeros = builder.splat(ty, 0.0);
            builder.push1(DynamicUpdateSlice, &[&[zeros, ct], &starts[..]].concat())
        })
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, &size) in self.sizes.iter().enumerate() {
            // A slice of a whole dimension starts at zero, whatever its index is.
            if size == operands[0].dims[dim] {
                rule.keep(operands[0], dim);
            } else if 2 * size <= operands[0].dims[dim] && operands[0].dtype != DType::Pred {
                // Adding up slices moves less than joining the dimension.
                rule.add(operands[0].dims[dim], FactorKind::Indexed, &[(0, dim)], &[]);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        if !(1..context.operand_count()).any(|index| context.is_batched(index)) {
            let operands = with_leading_start(context, 1)?;
            return context.apply(DynamicSlice { sizes: batched_dims(context.size, &self.sizes) }, &operands);
        }
        let rank = self.sizes.len();
        let indexed = cut_dims(&context.example_type(0).dims, &self.sizes);
        let starts = batched_starts(context, 1, &indexed)?;
        let dims = GatherDims {
            offset_dims: (1..=rank).collect(),
            start_index_map: indexed,
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let gather = Gather { dims: Box::new(dims), slice_sizes: self.sizes.clone(), promise: IndexPromise::default() };
        let gather = if context.is_batched(0) { gather.paired() } else { gather };
        context.apply(gather, &[context.operand(0), starts])
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let mut value = context.operand(0);
        let mut sizes = context.result_dims(0).clone();
        let (mut starts, moved) = split_starts(context, 1, &self.sizes)?;
        for dim in moved {
            sizes[dim] = self.sizes[dim];
            (value, starts[dim]) = zeros_where_absent(context, value, starts[dim], dim, self.sizes[dim])?;
        }
        let operands: Values = std::iter::once(value).chain(starts).collect();
        context.apply_to(DynamicSlice { sizes }, &operands)
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("dynamic-slice").dynamic_slice_sizes.extend(to_i64(&self.sizes));
        context.finish();
    }
}

/// `dynamic-update-slice(operand, update, start...)`: the operand with a sub-tensor replaced at a computed position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicUpdateSlice;

crate::ir::op_text!(DynamicUpdateSlice = "dynamic-update-slice" {});

impl Primitive for DynamicUpdateSlice {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let rank = operands.first().map_or(0, |ty| ty.rank());
        expect_starts(operands, 2, rank)?;
        expect_dtype(1, operands[1], operands[0].dtype)?;
        expect_fits(&operands[1].dims, operands[0])?;
        Ok(one(operands[0].clone()))
    }

    rules!(facts = Facts { class: Class::Kernel, is_in_place: true, ..Facts::moves(Operands::These(&[0, 1])) });
    rules!(jvp: linear, emit: simple);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let starts: Vec<Value> = (2..context.operand_count()).map(|index| context.operand(index)).collect();
        let update_type = context.operand_type(1).clone();
        context.set_with(0, |builder| {
            let zeros = builder.splat(update_type.clone(), 0.0);
            builder.push1(DynamicUpdateSlice, &[&[ct, zeros], &starts[..]].concat())
        })?;
        let slice = DynamicSlice { sizes: update_type.dims };
        context.set_with(1, |builder| builder.push1(slice, &[&[ct], &starts[..]].concat()))
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, &size) in operands[0].dims.iter().enumerate() {
            if size == operands[1].dims[dim] {
                rule.add(size, FactorKind::Parallel, &[(0, dim), (1, dim)], &[(0, dim)]);
            } else {
                rule.add(size, FactorKind::Indexed, &[(0, dim)], &[(0, dim)]);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        if (2..context.operand_count()).any(|index| context.is_batched(index)) {
            return update_each(context);
        }
        let operands = with_leading_start(context, 2)?;
        context.apply(DynamicUpdateSlice, &operands)
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let mut value = context.operand(0);
        let updates = context.operand_type(1).dims.clone();
        let (mut starts, moved) = split_starts(context, 2, &updates)?;
        for &dim in &moved {
            (value, starts[dim]) = zeros_where_absent(context, value, starts[dim], dim, updates[dim])?;
        }
        let operands: Values = [value, context.operand(1)].into_iter().chain(starts).collect();
        let mut result = context.builder.push1(DynamicUpdateSlice, &operands)?;
        for dim in moved {
            let size = context.operand_dims(0)[dim];
            result = context.builder.slice_dim(result, dim, updates[dim]..updates[dim] + size);
        }
        context.push_result(result);
        Ok(())
    }
}

/// The starts, which are the operands from `first` on, moved to where the slice fits; and the dimensions of operand 0
/// that are split and not taken whole. If there are such dimensions, the starts are of type `s32`.
///
/// The op moves starts by itself; but XLA's simplifier merges a slice of a dynamic slice, as resharding makes them,
/// into one that ignores the move.
fn split_starts(
    context: &mut PartitionContext<'_>,
    first: usize,
    sizes: &[usize],
) -> Result<(Values, AxisList), OpError> {
    let mut starts: Values = (0..sizes.len()).map(|dim| context.operand(first + dim)).collect();
    let whole = context.operand_type(0).dims.clone();
    let is_split = |dim: &usize| whole[*dim] != sizes[*dim] && !context.operand_axes(0, *dim).is_empty();
    let split: AxisList = (0..sizes.len()).filter(is_split).collect();
    for (dim, start) in starts.iter_mut().enumerate() {
        let limit = (whole[dim] - sizes[dim]) as f64;
        *start = clamp(context.builder, *start, limit)?;
        if !split.is_empty() {
            *start = context.builder.convert(*start, DType::S32)?;
        }
    }
    Ok((starts, split))
}

/// An integer scalar, no less than 0 and no more than `limit`.
fn clamp(builder: &mut GraphBuilder, value: Value, limit: f64) -> Result<Value, OpError> {
    let (zero, limit) = (builder.zeros_like(value), builder.splat_like(value, limit));
    let value = builder.binary(BinaryKind::Maximum, value, zero)?;
    builder.binary(BinaryKind::Minimum, value, limit)
}

/// The device's part of operand 0 with zeros around dimension `dim`, and the start that finds a slice of `size` in it:
/// elements that other devices have are zeros in it.
fn zeros_where_absent(
    context: &mut PartitionContext<'_>,
    value: Value,
    start: Value,
    dim: usize,
    size: usize,
) -> Result<(Value, Value), OpError> {
    let axes = context.operand_axes(0, dim);
    let own = context.part_start(&axes, context.operand_dims(0)[dim])?;
    let start = context.builder.sub(start, own)?;
    let start = context.builder.shift(start, size as f64)?;
    let start = clamp(context.builder, start, (context.operand_dims(0)[dim] + size) as f64)?;
    let value = context.builder.zeros_around(value, dim, size, size);
    Ok((value, start))
}

/// The operands of the op over a batch, which stands before all other dimensions, with the same starts for all
/// examples.
fn with_leading_start(context: &mut BatchContext<'_>, first: usize) -> Result<Vec<Value>, OpError> {
    let mut operands = (0..first).map(|index| context.aligned(index)).collect::<Result<Vec<Value>, _>>()?;
    let starts = first..context.operand_count();
    let dtype = starts.clone().next().map_or(DType::S32, |index| context.example_type(index).dtype);
    operands.push(context.builder.splat(TensorType::scalar(dtype), 0.0));
    operands.extend(starts.map(|index| context.operand(index)));
    Ok(operands)
}

/// The dimensions that a slice of these sizes does not take whole. It begins at zero in the others. At least one
/// dimension is returned.
fn cut_dims(whole: &[usize], sizes: &[usize]) -> AxisList {
    let cut: AxisList = (0..sizes.len()).filter(|&dim| sizes[dim] < whole[dim]).collect();
    if cut.is_empty() { (0..sizes.len().min(1)).collect() } else { cut }
}

/// The starts in these dimensions, as `[batch, dims]`; starts are the operands from `first` on.
fn batched_starts(context: &mut BatchContext<'_>, first: usize, dims: &[usize]) -> Result<Value, OpError> {
    let column = [context.size, 1];
    let columns = dims.iter().map(|&dim| {
        let start = context.aligned(first + dim)?;
        context.builder.reshape(start, &column)
    });
    let columns = columns.collect::<Result<Vec<Value>, OpError>>()?;
    context.builder.push1(Concatenate { axis: 1 }, &columns)
}

/// Replaces a slice at a position of each example's own: a scatter. It drops updates that do not fit, so starts are
/// moved first.
fn update_each(context: &mut BatchContext<'_>) -> Result<(), OpError> {
    let indexed = cut_dims(&context.example_type(0).dims, &context.example_type(1).dims);
    let starts = batched_starts(context, 2, &indexed)?;
    let operands = [context.aligned(0)?, context.aligned(1)?];
    let builder = &mut *context.builder;
    let [sizes, kept] = operands.map(|operand| builder.ty(operand).dims.clone());
    let window: AxisList = (1..sizes.len()).collect();
    let dims = GatherDims {
        offset_dims: window,
        operand_batch_dims: AxisList::from_slice(&[0]),
        indices_batch_dims: AxisList::from_slice(&[0]),
        start_index_map: indexed.iter().map(|dim| dim + 1).collect(),
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    let starts = dims.clamp(builder, starts, &sizes, &kept)?;
    // There is one window for each example.
    let promise = IndexPromise { unique: true, in_bounds: true, ..IndexPromise::default() };
    let scatter = Scatter { dims: Box::new(dims), kind: ScatterKind::Set, promise };
    context.apply(scatter, &[operands[0], starts, operands[1]])
}

import!(DynamicSlice: "dynamic-slice" => |context| {
    Some(DynamicSlice { sizes: context.result_types().first()?.dims.clone() })
});
import!(DynamicUpdateSlice: "dynamic-update-slice" => |_| Some(DynamicUpdateSlice));
