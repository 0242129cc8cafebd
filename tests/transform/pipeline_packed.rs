//! The weights of a repeat, and their gradients, sent as one buffer: the same bits as one by one, and as many transfers
//! as there are groups and element types.

use crate::transform::pairs;
use crate::transform::pipelines::Case;
use meshloom::compile::{LowerOptions, Lowered, Partitioned};
use meshloom::ir::{Graph, Literal, NodeRef};
use meshloom::ops::Op;
use meshloom::partition::{CollectiveKind, Ledger};
use meshloom::passes::CollectiveLimits;
use meshloom::trace::Tree;
use meshloom::transform::pipeline::{PipelineOptions, Schedule, WeightPlan};
use support::cases::cases;
use support::eight_devices::compile;
use support::interpret::assert_same_bits;
use support::quick_compiles;
use support::spmd::run_local;

const PLANS: [WeightPlan; 4] =
    [WeightPlan::SlidingWindow, WeightPlan::SplitSlidingWindow, WeightPlan::GatherOnce, WeightPlan::PerIteration];

fn options(stages: usize, repeats: usize, weights: WeightPlan) -> PipelineOptions {
    PipelineOptions { stages, repeats, microbatches: 2 * stages, weights, ..PipelineOptions::default() }
}

/// The program with transfers of up to so many bytes as one, and no others combined.
fn lowered(case: &Case, packed_bytes: u64) -> Lowered {
    let without = &["combine-collectives"];
    let limits = CollectiveLimits { packed_bytes, ..CollectiveLimits::default() };
    case.lowered(LowerOptions { deny_replication: true, without, limits, ..LowerOptions::default() })
}

fn partitioned(lowered: &Lowered) -> &Partitioned {
    lowered.partitioned().expect("a local program")
}

/// The executions of collectives of a kind over `fsdp`.
fn executions(lowered: &Lowered, kind: CollectiveKind) -> u64 {
    let Partitioned { graph, mesh, .. } = partitioned(lowered);
    let ledger = Ledger::of(graph, mesh).kind(kind).over("fsdp");
    match ledger.count().unwrap_or(0) {
        0 => 0,
        _ => ledger.executions().expect("some").bound().expect("a known number"),
    }
}

/// Loss and every gradient, of every plan on several meshes.
#[test]
fn one_buffer_changes_no_bit() {
    let circular = pairs::of_two("transform packed", [5, PLANS.len()]);
    let of_repeats =
        |&[repeats, weights]: &[usize; 2]| Case::new(options(2, 1 + repeats, PLANS[weights]), "stage=2,data=2,fsdp=2");
    let mut others = Vec::new();
    for weights in PLANS {
        others.push(Case::new(options(4, 4, weights), "stage=4,fsdp=2"));
        let layers = PipelineOptions { layers_per_stage: 2, scan_repeats: false, ..options(2, 4, weights) };
        others.push(Case::new(layers, "stage=2,fsdp=2,tensor=2"));
        let kept = PipelineOptions { keep_gathered: true, ..options(2, 5, weights) };
        others.push(Case { poisonous: true, ..Case::new(kept, "stage=2,fsdp=4") });
    }
    let one_loop = PipelineOptions { schedule: Schedule::OneForwardOneBackward, ..options(2, 1, PLANS[0]) };
    let mut chosen: Vec<Case> = circular.iter().map(of_repeats).collect();
    chosen.extend(cases("transform packed", 3, others));
    chosen.push(Case::new(one_loop, "stage=2,fsdp=4"));
    for case in chosen {
        let (apart, packed) = (lowered(&case, 0), lowered(&case, u64::MAX));
        if case.options.weights == WeightPlan::SlidingWindow {
            let fewer = executions(&packed, CollectiveKind::AllGather) < executions(&apart, CollectiveKind::AllGather);
            // Beside a loop that has collectives over `tensor` itself, nothing is packed.
            assert_eq!(fewer, case.options.repeats > 1 && !case.mesh.contains("tensor"), "{case}");
        }
        let inputs = case.literals().leaves();
        let run = |lowered: &Lowered| {
            let Partitioned { graph, mesh, .. } = partitioned(lowered);
            run_local(graph, mesh, &inputs).unwrap_or_else(|error| panic!("{case}: {error}"))
        };
        assert_same_bits(&case, &run(&packed), &run(&apart));
    }
}

