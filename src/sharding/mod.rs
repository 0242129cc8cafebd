//! Where values live: the device mesh, shardings over it, and the rules that turn logical axis names into shardings.
//!
//! A [`Mesh`] names the axes along which devices are arranged. A [`Spec`] says over which of those axes each dimension
//! of a value is split, and over which the value is still a partial sum. [`Rules`] map the logical axes of models
//! ("embed", "activation_batch") to mesh axes and so give the spec of each tensor; [`RuleSets`] hold one such list per
//! role.
//!
//! ```
//! use meshloom::sharding::{Mesh, Rules};
//!
//! let mesh = Mesh::parse("data=2,fsdp=4", 8)?;
//! let rules = Rules::from_pairs(&[("batch", &["data", "fsdp"]), ("embed", &["fsdp"])])?;
//! let spec = rules.resolve(&mesh, "weight", &[Some("embed"), None], &[64, 32], &mut Vec::new())?;
//! assert_eq!(spec.display(&mesh).to_string(), "[fsdp, _]");
//! assert_eq!(spec.local_dims(&mesh, &[64, 32])?.as_slice(), [16, 32]);
//! # Ok::<(), meshloom::sharding::ShardingError>(())
//! ```
//!
//! Architecture invariant: nothing here knows of the run config. `train` reads rules from it and hands them over.

mod annotate;
mod error;
mod explain;
mod problem;
mod propagate;
mod refine;
mod resolve;
mod rules;
mod table;

pub use crate::ir::{Axes, Role, Spec, SpecDisplay, SpecError};
pub use annotate::{Annotated, annotate};
pub use error::{RuleFileError, RuleFileProblem, ShardingError};
pub use explain::{ExplainedStep, Explanation, UnknownTensor, explain};
pub use meshloom_hlo::mesh::{DevicePlace, Mesh, MeshAxis, MeshError, device_order};
pub use problem::{Diagnostic, RuleProblem, SettingNames};
pub(crate) use propagate::is_made_anywhere;
pub use propagate::{Shardings, SpecOrigin, propagate};
pub(crate) use propagate::{parallel_axes, ties};
pub use refine::{Propagated, cut_axes, propagate_with_sub_axes};
pub(crate) use resolve::{FactorAxes, resolve, spec_of};
pub use rules::{Assigned, DECODER_RULES, NamedDim, PRESETS, PresetRule, Rule, RuleFile, RuleSets, Rules};
pub use table::{RowKind, ShardingRow, ShardingTable};
