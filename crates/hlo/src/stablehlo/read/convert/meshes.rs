//! Meshes and shardings in Shardy's text, and the tiles that XLA writes for them.

use std::collections::BTreeSet;

use super::super::attribute::{Attribute, Value};
use super::super::lexer::{Lexer, Span};
use super::super::operation::Operation;
use super::super::parser::Parser;
use crate::parse::{ParseError, Result, fault, located};
use crate::proto::mesh_proto::MeshAxis;
use crate::proto::op_sharding::Type;
use crate::proto::{HloModuleProto, MeshProto, OpSharding};
use crate::suggest::did_you_mean;

pub(super) struct ShardyMesh {
    pub(super) name: String,
    pub(super) axes: Vec<(String, i64)>,
    /// The devices in the order of the axes; empty if they are in order of their numbers.
    pub(super) devices: Vec<i64>,
    /// The text between the angle brackets.
    pub(super) text: String,
}

impl ShardyMesh {
    pub(super) fn proto(&self) -> MeshProto {
        let axes = self.axes.iter().map(|(name, size)| MeshAxis { name: name.clone(), size: *size });
        MeshProto { axes: axes.collect(), device_ids: self.devices.clone(), ..MeshProto::default() }
    }
}

#[derive(Default)]
pub(super) struct Meshes(pub(super) Vec<ShardyMesh>);

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

    pub(super) fn find(&self, name: &str, position: usize) -> Result<&ShardyMesh> {
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
        let sharding = self.sharding(&mut parser.lexer.part(body), manual)?.tiles;
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
        let shardings: Vec<OpSharding> =
            self.list(parser.lexer.part(body), manual)?.into_iter().map(|sharding| sharding.tiles).collect();
        let sharding = match shardings.as_slice() {
            [one] => one.clone(),
            _ => OpSharding { r#type: Type::Tuple.into(), tuple_shardings: shardings, ..OpSharding::default() },
        };
        Ok((sharding, format!("#sdy.sharding_per_value<{}>", parser.lexer.slice(body))))
    }

    /// `[<@mesh, [{"data"}, {}]>, <@mesh, []>]`
    fn list(&self, mut lexer: Lexer<'_>, manual: &[String]) -> Result<Vec<ShardyValue>> {
        lexer.expect("[", "before the shardings of values")?;
        let mut shardings = Vec::new();
        while !lexer.eat("]") {
            // Each may say again what it is.
            lexer.eat("#sdy.sharding");
            let one = lexer.balanced()?;
            shardings.push(self.sharding(&mut lexer.part(one), manual)?);
            lexer.separator(']', "after a sharding")?;
        }
        Ok(shardings)
    }

    /// `@mesh, [{"data", "fsdp"}, {"x":(1)2, ?}p1], replicated={"y"}, unreduced=max{"z"}`
    fn sharding(&self, lexer: &mut Lexer<'_>, manual: &[String]) -> Result<ShardyValue> {
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
        let (mut dimensions, mut open) = (Vec::new(), Vec::new());
        while !lexer.eat("]") {
            let (axes, is_open) = dimension(lexer, mesh)?;
            dimensions.push(axes);
            open.push(is_open);
            lexer.separator(']', "after the sharding of a dimension")?;
        }
        let mut unreduced = Vec::new();
        while lexer.eat(",") {
            let is_unreduced = lexer.eat_word("unreduced");
            if !is_unreduced && !lexer.eat_word("replicated") {
                return lexer.unexpected("\"replicated\" or \"unreduced\" of a sharding");
            }
            lexer.expect("=", "before the axes that split no dimension")?;
            if !is_unreduced {
                // Tiles say it of all axes that are left.
                lexer.balanced()?;
                continue;
            }
            // Tiles do not say how the parts are joined.
            let _ = lexer.eat_word("max") || lexer.eat_word("min");
            unreduced = dimension(lexer, mesh)?.0;
        }
        match (tiles(mesh, &dimensions, manual, &unreduced), axes_as_tiles(mesh, manual)) {
            (Some(tiles), Some(manual)) => Ok(ShardyValue { tiles, open, manual }),
            _ => fault(start, "the parts of axes in this sharding do not divide the axes"),
        }
    }
}

