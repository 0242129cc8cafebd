//! The names of values as MLIR prints them: `%0`, `%arg0`, `%cst_1`, `%iterArg`. Bytecode has none, and those of
//! instructions come from them.

use std::fmt::Write;

use super::super::lexer::Span;
use super::file::{File, is_cast, without_version};
use super::regions::{Encoded, EncodedOperation, EncodedRegion, ValueNumber};
use crate::parse::{Memory, Result};

/// The name of a value, and its number among the results of its op.
#[derive(Clone, Copy)]
pub(super) struct ValueName {
    pub(super) span: Span,
    pub(super) number: usize,
}

/// The names that are words; a second value of a word has a number behind it.
const WORDS: [&str; 12] = [
    "c",
    "cst",
    "iterArg",
    "output_state",
    "output",
    "batch_mean",
    "batch_var",
    "grad_operand",
    "grad_scale",
    "grad_offset",
    "values",
    "indices",
];

/// The words of constants of integers and of others, and of what a loop carries.
const INTEGER: usize = 0;
const OTHER: usize = 1;
const CARRIED: usize = 2;

/// The ops whose results have words of their own, and those words.
const NAMED: [(&str, std::ops::Range<usize>); 4] =
    [("rng_bit_generator", 3..5), ("batch_norm_training", 4..7), ("batch_norm_grad", 7..10), ("top_k", 10..12)];

/// How far the numbers of values have come. Regions beside each other go on from the same place.
#[derive(Clone, Copy, Default)]
struct NameCounters {
    value: usize,
    argument: usize,
    conflict: usize,
    /// Whether each word is taken.
    taken: [bool; WORDS.len()],
}

struct ValueNames<'n, 'a> {
    file: &'n File<'a>,
    encoded: &'n Encoded<'a>,
    types: &'n [Option<Span>],
    text: &'n mut String,
    /// The texts of numbers.
    numbers: Vec<Span>,
    names: Vec<ValueName>,
}

/// Writes the names of all values behind a text, and says where each one is.
pub(super) fn name<'a>(
    file: &File<'a>,
    encoded: &Encoded<'a>,
    types: &[Option<Span>],
    text: &mut String,
    memory: &Memory,
) -> Result<Vec<ValueName>> {
    let count = encoded.types.len();
    memory.take(count.saturating_mul(size_of::<ValueName>() + size_of::<Span>()), 0)?;
    let unnamed = ValueName { span: Span { start: 0, end: 0 }, number: 0 };
    let mut names = ValueNames { file, encoded, types, text, numbers: Vec::new(), names: vec![unnamed; count] };
    let mut waiting = Vec::new();
    let mut numbers = NameCounters::default();
    names.block(&encoded.operations, &mut numbers, &mut waiting);
    while let Some((region, is_loop, mut numbers)) = waiting.pop() {
        names.arguments(region, is_loop, &mut numbers);
        names.block(&region.operations, &mut numbers, &mut waiting);
    }
    Ok(names.names)
}

/// A region whose values have no names yet, and whether it is one of a loop.
type Waiting<'n> = Vec<(&'n EncodedRegion, bool, NameCounters)>;

impl<'n> ValueNames<'n, '_> {
    /// Names the results of ops. Their regions go on after the last one.
    fn block(&mut self, operations: &'n [EncodedOperation], numbers: &mut NameCounters, waiting: &mut Waiting<'n>) {
        for operation in operations {
            let results = operation.results.clone();
            if self.file.names.get(operation.name as usize).is_some_and(is_cast) {
                self.forward(operation);
                continue;
            }
            let Some(first) = self.first_type(operation) else { continue };
            let own = NAMED.iter().find(|(name, words)| words.len() == results.len() && self.is_named(operation, name));
            if let Some((_, words)) = own {
                for (word, value) in words.clone().zip(results) {
                    let span = self.word(word, numbers);
                    self.set(value, span, 0);
                }
                continue;
            }
            let span = match self.is_named(operation, "constant") {
                true => {
                    let word = if is_integer(first) { INTEGER } else { OTHER };
                    self.word(word, numbers)
                }
                false => {
                    numbers.value += 1;
                    self.number(numbers.value - 1)
                }
            };
            for (number, value) in results.enumerate() {
                self.set(value, span, number);
            }
        }
        for operation in operations.iter().rev() {
            let is_loop = !operation.regions.is_empty() && self.is_named(operation, "while");
            waiting.extend(operation.regions.iter().map(|region| (region, is_loop, *numbers)));
        }
    }

    fn arguments(&mut self, region: &EncodedRegion, is_loop: bool, numbers: &mut NameCounters) {
        for value in region.arguments.clone() {
            let span = match is_loop {
                true => self.word(CARRIED, numbers),
                false => {
                    let start = self.text.len();
                    _ = write!(self.text, "arg{} ", numbers.argument);
                    numbers.argument += 1;
                    Span { start, end: self.text.len() - 1 }
                }
            };
            self.set(value, span, 0);
        }
    }

    fn set(&mut self, value: ValueNumber, span: Span, number: usize) {
        if let Some(name) = self.names.get_mut(value as usize) {
            *name = ValueName { span, number };
        }
    }

    /// Gives the results of an op the names of its operands.
    fn forward(&mut self, operation: &EncodedOperation) {
        let operands = self.encoded.operands.get(operation.operands.clone()).unwrap_or_default();
        for (value, operand) in operation.results.clone().zip(operands) {
            if let Some(&name) = self.names.get(*operand as usize)
                && let Some(result) = self.names.get_mut(value as usize)
            {
                *result = name;
            }
        }
    }

    /// The text of the type of an op's first result, if it has one.
    fn first_type(&self, operation: &EncodedOperation) -> Option<&str> {
        let first = operation.results.clone().next()?;
        let kind = *self.encoded.types.get(first as usize)?;
        let span = (*self.types.get(kind as usize)?)?;
        self.text.get(span.start..span.end)
    }

    fn is_named(&self, operation: &EncodedOperation, name: &str) -> bool {
        self.file.names.get(operation.name as usize).is_some_and(|op| {
            matches!(op.dialect, "stablehlo" | "vhlo" | "mhlo" | "chlo") && without_version(op.name) == name
        })
    }

    fn word(&mut self, word: usize, numbers: &mut NameCounters) -> Span {
        let start = self.text.len();
        self.text.push_str(WORDS[word]);
        if std::mem::replace(&mut numbers.taken[word], true) {
            _ = write!(self.text, "_{}", numbers.conflict);
            numbers.conflict += 1;
        }
        self.text.push(' ');
        Span { start, end: self.text.len() - 1 }
    }

    fn number(&mut self, number: usize) -> Span {
        while self.numbers.len() <= number {
            let start = self.text.len();
            _ = write!(self.text, "{} ", self.numbers.len());
            self.numbers.push(Span { start, end: self.text.len() - 1 });
        }
        self.numbers[number]
    }
}

/// Whether a type is that of an array of integers.
fn is_integer(name: &str) -> bool {
    let sizes = name.trim_start_matches("tensor<");
    let element = sizes.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == 'x' || letter == '?');
    let digits = element.trim_start_matches(['u', 's']).strip_prefix('i');
    digits.is_some_and(|digits| digits.starts_with(|letter: char| letter.is_ascii_digit()))
}
