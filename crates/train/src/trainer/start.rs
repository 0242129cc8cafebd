//! How a trainer starts: it lowers and compiles the programs of a run, then makes the state before the first step.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::Trainer;
use super::evaluate::Evaluator;
use super::slow_steps::SlowStepWatch;
use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::data::hex;
use crate::error::{Error, Execution, SyncError};
use crate::peers::{Peers, ReplicaLink};
use crate::published::with_parameters;
use crate::replica::{LoweredReplica, Replica};
use crate::run::{Calls, Dataset, Model, Run, RunStateOf, RunStep, execute, laid_out_for};
use meshloom::compile::{Lowered, Program};
use meshloom::pjrt::{Array, CacheUse, Client, CompileCache, CompileOptions, DebugValue, Platform};
use meshloom::trace::{Key, MapTree};

impl<M: Model, D: Dataset<M>> Trainer<M, D> {
    /// As [`Trainer::of`], or with the state of a checkpoint.
    pub(super) fn start(
        run: Run<M>,
        data: D,
        client: &Client,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Trainer<M, D>, Error> {
        let config = run.config();
        config.check_runnable()?;
        // Before anything is compiled.
        let model_files = config.model_files()?;
        let init = checkpoint.is_none().then(|| config.initial_parameters()).transpose()?.flatten();
        let declared = run.model().parameters();
        let init = init.as_ref().map(|init| init.source(config, &declared)).transpose()?;
        let model_files = match &init {
            Some(source) => source.with_dtypes(model_files),
            None => model_files,
        };
        let has_validation = data.validation(0..1)?.is_some();
        config.check_evaluation(has_validation)?;
        let start = Instant::now();
        let lowered = LoweredPrograms::of(&run, client.platform(), has_validation)?;
        let lower_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut compiler = Compiler::new(config, client, run.peers.as_deref())?;
        compiler.agree("the run config", &[config.shared().to_toml().as_bytes()])?;
        compiler.agree("the text", &[format!("{:?}", data.digests()).as_bytes()])?;
        let programs = lowered.compile(&run, &mut compiler)?;
        let beginning = match checkpoint {
            None => FirstState::Program(compiler.compile(&run.lower_first_state(client.platform())?)?),
            Some(checkpoint) => FirstState::Checkpoint(checkpoint),
        };
        let compile_seconds = start.elapsed().as_secs_f64();
        let state = beginning.state(&run, &programs.step, client)?;
        let state = match &init {
            Some(source) => with_parameters(&state, source, client)?,
            None => state,
        };
        let warnings = config.warnings_with(has_validation).into_iter().chain(data.warnings());
        let warnings = warnings.chain(lowered.step.warnings()).collect();
        let compile_cache = compiler.cache_use;
        let Programs { step, several, evaluator, replica } = programs;
        Ok(Trainer {
            run,
            program: step,
            several,
            state,
            data: Arc::new(data),
            prefetch: None,
            evaluator,
            replica,
            steps_done: 0,
            skipped_steps: 0,
            bad_row: None,
            evaluation: Cell::new(None),
            warnings,
            model_files,
            watch: SlowStepWatch::default(),
            lower_seconds,
            compile_seconds,
            compile_cache,
        })
    }
}

/// The programs of a run before they are compiled.
struct LoweredPrograms {
    /// A call of one step.
    step: Lowered,
    /// A call of several, and how many.
    several: Option<(usize, Lowered)>,
    /// The forward pass over so many rows of a validation set.
    evaluation: Option<(usize, Lowered)>,
    /// The programs of a replica apart, and how it reaches the others.
    replica: Option<(Arc<dyn ReplicaLink>, LoweredReplica)>,
}

impl LoweredPrograms {
    fn of<M: Model>(run: &Run<M>, platform: &Platform, has_validation: bool) -> Result<LoweredPrograms, Error> {
        let (_, step) = run.lower(Calls::Single, platform)?;
        let several = match run.config().calls() {
            Calls::Single => None,
            Calls::Several(count) => Some((count, run.lower(Calls::Several(count), platform)?.1)),
        };
        let link = link_of(run)?;
        let replica = link.zip(LoweredReplica::of(run, platform)?);
        let evaluation = has_validation.then(|| run.lower_evaluation(platform)).transpose()?;
        Ok(LoweredPrograms { step, several, evaluation, replica })
    }

