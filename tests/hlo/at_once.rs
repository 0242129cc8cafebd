//! In how many collectives a device can be at once, on XLA's CPU runtime: it goes on to the next when a loop or branch
//! before it has been launched, unless one needs the other's result. `meshloom_pjrt` has the threads for three.

use std::collections::HashMap;

use meshloom::hlo::analysis::Communication;
use meshloom::hlo::proto::HloModuleProto;
use meshloom_train::config::RunConfig;

use crate::modules::{around, calling, collective, computation, instruction};

/// The most at once in a run of a computation.
fn collectives_at_once(module: &HloModuleProto, computation: i64, known: &mut HashMap<i64, usize>) -> usize {
    if let Some(&most) = known.get(&computation) {
        return most;
    }
    let instructions = &module.computations.iter().find(|each| each.id == computation).expect("a callee").instructions;
    let places: HashMap<i64, usize> = instructions.iter().enumerate().map(|(place, each)| (each.id, place)).collect();
    let mut needs: Vec<Vec<bool>> = vec![];
    // What may still be under way: a loop or branch, and the most in it.
    let mut launched: Vec<(usize, usize)> = vec![];
    let mut most = 0;
    for (place, instruction) in instructions.iter().enumerate() {
        let mut needed = vec![false; instructions.len()];
        for operand in &instruction.operand_ids {
            let operand = places[operand];
            needed[operand] = true;
            needed.iter_mut().zip(&needs[operand]).for_each(|(needed, also)| *needed |= also);
        }
        let inside =
            instruction.called_computation_ids.iter().map(|&callee| collectives_at_once(module, callee, known));
        let inside = inside.max().unwrap_or(0);
        let here = if Communication::named(&instruction.opcode).is_some() { 1 } else { inside };
        if here > 0 {
            let beside: Vec<_> = launched.iter().copied().filter(|&(other, _)| !needed[other]).collect();
            most = most.max(here + most_independent(&beside, &needs));
            if inside > 0 {
                launched.push((place, inside));
            }
        }
        needs.push(needed);
    }
    known.insert(computation, most);
    most
}

fn in_all(module: &HloModuleProto) -> usize {
    collectives_at_once(module, module.entry_computation_id, &mut HashMap::new())
}

/// The largest sum over some of which none needs another.
fn most_independent(launched: &[(usize, usize)], needs: &[Vec<bool>]) -> usize {
    let Some((&(last, most), earlier)) = launched.split_last() else { return 0 };
    let beside: Vec<_> = earlier.iter().copied().filter(|&(other, _)| !needs[last][other]).collect();
    most_independent(earlier, needs).max(most + most_independent(&beside, needs))
}

/// A collective that needs the second of two loops alone may run beside the first.
#[test]
fn loops_without_need_of_each_other_go_on_beside_what_follows() {
    let body = |id| computation(id, vec![instruction(1, "parameter", &[]), collective(2, "all-gather", &[1])]);
    let most = |operands: [i64; 2]| {
        let loops = [calling(2, "while", &[1], &[7]), calling(3, "while", &[operands[0]], &[8])];
        let gather = [instruction(4, "add", &[operands[1], 3]), collective(5, "all-gather", &[4])];
        in_all(&around(loops.into_iter().chain(gather), [body(7), body(8)]))
    };
    assert_eq!(most([1, 2]), 2);
    assert_eq!(most([2, 2]), 1);
    assert_eq!(most([2, 1]), 1, "the second loop is needed, and needs the first");
}

/// No device is ever in more than two in the programs of the example configs.
#[test]
fn two_at_most_in_our_programs() {
    let experts = ["model.family=mixtral", "model.experts=4", "mesh.axes=diloco=2,fsdp=2,expert=2"];
    let configs: [(&str, Vec<&str>); 7] = [
        ("default", vec![]),
        ("diloco", vec![]),
        ("streaming-diloco", vec![]),
        ("streaming-diloco", experts.to_vec()),
        ("psdp", vec![]),
        ("pipeline-bsw", vec![]),
        ("pipeline-4-stages", vec![]),
    ];
    for (name, settings) in configs {
        let overrides: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let file = support::path(format!("examples/configs/{name}.toml"));
        let config = RunConfig::load(&file, &overrides).unwrap_or_else(|error| panic!("{name} {settings:?}: {error}"));
        let (_, lowered) = config.lower_train_step().unwrap_or_else(|error| panic!("{name} {settings:?}: {error}"));
        let most = in_all(&lowered.module.decode().expect("our own"));
        println!("{name} {settings:?}: {most}");
        assert!((1..=2).contains(&most), "{name} {settings:?}: {most} collectives at once");
    }
}
