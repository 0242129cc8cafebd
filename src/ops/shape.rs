//! Ops that move elements without computing: broadcast, reshape, transpose, slice, pad, concatenate, reverse.

use meshloom_hlo::mesh::common_divisor;
use smallvec::SmallVec;

use meshloom_hlo::message::counted;

use super::rules::*;
use super::{
    AxisList, Class, CollectivePermute, Operands, ReduceKind, Select, Stretch, after_batch, batched_dims, complement,
    to_i64, with_batch,
};
use crate::hlo::proto;

/// Repeats the operand along new dimensions: operand dimension `i` is result dimension `mapping[i]`, with the same
/// size. `mapping` increases, so nothing is transposed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BroadcastInDim {
    /// Sizes of the result.
    pub dims: Dims,
    /// Result dimension of each operand dimension.
    pub mapping: AxisList,
}

crate::ir::op_text!(BroadcastInDim = "broadcast" { dims: result, mapping: key("axes") });

impl Primitive for BroadcastInDim {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let operand = operands[0];
        if self.mapping.len() != operand.rank() {
            let (own, mapped) = (counted(operand.rank(), "dimension"), counted(self.mapping.len(), "axis"));
            return Err(TypeError::Attribute(format!("operand 0 has {own}, but is broadcast along {mapped}")));
        }
        expect_axes(&self.mapping, self.dims.len())?;
        if !self.mapping.is_sorted() {
            return Err(TypeError::Attribute(format!("the axes {:?} must increase; transpose first", self.mapping)));
        }
        for (dim, &axis) in self.mapping.iter().enumerate() {
            if operand.dims[dim] != self.dims[axis] {
                return Err(TypeError::Size { operand: 0, dim, expected: self.dims[axis], found: operand.dims[dim] });
            }
        }
        Ok(one(TensorType { dtype: operand.dtype, dims: self.dims.clone() }))
    }

    rules!(facts = Facts { class: Class::Broadcast, is_cheap: true, is_made_anywhere: true, ..Facts::MOVEMENT });
    rules!(jvp: linear);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        context
            .pull_back(|builder, ct| builder.reduce(ReduceKind::Sum, &complement(&self.mapping, self.dims.len()), ct))
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (place, &size) in results[0].dims.iter().enumerate() {
            let source = self.mapping.iter().position(|&axis| axis == place).map(|dim| (0, dim));
            rule.add(size, FactorKind::Parallel, source.as_slice(), &[(0, place)]);
        }
        rule
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let dims = batched_dims(context.size, &self.dims);
        context.all(BroadcastInDim { dims, mapping: with_batch(&self.mapping) })
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        context.apply(BroadcastInDim { dims: context.result_dims(0).clone(), mapping: self.mapping.clone() })
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("broadcast").dimensions.extend(to_i64(&self.mapping));
        context.finish();
    }
}

/// The same elements in the same row-major order, with other dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshape {
    /// Sizes of the result.
    pub dims: Dims,
}

crate::ir::op_text!(Reshape = "reshape" { dims: result });

impl Primitive for Reshape {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let result = TensorType { dtype: operands[0].dtype, dims: self.dims.clone() };
        let (found, expected) = (operands[0].element_count(), result.element_count());
        refuse_if!(
            found != expected,
            "cannot reshape {} ({found} elements) to {:?} ({expected} elements)",
            operands[0],
            self.dims.as_slice()
        );
        Ok(one(result))
    }

    rules!(facts = Facts { class: Class::Reshape, is_cheap: true, ..Facts::MOVEMENT });
    rules!(jvp: linear, emit: simple);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let dims = context.operand_type(0).dims.clone();
        context.pull_back(|builder, ct| builder.reshape(ct, &dims))
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        reshape_factors(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(Reshape { dims: batched_dims(context.size, &self.dims) })
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        context.apply(Reshape { dims: context.result_dims(0).clone() })
    }
}

