//! A module in the course of being written: ops with the numbers of their attributes and types.

use rustc_hash::FxHashMap;

use super::super::attributes::Attributes;
use super::super::error::{Result, malformed, not_in_artifact};
use super::super::literal::Dense;
use super::super::printer::{Leaf, Op, Signature, Sink};
use super::encode::{Encoder, integers, parser, unreadable};
use super::items::{Dialect, Numbered};
use super::version::{ArtifactVersion, DEFAULTS, OpForm, newest};
use crate::stablehlo::read::attribute::Value;
use crate::stablehlo::read::bytecode::regions::{EncodedOperation, EncodedRegion};
use crate::stablehlo::read::bytecode::tree::JOINED;

/// Names and numbers of an op's own attributes.
pub(super) type Own = Vec<(&'static str, u32)>;

/// An op's name and what decides in which form it is written.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct OpUse {
    /// Without the dialect, which is StableHLO.
    pub(super) name: String,
    /// The number of the list of its attributes.
    pub(super) own: u32,
    pub(super) has_several: bool,
}

/// All of a module. The name of an op is the number of its use, and its second list of attributes that of a dictionary.
pub(super) struct Record {
    pub(super) encoder: Encoder,
    pub(super) version: Option<ArtifactVersion>,
    pub(super) uses: Numbered<OpUse>,
    pub(super) lists: Numbered<Own>,
    /// The type of each value.
    pub(super) types: Vec<u32>,
    pub(super) operands: Vec<u32>,
    /// The name of the module, and its attributes.
    pub(super) name: String,
    pub(super) attributes: Option<u32>,
    pub(super) functions: Vec<EncodedOperation>,
    /// The ops and regions that are open, the outermost first.
    ops: Vec<EncodedOperation>,
    regions: Vec<EncodedRegion>,
    /// The numbers of the lists and dictionaries of texts.
    texts: FxHashMap<String, u32>,
    dictionaries: FxHashMap<String, u32>,
    defaults: FxHashMap<&'static str, u32>,
    length: usize,
}

impl Record {
    pub(super) fn new(version: Option<ArtifactVersion>) -> Record {
        Record {
            encoder: Encoder::default(),
            version,
            uses: Numbered::default(),
            lists: Numbered::default(),
            types: Vec::new(),
            operands: Vec::new(),
            name: String::new(),
            attributes: None,
            functions: Vec::new(),
            ops: Vec::new(),
            regions: Vec::new(),
            texts: FxHashMap::default(),
            dictionaries: FxHashMap::default(),
            defaults: FxHashMap::default(),
            length: 0,
        }
    }

    /// The attribute that stands for one that an op of StableHLO leaves out.
    pub(super) fn default(&mut self, name: &str) -> Result<Option<u32>> {
        let Some((name, text)) = DEFAULTS.iter().find(|(known, _)| *known == name) else { return Ok(None) };
        if let Some(&number) = self.defaults.get(name) {
            return Ok(Some(number));
        }
        // An attribute of a later version asks for that version where it is stated, and not by a default.
        let needs = self.encoder.needs.clone();
        let number = match *name {
            "api_version" => self.encoder.convention(1),
            _ => self.encoder.attribute(text)?,
        };
        self.encoder.needs = needs;
        self.defaults.insert(name, number);
        Ok(Some(number))
    }

    /// The number of the list of an op's attributes as VHLO has them.
    fn own(&mut self, op: &str, attributes: &Attributes) -> Result<u32> {
        let key = key(op, attributes);
        if let Some(&number) = self.texts.get(&key) {
            return Ok(number);
        }
        let mut own = Own::with_capacity(attributes.len());
        for (name, text) in attributes {
            self.one(op, name, text, &mut own)?;
        }
        let number = self.lists.number(own);
        self.texts.insert(key, number);
        Ok(number)
    }

