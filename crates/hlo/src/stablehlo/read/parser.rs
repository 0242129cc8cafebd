//! The parser, which turns text into ops of any dialect: the grammar of MLIR, with the short forms of the dialects that
//! JAX prints.
//!
//! An op in a short form has the attributes under the names that the form gives them (`dims`), else under those of the
//! op (`permutation`); the code that reads an op knows both.

use std::borrow::Cow;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::super::names;
use super::attribute::{Attribute, Attributes, Value};
use super::lexer::{Lexer, Span};
use super::literal::DenseBody;
use super::location::Locations;
use super::operation::{Argument, Operand, Operation, Region, of_other_dialect};
use super::types::{ShapeList, SharedShape, Types};
use crate::parse::{Memory, Result, array, fault};
use crate::proto::PrimitiveType;

/// How deep regions, attributes, types and locations may nest together. Nesting in the text is also nesting of this
/// reader's calls.
const NESTING: usize = 100;

/// The ops that StableHLO did not take over from `mhlo`, beside those that `chlo` has.
const OF_MHLO: [&str; 16] = [
    "add_dependency",
    "async_done",
    "async_start",
    "async_update",
    "bitcast",
    "copy",
    "domain",
    "fusion",
    "minimum_broadcast_shapes",
    "mulhi",
    "ragged_dot",
    "scan",
    "stochastic_convert",
    "topk",
    "trace",
    "xla.rng_get_and_update_state",
];

/// The name of an op, and whether the text has an older one: most of the dialect `mhlo` has become StableHLO.
pub(super) fn of_today(name: Cow<'_, str>) -> (Cow<'_, str>, bool) {
    match name.strip_prefix("mhlo.") {
        Some(op) if !OF_MHLO.contains(&op) && names::opcode(&name).is_none() => {
            (format!("stablehlo.{op}").into(), true)
        }
        _ => (name, false),
    }
}

pub(in crate::stablehlo) struct Parser<'a> {
    pub(in crate::stablehlo) lexer: Lexer<'a>,
    depth: usize,
    /// Attributes that have names, such as `#map`.
    pub(super) aliases: FxHashMap<&'a str, Attribute<'a>>,
    pub(super) type_aliases: FxHashMap<&'a str, SharedShape>,
    /// Types of tensors by their texts.
    pub(super) known_types: FxHashMap<&'a str, SharedShape>,
    pub(in crate::stablehlo) locations: Locations<'a>,
    /// The place and the name of the last op that was in a short form.
    last_short: Option<(usize, &'a str)>,
    /// The strings of the resources at the end of the text.
    pub(super) resources: FxHashMap<&'a str, Span>,
    /// Parts that were copied for aliases: an alias of two of an alias of two is soon larger than any text.
    copied: usize,
    /// The bytes of the text, or of the file that it was made of.
    pub(super) size: usize,
    /// The bytes that the ops take, and then those of the instructions that they become.
    pub(super) memory: Memory,
}

