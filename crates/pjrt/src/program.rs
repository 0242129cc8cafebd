//! A module before it is compiled: its parameters and which of them it takes over, and the options and the language in
//! which a plugin gets it.

use std::borrow::Cow;
use std::collections::HashSet;

use prost::Message;

use super::error::PjrtError;
use super::options::{CompileOptions, DebugValue, ProgramFormat};
use super::platform::Platform;
use super::plugin::Plugin;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::message::counted;
use meshloom_hlo::proto::hlo_input_output_alias_proto::AliasEntryProto;
use meshloom_hlo::proto::named_sharding_proto::DimensionSharding;
use meshloom_hlo::proto::op_sharding::Type as ShardingType;
use meshloom_hlo::proto::{
    HloComputationProto, HloModuleProto, NamedShardingProto, OpSharding, PrimitiveType, ProgramShapeProto, ShapeProto,
};
use meshloom_hlo::stablehlo::{self, WriteOptions};
use meshloom_hlo::{GroupFormat, LOCAL_SHAPES, TensorType, is_row_major, tensor_type};

/// One parameter of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the module.
    pub name: String,
    /// Its type before XLA partitions the program; `None` when the element type has no host form here, it is a tuple,
    /// or the module has the shapes of one device.
    pub global_type: Option<TensorType>,
    /// The type each device must be given; `None` when that is known to the partitioner only.
    pub local_type: Option<TensorType>,
    /// Whether the program takes the argument's memory for an output.
    pub donated: bool,
    /// Whether the program wants the argument row-major, which is the only layout made here.
    pub row_major: bool,
}

impl Parameter {
    /// `parameter 3 ("layers.0.wq")`, for messages.
    pub(super) fn describe(&self, index: usize) -> String {
        if self.name.is_empty() { format!("argument {index}") } else { format!("argument {index} (\"{}\")", self.name) }
    }
}

/// The facts of a program that its module tells.
#[derive(Clone, Debug)]
pub(super) struct ProgramInfo {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) output_count: usize,
    /// Whether values are sharded by `OpSharding.named_sharding` (V3).
    named_shardings: bool,
    /// A form in which collectives name their devices: the compact one, if any has one.
    groups: GroupFormat,
}

/// The API version of the oldest plugin seen to read named shardings. The plugin of API 0.81 skips them as an unknown
/// field.
const READS_NAMED_SHARDINGS: (i32, i32) = (0, 106);

/// The API version of the oldest CPU plugin seen to fold constants right. The plugin of API 0.81 reads the elements of
/// a transposed constant in the wrong order when it folds a dot of it into a reshape.
const FOLDS_RIGHT: (i32, i32) = (0, 106);

/// The API version of the oldest plugin seen to read named shardings without being told to.
const NAMED_BY_DEFAULT: (i32, i32) = (0, 115);

impl ProgramInfo {
    /// Decodes a module and checks what XLA would otherwise meet half-way.
    pub(super) fn read(module: &[u8], partitioned: bool) -> Result<ProgramInfo, PjrtError> {
        let invalid = |reason: String| PjrtError::InvalidModule { reason };
        if module.is_empty() {
            return Err(invalid("it has no bytes".into()));
        }
        let module = HloModuleProto::decode(module).map_err(|error| invalid(error.to_string()))?;
        let parameters = parameters(&module, partitioned)?;
        let output_count = output_count(&module).unwrap_or(1);
        let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
        let named_shardings = instructions().filter_map(|instruction| instruction.sharding.as_deref()).any(is_named);
        let groups = instructions().map(GroupFormat::of).find(|&form| form != GroupFormat::Lists).unwrap_or_default();
        Ok(ProgramInfo { name: module.name, parameters, output_count, named_shardings, groups })
    }

    /// Checks that a plugin reads everything that the module says.
    pub(super) fn check_plugin(&self, plugin: &Plugin) -> Result<(), PjrtError> {
        let (major, minor) = plugin.api_version();
        if self.named_shardings && (major, minor) < READS_NAMED_SHARDINGS {
            return Err(PjrtError::NamedShardings { path: plugin.path().into(), major, minor });
        }
        if !self.groups.is_read_by((major, minor)) {
            let field = self.groups.field();
            return Err(PjrtError::DeviceGroups { path: plugin.path().into(), major, minor, field });
        }
        Ok(())
    }
}

