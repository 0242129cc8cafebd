//! Calls of functions of the text, and of code outside of it.

use super::super::super::names;
use super::super::attribute::{Attribute, Value};
use super::super::operation::Operation;
use super::body::Sites;
use super::collectives::{Common, Groups};
use super::{Conversion, Converter, Rule, asynchronous, collectives, elementwise, symbol_text};
use crate::parse::{Result, fault};
use crate::proto::{CustomCallApiVersion, FrontendAttributes, HloInstructionProto, OutputOperandAliasing, ShapeProto};

pub(super) const RULES: &[(&str, Rule)] =
    &[("func.call", call), ("stablehlo.composite", composite), ("stablehlo.custom_call", custom_call)];

impl<'a> Converter<'a, '_> {
    /// The computation of a function that is called.
    pub(super) fn called(&self, operation: &Operation<'a>, name: &str) -> Result<i64> {
        match self.functions.get(name) {
            Some(&id) => Ok(id as i64),
            None => operation.fault(format!("the text has no function @{name}")),
        }
    }

    /// Returns an error unless a call has as many operands as the function has parameters.
    pub(super) fn check_call(&self, operation: &Operation<'a>, id: i64) -> Result<()> {
        let computation = usize::try_from(id).ok().and_then(|id| self.computations.get(id));
        let shape = computation.and_then(|computation| computation.program_shape.as_ref());
        let expected = shape.map_or(0, |shape| shape.parameters.len());
        match expected == operation.operands.len() {
            true => Ok(()),
            false => operation.fault(format!("expected {expected} operands, found {}", operation.operands.len())),
        }
    }
}

fn call(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let id = op.converter.called(op.operation, op.operation.symbol(&["callee", "symbol"])?)?;
    op.converter.check_call(op.operation, id)?;
    op.calling("call", vec![id], |_| {})
}

/// `stablehlo.composite "chlo.name" %0 {composite_attributes = {...}, decomposition = @f, version = 1 : i32}`: the call
/// of its decomposition, with its name, as XLA writes it.
fn composite(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    let id = op.converter.called(operation, operation.symbol(&["decomposition"])?)?;
    op.converter.check_call(operation, id)?;
    let mut attributes = FrontendAttributes::default();
    let mut add = |key: &str, text: String| attributes.map.insert(format!("composite.{key}"), text);
    add("name", operation.required(&["name"])?.string("name")?);
    if let Some(stated) = operation.attributes.get("composite_attributes") {
        add("attributes", op.converter.parser.lexer.slice(stated.span).to_owned());
    }
    add("version", operation.optional_integer("version")?.unwrap_or(0).to_string());
    op.calling("call", vec![id], |instruction| {
        instruction.is_composite = true;
        instruction.frontend_attributes = Some(attributes);
    })
}

fn custom_call(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    let target = symbol_text(operation.required(&["call_target_name", "symbol"])?)?;
    if let Some(later) = target.strip_prefix("mhlo.")
        && let Some(places) = later_op(op, later)?
    {
        return Ok(places);
    }
    if target == "ragged_all_to_all" {
        return ragged_all_to_all(op);
    }
    if let Some(places) = asynchronous::collective(op, &target)? {
        return Ok(places);
    }
    let called = op.called_computations()?;
    let has_side_effect = operation.flag("has_side_effect")?;
    let (config, is_typed) = backend_config(op.converter, operation)?;
    let version = match operation.optional_integer("api_version")? {
        // JAX states the first version beside a config that only the last one has.
        _ if is_typed => Some(CustomCallApiVersion::ApiVersionTypedFfi),
        Some(version) => i32::try_from(version).ok().and_then(|version| CustomCallApiVersion::try_from(version).ok()),
        None => Some(CustomCallApiVersion::ApiVersionOriginal),
    };
    let Some(version) = version else { return operation.fault("expected an API version from 0 to 4") };
    let operand_layouts = layouts(op.converter, operation, "operand_layouts")?;
    let result_layouts = layouts(op.converter, operation, "result_layouts")?;
    let operand_shapes: Vec<ShapeProto> = op.operands()?.iter().map(|&place| op.body.shape(place)).collect();
    let aliases = aliases(op.converter, operation)?;
    op.calling("custom-call", called, |instruction| {
        instruction.custom_call_target = target;
        instruction.custom_call_api_version = version.into();
        instruction.backend_config = config;
        if has_side_effect {
            instruction.custom_call_has_side_effect = true;
        }
        if !aliases.is_empty() {
            instruction.output_operand_aliasing = aliases;
        }
        if let Some(layouts) = operand_layouts {
            instruction.constrain_layout = true;
            instruction.operand_shapes_with_layout = operand_shapes;
            set_layouts(instruction.operand_shapes_with_layout.iter_mut(), layouts);
        }
        if let Some(layouts) = result_layouts {
            set_result_layouts(instruction, layouts);
        }
    })
}

