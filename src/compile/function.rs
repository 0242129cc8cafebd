//! A traced function, compiled, with the trees of its inputs and outputs.

use super::{ArgumentError, Error, LowerOptions, Program, lower};
use crate::ir::Literal;
use crate::pjrt::{Array, Client};
use crate::trace::{Function, MapTree, Tensor, TensorSpec, Tree, called_all};

/// A [`Function`] compiled for a client's devices: trees of values in, trees of values out.
///
/// [`Program`] is the same over plain lists.
#[derive(Clone)]
pub struct CompiledFunction<I, O> {
    program: Program,
    inputs: I,
    outputs: O,
}

/// Lowers a function and compiles it. The state of a [step](Function::trace_step) is donated, besides the inputs that
/// the options name. Warnings of the rules are kept: [`CompiledFunction::warnings`].
///
/// ```
/// use meshloom::compile::{LowerOptions, compile};
/// use meshloom::ir::{DType::F32, Literal};
/// use meshloom::pjrt::Client;
/// use meshloom::trace::{Function, TensorSpec};
///
/// # fn main() -> Result<(), meshloom::Error> {
/// let spec = TensorSpec::new(F32, [3]);
/// let function = Function::trace("norm", spec, |x| x.square().sum(..).sqrt())?;
/// let compiled = compile(&function, &Client::cpu(1)?, &LowerOptions::default())?;
/// let norm = compiled.call(&Literal::vector(&[2f32, 3.0, 6.0]))?;
/// assert_eq!(norm, Literal::scalar(7f32));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`lower`]; the client has fewer devices than the mesh; the plugin refuses the module.
pub fn compile<I, O>(
    function: &Function<I, O>,
    client: &Client,
    options: &LowerOptions<'_>,
) -> Result<CompiledFunction<I, O>, Error>
where
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone,
    O: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone,
{
    let mut options = options.clone();
    // The caller's own pairs may repeat those that are known anyway.
    for pair in function.aliases() {
        if !options.aliases.contains(&pair) {
            options.aliases.push(pair);
        }
    }
    let program = lower(function.graph(), &options)?.compile(client)?;
    Ok(CompiledFunction { program, inputs: function.inputs().clone(), outputs: function.outputs().clone() })
}

impl<I, O> CompiledFunction<I, O>
where
    I: Tree<Leaf = TensorSpec> + MapTree<Literal> + MapTree<Array>,
    O: Tree<Leaf = TensorSpec> + MapTree<Literal> + MapTree<Array>,
{
    /// The program behind it: executable, and type and layout of each input and output.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// As [`Program::warnings`].
    pub fn warnings(&self) -> &[String] {
        self.program.warnings()
    }

    /// Copies inputs to the devices, each laid out as the program takes it.
    ///
    /// # Errors
    /// A literal has another type than the input of its path, the trees differ, or a device is out of memory.
    pub fn put(&self, inputs: &<I as MapTree<Literal>>::Mapped) -> Result<<I as MapTree<Array>>::Mapped, Error> {
        expect_tree("inputs", &self.inputs, inputs)?;
        let arrays = self.program.put_leaves("input", 0, inputs)?;
        Ok(self.inputs.fill(arrays)?)
    }

    /// Starts an execution. The results can be read at once: reading waits for them.
    ///
    /// # Errors
    /// An array has another type or layout than the input, or was donated to an earlier run.
    pub fn run(&self, inputs: &<I as MapTree<Array>>::Mapped) -> Result<<O as MapTree<Array>>::Mapped, Error> {
        let inputs = inputs.leaves();
        Ok(self.outputs.fill(self.program.run(&inputs.iter().collect::<Vec<_>>())?)?)
    }

    /// Host values in, host values out: [`CompiledFunction::put`], [`CompiledFunction::run`], then reads all results.
    ///
    /// # Errors
    /// The errors of the three steps.
    pub fn call(&self, inputs: &<I as MapTree<Literal>>::Mapped) -> Result<<O as MapTree<Literal>>::Mapped, Error> {
        let outputs = self.run(&self.put(inputs)?)?.leaves();
        let outputs = outputs.iter().map(Array::get).collect::<Result<Vec<_>, _>>()?;
        Ok(self.outputs.fill(outputs)?)
    }
}

/// Refuses values that do not form the tree that a program takes.
fn expect_tree(what: &'static str, expected: &impl Tree, found: &impl Tree) -> Result<(), Error> {
    let (expected, found) = (expected.paths(), found.paths());
    if expected == found {
        return Ok(());
    }
    Err(ArgumentError::Tree { what, expected: called_all(&expected), found: called_all(&found) }.into())
}

/// A tree over arrays.
type Arrays<T> = <T as MapTree<Array>>::Mapped;

impl<S, I, O> CompiledFunction<(S, I), (S, O)>
where
    S: Tree<Leaf = TensorSpec> + MapTree<Literal> + MapTree<Array>,
    I: Tree<Leaf = TensorSpec> + MapTree<Literal> + MapTree<Array>,
    O: Tree<Leaf = TensorSpec> + MapTree<Literal> + MapTree<Array>,
{
    /// Copies a state to the devices, laid out as the program takes it.
    ///
    /// # Errors
    /// A literal has another type than the state's leaf of its path, the trees differ, or a device is out of memory.
    pub fn put_state(&self, state: &<S as MapTree<Literal>>::Mapped) -> Result<Arrays<S>, Error> {
        expect_tree("state", &self.inputs.0, state)?;
        let arrays = self.program.put_leaves("state", 0, state)?;
        Ok(self.inputs.0.fill(arrays)?)
    }

    /// Starts a step, from the old state and host inputs to the new state and the other outputs, which can be read at
    /// once. The old state is gone then.
    ///
    /// # Errors
    /// An input or a part of the state has another type than it was traced with, the trees differ, or a device is out
    /// of memory.
    pub fn step(
        &self,
        state: Arrays<S>,
        inputs: &<I as MapTree<Literal>>::Mapped,
    ) -> Result<(Arrays<S>, Arrays<O>), Error> {
        expect_tree("state", &self.inputs.0, &state)?;
        expect_tree("inputs", &self.inputs.1, inputs)?;
        let state = state.leaves();
        let inputs = self.program.put_leaves("input", state.len(), inputs)?;
        let outputs = self.program.run(&state.iter().chain(&inputs).collect::<Vec<_>>())?;
        Ok(self.outputs.fill(outputs)?)
    }
}
