//! A run config, checked and resolved once: mesh, rules and train step, and the programs that follow from them.

use std::sync::Arc;

use super::diloco_step::{DilocoStep, layout_of};
use super::model::Model;
use super::run_step::{Calls, RunFunction, RunState, RunStateOf, RunStep};
use super::train_step::{DropoutConfig, TrainStep, aliases};
use crate::Error;
use crate::config::{ConfigError, OptimizerConfig, Placement, RateSchedule, Replication, RunConfig};
use crate::peers::{Peers, ReplicaLink};
use meshloom::compile::{LowerOptions, Lowered, PartitionMode, Pass, lower, lower_as_traced};
use meshloom::hlo::Stage;
use meshloom::ir::Graph;
use meshloom::kernels::Kernels;
use meshloom::optim::{AdamW, Decay, LearningRate, Muon, Optimizer};
use meshloom::passes::{CollectiveLimits, CollectiveMatmul};
use meshloom::pjrt::Platform;
use meshloom::sharding::{Mesh, Role, RuleSets, ShardingTable};
use meshloom::trace::{Param, Tree};
use meshloom::transform::diloco::Diloco;
use meshloom_nn::DecoderConfig;

/// A run of a model: a config that has been checked, with everything that follows from it.
#[derive(Clone, Debug)]
pub struct Run<M = DecoderConfig> {
    config: RunConfig,
    mesh: Mesh,
    rules: RuleSets,
    pub(crate) step: RunStep<M>,
    pub(crate) peers: Option<Arc<dyn Peers>>,
    pub(crate) link: Option<Arc<dyn ReplicaLink>>,
}

impl RunConfig {
    /// Returns the run of the decoder that the config describes. If the config names a topology, its devices must be
    /// known ([`RunConfig::on_devices`]).
    ///
    /// # Errors
    /// Parts of the config do not fit together.
    pub fn resolve(&self) -> Result<Run, Error> {
        let placement = self.placement()?;
        self.resolve_on(self.decoder_on(&placement)?, placement)
    }

    /// Returns the run of another model. In the section `[model]`, only `layers` (which a pipeline spreads over its
    /// stages), `seq` and `dropout` matter then, and `[data]` does not. All layers are in the pipeline, if there is
    /// one.
    ///
    /// # Errors
    /// The errors are those of [`RunConfig::resolve`].
    pub fn resolve_for<M: Model>(&self, model: M) -> Result<Run<M>, Error> {
        let placement = self.placement()?;
        self.check_for_another_model()?;
        self.check_order_of(model.token_order(), &placement)?;
        self.resolve_on(model, placement)
    }

    fn resolve_on<M: Model>(&self, model: M, placement: Placement) -> Result<Run<M>, Error> {
        let dims = self.pipeline_of(placement.axis_size("stage"))?.map(|options| options.leading_dims());
        let Placement { mesh, rules } = placement;
        let step = TrainStep { batch: self.rows_of_replica(), ..self.train_step_of(model) };
        let declared = step.model.parameters();
        if let Some(pattern) = step.optimizer.adamw().unmatched(&declared) {
            return Err(self.no_such_path(pattern, &declared.paths()).into());
        }
        let step = match self.diloco_options() {
            None => RunStep::Single(Box::new(step)),
            Some(options) => {
                let params = step.wide_parameters(Role::Params);
                let mut layout = layout_of(&params, (&mesh, &rules), dims.as_deref())?;
                if self.is_apart() {
                    // Replicas with other meshes cut messages into the same blocks.
                    layout.parts = Vec::new();
                }
                let diloco = Diloco::new(&options, &params, &layout)?;
                let apart = self.is_apart().then(|| (0, self.replicas()));
                RunStep::Diloco(Box::new(DilocoStep { step, diloco, apart }))
            }
        };
        Ok(Run { config: self.clone(), mesh, rules, step, peers: None, link: None })
    }

    /// Returns the decoder that the config describes. If the config names a topology, its devices must be known
    /// ([`RunConfig::on_devices`]).
    ///
    /// # Errors
    /// The mesh, the rules or the pipeline cannot be as the config says.
    pub fn decoder(&self) -> Result<DecoderConfig, ConfigError> {
        self.decoder_on(&self.placement()?)
    }

