//! Branches and calls.

use super::attributes::{Attributes, quoted};
use super::error::{Result, malformed};
use super::printer::{Op, Parameters, Printer, Region, Scope, Value, shape_of};
use super::types;
use crate::braces::braced_length;
use crate::proto::{HloInstructionProto, PrimitiveType};

pub(super) fn called(instruction: &HloInstructionProto, index: usize) -> Result<i64> {
    match instruction.called_computation_ids.get(index) {
        Some(&id) => Ok(id),
        None => {
            let found = instruction.called_computation_ids.len();
            malformed(format!("{} called computations are expected, {found} are found", index + 1))
        }
    }
}

/// The attributes of a composite's op, and the call without them; `None` if the call is not a composite.
fn composite(instruction: &HloInstructionProto, callee: &str) -> Result<Option<(Attributes, HloInstructionProto)>> {
    const PREFIX: &str = "composite.";
    let stated = |key: &str| instruction.frontend_attributes.as_ref()?.map.get(&format!("{PREFIX}{key}"));
    let Some(name) = stated("name").filter(|_| instruction.is_composite) else { return Ok(None) };
    let mut attributes = vec![("name", quoted(name.as_bytes()))];
    match stated("attributes") {
        None => {}
        Some(text) if braced_length(text.as_bytes()) == Some(text.len()) => {
            attributes.push(("composite_attributes", text.clone()));
        }
        Some(text) => return malformed(format!("its attributes are no dictionary {{name = value}}: {text}")),
    }
    attributes.push(("decomposition", callee.to_owned()));
    let version = stated("version").map_or(Some(0), |version| version.parse::<i32>().ok());
    match version {
        Some(version) => attributes.push(("version", format!("{version} : i32"))),
        None => return malformed("its version is no number"),
    }
    let mut rest = instruction.clone();
    rest.frontend_attributes.iter_mut().for_each(|frontend| frontend.map.retain(|key, _| !key.starts_with(PREFIX)));
    Ok(Some((attributes, rest)))
}

impl<'a> Printer<'a, '_> {
    /// A branch: its computations take the operands, its regions see them.
    pub(super) fn conditional(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let mut regions = Vec::new();
        for index in 0..instruction.called_computation_ids.len() {
            let operand = scope.operand(instruction, 1 + index)?;
            let parameters = Parameters::Values(vec![operand]);
            regions.push(Region { computation: called(instruction, index)?, parameters });
        }
        let by_flag = scope.operand_shape(instruction, 0)?.element_type == PrimitiveType::Pred as i32;
        if by_flag && regions.len() != 2 {
            return malformed(format!("two branches are expected, {} are found", regions.len()));
        }
        let results = types::leaves(shape_of(instruction)?)?;
        let operands = scope.operand(instruction, 0)?;
        let name = if by_flag { "stablehlo.if" } else { "stablehlo.case" };
        let op = Op::new(name, &operands, &results).over(regions).marked(self.common(instruction));
        self.op(instruction, op)
    }

    pub(super) fn call(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let callee = self.function_symbol(called(instruction, 0)?)?;
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        let (name, attributes, marks) = match composite(instruction, &callee)? {
            Some((attributes, rest)) => ("stablehlo.composite", attributes, self.common(&rest)),
            None => ("func.call", vec![("callee", callee)], self.common(instruction)),
        };
        self.op(instruction, Op::new(name, &operands, &results).with(attributes).marked(marks))
    }
}
