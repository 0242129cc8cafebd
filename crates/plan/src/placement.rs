//! Where the axes of a plan's mesh lie in the hardware.

use meshloom::analysis::Hardware;
use meshloom::analysis::estimate::{Wire, placement};
use meshloom::sharding::Mesh;

use super::plan::Plan;

/// The parts of the hardware's dimensions that each axis has, by the axis's name.
type Placement = Vec<(String, Vec<(usize, usize)>)>;

/// The plan with its axes in other orders: one for each placement in the hardware that neither the plan nor another
/// order has. `tensor` crosses no network.
pub(super) fn other_placements(plan: &Plan, hardware: &Hardware) -> Vec<Plan> {
    let mut known: Vec<Placement> = placed(plan, hardware).into_iter().collect();
    let mut found = Vec::new();
    for axes in orders(&plan.axes()) {
        let other = plan.in_order(&axes);
        let Some(placement) = placed(&other, hardware) else { continue };
        if !known.contains(&placement) && !crosses_network(&placement, hardware) {
            known.push(placement);
            found.push(other);
        }
    }
    found
}

fn placed(plan: &Plan, hardware: &Hardware) -> Option<Placement> {
    let mesh = Mesh::parse(&plan.mesh(), hardware.device_count()).ok()?;
    let pieces = placement(&mesh, hardware)?;
    let mut placement: Placement = mesh.axes().map(|axis| mesh.name(axis).to_owned()).zip(pieces).collect();
    placement.sort();
    Some(placement)
}

fn crosses_network(placement: &Placement, hardware: &Hardware) -> bool {
    let is_network = |pieces: &Vec<(usize, usize)>| {
        let mut along = pieces.iter().zip(&hardware.dimensions);
        along.any(|((size, _), dimension)| *size > 1 && dimension.wire == Wire::Network)
    };
    placement.iter().any(|(name, pieces)| name == "tensor" && is_network(pieces))
}

/// All orders of the axes.
pub fn orders(axes: &[usize]) -> Vec<Vec<usize>> {
    if axes.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |place: usize| {
        let mut rest = axes.to_vec();
        let first = rest.remove(place);
        orders(&rest).into_iter().map(move |rest| std::iter::once(first).chain(rest).collect())
    };
    (0..axes.len()).flat_map(with_first).collect()
}
