//! Slices at computed positions.
//!
//! As in XLA, a start index that would let the slice leave the operand is moved back until the slice fits.

use super::{
    AxisList, Concatenate, FactorKind, FactorRule, Gather, GatherDims, IndexPromise, OperandClass, Primitive,
    ResultTypes, Scatter, ScatterKind, batched_dims, expect_dims, expect_dtype, expect_operands, one, to_i64,
};
use crate::autodiff::{JvpContext, VjpContext};
use crate::batching::BatchContext;
use crate::error::{OpError, TypeError};
use crate::hlo::EmitContext;
use crate::ir::{DType, Dims, TensorType, Value};

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
    if sizes.len() != operand.rank() {
        return Err(TypeError::Rank { operand: 0, expected: sizes.len().to_string(), found: operand.rank() });
    }
    for (dim, (&size, &available)) in sizes.iter().zip(&operand.dims).enumerate() {
        if size > available {
            return Err(TypeError::Attribute(format!(
                "a slice of {size} elements does not fit dimension {dim} of size {available}"
            )));
        }
    }
    Ok(())
}

/// `dynamic-slice(operand, start...)`: a sub-tensor of fixed sizes at a computed position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicSlice {
    /// Sizes of the result.
    pub sizes: Dims,
}

impl Primitive for DynamicSlice {
    fn name(&self) -> &'static str {
        "dynamic-slice"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let rank = operands.first().map_or(0, |ty| ty.rank());
        expect_starts(operands, 1, rank)?;
        expect_fits(&self.sizes, operands[0])?;
        Ok(one(TensorType { dtype: operands[0].dtype, dims: self.sizes.clone() }))
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let zeros = context.builder.splat(context.operand_type(0).clone(), 0.0);
        let mut operands: Vec<Value> = vec![zeros, ct];
        operands.extend((1..context.operand_count()).map(|index| context.operand(index)));
        let gradient = context.builder.push1(DynamicUpdateSlice, &operands)?;
        context.set(0, gradient);
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        context.linear_in(self.clone(), &[0])
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, &size) in self.sizes.iter().enumerate() {
            // A slice of everything starts at zero wherever it is asked for.
            if size == operands[0].dims[dim] {
                rule.keep(operands[0], dim);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        if !(1..context.operand_count()).any(|index| context.is_batched(index)) {
            let operands = with_leading_start(context, 1)?;
            return context.apply(DynamicSlice { sizes: batched_dims(context.size, &self.sizes) }, &operands);
        }
        let starts = batched_starts(context, 1)?;
        let rank = self.sizes.len();
        let dims = GatherDims {
            offset_dims: (1..=rank).collect(),
            start_index_map: (0..rank).collect(),
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let gather = Gather { dims: Box::new(dims), slice_sizes: self.sizes.clone(), promise: IndexPromise::default() };
        let gather = if context.is_batched(0) { gather.paired() } else { gather };
        context.apply(gather, &[context.operand(0), starts])
    }

    fn emit(&self, context: &mut EmitContext<'_>) {
        context.begin("dynamic-slice").dynamic_slice_sizes.extend(to_i64(&self.sizes));
        context.finish();
    }
}

/// `dynamic-update-slice(operand, update, start...)`: the operand with a sub-tensor replaced at a computed position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicUpdateSlice;

impl Primitive for DynamicUpdateSlice {
    fn name(&self) -> &'static str {
        "dynamic-update-slice"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let rank = operands.first().map_or(0, |ty| ty.rank());
        expect_starts(operands, 2, rank)?;
        expect_dtype(1, operands[1], operands[0].dtype)?;
        expect_fits(&operands[1].dims, operands[0])?;
        Ok(one(operands[0].clone()))
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let starts: Vec<Value> = (2..context.operand_count()).map(|index| context.operand(index)).collect();
        let update_type = context.operand_type(1).clone();
        if context.needs(0) {
            let zeros = context.builder.splat(update_type.clone(), 0.0);
            let operands = [&[ct, zeros], &starts[..]].concat();
            let gradient = context.builder.push1(DynamicUpdateSlice, &operands)?;
            context.set(0, gradient);
        }
        if context.needs(1) {
            let operands = [&[ct], &starts[..]].concat();
            let gradient = context.builder.push1(DynamicSlice { sizes: update_type.dims }, &operands)?;
            context.set(1, gradient);
        }
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        context.linear_in(self.clone(), &[0, 1])
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, &size) in operands[0].dims.iter().enumerate() {
            if size == operands[1].dims[dim] {
                rule.add(size, FactorKind::Parallel, &[(0, dim), (1, dim)], &[(0, dim)]);
            } else {
                rule.add(size, FactorKind::Replicated, &[(0, dim)], &[(0, dim)]);
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

    fn emit(&self, context: &mut EmitContext<'_>) {
        context.simple("dynamic-update-slice");
    }
}

/// The operands of the op over a batch, which stands before all other dimensions, with the same starts for all examples.
fn with_leading_start(context: &mut BatchContext<'_>, first: usize) -> Result<Vec<Value>, OpError> {
    let mut operands = (0..first).map(|index| context.aligned(index)).collect::<Result<Vec<Value>, _>>()?;
    let starts = first..context.operand_count();
    let dtype = starts.clone().next().map_or(DType::S32, |index| context.example_type(index).dtype);
    operands.push(context.builder.splat(TensorType::scalar(dtype), 0.0));
    operands.extend(starts.map(|index| context.operand(index)));
    Ok(operands)
}

/// The starts, which are the operands from `first` on, as `[batch, rank]`.
fn batched_starts(context: &mut BatchContext<'_>, first: usize) -> Result<Value, OpError> {
    let column = [context.size, 1];
    let columns = (first..context.operand_count()).map(|index| {
        let start = context.aligned(index)?;
        context.builder.reshape(start, &column)
    });
    let columns = columns.collect::<Result<Vec<Value>, OpError>>()?;
    context.builder.push1(Concatenate { axis: 1 }, &columns)
}

/// Replaces a slice at a position of each example's own: a scatter. It drops what does not fit, so starts are moved first.
fn update_each(context: &mut BatchContext<'_>) -> Result<(), OpError> {
    let starts = batched_starts(context, 2)?;
    let operands = [context.aligned(0)?, context.aligned(1)?];
    let builder = &mut *context.builder;
    let [sizes, kept] = operands.map(|operand| builder.ty(operand).dims.clone());
    let window: AxisList = (1..sizes.len()).collect();
    let dims = GatherDims {
        offset_dims: window.clone(),
        operand_batch_dims: AxisList::from_slice(&[0]),
        indices_batch_dims: AxisList::from_slice(&[0]),
        start_index_map: window,
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    let starts = dims.clamp(builder, starts, &sizes, &kept)?;
    // There is one window for each example.
    let promise = IndexPromise { unique: true, in_bounds: true, ..IndexPromise::default() };
    let scatter = Scatter { dims: Box::new(dims), kind: ScatterKind::Set, promise };
    context.apply(scatter, &[operands[0], starts, operands[1]])
}
