//! The verifier.
//!
//! Checks, for a graph and every region body inside it:
//! - operands are defined before their use (topological order), and every id is in range;
//! - each value is defined once, by the input or node that its entry names;
//! - each node's result types are what its op infers from its operand types;
//! - inputs, outputs and their descriptions are equal in number; declared axis names are one for each dimension.
//!
//! Not checked yet: that specs on ports fit the mesh (the sharding pass does), that bodies are not recursive (they
//! cannot be built so).

use smallvec::SmallVec;

use super::entities::{Node, Value};
use super::graph::{Definition, Graph};
use super::{OpError, TypeError};

/// A broken invariant.
#[derive(Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum VerifyError {
    /// A value is used before its definition.
    #[error("{node} of `{graph}` uses {value} before it is defined")]
    UseBeforeDefinition { graph: String, node: Node, value: Value },
    /// A value's entry does not point back to its definition.
    #[error("{value} of `{graph}` is not defined where its entry says")]
    Definition { graph: String, value: Value },
    /// An op refuses its operands.
    #[error("in `{graph}`: {source}")]
    Op { graph: String, source: Box<OpError> },
    /// Ports and their descriptions differ.
    #[error("`{graph}` has {values} {what} but {descriptions} descriptions of them")]
    Ports {
        graph: String,
        /// Inputs or outputs.
        what: &'static str,
        values: usize,
        descriptions: usize,
    },
}

meshloom_hlo::debug_is_message!(VerifyError);

/// Checks every invariant of the module documentation.
///
/// # Errors
/// The first that does not hold.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    verify_alone(graph)?;
    graph.nodes().flat_map(|node| node.op().regions()).try_for_each(|body| verify(body))
}

/// As [`verify`], without the bodies inside.
pub(super) fn verify_alone(graph: &Graph) -> Result<(), VerifyError> {
    let name = || graph.name().to_owned();
    for (what, values, descriptions) in [
        ("inputs", graph.inputs().len(), graph.input_info().len()),
        ("outputs", graph.outputs().len(), graph.output_info().len()),
    ] {
        if values != descriptions {
            return Err(VerifyError::Ports { graph: name(), what, values, descriptions });
        }
    }
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        if !info.axes.is_empty() && info.axes.len() != graph.ty(input).rank() {
            let (values, descriptions) = (graph.ty(input).rank(), info.axes.len());
            return Err(VerifyError::Ports { graph: name(), what: "input dimensions", values, descriptions });
        }
    }
    let mut defined = vec![false; graph.value_count()];
    for (index, &input) in graph.inputs().iter().enumerate() {
        let slot = defined.get_mut(input.index());
        match slot {
            Some(slot) if !*slot && graph.definition(input) == Definition::Input(index as u32) => *slot = true,
            _ => return Err(VerifyError::Definition { graph: name(), value: input }),
        }
    }
    for node in graph.nodes() {
        for &value in node.operands() {
            if !defined.get(value.index()).copied().unwrap_or(false) {
                return Err(VerifyError::UseBeforeDefinition { graph: name(), node: node.id, value });
            }
        }
        let operands: SmallVec<[_; 8]> = node.operands().iter().map(|&value| graph.ty(value)).collect();
        let refuse = |error: TypeError| {
            let types = operands.iter().map(|&ty| ty.clone()).collect();
            let source = Box::new(OpError::new(node.op().name(), error, types, node.origin()));
            VerifyError::Op { graph: name(), source }
        };
        if let Some(value) = node.results().find(|value| value.index() >= graph.value_count()) {
            return Err(VerifyError::Definition { graph: name(), value });
        }
        let inferred = node.op().infer(&operands).map_err(refuse)?;
        if !inferred.iter().eq(node.results().map(|value| graph.ty(value))) {
            let found: Vec<_> = node.results().map(|value| graph.ty(value)).collect();
            return Err(refuse(TypeError::Attribute(format!(
                "its results are {found:?}, but the op yields {inferred:?}"
            ))));
        }
        for (index, value) in node.results().enumerate() {
            if defined[value.index()] || graph.definition(value) != Definition::Result(node.id, index as u32) {
                return Err(VerifyError::Definition { graph: name(), value });
            }
            defined[value.index()] = true;
        }
    }
    for &value in graph.outputs() {
        if !defined.get(value.index()).copied().unwrap_or(false) {
            return Err(VerifyError::Definition { graph: name(), value });
        }
    }
    Ok(())
}
