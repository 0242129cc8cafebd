//! The output of commands: tables that fit a terminal, bytes in words and to the byte, and colours on a terminal.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result, bail};
use meshloom_analysis::{Amount, AxisPart, Bounds};
use meshloom_hlo::message::{counted, shown, three_digits};
pub use meshloom_hlo::message::{human_bytes, seconds};
use meshloom_hlo::table::{CellKind, Column, Table};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Color, Units};
pub use crate::streams::Busy;
use crate::streams::{self, Stream};

/// Version of the JSON that each command prints. It grows when a field changes its meaning or goes; new fields do not
/// change it.
const SCHEMA_VERSION: u32 = 1;

pub fn configure(color: Color, units: Option<Units>) {
    let choice = match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    };
    streams::set_color(choice);
    /// A terminal with fewer columns does not have room for both forms of a number.
    const NARROW: usize = 130;
    let narrow = terminal_width().is_some_and(|width| width < NARROW);
    streams::set_units(units.unwrap_or(if narrow { Units::Human } else { Units::Both }));
}

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();

pub fn paint(style: Style, text: &str) -> String {
    let mark = streams::mark();
    format!("{mark}{style}{mark}{text}{mark}{style:#}{mark}")
}

/// Prints a line. A reader that has gone away (`| head`) ends the program, quietly.
pub fn line(text: &str) {
    if streams::print(Stream::Out, &format!("{text}\n")).is_err() {
        std::process::exit(0);
    }
}

/// Prints a line beside the result.
pub fn error_line(text: &str) {
    // If this fails, there is no other way to report it.
    let _ = streams::print(Stream::Err, &format!("{text}\n"));
}

/// Prints text that is the result, without adding a line end. A reader that has gone away has all it wanted.
pub fn text(text: &str) -> Result<()> {
    bytes_as_they_are(shown(text).as_bytes())
}

/// Prints bytes that are not lines of text. A reader that has gone away (`| head`) has all it wanted.
pub fn bytes_as_they_are(bytes: &[u8]) -> Result<()> {
    match streams::write(bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write"),
    }
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    create(path)?.write_all(bytes.as_ref()).with_context(|| format!("cannot write {}", path.display()))
}

/// Opens a file to write it anew.
pub fn create(path: &Path) -> Result<File> {
    if streams::below().is_some() {
        bail!("cannot write {}: a command of `hlo-dump mcp` writes no file", path.display());
    }
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints something worth knowing, beside the result.
pub fn note(text: &str) {
    error_line(&paint(DIM, &format!("note: {text}")));
}

/// The JSON of a command: its name and version before its other fields.
#[derive(JsonSchema, Serialize)]
pub struct Versioned<'a, T> {
    /// The command and the version of its JSON. The version grows when a field changes its meaning or goes.
    schema: String,
    #[serde(flatten)]
    value: &'a T,
}

/// Returns `hlo-dump/COMMAND/1`. `command` is the command with the program before it.
pub fn schema_name(command: &str) -> String {
    format!("{command}/{SCHEMA_VERSION}")
}

/// Prints the JSON of a command.
pub fn json(command: &str, value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(&Versioned { schema: schema_name(command), value })?);
    Ok(())
}

/// Returns bytes, in the form of `--units`.
pub fn bytes(count: u64) -> String {
    match streams::units() {
        Units::Exact => count.to_string(),
        Units::Human => human_bytes(count),
        Units::Both if count < 1024 => human_bytes(count),
        Units::Both => format!("{} ({})", human_bytes(count), thousands(count)),
    }
}

pub fn known_bytes(count: Option<u64>) -> String {
    count.map_or("?".to_owned(), bytes)
}

/// Returns `4.20 T`, for operations.
pub fn human_count(count: f64) -> String {
    const UNITS: [(f64, &str); 6] = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match UNITS.iter().find(|(scale, _)| count >= *scale) {
        Some((scale, unit)) => format!("{} {unit}", three_digits(count / scale)),
        None => format!("{count:.0}"),
    }
}

/// Returns operations, in the form of `--units`.
pub fn count(value: f64) -> String {
    let exact = || if value < 1e18 { thousands(value.round() as u64) } else { format!("{value:.6e}") };
    match streams::units() {
        Units::Exact => format!("{value:.0}"),
        Units::Human => human_count(value),
        Units::Both if value < 1e3 => human_count(value),
        Units::Both => format!("{} ({})", human_count(value), exact()),
    }
}

/// Returns `4,404,019`.
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

/// Returns `1 collective`, `2 collectives`, `2 microbatches`.
pub fn plural(count: u64, what: &str) -> String {
    counted(thousands(count), what)
}

/// Returns whether the needed amount fits, and its part of the whole.
pub fn verdict(needed: u64, there_is: u64, of: &str) -> String {
    let part = 100.0 * needed as f64 / there_is as f64;
    let (style, verdict) = if needed <= there_is { (GOOD, "fits") } else { (BAD, "does not fit") };
    paint(style, &format!("{verdict}: {part:.1} % of {of}"))
}

/// Returns the source line, and the scopes and the op.
pub fn whence(source: Option<&str>, op_name: &str) -> String {
    [source.unwrap_or_default(), op_name].join(" ").trim().to_owned()
}

