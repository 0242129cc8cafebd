//! The text form of graphs, written and read.
//!
//! ```text
//! mesh "data=2,fsdp=4"
//! loss(%0: f32[4,8] "x" spec=[data, _], %1: f32[8] "w" {embed} role=params) {
//!   %2 = broadcast %1 {axes=[1]} : f32[4,8]
//!   %3 = multiply %0, %2 : f32[4,8]
//!   %4, %5 = scan %1, %3 {length=4, carries=1} @0 : f32[8], f32[4,8]
//!   return %5 "out"
//! }
//!
//! @0 body(%0: f32[8], %1: f32[8]) {
//!   %2 = add %0, %1 : f32[8]
//!   return %2, %2
//! }
//! ```
//!
//! - Values are `%number`. Attributes stand in braces after the operands. Attributes that have their default are left
//!   out, and so are those that the result types determine. Each op states its attributes itself, in its own file, with
//!   `op_text!`.
//! - The bodies of region ops follow the graph that uses them, each once, under the names `@0`, `@1`, ... A body that
//!   two nodes share is read back as one body.
//! - Mesh axes are numbers, or names if the text begins with a mesh: see [`GraphTextOptions::mesh`].
//! - Numbers read back bit for bit. A value that no decimal number stands for, such as a NaN with a payload, is printed
//!   as its bits: `0x7fc00001`. A constant with more than 16 elements is printed as a hash, `elided(0x...)`, which the
//!   reader refuses; [`GraphTextOptions::whole_constants`] prints it whole.
//! - `//` starts a comment. The origin of a node is printed as a comment, and not read.
//!
//! Reading checks everything that the [verifier](super::verify()) checks.

mod attribute;
mod constant;
mod op_text;
mod parse;
mod print;
mod printer;
mod reader;

use std::fmt;
use std::str::FromStr;

pub(crate) use attribute::{Attribute, word_attribute};
pub use op_text::OpName;
pub(crate) use op_text::{Attributes, OpReader, OpText, attributes, op_text};
pub(crate) use printer::Printer;
pub use reader::GraphTextError;
pub(crate) use reader::Reader;

use meshloom_hlo::mesh::Mesh;

use super::graph::Graph;

/// How a graph is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphTextOptions<'a> {
    /// Adds the user's source line and scope path to each node, as a comment.
    pub origins: bool,
    /// Prints all elements of every constant. By default, those of more than 16 elements are printed as a hash.
    pub whole_constants: bool,
    /// The mesh that the graph is sharded over. It is printed first, and its axes by their names; otherwise they are
    /// numbers. (A mesh with parts of axes is not printed: such parts have no names that could be read.)
    pub mesh: Option<&'a Mesh>,
}

impl Graph {
    /// The text form.
    pub fn to_text(&self, options: GraphTextOptions<'_>) -> String {
        print::print(self, options)
    }

    /// The graph of a text form. Origins are not read.
    ///
    /// # Errors
    /// The first place that is not understood, or where the graph is not valid.
    pub fn from_text(text: &str) -> Result<Graph, GraphTextError> {
        parse::parse(text)
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text(GraphTextOptions::default()))
    }
}

impl FromStr for Graph {
    type Err = GraphTextError;

    fn from_str(text: &str) -> Result<Graph, GraphTextError> {
        Graph::from_text(text)
    }
}