    /// Adds an attribute of StableHLO: most are one of VHLO, some are several.
    fn one(&mut self, op: &str, name: &'static str, text: &str, own: &mut Own) -> Result<()> {
        let joined = JOINED.iter().find(|(of, joined, _)| *of == op && *joined == name).map(|(.., fields)| *fields);
        let fields = match (joined, name) {
            (Some(fields), _) => fields,
            (None, "channel_handle") => &["handle"],
            (None, "api_version") => {
                let number = text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
                own.push((name, self.encoder.convention(number)));
                return Ok(());
            }
            (None, _) if text.is_empty() => {
                own.push((name, self.encoder.unit(Dialect::Vhlo)));
                return Ok(());
            }
            (None, _) => {
                own.push((name, self.encoder.attribute(text)?));
                return Ok(());
            }
        };
        if let Some(numbers) = text.strip_prefix("#stablehlo.conv<") {
            return self.convolution(numbers.trim_end_matches('>'), own);
        }
        let mut parser = parser(text);
        let attribute = parser.attribute().map_err(unreadable(text))?;
        let found = parser.fields_of(&attribute, name).map_err(unreadable(text))?;
        for &field in fields {
            let number = match found.get(field) {
                None => self.encoder.numbers(&[])?,
                Some(list) if matches!(list.value, Value::List(_)) => self.encoder.numbers(&integers(list, field)?)?,
                Some(other) => self.encoder.value(&mut parser, other, Dialect::Vhlo)?,
            };
            own.push((if field == "handle" { "channel_id" } else { field }, number));
        }
        Ok(())
    }

    /// `[b, 0, f]x[0, i, o]->[b, 0, f]`: the dimension of each letter, and of each number those in order.
    fn convolution(&mut self, text: &str, own: &mut Own) -> Result<()> {
        const NAMES: [[&str; 3]; 3] = [
            ["input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions"],
            ["kernel_input_feature_dimension", "kernel_output_feature_dimension", "kernel_spatial_dimensions"],
            ["output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions"],
        ];
        let parts: Vec<&str> = text.split(['[', ']']).skip(1).step_by(2).collect();
        let [input, kernel, output] = parts.as_slice() else {
            return malformed(format!("its dimension numbers are {text}"));
        };
        for ((part, names), letters) in [input, kernel, output].into_iter().zip(NAMES).zip(["bf", "io", "bf"]) {
            let labels: Vec<&str> = part.split(", ").collect();
            let at = |label: &str| labels.iter().position(|known| *known == label).map(|at| at as i64);
            for (letter, name) in letters.split("").filter(|letter| !letter.is_empty()).zip(names) {
                let Some(dimension) = at(letter) else { return malformed(format!("its dimension numbers are {text}")) };
                own.push((name, self.encoder.integer(dimension, "i64", Dialect::Vhlo)?));
            }
            let spatial: Vec<i64> = (0..labels.len()).map_while(|number| at(&number.to_string())).collect();
            own.push((names[2], self.encoder.numbers(&spatial)?));
        }
        Ok(())
    }

    /// The number of a dictionary of attributes that are not an op's own; none of none.
    fn discardable(&mut self, attributes: &Attributes, dialect: Dialect) -> Result<Option<u32>> {
        if attributes.is_empty() {
            return Ok(None);
        }
        let key = key("", attributes);
        if let Some(&number) = self.dictionaries.get(&key) {
            return Ok(Some(number));
        }
        let mut entries = Vec::with_capacity(attributes.len());
        for (name, text) in attributes {
            let value = match dialect {
                Dialect::Vhlo => self.encoder.attribute(text)?,
                Dialect::Builtin => self.encoder.attribute_in(text, dialect)?,
            };
            entries.push((*name, value));
        }
        let number = self.encoder.dictionary(entries, Dialect::Builtin);
        self.dictionaries.insert(key, number);
        Ok(Some(number))
    }

    /// The number of the use of an op, which no older version than its attributes ask for has.
    fn used(&mut self, name: &str, own: u32, has_several: bool) -> Result<u32> {
        let before = self.uses.all.len();
        let number = self.uses.number(OpUse { name: name.to_owned(), own, has_several });
        if number as usize == before {
            let since = self.since(name, own, has_several)?;
            self.encoder.need(since, || format!("this form of stablehlo.{name}"));
        }
        let (needed, what) = &self.encoder.needs;
        match self.version {
            Some(version) if !version.has(*needed) => not_in_artifact(format!(
                "{what} came with version {}, and version {version} is asked for; ask for that version or a later one",
                ArtifactVersion::of(*needed)
            )),
            _ => Ok(number),
        }
    }

