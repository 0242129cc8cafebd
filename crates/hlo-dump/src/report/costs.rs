//! The cost of the program by scope: a treemap of the time, and a table.

use maud::{Markup, html};
use meshloom_analysis::cost::{Bound, ScopeCost};

use super::{Page, bound_color};
use crate::markup::chart::{Area, WIDTH, at, drawing, fitting, text};
use crate::markup::html::{Cell, legend, section, table};
use crate::output::{human_bytes, human_count, or_no_scope, seconds};

const HEIGHT: f64 = 300.0;
/// The most tiles: smaller scopes are one tile together.
const MOST_TILES: usize = 60;

/// The weights that decide the size of a tile: time, or operations if no chip is known.
struct Weights {
    timed: bool,
    all: f64,
}

impl Weights {
    fn of(&self, row: &ScopeCost) -> f64 {
        if self.timed { row.seconds.map_or(0.0, |seconds| seconds.serial) } else { row.total.flops as f64 }
    }
}

pub fn render(report: &Page) -> Option<Markup> {
    let mut rows: Vec<&ScopeCost> = report.cost.scopes.iter().collect();
    let mut weights = Weights { timed: rows.iter().any(|row| row.seconds.is_some()), all: 0.0 };
    rows.sort_by(|a, b| weights.of(b).total_cmp(&weights.of(a)));
    weights.all = rows.iter().map(|row| weights.of(row)).sum();
    let columns = ["scope", "time", "share", "limited by", "operations", "memory traffic", "ops per byte", "sent"];
    let table = table("cost-rows", columns, &rows, |row| {
        let ScopeCost { scope, total, seconds: time } = row;
        let bound = time.map(|time| time.bound());
        let intensity = total.flops as f64 / total.bytes().max(1) as f64;
        let share = weights.of(row) / if weights.all > 0.0 { weights.all } else { 1.0 };
        [
            Cell::code(or_no_scope(scope)),
            time.map_or(Cell::number(-1.0, ""), |time| Cell::number(time.serial, seconds(time.serial))),
            Cell::number(share, format!("{:.1} %", share * 100.0)).with_bar(share, bound_color(bound)),
            Cell::text(bound.map_or(String::new(), |bound| bound.to_string())),
            Cell::number(total.flops as f64, human_count(total.flops as f64)),
            Cell::number(total.bytes() as f64, human_bytes(total.bytes())),
            Cell::number(intensity, format!("{intensity:.2}")),
            Cell::number(total.link_bytes as f64, human_bytes(total.link_bytes)),
        ]
    });
    let lead = if weights.timed {
        "Where the time goes if every instruction runs alone at the chip's peak rates. A tile is a scope; its color, what limits it."
    } else {
        "Where the operations are. A tile is a scope. Times need a chip whose rates are known."
    };
    let key = [Bound::Compute, Bound::Memory, Bound::Link].map(|it| (bound_color(Some(it)), format!("{it} bound")));
    let body = html! {
        @if weights.all > 0.0 {
            @if weights.timed { (legend(key)) }
            (treemap(&rows, &weights))
        }
        (table)
    };
    (!rows.is_empty()).then(|| section("cost", "Cost by scope", lead, body))
}

/// Returns the scopes that all paths begin with, with the last slash.
pub fn common_scopes<'a>(scopes: impl IntoIterator<Item = &'a str>) -> &'a str {
    let mut scopes = scopes.into_iter().filter(|scope| !scope.is_empty());
    let Some(first) = scopes.next() else { return "" };
    let mut length = first.len();
    for scope in scopes {
        length = first.bytes().zip(scope.bytes()).take(length).take_while(|(a, b)| a == b).count();
    }
    first.get(..length).and_then(|text| text.rfind('/')).map_or("", |at| &first[..=at])
}

/// Returns areas in proportion to weights, largest first, as square as they can be (Bruls, Huizing and van Wijk,
/// "Squarified Treemaps", 2000).
pub fn squarified(weights: &[f64], whole: Area) -> Vec<Area> {
    let total: f64 = weights.iter().sum();
    let scale = whole.width * whole.height / total;
    let (mut areas, mut left, mut first) = (Vec::new(), whole, 0);
    while first < weights.len() {
        let side = left.width.min(left.height).max(1e-9);
        // This is the longest proportion in a row; one more tile joins the row while it falls.
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

fn treemap(rows: &[&ScopeCost], weights: &Weights) -> Markup {
    /// A smaller share is invisible, and is left to the table.
    const LEAST: f64 = 0.0005;
    let prefix = common_scopes(rows.iter().map(|row| row.scope.as_str()));
    let tiles = rows.iter().take(MOST_TILES).map(|row| (Some(*row), weights.of(row)));
    let mut tiles: Vec<(Option<&ScopeCost>, f64)> = tiles.filter(|(_, size)| size / weights.all > LEAST).collect();
    let others = weights.all - tiles.iter().map(|(_, size)| size).sum::<f64>();
    if others / weights.all > LEAST {
        tiles.push((None, others));
    }
    let sizes: Vec<f64> = tiles.iter().map(|(_, size)| *size).collect();
    let areas = squarified(&sizes, Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT });
    let content = html! {
        @for ((row, size), area) in tiles.iter().zip(areas) {
            @let name = row.map_or("all others", |row| row.scope.strip_prefix(prefix).unwrap_or(&row.scope));
            @let amount = if weights.timed { seconds(*size) } else { human_count(*size) };
            @let color = bound_color(row.and_then(|row| row.seconds).map(|seconds| seconds.bound()));
            (tile(area, or_no_scope(name), &amount, 100.0 * size / weights.all, &color))
        }
    };
    drawing("", Some("treemap"), HEIGHT, "cost by scope", content)
}

fn tile(area: Area, name: &str, amount: &str, percent: f64, color: &str) -> Markup {
    const LETTER: f64 = 7.3;
    let letters = ((area.width - 16.0) / LETTER).max(0.0) as usize;
    let whole = format!("{amount}, {percent:.1} %");
    // The share is shown if there is room.
    let shown = if whole.chars().count() <= letters + 2 { &whole } else { amount };
    html! {
        g.tile {
            title { (name) "\n" (whole) }
            (area.inset().rectangle(None, 3, Some(format!("fill:{color}"))))
            @if letters >= 6 && area.height > 22.0 {
                text x=(at(area.x + 8.0)) y=(at(area.y + 18.0)) { (fitting(name, letters)) }
                @if area.height > 40.0 { (text("amount", (area.x + 8.0, area.y + 34.0), shown)) }
            }
        }
    }
}
