//! Values that are one of a few words.

use super::Kind;
use crate::parse::{Parser, Result, fault};
use crate::proto::debug_attributes_proto::DebugLogModeProto;
use crate::proto::precision_config::{Algorithm, Precision};
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{
    ConvolutionKind, CustomCallApiVersion, CustomCallSchedule, FftType, PaddingType, RandomAlgorithm,
    RandomDistribution, TriState,
};
use crate::suggest::did_you_mean;
use crate::text::Printer;

impl Parser<'_> {
    /// A word that is one of a few.
    fn choice<T: Copy>(&mut self, what: &str, choices: &[(&str, T)]) -> Result<T> {
        let start = self.lexer.here();
        let word = self.lexer.expect_word(what)?;
        match choices.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => Ok(*value),
            None => {
                let near = did_you_mean(word, choices.iter().map(|(name, _)| *name));
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                fault(start, format!("unknown {what} \"{word}\"{near}; it is one of {}", names.join(", ")))
            }
        }
    }
}

/// An enum of the protos whose values have words.
pub(super) trait Choice: Copy + Default + PartialEq + TryFrom<i32> + Into<i32> + 'static {
    /// The name of the enum in messages.
    const WHAT: &'static str;
    const WORDS: &'static [(&'static str, Self)];
    /// The value of an optional attribute that is left out.
    const OMITTED: Self;
}

fn word_of<E: Choice>(number: i32) -> Option<(&'static str, E)> {
    let value = E::try_from(number).unwrap_or_default();
    E::WORDS.iter().copied().find(|(_, candidate)| *candidate == value)
}

impl<E: Choice> Kind<i32> for E {
    fn print(number: &i32, printer: &mut Printer<'_>) {
        printer.text(word_of::<E>(*number).map_or("", |(word, _)| word));
    }

    fn read(parser: &mut Parser<'_>) -> Result<i32> {
        parser.choice(E::WHAT, E::WORDS).map(Into::into)
    }

    fn is_omitted(number: &i32, is_optional: bool) -> bool {
        is_optional && word_of::<E>(*number).is_none_or(|(_, value)| value == E::OMITTED)
    }
}

/// States the words of enums: what one is, its value where the attribute is left out, and the words.
macro_rules! choices {
    ($($choice:ident $what:literal $omitted:ident { $($word:literal $value:ident),* $(,)? })*) => {$(
        impl Choice for $choice {
            const WHAT: &'static str = $what;
            const WORDS: &'static [(&'static str, $choice)] = &[$(($word, $choice::$value)),*];
            const OMITTED: $choice = $choice::$omitted;
        }
    )*};
}

choices! {
    FftType "type of transform" Fft { "FFT" Fft, "IFFT" Ifft, "RFFT" Rfft, "IRFFT" Irfft }
    RandomDistribution "distribution" RngInvalid {
        "rng_uniform" RngUniform, "rng_normal" RngNormal, "rng_invalid" RngInvalid,
    }
    RandomAlgorithm "algorithm" RngDefault {
        "rng_default" RngDefault, "rng_three_fry" RngThreeFry, "rng_philox" RngPhilox,
    }
    Transpose "transposition" Invalid {
        "NO_TRANSPOSE" NoTranspose, "TRANSPOSE" Transpose, "ADJOINT" Adjoint, "TRANSPOSE_INVALID" Invalid,
    }
    PaddingType "type of padding" PaddingInvalid {
        "PADDING_INVALID" PaddingInvalid, "PADDING_VALID" PaddingValid, "PADDING_SAME" PaddingSame,
    }
    CustomCallSchedule "schedule" ScheduleNone {
        "SCHEDULE_NONE" ScheduleNone, "SCHEDULE_LATEST" ScheduleLatest, "SCHEDULE_EARLIEST" ScheduleEarliest,
    }
    CustomCallApiVersion "API version" ApiVersionOriginal {
        "API_VERSION_ORIGINAL" ApiVersionOriginal,
        "API_VERSION_STATUS_RETURNING" ApiVersionStatusReturning,
        "API_VERSION_STATUS_RETURNING_UNIFIED" ApiVersionStatusReturningUnified,
        "API_VERSION_TYPED_FFI" ApiVersionTypedFfi,
        // People write it; XLA sets the other in its place.
        "API_VERSION_UNSPECIFIED" ApiVersionOriginal,
    }
    DebugLogModeProto "mode of a log" None {
        "default" Default, "fusion_debugger" FusionDebugger, "no_fusion" NoFusion, "guaranteed" Guaranteed,
    }
    ConvolutionKind "kind of convolution" Unset { "unset" Unset, "fprop" Fprop, "dgrad" Dgrad, "wgrad" Wgrad }
}

