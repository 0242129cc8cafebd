//! A parser of generic MLIR, as far as kernels use it. It panics at other text.

use std::collections::HashMap;

use meshloom::hlo::Dims;
use meshloom_mosaic::text::{Element, Space, Type, VERSION};

/// A function of a kernel's module.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub name: &'a str,
    pub arguments: Vec<(&'a str, Type)>,
    pub ops: Vec<Op<'a>>,
    pub attributes: Attributes<'a>,
}

/// An op; its values have names.
#[derive(Debug)]
pub(super) struct Op<'a> {
    pub name: &'a str,
    pub operands: Vec<&'a str>,
    pub regions: Vec<Region<'a>>,
    pub attributes: Attributes<'a>,
    pub result: Option<(&'a str, Type)>,
    pub line: usize,
}

#[derive(Debug, Default)]
pub(super) struct Region<'a> {
    pub arguments: Vec<(&'a str, Type)>,
    pub ops: Vec<Op<'a>>,
}

/// The texts of attributes by name; empty for one that is not there.
#[derive(Debug, Default)]
pub(super) struct Attributes<'a>(HashMap<&'a str, &'a str>);

impl<'a> Attributes<'a> {
    pub fn text(&self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The number of `7 : i64`, `1.5e0 : f32`, `dense<0x40000000> : !v`.
    pub fn number(&self, name: &str) -> Option<f64> {
        let text = self.text(name).split(" :").next()?;
        let text = text.strip_prefix("dense<").and_then(|text| text.strip_suffix('>')).unwrap_or(text);
        match text.strip_prefix("0x") {
            Some(bits) => u32::from_str_radix(bits, 16).ok().map(|bits| f64::from(f32::from_bits(bits))),
            None => text.parse().ok(),
        }
    }

    /// The numbers of `array<i64: 1, 2>`.
    pub fn numbers<T: std::str::FromStr>(&self, name: &str) -> Vec<T> {
        let (_, list) = self.text(name).trim_end_matches('>').split_once(':').unwrap_or_default();
        let numbers = list.split(',').map(str::trim).filter(|number| !number.is_empty());
        numbers.map(|number| number.parse().unwrap_or_else(|_| panic!("{name} has {number:?}, no number"))).collect()
    }

    /// The dictionaries of `[{..}, {..}]`.
    pub fn dictionaries(&self, name: &str) -> Vec<Attributes<'a>> {
        Parser::of(self.text(name)).items(["[", "]"], Parser::dictionary)
    }
}

/// Parses a module.
pub(super) fn functions(text: &str) -> Vec<Function<'_>> {
    let mut parser = Parser::of(text);
    while parser.rest().starts_with('!') {
        let name = parser.word();
        parser.expect("=");
        let ty = parser.ty();
        parser.aliases.insert(name, ty);
    }
    let op = parser.op();
    if op.name != "builtin.module" || op.attributes.number("stable_mosaic.version") != Some(f64::from(VERSION)) {
        parser.fail("a module of the version that this crate writes");
    }
    op.regions.into_iter().flat_map(|region| region.ops).map(function).collect()
}

