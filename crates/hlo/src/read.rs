//! Reads HLO in any form, and StableHLO as HLO.
//!
//! | form | where it comes from |
//! |---|---|
//! | HLO text | `--xla_dump_hlo_as_text`, `lowered.as_text("hlo")`, `compiled.as_text()`, our own printer |
//! | StableHLO text | `lowered.as_text()` in JAX: functions of StableHLO, with Shardy's annotations |
//! | MLIR bytecode | portable artifacts of StableHLO, what plugins are given; StableHLO as bytecode |
//! | export of JAX | `jax.export.export(f)(...).serialize()`, which has bytecode |
//! | `HloModuleProto` | `as_serialized_hlo_module_proto()`, our own emitter |
//! | `HloProto` | `--xla_dump_hlo_as_proto`: the module and, after compilation, where its buffers are |
//! | `HloModuleProtoWithConfig` | what a PJRT plugin gives as the optimized program |
//! | `HloSnapshot`, `HloUnoptimizedSnapshot` | `--xla_dump_hlo_snapshots`; the arguments are left out |
//!
//! Any of them may be gzipped. The reader detects the format from the content, never from a name.
//!
//! Input may be malicious: a few bytes of gzip can be a thousand times as many, which [`Limits`] bound. Two bytes of
//! protobuf can describe a thousand bytes of memory, so the reader counts messages before it decodes them ([`Limits`]).

mod form;

use std::io::Read;

use prost::Message;
use rustc_hash::FxHashMap;

pub use super::limits::Limits;
use super::parse::{self, ParseError};
use super::passed_over::PassedOver;
use super::proto::{
    BufferAssignmentProto, HloModuleConfigProto, HloModuleProto, HloModuleProtoWithConfig, HloProto, HloSnapshot,
    HloUnoptimizedSnapshot,
};
use super::stablehlo::{self, BytecodeError};
use crate::words;

words! {
    /// The form in which a module was found, by XLA's name.
    pub enum Form {
        /// HLO text.
        Text = "HLO text",
        /// StableHLO text, read as HLO.
        StableHlo = "StableHLO text",
        /// StableHLO or VHLO as MLIR bytecode, read as HLO.
        Bytecode = "MLIR bytecode",
        /// A serialized `jax.export`, with bytecode in it, read as HLO.
        Export = "export of JAX",
        /// A serialized `HloModuleProto`.
        Module = "HloModuleProto",
        /// A serialized `HloProto`.
        HloProto = "HloProto",
        /// A serialized `HloModuleProtoWithConfig`.
        ModuleWithConfig = "HloModuleProtoWithConfig",
        /// A serialized `HloSnapshot`.
        Snapshot = "HloSnapshot",
        /// A serialized `HloUnoptimizedSnapshot`.
        UnoptimizedSnapshot = "HloUnoptimizedSnapshot",
    }
}

/// A module, and what came with it.
#[derive(Clone, Debug)]
pub struct ReadModule {
    /// The module.
    pub module: HloModuleProto,
    /// The compile settings, if the form has them: device counts, layouts of arguments.
    pub config: Option<HloModuleConfigProto>,
    /// XLA's buffer assignment, if the form has it.
    pub buffers: Option<BufferAssignmentProto>,
    /// The form.
    pub form: Form,
    /// The parts that the reader does not know, and passed over.
    pub passed_over: PassedOver,
}

