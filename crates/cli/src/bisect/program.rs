//! A program that can be tried: a module, the devices it is for, and where the parts of its values lie.

use std::ops::Range;

use anyhow::{Result, anyhow};
use meshloom::hlo::TensorType;
use meshloom::hlo::device_groups::transposed_iota;
use meshloom::hlo::proto::op_sharding::Type;
use meshloom::hlo::proto::{HloComputationProto, HloModuleProto, OpSharding, PrimitiveType, ShapeProto};
use meshloom::hlo::tensor_type;
use meshloom::pjrt::{ArraySpec, ShardLayout};

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) module: HloModuleProto,
    pub(super) replicas: usize,
    pub(super) partitions: usize,
    /// Whether XLA's Shardy partitions it.
    pub(super) shardy: bool,
    /// Where inputs and outputs lie, if that is known otherwise than from the module.
    pub(super) ports: Option<(Vec<ArraySpec>, Vec<ArraySpec>)>,
    /// Whether outputs are put together from the devices' parts. Otherwise each part is an output.
    pub(super) joins_outputs: bool,
}

pub(super) struct Port {
    pub(super) name: String,
    pub(super) ty: TensorType,
    pub(super) layout: ShardLayout,
}

impl Program {
    pub(super) fn of_module(module: HloModuleProto, (replicas, partitions): (usize, usize)) -> Program {
        let shardy = needs_shardy(&module);
        Program { module, replicas, partitions, shardy, ports: None, joins_outputs: false }
    }

    pub(super) fn device_count(&self) -> usize {
        self.replicas.saturating_mul(self.partitions)
    }

    pub(super) fn with_module(&self, module: HloModuleProto) -> Program {
        Program { module, ports: None, ..self.clone() }
    }

    pub(super) fn with_joined_outputs(self, joins_outputs: bool) -> Program {
        Program { joins_outputs, ..self }
    }

    fn entry(&self) -> Option<&HloComputationProto> {
        let module = &self.module;
        let by_id = module.computations.iter().find(|it| it.id == module.entry_computation_id);
        by_id.or_else(|| module.computations.iter().find(|it| it.name == module.entry_computation_name))
    }

    /// The parameters, in order.
    pub(super) fn inputs(&self) -> Result<Vec<Port>> {
        let entry = self.entry().ok_or_else(|| anyhow!("the module has no entry computation"))?;
        let mut parameters: Vec<_> = entry.instructions.iter().filter(|it| it.opcode == "parameter").collect();
        parameters.sort_by_key(|it| it.parameter_number);
        let port = |(index, it): (usize, &&meshloom::hlo::proto::HloInstructionProto)| {
            if let Some(spec) = self.ports.as_ref().and_then(|(inputs, _)| inputs.get(index)) {
                return Ok(Port { name: it.name.clone(), ty: spec.ty.clone(), layout: spec.layout.clone() });
            }
            let shape = it.shape.clone().unwrap_or_default();
            let ty = tensor_type(&shape).ok_or_else(|| {
                let what = if shape.element_type == i32::from(PrimitiveType::Tuple) { "a tuple" } else { "of a type" };
                anyhow!(
                    "parameter {index}, %{}, is {what} that cannot be given from here; inputs are arrays of pred, \
                     integers and floating-point numbers of 4 to 64 bits",
                    it.name
                )
            })?;
            let layout = self.layout(it.sharding.as_deref(), &ty, &format!("parameter {index}, %{}", it.name))?;
            Ok(Port { name: it.name.clone(), ty, layout })
        };
        parameters.iter().enumerate().map(port).collect()
    }

    /// Where whole outputs lie, if they are put together.
    pub(super) fn outputs(&self) -> Result<Option<Vec<ArraySpec>>> {
        if !self.joins_outputs || self.device_count() == 1 {
            return Ok(None);
        }
        if let Some((_, outputs)) = &self.ports {
            return Ok(Some(outputs.clone()));
        }
        let entry = self.entry().ok_or_else(|| anyhow!("the module has no entry computation"))?;
        let root = entry.instructions.iter().find(|it| it.id == entry.root_id);
        let root = root.ok_or_else(|| anyhow!("the entry computation has no root"))?;
        let shape = root.shape.clone().unwrap_or_default();
        let is_tuple = shape.element_type == i32::from(PrimitiveType::Tuple);
        let shapes: Vec<ShapeProto> = if is_tuple { shape.tuple_shapes } else { vec![shape] };
        let sharding = |index: usize| {
            let all = root.sharding.as_deref()?;
            if is_tuple { all.tuple_shardings.get(index) } else { Some(all) }
        };
        let spec = |(index, shape): (usize, &ShapeProto)| {
            let what = format!("output {index}");
            let ty = tensor_type(shape).ok_or_else(|| anyhow!("{what} is no array"))?;
            let layout = self.layout(sharding(index), &ty, &what)?;
            Ok(ArraySpec { ty, layout })
        };
        shapes.iter().enumerate().map(spec).collect::<Result<_>>().map(Some)
    }

