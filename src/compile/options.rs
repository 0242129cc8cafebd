//! The options for lowering a graph.

use meshloom_analysis::{Arithmetic, Chip};
use meshloom_hlo::mesh::Mesh;

use super::Pass;
use crate::emit::{Annotation, GroupFormat, ProgramForm};
use crate::kernels::Kernels;
use crate::passes::{CollectiveLimits, CollectiveMatmul};
use crate::pjrt::{Platform, SliceLevels};
use crate::sharding::RuleSets;
use meshloom_hlo::PlatformKind;

/// The partitioner of a graph over the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartitionMode {
    /// meshloom: the module is the program of one device, with every collective in it.
    #[default]
    Explicit,
    /// XLA: the module has global shapes, and says in this form how values are sharded.
    Annotated(Annotation),
}

impl PartitionMode {
    /// XLA's GSPMD.
    pub const GSPMD: PartitionMode = PartitionMode::Annotated(Annotation::Tiles);
    /// XLA's Shardy, in the form that every known plugin reads.
    pub const SHARDY: PartitionMode = PartitionMode::Annotated(Annotation::ShardyAttributes);
    /// The modes that a run config names.
    pub const ALL: [PartitionMode; 3] = [PartitionMode::Explicit, PartitionMode::GSPMD, PartitionMode::SHARDY];

    /// Its name, as in run configs.
    pub fn name(self) -> &'static str {
        match self {
            PartitionMode::Explicit => "explicit",
            PartitionMode::Annotated(annotation) if annotation.is_shardy() => "shardy",
            PartitionMode::Annotated(_) => "gspmd",
        }
    }
}

/// How a graph is lowered.
#[derive(Clone, Debug, Default)]
pub struct LowerOptions<'a> {
    /// The mesh and the rules by which logical axis names are sharded over it; `None` for one device.
    pub sharding: Option<(&'a Mesh, &'a RuleSets)>,
    /// Pairs of (output, input) that share a buffer: the input is donated.
    pub aliases: Vec<(usize, usize)>,
    /// Names of passes of [`PASSES`](super::PASSES) and [`LOCAL_PASSES`](super::LOCAL_PASSES) that do not run.
    pub without: &'a [&'a str],
    /// Passes of the caller's own, which run behind those of [`PASSES`](super::PASSES). They can be left out by name
    /// too.
    pub further: &'a [Pass],
    /// The memory that fewer collectives may cost, and the places where products are cut beside collectives.
    pub limits: CollectiveLimits,
    /// The partitioner of the graph over the mesh.
    pub partition: PartitionMode,
    /// How a module that meshloom partitions is written. A program with XLA's `ragged-dot` (kernels that
    /// [`ExpertsKernel::RaggedDot`](crate::kernels::ExpertsKernel::RaggedDot) chooses) for several devices is always in
    /// the local form.
    pub form: ProgramForm,
    /// Refuses a graph with a value that would have to be gathered because an op cannot work on its parts.
    pub deny_replication: bool,
    /// The way in which collectives name their devices. The compact forms make the module's size independent of the
    /// mesh, but each is read only by the plugins of one generation: [`LowerOptions::on`] takes the one that a
    /// platform's plugin reads. All plugins read lists.
    pub groups: GroupFormat,
    /// Lets the plugin run independent collectives in any order, or at once, which is best for GPU and TPU. The CPU
    /// plugins' virtual devices could then wait for each other forever, so by default collectives run in program order.
    pub overlap_collectives: bool,
    /// The collectives that are done in levels, each over some of their devices. The bytes are the same.
    pub levels: Option<SliceLevels>,
    /// The implementations of ops that have several. A module that XLA partitions has their plain forms.
    pub kernels: Kernels,
    /// Keeps the sizes of inputs and outputs where a constraint splits the same dimension unevenly: the program pads
    /// and cuts them. Otherwise the host does it.
    pub exact_ports: bool,
    /// Leaves out the verifier.
    pub skip_verifier: bool,
    /// Leaves source lines and scope paths out of the module.
    pub omit_metadata: bool,
    /// Moves the values that a checkpoint offloads into the host's memory. The plugins for GPU and TPU have such a
    /// memory; without this, and on a CPU, whose memory is the host's, they stay where they are.
    pub host_memory: bool,
    /// Processes that the devices of the mesh lie in, where the plugin has no collectives between processes, as on
    /// CPUs: the major axes cross them ([`Mesh::at_processes`]), and each process compiles the module for its own
    /// devices. Collectives between processes are custom calls ([`meshloom_hlo::crossing`]), for which each process
    /// registers a function. 0 and 1: the plugin has all devices of the mesh.
    pub processes: usize,
}

impl<'a> LowerOptions<'a> {
    /// These options with the forms that a platform's plugin reads, and with the abilities of its devices: the form of
    /// device groups, overlapping collectives, transfers as one buffer, collectives in levels, the host's memory,
    /// kernels, and collective matmul where it pays. Limits that are 0 or off count as not chosen: set them afterwards
    /// to keep them so.
    #[must_use]
    pub fn on(self, platform: &Platform) -> LowerOptions<'a> {
        let packed_bytes = if platform.hides_one_transfer() { CollectiveLimits::PACKED_BYTES } else { 0 };
        let packed_bytes = packed_bytes.max(self.limits.packed_bytes);
        let matmul = match self.limits.matmul {
            CollectiveMatmul::Off => matmul_on(platform),
            chosen => chosen,
        };
        let all_reduce_bytes = match platform.kind() {
            PlatformKind::Cpu => self.limits.all_reduce_bytes.min(CollectiveLimits::ALL_REDUCE_BYTES_ON_CPU),
            PlatformKind::Cuda | PlatformKind::Tpu => self.limits.all_reduce_bytes,
        };
        let limits = CollectiveLimits { packed_bytes, matmul, all_reduce_bytes, ..self.limits };
        LowerOptions {
            limits,
            groups: platform.group_format(),
            overlap_collectives: platform.overlaps_collectives(),
            levels: platform.slice_levels(),
            host_memory: platform.has_host_memory(),
            kernels: Kernels::on(platform),
            ..self
        }
    }
}

/// Collective matmul where it pays: on TPUs whose speeds are known, and nowhere else.
///
/// libtpu makes one kernel of a product, the op that cuts its operand and the op that puts its result in place. XLA's
/// GPU plugin makes several, and by its schedule of Llama 3 70B on H100 they take longer than the time that the rings
/// hide. A CPU hides nothing.
fn matmul_on(platform: &Platform) -> CollectiveMatmul {
    let operations_per_byte = || {
        let chip = platform.device_kind().and_then(Chip::of_kind)?;
        Some((chip.matrix_rate(Arithmetic::Bf16)? / chip.neighbour_bandwidth()?) as u64)
    };
    match (platform.kind(), operations_per_byte()) {
        (PlatformKind::Tpu, Some(operations_per_byte)) => CollectiveMatmul::Auto { operations_per_byte },
        _ => CollectiveMatmul::Off,
    }
}
