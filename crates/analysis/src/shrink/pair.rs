//! Makes two modules smaller that should give equal results.

use rustc_hash::FxHashMap;

use super::{Limits, Search, Shrunk, Subject, Verdict, edit, is_leaf};
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom_hlo::tensor_type;
use meshloom_hlo::text::{Layouts, print_shape};

/// Two modules.
pub type Pair = (HloModuleProto, HloModuleProto);

impl Subject for Pair {
    type Id = (i64, i64);

    fn bytes(&self) -> Vec<u8> {
        [self.0.bytes(), self.1.bytes()].concat()
    }

    fn size(&self) -> (usize, u128) {
        let (left, right) = (self.0.size(), self.1.size());
        (left.0 + right.0, left.1 + right.1)
    }

    fn instruction_count(&self) -> usize {
        self.0.instruction_count() + self.1.instruction_count()
    }

    fn tidy(&mut self, keeps_dead: bool) {
        self.0.tidy(keeps_dead);
        self.1.tidy(keeps_dead);
    }

    fn output_count(&self) -> Option<usize> {
        self.0.output_count().filter(|&left| self.1.output_count() == Some(left))
    }

    fn keep_outputs(&mut self, kept: &[usize]) -> bool {
        self.0.keep_outputs(kept) && self.1.keep_outputs(kept)
    }

    fn candidates(&self) -> Vec<((i64, i64), String)> {
        let roots = [&self.0, &self.1].map(|module| edit::entry(module).map(|it| it.root_id));
        let mut all = matches(self);
        all.retain(|((left, right), _)| roots != [Some(*left), Some(*right)]);
        all
    }

    fn root_edit(name: &str) -> String {
        format!("take %{name} as the results")
    }

    fn make_root(&mut self, (left, right): (i64, i64)) -> bool {
        self.0.make_root(left) && self.1.make_root(right)
    }

    fn make_parameters(&mut self, values: &[((i64, i64), String)]) -> bool {
        values.iter().all(|(value, name)| share_parameter(self, *value, name))
    }
}

/// Makes two modules smaller, as [`shrink`](super::shrink) does one, as long as `verdict` says that the symptom shows:
/// mostly that their results differ. Parameters of the second module get the names of the first's, by number.
pub fn shrink_pair(pair: &Pair, limits: Limits, verdict: &mut dyn FnMut(&Pair) -> Verdict) -> Shrunk<Pair> {
    let mut pair = pair.clone();
    name_alike(&mut pair);
    let mut search = Search::new(pair, limits, verdict);
    search.attempt("drop what the results do not depend on", |_| true);
    search.run(|search| {
        let mut length = search.current.candidates().len().div_ceil(2);
        while length > 0 && !search.is_over() {
            search.parameters(length, |chunk| match chunk {
                [(_, name)] => format!("make a parameter of %{name} in both"),
                chunk => format!("make parameters of {} values in both", chunk.len()),
            });
            length = if length > 1 { length.div_ceil(2).min(length - 1) } else { 0 };
        }
    })
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
fn matches((left, right): &Pair) -> Vec<((i64, i64), String)> {
    type Key = (String, String, String, usize);
    let keyed = |module: &HloModuleProto| -> Vec<(Key, i64, String)> {
        let mut seen: FxHashMap<(String, String, String), usize> = FxHashMap::default();
        let key = |it: &HloInstructionProto| {
            let op_name = &it.metadata.as_ref()?.op_name;
            let shape = it.shape.as_ref().filter(|shape| tensor_type(shape).is_some())?;
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
    let both = |(key, id, name): (Key, i64, String)| Some(((id, *of_right.get(&key)?), name));
    keyed(left).into_iter().filter_map(both).collect()
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
