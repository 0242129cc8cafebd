//! An op as it is in the text, and what it carries.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::attribute::{Attribute, Attributes};
use super::location::LocationId;
use super::types::{SharedShape, Types, owned};
use crate::parse::{Result, fault};
use crate::proto::ShapeProto;

#[derive(Debug, Default)]
pub(super) struct Operation<'a> {
    pub(super) position: usize,
    /// With its dialect. Ops of `mhlo` that StableHLO has too are under StableHLO's name.
    pub(super) name: Cow<'a, str>,
    /// Whether the input has it in the dialect `mhlo`, and `name` says `stablehlo`.
    pub(super) is_older: bool,
    /// The names of the results, and the number of results under each.
    pub(super) results: SmallVec<[(&'a str, usize); 1]>,
    pub(super) operands: SmallVec<[Operand<'a>; 2]>,
    pub(super) attributes: Attributes<'a>,
    /// Words of a short form, such as `LT`, with their places.
    pub(super) words: Vec<(&'a str, usize)>,
    pub(super) regions: Vec<Region<'a>>,
    pub(super) types: Types,
    /// The attributes of a function's results.
    pub(super) result_attributes: Vec<Attributes<'a>>,
    pub(super) location: Option<LocationId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'a> {
    pub(super) name: &'a str,
    /// The number of the result, of an op that has several.
    pub(super) number: usize,
    pub(super) position: usize,
}

#[derive(Debug)]
pub(super) struct Region<'a> {
    pub(super) arguments: Vec<Argument<'a>>,
    pub(super) operations: Vec<Operation<'a>>,
}

#[derive(Debug)]
pub(super) struct Argument<'a> {
    pub(super) name: &'a str,
    pub(super) shape: SharedShape,
    pub(super) attributes: Attributes<'a>,
    pub(super) location: Option<LocationId>,
}

/// The dialects of programs that frameworks hand to XLA.
const DIALECTS: [&str; 6] = ["stablehlo", "chlo", "mhlo", "sdy", "func", "builtin"];

/// Says that an op is of a dialect that is not read; `None` for one of another name.
pub(super) fn of_other_dialect(name: &str) -> Option<String> {
    let (dialect, _) = name.split_once('.').filter(|(dialect, _)| !DIALECTS.contains(dialect))?;
    Some(format!(
        "the op {name} is of the dialect {dialect}, which is not read: StableHLO is, with chlo, mhlo and sdy; give the \
         module as it was before it was lowered to {dialect}"
    ))
}

impl<'a> Operation<'a> {
    /// The name that the input has.
    pub(super) fn written(&self) -> Cow<'_, str> {
        match self.name.strip_prefix("stablehlo.").filter(|_| self.is_older) {
            Some(op) => format!("mhlo.{op}").into(),
            None => self.name.as_ref().into(),
        }
    }

    /// The name without its dialect.
    pub(super) fn plain_name(&self) -> &str {
        self.name.split_once('.').map_or(self.name.as_ref(), |(_, op)| op)
    }

    pub(super) fn fault<T>(&self, message: impl AsRef<str>) -> Result<T> {
        fault(self.position, format!("{}: {}", self.written(), message.as_ref()))
    }

    /// Whether it ends a region.
    pub(super) fn is_return(&self) -> bool {
        matches!(self.name.as_ref(), "func.return" | "stablehlo.return" | "sdy.return")
    }

    /// An attribute under one of its names: the op's, or that of its short form.
    pub(super) fn attribute(&self, names: &[&str]) -> Option<&Attribute<'a>> {
        names.iter().find_map(|name| self.attributes.get(name))
    }

    pub(super) fn required(&self, names: &[&str]) -> Result<&Attribute<'a>> {
        match self.attribute(names) {
            Some(attribute) => Ok(attribute),
            None => self.fault(format!("the attribute {} is missing", names.first().unwrap_or(&""))),
        }
    }

    pub(super) fn integer(&self, names: &[&str]) -> Result<i64> {
        self.required(names)?.integer(names.first().unwrap_or(&""))
    }

    pub(super) fn optional_integer(&self, name: &str) -> Result<Option<i64>> {
        self.attributes.get(name).map(|attribute| attribute.integer(name)).transpose()
    }

    /// Whether an attribute is there and does not say false.
    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.attributes.get(name).map(|attribute| attribute.boolean(name)).transpose()?.unwrap_or(false))
    }

    /// The symbol that it calls or defines.
    pub(super) fn symbol(&self, names: &[&str]) -> Result<&str> {
        self.required(names)?.symbol(names.first().unwrap_or(&""))
    }

    /// How many results it has.
    pub(super) fn result_count(&self) -> usize {
        match &self.types.results {
            Some(results) => results.len(),
            None => self.results.iter().fold(0, |count: usize, (_, results)| count.saturating_add(*results)),
        }
    }

    /// The types of its results. Without an arrow all types are those of results, or the last is that of the only one.
    pub(super) fn result_types(&self) -> Result<&[SharedShape]> {
        let count = self.result_count();
        let named = self.results.iter().fold(0, |count: usize, (_, results)| count.saturating_add(*results));
        let types = match &self.types.results {
            Some(results) => results.as_slice(),
            None if count == 1 => self.types.inputs.last().map(std::slice::from_ref).unwrap_or_default(),
            None if count == 0 => &[],
            None => &self.types.inputs,
        };
        match types.len() == count && (named == count || self.results.is_empty()) {
            true => Ok(types),
            false => self.fault(format!("it has {named} results and the types of {}", types.len())),
        }
    }

    /// The types of its results, each for itself.
    pub(super) fn result_shapes(&self) -> Result<Vec<ShapeProto>> {
        self.result_types().map(owned)
    }

    /// The type of its only result.
    pub(super) fn result_type(&self) -> Result<&ShapeProto> {
        match self.result_types()? {
            [shape] => Ok(shape),
            types => self.fault(format!("expected one result, found {}", types.len())),
        }
    }

    pub(super) fn region(&self, number: usize) -> Result<&Region<'a>> {
        match self.regions.get(number) {
            Some(region) => Ok(region),
            None => self.fault(format!("expected {} regions, found {}", number + 1, self.regions.len())),
        }
    }
}
