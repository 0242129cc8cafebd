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
enum MessageKind {
    /// A message around a module, in that field.
    Around(u64, &'static MessageKind),
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

impl MessageKind {
    /// The kind of a field, where the field is a message whose size matters.
    fn inside(self, field: u64) -> Option<MessageKind> {
        Some(match (self, field) {
            (MessageKind::Around(number, kind), field) if field == number => *kind,
            (MessageKind::HloProto, 1) => MessageKind::Module,
            (MessageKind::HloProto, 3) => MessageKind::Buffers,
            (MessageKind::Module, 3) => MessageKind::Computation,
            (MessageKind::Module, 12 | 14) => MessageKind::Sharding,
            (MessageKind::Module, 4) | (MessageKind::Computation, 4) => MessageKind::Leaf(size_of::<ShapeProto>()),
            (MessageKind::Computation, 2) => MessageKind::Instruction,
            (MessageKind::Instruction, 3) => MessageKind::Shape,
            (MessageKind::Instruction, 8) => MessageKind::Literal,
            (MessageKind::Instruction, 40) => MessageKind::Sharding,
            (MessageKind::Instruction, 49 | 52 | 17 | 74) => MessageKind::Leaf(size_of::<ReplicaGroup>()),
            (MessageKind::Instruction, _) => MessageKind::Leaf(64),
            (MessageKind::Shape, 4) => MessageKind::Shape,
            (MessageKind::Sharding, 2) => MessageKind::Shape,
            (MessageKind::Sharding, 5) => MessageKind::Sharding,
            (MessageKind::Literal, 10) => MessageKind::Literal,
            (MessageKind::Buffers, _) => MessageKind::Leaf(size_of::<LogicalBufferProto>()),
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            MessageKind::Around(..) | MessageKind::HloProto | MessageKind::Module | MessageKind::Buffers => 0,
            MessageKind::Computation => size_of::<HloComputationProto>(),
            MessageKind::Instruction => size_of::<HloInstructionProto>(),
            MessageKind::Shape => size_of::<ShapeProto>(),
            MessageKind::Sharding => size_of::<OpSharding>(),
            MessageKind::Literal => size_of::<LiteralProto>(),
            MessageKind::Leaf(size) => size,
        }
    }
}

/// About how many bytes a decoded message takes: its own, and those of nested messages that are large or may be many.
/// Vectors grow by doubling, so it may briefly be twice as much.
pub(super) fn decoded_bytes(bytes: &[u8], form: Form) -> u64 {
    let kind = match form {
        Form::Text | Form::StableHlo | Form::Bytecode | Form::Export | Form::Module => MessageKind::Module,
        Form::HloProto => MessageKind::HloProto,
        Form::ModuleWithConfig | Form::UnoptimizedSnapshot => MessageKind::Around(1, &MessageKind::Module),
        Form::Snapshot => MessageKind::Around(1, &MessageKind::HloProto),
    };
    let mut sum = 0u64;
    let mut stack = vec![(bytes, kind)];
    while let Some((bytes, kind)) = stack.pop() {
        // Strings and packed lists take no more than a few times their bytes.
        sum = sum.saturating_add(kind.size() as u64).saturating_add(bytes.len() as u64);
        if matches!(kind, MessageKind::Leaf(_)) {
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
