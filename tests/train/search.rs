//! The search for plans: what it lists, bounds and finds, and the hardware that it is made for.

#[path = "../../benches/shared/rank.rs"]
mod rank;

use std::collections::BTreeMap;

use insta::assert_snapshot;
use meshloom::analysis::StepTime;
use meshloom::analysis::estimate::{Cache, FROM_HOST, TO_HOST};
use meshloom::pjrt::{DeviceDescription, NamedValue};
use meshloom_plan::{
    Bounds, Hardware, LoweredPlan, Plan, SearchOptions, Variant, bounded, evaluate, hardware, hardware_from_toml,
    hardware_of_devices, hardware_to_toml, on_hardware, read_hardware, search,
};
use meshloom_train::config::RunConfig;
use rank::rank_correlation;
use support::cases::cases;

fn time(found: &LoweredPlan) -> &StepTime {
    found.time.as_ref().expect("a time on hardware")
}

/// The step of a config on hardware.
fn estimate_step(config: &RunConfig, hardware: &Hardware) -> LoweredPlan {
    evaluate(config, &Variant::Configured, Some(hardware), u64::MAX).expect("an estimate")
}

/// The step of a plan.
fn estimate_plan(base: &RunConfig, plan: &Plan, hardware: &Hardware) -> LoweredPlan {
    evaluate(base, &plan.clone().into(), Some(hardware), u64::MAX).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
}

fn config(set: &[&str]) -> RunConfig {
    let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
    RunConfig::from_toml_with("", "nothing", &set).expect("a config")
}

/// Large enough that more than the start of collectives counts.
const LARGER: &[&str] = &[
    "model.layers=4",
    "model.embed=2048",
    "model.heads=16",
    "model.kv_heads=8",
    "model.head_dim=128",
    "model.mlp=8192",
    "model.vocab=32000",
    "model.seq=2048",
    "model.compute_dtype=bf16",
    "train.batch=64",
];

const PIPELINE: &str = "[pipeline]\nschedule = \"1f1b\"\nmicrobatches = 8\nrepeats = 1\nweights = \"gather-once\"\n";

/// The search ends when no plan that is left can be faster: that is so only if no plan is faster than its bound. A
/// share of all plans is lowered here, also of those that it passes over, and none is faster than the best. There are
/// at least so many plans.
fn no_plan_is_better_than_the_one_that_is_found(model: &[&str], least: usize, hardware: &Hardware) {
    let base = on_hardware(&config(model), hardware);
    let options = |most| SearchOptions { hardware: hardware.clone(), most, threads: 2 };
    let found = search(&base, &options(usize::MAX), &|_| {}).expect("plans");
    let best = found.best().expect("one that fits");
    assert!(!found.ended_early);
    assert_eq!(found.lowered + found.too_slow + found.too_large + found.refused.len(), found.considered);
    assert_eq!(found.refused, []);
    // A share of all plans, whatever the search thought of them.
    let memory = hardware.chip.device_memory().expect("a chip with memory");
    let all = bounded(&base, hardware).expect("plans");
    assert!(all.len() >= least, "{} plans", all.len());
    // One of forty; in the full tier one of ten.
    let share = cases("train plans", all.len().div_ceil(40), all.iter().step_by(10));
    println!("{} of {} plans, {} of them searched", share.len(), all.len(), found.lowered);
    for (plan, Bounds { seconds, bytes }) in share {
        let each = estimate_plan(&base, plan, hardware);
        assert!(each.seconds() >= seconds * 0.999, "{} < {seconds}: {plan:?}", each.seconds());
        assert!(each.bytes as f64 >= *bytes, "{} < {bytes}: {plan:?}", each.bytes);
        assert!(each.bytes > memory || each.seconds() >= best.seconds(), "{plan:?} is faster than {best:?}");
    }
}

/// Small batches and few devices leave few plans, which come first. The small tier takes a switch and a torus, the full
/// tier everything.
fn check_search(few: usize, model: &[&str], all: &[(&str, &[&str], usize)]) {
    for &(target, batch, least) in cases("train searched batches", few, all) {
        let hardware = hardware(target).expect("hardware");
        no_plan_is_better_than_the_one_that_is_found(&[model, batch].concat(), least, &hardware);
    }
}

const FEW_ROWS: &[&str] = &["train.batch=8"];
const MANY_ROWS: &[&str] = &["train.batch=64"];

