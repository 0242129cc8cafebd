//! Tests of the bytes that DiLoCo sends over the mesh axis `diloco`, read off the program of one device: nothing
//! outside of conditionals, and exactly one fragment in each.

use meshloom::compile::{Lowered, Partitioned};
use meshloom::hlo::PlatformKind;
use meshloom::ir::{Graph, Literal, Node};
use meshloom::ops::Op;
use meshloom::partition::{Amount, CollectiveKind, Ledger};
use meshloom::pjrt::Platform;
use meshloom::sharding::Mesh;
use meshloom::trace::Tree;
use meshloom::transform::diloco::{Fragment, Transport};
use meshloom_train::config::RunConfig;
use meshloom_train::run::{Calls, RunState};
use support::configs::{self, TINY};

const REPLICAS: &[&str] =
    &["train.batch=16", "diloco.replicas=2", "diloco.sync_period=20", "partition.replication=deny"];
const PLAIN_MESH: &[&str] = &["mesh.axes=diloco=2,fsdp=2,tensor=2"];
const STREAMING: &[&str] = &["diloco.streaming=true", "diloco.fragments=3"];

fn config(settings: &[&[&str]]) -> RunConfig {
    configs::config(&[&[TINY, REPLICAS], settings].concat())
}

/// The program of one device.
struct Program {
    config: RunConfig,
    lowered: Lowered,
}

impl Program {
    fn of(settings: &[&[&str]], calls: Calls) -> Program {
        let config = config(settings);
        let lowered = config
            .resolve()
            .unwrap()
            .lower(calls, &Platform::of_any_plugin(PlatformKind::Cpu))
            .unwrap_or_else(|error| panic!("{error}"))
            .1;
        Program { config, lowered }
    }

    fn local(&self) -> (&Graph, &Mesh) {
        match self.lowered.partitioned() {
            Some(Partitioned { graph, mesh, .. }) => (graph, mesh),
            None => panic!("no local program"),
        }
    }

    fn over_diloco(&self) -> Ledger {
        self.lowered.collectives().over("diloco")
    }

    /// For each outer parameter: whether it is one of layers, and its part's dimensions.
    fn outer_parts(&self) -> Vec<(bool, Vec<usize>)> {
        let graph = self.local().0;
        let ports = graph.input_info().iter().zip(graph.input_types());
        let outer = ports.filter(|(info, _)| info.path.starts_with("state.outer.params."));
        outer.map(|(info, ty)| (info.path.contains("layers."), ty.dims.to_vec())).collect()
    }

    /// The bytes that one device should send of its part of each parameter when a fragment with so many of the layers
    /// syncs. `stack` dimensions are over layers.
    fn expected_of_each(&self, fragment: Fragment, layers: (usize, usize), stack: usize) -> Vec<u64> {
        let options = self.config.diloco_options().expect("several replicas");
        let bytes = |(is_layer, dims): (bool, Vec<usize>)| {
            let whole: usize = dims.iter().product();
            let (count, blocked) = match fragment {
                Fragment::Whole => (whole, &dims[..]),
                Fragment::Part(0) if !is_layer => (whole, &dims[..]),
                Fragment::Part(1..) if is_layer => (whole * layers.0 / layers.1, &dims[stack..]),
                _ => return 0,
            };
            let fits = |size: usize, block: &usize| block.is_multiple_of(2) && size.is_multiple_of(*block);
            let largest = |&size: &usize| (1..=options.block.min(size)).filter(|block| fits(size, block)).max();
            let block = blocked.iter().filter_map(largest).max();
            (match (options.transport, block) {
                (Transport::F32, _) => 4 * count,
                (Transport::Bf16, _) | (_, None) => 2 * count,
                (Transport::F8, Some(block)) => count + 4 * count / block,
                (Transport::Int4, Some(block)) => count / 2 + 4 * count / block,
            }) as u64
        };
        self.outer_parts().into_iter().map(bytes).collect()
    }

    /// The sum of [`Program::expected_of_each`].
    fn expected(&self, fragment: Fragment, layers: (usize, usize), stack: usize) -> u64 {
        self.expected_of_each(fragment, layers, stack).into_iter().sum()
    }
}

