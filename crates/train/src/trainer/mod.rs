//! The trainer: a compiled train step, its state on the devices, and the loop around it.
//!
//! | file | |
//! |---|---|
//! | `mod` | [`Trainer`] and its steps |
//! | `start` | its programs, then its first state |
//! | `resume` | from a checkpoint, and to one |
//! | `evaluate` | the loss on a validation set |
//! | `prefetch`, `token_order` | batches, made ahead and with their tokens as the model wants them |
//! | `slow_steps` | steps that take much longer than those before |
//! | `find_nan` | the op that makes the first number which is not finite |

mod evaluate;
mod find_nan;
mod prefetch;
mod resume;
mod start;
pub(crate) mod token_order;
pub(crate) mod slow_steps;

pub use find_nan::{FirstNotFinite, Maker};
pub use slow_steps::SlowStep;

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::config::RunConfig;
use crate::data::{DataError, TextDataset};
use crate::error::{Error, Execution, NotFinite};
use crate::generate::{Generator, GeneratorOptions, LiveParameters};
use crate::published::{ParameterSource, with_parameters};
use crate::replica::{Giving, Replica};
use crate::report::{Evaluation, MemoryUse, StepMetrics, Summary};
use crate::run::{
    Calls, Dataset, Model, Run, RunStateOf, RunStep, Text, TrainStep, check_replicas, execute, is_busy_after,
};
use crate::tokenizer::Tokenizer;
use evaluate::Evaluator;
use meshloom::analysis::{Arithmetic, Chip};
use meshloom::compile::{LowerOptions, Program};
use meshloom::ir::{Graph, InternalError, Literal, TensorType};
use meshloom::pjrt::{Array, CacheUse, Client, CompileOptions};
use meshloom::trace::{MapTree, Param, Tree};
use meshloom_models::parameters::{self, LoadOptions, ParameterFile};
use meshloom_models::published::ModelFiles;
use meshloom_nn::DecoderConfig;
use prefetch::Prefetch;
use resume::form_of_replicas;
use slow_steps::SlowStepWatch;

/// A compiled train step, its state on the devices, and its data: of a decoder and text, unless another model is named.
pub struct Trainer<M: Model = DecoderConfig, D = Text> {
    run: Run<M>,
    program: Program,
    /// The program of several steps, and how many, if there is one.
    several: Option<(usize, Program)>,
    state: RunStateOf<M, Array>,
    data: Arc<D>,
    /// Started by the first step.
    prefetch: Option<Prefetch>,
    evaluator: Option<Evaluator>,
    /// Present where this is a replica that is apart from others.
    replica: Option<Replica>,
    steps_done: u64,
    /// The steps among them that changed nothing.
    skipped_steps: u64,
    /// The first of the last steps in a row that changed nothing, and how many they are.
    bad_row: Option<(StepMetrics, u64)>,
    /// The newest evaluation.
    evaluation: Cell<Option<Evaluation>>,
    warnings: Vec<String>,
    /// The files of the published model that its checkpoints keep.
    model_files: ModelFiles,
    watch: SlowStepWatch,
    lower_seconds: f64,
    compile_seconds: f64,
    compile_cache: Option<CacheUse>,
}

impl Trainer {
    /// Traces and compiles the train step, draws the first parameters, and reads the text.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together; the config is for a topology; the text cannot
    /// be read; or the plugin refuses the program.
    pub fn new(config: &RunConfig, client: &Client) -> Result<Trainer, Error> {
        config.check_runnable()?;
        let config = &config.on_client(client)?;
        Trainer::of(config.resolve()?, Text::load(config)?, client)
    }

    /// The training text.
    pub fn dataset(&self) -> &TextDataset {
        &self.data.dataset
    }

