//! Ops on each element, constants, and what moves no elements between places.

use smallvec::smallvec;

use super::super::super::names::{COMPARISONS, DIRECTIONS, LARGE_SPLAT};
use super::super::attribute::{Attribute, Value};
use super::super::literal::{elements, literal};
use super::super::operation::Operation;
use super::body::{Body, Place, Places};
use super::{Converter, Rule};
use crate::parse::{Result, array, fault, hint};
use crate::proto::result_accuracy::{Mode, Specs, Tolerance};
use crate::proto::{CustomCallApiVersion, LiteralProto, PrimitiveType, ResultAccuracy, ShapeProto};
use crate::syntax::default_comparison;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.constant", constant),
    ("sdy.constant", constant),
    ("stablehlo.compare", compare),
    ("stablehlo.iota", iota),
    ("stablehlo.broadcast_in_dim", broadcast_in_dim),
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
];

/// An op that is an opcode and operands.
pub(super) fn plain<'a>(body: &mut Body<'a>, operation: &Operation<'a>, opcode: &str) -> Result<Places> {
    let operands = body.operands(operation)?;
    let shape = operation.result_type()?.clone();
    Ok(smallvec![body.simple(opcode, shape, &operands)])
}

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

fn constant<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let attribute = operation.required(&["value"])?;
    let (found, shape) = match &attribute.value {
        Value::Dense { body: text, shape } => (elements(converter.parser.lexer, *text, shape)?, shape),
        Value::Elided { shape } => (None, shape),
        _ => return attribute.fault("the value of a constant", "dense<...>"),
    };
    let count = shape.dimensions.iter().fold(1i64, |count, &size| count.saturating_mul(size));
    let (memory, position) = (&converter.parser.memory, operation.position);
    let Some(found) = found else {
        let elided = LiteralProto { shape: Some(shape.clone()), ..LiteralProto::default() };
        return Ok(smallvec![push_constant(body, shape.clone(), elided)]);
    };
    if found.is_splat && count >= LARGE_SPLAT {
        let scalar = array(PrimitiveType::try_from(shape.element_type).unwrap_or_default(), Vec::new());
        let value = literal(&found, &scalar, memory, position)?;
        let value = push_constant(body, scalar, value);
        return Ok(smallvec![body.simple("broadcast", shape.clone(), &[value])]);
    }
    let value = literal(&found, shape, memory, position)?;
    Ok(smallvec![push_constant(body, shape.clone(), value)])
}

fn push_constant(body: &mut Body<'_>, shape: ShapeProto, value: LiteralProto) -> Place {
    let mut instruction = body.instruction("constant", shape, &[]);
    instruction.literal = Some(value.into());
    body.push(instruction)
}

/// The words of a comparison stand alone in the short form, and in attributes like `#stablehlo<comparison_type FLOAT>`
/// in the generic one.
fn compare<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let operands = body.operands(operation)?;
    let stated = |name: &str, at: usize| -> Result<Option<(&'a str, usize)>> {
        match operation.attributes.get(name) {
            Some(attribute) => converter.last_word(attribute).map(Some),
            None => Ok(operation.words.get(at).copied()),
        }
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
        _ => default_comparison(operands.first().map(|&place| body.shape(place)).as_ref()),
    };
    let mut instruction = body.instruction("compare", operation.result_type()?.clone(), &operands);
    instruction.comparison_direction = direction.to_owned();
    instruction.comparison_type = kind.to_owned();
    Ok(smallvec![body.push(instruction)])
}

/// Returns an error unless the word is one of `words`.
fn known(word: &str, at: usize, words: &[&str]) -> Result<()> {
    match words.contains(&word) {
        true => Ok(()),
        false => {
            let near = hint(word, words.iter().copied());
            fault(at, format!("expected one of {}, found \"{word}\"{near}", words.join(", ")))
        }
    }
}

fn iota<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let mut instruction = body.instruction("iota", operation.result_type()?.clone(), &[]);
    instruction.dimensions = vec![operation.integer(&["iota_dimension", "dim"])?];
    Ok(smallvec![body.push(instruction)])
}

/// HLO repeats a dimension that the operand lacks, and never one that it has: a dimension of size 1 that grows is
/// reshaped away before.
fn broadcast_in_dim<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let operands = body.operands(operation)?;
    let &[operand] = operands.as_slice() else { return operation.fault("expected one operand") };
    let shape = operation.result_type()?.clone();
    let dimensions = converter.integers(operation, &["broadcast_dimensions", "dims"])?;
    let from = body.shape(operand);
    if dimensions.len() != from.dimensions.len() {
        let (stated, rank) = (dimensions.len(), from.dimensions.len());
        return operation.fault(format!("it states {stated} dimensions for an operand of {rank}"));
    }
    let grows = |(dimension, &size): (&i64, &i64)| {
        let target = usize::try_from(*dimension).ok().and_then(|dimension| shape.dimensions.get(dimension));
        size == 1 && target.is_some_and(|target| *target != 1)
    };
    let grown: Vec<bool> = dimensions.iter().zip(&from.dimensions).map(grows).collect();
    let kept = |values: &[i64]| -> Vec<i64> {
        values.iter().zip(&grown).filter(|(_, grown)| !**grown).map(|(value, _)| *value).collect()
    };
    let operand = match grown.contains(&true) {
        true => {
            let element = PrimitiveType::try_from(from.element_type).unwrap_or_default();
            body.simple("reshape", array(element, kept(&from.dimensions)), &[operand])
        }
        false => operand,
    };
    let mut instruction = body.instruction("broadcast", shape, &[operand]);
    instruction.dimensions = kept(&dimensions);
    Ok(smallvec![body.push(instruction)])
}

