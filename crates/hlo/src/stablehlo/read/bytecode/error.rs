//! Errors in bytecode, with their places.

use std::fmt;

use crate::parse::{Fault, ParseError};

/// The error of bytecode that is not a module.
#[derive(Clone, PartialEq, Eq)]
pub struct BytecodeError {
    /// The place in the bytecode, counted from 0; none of what is wrong in an attribute by itself.
    pub byte: Option<usize>,
    /// The expected and the found, lowercase, without the place.
    pub message: String,
    /// The text of the attribute, and below it a caret.
    pub excerpt: String,
}

crate::debug_is_message!(BytecodeError);

impl fmt::Display for BytecodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.byte {
            Some(byte) => write!(formatter, "MLIR bytecode, byte {byte}: {}", self.message),
            None => write!(formatter, "MLIR bytecode, in an attribute: {}\n{}", self.message, self.excerpt),
        }
    }
}

impl std::error::Error for BytecodeError {}

impl BytecodeError {
    pub(super) fn at(byte: usize, message: String) -> BytecodeError {
        // The length of a message is bounded as that of text.
        let ParseError { message, .. } = ParseError::locate(b"", 0, message);
        BytecodeError { byte: Some(byte), message, excerpt: String::new() }
    }

    /// The error of a place in the text of the attributes, or in the file after its end.
    pub(super) fn placed(text: &str, offset: usize, fault: &Fault) -> BytecodeError {
        match fault.position.checked_sub(offset) {
            Some(byte) => BytecodeError::at(byte, fault.message.clone()),
            None => {
                let ParseError { message, excerpt, .. } =
                    ParseError::locate(text.as_bytes(), fault.position, fault.message.clone());
                BytecodeError { byte: None, message, excerpt }
            }
        }
    }
}
