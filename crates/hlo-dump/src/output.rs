//! What is printed: tables that fit a terminal, bytes in words and to the byte, colours where somebody sees them.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use comfy_table::{CellAlignment, Table as Grid, presets};
use meshloom_hlo::{Amount, Bounds};
use serde::Serialize;

use crate::arguments::{Color, Units};

static UNITS: OnceLock<Units> = OnceLock::new();

/// Version of the JSON that each command prints. It grows when a field changes its meaning or goes; new fields do not
/// change it.
const SCHEMA_VERSION: u32 = 1;

pub fn configure(color: Color, units: Option<Units>) {
    let choice = match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    };
    choice.write_global();
    /// Fewer columns than this do not hold numbers twice.
    const NARROW: usize = 130;
    let narrow = terminal_width().is_some_and(|width| width < NARROW);
    let _ = UNITS.set(units.unwrap_or(if narrow { Units::Human } else { Units::Both }));
}

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();

pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Prints a line. A reader that has gone away (`| head`) ends the program, quietly.
pub fn line(text: &str) {
    if writeln!(anstream::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// Something worth knowing, beside the result.
pub fn note(text: &str) {
    anstream::eprintln!("{}", paint(DIM, &format!("note: {text}")));
}

/// A line on a terminal that says what takes long, until it is dropped.
pub struct Busy;

impl Busy {
    pub fn new(doing: &str) -> Busy {
        if std::io::stderr().is_terminal() {
            eprint!("{doing}");
        }
        Busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[2K");
        }
    }
}

/// Prints an object with `"schema": "hlo-dump/COMMAND/1"` before its other fields.
pub fn json(command: &str, value: &impl Serialize) -> Result<()> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema: String,
        #[serde(flatten)]
        value: &'a T,
    }
    let text =
        serde_json::to_string_pretty(&Versioned { schema: format!("hlo-dump/{command}/{SCHEMA_VERSION}"), value })?;
    line(&text);
    Ok(())
}

/// Bytes, as `--units` says.
pub fn bytes(count: u64) -> String {
    match units() {
        Units::Exact => count.to_string(),
        Units::Human => human_bytes(count),
        Units::Both if count < 1024 => human_bytes(count),
        Units::Both => format!("{} ({})", human_bytes(count), thousands(count)),
    }
}

