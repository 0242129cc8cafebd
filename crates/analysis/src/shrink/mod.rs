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

pub use edit::instruction_count;
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
    let mut search = Search::new(module.clone(), limits, verdict);
    // Instructions that the result does not depend on may still be what breaks a compiler.
    let mut tidied = module.clone();
    tidied.tidy(false);
    let has_dead = tidied.size() < module.size();
    if has_dead && !search.attempt("drop what the result does not depend on", |_| true) {
        search.keeps_dead = true;
        search.attempt("drop what nothing needs", |_| true);
    }
    search.run(|search| {
        operands_as_root(search);
        calls(search);
        values(search);
        sizes(search);
    })
}

/// A module, or a pair, that is made smaller.
trait Subject: Clone {
    /// A value of the program.
    type Id: Copy + Eq + Hash;

    /// The bytes by which two are told apart.
    fn bytes(&self) -> Vec<u8>;

    /// The size that every edit must reduce.
    fn size(&self) -> (usize, u128);

    fn instruction_count(&self) -> usize;

    /// Drops everything that the result does not depend on.
    fn tidy(&mut self, keeps_dead: bool);

    /// The number of results, if they are several.
    fn output_count(&self) -> Option<usize>;

    fn keep_outputs(&mut self, kept: &[usize]) -> bool;

    /// The values that may become the result or parameters, with their names.
    fn candidates(&self) -> Vec<(Self::Id, String)>;

    /// Says what [`make_root`](Subject::make_root) does.
    fn root_edit(name: &str) -> String;

    fn make_root(&mut self, id: Self::Id) -> bool;

    fn make_parameters(&mut self, values: &[(Self::Id, String)]) -> bool;
}

impl Subject for HloModuleProto {
    type Id = i64;

    fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn size(&self) -> (usize, u128) {
        edit::size(self)
    }

    fn instruction_count(&self) -> usize {
        edit::instruction_count(self)
    }

    fn tidy(&mut self, keeps_dead: bool) {
        edit::tidy(self, keeps_dead);
    }

    fn output_count(&self) -> Option<usize> {
        edit::output_count(self)
    }

    fn keep_outputs(&mut self, kept: &[usize]) -> bool {
        edit::keep_outputs(self, kept)
    }

    fn candidates(&self) -> Vec<(i64, String)> {
        let Some(entry) = edit::entry(self) else { return Vec::new() };
        let is_candidate =
            |it: &&HloInstructionProto| it.id != entry.root_id && !is_leaf(it) && edit::instruction_type(it).is_some();
        entry.instructions.iter().filter(is_candidate).map(|it| (it.id, it.name.clone())).collect()
    }

    fn root_edit(name: &str) -> String {
        format!("take %{name} as the result")
    }

    fn make_root(&mut self, id: i64) -> bool {
        edit::make_root(self, id)
    }

    fn make_parameters(&mut self, values: &[(i64, String)]) -> bool {
        values.iter().filter(|(id, _)| edit::make_parameter(self, *id)).count() > 0
    }
}

struct Search<'v, M> {
    current: M,
    limits: Limits,
    verdict: &'v mut dyn FnMut(&M) -> Verdict,
    /// Whether instructions stay that the result does not depend on.
    keeps_dead: bool,
    tried: FxHashSet<u64>,
    tries: usize,
    steps: Vec<(String, usize)>,
    is_stopped: bool,
}

