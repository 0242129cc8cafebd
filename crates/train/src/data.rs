//! Text as training batches: tokens (the bytes, or a tokenizer's), packed sequences, random access.
//!
//! A text is cut into documents at blank lines (short paragraphs stay with the next one). An epoch is all documents in
//! an order drawn from seed and epoch number, one after the other, cut into rows of `seq` tokens; only its last row is
//! padded. Within a row each document, or part of one, is a segment: attention stays inside it, positions restart at
//! its first token, and the target of each token is the next one of the same document.
//!
//! [`TextDataset::batch`] needs nothing but seed and step, so a run resumes anywhere, and no mesh changes what is read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::tokenizer::{Tokenizer, TokenizerError};
use meshloom::ir::{Literal, LiteralError, TensorType};
use meshloom::nn::next_bits;

/// Blank-line-separated blocks are joined until a document has this many bytes, so that a line of dialogue keeps its
/// context.
const MIN_DOCUMENT_BYTES: usize = 192;

/// An error in the data.
#[derive(thiserror::Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("cannot read the text {path:?}: {source}; set data.text to a text file")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Too little text to predict anything.
    #[error(
        "the text {origin:?} has {bytes} bytes, but at least 2 are needed to predict one from another; set data.text"
    )]
    TooShort {
        /// The file.
        origin: String,
        /// Its length.
        bytes: usize,
    },
    /// A tokenizer takes characters, and the text is not made of them.
    #[error("the text {origin:?} is not UTF-8 at byte {byte}, which a tokenizer needs; set data.tokenizer = \"bytes\"")]
    NotText {
        /// The file.
        origin: String,
        /// Where.
        byte: usize,
    },
    /// The tokenizer fails on the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A batch without tokens, or with more than can be addressed.
    #[error(
        "a batch of {batch} sequences of {seq} tokens is not possible; both must be at least 1, and their product fit in memory"
    )]
    BatchSize {
        /// Sequences.
        batch: usize,
        /// Tokens in each.
        seq: usize,
    },
    /// The batches of a dataset do not have as many rows as were asked for.
    #[error(
        "the batches of a call have {found} bytes, which do not fill {expected}: a dataset must give as many rows as it is asked for"
    )]
    Bytes {
        /// The type that they should fill.
        expected: TensorType,
        /// Their bytes.
        found: usize,
    },
}

meshloom::hlo::debug_is_message!(DataError);

/// One training batch. Segments are counted from 1 in every row. Weights are 1 where there is a target, else 0; in
/// padding everything is 0.
pub type Batch = meshloom::nn::Batch<Literal>;

/// A text, cut into documents.
#[derive(Debug)]
pub struct TextDataset {
    text: Vec<u8>,
    /// The tokens of all documents; none where they are the bytes of the text.
    tokens: Option<Vec<i32>>,
    documents: Vec<Range<usize>>,
    // The order of one epoch takes a pass over all documents, and neighbouring steps share it.
    last_epoch: Mutex<Option<Arc<Epoch>>>,
}

#[derive(Debug)]
struct Epoch {
    seed: u64,
    number: u64,
    /// Documents in the order of the epoch, each with the place of its first byte in it.
    documents: Vec<(usize, Range<usize>)>,
}

impl TextDataset {
    /// Reads a file. Its bytes are the tokens, whatever their encoding.
    pub fn load(path: impl AsRef<Path>) -> Result<TextDataset, DataError> {
        TextDataset::load_with(path, &Tokenizer::bytes())
    }

