//! Instructions that no other op is: they are carried through the compiler as they are.
//!
//! Most of them work on each element, row or window of some dimensions by itself. These dimensions are split as those
//! of any op; every device needs the whole of the others.

use prost::Message;

use super::Devices;
use super::rules::*;
use crate::ir::{Attribute, GraphTextError, Name, Printer, Reader};
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, WindowDimension};

/// A dimension of a tensor: the number of the operand, or, behind the operands, of the result; and that of the
/// dimension.
type TensorDim = (usize, usize);

/// An instruction with the computations that it calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opaque {
    /// Its opcode; the target of a custom call.
    pub opcode: Name,
    /// Whether it is a custom call.
    pub is_custom_call: bool,
    /// The types of its results.
    pub results: Box<[TensorType]>,
    /// The dimensions that run over a loop together, for each loop whose iterations do not depend on each other.
    pub loops: Vec<Vec<TensorDim>>,
    /// Its attributes.
    pub code: ForeignCode,
}

crate::ir::op_text!(Opaque = "opaque" {
    opcode: lead,
    is_custom_call: flag("custom call"),
    results: result,
    loops: key("loops"),
    code: key("code"),
});

/// An instruction in HLO, encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForeignCode(Box<[u8]>);

impl ForeignCode {
    /// An instruction, and the computations that it calls, each behind those that it calls itself.
    fn new(instruction: &HloInstructionProto, computations: Vec<HloComputationProto>) -> ForeignCode {
        let bare = HloInstructionProto {
            name: String::new(),
            metadata: None,
            sharding: None,
            operand_ids: Vec::new(),
            control_predecessor_ids: Vec::new(),
            id: 0,
            ..instruction.clone()
        };
        let holder = HloComputationProto { instructions: vec![bare], ..HloComputationProto::default() };
        let computations = computations.into_iter().chain([holder]).collect();
        ForeignCode(HloModuleProto { computations, ..HloModuleProto::default() }.encode_to_vec().into())
    }

    /// The instruction, and the computations that it calls; `None` for a text that is no such code.
    pub fn decode(&self) -> Option<(HloInstructionProto, Vec<HloComputationProto>)> {
        let mut computations = HloModuleProto::decode(&*self.0).ok()?.computations;
        let instruction = computations.pop()?.instructions.pop()?;
        Some((instruction, computations))
    }
}

/// Its bytes in hexadecimal digits.
impl Attribute for ForeignCode {
    fn write(&self, out: &mut Printer<'_>) {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        digits.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<ForeignCode, GraphTextError> {
        let digits = String::read(reader)?;
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Box<[u8]>> = (0..digits.len()).step_by(2).map(byte).collect();
        bytes.map(ForeignCode).ok_or_else(|| reader.expected("hexadecimal digits"))
    }
}

/// Opcodes of instructions that do something besides giving results, or whose results differ by device or time.
const NOT_CARRIED: [&str; 17] = [
    "after-all",
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "domain",
    "infeed",
    "outfeed",
    "parameter",
    "partition-id",
    "ragged-all-to-all",
    "reduce-scatter",
    "replica-id",
    "rng",
    "rng-get-and-update-state",
    "set-dimension-size",
];

/// Targets of custom calls that XLA's partitioner replaces (JAX's `custom_partitioning` and `inspect_array_sharding`).
const OF_PARTITIONERS: [&str; 2] = ["CustomSPMDPartitioning", "InspectSharding"];

/// Opcodes of elementwise instructions, which other ops are in part.
const ELEMENTWISE: [&str; 12] = [
    "bitcast-convert",
    "cbrt",
    "compare",
    "convert",
    "count-leading-zeros",
    "erf",
    "map",
    "popcnt",
    "reduce-precision",
    "stochastic-convert",
    "tan",
    "round-nearest-even",
];

impl Opaque {
    /// An instruction with these operands and results; `None` for one that cannot be carried.
    pub(crate) fn of(
        instruction: &HloInstructionProto,
        operands: &[TensorType],
        results: &[TensorType],
        computations: Vec<HloComputationProto>,
    ) -> Option<Opaque> {
        let opcode = instruction.opcode.as_str();
        let communicates =
            ["send", "recv", "async", "copy-", "all-", "collective-"].iter().any(|it| opcode.starts_with(it));
        let is_carried = !NOT_CARRIED.contains(&opcode)
            && !OF_PARTITIONERS.contains(&instruction.custom_call_target.as_str())
            && !communicates
            && !instruction.custom_call_has_side_effect
            && !results.is_empty();
        is_carried.then(|| Opaque {
            opcode: Name::new(if opcode == "custom-call" { &instruction.custom_call_target } else { opcode }),
            is_custom_call: opcode == "custom-call",
            results: results.into(),
            loops: loops(instruction, operands, results),
            code: ForeignCode::new(instruction, computations),
        })
    }
}

