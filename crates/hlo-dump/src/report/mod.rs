//! `hlo-dump report`: one page that shows a program, and needs nothing but a browser.
//!
//! A [`Page`] has the findings of `meshloom_analysis` for a module; each section is a file that turns some of them
//! into HTML and inline SVG. The page contains its tables and charts. The script sorts, filters, lays out the graph of
//! scopes and reads values off the memory curve; without it the page is static.
//!
//! The size of the page is bounded: tables have only their largest rows, and charts no more marks than pixels.

mod collectives;
pub mod costs;
mod curve;
mod figures;
pub mod graph;
pub mod lanes;
mod measured;
mod pipeline;
mod shardings;
mod step;

use anyhow::Result;
use maud::{Markup, PreEscaped, html};
use meshloom_analysis::cost::Bound;
use meshloom_analysis::{
    Chip, CostOptions, DeviceWalk, ModuleCollective, ModuleCollectives, ModuleCost, ModuleMemory, Walk,
    collectives_of_walk, cost_of_walk,
};
use meshloom_hlo::source::Sources;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments;
use crate::input::{Loaded, load, load_profile};
use crate::markup::html;
use crate::output;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

pub struct Page<'a> {
    loaded: &'a Loaded,
    /// The chip that times are for.
    chip: &'a Chip,
    walk: &'a Walk<'a>,
    cost: ModuleCost,
    collectives: ModuleCollectives,
    /// The memory of the program, or the reason why it cannot be computed.
    memory: Result<ModuleMemory>,
    /// One step by estimated time; `None` for a chip whose rates are not known.
    step: Option<lanes::StepLanes>,
    measured: Option<measured::Comparison>,
    /// The groups of devices that have a color, in the order of the program, if no mesh is named.
    groups: Vec<String>,
}

#[derive(JsonSchema, Serialize)]
pub struct Answer {
    /// The file of the page.
    output: String,
    /// The size of the page.
    bytes: usize,
    /// The times that a profile measured; only with a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<measured::Answer>,
}

pub fn run(arguments: &arguments::Report, json: bool) -> Result<()> {
    let chip = Chip::parse(&arguments.chip)?;
    let mut loaded = load(&arguments.input)?;
    if let Some(path) = &arguments.profile {
        loaded.profile = Some(load_profile(path)?);
    }
    let walk = DeviceWalk::of(&loaded.module, loaded.devices);
    let report = Page::of(&loaded, chip, &walk);
    let measured = report.measured.as_ref().map(|it| it.answer());
    let page = html::document(report.page()?);
    let name = arguments.output.display().to_string();
    output::write(&arguments.output, &page)?;
    if json {
        return output::json("hlo-dump/report", &loaded.found(&Answer { output: name, bytes: page.len(), measured }));
    }
    if let Some(measured) = &report.measured {
        measured.print();
    }
    output::line(&format!("{name}: {}", output::bytes(page.len() as u64)));
    Ok(())
}

impl<'a> Page<'a> {
    fn of(loaded: &'a Loaded, chip: &'a Chip, device_walk: &'a DeviceWalk<'a>) -> Page<'a> {
        let sources = Sources::of(&loaded.module);
        let walk = device_walk.walk();
        let cost = cost_of_walk(device_walk, sources, &CostOptions::devices(loaded.devices).on(chip));
        let found = collectives_of_walk(device_walk, sources);
        let collectives = loaded.mesh.iter().fold(found, ModuleCollectives::along);
        let step = step::lanes(walk, &cost, &collectives);
        let measured = loaded.profile.as_ref().map(|profile| measured::Comparison::of(loaded, profile, &cost));
        let mut groups: Vec<String> = Vec::new();
        for axes in collectives.entries.iter().map(axes_text) {
            if groups.len() < COLORS && !groups.contains(&axes) {
                groups.push(axes);
            }
        }
        Page { loaded, chip, walk, cost, collectives, memory: crate::memory::of(loaded), step, measured, groups }
    }

    fn page(&self) -> Result<Markup> {
        let name = &self.loaded.module.name;
        let sections: [(&str, &str, Option<Markup>); 8] = [
            ("pipeline", "Pipeline", pipeline::render(self)?),
            ("step", "One step", lanes::render(self)),
            ("measured", "Measured", measured::render(self)),
            ("collectives", "What moves", Some(collectives::render(self))),
            ("memory", "Memory", curve::render(self)),
            ("cost", "Cost", costs::render(self)),
            ("graph", "Graph", graph::render(self)),
            ("shardings", "Shardings", Some(shardings::render(self))),
        ];
        // An axis has the same color all over the page.
        let axes = self.loaded.mesh.iter().flat_map(|mesh| mesh.axes().map(|axis| (mesh.name(axis), mesh.size(axis))));
        let axes =
            axes.enumerate().map(|(number, (name, size))| (axis_color(number), html! { (name) " " b { (size) } }));
        Ok(html! {
            (html::DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    meta http-equiv="Content-Security-Policy"
                        content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
                    title { (name) " - hlo-dump" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    header {
                        div { h1 { (name) } p { (self.loaded.name) ": " (self.loaded.title()) } }
                        (html::legend(axes))
                    }
                    nav {
                        @for (id, title, section) in &sections {
                            @if section.is_some() { a href={ "#" (id) } { (title) } }
                        }
                    }
                    main {
                        (figures::figures(self))
                        @for section in sections.iter().filter_map(|(.., section)| section.as_ref()) { (section) }
                        (figures::notes(self))
                    }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        })
    }

    /// Returns the color of collectives over these axes: the axis's own, or one color for all that are over several
    /// axes or no known one.
    fn axes_color(&self, axes: &str) -> String {
        let number = match &self.loaded.mesh {
            None => self.groups.iter().position(|known| known == axes),
            // A part of an axis has the axis's color: `fsdp:(1)2`.
            Some(mesh) => {
                let name = axes.split(':').next().unwrap_or(axes);
                mesh.axes().position(|axis| mesh.name(axis) == name)
            }
        };
        number.map_or("var(--several)".to_owned(), axis_color)
    }
}

/// The number of colors of axes in the style sheet.
const COLORS: usize = 8;

fn axis_color(number: usize) -> String {
    format!("var(--c{})", number % COLORS)
}

/// Returns the color of an op that is limited by this resource, or of one whose limit is not known.
fn bound_color(bound: Option<Bound>) -> String {
    let name = match bound {
        Some(Bound::Compute) => "compute",
        Some(Bound::Memory) => "memory",
        Some(Bound::Link) => "link-bound",
        None => "bar",
    };
    format!("var(--{name})")
}

/// Returns `fsdp` or `data,fsdp`; for devices that do not lie along axes of a mesh, the size of a group.
fn axes_text(entry: &ModuleCollective) -> String {
    match (&entry.axes, entry.group_size) {
        (Some(axes), _) => axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        (None, Some(size)) => format!("groups of {size}"),
        (None, None) => "pairs".to_owned(),
    }
}