    /// Reads a file and takes it apart by a tokenizer.
    ///
    /// # Errors
    /// The file cannot be read, has too little text, or is not text.
    pub fn load_with(path: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<TextDataset, DataError> {
        let path = path.as_ref();
        let text = std::fs::read(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
        TextDataset::from_bytes_with(text, &path.display().to_string(), tokenizer)
    }

    /// A dataset of the bytes given. `origin` is what messages call them.
    pub fn from_bytes(text: Vec<u8>, origin: &str) -> Result<TextDataset, DataError> {
        if text.len() < 2 {
            return Err(too_short(origin, text.len()));
        }
        let documents = split_documents(&text);
        Ok(TextDataset { text, tokens: None, documents, last_epoch: Mutex::new(None) })
    }

    /// As [`TextDataset::from_bytes`], with the tokens of a tokenizer. Documents are the same as for bytes.
    ///
    /// # Errors
    /// There is too little text, or it is not UTF-8.
    pub fn from_bytes_with(text: Vec<u8>, origin: &str, tokenizer: &Tokenizer) -> Result<TextDataset, DataError> {
        let mut dataset = TextDataset::from_bytes(text, origin)?;
        if tokenizer.is_bytes() {
            return Ok(dataset);
        }
        let not_text = |byte| DataError::NotText { origin: origin.to_owned(), byte };
        let characters = std::str::from_utf8(&dataset.text).map_err(|error| not_text(error.valid_up_to()))?;
        let (mut tokens, mut documents) = (Vec::new(), Vec::new());
        for document in &dataset.documents {
            let start = tokens.len();
            // Documents are cut after line ends, so between characters.
            let own = characters.get(document.clone()).ok_or_else(|| not_text(document.start))?;
            tokens.extend(tokenizer.encode(own)?);
            if tokens.len() > start {
                documents.push(start..tokens.len());
            }
        }
        if tokens.len() < 2 {
            return Err(too_short(origin, tokens.len()));
        }
        dataset.documents = documents;
        dataset.tokens = Some(tokens);
        Ok(dataset)
    }

    /// The whole text.
    pub fn bytes(&self) -> &[u8] {
        &self.text
    }

    /// Number of tokens in the text.
    pub fn token_count(&self) -> usize {
        self.tokens.as_ref().map_or(self.text.len(), Vec::len)
    }

    fn token(&self, at: usize) -> i32 {
        match &self.tokens {
            Some(tokens) => tokens[at],
            None => self.text[at].into(),
        }
    }

    /// What a model that knows only how often each token occurs loses per token, in nats.
    pub fn unigram_entropy(&self) -> f64 {
        entropy((0..self.token_count()).map(|at| self.token(at)))
    }

    /// Which tokens each document has. Together they are all.
    pub fn documents(&self) -> &[Range<usize>] {
        &self.documents
    }

    /// Number of rows of `seq` tokens in an epoch.
    pub fn rows_per_epoch(&self, seq: usize) -> usize {
        self.token_count().div_ceil(seq.max(1))
    }

    /// The batch of a step. It depends on nothing but the arguments: row `r` of step `s` is row `s * batch + r` of the
    /// epochs in turn.
    pub fn batch(&self, seed: u64, step: u64, batch: usize, seq: usize) -> Result<Batch, DataError> {
        let size_error = || DataError::BatchSize { batch, seq };
        batch.checked_mul(seq).filter(|&count| count > 0 && count <= i32::MAX as usize).ok_or_else(size_error)?;
        let mut rows = Rows::default();
        let rows_per_epoch = self.rows_per_epoch(seq) as u128;
        for row in 0..batch {
            // Wide, so that no step number overflows.
            let row = step as u128 * batch as u128 + row as u128;
            let epoch = self.epoch(seed, (row / rows_per_epoch) as u64);
            self.add_row(&mut rows, &epoch, (row % rows_per_epoch) as usize * seq, seq);
        }
        rows.into_batch(&[batch, seq]).map_err(|_| size_error())
    }

    fn add_row(&self, rows: &mut Rows, epoch: &Epoch, start: usize, seq: usize) {
        let first = epoch.documents.partition_point(|(place, _)| *place <= start).saturating_sub(1);
        let mut filled = 0;
        for (segment, (place, document)) in (1..).zip(&epoch.documents[first..]) {
            if filled == seq {
                break;
            }
            // The first document may have begun in an earlier row.
            let begin = document.start + (start + filled - place);
            let end = document.end.min(begin + (seq - filled));
            for (position, at) in (0..).zip(begin..end) {
                let target = (at + 1 < document.end).then(|| self.token(at + 1));
                rows.push(self.token(at), target, segment, position);
            }
            filled += end - begin;
        }
        (filled..seq).for_each(|_| rows.push(0, None, 0, 0));
    }

    fn epoch(&self, seed: u64, number: u64) -> Arc<Epoch> {
        // A panic elsewhere cannot leave the cache half-written, so a poisoned lock is as good as any.
        let mut last = self.last_epoch.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(epoch) = last.as_ref().filter(|epoch| epoch.seed == seed && epoch.number == number) {
            return epoch.clone();
        }
        let epoch = Arc::new(Epoch::new(&self.documents, seed, number));
        *last = Some(epoch.clone());
        epoch
    }
}

impl Epoch {
    /// Every document gets a number that depends on seed, epoch and its place in the text alone; their order is the
    /// epoch's.
    fn new(documents: &[Range<usize>], seed: u64, number: u64) -> Epoch {
        let key = mix(mix(seed) ^ number);
        let mut order: Vec<(u64, usize)> = (0..documents.len()).map(|index| (mix(key ^ index as u64), index)).collect();
        order.sort_unstable();
        let mut place = 0;
        let documents = order.into_iter().map(|(_, index)| {
            let document = documents[index].clone();
            place += document.len();
            (place - document.len(), document)
        });
        Epoch { seed, number, documents: documents.collect() }
    }
}

/// A number each bit of which depends on every bit of the argument.
fn mix(mut value: u64) -> u64 {
    next_bits(&mut value)
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

/// Cuts a text after blank lines, into documents of at least [`MIN_DOCUMENT_BYTES`] (but the last). A document keeps
/// the blank lines that end it, so the documents are the text.
fn split_documents(text: &[u8]) -> Vec<Range<usize>> {
    let mut documents = Vec::new();
    let (mut start, mut line_start, mut after_blank) = (0, 0, false);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let blank = line.iter().all(u8::is_ascii_whitespace);
        if after_blank && !blank && line_start - start >= MIN_DOCUMENT_BYTES {
            documents.push(start..line_start);
            start = line_start;
        }
        after_blank = blank;
        line_start += line.len();
    }
    documents.push(start..text.len());
    documents
}

/// What a model that knows only how often each byte occurs loses per byte, in nats. 0 for no bytes.
pub fn unigram_entropy(bytes: &[u8]) -> f64 {
    entropy(bytes.iter().map(|&byte| byte.into()))
}

fn entropy(tokens: impl Iterator<Item = i32>) -> f64 {
    let (mut counts, mut total) = (BTreeMap::new(), 0u64);
    for token in tokens {
        *counts.entry(token).or_insert(0u64) += 1;
        total += 1;
    }
    let shares = counts.into_values().map(|count| count as f64 / total as f64);
    shares.map(|share| -share * share.ln()).sum()
}

fn too_short(origin: &str, length: usize) -> DataError {
    DataError::TooShort { origin: origin.to_owned(), bytes: length }
}

/// Byte tokens back as text. What is not UTF-8, or no byte, becomes a replacement character.
pub fn decode_bytes(tokens: &[i32]) -> String {
    // 0xff occurs in no UTF-8 text, so it decodes to the replacement character.
    let bytes: Vec<u8> = tokens.iter().map(|&token| u8::try_from(token).unwrap_or(0xff)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
