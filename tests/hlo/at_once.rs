//! In how many collectives a device can be at once, on XLA's CPU runtime: it goes on to the next when a loop or branch
//! before it has been launched, unless one needs the other's result. `RunConfig::client_options` asks for the threads.

use meshloom::analysis::collectives_at_once;
use meshloom::hlo::PlatformKind;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::pjrt::Platform;
use meshloom_train::config::RunConfig;
use support::calibration::programs;

use crate::hlo::modules::{around, calling, collective, computation, instruction};

fn in_all(module: &HloModuleProto) -> usize {
    collectives_at_once(module, 8)
}

/// A collective that needs the second of two loops alone may run beside the first.
#[test]
fn loops_without_need_of_each_other_go_on_beside_what_follows() {
    let body = |id| computation(id, vec![instruction(1, "parameter", &[]), collective(2, "all-gather", &[1])]);
    let most = |operands: [i64; 2]| {
        let loops = [calling(2, "while", &[1], &[7]), calling(3, "while", &[operands[0]], &[8])];
        let gather = [instruction(4, "add", &[operands[1], 3]), collective(5, "all-gather", &[4])];
        in_all(&around(loops.into_iter().chain(gather), [body(7), body(8)]))
    };
    assert_eq!(most([1, 2]), 2);
    assert_eq!(most([2, 2]), 1);
    assert_eq!(most([2, 1]), 1, "the second loop is needed, and needs the first");
}

/// A device of a run is in two at most, for which the trainer asks for threads where there are no replicas. Clients
/// have threads for three by themselves.
#[test]
fn our_programs_have_the_threads_that_they_need() {
    let experts = ["model.family=mixtral", "model.family.experts=4", "mesh.axes=diloco=2,fsdp=2,expert=2"];
    let overlapped = ["diloco.overlap_steps=2", "train.steps_per_call=20"];
    let configs: [(&str, Vec<&str>); 8] = [
        ("default", vec![]),
        ("default", vec!["train.steps_per_call=2"]),
        ("diloco", vec![]),
        ("streaming-diloco", experts.to_vec()),
        ("streaming-diloco", overlapped.to_vec()),
        ("psdp", vec![]),
        ("pipeline-bsw", vec![]),
        ("pipeline-4-stages", vec![]),
    ];
    let mut found = Vec::new();
    for (name, settings) in configs {
        let overrides: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let file = support::path(format!("examples/configs/{name}.toml"));
        let config = RunConfig::load(&file, &overrides).unwrap_or_else(|error| panic!("{name} {settings:?}: {error}"));
        let platform = Platform::of_any_plugin(PlatformKind::Cpu);
        let lowered = config.on_stated_devices().and_then(|config| config.resolve()?.lower(config.calls(), &platform));
        let (_, lowered) = lowered.unwrap_or_else(|error| panic!("{name} {settings:?}: {error}"));
        found.push((format!("{name} {settings:?}"), lowered));
    }
    for program in programs() {
        found.push((program.name.to_owned(), program.lower(PlatformKind::Cpu)));
    }
    for (name, lowered) in found {
        let most = in_all(&lowered.module.decode().expect("our own"));
        println!("{name}: {most}");
        assert!(most <= 2, "{name}: {most} collectives at once");
    }
}
