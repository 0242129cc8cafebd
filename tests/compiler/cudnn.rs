//! Attention by cuDNN: the calls, what stands around them, and what is refused. No GPU is needed, and none shows here
//! that cuDNN does what its documentation says.

use std::sync::Arc;

use meshloom::analysis::cost::{STATED_BYTES, STATED_OPERATIONS, STATED_TRANSCENDENTALS};
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::proto::HloInstructionProto;
use meshloom::ir::DType::{self, BF16, F16, F32, S32, U32};
use meshloom::ir::{Graph, Literal, TensorType};
use meshloom::kernels::{AttentionKernel, Kernels, result_with_flow};
use meshloom::ops::{AttentionForm, Number, PlaceOrder};
use meshloom::pjrt::Platform;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{
    Function, Tensor, TensorSpec, attention_over, einsum, iota, scan, value_and_grad, value_and_grad_aux, zeros,
};
use meshloom_nn::causal_attention;
use serde_json::{Value as Json, json};
use support::eight_devices::relative_error;
use support::interpret::interpret;

use super::attention::{CAUSAL, check, inputs, results, window};

const CUDNN: Kernels = Kernels { attention: AttentionKernel::Cudnn, ..Kernels::portable(PlatformKind::Cuda) };

/// Batch, heads of keys, query heads for each, length, width of queries and of values.
type Shape = [usize; 6];

/// The segments of tokens.
#[derive(Clone, Copy, PartialEq)]
enum Segments {
    /// All the same, which is known.
    Same,
    /// Queries have another than keys.
    Apart,
    /// By place, in two halves.
    Halves,
}

