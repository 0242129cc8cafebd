//! The train step of several replicas, and its state.

use super::model::Model;
use super::train_step::{Params, StepInput, StepOutput, TrainState, TrainStateOf, TrainStep};
use crate::error::{Error, ReplicasDiffer};
use meshloom::ir::{DType, Literal};
use meshloom::pjrt::Array;
use meshloom::sharding::{Mesh, Role, RuleSets};
use meshloom::trace::{Init, Key, MapTree, Param, Tensor, TensorSpec, Tree, first_values, initialize, zeros};
use meshloom::transform::diloco::{Diloco, DilocoState, Layout, OuterState, SyncSchedule, of_replicas};
use meshloom_nn::{Decoder, DecoderConfig};

/// The state of a run of several replicas: that of each with a leading dimension, outer parameters and velocities, and
/// the steps done.
pub type DilocoTrainState<T, P = Decoder<T>> = DilocoState<TrainState<T, P>, P, T>;

/// The state of a model's run of several replicas.
pub(crate) type DilocoStateOf<M, T> = DilocoTrainState<T, Params<M, T>>;

/// The train step of several replicas.
#[derive(Clone, Debug)]
pub struct DilocoStep<M = DecoderConfig> {
    /// The step of one replica, with its rows of the batch.
    pub step: TrainStep<M>,
    /// The fragments of the parameters, and when each syncs.
    pub diloco: Diloco,
    /// The number of this replica, and how many there may be, where it is apart from the others.
    pub apart: Option<(usize, usize)>,
}

/// Returns how the mesh cuts parameters. Stacked parameters have the dimensions of a pipeline.
pub(crate) fn layout_of(
    params: &impl Tree<Leaf = Param>,
    (mesh, rules): (&Mesh, &RuleSets),
    pipeline: Option<&[(usize, &str)]>,
) -> Result<Layout, Error> {
    // The dimension over stages, among the leading dimensions of a pipeline's layers.
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

    /// Returns the same state on the host, up to rounding.
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

/// Says whether a fragment is sent or applied after this step.
pub(crate) fn is_busy_after(schedule: SyncSchedule, step: u64) -> bool {
    let event = schedule.after_step(step as usize);
    event.sent.is_some() || event.applied.is_some()
}

/// Checks that devices that hold the same part of an outer parameter, as one of each replica does, hold the same bits.
///
/// # Errors
/// A parameter differs between replicas; the error names the first. Or the plugin fails.
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
