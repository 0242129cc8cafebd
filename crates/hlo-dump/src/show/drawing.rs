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
    let drawing = draw(loaded, arguments)?;
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
    let nodes = draw(loaded, arguments)?.nodes.len();
    if nodes > MOST_NODES {
        let fewer = if arguments.depth == Some(0) { "draw scopes (--depth 1)" } else { "draw fewer levels (--depth)" };
        bail!(
            "the drawing would have {nodes} boxes, and more than {MOST_NODES} are not drawn; {fewer}, or one --computation"
        );
    }
    if nodes == 0 {
        bail!("there is nothing to draw: the program has constants and parameters alone; --computation draws those");
    }
    laid_out(&dot(loaded, arguments)?)
}

#[cfg(feature = "drawing")]
fn laid_out(dot: &str) -> Result<String> {
    use layout::backends::svg::SVGWriter;
    use layout::gv::{DotParser, GraphBuilder};

    let parsed = DotParser::new(dot).process();
    let graph = parsed.map_err(|error| anyhow::anyhow!("the drawing cannot be laid out: {error}"))?;
    let mut builder = GraphBuilder::new();
    builder.visit_graph(&graph);
    let mut writer = SVGWriter::new();
    builder.get().do_it(false, false, false, &mut writer);
    Ok(writer.finalize())
}

#[cfg(not(feature = "drawing"))]
fn laid_out(_: &str) -> Result<String> {
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
