//! The tables of a bytecode file, before any attribute or op in it is read.

use super::bytes::Bytes;
use crate::parse::{Memory, Result, fault};

/// The newest version of the format that is known: the first is 0.
const NEWEST: u64 = 6;

/// The versions of the format that brought each part of it.
pub(in crate::stablehlo) mod since {
    pub(in super::super) const DIALECT_VERSIONS: u64 = 1;
    pub(in super::super) const REGION_SECTIONS: u64 = 2;
    pub(in super::super) const USE_ORDERS: u64 = 3;
    pub(in super::super) const ELIDED_LOCATIONS: u64 = 4;
    pub(in super::super) const PROPERTIES: u64 = 5;
}

/// The kinds of sections, by their numbers.
pub(in crate::stablehlo) mod section {
    pub(in crate::stablehlo) const STRINGS: usize = 0;
    pub(in crate::stablehlo) const DIALECTS: usize = 1;
    pub(in crate::stablehlo) const ATTRIBUTES: usize = 2;
    pub(in crate::stablehlo) const ATTRIBUTE_SIZES: usize = 3;
    pub(in crate::stablehlo) const OPERATIONS: usize = 4;
    pub(in crate::stablehlo) const RESOURCES: usize = 5;
    pub(in crate::stablehlo) const RESOURCE_SIZES: usize = 6;
    pub(in crate::stablehlo) const VERSIONS: u8 = 7;
    pub(in crate::stablehlo) const PROPERTIES: usize = 8;
    pub(in crate::stablehlo) const COUNT: usize = 9;
}

/// The number of the section that has the regions of an op.
pub(super) const OPERATIONS: u8 = section::OPERATIONS as u8;

/// The encoding of an attribute or a type.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) dialect: &'a str,
    /// Whether it is encoded as its dialect does it, or else as text.
    pub(super) is_binary: bool,
    pub(super) bytes: Bytes<'a>,
}

/// The name of an op.
#[derive(Clone, Copy)]
pub(in crate::stablehlo) struct OpName<'a> {
    pub(in crate::stablehlo) dialect: &'a str,
    pub(in crate::stablehlo) name: &'a str,
    /// Whether the writer knew its properties, and not only an attribute that has them.
    pub(in crate::stablehlo) is_registered: bool,
}

/// The name of an op without its version in VHLO: `add` of `add_v1`.
pub(super) fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((name, version)) if version.parse::<u32>().is_ok() => name,
        _ => name,
    }
}

/// Whether an op only says that a type of VHLO is one of another dialect: a text has none of them.
pub(super) fn is_cast(op: &OpName<'_>) -> bool {
    op.dialect == "builtin" && op.name == "unrealized_conversion_cast"
}

/// The elements of a constant, which stand beside the program.
#[derive(Clone, Copy)]
pub(super) struct Resource<'a> {
    pub(super) name: &'a str,
    pub(super) elements: Option<&'a [u8]>,
}

pub(super) struct File<'a> {
    pub(super) version: u64,
    strings: Vec<&'a [u8]>,
    pub(super) names: Vec<OpName<'a>>,
    pub(super) attributes: Vec<Entry<'a>>,
    pub(super) types: Vec<Entry<'a>>,
    pub(super) resources: Vec<Resource<'a>>,
    pub(super) properties: Vec<Bytes<'a>>,
    pub(super) operations: Bytes<'a>,
    dialects: Vec<&'a str>,
}

