//! Ops that move elements, and products of matrices.

use super::super::attribute::{Attribute, Attributes, Value};
use super::super::lexer::{Lexer, Span};
use super::super::literal::{elements, literal};
use super::super::operation::Operation;
use super::body::Sites;
use super::{Conversion, Converter, Rule};
use crate::parse::{Result, fault};
use crate::proto::hlo_instruction_proto::SliceDimensions;
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::precision_config::{Algorithm, Precision};
use crate::proto::{
    CholeskyOptions, DotDimensionNumbers, FftType, GatherDimensionNumbers, PaddingConfig, PrecisionConfig,
    PrimitiveType, RaggedDotDimensionNumbers, ShapeProto, TriangularSolveOptions, triangular_solve_options::Transpose,
};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.transpose", transpose),
    ("stablehlo.reverse", reverse),
    ("stablehlo.concatenate", concatenate),
    ("stablehlo.slice", slice),
    ("stablehlo.dynamic_slice", dynamic_slice),
    ("stablehlo.pad", pad),
    ("stablehlo.gather", gather),
    ("stablehlo.dot_general", dot_general),
    ("stablehlo.dot", dot),
    ("stablehlo.einsum", einsum),
    ("chlo.ragged_dot", ragged_dot),
    ("mhlo.ragged_dot", ragged_dot),
    ("stablehlo.fft", fft),
    ("stablehlo.cholesky", cholesky),
    ("stablehlo.triangular_solve", triangular_solve),
];

