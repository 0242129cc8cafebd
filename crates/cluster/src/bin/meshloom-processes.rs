//! The program `meshloom-processes`: it is `meshloom` as one of several processes, or of several replicas apart.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshloom_train::program::main(meshloom_cluster::program::HERE)
}