/// The branches of conditionals, those within branches on their own, that hold collectives over `diloco`.
fn sending_branches<'g>(graph: &'g Graph, mesh: &Mesh, found: &mut Vec<&'g Graph>) {
    for node in graph.nodes() {
        match node.op() {
            Op::Cond(cond) => {
                for branch in &cond.branches {
                    let before = found.len();
                    sending_branches(branch, mesh, found);
                    let sends = Ledger::of(branch, mesh).over("diloco").count().expect("a ledger") > 0;
                    if sends && found.len() == before {
                        found.push(branch);
                    }
                }
            }
            op => op.regions().for_each(|body| sending_branches(body, mesh, found)),
        }
    }
}

/// Checks that nothing is sent over `diloco` outside of conditionals, that every branch that sends sends this much, as
/// one collective of each kind and type and over no other axis, and returns what they send.
#[track_caller]
fn check(program: &Program, expected: &[u64], collectives: usize) {
    let ledger = program.over_diloco();
    for entry in ledger.iter().expect("a ledger") {
        assert!(matches!(entry.executions, Amount::AtMost(_)), "outside of conditionals: {entry:?}");
        assert!(entry.scope.contains("diloco_send"), "{entry:?}");
        assert_eq!(entry.axes, ["diloco"], "{entry:?}");
    }
    let (graph, mesh) = program.local();
    let mut branches = Vec::new();
    sending_branches(graph, mesh, &mut branches);
    let ledgers: Vec<Ledger> = branches.iter().map(|branch| Ledger::of(branch, mesh)).collect();
    let text = || ledgers.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let mut found: Vec<u64> = ledgers.iter().map(|ledger| ledger.bytes().unwrap().bound().unwrap()).collect();
    let mut expected = expected.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{}", text());
    let total: usize = ledgers.iter().map(|ledger| ledger.count().unwrap()).sum();
    assert_eq!(total, ledger.count().unwrap(), "all are in those branches");
    for ledger in &ledgers {
        assert_eq!(ledger.count(), ledger.over_exactly(&["diloco"]).count(), "{}", text());
        assert_eq!(ledger.count(), Ok(collectives), "{}", text());
    }
}

#[test]
fn vanilla_sends_everything_at_once() {
    let program = Program::of(&[PLAIN_MESH], Calls::Single);
    check(&program, &[program.expected(Fragment::Whole, (1, 1), 1)], 1);
    assert_eq!(program.over_diloco().kind(CollectiveKind::AllReduce).count(), Ok(1));
}

#[test]
fn streaming_sends_one_fragment() {
    for order in ["diloco.sequential_layers=true", "diloco.sequential_layers=false"] {
        for fragments in [2, 3, 5] {
            for overlap in ["diloco.overlap_steps=0", "diloco.overlap_steps=2"] {
                let count = format!("diloco.fragments={fragments}");
                let settings = [order, "diloco.streaming=true", &count, overlap];
                let program = Program::of(&[PLAIN_MESH, &settings], Calls::Single);
                let outside = program.expected(Fragment::Part(0), (1, 1), 1);
                let layers = program.expected(Fragment::Part(1), (1, fragments - 1), 1);
                check(&program, &[outside, layers], 1);
            }
        }
    }
}

/// A layer fragment is never more than a (P - 1)-th of the bytes that vanilla DiLoCo sends at once, since all layers
/// together are no more than all parameters. Whether fragment 0 is within that share depends on the model: the
/// parameters outside of the layers must be no more than the share. If they are, as with three fragments here, no step
/// sends more; if they are larger, as with five, fragment 0 is the peak.
#[test]
fn the_peak_is_that_of_vanilla_by_the_layer_fragments() {
    let vanilla = Program::of(&[PLAIN_MESH], Calls::Single).expected(Fragment::Whole, (1, 1), 1);
    for (fragments, fits) in [(3, true), (5, false)] {
        let count = format!("diloco.fragments={fragments}");
        let program = Program::of(&[PLAIN_MESH, &["diloco.streaming=true", &count]], Calls::Single);
        let (graph, mesh) = program.local();
        let mut branches = Vec::new();
        sending_branches(graph, mesh, &mut branches);
        let bytes: Vec<u64> =
            branches.iter().map(|branch| Ledger::of(branch, mesh).bytes().unwrap().bound().unwrap()).collect();
        let share = vanilla / (fragments as u64 - 1);
        let outside = program.expected(Fragment::Part(0), (1, 1), 1);
        assert_eq!(outside <= share, fits);
        let peak = bytes.iter().max().copied().expect("branches that send");
        let layers = bytes.iter().copied().find(|&bytes| bytes != outside).expect("a branch for layers");
        assert!(layers <= share, "{layers} of {vanilla} with {fragments} fragments");
        assert_eq!(peak <= share, fits, "{peak} of {vanilla} with {fragments} fragments");
        assert_eq!(peak, layers.max(outside));
    }
}