impl<'a> Converter<'a, '_> {
    /// A list of integers in any of the forms that an attribute may have: `[0, 1]`, `array<i64: 0, 1>`,
    /// `dense<[0, 1]> : tensor<2xi64>`.
    pub(super) fn integers_of(&self, attribute: &Attribute<'a>, what: &str) -> Result<Vec<i64>> {
        match &attribute.value {
            Value::Integers(values) => Ok(values.clone()),
            Value::Integer(value) => Ok(vec![*value]),
            Value::List(items) => {
                let mut values = Vec::new();
                for item in items {
                    // A list of lists is that of a table, row after row.
                    match &item.value {
                        Value::List(_) => values.extend(self.integers_of(item, what)?),
                        _ => values.push(item.integer(what)?),
                    }
                }
                Ok(values)
            }
            Value::Dense { body, shape } => {
                let fails = || fault(attribute.span.start, format!("expected integers as {what}"));
                let Some(found) = elements(self.parser.lexer, *body, shape)? else { return fails() };
                // The most elements that an attribute has: the devices of a program, several times.
                const MOST: i64 = 1 << 28;
                let count = shape.dimensions.iter().fold(1i64, |count, &size| count.saturating_mul(size));
                if count > MOST {
                    return fails();
                }
                let values = literal(&found, shape, &self.parser.memory, attribute.span.start)?;
                match PrimitiveType::try_from(shape.element_type) {
                    Ok(PrimitiveType::S64) => Ok(values.s64s),
                    Ok(PrimitiveType::S32) => Ok(values.s32s.into_iter().map(i64::from).collect()),
                    Ok(PrimitiveType::Pred) => Ok(values.preds.into_iter().map(i64::from).collect()),
                    _ => fails(),
                }
            }
            _ => attribute.fault(what, "a list of integers"),
        }
    }

    /// The last word of an attribute that is one of a few: `DEFAULT`, `#stablehlo<precision DEFAULT>`; and its place.
    pub(super) fn last_word(&self, attribute: &Attribute<'a>) -> Result<(&'a str, usize)> {
        match &attribute.value {
            Value::Word(word) => Ok((word, attribute.span.start)),
            Value::Dialect { body, .. } => {
                let mut lexer: Lexer<'a> = self.parser.lexer.part(*body);
                let mut last = None;
                let mut start = lexer.here();
                while let Some(word) = lexer.word() {
                    last = Some((word, start));
                    start = lexer.here();
                }
                match last {
                    Some(found) if lexer.is_at_end() => Ok(found),
                    _ => fault(attribute.span.start, "expected a word"),
                }
            }
            _ => fault(attribute.span.start, "expected a word"),
        }
    }

    /// The precision that an op states for its products.
    pub(super) fn precision(&mut self, operation: &Operation<'a>) -> Result<PrecisionConfig> {
        let mut config = PrecisionConfig::default();
        if let Some(attribute) = operation.attribute(&["precision_config", "precision"]) {
            for item in attribute.list("precision_config")? {
                let (word, at) = self.last_word(item)?;
                match Precision::from_str_name(word) {
                    Some(precision) => config.operand_precision.push(precision.into()),
                    None => return fault(at, format!("expected DEFAULT, HIGH or HIGHEST, found {word}")),
                }
            }
        }
        if let Some(attribute) = operation.attributes.get("algorithm") {
            config.algorithm = self.algorithm(attribute)?.into();
        }
        // XLA's own modules state the usual precision of both operands.
        if config.operand_precision.is_empty() {
            config.operand_precision = vec![Precision::Default.into(); 2];
        }
        Ok(config)
    }

    /// `<lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, ...>`
    fn algorithm(&mut self, attribute: &Attribute<'a>) -> Result<Algorithm> {
        let fields = self.parser.fields_of(attribute, "algorithm")?;
        let text = |name: &str| match fields.get(name) {
            Some(field) => Ok(self.parser.lexer.slice(field.span)),
            None => attribute.fault("algorithm", &format!("a field {name}")),
        };
        let (left, right, sum) = (text("lhs_precision_type")?, text("rhs_precision_type")?, text("accumulation_type")?);
        let number = |name: &str| fields.get(name).map_or(Ok(1), |field| field.integer(name));
        let parts = number("lhs_component_count")?.max(number("num_primitive_operations")?);
        let fast = fields.get("allow_imprecise_accumulation").map(|field| field.boolean("algorithm")).transpose()?;
        let name = match (left.to_ascii_uppercase(), right.to_ascii_uppercase()) {
            (left, right) if left.starts_with("F8") && right.starts_with("F8") => {
                format!("ANY_F8_ANY_F8_F32{}", if fast == Some(true) { "_FAST_ACCUM" } else { "" })
            }
            (left, right) => {
                let repeated = if parts > 1 { format!("_X{parts}") } else { String::new() };
                format!("{left}_{right}_{}{repeated}", sum.to_ascii_uppercase())
            }
        };
        match Algorithm::from_str_name(&format!("ALG_DOT_{name}")) {
            Some(algorithm) => Ok(algorithm),
            None => {
                fault(attribute.span.start, format!("XLA has no algorithm dot_{} of a dot", name.to_ascii_lowercase()))
            }
        }
    }
}

fn transpose(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimensions = op.integers(&["permutation", "dims"])?;
    op.single("transpose", |instruction| instruction.dimensions = dimensions)
}

fn reverse(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimensions = op.integers(&["dimensions", "dims"])?;
    op.single("reverse", |instruction| instruction.dimensions = dimensions)
}

fn concatenate(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimension = op.operation.integer(&["dimension", "dim"])?;
    op.single("concatenate", |instruction| instruction.dimensions = vec![dimension])
}

fn slice(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimensions = match op.operation.attributes.get("ranges") {
        Some(ranges) => {
            let range = |range: &Attribute<'_>| {
                let (start, limit, stride) = match &range.value {
                    Value::Integers(range) => match range[..] {
                        [start, limit] => (start, limit, 1),
                        [start, limit, stride] => (start, limit, stride),
                        _ => return None,
                    },
                    _ => return None,
                };
                Some(SliceDimensions { start, limit, stride })
            };
            match ranges.list("ranges")?.iter().map(range).collect() {
                Some(dimensions) => dimensions,
                None => {
                    return fault(ranges.span.start, "expected a range like 0:2 or 0:8:2 for each dimension");
                }
            }
        }
        None => {
            let starts = op.integers(&["start_indices"])?.into_iter();
            let each = starts.zip(op.integers(&["limit_indices"])?).zip(op.integers(&["strides"])?);
            each.map(|((start, limit), stride)| SliceDimensions { start, limit, stride }).collect()
        }
    };
    op.single("slice", |instruction| instruction.slice_dimensions = dimensions)
}

