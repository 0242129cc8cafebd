//! Places of a module where a constraint may stand, and the module with one more.
//!
//! The constraint is written into the module itself, in the form in which the module states its others, so that
//! meshloom and XLA can be given the same program.

use meshloom_analysis::Walk;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::op_sharding::Type;
use meshloom_hlo::proto::{CustomCallApiVersion, HloInstructionProto, HloModuleProto, OpSharding};
use meshloom_hlo::source::Sources;
use meshloom_hlo::tensor_type;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::emit::Annotation;
use crate::import::stated_spec;
use crate::ir::{Spec, TensorType};

/// The kind of value that a constraint would be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// A parameter without a sharding: every device has it whole.
    Input,
    /// A result without a sharding, in a buffer of its own.
    Result,
    /// A constraint that the module states; another would be in its place.
    Stated,
    /// Any other value.
    Value,
}

/// A value of a module that may be constrained.
#[derive(Clone, Debug)]
pub struct ConstraintSite {
    /// The kind of value that the constraint would be on.
    pub kind: SiteKind,
    /// The name of the instruction.
    pub name: String,
    /// The type of the value.
    pub ty: TensorType,
    /// The scopes and the op of its metadata, below those of the calls around it.
    pub op_name: String,
    /// The source line as `file:line`, if the module has it.
    pub source: Option<String>,
    /// The spec that the module states here.
    pub spec: Option<Spec>,
    /// The number of the result that it is; `None` for any other value, and for a result with a sharding.
    pub result: Option<usize>,
    /// The ids of the computation and of the instruction.
    at: (i64, i64),
    /// The constraint that the module states on this value, moved or converted.
    constrained_by: Option<(i64, i64)>,
}

impl ConstraintSite {
    /// Whether another site is the constraint that the module states on this value, which decides over any in front of
    /// it.
    pub fn is_constrained_by(&self, other: &ConstraintSite) -> bool {
        self.constrained_by == Some(other.at)
    }
}

