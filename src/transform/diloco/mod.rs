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
//! depend on their number. They are cut out before the conditional and put back behind it, so that it carries one share
//! of the layers beside the parameters outside of them, not all layers.
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
//! | `replica` | a replica in a run of its own: messages travel outside of programs |
//!
//! Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105;
//! Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch", arXiv
//! 2501.18512.

mod replica;
mod fragments;
mod options;
mod overlap;
mod schedule;
mod state;
mod transport;

use std::array;
use std::panic::Location;

pub use fragments::{Fragments, Layout, Share};
pub use options::{DilocoError, DilocoOptions, LayerOrder, Streaming, Transport};
pub use schedule::{Event, Fragment, SyncSchedule};
pub use state::{DilocoState, HasParams, OuterState, of_replicas};
pub use transport::REPLICAS;

use fragments::{Cut, Leaf};
use transport::PartLayout;

use crate::ir::DType;
use crate::optim::Sgd;
use crate::trace::{Param, Tensor, Tree, VmapOptions, composite, concatenate, cond, refill, scope, switch, vmap_with};

/// A checked form of a run over known parameters.
#[derive(Clone, Debug)]
pub struct Diloco {
    options: DilocoOptions,
    schedule: SyncSchedule,
    fragments: Fragments,
}

/// One tensor for each parameter.
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
    pub fn schedule(&self) -> SyncSchedule {
        self.schedule
    }

    /// The parameters and layers that each fragment holds.
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

    /// Runs one step of all replicas, and the sync after it, unless the replicas are apart. Every leaf of `batch` has a
    /// leading dimension over the replicas, and so has every output of `step`, which maps the state of one replica and
    /// its batch to a new state and outputs.
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
        if self.options.apart {
            return (DilocoState { inner, outer: state.outer, step: done }, outputs);
        }
        let (params, mut outer) = (inner.params(), state.outer);
        let send = || self.send(done, &params.leaves(), &outer);
        let leaves = composite(place, || scope("diloco_send", send));
        outer = refill(&outer, &mut leaves.concat().into_iter());
        let applied = scope("diloco_apply", || self.apply(done, params.leaves(), &outer.params.leaves()));
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
    fn send<P: Tree<Leaf = Tensor>>(&self, done: Tensor, inner: &Leaves, outer: &OuterState<P>) -> [Leaves; 2] {
        let outer = Stored { leaves: [outer.params.leaves(), outer.momentum.leaves()], leading: 0 };
        self.at_sync(done, outer, inner, |cut, [params, momentum], inner| {
            let gradients = self.pseudo_gradients(cut, &params, &inner);
            self.outer_update([params, momentum], &gradients)
        })
    }

    /// The replicas' parameters after a step, with the fragment that comes in, if there is one.
    fn apply(&self, done: Tensor, inner: Leaves, outer: &Leaves) -> Leaves {
        let sent = done - self.schedule.overlap() as i32;
        let inner = Stored { leaves: [inner], leading: 1 };
        let [inner] = self.at_sync(sent, inner, outer, |cut, [own], outer| [self.applied(cut, &own, outer)]);
        inner
    }

    /// Applies `f` to the parts of these leaves in the fragment that is sent after step `step`, an `s32[]`, and returns
    /// the leaves with the results in place; without such a fragment it returns the leaves unchanged. `f` also gets the
    /// fragment's parts of the values that it only reads: those of the replicas if it replaces values that exist once,
    /// or the other way round.
    ///
    /// The conditional carries what may change: the parameters outside of layers, and one share of layers, which is cut
    /// out before it and put back behind it. So a branch in which nothing is sent returns what it got, and no branch
    /// copies layers of other fragments.
    fn at_sync<const N: usize>(
        &self,
        step: Tensor,
        stored: Stored<N>,
        read: &Leaves,
        f: impl Fn(Cut, [Leaves; N], Leaves) -> [Leaves; N],
    ) -> [Leaves; N] {
        let every = self.schedule.every() as i32;
        let syncs = (step % every).equal(0) & step.greater(0);
        let classes = self.fragments.size_classes();
        let Some(largest) = classes.first() else {
            let sync = |(leaves, read)| scope("all_parameters", || f(Cut::WHOLE, leaves, read));
            return cond(syncs, (stored.leaves, read.clone()), sync, |(leaves, _)| leaves);
        };
        let fragment = (step % self.schedule.period() as i32) / every;
        // If no fragment of this size is due, the layers of the first one go through unchanged.
        let of_layers = |layers| Cut::layers(layers, fragment.maximum(1));
        let cuts = [Cut::OUTSIDE, of_layers(largest.layers)];
        let through: Through<N> = (
            cuts.map(|cut| stored.take(&self.fragments, cut)),
            cuts.map(|cut| self.fragments.take(cut, read, 1 - stored.leading)),
        );
        let none = |(parts, _): Through<N>| parts;
        let outside =
            |([parts, layers], [read, _]): Through<N>| [scope("fragment_0", || f(Cut::OUTSIDE, parts, read)), layers];
        let all = |([outside, parts], [_, read]): Through<N>| {
            let name = if classes.len() > 1 { "longer_layer_fragment" } else { "layer_fragment" };
            [outside, scope(name, || f(of_layers(largest.layers), parts, read))]
        };
        let selector = syncs.convert(DType::S32) * (fragment.greater(0).convert(DType::S32) + 1);
        let [outside, layers] = match &classes[..] {
            [_, shorter] => {
                // A shorter fragment comes with a layer of another one behind its own, which goes through unchanged;
                // behind the last layer of all comes the first.
                let count = shorter.layers;
                let without_last = |([outside, parts], [_, read]): Through<N>| {
                    let first = |leaves: &Leaves| leaves.iter().map(|leaf| leaf.slice(0, ..count)).collect::<Leaves>();
                    let new = scope("layer_fragment", || {
                        let new = f(of_layers(count), parts.each_ref().map(first), first(&read));
                        array::from_fn(|index| with_last_of(&new[index], &parts[index], count))
                    });
                    [outside, new]
                };
                let is_shorter = fragment.greater_equal(shorter.fragments.start as i32).convert(DType::S32);
                let selector = selector + syncs.convert(DType::S32) * is_shorter;
                switch(selector, through, [&none, &outside, &all, &without_last])
            }
            _ => switch(selector, through, [&none, &outside, &all]),
        };
        let stored = stored.put(&self.fragments, cuts[0], outside);
        stored.put(&self.fragments, cuts[1], layers).leaves
    }

    /// The pseudo-gradients of a fragment: `f32`, the mean over the replicas of how far they have come from its outer
    /// parameters. Both are given as the fragment's parts.
    fn pseudo_gradients(&self, cut: Cut, outer: &[Tensor], inner: &[Tensor]) -> Leaves {
        transport::means(self.options.transport, self.options.block, self.deltas(cut, outer, inner))
    }

    /// How far each replica has come from the outer parameters, of a fragment's parts; and how they lie.
    fn deltas(&self, cut: Cut, outer: &[Tensor], inner: &[Tensor]) -> Vec<(Tensor, PartLayout)> {
        let members = self.fragments.members(cut.share).map(|(_, leaf)| leaf);
        let delta = |((leaf, &outer), &inner): ((&Leaf, &Tensor), &Tensor)| {
            let layout = self.fragments.part_layout(cut.share.layers().is_some(), leaf);
            let delta = every_replica(outer, inner, layout.replica_dim).convert(DType::F32) - inner.convert(DType::F32);
            (delta, layout)
        };
        members.zip(outer).zip(inner).map(delta).collect()
    }

    /// New outer parameters and velocities of a fragment.
    fn outer_update(&self, [params, momentum]: [Leaves; 2], gradients: &Leaves) -> [Leaves; 2] {
        self.outer_optimizer().update(&params, gradients, &momentum, self.options.outer_rate).into()
    }

    /// The replicas' parameters of a fragment mixed with, or replaced by, the outer ones.
    fn applied(&self, cut: Cut, own: &[Tensor], outer: Leaves) -> Leaves {
        let alpha = self.options.streaming.map_or(0.0, |streaming| streaming.overlap_alpha);
        let come_in = outer.into_iter().zip(own).map(|(outer, &own)| {
            let outer = every_replica(outer, own, usize::from(cut.share.layers().is_some()));
            if alpha == 0.0 { outer } else { own * alpha + outer * (1.0 - alpha) }
        });
        come_in.collect()
    }
}

