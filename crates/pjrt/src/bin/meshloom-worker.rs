//! A program that is only a worker, for programs that cannot be their own (see `meshloom_pjrt::worker`): tests, and
//! hosts whose `main` is not Rust. The environment variable `MESHLOOM_WORKER` holds its path.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshloom_pjrt::worker::run_if_asked();
    eprintln!("meshloom-worker compiles programs for meshloom_pjrt::ahead_of_time, which starts it");
    ExitCode::FAILURE
}
