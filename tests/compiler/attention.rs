//! Blockwise attention against the plain form: values and gradients, on one device and sharded; and what is counted.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, lower};
use meshloom::hlo::PlatformKind;
use meshloom::ir::DType::{self, BF16, F16, F32, S32, U32};
use meshloom::ir::{Graph, Literal};
use meshloom::kernels::{AttentionKernel, Blocks, Kernels};
use meshloom::ops::{AttentionForm, KeyExchange, Number, Op, PlaceOrder};
use meshloom::partition::CollectiveKind;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{
    Function, Key, Tensor, TensorSpec, attention_over, concatenate, einsum, iota, value_and_grad_aux, zeros,
};
use meshloom_nn::{AttentionOptions, DroppedWeights, causal_attention_with};
use support::anchored::{run_by_tier, run_compiled};
use support::cases::cases as some;
use support::eight_devices::{compile, relative_error};
use support::interpret::interpret;
use support::spmd::run_local;

/// Batch, heads of keys, query heads for each, length, width of queries and of values.
type Shape = [usize; 6];

/// A form, and into how many segments rows are cut.
type Case = (AttentionForm, usize);

pub const CAUSAL: AttentionForm = AttentionForm {
    scale: Number::new(0.6),
    softcap: None,
    causal: true,
    window: None,
    order: PlaceOrder::Index,
    exchange: KeyExchange::Gather,
    dropout: None,
};

pub fn window(window: usize) -> AttentionForm {
    AttentionForm { window: Some(window), ..CAUSAL }
}

fn cases() -> Vec<Case> {
    let softcap = AttentionForm { softcap: Some(Number::new(0.8)), ..window(9) };
    let both_ways = AttentionForm { causal: false, ..window(4) };
    let dropout = AttentionForm { dropout: Some(Number::new(0.3)), ..window(12) };
    vec![
        (CAUSAL, 1),
        (CAUSAL, 3),
        (window(1), 1),
        (window(6), 2),
        (window(100), 1),
        (softcap, 3),
        (both_ways, 2),
        (dropout, 2),
    ]
}

