//! The shardings that a module states, as specs over the mesh that it names.

use meshloom_analysis::shardings::axes_of;
use meshloom_analysis::{Devices, device_count, mesh_of};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, OpSharding};

use super::ImportError;
use crate::ir::{Axes, Spec, TensorType};

/// The mesh of a module.
pub(super) struct Constraints {
    pub(super) mesh: Option<Mesh>,
}

impl Constraints {
    pub(super) fn of(module: &HloModuleProto) -> Result<Constraints, ImportError> {
        let Devices { replicas, partitions } = device_count(module, None);
        if replicas > 1 {
            return Err(ImportError::Replicas { replicas });
        }
        match (partitions, mesh_of(module)) {
            (0 | 1, _) => Ok(Constraints { mesh: None }),
            (_, Some(mesh)) => Ok(Constraints { mesh: Some(mesh) }),
            (devices, None) => Err(ImportError::NoMesh { devices }),
        }
    }

    /// The spec of each array of an instruction; none where the module leaves it open.
    pub(super) fn specs(
        &self,
        instruction: &HloInstructionProto,
        types: &[TensorType],
    ) -> Result<Vec<Option<Spec>>, String> {
        let (Some(sharding), Some(mesh)) = (instruction.sharding.as_deref(), &self.mesh) else {
            return Ok(vec![None; types.len()]);
        };
        let own = match sharding.r#type() {
            Type::Tuple => sharding.tuple_shardings.iter().collect(),
            _ => vec![sharding; types.len()],
        };
        if own.len() != types.len() {
            return Err(format!("it has {} shardings for {} arrays", own.len(), types.len()));
        }
        own.into_iter().zip(types).map(|(sharding, ty)| stated_spec(sharding, ty, mesh)).collect()
    }
}

/// The spec that a sharding is; none where it leaves the value open.
pub(crate) fn stated_spec(sharding: &OpSharding, ty: &TensorType, mesh: &Mesh) -> Result<Option<Spec>, String> {
    match sharding.r#type() {
        Type::Unknown => return Ok(None),
        Type::Replicated => return Ok(Some(Spec::replicated(ty.rank()))),
        Type::Other => {}
        Type::Manual => return Err("it is in a manual region, which is not imported yet".to_owned()),
        Type::Maximal => return Err("it lies on one device alone".to_owned()),
        Type::Tuple | Type::Unreduced => return Err("a sharding of this kind is not imported yet".to_owned()),
    }
    let Some(axes) = axes_of(sharding, ty.rank(), mesh) else {
        return Err("its tiles do not follow the axes of the mesh".to_owned());
    };
    let mut dims = Vec::with_capacity(axes.len());
    for parts in axes {
        let mut of_dim = Axes::new();
        for part in parts {
            let axis = mesh.axis(&part.name).filter(|_| part.part.is_none());
            of_dim.push(axis.ok_or_else(|| format!("it is split along a part of the mesh axis {:?}", part.name))?);
        }
        dims.push(of_dim);
    }
    Ok(Some(Spec::new(dims)))
}
