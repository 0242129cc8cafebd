//! A run of several replicas: its state, its step, and what the config says of them.

use super::model::Model;
use super::run_step::RunState;
use super::train_step::{Params, StepInput, StepOutput, TrainState, TrainStateOf, TrainStep};
use crate::config::{DilocoConfig, RunConfig};
use crate::error::{Error, ReplicasDiffer};
use meshloom::hlo::message::counted;
use meshloom::ir::{DType, Literal};
use meshloom::nn::{Decoder, DecoderConfig, first_values, initialize};
use meshloom::pjrt::Array;
use meshloom::sharding::{Mesh, Role, RuleSets};
use meshloom::trace::{Init, Key, MapTree, Param, Tensor, TensorSpec, Tree, zeros};
use meshloom::transform::diloco::{
    Diloco, DilocoOptions, DilocoState, LayerOrder, Layout, OuterState, Schedule, Streaming, of_replicas,
};

/// The state of a run of several replicas: that of each with a leading dimension, outer parameters and velocities, and
/// the steps done.
pub type DilocoTrainState<T, P = Decoder<T>> = DilocoState<TrainState<T, P>, P, T>;

/// That of a model.
pub(crate) type DilocoStateOf<M, T> = DilocoTrainState<T, Params<M, T>>;

/// The train step of several replicas.
#[derive(Clone, Debug)]
pub struct DilocoStep<M = DecoderConfig> {
    /// That of one, with its rows of the batch.
    pub step: TrainStep<M>,
    /// What syncs when.
    pub diloco: Diloco,
    /// Where this is one replica that is apart from the others: its number, and how many there may be.
    pub apart: Option<(usize, usize)>,
}

impl RunConfig {
    /// Bytes of the outer parameters and velocities of DiLoCo; 0 without it.
    ///
    /// # Errors
    /// The config is of no model that can be built.
    pub fn outer_byte_count(&self) -> Result<u64, Error> {
        let RunState::Diloco(state) = self.state()? else { return Ok(0) };
        Ok(state.outer.leaves().iter().map(|leaf| leaf.spec.ty.byte_count() as u64).sum())
    }

    /// The form of DiLoCo that the config describes, if it does.
    pub fn diloco_options(&self) -> Option<DilocoOptions> {
        let config: &DilocoConfig = self.diloco.as_ref()?;
        let order = if config.sequential_layers { LayerOrder::Sequential } else { LayerOrder::Interleaved };
        let streaming = Streaming {
            fragments: config.fragments,
            order,
            uneven: config.uneven_fragments,
            overlap_steps: config.overlap_steps,
            overlap_alpha: config.overlap_alpha,
        };
        Some(DilocoOptions {
            // Programs of a replica apart know no others.
            replicas: if config.apart { 1 } else { config.replicas },
            apart: config.apart,
            sync_period: config.sync_period,
            outer_rate: config.outer_lr,
            outer_momentum: config.outer_momentum,
            streaming: config.streaming.then_some(streaming),
            transport: config.transport,
            block: config.block,
        })
    }

    /// When fragments are sent and used, if there is such a run; what is wrong with it, `validate` says.
    fn diloco_schedule(&self) -> Option<Schedule> {
        self.diloco_options()?.schedule().ok()
    }

    /// The steps per call that a config has if it does not say: the fewest with which transfers of fragments overlap
    /// with steps, if they are to and the run is long enough for one such call, else one.
    pub(crate) fn fitting_steps_per_call(&self) -> usize {
        let overlapping =
            self.diloco_schedule().filter(|schedule| why_no_overlap(schedule, self.train.steps).is_none());
        overlapping
            .filter(|schedule| schedule.overlap() > 0 && !self.is_apart())
            .map_or(1, |schedule| schedule.period())
    }

