//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

use crate::ir::{AxisNames, Definition, Graph, Node, TensorType, Value};

pub use crate::autodiff::max_flow::{Network, UNBOUNDED};

/// The value of a number, of whatever graph.
pub fn value(number: u32) -> Value {
    Value(number)
}

/// The node of a number, of whatever graph.
pub fn node(number: u32) -> Node {
    Node(number)
}

/// What breaks an invariant of a graph, for tests of the verifier: a [`GraphBuilder`](crate::ir::GraphBuilder) makes no
/// such graph.
#[derive(Clone, Debug)]
pub enum Damage {
    /// Of all operands, the one of a number becomes another value.
    Operand(usize, Value),
    /// Two nodes change places.
    SwappedNodes(usize, usize),
    /// The value of a number is said to be defined elsewhere.
    Definition(usize, Definition),
    /// The value of a number has another type.
    Type(usize, TensorType),
    /// A value becomes an input too.
    FurtherInput(Value),
    /// The axes of the input of a number are others.
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
