//! Names that are unique in a module.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::proto::HloModuleProto;

/// Renames instructions so that names are unique in the module. XLA's parser does this to its input, and XLA refuses
/// modules with duplicate names; texts printed by XLA have none. As in XLA (`name_uniquer.cc`), a name is a base and a
/// number, and a name that is taken gets the first number that its base has free.
///
/// [`parse`](super::parse) does not do it, so that a reader finds the names that are in the text.
pub fn make_names_unique(module: &mut HloModuleProto) {
    let mut bases: FxHashMap<String, TakenNumbers> = FxHashMap::default();
    let instructions = module.computations.iter_mut().flat_map(|computation| &mut computation.instructions);
    for instruction in instructions {
        let (base, number) = split(&instruction.name);
        let unique = match bases.get_mut(base) {
            Some(numbers) => numbers.take(number),
            None => bases.entry(base.to_string()).or_default().take(number),
        };
        if unique != number {
            instruction.name = if unique == 0 { base.to_string() } else { format!("{base}.{unique}") };
        }
    }
}

/// The numbers of a base that are taken; 0 is the base alone.
#[derive(Default)]
struct TakenNumbers {
    taken: FxHashSet<u64>,
    next: u64,
}

impl TakenNumbers {
    fn take(&mut self, number: u64) -> u64 {
        if self.taken.insert(number) {
            return number;
        }
        while !self.taken.insert(self.next) {
            self.next += 1;
        }
        self.next
    }
}

/// The base and the number of a name; 0 if it has none.
fn split(name: &str) -> (&str, u64) {
    // Numbers are short, so a search byte by byte is the fastest.
    let point = name.bytes().rposition(|byte| byte == b'.').filter(|&point| point > 0);
    let parts = point.map(|point| (&name[..point], &name[point + 1..])).filter(|(_, digits)| !digits.starts_with('0'));
    match parts.and_then(|(base, digits)| Some((base, digits.parse().ok()?))) {
        Some((base, number)) => (base, number),
        None => (name, 0),
    }
}
