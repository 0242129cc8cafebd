//! Where an instruction comes from: its source line and its scope.
//!
//! The metadata of an instruction names a line either directly or, in modules of newer compilers, by a frame in the
//! module's table of stack frames (`StackFrameIndexProto`); the innermost frame is the line that made the instruction.
//! The scope is the path of names in `op_name` before the op.

use crate::proto::{HloInstructionProto, HloModuleProto, StackFrameIndexProto};

/// A line of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine<'a> {
    /// The file, as the module names it.
    pub file: &'a str,
    /// Counted from 1; 0 where only the file is known.
    pub line: i64,
    /// The function the line is in; empty where that is not known.
    pub function: &'a str,
}

impl SourceLine<'_> {
    /// `file:function`, without the folders of the file; the file alone where the function is not known.
    pub fn origin(&self) -> String {
        let file = self.file.rsplit(['/', '\\']).next().unwrap_or(self.file);
        if self.function.is_empty() { file.to_owned() } else { format!("{file}:{}", self.function) }
    }
}

/// `file:line`
impl std::fmt::Display for SourceLine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Finds where the instructions of a module come from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    frames: Option<&'a StackFrameIndexProto>,
}

impl<'a> Sources<'a> {
    /// Finds where a module's instructions come from.
    pub fn of(module: &'a HloModuleProto) -> Sources<'a> {
        Sources { frames: module.stack_frame_index.as_ref() }
    }

    /// The line that made an instruction; `None` if the module does not say.
    pub fn line(&self, instruction: &'a HloInstructionProto) -> Option<SourceLine<'a>> {
        let metadata = instruction.metadata.as_deref()?;
        if !metadata.source_file.is_empty() {
            return Some(SourceLine { file: &metadata.source_file, line: metadata.source_line.into(), function: "" });
        }
        self.frame(metadata.stack_frame_id).map(|(line, _)| line)
    }

    /// The line that made an instruction, then its callers, outwards. A deep stack is cut to the innermost 256 frames.
    pub fn stack(&self, instruction: &'a HloInstructionProto) -> Vec<SourceLine<'a>> {
        /// A table may go in circles.
        const DEEPEST: usize = 256;
        let mut next = instruction.metadata.as_deref().map_or(0, |metadata| metadata.stack_frame_id);
        let mut stack = Vec::new();
        while let Some((line, parent)) = self.frame(next).filter(|_| stack.len() < DEEPEST) {
            stack.push(line);
            // The outermost frame of some writers is its own parent.
            if parent == next {
                break;
            }
            next = parent;
        }
        if stack.is_empty() { self.line(instruction).into_iter().collect() } else { stack }
    }

    /// The line of a stack frame, and the frame that called it. Every id is a position counted from 1.
    fn frame(&self, id: i32) -> Option<(SourceLine<'a>, i32)> {
        let index = self.frames?;
        let frame = nth(&index.stack_frames, id)?;
        let location = nth(&index.file_locations, frame.file_location_id)?;
        let file = nth(&index.file_names, location.file_name_id)?;
        let function = nth(&index.function_names, location.function_name_id).map_or("", String::as_str);
        Some((SourceLine { file, line: location.line.into(), function }, frame.parent_frame_id))
    }
}

fn nth<T>(items: &[T], id: i32) -> Option<&T> {
    items.get(usize::try_from(id).ok()?.checked_sub(1)?)
}

/// The path of scopes and, last, the op that an instruction was made for; empty where the module does not say.
pub fn op_name(instruction: &HloInstructionProto) -> &str {
    instruction.metadata.as_deref().map_or("", |metadata| &metadata.op_name)
}

/// The scopes of an instruction, joined by `/`, without the op: `jit(step)/layer` of `jit(step)/layer/dot_general`.
pub fn scope(instruction: &HloInstructionProto) -> &str {
    let name = op_name(instruction);
    // An op may have parameters, in brackets, that have slashes.
    let path = name.split_once('[').map_or(name, |(path, _)| path);
    path.rsplit_once('/').map_or("", |(scope, _)| scope)
}
