//! Where ops come from: `loc("jit(f)/add"(#loc3))`. They become the metadata of instructions.
//!
//! Locations have names that are defined at either end of the text, so what a name means is known at the end.

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::parser::Parser;
use crate::parse::Result;
use crate::proto::stack_frame_index_proto::{FileLocation, StackFrame};
use crate::proto::{OpMetadata, StackFrameIndexProto};

/// The place of a location in the list of all.
pub(in crate::stablehlo) type LocationId = usize;

#[derive(Debug)]
pub(in crate::stablehlo) enum Location<'a> {
    Unknown,
    Alias(&'a str),
    File { file: Cow<'a, str>, line: i64, column: i64 },
    Name { name: Cow<'a, str>, child: Option<LocationId> },
    CallSite { callee: LocationId, caller: LocationId },
    Fused(Vec<LocationId>),
}

/// All locations of a text.
#[derive(Debug, Default)]
pub(in crate::stablehlo) struct Locations<'a> {
    pub(in crate::stablehlo) all: Vec<Location<'a>>,
    /// The locations that have names.
    pub(super) aliases: FxHashMap<&'a str, LocationId>,
}

impl Location<'_> {
    /// The bytes of its parts, and of names that are not those of the text.
    pub(super) fn size(&self) -> usize {
        match self {
            Location::File { file: Cow::Owned(text), .. } | Location::Name { name: Cow::Owned(text), .. } => text.len(),
            Location::File { .. } | Location::Name { .. } => 0,
            Location::Fused(parts) => size_of_val(parts.as_slice()),
            Location::Unknown | Location::Alias(_) | Location::CallSite { .. } => 0,
        }
    }
}

impl<'a> Locations<'a> {
    pub(super) fn add(&mut self, location: Location<'a>) {
        self.all.push(location);
    }
}

impl<'a> Parser<'a> {
    /// `loc(...)` after an op or an argument, if there is one.
    pub(super) fn trailing_location(&mut self) -> Result<Option<LocationId>> {
        let mut ahead = self.lexer;
        if ahead.eat_word("loc") && ahead.peek() == Some(b'(') { self.location().map(Some) } else { Ok(None) }
    }

    /// `loc(...)`.
    pub(in crate::stablehlo) fn location(&mut self) -> Result<LocationId> {
        if !self.lexer.eat_word("loc") {
            return self.lexer.unexpected("a location, like loc(\"file.py\":1:2)");
        }
        self.lexer.expect("(", "after \"loc\"")?;
        let location = self.nested(Self::inner_location)?;
        self.lexer.expect(")", "after a location")?;
        Ok(location)
    }

    fn inner_location(&mut self) -> Result<LocationId> {
        let location = match self.lexer.peek() {
            Some(b'#') => Location::Alias(self.lexer.name(b'#', "the name of a location")?),
            Some(b'"') => self.named_location()?,
            _ => match self.lexer.expect_word("a location")? {
                "unknown" => Location::Unknown,
                "callsite" => {
                    self.lexer.expect("(", "after \"callsite\"")?;
                    let callee = self.nested(Self::inner_location)?;
                    if !self.lexer.eat_word("at") {
                        return self.lexer.unexpected("\"at\" between two locations");
                    }
                    let caller = self.nested(Self::inner_location)?;
                    self.lexer.expect(")", "after two locations")?;
                    Location::CallSite { callee, caller }
                }
                "fused" => {
                    if self.lexer.peek() == Some(b'<') {
                        self.lexer.balanced()?;
                    }
                    let places = ["before fused locations", "in fused locations"];
                    Location::Fused(self.list('[', ']', places, |parser| parser.nested(Self::inner_location))?)
                }
                _ => return self.lexer.unexpected("a location"),
            },
        };
        self.locations.all.push(location);
        Ok(self.locations.all.len() - 1)
    }

    /// `"file":1:2 to 3:4`, `"file":1:2 to :4`, `"name"` or `"name"(location)`.
    fn named_location(&mut self) -> Result<Location<'a>> {
        let name = self.lexer.string()?;
        if self.lexer.eat(":") {
            let line = self.lexer.integer("a line")?;
            let column = if self.lexer.eat(":") { self.lexer.integer("a column")? } else { 0 };
            if self.lexer.eat_word("to") {
                if self.lexer.peek() != Some(b':') {
                    self.lexer.integer("a line")?;
                }
                if self.lexer.eat(":") {
                    self.lexer.integer("a column")?;
                }
            }
            return Ok(Location::File { file: name, line, column });
        }
        let child = match self.lexer.eat("(") {
            true => {
                let child = self.nested(Self::inner_location)?;
                self.lexer.expect(")", "after a location")?;
                Some(child)
            }
            false => None,
        };
        Ok(Location::Name { name, child })
    }
}

/// Lines of a location, innermost first: the file, the function, the line and the column of each.
type LocationLines<'a> = SmallVec<[(&'a str, &'a str, i64, i64); 4]>;

