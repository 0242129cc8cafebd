//! Two modules that say the same in different words become equal.

use std::collections::HashMap;

use meshloom::hlo::proto::payload::PayloadSource;
use meshloom::hlo::proto::{
    CustomCallApiVersion, HloComputationProto, HloInstructionProto, HloModuleProto, LayoutProto, LiteralProto,
    PrimitiveType, ProgramShapeProto, ShapeProto,
};

/// Rewrites what the text form does not keep, or has in more than one way:
/// - ids: computations and instructions are numbered in the order of their names, and lists are in that order;
/// - fields whose unset and neutral values mean the same;
/// - messages that are there and say nothing, and the order of keys in JSON;
/// - names inside the computation that the short form of an asynchronous operation stands for, and its schedule;
/// - the position of a module among others, and what it says of the compilation.
pub fn normalize(module: &mut HloModuleProto) {
    let wrapped = normalize_wrapped(module);
    let payloads = std::mem::take(&mut module.payloads);
    module.computations.sort_by(|one, other| one.name.cmp(&other.name));
    let mut ids = HashMap::new();
    let mut computation_ids = HashMap::new();
    for (place, computation) in (0i64..).zip(&mut module.computations) {
        computation.instructions.sort_by(|one, other| one.name.cmp(&other.name));
        computation_ids.insert(computation.id, place);
        ids.extend(
            (0i64..)
                .zip(&computation.instructions)
                .map(|(index, instruction)| ((computation.id, instruction.id), (place << 32) + index)),
        );
    }
    let computation_id = |id: &mut i64| *id = computation_ids.get(id).copied().unwrap_or(-1);
    for computation in &mut module.computations {
        let old_id = computation.id;
        let id = |id: &mut i64| *id = ids.get(&(old_id, *id)).copied().unwrap_or(-1);
        computation_id(&mut computation.id);
        id(&mut computation.root_id);
        for instruction in &mut computation.instructions {
            id(&mut instruction.id);
            instruction.operand_ids.iter_mut().for_each(id);
            instruction.control_predecessor_ids.iter_mut().for_each(id);
            instruction.control_predecessor_ids.sort();
            instruction.called_computation_ids.iter_mut().for_each(computation_id);
            normalize_payload(instruction, &payloads);
            normalize_instruction(instruction);
        }
        normalize_computation(computation);
    }
    if let Some(schedule) = &mut module.schedule {
        let sequences = std::mem::take(&mut schedule.sequences);
        let is_printed = |id: &i64| !wrapped.contains(id);
        schedule.sequences = sequences
            .into_iter()
            .filter(|(computation, _)| is_printed(computation))
            .map(|(mut computation, mut sequence)| {
                for instruction in &mut sequence.instruction_ids {
                    *instruction = ids.get(&(computation, *instruction)).copied().unwrap_or(-1);
                }
                computation_id(&mut computation);
                (computation, sequence)
            })
            .collect();
    }
    computation_id(&mut module.entry_computation_id);
    module.id = 0;
    module.pjrt_id = None;
    module.is_dynamic = false;
    module.device_assignment = None;
    module.profile_info.clear();
    module.spmd_output_sharding = None;
    module.spmd_parameters_shardings.clear();
    module.cross_program_prefetches.clear();
    module.use_auto_spmd_partitioning = false;
    module.device_type.clear();
    module.input_output_alias.take_if(|alias| alias.entries.is_empty());
    if let Some(alias) = &mut module.input_output_alias {
        alias.entries.sort_by(|one, other| one.output_shape_index.cmp(&other.output_shape_index));
    }
    module.buffer_donor.take_if(|donor| donor.entries.is_empty());
    module.frontend_attributes.take_if(|attributes| attributes.map.is_empty());
    module.stack_frame_index.take_if(|index| *index == Default::default());
    module.original_value_recovery_table.take_if(|table| table.entries.is_empty());
    module.host_program_shape.iter_mut().for_each(normalize_program_shape);
    let entries = module.original_value_recovery_table.iter_mut().flat_map(|table| &mut table.entries);
    entries.filter_map(|entry| entry.recovery_module.as_mut()).for_each(normalize);
}

/// Gives fixed names to the parts that the short form of an asynchronous operation does not name. Returns the ids of
/// the computations that it stands for.
fn normalize_wrapped(module: &mut HloModuleProto) -> Vec<i64> {
    let is_start = |instruction: &&HloInstructionProto| instruction.opcode == "async-start";
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let wrapped: Vec<(i64, String)> = instructions
        .filter(is_start)
        .filter_map(|start| Some((*start.called_computation_ids.first()?, start.name.clone())))
        .collect();
    let mut short = Vec::new();
    for (id, name) in wrapped {
        let Some(computation) = module.computations.iter_mut().find(|computation| computation.id == id) else {
            continue;
        };
        let root_id = computation.root_id;
        let is_short =
            |instruction: &HloInstructionProto| instruction.id == root_id || instruction.opcode == "parameter";
        if !computation.instructions.iter().all(is_short) {
            continue;
        }
        short.push(id);
        computation.name = format!("wrapped by {name}");
        for instruction in &mut computation.instructions {
            instruction.name = match instruction.id == root_id {
                true => "root".to_string(),
                false => format!("parameter {:04}", instruction.parameter_number),
            };
            instruction.metadata = None;
            instruction.backend_config.clear();
            instruction.original_value = None;
            instruction.frontend_attributes = None;
        }
        if let Some(shape) = &mut computation.program_shape {
            shape.parameter_names.clear();
        }
    }
    short
}

