//! The cost of any module: by hand on small ones; against XLA's own analysis where that is right, which is outside of
//! loops.

use crate::hlo::programs::{golden, text};
use meshloom::analysis::cost::{Bound, InstructionCost};
use meshloom::analysis::{Arithmetic, Chip, CostOptions, Devices, ModuleCost, Work, cost};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::partition::Amount;
use meshloom::pjrt::CompileOptions;
use meshloom_train::config::RunConfig;
use support::cases::every_case;
use support::configs::explicit_step;
use support::plugins::cpu_clients;

fn of(module: &HloModuleProto) -> ModuleCost {
    cost(module, &CostOptions::devices(Devices::partitioned(8)))
}

fn on(module: &HloModuleProto, chip: &str) -> ModuleCost {
    let options = CostOptions::devices(Devices::partitioned(8)).on(Chip::parse(chip).expect("a chip"));
    cost(module, &options)
}

/// Flops, transcendentals, bytes read and bytes written of the only instruction that does something, or of the last.
fn check(source: &str, expected: [u64; 4]) -> InstructionCost {
    let found = of(&text(source));
    let entry = found.instructions.last().unwrap_or_else(|| panic!("nothing is done in {source}")).clone();
    let Work { flops, transcendentals, bytes_read, bytes_written, .. } = entry.work;
    assert_eq!([flops, transcendentals, bytes_read, bytes_written], expected, "{source}");
    entry
}

/// An entry of two parameters and one instruction.
fn single(instruction: &str, expected: [u64; 4]) -> InstructionCost {
    check(
        &format!("ENTRY main {{ x = f32[8,16] parameter(0)  y = f32[16,4] parameter(1)  ROOT r = {instruction} }}"),
        expected,
    )
}

const SUM: &str = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }";

#[test]
fn single_instructions() {
    // x has 128 elements, 512 bytes; y has 64, 256.
    single("f32[8,16] add(x, x)", [128, 0, 1024, 512]);
    single("f32[8,16] exponential(x)", [0, 128, 512, 512]);
    single("bf16[8,16] convert(x)", [128, 0, 512, 256]);
    // 2 * 8 * 4 * 16.
    let dot = "f32[8,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let found = single(dot, [1024, 0, 768, 128]);
    assert_eq!((found.op.as_str(), found.work.arithmetic()), ("dot", Some(Arithmetic::F32)));
    assert_eq!(found.work.intensity(), Some(1024.0 / 896.0));
    single("f32[2,16] slice(x), slice={[0:2], [0:16]}", [0, 0, 128, 128]);
    single("f32[16,8] transpose(x), dimensions={1,0}", [0, 0, 512, 512]);
    // Nothing is done.
    for nothing in ["f32[128] bitcast(x)", "(f32[8,16]) tuple(x)"] {
        let source = format!("ENTRY main {{ x = f32[8,16] parameter(0)  ROOT r = {nothing} }}");
        assert_eq!(of(&text(&source)).instructions, []);
    }
}

#[test]
fn instructions_with_computations() {
    let reduce = |reduce: &str| {
        format!(
            "{SUM} ENTRY main {{ x = f32[8,16] parameter(0)  z = f32[] constant(0)  ROOT r = {reduce}, to_apply=sum }}"
        )
    };
    // 120 additions leave 8 of 128 elements.
    check(&reduce("f32[8] reduce(x, z), dimensions={1}"), [120, 0, 516, 32]);
    check(&reduce("f32[4,16] reduce-window(x, z), window={size=2x1 stride=2x1}"), [64, 0, 516, 256]);
    let all = "f32[8,16] all-reduce(x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true";
    let found = check(&reduce(all), [128, 0, 512, 512]);
    // Along a ring of four: 2 * 3/4 * 512.
    assert_eq!(found.work.link_bytes, 768);
    // Sorted by merging: 128 * 7, whatever compares.
    let less = "less { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=LT }";
    let sort = "x = f32[128] parameter(0)  ROOT r = f32[128] sort(x), dimensions={0}, to_apply=less";
    check(&format!("{less} ENTRY main {{ {sort} }}"), [896, 0, 512, 512]);
}

