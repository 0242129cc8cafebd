//! The state and the step of a run, which has one replica or several, and one step or several in a call.

use super::diloco_step::{DilocoStep, DilocoTrainState, is_busy_after};
use super::model::Model;
use super::train_step::{Params, StepInput, TrainState, TrainStep};
use crate::Error;
use meshloom::ir::Name;
use meshloom::sharding::Role;
use meshloom::trace::{Function, Key, MapTree, Param, Specs, Tensor, TensorSpec, fail_internal, scan};
use meshloom::transform::diloco::REPLICAS;
use meshloom_nn::{Batch, Decoder, DecoderConfig};

meshloom::tree! {
    /// The state of a run.
    pub enum RunState<T, P = Decoder<T>> {
        /// The state of one replica. Paths read `params.embedding`.
        Single(Box<TrainState<T, P>>),
        /// The state of several. Paths read `inner.params.embedding`, `outer.params.embedding`,
        /// `outer.momentum.embedding`.
        Diloco(Box<DilocoTrainState<T, P>>),
    }
}

impl<T, P> RunState<T, P> {
    /// The parameters: of several replicas, those that they agree on, which are `f32` where there are
    /// [master copies](TrainStep::master_copies).
    pub fn params(&self) -> &P {
        match self {
            RunState::Single(state) => &state.params,
            RunState::Diloco(state) => &state.outer.params,
        }
    }

    /// The number of steps done.
    pub fn step(&self) -> &T {
        match self {
            RunState::Single(state) => &state.step,
            RunState::Diloco(state) => &state.step,
        }
    }
}

meshloom::tree! {
    /// The input of a run's program.
    pub struct RunInput<T, P = Decoder<T>, B = Batch<T>> {
        /// The state, which is donated.
        pub state: RunState<T, P>,
        /// The batch: with a leading dimension over steps if a call has several, then one over replicas if there are
        /// several.
        pub batch: B,
    }

    /// The output of a run's program.
    pub struct RunOutput<T, P = Decoder<T>> {
        /// The new state.
        pub state: RunState<T, P>,
        /// The loss, as of [`StepOutput`](super::StepOutput): of each step, if a call has several, and of each
        /// replica, likewise.
        pub loss: T,
        /// The norm of the gradient, likewise.
        pub grad_norm: T,
    }
}

/// A traced program of a run.
pub type RunFunction<M = DecoderConfig> = Function<
    RunInput<TensorSpec, Params<M, TensorSpec>, <M as Model>::Batch<TensorSpec>>,
    RunOutput<TensorSpec, Params<M, TensorSpec>>,
>;

/// A traced function from a key to the state before the first step.
type FirstStateFunction<M> = Function<Key<TensorSpec>, RunStateOf<M, TensorSpec>>;

/// The state of a model's run.
pub(crate) type RunStateOf<M, T> = RunState<T, Params<M, T>>;

/// The number of steps in a call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// One.
    Single,
    /// So many, in a loop.
    Several(usize),
}

impl Calls {
    /// The number of steps.
    pub(crate) fn count(self) -> usize {
        match self {
            Calls::Single => 1,
            Calls::Several(count) => count,
        }
    }
}

/// The train step of a run.
#[derive(Clone, Debug)]
pub(crate) enum RunStep<M = DecoderConfig> {
    Single(Box<TrainStep<M>>),
    Diloco(Box<DilocoStep<M>>),
}

impl<M: Model> RunStep<M> {
    pub(crate) fn state(&self) -> RunStateOf<M, Param> {
        match self {
            RunStep::Single(step) => RunState::Single(Box::new(step.state())),
            RunStep::Diloco(step) => RunState::Diloco(Box::new(step.state())),
        }
    }

    /// Traces what makes the state before the first step, from the key of a seed.
    pub(crate) fn trace_first_state(&self) -> Result<FirstStateFunction<M>, Error> {
        let function = Function::trace("first_state", Key::spec(), |key| match self {
            RunStep::Single(step) => RunState::Single(Box::new(step.first_state(key))),
            RunStep::Diloco(step) => RunState::Diloco(Box::new(step.first_state(key))),
        })?;
        Ok(function.with_output_specs(&self.state().map(|_, param| param.spec.clone()))?)
    }

    /// The declarations of [`RunState::params`].
    pub(crate) fn parameters(&self) -> Params<M, Param> {
        match self {
            RunStep::Single(step) => step.model.parameters(),
            RunStep::Diloco(step) => step.step.wide_parameters(Role::Params),
        }
    }

