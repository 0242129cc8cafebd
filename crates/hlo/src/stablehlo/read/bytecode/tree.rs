//! Ops as the reader of text gives them: with names of today, and with the attributes that a text would have.

use std::borrow::Cow;
use std::rc::Rc;

use super::super::attribute::{Attribute, Attributes, Value};
use super::super::lexer::Span;
use super::super::literal::DenseBody;
use super::super::operation::{Argument, Operand, Operation, Region};
use super::super::parser::{Parser, of_today};
use super::super::types::{ShapeList, SharedShape, Types};
use super::file::{File, OpName, is_cast, without_version};
use super::regions::{Encoded, EncodedOperation, EncodedRegion, ValueNumber};
use super::texts::Known;
use super::values::ValueName;
use crate::parse::{Result, fault};

/// Attributes of VHLO that are the fields of one of StableHLO's: the op, the attribute and the fields.
pub(in crate::stablehlo) const JOINED: &[(&str, &str, &[&str])] = &[
    (
        "stablehlo.dot_general",
        "dot_dimension_numbers",
        &[
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        ],
    ),
    (
        "stablehlo.dot_general",
        "algorithm",
        &[
            "lhs_precision_type",
            "rhs_precision_type",
            "accumulation_type",
            "lhs_component_count",
            "rhs_component_count",
            "num_primitive_operations",
            "allow_imprecise_accumulation",
        ],
    ),
    ("stablehlo.gather", "dimension_numbers", GATHER),
    ("stablehlo.dynamic_gather", "dimension_numbers", GATHER),
    (
        "stablehlo.scatter",
        "scatter_dimension_numbers",
        &[
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
            "index_vector_dim",
        ],
    ),
    ("stablehlo.convolution", "dimension_numbers", CONVOLUTION),
    ("stablehlo.dynamic_conv", "dimension_numbers", CONVOLUTION),
];

const GATHER: &[&str] = &[
    "offset_dims",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "start_index_map",
    "index_vector_dim",
];

const CONVOLUTION: &[&str] = &[
    "input_batch_dimension",
    "input_feature_dimension",
    "input_spatial_dimensions",
    "kernel_input_feature_dimension",
    "kernel_output_feature_dimension",
    "kernel_spatial_dimensions",
    "output_batch_dimension",
    "output_feature_dimension",
    "output_spatial_dimensions",
];

/// Ops that a text of a reduction names alone, in the place of a region that has nothing else.
const APPLIED: [&str; 7] = ["add", "and", "maximum", "minimum", "multiply", "or", "xor"];

/// The orders of dimensions of a custom call; a text leaves out both where neither has any.
const LAYOUTS: [&str; 2] = ["operand_layouts", "result_layouts"];

/// The name of an op in a text. A return from a function differs from other returns only by its place.
pub(super) fn name_today(op: &OpName<'_>) -> String {
    match (op.dialect, without_version(op.name)) {
        ("vhlo", name @ ("func" | "call")) => format!("func.{name}"),
        ("vhlo", name) => format!("stablehlo.{name}"),
        ("mhlo", _) => of_today(format!("mhlo.{}", op.name).into()).0.into_owned(),
        (dialect, _) => format!("{dialect}.{}", op.name),
    }
}

/// All that ops are made of.
pub(super) struct Tree<'t, 'p> {
    pub(super) file: &'p File<'t>,
    pub(super) encoded: &'p Encoded<'t>,
    pub(super) known: &'p [Known<'t>],
    pub(super) types: &'p [Option<Span>],
    pub(super) values: &'p [ValueName],
    /// The name of each op in the text.
    pub(super) names: &'p [Span],
    pub(super) parser: &'p mut Parser<'t>,
    /// Attributes and types that are read, each with its size.
    pub(super) attributes: Vec<Option<(Attribute<'t>, usize)>>,
    pub(super) shapes: Vec<Option<SharedShape>>,
    /// The offset of places in the file: they are after those in the text.
    pub(super) offset: usize,
}

