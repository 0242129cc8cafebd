//! Tests of the walk over a module, which tells what runs how often: calls of all kinds, loops whose trip counts can be
//! proved, and modules made to be hard.

use crate::hlo::modules::*;
use meshloom::analysis::{Via, Walk};
use meshloom::hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, LiteralProto, PrimitiveType};
use meshloom::partition::Amount;

const ONCE: Amount = Amount::Exactly(1);

fn trips(id: i64, count: u64, callees: &[i64]) -> HloInstructionProto {
    let backend_config = format!(r#"{{"known_trip_count":{{"n":"{count}"}}}}"#).into_bytes();
    HloInstructionProto { backend_config, ..calling(id, "while", &[1], callees) }
}

/// A computation of one parameter and these instructions.
fn of_one(id: i64, instructions: impl IntoIterator<Item = HloInstructionProto>) -> HloComputationProto {
    computation(id, [instruction(1, "parameter", &[])].into_iter().chain(instructions).collect())
}

/// Executions of the instructions of an opcode, in the order of the walk.
fn executions(module: &HloModuleProto, opcode: &str) -> Vec<Amount> {
    let walk = Walk::of(module);
    walk.steps().filter(|step| step.instruction.opcode == opcode).map(|step| step.place.executions).collect()
}

/// Work that a compiler for TPUs offloads to sparse cores is a custom call by its form alone.
#[test]
fn what_is_offloaded_runs_once() {
    let offloaded = |config: &str| {
        let custom = HloInstructionProto {
            backend_config: config.as_bytes().to_vec(),
            ..calling(3, "custom-call", &[1], &[101])
        };
        executions(&around([custom], [of_one(101, [instruction(10, "tanh", &[1])])]), "tanh")
    };
    let sparse = r#"{"flag_configs":[],"sparse_core_config":{"offload":"OFFLOAD_COLLECTIVE","core_ids":["0"]}}"#;
    assert_eq!(offloaded(sparse), [ONCE]);
    assert_eq!(offloaded(r#"{"sparse_core_config":{"offload":"NONE"}}"#), [Amount::Unknown]);
    assert_eq!(offloaded(""), [Amount::Unknown]);
    // In a proto, what runs asynchronously has no config, and what starts it has.
    let started = |config: &str| {
        let start = HloInstructionProto {
            backend_config: config.as_bytes().to_vec(),
            ..calling(3, "async-start", &[1], &[101])
        };
        let wrapped = of_one(101, [calling(10, "custom-call", &[1], &[102])]);
        executions(&around([start], [wrapped, of_one(102, [instruction(20, "tanh", &[1])])]), "tanh")
    };
    assert_eq!(started(sparse), [ONCE]);
    assert_eq!(started(r#"{"sparse_core_config":{"offload":"NONE"}}"#), [Amount::Unknown]);
}

#[test]
fn each_instruction_follows_what_runs_it() {
    let module = around(
        [trips(2, 3, &[101, 102]), calling(3, "call", &[2], &[103]), instruction(4, "negate", &[3])],
        [
            of_one(101, [calling(10, "fusion", &[1], &[104]), instruction(11, "tanh", &[10])]),
            of_one(102, [instruction(20, "compare", &[1, 1])]),
            of_one(103, [trips(30, 5, &[101, 102])]),
            of_one(104, [instruction(40, "add", &[1, 1])]),
        ],
    );
    let walk = Walk::of(&module);
    assert!(!walk.is_merged());
    let found: Vec<_> = walk
        .steps()
        .filter(|step| step.instruction.opcode != "parameter")
        .map(|step| {
            let path = walk.path(step.place_number).iter().map(|step| step.instruction.id).collect::<Vec<_>>();
            (step.instruction.opcode.as_str(), step.place.executions, step.place.loop_depth, step.place.fused, path)
        })
        .collect();
    let times = Amount::Exactly;
    let expected = [
        ("while", ONCE, 0, false, vec![]),
        ("fusion", times(3), 1, false, vec![2]),
        ("add", times(3), 1, true, vec![2, 10]),
        ("tanh", times(3), 1, false, vec![2]),
        ("compare", times(4), 1, false, vec![2]),
        ("call", ONCE, 0, false, vec![]),
        ("while", ONCE, 0, false, vec![3]),
        ("fusion", times(5), 1, false, vec![3, 30]),
        ("add", times(5), 1, true, vec![3, 30, 10]),
        ("tanh", times(5), 1, false, vec![3, 30]),
        ("compare", times(6), 1, false, vec![3, 30]),
        ("negate", ONCE, 0, false, vec![]),
    ];
    assert_eq!(found, expected);
    for place in walk.places().iter().filter(|place| place.fused) {
        let around = &walk.places()[place.innermost_loop.expect("a loop")];
        assert_eq!(around.caller.expect("a caller").via, Via::LoopBody);
        assert_eq!(around.computation.id, 101);
    }
}

/// Loops multiply, branches may not be taken, and what only a custom call knows is not known.
#[test]
fn executions_multiply() {
    let module = around(
        [trips(2, 3, &[101, 102])],
        [
            of_one(101, [trips(10, 4, &[103, 102])]),
            of_one(102, []),
            of_one(103, [calling(10, "conditional", &[1], &[104, 105])]),
            of_one(104, [instruction(10, "tanh", &[1]), trips(11, 2, &[106, 102])]),
            of_one(105, [calling(10, "custom-call", &[1], &[107])]),
            of_one(106, [instruction(10, "exponential", &[1])]),
            of_one(107, [instruction(10, "log", &[1])]),
        ],
    );
    assert_eq!(executions(&module, "conditional"), [Amount::Exactly(12)]);
    assert_eq!(executions(&module, "tanh"), [Amount::AtMost(12)]);
    assert_eq!(executions(&module, "exponential"), [Amount::AtMost(24)]);
    assert_eq!(executions(&module, "log"), [Amount::Unknown]);
}

/// The two halves of an asynchronous computation name it both.
#[test]
fn asynchronous_computations_run_once() {
    let module = around(
        [
            calling(2, "async-start", &[1], &[101]),
            calling(3, "async-update", &[2], &[101]),
            calling(4, "async-done", &[3], &[101]),
        ],
        [of_one(101, [instruction(10, "tanh", &[1])])],
    );
    assert_eq!(executions(&module, "tanh"), [ONCE]);
    assert!(Walk::of(&module).places()[1].asynchronous);
}

/// Newer modules have loops over the rows of arrays.
#[test]
fn scans_run_once_for_each_row() {
    let rows = |dims: &[i64]| shape(PrimitiveType::F32, dims);
    let stacked = HloInstructionProto { shape: Some(rows(&[7, 4])), ..instruction(2, "iota", &[]) };
    let scan = HloInstructionProto {
        num_carries: 1,
        dimensions: vec![0],
        ..tuple(vec![rows(&[7, 4]), rows(&[4])], calling(3, "scan", &[2, 1], &[101]))
    };
    let module = around([stacked, scan], [of_one(101, [instruction(10, "tanh", &[1])])]);
    assert_eq!(executions(&module, "tanh"), [Amount::Exactly(7)]);
}

/// A computation that calls the next one twice, and so on: there are 2^n ways to the last.
fn doubling(depth: i64) -> HloModuleProto {
    let calls = |id: i64| of_one(id, [calling(10, "call", &[1], &[id + 1]), calling(11, "call", &[10], &[id + 1])]);
    let last = of_one(100 + depth, [instruction(10, "tanh", &[1])]);
    module((100..100 + depth).map(calls).chain([last]).collect())
}

#[test]
fn exponentially_many_ways_are_added_up() {
    let few = doubling(8);
    assert!(!Walk::of(&few).is_merged());
    assert_eq!(executions(&few, "tanh"), vec![ONCE; 256]);
    let many = doubling(40);
    let walk = Walk::of(&many);
    assert!(walk.is_merged());
    assert_eq!(walk.places().len(), 41);
    assert_eq!(executions(&many, "tanh"), [Amount::Exactly(1 << 40)]);
    // Too many to count.
    assert_eq!(executions(&doubling(100), "tanh"), [Amount::Exactly(u64::MAX)]);
}

#[test]
fn circles_of_calls_end() {
    let module = around(
        [calling(2, "call", &[1], &[101]), calling(3, "call", &[2], &[100])],
        [of_one(101, [calling(10, "call", &[1], &[102])]), of_one(102, [calling(10, "fusion", &[1], &[101])])],
    );
    let walk = Walk::of(&module);
    let ids: Vec<i64> = walk.places().iter().map(|place| place.computation.id).collect();
    assert_eq!(ids, [100, 101, 102]);
}

#[test]
fn nests_of_any_depth_are_walked() {
    let depth = 100_000;
    let calls = |id: i64| of_one(id, [calling(10, "call", &[1], &[id + 1])]);
    let last = of_one(depth, [instruction(10, "tanh", &[1])]);
    let module = module((0..depth).map(calls).chain([last]).collect());
    assert_eq!(executions(&module, "tanh"), [ONCE]);
    assert_eq!(Walk::of(&module).path(depth as usize).len(), 64);
}

#[test]
fn ids_that_name_nothing_are_passed_over() {
    let nothing = HloModuleProto { entry_computation_id: 3, ..Default::default() };
    assert_eq!(Walk::of(&nothing).steps().count(), 0);
    let module = around([calling(2, "while", &[77], &[101, 9]), calling(3, "fusion", &[8], &[])], [of_one(101, [])]);
    assert_eq!(executions(&module, "parameter"), [ONCE, Amount::Unknown]);
}

// Trip counts that are written nowhere.

/// A loop whose counter starts at `start`, grows by `step` and is compared with `bound`.
#[derive(Clone, Copy)]
struct Counter {
    start: i32,
    step: i32,
    bound: i32,
    direction: &'static str,
}

impl Counter {
    /// The trip counts of the body, in each way in which a loop is written.
    fn check(self, expected: Option<u64>) {
        let Counter { start, step, bound, direction } = self;
        let expected = expected.map_or(Amount::Unknown, Amount::Exactly);
        type Form = (&'static str, fn(Counter) -> HloModuleProto);
        let forms: [Form; 6] = [
            ("plain", |counter| counter.plain()),
            ("fused", |counter| counter.fused()),
            ("the bound is carried", |counter| counter.carried_bound()),
            ("copied and converted", |counter| counter.converted()),
            ("the body's root is a fusion", |counter| counter.fused_tuple()),
            ("operands the other way round", |counter| counter.flipped()),
        ];
        for (form, module) in forms {
            let found = executions(&module(self), "tanh");
            assert_eq!(found, [expected], "{form}: {start} by {step} while {direction} {bound}");
        }
    }

    /// The carried tuple has the counter, an array and another number.
    fn module(
        self,
        carried: HloInstructionProto,
        condition: Vec<HloInstructionProto>,
        body: Vec<HloInstructionProto>,
        others: Vec<HloComputationProto>,
    ) -> HloModuleProto {
        let parts = || {
            let number = shape(PrimitiveType::S32, &[]);
            vec![number.clone(), shape(PrimitiveType::F32, &[4]), number]
        };
        let parameter = || tuple(parts(), instruction(1, "parameter", &[]));
        let inside = |id, instructions: Vec<HloInstructionProto>| {
            computation(id, [parameter()].into_iter().chain(instructions).collect())
        };
        let body = [instruction(2, "tanh", &[1])].into_iter().chain(body).collect();
        let entry = [
            number(2, self.start),
            carried,
            tuple(parts(), instruction(4, "tuple", &[2, 1, 3])),
            tuple(parts(), calling(5, "while", &[4], &[101, 102])),
        ];
        around(entry, [inside(101, body), inside(102, condition)].into_iter().chain(others))
    }

    fn condition(self) -> Vec<HloInstructionProto> {
        let compare = comparing(self.direction, instruction(12, "compare", &[10, 11]));
        vec![element(10, 1, 0), number(11, self.bound), compare]
    }

    fn body(self) -> Vec<HloInstructionProto> {
        let add = whole(instruction(12, "add", &[11, 10]));
        vec![element(10, 1, 0), number(11, self.step), add, element(13, 1, 2), instruction(14, "tuple", &[12, 2, 13])]
    }

    fn plain(self) -> HloModuleProto {
        self.module(number(3, 0), self.condition(), self.body(), vec![])
    }

    fn flipped(self) -> HloModuleProto {
        let direction = match self.direction {
            "LT" => "GT",
            "LE" => "GE",
            "GT" => "LT",
            "GE" => "LE",
            same => same,
        };
        let compare = comparing(direction, instruction(12, "compare", &[11, 10]));
        let condition = vec![element(10, 1, 0), number(11, self.bound), compare];
        self.module(number(3, 0), condition, self.body(), vec![])
    }

    fn carried_bound(self) -> HloModuleProto {
        let compare = comparing(self.direction, instruction(12, "compare", &[10, 11]));
        self.module(number(3, self.bound), vec![element(10, 1, 0), element(11, 1, 2), compare], self.body(), vec![])
    }

    /// Both computations in fusions of two numbers.
    fn fused(self) -> HloModuleProto {
        let first = || whole(instruction(1, "parameter", &[]));
        let second = || HloInstructionProto { parameter_number: 1, ..whole(instruction(2, "parameter", &[])) };
        let compare = comparing(self.direction, instruction(3, "compare", &[1, 2]));
        let add = whole(instruction(3, "add", &[2, 1]));
        let condition = vec![element(10, 1, 0), number(11, self.bound), calling(12, "fusion", &[10, 11], &[103])];
        let mut body = self.body();
        body[2] = whole(calling(12, "fusion", &[10, 11], &[104]));
        let fused = |id, root| computation(id, vec![first(), second(), root]);
        self.module(number(3, 0), condition, body, vec![fused(103, compare), fused(104, add)])
    }

    fn converted(self) -> HloModuleProto {
        let long = |instruction| HloInstructionProto { shape: Some(shape(PrimitiveType::S64, &[])), ..instruction };
        let compare = comparing(self.direction, instruction(14, "compare", &[11, 13]));
        let condition = vec![
            element(10, 1, 0),
            long(instruction(11, "convert", &[10])),
            number(12, self.bound),
            long(instruction(13, "convert", &[12])),
            compare,
            instruction(15, "not", &[14]),
            instruction(16, "not", &[15]),
        ];
        let mut body = self.body();
        body[1] = whole(instruction(11, "copy", &[20]));
        body[2] = whole(instruction(12, "subtract", &[10, 11]));
        body.insert(0, number(20, self.step.wrapping_neg()));
        self.module(number(3, 0), condition, body, vec![])
    }

    fn fused_tuple(self) -> HloModuleProto {
        let carried = |number: i64, instruction| HloInstructionProto { parameter_number: number, ..instruction };
        let fused = computation(
            103,
            vec![
                carried(0, whole(instruction(1, "parameter", &[]))),
                carried(1, instruction(2, "parameter", &[])),
                number(3, self.step),
                whole(instruction(4, "add", &[1, 3])),
                instruction(5, "tuple", &[4, 2, 1]),
            ],
        );
        let body = vec![element(10, 1, 0), calling(11, "fusion", &[10, 2], &[103])];
        self.module(number(3, 0), self.condition(), body, vec![fused])
    }
}

#[test]
fn loops_that_count_up() {
    let check = |start, step, bound, direction, expected| {
        Counter { start, step, bound, direction }.check(expected);
    };
    check(0, 1, 5, "LT", Some(5));
    check(2, 3, 9, "LT", Some(3));
    check(-7, 4, 2, "LT", Some(3));
    check(5, 1, 5, "LT", Some(0));
    check(0, 0, 5, "LT", None);
    check(0, -1, 5, "LT", None);
    check(0, 1, 5, "LE", Some(6));
    check(0, 2, 5, "LE", Some(3));
    check(6, 2, 5, "LE", Some(0));
    check(0, 2, 6, "NE", Some(3));
    check(6, 2, 6, "NE", Some(0));
    // It steps over the bound.
    check(0, 2, 5, "NE", None);
    check(3, 1, 3, "EQ", Some(1));
    check(3, 1, 4, "EQ", Some(0));
    check(3, 0, 3, "EQ", None);
}

#[test]
fn loops_that_count_down() {
    let check = |start, step, bound, direction, expected| {
        Counter { start, step, bound, direction }.check(expected);
    };
    check(5, -1, 0, "GT", Some(5));
    check(5, -1, 0, "GE", Some(6));
    check(9, -3, 2, "GT", Some(3));
    check(8, -3, 2, "GE", Some(3));
    check(0, -1, 0, "GT", Some(0));
    check(5, 1, 0, "GT", None);
    check(6, -2, 0, "NE", Some(3));
    check(6, -2, 8, "NE", None);
}

/// A counter that goes past the largest number goes on from the smallest.
#[test]
fn counters_that_wrap_around_are_not_counted() {
    let check = |start, step, bound, direction, expected| {
        Counter { start, step, bound, direction }.check(expected);
    };
    check(0, i32::MAX - 1, i32::MAX, "LT", None);
    check(0, 1, i32::MAX, "LE", None);
    check(0, 1, i32::MAX, "LT", Some(i32::MAX as u64));
    check(0, -1, i32::MIN + 1, "GE", Some(1 << 31));
}

/// A loop may carry nothing but its counter.
#[test]
fn a_loop_without_a_tuple() {
    let parameter = || whole(instruction(1, "parameter", &[]));
    let body = vec![parameter(), number(2, 2), instruction(4, "tanh", &[1]), whole(instruction(3, "add", &[1, 2]))];
    let condition = vec![parameter(), number(2, 9), comparing("LT", instruction(3, "compare", &[1, 2]))];
    let module = around(
        [number(2, 0), whole(calling(3, "while", &[2], &[101, 102]))],
        [computation(101, body), computation(102, condition)],
    );
    assert_eq!(executions(&module, "tanh"), [Amount::Exactly(5)]);
}

/// No trip count is proved for a step or a start that is not constant, a conversion that may not hold the counter, or a
/// bound that changes.
#[test]
fn other_loops_are_not_counted() {
    let counter = Counter { start: 0, step: 1, bound: 5, direction: "LT" };
    let unknown = |what: &str, change: fn(&mut HloModuleProto)| {
        let mut module = counter.carried_bound();
        assert_eq!(executions(&module, "tanh"), [Amount::Exactly(5)]);
        change(&mut module);
        assert_eq!(executions(&module, "tanh"), [Amount::Unknown], "{what}");
    };
    unknown("the start is a parameter", |module| module.computations[0].instructions[1].opcode = "parameter".into());
    unknown("the bound changes", |module| {
        let body = &mut module.computations[1].instructions;
        let root = body.last_mut().expect("a root");
        root.operand_ids[2] = root.operand_ids[0];
    });
    unknown("the step is computed", |module| module.computations[1].instructions[3] = element(11, 1, 2));
    unknown("the elements are not numbers of a known kind", |module| {
        let carried = module.computations[0].instructions.last_mut().expect("a loop").shape.as_mut().expect("a tuple");
        carried.tuple_shapes[0].element_type = PrimitiveType::F32.into();
    });
    unknown("the counter is cut to a byte", |module| {
        let byte =
            HloInstructionProto { shape: Some(shape(PrimitiveType::S8, &[])), ..instruction(20, "convert", &[10]) };
        let condition = &mut module.computations[2].instructions;
        condition.insert(2, byte);
        condition.last_mut().expect("a root").operand_ids[0] = 20;
    });
}

/// A sum of a number with itself, and so on: its value is looked for only so long.
#[test]
fn a_counter_made_to_be_hard() {
    let counter = Counter { start: 0, step: 1, bound: 5, direction: "LT" };
    let mut module = counter.plain();
    let body = &mut module.computations[1];
    let sums = (100..160).map(|id| whole(instruction(id, "add", &[if id == 100 { 11 } else { id - 1 }; 2])));
    body.instructions.extend(sums);
    body.instructions.push(whole(instruction(12, "add", &[10, 159])));
    body.instructions.retain(|instruction| instruction.opcode != "add" || instruction.operand_ids != [11, 10]);
    assert_eq!(executions(&module, "tanh"), [Amount::Unknown]);
}

#[test]
fn small_whole_numbers_count() {
    let byte = |id, value: u8| HloInstructionProto {
        literal: Some(Box::new(LiteralProto { u8s: vec![value], ..Default::default() })),
        shape: Some(shape(PrimitiveType::U8, &[])),
        ..instruction(id, "constant", &[])
    };
    let bytes = |instruction| HloInstructionProto { shape: Some(shape(PrimitiveType::U8, &[])), ..instruction };
    let module = |start, bound, direction| {
        let parameter = || bytes(instruction(1, "parameter", &[]));
        let add = bytes(instruction(3, "add", &[1, 2]));
        let body = vec![parameter(), byte(2, 1), instruction(4, "tanh", &[1]), add];
        let condition = vec![parameter(), byte(2, bound), comparing(direction, instruction(3, "compare", &[1, 2]))];
        around(
            [byte(2, start), bytes(calling(3, "while", &[2], &[101, 102]))],
            [computation(101, body), computation(102, condition)],
        )
    };
    assert_eq!(executions(&module(250, 255, "LT"), "tanh"), [Amount::Exactly(5)]);
    assert_eq!(executions(&module(250, 255, "LE"), "tanh"), [Amount::Unknown]);
}

// Modules made to do harm.

/// Numbers that follow from each other.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// Changes something of a module that its analyses read.
fn mutate(module: &mut HloModuleProto, random: &mut Random) {
    const OPCODES: &[&str] = &[
        "while",
        "conditional",
        "call",
        "fusion",
        "tuple",
        "get-tuple-element",
        "async-start",
        "async-done",
        "dot",
        "scan",
        "dynamic-update-slice",
        "scatter",
        "all-gather-start",
        "all-gather-done",
        "copy-start",
        "copy-done",
        "sort",
        "reduce",
        "convolution",
        "fft",
        "custom-call",
        "optimization-barrier",
        "parameter",
        "constant",
        "bitcast",
        "ragged-dot",
        "select-and-scatter",
        "reduce-window",
        "triangular-solve",
        "all-reduce",
        "collective-permute",
    ];
    let ids: Vec<i64> = module.computations.iter().map(|computation| computation.id).collect();
    let nth = random.below(module.computations.len());
    let computation = &mut module.computations[nth];
    let all: Vec<i64> = computation.instructions.iter().map(|instruction| instruction.id).collect();
    let shapes: Vec<_> = computation.instructions.iter().map(|instruction| instruction.shape.clone()).collect();
    let nth = random.below(computation.instructions.len());
    let Some(instruction) = computation.instructions.get_mut(nth) else { return };
    let odd = [i64::MIN, -1, 0, 1, 1 << 40, i64::MAX];
    match random.below(10) {
        0 => instruction.opcode = OPCODES[random.below(OPCODES.len())].into(),
        1 => instruction.called_computation_ids.push(ids[random.below(ids.len())]),
        2 => instruction.operand_ids.push(all[random.below(all.len())]),
        3 => drop(instruction.operand_ids.pop()),
        4 => instruction.shape = shapes[random.below(shapes.len())].clone(),
        5 => instruction.tuple_index = odd[random.below(odd.len())],
        6 => instruction.parameter_number = odd[random.below(odd.len())],
        7 => {
            let size = odd[random.below(odd.len())];
            if let Some(shape) = &mut instruction.shape {
                shape.dimensions.push(size);
            }
        }
        8 => computation.root_id = all[random.below(all.len())],
        _ => instruction.id = all[random.below(all.len())],
    }
}

/// The analyses of any module end, and none of them panics.
#[test]
fn mutated_modules_are_analyzed() {
    use meshloom::analysis::{Chip, CostOptions, Devices, cost, memory};
    let options = CostOptions::devices(Devices::partitioned(8)).on(Chip::parse("v5p").expect("a chip"));
    let mut seeds: Vec<HloModuleProto> =
        crate::hlo::programs::golden().iter().map(|golden| golden.module().clone()).collect();
    seeds.push(Counter { start: 0, step: 1, bound: 5, direction: "LT" }.fused_tuple());
    seeds.push(doubling(5));
    for round in support::cases::cases("hlo analysed mutations", 500, 0..2000) {
        let mut random = Random(round as u64 + 1);
        let mut module = seeds[round % seeds.len()].clone();
        for _ in 0..=random.below(12) {
            mutate(&mut module, &mut random);
        }
        let found = cost(&module, &options);
        assert!(found.instructions.len() <= Walk::of(&module).steps().count());
        if let Ok(found) = memory(&module) {
            assert!(found.live_temporaries <= found.peak || found.peak == u64::MAX);
        }
    }
}
