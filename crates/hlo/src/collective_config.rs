//! The numbers that a custom call states for the collective that it stands for.
//!
//! JAX writes an object of JSON (`{"replica_groups": [[0, 1]], "channel_id": 1}`) in the frontend attribute
//! [`CollectiveConfig::ATTRIBUTE`], or a dictionary of MLIR
//! (`{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_id = 1 : i64}`) in the backend config. Quotes may be
//! escaped once more, where one text is part of another.

use std::fmt::Write;

/// The fields whose values are numbers, truth values, or lists of them, one or two deep; others are passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectiveConfig {
    fields: Vec<(String, Vec<Vec<i64>>)>,
}

impl CollectiveConfig {
    /// The frontend attribute of an asynchronous collective.
    pub const ATTRIBUTE: &'static str = "async_collective_config";

    /// Reads an object or a dictionary, with or without its braces; `None` if the text is neither.
    pub fn read(text: &str) -> Option<CollectiveConfig> {
        let text = text.replace('\\', "");
        let inside = text.trim();
        let inside = inside.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(inside);
        let mut fields = Vec::new();
        for field in split(inside)? {
            let (key, value) = field.split_once([':', '='])?;
            let key = key.trim().trim_matches('"');
            if let Some(rows) = rows(value.trim()) {
                fields.push((key.to_owned(), rows));
            }
        }
        Some(CollectiveConfig { fields })
    }

    /// The lists of a field; a number is a list by itself. A field that is not there has `None`.
    pub fn rows(&self, key: &str) -> Option<&[Vec<i64>]> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, rows)| rows.as_slice())
    }

    /// The first number of a field; 1 for true.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.rows(key)?.first()?.first().copied()
    }

    /// The pairs of devices of a permutation, whichever name it has.
    pub fn pairs(&self) -> Vec<(i64, i64)> {
        let rows = self.rows("permutation").or_else(|| self.rows("source_target_pairs")).unwrap_or_default();
        rows.iter().filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect()
    }

    /// The groups of devices. Groups of several sizes are filled up with -1, which is no device. A field that
    /// is not there has `None`.
    pub fn groups(&self) -> Option<Vec<Vec<i64>>> {
        let group = |row: &Vec<i64>| row.iter().copied().filter(|&device| device != -1).collect();
        Some(self.rows("replica_groups")?.iter().map(group).collect())
    }

    /// The fields that were read, as an object of JSON in which every value is a list of lists.
    pub fn json(&self) -> String {
        let mut text = String::from("{");
        for (index, (key, rows)) in self.fields.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}\"{key}\": {rows:?}");
        }
        text + "}"
    }
}

/// Splits fields or elements at commas that are in no brackets and no quotes; `None` if brackets do not match.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut depth, mut is_quoted) = (Vec::new(), 0, 0usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'[' | b'{' | b'(' | b'<' => depth += 1,
            b']' | b'}' | b')' | b'>' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    (depth == 0 && !is_quoted).then(|| parts.into_iter().filter(|part| !part.is_empty()).collect())
}

/// Returns the rows of `1 : i64`, of `[0, 1]`, of `[[0, 1], [2, 3]]`, or of `dense<...> : tensor<2x2xi64>`, where `...`
/// may also be one number or the bytes of all in hexadecimal.
fn rows(text: &str) -> Option<Vec<Vec<i64>>> {
    if let Some(dense) = text.strip_prefix("dense<") {
        let (values, rest) = dense.split_once('>')?;
        return rows_of_dense(values.trim(), rest);
    }
    let Some(elements) = elements(text) else { return Some(vec![vec![number(text)?]]) };
    elements?.into_iter().map(row).collect()
}

fn rows_of_dense(values: &str, rest: &str) -> Option<Vec<Vec<i64>>> {
    if values.starts_with('[') {
        return rows(values);
    }
    let shape = rest.split_once("tensor<")?.1.split_once('>')?.0;
    let columns: usize = shape.split('x').nth(1)?.parse().ok()?;
    let numbers: Vec<i64> = match values.trim_matches('"').strip_prefix("0x") {
        Some(bytes) => bytes.as_bytes().chunks_exact(16).map(little_endian).collect::<Option<_>>()?,
        // A splat of several would name a device twice.
        None => vec![number(values)?],
    };
    (columns > 0 && numbers.len().is_multiple_of(columns))
        .then(|| numbers.chunks(columns).map(<[i64]>::to_vec).collect())
}

/// Returns the elements of a list; nothing if the text is none, and nothing within if its brackets do not match.
fn elements(text: &str) -> Option<Option<Vec<&str>>> {
    Some(split(text.strip_prefix('[')?.strip_suffix(']')?))
}

fn row(text: &str) -> Option<Vec<i64>> {
    match elements(text) {
        Some(elements) => elements?.into_iter().map(number).collect(),
        None => Some(vec![number(text)?]),
    }
}

fn number(text: &str) -> Option<i64> {
    match text.split(':').next().unwrap_or(text).trim() {
        "true" => Some(1),
        "false" | "null" => Some(0),
        digits => digits.parse().ok(),
    }
}

/// Returns the number whose bytes are written in hexadecimal, the lowest first.
fn little_endian(digits: &[u8]) -> Option<i64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().map(|number| number.swap_bytes().cast_signed())
}
