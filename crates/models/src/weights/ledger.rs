//! The ledger of the tensors that a model has used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use wildmatch::WildMatch;

use super::error::WeightsError;
use super::natural::natural;

/// A ledger of the tensors of a folder that a model has used. The weights are those of the model if it uses each tensor
/// once, apart from those that are skipped on purpose.
///
/// ```no_run
/// # use meshloom_models::weights::{FP8_BLOCK, Weights, WeightsError};
/// let weights = Weights::open("checkpoint".as_ref(), FP8_BLOCK)?;
/// let mut ledger = weights.ledger();
/// ledger.skip("*.rotary_emb.inv_freq");
/// ledger.take("model.embed_tokens.weight");
/// ledger.finish()?;
/// # Ok::<(), WeightsError>(())
/// ```
#[derive(Debug)]
pub struct Ledger {
    folder: PathBuf,
    /// How often each tensor was used.
    uses: BTreeMap<String, usize>,
    missing: BTreeSet<String>,
    skipped: Vec<WildMatch>,
}

impl Ledger {
    pub(crate) fn new(folder: &Path, names: impl Iterator<Item = String>) -> Ledger {
        let uses = names.map(|name| (name, 0)).collect();
        Ledger { folder: folder.to_owned(), uses, missing: BTreeSet::new(), skipped: Vec::new() }
    }

    /// Says that tensors may be left over. The pattern is a name, in which `*` stands for any letters; one that ends
    /// with a dot, such as `model.layers.61.`, stands for all names that begin with it. It need not find any.
    pub fn skip(&mut self, pattern: &str) {
        let rest = if pattern.ends_with('.') { "*" } else { "" };
        self.skipped.push(WildMatch::new(&format!("{pattern}{rest}")));
    }

    /// Notes that a tensor is used, however many boxes of it are read. Returns whether it is there.
    pub fn take(&mut self, name: &str) -> bool {
        if let Some(uses) = self.uses.get_mut(name) {
            *uses += 1;
            return true;
        }
        self.missing.insert(name.to_owned());
        false
    }

    /// Checks that each tensor was used once or skipped, and that all those used were there. Returns the tensors that
    /// were skipped.
    ///
    /// # Errors
    ///
    /// If not. The error has all names; its message has the first 8 of a kind.
    pub fn finish(self) -> Result<Vec<String>, WeightsError> {
        let is_skipped = |name: &str| self.skipped.iter().any(|pattern| pattern.matches(name));
        let unused = self.uses.iter().filter(|(_, uses)| **uses == 0).map(|(name, _)| name);
        let (skipped, unused): (Vec<&String>, Vec<&String>) = unused.partition(|name| is_skipped(name));
        let repeated = self.uses.iter().filter(|(_, uses)| **uses > 1);
        let unused = sorted(unused);
        let (missing, repeated) = (sorted(&self.missing), sorted(repeated.map(|(name, _)| name)));
        if unused.is_empty() && missing.is_empty() && repeated.is_empty() {
            return Ok(sorted(skipped));
        }
        Err(WeightsError::Misfit { folder: self.folder, unused, missing, repeated })
    }
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().cloned().collect();
    names.sort_by(|a, b| natural(a, b));
    names
}
