//! The train step as a traced function.

use rustc_hash::FxHashMap;

use super::model::Model;
use crate::Error;
use meshloom::ir::{DType, Literal};
use meshloom::optim::{LearningRate, Optimizer, OptimizerState, UpdateStep, clip_by_global_norm, global_norm};
use meshloom::sharding::Role;
use meshloom::trace::{
    Function, Init, Key, MapTree, Param, Specs, Subtree, Tensor, TensorSpec, TensorTree, Tree, Update, arange,
    fail_internal, first_values, initialize, scope, zeros,
};
use meshloom::transform::accumulate::{in_role, value_and_grad_in_parts};
use meshloom::transform::diloco::HasParams;
use meshloom_nn::{Batch, Decoder, DecoderConfig, Dropout, WholeBatch};

meshloom::tree! {
    /// Everything that a step reads and replaces.
    pub struct TrainState<T, P = Decoder<T>> {
        /// Parameters.
        pub params: P,
        /// `f32` copies of narrower parameters, which the optimizer changes: the parameters are these, rounded. Empty
        /// if a step keeps no [master copies](TrainStep::master_copies). Source: Micikevicius et al., "Mixed Precision
        /// Training", arXiv 1710.03740.
        pub master: Subtree<T>,
        /// Optimizer state.
        pub optimizer: OptimizerState<T, P>,
        /// Updates done, `s32`: steps whose loss and gradient norm were finite. Learning rate, bias correction and
        /// dropout go by it.
        pub step: T,
    }

    /// The input of a step.
    pub struct StepInput<T, P = Decoder<T>, B = Batch<T>> {
        /// The state, which is donated.
        pub state: TrainState<T, P>,
        /// The batch.
        pub batch: B,
    }

    /// The input of the forward pass: trees of parameters and of a batch.
    pub struct LossInput<P, B> {
        /// Parameters.
        pub params: P,
        /// The batch.
        pub batch: B,
    }

    /// The output of a step.
    pub struct StepOutput<T, P = Decoder<T>> {
        /// The new state: the old one, to the bit, where the loss or the norm is not finite.
        pub state: TrainState<T, P>,
        /// The loss before the update, `f32`: of a decoder the mean cross entropy, in nats per token.
        pub loss: T,
        /// Global norm of the gradient before clipping, `f32`.
        pub grad_norm: T,
    }
}

/// The parts of a train step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainStep<M = DecoderConfig> {
    /// The model.
    pub model: M,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning rate.
    pub schedule: LearningRate,
    /// Largest global norm of the gradient; a larger one is scaled down to it.
    pub clip_norm: f64,
    /// Rows of a batch, over all devices.
    pub batch: usize,
    /// Tokens of a row.
    pub seq: usize,
    /// Parts of a batch that are worked on one after the other, their gradients added up; must divide `batch`.
    pub microbatches: usize,
    /// Dropout of the activations.
    pub dropout: DropoutConfig,
    /// Whether parameters that are narrower than `f32` have copies in `f32`, without which updates smaller than half a
    /// unit in a parameter's last place are lost.
    pub master_copies: bool,
    /// The amount by which a step moves parameters of [`Update::AgainstSign`]: the biases by which experts are chosen.
    pub choice_bias_rate: f64,
}

/// The dropout of activations in a train step. Whether an element drops depends on seed, step, layer, place in the
/// layer, row of the whole batch, position and channel, but not on mesh, pipeline, microbatches or replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DropoutConfig {
    /// Probability with which an activation drops; 0 for no dropout.
    pub rate: f64,
    /// Probability with which a weight of attention drops; 0 for none.
    pub attention_rate: f64,
    /// Seed of the key, into which step, layer and place are folded.
    pub seed: u64,
}

impl DropoutConfig {
    /// The numbers of the rows of a batch, `u32`, if something drops.
    pub(crate) fn rows(&self, count: usize) -> Option<Tensor> {
        (self.rate > 0.0 || self.attention_rate > 0.0).then(|| arange(DType::U32, count))
    }

    /// Dropout of rows with these numbers in the first step.
    fn of(&self, rows: Tensor) -> Dropout {
        Dropout { rate: self.rate, attention_rate: self.attention_rate, key: Key::new(self.seed), rows }
    }
}

/// The parameters of a model.
pub(crate) type Params<M, T> = <M as Model>::Params<T>;

/// The state of a model's train step.
pub(crate) type TrainStateOf<M, T> = TrainState<T, Params<M, T>>;

/// The input of a model's train step.
type InputOf<M, T> = StepInput<T, Params<M, T>, <M as Model>::Batch<T>>;

/// A traced train step.
pub type StepFunction<M = DecoderConfig> =
    Function<InputOf<M, TensorSpec>, StepOutput<TensorSpec, Params<M, TensorSpec>>>;

/// The traced forward pass of a train step.
pub type LossFunction<M = DecoderConfig> =
    Function<LossInput<Params<M, TensorSpec>, <M as Model>::Batch<TensorSpec>>, TensorSpec>;

