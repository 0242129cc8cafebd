//! The forms in which reduce-scatters are emitted: those that libtpu keeps.
//!
//! libtpu makes an all-reduce, which sends twice the bytes, of a reduce-scatter whose form its hardware routines do not
//! take. Which ones it keeps is not documented; what was found by compiling is in docs/compiled-collectives.md.

use super::ReduceScatter;

impl ReduceScatter {
    /// The rows that each device gets of the matrix as which operands are scattered where their own form is not kept.
    pub const PACKED_ROWS: usize = 16;

    /// Large matrices have a multiple of so many columns.
    const COLUMNS: usize = 256;

    /// The columns of that matrix, where each device gets `part` elements of several operands together. `None` where
    /// the parts are single rows instead: small ones, which cost next to nothing sent twice. On v5p nothing is kept
    /// over a whole cube of 2 x 2 x 2 chips.
    pub fn packed_columns(part: usize) -> Option<usize> {
        const SMALL: usize = 8192;
        let columns = part.div_ceil(Self::PACKED_ROWS);
        let multiple = if columns < SMALL { 1 } else { Self::COLUMNS };
        (part >= SMALL).then(|| columns.next_multiple_of(multiple))
    }

    /// Elements that are exchanged for operands of so many elements in all: with padding, if there are several.
    pub fn exchanged_elements(&self, operand_count: usize, elements: usize) -> usize {
        match Self::packed_columns(elements / self.group.size).filter(|_| operand_count > 1) {
            Some(columns) => self.group.size * Self::PACKED_ROWS * columns,
            None => elements,
        }
    }
}
