//! Trains something that is not a decoder: a small vision transformer, over eight virtual CPU devices and a pipeline of
//! two stages. Half way it stops, and continues from its checkpoint.
//!
//! ```text
//! cargo run --release -p meshloom-train --example vision_transformer
//! ```

mod model;

use meshloom::pjrt::Client;
use meshloom_train::checkpoint::{self, Checkpointer, Fallback, Start};
use meshloom_train::config::RunConfig;
use meshloom_train::{Error, Trainer};
use model::{Digits, PATCHES, VisionTransformer};

const STEPS: u64 = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let settings = [
        "mesh.axes=stage=2,fsdp=2,tensor=2".to_owned(),
        // Two stages, through which microbatches go twice, with one layer each time.
        "model.layers=4".to_owned(),
        "pipeline.repeats=2".to_owned(),
        "train.batch=64".to_owned(),
        "train.warmup=5".to_owned(),
        format!("model.seq={PATCHES}"),
        format!("train.steps={STEPS}"),
        format!("checkpoint.dir={:?}", directory.path()),
    ];
    let config = RunConfig::from_overrides(&settings).map_err(Error::from)?;
    let model = VisionTransformer { layers: 4, embed: 32, heads: 4, pipeline: config.pipeline_options()? };
    let client = Client::cpu(config.mesh().map_err(Error::from)?.device_count())?;

    let mut trainer = Trainer::of(config.resolve_for(model.clone())?, Digits, &client)?;
    let mut checkpointer = Checkpointer::new(&config.checkpoint, Start::Fresh)?;
    train(&mut trainer, STEPS / 2)?;
    trainer.save_checkpoint(&mut checkpointer)?;
    checkpointer.finish()?;

    let found = checkpoint::find(directory.path(), Fallback::Refuse)?.checkpoint;
    let mut trainer = Trainer::resume_run(config.resolve_for(model)?, Digits, &client, &found)?;
    println!("continues after step {}", trainer.steps_done());
    train(&mut trainer, STEPS)?;
    Ok(())
}

/// Trains up to a step.
fn train(trainer: &mut Trainer<VisionTransformer, Digits>, last: u64) -> Result<(), Error> {
    while trainer.steps_done() < last {
        let metrics = trainer.step()?;
        if metrics.step % 10 == 0 {
            println!("step {}: loss {:.4}", metrics.step, metrics.loss);
        }
    }
    Ok(())
}
