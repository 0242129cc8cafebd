//! Ops that communicate.

use super::super::attribute::Value;
use super::super::operation::Operation;
use super::body::{Body, Place, Places};
use super::regions::one_or_tuple;
use super::{Converter, Rule};
use crate::parse::{Result, array, fault};
use crate::proto::{HloInstructionProto, PrimitiveType, ReplicaGroup, ShapeProto, SourceTarget};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.all_gather", all_gather),
    ("stablehlo.all_reduce", all_reduce),
    ("stablehlo.reduce_scatter", reduce_scatter),
    ("stablehlo.all_to_all", all_to_all),
    ("stablehlo.collective_permute", collective_permute),
    ("stablehlo.collective_broadcast", collective_broadcast),
];

/// The attributes that all collectives may have.
struct Common {
    channel: i64,
    groups: Vec<ReplicaGroup>,
    use_global_device_ids: bool,
}

impl Common {
    fn of<'a>(converter: &mut Converter<'a, '_>, operation: &Operation<'a>) -> Result<Common> {
        let channel = match operation.attributes.get("channel_handle") {
            Some(_) => converter.numbers(operation, "channel_handle")?.one("handle"),
            None => operation.optional_integer("channel_id")?.unwrap_or(0),
        };
        let groups = match operation.attributes.get("replica_groups") {
            Some(_) => table(converter, operation, "replica_groups")?,
            None => Vec::new(),
        };
        // Groups of several sizes are filled up to one.
        let group =
            |row: Vec<i64>| ReplicaGroup { replica_ids: row.into_iter().filter(|&device| device != -1).collect() };
        let groups = groups.into_iter().map(group).filter(|group| !group.replica_ids.is_empty()).collect();
        Ok(Common { channel, groups, use_global_device_ids: operation.flag("use_global_device_ids")? })
    }

    fn set(&self, instruction: &mut HloInstructionProto) {
        if self.channel > 0 {
            instruction.channel_id = self.channel;
        }
        instruction.replica_groups = self.groups.clone();
        instruction.use_global_device_ids = self.use_global_device_ids;
    }
}

/// The rows of a table of integers, `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`.
fn table<'a>(converter: &Converter<'a, '_>, operation: &Operation<'a>, name: &str) -> Result<Vec<Vec<i64>>> {
    let attribute = operation.required(&[name])?;
    let values = converter.integers_of(attribute, name)?;
    let columns = match &attribute.value {
        Value::Dense { shape, .. } => match shape.dimensions.as_slice() {
            &[_, columns] => usize::try_from(columns).unwrap_or(0),
            _ => return attribute.fault(name, "a table of two dimensions"),
        },
        Value::List(rows) => rows.first().map_or(Ok(0), |row| row.list(name).map(<[_]>::len))?,
        _ => return attribute.fault(name, "a table, like dense<[[0, 1]]> : tensor<1x2xi64>"),
    };
    match columns {
        0 => Ok(Vec::new()),
        columns => Ok(values.chunks(columns).map(<[i64]>::to_vec).collect()),
    }
}

fn all_gather<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let common = Common::of(converter, operation)?;
    let dimension = operation.integer(&["all_gather_dim"])?;
    body.calling(operation, "all-gather", Vec::new(), |instruction| {
        instruction.dimensions = vec![dimension];
        common.set(instruction);
    })
}

fn all_reduce<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let common = Common::of(converter, operation)?;
    let reducer = converter.applied(body, operation, 0, "reducer")?;
    body.calling(operation, "all-reduce", vec![reducer], |instruction| common.set(instruction))
}

fn reduce_scatter<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let common = Common::of(converter, operation)?;
    let dimension = operation.integer(&["scatter_dimension"])?;
    let reducer = converter.applied(body, operation, 0, "reducer")?;
    body.calling(operation, "reduce-scatter", vec![reducer], |instruction| {
        instruction.dimensions = vec![dimension];
        common.set(instruction);
    })
}

fn collective_permute<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let common = Common::of(converter, operation)?;
    let mut pairs = Vec::new();
    for row in table(converter, operation, "source_target_pairs")? {
        match row.as_slice() {
            &[source, target] => pairs.push(SourceTarget { source, target }),
            _ => return operation.fault("expected pairs of a source and a target"),
        }
    }
    body.calling(operation, "collective-permute", Vec::new(), |instruction| {
        common.set(instruction);
        instruction.source_target_pairs = pairs;
    })
}

fn collective_broadcast<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let common = Common::of(converter, operation)?;
    body.calling(operation, "collective-broadcast", Vec::new(), |instruction| common.set(instruction))
}

/// HLO exchanges parts of one dimension and leaves them there. Where they are joined along another dimension, they are
/// moved to it afterwards, as XLA does it.
fn all_to_all<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let common = Common::of(converter, operation)?;
    let split = operation.integer(&["split_dimension"])?;
    let concatenated = operation.integer(&["concat_dimension"])?;
    let parts = operation.integer(&["split_count"])?;
    let operands = body.operands(operation)?;
    let shapes: Vec<ShapeProto> = operands.iter().map(|&place| body.shape(place)).collect();
    let count = shapes.len();
    let mut instruction = body.instruction("all-to-all", one_or_tuple(shapes), &operands);
    instruction.dimensions = vec![split];
    common.set(&mut instruction);
    let exchanged = body.push(instruction);
    let exchanged = body.results(exchanged, count);
    if split == concatenated {
        return Ok(exchanged);
    }
    let results = operation.result_types()?.to_vec();
    if results.len() != count {
        return operation.fault(format!("it has {count} operands and {} results", results.len()));
    }
    let moved = exchanged.into_iter().zip(results);
    moved.map(|(place, result)| moved_parts(body, operation, place, result, [split, concatenated, parts])).collect()
}

/// Moves parts of a dimension to another one.
fn moved_parts<'a>(
    body: &mut Body<'a>,
    operation: &Operation<'a>,
    place: Place,
    result: ShapeProto,
    [split, concatenated, parts]: [i64; 3],
) -> Result<Place> {
    let from = body.shape(place);
    let rank = from.dimensions.len() as i64;
    let is_dimension = |dimension: i64| (0..rank).contains(&dimension);
    if !is_dimension(split) || !is_dimension(concatenated) || parts < 1 {
        return fault(operation.position, format!("{}: its operand has no such dimensions", operation.name));
    }
    let element = PrimitiveType::try_from(from.element_type).unwrap_or_default();
    let (mut apart, mut order) = (Vec::new(), Vec::new());
    for (dimension, &size) in (0..rank).zip(&from.dimensions) {
        if dimension == split {
            apart.extend([parts, size / parts]);
        } else {
            apart.push(size);
        }
        if dimension == concatenated {
            order.push(split);
        }
        order.push(if dimension >= split { dimension + 1 } else { dimension });
    }
    let size_of = |dimension: &i64| usize::try_from(*dimension).ok().and_then(|at| apart.get(at)).copied().unwrap_or(1);
    let transposed = array(element, order.iter().map(size_of).collect());
    let apart = array(element, apart.clone());
    let place = body.simple("reshape", apart, &[place]);
    let mut instruction = body.instruction("transpose", transposed, &[place]);
    instruction.dimensions = order;
    let place = body.push(instruction);
    Ok(body.simple("reshape", result, &[place]))
}
