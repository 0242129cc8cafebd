//! The sharding pass: logical axes become specs.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Assigned, Axes, Diagnostic, Mesh, MeshAxis, RowKind, RuleSets, ShardingError, ShardingRow, ShardingTable, Spec,
};
use crate::ir::{AxisNames, Graph, GraphBuilder, Origin, PortInfo, TensorType, ValueMap};
use crate::ops::{Op, Reshard, WithAxes};

/// What the sharding pass found besides the graph.
#[derive(Clone, Debug)]
pub struct Annotated {
    /// The graph with specs on its ports and a `reshard` for each `with-axes`.
    pub graph: Graph,
    /// What became of every name.
    pub table: ShardingTable,
    /// Warnings, each once; empty under strict rules, where they are errors.
    pub diagnostics: Vec<Diagnostic>,
}

/// Gives every input a spec by the rules of its role, and turns every `with-axes`, in regions too, into the reshard that
/// the compute rules ask for. An output that shares its buffer with an input (`aliases` of (output, input)) gets that
/// input's spec, one with names that of its names; the others are replicated.
///
/// # Errors
/// What [`Rules::resolve`](super::Rules::resolve) refuses, with the user's source line for a `with-axes`.
pub fn annotate(
    graph: &Graph,
    mesh: &Mesh,
    rules: &RuleSets,
    aliases: &[(usize, usize)],
) -> Result<Annotated, ShardingError> {
    let diagnostics = rules.check_mesh(mesh)?;
    let mut pass = Pass { mesh, rules, diagnostics, rows: Vec::new(), bodies: FxHashMap::default() };
    let mut inputs = graph.input_info().to_vec();
    for (index, (info, &input)) in inputs.iter_mut().zip(graph.inputs()).enumerate() {
        let ty = graph.ty(input);
        let path = match info.path.is_empty() {
            true => format!("input {index} of `{}`", graph.name()),
            false => info.path.to_string(),
        };
        let assigned = if info.axes.is_empty() {
            Assigned { spec: Spec::replicated(ty.rank()), rules: Vec::new() }
        } else {
            let (names, found) = (texts(&info.axes), &mut pass.diagnostics);
            rules.get(info.role).assign(mesh, &path, &optional(&names), &ty.dims, found)?
        };
        info.spec = Some(assigned.spec.clone());
        pass.note(RowKind::Input { path, role: info.role }, ty, &info.axes, assigned);
    }
    let mut annotated = pass.graph(graph, &inputs)?;
    let unused = rules.compute.check_axis_use(mesh, pass.rows.iter().map(|row| &row.spec))?;
    pass.diagnostics.extend(unused);
    let mut outputs = graph.output_info().to_vec();
    for (index, (info, ty)) in outputs.iter_mut().zip(graph.output_types()).enumerate() {
        let source = aliases.iter().find(|&&(output, _)| output == index).and_then(|&(_, input)| inputs.get(input));
        let spec = source.and_then(|input| input.spec.clone()).filter(|spec| spec.rank() == ty.rank());
        info.spec = match spec {
            None if info.axes.len() == ty.rank() && ty.rank() > 0 => {
                let (names, path) = (texts(&info.axes), info.path.to_string());
                Some(rules.get(info.role).assign(mesh, &path, &optional(&names), &ty.dims, &mut pass.diagnostics)?.spec)
            }
            spec => spec,
        };
    }
    annotated.set_output_info(outputs);
    let mut diagnostics: Vec<Diagnostic> = Vec::new();
    for diagnostic in pass.diagnostics {
        if !diagnostics.contains(&diagnostic) {
            diagnostics.push(diagnostic);
        }
    }
    let table = ShardingTable { mesh: mesh.clone(), rules: rules.clone(), rows: pass.rows };
    Ok(Annotated { graph: annotated, table, diagnostics })
}

struct Pass<'a> {
    mesh: &'a Mesh,
    rules: &'a RuleSets,
    diagnostics: Vec<Diagnostic>,
    /// Every tensor with a spec.
    rows: Vec<ShardingRow>,
    /// Bodies done already, so that a function called twice stays one. The originals are held so that their addresses
    /// stay theirs.
    bodies: FxHashMap<*const Graph, (Arc<Graph>, Arc<Graph>)>,
}

/// The names as text; none for a dimension without one.
fn texts(axes: &AxisNames) -> Vec<String> {
    axes.iter().map(|name| name.text()).collect()
}

