//! Identities of ops that move elements, and of reductions.

use smallvec::SmallVec;

use super::super::rewrite::{Match, RewriteRule};
use super::rules;
use crate::ir::Value;
use crate::ops::{
    AxisList, BroadcastInDim, Concatenate, Iota, Op, Pad, PadDim, Reduce, ReduceKind, Reshape, Reverse, Slice,
    SliceDim, Splat, Transpose, complement,
};

rules! {
    BROADCAST {
        "broadcast(x) = x", "no dimension is new", |node| same_dims(node);
        "broadcast(broadcast(x)) = broadcast(x)", "a repetition of repetitions",
            given Op::BroadcastInDim(outer) => made by (Op::BroadcastInDim(inner), &[x]) => |node| {
            let mapping = inner.mapping.iter().map(|&axis| outer.mapping[axis]).collect();
            node.push(BroadcastInDim { dims: outer.dims.clone(), mapping }, &[x])
        };
        "broadcast(iota) = iota", "positions along a dimension do not depend on the others",
            given Op::BroadcastInDim(op) => made by (Op::Iota(iota), _) => |node| {
            let axis = op.mapping[iota.axis];
            node.push(Iota { ty: node.ty.clone(), axis }, &[])
        };
    }
    RESHAPE {
        "reshape(x) = x", "to the dimensions it has", |node| same_dims(node);
        "reshape(reshape(x)) = reshape(x)", "the order of elements stays", made by (Op::Reshape(_), &[x]) => |node| {
            node.push(Reshape { dims: node.ty.dims.clone() }, &[x])
        };
        "reshape(broadcast(scalar)) = broadcast(scalar)", "all elements are the same",
            made by (Op::BroadcastInDim(op), &[x]) => |node| {
            op.mapping.is_empty().then_some(())?;
            node.push(BroadcastInDim { dims: node.ty.dims.clone(), mapping: AxisList::new() }, &[x])
        };
    }
    TRANSPOSE {
        "transpose(x) = x", "every dimension stays where it is", given Op::Transpose(op) => |node| {
            op.permutation.is_sorted().then(|| node.operand(0))
        };
        "transpose(transpose(x)) = transpose(x)", "one permutation after the other",
            given Op::Transpose(outer) => made by (Op::Transpose(inner), &[x]) => |node| {
            let permutation = outer.permutation.iter().map(|&axis| inner.permutation[axis]).collect();
            node.push(Transpose { permutation }, &[x])
        };
        "transpose(x) = reshape(x)", "only dimensions of one element change places", given Op::Transpose(op) => |node| {
            let (dims, from) = (node.ty.dims.clone(), node.ty_of(node.operand(0)).dims.clone());
            op.permutation.iter().filter(|&&axis| from[axis] != 1).is_sorted().then_some(())?;
            node.push(Reshape { dims }, &[node.operand(0)])
        };
        "transpose(broadcast(x)) = broadcast(x)", "if the dimensions of x stay in order",
            given Op::Transpose(op) => made by (Op::BroadcastInDim(inner), &[x]) => |node| {
            let place = |&axis: &usize| op.permutation.iter().position(|&from| from == axis);
            let mapping: AxisList = inner.mapping.iter().map(place).collect::<Option<_>>()?;
            mapping.is_sorted().then_some(())?;
            node.push(BroadcastInDim { dims: node.ty.dims.clone(), mapping }, &[x])
        };
        "transpose(iota) = iota", "along the dimension's new place",
            given Op::Transpose(op) => made by (Op::Iota(iota), _) => |node| {
            let axis = op.permutation.iter().position(|&from| from == iota.axis)?;
            node.push(Iota { ty: node.ty.clone(), axis }, &[])
        };
    }
    SLICE {
        "slice(x) = x", "everything is kept: a range of all elements has stride 1", |node| same_dims(node);
        "slice(slice(x)) = slice(x)", "positions in positions",
            given Op::Slice(outer) => made by (Op::Slice(inner), &[x]) => |node| {
            let both = inner.ranges.iter().zip(&outer.ranges).zip(&node.ty.dims);
            let ranges = both.map(|((inner, outer), &size)| {
                let start = inner.start + outer.start * inner.stride;
                let stride = inner.stride.checked_mul(outer.stride)?;
                let limit = if size == 0 { start } else { start + (size - 1) * stride + 1 };
                Some(SliceDim { start, limit, stride })
            });
            let ranges = ranges.collect::<Option<_>>()?;
            node.push(Slice { ranges }, &[x])
        };
        "slice(broadcast(x)) = broadcast(slice(x))", "repeated dimensions are repeated less often",
            given Op::Slice(op) => made by (Op::BroadcastInDim(inner), &[x]) => |node| {
            let mapping = inner.mapping.clone();
            let ranges = mapping.iter().map(|&axis| op.ranges[axis]).collect();
            let x = node.push(Slice { ranges }, &[x])?;
            node.push(BroadcastInDim { dims: node.ty.dims.clone(), mapping }, &[x])
        };
        "slice(concatenate(x, ..)) = slice(x)", "if it lies within one of the parts",
            given Op::Slice(op) => made by (Op::Concatenate(inner), parts) => |node| {
            let (axis, range) = (inner.axis, op.ranges[inner.axis]);
            let mut end = 0;
            let part = *parts.iter().find(|&&part| {
                end += node.ty_of(part).dims[axis];
                range.start < end
            })?;
            (range.limit <= end).then_some(())?;
            let start = end - node.ty_of(part).dims[axis];
            let mut ranges = op.ranges.clone();
            // A range that starts before the part lies in no part: the first part that ends after the range's start
            // begins at or before that start.
            ranges[axis] = SliceDim { start: range.start - start, limit: range.limit - start, stride: range.stride };
            node.push(Slice { ranges }, &[part])
        };
        "slice(pad(x)) = slice(x)", "if no padding is kept",
            given Op::Slice(op) => made by (Op::Pad(inner), operands) => |node| {
            let x = operands[0];
            let dims = op.ranges.iter().zip(&inner.padding).zip(&node.ty_of(x).dims);
            let ranges = dims.map(|((range, padding), &size)| {
                let start = usize::try_from(range.start as i64 - padding.low).ok()?;
                let limit = usize::try_from(range.limit as i64 - padding.low).ok()?;
                (padding.interior == 0 && limit <= size).then_some(SliceDim { start, limit, stride: range.stride })
            });
            let ranges = ranges.collect::<Option<_>>()?;
            node.push(Slice { ranges }, &[x])
        };
    }
    PAD {
        "pad(x) = x", "by nothing", given Op::Pad(op) => |node| {
            op.padding.iter().all(|dim| (dim.low, dim.high, dim.interior) == (0, 0, 0)).then(|| node.operand(0))
        };
        "pad(pad(x)) = pad(x)", "borders of the same value around borders",
            given Op::Pad(outer) => made by (Op::Pad(inner), &[x, value]) => |node| {
            (value == node.operand(1)).then_some(())?;
            let padding = outer.padding.iter().zip(&inner.padding).map(|(outer, inner)| {
                // The elements that one border removes must be counted before those that another adds.
                let plain = |dim: &PadDim| dim.interior == 0 && dim.low >= 0 && dim.high >= 0;
                let sum = PadDim { low: outer.low + inner.low, high: outer.high + inner.high, interior: 0 };
                (plain(outer) && plain(inner)).then_some(sum)
            });
            let padding = padding.collect::<Option<_>>()?;
            node.push(Pad { padding }, &[x, value])
        };
    }
    CONCATENATE {
        "concatenate(x) = x", "there is nothing to join", |node| same_dims(node).filter(|_| node.operands().len() == 1);
        "concatenate(x, empty) = concatenate(x)", "nothing comes from what is empty",
            given Op::Concatenate(op) => |node| {
            let full = |&x: &Value| node.ty_of(x).dims[op.axis] > 0;
            let kept: SmallVec<[Value; 4]> = node.operands().iter().copied().filter(full).collect();
            (!kept.is_empty() && kept.len() < node.operands().len()).then_some(())?;
            node.push(op.clone(), &kept)
        };
        "concatenate(concatenate(x, y), z) = concatenate(x, y, z)", "along one dimension",
            given Op::Concatenate(op) => |node| {
            let mut flat: SmallVec<[Value; 8]> = SmallVec::new();
            for &operand in node.operands() {
                match node.made_by(operand) {
                    Some((Op::Concatenate(inner), parts)) if inner == op => flat.extend_from_slice(parts),
                    _ => flat.push(operand),
                }
            }
            (flat.len() > node.operands().len()).then_some(())?;
            node.push(op.clone(), &flat)
        };
        "concatenate(x[a:b], x[b:c]) = x[a:c]", "neighbouring parts of one tensor", |node| join_slices(node);
    }
    REVERSE {
        "reverse(x) = x", "a dimension of one element is its own reverse", given Op::Reverse(op) => |node| {
            let axes: AxisList = op.axes.iter().copied().filter(|&axis| node.ty.dims[axis] > 1).collect();
            if axes.is_empty() { Some(node.operand(0)) } else if axes.len() == op.axes.len() { None } else {
                node.push(Reverse { axes }, &[node.operand(0)])
            }
        };
        "reverse(reverse(x)) = reverse(x)", "a dimension reversed twice is as it was",
            given Op::Reverse(outer) => made by (Op::Reverse(inner), &[x]) => |node| {
            let odd = |&axis: &usize| outer.axes.contains(&axis) != inner.axes.contains(&axis);
            let axes = (0..node.ty.rank()).filter(odd).collect();
            node.push(Reverse { axes }, &[x])
        };
        "reverse(broadcast(x)) = broadcast(x)", "repetitions are alike in any order",
            given Op::Reverse(op) => made by (Op::BroadcastInDim(inner), _) => |node| {
            let axes: AxisList = op.axes.iter().copied().filter(|axis| inner.mapping.contains(axis)).collect();
            (axes.len() < op.axes.len()).then_some(())?;
            if axes.is_empty() { Some(node.operand(0)) } else { node.push(Reverse { axes }, &[node.operand(0)]) }
        };
    }
    DYNAMIC_SLICE {
        "dynamic-slice(x) = x", "a slice of everything starts at the start: other starts are moved there",
            |node| same_dims(node);
        "dynamic-slice(x, constants) = slice(x)", "where the start is moved to is known", |node| {
            let dims = node.ty_of(node.operand(0)).dims.clone();
            let starts = node.operands()[1..].iter().zip(&dims).zip(&node.ty.dims);
            let ranges = starts.map(|((&start, &dim), &size)| {
                // The start is computed as a back end does it: the number in its own type, moved to where the slice
                // fits. A number of 64 bits that `f64` rounds is far outside on either side of the rounding.
                let start = integer(node.splat(start)?).clamp(0, (dim - size) as i128) as usize;
                Some(SliceDim { start, limit: start + size, stride: 1 })
            });
            let ranges = ranges.collect::<Option<_>>()?;
            node.push(Slice { ranges }, &[node.operand(0)])
        };
    }
    DYNAMIC_UPDATE_SLICE {
        "dynamic-update-slice(x, y) = y", "if y is as large as x, nothing of x is left",
            |node| (node.ty_of(node.operand(1)) == node.ty).then(|| node.operand(1));
    }
    REDUCE {
        "reduce(x) = reshape(x)", "over dimensions of one element; not a float sum: 0 + -0 = 0",
            given Op::Reduce(op) => |node| {
            let is_exact = op.kind != ReduceKind::Sum || !node.dtype().is_float();
            let dims = &node.ty_of(node.operand(0)).dims;
            (is_exact && op.axes.iter().all(|&axis| dims[axis] == 1)).then_some(())?;
            node.push(Reshape { dims: node.ty.dims.clone() }, &[node.operand(0)])
        };
        "reduce(reduce(x)) = reduce(x)", "not a float sum or product, whose order matters",
            given Op::Reduce(outer) => made by (Op::Reduce(inner), &[x]) => |node| {
            let is_exact = is_idempotent(outer.kind) || !node.dtype().is_float();
            (is_exact && outer.kind == inner.kind).then_some(())?;
            let left = complement(&inner.axes, node.ty_of(x).rank());
            let mut axes = inner.axes.clone();
            axes.extend(outer.axes.iter().map(|&axis| left[axis]));
            axes.sort_unstable();
            node.push(Reduce { kind: outer.kind, axes }, &[x])
        };
        "max(broadcast(x)) = x", "max, min, and, or of repetitions of one element",
            given Op::Reduce(op) => made by (Op::BroadcastInDim(inner), &[x]) => |node| {
            let repeated = |&axis: &usize| !inner.mapping.contains(&axis) && inner.dims[axis] > 0;
            (is_idempotent(op.kind) && op.axes.iter().all(repeated)).then_some(())?;
            let left = complement(&op.axes, inner.dims.len());
            let mapping = inner.mapping.iter().filter_map(|axis| left.iter().position(|kept| kept == axis)).collect();
            node.push(BroadcastInDim { dims: node.ty.dims.clone(), mapping }, &[x])
        };
    }
}

