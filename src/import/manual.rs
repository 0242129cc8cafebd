//! The borders of manual regions, in the two forms that XLA has for them.
//!
//! | | Shardy's | GSPMD's |
//! |---|---|---|
//! | enter | `xla.sdy.GlobalToLocalShape`, of several values | `SPMDFullToShardShape`, of one |
//! | leave | `xla.sdy.LocalToGlobalShape` | `SPMDShardToFullShape` |
//! | the whole's sharding | in frontend attributes | that of the whole, which is annotated |
//! | manual axes | in a frontend attribute | the manual tiles in the sharding of the part |
//! | the region | a `call` of a computation with a name of Shardy's | the instructions in between |

use meshloom_hlo::proto::HloInstructionProto;

use super::shardings::Stated;
use super::{ImportError, Importer, Known};
use crate::ir::{Axes, GraphBuilder, Spec, Values};
use crate::ops::{ManualBorder, Passage};

/// The beginning of the names of computations that are manual regions (Shardy's `shard_map_import.cc`).
const REGION: &str = "xla.sdy.manual_computation_body";

impl<'m> Importer<'m> {
    /// Whether a call is a manual region.
    pub(super) fn is_manual_region(&self, call: &HloInstructionProto) -> bool {
        let called = call.called_computation_ids.first().and_then(|id| self.computations.get(id));
        called.is_some_and(|computation| computation.name.starts_with(REGION))
    }

    /// The values of a custom call that is a border; `None` if it is none.
    pub(super) fn border(
        &self,
        instruction: &'m HloInstructionProto,
        operands: &[&Known<'m>],
        builder: &mut GraphBuilder,
    ) -> Result<Option<Values>, ImportError> {
        let (passage, stated) = match instruction.custom_call_target.as_str() {
            "xla.sdy.GlobalToLocalShape" => (Passage::Enter, self.constraints.at_border(instruction)),
            "xla.sdy.LocalToGlobalShape" => (Passage::Leave, self.constraints.at_border(instruction)),
            "SPMDFullToShardShape" => (Passage::Enter, self.of_tiles(instruction, operands, Passage::Enter)),
            "SPMDShardToFullShape" => (Passage::Leave, self.of_tiles(instruction, operands, Passage::Leave)),
            _ => return Ok(None),
        };
        let stated = stated.map_err(|why| self.refused(instruction, why))?;
        let values = operands.iter().flat_map(|(values, _)| values.iter().copied());
        let (values, results): (Values, _) = (values.collect(), self.types(instruction)?);
        if values.len() != stated.len() || results.len() != stated.len() {
            let why = format!("it has {} shardings for {} values", stated.len(), values.len());
            return Err(self.refused(instruction, why));
        }
        let mut made = Values::new();
        for ((value, result), Stated { spec, manual, .. }) in values.into_iter().zip(results).zip(stated) {
            let own = |axes: &Axes| axes.iter().copied().take_while(|axis| manual.contains(axis)).collect();
            let of_manual = Spec::new(spec.dims().iter().map(own));
            let (whole, part) = match passage {
                Passage::Enter => (builder.ty(value).dims.clone(), &result.dims),
                Passage::Leave => (result.dims.clone(), &builder.ty(value).dims),
            };
            let mesh = self.constraints.mesh.as_ref();
            let expected = mesh.and_then(|mesh| of_manual.local_dims(mesh, &whole).ok());
            if expected.as_ref() != Some(part) {
                let why = format!("the parts {part:?} do not make up the whole {whole:?} along the manual axes");
                return Err(self.refused(instruction, why));
            }
            let border = ManualBorder { passage, spec: of_manual, axes: manual, dims: result.dims };
            let pushed = builder.push1(border, &[value]);
            made.push(
                pushed.map_err(|error| ImportError::Op { place: self.place(instruction), source: error.into() })?,
            );
        }
        Ok(Some(made))
    }

    /// The sharding of a value at a border in GSPMD's form.
    fn of_tiles(
        &self,
        instruction: &'m HloInstructionProto,
        operands: &[&Known<'m>],
        passage: Passage,
    ) -> Result<Vec<Stated>, String> {
        let &[&(_, operand)] = operands else { return Err("it has more than one operand".to_owned()) };
        let stated = |instruction: &'m HloInstructionProto| {
            let types = self.types(instruction).map_err(|error| error.to_string())?;
            let stated = self.constraints.stated(instruction, &types)?;
            stated.into_iter().next().flatten().ok_or_else(|| format!("%{} states no sharding", instruction.name))
        };
        let (whole, part) = match passage {
            Passage::Enter => (operand, instruction),
            Passage::Leave => (instruction, operand),
        };
        Ok(vec![Stated { manual: stated(part)?.manual, ..stated(whole)? }])
    }
}
