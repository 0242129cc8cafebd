//! A kernel as the custom call that runs it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use meshloom_hlo::TensorType;

/// The target of the custom call.
pub const CALL_TARGET: &str = "tpu_custom_call";

/// The cost of a kernel, as XLA's scheduler is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations of the matrix products.
    pub flops: u64,
    /// Exponentials, logarithms and hyperbolic tangents.
    pub transcendentals: u64,
    /// Bytes between the chip and its memory.
    pub bytes: u64,
}

/// A kernel: the content of the custom call, its operands and its results.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The module, as `stable_mosaic` text.
    pub text: String,
    /// Operands in order. All arrays are row-major.
    pub operands: Vec<Operand>,
    /// Results in order: the elements of a tuple if there are several.
    pub results: Vec<TensorType>,
    /// The cost.
    pub cost: Cost,
}

/// An operand of the custom call that runs a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The name, for messages.
    pub name: &'static str,
    /// The type, row-major.
    pub ty: TensorType,
}

impl Kernel {
    /// The call's `backend_config`: JSON (`xla.jellyfish.CustomCallConfig`).
    pub fn config(&self) -> String {
        let Cost { flops, transcendentals, bytes } = self.cost;
        format!(
            "{{\"custom_call_config\":{{\"body\":\"{}\",\"serialization_format\":1,\"needs_layout_passes\":true,\
             \"cost_estimate\":{{\"flops\":{flops},\"transcendentals\":{transcendentals},\
             \"bytes_accessed\":{bytes}}}}}}}",
            STANDARD.encode(&self.text)
        )
    }
}