/// Returns the values of a module that may be constrained: arrays of at least one dimension, each once. A value in a
/// function that is called several times is one.
pub fn constraint_sites(module: &HloModuleProto, mesh: &Mesh) -> Vec<ConstraintSite> {
    let (walk, sources) = (Walk::of(module), Sources::of(module));
    let results = open_results(module);
    let aliases = module.input_output_alias.iter().flat_map(|alias| &alias.entries);
    let number = |index: &[i64]| index.first().map_or(Some(0), |&first| usize::try_from(first).ok());
    let donated: FxHashSet<usize> = aliases.filter_map(|entry| number(&entry.output_shape_index)).collect();
    let constrained_by = constraints_behind(module);
    let mut seen = FxHashSet::default();
    let mut sites = Vec::new();
    for step in walk.steps() {
        let (computation, instruction) = (step.place.computation.id, step.instruction);
        let at = (computation, instruction.id);
        let ty = instruction.shape.as_ref().and_then(tensor_type).filter(|ty| ty.rank() > 0);
        let Some(ty) = ty.filter(|_| seen.insert(at)) else { continue };
        let is_entry = computation == module.entry_computation_id;
        let stated = instruction.sharding.as_deref().filter(|it| it.r#type() != Type::Unknown);
        let result = results.get(&instruction.id).copied().filter(|_| is_entry);
        let is_donated = result.is_some_and(|result| donated.contains(&result));
        let kind = match instruction.opcode.as_str() {
            "parameter" if is_entry && stated.is_none() => SiteKind::Input,
            "custom-call" if instruction.custom_call_target == "Sharding" => SiteKind::Stated,
            // A result that replaces a parameter is to be split as that one is.
            _ if result.is_some() && !is_donated => SiteKind::Result,
            // A value that is constrained already, or can be made anywhere, needs no constraint.
            "parameter" | "constant" | "iota" | "broadcast" | "custom-call" => continue,
            _ => SiteKind::Value,
        };
        let spec = match stated.map(|sharding| stated_spec(sharding, &ty, mesh)) {
            Some(Ok(spec)) => spec,
            // A sharding that is none of a spec is not changed.
            Some(Err(_)) => continue,
            None => None,
        };
        sites.push(ConstraintSite {
            kind,
            name: instruction.name.clone(),
            ty,
            op_name: walk.op_name(step.place_number, instruction),
            source: sources.line(instruction).map(|line| line.to_string()),
            spec,
            result,
            at,
            constrained_by: constrained_by.get(&at).copied(),
        });
    }
    sites
}

/// Returns the stated constraint behind each value that leads to one through instructions that only move or convert it.
/// Both are ids of the computation and the instruction.
fn constraints_behind(module: &HloModuleProto) -> FxHashMap<(i64, i64), (i64, i64)> {
    let mut behind = FxHashMap::default();
    for computation in &module.computations {
        let by_id: FxHashMap<i64, &HloInstructionProto> =
            computation.instructions.iter().map(|it| (it.id, it)).collect();
        let operand = |it: &HloInstructionProto| it.operand_ids.first().and_then(|id| by_id.get(id).copied());
        for constraint in computation.instructions.iter().filter(|it| it.custom_call_target == "Sharding") {
            let mut value = operand(constraint);
            while let Some(found) = value {
                let is_new = behind.insert((computation.id, found.id), (computation.id, constraint.id)).is_none();
                let passes = matches!(found.opcode.as_str(), "transpose" | "reshape" | "convert" | "copy");
                value = if passes && is_new { operand(found) } else { None };
            }
        }
    }
    behind
}

/// Returns the results that have no sharding: the ids of their instructions, and their numbers.
fn open_results(module: &HloModuleProto) -> FxHashMap<i64, usize> {
    let entry = module.computations.iter().find(|it| it.id == module.entry_computation_id);
    let root = entry.and_then(|entry| entry.instructions.iter().find(|it| it.id == entry.root_id));
    let Some(root) = root else { return FxHashMap::default() };
    let is_open = |sharding: Option<&OpSharding>| sharding.is_none_or(|it| it.r#type() == Type::Unknown);
    let whole = root.sharding.as_deref();
    match root.opcode.as_str() {
        "tuple" => {
            let of_element = |at: usize| match whole {
                Some(sharding) if sharding.r#type() == Type::Tuple => sharding.tuple_shardings.get(at),
                other => other,
            };
            let open = root.operand_ids.iter().enumerate().filter(|(at, _)| is_open(of_element(*at)));
            open.map(|(at, id)| (*id, at)).collect()
        }
        _ => is_open(whole).then_some((root.id, 0)).into_iter().collect(),
    }
}

/// Returns the module with a spec at a site; without a spec, a stated constraint asks for nothing.
#[must_use]
pub fn constrained(module: &HloModuleProto, mesh: &Mesh, site: &ConstraintSite, spec: Option<&Spec>) -> HloModuleProto {
    let annotation = match &module.frontend_attributes {
        Some(attributes) if attributes.map.contains_key("xla.sdy.meshes") => Annotation::ShardyAttributes,
        _ => Annotation::Tiles,
    };
    let mut module = module.clone();
    let ids = module.computations.iter().flat_map(|it| &it.instructions).map(|it| it.id);
    let next = ids.max().unwrap_or(0).saturating_add(1);
    let (computation, instruction) = site.at;
    let Some(computation) = module.computations.iter_mut().find(|it| it.id == computation) else { return module };
    let Some(at) = computation.instructions.iter().position(|it| it.id == instruction) else { return module };
    let value = &mut computation.instructions[at];
    match (site.kind, spec) {
        (SiteKind::Input, Some(spec)) => annotation.write_parameter(mesh, spec, value),
        (SiteKind::Stated, Some(spec)) => annotation.write_constraint(mesh, spec, value),
        (SiteKind::Stated, None) => {
            // An instruction stays, so that no reader has to change: a copy asks for nothing.
            *value = HloInstructionProto {
                id: value.id,
                name: value.name.clone(),
                opcode: "copy".to_owned(),
                shape: value.shape.clone(),
                metadata: value.metadata.clone(),
                operand_ids: value.operand_ids.clone(),
                ..HloInstructionProto::default()
            };
        }
        (_, None) => {}
        (SiteKind::Result | SiteKind::Value, Some(spec)) => {
            let mut constraint = HloInstructionProto {
                id: next,
                name: format!("{}.constraint", value.name),
                opcode: "custom-call".to_owned(),
                shape: value.shape.clone(),
                metadata: value.metadata.clone(),
                operand_ids: vec![instruction],
                ..HloInstructionProto::default()
            };
            constraint.custom_call_target.push_str("Sharding");
            constraint.custom_call_api_version = CustomCallApiVersion::ApiVersionOriginal.into();
            annotation.write_constraint(mesh, spec, &mut constraint);
            let operands = computation.instructions.iter_mut().flat_map(|it| &mut it.operand_ids);
            operands.filter(|id| **id == instruction).for_each(|id| *id = next);
            if computation.root_id == instruction {
                computation.root_id = next;
            }
            computation.instructions.insert(at + 1, constraint);
        }
    }
    module
}
