//! The edits that shrinking makes. Each keeps a module well-formed: operands stand before their readers, parameters are
//! numbered without gaps, and the shapes of the program are those of its parameters and its root.

use meshloom_hlo::is_tuple;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cost::is_by_element;
use crate::partitioning::Border;
pub(super) use crate::partitioning::is_manual;
use meshloom_hlo::Literal;
use meshloom_hlo::proto::{
    HloComputationProto, HloInstructionProto, HloModuleProto, OpSharding, ProgramShapeProto, ShapeProto, op_sharding,
};
use meshloom_hlo::sort;
use meshloom_hlo::{DType, TensorType};
use meshloom_hlo::{literal_proto, shape, tensor_type};

/// A constant with more elements becomes a broadcast number.
const MOST_ELEMENTS: usize = 4096;

/// Returns the position of the entry among the computations.
pub(super) fn entry_index(module: &HloModuleProto) -> Option<usize> {
    let by_id = || module.computations.iter().position(|it| it.id == module.entry_computation_id);
    let by_name = || module.computations.iter().position(|it| it.name == module.entry_computation_name);
    by_id().or_else(by_name)
}

pub(super) fn entry(module: &HloModuleProto) -> Option<&HloComputationProto> {
    entry_index(module).and_then(|index| module.computations.get(index))
}

pub(super) fn entry_mut(module: &mut HloModuleProto) -> Option<&mut HloComputationProto> {
    entry_index(module).and_then(|index| module.computations.get_mut(index))
}

/// Returns the number of instructions of all computations.
pub fn instruction_count(module: &HloModuleProto) -> usize {
    module.computations.iter().map(|computation| computation.instructions.len()).sum()
}

/// Returns the size that every edit must reduce: first the number of instructions, where simpler ones count less, then
/// the number of elements.
pub(super) fn size(module: &HloModuleProto) -> (usize, u128) {
    let weight = |instruction: &HloInstructionProto| match instruction.opcode.as_str() {
        "parameter" => 8,
        "constant" => 9,
        _ => 10,
    };
    let elements = |instruction: &HloInstructionProto| -> u128 { instruction.shape.as_ref().map_or(0, element_count) };
    let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
    (instructions().map(weight).sum(), instructions().map(elements).sum())
}

fn element_count(shape: &ShapeProto) -> u128 {
    let own = shape.dimensions.iter().map(|&size| u128::from(size.max(0).unsigned_abs())).product::<u128>();
    if shape.tuple_shapes.is_empty() { own } else { shape.tuple_shapes.iter().map(element_count).sum() }
}

pub(super) fn instruction_type(instruction: &HloInstructionProto) -> Option<TensorType> {
    instruction.shape.as_ref().and_then(tensor_type)
}

/// Whether element types and dimensions agree; layouts may differ.
pub(super) fn is_same_shape(left: &ShapeProto, right: &ShapeProto) -> bool {
    left.element_type == right.element_type
        && left.dimensions == right.dimensions
        && left.tuple_shapes.len() == right.tuple_shapes.len()
        && left.tuple_shapes.iter().zip(&right.tuple_shapes).all(|(left, right)| is_same_shape(left, right))
}

/// Returns an instruction with only the fields that identify it: id, name, shape, source and sharding.
fn bare(instruction: &HloInstructionProto, opcode: &str) -> HloInstructionProto {
    HloInstructionProto {
        id: instruction.id,
        name: instruction.name.clone(),
        opcode: opcode.to_owned(),
        shape: instruction.shape.clone(),
        metadata: instruction.metadata.clone(),
        sharding: instruction.sharding.clone(),
        ..HloInstructionProto::default()
    }
}

/// Makes an instruction of the entry the program's last parameter. It returns false for a value that no caller can
/// give.
pub(super) fn make_parameter(module: &mut HloModuleProto, id: i64) -> bool {
    let Some(computation) = entry_mut(module) else { return false };
    let number = computation.instructions.iter().filter(|it| it.opcode == "parameter").count() as i64;
    let Some(instruction) = computation.instructions.iter_mut().find(|it| it.id == id) else { return false };
    let Some(ty) = instruction_type(instruction).filter(|_| !is_manual(instruction)) else { return false };
    let sharding = instruction.sharding.take();
    // Callers give values in row-major order.
    *instruction = HloInstructionProto {
        parameter_number: number,
        shape: Some(shape(&ty)),
        sharding,
        ..bare(instruction, "parameter")
    };
    true
}

