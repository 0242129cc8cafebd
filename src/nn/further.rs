//! Multi-token prediction: layers behind the last one that predict tokens further on, for a further loss.
//!
//! The first takes the stream behind the decoder's last norm and the next token, and predicts the one after it; the
//! second takes what the first makes and the token after the next one, and so on. The table of tokens and the head are
//! those of the decoder. What a layer predicts counts only where all tokens up to it are of one document.
//!
//! Source: DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 2.2. That the stream is taken behind the norm is as in
//! the modeling code that comes with published checkpoints; the paper leaves it open.

use super::decoder::Head;
use super::layer::{DecoderLayer, LayerConfig, LayerLoss};
use super::layer_path::LayerNumbers;
use super::layers::{LayerRows, added};
use super::loss::WholeBatch;
use super::norm::rms_norm;
use super::stack::{LayerRun, Run, RunForm};
use super::token_order::NextToken;
use super::{Batch, Decoder, DecoderConfig, Dropout};
use crate::trace::{Param, Tensor, checkpoint, concatenate, einsum, scope};

crate::tree! {
    /// Parameters of a layer that predicts a further token.
    pub struct FurtherToken<T> {
        /// Over the embedded token: `[embed]`.
        pub embedding_norm: T,
        /// Over the stream: `[embed]`.
        pub stream_norm: T,
        /// From both, the token first, to the layer's stream: `[2 * embed, embed]`.
        pub projection: T,
        /// The layer.
        pub layer: DecoderLayer<T>,
        /// Behind the layer: `[embed]`.
        pub norm: T,
    }
}

/// What is predicted, so many tokens on.
#[derive(Clone, Copy)]
struct Ahead {
    targets: Tensor,
    weights: Tensor,
}

impl DecoderConfig {
    /// Whether the loss asks for further tokens.
    pub fn predicts_further(&self) -> bool {
        self.further_weight != 0.0 && !self.architecture.further.is_empty()
    }

    /// Number of layers whose routed experts add to the loss.
    pub(super) fn routed_count(&self) -> usize {
        let further = if self.predicts_further() { &self.architecture.further[..] } else { &[] };
        self.architecture.stack.routed_count() + further.iter().filter(|layer| layer.routed().is_some()).count()
    }

    /// Declares the parameters of the layers that predict further tokens.
    pub(super) fn further_parameters(&self) -> Vec<FurtherToken<Param>> {
        let embed = self.architecture.embed;
        let norm = || self.norm_parameter(embed, self.architecture.final_norm);
        let of_layer = |layer: &LayerConfig| FurtherToken {
            embedding_norm: norm(),
            stream_norm: norm(),
            projection: self.matrix(&[2 * embed, embed], &["embed", "mlp"], 2 * embed, 1.0),
            layer: self.layer_parameters(layer),
            norm: norm(),
        };
        self.architecture.further.iter().map(of_layer).collect()
    }

    /// What some rows of a batch add to the loss of further tokens: of each layer the sum of the cross entropies of
    /// its tokens over the weight of the whole batch, the mean over the layers, times its weight. `x` is the residual
    /// stream behind the layers. Also returns what these layers' experts add.
    pub(super) fn further_loss(
        &self,
        params: &Decoder<Tensor>,
        x: Tensor,
        part: &Batch<Tensor>,
        whole: WholeBatch,
        dropout: Option<Dropout>,
    ) -> (Option<Tensor>, LayerLoss) {
        if !self.predicts_further() {
            return (None, None);
        }
        let share = self.further_weight / self.architecture.further.len() as f64;
        let numbers = dropout.map(|dropout| dropout.rows);
        let rows = LayerRows { positions: part.positions, segments: part.segment_ids, numbers };
        let next = NextToken { order: self.order, axes: self.rows().tokens(), segments: part.segment_ids };
        let weights = part.weights.stop_gradient() * share;
        let mut ahead = Ahead { targets: part.targets, weights };
        let mut stream = rms_norm(x, params.final_norm, self.architecture.final_norm);
        let (mut loss, mut layer_losses): (Option<Tensor>, LayerLoss) = (None, None);
        let matrix = Head::of(params).matrix;
        for (depth, (layer, further)) in self.architecture.further.iter().zip(&params.further).enumerate() {
            let tokens = ahead.targets;
            ahead = scope("further", || ahead.moved_on(&next));
            let x = self.enter_further(further, self.embed(params, tokens), stream);
            let first = self.architecture.stack.layer_count() + depth;
            let run = Run { first, cycle: vec![layer.clone()], form: RunForm::Apart };
            let numbers = LayerNumbers { first, step: None };
            let weights = LayerRun { numbers, layers: vec![further.layer.clone()] };
            let (x, layer_loss) = self.outside_pipeline(x, &run, &weights, &rows, dropout);
            layer_losses = added(layer_losses, layer_loss);
            let head = Head { norm: further.norm, matrix };
            loss = added(loss, Some(self.mean_loss(&head, x, (ahead.targets, ahead.weights), whole)));
            stream = rms_norm(x, further.norm, self.architecture.final_norm);
        }
        (loss, layer_losses.map(|losses| losses / self.routed_count() as f64))
    }

    /// The stream that a layer starts with, from the embedded tokens and the stream before.
    fn enter_further(&self, further: &FurtherToken<Tensor>, embedded: Tensor, stream: Tensor) -> Tensor {
        let (form, rows) = (self.architecture.final_norm, self.rows());
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

impl Ahead {
    /// One token on.
    fn moved_on(self, next: &NextToken) -> Ahead {
        let weights = next.is_same_document().select(next.of(self.weights), 0.0);
        Ahead { targets: next.of(self.targets), weights }
    }
}
