//! Shardy: meshes, shardings, and regions that are manual.
//!
//! Everything becomes what XLA writes when it hands Shardy's dialect on as HLO: tiles, beside Shardy's own text in the
//! frontend attributes `xla.sdy.*`, and custom calls with names that begin so.

use std::collections::BTreeSet;

use prost::Message;
use smallvec::smallvec;

use super::super::attribute::{Attribute, Attributes, Value};
use super::super::lexer::{Lexer, Span};
use super::super::operation::Operation;
use super::super::parser::Parser;
use super::body::{Body, Site, Sites};
use super::{Conversion, Converter, Rule, one_or_tuple};
use crate::parse::{Result, fault, parse_sharding};
use crate::proto::axis_ref_proto::SubAxis;
use crate::proto::mesh_proto::MeshAxis;
use crate::proto::op_sharding::Type;
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

struct ShardyMesh {
    name: String,
    axes: Vec<(String, i64)>,
    /// The devices in the order of the axes; empty if they are in order of their numbers.
    devices: Vec<i64>,
    /// The text between the angle brackets.
    text: String,
}

impl ShardyMesh {
    fn proto(&self) -> MeshProto {
        let axes = self.axes.iter().map(|(name, size)| MeshAxis { name: name.clone(), size: *size });
        MeshProto { axes: axes.collect(), device_ids: self.devices.clone(), ..MeshProto::default() }
    }
}

#[derive(Default)]
pub(super) struct Meshes(Vec<ShardyMesh>);

/// An axis of a mesh, or a part of one: the number of devices before the part in its axis, and in it.
struct AxisPart {
    axis: usize,
    part: Option<(i64, i64)>,
}

impl Meshes {
    /// Notes what `sdy.mesh @name = <["data"=2]>` declares.
    pub(super) fn add<'a>(&mut self, parser: &mut Parser<'a>, operation: &Operation<'a>) -> Result<()> {
        let attribute = operation.required(&["mesh"])?;
        let Value::Dialect { body, .. } = &attribute.value else { return attribute.fault("mesh", "<[\"data\"=2]>") };
        let name = operation.symbol(&["sym_name"])?.to_owned();
        let mesh = read_mesh(parser.lexer.part(*body), name, parser.lexer.slice(*body))?;
        self.0.push(mesh);
        Ok(())
    }

    fn find(&self, name: &str, position: usize) -> Result<&ShardyMesh> {
        match self.0.iter().find(|mesh| mesh.name == name) {
            Some(mesh) => Ok(mesh),
            None => {
                let near = did_you_mean(name, self.0.iter().map(|mesh| mesh.name.as_str()));
                fault(position, format!("the module declares no mesh @{name}{near}"))
            }
        }
    }

    /// The attribute of a module that declares all meshes.
    pub(super) fn attribute(&self) -> Option<(String, String)> {
        let each: Vec<String> = self.0.iter().map(|mesh| format!("{} = #sdy.mesh<{}>", mesh.name, mesh.text)).collect();
        (!each.is_empty()).then(|| ("xla.sdy.meshes".to_owned(), format!("{{{}}}", each.join(", "))))
    }

    /// The sharding of one value, `#sdy.sharding<@mesh, [{"data"}, {}]>`, and its text.
    pub(super) fn of_value<'a>(
        &self,
        parser: &mut Parser<'a>,
        attribute: &Attribute<'a>,
        manual: &[String],
    ) -> Result<(OpSharding, String)> {
        let body = dialect_body(attribute)?;
        let sharding = self.sharding(&mut parser.lexer.part(body), manual)?;
        Ok((sharding, format!("#sdy.sharding<{}>", parser.lexer.slice(body))))
    }

    /// The shardings of the results of an op, `#sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>`, and their text.
    pub(super) fn per_value<'a>(
        &self,
        parser: &mut Parser<'a>,
        attribute: &Attribute<'a>,
        manual: &[String],
    ) -> Result<(OpSharding, String)> {
        let body = dialect_body(attribute)?;
        let mut lexer = parser.lexer.part(body);
        lexer.expect("[", "before the shardings of results")?;
        let mut shardings = Vec::new();
        while !lexer.eat("]") {
            // Each may say again what it is.
            lexer.eat("#sdy.sharding");
            let one = lexer.balanced()?;
            shardings.push(self.sharding(&mut parser.lexer.part(one), manual)?);
            lexer.separator(']', "after a sharding")?;
        }
        let sharding = match shardings.as_slice() {
            [one] => one.clone(),
            _ => OpSharding { r#type: Type::Tuple.into(), tuple_shardings: shardings, ..OpSharding::default() },
        };
        Ok((sharding, format!("#sdy.sharding_per_value<{}>", parser.lexer.slice(body))))
    }

    /// `@mesh, [{"data", "fsdp"}, {"x":(1)2, ?}p1], replicated={"y"}`
    fn sharding(&self, lexer: &mut Lexer<'_>, manual: &[String]) -> Result<OpSharding> {
        let start = lexer.here();
        let inline;
        let mesh = if lexer.eat_word("mesh") {
            let body = lexer.balanced()?;
            inline = read_mesh(lexer.part(body), String::new(), lexer.slice(body))?;
            &inline
        } else {
            self.find(&lexer.symbol()?, start)?
        };
        lexer.expect(",", "after the mesh of a sharding")?;
        lexer.expect("[", "before the shardings of dimensions")?;
        let mut dimensions = Vec::new();
        while !lexer.eat("]") {
            dimensions.push(dimension(lexer, mesh)?);
            lexer.separator(']', "after the sharding of a dimension")?;
        }
        match tiles(mesh, &dimensions, manual) {
            Some(sharding) => Ok(sharding),
            None => fault(start, "the parts of axes in this sharding do not divide the axes"),
        }
    }
}

