//! Loops, branches, checkpoints and hand-written gradients.

use std::panic::Location;
use std::sync::Arc;

use super::context::{self, Body, CallSite, apply, apply_many, trace_body, unreachable_body};
use super::error::{TraceError, TraceErrorKind, called};
use super::handle::Tensor;
use super::tensor::arange;
use super::tree::{TensorTree, next_leaf, refill};
use crate::ir::{DType, Name, PortInfo, TensorType};
use crate::ops::{Checkpoint, Cond, CustomVjp, Often, RematPolicy, Scan, Splat, While, WithAxes};

/// How a scan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Number of iterations; needed only when nothing is stacked.
    pub length: Option<usize>,
    /// Runs from the last slice to the first.
    pub reverse: bool,
    /// Nothing is carried, and devices may run the iterations side by side: each those of its part of the leading
    /// dimension. See [`map_parallel`].
    pub parallel: bool,
    /// How many iterations one round of the emitted loop runs: at least 1, the default. It need not divide the length;
    /// from the length on, no loop is left. Loops of the backward pass inherit it.
    pub unroll: usize,
}

impl Default for ScanOptions {
    fn default() -> ScanOptions {
        ScanOptions { length: None, reverse: false, parallel: false, unroll: 1 }
    }
}

pub(super) fn ports(tensors: &[Tensor], place: CallSite) -> Vec<(TensorType, PortInfo)> {
    tensors.iter().map(|&tensor| context::port_of(tensor, place)).collect()
}

/// Traces a closure as [`trace_body`] does, from the tensors of its inputs to a tree. The tree that it returned comes
/// back even if there is no body: it says how to put the results together.
pub(super) fn trace_tree<O: TensorTree>(
    name: &str,
    inputs: Vec<(TensorType, PortInfo)>,
    closed: Option<&'static str>,
    place: CallSite,
    f: impl FnOnce(&mut dyn Iterator<Item = Tensor>) -> O,
) -> (Result<Body, TraceError>, O) {
    let mut shape = None;
    let traced = trace_body(
        name,
        inputs,
        closed,
        place,
        Box::new(|tensors| shape.insert(f(&mut tensors.iter().copied())).leaves()),
    );
    let Some(shape) = shape else { unreachable_body() };
    (traced, shape)
}

pub(super) fn describe(types: &[TensorType]) -> String {
    let types: Vec<String> = types.iter().map(ToString::to_string).collect();
    format!("({})", types.join(", "))
}

pub(super) fn types_of(tensors: &[Tensor], place: CallSite) -> Vec<TensorType> {
    tensors.iter().map(|&tensor| context::type_of(tensor, place)).collect()
}

/// Runs `body` over the leading dimension of `stacked`, carrying a value: `(carry, slice) -> (carry, output)`. Returns
/// the last carry and the outputs, stacked. The body is traced once; it may use outer tensors, which every iteration
/// sees unchanged.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, scan};
/// # use meshloom::ir::DType::F32;
/// // A running product of matrices: the layer stack of every decoder has this form.
/// let specs = (TensorSpec::new(F32, [4]), TensorSpec::new(F32, [12, 4, 4]));
/// let function =
///     Function::trace("layers", specs, |(x, weights)| scan(x, weights, |x, w| (x.matmul(w).tanh(), ())).0)?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn scan<C: TensorTree, X: TensorTree, Y: TensorTree>(
    carry: C,
    stacked: X,
    body: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    scan_with(ScanOptions::default(), carry, stacked, body)
}

/// [`scan`] with options.
#[track_caller]
pub fn scan_with<C: TensorTree, X: TensorTree, Y: TensorTree>(
    options: ScanOptions,
    carry: C,
    stacked: X,
    body: impl FnOnce(C, X) -> (C, Y),
) -> (C, Y) {
    let place = Location::caller();
    let (carries, slices) = (carry.leaves(), stacked.leaves());
    let (inputs, length) = scan_inputs(options, &carries, (&slices, stacked.paths()), place);
    let (traced, shape) = trace_tree("scan", inputs, None, place, |tensors| {
        let (next, output) = body(refill(&carry, tensors), refill(&stacked, tensors));
        expect_carries("scan", &carries, &next.leaves(), place);
        (next, output)
    });
    let results = scan_results(ScanOptions { length: Some(length), ..options }, traced, &carries, &slices, place);
    refill(&shape, &mut results.into_iter())
}

