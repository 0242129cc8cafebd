//! Calls of code that the plugin knows by name.

use super::rules::*;
use super::{Devices, Effect};
use crate::hlo::{proto, shape, tuple_shape};
use crate::ir::{Attribute, GraphTextError, Name, Printer, Reader};
use meshloom_analysis::cost;
use meshloom_hlo::message::counted;

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

/// The cost of one execution of a kernel, as its author states it. It is not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KernelCost {
    /// Arithmetic operations; a multiplication and an addition are two.
    pub operations: u64,
    /// Results of functions such as `exp`.
    pub transcendentals: u64,
    /// Bytes read from memory and written to it.
    pub bytes: u64,
    /// Bytes of memory that the kernel needs besides operands and results, while it runs.
    pub scratch: u64,
}

impl Attribute for KernelCost {
    fn write(&self, out: &mut Printer<'_>) {
        let KernelCost { operations, transcendentals, bytes, scratch } = self;
        out.push(&format!("operations {operations} transcendentals {transcendentals} bytes {bytes} scratch {scratch}"));
    }

    fn read(reader: &mut Reader<'_>) -> Result<KernelCost, GraphTextError> {
        let mut number = |word: &str| {
            reader.expect(word)?;
            reader.integer("a whole number")
        };
        Ok(KernelCost {
            operations: number("operations")?,
            transcendentals: number("transcendentals")?,
            bytes: number("bytes")?,
            scratch: number("scratch")?,
        })
    }
}

/// How a tensor lies in memory: its dimensions, the one that varies fastest first. Row-major is `[1, 0]`.
pub type MemoryLayout = Box<[usize]>;

/// Calls a target that the plugin has registered under a name.
///
/// Every device calls it with whole operands. It has no derivative and no batching rule: make it an implementation of a
/// [`Kernel`](crate::trace::Kernel) to give it those, and to split it over devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomCall {
    /// The name.
    pub target: Name,
    /// Types of the results.
    pub results: Box<[TensorType]>,
    /// The configuration of the target: an opaque string, or a dictionary for [`CustomCallApi::TypedFfi`].
    pub config: String,
    /// The convention by which the target is called.
    pub api: CustomCallApi,
    /// Whether the target does something besides returning results. It then runs once for each execution, even if its
    /// results are not read.
    pub has_side_effect: bool,
    /// Pairs of (result, operand) that share a buffer: the target overwrites the operand's copy.
    pub aliases: Box<[(usize, usize)]>,
    /// The layout of each operand; empty if every one is row-major.
    pub operand_layouts: Box<[MemoryLayout]>,
    /// The layout of each result; empty if every one is row-major.
    pub result_layouts: Box<[MemoryLayout]>,
    /// The cost of one execution, for analyses and for compilers that ask.
    pub cost: Option<KernelCost>,
}

crate::ir::op_text!(CustomCall = "custom-call" {
    target: lead,
    results: result,
    config: optional("config", String::new()),
    api: key("api"),
    has_side_effect: flag("side effect"),
    aliases: optional("aliases", Box::default()),
    operand_layouts: optional("operand_layouts", Box::default()),
    result_layouts: optional("result_layouts", Box::default()),
    cost: optional("cost", None),
});

/// The target of kernels for TPUs, and the name of the configuration that their cost stands in.
const TPU_TARGET: &str = "tpu_custom_call";
const TPU_CONFIG: &str = "\"custom_call_config\"";

impl CustomCall {
    /// A call of a target that gives results of these types, row-major, without a configuration.
    pub fn new(target: &str, results: impl Into<Box<[TensorType]>>) -> CustomCall {
        CustomCall {
            target: Name::new(target),
            results: results.into(),
            config: String::new(),
            api: CustomCallApi::Original,
            has_side_effect: false,
            aliases: Box::default(),
            operand_layouts: Box::default(),
            result_layouts: Box::default(),
            cost: None,
        }
    }

