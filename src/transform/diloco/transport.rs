//! How pseudo-gradients get from replica to replica.
//!
//! In full precision they are a mean over the dimension of the replicas: one all-reduce. In fewer bits a sum cannot be
//! built up on the way, as every partial sum would have to be rounded again. So each replica rounds its own
//! pseudo-gradient once, all of them are gathered as they are, and each device adds them up in `f32`. The low-bit
//! numbers and their scales cross the link as unsigned integers, which no plugin widens. All replicas add up the same
//! numbers in the same order and so come to the same mean.

use half::bf16;
use meshloom_hlo::F8E4M3FN;

use super::options::Transport;
use crate::ir::{AxisNames, DType, Dims, Literal, Name, Role};
use crate::ops::WithAxes;
use crate::trace::{Tensor, concatenate, fail_internal};

/// The logical name of the dimension over replicas.
pub const REPLICAS: &str = "diloco";

/// The largest number of [`DType::F8E4M3FN`].
const F8_MAX: f64 = 448.0;

/// The largest 4-bit integer used: as far from zero as the smallest.
const INT4_MAX: f64 = 7.0;

/// The smallest scale used. The scale of a block of zeros or of tiny numbers would otherwise be zero or subnormal, and
/// devices take subnormal numbers for zero.
const SMALLEST_SCALE: f64 = 1e-30;

/// The dimensions of a parameter's part in a fragment, without the one over replicas.
#[derive(Clone, Debug, Default)]
pub(super) struct PartLayout {
    /// The name of each dimension.
    pub(super) names: Vec<Name>,
    /// The number of parts into which each dimension is cut.
    pub(super) parts: Vec<usize>,
    /// The position of the dimension over replicas, if there is one.
    pub(super) replica_dim: usize,
}

/// The blocks of numbers that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScaleBlocks {
    /// The dimension along which blocks lie.
    dim: usize,
    /// The number of elements in a block.
    size: usize,
}

