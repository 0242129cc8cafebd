//! A training run on a plugin's devices.

use std::time::Instant;

use super::config::{self, RunConfig};
use super::data::TextDataset;
use super::diloco::check_replicas;
use super::metrics::StepMetrics;
use super::parameters::{self, LoadOptions};
use super::run::{Calls, RunFunction, RunState, RunStep};
use super::sample::Sampler;
use super::step::{DropoutConfig, TrainStep, aliases};
use super::tokenizer::Tokenizer;
use crate::Error;
use meshloom::compile::{LowerOptions, Lowered, Program, lower};
use meshloom::emit::{Annotation, GroupFormat};
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::nn::{Batch, DecoderConfig};
use meshloom::optim::{AdamW, WarmupCosine};
use meshloom::pjrt::{Array, Client, CompileOptions};
use meshloom::sharding::{Mesh, ShardingTable};
use meshloom::trace::Tree;

/// Rotary base and norm epsilon of the Llama family.
const ROPE_THETA: f64 = 10_000.0;
const NORM_EPSILON: f64 = 1e-5;

/// The rate that the schedule ends at, as a fraction of the peak.
const RATE_FLOOR: f64 = 0.1;

/// A compiled train step, its state on the devices, and its data.
pub struct Trainer {
    pub(super) config: RunConfig,
    pub(super) step: RunStep,
    pub(super) program: Program,
    /// The program of several steps, and how many, if there is one.
    several: Option<(usize, Program)>,
    pub(super) state: RunState<Array>,
    /// Rows of a batch, over all replicas.
    rows: usize,
    checks_replicas: bool,
    tokenizer: Tokenizer,
    dataset: TextDataset,
    seed: u64,
    pub(super) steps_done: u64,
    pub(super) warnings: Vec<String>,
    lower_seconds: f64,
    compile_seconds: f64,
}

impl RunConfig {
    /// The model that the config describes.
    pub fn decoder(&self) -> DecoderConfig {
        let model = &self.model;
        DecoderConfig {
            layers: model.layers,
            embed: model.embed,
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            mlp: model.mlp,
            vocab: model.vocab,
            tied_embeddings: model.tied_embeddings,
            param_dtype: model.param_dtype,
            compute_dtype: model.compute_dtype,
            scan_layers: model.scan_layers,
            remat: self.remat_policy(),
            // A config that has been read has none that cannot be.
            pipeline: self.pipeline_options().ok().flatten(),
            rope_theta: ROPE_THETA,
            norm_epsilon: NORM_EPSILON,
            parts: self.layer_parts(),
        }
    }

    /// The train step that the config describes.
    pub fn train_step(&self) -> TrainStep {
        let train = &self.train;
        TrainStep {
            model: self.decoder(),
            optimizer: AdamW { weight_decay: train.weight_decay, ..AdamW::default() },
            schedule: WarmupCosine {
                peak: train.learning_rate,
                warmup: train.warmup,
                steps: train.steps,
                floor: RATE_FLOOR,
            },
            clip_norm: train.clip_norm,
            batch: train.batch,
            seq: self.model.seq,
            microbatches: train.microbatches,
            dropout: DropoutConfig { rate: self.model.dropout, seed: train.seed },
        }
    }

    /// The train step lowered over the config's mesh; also the traced function.
    ///
    /// # Errors
    /// The config asks for something that is not built yet, or model, mesh and rules do not fit together.
    pub fn lower_train_step(&self) -> Result<(RunFunction, Lowered), Error> {
        self.lower_train_step_for(GroupFormat::Lists)
    }

    /// As [`RunConfig::lower_train_step`], for a plugin that reads this form of device groups: see
    /// [`GroupFormat::read_by`].
    ///
    /// # Errors
    /// As there.
    pub fn lower_train_step_for(&self, groups: GroupFormat) -> Result<(RunFunction, Lowered), Error> {
        self.lower_run(Calls::Single, groups)
    }

