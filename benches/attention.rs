//! Causal attention, forward and backward, on one CPU device: blockwise, beside the plain form and JAX, in turn.
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench -p meshloom-benches --bench attention             # 512, 2048 and 8192
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench -p meshloom-benches --bench attention -- 2048 10  # ten rounds of one
//! ```
//!
//! One row, 8 heads of 64, `f32`. Printed: the median milliseconds of each, the temporaries that XLA assigns, and how
//! far the values are apart. The plain forms take 6 GiB at 8192. Without JAX its columns are empty.

use std::time::Instant;

use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::DType::F32;
use meshloom::ir::Literal;
use meshloom::kernels::Kernels;
use meshloom::nn::causal_attention;
use meshloom::pjrt::{Array, Client};
use meshloom::trace::{Function, TensorSpec, value_and_grad};
use meshloom_benches::jax::Jax;

const HEADS: usize = 8;
const WIDTH: usize = 64;

/// A compiled form with its inputs.
struct Form {
    program: Program,
    inputs: Vec<Array>,
}

impl Form {
    fn new(client: &Client, length: usize, kernels: Kernels) -> anyhow::Result<Form> {
        let spec = || TensorSpec::new(F32, [1, HEADS, length, WIDTH]);
        let function =
            Function::trace("attention", (spec(), spec(), spec(), spec()), |(query, key, value, weights)| {
                value_and_grad((query, key, value), |(query, key, value)| {
                    let [query, key, value] = [query, key, value].map(|x| x.transpose([0, 2, 1, 3]));
                    (causal_attention(query, key, value) * weights.transpose([0, 2, 1, 3])).sum(..)
                })
            })?;
        let options = LowerOptions { kernels, ..LowerOptions::default() };
        let program = lower(function.graph(), &options)?.compile(client)?;
        let literal =
            |seed: usize| Literal::from_fn(spec().ty, |index| ((index * (7 + seed) % 97) as f64 / 48.5 - 1.0) * 0.7);
        let inputs = program.put(0, &(0..4).map(literal).collect::<Vec<_>>())?;
        Ok(Form { program, inputs })
    }

    /// Seconds of a run, and the value.
    fn run(&self) -> anyhow::Result<(f64, f64)> {
        let start = Instant::now();
        let outputs = self.program.run(&self.inputs.iter().collect::<Vec<_>>())?;
        let values = outputs.iter().map(Array::get).collect::<Result<Vec<_>, _>>()?;
        Ok((start.elapsed().as_secs_f64(), values[0].to_f64_vec()[0]))
    }

    fn temporaries(&self) -> anyhow::Result<f64> {
        Ok(self.program.executable().memory_stats()?.temporary as f64 / f64::from(1 << 20))
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> anyhow::Result<()> {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let cases = match numbers[..] {
        [length, rounds] => vec![(length, rounds)],
        _ => vec![(512, 30), (2048, 7), (8192, 3)],
    };
    let client = Client::cpu(1)?;
    println!("length  blockwise ms  MiB  plain ms  MiB  ratio  JAX ms  MiB  ratio  difference");
    for (length, rounds) in cases {
        let blockwise = Form::new(&client, length, Kernels::default())?;
        let plain = Form::new(&client, length, Kernels::plain())?;
        let (mut jax, jax_temporaries) = match Jax::start("attention.py", &["--length".to_owned(), length.to_string()])
        {
            Ok((jax, temporaries)) => (Some(jax), temporaries),
            Err(_) => (None, String::new()),
        };
        let mut seconds: [Vec<f64>; 3] = Default::default();
        let mut difference = 0.0f64;
        for _ in 0..rounds {
            let (own, value) = blockwise.run()?;
            let (other, expected) = plain.run()?;
            seconds[0].push(own);
            seconds[1].push(other);
            difference = difference.max((value - expected).abs() / expected.abs());
            if let Some(jax) = &mut jax {
                let (other, expected) = jax.step()?;
                seconds[2].push(other);
                difference = difference.max((value - expected).abs() / expected.abs());
            }
        }
        let [own, other, third] = seconds.map(|seconds| if seconds.is_empty() { f64::NAN } else { median(seconds) });
        println!(
            "{length:6} {:9.1} {:9.1} {:9.1} {:9.1} {:9.2} {:9.1} {jax_temporaries:.8} {:9.2} {difference:9.1e}",
            1e3 * own,
            blockwise.temporaries()?,
            1e3 * other,
            plain.temporaries()?,
            own / other,
            1e3 * third,
            own / third,
        );
    }
    Ok(())
}
