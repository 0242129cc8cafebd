//! Numbers as C prints them with `%g`, which is how XLA prints the elements of constants.

use std::fmt::Write;

use half::{bf16, f16};

/// Appends `value` as `printf("%.*g", digits, value)` does. NaN and infinities are the caller's business.
pub(crate) fn write_general(out: &mut String, value: f64, digits: usize) {
    let digits = digits.max(1);
    let scientific = format!("{value:.precision$e}", precision = digits - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        out.push_str(&scientific);
        return;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        out.push_str(without_trailing_zeros(mantissa));
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "e{sign}{:02}", exponent.abs());
    } else {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        out.push_str(without_trailing_zeros(&format!("{value:.decimals$}")));
    }
}

fn without_trailing_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Appends "nan", "inf" or their negatives; false if `value` is finite. `bits` are those of `value` in its own type;
/// the lowest are the mantissa.
fn write_special(out: &mut String, value: f64, bits: u64, mantissa_bits: u32) -> bool {
    if value.is_finite() {
        return false;
    }
    if value.is_sign_negative() {
        out.push('-');
    }
    out.push_str(if value.is_nan() { "nan" } else { "inf" });
    if value.is_nan() {
        write_payload(out, bits & ((1 << mantissa_bits) - 1), 1 << (mantissa_bits - 1));
    }
    true
}

/// A NaN's payload is printed unless it is the one that the plain word "nan" reads back as.
pub(crate) fn write_payload(out: &mut String, payload: u64, quiet: u64) {
    if payload != quiet {
        let _ = write!(out, "(0x{payload:x})");
    }
}

/// Appends the shortest of 15 and 17 digits that reads back as `value`.
pub(crate) fn write_f64(out: &mut String, value: f64) {
    if write_special(out, value, value.to_bits(), 52) {
        return;
    }
    let start = out.len();
    write_general(out, value, 15);
    if out[start..].parse::<f64>().is_ok_and(|read| read != value) {
        out.truncate(start);
        write_general(out, value, 17);
    }
}

/// Appends the shortest of 6 and 9 digits that reads back as `value`.
pub(crate) fn write_f32(out: &mut String, value: f32) {
    if write_special(out, f64::from(value), value.to_bits().into(), 23) {
        return;
    }
    // Most constants of real programs are small whole numbers; the general path costs two formats and a parse.
    if value.fract() == 0.0 && value.abs() < 1e6 && (value != 0.0 || value.is_sign_positive()) {
        let _ = write!(out, "{}", value as i32);
        return;
    }
    let start = out.len();
    write_general(out, f64::from(value), 6);
    if out[start..].parse::<f32>().is_ok_and(|read| read != value) {
        out.truncate(start);
        write_general(out, f64::from(value), 9);
    }
}

pub(crate) fn write_f16(out: &mut String, value: f16) {
    if !write_special(out, value.to_f64(), value.to_bits().into(), 10) {
        write_general(out, value.to_f64(), 5);
    }
}

pub(crate) fn write_bf16(out: &mut String, value: bf16) {
    if !write_special(out, value.to_f64(), value.to_bits().into(), 7) {
        write_general(out, value.to_f64(), 4);
    }
}

/// `absl::StrCat` of a float or double: six digits.
pub(crate) fn write_short(out: &mut String, value: f64) {
    // A NaN is the plain one here.
    let quiet = 1 << 51;
    if !write_special(out, value, quiet, 52) {
        write_general(out, value, 6);
    }
}
