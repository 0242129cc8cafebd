//! Tries: each runs a program in a child process.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use meshloom::hlo::Literal;
use meshloom::pjrt::ahead_of_time::{self, Executed, Execution, Settings, WorkerFailure};
use meshloom::pjrt::{CompileOptions, DebugValue, FindOptions, PjrtError, Plugin, ShardLayout, Topology, Wheel};
use prost::Message;

use super::inputs::Inputs;
use super::program::Program;

/// XLA's settings by name.
pub(super) type DebugOptions = BTreeMap<String, DebugValue>;

/// The run beside a suspect: the same program with other settings, or another program.
#[derive(Clone, Debug)]
pub(super) enum Beside {
    Settings(DebugOptions),
    Module(Box<Program>, DebugOptions),
}

/// A plugin that programs are tried on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The wheel's name, or the file's.
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Candidate {
    /// The plugin that the user means by the name of a wheel or a path; else the one that is found first.
    pub(super) fn chosen(plugin: Option<&str>) -> Result<Candidate> {
        let Some(name) = plugin else {
            let path = Plugin::locate("cpu", &FindOptions::default())?;
            let known = Candidate::installed().into_iter().find(|it| it.path == path);
            return Ok(known.unwrap_or_else(|| Candidate { name: path.display().to_string(), path }));
        };
        let is_file = Path::new(name).is_file();
        let (path, wheel) = if is_file { (Some(name.into()), None) } else { (None, Some(name.to_owned())) };
        let path = Plugin::locate("cpu", &FindOptions { path, wheel, ..FindOptions::default() })?;
        Ok(Candidate { name: name.to_owned(), path })
    }

    /// Returns the known wheels that are installed here.
    pub(super) fn installed() -> Vec<Candidate> {
        let here = |wheel: &'static Wheel| {
            let wheel = Some(wheel.name().to_owned());
            let options = FindOptions { wheel: wheel.clone(), allow_fetch: false, ..FindOptions::default() };
            Some(Candidate { name: wheel?, path: Plugin::locate("cpu", &options).ok()? })
        };
        Wheel::of_platform("cpu").filter_map(here).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Done(Executed),
    Died {
        signal: i32,
        said: Option<String>,
    },
    TimedOut,
    /// The program could not be run as asked.
    Refused(String),
}

/// Runs programs, each combination of program, settings and plugin once.
pub(super) struct Runner {
    pub(super) inputs: Inputs,
    pub(super) time_limit: Duration,
    pub(super) worker: Option<PathBuf>,
    pub(super) compile_only: bool,
    /// Child processes that were started.
    pub(super) tries: usize,
    known: HashMap<u64, Outcome>,
}

impl Runner {
    pub(super) fn new(inputs: Inputs, time_limit: Duration, worker: Option<PathBuf>) -> Runner {
        Runner { inputs, time_limit, worker, compile_only: false, tries: 0, known: HashMap::new() }
    }

    pub(super) fn arguments(&self, program: &Program) -> Result<Vec<(String, Literal, ShardLayout)>> {
        let ports = program.inputs()?;
        Ok(ports.into_iter().map(|it| (it.name.clone(), self.inputs.value(&it.name, &it.ty), it.layout)).collect())
    }

    /// # Errors
    /// No child process can be started. An error of the program is an outcome instead.
    pub(super) fn run(&mut self, program: &Program, options: &DebugOptions, plugin: &Candidate) -> Result<Outcome> {
        let module = program.module.encode_to_vec();
        let arguments = match self.arguments(program) {
            Ok(arguments) => arguments,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let mut hasher = DefaultHasher::new();
        (&module, format!("{options:?}"), &plugin.path, program.joins_outputs, self.compile_only).hash(&mut hasher);
        arguments.iter().for_each(|(_, literal, _)| literal.bytes().hash(&mut hasher));
        let key = hasher.finish();
        if let Some(outcome) = self.known.get(&key) {
            return Ok(outcome.clone());
        }
        let outcome = self.execute(program, &module, &arguments, options, plugin)?;
        if let Outcome::Refused(reason) = &outcome {
            tracing::debug!(program = program.module.name, reason, "a try is refused");
        }
        self.known.insert(key, outcome.clone());
        Ok(outcome)
    }

    fn execute(
        &mut self,
        program: &Program,
        module: &[u8],
        arguments: &[(String, Literal, ShardLayout)],
        options: &DebugOptions,
        plugin: &Candidate,
    ) -> Result<Outcome> {
        let outputs = match program.outputs() {
            Ok(outputs) => outputs,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let arguments: Vec<(Literal, ShardLayout)> =
            arguments.iter().map(|(_, literal, layout)| (literal.clone(), layout.clone())).collect();
        let options = CompileOptions {
            num_replicas: program.replicas,
            debug_options: options.clone(),
            ..CompileOptions::partitioned(program.partitions).with_shardy(program.shardy)
        };
        let execution = Execution {
            module,
            options: &options,
            arguments: &arguments,
            outputs: outputs.as_deref(),
            compile_only: self.compile_only,
        };
        let settings = Settings {
            time_limit: self.time_limit,
            find: FindOptions { path: Some(plugin.path.clone()), ..FindOptions::default() },
            worker: self.worker.clone(),
            // The settings of this variable are among the options; each may be left out.
            without_variables: vec!["XLA_FLAGS".to_owned()],
        };
        let topology = Topology::parse(&format!("cpu:{}", program.device_count()))?;
        self.tries += 1;
        let failure = match ahead_of_time::execute(&topology, &execution, &settings) {
            Ok(done) => return Ok(Outcome::Done(done)),
            Err(PjrtError::Worker { failure, .. }) => failure,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        Ok(match *failure {
            WorkerFailure::Refused(error) => Outcome::Refused(error.to_string()),
            WorkerFailure::Died { signal, log, .. } => Outcome::Died { signal, said: log.fatal },
            WorkerFailure::TimedOut { .. } => Outcome::TimedOut,
            WorkerFailure::NoAnswer { started: true, status, log } => {
                // A library that ends the process by itself: as bad as a signal.
                Outcome::Died { signal: status.unwrap_or(0), said: log.fatal }
            }
            failure => bail!("a child process cannot be used: {failure}"),
        })
    }
}
