//! A parser of generic MLIR, as far as kernels use it.

use std::collections::HashMap;

use meshloom::hlo::Dims;
use meshloom_mosaic::text::{Element, Space, Type};

use super::InterpretError;

/// The module of a kernel.
#[derive(Debug)]
pub(super) struct Module {
    pub functions: Vec<Function>,
}

/// A function, its values numbered.
#[derive(Debug)]
pub(super) struct Function {
    pub name: String,
    pub arguments: Vec<(usize, Type)>,
    pub ops: Vec<Op>,
    pub attributes: HashMap<String, Attribute>,
    /// How many values it has.
    pub value_count: usize,
}

/// An op.
#[derive(Debug)]
pub(super) struct Op {
    pub name: String,
    pub operands: Vec<usize>,
    pub regions: Vec<Region>,
    pub attributes: HashMap<String, Attribute>,
    pub result: Option<(usize, Type)>,
    pub line: usize,
}

/// A region of one block.
#[derive(Debug, Default)]
pub(super) struct Region {
    pub arguments: Vec<(usize, Type)>,
    pub ops: Vec<Op>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute {
    Number(f64),
    /// A vector of one number.
    Dense(f64),
    /// `array<i64: 1, 2>`, and lists.
    List(Vec<Attribute>),
    Dictionary(HashMap<String, Attribute>),
    /// `@name`, or a string.
    Name(String),
    /// An attribute that is only compared as text.
    Other(String),
}

impl Attribute {
    pub fn list(&self) -> Option<&[Attribute]> {
        if let Attribute::List(list) = self { Some(list) } else { None }
    }

    /// The sizes of a grid; none for those that operands say.
    pub fn bounds(&self) -> Option<Vec<Option<usize>>> {
        let bound = |attribute: &Attribute| match attribute {
            Attribute::Number(number) if *number >= 0.0 => Some(Some(*number as usize)),
            Attribute::Number(number) if *number == i64::MIN as f64 => Some(None),
            _ => None,
        };
        self.list()?.iter().map(bound).collect()
    }

