//! Proofs that partitioned modules compute their shards: of what the partitioner makes, and of none with a fault.

use std::fs;

use meshloom::compile::{LowerOptions, lower_module};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read::{Limits, read};
use meshloom::verify::{Verdict, verify};
use support::path;
use support::random::Random;

/// A program of JAX as it is before a partitioner, and the program of one device.
fn modules() -> (HloModuleProto, HloModuleProto) {
    let bytes = fs::read(path("tests/foreign/lowered/fsdp_mlp.stablehlo.txt")).expect("a file");
    let global = read(&bytes, &Limits::default()).expect("a module").module;
    // The proof does not follow values that are sent side by side.
    let options = LowerOptions { without: &["combine-collectives"], ..LowerOptions::default() };
    let lowered = lower_module(&global, &options).expect("a module");
    (global, lowered.module.decode().expect("a module"))
}

#[test]
fn what_the_partitioner_makes_is_proven() {
    let (global, partitioned) = modules();
    assert_eq!(verify(&global, &partitioned).expect("two modules"), Verdict::Proven);
}

#[test]
fn no_module_with_a_fault_is_proven() {
    let (global, partitioned) = modules();
    let mut random = Random(57);
    let (mut made, mut refused) = (0, 0);
    while made < 200 {
        let mut faulty = partitioned.clone();
        let Some(what) = fault(&mut faulty, &mut random) else { continue };
        made += 1;
        match verify(&global, &faulty) {
            Ok(verdict) => assert_ne!(verdict, Verdict::Proven, "{what}"),
            Err(_) => refused += 1,
        }
    }
    println!("{refused} of {made} modules with a fault cannot be imported, and the others are not proven");
}

/// Changes one instruction so that the module computes something else, mostly: members of a group, the dimension or
/// kind of a collective, an operand, an opcode, or a constant. The result says what was changed.
fn fault(module: &mut HloModuleProto, random: &mut Random) -> Option<String> {
    let entry = module.entry_computation_id;
    let computation = module.computations.iter_mut().find(|it| it.id == entry)?;
    let at = random.below(computation.instructions.len());
    let kind = random.below(7);
    let instruction = &mut computation.instructions[at];
    let name = format!("{} {kind}", instruction.name);
    match kind {
        0 if instruction.replica_groups.len() > 1 => {
            let (first, second) = instruction.replica_groups.split_at_mut(1);
            std::mem::swap(first[0].replica_ids.first_mut()?, second[0].replica_ids.first_mut()?);
        }
        1 if instruction.replica_groups.first().is_some_and(|it| it.replica_ids.len() > 1) => {
            instruction.replica_groups[0].replica_ids.swap(0, 1);
        }
        2 if instruction.dimensions.len() == 1 => instruction.dimensions[0] ^= 1,
        // A sum or a product is the same with its operands in another order.
        3 if matches!(instruction.opcode.as_str(), "subtract" | "divide" | "dot") => instruction.operand_ids.swap(0, 1),
        4 => {
            let other = match instruction.opcode.as_str() {
                "add" => "subtract",
                "subtract" => "add",
                "multiply" => "divide",
                "divide" => "multiply",
                "maximum" => "minimum",
                "tanh" => "cosine",
                _ => return None,
            };
            instruction.opcode = other.to_owned();
        }
        5 if matches!(instruction.opcode.as_str(), "all-reduce" | "tanh" | "negate" | "collective-permute") => {
            let (id, operand) = (instruction.id, instruction.operand_ids[0]);
            let readers = computation.instructions.iter_mut().flat_map(|it| &mut it.operand_ids);
            readers.filter(|read| **read == id).for_each(|read| *read = operand);
        }
        6 if instruction.opcode == "constant" => {
            let literal = instruction.literal.as_mut()?;
            literal.f32s.iter_mut().for_each(|number| *number += 1.0);
            literal.s32s.iter_mut().for_each(|number| *number += 1);
            literal.u32s.iter_mut().for_each(|number| *number += 1);
        }
        _ => return None,
    }
    Some(name)
}
