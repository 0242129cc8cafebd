//! The program as a graph: of its scopes, or of the instructions of one computation.

use std::fmt::Write;

use anyhow::{Result, bail};
use meshloom_analysis::{ScopeNode, Walk, communication, scope_graph};
use meshloom_hlo::proto::HloComputationProto;
use meshloom_hlo::text::{Layouts, print_shape};

use crate::arguments::Show;
use crate::input::Loaded;
use crate::output::{human_bytes, or_no_scope, plural};
use crate::show::no_computation;

/// The most nodes: a drawing of more takes too long and is unreadable.
const MOST_NODES: usize = 400;

#[derive(Default)]
struct Drawing {
    nodes: Vec<(String, Look)>,
    edges: Vec<(usize, usize, String)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Look {
    Plain,
    /// The node communicates.
    Moves,
    /// The node multiplies matrices.
    Computes,
}

impl Look {
    fn color(self) -> &'static str {
        match self {
            Look::Plain => "white",
            Look::Moves => "orange",
            Look::Computes => "lightblue",
        }
    }

    fn of(opcode: &str) -> Look {
        match opcode {
            opcode if communication(opcode).is_some() => Look::Moves,
            "dot" | "convolution" | "ragged-dot" => Look::Computes,
            _ => Look::Plain,
        }
    }
}

pub fn dot(loaded: &Loaded, arguments: &Show) -> Result<String> {
    written(&draw(loaded, arguments)?)
}

fn written(drawing: &Drawing) -> Result<String> {
    let mut text = String::from("digraph {\n  node [shape=box, style=filled, fontname=\"Helvetica\"];\n");
    for (index, (label, look)) in drawing.nodes.iter().enumerate() {
        writeln!(text, "  n{index} [label=\"{}\", fillcolor=\"{}\"];", escaped(label), look.color())?;
    }
    for (from, to, label) in &drawing.edges {
        writeln!(text, "  n{from} -> n{to} [label=\"{}\"];", escaped(label))?;
    }
    text.push_str("}\n");
    Ok(text)
}

pub fn svg(loaded: &Loaded, arguments: &Show) -> Result<String> {
    let drawing = draw(loaded, arguments)?;
    let nodes = drawing.nodes.len();
    let fewer = match (&arguments.computation, arguments.depth) {
        (Some(_), _) => "",
        (None, Some(0)) => ", draw scopes (--depth 1), or one --computation",
        (None, _) => ", draw fewer levels (--depth), or one --computation",
    };
    let instead = format!("`--emit dot` writes what Graphviz draws{fewer}");
    if nodes > MOST_NODES {
        bail!("the drawing would have {nodes} boxes, and more than {MOST_NODES} are not drawn; {instead}");
    }
    if nodes == 0 {
        bail!("there is nothing to draw: the program has constants and parameters alone; --computation draws those");
    }
    let effort = effort(&drawing);
    if effort > MOST_EFFORT {
        let edges = drawing.edges.len();
        bail!("{nodes} boxes with {edges} lines between them take too long to lay out; {instead}");
    }
    laid_out(&written(&drawing)?, effort <= MOST_SORTED)
}

/// Above this effort boxes are not moved within their row to make fewer lines cross: that takes more than a second.
const MOST_SORTED: u64 = 3_000_000;

/// The most effort of a layout: some seconds.
const MOST_EFFORT: u64 = 1_000_000_000;

/// Returns a measure of the time that a layout takes: the number of rows, times the cubes of what each has in it. A
/// line over several rows has a bend in each, and a line with a label a row for it.
fn effort(drawing: &Drawing) -> u64 {
    let mut readers = vec![Vec::new(); drawing.nodes.len()];
    for (from, to, label) in drawing.edges.iter().filter(|(from, to, _)| from != to) {
        readers[*from].push((*to, if label.is_empty() { 1 } else { 2 }));
    }
    let order = sources_first(&readers);
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &node)| place[node] = at);
    // A line that closes a circle is drawn the other way round.
    let mut rows = vec![0usize; order.len()];
    for &node in &order {
        for &(reader, step) in readers[node].iter().filter(|(reader, _)| place[*reader] > place[node]) {
            rows[reader] = rows[reader].max(rows[node] + step);
        }
    }
    let mut counts = vec![0u64; rows.iter().max().map_or(0, |last| last + 1)];
    rows.iter().for_each(|&row| counts[row] += 1);
    for (from, to, _) in &drawing.edges {
        let (first, last) = (rows[*from].min(rows[*to]), rows[*from].max(rows[*to]));
        counts[(first + 1).min(last)..last].iter_mut().for_each(|count| *count += 1);
    }
    let cubes = counts.iter().fold(0u64, |sum, count| sum.saturating_add(count.saturating_pow(3)));
    cubes.saturating_mul(counts.len() as u64)
}

