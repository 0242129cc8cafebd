//! Shardy: meshes, shardings, and regions that are manual.
//!
//! Everything becomes what XLA writes when it hands Shardy's dialect on as HLO: tiles, beside Shardy's own text in the
//! frontend attributes `xla.sdy.*`, and custom calls with names that begin so.

use prost::Message;
use smallvec::smallvec;

use super::super::attribute::{Attribute, Attributes, Value};
use super::super::lexer::Span;
use super::super::operation::Operation;
use super::body::{Body, Site, Sites};
use super::meshes::{ShardyMesh, axis_names, dialect_body, part, read_mesh};
use super::{Conversion, Converter, Rule, one_or_tuple};
use crate::parse::{Result, fault, parse_sharding};
use crate::proto::axis_ref_proto::SubAxis;
use crate::proto::mesh_proto::MeshAxis;
use crate::proto::{
    AxisRefProto, FrontendAttributes, HloInstructionProto, MeshAxesReplicaGroupListProto, MeshProto, OpSharding,
    ShapeProto,
};
use crate::suggest::did_you_mean;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("sdy.sharding_constraint", sharding_constraint),
    ("sdy.reshard", sharding_constraint),
    ("sdy.manual_computation", manual_computation),
    ("sdy.propagation_barrier", propagation_barrier),
    ("sdy.sharding_group", sharding_group),
    ("sdy.data_flow_edge", unchanged),
    ("sdy.func_data_flow_edge", unchanged),
    ("sdy.named_computation", named_computation),
    ("sdy.all_gather", resharded),
    ("sdy.all_slice", resharded),
    ("sdy.all_to_all", resharded),
    ("sdy.collective_permute", resharded),
    ("sdy.reduce_scatter", resharded),
    ("sdy.replicated_to_unreduced", resharded),
    ("sdy.sharded_to_unreduced", resharded),
    ("sdy.all_reduce", unchanged),
];

/// The frontend attribute of a value's sharding in Shardy's text.
pub(super) const SHARDING: &str = "xla.sdy.sharding";

/// `mhlo.sharding = "{devices=[2,4]<=[8]}"`: the text of HLO, or a serialized message.
pub(super) fn from_text(attribute: &Attribute<'_>) -> Result<OpSharding> {
    let bytes = attribute.bytes("mhlo.sharding")?;
    match std::str::from_utf8(bytes) {
        Ok(text) if text.starts_with('{') => match parse_sharding(text) {
            Ok(sharding) => Ok(sharding),
            Err(message) => fault(attribute.span.start, format!("in the sharding in this string: {message}")),
        },
        _ => match OpSharding::decode(bytes) {
            Ok(sharding) => Ok(sharding),
            Err(_) => attribute.fault("mhlo.sharding", "a sharding, like \"{devices=[2,4]<=[8]}\","),
        },
    }
}

fn add_attribute(instruction: &mut HloInstructionProto, key: &str, text: String) {
    instruction.frontend_attributes.get_or_insert_with(FrontendAttributes::default).map.insert(key.to_owned(), text);
}

/// A custom call of XLA's for Shardy.
fn marker(body: &Body<'_>, target: &str, shape: ShapeProto, operands: &[Site]) -> HloInstructionProto {
    let mut instruction = body.instruction("custom-call", shape, operands);
    instruction.custom_call_target = target.to_owned();
    instruction.custom_call_api_version = crate::proto::CustomCallApiVersion::ApiVersionOriginal.into();
    instruction
}

/// The custom call that states the sharding of a result of the program.
pub(super) fn result_sharding(body: &mut Body<'_>, place: Site, text: &str) -> Site {
    let inner = text.strip_prefix("#sdy.sharding").unwrap_or(text);
    let mut instruction = marker(body, "xla.sdy.FuncResultSharding", body.shape(place), &[place]);
    instruction.name = body.name("result_sharding");
    instruction.custom_call_has_side_effect = true;
    add_attribute(&mut instruction, SHARDING, format!("#sdy.sharding_per_value<[{inner}]>"));
    body.push(instruction)
}

