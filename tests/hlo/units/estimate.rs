//! Programs small enough to work out by hand, on round hardware: a product of `f32[1000,1000]` with another takes 2e9
//! operations, one unit of 1 ms at 2e12 operations per second; memory and starting cost nothing.

use meshloom::analysis::Chip;
use meshloom::analysis::estimate::{
    Cache, Dimension, EstimateError, FROM_HOST, Hardware, Reached, StepTime, TO_HOST, Wire, estimate,
};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::parse::parse;

const UNIT: f64 = 1e-3;
/// Bytes per second over which 4 MB take a unit.
const RATE: f64 = 4e9;

fn dimension(size: usize, wire: Wire, rate: f64) -> Dimension {
    Dimension { size, wire, wraps: true, rate, latency: 0.0 }
}

fn hardware(dimensions: &[Dimension]) -> Hardware {
    let h100 = Chip::parse("h100").expect("a chip");
    let chip = Chip { f32_flops: Some(2e12), memory_bandwidth: Some(1e18), ..*h100 };
    let reached = Reached::of(PlatformKind::Cpu);
    Hardware { chip, dimensions: dimensions.to_vec(), reached, launch: 0.0, overlaps: true }
}

fn switch() -> Hardware {
    hardware(&[dimension(2, Wire::Switch, RATE), dimension(2, Wire::Network, RATE / 4.0)])
}

fn on(hardware: &Hardware, mesh: &str, text: &str) -> StepTime {
    let module = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}")).hlo_module.expect("a module");
    let mesh = Mesh::parse(mesh, hardware.device_count()).expect("a mesh");
    estimate(&module, &mesh, hardware).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A program that begins with the matrices `p` and `q`.
fn program(computations: &str, body: &str) -> String {
    format!(
        "HloModule m\n{computations}\nENTRY main {{\n  p = f32[1000,1000] parameter(0)\n  \
         q = f32[1000,1000] parameter(1)\n{body}\n}}\n"
    )
}

fn product(name: &str, left: &str, right: &str) -> String {
    let numbers = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    format!("  {name} = f32[1000,1000] dot({left}, {right}), {numbers}\n")
}

/// An exchange of half of 4 MB.
fn exchange(name: &str, of: &str, groups: &str) -> String {
    format!("  {name} = f32[1000,1000] all-to-all({of}), channel_id=1, replica_groups={groups}, dimensions={{0}}\n")
}

const NEAR: &str = "{{0,1},{2,3}}";
const FAR: &str = "{{0,2},{1,3}}";

/// Step, computing, waiting and idle time in units.
#[track_caller]
fn check(found: &StepTime, expected: [f64; 4]) {
    let units = [found.seconds, found.computing, found.waiting, found.idle].map(|seconds| seconds / UNIT);
    let is_near = units.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
    assert!(is_near, "{units:?} and not {expected:?}\n{found:#?}");
}

#[test]
fn products_follow_one_another() {
    let body = [product("a", "p", "q"), product("ROOT b", "a", "q")].concat();
    check(&on(&switch(), "data=2,fsdp=2", &program("", &body)), [2.0, 2.0, 0.0, 0.0]);
}

#[test]
fn what_a_cache_holds_moves_faster() {
    let mut hardware = switch();
    hardware.chip.memory_bandwidth = Some(4e9);
    let text = program("", "  ROOT a = f32[1000,1000] negate(p)\n");
    // 4 MB are read, and as many written.
    for (bytes, units) in [(8e6 - 1.0, 2.0), (8e6, 0.5)] {
        hardware.reached.cache = Some(Cache { bytes, bandwidth: 16e9 });
        check(&on(&hardware, "data=2,fsdp=2", &text), [units, units, 0.0, 0.0]);
    }
}

#[test]
fn elementwise_operations_are_part_of_their_readers() {
    // 4 MB at 4e9 bytes per second is a unit. A chain reads and writes once, whatever is in it.
    let mut hardware = switch();
    hardware.chip.memory_bandwidth = Some(4e9);
    let body = "  a = f32[1000,1000] negate(p)\n  b = f32[1000,1000] add(a, q)\n  ROOT c = f32[1000,1000] negate(b)\n";
    check(&on(&hardware, "data=2,fsdp=2", &program("", body)), [3.0, 3.0, 0.0, 0.0]);
}