/// The blocks of a value of these dimensions, each cut into the given number of parts: the largest of an even size up
/// to `limit` that no cut goes through, along the last dimension that has such blocks. The result is `None` if no
/// dimension from `first` on has any.
fn blocks(dims: &[usize], parts: &[usize], first: usize, limit: usize) -> Option<ScaleBlocks> {
    let largest = |dim: usize| {
        let local = dims[dim].checked_div(parts[dim]).filter(|local| local * parts[dim] == dims[dim])?;
        (2..=limit.min(local)).rev().find(|size| size.is_multiple_of(2) && local.is_multiple_of(*size))
    };
    let found = (first..dims.len()).filter_map(|dim| Some(ScaleBlocks { dim, size: largest(dim)? }));
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

/// The means over replicas of `f32` pseudo-gradients. Each has one dimension that runs over the replicas, which the
/// mean removes.
///
/// All are made ready before the first is sent: so collectives stand side by side, and small ones become one.
pub(super) fn means(transport: Transport, block: usize, deltas: Vec<(Tensor, PartLayout)>) -> Vec<Tensor> {
    let ready: Vec<(Message, PartLayout)> =
        deltas.into_iter().map(|(delta, layout)| (encoded(transport, block, delta, &layout), layout)).collect();
    let scales: Vec<Option<Tensor>> = ready.iter().map(|(message, layout)| message.scales(layout)).collect();
    let numbers: Vec<Tensor> = ready.iter().map(|(message, layout)| message.numbers(layout)).collect();
    let arrived = ready.into_iter().zip(numbers).zip(scales);
    arrived.map(|(((message, layout), numbers), scales)| message.decoded(numbers, scales, &layout)).collect()
}

/// The message that one replica sends of its pseudo-gradient, whose dimension over replicas has size 1.
pub(super) fn sent(transport: Transport, block: usize, delta: Tensor, layout: &PartLayout) -> Vec<Tensor> {
    match encoded(transport, block, delta, layout) {
        Message::Mean(mean) => vec![mean],
        Message::Bf16(bits) => vec![bits],
        Message::Blocks { numbers, scales, .. } => vec![numbers, scales.bitcast_convert(DType::U32)],
    }
}

/// The pseudo-gradient that a replica has [`sent`], of a part with these dimensions: `f32`.
pub(super) fn received(
    transport: Transport,
    block: usize,
    message: &mut impl Iterator<Item = Tensor>,
    layout: &PartLayout,
    part: &[usize],
) -> Tensor {
    let mut next =
        || message.next().unwrap_or_else(|| fail_internal("a message of a replica", "a tensor for each part"));
    let mut dims = Dims::from_slice(part);
    dims.insert(layout.replica_dim, 1);
    let numbers = next();
    let form = match (transport, blocks(part, &layout.parts, layout.replica_dim, block)) {
        (Transport::F32, _) => return numbers,
        (Transport::Bf16, _) | (_, None) => return Message::Bf16(numbers).decoded(numbers, None, layout),
        (Transport::F8 | Transport::Int4, Some(blocks)) => blocks,
    };
    let scales = next().bitcast_convert(DType::F32);
    Message::Blocks { transport, numbers, scales, blocks: form, dims }.decoded(numbers, Some(scales), layout)
}

/// The sum of the squares of the numbers of a pseudo-gradient that a replica has [`sent`], on the host. It is the same
/// on every host, and not finite if one of the numbers is not.
pub(super) fn squares<'a>(
    transport: Transport,
    block: usize,
    message: &mut impl Iterator<Item = &'a Literal>,
    layout: &PartLayout,
    part: &[usize],
) -> f64 {
    // A message that ends early has no norm.
    let Some(numbers) = message.next() else { return f64::NAN };
    let sum = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>();
    let blocks = match (transport, blocks(part, &layout.parts, layout.replica_dim, block)) {
        (Transport::F32, _) => return sum(&mut numbers.to_f64_vec().into_iter()),
        (Transport::Bf16, _) | (_, None) => {
            let bits = numbers.to_vec::<u16>().unwrap_or_default();
            return sum(&mut bits.into_iter().map(|bits| bf16::from_bits(bits).to_f64()));
        }
        (Transport::F8 | Transport::Int4, Some(blocks)) => blocks,
    };
    let Some(scales) = message.next().and_then(|scales| scales.to_vec::<u32>()) else { return f64::NAN };
    // As in `encoded`: a dimension over blocks, and behind it that within a block.
    let (dims, within) = (&numbers.ty().dims, blocks.dim + 2);
    let (size, inner) = (dims[within], dims[within + 1..].iter().product::<usize>());
    let scale = |index: usize| {
        let bits = scales.get(index / (size * inner) * inner + index % inner);
        bits.map_or(f64::NAN, |&bits| f64::from(f32::from_bits(bits)))
    };
    let number = |(index, &byte): (usize, &u8)| -> f64 {
        let (low, high) = match transport {
            Transport::F8 => (F8E4M3FN(byte).to_f64(), 0.0),
            _ => (f64::from(byte % 16) - 8.0, f64::from(byte / 16) - 8.0),
        };
        (low * low + high * high) * scale(index).powi(2)
    };
    numbers.bytes().iter().enumerate().map(number).sum()
}

/// A pseudo-gradient in the form in which it is sent.
enum Message {
    /// A mean that is to be completed.
    Mean(Tensor),
    /// Each replica's numbers, as bits.
    Bf16(Tensor),
    /// Each replica's numbers, as bits, with the scales and the layout of their blocks, and the dimensions of the
    /// original numbers.
    Blocks { transport: Transport, numbers: Tensor, scales: Tensor, blocks: ScaleBlocks, dims: Dims },
}

fn encoded(transport: Transport, block: usize, delta: Tensor, layout: &PartLayout) -> Message {
    let dims = delta.dims();
    match (transport, blocks(&without(&dims, layout.replica_dim), &layout.parts, layout.replica_dim, block)) {
        (Transport::F32, _) => Message::Mean(delta.mean(layout.replica_dim as i32)),
        (Transport::Bf16, _) | (_, None) => Message::Bf16(delta.convert(DType::BF16).bitcast_convert(DType::U16)),
        (Transport::F8 | Transport::Int4, Some(blocks)) => {
            let largest = if transport == Transport::F8 { F8_MAX } else { INT4_MAX };
            // Blocks lie along dimensions behind the one over replicas.
            let (dim, within) = (blocks.dim + 1, blocks.dim as i32 + 2);
            let mut blocked = dims.clone();
            blocked[dim] /= blocks.size;
            blocked.insert(dim + 1, blocks.size);
            let delta = delta.reshape(&blocked);
            let scales = (delta.abs().max(within) / largest).maximum(SMALLEST_SCALE);
            let numbers = delta / of_blocks(scales, delta, within);
            let numbers = if transport == Transport::F8 { to_f8(numbers) } else { to_int4(numbers, within) };
            Message::Blocks { transport, numbers, scales, blocks, dims }
        }
    }
}

