//! Compiler options that suit a chip.
//!
//! They are those that hid transfers in a program compiled ahead of time for the chip, of those in published lists:
//! MaxText's flags for TPUs, and what users of JAX set on GPUs. docs/compiler-options.md says how much each of them
//! hides. Options that depend on the model, such as how many bytes of collectives are combined, are left to the user.

use meshloom_analysis::chip_of_kind;
use meshloom_hlo::PlatformKind;

/// Compiler options that suit a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipOptions {
    /// The chip, by its name in topologies and in [`CHIPS`](meshloom_analysis::CHIPS).
    pub chip: &'static str,
    /// The platform whose plugin compiles for the chip.
    pub kind: PlatformKind,
    options: &'static [&'static str],
}

impl ChipOptions {
    /// Whether a device of this kind is such a chip.
    pub fn suits(&self, device_kind: &str) -> bool {
        chip_of_kind(device_kind) == Some(self.chip)
    }

    /// The options, each `name=value`.
    pub fn options(&self) -> impl Iterator<Item = &'static str> {
        self.options.iter().copied()
    }
}

/// Reductions stay in the loops where the partitioner puts them. libtpu's pass that moves them out fails an internal
/// check on the program of `examples/configs/llama-8b-psdp-v5e.toml`.
const REDUCTIONS_STAY: &str = "xla_disable_hlo_passes=while-loop-all-reduce-code-motion";

/// Collectives on the SparseCores, beside what the tensor cores do.
const SPARSE_CORES: &[&str] = &[
    "xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true",
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    REDUCTIONS_STAY,
];

/// Two iterations of a loop in one, so that one's collectives fit beside the other's compute.
const GPU: &[&str] = &["xla_gpu_enable_while_loop_double_buffering=true"];

const fn tpu(chip: &'static str, options: &'static [&'static str]) -> ChipOptions {
    ChipOptions { chip, kind: PlatformKind::Tpu, options }
}

const fn gpu(chip: &'static str) -> ChipOptions {
    ChipOptions { chip, kind: PlatformKind::Cuda, options: GPU }
}

/// The options of all chips. A v5e has no SparseCores, and on a tpu7x libtpu takes them without being told.
pub const CHIP_OPTIONS: &[ChipOptions] = &[
    tpu("v5e", &[REDUCTIONS_STAY]),
    tpu("v5p", SPARSE_CORES),
    tpu("v6e", SPARSE_CORES),
    tpu("tpu7x", &[REDUCTIONS_STAY]),
    gpu("a100"),
    gpu("h100"),
    gpu("h200"),
    gpu("b200"),
];
