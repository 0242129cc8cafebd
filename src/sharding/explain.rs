//! The reason for a value's sharding: from the value, step by step, to the rule or constraint that began it.
//!
//! Propagation records for each value which node gave it its spec, and when. To go back, look among the other tensors
//! of that node for the one that had the axes before. Times fall at every step, so the chain ends: at a port of the
//! program, at a `reshard`, or at a value that nothing constrains.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::propagate::{Tie, ties};
use super::{Mesh, RowKind, ShardingRow, ShardingTable, Shardings, Spec, SpecOrigin};
use crate::ir::{Definition, Graph, Name, Node, NodeRef, Origin, Value};
use crate::ops::Op;
use meshloom_hlo::suggest::did_you_mean;

/// One value on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedStep {
    /// The path of a port; scope and op of any other value.
    pub name: String,
    /// Its global type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its spec.
    pub spec: String,
    /// Where the spec comes from.
    pub because: String,
    /// The user's source line as `file:line`, if there is one.
    pub source: Option<String>,
}

/// The reason for a value's spec: the value first, the origin last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The steps from the value to the origin.
    pub steps: Vec<ExplainedStep>,
}

/// One line for each step.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ExplainedStep { name, ty, spec, because, source } in &self.steps {
            let place = source.as_ref().map(|source| format!(" (at {source})")).unwrap_or_default();
            writeln!(f, "{name}: {ty} {spec}: {because}{place}")?;
        }
        Ok(())
    }
}

/// A name that no value has.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no tensor is called \"{query}\"{suggestion}; name an input or output by its path (such as {example}), a value by its scope \
     (layers/attention), or a source line (model.rs:42)"
)]
pub struct UnknownTensor {
    /// The name that was asked for.
    pub query: String,
    /// A name that is near, if any.
    pub suggestion: String,
    /// A name that exists.
    pub example: String,
}

meshloom_hlo::debug_is_message!(UnknownTensor);

/// The graph that a value is in: the program's, or a body of a node of another.
#[derive(Clone, Copy)]
struct RegionLevel<'a> {
    graph: &'a Graph,
    shardings: &'a Shardings,
    /// The node whose body it is, the number of the body, and the level of that node.
    around: Option<(NodeRef<'a>, usize, usize)>,
}

/// A value in a level.
type ValueInLevel = (usize, Value);

struct Levels<'a> {
    levels: Vec<RegionLevel<'a>>,
    mesh: &'a Mesh,
    table: Option<&'a ShardingTable>,
}

/// Explains the values that a name stands for: the path of an input or output (or its end: `wq`), a scope path or its
/// end (`layers/attention`), or `file:line`. At most `most` values are explained, ports first.
///
/// # Errors
/// No tensor has this name.
pub fn explain(
    graph: &Graph,
    shardings: &Shardings,
    mesh: &Mesh,
    table: Option<&ShardingTable>,
    query: &str,
    most: usize,
) -> Result<Vec<Explanation>, UnknownTensor> {
    let levels = Levels::of(graph, shardings, mesh, table);
    let mut places = levels.ports(query);
    if places.is_empty() {
        places = levels.values(query);
    }
    if places.is_empty() {
        let paths = || graph.input_info().iter().chain(graph.output_info()).map(|info| &*info.path);
        let nodes: BTreeSet<String> =
            levels.levels.iter().flat_map(|level| level.graph.nodes()).map(|node| node_name(&node)).collect();
        return Err(UnknownTensor {
            query: query.to_owned(),
            suggestion: did_you_mean(query, paths().chain(nodes.iter().map(String::as_str))),
            example: paths().next().unwrap_or_default().to_owned(),
        });
    }
    Ok(places.into_iter().take(most).map(|place| levels.explain(place)).collect())
}

