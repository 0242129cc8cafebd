//! The loss of a large vocabulary and its gradients, on one CPU device: in chunks, beside all logits at once, in turn;
//! and beside both forms in JAX (benches/jax/loss.py).
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench loss -- [TOKENS EMBED VOCAB ROUNDS CHUNKS..]
//! ```
//!
//! One row of tokens, `f32`. By default 1024 tokens, a vocabulary of 128 Ki, embed 512 and then 1024, in 2, 4 and 8
//! chunks, five rounds: it takes 3 GiB. The bench prints the smallest and the median seconds of each, the ratio of the
//! smallest to that of all logits at once in meshloom, and the temporaries that XLA assigns. It stops if losses differ
//! by more than 1e-5. Without a Python that has JAX, ours alone is printed.

use std::time::Instant;

use anyhow::ensure;
use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::hlo::table::Table;
use meshloom::ir::DType::{F32, S32};
use meshloom::ir::Literal;
use meshloom::pjrt::{Array, Client};
use meshloom::trace::{Function, TensorSpec, einsum, value_and_grad};
use meshloom_benches::jax::Jax;
use meshloom_benches::smallest_and_median;
use meshloom_nn::{HeadLoss, cross_entropy, head_loss};

const MIB: f64 = (1 << 20) as f64;

#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    embed: usize,
    vocab: usize,
}

/// One way to make the loss and its gradients.
enum Form {
    Own(Program, Vec<Array>),
    Jax(Jax),
}

struct Measured {
    name: String,
    form: Form,
    temporaries: f64,
    seconds: Vec<f64>,
    loss: f64,
}

impl Measured {
    fn own(client: &Client, sizes: Sizes, chunks: usize) -> anyhow::Result<Measured> {
        let Sizes { tokens, embed, vocab } = sizes;
        let per_token = |dtype| TensorSpec::new(dtype, [1, tokens]);
        let x = TensorSpec::new(F32, [1, tokens, embed]);
        let specs = ((x, TensorSpec::new(F32, [embed, vocab])), per_token(S32), per_token(F32));
        let function = Function::trace("loss", specs.clone(), |(factors, targets, weights)| {
            value_and_grad(factors, |(x, matrix)| match chunks {
                1 => cross_entropy(einsum("bte,ev->btv", &[x, matrix]), targets, weights),
                _ => {
                    let config = HeadLoss { tied: false, z_loss: 0.0, chunks, logit_cap: None };
                    head_loss(&config, x, matrix, targets, weights / tokens as f64)
                }
            })
        })?;
        let program = lower(function.graph(), &LowerOptions::default())?.compile(client)?;
        // As in loss.py.
        let number = |index: usize, scale: f64| (index * 7 % 97) as f64 / 48.5 * scale - scale;
        let ((x, matrix), targets, weights) = specs;
        let inputs = vec![
            Literal::from_fn(x.ty, |index| number(index, 1.0)),
            Literal::from_fn(matrix.ty, |index| number(index, 0.1)),
            Literal::from_fn(targets.ty, |index| (index * 7919 % vocab) as f64),
            Literal::from_fn(weights.ty, |_| 1.0),
        ];
        let inputs = program.put(0, &inputs)?;
        let temporaries = program.executable().memory_stats()?.temporary as f64;
        let form = Form::Own(program, inputs);
        Ok(Measured { name: format!("meshloom, {}", in_chunks(chunks)), form, temporaries, seconds: vec![], loss: 0.0 })
    }

    /// JAX's, if there is a JAX.
    fn jax(Sizes { tokens, embed, vocab }: Sizes, chunks: usize) -> Option<Measured> {
        let options = [("tokens", tokens), ("embed", embed), ("vocab", vocab), ("chunks", chunks)];
        let options: Vec<String> = options.iter().map(|(name, size)| format!("--{name}={size}")).collect();
        let (jax, ready) = Jax::start("loss.py", &options).ok()?;
        let temporaries = ready.parse().ok()?;
        let name = format!("JAX, {}", in_chunks(chunks));
        Some(Measured { name, form: Form::Jax(jax), temporaries, seconds: vec![], loss: 0.0 })
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let (seconds, loss) = match &mut self.form {
            Form::Own(program, inputs) => {
                let start = Instant::now();
                let outputs = program.run(&inputs.iter().collect::<Vec<_>>())?;
                let loss = outputs[0].get()?.to_f64_vec()[0];
                (start.elapsed().as_secs_f64(), loss)
            }
            Form::Jax(jax) => jax.step()?,
        };
        self.seconds.push(seconds);
        self.loss = loss;
        Ok(())
    }
}

fn in_chunks(chunks: usize) -> String {
    if chunks == 1 { "all at once".to_owned() } else { format!("{chunks} chunks") }
}

fn measure(sizes: Sizes, rounds: usize, chunks: &[usize]) -> anyhow::Result<()> {
    let Sizes { tokens, embed, vocab } = sizes;
    let client = Client::cpu(1)?;
    let all = || std::iter::once(1).chain(chunks.iter().copied());
    let mut forms = all().map(|chunks| Measured::own(&client, sizes, chunks)).collect::<anyhow::Result<Vec<_>>>()?;
    forms.extend(all().map_while(|chunks| Measured::jax(sizes, chunks)));
    for _ in 0..=rounds {
        forms.iter_mut().try_for_each(Measured::step)?;
    }
    let loss = forms[0].loss;
    for Measured { name, loss: other, .. } in &forms {
        ensure!((other - loss).abs() <= 1e-5 * loss.abs(), "{name}: the loss is {other}, but {loss} at once");
    }
    // The first touches memory for the first time.
    let of = |form: &Measured| smallest_and_median(&form.seconds[1..]);
    let (at_once, _) = of(&forms[0]);
    let table = Table::of(&forms)
        .text("form", |form| form.name.clone())
        .number("smallest ms", |form| format!("{:.0}", 1e3 * of(form).0))
        .number("median ms", |form| format!("{:.0}", 1e3 * of(form).1))
        .number("ratio", |form| format!("{:.2}", of(form).0 / at_once))
        .number("temporaries MiB", |form| format!("{:.0}", form.temporaries / MIB));
    println!("{tokens} tokens, embed {embed}, vocabulary {vocab}\n{table}");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    if let [tokens, embed, vocab, rounds, chunks @ ..] = &numbers[..] {
        return measure(Sizes { tokens: *tokens, embed: *embed, vocab: *vocab }, *rounds, chunks);
    }
    [512, 1024].into_iter().try_for_each(|embed| measure(Sizes { tokens: 1024, embed, vocab: 1 << 17 }, 5, &[2, 4, 8]))
}
