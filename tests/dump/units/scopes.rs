use hlo_dump::internals::scope_tree;
use meshloom::analysis::{ScopeEdge, ScopeGraph, ScopeNode};

fn graph(paths: &[String], edges: &[(usize, usize)]) -> ScopeGraph {
    let node =
        |path: &String| ScopeNode { path: path.clone(), instructions: 2, opcodes: [("dot".to_owned(), 2)].into() };
    let edge = |&(from, to): &(usize, usize)| ScopeEdge { from, to, values: 1, bytes: 8 };
    ScopeGraph { nodes: paths.iter().map(node).collect(), edges: edges.iter().map(edge).collect() }
}

type Scopes = [(&'static str, Option<usize>, usize)];

/// Checks the scopes, and returns the edges.
fn check(graph: &ScopeGraph, expected: &Scopes) -> Vec<(usize, usize, u64)> {
    let (scopes, edges) = scope_tree("m", graph);
    let scopes: Vec<_> = scopes.iter().map(|(name, parent, count)| (name.as_str(), *parent, *count)).collect();
    assert_eq!(scopes, expected);
    edges
}

#[test]
fn scopes_nest_and_chains_are_one() {
    let paths = ["a/b/x", "a/b/y/z", "a/b", ""].map(str::to_owned);
    let expected = [
        ("m", None, 8),
        ("a/b", Some(0), 6),
        ("x", Some(1), 2),
        ("y/z", Some(1), 2),
        ("(ops here)", Some(1), 2),
        ("(no scope)", Some(0), 2),
    ];
    let edges = check(&graph(&paths, &[(0, 1), (1, 3), (2, 0)]), &expected);
    // Edges out of `a/b` leave all of it.
    assert_eq!(edges, [(2, 3, 8), (1, 5, 8), (4, 2, 8)]);
}

#[test]
fn too_many_scopes_are_merged() {
    let layers: Vec<String> = (0..5000).map(|layer| format!("step/layer_{layer}/mlp{}", layer % 2)).collect();
    let edges: Vec<(usize, usize)> = (1..5000).map(|layer| (layer - 1, layer)).collect();
    check(&graph(&layers, &edges), &[("m", None, 10_000), ("step/layer_*/mlp*", Some(0), 10_000)]);
    let letters =
        |number: usize| format!("{:05}", number).bytes().map(|digit| (digit - b'0' + b'a') as char).collect::<String>();
    let paths: Vec<String> = (0..5000).map(|layer| format!("step{}/{}", layer % 3, letters(layer))).collect();
    check(&graph(&paths, &[]), &[("m", None, 10_000), ("step*", Some(0), 10_000)]);
}
