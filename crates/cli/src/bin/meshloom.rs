//! `meshloom`: trains decoders, generates text, reads and writes published models, and explains its run config.

use std::process::ExitCode;

use meshloom_train::program;

fn main() -> ExitCode {
    program::main(program::ELSEWHERE)
}
