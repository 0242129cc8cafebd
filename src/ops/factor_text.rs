//! Factor rules as text: the form in which the author of a kernel states them.
//!
//! ```text
//! ...td,...d->...td,...t | whole d
//! bthd,bshd->bths | split t s, sum d
//! ```
//!
//! In front of the bar stands the formula in einsum notation: a letter for each factor, a term for each operand and
//! result, in which each letter is a dimension. `1` is a dimension of size 1 that no factor runs over. `...` at the
//! front of a term stands for any number of leading dimensions, which are the same in all terms that have it; batching
//! adds to them.
//!
//! Behind the bar stand words and letters, in groups with commas between them:
//!
//! | word | what a device computes from its part of a dimension with the letter |
//! |---|---|
//! | `split` | its part of the results that have the letter; all of the others, which do not depend on it |
//! | `sum`, `prod`, `max`, `min` | its part of the results that have the letter; of the others, a partial result |
//! | `whole` | nothing: it needs the whole dimension |
//!
//! A letter that all results have is split, if nothing else is said. Every other letter needs a word.

use std::fmt;

use smallvec::SmallVec;

use super::rules::*;
use super::{FactorIndex, ReduceKind};
use meshloom_hlo::message::counted;
use meshloom_hlo::suggest::did_you_mean;

/// A factor rule as text, for operands and results of any sizes. The module's documentation has the notation.
///
/// ```
/// use meshloom::ir::{DType::F32, TensorType};
/// use meshloom::ops::RuleText;
///
/// let text: RuleText = "...td,...d->...t | sum d".parse()?;
/// let (x, w) = (TensorType::new(F32, &[3, 4, 5]), TensorType::new(F32, &[3, 5]));
/// let results = text.result_dims(&[&x, &w])?;
/// assert_eq!(results[0][..], [3, 4]);
/// let y = TensorType { dtype: F32, dims: results[0].clone() };
/// assert_eq!(text.rule(&[&x, &w], &[&y]).to_string(), "abc,ac->ab sum=c");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleText {
    text: Box<str>,
    operands: Box<[Term]>,
    results: Box<[Term]>,
    /// The way in which each factor is split, in the order in which the terms name them.
    kinds: Box<[(char, FactorKind)]>,
}

/// The dimensions of one operand or result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    has_leading: bool,
    /// A letter for each dimension after the leading ones; `None` for a dimension without a factor.
    letters: SmallVec<[Option<char>; 6]>,
}

/// A factor rule that cannot be read.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("factor rule `{rule}`: {problem}")]
pub struct RuleTextError {
    /// The text.
    pub rule: String,
    /// The reason.
    pub problem: FactorRuleProblem,
}

meshloom_hlo::debug_is_message!(RuleTextError);

/// The reason why the text of a factor rule cannot be read.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum FactorRuleProblem {
    /// The text has no arrow, or several.
    #[error("it must have one `->` between the operands and the results")]
    Arrow,
    /// A part of a term is no dimension.
    #[error(
        "`{found}` in the term `{term}` is no dimension; a dimension is a letter, or `1`, and leading ones are `...`"
    )]
    Dimension { found: char, term: String },
    /// A letter occurs twice in a term.
    #[error("`{letter}` stands twice in the term `{term}`; give the dimensions letters of their own")]
    Repeated { letter: char, term: String },
    /// Only results have this letter.
    #[error("`{0}` is in a result but in no operand, so nothing says its size")]
    Unsized(char),
    /// Some terms have leading dimensions that a result, or all operands, lack.
    #[error("`...` must be in every result, and in an operand, or nowhere")]
    Leading,
    /// The rule does not say how a factor is split.
    #[error(
        "`{letter}` is in {}; say behind `|` whether it is `split`, `whole`, or what partial results are combined by: \
         `sum`, `prod`, `max` or `min`", if *.in_some { "some results only" } else { "no result" }
    )]
    Unsaid {
        letter: char,
        /// Whether some result has it.
        in_some: bool,
    },
    /// A word is none of those that may follow the bar.
    #[error("`{word}` is none of `split`, `whole`, `sum`, `prod`, `max` and `min`{suggestion}")]
    Word { word: String, suggestion: String },
    /// A word has no letters, or is followed by something else.
    #[error("`{word}` must be followed by letters with spaces between them, found `{found}`")]
    Letters { word: String, found: String },
    /// The formula does not have this letter.
    #[error("`{0}` has a word behind `|`, but is not in the formula")]
    Unknown(char),
    /// Several words name this letter.
    #[error("`{0}` has several words behind `|`; keep one of them")]
    Twice(char),
    /// A word contradicts the formula.
    #[error("`{word} {letter}`, but `{letter}` is in {}", if *.in_all { "every result: nothing is combined" } else { "no result: nothing is split" })]
    Contradiction {
        word: &'static str,
        letter: char,
        /// Whether all results have it.
        in_all: bool,
    },
}

