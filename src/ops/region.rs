//! Ops with regions: loops, branches, calls, checkpoints and hand-written gradients.
//!
//! A region is a closed [`Graph`]: whatever a body needs from outside is an operand of the op.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::edges::{Edge, Executions, Port, Source, Target, loop_edges, plain_edges};
use super::rules::{Import, ImportContext, Recognized, import, refuse_if};
use super::{AxisList, Op, RematPolicy, ResultTypes, expect_dims, expect_dtype, expect_operands};
use crate::ir::{
    Attribute, DType, Graph, GraphBuilder, GraphCopy, GraphTextError, OpError, OpName, PortInfo, Printer, Reader,
    TensorType, TypeError, Value, Values,
};

/// The bodies of an op.
pub type Bodies<'a> = SmallVec<[&'a Arc<Graph>; 3]>;

/// The rules of an op with regions.
pub trait RegionOp: OpName {
    /// The typing rule: result types from operand types, or the reason why operands, attributes and bodies do not fit
    /// together.
    ///
    /// # Errors
    /// The first operand, attribute or body that does not fit.
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError>;

    /// The bodies.
    fn bodies(&self) -> Bodies<'_>;

    /// The same op with its bodies replaced, in the order of [`RegionOp::bodies`].
    fn with_bodies(&self, f: &mut dyn FnMut(&Arc<Graph>) -> Arc<Graph>) -> Op;

    /// The data flow. Operands ascend from one edge to the next, and so do results.
    fn edges(&self) -> Vec<Edge>;

    /// How often a region runs.
    fn executions(&self, region: usize) -> Executions;

    /// How often a region runs if the op runs `executions` times, where more is known than [`RegionOp::executions`]
    /// says.
    fn runs(&self, _region: usize, _executions: u64) -> Option<u64> {
        None
    }

    /// The op with only the operands marked: attributes that count operands follow. The caller also drops the other
    /// ends of the dropped operands' edges.
    fn with_operands(&self, kept: &[bool]) -> Op;
}

impl Op {
    /// Returns how values enter and leave the bodies of an op with regions; nothing for an op without.
    pub fn edges(&self) -> Vec<Edge> {
        self.as_region().map_or_else(Vec::new, RegionOp::edges)
    }

    /// Returns how often a region runs; never for an op without regions.
    pub fn executions(&self, region: usize) -> Executions {
        self.as_region().map_or(Executions::InDerivative, |op| op.executions(region))
    }

    /// Returns how often a region runs if the op runs `executions` times, where more is known than [`Op::executions`]
    /// says.
    pub fn runs(&self, region: usize, executions: u64) -> Option<u64> {
        self.as_region().and_then(|op| op.runs(region, executions))
    }

    /// The regions that run when the op does, each with its number.
    pub(crate) fn running_regions(&self) -> impl Iterator<Item = (usize, &Arc<Graph>)> {
        self.regions().enumerate().filter(|&(region, _)| self.executions(region) != Executions::InDerivative)
    }

    /// The number of iterations of a loop that runs as often as it says.
    pub(crate) fn trip_count(&self) -> Option<usize> {
        match self.executions(0) {
            Executions::Times(count) => Some(count),
            Executions::Once
            | Executions::AtMostOnce
            | Executions::AtMost(_)
            | Executions::Unknown
            | Executions::InDerivative => None,
        }
    }

    /// Whether the op runs one body exactly once, as a call does: it only wraps a part of the program.
    pub(crate) fn is_wrapper(&self) -> bool {
        self.executions(0) == Executions::Once
    }

    /// The values of the operands at the inputs of a region; in a loop, those of the first iteration.
    pub(crate) fn entering<T: Clone + Default>(&self, region: usize, operands: &[T]) -> Vec<T> {
        let mut inputs = vec![T::default(); self.regions().nth(region).map_or(0, |body| body.inputs().len())];
        for edge in self.edges() {
            let Some(operand) = edge.operand() else { continue };
            edge.inputs.iter().filter(|port| port.region == region).for_each(|port| {
                inputs[port.index] = operands[operand].clone();
            });
        }
        inputs
    }

