//! Tests of the traffic of pipelines: how often, over which axis and how much; which transfers may overlap with which
//! work; and the programs as text.

use std::collections::HashSet;

use crate::transform::pipelines::{Case, EMBED, HIDDEN, LENGTH, PipelineRules};
use insta::assert_snapshot;
use meshloom::analysis::Amount;
use meshloom::compile::{LowerOptions, Lowered, PartitionMode, Partitioned};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::{Graph, Node, Value};
use meshloom::ops::{Op, RematPolicy};
use meshloom::partition::{CollectiveKind, Ledger};
use meshloom::transform::pipeline::{PipelineOptions, Schedule, Timeline, WeightPlan};
use support::cases::cases;
use support::eight_devices::compile;

/// Bytes of a matrix of one layer; each stage has one.
const MATRIX: u64 = (EMBED * HIDDEN * 4) as u64;

fn options(stages: usize, repeats: usize, microbatches: usize, weights: WeightPlan) -> PipelineOptions {
    PipelineOptions { stages, repeats, microbatches, weights, ..PipelineOptions::default() }
}

/// The program of one device, with each collective by itself.
fn lowered(case: &Case) -> Lowered {
    let without = &["combine-collectives"];
    case.lowered(LowerOptions { deny_replication: true, without, ..LowerOptions::default() })
}

fn ledger(case: &Case) -> Ledger {
    let lowered = lowered(case);
    let Some(Partitioned { graph: local, mesh, .. }) = lowered.partitioned() else {
        panic!("{case}: no local program")
    };
    Ledger::of(local, mesh)
}

fn executions(ledger: &Ledger) -> u64 {
    match ledger.kind_count() {
        0 => 0,
        _ => ledger.executions().expect("some").bound().expect("a known number"),
    }
}

trait Counted {
    fn kind_count(&self) -> usize;
}

impl Counted for Ledger {
    fn kind_count(&self) -> usize {
        self.count().unwrap_or(0)
    }
}

/// The two matrices of a layer are gathered and their gradients reduce-scattered over `fsdp`, once for each repeat; the
/// loop over microbatches has only the transfers of activations from stage to stage.
#[test]
fn a_sliding_window_moves_each_weight_once_a_repeat() {
    for weights in [WeightPlan::SlidingWindow, WeightPlan::SplitSlidingWindow] {
        for (stages, mesh) in [(2, "stage=2,data=2,fsdp=2"), (4, "stage=4,fsdp=2")] {
            for repeats in 1..=5 {
                for keep_gathered in [false, true] {
                    let plain = options(stages, repeats, 2 * stages, weights);
                    let case = Case::new(PipelineOptions { keep_gathered, ..plain }, mesh);
                    check_sliding(&case, repeats as u64);
                }
            }
        }
    }
}

#[test]
fn several_layers_of_a_stage_move_together() {
    for scan_layers in [true, false] {
        for (repeats, remat) in [(2, RematPolicy::Full), (3, RematPolicy::None), (2, RematPolicy::Dots)] {
            let plain = options(4, repeats, 8, WeightPlan::SlidingWindow);
            let options = PipelineOptions { layers_per_stage: 2, scan_layers, remat, ..plain };
            check_sliding(&Case::new(options, "stage=4,fsdp=2"), repeats as u64);
        }
    }
}

fn check_sliding(case: &Case, repeats: u64) {
    let ledger = ledger(case);
    let over_fsdp = |kind| ledger.kind(kind).over("fsdp");
    let gathers = over_fsdp(CollectiveKind::AllGather);
    let again = if case.options.keep_gathered { 0 } else { 2 * repeats };
    assert_eq!(executions(&gathers.forward()), 2 * repeats, "{case}:\n{ledger}");
    assert_eq!(executions(&gathers.backward()), again, "{case}:\n{ledger}");
    let scatters = over_fsdp(CollectiveKind::ReduceScatter);
    assert_eq!(executions(&scatters), 2 * repeats, "{case}:\n{ledger}");
    for moved in gathers.iter().expect("gathers").chain(scatters.iter().expect("scatters")) {
        let whole = if moved.kind == CollectiveKind::AllGather { 2 } else { 1 };
        assert_eq!(moved.bytes * whole, MATRIX * case.options.layers_per_stage as u64, "{case}:\n{ledger}");
        // Repeats may be a loop, iterations are one inside of it.
        assert!(moved.loop_depth <= usize::from(case.options.repeats > 3), "{case}:\n{ledger}");
    }
    // Norms, which no axis but that of stages splits, and the loss and its matrix are all that is reduced whole.
    let reduced = over_fsdp(CollectiveKind::AllReduce);
    for reduced in reduced.iter().into_iter().flatten() {
        let of_loss = (EMBED * EMBED * 4) as u64;
        assert!(
            reduced.bytes <= repeats * (case.options.layers_per_stage * EMBED) as u64 * 4 || reduced.bytes == of_loss,
            "{case}:\n{ledger}"
        );
        assert!(reduced.loop_depth <= usize::from(case.options.repeats > 3), "{case}:\n{ledger}");
    }
    check_permutes(case, &ledger);
}

