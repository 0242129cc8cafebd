//! Common subexpressions: merging of equal nodes and bodies.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::Rewrite;
use crate::ir::{Graph, Value, Values};
use crate::ops::Scan;

/// Merges nodes with equal ops and operands into the first of them, in every region too.
///
/// - Bodies that are equal node by node become one, so that loops over them merge and a function that was traced twice
///   is emitted once.
/// - Operands that a scan gets twice count as one inside, carries that start equal and stay equal in every iteration
///   too; results that are equal inside are equal outside. Dead-code elimination then drops the ports that are not
///   needed.
/// - A node of a loop that depends on invariants alone is merged with an equal one outside by way of loop-invariant
///   code motion, which decides what a loop may hold: taking a value from outside makes the whole loop hold it, exactly
///   as moving it outside would.
pub(crate) const MERGE: Rewrite = Rewrite { merge: true, ..Rewrite::NOTHING };

/// The bodies met so far; no two are equal.
#[derive(Default)]
pub(super) struct Distinct(FxHashMap<u64, SmallVec<[Arc<Graph>; 1]>>);

impl Distinct {
    /// The first graph met that equals this one.
    pub(super) fn first(&mut self, graph: Graph) -> Arc<Graph> {
        let mut hasher = FxHasher::default();
        hash_graph(&graph, &mut hasher);
        let candidates = self.0.entry(hasher.finish()).or_default();
        if let Some(known) = candidates.iter().find(|known| equal_graphs(known, &graph)) {
            return known.clone();
        }
        let graph = Arc::new(graph);
        candidates.push(graph.clone());
        graph
    }
}

/// For each operand of a scan, the first that is the same value and enters the body in the same way.
pub(super) fn first_of_equal_operands(scan: &Scan, operands: &[Value]) -> Vec<usize> {
    let (first_carry, first_slice) = (scan.invariant_count, scan.invariant_count + scan.carry_count);
    let mut firsts: FxHashMap<(usize, Value), usize> = FxHashMap::default();
    let first = |(index, &operand)| {
        let way = usize::from(index >= first_carry) + usize::from(index >= first_slice);
        *firsts.entry((way, operand)).or_insert(index)
    };
    operands.iter().enumerate().map(first).collect()
}

/// Carries that start equal stay equal if the body, in which `same` takes them to be equal, returns equal values for
/// them. Returns `same` without the carries for which it does not.
pub(super) fn refine_carries(scan: &Scan, body: &Graph, same: &[usize]) -> Vec<usize> {
    let carries = scan.invariant_count..scan.invariant_count + scan.carry_count;
    let mut firsts: FxHashMap<(usize, Value), usize> = FxHashMap::default();
    let refined = |(input, &first): (usize, &usize)| {
        if !carries.contains(&input) {
            return first;
        }
        *firsts.entry((first, body.outputs()[input - carries.start])).or_insert(input)
    };
    same.iter().enumerate().map(refined).collect()
}

/// The results of a scan, each replaced by the first that is equal to it.
pub(super) fn first_of_equal_results(scan: &Scan, operands: &[Value], results: Values) -> Values {
    let mut firsts: FxHashMap<(bool, Value, Option<Value>), usize> = FxHashMap::default();
    let first = |(index, &output): (usize, &Value)| {
        let is_carry = index < scan.carry_count;
        // The last values of two carries are equal if they end equal; in a loop of no iterations, if they start equal.
        let start = is_carry.then(|| operands[scan.invariant_count + index]);
        results[*firsts.entry((is_carry, output, start)).or_insert(index)]
    };
    scan.body.outputs().iter().enumerate().map(first).collect()
}

/// Hashes the parts of a graph that [`equal_graphs`] compares. The bodies of region ops count by identity: they have
/// been made distinct before.
fn hash_graph(graph: &Graph, hasher: &mut impl Hasher) {
    graph.inputs().len().hash(hasher);
    graph.outputs().hash(hasher);
    for node in graph.nodes() {
        node.op().hash(hasher);
        node.operands().hash(hasher);
    }
}

/// Whether two graphs are equal node by node, on inputs of the same types. Names, source lines and scopes do not count,
/// but phases do: the program must show whether the time of a loop's body belongs to the forward pass or to the
/// recomputation.
fn equal_graphs(a: &Graph, b: &Graph) -> bool {
    a.input_types().eq(b.input_types())
        && a.outputs() == b.outputs()
        && a.inputs() == b.inputs()
        && a.node_count() == b.node_count()
        && a.nodes()
            .zip(b.nodes())
            .all(|(a, b)| a.operands() == b.operands() && a.op() == b.op() && a.origin().phase == b.origin().phase)
}
