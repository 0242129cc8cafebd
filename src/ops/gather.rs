//! Slices at many computed positions, and updates at many computed positions. The derivatives of scatters that do not
//! add stand in `scatter_derivatives.rs`.
//!
//! The dimension numbers are XLA's (see "Gather" and "Scatter" in XLA's operation semantics). A gather moves start
//! indices back until the slice fits; a scatter drops updates that do not fit.

use smallvec::SmallVec;

use super::rules::*;
use super::{AxisList, Linear, Operands, ReduceKind, after_batch, batched_dims, complement, to_i64, with_batch};
use meshloom_hlo::message::counted;

use crate::hlo::proto;
use crate::ir::{InternalError, Literal};
use crate::ops::BinaryKind;

/// The dimensions of operand, indices and window that correspond.
///
/// A gather's result and a scatter's updates have the same layout: the batch dimensions of the indices (all but
/// `index_vector_dim`) in order, with the window dimensions interspersed at `offset_dims`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GatherDims {
    /// Dimensions of the result (or updates) that run along the window, increasing.
    pub offset_dims: AxisList,
    /// Operand dimensions of window size 1 that the window leaves out, increasing.
    pub collapsed_dims: AxisList,
    /// Operand dimensions that run in step with `indices_batch_dims`, increasing; left out of the window.
    pub operand_batch_dims: AxisList,
    /// Partners of `operand_batch_dims` among the indices' dimensions.
    pub indices_batch_dims: AxisList,
    /// Operand dimension of each component of a start index.
    pub start_index_map: AxisList,
    /// Dimension of the indices that holds the components; the indices' rank when each index is one number.
    pub index_vector_dim: usize,
}

crate::ir::attributes!(GatherDims {
    start_index_map: key("map"),
    offset_dims: optional("offset", AxisList::new()),
    collapsed_dims: optional("collapsed", AxisList::new()),
    operand_batch_dims: optional("operand_batch", AxisList::new()),
    indices_batch_dims: optional("indices_batch", AxisList::new()),
    index_vector_dim: key("vector"),
});

/// The promise that the author of a program makes about start indices. XLA relies on it: with a broken promise the
/// results are undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IndexPromise {
    /// The indices increase, compared component by component.
    pub sorted: bool,
    /// No two windows overlap.
    pub unique: bool,
    /// Every window lies within the operand, so that gradients need not ask which ones do.
    pub in_bounds: bool,
}

crate::ir::attributes!(IndexPromise { sorted: flag("sorted"), unique: flag("unique"), in_bounds: flag("in_bounds") });

impl GatherDims {
    /// The dimensions for indices that select single elements of dimension `batch`, the last, in step with all
    /// dimensions before it. Each index is one number; `index_vector_dim` is the rank of the indices.
    pub(crate) fn along_last(batch: usize, index_vector_dim: usize) -> GatherDims {
        GatherDims {
            collapsed_dims: AxisList::from_slice(&[batch]),
            operand_batch_dims: (0..batch).collect(),
            indices_batch_dims: (0..batch).collect(),
            start_index_map: AxisList::from_slice(&[batch]),
            index_vector_dim,
            ..GatherDims::default()
        }
    }

    fn window_dims(&self, rank: usize) -> AxisList {
        complement(&[&self.collapsed_dims[..], &self.operand_batch_dims[..]].concat(), rank)
    }

