//! Other ways for the same attention over a sequence that is split.

use crate::Error;
use crate::config::{ConfigError, PartitionMode, RunConfig};
use meshloom::analysis::ModuleMemory;
use meshloom::kernels::Kernels;
use meshloom::ops::{AttentionSizes, KeyExchange};
use meshloom::partition::Ledger;
use meshloom_nn::{ContextOrder, TokenOrderError};

/// A way in which queries could meet keys of other devices.
#[derive(Clone, Debug)]
pub struct ContextAlternative {
    /// The way in which keys and queries meet.
    pub exchange: KeyExchange,
    /// The order in which a row's tokens are spread over the devices.
    pub order: ContextOrder,
    /// True for the way that the config says.
    pub configured: bool,
    /// The scores that the devices compute.
    pub scores: DeviceScores,
    /// The collectives of the lowered train step.
    pub collectives: Ledger,
    /// The memory that the train step needs.
    pub memory: ModuleMemory,
}

/// An order that a config cannot have.
#[derive(Debug)]
pub struct RefusedOrder {
    /// The order.
    pub order: ContextOrder,
    /// The reason.
    pub reason: ConfigError,
}

/// How many scores the devices compute of a head of one row without segments: products of a query and a key, of blocks
/// that some query sees. In a ring devices wait for one another, so each round takes as long as its busiest device.
#[derive(Clone, Copy, Debug, PartialEq)]
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

    /// The work of the busiest device, as a multiple of the mean.
    pub fn balance(&self) -> f64 {
        self.busiest as f64 / self.mean
    }
}

impl RunConfig {
    /// How queries could meet keys of other devices where the rules split the sequence: each order of tokens, with keys
    /// gathered and in a ring. Latent attention has no ring. For a topology, the devices must be known
    /// ([`RunConfig::on_devices`]). Empty where the sequence is not split.
    ///
    /// # Errors
    /// Model, mesh and rules do not fit together.
    pub fn context_alternatives(&self) -> Result<(Vec<ContextAlternative>, Vec<RefusedOrder>), Error> {
        let (mut possible, mut refused) = (Vec::new(), Vec::new());
        if self.context_parts(&self.placement()?) == 1 {
            return Ok((possible, refused));
        }
        let exchanges = if self.has_latent_attention() { &[KeyExchange::Gather][..] } else { &KeyExchange::ALL };
        for &exchange in exchanges {
            for order in ContextOrder::ALL {
                let mut other = self.clone();
                (other.kernels.context, other.kernels.context_order) = (exchange, order);
                // Where keys can only be gathered, `kernels.context` says nothing.
                let of_config = order == self.kernels.context_order;
                let configured = of_config && (exchange == self.kernels.context || exchanges.len() == 1);
                match other.on_devices(self.device_total()) {
                    Ok(other) => possible.extend(other.context_alternative(configured)?),
                    // The reason does not depend on the exchange, so it is recorded once.
                    Err(reason) if exchange == exchanges[0] => refused.push(RefusedOrder { order, reason }),
                    Err(_) => {}
                }
            }
        }
        Ok((possible, refused))
    }

    /// The alternative that this config describes: its attention, and the figures of its lowered train step.
    fn context_alternative(mut self, configured: bool) -> Result<Option<ContextAlternative>, Error> {
        // The figures are known only for our own partitioner.
        self.partition.mode = PartitionMode::Explicit;
        let (_, lowered) = self.lower_train_step()?;
        let Some(attention) = lowered.kernels.iter().find(|it| it.op == "attention") else { return Ok(None) };
        let [query, key, value] = [0, 1, 2].map(|index| &attention.operands[index]);
        let sizes = AttentionSizes::of(query, key, value);
        let kernels = self.chosen_kernels(Kernels::on(&self.any_plugin()?));
        let order = self.token_order_on(&self.placement()?);
        let wrong = |error: TokenOrderError| Error::from(crate::data::DataError::Order(error));
        let places = order.places(self.model.seq).map_err(wrong)?;
        Ok(Some(ContextAlternative {
            exchange: self.kernels.context,
            order: self.kernels.context_order,
            configured,
            scores: DeviceScores::of(&kernels, &sizes, &places),
            collectives: lowered.collectives(),
            memory: lowered.memory()?,
        }))
    }
}
