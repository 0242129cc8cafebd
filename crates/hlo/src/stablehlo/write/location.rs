//! Locations, which XLA reads back as metadata of instructions: `loc(fused["layer/dot", "model.py":12:0])`.
//!
//! With functions, as JAX has them, a line is one of a stack:
//! `loc("layer/dot"(callsite("layer"("model.py":12:0) at "step"("model.py":30:0))))`.

use super::attributes::quoted;
use crate::proto::HloInstructionProto;
use crate::source::{SourceLine, Sources, op_name};

/// The location of an instruction. One that the module does not say is unknown: without it, XLA would take the place
/// in the text.
pub(super) fn of<'a>(sources: &Sources<'a>, instruction: &'a HloInstructionProto) -> String {
    let name = quoted(op_name(instruction).as_bytes());
    let is_named = !op_name(instruction).is_empty();
    let stack = sources.stack(instruction);
    let has_functions = stack.len() > 1 || stack.iter().any(|line| !line.function.is_empty());
    // Innermost first; each is called at the one after it.
    let mut lines = stack.into_iter().rev();
    let outermost = lines.next().map(|outermost| line(&outermost));
    let place = outermost
        .map(|outermost| lines.fold(outermost, |callers, frame| format!("callsite({} at {callers})", line(&frame))));
    match (place, is_named, has_functions) {
        (None, false, _) => "loc(unknown)".to_owned(),
        (None, true, _) => format!("loc({name})"),
        (Some(place), false, _) => format!("loc({place})"),
        (Some(place), true, false) => format!("loc(fused[{name}, {place}])"),
        (Some(place), true, true) => format!("loc({name}({place}))"),
    }
}

fn line(line: &SourceLine<'_>) -> String {
    let place = format!("{}:{}:0", quoted(line.file.as_bytes()), line.line.max(0));
    if line.function.is_empty() { place } else { format!("{}({place})", quoted(line.function.as_bytes())) }
}
