//! Parses the HLO text form: the inverse of [`text`](super::text).
//!
//! This parser accepts what XLA's parser (`hlo_parser.cc`) accepts and gives the same module. That is everything its
//! printer writes, in any layout of lines, and what people write by hand: names without `%`, operands with their
//! shapes, computations inside attributes, instructions as operands, a text without a header. Names stay as they are.
//! Instructions and computations stay in the order of the text and are numbered in that order, as XLA numbers them,
//! except for some instructions that call computations (see `order.rs`). So a text that XLA printed prints again
//! unchanged.
//!
//! ```
//! use meshloom_hlo::parse::parse;
//! let module = parse("ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2] parameter(0)\n}")?;
//! assert_eq!(module.hlo_module.unwrap().computations[0].instructions[0].name, "x");
//! let error = parse("ENTRY %main (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2] paramter(0)\n}").unwrap_err();
//! assert_eq!((error.line, error.column), (2, 20));
//! assert_eq!(error.message, "unknown opcode \"paramter\" (did you mean \"parameter\"?)");
//! # Ok::<(), meshloom_hlo::parse::ParseError>(())
//! ```
//!
//! This parser differs from XLA's where a reader must show what is in a file:
//! - It trusts the shape that an instruction states; XLA checks some of them against the operands.
//! - A constant whose elements are elided (`{...}`) has a literal with a shape and no elements; XLA fills in others.
//! - A sharding stays as it is written; XLA rewrites some to equal ones.
//! - Names stay as they are; XLA numbers those that two computations share ([`make_names_unique`]).
//! - Instructions of a scheduled module stay in the order of the schedule.
//! - An attribute that it does not know, from a newer XLA, is passed over and noted ([`PassedOver`]), unless its name
//!   is nearly one that it knows; so is a field of metadata.
//! - `f32[4] constant(1)` is an elided constant: its other elements are not written. XLA takes 0 for them.
//!
//! The text is untrusted: recursion is bounded, memory is proportional to the text, and nothing panics.

mod computation;
mod error;
mod infer;
mod instruction;
mod lexer;
mod literal;
mod memory;
mod module;
mod names;
mod order;
mod shape;

use rustc_hash::FxHashMap;

use super::passed_over::PassedOver;
use super::proto::{HloComputationProto, HloModuleProtoWithConfig, OpSharding, ShapeProto};
use super::suggest::did_you_mean;
use super::syntax::Value;
pub(crate) use computation::Scope;
pub use error::ParseError;
pub(crate) use error::{Fault, Result, fault, located, utf8};
use lexer::Lexer;
pub(crate) use literal::Real;
pub(crate) use memory::{Memory, own_bytes};
pub use names::make_names_unique;
pub(crate) use shape::{array, is_compatible, tuple};

/// The limits on what a text may ask of its reader. All are generous: they are there for texts that were made to do
/// harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Bytes of the text.
    pub bytes: usize,
    /// How deep tuples, operands, computations in attributes and modules in attributes may nest together. Readers of
    /// protobufs let messages nest 100 deep, and a shape costs one for each tuple.
    pub nesting: usize,
    /// Elements of one constant. Elided ones cost nothing and do not count.
    pub literal_elements: usize,
    /// How many times the size of the text a module may take in memory. Real ones take seven times theirs, and up to
    /// twelve where instructions have no metadata.
    pub memory_ratio: usize,
    /// Bytes that any module may take in memory.
    pub memory_bytes: usize,
}

impl Default for TextLimits {
    fn default() -> Self {
        TextLimits { bytes: 16 << 30, nesting: 64, literal_elements: 1 << 30, memory_ratio: 20, memory_bytes: 40 << 20 }
    }
}

impl TextLimits {
    /// Refuses a text that is too long.
    pub(crate) fn check(&self, text: &str) -> Result<()> {
        match text.len() > self.bytes {
            true => fault(0, format!("the text has {} bytes, and the limit is {}", text.len(), self.bytes)),
            false => Ok(()),
        }
    }
}

/// A part that something has under a name: after a comma, and in a record, where no comma need follow it.
pub(crate) const ATTRIBUTE: &str = "attribute";
pub(crate) const FIELD: &str = "field";

/// Bytes of an item of a list, beside what it has itself: most are numbers.
const LIST_ITEM: usize = 8;

/// Reads a module.
pub fn parse(text: &str) -> std::result::Result<HloModuleProtoWithConfig, ParseError> {
    parse_with(text, &TextLimits::default())
}

/// Like [`parse`], for bytes that may not be UTF-8; that is an error like others.
pub fn parse_bytes(text: &[u8], limits: &TextLimits) -> std::result::Result<HloModuleProtoWithConfig, ParseError> {
    parse_noting(text, limits, &mut PassedOver::default())
}

/// Like [`parse_bytes`]; notes what it passes over.
pub(crate) fn parse_noting(
    text: &[u8],
    limits: &TextLimits,
    passed_over: &mut PassedOver,
) -> std::result::Result<HloModuleProtoWithConfig, ParseError> {
    let advice = |byte| format!("HLO text is, and has other bytes in strings as \\{byte:03o}");
    located(text, || read(utf8(text, advice)?, limits, passed_over))
}