    /// Returns a summary of the run, to which steps are added. The peak performance is known for the devices in
    /// [`CHIPS`](meshloom::analysis::CHIPS). The memory is the present [`Trainer::memory_use`], which is worth reading
    /// again after the last step.
    pub fn summary(&self) -> Summary {
        let TrainStep { model, seq, .. } = self.run.step.of_replica();
        let tokens = self.run.config().rows_of_run() * seq;
        let client = self.program.executable().client();
        let chip = client.devices().first().and_then(|device| Chip::of_kind(&device.kind));
        let rate = chip.and_then(|chip| chip.matrix_rate(Arithmetic::of(model.compute_dtype)));
        let devices = self.run.mesh().device_count() as f64;
        let flops = model.flops_per_token(*seq) * tokens as f64;
        let mut summary = Summary::new(Some(flops), rate.map(|rate| rate * devices));
        (summary.lower_seconds, summary.compile_seconds) = (self.lower_seconds, self.compile_seconds);
        summary.memory = self.memory_use();
        summary
    }

    /// The tokenizer of the text.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.data.tokenizer
    }

    /// A generator with the present parameters, on one device.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn generator(&self, options: GeneratorOptions) -> Result<Generator, Error> {
        let (client, model) = (self.program.executable().client(), self.run.model());
        let live = LiveParameters::new(self.state.params(), &model.parameters());
        let config = self.run.config();
        let (format, time_limit) = (config.target.format, config.train.time_limit);
        let options = GeneratorOptions { format, time_limit, ..options };
        let lowering = LowerOptions::default().on(client.platform());
        Generator::new(client, &model.on_one_device(), &lowering, options, |path, dims, shard| {
            live.read(path, dims, shard)
        })
    }
}

impl<M: Model, D: Dataset<M>> Trainer<M, D> {
    /// Traces and compiles the train step of a run, and draws the first parameters.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together; or the plugin refuses the program.
    pub fn of(run: Run<M>, data: D, client: &Client) -> Result<Trainer<M, D>, Error> {
        let mut trainer = Trainer::start(run, data, client, None)?;
        trainer.begin()?;
        Ok(trainer)
    }

    /// Begins with the other replicas, if they are apart; with their outer state, if they have done more steps.
    fn begin(&mut self) -> Result<(), Error> {
        let (config, done) = (self.run.config().clone(), self.steps_done);
        let begun = self.with_replica(|replica, state, declared, giving| {
            let form = form_of_replicas(&config, &replica.messages());
            replica.begin::<M>((&form, done), state, declared, giving)
        })?;
        self.steps_done = begun.unwrap_or(done);
        Ok(())
    }

    /// Lets a replica that is apart replace its state, and returns the other result of `act`. Other runs do nothing.
    fn with_replica<T>(
        &mut self,
        act: impl FnOnce(
            &mut Replica,
            RunStateOf<M, Array>,
            &RunStateOf<M, Param>,
            &Giving<'_>,
        ) -> Result<(RunStateOf<M, Array>, T), Error>,
    ) -> Result<Option<T>, Error> {
        let Some(mut replica) = self.replica.take() else { return Ok(None) };
        let acted = act(&mut replica, self.state.clone(), &self.run.state(), &self.giving());
        self.replica = Some(replica);
        let (state, result) = acted?;
        self.state = state;
        Ok(Some(result))
    }

    /// Waits for the messages of other replicas that are on their way, if this is one that is apart from them: then
    /// the state can be saved and evaluated.
    ///
    /// # Errors
    /// The others do not go on with this replica, or it does not reach them.
    pub fn complete(&mut self) -> Result<(), Error> {
        self.with_replica(|replica, state, declared, giving| {
            Ok((replica.complete::<M>(state, declared, giving)?, ()))
        })?;
        Ok(())
    }

    /// Checks that no outer parameters are on their way.
    fn check_complete(&self) -> Result<(), Error> {
        Ok(self.replica.as_ref().map_or(Ok(()), Replica::check_complete)?)
    }