impl<'a> File<'a> {
    pub(super) fn new(content: &'a [u8], memory: &Memory) -> Result<File<'a>> {
        let mut bytes = Bytes::new(content);
        if bytes.take(4)? != b"ML\xefR" {
            return fault(0, "MLIR bytecode begins with the bytes 4d 4c ef 52");
        }
        let version = bytes.number()?;
        if version > NEWEST {
            return fault(
                4,
                format!(
                    "it has version {version} of MLIR's bytecode, and versions up to {NEWEST} are read; write it as a \
                     portable artifact of StableHLO, or give the module as text"
                ),
            );
        }
        // The tool that wrote it.
        bytes.text()?;
        let mut sections: [Option<Bytes<'a>>; section::COUNT] = [None; section::COUNT];
        while !bytes.is_at_end() {
            let start = bytes.here();
            let (kind, content) = bytes.section()?;
            match sections.get_mut(usize::from(kind)) {
                Some(section @ None) => *section = Some(content),
                Some(Some(_)) => return fault(start, format!("the section of kind {kind} is there twice")),
                None => return fault(start, format!("there are no sections of kind {kind}")),
            }
        }
        let required = |kind: usize, what: &str| match sections[kind] {
            Some(section) => Ok(section),
            None => fault(content.len(), format!("the file has no section of {what}; is it complete?")),
        };
        let mut file = File {
            version,
            strings: strings(required(section::STRINGS, "strings")?, memory)?,
            names: Vec::new(),
            attributes: Vec::new(),
            types: Vec::new(),
            resources: Vec::new(),
            properties: Vec::new(),
            operations: required(section::OPERATIONS, "ops")?,
            dialects: Vec::new(),
        };
        file.read_names(required(section::DIALECTS, "dialects")?, memory)?;
        let sizes = required(section::ATTRIBUTE_SIZES, "the sizes of attributes")?;
        file.read_entries(required(section::ATTRIBUTES, "attributes")?, sizes, memory)?;
        if let (Some(content), Some(sizes)) = (sections[section::RESOURCES], sections[section::RESOURCE_SIZES]) {
            file.read_resources(content, sizes, memory)?;
        }
        if let Some(properties) = sections[section::PROPERTIES] {
            file.properties = list_of_parts(properties, memory)?;
        }
        Ok(file)
    }

    /// A string by its place in the table.
    pub(super) fn string(&self, bytes: &mut Bytes<'a>) -> Result<&'a [u8]> {
        let index = bytes.number()?;
        self.string_at(index, bytes)
    }

    fn string_at(&self, index: u64, bytes: &Bytes<'a>) -> Result<&'a [u8]> {
        match usize::try_from(index).ok().and_then(|index| self.strings.get(index)) {
            Some(string) => Ok(string),
            None => bytes.fault(format!("there is no string of number {index}")),
        }
    }

    /// A string that is a name.
    fn name_at(&self, index: u64, bytes: &Bytes<'a>) -> Result<&'a str> {
        let name = self.string_at(index, bytes)?;
        std::str::from_utf8(name).or_else(|_| bytes.fault("expected a name in UTF-8"))
    }

    /// The dialects with the names of their ops.
    fn read_names(&mut self, mut bytes: Bytes<'a>, memory: &Memory) -> Result<()> {
        let count = bytes.count()?;
        memory.take(count * size_of::<&str>(), bytes.here())?;
        for _ in 0..count {
            let (index, has_version) = match self.version < since::DIALECT_VERSIONS {
                true => (bytes.number()?, false),
                false => bytes.flagged()?,
            };
            let name = self.name_at(index, &bytes)?;
            self.dialects.push(name);
            if has_version && bytes.section()?.0 != section::VERSIONS {
                return bytes.fault("expected the version of a dialect");
            }
        }
        if self.version >= since::ELIDED_LOCATIONS {
            bytes.number()?;
        }
        while !bytes.is_at_end() {
            let (dialect, count) = self.group(&mut bytes)?;
            memory.take(count * size_of::<OpName<'_>>(), bytes.here())?;
            for _ in 0..count {
                let (index, is_registered) = match self.version < since::PROPERTIES {
                    true => (bytes.number()?, true),
                    false => bytes.flagged()?,
                };
                let name = self.name_at(index, &bytes)?;
                self.names.push(OpName { dialect, name, is_registered });
            }
        }
        Ok(())
    }

    /// The dialect of a group of items, and their number.
    fn group(&self, bytes: &mut Bytes<'a>) -> Result<(&'a str, usize)> {
        let dialect = self.dialect(bytes)?;
        Ok((dialect, bytes.count()?))
    }

    fn dialect(&self, bytes: &mut Bytes<'a>) -> Result<&'a str> {
        let index = bytes.number()?;
        match usize::try_from(index).ok().and_then(|index| self.dialects.get(index)) {
            Some(dialect) => Ok(dialect),
            None => bytes.fault(format!("there is no dialect of number {index}")),
        }
    }

    /// The attributes, then the types.
    fn read_entries(&mut self, mut content: Bytes<'a>, mut sizes: Bytes<'a>, memory: &Memory) -> Result<()> {
        let counts = [sizes.count()?, sizes.count()?];
        for (kind, count) in counts.into_iter().enumerate() {
            memory.take(count.saturating_mul(size_of::<Entry<'_>>()), sizes.here())?;
            let mut entries = Vec::with_capacity(count);
            while entries.len() < count {
                let (dialect, group) = self.group(&mut sizes)?;
                for _ in 0..group.min(count - entries.len()) {
                    let (size, is_binary) = sizes.flagged()?;
                    entries.push(Entry { dialect, is_binary, bytes: content.part(size)? });
                }
                if group == 0 {
                    return sizes.fault("expected some attributes or types of a dialect, found 0");
                }
            }
            match kind {
                0 => self.attributes = entries,
                _ => self.types = entries,
            }
        }
        Ok(())
    }

    /// Resources of tools, which a program does not need, and then those of dialects.
    fn read_resources(&mut self, mut content: Bytes<'a>, mut sizes: Bytes<'a>, memory: &Memory) -> Result<()> {
        const BLOB: u8 = 0;
        let tools = sizes.count()?;
        let mut group = 0;
        while !sizes.is_at_end() {
            match group < tools {
                true => _ = sizes.number()?,
                false => _ = self.dialect(&mut sizes)?,
            }
            let count = sizes.count()?;
            memory.take(count * size_of::<Resource<'_>>(), sizes.here())?;
            for _ in 0..count {
                let name = sizes.number()?;
                let name = self.name_at(name, &sizes)?;
                let size = sizes.number()?;
                let kind = sizes.byte()?;
                let mut value = content.part(size)?;
                let mut elements = None;
                if kind == BLOB && !value.is_at_end() {
                    let alignment = value.number()?;
                    let size = value.number()?;
                    value.align(alignment)?;
                    elements = Some(value.take(size)?);
                }
                if group >= tools {
                    self.resources.push(Resource { name, elements });
                }
            }
            group += 1;
        }
        Ok(())
    }
}

/// The table of strings: their lengths, the last first, and then all of them.
fn strings<'a>(mut bytes: Bytes<'a>, memory: &Memory) -> Result<Vec<&'a [u8]>> {
    let count = bytes.count()?;
    memory.take(count * (size_of::<&[u8]>() + size_of::<u64>()), bytes.here())?;
    let mut lengths = (0..count).map(|_| bytes.number()).collect::<Result<Vec<u64>>>()?;
    lengths.reverse();
    // Each ends with a zero, which its length counts.
    let string = |length: u64| Ok(bytes.take(length)?.split_last().map_or(&[] as &[u8], |(_, string)| string));
    lengths.into_iter().map(string).collect()
}

/// Parts that each begin with their length.
fn list_of_parts<'a>(mut bytes: Bytes<'a>, memory: &Memory) -> Result<Vec<Bytes<'a>>> {
    let count = bytes.count()?;
    memory.take(count * size_of::<Bytes<'_>>(), bytes.here())?;
    let part = |_| {
        let length = bytes.number()?;
        bytes.part(length)
    };
    (0..count).map(part).collect()
}
