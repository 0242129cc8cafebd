//! Shapes and layouts: `f32[8,16]{1,0:T(8,128)S(1)}`, `(s32[], f32[<=8])`, `b(f32[4])`, `token[]`.

use smallvec::SmallVec;

use super::Parser;
use super::error::{Result, fault};
use super::memory::own_bytes;
use crate::proto::{LayoutProto, PrimitiveType, ProgramShapeProto, ShapeProto, SplitConfigProto, TileProto};
use crate::shape::{COMBINED_TILE, LEVELS, UNBOUNDED, is_tuple};
use crate::suggest::did_you_mean;

/// Far above the rank of any real array.
pub(super) const MAX_RANK: usize = 64;

/// A text has hundreds of shapes and names them millions of times. The shapes that are kept take little memory.
const MAX_KNOWN_SHAPES: usize = 1 << 12;

const ELEMENT_TYPES: &[&str] = &[
    "pred", "s4", "s8", "s16", "s32", "s64", "u4", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "c64",
    "c128", "token",
];

/// A layout with these dimensions and nothing else.
fn plain_layout(minor_to_major: Vec<i64>) -> LayoutProto {
    LayoutProto { minor_to_major, tail_padding_alignment_in_elements: 1, ..Default::default() }
}

/// The layout of a shape that states none: row-major for an array, scalars included, since compilers ask every array
/// for its layout; `None` for a token or an opaque value, which is not an array.
fn row_major(element_type: PrimitiveType, rank: usize) -> Option<Box<LayoutProto>> {
    let is_array = !matches!(element_type, PrimitiveType::Token | PrimitiveType::OpaqueType);
    is_array.then(|| Box::new(plain_layout((0..rank as i64).rev().collect())))
}

/// An array with the row-major layout.
pub(crate) fn array(element_type: PrimitiveType, dimensions: Vec<i64>) -> ShapeProto {
    let layout = row_major(element_type, dimensions.len());
    ShapeProto { element_type: element_type.into(), dimensions, layout, ..Default::default() }
}

/// Whether `order` has each of the first `count` numbers once.
fn is_order(order: &[i64], count: usize) -> bool {
    let has = |dimension: usize| order.contains(&(dimension as i64));
    // A rank is small, but a text may say otherwise.
    order.len() == count
        && (count <= MAX_RANK && (0..count).all(has) || order.iter().rev().copied().eq(0..count as i64))
}

pub(crate) fn tuple(tuple_shapes: Vec<ShapeProto>) -> ShapeProto {
    ShapeProto { element_type: PrimitiveType::Tuple.into(), tuple_shapes, ..Default::default() }
}

/// The shape of a value of an instruction with a shape: it has the order of the elements, and not what concerns the
/// place in a device's memory.
pub(super) fn literal_shape(shape: &ShapeProto) -> ShapeProto {
    let order = || shape.layout.as_ref().map(|layout| layout.minor_to_major.clone()).unwrap_or_default();
    ShapeProto {
        element_type: shape.element_type,
        dimensions: shape.dimensions.clone(),
        is_dynamic_dimension: shape.is_dynamic_dimension.clone(),
        tuple_shapes: shape.tuple_shapes.iter().map(literal_shape).collect(),
        layout: (!is_tuple(shape)).then(|| Box::new(plain_layout(order()))),
    }
}

/// A copy. Most lists of a shape are empty, and a clone of such a list costs half of an allocation.
pub(super) fn copy(shape: &ShapeProto) -> ShapeProto {
    ShapeProto {
        element_type: shape.element_type,
        dimensions: copy_of(&shape.dimensions),
        is_dynamic_dimension: copy_of(&shape.is_dynamic_dimension),
        tuple_shapes: shape.tuple_shapes.iter().map(copy).collect(),
        layout: shape.layout.as_deref().map(|layout| Box::new(copy_layout(layout))),
    }
}