/// For each case: values, logarithms, and the gradients of queries, keys and values.
fn program(shape: Shape, dtype: DType, cases: &[Case]) -> Arc<Graph> {
    let [batch, heads, groups, length, width, value_width] = shape;
    let axes = ["batch", "heads", "", "length", ""];
    let of_keys = ["batch", "heads", "", ""];
    let specs = (
        TensorSpec::new(dtype, [batch, heads, groups, length, width]).with_axes(&axes),
        TensorSpec::new(dtype, [batch, heads, length, width]).with_axes(&of_keys),
        TensorSpec::new(dtype, [batch, heads, length, value_width]).with_axes(&of_keys),
        TensorSpec::new(dtype, [batch, heads, groups, length, value_width]).with_axes(&axes),
    );
    let function = Function::trace("attention", specs, |(query, key, value, weights)| {
        let results = cases.iter().map(|&(form, segments)| {
            // Segments of odd lengths. Where places are data, they run in two halves, the second first.
            let index = iota(S32, [batch, length], 1);
            let places = match form.order {
                PlaceOrder::Index => index,
                PlaceOrder::Any => (index + (length / 2) as f64) % length as f64,
            };
            let ids = places / length.div_ceil(segments) as f64;
            let of_keys = |x: Tensor| x.with_axes(["batch", "keys"]);
            let seeds = form.dropout.map(|_| Key::new(7).bits(U32, [batch, heads, groups]));
            let loss = |(query, key, value): (Tensor, Tensor, Tensor)| {
                let (segments, places) = ([ids, of_keys(ids)], [places, of_keys(places)]);
                let (mixed, log_total) = attention_over(form, [query, key, value], segments, places, seeds);
                let wide = mixed.convert(F32);
                // The logarithms flow into the loss as well.
                let loss = (wide * weights.convert(F32)).sum(..) + (log_total * weights.convert(F32).sum(-1)).sum(..);
                (loss, (wide, log_total))
            };
            value_and_grad_aux((query, key, value), loss)
        });
        results.collect::<Vec<_>>()
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

pub fn inputs(graph: &Graph) -> Vec<Literal> {
    let wave = |position: usize, index: usize| ((index * (7 + position) % 97) as f64 / 48.5 - 1.0) * 1.7;
    let types = graph.input_types().cloned();
    types.enumerate().map(|(position, ty)| Literal::from_fn(ty, |index| wave(position, index))).collect()
}

pub fn results(graph: &Graph, options: &LowerOptions<'_>) -> Vec<Vec<f64>> {
    let lowered = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    wide(&run_by_tier("compiler attention", &lowered, &inputs(graph)))
}

/// Like [`results`], but computed by XLA.
fn results_by_xla(graph: &Graph, options: &LowerOptions<'_>) -> Vec<Vec<f64>> {
    let lowered = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    wide(&run_compiled(&lowered, &inputs(graph)))
}

fn wide(results: &[Literal]) -> Vec<Vec<f64>> {
    results.iter().map(Literal::to_f64_vec).collect()
}

fn blockwise(queries: usize, keys: usize) -> Kernels {
    Kernels { blocks: Some(Blocks { queries, keys }), ..Kernels::default() }
}

#[track_caller]
pub fn check(found: &[Vec<f64>], expected: &[Vec<f64>], bound: f64, name: &str) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        // A query that sees one key has weight one for it, whatever its score: its cotangent is zero, except for
        // rounding.
        let is_zero = expected.iter().all(|number| number.abs() <= 1e-5);
        let error = if is_zero {
            found.iter().copied().map(f64::abs).fold(0.0, f64::max)
        } else {
            relative_error(found, expected)
        };
        assert!(error <= bound, "{name}: result {index} is off by {error:.1e}");
    }
}

#[test]
fn equal_to_the_plain_form() {
    let of_any_order = |(form, segments): Case| (AttentionForm { order: PlaceOrder::Any, ..form }, segments);
    let all: Vec<Case> = cases().into_iter().chain(cases().into_iter().map(of_any_order)).collect();
    let plain = LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() };
    let shapes: [(Shape, &[(usize, usize)]); 4] = [
        ([2, 2, 2, 13, 4, 4], &[(4, 4), (3, 5), (8, 2)]),
        ([1, 1, 1, 1, 2, 2], &[(64, 64)]),
        ([1, 2, 1, 32, 6, 3], &[(8, 16), (5, 5)]),
        ([2, 1, 3, 20, 8, 4], &[(7, 3), (1, 20)]),
    ];
    for (shape, blocks) in shapes {
        let graph = program(shape, F32, &all);
        let expected = results(&graph, &plain);
        for &(queries, keys) in blocks {
            let options = LowerOptions { kernels: blockwise(queries, keys), ..LowerOptions::default() };
            check(&results(&graph, &options), &expected, 1e-5, &format!("{shape:?} in blocks of {queries} x {keys}"));
        }
    }
}

/// Attention by kernels for TPU.
const MOSAIC: Kernels = Kernels { attention: AttentionKernel::Mosaic, ..Kernels::portable(PlatformKind::Tpu) };

/// Kernels for TPU, with all ops around them: their text is interpreted.
#[test]
fn mosaic_is_equal_to_the_plain_form() {
    let options = LowerOptions { kernels: MOSAIC, ..LowerOptions::default() };
    let plain = LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() };
    let shapes: [(Shape, DType, f64); 4] = [
        ([2, 1, 2, 40, 8, 8], F32, 1e-5),
        ([1, 2, 1, 300, 8, 4], F32, 1e-5),
        // Both forms round scores, weights and their cotangents to 8 bits, by 2^-9 each, and add them up in another
        // order.
        ([1, 1, 2, 64, 16, 16], BF16, 1.5e-2),
        ([1, 1, 1, 1, 8, 8], F32, 1e-5),
    ];
    let both_ways = AttentionForm { causal: false, ..window(30) };
    let softcap = AttentionForm { softcap: Some(Number::new(0.8)), ..window(999) };
    let cases = [(CAUSAL, 2), (window(30), 1), (both_ways, 3), (softcap, 1)];
    // Shapes alternate in the order that comes first.
    let orders = [PlaceOrder::Index, PlaceOrder::Any];
    let of_shape = |(at, shape)| [(shape, orders[at % 2]), (shape, orders[(at + 1) % 2])];
    for ((shape, dtype, bound), order) in some("compiler mosaic", 4, shapes.into_iter().enumerate().flat_map(of_shape))
    {
        let cases = cases.map(|(form, segments)| (AttentionForm { order, ..form }, segments));
        // With one key, the capped score is so near the cap that its slope has few digits in either form.
        let count = if dtype == BF16 || shape[3] == 1 { 2 } else { 4 };
        let graph = program(shape, dtype, &cases[..count]);
        let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
        assert!(lowered.kernels.iter().all(|used| used.implementation == "mosaic"), "{:?}", lowered.kernels);
        let found = wide(&interpret(lowered.emitted(), &inputs(&graph)));
        check(&found, &results(&graph, &plain), bound, &format!("{shape:?}, {order:?}"));
    }
}