fn sharding_constraint(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let attribute = op.operation.required(&["sharding", "angles"])?;
    let Converter { parser, meshes, manual, .. } = &mut *op.converter;
    let (sharding, text) = meshes.of_value(parser, attribute, manual)?;
    let inner = text.strip_prefix("#sdy.sharding").unwrap_or(&text);
    let mut instruction = marker(op.body, "Sharding", op.operation.result_type()?.clone(), &op.operands()?);
    instruction.name = op.body.name("sharding");
    instruction.sharding = Some(sharding.into());
    add_attribute(&mut instruction, SHARDING, format!("#sdy.sharding_per_value<[{inner}]>"));
    Ok(smallvec![op.body.push(instruction)])
}

impl<'a> Converter<'a, '_> {
    /// Notes a mesh that an op declares: Shardy's, or a dictionary that StableHLO writes where it does not know Shardy,
    /// `stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}], device_ids = dense<...>}`.
    pub(super) fn add_mesh(&mut self, operation: &Operation<'a>) -> Result<()> {
        let stated = match operation.attributes.get("stablehlo.mesh").map(|stated| &stated.value) {
            Some(Value::Dictionary(fields)) => fields.clone(),
            _ => return self.meshes.add(&mut self.parser, operation),
        };
        let mesh = self.mesh_of_fields(&stated, operation.position)?;
        let name = operation.symbol(&["sym_name"])?.to_owned();
        let axes: Vec<String> = mesh.axes.iter().map(|axis| format!("\"{}\"={}", axis.name, axis.size)).collect();
        let mut text = format!("[{}]", axes.join(", "));
        if !mesh.device_ids.is_empty() {
            let devices: Vec<String> = mesh.device_ids.iter().map(i64::to_string).collect();
            text += &format!(", device_ids=[{}]", devices.join(", "));
        }
        let axes = mesh.axes.into_iter().map(|axis| (axis.name, axis.size)).collect();
        self.meshes.0.push(ShardyMesh { name, axes, devices: mesh.device_ids, text });
        Ok(())
    }

    /// Groups of devices along axes of a mesh: `@mesh`, `#sdy.mesh<["x"=2]>` or
    /// `#stablehlo.mesh<axes = [<name = "x", size = 2>]>`.
    pub(super) fn mesh_groups(
        &mut self,
        mesh: &Attribute<'a>,
        axes: &[Attribute<'a>],
    ) -> Result<Box<MeshAxesReplicaGroupListProto>> {
        let position = mesh.span.start;
        let mesh = match &mesh.value {
            Value::Symbol(name) => self.meshes.find(name, mesh.span.start)?.proto(),
            Value::Dialect { name: "sdy.mesh", body } => {
                let lexer = self.parser.lexer;
                read_mesh(lexer.part(*body), String::new(), lexer.slice(*body))?.proto()
            }
            Value::Dialect { body, .. } => self.stablehlo_mesh(*body)?,
            _ => return mesh.fault("mesh", "@mesh or #stablehlo.mesh<...>"),
        };
        // Each collective has a mesh of its own, however short its text is.
        let names: usize = mesh.axes.iter().map(|axis| size_of::<MeshAxis>() + axis.name.len()).sum();
        self.parser.memory.take(names + size_of_val(mesh.device_ids.as_slice()), position)?;
        let axes = axes.iter().map(|axis| self.axis_ref(axis, &mesh)).collect::<Result<_>>()?;
        Ok(Box::new(MeshAxesReplicaGroupListProto { mesh: Some(mesh), axes }))
    }

    /// `axes = [<name = "x", size = 2>, <name = "y", size = 4>], device_ids = dense<[1, 0]> : tensor<2xi64>`
    fn stablehlo_mesh(&mut self, body: Span) -> Result<MeshProto> {
        let fields = self.parser.fields(body)?;
        self.mesh_of_fields(&fields, body.start)
    }

    fn mesh_of_fields(&mut self, fields: &Attributes<'a>, position: usize) -> Result<MeshProto> {
        let mut mesh = MeshProto::default();
        let Some(axes) = fields.get("axes") else { return fault(position, "expected the axes of a mesh") };
        for axis in axes.list("axes")? {
            let own = match &axis.value {
                Value::Dictionary(own) => own.clone(),
                _ => self.parser.fields(dialect_body(axis)?)?,
            };
            let (Some(name), Some(size)) = (own.get("name"), own.get("size")) else {
                return axis.fault("an axis", "<name = \"x\", size = 2>");
            };
            let (name, size) = (name.string("name")?, size.integer("size")?);
            if size < 1 {
                return axis.fault("an axis", "a size from 1 on");
            }
            mesh.axes.push(MeshAxis { name, size });
        }
        if let Some(devices) = fields.get("device_ids") {
            mesh.device_ids = self.integers_of(devices, "device_ids")?;
        }
        Ok(mesh)
    }

    /// `#stablehlo.axis_ref<name = "x", sub_axis_info = (1)2>`
    fn axis_ref(&self, attribute: &Attribute<'a>, mesh: &MeshProto) -> Result<AxisRefProto> {
        let mut lexer = self.parser.lexer.part(match attribute.value {
            // Its name alone.
            Value::String(_) => attribute.span,
            _ => dialect_body(attribute)?,
        });
        if lexer.eat_word("name") {
            lexer.expect("=", "after \"name\"")?;
        }
        let name = lexer.string()?;
        let Some(index) = mesh.axes.iter().position(|axis| axis.name == name) else {
            let near = did_you_mean(&name, mesh.axes.iter().map(|axis| axis.name.as_str()));
            return fault(attribute.span.start, format!("the mesh has no axis \"{name}\"{near}"));
        };
        let has_part = lexer.eat(":") || lexer.eat(",") && lexer.eat_word("sub_axis_info") && lexer.eat("=");
        let sub_axis_info = match has_part {
            true => Some(part(&mut lexer)?),
            false => None,
        };
        let sub_axis_info = sub_axis_info.map(|(pre_size, size)| SubAxis { pre_size, size });
        Ok(AxisRefProto { mesh_axis_index: index as i64, sub_axis_info })
    }

    /// The text of a list of shardings, with its brackets. The short form has the list as it is.
    fn list_text(&self, operation: &Operation<'a>, name: &str) -> Result<String> {
        let attribute = operation.required(&[name])?;
        match &attribute.value {
            Value::Dialect { name: kind, body } if *kind == name => Ok(format!("[{}]", self.parser.lexer.slice(*body))),
            Value::Dialect { body, .. } => Ok(self.parser.lexer.slice(*body).to_owned()),
            _ => attribute.fault(name, "a list of shardings"),
        }
    }

    /// The names in `{"data", "fsdp"}`.
    fn axes(&self, operation: &Operation<'a>) -> Result<Vec<String>> {
        axis_names(self.parser.lexer.part(dialect_body(operation.required(&["manual_axes"])?)?))
    }
}

