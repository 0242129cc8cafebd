//! The errors of writing StableHLO.

use crate::proto::{HloComputationProto, HloInstructionProto};

/// An error of a module that cannot be written as StableHLO.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum WriteError {
    /// StableHLO cannot say what an instruction does.
    #[error("instruction {instruction:?} ({opcode}) of computation {computation:?} has no form in StableHLO: {reason}")]
    NoForm { computation: String, instruction: String, opcode: String, reason: String },
    /// A portable artifact cannot say what an instruction does, or not in the version that is asked for.
    #[error(
        "instruction {instruction:?} ({opcode}) of computation {computation:?} has no form in the portable artifact: \
         {reason}"
    )]
    NotInArtifact { computation: String, instruction: String, opcode: String, reason: String },
    /// The module contradicts itself.
    #[error("instruction {instruction:?} ({opcode}) of computation {computation:?} is malformed: {problem}")]
    Malformed { computation: String, instruction: String, opcode: String, problem: String },
    /// A computation lacks its root, or an alias names something that does not exist.
    #[error("the module is malformed: {problem}")]
    MalformedModule { problem: String },
    /// Computations that become regions of others are nested too deeply, or in a circle.
    #[error(
        "computation {computation:?} is nested more than {limit} deep in regions of loops, branches and reductions, \
             or calls itself; make it a called computation (opcode call)"
    )]
    Deep { computation: String, limit: usize },
    /// Computations that several instructions use are written once for each of them, which makes too long a text.
    #[error(
        "the text would have more than {limit} bytes, because computations that become regions of several \
             instructions are written for each; make them called computations (opcode call)"
    )]
    Long { limit: usize },
}

crate::debug_is_message!(WriteError);

/// The fault of the instruction that is being written.
pub(super) enum Fault {
    /// StableHLO cannot express the instruction; the text says what to do instead.
    NoForm(String),
    /// A portable artifact cannot, and StableHLO's text can.
    NotInArtifact(String),
    Malformed(String),
    /// The fault is one of an instruction in a region, which it names.
    Inside(WriteError),
}

pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(super) fn at(self, computation: &HloComputationProto, instruction: &HloInstructionProto) -> WriteError {
        let (computation, opcode) = (computation.name.clone(), instruction.opcode.clone());
        let instruction = instruction.name.clone();
        match self {
            Fault::NoForm(reason) => WriteError::NoForm { computation, instruction, opcode, reason },
            Fault::NotInArtifact(reason) => WriteError::NotInArtifact { computation, instruction, opcode, reason },
            Fault::Malformed(problem) => WriteError::Malformed { computation, instruction, opcode, problem },
            Fault::Inside(error) => error,
        }
    }
}

impl From<WriteError> for Fault {
    fn from(error: WriteError) -> Fault {
        Fault::Inside(error)
    }
}

pub(super) fn no_form<T>(reason: impl Into<String>) -> Result<T> {
    Err(Fault::NoForm(reason.into()))
}

pub(super) fn not_in_artifact<T>(reason: impl Into<String>) -> Result<T> {
    Err(Fault::NotInArtifact(reason.into()))
}

pub(super) fn malformed<T>(problem: impl Into<String>) -> Result<T> {
    Err(Fault::Malformed(problem.into()))
}