impl<'t> Tree<'t, '_> {
    pub(super) fn operations(
        &mut self,
        operations: &[EncodedOperation],
        is_in_function: bool,
    ) -> Result<Vec<Operation<'t>>> {
        let names = &self.file.names;
        let is_op = |operation: &&EncodedOperation| !names.get(operation.name as usize).is_some_and(is_cast);
        operations.iter().filter(is_op).map(|operation| self.operation(operation, is_in_function)).collect()
    }

    fn operation(&mut self, encoded: &EncodedOperation, is_in_function: bool) -> Result<Operation<'t>> {
        let position = self.offset + encoded.position;
        let Some((op, name)) = self.file.names.get(encoded.name as usize).zip(self.names.get(encoded.name as usize))
        else {
            return fault(position, "an op has no name");
        };
        self.parser.memory.take(size_of::<Operation<'_>>(), position)?;
        let (name, is_vhlo) = (self.parser.lexer.slice(*name), op.dialect == "vhlo");
        let name = if is_vhlo && is_in_function && name == "stablehlo.return" { "func.return" } else { name };
        let mut operation = Operation { position, name: Cow::Borrowed(name), ..Operation::default() };
        operation.is_older = op.dialect == "mhlo" && name.starts_with("stablehlo.");
        operation.location = Some(encoded.location as usize);
        operation.attributes = self.attributes(encoded, position)?;
        if is_vhlo {
            as_stablehlo(&operation.name, &mut operation.attributes);
        }
        let operands = self.encoded.operands.get(encoded.operands.clone()).unwrap_or_default();
        self.parser.memory.take(operands.len() * size_of::<Operand<'_>>(), position)?;
        operation.operands = operands.iter().map(|&value| self.operand(value, position)).collect();
        for value in encoded.results.clone() {
            let Operand { name, number, .. } = self.operand(value, position);
            match operation.results.last_mut() {
                Some((_, count)) if number > 0 => *count += 1,
                _ => operation.results.push((name, 1)),
            }
        }
        // An op whose types are not told apart has those of its results; what ends a region has those of its operands.
        operation.types.inputs = match operation.is_return() {
            true => operands.iter().map(|&value| self.shape_of(value, position)).collect::<Result<_>>()?,
            false => encoded.results.clone().map(|value| self.shape_of(value, position)).collect::<Result<_>>()?,
        };
        if name == "func.func" {
            operation.types =
                Types { inputs: ShapeList::new(), results: Some(self.function_results(encoded, position)?) };
        }
        let is_function = name == "func.func";
        if let Some(applied) = self.applied(&operation, encoded) {
            let attribute = Attribute { value: Value::Word(applied), span: Span { start: position, end: position } };
            operation.attributes.0.push(("applies".into(), attribute));
            return Ok(operation);
        }
        for region in encoded.regions.iter().filter(|region| !is_function || !region.operations.is_empty()) {
            operation.regions.push(self.region(region, is_function, position)?);
        }
        Ok(operation)
    }

    fn region(&mut self, encoded: &EncodedRegion, is_in_function: bool, position: usize) -> Result<Region<'t>> {
        let count = encoded.arguments.len();
        self.parser.memory.take(count * size_of::<Argument<'_>>(), position)?;
        let mut arguments = Vec::with_capacity(count);
        for (value, location) in encoded.arguments.clone().zip(&encoded.locations) {
            arguments.push(Argument {
                name: self.operand(value, position).name,
                shape: self.shape_of(value, position)?,
                attributes: Attributes::default(),
                location: location.map(|location| location as usize),
            });
        }
        Ok(Region { arguments, operations: self.operations(&encoded.operations, is_in_function)? })
    }

    fn operand(&self, value: ValueNumber, position: usize) -> Operand<'t> {
        let name = self.values.get(value as usize).copied();
        let name = name.unwrap_or(ValueName { span: Span { start: 0, end: 0 }, number: 0 });
        Operand { name: self.parser.lexer.slice(name.span), number: name.number, position }
    }

    fn shape_of(&mut self, value: ValueNumber, position: usize) -> Result<SharedShape> {
        let kind = self.encoded.types.get(value as usize).copied().unwrap_or(u32::MAX);
        self.shape(kind, position)
    }

    /// The shape of a type.
    fn shape(&mut self, kind: u32, position: usize) -> Result<SharedShape> {
        let (Some(known), Some(Some(span))) = (self.shapes.get(kind as usize), self.types.get(kind as usize)) else {
            return fault(position, format!("there is no type of number {kind}"));
        };
        if let Some(shape) = known {
            return Ok(Rc::clone(shape));
        }
        let shape = within(self.parser, *span, Parser::any_type)?;
        self.shapes[kind as usize] = Some(Rc::clone(&shape));
        Ok(shape)
    }

    fn attributes(&mut self, encoded: &EncodedOperation, position: usize) -> Result<Attributes<'t>> {
        let lists = self.encoded;
        let mut attributes = Attributes::default();
        for list in encoded.attributes.into_iter().flatten() {
            for &(name, index) in lists.lists.get(list as usize).map(Vec::as_slice).unwrap_or_default() {
                attributes.0.push((name.into(), self.attribute(index, position)?));
            }
        }
        Ok(attributes)
    }

    /// An attribute by its number: its value is read once, and each op has its own.
    fn attribute(&mut self, index: u32, position: usize) -> Result<Attribute<'t>> {
        let Some(read) = self.attributes.get(index as usize) else {
            return fault(position, format!("there is no attribute of number {index}"));
        };
        if let Some((attribute, size)) = read {
            self.parser.memory.take(*size, position)?;
            return Ok(attribute.clone());
        }
        let attribute = match self.known.get(index as usize).copied() {
            Some(Known::Text(span)) => within(self.parser, span, Parser::attribute)?,
            Some(Known::Elements { shape, elements, position }) => {
                let position = self.offset + position;
                let body = DenseBody::Bytes { bytes: elements, position };
                let value = Value::Dense { body, shape: self.shape(shape, position)? };
                Attribute { value, span: Span { start: position, end: position } }
            }
            Some(Known::Nothing) | None => return fault(position, format!("attribute {index} is not known")),
        };
        let size = attribute.value.parts().saturating_mul(size_of::<Attribute<'_>>());
        self.attributes[index as usize] = Some((attribute.clone(), size));
        Ok(attribute)
    }

    /// The types of a function's results.
    fn function_results(&mut self, encoded: &EncodedOperation, position: usize) -> Result<ShapeList> {
        let lists = encoded.attributes.into_iter().flatten();
        let mut pairs = lists.filter_map(|list| self.encoded.lists.get(list as usize)).flatten();
        let index = pairs.find(|(name, _)| *name == "function_type").map(|(_, index)| *index);
        match index.and_then(|index| self.known.get(index as usize).copied()) {
            Some(Known::Text(span)) => Ok(within(self.parser, span, Parser::types)?.results.unwrap_or_default()),
            _ => fault(position, "a function has no type"),
        }
    }

    /// The op that a reduction applies, if its region has nothing else.
    fn applied(&mut self, operation: &Operation<'t>, encoded: &EncodedOperation) -> Option<&'t str> {
        let ("stablehlo.reduce", [region]) = (operation.name.as_ref(), encoded.regions.as_slice()) else { return None };
        let [inner, last] = region.operations.as_slice() else { return None };
        let op = self.file.names.get(inner.name as usize)?;
        let is_known =
            matches!(op.dialect, "stablehlo" | "vhlo" | "mhlo") && APPLIED.contains(&without_version(op.name));
        let operands = |operation: &EncodedOperation| self.encoded.operands.get(operation.operands.clone());
        let all = |values: std::ops::Range<ValueNumber>| values.collect::<Vec<ValueNumber>>();
        let is_forwarded =
            operands(inner)? == all(region.arguments.clone()) && operands(last)? == all(inner.results.clone());
        let kind = |value: &ValueNumber| self.encoded.types.get(*value as usize);
        let first = *kind(operands(inner)?.first()?)?;
        let reduced = *kind(operands(encoded)?.first()?)?;
        let mut values = region.arguments.clone().chain(inner.results.clone());
        let is_plain =
            is_known && inner.regions.is_empty() && is_forwarded && values.all(|value| kind(&value) == Some(&first));
        // A reducer of other elements than the operand has is written in full.
        let [first, reduced] = [first, reduced].map(|kind| self.shape(kind, operation.position));
        let is_plain = is_plain && first.ok()?.element_type == reduced.ok()?.element_type;
        is_plain.then(|| self.names.get(inner.name as usize).map(|span| self.parser.lexer.slice(*span)))?
    }
}

