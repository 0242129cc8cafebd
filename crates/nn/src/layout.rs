//! Where activations lie between and within the blocks of a decoder.
//!
//! The residual stream may be split along the sequence over more axes (`activation_norm_length`) than a block can use
//! (`activation_length`): sequence parallelism (Korthikanti et al., arXiv 2205.05198). So a block gathers what it
//! reads, and scatters the partial sums that it adds to the stream; the cotangents do the same, the other way round.

use std::panic::Location;

use meshloom::ir::{AxisNames, Name};
use meshloom::ops::WithAxes;
use meshloom::trace::{Tensor, composite};

/// The residual stream in layers, `[batch, length, embed]`.
pub const STREAM: [&str; 3] = Rows::LAYERS.stream();

/// How the rows of a batch are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) batch: &'static str,
    /// In the residual stream.
    stream: &'static str,
    /// In a block.
    block: &'static str,
}

impl Rows {
    /// As layers want them.
    pub const LAYERS: Rows =
        Rows { batch: "activation_batch", stream: "activation_norm_length", block: "activation_length" };

    /// In front of a pipeline and behind it, where stages split the batch as well.
    pub const AROUND_PIPELINE: Rows = Rows { batch: "activation_embed_and_logits_batch", ..Rows::LAYERS };

    /// Behind a pipeline, of one microbatch: it has too few rows for the stages, which split the sequence.
    pub const OF_MICROBATCH: Rows =
        Rows { stream: "activation_logits_length", block: "activation_logits_length", ..Rows::LAYERS };

    /// The residual stream, `[batch, length, embed]`, and the inputs of norms.
    pub const fn stream(self) -> [&'static str; 3] {
        [self.batch, self.stream, "activation_embed"]
    }

    /// The input of a block, `[batch, length, embed]`.
    pub(super) const fn block(self) -> [&'static str; 3] {
        [self.batch, self.block, "activation_embed"]
    }

    /// The rows that a weight of these names is used on, see [`StackedWeights::rows`]: in a block, or where routed
    /// experts work, to which tokens come.
    ///
    /// [`StackedWeights::rows`]: meshloom::transform::pipeline::StackedWeights::rows
    pub(super) fn of_weight(self, names: &AxisNames) -> AxisNames {
        let rows = match names.contains(&Name::new("exp")) {
            true => [GATHERED_TOKENS[0], GATHERED_TOKENS[1]],
            false => self.tokens(),
        };
        rows.iter().map(|name| Name::new(name)).collect()
    }

    /// The values inside of a block, `[batch, length, mlp]`.
    pub(super) const fn hidden(self) -> [&'static str; 3] {
        [self.batch, self.block, "activation_mlp"]
    }

    /// Tokens where a block is, `[batch, length]`.
    pub(super) const fn tokens(self) -> [&'static str; 2] {
        [self.batch, self.block]
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
        logits.with_axes([self.batch, self.block, "activation_vocab"])
    }
}

/// The names of the rows that a weight of a layer is used on, by the names of its dimensions: for
/// [`StackedWeights::used_on`](meshloom::transform::pipeline::StackedWeights::used_on).
pub fn rows_of_weight(names: &AxisNames) -> AxisNames {
    Rows::LAYERS.of_weight(names)
}

/// Queries and mixed values, `[batch, heads, length, head_dim]`.
pub const QUERY: [&str; 4] = ["activation_batch", "activation_heads", "activation_length", "activation_kv"];

/// Keys and values as they are made, `[batch, kv_heads, length, head_dim]`.
pub const KEY: [&str; 4] = ["activation_batch", "activation_kv_heads", "activation_length", "activation_kv"];

/// Keys and values as queries see them: all positions of a row.
pub const ALL_KEYS: [&str; 4] = ["activation_batch", "activation_kv_heads", "activation_kv_length", "activation_kv"];

/// The compressed keys and values of latent attention as they are made, `[batch, length, kv_lora]`.
pub const LATENT: [&str; 3] = ["activation_batch", "activation_length", ""];

/// The compressed keys and values of all positions of a row.
pub const ALL_LATENTS: [&str; 3] = ["activation_batch", "activation_kv_length", ""];

/// The values inside of a feed-forward block, `[batch, length, mlp]`.
pub const HIDDEN: [&str; 3] = Rows::LAYERS.hidden();

/// Tokens where routed experts are, `[batch, length, embed]`: the batch is whole along the axes that experts are split
/// over.
pub const GATHERED_TOKENS: [&str; 3] =
    ["activation_batch_no_exp_moe", "activation_norm_length_moe", "activation_embed_moe"];

/// The experts that those tokens chose, `[batch, length, experts_per_token]`.
pub const GATHERED_CHOICES: [&str; 3] = ["activation_batch_no_exp_moe", "activation_norm_length_moe", ""];

/// The experts that the tokens of the residual stream chose, `[batch, length, experts_per_token]`.
pub const ROUTED_CHOICES: [&str; 3] = ["activation_batch", "activation_norm_length", ""];

/// Tokens that go into the slots of experts, `[batch, length, embed]`: rows stay where they are, and their tokens are
/// split only as the sequence is split where experts work.
pub const ROW_TOKENS: [&str; 3] = ["activation_batch", "activation_norm_length_moe", "activation_embed_moe"];

/// The experts that those tokens chose, `[batch, length, experts_per_token]`.
pub const ROW_CHOICES: [&str; 3] = ["activation_batch", "activation_norm_length_moe", ""];

/// The experts that all tokens of a row chose, `[batch, length, experts_per_token]`.
pub const WHOLE_ROW_CHOICES: [&str; 3] = ["activation_batch", "", ""];

/// The slots of experts where their tokens are, `[batch, experts, capacity, embed]`.
pub const TOKEN_SLOTS: [&str; 4] = ["activation_batch", "", "", "activation_embed_moe"];

/// The slots of experts where the experts are, `[batch, experts, capacity, embed]`.
pub const EXPERT_SLOTS: [&str; 4] = ["activation_batch_no_exp_moe", "activation_exp", "", "activation_embed_moe"];

/// The same value, which is split as the names say, and so is its cotangent. Sums over groups of experts stay partial.
///
/// It stands between the parts of routed experts and the residual stream. How sums are scattered into the stream must
/// not reach into the parts, which would then have to be exchanged before they are added up.
pub(super) fn lying_as(x: Tensor, names: &[&'static str], place: &'static Location<'static>) -> Tensor {
    let names = names.iter().map(|name| Name::new(name)).collect();
    composite(place, || x.with_logical_axes(WithAxes { keeps_partial: true, ..WithAxes::new(names) }))
}
