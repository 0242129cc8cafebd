//! A training run on a plugin's devices.

use std::time::Instant;

use super::config::RunConfig;
use super::data::{DataError, TextDataset};
use super::diloco::check_replicas;
use super::metrics::StepMetrics;
use super::model::{Dataset, Model};
use super::parameters::{self, LoadOptions};
use super::resolve::Run;
use super::run::{Calls, RunStateOf};
use super::sample::Sampler;
use super::step::TrainStep;
use super::tokenizer::Tokenizer;
use crate::Error;
use meshloom::compile::{Lowered, Program};
use meshloom::emit::GroupFormat;
use meshloom::ir::{InternalError, Literal, TensorType};
use meshloom::nn::{Batch, DecoderConfig};
use meshloom::pjrt::{Array, Client, CompileOptions};
use meshloom::sharding::Mesh;
use meshloom::trace::{MapTree, Tree};

/// A compiled train step, its state on the devices, and its data: of a decoder and text, unless another model is named.
pub struct Trainer<M: Model = DecoderConfig, D = Text> {
    pub(super) run: Run<M>,
    pub(super) program: Program,
    /// The program of several steps, and how many, if there is one.
    several: Option<(usize, Program)>,
    pub(super) state: RunStateOf<M, Array>,
    data: D,
    pub(super) steps_done: u64,
    pub(super) warnings: Vec<String>,
    lower_seconds: f64,
    compile_seconds: f64,
}

/// A text, and what takes it apart: what decoders are trained on.
#[derive(Debug)]
pub struct Text {
    /// The text.
    pub dataset: TextDataset,
    /// What takes it apart.
    pub tokenizer: Tokenizer,
    /// Tokens of a row.
    pub length: usize,
}

impl Text {
    /// The text of a config.
    ///
    /// # Errors
    /// The text or its tokenizer cannot be read.
    pub fn load(config: &RunConfig) -> Result<Text, Error> {
        let tokenizer = config.load_tokenizer()?;
        let dataset = TextDataset::load_with(&config.data.text, &tokenizer)?;
        Ok(Text { dataset, tokenizer, length: config.model.seq })
    }
}

impl Dataset<DecoderConfig> for Text {
    fn batch(&self, seed: u64, step: u64, rows: usize) -> Result<Batch<Literal>, Error> {
        Ok(self.dataset.batch(seed, step, rows, self.length)?)
    }
}

impl Trainer {
    /// Traces and compiles the train step, draws the first parameters, and reads the text.
    ///
    /// # Errors
    /// The config asks for something that is not built yet; model, mesh and rules do not fit together; the text cannot
    /// be read; or the plugin refuses the program.
    pub fn new(config: &RunConfig, client: &Client) -> Result<Trainer, Error> {
        config.check_runnable()?;
        Trainer::of(config.resolve()?, Text::load(config)?, client)
    }

    /// Devices that the mesh of a config needs.
    ///
    /// # Errors
    /// The mesh cannot be read.
    pub fn device_count(config: &RunConfig) -> Result<usize, Error> {
        Ok(config.mesh().map(|mesh| Mesh::device_count(&mesh))?)
    }

    /// The training text.
    pub fn dataset(&self) -> &TextDataset {
        &self.data.dataset
    }

    /// What takes the text apart.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.data.tokenizer
    }

    /// A sampler with the present parameters, on one device.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn sampler(&self) -> Result<Sampler, Error> {
        let params = self.state.params();
        let literals = params.leaves().iter().map(Array::get).collect::<Result<Vec<Literal>, _>>()?;
        let TrainStep { model, seq, .. } = self.run.step.of_replica();
        Sampler::new(self.program.executable().client(), model, &params.fill(literals)?, *seq)
    }
}

impl<M: Model, D: Dataset<M>> Trainer<M, D> {
    /// Traces and compiles the train step of a run, and draws the first parameters.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together; or the plugin refuses the program.
    pub fn of(run: Run<M>, data: D, client: &Client) -> Result<Trainer<M, D>, Error> {
        let seed = run.config().train.seed;
        Trainer::start(run, data, client, |program, run| Ok(program.put(0, &run.step.initialize(seed)?)?))
    }

    /// As [`Trainer::of`], with the state that a function gives for the compiled step.
    pub(super) fn start(
        run: Run<M>,
        data: D,
        client: &Client,
        state: impl FnOnce(&Program, &Run<M>) -> Result<RunStateOf<M, Array>, Error>,
    ) -> Result<Trainer<M, D>, Error> {
        let config = run.config();
        config.check_runnable()?;
        let start = Instant::now();
        let groups = GroupFormat::read_by(client.plugin().api_version());
        let (_, lowered) = run.lower(Calls::Single, groups)?;
        let lowered_several = match config.calls() {
            Calls::Single => None,
            Calls::Several(count) => Some((count, run.lower(Calls::Several(count), groups)?.1)),
        };
        let lower_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let debug_options = config.compiler_options()?;
        let compile = |lowered: &Lowered| -> Result<Program, Error> {
            let debug_options = debug_options.clone();
            let options = CompileOptions { debug_options, ..lowered.compile_options(client)? };
            Ok(lowered.compile_with(client, &options)?)
        };
        let program = compile(&lowered)?;
        let several = match &lowered_several {
            Some((count, lowered)) => Some((*count, compile(lowered)?)),
            None => None,
        };
        let compile_seconds = start.elapsed().as_secs_f64();
        let state = state(&program, &run)?;
        let warnings = config.warnings().into_iter().chain(lowered.warnings()).collect();
        Ok(Trainer { run, program, several, state, data, steps_done: 0, warnings, lower_seconds, compile_seconds })
    }

