//! Takes the place of the commands for run configs or plugins, if the program is built without them: each states how to
//! get it.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::Outcome;
use crate::configs::missing;

#[derive(Subcommand)]
pub enum Command {
    #[command(hide = true)]
    Bisect(Ignored),
    #[command(hide = true)]
    Plan(Ignored),
    #[command(hide = true)]
    Compile(Ignored),
    #[command(hide = true)]
    Doctor(Ignored),
}

#[derive(Args)]
pub struct Ignored {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<OsString>,
}

impl Command {
    pub fn run(&self, _: bool) -> Result<Outcome> {
        Err(missing(match self {
            Command::Bisect(_) => "hlo-dump bisect",
            Command::Plan(_) => "hlo-dump plan",
            Command::Compile(_) => "hlo-dump compile",
            Command::Doctor(_) => "hlo-dump doctor",
        }))
    }
}

pub mod compile {
    use anyhow::Result;

    use crate::arguments::Input;
    use crate::emitted::Ahead;

    pub fn ahead(_: &Input, _: Option<&str>, _: bool) -> Result<Ahead> {
        Err(super::missing("compiling ahead of time"))
    }
}
