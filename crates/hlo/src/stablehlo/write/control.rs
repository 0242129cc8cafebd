//! Loops, branches, calls, and what computes by a computation of single elements.

use super::attributes::{
    Attributes, array, dilations, dimension_numbers, number, quoted, window, window_of, window_sizes,
};
use super::error::{Result, malformed, no_form};
use super::printer::{Op, Parameters, Printer, Region, Scope, Value, names, result_types, shape_of};
use super::types;
use crate::braces::braced_length;
use crate::proto::{HloInstructionProto, PrimitiveType, WindowDimension};

fn called(instruction: &HloInstructionProto, index: usize) -> Result<i64> {
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

/// The called computation as a region with arguments of its own.
pub(super) fn region(instruction: &HloInstructionProto, index: usize) -> Result<Region> {
    Ok(Region { computation: called(instruction, index)?, parameters: Parameters::Arguments })
}

impl<'a> Printer<'a> {
    /// An op whose called computations are regions, with an array result for each of its operands' kind.
    pub(super) fn with_regions(
        &mut self,
        scope: &Scope<'a>,
        instruction: &'a HloInstructionProto,
        name: &str,
        attributes: Attributes,
        regions: Vec<Region>,
    ) -> Result<Value> {
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        let op = Op::new(name, &operands, &results).with(attributes).over(regions);
        self.op(instruction, op, &self.common(instruction))
    }

    pub(super) fn while_loop(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        // HLO has the body first.
        let regions = vec![region(instruction, 1)?, region(instruction, 0)?];
        self.with_regions(scope, instruction, "stablehlo.while", Vec::new(), regions)
    }

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
        self.op(instruction, Op::new(name, &operands, &results).over(regions), &self.common(instruction))
    }

    pub(super) fn call(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let callee = self.function_symbol(called(instruction, 0)?)?;
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        if let Some((attributes, rest)) = composite(instruction, &callee)? {
            let op = Op::new("stablehlo.composite", &operands, &results).with(attributes);
            return self.op(instruction, op, &self.common(&rest));
        }
        let operand_types: Vec<&str> = operands.iter().map(|leaf| &*leaf.ty).collect();
        let common = self.common(instruction);
        let attributes: Vec<String> = common.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) };
        let text = format!(
            "call {callee}({}){attributes} : ({}) -> {}",
            names(&operands),
            operand_types.join(", "),
            result_types(&results)
        );
        Ok(self.line(instruction, &text, &results))
    }

    pub(super) fn reduce(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let attributes = vec![("dimensions", array(&instruction.dimensions))];
        let regions = vec![region(instruction, 0)?];
        self.with_regions(scope, instruction, "stablehlo.reduce", attributes, regions)
    }

    pub(super) fn reduce_window(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let rank = scope.operand_shape(instruction, 0)?.dimensions.len();
        let dimensions = window_of(instruction, rank)?;
        if dimensions.iter().any(|dimension| dimension.window_reversal) {
            return no_form("its window is reversed; reverse the operand and the result");
        }
        let mut attributes = vec![("window_dimensions", window_sizes(dimensions))];
        attributes.extend(window(dimensions));
        attributes.extend(dilations(dimensions, ["base_dilations", "window_dilations"]));
        let regions = vec![region(instruction, 0)?];
        self.with_regions(scope, instruction, "stablehlo.reduce_window", attributes, regions)
    }

    pub(super) fn select_and_scatter(
        &mut self,
        scope: &Scope<'a>,
        instruction: &'a HloInstructionProto,
    ) -> Result<Value> {
        let rank = scope.operand_shape(instruction, 0)?.dimensions.len();
        let dimensions = window_of(instruction, rank)?;
        let is_changed = |of: &WindowDimension| of.base_dilation > 1 || of.window_dilation > 1 || of.window_reversal;
        if dimensions.iter().any(is_changed) {
            return no_form("its window is dilated or reversed; write it as a reduce-window and a scatter");
        }
        let mut attributes = vec![("window_dimensions", window_sizes(dimensions))];
        attributes.extend(window(dimensions));
        let regions = vec![region(instruction, 0)?, region(instruction, 1)?];
        self.with_regions(scope, instruction, "stablehlo.select_and_scatter", attributes, regions)
    }

    pub(super) fn sort(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let &[dimension] = instruction.dimensions.as_slice() else {
            return malformed(format!("one dimension is expected, {} are found", instruction.dimensions.len()));
        };
        let attributes = vec![("dimension", number(dimension)), ("is_stable", instruction.is_stable.to_string())];
        let regions = vec![region(instruction, 0)?];
        self.with_regions(scope, instruction, "stablehlo.sort", attributes, regions)
    }

    pub(super) fn scatter(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let Some(numbers) = instruction.scatter_dimension_numbers.as_deref() else {
            return malformed("it has no dimension numbers");
        };
        let dimension_numbers = dimension_numbers(
            "scatter",
            &[
                ("update_window_dims", &numbers.update_window_dims),
                ("inserted_window_dims", &numbers.inserted_window_dims),
                ("input_batching_dims", &numbers.input_batching_dims),
                ("scatter_indices_batching_dims", &numbers.scatter_indices_batching_dims),
                ("scatter_dims_to_operand_dims", &numbers.scatter_dims_to_operand_dims),
            ],
            numbers.index_vector_dim,
        );
        let attributes = vec![
            ("scatter_dimension_numbers", dimension_numbers),
            ("indices_are_sorted", instruction.indices_are_sorted.to_string()),
            ("unique_indices", instruction.unique_indices.to_string()),
        ];
        let regions = vec![region(instruction, 0)?];
        self.with_regions(scope, instruction, "stablehlo.scatter", attributes, regions)
    }

    pub(super) fn map(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let rank = shape_of(instruction)?.dimensions.len() as i64;
        let attributes = vec![("dimensions", array(&(0..rank).collect::<Vec<_>>()))];
        let regions = vec![region(instruction, 0)?];
        self.with_regions(scope, instruction, "stablehlo.map", attributes, regions)
    }
}
