//! The bytes that cross an axis of the mesh at each step.
//!
//! A program that syncs now and then has its syncs in branches, and its step counter, one of its inputs, decides which
//! branch it takes. [`traffic`] evaluates the branches of each step ([`DeviceExecutions`]) and adds up the bytes that
//! each device sends.

use super::axes::AxisPart;
use super::collectives::{ModuleCollective, collectives_of_walk};
use super::device_walk::DeviceWalk;
use super::devices::Devices;
use super::executions::{DeviceExecutions, KnownInput};
use super::walk::Walk;
use crate::Bounds;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto, PrimitiveType, ShapeProto};
use meshloom_hlo::source::{Sources, op_name};

/// The traffic across an axis in one execution of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTraffic {
    /// The number of steps done before it.
    pub counter: u64,
    /// The number of collectives that run.
    pub executions: Bounds,
    /// Bytes that each device sends.
    pub moved_bytes: Bounds,
    /// The part of these bytes that it sends in loops.
    pub moved_in_loops: Bounds,
}

/// The collectives that may cross an axis, and the traffic at each step.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The collectives over the axis, including those that do not state which devices take part.
    pub collectives: Vec<ModuleCollective>,
    /// One execution for each number of steps done.
    pub steps: Vec<StepTraffic>,
}

/// Whether a shape is a scalar of whole numbers, or several that are equal on every device, as replicas have them.
fn is_counter(shape: &ShapeProto) -> bool {
    use PrimitiveType as P;
    let whole = [P::S32, P::U32, P::S64, P::U64].map(i32::from);
    whole.contains(&shape.element_type) && shape.dimensions.len() <= 1
}

/// Returns the parameters of the program that may count steps.
fn counters(module: &HloModuleProto) -> impl Iterator<Item = &HloInstructionProto> {
    let entry = module.computations.iter().find(|computation| computation.id == module.entry_computation_id);
    let parameters = entry.into_iter().flat_map(|entry| &entry.instructions).filter(|it| it.opcode == "parameter");
    parameters.filter(|it| it.shape.as_ref().is_some_and(is_counter))
}

/// Returns the names of the inputs that may count steps: from their metadata, or else the names of their parameters.
pub fn counter_names(module: &HloModuleProto) -> Vec<String> {
    let name = |it: &HloInstructionProto| if op_name(it).is_empty() { it.name.clone() } else { op_name(it).to_owned() };
    counters(module).map(name).collect()
}

/// Returns the inputs that count steps, by number and element: those with this name, or else those whose last name is
/// `step` (`state.step`, `step.1`).
pub fn step_inputs(module: &HloModuleProto, name: Option<&str>) -> Vec<(i64, Vec<i64>)> {
    let called = |text: &str, wanted: &str| {
        let base = text.rsplit_once('.').filter(|(_, rest)| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let last = |text: &str| {
            text.rsplit(['.', '/', '[', '\'']).find(|part| !part.is_empty() && *part != "]").map(str::to_owned)
        };
        text == wanted || base.is_some_and(|(base, _)| base == wanted) || last(text).is_some_and(|last| last == wanted)
    };
    let is_wanted = |text: &str| called(text, name.unwrap_or("step"));
    counters(module)
        .filter(|it| is_wanted(&it.name) || is_wanted(op_name(it)))
        .map(|it| (it.parameter_number, Vec::new()))
        .collect()
}

/// Returns the traffic across an axis of a mesh when the inputs that count steps have each of these values.
pub fn traffic(
    module: &HloModuleProto,
    devices: Devices,
    (mesh, axis): (&Mesh, &AxisPart),
    inputs: &[(i64, Vec<i64>)],
    counters: impl IntoIterator<Item = u64>,
) -> Traffic {
    let walk = DeviceWalk::undecided(Walk::of(module), devices);
    let mut found = collectives_of_walk(&walk, Sources::of(module)).along(mesh);
    found.entries.retain(|entry| entry.crosses(axis, mesh).unwrap_or(true));
    let counters: Vec<u64> = counters.into_iter().collect();
    let inputs_at = |&counter: &u64| -> Vec<KnownInput> {
        let value = i64::try_from(counter).unwrap_or(i64::MAX);
        let inputs = inputs.iter().cloned();
        inputs.map(|(parameter, element)| KnownInput { parameter, element, value }).collect()
    };
    let each: Vec<Vec<KnownInput>> = counters.iter().map(inputs_at).collect();
    let step = |(counter, given): (u64, DeviceExecutions)| StepTraffic {
        counter,
        executions: given.total(&found.entries, |_| Some(1)),
        moved_bytes: given.moved_bytes(&found.entries),
        moved_in_loops: given.moved_bytes(found.entries.iter().filter(|entry| entry.loop_depth > 0)),
    };
    let steps = counters.into_iter().zip(walk.walk().given_each(&each, devices)).map(step).collect();
    Traffic { collectives: found.entries, steps }
}
