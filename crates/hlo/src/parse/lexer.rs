//! The text and the position in it. Tokens are read when the grammar asks for them, so there is no list of tokens, and
//! their contents are borrowed from the text.

use memchr::memchr2;

use super::error::{Result, fault};
use crate::braces::braced_length;

/// Letters of names and keywords: `[a-zA-Z0-9_.-]`.
const IS_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let letter = byte as u8;
        table[byte] = letter.is_ascii_alphanumeric() || matches!(letter, b'_' | b'.' | b'-');
        byte += 1;
    }
    table
};

/// The most bytes of the dimensions, or of the layout, of a shape that is looked up.
const MAX_ARRAY_SHAPE: usize = 100;

#[derive(Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Lexer { text, bytes: text.as_bytes(), position: 0 }
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The text between two places that lie at ASCII characters.
    #[inline]
    fn slice(&self, start: usize, end: usize) -> &'a str {
        self.text.get(start..end).unwrap_or("")
    }

    /// Passes white space and comments.
    #[inline]
    pub(crate) fn skip_space(&mut self) {
        while let Some(&byte) = self.bytes.get(self.position) {
            match byte {
                b' ' | b'\n' | b'\t' | b'\r' => self.position += 1,
                b'/' => {
                    if !self.skip_comment() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Passes a comment, if a whole one is here.
    fn skip_comment(&mut self) -> bool {
        let rest = &self.bytes[self.position..];
        let length = match rest.get(1) {
            Some(b'*') => rest.windows(2).skip(2).position(|pair| pair == b"*/").map(|start| start + 4),
            Some(b'/') => Some(rest.iter().position(|&byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len())),
            _ => None,
        };
        self.position += length.unwrap_or(0);
        length.is_some()
    }

    /// Where the next token starts.
    #[inline]
    pub(crate) fn here(&mut self) -> usize {
        self.skip_space();
        self.position
    }

    /// The first byte of the next token.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.bytes.get(self.position).copied()
    }

    /// The byte right here, white space or not.
    #[inline]
    pub(crate) fn peek_adjacent(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    /// The byte that follows the next token, which is one byte long.
    pub(crate) fn peek_second(&mut self) -> Option<u8> {
        let start = self.here();
        self.position += 1;
        let second = self.peek();
        self.position = start;
        second
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    #[inline]
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.position += usize::from(found);
        found
    }

    /// Whether the next token and the text after it are `text`.
    pub(crate) fn starts_with(&mut self, text: &str) -> bool {
        self.skip_space();
        self.bytes[self.position..].starts_with(text.as_bytes())
    }

    pub(crate) fn eat_symbol(&mut self, symbol: &str) -> bool {
        let found = self.starts_with(symbol);
        self.position += if found { symbol.len() } else { 0 };
        found
    }

    /// Passes a keyword, if it is all of the next name.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        self.skip_space();
        let end = self.position + word.len();
        let found = self.bytes[self.position..].starts_with(word.as_bytes())
            && !self.bytes.get(end).is_some_and(|&byte| IS_NAME[usize::from(byte)]);
        if found {
            self.position = end;
        }
        found
    }

    /// Passes `byte`. `place` ends the message: "expected ')' after the operands, found ...".
    #[inline]
    pub(crate) fn expect(&mut self, byte: u8, place: &str) -> Result<()> {
        if self.eat(byte) {
            return Ok(());
        }
        self.unexpected(&format!("'{}' {place}", char::from(byte)))
    }

    /// An error that names what was expected here and what was found.
    #[cold]
    pub(crate) fn unexpected<T>(&mut self, expected: &str) -> Result<T> {
        let position = self.here();
        let found = self.describe();
        fault(position, format!("expected {expected}, found {found}"))
    }

    /// The next token, for a message.
    fn describe(&mut self) -> String {
        let start = self.here();
        let rest = &self.bytes[start..];
        let Some(&first) = rest.first() else { return "the end of the text".to_string() };
        if rest.starts_with(b"/*") {
            return "a comment without an end".to_string();
        }
        let name_start = usize::from(first == b'%');
        let name_length = rest[name_start..].iter().take(40).take_while(|&&byte| IS_NAME[usize::from(byte)]).count();
        if name_length > 0 {
            return format!("\"{}\"", self.slice(start, start + name_start + name_length));
        }
        let letter = self.text.get(start..).and_then(|rest| rest.chars().next());
        letter.map_or_else(|| format!("byte 0x{first:02x}"), |letter| format!("{:?}", letter))
    }

    /// A name without a sign before it, or a keyword: `[a-zA-Z_][a-zA-Z0-9_.-]*`.
    #[inline]
    pub(crate) fn word(&mut self) -> Option<&'a str> {
        let start = self.here();
        let first = *self.bytes.get(start)?;
        if !first.is_ascii_alphabetic() && first != b'_' {
            return None;
        }
        self.position = self.name_end(start + 1);
        Some(self.slice(start, self.position))
    }

    #[inline]
    fn name_end(&self, start: usize) -> usize {
        let mut end = start;
        while self.bytes.get(end).is_some_and(|&byte| IS_NAME[usize::from(byte)]) {
            end += 1;
        }
        end
    }

    /// The text of the array shape that starts here, if it has no white space, layout included; it stays unread.
    /// Something else may also start here.
    pub(crate) fn peek_array_shape(&mut self) -> &'a str {
        let start = self.here();
        let mut end = self.name_end(start);
        for (open, close) in [(b'[', b']'), (b'{', b'}')] {
            let rest = self.bytes.get(end..).unwrap_or_default();
            if rest.first() != Some(&open) {
                break;
            }
            let length = rest.iter().take(MAX_ARRAY_SHAPE).position(|&byte| byte == close);
            end += length.map_or(0, |length| length + 1);
        }
        self.slice(start, end)
    }

    /// Passes the text here, which was peeked at.
    pub(crate) fn pass(&mut self, text: &str) {
        self.position += text.len();
    }

    /// The text from `start` to here.
    pub(crate) fn since(&self, start: usize) -> &'a str {
        self.slice(start, self.position)
    }

    /// The next word, which stays unread.
    pub(crate) fn peek_word(&mut self) -> Option<&'a str> {
        let start = self.here();
        let word = self.word();
        self.position = start;
        word
    }

    /// The next word; `what` it should be is for the message.
    #[inline]
    pub(crate) fn expect_word(&mut self, what: &str) -> Result<&'a str> {
        match self.word() {
            Some(word) => Ok(word),
            None => self.unexpected(what),
        }
    }

    /// A name of an instruction or a computation, with `%` or without. After the sign any name letter may come first:
    /// such names are in modules that other writers have made.
    #[inline]
    pub(crate) fn name(&mut self, what: &str) -> Result<&'a str> {
        if self.peek() == Some(b'%') {
            let start = self.position + 1;
            let end = self.name_end(start);
            if end > start {
                self.position = end;
                return Ok(self.slice(start, end));
            }
        }
        self.expect_word(what)
    }

    /// `name=`, the start of an attribute.
    #[inline]
    pub(crate) fn attribute_name(&mut self) -> Result<&'a str> {
        let name = self.expect_word("the name of an attribute")?;
        self.expect(b'=', "after the name of the attribute")?;
        Ok(name)
    }

    /// An integer of at most 64 bits. As in XLA, one above the signed maximum gives the number with the same bits.
    #[inline]
    pub(crate) fn integer(&mut self) -> Result<i64> {
        let start = self.here();
        let negative = self.bytes.get(start) == Some(&b'-');
        let digits = start + usize::from(negative);
        let mut end = digits;
        let mut value = 0u64;
        while let Some(digit) = self.bytes.get(end).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            end += 1;
        }
        if end == digits {
            return self.unexpected("an integer");
        }
        // Any number of 19 digits fits 64 bits.
        let fits = end - digits <= 19 || self.slice(digits, end).parse() == Ok(value);
        if !fits || negative && value > i64::MIN.unsigned_abs() {
            return fault(start, "the integer does not fit 64 bits");
        }
        self.position = end;
        Ok(if negative { (value as i64).wrapping_neg() } else { value as i64 })
    }

    /// An integer of 32 bits.
    pub(crate) fn small_integer(&mut self) -> Result<i32> {
        let start = self.here();
        let value = self.integer()?;
        i32::try_from(value).or_else(|_| fault(start, format!("{value} does not fit 32 bits")))
    }

    /// Passes bytes that `belongs` takes; there may be none. It reads numbers and patterns like `0_1x2_2`.
    pub(crate) fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a str {
        let start = self.here();
        while self.bytes.get(self.position).is_some_and(|&byte| belongs(byte)) {
            self.position += 1;
        }
        self.slice(start, self.position)
    }

    /// A string between quotes of either kind, its escapes replaced as in C.
    pub(crate) fn quoted(&mut self) -> Result<Vec<u8>> {
        let start = self.here();
        let quote = match self.bytes.get(start) {
            Some(&quote @ (b'"' | b'\'')) => quote,
            _ => return self.unexpected("a string in quotes"),
        };
        let rest = &self.bytes[start + 1..];
        let Some(end) = memchr2(quote, b'\\', rest) else {
            return fault(start, "the string has no closing quote");
        };
        if rest[end] == quote {
            self.position = start + 1 + end + 1;
            return Ok(rest[..end].to_vec());
        }
        self.escaped(start, quote, rest[..end].to_vec())
    }

    /// The rest of a string, from its first escape on.
    fn escaped(&mut self, start: usize, quote: u8, mut string: Vec<u8>) -> Result<Vec<u8>> {
        let mut position = start + 1 + string.len();
        loop {
            let Some(&byte) = self.bytes.get(position) else {
                return fault(start, "the string has no closing quote");
            };
            position += 1;
            if byte == quote {
                self.position = position;
                return Ok(string);
            }
            if byte != b'\\' {
                string.push(byte);
                continue;
            }
            position += self.escape(position, &mut string)?;
        }
    }

    /// Appends what the escape stands for whose sign is before `position`; its length.
    fn escape(&self, position: usize, string: &mut Vec<u8>) -> Result<usize> {
        let rest = &self.bytes[position..];
        let digits = |count: usize, radix: u32| {
            let digits = rest.iter().skip(usize::from(radix == 16)).take(count);
            let digits = digits.map_while(|&byte| char::from(byte).to_digit(radix));
            digits.fold((0usize, 0u32), |(length, value), digit| (length + 1, value * radix + digit))
        };
        let (length, value) = match rest.first() {
            Some(b'n') => (1, b'\n'),
            Some(b'r') => (1, b'\r'),
            Some(b't') => (1, b'\t'),
            Some(b'a') => (1, 0x07),
            Some(b'b') => (1, 0x08),
            Some(b'f') => (1, 0x0c),
            Some(b'v') => (1, 0x0b),
            Some(&byte @ (b'\\' | b'"' | b'\'' | b'?')) => (1, byte),
            Some(b'0'..=b'7') => match digits(3, 8) {
                (length, value @ ..=0xff) => (length, value as u8),
                _ => return fault(position - 1, "an octal escape is at most \\377"),
            },
            Some(b'x' | b'X') => match digits(2, 16) {
                (0, _) => return fault(position - 1, "expected hexadecimal digits after \\x"),
                (length, value) => (1 + length, value as u8),
            },
            None => return fault(position - 1, "the string has no closing quote"),
            _ => return fault(position - 1, "unknown escape in a string; write \\\\ for a backslash"),
        };
        string.push(value);
        Ok(length)
    }

    /// A string that a protobuf string holds. Other bytes than UTF-8 cannot be in one: they read as U+FFFD.
    pub(crate) fn string(&mut self) -> Result<String> {
        Ok(String::from_utf8(self.quoted()?)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// `{...}` with balanced braces outside strings, as it is: JSON, or something that looks like it.
    pub(crate) fn braced(&mut self) -> Result<&'a str> {
        let start = self.here();
        if self.bytes.get(start) != Some(&b'{') {
            return self.unexpected("'{' or a string in quotes");
        }
        let Some(length) = braced_length(&self.bytes[start..]) else {
            return fault(start, "no '}' closes this '{'");
        };
        self.position = start + length;
        Ok(self.slice(start, self.position))
    }

    /// Passes a value of any form: up to the comma, the end of the line or the closing bracket that follows it; in a
    /// record also up to a space.
    pub(crate) fn skip_value(&mut self, is_in_record: bool) -> Result<()> {
        let start = self.here();
        let mut depth = 0usize;
        loop {
            match self.bytes.get(self.position) {
                Some(b'"' | b'\'') => {
                    self.quoted()?;
                    continue;
                }
                Some(b'{' | b'[' | b'(') => depth += 1,
                None | Some(b'}' | b']' | b')' | b',' | b'\n') if depth == 0 => break,
                Some(b' ') if depth == 0 && is_in_record => break,
                Some(b'}' | b']' | b')') => depth -= 1,
                Some(_) => {}
                None => return fault(start, "no bracket closes this value"),
            }
            self.position += 1;
        }
        if self.position > start { Ok(()) } else { self.unexpected("a value") }
    }

    /// A string in quotes, or `{...}` as it is.
    pub(crate) fn quoted_or_braced(&mut self) -> Result<Vec<u8>> {
        match self.peek() {
            Some(b'{') => Ok(self.braced()?.as_bytes().to_vec()),
            _ => self.quoted(),
        }
    }

    pub(crate) fn boolean(&mut self) -> Result<bool> {
        if self.eat_word("true") {
            Ok(true)
        } else if self.eat_word("false") {
            Ok(false)
        } else {
            self.unexpected("true or false")
        }
    }
}
