//! Linear transposition: the pullback of a linear function, which does not depend on a point.
//!
//! [`check`] proves from the graph, op by op, that a function is linear:
//! - an op's pullback must not read a value that depends on the linear inputs: the derivative would not be constant;
//! - nothing that depends on them may get in by ways without a derivative (comparisons, integers, `stop_gradient`);
//! - where the linear inputs are zero, so is every value that they reach: a constant that is added in makes it affine.
//!
//! Then the pullback reads none of the values computed from linear inputs, so these may be zeros, which are dead code.

use smallvec::SmallVec;

use super::activity::{activity, demand, region_activity};
use super::reverse::pull_back;
use crate::ir::{Graph, GraphBuilder, NodeRef, OpError, PortInfo, TensorType, TypeError, Value, Values};
use crate::ops::{Analysis, CustomVjp, Op, Primitive, ValueFacts, VjpContext};

/// Pushes the transpose of `graph` with respect to the inputs that have no operand: from one cotangent for each output
/// (`None` for zero) to one for each input.
///
/// # Errors
/// The graph is not linear in these inputs: the op that shows it, with its source line.
pub fn transpose(
    builder: &mut GraphBuilder,
    graph: &Graph,
    operands: &[Option<Value>],
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>, OpError> {
    let linear: Vec<bool> = operands.iter().map(Option::is_none).collect();
    let wanted: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
    check(graph, &linear, &wanted)?;
    let mut argument =
        |(operand, ty): (&Option<Value>, &TensorType)| operand.unwrap_or_else(|| builder.splat(ty.clone(), 0.0));
    let arguments: Vec<Value> = operands.iter().zip(graph.input_types()).map(&mut argument).collect();
    pull_back(builder, graph, &arguments, &linear, cotangents)
}

/// Checks that the wanted outputs of a graph are linear in the inputs marked.
///
/// # Errors
/// The first op that is not.
pub fn check(graph: &Graph, linear: &[bool], wanted: &[bool]) -> Result<(), OpError> {
    check_body(graph, linear, linear, linear, wanted)?;
    let zero = Fact::Zero.values(graph, linear);
    let depends = Fact::Depends.values(graph, linear);
    let active = activity(graph, linear);
    for (&output, _) in graph.outputs().iter().zip(wanted).filter(|(_, wanted)| **wanted) {
        if depends[output.index()] && !active[output.index()] {
            return Err(refuse(graph, output, UNDIFFERENTIABLE));
        }
        if !depends[output.index()] && !zero[output.index()] {
            return Err(refuse(graph, output, AFFINE));
        }
    }
    Ok(())
}

const UNDIFFERENTIABLE: &str = "its result depends on the linear inputs, but has no derivative in them";
const NOT_CONSTANT: &str = "its derivative depends on the linear inputs";
const AFFINE: &str =
    "its result is not zero where the linear inputs are: something that does not depend on them is added";

fn refuse(graph: &Graph, value: Value, reason: &'static str) -> OpError {
    match graph.defining_node(value) {
        Some(node) => refuse_node(graph, node, reason),
        None => OpError::new("input", TypeError::NotLinear(reason), vec![graph.ty(value).clone()], Default::default()),
    }
}

fn refuse_node(graph: &Graph, node: NodeRef<'_>, reason: &'static str) -> OpError {
    let types = node.operands().iter().map(|&operand| graph.ty(operand).clone()).collect();
    OpError::new(node.op().name(), TypeError::NotLinear(reason), types, node.origin())
}

/// Checks each op of a graph that a cotangent reaches. The flags of the inputs say which depend on the linear ones in
/// any way (`depends`), which depend on them differentiably (`active`), and which are zero when the linear ones are
/// (`zero`).
fn check_body(graph: &Graph, depends: &[bool], active: &[bool], zero: &[bool], wanted: &[bool]) -> Result<(), OpError> {
    let depends = Fact::Depends.values(graph, depends);
    let zero = Fact::Zero.values(graph, zero);
    let active = activity(graph, active);
    let reached = demand(graph, &active, wanted);
    let flags = |node: NodeRef<'_>, of: &[bool]| -> Vec<bool> {
        node.operands().iter().map(|value| of[value.index()]).collect()
    };
    for node in graph.nodes().filter(|node| node.results().any(|result| reached[result.index()])) {
        for &operand in node.operands() {
            if depends[operand.index()] && !active[operand.index()] {
                return Err(refuse(graph, operand, UNDIFFERENTIABLE));
            }
        }
        let wanted: Vec<bool> = node.results().map(|result| reached[result.index()]).collect();
        let [depends_in, active_in, zero_in] = [&depends, &active, &zero].map(|of| flags(node, of));
        match (node.op(), node.op().as_primitive()) {
            (_, Some(primitive)) => {
                if let Some(reason) = why_not_linear(graph, node, primitive, &depends_in, &wanted)? {
                    return Err(refuse_node(graph, node, reason));
                }
            }
            (Op::CustomVjp(custom), None) if custom_reads(custom, &depends_in) => {
                return Err(refuse_node(graph, node, NOT_CONSTANT));
            }
            (Op::CustomVjp(_), None) => {}
            (op, None) if Fact::Zero.looks_into(op) => {
                let (depends, active) =
                    (Fact::Depends.through(op, &depends_in), region_activity(op.clone(), &active_in));
                for (region, body) in op.regions().enumerate() {
                    // The flags say which inputs are zero in the first iteration. If an op of the body adds something,
                    // the check finds it here.
                    let zero = op.entering(region, &zero_in);
                    let wanted = wanted_outputs(op, region, body, &wanted);
                    check_body(body, &depends.inputs[region], &active.inputs[region], &zero, &wanted)?;
                }
            }
            // The trip count may depend on anything, so the results count as not zero below.
            _ => {}
        }
        let zeros_in = node.operands().iter().all(|value| !depends[value.index()] || zero[value.index()]);
        let not_zero = node.results().any(|result| reached[result.index()] && !zero[result.index()]);
        if zeros_in && not_zero {
            return Err(refuse_node(graph, node, AFFINE));
        }
    }
    Ok(())
}

