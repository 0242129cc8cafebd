//! Reads StableHLO and Shardy text: what `jax.jit(f).lower(...).as_text()` prints.
//!
//! [`parser`] makes ops of the text, whatever they are, from the generic form and from the short ones. [`convert`]
//! makes HLO of them, in the order of the text:
//!
//! | StableHLO | HLO |
//! |---|---|
//! | a function that `@main` calls, at any depth | a computation, which each `call` shares |
//! | a region of a loop or a branch | a computation of one parameter; what it captures is carried, constants repeated |
//! | several results | a tuple, and a `get-tuple-element` for each |
//! | `composite` | a `call` of its decomposition, marked `is_composite` |
//! | `chlo` ops without an opcode | a custom call with the op's name, except for `square` and `top_k` |
//! | `@mhlo.erf` and other custom calls with `mhlo.attributes` | the opcode, which came later than StableHLO's ops |
//! | `sdy.sharding` of arguments and results | tiles, and the text as `xla.sdy.sharding`; as XLA writes them |
//! | groups along axes of a mesh | the same in HLO, with the names |
//! | custom calls for collectives, `async_start` | the collective, which begins and ends there |
//! | `sdy.all_gather` and others | a copy with the sharding that it states |
//! | `sdy.manual_computation` | a `call` between `xla.sdy.GlobalToLocalShape` and `xla.sdy.LocalToGlobalShape` |
//! | locations | names of ops, and frames of the module's stack |
//!
//! The reader refuses, by name, what HLO cannot express: types without bounds, quantized types, blocks that jump.

pub(super) mod attribute;
pub(super) mod bytecode;
mod convert;
pub(super) mod lexer;
pub(super) mod literal;
pub(super) mod location;
mod operation;
pub(super) mod parser;
mod types;

pub use bytecode::BytecodeError;
pub(crate) use bytecode::{MAGIC, module_of_export, read_with as read_bytecode};
pub use convert::{ShardyText, ShardyValue};

use crate::parse::{Memory, ParseError, TextLimits, located, utf8};
use crate::proto::HloModuleProtoWithConfig;

/// Reads a module. [`read::read`](crate::read::read) reads it too, and tells by itself which language it is in.
///
/// # Errors
/// The text is not StableHLO, or has something that HLO cannot express. Bytes that are not UTF-8 are an error of the
/// same kind.
pub fn read(bytes: &[u8]) -> Result<HloModuleProtoWithConfig, ParseError> {
    read_with(bytes, &TextLimits::default())
}

/// Like [`read()`], with limits of one's own.
///
/// # Errors
/// As of [`read()`]; or the text exceeds the limits.
pub fn read_with(bytes: &[u8], limits: &TextLimits) -> Result<HloModuleProtoWithConfig, ParseError> {
    read_function(bytes, limits, None)
}

/// Like [`read_with`], of a text with several functions the one of this name as the program.
///
/// # Errors
/// As of [`read_with`]; or the text has no such function.
pub fn read_function(
    bytes: &[u8],
    limits: &TextLimits,
    function: Option<&str>,
) -> Result<HloModuleProtoWithConfig, ParseError> {
    let advice = |byte| format!("MLIR text is, and has other bytes in strings as \\{byte:02X}");
    located(bytes, || {
        let text = utf8(bytes, advice)?;
        limits.check(text)?;
        let memory = Memory::of(text.len(), limits.memory_ratio, limits.memory_bytes);
        let mut parser = parser::Parser::new(text, memory);
        let operations = parser.text()?;
        convert::module(parser, &operations, function)
    })
}

/// Whether text, after comments, begins as a module of MLIR does.
pub fn is_mlir(text: &[u8]) -> bool {
    let mut text = text.trim_ascii_start();
    while let Some(comment) = text.strip_prefix(b"//") {
        let Some(end) = comment.iter().position(|&byte| byte == b'\n') else { return false };
        text = comment[end..].trim_ascii_start();
    }
    let starts = |text: &[u8], words: &[&str]| words.iter().any(|word| text.starts_with(word.as_bytes()));
    // Aliases stand before the module; in many other languages `#` begins a comment.
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or(text);
    let value = line.iter().position(|&byte| byte == b'=').map(|at| line[at + 1..].trim_ascii_start());
    match (text.first(), value) {
        (Some(b'#'), Some(value)) => starts(value, &["loc(", "#", "affine_", "dense<", "array<"]),
        (Some(b'!'), Some(value)) => starts(value, &["tensor<", "tuple<", "!"]),
        (Some(b'm'), _) => text.strip_prefix(b"module").is_some_and(|rest| {
            let next = rest.trim_ascii_start();
            next.starts_with(b"{") || next.len() < rest.len() && starts(next, &["@", "attributes"])
        }),
        _ => {
            starts(text, &["builtin.module", "\"builtin.module\"", "func.func", "\"func.func\"", "func @", "sdy.mesh"])
        }
    }
}
