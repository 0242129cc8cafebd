//! The number of devices that a module is for.

use super::custom_collectives::CallDevices;
use super::megascale::{SliceTransfer, slice_count};
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::proto::{HloModuleConfigProto, HloModuleProto, OpSharding};

/// The devices that a program runs on. A program that XLA or meshloom partitions has one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The number of copies of the program.
    pub replicas: u64,
    /// The number of parts into which each copy is split.
    pub partitions: u64,
}

impl Devices {
    /// Returns one replica of this many partitions.
    pub fn partitioned(partitions: usize) -> Devices {
        Devices { replicas: 1, partitions: partitions as u64 }
    }
}

/// Returns the number of devices that a module is for: the number in its config, or else as many as its collectives and
/// shardings name, or one if they name none.
pub fn device_count(module: &HloModuleProto, config: Option<&HloModuleConfigProto>) -> Devices {
    let positive = |count: i64| u64::try_from(count).unwrap_or(0).max(1);
    let (replicas, partitions) =
        config.map_or((1, 1), |config| (positive(config.replica_count), positive(config.num_partitions)));
    // A program of several slices is written for the devices of one.
    let slices = slice_count(module);
    if replicas.saturating_mul(partitions) > 1 {
        return Devices { replicas, partitions: partitions.saturating_mul(slices) };
    }
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let (mut named, mut across_partitions) = (1, false);
    for instruction in instructions {
        let call = CallDevices::of(instruction);
        let groups = call.as_ref().map_or_else(|| DeviceGroups::of(instruction), |call| call.groups.clone()).largest();
        let in_call = call.iter().flat_map(|call| &call.pairs).map(|&(from, to)| from.max(to).saturating_add(1)).max();
        let pairs = instruction
            .source_target_pairs
            .iter()
            .map(|pair| positive(pair.source.max(pair.target).saturating_add(1)))
            .max()
            .or(in_call);
        if groups.is_some() || pairs.is_some() {
            // JAX's custom calls are for partitions.
            across_partitions |= instruction.channel_id > 0 || call.is_some();
        }
        let tiles = instruction.sharding.as_deref().map(sharded_over);
        // A transfer between slices says how many devices a slice has.
        let of_slice = SliceTransfer::of(instruction).and_then(|transfer| transfer.devices);
        named = [groups, pairs, tiles, of_slice].into_iter().flatten().fold(named, u64::max);
        across_partitions |= tiles.is_some() || of_slice.is_some();
    }
    match across_partitions {
        true => Devices { replicas: 1, partitions: named.saturating_mul(slices) },
        false => Devices { replicas: named, partitions: slices },
    }
}

/// Returns the number of devices over which a value is split.
fn sharded_over(sharding: &OpSharding) -> u64 {
    let product = |sizes: &mut dyn Iterator<Item = i64>| {
        sizes.fold(1u64, |product, size| product.saturating_mul(u64::try_from(size).unwrap_or(0).max(1)))
    };
    let tiles = product(&mut sharding.tile_assignment_dimensions.iter().copied());
    let mesh = sharding.named_sharding.as_ref().and_then(|named| named.mesh.as_ref());
    let mesh = mesh.map_or(1, |mesh| product(&mut mesh.axes.iter().map(|axis| axis.size)));
    sharding.tuple_shardings.iter().map(sharded_over).fold(tiles.max(mesh), u64::max)
}