    /// The minor version of the first form of an op that has all its attributes.
    fn since(&mut self, name: &str, own: u32, has_several: bool) -> Result<u32> {
        let own = self.lists.all.get(own as usize).map(|own| own.to_vec()).unwrap_or_default();
        let mut missing = "";
        for form in OpForm::all(name) {
            let mut has_all = form.takes_several() || !has_several;
            for &(attribute, value) in &own {
                if !form.properties.contains(&attribute) && self.default(attribute)? != Some(value) {
                    (has_all, missing) = (false, attribute);
                }
            }
            if has_all {
                return Ok(form.since);
            }
        }
        not_in_artifact(format!("portable artifacts have no attribute {missing} of stablehlo.{name}; leave it out"))
    }

    /// Asks for the newest form of each op around one that has several: StableHLO does not bring an old form up to date
    /// together with old forms in its regions.
    fn within_others(&mut self, name: &str) {
        if newest(name).is_none() {
            return;
        }
        for around in &self.ops {
            let around = self.uses.all.get(around.name as usize).map_or("", |used| &used.name);
            if let Some(since) = newest(around) {
                self.encoder.need(since, || format!("stablehlo.{around} over stablehlo.{name}"));
            }
        }
    }

    /// Looks at what the forms of custom calls do not say.
    fn custom_call(&mut self, attributes: &Attributes) -> Result<()> {
        if attributes.iter().any(|(of, text)| *of == "backend_config" && text.starts_with('{')) {
            self.encoder.need(3, || "a custom call whose configuration is a dictionary".to_owned());
        }
        match attributes.iter().find(|(of, text)| *of == "call_target_name" && text.starts_with("\"chlo.")) {
            Some((_, op)) => not_in_artifact(format!(
                "it stands for the op {op} of a dialect above StableHLO, and no plugin knows such a call; lower the \
                 program without it, or take the artifact that JAX exports"
            )),
            None => Ok(()),
        }
    }

    fn typed(&mut self, leaf: &Leaf) -> Result<()> {
        let ty = self.encoder.ty(&leaf.ty, Dialect::Vhlo)?;
        let place = leaf.number as usize;
        if self.types.len() <= place {
            self.types.resize(place + 1, 0);
        }
        self.types[place] = ty;
        Ok(())
    }

    /// Adds an op to the region that is open.
    fn add(&mut self, operation: EncodedOperation) -> Result<()> {
        self.length += size_of::<EncodedOperation>();
        match self.regions.last_mut() {
            Some(region) => region.operations.push(operation),
            None => return malformed("an op stands in no function"),
        }
        Ok(())
    }

    fn operation(&mut self, name: &str, operands: &[Leaf], results: &[Leaf], own: u32) -> Result<EncodedOperation> {
        for result in results {
            self.typed(result)?;
        }
        let first = self.operands.len();
        self.operands.extend(operands.iter().map(|leaf| leaf.number));
        self.length += size_of_val(operands);
        Ok(EncodedOperation {
            position: 0,
            name: self.used(name, own, operands.len() > 1)?,
            location: 0,
            attributes: [Some(own), None],
            results: results.first().map_or(0, |first| first.number)..results.last().map_or(0, |last| last.number + 1),
            operands: first..self.operands.len(),
            regions: Vec::new(),
        })
    }

    fn begin(&mut self, arguments: &[Leaf], locations: Vec<Option<u32>>) -> Result<()> {
        for argument in arguments {
            self.typed(argument)?;
        }
        let first = arguments.first().map_or(0, |first| first.number);
        let end = arguments.last().map_or(0, |last| last.number + 1);
        self.regions.push(EncodedRegion { arguments: first..end, locations, operations: Vec::new() });
        Ok(())
    }
}

/// The text of all attributes together.
fn key(op: &str, attributes: &Attributes) -> String {
    let mut key = op.to_owned();
    for (name, text) in attributes {
        key.extend(["\0", name, "\0", text]);
    }
    key
}

/// The name of an op without its dialect, which is StableHLO.
fn plain(name: &str) -> Result<&str> {
    match name.strip_prefix("stablehlo.").or_else(|| name.strip_prefix("func.")) {
        Some(name) => Ok(name),
        None => not_in_artifact(format!(
            "portable artifacts have the ops of StableHLO alone, and it is {name}; give the program as text"
        )),
    }
}

