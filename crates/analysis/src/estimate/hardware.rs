//! Chips and the wires between them, with the parts of their peak rates that programs reach.

use serde::{Deserialize, Serialize};

use crate::chips::{Arithmetic, Chip};
use meshloom_hlo::PlatformKind;

/// The kind of wire that joins the devices along one dimension of the hardware, the fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// The devices are threads of one process and share its memory: sent values are copied.
    Memory,
    /// The devices are parts of one chip.
    Core,
    /// A switch, which joins each device with each.
    Switch,
    /// Links to two neighbours.
    Torus,
    /// The network of the data center.
    Network,
}

impl Wire {
    pub(super) const FASTEST_FIRST: [Wire; 5] = [Wire::Memory, Wire::Core, Wire::Switch, Wire::Torus, Wire::Network];
}

/// One dimension of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dimension {
    /// The number of devices along it.
    pub size: usize,
    /// The wire that joins them.
    pub wire: Wire,
    /// Whether the last device is joined with the first.
    #[serde(default)]
    pub wraps: bool,
    /// Bytes per second that a device can send along it, both ways round a torus. In shared memory, bytes per second
    /// that a collective reads or writes, whichever is more, when all devices do so. Programs reach a part of this rate
    /// ([`Reached::links`]).
    pub rate: f64,
    /// Seconds that a step of a collective takes along it.
    pub latency: f64,
}

/// A cache of the devices' cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The most bytes that a kernel can read and write in it.
    pub bytes: f64,
    /// Bytes per second that such a kernel reads and writes.
    pub bandwidth: f64,
}

/// The parts of a backend's peak rates that programs are assumed to reach. docs/plan.md holds estimates against
/// published runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// The part of the peak rate of matrix products.
    pub products: f64,
    /// The part of the memory's bandwidth.
    pub memory: f64,
    /// The part of the links' rate.
    pub links: f64,
    /// The tile of the matrix unit: sizes of products that are not multiples of it waste the rest.
    pub tile: u64,
    /// Seconds between two kernels.
    pub kernel: f64,
    /// Seconds of a step for each byte of the outputs and temporaries that it needs at most. A CPU's plugin takes them
    /// from the system for each run, and the system clears them page by page when they are first touched.
    pub fresh: f64,
    /// The cache, where kernels that touch few bytes move them faster than in memory.
    pub cache: Option<Cache>,
}

impl Reached {
    /// Returns the parts that programs reach on a backend.
    pub const fn of(backend: PlatformKind) -> Reached {
        let (fresh, cache) = (0.0, None);
        match backend {
            PlatformKind::Tpu => {
                Reached { products: 0.8, memory: 0.8, links: 0.85, tile: 128, kernel: 0.5e-6, fresh, cache }
            }
            PlatformKind::Cuda => {
                Reached { products: 0.68, memory: 0.8, links: 0.75, tile: 64, kernel: 2e-6, fresh, cache }
            }
            PlatformKind::Cpu => Reached { products: 1.0, memory: 1.0, links: 1.0, tile: 1, kernel: 0.0, fresh, cache },
        }
    }
}

/// Devices and the wires that join them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// The chip of every device.
    pub chip: Chip,
    /// How they are arranged, the dimension with the fastest links first. A mesh is cut out of them in this order
    /// ([`device_order`](meshloom_hlo::mesh::device_order)).
    pub dimensions: Vec<Dimension>,
    /// The parts of the peak rates that programs reach.
    pub reached: Reached,
    /// Seconds to start a collective.
    pub launch: f64,
    /// Whether collectives run beside compute.
    pub overlaps: bool,
}

/// The error for a chip whose published figures do not suffice to estimate times.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} of {chip} is not published, so times are not known; take another chip, such as v5p or h100")]
pub struct UnknownRate {
    /// The chip.
    pub chip: String,
    /// The rate that is not published.
    pub what: &'static str,
}

meshloom_hlo::debug_is_message!(UnknownRate);

