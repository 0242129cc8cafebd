//! Traced functions.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::context::{CallSite, apply_many, trace_body, type_of, unreachable_body};
use super::tree::next_leaf;
use super::{Inputs, MapTree, Tensor, TensorSpec, TraceError, TraceErrorKind, Tree, called, called_all};
use crate::ir::{Graph, Origin, PortInfo};
use crate::ops::Call;
use meshloom_hlo::message::counted;
use meshloom_hlo::suggest::did_you_mean;

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
        let mut outputs = None;
        let graph = trace_graph(
            name,
            (inputs.paths(), inputs.leaves()),
            place,
            Box::new(|tensors| {
                let mut tensors = tensors.iter().copied();
                let results = f(inputs.map(|_, _| next_leaf(&mut tensors)));
                outputs = Some(results.map(|_, tensor| TensorSpec::of(type_of(*tensor, place))));
                (results.leaves(), results.paths())
            }),
        )?;
        let Some(outputs) = outputs else { unreachable_body() };
        Ok(Function { graph, inputs, outputs, replaced: 0 })
    }

    /// Pairs of (output, input) in which the output replaces the input in its buffer: the state of a
    /// [step](Function::trace_step). [`compile`](crate::compile::compile) knows them; [`lower`](crate::compile::lower),
    /// which gets the graph alone, needs them in [`LowerOptions::aliases`](crate::compile::LowerOptions::aliases).
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

    /// The same function with logical axis names for an output, one for each dimension (`""` for none), by which it is
    /// sharded. Without names, the output lies as the program leaves it. Names for an output that shares its buffer
    /// with an input change nothing: it lies as the input does.
    ///
    /// # Errors
    /// No output has the path, or the output has another number of dimensions.
    #[track_caller]
    pub fn with_output_axes(self, path: &str, names: &[&str]) -> Result<Function<I, O>, TraceError> {
        let origin = Origin::at(Location::caller());
        let refuse = |what, expected, found| {
            Err(TraceError { kind: TraceErrorKind::Mismatch { what, expected, found }, origin })
        };
        let mut graph = Arc::unwrap_or_clone(self.graph);
        let mut info = graph.output_info().to_vec();
        let Some(index) = info.iter().position(|output| &*output.path == path) else {
            let paths: Vec<String> = info.iter().map(|output| output.path.to_string()).collect();
            let meant = did_you_mean(path, paths.iter().map(String::as_str));
            let what = format!("the outputs of `{}`", graph.name());
            return refuse(what, called_all(&paths), format!("`{path}`{meant}"));
        };
        if let Some(ty) = graph.output_types().nth(index).filter(|ty| ty.rank() != names.len()) {
            let what = format!("the axis names of {} of `{}`", called("output", path), graph.name());
            return refuse(what, format!("one for each dimension of {ty}"), names.len().to_string());
        }
        info[index].axes = names.iter().map(|name| crate::ir::Name::new(name)).collect();
        graph.set_output_info(info);
        Ok(Function { graph: Arc::new(graph), ..self })
    }

    /// Gives every output the axis names and the role of a spec, as for parameters that the function makes.
    ///
    /// # Errors
    /// An output is of another type than its spec, or the trees differ.
    #[track_caller]
    pub fn with_output_specs(self, specs: &O) -> Result<Function<I, O>, TraceError> {
        let origin = Origin::at(Location::caller());
        let name = self.graph.name();
        let refuse = |what, expected, found| {
            Err(TraceError { kind: TraceErrorKind::Mismatch { what, expected, found }, origin })
        };
        let (paths, given) = (self.outputs.paths(), specs.paths());
        if paths != given {
            return refuse(format!("the specs of the outputs of `{name}`"), called_all(&paths), called_all(&given));
        }
        let mut graph = Graph::clone(&self.graph);
        let mut info = graph.output_info().to_vec();
        for ((info, spec), ty) in info.iter_mut().zip(specs.leaves()).zip(graph.output_types()) {
            if *ty != spec.ty {
                let what = format!("the spec of {} of `{name}`", called("output", &info.path));
                return refuse(what, ty.to_string(), spec.ty.to_string());
            }
            (info.axes, info.role) = (spec.axes, spec.role);
        }
        graph.set_output_info(info);
        Ok(Function { graph: Arc::new(graph), ..self })
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
    /// let mut state = step.put_state(&initialize(&weight, 0)?)?;
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
        let place = Location::caller();
        let function = Function::trace(name, (state, inputs), |(state, inputs)| f(state, inputs))?;
        let (old, new) = (&function.inputs.0, &function.outputs.0);
        let (paths, new_paths) = (old.paths(), new.paths());
        let refuse = |what, expected, found| {
            Err(TraceError { kind: TraceErrorKind::Mismatch { what, expected, found }, origin: Origin::at(place) })
        };
        if paths != new_paths {
            return refuse(format!("the new state of `{name}`"), called_all(&paths), called_all(&new_paths));
        }
        for ((old, new), path) in old.leaves().iter().zip(new.leaves()).zip(&paths) {
            if old.ty != new.ty {
                let what = format!("{} of the new state of `{name}`", called("leaf", path));
                return refuse(what, format!("{}, as the old one", old.ty), new.ty.to_string());
            }
        }
        Ok(Function { replaced: paths.len(), ..function })
    }
}

/// A traced function's closure over leaves: from its inputs to its outputs and their paths.
type TracedLeaves<'a> = Box<dyn FnOnce(&[Tensor]) -> (Vec<Tensor>, Vec<String>) + 'a>;

/// The part of [`Function::trace`] that is the same for all trees.
fn trace_graph(
    name: &str,
    (paths, specs): (Vec<String>, Vec<TensorSpec>),
    place: CallSite,
    f: TracedLeaves<'_>,
) -> Result<Arc<Graph>, TraceError> {
    for (path, TensorSpec { ty, axes, .. }) in paths.iter().zip(&specs) {
        if !axes.is_empty() && axes.len() != ty.rank() {
            let (input, names) = (called("input", path), counted(axes.len(), "axis name"));
            let message = format!("{input} of `{name}` has type {ty} but {names}; give one, or `\"\"`, per dimension");
            return Err(TraceError { kind: TraceErrorKind::Other(message), origin: Origin::at(place) });
        }
    }
    let port = |(path, TensorSpec { ty, axes, role }): (String, TensorSpec)| {
        (ty, PortInfo { path: path.into(), axes, role, spec: None })
    };
    let ports = paths.into_iter().zip(specs).map(port).collect();
    let mut paths = Vec::new();
    let traced = trace_body(
        name,
        ports,
        Some("a traced function"),
        place,
        Box::new(|tensors| {
            let results;
            (results, paths) = f(tensors);
            results
        }),
    );
    let body = traced?;
    Ok(Arc::new(body.builder.finish(body.outputs, paths.into_iter().map(PortInfo::named).collect())))
}

impl<I, O> fmt::Display for Function<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.graph, f)
    }
}
