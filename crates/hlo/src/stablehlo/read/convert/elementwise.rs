//! Ops on each element, constants, and what moves no elements between places.

use smallvec::smallvec;

use super::super::super::names::{self, COMPARISONS, DIRECTIONS, LARGE_SPLAT};
use super::super::attribute::{Attribute, Value};
use super::super::lexer::{Lexer, Span};
use super::super::literal::{DenseBody, elements, literal, resource};
use super::body::{Body, Site, Sites};
use super::{Conversion, Converter, Rule};
use crate::parse::{Result, array, fault};
use crate::proto::result_accuracy::{Mode, Specs, Tolerance};
use crate::proto::{
    CustomCallApiVersion, LiteralProto, PrimitiveType, RandomAlgorithm, RandomDistribution, ResultAccuracy, ShapeProto,
};
use crate::suggest::did_you_mean;
use crate::syntax::default_comparison;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.constant", constant),
    ("sdy.constant", constant),
    ("chlo.constant", constant),
    ("arith.constant", constant),
    ("chlo.constant_like", constant_like),
    ("stablehlo.compare", compare),
    ("stablehlo.iota", iota),
    ("stablehlo.broadcast_in_dim", broadcast_in_dim),
    ("stablehlo.broadcast", broadcast),
    ("stablehlo.create_token", create_token),
    ("stablehlo.get_tuple_element", get_tuple_element),
    ("stablehlo.optimization_barrier", optimization_barrier),
    ("stablehlo.reduce_precision", reduce_precision),
    ("stablehlo.rng", rng),
    ("stablehlo.rng_bit_generator", rng_bit_generator),
    ("stablehlo.get_dimension_size", get_dimension_size),
    ("stablehlo.batch_norm_grad", batch_norm),
    ("stablehlo.batch_norm_inference", batch_norm),
    ("stablehlo.batch_norm_training", batch_norm),
    ("chlo.square", square),
    ("chlo.atan", atan),
    ("chlo._asin_acos_kernel", custom),
    ("chlo.bessel_i1e", custom),
    ("chlo.conj", custom),
    ("chlo.digamma", custom),
    ("chlo.erf_inv", custom),
    ("chlo.erfc", custom),
    ("chlo.is_inf", custom),
    ("chlo.is_neg_inf", custom),
    ("chlo.is_pos_inf", custom),
    ("chlo.lgamma", custom),
    ("chlo.mulhi", custom),
    ("chlo.next_after", custom),
    ("chlo.polygamma", custom),
    ("chlo.zeta", custom),
    ("chlo.top_k", top_k),
    ("mhlo.topk", top_k),
    ("stablehlo.torch_index_select", custom),
    ("stablehlo.unary_einsum", custom),
    ("stablehlo.set_dimension_size", set_dimension_size),
    ("mhlo.add_dependency", of_mhlo),
    ("mhlo.bitcast", of_mhlo),
    ("mhlo.copy", of_mhlo),
    ("mhlo.stochastic_convert", of_mhlo),
    ("mhlo.domain", custom),
    ("mhlo.minimum_broadcast_shapes", custom),
    ("mhlo.mulhi", custom),
    ("mhlo.trace", trace),
    ("mhlo.xla.rng_get_and_update_state", rng_state),
];

