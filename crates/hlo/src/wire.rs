//! The protobuf wire format: the fields of a message, without decoding them.

use prost::encoding::{WireType, decode_key, decode_varint};

/// A field of a message.
pub struct Field<'a> {
    /// Its number.
    pub number: u64,
    /// All of it, with its number.
    pub raw: &'a [u8],
    /// The bytes of a string, a message or a packed list; none for a number.
    pub bytes: Option<&'a [u8]>,
}

/// The fields of a message; ends with `None` in place of a field where the bytes are no message.
pub struct Fields<'a> {
    rest: &'a [u8],
    /// Whether a field may end with the bytes rather than where it says.
    cut_off: bool,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let start = self.rest;
        let (number, wire_type) = decode_key(&mut self.rest).ok()?;
        let bytes = match wire_type {
            WireType::Varint => decode_varint(&mut self.rest).map(|_| None).ok()?,
            WireType::SixtyFourBit => self.take(8).map(|_| None)?,
            WireType::ThirtyTwoBit => self.take(4).map(|_| None)?,
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.rest).ok()?;
                let there = if self.cut_off { self.rest.len() } else { usize::MAX };
                Some(self.take(usize::try_from(length).ok()?.min(there))?)
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        Some(Field { number: number.into(), raw: &start[..start.len() - self.rest.len()], bytes })
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

/// Returns the fields of a serialized message.
pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes, cut_off: false }
}

/// The fields of a serialized message that may be cut off: the last field has the rest of its bytes.
pub fn fields_of_start(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes, cut_off: true }
}
