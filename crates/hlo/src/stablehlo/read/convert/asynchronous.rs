//! Ops that begin something and others that wait for it.
//!
//! StableHLO's pair becomes the op itself where it begins, and nothing where it ends: a value of a program that is yet
//! to be compiled says what moves, and no time. `mhlo` has the pairs of compiled modules, which stay as they are.

use smallvec::smallvec;

use super::super::attribute::Value;
use super::body::Sites;
use super::collectives::{Common, Groups, exchange};
use super::{Conversion, Rule};
use crate::collective_config::CollectiveConfig;
use crate::parse::Result;
use crate::proto::{HloInstructionProto, SourceTarget};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.async_start", start),
    ("stablehlo.async_done", done),
    ("mhlo.async_start", mhlo_start),
    ("mhlo.async_update", mhlo_next),
    ("mhlo.async_done", mhlo_next),
];

/// The ops of the region, at this place.
fn start(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operands, operation) = (op.operands()?, op.operation);
    let region = operation.region(0)?;
    if region.arguments.len() != operands.len() {
        let (operands, arguments) = (operands.len(), region.arguments.len());
        return operation.fault(format!("it has {operands} operands, and its region {arguments} arguments"));
    }
    // The region may use names that stand for something else around it.
    let results = region.operations.iter().flat_map(|inner| inner.results.iter().map(|(name, _)| *name));
    let saved = op.body.saved(region.arguments.iter().map(|argument| argument.name).chain(results));
    for (argument, &place) in region.arguments.iter().zip(&operands) {
        op.body.define(argument.name, smallvec![place]);
    }
    let results = op.converter.block(op.body, region, operation);
    op.body.restore(saved);
    let results = results?;
    Ok(smallvec![op.body.joined(&results)])
}

fn done(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let place = op.operand()?;
    Ok(op.body.results(place, op.operation.result_types()?.len()))
}

/// `{called_computation = @f, execution_thread = "main"}`
fn mhlo_start(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let called = op.converter.called(op.operation, op.operation.symbol(&["called_computation"])?)?;
    op.converter.check_call(op.operation, called)?;
    let thread = op.operation.attributes.get("execution_thread").map(|thread| thread.string("execution_thread"));
    let thread = thread.transpose()?.filter(|thread| thread != "main");
    op.calling("async-start", vec![called], |instruction| {
        if let Some(thread) = thread {
            instruction.async_execution_thread = thread;
        }
    })
}

fn mhlo_next(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let opcode = if op.operation.name == "mhlo.async_done" { "async-done" } else { "async-update" };
    op.calling(opcode, Vec::new(), |_| {})
}

/// The numbers that JAX states for a collective that a custom call begins.
fn config(op: &Conversion<'_, '_, '_>) -> Result<CollectiveConfig> {
    const NAME: &str = CollectiveConfig::ATTRIBUTE;
    let stated = op.operation.attributes.get("mhlo.frontend_attributes");
    let config = match stated.map(|stated| &stated.value) {
        Some(Value::Dictionary(entries)) => entries.get(NAME),
        _ => None,
    };
    let Some(config) = config else {
        return op.operation.fault(format!("the frontend attribute {NAME} is missing, which states the collective"));
    };
    match CollectiveConfig::read(&config.string(NAME)?) {
        Some(read) => Ok(read),
        None => config.fault(NAME, "numbers and lists of numbers as JSON"),
    }
}

/// JAX 0.12 writes `custom_call @"all-gather-start"`, with the shape of the result as its own, for a collective that
/// the program begins in one place and ends in another. The result is `None` for another target.
pub(super) fn collective(op: &mut Conversion<'_, '_, '_>, target: &str) -> Result<Option<Sites>> {
    const KINDS: [&str; 5] = ["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"];
    let Some((kind, half)) = target.rsplit_once('-').filter(|(kind, _)| KINDS.contains(kind)) else { return Ok(None) };
    match half {
        "done" => return Ok(Some(op.operands()?)),
        "start" => {}
        _ => return Ok(None),
    }
    let config = config(op)?;
    let common = Common {
        channel: config.number("channel_id").unwrap_or(0),
        groups: Groups::of_rows(config.groups().unwrap_or_default()),
        use_global_device_ids: config.number("use_global_device_ids") == Some(1),
    };
    let operation = op.operation;
    let required = |name: &str| match config.number(name) {
        Some(number) => Ok(number),
        None => operation.fault(format!("its async_collective_config has no {name}")),
    };
    if kind == "all-to-all" {
        let numbers = [required("split_dimension")?, required("concat_dimension")?, required("split_count")?];
        return exchange(op, &common, numbers).map(Some);
    }
    let dimension = match kind {
        "all-gather" => Some(required("all_gather_dimension")?),
        "reduce-scatter" => Some(required("scatter_dimension")?),
        _ => None,
    };
    let called = op.called_computations()?;
    let set = |instruction: &mut HloInstructionProto| {
        instruction.dimensions.extend(dimension);
        common.set(instruction);
        let pair = |(source, target)| SourceTarget { source, target };
        let pairs: Vec<SourceTarget> = config.pairs().into_iter().map(pair).collect();
        if !pairs.is_empty() {
            instruction.source_target_pairs = pairs;
        }
    };
    op.calling(kind, called, set).map(Some)
}