/// Whether an element combined with itself is itself. Then the order of combination does not matter either.
fn is_idempotent(kind: ReduceKind) -> bool {
    match kind {
        ReduceKind::And | ReduceKind::Max | ReduceKind::Min | ReduceKind::Or => true,
        ReduceKind::Prod | ReduceKind::Sum => false,
    }
}

/// The first operand, if it has the result's dimensions.
fn same_dims(node: &Match<'_, '_>) -> Option<Value> {
    (node.ty_of(node.operand(0)).dims == node.ty.dims).then(|| node.operand(0))
}

/// The number of an integer splat, as its element type has it.
fn integer(splat: &Splat) -> i128 {
    let (bytes, width) = splat.element_bytes();
    let mut wide = [0; 16];
    if splat.ty.dtype.is_signed_integer() && bytes[width - 1] >> 7 == 1 {
        wide = [0xff; 16];
    }
    wide[..width].copy_from_slice(&bytes[..width]);
    i128::from_le_bytes(wide)
}

/// Operands of a concatenation that are adjacent slices, taken together.
struct AdjacentSlices {
    source: Value,
    ranges: Box<[SliceDim]>,
    /// The operand, if it stands alone.
    alone: Option<Value>,
}

impl AdjacentSlices {
    /// Whether slices of the same tensor with these ranges begin along `axis` where this part ends.
    fn continues_with(&self, source: Value, ranges: &[SliceDim], axis: usize) -> bool {
        let fits = |(dim, (own, next)): (usize, (&SliceDim, &SliceDim))| {
            if dim == axis { own.limit == next.start && (own.stride, next.stride) == (1, 1) } else { own == next }
        };
        self.source == source
            && self.ranges.len() == ranges.len()
            && self.ranges.iter().zip(ranges).enumerate().all(fits)
    }
}

fn join_slices(node: &mut Match<'_, '_>) -> Option<Value> {
    let Op::Concatenate(Concatenate { axis }) = *node.op else { return None };
    let mut parts: SmallVec<[AdjacentSlices; 4]> = SmallVec::new();
    for &operand in node.operands() {
        let (source, ranges) = match node.made_by(operand) {
            Some((Op::Slice(op), &[source])) => (source, op.ranges.clone()),
            _ => (operand, Box::default()),
        };
        match parts.last_mut() {
            Some(part) if !ranges.is_empty() && part.continues_with(source, &ranges, axis) => {
                part.ranges[axis].limit = ranges[axis].limit;
                part.alone = None;
            }
            _ => parts.push(AdjacentSlices { source, ranges, alone: Some(operand) }),
        }
    }
    (parts.len() < node.operands().len()).then_some(())?;
    let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
    for AdjacentSlices { source, ranges, alone } in parts {
        operands.push(match alone {
            Some(operand) => operand,
            None => node.push(Slice { ranges }, &[source])?,
        });
    }
    node.push(Concatenate { axis }, &operands)
}
