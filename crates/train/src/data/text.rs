//! Text and what takes it apart.

use std::ops::Range;

use super::{Batch, TextDataset, Tokenized};
use crate::config::RunConfig;
use crate::tokenizer::Tokenizer;
use crate::{Dataset, Error};
use meshloom::ir::Literal;
use meshloom::nn::DecoderConfig;

/// A text, and what takes it apart: what decoders are trained on.
#[derive(Debug)]
pub struct Text {
    /// The text that is trained on.
    pub dataset: TextDataset,
    /// That which is not, if there is one.
    pub validation: Option<TextDataset>,
    /// What takes both apart.
    pub tokenizer: Tokenizer,
}

impl Text {
    /// The text of a config.
    ///
    /// # Errors
    /// The text or its tokenizer cannot be read.
    pub fn load(config: &RunConfig) -> Result<Text, Error> {
        Text::load_with(config, &|_| ())
    }

    /// As [`Text::load`]. While files are taken apart, `on_progress` is called, from any thread.
    ///
    /// # Errors
    /// As there.
    pub fn load_with(config: &RunConfig, on_progress: &(dyn Fn(Tokenized) + Sync)) -> Result<Text, Error> {
        let tokenizer = config.load_tokenizer()?;
        let (data, length) = (&config.data, config.model.seq);
        let dataset = TextDataset::open_with(data, &tokenizer, length, on_progress)?;
        let validation = TextDataset::open_validation(data, &tokenizer, length, on_progress)?;
        Ok(Text { dataset, validation, tokenizer })
    }

    /// The training and the validation text.
    pub fn datasets(&self) -> impl Iterator<Item = &TextDataset> {
        [&self.dataset].into_iter().chain(&self.validation)
    }
}

impl Dataset<DecoderConfig> for Text {
    fn batch(&self, seed: u64, step: u64, rows: usize) -> Result<Batch, Error> {
        Ok(self.dataset.batch(seed, step, rows)?)
    }

    fn validation(&self, rows: Range<u64>) -> Result<Option<Batch>, Error> {
        let first = rows.start;
        let holds = |set: &&TextDataset| set.rows_per_epoch(0).is_some_and(|count| first < count);
        Ok(self.validation.as_ref().filter(holds).map(|set| set.fixed_rows(rows)).transpose()?)
    }

    fn weight(&self, batch: &Batch) -> f64 {
        Literal::to_f64_vec(&batch.weights).iter().sum()
    }

    fn bytes_per_token(&self) -> Option<f64> {
        self.validation.as_ref().map(|set| set.byte_count() as f64 / set.token_count() as f64)
    }
}
