//! Routed experts, latent attention and the batch-split layer: against formulations in plain tensors, against JAX, and
//! on many devices against one.

mod capacity;
mod config;
mod golden;
mod grouped;
mod halves;
mod masked;
mod meshes;
mod stages;
mod traffic;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::PlatformKind;
use meshloom::ir::{Graph, Literal};
use meshloom::kernels::Kernels;
use meshloom::sharding::{Mesh, RuleSets};
use support::interpret::interpret;
use support::spmd::run_local;

/// Grouped products as loops over blocks of eight rows, which the interpreter knows.
const LOOPS: Kernels = Kernels { rows: Some(8), ..Kernels::portable(PlatformKind::Cpu) };

fn numbers(literals: &[Literal]) -> Vec<Vec<f64>> {
    literals.iter().map(Literal::to_f64_vec).collect()
}

/// Runs a graph on one device in the interpreter.
fn interpreted(graph: &Graph, inputs: &[Literal]) -> Vec<Vec<f64>> {
    let lowered = lower(graph, &LowerOptions { kernels: LOOPS, ..LowerOptions::default() });
    numbers(&interpret(lowered.unwrap_or_else(|error| panic!("{error}")).emitted(), inputs))
}

/// Runs a graph over a mesh of eight devices in the interpreter; everything must be split as it is.
fn interpreted_over(graph: &Graph, mesh: &str, rules: &RuleSets, inputs: &[Literal]) -> Vec<Vec<f64>> {
    let whole = Mesh::parse(mesh, 8).expect("a mesh");
    let options = LowerOptions {
        sharding: Some((&whole, rules)),
        deny_replication: true,
        kernels: LOOPS,
        ..LowerOptions::default()
    };
    local_numbers(&lower(graph, &options).unwrap_or_else(|error| panic!("{mesh}: {error}")), inputs)
}

/// Runs the program of all devices in the interpreter.
fn local_numbers(lowered: &Lowered, inputs: &[Literal]) -> Vec<Vec<f64>> {
    let local = lowered.partitioned().expect("a local graph");
    numbers(&run_local(&local.graph, &local.mesh, inputs).unwrap_or_else(|error| panic!("{error}")))
}
