//! Collectives between processes, called by compiled programs on every CPU plugin.

use support::plugins::{chosen_cpu_wheels, load};
use support::program::example;

use super::mpi::start;

#[test]
fn on_every_cpu_plugin() {
    let program = example("crossing");
    for wheel in chosen_cpu_wheels() {
        let plugin = load(wheel);
        for count in 1..=3 {
            let said = start(count, &program, &[("MESHLOOM_CPU_PLUGIN", plugin.path())]);
            assert!(said.contains(&format!("{count} processes of 2 devices: all right")), "{}: {said}", wheel.name());
        }
    }
}
