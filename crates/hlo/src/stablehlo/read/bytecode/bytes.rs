//! The bytes of a file and the position in them: the numbers and sections of MLIR's bytecode.

use crate::parse::{Result, fault};

/// A part of a file that is read from its start: positions are those of the whole file.
#[derive(Clone, Copy)]
pub(in crate::stablehlo) struct Bytes<'a> {
    file: &'a [u8],
    position: usize,
    end: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(file: &'a [u8]) -> Bytes<'a> {
        Bytes { file, position: 0, end: file.len() }
    }

    pub(super) fn here(&self) -> usize {
        self.position
    }

    /// The number of bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.end.saturating_sub(self.position)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.position >= self.end
    }

    pub(super) fn fault<T>(&self, message: impl Into<String>) -> Result<T> {
        fault(self.position, message)
    }

    /// The bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.file.get(self.position..self.end).unwrap_or(&[])
    }

    /// The next bytes as a part of their own.
    pub(super) fn part(&mut self, length: u64) -> Result<Bytes<'a>> {
        match usize::try_from(length).ok().filter(|&length| length <= self.left()) {
            Some(length) => {
                let start = self.position;
                self.position += length;
                Ok(Bytes { file: self.file, position: start, end: self.position })
            }
            None => self.fault(format!("expected {length} bytes, found {}; is the file complete?", self.left())),
        }
    }

    pub(super) fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        Ok(self.part(length)?.rest())
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        match self.rest() {
            [byte, ..] => {
                self.position += 1;
                Ok(*byte)
            }
            [] => self.fault("the file ends within an item; is it complete?"),
        }
    }

    /// A number of 1 to 9 bytes. The zeros at the low end of the first byte say how many follow.
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64> {
        let first = self.byte()?;
        if first & 1 == 1 {
            return Ok(u64::from(first >> 1));
        }
        let more = first.trailing_zeros() as usize;
        let mut low = [0; 8];
        low[..more].copy_from_slice(self.take(more as u64)?);
        let rest = u64::from_le_bytes(low);
        // The first byte has what the zeros and the 1 after them leave of it.
        Ok(if more >= 7 { rest } else { rest << (7 - more) | u64::from(first >> (more + 1)) })
    }

    /// How many numbers are left.
    pub(super) fn numbers(mut self) -> usize {
        let mut count = 0;
        while self.number().is_ok() {
            count += 1;
        }
        count
    }

    /// A number that says a place in a table or a count.
    pub(super) fn index(&mut self) -> Result<u32> {
        let number = self.number()?;
        u32::try_from(number).or_else(|_| self.fault(format!("expected the place of an item, found {number}")))
    }

    /// A count of items that take at least one byte each.
    pub(super) fn count(&mut self) -> Result<usize> {
        let number = self.number()?;
        match usize::try_from(number).ok().filter(|&count| count <= self.left()) {
            Some(count) => Ok(count),
            None => self.fault(format!("expected a count, found {number}, more than the bytes that are left")),
        }
    }

    /// A number whose lowest bit is a flag.
    pub(super) fn flagged(&mut self) -> Result<(u64, bool)> {
        let number = self.number()?;
        Ok((number >> 1, number & 1 == 1))
    }

    /// A number whose lowest bit is its sign.
    pub(super) fn signed(&mut self) -> Result<i64> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// A list; a writer may leave out its zeros, and then each number has its place.
    pub(super) fn sparse(&mut self) -> Result<Vec<i64>> {
        let (count, is_sparse) = self.flagged()?;
        if count > self.left() as u64 {
            return self.fault(format!("expected a list, found {count} items, more than the bytes that are left"));
        }
        if !is_sparse {
            return (0..count).map(|_| self.number().map(|number| number as i64)).collect();
        }
        /// An op has no more segments than operands, and MLIR writes only short lists sparsely.
        const MOST: usize = 256;
        let width = if count > 0 { self.number()?.min(63) } else { 0 };
        let mut values = Vec::new();
        for _ in 0..count {
            let word = self.number()?;
            let place = (word & ((1 << width) - 1)) as usize;
            if place > MOST {
                return self.fault(format!("expected one of the first {MOST} segments, found number {place}"));
            }
            values.resize(values.len().max(place + 1), 0);
            values[place] = (word >> width) as i64;
        }
        Ok(values)
    }

    /// A list of signed numbers.
    pub(super) fn signed_list(&mut self) -> Result<Vec<i64>> {
        let count = self.count()?;
        (0..count).map(|_| self.signed()).collect()
    }

    /// Text that ends with a zero, without it.
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let Some(length) = self.rest().iter().position(|&byte| byte == 0) else {
            return self.fault("a text has no end; is the file complete?");
        };
        let start = self.position;
        let text = self.take(length as u64)?;
        self.byte()?;
        std::str::from_utf8(text).or_else(|_| fault(start, "expected text in UTF-8"))
    }

    /// Passes the bytes that fill up to a multiple of a power of two.
    pub(super) fn align(&mut self, alignment: u64) -> Result<()> {
        const FILL: u8 = 0xcb;
        if !alignment.is_power_of_two() {
            return self.fault(format!("expected a power of two as alignment, found {alignment}"));
        }
        while !(self.position as u64).is_multiple_of(alignment) && self.rest().first() == Some(&FILL) {
            self.position += 1;
        }
        Ok(())
    }

    /// A section: its number and its content.
    pub(super) fn section(&mut self) -> Result<(u8, Bytes<'a>)> {
        let kind = self.byte()?;
        let length = self.number()?;
        if kind & 0x80 != 0 {
            let alignment = self.number()?;
            self.align(alignment)?;
        }
        Ok((kind & 0x7f, self.part(length)?))
    }
}
