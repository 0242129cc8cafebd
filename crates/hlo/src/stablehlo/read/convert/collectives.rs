//! Ops that communicate.

use super::super::attribute::Value;
use super::super::operation::Operation;
use super::body::{Body, Site, Sites};
use super::{Conversion, Rule, one_or_tuple};
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
    fn of(op: &mut Conversion<'_, '_, '_>) -> Result<Common> {
        let channel = match op.operation.attributes.get("channel_handle") {
            Some(_) => op.numbers("channel_handle")?.one("handle"),
            None => op.operation.optional_integer("channel_id")?.unwrap_or(0),
        };
        let groups = match op.operation.attributes.get("replica_groups") {
            Some(_) => table(op, "replica_groups")?,
            None => Vec::new(),
        };
        // Groups of several sizes are filled up to one.
        let group =
            |row: Vec<i64>| ReplicaGroup { replica_ids: row.into_iter().filter(|&device| device != -1).collect() };
        let groups = groups.into_iter().map(group).filter(|group| !group.replica_ids.is_empty()).collect();
        Ok(Common { channel, groups, use_global_device_ids: op.operation.flag("use_global_device_ids")? })
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
fn table(op: &Conversion<'_, '_, '_>, name: &str) -> Result<Vec<Vec<i64>>> {
    let attribute = op.operation.required(&[name])?;
    let values = op.converter.integers_of(attribute, name)?;
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

fn all_gather(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let common = Common::of(op)?;
    let dimension = op.operation.integer(&["all_gather_dim"])?;
    op.calling("all-gather", Vec::new(), |instruction| {
        instruction.dimensions = vec![dimension];
        common.set(instruction);
    })
}

fn all_reduce(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let common = Common::of(op)?;
    let reducer = op.applied(0, "reducer")?;
    op.calling("all-reduce", vec![reducer], |instruction| common.set(instruction))
}

fn reduce_scatter(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let common = Common::of(op)?;
    let dimension = op.operation.integer(&["scatter_dimension"])?;
    let reducer = op.applied(0, "reducer")?;
    op.calling("reduce-scatter", vec![reducer], |instruction| {
        instruction.dimensions = vec![dimension];
        common.set(instruction);
    })
}

fn collective_permute(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let common = Common::of(op)?;
    let pair = |row: Vec<i64>| match row[..] {
        [source, target] => Some(SourceTarget { source, target }),
        _ => None,
    };
    let Some(pairs) = table(op, "source_target_pairs")?.into_iter().map(pair).collect() else {
        return op.operation.fault("expected pairs of a source and a target");
    };
    op.calling("collective-permute", Vec::new(), |instruction| {
        common.set(instruction);
        instruction.source_target_pairs = pairs;
    })
}

fn collective_broadcast(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let common = Common::of(op)?;
    op.calling("collective-broadcast", Vec::new(), |instruction| common.set(instruction))
}

/// HLO exchanges parts of one dimension and leaves them there. Where they are joined along another dimension, they are
/// moved to it afterwards, as XLA does it.
fn all_to_all(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (common, operation) = (Common::of(op)?, op.operation);
    let split = operation.integer(&["split_dimension"])?;
    let concatenated = operation.integer(&["concat_dimension"])?;
    let parts = operation.integer(&["split_count"])?;
    let operands = op.operands()?;
    let shapes: Vec<ShapeProto> = operands.iter().map(|&place| op.body.shape(place)).collect();
    let count = shapes.len();
    let mut instruction = op.body.instruction("all-to-all", one_or_tuple(shapes), &operands);
    instruction.dimensions = vec![split];
    common.set(&mut instruction);
    let exchanged = op.body.push(instruction);
    let exchanged = op.body.results(exchanged, count);
    if split == concatenated {
        return Ok(exchanged);
    }
    let results = operation.result_types()?.to_vec();
    if results.len() != count {
        return operation.fault(format!("it has {count} operands and {} results", results.len()));
    }
    let moved = exchanged.into_iter().zip(results);
    moved.map(|(place, result)| moved_parts(op.body, operation, place, result, [split, concatenated, parts])).collect()
}

/// Moves parts of a dimension to another one.
fn moved_parts<'a>(
    body: &mut Body<'a>,
    operation: &Operation<'a>,
    place: Site,
    result: ShapeProto,
    [split, concatenated, parts]: [i64; 3],
) -> Result<Site> {
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
