//! The lists of visits, made on the host.

use super::Grouped;
use crate::KernelError;

/// Flag of the first visit of what the list is sorted by.
pub const FIRST: i32 = 1;
/// Flag of the last visit of what the list is sorted by.
pub const LAST: i32 = 2;
/// Flag of a visit in which there is something to compute.
pub const COMPUTE: i32 = 4;

/// A list of visits, as the kernels take it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// The number of visits that count.
    pub count: usize,
    /// The block of rows of each visit.
    pub row_block: Vec<i32>,
    /// The group of each visit.
    pub group: Vec<i32>,
    /// The first row of each visit's group.
    pub start: Vec<i32>,
    /// The row behind the last of each visit's group.
    pub end: Vec<i32>,
    /// The flags of each visit.
    pub flags: Vec<i32>,
}

impl Visits {
    fn push(&mut self, row_block: i32, group: usize, rows: &[i32], flags: i32) {
        self.count += 1;
        self.row_block.push(row_block);
        self.group.push(group as i32);
        self.start.push(rows[0]);
        self.end.push(rows[1]);
        self.flags.push(flags);
    }

    /// Fills the lists with zeros.
    fn pad(&mut self, length: usize) {
        for list in [&mut self.row_block, &mut self.group, &mut self.start, &mut self.end, &mut self.flags] {
            list.resize(length, 0);
        }
    }
}

impl Grouped {
    /// A length of lists that is enough for groups of any sizes.
    pub fn visit_count(&self) -> usize {
        // Each end of a group inside a block makes that block one more visit; rows of no group may stand at both ends.
        self.rows / self.blocks.rows.max(1) + self.groups + 1
    }

    /// The visits of [`Grouped::by_rows`], in lists of [`Grouped::visit_count`].
    ///
    /// Group `g` has the rows from `bounds[g]` to `bounds[g + 1]`.
    ///
    /// # Errors
    /// [`KernelError::Count`] and [`KernelError::Range`] if `bounds` are not those of groups of these rows.
    pub fn row_visits(&self, bounds: &[i32]) -> Result<Visits, KernelError> {
        self.check_bounds(bounds)?;
        let mut visits = Visits::default();
        for block in 0..self.block_count() {
            let first = visits.flags.len();
            for (group, range) in bounds.windows(2).enumerate() {
                if self.meets(block, range[0], range[1]) {
                    visits.push(block, group, range, COMPUTE);
                }
            }
            if visits.flags.len() == first {
                // The matrix that is at hand already.
                let group = visits.group.last().map_or(0, |&group| group as usize);
                visits.push(block, group, &[0, 0], 0);
            }
            let last = visits.flags.len() - 1;
            visits.flags[first] |= FIRST;
            visits.flags[last] |= LAST;
        }
        visits.pad(self.visit_count());
        Ok(visits)
    }

    /// The visits of [`Grouped::by_groups`], in lists of [`Grouped::visit_count`].
    ///
    /// # Errors
    /// As for [`Grouped::row_visits`].
    pub fn group_visits(&self, bounds: &[i32]) -> Result<Visits, KernelError> {
        self.check_bounds(bounds)?;
        let mut visits = Visits::default();
        for (group, range) in bounds.windows(2).enumerate() {
            let first = visits.flags.len();
            for block in (0..self.block_count()).filter(|&block| self.meets(block, range[0], range[1])) {
                visits.push(block, group, range, COMPUTE);
            }
            if visits.flags.len() == first {
                let block = visits.row_block.last().copied().unwrap_or(0);
                visits.push(block, group, range, 0);
            }
            let last = visits.flags.len() - 1;
            visits.flags[first] |= FIRST;
            visits.flags[last] |= LAST;
        }
        visits.pad(self.visit_count());
        Ok(visits)
    }

    fn block_count(&self) -> i32 {
        (self.rows / self.blocks.rows) as i32
    }

    /// Whether a range of rows has one of a block.
    fn meets(&self, block: i32, start: i32, end: i32) -> bool {
        let size = self.blocks.rows as i32;
        start < end && start < (block + 1) * size && end > block * size
    }

    fn check_bounds(&self, bounds: &[i32]) -> Result<(), KernelError> {
        self.check()?;
        if bounds.len() != self.groups + 1 {
            return Err(KernelError::Count { what: "bounds", actual: bounds.len(), expected: self.groups + 1 });
        }
        let ends = [bounds[0], self.rows as i32 - bounds[self.groups]];
        if ends.iter().any(|&end| end < 0) || bounds.windows(2).any(|pair| pair[0] > pair[1]) {
            let expected = "not falling, from 0 to the number of rows";
            return Err(KernelError::Range { what: "bounds", actual: format!("{bounds:?}"), expected });
        }
        Ok(())
    }
}
