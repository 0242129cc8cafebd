//! Orders of the tokens of a row when each device has a part of it.
//!
//! A query of causal attention sees the keys before it. If devices have contiguous parts of a row, the one with the
//! last part computes almost twice the mean of all. So tokens may be dealt out in another order. Targets, weights,
//! segments and positions are arranged with them, and attention is told the place of each; nothing else asks where a
//! token stands, and a loss is a sum over tokens.

use std::panic::Location;

use meshloom::ir::DType;
use meshloom::trace::{Tensor, concatenate, iota};

meshloom::hlo::words! {
    /// The way in which the tokens of a row are dealt out to devices.
    #[derive(Default)]
    pub enum ContextOrder {
        /// Contiguous parts: tokens stand at the place that their index says.
        #[default]
        Natural = "natural",
        /// Part `i` of `n` has chunks `i` and `2 n - 1 - i` of `2 n` (Llama 3, arXiv 2407.21783).
        TwoChunk = "two-chunk",
        /// Part `i` of `n` has tokens `i`, `i + n`, `i + 2 n`, .. (Brandon et al., "Striped Attention", arXiv
        /// 2311.09431).
        Striped = "striped",
    }
}

/// A length that cannot be dealt out to parts in an order.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "rows of {length} tokens cannot be dealt out to {} parts in the order \"{}\"; their length must be a multiple of {}",
    order.parts, order.order, order.multiple()
)]
pub struct TokenOrderError {
    /// The order.
    pub order: TokenOrder,
    /// Tokens of a row.
    pub length: usize,
}

meshloom::hlo::debug_is_message!(TokenOrderError);

/// The order of the tokens of a row that is cut into parts. By default the natural one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOrder {
    order: ContextOrder,
    parts: usize,
}

impl Default for TokenOrder {
    fn default() -> TokenOrder {
        TokenOrder { order: ContextOrder::Natural, parts: 1 }
    }
}

impl TokenOrder {
    /// An order for `parts` parts. For one part it is the natural order.
    pub fn new(order: ContextOrder, parts: usize) -> TokenOrder {
        let is_natural = parts <= 1 || order == ContextOrder::Natural;
        if is_natural { TokenOrder::default() } else { TokenOrder { order, parts } }
    }

    /// Whether tokens stand at the place that their index says.
    pub fn is_natural(self) -> bool {
        self.order == ContextOrder::Natural
    }

    /// The number that must divide the length of a row.
    pub fn multiple(self) -> usize {
        match self.order {
            ContextOrder::Natural => 1,
            ContextOrder::TwoChunk => 2 * self.parts,
            ContextOrder::Striped => self.parts,
        }
    }

    /// Checks that rows of `length` tokens can be dealt out.
    ///
    /// # Errors
    /// The length is not a multiple of [`TokenOrder::multiple`].
    pub fn check(self, length: usize) -> Result<(), TokenOrderError> {
        if length.is_multiple_of(self.multiple()) { Ok(()) } else { Err(TokenOrderError { order: self, length }) }
    }

    /// The place in the text of each of the `length` tokens of a row: first those of the first part.
    ///
    /// # Errors
    /// As of [`TokenOrder::check`].
    pub fn places(self, length: usize) -> Result<Vec<usize>, TokenOrderError> {
        self.check(length)?;
        let of_part = length / self.parts;
        let place = |index: usize| {
            let (part, within) = (index / of_part, index % of_part);
            match self.order {
                ContextOrder::Natural => index,
                ContextOrder::TwoChunk => {
                    let chunk = of_part / 2;
                    let number = if within < chunk { part } else { 2 * self.parts - 1 - part };
                    number * chunk + within % chunk
                }
                ContextOrder::Striped => within * self.parts + part,
            }
        };
        Ok((0..length).map(place).collect())
    }

    /// The places of the tokens of rows of these dimensions, `s32` `[batch, length]`. Each device makes its own.
    #[track_caller]
    pub(super) fn tensor(self, dims: [usize; 2]) -> Tensor {
        let index = iota(DType::S32, dims, 1);
        let length = dims[1];
        if let Err(error) = self.check(length) {
            let expected = format!("a length that is a multiple of {}", error.order.multiple());
            return index.mismatch("an order of tokens", expected, length.to_string(), Location::caller());
        }
        let (of_part, parts) = ((length / self.parts) as f64, self.parts as f64);
        match self.order {
            ContextOrder::Natural => index,
            ContextOrder::TwoChunk => {
                let (part, within) = (index / of_part, index % of_part);
                let chunk = of_part / 2.0;
                let first = part * chunk + within;
                let second = (within - part * chunk) + (2.0 * parts - 2.0) * chunk;
                within.less(chunk).select(first, second)
            }
            ContextOrder::Striped => (index % of_part) * parts + index / of_part,
        }
    }
}

impl TokenOrder {
    /// The index of the tokens that stand at places of rows of `length` tokens: undoes [`TokenOrder::places`].
    fn index_of(self, place: Tensor, length: usize) -> Tensor {
        let (of_part, parts) = ((length / self.parts) as f64, self.parts as f64);
        match self.order {
            ContextOrder::Natural => place,
            ContextOrder::TwoChunk => {
                let chunk = of_part / 2.0;
                let (number, within) = (place / chunk, place % chunk);
                let first = number * of_part + within;
                let second = (number * -1.0 + (2.0 * parts - 1.0)) * of_part + within + chunk;
                number.less(parts).select(first, second)
            }
            ContextOrder::Striped => (place % parts) * of_part + place / parts,
        }
    }
}

/// For each token of some rows, the one after it in the text.
pub(super) struct NextToken {
    /// The order of the rows.
    pub(super) order: TokenOrder,
    /// The logical axes of what belongs to tokens, `[batch, length]`.
    pub(super) axes: [&'static str; 2],
    /// The number of the document that each token belongs to, integers `[batch, length]`.
    pub(super) segments: Tensor,
}

impl NextToken {
    /// The value of the next token, from values `[batch, length]` of tokens. The last token of a row has its own.
    ///
    /// Where rows are split, they are gathered first: tokens are small beside their activations.
    pub(super) fn of(&self, rows: Tensor) -> Tensor {
        let [batch, length] = self.axes;
        let whole = rows.with_axes([batch, ""]);
        let last = rows.dim(1).saturating_sub(1);
        let next = match self.order.is_natural() {
            true => concatenate(&[whole.slice(1, 1..), whole.slice(1, last..)], 1),
            false => {
                let place = self.order.tensor([1, rows.dim(1)]).reshape([rows.dim(1)]);
                let index = self.order.index_of((place + 1.0).minimum(last as f64), rows.dim(1));
                whole.take(1, index.with_axes([length]))
            }
        };
        next.with_axes(self.axes)
    }

    /// Whether the next token is of the same document; the last of a row has none.
    pub(super) fn is_same_document(&self) -> Tensor {
        let place = self.order.tensor([self.segments.dim(0), self.segments.dim(1)]).with_axes(self.axes);
        let has_next = place.less(self.segments.dim(1).saturating_sub(1) as f64);
        has_next & self.of(self.segments).equal(self.segments)
    }
}