    /// The type outside of a value that leaves a region, or enters it, by an edge of its own in each iteration.
    pub(crate) fn type_outside(&self, inner: &TensorType) -> TensorType {
        let mut ty = inner.clone();
        if let Some(count) = self.trip_count() {
            ty.dims.insert(0, count);
        }
        ty
    }
}

/// The bodies of an op, one field for each. `all operands alike` if no attribute counts operands.
macro_rules! bodies {
    ($($body:ident),+; all operands alike) => {
        bodies!($($body),+);

        fn with_operands(&self, _kept: &[bool]) -> Op {
            self.clone().into()
        }
    };
    ($($body:ident),+) => {
        fn bodies(&self) -> Bodies<'_> {
            smallvec![$(&self.$body),+]
        }

        fn with_bodies(&self, f: &mut dyn FnMut(&Arc<Graph>) -> Arc<Graph>) -> Op {
            let mut op = self.clone();
            $(op.$body = f(&self.$body);)+
            op.into()
        }
    };
}

/// Region ops compare by the identity of their bodies: equal bodies built twice are different, which only costs a
/// missed merge.
macro_rules! compare_by_identity {
    ($op:ident, bodies: [$($body:ident),*], attributes: [$($attribute:ident),*]) => {
        impl PartialEq for $op {
            fn eq(&self, other: &$op) -> bool {
                $(Arc::ptr_eq(&self.$body, &other.$body))&&* $(&& self.$attribute == other.$attribute)*
            }
        }
        impl Eq for $op {}
        impl Hash for $op {
            fn hash<H: Hasher>(&self, state: &mut H) {
                $(Arc::as_ptr(&self.$body).hash(state);)*
                $(self.$attribute.hash(state);)*
            }
        }
    };
}

/// A loop of fixed length.
///
/// Operands: `invariant_count` values seen unchanged by every iteration, `carry_count` initial carries, then stacked
/// inputs with a leading dimension of `length`. The body takes the invariants, the carries and one slice of each
/// stacked input, and returns the new carries and one slice of each stacked output. Results: the final carries, then
/// the stacked outputs.
#[derive(Clone, Debug)]
pub struct Scan {
    /// One iteration.
    pub body: Arc<Graph>,
    /// Number of iterations.
    pub length: usize,
    /// Number of leading operands that are the same in every iteration.
    pub invariant_count: usize,
    /// Number of carried values.
    pub carry_count: usize,
    /// Whether iterations run from the last slice to the first.
    pub reverse: bool,
    /// Whether iterations have nothing to do with each other: there are no carries, and devices may run them side by
    /// side. Then the leading dimension may be split; a branch in the body is taken by each iteration for itself, so
    /// devices branch by their place along the mesh axes that split it.
    pub parallel: bool,
    /// How many iterations one round of the emitted loop runs: at least 1, which is a plain loop; from `length` on
    /// there is no loop left. [`passes::unroll`](crate::passes::unroll) does it after everything else, so that
    /// differentiation meets the rolled loop. Loops that are made from this one inherit it.
    pub unroll: usize,
}

crate::ir::op_text!(Scan = "scan" {
    length: key("length"),
    invariant_count: optional("invariants", 0),
    carry_count: optional("carries", 0),
    reverse: flag("reverse"),
    parallel: flag("parallel"),
    unroll: optional("unroll", 1),
    body: body,
});
compare_by_identity!(
    Scan,
    bodies: [body],
    attributes: [length, invariant_count, carry_count, reverse, parallel, unroll]
);

/// How often regions run in several executions of their op, as for ops in a loop that follow a table. The caller that
/// builds the op must state the truth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Often {
    /// For each branch, or for the body of a loop, how often it runs. Empty if that is not known.
    pub runs: AxisList,
    /// The number of executions of the op that `runs` counts.
    pub of: usize,
}

impl Often {
    /// States how often one region, or several, run in `of` executions.
    pub fn new(runs: impl IntoIterator<Item = usize>, of: usize) -> Often {
        Often { runs: runs.into_iter().collect(), of }
    }

    /// How often a region runs if the op runs `executions` times; `None` if that is not known.
    pub fn runs_of(&self, region: usize, executions: u64) -> Option<u64> {
        let runs = *self.runs.get(region)? as u64;
        let of = self.of as u64;
        (of > 0 && executions.is_multiple_of(of)).then(|| executions / of * runs)
    }
}