/// One permute in each iteration hands results on. Inputs are handed to the first stage during the first M iterations,
/// and results away from the last during the last M; where these are one loop, by one permute for both.
fn check_permutes(case: &Case, ledger: &Ledger) {
    let PipelineOptions { stages, repeats, microbatches, .. } = case.options;
    let iterations = case.options.iterations() as u64;
    let around = if repeats == 1 { iterations } else { 2 * microbatches as u64 };
    let permutes = ledger.kind(CollectiveKind::CollectivePermute);
    for pass in [permutes.forward(), permutes.backward()] {
        let count = executions(&pass);
        // No stage reads the activations of the last iteration, nor the cotangents of the first one of the backward
        // pass: outside of loops these transfers are left out.
        let expected = iterations + around;
        assert!(count <= expected && count + 2 >= expected, "{case}: {count} of {expected}\n{ledger}");
        let parts = case.mesh().device_count() / stages;
        let bytes = (case.rows / parts * LENGTH * EMBED * 4) as u64;
        assert!(
            pass.iter().expect("permutes").all(|moved| moved.bytes == bytes && moved.axes == ["stage"]),
            "{ledger}"
        );
    }
    assert_eq!(executions(&ledger.kind(CollectiveKind::AllToAll)), 0, "{case}:\n{ledger}");
}

#[test]
fn all_weights_are_gathered_once() {
    for repeats in 1..=4 {
        let case = Case::new(options(4, repeats, 8, WeightPlan::GatherOnce), "stage=4,fsdp=2");
        let ledger = ledger(&case);
        let over_fsdp = |kind| ledger.kind(kind).over("fsdp");
        let gathers = over_fsdp(CollectiveKind::AllGather);
        assert_eq!((executions(&gathers.forward()), executions(&gathers.backward())), (2, 2), "{case}:\n{ledger}");
        assert_eq!(executions(&over_fsdp(CollectiveKind::ReduceScatter)), 2, "{case}:\n{ledger}");
        assert_eq!(gathers.inside_loops().kind_count(), 0, "{case}:\n{ledger}");
        check_permutes(&case, &ledger);
    }
}

#[test]
fn weights_of_an_iteration_are_gathered_in_it() {
    for repeats in 1..=4 {
        let case = Case::new(options(4, repeats, 8, WeightPlan::PerIteration), "stage=4,fsdp=2");
        let ledger = ledger(&case);
        let count = 2 * case.options.iterations() as u64;
        let gathers = ledger.kind(CollectiveKind::AllGather).over("fsdp");
        assert_eq!(
            (executions(&gathers.forward()), executions(&gathers.backward())),
            (count, count),
            "{case}:\n{ledger}"
        );
        assert_eq!(executions(&ledger.kind(CollectiveKind::ReduceScatter).over("fsdp")), count, "{case}:\n{ledger}");
        check_permutes(&case, &ledger);
    }
}

/// Rules under which `dp` splits rows, and one dimension of the matrices.
const OTHER_NAME: PipelineRules = &[
    ("layers", &["stage"]),
    ("activation_stage", &["stage"]),
    ("activation_batch", &["dp"]),
    ("batch", &["stage", "dp"]),
    ("embed", &["dp"]),
];

/// The same of `data`, which the default rules do not give to weights.
const DATA: PipelineRules = &[
    ("layers", &["stage"]),
    ("activation_stage", &["stage"]),
    ("activation_batch", &["data"]),
    ("batch", &["stage", "data"]),
    ("embed", &["data"]),
];