/// The forward pass and the gradient of each form; results and logarithms flow into the loss.
fn program(shape: Shape, dtype: DType, forms: &[(AttentionForm, Segments)]) -> Arc<Graph> {
    let [batch, heads, groups, length, width, value_width] = shape;
    let axes = ["batch", "heads", "", "", ""];
    let specs = (
        TensorSpec::new(dtype, [batch, heads, groups, length, width]).with_axes(&axes),
        TensorSpec::new(dtype, [batch, heads, length, width]).with_axes(&axes[..4]),
        TensorSpec::new(dtype, [batch, heads, length, value_width]).with_axes(&axes[..4]),
        TensorSpec::new(dtype, [batch, heads, groups, length, value_width]).with_axes(&axes),
    );
    let function = Function::trace("attention", specs, |(query, key, value, weights)| {
        let found = forms.iter().map(|&(form, segments)| {
            let places = iota(S32, [batch, length], 1);
            let same = zeros(S32, [batch, length]);
            let segments = match segments {
                Segments::Same => [same, same],
                Segments::Apart => [same, same + 1.0],
                Segments::Halves => [places / length.div_ceil(2) as f64; 2],
            };
            let seeds = form.dropout.map(|_| zeros(U32, [batch, heads, groups]));
            value_and_grad_aux((query, key, value), |(query, key, value): (Tensor, Tensor, Tensor)| {
                let (mixed, log_total) = attention_over(form, [query, key, value], segments, [places; 2], seeds);
                let (wide, weights) = (mixed.convert(F32), weights.convert(F32));
                let loss = (wide * weights).sum(..) + (log_total * weights.sum(-1)).sum(..);
                (loss, (wide, log_total))
            })
        });
        found.collect::<Vec<_>>()
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

fn lowered(graph: &Graph, kernels: Kernels) -> Lowered {
    let options = LowerOptions { kernels, ..LowerOptions::default() };
    lower(graph, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The calls of a module: forward, then backward.
fn calls(lowered: &Lowered) -> Vec<HloInstructionProto> {
    let module = lowered.module.decode().expect("a module");
    let all = module.computations.into_iter().flat_map(|computation| computation.instructions);
    let mut calls: Vec<_> = all.filter(|instruction| instruction.custom_call_target.starts_with("__cudnn")).collect();
    calls.sort_by_key(|call| call.custom_call_target.clone());
    calls
}

/// The sizes of the example whose configuration is known to be parsed by the plugin.
const KNOWN: Shape = [2, 2, 4, 1024, 128, 128];

fn known_form() -> AttentionForm {
    AttentionForm { scale: Number::new(0.08838834764831845), ..window(256) }
}

fn known_config(products: &[(&str, &str, &str)]) -> Json {
    let mut config = json!({
        "algorithm": {
            "algo_id": "0", "math_type": "TENSOR_OP_MATH", "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": true, "workspace_size": "0"
        },
        "fmha_scale": 0.08838834764831845,
        "intermediate_tensor_shape": {
            "element_type": "BF16", "dimensions": ["2", "8", "1024", "1024"],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [false, false, false, false]
        },
        "is_flash_attention": true, "mask_type": "CAUSAL", "dropout_rate": 0.0, "seed": 42,
        "sliding_window_length": 256, "max_seg_per_batch": 1, "is_paged_attention": false
    });
    for (name, left, right) in products {
        config[*name] = json!({
            "lhs_contracting_dimensions": [left], "rhs_contracting_dimensions": [right],
            "lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "1"]
        });
    }
    config
}

/// Dimensions of the operands of a call, and of its results.
fn shapes(call: &HloInstructionProto) -> (Vec<Vec<i64>>, Vec<Vec<i64>>) {
    let results = call.shape.as_ref().expect("a shape").tuple_shapes.iter();
    let operands = call.operand_shapes_with_layout.iter();
    (operands.map(|shape| shape.dimensions.clone()).collect(), results.map(|shape| shape.dimensions.clone()).collect())
}

/// Key by key as in modules that XLA's plugin for CUDA takes.
#[test]
fn the_calls_are_configured_as_xla_reads_them() {
    let lowered = lowered(&program(KNOWN, BF16, &[(known_form(), Segments::Same)]), CUDNN);
    let found = calls(&lowered);
    let forward = [("bmm1_dot_dimension_numbers", "3", "3"), ("bmm2_dot_dimension_numbers", "3", "2")];
    let backward = [
        ("bmm1_grad_gemm1_dot_dimension_numbers", "2", "2"),
        ("bmm1_grad_gemm2_dot_dimension_numbers", "3", "2"),
        ("bmm2_grad_gemm1_dot_dimension_numbers", "2", "2"),
        ("bmm2_grad_gemm2_dot_dimension_numbers", "3", "3"),
    ];
    let expected = [("__cudnn$fmhaSoftmax", &forward[..]), ("__cudnn$fmhaSoftmaxBackward", &backward)];
    assert_eq!(found.len(), 2);
    for (call, (target, products)) in found.iter().zip(expected) {
        assert_eq!(call.custom_call_target, target);
        let config: Json = serde_json::from_slice(&call.backend_config).expect("JSON");
        assert_eq!(config["operation_queue_id"], "0");
        assert_eq!(config.as_object().expect("an object").len(), 2, "{config}");
        let (found, expected) = (&config["cudnn_fmha_backend_config"], known_config(products));
        for (key, value) in expected.as_object().expect("an object") {
            assert_eq!(found[key], *value, "{target}, {key}");
        }
        assert_eq!(*found, expected, "{target} has other keys");
        assert_eq!(call.custom_call_api_version, 2, "the API that returns a status");
    }
    let (query, key, stats) = (vec![2, 8, 1024, 128], vec![2, 2, 1024, 128], vec![2, 8, 1024]);
    let [q, k, s] = [&query, &key, &stats].map(Clone::clone);
    assert_eq!(shapes(&found[0]), (vec![q.clone(), k.clone(), k.clone()], vec![q.clone(), s.clone(), vec![0]]));
    assert_eq!(
        shapes(&found[1]),
        (vec![q.clone(), k.clone(), k.clone(), s, q.clone(), q.clone()], vec![q, k.clone(), k, vec![0]])
    );
    // The first 256 queries of a head see as many keys as they stand at, the others 256.
    let pairs: u64 = 16 * (256 * 257 / 2 + 768 * 256);
    let (of_queries, of_keys, of_stats) = (2 * 8 * 1024 * 128 * 2, 2 * 2 * 1024 * 128 * 2, 2 * 8 * 1024 * 4);
    let stated = |call: &HloInstructionProto| {
        let map = &call.frontend_attributes.as_ref().expect("the cost").map;
        [STATED_OPERATIONS, STATED_TRANSCENDENTALS, STATED_BYTES].map(|key| map[key].parse::<u64>().expect("a number"))
    };
    assert_eq!(stated(&found[0]), [pairs * 2 * 2 * 128, pairs, 2 * of_queries + 2 * of_keys + of_stats]);
    assert_eq!(stated(&found[1]), [pairs * 5 * 2 * 128, pairs, 4 * of_queries + 4 * of_keys + of_stats]);
    let uses: Vec<_> =
        lowered.kernels.iter().map(|used| [&used.op, &used.implementation, &used.how].map(String::as_str)).collect();
    let how = "mask CAUSAL, window 256";
    assert_eq!(uses, [["attention", "cudnn", how], ["attention-gradient", "cudnn", how]]);
}

/// A window that reaches over the whole row is none.
#[test]
fn masks() {
    let both_ways = AttentionForm { causal: false, ..CAUSAL };
    let shape = [1, 1, 1, 16, 8, 8];
    for (form, mask, length, how) in [
        (CAUSAL, "CAUSAL", 0, "mask CAUSAL"),
        (window(16), "CAUSAL", 0, "mask CAUSAL"),
        (window(15), "CAUSAL", 15, "mask CAUSAL, window 15"),
        (both_ways, "NO_MASK", 0, "mask NO_MASK"),
        (AttentionForm { window: Some(16), ..both_ways }, "NO_MASK", 0, "mask NO_MASK"),
    ] {
        let lowered = lowered(&program(shape, F16, &[(form, Segments::Same)]), CUDNN);
        for call in calls(&lowered) {
            let config: Json = serde_json::from_slice(&call.backend_config).expect("JSON");
            let config = &config["cudnn_fmha_backend_config"];
            assert_eq!((&config["mask_type"], &config["sliding_window_length"]), (&json!(mask), &json!(length)));
            assert_eq!(config["intermediate_tensor_shape"]["element_type"], "F16");
        }
        assert!(lowered.kernels.iter().all(|used| used.how == how), "{:?}", lowered.kernels);
    }
}

/// An op that cuDNN does not compute is refused, with the property that is in the way.
#[test]
fn what_it_does_not_compute_is_refused() {
    let shape = [1, 1, 2, 16, 8, 8];
    let one = |form| (form, Segments::Same);
    let of_any_order = AttentionForm { order: PlaceOrder::Any, ..CAUSAL };
    let capped = AttentionForm { softcap: Some(Number::new(2.5)), ..CAUSAL };
    let dropped = AttentionForm { dropout: Some(Number::new(0.25)), ..CAUSAL };
    let both_ways = AttentionForm { causal: false, ..window(4) };
    let cpu = Kernels { platform: PlatformKind::Cpu, ..CUDNN };
    let segments = "segments are data, by which cuDNN cannot mask";
    let cases = [
        (shape, F16, one(CAUSAL), cpu, "the program is for cpu, cuDNN for cuda"),
        (shape, F32, one(CAUSAL), CUDNN, "operands are f32, and must be bf16 or f16"),
        ([0, 1, 2, 16, 8, 8], F16, one(CAUSAL), CUDNN, "an operand has no elements"),
        ([1, 1, 2, 16, 16, 8], F16, one(CAUSAL), CUDNN, "keys are 16 wide and values 8, and must be alike"),
        (
            [1, 1, 2, 16, 12, 12],
            F16,
            one(CAUSAL),
            CUDNN,
            "heads are 12 wide, and must be a multiple of 8 and at most 128",
        ),
        (
            [1, 1, 2, 16, 136, 136],
            BF16,
            one(CAUSAL),
            CUDNN,
            "heads are 136 wide, and must be a multiple of 8 and at most 128",
        ),
        (shape, F16, one(of_any_order), CUDNN, "places are data, as where a device has a part of the queries"),
        (shape, F16, one(capped), CUDNN, "scores are capped at 2.5"),
        (shape, F16, one(dropped), CUDNN, "weights drop with probability 0.25"),
        (shape, F16, one(both_ways), CUDNN, "a window of 4 is not causal"),
        (shape, F16, (CAUSAL, Segments::Halves), CUDNN, segments),
        (shape, F16, (CAUSAL, Segments::Apart), CUDNN, segments),
    ];
    for (shape, dtype, form, kernels, reason) in cases {
        let options = LowerOptions { kernels, ..LowerOptions::default() };
        let refused = lower(&program(shape, dtype, &[form]), &options).map(drop).expect_err(reason).to_string();
        let expected = format!(": kernels.attention = \"cudnn\": {reason}; choose kernels.attention = \"auto\"");
        assert!(refused.contains(&expected), "{refused}");
        assert!(refused.contains("attention(") && refused.contains("tests/compiler/cudnn.rs:"), "{refused}");
    }
    // All that is in the way, at once.
    let options = LowerOptions { kernels: CUDNN, ..LowerOptions::default() };
    let both = lower(&program(shape, F32, &[one(capped)]), &options).map(drop).expect_err("two reasons").to_string();
    assert!(both.contains("bf16 or f16; scores are capped at 2.5; choose"), "{both}");
    // Calls of the same types differ in what is known of their segments.
    let two = [one(CAUSAL), (CAUSAL, Segments::Halves)];
    let second = lower(&program(shape, F16, &two), &options).map(drop).expect_err("the second").to_string();
    assert!(second.contains(segments), "{second}");
}

#[test]
fn auto_never_takes_it() {
    let platform = Platform::of_any_plugin(PlatformKind::Cuda);
    let options = LowerOptions::default().on(&platform);
    let lowered = lower(&program(KNOWN, BF16, &[(known_form(), Segments::Same)]), &options).expect("it lowers");
    assert_eq!(lowered.kernels.len(), 2);
    assert!(lowered.kernels.iter().all(|used| used.implementation == "blockwise"), "{:?}", lowered.kernels);
    assert!(calls(&lowered).is_empty());
}

/// A device calls it with its own rows and heads.
#[test]
fn split_over_rows_and_heads() {
    let graph = program([4, 2, 4, 32, 16, 16], BF16, &[(CAUSAL, Segments::Same)]);
    let rules = [("batch", &["data"][..]), ("heads", &["tensor"])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules).expect("rules"));
    let mesh = Mesh::new([("data", 2), ("tensor", 2)]).expect("a mesh");
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        deny_replication: true,
        kernels: CUDNN,
        ..LowerOptions::default()
    };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
    let found = calls(&lowered);
    let (query, key, stats) = (vec![2, 4, 32, 16], vec![2, 1, 32, 16], vec![2, 4, 32]);
    assert_eq!(found.len(), 2);
    assert_eq!(
        shapes(&found[0]),
        (vec![query.clone(), key.clone(), key.clone()], vec![query.clone(), stats.clone(), vec![0]])
    );
    assert_eq!(shapes(&found[1]).0[3], stats);
    assert_eq!(shapes(&found[1]).1, [query, key.clone(), key, vec![0]]);
    for call in &found {
        let config: Json = serde_json::from_slice(&call.backend_config).expect("JSON");
        let scores = &config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]["dimensions"];
        assert_eq!(*scores, json!(["2", "4", "32", "32"]));
    }
}

/// All that stands around the calls, with cuDNN's documentation in place of cuDNN: heads, masks, logarithms, and the
/// result that the backward pass is given.
#[test]
fn equal_to_the_plain_form() {
    let both_ways = AttentionForm { causal: false, ..CAUSAL };
    let forms = [CAUSAL, window(5), window(1), window(99), both_ways].map(|form| (form, Segments::Same));
    let plain = LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() };
    for (shape, dtype, bound) in [
        ([2, 2, 3, 13, 8, 8], F16, 3e-3),
        ([1, 3, 1, 20, 16, 16], F16, 3e-3),
        ([2, 1, 2, 24, 8, 8], BF16, 2e-2),
        ([1, 1, 1, 1, 8, 8], F16, 3e-3),
    ] {
        let graph = program(shape, dtype, &forms);
        let lowered = lowered(&graph, CUDNN);
        assert!(lowered.kernels.iter().all(|used| used.implementation == "cudnn"), "{:?}", lowered.kernels);
        let found: Vec<Vec<f64>> =
            interpret(lowered.emitted(), &inputs(&graph)).iter().map(Literal::to_f64_vec).collect();
        check(&found, &results(&graph, &plain), bound, &format!("{shape:?}, {dtype:?}"));
    }
}

/// Layers in a loop: the constant segments are known in its body, forwards and backwards.
#[test]
fn layers_in_a_loop() {
    let specs = (TensorSpec::new(BF16, [2, 16, 4, 8]), TensorSpec::new(BF16, [3, 8]));
    let function = Function::trace("layers", specs, |inputs| {
        value_and_grad(inputs, |(x, layers): (Tensor, Tensor)| {
            let layer = |x: Tensor, w: Tensor| (causal_attention(x * w.broadcast_like(x, [3]), x, x), ());
            scan(x, layers, layer).0.convert(F32).square().sum(..)
        })
    });
    let lowered = lowered(function.unwrap_or_else(|error| panic!("{error}")).graph(), CUDNN);
    assert_eq!(calls(&lowered).len(), 2, "{:?}", lowered.kernels);
}

const DIMS: [usize; 4] = [2, 3, 7, 8];

/// The sum of products that the backward pass makes of the result it is given is the flow, whatever the scale of the
/// cotangent. For a row whose cotangent is zero, the flow is zero.
#[test]
fn a_result_has_the_flow() {
    let [batch, heads, queries, width] = DIMS;
    let rows = batch * heads * queries;
    let specs = (TensorSpec::new(F32, [batch, heads, queries]), TensorSpec::new(F32, DIMS));
    let function =
        Function::trace("flow", specs, |(flow, ct)| (result_with_flow(flow, ct), result_with_flow(flow * 0.0, ct)));
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let scale = |row: usize| if row == 5 { 0.0 } else { 10f64.powi(row as i32 % 61 - 30) };
    let ct = |index: usize| (((index * 37 + 11) % 101) as f64 / 50.0 - 1.0) * scale(index / width);
    let flow = |row: usize| (((row * 29 + 3) % 17) as f64 - 8.2) * scale(row);
    let given = [
        Literal::from_fn(TensorType::new(F32, &[batch, heads, queries]), flow),
        Literal::from_fn(TensorType::new(F32, &DIMS), ct),
    ];
    let options = LowerOptions::default();
    let lowered = lower(&graph, &options).expect("it lowers");
    let program = support::eight_devices::compile(&lowered).expect("it compiles");
    let arguments = program.put(0, &given.to_vec()).expect("the inputs fit");
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    let found: Vec<Vec<f64>> = outputs.iter().map(|output| output.get().expect("a result").to_f64_vec()).collect();
    for row in 0..rows {
        let sum: f64 = (row * width..(row + 1) * width).map(|index| found[0][index] * ct(index)).sum();
        assert!((sum - flow(row)).abs() <= 1e-5 * flow(row).abs(), "row {row}: {sum:e} for {:e}", flow(row));
    }
    assert!(found[0][5 * width..6 * width].iter().all(|&number| number == 0.0));
    assert!(found[1].iter().all(|&number| number == 0.0));
}

/// The gradient with the sum of products in the place of the flow is the plain gradient, in `f32`.
#[test]
fn the_gradient_with_that_result_is_the_gradient() {
    let [batch, heads, length, _] = DIMS;
    let of = |dims: &[usize]| TensorSpec::new(F32, dims);
    let specs = (of(&DIMS), of(&DIMS), of(&DIMS), of(&DIMS), of(&DIMS[..3]));
    let form = window(5);
    let function = Function::trace("gradients", specs, |(query, key, value, ct, log_total_ct)| {
        let places = iota(S32, [batch, length], 1);
        let same = zeros(S32, [batch, length]);
        let attention = |(query, key, value): (Tensor, Tensor, Tensor)| {
            let (mixed, log_total) = attention_over(form, [query.expand(2), key, value], [same; 2], [places; 2], None);
            (mixed.reshape(DIMS), log_total.reshape([batch, heads, length]))
        };
        let loss = |operands| {
            let (mixed, log_total) = attention(operands);
            (mixed * ct).sum(..) + (log_total * log_total_ct).sum(..)
        };
        let expected = value_and_grad((query, key, value), loss).1;
        let (mixed, log_total) = attention((query, key, value));
        let given = result_with_flow((mixed * ct).sum(-1) - log_total_ct, ct);
        // As cuDNN: what it is given, and nothing else, says what flows back through the sum of weights.
        let flow = (given * ct).sum(-1);
        let scale = form.scale.get();
        let scores = einsum("bhtd,bhsd->bhts", &[query, key]) * scale;
        let by_score = |x: Tensor| x.broadcast_like(scores, [0, 1, 2]);
        let [queries, keys] = [0, 1].map(|dim| iota(S32, [length, length], dim));
        let seen = keys.less_equal(queries) & (queries - keys).less(5.0);
        let weights = seen.broadcast_like(scores, [2, 3]).select((scores - by_score(log_total)).exp(), 0.0);
        let scores_ct = weights * (einsum("bhtd,bhsd->bhts", &[ct, value]) - by_score(flow)) * scale;
        let found = (
            einsum("bhts,bhsd->bhtd", &[scores_ct, key]),
            einsum("bhts,bhtd->bhsd", &[scores_ct, query]),
            einsum("bhts,bhtd->bhsd", &[weights, ct]),
        );
        (found, expected)
    });
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let found = results(&graph, &LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() });
    for (index, name) in ["queries", "keys", "values"].iter().enumerate() {
        let error = relative_error(&found[index], &found[index + 3]);
        assert!(error <= 1e-5, "{name}: {error:.1e}");
    }
}
