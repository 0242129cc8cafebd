//! The programs of a run, as errors name them, and what to do where one fails.

use std::fmt;

use meshloom::pjrt::{ErrorCode, PjrtError};

/// The purpose of a program of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// It draws the state before the first step.
    FirstState,
    /// A call of the train step that begins with this step, from 1.
    Step(u64),
    /// The sync of replicas that are apart, after this step.
    Sync(u64),
    /// The loss on the validation set after so many steps.
    Evaluation(u64),
    /// The logits of some rows.
    Logits,
    /// A generator's pass over prompts.
    Prompts,
    /// A generator's step: the next token of each row.
    Token,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Execution::FirstState => f.write_str("the state before the first step"),
            Execution::Step(step) => write!(f, "step {step}"),
            Execution::Sync(step) => write!(f, "the sync at step {step}"),
            Execution::Evaluation(step) => write!(f, "the evaluation after step {step}"),
            Execution::Logits => f.write_str("the logits"),
            Execution::Prompts => f.write_str("the pass over the prompts"),
            Execution::Token => f.write_str("the next token"),
        }
    }
}

/// Advice about a program that failed, where the config has keys for it.
pub(super) fn advice(what: Execution, error: &meshloom::Error) -> &'static str {
    let meshloom::Error::Pjrt(error) = error else { return "" };
    match &**error {
        PjrtError::Plugin { message, .. } if message.contains("Duplicate GPU detected") => {
            "; NCCL wants a GPU for each process: give each its own by target.visible_devices or CUDA_VISIBLE_DEVICES"
        }
        PjrtError::TimedOut { .. } => "; give it more by train.time_limit, or none by 0",
        PjrtError::Plugin { code: ErrorCode::ResourceExhausted, .. }
            if matches!(what, Execution::Prompts | Execution::Token) =>
        {
            "; the devices have too little memory: continue fewer prompts at once, or by fewer tokens"
        }
        PjrtError::Plugin { code: ErrorCode::ResourceExhausted, .. } => {
            "; the devices have too little memory: lower train.batch or model.seq, raise train.microbatches, or set \
             remat.policy = \"full\""
        }
        _ => "",
    }
}
