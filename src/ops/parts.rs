//! Parts of a split dimension: the elements that a device has, and pieces of other devices' parts.
//!
//! In a window of a split dimension, every device wants a stretch of the whole; where it begins is a linear function of
//! the device's rank. Collective-permutes fetch the elements that lie in the parts of neighbours, no more than some
//! device needs (a halo exchange).

use std::ops::Range;

use smallvec::SmallVec;

use meshloom_hlo::mesh::MeshAxis;

use super::{
    AllGather, AxisIndex, BinaryKind, CollectivePermute, Concatenate, Direction, Iota, PartitionContext, Select,
    Stretch,
};
use crate::ir::{Axes, DType, OpError, TensorType, Value};

/// A piece to fetch: these elements of the part of the device `distance` ranks on.
struct Fetch {
    distance: i64,
    range: Range<i64>,
}

impl Stretch {
    fn start(&self, rank: i64) -> i64 {
        self.first + rank * self.step
    }

    /// The elements of a rank's stretch that exist.
    fn existing(&self, rank: i64, whole: i64) -> Range<i64> {
        let (start, end) = (self.start(rank), self.start(rank) + self.size as i64);
        if self.wraps { start..end } else { start.clamp(0, whole)..end.clamp(0, whole) }
    }

    /// The pieces, in order, of a stretch of neighbouring elements in which every device finds the existing elements of
    /// its own stretch.
    fn pieces(&self, part: i64, count: i64) -> SmallVec<[Fetch; 2]> {
        let relative = (0..count).filter_map(|rank| {
            let existing = self.existing(rank, part * count);
            (!existing.is_empty()).then(|| existing.start - rank * part..existing.end - rank * part)
        });
        let Some(all) = relative.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else {
            return SmallVec::new();
        };
        let distances = all.start.div_euclid(part)..(all.end - 1).div_euclid(part) + 1;
        let piece = |distance: i64| Fetch {
            distance,
            range: (all.start - distance * part).max(0)..(all.end - distance * part).min(part),
        };
        distances.map(piece).collect()
    }
}

