//! `hlo-dump compile`: for hardware that need not be here, in a child process, as the plugin's makers compile it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use meshloom::compile::Lowered;
use meshloom::pjrt::ahead_of_time::{self, CompiledAhead, Settings};
use meshloom::pjrt::{
    CompileOptions, CostAnalysis, DeviceDescription, FindOptions, MemoryStats, Plugin, Topology, Wheel,
};
use meshloom_hlo::analysis::{Chip, Devices, ModuleCollectives, ModuleCost};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::parse::make_names_unique;
use meshloom_hlo::proto::{HloModuleProto, HloModuleProtoWithConfig};
use meshloom_hlo::text::{TextOptions, print_with_config};
use meshloom_train::config::RunConfig;
use meshloom_train::{Stage, StepAhead};
use prost::Message;
use serde::Serialize;

use crate::arguments::Compile;
use crate::collectives::Totals;
use crate::conditionals::ConditionalSum;
use crate::input::{Described, Loaded, load};
use crate::output::{self, BAD, BOLD, Column, GOOD, Table, line, paint};
use crate::{collectives, conditionals, cost};

/// A compiled program and what it was compiled for.
struct Compiled {
    ahead: CompiledAhead,
    devices: Vec<DeviceDescription>,
    module: HloModuleProtoWithConfig,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    input: Described<'a>,
    target: String,
    device_kind: &'a str,
    target_devices: usize,
    compile_seconds: f64,
    memory: Option<MemoryStats>,
    memory_limit: Option<i64>,
    cost: Option<CostAnalysis>,
    instructions: usize,
    #[serde(flatten)]
    collectives: &'a ModuleCollectives,
    #[serde(flatten)]
    totals: Totals,
    conditionals: Vec<ConditionalSum<'a>>,
}

pub fn run(arguments: &Compile, json: bool) -> Result<()> {
    let topology = topology(&arguments.target)?;
    let find = FindOptions { allow_fetch: !arguments.offline, ..FindOptions::default() };
    let settings = Settings { time_limit: Duration::from_secs(arguments.time_limit), find, ..Settings::default() };
    let mut input = arguments.input.clone();
    let is_config = input.path.extension().is_some_and(|extension| extension == "toml");
    if is_config {
        input.reading.set.push(format!("target.topology={topology}"));
        input.reading.set.extend(target_overrides(&topology, &input.reading.set));
    }
    announce(&topology, &settings)?;
    let loaded = load(&input)?;
    if loaded.module.schedule.is_some() {
        output::note("the module is scheduled, so it is what a compiler made; plugins are made for what comes before");
    }
    let waiting = output::spinner(format!("compiling for {topology}"));
    let compiled = match &loaded.run {
        Some(run) => of_run(&run.config, &settings),
        None => of_module(&loaded, &topology, &settings, arguments.shardy),
    };
    waiting.finish_and_clear();
    let compiled = compiled?;
    if let Some(path) = &arguments.output {
        write(path, &compiled.module)?;
    }
    let module = compiled.module.hlo_module.clone().unwrap_or_default();
    let stage = loaded.stage.map(|_| Stage::Compiled);
    let after = Loaded { module, config: compiled.module.config.clone(), stage, ..loaded };
    let found = collectives::of(&after);
    if json {
        return answer(&after, &compiled, &found);
    }
    print(&after, &compiled, &found, arguments.limit);
    Ok(())
}

/// What a config must say besides its topology: the platform, which decides what may overlap, unless the user says it.
fn target_overrides(topology: &Topology, given: &[String]) -> Option<String> {
    let said = given.iter().any(|key| key.starts_with("target.platform"));
    (!said).then(|| format!("target.platform={}", topology.platform()))
}

/// `v5p:8x8x8`, also with the platform before it: `tpu:v5p:8x8x8`, `gpu:h100:1x1x8`.
fn topology(text: &str) -> Result<Topology> {
    let platform = |text: &str| match text {
        "tpu" => Some("tpu"),
        "gpu" | "cuda" => Some("cuda"),
        _ => None,
    };
    let Some((before, rest)) = text.split_once(':') else { return Ok(Topology::parse(text)?) };
    match platform(before) {
        None => Ok(Topology::parse(text)?),
        Some(platform) => {
            let topology = Topology::parse(rest)?;
            if topology.platform() != platform {
                bail!(
                    "--target {text}: {rest} is compiled by the {} plugin; leave \"{before}:\" out",
                    topology.platform()
                );
            }
            Ok(topology)
        }
    }
}

