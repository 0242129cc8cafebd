//! Programs that XLA partitions: each dialect of annotations gives the values of one device on every plugin that takes
//! it, in HLO and in StableHLO, and is refused where it is not read.

use meshloom::compile::Lowered;
use meshloom::emit::Annotation;
use meshloom::ir::Literal;
use meshloom::pjrt::ahead_of_time::{self, Settings, WorkerFailure};
use meshloom::pjrt::{Array, Client, CompileOptions, FindOptions, PjrtError, ProgramFormat, Topology};
use meshloom_train::Trainer;
use support::cases::every_case;
use support::configs::{DECODER, ONE_DEVICE, UNOPTIMIZED, config};
use support::eight_devices::{client, relative_error};
use support::plugins::{cpu_clients, cpu_wheels};
use support::programs::annotated_layers;

fn run(lowered: &Lowered, client: &Client, format: ProgramFormat) -> Result<Vec<f64>, meshloom::Error> {
    let options = CompileOptions { debug_options: support::unoptimized(), ..lowered.compile_options(client)? };
    let program = lowered.compile_with(client, &options.with_format(format))?;
    let literal = |ty: &meshloom::ir::TensorType, seed: usize| {
        let values: Vec<f32> = (0..ty.element_count()).map(|at| ((at * 7 + seed) % 31) as f32 / 31.0 - 0.5).collect();
        Literal::from_slice(&ty.dims, &values).unwrap()
    };
    let inputs: Vec<Literal> =
        program.inputs().iter().enumerate().map(|(index, spec)| literal(&spec.ty, index)).collect();
    let arguments = program.put(0, &inputs)?;
    let outputs = program.run(&arguments.iter().collect::<Vec<&Array>>())?;
    Ok(outputs.iter().flat_map(|output| output.get().expect("a result").to_f64_vec()).collect())
}

#[test]
fn every_dialect_is_one_device() {
    // This client keeps no programs.
    let preferred = || [("the preferred plugin", Client::cpu(8).expect("a CPU client"))];
    let plugins = if every_case("sharding plugins") { cpu_clients().to_vec() } else { preferred().to_vec() };
    for (name, client) in &plugins {
        let expected = run(&annotated_layers(None), client, ProgramFormat::Hlo).unwrap();
        let annotations = [Annotation::Tiles, Annotation::ShardyAttributes, Annotation::ShardyNamed];
        let in_both = |annotation| [ProgramFormat::Hlo, ProgramFormat::StableHlo].map(|format| (annotation, format));
        for (annotation, format) in annotations.into_iter().flat_map(in_both) {
            let lowered = annotated_layers(Some(annotation));
            let too_old = annotation == Annotation::ShardyNamed && client.plugin().api_version() < (0, 106);
            let found = run(&lowered, client, format);
            if annotation == Annotation::ShardyNamed && format == ProgramFormat::StableHlo && !too_old {
                let error = found.expect_err("plugins lose named shardings in StableHLO").to_string();
                assert!(error.contains("named shardings (V3)"), "{name}: {error}");
                continue;
            }
            if too_old {
                let error = found.expect_err("named shardings are newer than this plugin").to_string();
                let expected = "of PJRT C API 0.81 does not read, expected 0.106 or later";
                assert!(error.contains(expected), "{name}: {error}");
                continue;
            }
            let error = relative_error(
                &found.unwrap_or_else(|error| panic!("{name} {annotation:?} {format:?}: {error}")),
                &expected,
            );
            assert!(error <= 1e-5, "{name} {annotation:?} {format:?}: {error:.1e}");
        }
    }
}

fn compile_ahead(
    target: &str,
    lowered: &Lowered,
    find: FindOptions,
) -> Result<ahead_of_time::CompiledAhead, PjrtError> {
    let worker = Some(support::program::worker());
    let settings = Settings { worker, find, ..Settings::default() };
    ahead_of_time::compile(
        &Topology::parse(target)?,
        &lowered.module.bytes,
        &CompileOptions::partitioned(8).with_shardy(lowered.annotation().is_shardy()),
        &settings,
    )
}

/// A worker refuses what its plugin does not read, rather than dying over it.
#[test]
fn a_worker_refuses_named_shardings_too() {
    let oldest = cpu_wheels().find(|wheel| wheel.name() == "xla-cpu-pjrt").expect("the wheel of API 0.81");
    let find = FindOptions { wheel: Some(oldest.name().into()), ..FindOptions::default() };
    let error =
        compile_ahead("cpu:8", &annotated_layers(Some(Annotation::ShardyNamed)), find).expect_err("it is too old");
    let PjrtError::Worker { failure, .. } = error else { panic!("{error}") };
    assert!(
        matches!(&*failure, WorkerFailure::Refused(error) if error.to_string().contains("named shardings")),
        "{failure}"
    );
}

#[test]
fn a_train_step_by_shardy_is_one_device() {
    let numbers = |overrides: &[&str]| -> Vec<f64> {
        let mut trainer = Trainer::new(&config(&[DECODER, &[UNOPTIMIZED], overrides]), &client()).unwrap();
        let step = |_| trainer.step().map(|metrics| [metrics.loss, metrics.grad_norm]).unwrap();
        (0..3).flat_map(step).collect()
    };
    let one = numbers(ONE_DEVICE);
    let shardy = numbers(&["mesh.axes=\"data=2,fsdp=4\"", "partition.mode=\"shardy\""]);
    let error = relative_error(&shardy, &one);
    assert!(error <= 1e-5, "{error:.1e}: {shardy:?} {one:?}");
}