/// States kinds of strings that are one of a few words.
macro_rules! strings {
    ($($(#[$doc:meta])* $kind:ident $what:literal [$($word:literal),*])*) => {$(
        $(#[$doc])*
        pub(super) struct $kind;

        impl Kind<String> for $kind {
            fn print(word: &String, printer: &mut Printer<'_>) {
                printer.text(word);
            }

            fn read(parser: &mut Parser<'_>) -> Result<String> {
                parser.choice($what, &[$(($word, $word)),*]).map(str::to_string)
            }
        }
    )*};
}

strings! {
    Direction "direction" ["EQ", "NE", "LT", "LE", "GT", "GE"]
    Comparison "type of comparison" ["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"]
    OrderOfComparison "order of comparison" ["PARTIAL", "TOTAL"]
    FusionKind "kind of fusion" ["kLoop", "kInput", "kOutput", "kCustom"]
}

impl Kind<i32> for TriState {
    fn print(number: &i32, printer: &mut Printer<'_>) {
        printer.text(if *number == TriState::True as i32 { "true" } else { "false" });
    }

    fn read(parser: &mut Parser<'_>) -> Result<i32> {
        Ok(if parser.lexer.boolean()? { TriState::True } else { TriState::False }.into())
    }

    fn is_omitted(number: &i32, _: bool) -> bool {
        !matches!(TriState::try_from(*number), Ok(TriState::True | TriState::False))
    }
}

/// `{highest,default}`.
impl Kind<Vec<i32>> for Precision {
    fn print(values: &Vec<i32>, printer: &mut Printer<'_>) {
        printer.text("{");
        let known = values.iter().filter_map(|&value| Precision::try_from(value).ok());
        printer.separated(known, ",", |printer, precision| {
            printer.text(&precision.as_str_name().to_ascii_lowercase());
        });
        printer.text("}");
    }

    fn read(parser: &mut Parser<'_>) -> Result<Vec<i32>> {
        parser.list_of(b'{', b'}', |parser| {
            let start = parser.lexer.here();
            let precision = match parser.lexer.expect_word("a precision")?.to_ascii_lowercase().as_str() {
                "default" => Precision::Default,
                "high" => Precision::High,
                "highest" => Precision::Highest,
                other => return fault(start, format!("a precision is default, high or highest, found \"{other}\"")),
            };
            Ok(precision.into())
        })
    }

    fn is_omitted(values: &Vec<i32>, _: bool) -> bool {
        values.iter().all(|&precision| precision == Precision::Default as i32)
    }
}

/// `dot_bf16_bf16_f32`.
impl Kind<i32> for Algorithm {
    fn print(number: &i32, printer: &mut Printer<'_>) {
        let name = Algorithm::try_from(*number).unwrap_or_default().as_str_name();
        printer.text(&name.strip_prefix("ALG_").unwrap_or(name).to_ascii_lowercase());
    }

    fn read(parser: &mut Parser<'_>) -> Result<i32> {
        let start = parser.lexer.here();
        let word = parser.lexer.expect_word("the algorithm of a dot")?;
        match Algorithm::from_str_name(&format!("ALG_{}", word.to_ascii_uppercase())) {
            Some(algorithm) => Ok(algorithm.into()),
            None => fault(start, format!("unknown algorithm \"{word}\" of a dot")),
        }
    }

    fn is_omitted(number: &i32, _: bool) -> bool {
        Algorithm::try_from(*number).unwrap_or_default() == Algorithm::AlgUnset
    }
}