impl Attribute for Often {
    fn write(&self, out: &mut Printer<'_>) {
        (self.runs.clone(), AxisList::from_slice(&[self.of])).write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Often, GraphTextError> {
        let (runs, of) = <(AxisList, AxisList)>::read(reader)?;
        Ok(Often { runs, of: of.first().copied().unwrap_or(0) })
    }
}

/// A loop that runs as long as a condition holds, which is asked before each iteration.
///
/// Operands: `invariant_count` values seen unchanged by every iteration, then the initial carries. Condition and body
/// take both; the condition returns a `pred[]`, the body the new carries. Results: the final carries.
///
/// The number of iterations is not known before it runs, so there is no room to keep the values that a backward pass
/// would read: the loop has a forward mode, but no reverse mode.
#[derive(Clone, Debug)]
pub struct While {
    /// Whether to go on.
    pub condition: Arc<Graph>,
    /// One iteration.
    pub body: Arc<Graph>,
    /// Number of leading operands that are the same in every iteration.
    pub invariant_count: usize,
    /// How often the body runs at most; 0 if that is not known. The caller that builds the loop must state the truth.
    pub at_most: usize,
    /// How often the body runs in several executions of the loop, if that is known.
    pub often: Often,
}

crate::ir::op_text!(While = "while" {
    invariant_count: optional("invariants", 0),
    at_most: optional("at-most", 0),
    often: optional("often", Often::default()),
    condition: body,
    body: body,
});
compare_by_identity!(While, bodies: [condition, body], attributes: [invariant_count, at_most, often]);

/// Runs one of several branches.
///
/// Operands: the selector, then the operands of every branch. The selector is a `pred[]` that chooses branch 1 if it
/// holds and branch 0 if not, or an `s32[]` that counts from 0; one outside the range chooses the last branch, as XLA
/// has it. Results: those of the branch that ran; all branches have the same types.
#[derive(Clone, Debug)]
pub struct Cond {
    /// The branches.
    pub branches: Vec<Arc<Graph>>,
    /// How often each branch runs in several executions of the op, if that is known.
    pub often: Often,
}

crate::ir::op_text!(Cond = "cond" { often: optional("often", Often::default()), branches: body });

impl PartialEq for Cond {
    fn eq(&self, other: &Cond) -> bool {
        let same = |(one, other): (&Arc<Graph>, &Arc<Graph>)| Arc::ptr_eq(one, other);
        self.branches.len() == other.branches.len()
            && self.branches.iter().zip(&other.branches).all(same)
            && self.often == other.often
    }
}
impl Eq for Cond {}
impl Hash for Cond {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.branches.iter().for_each(|branch| Arc::as_ptr(branch).hash(state));
        self.often.hash(state);
    }
}

/// Calls a function, which is emitted once however often it is called.
#[derive(Clone, Debug)]
pub struct Call {
    /// The function.
    pub function: Arc<Graph>,
}

crate::ir::op_text!(Call = "call" { function: body });
compare_by_identity!(Call, bodies: [function], attributes: []);

/// Runs a body whose intermediate values are recomputed in the backward pass, as far as the policy does not keep them.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The function.
    pub body: Arc<Graph>,
    /// The values that are kept.
    pub policy: RematPolicy,
}

crate::ir::op_text!(Checkpoint = "checkpoint" { policy: bare, body: body });
compare_by_identity!(Checkpoint, bodies: [body], attributes: [policy]);

/// A function with a hand-written backward rule.
///
/// `primal` and `forward` take the operands; `forward` returns the primal's outputs followed by residuals. `backward`
/// takes the residuals followed by the cotangents of the differentiable outputs, and returns the cotangents of the
/// differentiable operands (those of floating-point type).
#[derive(Clone, Debug)]
pub struct CustomVjp {
    /// The function that runs when nothing is differentiated.
    pub primal: Arc<Graph>,
    /// The function that runs under differentiation, in the place of `primal`.
    pub forward: Arc<Graph>,
    /// The backward rule.
    pub backward: Arc<Graph>,
}

