//! Gradients: `value_and_grad`, a hand-written rule with `custom_vjp`, and what `checkpoint` keeps for the backward
//! pass.
//!
//! ```text
//! cargo run --release --example 02_differentiate
//! ```

use meshloom::Error;
use meshloom::ops::RematPolicy;
use meshloom::prelude::*;

fn main() -> Result<(), Error> {
    let client = Client::cpu(1)?;

    // The gradient of a scalar with respect to any tree of tensors has that tree's form. `x` is captured.
    let inputs = (TensorSpec::new(F32, [3]), (TensorSpec::new(F32, [3]), TensorSpec::new(F32, [])));
    let regression = Function::trace("regression", inputs, |(x, params)| {
        value_and_grad(params, |(weight, bias)| ((x * weight).sum(..) + bias - 1.0).square())
    })?;
    let params = (Literal::vector(&[0.5f32, -1.0, 0.0]), Literal::scalar(0.25f32));
    let run = compile(&regression, &client, &LowerOptions::default())?;
    let (value, (weight, bias)) = run.call(&(Literal::vector(&[1f32, 2.0, 3.0]), params))?;
    println!("-- value {value:?}, gradients {weight:?} and {bias:?}\n");

    // A function that rounds, with the gradient of the identity.
    let round = |x: Tensor| custom_vjp(x, |x| x.floor(), |x| (x.floor(), ()), |(), ct| ct);
    let rounded = Function::trace("rounded", TensorSpec::new(F32, [2]), |x| grad(x, |x| round(x * 3.0).sum(..)))?;
    let run = compile(&rounded, &client, &LowerOptions::default())?;
    println!("-- d/dx of floor(3x), straight through: {:?}\n", run.call(&Literal::vector(&[0.5f32, 1.5]))?);

    // Three layers in a loop. The first scan goes forward and stacks what the backward scan reads: the residuals.
    let stack = |policy: RematPolicy| {
        let inputs = (TensorSpec::new(F32, [8]), TensorSpec::new(F32, [3, 8, 8]));
        Function::trace("stack", inputs, |(x, weights)| {
            grad(weights, |weights| {
                let layer = |x: Tensor, weight| checkpoint(policy, (x, weight), |(x, w)| x.matmul(w).tanh().exp());
                scan(x, weights, |x, weight| (layer(x, weight), ())).0.sum(..)
            })
        })
    };
    println!(
        "-- without a checkpoint the forward scan stacks all intermediate values that rules ask for\n{}",
        stack(RematPolicy::None)?
    );
    println!(
        "-- a full checkpoint stacks the layers' inputs; the backward scan computes the layer again\n{}",
        stack(RematPolicy::Full)?
    );
    Ok(())
}
