//! Numbers of executions and bytes that are known before a program runs, exactly or not, and their sums over branches
//! that exclude one another.
//!
//! A collective knows the branches that it is in, outermost first. The bytes that a program moves are then not the sum
//! over all collectives: they lie between the sums for the cheapest and the dearest branch of each conditional.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

/// A number that may be known before the program runs. It equals a plain number only if it is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// The number is exact.
    Exactly(u64),
    /// The number is an upper bound: some of it happens in a branch that may not be taken.
    AtMost(u64),
    /// The number is not known: some of it happens in a `while`.
    Unknown,
}

impl Amount {
    /// The number, or its upper bound.
    pub fn bound(self) -> Option<u64> {
        match self {
            Amount::Exactly(number) | Amount::AtMost(number) => Some(number),
            Amount::Unknown => None,
        }
    }

    fn combine(self, other: Amount, operation: impl Fn(u64, u64) -> u64) -> Amount {
        match (self, other) {
            (Amount::Exactly(a), Amount::Exactly(b)) => Amount::Exactly(operation(a, b)),
            (Amount::Unknown, _) | (_, Amount::Unknown) => Amount::Unknown,
            (Amount::Exactly(a) | Amount::AtMost(a), Amount::Exactly(b) | Amount::AtMost(b)) => {
                Amount::AtMost(operation(a, b))
            }
        }
    }

    /// The sum.
    pub fn plus(self, other: Amount) -> Amount {
        self.combine(other, u64::saturating_add)
    }

    /// Returns the amount multiplied by a number.
    pub fn times(self, number: u64) -> Amount {
        self.combine(Amount::Exactly(number), u64::saturating_mul)
    }

    /// Returns the amount as an upper bound.
    pub fn or_less(self) -> Amount {
        self.bound().map_or(Amount::Unknown, Amount::AtMost)
    }
}

impl PartialEq<u64> for Amount {
    fn eq(&self, other: &u64) -> bool {
        *self == Amount::Exactly(*other)
    }
}

/// `12`, `<=12` or `unknown`.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Exactly(number) => write!(f, "{number}"),
            Amount::AtMost(number) => write!(f, "<={number}"),
            Amount::Unknown => f.write_str("unknown"),
        }
    }
}

/// The number or its upper bound; null where it is not known.
impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bound().serialize(serializer)
    }
}

/// A branch of a conditional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Branch {
    /// Number of the conditional: each has its own, and one that is reached in several ways has one for each.
    pub conditional: usize,
    /// The branch, counted from 0 in program order. For a conditional on a truth value, HLO puts the branch for true
    /// first, our graphs the branch for false.
    pub branch: usize,
    /// How many branches the conditional has.
    pub branch_count: usize,
}

/// The bounds of a sum, whichever branches are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The least that the sum can be.
    pub least: u64,
    /// The most that the sum can be; `None` if a loop runs an unknown number of times.
    pub most: Option<u64>,
}

impl Bounds {
    const ZERO: Bounds = Bounds { least: 0, most: Some(0) };

    /// The upper bound; exact where it is the lower one too.
    pub fn amount(self) -> Amount {
        match self.most {
            None => Amount::Unknown,
            Some(most) if most == self.least => Amount::Exactly(most),
            Some(most) => Amount::AtMost(most),
        }
    }

    fn of(amount: Amount, branches: &[Branch]) -> Bounds {
        match amount {
            Amount::Exactly(number) => Bounds { least: number, most: Some(number) },
            // It runs this often where its branches are taken.
            Amount::AtMost(number) if !branches.is_empty() => Bounds { least: number, most: Some(number) },
            Amount::AtMost(number) => Bounds { least: 0, most: Some(number) },
            Amount::Unknown => Bounds { least: 0, most: None },
        }
    }

    fn plus(self, other: Bounds) -> Bounds {
        let most = self.most.zip(other.most).map(|(a, b)| a.saturating_add(b));
        Bounds { least: self.least.saturating_add(other.least), most }
    }

    /// Returns the bounds of a value that has either these bounds or the others.
    pub(crate) fn or(self, other: Bounds) -> Bounds {
        let most = self.most.zip(other.most).map(|(a, b)| a.max(b));
        Bounds { least: self.least.min(other.least), most }
    }
}

/// The sum of amounts, each with its branches, outermost first. An amount holds if its branches are taken.
pub fn sum<'a>(amounts: impl IntoIterator<Item = (&'a [Branch], Amount)>) -> Bounds {
    let amounts: Vec<_> = amounts.into_iter().collect();
    sum_within(&amounts, 0)
}

/// Returns the same sum for amounts whose first `depth` branches are the same.
fn sum_within(amounts: &[(&[Branch], Amount)], depth: usize) -> Bounds {
    type InBranch<'a> = Vec<(&'a [Branch], Amount)>;
    let mut total = Bounds::ZERO;
    let mut conditionals: BTreeMap<usize, (usize, BTreeMap<usize, InBranch<'_>>)> = BTreeMap::new();
    for &(branches, amount) in amounts {
        match branches.get(depth) {
            None => total = total.plus(Bounds::of(amount, branches)),
            Some(branch) => {
                let (_, taken) =
                    conditionals.entry(branch.conditional).or_insert((branch.branch_count, BTreeMap::new()));
                taken.entry(branch.branch).or_default().push((branches, amount));
            }
        }
    }
    for (count, branches) in conditionals.values() {
        // A branch that is not named moves nothing.
        let nothing = (branches.len() < *count).then_some(Bounds::ZERO);
        let either = branches.values().map(|inside| sum_within(inside, depth + 1)).chain(nothing).reduce(Bounds::or);
        total = total.plus(either.unwrap_or(Bounds::ZERO));
    }
    total
}
