//! `hlo-dump show`: the program itself.

mod drawing;
mod page;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use meshloom_analysis::Amount;
use meshloom_analysis::Walk;
use meshloom_analysis::devices::{Devices, device_count};
use meshloom_hlo::Stage;
use meshloom_hlo::message::shown;
use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProtoWithConfig};
use meshloom_hlo::source::Sources;
use meshloom_hlo::stablehlo::{self, ArtifactVersion, WriteOptions};
use meshloom_hlo::suggest::did_you_mean;
use meshloom_hlo::text::{Layouts, TextOptions, print_shape, print_with_config};
use prost::Message;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Emit, Show};
use crate::input::{Loaded, load};
use crate::output;
use crate::run::{Kernel, Said};
use crate::streams::{self, Stream};

pub fn run(arguments: &Show, json: bool) -> Result<()> {
    let emit = form(arguments, json)?;
    let loaded = load(&arguments.input)?;
    let file = arguments.output.as_deref();
    if arguments.kernels {
        return kernels(&loaded, file, json);
    }
    match emit {
        Emit::Text => write_text(file, &one_computation(text(&loaded, arguments.full), arguments)?),
        Emit::Proto | Emit::Artifact if file.is_none() && streams::is_terminal(Stream::Out) => {
            bail!("these bytes are no text for a terminal; write them to a file: --output FILE")
        }
        Emit::Proto => write(file, &loaded.module.encode_to_vec()),
        Emit::Stablehlo => write_text(file, &stablehlo(&loaded, arguments.full)?),
        Emit::Artifact => write(file, &artifact(&loaded, arguments.artifact_version)?),
        Emit::Json => match file {
            None => output::json("hlo-dump/show", &loaded.found(&described(&loaded, arguments)?)),
            Some(_) => write_text(file, &serde_json::to_string_pretty(&loaded.found(&described(&loaded, arguments)?))?),
        },
        Emit::Dot => write_text(file, &drawing::dot(&loaded, arguments)?),
        Emit::Svg => write_text(file, &drawing::svg(&loaded, arguments)?),
        Emit::Html => {
            let text = one_computation(text(&loaded, arguments.full), arguments)?;
            write_text(file, &page::render(&loaded.title(), &text))
        }
        Emit::Graph => write_text(file, &graph(&loaded)?),
    }
}

/// Returns the output form, to which the other options must apply.
fn form(arguments: &Show, json: bool) -> Result<Emit> {
    let emit = match (arguments.emit, json) {
        (None, false) => Emit::Text,
        (None | Some(Emit::Json), true) => Emit::Json,
        (Some(emit), false) => emit,
        (Some(_), true) => bail!("--json is --emit json, and another form is asked for; leave one of them out"),
    };
    let options = [
        (
            "--full",
            arguments.full,
            matches!(emit, Emit::Text | Emit::Stablehlo | Emit::Html),
            "text, stablehlo and html",
        ),
        ("--depth", arguments.depth.is_some(), matches!(emit, Emit::Dot | Emit::Svg), "dot and svg"),
        (
            "--computation",
            arguments.computation.is_some(),
            !matches!(emit, Emit::Proto | Emit::Stablehlo | Emit::Artifact | Emit::Graph),
            "text, html, json, dot and svg",
        ),
        ("--artifact-version", arguments.artifact_version.is_some(), emit == Emit::Artifact, "artifact"),
    ];
    for (option, is_given, applies, forms) in options {
        if is_given && !applies {
            bail!("{option} is for --emit {forms}");
        }
    }
    Ok(emit)
}

pub fn text(loaded: &Loaded, full: bool) -> String {
    let options = if full { TextOptions::parseable() } else { TextOptions::canonical() };
    let module = HloModuleProtoWithConfig { hlo_module: Some(loaded.module.clone()), config: loaded.config.clone() };
    print_with_config(&module, &options)
}

pub fn stablehlo(loaded: &Loaded, full: bool) -> Result<String> {
    Ok(stablehlo::write(&loaded.module, &write_options(loaded, full))?)
}

pub fn artifact(loaded: &Loaded, version: Option<ArtifactVersion>) -> Result<Vec<u8>> {
    Ok(stablehlo::write_artifact(&loaded.module, &write_options(loaded, true), version)?)
}

fn write_options(loaded: &Loaded, metadata: bool) -> WriteOptions {
    let Devices { replicas, partitions } = device_count(&loaded.module, loaded.config.as_ref());
    WriteOptions { partitions, replicas, metadata }
}

/// Returns the text of one computation, if one is asked for: an empty line separates the texts of computations.
fn one_computation(text: String, arguments: &Show) -> Result<String> {
    let Some(name) = &arguments.computation else { return Ok(text) };
    let name = name.trim_start_matches('%');
    let called = |block: &str| {
        let line = block.trim_start().trim_start_matches("ENTRY ").trim_start_matches('%');
        line.split([' ', '(']).next().unwrap_or_default().to_owned()
    };
    let blocks: Vec<&str> = text.split("\n\n").filter(|block| block.contains('{')).collect();
    let found = blocks.iter().skip(1).chain(blocks.first()).find(|block| called(block) == name);
    found
        .map(|block| format!("{}\n", block.trim()))
        .ok_or_else(|| no_computation(name, blocks.iter().map(|block| called(block))))
}

pub fn no_computation(name: &str, names: impl Iterator<Item = String>) -> anyhow::Error {
    const SHOWN: usize = 20;
    let names: Vec<String> = names.filter(|name| !name.is_empty() && name != "HloModule").collect();
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    let near = did_you_mean(name, names.iter().map(String::as_str));
    anyhow!("there is no computation \"{name}\"{near}; there are {}{more}", names[..names.len().min(SHOWN)].join(", "))
}

