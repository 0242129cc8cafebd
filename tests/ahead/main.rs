//! Programs for hardware that is not there, compiled ahead of time by the plugins for it.
//!
//! Tests without a plugin show as ignored, with the reason, as do those that only the full tier runs.
//! `MESHLOOM_TEST_PLUGINS=all` downloads the plugins for TPUs and GPUs (200 MB each) where they are missing; a test
//! without its plugin then fails. `MESHLOOM_EVERY_CASE="ahead tests"` runs all tests of this program.
//!
//! The harness is not libtest, which cannot tell at run time that a test is ignored.

mod figures;
mod kernels;
mod overlap;
mod pipelines;
mod platforms;
mod profilers;
mod programs;
mod sent;
mod slices;
mod workers;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use meshloom::hlo::PlatformKind;
use meshloom::pjrt::worker;
use support::cases::cases;
use support::counts::Budget;
use support::plugins::why_without;

support::test_program!(Budget { steps: 0, modules: 0, processes: 10 }, usual_compiles);

/// A test that needs the plugin of a platform.
struct Test {
    platform: &'static str,
    name: String,
    run: Box<dyn FnOnce() + Send>,
}

fn on(platform: &'static str, name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> Test {
    Test { platform, name: name.into(), run: Box::new(run) }
}

impl Test {
    fn trial(self) -> Trial {
        let Test { platform, name, run } = self;
        let runner = move || -> Result<Completion, Failed> {
            // The plugin for CPUs is fetched by any test that needs it.
            if platform != "cpu"
                && let Some(reason) = why_without(platform)?
            {
                return Ok(Completion::ignored_with(reason));
            }
            run();
            Ok(Completion::Completed)
        };
        Trial::ignorable_test(name, runner).with_kind(platform)
    }

    /// Shows the test as ignored.
    fn of_the_full_tier(self) -> Trial {
        let ignored = || Ok(Completion::ignored_with("full tier"));
        Trial::ignorable_test(self.name, ignored).with_kind(self.platform)
    }
}

/// The tests that always run.
fn small_tier() -> Vec<Test> {
    vec![
        on("cpu", "the_train_step", || platforms::train_step("cpu:8", "data=2,fsdp=4")),
        on("tpu", "the_train_step", || platforms::train_step("v5e:2x4", "data=2,fsdp=4")),
        on("cuda", "the_train_step", || platforms::train_step("h100:1x1x8", "data=2,fsdp=-1")),
        on("tpu", "topologies_are_described", platforms::tpu_topologies_are_described),
        on("cuda", "topologies_are_described", platforms::gpu_topologies_are_described),
        on("tpu", "a_failed_check_ends_the_worker_alone", platforms::a_failed_check_of_libtpu_ends_the_worker_alone),
    ]
}

