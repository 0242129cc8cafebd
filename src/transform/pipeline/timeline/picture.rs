//! A schedule as text: a row for each stage, a column for each iteration, and below them the held activations and the
//! times when weights are whole.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::ops::Range;

use super::{Column, Timeline};
use crate::transform::pipeline::Task;

/// The number of columns that fit a terminal of 100 characters, and of rows that can be taken in at once.
const MOST_COLUMNS: usize = 24;
const MOST_ROWS: usize = 16;

/// A picture of limited size. If there are more columns or rows, those at the borders of changes are shown, and `…` for
/// the rest. With `#`, all of it is shown.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folded = !f.alternate();
        match self.turn() {
            None => self.part(f, "forward and backward", 0..self.columns.len(), folded),
            Some(turn) => {
                self.part(f, "forward", 0..turn, folded)?;
                f.write_char('\n')?;
                self.part(f, "backward", turn..self.columns.len(), folded)
            }
        }
    }
}

/// A row of the picture: its name, and the text of each column.
type Row = (String, Vec<String>);

impl Timeline {
    fn part(&self, f: &mut fmt::Formatter<'_>, title: &str, columns: Range<usize>, folded: bool) -> fmt::Result {
        let shown = if folded { self.shown(&columns) } else { columns.clone().collect() };
        let mut rows: Vec<Row> = vec![(title.to_owned(), shown.iter().map(|&at| self.iteration(at)).collect())];
        for stage in shown_rows(self.stages, folded) {
            let Some(stage) = stage else {
                rows.push(("…".to_owned(), vec![String::new(); shown.len()]));
                continue;
            };
            rows.extend(self.stage_rows(stage, &shown));
        }
        let held = |&at: &usize| ((self.held[at] * 10.0).round() / 10.0).to_string();
        rows.push(("held".to_owned(), shown.iter().map(held).collect()));
        rows.extend(self.weight_rows(&columns, &shown));
        write_rows(f, &rows, &shown)
    }

    fn iteration(&self, column: usize) -> String {
        self.columns[column].iteration.to_string()
    }

    /// The work of one stage: in a row, or two where forward and backward are at the same time, or three where that of
    /// weights is apart.
    fn stage_rows(&self, stage: usize, shown: &[usize]) -> Vec<Row> {
        let row = |name: String, side: fn(&Column) -> &Vec<Option<Task>>| {
            let cells = shown.iter().map(|&at| self.cell(side(&self.columns[at])[stage]));
            (name, cells.collect())
        };
        let has = |side: fn(&Column) -> &Vec<Option<Task>>| shown.iter().all(|&at| !side(&self.columns[at]).is_empty());
        match (has(|column| &column.forward), has(|column| &column.backward)) {
            (true, true) => {
                let mut rows = vec![
                    row(format!("stage {stage} forward"), |column| &column.forward),
                    row("  backward".to_owned(), |column| &column.backward),
                ];
                if shown.iter().all(|&at| !self.columns[at].weights.is_empty()) {
                    let cells = shown.iter().map(|&at| self.cells(&self.columns[at].weights[stage]));
                    rows.push(("  of weights".to_owned(), cells.collect()));
                }
                rows
            }
            (true, false) => vec![row(format!("stage {stage}"), |column| &column.forward)],
            (false, _) => vec![row(format!("stage {stage}"), |column| &column.backward)],
        }
    }

    /// `3` for microbatch 3, `1:3` for its second repeat where there are several, `.` for a bubble.
    fn cell(&self, task: Option<Task>) -> String {
        match task {
            None => ".".to_owned(),
            Some(task) if self.parts().0 == 1 => task.microbatch.to_string(),
            Some(Task { microbatch, repeat }) => format!("{repeat}:{microbatch}"),
        }
    }

    /// Several tasks of one cell: the first, and how many more there are.
    fn cells(&self, tasks: &[Task]) -> String {
        match tasks {
            [] => ".".to_owned(),
            [only] => self.cell(Some(*only)),
            [first, others @ ..] => format!("{}+{}", self.cell(Some(*first)), others.len()),
        }
    }

    /// For each gathered set of weights `~` while it can be gathered, `=` while it is there, and `+` where its gradient
    /// is ready.
    fn weight_rows(&self, columns: &Range<usize>, shown: &[usize]) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for window in &self.windows {
            if window.alive.end.min(columns.end) <= window.alive.start.max(columns.start) {
                continue;
            }
            let scattered = self.scatters.iter().find(|scatter| scatter.repeats == window.repeats);
            let name = match window.repeats.len() {
                1 => format!("weights {}", window.repeats.start),
                _ => "weights, all".to_owned(),
            };
            let cell = |&at: &usize| match () {
                () if scattered.is_some_and(|scatter| scatter.column == at + 1) => "=+",
                () if window.gather.contains(&at) => "~",
                () if window.alive.contains(&at) => "=",
                () => "",
            };
            rows.push((name, shown.iter().map(|at| cell(at).to_owned()).collect()));
        }
        rows
    }

    /// Columns around the changes, with as many around each as there is room for.
    fn shown(&self, columns: &Range<usize>) -> Vec<usize> {
        if columns.len() <= MOST_COLUMNS {
            return columns.clone().collect();
        }
        let near = |around: usize| -> BTreeSet<usize> {
            let borders = self.borders(columns).into_iter();
            borders
                .flat_map(|border| border.saturating_sub(around)..border + around)
                .filter(|at| columns.contains(at))
                .collect()
        };
        let most = (1..=MOST_COLUMNS).map(near).take_while(|shown| shown.len() <= MOST_COLUMNS).last();
        most.unwrap_or_else(|| {
            let half = MOST_COLUMNS / 2;
            (columns.start..columns.start + half).chain(columns.end - half..columns.end).collect()
        })
        .into_iter()
        .collect()
    }

    /// The columns at which stages begin or stop to wait, or the first stage goes on to another repeat.
    fn borders(&self, columns: &Range<usize>) -> BTreeSet<usize> {
        let kind = |at: usize| {
            let column = &self.columns[at];
            let work = if column.forward.is_empty() { &column.backward } else { &column.forward };
            let waiting = work.iter().chain(&column.backward).filter(|task| task.is_none()).count();
            let repeat = work.first().copied().flatten().map(|task| task.repeat);
            (waiting > 0, repeat)
        };
        let changes = (columns.start + 1..columns.end).filter(|&at| kind(at) != kind(at - 1));
        changes.chain([columns.start, columns.end]).collect()
    }
}

/// The stages that have a row; `None` for those in between that have not.
fn shown_rows(stages: usize, folded: bool) -> Vec<Option<usize>> {
    if !folded || stages <= MOST_ROWS {
        return (0..stages).map(Some).collect();
    }
    let last = stages - MOST_ROWS / 4;
    (0..MOST_ROWS - MOST_ROWS / 4).map(Some).chain([None]).chain((last..stages).map(Some)).collect()
}

fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[Row], shown: &[usize]) -> fmt::Result {
    let length = |text: &String| text.chars().count();
    let first = rows.iter().map(|(name, _)| length(name)).max().unwrap_or(0);
    let width = rows.iter().flat_map(|(_, cells)| cells.iter().map(length)).max().unwrap_or(1);
    for (name, cells) in rows {
        let mut text = format!("{name:first$} ");
        for (index, cell) in cells.iter().enumerate() {
            // Columns that are left out.
            let gap = index > 0 && shown[index] != shown[index - 1] + 1;
            let mark = if gap { " …" } else { "" };
            text.push_str(&format!("{mark} {cell:>width$}"));
        }
        writeln!(f, "{}", text.trim_end())?;
    }
    Ok(())
}