/// A region with the shapes of one device: a call between two custom calls that change shapes.
fn manual_computation(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operands, operation) = (op.operands()?, op.operation);
    let axes = op.converter.axes(operation)?;
    let quoted: Vec<String> = axes.iter().map(|axis| format!("\"{axis}\"")).collect();
    let manual_text = format!("#sdy<manual_axes{{{}}}>", quoted.join(", "));
    let region = operation.region(0)?;
    let count = region.arguments.len();
    if count != operands.len() {
        return operation.fault(format!("it has {} operands, and its region {count} arguments", operands.len()));
    }
    // Changes the shapes of values between those of all devices and of one.
    let change = |op: &mut Conversion<'_, '_, '_>, [target, name, key]: [&str; 3], shapes: Vec<ShapeProto>, from| {
        let count = shapes.len();
        let mut instruction = marker(op.body, &format!("xla.sdy.{target}"), one_or_tuple(shapes), from);
        instruction.name = op.body.name(name);
        instruction.custom_call_has_side_effect = true;
        add_attribute(&mut instruction, "xla.sdy.manual_axes", manual_text.clone());
        let list = op.converter.list_text(op.operation, key)?;
        add_attribute(&mut instruction, &format!("xla.sdy.{key}"), format!("#sdy.sharding_per_value<{list}>"));
        let place = op.body.push(instruction);
        Ok(op.body.results(place, count))
    };
    let arguments = match count {
        0 => Sites::new(),
        _ => {
            let shapes = region.arguments.iter().map(|argument| ShapeProto::clone(&argument.shape)).collect();
            change(op, ["GlobalToLocalShape", "global_to_local", "in_shardings"], shapes, &operands)?
        }
    };
    let outer = op.converter.manual.len();
    op.converter.manual.extend(axes);
    let called = op.applied(0, "xla.sdy.manual_computation_body")?;
    op.converter.manual.truncate(outer);
    let computation = usize::try_from(called).ok().and_then(|id| op.converter.computations.get(id));
    let shape = computation.and_then(|it| it.program_shape.as_ref()?.result.clone()).unwrap_or_default();
    let results = operation.result_shapes()?;
    let local_count = if results.len() == 1 { 1 } else { shape.tuple_shapes.len() };
    if results.len() != local_count {
        return operation.fault(format!("it has {} results, and its region returns {local_count}", results.len()));
    }
    let mut call = op.body.instruction("call", shape, &arguments);
    call.called_computation_ids = vec![called];
    add_attribute(&mut call, "inlineable", "false".to_owned());
    let call = op.body.push(call);
    let local = op.body.results(call, results.len());
    match results.is_empty() {
        true => Ok(local),
        false => change(op, ["LocalToGlobalShape", "local_to_global", "out_shardings"], results, &local),
    }
}