#[test]
fn updates_and_gathers_move_what_they_touch() {
    let source = "ENTRY main {
        table = f32[1024,16] parameter(0)
        rows = f32[2,16] parameter(1)
        i = s32[] parameter(2)
        zero = s32[] constant(0)
        ROOT r = f32[1024,16] dynamic-update-slice(table, rows, i, zero)
    }";
    // The rows and two numbers in, the rows out.
    check(source, [0, 0, 136, 128]);
    let source = "ENTRY main {
        table = f32[1024,16] parameter(0)
        i = s32[5,1] parameter(1)
        ROOT r = f32[5,16] gather(table, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
            index_vector_dim=1, slice_sizes={1,16}
    }";
    check(source, [0, 0, 320 + 20, 320]);
}

/// A fusion computes what is in it, and reads and writes what goes in and out.
#[test]
fn fusions() {
    let source = "
        fused {
            table = f32[1024,16] parameter(0)
            i = s32[] parameter(1)
            x = f32[1,16] parameter(2)
            zero = s32[] constant(0)
            row = f32[1,16] dynamic-slice(table, i, zero), dynamic_slice_sizes={1,16}
            e = f32[1,16] exponential(row)
            ROOT r = f32[1,16] multiply(e, x)
        }
        ENTRY main {
            table = f32[1024,16] parameter(0)
            i = s32[] parameter(1)
            x = f32[1,16] parameter(2)
            ROOT r = f32[1,16] fusion(table, i, x), kind=kLoop, calls=fused
        }";
    // One row of the table is read: 64 + 4 + 64.
    check(source, [16, 16, 132, 64]);
    let source = "
        fused {
            table = f32[1024,16] parameter(0)
            i = s32[] parameter(1)
            x = f32[1,16] parameter(2)
            zero = s32[] constant(0)
            twice = f32[1,16] add(x, x)
            ROOT r = f32[1024,16] dynamic-update-slice(table, twice, i, zero)
        }
        ENTRY main {
            table = f32[1024,16] parameter(0)
            i = s32[] parameter(1)
            x = f32[1,16] parameter(2)
            ROOT r = f32[1024,16] fusion(table, i, x), kind=kLoop, calls=fused
        }";
    check(source, [16, 0, 68, 64]);
}

#[test]
fn convolutions() {
    let source = |window: &str, output: &str| {
        format!(
            "ENTRY main {{
                x = f32[2,8,8,3] parameter(0)
                k = f32[3,3,3,5] parameter(1)
                ROOT r = {output} convolution(x, k), window={{{window}}}, dim_labels=b01f_01io->b01f
            }}"
        )
    };
    // Each of 2 * 6 * 6 * 5 results sums 3 * 3 * 3 products.
    let valid = 2 * (2 * 6 * 6 * 5) * 27;
    check(&source("size=3x3", "f32[2,6,6,5]"), [valid, 0, 1536 + 540, 1440]);
    // Padded by one: at the borders, one of three rows is not there. 22 of 24 pairs in each direction.
    let same = 2 * 2 * 5 * 3 * 22 * 22;
    check(&source("size=3x3 pad=1_1x1_1", "f32[2,8,8,5]"), [same, 0, 1536 + 540, 2560]);
}

