//! Tests that the emitted and the compiled program execute the tables. The programs are read like those of any other
//! compiler.
//!
//! The analysis of HLO follows each device through branches and loops by its number. It shares no code with the
//! schedules, nor with the ledger.

use crate::transform::pipelines::{Case, EMBED, HIDDEN, LENGTH};
use meshloom::analysis::Amount;
use meshloom::analysis::{DeviceWalk, Devices, ModuleCollectives, Together, Via, collectives};
use meshloom::compile::LowerOptions;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::ops::RematPolicy;
use meshloom::partition::CollectiveKind;
use meshloom::transform::pipeline::{Columns, Costs, PipelineOptions, Schedule, Timeline};
use support::cases::cases as chosen;
use support::eight_devices::compile;

fn case(schedule: Schedule, chunks: usize, microbatches: usize, mesh: &'static str) -> Case {
    let remat = RematPolicy::None;
    let options = PipelineOptions { stages: 4, microbatches, schedule, chunks, remat, ..PipelineOptions::default() };
    Case::new(options, mesh)
}

fn cases(mesh: &'static str) -> Vec<Case> {
    let forms = [
        (Schedule::OneForwardOneBackward, 1, 8),
        (Schedule::OneForwardOneBackward, 1, 6),
        (Schedule::Interleaved, 2, 8),
        (Schedule::Interleaved, 3, 5),
        (Schedule::ZeroBubbleOne, 1, 8),
        (Schedule::ZeroBubbleVee, 2, 8),
        (Schedule::ZeroBubbleVee, 2, 5),
        (Schedule::Searched, 2, 7),
    ];
    forms.into_iter().map(|(schedule, chunks, microbatches)| case(schedule, chunks, microbatches, mesh)).collect()
}

const EIGHT: Devices = Devices { replicas: 1, partitions: 8 };

/// The executions of the branches of each conditional in the loop over ticks; those of a conditional that compilers
/// have cloned, such as two iterations in one, are not added up.
fn branches(module: &HloModuleProto) -> Vec<Vec<Amount>> {
    let walk = DeviceWalk::of(module, EIGHT);
    let mut found: Vec<((usize, i64), Vec<Amount>)> = Vec::new();
    for place in walk.walk().places() {
        let Some(caller) = place.caller.filter(|caller| matches!(caller.via, Via::Branch(_))) else { continue };
        let of = (caller.place, caller.instruction.id);
        match found.iter_mut().find(|(known, _)| *known == of) {
            Some((_, amounts)) => amounts.push(place.executions),
            None => found.push((of, vec![place.executions])),
        }
    }
    found.into_iter().map(|(_, amounts)| amounts).collect()
}

/// Every collective runs a known number of times, with all devices of its groups.
fn check_all_known(case: &Case, found: &ModuleCollectives) {
    for entry in &found.entries {
        assert!(matches!(entry.executions, Amount::Exactly(_)), "{case}: {entry:?}");
        assert_eq!(found.together(entry), Together::Yes, "{case}: {entry:?}");
    }
}

/// Each stage takes the branch of each chunk M times forwards and M times backwards, and no branch in all other ticks.
/// Where microbatches do not fill the slots, cotangents of inputs turn on behind the last tick of the table.
fn check_branches(case: &Case, module: &HloModuleProto) {
    let PipelineOptions { chunks, microbatches, stages, .. } = case.options;
    let ticks = case.options.table().expect("a table").ticks.len();
    let work = vec![Amount::Exactly(microbatches as u64); chunks];
    let found = branches(module);
    let is_work = |amounts: &&Vec<Amount>| {
        let Some((Amount::Exactly(idle), rest)) = amounts.split_first() else { return false };
        let more = (*idle as usize + microbatches * chunks).checked_sub(ticks);
        *rest == work && more.is_some_and(|more| more < stages && (more == 0 || !microbatches.is_multiple_of(stages)))
    };
    assert!(found.iter().filter(is_work).count() >= 2, "{case}: {ticks} ticks, forwards and backwards in {found:?}");
}

