//! Text as training batches: tokens (the bytes, or a tokenizer's), packed sequences, random access.
//!
//! Sources are files, folders and globs, of text or of JSON Lines, plain or compressed. A text is cut into documents at
//! blank lines (short paragraphs stay with the next one); in JSON Lines each line is one. Each file is taken apart into
//! tokens once; they stay in a cache on disk, under a name that follows from the contents of file and tokenizer.
//!
//! An epoch of a source is all its documents in an order drawn from seed and epoch number, cut into rows. If documents
//! are packed, they follow one another without gaps and only the last row is padded; else each begins a row. Within a
//! row each document, or part of one, is a segment: attention stays inside it, positions restart at its first token,
//! and the target of each token is the next one of the same document. If sources have weights, each row is of one
//! source.
//!
//! [`TextDataset::batch`] needs nothing but seed and step, so a run resumes anywhere, and no mesh changes what is read.

mod digest;
mod documents;
mod error;
mod files;
mod order;
mod prepare;
mod store;
mod zstd;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use digest::DataDigest;
pub(crate) use digest::{Hashing, hash_rest, hex};
pub use error::DataError;
pub use prepare::{SkippedLines, Tokenized};

use super::tokenizer::Tokenizer;
use crate::config::{DataConfig, Mixture};
use meshloom::ir::{Literal, LiteralError};
use order::{Layout, RowSegment, RowSource};
use prepare::{Prepared, Settings};
use sha2::{Digest, Sha256};

/// One training batch. Segments are counted from 1 in every row. Weights are 1 where there is a target, else 0; in
/// padding everything is 0.
pub type Batch = meshloom_nn::Batch<Literal>;

/// The documents of some sources, and the rows of tokens that they fill.
#[derive(Debug)]
pub struct TextDataset {
    sources: Vec<RowSource>,
    mixture: Mixture,
    length: usize,
    /// The paths of all sources' files.
    paths: Vec<PathBuf>,
    digests: Vec<DataDigest>,
    skipped: Vec<SkippedLines>,
    tokenized: usize,
}

impl TextDataset {
    /// The training text: that of `data.sources`, in rows of `length` tokens.
    ///
    /// # Errors
    /// A file cannot be read, a line cannot be used where that is an error, there is too little text, or the cache
    /// cannot be written.
    pub fn open(data: &DataConfig, tokenizer: &Tokenizer, length: usize) -> Result<TextDataset, DataError> {
        TextDataset::open_with(data, tokenizer, length, &|_| ())
    }

    /// Does the same as [`TextDataset::open`]. While files are tokenized, `on_progress` is called, from any thread.
    ///
    /// # Errors
    /// The errors are those of [`TextDataset::open`].
    pub fn open_with(
        data: &DataConfig,
        tokenizer: &Tokenizer,
        length: usize,
        on_progress: &(dyn Fn(Tokenized) + Sync),
    ) -> Result<TextDataset, DataError> {
        let settings = Settings { data, tokenizer, on_progress };
        let opened = TextDataset::of("data.sources", &data.sources, &data.weights, &settings, length);
        opened.map_err(|error| match error {
            DataError::Read { path, source, .. }
                if source.kind() == io::ErrorKind::NotFound && data.sources == DataConfig::default().sources =>
            {
                DataError::NoDefault(path)
            }
            error => error,
        })
    }

    /// Opens the validation text, that of `validation.sources`, which is read as the training text is; returns `None`
    /// if there are no such sources. Otherwise it does the same as [`TextDataset::open_with`].
    ///
    /// # Errors
    /// The errors are those of [`TextDataset::open_with`].
    pub fn open_validation(
        (data, sources): (&DataConfig, &[String]),
        tokenizer: &Tokenizer,
        length: usize,
        on_progress: &(dyn Fn(Tokenized) + Sync),
    ) -> Result<Option<TextDataset>, DataError> {
        if sources.is_empty() {
            return Ok(None);
        }
        let settings = Settings { data, tokenizer, on_progress };
        TextDataset::of("validation.sources", sources, &[], &settings, length).map(Some)
    }

