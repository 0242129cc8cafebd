//! The text of MLIR and the position in it. Tokens are read when the grammar asks for them.

use std::borrow::Cow;

use crate::parse::{Result, fault};

/// A text that is read from its start, or a part of it: positions are always those of the whole text.
#[derive(Clone, Copy)]
pub(in crate::stablehlo) struct Lexer<'a> {
    text: &'a str,
    position: usize,
    end: usize,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stablehlo) struct Span {
    pub(in crate::stablehlo) start: usize,
    pub(in crate::stablehlo) end: usize,
}

/// Letters of words: `stablehlo.add`, `c_14`, `bb0`.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$')
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, position: 0, end: text.len() }
    }

    /// Bytes of the whole text.
    pub(super) fn length(&self) -> usize {
        self.text.len()
    }

    /// Reads a part of the same text.
    pub(super) fn part(&self, span: Span) -> Lexer<'a> {
        let end = span.end.min(self.text.len());
        Lexer { text: self.text, position: span.start.min(end), end }
    }

    /// The text of a part, whose borders are at ASCII characters.
    pub(in crate::stablehlo) fn slice(&self, span: Span) -> &'a str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    /// The text from a place up to here, without white space at its end.
    pub(super) fn since(&self, start: usize) -> Span {
        Span { start, end: start + self.slice(Span { start, end: self.position }).trim_end().len() }
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.position..self.end).unwrap_or(&[])
    }

    /// Passes white space and comments.
    fn skip_space(&mut self) {
        loop {
            match self.rest() {
                [b' ' | b'\n' | b'\t' | b'\r', ..] => self.position += 1,
                [b'/', b'/', rest @ ..] => {
                    let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                    self.position += 2 + length;
                }
                _ => return,
            }
        }
    }

    /// Where the next token starts.
    pub(super) fn here(&mut self) -> usize {
        self.skip_space();
        self.position
    }

    /// The first byte of the next token.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.rest().first().copied()
    }

    pub(super) fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// The byte right here, white space or not.
    pub(super) fn peek_adjacent(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    #[inline]
    pub(super) fn starts_with(&mut self, symbol: &str) -> bool {
        self.skip_space();
        self.rest().starts_with(symbol.as_bytes())
    }

    /// Passes a symbol, if it is next: punctuation, which no letter may follow.
    #[inline]
    pub(super) fn eat(&mut self, symbol: &str) -> bool {
        let found = self.starts_with(symbol);
        self.position += if found { symbol.len() } else { 0 };
        found
    }

    /// Passes a symbol that follows without white space.
    pub(super) fn eat_adjacent(&mut self, byte: u8) -> bool {
        let found = self.peek_adjacent() == Some(byte);
        self.position += usize::from(found);
        found
    }

    /// Passes a symbol. `place` ends the message: "expected ')' after the operands, found ...".
    pub(super) fn expect(&mut self, symbol: &str, place: &str) -> Result<()> {
        match self.eat(symbol) {
            true => Ok(()),
            false => self.unexpected(&format!("'{symbol}' {place}")),
        }
    }

    /// Passes the comma after an item of a list, which the last one need not have.
    pub(super) fn separator(&mut self, close: char, place: &str) -> Result<()> {
        match self.eat(",") || self.peek() == Some(close as u8) {
            true => Ok(()),
            false => self.unexpected(&format!("',' or '{close}' {place}")),
        }
    }

    /// An error that names what was expected here and what was found.
    #[cold]
    pub(super) fn unexpected<T>(&mut self, expected: &str) -> Result<T> {
        let position = self.here();
        let rest = self.slice(Span { start: position, end: self.end });
        let word: String =
            rest.chars().take(40).take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let found = match rest.chars().next() {
            None => "the end of the text".to_owned(),
            Some(_) if !word.is_empty() => format!("\"{word}\""),
            Some(letter) => format!("{letter:?}"),
        };
        fault(position, format!("expected {expected}, found {found}"))
    }

    /// The text from a place to the next closing angle bracket.
    pub(super) fn until_bracket(&self, start: usize) -> Option<&'a str> {
        let rest = self.text.as_bytes().get(start..self.end)?;
        let length = memchr::memchr(b'>', rest)? + 1;
        Some(self.slice(Span { start, end: start + length }))
    }

    /// Passes a text that is next.
    pub(super) fn pass(&mut self, text: &str) {
        self.position += text.len();
    }

    /// The length of the letters that are next.
    fn letters(&self) -> usize {
        self.rest().iter().take_while(|&&byte| is_letter(byte)).count()
    }

    /// A word: `stablehlo.add`, `dims`, `x`.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        let first = self.peek()?;
        if !first.is_ascii_alphabetic() && first != b'_' {
            return None;
        }
        Some(self.take(self.letters()))
    }

    fn take(&mut self, length: usize) -> &'a str {
        let start = self.position;
        self.position += length;
        self.slice(Span { start, end: self.position })
    }

    pub(super) fn peek_word(&self) -> Option<&'a str> {
        let mut ahead = *self;
        ahead.word()
    }

    /// Passes a word, if it is all of the next one.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        if found {
            self.skip_space();
            self.position += word.len();
        }
        found
    }

    pub(super) fn expect_word(&mut self, what: &str) -> Result<&'a str> {
        match self.word() {
            Some(word) => Ok(word),
            None => self.unexpected(what),
        }
    }

    /// Letters with a sign before them, which is left out: the names of values, symbols, aliases and blocks. After the
    /// sign digits and hyphens may come first.
    pub(super) fn name(&mut self, sign: u8, what: &str) -> Result<&'a str> {
        if self.peek() == Some(sign) {
            let is_part = |&&byte: &&u8| is_letter(byte) || byte == b'-';
            let length = self.rest().iter().skip(1).take_while(is_part).count();
            if length > 0 {
                self.position += 1;
                return Ok(self.take(length));
            }
        }
        self.unexpected(what)
    }

    /// `@name` or `@"name"`.
    pub(super) fn symbol(&mut self) -> Result<String> {
        if self.eat("@\"") {
            self.position -= 1;
            return self.string().map(Cow::into_owned);
        }
        Ok(self.name(b'@', "a symbol, like @main")?.to_owned())
    }

    /// A number as it is written: `-1`, `2.5e-3`, `0xFF800000`.
    pub(super) fn number(&mut self) -> Option<&'a str> {
        self.skip_space();
        let rest = self.rest();
        let sign = usize::from(matches!(rest.first(), Some(b'-' | b'+')));
        if !rest.get(sign).is_some_and(u8::is_ascii_digit) {
            return None;
        }
        if rest.get(sign + 1) == Some(&b'x') {
            let digits = rest.iter().skip(sign + 2).take_while(|byte| byte.is_ascii_hexdigit()).count();
            // `0x8` in a list of sizes is the number 0 and more.
            if digits > 0 {
                return Some(self.take(sign + 2 + digits));
            }
        }
        let digits = |from: usize| rest.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
        let mut length = sign + digits(sign);
        if rest.get(length) == Some(&b'.') {
            length += 1 + digits(length + 1);
            if matches!(rest.get(length), Some(b'e' | b'E')) {
                let signed = usize::from(matches!(rest.get(length + 1), Some(b'-' | b'+')));
                match digits(length + 1 + signed) {
                    0 => {}
                    exponent => length += 1 + signed + exponent,
                }
            }
        }
        Some(self.take(length))
    }

    /// An integer of 64 bits. One above the signed maximum gives the number with the same bits.
    pub(super) fn integer(&mut self, what: &str) -> Result<i64> {
        let start = self.here();
        let Some(text) = self.number() else { return self.unexpected(what) };
        match integer(text) {
            Some(value) => Ok(value),
            None => fault(start, format!("expected {what}, found {text}, which is no integer of 64 bits")),
        }
    }

    /// The size of a dimension, before its `x`: digits alone, since `4x24` is not a number.
    pub(super) fn size(&mut self) -> Option<i64> {
        self.skip_space();
        let length = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = self.slice(Span { start: self.position, end: self.position + length });
        let size = digits.parse().ok()?;
        self.position += length;
        Some(size)
    }

    /// A string, its escapes replaced: `\"`, `\\`, `\n`, `\t` and bytes as `\0A`.
    pub(super) fn bytes(&mut self) -> Result<Cow<'a, [u8]>> {
        let start = self.here();
        self.expect("\"", "before a string")?;
        let content = self.rest();
        if let Some(length) = memchr::memchr2(b'"', b'\\', content).filter(|&at| content.get(at) == Some(&b'"')) {
            self.position += length + 1;
            return Ok(Cow::Borrowed(content.get(..length).unwrap_or_default()));
        }
        let mut string = Vec::new();
        let mut rest = self.rest().iter().copied().enumerate();
        while let Some((at, byte)) = rest.next() {
            match byte {
                b'"' => {
                    self.position += at + 1;
                    return Ok(Cow::Owned(string));
                }
                b'\\' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    match rest.next().map(|(_, byte)| byte) {
                        Some(quoted @ (b'"' | b'\\')) => string.push(quoted),
                        Some(b'n') => string.push(b'\n'),
                        Some(b't') => string.push(b'\t'),
                        Some(high) => match (digit(high), rest.next().and_then(|(_, low)| digit(low))) {
                            (Some(high), Some(low)) => string.push((16 * high + low) as u8),
                            _ => {
                                return fault(
                                    self.position + at,
                                    "unknown escape in a string; write \\\\ for a backslash",
                                );
                            }
                        },
                        None => break,
                    }
                }
                byte => string.push(byte),
            }
        }
        fault(start, "the string has no closing quote")
    }

    /// A string as a protobuf string holds it. Other bytes than UTF-8 read as U+FFFD.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>> {
        Ok(match self.bytes()? {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        })
    }

    /// The text between two brackets that balance, outside of strings; the brackets are passed too.
    pub(super) fn balanced(&mut self) -> Result<Span> {
        let start = self.here();
        let mut open: Vec<u8> = Vec::new();
        loop {
            let Some(&byte) = self.rest().first() else { return fault(start, "this bracket is not closed") };
            match byte {
                b'"' => {
                    self.bytes()?;
                    continue;
                }
                b'-' if self.rest().starts_with(b"->") => self.position += 1,
                b'<' => open.push(b'>'),
                b'[' => open.push(b']'),
                b'{' => open.push(b'}'),
                b'(' => open.push(b')'),
                b'>' | b']' | b'}' | b')' => match open.pop() {
                    Some(expected) if expected == byte => {}
                    _ => return fault(self.position, format!("'{}' closes no bracket here", char::from(byte))),
                },
                _ => {}
            }
            self.position += 1;
            if open.is_empty() {
                return Ok(Span { start: start + 1, end: self.position - 1 });
            }
        }
    }
}

/// An integer as it is written, decimal or hexadecimal; none if it is none of 64 bits.
pub(super) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    match negative {
        false => Some(value as i64),
        true if value <= i64::MIN.unsigned_abs() => Some((value as i64).wrapping_neg()),
        true => None,
    }
}
