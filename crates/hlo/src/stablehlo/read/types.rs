//! Types: `tensor<8x16xf32>`, `tuple<tensor<f32>, !stablehlo.token>`, `(tensor<f32>) -> tensor<f32>`.

use std::rc::Rc;

use smallvec::{SmallVec, smallvec};

use super::super::names;
use super::parser::Parser;
use crate::parse::{Result, array, fault, own_bytes, tuple};
use crate::proto::{PrimitiveType, ShapeProto};
use crate::suggest::did_you_mean;

/// A type, which all values that have it share: a program has few types and many values.
pub(in crate::stablehlo) type SharedShape = Rc<ShapeProto>;

pub(super) type ShapeList = SmallVec<[SharedShape; 2]>;

/// The types after the colon of an op.
#[derive(Debug, Default)]
pub(super) struct Types {
    /// The types before an arrow, or all of them where there is none.
    pub(super) inputs: ShapeList,
    /// The types after the arrow.
    pub(super) results: Option<ShapeList>,
}

/// The shapes of types, each for itself.
pub(super) fn owned(shapes: &[SharedShape]) -> Vec<ShapeProto> {
    shapes.iter().map(|shape| ShapeProto::clone(shape)).collect()
}

/// The beginning of a type of a tensor.
const TENSOR: &str = "tensor<";

/// The number of types that a type consists of, itself included.
fn parts(shape: &ShapeProto) -> usize {
    1 + shape.dimensions.len() + shape.tuple_shapes.iter().map(parts).sum::<usize>()
}

impl<'a> Parser<'a> {
    /// `t, t`, or `(t, t) -> t`, or `t, t -> (t, t)`.
    pub(super) fn types(&mut self) -> Result<Types> {
        let inputs = match self.lexer.peek() {
            Some(b'(') => self.type_list()?,
            _ => {
                let mut inputs: ShapeList = smallvec![self.any_type()?];
                while self.lexer.eat(",") {
                    inputs.push(self.any_type()?);
                }
                inputs
            }
        };
        let results = match self.lexer.eat("->") {
            true => Some(self.result_types()?),
            false => None,
        };
        Ok(Types { inputs, results })
    }

    /// `t` or `(t, t)`.
    fn result_types(&mut self) -> Result<ShapeList> {
        match self.lexer.peek() {
            Some(b'(') => self.type_list(),
            _ => Ok(smallvec![self.any_type()?]),
        }
    }

    fn type_list(&mut self) -> Result<ShapeList> {
        let mut types = ShapeList::new();
        self.each('(', ')', ["before types", "in a list of types"], |parser| {
            types.push(parser.any_type()?);
            Ok(())
        })?;
        Ok(types)
    }

    /// The types in angle brackets, as a tuple.
    fn tuple_of(&mut self, places: [&str; 2]) -> Result<ShapeProto> {
        self.list('<', '>', places, Self::any_type).map(|types| tuple(owned(&types)))
    }

    /// A type of a value; one that is only an attribute's, such as `i64`, is that of a scalar.
    pub(super) fn any_type(&mut self) -> Result<SharedShape> {
        let start = self.lexer.here();
        if let Some(shape) = self.known_type() {
            return Ok(shape);
        }
        let shape = Rc::new(self.uncounted_type(start)?);
        self.memory.take(own_bytes(&shape), start)?;
        let text = self.lexer.slice(self.lexer.since(start));
        if text.starts_with(TENSOR) && self.lexer.until_bracket(start) == Some(text) {
            self.known_types.insert(text, Rc::clone(&shape));
        }
        Ok(shape)
    }

    /// The type of a constant.
    pub(super) fn tensor_type(&mut self) -> Result<SharedShape> {
        match self.known_type() {
            Some(shape) => Ok(shape),
            None => self.array_type().map(Rc::new),
        }
    }

    /// Passes a type of a tensor that was read before. Only one that has no brackets within its own is known.
    fn known_type(&mut self) -> Option<SharedShape> {
        if !self.lexer.starts_with(TENSOR) {
            return None;
        }
        let start = self.lexer.here();
        let text = self.lexer.until_bracket(start)?;
        let shape = self.known_types.get(text)?;
        self.lexer.pass(text);
        Some(Rc::clone(shape))
    }

    fn uncounted_type(&mut self, start: usize) -> Result<ShapeProto> {
        match self.lexer.peek() {
            Some(b'!') => self.dialect_type(),
            _ => match self.lexer.peek_word() {
                Some("tensor") => self.array_type(),
                Some("tuple") => self.nested(Self::tuple_type),
                Some("complex") => self.element().map(|element| array(element, Vec::new())),
                Some("index" | "none") => {
                    self.lexer.word();
                    Ok(array(PrimitiveType::S64, Vec::new()))
                }
                Some(name @ ("memref" | "vector")) => fault(
                    start,
                    format!("a {name} is no type of StableHLO; give the module before it is lowered further"),
                ),
                Some(_) => self.element().map(|element| array(element, Vec::new())),
                None => self.lexer.unexpected("a type, like tensor<8x16xf32>"),
            },
        }
    }

