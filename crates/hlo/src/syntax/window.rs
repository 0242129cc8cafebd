//! Windows and padding.

use super::{Kind, Value, emit};
use crate::parse::{Parser, Result, fault};
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::{PaddingConfig, Window, WindowDimension};
use crate::text::Printer;

/// A part of a window: a number for each dimension.
struct WindowField {
    name: &'static str,
    /// The number where nothing is written.
    neutral: i64,
    get: fn(&WindowDimension) -> i64,
    set: fn(&mut WindowDimension, i64),
}

macro_rules! part {
    ($name:literal $neutral:literal $field:ident) => {
        WindowField {
            name: $name,
            neutral: $neutral,
            get: |dimension| dimension.$field,
            set: |dimension, value| dimension.$field = value,
        }
    };
}

/// The parts in their order; the padding comes after the first two.
const PARTS: [WindowField; 5] = [
    part!("size" 1 size),
    part!("stride" 1 stride),
    part!("lhs_dilate" 1 base_dilation),
    part!("rhs_dilate" 1 window_dilation),
    WindowField {
        name: "rhs_reversal",
        neutral: 0,
        get: |dimension| dimension.window_reversal.into(),
        set: |dimension, value| dimension.window_reversal = value == 1,
    },
];

/// Letters of `3x3`, `0_1x-2_3` and `b01f_01io->b01f`.
fn is_pattern(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'?' | b'>')
}

impl Printer<'_> {
    fn window_part(&mut self, part: &WindowField, dimensions: &[WindowDimension]) {
        let is_size = part.name == "size";
        if is_size || dimensions.iter().any(|dimension| (part.get)(dimension) != part.neutral) {
            emit!(self, if is_size { "" } else { " " }, part.name, "=");
            self.separated(dimensions, "x", |printer, dimension| printer.number((part.get)(dimension)));
        }
    }
}

/// `{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x0}`.
impl Value for Window {
    fn print(&self, printer: &mut Printer<'_>) {
        let dimensions = self.dimensions.as_slice();
        printer.text("{");
        let (before, after) = PARTS.split_at(2);
        before.iter().for_each(|part| printer.window_part(part, dimensions));
        if dimensions.iter().any(|dimension| dimension.padding_low != 0 || dimension.padding_high != 0) {
            printer.text(" pad=");
            printer.separated(dimensions, "x", |printer, dimension| {
                emit!(printer, &dimension.padding_low, "_", &dimension.padding_high);
            });
        }
        after.iter().for_each(|part| printer.window_part(part, dimensions));
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<Window> {
        let start = parser.lexer.here();
        let mut values: [Vec<i64>; 5] = Default::default();
        let mut padding = Vec::new();
        let names = PARTS.map(|part| part.name);
        parser.lexer.expect(b'{', "before the parts of a window")?;
        while !parser.lexer.eat(b'}') {
            let start = parser.lexer.here();
            let name = parser.lexer.attribute_name()?;
            // XLA prints the one name and reads the other.
            let name = if name == "rhs_reverse" { "rhs_reversal" } else { name };
            if name == "pad" {
                padding = parser.paddings(2)?;
            } else if let Some(place) = names.iter().position(|part| *part == name) {
                values[place] = parser.product()?;
            } else {
                return fault(start, format!("a window has {} and pad, found \"{name}\"", names.join(", ")));
            }
        }
        let rank = values[0].len();
        let counts = names.into_iter().zip(values.iter().map(Vec::len)).chain([("pad", padding.len())]);
        if let Some((name, count)) = counts.into_iter().find(|&(_, count)| count != 0 && count != rank) {
            return fault(start, format!("{name} has {count} dimensions, and size has {rank}"));
        }
        let dimension = |place: usize| {
            let mut dimension = WindowDimension::default();
            for (part, values) in PARTS.iter().zip(&values) {
                (part.set)(&mut dimension, values.get(place).copied().unwrap_or(part.neutral));
            }
            [dimension.padding_low, dimension.padding_high, _] = padding.get(place).copied().unwrap_or_default();
            dimension
        };
        Ok(Window { dimensions: (0..rank).map(dimension).collect() })
    }

    fn is_omitted(&self, _: bool) -> bool {
        self.dimensions.is_empty()
    }
}

/// `0_1x2_2`, with the interior padding of all dimensions if any has some; of a scalar nothing is written.
pub(super) struct Padding;

impl Kind<Option<PaddingConfig>> for Padding {
    fn print(config: &Option<PaddingConfig>, printer: &mut Printer<'_>) {
        let dimensions = config.as_ref().map_or(&[][..], |config| &config.dimensions);
        let has_interior = dimensions.iter().any(|dimension| dimension.interior_padding != 0);
        printer.separated(dimensions, "x", |printer, dimension| {
            emit!(printer, &dimension.edge_padding_low, "_", &dimension.edge_padding_high);
            if has_interior {
                emit!(printer, "_", &dimension.interior_padding);
            }
        });
    }

    fn read(parser: &mut Parser<'_>) -> Result<Option<PaddingConfig>> {
        let is_scalar =
            matches!(parser.lexer.peek(), Some(b',' | b'}') | None) || parser.lexer.peek_adjacent() == Some(b'\n');
        let dimensions = if is_scalar { Vec::new() } else { parser.paddings(3)? };
        let dimensions = dimensions.into_iter().map(|[low, high, interior]| PaddingConfigDimension {
            edge_padding_low: low,
            edge_padding_high: high,
            interior_padding: interior,
        });
        Ok(Some(PaddingConfig { dimensions: dimensions.collect() }))
    }
}

impl<'a> Parser<'a> {
    /// The letters of a pattern like `b01f_01io->b01f`.
    pub(super) fn pattern(&mut self) -> &'a str {
        self.lexer.take_while(is_pattern)
    }

    /// `3x3`.
    pub(super) fn product(&mut self) -> Result<Vec<i64>> {
        let start = self.lexer.here();
        let text = self.pattern();
        let values: std::result::Result<_, _> = text.split('x').map(str::parse).collect();
        values.or_else(|_| fault(start, format!("expected numbers joined by x, like 3x3, found \"{text}\"")))
    }

    /// `0_1x2_3_1`: for each dimension low, high and perhaps interior padding, if `most` is 3.
    fn paddings(&mut self, most: usize) -> Result<Vec<[i64; 3]>> {
        let start = self.lexer.here();
        let text = self.pattern();
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
}