fn dynamic_slice(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let sizes = op.integers(&["slice_sizes", "sizes"])?;
    op.single("dynamic-slice", |instruction| instruction.dynamic_slice_sizes = sizes)
}

fn pad(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let low = op.integers(&["edge_padding_low", "low"])?.into_iter();
    let each = low.zip(op.integers(&["edge_padding_high", "high"])?);
    let each = each.zip(op.integers(&["interior_padding", "interior"])?);
    let dimension = |((edge_padding_low, edge_padding_high), interior_padding)| PaddingConfigDimension {
        edge_padding_low,
        edge_padding_high,
        interior_padding,
    };
    let dimensions = each.map(dimension).collect();
    op.single("pad", |instruction| instruction.padding_config = Some(PaddingConfig { dimensions }))
}

/// `#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>`
fn gather(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let numbers = op.numbers("dimension_numbers")?;
    let numbers = GatherDimensionNumbers {
        offset_dims: numbers.list("offset_dims"),
        collapsed_slice_dims: numbers.list("collapsed_slice_dims"),
        start_index_map: numbers.list("start_index_map"),
        index_vector_dim: numbers.one("index_vector_dim"),
        operand_batching_dims: numbers.list("operand_batching_dims"),
        start_indices_batching_dims: numbers.list("start_indices_batching_dims"),
    };
    let (sizes, are_sorted) = (op.integers(&["slice_sizes"])?, op.operation.flag("indices_are_sorted")?);
    op.single("gather", |instruction| {
        instruction.gather_dimension_numbers = Some(numbers.into());
        instruction.gather_slice_sizes = sizes;
        if are_sorted {
            instruction.indices_are_sorted = true;
        }
    })
}

/// The fields of an attribute of dimension numbers.
pub(super) struct Numbers(Vec<(String, Vec<i64>)>);

impl Numbers {
    /// The numbers of a field; a field that is left out is empty.
    pub(super) fn list(&self, name: &str) -> Vec<i64> {
        self.find(name).map(<[i64]>::to_vec).unwrap_or_default()
    }

    /// The number of a field; a field that is left out is 0.
    pub(super) fn one(&self, name: &str) -> i64 {
        self.find(name).and_then(|values| values.first().copied()).unwrap_or(0)
    }

    /// The dimensions of a product of matrices.
    fn of_product(&self) -> DotDimensionNumbers {
        DotDimensionNumbers {
            lhs_batch_dimensions: self.list("lhs_batching_dimensions"),
            rhs_batch_dimensions: self.list("rhs_batching_dimensions"),
            lhs_contracting_dimensions: self.list("lhs_contracting_dimensions"),
            rhs_contracting_dimensions: self.list("rhs_contracting_dimensions"),
        }
    }

    fn find(&self, name: &str) -> Option<&[i64]> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, values)| values.as_slice())
    }
}

impl<'a> Conversion<'_, 'a, '_> {
    pub(super) fn integers(&self, names: &[&str]) -> Result<Vec<i64>> {
        self.converter.integers_of(self.operation.required(names)?, names.first().unwrap_or(&""))
    }

    /// The value of an attribute that is one of a few words.
    pub(super) fn choice<T>(&self, names: &[&str], expected: &str, of: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let (word, at) = self.converter.last_word(self.operation.required(names)?)?;
        of(word).map_or_else(|| fault(at, format!("expected {expected}, found {word}")), Ok)
    }

