//! Attributes: what an op carries beside its operands.

use std::borrow::Cow;

use super::lexer::{Lexer, Span, integer};
use super::literal::DenseBody;
use super::parser::Parser;
use super::types::SharedShape;
use crate::parse::{Result, fault};

/// A value, and where it stands.
#[derive(Clone, Debug)]
pub(in crate::stablehlo) struct Attribute<'a> {
    pub(in crate::stablehlo) value: Value<'a>,
    pub(in crate::stablehlo) span: Span,
}

#[derive(Clone, Debug)]
pub(in crate::stablehlo) enum Value<'a> {
    /// A name without a value: that it is there says all.
    Unit,
    Boolean(bool),
    Integer(i64),
    /// A number that is not an integer; no op that is read asks for one.
    Number,
    String(Vec<u8>),
    Symbol(String),
    Word(&'a str),
    List(Vec<Attribute<'a>>),
    /// `[1] x [0]`: of the first operand, and of the second.
    Pair(Box<[Attribute<'a>; 2]>),
    Dictionary(Attributes<'a>),
    /// `array<i64: 1, 2>`.
    Integers(Vec<i64>),
    /// `dense<...> : tensor<...>`: its elements are read where they are needed.
    Dense {
        body: DenseBody<'a>,
        shape: SharedShape,
    },
    /// A constant whose elements were left out when the text was printed.
    Elided {
        shape: SharedShape,
    },
    /// `dense_resource<name> : tensor<...>`: the elements stand at the end of the text, if they are there.
    Resource {
        name: &'a str,
        shape: SharedShape,
    },
    /// `#stablehlo.gather<...>`, or angle brackets alone.
    Dialect {
        name: &'a str,
        body: Span,
    },
    /// A type, which no op that is read asks for.
    Type,
}

impl Value<'_> {
    /// The number of values that it consists of, itself included.
    pub(super) fn parts(&self) -> usize {
        let all = |items: &[Attribute<'_>]| items.iter().map(|item| item.value.parts()).sum::<usize>();
        1 + match self {
            Value::List(items) => all(items),
            Value::Pair(pair) => all(pair.as_slice()),
            Value::Dictionary(entries) => entries.0.iter().map(|(_, value)| value.value.parts()).sum(),
            Value::Integers(values) => values.len(),
            Value::String(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// Attributes by name, in the order of the text.
#[derive(Clone, Debug, Default)]
pub(in crate::stablehlo) struct Attributes<'a>(pub(in crate::stablehlo) Vec<(Cow<'a, str>, Attribute<'a>)>);

impl<'a> Attributes<'a> {
    pub(in crate::stablehlo) fn get(&self, name: &str) -> Option<&Attribute<'a>> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

impl<'a> Attribute<'a> {
    pub(in crate::stablehlo) fn integer(&self, what: &str) -> Result<i64> {
        match self.value {
            Value::Integer(value) => Ok(value),
            Value::Boolean(value) => Ok(value.into()),
            _ => self.fault(what, "an integer"),
        }
    }

    pub(super) fn boolean(&self, what: &str) -> Result<bool> {
        match self.value {
            Value::Unit => Ok(true),
            Value::Boolean(value) => Ok(value),
            Value::Integer(value) => Ok(value != 0),
            _ => self.fault(what, "true or false"),
        }
    }

    pub(super) fn word(&self, what: &str) -> Result<&'a str> {
        match self.value {
            Value::Word(word) => Ok(word),
            _ => self.fault(what, "a word"),
        }
    }

    pub(super) fn bytes(&self, what: &str) -> Result<&[u8]> {
        match &self.value {
            Value::String(bytes) => Ok(bytes),
            _ => self.fault(what, "a string"),
        }
    }

    pub(super) fn string(&self, what: &str) -> Result<String> {
        self.bytes(what).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn symbol(&self, what: &str) -> Result<&str> {
        match &self.value {
            Value::Symbol(name) => Ok(name),
            // The generic form has the name of a definition as a string, and VHLO has all names so.
            Value::String(bytes) => Ok(std::str::from_utf8(bytes).unwrap_or_default()),
            _ => self.fault(what, "a symbol, like @main"),
        }
    }

    pub(in crate::stablehlo) fn list(&self, what: &str) -> Result<&[Attribute<'a>]> {
        match &self.value {
            Value::List(items) => Ok(items),
            _ => self.fault(what, "a list"),
        }
    }

    pub(super) fn fault<T>(&self, what: &str, expected: &str) -> Result<T> {
        fault(self.span.start, format!("expected {expected} as {what}"))
    }
}

impl<'a> Parser<'a> {
    /// `{name = value, name}`, from the brace on.
    pub(super) fn dictionary(&mut self) -> Result<Attributes<'a>> {
        self.nested(|parser| parser.list('{', '}', ["before attributes", "in attributes"], Self::named_attribute))
            .map(Attributes)
    }

    /// `name = value`, or `name`.
    fn named_attribute(&mut self) -> Result<(Cow<'a, str>, Attribute<'a>)> {
        let start = self.lexer.here();
        let name = match self.lexer.peek() {
            Some(b'"') => self.lexer.string()?,
            _ => self.lexer.expect_word("the name of an attribute")?.into(),
        };
        if self.lexer.eat("=") {
            return Ok((name, self.attribute()?));
        }
        Ok((name, Attribute { value: Value::Unit, span: self.lexer.since(start) }))
    }

    /// The fields of an attribute: those between the angle brackets of a dialect's, or the entries of a dictionary.
    pub(in crate::stablehlo) fn fields_of(&mut self, attribute: &Attribute<'a>, what: &str) -> Result<Attributes<'a>> {
        match &attribute.value {
            Value::Dialect { body, .. } => self.fields(*body),
            Value::Dictionary(fields) => Ok(fields.clone()),
            _ => attribute.fault(what, "fields between angle brackets, <name = value>,"),
        }
    }

    /// Reads the fields between the angle brackets of a dialect's attribute: `offset_dims = [1], index_vector_dim = 1`.
    pub(super) fn fields(&mut self, body: Span) -> Result<Attributes<'a>> {
        let outer = self.lexer;
        self.lexer = outer.part(body);
        let mut attributes = Attributes::default();
        // Stands before the fields of a convolution that are written out.
        self.lexer.eat_word("raw");
        let read = self.nested(|parser| {
            while !parser.lexer.is_at_end() {
                attributes.0.push(parser.named_attribute()?);
                if !parser.lexer.eat(",") && !parser.lexer.is_at_end() {
                    return parser.lexer.unexpected("',' between the fields of an attribute");
                }
            }
            Ok(())
        });
        self.lexer = outer;
        read.map(|()| attributes)
    }

    pub(in crate::stablehlo) fn attribute(&mut self) -> Result<Attribute<'a>> {
        let start = self.lexer.here();
        let first = self.nested(Self::value)?;
        let first = Attribute { value: first, span: self.lexer.since(start) };
        let is_list = matches!(first.value, Value::List(_));
        if !(is_list && self.lexer.eat_word("x")) {
            return Ok(first);
        }
        let second_start = self.lexer.here();
        let second = self.nested(Self::value)?;
        let second = Attribute { value: second, span: self.lexer.since(second_start) };
        Ok(Attribute { value: Value::Pair(Box::new([first, second])), span: self.lexer.since(start) })
    }

    fn value(&mut self) -> Result<Value<'a>> {
        let start = self.lexer.here();
        match self.lexer.peek() {
            Some(b'"') => {
                let string = self.lexer.bytes()?.into_owned();
                self.type_after_colon()?;
                Ok(Value::String(string))
            }
            Some(b'@') => {
                let mut name = self.lexer.symbol()?;
                while self.lexer.eat("::") {
                    name = self.lexer.symbol()?;
                }
                Ok(Value::Symbol(name))
            }
            Some(b'[') => self.attribute_list(),
            Some(b'{') => Ok(Value::Dictionary(self.dictionary()?)),
            Some(b'<') => Ok(Value::Dialect { name: "", body: self.lexer.balanced()? }),
            Some(b'#') => self.dialect_attribute(),
            Some(b'!' | b'(') => self.skip_type(),
            Some(b'0'..=b'9' | b'-') => {
                let Some(text) = self.lexer.number() else { return self.lexer.unexpected("a value") };
                self.type_after_colon()?;
                match integer(text) {
                    Some(value) => Ok(Value::Integer(value)),
                    None if text.parse::<f64>().is_ok() && text.contains('.') => Ok(Value::Number),
                    None => fault(start, format!("{text} is no number of 64 bits")),
                }
            }
            _ => self.word_value(),
        }
    }

    fn attribute_list(&mut self) -> Result<Value<'a>> {
        let items = self.list('[', ']', ["before a list", "in a list"], |parser| {
            parser.memory.take(size_of::<Attribute<'_>>(), parser.lexer.here())?;
            parser.attribute()
        })?;
        Ok(Value::List(items))
    }

    /// `#stablehlo.gather<...>`, `#stablehlo<precision DEFAULT>`, `#alias`.
    fn dialect_attribute(&mut self) -> Result<Value<'a>> {
        let start = self.lexer.here();
        let name = self.lexer.name(b'#', "an attribute, like #stablehlo.gather<...>")?;
        if self.lexer.peek_adjacent() == Some(b'<') {
            let body = self.lexer.balanced()?;
            self.type_after_colon()?;
            return Ok(Value::Dialect { name, body });
        }
        // A dialect's attribute that says all by its name.
        if name.contains('.') && !self.aliases.contains_key(name) {
            return Ok(Value::Dialect { name, body: Span { start, end: start } });
        }
        match self.aliases.get(name).map(|attribute| attribute.value.clone()) {
            Some(value) => self.copy(value.parts(), start).map(|()| value),
            None => fault(start, format!("the text does not define #{name} before this place")),
        }
    }

    /// A type of any dialect, `!a.b<...>`, `tensor<...>`, `(t) -> t`, which nothing asks for.
    fn skip_type(&mut self) -> Result<Value<'a>> {
        loop {
            match self.lexer.peek() {
                Some(b'(') => {
                    self.lexer.balanced()?;
                }
                Some(b'!') => {
                    self.lexer.name(b'!', "a type, like !stablehlo.token")?;
                }
                _ => {
                    self.lexer.expect_word("a type")?;
                }
            }
            if self.lexer.peek_adjacent() == Some(b'<') {
                self.lexer.balanced()?;
            }
            if !self.lexer.eat("->") {
                return Ok(Value::Type);
            }
        }
    }

    fn word_value(&mut self) -> Result<Value<'a>> {
        let Some(word) = self.lexer.peek_word() else { return self.lexer.unexpected("the value of an attribute") };
        match word {
            "tensor" | "tuple" | "memref" | "vector" | "complex" => return self.skip_type(),
            "loc" => {
                self.location()?;
                return Ok(Value::Unit);
            }
            _ => {}
        }
        self.lexer.eat_word(word);
        match word {
            "true" => return Ok(Value::Boolean(true)),
            "false" => return Ok(Value::Boolean(false)),
            "unit" => return Ok(Value::Unit),
            _ => {}
        }
        if self.lexer.peek_adjacent() != Some(b'<') {
            return Ok(Value::Word(word));
        }
        match word {
            "dense" => {
                let body = self.lexer.balanced()?;
                self.lexer.expect(":", "and a type after a constant")?;
                Ok(Value::Dense { body: DenseBody::Text(body), shape: self.tensor_type()? })
            }
            "dense_resource" => {
                let body = self.lexer.balanced()?;
                self.lexer.expect(":", "and a type after a constant")?;
                let shape = self.tensor_type()?;
                match self.lexer.slice(body) {
                    "__elided__" => Ok(Value::Elided { shape }),
                    name => Ok(Value::Resource { name, shape }),
                }
            }
            "array" => {
                let body = self.lexer.balanced()?;
                let is_integers = self.lexer.part(body).peek_word().is_some_and(|word| word.starts_with('i'));
                match is_integers {
                    true => Ok(Value::Integers(integers(self.lexer.part(body))?)),
                    false => Ok(Value::Dialect { name: word, body }),
                }
            }
            "affine_map" | "affine_set" | "opaque" | "strided" | "distinct" | "sparse" => {
                let body = self.lexer.balanced()?;
                Ok(Value::Dialect { name: word, body })
            }
            _ => self.lexer.unexpected("the value of an attribute"),
        }
    }

    /// The type of a number or a string, which it does not need: ` : i64`.
    fn type_after_colon(&mut self) -> Result<()> {
        let is_range = |lexer: &mut Lexer<'a>| lexer.starts_with("::");
        if !is_range(&mut self.lexer) && self.is_scalar_type_after_colon() {
            self.lexer.eat(":");
            self.any_type()?;
        }
        Ok(())
    }

    /// A colon after an attribute may also begin the types of its op; those are types of tensors.
    fn is_scalar_type_after_colon(&mut self) -> bool {
        let mut ahead = self.lexer;
        let is_scalar = |word: &str| {
            word == "index"
                || word == "none"
                || word.starts_with(['i', 'f', 'u', 's']) && word.ends_with(|letter: char| letter.is_ascii_digit())
                || word == "bf16"
        };
        ahead.eat(":") && ahead.word().is_some_and(is_scalar)
    }
}

/// `i64: 1, 2, 3`, or only the type.
fn integers(mut lexer: Lexer<'_>) -> Result<Vec<i64>> {
    lexer.expect_word("the type of the elements")?;
    let mut values = Vec::new();
    if !lexer.eat(":") {
        return Ok(values);
    }
    loop {
        values.push(match lexer.peek_word() {
            Some("true") => i64::from(lexer.eat_word("true")),
            Some("false") => i64::from(!lexer.eat_word("false")),
            _ => lexer.integer("an element of the array")?,
        });
        if !lexer.eat(",") {
            break;
        }
    }
    if lexer.is_at_end() { Ok(values) } else { lexer.unexpected("',' or the end of the array") }
}