/// The inputs of a scan's body, and the number of iterations.
fn scan_inputs(
    options: ScanOptions,
    carries: &[Tensor],
    (slices, paths): (&[Tensor], Vec<String>),
    place: CallSite,
) -> (Vec<(TensorType, PortInfo)>, usize) {
    let mut length = options.length;
    let mut inputs = ports(carries, place);
    let mut problem = None;
    for (tensor, path) in slices.iter().zip(paths) {
        let (mut ty, info) = context::port_of(*tensor, place);
        let leading = (ty.rank() > 0).then(|| ty.dims.remove(0));
        let expected_length = *length.get_or_insert(leading.unwrap_or(0));
        if leading != Some(expected_length) {
            let expected = match leading {
                Some(_) => format!("a leading dimension of {expected_length}"),
                None => "a leading dimension to run over".to_owned(),
            };
            let what = format!("{} of a scan", called("stacked input", &path));
            problem =
                Some(TraceErrorKind::Mismatch { what, expected, found: context::type_of(*tensor, place).to_string() });
        }
        inputs.push((ty, info));
    }
    if let (Some(problem), true) = (problem, are_healthy(slices)) {
        context::fail(problem, place);
    }
    if length.is_none() {
        let message = "a scan that stacks nothing needs `ScanOptions::length`".to_owned();
        context::fail(TraceErrorKind::Other(message), place);
    }
    (inputs, length.unwrap_or(0))
}

fn scan_results(
    options: ScanOptions,
    traced: Result<Body, TraceError>,
    carries: &[Tensor],
    slices: &[Tensor],
    place: CallSite,
) -> Vec<Tensor> {
    finish(traced, |traced| {
        let invariant_count = traced.captured.len();
        let (body, captured) = traced.captures_first();
        let count = body.outputs().len();
        let op = Scan {
            body: Arc::new(body),
            length: options.length.unwrap_or(0),
            invariant_count,
            carry_count: carries.len(),
            reverse: options.reverse,
            parallel: options.parallel,
            unroll: options.unroll,
        };
        let operands = [&captured[..], carries, slices].concat();
        apply_many(op.into(), &operands, count, place).to_vec()
    })
}

/// Applies `f` to every slice of the leading dimension of `stacked`, one after the other, and stacks what it returns.
#[track_caller]
pub fn map<X: TensorTree, Y: TensorTree>(stacked: X, f: impl FnOnce(X) -> Y) -> Y {
    scan((), stacked, |(), slice| ((), f(slice))).1
}

/// As [`map`], by devices side by side: where the leading dimension is split over mesh axes, each device applies `f` to
/// its own slices. In `f`, [`cond`], [`switch`] and [`while_loop`] decide for each slice, so devices branch by their
/// place along these axes; a [vmap](super::vmap) would run all branches and select.
///
/// Nothing in `f` may be split over these axes. The partitioner refuses an exchange over them, and a
/// collective-permute in a branch, in which all devices of a CPU plugin would have to take part.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, cond, map_parallel};
/// # use meshloom::ir::DType::{F32, Pred};
/// // Devices whose slice is idle skip the product.
/// let specs = (TensorSpec::new(Pred, [4]), TensorSpec::new(F32, [4, 8, 8]));
/// let function = Function::trace("squares", specs, |inputs| {
///     map_parallel(inputs, |(works, x)| cond(works, x, |x| x.matmul(x), |x| x))
/// })?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn map_parallel<X: TensorTree, Y: TensorTree>(stacked: X, f: impl FnOnce(X) -> Y) -> Y {
    let options = ScanOptions { parallel: true, ..ScanOptions::default() };
    scan_with(options, (), stacked, |(), slice| ((), f(slice))).1
}

/// Runs `body` on the numbers from 0 to `count`, as `s32` scalars, and a carry: `(number, carry) -> carry`.
#[track_caller]
pub fn fori_loop<C: TensorTree>(count: usize, carry: C, body: impl FnOnce(Tensor, C) -> C) -> C {
    scan(carry, arange(DType::S32, count), |carry, number| (body(number, carry), ())).0
}

