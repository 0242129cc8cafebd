//! How much memory a module takes while it is read, so that a text cannot ask for far more than it has.

use std::cell::Cell;

use super::error::{Result, fault};
use crate::message::human_bytes;
use crate::proto::{LayoutProto, ShapeProto};

/// The memory that has been taken, and how much may be.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    taken: Cell<usize>,
    allowed: usize,
}

impl Memory {
    /// The memory for a text of `length` bytes: `ratio` times its size, or `least` bytes if that is more.
    pub(crate) fn of(length: usize, ratio: usize, least: usize) -> Memory {
        Memory { taken: Cell::new(0), allowed: length.saturating_mul(ratio).max(least) }
    }

    /// Counts bytes that are about to be taken for the text at `position`.
    #[inline]
    pub(crate) fn take(&self, bytes: usize, position: usize) -> Result<()> {
        let taken = self.taken.get().saturating_add(bytes);
        self.taken.set(taken);
        if taken <= self.allowed { Ok(()) } else { self.exhausted(position) }
    }

    #[cold]
    fn exhausted(&self, position: usize) -> Result<()> {
        let allowed = human_bytes(self.allowed as u64);
        fault(
            position,
            format!(
                "the module takes more than {allowed} of memory, which is far more than its text has; \
                 `Limits::memory_bytes`, or --max-size of hlo-dump, raises the limit"
            ),
        )
    }

    /// Counts the bytes of a copy of a shape.
    pub(crate) fn take_shape(&self, shape: &ShapeProto, position: usize) -> Result<()> {
        self.take(shape_bytes(shape), position)
    }
}

/// The bytes of a shape without its elements: of an array with its layout, or of a tuple.
pub(crate) fn own_bytes(shape: &ShapeProto) -> usize {
    let layout = shape.layout.as_deref().map_or(0, |layout| size_of::<LayoutProto>() + 8 * layout.minor_to_major.len());
    size_of::<ShapeProto>() + 8 * shape.dimensions.len() + layout
}

fn shape_bytes(shape: &ShapeProto) -> usize {
    own_bytes(shape) + shape.tuple_shapes.iter().map(shape_bytes).sum::<usize>()
}
