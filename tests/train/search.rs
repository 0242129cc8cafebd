//! The search for plans: what it lists, bounds and finds.

use meshloom_train::config::RunConfig;
use meshloom_train::search::{Bounds, SearchOptions, bounded, estimate_step, evaluate, hardware, search};

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
/// share of all plans is lowered here, also of those that it passes over, and none is faster than the best.
#[test]
fn no_plan_is_better_than_the_one_that_is_found() {
    let with_experts = [LARGER, &["model.experts=8", "model.mlp=2048"]].concat();
    for (model, target) in [(LARGER, "h100:1x1x8"), (LARGER, "v5e:2x4"), (&with_experts, "v5p:2x2x2")] {
        let base = config(model);
        let hardware = hardware(target).expect("hardware");
        let options = |most| SearchOptions { hardware: hardware.clone(), most, threads: 2 };
        let found = search(&base, &options(usize::MAX), &|_| {}).expect("plans");
        let best = found.best().expect("one that fits");
        assert!(!found.ended_early, "{target}");
        assert_eq!(found.lowered + found.too_slow + found.too_large + found.refused, found.considered, "{target}");
        assert_eq!(found.refused, 0, "{target}: {:?}", found.first_refusal);
        // Every tenth of all plans, whatever the search thought of it.
        let memory = hardware.chip.device_memory().expect("a chip with memory");
        let mut lowered = 0;
        for (plan, Bounds { seconds, bytes }) in bounded(&base, &hardware).expect("plans").iter().step_by(10) {
            let each = evaluate(&base, plan, &hardware, memory).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
            assert!(each.time.seconds >= seconds * 0.999, "{target}: {} < {seconds}: {plan:?}", each.time.seconds);
            assert!(each.bytes as f64 >= *bytes, "{target}: {} < {bytes}: {plan:?}", each.bytes);
            assert!(!each.fits || each.time.seconds >= best.time.seconds, "{target}: {plan:?} is faster than {best:?}");
            lowered += 1;
        }
        assert!(lowered >= 20, "{target}: {lowered}");
    }
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
        assert!(found.ended_early && found.lowered + found.refused == 1, "{found:?}");
        let (time, bytes) = estimate_step(&base.on_devices(8).expect("it fits"), &hardware).expect("an estimate");
        assert_eq!((time.seconds, bytes), (found.found[0].time.seconds, found.found[0].bytes), "{mesh:?}");
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
        let pipeline = if each.plan.pipeline.is_some() { "[pipeline]\n" } else { "" };
        let set: Vec<String> = LARGER.iter().map(|&text| text.to_owned()).chain(settings.clone()).collect();
        let config = RunConfig::from_toml_with(pipeline, "settings", &set).expect("a config");
        let config = config.on_devices(8).expect("it fits");
        let (time, bytes) = estimate_step(&config, &hardware).expect("an estimate");
        assert_eq!((time.seconds, bytes), (each.time.seconds, each.bytes), "{settings:?}");
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
