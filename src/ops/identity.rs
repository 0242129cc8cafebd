//! Ops whose results are their operands: they tell the compiler something.

use super::rules::*;
use super::{AxisList, Effect, Linear, Memory, Operands, Zeros};
use crate::hlo::proto::FrontendAttributes;
use crate::ir::{AxisNames, Name, Role, Spec};
use meshloom_hlo::message::counted;

/// Returns its operands, and keeps everything computed from its results from being merged with, or moved before,
/// computation on the operands themselves (HLO's `opt-barrier`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Barrier;

crate::ir::op_text!(Barrier = "opt-barrier" {});

impl Primitive for Barrier {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            effect: Effect::Fence,
            zeros: Zeros::Matching,
            is_cheap: false,
            is_separate: true,
            picks: Some(Operands::All),
            ..Facts::IDENTITY.linear(Linear::Together(Operands::All))
        }
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        for index in 0..context.operand_count() {
            if let Some(ct) = context.cotangent(index) {
                context.set(index, ct);
            }
        }
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let (at, tangents): (AxisList, Values) =
            (0..context.operand_count()).filter_map(|index| Some((index, context.tangent(index)?))).unzip();
        let tangents = context.builder.push(Barrier, &tangents)?;
        for (index, tangent) in at.into_iter().zip(tangents) {
            context.set(index, tangent);
        }
        Ok(())
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule { separate: true, ..FactorRule::empty(operands, results) };
        for (index, ty) in operands.iter().enumerate() {
            for (dim, &size) in ty.dims.iter().enumerate() {
                rule.add(size, FactorKind::Parallel, &[(index, dim)], &[(index, dim)]);
            }
        }
        rule
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        // The operands are independent of each other: those without the batch stay without.
        let operands: Vec<Value> = (0..context.operand_count()).map(|index| context.operand(index)).collect();
        let results = context.builder.push(Barrier, &operands)?;
        for (index, result) in results.into_iter().enumerate() {
            context.push_result(result, context.is_batched(index));
        }
        Ok(())
    }

    rules!(partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        let operands = context.operand_ids();
        if operands.len() == 1 {
            return context.simple("opt-barrier");
        }
        context.begin_all("tuple", &operands);
        let tuple = context.commit();
        context.begin_all("opt-barrier", &[tuple]);
        context.finish_all();
    }
}

/// Moves a value into a memory: the host's, where it waits, or back to the device's, where it is computed with. It is
/// emitted only where [`EmitOptions::host_memory`](crate::emit::EmitOptions) says that the host memory exists; else its
/// operand is its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MoveTo(pub Memory);

crate::ir::op_text!(MoveTo = Memory {
    Device = "move-to-device",
    Host = "move-to-host",
} => { 0 });

/// Gives a value a name that checkpoint policies refer to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named(pub Name);

crate::ir::op_text!(Named = "name" { 0: lead });

/// Declares logical axis names, one for each dimension (the empty name for none). The sharding pass turns it into a
/// [`Reshard`] by the rules in force; the cotangent gets the same names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WithAxes {
    /// The logical axis names.
    pub names: AxisNames,
    /// For a weight as it is used: the logical names of a dimension that it shares with the activations it is used on
    /// (or the empty name), then those of their rows. Mesh axes that split rows split no dimension of the result,
    /// whatever the rules say: a dimension that they would split so is gathered. The cotangent is not split over them
    /// either. Empty for any other value.
    pub beside: AxisNames,
    /// As in [`Reshard`].
    pub keeps_partial: bool,
    /// Whether a dimension is split over those of its axes, in order, that divide it: for work that devices may share,
    /// where a split saves time alone. Else it is an error, or a warning, if they do not.
    pub as_divides: bool,
    /// The role whose rules decide.
    pub role: Role,
}

crate::ir::op_text!(WithAxes = "with-axes" {
    names: lead,
    beside: optional("beside", AxisNames::new()),
    keeps_partial: flag("partial"),
    as_divides: flag("as-divides"),
    role: optional("role", Role::Compute),
});

impl WithAxes {
    /// Names for which the rules in force for [`Role::Compute`] alone decide.
    pub fn new(names: AxisNames) -> WithAxes {
        WithAxes { names, beside: AxisNames::new(), keeps_partial: false, as_divides: false, role: Role::Compute }
    }
}

