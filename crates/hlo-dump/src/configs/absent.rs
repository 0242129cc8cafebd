//! In place of run configs where the program is built without them. There is no [`Run`](crate::input::Run), and who
//! asks for one learns how to get it.

/// What comes before everything else.
pub fn start() {}

fn missing(what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what} needs the feature `configs`, which this hlo-dump is built without; `cargo install hlo-dump` builds one that has it"
    )
}

pub mod commands {
    use std::ffi::OsString;

    use anyhow::Result;
    use clap::{Args, Subcommand};

    use crate::Outcome;

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
            Err(super::missing(match self {
                Command::Bisect(_) => "hlo-dump bisect",
                Command::Plan(_) => "hlo-dump plan",
                Command::Compile(_) => "hlo-dump compile",
                Command::Doctor(_) => "hlo-dump doctor",
            }))
        }
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

pub mod run {
    use anyhow::Result;
    use meshloom_hlo::Stage;
    use meshloom_hlo::proto::HloModuleProtoWithConfig;
    use serde::Serialize;

    use crate::input::Run;

    #[derive(PartialEq, Serialize)]
    pub enum Explanation {}

    impl Explanation {
        pub fn print(&self) {
            match *self {}
        }
    }

    /// Without a parser of TOML, the name alone says what is a run config.
    pub fn is_config(_: &str) -> bool {
        false
    }

    pub fn read(_: &str, _: &str, _: Stage, _: &[String]) -> Result<(Box<dyn Run>, HloModuleProtoWithConfig)> {
        Err(super::missing("a run config"))
    }
}