impl<'a> Converter<'a, '_> {
    /// A number with a point, `1.0e-5 : f32`.
    fn real(&self, attribute: &Attribute<'a>, what: &str) -> Result<f64> {
        let text = self.parser.lexer.slice(attribute.span);
        match text.split(':').next().unwrap_or(text).trim().parse() {
            Ok(number) => Ok(number),
            Err(_) => attribute.fault(what, "a number, like 1.0e-5"),
        }
    }

    /// `#stablehlo.result_accuracy<atol = 1.0e-5, rtol = 0.0, ulps = 1, mode = ...>`: how exact a function has to be;
    /// none if it is the usual.
    pub(super) fn accuracy(&mut self, attribute: &Attribute<'a>) -> Result<Option<ResultAccuracy>> {
        const NAME: &str = "result_accuracy";
        let Value::Dialect { body, .. } = &attribute.value else {
            return attribute.fault(NAME, "#stablehlo.result_accuracy<...>");
        };
        let fields = self.parser.fields(*body)?;
        let mode = fields.get("mode").map(|mode| self.last_word(mode)).transpose()?;
        let specs = match mode.map(|(word, _)| word) {
            Some("HIGHEST") => Specs::Mode(Mode::Highest.into()),
            Some("TOLERANCE") => {
                let real = |name: &str| fields.get(name).map_or(Ok(0.0), |field| self.real(field, name));
                let ulps = fields.get("ulps").map_or(Ok(0), |field| field.integer("ulps"))?;
                Specs::Tolerance(Tolerance { atol: real("atol")?, rtol: real("rtol")?, ulps })
            }
            _ => return Ok(None),
        };
        Ok(Some(ResultAccuracy { specs: Some(specs) }))
    }
}

fn constant(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let attribute = op.operation.required(&["value"])?;
    let parser = &op.converter.parser;
    let (found, shape) = match &attribute.value {
        Value::Dense { body: text, shape } => (elements(parser.lexer, *text, shape)?, shape),
        Value::Elided { shape } => (None, shape),
        Value::Resource { name, shape } => {
            let text = parser.resources.get(name);
            (text.map(|text| resource(parser.lexer, *text, shape)).transpose()?, shape)
        }
        _ => return attribute.fault("the value of a constant", "dense<...>"),
    };
    let shape = ShapeProto::clone(shape);
    let count = shape.dimensions.iter().fold(1i64, |count, &size| count.saturating_mul(size));
    let read = |found, shape: &ShapeProto| literal(found, shape, &parser.memory, op.operation.position);
    let Some(found) = found else {
        let elided = LiteralProto { shape: Some(shape.clone()), ..LiteralProto::default() };
        return Ok(smallvec![push_constant(op.body, shape, elided)]);
    };
    if found.is_splat && count >= LARGE_SPLAT {
        let scalar = array(PrimitiveType::try_from(shape.element_type).unwrap_or_default(), Vec::new());
        let value = read(&found, &scalar)?;
        let value = push_constant(op.body, scalar, value);
        return Ok(smallvec![op.body.simple("broadcast", shape, &[value])]);
    }
    let value = read(&found, &shape)?;
    Ok(smallvec![push_constant(op.body, shape, value)])
}

/// `{value = 3.2 : f32}`: one number in the shape of the operand.
fn constant_like(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let attribute = op.operation.required(&["value"])?;
    let (lexer, shape) = (op.converter.parser.lexer, op.operation.result_type()?.clone());
    let text = lexer.slice(attribute.span);
    let length = text.split(':').next().unwrap_or(text).trim_end().len();
    let number = Span { start: attribute.span.start, end: attribute.span.start + length };
    Ok(smallvec![repeated(op, lexer, number, shape)?])
}

/// A number that the lexer reads, in every place of a shape.
fn repeated(op: &mut Conversion<'_, '_, '_>, lexer: Lexer<'_>, number: Span, shape: ShapeProto) -> Result<Site> {
    let scalar = array(PrimitiveType::try_from(shape.element_type).unwrap_or_default(), Vec::new());
    let value = match elements(lexer, DenseBody::Text(number), &scalar)? {
        Some(found) => literal(&found, &scalar, &op.converter.parser.memory, op.operation.position)?,
        None => LiteralProto { shape: Some(scalar.clone()), ..LiteralProto::default() },
    };
    let value = push_constant(op.body, scalar, value);
    Ok(if shape.dimensions.is_empty() { value } else { op.body.simple("broadcast", shape, &[value]) })
}

fn push_constant(body: &mut Body<'_>, shape: ShapeProto, value: LiteralProto) -> Site {
    let mut instruction = body.instruction("constant", shape, &[]);
    instruction.literal = Some(value.into());
    body.push(instruction)
}