    /// A list of numbers that count something.
    pub fn counts(&self) -> Option<Vec<usize>> {
        let count = |attribute: &Attribute| match attribute {
            Attribute::Number(number) if *number >= 0.0 => Some(*number as usize),
            _ => None,
        };
        self.list()?.iter().map(count).collect()
    }
}

/// Parses a module.
pub(super) fn module(text: &str) -> Result<Module, InterpretError> {
    let mut parser = Parser { text, at: 0, aliases: HashMap::new(), values: HashMap::new() };
    while parser.peek() == Some('!') {
        let name = parser.word()?;
        parser.expect("=")?;
        let ty = parser.ty()?;
        parser.aliases.insert(name, ty);
    }
    let op = parser.op()?;
    let version = op.attributes.get("stable_mosaic.version");
    if op.name != "builtin.module" || version != Some(&Attribute::Number(f64::from(meshloom_mosaic::text::VERSION))) {
        return Err(parser.error("a module of the version that this crate writes"));
    }
    let region = op.regions.into_iter().next().ok_or_else(|| parser.error("a region"))?;
    let functions = region.ops.into_iter().map(|op| function(op).ok_or_else(|| parser.error("functions")));
    Ok(Module { functions: functions.collect::<Result<_, _>>()? })
}

fn function(op: Op) -> Option<Function> {
    let Some(Attribute::Name(name)) = op.attributes.get("sym_name") else { return None };
    let (name, attributes) = (name.clone(), op.attributes);
    let region = op.regions.into_iter().next()?;
    let value_count = 1 + last_value(&region).unwrap_or(0);
    (op.name == "func.func").then_some(Function {
        name,
        arguments: region.arguments,
        ops: region.ops,
        attributes,
        value_count,
    })
}

/// The highest number of a value.
fn last_value(region: &Region) -> Option<usize> {
    let own = region.arguments.iter().map(|(value, _)| *value);
    let of_ops = region.ops.iter().flat_map(|op| {
        let operands = op.operands.iter().copied().chain(op.result.as_ref().map(|(value, _)| *value));
        operands.chain(op.regions.iter().filter_map(last_value)).max()
    });
    own.chain(of_ops).max()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    aliases: HashMap<String, Type>,
    /// The numbers of values by name, in the function that is parsed.
    values: HashMap<String, usize>,
}

impl Parser<'_> {
    fn rest(&mut self) -> &str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn peek(&mut self) -> Option<char> {
        self.rest().chars().next()
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    fn error(&self, expected: &str) -> InterpretError {
        let found = self.text[self.at..].trim_start().chars().take(40).collect();
        InterpretError::Syntax { line: self.line(), expected: expected.to_owned(), found }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), InterpretError> {
        if self.eat(token) { Ok(()) } else { Err(self.error(token)) }
    }

    /// A name with its mark: `%0`, `!v8x128xf32`, `@block`, `^bb0`, `#arith.overflow`, `func.func`, `-1.5e0`.
    fn word(&mut self) -> Result<String, InterpretError> {
        let rest = self.rest();
        let is_part = |(index, c): (usize, char)| {
            let is_sign = c == '-' || c == '+';
            let exponent =
                index > 1 && rest[..index].ends_with('e') && rest.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            c.is_alphanumeric() || "._$".contains(c) || (index == 0 && "%!@^#-".contains(c)) || (is_sign && exponent)
        };
        let end = rest.char_indices().find(|&part| !is_part(part)).map_or(rest.len(), |(index, _)| index);
        let word = rest[..end].to_owned();
        if word.is_empty() {
            return Err(self.error("a name"));
        }
        self.at += end;
        Ok(word)
    }

    /// Items between brackets, with commas between them.
    fn items<T>(
        &mut self,
        [open, close]: [&str; 2],
        mut item: impl FnMut(&mut Self) -> Result<T, InterpretError>,
    ) -> Result<Vec<T>, InterpretError> {
        self.expect(open)?;
        let mut items = Vec::new();
        while !self.eat(close) {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn value(&mut self) -> Result<usize, InterpretError> {
        let name = self.word()?;
        if !name.starts_with('%') {
            return Err(self.error("a value"));
        }
        let next = self.values.len();
        Ok(*self.values.entry(name).or_insert(next))
    }

    fn op(&mut self) -> Result<Op, InterpretError> {
        let result = if self.peek() == Some('%') {
            let value = self.value()?;
            self.expect("=")?;
            Some(value)
        } else {
            None
        };
        let line = self.line();
        let name = self.string()?;
        let name = name.strip_prefix("stable_mosaic.").unwrap_or(&name).to_owned();
        if name == "func.func" {
            self.values.clear();
        }
        let operands = self.items(["(", ")"], Self::value)?;
        let regions = if self.peek() == Some('(') { self.items(["(", ")"], Self::region)? } else { Vec::new() };
        let attributes = if self.peek() == Some('{') { self.dictionary()? } else { HashMap::new() };
        self.expect(":")?;
        let operand_types = self.items(["(", ")"], Self::ty)?;
        if operand_types.len() != operands.len() {
            return Err(self.error("a type for each operand"));
        }
        self.expect("->")?;
        let result = match result {
            Some(value) => Some((value, self.ty()?)),
            None => {
                self.items(["(", ")"], Self::ty)?;
                None
            }
        };
        Ok(Op { name, operands, regions, attributes, result, line })
    }

    fn region(&mut self) -> Result<Region, InterpretError> {
        self.expect("{")?;
        let mut region = Region::default();
        if self.peek() == Some('^') {
            self.word()?;
            region.arguments = self.items(["(", ")"], |parser| {
                let value = parser.value()?;
                parser.expect(":")?;
                Ok((value, parser.ty()?))
            })?;
            self.expect(":")?;
        }
        while !self.eat("}") {
            region.ops.push(self.op()?);
        }
        Ok(region)
    }

    fn string(&mut self) -> Result<String, InterpretError> {
        self.expect("\"")?;
        let rest = &self.text[self.at..];
        let end = rest.find('"').ok_or_else(|| self.error("the end of a string"))?;
        let text = rest[..end].to_owned();
        self.at += end + 1;
        Ok(text)
    }

    fn dictionary(&mut self) -> Result<HashMap<String, Attribute>, InterpretError> {
        let entries = self.items(["{", "}"], |parser| {
            let name = parser.word()?;
            parser.expect("=")?;
            Ok((name, parser.attribute()?))
        })?;
        Ok(entries.into_iter().collect())
    }

    fn attribute(&mut self) -> Result<Attribute, InterpretError> {
        match self.peek() {
            Some('[') => Ok(Attribute::List(self.items(["[", "]"], Self::attribute)?)),
            Some('{') => Ok(Attribute::Dictionary(self.dictionary()?)),
            Some('"') => Ok(Attribute::Name(self.string()?)),
            Some('@') => Ok(Attribute::Name(self.word()?[1..].to_owned())),
            Some('#') => {
                let name = self.word()?;
                Ok(Attribute::Other(format!("{name}{}", self.angles()?)))
            }
            // A function's type: its arguments say the same.
            Some('(') => {
                self.items(["(", ")"], Self::ty)?;
                self.expect("->")?;
                self.items(["(", ")"], Self::ty)?;
                Ok(Attribute::Other(String::new()))
            }
            _ => self.number_or_array(),
        }
    }

    fn number_or_array(&mut self) -> Result<Attribute, InterpretError> {
        if self.eat("array<") {
            self.word()?;
            if !self.eat(":") {
                self.expect(">")?;
                return Ok(Attribute::List(Vec::new()));
            }
            let mut numbers = vec![Attribute::Number(self.number()?)];
            while self.eat(",") {
                numbers.push(Attribute::Number(self.number()?));
            }
            self.expect(">")?;
            return Ok(Attribute::List(numbers));
        }
        let is_dense = self.eat("dense<");
        let number = match self.rest() {
            rest if rest.starts_with("true") || rest.starts_with("false") => {
                f64::from(u8::from(self.word()? == "true"))
            }
            _ => self.number()?,
        };
        if is_dense {
            self.expect(">")?;
        }
        // Only attributes are of type `i64`.
        if self.eat(":") && !self.eat("i64") {
            self.ty()?;
        }
        Ok(if is_dense { Attribute::Dense(number) } else { Attribute::Number(number) })
    }

    fn number(&mut self) -> Result<f64, InterpretError> {
        let word = self.word()?;
        let number = match word.strip_prefix("0x") {
            Some(bits) => u32::from_str_radix(bits, 16).ok().map(|bits| f64::from(f32::from_bits(bits))),
            None => word.parse().ok(),
        };
        number.ok_or_else(|| self.error("a number"))
    }

    /// Reads the text from `<` to the `>` that ends it, both included.
    fn angles(&mut self) -> Result<String, InterpretError> {
        if self.peek() != Some('<') {
            return Ok(String::new());
        }
        let rest = &self.text[self.at..];
        let mut depth = 0_usize;
        for (index, c) in rest.char_indices() {
            depth = match c {
                '<' => depth + 1,
                '>' => depth - 1,
                _ => depth,
            };
            if depth == 0 {
                let text = rest[..=index].to_owned();
                self.at += index + 1;
                return Ok(text);
            }
        }
        Err(self.error("`>`"))
    }

    fn ty(&mut self) -> Result<Type, InterpretError> {
        if self.peek() == Some('!') {
            let name = self.word()?;
            return self.aliases.get(&name).cloned().ok_or_else(|| self.error("a type that is declared"));
        }
        let word = self.word()?;
        if let Some(element) = element(&word) {
            return Ok(Type::Scalar(element));
        }
        let inside = self.angles()?;
        let inside = inside.trim_start_matches('<').strip_suffix('>').unwrap_or_default();
        let (shape, space) = inside.split_once(", #tpu.memory_space").unwrap_or((inside, ""));
        let mut parts: Vec<&str> = shape.split('x').collect();
        let last = parts.pop().unwrap_or_default();
        let dims: Option<Dims> = parts.iter().map(|part| part.parse().ok().filter(|&size| size > 0)).collect();
        let space = [Space::Vmem, Space::Smem].into_iter().find(|known| format!("<{}>", known.name()) == space);
        match (word.as_str(), element(last), dims, space) {
            ("vector", Some(element), Some(dims), None) => Ok(Type::Vector(element, dims)),
            ("memref", Some(element), Some(dims), Some(space)) => Ok(Type::Memref(element, dims, space)),
            _ => Err(self.error("a type")),
        }
    }
}

fn element(name: &str) -> Option<Element> {
    Element::ALL.into_iter().find(|element| element.name() == name)
}
