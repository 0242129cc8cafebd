//! Ending a process in which a program may still run, and what signals do to it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io::{self, Write};

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
    fn signal(number: c_int, handler: usize) -> usize;
}

/// POSIX's `SIG_IGN` on all systems that Rust knows.
const IGNORED: usize = 1;

/// Whether this process ignores a signal, as one that `nohup` or a shell's `&` has started does. It must be called at
/// the start of the process: while it runs, the signal is ignored.
pub fn is_ignored(number: i32) -> bool {
    // SAFETY: `SIG_IGN` is a handler for any signal, and what was there before is put back as it was.
    unsafe {
        let before = signal(number, IGNORED);
        signal(number, before);
        before == IGNORED
    }
}

/// Ends the process with this status, and runs nothing that libraries have registered for its end.
///
/// A program that took longer than its time limit runs on, on threads of the plugin. An ordinary end of the process
/// destroys what they work with, and may be a segmentation fault.
pub fn end_process(status: i32) -> ! {
    // No one is left to be told of an error.
    let _ = io::stdout().flush();
    // SAFETY: POSIX's `_exit` takes any status and does not come back.
    unsafe { _exit(status) }
}
