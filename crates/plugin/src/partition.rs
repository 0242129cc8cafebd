//! The decision: programs of several devices are partitioned by meshloom.

use std::iter;

use meshloom::Error;
use meshloom::compile::{LowerOptions, lower_module};
use meshloom::import::ImportError;
use meshloom::partition::{Fallback, Ledger};
use meshloom_hlo::is_tuple;
use meshloom_hlo::proto::{
    CompileOptionsProto, ExecutableBuildOptionsProto, HloModuleProto, PrimitiveType, ShapeProto,
};
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
        if let Some(reason) = unsayable(&module) {
            return Decision::PassedOn { reason, line: None, summary };
        }
        match partitioned(&module) {
            Ok(None) => Decision::PassedOn { reason: Reason::NoMesh, line: None, summary },
            Ok(Some(Outcome::Gathers(fallback))) => {
                let (line, reason) = (fallback.origin.source(), Reason::Gathers(fallback.to_string()));
                Decision::PassedOn { reason, line, summary }
            }
            Ok(Some(Outcome::Replaced(code, report))) => {
                let options = [request.options_bytes, WITHOUT_SHARDY, &layout_options(&module)].concat();
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

/// The reason why no program in HLO can take the place of a module: its ports have layouts or memories that a plugin
/// reads in StableHLO alone. The attributes are XLA's (`xla/pjrt/layout_mode.h`).
fn unsayable(module: &HloModuleProto) -> Option<Reason> {
    let attributes = module.frontend_attributes.iter().flat_map(|attributes| &attributes.map);
    let mut modes = attributes.filter(|(name, _)| matches!(name.as_str(), "arg_layout_modes" | "out_layout_modes"));
    if modes.any(|(_, modes)| modes.split(';').any(|mode| mode == "auto")) {
        return Some(Reason::OpenLayouts);
    }
    let shape = module.host_program_shape.as_ref()?;
    let results = shape.result.iter().flat_map(|result| iter::once(result).chain(&result.tuple_shapes));
    let mut layouts = shape.parameters.iter().chain(results).filter_map(|shape| shape.layout.as_ref());
    layouts.any(|layout| layout.memory_space != 0).then_some(Reason::HostMemory)
}

/// Options with the layouts that the ports of `given` state. The inner plugin reads them in the shape of a program in
/// StableHLO, and here alone for one in HLO. The bytes are none where all layouts are the usual ones.
fn layout_options(given: &HloModuleProto) -> Vec<u8> {
    let Some(shape) = &given.host_program_shape else { return Vec::new() };
    // The replacement has its results in a tuple, be it only one.
    let result = shape.result.as_ref().map(|result| match is_tuple(result) {
        true => result.clone(),
        false => ShapeProto {
            element_type: PrimitiveType::Tuple.into(),
            tuple_shapes: vec![result.clone()],
            ..ShapeProto::default()
        },
    });
    let results = result.iter().flat_map(|result| &result.tuple_shapes);
    let is_usual = |shape: &ShapeProto| {
        let rank = shape.dimensions.len() as i64;
        shape.layout.as_ref().is_none_or(|layout| layout.minor_to_major.iter().copied().eq((0..rank).rev()))
    };
    if shape.parameters.iter().chain(results).all(is_usual) {
        return Vec::new();
    }
    let build = ExecutableBuildOptionsProto { result_layout: result, ..ExecutableBuildOptionsProto::default() };
    let options = CompileOptionsProto {
        argument_layouts: shape.parameters.clone(),
        executable_build_options: Some(build),
        ..CompileOptionsProto::default()
    };
    options.encode_to_vec()
}