/// Both sides are cut into common factors from the major end. Where the next cuts do not fit, as in `[2,3] -> [3,2]`,
/// no factors correspond until both sides have come to the same number of elements.
fn reshape_factors(operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
    let mut rule = FactorRule::empty(operands, results);
    if operands[0].element_count() == 0 {
        return rule.with_rest_replicated(operands, results);
    }
    let (mut from, mut to) = (Cuts::new(&operands[0].dims), Cuts::new(&results[0].dims));
    while let (Some((source, left)), Some((place, right))) = (from.next(), to.next()) {
        let common = common_divisor(left, right);
        if common > 1 {
            rule.add(common, FactorKind::Parallel, &[(0, source)], &[(0, place)]);
            from.take(common);
            to.take(common);
            continue;
        }
        let (mut taken_left, mut taken_right) = (1, 1);
        while taken_left != taken_right || taken_left == 1 {
            let on_left = taken_left <= taken_right;
            let (cuts, taken) = if on_left { (&mut from, &mut taken_left) } else { (&mut to, &mut taken_right) };
            let Some((dim, size)) = cuts.next() else { break };
            *taken *= size;
            cuts.take(size);
            let (source, place) = ([(0, dim)], [(0, dim)]);
            let (source, place) = if on_left { (&source[..], &[][..]) } else { (&[][..], &place[..]) };
            rule.add(size, FactorKind::Replicated, source, place);
        }
    }
    rule
}

/// The rest of a list of sizes from which factors are taken, major to minor.
struct Cuts<'a> {
    dims: &'a [usize],
    /// The dimension that is being cut.
    dim: usize,
    /// The part of its size that has been taken.
    taken: usize,
}

impl Cuts<'_> {
    fn new(dims: &[usize]) -> Cuts<'_> {
        Cuts { dims, dim: 0, taken: 1 }
    }

    /// The dimension to cut next, and the size that it has left.
    fn next(&mut self) -> Option<(usize, usize)> {
        while *self.dims.get(self.dim)? == self.taken {
            (self.dim, self.taken) = (self.dim + 1, 1);
        }
        Some((self.dim, self.dims[self.dim] / self.taken))
    }

    fn take(&mut self, factor: usize) {
        self.taken *= factor;
    }
}

/// Permutes dimensions: result dimension `i` is operand dimension `permutation[i]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// Operand dimension of each result dimension.
    pub permutation: AxisList,
}

crate::ir::op_text!(Transpose = "transpose" { permutation: bare });

impl Primitive for Transpose {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let rank = operands[0].rank();
        expect_rank(0, operands[0], self.permutation.len())?;
        expect_axes(&self.permutation, rank)?;
        let dims = self.permutation.iter().map(|&axis| operands[0].dims[axis]).collect();
        Ok(one(TensorType { dtype: operands[0].dtype, dims }))
    }

    rules!(facts: MOVEMENT, jvp: linear, partition: unchanged);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        context.pull_back(|builder, ct| builder.transpose(ct, &inverse(&self.permutation)))
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (place, &axis) in self.permutation.iter().enumerate() {
            rule.add(operands[0].dims[axis], FactorKind::Parallel, &[(0, axis)], &[(0, place)]);
        }
        rule
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(Transpose { permutation: with_batch(&self.permutation) })
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("transpose").dimensions.extend(to_i64(&self.permutation));
        context.finish();
    }
}

pub(super) fn inverse(permutation: &[usize]) -> AxisList {
    let mut inverse = AxisList::from_elem(0, permutation.len());
    permutation.iter().enumerate().for_each(|(index, &axis)| inverse[axis] = index);
    inverse
}

/// The indices of one dimension that [`Slice`] keeps: `start, start + stride, ..` below `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceDim {
    /// First index kept.
    pub start: usize,
    /// End of the range.
    pub limit: usize,
    /// Distance between indices; at least 1.
    pub stride: usize,
}

impl crate::ir::Attribute for SliceDim {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        out.push(&format!("{}:{}:{}", self.start, self.limit, self.stride));
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<SliceDim, crate::ir::GraphTextError> {
        let [start, limit, stride] = reader.separated(":")?;
        Ok(SliceDim { start, limit, stride })
    }
}

impl SliceDim {
    pub(crate) fn whole(size: usize) -> SliceDim {
        SliceDim { start: 0, limit: size, stride: 1 }
    }

