//! A stack of layers as one loop: parameters in a tree, one layer traced once, the module's size independent of depth.
//!
//! ```text
//! cargo run --release --example 03_scan_a_layer_stack
//! ```

use std::time::Instant;

use meshloom::Error;
use meshloom::prelude::*;
use meshloom_nn::rms_norm;

const WIDTH: usize = 64;

meshloom::tree! {
    /// Parameters of one layer, or of a stack of layers with a leading dimension.
    struct Layer<T> {
        norm: T,
        up: T,
        down: T,
    }
}

/// Each parameter states its type, the names of its dimensions, and its first value.
fn parameters() -> Layer<Param> {
    let matrix =
        |rows, columns, axes: &[&str]| Param::new(F32, [rows, columns], axes, Init::Normal((rows as f64).powf(-0.5)));
    Layer {
        norm: Param::new(F32, [WIDTH], &["norm"], Init::Constant(1.0)),
        up: matrix(WIDTH, 4 * WIDTH, &["embed", "mlp"]),
        down: matrix(4 * WIDTH, WIDTH, &["mlp", "embed"]),
    }
}

fn layer(x: Tensor, params: &Layer<Tensor>) -> Tensor {
    x + rms_norm(x, params.norm, 1e-5).matmul(params.up).maximum(0.0).matmul(params.down)
}

/// The stack as a loop, or with the nodes of every layer written out.
fn stack(x: Tensor, layers: Layer<Tensor>, depth: usize, unrolled: bool) -> Tensor {
    if !unrolled {
        return scan(x, layers, |x, params| (layer(x, &params), ())).0;
    }
    (0..depth).fold(x, |x, index| layer(x, &layers.map(|_, stacked| stacked.index(index as i64))))
}

fn main() -> Result<(), Error> {
    println!("{:>7}  {:>10}  {:>7}  {:>10}  {:>12}", "layers", "form", "nodes", "HLO bytes", "trace + emit");
    for (depth, unrolled) in [(4, false), (64, false), (4, true), (64, true)] {
        let layers = parameters().map(|_, param| param.clone().stacked(depth).spec);
        let start = Instant::now();
        let inputs = (TensorSpec::new(F32, [2, WIDTH]), layers);
        let function = Function::trace("stack", inputs, |(x, layers)| stack(x, layers, depth, unrolled))?;
        let lowered = lower(function.graph(), &LowerOptions::default())?;
        let time = start.elapsed();
        let form = if unrolled { "unrolled" } else { "scanned" };
        let (nodes, bytes) = (lowered.graph().total_node_count(), lowered.module.bytes.len());
        println!("{depth:>7}  {form:>10}  {nodes:>7}  {bytes:>10}  {:>9.2} ms", 1e3 * time.as_secs_f64());
    }

    // Both forms are the same function of the same stacked parameters.
    let depth = 4;
    let params = parameters().map(|_, param| param.clone().stacked(depth));
    println!("\nparameters: {}", params.paths().join(", "));
    let values = initialize(&params, 0)?;
    let x = Literal::vector(&[1f32; WIDTH]);
    let client = Client::cpu(1)?;
    for unrolled in [false, true] {
        let specs = (TensorSpec::new(F32, [WIDTH]), &params);
        let function = Function::trace("stack", specs, |(x, layers)| {
            stack(x.expand(0), layers, depth, unrolled).square().mean(..)
        })?;
        let compiled = compile(&function, &client, &LowerOptions::default())?;
        println!("unrolled {unrolled}: {:?}", compiled.call(&(x.clone(), values.clone()))?);
    }
    Ok(())
}
