//! The content of a program, counted.

use std::collections::BTreeMap;

use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::text::print_sharding;
use serde::Serialize;

/// The content of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The name of the module.
    pub module: String,
    /// Instructions of all computations by opcode, as HLO has them.
    pub instructions: BTreeMap<String, u64>,
    /// Instructions with a sharding, by its text in HLO.
    pub shardings: BTreeMap<String, u64>,
}

impl Summary {
    /// Counts what is in a module.
    pub fn of(module: &HloModuleProto) -> Summary {
        let mut summary =
            Summary { module: module.name.clone(), instructions: BTreeMap::new(), shardings: BTreeMap::new() };
        for instruction in module.computations.iter().flat_map(|computation| &computation.instructions) {
            *summary.instructions.entry(instruction.opcode.clone()).or_default() += 1;
            if let Some(sharding) = &instruction.sharding {
                *summary.shardings.entry(print_sharding(sharding)).or_default() += 1;
            }
        }
        summary
    }
}
