//! Dropout.

use std::panic::Location;

use meshloom::trace::{Fold, Key, Tensor, composite};

/// `x` with each element zero with probability `rate`, and the others divided by `1 - rate`, so that the mean stays. A
/// rate of 0 leaves `x` as it is, and a rate of 1 leaves only zeros. Any other number is an error of the trace.
///
/// The choice of elements depends on the key and their position alone: neither on the mesh, nor on whether it is made
/// again for the backward pass. Source: Srivastava et al., "Dropout", JMLR 15, 2014.
#[track_caller]
pub fn dropout(x: Tensor, rate: f64, key: Key<Tensor>) -> Tensor {
    composite(Location::caller(), || dropped(x, rate, |kept| key.bernoulli(kept, x.dims())))
}

fn dropped(x: Tensor, rate: f64, draw: impl FnOnce(f64) -> Tensor) -> Tensor {
    if !(0.0..=1.0).contains(&rate) {
        let expected = "a probability from 0 to 1".to_owned();
        return x.mismatch("the rate of a dropout", expected, rate.to_string(), Location::caller());
    }
    if rate == 0.0 {
        return x;
    }
    let kept = 1.0 - rate;
    let scaled = x * if kept > 0.0 { 1.0 / kept } else { 0.0 };
    draw(kept).select(scaled, 0.0)
}

/// Dropout throughout a model: rates, the numbers of the rows, and a key that is folded into a new one for each step,
/// layer and place.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Probability with which an element drops that a block adds to the residual stream.
    pub rate: f64,
    /// Probability with which a weight of attention drops.
    pub attention_rate: f64,
    /// The key that draws.
    pub key: Key<Tensor>,
    /// The number in the whole batch of each row of the activations, integers `[rows]`.
    pub rows: Tensor,
}

impl Dropout {
    /// The same rate and rows with the key of a step, layer or place.
    #[must_use]
    pub fn at(self, number: impl Fold) -> Dropout {
        Dropout { key: self.key.fold_in(number), ..self }
    }

    /// [`dropout`] of `x` `[rows, ..]` with this rate and key. The choice of elements depends on the key, the row's
    /// number and the position within the row, not on which rows are worked on together.
    #[track_caller]
    pub fn apply(self, x: Tensor) -> Tensor {
        let Dropout { rate, key, rows, .. } = self;
        composite(Location::caller(), || dropped(x, rate, |kept| key.bernoulli_by_row(kept, x.dims(), rows)))
    }

    /// The dropout of the weights of an attention with `[kv_heads, groups]` heads; `None` at a rate of 0.
    pub(super) fn of_weights(self, heads: [usize; 2]) -> Option<DroppedWeights> {
        let Dropout { attention_rate: rate, key, rows, .. } = self;
        let dims = [rows.dim(0), heads[0], heads[1]];
        (rate > 0.0).then(|| DroppedWeights { rate, seeds: key.words_by_row(dims, rows) })
    }
}

/// Dropout of the weights of an attention.
#[derive(Clone, Copy, Debug)]
pub struct DroppedWeights {
    /// Probability with which a weight drops, 0 to less than 1.
    pub rate: f64,
    /// A random word for each head of each row, `u32` `[batch, kv_heads, groups]`.
    pub seeds: Tensor,
}
