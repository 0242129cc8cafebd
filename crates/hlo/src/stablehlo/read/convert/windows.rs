//! Ops that move a window over their operands.

use smallvec::smallvec;

use super::super::attribute::{Attribute, Value};
use super::super::lexer::{Lexer, Span};
use super::super::operation::Operation;
use super::body::{Body, Places};
use super::{Converter, Rule};
use crate::parse::{Result, fault};
use crate::proto::{ConvolutionDimensionNumbers, Window, WindowDimension};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.convolution", convolution),
    ("stablehlo.reduce_window", reduce_window),
    ("stablehlo.select_and_scatter", select_and_scatter),
];

/// The window that an op states; fields that are left out have their usual values.
#[derive(Default)]
struct Stated {
    strides: Option<Vec<i64>>,
    /// Pairs, one after another.
    padding: Option<Vec<i64>>,
    base_dilations: Option<Vec<i64>>,
    window_dilations: Option<Vec<i64>>,
    reversal: Option<Vec<i64>>,
}

impl Stated {
    fn window(self, operation: &Operation<'_>, sizes: &[i64]) -> Result<Window> {
        let rank = sizes.len();
        let of = |values: Option<Vec<i64>>, usual: i64, each: usize| -> Result<Vec<i64>> {
            match values {
                None => Ok(vec![usual; rank * each]),
                Some(values) if values.len() == rank * each => Ok(values),
                Some(values) => operation.fault(format!(
                    "its window has {rank} dimensions, and the text has {} numbers for them",
                    values.len()
                )),
            }
        };
        let strides = of(self.strides, 1, 1)?;
        let padding = of(self.padding, 0, 2)?;
        let base = of(self.base_dilations, 1, 1)?;
        let dilations = of(self.window_dilations, 1, 1)?;
        let reversal = of(self.reversal, 0, 1)?;
        let dimension = |at: usize| WindowDimension {
            size: sizes[at],
            stride: strides[at],
            padding_low: padding[2 * at],
            padding_high: padding[2 * at + 1],
            window_dilation: dilations[at],
            base_dilation: base[at],
            window_reversal: reversal[at] != 0,
        };
        Ok(Window { dimensions: (0..rank).map(dimension).collect() })
    }
}

/// The dimensions of an operand or a result: of what names two letters have, and the others in their order.
struct Letters {
    first: i64,
    second: i64,
    spatial: Vec<i64>,
}

/// `[b, 0, 1, f]`
fn letters(lexer: &mut Lexer<'_>, first: &str, second: &str) -> Result<Letters> {
    let start = lexer.here();
    lexer.expect("[", "before the dimensions of a convolution")?;
    let (mut found, mut spatial) = ([None, None], Vec::new());
    let mut at = 0;
    while !lexer.eat("]") {
        match lexer.word() {
            Some(word) if word == first => found[0] = Some(at),
            Some(word) if word == second => found[1] = Some(at),
            Some(word) => return fault(start, format!("expected {first}, {second} or a number, found {word}")),
            None if lexer.eat("?") => return fault(start, "a dimension of a convolution is not known"),
            None => spatial.push((lexer.integer("the number of a dimension")?, at)),
        }
        at += 1;
        if !lexer.eat(",") && lexer.peek() != Some(b']') {
            return lexer.unexpected("',' or ']' after a dimension");
        }
    }
    let [Some(first), Some(second)] = found else {
        return fault(start, format!("expected the dimensions {first} and {second}"));
    };
    spatial.sort_unstable();
    Ok(Letters { first, second, spatial: spatial.into_iter().map(|(_, at)| at).collect() })
}

/// `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`
fn dimension_numbers(mut lexer: Lexer<'_>) -> Result<ConvolutionDimensionNumbers> {
    let input = letters(&mut lexer, "b", "f")?;
    if !lexer.eat_word("x") {
        return lexer.unexpected("'x' between the dimensions of a convolution");
    }
    let kernel = letters(&mut lexer, "i", "o")?;
    lexer.expect("->", "before the dimensions of the result")?;
    let output = letters(&mut lexer, "b", "f")?;
    Ok(ConvolutionDimensionNumbers {
        input_batch_dimension: input.first,
        input_feature_dimension: input.second,
        input_spatial_dimensions: input.spatial,
        kernel_input_feature_dimension: kernel.first,
        kernel_output_feature_dimension: kernel.second,
        kernel_spatial_dimensions: kernel.spatial,
        output_batch_dimension: output.first,
        output_feature_dimension: output.second,
        output_spatial_dimensions: output.spatial,
    })
}