meshloom_hlo::debug_is_message!(FactorRuleProblem);

const WORDS: [(&str, FactorKind); 6] = [
    ("split", FactorKind::Parallel),
    ("whole", FactorKind::Gathered),
    ("sum", FactorKind::Reduction(ReduceKind::Sum)),
    ("prod", FactorKind::Reduction(ReduceKind::Prod)),
    ("max", FactorKind::Reduction(ReduceKind::Max)),
    ("min", FactorKind::Reduction(ReduceKind::Min)),
];

impl Term {
    fn parse(text: &str) -> Result<Term, FactorRuleProblem> {
        let text = text.trim();
        let (has_leading, rest) = match text.strip_prefix("...") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut letters: SmallVec<[Option<char>; 6]> = SmallVec::new();
        for found in rest.chars() {
            match found {
                '1' => letters.push(None),
                letter if !letter.is_ascii_alphabetic() => {
                    return Err(FactorRuleProblem::Dimension { found, term: text.to_owned() });
                }
                letter if letters.contains(&Some(letter)) => {
                    return Err(FactorRuleProblem::Repeated { letter, term: text.to_owned() });
                }
                letter => letters.push(Some(letter)),
            }
        }
        Ok(Term { has_leading, letters })
    }

    fn has(&self, letter: char) -> bool {
        self.letters.contains(&Some(letter))
    }
}

