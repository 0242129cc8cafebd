//! Running a program in a worker: one that may end its process, or never return.

use super::super::array::{Array, ArraySpec};
use super::super::buffer::Buffer;
use super::super::client::Client;
use super::super::compiled::MemoryStats;
use super::super::error::PjrtError;
use super::super::executable::ExecuteOptions;
use super::super::layout::ShardLayout;
use super::super::options::CompileOptions;
use super::super::program::ProgramInfo;
use super::super::topology::Topology;
use super::protocol::{Answer, Given, SentLiteral, Task, WantedOutput};
use super::{Settings, run};
use meshloom_hlo::{ApiVersion, Literal};

/// A program and what it is run with.
#[derive(Clone, Debug)]
pub struct Execution<'a> {
    /// A serialized `HloModuleProto`.
    pub module: &'a [u8],
    /// How to compile it.
    pub options: &'a CompileOptions,
    /// Its arguments, each with where its parts lie.
    pub arguments: &'a [(Literal, ShardLayout)],
    /// The types of whole outputs and where their parts lie. Without, each device's part counts as an output of its
    /// own, those of the first device first.
    pub outputs: Option<&'a [ArraySpec]>,
    /// Whether it is compiled and not run.
    pub compile_only: bool,
}

/// The result of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    /// The outputs.
    pub outputs: Vec<Literal>,
    /// The program's use of a device's memory, if the plugin reports it.
    pub memory: Option<MemoryStats>,
    /// The plugin's version of the PJRT API.
    pub api_version: ApiVersion,
}

/// Compiles and runs a program on virtual devices of the CPU, in a worker: whatever happens to it, this process goes
/// on. The worker's time limit is for both.
///
/// # Errors
/// As for [`compile`](super::compile); [`PjrtError::InvalidOption`] for a topology that is not a CPU's, whose hardware
/// need not be there.
pub fn execute(topology: &Topology, execution: &Execution<'_>, settings: &Settings) -> Result<Executed, PjrtError> {
    if topology.cpu_count().is_none() {
        return Err(PjrtError::option("topology", topology, "cpu:N, the devices that every machine has"));
    }
    let Execution { module, options, arguments, outputs, compile_only } = execution;
    options.check()?;
    let info = ProgramInfo::read(module, options.num_partitions > 1)?;
    options.check_propagation(&info)?;
    let action = format!("running \"{}\" on {topology}", info.name);
    let task = Task::Execute {
        module: module.to_vec(),
        options: (*options).clone(),
        arguments: arguments.iter().map(|(literal, layout)| Given::of(literal, layout)).collect(),
        outputs: outputs.map(|specs| specs.iter().map(WantedOutput::of).collect()),
        compile_only: *compile_only,
    };
    let answered = run(topology, action, task, settings, |answer| match answer {
        Answer::Executed { outputs, memory, api_version } => Some((outputs, memory, api_version)),
        _ => None,
    });
    let (outputs, memory, api_version) = answered?;
    let outputs = outputs.into_iter().map(SentLiteral::literal).collect::<Result<_, _>>()?;
    Ok(Executed { outputs, memory, api_version })
}

/// Compiles and runs a program in the worker.
pub(in super::super) fn work(
    client: &Client,
    (module, options): (&[u8], &CompileOptions),
    arguments: Vec<Given>,
    wanted: Option<Vec<WantedOutput>>,
    compile_only: bool,
) -> Result<Answer, PjrtError> {
    let executable = client.compile(module, options)?;
    let api_version = client.plugin().api_version();
    let memory = executable.memory_stats().ok();
    if compile_only {
        return Ok(Answer::Executed { outputs: Vec::new(), memory, api_version });
    }
    let mut arrays = Vec::with_capacity(arguments.len());
    for given in arguments {
        let (literal, layout) = given.argument()?;
        arrays.push(Array::put_on(client, &literal, &layout, executable.devices())?);
    }
    let outputs = match wanted {
        Some(wanted) => {
            let specs = wanted.into_iter().map(WantedOutput::spec).collect::<Result<Vec<_>, _>>()?;
            let arrays: Vec<&Array> = arrays.iter().collect();
            let results = executable.run(&arrays, &specs)?;
            results.iter().map(|array| Ok(SentLiteral::of(&array.get()?))).collect::<Result<_, PjrtError>>()?
        }
        None => {
            let of_device = |device: usize| -> Vec<Buffer> {
                arrays.iter().filter_map(|array| array.shards().get(device).cloned()).collect()
            };
            let lists: Vec<Vec<Buffer>> = (0..executable.devices().len()).map(of_device).collect();
            let results = executable.execute(&lists, &ExecuteOptions::default())?;
            let parts = results.iter().flatten().map(|buffer| Ok(SentLiteral::of(&buffer.to_literal()?)));
            parts.collect::<Result<_, PjrtError>>()?
        }
    };
    Ok(Answer::Executed { outputs, memory, api_version })
}
