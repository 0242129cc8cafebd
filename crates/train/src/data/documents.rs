//! The documents of a file's text, which is read one piece at a time.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use super::error::DataError;
use super::files::{Digesting, SourceFile};

/// Blank-line-separated blocks are joined until a document has this many bytes, so that a line of dialogue keeps its
/// context.
const MIN_DOCUMENT_BYTES: usize = 192;

/// The most bytes of a document that are held in memory. A longer text without blank lines is cut here, and a longer
/// line of JSON cannot be used.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;

/// The mark at the beginning of a file that declares it as UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A part of a file that is one document, or that cannot be used.
#[derive(Debug)]
pub(super) struct Unit {
    /// Its first line, from 1.
    pub(super) line: u64,
    pub(super) bytes: Vec<u8>,
    /// Whether it is a part of a line that is too long.
    is_cut: bool,
}

/// A line that cannot be used.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct BadLine {
    /// The line, from 1.
    pub(super) line: u64,
    pub(super) reason: String,
}

/// The units of a file, in their order.
pub(super) struct Units<'a> {
    path: PathBuf,
    is_json_lines: bool,
    input: Box<dyn BufRead + Send + 'a>,
    /// Lines that have been read to their end.
    lines: u64,
    /// The line, or part of one, that the next unit begins with.
    pending: Vec<u8>,
}

impl<'a> Units<'a> {
    /// Also the digest of the file while it is read. A compressed file may have `expansion` times its size as text.
    pub(super) fn of(
        file: &SourceFile,
        on_read: impl Fn(u64) + Send + 'a,
        expansion: f64,
    ) -> Result<(Units<'a>, Digesting), DataError> {
        let (path, is_json_lines) = (file.path.clone(), file.format.is_json_lines);
        let (input, digesting) = file.open(on_read, expansion)?;
        Ok((Units { path, is_json_lines, input, lines: 0, pending: Vec::new() }, digesting))
    }

    /// Returns the next unit; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Unit>, DataError> {
        let unit = if self.is_json_lines { self.next_line() } else { self.next_text() };
        unit.map_err(|source| DataError::Damaged { path: self.path.clone(), line: self.lines + 1, source })
    }

    /// Text is cut after blank lines, into documents of at least [`MIN_DOCUMENT_BYTES`] (but the last). A document
    /// keeps the blank lines that end it, so the documents are the text.
    fn next_text(&mut self) -> io::Result<Option<Unit>> {
        let mut document = std::mem::take(&mut self.pending);
        let first = self.lines + u64::from(document.is_empty() || !document.ends_with(b"\n"));
        let mut after_blank = is_blank(&document) && !document.is_empty();
        loop {
            let line = read_line(&mut self.input)?;
            if line.is_empty() {
                let unit = Unit { line: first, bytes: document, is_cut: false };
                return Ok((!unit.bytes.is_empty()).then_some(unit));
            }
            self.lines += u64::from(line.ends_with(b"\n"));
            let blank = is_blank(&line);
            let is_complete = after_blank && !blank && document.len() >= MIN_DOCUMENT_BYTES;
            let is_full = !document.is_empty() && document.len() + line.len() > MAX_DOCUMENT_BYTES;
            if is_complete || is_full {
                self.pending = line;
                return Ok(Some(Unit { line: first, bytes: document, is_cut: false }));
            }
            document.extend_from_slice(&line);
            after_blank = blank;
        }
    }

    fn next_line(&mut self) -> io::Result<Option<Unit>> {
        loop {
            let mut bytes = read_line(&mut self.input)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let is_cut = !bytes.ends_with(b"\n") && bytes.len() >= MAX_DOCUMENT_BYTES;
            let mut rest = if is_cut { read_line(&mut self.input)? } else { Vec::new() };
            while !rest.is_empty() && !rest.ends_with(b"\n") {
                rest = read_line(&mut self.input)?;
            }
            if self.lines == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            self.lines += 1;
            if !is_blank(&bytes) {
                return Ok(Some(Unit { line: self.lines, bytes, is_cut }));
            }
        }
    }
}

/// A line with its end, or as much of one as is held in memory, cut between characters. Nothing at the end of the
/// input.
fn read_line(input: &mut (impl BufRead + ?Sized)) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(MAX_DOCUMENT_BYTES as u64).read_until(b'\n', &mut line)?;
    if line.len() == MAX_DOCUMENT_BYTES && !line.ends_with(b"\n") {
        // A character of UTF-8 has at most three bytes after its first, which begin with the bits 10.
        for _ in 0..3 {
            match input.fill_buf()?.first() {
                Some(&byte) if byte & 0xc0 == 0x80 => line.push(byte),
                _ => break,
            }
            input.consume(1);
        }
    }
    Ok(line)
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

impl Unit {
    /// The document in a line of JSON Lines.
    pub(super) fn field(&self, field: &str) -> Result<String, BadLine> {
        let bad = |reason: String| BadLine { line: self.line, reason };
        if self.is_cut {
            return Err(bad(format!("the line has more than {MAX_DOCUMENT_BYTES} bytes")));
        }
        let text = std::str::from_utf8(&self.bytes).map_err(|error| bad(not_utf8(&error)))?;
        let mut json = serde_json::Deserializer::from_str(text.trim_end());
        let found = json.deserialize_map(Field(field)).and_then(|found| json.end().map(|()| found));
        match found {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(bad(format!("the object has no field {field:?}; data.field names the field"))),
            Err(error) => Err(bad(format!("it is not a JSON object with a string as {field:?}: {}", in_line(&error)))),
        }
    }

    /// The document of a text, as characters: without the lines that are not UTF-8, and these.
    pub(super) fn characters(&self) -> (String, Vec<BadLine>) {
        let (mut text, mut bad) = (String::new(), Vec::new());
        for (number, line) in (self.line..).zip(self.bytes.split_inclusive(|&byte| byte == b'\n')) {
            match std::str::from_utf8(line) {
                Ok(line) => text.push_str(line),
                Err(error) => bad.push(BadLine { line: number, reason: not_utf8(&error) }),
            }
        }
        (text, bad)
    }
}

fn not_utf8(error: &std::str::Utf8Error) -> String {
    format!("the line is not UTF-8 at its byte {}", error.valid_up_to() + 1)
}

/// The parser's message without its line number, which is always 1 because it sees a single line. The message has no
/// column if the fault is at the very beginning.
fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.split_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    match error.column() {
        0 => reason.to_owned(),
        column => format!("{reason}, column {column}"),
    }
}

/// Reads one field of an object, the last of that name, and checks the rest.
struct Field<'a>(&'a str);

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            match name == self.0 {
                true => found = Some(map.next_value()?),
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}
