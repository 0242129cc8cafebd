//! How tokens travel between the devices that hold them and those that hold their experts.

use super::MoeConfig;

meshloom::hlo::words! {
    /// How tokens meet experts of other devices.
    #[derive(Default)]
    pub enum ExpertExchange {
        /// Each device gathers the tokens of all devices along the axes of the experts; the results are added up where
        /// the tokens came from.
        #[default]
        Gather = "gather",
        /// Each device fills slots of the experts with its tokens, sends them to the devices of the experts, and gets
        /// the results back. It needs a capacity, which gives slots their number.
        AllToAll = "all-to-all",
    }
}

/// The size of one device's part of a block's input, and the number of devices over which experts are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSizes {
    /// Rows of a device.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Width of a token.
    pub embed: usize,
    /// Bytes of one number of a token.
    pub element_bytes: usize,
    /// Devices along the axes that experts are split over.
    pub devices: usize,
}

/// Bytes of a weight or of the number of an expert.
const CHOICE_BYTES: u128 = 4;

impl MoeConfig {
    /// The slots that each expert has for the tokens of a row of `length` tokens:
    /// `ceil(capacity_factor * length * experts_per_token / experts)`, but at least one and at most `length`, since a
    /// token chooses an expert once. The result is `None`
    /// without a capacity factor.
    pub fn capacity(&self, length: usize) -> Option<usize> {
        let evenly = (length * self.experts_per_token) as f64 / self.experts.max(1) as f64;
        self.capacity_factor.map(|factor| ((factor * evenly).ceil() as usize).clamp(1, length.max(1)))
    }

    /// Bytes that one device sends along the axes of the experts, forward and backward, as the ledger counts them. With
    /// `n` devices, `T = rows * length` tokens and `S = rows * experts * capacity` slots of a device, width `E` in
    /// numbers of `s` bytes, and `k` experts per token:
    ///
    /// | exchange | bytes |
    /// |---|---|
    /// | gather | `(n - 1) * T * (4 E s + 12 k)`: tokens, results, cotangents of both; choices, weights and theirs |
    /// | all-to-all | `(n - 1) / n * S * (4 E s + 8)`: the same of slots; weights and their cotangents |
    ///
    /// The result is `None` for an all-to-all without a capacity.
    pub fn exchange_bytes(&self, exchange: ExpertExchange, sizes: ExchangeSizes) -> Option<u128> {
        let ExchangeSizes { rows, length, embed, element_bytes, devices } = sizes;
        let wide = |number: usize| number as u128;
        let width = 4 * wide(embed) * wide(element_bytes);
        let others = wide(devices.saturating_sub(1));
        match exchange {
            ExpertExchange::Gather => {
                let choices = 3 * CHOICE_BYTES * wide(self.experts_per_token);
                Some(others * wide(rows) * wide(length) * (width + choices))
            }
            ExpertExchange::AllToAll => {
                let slots = wide(rows) * wide(self.experts) * wide(self.capacity(length)?);
                Some(others * slots * (width + 2 * CHOICE_BYTES) / wide(devices.max(1)))
            }
        }
    }

    /// The exchange that sends fewer bytes, gathering if both send as many or there is no capacity.
    pub fn cheaper_exchange(&self, sizes: ExchangeSizes) -> ExpertExchange {
        let bytes = |exchange| self.exchange_bytes(exchange, sizes);
        match (bytes(ExpertExchange::AllToAll), bytes(ExpertExchange::Gather)) {
            (Some(exchanged), Some(gathered)) if exchanged < gathered => ExpertExchange::AllToAll,
            _ => ExpertExchange::Gather,
        }
    }
}