crate::ir::op_text!(CustomVjp = "custom-vjp" { primal: body, forward: body, backward: body });
compare_by_identity!(CustomVjp, bodies: [primal, forward, backward], attributes: []);

fn expect_inputs(body: &Graph, operands: &[&TensorType]) -> Result<(), TypeError> {
    expect_operands(operands, body.inputs().len())?;
    for (index, (operand, input)) in operands.iter().zip(body.input_types()).enumerate() {
        expect_dtype(index, operand, input.dtype)?;
        expect_dims(index, operand, &input.dims)?;
    }
    Ok(())
}

/// Checks that carries leave an iteration as they enter it.
fn expect_stable_carries(body: &Graph, invariant_count: usize, carry_count: usize) -> Result<(), TypeError> {
    for (index, output) in body.output_types().take(carry_count).enumerate() {
        let input = body.ty(body.inputs()[invariant_count + index]);
        if input != output {
            return Err(TypeError::Attribute(format!(
                "carry {index} enters an iteration as {input} and leaves it as {output}; both must be the same"
            )));
        }
    }
    Ok(())
}

fn count(flags: &[bool]) -> usize {
    flags.iter().filter(|&&flag| flag).count()
}

impl Scan {
    /// The types of the results: of the final carries, then of the stacked outputs.
    pub(crate) fn result_types(&self) -> ResultTypes {
        let stack = |(index, ty): (usize, &TensorType)| {
            let mut ty = ty.clone();
            if index >= self.carry_count {
                ty.dims.insert(0, self.length);
            }
            ty
        };
        self.body.output_types().enumerate().map(stack).collect()
    }
}

impl RegionOp for Scan {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let (body, stacked_start) = (&*self.body, self.invariant_count.saturating_add(self.carry_count));
        expect_operands(operands, body.inputs().len())?;
        refuse_if!(
            operands.len() < stacked_start,
            "there are {} invariants and {} carries, but only {} operands",
            self.invariant_count,
            self.carry_count,
            operands.len()
        );
        refuse_if!(
            body.outputs().len() < self.carry_count,
            "the body returns {} values, fewer than the {} carries",
            body.outputs().len(),
            self.carry_count
        );
        refuse_if!(
            i32::try_from(self.length).is_err(),
            "a loop of {} iterations is longer than s32 can count",
            self.length
        );
        refuse_if!(self.unroll == 0, "the unroll factor must be at least 1, found 0");
        refuse_if!(
            self.parallel && self.carry_count > 0,
            "iterations that run side by side carry nothing, found {} carries",
            self.carry_count
        );
        for (index, (operand, input)) in operands.iter().zip(body.input_types()).enumerate() {
            expect_dtype(index, operand, input.dtype)?;
            if index < stacked_start {
                expect_dims(index, operand, &input.dims)?;
            } else {
                expect_dims(index, operand, &[&[self.length], &input.dims[..]].concat())?;
            }
        }
        expect_stable_carries(body, self.invariant_count, self.carry_count)?;
        Ok(self.result_types())
    }

    bodies!(body);

    fn edges(&self) -> Vec<Edge> {
        let first_slice = self.invariant_count + self.carry_count;
        let slice = |index: usize| Edge { sliced: true, ..Edge::argument(index, index, 0..1) };
        let stack = |index: usize| Edge { sliced: true, ..Edge::result_of(index, 0..1) };
        let mut edges = loop_edges(self.invariant_count, self.carry_count, 0..1);
        edges.extend((first_slice..self.body.inputs().len()).map(slice));
        edges.extend((self.carry_count..self.body.outputs().len()).map(stack));
        edges
    }

    fn executions(&self, _region: usize) -> Executions {
        Executions::Times(self.length)
    }

    fn with_operands(&self, kept: &[bool]) -> Op {
        let (invariants, rest) = kept.split_at(self.invariant_count);
        let (invariant_count, carry_count) = (count(invariants), count(&rest[..self.carry_count]));
        Scan { invariant_count, carry_count, ..self.clone() }.into()
    }
}