/// The words of a comparison stand alone in the short form, and in attributes like `#stablehlo<comparison_type FLOAT>`
/// in the generic one.
fn compare(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operands = op.operands()?;
    compared(op, &operands)
}

fn compared(op: &mut Conversion<'_, '_, '_>, operands: &[Site]) -> Result<Sites> {
    let operation = op.operation;
    let stated = |name: &str, at: usize| match operation.attributes.get(name) {
        Some(attribute) => op.converter.last_word(attribute).map(Some),
        None => Ok(operation.words.get(at).copied()),
    };
    let Some((direction, at)) = stated("comparison_direction", 0)? else {
        return operation.fault("the direction of the comparison is missing, like LT");
    };
    known(direction, at, &DIRECTIONS)?;
    let kind = match stated("compare_type", 1)? {
        Some((kind, at)) if kind != "NOTYPE" => {
            known(kind, at, &COMPARISONS)?;
            kind
        }
        _ => default_comparison(operands.first().map(|&place| op.body.shape(place)).as_ref()),
    };
    op.over("compare", operands, |instruction| {
        instruction.comparison_direction = direction.to_owned();
        instruction.comparison_type = kind.to_owned();
    })
}

/// Returns an error unless the word is one of `words`.
fn known(word: &str, at: usize, words: &[&str]) -> Result<()> {
    match words.contains(&word) {
        true => Ok(()),
        false => {
            let near = did_you_mean(word, words.iter().copied());
            fault(at, format!("expected one of {}, found \"{word}\"{near}", words.join(", ")))
        }
    }
}

fn iota(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimension = op.operation.integer(&["iota_dimension", "dim"])?;
    op.over("iota", &[], |instruction| instruction.dimensions = vec![dimension])
}

fn broadcast_in_dim(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operand, shape) = (op.operand()?, op.operation.result_type()?.clone());
    let dimensions = op.integers(&["broadcast_dimensions", "dims"])?;
    Ok(smallvec![broadcast_to(op, operand, &dimensions, shape)?])
}

/// HLO repeats a dimension that the operand lacks, and never one that it has: a dimension of size 1 that grows is
/// reshaped away before.
fn broadcast_to(
    op: &mut Conversion<'_, '_, '_>,
    mut operand: Site,
    dimensions: &[i64],
    shape: ShapeProto,
) -> Result<Site> {
    let from = op.body.shape(operand);
    if dimensions.len() != from.dimensions.len() {
        let (stated, rank) = (dimensions.len(), from.dimensions.len());
        return op.operation.fault(format!("it states {stated} dimensions for an operand of {rank}"));
    }
    let grows = |(dimension, &size): (&i64, &i64)| {
        let target = usize::try_from(*dimension).ok().and_then(|dimension| shape.dimensions.get(dimension));
        size == 1 && target.is_some_and(|target| *target != 1)
    };
    let grown: Vec<bool> = dimensions.iter().zip(&from.dimensions).map(grows).collect();
    let kept = |values: &[i64]| -> Vec<i64> {
        values.iter().zip(&grown).filter(|(_, grown)| !**grown).map(|(value, _)| *value).collect()
    };
    if grown.contains(&true) {
        let element = PrimitiveType::try_from(from.element_type).unwrap_or_default();
        operand = op.body.simple("reshape", array(element, kept(&from.dimensions)), &[operand]);
    }
    let mut instruction = op.body.instruction("broadcast", shape, &[operand]);
    instruction.dimensions = kept(dimensions);
    Ok(op.body.push(instruction))
}

/// `sizes = [2, 3]`, or `broadcast_sizes`: dimensions before those of the operand.
fn broadcast(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let added = op.integers(&["broadcast_sizes", "sizes"])?.len() as i64;
    let rank = op.body.shape(op.operand()?).dimensions.len() as i64;
    op.single("broadcast", |instruction| instruction.dimensions = (added..added.saturating_add(rank)).collect())
}