    fn giving(&self) -> Giving<'_> {
        let directory = &self.run.config().checkpoint.dir;
        Giving {
            about: self.about(),
            peers: self.run.peers.as_deref(),
            directory: (!directory.is_empty()).then(|| directory.into()),
        }
    }

    /// The run.
    pub fn run(&self) -> &Run<M> {
        &self.run
    }

    /// The data that the model is trained on.
    pub fn data(&self) -> &D {
        &self.data
    }

    /// The warnings of config, rules and partitioner.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Seconds from the closure to the module's bytes.
    pub fn lower_seconds(&self) -> f64 {
        self.lower_seconds
    }

    /// Seconds that the plugin took to compile the module.
    pub fn compile_seconds(&self) -> f64 {
        self.compile_seconds
    }

    /// Has `listener` called, from another thread, when a call takes 20 times the median of those before, and at least
    /// a second: the machine may be busy, or a collective may wait for a device that never comes.
    pub fn on_slow_step(&mut self, listener: impl Fn(SlowStep) + Send + Sync + 'static) {
        self.watch.listen(listener);
    }

    /// Returns whether the compile cache had the run's programs: a hit if it had all of them. Returns `None` without a
    /// cache.
    pub fn compile_cache(&self) -> Option<CacheUse> {
        self.compile_cache
    }

    /// Returns the memory that the run needs on the device that uses the most. The plugin counts it since the client
    /// was created, with everything on the devices. If it does not count, the figures are those of the compiled
    /// programs: the arguments of the step, and the most that it or an evaluation needs. Returns `None` if the plugin
    /// gives neither.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        let executable = self.program.executable();
        let counted = executable.devices().iter().map(|&device| {
            let memory = executable.client().device_memory(device).ok()?;
            Some(MemoryUse { in_use: memory.in_use, peak: memory.peak?, is_counted: true })
        });
        let most = |a: MemoryUse, b: MemoryUse| MemoryUse {
            in_use: a.in_use.max(b.in_use),
            peak: a.peak.max(b.peak),
            is_counted: a.is_counted,
        };
        let counted = counted.collect::<Option<Vec<_>>>().and_then(|devices| devices.into_iter().reduce(most));
        let estimated = || {
            let stats = |program: &Program| program.executable().memory_stats().ok();
            let step = stats(&self.program)?;
            let mut peak = step.total();
            if let Some((_, several)) = &self.several {
                peak = peak.max(stats(several)?.total());
            }
            if let Some(evaluator) = &self.evaluator {
                // The optimizer's state stays where it is meanwhile.
                let evaluation = stats(evaluator.program())?;
                peak = peak.max(step.arguments + evaluation.outputs + evaluation.temporary);
            }
            let [in_use, peak] = [step.arguments, peak].map(|bytes| u64::try_from(bytes).unwrap_or(0));
            Some(MemoryUse { in_use, peak, is_counted: false })
        };
        counted.or_else(estimated)
    }

    /// The compiled step.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The state after the steps done so far.
    pub fn state(&self) -> &RunStateOf<M, Array> {
        &self.state
    }

    /// Writes the present parameters to a safetensors file, by their paths in the model.
    ///
    /// # Errors
    /// The plugin fails, or the file cannot be written.
    pub fn save_parameters(&self, file: impl AsRef<std::path::Path>) -> Result<(), Error> {
        Ok(parameters::save_arrays(file, self.state.params(), &self.run.model().parameters())?)
    }

    /// Replaces the present parameters by those of a safetensors file. The optimizer's state and the step stay.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or does not have the model's parameters: the error names the path.
    pub fn load_parameters(&mut self, file: impl AsRef<std::path::Path>, options: LoadOptions) -> Result<(), Error> {
        let declared = self.run.model().parameters();
        self.assign_parameters(&ParameterSource::File(ParameterFile::open_for(file.as_ref(), &declared, options)?))
    }

    fn assign_parameters(&mut self, source: &ParameterSource<'_>) -> Result<(), Error> {
        self.state = with_parameters(&self.state, source, self.program.executable().client())?;
        Ok(())
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.state.params().leaves().iter().map(|param| param.ty().element_count()).sum()
    }

    /// Runs one step on the next batch and waits for its loss.
    ///
    /// # Errors
    /// The plugin fails; replicas differ that should not, where the config wants that checked; or loss or gradient norm
    /// are not finite, in more steps in a row than `train.skip_bad_steps` allows ([`NotFinite`]). Such steps change
    /// nothing, so the trainer is where it was before the first of them; replicas of one program are after the last.
    pub fn step(&mut self) -> Result<StepMetrics, Error> {
        let metrics = self.call(Calls::Single)?.into_iter().next();
        Ok(metrics.ok_or_else(|| InternalError::new("a call of one step", "the metrics of one step"))?)
    }

    /// Runs one call of the program: `train.steps_per_call` steps, or one where so many may not begin or would be more
    /// than `most`. Returns what came of each.
    ///
    /// # Errors
    /// The errors are those of [`Trainer::step`].
    pub fn steps(&mut self, most: u64) -> Result<Vec<StepMetrics>, Error> {
        let calls = match &self.several {
            Some((count, _)) if *count as u64 <= most => Calls::Several(*count),
            _ => Calls::Single,
        };
        match self.run.step.may_begin(calls, self.steps_done) {
            true => self.call(calls),
            false => self.call(Calls::Single),
        }
    }

    fn call(&mut self, calls: Calls) -> Result<Vec<StepMetrics>, Error> {
        let (step, count) = (self.steps_done + 1, calls.count());
        let mut watch = std::mem::take(&mut self.watch);
        let start = Instant::now();
        let called = watch.call(step, count, || self.execute_step(step, calls));
        self.watch = watch;
        let (outputs, data_seconds) = called?;
        let (state, metrics) = outputs.split_at(self.state.paths().len());
        self.state = self.state.fill(state.to_vec())?;
        let [losses, norms] = [means(&metrics[0], count)?, means(&metrics[1], count)?];
        let (before, config) = (self.steps_done, self.run.config());
        self.steps_done += count as u64;
        if config.diloco.as_ref().is_some_and(|diloco| diloco.check_replicas)
            && self.run.step.syncs(before, self.steps_done)
        {
            check_replicas(self.state.params())?;
        }
        let wait_seconds = self.sync()?;
        let config = self.run.config();
        let step_seconds = start.elapsed().as_secs_f64() / count as f64;
        let tokens_per_second = (config.rows_of_run() * config.model.seq) as f64 / step_seconds;
        let metrics = |(index, (loss, grad_norm))| StepMetrics {
            step: before + 1 + index as u64,
            loss,
            grad_norm,
            tokens_per_second,
            step_seconds,
            data_seconds,
            wait_seconds: wait_seconds.map(|seconds| seconds / count as f64),
            skipped_steps: self.skipped_steps,
        };
        let metrics: Vec<StepMetrics> = losses.into_iter().zip(norms).enumerate().map(metrics).collect();
        self.judge(metrics)
    }

    /// Counts the steps of a call that changed nothing.
    ///
    /// # Errors
    /// There are more of them in a row than the config allows.
    fn judge(&mut self, mut metrics: Vec<StepMetrics>) -> Result<Vec<StepMetrics>, Error> {
        let allowed = self.run.config().train.skip_bad_steps as u64;
        let mut worst = None;
        for step in &mut metrics {
            if step.is_finite() {
                self.bad_row = None;
            } else {
                self.skipped_steps += 1;
                let (first, count) = self.bad_row.unwrap_or((*step, 0));
                self.bad_row = Some((first, count + 1));
                worst = self.bad_row.filter(|(_, count)| *count > allowed).or(worst);
            }
            step.skipped_steps = self.skipped_steps;
        }
        let Some((first, in_a_row)) = worst else { return Ok(metrics) };
        self.take_back_bad_steps();
        Err(NotFinite { first, in_a_row, allowed, metrics }.into())
    }

    /// Goes back to the last step that changed something: the state is that after it. Replicas of one program may have
    /// synced since, so they stay where they are.
    fn take_back_bad_steps(&mut self) {
        let Some((_, count)) = self.bad_row.take() else { return };
        if matches!(self.run.step, RunStep::Single(_)) {
            self.steps_done -= count;
            self.skipped_steps -= count;
            // The batches that were read ahead come after the batch that is next now.
            self.prefetch = None;
        }
    }

    /// Performs the sync of a replica that is apart, if one is due after the steps done so far. Also returns the
    /// seconds that it waited for others.
    fn sync(&mut self) -> Result<Option<f64>, Error> {
        let done = self.steps_done;
        // After most steps there is nothing to do.
        if self.replica.as_ref().is_some_and(|replica| is_busy_after(replica.diloco.schedule(), done)) {
            self.with_replica(|replica, state, declared, giving| {
                Ok((replica.after_step::<M>((done, state), declared, giving)?, ()))
            })?;
        }
        Ok(self.replica.as_mut().map(|replica| std::mem::take(&mut replica.wait_seconds)))
    }

    /// Waits for the batches of a call, and runs it; also the seconds that each step waited.
    fn execute_step(&mut self, step: u64, calls: Calls) -> Result<(Vec<Array>, f64), Error> {
        let start = Instant::now();
        let batch = self.batches(calls)?;
        let data_seconds = start.elapsed().as_secs_f64() / calls.count() as f64;
        let (program, mut arguments) = (self.program_of(calls.count()), self.state.leaves());
        arguments.extend(program.put(arguments.len(), &batch)?.leaves());
        let arguments: Vec<&Array> = arguments.iter().collect();
        let outputs = execute(Execution::Step(step), program, &arguments, self.run.config().train.time_limit)?;
        Ok((outputs, data_seconds))
    }

    /// The compiled program of a call of so many steps: one, or `train.steps_per_call`.
    pub fn program_of(&self, count: usize) -> &Program {
        match &self.several {
            Some((steps, program)) if *steps == count && count > 1 => program,
            _ => &self.program,
        }
    }

    /// The rows of a batch that this process's devices take; all where they take some of each replica's.
    fn own_rows(&self) -> Range<usize> {
        let batch = self.run.config().train.batch;
        if let Some((number, rows)) = self.of_this_replica() {
            return number * rows..(number + 1) * rows;
        }
        let input = self.program.inputs().get(self.state.leaves().len());
        let Some(layout) = input.map(|input| &input.layout).filter(|_| self.run.config().diloco.is_none()) else {
            return 0..batch;
        };
        let rows = layout.own_devices().filter_map(|device| layout.value_part(device).first().cloned());
        rows.reduce(|all, own| all.start.min(own.start)..all.end.max(own.end)).unwrap_or(0..batch)
    }

    /// The number of this replica and the rows of each, if it is apart from others.
    fn of_this_replica(&self) -> Option<(usize, usize)> {
        let RunStep::Diloco(step) = &self.run.step else { return None };
        step.apart.map(|(number, _)| (number, step.step.batch))
    }

    /// The next batches, as a call takes them: of each step, of each replica, its rows.
    fn batches(&mut self, calls: Calls) -> Result<M::Batch<Literal>, Error> {
        let train = &self.run.config().train;
        let train_batch = train.batch;
        let first = (train.seed, self.steps_done, train_batch);
        let order = self.run.model().token_order();
        let own = self.own_rows();
        // Taken, so that it starts anew after an error.
        let start = || Prefetch::start::<M, D>(self.data.clone(), (first, own), order, train.steps_per_call);
        let prefetch = self.prefetch.take().unwrap_or_else(start);
        let first = prefetch.next()?;
        let replica = self.of_this_replica();
        let own = |leaf: &Literal| -> Range<usize> {
            let (all, row) = (leaf.bytes().len(), leaf.bytes().len() / train_batch.max(1));
            replica.map_or(0..all, |(number, rows)| number * rows * row..(number + 1) * rows * row)
        };
        let mut parts: Vec<Vec<u8>> = first.iter().map(|leaf| leaf.bytes()[own(leaf)].to_vec()).collect();
        for _ in 1..calls.count() {
            for (part, leaf) in parts.iter_mut().zip(prefetch.next()?) {
                part.extend_from_slice(&leaf.bytes()[own(&leaf)]);
            }
        }
        self.prefetch = Some(prefetch);
        let step = &self.run.step;
        let (leading, of_replica) = (step.leading_dims(calls), step.of_replica());
        let leaf = |(leaf, bytes): (&Literal, Vec<u8>)| {
            let of_row = leaf.ty().dims.get(1..).unwrap_or_default();
            let ty = TensorType::new(leaf.ty().dtype, &[&leading[..], &[of_replica.batch], of_row].concat());
            let found = bytes.len();
            Literal::from_bytes(ty.clone(), bytes).map_err(|_| DataError::Bytes { expected: ty, found })
        };
        let leaves = first.iter().zip(parts).map(leaf).collect::<Result<Vec<_>, _>>()?;
        Ok(of_replica.model.batch_specs(of_replica.batch, of_replica.seq).fill(leaves)?)
    }

    /// The batch of a step, from 1, as a call of one step takes it.
    fn batch_of(&mut self, step: u64) -> Result<M::Batch<Literal>, Error> {
        let done = std::mem::replace(&mut self.steps_done, step.saturating_sub(1));
        self.prefetch = None;
        let batch = self.batches(Calls::Single);
        self.prefetch = None;
        self.steps_done = done;
        batch
    }

    /// Compiles a graph of the state and a batch, over the mesh and with the settings of the step.
    fn compile_beside_step(&self, graph: &Graph) -> Result<Program, Error> {
        let (client, config) = (self.program.executable().client(), self.run.config());
        let lowered = self.run.lower_beside_step(graph, Vec::new(), client.platform())?;
        let options = lowered.compile_options(client)?.with_format(config.target.format);
        let debug_options = config.compiler_options(client.platform())?;
        Ok(lowered.compile_with(client, &CompileOptions { debug_options, ..options })?)
    }

    /// Returns the loss on the validation set with the present parameters; with several replicas, these are the
    /// parameters that they have agreed on. It is the mean over `validation.batches` batches of `train.batch` rows,
    /// always the same, without dropout. Returns `None` without a validation set. Training is not affected.
    ///
    /// # Errors
    /// The plugin fails, or the set cannot be read.
    pub fn evaluate(&self) -> Result<Option<Evaluation>, Error> {
        let Some(evaluator) = &self.evaluator else { return Ok(None) };
        self.check_complete()?;
        let RunConfig { train, validation, .. } = self.run.config();
        let rows = (validation.batches as u64).saturating_mul(train.batch as u64);
        let what = Execution::Evaluation(self.steps_done);
        let call = |program: &Program, arguments: &[&Array]| execute(what, program, arguments, train.time_limit);
        let data = (&*self.data, self.run.model().token_order());
        let loss = evaluator.loss::<M, D>(data, self.state.params(), rows, call)?;
        let evaluation = Evaluation::new(self.steps_done, loss, self.data.bytes_per_token());
        self.evaluation.set(Some(evaluation));
        Ok(Some(evaluation))
    }

    /// Whether an evaluation is due now, by `validation.every`: after `before` steps none was yet. `last` is the run's
    /// last step.
    pub fn evaluation_is_due(&self, before: u64, last: u64) -> bool {
        let every = self.run.config().validation.every as u64;
        let passed = every > 0 && self.steps_done / every > before / every;
        self.evaluator.is_some() && (passed || self.steps_done >= last)
    }
}

/// Returns, for each of `count` steps, the mean over the numbers that the replicas returned. With several processes,
/// only replicas that have devices here count: replicas that are apart must not wait for each other's numbers.
fn means(numbers: &Array, count: usize) -> Result<Vec<f64>, Error> {
    let (layout, mut seen) = (numbers.layout(), HashSet::new());
    let (mut sums, mut terms) = (vec![0.0; count], 0);
    for device in layout.own_devices().filter(|&device| seen.insert(&layout.boxes()[device])) {
        let part = numbers.shard(device)?.to_f64_vec();
        let of_step = (part.len() / count).max(1);
        part.chunks(of_step).zip(&mut sums).for_each(|(part, sum)| *sum += part.iter().sum::<f64>());
        terms += of_step;
    }
    Ok(sums.into_iter().map(|sum| sum / terms as f64).collect())
}