#[test]
fn uneven_fragments_have_a_branch_more() {
    for order in ["diloco.sequential_layers=true", "diloco.sequential_layers=false"] {
        let settings = [order, "diloco.streaming=true", "diloco.fragments=4", "diloco.uneven_fragments=true"];
        let program = Program::of(&[PLAIN_MESH, &settings], Calls::Single);
        let outside = program.expected(Fragment::Part(0), (1, 1), 1);
        let layers = [2, 1].map(|layers| program.expected(Fragment::Part(1), (layers, 4), 1));
        check(&program, &[outside, layers[0], layers[1]], 1);
    }
}

#[test]
fn low_bit_numbers_are_what_is_sent() {
    for transport in ["bf16", "f8", "int4"] {
        for block in [16, 64] {
            let (transport, block) = (format!("diloco.transport={transport}"), format!("diloco.block={block}"));
            let program = Program::of(&[PLAIN_MESH, STREAMING, &[&transport, &block]], Calls::Single);
            let outside = program.expected(Fragment::Part(0), (1, 1), 1);
            let layers = program.expected(Fragment::Part(1), (1, 2), 1);
            // Numbers and scales have two types.
            let collectives = if transport.ends_with("bf16") { 1 } else { 2 };
            check(&program, &[outside, layers], collectives);
            assert_eq!(program.over_diloco().kind(CollectiveKind::AllGather).count(), program.over_diloco().count());
        }
    }
}

/// The size of a fragment that is computed without a program equals the bytes that the devices of a replica send.
#[test]
fn payloads_are_known_without_a_program() {
    for transport in ["f32", "bf16", "f8", "int4"] {
        let transport = format!("diloco.transport={transport}");
        // Every parameter is split over both axes, or over one, or over none.
        let program = Program::of(&[PLAIN_MESH, STREAMING, &[&transport]], Calls::Single);
        let diloco = program.config.diloco_step().unwrap().expect("several replicas").diloco;
        let options = diloco.options();
        for (fragment, share) in [(0, 1), (1, 2), (2, 2)] {
            let payload = diloco.fragments().payload_bytes(Fragment::Part(fragment), options.transport, options.block);
            let state = program.config.resolve().unwrap().state();
            let whole = state.params().leaves();
            let parts = program.outer_parts();
            let each = whole
                .iter()
                .zip(&parts)
                .map(|(param, (_, part))| param.spec.ty.element_count() / part.iter().product::<usize>());
            let each_once = program.expected_of_each(Fragment::Part(fragment), (1, share), 1);
            let expected: u64 = each_once.iter().zip(each).map(|(bytes, parts)| bytes * parts as u64).sum();
            assert_eq!(payload.iter().sum::<usize>() as u64, expected, "{transport} {fragment}");
        }
    }
}

/// Fragments cut what each stage holds: repeats, layers of a stage, or both.
#[test]
fn pipelines_send_the_same_share_of_every_stage() {
    let cases = [
        (&["model.layers=4", "pipeline.repeats=2"][..], 2),
        (&["model.layers=8", "pipeline.repeats=2", "pipeline.layers_per_stage=2"], 3),
        (&["model.layers=4", "pipeline.repeats=1", "pipeline.layers_per_stage=2", "pipeline.schedule=1f1b"], 2),
    ];
    for (pipeline, stack) in cases {
        for order in ["diloco.sequential_layers=true", "diloco.sequential_layers=false"] {
            let mesh = &["mesh.axes=diloco=2,stage=2,fsdp=2", "pipeline.microbatches=2", order];
            let program = Program::of(&[mesh, pipeline, STREAMING], Calls::Single);
            let outside = program.expected(Fragment::Part(0), (1, 1), 1);
            let layers = program.expected(Fragment::Part(1), (1, 2), stack);
            check(&program, &[outside, layers], 1);
        }
    }
}