    pub(super) fn numbers(&mut self, name: &str) -> Result<Numbers> {
        let attribute = self.operation.required(&[name])?;
        let fields = self.converter.parser.fields_of(attribute, name)?;
        self.flat(fields)
    }

    /// The fields of a part of the text.
    pub(super) fn numbers_in(&mut self, body: Span) -> Result<Numbers> {
        let fields = self.converter.parser.fields(body)?;
        self.flat(fields)
    }

    fn flat(&mut self, fields: Attributes<'a>) -> Result<Numbers> {
        let mut numbers = Vec::new();
        let mut waiting = vec![fields];
        while let Some(fields) = waiting.pop() {
            for (key, value) in fields.0 {
                match &value.value {
                    // Some have those of an inner op as one field.
                    Value::Dialect { .. } | Value::Dictionary(_) => {
                        waiting.push(self.converter.parser.fields_of(&value, &key)?);
                    }
                    _ => numbers.push((key.clone().into_owned(), self.converter.integers_of(&value, &key)?)),
                }
            }
        }
        Ok(Numbers(numbers))
    }
}

/// `batching_dims = [0] x [0], contracting_dims = [2] x [1]`, or `#stablehlo.dot<...>`.
fn dot_general(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    if operation.attributes.get("dot_dimension_numbers").is_some() {
        let numbers = op.numbers("dot_dimension_numbers")?.of_product();
        return product(op, numbers);
    }
    let mut numbers = DotDimensionNumbers::default();
    let pair = |name: &str| -> Result<(Vec<i64>, Vec<i64>)> {
        let Some(attribute) = operation.attributes.get(name) else { return Ok((Vec::new(), Vec::new())) };
        let Value::Pair(pair) = &attribute.value else { return attribute.fault(name, "[...] x [...]") };
        Ok((op.converter.integers_of(&pair[0], name)?, op.converter.integers_of(&pair[1], name)?))
    };
    (numbers.lhs_batch_dimensions, numbers.rhs_batch_dimensions) = pair("batching_dims")?;
    (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions) = pair("contracting_dims")?;
    product(op, numbers)
}

/// The product of two matrices, or of operands of one dimension.
fn dot(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let left = op.operands()?.first().map_or(0, |&place| op.body.shape(place).dimensions.len());
    let numbers = DotDimensionNumbers {
        lhs_contracting_dimensions: vec![left.saturating_sub(1) as i64],
        rhs_contracting_dimensions: vec![0],
        ..DotDimensionNumbers::default()
    };
    product(op, numbers)
}