#[test]
fn emitted_programs_do_what_their_tables_say() {
    for mesh in ["stage=4,fsdp=2", "stage=4,tensor=2"] {
        for case in cases(mesh) {
            let lowered = case.lowered(LowerOptions::default());
            let module = lowered.module.decode().expect("a module");
            let found = collectives(&module, EIGHT).along(lowered.emitted_mesh().expect("a mesh"));
            check_all_known(&case, &found);
            check_branches(&case, &module);
            let ledger = lowered.collectives();
            assert_eq!(found.moved_bytes(), ledger.moved_bytes().expect("a ledger"), "{case}");
            assert_eq!(found.executions(), ledger.executions().expect("a ledger"), "{case}");
            let in_loops = found.kind(CollectiveKind::CollectivePermute).filter(|entry| entry.loop_depth > 0);
            let permutes = in_loops.map(|entry| entry.executions.bound().expect("known")).sum::<u64>();
            assert_eq!(permutes, Timeline::of(&case.options).counts.permutes as u64, "{case}");
        }
    }
}

/// XLA's CPU compiler moves, merges and clones, but the same runs.
#[test]
fn compiled_programs_do_what_their_tables_say() {
    for case in chosen("transform executed", 2, cases("stage=4,tensor=2")) {
        let lowered = case.lowered(LowerOptions::default());
        let program = compile(&lowered).unwrap_or_else(|error| panic!("{case}: {error}"));
        let module = program.executable().optimized_hlo().and_then(|it| it.decode()).expect("a module");
        check_all_known(&case, &collectives(&module, EIGHT));
        check_branches(&case, &module);
    }
}

/// Bytes of the activations of a microbatch of so many rows.
fn activations(rows: usize, width: usize) -> f64 {
    (rows * LENGTH * width * 4) as f64
}

/// With more microbatches, the memory that the compiled program needs beside its inputs and outputs grows by the items
/// that a stage holds in addition, and by inputs. The bytes of one item and of one input follow from 1F1B, in which all
/// else stays. Compilers share and place other memory as they like, up to three times the activations of an item; the
/// held items are more.
#[test]
fn compiled_programs_hold_what_their_tables_say() {
    const ROWS: usize = 128;
    let between = activations(ROWS, EMBED) + activations(ROWS, HIDDEN);
    let measured = |schedule, chunks, microbatches| {
        let case = Case { rows: ROWS, ..case(schedule, chunks, microbatches, "stage=4") };
        let program = compile(&case.lowered(LowerOptions::default())).unwrap_or_else(|error| panic!("{case}: {error}"));
        let bytes = program.executable().memory_stats().expect("the plugin counts").temporary as f64;
        let table = case.options.table().expect("a table");
        let slots = Columns::of(&table).expect("its numbers").slots;
        let simulated = table.simulate(&Costs::even(1.0, 1.0, 1.0)).expect("a simulation").peak;
        assert_eq!(slots.held_b as f64, simulated * chunks as f64, "{case}: slots, and the simulator's peak");
        (slots, bytes)
    };
    let one = |microbatches| measured(Schedule::OneForwardOneBackward, 1, microbatches).1;
    let (four, eight, sixteen) = (one(4), one(8), one(16));
    let of_input = (sixteen - eight) / 8.0;
    let of_held = (eight - four - 4.0 * of_input) / 3.0;
    assert!(of_held > 4.0 * activations(ROWS, EMBED), "{of_held}");
    let all = [(Schedule::ZeroBubbleVee, 2), (Schedule::Interleaved, 2), (Schedule::ZeroBubbleOne, 1)];
    for (schedule, chunks) in chosen("transform held", 1, all) {
        let points = chosen("transform held", 2, [4, 8, 16]);
        let points: Vec<_> =
            points.iter().map(|&microbatches| (microbatches, measured(schedule, chunks, microbatches))).collect();
        for pair in points.windows(2) {
            let [(fewer, (before, least)), (more, (after, most))] = pair else { unreachable!("two of them") };
            let growth = |before: usize, after: usize| after as f64 - before as f64;
            let expected = growth(*fewer, *more) * of_input
                + growth(before.held_b, after.held_b) * of_held
                + growth(before.between, after.between) * between
                + growth(before.inbox, after.inbox) * activations(ROWS, EMBED);
            let found = most - least;
            assert!(
                (found - expected).abs() <= 3.0 * activations(ROWS, EMBED) + 8192.0,
                "{schedule:?} from {fewer} to {more} microbatches: expected {expected}, found {found}; {after:?}"
            );
        }
    }
}
