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
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::device_groups::DeviceGroups;
use meshloom_hlo::proto::HloInstructionProto;

/// The frontend attribute that describes an asynchronous collective of JAX.
const CONFIG: &str = "async_collective_config";

/// Beginnings of the names of custom calls that stay on their device: solvers, products, sorting, calls of the host,
/// and what XLA writes for itself.
const SILENT: &[&str] = &[
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
        let config = attribute(instruction, CONFIG).map_or(instruction.backend_config.as_slice(), str::as_bytes);
        let config = std::str::from_utf8(config).unwrap_or_default();
        let stated = |key: &str| value_of(config, key).and_then(rows);
        if kind == Communication::Collective(CollectiveKind::CollectivePermute) {
            let pairs = stated("permutation").or_else(|| stated("source_target_pairs")).unwrap_or_default();
            let pairs = pairs.iter().filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect();
            return Some(CallDevices { groups: DeviceGroups::One, pairs });
        }
        let groups = stated("replica_groups").map_or(DeviceGroups::Unreadable, DeviceGroups::Lists);
        Some(CallDevices { groups, pairs: Vec::new() })
    }
}

/// Whether a custom call is a collective, or the second half of one.
pub(super) fn is_collective(call: &HloInstructionProto) -> bool {
    let is_done = || call.custom_call_target.strip_suffix("-done").and_then(Communication::named).is_some();
    communication_of_call(call).is_some() || is_done()
}

/// Whether a custom call may communicate in a way that nothing states.
pub(super) fn may_communicate(instruction: &HloInstructionProto) -> bool {
    let target = instruction.custom_call_target.as_str();
    if instruction.opcode != "custom-call" || target.is_empty() || is_collective(instruction) {
        return false;
    }
    match KERNELS.iter().find(|(name, _)| target.starts_with(name)) {
        Some((_, words)) => {
            let says = |word: &&str| instruction.backend_config.windows(word.len()).any(|part| part == word.as_bytes());
            words.iter().any(says)
        }
        None => !matches!(target, "Pin" | "Unpin") && !SILENT.iter().any(|name| target.starts_with(name)),
    }
}

/// Returns what follows a key, in JSON (`"key": value`) or in a dictionary of MLIR (`key = value`).
fn value_of<'t>(config: &'t str, key: &str) -> Option<&'t str> {
    let at = config.find(key)? + key.len();
    Some(config.get(at..)?.trim_start_matches(['"', '\\', ' ', ':', '=']))
}

/// Returns the rows of `[[0, 1], [2, 3]]` or of `dense<...> : tensor<2x2xi64>`, where `...` may also be one number or
/// the bytes of all in hexadecimal.
fn rows(text: &str) -> Option<Vec<Vec<u64>>> {
    let Some(dense) = text.strip_prefix("dense<") else { return lists(text) };
    let (values, rest) = dense.split_once('>')?;
    if values.starts_with('[') {
        return lists(values);
    }
    let shape = rest.split_once("tensor<")?.1.split_once('>')?.0;
    let columns: usize = shape.split('x').nth(1)?.parse().ok()?;
    let numbers: Vec<u64> = match values.trim_matches('"').strip_prefix("0x") {
        Some(bytes) => bytes.as_bytes().chunks_exact(16).map(little_endian).collect::<Option<_>>()?,
        // A splat of several would name a device twice.
        None => vec![values.trim().parse().ok()?],
    };
    (columns > 0 && numbers.len().is_multiple_of(columns))
        .then(|| numbers.chunks(columns).map(<[u64]>::to_vec).collect())
}

/// Returns the number whose bytes are written in hexadecimal, the lowest first.
fn little_endian(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().map(u64::swap_bytes)
}

/// Returns the inner lists of `[[0, 1], [2, 3]]`. Groups of several sizes are filled up with -1, which is no device.
fn lists(text: &str) -> Option<Vec<Vec<u64>>> {
    let mut rest = text.strip_prefix('[')?.trim_start();
    let mut found = Vec::new();
    while let Some(inner) = rest.strip_prefix('[') {
        let (numbers, after) = inner.split_once(']')?;
        let numbers = numbers.split(',').map(str::trim).filter(|number| !number.is_empty() && *number != "-1");
        found.push(numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?);
        rest = after.trim_start_matches([',', ' ']);
    }
    rest.starts_with(']').then_some(found)
}