impl PartitionContext<'_> {
    /// The position in the whole at which this device's part of a dimension begins, if each part has `size` elements: a
    /// scalar `s32`.
    pub(crate) fn part_start(&mut self, axes: &[MeshAxis], size: usize) -> Result<Value, OpError> {
        let rank = self.rank(axes)?;
        self.builder.scale(rank, size as f64)
    }

    /// This device's rank along some axes: a scalar `s32`.
    pub(crate) fn rank(&mut self, axes: &[MeshAxis]) -> Result<Value, OpError> {
        let group = self.group(axes);
        self.builder.push1(AxisIndex { group }, &[])
    }

    /// The global positions (`s32`) of this device's part of a dimension that is split over `axes`, along that
    /// dimension of `dims`.
    pub(crate) fn positions(&mut self, dims: &[usize], dim: usize, axes: &[MeshAxis]) -> Result<Value, OpError> {
        let ty = TensorType::new(DType::S32, dims);
        let local = self.builder.push1(Iota { ty, axis: dim }, &[])?;
        if axes.is_empty() {
            return Ok(local);
        }
        let start = self.part_start(axes, dims[dim])?;
        let start = self.builder.broadcast(start, dims, &[])?;
        self.builder.add(local, start)
    }

    /// `value` where `low <= positions < high`, else `other`; all of the same dimensions, `positions` of type `s32`.
    pub(crate) fn select_range(
        &mut self,
        positions: Value,
        range: std::ops::Range<i64>,
        value: Value,
        other: Value,
    ) -> Result<Value, OpError> {
        let inside = self.in_range(positions, range)?;
        self.builder.push1(Select, &[inside, value, other])
    }

    /// Whether `low <= positions < high`.
    pub(crate) fn in_range(&mut self, positions: Value, range: std::ops::Range<i64>) -> Result<Value, OpError> {
        let low = self.builder.splat_like(positions, range.start as f64);
        let high = self.builder.splat_like(positions, range.end as f64);
        let above = self.builder.compare(Direction::Ge, positions, low)?;
        let below = self.builder.compare(Direction::Lt, positions, high)?;
        self.builder.binary(BinaryKind::And, above, below)
    }

    /// This device's stretch of dimension `dim` of `value`, which is split over `axes`.
    pub(crate) fn stretch(
        &mut self,
        value: Value,
        dim: usize,
        axes: &Axes,
        stretch: Stretch,
    ) -> Result<Value, OpError> {
        let part = self.builder.ty(value).dims[dim] as i64;
        let group = self.group(axes);
        let count = group.size as i64;
        let pieces = stretch.pieces(part, count);
        let fetched = |piece: &Fetch| if piece.distance == 0 { 0 } else { piece.range.end - piece.range.start };
        let moved: i64 = pieces.iter().map(fetched).sum();
        // This device's buffer begins at `base + rank * pitch`.
        let (buffer, base, pitch) = if moved > part * (count - 1) && !stretch.wraps {
            (self.builder.push1(AllGather { group, dim }, &[value])?, 0, 0)
        } else if let Some(first) = pieces.first() {
            let base = first.distance * part + first.range.start;
            let mut parts = Vec::with_capacity(pieces.len());
            for piece in &pieces {
                parts.push(self.fetch(value, dim, axes, piece, stretch.wraps)?);
            }
            let buffer =
                if let [only] = parts[..] { only } else { self.builder.push1(Concatenate { axis: dim }, &parts)? };
            (buffer, base, part)
        } else {
            let mut ty = self.builder.ty(value).clone();
            ty.dims[dim] = stretch.size;
            return Ok(self.builder.splat(ty, 0.0));
        };
        let offset = |rank: i64| stretch.start(rank) - (base + rank * pitch);
        let length = self.builder.ty(buffer).dims[dim] as i64;
        let size = stretch.size as i64;
        let lowest = offset(0).min(offset(count - 1)).min(0);
        let highest = offset(0).max(offset(count - 1)).max(length - size);
        let [low, high] = [-lowest, highest + size - length].map(|count| count as usize);
        let buffer = self.builder.zeros_around(buffer, dim, low, high);
        self.cut(buffer, dim, axes, offset(0) - lowest, stretch.step - pitch, stretch.size)
    }

    /// A piece of another device's part; zeros where there is no such device.
    fn fetch(&mut self, value: Value, dim: usize, axes: &Axes, piece: &Fetch, wraps: bool) -> Result<Value, OpError> {
        let group = self.group(axes);
        let count = group.size as i64;
        let own = self.builder.slice_dim(value, dim, piece.range.start as usize..piece.range.end as usize);
        if piece.distance == 0 || wraps && piece.distance.rem_euclid(count) == 0 {
            return Ok(own);
        }
        let source = |target: i64| {
            let source = target + piece.distance;
            if wraps { Some(source.rem_euclid(count)) } else { (0..count).contains(&source).then_some(source) }
        };
        let pairs = (0..count).filter_map(|target| Some((source(target)? as u32, target as u32))).collect();
        self.builder.push1(CollectivePermute { group, pairs }, &[own])
    }

    /// Cuts `size` elements of a dimension from `first + rank * step` on, which lie inside on every device.
    fn cut(
        &mut self,
        value: Value,
        dim: usize,
        axes: &Axes,
        first: i64,
        step: i64,
        size: usize,
    ) -> Result<Value, OpError> {
        if step == 0 {
            return Ok(self.builder.slice_dim(value, dim, first as usize..first as usize + size));
        }
        let rank = self.rank(axes)?;
        let start = self.builder.scale(rank, step as f64)?;
        let start = self.builder.shift(start, first as f64)?;
        self.builder.dynamic_slice_dim(value, dim, start, size)
    }
}
