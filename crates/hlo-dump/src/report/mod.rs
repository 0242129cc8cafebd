//! `hlo-dump report`: one page that shows a program, and needs nothing but a browser.
//!
//! A [`Report`] is plain data that `gather` reads from a module by `meshloom_hlo::analysis`; [`render`] turns it into
//! HTML and inline SVG. The page contains its tables and charts. The script sorts, filters, lays out the graph of
//! scopes and reads values off the memory curve; without it the page is static.
//!
//! The size of the page is bounded: tables have their largest rows, and charts no more marks than pixels.

mod collectives;
mod costs;
mod curve;
mod gather;
mod graph;
pub mod html;
mod lanes;
mod pipeline;
mod shardings;
mod timeline;

use std::fmt::Write;

use anyhow::{Context, Result};
use meshloom::transform::pipeline::Timeline;
use meshloom_hlo::analysis::Chip;
use serde::Serialize;

use self::html::escape;
use crate::arguments;
use crate::input::{Described, load};
use crate::output;

pub use self::collectives::CollectiveRow;
pub use self::costs::{CostRow, Limit};
pub use self::curve::{Curve, LiveBuffer};
pub use self::graph::{Edge, Scope, ScopeTree};
pub use self::lanes::{Lane, LoopSpan, Span, StepLanes};
pub use self::pipeline::{Pipeline, PipelineLoop};
pub use self::shardings::ShardingRow;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The most rows of a table.
const MOST_ROWS: usize = 400;

/// A figure at the top of the page.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// What it is.
    pub label: &'static str,
    /// In words: `4.2 MiB`.
    pub value: String,
    /// What to know about it: the exact number, what it is the sum of.
    pub detail: String,
}

/// All that the page shows.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name of the program.
    pub title: String,
    /// Where it comes from, and on what it runs.
    pub subtitle: String,
    /// The mesh axes with their sizes, major to minor; their order is that of their colors.
    pub mesh: Vec<(String, usize)>,
    /// Figures at the top.
    pub figures: Vec<Figure>,
    /// The schedule of the pipeline, where the input says it.
    pub timeline: Option<Timeline>,
    /// Pipelines that the program's loops look like.
    pub pipelines: Vec<Pipeline>,
    /// One step by estimated time; none without a chip whose rates are known.
    pub lanes: Option<StepLanes>,
    /// What moves, in any order.
    pub collectives: Vec<CollectiveRow>,
    /// What fills memory.
    pub memory: Option<Curve>,
    /// What it costs, by scope.
    pub costs: Vec<CostRow>,
    /// The scopes, and what flows between them.
    pub scopes: ScopeTree,
    /// How values are sharded.
    pub shardings: Vec<ShardingRow>,
    /// What the figures take for granted.
    pub notes: Vec<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    input: Described<'a>,
    output: String,
    bytes: usize,
}

/// The command.
pub fn run(arguments: &arguments::Report, json: bool) -> Result<()> {
    let chip = Chip::parse(&arguments.chip)?;
    let loaded = load(&arguments.input)?;
    let page = render(&gather::report(&loaded, chip));
    let name = arguments.output.display().to_string();
    std::fs::write(&arguments.output, &page).with_context(|| format!("cannot write {name}"))?;
    if json {
        return output::json("report", &Answer { input: loaded.describe(), output: name, bytes: page.len() });
    }
    output::line(&format!("{name}: {}", output::bytes(page.len() as u64)));
    Ok(())
}

/// The page.
pub fn render(report: &Report) -> String {
    let parts = [
        pipeline::render(report),
        lanes::render(report),
        collectives::render(report),
        curve::render(report),
        costs::render(report),
        graph::render(report),
        shardings::render(report),
    ];
    let parts: Vec<(&str, &str, String)> =
        PARTS.iter().zip(parts).map(|(&(id, title), body)| (id, title, body)).collect();
    let mut page = String::with_capacity(parts.iter().map(|part| part.2.len()).sum::<usize>() + 32_000);
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title} - hlo-dump</title>\n<style>\n{STYLE}</style></head>\n<body>\n<header><div><h1>{title}</h1><p>{subtitle}</p></div>{legend}</header>\n",
        title = escape(&report.title),
        subtitle = escape(&report.subtitle),
        legend = mesh_legend(report),
    );
    page.push_str("<nav>");
    for (id, title, _) in parts.iter().filter(|part| !part.2.is_empty()) {
        let _ = write!(page, "<a href=\"#{id}\">{title}</a>");
    }
    page.push_str("</nav>\n<main>\n");
    page.push_str(&figures(report));
    parts.iter().for_each(|part| page.push_str(&part.2));
    page.push_str(&notes(report));
    let _ = write!(page, "</main>\n<script>\n{SCRIPT}</script>\n</body></html>\n");
    page
}

/// The sections in their order: id and title.
const PARTS: [(&str, &str); 7] = [
    ("pipeline", "Pipeline"),
    ("step", "One step"),
    ("collectives", "What moves"),
    ("memory", "Memory"),
    ("cost", "Cost"),
    ("graph", "Graph"),
    ("shardings", "Shardings"),
];

fn figures(report: &Report) -> String {
    let mut text = String::from("<div class=\"figures\">");
    for figure in &report.figures {
        let (value, detail) = (escape(&figure.value), escape(&figure.detail));
        let _ = write!(
            text,
            "<div class=\"figure\"><span>{}</span><strong>{value}</strong><small>{detail}</small></div>",
            figure.label
        );
    }
    text.push_str("</div>\n");
    text
}

/// The axes of the mesh with their colors, which are the same all over the page.
fn mesh_legend(report: &Report) -> String {
    let mut text = String::from("<ul class=\"legend\">");
    for (number, (name, size)) in report.mesh.iter().enumerate() {
        let color = html::axis_color(number);
        let _ = write!(text, "<li><i style=\"background:{color}\"></i>{} <b>{size}</b></li>", escape(name));
    }
    text.push_str("</ul>");
    text
}

fn notes(report: &Report) -> String {
    if report.notes.is_empty() {
        return String::new();
    }
    let mut text = String::from("<section id=\"notes\"><h2>What these figures take for granted</h2><ul>");
    report.notes.iter().for_each(|note| text.push_str(&format!("<li>{}</li>", escape(note))));
    text.push_str("</ul></section>\n");
    text
}

impl Report {
    /// The color of what is over these axes: the axis's own, or one for all that is over several or over none that is
    /// known.
    fn axes_color(&self, axes: &str) -> String {
        let number = if self.mesh.is_empty() {
            // Then what there is of groups, in the order of the program.
            let mut seen: Vec<&str> = Vec::new();
            self.collectives.iter().map(|row| row.axes.as_str()).for_each(|axes| {
                if seen.len() < 8 && !seen.contains(&axes) {
                    seen.push(axes);
                }
            });
            seen.iter().position(|known| *known == axes)
        } else {
            // A part of an axis has the axis's color: `fsdp:(1)2`.
            let name = axes.split(':').next().unwrap_or(axes);
            self.mesh.iter().position(|(axis, _)| axis == name)
        };
        number.map_or("var(--several)".to_owned(), html::axis_color)
    }
}
