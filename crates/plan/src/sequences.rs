//! Other ways for the same attention over a sequence that is split.

use meshloom::compile::Lowered;
use meshloom::kernels::Kernels;
use meshloom::ops::{AttentionSizes, KeyExchange};
use meshloom::pjrt::Platform;
use meshloom_nn::{AttentionConfig, ContextOrder, LayerConfig, TokenOrderError};
use meshloom_train::Error;
use meshloom_train::config::{ConfigError, RunConfig};
use meshloom_train::data::DataError;
use serde::Serialize;

use super::{SearchError, Variant};

/// The ways in which queries could meet keys of other devices where the rules of a config split the sequence, and
/// whether it has them: each order of tokens, with keys gathered and in a ring. Latent attention has no ring. Empty
/// where the sequence is not split.
pub(super) fn variants(config: &RunConfig) -> Result<Vec<(Variant, bool)>, ConfigError> {
    let striped = Variant::Sequence(config.kernels.context, ContextOrder::Striped).apply(config).decoder()?;
    if striped.order.is_natural() {
        return Ok(Vec::new());
    }
    let is_latent = |layer: &LayerConfig| matches!(layer.attention, AttentionConfig::Latent(_));
    // Where keys can only be gathered, `kernels.context` says nothing.
    let has_latent = striped.architecture.stack.described().any(is_latent);
    let exchanges = if has_latent { &[KeyExchange::Gather][..] } else { &KeyExchange::ALL };
    let variant = |exchange: KeyExchange, order: ContextOrder| {
        let is_exchange = exchange == config.kernels.context || exchanges.len() == 1;
        (Variant::Sequence(exchange, order), is_exchange && order == config.kernels.context_order)
    };
    let of_exchange = |&exchange| ContextOrder::ALL.into_iter().map(move |order| variant(exchange, order));
    Ok(exchanges.iter().flat_map(of_exchange).collect())
}

/// How many scores the devices compute of a head of one row without segments: products of a query and a key, of blocks
/// that some query sees. In a ring devices wait for one another, so each round takes as long as its busiest device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeviceScores {
    /// The scores of the busiest device; in a ring the sum over its rounds.
    pub busiest: usize,
    /// The mean of all devices.
    pub mean: f64,
}

impl DeviceScores {
    /// The scores of devices that have so many tokens each, of a row whose tokens stand at `places`.
    ///
    /// `sizes` are those of the attention of one device: with fewer keys than the row has, they travel around a ring.
    pub fn of(kernels: &Kernels, sizes: &AttentionSizes, places: &[usize]) -> DeviceScores {
        let queries: Vec<&[usize]> = places.chunks(sizes.queries.max(1)).collect();
        let keys: Vec<&[usize]> = places.chunks(sizes.keys.max(1)).collect();
        let (mut busiest, mut total) = (0, 0);
        for round in 0..keys.len() {
            let of_device = |(device, part): (usize, &&[usize])| {
                let key_part = keys[(device + keys.len() - round) % keys.len()];
                kernels.computed_scores(sizes, part, key_part)
            };
            let computed: Vec<usize> = queries.iter().enumerate().map(of_device).collect();
            busiest += computed.iter().max().copied().unwrap_or_default();
            total += computed.iter().sum::<usize>();
        }
        DeviceScores { busiest, mean: total as f64 / queries.len().max(1) as f64 }
    }

    /// The scores of a config's lowered train step; `None` if that has no attention.
    pub(super) fn of_config(config: &RunConfig, lowered: &Lowered) -> Result<Option<DeviceScores>, SearchError> {
        let Some(attention) = lowered.kernels.iter().find(|it| it.op == "attention") else { return Ok(None) };
        let [query, key, value] = [0, 1, 2].map(|index| &attention.operands[index]);
        let sizes = AttentionSizes::of(query, key, value);
        let kernels = config.chosen_kernels(Kernels::on(&Platform::of_any_plugin(config.platform_kind()?)));
        let wrong = |error: TokenOrderError| Error::from(DataError::Order(error));
        let places = config.decoder().map_err(Error::from)?.order.places(config.model.seq).map_err(wrong)?;
        Ok(Some(DeviceScores::of(&kernels, &sizes, &places)))
    }

    /// The work of the busiest device, as a multiple of the mean.
    pub fn balance(&self) -> f64 {
        self.busiest as f64 / self.mean
    }
}