fn propagation_barrier(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let direction = op.operation.required(&["allowed_direction"])?;
    let text = match &direction.value {
        Value::Integer(number) => number.to_string(),
        _ => op.converter.last_word(direction)?.0.to_owned(),
    };
    let shape = op.operation.result_type()?.clone();
    let mut instruction = marker(op.body, "xla.sdy.PropagationBarrier", shape, &op.operands()?);
    add_attribute(&mut instruction, "xla.sdy.allowed_direction", text);
    Ok(smallvec![op.body.push(instruction)])
}

fn sharding_group(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let mut instruction = marker(op.body, "xla.sdy.ShardingGroup", one_or_tuple(Vec::new()), &op.operands()?);
    instruction.custom_call_has_side_effect = true;
    let group = op.operation.integer(&["group_id"])?;
    add_attribute(&mut instruction, "xla.sdy.sharding_group_id", format!("{group} : i64"));
    op.body.push(instruction);
    Ok(Sites::new())
}

/// Converts an op that Shardy adds while it propagates, or a sum of parts that its global shape does not show: its
/// result is its operand, as XLA has it.
fn unchanged(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    op.operands()
}

/// Shardy's collectives have global shapes: they say how a value is split from here on, which XLA writes as a copy with
/// that sharding. Its partitioner makes the collective.
fn resharded(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let attribute = op.operation.required(&["out_sharding"])?;
    let Converter { parser, meshes, manual, .. } = &mut *op.converter;
    let (sharding, text) = meshes.of_value(parser, attribute, manual)?;
    let inner = text.strip_prefix("#sdy.sharding").unwrap_or(&text);
    let list = format!("#sdy.sharding_per_value<[{inner}]>");
    op.single("copy", |instruction| {
        instruction.sharding = Some(sharding.into());
        add_attribute(instruction, SHARDING, list);
    })
}

/// A region that has a name: the call of a computation of this name.
fn named_computation(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operands, operation) = (op.operands()?, op.operation);
    let count = operation.region(0)?.arguments.len();
    if count != operands.len() {
        return operation.fault(format!("it has {} operands, and its region {count} arguments", operands.len()));
    }
    let name = super::identifier(&operation.required(&["name"])?.string("name")?);
    let called = op.converter.named(op.body, operation, &name)?;
    let mut lists = Vec::new();
    for key in ["in_shardings", "out_shardings"] {
        if operation.attributes.get(key).is_some() {
            let list = op.converter.list_text(operation, key)?;
            lists.push((format!("xla.sdy.{key}"), format!("#sdy.sharding_per_value<{list}>")));
        }
    }
    op.calling("call", vec![called], |instruction| {
        lists.into_iter().for_each(|(key, list)| add_attribute(instruction, &key, list));
    })
}