    fn of(
        key: &'static str,
        patterns: &[String],
        weights: &[f64],
        settings: &Settings<'_>,
        length: usize,
    ) -> Result<TextDataset, DataError> {
        if length == 0 || length > i32::MAX as usize {
            return Err(DataError::BatchSize { batch: 1, seq: length });
        }
        let refused = |reason| DataError::Weights { weights: weights.to_vec(), reason };
        let mixture = Mixture::new(weights, patterns.len()).map_err(refused)?;
        let found = patterns.iter().map(|pattern| files::find(key, pattern)).collect::<Result<Vec<_>, _>>()?;
        let files = found.concat();
        let Prepared { entries, digests, skipped, tokenized } = settings.prepare(&files)?;
        let mut of_files = digests.into_iter();
        let digest = |(pattern, files): (&String, &Vec<_>)| {
            let hash = of_files.by_ref().take(files.len()).fold(Sha256::new(), Sha256::chain_update);
            DataDigest { key: key.to_owned(), name: pattern.clone(), sha256: hex(&hash.finalize()) }
        };
        let digests = patterns.iter().zip(&found).map(digest).collect();
        let layout = Layout { documents: settings.data.documents, length };
        let too_short = |origin: &[String], tokens, documents| DataError::TooShort {
            key,
            origin: origin.join(", "),
            tokens,
            documents,
        };
        if patterns.is_empty() {
            return Err(too_short(&[], 0, 0));
        }
        // Without weights, all sources are one.
        let part = patterns.len().div_ceil(mixture.source_count()).max(1);
        let mut entries = entries.into_iter();
        let mut sources = Vec::new();
        for (part, found) in patterns.chunks(part).zip(found.chunks(part)) {
            let own: Vec<_> = entries.by_ref().take(found.iter().map(Vec::len).sum()).collect();
            let tokens = own.iter().map(|entry| entry.about.tokens).sum();
            let documents = own.iter().map(|entry| entry.about.documents).sum();
            // In rows of any form, each token but the last of its document has a target.
            if tokens <= documents {
                return Err(too_short(part, tokens, documents));
            }
            sources.push(RowSource::new(own, layout, settings.data.shuffle_window)?);
        }
        let paths = files.into_iter().map(|file| file.path).collect();
        Ok(TextDataset { sources, mixture, length, paths, digests, skipped, tokenized })
    }

