//! Schedules small enough to work out by hand. On a v5p a permute of `f32[2000]` takes 8000 bytes / 200 GB/s = 40 ns,
//! and `negate` of `f32[13825]` 110600 bytes / 2765 GB/s = 40 ns: one unit of time.

use meshloom::analysis::{Chip, CostOptions, Devices, ModuleOverlap, OverlapError, collectives, overlap};
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::parse::parse;

const UNIT: f64 = 40e-9;
const FSDP: &str = "source_target_pairs={{0,1},{1,0},{2,3},{3,2}}";
const DATA: &str = "source_target_pairs={{0,2},{2,0},{1,3},{3,1}}";

fn try_on(chip: &str, text: &str) -> Result<ModuleOverlap, OverlapError> {
    let module = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}")).hlo_module.expect("a module");
    let mesh = Mesh::parse("data=2,fsdp=2", 4).expect("a mesh");
    let options = CostOptions::devices(Devices::partitioned(4)).on(Chip::parse(chip).expect("a chip"));
    overlap(&module, Some(&mesh), &options)
}

fn module(computations: &str, body: &str) -> String {
    format!(
        "HloModule m, is_scheduled=true\n{computations}\nENTRY main {{\n  p = f32[2000] parameter(0)\n  \
         q = f32[4000] parameter(1)\n  x = f32[13825] parameter(2)\n{body}\n}}\n"
    )
}

/// A start of one unit, or of two.
fn start(name: &str, units: usize, pairs: &str) -> String {
    let (operand, size) = if units == 1 { ("p", 2000) } else { ("q", 4000) };
    format!("  {name} = (f32[{size}], f32[{size}]) collective-permute-start({operand}), channel_id=1, {pairs}\n")
}

fn done(name: &str, of: &str, units: usize) -> String {
    format!("  {name} = f32[{}] collective-permute-done({of})\n", 2000 * units)
}

/// Compute of one unit.
fn compute(name: &str) -> String {
    format!("  {name} = f32[13825] negate(x)\n")
}

