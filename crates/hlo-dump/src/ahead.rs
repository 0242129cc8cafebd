//! An input compiled ahead of time, as it was before and as it is then.

use anyhow::{Result, bail};
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{CompileOptions, DeviceDescription, Topology};
use meshloom_analysis::{Chip, Devices, Partitioning};
use meshloom_hlo::parse::make_names_unique;
use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::{PlatformKind, Stage};
use prost::Message;

use crate::arguments::Input;
use crate::collectives;
use crate::configs::ahead::{Compiled, announce, of_run, optimized, settings};
use crate::emitted::Ahead;
use crate::input::{Loaded, load};
use crate::output::{Busy, plural};

/// Returns a program before and after a plugin, for a check of it.
pub fn ahead(input: &Input, target: Option<&str>, needs_rates: bool) -> Result<Ahead> {
    Ok(compile(input, target, None, &settings(), needs_rates)?.ahead)
}

/// A program before and after a plugin, with everything that the plugin reports of it.
pub struct Both {
    pub ahead: Ahead,
    pub compiled: Compiled,
}

/// Compiles an input. If the command needs rates, a target without rates is refused before it is compiled.
pub fn compile(
    input: &Input,
    target: Option<&str>,
    shardy: Option<bool>,
    settings: &Settings,
    needs_rates: bool,
) -> Result<Both> {
    let target = target.map(topology).transpose()?;
    let given = &input.reading.set;
    if target.is_some() && given.iter().any(|key| key.starts_with("target.topology")) {
        bail!("--target is the config's target.topology, and --set gives it too; leave one of them out");
    }
    let overrides: Vec<String> = target.iter().map(|target| format!("target.topology={target}")).collect();
    let mut input = input.with(&overrides);
    // Other commands read a folder's compiled module by default, but no plugin takes that one.
    if input.path.is_dir() && input.reading.pass.is_none() {
        input.reading.stage.get_or_insert(Stage::Traced);
    }
    let loaded = load(&input)?;
    refuse_compiled(&loaded)?;
    let topology = target.map_or_else(|| own_topology(&loaded), Ok)?;
    if shardy.is_some() && loaded.run.is_some() {
        bail!("--shardy is for HLO; a run config says it itself: --set partition.mode=shardy");
    }
    let chip = chip_of(&topology).filter(|chip| chip.memory_bandwidth.is_some());
    if needs_rates && chip.is_none() {
        bail!("no rates are published for {topology}, so transfers have no times; take a target such as v5p:2x2x1")
    }
    announce(&topology, settings)?;
    let waiting = Busy::new(&format!("compiling for {topology}"));
    let compiled = match &loaded.run {
        Some(run) => of_run(run.config(), settings),
        None => of_module(&loaded, &loaded.module, &topology, settings, shardy),
    }?;
    drop(waiting);
    let module = compiled.module.hlo_module.clone().unwrap_or_default();
    let stage = loaded.stage.map(|_| Stage::Compiled);
    let partitioning = Partitioning::of(&module, loaded.devices);
    let before = compiled.emitted.as_ref().unwrap_or(&loaded.module);
    let emitted = (!loaded.partitioning.is_pending()).then(|| collectives::of_module(before, &loaded));
    let after = Loaded { module, config: compiled.module.config.clone(), stage, partitioning, ..loaded };
    Ok(Both { ahead: Ahead { emitted, after, chip }, compiled })
}

/// Returns the topology to compile an input for, if the command does not name one.
fn own_topology(loaded: &Loaded) -> Result<Topology> {
    match &loaded.run {
        Some(run) if !run.config().target.topology.is_empty() => Ok(Topology::parse(&run.config().target.topology)?),
        Some(_) => bail!("the config has no target.topology; say what to compile for, as --target cpu:8"),
        None => bail!("HLO does not say what to compile it for; say it, as --target cpu:8 or --target v5p:2x2x2"),
    }
}