    pub(crate) fn decoder_on(&self, placement: &Placement) -> Result<DecoderConfig, ConfigError> {
        let model = &self.model;
        Ok(DecoderConfig {
            architecture: self.architecture_on(placement),
            param_dtype: model.param_dtype,
            compute_dtype: model.compute_dtype,
            scan_layers: model.scan_layers,
            remat: self.remat.clone(),
            pipeline: self.pipeline_of(placement.axis_size("stage"))?,
            exchange: self.kernels.context,
            order: self.token_order_on(placement),
            z_loss: self.train.z_loss,
            load_balance_weight: if self.has_experts() { model.load_balance_weight } else { 0.0 },
            further_weight: self.train.further_token_weight,
            choice_bias_gradient: self.train.choice_bias_rate > 0.0 && self.has_choice_bias(),
            loss_chunks: self.loss_chunks_on(placement),
            batch_split: model.batch_split,
        })
    }

    /// The train step of the decoder that the config describes: of all rows, as if there were one replica.
    ///
    /// # Errors
    /// The errors are those of [`RunConfig::decoder`].
    pub fn train_step(&self) -> Result<TrainStep, ConfigError> {
        Ok(self.train_step_of(self.decoder()?))
    }

    fn train_step_of<M>(&self, model: M) -> TrainStep<M> {
        let train = &self.train;
        let adamw = |beta1, beta2, epsilon| AdamW {
            beta1,
            beta2,
            epsilon,
            weight_decay: train.weight_decay,
            no_decay: train.no_decay.clone(),
        };
        let (decay, floor) = match train.schedule {
            RateSchedule::Cosine { floor } => (Decay::Cosine, floor),
            RateSchedule::Linear { floor } => (Decay::Linear, floor),
            RateSchedule::Wsd { floor, decay_steps } => (Decay::Last(decay_steps), floor),
            RateSchedule::Constant {} => (Decay::Never, 1.0),
        };
        let (peak, warmup, steps) = (train.learning_rate, train.warmup, train.steps);
        TrainStep {
            model,
            choice_bias_rate: train.choice_bias_rate,
            optimizer: match train.optimizer {
                OptimizerConfig::AdamW { beta1, beta2, epsilon } => Optimizer::AdamW(adamw(beta1, beta2, epsilon)),
                OptimizerConfig::Muon { momentum, rms, beta1, beta2, epsilon } => {
                    Optimizer::Muon(Muon { momentum, rms, adamw: adamw(beta1, beta2, epsilon) })
                }
            },
            schedule: LearningRate { peak, warmup, steps, floor, decay },
            clip_norm: train.clip_norm,
            batch: train.batch,
            seq: self.model.seq,
            microbatches: train.microbatches,
            dropout: DropoutConfig {
                rate: self.model.dropout,
                attention_rate: self.model.attention_dropout,
                seed: train.seed,
            },
            master_copies: train.master_copies,
        }
    }

    /// How many steps a call has, by `train.steps_per_call`.
    pub fn calls(&self) -> Calls {
        match self.train.steps_per_call {
            0 | 1 => Calls::Single,
            count => Calls::Several(count),
        }
    }

    /// Returns the train step of all replicas, if the config has several.
    ///
    /// # Errors
    /// The values that replicas sync cannot be cut as the config says, or the rules do not fit the parameters.
    pub fn diloco_step(&self) -> Result<Option<DilocoStep>, Error> {
        Ok(match self.resolve()?.step {
            RunStep::Single(_) => None,
            RunStep::Diloco(step) => Some(*step),
        })
    }

    /// Bytes of the outer parameters and velocities of DiLoCo; 0 without it.
    ///
    /// # Errors
    /// The config is of no model that can be built.
    pub fn outer_byte_count(&self) -> Result<u64, Error> {
        let RunState::Diloco(state) = self.resolve()?.state() else { return Ok(0) };
        Ok(state.outer.leaves().iter().map(|leaf| leaf.spec.ty.byte_count() as u64).sum())
    }

    /// The train step lowered over the config's mesh; also the traced function.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together.
    pub fn lower_train_step(&self) -> Result<(RunFunction, Lowered), Error> {
        self.resolve()?.lower(Calls::Single, &self.any_plugin()?)
    }

    /// The config's platform, for programs that are only looked at.
    pub(crate) fn any_plugin(&self) -> Result<Platform, Error> {
        Ok(Platform::of_any_plugin(self.platform_kind()?))
    }

