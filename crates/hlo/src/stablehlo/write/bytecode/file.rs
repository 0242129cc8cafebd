//! A file of MLIR's bytecode: sections of the things that ops refer to, and of the ops.

use super::super::error::{Result, malformed};
use super::items::{Dialect, Fragment, Item, Items, Numbered, Order};
use super::record::Record;
use super::version::{ArtifactVersion, OpForm};
use crate::stablehlo::read::MAGIC;
use crate::stablehlo::read::bytecode::file::OpName;
use crate::stablehlo::read::bytecode::file::section;
use crate::stablehlo::read::bytecode::properties;
use crate::stablehlo::read::bytecode::regions::{EncodedOperation, EncodedRegion, mask};

/// The version of the bytecode that all versions of artifacts have which are written.
const FORMAT: u64 = 6;

/// Bytes under construction.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn number(&mut self, number: u64) {
        let bits = 64 - number.leading_zeros() as usize;
        // Seven bits a byte; the zeros at the low end of the first byte say how many bytes follow.
        match bits.div_ceil(7).max(1) {
            1 => self.0.push((number << 1 | 1) as u8),
            count @ 2..=8 => {
                let encoded = (number << 1 | 1) << (count - 1);
                self.0.extend_from_slice(&encoded.to_le_bytes()[..count]);
            }
            _ => {
                self.0.push(0);
                self.0.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    fn flagged(&mut self, number: u64, flag: bool) {
        self.number(number << 1 | u64::from(flag));
    }

    fn section(&mut self, kind: usize, content: &Out) {
        self.0.push(kind as u8);
        self.number(content.0.len() as u64);
        self.0.extend_from_slice(&content.0);
    }
}

/// The form of each use of an op.
struct Written {
    /// The number of its name.
    name: u32,
    /// The number of its properties, if it has some.
    properties: Option<u32>,
}

/// All that is known before the first byte is written.
struct Artifact<'r> {
    record: &'r Record,
    uses: Vec<Written>,
    names: Numbered<(Dialect, String)>,
    /// The attributes of each list of properties; none of one that is left out.
    properties: Numbered<Vec<Option<u32>>>,
    module: Written,
    /// The orders of attributes, types, strings and names.
    attributes: Order,
    types: Order,
    strings: Order,
    op_names: Order,
    /// The string of each dialect, and of each name.
    dialect_strings: Vec<u32>,
    name_strings: Vec<u32>,
    /// The places of values in their regions.
    places: Vec<u32>,
    unknown: u32,
}

/// How often things are used.
struct Uses {
    attributes: Vec<u32>,
    types: Vec<u32>,
    strings: Vec<u32>,
    names: Vec<u32>,
}

/// The bytes of a record in the oldest version that has all of it, or the one that is asked for.
pub(super) fn write(mut record: Record) -> Result<Vec<u8>> {
    let version = record.version.unwrap_or_else(|| ArtifactVersion::of(record.encoder.needs.0));
    let mut names = Numbered::default();
    let mut properties = Numbered::default();
    let mut uses = Vec::with_capacity(record.uses.all.len());
    for number in 0..record.uses.all.len() {
        let used = std::rc::Rc::clone(&record.uses.all[number]);
        let own = record.lists.all.get(used.own as usize).map(|own| own.to_vec()).unwrap_or_default();
        let Some(form) = OpForm::all(&used.name).filter(|form| version.has(form.since)).last() else {
            return malformed(format!("version {version} has no stablehlo.{}", used.name));
        };
        let mut list = Vec::with_capacity(form.properties.len());
        for property in &form.properties {
            let stated = own.iter().find(|(name, _)| name == property).map(|(_, value)| *value);
            match (stated, record.default(property)?) {
                (Some(value), _) | (None, Some(value)) => list.push(Some(value)),
                (None, None) => return malformed(format!("stablehlo.{} lacks its attribute {property}", used.name)),
            }
        }
        let properties = (!list.is_empty()).then(|| properties.number(list));
        uses.push(Written { name: names.number((Dialect::Vhlo, form.name)), properties });
    }
    let module = module(&mut record, &mut names, &mut properties);
    let unknown = record.encoder.location("")?;
    let dialects = Dialect::ALL.map(|dialect| record.encoder.items.string(dialect.name().as_bytes()));
    let name_strings =
        names.all.iter().map(|name| record.encoder.items.string(name.1.as_bytes())).collect::<Vec<u32>>();
    let counted = count(&record, &uses, &module, &properties, &dialects, &name_strings, names.all.len());
    let items = &record.encoder.items;
    let artifact = Artifact {
        attributes: Order::of(&counted.attributes, |at| items.attributes.all[at as usize].dialect),
        types: Order::of(&counted.types, |at| items.types.all[at as usize].dialect),
        strings: Order::of(&counted.strings, |_| Dialect::Vhlo),
        op_names: Order::of(&counted.names, |at| names.all[at as usize].0),
        record: &record,
        uses,
        names,
        properties,
        module,
        dialect_strings: dialects.to_vec(),
        name_strings,
        places: vec![0; record.types.len()],
        unknown,
    };
    Ok(artifact.write(version))
}