impl CompileOptions {
    /// Returns these options with those that the platform needs to follow HLO's semantics. The caller's settings stay.
    pub(super) fn for_platform(&self, platform: &Platform, program: &ProgramInfo) -> CompileOptions {
        let mut options = self.clone();
        let mut set = |name: &str, value| {
            options.debug_options.entry(name.into()).or_insert(value);
        };
        if program.named_shardings && platform.is_before(NAMED_BY_DEFAULT) {
            set("xla_enable_hlo_sharding_v3", DebugValue::Bool(true));
        }
        if platform.kind() == PlatformKind::Cpu {
            // Some builds of the CPU compiler drop the NaN of one operand of a maximum unless told not to.
            set("xla_cpu_enable_fast_min_max", DebugValue::Bool(false));
            if platform.is_before(FOLDS_RIGHT) {
                set("xla_disable_hlo_passes", DebugValue::Text("constant_folding".into()));
            }
        }
        options
    }

    /// Checks the lists that have an element for each parameter or output. XLA ends the process over another length.
    pub(super) fn check_propagation(&self, program: &ProgramInfo) -> Result<(), PjrtError> {
        let lists = [
            ("allow_propagation_to_parameters", &self.allow_propagation_to_parameters, program.parameters.len()),
            ("allow_propagation_to_outputs", &self.allow_propagation_to_outputs, program.output_count),
        ];
        for (option, list, count) in lists {
            if list.len() > 1 && list.len() != count {
                let expected = format!("no value, one for all, or one for each of {count}");
                return Err(PjrtError::option(option, format!("{list:?}"), expected));
            }
        }
        Ok(())
    }
}

/// The module as a platform's compiler wants it.
///
/// libtpu parses the trip count in a loop's `backend_config` as a message of its own, which has no such field, and
/// refuses the module. It finds the counts itself.
pub(super) fn for_platform<'a>(module: &'a [u8], platform: &Platform) -> Cow<'a, [u8]> {
    const TRIP_COUNT: &[u8] = b"{\"known_trip_count\"";
    if platform.takes_trip_counts() || !module.windows(TRIP_COUNT.len()).any(|window| window == TRIP_COUNT) {
        return Cow::Borrowed(module);
    }
    // A module that cannot be decoded has been refused before.
    let Ok(mut decoded) = HloModuleProto::decode(module) else { return Cow::Borrowed(module) };
    let instructions = decoded.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    for instruction in instructions.filter(|instruction| instruction.backend_config.starts_with(TRIP_COUNT)) {
        instruction.backend_config.clear();
    }
    Cow::Owned(decoded.encode_to_vec())
}

/// The way in which a program is written for a plugin.
pub(super) struct Language {
    pub(super) format: ProgramFormat,
    /// The statement about devices in a text, which an HLO module leaves to the options.
    write: WriteOptions,
}

impl Language {
    pub(super) fn of(options: &CompileOptions) -> Language {
        let (partitions, replicas) = (options.num_partitions as u64, options.num_replicas as u64);
        Language { format: options.format, write: WriteOptions { partitions, replicas, ..WriteOptions::default() } }
    }

    /// A serialized module in the language.
    pub(super) fn code<'a>(&self, module: &'a [u8]) -> Result<Cow<'a, [u8]>, PjrtError> {
        if self.format == ProgramFormat::Hlo {
            return Ok(Cow::Borrowed(module));
        }
        let module =
            HloModuleProto::decode(module).map_err(|error| PjrtError::InvalidModule { reason: error.to_string() })?;
        let mut instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        if instructions.any(|instruction| instruction.sharding.as_deref().is_some_and(is_named)) {
            // Plugins lose these on the way to HLO, and some end the process over it.
            let expected = "Hlo for a module with named shardings (V3); or annotate it by tiles, or by Shardy's \
                            attributes";
            return Err(PjrtError::option("format", format!("{:?}", self.format), expected));
        }
        let text = stablehlo::write(&module, &self.write)?;
        Ok(Cow::Owned(text.into_bytes()))
    }
}

