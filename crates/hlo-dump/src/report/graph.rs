//! The program as nested boxes of scopes, which open on a click, with the flows between those of one parent. The script
//! draws it.
//!
//! An unrolled program has thousands of scopes, too many to open. So scopes that differ only in numbers become one
//! (`layer_*`), and if that is not enough, deep scopes join those around them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use indexmap::IndexMap;
use maud::{Markup, html};
use meshloom_analysis::scopes::first_levels;
use meshloom_analysis::{ModuleCost, ScopeGraph, Walk, Work, scope_graph};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::Page;
use crate::markup::html::{json, section};
use crate::output::{NO_SCOPE, plural};

/// A scope, with everything in it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Scope {
    /// Its own name; several names, joined by `/`, if there is nothing else between them.
    pub(crate) name: String,
    /// The scope around it; `None` for the root.
    pub(crate) parent: Option<usize>,
    /// The number of instructions, a fusion as one.
    pub(crate) instructions: usize,
    /// The number of operations in all executions.
    flops: f64,
    /// Bytes that one device sends in all executions.
    sent: u64,
    /// Estimated time of all executions.
    seconds: Option<f64>,
    /// The most frequent opcodes: `dot 2, fusion 5`.
    opcodes: String,
}

/// The flow between two scopes of the same parent, from anything in one to anything in the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    values: usize,
    /// Their bytes on one device.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ScopeTree {
    /// The scopes, the root first, each after its parent; those of one parent are in the order of the program.
    pub(crate) scopes: Vec<Scope>,
    pub(crate) edges: Vec<Edge>,
    /// The number of scopes that were joined to others because there are too many.
    left_out: usize,
}

pub fn render(report: &Page) -> Option<Markup> {
    let tree = tree(&report.loaded.module.name, report.walk, &report.cost);
    let body = html! {
        div.tools {
            button type="button" data-levels="1" { "close all" }
            button type="button" data-levels="99" { "open all" }
            span.count id="graph-count" {}
        }
        div.scroll.tall {
            svg id="scope-graph" class="graph" role="img" aria-label="scopes and what flows between them" {}
        }
        @if tree.left_out > 0 {
            p.note {
                "Not drawn: " (plural(tree.left_out as u64, "scope")) ", those that differ in \
                 numbers alone are one (layer_*), or part of the one around them."
            }
        }
        (json("graph-data", &tree))
    };
    let lead = "Instructions by the scopes of their names. Click a box to open or close it; arrows are values, thicker for more bytes; \
                a stronger tint takes more of the step.";
    (tree.scopes.len() > 1).then(|| section("graph", "Graph by scope", lead, body))
}

/// The most scopes that readers can use.
const MOST_SCOPES: usize = 1000;
/// The most levels: more than any name has.
const DEEPEST: usize = 24;

/// The label of the instructions in a scope that are not in an inner scope.
const OWN: &str = "(ops here)";

fn tree(name: &str, walk: &Walk<'_>, cost: &ModuleCost) -> ScopeTree {
    let all = scope_graph(walk, 0);
    let cut = Cut::of(&all);
    let mut builder = Builder::of(name, &all, cut);
    for scope in &cost.scopes {
        builder.add_cost(&cut.path(&scope.scope), &scope.total, scope.seconds.map(|seconds| seconds.serial));
    }
    let edges = builder.edges(&all);
    let left_out = all.nodes.len() - builder.leaves.len();
    ScopeTree { left_out, ..collapsed(builder.scopes, edges) }
}

/// The parts of a path that are kept apart.
#[derive(Clone, Copy)]
struct Cut {
    /// Whether numbers are kept apart.
    numbers: bool,
    /// The number of levels; all if 0.
    depth: usize,
}

impl Cut {
    /// Returns the smallest cut that leaves few enough scopes.
    fn of(graph: &ScopeGraph) -> Cut {
        let count = |cut: Cut| {
            let paths = graph.nodes.iter().map(|node| cut.path(&node.path));
            paths.collect::<FxHashSet<_>>().len()
        };
        let whole = [Cut { numbers: true, depth: 0 }, Cut { numbers: false, depth: 0 }];
        let cuts = whole.into_iter().chain((1..DEEPEST).rev().map(|depth| Cut { numbers: false, depth }));
        cuts.into_iter().find(|&cut| count(cut) <= MOST_SCOPES).unwrap_or(Cut { numbers: false, depth: 1 })
    }

    fn path<'p>(&self, path: &'p str) -> Cow<'p, str> {
        let path = first_levels(path, self.depth);
        if self.numbers || !path.bytes().any(|byte| byte.is_ascii_digit()) {
            return path.into();
        }
        let mut text = String::with_capacity(path.len());
        for character in path.chars() {
            match character {
                '0'..='9' if text.ends_with('*') => {}
                '0'..='9' => text.push('*'),
                other => text.push(other),
            }
        }
        text.into()
    }
}

impl ScopeTree {
    /// Builds the tree of a graph whose costs are not known.
    pub(crate) fn of(name: &str, graph: &ScopeGraph) -> ScopeTree {
        let builder = Builder::of(name, graph, Cut::of(graph));
        let edges = builder.edges(graph);
        collapsed(builder.scopes, edges)
    }
}

/// A tree in construction, before chains become one.
struct Builder {
    scopes: Vec<Scope>,
    depths: Vec<usize>,
    /// The leaf of each path that has instructions.
    leaves: IndexMap<String, usize>,
    /// The leaf of each node of the graph.
    places: Vec<usize>,
}

