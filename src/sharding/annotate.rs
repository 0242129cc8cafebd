//! The sharding pass: logical axes become specs.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{
    Assigned, Axes, Diagnostic, Mesh, MeshAxis, NamedDim, Role, RowKind, RuleSets, ShardingError, ShardingRow,
    ShardingTable, Spec,
};
use crate::ir::{AxisNames, BodyCache, Graph, GraphCopy, Origin, PortInfo, TensorType};
use crate::ops::{Executions, Op, Reshard, WithAxes};

/// The results of the sharding pass: the graph and the facts about it.
#[derive(Clone, Debug)]
pub struct Annotated {
    /// The graph with specs on its ports and a `reshard` for each `with-axes`.
    pub graph: Graph,
    /// The assignment of every name.
    pub table: ShardingTable,
    /// Facts that the user should know, each once. Under strict rules none of them is a problem: problems are errors
    /// there.
    pub diagnostics: Vec<Diagnostic>,
}

/// Gives every input a spec by the rules of its role, and turns every `with-axes`, in regions too, into the reshard
/// that the compute rules ask for. An output that shares its buffer with an input (`aliases` of (output, input)) gets
/// that input's spec, and an output with names gets the spec of its names; the others are replicated. A port that has a
/// spec already, as those of an imported module have, keeps it.
///
/// # Errors
/// The errors of [`Rules::resolve`](super::Rules::resolve), with the user's source line for a `with-axes`.
pub fn annotate(
    graph: &Graph,
    mesh: &Mesh,
    rules: &RuleSets,
    aliases: &[(usize, usize)],
) -> Result<Annotated, ShardingError> {
    let mut diagnostics = rules.check_mesh(mesh)?;
    // A misspelled name is reported first, because anything else that is wrong may follow from it.
    let mut of_names = rules.check_names(&named_dims(graph))?;
    rules.note_large_without_rule(parameters(graph), &mut of_names);
    diagnostics.extend(of_names);
    let mut pass = Annotating { mesh, rules, diagnostics, rows: Vec::new(), bodies: BodyCache::default() };
    let mut inputs = graph.input_info().to_vec();
    for (index, (info, &input)) in inputs.iter_mut().zip(graph.inputs()).enumerate() {
        let ty = graph.ty(input);
        let path = port_name(graph, "input", index, &graph.input_info()[index]);
        let assigned = match &info.spec {
            Some(stated) => Assigned { spec: stated.clone(), rules: Vec::new() },
            None if info.axes.is_empty() => Assigned { spec: Spec::replicated(ty.rank()), rules: Vec::new() },
            None => {
                let (names, found) = (texts(&info.axes), &mut pass.diagnostics);
                rules.get(info.role).assign(mesh, &path, &optional(&names), &ty.dims, found)?
            }
        };
        info.spec = Some(assigned.spec.clone());
        pass.note(RowKind::Input { path }, info.role, ty, &info.axes, assigned);
    }
    let mut annotated = pass.graph(graph, &inputs)?;
    let unused = rules.compute.check_axis_use(mesh, pass.rows.iter().map(|row| &row.spec))?;
    pass.diagnostics.extend(unused);
    let mut outputs = graph.output_info().to_vec();
    for (index, (info, ty)) in outputs.iter_mut().zip(graph.output_types()).enumerate() {
        let source = aliases.iter().find(|&&(output, _)| output == index).and_then(|&(_, input)| inputs.get(input));
        let of_source = source.and_then(|input| input.spec.clone()).filter(|spec| spec.rank() == ty.rank());
        let spec = info.spec.clone().or(of_source);
        info.spec = match spec {
            None if info.axes.len() == ty.rank() && ty.rank() > 0 => {
                let (names, path) = (texts(&info.axes), info.path.to_string());
                Some(rules.get(info.role).assign(mesh, &path, &optional(&names), &ty.dims, &mut pass.diagnostics)?.spec)
            }
            spec => spec,
        };
    }
    annotated.set_output_info(outputs);
    let diagnostics = Diagnostic::merged(pass.diagnostics);
    let table = ShardingTable { mesh: mesh.clone(), rules: rules.clone(), rows: pass.rows };
    Ok(Annotated { graph: annotated, table, diagnostics })
}

struct Annotating<'a> {
    mesh: &'a Mesh,
    rules: &'a RuleSets,
    diagnostics: Vec<Diagnostic>,
    /// Every tensor with a spec.
    rows: Vec<ShardingRow>,
    bodies: BodyCache,
}

/// The names as text, empty for a dimension without one.
fn texts(axes: &AxisNames) -> Vec<String> {
    axes.iter().map(|name| name.text()).collect()
}

fn optional(texts: &[String]) -> Vec<Option<&str>> {
    texts.iter().map(|text| (!text.is_empty()).then_some(text.as_str())).collect()
}

/// The path of an input or output, or its number.
fn port_name(graph: &Graph, port: &str, index: usize, info: &PortInfo) -> String {
    match &info.path {
        path if path.is_empty() => format!("{port} {index} of `{}`", graph.name()),
        path => path.to_string(),
    }
}

fn value_name(origin: Origin) -> String {
    let scope = origin.scope.path();
    let scope = if scope.is_empty() { String::new() } else { format!(" in scope `{scope}`") };
    let source = origin.source().map(|source| format!(" at {source}")).unwrap_or_default();
    format!("the value named{scope}{source}")
}

