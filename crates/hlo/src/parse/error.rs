//! Errors in a text, with their places.

use std::fmt;

/// Columns of the source line that an excerpt shows at most: lines of HLO may have megabytes.
const EXCERPT_WIDTH: usize = 120;

/// Columns of the excerpt before the place of the error.
const EXCERPT_BEFORE: usize = 60;

/// Characters of a message at most: names in it come from the text.
const MAX_MESSAGE: usize = 400;

/// The error of a text that is not a module.
///
/// Its `Display` has the place, what was expected, and the line with a mark under the place:
///
/// ```text
/// line 3, column 20: unknown opcode "ad" (did you mean "add"?)
///   ROOT %c = f32[4] ad(%a, %b)
///                    ^
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The expected and the found text, lowercase, without the place.
    pub message: String,
    /// The line, shortened around the place where it is long, and below it a caret.
    pub excerpt: String,
}

crate::debug_is_message!(ParseError);

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}, column {}: {}\n{}", self.line, self.column, self.message, self.excerpt)
    }
}

impl std::error::Error for ParseError {}

impl ParseError {
    /// An error at a byte of `text`, which need not be UTF-8.
    pub(crate) fn locate(text: &[u8], position: usize, message: String) -> Self {
        let position = position.min(text.len());
        let before = &text[..position];
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let line_end = text[position..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| position + end);
        let column = 1 + String::from_utf8_lossy(&text[line_start..position]).chars().count();
        let message = match message.char_indices().nth(MAX_MESSAGE) {
            Some((end, _)) => format!("{}...", &message[..end]),
            None => message,
        };
        let excerpt = excerpt(&text[line_start..line_end], position - line_start);
        ParseError { line, column, message, excerpt }
    }
}

/// The part of a line around `position`, and the caret below it.
fn excerpt(line: &[u8], position: usize) -> String {
    let start = position.saturating_sub(EXCERPT_BEFORE);
    let end = line.len().min(start + EXCERPT_WIDTH);
    let visible = |bytes: &[u8]| -> String {
        // Control characters would move the caret.
        String::from_utf8_lossy(bytes).chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
    };
    let mut text = String::from(if start > 0 { "..." } else { "" });
    text.push_str(&visible(&line[start..position]));
    let caret = text.chars().count();
    text.push_str(&visible(&line[position..end.max(position)]));
    if end < line.len() {
        text.push_str("...");
    }
    text.push('\n');
    text.extend(std::iter::repeat_n(' ', caret));
    text.push('^');
    text
}

/// An error before its place is known as a line: those are counted once, when parsing has failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) position: usize,
    pub(crate) message: String,
}

impl Fault {
    /// The same with more to say.
    pub(crate) fn with(mut self: Box<Self>, more: &str) -> Box<Self> {
        self.message.push_str(more);
        self
    }
}

/// Boxed, so that the results of the many small functions stay small.
pub(crate) type Result<T> = std::result::Result<T, Box<Fault>>;

/// Reads a text, or says where it is wrong.
pub(crate) fn located<T>(text: &[u8], read: impl FnOnce() -> Result<T>) -> std::result::Result<T, ParseError> {
    read().map_err(|fault| ParseError::locate(text, fault.position, fault.message))
}

/// The text that bytes are. `advice` says what other bytes than UTF-8 are in the text's language.
pub(crate) fn utf8(bytes: &[u8], advice: impl FnOnce(u8) -> String) -> Result<&str> {
    std::str::from_utf8(bytes).or_else(|error| {
        let position = error.valid_up_to();
        let byte = bytes.get(position).copied().unwrap_or(0);
        fault(position, format!("byte 0x{byte:02x} is not UTF-8; {}", advice(byte)))
    })
}

pub(crate) fn fault<T>(position: usize, message: impl Into<String>) -> Result<T> {
    Err(Box::new(Fault { position, message: message.into() }))
}