fn copy_layout(layout: &LayoutProto) -> LayoutProto {
    LayoutProto {
        minor_to_major: copy_of(&layout.minor_to_major),
        dim_level_types: copy_of(&layout.dim_level_types),
        dim_unique: copy_of(&layout.dim_unique),
        dim_ordered: copy_of(&layout.dim_ordered),
        tiles: copy_of(&layout.tiles),
        tail_padding_alignment_in_elements: layout.tail_padding_alignment_in_elements,
        element_size_in_bits: layout.element_size_in_bits,
        memory_space: layout.memory_space,
        index_primitive_type: layout.index_primitive_type,
        pointer_primitive_type: layout.pointer_primitive_type,
        physical_shape: layout.physical_shape.clone(),
        dynamic_shape_metadata_prefix_bytes: layout.dynamic_shape_metadata_prefix_bytes,
        split_configs: copy_of(&layout.split_configs),
    }
}

#[inline]
fn copy_of<T: Clone>(items: &[T]) -> Vec<T> {
    if items.is_empty() { Vec::new() } else { items.to_vec() }
}

/// Gives `shape` the layouts of another where it has none.
pub(super) fn add_layouts(shape: &mut ShapeProto, other: &ShapeProto) {
    shape.layout = shape.layout.take().or_else(|| other.layout.clone());
    shape.tuple_shapes.iter_mut().zip(&other.tuple_shapes).for_each(|(shape, other)| add_layouts(shape, other));
}

/// Whether both have the same structure, element types and sizes; layouts may differ.
pub(crate) fn is_compatible(one: &ShapeProto, other: &ShapeProto) -> bool {
    one.element_type == other.element_type
        && one.dimensions == other.dimensions
        && one.tuple_shapes.len() == other.tuple_shapes.len()
        && one.tuple_shapes.iter().zip(&other.tuple_shapes).all(|(one, other)| is_compatible(one, other))
}

