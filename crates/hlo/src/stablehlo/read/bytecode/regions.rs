//! Ops, blocks and values as the bytes have them, with the numbers of their attributes and types.

use std::ops::Range;

use super::bytes::Bytes;
use super::file::{File, OPERATIONS, since};
use super::properties;
use super::texts::{Texts, code};
use crate::parse::{Result, fault};

/// How deep regions may nest: their nesting is also one of this reader's calls.
const NESTING: usize = 100;

/// The bits of the byte that says what an op has.
pub(in crate::stablehlo) mod mask {
    pub(in crate::stablehlo) const ATTRIBUTES: u8 = 1;
    pub(in crate::stablehlo) const RESULTS: u8 = 2;
    pub(in crate::stablehlo) const OPERANDS: u8 = 4;
    pub(in crate::stablehlo) const SUCCESSORS: u8 = 8;
    pub(in crate::stablehlo) const REGIONS: u8 = 16;
    pub(in crate::stablehlo) const USE_ORDERS: u8 = 32;
    pub(in crate::stablehlo) const PROPERTIES: u8 = 64;
}

/// The number of a value among all of the file.
pub(in crate::stablehlo) type ValueNumber = u32;

const UNDEFINED: ValueNumber = ValueNumber::MAX;

/// An op before its attributes are read.
pub(in crate::stablehlo) struct EncodedOperation {
    pub(in crate::stablehlo) position: usize,
    /// In the table of names.
    pub(in crate::stablehlo) name: u32,
    pub(in crate::stablehlo) location: u32,
    /// The place of its attributes in the list of all.
    pub(in crate::stablehlo) attributes: [Option<u32>; 2],
    /// The first of its results, which follow each other.
    pub(in crate::stablehlo) results: Range<ValueNumber>,
    /// Among the operands of all ops.
    pub(in crate::stablehlo) operands: Range<usize>,
    pub(in crate::stablehlo) regions: Vec<EncodedRegion>,
}

/// A region of at most one block.
pub(in crate::stablehlo) struct EncodedRegion {
    pub(in crate::stablehlo) arguments: Range<ValueNumber>,
    /// The location of each argument, if it has a known one.
    pub(in crate::stablehlo) locations: Vec<Option<u32>>,
    pub(in crate::stablehlo) operations: Vec<EncodedOperation>,
}

/// Names and values of attributes: the name is text of the file, or of the table of properties.
pub(super) type AttributePairs<'a> = Vec<(&'a str, u32)>;

/// All that the ops of a file are made of.
#[derive(Default)]
pub(super) struct Encoded<'a> {
    pub(super) operations: Vec<EncodedOperation>,
    pub(super) operands: Vec<ValueNumber>,
    /// The type of each value.
    pub(super) types: Vec<u32>,
    /// Lists of attributes, each once: dictionaries and properties.
    pub(super) lists: Vec<AttributePairs<'a>>,
}

/// The values that are in sight.
#[derive(Default)]
struct Scope {
    values: Vec<ValueNumber>,
}

pub(super) struct Regions<'a, 'f, 't> {
    texts: &'t mut Texts<'a, 'f>,
    encoded: Encoded<'a>,
    /// The list of each dictionary and of the properties of an op by its name.
    dictionaries: rustc_hash::FxHashMap<u32, u32>,
    properties: rustc_hash::FxHashMap<(u32, u32), u32>,
    depth: usize,
}

/// Reads all ops, and makes their attributes and types known.
pub(super) fn read<'a>(texts: &mut Texts<'a, '_>) -> Result<Encoded<'a>> {
    let mut bytes = texts.file.operations;
    let mut regions = Regions {
        texts,
        encoded: Encoded::default(),
        dictionaries: Default::default(),
        properties: Default::default(),
        depth: 0,
    };
    let (count, has_arguments) = bytes.flagged()?;
    if has_arguments {
        return bytes.fault("the outermost block has arguments");
    }
    let mut scope = Scope::default();
    let operations = regions.operations(&mut bytes, count, &mut scope, &mut 0)?;
    regions.encoded.operations = operations;
    Ok(regions.encoded)
}