#[test]
fn no_plan_is_better_on_gpus() {
    check_search(1, LARGER, &[("h100:1x1x8", FEW_ROWS, 40), ("h100:1x1x8", MANY_ROWS, 200)]);
}

#[test]
fn no_plan_is_better_on_tpus() {
    check_search(0, LARGER, &[("v5e:2x4", FEW_ROWS, 40), ("v5e:2x4", MANY_ROWS, 200)]);
}

#[test]
fn no_plan_is_better_with_experts() {
    let model = [LARGER, &["model.family=mixtral", "model.family.moe_mlp=2048"]].concat();
    let four: &[&str] = &["train.batch=8", "mesh.axes=fsdp=4", "target.devices=4"];
    let all = [("v5p:2x2x1", four, 40), ("v5p:2x2x2", FEW_ROWS, 40), ("v5p:2x2x2", MANY_ROWS, 200)];
    check_search(1, &model, &all);
}

/// Hardly any plan can be passed over there, so the small tier has none.
#[test]
fn no_plan_is_better_where_small_pieces_are_fast() {
    let in_f32 = [LARGER, &["model.compute_dtype=f32"]].concat();
    let two: &[&str] = &["train.batch=4", "mesh.axes=fsdp=2", "target.devices=2"];
    for (size, settings, least) in cases("train searched caches", 0, [("size = 2", two, 20), ("size = 4", &[], 200)]) {
        let hardware = hardware_from_toml(&CACHED_CPUS.replace("size = 4", size), "cached.toml").expect("hardware");
        no_plan_is_better_than_the_one_that_is_found(&[&in_f32, settings].concat(), least, &hardware);
    }
}

/// Four devices on which small pieces are faster than large ones.
const CACHED_CPUS: &str = r#"
f32_flops = 2e12
memory_bytes = 64_000_000_000
memory_bandwidth = 5e9

[reached]
fresh = 2e-9
cache = { bytes = 33_554_432, bandwidth = 5e10 }

[[dimension]]
size = 4
wire = "switch"
rate = 1e10
latency = 1e-6
"#;

/// A torus whose second dimension has faster links. The axis that is placed first begins in the slow one: two of it, if
/// it is `tensor`, or all of it, if it is `fsdp` of eight.
const TORUS: &str = r#"
chip = "v5e"

[[dimension]]
size = 4
wire = "torus"
wraps = true
rate = 2e10
latency = 1e-6

[[dimension]]
size = 4
wire = "torus"
wraps = true
rate = 1e11
latency = 1e-6
"#;

/// The best plan has its axes where they are best in the hardware: no other order of them is faster.
#[test]
fn axes_lie_where_they_are_best() {
    let hardware = hardware_from_toml(TORUS, "torus.toml").expect("hardware");
    let base = on_hardware(&config(&[LARGER, &["train.batch=8"]].concat()), &hardware);
    let found = search(&base, &SearchOptions::new(hardware.clone()), &|_| {}).expect("plans");
    let best = found.best().expect("one that fits");
    assert_eq!(best.plan.settings()[0], "mesh.axes=tensor=2,fsdp=8");
    assert_eq!(found.lowered + found.too_slow + found.too_large + found.refused.len(), found.considered);
    let seconds = |mesh: &str| {
        let mut config = best.plan.apply(&base);
        config.mesh.axes = mesh.to_owned();
        let found = estimate_step(&config, &hardware);
        assert_eq!(found.bytes, best.bytes, "{mesh}");
        found.seconds()
    };
    assert_eq!(seconds("tensor=2,fsdp=8"), best.seconds());
    let by_default = seconds("fsdp=8,tensor=2");
    assert!(by_default > 1.01 * best.seconds(), "{by_default} {}", best.seconds());

    // A config that has another order is estimated as it stands, and may keep it.
    let mut ordered = best.plan.apply(&base);
    let configured = |config: &RunConfig| {
        let options = SearchOptions { most: 1, threads: 1, ..SearchOptions::new(hardware.clone()) };
        search(config, &options, &|_| {}).expect("plans").found[0].seconds()
    };
    assert_eq!(configured(&ordered), best.seconds());
    ordered.mesh.axes = "fsdp=8,tensor=2".to_owned();
    assert_eq!(configured(&ordered), by_default);
}