/// One scale for all numbers of a block, which lie along dimension `within`.
fn of_blocks(scales: Tensor, numbers: Tensor, within: i32) -> Tensor {
    let kept: Vec<i32> = (0..numbers.rank() as i32).filter(|&axis| axis != within).collect();
    scales.broadcast_like(numbers, &kept[..])
}

impl Message {
    /// The scales of all replicas, on each of them.
    fn scales(&self, layout: &PartLayout) -> Option<Tensor> {
        let Message::Blocks { scales, .. } = self else { return None };
        let bits = gathered(scales.bitcast_convert(DType::U32), &layout.names, layout);
        Some(bits.bitcast_convert(DType::F32))
    }

    /// The mean, completed; or the numbers of all replicas, on each of them.
    fn numbers(&self, layout: &PartLayout) -> Tensor {
        match self {
            Message::Mean(mean) => named(*mean, layout.names.iter().copied().collect()),
            Message::Bf16(bits) => gathered(*bits, &layout.names, layout),
            Message::Blocks { numbers, blocks, .. } => {
                let mut names = layout.names.clone();
                names.insert(blocks.dim + 1, Name::default());
                gathered(*numbers, &names, layout)
            }
        }
    }

    /// Decodes what has arrived, and returns the mean.
    fn decoded(self, arrived: Tensor, scales: Option<Tensor>, layout: &PartLayout) -> Tensor {
        let over_replicas = layout.replica_dim as i32;
        match (self, scales) {
            (Message::Blocks { transport, blocks, dims, .. }, Some(scales)) => {
                let within = blocks.dim as i32 + 2;
                let numbers = if transport == Transport::F8 { from_f8(arrived) } else { from_int4(arrived, within) };
                (numbers * of_blocks(scales, numbers, within)).reshape(&dims).mean(over_replicas)
            }
            (Message::Bf16(_), _) => arrived.bitcast_convert(DType::BF16).convert(DType::F32).mean(over_replicas),
            _ => arrived,
        }
    }
}

fn named(x: Tensor, names: AxisNames) -> Tensor {
    x.with_logical_axes(WithAxes { role: Role::Params, ..WithAxes::new(names) })
}

/// Gathers each replica's part, so that all replicas have all parts. `names` are those of the dimensions but for the
/// one over replicas.
fn gathered(x: Tensor, names: &[Name], layout: &PartLayout) -> Tensor {
    let with = |replicas: &str| {
        let mut names: AxisNames = names.iter().copied().collect();
        names.insert(layout.replica_dim, Name::new(replicas));
        names
    };
    named(named(x, with(REPLICAS)), with(""))
}

fn to_f8(numbers: Tensor) -> Tensor {
    numbers.convert(DType::F8E4M3FN).bitcast_convert(DType::U8)
}

fn from_f8(bits: Tensor) -> Tensor {
    bits.bitcast_convert(DType::F8E4M3FN).convert(DType::F32)
}

/// The first half of each block in the low bits, the second in the high ones.
fn to_int4(numbers: Tensor, within: i32) -> Tensor {
    let rounded = (numbers.round() + 8.0).convert(DType::U8);
    let half = numbers.dim(within) / 2;
    rounded.slice(within, ..half) + rounded.slice(within, half..) * 16
}

fn from_int4(bytes: Tensor, within: i32) -> Tensor {
    concatenate(&[bytes % 16, bytes / 16], within).convert(DType::F32) - 8.0
}

fn without(dims: &[usize], dim: usize) -> Dims {
    dims.iter().enumerate().filter(|(index, _)| *index != dim).map(|(_, &size)| size).collect()
}