/// The op that is the module.
fn module(
    record: &mut Record,
    names: &mut Numbered<(Dialect, String)>,
    properties: &mut Numbered<Vec<Option<u32>>>,
) -> Written {
    let op = OpName { dialect: Dialect::Builtin.name(), name: "module", is_registered: true };
    let own = properties::of(&op).unwrap_or_default().split_whitespace();
    let name = (!record.name.is_empty()).then(|| {
        let name = record.name.clone();
        record.encoder.string(name.as_bytes(), Dialect::Builtin)
    });
    let own = own.map(|property| name.filter(|_| property.starts_with("sym_name"))).collect();
    Written { name: names.number((Dialect::Builtin, op.name.to_owned())), properties: Some(properties.number(own)) }
}

fn count(
    record: &Record,
    written: &[Written],
    module: &Written,
    properties: &Numbered<Vec<Option<u32>>>,
    dialects: &[u32],
    name_strings: &[u32],
    names: usize,
) -> Uses {
    let items = &record.encoder.items;
    let mut uses = Uses {
        attributes: vec![0; items.attributes.all.len()],
        types: vec![0; items.types.all.len()],
        strings: vec![0; items.strings.all.len()],
        names: vec![0; names],
    };
    for item in items.attributes.all.iter().chain(&items.types.all) {
        for fragment in &item.fragments {
            match fragment {
                Fragment::Attribute(number) => uses.attributes[*number as usize] += 1,
                Fragment::Type(number) => uses.types[*number as usize] += 1,
                Fragment::String(number) => uses.strings[*number as usize] += 1,
                Fragment::Number(_) | Fragment::Bytes(_) => {}
            }
        }
    }
    let lists = properties.all.iter().flat_map(|list| list.iter().flatten());
    for &attribute in lists.chain(&record.attributes) {
        uses.attributes[attribute as usize] += 1;
    }
    dialects.iter().chain(name_strings).for_each(|string| uses.strings[*string as usize] += 1);
    record.types.iter().for_each(|ty| uses.types[*ty as usize] += 1);
    uses.names[module.name as usize] += 1;
    let mut waiting: Vec<&EncodedOperation> = record.functions.iter().collect();
    while let Some(operation) = waiting.pop() {
        uses.names[written[operation.name as usize].name as usize] += 1;
        uses.attributes[operation.location as usize] += 1;
        if let Some(attribute) = operation.attributes[1] {
            uses.attributes[attribute as usize] += 1;
        }
        for region in &operation.regions {
            region.locations.iter().flatten().for_each(|location| uses.attributes[*location as usize] += 1);
            waiting.extend(&region.operations);
        }
    }
    uses
}