    fn size(self) -> usize {
        (self.limit - self.start).div_ceil(self.stride)
    }
}

/// A strided sub-tensor at a fixed position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// One range for each dimension.
    pub ranges: Box<[SliceDim]>,
}

crate::ir::op_text!(Slice = "slice" { ranges: whole });

impl Primitive for Slice {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let operand = operands[0];
        expect_rank(0, operand, self.ranges.len())?;
        for (dim, (range, &size)) in self.ranges.iter().zip(&operand.dims).enumerate() {
            let strides = 1..=i64::MAX as usize;
            refuse_if!(
                range.start > range.limit || range.limit > size || !strides.contains(&range.stride),
                "the range {}..{} with stride {} does not fit dimension {dim} of size {size}",
                range.start,
                range.limit,
                range.stride
            );
        }
        let dims = self.ranges.iter().map(|range| range.size()).collect();
        Ok(one(TensorType { dtype: operand.dtype, dims }))
    }

    rules!(facts = Facts { is_cheap: true, ..Facts::MOVEMENT });
    rules!(jvp: linear);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let operand = context.operand_type(0).clone();
        let padding = self.ranges.iter().zip(&operand.dims).map(|(range, &size)| {
            let kept = range.size();
            let covered = if kept == 0 { 0 } else { (kept - 1) * range.stride + 1 };
            PadDim {
                low: range.start as i64,
                high: size as i64 - range.start as i64 - covered as i64,
                interior: range.stride - 1,
            }
        });
        let op = Pad { padding: padding.collect() };
        context.pull_back(|builder, ct| {
            let zero = builder.splat(TensorType::scalar(operand.dtype), 0.0);
            builder.push1(op, &[ct, zero])
        })
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, (range, &limit)) in self.ranges.iter().zip(&operands[0].dims).enumerate() {
            if *range == SliceDim::whole(limit) {
                rule.keep(operands[0], dim);
            } else {
                rule.permute(&[limit, results[0].dims[dim]], &[(0, dim)], &[(0, dim)]);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let ranges = std::iter::once(SliceDim::whole(context.size)).chain(self.ranges.iter().copied()).collect();
        context.all(Slice { ranges })
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let mut value = context.operand(0);
        let mut ranges = self.ranges.clone();
        for (dim, range) in ranges.iter_mut().enumerate() {
            let (axes, size) = (context.operand_axes(0, dim), context.operand_dims(0)[dim]);
            if self.ranges[dim] == SliceDim::whole(context.operand_type(0).dims[dim]) {
                *range = SliceDim::whole(size);
                continue;
            }
            if axes.is_empty() {
                continue;
            }
            let (kept, stride) = (context.result_dims(0)[dim], self.ranges[dim].stride);
            let size = (kept - 1) * stride + 1;
            let (first, step) = (self.ranges[dim].start as i64, (kept * stride) as i64);
            value = context.stretch(value, dim, &axes, Stretch { first, step, size, wraps: false })?;
            *range = SliceDim { start: 0, limit: size, stride };
        }
        context.apply_to(Slice { ranges }, &[value])
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("slice").slice_dimensions.extend(slice_dimensions(&self.ranges));
        context.finish();
    }
}

/// Ranges as HLO's messages have them.
pub(super) fn slice_dimensions(
    ranges: &[SliceDim],
) -> impl Iterator<Item = proto::hlo_instruction_proto::SliceDimensions> + '_ {
    ranges.iter().map(|range| proto::hlo_instruction_proto::SliceDimensions {
        start: range.start as i64,
        limit: range.limit as i64,
        stride: range.stride as i64,
    })
}

/// The elements that [`Pad`] adds to one dimension. Negative borders remove elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PadDim {
    /// Elements before the first.
    pub low: i64,
    /// Elements after the last.
    pub high: i64,
    /// Elements between any two neighbours.
    pub interior: usize,
}

