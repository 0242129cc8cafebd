//! Tables of text: a row for each thing, a column for each fact about it.
//!
//! ```
//! use meshloom_hlo::table::Table;
//!
//! let table = Table::of([("add", 2), ("dot", 12)]).text("op", |it| it.0).number("times", |it| it.1);
//! assert_eq!(table.plain(), "op   times  \nadd      2  \ndot     12  ");
//! ```

use std::fmt;

use comfy_table::{CellAlignment, TableStyle, presets};

/// The kind of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Text, to the left.
    Text,
    /// Text whose middle may be left out where there is little space.
    Flexible,
    /// A number, to the right.
    Number,
    /// A number that may be left out where there is little space.
    Optional,
}

/// A column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its header.
    pub name: &'static str,
    /// The kind of its cells.
    pub kind: CellKind,
    /// The cell of each row.
    pub cells: Vec<String>,
}

/// A table of things, which columns are added to one by one.
///
/// Its text has lines under the header and around it, for people who read logs.
#[derive(Clone, Debug)]
pub struct Table<R> {
    rows: Vec<R>,
    /// Its columns, which may be cut before they are printed.
    pub columns: Vec<Column>,
}

impl<R> Table<R> {
    /// A table with a row for each of these, and no columns.
    pub fn of(rows: impl IntoIterator<Item = R>) -> Table<R> {
        Table { rows: rows.into_iter().collect(), columns: Vec::new() }
    }

    /// With a column of [`CellKind::Text`].
    #[must_use]
    pub fn text<D: fmt::Display>(self, name: &'static str, cell: impl Fn(&R) -> D) -> Table<R> {
        self.column(name, CellKind::Text, cell)
    }

    /// With a column of [`CellKind::Flexible`].
    #[must_use]
    pub fn flexible<D: fmt::Display>(self, name: &'static str, cell: impl Fn(&R) -> D) -> Table<R> {
        self.column(name, CellKind::Flexible, cell)
    }

    /// With a column of [`CellKind::Number`].
    #[must_use]
    pub fn number<D: fmt::Display>(self, name: &'static str, cell: impl Fn(&R) -> D) -> Table<R> {
        self.column(name, CellKind::Number, cell)
    }

    /// With a column of [`CellKind::Optional`].
    #[must_use]
    pub fn optional<D: fmt::Display>(self, name: &'static str, cell: impl Fn(&R) -> D) -> Table<R> {
        self.column(name, CellKind::Optional, cell)
    }

    fn column<D: fmt::Display>(mut self, name: &'static str, kind: CellKind, cell: impl Fn(&R) -> D) -> Table<R> {
        let cells = self.rows.iter().map(|row| cell(row).to_string()).collect();
        self.columns.push(Column { name, kind, cells });
        self
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        self.grid(presets::ASCII_MARKDOWN).to_string()
    }

    /// The table without lines, its columns two spaces apart: one is too few to tell numbers apart.
    pub fn plain(&self) -> String {
        let mut grid = self.grid(presets::NOTHING);
        grid.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
        grid.to_string()
    }

    fn grid(&self, style: TableStyle) -> comfy_table::Table {
        let mut grid = comfy_table::Table::new();
        grid.load_style(style);
        grid.set_header(self.columns.iter().map(|column| column.name));
        for row in 0..self.columns.first().map_or(0, |column| column.cells.len()) {
            grid.add_row(self.columns.iter().filter_map(|column| column.cells.get(row)));
        }
        for (column, shown) in self.columns.iter().zip(grid.column_iter_mut()) {
            if matches!(column.kind, CellKind::Number | CellKind::Optional) {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        grid
    }
}

impl<R> fmt::Display for Table<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.grid(presets::UTF8_HORIZONTAL_ONLY))
    }
}