/// A device has a part of the queries: with all keys, or with those that travel around a ring.
#[test]
fn mosaic_where_queries_are_split() {
    let of = |exchange| (AttentionForm { exchange, ..window(90) }, 2);
    let rules = [("batch", &["data"][..]), ("heads", &["tensor"]), ("length", &["context"])];
    for (exchange, keys) in [(KeyExchange::Gather, &[][..]), (KeyExchange::Ring, &["context"])] {
        let graph = program([1, 2, 1, 384, 8, 8], F32, &[of(exchange)]);
        let rules = RuleSets::uniform(Rules::from_pairs(&[&rules[..], &[("keys", keys)]].concat()).expect("rules"));
        let mesh = Mesh::new([("data", 1), ("tensor", 2), ("context", 3)]).expect("a mesh");
        let options = LowerOptions { sharding: Some((&mesh, &rules)), kernels: MOSAIC, ..LowerOptions::default() };
        let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
        assert!(lowered.kernels.iter().all(|used| used.implementation == "mosaic"), "{:?}", lowered.kernels);
        assert!(lowered.kernels.iter().any(|used| used.how.contains("that data say")), "{:?}", lowered.kernels);
        let found = run_local(lowered.emitted(), &mesh, &inputs(&graph)).unwrap_or_else(|error| panic!("{error}"));
        let found = wide(&found);
        let plain = LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() };
        check(&found, &results(&graph, &plain), 1e-5, &format!("{exchange:?}"));
    }
}

/// Attention that the kernels for TPUs do not compute is computed in blocks.
#[test]
fn what_mosaic_kernels_do_not_compute() {
    let kernels = Kernels {
        attention: AttentionKernel::Mosaic,
        blocks: Some(Blocks { queries: 8, keys: 8 }),
        ..Kernels::portable(PlatformKind::Tpu)
    };
    let dropout = AttentionForm { dropout: Some(Number::new(0.3)), ..CAUSAL };
    for (dtype, form) in [(F32, dropout), (F16, CAUSAL)] {
        let graph = program([1, 1, 2, 40, 8, 8], dtype, &[(form, 1)]);
        let options = LowerOptions { kernels, ..LowerOptions::default() };
        let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
        assert!(lowered.kernels.iter().all(|used| used.implementation == "blockwise"), "{:?}", lowered.kernels);
    }
}

/// Products of bf16 have 8 bits: both forms round weights, by 2^-9 each, relative to another sum.
#[test]
fn bf16() {
    let graph = program([2, 2, 2, 40, 16, 16], BF16, &[(window(17), 2), (CAUSAL, 1)]);
    let expected = results_by_xla(&graph, &LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() });
    let options = LowerOptions { kernels: blockwise(8, 8), ..LowerOptions::default() };
    check(&results_by_xla(&graph, &options), &expected, 1e-2, "bf16");
}

/// Blocks lie within a device: over batch and heads nothing moves but the sums of the loss. A device that has a part of
/// the queries has partial sums of the cotangents of keys and values.
#[test]
fn sharded() {
    let dropout = AttentionForm { dropout: Some(Number::new(0.3)), ..CAUSAL };
    let graph = program([2, 4, 2, 24, 8, 8], F32, &[(CAUSAL, 2), (window(9), 1), (dropout, 1)]);
    let plain = results(&graph, &LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() });
    let rules = [("batch", &["data"][..]), ("heads", &["tensor"]), ("length", &["context"]), ("keys", &[])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules).expect("rules"));
    for (axes, collectives) in
        [([("data", 2), ("tensor", 4), ("context", 1)], 1), ([("data", 1), ("tensor", 2), ("context", 4)], 2)]
    {
        let mesh = Mesh::new(axes).expect("a mesh");
        let options = LowerOptions {
            sharding: Some((&mesh, &rules)),
            deny_replication: true,
            kernels: blockwise(4, 8),
            ..LowerOptions::default()
        };
        let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
        let count = lowered.collectives().count().expect("a ledger");
        assert_eq!(count, collectives, "{axes:?}: {}", lowered.collectives());
        check(&results(&graph, &options), &plain, 1e-5, &format!("{axes:?}"));
        if collectives == 2 {
            check(&results_by_xla(&graph, &options), &plain, 1e-5, &format!("{axes:?}, by XLA"));
        }
    }
}