/// Says what will be downloaded, before it is.
fn announce(topology: &Topology, settings: &Settings) -> Result<()> {
    let there = FindOptions { allow_fetch: false, ..settings.find.clone() };
    if settings.find.allow_fetch
        && Plugin::locate(topology.platform(), &there).is_err()
        && let Some(wheel) = Wheel::of_platform(topology.platform()).next()
    {
        output::note(&format!("the {} plugin is not here: {}", topology.platform(), download(wheel)));
    }
    Plugin::locate(topology.platform(), &settings.find)?;
    Ok(())
}

/// What fetching a wheel means.
pub fn download(wheel: &Wheel) -> String {
    let companions = wheel.companions.iter().map(|companion| &companion.package);
    let all = std::iter::once(&wheel.package).chain(companions);
    let parts: Vec<_> =
        all.map(|package| format!("{} ({} MB)", package.requirement(), package.byte_count / 1_000_000)).collect();
    format!("pip downloads {} into meshloom's plugin cache", parts.join(" and "))
}

fn of_run(config: &RunConfig, settings: &Settings) -> Result<Compiled> {
    let StepAhead { devices, compiled: ahead, .. } = StepAhead::compile(config, settings)?;
    let module = optimized(&ahead)?;
    Ok(Compiled { ahead, devices, module })
}