impl RegionOp for While {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_inputs(&self.condition, operands)?;
        expect_inputs(&self.body, operands)?;
        let Some(carry_count) = operands.len().checked_sub(self.invariant_count) else {
            return Err(TypeError::Attribute(format!(
                "there are {} invariants, but only {} operands",
                self.invariant_count,
                operands.len()
            )));
        };
        let types: Vec<&TensorType> = self.condition.output_types().collect();
        refuse_if!(types != [&TensorType::scalar(DType::Pred)], "the condition must return a pred[], found {types:?}");
        refuse_if!(
            self.body.outputs().len() != carry_count,
            "the body returns {} values for {carry_count} carries",
            self.body.outputs().len()
        );
        expect_stable_carries(&self.body, self.invariant_count, carry_count)?;
        Ok(self.body.output_types().cloned().collect())
    }

    bodies!(condition, body);

    fn edges(&self) -> Vec<Edge> {
        let mut edges = loop_edges(self.invariant_count, self.body.outputs().len(), 0..2);
        let goes_on = smallvec![Port { region: 0, index: 0 }];
        edges.push(Edge { outputs: goes_on, ..Edge::new(Source::Inside, Target::Control) });
        edges
    }

    fn executions(&self, _region: usize) -> Executions {
        if self.at_most == 0 { Executions::Unknown } else { Executions::AtMost(self.at_most) }
    }

    fn runs(&self, region: usize, executions: u64) -> Option<u64> {
        let of_body = self.often.runs_of(0, executions)?;
        // The condition is asked once more.
        Some(if region == 0 { of_body + executions } else { of_body })
    }

    fn with_operands(&self, kept: &[bool]) -> Op {
        While { invariant_count: count(&kept[..self.invariant_count]), ..self.clone() }.into()
    }
}

impl RegionOp for Cond {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let (Some((selector, operands)), Some((first, rest))) = (operands.split_first(), self.branches.split_first())
        else {
            let message = format!("it needs a selector and branches, found {} branches", self.branches.len());
            return Err(TypeError::Attribute(message));
        };
        expect_dims(0, selector, &[])?;
        match selector.dtype {
            DType::S32 => {}
            DType::Pred if self.branches.len() == 2 => {}
            DType::Pred => {
                let message = format!("a pred chooses between two branches, found {}", self.branches.len());
                return Err(TypeError::Attribute(message));
            }
            found => return Err(TypeError::DType { operand: 0, expected: "pred or s32".to_owned(), found }),
        }
        for (index, branch) in self.branches.iter().enumerate() {
            let fits = expect_inputs(branch, operands);
            fits.map_err(|error| {
                TypeError::Attribute(format!("branch {index}, operands after the selector: {error}"))
            })?;
        }
        for (index, branch) in rest.iter().enumerate() {
            if !branch.output_types().eq(first.output_types()) {
                return Err(TypeError::Attribute(format!(
                    "all branches must return the same types; branch 0 returns {:?}, branch {} {:?}",
                    first.output_types().collect::<Vec<_>>(),
                    index + 1,
                    branch.output_types().collect::<Vec<_>>()
                )));
            }
        }
        Ok(first.output_types().cloned().collect())
    }

    fn bodies(&self) -> Bodies<'_> {
        self.branches.iter().collect()
    }

    fn with_bodies(&self, f: &mut dyn FnMut(&Arc<Graph>) -> Arc<Graph>) -> Op {
        Cond { branches: self.branches.iter().map(f).collect(), ..self.clone() }.into()
    }

    fn edges(&self) -> Vec<Edge> {
        let Some(first) = self.branches.first() else { return Vec::new() };
        let branches = || 0..self.branches.len();
        let mut edges = vec![Edge::new(Source::Operand(0), Target::Control)];
        edges.extend((0..first.inputs().len()).map(|index| Edge::argument(index + 1, index, branches())));
        edges.extend((0..first.outputs().len()).map(|index| Edge::result_of(index, branches())));
        edges
    }

    fn executions(&self, _region: usize) -> Executions {
        Executions::AtMostOnce
    }

    fn runs(&self, region: usize, executions: u64) -> Option<u64> {
        self.often.runs_of(region, executions)
    }

    fn with_operands(&self, _kept: &[bool]) -> Op {
        self.clone().into()
    }
}

impl Cond {
    /// Creates a choice of one of these branches.
    pub fn of(branches: Vec<Arc<Graph>>) -> Cond {
        Cond { branches, often: Often::default() }
    }

