//! `meshloom train`: its flags decide between a training run and a table of shardings.

use std::ffi::OsString;

use anyhow::{Result, bail};
use meshloom::pjrt::Topology;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom_train::config::RunConfig;

use crate::arguments::Train;
use crate::processes::Start;
use crate::training_run::train;
use crate::{Interrupts, train_plan};

pub fn run(arguments: &Train, words: &[OsString], start: Start, interrupts: &Interrupts) -> Result<()> {
    let is_part = arguments.is_one_of_several() || arguments.replica().is_some();
    let several = is_part.then(|| (start.join)(&arguments.processes, words)).transpose()?;
    let place = several.as_ref().and_then(|several| several.place());
    let processes = place.map(|(_, count)| ("--processes", format!("target.processes={count}")));
    let apart = arguments.replica().map(|_| ("--replica", "diloco.apart=true".to_owned()));
    let config = arguments.config.load(arguments.overrides().chain(processes).chain(apart))?;
    if let Some(flag) = arguments.flag_of_run().filter(|_| arguments.debug_sharding) {
        bail!("{flag} is for a run, and nothing is run with --debug-sharding: leave out one of them");
    }
    if !arguments.debug_sharding || arguments.plan.is_some() {
        config.check_runnable()?;
    }
    let (config, opened) = match arguments.plan {
        Some(_) => train_plan::search_for(arguments, config)?,
        None => (config, None),
    };
    if arguments.debug_sharding {
        return print_sharding(&config);
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

fn print_sharding(config: &RunConfig) -> Result<()> {
    let table = match config.target.topology.as_str() {
        "" => config.on_stated_devices()?.resolve()?.debug_sharding()?,
        topology => {
            let devices = ahead_of_time::describe(&Topology::parse(topology)?, &Settings::default())?.devices;
            config.on_devices(devices.len())?.resolve()?.debug_sharding()?
        }
    };
    match table {
        Some(table) => println!("{table}"),
        None => println!("one device: nothing is sharded"),
    }
    Ok(())
}