fn graph(loaded: &Loaded) -> Result<String> {
    let Some(run) = &loaded.run else { bail!("--emit graph is for run configs: HLO has no meshloom graph") };
    if loaded.stage == Some(Stage::Compiled) {
        bail!("what a plugin compiled has no meshloom graph; take --stage partitioned");
    }
    Ok(run.graph_text())
}

fn kernels(loaded: &Loaded, file: Option<&Path>, json: bool) -> Result<()> {
    let Some(run) = &loaded.run else { bail!("--kernels is for run configs: in HLO an op is what computes it") };
    if !matches!(loaded.stage, Some(Stage::Partitioned | Stage::Compiled)) {
        bail!("kernels are chosen for the program of one device; take --stage partitioned");
    }
    let Said { json: kernels, lines } = run.kernels()?;
    if json {
        let answer = Kernels { kernels };
        return match file {
            None => output::json("hlo-dump/show", &loaded.found(&answer)),
            Some(_) => write_text(file, &serde_json::to_string_pretty(&loaded.found(&answer))?),
        };
    }
    let none = "the program has no op with several implementations".to_owned();
    write_text(file, &(if lines.is_empty() { none } else { lines.join("\n") } + "\n"))
}

fn write_text(file: Option<&Path>, text: &str) -> Result<()> {
    match file {
        Some(path) => output::write(path, shown(text).as_bytes()),
        None => output::text(text),
    }
}

fn write(file: Option<&Path>, bytes: &[u8]) -> Result<()> {
    match file {
        Some(path) => output::write(path, bytes),
        None => output::bytes_as_they_are(bytes),
    }
}

#[derive(JsonSchema, Serialize)]
pub struct Kernels {
    /// The implementation of each op of a run config that has several: what `--kernels` asks for.
    #[schemars(with = "Vec<Kernel>")]
    kernels: serde_json::Value,
}

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The name of the computation that runs first.
    entry: &'a str,
    /// All computations, or the one that was asked for.
    computations: Vec<ComputationAnswer<'a>>,
}

/// A computation of a module.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Computation")]
struct ComputationAnswer<'a> {
    /// Its name.
    name: &'a str,
    /// The number of its executions in all; 0 for a reducer or comparator.
    executions: Amount,
    /// Its instructions, operands before their users.
    instructions: Vec<InstructionAnswer<'a>>,
}

/// An instruction.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Instruction")]
struct InstructionAnswer<'a> {
    /// Its name.
    name: &'a str,
    /// Its opcode.
    opcode: &'a str,
    /// The type of its result, as HLO text has it.
    shape: String,
    /// The names of its operands; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operands: Vec<&'a str>,
    /// The names of the computations that it calls; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<&'a str>,
    /// The scopes and the op of its metadata; left out if there are none.
    #[serde(skip_serializing_if = "str::is_empty")]
    op_name: &'a str,
    /// The source line as `file:line`; left out if the module does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// True for the result of the computation; else left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    root: bool,
}

fn described<'a>(loaded: &'a Loaded, arguments: &Show) -> Result<Answer<'a>> {
    let module = &loaded.module;
    let walk = Walk::of(module);
    let mut executions: BTreeMap<i64, Amount> = BTreeMap::new();
    for place in walk.places() {
        let sum = executions.entry(place.computation.id).or_insert(Amount::Exactly(0));
        *sum = sum.plus(place.executions);
    }
    let names: BTreeMap<i64, &str> = module.computations.iter().map(|it| (it.id, it.name.as_str())).collect();
    let entry = names.get(&module.entry_computation_id).copied().unwrap_or(&module.entry_computation_name);
    let sources = Sources::of(module);
    let of = |computation| computation_answer(computation, &sources, &names, &executions);
    let Some(name) = arguments.computation.as_deref().map(|name| name.trim_start_matches('%')) else {
        return Ok(Answer { entry, computations: module.computations.iter().map(of).collect() });
    };
    let found: Vec<_> = module.computations.iter().filter(|computation| computation.name == name).map(of).collect();
    if found.is_empty() {
        return Err(no_computation(name, module.computations.iter().map(|it| it.name.clone())));
    }
    Ok(Answer { entry, computations: found })
}

fn computation_answer<'a>(
    computation: &'a HloComputationProto,
    sources: &Sources<'_>,
    computations: &BTreeMap<i64, &'a str>,
    executions: &BTreeMap<i64, Amount>,
) -> ComputationAnswer<'a> {
    let names: BTreeMap<i64, &str> = computation.instructions.iter().map(|it| (it.id, it.name.as_str())).collect();
    let instruction = |instruction: &'a HloInstructionProto| InstructionAnswer {
        name: &instruction.name,
        opcode: &instruction.opcode,
        shape: instruction.shape.as_ref().map(|shape| print_shape(shape, Layouts::All)).unwrap_or_default(),
        operands: instruction.operand_ids.iter().filter_map(|id| names.get(id).copied()).collect(),
        calls: instruction.called_computation_ids.iter().filter_map(|id| computations.get(id).copied()).collect(),
        op_name: instruction.metadata.as_deref().map_or("", |metadata| &metadata.op_name),
        source: sources.line(instruction).map(|line| line.to_string()),
        root: instruction.id == computation.root_id,
    };
    ComputationAnswer {
        name: &computation.name,
        executions: executions.get(&computation.id).copied().unwrap_or(Amount::Exactly(0)),
        instructions: computation.instructions.iter().map(instruction).collect(),
    }
}