    /// A program beside the train step, such as a forward pass, lowered over the config's mesh. The train step is held
    /// to the rules, other programs are not.
    pub(crate) fn lower_beside(
        &self,
        graph: &Arc<Graph>,
        placement: &Placement,
        platform: &Platform,
    ) -> Result<Lowered, Error> {
        let rules = placement.rules.clone().with_strict(false);
        let sharding = (placement.mesh.device_count() > 1).then_some((&placement.mesh, &rules));
        Ok(lower(graph, &LowerOptions { sharding, ..self.lower_options(platform) })?)
    }

    /// Returns the options that config and platform give for lowering, except for the mesh and the program's own
    /// aliases.
    pub(crate) fn lower_options<'a>(&self, platform: &Platform) -> LowerOptions<'a> {
        let options = LowerOptions {
            partition: self.partition.mode,
            deny_replication: self.partition.replication == Replication::Deny,
            processes: self.crossing_processes(),
            ..LowerOptions::default()
        }
        .on(platform);
        let matmul = match self.kernels.collective_matmul.chosen() {
            None => options.limits.matmul,
            Some(true) => CollectiveMatmul::On,
            Some(false) => CollectiveMatmul::Off,
        };
        let limits = CollectiveLimits { matmul, ..options.limits };
        LowerOptions { kernels: self.chosen_kernels(options.kernels), limits, ..options }
    }

    /// The kernels of `[kernels]`, where `auto` is what suits the platform.
    pub fn chosen_kernels(&self, auto: Kernels) -> Kernels {
        Kernels {
            attention: self.kernels.attention.chosen().unwrap_or(auto.attention),
            experts: self.kernels.experts.chosen().unwrap_or(auto.experts),
            ..auto
        }
    }
}

impl<M: Model> Run<M> {
    /// The run as one of several processes.
    #[must_use]
    pub fn with_peers(self, peers: Arc<dyn Peers>) -> Run<M> {
        Run { peers: Some(peers), ..self }
    }

    /// The run as one of several replicas that live apart (`diloco.apart`).
    #[must_use]
    pub fn with_replica_link(mut self, link: Arc<dyn ReplicaLink>) -> Run<M> {
        if let RunStep::Diloco(step) = &mut self.step
            && let Some((number, _)) = &mut step.apart
        {
            *number = link.number();
        }
        Run { link: Some(link), ..self }
    }

    /// The config.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The device mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The sharding rules.
    pub fn rules(&self) -> &RuleSets {
        &self.rules
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.step.of_replica().model
    }

    /// The declaration of the run's state.
    pub fn state(&self) -> RunStateOf<M, Param> {
        self.step.state()
    }

    /// Traces the program of one call.
    ///
    /// # Errors
    /// The model's sizes do not fit together.
    pub fn trace(&self, calls: Calls) -> Result<RunFunction<M>, Error> {
        let function = self.step.trace(calls)?;
        self.config.check_saved_names(|| function.graph().value_names())?;
        Ok(function)
    }

    /// The program of one call, lowered over the mesh for a platform; also the traced function.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together.
    pub fn lower(&self, calls: Calls, platform: &Platform) -> Result<(RunFunction<M>, Lowered), Error> {
        self.lower_through(calls, platform, &[], &[])
    }

    /// As [`Run::lower`], without some of the compiler's passes and with others behind them.
    ///
    /// # Errors
    /// The errors are those of [`Run::lower`]. It is also an error if no pass has one of the names.
    pub fn lower_through(
        &self,
        calls: Calls,
        platform: &Platform,
        without: &[&str],
        further: &[Pass],
    ) -> Result<(RunFunction<M>, Lowered), Error> {
        let function = self.trace(calls)?;
        let options = LowerOptions { without, further, ..self.lower_options(platform) };
        let lowered = self.lower_with(&function, options)?;
        Ok((function, lowered))
    }

    /// The program that makes the state before the first step on the devices, each its own part, from the key of a
    /// seed.
    ///
    /// # Errors
    /// A parameter's type does not hold its first value.
    pub fn lower_first_state(&self, platform: &Platform) -> Result<Lowered, Error> {
        self.lower_beside_step(self.step.trace_first_state()?.graph(), Vec::new(), platform)
    }

