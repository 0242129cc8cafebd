//! The protobuf messages of XLA, made by `proto/generator` and checked in: no user of the crate runs a code
//! generator.
//!
//! Fields and their meaning are documented in the `.proto` files. Maps are `BTreeMap`, so that a message encodes to
//! the same bytes every time; large fields that few instructions carry are boxed.
//!
//! A program has millions of instructions, and an instruction has a hundred fields; any opcode uses few. The
//! rare ones are in [`HloInstructionDetails`], out of line. The encoded bytes are the same, and code uses these fields
//! as if they were the instruction's own, except in struct literals.

#![allow(missing_docs, clippy::all, clippy::pedantic)]

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};

include!("proto/generated.rs");

/// The rare fields of an instruction that has some.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details(Box<HloInstructionDetails>);

/// The methods that the generated code of a message calls on a oneof.
impl Details {
    /// Writes the fields with their own tags.
    pub fn encode(&self, buffer: &mut impl BufMut) {
        self.0.encode_raw(buffer);
    }

    /// Reads one field.
    pub fn merge(
        details: &mut Option<Details>,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        details.get_or_insert_default().0.merge_field(tag, wire_type, buffer, context)
    }

    /// Bytes that `encode` writes.
    pub fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }
}

impl Deref for HloInstructionProto {
    type Target = HloInstructionDetails;

    fn deref(&self) -> &HloInstructionDetails {
        static NONE: LazyLock<HloInstructionDetails> = LazyLock::new(HloInstructionDetails::default);
        match &self.details {
            Some(details) => &details.0,
            None => &NONE,
        }
    }
}

/// Allocates the rare fields if necessary; do not use it to set a field to its default.
impl DerefMut for HloInstructionProto {
    fn deref_mut(&mut self) -> &mut HloInstructionDetails {
        &mut self.details.get_or_insert_default().0
    }
}
