//! Causal attention, forward and backward, on one CPU device: blockwise, beside the plain form, in turn.
//!
//! ```text
//! cargo bench -p meshloom-benches --bench attention -- [LENGTH QUERIES KEYS ROUNDS]
//! ```
//!
//! One row, 8 heads of 64, `f32`. Printed: the smallest seconds of each, their ratio, and the temporaries that XLA
//! assigns. By default lengths 512, 2048 and 8192; the plain form takes 6 GiB at 8192.

use std::time::Instant;

use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::DType::{F32, S32};
use meshloom::ir::Literal;
use meshloom::nn::{Blocks, Causal, blockwise_attention, causal_attention};
use meshloom::pjrt::{Array, Client};
use meshloom::trace::{Function, Tensor, TensorSpec, value_and_grad, zeros};

const HEADS: usize = 8;
const WIDTH: usize = 64;

fn program(
    client: &Client,
    length: usize,
    form: impl Fn([Tensor; 3]) -> Tensor,
) -> anyhow::Result<(Program, Vec<Array>)> {
    let spec = || TensorSpec::new(F32, [1, HEADS, length, WIDTH]);
    let function = Function::trace("attention", (spec(), spec(), spec(), spec()), |(query, key, value, weights)| {
        value_and_grad((query, key, value), |(query, key, value)| (form([query, key, value]) * weights).sum(..))
    })?;
    let program = lower(function.graph(), &LowerOptions::default())?.compile(client)?;
    let literal =
        |seed: usize| Literal::from_fn(spec().ty, |index| ((index * (7 + seed) % 97) as f64 / 48.5 - 1.0) * 0.7);
    let inputs = program.put(0, &(0..4).map(literal).collect::<Vec<_>>())?;
    Ok((program, inputs))
}

fn run(program: &Program, inputs: &[Array]) -> anyhow::Result<f64> {
    let start = Instant::now();
    let outputs = program.run(&inputs.iter().collect::<Vec<_>>())?;
    outputs[0].get()?;
    Ok(start.elapsed().as_secs_f64())
}

fn main() -> anyhow::Result<()> {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let cases = match numbers[..] {
        [length, queries, keys, rounds] => vec![(length, queries, keys, rounds)],
        _ => vec![(512, 128, 128, 20), (2048, 256, 256, 5), (8192, 512, 512, 2)],
    };
    let client = Client::cpu(1)?;
    for (length, queries, keys, rounds) in cases {
        let scale = (WIDTH as f64).powf(-0.5);
        let plain = program(&client, length, |qkv| {
            let [query, key, value] = qkv.map(|x| x.transpose([0, 2, 1, 3]));
            causal_attention(query, key, value).transpose([0, 2, 1, 3])
        })?;
        let blocks = Blocks { queries, keys };
        let blockwise = program(&client, length, |[query, key, value]| {
            let query = query.reshape([1, HEADS, 1, length, WIDTH]);
            let causal = (Causal { window: None }, blocks);
            let mixed = blockwise_attention(query, key, value, zeros(S32, [1, length]), causal, scale);
            mixed.reshape([1, HEADS, length, WIDTH])
        })?;
        let (mut plain_best, mut own_best) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..rounds {
            plain_best = plain_best.min(run(&plain.0, &plain.1)?);
            own_best = own_best.min(run(&blockwise.0, &blockwise.1)?);
        }
        let temporaries =
            |program: &Program| anyhow::Ok(program.executable().memory_stats()?.temporary as f64 / 1048576.0);
        println!(
            "{length} ({queries} x {keys}): plain {:.1} ms, {:.1} MiB; blockwise {:.1} ms, {:.1} MiB; ratio {:.3}",
            1e3 * plain_best,
            temporaries(&plain.0)?,
            1e3 * own_best,
            temporaries(&blockwise.0)?,
            own_best / plain_best
        );
    }
    Ok(())
}