impl Sink for Record {
    fn open_module(&mut self, name: &str, attributes: &Attributes) -> Result<()> {
        name.clone_into(&mut self.name);
        self.attributes = self.discardable(attributes, Dialect::Builtin)?;
        Ok(())
    }

    fn open_function(&mut self, signature: &Signature) -> Result<()> {
        let mut attributes = [Vec::new(), Vec::new()];
        let arguments = signature.arguments.iter().map(|(_, attributes, _)| attributes);
        let results = signature.results.iter().map(|(_, attributes)| attributes);
        for (side, each) in [arguments.collect::<Vec<_>>(), results.collect()].into_iter().enumerate() {
            let has_some = each.iter().any(|attributes| !attributes.is_empty());
            for attributes_of_one in each.into_iter().filter(|_| has_some) {
                let mut entries = Vec::new();
                for (name, text) in attributes_of_one {
                    entries.push((*name, self.encoder.attribute(text)?));
                }
                attributes[side].push(self.encoder.dictionary(entries, Dialect::Vhlo));
            }
        }
        let [arguments, results] = attributes.map(|list| self.encoder.list(list, Dialect::Vhlo));
        let inputs = signature.arguments.iter().map(|(leaf, ..)| &*leaf.ty);
        let ty = self.encoder.function_type(inputs, signature.results.iter().map(|(ty, _)| &**ty))?;
        let visibility = if signature.is_public { "public" } else { "private" };
        let own = vec![
            ("arg_attrs", arguments),
            ("function_type", self.encoder.type_attribute(ty, Dialect::Vhlo)),
            ("res_attrs", results),
            ("sym_name", self.encoder.string(signature.name.as_bytes(), Dialect::Vhlo)),
            ("sym_visibility", self.encoder.string(visibility.as_bytes(), Dialect::Vhlo)),
        ];
        let own = self.lists.number(own);
        let mut function = self.operation("func", &[], &[], own)?;
        function.location = self.encoder.location("")?;
        self.ops.push(function);
        let mut locations = Vec::with_capacity(signature.arguments.len());
        for (.., location) in &signature.arguments {
            locations.push(if location.is_empty() { None } else { Some(self.encoder.location(location)?) });
        }
        let arguments: Vec<Leaf> = signature.arguments.iter().map(|(leaf, ..)| leaf.clone()).collect();
        self.begin(&arguments, locations)
    }

    fn open(&mut self, op: &Op<'_>, results: &[Leaf]) -> Result<()> {
        let name = plain(op.name)?;
        let own = self.own(op.name, &op.attributes)?;
        self.within_others(name);
        if name == "custom_call" {
            self.custom_call(&op.attributes)?;
        }
        let mut operation = self.operation(name, op.operands, results, own)?;
        operation.attributes[1] = self.discardable(&op.discardable, Dialect::Vhlo)?;
        self.ops.push(operation);
        Ok(())
    }

    fn open_region(&mut self, _: usize, arguments: Option<&[Leaf]>) -> Result<()> {
        let arguments = arguments.unwrap_or_default();
        self.begin(arguments, vec![None; arguments.len()])
    }

    fn close_region(&mut self, values: &[Leaf], is_function: bool) -> Result<()> {
        let own = self.lists.number(Own::new());
        let mut last = self.operation("return", values, &[], own)?;
        last.location = self.encoder.location("")?;
        self.add(last)?;
        let (Some(region), Some(op)) = (self.regions.pop(), self.ops.last_mut()) else {
            return malformed("a region has no op");
        };
        op.regions.push(region);
        if is_function {
            self.functions.extend(self.ops.pop());
        }
        Ok(())
    }

    fn close(&mut self, _: &Op<'_>, location: &str) -> Result<()> {
        let Some(mut operation) = self.ops.pop() else { return malformed("an op ends before it begins") };
        operation.location = self.encoder.location(location)?;
        self.add(operation)
    }

    fn constant(&mut self, value: &Dense, result: &Leaf, location: &str) -> Result<()> {
        let value = self.encoder.dense(&value.ty, value.stored(), Dialect::Vhlo)?;
        let own = self.lists.number(vec![("value", value)]);
        let mut operation = self.operation("constant", &[], std::slice::from_ref(result), own)?;
        operation.location = self.encoder.location(location)?;
        self.add(operation)
    }

    fn length(&self) -> usize {
        self.length + self.encoder.items.length
    }
}
