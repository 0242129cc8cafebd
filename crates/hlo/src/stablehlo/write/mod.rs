//! Writes a module as StableHLO: as text, or by [`write_artifact`] as MLIR's bytecode. One walk over the module makes
//! both.
//!
//! Each called computation becomes a private function, and the computation of a loop, a branch or a reduction a region
//! of its op. Values are numbered. Tuples are taken apart: the state of a loop, the results of a branch and those of a
//! function are several values, as StableHLO has them; only a custom call keeps a tuple that is nested or has one
//! element.
//!
//! Ops are in MLIR's generic form, `"stablehlo.op"(operands) <{attributes}> : types`, which is the same for every
//! version of StableHLO where the op is; elementwise ops of one type and constants are in the short form that has
//! never changed.
//!
//! StableHLO has no word for some things that HLO says:
//!
//! | of HLO | in StableHLO |
//! |---|---|
//! | shardings, shapes of one device | `mhlo.sharding`, and the custom calls `Sharding` and `SPMDFullToShardShape` |
//! | `xla.sdy.*` and other frontend attributes | `mhlo.frontend_attributes` |
//! | opcodes that came later (`erf`, `topk`, `acos`) | custom calls that XLA knows: `@mhlo.erf` |
//! | `ragged-dot` | `chlo.ragged_dot` |
//! | control predecessors | an optimization barrier over a result of the first and an operand of the second |
//! | a copy | the value itself |
//! | a small constant that a branch takes | the constant, within the branch |
//! | a constant of many equal elements | a scalar, broadcast |
//! | names of instructions, layouts within a program, trip counts, statistics, schedules | nothing |
//!
//! A module that the reader made of a text is written as the same text.
//!
//! Everything else is a [`WriteError`]: instructions that a compiler makes (fusions, asynchronous operations), and
//! transfers to the host.

mod attributes;
mod bytecode;
mod control;
mod custom_call;
mod error;
mod lines;
mod literal;
mod location;
mod operation;
mod printer;
mod signature;
mod types;

pub use bytecode::{ArtifactVersion, VersionError, write_artifact};
pub use error::WriteError;

use crate::proto::HloModuleProto;

/// The facts that a text states beside what the module does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// The number of devices over which XLA is to partition the program; with 1 it does not.
    pub partitions: u64,
    /// Copies of the program.
    pub replicas: u64,
    /// Scopes and source lines of instructions, as locations.
    pub metadata: bool,
}

impl Default for WriteOptions {
    /// One device, with scopes and source lines.
    fn default() -> WriteOptions {
        WriteOptions { partitions: 1, replicas: 1, metadata: true }
    }
}

/// The StableHLO text of a module.
///
/// # Errors
/// StableHLO has no form for an instruction, or the module is malformed.
pub fn write(module: &HloModuleProto, options: &WriteOptions) -> Result<String, WriteError> {
    let mut lines = lines::Lines::default();
    printer::Printer::new(module, options, &mut lines).module()?;
    Ok(lines.finish())
}