/// The reason why something cannot be read as HLO.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ReadError {
    /// There is nothing.
    #[error("it is empty; give HLO or StableHLO text or an HLO proto")]
    Empty,
    /// HLO or StableHLO text that is wrong somewhere.
    #[error(transparent)]
    Text(#[from] Box<ParseError>),
    /// MLIR bytecode that is wrong somewhere.
    #[error(transparent)]
    Bytecode(#[from] Box<BytecodeError>),
    /// Text of some other kind.
    #[error(
        "it is text, but neither HLO, which begins with `HloModule NAME`, nor StableHLO, which begins with \
         `module @NAME`: it begins with `{start}`"
    )]
    OtherText { start: String },
    /// Binary data of some other kind.
    #[error(
        "it is no HLO proto: neither an HloModuleProto, an HloProto, an HloModuleProtoWithConfig nor an HloSnapshot \
         ({bytes} bytes, beginning with {start})"
    )]
    OtherBytes {
        bytes: usize,
        /// The first of them, hexadecimal.
        start: String,
    },
    /// A proto that is broken or cut off.
    #[error("it looks like an {form}, but cannot be decoded: {reason}; is it complete?")]
    Proto { form: &'static str, reason: String },
    /// An HloProto or a snapshot without a module.
    #[error("it is an {form} without a module")]
    NoModule { form: &'static str },
    /// Compressed data that is broken.
    #[error("it is compressed by gzip, and cannot be decompressed: {reason}")]
    Gzip { reason: String },
    /// A form that has no functions to choose from.
    #[error("a function is chosen from StableHLO, and it is {form}; leave --function out")]
    NoFunctions { form: &'static str },
    /// Calls that are nested too deep.
    #[error(
        "its computations call each other more than {limit} deep, at %{computation}; `read::Limits::call_depth`, or \
         --max-depth of hlo-dump, raises the limit"
    )]
    TooDeep { limit: usize, computation: String },
    /// More than the limits allow.
    #[error("it is too large: {what} {found} bytes, and the limit is {limit}; {advice}")]
    TooLarge {
        what: &'static str,
        /// The number of bytes, or the first number past the limit.
        found: u64,
        limit: u64,
        advice: &'static str,
    },
}

crate::debug_is_message!(ReadError);

/// The option that raises the limits of sizes, in this library and in `hlo-dump`.
const RAISE: &str = "`read::Limits`, or --max-size of hlo-dump, raises it";

/// Reads a module in any form.
///
/// # Errors
/// The input is not HLO (the error says what it seems to be), is damaged, or exceeds the limits.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<ReadModule, ReadError> {
    read_function(bytes, limits, None)
}

/// Like [`read()`], of StableHLO with several functions the one of this name as the program.
///
/// # Errors
/// As of [`read()`]; or there is no such function.
pub fn read_function(bytes: &[u8], limits: &Limits, function: Option<&str>) -> Result<ReadModule, ReadError> {
    let found = match bytes.starts_with(&[0x1f, 0x8b]) {
        true => read_plain(&decompress(bytes, limits)?, limits, function),
        false => read_plain(bytes, limits, function),
    }?;
    if function.is_some() && !matches!(found.form, Form::StableHlo | Form::Bytecode | Form::Export) {
        return Err(ReadError::NoFunctions { form: found.form.name() });
    }
    check_depth(&found.module, limits.call_depth)?;
    Ok(found)
}

/// Refuses a module whose calls are nested deep: what walks along them takes the product of depth and length. Calls
/// that lead back to their caller are left to the analyses, which follow none twice.
fn check_depth(module: &HloModuleProto, limit: usize) -> Result<(), ReadError> {
    let numbers: FxHashMap<i64, usize> =
        module.computations.iter().map(|computation| computation.id).zip(0..).collect();
    let calls = |number: usize| {
        let instructions = module.computations.get(number).map_or(&[][..], |computation| &computation.instructions);
        let callees = instructions.iter().flat_map(|instruction| &instruction.called_computation_ids);
        callees.filter_map(|id| numbers.get(id).copied()).collect::<Vec<usize>>()
    };
    // The depth below each computation; none while it is open or new.
    let mut depths: Vec<Option<usize>> = vec![None; module.computations.len()];
    let mut is_open = vec![false; module.computations.len()];
    for first in 0..module.computations.len() {
        let mut stack = vec![(first, Vec::new(), 0)];
        while let Some((number, callees, next)) = stack.last_mut() {
            let number = *number;
            if depths[number].is_some() {
                stack.pop();
                continue;
            }
            if !std::mem::replace(&mut is_open[number], true) {
                *callees = calls(number);
            }
            match callees.get(*next).copied() {
                Some(callee) => {
                    *next += 1;
                    if depths[callee].is_none() && !is_open[callee] {
                        stack.push((callee, Vec::new(), 0));
                    }
                }
                None => {
                    let depth = callees.iter().filter_map(|&callee| depths[callee]).max().map_or(0, |depth| depth + 1);
                    if depth > limit {
                        let computation = module.computations[number].name.clone();
                        return Err(ReadError::TooDeep { limit, computation });
                    }
                    depths[number] = Some(depth);
                    stack.pop();
                }
            }
        }
    }
    Ok(())
}

