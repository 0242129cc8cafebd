//! The order of the passes: from a traced graph to a module, and from a module to a program that runs.
//!
//! ```text
//! graph -> passes of PASSES -> Sharded -> Partitioned -> Lowered -> Program
//!                              annotate   partition,     emit      a plugin compiles
//!                              pad        LOCAL_PASSES
//! ```
//!
//! Without a mesh, `Sharded` and `Partitioned` are left out; with [`PartitionMode::Annotated`], `Partitioned` is. Each
//! pass is timed. The verifier runs over the result of the passes; if it finds a defect, it runs after each of them.

mod constrain;
mod error;
mod function;
mod import;
mod lower;
mod options;
mod passes;
mod program;
mod report;
mod stages;
mod trials;

pub use constrain::{ConstraintSite, SiteKind, constrained, constraint_sites};
pub use error::{AliasProblem, ArgumentError, Error};
pub use function::{CompiledFunction, compile};
pub use import::lower_module;
pub use lower::{lower, lower_as_traced};
pub use options::{LowerOptions, PartitionMode};
pub use passes::{LOCAL_PASSES, PASSES, Pass};
pub use program::Program;
pub use stages::{Lowered, LoweredProgram, Partitioned, PassTiming, Ports, Sharded};
pub use trials::{ConstraintTrial, ConstraintTrials, DeviceFigures, shares_work};

crate::tree_leaf!(crate::pjrt::Array);
