//! Arguments that do not fit a compiled program.

use crate::ir::TensorType;

/// Why a program does not take its arguments.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ArgumentError {
    /// The tree of the arguments is not that of the inputs.
    #[error("expected inputs {expected}; found {found}")]
    Tree {
        /// Paths of the inputs.
        expected: String,
        /// Paths of what was given.
        found: String,
    },
    /// A value has another type than its input.
    #[error("{} must be {expected}, found {found}", if path.is_empty() { "the input".to_owned() } else { format!("input `{path}`") })]
    Type {
        /// Path of the input; empty where it is the only one.
        path: String,
        /// Type of the input.
        expected: TensorType,
        /// Type of the value.
        found: TensorType,
    },
    /// An output is to share its buffer with an input, but one of them does not exist.
    #[error(
        "output {output} cannot share a buffer with input {input}: the program has {inputs} inputs and {outputs} outputs"
    )]
    Alias {
        /// The output asked for.
        output: usize,
        /// The input asked for.
        input: usize,
        /// Inputs of the program.
        inputs: usize,
        /// Outputs of the program.
        outputs: usize,
    },
    /// There are more values than inputs.
    #[error("the program has {inputs} inputs, but {given} are given")]
    Count {
        /// Inputs of the program.
        inputs: usize,
        /// Values given, with those in front of them.
        given: usize,
    },
}