/// Runs `body` on a carry for as long as `condition`, which is evaluated before each iteration, holds for it. Both are
/// traced once and may use outer tensors. There is no gradient through the loop in reverse mode: a [`scan`] over the
/// largest number of iterations has one.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, while_loop};
/// # use meshloom::ir::DType::F32;
/// // Newton's method for a square root.
/// let function = Function::trace("root", TensorSpec::new(F32, []), |x| {
///     while_loop(x, |y| (y * y - x).abs().greater(1e-4), |y| (y + x / y) * 0.5)
/// })?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn while_loop<C: TensorTree>(carry: C, condition: impl FnOnce(C) -> Tensor, body: impl FnOnce(C) -> C) -> C {
    while_at_most((0, Often::default()), carry, condition, body)
}

/// Applies `body` to the carry if `predicate`, a `pred[]`, holds; else returns the carry. It is [`cond`] as a loop of
/// one iteration or none: a loop changes the carry where it is, while a conditional copies the results of its branches.
/// XLA may move computation of outer tensors alone in front of the loop, and then run it in any case, so expensive
/// computation in `body` has to depend on the carry. There is no gradient through it in reverse mode.
#[track_caller]
pub(crate) fn change_if<C: TensorTree>(predicate: Tensor, often: Often, carry: C, body: impl FnOnce(C) -> C) -> C {
    let left = predicate.convert(DType::S32);
    let more = |(left, _): (Tensor, C)| left.greater(0.0);
    while_at_most((1, often), (left, carry), more, |(left, carry)| (left - 1.0, body(carry))).1
}

/// As [`while_loop`], with the largest number of iterations, and with what is known of several executions.
#[track_caller]
pub(crate) fn while_at_most<C: TensorTree>(
    runs: (usize, Often),
    carry: C,
    condition: impl FnOnce(C) -> Tensor,
    body: impl FnOnce(C) -> C,
) -> C {
    let place = Location::caller();
    let carries = carry.leaves();
    let (condition, _) =
        trace_tree("condition", ports(&carries, place), None, place, |tensors| condition(refill(&carry, tensors)));
    let (body, shape) = trace_tree("while", ports(&carries, place), None, place, |tensors| {
        let next = body(refill(&carry, tensors));
        expect_carries("while", &carries, &next.leaves(), place);
        next
    });
    let results = while_results(runs, condition, body, &carries, place);
    refill(&shape, &mut results.into_iter())
}

fn while_results(
    (at_most, often): (usize, Often),
    condition: Result<Body, TraceError>,
    body: Result<Body, TraceError>,
    carries: &[Tensor],
    place: CallSite,
) -> Vec<Tensor> {
    finish(condition.and_then(|condition| Ok(vec![condition, body?])), |bodies| {
        let (mut graphs, captured) = Body::share_captures(bodies);
        let (Some(body), Some(condition)) = (graphs.pop(), graphs.pop()) else { unreachable_body() };
        let invariant_count = captured.len();
        let op = While { condition: condition.into(), body: body.into(), invariant_count, at_most, often };
        apply_many(op.into(), &[&captured[..], carries].concat(), carries.len(), place).to_vec()
    })
}

/// Notes an error if a loop's body returns carries of other types than it got.
fn expect_carries(op: &str, carries: &[Tensor], results: &[Tensor], place: CallSite) {
    let (expected, found) = (types_of(carries, place), types_of(results, place));
    if expected != found && are_healthy(results) {
        let what = format!("the carry that a {op}'s body returns");
        let (expected, found) = (describe(&expected), describe(&found));
        context::fail(TraceErrorKind::Mismatch { what, expected, found }, place);
    }
}

/// Whether no tensor stands for an error that has been noted already.
fn are_healthy(tensors: &[Tensor]) -> bool {
    tensors.iter().all(|tensor| tensor.value != context::POISON)
}

/// Returns `then` of the inputs if `predicate`, a `pred[]`, holds; else `otherwise` of them. Only one of the two runs.
/// Both may use outer tensors and must return the same types.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, cond};
/// # use meshloom::ir::DType::F32;
/// let function = Function::trace("safe_log", TensorSpec::new(F32, []), |x| {
///     cond(x.greater(0.0), x, |x| x.log(), |x| x * 0.0)
/// })?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn cond<P: TensorTree, O: TensorTree>(
    predicate: Tensor,
    inputs: P,
    then: impl FnOnce(P) -> O,
    otherwise: impl FnOnce(P) -> O,
) -> O {
    // The branch for `false` comes first in a cond.
    switch_between(predicate, Often::default(), inputs, vec![Box::new(otherwise), Box::new(then)])
}

