//! Windows, padding, the dimension labels of convolutions, precisions.

use super::Parser;
use super::error::{Result, fault};
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::precision_config::{Algorithm, Precision};
use crate::proto::sparsity_config::TensorSparsityConfig;
use crate::proto::{ConvolutionDimensionNumbers, PaddingConfig, SparsityConfig, Window, WindowDimension};

/// Letters of `3x3`, `0_1x-2_3` and `b01f_01io->b01f`.
fn is_pattern(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'?' | b'>')
}

impl Parser<'_> {
    /// `{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x0}`.
    pub(super) fn window(&mut self) -> Result<Window> {
        let start = self.lexer.here();
        self.lexer.expect(b'{', "before the parts of a window")?;
        let mut parts: [Vec<i64>; 5] = Default::default();
        let mut padding = Vec::new();
        const NAMES: [&str; 5] = ["size", "stride", "lhs_dilate", "rhs_dilate", "rhs_reversal"];
        while !self.lexer.eat(b'}') {
            let start = self.lexer.here();
            let name = self.lexer.attribute_name()?;
            // XLA prints the one name and reads the other.
            let name = if name == "rhs_reverse" { "rhs_reversal" } else { name };
            if name == "pad" {
                padding = self.paddings(2)?;
            } else if let Some(place) = NAMES.iter().position(|part| *part == name) {
                parts[place] = self.product()?;
            } else {
                return fault(start, format!("a window has {} and pad, found \"{name}\"", NAMES.join(", ")));
            }
        }
        let [sizes, strides, base_dilations, window_dilations, reversals] = parts;
        for (name, count) in [
            ("stride", strides.len()),
            ("lhs_dilate", base_dilations.len()),
            ("rhs_dilate", window_dilations.len()),
            ("rhs_reversal", reversals.len()),
            ("pad", padding.len()),
        ] {
            if count != 0 && count != sizes.len() {
                return fault(start, format!("{name} has {count} dimensions, and size has {}", sizes.len()));
            }
        }
        let or_one = |values: &[i64], place: usize| values.get(place).copied().unwrap_or(1);
        let dimensions = sizes.iter().enumerate().map(|(place, &size)| WindowDimension {
            size,
            stride: or_one(&strides, place),
            padding_low: padding.get(place).map_or(0, |padding: &[i64; 3]| padding[0]),
            padding_high: padding.get(place).map_or(0, |padding| padding[1]),
            window_dilation: or_one(&window_dilations, place),
            base_dilation: or_one(&base_dilations, place),
            window_reversal: reversals.get(place) == Some(&1),
        });
        Ok(Window { dimensions: dimensions.collect() })
    }

    /// `{lhs={sparsity=2x4 dimension=1 stride=2}, rhs={...}}`.
    pub(super) fn sparsity(&mut self) -> Result<SparsityConfig> {
        let mut config = SparsityConfig::default();
        self.lexer.expect(b'{', "before a sparsity")?;
        while !self.lexer.eat(b'}') {
            self.lexer.eat(b',');
            let start = self.lexer.here();
            match self.lexer.attribute_name()? {
                "lhs" => config.lhs = Some(self.side_sparsity()?),
                "rhs" => config.rhs = Some(self.side_sparsity()?),
                other => return fault(start, format!("a sparsity has lhs and rhs, found \"{other}\"")),
            }
        }
        Ok(config)
    }

    fn side_sparsity(&mut self) -> Result<TensorSparsityConfig> {
        let mut side = TensorSparsityConfig::default();
        self.lexer.expect(b'{', "before the sparsity of an operand")?;
        while !self.lexer.eat(b'}') {
            self.lexer.eat(b',');
            let start = self.lexer.here();
            match self.lexer.attribute_name()? {
                "sparsity" => match *self.product()?.as_slice() {
                    [num_non_zero, block_size] => {
                        (side.num_non_zero, side.block_size) = (num_non_zero, block_size);
                    }
                    _ => {
                        return fault(start, "a sparsity is the number of non-zeros and the size of a block, like 2x4");
                    }
                },
                "dimension" => side.dimension = self.lexer.integer()?,
                "stride" => side.stride = self.lexer.integer()?,
                other => {
                    return fault(start, format!("the sparsity of an operand has no \"{other}\""));
                }
            }
        }
        Ok(side)
    }

    /// `3x3`.
    fn product(&mut self) -> Result<Vec<i64>> {
        let start = self.lexer.here();
        let text = self.lexer.take_while(is_pattern);
        let values: std::result::Result<_, _> = text.split('x').map(str::parse).collect();
        values.or_else(|_| fault(start, format!("expected numbers joined by x, like 3x3, found \"{text}\"")))
    }

    /// `0_1x2_3_1`: for each dimension low, high and perhaps interior padding, if `most` is 3.
    fn paddings(&mut self, most: usize) -> Result<Vec<[i64; 3]>> {
        let start = self.lexer.here();
        let text = self.lexer.take_while(is_pattern);
        let dimension = |text: &str| {
            let mut padding = [0; 3];
            let mut count = 0;
            for (number, text) in text.split('_').enumerate() {
                *padding.get_mut(number).filter(|_| number < most)? = text.parse().ok()?;
                count = number + 1;
            }
            (count >= 2).then_some(padding)
        };
        match text.split('x').map(dimension).collect() {
            Some(padding) => Ok(padding),
            None => fault(start, format!("expected padding, like 0_1x2_2, found \"{text}\"")),
        }
    }

    /// The padding of `pad`; of a scalar nothing is written.
    pub(super) fn padding(&mut self) -> Result<PaddingConfig> {
        if matches!(self.lexer.peek(), Some(b',' | b'}') | None) || self.lexer.peek_adjacent() == Some(b'\n') {
            return Ok(PaddingConfig::default());
        }
        let dimensions = self.paddings(3)?.into_iter().map(|[low, high, interior]| PaddingConfigDimension {
            edge_padding_low: low,
            edge_padding_high: high,
            interior_padding: interior,
        });
        Ok(PaddingConfig { dimensions: dimensions.collect() })
    }

    /// `b01f_01io->b01f`: what each dimension of the input, the kernel and the output is.
    pub(super) fn dimension_labels(&mut self) -> Result<ConvolutionDimensionNumbers> {
        let start = self.lexer.here();
        let text = self.lexer.take_while(is_pattern);
        let parts = text.split_once("->").and_then(|(operands, output)| Some((operands.split_once('_')?, output)));
        let Some(((input, kernel), output)) = parts else {
            return fault(start, format!("expected dimension labels, like b01f_01io->b01f, found \"{text}\""));
        };
        let numbers = labels(input, ['b', 'f'])
            .and_then(|input| Some((input, labels(kernel, ['i', 'o'])?, labels(output, ['b', 'f'])?)));
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

    /// `{highest,default}`.
    pub(super) fn precisions(&mut self) -> Result<Vec<i32>> {
        let mut values = Vec::new();
        self.list(b'{', b'}', |parser| {
            let start = parser.lexer.here();
            values.push(match parser.lexer.expect_word("a precision")? {
                "default" => Precision::Default.into(),
                "high" => Precision::High.into(),
                "highest" => Precision::Highest.into(),
                other => {
                    return fault(start, format!("a precision is default, high or highest, found \"{other}\""));
                }
            });
            Ok(())
        })?;
        Ok(values)
    }

    /// `dot_bf16_bf16_f32`.
    pub(super) fn dot_algorithm(&mut self) -> Result<i32> {
        let start = self.lexer.here();
        let word = self.lexer.expect_word("the algorithm of a dot")?;
        match Algorithm::from_str_name(&format!("ALG_{}", word.to_ascii_uppercase())) {
            Some(algorithm) => Ok(algorithm.into()),
            None => fault(start, format!("unknown algorithm \"{word}\" of a dot")),
        }
    }
}

/// The places of two letters and of the digits from 0 on. Other dimensions are marked `?`.
fn labels(text: &str, letters: [char; 2]) -> Option<(i64, i64, Vec<i64>)> {
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
