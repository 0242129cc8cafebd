//! The report of a search.

use meshloom::hlo::Literal;
use meshloom::hlo::proto::HloModuleProto;
use serde::Serialize;

use super::program::Program;
use super::runner::{Beside, DebugOptions};
use super::symptom::Symptom;

meshloom::hlo::words! {
    /// The dimension along which a search changes a program or its compilation, in the order of the search.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Dimension {
        AsGiven = "as given",
        Size = "size",
        Mesh = "mesh",
        Option = "option",
        Pass = "pass",
        PartitionMode = "partition mode",
        XlaPass = "XLA pass",
        XlaFlag = "XLA flag",
        Plugin = "plugin",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "reason")]
pub enum Effect {
    Shows,
    Gone,
    NotPossible(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    pub dimension: Dimension,
    pub change: String,
    #[serde(flatten)]
    pub effect: Effect,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    pub dimension: Dimension,
    /// The name of the changed thing, such as a pass, a setting or a plugin.
    pub name: String,
    /// A sentence that describes it.
    pub text: String,
}

/// The program at the end of a search, with everything that is needed to run it.
#[derive(Clone, Debug)]
pub struct Case {
    pub(super) suspect: Program,
    pub(super) options: DebugOptions,
    /// The run beside the suspect, if the symptom is a difference.
    pub(super) beside: Option<Beside>,
    /// Inputs by the names of the parameters.
    pub(super) inputs: Vec<(String, Literal)>,
    pub(super) symptom: Symptom,
    pub(super) plugin: String,
}

impl Case {
    /// The module that shows the symptom, and its reference if that is another one.
    pub fn modules(&self) -> (&HloModuleProto, Option<&HloModuleProto>) {
        let reference = match &self.beside {
            Some(Beside::Module(reference, _)) => Some(&reference.module),
            _ => None,
        };
        (&self.suspect.module, reference)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shrinking {
    pub instructions_before: usize,
    pub instructions: usize,
    pub tries: usize,
    /// Whether nothing was left to try.
    pub is_complete: bool,
    /// The reductions that were done, each with the number of instructions after it.
    pub steps: Vec<(String, usize)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The symptom; `None` if none shows.
    pub symptom: Option<Symptom>,
    /// The changes that remove the symptom, the most relevant first.
    pub culprits: Vec<Culprit>,
    /// The keys of a run config that the symptom needs, each `section.key=value`.
    pub overrides: Vec<String>,
    /// XLA's settings that the symptom needs, each `name=value`.
    pub options: Vec<String>,
    pub plugin: String,
    pub tried: Vec<Tried>,
    pub shrinking: Option<Shrinking>,
    pub runs: usize,
    /// The program at the end of the search; `None` if there is nothing to find.
    #[serde(skip)]
    pub case: Option<Box<Case>>,
}