fn decompress(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut plain = Vec::new();
    let limit = limits.decompressed_bytes;
    let mut decoder = flate2::read::MultiGzDecoder::new(bytes).take(limit.saturating_add(1));
    decoder.read_to_end(&mut plain).map_err(|error| ReadError::Gzip { reason: error.to_string() })?;
    let found = plain.len() as u64;
    match found > limit {
        true => Err(ReadError::TooLarge { what: "decompressed, it has more than", found: limit, limit, advice: RAISE }),
        false => Ok(plain),
    }
}

fn read_plain(bytes: &[u8], limits: &Limits, function: Option<&str>) -> Result<ReadModule, ReadError> {
    // Some editors begin UTF-8 with a byte order mark.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let size = bytes.len() as u64;
    if size > limits.input_bytes {
        return Err(ReadError::TooLarge { what: "it has", found: size, limit: limits.input_bytes, advice: RAISE });
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ReadError::Empty);
    }
    if bytes.starts_with(stablehlo::read::MAGIC) {
        return read_bytecode(bytes, Form::Bytecode, limits, function);
    }
    if let Some(module) = stablehlo::read::module_of_export(bytes) {
        return read_bytecode(module, Form::Export, limits, function);
    }
    match form::of(bytes) {
        Some(form) => read_proto(bytes, form, limits),
        None => read_text(bytes, limits, function),
    }
}

/// The same limits for a text.
fn of_text(limits: &Limits) -> parse::TextLimits {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let (memory_ratio, memory_bytes) = (size(limits.decoded_ratio), size(limits.decoded_bytes));
    parse::TextLimits { memory_ratio, memory_bytes, ..parse::TextLimits::default() }
}

fn read_bytecode(bytes: &[u8], form: Form, limits: &Limits, function: Option<&str>) -> Result<ReadModule, ReadError> {
    let HloModuleProtoWithConfig { hlo_module, config } =
        stablehlo::read::read_bytecode(bytes, &of_text(limits), function).map_err(Box::new)?;
    let (module, passed_over) = (hlo_module.unwrap_or_default(), PassedOver::default());
    Ok(ReadModule { module, config, buffers: None, form, passed_over })
}

fn read_text(bytes: &[u8], limits: &Limits, function: Option<&str>) -> Result<ReadModule, ReadError> {
    // Any length of comments may precede the language.
    let start = Some(after_comments(bytes)).filter(|start| !start.is_empty()).unwrap_or(bytes);
    // A text that is cut off or damaged in the middle is still text, and the parser says where it breaks.
    let start = &start[..start.len().min(4096)];
    let readable = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > start.len().saturating_sub(4) || is_hlo_text(start) => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => "",
    };
    if readable.is_empty() || readable.contains('\0') {
        let start = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        return Err(ReadError::OtherBytes { bytes: bytes.len(), start });
    }
    let mut passed_over = PassedOver::default();
    let (form, parsed) = if is_hlo_text(start) {
        (Form::Text, parse::parse_noting(bytes, &of_text(limits), &mut passed_over))
    } else if stablehlo::read::is_mlir(bytes) {
        (Form::StableHlo, stablehlo::read::read_function(bytes, &of_text(limits), function))
    } else if is_computation(start) {
        (Form::Text, parse::parse_noting(bytes, &of_text(limits), &mut passed_over))
    } else {
        let first = readable.trim_start();
        let start: String = first.chars().take_while(|&letter| letter != '\n').take(60).collect();
        return Err(ReadError::OtherText { start });
    };
    let HloModuleProtoWithConfig { hlo_module, config } = parsed.map_err(Box::new)?;
    Ok(ReadModule { module: hlo_module.unwrap_or_default(), config, buffers: None, form, passed_over })
}