    /// Checks everything but the slice sizes; returns the sizes of the indices' batch dimensions.
    fn check(&self, operand: &TensorType, indices: &TensorType) -> Result<Dims, TypeError> {
        super::OperandClass::Integer.check(1, indices)?;
        expect_axes(&[&self.collapsed_dims[..], &self.operand_batch_dims[..]].concat(), operand.rank())?;
        expect_axes(&[&self.start_index_map[..], &self.operand_batch_dims[..]].concat(), operand.rank())?;
        expect_axes(&self.indices_batch_dims, indices.rank())?;
        let increasing = [&self.offset_dims, &self.collapsed_dims, &self.operand_batch_dims];
        refuse_if!(
            increasing.iter().any(|axes| !axes.is_sorted()),
            "offset, collapsed and batch dimensions must increase"
        );
        if self.index_vector_dim > indices.rank() || self.indices_batch_dims.contains(&self.index_vector_dim) {
            return Err(TypeError::Axis { axis: self.index_vector_dim as i64, rank: indices.rank() });
        }
        let components = indices.dims.get(self.index_vector_dim).copied().unwrap_or(1);
        refuse_if!(
            components != self.start_index_map.len(),
            "each index has {components} components, but {} operand dimensions are indexed",
            self.start_index_map.len()
        );
        refuse_if!(
            self.operand_batch_dims.len() != self.indices_batch_dims.len(),
            "each batch dimension needs a partner"
        );
        for (&own, &partner) in self.operand_batch_dims.iter().zip(&self.indices_batch_dims) {
            if operand.dims[own] != indices.dims[partner] {
                let (expected, found) = (operand.dims[own], indices.dims[partner]);
                return Err(TypeError::Size { operand: 1, dim: partner, expected, found });
            }
        }
        let kept = (0..indices.rank()).filter(|&dim| dim != self.index_vector_dim);
        Ok(kept.map(|dim| indices.dims[dim]).collect())
    }

    /// The dimensions of a gather's result or a scatter's updates.
    fn updates_dims(&self, batch: &[usize], window: &[usize]) -> Result<Dims, TypeError> {
        let rank = batch.len() + window.len();
        expect_axes(&self.offset_dims, rank)?;
        refuse_if!(
            self.offset_dims.len() != window.len(),
            "the window keeps {} dimensions, but {} offset dimensions are given",
            window.len(),
            self.offset_dims.len()
        );
        let (mut batch, mut window) = (batch.iter(), window.iter());
        let next = |dim| if self.offset_dims.contains(&dim) { window.next() } else { batch.next() };
        Ok((0..rank).filter_map(next).copied().collect())
    }

    /// For each batch dimension of the indices: the dimension, its place in the result or updates, and its partner in
    /// the operand.
    fn batch_places(
        &self,
        indices_rank: usize,
        updates_rank: usize,
    ) -> impl Iterator<Item = (usize, usize, Option<usize>)> {
        let places = complement(&self.offset_dims, updates_rank);
        complement(&[self.index_vector_dim], indices_rank).into_iter().zip(places).map(|(dim, place)| {
            let pair = self.indices_batch_dims.iter().position(|&partner| partner == dim);
            (dim, place, pair.map(|pair| self.operand_batch_dims[pair]))
        })
    }

    /// The dimensions for operands and updates with a leading batch dimension, which is part of the window, and indices
    /// without.
    fn with_batch_in_window(&self) -> GatherDims {
        GatherDims {
            offset_dims: with_batch(&self.offset_dims),
            collapsed_dims: after_batch(&self.collapsed_dims),
            operand_batch_dims: after_batch(&self.operand_batch_dims),
            start_index_map: after_batch(&self.start_index_map),
            ..self.clone()
        }
    }

    /// The dimensions for indices and updates with a leading batch dimension, and operands without.
    fn with_batch_of_indices(&self) -> GatherDims {
        GatherDims {
            offset_dims: after_batch(&self.offset_dims),
            indices_batch_dims: after_batch(&self.indices_batch_dims),
            index_vector_dim: self.index_vector_dim + 1,
            ..self.clone()
        }
    }

    /// The dimensions for operands with a new leading dimension, which runs in step with that of the indices.
    fn paired(&self) -> GatherDims {
        GatherDims {
            collapsed_dims: after_batch(&self.collapsed_dims),
            operand_batch_dims: with_batch(&self.operand_batch_dims),
            indices_batch_dims: std::iter::once(0).chain(self.indices_batch_dims.iter().copied()).collect(),
            start_index_map: after_batch(&self.start_index_map),
            ..self.clone()
        }
    }

