//! The order of documents: shuffled anew in each epoch, from seed and epoch number, in bounded memory.
//!
//! Documents lie in blocks of consecutive ones. An epoch draws an order of the blocks, and then, within each window of
//! blocks that are next to one another in it, an order of the documents. Only one window is held in memory. Any row is
//! found from its number: nothing depends on the rows before it.

use std::sync::{Arc, Mutex, PoisonError};

use super::error::DataError;
use super::store::{Entries, StoreEntry};
use crate::config::Documents;
use crate::random::next_bits;

/// The number of documents in a block; the last block of a file may have fewer.
const BLOCK: u64 = 1024;

/// A source: its documents, and the rows that they fill.
#[derive(Debug)]
pub(super) struct RowSource {
    entries: Entries,
    blocks: Vec<Block>,
    /// Blocks of a window.
    window: usize,
    layout: Layout,
    /// Places in an epoch.
    places: u64,
    // Neighbouring rows share both.
    last: Mutex<Last>,
}

/// The way in which documents take places. A row has `length` places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) documents: Documents,
    pub(super) length: usize,
}

impl Layout {
    /// The places that a document of so many tokens takes.
    fn places(&self, tokens: u64) -> u64 {
        match self.documents {
            Documents::Packed => tokens,
            Documents::OnePerRow => tokens.next_multiple_of(self.length as u64),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    entry: usize,
    /// Its first document, in the entry and in the source.
    first: u64,
    number: u64,
    documents: u64,
    places: u64,
}

#[derive(Debug, Default)]
struct Last {
    epoch: Option<Arc<Epoch>>,
    window: Option<Arc<Window>>,
}

/// The order of the blocks in one epoch.
#[derive(Debug)]
struct Epoch {
    seed: u64,
    number: u64,
    /// The key that the orders are derived from.
    key: u64,
    blocks: Vec<usize>,
    /// The place at which each window begins.
    windows: Vec<u64>,
}

/// The order of the documents in one window.
#[derive(Debug)]
struct Window {
    key: u64,
    index: usize,
    documents: Vec<Placed>,
}

/// A document and its place in an epoch.
#[derive(Clone, Copy, Debug)]
struct Placed {
    place: u64,
    entry: usize,
    /// Its tokens in the entry.
    start: u64,
    tokens: u64,
}

/// Part of a document in a row.
#[derive(Debug)]
pub(super) struct RowSegment {
    /// Its tokens, and one more if `has_more`.
    pub(super) tokens: Vec<i32>,
    /// Whether the document goes on behind it.
    pub(super) has_more: bool,
}

impl RowSource {
    /// The documents of entries; `window` is how many are shuffled at a time.
    pub(super) fn new(entries: Vec<StoreEntry>, layout: Layout, window: usize) -> Result<RowSource, DataError> {
        let entries = Entries::new(entries);
        let (mut blocks, mut number) = (Vec::new(), 0);
        for (entry, about) in entries.entries.iter().map(|entry| &entry.about).enumerate() {
            for first in (0..about.documents).step_by(BLOCK as usize) {
                let documents = BLOCK.min(about.documents - first);
                let ends = entries.ends(entry, first..first + documents)?;
                let places = ends.windows(2).map(|ends| layout.places(ends[1] - ends[0])).sum();
                blocks.push(Block { entry, first, number, documents, places });
                number += documents;
            }
        }
        let places = blocks.iter().map(|block| block.places).sum();
        let window = (window as u64 / BLOCK).max(1) as usize;
        Ok(RowSource { entries, blocks, window, layout, places, last: Mutex::default() })
    }

    pub(super) fn entries(&self) -> &[StoreEntry] {
        &self.entries.entries
    }

    pub(super) fn rows_per_epoch(&self) -> u64 {
        self.places.div_ceil(self.layout.length as u64)
    }

    pub(super) fn documents_in_memory(&self) -> usize {
        self.last().window.as_ref().map_or(0, |window| window.documents.len())
    }

    /// The tokens of a document, by its number in the source.
    pub(super) fn document(&self, number: u64) -> Result<Option<Vec<i32>>, DataError> {
        let block = self.blocks.partition_point(|block| block.number <= number).checked_sub(1);
        let Some(block) = block.and_then(|block| self.blocks.get(block)) else { return Ok(None) };
        let within = number - block.number;
        if within >= block.documents {
            return Ok(None);
        }
        let document = block.first + within;
        match self.entries.ends(block.entry, document..document + 1)?[..] {
            [start, end] => self.entries.tokens(block.entry, start..end).map(Some),
            _ => Ok(None),
        }
    }

    /// The segments of a row, which fill it from the left.
    pub(super) fn row(&self, seed: u64, epoch: u64, row: u64) -> Result<Vec<RowSegment>, DataError> {
        let length = self.layout.length as u64;
        let (start, epoch) = (row * length, self.epoch(seed, epoch));
        let end = (start + length).min(self.places);
        let (mut at, mut segments) = (start, Vec::new());
        let mut index = epoch.windows.partition_point(|place| *place <= start).saturating_sub(1);
        while at < end && index < epoch.windows.len() {
            let window = self.window(&epoch, index)?;
            let first = window.documents.partition_point(|document| document.place <= at).saturating_sub(1);
            for document in &window.documents[first..] {
                if at >= end {
                    break;
                }
                // The first document may have begun in an earlier row.
                let begin = at - document.place;
                let count = document.tokens.saturating_sub(begin).min(end - at);
                let has_more = begin + count < document.tokens;
                let from = document.start + begin;
                let tokens = self.entries.tokens(document.entry, from..from + count + u64::from(has_more))?;
                segments.push(RowSegment { tokens, has_more });
                at = match self.layout.documents {
                    Documents::Packed => at + count,
                    Documents::OnePerRow => end,
                };
            }
            index += 1;
        }
        Ok(segments)
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        // A panic elsewhere cannot leave it half-written, so a poisoned lock is as good as any.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn epoch(&self, seed: u64, number: u64) -> Arc<Epoch> {
        if let Some(epoch) = self.last().epoch.as_ref().filter(|epoch| (epoch.seed, epoch.number) == (seed, number)) {
            return epoch.clone();
        }
        let key = mix(mix(seed) ^ number);
        let of_blocks = mix(key);
        let mut blocks: Vec<usize> = (0..self.blocks.len()).collect();
        blocks.sort_by_key(|&block| (mix(of_blocks ^ block as u64), block));
        let mut place = 0;
        let windows = blocks.chunks(self.window).map(|blocks| {
            let start = place;
            place += blocks.iter().map(|&block| self.blocks[block].places).sum::<u64>();
            start
        });
        let epoch = Arc::new(Epoch { seed, number, key, windows: windows.collect(), blocks });
        self.last().epoch = Some(epoch.clone());
        epoch
    }

    /// Every document gets a number that depends on seed, epoch and its place in the source alone; their order is the
    /// window's.
    fn window(&self, epoch: &Epoch, index: usize) -> Result<Arc<Window>, DataError> {
        {
            let mut last = self.last();
            if let Some(window) = last.window.as_ref().filter(|window| (window.key, window.index) == (epoch.key, index))
            {
                return Ok(window.clone());
            }
            // This window is dropped before another is read, so that only one is in memory.
            last.window = None;
        }
        let blocks = epoch.blocks.chunks(self.window).nth(index).unwrap_or(&[]);
        let mut order = Vec::new();
        for block in blocks.iter().map(|&block| &self.blocks[block]) {
            let ends = self.entries.ends(block.entry, block.first..block.first + block.documents)?;
            for (number, ends) in (block.number..).zip(ends.windows(2)) {
                let (start, tokens) = (ends[0], ends[1] - ends[0]);
                order.push((mix(epoch.key ^ number), number, Placed { place: 0, entry: block.entry, start, tokens }));
            }
        }
        order.sort_unstable_by_key(|(drawn, number, _)| (*drawn, *number));
        let mut place = epoch.windows[index];
        let documents = order.into_iter().map(|(_, _, document)| {
            let placed = Placed { place, ..document };
            place += self.layout.places(document.tokens);
            placed
        });
        let window = Arc::new(Window { key: epoch.key, index, documents: documents.collect() });
        self.last().window = Some(window.clone());
        Ok(window)
    }
}

/// A number whose every bit depends on every bit of the argument.
fn mix(mut value: u64) -> u64 {
    next_bits(&mut value)
}
