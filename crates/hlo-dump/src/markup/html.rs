//! Pieces of pages. `maud` escapes all text that comes from a program.

use maud::{Markup, PreEscaped, Render, html};
use serde::Serialize;

use crate::output::{human_bytes, thousands};

const MOST_ROWS: usize = 400;

pub const DOCTYPE: PreEscaped<&str> = PreEscaped("<!doctype html>");

/// Returns a finished page. Characters that may not stand in HTML, escaped or not, are replaced.
pub fn document(page: Markup) -> String {
    page.into_string().replace(|it: char| it.is_control() && !it.is_whitespace(), "\u{fffd}")
}

/// Returns data for the script, in an element that a browser does not run.
pub fn json(id: &str, value: &impl Serialize) -> Markup {
    // The end of the element, and a comment in it, both begin with `<`.
    let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()).replace('<', "\\u003c");
    html! { script type="application/json" id=(id) { (PreEscaped(text)) } }
}

/// Returns a part of the page: a heading, a line that describes it, and the thing itself.
pub fn section(id: &str, title: &str, lead: impl Render, body: impl Render) -> Markup {
    html! { section id=(id) { h2 { (title) } p.lead { (lead) } (body) } }
}

/// Explains the colors of a drawing.
pub fn legend<T: Render>(items: impl IntoIterator<Item = (String, T)>) -> Markup {
    html! {
        ul.legend {
            @for (color, text) in items { li { i style={ "background:" (color) } {} (text) } }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    /// The number that it sorts by, if it shows a number.
    number: Option<f64>,
    /// A bar behind the number, from 0 to 1, and the color.
    bar: Option<(f64, String)>,
    code: bool,
}

impl Cell {
    /// Returns a cell with words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// Returns a cell with a name in the program.
    pub fn code(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), code: true, ..Cell::default() }
    }

    /// Returns a cell with a number, and the text that shows it.
    pub fn number(value: f64, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), number: Some(value), ..Cell::default() }
    }

    /// Returns a cell with a number of bytes that may not be known.
    pub fn bytes(bytes: Option<u64>) -> Cell {
        bytes.map_or(Cell::number(-1.0, "?"), |bytes| Cell::number(bytes as f64, human_bytes(bytes)))
    }

    /// Puts a bar behind the number.
    pub fn with_bar(self, fraction: f64, color: impl Into<String>) -> Cell {
        Cell { bar: Some((fraction.clamp(0.0, 1.0), color.into())), ..self }
    }
}

impl Render for Cell {
    fn render(&self) -> Markup {
        let bar = html! {
            @if let Some((fraction, color)) = &self.bar {
                i.bar style=(format!("width:{:.1}%;background:{color}", fraction * 100.0)) {}
            }
        };
        html! {
            @if let Some(number) = self.number { td.n data-v=(number) { (bar) span { (self.text) } } }
            // Paths break between their parts.
            @else if self.code {
                td { code { @for part in self.text.split_inclusive('/') { (part) @if part.ends_with('/') { wbr; } } } }
            }
            @else { td.t { (self.text) } }
        }
    }
}

/// Returns a table of the first rows, with the name of each column. The page can filter and sort the rows that it has.
pub fn table<R, const N: usize>(id: &str, columns: [&str; N], rows: &[R], cells: impl Fn(&R) -> [Cell; N]) -> Markup {
    let shown: Vec<[Cell; N]> = rows.iter().take(MOST_ROWS).map(cells).collect();
    let numeric = |column: usize| shown.first().is_some_and(|row| row[column].number.is_some());
    html! {
        @if shown.len() > 5 {
            div.tools {
                input type="search" placeholder="filter" aria-label="filter rows" data-table=(id);
                span.count id={ (id) "-count" } { (shown.len()) " of " (thousands(rows.len() as u64)) }
            }
        }
        div.scroll {
            table id=(id) {
                thead {
                    tr {
                        @for (index, column) in columns.iter().enumerate() {
                            th class=[numeric(index).then_some("n")] tabindex="0" { (column) }
                        }
                    }
                }
                tbody { @for row in &shown { tr { @for cell in row { (cell) } } } }
            }
        }
        @if shown.len() < rows.len() {
            p.note { (thousands((rows.len() - shown.len()) as u64)) " more rows are not on this page." }
        }
    }
}