impl Hardware {
    /// Returns slices of chips in this arrangement: along the dimensions of a torus, or of one host of GPUs.
    ///
    /// # Errors
    /// A rate that is needed is not published.
    pub fn new(chip: &Chip, slice: &[usize], slices: usize) -> Result<Hardware, UnknownRate> {
        let unknown = |what| UnknownRate { chip: chip.name.to_owned(), what };
        chip.matrix_rate(Arithmetic::Bf16).ok_or_else(|| unknown("rate of products"))?;
        chip.device_memory_bandwidth().ok_or_else(|| unknown("bandwidth of memory"))?;
        let ring = chip.ring_bandwidth().ok_or_else(|| unknown("bandwidth of links"))?;
        let dimension = |size, wire, rate, latency| Dimension { size, wire, wraps: false, rate, latency };
        let mut dimensions = Vec::new();
        if chip.devices > 1 {
            // Google, "Inside the Ironwood TPU co-designed AI stack": the link between the halves is six times a link
            // of the torus.
            dimensions.push(dimension(chip.devices as usize, Wire::Core, 6.0 * ring, 5e-7));
        }
        let wire = if chip.is_switched() { Wire::Switch } else { Wire::Torus };
        for &size in slice {
            let wraps = wire == Wire::Torus && wraps(chip, slice, size);
            dimensions.push(Dimension { wraps, ..dimension(size, wire, ring, 1e-6) });
        }
        if slices > 1 {
            let network = chip.device_network_bandwidth().ok_or_else(|| unknown("bandwidth of the network"))?;
            dimensions.push(dimension(slices, Wire::Network, network, 1e-5));
        }
        Ok(Hardware::of_dimensions(*chip, dimensions))
    }

    /// Returns chips joined along these dimensions. Programs reach the parts that they reach on the chip's backend.
    pub fn of_dimensions(chip: Chip, dimensions: Vec<Dimension>) -> Hardware {
        let launch = if chip.backend == PlatformKind::Cuda { 8e-6 } else { 2e-6 };
        let (reached, overlaps) = (Reached::of(chip.backend), chip.backend != PlatformKind::Cpu);
        Hardware { chip, dimensions, reached, launch, overlaps }
    }

    /// Returns the number of devices of all slices.
    pub fn device_count(&self) -> usize {
        self.dimensions.iter().map(|dimension| dimension.size).product()
    }

    /// Returns the number of devices that are joined by links faster than the network.
    pub fn near_count(&self) -> usize {
        let near = self.dimensions.iter().filter(|dimension| dimension.wire != Wire::Network);
        near.map(|dimension| dimension.size).product()
    }

    /// Returns the bytes per second that programs have a device send along a dimension.
    pub fn rate(&self, dimension: &Dimension) -> f64 {
        dimension.rate * self.reached.links
    }

    /// Returns the bytes per second that programs move between a device's memory and the host's, one way; `None` if the
    /// link's rate is not known.
    pub fn host_rate(&self) -> Option<f64> {
        Some(self.chip.device_host_bandwidth()? * self.reached.links)
    }

    /// Sets the rate of the network: the bytes per second that a device can send over it.
    pub fn set_network(&mut self, rate: f64) {
        let networks = self.dimensions.iter_mut().filter(|dimension| dimension.wire == Wire::Network);
        networks.for_each(|network| network.rate = rate);
    }

    /// Returns the bytes per second that a device sends one way to a neighbour of its torus.
    pub(super) fn neighbour_rate(&self) -> f64 {
        let torus = self.dimensions.iter().find(|dimension| dimension.wire == Wire::Torus);
        torus.map_or(f64::INFINITY, |dimension| self.rate(dimension) / 2.0)
    }
}

/// Returns whether a dimension of a slice is closed to a ring: chips with three dimensions of links are joined by
/// optical switches in cubes of four, those with two in pods of sixteen.
fn wraps(chip: &Chip, slice: &[usize], size: usize) -> bool {
    match chip.link_rings {
        3 => slice.iter().all(|size| size.is_multiple_of(4)),
        _ => size == 16,
    }
}
