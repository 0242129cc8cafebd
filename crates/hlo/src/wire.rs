//! The protobuf wire format: the fields of a message, without decoding them.

/// A field of a message.
pub(super) struct Field<'a> {
    /// Its number.
    pub(super) number: u64,
    /// All of it, with its number.
    pub(super) raw: &'a [u8],
    /// The bytes of a string, a message or a packed list; none for a number.
    pub(super) bytes: Option<&'a [u8]>,
}

/// The fields of a message; ends with `None` in place of a field where the bytes are no message.
pub(super) struct Fields<'a> {
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
        let key = self.varint()?;
        let number = key >> 3;
        let bytes = match key & 7 {
            0 => {
                self.varint()?;
                None
            }
            1 => {
                self.take(8)?;
                None
            }
            2 => {
                let length = self.varint()?;
                let there = if self.cut_off { self.rest.len() } else { usize::MAX };
                Some(self.take(usize::try_from(length).ok()?.min(there))?)
            }
            5 => {
                self.take(4)?;
                None
            }
            _ => return None,
        };
        let raw = &start[..start.len() - self.rest.len()];
        (number > 0).then_some(Field { number, raw, bytes })
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

/// The fields of a serialized message.
pub(super) fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes, cut_off: false }
}

/// The fields of a serialized message that may be cut off: the last field has what is left of it.
pub(super) fn fields_of_start(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes, cut_off: true }
}
