//! The gradient of every example's loss on its own, over a mesh: `vmap` of `grad`. The batch keeps its name, so the
//! examples stay on the devices that hold them.
//!
//! ```text
//! cargo run --release -p meshloom-examples --example 13_per_example_gradients
//! ```

use meshloom::prelude::*;
use meshloom_nn::{Linear, linear};

const ROWS: usize = 16;
const WIDTH: usize = 8;

tree! {
    struct Mlp<T> {
        up: Linear<T>,
        down: Linear<T>,
    }
}

/// The loss of some rows: of a batch, or of one example as a batch of one.
fn loss(params: &Mlp<Tensor>, rows: Tensor) -> Tensor {
    let hidden = linear(rows, &params.up).gelu().with_axes(["batch", "mlp"]);
    (linear(hidden, &params.down).with_axes(["batch", "embed"]) - rows).square().mean(..)
}

fn main() -> Result<(), meshloom::Error> {
    let params = Mlp {
        up: Linear::new(F32, [WIDTH, 4 * WIDTH], &["embed", "mlp"], 0.3),
        down: Linear::new(F32, [4 * WIDTH, WIDTH], &["mlp", "embed"], 0.2),
    };
    let rows = TensorSpec::new(F32, [ROWS, WIDTH]).with_axes(&["batch", "embed"]);
    // The norm of each example's gradient, as clipping for differential privacy wants it, beside the whole batch's.
    let function = Function::trace("norms", (&params, &rows), |(params, rows)| {
        let of_each = vmap(rows, |row| global_norm(&grad(params.clone(), |params| loss(&params, row.expand(0)))));
        (of_each, global_norm(&grad(params, |params| loss(&params, rows))))
    })?
    .with_output_axes("0", &["batch"])?;

    let mesh = Mesh::parse("data=4,tensor=2", 8)?;
    let rules = [("batch", &["data"][..]), ("mlp", &["tensor"]), ("embed", &[])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules)?);
    let values = (initialize(&params, 0)?, Literal::from_fn(rows.ty.clone(), |index| (index as f64 * 0.7).sin()));
    let one = compile(&function, &Client::cpu(1)?, &LowerOptions::default())?.call(&values)?;
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    let compiled = compile(&function, &Client::cpu(8)?, &options)?;
    let eight = compiled.call(&values)?;
    println!("norm of the gradient\nexample one device eight devices");
    for (index, (one, eight)) in one.0.to_f64_vec().iter().zip(eight.0.to_f64_vec()).enumerate() {
        println!("{index:>7} {one:>10.6} {eight:>13.6}");
        assert!((one - eight).abs() <= 1e-5 * one);
    }
    println!(
        "  batch {:>10.6} {:>13.6}\n{}",
        one.1.to_f64_vec()[0],
        eight.1.to_f64_vec()[0],
        compiled.program().collectives()
    );
    Ok(())
}
