//! Blockwise attention against the plain form: values and gradients, on one device and sharded.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::DType::{BF16, F32, S32};
use meshloom::ir::{DType, Graph, Literal};
use meshloom::nn::{Blocks, Causal, blockwise_attention};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Tensor, TensorSpec, einsum_with, iota, value_and_grad};
use support::eight_devices::{compile, relative_error, run};

/// Batch, heads of keys, query heads for each, length, width of queries and of values.
type Shape = [usize; 6];

fn plain(query: Tensor, key: Tensor, value: Tensor, segments: Tensor, window: Option<usize>, scale: f64) -> Tensor {
    let scores = einsum_with("bkgtd,bksd->bkgts", &[query, key], F32) * scale;
    let [batch, _, _, length, _] = scores.shape();
    let dims = [batch, length, length];
    let (row, column) = (iota(S32, dims, 1), iota(S32, dims, 2));
    let same = segments.expand(2).broadcast_to(dims).equal(segments.expand(1).broadcast_to(dims));
    let mut seen = same & column.less_equal(row);
    if let Some(window) = window {
        seen = seen & (row - column).less(row.full_like(window as f64));
    }
    let masked = seen.broadcast_like(scores, [0, 3, 4]).select(scores, -1e30);
    let weights = masked.softmax(-1).convert(query.dtype());
    einsum_with("bkgts,bksd->bkgtd", &[weights, value], query.dtype())
}

/// Loss and gradients of queries, keys and values by both forms.
fn both(shape: Shape, dtype: DType, segments: usize, window: Option<usize>, blocks: Blocks) -> Arc<Graph> {
    let [batch, heads, groups, length, width, value_width] = shape;
    let axes = ["batch", "heads", "", "", ""];
    let specs = (
        TensorSpec::new(dtype, [batch, heads, groups, length, width]).with_axes(&axes),
        TensorSpec::new(dtype, [batch, heads, length, width]).with_axes(&axes[..4]),
        TensorSpec::new(dtype, [batch, heads, length, value_width]).with_axes(&axes[..4]),
        TensorSpec::new(dtype, [batch, heads, groups, length, value_width]).with_axes(&axes),
    );
    let scale = (width as f64).powf(-0.5);
    Function::trace("attention", specs, |(query, key, value, weights)| {
        // Segments of odd lengths.
        let positions = iota(S32, [batch, length], 1);
        let ids = positions / positions.full_like(length.div_ceil(segments) as f64);
        let of = |form: &dyn Fn(Tensor, Tensor, Tensor) -> Tensor| {
            value_and_grad((query, key, value), |(query, key, value)| {
                (form(query, key, value) * weights).convert(F32).sum(..)
            })
        };
        let causal = Causal { window };
        let found = of(&|q, k, v| blockwise_attention(q, k, v, ids, (causal, blocks), scale));
        let expected = of(&|q, k, v| plain(q, k, v, ids, window, scale));
        (found, expected)
    })
    .unwrap_or_else(|error| panic!("{error}"))
    .graph()
    .clone()
}

fn inputs(graph: &Graph) -> Vec<Literal> {
    let wave = |position: usize, index: usize| ((index * (7 + position) % 97) as f64 / 48.5 - 1.0) * 1.7;
    let types = graph.input_types().cloned();
    types.enumerate().map(|(position, ty)| Literal::from_fn(ty, |index| wave(position, index))).collect()
}

#[track_caller]
fn check(graph: &Graph, bound: f64, name: &str) {
    let outputs = run(graph, &inputs(graph));
    let (found, expected) = outputs.split_at(outputs.len() / 2);
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
        // A query that sees one key has weight one for it, whatever its score: its cotangent is zero but for rounding.
        let is_zero = expected.iter().all(|number| number.abs() <= 1e-5);
        let error = if is_zero {
            found.iter().copied().map(f64::abs).fold(0.0, f64::max)
        } else {
            relative_error(&found, &expected)
        };
        assert!(error <= bound, "{name}: result {index} is off by {error:.1e}");
    }
}

#[test]
fn equal_to_the_plain_form() {
    let shapes: [Shape; 4] = [[2, 2, 2, 13, 4, 4], [1, 1, 1, 1, 2, 2], [1, 2, 1, 32, 6, 3], [2, 1, 3, 20, 8, 4]];
    for shape in shapes {
        for (queries, keys) in [(4, 4), (3, 5), (8, 2), (64, 64), (1, 1)] {
            for window in [None, Some(1), Some(6), Some(100)] {
                for segments in [1, 3] {
                    let blocks = Blocks { queries, keys };
                    let name = format!("{shape:?} {blocks:?} {window:?} {segments}");
                    check(&both(shape, F32, segments, window, blocks), 1e-5, &name);
                }
            }
        }
    }
}

/// Products of bf16 have 8 bits: weights are rounded in both forms, in each relative to another sum.
#[test]
fn bf16() {
    let blocks = Blocks { queries: 8, keys: 8 };
    check(&both([2, 2, 2, 40, 16, 16], BF16, 2, Some(17), blocks), 2e-2, "bf16");
}

/// Blocks lie within a device: nothing moves but the sums of the loss.
#[test]
fn sharded_over_batch_and_heads() {
    let graph = both([2, 4, 2, 24, 8, 8], F32, 2, None, Blocks { queries: 8, keys: 8 });
    let rules = Rules::from_pairs(&[("batch", &["data"][..]), ("heads", &["tensor"])]).expect("rules");
    let (mesh, rules) = (Mesh::new([("data", 2), ("tensor", 4)]).expect("a mesh"), RuleSets::uniform(rules));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, ..LowerOptions::default() };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
    let program = compile(&lowered).expect("it compiles");
    assert_eq!(program.collectives().count().expect("a ledger"), 1, "{}", program.collectives());
    let arguments = program.put(0, &inputs(&graph)).expect("the inputs fit");
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    let plain = run(&graph, &inputs(&graph));
    for (found, expected) in outputs.iter().zip(&plain) {
        let error = relative_error(&found.get().expect("a result").to_f64_vec(), &expected.to_f64_vec());
        assert!(error <= 1e-5, "off by {error:.1e}");
    }
}