/// However few plans are lowered: the one that the config has is the first.
#[test]
fn what_is_found_is_no_worse_than_the_config() {
    let hardware = hardware("h100:1x1x8").expect("hardware");
    let options = SearchOptions { hardware: hardware.clone(), most: 1, threads: 1 };
    let stages: &[&str] = &["mesh.axes=stage=4,tensor=2", "train.microbatches=1"];
    for (mesh, pipeline) in
        [(["mesh.axes=data=1,fsdp=4,tensor=2", "train.microbatches=2"].as_slice(), ""), (stages, PIPELINE)]
    {
        let set: Vec<String> = LARGER.iter().chain(mesh).map(|&text| text.to_owned()).collect();
        let base = RunConfig::from_toml_with(pipeline, "a config", &set).expect("a config");
        let found = search(&base, &options, &|_| {}).expect("plans");
        assert!(found.ended_early && found.lowered + found.refused.len() == 1, "{found:?}");
        let configured = estimate_step(&base, &hardware);
        assert_eq!((&configured.time, configured.bytes), (&found.found[0].time, found.found[0].bytes), "{mesh:?}");
    }
}

/// The settings that are shown give the plan that was estimated.
#[test]
fn settings_are_the_plan() {
    let hardware = hardware("h100:1x1x8").expect("hardware");
    let options = SearchOptions { hardware: hardware.clone(), most: 40, threads: 2 };
    let base = config(LARGER);
    let found = search(&base, &options, &|_| {}).expect("plans");
    assert!(found.ended_early && found.lowered >= 40);
    for each in found.found.iter().step_by(7) {
        let settings = each.plan.settings();
        let pipeline = if each.plan.plan().is_some_and(|plan| plan.pipeline.is_some()) { "[pipeline]\n" } else { "" };
        let set: Vec<String> = LARGER.iter().map(|&text| text.to_owned()).chain(settings.clone()).collect();
        let config = RunConfig::from_toml_with(pipeline, "settings", &set).expect("a config");
        let by_set = estimate_step(&config, &hardware);
        assert_eq!((&by_set.time, by_set.bytes), (&each.time, each.bytes), "{settings:?}");
    }
}

#[test]
fn what_cannot_be_searched_says_why() {
    let refusal = |base: &RunConfig, target: &str| {
        let hardware = match hardware(target) {
            Ok(hardware) => hardware,
            Err(error) => return error.to_string(),
        };
        let options = SearchOptions { hardware, most: 1, threads: 1 };
        search(base, &options, &|_| {}).expect_err("no plan").to_string()
    };
    assert!(refusal(&config(&[]), "h100:8").contains("the shape has 1 numbers, expected 3"));
    assert!(refusal(&config(&[]), "cpu:8").contains("of cpu is not published"));
    let three = config(&["train.batch=3", "mesh.axes=fsdp=1", "target.devices=1"]);
    assert!(refusal(&three, "h100:1x1x8").contains("no plan is possible: 8 devices, 3 rows"));
}

/// The published hardware of `h100:1x1x8`.
const EIGHT_H100: &str = r#"
chip = "h100"

[[dimension]]
size = 8
wire = "switch"
rate = 450e9
latency = 1e-6
"#;

#[test]
fn a_file_describes_what_a_topology_names() {
    let [named, described] = [hardware("h100:1x1x8").ok(), hardware_from_toml(EIGHT_H100, "eight.toml").ok()];
    assert!(named.is_some() && named == described, "{named:?} {described:?}");
    let described = described.expect("hardware");
    let base = config(LARGER);
    let on_topology = config(&[LARGER, &["target.topology=h100:1x1x8"]].concat());
    let [named, described] = [on_topology, on_hardware(&base, &described)].map(|config| {
        let options = SearchOptions { most: 6, threads: 1, ..SearchOptions::new(described.clone()) };
        search(&config, &options, &|_| {}).expect("plans")
    });
    assert_eq!((named.considered, &named.found), (described.considered, &described.found));
}