impl crate::ir::Attribute for PadDim {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        out.push(&format!("{}_{}_{}", self.low, self.high, self.interior));
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<PadDim, crate::ir::GraphTextError> {
        let low = reader.integer("a whole number")?;
        reader.expect("_")?;
        let high = reader.integer("a whole number")?;
        reader.expect("_")?;
        Ok(PadDim { low, high, interior: reader.integer("a whole number")? })
    }
}

impl PadDim {
    /// Adds nothing.
    pub(crate) const NONE: PadDim = PadDim { low: 0, high: 0, interior: 0 };

    /// The size after padding; `None` where a number is out of XLA's range, or would be with its sign changed.
    fn size(self, size: usize) -> Option<i64> {
        let interior = i64::try_from(self.interior).ok()?;
        let size = i64::try_from(size).ok()?;
        let inner = size.checked_add((size - 1).max(0).checked_mul(interior)?)?;
        let low = inner.checked_add(self.low)?;
        self.low.checked_neg().and(self.high.checked_neg())?;
        low.checked_add(self.high)
    }
}

/// `pad(operand, value)`: adds borders and holes filled with a scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    /// One entry for each dimension.
    pub padding: Box<[PadDim]>,
}

crate::ir::op_text!(Pad = "pad" { padding: whole });

impl Primitive for Pad {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 2)?;
        let operand = operands[0];
        expect_dims(1, operands[1], &[])?;
        expect_dtype(1, operands[1], operand.dtype)?;
        expect_rank(0, operand, self.padding.len())?;
        let mut dims = Dims::new();
        for (dim, (padding, &size)) in self.padding.iter().zip(&operand.dims).enumerate() {
            let padded = padding.size(size).ok_or_else(|| {
                TypeError::Attribute(format!("padding dimension {dim} of size {size} gives a size out of range"))
            })?;
            let padded = usize::try_from(padded).map_err(|_| {
                TypeError::Attribute(format!("padding dimension {dim} of size {size} gives the negative size {padded}"))
            })?;
            dims.push(padded);
        }
        Ok(one(TensorType { dtype: operand.dtype, dims }))
    }

    rules!(facts = Facts::moves(Operands::All));
    rules!(jvp: linear);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let zero = context.builder.splat(TensorType::scalar(context.operand_type(0).dtype), 0.0);
        // Removing the borders first leaves the operand's elements at multiples of the stride.
        let unpad = self.padding.iter().map(|dim| PadDim { low: -dim.low, high: -dim.high, interior: 0 }).collect();
        let inner = context.builder.push1(Pad { padding: unpad }, &[ct, zero])?;
        let mut gradient = inner;
        if self.padding.iter().any(|dim| dim.interior > 0) {
            let dims = context.builder.ty(inner).dims.clone();
            let ranges = self.padding.iter().zip(&dims);
            let ranges = ranges.map(|(dim, &limit)| SliceDim { start: 0, limit, stride: dim.interior + 1 }).collect();
            gradient = context.builder.push1(Slice { ranges }, &[inner])?;
        }
        context.set(0, gradient);
        context.set_with(1, |builder| {
            let all: AxisList = (0..self.padding.len()).collect();
            let total = builder.reduce(ReduceKind::Sum, &all, ct)?;
            let kept = builder.reduce(ReduceKind::Sum, &all, gradient)?;
            builder.sub(total, kept)
        })
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for (dim, padding) in self.padding.iter().enumerate() {
            if *padding == PadDim::NONE {
                rule.keep(operands[0], dim);
            } else if padding.interior == 0 {
                rule.permute(&[operands[0].dims[dim], results[0].dims[dim]], &[(0, dim)], &[(0, dim)]);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let padding = std::iter::once(PadDim::NONE).chain(self.padding.iter().copied()).collect();
        let op = Pad { padding };
        if !context.is_batched(1) {
            let operands = [context.aligned(0)?, context.operand(1)];
            return context.apply(op, &operands);
        }
        context.by_definition(|builder, operands| self.by_choice(builder, operands[0], operands[1]))
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let (mut value, filling) = (context.operand(0), context.operand(1));
        let is_zero = context.is_zero(filling);
        let mut padding = self.padding.clone();
        for (dim, padding) in padding.iter_mut().enumerate() {
            let (axes, own) = (context.operand_axes(0, dim), *padding);
            if axes.is_empty() || own == PadDim::NONE {
                continue;
            }
            *padding = PadDim::NONE;
            let size = context.result_dims(0)[dim];
            let stretch = Stretch { first: -own.low, step: size as i64, size, wraps: false };
            value = context.stretch(value, dim, &axes, stretch)?;
            if !is_zero {
                let dims = context.builder.ty(value).dims.clone();
                let positions = context.positions(&dims, dim, &axes)?;
                let filling = context.builder.broadcast(filling, &dims, &[])?;
                let inside = own.low..own.low + context.operand_type(0).dims[dim] as i64;
                value = context.select_range(positions, inside, value, filling)?;
            }
        }
        context.apply_to(Pad { padding }, &[value, filling])
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let dimensions = self.padding.iter().map(|dim| proto::padding_config::PaddingConfigDimension {
            edge_padding_low: dim.low,
            edge_padding_high: dim.high,
            interior_padding: dim.interior as i64,
        });
        let config = proto::PaddingConfig { dimensions: dimensions.collect() };
        context.begin("pad").padding_config = Some(config);
        context.finish();
    }
}

