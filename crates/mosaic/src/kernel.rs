//! A kernel as the custom call that runs it.

use std::fmt::Write;

use meshloom_hlo::TensorType;

use crate::text::{Operand, Written};

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

impl Kernel {
    pub(crate) fn new(written: Written, cost: Cost) -> Kernel {
        Kernel { text: written.text, operands: written.operands, results: written.results, cost }
    }

    /// The call's `backend_config`: JSON (`xla.jellyfish.CustomCallConfig`).
    pub fn config(&self) -> String {
        let Cost { flops, transcendentals, bytes } = self.cost;
        format!(
            "{{\"custom_call_config\":{{\"body\":\"{}\",\"serialization_format\":1,\"needs_layout_passes\":true,\
             \"cost_estimate\":{{\"flops\":{flops},\"transcendentals\":{transcendentals},\
             \"bytes_accessed\":{bytes}}}}}}}",
            base64(self.text.as_bytes())
        )
    }

    /// The text of an HLO module that only calls the kernel: its parameters are the kernel's operands.
    pub fn module(&self, name: &str) -> String {
        let shapes: Vec<String> = self.operands.iter().map(|operand| shape(&operand.ty)).collect();
        let results: Vec<String> = self.results.iter().map(shape).collect();
        let result = if let [one] = &results[..] { one.clone() } else { format!("({})", results.join(", ")) };
        let mut text = format!(
            "HloModule {name}, entry_computation_layout={{({})->{result}}}\n\nENTRY main {{\n",
            shapes.join(", ")
        );
        for (index, (operand, shape)) in self.operands.iter().zip(&shapes).enumerate() {
            let _ = writeln!(text, "  {} = {shape} parameter({index})", operand.name);
        }
        let names: Vec<&str> = self.operands.iter().map(|operand| operand.name).collect();
        let _ = writeln!(
            text,
            "  ROOT kernel = {result} custom-call({}), custom_call_target=\"{CALL_TARGET}\", \
             operand_layout_constraints={{{}}}, backend_config={}\n}}",
            names.join(", "),
            shapes.join(", "),
            self.config()
        );
        text
    }
}

/// A row-major shape in HLO text.
fn shape(ty: &TensorType) -> String {
    let join = |numbers: &mut dyn Iterator<Item = usize>| numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let dims = join(&mut ty.dims.iter().copied());
    format!("{}[{dims}]{{{}}}", ty.dtype.name(), join(&mut (0..ty.dims.len()).rev()))
}

/// Bytes in base 64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit > three.len() { '=' } else { char::from(DIGITS[value as usize]) });
        }
    }
    text
}
