//! The program `hlo-dump`.

use std::process::ExitCode;

fn main() -> ExitCode {
    hlo_dump::main()
}
