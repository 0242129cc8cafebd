//! Ops that communicate.

use super::super::attribute::{Attribute, Value};
use super::super::operation::Operation;
use super::body::{Body, Site, Sites};
use super::{Conversion, Rule, one_or_tuple};
use crate::parse::{Result, array};
use crate::proto::{
    HloInstructionProto, MeshAxesReplicaGroupListProto, PrimitiveType, ReplicaGroup, ShapeProto, SourceTarget,
};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.all_gather", all_gather),
    ("stablehlo.all_reduce", all_reduce),
    ("stablehlo.reduce_scatter", reduce_scatter),
    ("stablehlo.all_to_all", all_to_all),
    ("stablehlo.collective_permute", collective_permute),
    ("stablehlo.collective_broadcast", collective_broadcast),
    ("stablehlo.collective_reduce", collective_reduce),
    ("stablehlo.cross-replica-sum", cross_replica_sum),
];

/// The devices of each group.
pub(super) enum Groups {
    Lists(Vec<ReplicaGroup>),
    /// Along axes of a mesh.
    Axes(Box<MeshAxesReplicaGroupListProto>),
}

impl Groups {
    /// Groups of several sizes are filled up to one with -1.
    pub(super) fn of_rows(rows: Vec<Vec<i64>>) -> Groups {
        let group =
            |row: Vec<i64>| ReplicaGroup { replica_ids: row.into_iter().filter(|&device| device != -1).collect() };
        Groups::Lists(rows.into_iter().map(group).filter(|group| !group.replica_ids.is_empty()).collect())
    }
}

/// The attributes that all collectives may have.
pub(super) struct Common {
    pub(super) channel: i64,
    pub(super) groups: Groups,
    pub(super) use_global_device_ids: bool,
}

impl Common {
    fn of(op: &mut Conversion<'_, '_, '_>) -> Result<Common> {
        let channel = match op.operation.attributes.get("channel_handle") {
            Some(_) => op.numbers("channel_handle")?.one("handle"),
            None => op.operation.optional_integer("channel_id")?.unwrap_or(0),
        };
        let groups = match op.operation.attributes.get("replica_groups") {
            Some(attribute) => groups(op, attribute)?,
            None => Groups::Lists(Vec::new()),
        };
        Ok(Common { channel, groups, use_global_device_ids: op.operation.flag("use_global_device_ids")? })
    }

    pub(super) fn set(&self, instruction: &mut HloInstructionProto) {
        if self.channel > 0 {
            instruction.channel_id = self.channel;
        }
        match &self.groups {
            Groups::Lists(lists) => instruction.replica_groups = lists.clone(),
            Groups::Axes(axes) => instruction.mesh_axes_replica_group_list = Some(axes.clone()),
        }
        instruction.use_global_device_ids = self.use_global_device_ids;
    }
}

/// `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>` or `#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [...]>`.
pub(super) fn groups<'a>(op: &mut Conversion<'_, 'a, '_>, attribute: &Attribute<'a>) -> Result<Groups> {
    match &attribute.value {
        Value::Dialect { name, body } if name.ends_with(".replica_group_mesh_axes") => {
            let fields = op.converter.parser.fields(*body)?;
            let (Some(mesh), Some(axes)) = (fields.get("mesh"), fields.get("axes")) else {
                return attribute.fault("replica_groups", "a mesh and axes");
            };
            op.converter.mesh_groups(mesh, axes.list("axes")?).map(Groups::Axes)
        }
        _ => table_of(op, attribute, "replica_groups").map(Groups::of_rows),
    }
}

/// The rows of a table of integers, `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`.
fn table(op: &Conversion<'_, '_, '_>, name: &str) -> Result<Vec<Vec<i64>>> {
    table_of(op, op.operation.required(&[name])?, name)
}

fn table_of<'a>(op: &Conversion<'_, 'a, '_>, attribute: &Attribute<'a>, name: &str) -> Result<Vec<Vec<i64>>> {
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

/// The sum of replicas: an op of 2019, which XLA reads as an all-reduce.
fn cross_replica_sum(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let common = Common::of(op)?;
    let reducer = op.converter.applied_op(op.body, op.operation, "stablehlo.add")?;
    op.calling("all-reduce", vec![reducer], |instruction| common.set(instruction))
}

fn collective_reduce(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    op.operation.fault("HLO has no instruction for a reduction to one device of a group; write an all_reduce")
}

fn all_to_all(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (common, operation) = (Common::of(op)?, op.operation);
    // In `mhlo`, one that exchanges whole operands has no dimension.
    let Some(split) = operation.optional_integer("split_dimension")? else {
        return op.calling("all-to-all", Vec::new(), |instruction| common.set(instruction));
    };
    let concatenated = operation.integer(&["concat_dimension"])?;
    exchange(op, &common, [split, concatenated, operation.integer(&["split_count"])?])
}

/// HLO exchanges parts of one dimension and leaves them there. Where they are joined along another dimension, they are
/// moved to it afterwards, as XLA does it.
pub(super) fn exchange(
    op: &mut Conversion<'_, '_, '_>,
    common: &Common,
    [split, concatenated, parts]: [i64; 3],
) -> Result<Sites> {
    let (operands, operation) = (op.operands()?, op.operation);
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
    let results = operation.result_shapes()?;
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
        return operation.fault("its operand has no such dimensions");
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
