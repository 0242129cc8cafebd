//! Tiny HLO modules, written out as protos: the runtime is tested without the emitter.

use meshloom::hlo::proto::hlo_input_output_alias_proto::AliasEntryProto;
use meshloom::hlo::proto::{
    DotDimensionNumbers, HloComputationProto, HloInputOutputAliasProto, HloInstructionProto, HloModuleProto, Kind,
    LayoutProto, LiteralProto, OpSharding, PrimitiveType, ProgramShapeProto, ShapeProto, op_sharding,
};
use prost::Message;

fn shape(dims: &[usize]) -> ShapeProto {
    let layout = LayoutProto { minor_to_major: (0..dims.len() as i64).rev().collect(), ..Default::default() };
    ShapeProto {
        element_type: PrimitiveType::F32.into(),
        dimensions: dims.iter().map(|&size| size as i64).collect(),
        is_dynamic_dimension: vec![false; dims.len()],
        layout: Some(Box::new(layout)),
        ..Default::default()
    }
}

fn tuple(shapes: &[ShapeProto]) -> ShapeProto {
    ShapeProto { element_type: PrimitiveType::Tuple.into(), tuple_shapes: shapes.to_vec(), ..Default::default() }
}

fn instruction(id: i64, name: &str, opcode: &str, shape: ShapeProto, operands: &[i64]) -> HloInstructionProto {
    HloInstructionProto {
        id,
        name: name.into(),
        opcode: opcode.into(),
        shape: Some(shape),
        operand_ids: operands.to_vec(),
        ..Default::default()
    }
}

fn parameter(id: i64, number: i64, name: &str, dims: &[usize]) -> HloInstructionProto {
    HloInstructionProto { parameter_number: number, ..instruction(id, name, "parameter", shape(dims), &[]) }
}

/// A computation whose root is its last instruction.
fn computation(id: i64, name: &str, instructions: Vec<HloInstructionProto>) -> HloComputationProto {
    let mut parameters: Vec<_> = instructions.iter().filter(|i| i.opcode == "parameter").collect();
    parameters.sort_by_key(|parameter| parameter.parameter_number);
    let root = instructions.last().expect("a root");
    let program_shape = ProgramShapeProto {
        parameters: parameters.iter().filter_map(|parameter| parameter.shape.clone()).collect(),
        result: root.shape.clone(),
        parameter_names: parameters.iter().map(|parameter| parameter.name.clone()).collect(),
    };
    HloComputationProto {
        id,
        name: name.into(),
        root_id: root.id,
        program_shape: Some(program_shape),
        instructions,
        ..Default::default()
    }
}

/// A module whose entry is the last computation.
fn module(computations: Vec<HloComputationProto>) -> HloModuleProto {
    let entry = computations.last().expect("an entry");
    HloModuleProto {
        name: "test".into(),
        entry_computation_name: entry.name.clone(),
        entry_computation_id: entry.id,
        host_program_shape: entry.program_shape.clone(),
        computations,
        ..Default::default()
    }
}

fn add_module(dims: &[usize], result: &[usize]) -> HloModuleProto {
    let instructions = vec![
        parameter(1, 0, "left", dims),
        parameter(2, 1, "right", dims),
        instruction(3, "sum", "add", shape(result), &[1, 2]),
    ];
    module(vec![computation(1, "main", instructions)])
}

/// `left + right`.
pub fn add(dims: &[usize]) -> Vec<u8> {
    add_module(dims, dims).encode_to_vec()
}

/// An addition whose stated result has another shape.
pub fn add_with_wrong_result() -> Vec<u8> {
    add_module(&[4], &[5]).encode_to_vec()
}

/// A module whose entry's root does not exist.
pub fn without_root() -> Vec<u8> {
    let mut module = add_module(&[4], &[4]);
    module.computations[0].root_id = 99;
    module.encode_to_vec()
}

/// `left + right` in the memory of `left`.
pub fn donating_add(dims: &[usize]) -> Vec<u8> {
    add_with_aliases(dims, &[(&[], 0)])
}

/// As [`add`], but these outputs share their memory with these parameters.
pub fn add_with_aliases(dims: &[usize], aliases: &[(&[i64], i64)]) -> Vec<u8> {
    let entry = |&(output, parameter_number): &(&[i64], i64)| AliasEntryProto {
        output_shape_index: output.to_vec(),
        parameter_number,
        kind: Kind::MayAlias.into(),
        ..Default::default()
    };
    let alias = HloInputOutputAliasProto { entries: aliases.iter().map(entry).collect() };
    HloModuleProto { input_output_alias: Some(alias), ..add_module(dims, dims) }.encode_to_vec()
}

