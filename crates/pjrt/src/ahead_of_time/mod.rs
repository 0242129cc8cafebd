//! Compiles for hardware that is absent, in a child process with a time limit. [`execute`] runs programs in one, on
//! virtual devices of the CPU.
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

pub(super) mod child;
pub(super) mod execution;
pub(super) mod protocol;

use std::path::PathBuf;
use std::time::Duration;

pub use super::error::{WorkerFailure, WorkerLog};
pub use execution::{Executed, Execution, execute};

use self::protocol::{Answer, Request, Said, Task};
use super::compiled::{CostAnalysis, MemoryStats, OptimizedProgram};
use super::device::DeviceDescription;
use super::error::PjrtError;
use super::options::CompileOptions;
use super::platform::Platform;
use super::plugin::Plugin;
use super::program::{self, ProgramInfo};
use super::search::FindOptions;
use super::topology::Topology;
use meshloom_hlo::ApiVersion;

/// The settings of a worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time that the worker may take; then it is killed. A large program may take XLA many minutes.
    pub time_limit: Duration,
    /// Where to look for the plugin of the topology's platform. It is found, and downloaded if need be, by this
    /// process.
    pub find: FindOptions,
    /// The worker's program, which calls [`worker::run_if_asked`](super::worker::run_if_asked) first. By default the
    /// one that the environment variable `MESHLOOM_WORKER` names, or else this program itself.
    pub worker: Option<PathBuf>,
    /// Environment variables that the worker does not get, such as `XLA_FLAGS`.
    pub without_variables: Vec<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            time_limit: Duration::from_secs(30 * 60),
            find: FindOptions::default(),
            worker: None,
            without_variables: Vec::new(),
        }
    }
}

/// A topology as its plugin describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedTopology {
    /// Its devices, in the plugin's order, which is the order of the default device assignment.
    pub devices: Vec<DeviceDescription>,
    /// The platform that programs for this topology are compiled for.
    pub platform: Platform,
    /// The plugin's version of the PJRT API, major and minor.
    pub api_version: ApiVersion,
}

/// A program compiled for absent hardware.
#[derive(Clone, Debug)]
pub struct CompiledAhead {
    /// The module's name.
    pub program: String,
    /// The topology that it was compiled for.
    pub topology: Topology,
    /// Device ids by replica and partition.
    pub device_assignment: Vec<Vec<i32>>,
    /// The time that the plugin took to compile it.
    pub compile_time: Duration,
    said: Box<Said>,
}

impl CompiledAhead {
    /// The program's use of each device's memory.
    ///
    /// # Errors
    /// [`PjrtError::Unimplemented`] when the plugin does not report it. The next three methods have the same error.
    pub fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        Ok(self.said.memory_stats.clone()?)
    }

    /// XLA's estimate of what one execution costs on each device.
    pub fn cost_analysis(&self) -> Result<&CostAnalysis, PjrtError> {
        Ok(self.said.cost_analysis.as_ref().map_err(Clone::clone)?)
    }

    /// The program after XLA's passes, partitioned and optimized.
    pub fn optimized_hlo(&self) -> Result<&OptimizedProgram, PjrtError> {
        Ok(self.said.optimized.as_ref().map_err(Clone::clone)?)
    }

    /// The compiled program, for the same plugin on such hardware to load
    /// ([`Client::deserialize`](super::Client::deserialize)).
    pub fn serialized(&self) -> Result<&[u8], PjrtError> {
        Ok(self.said.serialized.as_ref().map_err(Clone::clone)?)
    }
}

/// Asks the plugin for the devices of a topology.
///
/// # Errors
/// [`PjrtError::NotFound`] when there is no plugin; [`PjrtError::Worker`] when the plugin knows no such topology, or
/// the worker died, took too long or could not be started.
pub fn describe(topology: &Topology, settings: &Settings) -> Result<DescribedTopology, PjrtError> {
    run(topology, format!("describing {topology}"), Task::Describe, settings, |answer| match answer {
        Answer::Described(devices, api_version) => {
            let platform = Platform::new(topology.platform(), api_version, &devices);
            Some(DescribedTopology { devices, platform, api_version })
        }
        _ => None,
    })
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
    let action = format!("compiling \"{}\" for {topology}", info.name);
    let module = program::for_platform(module, &Platform::of_any_plugin(topology.platform())).into_owned();
    let task = Task::Compile { module, options: options.clone() };
    run(topology, action, task, settings, |answer| match answer {
        Answer::Compiled { device_assignment, compile_time, said } => {
            let (program, topology) = (info.name, topology.clone());
            Some(CompiledAhead { program, topology, device_assignment, compile_time, said })
        }
        _ => None,
    })
}

/// Has a worker do a task. `expected` takes the answers to it, and no others.
fn run<R>(
    topology: &Topology,
    action: String,
    task: Task,
    settings: &Settings,
    expected: impl FnOnce(Answer) -> Option<R>,
) -> Result<R, PjrtError> {
    let plugin = Plugin::locate(topology.platform().name(), &settings.find)?;
    let request = Request { parent: std::process::id(), plugin: plugin.clone(), topology: topology.to_string(), task };
    let failure = match child::run(&request, settings) {
        Ok(Answer::Failed(reported)) => WorkerFailure::Refused(reported.into()),
        Ok(answer) => match expected(answer) {
            Some(result) => return Ok(result),
            None => WorkerFailure::WrongAnswer { reason: "it answers another question than was asked".into() },
        },
        Err(failure) => failure,
    };
    Err(PjrtError::Worker { action, plugin, failure: Box::new(failure) })
}