#[test]
fn hardware_is_written_as_it_is_read() {
    let topologies = ["h100:1x8x8", "v5p:4x4x8", "v5e:16x16:slices=2", "tpu7x:2x2x1:slices=2"];
    let mut all = topologies.map(|topology| hardware(topology).expect("hardware")).to_vec();
    let own = hardware_from_toml(SMALL_CPUS, "small.toml").expect("hardware");
    let mut uneven = own.clone();
    uneven.launch = 1.0 / 3.0;
    uneven.dimensions[0].rate = 1e9 / 7.0;
    uneven.reached.cache = Some(Cache { bytes: 1e6, bandwidth: 1e10 });
    all.extend([own.clone(), uneven]);
    for hardware in all {
        let text = hardware_to_toml(&hardware).expect("TOML");
        assert_eq!(hardware_from_toml(&text, "written.toml").as_ref().ok(), Some(&hardware), "{text}");
    }
    assert_snapshot!(hardware_to_toml(&own).expect("TOML"), @r#"
    chip = "cpu"
    backend = "cpu"
    f32_flops = 20000000000.0
    memory_bytes = 4294967296
    memory_bandwidth = 5000000000.0
    launch = 0.000002
    overlaps = false

    [reached]
    products = 0.5
    memory = 1.0
    links = 1.0
    tile = 1
    kernel = 0.0
    fresh = 0.0

    [[dimension]]
    size = 8
    wire = "switch"
    wraps = false
    rate = 1000000000.0
    latency = 0.00001
    "#);
}

/// Eight slow devices.
const SMALL_CPUS: &str = r#"
f32_flops = 20e9
memory_bytes = 4_294_967_296
memory_bandwidth = 5e9

[reached]
products = 0.5

[[dimension]]
size = 8
wire = "switch"
rate = 1_000_000_000
latency = 1e-5
"#;

/// Any file gives hardware, or an error that says what is wrong with it.
#[test]
fn files_that_describe_no_hardware_are_refused() {
    let refusal = |text: &str| hardware_from_toml(text, "mine.toml").expect_err(text).to_string();
    let changed = |from: &str, to: &str| {
        assert!(EIGHT_H100.contains(from), "{from}");
        refusal(&EIGHT_H100.replace(from, to))
    };
    let numbers = ["0", "-1", "nan", "inf"].map(|rate| changed("450e9", rate));
    assert_snapshot!(numbers.join("\n"), @"
    mine.toml: rate of dimension 1 is 0: it must be a number from 1 to 1e30
    mine.toml: rate of dimension 1 is -1: it must be a number from 1 to 1e30
    mine.toml: rate of dimension 1 is NaN: it must be a number from 1 to 1e30
    mine.toml: rate of dimension 1 is inf: it must be a number from 1 to 1e30
    ");
    let one = |line: &str| refusal(&format!("{line}\n{EIGHT_H100}"));
    let second = |lines: &str| refusal(&format!("{EIGHT_H100}\n[[dimension]]\n{lines}\n"));
    let texts = [
        refusal("chip ="),
        refusal("chip = \"h100\""),
        refusal(&SMALL_CPUS.replace("memory_bandwidth = 5e9", "")),
        refusal(&SMALL_CPUS.replace("f32_flops = 20e9", "")),
        changed("h100", "h900"),
        changed("size = 8", "size = 0"),
        changed("size = 8", "size = -8"),
        changed("size = 8", "sise = 8"),
        changed("switch", "cable"),
        changed("latency = 1e-6", "latency = -1e-6"),
        changed("latency = 1e-6", ""),
        one("bf16_flops = 0"),
        one("memory_bytes = 0"),
        one("launch = 4000"),
        one("backend = \"rocm\""),
        one("reached.products = 1.5"),
        one("reached.tile = 0"),
        one("reached.fresh = -1e-9"),
        one("reached.cache = { bytes = 0, bandwidth = 1e10 }"),
        second("size = 2\nwire = \"core\"\nrate = 1e9\nlatency = 0"),
        second("size = 2\nwire = \"network\"\nwraps = true\nrate = 1e9\nlatency = 0"),
        second("size = 1000000\nwire = \"network\"\nrate = 1e9\nlatency = 0"),
    ];
    assert_snapshot!(texts.join("\n"), @r#"
    mine.toml:1:7: string values must be quoted, expected literal string
    mine.toml: there is no [[dimension]]: give one or more, each with size, wire, rate and latency
    mine.toml: there is no memory_bandwidth: give it in bytes per second, or a chip that has it, as chip = "h100"
    mine.toml: there is no bf16_flops: give it in operations per second, or f32_flops, or a chip that has it, as chip = "h100"
    mine.toml: chip is "h900": no chip is called "h900"; expected one of v4, v5e, v5p, v6e, tpu7x, a100, h100, h200, b200, cpu
    mine.toml: size of dimension 1 is 0: it must be a whole number from 1 to 1048576
    mine.toml:5:8: invalid value: integer `-8`, expected usize
    mine.toml:5:1: unknown field `sise`, expected one of `size`, `wire`, `wraps`, `rate`, `latency`
    mine.toml:6:8: unknown variant `cable`, expected one of `memory`, `core`, `switch`, `torus`, `network`
    mine.toml: latency of dimension 1 is -0.000001: it must be a number of seconds from 0 to 3600
    mine.toml:4:1: missing field `latency`
    mine.toml: bf16_flops is 0: it must be a number from 1 to 1e30
    mine.toml: memory_bytes is 0: it must be a number from 1 to 1e30
    mine.toml: launch is 4000: it must be a number of seconds from 0 to 3600
    mine.toml:1:11: unknown variant `rocm`, expected one of `cpu`, `cuda`, `tpu`
    mine.toml: reached.products is 1.5: it must be a part from 0.001 to 1
    mine.toml: reached.tile is 0: it must be a whole number from 1 to 65536
    mine.toml: reached.fresh is -0.000000001: it must be a number of seconds from 0 to 3600
    mine.toml: reached.cache.bytes is 0: it must be a number from 1 to 1e30
    mine.toml: wire of dimension 2 is "core": dimensions go from the fastest to the slowest: memory, core, switch, torus, network
    mine.toml: wraps of dimension 2 is true: a network has no ends to join; leave it out, or give wire = "torus"
    mine.toml: the number of devices is 8 x 1000000: it must be at most 1048576; give smaller sizes
    "#);
    let absent = read_hardware("no/such.toml").expect_err("no file").to_string();
    assert!(absent.starts_with("cannot read the hardware \"no/such.toml\": "), "{absent}");
    // The product of the sizes overflows.
    let dimension = "\n[[dimension]]\nsize = 1048576\nwire = \"network\"\nrate = 1e9\nlatency = 0\n";
    let text = refusal(&format!("{EIGHT_H100}{}", dimension.repeat(4)));
    assert!(text.starts_with("mine.toml: the number of devices is 8 x 1048576 x 1048576 x "), "{text}");
}

/// Rates that the model's element type has not.
#[test]
fn a_search_needs_the_rate_of_what_is_computed() {
    let hardware = hardware_from_toml(SMALL_CPUS, "small.toml").expect("hardware");
    let refused = search(&config(LARGER), &SearchOptions::new(hardware), &|_| {}).expect_err("a rate is missing");
    assert_snapshot!(refused, @"the rate at which cpu multiplies bf16 is not known; give bf16_flops in a file of hardware, or set model.compute_dtype to a type whose rate is known");
}

#[test]
fn where_nothing_fits_the_nearest_is_named() {
    let large = SMALL_CPUS.replace("4_294_967_296", "1_000_000");
    let hardware = hardware_from_toml(&large, "small.toml").expect("hardware");
    let base = config(&[LARGER, &["model.compute_dtype=f32"]].concat());
    let found = search(&base, &SearchOptions { most: 1, ..SearchOptions::new(hardware.clone()) }, &|_| {});
    let refused = found.expect("a search").best_on(&hardware).expect_err("nothing fits").to_string();
    assert!(refused.starts_with("no plan fits the memory of a device: the nearest, mesh.axes="), "{refused}");
    assert!(refused.contains(", and there is 977 KiB; take more devices"), "{refused}");
}

#[test]
fn devices_are_known_by_their_kind() {
    let devices = |kind: &str, places: &[Vec<i64>]| {
        let device = |(id, place): (usize, &Vec<i64>)| {
            let coords = (!place.is_empty()).then(|| ("coords".to_owned(), NamedValue::Ints(place.clone())));
            let attributes = coords.into_iter().collect();
            DeviceDescription { id: id as i32, kind: kind.to_owned(), description: String::new(), attributes }
        };
        hardware_of_devices(&places.iter().enumerate().map(device).collect::<Vec<_>>())
    };
    let square: Vec<Vec<i64>> = (0..16).map(|place| vec![place % 4, place / 4, 0]).collect();
    let found = [
        (devices("NVIDIA H100 80GB HBM3", &vec![vec![]; 8]), "h100:1x1x8"),
        (devices("TPU v5 lite", &square), "v5e:4x4"),
        (devices("TPU v5", &square), "v5p:4x4x1"),
    ];
    for (found, topology) in found {
        assert_eq!(found.ok(), hardware(topology).ok(), "{topology}");
    }
    let unknown = [("NVIDIA H100 PCIe", vec![vec![]; 2]), ("cpu", vec![vec![]]), ("TPU v5 lite", vec![vec![]; 3])];
    for (kind, places) in unknown {
        let refused = devices(kind, &places).expect_err(kind).to_string();
        assert!(refused.contains(&format!("of kind \"{kind}\" are not known; describe them")), "{refused}");
    }
}

/// Values that a layer keeps on the host take no memory of the device. They are moved there and back over the link to
/// the host, beside work that does not need them.
#[test]
fn what_is_offloaded_takes_the_link_and_not_the_memory() {
    let base = config(&[LARGER, &["target.platform=cuda"]].concat());
    let hardware = hardware("h100:1x1x8").expect("hardware");
    let plans = bounded(&base, &hardware).expect("plans");
    let found = |remat: &str| {
        let name = format!("fsdp=8, remat {remat}");
        let plan = plans.iter().map(|(plan, _)| plan).find(|plan| plan.to_string() == name).expect(&name);
        estimate_plan(&base, plan, &hardware)
    };
    let [save, offload, full] = ["save products", "offload products", "full"].map(found);
    // The bytes of each token in each layer: queries and the result of attention, keys and values, two products, and a
    // sum for each head.
    let of_token = 2 * (2 * 2048 + 2 * 1024 + 2 * 8192) + 4 * 16;
    let kept: u64 = of_token * 4 * 64 * 2048 / 8;
    assert!(save.bytes > full.bytes + kept, "{} {} {kept}", save.bytes, full.bytes);
    assert!(offload.bytes < full.bytes + kept / 4, "{} {} {kept}", offload.bytes, full.bytes);
    assert!(time(&offload).computing < time(&full).computing, "{offload:?} {full:?}");
    // H100's link; programs reach 75 % of its rate.
    let seconds = kept as f64 / (0.75 * 64e9);
    for direction in [FROM_HOST, TO_HOST] {
        let transfer = time(&offload).transfers.iter().find(|it| it.axes == direction).expect(direction);
        assert!((transfer.seconds / seconds - 1.0).abs() < 0.01, "{transfer:?} {seconds}");
        assert!(time(&save).transfers.iter().all(|it| it.axes != direction));
    }
}

/// No plan uses the link to the host if it is unknown, or if the platform has no memory of the host.
#[test]
fn plans_offload_where_the_link_to_the_host_is_known() {
    for (platform, text, expected) in
        [("tpu", "", false), ("tpu", "host_bandwidth = 1.5e10\n", true), ("cpu", "host_bandwidth = 1.5e10\n", false)]
    {
        let base = config(&[LARGER, &[&format!("target.platform={platform}")]].concat());
        let text = format!("{text}{}", EIGHT_H100.replace("h100", "v6e").replace("switch", "torus"));
        let hardware = hardware_from_toml(&text, "a file").expect("hardware");
        let plans = bounded(&base, &hardware).expect("plans");
        assert_eq!(plans.iter().any(|(plan, _)| plan.to_string().contains("remat offload")), expected, "{text}");
    }
}

/// Plans of three models that were run on eight CPU devices (`cargo bench --bench estimate -- --record`): the estimates
/// of today put them in the order of the steps that were measured.
#[test]
fn estimates_are_in_the_order_of_measured_steps() {
    let hardware = read_hardware("train/measured/cpu.toml").expect("rates");
    let mut of_models: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in include_str!("measured/steps.tsv").lines().skip(1) {
        let [model, settings, seconds] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let found = estimate_step(&config(&settings.split(' ').collect::<Vec<_>>()), &hardware);
        // The devices share the cores: while some wait, others use them.
        of_models
            .entry(model)
            .or_default()
            .push((found.seconds() - time(&found).idle, seconds.parse().expect("seconds")));
    }
    for (model, pairs) in &of_models {
        println!("{model}: {:.3} of {} plans", rank_correlation(pairs), pairs.len());
    }
    let all: Vec<(f64, f64)> = of_models.into_values().flatten().collect();
    assert_eq!(all.len(), 40);
    let correlation = rank_correlation(&all);
    println!("all: {correlation:.3}");
    assert!(correlation >= 0.9, "{correlation}");
}