impl<'a> Parser<'a> {
    pub(in crate::stablehlo) fn new(text: &'a str, memory: Memory) -> Parser<'a> {
        Parser {
            lexer: Lexer::new(text),
            depth: 0,
            aliases: FxHashMap::default(),
            type_aliases: FxHashMap::default(),
            known_types: FxHashMap::default(),
            locations: Locations::default(),
            last_short: None,
            resources: FxHashMap::default(),
            copied: 0,
            size: text.len(),
            memory,
        }
    }

    /// Runs `read` one level deeper, if the limit allows it.
    pub(super) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= NESTING {
            return fault(self.lexer.here(), format!("nested more than {NESTING} levels deep"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// A list between brackets. The places end the messages of an item that is not there and of a comma that is not.
    pub(super) fn list<T>(
        &mut self,
        open: char,
        close: char,
        places: [&str; 2],
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        self.each(open, close, places, |parser| {
            items.push(item(parser)?);
            Ok(())
        })?;
        Ok(items)
    }

    /// Reads each item of such a list with `item`.
    pub(super) fn each(
        &mut self,
        open: char,
        close: char,
        [before, after]: [&str; 2],
        mut item: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.lexer.expect(open.encode_utf8(&mut [0; 4]), before)?;
        while !self.lexer.eat(close.encode_utf8(&mut [0; 4])) {
            item(self)?;
            self.lexer.separator(close, after)?;
        }
        Ok(())
    }

    /// Notes that this number of parts is copied. Returns an error if all copies have more parts than the text has
    /// bytes.
    pub(super) fn copy(&mut self, parts: usize, position: usize) -> Result<()> {
        self.copied = self.copied.saturating_add(parts);
        match self.copied <= self.lexer.length() {
            true => Ok(()),
            false => fault(position, "write attributes and types out: their aliases are too large"),
        }
    }

    /// The whole text: the ops that stand outermost.
    pub(super) fn text(&mut self) -> Result<Vec<Operation<'a>>> {
        let mut operations = Vec::new();
        loop {
            match self.lexer.peek() {
                None => return Ok(operations),
                Some(b'#') => self.attribute_alias()?,
                Some(b'!') => {
                    let name = self.lexer.name(b'!', "the name of a type")?;
                    self.lexer.expect("=", "after the name of a type")?;
                    let shape = self.any_type()?;
                    self.type_aliases.insert(name, shape);
                }
                Some(b'{') => {
                    let body = self.lexer.balanced()?;
                    self.resources(body)?;
                }
                Some(_) => operations.push(self.operation()?),
            }
        }
    }

    /// `{-# dialect_resources: { builtin: { name: "0x04000000..." } } #-}`
    fn resources(&mut self, body: Span) -> Result<()> {
        let mut lexer = self.lexer.part(body);
        while !lexer.is_at_end() {
            let Some(name) = lexer.word() else {
                // All that is not a name is punctuation, numbers and strings of other tools.
                let start = lexer.here();
                match lexer.peek() {
                    Some(b'"') => _ = lexer.bytes()?,
                    _ => lexer = self.lexer.part(Span { start: start + 1, end: body.end }),
                }
                continue;
            };
            if lexer.eat(":") && lexer.peek() == Some(b'"') {
                let start = lexer.here();
                lexer.bytes()?;
                self.resources.insert(name, lexer.since(start));
            }
        }
        Ok(())
    }

    /// `#loc3 = loc(...)`, `#map = affine_map<...>`.
    fn attribute_alias(&mut self) -> Result<()> {
        let name = self.lexer.name(b'#', "the name of an attribute")?;
        self.lexer.expect("=", "after the name of an attribute")?;
        if self.lexer.peek_word() == Some("loc") {
            let location = self.location()?;
            self.locations.aliases.insert(name, location);
        } else {
            let attribute = self.attribute()?;
            self.aliases.insert(name, attribute);
        }
        Ok(())
    }

    /// `%0:2, %1 = ` before an op.
    fn results(&mut self) -> Result<SmallVec<[(&'a str, usize); 1]>> {
        let mut results = SmallVec::new();
        if self.lexer.peek() != Some(b'%') {
            return Ok(results);
        }
        loop {
            let name = self.lexer.name(b'%', "the name of a result")?;
            let start = self.lexer.here();
            let count = if self.lexer.eat(":") { self.lexer.integer("the number of results")? } else { 1 };
            let Ok(count) = u32::try_from(count) else { return fault(start, format!("there are no {count} results")) };
            results.push((name, count as usize));
            if !self.lexer.eat(",") {
                break;
            }
        }
        self.lexer.expect("=", "after the results of an op")?;
        Ok(results)
    }

    /// An op. Where the text cannot be read on and an op of another dialect is here or just before, that is the reason:
    /// its short form has a grammar of its own.
    pub(super) fn operation(&mut self) -> Result<Operation<'a>> {
        let (before, start) = (self.last_short.take(), self.lexer.here());
        self.any_operation().map_err(|mut error| {
            let before = before.filter(|_| error.position == start);
            let mut known = [before, self.last_short.take()].into_iter().flatten();
            if let Some((position, message)) = known.find_map(|(at, name)| Some((at, of_other_dialect(name)?))) {
                (error.position, error.message) = (position, message);
            }
            error
        })
    }

    fn any_operation(&mut self) -> Result<Operation<'a>> {
        let results = self.results()?;
        let position = self.lexer.here();
        self.memory.take(size_of::<Operation<'_>>(), position)?;
        let mut operation = Operation { position, results, ..Operation::default() };
        if self.lexer.peek() == Some(b'"') {
            (operation.name, operation.is_older) = of_today(self.lexer.string()?);
            self.generic(&mut operation)?;
        } else {
            let name = self.lexer.expect_word("an op, like stablehlo.add")?;
            self.last_short = Some((position, name));
            (operation.name, operation.is_older) = match name {
                "return" => ("func.return".into(), false),
                "call" => ("func.call".into(), false),
                // Texts before 2022 have it without its dialect.
                "func" => ("func.func".into(), false),
                "module" => ("builtin.module".into(), false),
                name => of_today(name.into()),
            };
            self.short(&mut operation)?;
            self.last_short = Some((position, name));
        }
        operation.location = self.trailing_location()?;
        Ok(operation)
    }

    /// `(%a, %b) <{...}> ({...}) {...} : (t, t) -> t`
    fn generic(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        self.operand_list(operation)?;
        if self.lexer.peek() == Some(b'[') {
            return self.lexer.unexpected("no successors: blocks that jump are not StableHLO");
        }
        if self.lexer.eat("<") {
            operation.attributes = self.dictionary()?;
            self.lexer.expect(">", "after the properties of an op")?;
        }
        if self.lexer.eat("(") {
            loop {
                operation.regions.push(self.region(Vec::new())?);
                if !self.lexer.eat(",") {
                    break;
                }
            }
            self.lexer.expect(")", "after the regions of an op")?;
        }
        self.optional_attributes(operation)?;
        self.lexer.expect(":", "before the types of an op")?;
        operation.types = self.types()?;
        match operation.types.results {
            Some(_) => Ok(()),
            None => self.lexer.unexpected("\"->\" and the types of the results"),
        }
    }

    fn optional_attributes(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        operation.attributes.0.append(&mut self.optional_dictionary()?.0);
        Ok(())
    }

    fn optional_dictionary(&mut self) -> Result<Attributes<'a>> {
        match self.lexer.peek() {
            Some(b'{') => self.dictionary(),
            _ => Ok(Attributes::default()),
        }
    }

    /// `(%a, %b)`
    fn operand_list(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        self.each('(', ')', ["before the operands of an op", "after an operand"], |parser| {
            operation.operands.push(parser.operand()?);
            Ok(())
        })
    }

    /// `%0#1`
    fn operand(&mut self) -> Result<Operand<'a>> {
        let position = self.lexer.here();
        let name = self.lexer.name(b'%', "an operand, like %0")?;
        let number = match self.lexer.eat_adjacent(b'#') {
            true => self.lexer.integer("the number of a result")?,
            false => 0,
        };
        match usize::try_from(number) {
            Ok(number) => Ok(Operand { name, number, position }),
            Err(_) => fault(position, format!("an op has no result number {number}")),
        }
    }

    fn short(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        match operation.name.as_ref() {
            "builtin.module" => self.module(operation),
            "func.func" => self.function(operation),
            "stablehlo.while" => self.while_loop(operation),
            "stablehlo.reduce" => self.reduce(operation),
            "chlo.scan" | "mhlo.scan" => self.scan(operation),
            "sdy.manual_computation" => self.manual_computation(operation),
            "sdy.named_computation" => self.named_computation(operation),
            "sdy.mesh" => self.mesh(operation),
            "stablehlo.constant" | "sdy.constant" | "chlo.constant" | "arith.constant" => self.constant(operation),
            name if name.contains('.') => self.items(operation),
            _ => self.unknown(operation),
        }
    }

    fn unknown(&mut self, operation: &Operation<'a>) -> Result<()> {
        fault(
            operation.position,
            format!("expected an op with its dialect, like stablehlo.add, found \"{}\"", operation.name),
        )
    }

    /// The short form that most ops share: operands, words, and attributes as `name = value`, in any order.
    fn items(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        self.some_items(operation)?;
        if self.lexer.eat(":") {
            operation.types = self.types()?;
        }
        Ok(())
    }

    fn some_items(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        loop {
            let start = self.lexer.here();
            match self.lexer.peek() {
                Some(b'%') => {
                    let operand = self.operand()?;
                    operation.operands.push(operand);
                    if self.lexer.peek() == Some(b'[') {
                        let ranges = self.ranges()?;
                        self.add(operation, "ranges", ranges, start);
                    }
                }
                Some(b'(') => {
                    self.lexer.eat("(");
                    self.nested(|parser| parser.some_items(operation))?;
                    self.lexer.expect(")", "after the operands of an op")?;
                }
                Some(b',') => {
                    self.lexer.eat(",");
                }
                // Shardy's collectives state axes before their operand: `[{"x"}, {}]`, `{"y":(1)2}`.
                Some(b'[' | b'{') if operation.operands.is_empty() && operation.name.starts_with("sdy.") => {
                    let body = self.lexer.balanced()?;
                    self.add(operation, "axes", Value::Dialect { name: "", body }, start);
                }
                Some(b'{') => self.optional_attributes(operation)?,
                Some(b'@') => {
                    let symbol = self.lexer.symbol()?;
                    self.add(operation, "symbol", Value::Symbol(symbol), start);
                }
                Some(b'"') => {
                    let string = self.lexer.bytes()?.into_owned();
                    self.add(operation, "name", Value::String(string), start);
                }
                Some(b'<') => {
                    let body = self.lexer.balanced()?;
                    self.add(operation, "angles", Value::Dialect { name: "", body }, start);
                }
                _ => {
                    let Some(word) = self.lexer.peek_word().filter(|&word| !self.ends_items(word)) else {
                        return Ok(());
                    };
                    self.lexer.eat_word(word);
                    match self.lexer.eat("=") {
                        true if word == "dim_numbers" => {
                            let body = self.convolution_dimensions()?;
                            self.add(operation, word, Value::Dialect { name: "", body }, start);
                        }
                        true => {
                            let attribute = self.attribute()?;
                            operation.attributes.0.push((word.into(), attribute));
                        }
                        false => operation.words.push((word, start)),
                    }
                }
            }
        }
    }

    /// Whether a word begins the text after an op, and is not one of its items.
    fn ends_items(&self, word: &str) -> bool {
        let mut ahead = self.lexer;
        word.contains('.')
            || ahead.eat_word("loc") && ahead.peek() == Some(b'(')
            || matches!(word, "return" | "call" | "module" | "func")
    }

    fn add(&self, operation: &mut Operation<'a>, name: &'a str, value: Value<'a>, start: usize) {
        operation.attributes.0.push((name.into(), Attribute { value, span: self.lexer.since(start) }));
    }

    /// `[0:2, 1:8:2]` after an operand, or `[0]`.
    fn ranges(&mut self) -> Result<Value<'a>> {
        let ranges = self.list('[', ']', ["before the ranges of a slice", "after a range"], |parser| {
            let start = parser.lexer.here();
            let mut range = vec![parser.lexer.integer("the start of a range")?];
            while parser.lexer.eat(":") {
                range.push(parser.lexer.integer("the end of a range")?);
            }
            Ok(Attribute { value: Value::Integers(range), span: parser.lexer.since(start) })
        })?;
        Ok(Value::List(ranges))
    }