impl<P: TensorTree + Clone> HasParams for TrainState<Tensor, P> {
    type Params = P;

    /// The parameters that the optimizer changes: `f32` copies where there are any.
    fn params(&self) -> P {
        self.master.placed_in(&self.params)
    }

    fn with_params(self, wide: P) -> TrainState<Tensor, P> {
        let dtypes: Vec<DType> = self.params.leaves().iter().map(|param| param.dtype()).collect();
        TrainState { params: rounded(&wide, &dtypes), master: self.master.taken_from(&wide), ..self }
    }
}

/// Gradients of the loss alone: zero for parameters that move against the sign of something else.
fn of_loss<P: TensorTree>(declared: &impl Tree<Leaf = Param>, gradients: &P) -> P {
    map_declared(declared, gradients, |param, gradient| match param.update {
        Update::Optimizer => gradient,
        Update::AgainstSign => gradient.zeros_like(),
    })
}

/// A tree with each tensor replaced, by its parameter's declaration.
fn map_declared<P: TensorTree>(
    declared: &impl Tree<Leaf = Param>,
    tensors: &P,
    mut f: impl FnMut(&Param, Tensor) -> Tensor,
) -> P {
    let declared = declared.leaves();
    let mut leaves = declared.iter().zip(tensors.leaves()).map(|(param, tensor)| f(param, tensor));
    tensors
        .rebuild(&mut || leaves.next().unwrap_or_else(|| fail_internal("a train step", "a tensor for each parameter")))
}

/// Parameters converted to these types, one for each.
fn rounded<P: TensorTree>(params: &P, dtypes: &[DType]) -> P {
    let mut leaves = params.leaves().into_iter().zip(dtypes).map(|(param, &dtype)| param.convert(dtype));
    params.rebuild(&mut || leaves.next().unwrap_or_else(|| fail_internal("a train step", "a type for each parameter")))
}

impl<M: Model> TrainStep<M> {
    /// The state's declaration.
    pub fn state(&self) -> TrainStateOf<M, Param> {
        let params = self.model.parameters();
        let is_narrow = |param: &Param| self.has_master(param);
        let narrow: Vec<bool> = params.leaves().iter().map(is_narrow).collect();
        let master = Subtree::of(&self.wide_parameters(Role::Optimizer), &narrow);
        let optimizer = self.optimizer.state(&params);
        TrainState { params, master, optimizer, step: Param::new(DType::S32, [], &[], Init::Constant(0.0)) }
    }

    fn has_master(&self, param: &Param) -> bool {
        let dtype = param.spec.ty.dtype;
        self.master_copies && dtype.is_float() && dtype.byte_count() < DType::F32.byte_count()
    }

    /// The parameters' declarations as the optimizer changes them: those with copies are these, in a role.
    pub(crate) fn wide_parameters(&self, role: Role) -> Params<M, Param> {
        self.model.parameters().map(|_, param| {
            let mut wide = param.clone();
            if self.has_master(param) {
                wide.spec.ty.dtype = DType::F32;
                wide.spec.role = role;
            }
            wide
        })
    }

    /// The state before the first step, within a trace, from the key of a seed. Parameters are drawn by their paths in
    /// the model, `layers.3.attention.wq`.
    pub fn first_state(&self, key: Key<Tensor>) -> TrainStateOf<M, Tensor> {
        let declared = self.state();
        TrainState {
            params: first_values(&declared.params, key),
            master: first_values(&declared.master, key),
            optimizer: first_values(&declared.optimizer, key),
            step: zeros(DType::S32, []),
        }
    }

    /// Returns the same state on the host, up to rounding.
    ///
    /// # Errors
    /// A parameter's type does not hold its first value.
    pub fn initialize(&self, seed: u64) -> Result<TrainStateOf<M, Literal>, Error> {
        let declared = self.state();
        Ok(TrainState {
            params: initialize(&declared.params, seed)?,
            master: initialize(&declared.master, seed)?,
            optimizer: initialize(&declared.optimizer, seed)?,
            step: Literal::scalar(0i32),
        })
    }

    /// Traces the forward pass alone: from parameters and a batch to the loss. Where activations drop, they drop as in
    /// the first step.
    ///
    /// # Errors
    /// As [`TrainStep::trace`].
    pub fn trace_loss(&self) -> Result<LossFunction<M>, Error> {
        self.trace_loss_of(&self.model.parameters())
    }

    /// As [`TrainStep::trace_loss`], of parameters that are declared as wider than the model's: they are rounded.
    pub(crate) fn trace_loss_of(&self, declared: &Params<M, Param>) -> Result<LossFunction<M>, Error> {
        let specs = LossInput {
            params: declared.map(|_, param| param.spec.clone()),
            batch: self.model.batch_specs(self.batch, self.seq),
        };
        let dtypes: Vec<DType> = self.model.parameters().leaves().iter().map(|param| param.spec.ty.dtype).collect();
        Ok(Function::trace("loss", Specs(specs), |LossInput { params, batch }| {
            let dropout = self.dropout.rows(self.batch).map(|rows| self.dropout.of(rows));
            let whole = scope("loss", || self.model.whole_batch(&batch));
            let params = rounded(&params, &dtypes);
            self.model.loss(&params, &batch, whole, dropout)
        })?)
    }

