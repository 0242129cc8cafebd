//! Makes two modules smaller that should give equal results.

use rustc_hash::FxHashMap;

use super::{Bytes, Limits, Search, Shrunk, Verdict, edit, is_leaf, outputs};
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom_hlo::text::{Layouts, print_shape};

/// Two modules.
pub type Pair = (HloModuleProto, HloModuleProto);

impl Bytes for Pair {
    fn bytes(&self) -> Vec<u8> {
        [self.0.bytes(), self.1.bytes()].concat()
    }
}

/// Makes two modules smaller, as [`shrink`](super::shrink) does one, as long as `verdict` says that the symptom shows:
/// mostly that their results differ. Parameters of the second module get the names of the first's, by number.
pub fn shrink_pair(pair: &Pair, limits: Limits, verdict: &mut dyn FnMut(&Pair) -> Verdict) -> Shrunk<Pair> {
    let mut pair = pair.clone();
    name_alike(&mut pair);
    let measure = |(left, right): &Pair| {
        let (left, right) = (edit::size(left), edit::size(right));
        (left.0 + right.0, left.1 + right.1)
    };
    let count = |(left, right): &Pair| edit::instruction_count(left) + edit::instruction_count(right);
    let mut search = Search::new(pair, limits, measure, count, verdict);
    search.attempt("drop what the results do not depend on", tidy);
    let mut is_complete = false;
    while !is_complete && !search.is_over() {
        let before = search.size();
        let count = |(left, right): &Pair| {
            let (left, right) = (edit::output_count(left)?, edit::output_count(right)?);
            (left == right).then_some(left)
        };
        outputs(&mut search, count, |pair, kept| {
            edit::keep_outputs(&mut pair.0, kept) && edit::keep_outputs(&mut pair.1, kept) && tidy(pair)
        });
        roots(&mut search);
        values(&mut search);
        is_complete = search.size() == before && !search.is_over();
    }
    search.finish(is_complete)
}

fn tidy(pair: &mut Pair) -> bool {
    edit::tidy(&mut pair.0, false);
    edit::tidy(&mut pair.1, false);
    true
}

/// Gives parameters of the second module the names of the first's.
fn name_alike((left, right): &mut Pair) {
    edit::flatten_parameters(left);
    edit::flatten_parameters(right);
    let of_left = edit::entry(left).into_iter().flat_map(|it| &it.instructions);
    let names: FxHashMap<i64, String> =
        of_left.filter(|it| it.opcode == "parameter").map(|it| (it.parameter_number, it.name.clone())).collect();
    let Some(entry) = edit::entry_mut(right) else { return };
    let taken: Vec<&String> = names.values().collect();
    for instruction in &mut entry.instructions {
        match names.get(&instruction.parameter_number).filter(|_| instruction.opcode == "parameter") {
            Some(name) => instruction.name.clone_from(name),
            None if taken.contains(&&instruction.name) => instruction.name.push_str(".other"),
            None => {}
        }
    }
}

/// Returns the values of the two entries that come from the same place and have the same shape: ids and names. Several
/// such values in one module are told apart by their order.
fn matches((left, right): &Pair) -> Vec<(i64, i64, String)> {
    type Key = (String, String, String, usize);
    let keyed = |module: &HloModuleProto| -> Vec<(Key, i64, String)> {
        let mut seen: FxHashMap<(String, String, String), usize> = FxHashMap::default();
        let key = |it: &HloInstructionProto| {
            let op_name = &it.metadata.as_ref()?.op_name;
            let shape = it.shape.as_ref().filter(|shape| edit::tensor_type(shape).is_some())?;
            if op_name.is_empty() || is_leaf(it) || edit::is_manual(it) {
                return None;
            }
            let key = (op_name.clone(), it.opcode.clone(), print_shape(shape, Layouts::None));
            let count = seen.entry(key.clone()).or_default();
            *count += 1;
            Some(((key.0, key.1, key.2, *count), it.id, it.name.clone()))
        };
        edit::entry(module).into_iter().flat_map(|it| &it.instructions).filter_map(key).collect()
    };
    let of_right: FxHashMap<Key, i64> = keyed(right).into_iter().map(|(key, id, _)| (key, id)).collect();
    let both = |(key, id, name): (Key, i64, String)| Some((id, *of_right.get(&key)?, name));
    keyed(left).into_iter().filter_map(both).collect()
}

/// Takes values further up as the results: by halves, then one after another from the top.
fn roots(search: &mut Search<'_, Pair>) {
    let mut failed: Vec<(i64, i64)> = Vec::new();
    while !search.is_over() {
        let is_root = |pair: &Pair, (left, right): (i64, i64)| {
            edit::entry(&pair.0).is_some_and(|it| it.root_id == left)
                && edit::entry(&pair.1).is_some_and(|it| it.root_id == right)
        };
        let mut candidates = matches(&search.current);
        candidates.retain(|(left, right, _)| {
            !failed.contains(&(*left, *right)) && !is_root(&search.current, (*left, *right))
        });
        let half = candidates.len() / 2;
        let Some((left, right, name)) = candidates.get(half).cloned() else { return };
        let is_kept = search.attempt(&format!("take %{name} as the results"), |pair| {
            edit::make_root(&mut pair.0, left) && edit::make_root(&mut pair.1, right) && tidy(pair)
        });
        if !is_kept {
            failed.extend(candidates.iter().take(half + 1).map(|(left, right, _)| (*left, *right)));
        }
    }
}

/// Makes values parameters in both modules: many at once, then each.
fn values(search: &mut Search<'_, Pair>) {
    let candidates = |pair: &Pair| -> Vec<(i64, i64, String)> {
        let roots = [&pair.0, &pair.1].map(|module| edit::entry(module).map(|it| it.root_id));
        let mut all = matches(pair);
        all.retain(|(left, right, _)| roots != [Some(*left), Some(*right)]);
        all
    };
    let mut length = candidates(&search.current).len().div_ceil(2);
    while length > 0 && !search.is_over() {
        let mut start = 0;
        loop {
            let all = candidates(&search.current);
            let Some(chunk) = all.get(start..(start + length).min(all.len())).filter(|it| !it.is_empty()) else {
                break;
            };
            let what = match chunk {
                [(.., name)] => format!("make a parameter of %{name} in both"),
                chunk => format!("make parameters of {} values in both", chunk.len()),
            };
            let is_kept = search.attempt(&what, |pair| {
                chunk.iter().all(|(left, right, name)| share_parameter(pair, (*left, *right), name)) && tidy(pair)
            });
            if !is_kept {
                start += length;
            }
        }
        length = if length > 1 { length.div_ceil(2).min(length - 1) } else { 0 };
    }
}

fn share_parameter((left, right): &mut Pair, (of_left, of_right): (i64, i64), name: &str) -> bool {
    if !edit::make_parameter(left, of_left) || !edit::make_parameter(right, of_right) {
        return false;
    }
    let Some(entry) = edit::entry_mut(right) else { return false };
    let mut others = entry.instructions.iter_mut().filter(|it| it.id != of_right && it.name == name);
    others.by_ref().for_each(|it| it.name.push_str(".other"));
    drop(others);
    entry.instructions.iter_mut().filter(|it| it.id == of_right).for_each(|it| name.clone_into(&mut it.name));
    true
}