/// The same on eight devices of the CPU plugin.
#[test]
fn one_buffer_changes_no_bit_when_compiled() {
    if !quick_compiles::are_usual(module_path!(), "one_buffer_changes_no_bit_when_compiled") {
        return;
    }
    let all = [(2, 2, "stage=2,fsdp=4"), (2, 5, "stage=2,fsdp=4"), (4, 3, "stage=4,fsdp=2")];
    for (stages, repeats, mesh) in cases("transform packed compiled", 1, all) {
        let case = Case::new(options(stages, repeats, WeightPlan::SlidingWindow), mesh);
        let inputs = case.literals();
        let run = |packed_bytes: u64| -> Vec<Literal> {
            let program = compile(&lowered(&case, packed_bytes)).unwrap_or_else(|error| panic!("{case}: {error}"));
            let arguments = program.put(0, &inputs).expect("the inputs fit").leaves();
            let outputs = program.run(&arguments.iter().collect::<Vec<_>>());
            let outputs = outputs.unwrap_or_else(|error| panic!("{case}: {error}"));
            outputs.iter().map(|output| output.get().expect("a result")).collect()
        };
        assert_same_bits(&case, &run(u64::MAX), &run(0));
    }
}

/// A layer has two matrices, cut along different dimensions. The prefetched matrices of a repeat are gathered by one
/// collective. The gradients of each repeat are reduced by one, except for those of the first, which nothing follows. A
/// matrix that is needed at once is not held up by the rest.
#[test]
fn a_repeat_is_one_transfer() {
    for (stages, mesh) in [(2, "stage=2,data=2,fsdp=2"), (4, "stage=4,fsdp=2")] {
        for repeats in 2..=6 {
            let case = Case::new(options(stages, repeats, WeightPlan::SlidingWindow), mesh);
            let (apart, packed) = (lowered(&case, 0), lowered(&case, u64::MAX));
            let repeats = repeats as u64;
            for (kind, passes) in [(CollectiveKind::AllGather, 2), (CollectiveKind::ReduceScatter, 1)] {
                assert_eq!(executions(&apart, kind), passes * 2 * repeats, "{case}");
                assert_eq!(executions(&packed, kind), passes * (repeats - 1 + 2), "{case}");
            }
        }
    }
}

/// A buffer has no more bytes than allowed: one byte too few, and each is sent by itself.
#[test]
fn a_buffer_has_a_limit() {
    let case = Case::new(options(2, 3, WeightPlan::SlidingWindow), "stage=2,data=2,fsdp=2");
    let Partitioned { graph, .. } = partitioned(&lowered(&case, 0)).clone();
    let gathered = |node: NodeRef<'_>| graph.ty(node.result()).byte_count() as u64;
    let is_gather =
        |node: &NodeRef<'_>| matches!(node.op(), Op::AllGather(_)) && graph.ty(node.result()).dtype.is_float();
    let two: u64 = graph.nodes().filter(is_gather).take(2).map(gathered).sum();
    let gathers = |limit: u64| executions(&lowered(&case, limit), CollectiveKind::AllGather);
    assert_eq!((gathers(two), gathers(two - 1)), (8, 12), "{case}");
}

/// In the loop over repeats, the gather of the next repeat and the reduction of the one before do not wait for the loop
/// over the rest of this one, and that loop does not wait for them: both can be under way meanwhile.
#[test]
fn transfers_and_microbatches_do_not_wait_for_each_other() {
    let case = Case::new(options(4, 5, WeightPlan::SlidingWindow), "stage=4,fsdp=2");
    let lowered = lowered(&case, u64::MAX);
    let local = &partitioned(&lowered).graph;
    let of_repeats = |node: NodeRef<'_>| match node.op() {
        Op::Scan(scan) if scan.length == 3 && loops(&scan.body).len() == 2 => Some(scan.body.clone()),
        _ => None,
    };
    let mut transfers = Vec::new();
    for body in local.nodes().filter_map(of_repeats) {
        let rest = loops(&body)[0];
        let mut of_body = Vec::new();
        for node in body.nodes().filter(|node| is_transfer(node)) {
            assert!(!depends(&body, node, rest), "{case}: a transfer waits for the loop\n{body}");
            assert!(!depends(&body, rest, node), "{case}: the loop waits for a transfer\n{body}");
            of_body.push(node.op().name());
        }
        transfers.push(of_body);
    }
    assert_eq!(transfers, [vec!["all-gather"], vec!["reduce-scatter", "all-gather"]], "{local}");
}

fn loops(graph: &Graph) -> Vec<NodeRef<'_>> {
    graph.nodes().filter(|node| matches!(node.op(), Op::Scan(_))).collect()
}

fn is_transfer(node: &NodeRef<'_>) -> bool {
    matches!(node.op(), Op::AllGather(_) | Op::ReduceScatter(_))
}

/// Whether a node depends on another.
fn depends(graph: &Graph, node: NodeRef<'_>, other: NodeRef<'_>) -> bool {
    let mut left = node.operands().to_vec();
    let mut seen = std::collections::HashSet::new();
    while let Some(value) = left.pop() {
        if let Some(maker) = graph.defining_node(value)
            && seen.insert(maker.id)
        {
            if maker.id == other.id {
                return true;
            }
            left.extend(maker.operands());
        }
    }
    false
}