    fn dialect_type(&mut self) -> Result<ShapeProto> {
        let start = self.lexer.here();
        let name = self.lexer.name(b'!', "a type, like !stablehlo.token")?;
        match name {
            "stablehlo.token" | "mhlo.token" => {
                Ok(ShapeProto { element_type: PrimitiveType::Token.into(), ..Default::default() })
            }
            // The type of an asynchronous op's result; a tuple stands for several values.
            "stablehlo.future" => self.nested(|parser| {
                let mut values = parser.tuple_of(["after \"future\"", "in a future"])?;
                Ok(if values.tuple_shapes.len() == 1 { values.tuple_shapes.remove(0) } else { values })
            }),
            "mhlo.async_bundle" => self.nested(|parser| parser.tuple_of(["after \"async_bundle\"", "in a bundle"])),
            _ if name.starts_with("quant") => {
                fault(start, "a quantized type, !quant.uniform, has no HLO; lower the model without quantization")
            }
            _ => match self.type_aliases.get(name).cloned() {
                Some(shape) => {
                    self.copy(parts(&shape), start)?;
                    self.memory.take_shape(&shape, start)?;
                    Ok(ShapeProto::clone(&shape))
                }
                None => fault(start, format!("unknown type !{name}")),
            },
        }
    }

    fn tuple_type(&mut self) -> Result<ShapeProto> {
        self.lexer.eat_word("tuple");
        self.tuple_of(["after \"tuple\"", "in a tuple type"])
    }

    /// `tensor<8x16xf32>`.
    fn array_type(&mut self) -> Result<ShapeProto> {
        let start = self.lexer.here();
        if self.lexer.peek() == Some(b'!') {
            return self.dialect_type();
        }
        // A list of numbers may be a vector; a value is none.
        if !self.lexer.eat_word("tensor") && !self.lexer.eat_word("vector") {
            return self.lexer.unexpected("a type of a tensor, like tensor<8x16xf32>");
        }
        self.lexer.expect("<", "after \"tensor\"")?;
        let mut sizes = Vec::new();
        loop {
            let size = match self.lexer.eat("?") {
                true => None,
                false => match self.lexer.size() {
                    Some(size) => Some(size),
                    None => break,
                },
            };
            if !self.lexer.eat_adjacent(b'x') {
                return self.lexer.unexpected("'x' after the size of a dimension");
            }
            sizes.push(size);
        }
        if self.lexer.peek() == Some(b'*') {
            return unbounded(start);
        }
        let element = self.element()?;
        let bounds = if self.lexer.eat(",") { self.bounds(start)? } else { Vec::new() };
        self.lexer.expect(">", "after the type of a tensor")?;
        let bounded = |(at, size): (usize, &Option<i64>)| size.or_else(|| *bounds.get(at)?);
        match sizes.iter().enumerate().map(bounded).collect() {
            Some(all) => {
                let mut shape = array(element, all);
                if sizes.contains(&None) {
                    shape.is_dynamic_dimension = sizes.iter().map(Option::is_none).collect();
                }
                Ok(shape)
            }
            None => unbounded(start),
        }
    }

    /// `#stablehlo.bounds<4, ?>`, or `#mhlo.type_extensions<bounds = [4, ?]>`: the largest sizes of dimensions.
    fn bounds(&mut self, start: usize) -> Result<Vec<Option<i64>>> {
        // A layout, which has no part in what a type holds.
        if self.lexer.peek_word() == Some("dense") {
            return self.attribute().map(|_| Vec::new());
        }
        let name = match self.lexer.peek() {
            Some(b'#') => self.lexer.name(b'#', "an encoding")?,
            _ => "",
        };
        if !name.ends_with(".bounds") && !name.ends_with(".type_extensions") {
            return fault(
                start,
                "a tensor with an encoding (a sparse or device-specific one) is not read; give the module before it is \
                 lowered further",
            );
        }
        let body = self.lexer.balanced()?;
        let mut lexer = self.lexer.part(body);
        if lexer.eat_word("bounds") {
            lexer.expect("=", "after \"bounds\"")?;
            lexer.expect("[", "before bounds")?;
        }
        let mut bounds = Vec::new();
        while !lexer.is_at_end() && !lexer.eat("]") {
            bounds.push(if lexer.eat("?") { None } else { Some(lexer.integer("a bound")?) });
            lexer.eat(",");
        }
        Ok(bounds)
    }

    fn element(&mut self) -> Result<PrimitiveType> {
        let start = self.lexer.here();
        if self.lexer.peek() == Some(b'!') {
            // A type that is not an element is refused by its name.
            return self.dialect_type().and_then(|_| fault(start, "a tensor has elements that are numbers"));
        }
        let word = self.lexer.expect_word("an element type, like f32")?;
        if word == "complex" {
            self.lexer.expect("<", "after \"complex\"")?;
            let part = self.lexer.expect_word("f32 or f64")?;
            self.lexer.expect(">", "after the type of a complex number")?;
            return match names::element(&format!("complex<{part}>")) {
                Some(element) => Ok(element),
                None => fault(start, format!("a complex number has parts of f32 or f64, found {part}")),
            };
        }
        // Numbers of dimensions in attributes have this type.
        if word == "index" {
            return Ok(PrimitiveType::S64);
        }
        // `si8` is how MLIR can write an integer whose sign is stated; StableHLO has `i8`.
        let name = word.strip_prefix('s').filter(|name| name.starts_with('i')).unwrap_or(word);
        match names::element(name) {
            Some(element) => Ok(element),
            None => {
                let near = did_you_mean(word, names::element_names());
                fault(start, format!("unknown element type \"{word}\"{near}"))
            }
        }
    }
}

fn unbounded<T>(start: usize) -> Result<T> {
    fault(start, "a dynamic type has no HLO that can be analysed; lower the function with arguments of fixed shapes")
}
