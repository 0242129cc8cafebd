//! The program `meshloom-processes`: `meshloom` as one of several processes or separate replicas.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshloom_cli::main(meshloom_cluster::program::HERE)
}
