//! Reading a program, and counting what is in it.

use std::collections::BTreeMap;

use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::read::{self, Limits};
use meshloom_hlo::text::print_sharding;
use serde::Serialize;

use super::request::{Format, Request};
use super::rewrite::{Decision, Reason, Rewrite};

/// What is in a program.
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

/// Reads programs that run on several devices, counts what is in them, and passes all on.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountOnly;

impl Rewrite for CountOnly {
    fn rewrite(&self, request: &Request<'_>) -> Decision {
        match module_of_several(request) {
            Ok(module) => {
                let summary = Some(Summary::of(&module));
                Decision::PassedOn { reason: Reason::OnlyCounted, line: None, summary }
            }
            Err(decision) => decision,
        }
    }
}

/// The module of a program that runs on several devices. Any other is passed on.
pub(crate) fn module_of_several(request: &Request<'_>) -> Result<HloModuleProto, Decision> {
    let Some(devices) = request.device_count() else { return Err(Decision::passed_on(Reason::Options)) };
    if let Format::Other(name) = &request.format {
        return Err(Decision::passed_on(Reason::Format(name.clone())));
    }
    let read = || read::read(request.code, &Limits::default()).map(|read| read.module);
    if devices == 1 {
        let summary = request.is_watched.then(read).and_then(Result::ok).map(|module| Summary::of(&module));
        return Err(Decision::PassedOn { reason: Reason::OneDevice, line: None, summary });
    }
    read().map_err(|error| Decision::passed_on(Reason::Unreadable(error.to_string())))
}