/// Replicas of DiLoCo; each is partially sharded data parallel with microbatches.
#[test]
fn with_partially_sharded_replicas() {
    let settings = &["mesh.axes=diloco=2,replica=2,fsdp=2", "train.microbatches=2"];
    let program = Program::of(&[settings, STREAMING], Calls::Single);
    let outside = program.expected(Fragment::Part(0), (1, 1), 1);
    let layers = program.expected(Fragment::Part(1), (1, 2), 1);
    check(&program, &[outside, layers], 1);
}

/// Nothing goes from one replica to another in a step, whatever kind of step is mapped over the replicas.
#[test]
fn steps_of_all_kinds_keep_to_themselves() {
    let experts = ["model.family.experts=4", "model.family.moe_mlp=16"];
    let latent = [
        "model.family.q_lora=8",
        "model.family.kv_lora=8",
        "model.family.rope_head_dim=4",
        "model.family.v_head_dim=8",
    ];
    let over_experts = ["mesh.axes=diloco=2,fsdp=2,expert=2", "partition.replication=warn"];
    let cases: [&[&[&str]]; 5] = [
        &[PLAIN_MESH, &["model.dropout=0.1", "remat.policy=full"]],
        &[PLAIN_MESH, &["remat.policy=dots", "model.tied_embeddings=true", "model.compute_dtype=bf16"]],
        &[&["mesh.axes=diloco=2,data=2,context=2", "train.microbatches=2"]],
        &[&over_experts, &experts, &["model.family=mixtral"]],
        &[&over_experts, &experts, &latent, &["model.family=deepseek"]],
    ];
    for settings in cases {
        let program = Program::of(&[settings, &[STREAMING]].concat(), Calls::Single);
        let outside = program.expected(Fragment::Part(0), (1, 1), 1);
        let layers = program.expected(Fragment::Part(1), (1, 2), 1);
        check(&program, &[outside, layers], 1);
    }
}

/// Returns the bytes of the operands of the conditionals of a scope, without the selectors of the branch, those of
/// their results, and the number of conditionals.
fn through_conditionals(graph: &Graph, scope: &str) -> (u64, u64, usize) {
    let bytes = |value| graph.ty(value).byte_count() as u64;
    let mut found = (0, 0, 0);
    for node in graph.nodes().filter(|node| node.origin().scope.path().split('/').any(|part| part == scope)) {
        if matches!(node.op(), Op::Cond(_)) {
            let operands: u64 = node.operands()[1..].iter().map(|&value| bytes(value)).sum();
            found = (found.0 + operands, found.1 + node.results().map(bytes).sum::<u64>(), found.2 + 1);
        }
    }
    found
}

/// Through the conditionals of a sync go the parameters outside of layers and one share of layers: of the replica, of
/// the outer parameters, and of the velocities where they change. Not the other layers.
#[test]
fn conditionals_get_only_a_fragment() {
    let uneven = &["model.layers=5", "diloco.uneven_fragments=true"][..];
    let cases: [(&[&str], (usize, usize), usize); 5] = [
        (&["diloco.fragments=3"], (1, 2), 1),
        (&["model.layers=16", "diloco.fragments=9", "diloco.overlap_steps=2"], (1, 8), 1),
        (&["diloco.fragments=3", "diloco.transport=int4", "diloco.overlap_alpha=0.5"], (1, 2), 1),
        (&[uneven, &["diloco.fragments=4"]].concat(), (2, 5), 1),
        (&["diloco.fragments=3", "mesh.axes=diloco=2,stage=2,fsdp=2", "pipeline.repeats=2"], (1, 2), 2),
    ];
    for (settings, share, stack) in cases {
        for order in ["diloco.sequential_layers=true", "diloco.sequential_layers=false"] {
            let streaming = ["diloco.streaming=true", order, "partition.replication=warn"];
            let mesh = if stack == 1 { PLAIN_MESH } else { &["pipeline.microbatches=2"] };
            let program = Program::of(&[mesh, &streaming, settings], Calls::Single);
            // In full precision as much is sent as there is.
            let in_full = config(&[mesh, &streaming, settings, &["diloco.transport=f32"]]);
            let program = Program { config: in_full, ..program };
            let parts = [(Fragment::Part(0), (1, 1)), (Fragment::Part(1), share)];
            let part: u64 = parts.into_iter().map(|(fragment, share)| program.expected(fragment, share, stack)).sum();
            let graph = program.local().0;
            assert_eq!(through_conditionals(graph, "diloco_send"), (3 * part, 2 * part, 1), "{settings:?}");
            assert_eq!(through_conditionals(graph, "diloco_apply"), (2 * part, part, 1), "{settings:?}");
        }
    }
}