/// Reads the words that follow the bar, with the letters that each names.
fn read_words(text: &str) -> Result<Vec<(char, &'static str, FactorKind)>, FactorRuleProblem> {
    let mut said: Vec<(char, &'static str, FactorKind)> = Vec::new();
    for group in text.split(',') {
        let mut parts = group.split_whitespace();
        let first = parts.next();
        let Some(&(word, kind)) = WORDS.iter().find(|(known, _)| Some(*known) == first) else {
            let word = first.map_or_else(String::new, str::to_owned);
            let suggestion = did_you_mean(&word, WORDS.map(|(word, _)| word));
            return Err(FactorRuleProblem::Word { word, suggestion });
        };
        let before = said.len();
        for part in parts {
            let mut letters = part.chars();
            let (Some(letter), None) = (letters.next().filter(char::is_ascii_alphabetic), letters.next()) else {
                return Err(FactorRuleProblem::Letters { word: word.to_owned(), found: part.to_owned() });
            };
            if said.iter().any(|&(other, ..)| other == letter) {
                return Err(FactorRuleProblem::Twice(letter));
            }
            said.push((letter, word, kind));
        }
        if said.len() == before {
            return Err(FactorRuleProblem::Letters { word: word.to_owned(), found: String::new() });
        }
    }
    Ok(said)
}

impl std::str::FromStr for RuleText {
    type Err = RuleTextError;

    fn from_str(text: &str) -> Result<RuleText, RuleTextError> {
        RuleText::parse(text).map_err(|problem| RuleTextError { rule: text.to_owned(), problem })
    }
}

impl RuleText {
    fn parse(text: &str) -> Result<RuleText, FactorRuleProblem> {
        let (formula, words) = match text.split_once('|') {
            Some((formula, words)) => (formula, Some(words)),
            None => (text, None),
        };
        let (operands, results) =
            formula.split_once("->").filter(|(_, rest)| !rest.contains("->")).ok_or(FactorRuleProblem::Arrow)?;
        let terms = |text: &str| text.split(',').map(Term::parse).collect::<Result<Box<[Term]>, FactorRuleProblem>>();
        let (operands, results) = (terms(operands)?, terms(results)?);
        let has_leading = operands.iter().any(|term| term.has_leading);
        if results.iter().any(|term| term.has_leading != has_leading) {
            return Err(FactorRuleProblem::Leading);
        }
        let said = words.map(read_words).transpose()?.unwrap_or_default();
        let mut kinds: Vec<(char, FactorKind)> = Vec::new();
        for letter in operands.iter().flat_map(|term| &term.letters).flatten().copied() {
            if kinds.iter().any(|&(known, _)| known == letter) {
                continue;
            }
            let in_all = results.iter().all(|term| term.has(letter));
            let in_some = results.iter().any(|term| term.has(letter));
            let kind = match said.iter().find(|&&(other, ..)| other == letter) {
                Some(&(_, word, FactorKind::Reduction(_))) if in_all => {
                    return Err(FactorRuleProblem::Contradiction { word, letter, in_all });
                }
                Some(&(_, word, FactorKind::Parallel)) if !in_some => {
                    return Err(FactorRuleProblem::Contradiction { word, letter, in_all });
                }
                Some(&(_, _, kind)) => kind,
                None if in_all => FactorKind::Parallel,
                None => return Err(FactorRuleProblem::Unsaid { letter, in_some }),
            };
            kinds.push((letter, kind));
        }
        let is_known = |letter: char| kinds.iter().any(|&(known, _)| known == letter);
        if let Some(&letter) =
            results.iter().flat_map(|term| &term.letters).flatten().find(|&&letter| !is_known(letter))
        {
            return Err(FactorRuleProblem::Unsized(letter));
        }
        if let Some(&(letter, ..)) = said.iter().find(|&&(letter, ..)| !is_known(letter)) {
            return Err(FactorRuleProblem::Unknown(letter));
        }
        Ok(RuleText { text: text.trim().into(), operands, results, kinds: kinds.into() })
    }

    /// Number of results.
    pub fn result_count(&self) -> usize {
        self.results.len()
    }

    /// Whether an operand has leading dimensions (`...`).
    pub fn has_leading(&self, operand: usize) -> bool {
        self.operands[operand].has_leading
    }

    /// The leading dimensions (`...`) of operands of these types; `None` if the rule has none.
    fn leading<'t>(&self, operands: &[&'t TensorType]) -> Option<&'t [usize]> {
        let (term, ty) = self.operands.iter().zip(operands).find(|(term, _)| term.has_leading)?;
        Some(&ty.dims[..ty.rank().saturating_sub(term.letters.len())])
    }

    /// The dimensions of the results for operands of these types.
    ///
    /// # Errors
    /// The number of dimensions of an operand differs from that of its term, or a factor has two sizes.
    pub fn result_dims(&self, operands: &[&TensorType]) -> Result<Vec<Dims>, TypeError> {
        expect_operands(operands, self.operands.len())?;
        for (operand, (term, ty)) in self.operands.iter().zip(operands).enumerate() {
            let count = term.letters.len();
            if ty.rank() < count || (ty.rank() > count && !term.has_leading) {
                let expected = if term.has_leading { format!("at least {count}") } else { count.to_string() };
                return Err(TypeError::Rank { operand, expected, found: ty.rank() });
            }
        }
        let leading = self.leading(operands).unwrap_or_default();
        let mut sizes: SmallVec<[(char, usize); 8]> = SmallVec::new();
        for (operand, (term, ty)) in self.operands.iter().zip(operands).enumerate() {
            let first = ty.rank() - term.letters.len();
            if term.has_leading && ty.dims[..first] != *leading {
                let (expected, found) = (counted(leading.len(), "leading dimension"), &ty.dims[..first]);
                return Err(TypeError::Attribute(format!(
                    "operand {operand} of type {ty} has the leading dimensions {found:?} for `...` in `{self}`, but an \
                     operand before it has {expected}: {leading:?}"
                )));
            }
            for (dim, (letter, &found)) in (first..).zip(term.letters.iter().zip(&ty.dims[first..])) {
                let known = letter.map(|letter| sizes.iter().find(|&&(other, _)| other == letter));
                let expected = match (letter, known) {
                    (Some(letter), Some(None)) => {
                        sizes.push((*letter, found));
                        continue;
                    }
                    (_, Some(Some(&(_, size)))) => size,
                    _ => 1,
                };
                if found != expected {
                    return Err(TypeError::Size { operand, dim, expected, found });
                }
            }
        }
        let size = |letter: &Option<char>| {
            letter.and_then(|letter| sizes.iter().find(|&&(other, _)| other == letter)).map_or(1, |&(_, size)| size)
        };
        let dims = |term: &Term| {
            let leading = if term.has_leading { leading } else { &[] };
            leading.iter().copied().chain(term.letters.iter().map(size)).collect()
        };
        Ok(self.results.iter().map(dims).collect())
    }

    /// The factor rule for operands and results of these types, which must fit the text.
    pub fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        let leading = self.leading(operands).unwrap_or_default();
        for (dim, &size) in leading.iter().enumerate() {
            let of = |terms: &[Term]| -> Vec<(usize, usize)> {
                (0..terms.len()).filter(|&index| terms[index].has_leading).map(|index| (index, dim)).collect()
            };
            rule.add(size, FactorKind::Parallel, &of(&self.operands), &of(&self.results));
        }
        let places = |terms: &[Term], letter: char| -> Vec<(usize, usize)> {
            let place = |(index, term): (usize, &Term)| {
                let position = term.letters.iter().position(|&other| other == Some(letter))?;
                Some((index, position + if term.has_leading { leading.len() } else { 0 }))
            };
            terms.iter().enumerate().filter_map(place).collect()
        };
        for &(letter, kind) in &*self.kinds {
            let (own, made) = (places(&self.operands, letter), places(&self.results, letter));
            let Some(&(operand, dim)) = own.first() else { continue };
            let _: FactorIndex = rule.add(operands[operand].dims[dim], kind, &own, &made);
        }
        rule
    }
}

impl fmt::Display for RuleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