pub(super) fn dialect_body(attribute: &Attribute<'_>) -> Result<Span> {
    match &attribute.value {
        Value::Dialect { body, .. } => Ok(*body),
        _ => attribute.fault("a sharding", "#sdy.sharding<...>"),
    }
}

/// `["data"=2, "fsdp"=4], device_ids=[0, 2, 1, 3]`
pub(super) fn read_mesh(mut lexer: Lexer<'_>, name: String, text: &str) -> Result<ShardyMesh> {
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
pub(super) fn part(lexer: &mut Lexer<'_>) -> Result<(i64, i64)> {
    lexer.expect("(", "before the place of a part of an axis")?;
    let before = lexer.integer("the place of a part of an axis")?;
    lexer.expect(")", "after the place of a part of an axis")?;
    Ok((before, lexer.integer("the size of a part of an axis")?))
}

/// `{"data", "fsdp":(1)2, ?}p1`: the axes, and whether the dimension is open.
fn dimension(lexer: &mut Lexer<'_>, mesh: &ShardyMesh) -> Result<(Vec<AxisPart>, bool)> {
    let (mut parts, mut is_open) = (Vec::new(), false);
    lexer.expect("{", "before the axes of a dimension")?;
    while !lexer.eat("}") {
        let start = lexer.here();
        if lexer.eat("?") {
            is_open = true;
        } else {
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
    Ok((parts, is_open))
}

/// A sharding of one dimension over these axes of a mesh.
fn axes_as_tiles(mesh: &ShardyMesh, names: &[String]) -> Option<OpSharding> {
    let own = mesh.axes.iter().enumerate().filter(|(_, (name, _))| names.contains(name));
    let parts = own.map(|(axis, _)| AxisPart { axis, part: None }).collect();
    tiles(mesh, &[parts], &[], &[])
}

/// `{"data", "fsdp"}`, which may say again what it is: `#sdy<manual_axes{"data"}>`, `manual_axes={"data"}`.
pub(super) fn axis_names(mut lexer: Lexer<'_>) -> Result<Vec<String>> {
    let mut axes = Vec::new();
    if lexer.eat_word("manual_axes") {
        lexer.eat("=");
        let body = lexer.balanced()?;
        lexer = lexer.part(body);
    }
    while !lexer.is_at_end() {
        axes.push(lexer.string()?.into_owned());
        if !lexer.eat(",") && !lexer.is_at_end() {
            return lexer.unexpected("',' after an axis");
        }
    }
    Ok(axes)
}

/// The sharding of a value in Shardy's text.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardyValue {
    /// The same in tiles.
    pub tiles: OpSharding,
    /// For each dimension, whether propagation may split it further (`?`).
    pub open: Vec<bool>,
    /// The axes of the value's mesh that are manual here, as the tiles of one dimension that they split.
    pub manual: OpSharding,
}

/// The meshes that a module declares for Shardy, to read what its instructions state in the frontend attributes
/// `xla.sdy.*`.
pub struct ShardyText(Meshes);

impl ShardyText {
    /// The meshes of a module's attribute `xla.sdy.meshes`.
    ///
    /// # Errors
    /// The attribute is not what Shardy's exporter writes.
    pub fn of(module: &HloModuleProto) -> std::result::Result<ShardyText, ParseError> {
        let attributes = module.frontend_attributes.as_ref();
        let Some(text) = attributes.and_then(|attributes| attributes.map.get("xla.sdy.meshes")) else {
            return Ok(ShardyText(Meshes::default()));
        };
        located(text.as_bytes(), || {
            let mut lexer = Lexer::new(text);
            let mut meshes = Meshes::default();
            lexer.expect("{", "before the meshes of a module")?;
            while !lexer.eat("}") {
                let name = match lexer.peek() {
                    Some(b'"') => lexer.string()?.into_owned(),
                    _ => lexer.expect_word("the name of a mesh")?.to_owned(),
                };
                lexer.expect("=", "after the name of a mesh")?;
                lexer.expect("#sdy.mesh", "before the axes of a mesh")?;
                let body = lexer.balanced()?;
                meshes.0.push(read_mesh(lexer.part(body), name, lexer.slice(body))?);
                lexer.separator('}', "after a mesh")?;
            }
            Ok(ShardyText(meshes))
        })
    }

    /// Reads `#sdy.sharding_per_value<[<@mesh, [{"data", ?}, {}]>]>`. `manual_axes` is the text of that attribute where
    /// the values enter or leave a manual region: `#sdy<manual_axes{"data"}>`.
    ///
    /// # Errors
    /// The text is not what Shardy's exporter writes, or names a mesh or an axis that the module does not declare.
    pub fn values(&self, text: &str, manual_axes: Option<&str>) -> std::result::Result<Vec<ShardyValue>, ParseError> {
        let manual = match manual_axes {
            Some(text) => located(text.as_bytes(), || {
                let mut lexer = Lexer::new(text);
                lexer.eat("#sdy");
                let body = lexer.balanced()?;
                axis_names(lexer.part(body))
            })?,
            None => Vec::new(),
        };
        located(text.as_bytes(), || {
            let mut lexer = Lexer::new(text);
            lexer.expect("#sdy.sharding_per_value", "before the shardings of values")?;
            let body = lexer.balanced()?;
            self.0.list(lexer.part(body), &manual)
        })
    }
}

/// A sharding in tiles. Axes are cut where a part of one is used; the devices are an iota over what they are cut into,
/// transposed so that what splits the first dimension varies slowest. The result is `None` if parts do not divide their
/// axes.
fn tiles(
    mesh: &ShardyMesh,
    dimensions: &[Vec<AxisPart>],
    manual: &[String],
    unreduced: &[AxisPart],
) -> Option<OpSharding> {
    if let ([], &[device]) = (mesh.axes.as_slice(), mesh.devices.as_slice()) {
        return Some(OpSharding {
            r#type: Type::Maximal.into(),
            tile_assignment_dimensions: vec![1],
            tile_assignment_devices: vec![device],
            ..OpSharding::default()
        });
    }
    let mut borders: Vec<BTreeSet<i64>> = mesh.axes.iter().map(|(_, size)| [1, *size].into()).collect();
    for AxisPart { axis, part } in dimensions.iter().flatten().chain(unreduced) {
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
    let (manual_pieces, rest): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(is_manual);
    let partial: BTreeSet<usize> = unreduced.iter().flat_map(&inside).collect();
    let (unreduced_pieces, replicated): (Vec<usize>, Vec<usize>) =
        rest.into_iter().partition(|piece| partial.contains(piece));
    let shards = product(&order)?;
    let mut sizes = split.iter().map(|pieces| product(pieces)).collect::<Option<Vec<i64>>>()?;
    let mut kinds = Vec::new();
    for (pieces, kind) in
        [(&replicated, Type::Replicated), (&manual_pieces, Type::Manual), (&unreduced_pieces, Type::Unreduced)]
    {
        let count = product(pieces)?;
        if count > 1 {
            sizes.push(count);
            kinds.push(kind);
        }
        order.extend(pieces);
    }
    if let (1, [] | [_]) = (shards, kinds.as_slice()) {
        let kind = kinds.first().copied().unwrap_or(Type::Replicated);
        return Some(OpSharding { r#type: kind.into(), ..OpSharding::default() });
    }
    let only_replicas = kinds.iter().all(|kind| *kind == Type::Replicated);
    let mut sharding = OpSharding {
        r#type: Type::Other.into(),
        tile_assignment_dimensions: sizes,
        iota_reshape_dims: (0..pieces.len()).map(size).collect(),
        iota_transpose_perm: order.iter().map(|&piece| piece as i32).collect(),
        replicate_on_last_tile_dim: only_replicas && !kinds.is_empty(),
        last_tile_dims: if only_replicas { Vec::new() } else { kinds.into_iter().map(Into::into).collect() },
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