#[test]
fn custom_calls_are_counted_or_named() {
    let call = |target: &str, config: &str| {
        let config = if config.is_empty() { String::new() } else { format!(", backend_config={config}") };
        let source = format!(
            "ENTRY main {{
                x = f32[8,16] parameter(0)
                y = f32[16,4] parameter(1)
                ROOT r = f32[8,4] custom-call(x, y), custom_call_target=\"{target}\"{config}
            }}"
        );
        of(&text(&source))
    };
    let blas = r#"{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}"#;
    for (target, config) in [("__cublas$gemm", blas), ("__onednn$matmul", "")] {
        let found = call(target, config);
        assert_eq!((found.total.flops, found.total.bytes()), (1024, 896), "{target}");
        assert_eq!(found.assumptions.unknown_calls, []);
    }
    // A kernel that says what it takes, as compilers of kernels for TPUs write it: numbers, or numbers as text.
    for (flops, bytes) in [("4096", "700"), ("\"4096\"", "\"700\"")] {
        let estimate = format!(r#"{{"flops":{flops},"transcendentals":32,"bytes_accessed":{bytes}}}"#);
        let config = format!(r#"{{"custom_call_config":{{"body":"","cost_estimate":{estimate}}}}}"#);
        let found = call("tpu_custom_call", &config);
        assert_eq!((found.total.flops, found.total.transcendentals, found.total.bytes()), (4096, 32, 700));
        assert_eq!((found.total.bytes_written, found.assumptions.unknown_calls), (128, Vec::new()));
    }
    let attributes =
        ", frontend_attributes={kernel_operations=\"77\",kernel_transcendentals=\"5\",kernel_bytes=\"64\"}";
    let found = of(&text(&format!(
        "ENTRY main {{ x = f32[8] parameter(0)  ROOT r = f32[8] custom-call(x), custom_call_target=\"mine\"{attributes} }}"
    )));
    assert_eq!((found.total.flops, found.total.transcendentals, found.total.bytes()), (77, 5, 64));
    assert!(!found.total.unknown);
    let found = call("TopK", "");
    assert!(found.total.unknown && found.instructions[0].work.unknown);
    let unknown = &found.assumptions.unknown_calls[0];
    assert_eq!((unknown.target.as_str(), unknown.instructions, unknown.bytes), ("TopK", 1, 896));
    assert_eq!(call("Sharding", "").instructions, []);
}

/// A body counts as often as it runs, its condition once more; of branches the largest.
#[test]
fn loops_and_branches() {
    let source = "
        condition {
            p = (s32[], f32[8,8]) parameter(0)
            i = s32[] get-tuple-element(p), index=0
            n = s32[] constant(7)
            ROOT less = pred[] compare(i, n), direction=LT
        }
        body {
            p = (s32[], f32[8,8]) parameter(0)
            i = s32[] get-tuple-element(p), index=0
            x = f32[8,8] get-tuple-element(p), index=1
            one = s32[] constant(1)
            next = s32[] add(i, one)
            y = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"step/layer/dot\"}
            ROOT r = (s32[], f32[8,8]) tuple(next, y)
        }
        small { p = f32[8,8] parameter(0)  ROOT e = f32[8,8] exponential(p) }
        large { p = f32[8,8] parameter(0)  ROOT r = f32[8,8] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0} }
        ENTRY main {
            x = f32[8,8] parameter(0)
            which = s32[] parameter(1)
            zero = s32[] constant(0)
            t = (s32[], f32[8,8]) tuple(zero, x)
            l = (s32[], f32[8,8]) while(t), condition=condition, body=body
            y = f32[8,8] get-tuple-element(l), index=1
            ROOT r = f32[8,8] conditional(which, y, y), branch_computations={small, large}
        }";
    let found = of(&text(source));
    let product = 2 * 8 * 8 * 8;
    // Seven products and additions of the counter, eight comparisons; one more product.
    assert_eq!((found.total.flops, found.total.transcendentals), (7 * (product + 1) + 8 + product, 64));
    let [only] = &found.loops[..] else { panic!("{:?}", found.loops) };
    assert_eq!((only.name.as_str(), only.trip_count, only.executions), ("l", Some(7), Amount::Exactly(7)));
    assert_eq!((only.total.flops, only.depth), (7 * (product + 1) + 8, 1));
    let branch = found.instructions.iter().find(|entry| entry.computation == "large").expect("a branch");
    assert_eq!(branch.executions, Amount::AtMost(1));
    assert!(found.assumptions.branches && found.assumptions.loops_counted_once.is_empty());
    let scope = found.scopes.iter().find(|scope| scope.scope == "step/layer").expect("a scope");
    assert_eq!(scope.total.flops, 7 * product);

    let unknown = source.replace("tuple(zero, x)", "tuple(which, x)");
    let found = of(&text(&unknown));
    assert_eq!(found.assumptions.loops_counted_once, ["l"]);
    assert_eq!(found.total.flops, (product + 1) + 1 + product);
}

