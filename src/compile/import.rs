//! From a module that somebody else wrote to the program of one device.

use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;

use super::{Error, LowerOptions, Lowered, lower};
use crate::import::import;
use crate::ir::{Graph, Spec, TensorType};
use crate::sharding::{RuleSets, Rules, propagate};

/// Imports a module that is not partitioned yet, partitions it over the mesh that it names, and emits it with the
/// signature that it has. Parameters without a sharding are whole on every device. Results without one are split as
/// propagation finds them.
///
/// The mesh, the rules and the aliases of `options` do not matter: the module states its own.
///
/// # Errors
/// The module cannot be imported ([`ImportError`](crate::import::ImportError)), or the errors of [`lower`].
pub fn lower_module(module: &HloModuleProto, options: &LowerOptions<'_>) -> Result<Lowered, Error> {
    let imported = import(module).map_err(Box::new)?;
    let mut graph = imported.graph;
    if let Some(mesh) = &imported.mesh {
        choose_open_ports(&mut graph, mesh);
    }
    // No value has a name, so there is nothing for rules to say.
    let rules = RuleSets::uniform(Rules::from_pairs(&[]).map_err(Box::new)?).with_strict(false);
    let sharding = imported.mesh.as_ref().map(|mesh| (mesh, &rules));
    lower(&graph, &LowerOptions { sharding, aliases: imported.aliases, exact_ports: true, ..options.clone() })
}

/// Gives specs to the ports that the module leaves open.
fn choose_open_ports(graph: &mut Graph, mesh: &Mesh) {
    let mut inputs = graph.input_info().to_vec();
    for (info, ty) in inputs.iter_mut().zip(graph.input_types()) {
        info.spec.get_or_insert_with(|| Spec::replicated(ty.rank()));
    }
    graph.set_input_info(inputs);
    if graph.output_info().iter().all(|info| info.spec.is_some()) {
        return;
    }
    let shardings = propagate(graph, mesh);
    let mut outputs = graph.output_info().to_vec();
    for (info, &output) in outputs.iter_mut().zip(graph.outputs()) {
        info.spec.get_or_insert_with(|| even(shardings.spec(output), graph.ty(output), mesh));
    }
    graph.set_output_info(outputs);
}

/// A spec without the axes that do not divide their dimension: callers put a result together from equal parts.
fn even(spec: &Spec, ty: &TensorType, mesh: &Mesh) -> Spec {
    let dims = spec.dims().iter().zip(&ty.dims).map(|(axes, &size)| {
        let parts: usize = axes.iter().map(|&axis| mesh.size(axis)).product();
        if size.is_multiple_of(parts) { axes.clone() } else { Default::default() }
    });
    Spec::new(dims)
}
