//! Helpers of the tests of whole programs.

use std::sync::OnceLock;

use meshloom::compile::{LowerOptions, Lowered, Program, lower};
use meshloom::ir::{Graph, Literal};
use meshloom::pjrt::{Array, Client, CompileOptions};
use meshloom::trace::{MapTree, Tree};

/// One client of eight devices for all tests of a file. Programs for one device run on its first.
pub fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| crate::client_of(8)).clone()
}

/// Compiles a program whose numbers matter, not its speed: that LLVM takes its time over small kernels is of no use
/// then.
pub fn compile(lowered: &Lowered) -> Result<Program, meshloom::Error> {
    let options = CompileOptions { debug_options: crate::unoptimized(), ..lowered.compile_options(&client())? };
    lowered.compile_with(&client(), &options)
}

/// Compiles a graph for one device and runs it.
pub fn run<L: Tree<Leaf = Literal> + MapTree<Array>>(graph: &Graph, inputs: &L) -> Vec<Literal> {
    let lowered = lower(graph, &LowerOptions::default()).expect("it lowers");
    let program = compile(&lowered).expect("it compiles");
    let arguments = program.put(0, inputs).expect("the inputs fit").leaves();
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    outputs.iter().map(|output| output.get().expect("a result")).collect()
}

/// `norm(actual - expected) / norm(expected)`; infinite when there is a NaN or the lengths differ.
pub fn relative_error(actual: &[f64], expected: &[f64]) -> f64 {
    if actual.len() != expected.len() {
        return f64::INFINITY;
    }
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let difference = norm(&mut actual.iter().zip(expected).map(|(actual, expected)| actual - expected));
    let error = difference / norm(&mut expected.iter().copied());
    match (difference == 0.0, error.is_nan()) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => error,
    }
}
