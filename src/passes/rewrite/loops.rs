//! The values that enter and leave a scan.
//!
//! Architecture invariant: no rewrite here makes a loop compute or hold more than before. A node that moves into a body
//! costs nothing to repeat; a value that leaves it was there in every iteration.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{LARGEST_FOLDED, Rewrite, Rewriting};
use crate::ir::{Definition, Graph, GraphCopy, PortInfo, TensorType, Value, Values};
use crate::ops::{BroadcastInDim, Iota, Op, ResultTypes, Scan, Splat};

/// Rewrites operands and results of scans, together with what other passes of the same walk do in bodies:
///
/// - invariants and slices that are splats, positions or small constants are made in the body instead;
/// - a stacked input that repeats one value becomes an invariant;
/// - a carry that no iteration changes becomes an invariant;
/// - a stacked output that is the same in every iteration becomes a broadcast behind the loop.
pub(crate) const SCAN_OPERANDS: Rewrite = Rewrite { loops: true, ..Rewrite::NOTHING };

/// Carries values without the dimensions of one element that every iteration would take off at its start and put back
/// at its end, as the part of one stage has for the stages.
///
/// A reshape costs nothing by itself. But where dimensions of one element are left, XLA's layout assignment may order
/// them otherwise than in the value that is carried (`ShapeUtil::ReshapeIsBitcast` and `AlignLayouts` in
/// `shape_util.cc`), and on CPUs it copies the difference in each iteration, there and back.
pub(crate) const SCAN_CARRIES: Rewrite = Rewrite { carries: true, ..Rewrite::NOTHING };

/// A scan on its way: its results are either still results or known values.
pub(super) struct Loop {
    pub(super) scan: Scan,
    pub(super) operands: Vec<Value>,
    /// For each result of the original, its present place.
    results: Vec<OutputOrigin>,
    /// For each result of the original, its type. The present result may have another shape.
    types: ResultTypes,
}

#[derive(Clone, Copy)]
enum OutputOrigin {
    /// A result of the scan.
    Result(usize),
    /// A value that is known without the scan.
    Value(Value),
}

/// The replacement of a body input.
enum InputReplacement {
    /// An input as before.
    Same,
    /// An op without operands in the body.
    Made(Op),
    /// A new invariant operand, repeated in the body if an op is given.
    Invariant(Value, Option<BroadcastInDim>),
}

impl Loop {
    pub(super) fn new(scan: &Scan, operands: &[Value]) -> Loop {
        let results = (0..scan.body.outputs().len()).map(OutputOrigin::Result).collect();
        Loop { scan: scan.clone(), operands: operands.to_vec(), results, types: scan.result_types() }
    }

    /// Pushes the rest of the loop; returns the replacements of the original's results.
    pub(super) fn finish(self, walk: &mut Rewriting<'_>) -> Values {
        let is_known = |place: &OutputOrigin| matches!(place, OutputOrigin::Value(_));
        let mut pushed = Values::new();
        // A loop whose results are all known without it is dead, unless it has side effects.
        if self.results.is_empty()
            || !self.results.iter().all(is_known)
            || Op::from(self.scan.clone()).has_side_effect()
        {
            let types = self.scan.result_types();
            pushed = walk.push_scan(self.scan, &self.operands, types);
        }
        let value = |place: &OutputOrigin| match *place {
            OutputOrigin::Result(index) => pushed[index],
            OutputOrigin::Value(value) => value,
        };
        let types = self.types.iter();
        self.results.iter().zip(types).map(|(place, ty)| walk.reshaped(value(place), ty)).collect()
    }