/// Applies the branch that `index`, an `s32[]` counted from 0, chooses to the inputs; an index out of range, on either
/// side, chooses the last. Only that branch runs. All may use outer tensors and must return the same types.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, switch};
/// # use meshloom::ir::DType::{F32, S32};
/// let specs = (TensorSpec::new(S32, []), TensorSpec::new(F32, [3]));
/// let function = Function::trace("activation", specs, |(index, x)| {
///     switch(index, x, [&|x| x.tanh(), &|x| x.maximum(0.0), &|x| x])
/// })?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn switch<P, O, const N: usize>(index: Tensor, inputs: P, branches: [&dyn Fn(P) -> O; N]) -> O
where
    P: TensorTree,
    O: TensorTree,
{
    const { assert!(N > 0, "a switch needs a branch") };
    switch_between(index, Often::default(), inputs, branches.map(|f| Box::new(f) as Branch<'_, P, O>).into())
}

/// One of several closures to choose from.
pub(crate) type Branch<'a, P, O> = Box<dyn FnOnce(P) -> O + 'a>;

/// As [`switch`], between any number of branches, with how often each of them runs in several executions.
#[track_caller]
pub(crate) fn switch_between<P, O>(selector: Tensor, often: Often, inputs: P, branches: Vec<Branch<'_, P, O>>) -> O
where
    P: TensorTree,
    O: TensorTree,
{
    let place = Location::caller();
    let arguments = inputs.leaves();
    let (mut shape, mut types) = (None, None);
    let mut bodies = Vec::new();
    for (index, f) in branches.into_iter().enumerate() {
        let (body, output) = trace_tree(&format!("branch{index}"), ports(&arguments, place), None, place, |tensors| {
            let output = f(refill(&inputs, tensors));
            expect_branch(index, &mut types, &output.leaves(), place);
            output
        });
        shape.get_or_insert(output);
        bodies.push(body);
    }
    let (Some(shape), Some(types)) = (shape, types) else { unreachable_body() };
    let results = finish(bodies.into_iter().collect(), |bodies: Vec<Body>| {
        let (graphs, captured) = Body::share_captures(bodies);
        let op = Cond { branches: graphs.into_iter().map(Arc::new).collect(), often };
        let operands = [&[selector], &captured[..], &arguments].concat();
        apply_many(op.into(), &operands, types.len(), place).to_vec()
    });
    refill(&shape, &mut results.into_iter())
}

/// Notes an error if a branch returns other types than the first branch, whose types are put into `types`.
fn expect_branch(index: usize, types: &mut Option<Vec<TensorType>>, results: &[Tensor], place: CallSite) {
    let found = types_of(results, place);
    let expected = types.get_or_insert_with(|| found.clone());
    if *expected != found && are_healthy(results) {
        let what = format!("what branch {index} returns, compared with branch 0");
        let (expected, found) = (describe(expected), describe(&found));
        context::fail(TraceErrorKind::Mismatch { what, expected, found }, place);
    }
}

/// Goes on with a traced body, or hands its error to the enclosing trace.
fn finish<B>(traced: Result<B, TraceError>, f: impl FnOnce(B) -> Vec<Tensor>) -> Vec<Tensor> {
    match traced {
        Ok(traced) => f(traced),
        Err(error) => {
            context::fail_error(error);
            Vec::new()
        }
    }
}

/// Runs `f`, whose intermediate values are computed again in the backward pass unless `policy` keeps them. `f` may use
/// outer tensors; only its operands and results are certain to be kept.
#[track_caller]
pub fn checkpoint<P: TensorTree, O: TensorTree>(policy: RematPolicy, inputs: P, f: impl FnOnce(P) -> O) -> O {
    let place = Location::caller();
    if policy == RematPolicy::None {
        return f(inputs);
    }
    let arguments = inputs.leaves();
    let (traced, shape) =
        trace_tree("checkpoint", ports(&arguments, place), None, place, |tensors| f(refill(&inputs, tensors)));
    let results = checkpoint_results(policy, traced, &arguments, place);
    refill(&shape, &mut results.into_iter())
}

fn checkpoint_results(
    policy: RematPolicy,
    traced: Result<Body, TraceError>,
    arguments: &[Tensor],
    place: CallSite,
) -> Vec<Tensor> {
    finish(traced, |traced| {
        let (body, captured) = traced.captures_first();
        let count = body.outputs().len();
        let operands = [&captured[..], arguments].concat();
        apply_many(Checkpoint { body: Arc::new(body), policy }.into(), &operands, count, place).to_vec()
    })
}

/// Runs `function`, whose gradient is given by hand: under differentiation `forward` runs instead and returns the same
/// outputs and residuals; `backward` gets the residuals and the cotangents of the outputs and returns those of the
/// inputs. Cotangents of outputs that are not floating-point are zeros; those returned for inputs that are not
/// floating-point are ignored. The three functions must not use outer tensors.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, custom_vjp};
/// # use meshloom::ir::DType::F32;
/// // Clips the gradient, not the value.
/// let function = Function::trace("clipped", TensorSpec::new(F32, [8]), |x| {
///     custom_vjp(x, |x| x, |x| (x, ()), |(), ct| ct.maximum(-1.0).minimum(1.0))
/// })?;
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn custom_vjp<P: TensorTree, O: TensorTree, R: TensorTree>(
    inputs: P,
    function: impl FnOnce(P) -> O,
    forward: impl FnOnce(P) -> (O, R),
    backward: impl FnOnce(R, O) -> P,
) -> O {
    const NAME: &str = "a custom_vjp";
    let place = Location::caller();
    let arguments = inputs.leaves();
    let (mut output_types, mut residual_types) = (Vec::new(), Vec::new());
    let (primal, outputs) = trace_tree("primal", ports(&arguments, place), Some(NAME), place, |tensors| {
        let output = function(refill(&inputs, tensors));
        output_types = types_of(&output.leaves(), place);
        output
    });
    let (forward, (_, residuals)) = trace_tree("forward", ports(&arguments, place), Some(NAME), place, |tensors| {
        let (output, residual) = forward(refill(&inputs, tensors));
        residual_types = types_of(&residual.leaves(), place);
        (output, residual)
    });
    let cotangent_types = output_types.iter().filter(|ty| ty.dtype.is_float());
    let backward_inputs: Vec<_> =
        residual_types.iter().chain(cotangent_types).map(|ty| (ty.clone(), PortInfo::default())).collect();
    let (backward, _) = trace_tree("backward", backward_inputs, Some(NAME), place, |tensors| {
        let residual = refill(&residuals, tensors);
        let mut cotangents = output_types.iter().map(|ty| match ty.dtype.is_float() {
            true => next_leaf(tensors),
            false => apply(Splat::new(ty.clone(), 0.0), &[], place),
        });
        let gradients = backward(residual, refill(&outputs, &mut cotangents)).leaves();
        let inputs = arguments.iter().zip(gradients);
        inputs.filter(|(argument, _)| argument.dtype().is_float()).map(|(_, gradient)| gradient).collect::<Vec<_>>()
    });
    let results = finish(primal.and_then(|primal| Ok([primal, forward?, backward?])), |bodies| {
        let [primal, forward, backward] = bodies.map(|body| Arc::new(body.captures_first().0));
        apply_many(CustomVjp { primal, forward, backward }.into(), &arguments, output_types.len(), place).to_vec()
    });
    refill(&outputs, &mut results.into_iter())
}

impl Tensor {
    /// As [`Tensor::with_axes`], with other names for the cotangent. Without names the cotangent stays as it comes.
    ///
    /// Where a value is gathered from its shards, its cotangent is a sum that is best scattered back into them at once.
    /// That happens if the cotangent has the names of the shards; with the names of the whole value it would be added
    /// up everywhere first.
    #[track_caller]
    pub fn with_axes_each_way(self, value: &[&'static str], cotangent: &[&'static str]) -> Tensor {
        let place = Location::caller();
        let named = |x: Tensor, names: &[&str]| {
            apply(WithAxes::new(names.iter().map(|name| Name::new(name)).collect()), &[x], place)
        };
        let back = |(), ct| if cotangent.is_empty() { ct } else { named(ct, cotangent) };
        custom_vjp(self, |x| named(x, value), |x| (named(x, value), ()), back)
    }
}
