//! Ops with regions: bodies become bodies of local shapes.

use std::ops::Range;
use std::sync::Arc;

use super::walk::{Partitioning, Version};
use super::{PartitionError, shared, without};
use crate::ir::{Axes, Graph, GraphBuilder, InternalError, NodeRef, PortInfo, Spec, TensorType, Value};
use crate::ops::{Call, Cond, RegionKind, Scan, While};
use crate::sharding::{Shardings, parallel_axes};

/// A partitioned body, and the specs of its results before they were brought into the specs demanded.
pub(super) struct PartitionedBody {
    pub(super) graph: Graph,
    pub(super) outputs: Vec<Spec>,
    /// Whether each input was used as it came: never brought into another state of summation.
    untouched: Vec<bool>,
}

impl<'a> Partitioning<'a, '_> {
    pub(super) fn region(&mut self, node: NodeRef<'_>, op: RegionKind<'_>) -> Result<(), PartitionError> {
        match op {
            RegionKind::Scan(scan) => match parallel_axes(scan, node, |value| self.shardings.spec(value)) {
                along if along.is_empty() => self.scan(node, scan),
                along => self.parallel_scan(node, scan, &along),
            },
            RegionKind::Call(call) => self.call(node, call),
            RegionKind::Cond(cond) => self.cond(node, cond),
            RegionKind::While(op) => self.while_loop(node, op),
            RegionKind::Checkpoint(checkpoint) => self.inline(node, &checkpoint.body),
            RegionKind::CustomVjp(custom) => self.inline(node, &custom.primal),
        }
    }

    pub(super) fn body_shardings(&self, node: NodeRef<'_>, index: usize) -> Result<&'a Shardings, InternalError> {
        let known = self.shardings.body(node.id, index);
        known.ok_or_else(|| InternalError::new(node.op().name(), "propagated specs in its body").at(node.origin()))
    }

    /// The nodes of a body, in place.
    fn inline(&mut self, node: NodeRef<'_>, body: &Arc<Graph>) -> Result<(), PartitionError> {
        let shardings = self.body_shardings(node, 0)?;
        let mut inputs = Vec::new();
        for (&operand, &input) in node.operands().iter().zip(body.inputs()) {
            let spec = self.spec_at_hand(operand, shardings.spec(input));
            inputs.push((self.get(operand, &spec)?, spec));
        }
        let mut inner = Partitioning::new(self.mesh, body, shardings, self.builder, self.program, &inputs);
        inner.nodes()?;
        let mut outputs: Vec<Version> = Vec::new();
        for &output in body.outputs() {
            let spec = inner.spec_at_hand(output, shardings.spec(output));
            outputs.push((inner.get(output, &spec)?, spec));
        }
        let (locals, specs): (Vec<Value>, Vec<Spec>) = outputs.into_iter().unzip();
        self.set_results(node, locals, specs);
        Ok(())
    }

    /// Partitions a body. `demand` says in which spec an output is wanted, from the one it has.
    pub(super) fn body(
        &mut self,
        body: &Graph,
        shardings: &Shardings,
        inputs: &[Spec],
        demand: impl Fn(usize, &Spec) -> Spec,
    ) -> Result<PartitionedBody, PartitionError> {
        let mut builder = GraphBuilder::new(body.name());
        let mut versions = Vec::new();
        for (&input, spec) in body.inputs().iter().zip(inputs) {
            let ty = body.ty(input);
            let local = TensorType { dtype: ty.dtype, dims: spec.local_dims(self.mesh, &ty.dims)? };
            versions.push((builder.input(local, PortInfo::default()), spec.clone()));
        }
        let mut inner = Partitioning::new(self.mesh, body, shardings, &mut builder, self.program, &versions);
        inner.nodes()?;
        let (mut outputs, mut specs) = (Vec::new(), Vec::new());
        for (index, &output) in body.outputs().iter().enumerate() {
            let found = inner.spec_at_hand(output, shardings.spec(output));
            let spec = demand(index, &found);
            outputs.push(inner.get(output, &spec)?);
            specs.push(spec);
        }
        let untouched =
            body.inputs().iter().zip(inputs).map(|(&input, spec)| {
                inner.versions(input).iter().all(|(_, other)| other.unreduced() == spec.unreduced())
            });
        let untouched = untouched.collect();
        Ok(PartitionedBody { graph: builder.finish_body(outputs), outputs: specs, untouched })
    }

    fn scan(&mut self, node: NodeRef<'_>, scan: &Scan) -> Result<(), PartitionError> {
        let (body, shardings) = (&scan.body, self.body_shardings(node, 0)?);
        let (first_carry, first_slice) = (scan.invariant_count, scan.invariant_count + scan.carry_count);
        let mut inputs: Vec<Spec> = body.inputs().iter().map(|&input| shardings.spec(input).clone()).collect();
        for (index, input) in inputs.iter_mut().enumerate().take(first_carry) {
            // A value that every iteration sees is used as it is.
            if let Some((_, spec)) = self.first(node.operands()[index]) {
                *input = spec.clone().with_unreduced([]);
            }
        }
        // A stacked gradient is scattered in each iteration. It stays partial over the axes that no dimension takes,
        // and is summed over these once, after the loop.
        let stacked = |spec: &Spec, wanted: &Spec| {
            let used: Axes = wanted.used_axes().collect();
            wanted.clone().with_unreduced(without(spec.unreduced(), &used))
        };
        let wanted = |index: usize, found: &Spec, inputs: &[Spec]| {
            if index < scan.carry_count {
                return inputs[first_carry + index].clone();
            }
            let saved = shardings.before_gathering(body, self.mesh, body.outputs()[index]);
            stacked(found, shardings.spec(saved))
        };
        let carried = self.partial_carries(node.operands(), body, first_carry..first_slice, shardings, &inputs)?;
        for (input, axes) in inputs[..first_slice].iter_mut().zip(carried) {
            *input = std::mem::take(input).with_unreduced(axes);
        }
        let partitioned = self.body(body, shardings, &inputs, |index, found| wanted(index, found, &inputs))?;
        let mut operands = Vec::new();
        for (index, &operand) in node.operands().iter().enumerate() {
            let spec =
                if index < first_slice { inputs[index].clone() } else { with_leading(Axes::new(), &inputs[index]) };
            operands.push(self.get(operand, &spec)?);
        }
        self.builder.set_origin(node.origin());
        let results = self.builder.push(Scan { body: Arc::new(partitioned.graph), ..scan.clone() }, &operands)?;
        let specs = partitioned.outputs.into_iter().enumerate();
        let specs =
            specs.map(|(index, spec)| if index < scan.carry_count { spec } else { with_leading(Axes::new(), &spec) });
        self.set_results(node, results, specs);
        Ok(())
    }

    /// For each invariant and carry of a loop, the axes over which it can stay a partial sum all through the loop: the
    /// value that an iteration adds is partial over them, and nothing in it needs the sum. The search starts from
    /// above: an invariant, or a carry that the loop hands on, is assumed to be as it comes, and every other carry to
    /// be partial over all axes that do not split it, until each is used as it is and leaves an iteration as it
    /// entered.
    fn partial_carries(
        &mut self,
        operands: &[Value],
        body: &Graph,
        carries: Range<usize>,
        shardings: &Shardings,
        inputs: &[Spec],
    ) -> Result<Vec<Axes>, PartitionError> {
        let free = |index: usize| -> Axes {
            if !body.ty(body.inputs()[index]).dtype.is_float() {
                return Axes::new();
            }
            if index < carries.start {
                return inputs[index].unreduced().into();
            }
            let used: Axes = inputs[index].used_axes().collect();
            if body.outputs()[index - carries.start] == body.inputs()[index] {
                let at_hand = self.first(operands[index]).into_iter().flat_map(|(_, spec)| spec.unreduced());
                return at_hand.copied().filter(|axis| !used.contains(axis)).collect();
            }
            let ends = [body.inputs()[index], body.outputs()[index - carries.start]];
            let is_one = |axis| ends.iter().all(|&end| !self.program.manual.differs(body, end, axis));
            let is_free = |&axis: &_| self.mesh.size(axis) > 1 && !used.contains(&axis) && is_one(axis);
            self.mesh.axes().filter(is_free).collect()
        };
        let mut carried: Vec<Axes> = (0..carries.end).map(free).collect();
        while carried.iter().any(|axes| !axes.is_empty()) {
            let mut inputs = inputs.to_vec();
            for (input, axes) in inputs.iter_mut().zip(&carried) {
                *input = std::mem::take(input).with_unreduced(axes.iter().copied());
            }
            let known = self.program.fallbacks.len();
            let trial = self.body(body, shardings, &inputs, |_, found| found.clone())?;
            self.program.fallbacks.truncate(known);
            let mut settled = true;
            for (index, axes) in carried.iter_mut().enumerate().filter(|(_, axes)| !axes.is_empty()) {
                let kept = match index.checked_sub(carries.start) {
                    Some(carry) => shared(axes, trial.outputs[carry].unreduced()),
                    None => axes.clone(),
                };
                if kept.len() < axes.len() {
                    *axes = kept;
                    settled = false;
                } else if !trial.untouched[index] {
                    axes.clear();
                    settled = false;
                }
            }
            if settled {
                break;
            }
        }
        Ok(carried)
    }

    fn call(&mut self, node: NodeRef<'_>, call: &Call) -> Result<(), PartitionError> {
        let (function, shardings) = (&call.function, self.body_shardings(node, 0)?);
        let mut specs = Vec::new();
        let mut operands = Vec::new();
        for (&operand, &input) in node.operands().iter().zip(function.inputs()) {
            let spec = self.spec_at_hand(operand, shardings.spec(input));
            operands.push(self.get(operand, &spec)?);
            specs.push(spec);
        }
        let key = (Arc::as_ptr(function), specs);
        let (local, outputs) = match self.program.calls.get(&key) {
            Some(known) => known.clone(),
            None => {
                let body = self.body(function, shardings, &key.1, |_, found| found.clone())?;
                let known = (Arc::new(body.graph), body.outputs);
                self.program.calls.insert(key, known.clone());
                known
            }
        };
        self.builder.set_origin(node.origin());
        let results = self.builder.push(Call { function: local }, &operands)?;
        self.set_results(node, results, outputs);
        Ok(())
    }

    fn cond(&mut self, node: NodeRef<'_>, cond: &Cond) -> Result<(), PartitionError> {
        let selector = self.get(node.operands()[0], &Spec::replicated(0))?;
        let mut operands = vec![selector];
        let mut specs = Vec::new();
        for &operand in &node.operands()[1..] {
            let spec = self.spec_at_hand(operand, self.shardings.spec(operand)).with_unreduced([]);
            operands.push(self.get(operand, &spec)?);
            specs.push(spec);
        }
        let wanted: Vec<Spec> = node.results().map(|result| self.shardings.spec(result).clone()).collect();
        let mut partial: Vec<Axes> = vec![Axes::new(); wanted.len()];
        let mut branches: Vec<Option<PartitionedBody>> = cond.branches.iter().map(|_| None).collect();
        // A result that is a partial sum in one branch is one in all: a sum that is taken behind the branches need not
        // be taken in them. So a branch is written again where another has a sum that it does not have.
        while let Some(index) = branches.iter().position(Option::is_none) {
            let shardings = self.body_shardings(node, index)?;
            let body = self.body(&cond.branches[index], shardings, &specs, |index, found| {
                let used: Axes = wanted[index].used_axes().collect();
                let more = without(&without(found.unreduced(), &used), &partial[index]);
                wanted[index].clone().with_unreduced(partial[index].iter().chain(&more).copied())
            })?;
            let mut grown = false;
            for (axes, spec) in partial.iter_mut().zip(&body.outputs) {
                grown |= axes.len() < spec.unreduced().len();
                *axes = spec.unreduced().into();
            }
            if grown {
                branches.iter_mut().for_each(|branch| *branch = None);
            }
            branches[index] = Some(body);
        }
        let wanted: Vec<Spec> = wanted.into_iter().zip(partial).map(|(spec, axes)| spec.with_unreduced(axes)).collect();
        let branches = branches.into_iter().flatten().map(|body| Arc::new(body.graph)).collect();
        self.builder.set_origin(node.origin());
        let locals = self.builder.push(Cond { branches, often: cond.often.clone() }, &operands)?;
        self.set_results(node, locals, wanted);
        Ok(())
    }

    fn while_loop(&mut self, node: NodeRef<'_>, op: &While) -> Result<(), PartitionError> {
        let shardings = self.body_shardings(node, 1)?;
        let mut specs: Vec<Spec> = op.body.inputs().iter().map(|&input| shardings.spec(input).clone()).collect();
        let invariants = node.operands()[..op.invariant_count].iter();
        for (spec, &operand) in specs.iter_mut().zip(invariants) {
            if let Some((_, found)) = self.first(operand) {
                *spec = found.clone();
            }
        }
        let carried =
            self.partial_carries(node.operands(), &op.body, op.invariant_count..specs.len(), shardings, &specs)?;
        for (spec, axes) in specs.iter_mut().zip(carried) {
            *spec = std::mem::take(spec).with_unreduced(axes);
        }
        let mut operands = Vec::new();
        for (&operand, spec) in node.operands().iter().zip(&specs) {
            operands.push(self.get(operand, spec)?);
        }
        let of_condition = self.body_shardings(node, 0)?;
        let condition = self.body(&op.condition, of_condition, &specs, |_, _| Spec::replicated(0))?;
        let body = self.body(&op.body, shardings, &specs, |index, _| specs[op.invariant_count + index].clone())?;
        self.builder.set_origin(node.origin());
        let local = While { condition: Arc::new(condition.graph), body: Arc::new(body.graph), ..op.clone() };
        let results = self.builder.push(local, &operands)?;
        self.set_results(node, results, specs.into_iter().skip(op.invariant_count));
        Ok(())
    }
}

/// The spec of stacked values, whose leading dimension is split over these axes: over none, if it is that of a loop
/// that every device runs.
pub(super) fn with_leading(axes: Axes, spec: &Spec) -> Spec {
    let dims = std::iter::once(axes).chain(spec.dims().iter().cloned());
    Spec::new(dims).with_unreduced(spec.unreduced().iter().copied())
}
