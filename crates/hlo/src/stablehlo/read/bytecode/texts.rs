//! Attributes and types as the text that MLIR prints for them.
//!
//! A file has each attribute once, however many ops carry it, so that its text costs little; and the reader of
//! StableHLO text makes a value of it, as of any other. The elements of constants stay bytes.

use std::borrow::Cow;
use std::fmt::Write;

use half::{bf16, f16};

use super::super::lexer::Span;
use super::bytes::Bytes;
use super::file::{Entry, File};
use super::kinds;
use crate::parse::{Memory, Result, fault};

/// How deep attributes and types may nest: their nesting is also one of this reader's calls.
const NESTING: usize = 100;

/// The bytes of an attribute that has no value.
const UNIT: &[u8] = &[kinds::UNIT << 1 | 1];

/// The knowledge of an attribute.
#[derive(Clone, Copy)]
pub(super) enum Known<'a> {
    Nothing,
    Text(Span),
    /// The elements of a constant, and its type.
    Elements {
        shape: u32,
        elements: &'a [u8],
        position: usize,
    },
}

/// How an attribute or a type is encoded.
#[derive(Clone, Copy)]
pub(in crate::stablehlo) enum Encoding {
    /// A template.
    Text(&'static str),
    /// One of these words in the place of `%`.
    Words(&'static str, &'static [&'static str]),
    /// As only this kind is.
    Own(for<'a> fn(&mut Texts<'a, '_>, &mut Bytes<'a>) -> Result<()>),
}

/// The fate of an entry whose kind is unknown.
#[derive(Clone, Copy)]
enum Unknown {
    /// An attribute is kept by its kind alone: the op that needs it misses it.
    Kept,
    Refused,
}

/// The encoding of a kind of a dialect.
type EncodingOf = fn(&str, u64) -> Option<Encoding>;

/// The encodings of all dialects.
#[derive(Clone, Copy)]
pub(super) struct EncodingTables {
    pub(super) attribute: EncodingOf,
    pub(super) of_type: EncodingOf,
    /// The text around an attribute of a kind where it stands alone.
    pub(super) around: fn(&str, u64) -> (&'static str, &'static str),
}

pub(in crate::stablehlo) struct Texts<'a, 'f> {
    tables: EncodingTables,
    pub(super) file: &'f File<'a>,
    pub(super) memory: &'f Memory,
    pub(super) text: String,
    pub(super) attributes: Vec<Known<'a>>,
    pub(super) types: Vec<Option<Span>>,
    depth: usize,
}

impl<'a, 'f> Texts<'a, 'f> {
    pub(super) fn new(file: &'f File<'a>, tables: EncodingTables, memory: &'f Memory) -> Result<Texts<'a, 'f>> {
        let (attributes, types) = (file.attributes.len(), file.types.len());
        memory.take(attributes * size_of::<Known<'_>>() + types * size_of::<Option<Span>>(), 0)?;
        Ok(Texts {
            tables,
            file,
            memory,
            text: String::new(),
            attributes: vec![Known::Nothing; attributes],
            types: vec![None; types],
            depth: 0,
        })
    }

    pub(super) fn attribute_entry(&self, index: u32, position: usize) -> Result<Entry<'a>> {
        match self.file.attributes.get(index as usize) {
            Some(entry) => Ok(*entry),
            None => fault(position, format!("there is no attribute of number {index}")),
        }
    }

    fn type_entry(&self, index: u32, position: usize) -> Result<Entry<'a>> {
        match self.file.types.get(index as usize) {
            Some(entry) => Ok(*entry),
            None => fault(position, format!("there is no type of number {index}")),
        }
    }

    /// Makes an attribute known that an op carries.
    pub(super) fn know(&mut self, index: u32, position: usize) -> Result<()> {
        if self.attributes.get(index as usize).is_some_and(|known| !matches!(known, Known::Nothing)) {
            return Ok(());
        }
        let entry = self.attribute_entry(index, position)?;
        match self.elements(entry)? {
            Some(known) => {
                if let Known::Elements { shape, position, .. } = known {
                    self.know_type(shape, position)?;
                }
                self.attributes[index as usize] = known;
            }
            None => {
                self.write_attribute(index, position)?;
                // The text of an attribute ends where nothing else can be taken for a part of it.
                self.text.push('\n');
            }
        }
        Ok(())
    }

    /// The sizes of segments, as an attribute: the file has none for them.
    pub(super) fn segments(&mut self, bytes: &mut Bytes<'a>) -> Result<u32> {
        let sizes = bytes.sparse()?;
        let start = self.text.len();
        self.text.push_str("array<i64: ");
        self.separated(&sizes, ", ");
        self.text.push('>');
        self.attributes.push(Known::Text(Span { start, end: self.text.len() }));
        self.text.push('\n');
        self.memory.take(self.text.len() - start + size_of::<Known<'_>>(), bytes.here())?;
        Ok(self.attributes.len() as u32 - 1)
    }

    pub(super) fn know_type(&mut self, index: u32, position: usize) -> Result<()> {
        if self.types.get(index as usize).is_none_or(Option::is_none) {
            self.write_type(index, position)?;
            self.text.push('\n');
        }
        Ok(())
    }

    /// The elements of an attribute that is a constant with some; none of any other.
    fn elements(&self, entry: Entry<'a>) -> Result<Option<Known<'a>>> {
        let Some((code, mut bytes)) = code(entry)? else { return Ok(None) };
        let position = bytes.here();
        match (entry.dialect, code) {
            ("builtin", kinds::DENSE) | ("vhlo", kinds::VHLO_TENSOR) => {
                let shape = bytes.index()?;
                let size = bytes.number()?;
                Ok(Some(Known::Elements { shape, elements: bytes.take(size)?, position }))
            }
            ("builtin", kinds::RESOURCE) => {
                let shape = bytes.index()?;
                let index = bytes.index()?;
                match self.file.resources.get(index as usize) {
                    Some(resource) => {
                        Ok(resource.elements.map(|elements| Known::Elements { shape, elements, position }))
                    }
                    None => bytes.fault(format!("there is no resource of number {index}")),
                }
            }
            _ => Ok(None),
        }
    }

    /// Appends an attribute.
    pub(super) fn write_attribute(&mut self, index: u32, position: usize) -> Result<()> {
        let entry = self.attribute_entry(index, position)?;
        if let Some(Known::Text(span)) = self.attributes.get(index as usize).copied() {
            return self.copy(span, position);
        }
        let start = self.text.len();
        let (before, after) = match code(entry)? {
            Some((code, _)) => (self.tables.around)(entry.dialect, code),
            None => ("", ""),
        };
        self.text.push_str(before);
        self.write_inner(entry, position)?;
        self.text.push_str(after);
        if matches!(self.attributes[index as usize], Known::Nothing) {
            self.attributes[index as usize] = Known::Text(Span { start, end: self.text.len() });
        }
        Ok(())
    }

    /// Appends an attribute as it stands in another one of the same dialect: without its name.
    pub(super) fn write_stripped(&mut self, index: u32, position: usize) -> Result<()> {
        let entry = self.attribute_entry(index, position)?;
        self.write_inner(entry, position)
    }

    fn write_inner(&mut self, entry: Entry<'a>, position: usize) -> Result<()> {
        let start = self.text.len();
        self.nested(position, |texts| texts.write_entry(entry, texts.tables.attribute, Unknown::Kept))?;
        self.memory.take(self.text.len() - start, position)
    }

    /// Appends a type.
    pub(super) fn write_type(&mut self, index: u32, position: usize) -> Result<()> {
        let entry = self.type_entry(index, position)?;
        if let Some(Some(span)) = self.types.get(index as usize).copied() {
            return self.copy(span, position);
        }
        let start = self.text.len();
        self.nested(position, |texts| texts.write_entry(entry, texts.tables.of_type, Unknown::Refused))?;
        self.memory.take(self.text.len() - start, position)?;
        self.types[index as usize] = Some(Span { start, end: self.text.len() });
        Ok(())
    }

    fn copy(&mut self, span: Span, position: usize) -> Result<()> {
        self.memory.take(span.end - span.start, position)?;
        self.text.extend_from_within(span.start..span.end);
        Ok(())
    }

    fn nested(&mut self, position: usize, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.depth >= NESTING {
            return fault(position, format!("attributes or types are nested more than {NESTING} levels deep"));
        }
        self.depth += 1;
        let result = write(self);
        self.depth -= 1;
        result
    }

    fn write_entry(&mut self, entry: Entry<'a>, encoding: EncodingOf, unknown: Unknown) -> Result<()> {
        let mut bytes = entry.bytes;
        let Some((code, own)) = code(entry)? else {
            self.text.push_str(bytes.text()?);
            return Ok(());
        };
        let Some(encoding) = encoding(entry.dialect, code) else {
            return match unknown {
                Unknown::Kept => {
                    _ = write!(self.text, "#{}.kind_{code}<>", entry.dialect);
                    Ok(())
                }
                Unknown::Refused => fault(
                    own.here(),
                    format!(
                        "the dialect {} has a type of kind {code}, which is not read; give the module as text",
                        entry.dialect
                    ),
                ),
            };
        };
        bytes = own;
        match encoding {
            Encoding::Text(template) => self.expand(template, &mut bytes),
            Encoding::Words(template, words) => {
                let place = bytes.number()?;
                let word = usize::try_from(place).ok().and_then(|place| words.get(place));
                let Some(word) = word.filter(|word| !word.is_empty()) else {
                    return bytes.fault(format!("{} has no value of number {place}", template.replace('%', "...")));
                };
                let (before, after) = template.split_once('%').unwrap_or((template, ""));
                self.text.extend([before, word, after]);
                Ok(())
            }
            Encoding::Own(write) => write(self, &mut bytes),
        }
    }

    /// Appends a template, with what the bytes have in the places of its directives.
    pub(super) fn expand(&mut self, template: &str, bytes: &mut Bytes<'a>) -> Result<()> {
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('%') {
            self.text.push_str(before);
            let (directive, tail) = after.split_at(after.len().min(1));
            rest = tail;
            match directive {
                "i" => self.display(bytes.signed()?),
                "u" => self.display(bytes.number()?),
                "l" => {
                    self.text.push('[');
                    let list = bytes.signed_list()?;
                    self.separated(&list, ", ");
                    self.text.push(']');
                }
                "v" => _ = write!(self.text, "{}", bytes.number()? != 0),
                "b" => _ = write!(self.text, "{}", bytes.byte()? != 0),
                "s" => {
                    let string = self.file.string(bytes)?;
                    self.quoted(string);
                }
                "d" => {
                    let value = f64::from_bits(bytes.signed()? as u64);
                    write_float(&mut self.text, value, "f64");
                }
                "t" => {
                    let index = bytes.index()?;
                    self.write_type(index, bytes.here())?;
                }
                "a" => {
                    let index = bytes.index()?;
                    self.write_attribute(index, bytes.here())?;
                }
                "A" => self.items(bytes, ", ", |texts, bytes| texts.item(bytes))?,
                "T" => self.items(bytes, ", ", |texts, bytes| texts.expand("%t", bytes))?,
                _ => {}
            }
        }
        self.text.push_str(rest);
        Ok(())
    }

    /// Appends a list: its count stands before it.
    pub(super) fn items(
        &mut self,
        bytes: &mut Bytes<'a>,
        separator: &str,
        mut item: impl FnMut(&mut Self, &mut Bytes<'a>) -> Result<()>,
    ) -> Result<()> {
        for number in 0..bytes.count()? {
            if number > 0 {
                self.text.push_str(separator);
            }
            item(self, bytes)?;
        }
        Ok(())
    }

    /// Appends an item of a list of attributes: MLIR leaves out the usual types of numbers there.
    fn item(&mut self, bytes: &mut Bytes<'a>) -> Result<()> {
        let index = bytes.index()?;
        let before = self.attributes.get(index as usize).copied();
        let start = self.text.len();
        self.write_attribute(index, bytes.here())?;
        let item = self.text.get(start..).unwrap_or_default();
        let is_number = item.starts_with(|letter: char| letter.is_ascii_digit() || letter == '-');
        let usual = [" : i64", " : f64"].into_iter().find(|usual| is_number && item.ends_with(usual));
        if let (Some(usual), Some(before), Some(known)) = (usual, before, self.attributes.get_mut(index as usize)) {
            self.text.truncate(self.text.len() - usual.len());
            *known = before;
        }
        Ok(())
    }

    /// Whether an attribute says all by being there.
    pub(super) fn is_unit(&self, index: u32) -> bool {
        let entry = self.file.attributes.get(index as usize);
        entry.is_some_and(|entry| entry.dialect == "builtin" && entry.is_binary && entry.bytes.rest() == UNIT)
    }

    pub(super) fn display(&mut self, value: impl std::fmt::Display) {
        _ = write!(self.text, "{value}");
    }

    pub(super) fn separated(&mut self, values: &[i64], separator: &str) {
        for (number, value) in values.iter().enumerate() {
            self.text.push_str(if number > 0 { separator } else { "" });
            match *value {
                // A size that is not known.
                i64::MIN => self.text.push('?'),
                value => self.display(value),
            }
        }
    }

    /// Appends a string as MLIR writes it.
    pub(super) fn quoted(&mut self, string: &[u8]) {
        self.text.push('"');
        for &byte in string {
            match byte {
                b'\\' => self.text.push_str("\\\\"),
                b'"' => self.text.push_str("\\22"),
                b' '..=b'~' => self.text.push(char::from(byte)),
                _ => _ = write!(self.text, "\\{byte:02X}"),
            }
        }
        self.text.push('"');
    }

    /// Appends a name, as a string unless it is a word.
    pub(super) fn bare(&mut self, name: &[u8]) {
        let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.');
        let begins = name.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_');
        match std::str::from_utf8(name) {
            Ok(word) if begins && name.iter().all(is_letter) => self.text.push_str(word),
            _ => self.quoted(name),
        }
    }

    /// The string that an attribute is.
    pub(super) fn string_of(&self, index: u32, position: usize) -> Result<&'a [u8]> {
        let entry = self.attribute_entry(index, position)?;
        if let Some((code, mut bytes)) = code(entry)?
            && matches!((entry.dialect, code), ("builtin", 2 | 3) | ("vhlo", 14))
        {
            return self.file.string(&mut bytes);
        }
        fault(position, format!("expected a string as attribute {index}"))
    }

    /// The names and values of a dictionary.
    pub(super) fn dictionary(&self, index: u32, position: usize) -> Result<Vec<(&'a [u8], u32)>> {
        let entry = self.attribute_entry(index, position)?;
        let Some(("builtin", (kinds::DICTIONARY, mut bytes))) = code(entry)?.map(|own| (entry.dialect, own)) else {
            return fault(position, format!("expected a dictionary as attribute {index}"));
        };
        let count = bytes.count()?;
        self.memory.take(count * size_of::<(&[u8], u32)>(), position)?;
        let pair = |_| {
            let name = bytes.index()?;
            Ok((self.string_of(name, bytes.here())?, bytes.index()?))
        };
        (0..count).map(pair).collect()
    }

    /// The name of a type of numbers.
    pub(super) fn number_type(&self, index: u32, position: usize) -> Result<Cow<'a, str>> {
        let entry = self.type_entry(index, position)?;
        let mut bytes = entry.bytes;
        let Some((code, own)) = code(entry)? else { return bytes.text().map(Cow::Borrowed) };
        bytes = own;
        match (entry.dialect, (self.tables.of_type)(entry.dialect, code)) {
            ("builtin", _) if code == kinds::INTEGER_TYPE => integer_type(&mut bytes).map(Cow::Owned),
            (_, Some(Encoding::Text(name))) if !name.contains('%') => Ok(Cow::Borrowed(name)),
            _ => fault(position, "expected a type of numbers"),
        }
    }
}

/// The kind of an encoding of a dialect's own, and the bytes after it; none of text.
pub(super) fn code(entry: Entry<'_>) -> Result<Option<(u64, Bytes<'_>)>> {
    let mut bytes = entry.bytes;
    match entry.is_binary {
        true => Ok(Some((bytes.number()?, bytes))),
        false => Ok(None),
    }
}

/// The name of a type of integers.
pub(super) fn integer_type(bytes: &mut Bytes<'_>) -> Result<String> {
    let both = bytes.number()?;
    let sign = match both & 3 {
        0 => "i",
        1 => "si",
        _ => "ui",
    };
    Ok(format!("{sign}{}", both >> 2))
}

/// A number with six digits after the point if it is one, else with as many as it needs; bits where it is no number.
pub(super) fn write_float(text: &mut String, value: f64, name: &str) {
    if !value.is_finite() {
        let bits = match name {
            "f64" => value.to_bits(),
            "f16" => f16::from_f64(value).to_bits().into(),
            "bf16" => bf16::from_f64(value).to_bits().into(),
            _ => (value as f32).to_bits().into(),
        };
        _ = write!(text, "0x{bits:X}");
        return;
    }
    let is_single = name != "f64";
    let short = format!("{value:.6e}");
    let same = short.parse::<f64>().is_ok_and(|read| match is_single {
        true => read as f32 == value as f32,
        false => read == value,
    });
    if !same {
        _ = if is_single { write!(text, "{:?}", value as f32) } else { write!(text, "{value:?}") };
        return;
    }
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    _ = write!(text, "{digits}e{sign}{exponent:0>2}");
}