/// Makes metadata of locations, and the table of stack frames that it refers to.
pub(super) struct Frames<'a> {
    locations: &'a Locations<'a>,
    index: StackFrameIndexProto,
    files: FxHashMap<&'a str, i32>,
    functions: FxHashMap<&'a str, i32>,
    lines: FxHashMap<(i32, i32, i64, i64), i32>,
    frames: FxHashMap<(i32, i32), i32>,
    /// Bytes that names of ops may still take: each instruction has its own, and a text may refer to a long one often.
    names_left: usize,
}

/// Locations that one location consists of at most: names may refer to each other in circles.
const PARTS: usize = 1024;

impl<'a> Frames<'a> {
    pub(super) fn of(locations: &'a Locations<'a>, text_length: usize) -> Frames<'a> {
        Frames {
            locations,
            index: StackFrameIndexProto::default(),
            files: FxHashMap::default(),
            functions: FxHashMap::default(),
            lines: FxHashMap::default(),
            frames: FxHashMap::default(),
            names_left: (1 << 20) + text_length.saturating_mul(64),
        }
    }

    /// The table, if any op has a place in it.
    pub(super) fn finish(self) -> Option<StackFrameIndexProto> {
        (!self.index.stack_frames.is_empty()).then_some(self.index)
    }

    pub(super) fn metadata(&mut self, location: Option<LocationId>) -> Option<Box<OpMetadata>> {
        let (mut name, mut lines): (Option<&'a str>, _) = (None, LocationLines::new());
        self.collect(location?, &mut name, &mut lines);
        self.names_left = self.names_left.checked_sub(name.map_or(0, str::len))?;
        let mut metadata = OpMetadata { op_name: name.unwrap_or_default().to_owned(), ..OpMetadata::default() };
        // The outermost caller comes first in the table.
        for (file, function, line, column) in lines.into_iter().rev() {
            metadata.stack_frame_id = self.frame(file, function, line, column, metadata.stack_frame_id);
        }
        let says_something = !metadata.op_name.is_empty() || metadata.stack_frame_id != 0;
        says_something.then(|| Box::new(metadata))
    }

    /// Finds the first name, which is that of the op, and the lines, innermost first, each with its function.
    fn collect(&self, from: LocationId, name: &mut Option<&'a str>, lines: &mut LocationLines<'a>) {
        // Each with the function it is in.
        let mut waiting: SmallVec<[_; 4]> = smallvec![(from, "", true)];
        let mut count = 0;
        while let Some((at, function, is_outer)) = waiting.pop() {
            count += 1;
            if count > PARTS {
                return;
            }
            match self.locations.all.get(at) {
                None | Some(Location::Unknown) => {}
                Some(Location::Alias(alias)) => {
                    waiting.extend(self.locations.aliases.get(alias).map(|&at| (at, function, is_outer)));
                }
                Some(Location::File { file, line, column }) => lines.push((file, function, *line, *column)),
                Some(Location::Name { name: found, child }) => {
                    let found = found.as_ref();
                    // The first name is the op's, and those below it are of functions.
                    if is_outer && name.is_none() {
                        *name = Some(found);
                        waiting.extend(child.map(|child| (child, "", false)));
                    } else {
                        waiting.extend(child.map(|child| (child, found, false)));
                    }
                }
                Some(Location::CallSite { callee, caller }) => {
                    waiting.push((*caller, "", false));
                    waiting.push((*callee, function, is_outer));
                }
                // A fused op has many places; the first stands for all, as XLA's metadata has only one.
                Some(Location::Fused(parts)) => waiting.extend(parts.first().map(|&at| (at, function, is_outer))),
            }
        }
    }

    fn frame(&mut self, file: &'a str, function: &'a str, line: i64, column: i64, parent: i32) -> i32 {
        let file = numbered(&mut self.files, &mut self.index.file_names, file);
        let function = match function {
            "" => 0,
            name => numbered(&mut self.functions, &mut self.index.function_names, name),
        };
        let small = |number: i64| i32::try_from(number).unwrap_or(0);
        let locations = &mut self.index.file_locations;
        let location = *self.lines.entry((file, function, line, column)).or_insert_with(|| {
            let (line, column) = (small(line), small(column));
            locations.push(FileLocation {
                file_name_id: file,
                function_name_id: function,
                line,
                column,
                end_line: line,
                end_column: column,
            });
            locations.len() as i32
        });
        let frames = &mut self.index.stack_frames;
        *self.frames.entry((location, parent)).or_insert_with(|| {
            frames.push(StackFrame { file_location_id: location, parent_frame_id: parent });
            frames.len() as i32
        })
    }
}

/// The number of a name in a table, counted from 1.
fn numbered<'a>(numbers: &mut FxHashMap<&'a str, i32>, names: &mut Vec<String>, name: &'a str) -> i32 {
    *numbers.entry(name).or_insert_with(|| {
        names.push(name.to_owned());
        names.len() as i32
    })
}