/// `config = "abc,acd->abd"`: letters of both operands are summed over where the result lacks them.
fn einsum(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let attribute = op.operation.required(&["einsum_config", "config"])?;
    let config = attribute.string("einsum_config")?;
    let parts = config.split_once("->").and_then(|(from, to)| Some((from.split_once(',')?, to)));
    let (Some(((left, right), to)), &[first, second]) = (parts, op.operands()?.as_slice()) else {
        return attribute.fault("einsum_config", "two operands and a result, like \"ab,bc->ac\",");
    };
    let letters = |text: &str| text.bytes().filter(|letter| !letter.is_ascii_whitespace()).collect::<Vec<u8>>();
    let (left, right, to) = (letters(left), letters(right), letters(to));
    let shapes = [op.body.shape(first).dimensions, op.body.shape(second).dimensions];
    let is_plain = |names: &[u8]| {
        names.iter().enumerate().all(|(at, name)| name.is_ascii_alphabetic() && !names[..at].contains(name))
    };
    let summed_alone = |own: &[u8], other: &[u8]| own.iter().any(|name| !other.contains(name) && !to.contains(name));
    if [&left, &right, &to].into_iter().any(|names| !is_plain(names))
        || [left.len(), right.len()] != [shapes[0].len(), shapes[1].len()]
        || summed_alone(&left, &right)
        || summed_alone(&right, &left)
    {
        return attribute.fault("einsum_config", "a letter for each dimension, as in \"ab,bc->ac\",");
    }
    let place = |names: &[u8], name: u8| names.iter().position(|other| *other == name).map(|at| at as i64);
    let mut numbers = DotDimensionNumbers::default();
    let (mut order, mut sizes) = (Vec::new(), Vec::new());
    for (at, &name) in (0i64..).zip(&left) {
        match (place(&right, name), to.contains(&name)) {
            (Some(other), true) => {
                numbers.lhs_batch_dimensions.push(at);
                numbers.rhs_batch_dimensions.push(other);
                order.push(name);
            }
            (Some(other), false) => {
                numbers.lhs_contracting_dimensions.push(at);
                numbers.rhs_contracting_dimensions.push(other);
            }
            (None, _) => {}
        }
    }
    order.extend(left.iter().filter(|name| !right.contains(name)));
    order.extend(right.iter().filter(|name| !left.contains(name)));
    for &name in &order {
        let of = |names: &[u8], own: &[i64]| own.get(usize::try_from(place(names, name)?).ok()?).copied();
        sizes.extend(of(&left, &shapes[0]).or_else(|| of(&right, &shapes[1])));
    }
    let Some(permutation) = to.iter().map(|&name| place(&order, name)).collect::<Option<Vec<i64>>>() else {
        return attribute.fault("einsum_config", "letters of the operands in the result,");
    };
    let shape = op.operation.result_type()?.clone();
    let precision = op.converter.precision(op.operation)?;
    let mut dot = op.body.instruction("dot", ShapeProto { dimensions: sizes, ..shape }, &[first, second]);
    dot.dot_dimension_numbers = Some(numbers.into());
    dot.precision_config = Some(precision.into());
    let dot = op.body.push(dot);
    if order == to {
        return Ok([dot].into_iter().collect());
    }
    op.over("transpose", &[dot], |instruction| instruction.dimensions = permutation)
}

fn product(op: &mut Conversion<'_, '_, '_>, numbers: DotDimensionNumbers) -> Result<Sites> {
    let precision = op.converter.precision(op.operation)?;
    op.single("dot", |instruction| {
        instruction.dot_dimension_numbers = Some(numbers.into());
        instruction.precision_config = Some(precision.into());
    })
}

/// `ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], ..., rhs_group_dimensions = [0]>`
fn ragged_dot(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let stated = op.numbers("ragged_dot_dimension_numbers")?;
    let numbers = RaggedDotDimensionNumbers {
        lhs_ragged_dimensions: stated.list("lhs_ragged_dimensions"),
        rhs_group_dimensions: stated.list("rhs_group_dimensions"),
        dot_dimension_numbers: Some(stated.of_product()),
    };
    let precision = op.converter.precision(op.operation)?;
    op.single("ragged-dot", |instruction| {
        instruction.ragged_dot_dimension_numbers = Some(numbers.into());
        instruction.precision_config = Some(precision.into());
    })
}

/// `type = RFFT, length = [8]`
fn fft(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let kind = op.choice(&["fft_type", "type"], "FFT, IFFT, RFFT or IRFFT", FftType::from_str_name)?;
    let length = op.integers(&["fft_length", "length"])?;
    op.single("fft", |instruction| {
        instruction.fft_type = kind.into();
        instruction.fft_length = length;
    })
}

fn cholesky(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let options = CholeskyOptions { lower: op.operation.flag("lower")? };
    op.single("cholesky", |instruction| instruction.cholesky_options = Some(options.into()))
}

fn triangular_solve(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let transpose = op.choice(&["transpose_a"], "NO_TRANSPOSE, TRANSPOSE or ADJOINT", Transpose::from_str_name)?;
    let options = TriangularSolveOptions {
        left_side: op.operation.flag("left_side")?,
        lower: op.operation.flag("lower")?,
        unit_diagonal: op.operation.flag("unit_diagonal")?,
        transpose_a: transpose.into(),
    };
    op.single("triangular-solve", |instruction| instruction.triangular_solve_options = Some(options.into()))
}
