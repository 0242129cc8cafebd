//! Locations: `loc("layer/dot_general"("model.py":12:0))`, which XLA reads back as an instruction's metadata.

use super::attributes::quoted;
use crate::analysis::source::{SourceLine, Sources, op_name};
use crate::proto::HloInstructionProto;

/// The location of an instruction; none where the module does not say.
pub(super) fn of<'a>(sources: &Sources<'a>, instruction: &'a HloInstructionProto) -> Option<String> {
    let name = op_name(instruction);
    // Innermost first; each is called at the one after it.
    let mut stack = sources.stack(instruction).into_iter().rev();
    let place = stack.next().map(|outermost| {
        stack.fold(line(&outermost), |callers, frame| format!("callsite({} at {callers})", line(&frame)))
    });
    match (name, place) {
        ("", None) => None,
        ("", Some(place)) => Some(format!("loc({place})")),
        (name, None) => Some(format!("loc({})", quoted(name.as_bytes()))),
        (name, Some(place)) => Some(format!("loc({}({place}))", quoted(name.as_bytes()))),
    }
}

fn line(line: &SourceLine<'_>) -> String {
    let place = format!("{}:{}:0", quoted(line.file.as_bytes()), line.line.max(0));
    if line.function.is_empty() { place } else { format!("{}({place})", quoted(line.function.as_bytes())) }
}
