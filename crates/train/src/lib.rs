//! Training a decoder: the run config, the data, the step and the loop around it.
//!
//! ```no_run
//! use meshloom_train::{Devices, Trainer, config::RunConfig};
//!
//! # fn main() -> Result<(), meshloom_train::Error> {
//! let config = RunConfig::load("examples/configs/fsdp8.toml", &["train.steps=50".to_owned()])?;
//! let Devices { config, client, .. } = config.open()?;
//! let mut trainer = Trainer::new(&config, &client)?;
//! for _ in 0..config.train.steps {
//!     println!("loss {}", trainer.step()?.loss);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Parameters depend only on the seed and their path, a batch only on the seed and the step, and neither on the mesh.
//! So the lines of runs on different meshes can be compared.
//!
//! By default a [`Trainer`] trains a decoder on text. [`Model`] and [`Dataset`] say what it needs of any
//! other model and its data; the example `vision_transformer` has one.
//!
//! The modules. Each names only those above it (`error` aside, whose type wraps all errors above it):
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the run config |
//! | [`tokenizer`] | text to tokens and back |
//! | [`data`] | text as batches of tokens |
//! | [`peers`] | the other processes and replicas of a run, as traits |
//! | [`checkpoint`] | the state of a run in folders |
//! | [`report`] | metrics, a summary, events for TensorBoard, profiles |
//! | `error` | [`Error`], and the errors of the modules below |
//! | [`run`] | what is trained: the model, its train step, and the programs that are lowered from it |
//! | [`published`] | published models as those of runs: import, export, where parameters come from |
//! | [`generate`] | text from a model, and logits |
//! | `replica` | a replica that trains apart from others |
//! | [`trainer`] | the loop: programs, state, steps, evaluation |

// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

pub mod checkpoint;
pub mod config;
pub mod data;
mod error;
pub mod generate;
#[doc(hidden)]
pub mod internals;
mod model_folder;
pub mod peers;
pub mod published;
mod random;
mod replica;
pub mod report;
pub mod run;
pub mod tokenizer;
pub mod trainer;

pub use error::{Error, NotFinite, ReplicasDiffer, SyncError};
pub use meshloom::hlo::Stage;
pub use random::next_bits;
pub use run::{Dataset, Devices, Leaf, Model, Run, Text};
pub use trainer::Trainer;
