//! How pseudo-gradients get from replica to replica.
//!
//! In full precision they are a mean over the dimension of the replicas: one all-reduce. In fewer bits a sum cannot be built up on the
//! way, as every partial sum would have to be rounded again. So each replica rounds its own pseudo-gradient once, all of them are
//! gathered as they are, and each device adds them up in `f32`: what crosses the link are the low-bit numbers and their scales, as
//! unsigned integers, which no plugin widens. All replicas add up the same numbers in the same order and so come to the same mean.

use super::fragments::PartLayout;
use super::options::Transport;
use crate::ir::{AxisNames, DType, Dims, Name};
use crate::ops::WithAxes;
use crate::sharding::Role;
use crate::trace::{Place, Tensor, concatenate, label};

/// The logical name of the dimension over replicas.
pub const REPLICAS: &str = "diloco";

/// The largest number of [`DType::F8E4M3FN`].
const F8_MAX: f64 = 448.0;

/// The largest 4-bit integer used: as far from zero as the smallest.
const INT4_MAX: f64 = 7.0;

/// Smaller scales, as of blocks of zeros, would be no normal numbers, which devices take for zero.
const SMALLEST_SCALE: f64 = 1e-30;

/// Where numbers share scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// The dimension.
    dim: usize,
    /// How many of it make a block.
    size: usize,
}

/// The blocks of a value of these dimensions, each cut into so many parts: the largest of an even size up to `limit` that none of the
/// cuts goes through, along the last dimension that has such. None if no dimension from `first` on has any.
fn blocks(dims: &[usize], parts: &[usize], first: usize, limit: usize) -> Option<Blocks> {
    let largest = |dim: usize| {
        let local = dims[dim].checked_div(parts[dim]).filter(|local| local * parts[dim] == dims[dim])?;
        (2..=limit.min(local)).rev().find(|size| size.is_multiple_of(2) && local.is_multiple_of(*size))
    };
    let found = (first..dims.len()).filter_map(|dim| Some(Blocks { dim, size: largest(dim)? }));
    found.max_by_key(|blocks| (blocks.size, blocks.dim))
}

/// Bytes that one replica sends of a part with these dimensions, over all its devices.
pub(super) fn payload_bytes(transport: Transport, limit: usize, dims: &[usize], layout: &PartLayout) -> usize {
    let count: usize = dims.iter().product();
    let block = blocks(dims, &layout.parts, layout.replica_dim, limit).map(|blocks| blocks.size);
    match (transport, block) {
        (Transport::F32, _) => 4 * count,
        // Without blocks there is nothing to share a scale.
        (Transport::Bf16, _) | (_, None) => 2 * count,
        (Transport::F8, Some(block)) => count + 4 * (count / block),
        (Transport::Int4, Some(block)) => count / 2 + 4 * (count / block),
    }
}

/// The mean over replicas of `f32` pseudo-gradients, one dimension of which runs over them, and which is gone then.
pub(super) fn mean(transport: Transport, block: usize, delta: Tensor, layout: &PartLayout, place: Place) -> Tensor {
    let sent = Sent { layout, at: layout.replica_dim, place };
    let dims = without(&delta.dims(), sent.at);
    match (transport, blocks(&dims, &layout.parts, layout.replica_dim, block)) {
        (Transport::F32, _) => sent.name(delta.mean(sent.at as i32), None, &layout.names),
        (Transport::Bf16, _) | (_, None) => {
            let bits = delta.convert(DType::BF16).bitcast_convert(DType::U16);
            sent.gathered(bits, &layout.names).bitcast_convert(DType::BF16).convert(DType::F32).mean(sent.at as i32)
        }
        (Transport::F8, Some(blocks)) => sent.in_blocks(delta, blocks, F8_MAX, to_f8, from_f8),
        (Transport::Int4, Some(blocks)) => sent.in_blocks(delta, blocks, INT4_MAX, to_int4, from_int4),
    }
}

/// What is under way.
struct Sent<'a> {
    layout: &'a PartLayout,
    /// The dimension over replicas.
    at: usize,
    place: Place,
}

impl Sent<'_> {
    /// The value with names, and one for the dimension over replicas if it has that.
    fn name(&self, x: Tensor, replicas: Option<&str>, names: &[Name]) -> Tensor {
        let mut names: AxisNames = names.iter().copied().collect();
        if let Some(replicas) = replicas {
            names.insert(self.at, Name::new(replicas));
        }
        label(x, WithAxes { role: Role::Params, ..WithAxes::new(names) }, self.place)
    }

    /// What all replicas have, on each of them.
    fn gathered(&self, x: Tensor, names: &[Name]) -> Tensor {
        self.name(self.name(x, Some(REPLICAS), names), Some(""), names)
    }

    /// The mean of what arrives if each block is scaled to numbers up to `largest`, and these are sent by `encode`, which may change the
    /// dimension within the blocks, and read by `decode`.
    fn in_blocks(
        &self,
        delta: Tensor,
        blocks: Blocks,
        largest: f64,
        encode: impl FnOnce(Tensor, usize) -> Tensor,
        decode: impl FnOnce(Tensor, usize) -> Tensor,
    ) -> Tensor {
        let dims = delta.dims();
        // Blocks lie along dimensions behind the one over replicas.
        let dim = blocks.dim + 1;
        let mut blocked: Dims = dims.clone();
        blocked[dim] /= blocks.size;
        blocked.insert(dim + 1, blocks.size);
        let within = dim as i32 + 1;
        let in_blocks = delta.reshape(&blocked);
        let scale = (in_blocks.abs().max(within) / largest).maximum(SMALLEST_SCALE);
        let kept: Vec<i32> = (0..blocked.len() as i32).filter(|&axis| axis != within).collect();
        let numbers = in_blocks / scale.broadcast_like(in_blocks, &kept[..]);
        let mut names = self.layout.names.clone();
        let scale = self.gathered(scale.bitcast_convert(DType::U32), &names).bitcast_convert(DType::F32);
        names.insert(blocks.dim + 1, Name::default());
        let numbers = decode(self.gathered(encode(numbers, dim + 1), &names), dim + 1);
        (numbers * scale.broadcast_like(numbers, &kept[..])).reshape(&dims).mean(self.at as i32)
    }
}

fn to_f8(numbers: Tensor, _: usize) -> Tensor {
    numbers.convert(DType::F8E4M3FN).bitcast_convert(DType::U8)
}

fn from_f8(bits: Tensor, _: usize) -> Tensor {
    bits.bitcast_convert(DType::F8E4M3FN).convert(DType::F32)
}

/// The first half of each block in the low bits, the second in the high ones.
fn to_int4(numbers: Tensor, within: usize) -> Tensor {
    let rounded = (numbers.round() + 8.0).convert(DType::U8);
    let (axis, half) = (within as i32, numbers.dims()[within] / 2);
    rounded.slice(axis, ..half) + rounded.slice(axis, half..) * 16
}

fn from_int4(bytes: Tensor, within: usize) -> Tensor {
    concatenate(&[bytes % 16, bytes / 16], within as i32).convert(DType::F32) - 8.0
}

fn without(dims: &[usize], dim: usize) -> Dims {
    dims.iter().enumerate().filter(|(index, _)| *index != dim).map(|(_, &size)| size).collect()
}