/// Makes an instruction of the entry a constant of small numbers that repeat.
pub(super) fn make_constant(module: &mut HloModuleProto, id: i64) -> bool {
    let next = next_id(module);
    let Some(computation) = entry_mut(module) else { return false };
    let Some(place) = computation.instructions.iter().position(|it| it.id == id) else { return false };
    let Some(instruction) = computation.instructions.get_mut(place) else { return false };
    let Some(ty) = instruction_type(instruction) else { return false };
    if ty.element_count() <= MOST_ELEMENTS {
        let literal = pattern(&ty);
        *instruction = HloInstructionProto {
            shape: Some(shape(&ty)),
            literal: Some(Box::new(literal_proto(&ty, literal.bytes()))),
            ..bare(instruction, "constant")
        };
        return true;
    }
    let scalar = TensorType::scalar(ty.dtype);
    let number = pattern(&scalar);
    // The constant has an id and a name of its own.
    let constant = HloInstructionProto {
        id: next,
        name: format!("{}.number", instruction.name),
        shape: Some(shape(&scalar)),
        literal: Some(Box::new(literal_proto(&scalar, number.bytes()))),
        sharding: instruction.sharding.clone(),
        ..bare(instruction, "constant")
    };
    *instruction = HloInstructionProto { operand_ids: vec![next], ..bare(instruction, "broadcast") };
    computation.instructions.insert(place, constant);
    true
}

/// Returns 1, 2, 3, ..., over and over; every third `pred` is false.
fn pattern(ty: &TensorType) -> Literal {
    let number = |index: usize| match ty.dtype {
        DType::Pred => f64::from(u8::from(!index.is_multiple_of(3))),
        dtype if dtype.byte_count() == 1 => (index % 4) as f64,
        _ => (1 + index % 7) as f64,
    };
    Literal::from_fn(ty.clone(), number)
}

fn next_id(module: &HloModuleProto) -> i64 {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    instructions.map(|instruction| instruction.id).max().unwrap_or(0) + 1
}

/// Redirects the readers of a value of the entry to another value, and the root too.
pub(super) fn forward(module: &mut HloModuleProto, id: i64, instead: i64) -> bool {
    let Some(computation) = entry_mut(module) else { return false };
    redirect(computation, &FxHashMap::from_iter([(id, instead)]));
    true
}

/// Returns the final replacement of a value: a replacement may itself be replaced. In a broken module the replacements
/// may go in a circle.
fn replacement(instead: &FxHashMap<i64, i64>, id: i64) -> i64 {
    let mut found = id;
    for _ in 0..=instead.len() {
        match instead.get(&found) {
            Some(&other) => found = other,
            None => return found,
        }
    }
    id
}

fn redirect(computation: &mut HloComputationProto, instead: &FxHashMap<i64, i64>) {
    let follow = |id: &mut i64| *id = replacement(instead, *id);
    for instruction in &mut computation.instructions {
        instruction.operand_ids.iter_mut().for_each(follow);
        instruction.control_predecessor_ids.iter_mut().for_each(follow);
    }
    follow(&mut computation.root_id);
}

