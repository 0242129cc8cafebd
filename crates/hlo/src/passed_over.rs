//! The parts of a text that a reader does not know and that no analysis asks for.

use std::collections::BTreeMap;
use std::fmt;

/// Kinds that are named at most, and letters of a name: a text may have any number of both.
const MOST_NAMED: usize = 16;
const MOST_LETTERS: usize = 80;

/// The kinds of parts that a reader passed over, and how often each. Its `Display` is one line:
/// `attribute a of add (3 times), field b of metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassedOver {
    named: BTreeMap<String, usize>,
    /// How often it was something else.
    others: usize,
}

impl PassedOver {
    /// Notes one more.
    pub(crate) fn add(&mut self, what: &str) {
        let what: String = what.chars().take(MOST_LETTERS).collect();
        if self.named.len() < MOST_NAMED || self.named.contains_key(&what) {
            *self.named.entry(what).or_default() += 1;
        } else {
            self.others += 1;
        }
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// How many parts were passed over.
    pub fn count(&self) -> usize {
        self.named.values().sum::<usize>() + self.others
    }
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (what, count)) in self.named.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            f.write_str(what)?;
            if *count > 1 {
                write!(f, " ({count} times)")?;
            }
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}
