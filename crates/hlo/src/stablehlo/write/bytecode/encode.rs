//! Attributes, types and locations of text as MLIR's bytecode has them, by the tables of the reader.

use rustc_hash::FxHashMap;

use super::super::error::{Fault, Result, malformed, not_in_artifact};
use super::super::literal::stored;
use super::items::{Dialect, Fragment, Items};
use super::version;
use crate::narrow::to_odd;
use crate::parse::{self, Memory};
use crate::proto::PrimitiveType;
use crate::shape::element_count;
use crate::stablehlo::read::attribute::{Attribute, Attributes, Value};
use crate::stablehlo::read::bytecode::dialects::{BUILTIN, BUILTIN_TYPES, VHLO, VHLO_TYPES};
use crate::stablehlo::read::bytecode::kinds::{self, BUILTIN_CODES, OwnCodes, VHLO_CODES, builtin};
use crate::stablehlo::read::bytecode::texts::Encoding;
use crate::stablehlo::read::lexer::Span;
use crate::stablehlo::read::literal::{self, DenseBody};
use crate::stablehlo::read::location::{Location, LocationId};
use crate::stablehlo::read::parser::Parser;

/// Bytes that the reading of an attribute may take beside a multiple of its own.
const MEMORY: usize = 64 << 20;

/// The items of a file, under the texts that they were made of.
#[derive(Default)]
pub(super) struct Encoder {
    pub(super) items: Items,
    attributes: FxHashMap<String, u32>,
    types: FxHashMap<(Dialect, String), u32>,
    locations: FxHashMap<String, u32>,
    /// The newest minor version that anything came with, and what that is.
    pub(super) needs: (u32, String),
}

impl Dialect {
    fn table(self) -> &'static [Encoding] {
        match self {
            Dialect::Builtin => BUILTIN,
            Dialect::Vhlo => VHLO,
        }
    }

    fn types(self) -> &'static [Encoding] {
        match self {
            Dialect::Builtin => BUILTIN_TYPES,
            Dialect::Vhlo => VHLO_TYPES,
        }
    }

    fn own(self) -> &'static OwnCodes {
        match self {
            Dialect::Builtin => &BUILTIN_CODES,
            Dialect::Vhlo => &VHLO_CODES,
        }
    }

    /// The number of the kind of attribute that has a template.
    fn code(self, template: &str) -> Fragment {
        Fragment::Number(place(self.table(), template).unwrap_or(0))
    }
}

fn place(table: &[Encoding], template: &str) -> Option<u64> {
    let is_it = |encoding: &Encoding| matches!(encoding, Encoding::Text(text) if *text == template);
    table.iter().position(is_it).map(|place| place as u64)
}

/// A parser of a text by itself.
pub(super) fn parser(text: &str) -> Parser<'_> {
    Parser::new(text, Memory::of(text.len(), 1 << 10, MEMORY))
}

/// The fault of an attribute of an op that is not one of MLIR's.
pub(super) fn unreadable(text: &str) -> impl Fn(Box<parse::Fault>) -> Fault {
    move |fault| {
        let start: String = text.chars().take(80).collect();
        Fault::Malformed(format!("its attribute {start} is no attribute of MLIR: {}", fault.message))
    }
}

impl Encoder {
    /// Says that something came with a minor version.
    pub(super) fn need(&mut self, since: u32, what: impl FnOnce() -> String) {
        if since > self.needs.0 {
            self.needs = (since, what());
        }
    }

    /// The number of an attribute of VHLO.
    pub(super) fn attribute(&mut self, text: &str) -> Result<u32> {
        if let Some(&number) = self.attributes.get(text) {
            return Ok(number);
        }
        let number = self.attribute_in(text, Dialect::Vhlo)?;
        self.attributes.insert(text.to_owned(), number);
        Ok(number)
    }

    /// The number of an attribute in a dialect.
    pub(super) fn attribute_in(&mut self, text: &str, dialect: Dialect) -> Result<u32> {
        let mut parser = parser(text);
        let attribute = parser.attribute().map_err(unreadable(text))?;
        self.value(&mut parser, &attribute, dialect)
    }

