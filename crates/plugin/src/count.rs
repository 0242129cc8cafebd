//! The one decision there is today: programs are read and counted, and passed on.

use std::collections::BTreeMap;

use meshloom_hlo::proto::HloModuleProto;
use meshloom_hlo::read::{self, Limits, ReadError};
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
        let Some(devices) = request.device_count() else { return Decision::passed_on(Reason::Options) };
        if let Format::Other(name) = &request.format {
            return Decision::passed_on(Reason::Format(name.clone()));
        }
        let read = || read::read(request.code, &Limits::default()).map(|read| Summary::of(&read.module));
        let (reason, summary) = match devices {
            1 => (Reason::OneDevice, request.is_watched.then(read).and_then(Result::ok)),
            _ => match read() {
                Ok(summary) => (Reason::NotBuilt, Some(summary)),
                Err(error) => (unreadable(&error), None),
            },
        };
        Decision::PassedOn { reason, line: None, summary }
    }
}

fn unreadable(error: &ReadError) -> Reason {
    Reason::Unreadable(error.to_string())
}