/// Reads a part of the text, all of it.
fn within<'t, T>(parser: &mut Parser<'t>, span: Span, read: impl FnOnce(&mut Parser<'t>) -> Result<T>) -> Result<T> {
    let outer = parser.lexer;
    parser.lexer = outer.part(span);
    let found = match read(parser) {
        Ok(found) if parser.lexer.is_at_end() => Ok(found),
        Ok(_) => parser.lexer.unexpected("the end of an attribute or a type"),
        Err(fault) => Err(fault),
    };
    parser.lexer = outer;
    found
}

/// Makes of VHLO's attributes those of StableHLO: without what a text leaves out, and with fields in one.
fn as_stablehlo<'t>(name: &str, attributes: &mut Attributes<'t>) {
    let is_empty = |attribute: &Attribute<'t>| match &attribute.value {
        Value::List(items) => items.is_empty(),
        Value::Dictionary(entries) => entries.0.is_empty(),
        Value::String(string) => string.is_empty(),
        // The type of an algorithm that is not stated.
        Value::Word(word) => *word == "none",
        _ => false,
    };
    let has_layouts = LAYOUTS.iter().any(|name| attributes.get(name).is_some_and(|attribute| !is_empty(attribute)));
    let may_go = |(name, attribute): &(Cow<'t, str>, Attribute<'t>)| match name.as_ref() {
        "backend_config" | "composite_attributes" => true,
        name if LAYOUTS.contains(&name) => !has_layouts,
        _ => matches!(attribute.value, Value::Word(_)),
    };
    attributes.0.retain(|entry| !(may_go(entry) && is_empty(&entry.1)));
    for (_, joined, fields) in JOINED.iter().filter(|(op, ..)| *op == name) {
        let is_field = |(name, _): &(Cow<'t, str>, Attribute<'t>)| fields.contains(&name.as_ref());
        let found: Vec<(Cow<'t, str>, Attribute<'t>)> = attributes.0.extract_if(.., |entry| is_field(entry)).collect();
        if let Some((_, first)) = found.first() {
            let span = first.span;
            let value = Value::Dictionary(Attributes(found));
            attributes.0.push(((*joined).into(), Attribute { value, span }));
        }
    }
}
