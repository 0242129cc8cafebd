//! The default decoder's train step on one CPU device, beside the same step in JAX: one step of each in turn, so that
//! both see the same machine.
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench step -- [rounds] [JAX options, such as --unrolled or --remat dots]
//! ```
//!
//! The Python must have `jax` and `numpy`; without one, only our own step is timed. The bench prints the smallest and
//! the median seconds of each side, and the ratio ours / JAX of both. `MESHLOOM_BENCH_SET` holds config overrides for
//! our side, separated by commas.

use meshloom::pjrt::{Client, ClientOptions, Plugin};
use meshloom_benches::jax::Jax;
use meshloom_benches::smallest_and_median;
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;

fn main() -> anyhow::Result<()> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = arguments.first().and_then(|argument| argument.parse::<usize>().ok());
    let options = &arguments[usize::from(rounds.is_some())..];
    let rounds = rounds.unwrap_or(20).max(1);
    let mut overrides = vec![meshloom_benches::text(), "mesh.axes=data=1".to_owned(), "target.devices=1".to_owned()];
    let own = std::env::var("MESHLOOM_BENCH_SET").unwrap_or_default();
    overrides.extend(own.split(',').filter(|text| !text.is_empty()).map(str::to_owned));

    let config = RunConfig::from_overrides(&overrides)?;
    let plugin = Plugin::find("cpu")?;
    let client = Client::new(&plugin, &ClientOptions { device_count: Some(1), ..ClientOptions::default() })?;
    let mut trainer = Trainer::new(&config, &client)?;
    println!(
        "meshloom: lowered in {:.2} ms, compiled in {:.2} s",
        1e3 * trainer.lower_seconds(),
        trainer.compile_seconds()
    );
    let mut jax = match Jax::start("step.py", options) {
        Ok((jax, seconds)) => {
            println!("JAX {}: compiled in {seconds} s", options.join(" "));
            Some(jax)
        }
        Err(error) => {
            println!("JAX is left out: {error:#}");
            None
        }
    };
    for _ in 0..3 {
        trainer.step()?;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(trainer.step()?.step_seconds);
        if let Some(jax) = &mut jax {
            theirs.push(jax.step()?.0);
        }
    }
    let (own_smallest, own_median) = smallest_and_median(&ours);
    println!("meshloom: smallest {own_smallest:.3} s, median {own_median:.3} s of {rounds} steps");
    if !theirs.is_empty() {
        let (smallest, median) = smallest_and_median(&theirs);
        println!("JAX:      smallest {smallest:.3} s, median {median:.3} s");
        println!("ratio:    {:.3} of the smallest, {:.3} of the medians", own_smallest / smallest, own_median / median);
    }
    Ok(())
}
