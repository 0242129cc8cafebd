//! The common parts of drawings: frames, colours, marks, texts that fit, and ticks.

use maud::{Markup, Render, html};

/// The width of every drawing of the page, in units of its own.
pub const WIDTH: f64 = 1120.0;

/// Returns a coordinate as it is written: less than a tenth is invisible.
pub fn at(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    /// Returns the area with a space between it and its neighbours.
    pub fn inset(self) -> Area {
        let [width, height] = [self.width, self.height].map(|it| (it - 2.0).max(0.5));
        Area { x: self.x + 1.0, y: self.y + 1.0, width, height }
    }

    pub fn rectangle(self, class: Option<&str>, rounding: u8, style: Option<String>) -> Markup {
        let Area { x, y, width, height } = self;
        let [x, y, width, height] = [x, y, width, height].map(at);
        html! { rect class=[class] x=(x) y=(y) width=(width) height=(height) rx=(rounding) style=[style] {} }
    }
}

pub fn drawing(class: &str, id: Option<&str>, height: f64, label: &str, content: impl Render) -> Markup {
    let view = format!("0 0 {WIDTH} {height}");
    html! { svg class={ "chart" (class) } id=[id] viewBox=(view) role="img" aria-label=(label) { (content) } }
}

/// Colors of a drawing that stands alone, which people with color blindness can tell apart (Okabe and Ito's palette).
pub const COLORS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f"];

/// Returns a drawing as a file of its own.
pub fn alone(label: &str, (width, height): (f64, f64), content: impl Render) -> String {
    let view = format!("0 0 {width} {height:.0}");
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(view) role="img" aria-label=(label) font-family="sans-serif"
            font-size="13" fill="#222" { "\n" rect width="100%" height="100%" fill="#fff" {} "\n" (content) }
    };
    format!("{}\n", svg.into_string())
}

pub fn text(class: &str, (x, y): (f64, f64), text: impl Render) -> Markup {
    html! { text class=(class) x=(at(x)) y=(at(y)) { (text) } }
}

/// Draws a line along an axis, or across the drawing.
pub fn rule(class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> Markup {
    html! { line class=(class) x1=(at(x1)) x2=(at(x2)) y1=(at(y1)) y2=(at(y2)) {} }
}

/// Returns at most `most` characters: the start and the end of a longer text.
pub fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - (most - most / 2 - 1)).collect();
    format!("{head}…{tail}")
}

/// Returns as much of a path as fits into `most` characters, with its last parts first, which say most.
pub fn fitting(path: &str, most: usize) -> String {
    if path.chars().count() <= most {
        return path.to_owned();
    }
    let ends = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
    match ends.filter(|end| !end.is_empty()).find(|end| end.chars().count() <= most) {
        Some(end) => end.to_owned(),
        None => {
            let last = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path);
            last.chars().take(most.saturating_sub(1)).chain(['…']).collect()
        }
    }
}

/// Returns round numbers for an axis from 0 to a largest value, about `count` of them.
pub fn ticks(most: f64, count: usize) -> Vec<f64> {
    let rough = most / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let leading = rough / power;
    multiples(power * [1.0, 2.0, 5.0].into_iter().find(|&round| leading <= round).unwrap_or(10.0), most)
}

/// Returns round numbers of bytes in the same way, as multiples of a power of two.
pub fn byte_ticks(most: f64, count: usize) -> Vec<f64> {
    multiples((2.0 * most / count.max(1) as f64).log2().floor().exp2().max(1.0), most)
}

fn multiples(step: f64, most: f64) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0];
    }
    (0..).map(|index| f64::from(index) * step).take_while(|&value| value <= most * 1.0001).collect()
}
