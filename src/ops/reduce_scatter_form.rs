//! The forms in which reduce-scatters are emitted: those that libtpu keeps.
//!
//! If its hardware routines do not take the form of a reduce-scatter, libtpu makes an all-reduce of it, which sends
//! twice the bytes. The forms that it keeps are not documented. The forms that were found by compiling are in
//! docs/compiled-collectives.md. To the other back ends these forms are all alike, as their reshapes move nothing
//! there.

use super::ReduceScatter;

/// The shape of a value while it is scattered. The elements of each device's part stay in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReduceScatterForm {
    /// The dimensions before the scattered one are merged into one, and so are those after it; none has size 1. The
    /// rows of some large matrices are cut into rows of 256.
    Merged {
        /// The dimensions.
        dims: Vec<usize>,
        /// The dimension that is scattered.
        dim: usize,
    },
    /// The value is [`ReduceScatter::PACKED_ROWS`] rows for each device, each with so many elements; long rows are cut
    /// into rows of 256.
    Rows {
        /// The elements.
        columns: usize,
    },
}

impl ReduceScatter {
    /// The rows that each device gets of the packed matrix. Operands are scattered as this matrix where their own form
    /// is not kept.
    pub const PACKED_ROWS: usize = 16;

    /// Large matrices have a multiple of this number of columns.
    const COLUMNS: usize = 256;

    /// The longest rows of large matrices that are kept, or nearly: 32064 are, 64128 are not.
    const LONGEST: usize = 32768;

    /// The columns of the packed matrix, where each device gets `part` elements of several operands together. Returns
    /// `None` where the parts are single rows instead: small parts cost next to nothing when they are sent twice.
    pub fn packed_columns(part: usize) -> Option<usize> {
        const SMALL: usize = 8192;
        let columns = part.div_ceil(Self::PACKED_ROWS);
        let multiple = if columns < SMALL { 1 } else { Self::COLUMNS };
        (part >= SMALL).then(|| columns.next_multiple_of(multiple))
    }

    /// The number of elements that are exchanged for operands of `elements` elements in all: with padding, if there are
    /// several operands.
    pub fn exchanged_elements(&self, operand_count: usize, elements: usize) -> usize {
        match Self::packed_columns(elements / self.group.size).filter(|_| operand_count > 1) {
            Some(columns) => self.group.size * Self::PACKED_ROWS * columns,
            None => elements,
        }
    }

    /// The dimensions of [`ReduceScatterForm::Rows`].
    pub fn rows_of(&self, columns: usize) -> Vec<usize> {
        let rows = self.group.size * Self::PACKED_ROWS;
        match columns > Self::LONGEST && columns.is_multiple_of(Self::COLUMNS) {
            true => vec![rows, columns / Self::COLUMNS, Self::COLUMNS],
            false => vec![rows, columns],
        }
    }

    /// The form of a single operand of these dimensions; nothing is padded.
    pub fn form_of_one(&self, dims: &[usize]) -> ReduceScatterForm {
        /// From here on, many short rows are not kept.
        const LARGE: usize = 2 << 20;
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let [before, own, after] = [count(&dims[..self.dim]), dims[self.dim], count(&dims[self.dim + 1..])];
        let rows = own / self.group.size;
        let is_large = before * own * after > LARGE;
        let is_kept = match (before, after) {
            // No tile of 256 x 128 fits.
            (8.., 1) => !(is_large && !before.is_multiple_of(256) && !rows.is_multiple_of(128)),
            (1, 64..) if is_large => {
                if rows.is_multiple_of(16) && after > Self::LONGEST && after.is_multiple_of(Self::COLUMNS) {
                    return ReduceScatterForm::Merged { dims: vec![own, after / Self::COLUMNS, Self::COLUMNS], dim: 0 };
                }
                let is_long = after > 4096 && !after.is_power_of_two();
                rows.is_multiple_of(16) && (is_long || !rows.is_multiple_of(256))
            }
            (1, 64..) => rows.is_multiple_of(if after >= 256 { 16 } else { 32 }),
            (2.., 128..) => true,
            _ => false,
        };
        let part = before * rows * after;
        if !is_kept && part > 0 && part.is_multiple_of(Self::COLUMNS * Self::PACKED_ROWS) {
            return ReduceScatterForm::Rows { columns: part / Self::PACKED_ROWS };
        }
        let merged = |count: usize| (count != 1).then_some(count);
        let dims = merged(before).into_iter().chain([own]).chain(merged(after)).collect();
        ReduceScatterForm::Merged { dims, dim: usize::from(before != 1) }
    }
}
