//! Traced functions.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::context::{apply_many, trace_body};
use super::control::{next_leaf, unreachable_body};
use super::{MapTree, Tensor, TensorSpec, TraceError, Tree};
use crate::ir::{Graph, PortInfo, Role};
use crate::ops::Call;

/// A traced function: a graph, and the trees its inputs and outputs form.
#[derive(Clone, Debug)]
pub struct Function<I, O> {
    graph: Arc<Graph>,
    inputs: I,
    outputs: O,
}

impl<I, O> Function<I, O>
where
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    O: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
{
    /// Traces a closure: calls it once with tensors of the given types and records what it does.
    ///
    /// # Errors
    /// The first wrong operation in the closure, with its source line and scope.
    #[track_caller]
    pub fn trace<R>(name: &str, inputs: I, f: impl FnOnce(I::Mapped) -> R) -> Result<Function<I, O>, TraceError>
    where
        R: Tree<Leaf = Tensor> + MapTree<TensorSpec, Mapped = O>,
    {
        let place = Location::caller();
        let mut ports = Vec::new();
        inputs.visit(&mut Default::default(), &mut |path, spec: &TensorSpec| {
            let info = PortInfo { path: path.to_string().into(), axes: spec.axes.clone(), role: spec.role, spec: None };
            ports.push((spec.ty.clone(), info));
        });
        if let Some((ty, info)) = ports.iter().find(|(ty, info)| !info.axes.is_empty() && info.axes.len() != ty.rank())
        {
            return Err(TraceError::other(format!(
                "input {:?} of `{name}` has type {ty} but {} axis names",
                info.path,
                info.axes.len()
            )));
        }
        let mut outputs = None;
        let mut info = Vec::new();
        let traced = trace_body(name, ports, Some("a traced function"), place, |tensors| {
            let mut tensors = tensors.iter().copied();
            let arguments = inputs.map(|_, _| next_leaf(&mut tensors));
            let results = f(arguments);
            outputs = Some(results.map(|path, tensor| {
                info.push(PortInfo::named(path.to_string()));
                TensorSpec { ty: tensor.ty(), axes: Default::default(), role: Role::Compute }
            }));
            results.leaves()
        });
        let body = traced?;
        let Some(outputs) = outputs else { unreachable_body() };
        let graph = Arc::new(body.builder.finish(body.outputs, info));
        Ok(Function { graph, inputs, outputs })
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The inputs' types and axis names.
    pub fn inputs(&self) -> &I {
        &self.inputs
    }

    /// The outputs' types.
    pub fn outputs(&self) -> &O {
        &self.outputs
    }

    /// The same function with logical axis names for an output, by which it is sharded; without, an output is whole on
    /// every device. A path that no output has changes nothing, and so do names for an output that shares its buffer
    /// with an input.
    #[must_use]
    pub fn with_output_axes(self, path: &str, names: &[&str]) -> Function<I, O> {
        let mut graph = Arc::unwrap_or_clone(self.graph);
        let mut info = graph.output_info().to_vec();
        for output in info.iter_mut().filter(|output| &*output.path == path) {
            output.axes = names.iter().map(|name| crate::ir::Name::new(name)).collect();
        }
        graph.set_output_info(info);
        Function { graph: Arc::new(graph), ..self }
    }

    /// Calls the function inside another trace. It is emitted once, however often it is called.
    #[track_caller]
    pub fn call(&self, inputs: <I as MapTree<Tensor>>::Mapped) -> <O as MapTree<Tensor>>::Mapped {
        let op = Call { function: self.graph.clone() };
        let count = self.graph.outputs().len();
        let results = apply_many(op.into(), &inputs.leaves(), count, Location::caller());
        let mut results = results.into_iter();
        self.outputs.map(|_, _| next_leaf(&mut results))
    }
}

impl<I, O> fmt::Display for Function<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.graph, f)
    }
}