/// An opcode that has the name of an op of `mhlo`.
fn of_mhlo(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let opcode = op.operation.plain_name().replace('_', "-");
    op.single(&opcode, |_| {})
}

fn set_dimension_size(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimension = op.operation.integer(&["dimension", "dim"])?;
    op.single("set-dimension-size", |instruction| instruction.dimensions = vec![dimension])
}

/// Converts an op that gives nothing and does nothing.
fn trace(_: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    Ok(Sites::new())
}

fn rng_state(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let delta = op.operation.integer(&["delta"])?;
    op.over("rng-get-and-update-state", &[], |instruction| instruction.delta = delta)
}

fn create_token(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    op.over("after-all", &[], |_| {})
}

fn get_tuple_element(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    let index = match operation.attributes.get("index") {
        Some(index) => index.integer("index")?,
        None => match &operation.required(&["ranges"])?.list("index")? {
            [index] => match &index.value {
                Value::Integers(range) => range.first().copied().unwrap_or(0),
                _ => return operation.fault("expected the index of an element"),
            },
            _ => return operation.fault("expected the index of one element"),
        },
    };
    op.single("get-tuple-element", |instruction| instruction.tuple_index = index)
}

fn optimization_barrier(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operands = op.operands()?;
    let joined = op.body.joined(&operands);
    let shape = op.body.shape(joined);
    let barrier = op.body.simple("opt-barrier", shape, &[joined]);
    Ok(op.body.results(barrier, operands.len()))
}

/// `format = e5m10`
fn reduce_precision(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    let (exponent, mantissa) = match operation.attributes.get("format") {
        Some(format) => {
            let parts = format.word("format")?.strip_prefix('e').and_then(|word| word.split_once('m'));
            let parts = parts.and_then(|(exponent, mantissa)| Some((exponent.parse().ok()?, mantissa.parse().ok()?)));
            match parts {
                Some(parts) => parts,
                None => return format.fault("format", "a format, like e5m10"),
            }
        }
        None => (operation.integer(&["exponent_bits"])?, operation.integer(&["mantissa_bits"])?),
    };
    let bits = |bits: i64| match i32::try_from(bits) {
        Ok(bits) => Ok(bits),
        Err(_) => operation.fault(format!("there are no numbers with {bits} bits")),
    };
    let (exponent, mantissa) = (bits(exponent)?, bits(mantissa)?);
    op.single("reduce-precision", |instruction| {
        instruction.exponent_bits = exponent;
        instruction.mantissa_bits = mantissa;
    })
}

/// Two operands are the parameters of the distribution. The third, a constant, is the shape, which the type of the
/// result states too.
fn rng(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operands = op.operands()?;
    let &[first, second, shape] = operands.as_slice() else { return op.operation.fault("expected three operands") };
    let of = |word: &str| RandomDistribution::from_str_name(&format!("RNG_{word}"));
    let names = ["rng_distribution", "distribution"];
    let distribution = op.choice(&names, "UNIFORM or NORMAL as the distribution", of)?;
    op.body.asides.push(shape);
    op.over("rng", &[first, second], |instruction| instruction.distribution = distribution.into())
}

fn rng_bit_generator(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let of = |word: &str| RandomAlgorithm::from_str_name(&format!("RNG_{word}"));
    let names = ["rng_algorithm", "algorithm"];
    let algorithm = op.choice(&names, "DEFAULT, THREE_FRY or PHILOX as the algorithm", of)?;
    match op.operation.result_types()?.len() {
        2 => op.calling("rng-bit-generator", Vec::new(), |instruction| instruction.rng_algorithm = algorithm.into()),
        count => op.operation.fault(format!("expected a state and numbers as results, found {count}")),
    }
}

