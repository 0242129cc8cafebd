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
pub enum VerifyError {
    /// A value is used before its definition.
    #[error("{node} of `{graph}` uses {value} before it is defined")]
    UseBeforeDefinition {
        /// Name of the graph.
        graph: String,
        /// The user.
        node: Node,
        /// The value.
        value: Value,
    },
    /// A value's entry does not point back to what defines it.
    #[error("{value} of `{graph}` is not defined where its entry says")]
    Definition {
        /// Name of the graph.
        graph: String,
        /// The value.
        value: Value,
    },
    /// An op refuses the operands it has.
    #[error("in `{graph}`: {source}")]
    Op {
        /// Name of the graph.
        graph: String,
        /// Why.
        source: Box<OpError>,
    },
    /// Ports and their descriptions differ.
    #[error("`{graph}` has {values} {what} but {descriptions} descriptions of them")]
    Ports {
        /// Name of the graph.
        graph: String,
        /// Inputs or outputs.
        what: &'static str,
        /// Number of values.
        values: usize,
        /// Number of descriptions.
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

#[cfg(test)]
mod tests {
    use super::super::graph::Definition;
    use super::super::{DType, GraphBuilder, Node, PortInfo, TensorType, Value};
    use super::*;
    use crate::ops::Call;

    /// x + x, then negated.
    fn graph() -> Graph {
        let mut builder = GraphBuilder::new("f");
        let x = builder.input(TensorType::new(DType::F32, &[2]), PortInfo::default());
        let sum = builder.add(x, x).expect("a sum");
        let negated = builder.neg(sum).expect("a negation");
        builder.finish(vec![negated], vec![PortInfo::default()])
    }

    /// The graph is valid until `break_it`.
    fn check(break_it: impl Fn(&mut Graph), expected: &str) {
        let mut broken = graph();
        verify(&broken).expect("valid as built");
        break_it(&mut broken);
        assert_eq!(verify(&broken).expect_err(expected).to_string(), expected);

        // The same inside a region.
        let mut builder = GraphBuilder::new("caller");
        let x = builder.input(TensorType::new(DType::F32, &[2]), PortInfo::default());
        let types = [TensorType::new(DType::F32, &[2])];
        let function = std::sync::Arc::new(broken);
        if function.input_types().eq(&types) && function.output_types().eq(&types) {
            let results = builder.push_typed(Call { function }.into(), &[x], types);
            let caller = builder.finish(results.to_vec(), vec![PortInfo::default()]);
            assert_eq!(verify(&caller).expect_err(expected).to_string(), expected);
        }
    }

    #[test]
    fn broken_graphs_are_refused() {
        check(|graph| graph.operand_pool[0] = Value(2), "node0 of `f` uses %2 before it is defined");
        check(|graph| graph.operand_pool[0] = Value(9), "node0 of `f` uses %9 before it is defined");
        check(|graph| graph.nodes.swap(0, 1), "node0 of `f` uses %1 before it is defined");
        check(
            |graph| graph.values[1].definition = Definition::Result(Node(1), 0),
            "%1 of `f` is not defined where its entry says",
        );
        check(
            |graph| graph.values[0].definition = Definition::Input(1),
            "%0 of `f` is not defined where its entry says",
        );
        check(|graph| graph.inputs.push(Value(0)), "`f` has 2 inputs but 1 descriptions of them");
        check(|graph| graph.output_info.clear(), "`f` has 1 outputs but 0 descriptions of them");
        check(
            |graph| graph.input_info[0].axes = ["a", "b"].map(crate::ir::Name::new).into_iter().collect(),
            "`f` has 1 input dimensions but 2 descriptions of them",
        );
        check(
            |graph| graph.values[1].ty = TensorType::new(DType::F32, &[3]),
            "in `f`: add(f32[2], f32[2]): its results are [f32[3]], but the op yields [f32[2]]",
        );
        check(
            |graph| graph.values[0].ty = TensorType::new(DType::Pred, &[2]),
            "in `f`: add(pred[2], pred[2]): the element type of operand 0 must be a number type, found pred; convert it with \
             `.convert(..)`",
        );
    }
}
