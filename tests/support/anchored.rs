//! Computes graphs with the interpreter, and with XLA as an anchor where a test asks for it.

use meshloom::compile::{Lowered, Partitioned};
use meshloom::ir::{DType, Graph, Literal, verify};
use meshloom::trace::Tree;

use crate::cases::every_case;
use crate::eight_devices::{compile, relative_error};
use crate::interpret::{interpret, interpret_with_noise};
use crate::spmd::run_local;

/// Returns the results of a graph by the interpreter. In the full tier XLA must agree.
#[track_caller]
pub fn run(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    verify(graph).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let found = interpret(graph, inputs);
    if every_case("compiler anchored") {
        agrees_with_xla(graph, inputs, &found);
    }
    found
}

/// Like [`run`], but XLA must agree in the small tier too.
#[track_caller]
pub fn run_anchored(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    verify(graph).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let found = interpret(graph, inputs);
    agrees_with_xla(graph, inputs, &found);
    found
}

/// Checks that XLA computes the same, up to the rounding of the type: its functions differ from the interpreter's in
/// the last digits, and it adds up in another order. Where a result is further off, [`spread`] must explain it.
#[track_caller]
fn agrees_with_xla(graph: &Graph, inputs: &[Literal], found: &[Literal]) {
    let compiled = crate::run(graph, inputs);
    assert_eq!(compiled.len(), found.len());
    for (index, (compiled, found)) in compiled.iter().zip(found).enumerate() {
        assert_eq!(compiled.ty(), found.ty(), "result {index}\n{graph}");
        let bound = match found.ty().dtype {
            DType::F64 => 1e-12,
            DType::F32 => 1e-5,
            dtype if dtype.is_float() => 2e-2,
            _ => 0.0,
        };
        // Numbers that are not finite in either result are compared one by one, the others by their norms.
        let (compiled, found) = (compiled.to_f64_vec(), found.to_f64_vec());
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (ours_at, theirs_at) in found.iter().zip(&compiled) {
            if ours_at.is_finite() || theirs_at.is_finite() {
                ours.push(*ours_at);
                theirs.push(*theirs_at);
            } else {
                let same = ours_at == theirs_at || ours_at.is_nan() && theirs_at.is_nan();
                assert!(same, "result {index}: {found:?}, by XLA {compiled:?}\n{graph}");
            }
        }
        // A sum whose terms cancel is zero except for rounding.
        let is_zero = theirs.iter().chain(&ours).all(|number| number.abs() <= bound);
        let error = relative_error(&ours, &theirs);
        let is_close = is_zero || error <= bound || error <= 4.0 * spread(graph, inputs, index, &found);
        assert!(is_close, "result {index}: {found:?}, by XLA {compiled:?}, off by {error:e}\n{graph}");
    }
}

/// The distance by which rounding errors of one unit in the last place move a result: the largest of eight tries. A
/// derivative of `tanh` where it is nearly 1 has few digits that mean something.
pub fn spread(graph: &Graph, inputs: &[Literal], index: usize, expected: &[f64]) -> f64 {
    let tries = (0..8).map(|seed| interpret_with_noise(graph, inputs, seed)[index].to_f64_vec());
    tries.map(|moved| relative_error(&moved, expected)).fold(0.0, f64::max)
}

/// Returns the results of a lowered program, for one device or for all of its mesh, by the interpreter.
#[track_caller]
pub fn run_lowered(lowered: &Lowered, inputs: &[Literal]) -> Vec<Literal> {
    match lowered.partitioned() {
        Some(Partitioned { graph, mesh, .. }) => {
            run_local(graph, mesh, inputs).unwrap_or_else(|error| panic!("{error}"))
        }
        None => interpret(lowered.emitted(), inputs),
    }
}

/// Returns the results of a lowered program: by the interpreter in the small tier, by XLA if all cases of a name run.
#[track_caller]
pub fn run_by_tier(name: &str, lowered: &Lowered, inputs: &[Literal]) -> Vec<Literal> {
    if every_case(name) { run_compiled(lowered, inputs) } else { run_lowered(lowered, inputs) }
}

/// Returns the results of a lowered program by XLA.
#[track_caller]
pub fn run_compiled(lowered: &Lowered, inputs: &[Literal]) -> Vec<Literal> {
    let program = compile(lowered).unwrap_or_else(|error| panic!("{error}"));
    let arguments = program.put(0, &inputs.to_vec()).expect("the inputs fit").leaves();
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    outputs.iter().map(|output| output.get().expect("a result")).collect()
}
