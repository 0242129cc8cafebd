//! The shapes that an instruction reads and makes.

use crate::chips::Arithmetic;
use crate::index::Computation;
use crate::size::{elements, product, shape_bytes};
use meshloom_hlo::proto::{HloInstructionProto, ShapeProto};

/// An instruction in its computation, which can be asked for the sizes and types of its operands and results.
pub(super) struct Operands<'c, 'a> {
    pub(super) computation: &'c Computation<'a>,
    pub(super) instruction: &'c HloInstructionProto,
}

impl Operands<'_, '_> {
    pub(super) fn count(&self) -> usize {
        self.instruction.operand_ids.len()
    }

    pub(super) fn shape(&self, position: usize) -> Option<&ShapeProto> {
        self.computation.operand(self.instruction, position)?.shape.as_ref()
    }

    /// Returns the number of elements of an operand; for a tuple, of all its parts.
    pub(super) fn elements(&self, position: usize) -> u64 {
        self.shape(position).map_or(0, elements)
    }

    pub(super) fn bytes(&self, position: usize) -> u64 {
        self.shape(position).and_then(shape_bytes).unwrap_or(0)
    }

    pub(super) fn all_bytes(&self) -> u64 {
        (0..self.count()).map(|position| self.bytes(position)).fold(0, u64::saturating_add)
    }

    pub(super) fn last_size(&self, position: usize) -> u64 {
        let size = self.shape(position).and_then(|shape| shape.dimensions.last());
        size.map_or(0, |&size| u64::try_from(size).unwrap_or(0))
    }

    pub(super) fn result_elements(&self) -> u64 {
        elements_of(self.instruction)
    }

    pub(super) fn result_bytes(&self) -> u64 {
        bytes_of(self.instruction)
    }

    /// The result, or the first of several.
    pub(super) fn first_result(&self) -> Option<&ShapeProto> {
        let shape = self.instruction.shape.as_ref()?;
        Some(shape.tuple_shapes.first().unwrap_or(shape))
    }

    pub(super) fn first_result_elements(&self) -> u64 {
        self.first_result().map_or(0, elements)
    }

    pub(super) fn result_type(&self) -> i32 {
        self.first_result().map_or(0, |shape| shape.element_type)
    }

    /// Returns the arithmetic of products of the first operand.
    pub(super) fn arithmetic(&self) -> Arithmetic {
        Arithmetic::of_elements(self.shape(0).map_or(0, |shape| shape.element_type))
    }

    pub(super) fn window_elements(&self) -> u64 {
        let window = self.instruction.window.iter().flat_map(|window| &window.dimensions);
        product(window.map(|dimension| dimension.size))
    }
}

pub(super) fn bytes_of(instruction: &HloInstructionProto) -> u64 {
    instruction.shape.as_ref().and_then(shape_bytes).unwrap_or(0)
}

pub(super) fn elements_of(instruction: &HloInstructionProto) -> u64 {
    instruction.shape.as_ref().map_or(0, elements)
}
