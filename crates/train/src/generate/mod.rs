//! Text from a decoder: prompts in one pass, then one compiled step for each further token, over a cache of keys and
//! values that stays on the devices.
//!
//! | part | |
//! |---|---|
//! | [`Generator`] | the programs, the parameters, and rows of text |
//! | [`SamplingOptions`] | how tokens are drawn |
//! | [`ContinuedText`] | tokens as text, as they come |
//! | [`LogitsProgram`] | the logits of given rows, to compare with those of another program |

mod generator;
mod live;
mod logits;
mod lowering;
mod of_stored;
mod sampling;
mod text;

pub use crate::error::GenerateError;
pub use generator::{Continuation, End, GenerateOptions, Generator, Request, StepCost};
pub(crate) use live::LiveParameters;
pub use logits::LogitsProgram;
pub use lowering::GeneratorOptions;
pub use sampling::SamplingOptions;
pub use text::ContinuedText;
