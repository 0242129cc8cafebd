//! What can be read off any HLO module: ours as emitted, or a compiled one, whoever made it.
//!
//! | module | what it finds |
//! |---|---|
//! | [`collectives`](mod@collectives) | Every collective, how often it runs, and what it moves by the formulas of the [ledger](crate::partition::Ledger). |
//! | [`groups`] | Which devices take part, from any of the forms in which a module says so. |
//! | [`trip_count`] | How often a loop runs. |

pub mod axes;
pub mod collectives;
pub mod groups;
mod index;
mod size;
pub mod trip_count;

pub use axes::{AxisPart, PairAxes, Strides, mesh_of, pair_axes};
pub use collectives::{Communication, ModuleCollective, ModuleCollectives, collectives};
pub use groups::{DeviceGroups, Devices};
