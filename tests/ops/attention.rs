//! Attention and its gradient, against plain loops.

use meshloom::ir::DType::{self, *};
use meshloom::ops::*;

use crate::harness::*;

const PLAIN: AttentionForm = AttentionForm {
    scale: Number::new(0.5),
    softcap: None,
    causal: true,
    window: None,
    order: PlaceOrder::Index,
    exchange: KeyExchange::Gather,
    dropout: None,
};

/// Forms, each with as many segments as rows are cut into.
fn forms() -> [(AttentionForm, usize); 9] {
    [
        (PLAIN, 1),
        (PLAIN, 2),
        (AttentionForm { window: Some(2), ..PLAIN }, 1),
        (AttentionForm { causal: false, order: PlaceOrder::Any, ..PLAIN }, 2),
        (AttentionForm { softcap: Some(Number::new(0.7)), ..PLAIN }, 1),
        (AttentionForm { window: Some(3), order: PlaceOrder::Any, ..PLAIN }, 2),
        (AttentionForm { exchange: KeyExchange::Ring, ..PLAIN }, 2),
        (AttentionForm { dropout: Some(Number::new(0.4)), ..PLAIN }, 2),
        (AttentionForm { dropout: Some(Number::new(0.2)), exchange: KeyExchange::Ring, ..PLAIN }, 1),
    ]
}

/// Batch, heads, groups, queries, keys, width and width of values.
struct Sizes {
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
}

fn square(batch: usize, heads: usize, groups: usize, length: usize) -> Sizes {
    Sizes { batch, heads, groups, queries: length, keys: length, width: 3, value_width: 2 }
}

/// The operands. Places of any order begin at the end, so that every query sees its own.
fn operands(dtype: DType, sizes: &Sizes, form: AttentionForm, segments: usize) -> Vec<Tensor> {
    let &Sizes { batch, heads, groups, queries, keys, width, value_width } = sizes;
    let number = |dims: &[usize], seed: f64| random(dtype, dims, -2.0 - seed / 100.0, 2.0);
    let segment = |length: usize| {
        let each = length.div_ceil(segments);
        Tensor::from_fn(S32, &[batch, length], |index| (index[1] / each) as f64)
    };
    let place = |length: usize| {
        Tensor::from_fn(S32, &[batch, length], |index| match form.order {
            PlaceOrder::Index => index[1] as f64,
            PlaceOrder::Any => (length - 1 - index[1]) as f64,
        })
    };
    let mut operands = vec![
        number(&[batch, heads, groups, queries, width], 0.0),
        number(&[batch, heads, keys, width], 1.0),
        number(&[batch, heads, keys, value_width], 2.0),
        segment(queries),
        segment(keys),
        place(queries),
        place(keys),
    ];
    if form.dropout.is_some() {
        let of_head = |index: &[usize]| (index[0] * heads + index[1]) * groups + index[2];
        operands.push(Tensor::from_fn(U32, &[batch, heads, groups], |index| {
            f64::from(0x9E37_79B9_u32.wrapping_mul(of_head(index) as u32 + 1))
        }));
    }
    operands
}

/// A key as a query sees it.
struct Seen {
    number: usize,
    weight: f64,
    /// The derivative of the score by the product of query and key.
    slope: f64,
    /// The factor of the value besides the weight: 0 if it drops.
    kept: f64,
}

/// A query of a head with the keys that it sees.
struct Query {
    /// Each key that it sees.
    seen: Vec<Seen>,
    log_total: f64,
}

fn query(form: AttentionForm, operands: &[Tensor], at: &[usize]) -> Query {
    let &[b, h, _, t] = at else { panic!("a query has four indices") };
    let (keys, width) = (operands[1].dims()[2], operands[1].dims()[3]);
    let at_row = |operand: usize, position: usize| operands[operand].at(&[b, position]);
    let is_seen = |s: &usize| {
        let distance = at_row(5, t) - at_row(6, *s);
        at_row(3, t) == at_row(4, *s)
            && (!form.causal || distance >= 0.0)
            && form.window.is_none_or(|window| distance < window as f64)
    };
    let score = |s: usize| {
        let product: f64 =
            (0..width).map(|d| operands[0].at(&[at, &[d]].concat()) * operands[1].at(&[b, h, s, d])).sum();
        let scaled = product * form.scale.get();
        let (score, slope) = match form.softcap {
            None => (scaled, 1.0),
            Some(cap) => {
                let part = (scaled / cap.get()).tanh();
                (cap.get() * part, 1.0 - part * part)
            }
        };
        let kept = form.dropout.map_or(1.0, |rate| {
            let seed = operands.last().expect("the seeds").at(&at[..3]) as u32;
            let [draw, _] = Threefry::evaluate([seed, 0], [at_row(5, t) as u32, at_row(6, s) as u32]);
            let is_kept = f64::from(draw) >= (rate.get() * 4_294_967_296.0).floor();
            f64::from(u8::from(is_kept)) / (1.0 - rate.get())
        });
        Seen { number: s, weight: score, slope, kept }
    };
    let mut seen: Vec<_> = (0..keys).filter(is_seen).map(score).collect();
    let log_total = seen.iter().map(|key| key.weight.exp()).sum::<f64>().ln();
    seen.iter_mut().for_each(|key| key.weight = (key.weight - log_total).exp());
    Query { seen, log_total }
}

