//! The program as nested boxes of scopes, which open when they are clicked. The script draws it.

use serde::Serialize;

use super::Report;
use super::html::{json, section};
use crate::output::thousands;

/// A scope, with all that is in it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scope {
    /// Its own name; several, joined by `/`, where nothing else is in between.
    pub name: String,
    /// The scope around it; none for the root.
    pub parent: Option<usize>,
    /// Instructions, a fusion as one.
    pub instructions: usize,
    /// Operations in all executions.
    pub flops: f64,
    /// Bytes that one device sends in all executions.
    pub sent: u64,
    /// Estimated time of all executions.
    pub seconds: Option<f64>,
    /// The most frequent opcodes: `dot 2, fusion 5`.
    pub opcodes: String,
}

/// What flows between two scopes of the same parent, from anything in one to anything in the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    /// Values.
    pub values: usize,
    /// Their bytes on one device.
    pub bytes: u64,
}

/// The scopes of a program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ScopeTree {
    /// The root first, each scope after its parent; those of one parent in the order of the program.
    pub scopes: Vec<Scope>,
    pub edges: Vec<Edge>,
    /// How many scopes are not apart, being too many.
    pub left_out: usize,
}

pub fn render(report: &Report) -> String {
    if report.scopes.scopes.len() < 2 {
        return String::new();
    }
    let more = match report.scopes.left_out {
        0 => String::new(),
        count => format!(
            "<p class=\"note\">There are {} scopes more than are drawn: those that differ in numbers alone are one (layer_*), or part of \
             the one around them.</p>",
            thousands(count as u64)
        ),
    };
    let body = format!(
        "<div class=\"tools\"><button type=\"button\" data-levels=\"1\">close all</button>\
         <button type=\"button\" data-levels=\"99\">open all</button><span class=\"count\" id=\"graph-count\"></span></div>\n\
         <div class=\"scroll tall\"><svg id=\"scope-graph\" class=\"graph\" role=\"img\" aria-label=\"scopes and what flows between them\"></svg></div>\n\
         {more}{}",
        json("graph-data", &report.scopes)
    );
    let lead = "Instructions by the scopes of their names. Click a box to open or close it; arrows are values, thicker for more bytes; \
                a stronger tint takes more of the step.";
    section("graph", "Graph by scope", lead, &body)
}