/// An exponential is not computed twice, but in one kernel with its readers, unless one of them needs another.
#[test]
fn readers_of_an_exponential_are_one_kernel() {
    let mut hardware = switch();
    hardware.chip.memory_bandwidth = Some(4e9);
    let pair = |third: &str| {
        format!(
            "  a = f32[1000,1000] exponential(p)\n  b = f32[1000,1000] negate(a)\n  \
             c = f32[1000,1000] add(a, {third})\n  \
             ROOT t = (f32[1000,1000], f32[1000,1000]) tuple(b, c)\n"
        )
    };
    // Reads p and q, writes b and c.
    check(&on(&hardware, "data=2,fsdp=2", &program("", &pair("q"))), [4.0, 4.0, 0.0, 0.0]);
    // Reads p and writes a; reads that and writes b; reads both and writes c.
    check(&on(&hardware, "data=2,fsdp=2", &program("", &pair("b"))), [7.0, 7.0, 0.0, 0.0]);
}

/// A value with other dimensions lies where it lies, unless its tiles change.
#[test]
fn reshapes_cost_nothing() {
    let mut hardware = switch();
    hardware.chip.memory_bandwidth = Some(4e9);
    let flat = "  a = f32[1000,1000] add(p, q)\n  b = f32[1000000] reshape(a)\n  \
                ROOT t = (f32[1000000], f32[1000,1000]) tuple(b, a)\n";
    let higher = flat.replace("f32[1000000]", "f32[1,1000,1000]");
    check(&on(&hardware, "data=2,fsdp=2", &program("", flat)), [3.0, 3.0, 0.0, 0.0]);
    hardware.chip.backend = PlatformKind::Tpu;
    check(&on(&hardware, "data=2,fsdp=2", &program("", flat)), [5.0, 5.0, 0.0, 0.0]);
    check(&on(&hardware, "data=2,fsdp=2", &program("", &higher)), [3.0, 3.0, 0.0, 0.0]);
}

#[test]
fn what_needs_a_collective_waits_for_it() {
    let near = [exchange("x", "p", NEAR), product("ROOT a", "x", "q")].concat();
    check(&on(&switch(), "data=2,fsdp=2", &program("", &near)), [1.5, 1.0, 0.5, 0.0]);
    // The network is four times as slow.
    let far = [exchange("x", "p", FAR), product("ROOT a", "x", "q")].concat();
    let found = on(&switch(), "data=2,fsdp=2", &program("", &far));
    check(&found, [3.0, 1.0, 2.0, 0.0]);
    assert_eq!(found.transfers[0].axes, "data");
}

#[test]
fn what_does_not_need_a_collective_runs_beside_it() {
    let body = |order: [&str; 3]| {
        let parts = order.map(|part| match part {
            "x" => exchange("x", "p", FAR),
            "a" => product("a", "p", "q"),
            _ => product("ROOT b", "x", "a"),
        });
        program("", &parts.concat())
    };
    // The order of the exchange and the product does not matter.
    for order in [["x", "a", "b"], ["a", "x", "b"]] {
        check(&on(&switch(), "data=2,fsdp=2", &body(order)), [3.0, 2.0, 1.0, 0.0]);
    }
    let mut serial = switch();
    serial.overlaps = false;
    check(&on(&serial, "data=2,fsdp=2", &body(["x", "a", "b"])), [4.0, 2.0, 2.0, 0.0]);
}

#[test]
fn collectives_over_the_same_axes_take_turns() {
    let two = |second: &str| {
        let both = "  ROOT s = (f32[1000,1000], f32[1000,1000]) tuple(x, y)\n";
        program("", &[exchange("x", "p", NEAR), exchange("y", "q", second), both.to_owned()].concat())
    };
    check(&on(&switch(), "data=2,fsdp=2", &two(NEAR)), [1.0, 0.0, 1.0, 0.0]);
    check(&on(&switch(), "data=2,fsdp=2", &two(FAR)), [2.0, 0.0, 2.0, 0.0]);
}