    /// `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`
    fn convolution_dimensions(&mut self) -> Result<Span> {
        let start = self.lexer.here();
        self.lexer.balanced()?;
        if !self.lexer.eat_word("x") {
            return self.lexer.unexpected("'x' between the dimensions of a convolution");
        }
        self.lexer.balanced()?;
        self.lexer.expect("->", "before the dimensions of a convolution's result")?;
        self.lexer.balanced()?;
        Ok(self.lexer.since(start))
    }

    fn constant(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        self.optional_attributes(operation)?;
        let mut value = self.attribute()?;
        if operation.name == "arith.constant" {
            self.number_as_elements(&mut value)?;
        }
        if let Value::Dense { shape, .. } | Value::Elided { shape } | Value::Resource { shape, .. } = &value.value {
            operation.types = Types { inputs: ShapeList::new(), results: Some(smallvec![Rc::clone(shape)]) };
        }
        operation.attributes.0.push(("value".into(), value));
        // `constant() <{...}>` in some texts has its type apart.
        if self.lexer.eat(":") {
            operation.types = self.types()?;
        }
        Ok(())
    }

    /// `0 : i32` or `true`, as if it were `dense<0> : tensor<i32>`.
    fn number_as_elements(&mut self, value: &mut Attribute<'a>) -> Result<()> {
        let (text, start) = (self.lexer.slice(value.span), value.span.start);
        let (body, shape) = match (&value.value, text.split_once(':')) {
            (Value::Boolean(_), _) => (value.span, Rc::new(array(PrimitiveType::Pred, Vec::new()))),
            (Value::Integer(_) | Value::Number, Some((number, _))) => {
                let end = start + number.trim_end().len();
                let outer = self.lexer;
                self.lexer = outer.part(Span { start: start + number.len() + 1, end: value.span.end });
                let shape = self.any_type();
                self.lexer = outer;
                (Span { start, end }, shape?)
            }
            _ => return Ok(()),
        };
        value.value = Value::Dense { body: DenseBody::Text(body), shape };
        Ok(())
    }