    /// A program that reads or makes the run's state, lowered over its mesh: XLA could not partition it in another way.
    pub(crate) fn lower_beside_step(
        &self,
        graph: &Graph,
        aliases: Vec<(usize, usize)>,
        platform: &Platform,
    ) -> Result<Lowered, Error> {
        self.lower_leniently(
            graph,
            LowerOptions { partition: PartitionMode::Explicit, aliases, ..self.lower_options(platform) },
        )
    }

    /// Lowers a program beside the train step, which has been held to the rules.
    fn lower_leniently(&self, graph: &Graph, options: LowerOptions<'_>) -> Result<Lowered, Error> {
        let rules = self.rules.clone().with_strict(false);
        let sharding = options.sharding.map(|(mesh, _)| (mesh, &rules));
        Ok(lower(graph, &LowerOptions { sharding, ..options })?)
    }

    /// The forward pass from the parameters and some rows of the validation set to their loss, lowered over the mesh as
    /// the train step is; also how many rows. They are those that a device works on at a time in training, so it fits
    /// where that fits.
    pub(crate) fn lower_evaluation(&self, platform: &Platform) -> Result<(usize, Lowered), Error> {
        let step = self.step.of_replica();
        let rows = step.batch / step.microbatches.max(1);
        let (model, dropout) = (step.model.for_evaluation(), DropoutConfig::default());
        let step = TrainStep { model, batch: rows, microbatches: 1, dropout, ..step.clone() };
        let function = step.trace_loss_of(&self.step.parameters())?;
        // Replicas repeat each other's work: they judge one model.
        Ok((rows, self.lower_leniently(function.graph(), self.lower_options(platform))?))
    }

    fn lower_with(&self, function: &RunFunction<M>, options: LowerOptions<'_>) -> Result<Lowered, Error> {
        Ok(lower(function.graph(), &LowerOptions { aliases: aliases(function), ..options })?)
    }

    /// The options that config and platform give for lowering over the mesh.
    fn lower_options(&self, platform: &Platform) -> LowerOptions<'_> {
        let sharding = (self.mesh.device_count() > 1).then_some((&self.mesh, &self.rules));
        LowerOptions { sharding, ..self.config.lower_options(platform) }
    }

    /// The program of one call, of `train.steps_per_call` steps, at a stage. [`Stage::Compiled`] is what a plugin gets,
    /// as [`Stage::Partitioned`] is (or [`Stage::Sharded`], where the config lets XLA partition): only a plugin goes
    /// further.
    ///
    /// # Errors
    /// The errors are those of [`Run::lower`].
    pub fn at_stage(&self, stage: Stage) -> Result<Lowered, Error> {
        let (calls, platform) = (self.config.calls(), self.config.any_plugin()?);
        let options = self.config.lower_options(&platform);
        let with_aliases = |function: &RunFunction<M>| LowerOptions { aliases: aliases(function), ..options.clone() };
        Ok(match stage {
            Stage::Traced => lower_as_traced(self.step.of_replica().trace_loss()?.graph(), &options)?,
            Stage::Differentiated => {
                let function = self.trace(calls)?;
                lower_as_traced(function.graph(), &with_aliases(&function))?
            }
            Stage::Transformed => self.lower_with(&self.trace(calls)?, options)?,
            Stage::Sharded => self.lower_annotated(calls)?,
            Stage::Partitioned | Stage::Compiled => self.lower(calls, &platform)?.1,
        })
    }

    /// Returns the sharding that the rules give every parameter and every named value of the train step; `None` on one
    /// device. Nothing is compiled.
    ///
    /// # Errors
    /// The errors are those of [`Run::lower`].
    pub fn debug_sharding(&self) -> Result<Option<ShardingTable>, Error> {
        // The table is there before anything is partitioned.
        Ok(self.lower_annotated(Calls::Single)?.sharded().map(|sharded| sharded.table.clone()))
    }

    /// The program of one call in global shapes, with the specs of the rules as annotations.
    fn lower_annotated(&self, calls: Calls) -> Result<Lowered, Error> {
        let options = self.lower_options(&self.config.any_plugin()?);
        let partition = match options.partition {
            PartitionMode::Explicit => PartitionMode::GSPMD,
            annotated => annotated,
        };
        self.lower_with(&self.trace(calls)?, LowerOptions { partition, ..options })
    }
}