fn units() -> Units {
    *UNITS.get_or_init(|| Units::Both)
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

/// `4.20 T`, for operations.
pub fn human_count(count: f64) -> String {
    const UNITS: [(f64, &str); 6] = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match UNITS.iter().find(|(scale, _)| count >= *scale) {
        Some((scale, unit)) => format!("{} {unit}", three_digits(count / scale)),
        None => format!("{count:.0}"),
    }
}

/// Operations, as `--units` says.
pub fn count(value: f64) -> String {
    let exact = || if value < 1e18 { thousands(value.round() as u64) } else { format!("{value:.6e}") };
    match units() {
        Units::Exact => format!("{value:.0}"),
        Units::Human => human_count(value),
        Units::Both if value < 1e3 => human_count(value),
        Units::Both => format!("{} ({})", human_count(value), exact()),
    }
}

/// `1.23 ms`.
pub fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 => format!("{} s", three_digits(value)),
        value if value >= 1e-3 => format!("{} ms", three_digits(value * 1e3)),
        value if value >= 1e-6 => format!("{} us", three_digits(value * 1e6)),
        0.0 => "0".to_owned(),
        value => format!("{} ns", three_digits(value * 1e9)),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// `4,404,019`.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 collective`, `2 collectives`.
pub fn plural(count: usize, what: &str) -> String {
    format!("{} {what}{}", thousands(count as u64), if count == 1 { "" } else { "s" })
}

/// What the scope is called that has no name.
pub const NO_SCOPE: &str = "(no scope)";

pub fn or_no_scope(scope: &str) -> &str {
    if scope.is_empty() { NO_SCOPE } else { scope }
}

/// `once`, `32 times`.
pub fn times(executions: Amount) -> String {
    match executions {
        Amount::Exactly(1) => "once".to_owned(),
        executions => format!("{} times", amount(executions)),
    }
}

/// `0 to 3 times`.
pub fn bounds_of_times(bounds: Bounds) -> String {
    match bounds.amount() {
        Amount::AtMost(_) => format!("{} times", bounds_of_count(bounds)),
        amount => times(amount),
    }
}

/// `3`, `0 to 3`.
pub fn bounds_of_count(bounds: Bounds) -> String {
    match (bounds.amount(), bounds.most) {
        (Amount::AtMost(_), Some(most)) => format!("{} to {}", thousands(bounds.least), thousands(most)),
        (exact, _) => amount(exact),
    }
}

/// `0 B to 1.20 MiB (1,258,291)`.
pub fn bounds_of_bytes(bounds: Bounds) -> String {
    match (bounds.amount(), bounds.most) {
        (Amount::AtMost(_), Some(most)) => format!("{} to {}", bytes(bounds.least), bytes(most)),
        (amount, _) => amount_of_bytes(amount),
    }
}

/// A number of executions: `32`, `<= 32` where a branch may not be taken, `?` where it is not known.
pub fn amount(amount: Amount) -> String {
    with_bound(amount, thousands)
}

/// A number of bytes that may not be known.
pub fn amount_of_bytes(amount: Amount) -> String {
    with_bound(amount, bytes)
}

fn with_bound(amount: Amount, text: impl Fn(u64) -> String) -> String {
    match amount {
        Amount::Exactly(count) => text(count),
        Amount::AtMost(count) => format!("<= {}", text(count)),
        Amount::Unknown => "?".to_owned(),
    }
}

/// A column of a table.
#[derive(Clone, Copy, PartialEq)]
pub enum Column {
    /// Text, as wide as it is.
    Text,
    /// A number, to the right.
    Number,
    /// A number that is left out when the terminal is narrow.
    Optional,
    /// Text that gives way when the terminal is narrow: its middle is left out.
    Flexible,
}

/// A table, with one line for each row.
pub struct Table {
    header: Vec<(&'static str, Column)>,
    rows: Vec<Vec<String>>,
    /// Rows that are not shown.
    left_out: usize,
}

impl Table {
    pub fn new(header: &[(&'static str, Column)]) -> Table {
        Table { header: header.to_vec(), rows: Vec::new(), left_out: 0 }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Keeps the first rows; 0 for all.
    pub fn limit(mut self, rows: usize) -> Table {
        if rows > 0 && self.rows.len() > rows {
            self.left_out = self.rows.len() - rows;
            self.rows.truncate(rows);
        }
        self
    }

    pub fn print(&self) {
        self.fitted().print_all();
    }

    /// The table without its empty columns, and without as many optional columns as necessary to make it fit, the last
    /// first.
    fn fitted(&self) -> Table {
        let mut header = self.header.clone();
        let mut rows = self.rows.clone();
        for index in (0..header.len()).rev() {
            if !rows.is_empty() && rows.iter().all(|row| row[index].is_empty()) {
                header.remove(index);
                rows.iter_mut().for_each(|row| drop(row.remove(index)));
            }
        }
        while let Some(terminal) = terminal_width() {
            let width = |index: usize| match header[index].1 {
                Column::Flexible => NARROWEST,
                _ => natural_width(&header, &rows, index),
            };
            let needed: usize = (0..header.len()).map(|index| width(index) + 2).sum();
            let optional = header.iter().rposition(|(_, column)| *column == Column::Optional);
            let Some(index) = optional.filter(|_| needed > terminal + 2) else { break };
            header.remove(index);
            rows.iter_mut().for_each(|row| drop(row.remove(index)));
        }
        Table { header, rows, left_out: self.left_out }
    }

    fn print_all(&self) {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING);
        let widths = self.widths();
        let clip = |cells: Vec<String>| -> Vec<String> {
            cells.into_iter().zip(&widths).map(|(cell, width)| clipped(&cell, *width)).collect()
        };
        grid.set_header(self.header.iter().map(|(name, _)| (*name).to_owned()));
        for row in &self.rows {
            grid.add_row(clip(row.clone()));
        }
        for (index, (_, column)) in self.header.iter().enumerate() {
            if let Some(grid_column) = grid.column_mut(index) {
                // One space between columns is too few to tell numbers apart.
                grid_column.set_padding((0, 2));
                if matches!(column, Column::Number | Column::Optional) {
                    grid_column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        for (index, text) in grid.to_string().lines().enumerate() {
            let text = text.trim_end();
            line(&if index == 0 { paint(BOLD, text) } else { text.to_owned() });
        }
        if self.left_out > 0 {
            line(&paint(DIM, &format!("... and {} more; --limit 0 shows all", self.left_out)));
        }
    }

    /// How wide each column may be. On a terminal, flexible ones share what the others leave.
    fn widths(&self) -> Vec<usize> {
        let natural: Vec<usize> =
            (0..self.header.len()).map(|index| natural_width(&self.header, &self.rows, index)).collect();
        let Some(terminal) = terminal_width() else { return natural };
        let flexible = |index: usize| self.header[index].1 == Column::Flexible;
        let fixed: usize = (0..natural.len()).filter(|&index| !flexible(index)).map(|index| natural[index] + 2).sum();
        let mut order: Vec<usize> = (0..natural.len()).filter(|&index| flexible(index)).collect();
        // The narrow columns first: the others share what these leave.
        order.sort_by_key(|&index| natural[index]);
        let mut left = terminal.saturating_sub(fixed);
        let mut widths = natural.clone();
        let count = order.len();
        for (done, index) in order.into_iter().enumerate() {
            let share = (left / (count - done)).saturating_sub(2).max(NARROWEST);
            widths[index] = natural[index].min(share);
            left = left.saturating_sub(widths[index] + 2);
        }
        widths
    }
}

/// The least width of a flexible column.
const NARROWEST: usize = 12;

fn natural_width(header: &[(&str, Column)], rows: &[Vec<String>], index: usize) -> usize {
    let cells = rows.iter().map(|row| row[index].chars().count());
    cells.chain([header[index].0.chars().count()]).max().unwrap_or(0)
}

fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Text of at most so many characters: its end says most (a file and line, the last scope), its start something.
pub fn clipped(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let start = (width.saturating_sub(1)) / 3;
    let end = width.saturating_sub(1) - start;
    let mut clipped: String = text.chars().take(start).collect();
    clipped.push('…');
    clipped.extend(text.chars().skip(count - end));
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_words() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (4_404_019, "4.20 MiB"), (u64::MAX, "16.0 EiB")];
        for (bytes, expected) in cases {
            assert_eq!(human_bytes(bytes), expected);
        }
        assert_eq!(
            (thousands(0), thousands(999), thousands(1_234_567)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
        assert_eq!((human_count(12.0), human_count(4.2e12)), ("12".to_owned(), "4.20 T".to_owned()));
        let times = [(0.0, "0"), (2.5, "2.50 s"), (0.0123, "12.3 ms"), (3e-7, "300 ns")];
        for (value, expected) in times {
            assert_eq!(seconds(value), expected);
        }
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(clipped("short", 10), "short");
        assert_eq!(clipped("transformer/layers/attention/dot", 16), "trans…ention/dot");
    }
}