    /// Indices into this device's part of operand 0, where a dimension that is indexed is split; `None` where no such
    /// dimension is split. `sizes` are those of a slice: a slice of a whole dimension begins at zero on each device. A
    /// gather's indices are clamped first, as the whole gather would.
    fn local_indices(
        &self,
        context: &mut PartitionContext<'_>,
        indices: Value,
        (sizes, clamps): (&[usize], bool),
    ) -> Result<Option<Value>, OpError> {
        let operand = context.operand_type(0).dims.clone();
        let is_split = |context: &PartitionContext<'_>, dim: usize| is_cut(context, dim, sizes);
        if !self.start_index_map.iter().any(|&dim| is_split(context, dim)) {
            return Ok(None);
        }
        let mut indices = indices;
        if clamps {
            indices = self.clamp(context.builder, indices, &operand, sizes)?;
        }
        let wide = if context.builder.ty(indices).dtype.byte_count() > 4 { DType::S64 } else { DType::S32 };
        let indices = context.builder.convert(indices, wide)?;
        let ty = context.builder.ty(indices).clone();
        let mut offsets = Vec::new();
        for &dim in &self.start_index_map {
            let (axes, part) = (context.operand_axes(0, dim), context.operand_dims(0)[dim]);
            let offset = if is_split(context, dim) {
                context.part_start(&axes, part)?
            } else {
                context.builder.splat(TensorType::scalar(DType::S32), 0.0)
            };
            offsets.push(context.builder.convert(offset, wide)?);
        }
        let offsets = if let [offset] = offsets[..] {
            context.builder.broadcast(offset, &ty.dims, &[])?
        } else {
            for offset in &mut offsets {
                *offset = context.builder.reshape(*offset, &[1])?;
            }
            let offsets = context.builder.push1(super::Concatenate { axis: 0 }, &offsets)?;
            context.builder.broadcast(offsets, &ty.dims, &[self.index_vector_dim])?
        };
        Ok(Some(context.builder.sub(indices, offsets)?))
    }

    /// Whether each of the local indices points into this device's part of operand 0. The result has the dimensions of
    /// the indices except for that of the components.
    fn inside_part(
        &self,
        context: &mut PartitionContext<'_>,
        indices: Value,
        sizes: &[usize],
    ) -> Result<Value, OpError> {
        let has_components = self.index_vector_dim < context.builder.ty(indices).rank();
        let mut inside = None;
        for (component, &dim) in self.start_index_map.iter().enumerate() {
            let part = context.operand_dims(0)[dim];
            if !is_cut(context, dim, sizes) {
                continue;
            }
            let mut own = indices;
            if has_components {
                own = context.builder.slice_dim(indices, self.index_vector_dim, component..component + 1);
                let mut dims = context.builder.ty(own).dims.clone();
                dims.remove(self.index_vector_dim);
                own = context.builder.reshape(own, &dims)?;
            }
            let found = context.in_range(own, 0..part as i64)?;
            inside = Some(match inside {
                None => found,
                Some(all) => context.builder.binary(BinaryKind::And, all, found)?,
            });
        }
        Ok(inside.ok_or_else(|| InternalError::new("indices of a gather", "a dimension that is split"))?)
    }

    /// Elements that are gathered, zero for indices that are not `inside`.
    pub(super) fn only(&self, builder: &mut GraphBuilder, gathered: Value, inside: Value) -> Result<Value, OpError> {
        let dims = builder.ty(gathered).dims.clone();
        let inside = builder.broadcast(inside, &dims, &complement(&self.offset_dims, dims.len()))?;
        builder.or_zero(inside, gathered)
    }

    /// `indices` with every start moved to where its slice fits, as a gather does by itself.
    pub(crate) fn clamp(
        &self,
        builder: &mut GraphBuilder,
        indices: Value,
        operand: &[usize],
        sizes: &[usize],
    ) -> Result<Value, OpError> {
        let ty = builder.ty(indices).clone();
        let limits: Vec<i64> = self.start_index_map.iter().map(|&axis| (operand[axis] - sizes[axis]) as i64).collect();
        let limit = if let [limit] = limits[..] {
            builder.splat(ty.clone(), limit as f64)
        } else {
            // A limit that the indices' type cannot hold saturates: no index exceeds it then.
            let limits_ty = TensorType::new(ty.dtype, &[limits.len()]);
            let literal = Literal::from_fn(limits_ty, |index| limits[index] as f64);
            let limits = builder.push1(super::Constant(Box::new(literal)), &[])?;
            builder.broadcast(limits, &ty.dims, &[self.index_vector_dim])?
        };
        let zero = builder.zeros_like(indices);
        let low = builder.binary(BinaryKind::Maximum, indices, zero)?;
        builder.binary(BinaryKind::Minimum, low, limit)
    }