    fn module(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let start = self.lexer.here();
        if self.lexer.peek() == Some(b'@') {
            let name = self.lexer.symbol()?;
            self.add(operation, "sym_name", Value::Symbol(name), start);
        }
        if self.lexer.eat_word("attributes") {
            self.optional_attributes(operation)?;
        }
        operation.regions.push(self.region(Vec::new())?);
        Ok(())
    }

    /// `public @main(%arg0: tensor<f32> {...}) -> (tensor<f32> {...}) attributes {...} {...}`
    fn function(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let start = self.lexer.here();
        if let Some(word @ ("public" | "private" | "nested")) = self.lexer.word() {
            self.add(operation, "sym_visibility", Value::Word(word), start);
        }
        let start = self.lexer.here();
        let name = self.lexer.symbol()?;
        self.add(operation, "sym_name", Value::Symbol(name), start);
        let places = ["before the arguments of a function", "after an argument of a function"];
        let arguments = self.list('(', ')', places, Self::parameter)?;
        if self.lexer.eat("->") {
            self.function_results(operation)?;
        }
        if self.lexer.eat_word("attributes") {
            self.optional_attributes(operation)?;
        }
        if self.lexer.peek() == Some(b'{') {
            operation.regions.push(self.region(arguments)?);
        }
        Ok(())
    }

