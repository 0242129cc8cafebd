//! Multi-token prediction: layers behind the last one that predict tokens further on, for a further loss.
//!
//! The first takes the stream behind the decoder's last norm and the next token, and predicts the one after it; the
//! second takes what the first makes and the token after the next one, and so on. The table of tokens and the head are
//! those of the decoder. A prediction counts only where all tokens up to it are of one document.
//!
//! Source: DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 2.2. The paper leaves open where the stream
//! is taken; the modeling code that comes with published checkpoints takes it behind the norm, and so does this.

use meshloom::trace::{LayerNumbers, Tensor, checkpoint, concatenate, einsum, scope};

use super::config::DecoderConfig;
use super::head::Head;
use super::layer::{LayerConfig, LayerLoss, added};
use super::layout::Rows;
use super::norm::rms_norm;
use super::parameters::{Decoder, FurtherToken};
use super::runs::{LayerRun, RunForm, RunWeights};
use super::token_order::NextToken;

meshloom::tree! {
    /// The parameters of a decoder that its loss reads, behind the layers.
    pub(super) struct LossWeights<T> {
        pub(super) head: Head<T>,
        /// The table of tokens, where further tokens are predicted and it is not the head's matrix.
        pub(super) table: Option<T>,
        pub(super) further: Vec<FurtherToken<T>>,
    }
}

/// Tokens of rows, `[batch, length]`, for which further ones are predicted.
#[derive(Clone, Copy)]
pub(super) struct KnownTokens {
    /// The number of the document that each belongs to.
    pub(super) segments: Tensor,
    /// The token after each.
    pub(super) targets: Tensor,
    /// The weight of each target, divided by that of the whole batch.
    pub(super) weights: Tensor,
    /// How they are split.
    pub(super) rows: Rows,
}

impl DecoderConfig {
    /// The layers that predict further tokens, if the loss asks for them.
    pub(super) fn further_layers(&self) -> &[LayerConfig] {
        if self.further_weight == 0.0 { &[] } else { &self.architecture.further }
    }

    /// Whether the loss asks for further tokens.
    pub fn predicts_further(&self) -> bool {
        !self.further_layers().is_empty()
    }

    /// Number of layers whose routed experts add to the loss.
    pub(super) fn routed_count(&self) -> usize {
        let further = self.further_layers().iter();
        self.architecture.stack.routed_count() + further.filter(|layer| layer.routed().is_some()).count()
    }

    /// The share of some rows of a batch in the loss of further tokens: the sum of the cross entropies of their tokens,
    /// the mean over the layers, times its weight. `x` is the residual stream behind the layers, and `run_layer` runs
    /// one more layer. Also returns the loss of these layers' experts.
    pub(super) fn further_loss(
        &self,
        params: &LossWeights<Tensor>,
        x: Tensor,
        known: KnownTokens,
        run_layer: impl Fn(Tensor, &LayerRun, &RunWeights<Tensor>) -> (Tensor, LayerLoss),
    ) -> (Option<Tensor>, LayerLoss) {
        let KnownTokens { segments, mut targets, weights, rows } = known;
        let form = self.architecture.final_norm;
        let Head { norm, matrix } = params.head;
        let table = params.table.unwrap_or(matrix);
        let next = NextToken { order: self.order, axes: rows.tokens(), segments };
        let mut weights = weights.stop_gradient() * (self.further_weight / params.further.len().max(1) as f64);
        let mut stream = rms_norm(x, norm, form);
        let (mut loss, mut layer_losses): (Option<Tensor>, LayerLoss) = (None, None);
        for (depth, (layer, further)) in self.architecture.further.iter().zip(&params.further).enumerate() {
            let x = self.enter_further(further, self.embed(table, targets, rows), stream, rows);
            let first = self.architecture.stack.layer_count() + depth;
            let run = LayerRun { first, cycle: vec![layer.clone()], form: RunForm::Apart };
            let numbers = LayerNumbers { first, step: None };
            let (x, layer_loss) = run_layer(x, &run, &RunWeights { numbers, layers: vec![further.layer.clone()] });
            layer_losses = added(layer_losses, layer_loss);
            (targets, weights) =
                scope("further", || (next.of(targets), next.is_same_document().select(next.of(weights), 0.0)));
            let head = Head { norm: further.norm, matrix };
            loss = added(loss, Some(self.head_loss(&head, x, (targets, weights), rows)));
            stream = rms_norm(x, further.norm, form);
        }
        (loss, layer_losses.map(|losses| losses / self.routed_count() as f64))
    }

    /// The stream that a layer starts with, from the embedded tokens and the stream before.
    fn enter_further(&self, further: &FurtherToken<Tensor>, embedded: Tensor, stream: Tensor, rows: Rows) -> Tensor {
        let form = self.architecture.final_norm;
        let FurtherToken { embedding_norm, stream_norm, projection, .. } = further;
        let inputs = ((embedded, stream), (*embedding_norm, *stream_norm, *projection));
        scope("further", || {
            checkpoint(self.remat.clone(), inputs, |((embedded, stream), (of_embedded, of_stream, projection))| {
                let both = concatenate(&[rms_norm(embedded, of_embedded, form), rms_norm(stream, of_stream, form)], -1);
                let both = rows.enter_block(both);
                let made = einsum("bti,ie->bte", &[both, projection.convert(both.dtype())]);
                made.with_axes(rows.hidden()).with_axes(rows.stream())
            })
        })
    }
}

impl<T: Clone> LossWeights<T> {
    /// The parameters that the loss of a decoder reads.
    pub(super) fn of(decoder: &Decoder<T>, predicts_further: bool) -> LossWeights<T> {
        let has_table = predicts_further && decoder.head.is_some();
        LossWeights {
            head: Head::of(decoder),
            table: has_table.then(|| decoder.embedding.clone()),
            further: if predicts_further { decoder.further.clone() } else { Vec::new() },
        }
    }
}

/// Splits the path of a parameter of a layer that predicts further tokens into the number of the layer and the rest:
/// `further.0.layer.attention.wq` is `layer.attention.wq` of the first.
pub fn further_path(path: &str) -> Option<(usize, &str)> {
    let (depth, within) = path.strip_prefix("further.")?.split_once('.')?;
    Some((depth.parse().ok()?, within))
}
