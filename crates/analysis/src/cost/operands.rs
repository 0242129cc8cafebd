//! The shapes that an instruction reads and makes.

use crate::chips::Arithmetic;
use crate::index::Computation;
use crate::size::{elements, product, shape_bytes};
use meshloom_hlo::proto::{HloInstructionProto, PrimitiveType, ShapeProto};

/// An instruction with what it reads.
pub(super) struct Operands<'c, 'a> {
    pub(super) computation: &'c Computation<'a>,
    pub(super) instruction: &'c HloInstructionProto,
}

impl Operands<'_, '_> {
    pub(super) fn count(&self) -> usize {
        self.instruction.operand_ids.len()
    }

    /// The shape of an operand.
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
        arithmetic(self.shape(0).map_or(0, |shape| shape.element_type))
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

/// The arithmetic that an op on elements of a type is done in.
pub(super) fn arithmetic(element_type: i32) -> Arithmetic {
    use PrimitiveType as P;
    match PrimitiveType::try_from(element_type) {
        Ok(P::F64 | P::C128) => Arithmetic::F64,
        Ok(P::F32 | P::C64) => Arithmetic::F32,
        Ok(P::F16 | P::Bf16) => Arithmetic::Bf16,
        Ok(P::S8 | P::U8 | P::S4 | P::U4 | P::S2 | P::U2 | P::S1 | P::U1) => Arithmetic::Int8,
        Ok(P::F8e5m2 | P::F8e4m3 | P::F8e4m3fn | P::F8e4m3b11fnuz | P::F8e3m4 | P::F8e5m2fnuz) => Arithmetic::Fp8,
        Ok(P::F8e4m3fnuz | P::F8e8m0fnu | P::F6e3m2fn | P::F6e2m3fn | P::F4e2m1fn) => Arithmetic::Fp8,
        _ => Arithmetic::Other,
    }
}
