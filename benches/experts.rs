//! Routed experts on one CPU device: grouped products in a loop over blocks of rows, in the plain form, and by JAX's
//! `ragged_dot` (benches/jax/experts.py), one step of each in turn.
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench experts              # both cases, five rounds
//! cargo bench --bench experts -- step ROUNDS EXPERTS PER_TOKEN TOKENS WIDTH MLP
//! cargo bench --bench experts -- blocks ROUNDS GROUPS ROWS INNER COLUMNS  # a product by all
//! cargo bench --bench experts -- count                                   # operations, by target
//! ```
//!
//! A step is the gradient of one block's mean square in tokens and weights, in `f32`; JAX starts from the same numbers,
//! and the bench stops if the losses differ. The bench prints the smallest seconds, and the temporaries that XLA
//! assigns.
//!
//! `count` compiles a step for a CPU, and ahead of time for four TPUs and a GPU, with ten blocks of 128 rows for each
//! expert on average. It reads the operations of grouped products off the compiled module, and prints them over those
//! of the tokens' rows alone. The trip count of a loop, and the number of blocks that a kernel visits, depend on data:
//! they are counted from random group sizes, and multiplied.

use std::time::Instant;

use anyhow::{Context, ensure};
use meshloom::analysis::{CostOptions, Devices, cost};
use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::hlo::PlatformKind;
use meshloom::ir::DType::{F32, S32};
use meshloom::ir::{Graph, Literal, TensorType};
use meshloom::kernels::{ExpertsKernel, KernelUse, Kernels};
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{Array, Client, CompileOptions, Topology, worker};
use meshloom::trace::{Function, TensorSpec, ragged_dot, value_and_grad, vjp};
use meshloom_benches::jax::Jax;
use meshloom_nn::{Moe, MoeConfig, moe};

const MIB: f64 = (1 << 20) as f64;

/// The same numbers as benches/jax/experts.py makes.
fn numbers(ty: TensorType, factor: usize, scale: f64) -> Literal {
    Literal::from_fn(ty, |index| ((index * factor % 9973) as f64 / 9973.0 - 0.5) * scale)
}

/// A program with inputs, and the smallest seconds that it took.
struct Timed {
    program: Program,
    inputs: Vec<Array>,
    best: f64,
    first: f64,
}

impl Timed {
    fn new(client: &Client, graph: &Graph, kernels: Kernels, inputs: &[Literal]) -> anyhow::Result<Timed> {
        let program = lower(graph, &LowerOptions { kernels, ..LowerOptions::default() })?.compile(client)?;
        let inputs = program.put(0, &inputs.to_vec())?;
        let mut timed = Timed { program, inputs, best: f64::INFINITY, first: 0.0 };
        timed.run()?;
        timed.best = f64::INFINITY;
        Ok(timed)
    }

    fn run(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        let outputs = self.program.run(&self.inputs.iter().collect::<Vec<_>>())?;
        let first = outputs[0].get()?;
        self.best = self.best.min(start.elapsed().as_secs_f64());
        self.first = first.to_f64_vec().first().copied().unwrap_or(f64::NAN);
        Ok(())
    }

    fn temporaries(&self) -> anyhow::Result<f64> {
        Ok(self.program.executable().memory_stats()?.temporary as f64 / MIB)
    }
}

/// A block of experts.
struct Case {
    experts: usize,
    per_token: usize,
    tokens: usize,
    embed: usize,
    mlp: usize,
}

/// Rows of a batch.
const BATCH: usize = 4;

impl Case {
    fn graph(&self) -> anyhow::Result<(Graph, Vec<Literal>)> {
        let Case { experts, per_token, tokens, embed, mlp } = *self;
        let config = MoeConfig { experts, experts_per_token: per_token, mlp, ..MoeConfig::default() };
        let spec = |dims: &[usize]| TensorSpec::new(F32, dims);
        let up = || spec(&[experts, embed, mlp]);
        let router = spec(&[embed, experts]);
        let params = Moe::new(router, up(), up(), spec(&[experts, mlp, embed]));
        let specs = (spec(&[BATCH, tokens / BATCH, embed]), params);
        let function = Function::trace("experts", specs, |inputs| {
            value_and_grad(inputs, |(x, params)| moe(x, &params, &config).0.square().mean(..))
        })?;
        let factors = [(7919, 4.0), (6131, 1.0), (4441, 0.5), (3571, 0.5), (2741, 0.5)];
        let types: Vec<TensorType> = function.graph().input_types().cloned().collect();
        let inputs = types.into_iter().zip(factors).map(|(ty, (factor, scale))| numbers(ty, factor, scale)).collect();
        Ok(((**function.graph()).clone(), inputs))
    }

