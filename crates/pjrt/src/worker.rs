//! The other side of [`ahead_of_time`](super::ahead_of_time): what a worker does.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, process};

use super::ahead_of_time::protocol::{
    ANSWER, Answer, FOLDER_VARIABLE, REQUEST, Reported, Request, STARTED, Said, Task, read, write,
};
use super::ahead_of_time::{child, execution};
use super::client::{Client, ClientOptions};
use super::compiled::Compiled;
use super::device::DeviceDescription;
use super::error::PjrtError;
use super::options::CompileOptions;
use super::plugin::Plugin;
use super::program::Language;
use super::topology::{Topology, TopologyDescription};

/// Makes a program able to be its own worker: call it first in `main`.
///
/// In an ordinary run it only notes that it was called. In a process started by
/// [`ahead_of_time`](super::ahead_of_time), recognized by an environment variable, it does the work and ends the
/// process.
pub fn run_if_asked() {
    match env::var_os(FOLDER_VARIABLE) {
        None => child::note_that_this_program_can_be_asked(),
        Some(folder) => process::exit(work(Path::new(&folder))),
    }
}

/// Answers the request of a folder; returns the exit status. Errors in here have nowhere to go but the log.
fn work(folder: &Path) -> i32 {
    let request: Request = match read(folder, REQUEST) {
        Ok(request) => request,
        Err(reason) => return complain(&format!("the request cannot be read: {reason}")),
    };
    // If the parent dies, nothing else would end this process. The thread that has started it waits for it.
    if let Err(error) = meshloom_process::end_with(request.parent) {
        return complain(&format!("it is not the child of process {} any more: {error}", request.parent));
    }
    if let Err(error) = fs::write(folder.join(STARTED), "") {
        return complain(&format!("cannot write to {}: {error}", folder.display()));
    }
    let answer = answer(request).unwrap_or_else(|error| Answer::Failed(error.into()));
    match write(folder, ANSWER, &answer) {
        Ok(()) => 0,
        Err(reason) => complain(&format!("the answer cannot be written: {reason}")),
    }
}

fn complain(message: &str) -> i32 {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "meshloom worker: {message}");
    1
}

fn answer(request: Request) -> Result<Answer, PjrtError> {
    let plugin = Plugin::load(&request.plugin)?;
    let target = Target::new(&plugin, &request)?;
    match request.task {
        Task::Describe => Ok(Answer::Described(target.devices()?, plugin.api_version())),
        Task::Execute { module, options, arguments, outputs, compile_only } => match &target {
            Target::Client(client) => execution::work(client, (&module, &options), arguments, outputs, compile_only),
            Target::Topology(_) => {
                Err(PjrtError::option("topology", &request.topology, "cpu:N, the devices that every machine has"))
            }
        },
        Task::Compile { module, options } => {
            let ids: Vec<i32> = target.devices()?.iter().map(|device| device.id).collect();
            let device_assignment = options.assignment(&ids, &request.topology)?;
            target.compile(&module, &options, device_assignment)
        }
    }
}

/// The target of the compilation.
enum Target {
    Topology(TopologyDescription),
    /// The CPU plugins know no topologies, but their hardware is always there.
    Client(Client),
}

impl Target {
    fn new(plugin: &Arc<Plugin>, request: &Request) -> Result<Target, PjrtError> {
        let topology = Topology::parse(&request.topology)?;
        match topology.cpu_count() {
            None => Ok(Target::Topology(TopologyDescription::new(plugin, &topology)?)),
            count => Ok(Target::Client(Client::new(
                plugin,
                &ClientOptions { device_count: count, ..ClientOptions::default() },
            )?)),
        }
    }

    fn devices(&self) -> Result<Vec<DeviceDescription>, PjrtError> {
        match self {
            Target::Topology(topology) => topology.devices(),
            Target::Client(client) => {
                Ok(client.devices().iter().map(|device| DeviceDescription::clone(device)).collect())
            }
        }
    }

    fn compile(
        &self,
        module: &[u8],
        options: &CompileOptions,
        device_assignment: Vec<Vec<i32>>,
    ) -> Result<Answer, PjrtError> {
        let start = Instant::now();
        let answer = |compiled: &Compiled| {
            let compile_time = start.elapsed();
            let said = Said {
                memory_stats: compiled.memory_stats().map_err(Reported::from),
                cost_analysis: compiled.cost_analysis().map_err(Reported::from),
                optimized: compiled.optimized_hlo().map_err(Reported::from),
                serialized: compiled.serialize().map_err(Reported::from),
            };
            Answer::Compiled { device_assignment: device_assignment.clone(), compile_time, said: Box::new(said) }
        };
        match self {
            Target::Topology(topology) => {
                Ok(answer(&topology.compile(module, &Language::of(options), &options.encode(&device_assignment))?))
            }
            Target::Client(client) => Ok(answer(client.compile(module, options)?.compiled())),
        }
    }
}