fn expected(form: AttentionForm, operands: &[Tensor]) -> [Tensor; 2] {
    let dtype = operands[0].ty.dtype;
    let value = &operands[2];
    let of_queries = &operands[0].dims()[..4];
    let mixed = Tensor::from_fn(dtype, &[of_queries, &value.dims()[3..]].concat(), |index| {
        let query = query(form, operands, &index[..4]);
        let part = |key: &Seen| key.weight * key.kept * value.at(&[index[0], index[1], key.number, index[4]]);
        query.seen.iter().map(part).sum()
    });
    let log_total = Tensor::from_fn(dtype.at_least_f32(), of_queries, |index| query(form, operands, index).log_total);
    [mixed, log_total]
}

/// The operands of the gradient: those of the attention, and what flows back.
fn with_cotangent(form: AttentionForm, mut operands: Vec<Tensor>) -> Vec<Tensor> {
    let [mixed, log_total] = expected(form, &operands);
    let ct = random(mixed.ty.dtype, mixed.dims(), -1.0, 1.0);
    let flow = Tensor::from_fn(log_total.ty.dtype, log_total.dims(), |index| {
        let width = mixed.dims()[4];
        (0..width).map(|d| [&index[..], &[d]].concat()).map(|at| mixed.at(&at) * ct.at(&at)).sum()
    });
    operands.splice(7..7, [log_total, flow, ct]);
    operands
}

fn expected_gradient(form: AttentionForm, operands: &[Tensor]) -> [Tensor; 3] {
    let (flow, ct) = (&operands[8], &operands[9]);
    let mut sums: [Vec<f64>; 3] = [0, 1, 2].map(|operand| vec![0.0; operands[operand].values.len()]);
    let position = |operand: usize, index: &[usize]| {
        index.iter().zip(operands[operand].dims()).fold(0, |position, (&i, &size)| position * size + i)
    };
    for at in indices(&operands[0].dims()[..4]) {
        for Seen { number, weight, slope, kept } in query(form, operands, &at).seen {
            let key = [at[0], at[1], number];
            let widths = 0..operands[2].dims()[3];
            let weight_ct: f64 = widths
                .clone()
                .map(|d| ct.at(&[&at[..], &[d]].concat()) * operands[2].at(&[&key[..], &[d]].concat()))
                .sum();
            let score_ct = weight * (kept * weight_ct - flow.at(&at)) * slope * form.scale.get();
            for d in 0..operands[0].dims()[4] {
                let (own, other) = ([&at[..], &[d]].concat(), [&key[..], &[d]].concat());
                sums[0][position(0, &own)] += score_ct * operands[1].at(&other);
                sums[1][position(1, &other)] += score_ct * operands[0].at(&own);
            }
            for d in widths {
                let (own, other) = ([&at[..], &[d]].concat(), [&key[..], &[d]].concat());
                sums[2][position(2, &other)] += weight * kept * ct.at(&own);
            }
        }
    }
    [0, 1, 2].map(|operand| Tensor::new(operands[operand].ty.dtype, operands[operand].dims(), &sums[operand]))
}