/// A move out and back takes a unit each way, beside what does not need it, in both ways of writing it.
#[test]
fn moves_to_the_host_run_beside_what_does_not_need_them() {
    let mut hardware = switch();
    hardware.chip.host_bandwidth = Some(RATE);
    let annotated = |place: &str| {
        format!(
            "custom_call_target=\"annotate_device_placement\", custom_call_has_side_effect=true, \
             frontend_attributes={{_xla_buffer_placement=\"{place}\"}}"
        )
    };
    let target = |name: &str| format!("custom_call_target=\"{name}\"");
    for [out, back] in [[annotated("pinned_host"), annotated("device")], ["MoveToHost", "MoveToDevice"].map(target)] {
        let out = format!("  h = f32[1000,1000] custom-call(p), {out}\n");
        let back = format!("  d = f32[1000,1000] custom-call(h), {back}\n");
        let text = program("", &[out, product("a", "p", "q"), back, product("ROOT b", "a", "d")].concat());
        let found = on(&hardware, "data=2,fsdp=2", &text);
        check(&found, [3.0, 2.0, 1.0, 0.0]);
        assert_eq!(found.transfers.iter().map(|it| it.axes.as_str()).collect::<Vec<_>>(), [FROM_HOST, TO_HOST]);
        let mut unknown = hardware.clone();
        unknown.chip.host_bandwidth = None;
        check(&on(&unknown, "data=2,fsdp=2", &text), [2.0, 2.0, 0.0, 0.0]);
    }
}

