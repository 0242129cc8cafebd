//! Custom calls that communicate.
//!
//! JAX lowers some collectives to custom calls, which XLA replaces by instructions of their own before it does anything
//! else:
//!
//! | target | communicates | states its devices in |
//! |---|---|---|
//! | `ragged_all_to_all` | a ragged all-to-all | the backend config, a dictionary of MLIR |
//! | `KIND-start` | the first half of a collective of that kind | `async_collective_config` or backend config, JSON |
//! | `KIND-done` | nothing: it is the second half | |
//!
//! Any other custom call is a program that only its target knows. [`may_communicate`] leaves out those that are known
//! to stay on their device.

use super::communication::Communication;
use super::index::attribute;
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::proto::HloInstructionProto;
use meshloom_hlo::{CollectiveConfig, CollectiveKind};

/// Beginnings of the names of custom calls that stay on their device: solvers, products, sorting, calls of the host,
/// and what XLA writes for itself.
pub(super) const SILENT: &[&str] = &[
    "__cub",
    "__cudnn",
    "__custom_fft",
    "__gpu$TopK",
    "__onednn",
    "__triton",
    "__ymm",
    "AllocateBuffer",
    "ApproxTopK",
    "AssumeGatherIndicesInBound",
    "AsyncCollective",
    "BufferToTensor",
    "Cholesky",
    "ConcatBitcast",
    "CreateBuffer",
    "Eigh",
    "Householder",
    "LayoutConstraint",
    "LuDecomposition",
    "MoveTo",
    "PadToStatic",
    "PartialReduce",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "ResizeNearest",
    "ResizeBilinear",
    "RngBitGenerator",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "SetBound",
    "Sharding",
    "SliceToDynamic",
    "TensorToBuffer",
    "TopK",
    "TriangularSolve",
    "X64",
    "annotate_device_placement",
    "chlo.",
    "cu_",
    "cublas",
    "cusolver",
    "cusparse",
    "dce_sink",
    "ducc_",
    "dynamic_ducc_",
    "hip_",
    "hipblas",
    "hipsolver",
    "hipsparse",
    "lapack_",
    "magma_",
    "mhlo.",
    "shape_assertion",
    "stablehlo.",
    "triton_kernel_call",
    "xla.sdy.",
    "xla_ffi_partitioned_python",
    "xla_ffi_python",
    "xla_python",
];

/// Beginnings of the names of kernels that communicate only where their configuration has one of these words.
const KERNELS: &[(&str, &[&str])] = &[
    ("tpu_custom_call", &["\"has_communication\": true", "\"has_communication\":true"]),
    ("mosaic_gpu", &["nvshmem", "multimem"]),
];

/// Returns the communication of a custom call, and whether it is the first of two halves.
pub(super) fn communication_of_call(instruction: &HloInstructionProto) -> Option<(Communication, bool)> {
    match instruction.custom_call_target.as_str() {
        "ragged_all_to_all" => Some((Communication::named("ragged-all-to-all")?, false)),
        target => Some((Communication::named(target.strip_suffix("-start")?)?, true)),
    }
}

/// The devices between which a custom call communicates.
pub(super) struct CallDevices {
    pub(super) groups: DeviceGroups,
    pub(super) pairs: Vec<(u64, u64)>,
}

impl CallDevices {
    /// Returns the devices of a custom call that is a collective; `None` for any other instruction.
    pub(super) fn of(instruction: &HloInstructionProto) -> Option<CallDevices> {
        if instruction.opcode != "custom-call" {
            return None;
        }
        let (kind, _) = communication_of_call(instruction)?;
        let config = config(instruction).unwrap_or_default();
        let device = |device: i64| u64::try_from(device).ok();
        if kind == Communication::Collective(CollectiveKind::CollectivePermute) {
            let pair = |(from, to)| device(from).zip(device(to));
            let pairs = config.pairs().into_iter().filter_map(pair).collect();
            return Some(CallDevices { groups: DeviceGroups::One, pairs });
        }
        let list = |group: Vec<i64>| group.into_iter().map(device).collect::<Option<Vec<u64>>>();
        let lists = config.groups().and_then(|groups| groups.into_iter().map(list).collect());
        let groups = lists.map_or(DeviceGroups::Unreadable, DeviceGroups::Lists);
        Some(CallDevices { groups, pairs: Vec::new() })
    }
}

/// Returns what a custom call states of the collective that it stands for.
pub(super) fn config(call: &HloInstructionProto) -> Option<CollectiveConfig> {
    let config = attribute(call, CollectiveConfig::ATTRIBUTE).map_or(call.backend_config.as_slice(), str::as_bytes);
    CollectiveConfig::read(std::str::from_utf8(config).ok()?)
}

/// Whether a custom call is a collective, or the second half of one.
pub(super) fn is_collective(call: &HloInstructionProto) -> bool {
    let is_done = || call.custom_call_target.strip_suffix("-done").and_then(Communication::named).is_some();
    communication_of_call(call).is_some() || is_done()
}

/// Returns the words of a kernel's configuration by which it communicates.
pub(super) fn words_said(call: &HloInstructionProto) -> impl Iterator<Item = &'static str> {
    let kernel = KERNELS.iter().find(|(name, _)| call.custom_call_target.starts_with(name));
    let says = |word: &&str| call.backend_config.windows(word.len()).any(|part| part == word.as_bytes());
    kernel.into_iter().flat_map(|(_, words)| *words).copied().filter(says)
}

/// Whether a custom call may communicate in a way that nothing states.
pub(super) fn may_communicate(instruction: &HloInstructionProto) -> bool {
    let target = instruction.custom_call_target.as_str();
    if instruction.opcode != "custom-call" || target.is_empty() || is_collective(instruction) {
        return false;
    }
    match KERNELS.iter().find(|(name, _)| target.starts_with(name)) {
        Some(_) => words_said(instruction).next().is_some(),
        None => !matches!(target, "Pin" | "Unpin") && !SILENT.iter().any(|name| target.starts_with(name)),
    }
}
