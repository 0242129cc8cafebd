//! Any bytes as a profile: an error, or calls and programs; each program is an error or a module.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom::analysis::longest_program;
use meshloom::hlo::read::{self, Limits};
use meshloom::hlo::xplane::XSpace;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let Ok(space) = XSpace::read(bytes, &limits) else { return };
    space.calls().for_each(drop);
    longest_program(&space);
    for program in space.programs() {
        let _ = read::read(program.bytes, &limits);
    }
});
