//! Routed experts and latent attention against JAX (tests/oracle/experts.safetensors), values and gradients.

use meshloom::ir::TensorType;
use meshloom::trace::{Function, Tensor, arange, value_and_grad, zeros};
use meshloom_nn::{
    LatentAttention, LatentConfig, LatentQuery, Mlp, Moe, MoeConfig, RmsNorm, Rope, Rotary, Scoring, TokenPlaces,
    latent_attention, moe,
};
use safetensors::SafeTensors;

use meshloom::ir::{DType, Literal};
use meshloom::trace::TensorSpec;
use support::experts::*;

fn experts_of(x: &[Tensor]) -> Moe<Tensor> {
    let shared = x.get(4..7).map(|shared| Mlp { gate: shared[0], up: shared[1], down: shared[2] });
    Moe { shared, ..Moe::new(x[0], x[1], x[2], x[3]) }
}

fn latent_of(x: &[Tensor], is_narrow: bool) -> LatentAttention<Tensor> {
    let (query, x) = if is_narrow {
        (LatentQuery { wq_a: Some(x[0]), q_norm: Some(x[1]), wq_b: x[2] }, &x[3..])
    } else {
        (LatentQuery { wq_a: None, q_norm: None, wq_b: x[0] }, &x[1..])
    };
    LatentAttention { query, wkv_a: x[0], wk_rope: x[1], kv_norm: x[2], wkv_b: x[3], wo: x[4] }
}

/// Computes a case from `x` and its weights.
fn computation(case: &str, x: Tensor, weights: &[Tensor]) -> (Tensor, Tensor) {
    let config = MoeConfig { mlp: 4, ..experts(8, 3) };
    match case {
        "softmax" => moe(x, &experts_of(weights), &config),
        "sigmoid" => {
            let config = MoeConfig {
                experts_per_token: 2,
                shared_experts: 2,
                scoring: Scoring::Sigmoid,
                weight_scale: 2.5,
                expert_groups: 2,
                ..config
            };
            moe(x, &experts_of(weights), &config)
        }
        _ => {
            let [batch, length, _] = x.shape();
            let positions = arange(DType::S32, length).broadcast_to([batch, length]);
            let config = LatentConfig {
                heads: 2,
                q_lora: if case == "latent" { 6 } else { 0 },
                kv_lora: 5,
                nope_head_dim: 4,
                rope_head_dim: 2,
                v_head_dim: 3,
                scale: 6_f64.powf(-0.5),
                rope: Rope::new(2, 1e4),
                norm: RmsNorm::from(1e-5),
            };
            let rotary = Rotary::new(positions, &config.rope);
            let tokens = TokenPlaces::of_rows(zeros(DType::S32, [batch, length]));
            let params = latent_of(weights, case == "latent");
            (latent_attention(x, &params, &config, &rotary, tokens, None), zeros(DType::F32, []))
        }
    }
}

fn check(file: &SafeTensors<'_>, case: &str) {
    let stored = |kind: &str| -> Vec<Literal> {
        let names = (0..).map(|index| format!("{case}.{kind}{index:02}"));
        let literal = |name: String| {
            let view = file.tensor(&name).ok()?;
            Literal::from_bytes(TensorType::new(DType::F32, view.shape()), view.data()).ok()
        };
        names.map_while(literal).collect()
    };
    let inputs = stored("in");
    let specs: Vec<TensorSpec> = inputs.iter().map(|input| TensorSpec::new(DType::F32, &input.ty().dims)).collect();
    let function = Function::trace(case, specs, |mut inputs: Vec<Tensor>| {
        let probe = inputs.pop().expect("a probe");
        let (result, loss) = computation(case, inputs[0], &inputs[1..]);
        let (_, gradients) = value_and_grad(inputs, |inputs| {
            let (result, loss) = computation(case, inputs[0], &inputs[1..]);
            (result * probe).sum(..) + loss * 3.0
        });
        (vec![result, loss], gradients)
    });
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let expected: Vec<Vec<f64>> = stored("out").iter().map(Literal::to_f64_vec).collect();
    assert!(expected.len() > 6, "{case} has {} results", expected.len());
    check_equal(case, &run_on_one(&graph, &inputs), &expected, 1e-5);
}

#[test]
fn agrees_with_jax() {
    let bytes = std::fs::read(support::path("tests/oracle/experts.safetensors"));
    let bytes = bytes.expect("the golden file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    for case in ["softmax", "sigmoid", "latent", "latent_wide"] {
        check(&file, case);
    }
}
