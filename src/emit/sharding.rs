//! Specs as XLA's sharding annotations, in three dialects.

use crate::ir::Spec;
use meshloom_hlo::mesh::{Mesh, MeshAxis};
use meshloom_hlo::proto::named_sharding_proto::DimensionSharding;
use meshloom_hlo::proto::{
    AxisRefProto, FrontendAttributes, HloInstructionProto, MeshProto, NamedShardingProto, OpSharding, mesh_proto,
    op_sharding::Type,
};

/// The dialect in which a program that XLA is to partition says how values are sharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Annotation {
    /// `OpSharding` in tiles (V2), for GSPMD.
    #[default]
    Tiles,
    /// Tiles, and Shardy's own form as text in `frontend_attributes` (`xla.sdy.*`): what JAX writes, and XLA's
    /// `sdy_round_trip` pipeline reads.
    ShardyAttributes,
    /// `OpSharding.named_sharding` (V3): axes of a mesh, for Shardy in newer plugins.
    ShardyNamed,
}

/// The key under which a value's sharding stands, in Shardy's text form.
const SHARDING: &str = "xla.sdy.sharding";

impl Annotation {
    /// Whether Shardy propagates these annotations.
    pub fn is_shardy(self) -> bool {
        self != Annotation::Tiles
    }

    /// A spec as `OpSharding`.
    pub(super) fn sharding(self, mesh: &Mesh, spec: &Spec) -> OpSharding {
        match self {
            Annotation::Tiles | Annotation::ShardyAttributes => op_sharding(mesh, spec),
            Annotation::ShardyNamed => named_sharding(mesh, spec),
        }
    }

    pub(crate) fn write_parameter(self, mesh: &Mesh, spec: &Spec, instruction: &mut HloInstructionProto) {
        instruction.sharding = Some(self.sharding(mesh, spec).into());
        if self == Annotation::ShardyAttributes {
            instruction.frontend_attributes = Some(attribute(SHARDING, format!("#sdy.sharding<{}>", sdy(mesh, spec))));
        }
    }

    /// Annotates a custom call that stands for a constraint.
    pub(crate) fn write_constraint(self, mesh: &Mesh, spec: &Spec, instruction: &mut HloInstructionProto) {
        instruction.sharding = Some(self.sharding(mesh, spec).into());
        if self == Annotation::ShardyAttributes {
            instruction.frontend_attributes = Some(result_attribute(mesh, spec));
        }
    }

    /// The attributes of the module, which declare the mesh.
    pub(super) fn module_attributes(self, mesh: &Mesh) -> Option<FrontendAttributes> {
        (self == Annotation::ShardyAttributes).then(|| mesh_attribute(mesh))
    }
}

/// The attribute of a module that declares the mesh, as Shardy reads it.
pub(super) fn mesh_attribute(mesh: &Mesh) -> FrontendAttributes {
    let axes: Vec<String> = mesh.axes().map(|axis| format!("\"{}\"={}", mesh.name(axis), mesh.size(axis))).collect();
    attribute("xla.sdy.meshes", format!("{{{MESH} = #sdy.mesh<[{}]>}}", axes.join(", ")))
}

/// The name that Shardy's text forms give the mesh.
const MESH: &str = "mesh";

/// The attribute of a custom call, whose results have a list of shardings.
pub(super) fn result_attribute(mesh: &Mesh, spec: &Spec) -> FrontendAttributes {
    attribute(SHARDING, format!("#sdy.sharding_per_value<[<{}>]>", sdy(mesh, spec)))
}

fn attribute(key: &str, text: String) -> FrontendAttributes {
    FrontendAttributes { map: [(key.to_owned(), text)].into() }
}

/// A spec in Shardy's text form. Every dimension is closed: a dimension that the spec does not split stays whole.
fn sdy(mesh: &Mesh, spec: &Spec) -> String {
    let axes = |axes: &[MeshAxis]| -> String {
        let names: Vec<String> = axes.iter().map(|&axis| format!("\"{}\"", mesh.name(axis))).collect();
        format!("{{{}}}", names.join(", "))
    };
    let dims: Vec<String> = spec.dims().iter().map(|dim| axes(dim)).collect();
    format!("@{MESH}, [{}]", dims.join(", "))
}

/// A spec as `OpSharding` in the named form (V3; xla_data.proto).
fn named_sharding(mesh: &Mesh, spec: &Spec) -> OpSharding {
    let axis = |axis: &MeshAxis| AxisRefProto { mesh_axis_index: axis.index() as i64, sub_axis_info: None };
    let dims = spec.dims().iter();
    let named = NamedShardingProto {
        mesh: Some(MeshProto {
            axes: mesh
                .axes()
                .map(|axis| mesh_proto::MeshAxis { name: mesh.name(axis).to_owned(), size: mesh.size(axis) as i64 })
                .collect(),
            ..MeshProto::default()
        }),
        dim_shardings: dims
            .map(|axes| DimensionSharding { axes: axes.iter().map(axis).collect(), is_closed: true })
            .collect(),
        ..NamedShardingProto::default()
    };
    OpSharding { r#type: Type::Other.into(), named_sharding: Some(named.into()), ..OpSharding::default() }
}

/// A spec as `OpSharding` in the tile form (V2; xla_data.proto).
///
/// The devices are given as an iota over the mesh, transposed so that the axes of the first dimension vary slowest;
/// axes that split nothing come last, in a tile dimension of replicas.
pub fn op_sharding(mesh: &Mesh, spec: &Spec) -> OpSharding {
    let size = |axis: &MeshAxis| mesh.size(*axis);
    let tiles: Vec<usize> = spec.dims().iter().map(|axes| axes.iter().map(size).product()).collect();
    let shards: usize = tiles.iter().product();
    if shards == 1 {
        return OpSharding { r#type: Type::Replicated.into(), ..OpSharding::default() };
    }
    let used: Vec<MeshAxis> = spec.dims().iter().flat_map(|axes| axes.iter().copied()).collect();
    let unused = mesh.axes().filter(|axis| !used.contains(axis));
    let order = used.iter().copied().chain(unused);
    let replicas = mesh.device_count() / shards;
    let mut dimensions: Vec<i64> = tiles.iter().map(|&tile| tile as i64).collect();
    if replicas > 1 {
        dimensions.push(replicas as i64);
    }
    OpSharding {
        r#type: Type::Other.into(),
        tile_assignment_dimensions: dimensions,
        iota_reshape_dims: mesh.axes().map(|axis| mesh.size(axis) as i64).collect(),
        iota_transpose_perm: order.map(|axis| axis.index() as i32).collect(),
        replicate_on_last_tile_dim: replicas > 1,
        ..OpSharding::default()
    }
}

/// The sharding of a value that the program has partitioned itself.
pub fn manual() -> OpSharding {
    OpSharding { r#type: Type::Manual.into(), ..OpSharding::default() }
}