/// Transfer time and exposed time, in units.
#[track_caller]
fn check(text: &str, expected: [f64; 2]) -> ModuleOverlap {
    let found = try_on("v5p", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let units = [found.total.seconds, found.total.exposed_seconds].map(|seconds| seconds / UNIT);
    let is_near = units.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
    assert!(is_near, "{units:?} and not {expected:?}\n{text}");
    found
}

#[test]
fn compute_hides_what_runs_beside_it() {
    let one = |between: &str| module("", &[&start("s", 2, FSDP), between, &done("ROOT d", "s", 2)].concat());
    check(&one(""), [2.0, 2.0]);
    let half = check(&one(&compute("a")), [2.0, 1.0]);
    assert!(half.total.share().is_some_and(|share| (share - 0.5).abs() < 1e-9));
    assert!((half.waiting_seconds / UNIT - 1.0).abs() < 1e-6 && (half.computing_seconds / UNIT - 1.0).abs() < 1e-6);
    assert!((half.total.waited_seconds / UNIT - 1.0).abs() < 1e-6, "{half:?}");
    let transfer = &half.transfers[0];
    assert_eq!(transfer.largest_beside.as_ref().map(|it| (it.name.as_str(), it.op.as_str())), Some(("a", "negate")));
    assert!((transfer.beside_seconds / UNIT - 1.0).abs() < 1e-6 && !transfer.synchronous);
    check(&one(&[compute("a"), compute("b"), compute("c")].concat()), [2.0, 0.0]);
    // Work before the start and after the end hides nothing.
    let body = [compute("a"), start("s", 2, FSDP), done("d", "s", 2), compute("ROOT b")].concat();
    check(&module("", &body), [2.0, 2.0]);
}

#[test]
fn collectives_in_one_piece_hide_nothing() {
    let body = |config: &str| {
        format!("{}  ROOT r = f32[2000] collective-permute(p), channel_id=1, {FSDP}{config}\n", compute("a"))
    };
    let found = check(&module("", &body("")), [1.0, 1.0]);
    assert!(found.transfers[0].synchronous);
    // GPUs have halves in one piece.
    for (is_sync, exposed) in [("true", 1.0), ("false", 0.0)] {
        let config = format!(", backend_config={{\"collective_backend_config\":{{\"is_sync\":{is_sync}}}}}\n");
        let start = start("s", 1, FSDP).replace('\n', &config);
        let body = [&start, &compute("a"), &done("ROOT d", "s", 1)].map(String::as_str).concat();
        let found = check(&module("", &body), [1.0, exposed]);
        assert_eq!(found.transfers[0].synchronous, is_sync == "true");
    }
}

#[test]
fn transfers_over_an_axis_queue() {
    let two = |other: &str| {
        [start("s", 1, FSDP), start("t", 1, other), compute("a"), done("d", "s", 1), done("ROOT e", "t", 1)].concat()
    };
    let found = check(&module("", &two(FSDP)), [2.0, 1.0]);
    let exposed: Vec<f64> = found.transfers.iter().map(|it| (it.hidden.exposed_seconds / UNIT).round()).collect();
    assert_eq!(exposed, [0.0, 1.0]);
    // Both are under way for one unit each; the wait is for the second alone, also where both go on in it.
    let waited = |found: &ModuleOverlap| -> Vec<f64> {
        found.transfers.iter().map(|it| (it.hidden.waited_seconds / UNIT).round()).collect()
    };
    assert_eq!(waited(&found), [0.0, 1.0]);
    let long = [start("s", 1, FSDP), start("t", 2, DATA), done("d", "t", 2), done("ROOT e", "s", 1)].concat();
    let found = check(&module("", &long), [3.0, 3.0]);
    assert_eq!(waited(&found), [0.0, 2.0]);
    check(&module("", &two(DATA)), [2.0, 0.0]);
    // GPUs have one link for all axes, of 450 GB/s; memory has 3350 GB/s.
    let found = try_on("h100", &module("", &two(DATA))).expect("a time line");
    let (transfer, compute): (f64, f64) = (8000.0 / 450e9, 110_600.0 / 3350e9);
    let expected = 2.0 * transfer - compute.min(2.0 * transfer);
    assert!((found.total.exposed_seconds - expected).abs() < 1e-12, "{found:?}");
}

/// A shift along a ring of four takes half of its links, and another the other way round the other half. A transfer to
/// the opposite device takes all links, for each of two places.
#[test]
fn shifts_go_one_way() {
    let pairs = |to: usize| {
        let pairs: Vec<String> = (0..4).map(|from| format!("{{{from},{}}}", (from + to) % 4)).collect();
        format!("source_target_pairs={{{}}}", pairs.join(","))
    };
    let two = |ways: [usize; 2]| {
        let [first, second] = ways.map(pairs);
        let body = [start("s", 1, &first), start("t", 1, &second), done("d", "s", 1), done("ROOT e", "t", 1)].concat();
        let module = parse(&module("", &body)).expect("a module").hlo_module.expect("a module");
        let mesh = Mesh::parse("stage=4", 4).expect("a mesh");
        let options = CostOptions::devices(Devices::partitioned(4)).on(Chip::parse("v5p").expect("a chip"));
        let found = overlap(&module, Some(&mesh), &options).expect("a time line");
        [found.total.seconds, found.waiting_seconds].map(|seconds| (seconds / UNIT * 1e6).round() / 1e6)
    };
    assert_eq!(two([1, 1]), [4.0, 4.0]);
    assert_eq!(two([1, 3]), [4.0, 2.0]);
    assert_eq!(two([2, 2]), [4.0, 4.0]);
}

/// A loop of so many iterations.
fn with_loop(body: &str, times: usize, around: [&str; 2]) -> String {
    let state = "(s32[], f32[2000], f32[13825])";
    let inner = format!(
        "body {{\n  t = {state} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  \
         p = f32[2000] get-tuple-element(t), index=1\n  x = f32[13825] get-tuple-element(t), index=2\n{body}  \
         ROOT r = {state} tuple(i, p, x)\n}}\n\
         cond {{\n  t = {state} parameter(0)\n  ROOT c = pred[] constant(true)\n}}\n"
    );
    let [before, after] = around;
    let entry = format!(
        "  zero = s32[] parameter(3)\n{before}  init = {state} tuple(zero, p, x)\n  w = {state} while(init), \
         condition=cond, body=body, backend_config={{\"known_trip_count\":{{\"n\":\"{times}\"}}}}\n{after}"
    );
    module(&inner, &entry)
}

#[test]
fn loops_count_as_often_as_they_run() {
    let (before, after) = (start("s", 2, FSDP), done("ROOT d", "s", 2));
    // A loop between start and end.
    let found = check(&with_loop(&compute("a"), 1, [&before, &after]), [2.0, 1.0]);
    assert_eq!(found.transfers[0].largest_beside.as_ref().map(|it| it.op.as_str()), Some("while"));
    check(&with_loop(&compute("a"), 2, [&before, &after]), [2.0, 0.0]);
    // Both halves in the loop.
    let body = [start("s", 1, FSDP), compute("a"), done("d", "s", 1)].concat();
    check(&with_loop(&body, 5, ["", "  ROOT last = f32[13825] negate(x)\n"]), [5.0, 0.0]);
    let body = [start("s", 1, FSDP), done("d", "s", 1), compute("a")].concat();
    check(&with_loop(&body, 5, ["", "  ROOT last = f32[13825] negate(x)\n"]), [5.0, 5.0]);
    // The device waits in the loop for another axis during the first of the two units, and computes in the second.
    let body = [format!("  d = f32[2000] collective-permute(p), channel_id=2, {DATA}\n"), compute("a")].concat();
    let found = check(&with_loop(&body, 4, [&before, &after]), [6.0, 5.0]);
    assert!((found.waiting_seconds / UNIT - 4.0).abs() < 1e-6);
    // Over the same axis the first iteration waits for three units, two of them the other transfer's.
    let body = [format!("  d = f32[2000] collective-permute(p), channel_id=2, {FSDP}\n"), compute("a")].concat();
    let found = check(&with_loop(&body, 4, [&before, &after]), [6.0, 6.0]);
    assert!((found.waiting_seconds / UNIT - 6.0).abs() < 1e-6);
}

#[test]
fn of_branches_the_least_counts() {
    let branch = |name: &str, body: &str| {
        format!("{name} {{\n  x = f32[13825] parameter(0)\n{body}  ROOT r = f32[13825] copy-done(x)\n}}\n")
            .replace("copy-done", "bitcast")
    };
    let entry = [
        "  on = pred[] parameter(3)\n",
        &start("s", 2, FSDP),
        "  c = f32[13825] conditional(on, x, x), true_computation=much, false_computation=little\n",
        &done("ROOT d", "s", 2),
    ]
    .concat();
    let computations = branch("much", &[compute("a"), compute("b")].concat()) + &branch("little", &compute("a"));
    check(&module(&computations, &entry), [2.0, 1.0]);
}

#[test]
fn offloaded_transfers_begin_when_they_have_operands() {
    let offloaded = format!(
        "cc {{\n  a = f32[4000] parameter(0)\n  ROOT r = f32[4000] collective-permute(a), channel_id=1, {FSDP}\n}}, \
         execution_thread=\"sparsecore\"\n"
    );
    let config = "backend_config={\"sparse_core_config\":{\"offload\":\"OFFLOAD_COLLECTIVE\"}}";
    let begin = format!(
        "  s = ((), (), (s32[1])) custom-call-start(), async_execution_thread=\"sparsecore\", \
         custom_call_target=\"offload\", called_computations={{cc}}, {config}\n"
    );
    let update = "  u = ((f32[4000]), f32[4000], (s32[1])) custom-call-update(s, q)\n";
    let end = "  ROOT d = f32[4000] custom-call-done(u)\n";
    let text = |parts: &[&str]| module(&offloaded, &parts.concat());
    check(&text(&[&begin, &compute("a"), update, end]), [2.0, 2.0]);
    check(&text(&[&begin, update, &compute("a"), end]), [2.0, 1.0]);
    let found = check(&text(&[&begin, &compute("a"), update, &compute("b"), &compute("c"), end]), [2.0, 0.0]);
    // Work before the operands is not beside the transfer.
    assert!((found.transfers[0].beside_seconds / UNIT - 2.0).abs() < 1e-6);
    assert!(found.transfers[0].largest_beside.as_ref().is_some_and(|it| it.name != "a"));
}

#[test]
fn fusions_with_parts_of_a_collective_are_one() {
    let collective = format!("collective-permute(p), channel_id=7, {FSDP}, frontend_attributes={{chain_id=\"0\"}}");
    let part = |name: &str, target: &str| {
        format!(
            "{name} {{\n  p = f32[4000] parameter(0)\n  g = f32[4000] {collective}\n  \
             ROOT r = f32[4000] custom-call(g), custom_call_target=\"{target}\"\n}}\n"
        )
    };
    let meanwhile = format!(
        "meanwhile {{\n  p = f32[4000] parameter(0)\n  x = f32[13825] parameter(1)\n  g = f32[4000] {collective}\n  \
         n = f32[13825] negate(x)\n  ROOT r = (f32[13825], f32[4000]) tuple(n, g)\n}}\n"
    );
    let computations = [part("first", "AsyncCollectiveStart"), meanwhile, part("last", "AsyncCollectiveDone")].concat();
    let carry = "(s32[], f32[4000], f32[13825])";
    let in_loop = format!(
        "body {{\n  t = {carry} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  k = s32[] constant(1)\n  \
         j = s32[] add(i, k)\n  s = f32[4000] get-tuple-element(t), index=1\n  \
         y = f32[13825] get-tuple-element(t), index=2\n  \
         m = (f32[13825], f32[4000]) fusion(s, y), kind=kCustom, calls=meanwhile\n  \
         n = f32[4000] get-tuple-element(m), index=1\n  ROOT r = {carry} tuple(j, n, y)\n}}\n\
         condition {{\n  t = {carry} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  n = s32[] constant(1)\n  \
         ROOT l = pred[] compare(i, n), direction=LT\n}}\n"
    );
    let straight = "  m = (f32[13825], f32[4000]) fusion(s, y), kind=kCustom, calls=meanwhile\n".to_owned();
    let looped = format!(
        "  z = s32[] constant(0)\n  t = {carry} tuple(z, s, y)\n  m = {carry} while(t), condition=condition, body=body\n"
    );
    for between in [straight, looped] {
        let entry = format!(
            "  y = f32[13825] parameter(3)\n  s = f32[4000] fusion(q), kind=kCustom, calls=first\n{between}  \
             e = f32[4000] get-tuple-element(m), index=1\n  ROOT d = f32[4000] fusion(e), kind=kCustom, calls=last\n"
        );
        let text = module(&[&computations[..], &in_loop].concat(), &entry);
        let parsed = parse(&text).expect("a module").hlo_module.expect("a module");
        let counted = collectives(&parsed, Devices::partitioned(4)).entries;
        assert_eq!(counted.len(), 1, "{counted:?}");
        assert!(counted[0].asynchronous && counted[0].computation == "first", "{counted:?}");
        let found = try_on("v5p", &text).expect("a time line");
        // The collective is there once. The fusion in the middle, which reads and
        // writes 110600 bytes besides what is under way, hides a unit.
        assert_eq!(found.transfers.len(), 1, "{found:?}");
        assert!((found.total.seconds / UNIT - 2.0).abs() < 1e-6, "{found:?}");
        assert!((found.total.exposed_seconds / UNIT - 1.0).abs() < 0.01, "{found:?}");
    }
}

/// The link of an h100 to its host has 64 GB/s, so 64000 bytes take 1 us; that of a v5p is not published.
#[test]
fn copies_to_and_from_the_host_queue() {
    let copy = |name: &str, of: &str, spaces: [&str; 2]| {
        let [to, from] = spaces.map(|space| format!("f32[16000]{{0{space}}}"));
        format!("  {name} = ({to}, {from}, u32[]) copy-start({of})\n  {name}-done = {to} copy-done({name})\n")
    };
    let twice = "  s = (f32[16000]{0:S(5)}, f32[16000]{0}, u32[]) copy-start(h)\n";
    let body = [
        "  h = f32[16000] parameter(3)\n",
        twice,
        &copy("t", "h", [":S(5)", ""]),
        "  s-done = f32[16000]{0:S(5)} copy-done(s)\n",
        &copy("b", "s-done", ["", ":S(5)"]),
        "  ROOT r = f32[16000] negate(b-done)\n",
    ];
    let text = module("", &body.concat());
    let found = try_on("h100", &text).expect("a time line");
    let of = |name: &str| {
        let copy = found.host_copies.iter().find(|it| it.name == name).expect("a copy");
        (copy.direction, copy.bytes, (copy.hidden.seconds * 1e9).round(), (copy.hidden.waited_seconds * 1e9).round())
    };
    assert_eq!(of("s"), ("to the host", 64_000, 1000.0, 0.0));
    assert_eq!(of("t"), ("to the host", 64_000, 1000.0, 2000.0));
    assert_eq!(of("b"), ("from the host", 64_000, 1000.0, 1000.0));
    assert!((found.waiting_seconds - 3e-6).abs() < 1e-12 && found.transfers.is_empty(), "{found:?}");
    let found = try_on("v5p", &text).expect("a time line");
    assert_eq!((found.host_copies.len(), found.waiting_seconds), (3, 0.0));
}

#[test]
fn what_has_no_time_line() {
    let text = module("", &[start("s", 1, FSDP), done("ROOT d", "s", 1)].concat());
    let unscheduled = text.replace(", is_scheduled=true", "");
    assert_eq!(try_on("v5p", &unscheduled), Err(OverlapError::NotScheduled));
    assert_eq!(try_on("cpu", &text), Err(OverlapError::NoRates { chip: "cpu".to_owned() }));
}