const LOOP: &str = "
body {
  s = (s32[], f32[1000,1000], f32[1000,1000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[1000,1000] get-tuple-element(s), index=1
  b = f32[1000,1000] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  c = f32[1000,1000] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[1000,1000], f32[1000,1000]) tuple(next, c, b)
}
condition {
  s = (s32[], f32[1000,1000], f32[1000,1000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT l = pred[] compare(i, n), direction=LT
}
";

const RUN: &str = "  zero = s32[] constant(0)
  start = (s32[], f32[1000,1000], f32[1000,1000]) tuple(zero, p, q)
  w = (s32[], f32[1000,1000], f32[1000,1000]) while(start), condition=condition, body=body
  ROOT r = f32[1000,1000] get-tuple-element(w), index=1
";

#[test]
fn loops_take_their_bodies_as_often_as_they_run() {
    check(&on(&switch(), "data=2,fsdp=2", &program(LOOP, RUN)), [5.0, 5.0, 0.0, 0.0]);
}

/// Device 0 multiplies in iterations 0 to 3, device 1 in 1 to 4: a pipeline of two stages with four microbatches.
#[test]
fn stages_that_branch_wait_for_each_other() {
    let branches = "
work {
  p = (f32[1000,1000], f32[1000,1000]) parameter(0)
  a = f32[1000,1000] get-tuple-element(p), index=0
  b = f32[1000,1000] get-tuple-element(p), index=1
  ROOT c = f32[1000,1000] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
rest {
  p = (f32[1000,1000], f32[1000,1000]) parameter(0)
  ROOT a = f32[1000,1000] get-tuple-element(p), index=0
}
";
    let product = "  c = f32[1000,1000] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n";
    let branch = "  id = u32[] partition-id()
  device = s32[] convert(id)
  lag = s32[] subtract(i, device)
  null = s32[] constant(0)
  four = s32[] constant(4)
  after = pred[] compare(lag, null), direction=GE
  before = pred[] compare(lag, four), direction=LT
  busy = pred[] and(after, before)
  ab = (f32[1000,1000], f32[1000,1000]) tuple(a, b)
  c = f32[1000,1000] conditional(busy, ab, ab), true_computation=work, false_computation=rest
";
    let text = program(&[branches, &LOOP.replace(product, branch)].concat(), RUN);
    let found = on(&hardware(&[dimension(2, Wire::Switch, RATE)]), "stage=2", &text);
    check(&found, [5.0, 5.0, 0.0, 1.0]);
}

/// A line of a torus takes twice as long as a ring, groups between one another share links, and dimensions share what
/// is to be carried.
#[test]
fn wires() {
    let gather = |groups: &str| {
        let text = format!(
            "  ROOT g = f32[4000,1000] all-gather(p), channel_id=1, replica_groups={groups}, dimensions={{0}}, \
             use_global_device_ids=true\n"
        );
        program("", &text)
    };
    let torus = |sizes: [usize; 2]| hardware(&sizes.map(|size| dimension(size, Wire::Torus, RATE)));
    let whole = "{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}";
    // A device passes on 12 MB.
    check(&on(&torus([4, 4]), "data=4,fsdp=4", &gather(whole)), [3.0, 0.0, 3.0, 0.0]);
    // Half of a ring of eight: a line.
    let halves = "{{0,1,2,3},{4,5,6,7}}";
    let ring = |size| hardware(&[dimension(size, Wire::Torus, RATE)]);
    check(&on(&ring(8), "data=2,fsdp=4", &gather(halves)), [6.0, 0.0, 6.0, 0.0]);
    // A line of two of eight, and a ring of two, at once.
    check(&on(&torus([8, 2]), "data=4,fsdp=4", &gather(whole)), [2.0, 0.0, 2.0, 0.0]);
    // The major axis of a ring of eight in two parts: neighbours are four apart.
    let apart = "{{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}";
    check(&on(&ring(16), "data=4,fsdp=4", &gather(apart)), [12.0, 0.0, 12.0, 0.0]);
}

/// Threads of one process read or write the larger side of a collective once, in groups of any size.
#[test]
fn shared_memory() {
    let memory = hardware(&[dimension(8, Wire::Memory, RATE)]);
    let sum = "sum {\n  l = f32[] parameter(0)\n  r = f32[] parameter(1)\n  ROOT s = f32[] add(l, r)\n}\n";
    let of = |groups: &str, shape: &str, call: &str, more: &str| {
        let text = format!(
            "  ROOT z = f32[{shape}] {call}(p), channel_id=1, replica_groups={groups}{more}, use_global_device_ids=true\n"
        );
        on(&memory, "data=4,fsdp=2", &program(sum, &text))
    };
    for groups in ["{{0,1},{2,3},{4,5},{6,7}}", "{{0,1,2,3},{4,5,6,7}}", "{{0,1,2,3,4,5,6,7}}"] {
        let members = groups.split('}').next().expect("a group").split(',').count();
        check(&of(groups, "1000,1000", "all-reduce", ", to_apply=sum"), [1.0, 0.0, 1.0, 0.0]);
        let rows = |of: usize| format!("{of},1000");
        let scattered = of(groups, &rows(1000 / members), "reduce-scatter", ", dimensions={0}, to_apply=sum");
        check(&scattered, [1.0, 0.0, 1.0, 0.0]);
        let times = members as f64;
        check(&of(groups, &rows(1000 * members), "all-gather", ", dimensions={0}"), [times, 0.0, times, 0.0]);
    }
    let pairs = "  ROOT z = f32[1000,1000] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,0}}\n";
    check(&on(&memory, "data=4,fsdp=2", &program("", pairs)), [1.0, 0.0, 1.0, 0.0]);
    let exchanged = on(&memory, "data=4,fsdp=2", &program("", &exchange("ROOT z", "p", "{{0,1},{2,3},{4,5},{6,7}}")));
    check(&exchanged, [1.0, 0.0, 1.0, 0.0]);
}

#[test]
fn other_hardware_is_refused() {
    let module = parse(&program("", &product("ROOT a", "p", "q"))).expect("a module").hlo_module.expect("a module");
    let mesh = Mesh::parse("data=3", 3).expect("a mesh");
    let error = estimate(&module, &mesh, &switch()).expect_err("three of four devices");
    assert!(matches!(error, EstimateError::Arrangement { found: 3, expected: 4, .. }), "{error}");
}