    /// Whether each index's slice lies within the operand: `pred` over the indices' batch dimensions.
    pub(super) fn inside(
        &self,
        builder: &mut GraphBuilder,
        indices: Value,
        operand: &[usize],
        sizes: &[usize],
    ) -> Result<Value, OpError> {
        let clamped = self.clamp(builder, indices, operand, sizes)?;
        let inside = builder.compare(super::Direction::Eq, clamped, indices)?;
        if self.index_vector_dim < builder.ty(indices).rank() {
            builder.reduce(super::ReduceKind::And, &[self.index_vector_dim], inside)
        } else {
            Ok(inside)
        }
    }
}

/// Whether a dimension of operand 0 is split, and slices of these sizes take less than all of it.
fn is_cut(context: &PartitionContext<'_>, dim: usize, sizes: &[usize]) -> bool {
    !context.operand_axes(0, dim).is_empty() && sizes[dim] < context.operand_type(0).dims[dim]
}

/// `gather(operand, indices)`: slices of `slice_sizes` at the positions that `indices` lists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The dimensions that correspond.
    pub dims: Box<GatherDims>,
    /// Size of the slice along each operand dimension; 1 for collapsed and batch dimensions.
    pub slice_sizes: Dims,
    /// The promise about the indices.
    pub promise: IndexPromise,
}

crate::ir::op_text!(Gather = "gather" { slice_sizes: key("sizes"), dims: several, promise: several });