/// Keys and values travel, with their segments and places; in the backward pass with their cotangents, which go one
/// step further. The first step of the backward pass is that of the forward pass. Nothing is gathered.
#[test]
fn keys_travel_around_a_ring() {
    let [batch, heads, groups, length, width, value_width] = [2, 2, 2, 24, 8, 6];
    let shape = [batch, heads, groups, length, width, value_width];
    let in_ring = |(form, segments): Case| (AttentionForm { exchange: KeyExchange::Ring, ..form }, segments);
    let others =
        [AttentionForm { causal: false, ..CAUSAL }, AttentionForm { dropout: Some(Number::new(0.3)), ..CAUSAL }];
    let cases = [(CAUSAL, 2), (window(9), 1), (others[0], 3), (others[1], 2)].map(in_ring);
    let (graph, one) = (program(shape, F32, &cases), program(shape, F32, &cases[..1]));
    let plain = results(&graph, &LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() });
    let rules = [("batch", &["data"][..]), ("heads", &["tensor"]), ("length", &["context"]), ("keys", &["context"])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules).expect("rules"));
    for (data, tensor, context) in [(1, 1, 8), (1, 2, 4), (2, 2, 2), (1, 1, 3)] {
        let mesh = Mesh::new([("data", data), ("tensor", tensor), ("context", context)]).expect("a mesh");
        for kernels in [blockwise(2, 3), Kernels::plain()] {
            let options =
                LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, kernels, ..Default::default() };
            let ledger = lower(&one, &options).unwrap_or_else(|error| panic!("{error}")).collectives();
            assert_eq!(ledger.kind(CollectiveKind::AllGather).count().expect("no filter"), 0, "{ledger}");
            let rows = (batch / data * length / context) as u64;
            let keys = 4 * rows * (heads / tensor * (width + value_width)) as u64;
            let step = keys + 8 * rows;
            let expected = (2 * (context as u64 - 1) - 1) * step + context as u64 * keys;
            let moved = ledger.kind(CollectiveKind::CollectivePermute).moved_bytes().expect("no filter");
            assert_eq!(moved, expected, "{ledger}");
            check(&results(&graph, &options), &plain, 1e-5, &format!("{data}, {tensor}, {context}"));
        }
    }
}

/// Options of attention with all gradients, beside the same made of products and a softmax over keys and the sink.
#[test]
fn options() {
    let [batch, length, heads, kv_heads, width] = [2, 12, 4, 2, 8];
    let of_heads = |heads| TensorSpec::new(F32, [batch, length, heads, width]);
    let specs = (of_heads(heads), of_heads(kv_heads), of_heads(kv_heads), TensorSpec::new(F32, [heads]));
    type Operands = (Tensor, Tensor, Tensor, Tensor);
    let by_op = |(query, key, value, sinks): Operands| {
        let options = AttentionOptions { softcap: Some(2.0), window: Some(5), sinks: Some(sinks), dropout: None };
        causal_attention_with(query, key, value, &options)
    };
    let by_products = |(query, key, value, sinks): Operands| {
        let query = query.reshape([batch, length, kv_heads, heads / kv_heads, width]);
        let scores = einsum("btkgd,bskd->bkgts", &[query, key]) * (width as f64).powf(-0.5);
        let scores = (scores / 2.0).tanh() * 2.0;
        let [queries, keys] = [0, 1].map(|dim| iota(S32, [length, length], dim));
        let seen = keys.less_equal(queries) & (queries - keys).less(5.0);
        let scores = seen.broadcast_like(scores, [3, 4]).select(scores, -1e30);
        let sinks = sinks.reshape([kv_heads, heads / kv_heads]).broadcast_like(scores.slice(-1, ..1), [1, 2]);
        let weights = concatenate(&[scores, sinks], -1).softmax(-1).slice(-1, ..length);
        einsum("bkgts,bskd->btkgd", &[weights, value]).reshape([batch, length, heads, width])
    };
    let function = Function::trace("options", specs, |operands: Operands| {
        let loss = |mixed: Tensor| ((mixed.square() + mixed).sum(..), mixed);
        let made = value_and_grad_aux(operands, |operands| loss(by_op(operands)));
        (made, value_and_grad_aux(operands, |operands| loss(by_products(operands))))
    });
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    for kernels in [Kernels::plain(), blockwise(5, 4)] {
        let results = results(&graph, &LowerOptions { kernels, ..LowerOptions::default() });
        let (found, expected) = results.split_at(results.len() / 2);
        check(found, expected, 1e-5, "options");
    }
}

