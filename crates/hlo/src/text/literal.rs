//! Constants: `5`, `{1, 2}`, `{ { 1, 2 }, { 3, 4 } }`.

use super::Printer;
use crate::proto::LiteralProto;
use crate::shape::{element_count, element_strides, is_tuple};
use crate::syntax::elements::{PrintElement, with_elements};

/// Rows printed of an array without elements; a malformed shape may claim any number of them.
const MAX_EMPTY_ROWS: u64 = 1 << 16;

/// Far above the rank of any real array; a malformed one must not exhaust the stack.
const MAX_RANK: usize = 64;

/// The place of each logical index in memory, and the state of the walk.
struct LogicalOrder<'a> {
    dimensions: &'a [i64],
    strides: Vec<usize>,
    element: &'a PrintElement<'a>,
    indices: Vec<i64>,
}

impl Printer<'_> {
    /// Appends the elements of a literal on one line, or `{...}` for a literal without such a form.
    pub(super) fn literal(&mut self, literal: &LiteralProto) {
        if literal.shape.as_ref().is_some_and(is_tuple) {
            self.tuple_literal(literal, Self::literal);
            return;
        }
        if self.try_literal(literal).is_none() {
            self.text("{...}");
        }
    }

    /// Like `literal`, preceded by the shape, or those of the elements of a tuple.
    pub(crate) fn literal_with_shape(&mut self, literal: &LiteralProto) {
        match &literal.shape {
            Some(shape) if is_tuple(shape) => self.tuple_literal(literal, Self::literal_with_shape),
            Some(shape) => {
                self.shape_with(shape, super::Layouts::All);
                self.text(" ");
                self.literal(literal);
            }
            None => self.text("{...}"),
        }
    }

    fn tuple_literal(&mut self, literal: &LiteralProto, element: fn(&mut Self, &LiteralProto)) {
        self.text("( ");
        self.separated(&literal.tuple_literals, ", ", element);
        self.text(" )");
    }

    fn try_literal(&mut self, literal: &LiteralProto) -> Option<()> {
        let shape = literal.shape.as_ref()?;
        if shape.dimensions.len() > MAX_RANK {
            return None;
        }
        let count = element_count(shape)?;
        if self.options.constant_limit.is_some_and(|limit| count > limit) {
            return None;
        }
        if count == 0 {
            let mut rows = shape.dimensions.iter().take_while(|&&size| size != 0);
            rows.try_fold(1u64, |product, &size| product.checked_mul(u64::try_from(size).ok()?))
                .filter(|&rows| rows <= MAX_EMPTY_ROWS)?;
        }
        with_elements(literal, shape, count, |element| {
            let indices = Vec::with_capacity(shape.dimensions.len());
            let mut walk =
                LogicalOrder { dimensions: &shape.dimensions, strides: element_strides(shape), element, indices };
            self.literal_level(&mut walk, 0);
        })
    }

    /// Prints the dimension at the depth that `walk.indices` has reached.
    fn literal_level(&mut self, walk: &mut LogicalOrder<'_>, position: usize) {
        let rank = walk.dimensions.len();
        let depth = walk.indices.len();
        let Some(&size) = walk.dimensions.get(depth) else {
            (walk.element)(self, position);
            return;
        };
        let innermost = depth + 1 == rank;
        let padded = innermost && rank > 1 && size > 1;
        self.text("{");
        if padded {
            self.text(" ");
        }
        if !innermost {
            if rank > 3 && depth > 0 {
                self.text(" /*i");
                self.number(depth as i64 - 1);
                self.text("=");
                self.number(walk.indices[depth - 1]);
                self.text("*/");
            }
            self.text(" ");
        }
        let stride = walk.strides[depth];
        self.separated(0..size, ", ", |printer, index| {
            walk.indices.push(index);
            // In range when there are elements; the position of an array without any is never used.
            printer.literal_level(walk, position.wrapping_add((index as usize).wrapping_mul(stride)));
            walk.indices.pop();
        });
        if padded || !innermost {
            self.text(" ");
        }
        self.text("}");
    }
}