impl<'v, M: Subject> Search<'v, M> {
    fn new(current: M, limits: Limits, verdict: &'v mut dyn FnMut(&M) -> Verdict) -> Search<'v, M> {
        let tried = FxHashSet::from_iter([hash(&current)]);
        let (keeps_dead, tries, steps, is_stopped) = (false, 0, Vec::new(), false);
        Search { current, limits, verdict, keeps_dead, tried, tries, steps, is_stopped }
    }

    /// Makes all edits, over and over, until none is left.
    fn run(mut self, others: impl Fn(&mut Self)) -> Shrunk<M> {
        let mut is_complete = false;
        while !is_complete && !self.is_over() {
            let before = self.current.size();
            self.outputs();
            self.roots();
            others(&mut self);
            is_complete = self.current.size() == before && !self.is_over();
        }
        Shrunk { module: self.current, tries: self.tries, steps: self.steps, is_complete }
    }

    fn is_over(&self) -> bool {
        self.is_stopped || self.tries >= self.limits.tries
    }

    /// Edits a copy, tidies it, and keeps it if it is smaller and the symptom shows.
    fn attempt(&mut self, what: &str, edit: impl FnOnce(&mut M) -> bool) -> bool {
        if self.is_over() {
            return false;
        }
        let mut candidate = self.current.clone();
        if !edit(&mut candidate) {
            return false;
        }
        candidate.tidy(self.keeps_dead);
        if candidate.size() >= self.current.size() || !self.tried.insert(hash(&candidate)) {
            return false;
        }
        self.tries += 1;
        let verdict = (self.verdict)(&candidate);
        self.is_stopped = verdict == Verdict::Stop;
        if verdict == Verdict::Shows {
            self.steps.push((what.to_owned(), candidate.instruction_count()));
            self.current = candidate;
        }
        verdict == Verdict::Shows
    }

    /// Keeps one half of the outputs, then one half of those, and so on.
    fn outputs(&mut self) {
        let mut parts = 2;
        while let Some(count) = self.current.output_count().filter(|&count| count > 1) {
            if self.is_over() {
                return;
            }
            let length = count.div_ceil(parts);
            let all: Vec<usize> = (0..count).collect();
            let is_cut =
                all.chunks(length).any(|kept| self.attempt("keep fewer outputs", |module| module.keep_outputs(kept)));
            match (is_cut, length) {
                (true, _) => parts = 2,
                (false, 1) => return,
                (false, _) => parts = (parts * 2).min(count),
            }
        }
    }

    /// Takes a value further up as the result, by halves, since values after the fault often show it too.
    fn roots(&mut self) {
        let mut failed: FxHashSet<M::Id> = FxHashSet::default();
        while !self.is_over() {
            let mut candidates = self.current.candidates();
            candidates.retain(|(id, _)| !failed.contains(id));
            let half = candidates.len() / 2;
            let Some((id, name)) = candidates.get(half) else { return };
            if !self.attempt(&M::root_edit(name), |module| module.make_root(*id)) {
                // The values before it most likely fail too.
                failed.extend(candidates.iter().take(half + 1).map(|(id, _)| *id));
            }
        }
    }

    /// Makes parameters of this many values at once.
    fn parameters(&mut self, length: usize, what: impl Fn(&[(M::Id, String)]) -> String) {
        let mut start = 0;
        loop {
            let all = self.current.candidates();
            let chunk = all.get(start..(start + length).min(all.len())).filter(|it| !it.is_empty());
            let Some(chunk) = chunk else { return };
            if !self.attempt(&what(chunk), |module| module.make_parameters(chunk)) {
                start += length;
            }
        }
    }
}

fn hash(module: &impl Subject) -> u64 {
    let mut hasher = DefaultHasher::new();
    module.bytes().hash(&mut hasher);
    hasher.finish()
}

/// Whether an instruction has nothing above it.
fn is_leaf(instruction: &HloInstructionProto) -> bool {
    matches!(instruction.opcode.as_str(), "parameter" | "constant")
}

type ModuleSearch<'v> = Search<'v, HloModuleProto>;

fn root_operands(module: &HloModuleProto) -> Vec<i64> {
    let root = edit::entry(module).and_then(|entry| entry.instructions.iter().find(|it| it.id == entry.root_id));
    root.map(|it| it.operand_ids.clone()).unwrap_or_default()
}

/// Takes operands of the result as the result.
fn operands_as_root(search: &mut ModuleSearch<'_>) {
    let mut is_cut = true;
    while is_cut && !search.is_over() {
        is_cut = root_operands(&search.current)
            .into_iter()
            .any(|id| search.attempt("take an operand as the result", |module| edit::make_root(module, id)));
    }
}

/// Takes called computations as the program, or writes them in place of their calls.
fn calls(search: &mut ModuleSearch<'_>) {
    let mut is_changed = true;
    while is_changed && !search.is_over() {
        is_changed = false;
        let entry_index = edit::entry_index(&search.current);
        // The smallest computation that shows the symptom is the best.
        let computations = search.current.computations.iter().enumerate();
        let mut computations: Vec<(usize, usize)> = computations
            .filter(|&(index, it)| Some(index) != entry_index && it.instructions.len() > 2)
            .map(|(index, it)| (it.instructions.len(), index))
            .collect();
        computations.sort_unstable();
        is_changed |= computations.into_iter().any(|(_, index)| {
            let name = search.current.computations.get(index).map_or_else(String::new, |it| it.name.clone());
            search.attempt(&format!("take %{name} as the program"), |module| edit::make_entry(module, index))
        });
        let calls: Vec<(i64, usize, String)> = edit::entry(&search.current)
            .into_iter()
            .flat_map(|it| &it.instructions)
            .flat_map(|it| (0..it.called_computation_ids.len()).map(|which| (it.id, which, it.name.clone())))
            .collect();
        for (id, which, name) in calls {
            let what = format!("write what %{name} calls in its place, once");
            is_changed |= search.attempt(&what, |module| edit::inline(module, id, which));
        }
    }
}

/// Replaces values: many at once by parameters, then each by a parameter, an operand or a constant.
fn values(search: &mut ModuleSearch<'_>) {
    let mut length = search.current.candidates().len().div_ceil(2);
    while length > 1 && !search.is_over() {
        search.parameters(length, |chunk| format!("make parameters of {}", counted(chunk.len(), "value")));
        length /= 2;
    }
    let mut start = 0;
    while let Some((id, _)) = search.current.candidates().get(start).filter(|_| !search.is_over()) {
        if !replace(search, *id) {
            start += 1;
        }
    }
    // A parameter is the simplest value, but a caller must give it; a constant needs no input.
    for operand in root_operands(&search.current) {
        search.attempt("take an operand in place of the result", |module| edit::make_root(module, operand));
    }
}

fn replace(search: &mut ModuleSearch<'_>, id: i64) -> bool {
    let Some(entry) = edit::entry(&search.current) else { return false };
    let Some(instruction) = entry.instructions.iter().find(|it| it.id == id) else { return false };
    let (name, shape) = (instruction.name.clone(), instruction.shape.clone().unwrap_or_default());
    let has_shape = |operand: &i64| {
        let operand = entry.instructions.iter().find(|it| it.id == *operand);
        operand.and_then(|it| it.shape.as_ref()).is_some_and(|it| edit::is_same_shape(it, &shape))
    };
    let alike: Vec<i64> = instruction.operand_ids.iter().copied().filter(has_shape).collect();
    search.attempt(&format!("make a parameter of %{name}"), |module| edit::make_parameter(module, id))
        || alike.into_iter().any(|operand| {
            search.attempt(&format!("take an operand in place of %{name}"), |it| edit::forward(it, id, operand))
        })
        || search.attempt(&format!("make a constant of %{name}"), |module| edit::make_constant(module, id))
}

/// Replaces sizes of dimensions by smaller ones.
fn sizes(search: &mut ModuleSearch<'_>) {
    for size in edit::sizes(&search.current) {
        let mut smaller = [1, 2, size / 2].into_iter().filter(|&new| new < size);
        smaller.any(|new| {
            let what = format!("make dimensions of {size} ones of {new}");
            search.attempt(&what, |module| edit::replace_size(module, size, new))
        });
    }
}