/// Puts what metadata names by its place in the module where it is named.
fn normalize_payload(instruction: &mut HloInstructionProto, payloads: &[Vec<u8>]) {
    let payload = instruction.metadata.as_mut().and_then(|metadata| metadata.metadata_payload.as_mut());
    if let Some(source) = payload.and_then(|payload| payload.payload_source.as_mut())
        && let PayloadSource::Id(id) = source
    {
        *source = PayloadSource::Value(payloads[*id as usize].clone());
    }
}

fn normalize_computation(computation: &mut HloComputationProto) {
    computation.program_shape.iter_mut().for_each(normalize_program_shape);
    if computation.execution_thread == "main" {
        computation.execution_thread.clear();
    }
}

fn normalize_program_shape(shape: &mut ProgramShapeProto) {
    shape.parameters.iter_mut().chain(&mut shape.result).for_each(normalize_shape);
}

fn normalize_shape(shape: &mut ShapeProto) {
    if !shape.is_dynamic_dimension.contains(&true) {
        shape.is_dynamic_dimension.clear();
    }
    shape.layout.as_deref_mut().into_iter().for_each(normalize_layout);
    // A scalar's layout says nothing.
    let neutral = LayoutProto { tail_padding_alignment_in_elements: 1, ..Default::default() };
    let is_scalar = shape.dimensions.is_empty();
    shape.layout.take_if(|layout| is_scalar && **layout == neutral);
    shape.tuple_shapes.iter_mut().for_each(normalize_shape);
}

fn normalize_layout(layout: &mut LayoutProto) {
    if layout.tail_padding_alignment_in_elements == 0 {
        layout.tail_padding_alignment_in_elements = 1;
    }
}

fn normalize_literal(literal: &mut LiteralProto) {
    if let Some(shape) = &mut literal.shape {
        // The value of a constant does not lie where the constant does: of the layout the order alone counts.
        if let Some(layout) = &mut shape.layout {
            **layout = LayoutProto { minor_to_major: layout.minor_to_major.clone(), ..Default::default() };
        }
        normalize_shape(shape);
    }
    literal.tuple_literals.iter_mut().for_each(normalize_literal);
}

/// Brings the attributes of an instruction into the same normal form.
pub fn normalize_instruction(instruction: &mut HloInstructionProto) {
    instruction.shape.iter_mut().for_each(normalize_shape);
    instruction.outfeed_shape.as_deref_mut().into_iter().for_each(normalize_shape);
    instruction.operand_shapes_with_layout.iter_mut().for_each(normalize_shape);
    instruction.literal.as_deref_mut().into_iter().for_each(normalize_literal);
    if let Some(metadata) = &mut instruction.metadata {
        metadata.size_of_generated_code_in_bytes = 0;
        metadata.size_of_memory_working_set_in_bytes = 0;
        metadata.profile_info = None;
    }
    instruction.metadata.take_if(|metadata| **metadata == Default::default());
    instruction.frontend_attributes.take_if(|attributes| attributes.map.is_empty());
    instruction.statistics_viz.take_if(|statistics| statistics.statistics.is_empty());
    instruction.block_scaling_config.take_if(|config| **config == Default::default());
    instruction.sparsity_config.take_if(|config| **config == Default::default());
    instruction.parameter_replication.take_if(|list| list.replicated_at_leaf_buffers.is_empty());
    instruction.window.take_if(|window| window.dimensions.is_empty());
    instruction.collective_device_list.take_if(|list| **list == Default::default());
    instruction.result_accuracy.take_if(|accuracy| match &accuracy.specs {
        None => true,
        Some(specs) => *specs == meshloom::hlo::proto::result_accuracy::Specs::Mode(0),
    });
    // It follows from the type of the comparison, and only some versions of XLA state it.
    instruction.comparison_order.clear();
    // XLA writes the keys of a backend's configuration in any order.
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(&instruction.backend_config) {
        instruction.backend_config = json.to_string().into_bytes();
    }
    if instruction.custom_call_api_version == CustomCallApiVersion::ApiVersionOriginal as i32 {
        instruction.custom_call_api_version = 0;
    }
    if instruction.feature_group_count == 1 {
        instruction.feature_group_count = 0;
    }
    if instruction.batch_group_count == 1 {
        instruction.batch_group_count = 0;
    }
    if let Some(config) = &mut instruction.precision_config
        && config.operand_precision.iter().all(|&precision| precision == 0)
    {
        config.operand_precision.clear();
    }
    instruction.precision_config.take_if(|config| **config == Default::default());
    if instruction.async_execution_thread == "main" {
        instruction.async_execution_thread.clear();
    }
    if instruction.opcode == "constant"
        && let (Some(shape), Some(literal)) = (&instruction.shape, &instruction.literal)
        && shape.element_type != PrimitiveType::Tuple as i32
        && literal.shape.is_none()
    {
        panic!("a constant without the shape of its literal");
    }
}
