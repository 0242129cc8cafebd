//! The reasons why a module cannot become a graph.

use std::fmt;

use crate::ir::OpError;

/// An instruction in messages: its opcode, its name, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignInstruction {
    /// The opcode; of a custom call with its target.
    pub opcode: String,
    /// The name of the instruction.
    pub name: String,
    /// The scopes and the op of its metadata; empty if there are none.
    pub op_name: String,
    /// The source line as `file:line`.
    pub source: Option<String>,
}

impl fmt::Display for ForeignInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %{}", self.opcode, self.name)?;
        if !self.op_name.is_empty() {
            write!(f, " ({})", self.op_name)?;
        }
        match &self.source {
            Some(source) => write!(f, " at {source}"),
            None => Ok(()),
        }
    }
}

/// The reason why a module cannot become a graph.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The module names no entry computation.
    #[error("the module has no entry computation")]
    NoEntry,
    /// A computation names no root.
    #[error("the computation %{computation} has no root")]
    NoRoot {
        /// Its name.
        computation: String,
    },
    /// No op is this instruction.
    #[error("meshloom has no op for {0}; leave the partitioning of this program to XLA")]
    Unrecognized(Box<ForeignInstruction>),
    /// A type that graphs do not have: complex numbers, dynamic sizes, tokens.
    #[error("{0} has a type that graphs do not have (complex, dynamic, or a token)")]
    Type(Box<ForeignInstruction>),
    /// An operand that is not in front of its reader.
    #[error("{0} reads a value that is not in front of it")]
    MissingOperand(Box<ForeignInstruction>),
    /// Computations that call each other in circles, or too deep.
    #[error("{0} calls computations that are nested more than 100 levels deep")]
    Nesting(Box<ForeignInstruction>),
    /// A sharding that is none of a spec.
    #[error("{place}: {why}")]
    Sharding {
        /// The instruction that states it.
        place: Box<ForeignInstruction>,
        /// The reason.
        why: String,
    },
    /// A program of several replicas, as `pmap` makes.
    #[error("the module has {replicas} replicas; a program of several partitions is imported, as `jit` makes")]
    Replicas {
        /// The number of replicas.
        replicas: u64,
    },
    /// The meshes that the module declares cannot be read.
    #[error("the attribute xla.sdy.meshes of the module: {why}")]
    Meshes {
        /// The reason.
        why: String,
    },
    /// The module is for more devices than a mesh can have.
    #[error("the module is for {partitions} devices, which is more than a mesh can have")]
    TooManyDevices {
        /// The number of devices.
        partitions: u64,
    },
    /// An op refuses its operands.
    #[error("{place}: {source}")]
    Op {
        /// The instruction.
        place: Box<ForeignInstruction>,
        /// The reason.
        source: Box<OpError>,
    },
}

meshloom_hlo::debug_is_message!(ImportError);