/// Like [`parse`], with limits of one's own.
pub fn parse_with(text: &str, limits: &TextLimits) -> std::result::Result<HloModuleProtoWithConfig, ParseError> {
    located(text.as_bytes(), || read(text, limits, &mut PassedOver::default()))
}

fn read(text: &str, limits: &TextLimits, passed_over: &mut PassedOver) -> Result<HloModuleProtoWithConfig> {
    limits.check(text)?;
    let mut parser = Parser::new(Lexer::new(text), limits, 0);
    let read = parser.module();
    *passed_over = parser.passed_over;
    read.map_err(|fault| if is_cut_off(text, fault.position) { fault.with(CUT_OFF) } else { fault })
}

const CUT_OFF: &str = "; the text ends here, as if it was cut off: is the file complete?";

/// Whether a text that is wrong at `position` seems to be the beginning of a longer one: it is wrong in its last line,
/// and does not end as the last computation does.
fn is_cut_off(text: &str, position: usize) -> bool {
    let text = text.trim_ascii_end();
    let is_last_line = text.get(position..).is_none_or(|rest| !rest.contains('\n'));
    (text.contains('\n') || text.starts_with("HloModule"))
        && (position >= text.len() || is_last_line && !text.ends_with('}'))
}

/// A sharding as HLO text has it, which is how StableHLO has it in a string.
pub(crate) fn parse_sharding(text: &str) -> std::result::Result<OpSharding, String> {
    let limits = TextLimits::default();
    let mut parser = Parser::new(Lexer::new(text), &limits, 0);
    let read = OpSharding::read(&mut parser).map_err(|fault| fault.message)?;
    match parser.lexer.is_at_end() {
        true => Ok(read),
        false => Err("something follows the sharding".to_owned()),
    }
}

/// The state of reading one text. Each file of this module adds the methods for one part of the grammar.
pub(crate) struct Parser<'a> {
    pub(crate) lexer: Lexer<'a>,
    pub(crate) limits: &'a TextLimits,
    /// The number of nested constructs that are open.
    depth: usize,
    /// Complete computations; the id of each is its place.
    computations: Vec<HloComputationProto>,
    /// Whether the text has each computation only in a short form.
    is_hidden: Vec<bool>,
    /// The computations to which the text gives no name.
    unnamed: Vec<usize>,
    /// The computations that have a name, by that name.
    computation_ids: FxHashMap<&'a str, usize>,
    /// Empty tables of names, to be used again.
    spare_names: Vec<FxHashMap<&'a str, usize>>,
    blocks: computation::Blocks,
    /// Array shapes that were read, by their text.
    known_shapes: FxHashMap<&'a str, ShapeProto>,
    /// The number of shapes that have been copied to infer others.
    inferred: usize,
    pub(crate) memory: Memory,
    passed_over: PassedOver,
    /// Whether the text ends at a quote: it is inside another module.
    is_quoted: bool,
}

impl<'a> Parser<'a> {
    fn new(lexer: Lexer<'a>, limits: &'a TextLimits, depth: usize) -> Self {
        Parser {
            limits,
            depth,
            computations: Vec::new(),
            is_hidden: Vec::new(),
            unnamed: Vec::new(),
            computation_ids: FxHashMap::default(),
            spare_names: Vec::new(),
            blocks: computation::Blocks::default(),
            known_shapes: FxHashMap::default(),
            inferred: 0,
            memory: Memory::of(lexer.bytes().len(), limits.memory_ratio, limits.memory_bytes),
            lexer,
            passed_over: PassedOver::default(),
            is_quoted: false,
        }
    }

    /// Runs `read` one level deeper, if the limit allows it.
    pub(crate) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= self.limits.nesting {
            let limit = self.limits.nesting;
            return fault(self.lexer.here(), format!("nested more than {limit} levels deep"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Passes the value of an attribute or a field of `owner` that is not `known`, and notes it. A name that is nearly
    /// known is a mistake.
    pub(crate) fn pass_over(
        &mut self,
        start: usize,
        (kind, owner): (&str, &str),
        name: &str,
        known: impl IntoIterator<Item = &'static str>,
    ) -> Result<()> {
        let near = did_you_mean(name, known);
        if !near.is_empty() {
            return fault(start, format!("{owner} has no {kind} \"{name}\"{near}"));
        }
        self.lexer.skip_value(kind == FIELD)?;
        self.passed_over.add(&format!("{kind} {name} of {owner}"));
        Ok(())
    }

    /// Items between two brackets, separated by commas.
    #[inline]
    pub(crate) fn list(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.lexer.expect(open, "to start a list")?;
        if self.lexer.eat(close) {
            return Ok(());
        }
        loop {
            self.memory.take(LIST_ITEM, self.lexer.here())?;
            item(self)?;
            if self.lexer.eat(close) {
                return Ok(());
            }
            if !self.lexer.eat(b',') {
                return self.lexer.unexpected(&format!("',' or '{}' in a list", char::from(close)));
            }
        }
    }
}
