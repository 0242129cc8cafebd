//! DiLoCo: replicas of a model train on their own and synchronize now and then, all at once or fragment by fragment.
//!
//! [`Diloco::step`] turns any train step into one that trains R replicas. Their states have a leading dimension named
//! `diloco`, over which the step is mapped, so nothing in it crosses replicas. The outer parameters, on which all
//! replicas agree, and the velocities of the outer optimizer exist once. When a fragment synchronizes,
//!
//! - it is *sent*: its pseudo-gradient, the mean over the replicas of `outer - inner`, is reduced, and SGD with
//!   Nesterov momentum computes new outer parameters;
//! - `tau` steps later it is *applied*: the replicas' parameters become `alpha * inner + (1 - alpha) * outer`.
//!
//! Between the two, the outer parameters are in transit. Both stand under conditionals whose predicate is one scalar
//! for all replicas, the number of steps done; under `vmap` each replica would have one, and every branch would always
//! run. So a step that does not synchronize sends nothing, and one that does sends one fragment. Fragments of layers
//! are cut out at a computed position: one branch serves all fragments of one size, and the size of a program does not
//! depend on their number.
//!
//! [`Diloco::steps`] runs several steps in one program. If that program is known to contain the steps between sending
//! and using each fragment ([`Diloco::overlaps`]), it has no conditionals: a fragment is sent before a loop of `tau`
//! steps that do not need it, and applied after it, so the compiler may send while it computes.
//!
//! | module | what it says |
//! |---|---|
//! | `options` | the form of a run, and which there can be |
//! | `schedule` | what is sent and applied after which step |
//! | `fragments` | which parameters and layers a fragment holds, and how they are cut out |
//! | `transport` | how pseudo-gradients get from replica to replica |
//! | `state` | what a run reads and replaces |
//! | `overlap` | several steps in one program |
//!
//! Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105;
//! Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch", arXiv
//! 2501.18512.

mod fragments;
mod options;
mod overlap;
mod schedule;
mod state;
mod transport;

use std::panic::Location;

pub use fragments::{Fragments, Layout};
pub use options::{DilocoError, DilocoOptions, LayerOrder, Streaming, Transport};
pub use schedule::{Event, Fragment, Schedule};
pub use state::{DilocoState, HasParams, OuterState, of_replicas};
pub use transport::REPLICAS;

use fragments::{Cut, Leaf};

use crate::ir::DType;
use crate::optim::Sgd;
use crate::trace::{Param, Place, Tensor, Tree, VmapOptions, cond, refill, scope, vmap_with};

/// A checked form of a run over known parameters.
#[derive(Clone, Debug)]
pub struct Diloco {
    options: DilocoOptions,
    schedule: Schedule,
    fragments: Fragments,
}

/// The leaves of something, one tensor for each parameter.
type Leaves = Vec<Tensor>;

impl Diloco {
    /// DiLoCo over parameters that are declared so.
    ///
    /// # Errors
    /// The options exclude each other, or do not fit the parameters.
    pub fn new(
        options: &DilocoOptions,
        params: &impl Tree<Leaf = Param>,
        layout: &Layout,
    ) -> Result<Diloco, DilocoError> {
        let schedule = options.schedule()?;
        Ok(Diloco { options: options.clone(), schedule, fragments: Fragments::new(options, params, layout)? })
    }

    /// The options.
    pub fn options(&self) -> &DilocoOptions {
        &self.options
    }

    /// When fragments are sent and applied.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// What fragments hold.
    pub fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    /// The outer optimizer.
    pub fn outer_optimizer(&self) -> Sgd {
        Sgd { momentum: self.options.outer_momentum, nesterov: true }
    }

    /// Bytes that a replica sends when this fragment syncs, over all its devices.
    pub fn payload_bytes(&self, fragment: Fragment) -> usize {
        self.fragments.payload_bytes(fragment, self.options.transport, self.options.block).iter().sum()
    }

    /// One step of all replicas, and what syncs after it. Every leaf of `batch` has a leading dimension over the
    /// replicas, and so has every output of `step`, which maps the state of one replica and its batch to a new state
    /// and outputs.
    #[track_caller]
    pub fn step<S, B, O>(
        &self,
        state: DilocoState<S, S::Params, Tensor>,
        batch: B,
        step: impl FnOnce(S, B) -> (S, O),
    ) -> (DilocoState<S, S::Params, Tensor>, O)
    where
        S: HasParams,
        B: Tree<Leaf = Tensor>,
        O: Tree<Leaf = Tensor>,
    {
        let place = Location::caller();
        let (inner, outputs) = self.of_replicas(state.inner, batch, step);
        let done = state.step + 1;
        let (params, mut outer) = (inner.params(), state.outer);
        let leaves = scope("diloco_send", || self.send(done, &params.leaves(), &outer, place));
        outer = refill(&outer, &mut leaves.concat().into_iter());
        let applied = scope("diloco_apply", || self.apply(done, params.leaves(), outer.params.leaves()));
        let params = refill(&params, &mut applied.into_iter());
        (DilocoState { inner: inner.with_params(params), outer, step: done }, outputs)
    }