    /// Each file that has tokens, and the place of these in the cache.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let entries = self.sources.iter().flat_map(RowSource::entries);
        let with_tokens = self.paths.iter().zip(entries).filter(|(_, entry)| entry.about.tokens > 0);
        with_tokens.map(|(path, entry)| (path.as_path(), entry.path.as_path()))
    }

    /// Whether there is anything to predict in the first rows of [`TextDataset::fixed_rows`].
    pub(crate) fn has_target(&self, rows: u64) -> Result<bool, DataError> {
        let rows = rows.min(self.rows_per_epoch(0).unwrap_or(0));
        for row in 0..rows {
            if weight_of(&self.fixed_rows(row..row + 1)?) > 0.0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lines that were left out, of each file that has such.
    pub fn skipped_lines(&self) -> &[SkippedLines] {
        &self.skipped
    }

    /// Returns the number of files that were tokenized; the tokens of the others were in the cache.
    pub fn tokenized_files(&self) -> usize {
        self.tokenized
    }

    /// Number of documents.
    pub fn document_count(&self) -> u64 {
        self.abouts().map(|about| about.documents).sum()
    }

    /// Returns the tokens of a document, counted from 0 in the order of sources, files and lines; `None` if there are
    /// fewer documents.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn document(&self, mut number: u64) -> Result<Option<Vec<i32>>, DataError> {
        for source in &self.sources {
            let count = source.entries().iter().map(|entry| entry.about.documents).sum();
            if number < count {
                return source.document(number);
            }
            number -= count;
        }
        Ok(None)
    }

    /// Number of tokens in the text.
    pub fn token_count(&self) -> u64 {
        self.abouts().map(|about| about.tokens).sum()
    }

    /// Bytes of text that the tokens stand for.
    pub fn byte_count(&self) -> u64 {
        self.abouts().map(|about| about.text_bytes).sum()
    }

    /// The loss per token, in nats, of a model that knows only how often each token occurs.
    pub fn unigram_entropy(&self) -> f64 {
        let mut counts = BTreeMap::new();
        for &(token, count) in self.abouts().flat_map(|about| &about.counts) {
            *counts.entry(token).or_insert(0u64) += count;
        }
        let total: u64 = counts.values().sum();
        let shares = counts.into_values().map(|count| count as f64 / total as f64);
        shares.map(|share| -share * share.ln()).sum()
    }

    /// The digests of the contents of the files that the text was read from.
    pub(crate) fn digests(&self) -> &[DataDigest] {
        &self.digests
    }

    /// Adds what the text was read with, such as its tokenizer.
    pub(crate) fn add_digest(&mut self, digest: DataDigest) {
        self.digests.push(digest);
    }

    fn abouts(&self) -> impl Iterator<Item = &store::StoreAbout> {
        self.sources.iter().flat_map(RowSource::entries).map(|entry| &entry.about)
    }

    /// Number of rows in an epoch of a source. Without weights there is one source.
    pub fn rows_per_epoch(&self, source: usize) -> Option<u64> {
        self.sources.get(source).map(RowSource::rows_per_epoch)
    }

    /// The source of a row, counted from 0 over all steps: its position in `data.weights`, or 0 without weights.
    pub fn source_of_row(&self, row: u64) -> usize {
        self.mixture.row(row.into()).0
    }

    /// The number of documents whose order is held in memory now. A source has at most `data.shuffle_window`, or 1024
    /// if that is less, of them.
    pub fn documents_in_memory(&self) -> usize {
        self.sources.iter().map(RowSource::documents_in_memory).sum()
    }

    /// The batch of a step. It depends on nothing but the arguments: row `r` of step `s` is row `s * batch + r`, and
    /// the rows of a source are those of its epochs in turn.
    ///
    /// # Errors
    /// There is no such batch, or the cache cannot be read.
    pub fn batch(&self, seed: u64, step: u64, batch: usize) -> Result<Batch, DataError> {
        self.batch_with(seed, step, batch, 0..batch)
    }

    /// A batch in which the rows beside `own` are padding.
    ///
    /// # Errors
    /// The errors are those of [`TextDataset::batch`].
    pub fn batch_with(&self, seed: u64, step: u64, batch: usize, own: Range<usize>) -> Result<Batch, DataError> {
        // Wide, so that no step number overflows.
        let first = u128::from(step) * batch as u128;
        let own = first + own.start as u128..first + own.end as u128;
        self.rows(batch, (first..).take(batch), |row| {
            if !own.contains(&row) {
                return Ok(Vec::new());
            }
            let (source, row) = self.mixture.row(row);
            let source = &self.sources[source];
            let rows = u128::from(source.rows_per_epoch());
            source.row(seed, (row / rows) as u64, (row % rows) as u64)
        })
    }

    /// Rows of the first epoch of the first source, in an order that is always the same. Rows behind its last are
    /// padding.
    ///
    /// # Errors
    /// The errors are those of [`TextDataset::batch`].
    pub fn fixed_rows(&self, rows: Range<u64>) -> Result<Batch, DataError> {
        let count = usize::try_from(rows.end.saturating_sub(rows.start)).unwrap_or(usize::MAX);
        self.rows(count, rows, |row| match self.sources.first() {
            Some(source) if row < source.rows_per_epoch() => source.row(0, 0, row),
            _ => Ok(Vec::new()),
        })
    }

    fn rows<R>(
        &self,
        batch: usize,
        rows: impl Iterator<Item = R>,
        segments: impl Fn(R) -> Result<Vec<RowSegment>, DataError>,
    ) -> Result<Batch, DataError> {
        let seq = self.length;
        let size_error = || DataError::BatchSize { batch, seq };
        batch.checked_mul(seq).filter(|&count| count > 0 && count <= i32::MAX as usize).ok_or_else(size_error)?;
        let mut filled = Rows::default();
        for (row, number) in (1..).zip(rows) {
            filled.add(&segments(number)?);
            (filled.tokens.len()..row * seq).for_each(|_| filled.push(0, None, 0, 0));
        }
        filled.into_batch(&[batch, seq]).map_err(|_| size_error())
    }
}

#[derive(Default)]
struct Rows {
    tokens: Vec<i32>,
    targets: Vec<i32>,
    segment_ids: Vec<i32>,
    positions: Vec<i32>,
    weights: Vec<f32>,
}

impl Rows {
    fn add(&mut self, segments: &[RowSegment]) {
        for (number, RowSegment { tokens, has_more }) in (1..).zip(segments) {
            let own = tokens.len() - usize::from(*has_more);
            for (position, at) in (0..).zip(0..own) {
                self.push(tokens[at], tokens.get(at + 1).copied(), number, position);
            }
        }
    }

    fn push(&mut self, token: i32, target: Option<i32>, segment: i32, position: i32) {
        self.tokens.push(token);
        self.targets.push(target.unwrap_or(0));
        self.segment_ids.push(segment);
        self.positions.push(position);
        self.weights.push(if target.is_some() { 1.0 } else { 0.0 });
    }

    fn into_batch(self, dims: &[usize]) -> Result<Batch, LiteralError> {
        Ok(Batch {
            tokens: Literal::from_slice(dims, &self.tokens)?,
            targets: Literal::from_slice(dims, &self.targets)?,
            segment_ids: Literal::from_slice(dims, &self.segment_ids)?,
            positions: Literal::from_slice(dims, &self.positions)?,
            weights: Literal::from_slice(dims, &self.weights)?,
        })
    }
}

pub(crate) fn weight_of(batch: &Batch) -> f64 {
    Literal::to_f64_vec(&batch.weights).iter().sum()
}