impl Parser<'_> {
    /// Whether a shape can start here: with a parenthesis, or with an element type and a bracket.
    pub(super) fn is_shape_next(&mut self) -> bool {
        if self.lexer.peek() == Some(b'(') {
            return true;
        }
        let mut ahead = self.lexer.clone();
        match ahead.word() {
            Some("b") => ahead.peek() == Some(b'('),
            Some(word) => ahead.peek() == Some(b'[') && PrimitiveType::from_hlo_name(word).is_some(),
            None => false,
        }
    }

    /// A shape. Arrays without a layout get the row-major one, as in XLA.
    pub(crate) fn shape(&mut self) -> Result<ShapeProto> {
        if self.lexer.peek() == Some(b'(') {
            return self.nested(Self::tuple_shape);
        }
        let text = self.lexer.peek_array_shape();
        let start = self.lexer.here();
        if let Some(shape) = self.known_shape(text) {
            self.memory.take(own_bytes(&shape), start)?;
            return Ok(shape);
        }
        let shape = self.new_shape()?;
        self.memory.take(own_bytes(&shape), start)?;
        if self.lexer.since(start) == text && self.known_shapes.len() < MAX_KNOWN_SHAPES {
            self.known_shapes.insert(text, copy(&shape));
        }
        Ok(shape)
    }

    /// The array shape of the text here, and passes it, if it was read before.
    fn known_shape(&mut self, text: &str) -> Option<ShapeProto> {
        let shape = copy(self.known_shapes.get(text)?);
        let before = self.lexer.clone();
        self.lexer.pass(text);
        // A layout may also follow after white space.
        if !text.ends_with('}') && self.is_layout_next() {
            self.lexer = before;
            return None;
        }
        Some(shape)
    }

    /// A shape that is not a tuple and was not read before.
    fn new_shape(&mut self) -> Result<ShapeProto> {
        let start = self.lexer.here();
        let name = self.lexer.expect_word("a shape, like f32[8,128]")?;
        if name == "b" && self.lexer.eat(b'(') {
            return self.nested(Self::buffer_shape);
        }
        let Some(element_type) = PrimitiveType::from_hlo_name(name) else {
            let near = did_you_mean(name, ELEMENT_TYPES.iter().copied());
            return fault(start, format!("unknown element type \"{name}\"{near}"));
        };
        let mut shape = ShapeProto { element_type: element_type.into(), ..Default::default() };
        self.dimensions(&mut shape)?;
        if self.is_layout_next() {
            let start = self.lexer.here();
            let layout = self.layout()?;
            let rank = shape.dimensions.len();
            if !is_order(&layout.minor_to_major, rank) {
                return fault(start, format!("the layout is not an order of the {rank} dimensions of the shape"));
            }
            shape.layout = Some(Box::new(layout));
        } else {
            shape.layout = row_major(element_type, shape.dimensions.len());
        }
        Ok(shape)
    }

    fn tuple_shape(&mut self) -> Result<ShapeProto> {
        let mut shapes = SmallVec::<[ShapeProto; 4]>::new();
        self.list(b'(', b')', |parser| {
            shapes.push(parser.shape()?);
            Ok(())
        })?;
        Ok(tuple(shapes.into_vec()))
    }

    fn buffer_shape(&mut self) -> Result<ShapeProto> {
        let element = self.shape()?;
        self.lexer.expect(b')', "after the shape of a buffer")?;
        Ok(ShapeProto { element_type: PrimitiveType::Buffer.into(), tuple_shapes: vec![element], ..Default::default() })
    }

    /// `[8,<=16,?]`.
    fn dimensions(&mut self, shape: &mut ShapeProto) -> Result<()> {
        let mut sizes = SmallVec::<[i64; 8]>::new();
        let mut dynamic = SmallVec::<[bool; 8]>::new();
        self.list(b'[', b']', |parser| {
            if parser.lexer.eat(b'?') {
                sizes.push(UNBOUNDED);
                dynamic.push(true);
                return Ok(());
            }
            dynamic.push(parser.lexer.eat_symbol("<="));
            let start = parser.lexer.here();
            let size = parser.lexer.integer()?;
            if size < 0 {
                return fault(start, format!("a dimension cannot have size {size}"));
            }
            sizes.push(size);
            Ok(())
        })?;
        shape.dimensions = sizes.to_vec();
        if dynamic.contains(&true) {
            shape.is_dynamic_dimension = dynamic.to_vec();
        }
        Ok(())
    }

    /// Whether a brace opens a layout here, rather than the body of a computation: a number or a colon follows in a
    /// layout.
    fn is_layout_next(&mut self) -> bool {
        let adjacent = self.lexer.peek_adjacent() == Some(b'{');
        if self.lexer.peek() != Some(b'{') {
            return false;
        }
        match self.lexer.peek_second() {
            Some(b'0'..=b'9' | b':') => true,
            Some(b'}') => adjacent,
            _ => false,
        }
    }

    fn layout(&mut self) -> Result<LayoutProto> {
        self.lexer.expect(b'{', "to start a layout")?;
        let mut order = SmallVec::<[i64; 8]>::new();
        while matches!(self.lexer.peek(), Some(b'0'..=b'9')) {
            order.push(self.lexer.integer()?);
            if !self.lexer.eat(b',') {
                break;
            }
        }
        let mut layout = plain_layout(order.to_vec());
        if self.lexer.eat(b':') {
            while self.lexer.peek() != Some(b'}') {
                self.layout_part(&mut layout)?;
            }
        }
        self.lexer.expect(b'}', "at the end of a layout")?;
        Ok(layout)
    }

    /// One of the parts after a layout's colon: tiles, memory space and so on.
    fn layout_part(&mut self, layout: &mut LayoutProto) -> Result<()> {
        match self.lexer.peek() {
            Some(b'#') => {
                self.lexer.eat(b'#');
                layout.index_primitive_type = self.layout_type()?;
                return Ok(());
            }
            Some(b'*') => {
                self.lexer.eat(b'*');
                layout.pointer_primitive_type = self.layout_type()?;
                return Ok(());
            }
            _ => {}
        }
        let start = self.lexer.here();
        match self.lexer.expect_word("a part of a layout, like T(8,128) or S(1), or '}'")? {
            "D" => self.dimension_levels(layout),
            "T" => self.tiles(layout),
            "L" => self.layout_integer(&mut layout.tail_padding_alignment_in_elements),
            "E" => self.layout_integer(&mut layout.element_size_in_bits),
            "S" => self.layout_integer(&mut layout.memory_space),
            "M" => self.layout_integer(&mut layout.dynamic_shape_metadata_prefix_bytes),
            "SC" => self.splits(layout),
            "P" => {
                self.lexer.expect(b'(', "before the physical shape of a layout")?;
                layout.physical_shape = Some(Box::new(self.nested(Self::shape)?));
                self.lexer.expect(b')', "after the physical shape of a layout")
            }
            other => fault(start, format!("a layout has no part \"{other}\"; it has D, T, L, #, *, E, S, SC, P and M")),
        }
    }

    fn layout_integer(&mut self, value: &mut i64) -> Result<()> {
        self.lexer.expect(b'(', "in a layout")?;
        *value = self.lexer.integer()?;
        self.lexer.expect(b')', "in a layout")
    }

    fn layout_type(&mut self) -> Result<i32> {
        self.lexer.expect(b'(', "in a layout")?;
        let start = self.lexer.here();
        let name = self.lexer.expect_word("an element type")?;
        let Some(element_type) = PrimitiveType::from_hlo_name(name) else {
            return fault(start, format!("unknown element type \"{name}\""));
        };
        self.lexer.expect(b')', "in a layout")?;
        Ok(element_type.into())
    }

    /// `(D,C+~)`: the kind of each level, then marks for those not unique and not ordered.
    fn dimension_levels(&mut self, layout: &mut LayoutProto) -> Result<()> {
        let mut unique = Vec::new();
        let mut ordered = Vec::new();
        self.list(b'(', b')', |parser| {
            let start = parser.lexer.here();
            let word = parser.lexer.expect_word("a kind of level: D, C, S or H")?;
            let Some(level) = LEVELS.iter().position(|level| *level == word) else {
                return fault(start, format!("expected a kind of level, D, C, S or H, found \"{word}\""));
            };
            layout.dim_level_types.push(level as i32);
            unique.push(!parser.lexer.eat(b'+'));
            ordered.push(!parser.lexer.eat(b'~'));
            Ok(())
        })?;
        if unique.contains(&false) {
            layout.dim_unique = unique;
        }
        if ordered.contains(&false) {
            layout.dim_ordered = ordered;
        }
        Ok(())
    }

    /// `(8,128)(2,1)`, with `*` for a dimension merged with the next.
    fn tiles(&mut self, layout: &mut LayoutProto) -> Result<()> {
        loop {
            let mut dimensions = SmallVec::<[i64; 8]>::new();
            self.list(b'(', b')', |parser| {
                dimensions.push(if parser.lexer.eat(b'*') { COMBINED_TILE } else { parser.lexer.integer()? });
                Ok(())
            })?;
            layout.tiles.push(TileProto { dimensions: dimensions.to_vec() });
            if self.lexer.peek() != Some(b'(') {
                return Ok(());
            }
        }
    }

    /// `(0:4,8)(1:2)`.
    fn splits(&mut self, layout: &mut LayoutProto) -> Result<()> {
        loop {
            self.lexer.expect(b'(', "before the splits of a dimension")?;
            let dimension = self.lexer.integer()?;
            let split_indices = self.items(b':', b')')?;
            layout.split_configs.push(SplitConfigProto { dimension, split_indices });
            if self.lexer.peek() != Some(b'(') {
                return Ok(());
            }
        }
    }

    /// `(f32[4]{0}, s32[])->f32[4]{0}`.
    pub(super) fn program_shape(&mut self) -> Result<ProgramShapeProto> {
        let mut parameters = Vec::new();
        self.list(b'(', b')', |parser| {
            parameters.push(parser.shape()?);
            Ok(())
        })?;
        if !self.lexer.eat_symbol("->") {
            return self.lexer.unexpected("\"->\" before the shape of the result");
        }
        Ok(ProgramShapeProto { parameters, result: Some(self.shape()?), parameter_names: Vec::new() })
    }
}