/// Makes an instruction of the entry the program's result. A value of one device is returned as if all devices had it
/// whole.
pub(super) fn make_root(module: &mut HloModuleProto, id: i64) -> bool {
    let next = next_id(module);
    let Some(computation) = entry_mut(module) else { return false };
    let Some(instruction) = computation.instructions.iter().find(|it| it.id == id) else { return false };
    if instruction.shape.as_ref().is_none_or(|shape| tensor_type(shape).is_none()) {
        return false;
    }
    computation.root_id = id;
    if is_manual(instruction) {
        let sharding = |of| Some(Box::new(OpSharding { r#type: i32::from(of), ..OpSharding::default() }));
        let call = |id, operand: &HloInstructionProto, target: &str, of| {
            let mut call = HloInstructionProto {
                id,
                name: format!("{}.{target}", instruction.name),
                operand_ids: vec![operand.id],
                sharding: sharding(of),
                ..bare(operand, "custom-call")
            };
            call.custom_call_target = target.to_owned();
            call
        };
        let held = call(next, instruction, "Sharding", op_sharding::Type::Manual);
        let whole = call(next + 1, &held, "SPMDShardToFullShape", op_sharding::Type::Replicated);
        computation.root_id = whole.id;
        computation.instructions.extend([held, whole]);
    }
    true
}

/// Keeps only some elements of the entry's result, a tuple; a single one becomes the result itself.
pub(super) fn keep_outputs(module: &mut HloModuleProto, kept: &[usize]) -> bool {
    let Some(computation) = entry_mut(module) else { return false };
    let root_id = computation.root_id;
    let Some(root) = computation.instructions.iter_mut().find(|it| it.id == root_id) else { return false };
    if root.opcode != "tuple" {
        return false;
    }
    let of = |operands: &[i64]| kept.iter().filter_map(|&index| operands.get(index).copied()).collect::<Vec<i64>>();
    let operands = of(&root.operand_ids);
    if let [only] = operands[..] {
        return make_root(module, only);
    }
    let Some(shape) = &mut root.shape else { return false };
    shape.tuple_shapes = kept.iter().filter_map(|&index| shape.tuple_shapes.get(index).cloned()).collect();
    if let Some(sharding) = root.sharding.as_deref_mut().filter(|it| !it.tuple_shardings.is_empty()) {
        let parts = &sharding.tuple_shardings;
        sharding.tuple_shardings = kept.iter().filter_map(|&index| parts.get(index).cloned()).collect();
    }
    root.operand_ids = operands;
    root.frontend_attributes = None;
    true
}

/// Returns the number of elements of the entry's result, if an instruction `tuple` makes it.
pub(super) fn output_count(module: &HloModuleProto) -> Option<usize> {
    let computation = entry(module)?;
    let root = computation.instructions.iter().find(|it| it.id == computation.root_id)?;
    (root.opcode == "tuple").then_some(root.operand_ids.len())
}

/// Makes a computation the program's entry.
pub(super) fn make_entry(module: &mut HloModuleProto, index: usize) -> bool {
    let Some(computation) = module.computations.get_mut(index) else { return false };
    (computation.is_fusion_computation, computation.execution_thread) = (false, "main".to_owned());
    module.entry_computation_id = computation.id;
    module.entry_computation_name = computation.name.clone();
    true
}

/// Replaces a call in the entry by the instructions that it runs: the computation of a call or a fusion, the body of a
/// loop once, a branch of a conditional.
pub(super) fn inline(module: &mut HloModuleProto, id: i64, which: usize) -> bool {
    let next = next_id(module);
    let Some(entry_at) = entry_index(module) else { return false };
    let Some(call) = module.computations[entry_at].instructions.iter().find(|it| it.id == id) else { return false };
    let (called, operands) = match call.opcode.as_str() {
        "call" | "fusion" if which == 0 => (call.called_computation_ids.first(), call.operand_ids.clone()),
        "while" if which == 0 => (call.called_computation_ids.first(), call.operand_ids.clone()),
        "conditional" => {
            let operand = call.operand_ids.get(which + 1).copied();
            (call.called_computation_ids.get(which), operand.into_iter().collect())
        }
        _ => return false,
    };
    let Some(called) = called.copied() else { return false };
    let (call, name) = (call.id, call.name.clone());
    let Some(body) = module.computations.iter().find(|it| it.id == called).cloned() else { return false };
    let mut new_ids: FxHashMap<i64, i64> = FxHashMap::default();
    let mut inserted = Vec::new();
    for instruction in &body.instructions {
        if instruction.opcode == "parameter" {
            let number = usize::try_from(instruction.parameter_number).ok();
            let Some(&operand) = number.and_then(|number| operands.get(number)) else { return false };
            new_ids.insert(instruction.id, operand);
            continue;
        }
        let id = next + inserted.len() as i64;
        new_ids.insert(instruction.id, id);
        let renamed = |old: &i64| new_ids.get(old).copied();
        let Some(operand_ids) = instruction.operand_ids.iter().map(renamed).collect::<Option<Vec<i64>>>() else {
            return false;
        };
        let control_predecessor_ids = instruction.control_predecessor_ids.iter().filter_map(renamed).collect();
        let name = format!("{}.in.{name}", instruction.name);
        inserted.push(HloInstructionProto { id, name, operand_ids, control_predecessor_ids, ..instruction.clone() });
    }
    let Some(&root) = new_ids.get(&body.root_id) else { return false };
    let computation = &mut module.computations[entry_at];
    let Some(place) = computation.instructions.iter().position(|it| it.id == call) else { return false };
    computation.instructions.splice(place..place, inserted);
    redirect(computation, &FxHashMap::from_iter([(call, root)]));
    true
}

/// Gives the program the elements of tuples as parameters of their own: a caller gives arrays.
pub(super) fn flatten_parameters(module: &mut HloModuleProto) {
    let mut next = next_id(module);
    let Some(computation) = entry_mut(module) else { return };
    let instructions = std::mem::take(&mut computation.instructions);
    let mut number = instructions.iter().filter(|it| it.opcode == "parameter").count() as i64;
    for mut instruction in instructions {
        if instruction.opcode == "parameter" && instruction.shape.as_ref().is_some_and(is_tuple) {
            write_elements(&mut instruction, &mut computation.instructions, &mut next, &mut number);
        }
        computation.instructions.push(instruction);
    }
}

/// Replaces a tuple parameter by a tuple of new parameters.
fn write_elements(
    tuple: &mut HloInstructionProto,
    before: &mut Vec<HloInstructionProto>,
    next: &mut i64,
    number: &mut i64,
) {
    let shapes = tuple.shape.as_ref().map_or(&[][..], |shape| &shape.tuple_shapes).to_vec();
    let mut operand_ids = Vec::new();
    for (index, shape) in shapes.into_iter().enumerate() {
        let is_tuple = is_tuple(&shape);
        let mut element = HloInstructionProto {
            id: *next,
            name: format!("{}.{index}", tuple.name),
            opcode: "parameter".to_owned(),
            shape: Some(shape),
            parameter_number: *number,
            ..HloInstructionProto::default()
        };
        operand_ids.push(*next);
        *next += 1;
        if is_tuple {
            write_elements(&mut element, before, next, number);
        } else {
            *number += 1;
        }
        before.push(element);
    }
    *tuple = HloInstructionProto { operand_ids, ..bare(tuple, "tuple") };
}

/// Replaces reads of a tuple's element by the value that was put into the tuple.
pub(super) fn read_through_tuples(module: &mut HloModuleProto) {
    let Some(computation) = entry_mut(module) else { return };
    let mut elements: FxHashMap<i64, Vec<i64>> = FxHashMap::default();
    let mut instead: FxHashMap<i64, i64> = FxHashMap::default();
    for instruction in &computation.instructions {
        let index = usize::try_from(instruction.tuple_index).ok();
        match (instruction.opcode.as_str(), instruction.operand_ids.first()) {
            ("tuple", _) => {
                elements.insert(instruction.id, instruction.operand_ids.clone());
            }
            ("get-tuple-element", Some(&tuple)) => {
                let element = elements.get(&replacement(&instead, tuple)).and_then(|it| it.get(index?));
                if let Some(&element) = element {
                    instead.insert(instruction.id, element);
                }
            }
            _ => {}
        }
    }
    if !instead.is_empty() {
        redirect(computation, &instead);
    }
}

/// Drops everything that the result does not depend on: instructions of the entry, its parameters, and computations.
/// With `keeps_dead`, instructions stay.
pub(super) fn tidy(module: &mut HloModuleProto, keeps_dead: bool) {
    flatten_parameters(module);
    read_through_tuples(module);
    // All of these refer to instructions, parameters or outputs that may be gone.
    (module.schedule, module.input_output_alias, module.buffer_donor) = (None, None, None);
    (module.spmd_output_sharding, module.original_value_recovery_table) = (None, None);
    module.spmd_parameters_shardings.clear();
    module.cross_program_prefetches.clear();
    module.profile_info.clear();
    module.debug_attributes.clear();
    let Some(computation) = entry_mut(module) else { return };
    let root = computation.root_id;
    let stays = |it: &&HloInstructionProto| match keeps_dead {
        true => it.opcode != "parameter",
        false => is_effect(it) && Border::of(it).is_none(),
    };
    let mut is_read = FxHashSet::from_iter([root]);
    is_read.extend(computation.instructions.iter().filter(stays).map(|it| it.id));
    // Operands stand before their readers.
    for instruction in computation.instructions.iter().rev() {
        if is_read.contains(&instruction.id) {
            is_read.extend(instruction.operand_ids.iter().copied());
        }
    }
    computation.instructions.retain(|it| is_read.contains(&it.id));
    let mut parameters: Vec<&mut HloInstructionProto> =
        computation.instructions.iter_mut().filter(|it| it.opcode == "parameter").collect();
    sort::by_key(&mut parameters, |it| it.parameter_number);
    for (number, parameter) in parameters.iter_mut().enumerate() {
        parameter.parameter_number = number as i64;
    }
    let signature = ProgramShapeProto {
        parameters: parameters.iter().filter_map(|it| it.shape.clone()).collect(),
        parameter_names: parameters.iter().map(|it| it.name.clone()).collect(),
        result: None,
    };
    let result = computation.instructions.iter().find(|it| it.id == root).and_then(|it| it.shape.clone());
    for instruction in &mut computation.instructions {
        instruction.control_predecessor_ids.retain(|id| is_read.contains(id));
    }
    let signature = ProgramShapeProto { result, ..signature };
    computation.program_shape = Some(signature.clone());
    module.host_program_shape = Some(signature);
    drop_computations(module);
}

/// Whether an instruction has an effect, whether or not the result depends on it.
fn is_effect(instruction: &HloInstructionProto) -> bool {
    matches!(instruction.opcode.as_str(), "outfeed" | "infeed" | "send" | "recv" | "send-done" | "recv-done")
        || instruction.custom_call_has_side_effect
}

/// Drops computations that the entry does not call.
fn drop_computations(module: &mut HloModuleProto) {
    let Some(entry) = entry(module) else { return };
    let mut called = FxHashSet::from_iter([entry.id]);
    let mut open = vec![entry.id];
    while let Some(id) = open.pop() {
        let computation = module.computations.iter().find(|it| it.id == id);
        let ids = computation.into_iter().flat_map(|it| &it.instructions).flat_map(|it| &it.called_computation_ids);
        open.extend(ids.copied().filter(|&id| called.insert(id)));
    }
    module.computations.retain(|it| called.contains(&it.id));
}

/// Opcodes whose meaning does not change if a size is replaced in every shape.
const FOLLOWS_SIZES: [&str; 8] = ["parameter", "constant", "broadcast", "copy", "dot", "reduce", "transpose", "tuple"];

/// Replaces a size of dimensions by a smaller one, in the whole module. It returns false if an instruction may not
/// follow.
pub(super) fn replace_size(module: &mut HloModuleProto, old: i64, new: i64) -> bool {
    if module.computations.iter().flat_map(|it| &it.instructions).any(|it| it.sharding.is_some()) {
        return false;
    }
    let mut constants = Vec::new();
    let entry_id = entry(module).map(|it| it.id);
    for computation in &mut module.computations {
        let is_entry = Some(computation.id) == entry_id;
        for instruction in &mut computation.instructions {
            let Some(shape) = &mut instruction.shape else { return false };
            if !replace_in(shape, old, new) {
                continue;
            }
            let opcode = instruction.opcode.as_str();
            // A bitcast may split elements along one more dimension.
            let is_by_element = is_by_element(opcode) && opcode != "bitcast-convert";
            let follows = FOLLOWS_SIZES.contains(&opcode) || is_by_element;
            if !follows || (instruction.opcode == "constant" && !is_entry) {
                return false;
            }
            if instruction.opcode == "constant" {
                constants.push(instruction.id);
            }
        }
    }
    constants.into_iter().all(|id| make_constant(module, id))
}

fn replace_in(shape: &mut ShapeProto, old: i64, new: i64) -> bool {
    let mut is_changed = false;
    for size in shape.dimensions.iter_mut().filter(|size| **size == old) {
        *size = new;
        is_changed = true;
    }
    for element in &mut shape.tuple_shapes {
        is_changed |= replace_in(element, old, new);
    }
    is_changed
}

/// Returns the sizes of dimensions of the entry's values, the largest first.
pub(super) fn sizes(module: &HloModuleProto) -> Vec<i64> {
    let instructions = entry(module).into_iter().flat_map(|it| &it.instructions);
    let mut sizes: Vec<i64> =
        instructions.filter_map(|it| it.shape.as_ref()).flat_map(|it| it.dimensions.clone()).collect();
    sizes.retain(|&size| size > 1);
    sizes.sort_unstable_by(|left, right| right.cmp(left));
    sizes.dedup();
    sizes
}
