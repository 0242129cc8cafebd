//! The decision: programs of several devices are partitioned by meshloom.

use meshloom::Error;
use meshloom::compile::{LowerOptions, lower_module};
use meshloom::import::ImportError;
use meshloom::partition::Ledger;
use meshloom_hlo::proto::{CompileOptionsProto, ExecutableBuildOptionsProto, HloModuleProto};
use meshloom_hlo::read::{self, Limits};
use prost::Message;
use serde_json::{Value, json};

use super::count::{CountOnly, Summary};
use super::request::{Format, Request};
use super::rewrite::{Decision, Reason, Replacement, Rewrite};

/// Partitions programs of several devices, and passes on those that it cannot import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Partition;

impl Rewrite for Partition {
    fn rewrite(&self, request: &Request<'_>) -> Decision {
        // Unreadable programs, and those of one device, are the counter's.
        let counted = CountOnly.rewrite(request);
        if !matches!(&counted, Decision::PassedOn { reason: Reason::NotBuilt, .. }) {
            return counted;
        }
        let summary = counted.summary().cloned();
        let Ok(read) = read::read(request.code, &Limits::default()) else { return counted };
        match partitioned(&read.module) {
            Ok((code, report)) => Decision::Replaced(Replacement {
                format: Format::Hlo,
                code,
                options: without_shardy(request.options_bytes),
                report,
                summary,
            }),
            Err(error) => passed_on(&error, summary),
        }
    }
}

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

/// The partitioned module, with the parameters, results and donations of the given one, and what it sends.
fn partitioned(module: &HloModuleProto) -> Result<(Vec<u8>, Value), Error> {
    let lowered = lower_module(module, &LowerOptions::default())?;
    let mut replaced = lowered.module.decode()?;
    replaced.name.clone_from(&module.name);
    replaced.buffer_donor.clone_from(&module.buffer_donor);
    let ledger = lowered.program.partitioned().map(|local| Ledger::of(&local.graph, &local.mesh));
    let moved = ledger.and_then(|ledger| ledger.moved_bytes().ok());
    Ok((replaced.encode_to_vec(), json!({ "moved_bytes": moved })))
}

/// The options, with XLA's older partitioner: it reads the shardings of the manual region that the program is. Fields
/// that are appended take precedence in a protobuf, so that nothing of a newer XLA is lost.
fn without_shardy(options: &[u8]) -> Vec<u8> {
    // A false field is not written, so its bytes are made by hand: field 19 of the build options, which are field 3.
    const USE_SHARDY_PARTITIONER: u32 = 19;
    let mut build = Vec::new();
    prost::encoding::encode_key(USE_SHARDY_PARTITIONER, prost::encoding::WireType::Varint, &mut build);
    prost::encoding::encode_varint(0, &mut build);
    let mut all = options.to_vec();
    let stated = CompileOptionsProto {
        executable_build_options: Some(ExecutableBuildOptionsProto::default()),
        ..CompileOptionsProto::default()
    };
    // The key of the build options is the first byte of a message that has them alone.
    let key = stated.encode_to_vec().first().copied().unwrap_or_default();
    all.push(key);
    prost::encoding::encode_varint(build.len() as u64, &mut all);
    all.extend(build);
    all
}
