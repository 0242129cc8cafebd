//! Facts about opcodes, by their names.

use crate::syntax::opcodes::{Mark, Operation};

/// Returns the names of all opcodes, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    Operation::names()
}

/// Returns whether an opcode is arithmetic or logic on each element.
pub fn is_arithmetic(opcode: &str) -> bool {
    Operation::has_mark(opcode, Mark::Arithmetic)
}

/// Returns whether an opcode is a transcendental function of each element.
pub fn is_transcendental(opcode: &str) -> bool {
    Operation::has_mark(opcode, Mark::Transcendental)
}