    /// A step of all replicas on their own.
    fn of_replicas<S, B, O>(&self, inner: S, batch: B, step: impl FnOnce(S, B) -> (S, O)) -> (S, O)
    where
        S: HasParams,
        B: Tree<Leaf = Tensor>,
        O: Tree<Leaf = Tensor>,
    {
        let options = VmapOptions { size: Some(self.options.replicas), ..VmapOptions::default() }.named(REPLICAS);
        vmap_with(options, (inner, batch), |(inner, batch)| step(inner, batch))
    }

    /// Outer parameters and velocities after a step: those of the fragment that is sent, if there is one, are new.
    fn send<P: Tree<Leaf = Tensor>>(
        &self,
        done: Tensor,
        inner: &Leaves,
        outer: &OuterState<P>,
        place: Place,
    ) -> [Leaves; 2] {
        let outer = [outer.params.leaves(), outer.momentum.leaves()];
        self.at_sync(done, outer, |cut, outer| {
            let parts = self.fragments.take(cut, &outer[0], 0);
            let gradients = self.pseudo_gradients(cut, &parts, inner, place);
            self.outer_update(cut, outer, parts, gradients)
        })
    }

    /// The replicas' parameters after a step, with the fragment that comes in, if there is one.
    fn apply(&self, done: Tensor, inner: Leaves, outer: Leaves) -> Leaves {
        let sent = done - self.schedule.overlap() as i32;
        let [inner] = self.at_sync(sent, [inner], |cut, [inner]| [self.applied(cut, inner, &outer)]);
        inner
    }

    /// What `f` makes of these leaves and the fragment that is sent after step `step`, an `s32[]`; the leaves if there
    /// is none.
    fn at_sync<const N: usize>(
        &self,
        step: Tensor,
        leaves: [Leaves; N],
        f: impl Fn(Cut, [Leaves; N]) -> [Leaves; N],
    ) -> [Leaves; N] {
        let every = self.schedule.every() as i32;
        let syncs = (step % every).equal(0) & step.greater(0);
        let fragment = (step % self.schedule.period() as i32) / every;
        let classes = self.fragments.size_classes();
        let layers = |layers| Cut::Layers { layers, fragment };
        let sync = |name, cut, leaves| scope(name, || f(cut, leaves));
        let of_layers = |leaves: [Leaves; N]| match &classes[..] {
            [longer, shorter] => cond(
                fragment.less(shorter.fragments.start as i32),
                leaves,
                |leaves| sync("longer_layer_fragment", layers(longer.layers), leaves),
                |leaves| sync("layer_fragment", layers(shorter.layers), leaves),
            ),
            [class, ..] => sync("layer_fragment", layers(class.layers), leaves),
            [] => leaves,
        };
        let sync = |leaves: [Leaves; N]| match self.fragments.is_streaming() {
            false => sync("all_parameters", Cut::Whole, leaves),
            true => cond(fragment.equal(0), leaves, |leaves| sync("fragment_0", Cut::Outside, leaves), of_layers),
        };
        cond(syncs, leaves, sync, |leaves| leaves)
    }

    /// The pseudo-gradients of a fragment: `f32`, the mean over the replicas of how far they have come from its outer
    /// parameters.
    fn pseudo_gradients(&self, cut: Cut, outer_parts: &[Tensor], inner: &[Tensor], place: Place) -> Leaves {
        let inner = self.fragments.take(cut, inner, 1);
        let members = self.fragments.members(cut).map(|(_, leaf)| leaf);
        let delta = |((leaf, &outer), inner): ((&Leaf, &Tensor), Tensor)| {
            let layout = self.fragments.part_layout(cut.is_by_layers(), leaf);
            let delta = every_replica(outer, inner, layout.replica_dim).convert(DType::F32) - inner.convert(DType::F32);
            (delta, layout)
        };
        let deltas = members.zip(outer_parts).zip(inner).map(delta).collect();
        transport::means(self.options.transport, self.options.block, deltas, place)
    }

    /// Outer parameters and velocities with those of a fragment replaced, whose parameters are given.
    fn outer_update(&self, cut: Cut, [params, momentum]: [Leaves; 2], parts: Leaves, gradients: Leaves) -> [Leaves; 2] {
        let velocities = self.fragments.take(cut, &momentum, 0);
        let (new_params, new_momentum) =
            self.outer_optimizer().update(&parts, &gradients, &velocities, self.options.outer_rate);
        [self.fragments.put(cut, &params, new_params, 0), self.fragments.put(cut, &momentum, new_momentum, 0)]
    }

    /// The replicas' parameters with those of a fragment mixed with, or replaced by, the outer ones.
    fn applied(&self, cut: Cut, inner: Leaves, outer: &[Tensor]) -> Leaves {
        let alpha = self.options.streaming.map_or(0.0, |streaming| streaming.overlap_alpha);
        let own = self.fragments.take(cut, &inner, 1);
        let come_in = self.fragments.take(cut, outer, 0).into_iter().zip(&own).map(|(outer, &own)| {
            let outer = every_replica(outer, own, usize::from(cut.is_by_layers()));
            if alpha == 0.0 { outer } else { own * alpha + outer * (1.0 - alpha) }
        });
        let parts = come_in.collect();
        self.fragments.put(cut, &inner, parts, 1)
    }
}

/// One value for every replica: the dimension over them is `at`.
fn every_replica(outer: Tensor, inner: Tensor, at: usize) -> Tensor {
    let kept: Vec<i32> = (0..inner.rank()).filter(|&dim| dim != at).map(|dim| dim as i32).collect();
    outer.broadcast_like(inner, &kept[..])
}
