//! Shapes and layouts: `f32[8,16]{1,0:T(8,128)S(1)}`.

use super::{Layouts, Printer};
use crate::proto::{LayoutProto, PrimitiveType, ShapeProto};
use crate::shape::{COMBINED_TILE, LEVELS, UNBOUNDED};
use crate::syntax::{List, emit};

/// The HLO name of an element type: "f32", "f8e4m3fn", "pred".
fn element_type_name(element_type: i32) -> &'static str {
    PrimitiveType::try_from(element_type).unwrap_or_default().hlo_name()
}

impl Printer<'_> {
    /// Appends a shape with the layouts that the options ask for.
    pub(super) fn shape(&mut self, shape: &ShapeProto) {
        self.shape_with(shape, self.options.layouts);
    }

    pub(crate) fn optional_shape(&mut self, shape: Option<&ShapeProto>, layouts: Layouts) {
        match shape {
            Some(shape) => self.shape_with(shape, layouts),
            None => self.text("invalid[]"),
        }
    }

    pub(crate) fn shape_with(&mut self, shape: &ShapeProto, layouts: Layouts) {
        match PrimitiveType::try_from(shape.element_type) {
            Ok(PrimitiveType::Tuple) => {
                self.text("(");
                for (index, element) in shape.tuple_shapes.iter().enumerate() {
                    self.separator(index);
                    self.shape_with(element, layouts);
                }
                self.text(")");
            }
            Ok(PrimitiveType::Buffer) => {
                self.text("b(");
                self.optional_shape(shape.tuple_shapes.first(), layouts);
                self.text(")");
            }
            _ => {
                self.text(element_type_name(shape.element_type));
                self.text("[");
                self.separated(shape.dimensions.iter().enumerate(), ",", |printer, (index, &size)| {
                    match shape.is_dynamic_dimension.get(index) {
                        Some(true) if size == UNBOUNDED => return printer.text("?"),
                        Some(true) => printer.text("<="),
                        _ => {}
                    }
                    printer.number(size);
                });
                self.text("]");
                if let Some(layout) = &shape.layout {
                    self.array_layout(layout, shape.dimensions.len(), layouts);
                }
            }
        }
    }

    fn array_layout(&mut self, layout: &LayoutProto, rank: usize, layouts: Layouts) {
        let print = match layouts {
            Layouts::All => true,
            Layouts::NonDefault => !is_default(layout, rank),
            Layouts::None => false,
        };
        let start = self.out.len();
        if print {
            self.layout(layout);
        }
        // A scalar says nothing about its layout unless there is something to say.
        if rank == 0 && &self.out[start..] == "{}" {
            self.out.truncate(start);
        }
    }

    fn layout(&mut self, layout: &LayoutProto) {
        self.text("{");
        emit!(self, &List(&layout.minor_to_major));
        let before = self.out.len();
        self.text(":");
        let empty = self.out.len();
        if !layout.dim_level_types.is_empty() && layout.dim_level_types.iter().any(|&level| level != 0) {
            self.text("D(");
            self.separated(layout.dim_level_types.iter().enumerate(), ",", |printer, (index, &level)| {
                let level = usize::try_from(level).ok().and_then(|level| LEVELS.get(level));
                printer.text(level.unwrap_or(&"?"));
                for (marks, mark) in [(&layout.dim_unique, "+"), (&layout.dim_ordered, "~")] {
                    printer.text(if marks.get(index) == Some(&false) { mark } else { "" });
                }
            });
            self.text(")");
        }
        if !layout.tiles.is_empty() {
            self.text("T");
            for tile in &layout.tiles {
                self.text("(");
                self.separated(&tile.dimensions, ",", |printer, &size| match size {
                    COMBINED_TILE => printer.text("*"),
                    size => printer.number(size),
                });
                self.text(")");
            }
        }
        // 0 is how an unset field reads, and means the neutral value 1.
        if !matches!(layout.tail_padding_alignment_in_elements, 0 | 1) {
            self.parenthesized("L", layout.tail_padding_alignment_in_elements);
        }
        if layout.index_primitive_type != 0 {
            self.text("#(");
            self.text(element_type_name(layout.index_primitive_type));
            self.text(")");
        }
        if layout.pointer_primitive_type != 0 {
            self.text("*(");
            self.text(element_type_name(layout.pointer_primitive_type));
            self.text(")");
        }
        if layout.element_size_in_bits != 0 {
            self.parenthesized("E", layout.element_size_in_bits);
        }
        if layout.memory_space != 0 {
            self.parenthesized("S", layout.memory_space);
        }
        if !layout.split_configs.is_empty() {
            self.text("SC");
            for split in &layout.split_configs {
                self.text("(");
                self.number(split.dimension);
                self.text(":");
                emit!(self, &List(&split.split_indices));
                self.text(")");
            }
        }
        if let Some(physical) = &layout.physical_shape {
            self.text("P(");
            self.shape_with(physical, Layouts::All);
            self.text(")");
        }
        if layout.dynamic_shape_metadata_prefix_bytes != 0 {
            self.parenthesized("M", layout.dynamic_shape_metadata_prefix_bytes);
        }
        if self.out.len() == empty {
            self.out.truncate(before);
        }
        self.text("}");
    }

    fn parenthesized(&mut self, name: &str, value: i64) {
        self.text(name);
        self.text("(");
        self.number(value);
        self.text(")");
    }
}

/// Whether the layout is the default, row-major and nothing else.
fn is_default(layout: &LayoutProto, rank: usize) -> bool {
    layout.minor_to_major.len() == rank
        && layout.minor_to_major.iter().rev().enumerate().all(|(index, &dim)| dim == index as i64)
        && layout.dim_level_types.iter().all(|&level| level == 0)
        && layout.tiles.is_empty()
        && matches!(layout.tail_padding_alignment_in_elements, 0 | 1)
        && layout.index_primitive_type == 0
        && layout.pointer_primitive_type == 0
        && layout.element_size_in_bits == 0
        && layout.memory_space == 0
        && layout.split_configs.is_empty()
        && layout.physical_shape.is_none()
        && layout.dynamic_shape_metadata_prefix_bytes == 0
}
