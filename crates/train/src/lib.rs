//! Training a decoder: the run config, the data, the step and the loop around it.
//!
//! ```no_run
//! use meshloom::pjrt::Client;
//! use meshloom_train::{Trainer, config::RunConfig};
//!
//! # fn main() -> Result<(), meshloom_train::Error> {
//! let config = RunConfig::load("examples/configs/fsdp8.toml", &["train.steps=50".to_owned()])?;
//! let mut trainer = Trainer::new(&config, &Client::cpu(Trainer::device_count(&config)?)?)?;
//! for _ in 0..config.train.steps {
//!     println!("loss {}", trainer.step()?.loss);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Parameters depend only on the seed and their path, a batch only on the seed and the step, and neither on the mesh.
//! So the lines of runs on different meshes can be compared.

mod ahead;
mod alternatives;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod diloco;
mod error;
pub mod metrics;
mod model;
pub mod parameters;
mod prediction;
mod resolve;
pub mod run;
pub mod sample;
mod stage;
pub mod step;
pub mod tokenizer;
mod trainer;

pub use ahead::StepAhead;
pub use alternatives::{Alternative, RefusedAlternative};
pub use error::Error;
pub use model::{Dataset, Leaf, Model};
pub use prediction::{LayerCost, PipelineMemory, PipelinePrediction, Traffic};
pub use resolve::Run;
pub use stage::Stage;
pub use trainer::{Text, Trainer};
