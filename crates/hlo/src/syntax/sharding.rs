//! Shardings: in tiles (`{devices=[2,4]<=[8]}`) and by the axes of a mesh (`{mesh['x'=8], [{'x'}, {}]}`).

use super::groups::ONE_DEVICE;
use super::{List, Value, emit};
use crate::parse::{Parser, Result, fault};
use crate::proto::named_sharding_proto::{DimensionSharding, ReductionOpProto};
use crate::proto::op_sharding::{ShardGroupType, Type};
use crate::proto::{AxisRefProto, MeshProto, NamedShardingProto, OpMetadata, OpSharding};
use crate::text::Printer;

/// The types that a word says.
const TYPES: [(&str, Type); 5] = [
    ("replicated", Type::Replicated),
    ("maximal", Type::Maximal),
    ("manual", Type::Manual),
    ("unknown", Type::Unknown),
    ("unreduced", Type::Unreduced),
];

/// The word of a type in a list of types; XLA has none for some.
fn type_word(kind: Type) -> &'static str {
    let word = TYPES.iter().find(|(_, other)| *other == kind && kind != Type::Unknown);
    word.map_or("error_type.", |(word, _)| *word)
}

fn type_of(word: &str) -> Option<Type> {
    TYPES.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
}

/// A sharding, or `{...}` around one for each leaf of a tuple.
impl Value for OpSharding {
    fn print(&self, printer: &mut Printer<'_>) {
        if self.r#type() == Type::Tuple {
            printer.text("{");
            for (index, element) in self.tuple_shardings.iter().enumerate() {
                // XLA puts these comments between the comma and the element with a space, unlike elsewhere.
                printer.separator(index);
                element.print(printer);
            }
            printer.text("}");
            return;
        }
        if let Some(named) = &self.named_sharding {
            print_named(printer, named);
            return;
        }
        printer.text("{");
        match self.r#type() {
            Type::Other | Type::Tuple => print_tiles(printer, self),
            Type::Unknown => printer.text("unknown"),
            Type::Maximal => emit!(printer, "maximal device=", self.tile_assignment_devices.first().unwrap_or(&0)),
            kind => printer.text(type_word(kind)),
        }
        if self.is_shard_group {
            printer.text(match self.shard_group_type() {
                ShardGroupType::As => " shard_as ",
                ShardGroupType::Like => " shard_like ",
            });
            printer.number(self.shard_group_id);
        }
        if printer.options.metadata && !self.metadata.is_empty() {
            printer.text(" metadata=");
            match self.metadata.as_slice() {
                [metadata] => metadata.print(printer),
                _ => self.metadata.print(printer),
            }
        }
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<OpSharding> {
        if parser.lexer.peek() == Some(b'{') && matches!(parser.lexer.peek_second(), Some(b'{' | b'}')) {
            let tuple_shardings = parser.list_of(b'{', b'}', |parser| parser.nested(OpSharding::read))?;
            return Ok(OpSharding { r#type: Type::Tuple.into(), tuple_shardings, ..Default::default() });
        }
        parser.lexer.expect(b'{', "before a sharding")?;
        let start = parser.lexer.here();
        if parser.lexer.peek_word().is_some_and(|word| word == "mesh" || ONE_DEVICE.contains(&word)) {
            // The named form overrides the type, which XLA leaves at its default.
            let named = read_named(parser)?;
            return Ok(OpSharding { named_sharding: Some(Box::new(named)), ..Default::default() });
        }
        let mut tiles = Tiles::default();
        while !parser.lexer.eat(b'}') {
            tiles.read_part(parser)?;
        }
        tiles.finish(start)
    }
}

fn print_tiles(printer: &mut Printer<'_>, sharding: &OpSharding) {
    emit!(printer, "devices=[", &List(&sharding.tile_assignment_dimensions), "]");
    if sharding.iota_reshape_dims.is_empty() {
        emit!(printer, &List(&sharding.tile_assignment_devices));
    } else {
        printer.text("<=");
        printer.iota(&sharding.iota_reshape_dims, &sharding.iota_transpose_perm);
    }
    if sharding.replicate_on_last_tile_dim {
        printer.text(" last_tile_dim_replicate");
    }
    if !sharding.last_tile_dims.is_empty() {
        printer.text(" last_tile_dims={");
        printer.separated(sharding.last_tile_dims(), ", ", |printer, kind| printer.text(type_word(kind)));
        printer.text("}");
    }
}

/// The content of one sharding, before its type is known.
#[derive(Default)]
struct Tiles {
    /// The last of `replicated`, `manual` and so on.
    keyword: Option<Type>,
    device: Option<i64>,
    sharding: OpSharding,
}

impl Tiles {
    fn read_part(&mut self, parser: &mut Parser<'_>) -> Result<()> {
        let start = parser.lexer.here();
        let sharding = &mut self.sharding;
        let word = parser.lexer.expect_word("a part of a sharding or '}'")?;
        if let Some(keyword) = type_of(word) {
            self.keyword = Some(keyword);
            if keyword == Type::Unreduced && parser.lexer.eat(b'=') {
                // Where no mesh is named, XLA keeps it so.
                let op_name = read_reduction(parser)?.as_str_name().to_owned();
                let op_type = "sdy::reduction_op".to_owned();
                sharding.metadata.push(OpMetadata { op_type, op_name, ..Default::default() });
            }
            return Ok(());
        }
        match word {
            "last_tile_dim_replicate" => sharding.replicate_on_last_tile_dim = true,
            "shard_as" | "shard_like" => {
                sharding.is_shard_group = true;
                sharding.shard_group_id = parser.lexer.integer()?;
                let kind = if word == "shard_as" { ShardGroupType::As } else { ShardGroupType::Like };
                sharding.shard_group_type = kind.into();
            }
            _ => {
                if !parser.lexer.eat(b'=') {
                    return fault(
                        start,
                        format!(
                            "\"{word}\" is no part of a sharding; those are replicated, manual, maximal, unreduced, \
                             unknown, device=, devices=, last_tile_dim_replicate, last_tile_dims=, shard_as, \
                             shard_like and metadata="
                        ),
                    );
                }
                match word {
                    "device" => self.device = Some(parser.lexer.integer()?),
                    "devices" => read_devices(parser, sharding)?,
                    "last_tile_dims" => sharding.last_tile_dims = read_types(parser)?,
                    "metadata" => sharding.metadata = read_metadata(parser)?,
                    _ => {
                        return fault(
                            start,
                            format!("a sharding has device, devices, last_tile_dims and metadata, found \"{word}\""),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(self, start: usize) -> Result<OpSharding> {
        let Tiles { keyword, device, mut sharding } = self;
        let has_tiles = !sharding.tile_assignment_dimensions.is_empty();
        match keyword {
            Some(Type::Maximal) => match device {
                Some(device) if !has_tiles => {
                    sharding.tile_assignment_devices = vec![device];
                }
                _ => return fault(start, "a maximal sharding needs device= and nothing else"),
            },
            Some(_) if has_tiles || device.is_some() => {
                return fault(start, "a sharding with this keyword has no devices");
            }
            None if !has_tiles => return fault(start, "a sharding needs a keyword, like replicated, or devices="),
            _ => {}
        }
        sharding.r#type = keyword.unwrap_or(Type::Other).into();
        Ok(sharding)
    }
}

/// `[2,4]<=[8]`, `[2,4]<=[4,2]T(1,0)`, `[2,2]0,1,2,3`.
fn read_devices(parser: &mut Parser<'_>, sharding: &mut OpSharding) -> Result<()> {
    sharding.tile_assignment_dimensions = parser.items(b'[', b']')?;
    if parser.lexer.eat_symbol("<=") {
        (sharding.iota_reshape_dims, sharding.iota_transpose_perm) = parser.iota()?;
        return Ok(());
    }
    loop {
        sharding.tile_assignment_devices.push(parser.lexer.integer()?);
        if !parser.lexer.eat(b',') {
            return Ok(());
        }
    }
}

/// `{manual, replicated}`.
fn read_types(parser: &mut Parser<'_>) -> Result<Vec<i32>> {
    parser.list_of(b'{', b'}', |parser| {
        let start = parser.lexer.here();
        let word = parser.lexer.expect_word("manual, maximal, replicated or unreduced")?;
        match type_of(word) {
            Some(kind) if kind != Type::Unknown => Ok(kind.into()),
            _ => fault(start, format!("expected manual, maximal, replicated or unreduced, found \"{word}\"")),
        }
    })
}

/// `{...}` or `{{...}, {...}}`.
fn read_metadata(parser: &mut Parser<'_>) -> Result<Vec<OpMetadata>> {
    match parser.lexer.peek_second() {
        Some(b'{') => Value::read(parser),
        _ => Ok(vec![OpMetadata::read(parser)?]),
    }
}

/// How the parts of an unreduced value are joined.
const REDUCTIONS: [(&str, ReductionOpProto); 3] =
    [("sum", ReductionOpProto::Sum), ("max", ReductionOpProto::Max), ("min", ReductionOpProto::Min)];

fn read_reduction(parser: &mut Parser<'_>) -> Result<ReductionOpProto> {
    let start = parser.lexer.here();
    let word = parser.lexer.expect_word("sum, max or min")?;
    match REDUCTIONS.iter().find(|(name, _)| *name == word) {
        Some((_, reduction)) => Ok(*reduction),
        None => fault(start, format!("unreduced parts are joined by sum, max or min, found \"{word}\"")),
    }
}

fn print_named(printer: &mut Printer<'_>, sharding: &NamedShardingProto) {
    let default = MeshProto::default();
    let mesh = sharding.mesh.as_ref().unwrap_or(&default);
    emit!(printer, "{", mesh);
    let unsplit = sharding.dim_shardings.iter().all(|dimension| dimension.axes.is_empty() && dimension.is_closed);
    let covers_mesh = |axes: &[AxisRefProto]| !axes.is_empty() && axes == whole(mesh);
    let maximal = mesh.axes.is_empty() && !mesh.device_ids.is_empty();
    let reduction = REDUCTIONS.iter().find(|(_, other)| *other == sharding.reduction_op());
    let reduction = reduction.map_or("", |(name, _)| if *name == "sum" { "" } else { name });
    let no_axes = sharding.unreduced_axes.is_empty() && sharding.manual_axes.is_empty();
    if maximal {
        // The mesh says it all.
    } else if unsplit && no_axes && sharding.replicated_axes.is_empty() {
        printer.text(", replicated");
    } else if unsplit && covers_mesh(&sharding.unreduced_axes) {
        emit!(printer, ", unreduced", if reduction.is_empty() { "" } else { "=" }, reduction);
    } else if unsplit && covers_mesh(&sharding.manual_axes) {
        printer.text(", manual");
    } else {
        printer.text(", [");
        printer.separated(&sharding.dim_shardings, ", ", |printer, dimension| {
            printer.text("{");
            printer.axes(mesh, &dimension.axes, ", ");
            if !dimension.is_closed {
                printer.text(if dimension.axes.is_empty() { "?" } else { ", ?" });
            }
            printer.text("}");
        });
        printer.text("]");
        for (name, axes) in [
            ("replicated", &sharding.replicated_axes),
            ("unreduced", &sharding.unreduced_axes),
            ("manual", &sharding.manual_axes),
        ] {
            if !axes.is_empty() {
                emit!(printer, ", ", name, "=", if name == "unreduced" { reduction } else { "" }, "{");
                printer.axes(mesh, axes, ", ");
                printer.text("}");
            }
        }
    }
    if printer.options.metadata && !sharding.metadata.is_empty() {
        emit!(printer, ", metadata=", &sharding.metadata);
    }
    printer.text("}");
}

/// Reads a named sharding from the mesh on; the opening brace is read already.
fn read_named(parser: &mut Parser<'_>) -> Result<NamedShardingProto> {
    let mesh = MeshProto::read(parser)?;
    let mut named = NamedShardingProto::default();
    while !parser.lexer.eat(b'}') {
        parser.lexer.eat(b',');
        let start = parser.lexer.here();
        if parser.lexer.peek() == Some(b'[') {
            named.dim_shardings = parser.list_of(b'[', b']', |parser| read_dimension(parser, &mesh))?;
            continue;
        }
        let word = parser.lexer.expect_word("dimensions in brackets, replicated, unreduced, manual or metadata")?;
        let has_value = parser.lexer.eat(b'=');
        match (word, has_value) {
            ("replicated", false) => {}
            ("unreduced", false) => named.unreduced_axes = whole(&mesh),
            ("manual", false) => named.manual_axes = whole(&mesh),
            ("replicated", true) => named.replicated_axes = parser.axes(&mesh)?,
            ("unreduced", true) => read_unreduced(parser, &mesh, &mut named)?,
            ("manual", true) => named.manual_axes = parser.axes(&mesh)?,
            ("metadata", true) => named.metadata = read_metadata(parser)?,
            _ => {
                return fault(
                    start,
                    format!("a sharding of a mesh has replicated, unreduced, manual and metadata, found \"{word}\""),
                );
            }
        }
    }
    named.mesh = Some(mesh);
    Ok(named)
}

/// `{'x'}`, `max{'x'}`, or `max` for all axes.
fn read_unreduced(parser: &mut Parser<'_>, mesh: &MeshProto, named: &mut NamedShardingProto) -> Result<()> {
    if parser.lexer.peek() != Some(b'{') {
        named.reduction_op = read_reduction(parser)?.into();
    }
    named.unreduced_axes = if parser.lexer.peek() == Some(b'{') { parser.axes(mesh)? } else { whole(mesh) };
    Ok(())
}

/// All axes of a mesh.
fn whole(mesh: &MeshProto) -> Vec<AxisRefProto> {
    (0..mesh.axes.len() as i64).map(|mesh_axis_index| AxisRefProto { mesh_axis_index, sub_axis_info: None }).collect()
}

/// `{'x'}`, `{'y', ?}`, `{}`.
fn read_dimension(parser: &mut Parser<'_>, mesh: &MeshProto) -> Result<DimensionSharding> {
    let mut dimension = DimensionSharding { axes: Vec::new(), is_closed: true };
    parser.list(b'{', b'}', |parser| {
        if parser.lexer.eat(b'?') {
            dimension.is_closed = false;
        } else if dimension.is_closed {
            dimension.axes.push(parser.axis(mesh)?);
        } else {
            return parser.lexer.unexpected("'}' after '?'");
        }
        Ok(())
    })?;
    Ok(dimension)
}