impl Primitive for Gather {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 2)?;
        let (operand, indices) = (operands[0], operands[1]);
        let batch = self.dims.check(operand, indices)?;
        expect_rank(0, operand, self.slice_sizes.len())?;
        for (dim, (&size, &available)) in self.slice_sizes.iter().zip(&operand.dims).enumerate() {
            let single = self.dims.collapsed_dims.contains(&dim) || self.dims.operand_batch_dims.contains(&dim);
            refuse_if!(
                size > available || (single && size != 1),
                "a slice of {} does not fit dimension {dim} of size {available}{}",
                counted(size, "element"),
                if single { ", which is collapsed or a batch dimension: it must be 1" } else { "" }
            );
        }
        let window: Dims = self.dims.window_dims(operand.rank()).iter().map(|&dim| self.slice_sizes[dim]).collect();
        Ok(one(TensorType { dtype: operand.dtype, dims: self.dims.updates_dims(&batch, &window)? }))
    }

    rules!(facts: MOVEMENT, jvp: linear);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let ty = context.operand_type(0).clone();
        let indices = context.operand(1);
        let zeros = context.builder.splat(ty.clone(), 0.0);
        let indices = if self.promise.in_bounds {
            indices
        } else {
            self.dims.clamp(context.builder, indices, &ty.dims, &self.slice_sizes)?
        };
        // Indices that were moved may be equal to others, or be out of order.
        let promise = if self.promise.in_bounds { self.promise } else { IndexPromise::default() };
        let scatter = Scatter { dims: self.dims.clone(), kind: ScatterKind::Add, promise };
        let gradient = context.builder.push1(scatter, &[zeros, indices, ct])?;
        context.set(0, gradient);
        Ok(())
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let (operand, indices) = (operands[0], operands[1]);
        let mut rule = FactorRule::empty(operands, results);
        for (dim, place, partner) in self.dims.batch_places(indices.rank(), results[0].rank()) {
            let mut sources: SmallVec<[(usize, usize); 2]> = SmallVec::from_slice(&[(1, dim)]);
            sources.extend(partner.map(|own| (0, own)));
            rule.add(indices.dims[dim], FactorKind::Parallel, &sources, &[(0, place)]);
        }
        for (&dim, &place) in self.dims.window_dims(operand.rank()).iter().zip(&self.dims.offset_dims) {
            // A slice of a whole dimension starts at zero, whatever its index is.
            if self.slice_sizes[dim] == operand.dims[dim] {
                rule.add(operand.dims[dim], FactorKind::Parallel, &[(0, dim)], &[(0, place)]);
            }
        }
        // Predicates have no sums.
        for &dim in self.dims.start_index_map.iter().filter(|_| operand.dtype != DType::Pred) {
            if self.slice_sizes[dim] == 1 && operand.dims[dim] > 1 {
                rule.add(operand.dims[dim], FactorKind::Indexed, &[(0, dim)], &[]);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        match (context.is_batched(0), context.is_batched(1)) {
            (true, false) => {
                let slice_sizes = batched_dims(context.size, &self.slice_sizes);
                let gather =
                    Gather { dims: Box::new(self.dims.with_batch_in_window()), slice_sizes, promise: self.promise };
                context.apply(gather, &[context.operand(0), context.operand(1)])
            }
            (false, _) => {
                // The indices of different examples may be equal, and do not increase from one example to the next.
                let promise = IndexPromise { sorted: false, unique: false, ..self.promise };
                let dims = Box::new(self.dims.with_batch_of_indices());
                let gather = Gather { dims, promise, ..self.clone() };
                context.apply(gather, &[context.operand(0), context.operand(1)])
            }
            (true, true) => {
                let gather = Gather { dims: Box::new(self.dims.with_batch_of_indices()), ..self.clone() };
                context.all(gather.paired())
            }
        }
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let (operand, indices) = (context.operand(0), context.operand(1));
        let mut slice_sizes = self.slice_sizes.clone();
        for dim in self.dims.window_dims(context.operand_type(0).rank()) {
            if slice_sizes[dim] == context.operand_type(0).dims[dim] {
                slice_sizes[dim] = context.operand_dims(0)[dim];
            }
        }
        let gather = Gather { slice_sizes, ..self.clone() };
        let Some(shifted) = self.dims.local_indices(context, indices, (&self.slice_sizes, true))? else {
            return context.apply_to(gather, &[operand, indices]);
        };
        let inside = self.dims.inside_part(context, shifted, &self.slice_sizes)?;
        let gather = Gather { promise: IndexPromise::default(), ..gather };
        let found = context.builder.push1(gather, &[operand, shifted])?;
        let found = self.dims.only(context.builder, found, inside)?;
        context.push_result(found);
        Ok(())
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let list = |axes: &[usize]| to_i64(axes).collect();
        let numbers = proto::GatherDimensionNumbers {
            offset_dims: list(&self.dims.offset_dims),
            collapsed_slice_dims: list(&self.dims.collapsed_dims),
            start_index_map: list(&self.dims.start_index_map),
            index_vector_dim: self.dims.index_vector_dim as i64,
            operand_batching_dims: list(&self.dims.operand_batch_dims),
            start_indices_batching_dims: list(&self.dims.indices_batch_dims),
        };
        let instruction = context.begin("gather");
        instruction.gather_dimension_numbers = Some(numbers.into());
        instruction.gather_slice_sizes.extend(to_i64(&self.slice_sizes));
        instruction.indices_are_sorted = self.promise.sorted;
        context.finish();
    }
}

impl Gather {
    /// The gather that takes a batch of operands by a batch of indices, made from the gather of one.
    pub(super) fn paired(self) -> Gather {
        let slice_sizes = batched_dims(1, &self.slice_sizes);
        Gather { dims: Box::new(self.dims.paired()), slice_sizes, promise: self.promise }
    }
}

meshloom_hlo::words! {
    /// The way in which [`Scatter`] combines an update with the element in its place.
    #[derive(PartialOrd, Ord)]
    pub enum ScatterKind {
        /// Adds; duplicates add up.
        Add = "scatter-add",
        /// Keeps the larger; NaN if either is.
        Max = "scatter-max",
        /// Keeps the smaller; NaN if either is.
        Min = "scatter-min",
        /// Multiplies; duplicates multiply up.
        Multiply = "scatter-multiply",
        /// Replaces; of duplicates, one is kept, and which one is the backend's choice.
        Set = "scatter-set",
    }
}

impl ScatterKind {
    /// The elementwise op that combines an element with an update; `None` where the update replaces it.
    pub fn combiner(self) -> Option<BinaryKind> {
        self.reduction().map(BinaryKind::from)
    }