    /// The run.
    pub fn run(&self) -> &Run<M> {
        &self.run
    }

    /// What the model is trained on.
    pub fn data(&self) -> &D {
        &self.data
    }

    /// What the config, rules and partitioner warn of.
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
        parameters::save(file, self.state.params())
    }

    /// Replaces the present parameters by those of a safetensors file. The optimizer's state and the step stay.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or does not have the model's parameters: the error names the path.
    pub fn load_parameters(&mut self, file: impl AsRef<std::path::Path>, options: LoadOptions) -> Result<(), Error> {
        let client = self.program.executable().client();
        let params = parameters::load_like(file, self.state.params(), client, options)?;
        self.state.set_params(params, client)
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.state.params().leaves().iter().map(|param| param.ty().element_count()).sum()
    }

    /// Runs one step on the next batch and waits for its loss.
    ///
    /// # Errors
    /// The plugin fails; or replicas differ that should not, where the config wants that checked.
    pub fn step(&mut self) -> Result<StepMetrics, Error> {
        let metrics = self.call(Calls::Single)?.into_iter().next();
        Ok(metrics.ok_or_else(|| InternalError::new("a call of one step", "the metrics of one step"))?)
    }

    /// Runs one call of the program: `train.steps_per_call` steps, or one where so many may not begin or would be more
    /// than `most`. Returns what came of each.
    ///
    /// # Errors
    /// As of [`Trainer::step`].
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
        let start = Instant::now();
        let (program, count) = match (&self.several, calls) {
            (Some((count, program)), Calls::Several(_)) => (program, *count),
            _ => (&self.program, 1),
        };
        let calls = if count > 1 { calls } else { Calls::Single };
        let mut arguments = self.state.leaves();
        let batch = program.put(arguments.len(), &self.batches(calls, count)?)?;
        arguments.extend(batch.leaves());
        let outputs = program.run(&arguments.iter().collect::<Vec<_>>())?;
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
        let step_seconds = start.elapsed().as_secs_f64() / count as f64;
        let tokens_per_second = (config.train.batch * config.model.seq) as f64 / step_seconds;
        let metrics = |(index, (loss, grad_norm))| StepMetrics {
            step: before + 1 + index as u64,
            loss,
            grad_norm,
            tokens_per_second,
            step_seconds,
        };
        Ok(losses.into_iter().zip(norms).enumerate().map(metrics).collect())
    }

    /// The next batches, as a call takes them: of each step, of each replica, its rows.
    fn batches(&self, calls: Calls, count: usize) -> Result<M::Batch<Literal>, Error> {
        let (train, step) = (&self.run.config().train, &self.run.step);
        let batch = |step| self.data.batch(train.seed, step, train.batch);
        let first = batch(self.steps_done)?;
        let mut parts: Vec<Vec<u8>> = first.leaves().iter().map(|leaf| leaf.bytes().to_vec()).collect();
        for step in self.steps_done + 1..self.steps_done + count as u64 {
            for (part, leaf) in parts.iter_mut().zip(batch(step)?.leaves()) {
                part.extend_from_slice(leaf.bytes());
            }
        }
        let (leading, rows) = (step.leading_dims(calls), step.of_replica().batch);
        let leaf = |(leaf, bytes): (&Literal, Vec<u8>)| {
            let of_row = leaf.ty().dims.get(1..).unwrap_or_default();
            let ty = TensorType::new(leaf.ty().dtype, &[&leading[..], &[rows], of_row].concat());
            let found = bytes.len();
            Literal::from_bytes(ty.clone(), bytes).map_err(|_| DataError::Bytes { expected: ty, found })
        };
        let leaves = first.leaves().iter().zip(parts).map(leaf).collect::<Result<Vec<_>, _>>()?;
        Ok(first.fill(leaves)?)
    }
}

/// For each of `count` steps, the mean over what replicas returned.
fn means(numbers: &Array, count: usize) -> Result<Vec<f64>, Error> {
    let numbers = numbers.get()?.to_f64_vec();
    let of_step = (numbers.len() / count).max(1);
    Ok(numbers.chunks(of_step).map(|numbers| numbers.iter().sum::<f64>() / numbers.len() as f64).collect())
}
