//! Makes a program smaller while something about it stays true.
//!
//! [`shrink`] is delta debugging: it edits a module, asks whether the symptom still shows, and keeps the edit if it
//! does, until no edit is left or the tries are used up. It knows no compiler: the caller runs the module and judges.
//! Each edit keeps the module well-formed, so the caller always judges a valid program.
//!
//! It makes these edits in this order, over and over: fewer outputs; a value further up as the result; a called
//! computation in place of its call, or as the program; parameters, constants or operands in place of values; smaller
//! dimensions. Every edit also drops everything that the result no longer depends on.
//!
//! [`shrink_pair`] does the same with two modules that should give equal results. It edits both alike: values that come
//! from the same place in the source and have the same shape count as the same.
//!
//! Parameters keep their names, and a value that becomes a parameter keeps its own. A caller that draws inputs by name
//! gives a parameter the same value in every try.

mod edit;
mod pair;

use std::hash::{DefaultHasher, Hash, Hasher};

use prost::Message;
use rustc_hash::FxHashSet;

pub use edit::{instruction_count, tensor_type};
pub use pair::shrink_pair;

use meshloom_hlo::message::counted;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};

/// The caller's finding when it tries a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The symptom shows.
    Shows,
    /// The symptom does not show, or the module cannot be tried.
    Gone,
    /// The search is to stop.
    Stop,
}

/// The limits of shrinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most modules to try.
    pub tries: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { tries: 400 }
    }
}

/// The result of shrinking a program.
#[derive(Clone, Debug)]
pub struct Shrunk<M> {
    /// The smallest program in which the symptom showed.
    pub module: M,
    /// The number of modules that were tried.
    pub tries: usize,
    /// The edits that were kept: a description of each, and the number of instructions after it.
    pub steps: Vec<(String, usize)>,
    /// Whether no edit was left to try.
    pub is_complete: bool,
}

/// Makes a module smaller as long as `verdict` says that the symptom shows. It is assumed to show in the module as
/// given.
pub fn shrink(
    module: &HloModuleProto,
    limits: Limits,
    verdict: &mut dyn FnMut(&HloModuleProto) -> Verdict,
) -> Shrunk<HloModuleProto> {
    let mut search = Search::new(module.clone(), limits, edit::size, edit::instruction_count, verdict);
    // Instructions that the result does not depend on may still be what breaks a compiler.
    let has_dead = {
        let mut tidied = module.clone();
        edit::tidy(&mut tidied, false);
        edit::size(&tidied) < edit::size(module)
    };
    let keeps_dead = has_dead
        && !search.attempt("drop what the result does not depend on", |module| {
            edit::tidy(module, false);
            true
        });
    if keeps_dead {
        search.attempt("drop what nothing needs", |module| {
            edit::tidy(module, true);
            true
        });
    }
    let mut is_complete = false;
    while !is_complete && !search.is_over() {
        let before = search.size();
        let tidy = |module: &mut HloModuleProto| edit::tidy(module, keeps_dead);
        outputs(&mut search, edit::output_count, |module, kept| {
            let is_done = edit::keep_outputs(module, kept);
            tidy(module);
            is_done
        });
        roots(&mut search, &tidy);
        calls(&mut search, &tidy);
        values(&mut search, &tidy);
        sizes(&mut search, &tidy);
        is_complete = search.size() == before && !search.is_over();
    }
    search.finish(is_complete)
}

/// A search in progress.
struct Search<'v, M> {
    current: M,
    limits: Limits,
    measure: fn(&M) -> (usize, u128),
    count: fn(&M) -> usize,
    verdict: &'v mut dyn FnMut(&M) -> Verdict,
    tried: FxHashSet<u64>,
    tries: usize,
    steps: Vec<(String, usize)>,
    is_stopped: bool,
}

/// A module, or a pair, that is told apart by its bytes.
trait Bytes {
    fn bytes(&self) -> Vec<u8>;
}

impl Bytes for HloModuleProto {
    fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

impl<'v, M: Clone + Bytes> Search<'v, M> {
    fn new(
        current: M,
        limits: Limits,
        measure: fn(&M) -> (usize, u128),
        count: fn(&M) -> usize,
        verdict: &'v mut dyn FnMut(&M) -> Verdict,
    ) -> Search<'v, M> {
        let tried = FxHashSet::from_iter([hash(&current)]);
        Search { current, limits, measure, count, verdict, tried, tries: 0, steps: Vec::new(), is_stopped: false }
    }

    fn size(&self) -> (usize, u128) {
        (self.measure)(&self.current)
    }

    fn is_over(&self) -> bool {
        self.is_stopped || self.tries >= self.limits.tries
    }

