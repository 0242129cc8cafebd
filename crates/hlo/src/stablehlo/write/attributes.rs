//! Attributes in MLIR's text.

use super::error::{Result, malformed, no_form};
use crate::proto::precision_config::{Algorithm, Precision};
use crate::proto::result_accuracy::{Mode, Specs};
use crate::proto::{HloInstructionProto, Window, WindowDimension};

/// The attributes of one op, each with its name.
pub(super) type Attributes = Vec<(&'static str, String)>;

/// `1 : i64`.
pub(super) fn number(value: i64) -> String {
    format!("{value} : i64")
}

/// `array<i64: 1, 2>`.
pub(super) fn array<'n>(values: impl IntoIterator<Item = &'n i64>) -> String {
    list("i64", values.into_iter().map(i64::to_string))
}

/// `array<i1: true, false>`.
fn bools(values: impl IntoIterator<Item = bool>) -> String {
    list("i1", values.into_iter().map(|value| value.to_string()))
}

fn list(ty: &str, values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    if values.is_empty() { format!("array<{ty}>") } else { format!("array<{ty}: {}>", values.join(", ")) }
}

/// `[1, 2]`.
pub(super) fn brackets(values: &[i64]) -> String {
    let values: Vec<String> = values.iter().map(i64::to_string).collect();
    format!("[{}]", values.join(", "))
}

/// `dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>`, of rows that are equally long.
pub(super) fn matrix(rows: &[Vec<i64>], columns: usize) -> String {
    let ty = format!("tensor<{}x{columns}xi64>", rows.len());
    if rows.is_empty() || columns == 0 {
        return format!("dense<> : {ty}");
    }
    let rows: Vec<String> = rows.iter().map(|row| brackets(row)).collect();
    format!("dense<[{}]> : {ty}", rows.join(", "))
}

/// `dense<[1, 0]> : tensor<2xindex>`.
pub(super) fn layout(minor_to_major: &[i64]) -> String {
    match minor_to_major {
        [] => "dense<> : tensor<0xindex>".to_owned(),
        order => format!("dense<{}> : tensor<{}xindex>", brackets(order), order.len()),
    }
}

/// A string between quotes.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for &byte in bytes {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\{byte:02X}")),
        }
    }
    text.push('"');
    text
}

/// A name as it is where MLIR reads it so, else between quotes.
fn bare_or_quoted(name: &str) -> String {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_rest = |byte: u8| is_letter(byte) || byte.is_ascii_digit() || matches!(byte, b'$' | b'.');
    let is_bare = name.bytes().next().is_some_and(is_letter) && name.bytes().all(is_rest);
    if is_bare { name.to_owned() } else { quoted(name.as_bytes()) }
}

/// `@name`.
pub(super) fn symbol(name: &str) -> String {
    format!("@{}", bare_or_quoted(name))
}

/// `{name = "value", ...}`.
pub(super) fn dictionary<'e>(entries: impl IntoIterator<Item = (&'e String, &'e String)>) -> String {
    let entry = |(name, value): (&String, &String)| format!("{} = {}", bare_or_quoted(name), quoted(value.as_bytes()));
    let entries: Vec<String> = entries.into_iter().map(entry).collect();
    format!("{{{}}}", entries.join(", "))
}

/// The precision of the operands of a product, in a dialect; none where it is the usual one.
pub(super) fn precision(instruction: &HloInstructionProto, dialect: &str) -> Result<Option<String>> {
    let precisions = match instruction.precision_config.as_deref() {
        Some(config) if config.operand_precision.iter().any(|&precision| precision != 0) => &config.operand_precision,
        _ => return Ok(None),
    };
    let mut words = Vec::with_capacity(precisions.len());
    for &precision in precisions {
        match Precision::try_from(precision) {
            Ok(precision) => words.push(format!("#{dialect}<precision {}>", precision.as_str_name())),
            Err(_) => return no_form(format!("operand precision {precision} is not one of StableHLO's; use another")),
        }
    }
    Ok(Some(format!("[{}]", words.join(", "))))
}

