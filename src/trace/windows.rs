//! Running folds and pooling.

use std::panic::Location;

use super::Tensor;
use super::context::{apply, composite};
use crate::ops::{Cumulative, CumulativeKind, ReduceKind, ReduceWindow, WindowDim};

macro_rules! cumulative_methods {
    ($($(#[$doc:meta])* $method:ident $kind:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, axis: i32) -> Tensor {
                self.cumulative(CumulativeKind::$kind, axis, false)
            }
        )*}
    };
}

cumulative_methods! {
    /// Running sum along a dimension.
    cumsum Sum;
    /// Running product along a dimension.
    cumprod Prod;
    /// Running maximum along a dimension.
    cummax Max;
    /// Running minimum along a dimension.
    cummin Min;
    /// Running log(sum(exp)) along a dimension.
    cumlogsumexp LogSumExp;
}

impl Tensor {
    /// A running fold along a dimension: element i folds elements 0 to i, or i to the last in reverse. Among equal
    /// extrema the first one met gets the gradient.
    #[track_caller]
    pub fn cumulative(self, kind: CumulativeKind, axis: i32, reverse: bool) -> Tensor {
        let place = Location::caller();
        let Some(axis) = self.axis(axis, place) else { return self };
        apply(Cumulative { kind, axis, reverse }, &[self], place)
    }

    /// Folds every window to one element; there is one window for each dimension ([`WindowDim::ONE`] for none). Among a
    /// window's equal extrema the first gets the gradient.
    #[track_caller]
    pub fn reduce_window(self, kind: ReduceKind, window: impl AsRef<[WindowDim]>) -> Tensor {
        apply(ReduceWindow { kind, window: window.as_ref().into() }, &[self], Location::caller())
    }

    /// The mean of every window's elements; elements that pad the tensor do not count.
    #[track_caller]
    pub fn mean_window(self, window: impl AsRef<[WindowDim]>) -> Tensor {
        let window = window.as_ref();
        composite(Location::caller(), || {
            let counts = self.full_like(1.0).reduce_window(ReduceKind::Sum, window);
            self.reduce_window(ReduceKind::Sum, window) / counts
        })
    }
}