impl Builder {
    fn of(name: &str, graph: &ScopeGraph, cut: Cut) -> Builder {
        let root = Scope { name: name.to_owned(), ..Scope::default() };
        let mut builder = Builder { scopes: vec![root], depths: vec![0], leaves: IndexMap::new(), places: Vec::new() };
        let mut inner: FxHashMap<String, usize> = FxHashMap::default();
        let mut opcodes: IndexMap<usize, BTreeMap<&str, usize>> = IndexMap::new();
        for node in &graph.nodes {
            let path = cut.path(&node.path);
            let known = builder.leaves.get(&*path).copied();
            let leaf = known.unwrap_or_else(|| builder.leaf(&path, &mut inner));
            builder.leaves.insert(path.into_owned(), leaf);
            builder.places.push(leaf);
            builder.add(leaf, |scope| scope.instructions += node.instructions);
            let sums = opcodes.entry(leaf).or_default();
            node.opcodes.iter().for_each(|(opcode, count)| *sums.entry(opcode).or_default() += count);
        }
        for (leaf, opcodes) in opcodes {
            let mut opcodes: Vec<(&str, usize)> = opcodes.into_iter().collect();
            opcodes.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
            let text = |(name, count): &(&str, usize)| format!("{name} {count}");
            builder.scopes[leaf].opcodes = opcodes.iter().take(8).map(text).collect::<Vec<_>>().join(", ");
        }
        builder
    }

    /// Returns the leaf of a path: a box of its own within the scope, which may have other scopes in it.
    fn leaf(&mut self, path: &str, inner: &mut FxHashMap<String, usize>) -> usize {
        if path.is_empty() {
            return self.push(0, NO_SCOPE);
        }
        let mut parent = 0;
        for (depth, end) in path.match_indices('/').map(|(at, _)| at).chain([path.len()]).enumerate() {
            // Deeper scopes join the deepest that is shown.
            if depth >= DEEPEST {
                break;
            }
            parent = match inner.get(&path[..end]) {
                Some(&scope) => scope,
                None => {
                    let name = path[..end].rsplit('/').next().unwrap_or_default();
                    let scope = self.push(parent, if name.is_empty() { "·" } else { name });
                    inner.insert(path[..end].to_owned(), scope);
                    scope
                }
            };
        }
        self.push(parent, OWN)
    }

    fn push(&mut self, parent: usize, name: &str) -> usize {
        self.scopes.push(Scope { name: name.to_owned(), parent: Some(parent), ..Scope::default() });
        self.depths.push(self.depths[parent] + 1);
        self.scopes.len() - 1
    }

    /// Adds something to a scope and to all around it.
    fn add(&mut self, scope: usize, add: impl Fn(&mut Scope)) {
        let mut next = Some(scope);
        while let Some(scope) = next {
            add(&mut self.scopes[scope]);
            next = self.scopes[scope].parent;
        }
    }

    fn add_cost(&mut self, path: &str, work: &Work, seconds: Option<f64>) {
        // Instructions that only carry values have no box and next to no cost; they count in the sums of the whole.
        let leaf = self.leaves.get(path).copied().unwrap_or(0);
        self.add(leaf, |scope| {
            scope.flops += work.flops as f64;
            scope.sent = scope.sent.saturating_add(work.link_bytes);
            if let Some(seconds) = seconds {
                scope.seconds = Some(scope.seconds.unwrap_or(0.0) + seconds);
            }
        });
    }

    /// Returns the flows between leaves, as flows between the scopes around them that have the same parent.
    fn edges(&self, graph: &ScopeGraph) -> Vec<Edge> {
        let mut sums: IndexMap<(usize, usize), Edge> = IndexMap::new();
        for edge in &graph.edges {
            let (mut from, mut to) = (self.places[edge.from], self.places[edge.to]);
            let up = |scope: usize| self.scopes[scope].parent.unwrap_or(0);
            while self.depths[from] > self.depths[to] {
                from = up(from);
            }
            while self.depths[to] > self.depths[from] {
                to = up(to);
            }
            if from == to {
                continue;
            }
            while up(from) != up(to) {
                (from, to) = (up(from), up(to));
            }
            let sum = sums.entry((from, to)).or_insert(Edge { from, to, ..Edge::default() });
            sum.values += edge.values;
            sum.bytes = sum.bytes.saturating_add(edge.bytes);
        }
        sums.into_values().collect()
    }
}

/// Joins each scope that contains nothing but one scope with that one.
fn collapsed(scopes: Vec<Scope>, edges: Vec<Edge>) -> ScopeTree {
    let mut children = vec![0; scopes.len()];
    for parent in scopes.iter().filter_map(|scope| scope.parent) {
        children[parent] += 1;
    }
    let mut tree = ScopeTree::default();
    // The new position of each scope.
    let mut places: Vec<usize> = Vec::with_capacity(scopes.len());
    for scope in scopes {
        let parent = scope.parent;
        // The root is not joined: the page always needs a box to open.
        match parent.filter(|&parent| parent != 0 && children[parent] == 1) {
            Some(parent) => {
                let place = places[parent];
                let around = &mut tree.scopes[place];
                if scope.name != OWN {
                    around.name = format!("{}/{}", around.name, scope.name);
                }
                if around.opcodes.is_empty() {
                    around.opcodes = scope.opcodes;
                }
                places.push(place);
            }
            None => {
                places.push(tree.scopes.len());
                tree.scopes.push(Scope { parent: parent.map(|parent| places[parent]), ..scope });
            }
        }
    }
    tree.edges = edges.into_iter().map(|edge| Edge { from: places[edge.from], to: places[edge.to], ..edge }).collect();
    tree
}
