//! In how many collectives a device can be at once, on XLA's CPU runtime: it goes on to the next when a loop or branch
//! before it has been launched, unless one needs the other's result. `meshloom_pjrt` has the threads for two.

use meshloom::hlo::analysis::collectives_at_once;
use meshloom::hlo::proto::HloModuleProto;
use meshloom_train::config::RunConfig;

use crate::modules::{around, calling, collective, computation, instruction};

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

/// No device is ever in more than two in the programs of the example configs.
#[test]
fn two_at_most_in_our_programs() {
    let experts = ["model.family=mixtral", "model.experts=4", "mesh.axes=diloco=2,fsdp=2,expert=2"];
    let configs: [(&str, Vec<&str>); 7] = [
        ("default", vec![]),
        ("diloco", vec![]),
        ("streaming-diloco", vec![]),
        ("streaming-diloco", experts.to_vec()),
        ("psdp", vec![]),
        ("pipeline-bsw", vec![]),
        ("pipeline-4-stages", vec![]),
    ];
    for (name, settings) in configs {
        let overrides: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let file = support::path(format!("examples/configs/{name}.toml"));
        let config = RunConfig::load(&file, &overrides).unwrap_or_else(|error| panic!("{name} {settings:?}: {error}"));
        let (_, lowered) = config.lower_train_step().unwrap_or_else(|error| panic!("{name} {settings:?}: {error}"));
        let most = in_all(&lowered.module.decode().expect("our own"));
        println!("{name} {settings:?}: {most}");
        assert!((1..=2).contains(&most), "{name} {settings:?}: {most} collectives at once");
    }
}