/// Reads `v5p:8x8x8`, also with the platform before it: `tpu:v5p:8x8x8`, `gpu:h100:1x1x8`.
fn topology(text: &str) -> Result<Topology> {
    let platforms = [("tpu:", PlatformKind::Tpu), ("gpu:", PlatformKind::Cuda), ("cuda:", PlatformKind::Cuda)];
    let Some((before, platform)) = platforms.into_iter().find(|(before, _)| text.starts_with(before)) else {
        return Ok(Topology::parse(text)?);
    };
    let rest = &text[before.len()..];
    let topology = Topology::parse(rest)?;
    if topology.platform() != platform {
        bail!("--target {text}: {rest} is compiled by the {} plugin; leave \"{before}\" out", topology.platform());
    }
    Ok(topology)
}

/// Compiles forms of a program for a target.
pub struct Compiler {
    topology: Topology,
    settings: Settings,
}

impl Compiler {
    /// Finds the plugin for a target.
    ///
    /// # Errors
    /// There is no such target, no plugin for it, or the program is compiled already.
    pub fn of(target: &str, program: &Loaded) -> Result<Compiler> {
        let (topology, settings) = (topology(target)?, settings());
        refuse_compiled(program)?;
        announce(&topology, &settings)?;
        Ok(Compiler { topology, settings })
    }

    /// Compiles a form of the program.
    pub fn compile(&self, program: &Loaded, module: &HloModuleProto) -> Result<HloModuleProto> {
        let _waiting = Busy::new(&format!("compiling for {}", self.topology));
        let compiled = of_module(program, module, &self.topology, &self.settings, None)?;
        Ok(compiled.module.hlo_module.unwrap_or_default())
    }
}

fn refuse_compiled(loaded: &Loaded) -> Result<()> {
    if loaded.module.schedule.is_some() {
        bail!(
            "{}: the module is compiled already: it has a schedule; compile what comes before, such as the text of \
             `lowered` in JAX, or of a dump folder --stage traced",
            loaded.name
        );
    }
    Ok(())
}

/// Compiles a form of a program that was loaded.
fn of_module(
    loaded: &Loaded,
    module: &HloModuleProto,
    topology: &Topology,
    settings: &Settings,
    shardy: Option<bool>,
) -> Result<Compiled> {
    let described = ahead_of_time::describe(topology, settings)?;
    let needed = loaded.device_count();
    if needed > described.devices.len() as u64 {
        bail!(
            "the module is for {}, and {topology} has {}; take a target with as many",
            plural(needed, "device"),
            described.devices.len()
        );
    }
    let Devices { replicas, partitions } = loaded.devices;
    let places: Vec<_> = described.devices.iter().map(DeviceDescription::place).collect();
    let mut options = match &loaded.mesh {
        Some(mesh) if replicas == 1 && mesh.device_count() > 1 => CompileOptions::over_mesh(mesh, &places)?,
        _ => CompileOptions::partitioned(partitions as usize),
    };
    options.num_replicas = replicas as usize;
    options.use_shardy_partitioner = shardy.unwrap_or_else(|| is_shardy(loaded)) && partitions > 1;
    let mut module = module.clone();
    // Text for people has names that computations share, which compilers do not accept.
    make_names_unique(&mut module);
    let bytes = module.encode_to_vec();
    let ahead = ahead_of_time::compile(topology, &bytes, &options, settings)?;
    let module = optimized(&ahead)?;
    Ok(Compiled { ahead, devices: described.devices, module, emitted: None, options: Vec::new() })
}

/// Whether XLA would partition the module by Shardy: it was made for Shardy, or has its attributes.
fn is_shardy(loaded: &Loaded) -> bool {
    let in_map = |map: &std::collections::BTreeMap<String, String>| map.keys().any(|key| key.starts_with("xla.sdy."));
    let attributes = loaded.module.frontend_attributes.iter().any(|attributes| in_map(&attributes.map));
    let instructions = loaded.module.computations.iter().flat_map(|computation| &computation.instructions);
    attributes
        || loaded.config.as_ref().is_some_and(|config| config.use_shardy_partitioner)
        || instructions.flat_map(|instruction| &instruction.frontend_attributes).any(|it| in_map(&it.map))
}

pub fn chip_of(topology: &Topology) -> Option<&'static Chip> {
    topology.to_string().split(':').next().and_then(|name| Chip::parse(name).ok())
}