    const fn reduction(self) -> Option<ReduceKind> {
        match self {
            ScatterKind::Add => Some(ReduceKind::Sum),
            ScatterKind::Max => Some(ReduceKind::Max),
            ScatterKind::Min => Some(ReduceKind::Min),
            ScatterKind::Multiply => Some(ReduceKind::Prod),
            ScatterKind::Set => None,
        }
    }

    /// The way in which the updates are split. If several updates of one place are on different devices, it is not
    /// known which of them stays.
    fn factor_kind(self) -> FactorKind {
        self.reduction().map_or(FactorKind::Replicated, FactorKind::Reduction)
    }
}

/// `scatter(operand, indices, updates)`: the operand with updates combined in at the positions that `indices` lists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// The dimensions that correspond.
    pub dims: Box<GatherDims>,
    /// How to combine.
    pub kind: ScatterKind,
    /// The promise about the indices.
    pub promise: IndexPromise,
}

crate::ir::op_text!(Scatter = name of ScatterKind::ALL, |kind| kind.name() => {
    kind,
    dims: several,
    promise: several,
});

impl Scatter {
    /// Returns how updates fold into the operand, if no dimension is indexed and each update covers the whole operand.
    fn folds_whole(&self, context: &PartitionContext<'_>) -> Option<ReduceKind> {
        let (operand, updates, kind) = (context.operand_type(0), context.operand_type(2), self.kind.reduction()?);
        let window = self.dims.window_dims(operand.rank());
        let sizes = || window.iter().zip(&self.dims.offset_dims);
        let is_whole = self.dims.start_index_map.is_empty()
            && self.dims.operand_batch_dims.is_empty()
            && self.dims.collapsed_dims.iter().all(|&dim| operand.dims[dim] == 1)
            && sizes().all(|(&dim, &place)| operand.dims[dim] == updates.dims[place]);
        is_whole.then_some(kind)
    }

    /// Window sizes along the operand's dimensions, read off the updates.
    pub(super) fn slice_sizes(&self, operand: &TensorType, updates: &TensorType) -> Dims {
        let window_dims = self.dims.window_dims(operand.rank());
        let mut sizes = Dims::from_elem(1, operand.rank());
        for (&dim, &offset) in window_dims.iter().zip(&self.dims.offset_dims) {
            sizes[dim] = updates.dims[offset];
        }
        sizes
    }

    /// Whether windows have one element along an operand dimension that is indexed.
    fn is_single(&self, dim: usize, rank: usize, updates: &TensorType) -> bool {
        let window = self.dims.window_dims(rank);
        let place = window.iter().position(|&own| own == dim).and_then(|place| self.dims.offset_dims.get(place));
        self.dims.start_index_map.contains(&dim) && place.is_none_or(|&place| updates.dims[place] == 1)
    }
}