fn is_named(sharding: &OpSharding) -> bool {
    sharding.named_sharding.is_some() || sharding.tuple_shardings.iter().any(is_named)
}

/// Elements of the result's tuple, or one value.
fn output_count(module: &HloModuleProto) -> Option<usize> {
    let result = module.host_program_shape.as_ref()?.result.as_ref()?;
    let is_tuple = result.element_type == i32::from(PrimitiveType::Tuple);
    Some(if is_tuple { result.tuple_shapes.len() } else { 1 })
}

/// Checks that values which share a buffer exist, have one shape, and share with no other: XLA ends the process
/// otherwise.
fn check_aliases(module: &HloModuleProto, program: &ProgramShapeProto) -> Result<(), String> {
    let entries: Vec<_> = module.input_output_alias.iter().flat_map(|alias| &alias.entries).collect();
    for (index, entry) in entries.iter().enumerate() {
        let (path, number) = (&entry.output_shape_index, entry.parameter_number);
        let pair = format!("it has output {path:?} share a buffer with parameter {number}");
        let parameter = usize::try_from(number).ok().and_then(|number| program.parameters.get(number));
        let parameter = parameter.and_then(|shape| element(shape, &entry.parameter_shape_index));
        let output = program.result.as_ref().and_then(|shape| element(shape, path));
        let (Some(output), Some(parameter)) = (output, parameter) else {
            return Err(format!("{pair}, but has no such output or parameter"));
        };
        if !is_same_shape(output, parameter) {
            return Err(format!("{pair}, but they have different shapes"));
        }
        let of_parameter = |entry: &AliasEntryProto| (entry.parameter_number, entry.parameter_shape_index.clone());
        let is_shared =
            |other: &&AliasEntryProto| other.output_shape_index == *path || of_parameter(other) == of_parameter(entry);
        if entries[..index].iter().any(is_shared) {
            return Err(format!("{pair}, but one of them shares it with another already"));
        }
    }
    Ok(())
}

/// The element of a nested tuple at a path.
fn element<'a>(shape: &'a ShapeProto, path: &[i64]) -> Option<&'a ShapeProto> {
    let inner = |shape: &'a ShapeProto, index: &i64| shape.tuple_shapes.get(usize::try_from(*index).ok()?);
    path.iter().try_fold(shape, inner)
}

