//! In place of run configs where the program is built without them. There is no [`Run`](run::Run), and who asks for one learns how to
//! get it.

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

    #[derive(Subcommand)]
    pub enum Command {
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
        pub fn run(&self, _: bool) -> Result<()> {
            Err(super::missing(match self {
                Command::Plan(_) => "hlo-dump plan",
                Command::Compile(_) => "hlo-dump compile",
                Command::Doctor(_) => "hlo-dump doctor",
            }))
        }
    }
}

pub mod run {
    use anyhow::Result;
    use meshloom_hlo::Stage;
    use meshloom_hlo::mesh::Mesh;
    use meshloom_hlo::proto::HloModuleProtoWithConfig;
    use serde::Serialize;

    use crate::report::shardings::ShardingRow;

    pub enum Run {}

    pub enum Diloco {}

    #[derive(PartialEq, Serialize)]
    pub enum Explanation {}

    /// Without a parser of TOML, the name alone says what is a run config.
    pub fn is_config(_: &str) -> bool {
        false
    }

    impl Run {
        pub fn read(_: &str, _: &str, _: Stage, _: &[String]) -> Result<(Run, HloModuleProtoWithConfig)> {
            Err(super::missing("a run config"))
        }

        pub fn mesh(&self) -> Option<&Mesh> {
            match *self {}
        }

        pub fn steps_per_call(&self) -> u64 {
            match *self {}
        }

        pub fn diloco(&self) -> Result<Option<Diloco>> {
            match *self {}
        }

        pub fn explain(&self, _: &str) -> Result<Vec<Explanation>> {
            match *self {}
        }

        pub fn graph_text(&self) -> String {
            match *self {}
        }

        pub fn gathered_for_ops(&self) -> Vec<String> {
            match *self {}
        }

        pub fn shardings(&self) -> Option<Vec<ShardingRow>> {
            match *self {}
        }

        pub fn pipeline_section(&self) -> Result<Option<maud::Markup>> {
            match *self {}
        }
    }

    impl Diloco {
        pub fn period(&self) -> usize {
            match *self {}
        }

        pub fn steps_between_syncs(&self) -> usize {
            match *self {}
        }

        pub fn fragments(&self) -> usize {
            match *self {}
        }

        pub fn overlap_steps(&self) -> usize {
            match *self {}
        }

        pub fn transport(&self) -> &'static str {
            match *self {}
        }

        pub fn after_step(&self, _: usize) -> (Option<String>, Option<String>) {
            match *self {}
        }
    }

    impl Explanation {
        pub fn print(&self) {
            match *self {}
        }
    }
}
