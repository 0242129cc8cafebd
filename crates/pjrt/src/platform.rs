//! The target of compilation: a platform, its plugin and its chips, and all that follows from them.

use super::chip_options::{CHIP_OPTIONS, ChipOptions};
use super::device::DeviceDescription;
use meshloom_analysis::chip_of_kind;
use meshloom_hlo::mesh::slice_shape;
use meshloom_hlo::{ApiVersion, GroupFormat, PlatformKind};

/// The platform that a program is compiled for. A live client has one ([`Client::platform`](super::Client::platform)),
/// and so has a topology ([`DescribedTopology::platform`](super::ahead_of_time::DescribedTopology)). All differences
/// between platforms follow from it, so a program is the same for devices at hand and for absent ones of their kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    kind: PlatformKind,
    api_version: Option<ApiVersion>,
    device_kind: Option<String>,
    /// See [`slice_shape`](meshloom_hlo::mesh::slice_shape).
    slice_shape: Vec<usize>,
}

/// The collectives over several dimensions of a slice that are better done as several collectives, in levels. Together
/// these send the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceLevels {
    /// The dimensions of a slice, the one with the fastest links first: see
    /// [`slice_shape`](meshloom_hlo::mesh::slice_shape).
    pub shape: Vec<usize>,
    /// All-gathers and reduce-scatters over all devices of a slice have two levels: along its first dimension, and
    /// along the others.
    pub whole: bool,
    /// All-gathers whose results have at least this number of bytes have one level for each dimension.
    pub gathers: Option<u64>,
}

impl Platform {
    /// A platform without a plugin, for programs that are only looked at: what holds for all its plugins.
    pub const fn of_any_plugin(kind: PlatformKind) -> Platform {
        Platform { kind, api_version: None, device_kind: None, slice_shape: Vec::new() }
    }

    /// A platform with the plugin of this API version, and these devices.
    pub(super) fn new<'a>(
        kind: PlatformKind,
        api_version: ApiVersion,
        devices: impl IntoIterator<Item = &'a DeviceDescription>,
    ) -> Platform {
        let (mut device_kind, mut places) = (None, Vec::new());
        for device in devices {
            device_kind.get_or_insert_with(|| device.kind.clone());
            places.push(device.place());
        }
        Platform { kind, api_version: Some(api_version), device_kind, slice_shape: slice_shape(&places) }
    }

    /// The kind of the platform.
    pub fn kind(&self) -> PlatformKind {
        self.kind
    }

    /// The kind of its devices, by the plugin's name for it, if devices are known.
    pub fn device_kind(&self) -> Option<&str> {
        self.device_kind.as_deref()
    }

    /// The most compact form of device groups that its plugin is known to read.
    pub fn group_format(&self) -> GroupFormat {
        self.api_version.map(GroupFormat::read_by).unwrap_or_default()
    }

    /// Whether collectives that do not depend on each other may run in any order, or at once. A CPU's virtual devices
    /// could then wait for each other for ever.
    pub fn overlaps_collectives(&self) -> bool {
        self.kind != PlatformKind::Cpu
    }

    /// Whether a loop hides only one transfer: libtpu's SparseCores take one collective after the other, and its
    /// scheduler takes a loop as one instruction (docs/pipeline-on-tpu.md).
    pub fn hides_one_transfer(&self) -> bool {
        let chip = self.device_kind().and_then(chip_of_kind);
        self.kind == PlatformKind::Tpu && matches!(chip, Some("v5p" | "v6e" | "tpu7x"))
    }

    /// The collectives that are done in levels.
    ///
    /// libtpu makes all-reduces, which send twice the bytes, of other collectives over all devices of a slice: over a
    /// torus of three dimensions, or a square of two. Over a part of them it keeps the others
    /// (docs/compiled-collectives.md). The SparseCores of v5p gather along one dimension alone; over several the gather
    /// is synchronous (docs/pipeline-on-tpu.md).
    pub fn slice_levels(&self) -> Option<SliceLevels> {
        let chip = self.device_kind().and_then(chip_of_kind)?;
        let whole = match (chip, &self.slice_shape[..]) {
            ("v5p", [_, _, _]) => true,
            ("v5e" | "v6e", &[x, y]) => x == y && x > 2,
            // Each chip has two devices.
            ("tpu7x", &[_, x, y, z]) => x.max(y).max(z) > 2,
            _ => false,
        };
        // A smaller collective takes less time than the start of another collective for each level.
        let gathers = (chip == "v5p" && self.slice_shape.len() > 1).then_some(1 << 20);
        let levels = SliceLevels { shape: self.slice_shape.clone(), whole, gathers };
        ((whole || gathers.is_some()) && self.kind == PlatformKind::Tpu).then_some(levels)
    }

    /// Whether the host has a memory of its own, into which values can be moved. A CPU's devices work in it.
    pub fn has_host_memory(&self) -> bool {
        self.kind != PlatformKind::Cpu
    }

    /// Whether its compiler takes the trip counts of loops. libtpu refuses them, and finds them itself.
    pub(super) fn takes_trip_counts(&self) -> bool {
        self.kind != PlatformKind::Tpu
    }

    /// The compiler options that suit its chips, if they are known.
    pub fn chip_options(&self) -> Option<&'static ChipOptions> {
        let kind = self.device_kind()?;
        CHIP_OPTIONS.iter().find(|options| options.kind == self.kind && options.suits(kind))
    }

    /// Whether its plugin is older than an API version.
    pub(super) fn is_before(&self, version: ApiVersion) -> bool {
        self.api_version.is_some_and(|own| own < version)
    }
}
