//! The state that a DiLoCo run reads and replaces.

use super::transport::REPLICAS;
use crate::ir::Name;
use crate::trace::{MapTree, Path, Tensor, TensorSpec, Tree};

/// The state of a train step, which has parameters.
pub trait HasParams: Tree<Leaf = Tensor> {
    /// The tree of the parameters.
    type Params: Tree<Leaf = Tensor>;

    /// The parameters.
    fn params(&self) -> Self::Params;

    /// The same state with other parameters.
    #[must_use]
    fn with_params(self, params: Self::Params) -> Self;
}

/// What all replicas agree on: one copy, cut like the parameters. `P` is the tree of the parameters.
#[derive(Clone, Debug)]
pub struct OuterState<P> {
    /// Parameters at their last syncs.
    pub params: P,
    /// Velocities of the outer optimizer, `f32`.
    pub momentum: P,
}

/// The state of a run: `S` is the tree of the train step's state, `P` that of its parameters, `T` a leaf.
#[derive(Clone, Debug)]
pub struct DilocoState<S, P, T> {
    /// The state of each replica: every leaf with a leading dimension over them.
    pub inner: S,
    /// What all agree on.
    pub outer: OuterState<P>,
    /// Steps done, `s32`.
    pub step: T,
}

impl<P: Tree> Tree for OuterState<P> {
    type Leaf = P::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &P::Leaf)) {
        path.descend("params", |path| self.params.visit(path, f));
        path.descend("momentum", |path| self.momentum.visit(path, f));
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> P::Leaf) -> Self {
        OuterState { params: self.params.rebuild(next), momentum: self.momentum.rebuild(next) }
    }
}

impl<U, P: MapTree<U>> MapTree<U> for OuterState<P> {
    type Mapped = OuterState<P::Mapped>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &P::Leaf) -> U) -> Self::Mapped {
        OuterState {
            params: path.descend("params", |path| self.params.map_with(path, f)),
            momentum: path.descend("momentum", |path| self.momentum.map_with(path, f)),
        }
    }
}

impl<T, S: Tree<Leaf = T>, P: Tree<Leaf = T>> Tree for DilocoState<S, P, T> {
    type Leaf = T;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T)) {
        path.descend("inner", |path| self.inner.visit(path, f));
        path.descend("outer", |path| self.outer.visit(path, f));
        path.descend("step", |path| f(path, &self.step));
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> T) -> Self {
        DilocoState { inner: self.inner.rebuild(next), outer: self.outer.rebuild(next), step: next() }
    }
}

impl<T, U, S, P> MapTree<U> for DilocoState<S, P, T>
where
    S: Tree<Leaf = T> + MapTree<U>,
    P: Tree<Leaf = T> + MapTree<U>,
{
    type Mapped = DilocoState<S::Mapped, P::Mapped, U>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T) -> U) -> Self::Mapped {
        DilocoState {
            inner: path.descend("inner", |path| self.inner.map_with(path, f)),
            outer: path.descend("outer", |path| self.outer.map_with(path, f)),
            step: path.descend("step", |path| f(path, &self.step)),
        }
    }
}

/// What `replicas` of something look like: a leading dimension named `diloco`.
#[must_use]
pub fn of_replicas(spec: &TensorSpec, replicas: usize) -> TensorSpec {
    let mut spec = spec.clone();
    let rank = spec.ty.rank();
    spec.axes.resize(rank, Name::default());
    spec.ty.dims.insert(0, replicas);
    spec.axes.insert(0, Name::new(REPLICAS));
    spec
}