    /// An attribute that is true, or none.
    pub(super) fn unit(&mut self, dialect: Dialect) -> u32 {
        match dialect {
            Dialect::Builtin => self.items.attribute(dialect, vec![Fragment::Number(kinds::UNIT.into())]),
            Dialect::Vhlo => self.items.attribute(dialect, vec![dialect.code("%v"), Fragment::Number(1)]),
        }
    }

    pub(super) fn string(&mut self, string: &[u8], dialect: Dialect) -> u32 {
        let string = Fragment::String(self.items.string(string));
        self.items.attribute(dialect, vec![dialect.code("%s"), string])
    }

    pub(super) fn list(&mut self, items: Vec<u32>, dialect: Dialect) -> u32 {
        let count = Fragment::Number(items.len() as u64);
        let items = items.into_iter().map(Fragment::Attribute);
        self.items.attribute(dialect, [dialect.code("[%A]"), count].into_iter().chain(items).collect())
    }

    /// A dictionary of one dialect, whose values may be of another.
    pub(super) fn dictionary(&mut self, mut entries: Vec<(&str, u32)>, dialect: Dialect) -> u32 {
        entries.sort_by_key(|(name, _)| *name);
        let mut fragments = vec![Fragment::Number(dialect.own().dictionary), Fragment::Number(entries.len() as u64)];
        for (name, value) in entries {
            fragments.extend([Fragment::Attribute(self.string(name.as_bytes(), dialect)), Fragment::Attribute(value)]);
        }
        self.items.attribute(dialect, fragments)
    }

    pub(super) fn type_attribute(&mut self, ty: u32, dialect: Dialect) -> u32 {
        self.items.attribute(dialect, vec![dialect.code("%t"), Fragment::Type(ty)])
    }

    /// The convention of a custom call.
    pub(super) fn convention(&mut self, number: i64) -> u32 {
        let number = Fragment::Number(number.try_into().unwrap_or(0));
        self.items.attribute(Dialect::Vhlo, vec![Dialect::Vhlo.code("%u : i32"), number])
    }

    /// The elements of a constant, as bytecode has them.
    pub(super) fn dense(&mut self, ty: &str, elements: Vec<u8>, dialect: Dialect) -> Result<u32> {
        self.items.length += elements.len();
        let ty = Fragment::Type(self.ty(ty, dialect)?);
        let fragments = vec![
            Fragment::Number(dialect.own().dense),
            ty,
            Fragment::Number(elements.len() as u64),
            Fragment::Bytes(elements),
        ];
        Ok(self.items.attribute(dialect, fragments))
    }

    /// A list of numbers, as the elements of a constant.
    pub(super) fn numbers(&mut self, numbers: &[i64]) -> Result<u32> {
        let ty = format!("tensor<{}xi64>", numbers.len());
        let elements = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.dense(&ty, elements, Dialect::Vhlo)
    }

