//! Gradient accumulation: the gradient of a sum over the parts of a batch, one part after the other.
//!
//! The parts are a scan that carries the sum of the gradients so far, at least in `f32`. Each part's gradient lies as
//! the parameters do. Over mesh axes that do not split its parameter, both it and the sum stay partial sums, as each
//! device has them. So nothing crosses such an axis in the loop, however many parts there are: the user of the sum
//! resolves it, once. With the axis `replica` this is partially sharded data parallelism. The literature keeps one
//! gradient buffer for each replica; here that buffer is one sum that is not complete yet
//! ([`Spec::unreduced`](crate::ir::Spec::unreduced)). Over axes that do split the parameter the gradient is reduced and
//! scattered part by part, because such axes exist to avoid a whole gradient on each device.
//!
//! Part `j` of `n` has the rows `j`, `n + j`, `2 n + j`, ..: each device has rows of every part, and none moves.

use std::panic::Location;

use crate::ir::{AxisNames, DType, Origin, Role};
use crate::ops::WithAxes;
use crate::optim::expect_one_for_each;
use crate::trace::{
    CallSite, Param, Tensor, TraceErrorKind, Tree, composite, fail, label_from, origin_of, refill, scan, scope,
    value_and_grad_at, zeros,
};

/// The value of `loss` summed over the parts of a batch, `f32`, and its gradient with respect to `params`.
///
/// `loss` gets the parameters and the rows of a part, and returns a scalar. Every leaf of `batch` has the rows as its
/// leading dimension. `declared` are the declarations of `params`, in the same order. Gradients are `f32`, or `f64` for
/// `f64` parameters: in this type they are added up over parts, and afterwards over devices.
///
/// # Errors
/// In the trace: `parts` is zero, or does not divide the rows; or there is not one declaration for each parameter.
#[track_caller]
pub fn value_and_grad_in_parts<P, B>(
    parts: usize,
    declared: &impl Tree<Leaf = Param>,
    params: P,
    batch: B,
    loss: impl FnOnce(P, B) -> Tensor,
) -> (Tensor, P)
where
    P: Tree<Leaf = Tensor> + Clone,
    B: Tree<Leaf = Tensor> + Clone,
{
    let place = Location::caller();
    expect_declared("value_and_grad_in_parts", declared, &params, place);
    let names: Vec<AxisNames> = declared.leaves().into_iter().map(|param| param.spec.axes).collect();
    let origins = |gradients: &P| gradients.leaves().into_iter().map(|leaf| origin_of(leaf, place)).collect::<Vec<_>>();
    // The optimizer's demands on the sum must not reach into the loop: each device keeps what it has added up and sends
    // no part of it. The op that resolves the sum later has the origin of the op that made the gradient.
    let partial = |sums: &P, origins: &[Option<Origin>]| {
        let label = |((sum, names), origin): ((Tensor, &AxisNames), &Option<Origin>)| {
            let at_rest = WithAxes { role: Role::Params, ..WithAxes::new(names.clone()) };
            label_from(*origin, sum, WithAxes { keeps_partial: true, ..at_rest }, place)
        };
        refill(sums, &mut sums.leaves().into_iter().zip(&names).zip(origins).map(label))
    };
    if parts == 0 {
        fail(TraceErrorKind::Other("a batch needs at least one part".to_owned()), place);
    }
    if parts <= 1 {
        let (value, gradients) = value_and_grad_at(params, |params| loss(params, batch), place);
        let made_at = origins(&gradients);
        let wide = refill(&gradients, &mut gradients.leaves().into_iter().map(widened));
        return (value, partial(&wide, &made_at));
    }
    let rows: Vec<Tensor> = batch.leaves().into_iter().map(|leaf| in_parts(leaf, parts, place)).collect();
    let stacked = refill(&batch, &mut rows.into_iter());
    let nothing =
        refill(&params, &mut params.leaves().iter().map(|param| zeros(param.dtype().at_least_f32(), param.dims())));
    let start = (zeros(DType::F32, []), nothing);
    let mut made_at = Vec::new();
    let ((value, sums), ()) = scope("microbatches", || {
        scan(start, stacked, |(total, sums), part| {
            let (value, gradients) = value_and_grad_at(params.clone(), |params| loss(params, part), place);
            made_at = origins(&gradients);
            let gradients = partial(&gradients, &made_at);
            let add = |(sum, gradient): (Tensor, Tensor)| sum + widened(gradient);
            let sums = refill(&sums, &mut sums.leaves().into_iter().zip(gradients.leaves()).map(add));
            ((total + value.convert(DType::F32), sums), ())
        })
    });
    (value, partial(&sums, &made_at))
}

/// A gradient in the type in which it is added up.
fn widened(gradient: Tensor) -> Tensor {
    gradient.convert(gradient.dtype().at_least_f32())
}

/// Notes an error unless there are as many declarations as values.
fn expect_declared(
    function: &str,
    declared: &impl Tree<Leaf = Param>,
    values: &impl Tree<Leaf = Tensor>,
    place: CallSite,
) {
    expect_one_for_each(function, values.leaves().len(), &[("declared parameters", declared.leaves().len())], place);
}

/// Rows `[n * parts, ..]` as parts `[parts, n, ..]`.
fn in_parts(rows: Tensor, parts: usize, place: CallSite) -> Tensor {
    let dims = rows.dims();
    let Some((&count, other)) = dims.split_first().filter(|&(&count, _)| count.is_multiple_of(parts)) else {
        let kind = TraceErrorKind::Mismatch {
            what: "the rows of a batch in parts".to_owned(),
            expected: format!("a leading dimension that is a multiple of {parts}"),
            found: rows.ty().to_string(),
        };
        return fail(kind, place);
    };
    let apart = rows.reshape([&[count / parts, parts], other].concat());
    let order: Vec<i32> = [1, 0].into_iter().chain(2..2 + other.len() as i32).collect();
    apart.transpose(&order[..])
}

/// Labels values so that they lie as their parameters, or the optimizer's state of them, do by the rules of a role. A
/// gradient that is a partial sum is thereby resolved: it is reduced and scattered where its dimensions are split
/// further, else added up on all devices. There must be one declaration for each value; else the trace notes an error.
#[track_caller]
pub fn in_role<P: Tree<Leaf = Tensor>>(declared: &impl Tree<Leaf = Param>, values: &P, role: Role) -> P {
    let place = Location::caller();
    expect_declared("in_role", declared, values, place);
    let in_role =
        |(value, param): (Tensor, Param)| value.with_logical_axes(WithAxes { role, ..WithAxes::new(param.spec.axes) });
    composite(place, || refill(values, &mut values.leaves().into_iter().zip(declared.leaves()).map(in_role)))
}