    /// Where the parts of a value lie. Without a sharding every device is given the whole.
    fn layout(&self, sharding: Option<&OpSharding>, ty: &TensorType, what: &str) -> Result<ShardLayout> {
        let count = self.device_count();
        let Some(sharding) = sharding.filter(|_| self.partitions > 1) else {
            return Ok(ShardLayout::replicated(&ty.dims, count));
        };
        let unknown = || anyhow!("the sharding of {what} is in a form that is not read here");
        let parts = parts_of(sharding, &ty.dims, self.partitions).ok_or_else(unknown)?;
        let (padded, boxes) = parts;
        let boxes = (0..count).filter_map(|device| boxes.get(device % self.partitions).cloned()).collect();
        Ok(ShardLayout::from_boxes(&padded, boxes)?.with_value_dims(&ty.dims)?)
    }
}

/// Whether Shardy is to partition a module: its annotations are Shardy's; or it has none, as the program of one device.
fn needs_shardy(module: &HloModuleProto) -> bool {
    let instructions = || module.computations.iter().flat_map(|it| &it.instructions);
    let attributes = instructions().filter_map(|it| it.frontend_attributes.as_ref()).chain(&module.frontend_attributes);
    let is_shardy = attributes.flat_map(|it| it.map.keys()).any(|key| key.starts_with("xla.sdy."));
    is_shardy || instructions().all(|it| it.sharding.is_none())
}

/// Padded dimensions, and the part of each device.
pub type Parts = (Vec<usize>, Vec<Vec<Range<usize>>>);

/// Where the parts of a value of these dimensions lie.
pub fn parts_of(sharding: &OpSharding, dims: &[usize], count: usize) -> Option<Parts> {
    let whole = || (dims.to_vec(), vec![dims.iter().map(|&size| 0..size).collect(); count]);
    if sharding.named_sharding.is_some() {
        return None;
    }
    match Type::try_from(sharding.r#type).ok()? {
        Type::Replicated | Type::Unknown => return Some(whole()),
        Type::Other => {}
        _ => return None,
    }
    let numbers =
        |numbers: &[i64]| numbers.iter().map(|&number| usize::try_from(number).ok()).collect::<Option<Vec<_>>>();
    let tiles = numbers(&sharding.tile_assignment_dimensions)?;
    let devices = if sharding.iota_reshape_dims.is_empty() {
        numbers(&sharding.tile_assignment_devices)?
    } else {
        let dims =
            sharding.iota_reshape_dims.iter().map(|&size| u64::try_from(size).ok()).collect::<Option<Vec<_>>>()?;
        let order =
            sharding.iota_transpose_perm.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<Vec<_>>>()?;
        transposed_iota(&dims, &order)?.into_iter().map(|device| device as usize).collect()
    };
    if devices.len() != count || tiles.iter().product::<usize>() != count || tiles.len() < dims.len() {
        return None;
    }
    let part = |dim: usize| dims[dim].div_ceil(tiles[dim].max(1));
    let padded: Vec<usize> = (0..dims.len()).map(|dim| part(dim) * tiles[dim]).collect();
    let mut parts = whole().1;
    for (place, &device) in devices.iter().enumerate() {
        let (mut rest, mut places) = (place, vec![0; tiles.len()]);
        for (dim, &size) in tiles.iter().enumerate().rev() {
            places[dim] = rest % size;
            rest /= size;
        }
        *parts.get_mut(device)? =
            (0..dims.len()).map(|dim| places[dim] * part(dim)..(places[dim] + 1) * part(dim)).collect();
    }
    Some((padded, parts))
}