    /// The step of one replica.
    pub(crate) fn of_replica(&self) -> &TrainStep<M> {
        match self {
            RunStep::Single(step) => step,
            RunStep::Diloco(step) => &step.step,
        }
    }

    /// The leading dimensions of a batch, before its rows.
    pub(crate) fn leading_dims(&self, calls: Calls) -> Vec<usize> {
        let steps = match calls {
            Calls::Single => None,
            Calls::Several(count) => Some(count),
        };
        let replicas = match self {
            RunStep::Single(_) => None,
            RunStep::Diloco(step) => Some(step.diloco.options().replicas),
        };
        steps.into_iter().chain(replicas).collect()
    }

    /// Says whether something syncs after one of the steps behind `before` up to `done`.
    pub(crate) fn syncs(&self, before: u64, done: u64) -> bool {
        match self {
            RunStep::Single(_) => false,
            RunStep::Diloco(step) => {
                let schedule = step.diloco.schedule();
                (before + 1..=done).any(|step| schedule.after_step(step as usize).sent.is_some())
            }
        }
    }

    /// Says whether a call may begin after so many steps. Only programs that send while they compute care; and replicas
    /// apart, which send between two calls.
    pub(crate) fn may_begin(&self, calls: Calls, done: u64) -> bool {
        match (self, calls) {
            (RunStep::Diloco(step), Calls::Several(count)) if step.apart.is_some() => {
                let schedule = step.diloco.schedule();
                (done + 1..done + count as u64).all(|step| !is_busy_after(schedule, step))
            }
            (RunStep::Diloco(step), Calls::Several(count)) => {
                let start = step.diloco.schedule().overlap();
                !step.diloco.overlaps(count, start) || step.diloco.overlaps(count, done as usize)
            }
            _ => true,
        }
    }

    fn batch_specs(&self, calls: Calls) -> M::Batch<TensorSpec> {
        let batch = match self {
            RunStep::Single(step) => step.model.batch_specs(step.batch, step.seq),
            RunStep::Diloco(step) => step.batch_specs(),
        };
        let Calls::Several(count) = calls else { return batch };
        batch.map(|_, spec| {
            let mut spec = spec.clone();
            spec.ty.dims.insert(0, count);
            spec.axes.insert(0, Name::default());
            spec
        })
    }

    pub(crate) fn trace(&self, calls: Calls) -> Result<RunFunction<M>, Error> {
        let specs = RunInput { state: self.state().map(|_, param| param.spec.clone()), batch: self.batch_specs(calls) };
        let declared = self.of_replica().state().params;
        let name = if calls == Calls::Single { "train_step" } else { "train_steps" };
        let function = Function::trace(name, Specs(specs), |RunInput { state, batch }| {
            let (state, (loss, grad_norm)) = self.apply(&declared, calls, state, batch);
            RunOutput { state, loss, grad_norm }
        })?;
        let names: &[&str] = match (self, calls) {
            (RunStep::Single(_), _) => return Ok(function),
            (RunStep::Diloco(_), Calls::Single) => &[REPLICAS],
            (RunStep::Diloco(_), Calls::Several(_)) => &["", REPLICAS],
        };
        // Each replica keeps its own: a step that does not sync sends nothing.
        Ok(function.with_output_axes("loss", names)?.with_output_axes("grad_norm", names)?)
    }

    fn apply(
        &self,
        declared: &M::Params<Param>,
        calls: Calls,
        state: RunStateOf<M, Tensor>,
        batch: M::Batch<Tensor>,
    ) -> (RunStateOf<M, Tensor>, (Tensor, Tensor)) {
        match (self, state) {
            (RunStep::Single(step), RunState::Single(state)) => {
                let one = |state, batch| {
                    let output = step.apply(declared, StepInput { state, batch }, step.dropout.rows(step.batch));
                    (output.state, (output.loss, output.grad_norm))
                };
                let (state, numbers) = match calls {
                    Calls::Single => one(*state, batch),
                    Calls::Several(_) => scan(*state, batch, one),
                };
                (RunState::Single(Box::new(state)), numbers)
            }
            (RunStep::Diloco(step), RunState::Diloco(state)) => {
                let (state, numbers) = match calls {
                    Calls::Single => step.apply(declared, *state, batch),
                    Calls::Several(count) => {
                        let overlaps = step.diloco.overlaps(count, step.diloco.schedule().overlap());
                        step.apply_several(declared, *state, batch, (count, overlaps))
                    }
                };
                (RunState::Diloco(Box::new(state)), numbers)
            }
            // The state was declared by the same step.
            (_, state) => {
                let nothing = fail_internal("a train step", "the state that it declares");
                (state, (nothing, nothing))
            }
        }
    }
}