    /// The program of one call of several steps lowered over the config's mesh; also the traced function.
    ///
    /// # Errors
    /// As of [`RunConfig::lower_train_step`].
    pub fn lower_run(&self, calls: Calls, groups: GroupFormat) -> Result<(RunFunction, Lowered), Error> {
        self.check_supported()?;
        let function = self.trace_run(calls)?;
        let (mesh, rules) = (self.mesh()?, self.rule_sets()?);
        let sharding = (mesh.device_count() > 1).then_some((&mesh, &rules));
        let options = LowerOptions { sharding, aliases: aliases(&function), groups, ..self.lower_options() };
        let lowered = lower(function.graph(), &options)?;
        Ok((function, lowered))
    }

    /// What the config says of lowering, but for the mesh and the program's own aliases.
    pub(super) fn lower_options<'a>(&self) -> LowerOptions<'a> {
        let (explicit, annotation) = match self.partition.mode {
            config::PartitionMode::Explicit => (true, Annotation::Tiles),
            config::PartitionMode::Gspmd => (false, Annotation::Tiles),
            // Every plugin known reads this form.
            config::PartitionMode::Shardy => (false, Annotation::ShardyAttributes),
        };
        LowerOptions {
            explicit,
            annotation,
            deny_replication: self.partition.replication == config::Replication::Deny,
            overlap_collectives: self.target.platform != config::Platform::Cpu,
            // On a CPU, the devices' memory is the host's.
            host_memory: self.target.platform != config::Platform::Cpu,
            ..LowerOptions::default()
        }
    }
}

impl RunConfig {
    /// What the rules make of every parameter and every named value of the train step; `None` on one device. Nothing is
    /// compiled.
    ///
    /// # Errors
    /// As of [`RunConfig::lower_train_step`].
    pub fn debug_sharding(&self) -> Result<Option<ShardingTable>, Error> {
        let mut config = self.clone();
        // The table is there before anything is partitioned.
        config.partition.mode = config::PartitionMode::Gspmd;
        Ok(config.lower_train_step()?.1.debug_sharding)
    }
}

impl Trainer {
    /// Traces and compiles the train step, draws the first parameters, and reads the text.
    ///
    /// # Errors
    /// The config asks for something that is not built yet; model, mesh and rules do not fit together; the text cannot
    /// be read; or the plugin refuses the program.
    pub fn new(config: &RunConfig, client: &Client) -> Result<Trainer, Error> {
        Trainer::start(config, client, |program, step| Ok(program.put(0, &step.initialize(config.train.seed))?))
    }

