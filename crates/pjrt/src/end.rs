//! Ending a process in which a program may still run.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io::{self, Write};

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process with this status, and runs nothing that libraries have registered for its end.
///
/// A program that took longer than its time limit runs on, on threads of the plugin. An ordinary end of the process
/// destroys what they work with, and may be a segmentation fault.
pub fn end_process(status: i32) -> ! {
    // Who would be told of an error is gone.
    let _ = io::stdout().flush();
    // SAFETY: POSIX's `_exit` takes any status and does not come back.
    unsafe { _exit(status) }
}
