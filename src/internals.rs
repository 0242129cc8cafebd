//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

use crate::ir::{AxisNames, Definition, Graph, Node, TensorType, Value};

pub use crate::autodiff::max_flow::{Network, UNBOUNDED};

/// Returns the value with a number, in any graph.
pub fn value(number: u32) -> Value {
    Value(number)
}

/// Returns the node with a number, in any graph.
pub fn node(number: u32) -> Node {
    Node(number)
}

/// A change that breaks an invariant of a graph, to test the verifier: a [`GraphBuilder`](crate::ir::GraphBuilder)
/// makes no such graph.
#[derive(Clone, Debug)]
pub enum Damage {
    /// The operand with a number, counted over the graph, becomes another value.
    Operand(usize, Value),
    /// Two nodes change places.
    SwappedNodes(usize, usize),
    /// The value with a number is said to be defined elsewhere.
    Definition(usize, Definition),
    /// The value with a number has another type.
    Type(usize, TensorType),
    /// A value also becomes an input.
    FurtherInput(Value),
    /// The input with a number has other axes.
    InputAxes(usize, AxisNames),
    /// Outputs have no descriptions.
    NoOutputInfo,
}

/// Damages a graph.
pub fn damage(graph: &mut Graph, damage: Damage) {
    match damage {
        Damage::Operand(number, value) => graph.operand_pool[number] = value,
        Damage::SwappedNodes(one, other) => graph.nodes.swap(one, other),
        Damage::Definition(number, definition) => graph.values[number].definition = definition,
        Damage::Type(number, ty) => graph.values[number].ty = ty,
        Damage::FurtherInput(value) => graph.inputs.push(value),
        Damage::InputAxes(number, axes) => graph.input_info[number].axes = axes,
        Damage::NoOutputInfo => graph.output_info.clear(),
    }
}