pub fn attention() -> Entry {
    let any = AttentionForm { order: PlaceOrder::Any, ..PLAIN };
    let places = "s32[2,7] s32[2,7] s32[2,7] s32[2,7]";
    let accepted = format!("bf16[2,3,4,7,5] bf16[2,3,7,5] bf16[2,3,7,6] {places}");
    let mut entry = Entry::new("attention")
        .accept(Attention(PLAIN), &format!("{accepted} -> bf16[2,3,4,7,6] f32[2,3,4,7]"))
        .accept(
            Attention(any),
            "f64[3,4,8,5] f64[3,7,5] f64[3,7,6] s32[8] s32[7] s32[8] s32[7] -> f64[3,4,8,6] f64[3,4,8]",
        )
        .reject(Attention(PLAIN), "f32[1,1,7,5] f32[1,7,5]", "expected 7 operands, found 2")
        .reject(
            Attention(PLAIN),
            &format!("bf16[2,3,4,7,5] f32[2,3,7,5] bf16[2,3,7,6] {places}"),
            "the element type of operand 1 must be bf16",
        )
        .reject(
            Attention(PLAIN),
            &format!("f32[7,5] f32[7,5] f32[7,6] {places}"),
            "at least the 4 dimensions heads, groups, queries and width",
        )
        .reject(
            Attention(PLAIN),
            &format!("bf16[2,3,4,7,5] bf16[2,3,7,4] bf16[2,3,7,6] {places}"),
            "dimension 3 of operand 1 must have size 5, found 4",
        )
        .reject(
            Attention(PLAIN),
            "f64[3,4,8,5] f64[3,7,5] f64[3,7,6] s32[8] s32[7] s32[8] s32[7]",
            "8 queries and 7 keys cannot stand at the places that their index says",
        )
        .reject(Attention(AttentionForm { window: Some(0), ..PLAIN }), &accepted, "a window of 0 shows no key")
        .accept(
            Attention(AttentionForm { dropout: Some(Number::new(0.5)), ..PLAIN }),
            &format!("{accepted} u32[2,3,4] -> bf16[2,3,4,7,6] f32[2,3,4,7]"),
        )
        .reject(
            Attention(AttentionForm { dropout: Some(Number::new(0.5)), ..PLAIN }),
            &accepted,
            "expected 8 operands, found 7",
        )
        .reject(
            Attention(AttentionForm { dropout: Some(Number::new(1.0)), ..PLAIN }),
            &format!("{accepted} u32[2,3,4]"),
            "weights cannot drop with probability 1",
        );
    for (form, segments) in forms() {
        for sizes in [square(1, 1, 1, 1), square(2, 2, 3, 6)] {
            let operands = operands(F32, &sizes, form, segments);
            entry = entry.run(Attention(form), &operands, expected(form, &operands), 1e-5);
        }
        let small = operands(F64, &square(1, 1, 2, 3), form, segments);
        entry = entry.gradient(Attention(form), &small);
    }
    let longer = Sizes { queries: 4, keys: 6, ..square(2, 1, 2, 0) };
    let others = operands(F32, &longer, any, 1);
    let low = operands(BF16, &square(1, 2, 2, 4), PLAIN, 1);
    let unbatched = operands(F64, &square(1, 2, 1, 3), PLAIN, 1);
    entry
        .run(Attention(any), &others, expected(any, &others), 1e-5)
        .run(Attention(PLAIN), &low, expected(PLAIN, &low), 2e-2)
        .run(Attention(PLAIN), &unbatched, expected(PLAIN, &unbatched), 1e-12)
}

pub fn gradient() -> Entry {
    let places = "s32[2,7] s32[2,7] s32[2,7] s32[2,7]";
    let operands_of = "bf16[2,3,4,7,5] bf16[2,3,7,5] bf16[2,3,7,6]";
    let mut entry = Entry::new("attention_gradient")
        .accept(
            AttentionGradient(PLAIN),
            &format!("{operands_of} {places} f32[2,3,4,7] f32[2,3,4,7] bf16[2,3,4,7,6] -> {operands_of}"),
        )
        .reject(AttentionGradient(PLAIN), &format!("{operands_of} {places}"), "expected 10 operands, found 7")
        .reject(
            AttentionGradient(PLAIN),
            &format!("{operands_of} {places} f32[2,3,4,7] bf16[2,3,4,7] bf16[2,3,4,7,6]"),
            "the element type of operand 8 must be f32",
        )
        .reject(
            AttentionGradient(PLAIN),
            &format!("{operands_of} {places} f32[2,3,4,7] f32[2,3,4,7] bf16[2,3,4,7,5]"),
            "dimension 4 of operand 9 must have size 6, found 5",
        );
    for (form, segments) in forms() {
        for sizes in [square(1, 1, 1, 1), square(2, 2, 3, 6)] {
            let operands = with_cotangent(form, operands(F32, &sizes, form, segments));
            entry = entry.run(AttentionGradient(form), &operands, expected_gradient(form, &operands), 1e-4);
        }
    }
    let small = with_cotangent(PLAIN, operands(F64, &square(1, 1, 2, 2), PLAIN, 1));
    entry.gradient_in(AttentionGradient(PLAIN), &small, &[0, 1, 2, 7, 8, 9])
}
