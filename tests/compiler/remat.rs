//! Tests of the values that checkpoints keep and compute again, by policy, through regions inside them; and of values
//! in the host's memory.

use std::collections::BTreeMap;

use meshloom::compile::{LowerOptions, lower};
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::{Graph, Phase};
use meshloom::ops::{Memory, Op, RematPolicy};
use meshloom::trace::{Function, Tensor, checkpoint, cond, custom_vjp, grad, scan};
use meshloom_nn::causal_attention;
use support::anchored::run;
use support::derivatives::*;
use support::*;

/// Ops that run in a phase, those of regions in the phase of the op around them unless they have their own.
fn in_phase(graph: &Graph, outer: Phase, wanted: Phase, found: &mut BTreeMap<&'static str, usize>) {
    for node in graph.nodes() {
        let own = node.origin().phase;
        let phase = if own == Phase::Forward { outer } else { own };
        if phase == wanted && matches!(node.op().name(), "attention" | "dot" | "tanh" | "sine" | "exponential") {
            *found.entry(node.op().name()).or_default() += 1;
        }
        node.op().regions().for_each(|body| in_phase(body, phase, wanted, found));
    }
}

/// Describes the ops that are computed again, and the bytes that wait for them, besides the inputs.
fn describe(graph: &Graph) -> String {
    let mut again = BTreeMap::new();
    in_phase(graph, Phase::Forward, Phase::Recompute, &mut again);
    let again: Vec<String> = again.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let mut bytes = 0;
    for node in graph.nodes().filter(|node| matches!(node.op(), Op::Barrier(_))) {
        for &operand in node.operands() {
            let forward = graph.defining_node(operand).is_some_and(|node| node.origin().phase == Phase::Forward);
            bytes += if forward { graph.ty(operand).element_count() * graph.ty(operand).dtype.byte_count() } else { 0 };
        }
    }
    format!("again [{}], kept {bytes} bytes", again.join(", "))
}

fn policies() -> Vec<(&'static str, RematPolicy)> {
    let mixed = || names(&["mixed"]);
    vec![
        ("full", RematPolicy::Full),
        ("dots", RematPolicy::Dots),
        ("dots without batch", RematPolicy::DotsWithoutBatch),
        ("save", RematPolicy::Save(mixed())),
        ("offload", RematPolicy::Offload(mixed())),
        ("save except", RematPolicy::SaveExcept(mixed())),
        ("any", RematPolicy::Any(vec![RematPolicy::Dots, RematPolicy::Save(mixed())])),
        ("any nothing", RematPolicy::Any(vec![])),
        ("none", RematPolicy::None),
        ("any with none", RematPolicy::Any(vec![RematPolicy::Full, RematPolicy::None])),
    ]
}

/// A dot, a dot with a batch dimension, three elementwise functions; the value called "mixed" is 2 x 3.
fn layer(h: Tensor, w: Tensor) -> Tensor {
    let mixed = h.matmul(w).tanh().named("mixed");
    let batched = meshloom::trace::einsum("bi,bi->b", &[mixed, h]);
    (mixed * batched.broadcast_like(mixed, [0])).sin().exp()
}

const SHAPES: &[&[usize]] = &[&[2, 3], &[4, 3, 3]];

/// The gradient of each policy, all of them equal, and what it keeps.
fn check_policies(program: fn(RematPolicy, &[Tensor]) -> Tensor) -> String {
    let expected = check(SHAPES, |x| program(RematPolicy::None, x));
    let mut lines = Vec::new();
    for (name, policy) in policies() {
        let found = check(SHAPES, |x| program(policy.clone(), x));
        assert!(distance(&found, &expected) <= 1e-12, "{name}");
        let graph = optimize(&differentiated(SHAPES, |x| program(policy.clone(), x)));
        lines.push(format!("{name}: {}", describe(&graph)));
    }
    lines.join("\n")
}