    /// The configuration, with the cost where the target's compiler reads it.
    fn config_with_cost(&self) -> String {
        let (Some(cost), TPU_TARGET) = (self.cost, &*self.target.text()) else { return self.config.clone() };
        let of_object = |config: &str| {
            let start = config.find(TPU_CONFIG)? + TPU_CONFIG.len();
            let value = config[start..].trim_start().strip_prefix(':')?.trim_start().strip_prefix('{')?;
            Some(config.len() - value.len())
        };
        let Some(place) = of_object(&self.config).filter(|_| !self.config.contains("cost_estimate")) else {
            return self.config.clone();
        };
        let (before, after) = self.config.split_at(place);
        let KernelCost { operations, transcendentals, bytes, .. } = cost;
        let estimate = format!(r#""flops":{operations},"transcendentals":{transcendentals},"bytes_accessed":{bytes}"#);
        let comma = if after.trim_start().starts_with('}') { "" } else { "," };
        format!(r#"{before}"cost_estimate":{{{estimate}}}{comma}{after}"#)
    }

    /// The cost as attributes of the instruction, where `hlo-dump` reads it.
    fn cost_attributes(&self) -> Option<proto::FrontendAttributes> {
        let KernelCost { operations, transcendentals, bytes, scratch } = self.cost?;
        let numbers = [
            (cost::STATED_OPERATIONS, operations),
            (cost::STATED_TRANSCENDENTALS, transcendentals),
            (cost::STATED_BYTES, bytes),
            (cost::STATED_SCRATCH, scratch),
        ];
        let map = numbers.into_iter().map(|(key, number)| (key.to_owned(), number.to_string())).collect();
        Some(proto::FrontendAttributes { map })
    }
}

/// Refuses layouts that are not one permutation of the dimensions for each tensor.
fn expect_layouts<'t>(
    what: &str,
    layouts: &[MemoryLayout],
    types: impl ExactSizeIterator<Item = &'t TensorType>,
) -> Result<(), TypeError> {
    let count = types.len();
    refuse_if!(
        !layouts.is_empty() && layouts.len() != count,
        "it states layouts of {}, but has {count}; state one for each, or none at all",
        counted(layouts.len(), what)
    );
    for (number, (layout, ty)) in layouts.iter().zip(types).enumerate() {
        let mut sorted = layout.to_vec();
        sorted.sort_unstable();
        refuse_if!(
            !sorted.iter().copied().eq(0..ty.rank()),
            "the layout {layout:?} of {what} {number} of type {ty} must name each dimension once, the one that varies \
             fastest first"
        );
    }
    Ok(())
}

/// The shape of a tensor with its layout: row-major if none is stated.
fn shape_with(ty: &TensorType, layout: Option<&MemoryLayout>) -> proto::ShapeProto {
    let mut shape = shape(ty);
    if let (Some(layout), Some(stated)) = (layout, &mut shape.layout) {
        stated.minor_to_major = layout.iter().map(|&dim| dim as i64).collect();
    }
    shape
}

impl Primitive for CustomCall {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        refuse_if!(self.target.is_none(), "the target needs a name");
        refuse_if!(self.results.is_empty(), "it needs a result; it need not be used");
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
        expect_layouts("operand", &self.operand_layouts, operands.iter().copied())?;
        expect_layouts("result", &self.result_layouts, self.results.iter())?;
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

    fn emit(&self, context: &mut dyn EmitContext) {
        let operands = context.operand_ids();
        let operand_shape = |index: usize| shape_with(context.operand_type(index), self.operand_layouts.get(index));
        let shapes = (0..operands.len()).map(operand_shape).collect();
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
        instruction.backend_config = self.config_with_cost().into_bytes();
        instruction.custom_call_api_version = api.into();
        instruction.custom_call_has_side_effect = self.has_side_effect;
        instruction.output_operand_aliasing.extend(self.aliases.iter().map(aliasing));
        instruction.constrain_layout = true;
        instruction.operand_shapes_with_layout = shapes;
        instruction.frontend_attributes = self.cost_attributes();
        if !self.result_layouts.is_empty() {
            let parts = self.results.iter().zip(&self.result_layouts);
            let mut parts = parts.map(|(ty, layout)| shape_with(ty, Some(layout)));
            let shape = match parts.next() {
                Some(only) if !is_tuple => only,
                first => {
                    let tuple_shapes = first.into_iter().chain(parts).collect();
                    proto::ShapeProto { tuple_shapes, ..tuple_shape(&*self.results) }
                }
            };
            context.set_shape(&shape);
        }
        context.finish_all();
    }
}

import!(CustomCall: in_parts);