    /// The branch that a selector's value chooses. An index out of range chooses the last, as in XLA.
    pub fn chosen(&self, selector: i32) -> usize {
        usize::try_from(selector).unwrap_or(usize::MAX).min(self.branches.len().saturating_sub(1))
    }
}

impl RegionOp for Call {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_inputs(&self.function, operands)?;
        Ok(self.function.output_types().cloned().collect())
    }

    bodies!(function; all operands alike);

    fn edges(&self) -> Vec<Edge> {
        plain_edges(&self.function)
    }

    fn executions(&self, _region: usize) -> Executions {
        Executions::Once
    }
}

impl RegionOp for Checkpoint {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_inputs(&self.body, operands)?;
        Ok(self.body.output_types().cloned().collect())
    }

    bodies!(body; all operands alike);

    fn edges(&self) -> Vec<Edge> {
        plain_edges(&self.body)
    }

    fn executions(&self, _region: usize) -> Executions {
        Executions::Once
    }
}

impl RegionOp for CustomVjp {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_inputs(&self.primal, operands)?;
        expect_inputs(&self.forward, operands)?;
        let (primal, forward, backward) = (&self.primal, &self.forward, &self.backward);
        let mut forward_types = forward.output_types();
        let outputs: ResultTypes = primal.output_types().cloned().collect();
        for (index, expected) in outputs.iter().enumerate() {
            let found = forward_types.next();
            refuse_if!(
                found != Some(expected),
                "output {index} of the forward rule must be {expected} as in the function itself, found {}",
                found.map_or("nothing".to_owned(), ToString::to_string)
            );
        }
        let cotangents = primal.output_types().filter(|ty| ty.dtype.is_float());
        let expected_inputs: Vec<&TensorType> = forward_types.chain(cotangents).collect();
        refuse_if!(
            !backward.input_types().eq(expected_inputs.iter().copied()),
            "the backward rule must take the residuals and the cotangents {expected_inputs:?}, found {:?}",
            backward.input_types().collect::<Vec<_>>()
        );
        let expected_outputs: Vec<&TensorType> = operands.iter().copied().filter(|ty| ty.dtype.is_float()).collect();
        refuse_if!(
            !backward.output_types().eq(expected_outputs.iter().copied()),
            "the backward rule must return one cotangent for each floating-point argument, {expected_outputs:?}, \
                 found {:?}",
            backward.output_types().collect::<Vec<_>>()
        );
        Ok(outputs)
    }

    bodies!(primal, forward, backward; all operands alike);

    fn edges(&self) -> Vec<Edge> {
        const PRIMAL: usize = 0;
        const FORWARD: usize = 1;
        const BACKWARD: usize = 2;
        let (operands, results) = (self.primal.inputs().len(), self.primal.outputs().len());
        let residuals = self.forward.outputs().len() - results;
        let differentiable = |values: &[Value]| {
            let is_float = |&index: &usize| self.primal.ty(values[index]).dtype.is_float();
            (0..values.len()).filter(is_float).collect::<Vec<usize>>()
        };
        let mut edges: Vec<Edge> = Vec::new();
        edges.extend((0..operands).map(|index| Edge::argument(index, index, PRIMAL..BACKWARD)));
        edges.extend((0..results).map(|index| Edge::result_of(index, PRIMAL..BACKWARD)));
        edges.extend((0..residuals).map(|index| Edge {
            inputs: smallvec![Port { region: BACKWARD, index }],
            outputs: smallvec![Port { region: FORWARD, index: results + index }],
            ..Edge::new(Source::Inside, Target::Inside)
        }));
        let cotangents = differentiable(self.primal.outputs()).into_iter().enumerate();
        edges.extend(cotangents.map(|(index, result)| Edge {
            inputs: smallvec![Port { region: BACKWARD, index: residuals + index }],
            ..Edge::new(Source::Cotangent(result), Target::Inside)
        }));
        let cotangents = differentiable(self.primal.inputs()).into_iter().enumerate();
        edges.extend(cotangents.map(|(index, operand)| Edge {
            outputs: smallvec![Port { region: BACKWARD, index }],
            ..Edge::new(Source::Inside, Target::Cotangent(operand))
        }));
        edges
    }

    fn executions(&self, region: usize) -> Executions {
        if region == 0 { Executions::Once } else { Executions::InDerivative }
    }
}