impl Primitive for Scatter {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 3)?;
        let (operand, indices, updates) = (operands[0], operands[1], operands[2]);
        expect_dtype(2, updates, operand.dtype)?;
        if self.kind != ScatterKind::Set {
            super::OperandClass::Numeric.check(0, operand)?;
        }
        let batch = self.dims.check(operand, indices)?;
        expect_axes(&self.dims.offset_dims, updates.rank())?;
        let window_dims = self.dims.window_dims(operand.rank());
        let window: Dims = self.dims.offset_dims.iter().map(|&dim| updates.dims[dim]).collect();
        let expected = self.dims.updates_dims(&batch, &window)?;
        expect_dims(2, updates, &expected)?;
        refuse_if!(
            window.len() != window_dims.len(),
            "the window keeps {} operand dimensions, but {} offset dimensions are given",
            window_dims.len(),
            window.len()
        );
        for (&dim, &size) in window_dims.iter().zip(&window) {
            refuse_if!(
                size > operand.dims[dim],
                "a window of {size} elements does not fit dimension {dim} of size {}",
                operand.dims[dim]
            );
        }
        Ok(one(operand.clone()))
    }

    fn facts(&self) -> Facts<'_> {
        const COMBINED: Operands = Operands::These(&[0, 2]);
        let facts = Facts { is_in_place: true, ..Facts::KERNEL.zero_of(COMBINED) };
        match self.kind {
            ScatterKind::Add => facts.linear(Linear::Together(COMBINED)),
            ScatterKind::Max | ScatterKind::Min | ScatterKind::Multiply | ScatterKind::Set => facts,
        }
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        match self.kind {
            ScatterKind::Add => {
                context.set(0, ct);
                let (indices, updates) = (context.operand(1), context.operand(2));
                context.set_with(2, |builder| self.gather(builder, ct, indices, updates))
            }
            ScatterKind::Set => self.vjp_of_set(context, ct),
            ScatterKind::Multiply => self.vjp_of_multiply(context, ct),
            ScatterKind::Max | ScatterKind::Min => self.vjp_of_extremum(context, ct),
        }
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        match self.kind {
            // The backend chooses among duplicates by position, so it chooses the same ones among the tangents.
            ScatterKind::Add | ScatterKind::Set => context.linear_in(self.clone(), &[0, 2]),
            ScatterKind::Multiply => self.jvp_of_multiply(context),
            ScatterKind::Max | ScatterKind::Min => self.jvp_of_extremum(context),
        }
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let (operand, indices, updates) = (operands[0], operands[1], operands[2]);
        let mut rule = FactorRule { initial: Some(0), ..FactorRule::empty(operands, results) };
        for (dim, place, partner) in self.dims.batch_places(indices.rank(), updates.rank()) {
            let size = indices.dims[dim];
            match partner {
                Some(own) => rule.add(size, FactorKind::Parallel, &[(0, own), (1, dim), (2, place)], &[(0, own)]),
                None => rule.add(size, self.kind.factor_kind(), &[(1, dim), (2, place)], &[]),
            };
        }
        for (&dim, &place) in self.dims.window_dims(operand.rank()).iter().zip(&self.dims.offset_dims) {
            // An update of a whole dimension fits only at zero, on each device as on one.
            if updates.dims[place] == operand.dims[dim] {
                rule.add(operand.dims[dim], FactorKind::Parallel, &[(0, dim), (2, place)], &[(0, dim)]);
            }
        }
        for (dim, &size) in operand.dims.iter().enumerate() {
            if rule.operands[0][dim].is_empty() {
                let kind = if self.is_single(dim, operand.rank(), updates) {
                    FactorKind::Indexed
                } else {
                    FactorKind::Replicated
                };
                rule.add(size, kind, &[(0, dim)], &[(0, dim)]);
            }
        }
        rule.with_rest_replicated(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        if context.is_batched(1) {
            let dims = Box::new(self.dims.with_batch_of_indices().paired());
            return context.all(Scatter { dims, ..self.clone() });
        }
        let operands = [context.aligned(0)?, context.operand(1), context.aligned(2)?];
        context.apply(Scatter { dims: Box::new(self.dims.with_batch_in_window()), ..self.clone() }, &operands)
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        if let Some(kind) = self.folds_whole(context) {
            // The CPU plugins drop updates that no index places, if this device's part of the operand has a single
            // element.
            let rows = complement(&self.dims.offset_dims, context.operand_type(2).rank());
            let update = context.builder.reduce(kind, &rows, context.operand(2))?;
            let update = context.builder.reshape(update, &context.operand_dims(0))?;
            let result = context.builder.binary(kind.into(), context.operand(0), update)?;
            context.push_result(result);
            return Ok(());
        }
        let indices = context.operand(1);
        let sizes = self.slice_sizes(context.operand_type(0), context.operand_type(2));
        let Some(shifted) = self.dims.local_indices(context, indices, (&sizes, false))? else {
            return context.apply(self.clone());
        };
        // Indices of other devices' parts lie outside, where updates are dropped.
        let scatter = Scatter { promise: IndexPromise { in_bounds: false, ..self.promise }, ..self.clone() };
        let operands = [context.operand(0), shifted, context.operand(2)];
        context.apply_to(scatter, &operands)
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let list = |axes: &[usize]| to_i64(axes).collect();
        let numbers = proto::ScatterDimensionNumbers {
            update_window_dims: list(&self.dims.offset_dims),
            inserted_window_dims: list(&self.dims.collapsed_dims),
            scatter_dims_to_operand_dims: list(&self.dims.start_index_map),
            index_vector_dim: self.dims.index_vector_dim as i64,
            input_batching_dims: list(&self.dims.operand_batch_dims),
            scatter_indices_batching_dims: list(&self.dims.indices_batch_dims),
        };
        let ty = context.operand_type(0).clone();
        // Many updates may be added to one element, where a narrow sum would lose them; and GPUs have no atomic
        // addition of 16-bit numbers alone.
        let is_narrow = self.kind == ScatterKind::Add && ty.dtype.is_float() && ty.dtype.bit_count() < 32;
        let dtype = if is_narrow { DType::F32 } else { ty.dtype };
        let combiner = match self.kind.combiner() {
            Some(kind) => context.combiner(kind.name(), dtype),
            None => context.replacer(dtype),
        };
        let wide = |context: &mut dyn EmitContext, index: usize| {
            let ty = context.operand_type(index).with_dtype(dtype);
            let operand = context.operand_id(index);
            if is_narrow { context.instruction("convert", &ty, &[operand]) } else { operand }
        };
        let operands = [wide(context, 0), context.operand_id(1), wide(context, 2)];
        let instruction = context.begin_typed("scatter", &ty.with_dtype(dtype), &operands);
        instruction.scatter_dimension_numbers = Some(numbers.into());
        instruction.indices_are_sorted = self.promise.sorted;
        instruction.unique_indices = self.promise.unique;
        instruction.called_computation_ids.push(combiner);
        let sums = context.commit();
        let result = if is_narrow { context.instruction("convert", &ty, &[sums]) } else { sums };
        context.set_result(0, result);
    }
}

