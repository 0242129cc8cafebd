//! Causal attention, forward and backward, on one CPU device: blockwise, beside the plain form and JAX, in turn.
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench attention             # 512, 2048 and 8192
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench attention -- 2048 10  # ten rounds of one
//! cargo bench --bench attention -- memory                                # temporaries by length
//! ```
//!
//! `memory` compiles for a CPU, and ahead of time for a v5p and an H100: one row, 8 heads of 128, `bf16`. The plain
//! form is compiled up to 8192.
//!
//! The other forms have one row, 8 heads of 64, `f32`. The bench prints the median milliseconds of each, the
//! temporaries that XLA assigns, and the distance of the values. The plain forms take 6 GiB at 8192. Without JAX its
//! columns are empty.

use std::time::Instant;

use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::DType::{BF16, F32};
use meshloom::ir::{DType, Graph, Literal};
use meshloom::kernels::Kernels;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{Array, Client, CompileOptions, Platform, Topology, worker};
use meshloom::trace::{Function, TensorSpec, value_and_grad};
use meshloom_benches::jax::Jax;
use meshloom_nn::causal_attention;

const HEADS: usize = 8;
const WIDTH: usize = 64;
const MIB: f64 = (1 << 20) as f64;

/// Attention of rows with its gradient, to a weighted sum of what it mixes.
fn gradient(dtype: DType, length: usize, width: usize) -> anyhow::Result<Graph> {
    let spec = || TensorSpec::new(dtype, [1, HEADS, length, width]);
    let function = Function::trace("attention", (spec(), spec(), spec(), spec()), |(query, key, value, weights)| {
        value_and_grad((query, key, value), |(query, key, value)| {
            let [query, key, value] = [query, key, value].map(|x| x.transpose([0, 2, 1, 3]));
            (causal_attention(query, key, value) * weights.transpose([0, 2, 1, 3])).convert(F32).sum(..)
        })
    })?;
    Ok((**function.graph()).clone())
}

/// A compiled form with its inputs.
struct Form {
    program: Program,
    inputs: Vec<Array>,
}

impl Form {
    fn new(client: &Client, length: usize, kernels: Kernels) -> anyhow::Result<Form> {
        let options = LowerOptions { kernels, ..LowerOptions::default() };
        let program = lower(&gradient(F32, length, WIDTH)?, &options)?.compile(client)?;
        let ty = || TensorSpec::new(F32, [1, HEADS, length, WIDTH]).ty;
        let literal =
            |seed: usize| Literal::from_fn(ty(), |index| ((index * (7 + seed) % 97) as f64 / 48.5 - 1.0) * 0.7);
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
        Ok(self.program.executable().memory_stats()?.temporary as f64 / MIB)
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Prints the temporaries of each length, in MiB, on each platform.
fn memory() -> anyhow::Result<()> {
    let client = Client::cpu(1)?;
    println!("target        length  implementation  MiB  plain MiB");
    for target in ["cpu", "v5p:2x2x1", "h100:1x1x1"] {
        let topology = if target == "cpu" { None } else { Some(Topology::parse(target)?) };
        let platform: Platform = match &topology {
            None => client.platform().clone(),
            Some(topology) => ahead_of_time::describe(topology, &Settings::default())?.platform,
        };
        for length in [2048, 4096, 8192, 16384, 32768] {
            let graph = gradient(BF16, length, 128)?;
            let temporaries = |kernels: Kernels| -> anyhow::Result<(f64, String)> {
                let lowered = lower(&graph, &LowerOptions { kernels, ..LowerOptions::default() })?;
                let stats = match &topology {
                    None => lowered.compile(&client)?.executable().memory_stats()?,
                    Some(topology) => {
                        let (bytes, options) = (&lowered.module.bytes, CompileOptions::default());
                        ahead_of_time::compile(topology, bytes, &options, &Settings::default())?.memory_stats()?
                    }
                };
                Ok((stats.temporary as f64 / MIB, lowered.kernels[0].implementation.clone()))
            };
            let (own, implementation) = temporaries(Kernels::on(&platform))?;
            let plain = if length > 8192 { f64::NAN } else { temporaries(Kernels::plain())?.0 };
            println!("{target:12} {length:7} {implementation:>15} {own:8.1} {plain:8.1}");
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    worker::run_if_asked();
    if std::env::args().any(|argument| argument == "memory") {
        return memory();
    }
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