/// The name of the scope without a name.
pub const NO_SCOPE: &str = "(no scope)";

pub fn or_no_scope(scope: &str) -> &str {
    if scope.is_empty() { NO_SCOPE } else { scope }
}

/// Returns `once`, `32 times`, `at most once`.
pub fn times(executions: Amount) -> String {
    match executions {
        Amount::Exactly(1) => "once".to_owned(),
        Amount::AtMost(1) => "at most once".to_owned(),
        executions => format!("{} times", amount(executions)),
    }
}

/// Returns `0 to 1 times`, `at least once`.
pub fn bounds_of_times(bounds: Bounds) -> String {
    match (bounds.least, bounds.most) {
        (least, Some(most)) if least == most => times(Amount::Exactly(most)),
        (1, None) => "at least once".to_owned(),
        _ => format!("{} times", bounds_of_count(bounds)),
    }
}

/// Returns `3`, `0 to 3`, `>= 3`.
pub fn bounds_of_count(bounds: Bounds) -> String {
    with_bounds(bounds, thousands)
}

/// Returns `0 B to 1.20 MiB (1,258,291)`.
pub fn bounds_of_bytes(bounds: Bounds) -> String {
    with_bounds(bounds, bytes)
}

fn with_bounds(Bounds { least, most }: Bounds, text: fn(u64) -> String) -> String {
    match most {
        Some(most) if most == least => text(most),
        Some(most) => format!("{} to {}", text(least), text(most)),
        None if least == 0 => "?".to_owned(),
        None => format!(">= {}", text(least)),
    }
}

/// Returns the most that a value can be: `3`; `>= 3` if only the least is known.
pub fn most(Bounds { least, most }: Bounds, text: fn(u64) -> String) -> String {
    with_bounds(Bounds { least: most.unwrap_or(least), most }, text)
}

/// Returns a number of executions: `32`, `<= 32` where a branch may not be taken, `?` where it is not known.
pub fn amount(amount: Amount) -> String {
    with_bound(amount, thousands)
}

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

/// Prints the first rows of a table, or all for a limit of 0, without empty columns and as wide as the terminal.
pub fn table<R>(mut table: Table<R>, limit: usize) {
    let columns = &mut table.columns;
    let count = columns.first().map_or(0, |column| column.cells.len());
    let shown = if limit == 0 { count } else { count.min(limit) };
    columns.iter_mut().for_each(|column| column.cells.truncate(shown));
    columns.retain(|column| shown == 0 || column.cells.iter().any(|cell| !cell.is_empty()));
    if let Some(terminal) = terminal_width() {
        fit(columns, terminal);
    }
    for (index, text) in table.plain().lines().enumerate() {
        let text = text.trim_end();
        line(&if index == 0 { paint(BOLD, text) } else { text.to_owned() });
    }
    if shown < count {
        line(&paint(DIM, &format!("... and {} more; --limit 0 shows all", count - shown)));
    }
}

/// Leaves out as many optional columns as necessary, the last first. Flexible ones share what the others leave.
fn fit(columns: &mut Vec<Column>, terminal: usize) {
    /// The least width of a flexible column.
    const NARROWEST: usize = 12;
    let natural = |column: &Column| {
        let cells = column.cells.iter().map(|cell| cell.chars().count());
        cells.chain([column.name.chars().count()]).max().unwrap_or(0)
    };
    let least = |column: &Column| if column.kind == CellKind::Flexible { NARROWEST } else { natural(column) };
    let needed = |columns: &[Column]| columns.iter().map(|column| least(column) + 2).sum::<usize>();
    while needed(columns) > terminal + 2
        && let Some(optional) = columns.iter().rposition(|column| column.kind == CellKind::Optional)
    {
        columns.remove(optional);
    }
    let (mut flexible, fixed): (Vec<_>, Vec<_>) =
        columns.iter_mut().partition(|column| column.kind == CellKind::Flexible);
    let mut left = terminal.saturating_sub(fixed.iter().map(|column| natural(column) + 2).sum());
    // The narrow columns come first: the others share the rest.
    flexible.sort_by_key(|column| natural(column));
    let count = flexible.len();
    for (done, column) in flexible.into_iter().enumerate() {
        let share = (left / (count - done)).saturating_sub(2).max(NARROWEST);
        let width = natural(column).min(share);
        left = left.saturating_sub(width + 2);
        column.cells.iter_mut().for_each(|cell| *cell = clipped(cell, width));
    }
}

fn terminal_width() -> Option<usize> {
    if !streams::is_terminal(Stream::Out) {
        return None;
    }
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

/// Returns at most `width` characters: mostly the end, which says most (a file and line, the last scope), and some of
/// the start.
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

/// Returns axes as specs print them: `[fsdp, _]`.
pub fn spec(axes: &[Vec<AxisPart>]) -> String {
    let dimension = |axes: &Vec<AxisPart>| match axes.as_slice() {
        [] => "_".to_owned(),
        [axis] => axis.to_string(),
        several => format!("({})", several.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
    };
    format!("[{}]", axes.iter().map(dimension).collect::<Vec<_>>().join(", "))
}
