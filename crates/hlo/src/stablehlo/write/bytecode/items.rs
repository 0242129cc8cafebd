//! Attributes, types and strings, each once, and the numbers that a file gives them.

use std::hash::Hash;
use std::rc::Rc;

use rustc_hash::FxHashMap;

/// The dialects of attributes and types in artifacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Dialect {
    Builtin,
    Vhlo,
}

impl Dialect {
    pub(super) const ALL: [Dialect; 2] = [Dialect::Builtin, Dialect::Vhlo];

    pub(super) fn name(self) -> &'static str {
        match self {
            Dialect::Builtin => "builtin",
            Dialect::Vhlo => "vhlo",
        }
    }
}

/// A fragment of an encoding. Other attributes, types and strings get their numbers at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fragment {
    Number(u64),
    Attribute(u32),
    Type(u32),
    String(u32),
    /// Bytes as they are.
    Bytes(Vec<u8>),
}

impl Fragment {
    /// A number whose lowest bit is its sign.
    pub(super) fn signed(number: i64) -> Fragment {
        Fragment::Number((number << 1 ^ number >> 63) as u64)
    }
}

#[derive(PartialEq, Eq, Hash)]
pub(super) struct Item {
    pub(super) dialect: Dialect,
    pub(super) fragments: Vec<Fragment>,
}

/// Things, each under a number in the order in which they came.
pub(super) struct Numbered<T> {
    pub(super) all: Vec<Rc<T>>,
    numbers: FxHashMap<Rc<T>, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { all: Vec::new(), numbers: FxHashMap::default() }
    }
}

impl<T: Hash + Eq> Numbered<T> {
    pub(super) fn number(&mut self, thing: T) -> u32 {
        if let Some(&number) = self.numbers.get(&thing) {
            return number;
        }
        let number = self.all.len() as u32;
        let thing = Rc::new(thing);
        self.all.push(Rc::clone(&thing));
        self.numbers.insert(thing, number);
        number
    }
}

/// All that the ops of a file refer to.
#[derive(Default)]
pub(super) struct Items {
    pub(super) attributes: Numbered<Item>,
    pub(super) types: Numbered<Item>,
    pub(super) strings: Numbered<Vec<u8>>,
    /// About how many bytes they have.
    pub(super) length: usize,
}

impl Items {
    pub(super) fn attribute(&mut self, dialect: Dialect, fragments: Vec<Fragment>) -> u32 {
        self.length += 16 * fragments.len();
        self.attributes.number(Item { dialect, fragments })
    }

    pub(super) fn ty(&mut self, dialect: Dialect, fragments: Vec<Fragment>) -> u32 {
        self.types.number(Item { dialect, fragments })
    }

    pub(super) fn string(&mut self, string: &[u8]) -> u32 {
        self.length += string.len();
        self.strings.number(string.to_vec())
    }
}

/// The order of things in a file: those that are used most come first, for their numbers are short; things whose
/// numbers are equally long stand together by their dialects.
pub(super) struct Order {
    /// The things in their order.
    pub(super) order: Vec<u32>,
    /// The place of each.
    pub(super) places: Vec<u32>,
}

impl Order {
    pub(super) fn of(uses: &[u32], dialect: impl Fn(u32) -> Dialect) -> Order {
        let mut order: Vec<u32> = (0..uses.len() as u32).collect();
        order.sort_by_key(|&thing| std::cmp::Reverse(uses[thing as usize]));
        let mut start = 0;
        for bits in (7..=28).step_by(7) {
            let end = order.len().min(1 << bits);
            order[start..end].sort_by_key(|&thing| dialect(thing));
            start = end;
        }
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &thing)| places[thing as usize] = place as u32);
        Order { order, places }
    }

    pub(super) fn place(&self, thing: u32) -> u64 {
        self.places.get(thing as usize).copied().unwrap_or(0).into()
    }
}
