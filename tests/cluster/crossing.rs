//! Collectives between processes, called by compiled programs on every CPU plugin.

use support::cases::cases;
use support::plugins::{chosen_cpu_wheels, load};
use support::program::example;

use super::mpi::start;

#[test]
fn on_every_cpu_plugin() {
    let program = example("crossing");
    let all = chosen_cpu_wheels().into_iter().flat_map(|wheel| [2, 1, 3].map(|count| (wheel, count)));
    for (wheel, count) in cases("cluster collectives on plugins", 1, all) {
        let said = start(count, &program, &[("MESHLOOM_CPU_PLUGIN", load(wheel).path())]);
        assert!(said.contains(&format!("{count} processes of 2 devices: all right")), "{}: {said}", wheel.name());
    }
}
