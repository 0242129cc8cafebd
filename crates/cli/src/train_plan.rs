//! `meshloom train --plan auto`: the plan of a run, searched for before it begins.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use hlo_dump::output::Busy;
use meshloom::hlo::PlatformKind;
use meshloom::hlo::message::{counted, human_bytes, seconds};
use meshloom::pjrt::Client;
use meshloom_plan::{
    Hardware, LoweredPlan, Progress, Search, SearchOptions, hardware_of_devices, on_hardware, read_hardware, search,
};
use meshloom_train::config::RunConfig;

use crate::arguments::Train;

/// A client, and what the user should know of the choice of its platform.
pub type Opened = (Client, Vec<String>);

/// The config with the best plan for its hardware, and the client that was opened to see what devices there are.
pub fn search_for(arguments: &Train, config: RunConfig) -> Result<(RunConfig, Option<Opened>)> {
    if arguments.is_one_of_several() || arguments.replica().is_some() || config.target.processes > 1 {
        bail!(
            "--plan auto is for one process, because several might find different plans: write a config with the plan by \
             `meshloom plan CONFIG --search --write FILE`, and give it to each process"
        );
    }
    let (config, hardware, opened) = match &arguments.hardware {
        Some(file) => of_file(file, &config)?,
        None => of_client(&config)?,
    };
    let options = SearchOptions::new(hardware);
    let start = Instant::now();
    let searched = {
        let bar = Busy::new("");
        search(&config, &options, &|progress: Progress| bar.say(&progress.to_string()))?
    };
    if let Some(Err(reason)) = &searched.configured {
        eprintln!("warning: the plan that the config has cannot be lowered: {reason}");
    }
    let best = searched.best_on(&options.hardware)?;
    say(&searched, best, &options, start.elapsed().as_secs_f64());
    Ok((best.plan.apply(&config), opened))
}

type Searched = (RunConfig, Hardware, Option<Opened>);

fn of_file(file: &Path, config: &RunConfig) -> Result<Searched> {
    let hardware = read_hardware(file)?;
    let of_hardware = on_hardware(config, &hardware);
    let (own, platform) = (config.target.platform, of_hardware.target.platform);
    if own.chosen().is_some() && own != platform {
        bail!("{} describes devices of {platform}, but target.platform is {own}: set it to {platform}", file.display());
    }
    Ok((of_hardware, hardware, None))
}

fn of_client(config: &RunConfig) -> Result<Searched> {
    let opened = match config.target.platform.chosen() {
        Some(PlatformKind::Cpu) => None,
        _ => Some(config.open_one()?).filter(|(client, _)| client.platform().kind() != PlatformKind::Cpu),
    };
    let Some((client, notes)) = opened else {
        bail!(
            "--plan auto needs the rates of the devices, and of CPUs none are published: measure them by \
             `cargo bench --bench estimate -- --write cpu.toml`, and give --hardware cpu.toml"
        );
    };
    let devices: Vec<_> = client.devices().iter().map(|device| (**device).clone()).collect();
    let hardware = hardware_of_devices(&devices)?;
    Ok((on_hardware(config, &hardware), hardware, Some((client, notes))))
}

fn say(searched: &Search, best: &LoweredPlan, options: &SearchOptions, took: f64) {
    let Search { considered, lowered, ended_early, configured, .. } = searched;
    let devices = counted(options.hardware.device_count(), "device");
    let left = if *ended_early { "; some were left that may be faster" } else { "" };
    eprintln!("{} for {devices}, {lowered} of them lowered in {}{left}", counted(considered, "plan"), seconds(took));
    let whose = match configured {
        _ if best.is_configured => " is the configured one".to_owned(),
        Some(Ok(found)) => format!(" (as configured, a step takes {})", seconds(found.seconds())),
        _ => String::new(),
    };
    let there_is = options.hardware.chip.device_memory();
    eprintln!(
        "the best{whose}: {}; by the estimate, a step takes {} and at most {}{} on each device",
        best.plan.settings().join(" "),
        seconds(best.seconds()),
        human_bytes(best.bytes),
        there_is.map_or(String::new(), |bytes| format!(" of {}", human_bytes(bytes))),
    );
}
