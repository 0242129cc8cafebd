//! `meshloom`: trains decoders, generates text, plans and compiles train steps, and finds what makes a program go
//! wrong.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshloom_cli::main(meshloom_cli::ELSEWHERE)
}
