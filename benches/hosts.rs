//! Measures the module that a host of a large run compiles, from the program itself: its bytes, and the time that it
//! takes to make it.
//!
//! ```text
//! cargo bench --bench hosts
//! ```
//!
//! Each host has eight devices. All hosts make the same module and compare its SHA-256 before they compile. Prints the
//! table of docs/clusters.md.

use std::time::Instant;

use anyhow::Result;
use meshloom_train::config::RunConfig;

const RUNS: usize = 5;

fn main() -> Result<()> {
    println!("| hosts | mesh | collectives by | module, KiB | made in, ms | keys in the store before the first step |");
    println!("|---|---|---|---|---|---|");
    for hosts in [8, 64, 1024] {
        for (platform, by) in [("cuda", "NCCL"), ("cpu", "MPI")] {
            let settings = [
                "model.preset=llama-3.1-8b".to_owned(),
                format!("mesh.axes=data={hosts},fsdp=8"),
                format!("train.batch={}", 8 * hosts),
                format!("target.platform={platform}"),
                "target.devices=8".to_owned(),
                format!("target.processes={hosts}"),
            ];
            let config = RunConfig::from_overrides(&settings)?;
            let mut seconds = Vec::new();
            let mut bytes = 0;
            for _ in 0..RUNS {
                let start = Instant::now();
                let (_, lowered) = config.lower_train_step()?;
                seconds.push(start.elapsed().as_secs_f64());
                bytes = lowered.module.bytes.len();
            }
            seconds.sort_by(f64::total_cmp);
            let median = 1e3 * seconds[RUNS / 2];
            let kib = bytes as f64 / 1024.0;
            println!("| {hosts} | `data={hosts},fsdp=8` | {by} | {kib:.0} | {median:.1} | {} |", keys(hosts));
        }
    }
    Ok(())
}

/// Keys that the processes of a run without evaluation have written when they begin to step, beside those of XLA's
/// clients: each its membership and its arrival at one barrier, which opens; and of five agreements (on the checkpoint,
/// the run config, the text, the train step, the state before the first step) each its own, but the first process the
/// outcome.
fn keys(hosts: usize) -> usize {
    let agreements = 5;
    2 * hosts + 1 + agreements * hosts
}