/// A share of the weights drops, and the rest makes up for it; each head of each row draws on its own.
#[test]
fn weights_drop_at_their_rate() {
    let ([batch, length, heads], rate) = ([2, 64, 3], 0.25);
    let function = Function::trace("dropout", TensorSpec::new(F32, [batch, length, heads, length]), |value| {
        // All weights of a row are alike, and the values say which of them are kept.
        let zeros = zeros(F32, [batch, length, heads, 4]);
        let key = Key::new(3);
        let seeds = key.bits(U32, [batch, heads, 1]);
        let dropout = Some(DroppedWeights { rate, seeds });
        causal_attention_with(zeros, zeros, value, &AttentionOptions { dropout, ..AttentionOptions::default() })
    });
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let ty = graph.input_types().next().expect("the values").clone();
    let is_key = |index: usize| f64::from(u8::from(index % length == index / (heads * length) % length));
    let values = Literal::from_fn(ty, is_key);
    let program = compile(&lower(&graph, &LowerOptions::default()).expect("it lowers")).expect("it compiles");
    let outputs =
        program.run(&program.put(0, &[values]).expect("it fits").iter().collect::<Vec<_>>()).expect("it runs");
    let mixed = outputs[0].get().expect("a result").to_f64_vec();
    let mut heads_seen: Vec<Vec<bool>> = Vec::new();
    for head in 0..batch * heads {
        let (row, head) = (head / heads, head % heads);
        let at = |t: usize, s: usize| mixed[((row * length + t) * heads + head) * length + s];
        let pairs = (0..length).flat_map(|t| (0..=t).map(move |s| (t, s)));
        let kept: Vec<bool> = pairs.clone().map(|(t, s)| at(t, s) != 0.0).collect();
        for (&kept, (t, s)) in kept.iter().zip(pairs) {
            let expected = if kept { 1.0 / ((1.0 - rate) * (t + 1) as f64) } else { 0.0 };
            assert!((at(t, s) - expected).abs() < 1e-6, "{row} {head} {t} {s}");
        }
        // 2080 draws: five times the deviation is 0.047.
        let share = kept.iter().filter(|kept| !**kept).count() as f64 / kept.len() as f64;
        assert!((share - rate).abs() < 0.047, "{share}");
        assert!(!heads_seen.contains(&kept), "two heads drop the same");
        heads_seen.push(kept);
    }
}

/// Pairs of blocks that no query sees are not computed: the loops' trip counts.
#[test]
fn blocks_that_nobody_sees_are_skipped() {
    let trips = |form: AttentionForm| {
        let graph = program([1, 1, 1, 64, 4, 4], F32, &[(form, 1)]);
        let options = LowerOptions { kernels: blockwise(8, 8), ..LowerOptions::default() };
        let lowered = lower(&graph, &options).expect("it lowers");
        let lengths = lowered.emitted().nodes().filter_map(|node| match node.op() {
            Op::Scan(scan) => Some(scan.length),
            _ => None,
        });
        lengths.collect::<Vec<_>>()
    };
    assert_eq!(trips(CAUSAL), [36, 36]);
    // A window of 9 reaches into the block before, one of 1 into none.
    assert_eq!(trips(window(9)), [15, 15]);
    assert_eq!(trips(window(1)), [8, 8]);
    assert_eq!(trips(AttentionForm { causal: false, ..CAUSAL }), [64, 64]);
}