/// `epsilon = 1.0e-5 : f32, feature_index = 1 : i64`
fn batch_norm(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let epsilon = op.converter.real(op.operation.required(&["epsilon"])?, "epsilon")?;
    let feature_index = op.operation.integer(&["feature_index"])?;
    let opcode = op.operation.name.trim_start_matches("stablehlo.").replace('_', "-");
    op.calling(&opcode, Vec::new(), |instruction| {
        instruction.epsilon = epsilon as f32;
        instruction.feature_index = feature_index;
    })
}

fn get_dimension_size(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimension = op.operation.integer(&["dimension", "dim"])?;
    op.single("get-dimension-size", |instruction| instruction.dimensions = vec![dimension])
}

fn square(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operand = op.operand()?;
    op.over("multiply", &[operand, operand], |_| {})
}

/// The angle between a number and 1, as XLA has it; that of complex numbers it expands.
fn atan(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operand, shape) = (op.operand()?, op.operation.result_type()?.clone());
    let element = PrimitiveType::try_from(shape.element_type).unwrap_or_default();
    if matches!(element, PrimitiveType::C64 | PrimitiveType::C128) {
        return custom(op);
    }
    const ONE: &str = "1.0";
    let one = repeated(op, Lexer::new(ONE), Span { start: 0, end: ONE.len() }, shape)?;
    op.over("atan2", &[operand, one], |_| {})
}

/// An op that XLA expands into many instructions: a custom call of its name stands for them, with its attributes as
/// text.
fn custom(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let target = op.operation.written().into_owned();
    let operands = op.operands()?;
    custom_over(op, target, &operands)
}

fn custom_over(op: &mut Conversion<'_, '_, '_>, target: String, operands: &[Site]) -> Result<Sites> {
    let attributes = op.converter.text_of_attributes(op.operation);
    let mut instruction = op.body.instruction("custom-call", op.operation.result_type()?.clone(), operands);
    instruction.name = op.body.name(target.split_once('.').map_or(target.as_str(), |(_, name)| name));
    instruction.custom_call_target = target;
    instruction.custom_call_api_version = CustomCallApiVersion::ApiVersionOriginal.into();
    if !attributes.is_empty() {
        instruction.backend_config = attributes.into_bytes();
    }
    Ok(smallvec![op.body.push(instruction)])
}

/// `chlo.broadcast_add` and others: operands are repeated until they have the shape of the result.
pub(super) fn broadcasting(op: &mut Conversion<'_, '_, '_>, name: &str) -> Result<Sites> {
    let to = op.operation.result_type()?.dimensions.clone();
    let stated = op.operation.attributes.get("broadcast_dimensions");
    let stated = stated.map(|stated| op.converter.integers_of(stated, "broadcast_dimensions")).transpose()?;
    let mut operands = op.operands()?;
    for place in &mut operands {
        let from = op.body.shape(*place);
        if from.dimensions == to {
            continue;
        }
        let (rank, all) = (from.dimensions.len() as i64, to.len() as i64);
        let last = || (all.saturating_sub(rank)..all).collect();
        let dimensions = stated.clone().filter(|stated| stated.len() as i64 == rank).unwrap_or_else(last);
        *place = broadcast_to(op, *place, &dimensions, ShapeProto { dimensions: to.clone(), ..from })?;
    }
    if name == "compare" {
        return compared(op, &operands);
    }
    let opcode = ["stablehlo", "chlo"].iter().find_map(|dialect| names::opcode(&format!("{dialect}.{name}")));
    match opcode {
        Some(opcode) => op.over(opcode, &operands, |_| {}),
        None => custom_over(op, format!("chlo.{name}"), &operands),
    }
}

fn top_k(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let is_largest = op.operation.attributes.get("largest").map_or(Ok(true), |it| it.boolean("largest"))?;
    largest(op, op.operation.integer(&["k"])?, is_largest)
}

/// The `k` largest elements along the last dimension, or the smallest.
pub(super) fn largest(op: &mut Conversion<'_, '_, '_>, k: i64, largest: bool) -> Result<Sites> {
    op.calling("topk", Vec::new(), |instruction| {
        instruction.k = k;
        instruction.largest = largest;
    })
}
