//! Filters and sums over a ledger.

use meshloom_analysis::{Amount, Bounds, sum};
use meshloom_hlo::CollectiveKind;
use meshloom_hlo::suggest::did_you_mean;

use super::{Collective, Ledger};
use crate::ir::Phase;

/// The reason why a ledger has no answer.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum LedgerError {
    /// A filter names an axis that the mesh does not have.
    #[error("the mesh {mesh:?} has no axis {axis:?}{suggestion}")]
    UnknownAxis { mesh: String, axis: String, suggestion: String },
    /// A filter names a scope that no node of the program is in.
    #[error("no node of the program is in a scope {scope:?}{suggestion}")]
    UnknownScope { scope: String, suggestion: String },
    /// XLA partitions the program, so its collectives are not known before it is compiled.
    #[error(
        "XLA partitions this program: what it needs is known once it is compiled; use partition mode \"explicit\", or read \
         the compiled module"
    )]
    PartitionedByXla,
}

meshloom_hlo::debug_is_message!(LedgerError);

impl Ledger {
    /// The version of the JSON form.
    pub const SCHEMA: u32 = 1;

    /// A ledger whose every answer is an error.
    pub(crate) fn failed(error: LedgerError) -> Ledger {
        Ledger { entries: Vec::new(), names: Default::default(), error: Some(error) }
    }

    fn keep(&self, wanted: impl Fn(&Collective) -> bool) -> Ledger {
        let entries = self.entries.iter().filter(|entry| wanted(entry)).cloned().collect();
        Ledger { entries, names: self.names.clone(), error: self.error.clone() }
    }

    /// As [`Ledger::keep`]; a problem, or an earlier error, makes the result an error.
    fn keep_if(&self, problem: Option<LedgerError>, wanted: impl Fn(&Collective) -> bool) -> Ledger {
        let kept = self.keep(wanted);
        Ledger { error: kept.error.or(problem), ..kept }
    }

    fn unknown_axis(&self, axes: &[&str]) -> Option<LedgerError> {
        let names = &self.names;
        let unknown = axes.iter().find(|&&axis| !names.axes.iter().any(|name| name == axis))?;
        Some(LedgerError::UnknownAxis {
            mesh: names.mesh.clone(),
            axis: (*unknown).to_owned(),
            suggestion: did_you_mean(unknown, names.axes.iter().map(String::as_str)),
        })
    }

    /// The collectives of a kind.
    pub fn kind(&self, kind: CollectiveKind) -> Ledger {
        self.keep(|entry| entry.kind == kind)
    }

    /// The collectives along a mesh axis, alone or together with others.
    pub fn over(&self, axis: &str) -> Ledger {
        self.over_any_of(&[axis])
    }

    /// The collectives along at least one of these mesh axes.
    pub fn over_any_of(&self, axes: &[&str]) -> Ledger {
        self.keep_if(self.unknown_axis(axes), |entry| entry.axes.iter().any(|axis| axes.contains(&whole_axis(axis))))
    }

    /// The collectives along all of these mesh axes and no other, in any order.
    pub fn over_exactly(&self, axes: &[&str]) -> Ledger {
        self.keep_if(self.unknown_axis(axes), |entry| {
            entry.axes.iter().all(|axis| axes.contains(&whole_axis(axis)))
                && axes.iter().all(|&axis| entry.axes.iter().any(|name| whole_axis(name) == axis))
        })
    }

    /// The collectives in the body of a scan or a while.
    pub fn inside_loops(&self) -> Ledger {
        self.keep(|entry| entry.loop_depth > 0)
    }

    /// The collectives in no loop.
    pub fn outside_loops(&self) -> Ledger {
        self.keep(|entry| entry.loop_depth == 0)
    }

    /// The collectives in a branch of a conditional.
    pub fn inside_conditionals(&self) -> Ledger {
        self.keep(|entry| !entry.branches.is_empty())
    }

    /// The collectives in no branch: they run in every run of the program.
    pub fn outside_conditionals(&self) -> Ledger {
        self.keep(|entry| entry.branches.is_empty())
    }

    /// The collectives of the user's own ops. The work of an optimizer belongs to them.
    pub fn forward(&self) -> Ledger {
        self.keep(|entry| entry.phase == Phase::Forward)
    }

    /// The collectives that differentiation made, without recomputation.
    pub fn backward(&self) -> Ledger {
        self.keep(|entry| entry.phase == Phase::Backward)
    }

    /// The collectives of forward nodes that the backward pass runs again.
    pub fn recompute(&self) -> Ledger {
        self.keep(|entry| entry.phase == Phase::Recompute)
    }

    /// The collectives in a scope: `attention` finds `layers/attention/scores`, `layers/attention` does too, `atten`
    /// does not.
    pub fn in_scope(&self, scope: &str) -> Ledger {
        let known = self.names.scopes.iter().any(|path| is_within(path, scope));
        let problem = (!known).then(|| {
            let parts = self.names.scopes.iter().flat_map(|path| path.split('/'));
            LedgerError::UnknownScope { scope: scope.to_owned(), suggestion: did_you_mean(scope, parts) }
        });
        self.keep_if(problem, |entry| is_within(&entry.scope, scope))
    }

    /// The collectives, in the order of the program.
    ///
    /// # Errors
    /// A filter names something that the program does not have, or XLA partitions the program. The same holds for all
    /// sums below.
    pub fn iter(&self) -> Result<impl ExactSizeIterator<Item = &Collective>, LedgerError> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.entries.iter().map(|entry| &**entry)),
        }
    }

    /// The number of collectives, each counted once however often it runs.
    pub fn count(&self) -> Result<usize, LedgerError> {
        self.iter().map(|entries| entries.len())
    }

    fn bounds(&self, amount: impl Fn(&Collective) -> Amount) -> Result<Bounds, LedgerError> {
        Ok(sum(self.iter()?.map(|entry| (entry.branches.as_slice(), amount(entry)))))
    }

    /// The sum over the collectives. One branch of a conditional runs, so branches are not added up.
    fn total(&self, amount: impl Fn(&Collective) -> Amount) -> Result<Amount, LedgerError> {
        Ok(self.bounds(amount)?.amount())
    }

    /// How often they run in one run of the program, in all.
    pub fn executions(&self) -> Result<Amount, LedgerError> {
        self.total(|entry| entry.executions)
    }

    /// The number of values moved, in all executions: [`Ledger::executions`] as it would be if no collectives were
    /// combined.
    pub fn operands_moved(&self) -> Result<Amount, LedgerError> {
        self.total(|entry| entry.executions.times(entry.operand_count as u64))
    }

    /// Bytes of operands on one device, over all executions.
    pub fn bytes(&self) -> Result<Amount, LedgerError> {
        self.total(|entry| entry.executions.times(entry.bytes))
    }

    /// Bytes that one device sends, over all executions.
    pub fn moved_bytes(&self) -> Result<Amount, LedgerError> {
        Ok(self.moved_bounds()?.amount())
    }

    /// The least and the most of [`Ledger::moved_bytes`], whichever branches are taken.
    pub fn moved_bounds(&self) -> Result<Bounds, LedgerError> {
        self.bounds(|entry| entry.executions.times(entry.moved_bytes))
    }
}

/// Whether the names of `scope` follow one another in `path`.
fn is_within(path: &str, scope: &str) -> bool {
    let (path, scope): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), scope.split('/').collect());
    path.windows(scope.len()).any(|window| window == scope)
}

/// The mesh axis that a name stands for: `tensor` of the sub-axis `tensor:(2)4`.
fn whole_axis(name: &str) -> &str {
    name.split(":(").next().unwrap_or(name)
}
