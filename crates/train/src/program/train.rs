//! `meshloom train`: its flags decide between a training run, a program compiled ahead of time, and a table.

use std::ffi::OsString;
use std::time::Duration;

use crate::config::RunConfig;
use anyhow::{Result, bail};
use meshloom::pjrt::Topology;
use meshloom::pjrt::ahead_of_time::{self, Settings};

use super::arguments::{PlanChoice, Train};
use super::processes::Start;
use super::training_run::train;
use super::{Interrupts, ahead, plan};

pub fn run(arguments: &Train, words: &[OsString], start: Start, interrupts: &Interrupts) -> Result<()> {
    let is_part = arguments.is_one_of_several() || arguments.replica().is_some();
    let several = is_part.then(|| (start.join)(&arguments.processes, words)).transpose()?;
    let place = several.as_ref().and_then(|several| several.place());
    let processes = place.map(|(_, count)| ("--processes", format!("target.processes={count}")));
    let apart = arguments.replica().map(|_| ("--replica", "diloco.apart=true".to_owned()));
    let config = arguments.config.load(arguments.overrides().chain(processes).chain(apart))?;
    let mut settings = Settings::default();
    settings.time_limit = arguments.time_limit.map_or(settings.time_limit, Duration::from_secs);
    let topology = &config.target.topology;
    if let Some(flag) = arguments.flag_of_run().filter(|_| arguments.debug_sharding || !topology.is_empty()) {
        let instead = if topology.is_empty() { "--debug-sharding" } else { "target.topology, which --target sets" };
        bail!("{flag} is for a run, and nothing is run with {instead}: leave out one of them");
    }
    if let Some(flag) = arguments.flag_of_target().filter(|_| !arguments.debug_sharding && topology.is_empty()) {
        bail!("{flag} is for compiling: give the hardware by --target, or by target.topology");
    }
    let (config, opened) = match arguments.plan {
        Some(PlanChoice::Auto) => plan::search_for(arguments, config)?,
        None => (config, None),
    };
    if arguments.debug_sharding {
        return print_sharding(&config, &settings);
    }
    if !config.target.topology.is_empty() {
        return ahead::run(&config, &settings, arguments.write_hlo.as_deref());
    }
    if let Some(several) = several {
        return several.train(&config, &|part| train(arguments, &config, (None, Some(part)), interrupts));
    }
    if config.target.processes > 1 {
        let count = config.target.processes;
        bail!("target.processes is {count}: start as many processes, each with --processes auto or with --process-id");
    }
    train(arguments, &config, (opened, None), interrupts)
}

/// Prints what the rules make of the train step.
fn print_sharding(config: &RunConfig, settings: &Settings) -> Result<()> {
    let table = match config.target.topology.as_str() {
        "" => config.on_stated_devices()?.resolve()?.debug_sharding()?,
        topology => {
            let devices = ahead_of_time::describe(&Topology::parse(topology)?, settings)?.devices;
            config.on_devices(devices.len())?.resolve()?.debug_sharding()?
        }
    };
    match table {
        Some(table) => println!("{table}"),
        None => println!("one device: nothing is sharded"),
    }
    Ok(())
}