import!(Call: "call" => |context| Some(Call { function: context.body(0)? }));

impl Import for While {
    const OPCODES: &'static [&'static str] = &["while"];

    /// A value that the body returns as it is, is the same in every iteration.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        // The body is called first, then the condition.
        let (Some(body), Some(condition)) = (context.body(0), context.body(1)) else { return Ok(None) };
        let iterations = context.iterations();
        let operands = Values::from_slice(context.operands());
        let counts = [body.inputs().len(), body.outputs().len(), condition.inputs().len()];
        if counts != [operands.len(); 3] {
            return Ok(None);
        }
        let is_invariant = |&index: &usize| body.outputs()[index] == body.inputs()[index];
        let (invariants, carries): (Vec<usize>, Vec<usize>) = (0..operands.len()).partition(is_invariant);
        let order: Vec<usize> = invariants.iter().chain(&carries).copied().collect();
        let reordered = |graph: &Graph, outputs: Vec<Value>| {
            let mut copy = GraphCopy::of_body(graph, order.iter().map(|&index| graph.inputs()[index]));
            copy.all_nodes();
            Arc::new(copy.finish_body(outputs))
        };
        let op = While {
            condition: reordered(&condition, condition.outputs().to_vec()),
            body: reordered(&body, carries.iter().map(|&index| body.outputs()[index]).collect()),
            invariant_count: invariants.len(),
            at_most: iterations.unwrap_or(0),
            often: iterations.map(|count| Often::new([count], 1)).unwrap_or_default(),
        };
        let reordered: Values = order.iter().map(|&index| operands[index]).collect();
        let results = context.builder().push(op, &reordered)?;
        let mut all = operands;
        carries.into_iter().zip(results).for_each(|(index, result)| all[index] = result);
        Ok(Some(all))
    }
}

import!(Scan, Checkpoint, CustomVjp: in_parts);

impl Import for Cond {
    const OPCODES: &'static [&'static str] = &["conditional"];

    /// Each branch has operands of its own. Where they differ, every branch gets all of them and reads some.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let count = context.instruction().called_computation_ids.len();
        let Some(bodies) = (0..count).map(|index| context.body(index)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let operands = Values::from_slice(context.operands());
        let Some((&selector, arguments)) = operands.split_first() else { return Ok(None) };
        let mut own = Vec::new();
        let mut rest = arguments;
        for body in &bodies {
            let Some((these, others)) = rest.split_at_checked(body.inputs().len()) else { return Ok(None) };
            own.push(these);
            rest = others;
        }
        let builder = context.builder();
        let is_shared = own.windows(2).all(|pair| pair[0] == pair[1]);
        let (mut branches, arguments) = match (is_shared, own.first()) {
            (true, Some(&arguments)) => (bodies, arguments),
            _ => {
                let types: Vec<TensorType> = arguments.iter().map(|&value| builder.ty(value).clone()).collect();
                let mut first = 0;
                let branch = |body: Arc<Graph>| {
                    let these = first..first + body.inputs().len();
                    first = these.end;
                    reading_some(body, &types, these)
                };
                (bodies.into_iter().map(branch).collect::<Result<_, OpError>>()?, arguments)
            }
        };
        if builder.ty(selector).dtype == DType::Pred {
            // The branch of `true` comes first.
            branches.reverse();
        }
        let operands: Values = std::iter::once(selector).chain(arguments.iter().copied()).collect();
        builder.push(Cond { branches, often: Often::default() }, &operands).map(Some)
    }
}

/// A graph that calls another with some of its inputs.
fn reading_some(body: Arc<Graph>, types: &[TensorType], these: std::ops::Range<usize>) -> Result<Arc<Graph>, OpError> {
    let mut builder = GraphBuilder::new(body.name());
    let inputs: Vec<Value> = types.iter().map(|ty| builder.input(ty.clone(), PortInfo::default())).collect();
    let results = builder.push(Call { function: body }, &inputs[these])?;
    let info = vec![PortInfo::default(); results.len()];
    Ok(Arc::new(builder.finish(results.to_vec(), info)))
}