#[test]
fn policies_in_a_body() {
    let found = check_policies(|policy, x| checkpoint(policy, (x[0], x[1].index(0)), |(h, w)| layer(h, w)).sum(..));
    insta::assert_snapshot!(found, @r"
    full: again [dot 2, exponential 1, sine 1, tanh 1], kept 72 bytes
    dots: again [exponential 1, sine 1, tanh 1], kept 136 bytes
    dots without batch: again [dot 1, exponential 1, sine 1, tanh 1], kept 120 bytes
    save: again [dot 1, exponential 1, sine 1], kept 120 bytes
    offload: again [dot 1, exponential 1, sine 1], kept 120 bytes
    save except: again [tanh 1], kept 232 bytes
    any: again [exponential 1, sine 1], kept 136 bytes
    any nothing: again [dot 2, exponential 1, sine 1, tanh 1], kept 72 bytes
    none: again [], kept 0 bytes
    any with none: again [], kept 0 bytes
    ");
}

#[test]
fn policies_look_into_loops() {
    let found = check_policies(|policy, x| {
        checkpoint(policy, (x[0], x[1]), |(h, w)| scan(h, w, |h, w| (layer(h, w), ())).0).sum(..)
    });
    insta::assert_snapshot!(found, @r"
    full: again [dot 2, exponential 1, sine 1, tanh 1], kept 0 bytes
    dots: again [exponential 1, sine 1, tanh 1], kept 256 bytes
    dots without batch: again [dot 1, exponential 1, sine 1, tanh 1], kept 192 bytes
    save: again [dot 1, exponential 1, sine 1], kept 192 bytes
    offload: again [dot 1, exponential 1, sine 1], kept 192 bytes
    save except: again [tanh 1], kept 640 bytes
    any: again [exponential 1, sine 1], kept 256 bytes
    any nothing: again [dot 2, exponential 1, sine 1, tanh 1], kept 0 bytes
    none: again [], kept 0 bytes
    any with none: again [], kept 0 bytes
    ");
}

#[test]
fn policies_look_into_branches() {
    let found = check_policies(|policy, x| {
        let flag = x[0].sum(..).less(1e3);
        checkpoint(policy, (x[0], x[1].index(0)), |(h, w)| cond(flag, (h, w), |(h, w)| layer(h, w), |(h, _)| h.sin()))
            .sum(..)
    });
    insta::assert_snapshot!(found, @r"
    full: again [dot 2, exponential 1, sine 2, tanh 1], kept 73 bytes
    dots: again [exponential 1, sine 2, tanh 1], kept 137 bytes
    dots without batch: again [dot 1, exponential 1, sine 2, tanh 1], kept 121 bytes
    save: again [dot 1, exponential 1, sine 2], kept 121 bytes
    offload: again [dot 1, exponential 1, sine 2], kept 121 bytes
    save except: again [tanh 1], kept 233 bytes
    any: again [exponential 1, sine 2], kept 137 bytes
    any nothing: again [dot 2, exponential 1, sine 2, tanh 1], kept 73 bytes
    none: again [], kept 0 bytes
    any with none: again [], kept 0 bytes
    ");
}

#[test]
fn policies_look_into_calls() {
    let found = check_policies(|policy, x| {
        let function = Function::trace("layer", specs(&[&[2, 3], &[3, 3]]), |x| layer(x[0], x[1])).expect("trace");
        let weights = x[1].index(0);
        checkpoint(policy, (x[0], weights), |(h, w)| function.call(vec![function.call(vec![h, w]), w])).sum(..)
    });
    insta::assert_snapshot!(found, @r"
    full: again [dot 4, exponential 2, sine 2, tanh 2], kept 72 bytes
    dots: again [exponential 2, sine 2, tanh 2], kept 200 bytes
    dots without batch: again [dot 2, exponential 2, sine 2, tanh 2], kept 168 bytes
    save: again [dot 2, exponential 2, sine 2], kept 168 bytes
    offload: again [dot 2, exponential 2, sine 2], kept 168 bytes
    save except: again [tanh 2], kept 536 bytes
    any: again [exponential 2, sine 2], kept 296 bytes
    any nothing: again [dot 4, exponential 2, sine 2, tanh 2], kept 72 bytes
    none: again [], kept 0 bytes
    any with none: again [], kept 0 bytes
    ");
}

#[test]
fn policies_look_into_checkpoints() {
    // The inner checkpoint keeps nothing by itself.
    let found = check_policies(|policy, x| {
        let inner = |h: Tensor, w: Tensor| checkpoint(RematPolicy::Full, (h, w), |(h, w)| layer(h, w));
        checkpoint(policy, (x[0], x[1].index(0)), |(h, w)| inner(h, w)).sum(..)
    });
    insta::assert_snapshot!(found, @r"
    full: again [dot 2, exponential 1, sine 1, tanh 1], kept 72 bytes
    dots: again [exponential 1, sine 1, tanh 1], kept 136 bytes
    dots without batch: again [dot 1, exponential 1, sine 1, tanh 1], kept 120 bytes
    save: again [dot 1, exponential 1, sine 1], kept 120 bytes
    offload: again [dot 1, exponential 1, sine 1], kept 120 bytes
    save except: again [tanh 1], kept 232 bytes
    any: again [exponential 1, sine 1], kept 136 bytes
    any nothing: again [dot 2, exponential 1, sine 1, tanh 1], kept 72 bytes
    none: again [dot 2, exponential 1, sine 1, tanh 1], kept 72 bytes
    any with none: again [dot 2, exponential 1, sine 1, tanh 1], kept 72 bytes
    ");
}

#[test]
fn policies_look_into_forward_rules() {
    let found = check_policies(|policy, x| {
        checkpoint(policy, (x[0], x[1].index(0)), |(h, w)| {
            let hidden = custom_vjp(
                (h, w),
                |(h, w)| h.matmul(w).tanh(),
                |(h, w)| {
                    let mixed = h.matmul(w).tanh().named("mixed");
                    (mixed, (h, w, mixed))
                },
                |(h, w, mixed), ct| {
                    let slope = ct * (mixed.square() * -1.0 + 1.0);
                    (slope.matmul(w.transpose([1, 0])), h.transpose([1, 0]).matmul(slope))
                },
            );
            hidden.exp()
        })
        .sum(..)
    });
    insta::assert_snapshot!(found, @r"
    full: again [dot 1, exponential 1, tanh 1], kept 72 bytes
    dots: again [exponential 1, tanh 1], kept 120 bytes
    dots without batch: again [exponential 1, tanh 1], kept 120 bytes
    save: again [exponential 1], kept 120 bytes
    offload: again [exponential 1], kept 120 bytes
    save except: again [tanh 1], kept 168 bytes
    any: again [exponential 1], kept 120 bytes
    any nothing: again [dot 1, exponential 1, tanh 1], kept 72 bytes
    none: again [], kept 0 bytes
    any with none: again [], kept 0 bytes
    ");
}

/// Attention is computed again unless both of what it makes are kept, though only its backward pass reads the second.
#[test]
fn attention_is_kept_by_both_of_its_names() {
    let again = |kept: &[&str]| {
        let policy = save(kept);
        let graph = differentiated(&[&[1, 8, 2, 4], &[3, 1, 8, 2, 4]], |x| {
            let layer = |h, w| checkpoint(policy.clone(), (h, w), |(h, w)| causal_attention(h, h * w, w));
            scan(x[0], x[1], |h, w| (layer(h, w), ())).0.sum(..)
        });
        let mut again = BTreeMap::new();
        in_phase(&graph, Phase::Forward, Phase::Recompute, &mut again);
        again.remove("attention").unwrap_or(0)
    };
    let both = ["attention_mixed", "attention_log_total"];
    assert_eq!([&[][..], &both[..1], &both[1..], &both].map(again), [1, 1, 1, 0]);
}

#[test]
fn the_first_policy_that_keeps_a_value_says_where() {
    let moves = |policies: Vec<RematPolicy>| {
        let graph = differentiated(SHAPES, |x| {
            let policy = RematPolicy::Any(policies.clone());
            checkpoint(policy, (x[0], x[1].index(0)), |(h, w)| layer(h, w)).sum(..)
        });
        count(&optimize(&graph), "move-to-host")
    };
    let offload = || RematPolicy::Offload(names(&["mixed"]));
    assert_eq!(moves(vec![offload(), save(&["mixed"])]), 1);
    assert_eq!(moves(vec![save(&["mixed"]), offload()]), 0);
    assert_eq!(moves(vec![RematPolicy::Dots, offload()]), 1);
    // Values that are kept anyway are not moved.
    assert_eq!(moves(vec![RematPolicy::SaveExcept(vec![]), offload()]), 0);
}

fn offloading() -> Graph {
    let layers = |x: &[Tensor]| {
        let policy = RematPolicy::Offload(names(&["mixed"]));
        scan(x[0], x[1], |h, w| (checkpoint(policy, (h, w), |(h, w)| layer(h, w)), ())).0.sum(..)
    };
    let function = Function::trace("offloading", specs(SHAPES), |x| grad(x, |x| layers(&x)));
    function.expect("trace").graph().as_ref().clone()
}

/// The values of a plugin with a host memory: moved out where they are made and stacked, and in where they are read.
#[test]
fn offloaded_values_are_moved_out_and_in() {
    let options = LowerOptions { host_memory: true, omit_metadata: true, ..LowerOptions::default() };
    let lowered = lower(&offloading(), &options).expect("lowered");
    let mut places = Vec::new();
    walk(lowered.graph(), &mut |graph, node| {
        if let Op::MoveTo(to) = node.op() {
            let reader = |memory| if memory == Memory::Host { "to host" } else { "to device" };
            places.push(format!("{} {} in {}", reader(to.0), graph.ty(node.result()), graph.name()));
        }
    });
    insta::assert_snapshot!(places.join("\n"), @r"
    to host f64[2,3] in scan
    to device f64[2,3] in scan_backward
    ");
    let text = print(&lowered.module.decode().expect("a module"), &TextOptions::canonical());
    let _bound = support::snapshots_in("hlo_snapshots/remat");
    insta::assert_snapshot!("offload_in_scan", text);
}

/// Without a host memory the moves are the identity, and the program runs anywhere.
#[test]
fn offloading_without_a_host_memory_is_the_identity() {
    let lowered = lower(&offloading(), &LowerOptions::default()).expect("lowered");
    let module = lowered.module.decode().expect("a module");
    let mut all = module.computations.iter().flat_map(|computation| &computation.instructions);
    assert!(!all.any(|instruction| instruction.opcode == "custom-call"));
    let graph = offloading();
    let expected = traced_without_checkpoint();
    let inputs = inputs_of(&graph);
    assert!(distance(&flat(&run(&graph, &inputs)), &flat(&run(&expected, &inputs))) <= 1e-13);
}

fn traced_without_checkpoint() -> Graph {
    let layers = |x: &[Tensor]| scan(x[0], x[1], |h, w| (layer(h, w), ())).0.sum(..);
    let function = Function::trace("plain", specs(SHAPES), |x| grad(x, |x| layers(&x)));
    function.expect("trace").graph().as_ref().clone()
}

/// The CPU plugin takes the annotations too: the values it computes are the same.
#[test]
fn annotated_moves_run_on_a_cpu() {
    let graph = offloading();
    let options = LowerOptions { host_memory: true, ..LowerOptions::default() };
    let client = meshloom::pjrt::Client::cpu(1).expect("a CPU client");
    let program = lower(&graph, &options).expect("lowered").compile(&client).expect("compiled");
    let inputs = inputs_of(&graph);
    let arrays = program.put(0, &inputs).expect("put");
    let outputs = program.run(&arrays.iter().collect::<Vec<_>>()).expect("run");
    let found: Vec<f64> = outputs.iter().flat_map(|array| array.get().expect("get").to_f64_vec()).collect();
    assert!(distance(&found, &flat(&run(&graph, &inputs))) <= 1e-13);
}
