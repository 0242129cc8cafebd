//! Telling serialized messages apart, and how large they get, before they are decoded.

use super::Form;
use crate::proto::{
    HloComputationProto, HloInstructionProto, LiteralProto, LogicalBufferProto, OpSharding, ReplicaGroup, ShapeProto,
};
use crate::wire::{fields, fields_of_start};

/// The form of a serialized message, judged by the contents of its first fields; none if no form matches. A truncated
/// file is judged by what it still has.
pub(super) fn of(bytes: &[u8]) -> Option<Form> {
    if is_module(bytes) {
        return Some(Form::Module);
    }
    let first = message(bytes, 1)?;
    if is_module(first) {
        let mut found = Form::HloProto;
        for field in fields_of_start(bytes).map_while(|field| field) {
            match (field.number, field.bytes) {
                // An HloProto has a message in field 3 and none in field 2; a snapshot has a number in field 3.
                (2, Some(content)) if is_config(content) => found = Form::ModuleWithConfig,
                (2, Some(_)) | (3, None) => found = Form::UnoptimizedSnapshot,
                _ => {}
            }
        }
        return Some(found);
    }
    (message(first, 1).is_some_and(is_module)).then_some(Form::Snapshot)
}

fn message(bytes: &[u8], number: u64) -> Option<&[u8]> {
    fields_of_start(bytes).map_while(|field| field).find(|field| field.number == number)?.bytes
}

/// Whether bytes begin as a module does: a name, and a computation with instructions, in whatever order.
fn is_module(bytes: &[u8]) -> bool {
    let mut named = false;
    for field in fields_of_start(bytes).map_while(|field| field).take(64) {
        match (field.number, field.bytes) {
            // The names of module and entry.
            (1 | 2, Some(name)) if is_name(name) => named = true,
            (1 | 2, _) => return false,
            // A computation has a name itself; one without instructions is not told from chance.
            (3, Some(computation)) => return named && message(computation, 1).is_some_and(is_name),
            _ => {}
        }
    }
    false
}

fn is_name(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|name| !name.is_empty() && !name.contains(|c: char| c.is_control()))
}

/// A config differs from a list of arguments, which a snapshot has in its place, by having no literals: numbers in
/// fields 2 to 9.
fn is_config(bytes: &[u8]) -> bool {
    bytes.is_empty()
        || fields(bytes)
            .map_while(|field| field)
            .any(|field| field.number > 2 || (field.number == 2 && field.bytes.is_none()))
}

/// The kind of message that some bytes are, as far as it matters for how large they get.
#[derive(Clone, Copy)]
enum Kind {
    /// A message around a module, in that field.
    Around(u64, &'static Kind),
    /// An HloProto: a module and buffers.
    HloProto,
    Module,
    Computation,
    Instruction,
    Shape,
    Sharding,
    Literal,
    Buffers,
    /// A message whose own size alone counts.
    Leaf(usize),
}

impl Kind {
    /// The kind of a field, where the field is a message whose size matters.
    fn inside(self, field: u64) -> Option<Kind> {
        Some(match (self, field) {
            (Kind::Around(number, kind), field) if field == number => *kind,
            (Kind::HloProto, 1) => Kind::Module,
            (Kind::HloProto, 3) => Kind::Buffers,
            (Kind::Module, 3) => Kind::Computation,
            (Kind::Module, 12 | 14) => Kind::Sharding,
            (Kind::Module, 4) | (Kind::Computation, 4) => Kind::Leaf(size_of::<ShapeProto>()),
            (Kind::Computation, 2) => Kind::Instruction,
            (Kind::Instruction, 3) => Kind::Shape,
            (Kind::Instruction, 8) => Kind::Literal,
            (Kind::Instruction, 40) => Kind::Sharding,
            (Kind::Instruction, 49 | 52 | 17 | 74) => Kind::Leaf(size_of::<ReplicaGroup>()),
            (Kind::Instruction, _) => Kind::Leaf(64),
            (Kind::Shape, 4) => Kind::Shape,
            (Kind::Sharding, 2) => Kind::Shape,
            (Kind::Sharding, 5) => Kind::Sharding,
            (Kind::Literal, 10) => Kind::Literal,
            (Kind::Buffers, _) => Kind::Leaf(size_of::<LogicalBufferProto>()),
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Kind::Around(..) | Kind::HloProto | Kind::Module | Kind::Buffers => 0,
            Kind::Computation => size_of::<HloComputationProto>(),
            Kind::Instruction => size_of::<HloInstructionProto>(),
            Kind::Shape => size_of::<ShapeProto>(),
            Kind::Sharding => size_of::<OpSharding>(),
            Kind::Literal => size_of::<LiteralProto>(),
            Kind::Leaf(size) => size,
        }
    }
}

/// About how many bytes a decoded message takes: its own, and those of nested messages that are large or may be many.
/// Vectors grow by doubling, so it may briefly be twice as much.
pub(super) fn decoded_bytes(bytes: &[u8], form: Form) -> u64 {
    let kind = match form {
        Form::Text | Form::StableHlo | Form::Module => Kind::Module,
        Form::HloProto => Kind::HloProto,
        Form::ModuleWithConfig | Form::UnoptimizedSnapshot => Kind::Around(1, &Kind::Module),
        Form::Snapshot => Kind::Around(1, &Kind::HloProto),
    };
    let mut sum = 0u64;
    let mut stack = vec![(bytes, kind)];
    while let Some((bytes, kind)) = stack.pop() {
        // Strings and packed lists take no more than a few times their bytes.
        sum = sum.saturating_add(kind.size() as u64).saturating_add(bytes.len() as u64);
        if matches!(kind, Kind::Leaf(_)) {
            continue;
        }
        for field in fields(bytes).map_while(|field| field) {
            if let (Some(content), Some(kind)) = (field.bytes, kind.inside(field.number)) {
                stack.push((content, kind));
            }
        }
    }
    sum
}