impl Pad {
    /// Expresses the same by a choice between the operand and the value, by a mask.
    fn by_choice(&self, builder: &mut GraphBuilder, operand: Value, value: Value) -> Result<Value, OpError> {
        let zero = builder.splat(builder.ty(value).clone(), 0.0);
        let padded = builder.push1(self.clone(), &[operand, zero])?;
        let inside = builder.splat(builder.ty(operand).with_dtype(DType::Pred), 1.0);
        let outside = builder.splat(TensorType::scalar(DType::Pred), 0.0);
        let inside = builder.push1(self.clone(), &[inside, outside])?;
        let dims = builder.ty(padded).dims.clone();
        let value = builder.broadcast(value, &dims, &[])?;
        builder.push1(Select, &[inside, padded, value])
    }
}

/// Joins tensors of one element type along a dimension; the other dimensions agree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concatenate {
    /// The dimension joined.
    pub axis: usize,
}

crate::ir::op_text!(Concatenate = "concatenate" { axis: key("axis") });

impl Primitive for Concatenate {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let Some((first, rest)) = operands.split_first() else {
            return Err(TypeError::OperandCount { expected: 1, found: 0 });
        };
        expect_axes(&[self.axis], first.rank())?;
        let mut result = (*first).clone();
        for (index, ty) in rest.iter().enumerate() {
            expect_dtype(index + 1, ty, first.dtype)?;
            let mut expected = first.dims.clone();
            if let Some(&size) = ty.dims.get(self.axis) {
                expected[self.axis] = size;
                result.dims[self.axis] = result.dims[self.axis].saturating_add(size);
            }
            expect_dims(index + 1, ty, &expected)?;
        }
        Ok(one(result))
    }

    rules!(facts = Facts::moves(Operands::All));
    rules!(jvp: linear, batch: axis);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let mut start = 0;
        for index in 0..context.operand_count() {
            let size = context.operand_type(index).dims[self.axis];
            context.set_with(index, |builder| Ok(builder.slice_dim(ct, self.axis, start..start + size)))?;
            start += size;
        }
        Ok(())
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for dim in complement(&[self.axis], results[0].rank()) {
            let sources: SmallVec<[(usize, usize); 4]> = (0..operands.len()).map(|index| (index, dim)).collect();
            rule.add(results[0].dims[dim], FactorKind::Parallel, &sources, &[(0, dim)]);
        }
        let joined = operands.iter().chain(results).map(|ty| ty.dims[self.axis]);
        let sources: SmallVec<[(usize, usize); 4]> = (0..operands.len()).map(|index| (index, self.axis)).collect();
        rule.permute(&joined.collect::<AxisList>(), &sources, &[(0, self.axis)]);
        rule.with_rest_replicated(operands, results)
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let axes = context.result_axes(0, self.axis);
        if axes.is_empty() {
            return context.apply(self.clone());
        }
        let dims = context.result_dims(0).clone();
        let positions = context.positions(&dims, self.axis, &axes)?;
        let mut joined = None;
        let mut start = 0;
        for index in 0..context.operand_count() {
            let end = start + context.operand_type(index).dims[self.axis] as i64;
            let size = dims[self.axis];
            let stretch = Stretch { first: -start, step: size as i64, size, wraps: false };
            let own = context.stretch(context.operand(index), self.axis, &axes, stretch)?;
            joined = Some(match joined {
                None => own,
                Some(joined) => context.select_range(positions, start..end, own, joined)?,
            });
            start = end;
        }
        joined.into_iter().for_each(|joined| context.push_result(joined));
        Ok(())
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("concatenate").dimensions.push(self.axis as i64);
        context.finish();
    }
}