/// A module with libtpu's estimates of its kernels: a copy of 258 cycles, and a fusion of 100 that runs three times.
const COMPILED: &str = r#"
f { a = f32[8] parameter(0)  ROOT b = f32[8] add(a, a), backend_config={"window_config":{"estimated_cycles":"7"}} }
body {
  s = (s32[], f32[8]) parameter(0)  i = s32[] get-tuple-element(s), index=0  one = s32[] constant(1)
  j = s32[] add(i, one), backend_config={"window_config":{"estimated_cycles":"9223372036854775807"}}
  x = f32[8] get-tuple-element(s), index=1
  y = f32[8] fusion(x), kind=kLoop, calls=f, backend_config={"flag_configs":[],"window_config":{"estimated_cycles":"100"}}
  ROOT t = (s32[], f32[8]) tuple(j, y)
}
cond { s = (s32[], f32[8]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(3)  ROOT c = pred[] compare(i, n), direction=LT }
ENTRY main {
  p = f32[8] parameter(0)  zero = s32[] constant(0)
  q = f32[8] copy(p), backend_config={"window_config":{"estimated_cycles":"258"}}
  s = (s32[], f32[8]) tuple(zero, q)
  w = (s32[], f32[8]) while(s), condition=cond, body=body
  ROOT r = f32[8] get-tuple-element(w), index=1
}
"#;

/// The compiler's own estimates: those of kernels, as often as they run, not those of what is fused into them.
#[test]
fn cycles_as_the_compiler_estimates_them() {
    let found = of(&text(COMPILED));
    assert_eq!((found.total.cycles, found.loops[0].total.cycles), (3 * 100 + 258, 3 * 100));
    let program = std::fs::read_to_string(support::path("tests/foreign/fsdp_mlp.tpu.txt")).expect("a program");
    let stated = program.split("\"estimated_cycles\":\"").skip(1).map(|rest| rest.split('"').next().expect("a number"));
    let stated: Vec<u64> = stated.map(|number| number.parse().expect("cycles")).collect();
    assert_eq!(stated.len(), 9);
    assert_eq!(of(&text(&program)).total.cycles, stated.iter().sum::<u64>());
}

/// The time of each op is the longest of its three; a step's lies between all of it overlapped and none.
#[test]
fn rooflines() {
    let source = "ENTRY main {
        x = bf16[4096,4096] parameter(0)
        y = bf16[4096,4096] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        z = bf16[4096,4096] exponential(y)
        ROOT w = bf16[16384,4096] all-gather(z), channel_id=1, dimensions={0}, use_global_device_ids=true,
            replica_groups={{0,1,2,3},{4,5,6,7}}
    }";
    let module = text(source);
    assert_eq!(of(&module).roofline, None);
    assert_eq!(on(&module, "cpu").roofline, None);
    let found = on(&module, "v5p");
    let bytes = 4096.0 * 4096.0 * 2.0;
    let (compute, memory, link) = (2.0 * 4096f64.powi(3) / 459e12, bytes / 2765e9, 3.0 * bytes / 200e9);
    let bounds: Vec<_> = found.instructions.iter().map(|entry| entry.bound).collect();
    assert_eq!(bounds, [Some(Bound::Compute), Some(Bound::Memory), Some(Bound::Link)]);
    let roofline = found.roofline.expect("an estimate");
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
    close(roofline.seconds.compute, compute);
    close(roofline.seconds.link, link);
    close(roofline.serial_seconds, compute + 2.0 * memory + link);
    close(roofline.overlapped_seconds, link);
    assert_eq!((roofline.chip, roofline.bound), ("v5p", Bound::Link));
    // Over the network, if two slices of four are not joined: the groups are within one.
    let options = CostOptions::devices(Devices::partitioned(8)).on(Chip::parse("v5p").unwrap());
    let link =
        |slice| cost(&module, &CostOptions { slice_devices: Some(slice), ..options }).roofline.unwrap().seconds.link;
    close(link(4), link(8));
    close(link(2), 3.0 * bytes / (50e9 / 8.0));
}

#[test]
fn broken_modules_cost_something() {
    assert_eq!(of(&HloModuleProto::default()).total, Work::default());
    let mut module = text("ENTRY main { x = f32[8] parameter(0)  ROOT r = f32[8] add(x, x) }");
    module.computations[0].instructions[1].operand_ids = vec![5, -1];
    assert_eq!(of(&module).total.bytes_read, 0);
    let shape = module.computations[0].instructions[1].shape.as_mut().unwrap();
    shape.dimensions = vec![i64::MAX, i64::MAX, i64::MAX];
    assert_eq!(of(&module).total.flops, u64::MAX);
}

// Against XLA.

/// XLA counts bodies once, and 8 bytes for each element of a tuple, which is a pointer.
fn as_xla_counts(module: &HloModuleProto) -> (u64, u64, u64) {
    let found = of(module);
    let sum = |of: fn(&Work) -> u64| found.instructions.iter().map(|entry| of(&entry.work)).sum::<u64>();
    let pointers = |module: &HloModuleProto| {
        let computations = module.computations.iter().filter(|computation| !computation.is_fusion_computation);
        let tuples = computations.flat_map(|computation| &computation.instructions);
        tuples.filter(|found| found.opcode == "tuple").map(|tuple| 8 * tuple.operand_ids.len() as u64).sum::<u64>()
    };
    (sum(|work| work.flops), sum(|work| work.transcendentals), sum(Work::bytes) + pointers(module))
}