/// The algorithm of a product; none where it is not stated.
pub(super) fn algorithm(instruction: &HloInstructionProto) -> Result<Option<String>> {
    let Some(config) = instruction.precision_config.as_deref() else { return Ok(None) };
    let Ok(algorithm) = Algorithm::try_from(config.algorithm) else {
        return no_form(format!("algorithm {} of a product is unknown; use another", config.algorithm));
    };
    // `ALG_DOT_BF16_BF16_F32_X3`: the types of the operands and of the sum, and the number of products.
    let name = algorithm.as_str_name().to_ascii_lowercase().replace("any_f8", "f8E5M2");
    let words: Vec<&str> = name.split('_').collect();
    let [_, _, operands, _, sum, rest @ ..] = words.as_slice() else { return Ok(None) };
    let products = rest.first().and_then(|word| word.strip_prefix('x')).unwrap_or("1");
    let is_imprecise = rest.contains(&"fast");
    Ok(Some(format!(
        "#stablehlo.dot_algorithm<lhs_precision_type = {operands}, rhs_precision_type = {operands}, \
         accumulation_type = {sum}, lhs_component_count = 1, rhs_component_count = 1, \
         num_primitive_operations = {products}, allow_imprecise_accumulation = {is_imprecise}>"
    )))
}

/// How exact a function of one number has to be; none where it is not stated.
pub(super) fn accuracy(instruction: &HloInstructionProto) -> Option<String> {
    match instruction.result_accuracy.as_ref()?.specs.as_ref()? {
        Specs::Mode(mode) if *mode == Mode::Highest as i32 => {
            Some("#stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<HIGHEST>>".to_owned())
        }
        Specs::Mode(_) => None,
        Specs::Tolerance(tolerance) => Some(format!(
            "#stablehlo.result_accuracy<atol = {:e}, rtol = {:e}, ulps = {}, \
             mode = #stablehlo.result_accuracy_mode<TOLERANCE>>",
            Decimal(tolerance.atol),
            Decimal(tolerance.rtol),
            tolerance.ulps
        )),
    }
}

/// A finite number in MLIR's form, in which a point is a must: `1.0e-5`.
pub(super) struct Decimal(pub(super) f64);

impl std::fmt::LowerExp for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:e}", self.0);
        match text.split_once('e') {
            Some((digits, exponent)) if !digits.contains('.') => write!(f, "{digits}.0e{exponent}"),
            _ => f.write_str(&text),
        }
    }
}

/// The dimensions of a window; none stated is an error unless it has none.
pub(super) fn window_of(instruction: &HloInstructionProto, rank: usize) -> Result<&[WindowDimension]> {
    let dimensions = instruction.window.as_ref().map_or(&[][..], |window: &Window| &window.dimensions);
    if dimensions.len() != rank {
        return malformed(format!("a window of {rank} dimensions is expected, one of {} found", dimensions.len()));
    }
    Ok(dimensions)
}

/// The steps of a window, and what it sees beyond the edges.
pub(super) fn window(dimensions: &[WindowDimension]) -> Attributes {
    let padding = dimensions.iter().map(|dimension| vec![dimension.padding_low, dimension.padding_high]);
    vec![
        ("window_strides", field(dimensions, |dimension| dimension.stride)),
        ("padding", matrix(&padding.collect::<Vec<_>>(), 2)),
    ]
}

/// How far apart the elements of the base and of the window are, each under its name.
pub(super) fn dilations(dimensions: &[WindowDimension], [base, window]: [&'static str; 2]) -> Attributes {
    vec![
        (base, field(dimensions, |dimension| dimension.base_dilation)),
        (window, field(dimensions, |dimension| dimension.window_dilation)),
    ]
}

/// A field of each dimension.
pub(super) fn field<D>(dimensions: &[D], field: fn(&D) -> i64) -> String {
    array(&dimensions.iter().map(field).collect::<Vec<_>>())
}

pub(super) fn window_sizes(dimensions: &[WindowDimension]) -> String {
    field(dimensions, |dimension| dimension.size)
}

pub(super) fn window_reversal(dimensions: &[WindowDimension]) -> String {
    bools(dimensions.iter().map(|dimension| dimension.window_reversal))
}

/// `#stablehlo.gather<offset_dims = [1], index_vector_dim = 1>`: lists that are empty are left out.
pub(super) fn dimension_numbers(name: &str, lists: &[(&str, &Vec<i64>)], index_vector_dim: i64) -> String {
    let stated = lists.iter().filter(|(_, list)| !list.is_empty());
    let mut parts: Vec<String> = stated.map(|(name, list)| format!("{name} = {}", brackets(list))).collect();
    parts.push(format!("index_vector_dim = {index_vector_dim}"));
    format!("#stablehlo.{name}<{}>", parts.join(", "))
}
