//! GPT-2 with its training loop, on one device and on a mesh: what a model of one's own takes, from parameters to
//! losses. `benches/jax/gpt2.py` is the same in JAX.
//!
//! ```text
//! cargo run --release -p meshloom-examples --example 12_gpt2
//! ```

use meshloom::optim::AdamWState;
use meshloom::prelude::*;
use meshloom_nn::{LayerNorm, Linear, causal_attention, cross_entropy, layer_norm, linear};

const LAYERS: usize = 2;
const EMBED: usize = 64;
const HEADS: usize = 4;
const VOCAB: usize = 128;
const LENGTH: usize = 32;
const BATCH: usize = 8;

tree! {
    struct Block<T> { norm1: LayerNorm<T>, qkv: Linear<T>, out: Linear<T>, norm2: LayerNorm<T>, up: Linear<T>, down: Linear<T> }
    struct Gpt2<T> { tokens: T, positions: T, layers: Block<T>, norm: LayerNorm<T> }
    struct State<T> { params: Gpt2<T>, optimizer: AdamWState<Gpt2<T>>, step: T }
}

fn parameters() -> Gpt2<Param> {
    let dense = |dims: &[usize], axes: &[&str]| Linear::new(F32, dims, axes, 0.02);
    let layer = Block {
        norm1: LayerNorm::new(F32, EMBED, "norm"),
        qkv: dense(&[EMBED, 3, HEADS, EMBED / HEADS], &["embed", "", "heads", ""]),
        out: dense(&[EMBED, EMBED], &["heads", "embed"]),
        norm2: LayerNorm::new(F32, EMBED, "norm"),
        up: dense(&[EMBED, 4 * EMBED], &["embed", "mlp"]),
        down: dense(&[4 * EMBED, EMBED], &["mlp", "embed"]),
    };
    Gpt2 {
        tokens: Param::new(F32, [VOCAB, EMBED], &["vocab", "embed"], Init::Normal(0.02)),
        positions: Param::new(F32, [LENGTH, EMBED], &["", "embed"], Init::Normal(0.01)),
        layers: layer.map(|_, param| param.clone().stacked(LAYERS)),
        norm: LayerNorm::new(F32, EMBED, "norm"),
    }
}

fn block(x: Tensor, p: &Block<Tensor>) -> Tensor {
    let qkv = linear(layer_norm(x, &p.norm1, 1e-5), &p.qkv);
    let [q, k, v] = [0, 1, 2].map(|part| qkv.index((.., .., part)).with_axes(["batch", "", "heads", ""]));
    let x = x + linear(causal_attention(q, k, v).reshape(x.dims()), &p.out).with_axes(["batch", "", ""]);
    let hidden = linear(layer_norm(x, &p.norm2, 1e-5), &p.up).gelu_tanh().with_axes(["batch", "", "mlp"]);
    x + linear(hidden, &p.down).with_axes(["batch", "", ""])
}

fn loss(params: &Gpt2<Tensor>, rows: Tensor) -> Tensor {
    let (inputs, targets) = (rows.slice(1, ..LENGTH), rows.slice(1, 1..));
    let x = (params.tokens.take(0, inputs) + params.positions.broadcast()).with_axes(["batch", "", ""]);
    let (x, ()) = scan(x, params.layers.clone(), |x, layer| (block(x, &layer), ()));
    let logits = einsum("bte,ve->btv", &[layer_norm(x, &params.norm, 1e-5), params.tokens]);
    cross_entropy(logits.with_axes(["batch", "", "vocab"]), targets, full(F32, targets.dims(), 1.0))
}

fn main() -> Result<(), meshloom::Error> {
    let (params, adamw) = (parameters(), AdamW::default());
    let step = Param::new(S32, [], &[], Init::Constant(0.0));
    let state = State { optimizer: adamw.state(&params), params: params.clone(), step };
    let rows = TensorSpec::new(S32, [BATCH, LENGTH + 1]).with_axes(&["batch", ""]);
    let train_step = Function::trace_step("train_step", &state, &rows, |state, rows| {
        let (loss, gradients) = value_and_grad(state.params.clone(), |params| loss(&params, rows));
        let (step, optimizer) = (state.step, &state.optimizer);
        let (params, optimizer) = adamw.update(&params, &state.params, &gradients, optimizer, step, 1e-2);
        (State { params, optimizer, step: step + 1 }, loss)
    })?;

    let rules = [("batch", &["data"][..]), ("heads", &["tensor"]), ("mlp", &["tensor"]), ("vocab", &["tensor"])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules)?);
    let rows = Literal::from_fn(rows.ty, |index| ((index % (LENGTH + 1)) * 7 % VOCAB) as f64);
    for (data, tensor) in [(1, 1), (2, 4)] {
        let mesh = Mesh::new([("data", data), ("tensor", tensor)])?;
        let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
        let compiled = compile(&train_step, &Client::cpu(mesh.device_count())?, &options)?;
        let mut state = compiled.put_state(&initialize(&state, 0)?)?;
        for step in 0..=20 {
            let loss;
            (state, loss) = compiled.step(state, &rows)?;
            if step % 10 == 0 {
                println!("{mesh} step {step}: loss {:?}", loss.get()?);
            }
        }
        println!("{}", compiled.program().collectives());
    }
    Ok(())
}
