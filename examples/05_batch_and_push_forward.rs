//! Transforms that compose: gradients of every example by `vmap`, and the product of a Hessian with a vector by `jvp`.
//!
//! ```text
//! cargo run --release --example 05_batch_and_push_forward
//! ```

use meshloom::Error;
use meshloom::prelude::*;

/// The loss of one example under the weights `w`.
fn loss(w: Tensor, x: Tensor) -> Tensor {
    ((w * x).sum(..) - 1.0).square()
}

fn main() -> Result<(), Error> {
    let client = Client::cpu(1)?;
    let w = Literal::vector(&[0.5f32, -1.0]);
    let xs = Literal::matrix(&[[1f32, 2.0], [3.0, 4.0], [0.0, 1.0]]);

    // `w` is shared by all examples, the rows of `xs` are one each. The result is one computation, not a loop.
    let specs = (TensorSpec::new(F32, [2]), TensorSpec::new(F32, [3, 2]));
    let each = Function::trace("each", specs.clone(), |(w, xs)| vmap(xs, |x| grad(w, |w| loss(w, x))))?;
    let gradients = compile(&each, &client, &LowerOptions::default())?.call(&(w.clone(), xs.clone()))?;
    println!("-- one gradient for each example: {gradients:?}\n");
    println!("-- as a graph:\n{}", each.graph());

    // The gradient of the mean loss, pushed forward along `v`: how it changes when `w` moves that way.
    let hessian_product = Function::trace("hessian_product", (specs.0.clone(), specs), |(v, (w, xs))| {
        jvp(w, v, |w| grad(w, |w| vmap(xs, |x| loss(w, x)).mean(..))).1
    })?;
    let v = Literal::vector(&[1f32, 0.0]);
    let column = compile(&hessian_product, &client, &LowerOptions::default())?.call(&(v, (w, xs)))?;
    println!("-- first column of the Hessian of the mean loss: {column:?}");
    assert!((column.to_f64_vec()[0] - 20.0 / 3.0).abs() < 1e-5, "2 / 3 of the sum of squares");
    Ok(())
}
