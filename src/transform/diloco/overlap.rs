//! Several steps in one program.

use std::panic::Location;

use super::fragments::{Cut, SizeClass};
use super::{Diloco, DilocoError, DilocoState, HasParams, Stored};
use crate::trace::{Tensor, TraceErrorKind, Tree, arange, composite, concatenate, fail, refill, scan, scope};

/// A run's state within a trace.
type Carry<S> = DilocoState<S, <S as HasParams>::Params, Tensor>;

impl Diloco {
    /// Whether a program of `steps` steps, run after `done` of them, can send a fragment while it computes. This
    /// requires that the steps from a sending to the application are all part of it, and that all fragments are sent
    /// equally often.
    ///
    /// With k steps from sync to sync and `tau` of them from sending to applying, it holds for `0 < tau < k` and whole
    /// periods that begin where one fragment has just come in: after `tau` steps, or a period later, or two ..
    pub fn overlaps(&self, steps: usize, done: usize) -> bool {
        let (schedule, overlap) = (self.schedule(), self.schedule().overlap());
        let fits = !self.options.apart && overlap > 0 && overlap < schedule.every();
        fits && steps > 0 && steps.is_multiple_of(schedule.period()) && done % schedule.period() == overlap
    }

    /// Runs one step for each slice of `batches` along the leading dimension of its leaves, one after the other, each
    /// as [`Diloco::step`]: right after any number of steps. Outputs are stacked.
    #[track_caller]
    pub fn steps<S, B, O>(&self, state: Carry<S>, batches: B, step: impl FnOnce(S, B) -> (S, O)) -> (Carry<S>, O)
    where
        S: HasParams,
        B: Tree<Leaf = Tensor>,
        O: Tree<Leaf = Tensor>,
    {
        scan(state, batches, |state, batch| self.step(state, batch, step))
    }

    /// The same steps, for a number of them and a start that [overlap](Diloco::overlaps): without conditionals, and
    /// with each fragment's transfer beside the steps until it is needed. `step` is traced several times.
    ///
    /// # Errors
    /// In the trace: [`DilocoError::StepsPerCall`].
    #[track_caller]
    pub fn overlapped_steps<S, B, O>(&self, state: Carry<S>, batches: B, step: &dyn Fn(S, B) -> (S, O)) -> (Carry<S>, O)
    where
        S: HasParams,
        B: Tree<Leaf = Tensor>,
        O: Tree<Leaf = Tensor>,
    {
        let schedule = self.schedule();
        let (period, overlap, every) = (schedule.period(), schedule.overlap(), schedule.every());
        let steps = batches.leaves().first().and_then(|leaf| leaf.dims().first().copied()).unwrap_or(0);
        if !self.overlaps(steps, overlap) {
            let error = DilocoError::StepsPerCall { steps, period, overlap, every };
            fail(TraceErrorKind::Other(error.to_string()), Location::caller());
        }
        in_groups(period, batches, state, |state, batches| self.one_period(state, batches, step))
    }

    /// The layer fragments, in a loop for those of one size, then fragment 0.
    fn one_period<S, B, O>(&self, mut state: Carry<S>, batches: B, step: &dyn Fn(S, B) -> (S, O)) -> (Carry<S>, O)
    where
        S: HasParams,
        B: Tree<Leaf = Tensor>,
        O: Tree<Leaf = Tensor>,
    {
        let every = self.schedule().every();
        let mut outputs: Option<O> = None;
        for SizeClass { fragments, layers } in self.fragments.size_classes() {
            // The slices for fragment f stand before step f k + tau, those of fragment 1 first.
            let batches = slices(&batches, (fragments.start - 1) * every..(fragments.end - 1) * every);
            let batches = map_leaves(&batches, |leaf| split(leaf, every));
            let numbers = arange(crate::ir::DType::S32, fragments.len()) + fragments.start as i32;
            let (next, output) = scan(state, (numbers, batches), |state, (fragment, batches)| {
                self.one_sync(state, batches, Cut::layers(layers, fragment), step)
            });
            state = next;
            outputs = Some(behind(outputs, map_leaves(&output, join)));
        }
        let batches = slices(&batches, (self.schedule().fragment_count() - 1) * every..self.schedule().period());
        let (state, output) = self.one_sync(state, batches, Cut::OUTSIDE, step);
        (state, behind(outputs, output))
    }