impl<'a> Levels<'a> {
    fn of(graph: &'a Graph, shardings: &'a Shardings, mesh: &'a Mesh, table: Option<&'a ShardingTable>) -> Levels<'a> {
        let mut levels = vec![RegionLevel { graph, shardings, around: None }];
        let mut next = 0;
        while let Some(&RegionLevel { graph, shardings, .. }) = levels.get(next) {
            for node in graph.nodes() {
                for (index, body) in node.op().regions().enumerate() {
                    if let Some(shardings) = shardings.body(node.id, index) {
                        levels.push(RegionLevel { graph: body, shardings, around: Some((node, index, next)) });
                    }
                }
            }
            next += 1;
        }
        Levels { levels, mesh, table }
    }

    fn ports(&self, query: &str) -> Vec<ValueInLevel> {
        let graph = self.levels[0].graph;
        let inputs = graph.inputs().iter().zip(graph.input_info());
        let outputs = graph.outputs().iter().zip(graph.output_info());
        let named = |exact: bool| -> Vec<ValueInLevel> {
            let is_it = |path: &str| match exact {
                true => path == query,
                false => path.strip_suffix(query).is_some_and(|rest| rest.ends_with('.')),
            };
            let both = inputs.clone().chain(outputs.clone());
            both.filter(|(_, info)| is_it(&info.path)).map(|(&value, _)| (0, value)).collect()
        };
        let exact = named(true);
        if exact.is_empty() { named(false) } else { exact }
    }

    /// Results of nodes in a scope, or of a source line.
    fn values(&self, query: &str) -> Vec<ValueInLevel> {
        let is_it = |node: &NodeRef<'_>| {
            let name = node_name(node);
            let in_scope = name == query || scope_name(node) == query || name.ends_with(&format!("/{query}"));
            in_scope
                || node
                    .origin()
                    .source()
                    .is_some_and(|source| source == query || source.ends_with(&format!("/{query}")))
        };
        let of_level = |(index, level): (usize, &RegionLevel<'a>)| {
            let nodes = level.graph.nodes().filter(is_it).filter(|node| node.results().len() > 0);
            nodes.map(|node| (index, node.result())).collect::<Vec<_>>()
        };
        self.levels.iter().enumerate().flat_map(of_level).collect()
    }

    fn explain(&self, place: ValueInLevel) -> Explanation {
        let mut steps = Vec::new();
        let mut at = place;
        loop {
            let next = self.before(at);
            steps.push(self.step(at, next));
            match next {
                Some((place, _)) => at = place,
                None => return Explanation { steps },
            }
        }
    }

    fn step(&self, place: ValueInLevel, next: Option<(ValueInLevel, Node)>) -> ExplainedStep {
        let RegionLevel { graph, shardings, .. } = self.levels[place.0];
        let value = place.1;
        let (name, source) = self.name(place);
        let because = match (shardings.origin(value), next) {
            (_, Some((next, _))) => {
                let (from, _) = self.name(next);
                match self.levels[place.0].shardings.origin(value) {
                    SpecOrigin::Through(node) => format!("through {} from {from}", self.through(place, node)),
                    _ => format!("from {from}"),
                }
            }
            (SpecOrigin::Nothing, _) => "nothing says anything of it: every device has the whole".to_owned(),
            (SpecOrigin::Port, _) => self.port_reason(place),
            (SpecOrigin::Constraint(node), _) => self.constraint_reason(graph, graph.node(node)),
            (SpecOrigin::Through(node), _) => format!("decided at {}", self.through(place, node)),
        };
        let spec = shardings.spec(value).display(self.mesh).to_string();
        ExplainedStep { name, ty: graph.ty(value).to_string(), spec, because, source }
    }

    /// The name of a value, and the source line where it was written.
    fn name(&self, (level, value): ValueInLevel) -> (String, Option<String>) {
        let graph = self.levels[level].graph;
        let port = |values: &[Value], infos: &[crate::ir::PortInfo]| {
            let found = values.iter().zip(infos).find(|(port, info)| **port == value && !info.path.is_empty());
            found.map(|(_, info)| info.path.to_string())
        };
        match graph.definition(value) {
            Definition::Input(index) => {
                let path = port(graph.inputs(), graph.input_info()).filter(|_| level == 0);
                let inside = || match self.levels[level].around {
                    Some((node, ..)) => format!("{} input {index}", node_name(&node)),
                    None => format!("input {index}"),
                };
                (path.unwrap_or_else(inside), None)
            }
            Definition::Result(node, _) => {
                let node = graph.node(node);
                let output = port(graph.outputs(), graph.output_info()).filter(|_| level == 0);
                let name = output.map_or_else(|| node_name(&node), |path| format!("{path} ({})", node_name(&node)));
                (name, node.origin().source())
            }
        }
    }

    /// The node that passed a spec on to a value: one of its own graph, or the one whose body that is.
    fn through(&self, (level, value): ValueInLevel, node: Node) -> String {
        let RegionLevel { graph, around, .. } = self.levels[level];
        let own = || (node.index() < graph.node_count()).then(|| graph.node(node)).filter(|node| touches(node, value));
        match (own(), around) {
            (Some(node), _) => node_name(&node),
            (None, Some((node, ..))) => node_name(&node),
            (None, None) => "an operation".to_owned(),
        }
    }

    /// The value that had the axes before, and the node by which they came.
    fn before(&self, place: ValueInLevel) -> Option<(ValueInLevel, Node)> {
        let (level, value) = place;
        let RegionLevel { graph, shardings, around } = self.levels[level];
        let SpecOrigin::Through(node) = shardings.origin(value) else { return None };
        let mut candidates: Vec<ValueInLevel> = Vec::new();
        if node.index() < graph.node_count() {
            let node = graph.node(node);
            if touches(&node, value) {
                candidates.extend(node.operands().iter().copied().chain(node.results()).map(|value| (level, value)));
                let inner = |tie: &Tie| Some((self.level_of(level, node.id, tie.body)?, tie.inner));
                candidates.extend(ties(node).iter().filter(|tie| tie.outer == value).filter_map(inner));
            }
        }
        if let Some((node, body, outer)) = around {
            let ties = ties(node);
            candidates
                .extend(ties.iter().filter(|tie| tie.body == body && tie.inner == value).map(|tie| (outer, tie.outer)));
        }
        let (time, spec) = (shardings.time(value), shardings.spec(value));
        let came_before = |&(level, other): &ValueInLevel| {
            let shardings = self.levels[level].shardings;
            shardings.known(other).is_some() && shardings.time(other) < time && share_axes(shardings.spec(other), spec)
        };
        let first = candidates
            .into_iter()
            .filter(came_before)
            .min_by_key(|&(level, other)| self.levels[level].shardings.time(other));
        Some((first?, node))
    }

    fn level_of(&self, level: usize, node: Node, body: usize) -> Option<usize> {
        let is_it = |candidate: &RegionLevel<'_>| {
            candidate.around.is_some_and(|(around, index, outer)| (around.id, index, outer) == (node, body, level))
        };
        self.levels.iter().position(is_it)
    }

    fn port_reason(&self, (_, value): ValueInLevel) -> String {
        let graph = self.levels[0].graph;
        let input = graph.inputs().iter().zip(graph.input_info()).find(|(input, _)| **input == value);
        let output = graph.outputs().iter().zip(graph.output_info()).find(|(output, _)| **output == value);
        let is_input = input.is_some();
        let Some((_, info)) = input.or(output) else {
            return "it is a port of the program".to_owned();
        };
        let of_path = |kind: &RowKind| matches!(kind, RowKind::Input { path } if **path == *info.path);
        let row = self.table.and_then(|table| Some((table, table.rows.iter().find(|row| of_path(&row.kind))?)));
        match row {
            Some((table, row)) => rules_text(table, row),
            None if is_input => "it is an input of the program".to_owned(),
            None => "it is an output of the program, and has the spec of the input that it replaces".to_owned(),
        }
    }

    fn constraint_reason(&self, graph: &Graph, node: NodeRef<'_>) -> String {
        let place = |origin: Origin| (origin.scope, origin.source());
        let named = |kind: &RowKind| matches!(kind, RowKind::Named(origin) if place(*origin) == place(node.origin()));
        // A line may name several tensors, and differentiation adds others.
        let states = |row: &ShardingRow| match node.op() {
            Op::Reshard(reshard) => row.spec == reshard.spec && row.ty == *graph.ty(node.result()),
            _ => false,
        };
        let row = self.table.and_then(|table| {
            let mut rows = table.rows.iter().filter(|row| named(&row.kind) && states(row));
            let first = rows.next()?;
            // If a tensor has two names, the graph does not say any more which one counts.
            rows.all(|row| row.axes == first.axes).then_some((table, first))
        });
        let source = node.origin().source().map(|source| format!(" at {source}")).unwrap_or_default();
        match row {
            Some((table, row)) => format!("the constraint{source}: {}", rules_text(table, row)),
            None => format!("the constraint{source} states it"),
        }
    }
}