/// The loops of an instruction whose iterations do not depend on each other.
fn loops(instruction: &HloInstructionProto, operands: &[TensorType], results: &[TensorType]) -> Vec<Vec<TensorDim>> {
    let tensors: Vec<&TensorType> = operands.iter().chain(results).collect();
    let rank = tensors.iter().map(|ty| ty.rank()).max().unwrap_or(0);
    let is_stated = |dim: &usize| instruction.dimensions.contains(&(*dim as i64));
    // Every tensor that is no scalar has this dimension, in the same size.
    let everywhere = |dim: usize| -> Option<Vec<TensorDim>> {
        let having = || tensors.iter().enumerate().filter(|(_, ty)| ty.rank() > 0);
        let size = having().find_map(|(_, ty)| ty.dims.get(dim))?;
        having().all(|(_, ty)| ty.dims.get(dim) == Some(size)).then(|| having().map(|(at, _)| (at, dim)).collect())
    };
    match instruction.opcode.as_str() {
        opcode if ELEMENTWISE.contains(&opcode) => (0..rank).filter_map(everywhere).collect(),
        "sort" => (0..rank).filter(|dim| !is_stated(dim)).filter_map(everywhere).collect(),
        "reduce" => {
            let kept = (0..rank).filter(|dim| !is_stated(dim)).enumerate();
            let arrays = operands.len() / 2;
            let of_dim = |(result, dim): (usize, usize)| {
                let results = (operands.len()..tensors.len()).map(|tensor| (tensor, result));
                (0..arrays).map(|operand| (operand, dim)).chain(results).collect()
            };
            kept.map(of_dim).collect()
        }
        "reduce-window" | "select-and-scatter" => {
            let window = instruction.window.as_ref().map_or(&[][..], |window| &window.dimensions);
            let alone = (0..rank).filter(|&dim| window.get(dim).is_some_and(is_trivial));
            alone.filter_map(everywhere).collect()
        }
        // These work on the last two dimensions.
        "cholesky" | "triangular-solve" => (0..rank.saturating_sub(2)).filter_map(everywhere).collect(),
        "topk" => (0..rank.saturating_sub(1)).filter_map(everywhere).collect(),
        _ => Vec::new(),
    }
}

/// Whether a window has one element, and moves by one.
fn is_trivial(window: &WindowDimension) -> bool {
    let WindowDimension { size, stride, padding_low, padding_high, base_dilation, .. } = *window;
    size == 1 && stride <= 1 && base_dilation <= 1 && (padding_low, padding_high) == (0, 0)
}

impl Primitive for Opaque {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        refuse_if!(self.code.decode().is_none(), "its code is no instruction");
        for dims in &self.loops {
            let size = |&(tensor, dim): &TensorDim| {
                let ty =
                    operands.get(tensor).copied().or_else(|| self.results.get(tensor.checked_sub(operands.len())?));
                ty?.dims.get(dim).copied()
            };
            let first = dims.first().and_then(size);
            refuse_if!(
                first.is_none() || dims.iter().any(|dim| size(dim) != first),
                "the dimensions {dims:?} of one loop differ in size, or do not exist"
            );
        }
        Ok(self.results.iter().cloned().collect())
    }

    fn facts(&self) -> Facts<'_> {
        // Foreign code may ask which device it is on.
        let devices = if self.is_custom_call { Devices::Unknown } else { Devices::Alone };
        Facts { devices, ..Facts::KERNEL }
    }

    rules!(derivatives: refused, batch: refused);

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for dims in &self.loops {
            let (of_operands, of_results): (Vec<TensorDim>, Vec<TensorDim>) =
                dims.iter().partition(|(tensor, _)| *tensor < operands.len());
            let of_results: Vec<TensorDim> =
                of_results.into_iter().map(|(tensor, dim)| (tensor - operands.len(), dim)).collect();
            let size = of_results.first().map_or(1, |&(result, dim)| results[result].dims[dim]);
            rule.add(size, FactorKind::Parallel, &of_operands, &of_results);
        }
        rule.with_rest_replicated(operands, results)
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let part = |(index, ty): (usize, &TensorType)| TensorType {
            dtype: ty.dtype,
            dims: context.result_dims(index).clone(),
        };
        let results = self.results.iter().enumerate().map(part).collect();
        context.apply(Opaque { results, ..self.clone() })
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let Some((foreign, computations)) = self.code.decode() else {
            let id = context.fail("code that is an instruction");
            return context.set_result(0, id);
        };
        let called = foreign.called_computation_ids.iter();
        let called = called.map(|&id| context.foreign_computation(&computations, id)).collect();
        let operands = context.operand_ids();
        let own_shape = foreign.shape.clone();
        let instruction = context.begin_all(&foreign.opcode, &operands);
        *instruction =
            HloInstructionProto { opcode: String::new(), shape: None, called_computation_ids: called, ..foreign };
        // A custom call may state layouts of its own.
        if let Some(shape) = own_shape.filter(|_| self.is_custom_call) {
            context.set_shape(&shape);
        }
        context.finish_all();
    }
}

// The importer makes it of what no other op is.
import!(Opaque: in_parts);
