//! One op without regions: how its loops are split, and its nodes on one device.

use smallvec::SmallVec;

use super::linear::linearity;
use super::reshard::combine;
use super::walk::Partitioning;
use super::{Fallback, PartitionError, without};
use crate::ir::{Axes, DType, Dims, NodeRef, OpError, Spec, TensorType, Value};
use crate::ops::{
    AllGather, AllReduce, FactorKind, FactorRule, Group, Linear, Op, PartitionContext, PartitionPorts, Primitive,
    ReduceKind,
};
use crate::sharding::{FactorAxes, is_made_anywhere, resolve, spec_of};
use meshloom_hlo::mesh::MeshAxis;

/// Types of an op's operands or results.
type Types<'t> = SmallVec<[&'t TensorType; 4]>;

/// The axes over which an op works on partial sums, and the operands that are partial.
struct Carried {
    axes: Axes,
    operands: SmallVec<[usize; 4]>,
}

impl Partitioning<'_, '_> {
    pub(super) fn primitive(&mut self, node: NodeRef<'_>, primitive: &dyn Primitive) -> Result<(), PartitionError> {
        let graph = self.graph;
        let operands: Types<'_> = node.operands().iter().map(|&value| graph.ty(value)).collect();
        let results: Types<'_> = node.results().map(|value| graph.ty(value)).collect();
        let own_rule;
        let rule = match self.shardings.rule(node.id) {
            Some(rule) => rule,
            None => {
                own_rule = primitive.factors(&operands, &results);
                &own_rule
            }
        };
        let carried = self.carried(node, &operands).filter(|carried| !self.is_scattered(node, carried));
        let axes = self.factor_axes(node, rule, &operands, &results, carried.as_ref());
        let mut specs: SmallVec<[Spec; 4]> = rule.operands.iter().map(|dims| spec_of(dims, &axes)).collect();
        if let Some(carried) = &carried {
            for &index in &carried.operands {
                specs[index] = std::mem::take(&mut specs[index]).with_unreduced(carried.axes.iter().copied());
            }
        }
        let mut locals: SmallVec<[Value; 4]> = SmallVec::new();
        for (index, (&value, spec)) in node.operands().iter().zip(&specs).enumerate() {
            self.note_fallback(node, rule, index, spec);
            locals.push(self.get(value, spec)?);
        }
        self.builder.set_origin(node.origin());
        if let Some(initial) = rule.initial {
            // An op with such an operand has one result.
            for (kind, over) in sums(rule, &axes, 0) {
                locals[initial] = self.in_one_part(locals[initial], kind, &over)?;
            }
        }
        let mut result_specs: SmallVec<[Spec; 2]> = rule.results.iter().map(|dims| spec_of(dims, &axes)).collect();
        let mut result_dims: SmallVec<[Dims; 2]> = SmallVec::new();
        for (spec, ty) in result_specs.iter().zip(&results) {
            result_dims.push(spec.local_dims(self.mesh, &ty.dims)?);
        }
        let ports = PartitionPorts {
            operands: &locals,
            operand_types: &operands,
            operand_specs: &specs,
            result_types: &results,
            result_specs: &result_specs,
            result_dims: &result_dims,
        };
        let mut made = PartitionContext::results(self.builder, self.mesh, primitive, ports)?;
        for (index, (value, spec)) in made.iter_mut().zip(&mut result_specs).enumerate() {
            let mut unreduced: Axes = carried.as_ref().map(|carried| carried.axes.clone()).unwrap_or_default();
            for (kind, over) in sums(rule, &axes, index) {
                match kind {
                    ReduceKind::Sum => unreduced.extend(over),
                    kind => *value = self.all_reduce(kind, &over, *value)?,
                }
            }
            *spec = std::mem::take(spec).with_unreduced(unreduced.iter().copied());
        }
        self.set_results(node, made, result_specs);
        Ok(())
    }

