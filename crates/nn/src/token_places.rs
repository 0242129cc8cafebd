//! The places of tokens in their rows, by which queries see keys.

use meshloom::ops::{KeyExchange, PlaceOrder};
use meshloom::trace::Tensor;

use super::layout::{ALL_KEYS, KEY};
use super::token_order::TokenOrder;

/// The places of the tokens of rows. A query sees earlier places of its row, and its own, within its own segment.
#[derive(Clone, Copy, Debug)]
pub struct TokenPlaces {
    /// The segment that a token belongs to: `s32` `[batch, length]`.
    segments: Tensor,
    /// The way in which queries meet keys of other devices, where rows are split.
    exchange: KeyExchange,
    /// The order of the tokens in a row.
    order: TokenOrder,
}

impl TokenPlaces {
    /// Places of whole rows. `segment_ids` is `s32` `[batch, length]`.
    pub fn of_rows(segment_ids: Tensor) -> TokenPlaces {
        TokenPlaces { segments: segment_ids, exchange: KeyExchange::Gather, order: TokenOrder::default() }
    }

    /// The same with another way in which queries meet keys of other devices. By default keys are gathered.
    #[must_use]
    pub fn with_exchange(self, exchange: KeyExchange) -> TokenPlaces {
        TokenPlaces { exchange, ..self }
    }

    /// The same of rows whose tokens are in this order. By default each stands at the place that its index says.
    #[must_use]
    pub fn with_order(self, order: TokenOrder) -> TokenPlaces {
        TokenPlaces { order, ..self }
    }

    /// The same of some rows, which `f` takes out of all.
    #[must_use]
    pub(super) fn map(self, f: impl Fn(Tensor) -> Tensor) -> TokenPlaces {
        TokenPlaces { segments: f(self.segments), ..self }
    }

    /// Keys or values as queries see them.
    pub(super) fn exchanged(self, x: Tensor) -> Tensor {
        match self.exchange {
            KeyExchange::Gather => x.with_axes_each_way(&ALL_KEYS, &KEY),
            KeyExchange::Ring => x,
        }
    }

    /// Returns what queries see of the keys of the same tokens.
    pub(super) fn block_mask(self) -> BlockMask {
        let named = |axis| {
            let axes = ["activation_batch", axis];
            // Each device makes its own places, so only segments are ever gathered.
            let places = self.order.tensor(self.segments.shape()).with_axes(axes);
            [self.segments.with_axes(axes), places]
        };
        let keys = match self.exchange {
            KeyExchange::Gather => "activation_kv_length",
            KeyExchange::Ring => "activation_length",
        };
        let (queries, keys) = (named("activation_length"), named(keys));
        let order = if self.order.is_natural() { PlaceOrder::Index } else { PlaceOrder::Any };
        BlockMask { queries, keys, exchange: self.exchange, order }
    }
}

/// Segments and places of queries and of keys, `s32` `[batch, length]` each; and the way in which they meet, with what
/// is known of places.
#[derive(Clone, Copy)]
pub(super) struct BlockMask {
    pub(super) queries: [Tensor; 2],
    pub(super) keys: [Tensor; 2],
    pub(super) exchange: KeyExchange,
    pub(super) order: PlaceOrder,
}
