//! Devices of hardware that is not there.

use meshloom::sharding::DevicePlace;

/// Devices as libtpu describes them, in its order of ids: core fastest, then x, y and z; slices from 100,000 on where
/// there are several.
pub fn tpus(chips: [i64; 3], cores: i64, slices: i64) -> Vec<DevicePlace> {
    let mut devices = Vec::new();
    for slice in 0..slices {
        let first = if slices > 1 { 100_000 * (slice as i32 + 1) } else { 0 };
        for (id, (z, y, x, core)) in (first..).zip(places(chips, cores)) {
            devices.push(DevicePlace { id, slice, coords: [core, x, y, z].into_iter().collect() });
        }
    }
    devices
}

fn places([x, y, z]: [i64; 3], cores: i64) -> impl Iterator<Item = (i64, i64, i64, i64)> {
    (0..x * y * z * cores).map(move |i| (i / cores / x / y, i / cores / x % y, i / cores % x, i % cores))
}
