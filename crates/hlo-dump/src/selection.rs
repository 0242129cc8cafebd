//! The selections of `--scope` and other options, and the answer if they select nothing.
//!
//! One rule holds for all of them: a name that the input does not have is an error, which suggests one that it has. A
//! valid selection that leaves nothing is answered in words.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use meshloom_hlo::source::op_name;
use meshloom_hlo::suggest::did_you_mean;

use crate::input::Loaded;
use crate::output::{self, plural};

/// Refuses a scope that no instruction of the module has in its path.
pub fn check_scope(scope: Option<&str>, loaded: &Loaded) -> Result<()> {
    let Some(scope) = scope else { return Ok(()) };
    let instructions = loaded.module.computations.iter().flat_map(|computation| &computation.instructions);
    let paths: BTreeSet<&str> = instructions.map(op_name).filter(|path| !path.is_empty()).collect();
    if paths.iter().any(|path| path.contains(scope)) {
        return Ok(());
    }
    if paths.is_empty() {
        bail!("--scope {scope}: the module has no scopes: its instructions have no metadata");
    }
    let words: BTreeSet<&str> = paths.iter().flat_map(|path| path.split('/')).collect();
    let near = did_you_mean(scope, words.into_iter().chain(paths));
    bail!(
        "--scope {scope}: no instruction has this in its scope path{near}; `hlo-dump cost {} --by scope --limit 0` lists \
         the paths",
        loaded.argument()
    )
}

/// Notes that an empty selection comes from the given options. It prints nothing if something is left, or no option was
/// given.
pub fn note_if_empty<const N: usize>(left: usize, all: usize, what: &str, options: [Option<String>; N]) {
    let given: Vec<String> = options.into_iter().flatten().collect();
    if left > 0 || given.is_empty() {
        return;
    }
    let of = plural(all as u64, what);
    output::note(&format!("nothing is left of {of} by {}", given.join(" ")));
}

/// Returns an option as it was given: `--scope mlp`.
pub fn given(option: &str, value: &Option<impl ToString>) -> Option<String> {
    value.as_ref().map(|value| format!("{option} {}", value.to_string()))
}
