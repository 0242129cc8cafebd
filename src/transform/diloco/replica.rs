//! A replica that trains apart from the others, in a run of its own: the programs around a sync.
//!
//! | program | result |
//! |---|---|
//! | [`Diloco::message`] | the message that a replica sends when a fragment syncs, from its state |
//! | [`Diloco::decoded`] | the pseudo-gradients that a message carries |
//! | [`Diloco::updated`] | new outer parameters and velocities, from the sum of the pseudo-gradients that count |
//! | [`Diloco::come_in`] | the parameters of the replica, from the outer parameters |
//! | [`Diloco::taken_over`] | the state of a replica that joins, from the outer parameters of others |
//!
//! They do what [`Diloco::step`] does in one program of all replicas, in the same forms. The messages travel outside of
//! any program, so steps go on meanwhile, and the participants may change from one sync to the next. The state is that
//! of one replica, with a leading dimension of size 1.

use super::fragments::{Cut, Leaf, Share};
use super::schedule::Fragment;
use super::state::{DilocoState, HasParams, OuterState};
use super::{Diloco, Leaves, Stored, transport};
use crate::ir::{DType, Literal, Name, Role};
use crate::trace::{Tensor, TensorSpec, Tree, refill, scope};

impl Diloco {
    /// The share of each fragment.
    pub fn share(&self, fragment: Fragment) -> Share {
        match fragment {
            Fragment::Whole => Share::Whole,
            Fragment::Part(0) => Share::Outside,
            Fragment::Part(_) => Share::Layers(self.fragments.layers_of(fragment).len()),
        }
    }

    /// All shares, each once.
    pub fn shares(&self) -> Vec<Share> {
        let mut shares: Vec<Share> = self.schedule.fragments().map(|fragment| self.share(fragment)).collect();
        shares.sort_by_key(|share| match share {
            Share::Whole | Share::Outside => 0,
            Share::Layers(layers) => *layers,
        });
        shares.dedup();
        shares
    }

    /// The message that a replica sends when a fragment, an `s32[]`, syncs: how far the replica has come from the outer
    /// parameters, in the form of the [`Transport`](super::Transport).
    #[track_caller]
    pub fn message<S: HasParams>(
        &self,
        (share, fragment): (Share, Tensor),
        state: &DilocoState<S, S::Params, Tensor>,
    ) -> Leaves {
        let cut = Cut { share, fragment: Some(fragment) };
        scope("diloco_message", || {
            let outer = self.fragments.take(cut, &state.outer.params.leaves(), 0);
            let inner = self.fragments.take(cut, &state.inner.params().leaves(), 1);
            let deltas = self.deltas(cut, &outer, &inner);
            let (transport, block) = (self.options.transport, self.options.block);
            deltas.into_iter().flat_map(|(delta, layout)| transport::sent(transport, block, delta, &layout)).collect()
        })
    }

    /// The pseudo-gradients that a [message](Diloco::message) carries, `f32`, of the types of
    /// [`Diloco::gradient_specs`].
    #[track_caller]
    pub fn decoded(&self, share: Share, message: Leaves) -> Leaves {
        let mut message = message.into_iter();
        let (transport, block) = (self.options.transport, self.options.block);
        scope("diloco_decoded", || {
            let gradient = |(_, leaf): (usize, &Leaf)| {
                let layout = self.fragments.part_layout(share.layers().is_some(), leaf);
                let dims = self.fragments.part_dims(share.layers(), leaf);
                transport::received(transport, block, &mut message, &layout, &dims)
            };
            self.fragments.members(share).map(gradient).collect()
        })
    }

    /// The norm of the pseudo-gradients that a [message](Diloco::message) carries, on the host: the same on every host,
    /// and not finite if one of the numbers is not, or if the message ends early.
    pub fn message_norm(&self, share: Share, message: &[Literal]) -> f64 {
        let mut message = message.iter();
        let (transport, block) = (self.options.transport, self.options.block);
        let squares = |(_, leaf): (usize, &Leaf)| {
            let layout = self.fragments.part_layout(share.layers().is_some(), leaf);
            let dims = self.fragments.part_dims(share.layers(), leaf);
            transport::squares(transport, block, &mut message, &layout, &dims)
        };
        self.fragments.members(share).map(squares).sum::<f64>().sqrt()
    }

    /// The pseudo-gradients of a share, laid out as the parameters.
    pub fn gradient_specs(&self, share: Share) -> Vec<TensorSpec> {
        let spec = |(_, leaf): (usize, &Leaf)| {
            let names: Vec<Name> = self.fragments.part_layout(share.layers().is_some(), leaf).names;
            let mut spec = TensorSpec::new(DType::F32, &self.fragments.part_dims(share.layers(), leaf)[..]);
            (spec.axes, spec.role) = (names.into_iter().collect(), Role::Params);
            spec
        };
        self.fragments.members(share).map(spec).collect()
    }

    /// The outer parameters and velocities after the sync of a fragment: `sum` is that of the pseudo-gradients of
    /// `count` replicas, an `f32[]`.
    #[track_caller]
    pub fn updated<P: Tree<Leaf = Tensor>>(
        &self,
        (share, fragment): (Share, Tensor),
        outer: &OuterState<P>,
        sum: Leaves,
        count: Tensor,
    ) -> OuterState<P> {
        let cut = Cut { share, fragment: Some(fragment) };
        scope("diloco_updated", || {
            let stored = Stored { leaves: [outer.params.leaves(), outer.momentum.leaves()], leading: 0 };
            let gradients = sum.into_iter().map(|sum| sum / count.broadcast_to(sum.dims())).collect();
            let new = self.outer_update(stored.take(&self.fragments, cut), &gradients);
            let leaves = stored.put(&self.fragments, cut, new).leaves;
            refill(outer, &mut leaves.concat().into_iter())
        })
    }

    /// The state when a fragment's outer parameters come into those of the replica.
    #[track_caller]
    pub fn come_in<S: HasParams>(
        &self,
        (share, fragment): (Share, Tensor),
        state: DilocoState<S, S::Params, Tensor>,
    ) -> DilocoState<S, S::Params, Tensor> {
        let cut = Cut { share, fragment: Some(fragment) };
        scope("diloco_come_in", || {
            let params = state.inner.params();
            let own = Stored { leaves: [params.leaves()], leading: 1 };
            let [parts] = own.take(&self.fragments, cut);
            let outer = self.fragments.take(cut, &state.outer.params.leaves(), 0);
            let mixed = own.put(&self.fragments, cut, [self.applied(cut, &parts, outer)]).leaves;
            let inner = state.inner.with_params(refill(&params, &mut mixed.concat().into_iter()));
            DilocoState { inner, ..state }
        })
    }

    /// The state of a replica that joins, whose outer parameters are those of the others: its own are the same.
    #[track_caller]
    pub fn taken_over<S: HasParams>(
        &self,
        state: DilocoState<S, S::Params, Tensor>,
    ) -> DilocoState<S, S::Params, Tensor> {
        let params = state.inner.params();
        let outer = state.outer.params.leaves();
        let mut own = outer.iter().map(|outer| outer.reshape([&[1], &outer.dims()[..]].concat()));
        let inner = state.inner.with_params(refill(&params, &mut own));
        DilocoState { inner, ..state }
    }
}