fn of_module(loaded: &Loaded, topology: &Topology, settings: &Settings, shardy: Option<bool>) -> Result<Compiled> {
    let described = ahead_of_time::describe(topology, settings)?;
    let needed = loaded.device_count();
    if needed > described.devices.len() as u64 {
        bail!(
            "the module is for {needed} devices, and {topology} has {}; take a target with as many",
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
    let mut module = loaded.module.clone();
    // Text for people has names that computations share, and compilers take none.
    make_names_unique(&mut module);
    let bytes = module.encode_to_vec();
    let ahead = ahead_of_time::compile(topology, &bytes, &options, settings)?;
    let module = optimized(&ahead)?;
    Ok(Compiled { ahead, devices: described.devices, module })
}

/// Whether XLA would partition the module by Shardy: it was made so, or has its attributes.
fn is_shardy(loaded: &Loaded) -> bool {
    let in_map = |map: &std::collections::BTreeMap<String, String>| map.keys().any(|key| key.starts_with("xla.sdy."));
    let attributes = loaded.module.frontend_attributes.iter().any(|attributes| in_map(&attributes.map));
    let instructions = loaded.module.computations.iter().flat_map(|computation| &computation.instructions);
    attributes
        || loaded.config.as_ref().is_some_and(|config| config.use_shardy_partitioner)
        || instructions.flat_map(|instruction| &instruction.frontend_attributes).any(|it| in_map(&it.map))
}

fn optimized(ahead: &CompiledAhead) -> Result<HloModuleProtoWithConfig> {
    let program = ahead.optimized_hlo()?;
    if program.format == "hlo_with_config" {
        return Ok(HloModuleProtoWithConfig::decode(&*program.bytes)?);
    }
    Ok(HloModuleProtoWithConfig { hlo_module: Some(program.decode()?), config: None })
}

/// The train step of a config as a plugin compiles it: for its topology, or for as many virtual CPU devices as its mesh
/// has.
pub fn of_config(config: &RunConfig, lowered: &Lowered) -> Result<HloModuleProtoWithConfig> {
    let settings = Settings::default();
    if !config.target.topology.is_empty() {
        announce(&Topology::parse(&config.target.topology)?, &settings)?;
        return Ok(of_run(config, &settings)?.module);
    }
    let count = lowered.mesh().map_or(1, Mesh::device_count);
    let topology = Topology::parse(&format!("cpu:{count}"))?;
    announce(&topology, &settings)?;
    let described = ahead_of_time::describe(&topology, &settings)?;
    let places: Vec<_> = described.devices.iter().map(DeviceDescription::place).collect();
    let options = lowered.options_on(&places)?;
    optimized(&ahead_of_time::compile(&topology, &lowered.module.bytes, &options, &settings)?)
}

fn write(path: &Path, module: &HloModuleProtoWithConfig) -> Result<()> {
    let is_text = path.extension().is_some_and(|extension| extension == "txt" || extension == "hlo");
    let bytes = match is_text {
        true => print_with_config(module, &TextOptions::parseable()).into_bytes(),
        false => module.encode_to_vec(),
    };
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn answer(after: &Loaded, compiled: &Compiled, found: &ModuleCollectives) -> Result<()> {
    let ahead = &compiled.ahead;
    let answer = Answer {
        input: after.describe(),
        target: ahead.topology.to_string(),
        device_kind: compiled.devices.first().map_or("", |device| &device.kind),
        target_devices: compiled.devices.len(),
        compile_seconds: ahead.compile_time.as_secs_f64(),
        memory: ahead.memory_stats().ok(),
        memory_limit: compiled.devices.first().and_then(DeviceDescription::memory_limit),
        cost: ahead.cost_analysis().ok().cloned(),
        instructions: instruction_count(&after.module),
        collectives: found,
        totals: Totals::of(found, after.steps_per_execution()),
        conditionals: conditionals::sums(found),
    };
    output::json("compile", &answer)
}

fn instruction_count(module: &HloModuleProto) -> usize {
    module.computations.iter().map(|computation| computation.instructions.len()).sum()
}

fn print(after: &Loaded, compiled: &Compiled, found: &ModuleCollectives, limit: usize) {
    let ahead = &compiled.ahead;
    let kind = compiled.devices.first().map_or("", |device| device.kind.as_str());
    line(&paint(BOLD, &after.title()));
    line(&format!(
        "compiled for {} ({} devices, {kind}) in {}: {} instructions",
        ahead.topology,
        compiled.devices.len(),
        output::seconds(ahead.compile_time.as_secs_f64()),
        output::thousands(instruction_count(&after.module) as u64),
    ));
    line("");
    let limit_bytes = compiled.devices.first().and_then(DeviceDescription::memory_limit);
    match ahead.memory_stats() {
        Ok(stats) => print_memory(&stats, limit_bytes),
        Err(error) => output::note(&error.to_string()),
    }
    line("");
    print_cost(&of_compiled(after, &ahead.topology), ahead.cost_analysis().ok());
    line("");
    let mut entries = found.entries.clone();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.total_moved_bytes().bound().unwrap_or(u64::MAX)));
    collectives::print(&entries, &found.conditionals, limit);
    conditionals::print(found);
    collectives::print_total(found, found.entries.len());
}

fn print_memory(stats: &MemoryStats, limit: Option<i64>) {
    let bytes = |count: i64| output::bytes(u64::try_from(count).unwrap_or(0));
    let mut table = Table::new(&[("memory of each device", Column::Text), ("bytes", Column::Number)]);
    let rows = [
        ("arguments", stats.arguments),
        ("outputs", stats.outputs),
        ("  of them in arguments", stats.aliased),
        ("temporaries", stats.temporary),
        ("code", stats.generated_code),
    ];
    for (name, count) in rows {
        table.row(vec![name.to_owned(), bytes(count)]);
    }
    let total = stats.arguments + stats.outputs - stats.aliased + stats.temporary;
    table.row(vec!["all but code".to_owned(), bytes(total)]);
    table.print();
    if let Some(limit) = limit.filter(|&limit| limit > 0) {
        let part = 100.0 * total as f64 / limit as f64;
        let (style, verdict) = if total <= limit { (GOOD, "fits") } else { (BAD, "does not fit") };
        line(&paint(style, &format!("{verdict}: {part:.1} % of the chip's {}", bytes(limit))));
    }
}

/// The cost of the compiled program, with times for the target's chip if it is known.
fn of_compiled(after: &Loaded, topology: &Topology) -> ModuleCost {
    let name = topology.to_string();
    let chip = name.split(':').next().and_then(|name| Chip::parse(name).ok());
    cost::of(after, chip)
}

/// Our count and XLA's.
fn print_cost(ours: &ModuleCost, theirs: Option<&CostAnalysis>) {
    let mut table =
        Table::new(&[("cost", Column::Text), ("loops multiplied", Column::Number), ("XLA's own", Column::Number)]);
    let said = |value: Option<String>| value.unwrap_or_else(|| "not said".to_owned());
    let time = ours.roofline.as_ref().map(|roofline| output::seconds(roofline.overlapped_seconds));
    // Some plugins say less than nothing, which is to say that they do not know.
    let their_time = theirs.and_then(CostAnalysis::optimal_seconds).filter(|&time| time > 0.0).map(output::seconds);
    let rows = [
        ("operations", output::count(ours.total.flops as f64), theirs.and_then(CostAnalysis::flops).map(output::count)),
        (
            "bytes accessed",
            output::bytes(ours.total.bytes()),
            theirs.and_then(CostAnalysis::bytes_accessed).map(|bytes| output::bytes(bytes.max(0.0) as u64)),
        ),
        ("time at best", time.unwrap_or_else(|| "not known".to_owned()), their_time),
    ];
    for (name, ours, theirs) in rows {
        table.row(vec![name.to_owned(), ours, said(theirs)]);
    }
    table.print();
}