/// The part of the text that has the dimension numbers.
fn span(attribute: &Attribute<'_>, short: bool) -> Result<Span> {
    match &attribute.value {
        // The short form has them outside of brackets of their own.
        Value::Dialect { body, .. } => Ok(*body),
        _ if short => Ok(attribute.span),
        _ => attribute.fault("dimension_numbers", "#stablehlo.conv<...>"),
    }
}

fn convolution<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let operands = body.operands(operation)?;
    let attribute = operation.required(&["dimension_numbers", "dim_numbers"])?;
    let numbers = dimension_numbers(converter.parser.lexer.part(span(attribute, true)?))?;
    let mut stated = Stated::default();
    if let Some(window) = operation.attributes.get("window") {
        let Value::Dictionary(fields) = &window.value else { return window.fault("window", "{stride = [...], ...}") };
        for (name, value) in &fields.0 {
            let field = match name.as_str() {
                "stride" => &mut stated.strides,
                "pad" => &mut stated.padding,
                "lhs_dilate" => &mut stated.base_dilations,
                "rhs_dilate" => &mut stated.window_dilations,
                "reverse" => &mut stated.reversal,
                other => return fault(value.span.start, format!("a window has no field {other}")),
            };
            *field = Some(converter.integers_of(value, name)?);
        }
    } else {
        stated = Stated {
            strides: converter.optional_integers(operation, &["window_strides"])?,
            padding: converter.optional_integers(operation, &["padding"])?,
            base_dilations: converter.optional_integers(operation, &["lhs_dilation"])?,
            window_dilations: converter.optional_integers(operation, &["rhs_dilation"])?,
            reversal: converter.optional_integers(operation, &["window_reversal"])?,
        };
    }
    let kernel = operands.get(1).map(|&place| body.shape(place).dimensions).unwrap_or_default();
    let size = |dimension: &i64| usize::try_from(*dimension).ok().and_then(|at| kernel.get(at)).copied();
    let Some(sizes) = numbers.kernel_spatial_dimensions.iter().map(size).collect::<Option<Vec<i64>>>() else {
        return operation.fault("its kernel does not have the dimensions that are stated");
    };
    let window = match sizes.is_empty() {
        // HLO has no window where there is nothing to move over.
        true => Window::default(),
        false => stated.window(operation, &sizes)?,
    };
    let mut instruction = body.instruction("convolution", operation.result_type()?.clone(), &operands);
    instruction.window = Some(window);
    instruction.convolution_dimension_numbers = Some(numbers.into());
    instruction.feature_group_count = operation.optional_integer("feature_group_count")?.unwrap_or(1);
    instruction.batch_group_count = operation.optional_integer("batch_group_count")?.unwrap_or(1);
    instruction.precision_config = converter.precision(operation)?.map(Into::into);
    Ok(smallvec![body.push(instruction)])
}

fn stated_window<'a>(converter: &Converter<'a, '_>, operation: &Operation<'a>) -> Result<Window> {
    let sizes = converter.integers(operation, &["window_dimensions"])?;
    let stated = Stated {
        strides: converter.optional_integers(operation, &["window_strides"])?,
        padding: converter.optional_integers(operation, &["padding"])?,
        base_dilations: converter.optional_integers(operation, &["base_dilations"])?,
        window_dilations: converter.optional_integers(operation, &["window_dilations"])?,
        reversal: None,
    };
    stated.window(operation, &sizes)
}

fn reduce_window<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let window = stated_window(converter, operation)?;
    let reducer = converter.applied(body, operation, 0, "reducer")?;
    body.calling(operation, "reduce-window", vec![reducer], |instruction| instruction.window = Some(window))
}

fn select_and_scatter<'a>(
    converter: &mut Converter<'a, '_>,
    body: &mut Body<'a>,
    operation: &Operation<'a>,
) -> Result<Places> {
    let window = stated_window(converter, operation)?;
    let select = converter.applied(body, operation, 0, "select")?;
    let scatter = converter.applied(body, operation, 1, "scatter")?;
    body.calling(operation, "select-and-scatter", vec![select, scatter], |instruction| {
        instruction.window = Some(window)
    })
}
