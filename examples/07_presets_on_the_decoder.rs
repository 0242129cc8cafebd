//! What a mesh and a preset make of a decoder's train step: where everything lies, what moves, what a device needs. No
//! plugin is needed for that: all of it is known before XLA sees the program.
//!
//! ```text
//! cargo run --release --example 07_presets_on_the_decoder
//! ```

use meshloom::{compile::Lowered, prelude::*, sharding::Role};
use meshloom_train::Error;
use meshloom_train::config::RunConfig;
use meshloom_train::step::aliases;

/// A decoder that eight devices can share along any axis.
const SMALL: [&str; 9] = [
    "model.layers=4",
    "model.embed=64",
    "model.heads=8",
    "model.kv_heads=8",
    "model.head_dim=16",
    "model.mlp=160",
    "model.vocab=2048",
    "model.seq=64",
    "train.batch=16",
];

/// The mesh and the preset; what differs between two lines is what a user would write.
const RUNS: [(&str, &str); 9] = [
    ("data=8", "decoder"),
    ("fsdp=8", "decoder"),
    ("tensor=8", "decoder"),
    ("tensor=8", "decoder-all-reduce"),
    ("context=8", "decoder"),
    ("expert=8", "decoder"),
    ("replica=2,fsdp=4", "decoder"),
    ("data=2,fsdp=2,tensor=2", "decoder"),
    ("fsdp=2,context=2,tensor=2", "decoder"),
];

fn lowered(config: &RunConfig, mesh: &str, preset: &str) -> Result<Lowered, Error> {
    let step = config.train_step()?.trace()?;
    let mesh = Mesh::parse(mesh, 8)?;
    // Strict: what does not fit is an error rather than left whole.
    let rules = RuleSets::uniform(Rules::preset(preset, true)?);
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        aliases: aliases(&step),
        deny_replication: true,
        ..LowerOptions::default()
    };
    Ok(lower(step.graph(), &options)?)
}

fn main() -> Result<(), Error> {
    let config = RunConfig::from_overrides(&SMALL.map(str::to_owned))?;

    let on_eight = lowered(&config, "fsdp=2,context=2,tensor=2", "decoder")?;
    let table = on_eight.sharded().map(|sharded| &sharded.table);
    println!("-- every parameter and named value; moments are split as their parameters are, and left out here");
    for line in table.iter().flat_map(|table| table.to_string().lines().map(str::to_owned).collect::<Vec<_>>()) {
        if !line.contains("state.optimizer") {
            println!("{}", line.trim_end());
        }
    }

    println!("\n-- of each device, in bytes");
    println!(
        "{:<26} {:<19} {:>11} {:>10} {:>10} {:>11} {:>11}",
        "mesh", "preset", "collectives", "executions", "sent", "parameters", "peak memory"
    );
    for (mesh, preset) in RUNS {
        let lowered = lowered(&config, mesh, preset)?;
        let (ledger, memory) = (lowered.collectives(), lowered.memory()?);
        let parameters = lowered
            .sharded()
            .map(|sharded| &sharded.table)
            .map_or(0, |table| table.input_bytes_per_device(Role::Params));
        println!(
            "{mesh:<26} {preset:<19} {:>11} {:>10} {:>10} {parameters:>11} {:>11}",
            ledger.count()?,
            ledger.executions()?.to_string(),
            ledger.moved_bytes()?.to_string(),
            memory.peak
        );
    }
    Ok(())
}
