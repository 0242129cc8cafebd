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
    /// Of a module's instructions.
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

#[cfg(test)]
mod tests {
    use super::{SourceLine, Sources, op_name, scope};
    use crate::proto::stack_frame_index_proto::{FileLocation, StackFrame};
    use crate::proto::{HloInstructionProto, HloModuleProto, OpMetadata, StackFrameIndexProto};

    fn with(metadata: OpMetadata) -> HloInstructionProto {
        HloInstructionProto { metadata: Some(Box::new(metadata)), ..Default::default() }
    }

    fn module(frames: &[(i32, i32)]) -> HloModuleProto {
        let location = |line| FileLocation { file_name_id: 1, function_name_id: 1, line, ..Default::default() };
        let frame =
            |&(file_location_id, parent_frame_id): &(i32, i32)| StackFrame { file_location_id, parent_frame_id };
        let index = StackFrameIndexProto {
            file_names: vec!["model.py".into()],
            function_names: vec!["layer".into()],
            file_locations: vec![location(10), location(20)],
            stack_frames: frames.iter().map(frame).collect(),
        };
        HloModuleProto { stack_frame_index: Some(index), ..Default::default() }
    }

    #[test]
    fn lines_of_both_forms() {
        let module = module(&[(1, 0), (2, 1)]);
        let sources = Sources::of(&module);
        let line = |line| SourceLine { file: "model.py", line, function: "layer" };
        let framed = |id| with(OpMetadata { stack_frame_id: id, ..Default::default() });
        assert_eq!(sources.line(&framed(2)), Some(line(20)));
        assert_eq!(sources.stack(&framed(2)), [line(20), line(10)]);
        let plain = with(OpMetadata { source_file: "a.py".into(), source_line: 3, ..Default::default() });
        assert_eq!(sources.line(&plain).map(|line| line.to_string()).as_deref(), Some("a.py:3"));
        assert_eq!(sources.stack(&plain).len(), 1);
        for nothing in [framed(0), framed(3), framed(-1), HloInstructionProto::default()] {
            assert_eq!((sources.line(&nothing), sources.stack(&nothing)), (None, vec![]));
        }
    }

    #[test]
    fn an_outermost_frame_may_be_its_own_parent() {
        let module = module(&[(1, 1), (2, 1)]);
        let instruction = with(OpMetadata { stack_frame_id: 2, ..Default::default() });
        assert_eq!(Sources::of(&module).stack(&instruction).len(), 2);
    }

    #[test]
    fn a_circle_of_frames_ends() {
        let module = module(&[(1, 2), (2, 1)]);
        let instruction = with(OpMetadata { stack_frame_id: 1, ..Default::default() });
        assert_eq!(Sources::of(&module).stack(&instruction).len(), 256);
    }

    #[test]
    fn scopes() {
        let named = |name: &str| with(OpMetadata { op_name: name.into(), ..Default::default() });
        for (name, expected) in [
            ("jit(step)/layer/dot_general", "jit(step)/layer"),
            ("jit(f)/reshape[sizes=a/b]", "jit(f)"),
            ("dot_general", ""),
            ("", ""),
        ] {
            let instruction = named(name);
            assert_eq!((op_name(&instruction), scope(&instruction)), (name, expected));
        }
        assert_eq!(scope(&HloInstructionProto::default()), "");
    }
}
