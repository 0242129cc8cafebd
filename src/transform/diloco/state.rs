//! The state that a DiLoCo run reads and replaces.

use super::transport::REPLICAS;
use crate::ir::Name;
use crate::trace::{Tensor, TensorSpec, Tree};

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

crate::tree! {
    /// The values on which all replicas agree: one copy, cut like the parameters. `P` is the tree of the parameters.
    pub struct OuterState<P> {
        /// Parameters at their last syncs.
        pub params: P,
        /// Velocities of the outer optimizer, `f32`.
        pub momentum: P,
    }

    /// The state of a run: `S` is the tree of the train step's state, `P` that of its parameters, `T` a leaf.
    pub struct DilocoState<S, P, T> {
        /// The state of each replica: every leaf with a leading dimension over them.
        pub inner: S,
        /// The values on which all replicas agree.
        pub outer: OuterState<P>,
        /// Steps done, `s32`.
        pub step: T,
    }
}

/// The spec of `replicas` copies of a tensor: it has a leading dimension named `diloco`.
#[must_use]
pub fn of_replicas(spec: &TensorSpec, replicas: usize) -> TensorSpec {
    let mut spec = spec.clone();
    let rank = spec.ty.rank();
    spec.axes.resize(rank, Name::default());
    spec.ty.dims.insert(0, replicas);
    spec.axes.insert(0, Name::new(REPLICAS));
    spec
}
