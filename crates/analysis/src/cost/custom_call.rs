//! The work of custom calls, as far as it is known.
//!
//! Only its target defines what a custom call does. The matrix products and convolutions that XLA hands to libraries
//! are counted from their shapes. Markers that move nothing are free. Kernels may state what they take: in frontend
//! attributes, as meshloom writes them, or in the `cost_estimate` of a configuration, as compilers of kernels for TPUs
//! do. The others are unknown and listed by name.

use super::operands::Operands;
use super::{Work, convolution};
use crate::custom_collectives::is_collective;
use crate::index::attribute;
use crate::partitioning::Border;
use crate::size::elements;
use meshloom_hlo::proto::{HloInstructionProto, ShapeProto};

/// Frontend attribute of a custom call: arithmetic operations of one execution.
pub const STATED_OPERATIONS: &str = "kernel_operations";
/// Frontend attribute of a custom call: transcendental functions of one execution.
pub const STATED_TRANSCENDENTALS: &str = "kernel_transcendentals";
/// Frontend attribute of a custom call: bytes that one execution reads and writes.
pub const STATED_BYTES: &str = "kernel_bytes";
/// Frontend attribute of a custom call: bytes of memory that it needs besides operands and results while it runs.
pub const STATED_SCRATCH: &str = "kernel_scratch_bytes";

/// The figures that a kernel states for one execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stated {
    operations: u64,
    transcendentals: u64,
    /// The bytes read and written.
    bytes: Option<u64>,
}

impl Stated {
    fn of(instruction: &HloInstructionProto) -> Option<Stated> {
        if let Some(operations) = stated(instruction, STATED_OPERATIONS) {
            return Some(Stated {
                operations,
                transcendentals: stated(instruction, STATED_TRANSCENDENTALS).unwrap_or(0),
                bytes: stated(instruction, STATED_BYTES),
            });
        }
        let config: serde_json::Value = serde_json::from_slice(&instruction.backend_config).ok()?;
        let estimate = find(&config, "cost_estimate", 0).filter(|estimate| estimate.is_object())?;
        let number = |key: &str| estimate.get(key).and_then(number).map(|number| number as u64);
        Some(Stated {
            operations: number("flops").unwrap_or(0),
            transcendentals: number("transcendentals").unwrap_or(0),
            bytes: number("bytes_accessed"),
        })
    }

    fn work(self, operands: &Operands<'_, '_>) -> Work {
        let moved = match self.bytes {
            None => (operands.all_bytes(), operands.result_bytes()),
            Some(bytes) => {
                let written = operands.result_bytes().min(bytes);
                (bytes - written, written)
            }
        };
        let work = Work::flops(self.operations, operands.arithmetic()).with_bytes(moved);
        Work { transcendentals: self.transcendentals, ..work }
    }
}

fn stated(instruction: &HloInstructionProto, key: &str) -> Option<u64> {
    attribute(instruction, key)?.parse().ok()
}

/// Bytes of memory that a custom call states it needs besides operands and results while it runs.
pub(crate) fn scratch_bytes(instruction: &HloInstructionProto) -> u64 {
    match instruction.opcode.as_str() {
        "custom-call" => stated(instruction, STATED_SCRATCH).unwrap_or(0),
        _ => 0,
    }
}

/// The work of a custom call. [`Work::unknown`] marks unknown work; operands and results are then assumed to be read
/// and written once.
pub(super) fn work(operands: &Operands<'_, '_>) -> Work {
    if let Some(stated) = Stated::of(operands.instruction) {
        return stated.work(operands);
    }
    let work =
        |flops| Work::flops(flops, operands.arithmetic()).with_bytes((operands.all_bytes(), operands.result_bytes()));
    let unknown = || Work { unknown: true, ..work(0) };
    let name = operands.instruction.custom_call_target.as_str();
    let of_shapes = |[input, kernel, output]: [Option<&ShapeProto>; 3]| {
        let flops = || Some(convolution::of_shapes(operands, input?, kernel?, output?));
        flops().map_or_else(unknown, work)
    };
    let (first, second, result) = (operands.shape(0), operands.shape(1), operands.first_result());
    match name {
        "__cublas$gemm"
        | "__cublas$lt$matmul"
        | "__cublas$lt$matmul$f8"
        | "__onednn$matmul"
        | "__triton_gemm"
        | "__ymm$matmul" => matrix_product(operands).map_or_else(unknown, work),
        "__cudnn$convForward"
        | "__cudnn$convBiasActivationForward"
        | "__cudnn$convForwardGraph"
        | "__onednn$convolution"
            if operands.instruction.convolution_dimension_numbers.is_some() =>
        {
            work(convolution::flops(operands))
        }
        // The gradients of the input and of the kernel, from that of the output.
        "__cudnn$convBackwardInput" => of_shapes([result, second, first]),
        "__cudnn$convBackwardFilter" => of_shapes([first, result, second]),
        "MoveToHost" | "MoveToDevice" => work(0),
        // Markers take no time.
        "LayoutConstraint"
        | "AllocateBuffer"
        | "CreateBuffer"
        | "Pin"
        | "Unpin"
        | "BufferToTensor"
        | "TensorToBuffer"
        | "AssumeGatherIndicesInBound"
        | "AsyncCollectiveStart"
        | "AsyncCollectiveDone"
        | "annotate_device_placement" => Work::default(),
        _ if is_collective(operands.instruction) => work(0),
        _ if name.starts_with("xla.sdy.") || Border::of(operands.instruction).is_some() => Work::default(),
        // A function of each element, from a text of StableHLO, that XLA expands into many instructions. It counts as
        // those functions do that have an opcode.
        _ if name.starts_with("chlo.") => Work { transcendentals: result.map_or(0, elements), ..work(0) },
        _ => unknown(),
    }
}

/// Counts two operations for each element of the result and of the contracted dimension. The configuration names that
/// dimension. Without it, the contracted dimension is the last of the left operand, or the one before it if the
/// configuration says that the operand is transposed.
fn matrix_product(operands: &Operands<'_, '_>) -> Option<u64> {
    let config: serde_json::Value =
        serde_json::from_slice(&operands.instruction.backend_config).unwrap_or(serde_json::Value::Null);
    let left = operands.shape(0)?;
    let size = |dimension: usize| u64::try_from(*left.dimensions.get(dimension)?).ok();
    let named = find(&config, "lhs_contracting_dimensions", 0).and_then(|dimensions| {
        let dimensions = dimensions.as_array()?.iter();
        dimensions
            .map(|dimension| size(number(dimension)?))
            .try_fold(1u64, |product, size| Some(product.saturating_mul(size?)))
    });
    let transposed = find(&config, "transpose_a", 0).and_then(serde_json::Value::as_bool).unwrap_or(false);
    let contracted = named.or_else(|| size(left.dimensions.len().checked_sub(if transposed { 2 } else { 1 })?))?;
    Some(elements(operands.first_result()?).saturating_mul(contracted).saturating_mul(2))
}

fn number(value: &serde_json::Value) -> Option<usize> {
    value.as_u64().map(|number| number as usize).or_else(|| value.as_str()?.parse().ok())
}

/// The value of a key, in an object or in the objects in it.
fn find<'v>(value: &'v serde_json::Value, key: &str, depth: usize) -> Option<&'v serde_json::Value> {
    let object = value.as_object().filter(|_| depth < 4)?;
    object.get(key).or_else(|| object.values().find_map(|value| find(value, key, depth + 1)))
}
