//! Reading text piece by piece, and reporting the place of an error.

use std::fmt;
use std::str::FromStr;

use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::suggest::did_you_mean;
use meshloom_hlo::{DType, TensorType};

/// The error of a text that is not a graph, with its place.
#[derive(Clone, PartialEq, Eq)]
pub struct GraphTextError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The reason.
    pub message: String,
    /// The text of that line.
    pub source_line: String,
}

meshloom_hlo::debug_is_message!(GraphTextError);

impl fmt::Display for GraphTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "line {}, column {}: {}", self.line, self.column, self.message)?;
        writeln!(f, "  {}", self.source_line)?;
        write!(f, "  {:>width$}", "^", width = self.column)
    }
}

impl std::error::Error for GraphTextError {}

pub(super) type Result<T> = std::result::Result<T, GraphTextError>;

/// How deeply brackets may be nested, so that no text exhausts the stack.
const DEEPEST: usize = 32;

/// A place in a text, up to an end.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'t> {
    text: &'t str,
    at: usize,
    end: usize,
    depth: usize,
    /// The mesh whose names may be used.
    pub(crate) mesh: Option<&'t Mesh>,
}

/// Whether a name can stand without quotes: it starts with a letter or `_`, and goes on with letters, `_`, digits, `.`
/// and `-`.
pub(super) fn is_plain(name: &str) -> bool {
    word_length(name) == name.len() && !name.is_empty()
}

