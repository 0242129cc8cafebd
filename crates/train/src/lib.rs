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
//! | [`families`] | published model families: what a `config.json` means |
//! | [`config`] | the run config |
//! | [`tokenizer`] | text to tokens and back |
//! | [`data`] | text as batches of tokens |
//! | [`parameters`] | parameters in safetensors files |
//! | [`peers`] | the other processes and replicas of a run, as traits |
//! | [`checkpoint`] | the state of a run in folders |
//! | [`report`] | metrics, a summary, events for TensorBoard, profiles |
//! | `error` | [`Error`], and the errors of the modules below |
//! | [`run`] | what is trained: the model, its train step, and the programs that are lowered from it |
//! | [`published`] | weights of published models, in and out |
//! | [`generate`] | text from a model, and logits |
//! | [`search`] | the best plan of a model on devices |
//! | `replica` | a replica that trains apart from others |
//! | [`trainer`] | the loop: programs, state, steps, evaluation |
//! | [`bisect`] | what makes a program go wrong |
//! | `program` | the program `meshloom`, as a function |

// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

pub mod bisect;
pub mod checkpoint;
pub mod config;
pub mod data;
mod error;
pub mod families;
pub mod generate;
#[doc(hidden)]
pub mod internals;
mod model_folder;
pub mod parameters;
pub mod peers;
#[cfg(feature = "cli")]
pub mod program;
pub mod published;
mod random;
mod replica;
pub mod report;
pub mod run;
pub mod search;
pub mod tokenizer;
pub mod trainer;

pub use error::{Error, NotFinite, ReplicasDiffer, SyncError};
pub use meshloom::hlo::Stage;
pub use random::next_bits;
pub use run::{Dataset, Devices, Leaf, Model, Run, Text};
pub use trainer::Trainer;