impl Artifact<'_> {
    fn items(&self) -> &Items {
        &self.record.encoder.items
    }

    fn write(mut self, version: ArtifactVersion) -> Vec<u8> {
        let mut operations = Out::default();
        operations.flagged(1, false);
        self.module(&mut operations);
        let mut out = Out::default();
        out.0.extend_from_slice(MAGIC);
        out.number(FORMAT);
        out.0.extend_from_slice(format!("StableHLO_v{version}\0").as_bytes());
        out.section(section::STRINGS, &self.string_section());
        out.section(section::DIALECTS, &self.name_section());
        let (content, sizes) = self.item_sections();
        out.section(section::ATTRIBUTES, &content);
        out.section(section::ATTRIBUTE_SIZES, &sizes);
        out.section(section::OPERATIONS, &operations);
        out.section(section::PROPERTIES, &self.property_section());
        out.0
    }

    fn string_section(&self) -> Out {
        let mut out = Out::default();
        let strings = || self.strings.order.iter().map(|&number| &self.items().strings.all[number as usize]);
        out.number(self.strings.order.len() as u64);
        strings().rev().for_each(|string| out.number(string.len() as u64 + 1));
        for string in strings() {
            out.0.extend_from_slice(string);
            out.0.push(0);
        }
        out
    }

    /// The dialects, and the names of ops.
    fn name_section(&self) -> Out {
        let mut out = Out::default();
        out.number(self.dialect_strings.len() as u64);
        self.dialect_strings.iter().for_each(|&string| out.flagged(self.strings.place(string), false));
        out.number(self.names.all.len() as u64);
        let of_name = |number: u32| self.names.all[number as usize].0;
        grouped(&mut out, &self.op_names, of_name, |out, number| {
            out.flagged(self.strings.place(self.name_strings[number as usize]), true);
        });
        out
    }

    /// The attributes and types, and their sizes.
    fn item_sections(&self) -> (Out, Out) {
        let (mut content, mut sizes) = (Out::default(), Out::default());
        let both = [(&self.attributes, &self.items().attributes), (&self.types, &self.items().types)];
        both.iter().for_each(|(order, _)| sizes.number(order.order.len() as u64));
        for (order, items) in both {
            let of_item = |number: u32| items.all[number as usize].dialect;
            grouped(&mut sizes, order, of_item, |sizes, number| {
                let before = content.0.len();
                self.item(&items.all[number as usize], &mut content);
                sizes.flagged((content.0.len() - before) as u64, true);
            });
        }
        (content, sizes)
    }

    fn item(&self, item: &Item, out: &mut Out) {
        for fragment in &item.fragments {
            match fragment {
                Fragment::Number(number) => out.number(*number),
                Fragment::Attribute(number) => out.number(self.attributes.place(*number)),
                Fragment::Type(number) => out.number(self.types.place(*number)),
                Fragment::String(number) => out.number(self.strings.place(*number)),
                Fragment::Bytes(bytes) => out.0.extend_from_slice(bytes),
            }
        }
    }

    fn property_section(&self) -> Out {
        let mut out = Out::default();
        out.number(self.properties.all.len() as u64);
        let module = self.module.properties;
        for (number, list) in self.properties.all.iter().enumerate() {
            // The module's may be left out, which a flag says; all others are there.
            let may_lack = module == Some(number as u32);
            let mut content = Out::default();
            for attribute in list.iter() {
                match (attribute.map(|attribute| self.attributes.place(attribute)), may_lack) {
                    (Some(place), false) => content.number(place),
                    (Some(place), true) => content.flagged(place, true),
                    (None, _) => content.number(0),
                }
            }
            out.number(content.0.len() as u64);
            out.0.extend_from_slice(&content.0);
        }
        out
    }

    fn module(&mut self, out: &mut Out) {
        out.number(self.op_names.place(self.module.name));
        let has_attributes = if self.record.attributes.is_some() { mask::ATTRIBUTES } else { 0 };
        out.0.push(mask::REGIONS | mask::PROPERTIES | has_attributes);
        out.number(self.attributes.place(self.unknown));
        if let Some(attributes) = self.record.attributes {
            out.number(self.attributes.place(attributes));
        }
        self.module.properties.iter().for_each(|&number| out.number(number.into()));
        out.flagged(1, true);
        let mut body = Out::default();
        body.number(1);
        body.number(0);
        body.flagged(self.record.functions.len() as u64, false);
        let record = self.record;
        for function in &record.functions {
            self.operation(function, 0, &mut body, true);
        }
        out.section(section::OPERATIONS, &body);
    }

    /// An op, in whose region this number of values is in sight.
    fn operation(&mut self, operation: &EncodedOperation, outer: u32, out: &mut Out, is_function: bool) {
        let written = &self.uses[operation.name as usize];
        out.number(self.op_names.place(written.name));
        let bits = [
            (operation.attributes[1].is_some(), mask::ATTRIBUTES),
            (written.properties.is_some(), mask::PROPERTIES),
            (!operation.results.is_empty(), mask::RESULTS),
            (!operation.operands.is_empty(), mask::OPERANDS),
            (!operation.regions.is_empty(), mask::REGIONS),
        ];
        out.0.push(bits.iter().filter(|(is_there, _)| *is_there).fold(0, |all, (_, bit)| all | bit));
        out.number(self.attributes.place(operation.location));
        if let Some(dictionary) = operation.attributes[1] {
            out.number(self.attributes.place(dictionary));
        }
        written.properties.iter().for_each(|&number| out.number(number.into()));
        if !operation.results.is_empty() {
            out.number(operation.results.len() as u64);
            for value in operation.results.clone() {
                out.number(self.types.place(self.record.types[value as usize]));
            }
        }
        if !operation.operands.is_empty() {
            out.number(operation.operands.len() as u64);
            for value in &self.record.operands[operation.operands.clone()] {
                out.number(self.places[*value as usize].into());
            }
        }
        if operation.regions.is_empty() {
            return;
        }
        out.flagged(operation.regions.len() as u64, is_function);
        // Nothing in a function sees a value outside of it.
        let mut own = Out::default();
        for region in &operation.regions {
            match is_function {
                true => self.region(region, 0, &mut own),
                false => self.region(region, outer, out),
            }
        }
        if is_function {
            out.section(section::OPERATIONS, &own);
        }
    }

    /// A region of one block, with this number of values in sight around it.
    fn region(&mut self, region: &EncodedRegion, outer: u32, out: &mut Out) {
        let results = region.operations.iter().flat_map(|operation| operation.results.clone());
        let mut next = outer;
        for value in region.arguments.clone().chain(results) {
            self.places[value as usize] = next;
            next += 1;
        }
        out.number(1);
        out.number((next - outer).into());
        out.flagged(region.operations.len() as u64, !region.arguments.is_empty());
        if !region.arguments.is_empty() {
            out.number(region.arguments.len() as u64);
            for (value, location) in region.arguments.clone().zip(&region.locations) {
                out.flagged(self.types.place(self.record.types[value as usize]), location.is_some());
                location.iter().for_each(|location| out.number(self.attributes.place(*location)));
            }
            // The orders of uses; no reader asks for them.
            out.0.push(0);
        }
        for operation in &region.operations {
            self.operation(operation, next, out, false);
        }
    }
}

/// Writes things in their order; those of a dialect that follow each other begin with its number and their count.
fn grouped(out: &mut Out, order: &Order, dialect: impl Fn(u32) -> Dialect, mut write: impl FnMut(&mut Out, u32)) {
    for group in order.order.chunk_by(|left, right| dialect(*left) == dialect(*right)) {
        let own = group.first().map(|first| dialect(*first));
        out.number(Dialect::ALL.iter().position(|dialect| Some(*dialect) == own).unwrap_or(0) as u64);
        out.number(group.len() as u64);
        group.iter().for_each(|&number| write(out, number));
    }
}
