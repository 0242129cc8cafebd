//! The decision: programs of several devices are partitioned by meshloom.

use meshloom::Error;
use meshloom::compile::{LowerOptions, lower_module};
use meshloom::import::ImportError;
use meshloom::partition::{Fallback, Ledger};
use meshloom_hlo::proto::HloModuleProto;
use prost::Message;
use serde_json::{Value, json};

use super::count::module_of_several;
use super::request::{Format, Request};
use super::rewrite::{Decision, Reason, Replacement, Rewrite};
use super::summary::Summary;

/// Partitions programs of several devices, and passes on those that it cannot import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Partition;

impl Rewrite for Partition {
    fn rewrite(&self, request: &Request<'_>) -> Decision {
        let module = match module_of_several(request) {
            Ok(module) => module,
            Err(decision) => return *decision,
        };
        let summary = Some(Summary::of(&module));
        match partitioned(&module) {
            Ok(None) => Decision::PassedOn { reason: Reason::NoMesh, line: None, summary },
            Ok(Some(Outcome::Gathers(fallback))) => {
                let (line, reason) = (fallback.origin.source(), Reason::Gathers(fallback.to_string()));
                Decision::PassedOn { reason, line, summary }
            }
            Ok(Some(Outcome::Replaced(code, report))) => {
                let options = [request.options_bytes, WITHOUT_SHARDY].concat();
                Decision::Replaced(Replacement { format: Format::Hlo, code, options, report, summary })
            }
            Err(error) => passed_on(&error, summary),
        }
    }
}

/// The bytes that switch `use_shardy_partitioner` off behind any options: field 19 of their field 3. XLA's older
/// partitioner then reads the shardings around the manual region. Nothing of the options is lost, as protobuf merges
/// what is appended.
const WITHOUT_SHARDY: &[u8] = &[0x1a, 3, 0x98, 1, 0];

fn passed_on(error: &Error, summary: Option<Summary>) -> Decision {
    let line = match error {
        Error::Import(import) => match &**import {
            ImportError::Unrecognized(instruction) | ImportError::Type(instruction) => instruction.source.clone(),
            ImportError::Sharding { place, .. } | ImportError::Op { place, .. } => place.source.clone(),
            _ => None,
        },
        _ => None,
    };
    Decision::PassedOn { reason: Reason::Refused(error.to_string()), line, summary }
}

/// The outcome for a program of several devices.
enum Outcome {
    /// The partitioned module, with the parameters, results and donations of the given one, and what it sends.
    Replaced(Vec<u8>, Value),
    /// The first value that is gathered for an instruction without an op.
    Gathers(Fallback),
}

/// Partitions a module; `None` for one that splits nothing.
fn partitioned(module: &HloModuleProto) -> Result<Option<Outcome>, Error> {
    let lowered = lower_module(module, &LowerOptions::default())?;
    let Some(local) = lowered.program.partitioned() else { return Ok(None) };
    // XLA's partitioner may have a rule for it, and what it sends is not known here.
    if let Some(fallback) = local.fallbacks.iter().find(|fallback| fallback.is_opaque) {
        return Ok(Some(Outcome::Gathers(fallback.clone())));
    }
    let mut replaced = lowered.module.decode()?;
    replaced.name.clone_from(&module.name);
    replaced.buffer_donor.clone_from(&module.buffer_donor);
    let moved = Ledger::of(&local.graph, &local.mesh).moved_bytes().ok();
    Ok(Some(Outcome::Replaced(replaced.encode_to_vec(), json!({ "moved_bytes": moved }))))
}