/// The reason why an op is not linear: its pullback has no gradient for an operand that depends on the linear inputs,
/// or reads such an operand, or reads results.
fn why_not_linear(
    graph: &Graph,
    node: NodeRef<'_>,
    primitive: &dyn Primitive,
    depends: &[bool],
    wanted: &[bool],
) -> Result<Option<&'static str>, OpError> {
    let mut builder = GraphBuilder::new("pullback");
    builder.set_origin(node.origin());
    let mut input = |value: Value| builder.input(graph.ty(value).clone(), PortInfo::default());
    let operands: Values = node.operands().iter().map(|&value| input(value)).collect();
    let results: Values = node.results().map(&mut input).collect();
    let cotangents: SmallVec<[Option<Value>; 2]> =
        node.results().zip(wanted).map(|(result, &wanted)| wanted.then(|| input(result))).collect();
    let mut gradients: SmallVec<[Option<Value>; 4]> = SmallVec::from_elem(None, operands.len());
    primitive.vjp(&mut VjpContext {
        builder: &mut builder,
        operands: &operands,
        results: &results,
        cotangents: &cotangents,
        needs: depends,
        gradients: &mut gradients,
        definition: pull_back,
    })?;
    if depends.iter().zip(&gradients).any(|(&depends, gradient)| depends && gradient.is_none()) {
        return Ok(Some(UNDIFFERENTIABLE));
    }
    let scratch = builder.graph();
    let mut read = vec![false; scratch.value_count()];
    gradients.iter().flatten().for_each(|value| read[value.index()] = true);
    for node in scratch.nodes().rev().collect::<Vec<_>>() {
        if node.results().any(|result| read[result.index()]) {
            node.operands().iter().for_each(|operand| read[operand.index()] = true);
        }
    }
    let dependent = operands.iter().zip(depends).filter(|(_, depends)| **depends).map(|(value, _)| value);
    Ok(dependent.chain(&results).any(|value| read[value.index()]).then_some(NOT_CONSTANT))
}

/// Whether a hand-written backward rule reads residuals that depend on the operands marked.
fn custom_reads(custom: &CustomVjp, depends: &[bool]) -> bool {
    let forward = Fact::Depends.values(&custom.forward, depends);
    let residuals = &custom.forward.outputs()[custom.primal.outputs().len()..];
    let mut inputs: Vec<bool> = residuals.iter().map(|value| forward[value.index()]).collect();
    inputs.resize(custom.backward.inputs().len(), false);
    let backward = Fact::Depends.values(&custom.backward, &inputs);
    custom.backward.outputs().iter().any(|value| backward[value.index()])
}

/// Whether each output of a region gets a cotangent when the results marked do. The cotangent of a carry goes from
/// iteration to iteration, whether or not the last value of the carry is wanted.
fn wanted_outputs(op: &Op, region: usize, body: &Graph, results: &[bool]) -> Vec<bool> {
    let mut wanted = vec![false; body.outputs().len()];
    for edge in op.edges() {
        let is_wanted = edge.is_carried() || edge.result().is_some_and(|result| results[result]);
        let ports = edge.outputs.iter().filter(|port| port.region == region);
        ports.for_each(|port| wanted[port.index] = is_wanted);
    }
    wanted
}

/// A property that is followed through a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fact {
    /// A value depends on the inputs marked, in whatever way.
    Depends,
    /// A value is zero if the inputs marked are.
    Zero,
}

impl Analysis for Fact {
    type Fact = bool;

    const CARRY_IS_ONE: bool = false;

    fn join(&self, one: bool, other: &bool) -> bool {
        match self {
            Fact::Depends => one | other,
            Fact::Zero => one & other,
        }
    }

    fn controlled(&self, holds: bool, control: &bool) -> bool {
        match self {
            Fact::Depends => holds | control,
            Fact::Zero => holds,
        }
    }

    fn looks_into(&self, op: &Op) -> bool {
        !op.executions(0).is_open()
    }

    fn transfer(&self, op: &Op, operands: &[bool], result_count: usize) -> ValueFacts<bool> {
        match self {
            Fact::Depends if op.facts().is_separate => operands.into(),
            Fact::Depends => ValueFacts::from_elem(operands.contains(&true), result_count),
            Fact::Zero if op.as_primitive().is_none() => ValueFacts::from_elem(false, result_count),
            Fact::Zero => (0..result_count).map(|result| is_zero(op, result, operands)).collect(),
        }
    }

    /// Indices and flags do not count as zero.
    fn of_type(&self, holds: bool, ty: &TensorType) -> bool {
        holds && (*self == Fact::Depends || ty.dtype.is_float())
    }
}

/// Whether a result of an op is zero if the operands marked are.
fn is_zero(op: &Op, result: usize, operands: &[bool]) -> bool {
    match op {
        Op::Splat(splat) => splat.number() == 0.0,
        Op::Constant(constant) => constant.0.to_f64_vec().iter().all(|&number| number == 0.0),
        op => op.facts().is_zero(result, operands),
    }
}
