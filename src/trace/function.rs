//! Traced functions.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::context::{apply_many, trace_body};
use super::control::{next_leaf, unreachable_body};
use super::{Inputs, MapTree, Tensor, TensorSpec, TraceError, TraceErrorKind, Tree};
use crate::ir::{Graph, PortInfo, Role};
use crate::ops::Call;

/// A traced function: a graph, and the trees its inputs and outputs form.
#[derive(Clone, Debug)]
pub struct Function<I, O> {
    graph: Arc<Graph>,
    inputs: I,
    outputs: O,
    /// Number of leading inputs that the leading outputs replace.
    replaced: usize,
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
    pub fn trace<R>(
        name: &str,
        inputs: impl Inputs<Specs = I>,
        f: impl FnOnce(I::Mapped) -> R,
    ) -> Result<Function<I, O>, TraceError>
    where
        R: Tree<Leaf = Tensor> + MapTree<TensorSpec, Mapped = O>,
    {
        let inputs = inputs.specs();
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
        Ok(Function { graph, inputs, outputs, replaced: 0 })
    }

    /// Pairs of (output, input) of which the output replaces the input, in its buffer: the state of a
    /// [step](Function::trace_step). For [`LowerOptions::aliases`](crate::compile::LowerOptions::aliases).
    pub fn aliases(&self) -> Vec<(usize, usize)> {
        (0..self.replaced).map(|leaf| (leaf, leaf)).collect()
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

/// From a state and other inputs to the next state and other outputs.
pub type StepFunction<S, I, O> = Function<(S, I), (S, O)>;

impl<S, I, O> StepFunction<S, I, O>
where
    S: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    S::Mapped: MapTree<TensorSpec, Mapped = S>,
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    O: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
{
    /// Traces a step: state in, state out. The closure maps a state and other inputs to the next state, of the same
    /// types, and other outputs. The new state takes the place of the old one in memory, which is donated.
    ///
    /// ```
    /// use meshloom::prelude::*;
    ///
    /// # fn main() -> Result<(), meshloom::Error> {
    /// let weight = Param::new(F32, [3], &["embed"], Init::Constant(1.0));
    /// let step = Function::trace_step("step", &weight, &TensorSpec::new(F32, [3]), |weight, x| {
    ///     let (loss, gradient) = value_and_grad(weight, |weight| (weight * x).sum(..).square());
    ///     (weight - gradient * 0.1, loss)
    /// })?;
    /// let step = compile(&step, &Client::cpu(1)?, &LowerOptions::default())?;
    /// let mut state = step.put_state(&initialize(&weight, 0))?;
    /// for x in [[1f32, 0.0, 0.0], [0.0, 0.5, 0.0]] {
    ///     let loss;
    ///     (state, loss) = step.step(state, &Literal::vector(&x))?;
    ///     println!("loss {:?}", loss.get()?);
    /// }
    /// assert_eq!(state.get()?, Literal::vector(&[0.8f32, 0.95, 1.0]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Function::trace`]; or a leaf of the new state has another type than that of the old one.
    #[track_caller]
    pub fn trace_step<R>(
        name: &str,
        state: &impl Inputs<Specs = S>,
        inputs: &impl Inputs<Specs = I>,
        f: impl FnOnce(S::Mapped, I::Mapped) -> (S::Mapped, R),
    ) -> Result<StepFunction<S, I, O>, TraceError>
    where
        R: Tree<Leaf = Tensor> + MapTree<TensorSpec, Mapped = O>,
    {
        let function = Function::trace(name, (state, inputs), |(state, inputs)| f(state, inputs))?;
        let (old, new) = (&function.inputs.0, &function.outputs.0);
        let (paths, new_paths) = (old.paths(), new.paths());
        if paths != new_paths {
            let (expected, found) = (paths.join(", "), new_paths.join(", "));
            return Err(TraceErrorKind::Mismatch { what: format!("the new state of `{name}`"), expected, found }.into());
        }
        for ((old, new), path) in old.leaves().iter().zip(new.leaves()).zip(&paths) {
            if old.ty != new.ty {
                let what = format!("the new `{path}` of `{name}`");
                let (expected, found) = (format!("{}, as the old one", old.ty), new.ty.to_string());
                return Err(TraceErrorKind::Mismatch { what, expected, found }.into());
            }
        }
        Ok(Function { replaced: paths.len(), ..function })
    }
}

impl<I, O> fmt::Display for Function<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.graph, f)
    }
}
