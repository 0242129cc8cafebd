//! The work of custom calls, as far as it is known.
//!
//! Only its target defines what a custom call does. The matrix products and convolutions that XLA hands to libraries
//! are counted from their shapes. Markers that move nothing are free. Kernels may state what they take: in frontend
//! attributes, as meshloom writes them, or in the `cost_estimate` of a configuration, as compilers of kernels for TPUs
//! do. The others are unknown and listed by name.

use super::operands::Operands;
use super::{Work, convolution};
use crate::size::elements;
use meshloom_hlo::proto::HloInstructionProto;

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
        if let Some(operations) = attribute(instruction, STATED_OPERATIONS) {
            return Some(Stated {
                operations,
                transcendentals: attribute(instruction, STATED_TRANSCENDENTALS).unwrap_or(0),
                bytes: attribute(instruction, STATED_BYTES),
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

/// A number in a frontend attribute.
fn attribute(instruction: &HloInstructionProto, key: &str) -> Option<u64> {
    instruction.frontend_attributes.as_ref()?.map.get(key)?.parse().ok()
}

/// Bytes of memory that a custom call states it needs besides operands and results while it runs.
pub(crate) fn scratch_bytes(instruction: &HloInstructionProto) -> u64 {
    match instruction.opcode.as_str() {
        "custom-call" => attribute(instruction, STATED_SCRATCH).unwrap_or(0),
        _ => 0,
    }
}

/// The operation of a known target.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    /// A product of matrices, by its first two operands.
    MatrixProduct,
    /// A convolution.
    Convolution,
    /// The gradient of a convolution's input, from the output's.
    InputGradient,
    /// The gradient of a convolution's kernel, from the output's.
    KernelGradient,
    /// A marker, which takes no time.
    Marker,
    /// Copies to or from another memory.
    Copy,
    /// A function of each element, from a text of StableHLO, that XLA expands into many instructions. It counts as
    /// those functions do that have an opcode.
    Function,
    Unknown,
}

impl Target {
    fn of(name: &str) -> Target {
        match name {
            "__cublas$gemm"
            | "__cublas$lt$matmul"
            | "__cublas$lt$matmul$f8"
            | "__onednn$matmul"
            | "__triton_gemm"
            | "__ymm$matmul" => Target::MatrixProduct,
            "__cudnn$convForward"
            | "__cudnn$convBiasActivationForward"
            | "__cudnn$convForwardGraph"
            | "__onednn$convolution" => Target::Convolution,
            "__cudnn$convBackwardInput" => Target::InputGradient,
            "__cudnn$convBackwardFilter" => Target::KernelGradient,
            "Sharding"
            | "SPMDFullToShardShape"
            | "SPMDShardToFullShape"
            | "LayoutConstraint"
            | "AllocateBuffer"
            | "CreateBuffer"
            | "Pin"
            | "Unpin"
            | "AssumeGatherIndicesInBound"
            | "annotate_device_placement"
            | "BufferToTensor"
            | "TensorToBuffer" => Target::Marker,
            "MoveToHost" | "MoveToDevice" => Target::Copy,
            name if name.starts_with("xla.sdy.") => Target::Marker,
            name if name.starts_with("chlo.") => Target::Function,
            _ => Target::Unknown,
        }
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
    let target = Target::of(&operands.instruction.custom_call_target);
    let gradient = |flops: fn(&Operands<'_, '_>) -> Option<u64>| flops(operands).map_or_else(unknown, work);
    match target {
        Target::MatrixProduct => matrix_product(operands).map_or_else(unknown, work),
        Target::Convolution if operands.instruction.convolution_dimension_numbers.is_some() => {
            work(convolution::flops(operands))
        }
        Target::InputGradient => gradient(|operands| {
            let (output, kernel, input) = (operands.shape(0)?, operands.shape(1)?, operands.first_result()?);
            Some(convolution::of_shapes(operands, input, kernel, output))
        }),
        Target::KernelGradient => gradient(|operands| {
            let (input, output, kernel) = (operands.shape(0)?, operands.shape(1)?, operands.first_result()?);
            Some(convolution::of_shapes(operands, input, kernel, output))
        }),
        Target::Marker => Work::default(),
        Target::Copy => work(0),
        Target::Function => {
            let count = operands.first_result().map_or(0, elements);
            Work { transcendentals: count, ..work(0) }
        }
        Target::Convolution | Target::Unknown => unknown(),
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