    /// The k steps until a fragment has come in; the last `tau` run while it is sent.
    #[track_caller]
    fn one_sync<S, B, O>(&self, state: Carry<S>, batches: B, cut: Cut, step: &dyn Fn(S, B) -> (S, O)) -> (Carry<S>, O)
    where
        S: HasParams,
        B: Tree<Leaf = Tensor>,
        O: Tree<Leaf = Tensor>,
    {
        let place = Location::caller();
        let every = self.schedule().every();
        let before = every.saturating_sub(self.schedule().overlap());
        let run = |inner: S, batches: B| scan(inner, batches, |inner, batch| self.of_replicas(inner, batch, step));
        let (inner, first) = run(state.inner, slices(&batches, 0..before));
        let outer = Stored { leaves: [state.outer.params.leaves(), state.outer.momentum.leaves()], leading: 0 };
        let parts = scope("diloco_send", || outer.take(&self.fragments, cut));
        let sent = inner.params().leaves();
        let send = || self.pseudo_gradients(cut, &parts[0], &self.fragments.take(cut, &sent, 1));
        let gradients = composite(place, || scope("diloco_send", send));
        let (inner, last) = run(inner, slices(&batches, before..every));
        let new = scope("diloco_send", || self.outer_update(parts, &gradients));
        let params = inner.params();
        let applied = scope("diloco_apply", || {
            let own = Stored { leaves: [params.leaves()], leading: 1 };
            let [parts] = own.take(&self.fragments, cut);
            own.put(&self.fragments, cut, [self.applied(cut, &parts, new[0].clone())]).leaves.concat()
        });
        let outer = scope("diloco_send", || outer.put(&self.fragments, cut, new).leaves);
        let inner = inner.with_params(refill(&params, &mut applied.into_iter()));
        let outer = refill(&state.outer, &mut outer.concat().into_iter());
        let state = DilocoState { inner, outer, step: state.step + every as i32 };
        (state, behind(Some(first), last))
    }
}

/// A scan over groups of `size` slices; without a loop if there is one group.
fn in_groups<C, B, O>(size: usize, batches: B, carry: C, f: impl FnOnce(C, B) -> (C, O)) -> (C, O)
where
    C: Tree<Leaf = Tensor>,
    B: Tree<Leaf = Tensor>,
    O: Tree<Leaf = Tensor>,
{
    if batches.leaves().first().is_none_or(|leaf| leaf.dims().first() == Some(&size)) {
        return f(carry, batches);
    }
    let (carry, outputs) = scan(carry, map_leaves(&batches, |leaf| split(leaf, size)), f);
    (carry, map_leaves(&outputs, join))
}

fn map_leaves<T: Tree<Leaf = Tensor>>(tree: &T, f: impl FnMut(Tensor) -> Tensor) -> T {
    refill(tree, &mut tree.leaves().into_iter().map(f))
}

fn slices<T: Tree<Leaf = Tensor>>(tree: &T, range: std::ops::Range<usize>) -> T {
    map_leaves(tree, |leaf| leaf.slice(0, range.clone()))
}

/// `[n size, ..]` as `[n, size, ..]`.
fn split(leaf: Tensor, size: usize) -> Tensor {
    let dims = leaf.dims();
    let Some((&count, rest)) = dims.split_first() else { return leaf };
    leaf.reshape([&[count / size, size], rest].concat())
}

/// `[n, size, ..]` as `[n size, ..]`.
fn join(leaf: Tensor) -> Tensor {
    let dims = leaf.dims();
    match &dims[..] {
        [count, size, rest @ ..] => leaf.reshape([&[count * size], rest].concat()),
        _ => leaf,
    }
}

/// Joins one stack and a second behind it, if there is a first.
fn behind<T: Tree<Leaf = Tensor>>(first: Option<T>, second: T) -> T {
    let Some(first) = first else { return second };
    let pairs = first.leaves().into_iter().zip(second.leaves());
    let joined: Vec<Tensor> = pairs.map(|(first, second)| concatenate(&[first, second], 0)).collect();
    refill(&first, &mut joined.into_iter())
}
