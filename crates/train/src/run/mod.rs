//! A run of a model: a config with everything that follows from it, its train step as a traced function, and the
//! programs that are lowered from both.
//!
//! | file | |
//! |---|---|
//! | `model` | [`Model`] and [`Dataset`]: what can be trained, and on what |
//! | `text` | [`Text`]: the text of a config, which decoders are trained on |
//! | `train_step` | [`TrainStep`]: the step of one replica |
//! | `diloco_step` | [`DilocoStep`]: the step of several |
//! | `run_step` | the state and the step of a run, which has one replica or several |
//! | `resolve` | [`Run`]: a config that has been checked, and its lowered programs |
//! | `execute` | running its programs |
//! | `devices` | [`Devices`]: the devices of a config |
//! | `step_ahead` | [`StepAhead`]: the step, compiled for hardware that is not there |

mod devices;
mod diloco_step;
mod execute;
mod model;
mod resolve;
mod run_step;
mod step_ahead;
mod text;
mod train_step;

pub use devices::Devices;
pub(crate) use diloco_step::{DilocoStateOf, is_busy_after};
pub use diloco_step::{DilocoStep, DilocoTrainState, check_replicas};
pub(crate) use execute::{execute, laid_out_for};
pub use model::{Dataset, Leaf, Model};
pub use resolve::Run;
pub use run_step::{Calls, RunFunction, RunInput, RunOutput, RunState};
pub(crate) use run_step::{RunStateOf, RunStep};
pub use step_ahead::StepAhead;
pub use text::Text;
pub(crate) use train_step::Params;
pub use train_step::{
    DropoutConfig, LossFunction, LossInput, StepFunction, StepInput, StepOutput, TrainState, TrainStep, aliases,
};