fn optional(texts: &[String]) -> Vec<Option<&str>> {
    texts.iter().map(|text| (!text.is_empty()).then_some(text.as_str())).collect()
}

impl Pass<'_> {
    fn graph(&mut self, graph: &Graph, inputs: &[PortInfo]) -> Result<Graph, ShardingError> {
        let mut builder = GraphBuilder::new(graph.name());
        let mut map = ValueMap::new(graph);
        for (&input, info) in graph.inputs().iter().zip(inputs) {
            let value = builder.input(graph.ty(input).clone(), info.clone());
            map.set(input, value);
        }
        for node in graph.nodes() {
            let op: Op = match node.op() {
                Op::WithAxes(axes) => {
                    let spec = self.named(axes, graph.ty(node.result()), node.origin())?;
                    let reshard = Reshard { spec, keeps_partial: axes.keeps_partial };
                    let operand = map.get(node.operands()[0]);
                    // Two names in a row for what lies the same way by both are one demand.
                    let before = builder.graph().defining_node(operand);
                    if before.is_some_and(|before| matches!(before.op(), Op::Reshard(other) if *other == reshard)) {
                        map.set(node.result(), operand);
                        continue;
                    }
                    reshard.into()
                }
                Op::Scan(op) => {
                    let mut op = op.clone();
                    op.body = self.body(&op.body)?;
                    op.into()
                }
                Op::Call(op) => {
                    let mut op = op.clone();
                    op.function = self.body(&op.function)?;
                    op.into()
                }
                Op::Checkpoint(op) => {
                    let mut op = op.clone();
                    op.body = self.body(&op.body)?;
                    op.into()
                }
                Op::Cond(op) => {
                    let mut op = op.clone();
                    for branch in &mut op.branches {
                        *branch = self.body(branch)?;
                    }
                    op.into()
                }
                Op::While(op) => {
                    let mut op = op.clone();
                    op.condition = self.body(&op.condition)?;
                    op.body = self.body(&op.body)?;
                    op.into()
                }
                Op::CustomVjp(op) => {
                    let mut op = op.clone();
                    op.primal = self.body(&op.primal)?;
                    op.into()
                }
                op => op.clone(),
            };
            builder.copy_node_as(graph, node, op, &mut map);
        }
        let outputs = graph.outputs().iter().map(|&value| map.get(value)).collect();
        Ok(builder.finish(outputs, graph.output_info().to_vec()))
    }

    fn body(&mut self, body: &Arc<Graph>) -> Result<Arc<Graph>, ShardingError> {
        if let Some((_, done)) = self.bodies.get(&Arc::as_ptr(body)) {
            return Ok(done.clone());
        }
        let done = Arc::new(self.graph(body, body.input_info())?);
        self.bodies.insert(Arc::as_ptr(body), (body.clone(), done.clone()));
        Ok(done)
    }

    /// The spec of a value by the names it is given.
    fn named(&mut self, op: &WithAxes, ty: &TensorType, origin: Origin) -> Result<Spec, ShardingError> {
        let axes = &op.names;
        let mut tensor = format!("the value named in scope `{}`", origin.scope.path());
        if let Some(location) = origin.location {
            tensor = format!("{tensor} at {}:{}", location.file(), location.line());
        }
        let names = texts(axes);
        let found = &mut self.diagnostics;
        let mut assigned = self.rules.get(op.role).assign(self.mesh, &tensor, &optional(&names), &ty.dims, found)?;
        let mesh = self.mesh;
        let gathered: Vec<String> = texts(&op.gathered);
        let kept = |axis: &MeshAxis| !gathered.iter().any(|name| name == mesh.name(*axis));
        for dim in 0..ty.rank() {
            let axes: Axes = assigned.spec.dim(dim).iter().copied().filter(kept).collect();
            assigned.spec = assigned.spec.with_dim(dim, axes);
        }
        let spec = assigned.spec.clone();
        self.note(RowKind::Named(origin), ty, axes, assigned);
        Ok(spec)
    }

    fn note(&mut self, kind: RowKind, ty: &TensorType, axes: &AxisNames, Assigned { spec, rules }: Assigned) {
        self.rows.push(ShardingRow { kind, ty: ty.clone(), axes: axes.clone(), spec, by: rules });
    }
}
