//! Traces a function, shows it as a graph and as HLO, compiles it with the CPU plugin and runs it.
//!
//! ```text
//! cargo run --release --example 01_trace_and_run
//! ```

use meshloom::Error;
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::GraphTextOptions;
use meshloom::prelude::*;

fn main() -> Result<(), Error> {
    // The closure runs once, on handles without values. Shapes are checked here; operators only append nodes.
    let inputs = (TensorSpec::new(F32, [2, 3]), TensorSpec::new(F32, [3, 2]));
    let function = Function::trace("softmax_of_product", inputs, |(x, w)| {
        let logits = scope("product", || x.matmul(w));
        scope("softmax", || {
            let weights = (logits - logits.max(-1).broadcast_like(logits, [0])).exp();
            weights / weights.sum(-1).broadcast_like(weights, [0])
        })
    })?;
    let text = function.graph().to_text(GraphTextOptions { origins: true, ..GraphTextOptions::default() });
    println!("-- the graph, with the scope and line of each node\n{text}");

    let lowered = lower(function.graph(), &LowerOptions::default())?;
    println!("-- the HLO module, {} bytes as a proto", lowered.module.bytes.len());
    println!("{}", print(&lowered.module.decode()?, &TextOptions::canonical()));

    let compiled = compile(&function, &Client::cpu(1)?, &LowerOptions::default())?;
    let x = Literal::matrix(&[[1f32, 2.0, 3.0], [0.0, 0.0, 0.0]]);
    let w = Literal::matrix(&[[1f32, 0.0], [0.0, 1.0], [1.0, 0.0]]);
    println!("-- the result\n{:?}", compiled.call(&(x, w))?);

    // A program whose types do not fit is an error that names the op, the types and this line.
    let inputs = (TensorSpec::new(F32, [2, 3]), TensorSpec::new(F32, [2, 3]));
    if let Err(error) = Function::trace("wrong", inputs, |(x, y)| x.matmul(y)) {
        println!("\n-- a wrong program\n{error}");
    }
    Ok(())
}