/// `fsdp` on the other dimension.
const OTHER_DIMENSION: PipelineRules = &[
    ("layers", &["stage"]),
    ("activation_stage", &["stage"]),
    ("activation_batch", &["fsdp"]),
    ("batch", &["stage", "fsdp"]),
    ("mlp", &["fsdp"]),
];

/// An axis that splits sequences.
const OF_SEQUENCES: PipelineRules = &[
    ("layers", &["stage"]),
    ("activation_stage", &["stage"]),
    ("activation_length", &["ring"]),
    ("activation_logits_length", &["ring"]),
    ("batch", &["stage"]),
    ("embed", &["ring"]),
];

/// The traffic over the axis of a plan's weights: gathers of the forward and of the backward pass and reduce-scatters,
/// each with its number of executions and the depth of its deepest loop.
fn moved_weights(case: &Case, axis: &str) -> [(u64, usize); 3] {
    let ledger = ledger(case);
    let deepest = |moved: &Ledger| moved.iter().into_iter().flatten().map(|moved| moved.loop_depth).max().unwrap_or(0);
    let gathers = ledger.kind(CollectiveKind::AllGather).over(axis);
    let scatters = ledger.kind(CollectiveKind::ReduceScatter).over(axis);
    [gathers.forward(), gathers.backward(), scatters].map(|moved| (executions(&moved), deepest(&moved)))
}

/// The mesh axes over which weights are gathered follow from the rules, by any name: those that also split rows.
#[test]
fn any_axis_that_splits_rows_is_gathered_when_the_plan_says() {
    let others = [(OTHER_NAME, "dp"), (DATA, "data"), (OTHER_DIMENSION, "fsdp"), (OF_SEQUENCES, "ring")];
    for weights in
        [WeightPlan::PerIteration, WeightPlan::GatherOnce, WeightPlan::SlidingWindow, WeightPlan::SplitSlidingWindow]
    {
        for repeats in [1, 2, 5] {
            let options = options(2, repeats, 4, weights);
            let expected = moved_weights(&Case::new(options.clone(), "stage=2,fsdp=4"), "fsdp");
            // Two matrices; repeats may be a loop, iterations are one inside of it.
            let [(gathers, depth), ..] = expected;
            match weights {
                WeightPlan::PerIteration => assert_eq!(gathers, 2 * options.iterations() as u64),
                WeightPlan::GatherOnce => assert_eq!((gathers, depth), (2, 0)),
                _ => assert_eq!((gathers, depth), (2 * repeats as u64, usize::from(repeats > 3))),
            }
            for (rules, axis) in others {
                let case = Case { rules, ..Case::new(options.clone(), &format!("stage=2,{axis}=4")) };
                assert_eq!(moved_weights(&case, axis), expected, "{case}, {axis}:\n{}", ledger(&case));
            }
        }
    }
    // The loss in the loop: its matrix is gathered in front as well.
    let schedule = Schedule::OneForwardOneBackward;
    let options = PipelineOptions { schedule, ..options(2, 1, 4, WeightPlan::SlidingWindow) };
    for (rules, axis) in others {
        let case = Case { rules, ..Case::new(options.clone(), &format!("stage=2,{axis}=4")) };
        assert_eq!(moved_weights(&case, axis), [(3, 0), (0, 0), (3, 0)], "{case}, {axis}:\n{}", ledger(&case));
    }
}

/// An axis that splits no rows splits the weights where they are used: nothing gathers them.
#[test]
fn an_axis_that_splits_no_rows_stays() {
    let rules: PipelineRules = &[
        ("layers", &["stage"]),
        ("activation_stage", &["stage"]),
        ("batch", &["stage"]),
        ("activation_mlp", &["parts"]),
        ("mlp", &["parts"]),
    ];
    for weights in [WeightPlan::GatherOnce, WeightPlan::SlidingWindow, WeightPlan::PerIteration] {
        let case = Case { rules, ..Case::new(options(2, 2, 4, weights), "stage=2,parts=4") };
        assert_eq!(moved_weights(&case, "parts"), [(0, 0); 3], "{case}:\n{}", ledger(&case));
    }
}