/// The argument, laid out with its first dimension minor.
pub fn column_major_copy(dims: &[usize]) -> Vec<u8> {
    let mut result = shape(dims);
    let layout = LayoutProto { minor_to_major: (0..dims.len() as i64).collect(), ..Default::default() };
    result.layout = Some(Box::new(layout));
    let instructions = vec![parameter(1, 0, "value", dims), instruction(2, "copy", "copy", result, &[1])];
    module(vec![computation(1, "main", instructions)]).encode_to_vec()
}

fn replicated() -> OpSharding {
    OpSharding { r#type: op_sharding::Type::Replicated.into(), ..Default::default() }
}

fn rows_over(device_count: i64) -> OpSharding {
    OpSharding {
        r#type: op_sharding::Type::Other.into(),
        tile_assignment_dimensions: vec![device_count, 1],
        tile_assignment_devices: (0..device_count).collect(),
        ..Default::default()
    }
}

fn rows_over_eight() -> OpSharding {
    rows_over(8)
}

/// `(left · right, sum of left)` with `left` and the product split by rows over eight devices: the sum needs an
/// all-reduce.
pub fn sharded_dot() -> Vec<u8> {
    sharded_dot_over(8)
}

/// [`sharded_dot`] over another number of devices, a divisor of 16.
pub fn sharded_dot_over(device_count: i64) -> Vec<u8> {
    let rows = || rows_over(device_count);
    let add = computation(
        1,
        "add",
        vec![parameter(1, 0, "x", &[]), parameter(2, 1, "y", &[]), instruction(3, "plus", "add", shape(&[]), &[1, 2])],
    );
    let sharded = |sharding, instruction| HloInstructionProto { sharding: Some(Box::new(sharding)), ..instruction };
    let dimensions = DotDimensionNumbers {
        lhs_contracting_dimensions: vec![1],
        rhs_contracting_dimensions: vec![0],
        ..Default::default()
    };
    let zero = LiteralProto { shape: Some(shape(&[])), f32s: vec![0.0], ..Default::default() };
    let both = OpSharding {
        r#type: op_sharding::Type::Tuple.into(),
        tuple_shardings: vec![rows(), replicated()],
        ..Default::default()
    };
    let main = vec![
        sharded(rows(), parameter(11, 0, "left", &[16, 4])),
        sharded(replicated(), parameter(12, 1, "right", &[4, 2])),
        HloInstructionProto {
            dot_dimension_numbers: Some(Box::new(dimensions)),
            ..instruction(13, "product", "dot", shape(&[16, 2]), &[11, 12])
        },
        HloInstructionProto { literal: Some(Box::new(zero)), ..instruction(14, "zero", "constant", shape(&[]), &[]) },
        HloInstructionProto {
            dimensions: vec![0, 1],
            called_computation_ids: vec![1],
            ..instruction(15, "total", "reduce", shape(&[]), &[11, 14])
        },
        sharded(both, instruction(16, "both", "tuple", tuple(&[shape(&[16, 2]), shape(&[])]), &[13, 15])),
    ];
    module(vec![add, computation(2, "main", main)]).encode_to_vec()
}

/// [`sharded_dot`] with another sharding on its result, of the types that make XLA end the process.
pub fn sharded_dot_with_result_sharding(sharding: OpSharding) -> Vec<u8> {
    let mut module = HloModuleProto::decode(&*sharded_dot()).expect("our own module");
    module.computations[1].instructions[5].sharding = Some(Box::new(sharding));
    module.encode_to_vec()
}

/// Shardings that cannot be those of a pair of a matrix and a scalar, and what is wrong with each.
pub fn bad_pair_shardings() -> Vec<(OpSharding, &'static str)> {
    let tuple =
        |tuple_shardings| OpSharding { r#type: op_sharding::Type::Tuple.into(), tuple_shardings, ..Default::default() };
    vec![
        (replicated(), "the entry's result \"both\" is a tuple, but its sharding is not a tuple's"),
        (rows_over_eight(), "\"both\" of \"main\" is tiled, but the value is a tuple"),
        (tuple(vec![replicated()]), "\"both\" of \"main\" has 1 elements, expected 2"),
        (tuple(vec![replicated(), tuple(vec![])]), "an element 1 that is a tuple's, but the value is not a tuple"),
        (tuple(vec![replicated(), rows_over_eight()]), "an element 1 that has 2 tile dimensions, expected 0"),
    ]
}

/// `value = sqrt(value + value)`, `count` times over: a program that runs as long as its argument says, and ends
/// near 2.
pub fn repeated_root(dims: &[usize]) -> Vec<u8> {
    let element = |id, name: &str, index: i64, shape, carry| HloInstructionProto {
        tuple_index: index,
        ..instruction(id, name, "get-tuple-element", shape, &[carry])
    };
    let number = |id, name: &str, value: f32| HloInstructionProto {
        literal: Some(Box::new(LiteralProto { shape: Some(shape(&[])), f32s: vec![value], ..Default::default() })),
        ..instruction(id, name, "constant", shape(&[]), &[])
    };
    let carry = || tuple(&[shape(&[]), shape(&[]), shape(dims)]);
    let carried = |id, name: &str| HloInstructionProto { shape: Some(carry()), ..parameter(id, 0, name, &[]) };
    let pred = ShapeProto { element_type: PrimitiveType::Pred.into(), ..shape(&[]) };
    let condition = vec![
        carried(1, "seen"),
        element(2, "done", 0, shape(&[]), 1),
        element(3, "wanted", 1, shape(&[]), 1),
        HloInstructionProto { comparison_direction: "LT".into(), ..instruction(4, "more", "compare", pred, &[2, 3]) },
    ];
    let body = vec![
        carried(11, "carried"),
        element(12, "before", 0, shape(&[]), 11),
        element(13, "all", 1, shape(&[]), 11),
        element(14, "old", 2, shape(dims), 11),
        number(15, "one", 1.0),
        instruction(16, "after", "add", shape(&[]), &[12, 15]),
        instruction(17, "twice", "add", shape(dims), &[14, 14]),
        instruction(18, "new", "sqrt", shape(dims), &[17]),
        instruction(19, "next", "tuple", carry(), &[16, 13, 18]),
    ];
    let main = vec![
        parameter(21, 0, "value", dims),
        parameter(22, 1, "count", &[]),
        number(23, "zero", 0.0),
        instruction(24, "first", "tuple", carry(), &[23, 22, 21]),
        HloInstructionProto { called_computation_ids: vec![2, 1], ..instruction(25, "loop", "while", carry(), &[24]) },
        element(26, "result", 2, shape(dims), 25),
    ];
    let computations =
        vec![computation(1, "condition", condition), computation(2, "body", body), computation(3, "main", main)];
    HloModuleProto { name: "repeated_root".into(), ..module(computations) }.encode_to_vec()
}

/// `transpose(A) * B` of two constants, element by element, as a vector: `[1, 6, 15, 8, 20, 36]`. It is written as a
/// dot with batch dimensions alone. There is one parameter, which is not used.
pub fn dot_of_transposed_constant() -> Vec<u8> {
    let numbers = |id, name: &str, dims: &[usize]| {
        let literal = LiteralProto {
            shape: Some(shape(dims)),
            f32s: (1..=6).map(|number| number as f32).collect(),
            ..Default::default()
        };
        HloInstructionProto { literal: Some(Box::new(literal)), ..instruction(id, name, "constant", shape(dims), &[]) }
    };
    let dimensions = DotDimensionNumbers {
        lhs_batch_dimensions: vec![0, 1],
        rhs_batch_dimensions: vec![0, 1],
        ..Default::default()
    };
    let main = vec![
        parameter(1, 0, "unused", &[]),
        numbers(2, "left", &[6]),
        instruction(3, "rows", "reshape", shape(&[3, 2]), &[2]),
        HloInstructionProto { dimensions: vec![1, 0], ..instruction(4, "columns", "transpose", shape(&[2, 3]), &[3]) },
        numbers(5, "right", &[2, 3]),
        HloInstructionProto {
            dot_dimension_numbers: Some(Box::new(dimensions)),
            ..instruction(6, "product", "dot", shape(&[2, 3]), &[4, 5])
        },
        instruction(7, "flat", "reshape", shape(&[6]), &[6]),
    ];
    module(vec![computation(1, "main", main)]).encode_to_vec()
}