/// Whether text, after comments, begins as HLO does: with a module header, or with a computation, which XLA's parser
/// takes too. A computation whose name has no sign before it is told by [`is_computation`].
fn is_hlo_text(text: &[u8]) -> bool {
    matches!(first_word(text), b"HloModule" | b"ENTRY") || text.starts_with(b"%")
}

/// Whether text begins with the name of a computation, and goes on with its signature or its instructions.
fn is_computation(text: &[u8]) -> bool {
    let name = first_word(text);
    let has = |words: &[u8]| memchr::memmem::find(text, words).is_some();
    match text[name.len()..].trim_ascii_start().first() {
        Some(b'{') => !name.is_empty() && has(b" = ") && has(b"["),
        Some(b'(') => !name.is_empty() && has(b"->") && has(b"["),
        _ => false,
    }
}

fn first_word(text: &[u8]) -> &[u8] {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    &text[..text.iter().take_while(|byte| is_letter(byte)).count()]
}

/// The text from after white space and comments on.
fn after_comments(mut text: &[u8]) -> &[u8] {
    loop {
        text = text.trim_ascii_start();
        let skipped = match text {
            [b'/', b'/', rest @ ..] => memchr::memchr(b'\n', rest),
            [b'/', b'*', rest @ ..] => memchr::memmem::find(rest, b"*/").map(|at| at + 2),
            _ => return text,
        };
        match skipped {
            Some(skipped) => text = &text[2 + skipped..],
            None => return text,
        }
    }
}

fn read_proto(bytes: &[u8], form: Form, limits: &Limits) -> Result<ReadModule, ReadError> {
    let decoded = form::decoded_bytes(bytes, form);
    let limit = limits.decoded_limit(bytes.len());
    if decoded > limit {
        let advice = "a module of real instructions is smaller; `read::Limits`, or --max-size of hlo-dump, raises it";
        return Err(ReadError::TooLarge { what: "decoded, it takes", found: decoded, limit, advice });
    }
    let broken = |error: prost::DecodeError| ReadError::Proto { form: form.name(), reason: error.to_string() };
    let (module, config, buffers) = match form {
        Form::Text | Form::StableHlo | Form::Bytecode | Form::Export | Form::Module => {
            (Some(HloModuleProto::decode(bytes).map_err(broken)?), None, None)
        }
        Form::ModuleWithConfig => {
            let proto = HloModuleProtoWithConfig::decode(bytes).map_err(broken)?;
            (proto.hlo_module, proto.config, None)
        }
        Form::HloProto => {
            let proto = HloProto::decode(bytes).map_err(broken)?;
            (proto.hlo_module, None, proto.buffer_assignment)
        }
        Form::Snapshot => {
            let proto = HloSnapshot::decode(bytes).map_err(broken)?.hlo.unwrap_or_default();
            (proto.hlo_module, None, proto.buffer_assignment)
        }
        Form::UnoptimizedSnapshot => (HloUnoptimizedSnapshot::decode(bytes).map_err(broken)?.hlo_module, None, None),
    };
    let module = module.ok_or(ReadError::NoModule { form: form.name() })?;
    Ok(ReadModule { module, config, buffers, form, passed_over: PassedOver::default() })
}