/// Every logical name of the program, on the first tensor that has it under the rules of a role: on ports, and on
/// values in any region that runs.
fn named_dims(graph: &Graph) -> Vec<NamedDim> {
    let (mut found, mut known) = (Vec::new(), FxHashSet::default());
    let mut add = |axes: &AxisNames, role: Role, tensor: &dyn Fn() -> String| {
        let new = axes.iter().filter(|name| !name.is_none() && known.insert((role, **name)));
        found.extend(new.map(|name| NamedDim { role, name: name.text(), tensor: tensor() }));
    };
    for (index, info) in graph.input_info().iter().enumerate() {
        add(&info.axes, info.role, &|| port_name(graph, "input", index, info));
    }
    for (index, info) in graph.output_info().iter().enumerate() {
        add(&info.axes, info.role, &|| port_name(graph, "output", index, info));
    }
    let (mut graphs, mut seen) = (vec![graph], FxHashSet::default());
    while let Some(graph) = graphs.pop() {
        for node in graph.nodes() {
            if let Op::WithAxes(axes) = node.op() {
                add(&axes.names, axes.role, &|| value_name(node.origin()));
            }
            let bodies = node.op().running_regions().map(|(_, body)| &**body);
            graphs.extend(bodies.filter(|body| seen.insert(std::ptr::from_ref(*body))));
        }
    }
    found
}

/// The parameters that a program takes: names, path and bytes of each.
fn parameters(graph: &Graph) -> impl Iterator<Item = (Vec<String>, String, usize)> {
    let inputs = graph.input_info().iter().zip(graph.inputs()).enumerate();
    inputs.filter(|(_, (info, _))| info.role == Role::Params).map(|(index, (info, &input))| {
        (texts(&info.axes), port_name(graph, "input", index, info), graph.ty(input).byte_count())
    })
}

impl Annotating<'_> {
    fn graph(&mut self, graph: &Graph, inputs: &[PortInfo]) -> Result<Graph, ShardingError> {
        let mut copy = GraphCopy::new(graph);
        graph.inputs().iter().zip(inputs).for_each(|(&input, info)| copy.input(input, info.clone()));
        for node in graph.nodes() {
            let op: Op = match node.op() {
                Op::WithAxes(axes) => {
                    let spec = self.named(axes, graph.ty(node.result()), node.origin())?;
                    let reshard = Reshard { keeps_partial: axes.keeps_partial, ..Reshard::new(spec) };
                    let operand = copy.map.get(node.operands()[0]);
                    // Two names in a row that both make a value lie the same way are one demand.
                    let before = copy.builder.graph().defining_node(operand);
                    if before.is_some_and(|before| matches!(before.op(), Op::Reshard(other) if *other == reshard)) {
                        copy.map.set(node.result(), operand);
                        continue;
                    }
                    reshard.into()
                }
                op => {
                    // A region that runs only in a derivative is no part of this program.
                    let body = |region: usize, body: &Arc<Graph>| match op.executions(region) {
                        Executions::InDerivative => Ok(body.clone()),
                        _ => self.body(body),
                    };
                    op.try_map_regions(body)?.unwrap_or_else(|| op.clone())
                }
            };
            copy.node_as(node, op);
        }
        Ok(copy.finish())
    }

    fn body(&mut self, body: &Arc<Graph>) -> Result<Arc<Graph>, ShardingError> {
        if let Some(done) = self.bodies.find(body) {
            return Ok(done);
        }
        let done = Arc::new(self.graph(body, body.input_info())?);
        Ok(self.bodies.insert(body, done))
    }

    /// The spec of a value by the names it is given.
    fn named(&mut self, op: &WithAxes, ty: &TensorType, origin: Origin) -> Result<Spec, ShardingError> {
        let axes = &op.names;
        let tensor = value_name(origin);
        let names = texts(axes);
        let found = &mut self.diagnostics;
        let rules = self.rules.get(op.role);
        let shared = op.as_divides.then(|| rules.clone().with_as_divides());
        let rules = shared.as_ref().unwrap_or(rules);
        let mut assigned = rules.assign(self.mesh, &tensor, &optional(&names), &ty.dims, found)?;
        if !op.beside.is_empty() {
            let beside = texts(&op.beside);
            let of_rows = self.rules.compute.axes_of_rows(self.mesh, &tensor, &optional(&beside))?;
            let kept = |axis: &MeshAxis| !of_rows.contains(axis);
            for dim in 0..ty.rank() {
                let axes: Axes = assigned.spec.dim(dim).iter().copied().filter(kept).collect();
                assigned.spec = assigned.spec.with_dim(dim, axes);
            }
        }
        let spec = assigned.spec.clone();
        self.note(RowKind::Named(origin), op.role, ty, axes, assigned);
        Ok(spec)
    }

    fn note(
        &mut self,
        kind: RowKind,
        role: Role,
        ty: &TensorType,
        axes: &AxisNames,
        Assigned { spec, rules }: Assigned,
    ) {
        self.rows.push(ShardingRow { kind, role, ty: ty.clone(), axes: axes.clone(), spec, by: rules });
    }
}
