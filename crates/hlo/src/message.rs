//! Helpers for messages that all crates share.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Text as a terminal may show it: control characters, which could command the terminal, and those that turn the
/// direction of writing are shown as `\u001b`, which JSON reads as the same character. Line ends and tabs stay.
///
/// Names come from files that others have made. All code that prints to a terminal passes its text through here last.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(commands_terminal) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for letter in text.chars() {
        match commands_terminal(letter) {
            true => shown.push_str(&format!("\\u{:04x}", letter as u32)),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// An error as a terminal may show it: as [`shown`], and without the middle where names make it longer than anybody
/// reads.
pub fn shown_error(text: &str) -> Cow<'_, str> {
    const MOST: usize = 8 << 10;
    if text.len() <= MOST {
        return shown(text);
    }
    let is_boundary = |&place: &usize| text.is_char_boundary(place);
    let start = (0..=MOST / 2).rev().find(is_boundary).unwrap_or(0);
    let end = (text.len() - MOST / 2..text.len()).find(is_boundary).unwrap_or(text.len());
    let left_out = end - start;
    format!("{} ... ({left_out} bytes left out) ... {}", shown(&text[..start]), shown(&text[end..])).into()
}

fn commands_terminal(letter: char) -> bool {
    let turns =
        matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || letter.is_control() && !matches!(letter, '\n' | '\t')
}

/// A number of things, however it is written: `1 device`, `2 devices`, `1,024 devices`.
pub fn counted(count: impl fmt::Display, what: &str) -> String {
    let count = count.to_string();
    if count == "1" { format!("{count} {what}") } else { format!("{count} {}", plural(what)) }
}

/// Things of a kind, the first of them by name: `rules a and b`; `keys a, b, c and 4 more`.
pub fn listed(what: &str, items: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = items.len().saturating_sub(SHOWN);
    let (last, first) = match items.split_last() {
        None => return format!("no {what}"),
        Some((item, [])) => return format!("{what} {item}"),
        Some(_) if more > 0 => (format!("{more} more"), &items[..SHOWN]),
        Some((last, first)) => (last.clone(), first),
    };
    format!("{} {} and {last}", plural(what), first.join(", "))
}

/// `4.20 MiB`.
pub fn human_bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let power = (count.ilog2() / 10).min(6);
    let value = count as f64 / (1u64 << (10 * power)) as f64;
    format!("{} {}", three_digits(value), UNITS[power as usize - 1])
}

/// Reads a number of bytes: `4096`, `16KiB`, `2MiB`, `1.5GB`. Returns `None` for any other text.
pub fn bytes_from_text(text: &str) -> Option<u64> {
    let letters = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(letters);
    let (number, unit) = (number.trim().replace([',', '_'], ""), unit.trim().to_ascii_lowercase());
    let scale: u64 = match unit.as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    };
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(scale);
    }
    let bytes = number.parse::<f64>().ok()? * scale as f64;
    (bytes.is_finite() && (0.0..1e18).contains(&bytes)).then(|| bytes.round() as u64)
}

/// A number without unit: `4.20`, `42.0`, `420`.
pub fn three_digits(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// `1.23 ms`.
pub fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 => format!("{} s", three_digits(value)),
        value if value >= 1e-3 => format!("{} ms", three_digits(value * 1e3)),
        value if value >= 1e-6 => format!("{} us", three_digits(value * 1e6)),
        0.0 => "0 s".to_owned(),
        value => format!("{} ns", three_digits(value * 1e9)),
    }
}

fn plural(what: &str) -> String {
    let endings = [("xis", "xes"), ("leaf", "leaves"), ("tch", "tches")];
    let changed = endings.iter().find_map(|(one, many)| Some(format!("{}{many}", what.strip_suffix(one)?)));
    changed.unwrap_or_else(|| format!("{what}s"))
}

/// Writes an error as a person reads it: its message, and below it the message of each source that says something new.
pub fn write_report(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut said = error.to_string();
    f.write_str(&said)?;
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !said.contains(&message) {
            write!(f, "\n  because {message}")?;
            said = message;
        }
        source = error.source();
    }
    Ok(())
}

/// Makes `{:?}` of errors their messages and those of their sources: what `main` prints of an error that it returns.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_message {
    ($($error:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::message::write_report(self, f)
            }
        }
    )*};
}
