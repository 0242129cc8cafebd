//! Text of tokens that come one at a time.

use super::Tokenizer;

/// The text of tokens that come one at a time. Each token gives the text that it adds, so all texts together are the
/// text of all tokens. Text appears once no later token can change it, so it never contains half a character.
///
/// If the tokenizer writes unknown characters as bytes, a run of bytes appears once it has ended, because a wrong byte
/// makes the whole run wrong.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens whose text is out, in front of those whose text is not all out. Decoders treat the first token of a text
    /// in another way, so that the latter are never the first.
    tokens: Vec<i32>,
    /// The number of these tokens whose text is out.
    context: usize,
    /// The number of bytes of the text of all these tokens that are out.
    out: usize,
}

impl<'t> TextStream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> TextStream<'t> {
        TextStream { tokenizer, tokens: Vec::new(), context: 0, out: 0 }
    }

    /// The text that a token adds: empty while a character is not whole.
    pub fn push(&mut self, token: i32) -> String {
        // As if it were not there: bytes on both sides of it are one run.
        if self.tokenizer.is_left_out(token) {
            return String::new();
        }
        self.tokens.push(token);
        if self.tokenizer.is_byte_of_run(token) {
            return String::new();
        }
        let all = self.tokenizer.decode(&self.tokens);
        // Replacement characters at the end stand for half a character, or for bytes that are not UTF-8.
        let stable = all.trim_end_matches('\u{fffd}').len();
        let added = all.get(self.out..stable).unwrap_or_default().to_owned();
        self.out += added.len();
        if self.out == all.len() {
            self.forget();
        }
        added
    }

    /// Returns the text that is left when no token follows. A replacement character stands for half a character.
    pub fn finish(self) -> String {
        self.rest()
    }

    pub(crate) fn rest(&self) -> String {
        self.tokenizer.decode(&self.tokens).get(self.out..).unwrap_or_default().to_owned()
    }

    /// Forgets tokens whose text is out, except for those that the next tokens need in front of them.
    fn forget(&mut self) {
        let new = self.tokenizer.decode(&self.tokens[self.context..]);
        // Tokens without text may leave the treatment of a first token to the next one.
        if !new.is_empty() {
            self.tokens.drain(..self.context);
            (self.context, self.out) = (self.tokens.len(), new.len());
        }
    }
}