    /// As [`Trainer::new`], with the state that a function gives for the compiled step.
    pub(super) fn start(
        config: &RunConfig,
        client: &Client,
        state: impl FnOnce(&Program, &RunStep) -> Result<RunState<Array>, Error>,
    ) -> Result<Trainer, Error> {
        config.check_runnable()?;
        let tokenizer = config.load_tokenizer()?;
        let dataset = TextDataset::load_with(&config.data.text, &tokenizer)?;
        let start = Instant::now();
        let groups = GroupFormat::read_by(client.plugin().api_version());
        let per_call = config.train.steps_per_call;
        let (_, lowered) = config.lower_train_step_for(groups)?;
        let lowered_several = match per_call {
            1 => None,
            count => Some((count, config.lower_run(Calls::Several(count), groups)?.1)),
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
        let step = config.run_step()?;
        let state = state(&program, &step)?;
        let warnings = lowered.warnings().collect();
        Ok(Trainer {
            config: config.clone(),
            step,
            program,
            several,
            state,
            rows: config.train.batch,
            checks_replicas: config.diloco.as_ref().is_some_and(|diloco| diloco.check_replicas),
            tokenizer,
            dataset,
            seed: config.train.seed,
            steps_done: 0,
            warnings,
            lower_seconds,
            compile_seconds,
        })
    }

    /// Devices that the mesh of a config needs.
    ///
    /// # Errors
    /// The mesh cannot be read.
    pub fn device_count(config: &RunConfig) -> Result<usize, Error> {
        Ok(config.mesh().map(|mesh| Mesh::device_count(&mesh))?)
    }

    /// What rules and partitioner warned of.
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
    pub fn state(&self) -> &RunState<Array> {
        &self.state
    }

    /// The training text.
    pub fn dataset(&self) -> &TextDataset {
        &self.dataset
    }

    /// What takes the text apart.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
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
        let metrics = self.call(Calls::Single)?;
        // A call of one step has one.
        Ok(metrics.into_iter().next().unwrap_or(StepMetrics::NONE))
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
        match self.step.may_begin(calls, self.steps_done) {
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
        let mut state = state.iter().cloned();
        let last = &metrics[0];
        // The step returns as many state leaves as it takes.
        self.state = self.state.rebuild(&mut || state.next().unwrap_or_else(|| last.clone()));
        let [losses, norms] = [means(&metrics[0], count)?, means(&metrics[1], count)?];
        let before = self.steps_done;
        self.steps_done += count as u64;
        if self.checks_replicas && self.step.syncs(before, self.steps_done) {
            check_replicas(self.state.params())?;
        }
        let step_seconds = start.elapsed().as_secs_f64() / count as f64;
        let tokens_per_second = (self.rows * self.step.of_replica().seq) as f64 / step_seconds;
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
    fn batches(&self, calls: Calls, count: usize) -> Result<Batch<Literal>, Error> {
        let (rows, TrainStep { batch: own_rows, seq, .. }) = (self.rows, self.step.of_replica());
        let mut parts: [Vec<u8>; 5] = Default::default();
        let mut dtypes = [DType::S32; 5];
        for step in self.steps_done..self.steps_done + count as u64 {
            let batch = self.dataset.batch(self.seed, step, rows, *seq)?;
            let leaves = [batch.tokens, batch.targets, batch.segment_ids, batch.positions, batch.weights];
            for ((part, dtype), leaf) in parts.iter_mut().zip(&mut dtypes).zip(leaves) {
                part.extend_from_slice(leaf.bytes());
                *dtype = leaf.ty().dtype;
            }
        }
        let dims = [&self.step.leading_dims(calls)[..], &[*own_rows, *seq]].concat();
        let mut leaves = parts.into_iter().zip(dtypes).map(|(bytes, dtype)| {
            // As many bytes as the rows of all steps have.
            Literal::from_bytes(TensorType::new(dtype, &dims), bytes).unwrap_or_else(|| Literal::scalar(0i32))
        });
        let mut next = || leaves.next().unwrap_or_else(|| Literal::scalar(0i32));
        Ok(Batch { tokens: next(), targets: next(), segment_ids: next(), positions: next(), weights: next() })
    }

    /// A sampler with the present parameters, on one device.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn sampler(&self) -> Result<Sampler, Error> {
        let mut failure = None;
        let params = meshloom::trace::MapTree::map(self.state.params(), |_, array| match array.get() {
            Ok(literal) => literal,
            Err(error) => {
                failure.get_or_insert(error);
                Literal::scalar(0.0f32)
            }
        });
        match failure {
            Some(error) => Err(error.into()),
            None => {
                let TrainStep { model, seq, .. } = self.step.of_replica();
                Sampler::new(self.program.executable().client(), model, &params, *seq)
            }
        }
    }
}

/// For each of `count` steps, the mean over what replicas returned.
fn means(numbers: &Array, count: usize) -> Result<Vec<f64>, Error> {
    let numbers = numbers.get()?.to_f64_vec();
    let of_step = (numbers.len() / count).max(1);
    Ok(numbers.chunks(of_step).map(|numbers| numbers.iter().sum::<f64>() / numbers.len() as f64).collect())
}