/// The number of instructions does not depend on the number of fragments. Equal constants are one, so these are not
/// counted.
#[test]
fn programs_do_not_grow_with_the_fragments() {
    let size = |fragments: usize, order: &str| {
        let count = format!("diloco.fragments={fragments}");
        let settings = ["model.layers=16", "diloco.streaming=true", "diloco.overlap_steps=1", &count, order];
        let module = Program::of(&[PLAIN_MESH, &settings], Calls::Single).lowered.module.decode().expect("a module");
        let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.filter(|instruction| instruction.opcode != "constant").count()
    };
    for order in ["diloco.sequential_layers=true", "diloco.sequential_layers=false"] {
        // A fragment of one layer needs no loop over its layers.
        let sizes = [3, 5, 9].map(|fragments| size(fragments, order));
        assert_eq!(sizes[0], sizes[1], "{order}");
        assert_eq!(sizes[1], sizes[2], "{order}");
    }
}

/// In a program of whole periods each fragment is sent once a period, unconditionally; before a loop that does not need
/// it.
#[test]
fn overlapping_programs_send_beside_a_loop() {
    let settings = &["diloco.streaming=true", "diloco.fragments=3", "diloco.sync_period=12", "diloco.overlap_steps=2"];
    let periods = 2;
    let program = Program::of(&[PLAIN_MESH, settings], Calls::Several(12 * periods));
    let outside = program.expected(Fragment::Part(0), (1, 1), 1);
    let layers = program.expected(Fragment::Part(1), (1, 2), 1);
    let ledger = program.over_diloco();
    assert_eq!(ledger.bytes().unwrap(), periods as u64 * (outside + 2 * layers), "{ledger}");
    assert_eq!(ledger.executions().unwrap(), 3 * periods as u64, "{ledger}");
    let mut beside = 0;
    count_beside_loops(program.local().0, &mut beside);
    assert_eq!(beside, 2, "one for layer fragments, in a loop, and one for fragment 0");
}

/// Counts the all-reduces over `diloco` behind which a loop of two steps stands that does not depend on them.
fn count_beside_loops(graph: &Graph, count: &mut usize) {
    for node in graph.nodes() {
        let is_sent = matches!(node.op(), Op::AllReduce(_)) && node.origin().scope.path().contains("diloco_send");
        *count += usize::from(is_sent && free_loop_after(graph, node.id));
        node.op().regions().for_each(|body| count_beside_loops(body, count));
    }
}

fn free_loop_after(graph: &Graph, sent: Node) -> bool {
    let mut depends = vec![false; graph.value_count()];
    for node in graph.nodes().filter(|node| node.id >= sent) {
        let needs = node.id == sent || node.operands().iter().any(|value| depends[value.index()]);
        node.results().for_each(|result| depends[result.index()] = needs);
        if matches!(node.op(), Op::Scan(scan) if scan.length == 2 && scan.body.node_count() > 50) && !needs {
            return true;
        }
    }
    false
}

/// The state's leaves have paths of their own, which do not depend on the number of replicas.
#[test]
fn paths_of_the_state() {
    let config = config(&[PLAIN_MESH]);
    let state = config.resolve().unwrap().state();
    let paths = state.paths();
    for path in ["inner.params.embedding", "inner.step", "outer.params.embedding", "outer.momentum.embedding", "step"] {
        assert!(paths.iter().any(|found| found == path), "{path} in {paths:?}");
    }
    let unique: std::collections::HashSet<&String> = paths.iter().collect();
    assert_eq!(unique.len(), paths.len());
    let RunState::Diloco(state) = state else { panic!("several replicas") };
    let start = config.diloco_step().unwrap().expect("several replicas").initialize(3).unwrap();
    let of_inner = start.inner.leaves();
    for (declared, literal) in state.inner.leaves().iter().zip(&of_inner) {
        assert_eq!(declared.spec.ty, *literal.ty());
        let (first, second) = literal.bytes().split_at(literal.bytes().len() / 2);
        assert_eq!(first, second, "replicas start alike");
    }
    assert_eq!(start.step, Literal::scalar(0i32));
}