    /// What the config asks for that it does not get, and why.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings_with(!self.data.validation.is_empty())
    }

    /// As [`RunConfig::warnings`], of a run that has a validation set or none, whatever `data.validation` is.
    pub(crate) fn warnings_with(&self, has_validation: bool) -> Vec<String> {
        let (calls, steps) = (self.train.steps_per_call, self.train.steps);
        // What replicas apart send is in no program.
        let late = self.diloco_schedule().filter(|schedule| schedule.overlap() > 0 && !self.is_apart());
        let problem = |schedule: Schedule| {
            let period = schedule.period();
            let of_call = (!calls.is_multiple_of(period))
                .then(|| format!("train.steps_per_call must be {period}, or a multiple of it, not {calls}"));
            let why = why_no_overlap(&schedule, steps).or(of_call)?;
            let overlap = counted(schedule.overlap(), "step");
            Some(format!("fragments are used {overlap} late, but no transfer overlaps with a step: {why}"))
        };
        let unused = self.unused_keys(has_validation);
        let unknown = self.unknown_keys_of_model();
        let long = self.longer_than_made_for();
        unused
            .into_iter()
            .chain(unknown)
            .chain(long)
            .chain(self.endless_warmup())
            .chain(late.and_then(problem))
            .collect()
    }
}

/// Why no program of several steps has transfers overlap with steps, if none has.
fn why_no_overlap(schedule: &Schedule, steps: usize) -> Option<String> {
    let (overlap, every) = (schedule.overlap(), schedule.every());
    if overlap >= every {
        return Some(format!(
            "diloco.overlap_steps must be less than the {} from sync to sync, not {overlap}",
            counted(every, "step")
        ));
    }
    let least = overlap + schedule.period();
    (steps < least).then(|| format!("train.steps must be at least {least}, not {steps}"))
}

/// How the mesh cuts parameters, of which stacked ones have the stages of a pipeline as this dimension.
pub(crate) fn layout_of(
    params: &impl Tree<Leaf = Param>,
    (mesh, rules): (&Mesh, &RuleSets),
    pipeline: Option<&[(usize, &str)]>,
) -> Result<Layout, Error> {
    // Of the leading dimensions of a pipeline's layers, the one over stages.
    let stage_dim = pipeline.and_then(|dims| dims.iter().position(|(_, name)| *name == "layers"));
    let stack = pipeline.map(|dims| dims.iter().map(|(size, _)| *size).collect());
    let parts = |(path, param): (String, Param)| -> Result<Vec<usize>, Error> {
        let texts: Vec<String> = param.spec.axes.iter().map(|name| name.text()).collect();
        let names: Vec<Option<&str>> = texts.iter().map(|text| Some(text.as_str())).collect();
        let rules = rules.get(Role::Params);
        let spec = rules.resolve(mesh, &path, &names, &param.spec.ty.dims, &mut Vec::new())?;
        Ok((0..names.len()).map(|dim| spec.part_count(mesh, dim)).collect())
    };
    let parts = params.paths().into_iter().zip(params.leaves()).map(parts).collect::<Result<_, _>>()?;
    Ok(Layout { stage_dim, stack, parts })
}

/// A declaration with a leading dimension over replicas.
fn param_of_replicas(param: &Param, replicas: usize) -> Param {
    Param { spec: of_replicas(&param.spec, replicas), ..param.clone() }
}

impl<M: Model> DilocoStep<M> {
    fn replicas(&self) -> usize {
        self.diloco.options().replicas
    }

    /// The state's declaration. Leaves of the replicas have a leading dimension named `diloco`, before those over
    /// layers that [`Param::stacked_dims`] counts.
    pub fn state(&self) -> DilocoStateOf<M, Param> {
        // Laid out as the parameters that are synced: split further, each sync would also gather over other axes.
        let as_params =
            |param: &Param| Param { spec: TensorSpec { role: Role::Params, ..param.spec.clone() }, ..param.clone() };
        let mut inner = self.step.state();
        inner.master = inner.master.map(|_, param| as_params(param));
        let params = self.step.wide_parameters(Role::Params);
        let momentum = self.diloco.outer_optimizer().state(&params).map(|_, param| as_params(param));
        DilocoState {
            inner: inner.map(|_, param| param_of_replicas(param, self.replicas())),
            outer: OuterState { params, momentum },
            step: Param::new(DType::S32, [], &[], Init::Constant(0.0)),
        }
    }

    /// The state before the first step, within a trace: that of one replica, for all.
    pub fn first_state(&self, key: Key<Tensor>) -> DilocoStateOf<M, Tensor> {
        let inner = self.step.first_state(key);
        let outer = self.state().outer;
        DilocoState {
            inner: inner.map(|_, one| one.broadcast_to([&[self.replicas()], &one.dims()[..]].concat())),
            outer: OuterState {
                params: first_values(&outer.params, key),
                momentum: first_values(&outer.momentum, key),
            },
            step: zeros(DType::S32, []),
        }
    }

