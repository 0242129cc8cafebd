//! Ops that move a window over their operands.

use super::super::attribute::Value;
use super::super::lexer::{Lexer, Span};
use super::super::operation::Operation;
use super::body::Sites;
use super::dimensions::Numbers;
use super::{Conversion, Rule};
use crate::parse::{Result, fault};
use crate::proto::{ConvolutionDimensionNumbers, Window, WindowDimension};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.convolution", convolution),
    ("stablehlo.reduce_window", reduce_window),
    ("stablehlo.select_and_scatter", select_and_scatter),
];

/// The numbers that an op states for its window: strides, padding, dilations of the base and of the window, reversal.
/// The padding has two for each dimension.
type Stated = [Option<Vec<i64>>; 5];

/// The value of each where it is left out.
const USUAL: [i64; 5] = [1, 0, 1, 1, 0];

/// The numbers of each for one dimension.
const COUNTS: [usize; 5] = [1, 2, 1, 1, 1];

/// Their names in the short form of a convolution.
const SHORT: [&str; 5] = ["stride", "pad", "lhs_dilate", "rhs_dilate", "reverse"];

/// The window of these sizes.
fn window(operation: &Operation<'_>, sizes: &[i64], stated: Stated) -> Result<Window> {
    let rank = sizes.len();
    let mut all: [Vec<i64>; 5] = Default::default();
    for (at, (stated, usual)) in stated.into_iter().zip(USUAL).enumerate() {
        let count = COUNTS[at] * rank;
        let values = stated.unwrap_or_else(|| vec![usual; count]);
        if values.len() != count {
            let found = values.len();
            return operation
                .fault(format!("its window has {rank} dimensions, and the text has {found} numbers for them"));
        }
        all[at] = values;
    }
    let [strides, padding, base, dilations, reversal] = all;
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

impl Conversion<'_, '_, '_> {
    /// Returns what attributes of these names state.
    fn stated(&self, names: &[&str]) -> Result<Stated> {
        let mut stated = Stated::default();
        for (stated, name) in stated.iter_mut().zip(names) {
            let attribute = self.operation.attributes.get(name);
            *stated = attribute.map(|attribute| self.converter.integers_of(attribute, name)).transpose()?;
        }
        Ok(stated)
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
        lexer.separator(']', "after a dimension")?;
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

/// `raw input_batch_dimension = 0, input_spatial_dimensions = [1, 2], ...`
fn raw_numbers(numbers: &Numbers) -> ConvolutionDimensionNumbers {
    ConvolutionDimensionNumbers {
        input_batch_dimension: numbers.one("input_batch_dimension"),
        input_feature_dimension: numbers.one("input_feature_dimension"),
        input_spatial_dimensions: numbers.list("input_spatial_dimensions"),
        kernel_input_feature_dimension: numbers.one("kernel_input_feature_dimension"),
        kernel_output_feature_dimension: numbers.one("kernel_output_feature_dimension"),
        kernel_spatial_dimensions: numbers.list("kernel_spatial_dimensions"),
        output_batch_dimension: numbers.one("output_batch_dimension"),
        output_feature_dimension: numbers.one("output_feature_dimension"),
        output_spatial_dimensions: numbers.list("output_spatial_dimensions"),
    }
}

fn convolution(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    let attribute = operation.required(&["dimension_numbers", "dim_numbers"])?;
    let numbers = match &attribute.value {
        Value::Dictionary(_) => raw_numbers(&op.numbers("dimension_numbers")?),
        value => {
            // The short form has them outside of brackets of their own.
            let span = if let Value::Dialect { body, .. } = value { *body } else { attribute.span };
            let mut lexer = op.converter.parser.lexer.part(span);
            match lexer.eat_word("raw") {
                true => raw_numbers(&op.numbers_in(Span { start: lexer.here(), end: span.end })?),
                false => dimension_numbers(lexer)?,
            }
        }
    };
    let stated = match operation.attributes.get("window") {
        Some(window) => {
            let Value::Dictionary(fields) = &window.value else {
                return window.fault("window", "{stride = [...], ...}");
            };
            let mut stated = Stated::default();
            for (name, value) in &fields.0 {
                match SHORT.iter().position(|short| short == name) {
                    Some(at) => stated[at] = Some(op.converter.integers_of(value, name)?),
                    None => return fault(value.span.start, format!("a window has no field {name}")),
                }
            }
            stated
        }
        None => op.stated(&["window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal"])?,
    };
    let operands = op.operands()?;
    let kernel = operands.get(1).map(|&place| op.body.shape(place).dimensions).unwrap_or_default();
    let size = |dimension: &i64| usize::try_from(*dimension).ok().and_then(|at| kernel.get(at)).copied();
    let Some(sizes) = numbers.kernel_spatial_dimensions.iter().map(size).collect::<Option<Vec<i64>>>() else {
        return operation.fault("its kernel does not have the dimensions that are stated");
    };
    let window = match sizes.is_empty() {
        // HLO has no window where there is nothing to move over.
        true => Window::default(),
        false => window(operation, &sizes, stated)?,
    };
    let count = |name: &str| operation.optional_integer(name).map(|count| count.unwrap_or(1));
    let (features, batches) = (count("feature_group_count")?, count("batch_group_count")?);
    let precision = op.converter.precision(operation)?;
    op.over("convolution", &operands, |instruction| {
        instruction.window = Some(window);
        instruction.convolution_dimension_numbers = Some(numbers.into());
        instruction.feature_group_count = features;
        instruction.batch_group_count = batches;
        instruction.precision_config = Some(precision.into());
    })
}

fn stated_window(op: &Conversion<'_, '_, '_>) -> Result<Window> {
    let sizes = op.integers(&["window_dimensions"])?;
    let stated = op.stated(&["window_strides", "padding", "base_dilations", "window_dilations"])?;
    window(op.operation, &sizes, stated)
}

fn reduce_window(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let window = stated_window(op)?;
    let reducer = op.applied(0, "reducer")?;
    op.calling("reduce-window", vec![reducer], |instruction| instruction.window = Some(window))
}

fn select_and_scatter(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let window = stated_window(op)?;
    let called = vec![op.applied(0, "select")?, op.applied(1, "scatter")?];
    op.calling("select-and-scatter", called, |instruction| instruction.window = Some(window))
}