    /// The split of the op's loops, by the specs that its operands have and those that propagation gave its results. An
    /// operand that has to be added up first gets the spec that propagation gave it. Axes over which partial sums are
    /// carried split nothing.
    fn factor_axes(
        &self,
        node: NodeRef<'_>,
        rule: &FactorRule,
        operands: &[&TensorType],
        results: &[&TensorType],
        carried: Option<&Carried>,
    ) -> FactorAxes {
        let known = |value: Value| self.shardings.known(value);
        let of_operand = |value: &Value| {
            // A value that can be made in any spec does not state one.
            if is_made_anywhere(self.graph, *value) {
                return None;
            }
            let versions = self.versions(*value);
            let complete = versions.iter().find(|(_, spec)| spec.unreduced().is_empty());
            let (_, first) = complete.or_else(|| versions.first())?;
            match known(*value) {
                Some(spec) if !first.unreduced().is_empty() => Some(spec),
                _ => Some(first),
            }
        };
        let specs = node.operands().iter().map(of_operand).chain(node.results().map(known));
        let bytes: SmallVec<[u64; 6]> = operands.iter().chain(results).map(|ty| ty.byte_count() as u64).collect();
        let Some(carried) = carried else {
            return resolve(self.mesh, rule, &specs.collect::<SmallVec<[Option<&Spec>; 6]>>(), &bytes);
        };
        let free = |spec: &Spec| -> Spec {
            let kept = |axes: &Axes| axes.iter().copied().take_while(|axis| !carried.axes.contains(axis)).collect();
            Spec::new(spec.dims().iter().map(kept))
        };
        let specs: SmallVec<[Option<Spec>; 6]> = specs.map(|spec| spec.map(free)).collect();
        let specs: SmallVec<[Option<&Spec>; 6]> = specs.iter().map(Option::as_ref).collect();
        resolve(self.mesh, rule, &specs, &bytes)
    }

    /// The axes over which the op is best applied to partial sums. A value is left partial only if nothing else needs
    /// it: otherwise it would be added up in several places.
    fn carried(&self, node: NodeRef<'_>, operands: &[&TensorType]) -> Option<Carried> {
        let unreduced = |index: usize| -> Option<&[MeshAxis]> {
            let value = node.operands()[index];
            match self.versions(value) {
                [(_, spec)] if !spec.unreduced().is_empty() && self.is_passed_on(value) => Some(spec.unreduced()),
                _ => None,
            }
        };
        if (0..operands.len()).all(|index| unreduced(index).is_none()) {
            return None;
        }
        match linearity(self.graph, node, operands, self.graph.ty(node.results().next()?)) {
            Linear::No | Linear::OfFloats(_) => None,
            Linear::Together(which) => {
                let which = which.of(operands.len());
                // Zeros are a sum over any axes, and a scalar is better left to one device than another operand is
                // added up.
                let is_made = |index: usize| {
                    let value = node.operands()[index];
                    let complete = self.versions(value).iter().all(|(_, spec)| spec.unreduced().is_empty());
                    self.graph.is_zero(value) || complete && operands[index].rank() == 0
                };
                let mut stated = which.iter().copied().filter(|&index| !is_made(index));
                let mut axes: Axes = unreduced(stated.next()?)?.into();
                // The same holds for a value that is a sum over fewer axes than another: for scalars, one reduction
                // over all axes costs less than one for each.
                let is_union = which.iter().all(|&index| operands[index].rank() == 0);
                for index in stated {
                    let other = unreduced(index)?;
                    if is_union {
                        axes.extend(without(other, &axes));
                    } else {
                        axes.retain(|axis| other.contains(axis));
                    }
                }
                (!axes.is_empty()).then_some(Carried { axes, operands: which })
            }
            Linear::Each(which) => {
                let which = which.of(operands.len());
                let mut partial = which.iter().filter_map(|&index| Some((index, unreduced(index)?)));
                let ((index, axes), None) = (partial.next()?, partial.next()) else { return None };
                // The other factor must not be split by them, or be partial itself.
                let others = which.iter().filter(|&&other| other != index);
                let clash = others
                    .flat_map(|&other| self.versions(node.operands()[other]))
                    .any(|(_, spec)| spec.used_axes().any(|axis| axes.contains(&axis)));
                (!clash).then(|| Carried { axes: axes.into(), operands: SmallVec::from_slice(&[index]) })
            }
        }
    }

