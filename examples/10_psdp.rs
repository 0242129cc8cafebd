//! Partially sharded data parallelism: two replicas that a slow link joins, four devices each. Parameters are whole in
//! each replica, the optimizer's state is split over both, and a batch is worked off in microbatches: the link is
//! crossed once a step.
//!
//! ```text
//! cargo run --release --example 10_psdp
//! ```

use meshloom::partition::CollectiveKind::{AllGather, ReduceScatter};
use meshloom::partition::Ledger;
use meshloom::prelude::*;
use meshloom::sharding::Role;
use meshloom_train::config::RunConfig;
use meshloom_train::{Error, Trainer};

/// A decoder that compiles in a second.
const SMALL: [&str; 8] = [
    "model.layers=2",
    "model.embed=64",
    "model.heads=4",
    "model.kv_heads=4",
    "model.head_dim=16",
    "model.mlp=160",
    "model.seq=64",
    "train.batch=64",
];
const STEPS: usize = 3;

fn config(mesh: &str, devices: usize, microbatches: usize) -> Result<RunConfig, Error> {
    let own = [
        format!("mesh.axes={mesh}"),
        format!("target.devices={devices}"),
        format!("train.microbatches={microbatches}"),
    ];
    let overrides: Vec<String> = SMALL.iter().map(|&text| text.to_owned()).chain(own).collect();
    Ok(RunConfig::from_overrides(&overrides)?)
}

/// Prints the values and bytes that a device sends between the replicas, by kind.
fn print(ledger: &Ledger) -> Result<(), Error> {
    for kind in [ReduceScatter, AllGather] {
        let of_kind = ledger.kind(kind);
        println!(
            "  {} {kind}: {} values, {} bytes",
            of_kind.count()?,
            of_kind.operands_moved()?,
            of_kind.moved_bytes()?
        );
    }
    println!("  in all, with the sums of single numbers: {} bytes", ledger.moved_bytes()?);
    Ok(())
}

/// The losses of some steps, and the parameters after them.
fn train(config: &RunConfig) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let client = Client::cpu(config.target.devices)?;
    let mut trainer = Trainer::new(config, &client)?;
    let losses = (0..STEPS).map(|_| Ok(trainer.step()?.loss)).collect::<Result<_, Error>>()?;
    let mut params = Vec::new();
    for array in trainer.state().params().leaves() {
        params.extend(array.get()?.to_f64_vec());
    }
    Ok((losses, params))
}

fn main() -> Result<(), Error> {
    let mut sent = Vec::new();
    for microbatches in [1, 2, 4, 8] {
        let lowered = config("replica=2,fsdp=4", 8, microbatches)?.lower_train_step()?.1;
        let over = lowered.collectives().over("replica");
        println!("-- {microbatches} microbatches: what crosses replica in a step");
        print(&over)?;
        assert_eq!(over.inside_loops().count()?, 0, "nothing crosses it in the loop over microbatches, or over layers");
        sent.push((over.count()?, over.moved_bytes()?));
        if let (4, Some(table)) = (microbatches, lowered.sharded().map(|sharded| &sharded.table)) {
            let [parameters, optimizer] =
                [Role::Params, Role::Optimizer].map(|role| table.input_bytes_per_device(role));
            println!("  a device holds {parameters} bytes of parameters, and {optimizer} of optimizer state");
        }
    }
    assert!(sent.iter().all(|it| *it == sent[0]), "however many microbatches: {sent:?}");

    let (losses, params) = train(&config("replica=2,fsdp=4", 8, 4)?)?;
    let (plain_losses, plain_params) = train(&config("", 1, 1)?)?;
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let difference =
        norm(&mut params.iter().zip(&plain_params).map(|(a, b)| a - b)) / norm(&mut plain_params.iter().copied());
    println!("\n-- {STEPS} steps on 8 devices in 4 microbatches, and on one device at once");
    println!("losses {losses:.5?}\n   and {plain_losses:.5?}");
    println!("parameters differ by {difference:.1e} of their norm");
    assert!(difference < 1e-5);
    Ok(())
}