    /// Edits a copy, and keeps it if it is smaller and the symptom shows.
    fn attempt(&mut self, what: &str, edit: impl FnOnce(&mut M) -> bool) -> bool {
        if self.is_over() {
            return false;
        }
        let mut candidate = self.current.clone();
        if !edit(&mut candidate) || (self.measure)(&candidate) >= self.size() || !self.tried.insert(hash(&candidate)) {
            return false;
        }
        self.tries += 1;
        match (self.verdict)(&candidate) {
            Verdict::Shows => {
                self.steps.push((what.to_owned(), (self.count)(&candidate)));
                self.current = candidate;
                true
            }
            Verdict::Gone => false,
            Verdict::Stop => {
                self.is_stopped = true;
                false
            }
        }
    }

    fn finish(self, is_complete: bool) -> Shrunk<M> {
        Shrunk { module: self.current, tries: self.tries, steps: self.steps, is_complete }
    }
}

fn hash(module: &impl Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    module.bytes().hash(&mut hasher);
    hasher.finish()
}

/// Keeps one half of the outputs, then one half of those, and so on.
fn outputs<M: Clone + Bytes>(
    search: &mut Search<'_, M>,
    count: impl Fn(&M) -> Option<usize>,
    keep: impl Fn(&mut M, &[usize]) -> bool,
) {
    let mut parts = 2;
    while let Some(count) = count(&search.current).filter(|&count| count > 1) {
        if search.is_over() {
            return;
        }
        let length = count.div_ceil(parts);
        let all: Vec<usize> = (0..count).collect();
        let is_cut = all.chunks(length).any(|kept| search.attempt("keep fewer outputs", |module| keep(module, kept)));
        match (is_cut, length) {
            (true, _) => parts = 2,
            (false, 1) => return,
            (false, _) => parts = (parts * 2).min(count),
        }
    }
}

type Tidy<'t> = &'t dyn Fn(&mut HloModuleProto);

/// Takes a value further up as the result: first by halves, since values after the fault often show it too, then the
/// operands of the result.
fn roots(search: &mut Search<'_, HloModuleProto>, tidy: Tidy<'_>) {
    let mut failed: FxHashSet<i64> = FxHashSet::default();
    while !search.is_over() {
        let Some(entry) = edit::entry(&search.current) else { return };
        let candidates: Vec<(i64, String)> = entry
            .instructions
            .iter()
            .filter(|it| it.id != entry.root_id && !is_leaf(it) && edit::instruction_type(it).is_some())
            .filter(|it| !failed.contains(&it.id))
            .map(|it| (it.id, it.name.clone()))
            .collect();
        let Some((id, name)) = candidates.get(candidates.len() / 2).cloned() else { break };
        let is_kept = search.attempt(&format!("take %{name} as the result"), |module| {
            let is_done = edit::make_root(module, id);
            tidy(module);
            is_done
        });
        if !is_kept {
            // The values before it most likely fail too.
            failed.extend(candidates.iter().take(candidates.len() / 2 + 1).map(|(id, _)| *id));
        }
    }
    while !search.is_over() {
        let Some(entry) = edit::entry(&search.current) else { return };
        let root = entry.instructions.iter().find(|it| it.id == entry.root_id);
        let operands: Vec<i64> = root.map(|it| it.operand_ids.clone()).unwrap_or_default();
        let is_cut = operands.into_iter().any(|id| {
            search.attempt("take an operand as the result", |module| {
                let is_done = edit::make_root(module, id);
                tidy(module);
                is_done
            })
        });
        if !is_cut {
            return;
        }
    }
}

/// Whether an instruction has nothing above it.
fn is_leaf(instruction: &HloInstructionProto) -> bool {
    matches!(instruction.opcode.as_str(), "parameter" | "constant")
}

/// Takes called computations as the program, or writes them in place of their calls.
fn calls(search: &mut Search<'_, HloModuleProto>, tidy: Tidy<'_>) {
    let mut is_changed = true;
    while is_changed && !search.is_over() {
        is_changed = false;
        let entry_index = edit::entry_index(&search.current);
        // The smallest computation that shows the symptom is the best.
        let mut computations: Vec<(usize, usize)> = search
            .current
            .computations
            .iter()
            .enumerate()
            .filter(|&(index, it)| Some(index) != entry_index && it.instructions.len() > 2)
            .map(|(index, it)| (it.instructions.len(), index))
            .collect();
        computations.sort_unstable();
        is_changed |= computations.into_iter().any(|(_, index)| {
            let name = search.current.computations.get(index).map_or_else(String::new, |it| it.name.clone());
            search.attempt(&format!("take %{name} as the program"), |module| {
                let is_done = edit::make_entry(module, index);
                tidy(module);
                is_done
            })
        });
        let calls: Vec<(i64, usize, String)> = edit::entry(&search.current)
            .into_iter()
            .flat_map(|it| &it.instructions)
            .flat_map(|it| (0..it.called_computation_ids.len()).map(|which| (it.id, which, it.name.clone())))
            .collect();
        for (id, which, name) in calls {
            is_changed |= search.attempt(&format!("write what %{name} calls in its place, once"), |module| {
                let is_done = edit::inline(module, id, which);
                tidy(module);
                is_done
            });
        }
    }
}

