//! HLO modules: parsing, printing, and the analyses of our own and of foreign ones. The crates that need no plugin are
//! tested here too: kernels of TPUs as text, and published checkpoints.

mod at_once;
mod collectives;
mod cost;
mod diff;
mod foreign;
mod generated;
mod margins;
mod memory;
mod modules;
mod mosaic;
pub mod mutated;
mod parse;
mod partitioning;
mod pipelines;
mod presets;
mod programs;
mod stablehlo;
mod stages;
mod text;
mod traffic;
mod units;
mod walk;
mod weights;