    /// The same on the host, but for rounding.
    ///
    /// # Errors
    /// A parameter's type does not hold its first value.
    pub fn initialize(&self, seed: u64) -> Result<DilocoStateOf<M, Literal>, Error> {
        let (inner, outer) = (self.step.initialize(seed)?, self.state().outer);
        Ok(DilocoState {
            inner: inner.map(|_, literal| literal.repeated(self.replicas())),
            outer: OuterState {
                params: initialize(&outer.params, seed)?,
                momentum: initialize(&outer.momentum, seed)?,
            },
            step: Literal::scalar(0i32),
        })
    }

    /// The types of a batch: of each replica its rows.
    pub fn batch_specs(&self) -> M::Batch<TensorSpec> {
        let rows = self.step.model.batch_specs(self.step.batch, self.step.seq);
        rows.map(|_, spec| of_replicas(spec, self.replicas()))
    }

    /// One step within a trace. Loss and norm are those of each replica.
    pub(crate) fn apply(
        &self,
        declared: &M::Params<Param>,
        state: DilocoStateOf<M, Tensor>,
        batch: M::Batch<Tensor>,
    ) -> (DilocoStateOf<M, Tensor>, (Tensor, Tensor)) {
        let batch = (batch, self.rows());
        self.diloco.step(state, batch, |state, batch| self.of_replica(declared, state, batch))
    }

    /// Several steps within a trace, of batches with a leading dimension over them: in the form for a start where
    /// transfers [overlap](Diloco::overlaps) with steps, or in the one for any.
    pub(crate) fn apply_several(
        &self,
        declared: &M::Params<Param>,
        state: DilocoStateOf<M, Tensor>,
        batches: M::Batch<Tensor>,
        (count, overlaps): (usize, bool),
    ) -> (DilocoStateOf<M, Tensor>, (Tensor, Tensor)) {
        let step = |state, batch| self.of_replica(declared, state, batch);
        let rows = self.rows().map(|rows| rows.broadcast_to([&[count], &rows.dims()[..]].concat()));
        match overlaps {
            true => self.diloco.overlapped_steps(state, (batches, rows), &step),
            false => self.diloco.steps(state, (batches, rows), step),
        }
    }

    /// The numbers of the rows of each replica in the batch of all, `[replicas, rows]`, if something drops.
    fn rows(&self) -> Option<Tensor> {
        let rows = self.step.batch;
        let Some((number, replicas)) = self.apart else {
            return Some(self.step.dropout.rows(self.replicas() * rows)?.reshape([self.replicas(), rows]));
        };
        let numbers = self.step.dropout.rows(replicas * rows)?.reshape([replicas, rows]);
        Some(numbers.slice(0, number..number + 1))
    }

    fn of_replica(
        &self,
        declared: &M::Params<Param>,
        state: TrainStateOf<M, Tensor>,
        (batch, rows): (M::Batch<Tensor>, Option<Tensor>),
    ) -> (TrainStateOf<M, Tensor>, (Tensor, Tensor)) {
        let StepOutput { state, loss, grad_norm } = self.step.apply(declared, StepInput { state, batch }, rows);
        (state, (loss, grad_norm))
    }
}

/// Whether a fragment is sent or applied after this step.
pub(crate) fn is_busy_after(schedule: Schedule, step: u64) -> bool {
    let event = schedule.after_step(step as usize);
    event.sent.is_some() || event.applied.is_some()
}

/// Checks that devices that hold the same part of an outer parameter, as one of each replica does, hold the same bits.
///
/// # Errors
/// The first parameter of which they do not; or the plugin fails.
pub fn check_replicas(outer: &impl Tree<Leaf = Array>) -> Result<(), Error> {
    for (path, array) in outer.paths().into_iter().zip(outer.leaves()) {
        let boxes = array.layout().boxes();
        let own = array.layout().own_devices();
        for (index, device) in own.clone().enumerate() {
            let mut before = own.clone().take(index);
            let Some(other) = before.find(|&other| boxes[other] == boxes[device]) else { continue };
            if array.shard(device)?.bytes() != array.shard(other)?.bytes() {
                return Err(ReplicasDiffer { path, device, other }.into());
            }
        }
    }
    Ok(())
}
