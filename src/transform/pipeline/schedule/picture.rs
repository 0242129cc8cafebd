//! A table as text: a row for each stage, a column for each tick.

use std::fmt::{self, Write as _};

use super::simulate::memory;
use super::{Cell, Item, Shape, Table};

/// The largest number of characters in a line, unless a single column has more.
const LINE: usize = 120;
/// The largest number of pieces that are written as letters. A larger number is written as a number.
const MOST_LETTERS: usize = 4;

/// `F3` is the forward pass of microbatch 3, `B3` its backward pass, and each `W` a piece of weights, or `W*8` eight of
/// them. Chunk 1 of two has small letters; with more chunks, `F2.3` is microbatch 3 in chunk 2. The last row shows how
/// many microbatches the stage that holds most holds. A table that is too wide goes on below.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages = self.ticks.iter().map(Vec::len).max().unwrap_or(0).max(self.shape.stages.min(LINE));
        let mut rows: Vec<(String, Vec<String>)> = vec![("tick".to_owned(), vec![])];
        rows.extend((0..stages).map(|stage| (format!("stage {stage}"), vec![])));
        rows.push(("memory".to_owned(), vec![]));
        let last = rows.len() - 1;
        for (tick, (cells, held)) in self.ticks.iter().zip(memory(self)).enumerate() {
            rows[0].1.push(tick.to_string());
            for stage in 0..stages {
                rows[1 + stage].1.push(cells.get(stage).map_or(String::new(), |cell| text(&self.shape, cell)));
            }
            let most = held.into_iter().fold(0.0, f64::max);
            rows[last].1.push(((most * 100.0).round() / 100.0).to_string());
        }
        let name = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let width = 1 + rows.iter().flat_map(|(_, cells)| cells.iter().map(String::len)).max().unwrap_or(1);
        let columns = (LINE.saturating_sub(name) / width).max(1);
        for begin in (0..self.ticks.len()).step_by(columns) {
            if begin > 0 {
                f.write_char('\n')?;
            }
            let end = (begin + columns).min(self.ticks.len());
            for (title, cells) in &rows {
                write!(f, "{title:<name$}")?;
                for cell in &cells[begin..end] {
                    write!(f, "{cell:>width$}")?;
                }
                f.write_char('\n')?;
            }
        }
        Ok(())
    }
}

fn text(shape: &Shape, cell: &Cell) -> String {
    if cell.is_empty() {
        return ".".to_owned();
    }
    let letter = |letter: char, chunk: usize| match chunk {
        1 if shape.chunks == 2 => letter.to_ascii_lowercase(),
        _ => letter,
    };
    let mut text = String::new();
    let mut pass = |name: char, item: Option<Item>| {
        if let Some(Item { chunk, microbatch }) = item {
            text.push(letter(name, chunk));
            if shape.chunks > 2 {
                text.push_str(&format!("{chunk}."));
            }
            text.push_str(&microbatch.to_string());
        }
    };
    pass('F', cell.forward);
    pass('B', cell.backward);
    match cell.weights.len() {
        count if count > MOST_LETTERS => text.push_str(&format!("W*{count}")),
        _ => text.extend(cell.weights.iter().map(|piece| letter('W', piece.item.chunk))),
    }
    text
}
