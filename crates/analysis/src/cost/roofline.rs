//! The time that a chip needs at its peak rates.

use std::fmt;

use serde::Serialize;

use super::{CostOptions, Counter, Work};
use crate::chips::Chip;
use crate::collectives::ModuleCollective;
use crate::walk::{Place, Walk};
use meshloom_hlo::proto::HloInstructionProto;

/// The resource that limits an op or a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Its operations.
    Compute,
    /// The bytes that it reads and writes.
    Memory,
    /// The bytes that it sends.
    Link,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bound::Compute => "compute",
            Bound::Memory => "memory",
            Bound::Link => "link",
        })
    }
}

/// The wires over which a collective sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// The links between chips.
    Ring,
    /// The network between slices or hosts.
    Network,
}

impl Link {
    /// Returns the time for this many bytes, in seconds; `None` if the chip's rates are unknown.
    pub(super) fn seconds(self, chip: &Chip, bytes: u64) -> Option<f64> {
        let rate = match self {
            Link::Ring => chip.ring_bandwidth()?,
            Link::Network => chip.device_network_bandwidth().or_else(|| chip.ring_bandwidth())?,
        };
        Some(bytes as f64 / rate)
    }
}

/// Returns the wires over which a collective sends: the network, if a group has devices of several slices.
pub(super) fn link(collective: &ModuleCollective, options: &CostOptions) -> Link {
    let Some(slice) = options.slice_devices.filter(|&slice| slice > 0) else { return Link::Ring };
    let crosses = |devices: &[u64]| devices.iter().any(|device| device / slice != devices[0] / slice);
    let groups = collective.groups.lists();
    let all = options.devices.replicas.saturating_mul(options.devices.partitions);
    let across = match groups {
        Some(groups) => groups.iter().any(|group| crosses(group)),
        // One group of all devices, or a permute, whose pairs may be anywhere.
        None => all > slice,
    };
    if across { Link::Network } else { Link::Ring }
}

/// The time of work at a chip's peak rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Seconds {
    /// The time of its operations.
    pub compute: f64,
    /// The time of the bytes that it reads and writes.
    pub memory: f64,
    /// The time of the bytes that it sends.
    pub link: f64,
    /// The time of one op after the other, each as long as the longest of its three.
    pub serial: f64,
}

impl Seconds {
    /// The time of one op; `None` if the chip's rates are unknown. Operations of a kind without a rate take no time.
    pub(super) fn of(chip: &Chip, work: &Work, link: Option<Link>) -> Option<Seconds> {
        let rate = work.arithmetic().and_then(|arithmetic| chip.matrix_rate(arithmetic));
        let compute = rate.map_or(0.0, |rate| work.flops as f64 / rate);
        let memory = work.bytes() as f64 / chip.device_memory_bandwidth()?;
        let link = match link.filter(|_| work.link_bytes > 0) {
            None => 0.0,
            Some(link) => link.seconds(chip, work.link_bytes)?,
        };
        Some(Seconds { compute, memory, link, serial: compute.max(memory).max(link) })
    }

    /// Returns the time of this many repetitions.
    pub(super) fn times(self, times: u64) -> Seconds {
        self.each(self, |seconds, _| seconds * times as f64)
    }

    fn each(self, other: Seconds, combine: impl Fn(f64, f64) -> f64) -> Seconds {
        Seconds {
            compute: combine(self.compute, other.compute),
            memory: combine(self.memory, other.memory),
            link: combine(self.link, other.link),
            serial: combine(self.serial, other.serial),
        }
    }

    /// Combines two times, figure by figure; an unknown time counts as nothing.
    pub fn combine(a: Option<Seconds>, b: Option<Seconds>, combine: impl Fn(f64, f64) -> f64) -> Option<Seconds> {
        let (Some(a), Some(b)) = (a, b) else { return a.or(b) };
        Some(a.each(b, combine))
    }

    /// Returns the resource with the longest of the three times.
    pub fn bound(&self) -> Bound {
        if self.link > self.compute.max(self.memory) {
            Bound::Link
        } else if self.compute > self.memory {
            Bound::Compute
        } else {
            Bound::Memory
        }
    }
}

/// A lower bound on the time that a step takes on a chip.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Roofline {
    /// The chip.
    pub chip: &'static str,
    /// The times of all operations, all bytes, and all sent bytes.
    pub seconds: Seconds,
    /// The time without any overlap: one op after the other.
    pub serial_seconds: f64,
    /// The time if everything overlaps: the longest of computing, moving bytes and sending.
    pub overlapped_seconds: f64,
    /// The resource that takes longest.
    pub bound: Bound,
}

impl Roofline {
    pub(super) fn of(chip: &Chip, seconds: Seconds) -> Roofline {
        Roofline {
            chip: chip.name,
            seconds,
            serial_seconds: seconds.serial,
            overlapped_seconds: seconds.compute.max(seconds.memory).max(seconds.link),
            bound: seconds.bound(),
        }
    }
}

/// The times of a module's instructions on a chip, at its peak rates.
pub(crate) struct Timer<'w, 'a> {
    walk: &'w Walk<'a>,
    counter: Counter<'w, 'a>,
    chip: Chip,
}

impl<'w, 'a> Timer<'w, 'a> {
    pub(crate) fn of(walk: &'w Walk<'a>, chip: Chip) -> Timer<'w, 'a> {
        Timer { walk, counter: Counter::new(walk.module()), chip }
    }

    /// Returns the time that one execution of an instruction takes to compute, read and write, in seconds. It is 0 for
    /// an instruction that only runs other computations, and where rates are not known.
    pub(crate) fn seconds(&self, place: &Place<'a>, instruction: &HloInstructionProto) -> f64 {
        Seconds::of(&self.chip, &self.work(place, instruction), None).map_or(0.0, |seconds| seconds.serial)
    }

    /// Returns the work of one execution of an instruction.
    pub(crate) fn work(&self, place: &Place<'a>, instruction: &HloInstructionProto) -> Work {
        self.counter.work(self.walk.computation(place), instruction)
    }
}

/// Returns the wires that a collective sends over, and the seconds of one execution on them. A collective that sends an
/// amount that depends on its data is taken to send all its operands. The result is `None` for a chip whose rates are
/// not known.
pub(crate) fn transfer(collective: &ModuleCollective, options: &CostOptions) -> Option<(Link, f64)> {
    let chip = options.chip?;
    let link = link(collective, options);
    let bytes = collective.moved_bytes.or(collective.bytes).unwrap_or(0);
    Some((link, link.seconds(&chip, bytes)?))
}
