//! Reads MLIR bytecode: StableHLO's portable artifacts, which are of the dialect VHLO, and StableHLO as it is.
//!
//! | step | module |
//! |---|---|
//! | numbers and sections | [`bytes`] |
//! | the tables of strings, names, attributes, types and resources | [`file`](mod@file) |
//! | attributes and types as text, by tables of each dialect's encodings | [`texts`], [`dialects`], [`sdy`] |
//! | regions, blocks, ops and values; properties by a table | [`regions`], [`properties`] |
//! | the names that a text gives to values | [`values`] |
//! | ops as the reader of text makes them | [`tree`] |
//!
//! The conversion to HLO is that of text. A place in what it reads is one in the text of the attributes or, after its
//! end, one in the file.

mod bytes;
pub(in crate::stablehlo) mod dialects;
mod error;
mod export;
pub(in crate::stablehlo) mod file;
pub(in crate::stablehlo) mod kinds;
pub(in crate::stablehlo) mod properties;
pub(in crate::stablehlo) mod regions;
mod sdy;
pub(in crate::stablehlo) mod texts;
pub(in crate::stablehlo) mod tree;
mod values;

pub use error::BytecodeError;
pub(crate) use export::module_of_export;

use std::borrow::Cow;

use super::convert;
use super::lexer::Span;
use super::location::Location;
use super::parser::Parser;
use crate::parse::{Fault, Memory, Result, TextLimits};
use crate::proto::HloModuleProtoWithConfig;
use bytes::Bytes;
use file::File;
use kinds::builtin;
use texts::Texts;

/// The bytes that MLIR bytecode begins with.
pub(crate) const MAGIC: &[u8] = b"ML\xefR";

/// How many times more memory than of text a module may take: an op is a line of text, and a few bytes here.
const DENSER: usize = 10;

/// Reads a module.
pub(crate) fn read_with(
    content: &[u8],
    limits: &TextLimits,
    function: Option<&str>,
) -> std::result::Result<HloModuleProtoWithConfig, BytecodeError> {
    let memory = Memory::of(content.len(), limits.memory_ratio.saturating_mul(DENSER), limits.memory_bytes);
    let error = |fault: Box<Fault>| BytecodeError::at(fault.position, fault.message);
    let file = File::new(content, &memory).map_err(error)?;
    let mut texts = Texts::new(&file, dialects::TABLES, &memory).map_err(error)?;
    let encoded = regions::read(&mut texts).map_err(error)?;
    let Texts { mut text, attributes: known, types, .. } = texts;
    let mut name = |op: &file::OpName<'_>| {
        let start = text.len();
        text.push_str(&tree::name_today(op));
        text.push('\n');
        Span { start, end: text.len() - 1 }
    };
    let names: Vec<Span> = file.names.iter().map(&mut name).collect();
    let values = values::name(&file, &encoded, &types, &mut text, &memory).map_err(error)?;
    let text = text.as_str();
    let mut parser = Parser::new(text, memory.clone());
    parser.size = content.len();
    let offset = text.len() + 1;
    let placed = |fault: Box<Fault>| BytecodeError::placed(text, offset, &fault);
    locations(&file, &mut parser).map_err(placed)?;
    let mut tree = tree::Tree {
        file: &file,
        encoded: &encoded,
        known: &known,
        types: &types,
        values: &values,
        names: &names,
        attributes: vec![None; known.len()],
        shapes: vec![None; types.len()],
        parser: &mut parser,
        offset,
    };
    let operations = tree.operations(&encoded.operations, false).map_err(placed)?;
    convert::module(parser, &operations, function).map_err(placed)
}

/// Makes a location of each attribute that is one, under the attribute's number.
fn locations<'a>(file: &File<'a>, parser: &mut Parser<'a>) -> Result<()> {
    for index in 0..file.attributes.len() {
        let location = match regions::location_code(file, index)? {
            Some((code, bytes)) => location(file, code, bytes)?,
            None => Location::Unknown,
        };
        let size = size_of::<Location<'_>>() + location.size();
        parser.memory.take(size, 0)?;
        parser.locations.add(location);
    }
    Ok(())
}

/// The location of a kind and its bytes; an unknown one of any other attribute.
fn location<'a>(file: &File<'a>, code: u64, mut bytes: Bytes<'a>) -> Result<Location<'a>> {
    let text = |bytes: &mut Bytes<'a>| -> Result<Cow<'a, str>> {
        let index = bytes.index()?;
        let string = match file.attributes.get(index as usize).map(|entry| texts::code(*entry)).transpose()?.flatten() {
            Some((2 | 3, mut own)) => file.string(&mut own)?,
            _ => return bytes.fault("expected a string in a location"),
        };
        Ok(String::from_utf8_lossy(string))
    };
    let number = |bytes: &mut Bytes<'a>| bytes.number().map(|number| i64::try_from(number).unwrap_or(0));
    Ok(match code {
        builtin::CALL_SITE => Location::CallSite { callee: bytes.index()? as usize, caller: bytes.index()? as usize },
        builtin::FILE => {
            Location::File { file: text(&mut bytes)?, line: number(&mut bytes)?, column: number(&mut bytes)? }
        }
        builtin::FUSED | 13 => {
            let count = bytes.count()?;
            Location::Fused((0..count).map(|_| bytes.index().map(|index| index as usize)).collect::<Result<_>>()?)
        }
        builtin::NAMED => Location::Name { name: text(&mut bytes)?, child: Some(bytes.index()? as usize) },
        // A range of lines and columns: the first line and its column stand first.
        22 => {
            let file = text(&mut bytes)?;
            let count = bytes.count()?;
            let line = if count > 0 { number(&mut bytes)? } else { 0 };
            Location::File { file, line, column: if count > 1 { number(&mut bytes)? } else { 0 } }
        }
        _ => Location::Unknown,
    })
}
