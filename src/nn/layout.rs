//! Where activations lie between and within the blocks of a decoder.
//!
//! The residual stream may be split along the sequence over more axes (`activation_norm_length`) than a block can use
//! (`activation_length`): sequence parallelism (Korthikanti et al., arXiv 2205.05198). So a block gathers what it reads, and scatters
//! the partial sums that it adds to the stream; the cotangents do the same, the other way round.

use crate::trace::Tensor;

/// The residual stream, `[batch, length, embed]`, and what norms work on.
pub(super) const STREAM: [&str; 3] = ["activation_batch", "activation_norm_length", "activation_embed"];

/// How the rows of a batch are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows(pub(super) &'static str);

impl Rows {
    /// As layers want them.
    pub(super) const LAYERS: Rows = Rows("activation_batch");

    /// In front of a pipeline and behind it, where stages split the batch as well.
    pub(super) const AROUND_PIPELINE: Rows = Rows("activation_embed_and_logits_batch");

    fn stream(self) -> [&'static str; 3] {
        [self.0, "activation_norm_length", "activation_embed"]
    }

    /// What a block reads, `[batch, length, embed]`.
    fn block(self) -> [&'static str; 3] {
        [self.0, "activation_length", "activation_embed"]
    }

    /// From the residual stream into a block.
    #[track_caller]
    pub(super) fn enter_block(self, x: Tensor) -> Tensor {
        x.with_axes_each_way(&self.block(), &self.stream())
    }

    /// From a block, which leaves partial sums, into the residual stream.
    #[track_caller]
    pub(super) fn leave_block(self, x: Tensor) -> Tensor {
        x.with_axes_each_way(&self.stream(), &self.block())
    }

    /// Logits, `[batch, length, vocab]`.
    #[track_caller]
    pub(super) fn logits(self, logits: Tensor) -> Tensor {
        logits.with_axes([self.0, "activation_length", "activation_vocab"])
    }
}

/// Queries and mixed values, `[batch, heads, length, head_dim]`.
pub(super) const QUERY: [&str; 4] = ["activation_batch", "activation_heads", "activation_length", "activation_kv"];

/// Keys and values as they are made, `[batch, kv_heads, length, head_dim]`.
pub(super) const KEY: [&str; 4] = ["activation_batch", "activation_kv_heads", "activation_length", "activation_kv"];

/// Keys and values as queries see them: all positions of a row.
const ALL_KEYS: [&str; 4] = ["activation_batch", "activation_kv_heads", "activation_kv_length", "activation_kv"];

/// What is inside of a feed-forward block, `[batch, length, mlp]`.
pub(super) const HIDDEN: [&str; 3] = ["activation_batch", "activation_length", "activation_mlp"];

/// From the residual stream into a block.
#[track_caller]
pub(super) fn enter_block(x: Tensor) -> Tensor {
    Rows::LAYERS.enter_block(x)
}

/// From a block, which leaves partial sums, into the residual stream.
#[track_caller]
pub(super) fn leave_block(x: Tensor) -> Tensor {
    Rows::LAYERS.leave_block(x)
}

/// Keys or values of all positions, from those of each shard of the sequence.
#[track_caller]
pub(super) fn gather_keys(x: Tensor) -> Tensor {
    x.with_axes_each_way(&ALL_KEYS, &KEY)
}

/// Whole rows of an embedding table `[vocab, embed]`: what splits the width of the parameter is gathered, the vocabulary stays
/// split. The cotangent is a sum over tokens that is scattered where the gradient is needed, so nothing is asked of it here.
#[track_caller]
pub(super) fn whole_rows(table: Tensor) -> Tensor {
    table.with_axes_each_way(&["vocab", "activation_embed"], &[])
}
