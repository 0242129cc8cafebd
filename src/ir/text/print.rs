//! Writing graphs.

use std::fmt::Write;
use std::sync::Arc;

use meshloom_hlo::mesh::{Mesh, MeshAxis};

use super::GraphTextOptions;
use super::attribute::{Attribute, Attributes};
use super::reader::is_plain;
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

/// Where text is written to.
pub(crate) struct Printer<'a> {
    text: String,
    pub(super) options: GraphTextOptions<'a>,
    /// Attributes of the node so far.
    attribute_count: usize,
}

impl Printer<'_> {
    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn name(&mut self, name: &str) {
        if is_plain(name) && name != "_" {
            self.push(name);
        } else {
            self.push(&format!("{name:?}"));
        }
    }

    pub(super) fn mesh_axis(&mut self, axis: MeshAxis) {
        match self.options.mesh {
            Some(mesh) if axis.index() < mesh.axis_count() => self.name(Mesh::name(mesh, axis)),
            _ => self.push(&axis.index().to_string()),
        }
    }

    /// Items with commas between them.
    pub(crate) fn joined<T: Attribute>(&mut self, items: &[T]) {
        for (index, item) in items.iter().enumerate() {
            self.push(if index > 0 { ", " } else { "" });
            item.write(self);
        }
    }

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
            if let Some(location) = origin.location {
                let _ = write!(self.text, " {}:{}", location.file(), location.line());
            }
        }
        self.push("\n");
    }
}

// The methods that `attributes!` calls: each has a counterpart of the same name in `OpReader`.
impl Printer<'_> {
    /// In front of the braces.
    pub(crate) fn lead(&mut self, value: &impl Attribute) {
        self.push(" ");
        value.write(self);
    }

    fn begin(&mut self) {
        self.push(if self.attribute_count > 0 { ", " } else { " {" });
        self.attribute_count += 1;
    }

    /// In braces, without a key.
    pub(crate) fn bare(&mut self, value: &impl Attribute) {
        self.begin();
        value.write(self);
    }

    /// All that stands in braces.
    pub(crate) fn whole<T: Attribute>(&mut self, value: &[T]) {
        if !value.is_empty() {
            self.begin();
            self.joined(value);
        }
    }

    /// `key=value`.
    pub(crate) fn key(&mut self, value: &impl Attribute, key: &str) {
        self.begin();
        self.push(key);
        self.push("=");
        value.write(self);
    }

    /// `key=value`, unless it is the default.
    pub(crate) fn optional<T: Attribute + PartialEq>(&mut self, value: &T, key: &str, default: T) {
        if *value != default {
            self.key(value, key);
        }
    }

    /// Words that stand there if it is true.
    pub(crate) fn flag(&mut self, value: &bool, words: &str) {
        if *value {
            self.begin();
            self.push(words);
        }
    }

    /// Attributes with keys of their own.
    pub(crate) fn several(&mut self, value: &impl Attributes) {
        value.write_attributes(self);
    }

    /// What the op's name says.
    pub(crate) fn kind<T>(&mut self, _: &T, _: &[T], _: impl Fn(T) -> &'static str) {}

    /// What the result types say.
    pub(crate) fn result<T>(&mut self, _: &T) {}

    /// A body, or all: they stand behind the braces.
    pub(crate) fn body<T>(&mut self, _: &T) {}
}
