//! Two layers over three meshes: the same rules give data parallelism, tensor parallelism, or both.
//!
//! ```text
//! cargo run --release --example 06_shard_an_mlp
//! ```

use meshloom::Error;
use meshloom::compile::{LowerOptions, compile};
use meshloom::ir::{DType::F32, Literal};
use meshloom::nn::initialize;
use meshloom::pjrt::Client;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Init, Param, Tensor, TensorSpec, TraceError, Tree, value_and_grad};

const BATCH: usize = 32;
const EMBED: usize = 16;
const MLP: usize = 64;

meshloom::tree! {
    /// The weights of the two layers, with the names of their dimensions: `[embed, mlp]` and `[mlp, embed]`.
    struct Weights<T> {
        up: T,
        down: T,
    }
}

type Inputs = (Weights<TensorSpec>, TensorSpec);
type Outputs = (TensorSpec, Weights<TensorSpec>);

fn weights() -> Weights<Param> {
    let normal = |rows: usize| Init::Normal((rows as f64).powf(-0.5));
    Weights {
        up: Param::new(F32, [EMBED, MLP], &["embed", "mlp"], normal(EMBED)),
        down: Param::new(F32, [MLP, EMBED], &["mlp", "embed"], normal(MLP)),
    }
}

/// A step of gradient descent. Nothing in it mentions a device: activations and weights only have names.
fn step() -> Result<Function<Inputs, Outputs>, TraceError> {
    let batch = TensorSpec::new(F32, [BATCH, EMBED]).with_axes(&["batch", "embed"]);
    Function::trace("step", (weights(), batch), |(weights, x)| {
        let (loss, gradients) = value_and_grad(weights.clone(), |weights| {
            let hidden = x.matmul(weights.up).maximum(0.0).with_axes(["batch", "mlp"]);
            let y = hidden.matmul(weights.down).with_axes(["batch", "embed"]);
            (y - x).square().mean(..)
        });
        let descend = |weight: Tensor, gradient: Tensor| weight - gradient * 0.1;
        (loss, Weights { up: descend(weights.up, gradients.up), down: descend(weights.down, gradients.down) })
    })
}

fn main() -> Result<(), Error> {
    let rules = [("batch", &["data"][..]), ("mlp", &["tensor"]), ("embed", &[])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules)?);
    let function = step()?;
    let client = Client::cpu(8)?;
    let x: Vec<f32> = (0..BATCH * EMBED).map(|index| (index as f32 * 0.7).sin()).collect();
    let x = Literal::from_slice(&[BATCH, EMBED], &x)?;
    let values = (initialize(&weights(), 0), x);
    let expected = compile(&function, &client, &LowerOptions::default())?.call(&values)?;
    println!("one device: loss {:?}", expected.0);

    // An axis of size 1 splits nothing, so the rules need not change with the mesh.
    for (mesh, all_reduces) in [("data=8,tensor=1", 1), ("data=1,tensor=8", 1), ("data=4,tensor=2", 2)] {
        let mesh = Mesh::parse(mesh, 8)?;
        let options = LowerOptions {
            sharding: Some((&mesh, &rules)),
            // The new weights are laid out as the old, in whose buffers they are.
            aliases: vec![(1, 0), (2, 1)],
            deny_replication: true,
            ..LowerOptions::default()
        };
        let program = compile(&function, &client, &options)?;
        let result = program.call(&values)?;
        println!("\n-- {mesh}: loss {:?}, new weights differ by {:.1e}", result.0, difference(&result.1, &expected.1));
        assert!(difference(&result.1, &expected.1) < 1e-5);
        let ledger = program.program().collectives();
        for entry in ledger.iter()? {
            let (axes, count, bytes) = (entry.axes.join(","), entry.operand_count, entry.bytes);
            println!("{} over {axes}: {count} values, {bytes} bytes on each device", entry.kind);
        }
        // Data parallelism adds up the gradients, all in one; tensor parallelism what the second layer gives.
        assert_eq!(ledger.count()?, all_reduces);
    }
    Ok(())
}

/// The norm of the difference of all weights, over the norm of what they should be.
fn difference(actual: &Weights<Literal>, expected: &Weights<Literal>) -> f64 {
    let flat = |weights: &Weights<Literal>| -> Vec<f64> {
        weights.leaves().iter().flat_map(|literal| literal.to_f64_vec()).collect()
    };
    let (actual, expected) = (flat(actual), flat(expected));
    let square = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>();
    let differences = square(&mut actual.iter().zip(&expected).map(|(actual, expected)| actual - expected));
    (differences / square(&mut expected.iter().copied())).sqrt()
}