    /// Whether a partial sum is needed in one place only: it has a single reader, or each of its readers takes some
    /// elements of it and zeros for the others, so that they are added up here or there.
    fn is_passed_on(&self, value: Value) -> bool {
        let takes_some = |node: NodeRef<'_>| {
            let other = match node.operands() {
                [_, on_true, on_false] if *on_true == value => *on_false,
                [_, on_true, on_false] if *on_false == value => *on_true,
                _ => return false,
            };
            matches!(node.op(), Op::Select(_)) && self.graph.is_zero(other)
        };
        let mut left = self.uses[value.index()];
        if left == 1 {
            return true;
        }
        let Some(maker) = self.graph.defining_node(value) else { return false };
        // Readers stand after the maker, most of them near it.
        for node in self.graph.nodes().skip(maker.id.index() + 1) {
            let reads = node.operands().iter().filter(|&&operand| operand == value).count() as u32;
            if reads > 0 && !takes_some(node) {
                return false;
            }
            left -= reads;
            if left == 0 {
                return true;
            }
        }
        // The remaining case is an output.
        false
    }

    /// Whether a sum is best scattered before the op. This holds if the result is to be split over all axes over which
    /// a single operand is partial: then there is less to compute, and nothing more to move.
    fn is_scattered(&self, node: NodeRef<'_>, carried: &Carried) -> bool {
        let is_partial = |&&index: &&usize| {
            let versions = self.versions(node.operands()[index]);
            versions.iter().any(|(_, spec)| !spec.unreduced().is_empty())
        };
        let mut results = node.results();
        carried.operands.iter().filter(is_partial).count() == 1
            && results.all(|result| {
                let spec = self.shardings.known(result);
                spec.is_some_and(|spec| {
                    carried.axes.iter().all(|axis| spec.dims().iter().flatten().any(|own| own == axis))
                })
            })
    }

    /// Reports an operand that is joined only because the op cannot work on parts.
    fn note_fallback(&mut self, node: NodeRef<'_>, rule: &FactorRule, index: usize, spec: &Spec) {
        let value = node.operands()[index];
        let Some((_, have)) = self.first(value).cloned() else { return };
        for (dim, factors) in rule.operands[index].iter().enumerate() {
            let stuck = factors.iter().any(|&factor| rule.factors[factor as usize].kind == FactorKind::Replicated);
            let lost = without(have.dim(dim), spec.dim(dim));
            if stuck && !lost.is_empty() {
                let ty = self.graph.ty(value).clone();
                let axes = self.mesh.names_of(&lost);
                let (op, is_opaque) = match node.op() {
                    Op::Opaque(opaque) => (opaque.opcode.text().into(), true),
                    op => (op.name().into(), false),
                };
                self.program.fallbacks.push(Fallback { op, is_opaque, ty, dim, axes, origin: node.origin() });
            }
        }
    }

    /// A value that enters a reduction once: on other devices than the first of `axes` the reduction starts from
    /// nothing.
    fn in_one_part(&mut self, value: Value, kind: ReduceKind, axes: &[MeshAxis]) -> Result<Value, OpError> {
        match kind {
            ReduceKind::Sum | ReduceKind::Prod => {
                let identity = kind.identity(self.builder.ty(value).dtype);
                self.on_first(value, axes, identity)
            }
            // Taking a value in twice changes nothing.
            ReduceKind::And | ReduceKind::Max | ReduceKind::Min | ReduceKind::Or => Ok(value),
        }
    }

    /// Combines the values of the devices along `axes`.
    fn all_reduce(&mut self, kind: ReduceKind, axes: &Axes, value: Value) -> Result<Value, OpError> {
        let (group, ty) = (Group::new(self.mesh, axes), self.builder.ty(value).clone());
        let is_bitwise = matches!(kind, ReduceKind::And | ReduceKind::Or);
        if !is_bitwise || ty.dtype == DType::Pred {
            return combine(self.builder, AllReduce { group, kind }, value);
        }
        // The CPU plugins refuse an all-reduce of the bits of integers.
        let dims: Dims = std::iter::once(1).chain(ty.dims).collect();
        let row = self.builder.reshape(value, &dims)?;
        let rows = self.builder.push1(AllGather { group, dim: 0 }, &[row])?;
        self.builder.reduce(kind, &[0], rows)
    }
}

/// For each way of combining, the axes over which a result has to be combined: it lacks the factor that they split.
fn sums(rule: &FactorRule, axes: &FactorAxes, result: usize) -> SmallVec<[(ReduceKind, Axes); 1]> {
    let mut found: SmallVec<[(ReduceKind, Axes); 1]> = SmallVec::new();
    for (index, (factor, axes)) in rule.factors.iter().zip(axes).enumerate() {
        let has_factor = || rule.results[result].iter().flatten().any(|&own| own as usize == index);
        let kind = match factor.kind {
            FactorKind::Reduction(kind) if !has_factor() => kind,
            FactorKind::Indexed if !has_factor() => ReduceKind::Sum,
            _ => continue,
        };
        match found.iter_mut().find(|(other, _)| *other == kind) {
            _ if axes.is_empty() => {}
            Some((_, all)) => all.extend(axes.iter().copied()),
            None => found.push((kind, axes.clone())),
        }
    }
    found
}
