//! `model.loss_chunks`: in how many parts the loss makes logits.

use super::error::invalid;
use super::placement::Placement;
use super::validate::Checked;
use super::{PipelineConfig, RunConfig};

/// The most bytes that the logits of a device should take at a time: 512 tokens of a vocabulary of 128 Ki. More chunks
/// save little next to the gradient of the matrix, which each chunk adds to.
const LOGITS: usize = 256 << 20;

/// The fewest tokens of a chunk on a device: products of a few rows with a whole matrix wait for its elements.
const TOKENS: usize = 128;

/// The share of a device in the tokens of a loss.
struct Share {
    rows: usize,
    positions: usize,
    vocab: usize,
    embed: usize,
    /// The number of devices that the positions are split over; `None` if it does not divide them, so they are padded.
    parts: Option<usize>,
}

impl RunConfig {
    /// Parts of a sequence whose logits the loss makes at a time: those of the key, or as few as keep a device's logits
    /// small.
    pub(crate) fn loss_chunks_on(&self, placement: &Placement) -> usize {
        match self.model.loss_chunks {
            0 => self.share_of_loss(placement).chunks(),
            chunks => chunks,
        }
    }

    fn share_of_loss(&self, placement: &Placement) -> Share {
        let (rows, batch, length) = match &self.pipeline {
            None => (self.rows_at_once(), "activation_batch", "activation_length"),
            Some(PipelineConfig { schedule, .. }) if schedule.branches() => {
                (self.rows_of_layer(), "activation_batch", "activation_logits_length")
            }
            Some(_) => (self.rows_at_once(), "activation_embed_and_logits_batch", "activation_length"),
        };
        let seq = self.model.seq;
        let parts = Some(placement.parts(length)).filter(|&parts| seq.is_multiple_of(parts));
        Share {
            rows: rows.div_ceil(placement.parts(batch)),
            positions: seq / parts.unwrap_or(1),
            vocab: self.model.vocab.div_ceil(placement.parts("activation_vocab")),
            embed: self.model.embed,
            parts,
        }
    }

    /// Checks that every device can have a part of each chunk.
    pub(super) fn validate_loss_chunks(&self, placement: &Placement) -> Checked {
        let chunks = self.model.loss_chunks;
        let Share { positions, parts, .. } = self.share_of_loss(placement);
        if chunks == 0 || positions.is_multiple_of(chunks) {
            return Ok(());
        }
        let seq = self.model.seq;
        let reason = match parts {
            None | Some(1) => format!("it must divide model.seq, which is {seq}; or be 0, to be chosen"),
            Some(parts) => format!(
                "it must divide {positions}, which are the positions of model.seq = {seq} on each of {parts} devices \
                 of the mesh \"{}\"; or be 0, to be chosen",
                placement.mesh
            ),
        };
        Err(invalid("model.loss_chunks", chunks, &reason).because(["model.seq"]))
    }
}

impl Share {
    /// The fewest chunks with logits of at most [`LOGITS`]; if they would have less than [`TOKENS`], as many as do not.
    ///
    /// Positions that are padded stay together: to be cut, they would have to be gathered. So do fewer tokens than the
    /// head is wide: the sum of its gradients, in `f32`, is then larger than their logits.
    fn chunks(&self) -> usize {
        if self.parts.is_none() || self.rows * self.positions < self.embed {
            return 1;
        }
        let of_position = self.rows.saturating_mul(self.vocab).saturating_mul(size_of::<f32>());
        let most = (self.rows * self.positions / TOKENS).clamp(1, self.positions);
        let divisors: Vec<usize> = (1..=most).filter(|&chunks| self.positions.is_multiple_of(chunks)).collect();
        let is_small = |&&chunks: &&usize| of_position.saturating_mul(self.positions / chunks) <= LOGITS;
        divisors.iter().find(is_small).or(divisors.last()).copied().unwrap_or(1)
    }
}