    fn run(&self, client: &Client, rounds: usize) -> anyhow::Result<()> {
        let Case { experts, per_token, tokens, embed, mlp } = *self;
        let (graph, inputs) = self.graph()?;
        let mut looped = Timed::new(client, &graph, Kernels::default(), &inputs)?;
        let mut plain = Timed::new(client, &graph, Kernels::plain(), &inputs)?;
        let options = [
            ("--experts", experts),
            ("--per-token", per_token),
            ("--batch", BATCH),
            ("--length", tokens / BATCH),
            ("--embed", embed),
            ("--mlp", mlp),
        ];
        let options: Vec<String> =
            options.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]).collect();
        let mut jax = Jax::start("experts.py", &options);
        let mut jax_best = f64::INFINITY;
        for _ in 0..rounds {
            looped.run()?;
            plain.run()?;
            if let Ok((jax, _)) = &mut jax {
                let (seconds, loss) = jax.step()?;
                jax_best = jax_best.min(seconds);
                ensure!((loss / looped.first - 1.0).abs() < 1e-4, "JAX's loss is {loss}, ours {}", looped.first);
            }
        }
        ensure!((plain.first / looped.first - 1.0).abs() < 1e-4, "losses {} and {}", plain.first, looped.first);
        println!(
            "{experts} experts, {per_token} of them for each of {tokens} tokens, widths {embed} and {mlp}: \
             loop {:.1} ms, {:.1} MiB; plain {:.1} ms, {:.1} MiB; loop / plain {:.3}",
            1e3 * looped.best,
            looped.temporaries()?,
            1e3 * plain.best,
            plain.temporaries()?,
            looped.best / plain.best
        );
        match jax {
            Ok(_) => println!("  JAX {:.1} ms; loop / JAX {:.3}", 1e3 * jax_best, looped.best / jax_best),
            Err(error) => println!("  JAX is left out: {error:#}"),
        }
        Ok(())
    }
}

/// One grouped product.
#[derive(Clone, Copy)]
struct Product {
    groups: usize,
    rows: usize,
    inner: usize,
    columns: usize,
}

impl Product {
    /// The product by rows, or the one that is contracted over them, and inputs for it.
    fn graph(self, is_contracted: bool) -> anyhow::Result<Graph> {
        let Product { groups, rows, inner, columns } = self;
        let spec = |dims: &[usize]| TensorSpec::new(F32, dims);
        let sizes = TensorSpec::new(S32, [groups]);
        let matrices = spec(&[groups, inner, columns]);
        let function = if is_contracted {
            Function::trace(
                "contracted",
                (spec(&[rows, inner]), spec(&[rows, columns]), sizes),
                |(rows, ct, sizes)| {
                    let matrices = meshloom::trace::zeros(F32, [groups, inner, columns]);
                    vjp(matrices, |matrices| ragged_dot(rows, matrices, sizes), |_| ct).1
                },
            )?
        } else {
            Function::trace("rows", (spec(&[rows, inner]), matrices, sizes), |(rows, matrices, sizes)| {
                ragged_dot(rows, matrices, sizes)
            })?
        };
        Ok((**function.graph()).clone())
    }

    fn inputs(self, graph: &Graph) -> anyhow::Result<Vec<Literal>> {
        let types: Vec<TensorType> = graph.input_types().cloned().collect();
        let sizes = Literal::from_slice(&[self.groups], &random_sizes(self.groups, self.rows))?;
        Ok(vec![numbers(types[0].clone(), 7919, 1.0), numbers(types[1].clone(), 6131, 1.0), sizes])
    }

    /// Times the plain form and all sizes of a block.
    fn compare(self, client: &Client, rounds: usize) -> anyhow::Result<()> {
        let Product { groups, rows, inner, columns } = self;
        for is_contracted in [false, true] {
            let graph = self.graph(is_contracted)?;
            let inputs = self.inputs(&graph)?;
            let mut all = vec![("plain".to_owned(), Timed::new(client, &graph, Kernels::plain(), &inputs)?)];
            for platform in [PlatformKind::Cpu, PlatformKind::Tpu] {
                for block in [16, 32, 64, 128, 256] {
                    let kernels = Kernels { rows: Some(block), ..Kernels::portable(platform) };
                    let start = if platform == PlatformKind::Cpu { "" } else { " by tiles" };
                    all.push((format!("{block}{start}"), Timed::new(client, &graph, kernels, &inputs)?));
                }
            }
            for _ in 0..rounds {
                all.iter_mut().try_for_each(|(_, timed)| timed.run())?;
            }
            let what = if is_contracted { "contracted" } else { "rows" };
            print!("{what}, {groups} groups of {rows} rows, {inner} x {columns}:");
            all.iter().for_each(|(name, timed)| print!(" {name} {:.3} ms;", 1e3 * timed.best));
            println!();
        }
        Ok(())
    }
}

