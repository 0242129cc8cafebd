//! The text of a graph that is being written.

use meshloom_hlo::mesh::{Mesh, MeshAxis};

use super::GraphTextOptions;
use super::reader::is_plain;

/// The text of a graph as far as it is written.
pub(crate) struct Printer<'a> {
    pub(super) text: String,
    pub(super) options: GraphTextOptions<'a>,
    /// Number of the node's attributes that have been printed.
    pub(super) attribute_count: usize,
}

impl Printer<'_> {
    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Prints a name, in quotation marks if it would not read back without them.
    pub(super) fn name(&mut self, name: &str) {
        if is_plain(name) && name != "_" {
            self.push(name);
        } else {
            self.push(&format!("{name:?}"));
        }
    }

    /// Prints the name of a mesh axis; its number if the options have no mesh.
    pub(super) fn mesh_axis(&mut self, axis: MeshAxis) {
        match self.options.mesh {
            Some(mesh) if axis.index() < mesh.axis_count() => self.name(Mesh::name(mesh, axis)),
            _ => self.push(&axis.index().to_string()),
        }
    }

    pub(super) fn begin(&mut self) {
        self.push(if self.attribute_count > 0 { ", " } else { " {" });
        self.attribute_count += 1;
    }
}