/// Returns the nodes, each before its readers where no circle forbids it.
fn sources_first(readers: &[Vec<(usize, usize)>]) -> Vec<usize> {
    let mut is_entered = vec![false; readers.len()];
    let mut order = Vec::with_capacity(readers.len());
    for first in 0..readers.len() {
        let mut stack = vec![(first, 0)];
        while let Some((node, next)) = stack.last_mut() {
            if *next == 0 && std::mem::replace(&mut is_entered[*node], true) {
                stack.pop();
                continue;
            }
            let (at, reader) = (*node, readers[*node].get(*next).copied());
            *next += 1;
            match reader {
                Some((reader, _)) if !is_entered[reader] => stack.push((reader, 0)),
                Some(_) => {}
                None => {
                    order.push(at);
                    stack.pop();
                }
            }
        }
    }
    order.reverse();
    order
}

#[cfg(feature = "drawing")]
fn laid_out(dot: &str, is_sorted: bool) -> Result<String> {
    use layout::backends::svg::SVGWriter;
    use layout::gv::{DotParser, GraphBuilder};

    let parsed = DotParser::new(dot).process();
    let graph = parsed.map_err(|error| anyhow::anyhow!("the drawing cannot be laid out: {error}"))?;
    let draw = || {
        let mut builder = GraphBuilder::new();
        builder.visit_graph(&graph);
        let mut writer = SVGWriter::new();
        builder.get().do_it(false, !is_sorted, false, &mut writer);
        writer.finalize()
    };
    // The layout asserts what holds for most graphs.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(draw))
        .map_err(|_| anyhow::anyhow!("the drawing cannot be laid out; `--emit dot` writes what Graphviz draws"))
}

#[cfg(not(feature = "drawing"))]
fn laid_out(_: &str, _: bool) -> Result<String> {
    bail!(
        "this hlo-dump is built without drawing; `--emit dot` writes what Graphviz draws, and `cargo install hlo-dump` builds one that \
         draws"
    )
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "'").replace('\n', "\\n")
}

fn draw(loaded: &Loaded, arguments: &Show) -> Result<Drawing> {
    /// The number of levels at which most programs have few scopes.
    const DEPTH: usize = 3;
    match (&arguments.computation, arguments.depth.unwrap_or(DEPTH)) {
        (None, 0) => {
            let entry = loaded.module.entry_computation_id;
            let found = loaded.module.computations.iter().find(|computation| computation.id == entry);
            Ok(found.map(instructions).unwrap_or_default())
        }
        (None, depth) => Ok(scopes(&Walk::of(&loaded.module), depth)),
        (Some(name), _) => {
            let name = name.trim_start_matches('%');
            let names = || loaded.module.computations.iter();
            let found = names().find(|computation| computation.name == name);
            found.map(instructions).ok_or_else(|| no_computation(name, names().map(|it| it.name.clone())))
        }
    }
}

fn scopes(walk: &Walk<'_>, depth: usize) -> Drawing {
    let graph = scope_graph(walk, depth);
    let label = |node: &ScopeNode| {
        let mut notable: Vec<_> = node.opcodes.iter().filter(|(opcode, _)| Look::of(opcode) != Look::Plain).collect();
        notable.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let notable: Vec<_> = notable.iter().take(4).map(|(opcode, count)| format!("{count} {opcode}")).collect();
        let counts = plural(node.instructions as u64, "instruction");
        [or_no_scope(&node.path).to_owned(), counts, notable.join(", ")]
            .into_iter()
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    };
    let look = |node: &ScopeNode| {
        let looks: Vec<Look> = node.opcodes.keys().map(|opcode| Look::of(opcode)).collect();
        *[Look::Moves, Look::Computes].iter().find(|look| looks.contains(look)).unwrap_or(&Look::Plain)
    };
    Drawing {
        nodes: graph.nodes.iter().map(|node| (label(node), look(node))).collect(),
        edges: graph.edges.iter().map(|edge| (edge.from, edge.to, human_bytes(edge.bytes))).collect(),
    }
}

fn instructions(computation: &HloComputationProto) -> Drawing {
    let mut drawing = Drawing::default();
    let mut by_id = std::collections::BTreeMap::new();
    for instruction in &computation.instructions {
        by_id.insert(instruction.id, drawing.nodes.len());
        let shape = instruction.shape.as_ref().map(|shape| print_shape(shape, Layouts::None)).unwrap_or_default();
        let shape = crate::output::clipped(&shape, 40);
        drawing
            .nodes
            .push((format!("{}\n{}\n{shape}", instruction.opcode, instruction.name), Look::of(&instruction.opcode)));
    }
    for instruction in &computation.instructions {
        let to = by_id[&instruction.id];
        for from in instruction.operand_ids.iter().filter_map(|id| by_id.get(id)) {
            drawing.edges.push((*from, to, String::new()));
        }
    }
    drawing
}
