//! Calls of code that the plugin knows by name.

use super::rules::*;
use super::{Devices, Effect};
use crate::hlo::{proto, shape};
use crate::ir::Name;

/// How a custom call's target is called: XLA's `CustomCallApiVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CustomCallApi {
    /// `void (void* out, const void** in)`.
    Original,
    /// As `Original`, with a status.
    StatusReturning,
    /// As `StatusReturning`, with one list of all buffers and an opaque string.
    Unified,
    /// XLA's typed FFI; the config is a dictionary in MLIR's text form.
    TypedFfi,
}

crate::ir::word_attribute!(CustomCallApi {
    Original = "original",
    StatusReturning = "status-returning",
    Unified = "unified",
    TypedFfi = "typed-ffi",
});

/// Calls a target that the plugin has registered under a name.
///
/// Operands and results are dense and row-major. It has no derivative: wrap it in a `custom_vjp` to give it one. It has
/// no batching rule: apply it in a scan over the batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomCall {
    /// The name.
    pub target: Name,
    /// Types of the results.
    pub results: Box<[TensorType]>,
    /// What the target is configured with: an opaque string, for [`CustomCallApi::TypedFfi`] a dictionary.
    pub config: String,
    /// How it is called.
    pub api: CustomCallApi,
    /// Whether it does something besides returning results: then it runs, once for each execution, even if nobody reads
    /// them.
    pub has_side_effect: bool,
    /// Pairs of (result, operand) that share a buffer: the target overwrites the operand's copy.
    pub aliases: Box<[(usize, usize)]>,
}

crate::ir::op_text!(CustomCall = "custom-call" {
    target: lead,
    results: result,
    config: optional("config", String::new()),
    api: key("api"),
    has_side_effect: flag("side effect"),
    aliases: optional("aliases", Box::default()),
});

impl Primitive for CustomCall {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        refuse_if!(self.target.is_none(), "the target needs a name");
        refuse_if!(self.results.is_empty(), "it needs a result; one that nobody reads will do");
        for (position, &(result, operand)) in self.aliases.iter().enumerate() {
            let types = (self.results.get(result), operands.get(operand).copied());
            let (Some(result_type), Some(operand_type)) = types else {
                let message =
                    format!("the alias of result {result} and operand {operand} names one that does not exist");
                return Err(TypeError::Attribute(message));
            };
            refuse_if!(
                result_type != operand_type,
                "result {result} of type {result_type} cannot share the buffer of operand {operand} of type \
                     {operand_type}"
            );
            let earlier = &self.aliases[..position];
            refuse_if!(
                earlier.iter().any(|&(other, source)| other == result || source == operand),
                "result {result} or operand {operand} is in two aliases"
            );
        }
        Ok(self.results.iter().cloned().collect())
    }

    fn facts(&self) -> Facts<'_> {
        let effect = if self.has_side_effect { Effect::Side } else { Effect::None };
        // Foreign code may ask which device it is on.
        Facts { devices: Devices::Unknown, effect, ..Facts::KERNEL }
    }

    rules!(derivatives: refused);

    // Nothing is known of the target, so every device calls it with whole operands.
    rules!(factors: replicated, batch: refused, partition: unchanged);

    fn emit(&self, context: &mut EmitContext<'_>) {
        let operands = context.operand_ids();
        let shapes = (0..operands.len()).map(|index| shape(context.operand_type(index))).collect();
        let is_tuple = self.results.len() > 1;
        let aliasing = |&(result, operand): &(usize, usize)| proto::OutputOperandAliasing {
            output_shape_index: if is_tuple { vec![result as i64] } else { Vec::new() },
            operand_index: operand as i64,
            operand_shape_index: Vec::new(),
        };
        let api = match self.api {
            CustomCallApi::Original => proto::CustomCallApiVersion::ApiVersionOriginal,
            CustomCallApi::StatusReturning => proto::CustomCallApiVersion::ApiVersionStatusReturning,
            CustomCallApi::Unified => proto::CustomCallApiVersion::ApiVersionStatusReturningUnified,
            CustomCallApi::TypedFfi => proto::CustomCallApiVersion::ApiVersionTypedFfi,
        };
        let instruction = context.begin_all("custom-call", &operands);
        instruction.custom_call_target.push_str(&self.target.text());
        instruction.backend_config = self.config.clone().into_bytes();
        instruction.custom_call_api_version = api.into();
        instruction.custom_call_has_side_effect = self.has_side_effect;
        instruction.output_operand_aliasing.extend(self.aliases.iter().map(aliasing));
        instruction.constrain_layout = true;
        instruction.operand_shapes_with_layout = shapes;
        context.finish_all();
    }
}