/// Groups of random sizes: how often a draw falls into each.
fn random_sizes(groups: usize, rows: usize) -> Vec<i32> {
    let mut sizes = vec![0; groups];
    let mut state = 88_172_645_463_325_252_u64;
    for _ in 0..rows {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sizes[(state >> 33) as usize % groups] += 1;
    }
    sizes
}

/// Returns the number of pairs of a block and a group with rows in it, if a group's first block starts at its first row
/// or at the multiple of `tile` before it.
fn visits(sizes: &[i32], block: usize, tile: usize) -> u64 {
    let mut end = 0;
    let of_group = |&size: &i32| {
        let start = end;
        end += size as usize;
        if size == 0 { 0 } else { (end - start / tile * tile).div_ceil(block) as u64 }
    };
    sizes.iter().map(of_group).sum()
}

impl Case {
    /// Prints what a step's products take on a target by its compiled module, over `2 * rows * embed * mlp` for each.
    fn count(&self, target: &str, client: &Client) -> anyhow::Result<()> {
        let Case { experts, per_token, tokens, embed, mlp } = *self;
        let topology = if target == "cpu" { None } else { Some(Topology::parse(target)?) };
        let platform = match &topology {
            None => client.platform().clone(),
            Some(topology) => ahead_of_time::describe(topology, &Settings::default())?.platform,
        };
        let options = LowerOptions { kernels: Kernels::on(&platform), ..LowerOptions::default() };
        let lowered = lower(&self.graph()?.0, &options)?;
        let module = match &topology {
            None => lowered.compile(client)?.executable().optimized_hlo()?.decode()?,
            Some(topology) => {
                let (bytes, options) = (&lowered.module.bytes, CompileOptions::default());
                ahead_of_time::compile(topology, bytes, &options, &Settings::default())?.optimized_hlo()?.decode()?
            }
        };
        let cost = cost(&module, &CostOptions::devices(Devices::partitioned(1)));
        let rows = tokens * per_token;
        let sizes = random_sizes(experts, rows);
        let product = 2 * (rows * embed * mlp) as u64;
        let (kernel, block) = block_of(&lowered.kernels)?;
        let (operations, tile) = if kernel == ExpertsKernel::Mosaic.name() {
            // A kernel states what all rows take; it goes through whole blocks of them.
            let kernels = cost.instructions.iter().filter(|entry| entry.op == "tpu_custom_call");
            let stated: u64 = kernels.map(|entry| entry.total.flops).sum();
            let visits = visits(&sizes, block, block);
            (stated as f64 * (visits * block as u64) as f64 / rows as f64, block)
        } else {
            // A loop's turns are data, so the module's cost has one of them.
            let tile = if platform.kind() == PlatformKind::Cpu { 1 } else { 16 };
            let once: u64 = cost.loops.iter().filter(|own| own.trip_count.is_none()).map(|own| own.total.flops).sum();
            ((once * visits(&sizes, block, tile)) as f64, tile)
        };
        println!(
            "{target:10} {experts:4} experts, top {per_token}, {tokens:7} tokens: {kernel}, {block} rows from multiples \
             of {tile}: {:.3}",
            operations / (9 * product) as f64
        );
        Ok(())
    }
}

/// Returns the implementation of grouped products, and the rows of its blocks.
fn block_of(uses: &[KernelUse]) -> anyhow::Result<(&str, usize)> {
    let found = uses.iter().find(|found| found.op.starts_with("ragged")).context("no grouped product")?;
    let rows = found.how.strip_prefix("blocks of ").and_then(|how| how.split(' ').next());
    Ok((&found.implementation, rows.context("no blocks of rows")?.parse()?))
}

fn main() -> anyhow::Result<()> {
    worker::run_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let numbers: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let client = Client::cpu(1)?;
    match (arguments.first().map(String::as_str), &numbers[..]) {
        (Some("blocks"), &[rounds, groups, rows, inner, columns]) => {
            Product { groups, rows, inner, columns }.compare(&client, rounds)
        }
        (Some("count"), []) => {
            for (experts, per_token) in [(8, 2), (64, 8), (256, 8)] {
                let tokens = 10 * experts * 128 / per_token;
                let case = Case { experts, per_token, tokens, embed: 256, mlp: 128 };
                for target in ["cpu", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1", "h100:1x1x1"] {
                    case.count(target, &client)?;
                }
            }
            Ok(())
        }
        (Some("step"), &[rounds, experts, per_token, tokens, embed, mlp]) => {
            Case { experts, per_token, tokens, embed, mlp }.run(&client, rounds)
        }
        (None, []) => {
            Case { experts: 8, per_token: 2, tokens: 2048, embed: 256, mlp: 256 }.run(&client, 5)?;
            Case { experts: 64, per_token: 8, tokens: 2048, embed: 256, mlp: 256 }.run(&client, 3)
        }
        _ => anyhow::bail!("the arguments are none, `count`, `step` with six numbers, or `blocks` with five"),
    }
}
