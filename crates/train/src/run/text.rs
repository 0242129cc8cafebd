//! The text of a run, with its tokenizer.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use super::model::Dataset;
use crate::Error;
use crate::config::RunConfig;
use crate::data::{Batch, DataDigest, DataError, TextDataset, Tokenized, hex, weight_of};
use crate::tokenizer::{Tokenizer, TokenizerError};
use meshloom::hlo::message::listed;
use meshloom_nn::DecoderConfig;

/// A text with its tokenizer, on which decoders are trained.
#[derive(Debug)]
pub struct Text {
    /// The text that is trained on.
    pub dataset: TextDataset,
    /// The text that a run is judged by, if there is one.
    pub validation: Option<TextDataset>,
    /// The tokenizer of both.
    pub tokenizer: Tokenizer,
}

impl Text {
    /// The text of a config.
    ///
    /// # Errors
    /// The text or its tokenizer cannot be read; or there is nothing to predict in it, or in the rows of the validation
    /// text that a run is judged by.
    pub fn load(config: &RunConfig) -> Result<Text, Error> {
        Text::load_with(config, &|_| ())
    }

    /// Does the same as [`Text::load`]. While files are tokenized, `on_progress` is called, from any thread.
    ///
    /// # Errors
    /// The errors are those of [`Text::load`].
    pub fn load_with(config: &RunConfig, on_progress: &(dyn Fn(Tokenized) + Sync)) -> Result<Text, Error> {
        let tokenizer = config.load_tokenizer()?;
        let (data, length) = (&config.data, config.model.seq);
        let mut dataset = TextDataset::open_with(data, &tokenizer, length, on_progress)?;
        let (key, name, sha256) = ("data.tokenizer".to_owned(), data.tokenizer.clone(), hex(&tokenizer.digest()));
        dataset.add_digest(DataDigest { key, name, sha256 });
        let validation =
            TextDataset::open_validation((data, &config.validation.sources), &tokenizer, length, on_progress)?;
        let text = Text { dataset, validation, tokenizer };
        let rows = (config.validation.batches as u64).saturating_mul(config.train.batch as u64);
        if let Some(validation) = &text.validation
            && !validation.has_target(rows)?
        {
            return Err(DataError::NoTargets(rows).into());
        }
        Ok(text)
    }

    /// A warning, if files of the validation text are trained on as well: they are the same by their contents.
    pub fn overlap(&self) -> Option<String> {
        let trained: HashSet<&Path> = self.dataset.files().map(|(_, entry)| entry).collect();
        let files = self.validation.iter().flat_map(TextDataset::files);
        let both: Vec<String> =
            files.filter(|(_, entry)| trained.contains(entry)).map(|(path, _)| path.display().to_string()).collect();
        (!both.is_empty()).then(|| {
            format!(
                "validation.sources has text that data.sources has as well, in {}: the validation loss is then of text \
                 that is trained on; leave it out of one of them",
                listed("file", &both)
            )
        })
    }

    /// The training and the validation text.
    pub fn datasets(&self) -> impl Iterator<Item = &TextDataset> {
        [&self.dataset].into_iter().chain(&self.validation)
    }
}

impl RunConfig {
    /// The tokenizer that `data.tokenizer` names.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, or has more token values than the model.
    pub fn load_tokenizer(&self) -> Result<Tokenizer, Error> {
        if self.data.tokenizer == "bytes" {
            return Ok(Tokenizer::bytes());
        }
        let tokenizer = Tokenizer::load(&self.data.tokenizer)?;
        if tokenizer.vocabulary_size() > self.model.vocab {
            let last = tokenizer.vocabulary_size().saturating_sub(1) as u32;
            let (origin, vocab) = (self.data.tokenizer.clone(), self.model.vocab);
            return Err(TokenizerError::Vocabulary { origin, last, vocab }.into());
        }
        Ok(tokenizer)
    }
}

impl Dataset<DecoderConfig> for Text {
    fn batch(&self, seed: u64, step: u64, rows: usize) -> Result<Batch, Error> {
        Ok(self.dataset.batch(seed, step, rows)?)
    }

    fn rows(&self, seed: u64, step: u64, rows: usize, own: Range<usize>) -> Result<Batch, Error> {
        Ok(self.dataset.batch_with(seed, step, rows, own)?)
    }

    fn validation(&self, rows: Range<u64>) -> Result<Option<Batch>, Error> {
        let first = rows.start;
        let holds = |set: &&TextDataset| set.rows_per_epoch(0).is_some_and(|count| first < count);
        Ok(self.validation.as_ref().filter(holds).map(|set| set.fixed_rows(rows)).transpose()?)
    }

    fn weight(&self, batch: &Batch) -> f64 {
        weight_of(batch)
    }

    fn bytes_per_token(&self) -> Option<f64> {
        self.validation.as_ref().map(|set| set.byte_count() as f64 / set.token_count() as f64)
    }

    fn digests(&self) -> Vec<DataDigest> {
        self.dataset.digests().to_vec()
    }

    fn warnings(&self) -> Vec<String> {
        self.overlap().into_iter().collect()
    }
}
