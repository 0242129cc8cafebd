//! Local graphs on host values: every device of a mesh in lockstep, collectives as exchanges between them.

use meshloom::emit::device_groups;
use meshloom::ir::{Graph, Literal, PortInfo, TensorType};
use meshloom::ops::{Binary, Group, Op, ReduceKind};
use meshloom::sharding::{Mesh, Spec};

use super::moves::{concatenate, cut, paste};
use super::{Known, Lanes, apply, lockstep, present};

/// Runs a local graph. Inputs are whole values; each device gets the part that the port's spec says. The outputs are
/// put together again.
///
/// # Errors
/// An output's replicas differ, or it is left a partial sum.
pub fn run_local(graph: &Graph, mesh: &Mesh, inputs: &[Literal]) -> Result<Vec<Literal>, String> {
    let parts = graph.input_info().iter().zip(inputs).map(|(info, whole)| scattered(whole, info, mesh));
    let outputs = lockstep(graph, parts.collect(), mesh);
    outputs.iter().zip(graph.output_info()).map(|(lanes, info)| together(lanes, info, mesh)).collect()
}

fn spec_of(info: &PortInfo, rank: usize) -> Spec {
    info.spec.clone().unwrap_or_else(|| Spec::replicated(rank))
}

/// Each device's part. Replicas are one literal.
fn scattered(whole: &Literal, info: &PortInfo, mesh: &Mesh) -> Lanes {
    let boxes = spec_of(info, whole.ty().rank()).boxes(mesh, &whole.ty().dims).expect("a spec that divides");
    let mut lanes = Lanes::new();
    for (device, own) in boxes.iter().enumerate() {
        let replica = boxes[..device].iter().position(|other| other == own).map(|other| lanes[other].clone());
        let start: Vec<usize> = own.iter().map(|range| range.start).collect();
        let sizes: Vec<usize> = own.iter().map(ExactSizeIterator::len).collect();
        lanes.push(replica.unwrap_or_else(|| cut(whole, &start, &sizes)));
    }
    lanes
}

/// The whole, from each device's part.
fn together(lanes: &Lanes, info: &PortInfo, mesh: &Mesh) -> Result<Literal, String> {
    let mut ty = lanes[0].ty().clone();
    let spec = spec_of(info, ty.rank());
    if !spec.unreduced().is_empty() {
        return Err(format!("`{}` is left a partial sum: {}", info.path, spec.display(mesh)));
    }
    ty.dims.iter_mut().enumerate().for_each(|(dim, size)| *size *= spec.part_count(mesh, dim));
    let boxes = spec.boxes(mesh, &ty.dims).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; ty.byte_count()];
    for (device, own) in boxes.iter().enumerate() {
        match boxes[..device].iter().position(|other| other == own) {
            Some(other) if lanes[other].bytes() != lanes[device].bytes() => {
                return Err(format!("`{}` differs on devices {other} and {device}, which are replicas", info.path));
            }
            Some(_) => {}
            None => {
                let start: Vec<usize> = own.iter().map(|range| range.start).collect();
                paste(&mut bytes, &ty.dims, &lanes[device], &start);
            }
        }
    }
    Ok(Literal::from_bytes(ty, bytes).expect("as many bytes as the type has"))
}

/// The group of a collective; none for another op.
pub fn group(op: &Op) -> Option<&Group> {
    match op {
        Op::AllGather(op) => Some(&op.group),
        Op::AllReduce(op) => Some(&op.group),
        Op::AllToAll(op) => Some(&op.group),
        Op::AxisIndex(op) => Some(&op.group),
        Op::CollectivePermute(op) => Some(&op.group),
        Op::ReduceScatter(op) => Some(&op.group),
        _ => None,
    }
}

/// The results of a collective on all devices.
pub fn collective(op: &Op, group: &Group, operands: &[&Lanes], mesh: &Mesh) -> Vec<Lanes> {
    // An axis index has a result, but no operand.
    let results = operands.len().max(1);
    let mut lanes: Vec<Vec<Option<Literal>>> = vec![vec![None; mesh.device_count()]; results];
    let mut known = Known::default();
    let present = present(mesh.device_count());
    let waits_for_all = matches!(op, Op::CollectivePermute(_));
    assert!(!waits_for_all || !present.contains(&false), "{}: some devices are in another branch", op.name());
    for devices in device_groups(mesh, &group.axes) {
        assert_eq!(devices.len(), group.size, "{}: a group of the wrong size", op.name());
        let together = devices.iter().all(|&device| present[device] == present[devices[0]]);
        assert!(together, "{}: devices of a group are in different branches", op.name());
        for (index, lanes) in lanes.iter_mut().enumerate() {
            let parts: Vec<&Literal> =
                operands.get(index).map_or(Vec::new(), |lanes| devices.iter().map(|&device| &lanes[device]).collect());
            // Groups that exchange the same values get the same results, so that replicas stay one literal.
            let results = known.of(&parts, || exchange(op, group.size, &parts));
            devices.iter().zip(results).for_each(|(&device, result)| lanes[device] = Some(result.clone()));
        }
    }
    let all = |lanes: Vec<Option<Literal>>| lanes.into_iter().map(|lane| lane.expect("every device is in a group"));
    lanes.into_iter().map(|lanes| all(lanes).collect()).collect()
}

/// The result of each rank of a group.
fn exchange(op: &Op, size: usize, parts: &[&Literal]) -> Vec<Literal> {
    match op {
        Op::AllGather(op) => vec![concatenate(parts, op.dim); size],
        Op::AllReduce(op) => vec![combined(op.kind, parts); size],
        Op::ReduceScatter(op) => {
            let sum = combined(ReduceKind::Sum, parts);
            (0..size).map(|rank| part(&sum, op.dim, rank, size)).collect()
        }
        Op::AllToAll(op) => {
            let received = |rank: usize| {
                let sent: Vec<Literal> = parts.iter().map(|value| part(value, op.dim, rank, size)).collect();
                concatenate(&sent.iter().collect::<Vec<_>>(), op.dim)
            };
            (0..size).map(received).collect()
        }
        Op::CollectivePermute(op) => {
            let ty = parts[0].ty();
            let zeros = Literal::from_bytes(ty.clone(), vec![0; ty.byte_count()]).expect("as many bytes as there are");
            let mut received = vec![zeros; size];
            op.pairs.iter().for_each(|&(from, to)| received[to as usize] = parts[from as usize].clone());
            received
        }
        Op::AxisIndex(_) => (0..size as i32).map(Literal::scalar).collect(),
        other => panic!("{} is no collective", other.name()),
    }
}

/// Parts combined in the order of their ranks.
fn combined(kind: ReduceKind, parts: &[&Literal]) -> Literal {
    let ty: &TensorType = parts[0].ty();
    let combine = |x: Literal, y: &&Literal| apply(&Binary(kind.into()).into(), &[&x, y], &[ty]).swap_remove(0);
    parts[1..].iter().fold(parts[0].clone(), combine)
}

/// One of `count` parts along a dimension.
fn part(value: &Literal, dim: usize, rank: usize, count: usize) -> Literal {
    let mut sizes = value.ty().dims.clone();
    sizes[dim] /= count;
    let mut start = vec![0; sizes.len()];
    start[dim] = rank * sizes[dim];
    cut(value, &start, &sizes)
}
