//! What the program costs, by scope: a treemap of where the time goes, and a table.

use std::fmt::Write;

use super::html::{Cell, escape, fitting, section, table};
use super::{MOST_ROWS, Report};
use crate::output::{human_bytes, human_count, seconds};

/// What a scope is limited by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    Compute,
    Memory,
    Link,
    /// No chip is given whose rates are known.
    #[default]
    Unknown,
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::Compute => "compute",
            Limit::Memory => "memory",
            Limit::Link => "link",
            Limit::Unknown => "",
        }
    }
}

/// The cost of the instructions of a scope, without those of scopes in it, in all executions.
#[derive(Clone, Debug, Default)]
pub struct CostRow {
    /// Names of nested scopes, joined by `/`.
    pub scope: String,
    pub flops: f64,
    /// Bytes read and written.
    pub memory_bytes: u64,
    /// Bytes sent to other devices.
    pub link_bytes: u64,
    /// One instruction after the other, at the chip's peak rates.
    pub seconds: Option<f64>,
    pub limit: Limit,
}

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 300.0;
/// Smaller ones are one tile together.
const MOST_TILES: usize = 60;

pub fn render(report: &Report) -> String {
    if report.costs.is_empty() {
        return String::new();
    }
    let timed = report.costs.iter().any(|row| row.seconds.is_some());
    let weight = |row: &CostRow| if timed { row.seconds.unwrap_or(0.0) } else { row.flops };
    let mut rows: Vec<&CostRow> = report.costs.iter().collect();
    rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    let all: f64 = rows.iter().map(|row| weight(row)).sum();
    let prefix = common_scopes(&rows);
    let tiles: Vec<(&CostRow, f64)> = rows.iter().map(|row| (*row, weight(row))).collect();
    let mut body = if all > 0.0 { treemap(&tiles, all, prefix, timed) } else { String::new() };
    let cells = |row: &&CostRow| {
        let intensity = row.flops / row.memory_bytes.max(1) as f64;
        let share = weight(row) / if all > 0.0 { all } else { 1.0 };
        let time = row.seconds.map_or(Cell::number(-1.0, ""), |time| Cell::number(time, seconds(time)));
        vec![
            Cell::code(if row.scope.is_empty() { "(no scope)" } else { &row.scope }),
            time,
            Cell::number(share, format!("{:.1} %", share * 100.0)).with_bar(share, limit_color(row.limit)),
            Cell::text(row.limit.name()),
            Cell::number(row.flops, human_count(row.flops)),
            Cell::number(row.memory_bytes as f64, human_bytes(row.memory_bytes)),
            Cell::number(intensity, format!("{intensity:.2}")),
            Cell::number(row.link_bytes as f64, human_bytes(row.link_bytes)),
        ]
    };
    let cells: Vec<Vec<Cell>> = rows.iter().take(MOST_ROWS).map(cells).collect();
    let columns = ["scope", "time", "share", "limited by", "operations", "memory traffic", "ops per byte", "sent"];
    body.push_str(&table("cost-rows", &columns, &cells, rows.len()));
    let lead = if timed {
        "Where the time goes if every instruction runs alone at the chip's peak rates. A tile is a scope; its color, what limits it."
    } else {
        "Where the operations are. A tile is a scope. Times need a chip whose rates are known."
    };
    section("cost", "Cost by scope", lead, &body)
}

fn limit_color(limit: Limit) -> &'static str {
    match limit {
        Limit::Compute => "var(--compute)",
        Limit::Memory => "var(--memory)",
        Limit::Link => "var(--link-bound)",
        Limit::Unknown => "var(--bar)",
    }
}

/// The scopes that all rows begin with, with the last slash.
fn common_scopes<'a>(rows: &[&'a CostRow]) -> &'a str {
    let mut scopes = rows.iter().map(|row| row.scope.as_str()).filter(|scope| !scope.is_empty());
    let Some(first) = scopes.next() else { return "" };
    let mut length = first.len();
    for scope in scopes {
        length = first.bytes().zip(scope.bytes()).take(length).take_while(|(a, b)| a == b).count();
    }
    first.get(..length).and_then(|text| text.rfind('/')).map_or("", |at| &first[..=at])
}

/// A place in the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Areas in proportion to weights, largest first, as square as they can be (Bruls, Huizing and van Wijk, "Squarified
/// Treemaps", 2000).
fn squarified(weights: &[f64], whole: Area) -> Vec<Area> {
    let total: f64 = weights.iter().sum();
    let scale = whole.width * whole.height / total;
    let (mut areas, mut left, mut first) = (Vec::new(), whole, 0);
    while first < weights.len() {
        let side = left.width.min(left.height).max(1e-9);
        // The longest proportion in a row of these; one more tile joins the row while that falls.
        let worst = |row: &[f64]| {
            let sum: f64 = row.iter().sum::<f64>() * scale;
            let extreme =
                |size: f64| (side * side * size * scale / (sum * sum)).max(sum * sum / (side * side * size * scale));
            row.iter().map(|&size| extreme(size)).fold(0.0, f64::max)
        };
        let mut last = first + 1;
        while last < weights.len() && worst(&weights[first..=last]) <= worst(&weights[first..last]) {
            last += 1;
        }
        let row = &weights[first..last];
        let depth = row.iter().sum::<f64>() * scale / side;
        let mut along = 0.0;
        for size in row {
            let length = size * scale / depth;
            areas.push(match left.width >= left.height {
                true => Area { x: left.x, y: left.y + along, width: depth, height: length },
                false => Area { x: left.x + along, y: left.y, width: length, height: depth },
            });
            along += length;
        }
        left = match left.width >= left.height {
            true => Area { x: left.x + depth, width: (left.width - depth).max(0.0), ..left },
            false => Area { y: left.y + depth, height: (left.height - depth).max(0.0), ..left },
        };
        first = last;
    }
    areas
}