fn parameters(module: &HloModuleProto, partitioned: bool) -> Result<Vec<Parameter>, PjrtError> {
    let invalid = |reason: String| PjrtError::InvalidModule { reason };
    for computation in &module.computations {
        check_computation(computation).map_err(invalid)?;
    }
    let entry =
        module.computations.iter().find(|computation| computation.id == module.entry_computation_id).ok_or_else(
            || invalid(format!("it has no computation with the entry's id {}", module.entry_computation_id)),
        )?;
    let shape = module.host_program_shape.as_ref().or(entry.program_shape.as_ref());
    let shape = shape.ok_or_else(|| invalid("it has no program shape".into()))?;

    let root = entry.instructions.iter().find(|instruction| instruction.id == entry.root_id);
    if let (Some(result), Some(actual)) = (&shape.result, root.and_then(|root| root.shape.as_ref()))
        && !is_same_shape(result, actual)
    {
        return Err(invalid("the program shape's result is not that of the entry's root".into()));
    }
    if partitioned
        && let Some(root) = root
        && let (Some(shape), Some(sharding)) = (&root.shape, &root.sharding)
        && shape.element_type == i32::from(PrimitiveType::Tuple)
        && sharding.r#type != i32::from(ShardingType::Tuple)
        && sharding.named_sharding.is_none()
    {
        // XLA allows this elsewhere, but aborts when it is the entry's result.
        let root = &root.name;
        return Err(invalid(format!("the entry's result \"{root}\" is a tuple, but its sharding is not a tuple's")));
    }

    let mut attributes = module.frontend_attributes.iter();
    let is_local = attributes.any(|attributes| attributes.map.contains_key(LOCAL_SHAPES));
    let mut found: Vec<Option<Parameter>> = vec![None; shape.parameters.len()];
    let total = found.len();
    for instruction in entry.instructions.iter().filter(|instruction| instruction.opcode == "parameter") {
        let number = instruction.parameter_number;
        let slot = usize::try_from(number).ok().and_then(|number| found.get_mut(number));
        let slot = slot.ok_or_else(|| {
            invalid(format!(
                "the entry has a parameter number {number}, but the program shape has {}",
                counted(total, "parameter")
            ))
        })?;
        let index = number as usize;
        let global_type = tensor_type(&shape.parameters[index]);
        let local_type = match (&global_type, partitioned) {
            (Some(ty), true) if !is_local => local_type(ty, instruction.sharding.as_deref()),
            (ty, _) => ty.clone(),
        };
        let global_type = global_type.filter(|_| !is_local);
        // The path that the input has in the user's tree, if the module says it.
        let path = instruction.metadata.as_ref().map(|metadata| &metadata.op_name).filter(|path| !path.is_empty());
        let name = path.unwrap_or(&instruction.name).clone();
        let row_major = is_row_major(&shape.parameters[index]);
        if slot.replace(Parameter { name, global_type, local_type, donated: false, row_major }).is_some() {
            return Err(invalid(format!("the entry has two parameters with the number {number}")));
        }
    }
    let aliases = module.input_output_alias.iter().flat_map(|alias| &alias.entries);
    let donors = module.buffer_donor.iter().flat_map(|donor| &donor.entries);
    let donated = aliases.map(|entry| entry.parameter_number).chain(donors.map(|entry| entry.parameter_number));
    for number in donated {
        let slot = usize::try_from(number).ok().and_then(|number| found.get_mut(number));
        match slot {
            Some(Some(parameter)) => parameter.donated = true,
            _ => {
                return Err(invalid(format!("it donates parameter {number}, but has {}", counted(total, "parameter"))));
            }
        }
    }
    check_aliases(module, shape).map_err(invalid)?;
    let missing = found.iter().position(Option::is_none);
    match missing {
        Some(index) => Err(invalid(format!("the entry has no parameter number {index}, but its shape has {total}"))),
        None => Ok(found.into_iter().flatten().collect()),
    }
}

fn check_computation(computation: &HloComputationProto) -> Result<(), String> {
    let mut ids = HashSet::with_capacity(computation.instructions.len());
    for instruction in &computation.instructions {
        // Instructions come after their operands, so the ones seen so far are all that may be referred to.
        if let Some(operand) = instruction.operand_ids.iter().find(|operand| !ids.contains(*operand)) {
            let (name, computation) = (&instruction.name, &computation.name);
            return Err(format!(
                "instruction \"{name}\" of \"{computation}\" has an operand {operand} that is not before it"
            ));
        }
        let Some(shape) = &instruction.shape else {
            return Err(format!("instruction \"{}\" of \"{}\" has no shape", instruction.name, computation.name));
        };
        if let Some(sharding) = &instruction.sharding
            && let Some(reason) = sharding_mismatch(shape, sharding)
        {
            let (name, computation) = (&instruction.name, &computation.name);
            return Err(format!("the sharding of instruction \"{name}\" of \"{computation}\" {reason}"));
        }
        if !ids.insert(instruction.id) {
            return Err(format!("\"{}\" has two instructions with the id {}", computation.name, instruction.id));
        }
    }
    if !ids.contains(&computation.root_id) {
        return Err(format!("\"{}\" has no instruction with its root's id {}", computation.name, computation.root_id));
    }
    Ok(())
}

