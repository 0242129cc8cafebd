//! Requests that a generator refuses.

use meshloom::hlo::message::counted;

/// The reason why no text is generated.
#[derive(thiserror::Error)]
pub enum GenerateError {
    /// There is nothing to continue, or no room for it.
    #[error("a generator needs at least one row and a capacity of one token, not {rows} and {capacity}")]
    Empty {
        /// Rows asked for.
        rows: usize,
        /// Tokens of a row asked for.
        capacity: usize,
    },
    /// There are more prompts than rows.
    #[error("{} for a generator of {}; give fewer, or make one with more rows", counted(*given, "prompt"), counted(*rows, "row"))]
    TooManyPrompts {
        /// Prompts given.
        given: usize,
        /// Rows of the generator.
        rows: usize,
    },
    /// A prompt has no token.
    #[error("prompt {0} has no tokens; give it one at least, such as the token that begins a text")]
    EmptyPrompt(usize),
    /// A token is not one of the model's.
    #[error("prompt {row} has the token {token}, but the model has tokens 0 to {}; is the tokenizer that of the model?", vocab - 1)]
    UnknownToken {
        /// The number of the prompt, from 0.
        row: usize,
        /// The token.
        token: i32,
        /// The number of tokens that the model has.
        vocab: usize,
    },
    /// A prompt and what is to follow it do not fit into the cache.
    #[error(
        "prompt {row} has {}, and {length} are to follow, but the cache holds {capacity}; shorten either, or make a \
         generator with a capacity of {}", counted(*prompt, "token"), prompt.saturating_add(*length)
    )]
    TooLong {
        /// The number of the prompt, from 0.
        row: usize,
        /// Its tokens.
        prompt: usize,
        /// Tokens to add.
        length: usize,
        /// Tokens of a row that the cache holds.
        capacity: usize,
    },
    /// A sampling option has a value that means nothing.
    #[error("{option} cannot be {value}: it is {allowed}")]
    Sampling {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        allowed: &'static str,
    },
    /// The model's numbers are not finite.
    #[error("the logits of row {row} are not finite after {}; the model's parameters are damaged or too large", counted(*tokens, "token"))]
    NotFinite {
        /// The number of the row, from 0.
        row: usize,
        /// Tokens of the row so far, with the prompt.
        tokens: usize,
    },
}

meshloom::hlo::debug_is_message!(GenerateError);