fn word_length(text: &str) -> usize {
    let is_first = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    let is_rest = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    if text.starts_with(is_first) { text.find(|letter| !is_rest(letter)).unwrap_or(text.len()) } else { 0 }
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Reader<'t> {
        Reader { text, at: 0, end: text.len(), depth: 0, mesh: None }
    }

    /// The rest of the text, unchanged.
    pub(super) fn rest(&self) -> &'t str {
        self.text.get(self.at..self.end).unwrap_or_default()
    }

    /// Skips blanks and comments; returns the rest of the text.
    fn skip(&mut self) -> &'t str {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return trimmed;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip().is_empty()
    }

    pub(crate) fn fail(&self, message: impl Into<String>) -> GraphTextError {
        let before = self.text.get(..self.at).unwrap_or(self.text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        GraphTextError {
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            message: message.into(),
            source_line: self.text[start..].split('\n').take(1).collect(),
        }
    }

    pub(crate) fn expected(&mut self, what: &str) -> GraphTextError {
        let rest = self.skip();
        let length = word_length(rest).max(rest.chars().next().map_or(0, char::len_utf8));
        match &rest[..length] {
            "" => self.fail(format!("expected {what}, found the end")),
            found => self.fail(format!("expected {what}, found `{found}`")),
        }
    }

    /// Whether this comes next; if so, it is read.
    pub(crate) fn eat(&mut self, token: &str) -> bool {
        let found = self.skip().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    /// Whether this comes next.
    pub(crate) fn sees(&mut self, token: &str) -> bool {
        self.skip().starts_with(token)
    }

    pub(crate) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`"))) }
    }

    pub(crate) fn expect_end(&mut self) -> Result<()> {
        if self.is_at_end() { Ok(()) } else { Err(self.expected("nothing more here")) }
    }

    /// Whether this word comes next; if so, it is read.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let rest = self.skip();
        let found = rest.get(..word_length(rest)) == Some(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    pub(crate) fn word(&mut self, what: &str) -> Result<&'t str> {
        let rest = self.skip();
        match &rest[..word_length(rest)] {
            "" => Err(self.expected(what)),
            word => {
                self.at += word.len();
                Ok(word)
            }
        }
    }

    /// A name with or without quotes.
    pub(crate) fn name(&mut self, what: &str) -> Result<String> {
        if self.sees("\"") { self.string() } else { Ok(self.word(what)?.to_owned()) }
    }

    /// A string in quotes, with Rust's escapes.
    pub(crate) fn string(&mut self) -> Result<String> {
        if !self.sees("\"") {
            return Err(self.expected("a string in quotes"));
        }
        let start = *self;
        let mut text = String::new();
        let mut letters = self.rest().char_indices().skip(1);
        while let Some((index, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.at = start.at + index + 1;
                    return Ok(text);
                }
                '\n' => break,
                '\\' => {
                    let escaped = letters.next().map_or(' ', |(_, letter)| letter);
                    let unescaped = match escaped {
                        'n' => Some('\n'),
                        'r' => Some('\r'),
                        't' => Some('\t'),
                        '0' => Some('\0'),
                        '\\' | '"' | '\'' => Some(escaped),
                        'u' => {
                            let code: String =
                                letters.by_ref().map(|(_, letter)| letter).take_while(|&c| c != '}').collect();
                            let code = code.strip_prefix('{').and_then(|code| u32::from_str_radix(code, 16).ok());
                            code.and_then(char::from_u32)
                        }
                        _ => None,
                    };
                    let place = Reader { at: start.at + index, ..start };
                    text.push(unescaped.ok_or_else(|| place.fail("this is no escape that Rust knows"))?);
                }
                letter => text.push(letter),
            }
        }
        Err(start.fail("the string has no closing quote"))
    }

    pub(crate) fn integer<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let rest = self.skip();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        let length = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
        if length == 0 {
            return Err(self.expected(what));
        }
        let number = &rest[..rest.len() - digits.len() + length];
        let parsed =
            number.parse().map_err(|_| self.fail(format!("expected {what}, found {number}, which does not fit")))?;
        self.at += number.len();
        Ok(parsed)
    }

    /// Reads a number of any form, up to the first letter that cannot belong to one.
    pub(crate) fn number(&mut self) -> Result<&'t str> {
        let rest = self.skip();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+');
        match &rest[..rest.find(|letter| !is_part(letter)).unwrap_or(rest.len())] {
            "" => Err(self.expected("a number")),
            number => {
                self.at += number.len();
                Ok(number)
            }
        }
    }

    /// `%3`.
    pub(super) fn value(&mut self) -> Result<u32> {
        if !self.eat("%") {
            return Err(self.expected("a value such as `%0`"));
        }
        self.integer("the number of a value")
    }

    /// One type, `f32[4,8]`.
    pub(crate) fn tensor_type(&mut self) -> Result<TensorType> {
        let start = *self;
        let name = self.word("a type such as `f32[4,8]`")?;
        let dtype = DType::from_name(name).ok_or_else(|| {
            let suggestion = did_you_mean(name, DType::ALL.map(DType::name));
            start.clone_after_blanks().fail(format!("`{name}` is no element type{suggestion}"))
        })?;
        let dims = self.list("[", "]", |reader| reader.integer::<usize>("the size of a dimension"))?;
        let ty = TensorType { dtype, dims: dims.into_iter().collect() };
        match ty.is_addressable() {
            true => Ok(ty),
            false => Err(start.clone_after_blanks().fail(format!("{ty} has more bytes than can be addressed"))),
        }
    }

    /// A reader at this place, after blanks and comments.
    pub(super) fn clone_after_blanks(mut self) -> Reader<'t> {
        self.skip();
        self
    }

    /// Items with commas between them.
    pub(crate) fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        item: impl FnMut(&mut Reader<'t>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        self.items(close, item)
    }

    fn items<T>(&mut self, close: &str, mut item: impl FnMut(&mut Reader<'t>) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.fail("this is nested too deeply"));
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                self.depth -= 1;
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.expected(&format!("`,` or `{close}`")));
            }
        }
    }

    /// At least one item, with commas between them.
    pub(super) fn one_or_more<T>(&mut self, mut item: impl FnMut(&mut Reader<'t>) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat(",") {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Reads up to, but not including, the first of these letters that stands in no brackets or quotes; on the same
    /// line if `one_line`. Returns `None`, without moving, if no such letter is found.
    pub(super) fn split_before(&mut self, stops: &[u8], one_line: bool) -> Option<Reader<'t>> {
        let bytes = self.text.as_bytes().get(..self.end).unwrap_or_default();
        let (mut at, mut depth) = (self.at, 0usize);
        while let Some(&byte) = bytes.get(at) {
            if depth == 0 && stops.contains(&byte) {
                let part = Reader { end: at, ..*self };
                self.at = at;
                return Some(part);
            }
            match byte {
                b'\n' if one_line => return None,
                b'"' => {
                    at += 1;
                    while *bytes.get(at)? != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                }
                b'/' if bytes.get(at + 1) == Some(&b'/') => {
                    if one_line {
                        return None;
                    }
                    at += bytes[at..].iter().position(|&byte| byte == b'\n')? - 1;
                }
                b'[' | b'(' | b'{' => depth += 1,
                b']' | b')' | b'}' => depth = depth.checked_sub(1)?,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Splits the rest of the text, up to the end, at the commas that stand in no brackets or quotes.
    pub(super) fn split_at_commas(mut self) -> Vec<Reader<'t>> {
        let mut parts = Vec::new();
        while !self.is_at_end() {
            match self.split_before(b",", false) {
                Some(part) => {
                    parts.push(part);
                    self.at += 1;
                }
                None => {
                    parts.push(self);
                    break;
                }
            }
        }
        parts
    }
}