/// Demands that its result is sharded by `spec` exactly here. Its transpose demands the same of the cotangent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshard {
    /// How the dimensions are split.
    pub spec: Spec,
    /// Whether a partial sum stays one, over axes that split no dimension.
    pub keeps_partial: bool,
    /// The dimensions that propagation may split further.
    pub open: AxisList,
}

crate::ir::op_text!(Reshard = "reshard" {
    spec: key("spec"),
    keeps_partial: flag("partial"),
    open: optional("open", AxisList::new()),
});

impl Reshard {
    /// A demand for a complete value.
    pub fn new(spec: Spec) -> Reshard {
        Reshard { spec, keeps_partial: false, open: AxisList::new() }
    }
}

/// Identity through which no gradient flows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StopGradient;

crate::ir::op_text!(StopGradient = "stop-gradient" {});

impl Primitive for Named {
    rules!(infer: identity, facts: IDENTITY, derivatives: passed_on, factors: pointwise, batch: unchanged);
    rules!(partition: unchanged, emit: forwarded);
}

impl Primitive for MoveTo {
    rules!(infer: identity);

    // Its result has a buffer of its own, in another memory.
    rules!(facts = Facts { is_cheap: true, ..Facts::LINEAR });

    // Only the value itself is moved: cotangents and tangents are used where they arise.
    rules!(derivatives: passed_on, factors: pointwise, batch: unchanged, partition: unchanged);

    /// A custom call that places its result in a memory, as JAX writes it (XLA: `convert_memory_placement_to_internal_
    /// annotations.cc`, `host_offloader.cc`), or nothing where there is no host memory.
    fn emit(&self, context: &mut dyn EmitContext) {
        if !context.has_host_memory() {
            return context.forward_operand();
        }
        let place = match self.0 {
            Memory::Device => "device",
            Memory::Host => "pinned_host",
        };
        let instruction = context.begin("custom-call");
        instruction.custom_call_target.push_str("annotate_device_placement");
        instruction.custom_call_has_side_effect = true;
        let map = [("_xla_buffer_placement".to_owned(), place.to_owned())].into();
        instruction.frontend_attributes = Some(FrontendAttributes { map });
        context.finish();
    }
}

impl Primitive for WithAxes {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        if self.names.len() != operands[0].rank() {
            let (names, rank) = (self.names.as_slice(), counted(operands[0].rank(), "dimension"));
            let reason = format!("expected an axis name, or \"\", for each of {rank}, found {names:?}");
            return Err(TypeError::Attribute(reason));
        }
        for (dim, name) in self.names.iter().enumerate() {
            refuse_if!(
                !name.is_none() && self.names[..dim].contains(name),
                "the axis name {name:?} is given to two dimensions"
            );
        }
        Ok(one(operands[0].clone()))
    }

    rules!(facts: IDENTITY, vjp: itself, jvp: linear, factors: pointwise, partition: unchanged, emit: forwarded);

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        // A dimension of an example does not keep the name of the batch: it is the batch that is split by that name.
        let batch = context.axis_name;
        let of_example = self.names.iter().map(|&name| if name == batch { Name::default() } else { name });
        context.all(WithAxes { names: std::iter::once(batch).chain(of_example).collect(), ..self.clone() })
    }
}

impl Primitive for Reshard {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        if self.spec.rank() != operands[0].rank() {
            let expected = format!("{} (one for each entry of the spec)", self.spec.rank());
            return Err(TypeError::Rank { operand: 0, expected, found: operands[0].rank() });
        }
        Ok(one(operands[0].clone()))
    }

    // It may communicate.
    rules!(facts = Facts { is_cheap: false, ..Facts::IDENTITY });

    rules!(vjp: itself, jvp: linear, factors: pointwise, partition: unchanged);

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let open = self.open.iter().map(|dim| dim + 1).collect();
        context.all(Reshard { spec: self.spec.with_leading_dim(), open, ..*self })
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.reshard(&self.spec);
    }
}

impl Primitive for StopGradient {
    rules!(infer: identity, facts: IDENTITY, derivatives: none, factors: pointwise, batch: unchanged);
    rules!(partition: unchanged, emit: forwarded);
}

import!(Barrier: "opt-barrier" => |_| Some(Barrier));
// Constraints are read with the mesh that they refer to, which no op knows.
import!(Named, MoveTo, WithAxes, Reshard, StopGradient: in_parts);