    fn compile<M: Model>(&self, run: &Run<M>, compiler: &mut Compiler<'_>) -> Result<Programs, Error> {
        let step = compiler.compile(&self.step)?;
        let several = match &self.several {
            Some((count, lowered)) => Some((*count, compiler.compile(lowered)?)),
            None => None,
        };
        let evaluator = match &self.evaluation {
            Some((rows, lowered)) => Some(Evaluator::new(*rows, compiler.compile(lowered)?)),
            None => None,
        };
        let replica = match (&self.replica, &run.step) {
            (Some((link, lowered)), RunStep::Diloco(step)) => {
                let config = run.config();
                let max_norm =
                    config.diloco.as_ref().and_then(|diloco| diloco.apart.as_ref()).map_or(0.0, |apart| apart.max_norm);
                let (others, limits) = ((link.clone(), step.diloco.clone()), (config.train.time_limit, max_norm));
                Some(Replica::compile(lowered, others, limits, |lowered| compiler.compile(lowered))?)
            }
            _ => None,
        };
        Ok(Programs { step, several, evaluator, replica })
    }
}

/// Returns the link of a run to the replicas that it is apart from; `None` for other runs.
fn link_of<M: Model>(run: &Run<M>) -> Result<Option<Arc<dyn ReplicaLink>>, SyncError> {
    match (&run.link, run.config().is_apart()) {
        (None, true) => Err(SyncError::Alone),
        (Some(_), true) if run.peers.is_some() && run.config().checkpoint.dir.is_empty() => Err(SyncError::NoFolder),
        (link, is_apart) => Ok(link.clone().filter(|_| is_apart)),
    }
}

/// The compiled programs of a run.
struct Programs {
    step: Program,
    several: Option<(usize, Program)>,
    evaluator: Option<Evaluator>,
    replica: Option<Replica>,
}

/// Compiles the programs of a run one after the other, each on all of its processes.
struct Compiler<'a> {
    config: &'a RunConfig,
    client: &'a Client,
    peers: Option<&'a dyn Peers>,
    debug_options: BTreeMap<String, DebugValue>,
    cache: Option<CompileCache>,
    /// A hit if the cache had all programs so far.
    cache_use: Option<CacheUse>,
    /// The number of programs so far.
    count: usize,
}

impl<'a> Compiler<'a> {
    fn new(config: &'a RunConfig, client: &'a Client, peers: Option<&'a dyn Peers>) -> Result<Compiler<'a>, Error> {
        let debug_options = config.compiler_options(client.platform())?;
        let cache = config.compile_cache()?;
        let cache_use = cache.as_ref().map(|_| CacheUse::Hit);
        Ok(Compiler { config, client, peers, debug_options, cache, cache_use, count: 0 })
    }

    /// Checks that the processes of a run have the same before they begin: a program that differs would wait for
    /// messages that never come.
    fn agree(&self, what: &str, parts: &[&[u8]]) -> Result<(), Error> {
        let Some(peers) = self.peers else { return Ok(()) };
        let mut digest = Sha256::new();
        parts.iter().for_each(|part| digest.update(part));
        let advice = "start all processes with the same files, options and version of meshloom";
        Ok(peers.agree(&format!("the SHA-256 of {what}"), &hex(&digest.finalize()), advice)?)
    }

    fn compile(&mut self, lowered: &Lowered) -> Result<Program, Error> {
        let what = format!("program {} and its compiler options", self.count);
        self.agree(&what, &[&lowered.module.bytes, format!("{:?}", self.debug_options).as_bytes()])?;
        self.count += 1;
        let options = lowered.compile_options(self.client)?.with_format(self.config.target.format);
        let options = CompileOptions { debug_options: self.debug_options.clone(), ..options };
        let refused = |error| self.config.compile_error(error);
        let Some(cache) = &self.cache else { return lowered.compile_with(self.client, &options).map_err(refused) };
        let (program, found) = lowered.compile_cached(self.client, &options, cache).map_err(refused)?;
        // The programs of one run are for the same devices, so all bypass the cache or none does.
        if found != CacheUse::Hit {
            self.cache_use = Some(found);
        }
        Ok(program)
    }
}

/// The source of a run's first state.
enum FirstState<'a> {
    /// A program, which draws it from the seed.
    Program(Program),
    /// A checkpoint.
    Checkpoint(&'a Checkpoint),
}

impl FirstState<'_> {
    /// The state, laid out as the step takes it.
    fn state<M: Model>(&self, run: &Run<M>, step: &Program, client: &Client) -> Result<RunStateOf<M, Array>, Error> {
        let (declared, train) = (run.state(), &run.config().train);
        let leaves = match self {
            FirstState::Program(first) => {
                let key = first.put(0, &Key::from_seed(train.seed))?;
                let drawn = execute(Execution::FirstState, first, &[&key.into_data()], train.time_limit)?;
                laid_out_for(step, drawn)?
            }
            FirstState::Checkpoint(checkpoint) => {
                checkpoint.load(&declared, step.inputs(), client, step.executable().devices())?
            }
        };
        Ok(declared.fill(leaves)?)
    }
}
