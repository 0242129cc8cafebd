//! Proof that the program of one device computes its shards of a global program, without running either.
//!
//! Both modules become graphs. The program of one device is walked in order. Each of its values gets the meanings that
//! can be shown: which value of the global program it is a part of, where the part of each device begins along each
//! dimension, and over which mesh axes the parts are still to be added up. An op has a meaning if the global program
//! has the same op on the values that the operands are parts of, and the [factor rule](crate::ops::FactorRule) says
//! that the op makes parts of its result from these parts. Collectives and slices at the device's own place change the
//! beginnings. Carried values of a loop have the meanings that hold in front of it and that the body keeps.
//!
//! A proof holds over the real numbers: sums may be regrouped, and nothing else. It trusts the readers, the passes that
//! both graphs go through (they keep every bit), the typing rules, and the factor rules.

mod exchange;
mod layout;
mod loops;
mod manual;
mod matching;
mod walk;

use std::fmt;
use std::sync::Arc;

use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;

use crate::import::{ImportError, import, import_local};
use crate::ir::{Axes, Graph, GraphCopy, Spec};
use crate::ops::{Class, Op};
use crate::passes::{ERASE_MARKERS, FOLD_CONSTANTS, MERGE, SIMPLIFY, eliminate_dead_code};
use layout::Layouts;
use walk::Prover;

/// The largest number of devices for which beginnings are computed one by one.
pub const MOST_DEVICES: usize = 4096;

/// The outcome for a partitioned module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Each output is the shard of the global output, over the real numbers.
    Proven,
    /// It certainly is no partitioned form of the global module.
    Refuted {
        /// The reason.
        why: String,
    },
    /// The proof does not reach all outputs.
    Undecided {
        /// The first op without a meaning, and what it is about.
        why: String,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Proven => f.write_str("proven"),
            Verdict::Refuted { why } => write!(f, "refuted: {why}"),
            Verdict::Undecided { why } => write!(f, "undecided: {why}"),
        }
    }
}

/// The reason why nothing can be said of two modules.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The global module cannot be imported.
    #[error("the global module: {0}")]
    Global(Box<ImportError>),
    /// The partitioned module cannot be imported.
    #[error("the partitioned module: {0}")]
    Partitioned(Box<ImportError>),
    /// The global module names no mesh.
    #[error("the global module is for one device; give the module that a partitioner reads")]
    NoMesh,
    /// The modules are for different numbers of devices.
    #[error("the global module is for {global} devices and the partitioned one for {partitioned}")]
    Devices {
        /// The devices of the global module.
        global: usize,
        /// The devices of the partitioned module.
        partitioned: usize,
    },
    /// The mesh is too large.
    #[error("the mesh has {devices} devices; the proof looks at each, and takes at most {MOST_DEVICES}")]
    TooMany {
        /// The number of devices.
        devices: usize,
    },
}

meshloom_hlo::debug_is_message!(ProofError);

/// Says whether a partitioned module computes the shards of a global one.
///
/// Parameters have the specs that the global module states, and are whole on every device where it states none. A
/// result for which it states none may be split in any way.
///
/// # Errors
/// One of the modules cannot be imported, or they are not for the same devices.
pub fn verify(global: &HloModuleProto, partitioned: &HloModuleProto) -> Result<Verdict, ProofError> {
    let whole = import(global).map_err(|error| ProofError::Global(Box::new(error)))?;
    let Some(mesh) = whole.mesh else { return Err(ProofError::NoMesh) };
    let devices = mesh.device_count();
    if devices > MOST_DEVICES {
        return Err(ProofError::TooMany { devices });
    }
    let found = meshloom_analysis::device_count(partitioned, None);
    let found = if found.replicas > 1 { 0 } else { usize::try_from(found.partitions).unwrap_or(0) };
    if found != devices {
        return Err(ProofError::Devices { global: devices, partitioned: found });
    }
    let (fine, parts) = finest(&mesh);
    let local = import_local(&manual::without_borders(partitioned), &fine)
        .map_err(|error| ProofError::Partitioned(Box::new(error)))?;
    let (whole, local) = (normal(&whole.graph), normal(&local.graph));
    Ok(prove(&whole, &local, fine, &parts))
}

/// The mesh with each axis cut into its prime factors, and what became of each axis.
fn finest(mesh: &Mesh) -> (Mesh, Vec<Axes>) {
    let sizes: Vec<Vec<usize>> = mesh.axes().map(|axis| primes(mesh.size(axis))).collect();
    mesh.cut_into(&sizes)
        .unwrap_or_else(|| (mesh.clone(), mesh.axes().map(|axis| [axis].into_iter().collect()).collect()))
}