fn dialect_body(attribute: &Attribute<'_>) -> Result<Span> {
    match &attribute.value {
        Value::Dialect { body, .. } => Ok(*body),
        _ => attribute.fault("a sharding", "#sdy.sharding<...>"),
    }
}

/// `["data"=2, "fsdp"=4], device_ids=[0, 2, 1, 3]`
fn read_mesh(mut lexer: Lexer<'_>, name: String, text: &str) -> Result<ShardyMesh> {
    let mut mesh = ShardyMesh { name, axes: Vec::new(), devices: Vec::new(), text: text.to_owned() };
    lexer.expect("[", "before the axes of a mesh")?;
    while !lexer.eat("]") {
        let start = lexer.here();
        let axis = lexer.string()?.into_owned();
        lexer.expect("=", "after the name of an axis")?;
        let size = lexer.integer("the size of an axis")?;
        if size < 1 {
            return fault(start, format!("the axis {axis} has size {size}"));
        }
        mesh.axes.push((axis, size));
        lexer.separator(']', "after an axis")?;
    }
    if lexer.eat(",") {
        if !lexer.eat_word("device_ids") {
            return lexer.unexpected("\"device_ids\" of a mesh");
        }
        lexer.expect("=", "after \"device_ids\"")?;
        lexer.expect("[", "before the devices of a mesh")?;
        while !lexer.eat("]") {
            mesh.devices.push(lexer.integer("the number of a device")?);
            lexer.separator(']', "after a device")?;
        }
    }
    Ok(mesh)
}

/// `(1)2`: the devices before a part in its axis, and in it.
fn part(lexer: &mut Lexer<'_>) -> Result<(i64, i64)> {
    lexer.expect("(", "before the place of a part of an axis")?;
    let before = lexer.integer("the place of a part of an axis")?;
    lexer.expect(")", "after the place of a part of an axis")?;
    Ok((before, lexer.integer("the size of a part of an axis")?))
}