fn create_token<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    Ok(smallvec![body.simple("after-all", operation.result_type()?.clone(), &[])])
}

fn get_tuple_element<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let operands = body.operands(operation)?;
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
    let mut instruction = body.instruction("get-tuple-element", operation.result_type()?.clone(), &operands);
    instruction.tuple_index = index;
    Ok(smallvec![body.push(instruction)])
}

fn optimization_barrier<'a>(
    _: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let operands = body.operands(operation)?;
    let joined = body.joined(&operands);
    let shape = body.shape(joined);
    let barrier = body.simple("opt-barrier", shape, &[joined]);
    Ok(body.results(barrier, operands.len()))
}

/// `format = e5m10`
fn reduce_precision<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let operands = body.operands(operation)?;
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
    let mut instruction = body.instruction("reduce-precision", operation.result_type()?.clone(), &operands);
    instruction.exponent_bits = bits(exponent)?;
    instruction.mantissa_bits = bits(mantissa)?;
    Ok(smallvec![body.push(instruction)])
}

/// Two operands are the parameters of the distribution. The third, a constant, is the shape, which the type of the
/// result states too.
fn rng<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    use crate::proto::RandomDistribution;
    let operands = body.operands(operation)?;
    let &[first, second, shape] = operands.as_slice() else { return operation.fault("expected three operands") };
    let (word, at) = converter.last_word(operation.required(&["rng_distribution", "distribution"])?)?;
    let Some(distribution) = RandomDistribution::from_str_name(&format!("RNG_{word}")) else {
        return fault(at, format!("expected UNIFORM or NORMAL as the distribution, found {word}"));
    };
    body.asides.push(shape);
    let mut instruction = body.instruction("rng", operation.result_type()?.clone(), &[first, second]);
    instruction.distribution = distribution.into();
    Ok(smallvec![body.push(instruction)])
}

fn rng_bit_generator<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    use crate::proto::RandomAlgorithm;
    let operands = body.operands(operation)?;
    let attribute = operation.required(&["rng_algorithm", "algorithm"])?;
    let (word, at) = converter.last_word(attribute)?;
    let Some(algorithm) = RandomAlgorithm::from_str_name(&format!("RNG_{word}")) else {
        return fault(at, format!("expected DEFAULT, THREE_FRY or PHILOX as the algorithm, found {word}"));
    };
    let shapes = operation.result_types()?.to_vec();
    let count = shapes.len();
    let mut instruction = body.instruction("rng-bit-generator", crate::parse::tuple(shapes), &operands);
    instruction.rng_algorithm = algorithm.into();
    let place = body.push(instruction);
    match count {
        2 => Ok(body.elements(place)),
        _ => operation.fault(format!("expected a state and numbers as results, found {count}")),
    }
}

/// `epsilon = 1.0e-5 : f32, feature_index = 1 : i64`
fn batch_norm<'a>(converter: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let epsilon = converter.real(operation.required(&["epsilon"])?, "epsilon")?;
    let feature_index = operation.integer(&["feature_index"])?;
    let opcode = operation.name.trim_start_matches("stablehlo.").replace('_', "-");
    body.calling(operation, &opcode, Vec::new(), |instruction| {
        instruction.epsilon = epsilon as f32;
        instruction.feature_index = feature_index;
    })
}

fn get_dimension_size<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let operands = body.operands(operation)?;
    let mut instruction = body.instruction("get-dimension-size", operation.result_type()?.clone(), &operands);
    instruction.dimensions = vec![operation.integer(&["dimension", "dim"])?];
    Ok(smallvec![body.push(instruction)])
}

fn square<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let operands = body.operands(operation)?;
    let &[operand] = operands.as_slice() else { return operation.fault("expected one operand") };
    Ok(smallvec![body.simple("multiply", operation.result_type()?.clone(), &[operand, operand])])
}

/// An op that XLA expands into many instructions: a custom call of its name stands for them.
fn custom<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let operands = body.operands(operation)?;
    let mut instruction = body.instruction("custom-call", operation.result_type()?.clone(), &operands);
    instruction.name = body.name(operation.name.trim_start_matches("chlo."));
    instruction.custom_call_target = operation.name.clone().into_owned();
    instruction.custom_call_api_version = CustomCallApiVersion::ApiVersionOriginal.into();
    Ok(smallvec![body.push(instruction)])
}

fn top_k<'a>(_: &mut Converter<'a, '_>, body: &mut Body<'a>, operation: &Operation<'a>) -> Result<Places> {
    let stated = operation.attributes.get("largest").map(|largest| largest.boolean("largest"));
    largest(body, operation, operation.integer(&["k"])?, stated.transpose()?.unwrap_or(true))
}

/// The `k` largest elements along the last dimension, or the smallest.
pub(super) fn largest<'a>(body: &mut Body<'a>, operation: &Operation<'a>, k: i64, largest: bool) -> Result<Places> {
    body.calling(operation, "topk", Vec::new(), |instruction| {
        instruction.k = k;
        instruction.largest = largest;
    })
}
