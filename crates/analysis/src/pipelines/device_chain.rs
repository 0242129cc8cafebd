//! Devices that each hand values on to the next.

use rustc_hash::{FxHashMap, FxHashSet};

/// One of the lines of devices that the pairs of a permute make up. All of them are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChain {
    /// The devices of the first line, by number.
    pub devices: Vec<u64>,
    /// Whether each device hands on to the one with the next lower number.
    pub backward: bool,
    /// Whether the last device hands on to the first.
    pub closed: bool,
}

impl DeviceChain {
    /// Returns the first of the lines that pairs of source and target make up; `None` unless all are equally long, have
    /// the same distance between neighbours, and are all open or all closed to rings.
    pub fn of(pairs: &[(u64, u64)]) -> Option<DeviceChain> {
        let next: FxHashMap<u64, u64> = pairs.iter().copied().collect();
        let targets: FxHashSet<u64> = next.values().copied().collect();
        if next.len() != pairs.len() || targets.len() != pairs.len() {
            return None;
        }
        // Most pairs go one way; the one that closes a ring goes the other.
        let rising = pairs.iter().filter(|(source, target)| target > source).count();
        let backward = 2 * rising < pairs.len();
        let goes_on = |&(source, target): &(u64, u64)| (target < source) == backward && source != target;
        let step = pairs.iter().find(|pair| goes_on(pair)).map(|(source, target)| source.abs_diff(*target))?;
        // A line begins at a device that is no target, except of the pair that closes a ring.
        let onwards: FxHashMap<u64, u64> = pairs.iter().copied().filter(goes_on).collect();
        let reached: FxHashSet<u64> = onwards.values().copied().collect();
        let mut lines: Vec<Vec<u64>> = Vec::new();
        for &first in onwards.keys().filter(|device| !reached.contains(device)) {
            let mut line = vec![first];
            let mut device = first;
            while let Some(&target) = onwards.get(&device) {
                if target.abs_diff(device) != step {
                    return None;
                }
                line.push(target);
                device = target;
            }
            if next.get(&device).is_some_and(|&back| back != first) {
                return None;
            }
            lines.push(line);
        }
        let length = lines.first()?.len();
        if lines.iter().any(|line| line.len() != length) {
            return None;
        }
        let closed = pairs.len() == lines.len() * length;
        let mut devices = lines.into_iter().min()?;
        devices.sort_unstable();
        Some(DeviceChain { devices, backward, closed })
    }
}