/// Reverses the order of elements along dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reverse {
    /// The dimensions reversed.
    pub axes: AxisList,
}

crate::ir::op_text!(Reverse = "reverse" { axes: key("axes") });

impl Primitive for Reverse {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        expect_axes(&self.axes, operands[0].rank())?;
        Ok(one(operands[0].clone()))
    }

    rules!(facts: MOVEMENT, vjp: itself, jvp: linear);

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        FactorRule::aligned(operands, results, |dim| {
            if self.axes.contains(&dim) { FactorKind::Permutation } else { FactorKind::Parallel }
        })
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        context.all(Reverse { axes: after_batch(&self.axes) })
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let mut value = context.operand(0);
        for &axis in &self.axes {
            let group = context.group(&context.operand_axes(0, axis));
            if group.size > 1 {
                let last = group.size as u32 - 1;
                let pairs = (0..=last).map(|rank| (rank, last - rank)).collect();
                value = context.builder.push1(CollectivePermute { group, pairs }, &[value])?;
            }
        }
        context.apply_to(self.clone(), &[value])
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("reverse").dimensions.extend(to_i64(&self.axes));
        context.finish();
    }
}

impl Import for BroadcastInDim {
    const OPCODES: &'static [&'static str] = &["broadcast"];

    /// A constant number that is repeated is a splat.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let (&[operand], [result]) = (context.operands(), context.result_types()) else { return Ok(None) };
        let result = result.clone();
        let Some(mapping) = axes(&context.instruction().dimensions) else { return Ok(None) };
        let op = BroadcastInDim { dims: result.dims.clone(), mapping };
        let builder = context.builder();
        let fits = op.infer(&[builder.ty(operand)]).is_ok_and(|types| types[0] == result);
        match builder.graph().splat(operand) {
            Some(number) if fits => builder.push(super::Splat::new(result, number), &[]).map(Some),
            _ => applied(context, Some(op.into())),
        }
    }
}

import!(Reshape: "reshape" => |context| Some(Reshape { dims: context.result_types().first()?.dims.clone() }));
import!(Transpose: "transpose" => |context| Some(Transpose { permutation: axes(&context.instruction().dimensions)? }));
import!(Slice: "slice" => |context| {
    let range = |range: &proto::hlo_instruction_proto::SliceDimensions| {
        let [start, limit, stride] = [range.start, range.limit, range.stride].map(usize::try_from);
        Some(SliceDim { start: start.ok()?, limit: limit.ok()?, stride: stride.ok()? })
    };
    Some(Slice { ranges: context.instruction().slice_dimensions.iter().map(range).collect::<Option<_>>()? })
});
import!(Pad: "pad" => |context| {
    let dim = |dim: &proto::padding_config::PaddingConfigDimension| {
        let interior = usize::try_from(dim.interior_padding).ok()?;
        Some(PadDim { low: dim.edge_padding_low, high: dim.edge_padding_high, interior })
    };
    let config = context.instruction().padding_config.as_ref()?;
    Some(Pad { padding: config.dimensions.iter().map(dim).collect::<Option<_>>()? })
});
import!(Concatenate: "concatenate" => |context| {
    Some(Concatenate { axis: usize::try_from(*context.instruction().dimensions.first()?).ok()? })
});
import!(Reverse: "reverse" => |context| Some(Reverse { axes: axes(&context.instruction().dimensions)? }));
