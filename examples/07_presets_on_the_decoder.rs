//! Shows a decoder's train step on a mesh under a preset: where everything lies, which bytes move, and the memory that
//! a device needs. No plugin is needed: all of it is known before XLA sees the program.
//!
//! ```text
//! cargo run --release --example 07_presets_on_the_decoder
//! ```

use meshloom::sharding::Role;
use meshloom_train::Error;
use meshloom_train::config::RunConfig;

/// A decoder that eight devices can share along any axis.
const SMALL: [&str; 10] = [
    "model.layers=4",
    "model.embed=64",
    "model.heads=8",
    "model.kv_heads=8",
    "model.head_dim=16",
    "model.mlp=160",
    "model.vocab=2048",
    "model.seq=64",
    "train.batch=16",
    "partition.replication=deny",
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

fn config(mesh: &str, preset: &str) -> Result<RunConfig, Error> {
    let places = [format!("mesh.axes={mesh}"), format!("rules.preset={preset}")];
    Ok(RunConfig::from_overrides(&[&SMALL.map(str::to_owned)[..], &places].concat())?)
}

fn main() -> Result<(), Error> {
    println!("-- every parameter and named value; moments are split as their parameters are, and left out here");
    let table = config("fsdp=2,context=2,tensor=2", "decoder")?.resolve()?.debug_sharding()?;
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
        let (_, lowered) = config(mesh, preset)?.lower_train_step()?;
        let (ledger, memory) = (lowered.collectives(), lowered.memory()?);
        let parameters = lowered.sharded().map_or(0, |sharded| sharded.table.input_bytes_per_device(Role::Params));
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