/// StableHLO has no op for it: JAX writes a custom call with
/// `backend_config = {channel_id = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}`.
fn ragged_all_to_all(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let config = ["backend_config", "mhlo.backend_config"];
    let attribute = op.operation.required(&config)?;
    let Value::Dictionary(fields) = &attribute.value else {
        return attribute.fault(config[0], "{replica_groups = ...}");
    };
    let groups = match fields.get("replica_groups") {
        Some(stated) => collectives::groups(op, stated)?,
        None => Groups::Lists(Vec::new()),
    };
    let channel = fields.get("channel_id").map_or(Ok(0), |channel| channel.integer("channel_id"))?;
    let common = Common { channel, groups, use_global_device_ids: false };
    op.calling("ragged-all-to-all", Vec::new(), |instruction| common.set(instruction))
}

/// `@mhlo.topk` with `mhlo.attributes = {k = 2 : i64, largest = true}`: an opcode that came later than StableHLO's op.
/// The result is `None` for an unknown one.
fn later_op(op: &mut Conversion<'_, '_, '_>, name: &str) -> Result<Option<Sites>> {
    let Some(stated) = op.operation.attributes.get("mhlo.attributes") else { return Ok(None) };
    let Value::Dictionary(own) = &stated.value else { return stated.fault("mhlo.attributes", "{name = value}") };
    if let Some(opcode) = names::opcode(&format!("chlo.{name}")) {
        return op.single(opcode, |_| {}).map(Some);
    }
    let (Some(k), "topk") = (own.get("k"), name) else { return Ok(None) };
    let k = k.integer("k")?;
    let largest = own.get("largest").map_or(Ok(true), |largest| largest.boolean("largest"))?;
    elementwise::largest(op, k, largest).map(Some)
}

/// The config, and whether it is a dictionary, which only a typed custom call has.
fn backend_config<'a>(converter: &Converter<'a, '_>, operation: &Operation<'a>) -> Result<(Vec<u8>, bool)> {
    let text = |attribute: &Attribute<'a>| converter.parser.lexer.slice(attribute.span).as_bytes().to_vec();
    if let Some(typed) = operation.attributes.get("mhlo.backend_config") {
        return Ok((text(typed), true));
    }
    match operation.attributes.get("backend_config") {
        None => Ok((Vec::new(), false)),
        Some(attribute) => match &attribute.value {
            Value::Dictionary(_) => Ok((text(attribute), true)),
            Value::String(bytes) => Ok((bytes.clone(), false)),
            _ => Ok((text(attribute), false)),
        },
    }
}

/// Orders of dimensions: one for each value.
fn layouts<'a>(converter: &Converter<'a, '_>, operation: &Operation<'a>, name: &str) -> Result<Option<Vec<Vec<i64>>>> {
    let Some(attribute) = operation.attributes.get(name) else { return Ok(None) };
    let items = attribute.list(name)?.iter();
    items.map(|item| converter.integers_of(item, name)).collect::<Result<_>>().map(Some)
}

fn set_layouts<'s>(shapes: impl Iterator<Item = &'s mut ShapeProto>, layouts: Vec<Vec<i64>>) {
    for (shape, order) in shapes.zip(layouts) {
        if let Some(layout) = &mut shape.layout
            && order.len() == shape.dimensions.len()
        {
            layout.minor_to_major = order;
        }
    }
}

fn set_result_layouts(instruction: &mut HloInstructionProto, layouts: Vec<Vec<i64>>) {
    match &mut instruction.shape {
        Some(shape) if shape.tuple_shapes.is_empty() => set_layouts(std::iter::once(shape), layouts),
        Some(shape) => set_layouts(shape.tuple_shapes.iter_mut(), layouts),
        None => {}
    }
}

/// `[#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>]`
fn aliases<'a>(converter: &mut Converter<'a, '_>, operation: &Operation<'a>) -> Result<Vec<OutputOperandAliasing>> {
    const NAME: &str = "output_operand_aliases";
    let Some(attribute) = operation.attributes.get(NAME) else { return Ok(Vec::new()) };
    let mut aliases = Vec::new();
    for item in attribute.list(NAME)? {
        let Value::Dialect { body, .. } = &item.value else {
            return fault(item.span.start, "expected #stablehlo.output_operand_alias<...>");
        };
        let fields = converter.parser.fields(*body)?;
        let list = |name: &str| match fields.get(name) {
            Some(field) => converter.integers_of(field, name),
            None => Ok(Vec::new()),
        };
        aliases.push(OutputOperandAliasing {
            output_shape_index: list("output_tuple_indices")?,
            operand_index: fields.get("operand_index").map_or(Ok(0), |field| field.integer("operand_index"))?,
            operand_shape_index: list("operand_tuple_indices")?,
        });
    }
    Ok(aliases)
}