    /// Traces forward pass, backward pass and update.
    ///
    /// # Errors
    /// The model's sizes do not fit together.
    pub fn trace(&self) -> Result<StepFunction<M>, Error> {
        let declared = self.state();
        let specs = StepInput {
            state: declared.map(|_, param| param.spec.clone()),
            batch: self.model.batch_specs(self.batch, self.seq),
        };
        Ok(Function::trace("train_step", Specs(specs), |input| {
            self.apply(&declared.params, input, self.dropout.rows(self.batch))
        })?)
    }

    /// The step within a trace: forward pass, backward pass and update. `declared` are the parameters' declarations,
    /// `rows` the numbers of the rows, by which activations drop, if they do.
    pub(crate) fn apply(
        &self,
        declared: &M::Params<Param>,
        input: InputOf<M, Tensor>,
        rows: Option<Tensor>,
    ) -> StepOutput<Tensor, M::Params<Tensor>> {
        let StepInput { state, batch } = input;
        let (loss, gradients) = self.loss_and_gradients(declared, &state, (batch, rows));
        scope("optimizer", || {
            // Complete from here on, and split as the optimizer's state is: the norm is that of the whole gradient.
            let all_gradients = in_role(declared, &gradients, Role::Optimizer);
            let gradients = of_loss(declared, &all_gradients);
            let grad_norm = global_norm(&gradients);
            let clipped = clip_by_global_norm(&gradients, grad_norm, self.clip_norm);
            let rate = self.schedule.rate(state.step);
            let wide = state.master.placed_in(&in_role(declared, &state.params, Role::Optimizer));
            // The state is donated, so only the step itself can keep it. Both numbers are of the whole batch and the
            // whole gradient, so all devices choose alike.
            let is_finite = loss.is_finite() & grad_norm.is_finite();
            let step = UpdateStep { number: state.step, only_if: Some(is_finite) };
            let (moved, optimizer) = self.optimizer.update(declared, (&wide, &clipped), &state.optimizer, step, rate);
            let wide = self.balanced(declared, (&wide, moved), &all_gradients, step);
            let step = state.step + is_finite.convert(DType::S32);
            let next = TrainState { optimizer, step, ..state }.with_params(wide);
            StepOutput {
                state: TrainState { params: in_role(declared, &next.params, Role::Params), ..next },
                loss,
                grad_norm,
            }
        })
    }

    /// Returns the parameters that the optimizer has moved, except for those that move against the sign of their
    /// gradients.
    fn balanced<P: TensorTree>(
        &self,
        declared: &impl Tree<Leaf = Param>,
        (before, moved): (&P, P),
        gradients: &P,
        step: UpdateStep,
    ) -> P {
        let (mut before, mut gradients) = (before.leaves().into_iter(), gradients.leaves().into_iter());
        map_declared(declared, &moved, |param, moved| {
            let (before, gradient) = (before.next().unwrap_or(moved), gradients.next().unwrap_or(moved));
            match param.update {
                Update::Optimizer => moved,
                Update::AgainstSign => {
                    step.kept(before - gradient.sign().convert(before.dtype()) * self.choice_bias_rate, before)
                }
            }
        })
    }

    /// The loss of a batch and its gradient, microbatch by microbatch.
    fn loss_and_gradients(
        &self,
        declared: &M::Params<Param>,
        state: &TrainStateOf<M, Tensor>,
        (batch, rows): (M::Batch<Tensor>, Option<Tensor>),
    ) -> (Tensor, M::Params<Tensor>) {
        let dropout = rows.map(|rows| self.dropout.of(rows).at(state.step));
        let whole = scope("loss", || WholeBatch { parts: self.microbatches, ..self.model.whole_batch(&batch) });
        let params = state.params.clone();
        value_and_grad_in_parts(self.microbatches, declared, params, (batch, rows), |params, (part, rows)| {
            let dropout = dropout.zip(rows).map(|(dropout, rows)| Dropout { rows, ..dropout });
            self.model.loss(&params, &part, whole, dropout)
        })
    }
}

/// Pairs of (output, input) with the same path: what a step replaces.
pub fn aliases<I, O>(function: &Function<I, O>) -> Vec<(usize, usize)>
where
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    O: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
{
    let inputs = function.graph().input_info().iter().enumerate();
    let positions: FxHashMap<&str, usize> = inputs.map(|(input, info)| (&*info.path, input)).collect();
    let outputs = function.graph().output_info().iter().enumerate();
    outputs.filter_map(|(output, info)| Some((output, *positions.get(&*info.path)?))).collect()
}