/// The tests that only the full tier runs. Each compiles all of its programs: shares of the full tier are shares of
/// this list.
fn full_tier() -> Vec<Test> {
    let mut tests = vec![
        on("tpu", "topologies_that_are_none_are_refused", platforms::topologies_that_are_none_are_refused),
        on("tpu", "compiles", platforms::compiles_for_tpus),
        on("tpu", "it_is_killed_at_the_time_limit", platforms::libtpu_is_killed_at_the_time_limit),
        on("tpu", "the_explicit_step_for_512_devices", platforms::the_explicit_step_compiles_for_512_tpus),
        on("tpu", "the_train_step_on_slices", || platforms::train_step("tpu7x:2x2x1:slices=2", "data=4,fsdp=4")),
        on("tpu", "experts_and_gradients", || programs::experts_and_gradients("v5e:2x4")),
        on("cuda", "the_form_of_cudnn_attention", || programs::the_form_of_cudnn_attention("h100:1x1x1")),
        on("tpu", "a_decoder_by_kernels", || programs::a_decoder_by_kernels("v5p:2x2x1")),
        on("tpu", "the_order_of_devices", programs::the_order_of_devices),
        on(
            "tpu",
            "replicas_on_slices_sync_under_the_conditional",
            slices::replicas_on_slices_sync_under_the_conditional,
        ),
        on("tpu", "slices_exchange_gradients_once", slices::slices_exchange_gradients_once),
        on("tpu", "transfers_are_under_way_while_steps_run", slices::transfers_are_under_way_while_steps_run),
        on("tpu", "transfers_run_beside_compute", overlap::transfers_run_beside_compute),
        on("cuda", "compiles", platforms::compiles_for_gpus),
        on("cuda", "the_explicit_step_for_64_devices", platforms::the_explicit_step_compiles_for_64_gpus),
        on("cuda", "the_local_form_for_h100", || programs::the_local_form("h100:1x1x4")),
    ];
    for kind in PlatformKind::ALL {
        tests.push(on(kind.name(), "memory_figures_are_kept", move || figures::kept(kind)));
    }
    for target in ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"] {
        let name = |what: &str| format!("{what}_for_{}", target.split(':').next().unwrap_or(target));
        tests.extend([
            on("tpu", name("kernels_compile"), move || kernels::compile(target)),
            on("tpu", name("grouped_products_by_kernels"), move || programs::grouped_products_by_kernels(target)),
            on("tpu", name("the_local_form"), move || programs::the_local_form(target)),
        ]);
    }
    for target in ["v5p:2x2x1", "v6e:2x2"] {
        let name = format!("a_decoder_by_ragged_dot_for_{target}");
        tests.push(on("tpu", name, move || programs::a_decoder_by_ragged_dot(target)));
    }
    for (platform, target) in [("tpu", "v5p:2x2x2"), ("tpu", "v6e:2x4"), ("tpu", "tpu7x:2x2x1"), ("cuda", "h100:1x1x8")]
    {
        tests.push(on(platform, format!("stages_branch_for_{target}"), move || pipelines::stages_branch(target)));
        if target != "tpu7x:2x2x1" {
            tests.push(on(platform, format!("bytes_as_emitted_for_{target}"), move || sent::as_emitted(target)));
        }
    }
    for (platform, target) in [("tpu", "tpu7x:2x2x1"), ("cuda", "h100:1x1x8")] {
        tests.extend([
            on(platform, "presets_are_accepted", move || platforms::presets_are_accepted(platform)),
            on(platform, "the_topology_is_the_platform", move || platforms::the_topology_is_the_platform(target)),
        ]);
    }
    for (kind, target) in
        [(PlatformKind::Cpu, "cpu:1"), (PlatformKind::Tpu, "v5p:1x1x1"), (PlatformKind::Cuda, "h100:1x1x1")]
    {
        let copies = move || programs::grouped_products(target, kind);
        tests.push(on(kind.name(), "grouped_products_copy_one_matrix", copies));
    }
    for (platform, target) in [("tpu", "v5e:2x4"), ("cuda", "h100:1x1x8")] {
        tests.extend([
            on(platform, "several_operands", move || programs::several_operands(target)),
            on(platform, "a_partitioned_step", move || programs::a_partitioned_step(target)),
            on(platform, "every_dialect", move || programs::every_dialect(target)),
            on(platform, "the_profiler_records", move || profilers::records(platform)),
        ]);
    }
    tests
}

fn trials() -> Vec<Trial> {
    let full = full_tier();
    let chosen = cases("ahead tests", 0, 0..full.len());
    let full = full.into_iter().enumerate().map(|(number, test)| match chosen.contains(&number) {
        true => test.trial(),
        false => test.of_the_full_tier(),
    });
    // These tests write a table; they run if they are asked for by name.
    let written = PlatformKind::ALL.map(|kind| {
        on(kind.name(), "memory_figures_are_written", move || figures::written(kind)).trial().with_ignored_flag(true)
    });
    small_tier().into_iter().map(Test::trial).chain(full).chain(written).collect()
}

fn main() -> ExitCode {
    // The tests have this program be their worker.
    worker::run_if_asked();
    if profilers::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}