impl<'a> Regions<'a, '_, '_> {
    fn file(&self) -> &File<'a> {
        self.texts.file
    }

    fn operations(
        &mut self,
        bytes: &mut Bytes<'a>,
        count: u64,
        scope: &mut Scope,
        next: &mut usize,
    ) -> Result<Vec<EncodedOperation>> {
        if count > bytes.left() as u64 {
            return bytes.fault(format!("a block has {count} ops, more than the bytes that are left"));
        }
        self.texts.memory.take(count as usize * size_of::<EncodedOperation>(), bytes.here())?;
        (0..count).map(|_| self.operation(bytes, scope, next)).collect()
    }

    fn operation(&mut self, bytes: &mut Bytes<'a>, scope: &mut Scope, next: &mut usize) -> Result<EncodedOperation> {
        let position = bytes.here();
        let name = bytes.index()?;
        if self.file().names.get(name as usize).is_none() {
            return fault(position, format!("there is no op of number {name}"));
        }
        let has = bytes.byte()?;
        let location = bytes.index()?;
        let mut attributes = [None; 2];
        if has & mask::ATTRIBUTES != 0 {
            let index = bytes.index()?;
            attributes[1] = Some(self.dictionary(index, position)?);
        }
        if has & mask::PROPERTIES != 0 {
            let index = bytes.index()?;
            attributes[0] = Some(self.properties(name, index, position)?);
        }
        let count = if has & mask::RESULTS != 0 { bytes.count()? } else { 0 };
        let first = self.first_value();
        for _ in 0..count {
            let kind = bytes.index()?;
            self.define(kind, scope, next, bytes)?;
        }
        let results = first..self.first_value();
        let first = self.encoded.operands.len();
        if has & mask::OPERANDS != 0 {
            let count = bytes.count()?;
            self.texts.memory.take(count * size_of::<ValueNumber>(), position)?;
            for _ in 0..count {
                let index = bytes.number()?;
                match usize::try_from(index).ok().and_then(|index| scope.values.get(index)) {
                    Some(&value) if value != UNDEFINED => self.encoded.operands.push(value),
                    _ => return bytes.fault(format!("the value {index} is not defined before this place")),
                }
            }
        }
        let operands = first..self.encoded.operands.len();
        if has & mask::SUCCESSORS != 0 {
            return fault(position, "expected no successors: blocks that jump are not StableHLO");
        }
        if has & mask::USE_ORDERS != 0 && self.file().version >= since::USE_ORDERS {
            use_orders(bytes, count)?;
        }
        let mut regions = Vec::new();
        if has & mask::REGIONS != 0 {
            regions = self.regions(bytes, scope)?;
        }
        Ok(EncodedOperation { position, name, location, attributes, results, operands, regions })
    }

    fn first_value(&self) -> ValueNumber {
        // Each value has a byte of its own in the file, which has less than this number of bytes by its limit.
        ValueNumber::try_from(self.encoded.types.len()).unwrap_or(UNDEFINED)
    }

    /// Defines the next value of a region.
    fn define(&mut self, kind: u32, scope: &mut Scope, next: &mut usize, bytes: &Bytes<'a>) -> Result<()> {
        self.texts.know_type(kind, bytes.here())?;
        let value = self.first_value();
        match scope.values.get_mut(*next) {
            Some(place) if value != UNDEFINED => *place = value,
            _ => return bytes.fault("a region has more values than it states"),
        }
        *next += 1;
        self.texts.memory.take(size_of::<u32>(), bytes.here())?;
        self.encoded.types.push(kind);
        Ok(())
    }

    /// The regions of an op. Regions that see no values around them stand in a section of their own.
    fn regions(&mut self, bytes: &mut Bytes<'a>, scope: &mut Scope) -> Result<Vec<EncodedRegion>> {
        if self.depth >= NESTING {
            return bytes.fault(format!("regions are nested more than {NESTING} levels deep"));
        }
        let (count, is_isolated) = bytes.flagged()?;
        if count > bytes.left() as u64 {
            return bytes.fault(format!("an op has {count} regions, more than the bytes that are left"));
        }
        self.texts.memory.take(count as usize * size_of::<EncodedRegion>(), bytes.here())?;
        self.depth += 1;
        let regions = match is_isolated {
            true => {
                let mut own = *bytes;
                if self.file().version >= since::REGION_SECTIONS {
                    let (kind, content) = bytes.section()?;
                    if kind != OPERATIONS {
                        return bytes.fault(format!("expected a section of ops, found one of kind {kind}"));
                    }
                    own = content;
                }
                let mut inner = Scope::default();
                let regions = (0..count).map(|_| self.region(&mut own, &mut inner)).collect();
                if self.file().version < since::REGION_SECTIONS {
                    *bytes = own;
                }
                regions
            }
            false => (0..count).map(|_| self.region(bytes, scope)).collect(),
        };
        self.depth -= 1;
        regions
    }

    fn region(&mut self, bytes: &mut Bytes<'a>, scope: &mut Scope) -> Result<EncodedRegion> {
        let none = self.first_value();
        let mut region = EncodedRegion { arguments: none..none, locations: Vec::new(), operations: Vec::new() };
        match bytes.number()? {
            0 => return Ok(region),
            1 => {}
            _ => return bytes.fault("one block in a region is expected: StableHLO has no jumps"),
        }
        let values = bytes.count()?;
        let outer = scope.values.len();
        self.texts.memory.take(values * size_of::<ValueNumber>(), bytes.here())?;
        scope.values.resize(outer + values, UNDEFINED);
        let mut next = outer;
        let (count, has_arguments) = bytes.flagged()?;
        if has_arguments {
            let first = self.first_value();
            region.locations = self.arguments(bytes, scope, &mut next)?;
            region.arguments = first..self.first_value();
            if self.file().version >= since::USE_ORDERS && bytes.byte()? != 0 {
                use_orders(bytes, region.locations.len())?;
            }
        }
        region.operations = self.operations(bytes, count, scope, &mut next)?;
        scope.values.truncate(outer);
        Ok(region)
    }

    /// The arguments of a block: their locations.
    fn arguments(&mut self, bytes: &mut Bytes<'a>, scope: &mut Scope, next: &mut usize) -> Result<Vec<Option<u32>>> {
        let count = bytes.count()?;
        self.texts.memory.take(count * size_of::<Option<u32>>(), bytes.here())?;
        let mut locations = Vec::with_capacity(count);
        for _ in 0..count {
            let (kind, has_location) = match self.file().version >= since::ELIDED_LOCATIONS {
                true => bytes.flagged()?,
                false => (bytes.number()?, true),
            };
            let Ok(kind) = u32::try_from(kind) else {
                return bytes.fault(format!("there is no type of number {kind}"));
            };
            locations.push(if has_location { Some(bytes.index()?) } else { None });
            self.define(kind, scope, next, bytes)?;
        }
        Ok(locations)
    }

    /// The place of the list of a dictionary.
    fn dictionary(&mut self, index: u32, position: usize) -> Result<u32> {
        if let Some(&place) = self.dictionaries.get(&index) {
            return Ok(place);
        }
        let mut pairs = AttributePairs::new();
        for (name, value) in self.texts.dictionary(index, position)? {
            let Ok(name) = std::str::from_utf8(name) else { return fault(position, "expected a name in UTF-8") };
            pairs.push((name, value));
        }
        let place = self.add(pairs, position)?;
        self.dictionaries.insert(index, place);
        Ok(place)
    }

    fn add(&mut self, pairs: AttributePairs<'a>, position: usize) -> Result<u32> {
        for (_, value) in &pairs {
            self.texts.know(*value, position)?;
        }
        self.encoded.lists.push(pairs);
        Ok(self.encoded.lists.len() as u32 - 1)
    }

    /// The place of the list of an op's properties: attributes in the order of their names. An op that the writer did
    /// not know has them as a dictionary.
    fn properties(&mut self, name: u32, index: u32, position: usize) -> Result<u32> {
        if let Some(&place) = self.properties.get(&(name, index)) {
            return Ok(place);
        }
        let file = self.texts.file;
        let (Some(op), Some(bytes)) = (file.names.get(name as usize), file.properties.get(index as usize)) else {
            return fault(position, format!("there are no properties of number {index}"));
        };
        let mut bytes = *bytes;
        let place = match op.is_registered {
            false => {
                let dictionary = bytes.index()?;
                self.dictionary(dictionary, position)?
            }
            true => {
                let Some(names) = properties::of(op) else {
                    return fault(
                        position,
                        format!(
                            "the op {}.{} has properties that are not known; give the module as text, or as a \
                             portable artifact of StableHLO",
                            op.dialect, op.name
                        ),
                    );
                };
                let mut pairs = AttributePairs::new();
                let is_older = names.contains('+') && bytes.numbers() < names.split(' ').count();
                for name in names.split(' ') {
                    let name = match name.strip_suffix('+') {
                        Some(_) if is_older => continue,
                        Some(name) => name,
                        None => name,
                    };
                    if let Some(name) = name.strip_suffix('*') {
                        pairs.push((name, self.texts.segments(&mut bytes)?));
                        continue;
                    }
                    let (name, index) = match name.strip_suffix('?') {
                        Some(name) => match bytes.flagged()? {
                            (index, true) => (name, u32::try_from(index).unwrap_or(u32::MAX)),
                            (_, false) => continue,
                        },
                        None => (name, bytes.index()?),
                    };
                    pairs.push((name, index));
                }
                self.add(pairs, position)?
            }
        };
        self.properties.insert((name, index), place);
        Ok(place)
    }
}

/// Passes the orders of the uses of some values, which a program does not need.
fn use_orders(bytes: &mut Bytes<'_>, values: usize) -> Result<()> {
    let lists = if values > 1 { bytes.count()? } else { 1 };
    for _ in 0..lists {
        if values > 1 {
            bytes.number()?;
        }
        let (count, _) = bytes.flagged()?;
        for _ in 0..count {
            bytes.number()?;
        }
    }
    Ok(())
}

/// Whether an attribute is a location of MLIR: its kind and its bytes.
pub(super) fn location_code<'a>(file: &File<'a>, index: usize) -> Result<Option<(u64, Bytes<'a>)>> {
    match file.attributes.get(index) {
        Some(entry) if entry.dialect == "builtin" => code(*entry),
        _ => Ok(None),
    }
}
