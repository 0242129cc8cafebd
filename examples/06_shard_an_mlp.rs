//! Two layers over three meshes: the same rules give data parallelism, tensor parallelism, or both.
//!
//! ```text
//! cargo run --release --example 06_shard_an_mlp
//! ```

use meshloom::Error;
use meshloom::prelude::*;

const BATCH: usize = 32;
const EMBED: usize = 16;
const MLP: usize = 64;

tree! {
    /// The weights of the two layers, with the names of their dimensions: `[embed, mlp]` and `[mlp, embed]`.
    struct Weights<T> {
        up: T,
        down: T,
    }
}

fn weights() -> Weights<Param> {
    let normal = |rows: usize| Init::Normal((rows as f64).powf(-0.5));
    Weights {
        up: Param::new(F32, [EMBED, MLP], &["embed", "mlp"], normal(EMBED)),
        down: Param::new(F32, [MLP, EMBED], &["mlp", "embed"], normal(MLP)),
    }
}

fn main() -> Result<(), Error> {
    // A step of gradient descent. Nothing in it mentions a device: activations and weights only have names.
    let batch = TensorSpec::new(F32, [BATCH, EMBED]).with_axes(&["batch", "embed"]);
    let step = Function::trace_step("step", &weights(), &batch, |weights, x| {
        let (loss, gradients) = value_and_grad(weights.clone(), |weights| {
            let hidden = x.matmul(weights.up).relu().with_axes(["batch", "mlp"]);
            let y = hidden.matmul(weights.down).with_axes(["batch", "embed"]);
            (y - x).square().mean(..)
        });
        let descend = |weight: Tensor, gradient: Tensor| weight - gradient * 0.1;
        (Weights { up: descend(weights.up, gradients.up), down: descend(weights.down, gradients.down) }, loss)
    })?;

    let rules = [("batch", &["data"][..]), ("mlp", &["tensor"]), ("embed", &[])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules)?);
    let client = Client::cpu(8)?;
    let x = Literal::from_fn(batch.ty.clone(), |index| (index as f64 * 0.7).sin());
    let values = (initialize(&weights(), 0)?, x);
    let expected = compile(&step, &client, &LowerOptions::default())?.call(&values)?;
    println!("one device: loss {:?}", expected.1);

    // An axis of size 1 splits nothing, so the rules need not change with the mesh.
    for (mesh, all_reduces) in [("data=8,tensor=1", 1), ("data=1,tensor=8", 1), ("data=4,tensor=2", 2)] {
        let mesh = Mesh::parse(mesh, 8)?;
        let options =
            LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, ..LowerOptions::default() };
        let program = compile(&step, &client, &options)?;
        let result = program.call(&values)?;
        println!("\n-- {mesh}: loss {:?}, new weights differ by {:.1e}", result.1, difference(&result.0, &expected.0));
        assert!(difference(&result.0, &expected.0) < 1e-5);
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
    let flat = |weights: &Weights<Literal>| weights.leaves().iter().flat_map(Literal::to_f64_vec).collect::<Vec<f64>>();
    let pairs: Vec<(f64, f64)> = flat(actual).into_iter().zip(flat(expected)).collect();
    let square = |f: fn(&(f64, f64)) -> f64| pairs.iter().map(|pair| f(pair).powi(2)).sum::<f64>();
    (square(|(actual, expected)| actual - expected) / square(|(_, expected)| *expected)).sqrt()
}
