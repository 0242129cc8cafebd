//! The commands for run configs or plugins. `absent.rs` takes the place of this module if the program is built without
//! the feature `configs`.

mod bisect;
pub mod compile;
mod doctor;
mod hidden;
mod plan;
mod plan_context;
mod plan_picture;
mod plan_rows;
mod plan_search;

use anyhow::Result;
use clap::Subcommand;

use crate::Outcome;

#[derive(Subcommand)]
pub enum Command {
    /// List the pipelines that a run config could have, with a picture; with --search, find the fastest plan on given
    /// hardware
    Plan(plan::Plan),
    /// Find what makes a program go wrong, and shrink it
    Bisect(bisect::Bisect),
    /// Compile for hardware that you need not have
    Compile(compile::Compile),
    /// List the plugins found, what each can do, and how to get what is missing
    Doctor(doctor::Doctor),
}

impl Command {
    pub fn run(&self, json: bool) -> Result<Outcome> {
        match self {
            Command::Bisect(bisect) => return bisect::run(bisect, json),
            Command::Plan(plan) => plan::run(plan, json)?,
            Command::Compile(compile) => compile::run(compile, json)?,
            Command::Doctor(doctor) => doctor::run(doctor, json)?,
        }
        Ok(Outcome::Done)
    }
}
