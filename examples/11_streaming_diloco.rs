//! DiLoCo and Streaming DiLoCo: two replicas of a small decoder on four devices each, which train on their own and sync
//! now and then. Their losses, and what goes between them after each step.
//!
//! ```text
//! cargo run --release --example 11_streaming_diloco
//! ```

use meshloom::analysis::{AxisPart, Devices, step_inputs, traffic};
use meshloom::pjrt::Client;
use meshloom_train::config::RunConfig;
use meshloom_train::{Error, Trainer};

const SMALL: [&str; 11] = [
    "model.layers=4",
    "model.embed=64",
    "model.heads=4",
    "model.kv_heads=4",
    "model.head_dim=16",
    "model.mlp=160",
    "model.seq=64",
    "train.batch=16",
    "train.learning_rate=0.01",
    "mesh.axes=diloco=2,fsdp=4",
    "diloco.sync_period=10",
];
/// Two periods.
const STEPS: u64 = 20;

const FORMS: [(&str, &[&str]); 3] = [
    ("vanilla", &[]),
    ("streaming", &["diloco.streaming=true", "diloco.fragments=5", "diloco.overlap_steps=1"]),
    (
        "streaming, 4-bit",
        &["diloco.streaming=true", "diloco.fragments=5", "diloco.overlap_steps=1", "diloco.transport=int4"],
    ),
];

/// Bytes that each device sends over `diloco` in each step, from the program: of the branches that the step takes.
fn sent(config: &RunConfig) -> Result<Vec<u64>, Error> {
    let lowered = config.lower_train_step()?.1;
    let (mesh, module) = (config.mesh()?, lowered.module.decode()?);
    let axis = AxisPart::parse("diloco", &mesh)?;
    let devices = Devices::partitioned(mesh.device_count());
    let found = traffic(&module, devices, (&mesh, &axis), &step_inputs(&module, None), 0..STEPS);
    // The schedule depends on the step alone, so the least is the most.
    Ok(found.steps.iter().map(|step| step.moved_bytes.least).collect())
}

fn main() -> Result<(), Error> {
    let client = Client::cpu(8)?;
    let mut of_period = Vec::new();
    for (name, own) in FORMS {
        let overrides: Vec<String> = SMALL.iter().chain(own).map(|&text| text.to_owned()).collect();
        let config = RunConfig::from_overrides(&overrides)?;
        let sent = sent(&config)?;
        let mut trainer = Trainer::new(&config, &client)?;
        println!("-- {name}\nstep    loss  bytes over diloco");
        for bytes in &sent {
            let metrics = trainer.step()?;
            println!("{:>4}  {:.4}  {bytes:>9}", metrics.step, metrics.loss);
        }
        println!();
        of_period.push((sent.iter().take(10).sum::<u64>(), sent.iter().copied().max().unwrap_or(0)));
    }
    let [(vanilla, spike), (streaming, peak), (low_bit, _)] = of_period[..] else { return Ok(()) };
    println!(
        "in a period: vanilla {vanilla} bytes, at most {spike} in a step; streaming {streaming}, at most {peak}; 4-bit {low_bit}"
    );
    assert_eq!(vanilla, streaming, "the same bytes, at other times");
    assert!(3 * peak < spike && 6 * low_bit <= streaming);
    Ok(())
}