/// The names of a tensor's dimensions, and the rules for them.
fn rules_text(table: &ShardingTable, row: &ShardingRow) -> String {
    if row.axes.is_empty() {
        return table.origin(row);
    }
    let dash = |name: &Name| if name.is_none() { "-".to_owned() } else { name.text() };
    let names: Vec<String> = row.axes.iter().map(dash).collect();
    let all = table.rules.get(row.role).rules();
    let mut rules: Vec<String> = Vec::new();
    for (name, by) in row.axes.iter().zip(&row.by).filter(|(name, _)| !name.is_none()) {
        let rule = match by.and_then(|place| all.get(place)) {
            Some(rule) => rule.to_string(),
            None => table.without(row, &name.text()),
        };
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    format!("its axes are [{}]: {}", names.join(" "), rules.join(", "))
}

fn touches(node: &NodeRef<'_>, value: Value) -> bool {
    node.operands().contains(&value) || node.results().any(|result| result == value)
}

/// Whether one spec may derive from the other: they have an axis in common.
fn share_axes(a: &Spec, b: &Spec) -> bool {
    a.used_axes().any(|axis| b.used_axes().any(|other| other == axis))
}

/// Phase, scope and op, in the form in which the node's instruction has them for `op_name`.
fn node_name(node: &NodeRef<'_>) -> String {
    let op = node.op().name();
    let scope = scope_name(node);
    if scope.is_empty() { op.to_owned() } else { format!("{scope}/{op}") }
}

fn scope_name(node: &NodeRef<'_>) -> String {
    let Origin { phase, scope, .. } = node.origin();
    format!("{}{}", phase.prefix(), scope.path())
}