/// In one loop, weights are gathered once for both directions. Three permutes an iteration: activations, cotangents,
/// and both inputs and their cotangents. The activations of at most 2 S - 1 microbatches are kept, however many there
/// are.
#[test]
fn one_forward_one_backward_keeps_few_microbatches() {
    for (stages, microbatches) in [(2, 4), (4, 8), (4, 32)] {
        let plain = options(stages, 1, microbatches, WeightPlan::SlidingWindow);
        let schedule = Schedule::OneForwardOneBackward;
        let case = Case::new(
            PipelineOptions { schedule, ..plain },
            if stages == 2 { "stage=2,fsdp=4" } else { "stage=4,fsdp=2" },
        );
        let lowered = lowered(&case);
        let Some(Partitioned { graph: local, mesh, .. }) = lowered.partitioned() else { panic!("no local program") };
        let ledger = Ledger::of(local, mesh);
        // Two matrices of the layers, one of the loss.
        for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
            let moved = ledger.kind(kind).over("fsdp");
            assert_eq!((executions(&moved), moved.inside_loops().kind_count()), (3, 0), "{case}:\n{ledger}");
        }
        let permutes = Timeline::of(&case.options).counts.permutes as u64;
        assert_eq!(executions(&ledger.kind(CollectiveKind::CollectivePermute)), permutes, "{case}:\n{ledger}");
        let scans = local.nodes().filter_map(|node| match node.op() {
            Op::Scan(scan) => Some(scan),
            _ => None,
        });
        let carried: Vec<Vec<usize>> = scans
            .flat_map(|scan| &scan.body.outputs()[..scan.carry_count])
            .map(|&value| local_dims(local, value))
            .collect();
        let rows = case.rows * stages / 8;
        // Carried without the dimension of the stages.
        let kept = vec![2 * stages - 1, rows, LENGTH, EMBED];
        assert_eq!(carried.iter().filter(|dims| **dims == kept).count(), 1, "{case}: {carried:?}");
        // Inputs, which each stage has its part of, are all else that grows with the number of microbatches.
        let io = vec![1, microbatches / stages, rows, LENGTH, EMBED];
        let slots = |dims: &[usize]| (dims.len() >= 4).then(|| dims[dims.len() - 4]);
        let grows = |dims: &&Vec<usize>| slots(dims).is_some_and(|slots| slots > 2 * stages - 1);
        assert!(carried.iter().filter(grows).all(|dims| *dims == io), "{case}: {carried:?}");
    }
}

/// Collectives in the branches of a stage run as often as it has items.
#[test]
fn branches_run_as_often_as_the_table_says() {
    for (schedule, chunks) in [
        (Schedule::OneForwardOneBackward, 1),
        (Schedule::Interleaved, 2),
        (Schedule::ZeroBubbleOne, 1),
        (Schedule::ZeroBubbleVee, 2),
        (Schedule::Searched, 2),
    ] {
        for microbatches in [4, 6, 9] {
            let plain = options(4, 1, microbatches, WeightPlan::SlidingWindow);
            let options = PipelineOptions { schedule, chunks, remat: RematPolicy::None, ..plain };
            let case = Case::new(options, "stage=4,tensor=2");
            let ledger = ledger(&case);
            let sums = ledger.kind(CollectiveKind::AllReduce).over("tensor").inside_loops();
            // In each layer one of results and one of cotangents; and one of cotangents in the loss.
            let expected = (2 * microbatches * chunks + microbatches) as u64;
            assert_eq!(sums.executions().expect("some"), Amount::Exactly(expected), "{case}:\n{ledger}");
        }
    }
}

