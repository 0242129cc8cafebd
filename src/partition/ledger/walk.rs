//! From a local graph to its ledger.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use meshloom_analysis::{Amount, Branch};
use meshloom_hlo::CollectiveKind;

use super::{Collective, Ledger, Names, collective_of};
use crate::ir::{Graph, NodeRef, Origin, Phase, Scope, TensorType};
use crate::ops::{Executions, Group, Op};
use meshloom_hlo::mesh::Mesh;

impl Ledger {
    /// The collectives of a local graph.
    pub fn of(graph: &Graph, mesh: &Mesh) -> Ledger {
        let mut walk = LedgerWalk {
            mesh,
            entries: Vec::new(),
            scopes: FxHashSet::default(),
            channels: Channels::default(),
            branches: Vec::new(),
            conditionals: 0,
        };
        walk.graph(graph, Around { executions: Amount::Exactly(1), loop_depth: 0, phase: Phase::Forward });
        let scopes: BTreeSet<String> = walk.scopes.into_iter().map(Scope::path).collect();
        let names = Names {
            mesh: mesh.to_string(),
            axes: mesh.axes().map(|axis| mesh.parent_name(axis).to_owned()).collect(),
            scopes: scopes.into_iter().collect(),
        };
        Ledger { entries: walk.entries, names: Arc::new(names), error: None }
    }
}

/// The surroundings of a graph.
#[derive(Clone, Copy)]
struct Around {
    executions: Amount,
    loop_depth: usize,
    /// The phase of the region op whose body it is.
    phase: Phase,
}

struct LedgerWalk<'a> {
    mesh: &'a Mesh,
    entries: Vec<Arc<Collective>>,
    scopes: FxHashSet<Scope>,
    channels: Channels,
    /// The branches that are being walked, outermost first.
    branches: Vec<Branch>,
    conditionals: usize,
}

/// The channels that emission gives to collectives: it counts them as it writes them, and writes a function at its
/// first call.
#[derive(Default)]
struct Channels {
    next: usize,
    /// For each function that has been called, its first channel.
    functions: FxHashMap<*const Graph, usize>,
}

impl LedgerWalk<'_> {
    fn graph(&mut self, graph: &Graph, around: Around) {
        for node in graph.nodes() {
            let origin = node.origin().inside(around.phase);
            self.scopes.insert(origin.scope);
            if let Some((kind, group)) = collective_of(node.op()) {
                self.channels.next += 1;
                self.entry(graph, node, kind, group, origin, around);
            } else if node.op().as_primitive().is_none() {
                self.region(node.op(), Around { phase: origin.phase, ..around });
            }
        }
    }

    fn region(&mut self, op: &Op, around: Around) {
        if let Op::Call(call) = op {
            return self.call(&call.function, around);
        }
        let conditional = self.conditionals;
        self.conditionals += usize::from(op.executions(0) == Executions::AtMostOnce);
        let within = |executions: Amount| Around { executions, loop_depth: around.loop_depth + 1, ..around };
        for (region, body) in op.regions().enumerate() {
            let known = match around.executions {
                Amount::Exactly(executions) => op.runs(region, executions).map(Amount::Exactly),
                _ => None,
            };
            match (op.executions(region), known) {
                // The bodies do not exclude each other: each has its share of the op's executions.
                (Executions::AtMostOnce, Some(executions)) => self.graph(body, Around { executions, ..around }),
                (_, Some(executions)) => self.graph(body, within(executions)),
                (Executions::Once, None) => self.graph(body, around),
                (Executions::AtMostOnce, None) => {
                    self.branches.push(Branch { conditional, branch: region, branch_count: op.regions().count() });
                    self.graph(body, Around { executions: around.executions.or_less(), ..around });
                    self.branches.pop();
                }
                // A loop of no iterations emits nothing.
                (Executions::Times(0) | Executions::InDerivative, None) => {}
                (Executions::Times(count), None) => self.graph(body, within(around.executions.times(count as u64))),
                (Executions::AtMost(count), None) => {
                    self.graph(body, within(around.executions.times(count as u64).or_less()));
                }
                (Executions::Unknown, None) => self.graph(body, within(Amount::Unknown)),
            }
        }
    }

    fn call(&mut self, function: &Arc<Graph>, around: Around) {
        // A function's own nodes know which phase they belong to.
        let around = Around { phase: Phase::Forward, ..around };
        let after_this = match self.channels.functions.get(&Arc::as_ptr(function)) {
            Some(&first) => Some(std::mem::replace(&mut self.channels.next, first)),
            None => {
                self.channels.functions.insert(Arc::as_ptr(function), self.channels.next);
                None
            }
        };
        self.graph(function, around);
        if let Some(next) = after_this {
            self.channels.next = next;
        }
    }

    fn entry(
        &mut self,
        graph: &Graph,
        node: NodeRef<'_>,
        kind: CollectiveKind,
        group: &Group,
        origin: Origin,
        around: Around,
    ) {
        let bytes = exchanged_bytes(graph, node);
        let moves = match node.op() {
            Op::CollectivePermute(op) => op.pairs.iter().any(|(source, target)| source != target),
            _ => true,
        };
        let entry = Collective {
            kind,
            axes: self.mesh.names_of(&group.axes),
            group_size: group.size,
            operand_count: node.operands().len(),
            bytes,
            moved_bytes: if moves { kind.moved_bytes(bytes, group.size as u64) } else { 0 },
            executions: around.executions,
            branches: self.branches.clone(),
            loop_depth: around.loop_depth,
            phase: origin.phase,
            scope: origin.scope.path(),
            source: origin.source(),
            name: format!("{}.{}", kind.name(), self.channels.next),
        };
        self.entries.push(Arc::new(entry));
    }
}

/// Bytes of all operands, and of their padding if they are sent as one.
fn exchanged_bytes(graph: &Graph, node: NodeRef<'_>) -> u64 {
    let types = || node.operands().iter().map(|&value| graph.ty(value));
    let bytes: usize = types().map(TensorType::byte_count).sum();
    let Op::ReduceScatter(op) = node.op() else { return bytes as u64 };
    let elements: usize = types().map(TensorType::element_count).sum();
    let exchanged = op.exchanged_elements(node.operands().len(), elements);
    (bytes + (exchanged - elements) * types().next().map_or(0, |ty| ty.dtype.byte_count())) as u64
}
