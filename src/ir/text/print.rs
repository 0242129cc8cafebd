//! Writing graphs.

use std::fmt::Write;
use std::sync::Arc;

use super::{Attribute, GraphTextOptions, Printer};
use crate::ir::graph::{Graph, NodeRef, PortInfo};
use crate::ir::spec::Role;

pub(super) fn print(graph: &Graph, options: GraphTextOptions<'_>) -> String {
    let mesh = options.mesh.filter(|mesh| mesh.axis_names().all(|name| !name.contains(':')));
    let mut out = Printer { text: String::new(), options: GraphTextOptions { mesh, ..options }, attribute_count: 0 };
    if let Some(mesh) = mesh {
        out.push(&format!("mesh {:?}\n", mesh.to_string()));
    }
    let mut bodies: Vec<Arc<Graph>> = Vec::new();
    out.graph(graph, &mut bodies);
    let mut next = 0;
    while let Some(body) = bodies.get(next).cloned() {
        out.push(&format!("\n@{next} "));
        out.graph(&body, &mut bodies);
        next += 1;
    }
    out.text
}

impl Printer<'_> {
    fn graph(&mut self, graph: &Graph, bodies: &mut Vec<Arc<Graph>>) {
        self.name(graph.name());
        self.push("(");
        for (index, (&value, info)) in graph.inputs().iter().zip(graph.input_info()).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            self.push(&format!("{comma}{value}: {}", graph.ty(value)));
            self.port(info);
        }
        self.push(") {\n");
        for node in graph.nodes() {
            self.node(graph, node, bodies);
        }
        self.push("  return");
        for (index, (value, info)) in graph.outputs().iter().zip(graph.output_info()).enumerate() {
            self.push(&format!("{} {value}", if index > 0 { "," } else { "" }));
            self.port(info);
        }
        self.push("\n}\n");
    }

    fn port(&mut self, info: &PortInfo) {
        if !info.path.is_empty() {
            self.push(&format!(" {:?}", info.path));
        }
        for (index, name) in info.axes.iter().enumerate() {
            self.push(if index > 0 { ", " } else { " {" });
            match name.is_none() {
                true => self.push("_"),
                false => self.name(&name.text()),
            }
        }
        self.push(if info.axes.is_empty() { "" } else { "}" });
        if info.role != Role::default() {
            self.push(" role=");
            info.role.write(self);
        }
        if let Some(spec) = &info.spec {
            self.push(" spec=");
            spec.write(self);
        }
    }

    fn node(&mut self, graph: &Graph, node: NodeRef<'_>, bodies: &mut Vec<Arc<Graph>>) {
        let results: Vec<String> = node.results().map(|value| value.to_string()).collect();
        self.push(&format!("  {} = {}", results.join(", "), node.op().name()));
        for (index, value) in node.operands().iter().enumerate() {
            self.push(&format!("{}{value}", if index > 0 { ", " } else { " " }));
        }
        self.attribute_count = 0;
        node.op().write_text(self);
        self.push(if self.attribute_count > 0 { "}" } else { "" });
        for body in node.op().regions() {
            let known = bodies.iter().position(|other| Arc::ptr_eq(other, body));
            let number = known.unwrap_or_else(|| {
                bodies.push(body.clone());
                bodies.len() - 1
            });
            self.push(&format!(" @{number}"));
        }
        let types: Vec<String> = node.results().map(|value| graph.ty(value).to_string()).collect();
        self.push(&format!(" : {}", types.join(", ")));
        if self.options.origins {
            let origin = node.origin();
            // Writing to a string cannot fail.
            let _ = write!(self.text, "  // {}", origin.scope.path().replace('\n', " "));
            if let Some(source) = origin.source() {
                let _ = write!(self.text, " {source}");
            }
        }
        self.push("\n");
    }
}
