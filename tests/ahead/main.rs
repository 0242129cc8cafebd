//! Programs for hardware that is not there, compiled ahead of time by the plugins for it.
//!
//! A test whose plugin is not at hand shows as ignored, with the reason. `MESHLOOM_TEST_PLUGINS=all` downloads the
//! plugins for TPUs and GPUs (200 MB each) where they are not, and a test fails that is without.
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

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use meshloom::pjrt::{PlatformKind, worker};
use support::counts::Budget;
use support::plugins::why_without;
use support::some_of;

support::test_program!(Budget { steps: 1000, modules: 10000, processes: 1000 }, usual_compiles);

/// A test that needs the plugin of a platform.
fn on(platform: &'static str, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let runner = move || -> Result<Completion, Failed> {
        if let Some(reason) = why_without(platform)? {
            return Ok(Completion::ignored_with(reason));
        }
        test();
        Ok(Completion::Completed)
    };
    Trial::ignorable_test(name, runner).with_kind(platform)
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("the_train_step", || {
            platforms::train_step("cpu:8", "data=2,fsdp=4");
            Ok(())
        })
        .with_kind("cpu"),
        on("tpu", "topologies_are_described", platforms::tpu_topologies_are_described),
        on("tpu", "compiles", platforms::compiles_for_tpus),
        on("tpu", "a_failed_check_ends_the_worker_alone", platforms::a_failed_check_of_libtpu_ends_the_worker_alone),
        on("tpu", "it_is_killed_at_the_time_limit", platforms::libtpu_is_killed_at_the_time_limit),
        on("tpu", "the_explicit_step_for_512_devices", platforms::the_explicit_step_compiles_for_512_tpus),
        on("tpu", "the_train_step_on_slices", || platforms::train_step("tpu7x:2x2x1:slices=2", "data=4,fsdp=4")),
        on("tpu", "experts_and_gradients", || programs::experts_and_gradients("v5e:2x4")),
        Trial::test("grouped_products_copy_one_matrix", || {
            programs::grouped_products("cpu:1", PlatformKind::Cpu);
            Ok(())
        })
        .with_kind("cpu"),
        on("tpu", "grouped_products_copy_one_matrix", || programs::grouped_products("v5p:1x1x1", PlatformKind::Tpu)),
        on("cuda", "grouped_products_copy_one_matrix", || programs::grouped_products("h100:1x1x1", PlatformKind::Cuda)),
        on("cuda", "the_form_of_cudnn_attention", || programs::the_form_of_cudnn_attention("h100:1x1x1")),
        on("tpu", "a_decoder_by_kernels", || programs::a_decoder_by_kernels("v5p:2x2x1")),
        on("tpu", "a_decoder_by_ragged_dot", || {
            some_of(["v5p:2x2x1", "v6e:2x2"], 2).for_each(programs::a_decoder_by_ragged_dot);
        }),
        on("cuda", "the_local_form", || programs::the_local_form("h100:1x1x4")),
        on("tpu", "the_order_of_devices", programs::the_order_of_devices),
        on(
            "tpu",
            "replicas_on_slices_sync_under_the_conditional",
            slices::replicas_on_slices_sync_under_the_conditional,
        ),
        on("tpu", "slices_exchange_gradients_once", slices::slices_exchange_gradients_once),
        on("tpu", "transfers_are_under_way_while_steps_run", slices::transfers_are_under_way_while_steps_run),
        on("tpu", "transfers_run_beside_compute", overlap::transfers_run_beside_compute),
        on("tpu", "bytes_as_emitted", || {
            sent::as_emitted(0, "v5p:2x2x2");
            sent::as_emitted(1, "v6e:2x4");
        }),
        on("cuda", "bytes_as_emitted", || sent::as_emitted(2, "h100:1x1x8")),
        on("tpu", "stages_branch", || {
            for (number, target) in ["v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1"].into_iter().enumerate() {
                pipelines::stages_branch(number, target);
            }
        }),
        on("cuda", "stages_branch", || pipelines::stages_branch(3, "h100:1x1x8")),
        on("cuda", "topologies_are_described", platforms::gpu_topologies_are_described),
        on("cuda", "compiles", platforms::compiles_for_gpus),
        on("cuda", "the_explicit_step_for_64_devices", platforms::the_explicit_step_compiles_for_64_gpus),
    ];
    for kind in PlatformKind::ALL {
        let platform = kind.name();
        trials.push(on(platform, "memory_figures_are_written", move || figures::written(kind)).with_ignored_flag(true));
        trials.push(on(platform, "memory_figures_are_kept", move || figures::kept(kind)));
    }
    for (number, target) in ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"].into_iter().enumerate() {
        let kind = target.split(':').next().unwrap_or(target);
        trials.push(on("tpu", &format!("kernels_compile_for_{kind}"), move || {
            kernels::compile(number, target);
            programs::grouped_products_by_kernels(target);
            programs::the_local_form(target);
        }));
    }
    for (platform, target) in [("tpu", "tpu7x:2x2x1"), ("cuda", "h100:1x1x8")] {
        trials.extend([
            on(platform, "presets_are_accepted", move || platforms::presets_are_accepted(platform)),
            on(platform, "the_topology_is_the_platform", move || platforms::the_topology_is_the_platform(target)),
        ]);
    }
    trials.push(
        Trial::test("train_and_hlo_dump_compile_the_same", || {
            platforms::train_and_hlo_dump_compile_the_same("cpu:8");
            Ok(())
        })
        .with_kind("cpu"),
    );
    trials.push(on("cuda", "train_and_hlo_dump_compile_the_same", || {
        platforms::train_and_hlo_dump_compile_the_same("h100:1x1x8");
    }));
    for (platform, target, axes) in [("tpu", "v5e:2x4", "data=2,fsdp=4"), ("cuda", "h100:1x1x8", "data=2,fsdp=-1")] {
        trials.extend([
            on(platform, "the_train_step", move || platforms::train_step(target, axes)),
            on(platform, "several_operands", move || programs::several_operands(target)),
            on(platform, "a_partitioned_step", move || programs::a_partitioned_step(target)),
            on(platform, "every_dialect", move || programs::every_dialect(target)),
            on(platform, "the_profiler_records", move || profilers::records(platform)),
        ]);
    }
    trials
}

fn main() -> ExitCode {
    // The tests have this program be their worker.
    worker::run_if_asked();
    if profilers::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}
