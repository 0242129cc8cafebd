//! The versions of portable artifacts, and what came with which of them.

use std::fmt;
use std::str::FromStr;

use crate::stablehlo::read::bytecode::file::OpName;
use crate::stablehlo::read::bytecode::properties;

/// A version of StableHLO's portable artifacts. A reader of one of them reads all older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArtifactVersion {
    minor: u32,
    patch: u32,
}

impl ArtifactVersion {
    /// 1.0.0, the oldest version that is written: artifacts of it and of later ones are read for five years.
    pub const OLDEST: ArtifactVersion = ArtifactVersion { minor: 0, patch: 0 };
    /// 1.20.0, the newest version that is written.
    pub const NEWEST: ArtifactVersion = ArtifactVersion { minor: 20, patch: 0 };

    pub(super) fn has(self, minor: u32) -> bool {
        minor <= self.minor
    }

    pub(super) fn of(minor: u32) -> ArtifactVersion {
        ArtifactVersion { minor, patch: 0 }
    }
}

impl fmt::Display for ArtifactVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "1.{}.{}", self.minor, self.patch)
    }
}

/// The error of a text that is no version.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a version from {} to {}, found {found:?}", ArtifactVersion::OLDEST, ArtifactVersion::NEWEST)]
pub struct VersionError {
    /// The text.
    pub found: String,
}

crate::debug_is_message!(VersionError);

impl FromStr for ArtifactVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<ArtifactVersion, VersionError> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[1, minor, patch]) if ArtifactVersion::NEWEST.has(minor) => Ok(ArtifactVersion { minor, patch }),
            _ => Err(VersionError { found: text.to_owned() }),
        }
    }
}

/// The forms of an op, each with the minor version since which it is the one to write. Other ops have one form.
const FORMS: &[(&str, &[(u32, u32)])] = &[
    ("all_gather", &[(1, 0), (2, 5)]),
    ("all_reduce", &[(1, 0), (2, 5)]),
    ("all_to_all", &[(1, 0), (2, 5)]),
    ("async_done", &[(1, 15)]),
    ("async_start", &[(1, 15)]),
    ("cbrt", ACCURATE),
    ("collective_broadcast", &[(1, 0), (2, 20)]),
    ("collective_reduce", &[(1, 19)]),
    ("composite", &[(1, 0), (2, 14)]),
    ("cosine", ACCURATE),
    ("custom_call", &[(1, 0), (2, 18)]),
    ("dot_general", &[(1, 0), (2, 6)]),
    ("dynamic_conv", &[(2, 0)]),
    ("dynamic_gather", &[(1, 0), (2, 1)]),
    ("exponential", &[(1, 0), (2, 9)]),
    ("exponential_minus_one", ACCURATE),
    ("gather", &[(1, 0), (2, 1)]),
    ("log", ACCURATE),
    ("log_plus_one", ACCURATE),
    ("logistic", ACCURATE),
    ("recv", &[(1, 0), (2, 12)]),
    ("rsqrt", ACCURATE),
    ("scatter", &[(1, 0), (2, 1)]),
    ("send", &[(1, 0), (2, 12)]),
    ("sine", ACCURATE),
    ("sqrt", ACCURATE),
    ("tan", &[(1, 4), (2, 10)]),
    ("tanh", ACCURATE),
];

const ACCURATE: &[(u32, u32)] = &[(1, 0), (2, 10)];

/// Ops that take several operands at once in their second form.
const SEVERAL: [&str; 3] = ["all_gather", "all_reduce", "all_to_all"];

/// Types with the minor version that they came with; all others were there.
const TYPES: &[(&str, u32)] = &[
    ("f4E2M1FN", 8),
    ("f6E2M3FN", 8),
    ("f6E3M2FN", 8),
    ("f8E3M4", 7),
    ("f8E4M3", 7),
    ("f8E8M0FNU", 8),
    ("i2", 2),
    ("none", 6),
    ("tf32", 6),
    ("ui2", 2),
];

fn forms(op: &str) -> &'static [(u32, u32)] {
    FORMS.iter().find(|(name, _)| *name == op).map_or(&[(1, 0)], |(_, forms)| forms)
}

/// The minor version of the newest form of an op that has several.
pub(super) fn newest(op: &str) -> Option<u32> {
    forms(op).get(1).map(|(_, since)| *since)
}

/// Since which minor version a type is known.
pub(super) fn since(ty: &str) -> u32 {
    TYPES.iter().find(|(name, _)| *name == ty).map_or(0, |(_, since)| *since)
}

/// The attributes of ops that StableHLO leaves out, and artifacts have.
pub(super) const DEFAULTS: &[(&str, &str)] = &[
    ("accumulation_type", "none"),
    ("allow_imprecise_accumulation", "none"),
    ("api_version", "1 : i32"),
    ("arg_attrs", "[]"),
    ("backend_config", "\"\""),
    ("called_computations", "[]"),
    ("channel_id", "0 : i64"),
    ("composite_attributes", "{}"),
    ("has_dynamic_root", "false"),
    ("has_side_effect", "false"),
    ("lhs_component_count", "none"),
    ("lhs_precision_type", "none"),
    ("num_primitive_operations", "none"),
    ("operand_batching_dims", "array<i64>"),
    ("operand_layouts", "[]"),
    ("output_operand_aliases", "[]"),
    ("precision_config", "[#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]"),
    ("res_attrs", "[]"),
    ("result_accuracy", "#stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<DEFAULT>>"),
    ("result_layouts", "[]"),
    ("result_tilings", "[]"),
    ("rhs_component_count", "none"),
    ("rhs_precision_type", "none"),
    ("input_batching_dims", "array<i64>"),
    ("scatter_indices_batching_dims", "array<i64>"),
    ("start_indices_batching_dims", "array<i64>"),
    ("use_global_device_ids", "false"),
];

/// The form of an op: its name, and the names of the attributes that it has.
pub(super) struct OpForm {
    pub(super) name: String,
    /// The minor version since which it is there.
    pub(super) since: u32,
    pub(super) properties: Vec<&'static str>,
}

impl OpForm {
    /// The forms of an op, the oldest first.
    pub(super) fn all(op: &str) -> impl Iterator<Item = OpForm> {
        forms(op).iter().map(move |(form, since)| {
            let name = format!("{op}_v{form}");
            let known = properties::of(&OpName { dialect: "vhlo", name: &name, is_registered: true });
            let properties = known.map(|names| names.split_whitespace().collect()).unwrap_or_default();
            OpForm { name, since: *since, properties }
        })
    }

    /// Whether it may have several operands, if the op may in any form.
    pub(super) fn takes_several(&self) -> bool {
        !SEVERAL.iter().any(|op| self.name.strip_prefix(op) == Some("_v1"))
    }
}
