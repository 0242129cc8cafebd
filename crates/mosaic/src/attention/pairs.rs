//! The lists of pairs of blocks, made on the host.

use super::Attention;
use crate::KernelError;

/// Flag of the first pair of the block that the list is sorted by: sums start.
pub const FIRST: i32 = 1;
/// Flag of the last pair of that block: results are written.
pub const LAST: i32 = 2;
/// Flag of a pair in which there is something to see.
pub const COMPUTE: i32 = 4;
/// Flag of a pair that causality or the window hides in part.
pub const EDGE: i32 = 8;

/// The order in which a list of pairs is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Blocks of queries: for [`Attention::forward`] and [`Attention::backward_queries`].
    Queries,
    /// Blocks of keys: for [`Attention::backward_keys`].
    Keys,
}

/// A list of pairs of blocks, as the kernels take it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// The block of queries of each pair.
    pub query_block: Vec<i32>,
    /// The block of keys of each pair.
    pub key_block: Vec<i32>,
    /// The flags of each pair.
    pub flags: Vec<i32>,
}

impl Pairs {
    /// Number of pairs.
    pub const fn len(&self) -> usize {
        self.flags.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    fn push(&mut self, query: usize, key: usize, flags: i32) {
        // Scalar memory holds far fewer blocks than an `i32` counts.
        self.query_block.push(query as i32);
        self.key_block.push(key as i32);
        self.flags.push(flags);
    }
}

impl Attention {
    /// The place of the first token of each block if the place of a token is its index: of queries, then of keys.
    pub fn starts(&self) -> [Vec<i32>; 2] {
        let starts =
            |length: usize, block: usize| (0..length).step_by(block.max(1)).map(|start| start as i32).collect();
        [starts(self.queries, self.blocks.query), starts(self.keys, self.blocks.key)]
    }

    /// The pairs of blocks in which some query sees some key, by the places of the first tokens of blocks. A block that
    /// the list is sorted by and in which nothing is seen has one pair, so that its result is written: zeros.
    ///
    /// # Errors
    /// [`KernelError::Count`] if there is not one place for each block.
    pub fn pairs(&self, query_start: &[i32], key_start: &[i32], order: Order) -> Result<Pairs, KernelError> {
        self.check()?;
        let counts = [
            ("query_start", query_start.len(), self.queries / self.blocks.query),
            ("key_start", key_start.len(), self.keys / self.blocks.key),
        ];
        if let Some(&(what, actual, expected)) = counts.iter().find(|(_, actual, expected)| actual != expected) {
            return Err(KernelError::Count { what, actual, expected });
        }
        let (outer, inner) = match order {
            Order::Queries => (query_start.len(), key_start.len()),
            Order::Keys => (key_start.len(), query_start.len()),
        };
        let mut pairs = Pairs::default();
        for block in 0..outer {
            let pair = |other| if order == Order::Queries { (block, other) } else { (other, block) };
            let first = pairs.len();
            for (query, key) in (0..inner).map(pair) {
                if let Some(flags) = self.sight(query_start[query], key_start[key]) {
                    pairs.push(query, key, flags);
                }
            }
            if pairs.len() == first {
                let (query, key) = pair(0);
                pairs.push(query, key, 0);
            }
            let last = pairs.len() - 1;
            pairs.flags[first] |= FIRST;
            pairs.flags[last] |= LAST;
        }
        Ok(pairs)
    }

    /// The flags of a pair of blocks that start at these places; `None` if nothing is seen.
    fn sight(&self, query_start: i32, key_start: i32) -> Option<i32> {
        let apart = i64::from(query_start) - i64::from(key_start);
        // All distances between these occur.
        let (least, most) = (apart - self.blocks.key as i64 + 1, apart + self.blocks.query as i64 - 1);
        let lowest = if self.causal { 0 } else { i64::MIN };
        let highest = self.window.map_or(i64::MAX, |window| window as i64 - 1);
        if most < lowest || least > highest {
            return None;
        }
        Some(if least < lowest || most > highest { COMPUTE | EDGE } else { COMPUTE })
    }
}