    /// An attribute that was read.
    pub(super) fn value<'t>(
        &mut self,
        parser: &mut Parser<'t>,
        attribute: &Attribute<'t>,
        dialect: Dialect,
    ) -> Result<u32> {
        let text = parser.lexer.slice(attribute.span);
        let stated = text.rsplit_once(" : ").map(|(_, ty)| ty);
        match &attribute.value {
            Value::Unit => Ok(self.unit(dialect)),
            Value::Boolean(value) => self.boolean(*value, dialect),
            Value::Integer(bits) if stated.is_some_and(|name| name.starts_with(['f', 'b'])) => {
                self.float_of_bits(*bits as u64, stated.unwrap_or("f64"), dialect)
            }
            Value::Integer(value) => self.integer(*value, stated.unwrap_or("i64"), dialect),
            Value::Number => self.float(text.split(' ').next().unwrap_or(text), stated.unwrap_or("f64"), dialect),
            Value::String(bytes) => Ok(self.string(bytes, dialect)),
            Value::Symbol(name) => {
                let name = self.string(name.as_bytes(), dialect);
                Ok(match dialect {
                    Dialect::Vhlo => name,
                    Dialect::Builtin => self
                        .items
                        .attribute(dialect, vec![Fragment::Number(builtin::SYMBOL), Fragment::Attribute(name)]),
                })
            }
            Value::List(items) => {
                let items = items.iter().map(|item| self.value(parser, item, dialect)).collect::<Result<_>>()?;
                Ok(self.list(items, dialect))
            }
            Value::Dictionary(Attributes(entries)) => {
                let mut encoded = Vec::with_capacity(entries.len());
                for (name, value) in entries {
                    encoded.push((name.as_ref(), self.value(parser, value, dialect)?));
                }
                Ok(self.dictionary(encoded, dialect))
            }
            Value::Integers(numbers) => self.array(numbers, text, dialect),
            Value::Dense { body: DenseBody::Text(body), shape } => {
                let elements = literal::elements(parser.lexer, DenseBody::Text(*body), shape);
                let Some(elements) = elements.map_err(unreadable(text))? else {
                    return malformed(format!("the elements of its attribute {text} are left out"));
                };
                let ty = parser.lexer.slice(Span { start: body.end + 1, end: attribute.span.end });
                let is_one_for_all = elements.is_splat && element_count(shape) != Some(1);
                let stored = stored(elements.element, &elements.bytes, is_one_for_all);
                self.dense(ty.trim_start_matches([' ', ':']), stored, dialect)
            }
            Value::Dialect { .. } => self.of_dialect(parser, attribute, dialect),
            Value::Type | Value::Word(_) => {
                let ty = self.ty(text, dialect)?;
                Ok(self.type_attribute(ty, dialect))
            }
            _ => foreign(text),
        }
    }

    fn boolean(&mut self, value: bool, dialect: Dialect) -> Result<u32> {
        match dialect {
            Dialect::Builtin => self.integer(value.into(), "i1", dialect),
            Dialect::Vhlo => {
                Ok(self.items.attribute(dialect, vec![dialect.code("%v"), Fragment::Number(value.into())]))
            }
        }
    }

    pub(super) fn integer(&mut self, value: i64, name: &str, dialect: Dialect) -> Result<u32> {
        let ty = Fragment::Type(self.ty(name, dialect)?);
        let bits = name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse().unwrap_or(64u32);
        let unused = 64 - bits.clamp(1, 64);
        let value = match bits {
            0..=8 => Fragment::Bytes(vec![(value as u64 & u64::MAX >> unused) as u8]),
            _ => Fragment::signed(value << unused >> unused),
        };
        Ok(self.items.attribute(dialect, vec![Fragment::Number(dialect.own().integer), ty, value]))
    }

    fn float(&mut self, number: &str, name: &str, dialect: Dialect) -> Result<u32> {
        let Ok(value) = number.parse::<f64>() else { return malformed(format!("{number} is no number")) };
        let bits = match name {
            "f64" => value.to_bits(),
            "f32" => (value as f32).to_bits().into(),
            "f16" => half::f16::from_f32(to_odd(value)).to_bits().into(),
            "bf16" => half::bf16::from_f32(to_odd(value)).to_bits().into(),
            _ => 0,
        };
        self.float_of_bits(bits, name, dialect)
    }

    /// A number that is no finite one stands in a text as its bits.
    fn float_of_bits(&mut self, bits: u64, name: &str, dialect: Dialect) -> Result<u32> {
        let unused = match name {
            "f64" => 0,
            "f32" => 32,
            "f16" | "bf16" => 48,
            _ => return not_in_artifact(format!("an attribute that is a number of {name} is not written; use f32")),
        };
        let ty = Fragment::Type(self.ty(name, dialect)?);
        let bits = Fragment::signed((bits << unused) as i64 >> unused);
        Ok(self.items.attribute(dialect, vec![Fragment::Number(dialect.own().float), ty, bits]))
    }

    /// `array<i64: 1, 2>`, which VHLO has as the elements of a constant.
    fn array(&mut self, numbers: &[i64], text: &str, dialect: Dialect) -> Result<u32> {
        let name = text.trim_start_matches("array<").split([':', '>']).next().unwrap_or("i64").trim();
        let bits: usize = name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse().unwrap_or(64);
        let width = bits.div_ceil(8).clamp(1, 8);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width)).collect();
        match (dialect, name) {
            (Dialect::Vhlo, "i64") => self.numbers(numbers),
            (Dialect::Vhlo, "i1") => {
                let first = numbers.first().filter(|first| numbers.len() > 1 && numbers.iter().all(|it| it == *first));
                let bytes = if first.is_some() { &bytes[..1] } else { &bytes };
                let elements = stored(PrimitiveType::Pred, bytes, first.is_some());
                self.dense(&format!("tensor<{}xi1>", numbers.len()), elements, dialect)
            }
            (Dialect::Vhlo, _) => foreign(text),
            (Dialect::Builtin, _) => {
                let ty = Fragment::Type(self.ty(name, dialect)?);
                let counts = [numbers.len(), bytes.len()].map(|count| Fragment::Number(count as u64));
                let [count, size] = counts;
                let fragments = vec![Fragment::Number(builtin::ARRAY), ty, count, size, Fragment::Bytes(bytes)];
                Ok(self.items.attribute(dialect, fragments))
            }
        }
    }

    /// `#stablehlo<precision HIGH>`, `#stablehlo.output_operand_alias<...>`: what the table has a template for.
    fn of_dialect<'t>(&mut self, parser: &mut Parser<'t>, attribute: &Attribute<'t>, dialect: Dialect) -> Result<u32> {
        let text = parser.lexer.slice(attribute.span);
        for (code, encoding) in dialect.table().iter().enumerate() {
            let code = Fragment::Number(code as u64);
            match encoding {
                Encoding::Words(template, words) => {
                    let (before, after) = template.split_once('%').unwrap_or((template, ""));
                    let word = text.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                    if let Some(at) = word.and_then(|word| words.iter().position(|known| *known == word)) {
                        return Ok(self.items.attribute(dialect, vec![code, Fragment::Number(at as u64)]));
                    }
                }
                Encoding::Text(template) if template.starts_with('#') => {
                    let Some((name, fields)) = template.strip_suffix('>').and_then(|own| own.split_once('<')) else {
                        continue;
                    };
                    if text.strip_prefix(name).is_some_and(|rest| rest.starts_with('<')) {
                        let found = parser.fields_of(attribute, "").map_err(unreadable(text))?;
                        let mut fragments = vec![code];
                        for field in fields.split(", ") {
                            self.field(parser, field, &found, &mut fragments)?;
                        }
                        return Ok(self.items.attribute(dialect, fragments));
                    }
                }
                _ => {}
            }
        }
        foreign(text)
    }

    /// Adds a field of a template, `name = %i`, as an attribute has it; one that it leaves out is zero.
    fn field<'t>(
        &mut self,
        parser: &mut Parser<'t>,
        field: &str,
        found: &Attributes<'t>,
        fragments: &mut Vec<Fragment>,
    ) -> Result<()> {
        let (name, directive) = field.split_once(" = ").unwrap_or((field, ""));
        let stated = found.get(name);
        match (directive, stated) {
            ("%d", _) => {
                let number = stated.map_or("0", |stated| parser.lexer.slice(stated.span));
                let Ok(number) = number.parse::<f64>() else { return malformed(format!("{number} is no number")) };
                fragments.push(Fragment::signed(number.to_bits() as i64));
            }
            ("%i", _) => {
                let number = stated.map_or(Ok(0), |stated| stated.integer(name)).map_err(unreadable(name))?;
                fragments.push(Fragment::signed(number));
            }
            ("%l", _) => {
                let numbers = stated.map_or(Ok(Vec::new()), |stated| integers(stated, name))?;
                fragments.push(Fragment::Number(numbers.len() as u64));
                fragments.extend(numbers.into_iter().map(Fragment::signed));
            }
            ("%a", Some(stated)) => fragments.push(Fragment::Attribute(self.value(parser, stated, Dialect::Vhlo)?)),
            _ => return malformed(format!("its attribute lacks {name}")),
        }
        Ok(())
    }

    /// The number of a type.
    pub(super) fn ty(&mut self, text: &str, dialect: Dialect) -> Result<u32> {
        let text = text.trim();
        let key = (dialect, text.to_owned());
        if let Some(&number) = self.types.get(&key) {
            return Ok(number);
        }
        let fragments = self.type_fragments(text, dialect)?;
        let number = self.items.ty(dialect, fragments);
        self.types.insert(key, number);
        Ok(number)
    }

    fn type_fragments(&mut self, text: &str, dialect: Dialect) -> Result<Vec<Fragment>> {
        if let Some(code) = place(dialect.types(), text) {
            self.need(version::since(text), || format!("the type {text}"));
            return Ok(vec![Fragment::Number(code)]);
        }
        let template = |template: &str| Fragment::Number(place(dialect.types(), template).unwrap_or(0));
        let inner = |name: &str| text.strip_prefix(name)?.strip_suffix('>');
        if let Some(inner) = inner("tensor<") {
            return self.array_type(inner, dialect);
        }
        if let Some(inner) = inner("complex<") {
            return Ok(vec![template("complex<%t>"), Fragment::Type(self.ty(inner, dialect)?)]);
        }
        if let Some(inner) = inner("tuple<") {
            let mut fragments = vec![template("tuple<%T>")];
            self.types_of(apart(inner).into_iter(), dialect, &mut fragments)?;
            return Ok(fragments);
        }
        let (sign, width) = match text.trim_end_matches(|digit: char| digit.is_ascii_digit()) {
            sign @ ("i" | "si" | "ui") => {
                (["i", "si", "ui"].iter().position(|name| *name == sign), &text[sign.len()..])
            }
            _ => (None, ""),
        };
        match (dialect, sign, width.parse::<u64>()) {
            (Dialect::Builtin, Some(sign), Ok(width)) => {
                Ok(vec![Fragment::Number(kinds::INTEGER_TYPE), Fragment::Number(width << 2 | sign as u64)])
            }
            _ => not_in_artifact(format!("the type {text} is not one of portable artifacts; convert to another type")),
        }
    }

    fn types_of<'t>(
        &mut self,
        texts: impl ExactSizeIterator<Item = &'t str>,
        dialect: Dialect,
        fragments: &mut Vec<Fragment>,
    ) -> Result<()> {
        fragments.push(Fragment::Number(texts.len() as u64));
        for text in texts {
            fragments.push(Fragment::Type(self.ty(text, dialect)?));
        }
        Ok(())
    }

    /// `2x?xf32, #stablehlo.bounds<?, 4>`, what stands in a tensor's brackets.
    fn array_type(&mut self, inner: &str, dialect: Dialect) -> Result<Vec<Fragment>> {
        let parts = apart(inner);
        let (mut rest, mut sizes) = (parts.first().copied().unwrap_or_default(), Vec::new());
        while let Some((size, after)) = rest.split_once('x') {
            match size {
                "?" => sizes.push(i64::MIN),
                size => match size.parse() {
                    Ok(size) => sizes.push(size),
                    Err(_) => break,
                },
            }
            rest = after;
        }
        let [plain, bounded] = dialect.own().tensors;
        let mut fragments = vec![Fragment::Number(plain)];
        if let Some(bounds) = parts.get(1) {
            let bounds = bounds.trim_start_matches(|letter| letter != '<');
            let bounds = apart(bounds.trim_matches(['<', '>']));
            let bounds: Vec<i64> = bounds.iter().map(|bound| bound.parse().unwrap_or(i64::MIN)).collect();
            let mut own = vec![dialect.code("#stablehlo.type_extensions<bounds = %l>")];
            own.push(Fragment::Number(bounds.len() as u64));
            own.extend(bounds.into_iter().map(Fragment::signed));
            fragments = vec![Fragment::Number(bounded), Fragment::Attribute(self.items.attribute(dialect, own))];
        }
        fragments.push(Fragment::Number(sizes.len() as u64));
        fragments.extend(sizes.into_iter().map(Fragment::signed));
        fragments.push(Fragment::Type(self.ty(rest, dialect)?));
        Ok(fragments)
    }

    /// The type of a function.
    pub(super) fn function_type<'t>(
        &mut self,
        arguments: impl ExactSizeIterator<Item = &'t str>,
        results: impl ExactSizeIterator<Item = &'t str>,
    ) -> Result<u32> {
        let code = place(VHLO_TYPES, "(%T) -> (%T)").unwrap_or(0);
        let mut fragments = vec![Fragment::Number(code)];
        self.types_of(arguments, Dialect::Vhlo, &mut fragments)?;
        self.types_of(results, Dialect::Vhlo, &mut fragments)?;
        Ok(self.items.ty(Dialect::Vhlo, fragments))
    }

    /// The number of a location, `loc("name"("file":1:0))`; nothing stands for an unknown one.
    pub(super) fn location(&mut self, text: &str) -> Result<u32> {
        if let Some(&number) = self.locations.get(text) {
            return Ok(number);
        }
        let number = match text {
            "" => self.items.attribute(Dialect::Builtin, vec![Fragment::Number(builtin::UNKNOWN)]),
            text => {
                let mut parser = parser(text);
                let outermost = parser.location().map_err(unreadable(text))?;
                self.location_of(&parser.locations.all, outermost)?
            }
        };
        self.locations.insert(text.to_owned(), number);
        Ok(number)
    }

    fn location_of(&mut self, all: &[Location<'_>], location: LocationId) -> Result<u32> {
        let fragments = match all.get(location) {
            Some(Location::File { file, line, column }) => {
                let file = Fragment::Attribute(self.string(file.as_bytes(), Dialect::Builtin));
                let number = |number: &i64| Fragment::Number((*number).try_into().unwrap_or(0));
                vec![Fragment::Number(builtin::FILE), file, number(line), number(column)]
            }
            Some(Location::Name { name, child }) => {
                let name = Fragment::Attribute(self.string(name.as_bytes(), Dialect::Builtin));
                let child = match child {
                    Some(child) => self.location_of(all, *child)?,
                    None => self.location("")?,
                };
                vec![Fragment::Number(builtin::NAMED), name, Fragment::Attribute(child)]
            }
            Some(Location::CallSite { callee, caller }) => {
                let callee = Fragment::Attribute(self.location_of(all, *callee)?);
                vec![Fragment::Number(builtin::CALL_SITE), callee, Fragment::Attribute(self.location_of(all, *caller)?)]
            }
            Some(Location::Fused(parts)) => {
                let mut fragments = vec![Fragment::Number(builtin::FUSED), Fragment::Number(parts.len() as u64)];
                for part in parts {
                    fragments.push(Fragment::Attribute(self.location_of(all, *part)?));
                }
                fragments
            }
            Some(Location::Unknown | Location::Alias(_)) | None => return self.location(""),
        };
        Ok(self.items.attribute(Dialect::Builtin, fragments))
    }
}

/// The integers of a list.
pub(super) fn integers(attribute: &Attribute<'_>, name: &str) -> Result<Vec<i64>> {
    let items = attribute.list(name).map_err(unreadable(name))?;
    items.iter().map(|item| item.integer(name).map_err(unreadable(name))).collect()
}

fn foreign<T>(text: &str) -> Result<T> {
    let start: String = text.chars().take(80).collect();
    not_in_artifact(format!(
        "portable artifacts have no attribute such as {start}; leave it out, or give the program as text"
    ))
}

/// The parts of a text between the commas that no brackets enclose.
fn apart(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, letter) in text.bytes().enumerate() {
        match letter {
            b'<' | b'(' | b'[' => depth += 1,
            b'>' | b')' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}
