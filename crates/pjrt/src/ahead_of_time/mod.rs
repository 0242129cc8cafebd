//! Compiles for hardware that is absent, in a child process with a time limit.
//!
//! A plugin may end its process over a program, or never return. So a worker, a child process, loads the plugin:
//! whatever happens to it, this process gets a [`CompiledAhead`] or an error that says what happened. The worker is
//! this program itself, if its `main` calls [`worker::run_if_asked`](super::worker::run_if_asked) first.
//!
//! ```no_run
//! use meshloom_pjrt::ahead_of_time::{self, Settings};
//! use meshloom_pjrt::{CompileOptions, Topology, worker};
//! # fn module() -> Vec<u8> { Vec::new() }
//!
//! fn main() -> Result<(), meshloom_pjrt::PjrtError> {
//!     worker::run_if_asked();
//!     let topology = Topology::parse("v5e:2x4")?;
//!     let settings = Settings::default();
//!     let devices = ahead_of_time::describe(&topology, &settings)?.devices;
//!     let options = CompileOptions::partitioned(devices.len());
//!     let compiled = ahead_of_time::compile(&topology, &module(), &options, &settings)?;
//!     println!("{:?}", compiled.memory_stats()?);
//!     Ok(())
//! }
//! ```

mod child;
mod failure;
pub(super) mod protocol;

use std::path::PathBuf;
use std::time::Duration;

pub use failure::{WorkerFailure, WorkerLog};

use self::protocol::{Answer, Compiled, Reported, Request, Task};
use super::compiled::{CostAnalysis, MemoryStats, OptimizedProgram};
use super::device::DeviceDescription;
use super::error::PjrtError;
use super::options::CompileOptions;
use super::plugin::Plugin;
use super::program::{self, ProgramInfo};
use super::search::FindOptions;
use super::topology::Topology;

/// How a worker is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long the worker may take; then it is killed. A large program may take XLA many minutes.
    pub time_limit: Duration,
    /// Where to look for the plugin of the topology's platform. It is found, and downloaded if need be, by this
    /// process.
    pub find: FindOptions,
    /// The worker's program, which calls [`worker::run_if_asked`](super::worker::run_if_asked) first. By default the
    /// one that the environment variable `MESHLOOM_WORKER` names, or else this program itself.
    pub worker: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { time_limit: Duration::from_secs(30 * 60), find: FindOptions::default(), worker: None }
    }
}

/// A topology as its plugin describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedTopology {
    /// Its devices, in the plugin's order, which is the order of the default device assignment.
    pub devices: Vec<DeviceDescription>,
    /// The plugin's version of the PJRT API, major and minor.
    pub api_version: (i32, i32),
}

/// A program compiled for absent hardware.
#[derive(Clone, Debug)]
pub struct CompiledAhead {
    /// The module's name.
    pub program: String,
    /// What it was compiled for.
    pub topology: Topology,
    /// Device ids by replica and partition.
    pub device_assignment: Vec<Vec<i32>>,
    /// How long the plugin took to compile it.
    pub compile_time: Duration,
    memory_stats: Result<MemoryStats, Reported>,
    cost_analysis: Result<CostAnalysis, Reported>,
    optimized: Result<OptimizedProgram, Reported>,
    serialized: Result<Vec<u8>, Reported>,
}

impl CompiledAhead {
    /// What it needs of each device's memory.
    ///
    /// # Errors
    /// [`PjrtError::Unimplemented`] when the plugin does not say; so have the next three.
    pub fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        self.memory_stats.clone().map_err(Reported::into_error)
    }

    /// XLA's estimate of what one execution costs on each device.
    pub fn cost_analysis(&self) -> Result<&CostAnalysis, PjrtError> {
        self.cost_analysis.as_ref().map_err(|reported| reported.clone().into_error())
    }

    /// The program after XLA's passes, partitioned and optimized.
    pub fn optimized_hlo(&self) -> Result<&OptimizedProgram, PjrtError> {
        self.optimized.as_ref().map_err(|reported| reported.clone().into_error())
    }

    /// The compiled program, for the same plugin on such hardware to load
    /// ([`Client::deserialize`](super::Client::deserialize)).
    pub fn serialized(&self) -> Result<&[u8], PjrtError> {
        self.serialized.as_deref().map_err(|reported| reported.clone().into_error())
    }
}

/// Asks the plugin for the devices of a topology.
///
/// # Errors
/// [`PjrtError::NotFound`] when there is no plugin; [`PjrtError::Worker`] when the plugin knows no such topology, or
/// the worker died, took too long or could not be started.
pub fn describe(topology: &Topology, settings: &Settings) -> Result<DescribedTopology, PjrtError> {
    let action = || format!("describing {topology}");
    match run(topology, action, Task::Describe, settings)? {
        Answer::Described(devices, api_version) => Ok(DescribedTopology { devices, api_version }),
        _ => Err(unexpected(action())),
    }
}

/// Compiles a serialized `HloModuleProto` for a topology. Without a device assignment in the options, partitions lie on
/// the topology's devices in their order.
///
/// # Errors
/// As for [`describe`]; and [`PjrtError::InvalidModule`] and [`PjrtError::InvalidOption`] for what is wrong before the
/// plugin sees it. [`WorkerFailure`] tells a plugin that refused the program from one that died over it.
pub fn compile(
    topology: &Topology,
    module: &[u8],
    options: &CompileOptions,
    settings: &Settings,
) -> Result<CompiledAhead, PjrtError> {
    options.check()?;
    let info = ProgramInfo::read(module, options.num_partitions > 1)?;
    options.check_propagation(&info)?;
    let action = || format!("compiling \"{}\" for {topology}", info.name);
    let module = program::for_platform(module, topology.platform()).into_owned();
    match run(topology, action, Task::Compile { module, options: options.clone() }, settings)? {
        Answer::Compiled(compiled) => {
            let Compiled { device_assignment, seconds, memory_stats, cost_analysis, optimized, serialized } = *compiled;
            Ok(CompiledAhead {
                program: info.name,
                topology: topology.clone(),
                device_assignment,
                compile_time: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
                memory_stats,
                cost_analysis,
                optimized,
                serialized,
            })
        }
        _ => Err(unexpected(action())),
    }
}

fn run(topology: &Topology, action: impl Fn() -> String, task: Task, settings: &Settings) -> Result<Answer, PjrtError> {
    let plugin = Plugin::locate(topology.platform(), &settings.find)?;
    let request = Request { parent: std::process::id(), plugin: plugin.clone(), topology: topology.to_string(), task };
    let failed = |failure| PjrtError::Worker { action: action(), plugin, failure: Box::new(failure) };
    match child::run(&request, settings) {
        Ok(Answer::Failed(reported)) => Err(failed(WorkerFailure::Refused(reported.into_error()))),
        Ok(answer) => Ok(answer),
        Err(failure) => Err(failed(failure)),
    }
}

/// An answer to another question than was asked.
fn unexpected(action: String) -> PjrtError {
    let reason = "it answers another question than was asked".into();
    PjrtError::Worker { action, plugin: PathBuf::new(), failure: Box::new(WorkerFailure::WrongAnswer { reason }) }
}