    /// Makes values in the body if they need not be brought there.
    pub(super) fn sink(&mut self, outside: &Graph) {
        let first_carry = self.scan.invariant_count;
        let first_slice = first_carry + self.scan.carry_count;
        let entry = |(index, &operand): (usize, &Value)| match outside.defining_node(operand) {
            Some(node) if index < first_carry => invariant_entry(node.op()),
            Some(node) if index >= first_slice => stacked_entry(outside, node.op(), node.operands()),
            _ => InputReplacement::Same,
        };
        let entries: Vec<InputReplacement> = self.operands.iter().enumerate().map(entry).collect();
        if entries.iter().all(|entry| matches!(entry, InputReplacement::Same)) {
            return;
        }
        let body = &*self.scan.body;
        let mut inside = GraphCopy::new(body);
        let mut operands = Vec::new();
        let keep = |range: std::ops::Range<usize>, inside: &mut GraphCopy<'_>, operands: &mut Vec<Value>| {
            for index in range.filter(|&index| matches!(entries[index], InputReplacement::Same)) {
                inside.input(body.inputs()[index], PortInfo::default());
                operands.push(self.operands[index]);
            }
        };
        keep(0..first_carry, &mut inside, &mut operands);
        let mut sources = Vec::new();
        for entry in &entries {
            if let InputReplacement::Invariant(value, _) = entry {
                sources.push(inside.builder.input(outside.ty(*value).clone(), PortInfo::default()));
                operands.push(*value);
            }
        }
        let invariant_count = operands.len();
        keep(first_carry..entries.len(), &mut inside, &mut operands);
        let mut sources = sources.into_iter();
        for (&input, entry) in body.inputs().iter().zip(&entries) {
            let ty = body.ty(input).clone();
            match entry {
                InputReplacement::Same => {}
                InputReplacement::Made(op) => {
                    inside.map.set(input, inside.builder.push_typed(op.clone(), &[], [ty])[0])
                }
                InputReplacement::Invariant(_, repeat) => {
                    let Some(source) = sources.next() else { continue };
                    let value = match repeat {
                        Some(op) => inside.builder.push_typed(op.clone().into(), &[source], [ty])[0],
                        None => source,
                    };
                    inside.map.set(input, value);
                }
            }
        }
        inside.all_nodes();
        let outputs = body.outputs().iter().copied();
        self.scan = Scan { body: Arc::new(inside.finish_body(outputs)), invariant_count, ..self.scan.clone() };
        self.operands = operands;
    }

    /// Takes out carries that never change and stacked outputs that repeat one value. Returns whether it found any.
    pub(super) fn lift(&mut self, walk: &mut Rewriting<'_>) -> bool {
        let (first_carry, carry_count) = (self.scan.invariant_count, self.scan.carry_count);
        let body = self.scan.body.clone();
        let carries = first_carry..first_carry + carry_count;
        let constant = |graph: &Graph, value| {
            let op = graph.defining_node(value)?.op();
            op.facts().is_constant().then(|| op.clone())
        };
        let unchanged: Vec<bool> = (0..carry_count)
            .map(|carry| {
                let (input, output) = (body.inputs()[first_carry + carry], body.outputs()[carry]);
                let init = constant(walk.graph(), self.operands[first_carry + carry]);
                input == output || (init.is_some() && init == constant(&body, output))
            })
            .collect();
        // The outside operand that a body value equals in every iteration.
        let outside = |value: Value| match body.definition(value) {
            Definition::Input(index) => {
                let index = index as usize;
                let same = index < first_carry || (carries.contains(&index) && unchanged[index - first_carry]);
                same.then(|| self.operands[index])
            }
            Definition::Result(..) => None,
        };
        let mut lifted: Vec<Option<Value>> =
            (0..carry_count).map(|carry| unchanged[carry].then(|| self.operands[first_carry + carry])).collect();
        for &output in &body.outputs()[carry_count..] {
            lifted.push(repeated(walk, &body, output, self.scan.length, &outside));
        }
        if lifted.iter().all(Option::is_none) {
            return false;
        }
        self.take_out(&unchanged, &lifted);
        true
    }

    /// Carries values in fewer dimensions if the body only uses them so. Returns whether it found any.
    pub(super) fn squeeze(&mut self, walk: &mut Rewriting<'_>) -> bool {
        let (body, first_carry) = (self.scan.body.clone(), self.scan.invariant_count);
        let squeezed = squeezed_carries(&body, first_carry, self.scan.carry_count);
        if squeezed.iter().all(Option::is_none) {
            return false;
        }
        let mut inside = GraphCopy::new(&body);
        for (index, &input) in body.inputs().iter().enumerate() {
            match index.checked_sub(first_carry).and_then(|carry| squeezed.get(carry)?.as_ref()) {
                None => inside.input(input, PortInfo::default()),
                Some(ty) => {
                    let entered = inside.builder.input(ty.clone(), PortInfo::default());
                    inside.map.set(input, inside.builder.reshape_to(entered, body.ty(input).clone()));
                    self.operands[index] = walk.reshaped(self.operands[index], ty);
                }
            }
        }
        inside.all_nodes();
        // A value that is reshaped before it leaves now leaves without the reshape.
        let leaving = |(index, &output): (usize, &Value)| match (squeezed.get(index), body.defining_node(output)) {
            (Some(Some(_)), Some(node)) => node.operands()[0],
            _ => output,
        };
        let outputs: Vec<Value> = body.outputs().iter().enumerate().map(leaving).collect();
        self.scan = Scan { body: Arc::new(inside.finish_body(outputs)), ..self.scan.clone() };
        true
    }

    /// Makes the carries marked invariants, and drops the outputs whose values are known.
    fn take_out(&mut self, unchanged: &[bool], lifted: &[Option<Value>]) {
        let (body, first_carry) = (self.scan.body.clone(), self.scan.invariant_count);
        let is_unchanged = |index: &usize| {
            (first_carry..first_carry + unchanged.len()).contains(index) && unchanged[*index - first_carry]
        };
        let order: Vec<usize> = (0..first_carry)
            .chain((0..body.inputs().len()).filter(is_unchanged))
            .chain((first_carry..body.inputs().len()).filter(|index| !is_unchanged(index)))
            .collect();
        let mut inside = GraphCopy::of_body(&body, order.iter().map(|&index| body.inputs()[index]));
        inside.all_nodes();
        let kept: Vec<usize> = (0..lifted.len()).filter(|&index| lifted[index].is_none()).collect();
        let outputs = kept.iter().map(|&index| body.outputs()[index]);
        let moved = unchanged.iter().filter(|&&unchanged| unchanged).count();
        self.operands = order.iter().map(|&index| self.operands[index]).collect();
        self.scan = Scan {
            body: Arc::new(inside.finish_body(outputs)),
            invariant_count: first_carry + moved,
            carry_count: self.scan.carry_count - moved,
            ..self.scan.clone()
        };
        for place in &mut self.results {
            if let OutputOrigin::Result(index) = *place {
                *place = match lifted[index] {
                    Some(value) => OutputOrigin::Value(value),
                    None => OutputOrigin::Result(kept.partition_point(|&kept| kept < index)),
                };
            }
        }
    }
}