fn primes(mut size: usize) -> Vec<usize> {
    let mut primes = Vec::new();
    let mut divisor = 2;
    while divisor * divisor <= size {
        while size.is_multiple_of(divisor) {
            primes.push(divisor);
            size /= divisor;
        }
        divisor += 1;
    }
    if size > 1 || primes.is_empty() {
        primes.push(size);
    }
    primes
}

/// A graph in which functions stand in their callers, identities are gone, and equal nodes are one.
fn normal(graph: &Graph) -> Graph {
    let rewrite = ERASE_MARKERS.and(FOLD_CONSTANTS).and(SIMPLIFY).and(MERGE);
    eliminate_dead_code(&rewrite.run(&flat(graph)))
}

/// A graph without calls and identities, in its bodies too.
fn flat(graph: &Graph) -> Graph {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match (node.op(), node.op().as_region()) {
            (Op::Call(call), _) => copy.inline(node, &flat(&call.function)),
            (_, Some(region)) => {
                let op = region.with_bodies(&mut |body| Arc::new(flat(body)));
                copy.node_as(node, op);
            }
            (op, None) if op.facts().class == Class::Identity => {
                for (result, &operand) in node.results().zip(node.operands()) {
                    let operand = copy.map.get(operand);
                    copy.map.set(result, operand);
                }
            }
            _ => {
                copy.node(node);
            }
        }
    }
    copy.finish()
}

fn prove(whole: &Graph, local: &Graph, fine: Mesh, parts: &[Axes]) -> Verdict {
    let counts = |graph: &Graph| (graph.inputs().len(), graph.outputs().len());
    let refuted = |why: String| Verdict::Refuted { why };
    if counts(whole) != counts(local) {
        let ((inputs, outputs), (of_inputs, of_outputs)) = (counts(whole), counts(local));
        return refuted(format!(
            "the global module has {inputs} parameters and {outputs} results, the partitioned one {of_inputs} and \
             {of_outputs}"
        ));
    }
    let cut = |spec: &Spec| {
        let fine = |axes: &Axes| axes.iter().flat_map(|axis| parts[axis.index()].iter().copied()).collect::<Axes>();
        Spec::new(spec.dims().iter().map(fine))
    };
    let layouts = Layouts::new(fine);
    let mut prover = Prover::new(layouts);
    let mut inputs = Vec::new();
    for (number, (&input, info)) in whole.inputs().iter().zip(whole.input_info()).enumerate() {
        let (ty, own) = (whole.ty(input), local.ty(local.inputs()[number]));
        let spec = info.spec.clone().unwrap_or_else(|| Spec::replicated(ty.rank()));
        let Some((dims, begins)) = prover.tile(&cut(&spec), &ty.dims) else {
            return Verdict::Undecided { why: format!("parameter {number} is not split evenly") };
        };
        if own.dtype != ty.dtype || own.dims != dims {
            return refuted(format!("parameter {number} is {own}; the part of {ty} is one of {dims:?}"));
        }
        // A caller hands over what the partitioned module states.
        if let Some(stated) = &local.input_info()[number].spec
            && prover.tile(stated, &ty.dims).map(|(_, begins)| begins).as_ref() != Some(&begins)
        {
            return refuted(format!("parameter {number} has another sharding in the partitioned module"));
        }
        inputs.push((input, begins));
    }
    let facts = prover.program(whole, local, inputs);
    for (number, (&output, info)) in whole.outputs().iter().zip(whole.output_info()).enumerate() {
        let ty = whole.ty(output);
        let own = local.outputs()[number];
        let stated = &local.output_info()[number].spec;
        let wanted = match info.spec.as_ref().map(cut).or_else(|| stated.clone()) {
            None => None,
            Some(spec) => match prover.tile(&spec, &ty.dims) {
                None => return Verdict::Undecided { why: format!("result {number} is not split evenly") },
                Some((dims, begins)) => {
                    let found = local.ty(own);
                    if found.dtype != ty.dtype || found.dims != dims {
                        return refuted(format!("result {number} is {found}; the part of {ty} is one of {dims:?}"));
                    }
                    let other = stated.as_ref().map(|stated| prover.tile(stated, &ty.dims));
                    if other.is_some_and(|other| other.is_none_or(|(_, other)| other != begins)) {
                        return refuted(format!("result {number} has another sharding in the partitioned module"));
                    }
                    Some(begins)
                }
            },
        };
        if let Some(why) = prover.missing(&facts, whole, output, local, own, wanted.as_deref()) {
            let stuck = facts.stuck(local, own).unwrap_or(why);
            return Verdict::Undecided { why: format!("result {number}: {stuck}") };
        }
    }
    Verdict::Proven
}