/// Replaces values: many at once by parameters, then each by a parameter, an operand or a constant.
fn values(search: &mut Search<'_, HloModuleProto>, tidy: Tidy<'_>) {
    let candidates = |module: &HloModuleProto| -> Vec<i64> {
        let Some(entry) = edit::entry(module) else { return Vec::new() };
        let is_candidate =
            |it: &&HloInstructionProto| it.id != entry.root_id && !is_leaf(it) && edit::instruction_type(it).is_some();
        entry.instructions.iter().filter(is_candidate).map(|it| it.id).collect()
    };
    let mut length = candidates(&search.current).len().div_ceil(2);
    while length > 1 && !search.is_over() {
        let mut start = 0;
        loop {
            let all = candidates(&search.current);
            let Some(chunk) = all.get(start..(start + length).min(all.len())).filter(|it| !it.is_empty()) else {
                break;
            };
            let is_kept = search.attempt(&format!("make parameters of {}", counted(chunk.len(), "value")), |module| {
                let count = chunk.iter().filter(|&&id| edit::make_parameter(module, id)).count();
                tidy(module);
                count > 0
            });
            if !is_kept {
                start += length;
            }
        }
        length /= 2;
    }
    let mut start = 0;
    while let Some(&id) = candidates(&search.current).get(start).filter(|_| !search.is_over()) {
        if !replace(search, id, tidy) {
            start += 1;
        }
    }
    // A parameter is the simplest value, but a caller must give it; a constant needs no input.
    let operands = |module: &HloModuleProto, id: i64| -> Vec<i64> {
        let instruction = edit::entry(module).and_then(|it| it.instructions.iter().find(|it| it.id == id));
        instruction.map(|it| it.operand_ids.clone()).unwrap_or_default()
    };
    let root = edit::entry(&search.current).map(|it| it.root_id);
    if let Some(root) = root {
        for operand in operands(&search.current, root) {
            search.attempt("take an operand in place of the result", |module| {
                let is_done = edit::make_root(module, operand);
                tidy(module);
                is_done
            });
        }
    }
}

fn replace(search: &mut Search<'_, HloModuleProto>, id: i64, tidy: Tidy<'_>) -> bool {
    let Some(entry) = edit::entry(&search.current) else { return false };
    let Some(instruction) = entry.instructions.iter().find(|it| it.id == id) else { return false };
    let (name, shape) = (instruction.name.clone(), instruction.shape.clone().unwrap_or_default());
    let has_shape = |operand: &i64| {
        let operand = entry.instructions.iter().find(|it| it.id == *operand);
        operand.and_then(|it| it.shape.as_ref()).is_some_and(|it| edit::is_same_shape(it, &shape))
    };
    let alike: Vec<i64> = instruction.operand_ids.iter().copied().filter(has_shape).collect();
    let is_parameter = search.attempt(&format!("make a parameter of %{name}"), |module| {
        let is_done = edit::make_parameter(module, id);
        tidy(module);
        is_done
    });
    let is_operand = is_parameter
        || alike.into_iter().any(|operand| {
            search.attempt(&format!("take an operand in place of %{name}"), |module| {
                let is_done = edit::forward(module, id, operand);
                tidy(module);
                is_done
            })
        });
    is_operand
        || search.attempt(&format!("make a constant of %{name}"), |module| {
            let is_done = edit::make_constant(module, id);
            tidy(module);
            is_done
        })
}

/// Replaces sizes of dimensions by smaller ones.
fn sizes(search: &mut Search<'_, HloModuleProto>, tidy: Tidy<'_>) {
    for size in edit::sizes(&search.current) {
        for new in [1, 2, size / 2].into_iter().filter(|&new| new < size) {
            let is_kept = search.attempt(&format!("make dimensions of {size} ones of {new}"), |module| {
                let is_done = edit::replace_size(module, size, new);
                tidy(module);
                is_done
            });
            if is_kept {
                break;
            }
        }
    }
}