/// The operands of a conditional: the parts outside of layers and those of a share of layers, first of the replaced
/// values, then of those that are only read.
type Through<const N: usize> = ([[Leaves; N]; 2], [Leaves; 2]);

/// Values that a sync replaces, each with a leaf for every parameter, and the number of dimensions that stand before
/// those declared.
struct Stored<const N: usize> {
    leaves: [Leaves; N],
    leading: usize,
}

impl<const N: usize> Stored<N> {
    /// The parts of a fragment.
    fn take(&self, fragments: &Fragments, cut: Cut) -> [Leaves; N] {
        self.leaves.each_ref().map(|leaves| fragments.take(cut, leaves, self.leading))
    }

    /// The same with the parts of a fragment replaced.
    fn put(&self, fragments: &Fragments, cut: Cut, parts: [Leaves; N]) -> Stored<N> {
        let mut pairs = self.leaves.iter().zip(parts);
        let leaves = array::from_fn(|_| {
            pairs.next().map_or_else(Leaves::new, |(leaves, parts)| fragments.put(cut, leaves, parts, self.leading))
        });
        Stored { leaves, leading: self.leading }
    }
}

/// One value for every replica: the dimension over them is `at`.
fn every_replica(outer: Tensor, inner: Tensor, at: usize) -> Tensor {
    let kept: Vec<i32> = (0..inner.rank()).filter(|&dim| dim != at).map(|dim| dim as i32).collect();
    outer.broadcast_like(inner, &kept[..])
}

/// New layers, followed by the last ones of `before`, which stay.
fn with_last_of(new: &[Tensor], before: &[Tensor], count: usize) -> Leaves {
    new.iter().zip(before).map(|(&new, &before)| concatenate(&[new, before.slice(0, count..)], 0)).collect()
}