fn treemap(rows: &[(&CostRow, f64)], all: f64, prefix: &str, timed: bool) -> String {
    // What cannot be seen is left to the table.
    let shown: Vec<_> = rows.iter().take(MOST_TILES).filter(|(_, weight)| weight / all > 0.0005).collect();
    let mut weights: Vec<f64> = shown.iter().map(|(_, weight)| *weight).collect();
    let others = all - weights.iter().sum::<f64>();
    if others / all > 0.0005 {
        weights.push(others);
    }
    let areas = squarified(&weights, Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT });
    let mut svg = format!(
        "<svg class=\"chart\" id=\"treemap\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"cost by scope\">\n"
    );
    for (index, area) in areas.iter().enumerate() {
        let row = shown.get(index).map(|(row, _)| *row);
        let name = row.map_or("all others", |row| row.scope.strip_prefix(prefix).unwrap_or(&row.scope));
        let amount = if timed { seconds(weights[index]) } else { human_count(weights[index]) };
        let amount = format!("{amount}, {:.1} %", 100.0 * weights[index] / all);
        let color = limit_color(row.map_or(Limit::Unknown, |row| row.limit));
        tile(&mut svg, area, if name.is_empty() { "(no scope)" } else { name }, &amount, color);
    }
    svg.push_str("</svg>\n");
    let key = [Limit::Compute, Limit::Memory, Limit::Link]
        .map(|limit| format!("<li><i style=\"background:{}\"></i>{} bound</li>", limit_color(limit), limit.name()));
    let key = if timed { format!("<ul class=\"legend\">{}</ul>\n", key.concat()) } else { String::new() };
    key + &svg
}

fn tile(svg: &mut String, area: &Area, name: &str, amount: &str, color: &str) {
    let Area { x, y, width, height } = *area;
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<g class=\"tile\"><title>{}\n{amount}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" \
         style=\"fill:{color}\"/>",
        escape(name),
        x + 1.0,
        y + 1.0,
        (width - 2.0).max(0.0),
        (height - 2.0).max(0.0)
    );
    /// Width of a letter.
    const LETTER: f64 = 7.3;
    let letters = ((width - 16.0) / LETTER).max(0.0) as usize;
    if letters >= 6 && height > 22.0 {
        let text = fitting(name, letters);
        let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 8.0, y + 18.0, escape(&text));
        if height > 40.0 {
            // The time, and the share of it where there is room.
            let short = amount.split_once(',').map_or(amount, |(amount, _)| amount);
            let amount = if amount.chars().count() <= letters + 2 { amount } else { short };
            let _ = write!(svg, "<text class=\"amount\" x=\"{:.1}\" y=\"{:.1}\">{amount}</text>", x + 8.0, y + 34.0);
        }
    }
    svg.push_str("</g>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_the_drawing() {
        let whole = Area { x: 0.0, y: 0.0, width: 6.0, height: 4.0 };
        let weights = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let areas = squarified(&weights, whole);
        assert_eq!(areas.len(), weights.len());
        for (area, weight) in areas.iter().zip(weights) {
            assert!((area.width * area.height - weight).abs() < 1e-9, "{area:?}");
            assert!(area.x >= 0.0 && area.x + area.width < 6.0 + 1e-9, "{area:?}");
            assert!(area.y >= 0.0 && area.y + area.height < 4.0 + 1e-9, "{area:?}");
        }
        // The example of the paper: the first two stand above each other.
        assert_eq!(areas[0], Area { x: 0.0, y: 0.0, width: 3.0, height: 2.0 });
        assert_eq!(areas[1], Area { x: 0.0, y: 2.0, width: 3.0, height: 2.0 });
    }

    #[test]
    fn scopes_in_common() {
        let row = |scope: &str| CostRow { scope: scope.to_owned(), ..CostRow::default() };
        let check = |scopes: &[&str], expected: &str| {
            let rows: Vec<CostRow> = scopes.iter().map(|scope| row(scope)).collect();
            assert_eq!(common_scopes(&rows.iter().collect::<Vec<_>>()), expected);
        };
        check(&["a/b/c", "a/b/d", ""], "a/b/");
        check(&["a/bc", "a/bd"], "a/");
        check(&["é/x", "è/x"], "");
        check(&[], "");
    }
}
