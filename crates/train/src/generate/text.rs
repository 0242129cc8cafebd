//! Tokens as text, as they come.

use crate::tokenizer::{TextStream, Tokenizer};

/// How many tokens of a prompt are decoded again with those behind them: tokenizers write a token otherwise at the
/// start of a text.
const CONTEXT: usize = 5;

/// The text behind a prompt, of tokens that come one after the other. It never gives half a character, and nothing of a
/// text that ends it.
#[derive(Debug)]
pub struct ContinuedText<'t> {
    stream: TextStream<'t>,
    stops: Vec<String>,
    /// The end of the text so far, if it may begin a text that ends it.
    held: String,
    has_ended: bool,
}

impl<'t> ContinuedText<'t> {
    /// Makes the text behind the tokens of a prompt. It ends in front of the first of `stops`; empty stops are ignored.
    pub fn behind(prompt: &[i32], tokenizer: &'t Tokenizer, stops: &[String]) -> ContinuedText<'t> {
        let mut stream = tokenizer.stream();
        for &token in &prompt[prompt.len().saturating_sub(CONTEXT)..] {
            // The reader has the prompt.
            stream.push(token);
        }
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        ContinuedText { stream, stops, held: String::new(), has_ended: false }
    }

    /// The text that one more token makes certain.
    pub fn push(&mut self, token: i32) -> String {
        if self.has_ended {
            return String::new();
        }
        let text = self.stream.push(token);
        self.certain(&text)
    }

    /// Whether one of the texts that end it has come.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the text that was held back, once no more tokens come.
    pub fn finish(mut self) -> String {
        if self.has_ended {
            return String::new();
        }
        let rest = self.stream.rest();
        let certain = self.certain(&rest);
        if self.has_ended { certain } else { certain + &self.held }
    }

    /// More text, without what may be a text that ends it.
    fn certain(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if let Some(end) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.has_ended = true;
            self.held.truncate(end);
            return std::mem::take(&mut self.held);
        }
        let may_begin = |rest: &str| self.stops.iter().any(|stop| stop.starts_with(rest));
        let end = self.held.char_indices().map(|(at, _)| at).find(|&at| may_begin(&self.held[at..]));
        let rest = self.held.split_off(end.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }
}