/// As with one chunk: weights and their gradients move outside of the loop, whatever the number of chunks and wherever
/// gradients of weights are computed. Two permutes a tick, and one for each turn of the inputs. The second chunk of a V
/// moves to its stages in front of the loop, at rest.
#[test]
fn chunks_move_their_weights_once() {
    for (schedule, stages, chunks, microbatches, mesh) in [
        (Schedule::Interleaved, 2, 2, 4, "stage=2,fsdp=4"),
        (Schedule::Interleaved, 4, 3, 8, "stage=4,fsdp=2"),
        (Schedule::Interleaved, 2, 2, 5, "stage=2,fsdp=2,data=2"),
        (Schedule::ZeroBubbleOne, 4, 1, 8, "stage=4,fsdp=2"),
        (Schedule::ZeroBubbleVee, 4, 2, 8, "stage=4,fsdp=2"),
        (Schedule::ZeroBubbleVee, 2, 2, 5, "stage=2,fsdp=2,data=2"),
    ] {
        let plain = options(stages, 1, microbatches, WeightPlan::SlidingWindow);
        let remat = if schedule == Schedule::Interleaved { RematPolicy::Full } else { RematPolicy::None };
        let options = PipelineOptions { schedule, chunks, remat, ..plain };
        let counts = Timeline::of(&options).counts;
        let case = Case::new(options, mesh);
        let ledger = ledger(&case);
        for axis in ["fsdp", "data"] {
            let moved = ledger.over(axis);
            assert_eq!(moved.inside_loops().kind_count(), 0, "{case}:\n{ledger}");
        }
        // Where microbatches do not fill the slots, the batch moves too.
        let also = if microbatches % stages == 0 { 0 } else { 1 };
        // Two matrices of each chunk, and that of the loss.
        let weights = 1 + 2 * chunks as u64;
        for (kind, also) in [(CollectiveKind::AllGather, also), (CollectiveKind::ReduceScatter, 0)] {
            assert_eq!(executions(&ledger.kind(kind).over("fsdp")), weights + also, "{case}:\n{ledger}");
        }
        // Collectives that run in some ticks only are counted by the table: the count is exact, not a bound.
        let in_loop = |kind| match ledger.kind(kind).inside_loops().executions().expect("some") {
            Amount::Exactly(count) => count,
            other => panic!("{other} {kind:?}, {case}:\n{ledger}"),
        };
        let permutes = in_loop(CollectiveKind::CollectivePermute);
        assert_eq!(permutes, counts.permutes as u64, "{case}:\n{ledger}");
        assert_eq!(in_loop(CollectiveKind::AllToAll), microbatches as u64, "{case}:\n{ledger}");
        // Three weights of chunk 1, there and back.
        if also > 0 {
            continue;
        }
        let all = executions(&ledger.kind(CollectiveKind::CollectivePermute));
        assert_eq!(all - permutes, if schedule == Schedule::ZeroBubbleVee { 6 } else { 0 }, "{case}:\n{ledger}");
    }
}

/// The dimensions of a value of the body of the graph's only loop.
fn local_dims(graph: &Graph, value: Value) -> Vec<usize> {
    let body = graph.nodes().find_map(|node| match node.op() {
        Op::Scan(scan) => Some(scan.body.ty(value).dims.to_vec()),
        _ => None,
    });
    body.expect("a loop")
}

/// All that a value depends on.
fn ancestors(graph: &Graph, node: Node) -> HashSet<Node> {
    let mut known = HashSet::new();
    let mut left: Vec<Value> = graph.node(node).operands().to_vec();
    while let Some(value) = left.pop() {
        if let Some(maker) = graph.defining_node(value)
            && known.insert(maker.id)
        {
            left.extend(maker.operands());
        }
    }
    known
}

/// The loops over iterations of a graph, each with its length, and its gathers; both in program order.
fn loops_and_gathers(graph: &Graph) -> (Vec<(Node, usize)>, Vec<Node>) {
    let mut found = (Vec::new(), Vec::new());
    for node in graph.nodes() {
        match node.op() {
            Op::Scan(scan) => found.0.push((node.id, scan.length)),
            // Positions are not weights.
            Op::AllGather(_) if graph.ty(node.result()).dtype.is_float() => found.1.push(node.id),
            _ => {}
        }
    }
    found
}

fn assert_independent(case: &Case, graph: &Graph, gathers: &[Node], (segment, _): (Node, usize)) {
    assert!(!gathers.is_empty(), "{case}");
    for &gather in gathers {
        assert!(!ancestors(graph, gather).contains(&segment), "{case}: the gather waits for the loop\n{graph}");
        assert!(!ancestors(graph, segment).contains(&gather), "{case}: the loop waits for the gather\n{graph}");
    }
}

