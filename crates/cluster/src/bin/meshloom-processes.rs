//! `meshloom-processes`: the program `meshloom` as one of several processes, or of several replicas that are apart.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshloom_train::program::main(meshloom_cluster::program::here)
}
