//! What the messages of all crates share.

use std::error::Error;
use std::fmt;

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