    fn function_results(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let results = match self.lexer.peek() {
            Some(b'(') => self.list('(', ')', ["", "after a result of a function"], |parser| {
                Ok((parser.any_type()?, parser.optional_dictionary()?))
            })?,
            _ => vec![(self.any_type()?, Attributes::default())],
        };
        let (types, attributes): (Vec<_>, _) = results.into_iter().unzip();
        (operation.types.results, operation.result_attributes) = (Some(types.into()), attributes);
        Ok(())
    }

    /// `%arg0: tensor<f32> {...} loc(...)`; in a declaration, which has no body, without the name.
    fn parameter(&mut self) -> Result<Argument<'a>> {
        if self.lexer.peek() == Some(b'%') {
            return self.argument();
        }
        let (shape, attributes) = (self.any_type()?, self.optional_dictionary()?);
        Ok(Argument { name: "", shape, attributes, location: self.trailing_location()? })
    }

    /// `%arg0: tensor<f32> {...} loc(...)`
    fn argument(&mut self) -> Result<Argument<'a>> {
        let name = self.lexer.name(b'%', "an argument, like %arg0")?;
        self.lexer.expect(":", "before the type of an argument")?;
        let shape = self.any_type()?;
        let attributes = self.optional_dictionary()?;
        Ok(Argument { name, shape, attributes, location: self.trailing_location()? })
    }

    /// `{ ops }`, whose first block may state its arguments.
    pub(super) fn region(&mut self, mut arguments: Vec<Argument<'a>>) -> Result<Region<'a>> {
        self.lexer.expect("{", "before a region")?;
        let mut operations = Vec::new();
        self.nested(|parser| {
            if parser.lexer.peek() == Some(b'^') {
                parser.lexer.name(b'^', "the name of a block")?;
                if parser.lexer.peek() == Some(b'(') {
                    arguments.extend(parser.list('(', ')', ["", "after an argument of a block"], Self::argument)?);
                }
                parser.lexer.expect(":", "after the name of a block")?;
            }
            while !parser.lexer.eat("}") {
                if parser.lexer.peek() == Some(b'^') {
                    return parser.lexer.unexpected("one block in a region: StableHLO has no jumps");
                }
                operations.push(parser.operation()?);
            }
            Ok(())
        })?;
        Ok(Region { arguments, operations })
    }

    /// `(%iterArg = %0, %iterArg_1 = %1) : t, t attributes {...} cond {...} do {...}`
    fn while_loop(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let places = ["before the values of a loop", "after a value of a loop"];
        let names = self.list('(', ')', places, |parser| {
            let name = parser.lexer.name(b'%', "a value of the loop, like %iterArg")?;
            parser.lexer.expect("=", "before the first value")?;
            operation.operands.push(parser.operand()?);
            Ok(name)
        })?;
        if self.lexer.eat(":") {
            operation.types = self.types()?;
        }
        if self.lexer.eat_word("attributes") {
            self.optional_attributes(operation)?;
        }
        let types = &operation.types.inputs;
        if types.len() != names.len() {
            let (names, types) = (names.len(), types.len());
            return fault(operation.position, format!("the loop has {names} values and {types} types"));
        }
        let argument = |(name, shape): (&&'a str, &SharedShape)| Argument {
            name,
            shape: Rc::clone(shape),
            attributes: Attributes::default(),
            location: None,
        };
        for keyword in ["cond", "do"] {
            if !self.lexer.eat_word(keyword) {
                return self.lexer.unexpected(&format!("\"{keyword}\" before a region of a loop"));
            }
            let arguments = names.iter().zip(&operation.types.inputs).map(argument).collect();
            operation.regions.push(self.region(arguments)?);
        }
        Ok(())
    }

    /// `(%0 init: %1) applies stablehlo.add across dimensions = [0] : (t, t) -> t`, or with a region `reducer` at the
    /// end.
    fn reduce(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let mut initial = Vec::new();
        while self.lexer.eat("(") {
            let operand = self.operand()?;
            operation.operands.push(operand);
            if !self.lexer.eat_word("init") {
                return self.lexer.unexpected("\"init:\" after an operand of a reduction");
            }
            self.lexer.expect(":", "after \"init\"")?;
            initial.push(self.operand()?);
            self.lexer.expect(")", "after an operand of a reduction")?;
            self.lexer.eat(",");
        }
        operation.operands.extend(initial);
        if self.lexer.eat_word("applies") {
            let start = self.lexer.here();
            let applied = self.lexer.expect_word("the op that is applied")?;
            self.add(operation, "applies", Value::Word(applied), start);
        }
        if !self.lexer.eat_word("across") {
            return self.lexer.unexpected("\"across\" before the dimensions of a reduction");
        }
        self.some_items(operation)?;
        self.lexer.expect(":", "before the types of a reduction")?;
        operation.types = self.types()?;
        if self.lexer.eat_word("reducer") {
            // Each group has the values of one operand: first of the accumulated, then of the elements.
            let (mut accumulated, mut elements) = (Vec::new(), Vec::new());
            while self.lexer.eat("(") {
                accumulated.push(self.argument()?);
                self.lexer.expect(",", "between the arguments of a reducer")?;
                elements.push(self.argument()?);
                self.lexer.expect(")", "after the arguments of a reducer")?;
                self.lexer.eat(",");
            }
            accumulated.append(&mut elements);
            operation.regions.push(self.region(accumulated)?);
        }
        Ok(())
    }

    /// `(%0, %1) inits (%2) dimension=0 attributes {...} { ops } : (t, t, t) -> (t, t)`
    fn scan(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        self.operand_list(operation)?;
        let inputs = operation.operands.len();
        if !self.lexer.eat_word("inits") {
            return self.lexer.unexpected("\"inits\" after the inputs of a scan");
        }
        self.operand_list(operation)?;
        let carries = operation.operands.len() - inputs;
        let start = self.lexer.here();
        // The generic form states it so.
        let sizes = Value::Integers(vec![inputs as i64, carries as i64]);
        self.add(operation, "operandSegmentSizes", sizes, start);
        while let Some(name) = self.lexer.peek_word().filter(|word| *word != "attributes") {
            self.lexer.eat_word(name);
            self.lexer.expect("=", "after the name of an attribute")?;
            let attribute = self.attribute()?;
            operation.attributes.0.push((name.into(), attribute));
        }
        if self.lexer.eat_word("attributes") {
            self.optional_attributes(operation)?;
        }
        operation.regions.push(self.region(Vec::new())?);
        self.lexer.expect(":", "before the types of a scan")?;
        operation.types = self.types()?;
        Ok(())
    }

    /// `(%0) in_shardings=[...] out_shardings=[...] manual_axes={"data"} (%arg0: t) {...} : (t) -> t`
    fn manual_computation(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        self.operand_list(operation)?;
        while let Some(name @ ("in_shardings" | "out_shardings" | "manual_axes")) = self.lexer.peek_word() {
            self.lexer.eat_word(name);
            self.lexer.expect("=", "after the name of an attribute")?;
            let start = self.lexer.here();
            let body = self.lexer.balanced()?;
            self.add(operation, name, Value::Dialect { name, body }, start);
        }
        let places = ["before the arguments of a computation", "after an argument of a computation"];
        let arguments = self.list('(', ')', places, Self::argument)?;
        operation.regions.push(self.region(arguments)?);
        self.optional_attributes(operation)?;
        self.lexer.expect(":", "before the types of a computation")?;
        operation.types = self.types()?;
        Ok(())
    }

    /// `<"name">`, and the rest of a manual computation, without manual axes.
    fn named_computation(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let start = self.lexer.here();
        self.lexer.expect("<", "before the name of a computation")?;
        let name = self.lexer.bytes()?.into_owned();
        self.lexer.expect(">", "after the name of a computation")?;
        self.add(operation, "name", Value::String(name), start);
        self.manual_computation(operation)
    }

    /// `@mesh = <["data"=2, "fsdp"=4]> {...}`, or `@mesh = #sdy.mesh<...>`
    fn mesh(&mut self, operation: &mut Operation<'a>) -> Result<()> {
        let start = self.lexer.here();
        let name = self.lexer.symbol()?;
        self.add(operation, "sym_name", Value::Symbol(name), start);
        self.lexer.expect("=", "after the name of a mesh")?;
        let mesh = self.attribute()?;
        operation.attributes.0.push(("mesh".into(), mesh));
        self.optional_attributes(operation)
    }
}