impl GatherDims {
    /// The numbers of a message, whose lists are in the order of the fields.
    fn of_lists(lists: [&[i64]; 5], index_vector_dim: i64) -> Option<GatherDims> {
        let [offset_dims, collapsed_dims, operand_batch_dims, indices_batch_dims, start_index_map] = lists.map(axes);
        Some(GatherDims {
            offset_dims: offset_dims?,
            collapsed_dims: collapsed_dims?,
            operand_batch_dims: operand_batch_dims?,
            indices_batch_dims: indices_batch_dims?,
            start_index_map: start_index_map?,
            index_vector_dim: usize::try_from(index_vector_dim).ok()?,
        })
    }
}

import!(Gather: "gather" => |context| {
    let instruction = context.instruction();
    let numbers = instruction.gather_dimension_numbers.as_deref()?;
    let lists = [
        &numbers.offset_dims[..],
        &numbers.collapsed_slice_dims,
        &numbers.operand_batching_dims,
        &numbers.start_indices_batching_dims,
        &numbers.start_index_map,
    ];
    let dims = GatherDims::of_lists(lists, numbers.index_vector_dim)?;
    let promise = IndexPromise { sorted: instruction.indices_are_sorted, ..IndexPromise::default() };
    Some(Gather { dims: Box::new(dims), slice_sizes: axes(&instruction.gather_slice_sizes)?, promise })
});

impl ScatterKind {
    /// The kind whose combiner a computation is.
    fn of_combiner(computation: &proto::HloComputationProto) -> Option<ScatterKind> {
        // One that returns its second parameter replaces.
        let root = computation.instructions.iter().find(|it| it.id == computation.root_id)?;
        if root.opcode == "parameter" && root.parameter_number == 1 {
            return Some(ScatterKind::Set);
        }
        let (kind, _) = combiner(computation)?;
        ScatterKind::ALL.into_iter().find(|scatter| scatter.reduction() == Some(kind))
    }
}

import!(Scatter: "scatter" => |context| {
    let kind = ScatterKind::of_combiner(context.computation(0)?)?;
    let instruction = context.instruction();
    let numbers = instruction.scatter_dimension_numbers.as_deref()?;
    let lists = [
        &numbers.update_window_dims[..],
        &numbers.inserted_window_dims,
        &numbers.input_batching_dims,
        &numbers.scatter_indices_batching_dims,
        &numbers.scatter_dims_to_operand_dims,
    ];
    let dims = GatherDims::of_lists(lists, numbers.index_vector_dim)?;
    let promise = IndexPromise {
        sorted: instruction.indices_are_sorted,
        unique: instruction.unique_indices,
        ..IndexPromise::default()
    };
    Some(Scatter { dims: Box::new(dims), kind, promise })
});