fn function(op: Op<'_>) -> Function<'_> {
    assert_eq!(op.name, "func.func", "line {}", op.line);
    let Region { arguments, ops } = op.regions.into_iter().next().expect("a body");
    Function { name: op.attributes.text("sym_name").trim_matches('"'), arguments, ops, attributes: op.attributes }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    aliases: HashMap<&'a str, Type>,
}

impl<'a> Parser<'a> {
    fn of(text: &'a str) -> Parser<'a> {
        Parser { text, at: 0, aliases: HashMap::new() }
    }

    fn rest(&mut self) -> &'a str {
        self.at = self.text.len() - self.text[self.at..].trim_start().len();
        &self.text[self.at..]
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    fn fail(&self, expected: &str) -> ! {
        let found: String = self.text[self.at..].trim_start().chars().take(40).collect();
        panic!("line {}: expected {expected}, found `{found}`", self.line());
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) {
        if !self.eat(token) {
            self.fail(token);
        }
    }

    /// A name with its mark: `%0`, `!v8x128xf32`, `^bb0`, `func.func`.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"%!^._".contains(c)).unwrap_or(rest.len());
        if end == 0 {
            self.fail("a name");
        }
        self.at += end;
        &rest[..end]
    }

    /// Items between brackets, with commas between them.
    fn items<T>(&mut self, [open, close]: [&str; 2], mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        self.expect(open);
        let mut items = Vec::new();
        while !self.eat(close) {
            if !items.is_empty() {
                self.expect(",");
            }
            items.push(item(self));
        }
        items
    }

    fn op(&mut self) -> Op<'a> {
        let result = self.rest().starts_with('%').then(|| self.word());
        if result.is_some() {
            self.expect("=");
        }
        let line = self.line();
        self.expect("\"");
        let name = self.word();
        self.expect("\"");
        let operands = self.items(["(", ")"], Self::word);
        let regions = if self.rest().starts_with('(') { self.items(["(", ")"], Self::region) } else { Vec::new() };
        let attributes = if self.rest().starts_with('{') { self.dictionary() } else { Attributes::default() };
        self.expect(":");
        if self.items(["(", ")"], Self::ty).len() != operands.len() {
            self.fail("a type for each operand");
        }
        self.expect("->");
        let result = result.map(|name| (name, self.ty()));
        if result.is_none() {
            self.items(["(", ")"], Self::ty);
        }
        let name = name.strip_prefix("stable_mosaic.").unwrap_or(name);
        Op { name, operands, regions, attributes, result, line }
    }

    fn region(&mut self) -> Region<'a> {
        self.expect("{");
        let mut region = Region::default();
        if self.eat("^") {
            self.word();
            region.arguments = self.items(["(", ")"], |parser| {
                let name = parser.word();
                parser.expect(":");
                (name, parser.ty())
            });
            self.expect(":");
        }
        while !self.eat("}") {
            region.ops.push(self.op());
        }
        region
    }

    fn dictionary(&mut self) -> Attributes<'a> {
        let entry = |parser: &mut Self| {
            let name = parser.word();
            parser.expect("=");
            (name, parser.attribute())
        };
        Attributes(self.items(["{", "}"], entry).into_iter().collect())
    }

    /// The text up to the comma or bracket that ends it.
    fn attribute(&mut self) -> &'a str {
        let rest = self.rest();
        let (mut depth, mut before) = (0, ' ');
        let is_end = |c: char| {
            let ends = depth == 0 && ",}".contains(c);
            match c {
                '<' | '[' | '{' | '(' => depth += 1,
                '>' if before == '-' => {}
                '>' | ']' | '}' | ')' => depth -= 1,
                _ => {}
            }
            before = c;
            ends
        };
        let Some(end) = rest.find(is_end) else { self.fail("the end of an attribute") };
        self.at += end;
        rest[..end].trim_end()
    }

    fn ty(&mut self) -> Type {
        if !self.rest().starts_with('!') {
            let word = self.word();
            return Element::named(word).map(Type::Scalar).unwrap_or_else(|| self.block(word));
        }
        let name = self.word();
        self.aliases.get(name).cloned().unwrap_or_else(|| self.fail("a type that is declared"))
    }

    /// The rest of `vector<8x128xf32>` or `memref<8x128xf32, #tpu.memory_space<vmem>>`.
    fn block(&mut self, kind: &str) -> Type {
        self.expect("<");
        let shape = self.word();
        let space = self.eat(", #tpu.memory_space<").then(|| self.word());
        let space = [Space::Vmem, Space::Smem].into_iter().find(|known| space == Some(known.name()));
        self.expect(if space.is_some() { ">>" } else { ">" });
        let (dims, last) = shape.rsplit_once('x').unwrap_or(("", shape));
        let dims: Option<Dims> = dims.split('x').map(|part| part.parse().ok().filter(|&size| size > 0)).collect();
        match (kind, Element::named(last), dims, space) {
            ("vector", Some(element), Some(dims), None) => Type::Vector(element, dims),
            ("memref", Some(element), Some(dims), Some(space)) => Type::Memref(element, dims, space),
            _ => self.fail("a type"),
        }
    }
}