/// For each carry, the type of fewer dimensions in which the body always takes it, and from which the body reshapes it
/// before it leaves; `None` for carries that the body uses as they are.
fn squeezed_carries(body: &Graph, first_carry: usize, carry_count: usize) -> Vec<Option<TensorType>> {
    let entered = |value: Value| match body.definition(value) {
        Definition::Input(index) => (index as usize).checked_sub(first_carry).filter(|&carry| carry < carry_count),
        Definition::Result(..) => None,
    };
    let mut squeezed: Vec<Option<TensorType>> = (0..carry_count)
        .map(|carry| {
            let (node, whole) = (body.defining_node(body.outputs()[carry])?, body.inputs()[first_carry + carry]);
            let left = body.ty(*node.operands().first()?);
            let is_reshape = matches!(node.op(), Op::Reshape(_));
            (is_reshape && left.rank() < body.ty(whole).rank()).then(|| left.clone())
        })
        .collect();
    let mut is_taken = vec![false; carry_count];
    for node in body.nodes() {
        for carry in node.operands().iter().filter_map(|&operand| entered(operand)) {
            let is_reshape = matches!(node.op(), Op::Reshape(_));
            if !(is_reshape && squeezed[carry].as_ref() == Some(body.ty(node.result()))) {
                squeezed[carry] = None;
            }
            is_taken[carry] = true;
        }
    }
    for carry in body.outputs().iter().filter_map(|&output| entered(output)) {
        squeezed[carry] = None;
    }
    squeezed.into_iter().zip(is_taken).map(|(ty, is_taken)| ty.filter(|_| is_taken)).collect()
}

fn invariant_entry(op: &Op) -> InputReplacement {
    match op {
        Op::Constant(constant) if constant.0.ty().element_count() > LARGEST_FOLDED => InputReplacement::Same,
        op if op.facts().is_constant() => InputReplacement::Made(op.clone()),
        _ => InputReplacement::Same,
    }
}

/// The body input for the slices of a stacked input, by the node that makes the stack.
fn stacked_entry(outside: &Graph, op: &Op, operands: &[Value]) -> InputReplacement {
    let slice = |ty: &TensorType| TensorType::new(ty.dtype, &ty.dims[1..]);
    match op {
        Op::Splat(splat) => InputReplacement::Made(Splat::new(slice(&splat.ty), splat.number()).into()),
        Op::Iota(iota) if iota.axis > 0 => {
            InputReplacement::Made(Iota { ty: slice(&iota.ty), axis: iota.axis - 1 }.into())
        }
        Op::BroadcastInDim(op) if !op.mapping.contains(&0) => {
            let mapping = op.mapping.iter().map(|&axis| axis - 1).collect();
            let repeat = BroadcastInDim { dims: op.dims[1..].into(), mapping };
            let same = outside.ty(operands[0]).dims.as_slice() == &op.dims[1..];
            InputReplacement::Invariant(operands[0], (!same).then_some(repeat))
        }
        _ => InputReplacement::Same,
    }
}

/// The stack of a body value that is the same in every iteration, computed outside. Returns `None` for a value that is
/// not the same, or that would take more than a broadcast to compute.
fn repeated(
    walk: &mut Rewriting<'_>,
    body: &Graph,
    value: Value,
    length: usize,
    outside: &dyn Fn(Value) -> Option<Value>,
) -> Option<Value> {
    let mut ty = body.ty(value).clone();
    ty.dims.insert(0, length);
    let (op, operands): (Op, SmallVec<[Value; 1]>) =
        match body.defining_node(value).map(|node| (node.op(), node.operands())) {
            None => {
                let mapping = (1..ty.rank()).collect();
                (BroadcastInDim { dims: ty.dims.clone(), mapping }.into(), [outside(value)?].into())
            }
            Some((Op::BroadcastInDim(op), operands)) => {
                let mapping = op.mapping.iter().map(|&axis| axis + 1).collect();
                (BroadcastInDim { dims: ty.dims.clone(), mapping }.into(), [outside(operands[0])?].into())
            }
            Some((Op::Splat(splat), _)) => (Splat::new(ty.clone(), splat.number()).into(), SmallVec::new()),
            Some((Op::Iota(iota), _)) => (Iota { ty: ty.clone(), axis: iota.axis + 1 }.into(), SmallVec::new()),
            _ => return None,
        };
    Some(walk.push(&op, &operands, [ty])[0])
}
