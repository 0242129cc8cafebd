//! The tree of scopes, with what flows between those of one parent.

use meshloom::hlo::analysis::{ModuleCost, ScopeGraph, Walk, Work, scope_graph};
use rustc_hash::FxHashMap;

use crate::report::{Edge, Scope, ScopeTree};

/// More than this nobody opens.
const MOST_SCOPES: usize = 1500;
/// Deeper than any name.
const DEEPEST: usize = 24;

/// The scope of what has none.
const NAMELESS: &str = "(no scope)";
/// What is in a scope beside the scopes in it.
const OWN: &str = "(ops here)";

pub fn tree(name: &str, walk: &Walk<'_>, cost: &ModuleCost) -> ScopeTree {
    let all = scope_graph(walk, 0);
    // As deep as is still few enough.
    let cut = |depth: &usize| scope_graph(walk, *depth);
    let graph = match all.nodes.len() <= MOST_SCOPES {
        true => None,
        false => Some((1..DEEPEST).take_while(|depth| cut(depth).nodes.len() <= MOST_SCOPES).last().unwrap_or(1)),
    };
    let (depth, graph) = graph.map_or((0, None), |depth| (depth, Some(scope_graph(walk, depth))));
    let left_out = graph.as_ref().map_or(0, |graph| all.nodes.len() - graph.nodes.len());
    let mut builder = Builder::of(name, graph.as_ref().unwrap_or(&all));
    for scope in &cost.scopes {
        let path = meshloom::hlo::analysis::scopes::levels(&scope.scope, depth);
        builder.add_cost(path, &scope.total, scope.seconds.map(|seconds| seconds.serial));
    }
    let edges = builder.edges(graph.as_ref().unwrap_or(&all));
    let mut tree = collapsed(builder.scopes, edges);
    tree.left_out = left_out;
    tree
}

/// The tree, before chains become one.
struct Builder {
    scopes: Vec<Scope>,
    depths: Vec<usize>,
    /// The leaf of each path that has instructions.
    leaves: FxHashMap<String, usize>,
}

impl Builder {
    fn of(name: &str, graph: &ScopeGraph) -> Builder {
        let root = Scope { name: name.to_owned(), ..Scope::default() };
        let mut builder = Builder { scopes: vec![root], depths: vec![0], leaves: FxHashMap::default() };
        let mut inner: FxHashMap<String, usize> = FxHashMap::default();
        for node in &graph.nodes {
            let leaf = builder.leaf(&node.path, &mut inner);
            builder.add(leaf, |scope| scope.instructions += node.instructions);
            let mut opcodes: Vec<_> = node.opcodes.iter().collect();
            opcodes.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
            let text = |(name, count): &(&String, &usize)| format!("{name} {count}");
            builder.scopes[leaf].opcodes = opcodes.iter().take(8).map(text).collect::<Vec<_>>().join(", ");
            builder.leaves.insert(node.path.clone(), leaf);
        }
        builder
    }

    /// The leaf of a path: a box of its own within the scope, which may have other scopes in it.
    fn leaf(&mut self, path: &str, inner: &mut FxHashMap<String, usize>) -> usize {
        if path.is_empty() {
            return self.push(0, NAMELESS);
        }
        let mut parent = 0;
        for (depth, end) in path.match_indices('/').map(|(at, _)| at).chain([path.len()]).enumerate() {
            // Deeper ones are in the deepest that is shown.
            if depth >= DEEPEST {
                break;
            }
            parent = match inner.get(&path[..end]) {
                Some(&scope) => scope,
                None => {
                    let name = path[..end].rsplit('/').next().unwrap_or_default();
                    let scope = self.push(parent, if name.is_empty() { "·" } else { name });
                    inner.insert(path[..end].to_owned(), scope);
                    scope
                }
            };
        }
        self.push(parent, OWN)
    }

    fn push(&mut self, parent: usize, name: &str) -> usize {
        self.scopes.push(Scope { name: name.to_owned(), parent: Some(parent), ..Scope::default() });
        self.depths.push(self.depths[parent] + 1);
        self.scopes.len() - 1
    }

    /// Adds something to a scope and to all around it.
    fn add(&mut self, scope: usize, add: impl Fn(&mut Scope)) {
        let mut next = Some(scope);
        while let Some(scope) = next {
            add(&mut self.scopes[scope]);
            next = self.scopes[scope].parent;
        }
    }

    fn add_cost(&mut self, path: &str, work: &Work, seconds: Option<f64>) {
        // What only carries values has no box, and next to no cost; it is in the sums of the whole.
        let leaf = self.leaves.get(path).copied().unwrap_or(0);
        self.add(leaf, |scope| {
            scope.flops += work.flops as f64;
            scope.sent = scope.sent.saturating_add(work.link_bytes);
            if let Some(seconds) = seconds {
                scope.seconds = Some(scope.seconds.unwrap_or(0.0) + seconds);
            }
        });
    }

    /// What flows between leaves, between those scopes around them that have the same parent.
    fn edges(&self, graph: &ScopeGraph) -> Vec<Edge> {
        let mut sums: indexmap::IndexMap<(usize, usize), Edge> = indexmap::IndexMap::new();
        for edge in &graph.edges {
            let leaf = |node: usize| self.leaves.get(&graph.nodes[node].path).copied();
            let (Some(mut from), Some(mut to)) = (leaf(edge.from), leaf(edge.to)) else { continue };
            let up = |scope: usize| self.scopes[scope].parent.unwrap_or(0);
            while self.depths[from] > self.depths[to] {
                from = up(from);
            }
            while self.depths[to] > self.depths[from] {
                to = up(to);
            }
            if from == to {
                continue;
            }
            while up(from) != up(to) {
                (from, to) = (up(from), up(to));
            }
            let sum = sums.entry((from, to)).or_insert(Edge { from, to, ..Edge::default() });
            sum.values += edge.values;
            sum.bytes = sum.bytes.saturating_add(edge.bytes);
        }
        sums.into_values().collect()
    }
}

/// A scope with nothing but one scope in it is one with it.
fn collapsed(scopes: Vec<Scope>, edges: Vec<Edge>) -> ScopeTree {
    let mut children = vec![0; scopes.len()];
    for parent in scopes.iter().filter_map(|scope| scope.parent) {
        children[parent] += 1;
    }
    let mut tree = ScopeTree::default();
    // Where each scope is now.
    let mut places: Vec<usize> = Vec::with_capacity(scopes.len());
    for scope in scopes {
        let parent = scope.parent;
        // The root stays, so that there is always a box to open.
        match parent.filter(|&parent| parent != 0 && children[parent] == 1) {
            Some(parent) => {
                let place = places[parent];
                let around = &mut tree.scopes[place];
                if scope.name != OWN {
                    around.name = format!("{}/{}", around.name, scope.name);
                }
                if around.opcodes.is_empty() {
                    around.opcodes = scope.opcodes;
                }
                places.push(place);
            }
            None => {
                places.push(tree.scopes.len());
                tree.scopes.push(Scope { parent: parent.map(|parent| places[parent]), ..scope });
            }
        }
    }
    tree.edges = edges.into_iter().map(|edge| Edge { from: places[edge.from], to: places[edge.to], ..edge }).collect();
    tree
}
