//! The programs that a replica apart has beside its train step: they make, read and add up messages.

use crate::error::Error;
use crate::run::{DilocoStateOf, DilocoStep, Model, Run, RunStep, TrainState};
use meshloom::compile::{Lowered, Program};
use meshloom::ir::{DType, TensorType};
use meshloom::pjrt::Platform;
use meshloom::trace::{Function, MapTree, Specs, Tensor, TensorSpec, Tree};
use meshloom::transform::diloco::{DilocoState, Share};

/// The programs of a sync for the fragments that have as many layers.
pub(super) struct SharePrograms {
    pub(super) share: Share,
    pub(super) message: Program,
    pub(super) decoded: Program,
    pub(super) added: Program,
    pub(super) updated: Program,
    pub(super) come_in: Program,
}

impl SharePrograms {
    /// The types of the parts of a message.
    pub(super) fn types(&self) -> Vec<TensorType> {
        self.decoded.inputs().iter().map(|spec| spec.ty.clone()).collect()
    }
}

/// The compiled programs that a replica apart has beside its train step.
pub(super) struct ReplicaPrograms {
    pub(super) shares: Vec<SharePrograms>,
    /// Makes a state of an outer state that another replica gave.
    pub(super) taken_over: Program,
}

/// Such programs before they are compiled.
struct LoweredShare {
    share: Share,
    lowered: [Lowered; 5],
}

/// The programs that a replica apart has beside its train step, before they are compiled.
pub(crate) struct LoweredReplica {
    shares: Vec<LoweredShare>,
    taken_over: Lowered,
}

impl LoweredReplica {
    /// Lowers the programs of a run for a platform; a run that is no replica apart has none.
    pub(crate) fn of<M: Model>(run: &Run<M>, platform: &Platform) -> Result<Option<LoweredReplica>, Error> {
        let RunStep::Diloco(step) = &run.step else { return Ok(None) };
        if step.apart.is_none() {
            return Ok(None);
        }
        let shares = step.diloco.shares().into_iter().map(|share| lower_share(run, step, share, platform));
        let shares = shares.collect::<Result<_, _>>()?;
        let (state, number) = (specs_of(step), TensorSpec::new(DType::S32, []));
        let taken_over = Function::trace("diloco_taken_over", Specs((state.clone(), number)), |(state, number)| {
            let inner: TrainState<Tensor, _> = state.inner;
            let inner = TrainState { step: number.reshape([1]), ..inner };
            step.diloco.taken_over(DilocoState { inner, outer: state.outer, step: number })
        })?;
        let taken_over = lower_sync(run, taken_over.with_output_specs(&state)?, state.leaves().len(), platform)?;
        Ok(Some(LoweredReplica { shares, taken_over }))
    }

    /// Compiles all programs by a function that compiles one.
    pub(super) fn compile(
        &self,
        mut compile: impl FnMut(&Lowered) -> Result<Program, Error>,
    ) -> Result<ReplicaPrograms, Error> {
        let mut shares = Vec::new();
        for LoweredShare { share, lowered: [message, decoded, added, updated, come_in] } in &self.shares {
            shares.push(SharePrograms {
                share: *share,
                message: compile(message)?,
                decoded: compile(decoded)?,
                added: compile(added)?,
                updated: compile(updated)?,
                come_in: compile(come_in)?,
            });
        }
        let taken_over = compile(&self.taken_over)?;
        Ok(ReplicaPrograms { shares, taken_over })
    }
}

fn lower_share<M: Model>(
    run: &Run<M>,
    step: &DilocoStep<M>,
    share: Share,
    platform: &Platform,
) -> Result<LoweredShare, Error> {
    let (state, number) = (specs_of(step), TensorSpec::new(DType::S32, []));
    let gradients = step.diloco.gradient_specs(share);
    let message = Function::trace("diloco_message", Specs((state.clone(), number.clone())), |(state, fragment)| {
        step.diloco.message((share, fragment), &state)
    })?;
    // Dimensions without names are not split, so each device has all of them.
    let whole = |spec: &TensorSpec| {
        let rank = spec.ty.rank();
        TensorSpec::new(spec.ty.dtype, &spec.ty.dims[..]).with_axes(&vec![""; rank])
    };
    let sent: Vec<TensorSpec> = message.outputs().iter().map(whole).collect();
    let message = message.with_output_specs(&sent)?;
    let decoded = Function::trace("diloco_decoded", Specs(sent), |message| step.diloco.decoded(share, message))?;
    let two = Specs((gradients.clone(), gradients.clone()));
    let added = Function::trace("diloco_added", two, |(sum, more): (Vec<Tensor>, Vec<Tensor>)| {
        sum.into_iter().zip(more).map(|(sum, more)| sum + more).collect::<Vec<_>>()
    })?;
    let of_update = Specs((state.outer.clone(), number.clone(), gradients.clone(), TensorSpec::new(DType::F32, [])));
    let updated = Function::trace("diloco_updated", of_update, |(outer, fragment, sum, count)| {
        step.diloco.updated((share, fragment), &outer, sum, count)
    })?;
    let come_in = Function::trace("diloco_come_in", Specs((state.clone(), number)), |(state, fragment)| {
        step.diloco.come_in((share, fragment), state)
    })?;
    let (of_outer, of_state) = (state.outer.leaves().len(), state.leaves().len());
    let lowered = [
        lower_sync(run, message, 0, platform)?,
        lower_sync(run, decoded.with_output_specs(&gradients)?, 0, platform)?,
        lower_sync(run, added.with_output_specs(&gradients)?, gradients.len(), platform)?,
        lower_sync(run, updated.with_output_specs(&state.outer)?, of_outer, platform)?,
        lower_sync(run, come_in.with_output_specs(&state)?, of_state, platform)?,
    ];
    Ok(LoweredShare { share, lowered })
}

/// A program whose first `replaced` inputs are replaced by its first outputs.
fn lower_sync<M, I, O>(
    run: &Run<M>,
    function: Function<I, O>,
    replaced: usize,
    platform: &Platform,
) -> Result<Lowered, Error>
where
    M: Model,
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    O: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
{
    let aliases = (0..replaced).map(|index| (index, index)).collect();
    run.lower_beside_step(function.graph(), aliases, platform)
}

fn specs_of<M: Model>(step: &DilocoStep<M>) -> DilocoStateOf<M, TensorSpec> {
    step.state().map(|_, param| param.spec.clone())
}