/// `{"data", "fsdp":(1)2, ?}p1`
fn dimension(lexer: &mut Lexer<'_>, mesh: &ShardyMesh) -> Result<Vec<AxisPart>> {
    let mut parts = Vec::new();
    lexer.expect("{", "before the axes of a dimension")?;
    while !lexer.eat("}") {
        let start = lexer.here();
        // An open dimension may be split further.
        if !lexer.eat("?") {
            let name = lexer.string()?;
            let Some(axis) = mesh.axes.iter().position(|(axis, _)| *axis == name) else {
                let near = did_you_mean(&name, mesh.axes.iter().map(|(axis, _)| axis.as_str()));
                return fault(start, format!("the mesh @{} has no axis \"{name}\"{near}", mesh.name));
            };
            let part = match lexer.eat(":") {
                true => Some(part(lexer)?),
                false => None,
            };
            parts.push(AxisPart { axis, part });
        }
        lexer.separator('}', "after an axis")?;
    }
    // The priority of propagation.
    if lexer.peek_word().is_some_and(|word| word.strip_prefix('p').is_some_and(|rest| rest.parse::<u32>().is_ok())) {
        lexer.word();
    }
    Ok(parts)
}

/// A sharding in tiles. Axes are cut where a part of one is used; the devices are an iota over what they are cut into,
/// transposed so that what splits the first dimension varies slowest. The result is `None` if parts do not divide their
/// axes.
fn tiles(mesh: &ShardyMesh, dimensions: &[Vec<AxisPart>], manual: &[String]) -> Option<OpSharding> {
    if let ([], &[device]) = (mesh.axes.as_slice(), mesh.devices.as_slice()) {
        return Some(OpSharding {
            r#type: Type::Maximal.into(),
            tile_assignment_dimensions: vec![1],
            tile_assignment_devices: vec![device],
            ..OpSharding::default()
        });
    }
    let mut borders: Vec<BTreeSet<i64>> = mesh.axes.iter().map(|(_, size)| [1, *size].into()).collect();
    for AxisPart { axis, part } in dimensions.iter().flatten() {
        if let Some((before, size)) = part {
            borders.get_mut(*axis)?.extend([*before, before.checked_mul(*size)?]);
        }
    }
    // Each piece: its axis, and the devices of the axis before it and up to its end.
    let mut pieces: Vec<(usize, i64, i64)> = Vec::new();
    for (axis, borders) in borders.iter().enumerate() {
        for (&from, &to) in borders.iter().zip(borders.iter().skip(1)) {
            if from < 1 || to % from != 0 || to > mesh.axes.get(axis)?.1 {
                return None;
            }
            pieces.push((axis, from, to));
        }
    }
    let size = |piece: usize| pieces.get(piece).map_or(1, |(_, from, to)| to / from);
    let product = |pieces: &[usize]| pieces.iter().try_fold(1i64, |product, &piece| product.checked_mul(size(piece)));
    let inside = |part: &AxisPart| -> Vec<usize> {
        let (from, to) = match part.part {
            Some((before, size)) => (before, before.saturating_mul(size)),
            None => (1, i64::MAX),
        };
        let belongs = |(axis, start, end): &(usize, i64, i64)| *axis == part.axis && *start >= from && *end <= to;
        (0..pieces.len()).filter(|&piece| pieces.get(piece).is_some_and(belongs)).collect()
    };
    let split: Vec<Vec<usize>> =
        dimensions.iter().map(|parts| parts.iter().flat_map(&inside).collect::<Vec<usize>>()).collect();
    let is_manual = |&piece: &usize| {
        let axis = pieces.get(piece).and_then(|(axis, ..)| mesh.axes.get(*axis));
        axis.is_some_and(|(name, _)| manual.contains(name))
    };
    let mut order: Vec<usize> = split.iter().flatten().copied().collect();
    if order.iter().collect::<BTreeSet<_>>().len() != order.len() {
        return None;
    }
    let rest: Vec<usize> = (0..pieces.len()).filter(|piece| !order.contains(piece)).collect();
    let (manual_pieces, replicated): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(is_manual);
    let (manual_count, replicas) = (product(&manual_pieces)?, product(&replicated)?);
    let shards = product(&order)?;
    if shards == 1 && (manual_count == 1 || replicas == 1) {
        let kind = if manual_count == 1 { Type::Replicated } else { Type::Manual };
        return Some(OpSharding { r#type: kind.into(), ..OpSharding::default() });
    }
    let mut sizes = split.iter().map(|pieces| product(pieces)).collect::<Option<Vec<i64>>>()?;
    let mut last_tile_dims = Vec::new();
    for (count, kind) in [(replicas, Type::Replicated), (manual_count, Type::Manual)] {
        if count > 1 {
            sizes.push(count);
            last_tile_dims.push(kind.into());
        }
    }
    order.extend(replicated.iter().chain(&manual_pieces));
    let only_replicas = manual_count == 1;
    let mut sharding = OpSharding {
        r#type: Type::Other.into(),
        tile_assignment_dimensions: sizes,
        iota_reshape_dims: (0..pieces.len()).map(size).collect(),
        iota_transpose_perm: order.iter().map(|&piece| piece as i32).collect(),
        replicate_on_last_tile_dim: only_replicas && replicas > 1,
        last_tile_dims: if only_replicas { Vec::new() } else { last_tile_dims },
        ..OpSharding::default()
    };
    match mesh.devices.is_empty() {
        true => merge_iota(&mut sharding),
        false => list_devices(&mut sharding, &mesh.devices)?,
    }
    Some(sharding)
}

/// Makes one dimension of those that the transpose of an iota leaves beside each other, as XLA does: `[2,4]T(0,1)` is
/// `[8]`.
fn merge_iota(sharding: &mut OpSharding) {
    let sizes = std::mem::take(&mut sharding.iota_reshape_dims);
    let order: Vec<i32> = std::mem::take(&mut sharding.iota_transpose_perm);
    let size = |dimension: i32| usize::try_from(dimension).ok().and_then(|at| sizes.get(at)).copied().unwrap_or(1);
    // Each with its first dimension and its size, in the order of the transpose.
    let mut merged: Vec<(i32, i64)> = Vec::new();
    let mut next = None;
    for dimension in order.into_iter().filter(|&dimension| size(dimension) != 1) {
        match merged.last_mut().filter(|_| next == Some(dimension)) {
            Some((_, product)) => *product *= size(dimension),
            None => merged.push((dimension, size(dimension))),
        }
        // Dimensions of size 1 between two do not part them.
        next = (dimension + 1..sizes.len() as i32).find(|&dimension| size(dimension) != 1);
    }
    let mut in_order = merged.clone();
    in_order.sort_unstable();
    sharding.iota_reshape_dims = in_order.iter().map(|(_, size)| *size).collect();
    let place = |first: &(i32, i64)| in_order.iter().position(|other| other == first);
    sharding.iota_transpose_perm = merged.iter().filter_map(place).map(|place| place as i32).collect();
}

/// Puts a list of devices in the place of an iota, for a mesh that has them in an order of its own.
fn list_devices(sharding: &mut OpSharding, devices: &[i64]) -> Option<()> {
    let sizes = std::mem::take(&mut sharding.iota_reshape_dims);
    let order = std::mem::take(&mut sharding.iota_transpose_perm);
    let mut places = vec![0usize];
    for &piece in &order {
        let piece = usize::try_from(piece).ok()?;
        let size = usize::try_from(*sizes.get(piece)?).ok()?;
        let inner = sizes.get(piece + 1..)?.iter().try_fold(1i64, |product, &size| product.checked_mul(size))?;
        let stride = usize::try_from(inner).ok()?;
        // No more places than devices that are written down.
        if places.len().checked_mul(size)? > devices.len() {
            return None;
        }
        places = places.iter().flat_map(|&place| (0..size).map(move |at| place + at * stride)).collect();
    }
    sharding.tile_assignment_devices =
        places.iter().map(|&place| devices.get(place).copied()).collect::<Option<_>>()?;
    Some(())
}

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
        let mut lexer = self.parser.lexer.part(dialect_body(operation.required(&["manual_axes"])?)?);
        // The generic form says again what they are.
        if lexer.eat_word("manual_axes") {
            let body = lexer.balanced()?;
            lexer = self.parser.lexer.part(body);
        }
        let mut axes = Vec::new();
        while !lexer.is_at_end() {
            axes.push(lexer.string()?.into_owned());
            if !lexer.eat(",") && !lexer.is_at_end() {
                return lexer.unexpected("',' after an axis");
            }
        }
        Ok(axes)
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
