//! The dimension labels and the sparsity of convolutions.

use super::{Value, emit, record};
use crate::parse::{Parser, Result, fault};
use crate::proto::sparsity_config::TensorSparsityConfig;
use crate::proto::{ConvolutionDimensionNumbers, SparsityConfig};
use crate::text::Printer;

/// Dimension numbers at or beyond this are not printed in convolution labels: no shape has so many.
const MAX_LABELS: usize = 64;

/// `b01f_01io->b01f`: what each dimension of the input, the kernel and the output is.
impl Value for ConvolutionDimensionNumbers {
    fn print(&self, printer: &mut Printer<'_>) {
        let input = [('b', self.input_batch_dimension), ('f', self.input_feature_dimension)];
        let kernel = [('i', self.kernel_input_feature_dimension), ('o', self.kernel_output_feature_dimension)];
        let output = [('b', self.output_batch_dimension), ('f', self.output_feature_dimension)];
        printer.text(&labels(input, &self.input_spatial_dimensions));
        printer.text("_");
        printer.text(&labels(kernel, &self.kernel_spatial_dimensions));
        printer.text("->");
        printer.text(&labels(output, &self.output_spatial_dimensions));
    }

    fn read(parser: &mut Parser<'_>) -> Result<Self> {
        let start = parser.lexer.here();
        let text = parser.pattern();
        let parts = text.split_once("->").and_then(|(operands, output)| Some((operands.split_once('_')?, output)));
        let Some(((input, kernel), output)) = parts else {
            return fault(start, format!("expected dimension labels, like b01f_01io->b01f, found \"{text}\""));
        };
        let numbers = places(input, ['b', 'f'])
            .and_then(|input| Some((input, places(kernel, ['i', 'o'])?, places(output, ['b', 'f'])?)));
        let Some((input, kernel, output)) = numbers else {
            return fault(
                start,
                format!(
                    "in \"{text}\" each part needs its two letters and the spatial dimensions from 0 on, each once"
                ),
            );
        };
        if input.2.len() != kernel.2.len() || input.2.len() != output.2.len() {
            return fault(start, format!("the parts of \"{text}\" have different numbers of spatial dimensions"));
        }
        Ok(ConvolutionDimensionNumbers {
            input_batch_dimension: input.0,
            input_feature_dimension: input.1,
            input_spatial_dimensions: input.2,
            kernel_input_feature_dimension: kernel.0,
            kernel_output_feature_dimension: kernel.1,
            kernel_spatial_dimensions: kernel.2,
            output_batch_dimension: output.0,
            output_feature_dimension: output.1,
            output_spatial_dimensions: output.2,
        })
    }
}

/// The label of each dimension: two letters, and digits for the spatial ones. Other dimensions are marked `?`.
fn labels(letters: [(char, i64); 2], spatial: &[i64]) -> String {
    let mut labels: Vec<String> = Vec::new();
    let letters = letters.into_iter().map(|(letter, dimension)| (letter.to_string(), dimension));
    let digits = spatial.iter().enumerate().map(|(index, &dimension)| (index.to_string(), dimension));
    for (label, dimension) in letters.chain(digits) {
        let Some(position) = usize::try_from(dimension).ok().filter(|&position| position < MAX_LABELS) else {
            continue;
        };
        if labels.len() <= position {
            labels.resize(position + 1, "?".to_string());
        }
        labels[position] = label;
    }
    labels.concat()
}

/// The places of two letters and of the digits from 0 on: the inverse of [`labels`].
fn places(text: &str, letters: [char; 2]) -> Option<(i64, i64, Vec<i64>)> {
    let mut places = [None; 2];
    let mut spatial: Vec<Option<i64>> = vec![None; text.chars().filter(char::is_ascii_digit).count()];
    for (place, letter) in text.chars().enumerate() {
        let slot = match letter {
            '?' => continue,
            _ if letter == letters[0] => &mut places[0],
            _ if letter == letters[1] => &mut places[1],
            _ => spatial.get_mut(letter.to_digit(10)? as usize)?,
        };
        if slot.replace(place as i64).is_some() {
            return None;
        }
    }
    Some((places[0].unwrap_or(0), places[1].unwrap_or(0), spatial.into_iter().collect::<Option<_>>()?))
}

record!(
    SparsityConfig, ", ", true, "a sparsity",
    { lhs, rhs },
    |config| config.lhs.is_none() && config.rhs.is_none()
);

impl Value for TensorSparsityConfig {
    fn print(&self, printer: &mut Printer<'_>) {
        emit!(printer, "{sparsity=", &self.num_non_zero, "x", &self.block_size);
        emit!(printer, " dimension=", &self.dimension, " stride=", &self.stride, "}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<TensorSparsityConfig> {
        let mut side = TensorSparsityConfig::default();
        let field = |parser: &mut Parser<'_>, name: &str| {
            let start = parser.lexer.here();
            match name {
                "sparsity" => match *parser.product()?.as_slice() {
                    [num_non_zero, block_size] => (side.num_non_zero, side.block_size) = (num_non_zero, block_size),
                    _ => {
                        return fault(start, "a sparsity is the number of non-zeros and the size of a block, like 2x4");
                    }
                },
                "dimension" => side.dimension = parser.lexer.integer()?,
                "stride" => side.stride = parser.lexer.integer()?,
                _ => return Ok(false),
            }
            Ok(true)
        };
        parser.fields("the sparsity of an operand", &["sparsity", "dimension", "stride"], field)?;
        Ok(side)
    }
}