/// The gather of a repeat's weights and the iterations before the change to it do not depend on each other, so a
/// compiler may run them at the same time: forwards and, from the last repeat to the first, backwards.
#[test]
fn gathers_may_overlap_with_a_repeat() {
    let case = Case::new(options(4, 3, 8, WeightPlan::SlidingWindow), "stage=4,fsdp=2");
    let lowered = lowered(&case);
    let local = &lowered.partitioned().expect("a local program").graph;
    let (loops, gathers) = loops_and_gathers(local);
    let lengths: Vec<usize> = loops.iter().map(|(_, length)| *length).collect();
    assert_eq!(lengths, [8, 3, 5, 3, 8, 8, 3, 5, 3, 8], "{local}");
    let forward = |repeat: usize| &gathers[2 * repeat..2 * repeat + 2];
    assert_independent(&case, local, forward(1), loops[0]);
    assert_independent(&case, local, forward(2), loops[2]);
    let backward = |repeat: usize| &gathers[6 + 2 * (2 - repeat)..6 + 2 * (2 - repeat) + 2];
    assert_independent(&case, local, backward(1), loops[5]);
    assert_independent(&case, local, backward(0), loops[7]);
    // And the change to a repeat does wait for its weights: the test would see it.
    for (repeat, change) in [(1, 1), (2, 3)] {
        assert!(forward(repeat).iter().all(|gather| ancestors(local, loops[change].0).contains(gather)));
    }
}

/// The same in the loop over repeats.
#[test]
fn gathers_may_overlap_in_a_loop_over_repeats() {
    let case = Case::new(options(4, 5, 8, WeightPlan::SlidingWindow), "stage=4,fsdp=2");
    let lowered = lowered(&case);
    let local = &lowered.partitioned().expect("a local program").graph;
    let bodies: Vec<&Graph> = local
        .nodes()
        .filter_map(|node| match node.op() {
            Op::Scan(scan) if scan.length == 3 && loops_and_gathers(&scan.body).0.len() == 2 => Some(&*scan.body),
            _ => None,
        })
        .collect();
    assert_eq!(bodies.len(), 2, "forwards and backwards\n{local}");
    for body in bodies {
        let (loops, gathers) = loops_and_gathers(body);
        assert_eq!((loops[0].1, loops[1].1, gathers.len()), (5, 3, 2), "{body}");
        assert_independent(&case, body, &gathers, loops[0]);
    }
}

/// If a gather is split in two halves, the second waits for the first half of the iterations that it overlaps with;
/// nothing waits for it.
#[test]
fn half_a_gather_waits_for_half_a_repeat() {
    let case = Case::new(options(4, 3, 16, WeightPlan::SplitSlidingWindow), "stage=4,fsdp=2");
    let lowered = lowered(&case);
    let local = &lowered.partitioned().expect("a local program").graph;
    let (loops, gathers) = loops_and_gathers(local);
    let lengths: Vec<usize> = loops.iter().map(|(_, length)| *length).collect();
    assert_eq!(lengths[..7], [8, 8, 3, 6, 7, 3, 16], "{local}");
    let forward = &gathers[2..6];
    assert_independent(&case, local, &forward[..1], loops[0]);
    assert!(ancestors(local, forward[1]).contains(&loops[0].0), "{local}");
    assert_independent(&case, local, &forward[1..2], loops[1]);
    assert_independent(&case, local, &forward[2..3], loops[3]);
    assert!(ancestors(local, forward[3]).contains(&loops[3].0), "{local}");
    assert_independent(&case, local, &forward[3..], loops[4]);
}

/// The program of each plan, before and after it is partitioned.
#[test]
fn programs() {
    let plans = [
        ("per_iteration", WeightPlan::PerIteration),
        ("gather_once", WeightPlan::GatherOnce),
        ("bsw", WeightPlan::SlidingWindow),
        ("bsw_split", WeightPlan::SplitSlidingWindow),
    ];
    let forms = plans.iter().flat_map(|(name, _)| [(*name, "local"), (*name, "global")]);
    let compiled = cases("transform pipeline programs", 1, forms);
    let _bound = support::snapshots_in("hlo_snapshots/pipeline");
    for (name, plan) in plans {
        let case = Case::new(options(2, 2, 4, plan), "stage=2,data=2,fsdp=2");
        for (stage, partition) in [("global", PartitionMode::GSPMD), ("local", PartitionMode::Explicit)] {
            let lowered = case.lowered(LowerOptions { partition, omit_metadata: true, ..LowerOptions::default() });
            assert_snapshot!(
                format!("{name}_{stage}"),
                print(&lowered.module.decode().expect("a module"), &TextOptions::canonical())
            );
            if compiled.contains(&(name, stage)) {
                compile(&lowered).unwrap_or_else(|error| panic!("{case}: {error}"));
            }
        }
    }
}