/// The reason why a value of this shape cannot have a sharding. XLA's partitioner ends the process over such a module.
fn sharding_mismatch(shape: &ShapeProto, sharding: &OpSharding) -> Option<String> {
    if sharding.named_sharding.is_some() {
        return None;
    }
    let is_tuple = shape.element_type == i32::from(PrimitiveType::Tuple);
    match ShardingType::try_from(sharding.r#type).ok()? {
        ShardingType::Tuple if !is_tuple => Some("is a tuple's, but the value is not a tuple".into()),
        ShardingType::Tuple => {
            let mut shapes = Vec::new();
            leaves(shape, &mut shapes);
            let (expected, actual) = (shapes.len(), sharding.tuple_shardings.len());
            if expected != actual {
                return Some(format!("has {actual} elements, expected {expected}"));
            }
            shapes.into_iter().zip(&sharding.tuple_shardings).enumerate().find_map(|(index, (shape, sharding))| {
                sharding_mismatch(shape, sharding).map(|reason| format!("has an element {index} that {reason}"))
            })
        }
        ShardingType::Other if is_tuple => Some("is tiled, but the value is a tuple".into()),
        ShardingType::Other => {
            // Dimensions after those of the value are groups of copies and the like.
            let groups = sharding.last_tile_dims.len().max(usize::from(sharding.replicate_on_last_tile_dim));
            let (expected, actual) = (shape.dimensions.len() + groups, sharding.tile_assignment_dimensions.len());
            (expected != actual).then(|| format!("has {actual} tile dimensions, expected {expected}"))
        }
        _ => None,
    }
}

/// Whether element types and dimensions agree; layouts may differ.
fn is_same_shape(left: &ShapeProto, right: &ShapeProto) -> bool {
    left.element_type == right.element_type
        && left.dimensions == right.dimensions
        && left.tuple_shapes.len() == right.tuple_shapes.len()
        && left.tuple_shapes.iter().zip(&right.tuple_shapes).all(|(left, right)| is_same_shape(left, right))
}

/// Leaves of a nested tuple; an empty tuple counts as one, as it does for XLA's shardings.
fn leaves<'a>(shape: &'a ShapeProto, found: &mut Vec<&'a ShapeProto>) {
    if shape.tuple_shapes.is_empty() {
        found.push(shape);
    } else {
        shape.tuple_shapes.iter().for_each(|element| leaves(element, found));
    }
}

/// The type of one device's part of a parameter with this sharding, if it follows from the sharding alone.
fn local_type(ty: &TensorType, sharding: Option<&OpSharding>) -> Option<TensorType> {
    let sharding = sharding?;
    if let Some(named) = &sharding.named_sharding {
        return named_local_type(ty, named);
    }
    match ShardingType::try_from(sharding.r#type).ok()? {
        ShardingType::Replicated => Some(ty.clone()),
        ShardingType::Other => {
            let tiles = sharding.tile_assignment_dimensions.get(..ty.rank())?;
            let split = |(&size, &tile): (&usize, &i64)| Some(size.div_ceil(usize::try_from(tile).ok()?.max(1)));
            let dims = ty.dims.iter().zip(tiles).map(split).collect::<Option<_>>()?;
            Some(TensorType { dtype: ty.dtype, dims })
        }
        _ => None,
    }
}

/// As [`local_type`], of whole axes of a mesh.
fn named_local_type(ty: &TensorType, sharding: &NamedShardingProto) -> Option<TensorType> {
    let axes = &sharding.mesh.as_ref()?.axes;
    let parts = |dim: &DimensionSharding| -> Option<usize> {
        let whole = dim.axes.iter().filter(|axis| axis.sub_axis_info.is_none());
        let sizes =
            whole.map(|axis| axes.get(usize::try_from(axis.mesh_axis_index).ok()?)).map(|axis| Some(axis?.size));
        let sizes: Vec<i64> = sizes.collect::<Option<_>>()?;
        let product = sizes.iter().try_fold(1i64, |product, &size| product.checked_mul(size))?;
        (sizes.len() == dim.axes.len()).then_some(usize::try_from(product).ok()?.max(1))
    };
    if sharding.dim_shardings.len() != ty.rank() {
        return None;
    }
    let split = |(&size, dim): (&usize, &DimensionSharding)| Some(size.div_ceil(parts(dim)?));
    let dims = ty.dims.iter().zip(&sharding.dim_shardings).map(split).collect::<Option<_>>()?;
    Some(TensorType { dtype: ty.dtype, dims })
}