/// XLA adds up in f32.
fn same(found: u64, xla: f64, what: &str) {
    let error = (found as f64 / xla - 1.0).abs();
    assert!(error < 1e-6, "{what}: {found}, XLA {xla}");
}

#[test]
fn jax_says_the_same() {
    for golden in golden().iter().filter(|golden| golden.expected.contains_key("flops")) {
        let (flops, transcendentals, bytes) = as_xla_counts(golden.module());
        same(flops, golden.number("flops"), &golden.name);
        same(transcendentals, golden.number("transcendentals"), &golden.name);
        // Operands and results of loops are pointers, too.
        let error = (bytes as f64 / golden.number("bytes") - 1.0).abs();
        assert!(error < 2e-5, "{}: {bytes}, XLA {}", golden.name, golden.number("bytes"));
    }
    // Its loops run six times.
    let golden = golden();
    let scanned = golden.iter().find(|golden| golden.name == "scan_remat").expect("the scan");
    let found = of(scanned.module());
    assert!(found.loops.iter().all(|found| found.trip_count == Some(6)), "{:?}", found.loops);
    // Forward 2 products of 2 * 64 * 128 * 512; backward those again and 4 more. XLA needs not one: the last is not
    // recomputed.
    let product = 2 * 64 * 128 * 512;
    let products: u64 =
        found.instructions.iter().filter(|entry| entry.work.flops >= product).map(|entry| entry.total.flops).sum();
    assert_eq!(products / product, 6 * (2 + 5));
}

/// The plugin's own analysis of a decoder without loops. Only the oldest has one.
#[test]
fn the_plugin_says_the_same() {
    let layers = if every_case("hlo cost of a decoder") { "model.layers=3" } else { "model.layers=1" };
    let lowered = explicit_step(&["mesh.axes=\"data=1\"", "target.devices=1", "model.scan_layers=false", layers]);
    let options = CompileOptions { debug_options: support::unoptimized(), ..CompileOptions::partitioned(1) };
    let mut compared = 0;
    let clients = cpu_clients().iter();
    for (name, client) in clients.filter(|(_, it)| it.plugin().api_version() < (0, 106) || every_case("hlo plugins")) {
        let executable = client.compile(&lowered.module.bytes, &options).expect("it compiles");
        let Ok(xla) = executable.cost_analysis() else { continue };
        let module = executable.optimized_hlo().expect("a program").decode().expect("a module");
        let (flops, transcendentals, bytes) = as_xla_counts(&module);
        println!("{name}: flops {flops}, transcendentals {transcendentals}, bytes {bytes}, XLA {:?}", xla.properties);
        same(flops, xla.flops().expect("flops"), name);
        same(transcendentals, xla.properties["transcendentals"], name);
        same(bytes, xla.bytes_accessed().expect("bytes"), name);
        compared += 1;
    }
    assert!(compared > 0, "no plugin has an analysis");
}

/// The products of a decoder's train step, counted by hand: 6 N D for N weights in products and D tokens, and
/// attention.
#[test]
fn a_train_step_costs_six_n_d() {
    let (layers, embed, heads, kv_heads, head_dim, mlp, sequence, batch, vocab) = (3, 64, 4, 2, 16, 160, 64, 16, 256);
    for scanned in ["true", "false"] {
        let overrides = ["mesh.axes=\"data=1\"", "target.devices=1", &format!("model.scan_layers={scanned}")];
        let module = explicit_step(&overrides).module.decode().expect("a module");
        let found = of(&module);
        let dots = found.instructions.iter().filter(|entry| entry.op == "dot");
        let flops: u64 = dots.map(|entry| entry.total.flops).sum();
        let tokens = batch * sequence;
        let projections = embed * head_dim * (2 * heads + 2 * kv_heads);
        let weights = layers * (projections + 3 * embed * mlp) + embed * vocab;
        // Each head has two products in the forward pass, the scores and the weighted values, and five in the backward
        // pass: the scores again, and four cotangents.
        let attention = layers * heads * batch * (2 * sequence * sequence * head_dim) * 7;
        assert_eq!(flops, 6 * weights * tokens + attention, "scanned {scanned}");
    }
    let config = RunConfig::from_overrides(&[]).expect("the defaults");
    assert_eq!((config.model.vocab, config.train.batch), (vocab as usize, batch as usize));
}
