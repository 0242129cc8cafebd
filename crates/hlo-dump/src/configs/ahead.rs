//! The program that a plugin makes of a run config: compiled in a child process, for devices that need not be here.

use anyhow::Result;
use meshloom::compile::Lowered;
use meshloom::pjrt::ahead_of_time::{CompiledAhead, Settings};
use meshloom::pjrt::{DeviceDescription, FindOptions, Plugin, Topology, Wheel};
use meshloom_hlo::proto::{HloModuleProto, HloModuleProtoWithConfig};
use meshloom_train::config::RunConfig;
use meshloom_train::run::StepAhead;
use prost::Message;

use crate::output;
use crate::streams;

pub struct Compiled {
    pub ahead: CompiledAhead,
    pub devices: Vec<DeviceDescription>,
    pub module: HloModuleProtoWithConfig,
    /// The module emitted for these devices from a run config, which may differ from the module that is only shown.
    pub emitted: Option<HloModuleProto>,
    /// The options given to the plugin's compiler, each `name=value`.
    pub options: Vec<String>,
}

pub fn settings() -> Settings {
    Settings { worker: streams::worker(), ..Settings::default() }
}

pub fn announce(topology: &Topology, settings: &Settings) -> Result<()> {
    let there = FindOptions { allow_fetch: false, ..settings.find.clone() };
    if settings.find.allow_fetch
        && Plugin::locate(topology.platform().name(), &there).is_err()
        && let Some(wheel) = Wheel::of_platform(topology.platform().name()).next()
    {
        output::note(&format!("the {} plugin is not here: {}", topology.platform(), download(wheel)));
    }
    Plugin::locate(topology.platform().name(), &settings.find)?;
    Ok(())
}

pub fn download(wheel: &Wheel) -> String {
    let companions = wheel.companions.iter().map(|companion| &companion.package);
    let all = std::iter::once(&wheel.package).chain(companions);
    let parts: Vec<_> =
        all.map(|package| format!("{} ({} MB)", package.requirement(), package.byte_count / 1_000_000)).collect();
    format!("pip downloads {} into meshloom's plugin cache", parts.join(" and "))
}

pub fn of_run(config: &RunConfig, settings: &Settings) -> Result<Compiled> {
    let step = StepAhead::compile(config, settings)?;
    let StepAhead { devices, compiled: ahead, compiler_options: options, lowered, .. } = step;
    let (module, emitted) = (optimized(&ahead)?, Some(lowered.module.decode()?));
    Ok(Compiled { ahead, devices, module, emitted, options })
}

pub fn optimized(ahead: &CompiledAhead) -> Result<HloModuleProtoWithConfig> {
    let program = ahead.optimized_hlo()?;
    if program.format == "hlo_with_config" {
        return Ok(HloModuleProtoWithConfig::decode(&*program.bytes)?);
    }
    Ok(HloModuleProtoWithConfig { hlo_module: Some(program.decode()?), config: None })
}

/// Returns the train step of a config before a plugin compiles it, and after: for its topology, or for as many virtual
/// CPU devices as its mesh has.
pub fn of_config(config: &RunConfig) -> Result<(Lowered, HloModuleProtoWithConfig)> {
    let mut config = config.clone();
    if config.target.topology.is_empty() {
        config.target.topology = format!("cpu:{}", config.mesh()?.device_count());
    }
    let settings = settings();
    announce(&Topology::parse(&config.target.topology)?, &settings)?;
    let StepAhead { lowered, compiled, .. } = StepAhead::compile(&config, &settings)?;
    Ok((lowered, optimized(&compiled)?))
}
