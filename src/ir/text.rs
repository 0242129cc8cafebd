//! The text form of graphs.
//!
//! ```text
//! loss(%0: f32[4,8] "x", %1: f32[8] "w" {embed}) {
//!   %2 = multiply %0, %3                           : f32[4,8]
//!   return %2 "out"
//! }
//! ```
//!
//! Values print as `%index`; attributes stand in braces after the op; the bodies of region ops follow the graph that uses
//! them, each once, under the names `@0`, `@1`, ...

use std::fmt::{self, Write};
use std::sync::Arc;

use super::Role;
use super::graph::{Graph, NodeRef, PortInfo};
use crate::ops::Op;

/// How a graph is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphTextOptions {
    /// Adds the user's source line and scope path to each node.
    pub origins: bool,
}

impl Graph {
    /// The text form.
    pub fn to_text(&self, options: GraphTextOptions) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write_all(&mut text, self, options);
        text
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text(GraphTextOptions::default()))
    }
}

fn write_all(out: &mut String, graph: &Graph, options: GraphTextOptions) -> fmt::Result {
    let mut bodies: Vec<Arc<Graph>> = Vec::new();
    write_graph(out, graph, None, &mut bodies, options)?;
    let mut next = 0;
    while let Some(body) = bodies.get(next).cloned() {
        out.push('\n');
        write_graph(out, &body, Some(next), &mut bodies, options)?;
        next += 1;
    }
    Ok(())
}

fn write_graph(
    out: &mut String,
    graph: &Graph,
    number: Option<usize>,
    bodies: &mut Vec<Arc<Graph>>,
    options: GraphTextOptions,
) -> fmt::Result {
    if let Some(number) = number {
        write!(out, "@{number} ")?;
    }
    write!(out, "{}(", graph.name())?;
    for (index, (&value, info)) in graph.inputs().iter().zip(graph.input_info()).enumerate() {
        write!(out, "{}{value}: {}", if index > 0 { ", " } else { "" }, graph.ty(value))?;
        write_port(out, info)?;
    }
    out.push_str(") {\n");
    for node in graph.nodes() {
        write_node(out, graph, node, bodies, options)?;
    }
    out.push_str("  return");
    for (index, (value, info)) in graph.outputs().iter().zip(graph.output_info()).enumerate() {
        write!(out, "{} {value}", if index > 0 { "," } else { "" })?;
        write_port(out, info)?;
    }
    out.push_str("\n}\n");
    Ok(())
}

fn write_port(out: &mut String, info: &PortInfo) -> fmt::Result {
    if !info.path.is_empty() {
        write!(out, " {:?}", info.path)?;
    }
    if !info.axes.is_empty() {
        let names: Vec<String> =
            info.axes.iter().map(|name| if name.is_none() { "_".to_owned() } else { name.text() }).collect();
        write!(out, " {{{}}}", names.join(", "))?;
    }
    Ok(())
}

fn write_node(
    out: &mut String,
    graph: &Graph,
    node: NodeRef<'_>,
    bodies: &mut Vec<Arc<Graph>>,
    options: GraphTextOptions,
) -> fmt::Result {
    let results: Vec<String> = node.results().map(|value| value.to_string()).collect();
    write!(out, "  {} = {}", results.join(", "), node.op().name())?;
    for (index, value) in node.operands().iter().enumerate() {
        write!(out, "{}{value}", if index > 0 { ", " } else { " " })?;
    }
    write_attributes(out, node.op())?;
    for body in node.op().regions() {
        let known = bodies.iter().position(|other| Arc::ptr_eq(other, body));
        let number = known.unwrap_or_else(|| {
            bodies.push(body.clone());
            bodies.len() - 1
        });
        write!(out, " @{number}")?;
    }
    let types: Vec<String> = node.results().map(|value| graph.ty(value).to_string()).collect();
    write!(out, " : {}", types.join(", "))?;
    if options.origins {
        let origin = node.origin();
        write!(out, "  // {}", origin.scope.path())?;
        if let Some(location) = origin.location {
            write!(out, " {}:{}", location.file(), location.line())?;
        }
    }
    out.push('\n');
    Ok(())
}

fn write_attributes(out: &mut String, op: &Op) -> fmt::Result {
    match op {
        Op::AllGather(op) => write!(out, " {{{}, dim={}}}", op.group, op.dim),
        Op::AllReduce(op) => write!(out, " {{{}, {}}}", op.group, op.kind.combiner().name()),
        Op::AllToAll(op) => write!(out, " {{{}, dim={}}}", op.group, op.dim),
        Op::AxisIndex(op) => write!(out, " {{{}}}", op.group),
        Op::CollectivePermute(op) => {
            let pairs: Vec<String> = op.pairs.iter().map(|(from, to)| format!("{from}->{to}")).collect();
            write!(out, " {{{}, {}}}", op.group, pairs.join(" "))
        }
        Op::ReduceScatter(op) => write!(out, " {{{}, dim={}}}", op.group, op.dim),
        Op::ArgReduce(op) => write!(out, " {{axis={}}}", op.axis),
        Op::ArgReduceWindow(op) => write_window(out, &op.window),
        Op::BroadcastInDim(op) => write!(out, " {{axes={:?}}}", op.mapping),
        Op::Compare(op) => write!(out, " {{{}}}", op.0.name()),
        Op::Concatenate(op) => write!(out, " {{axis={}}}", op.axis),
        Op::Constant(op) if op.0.ty().element_count() <= 16 => write!(out, " {:?}", op.0.to_f64_vec()),
        Op::Convolution(op) => {
            let windows: Vec<String> = op
                .windows
                .iter()
                .map(|window| {
                    let (low, high) = (window.padding_low, window.padding_high);
                    let dilation = format!("{}/{}", window.input_dilation, window.kernel_dilation);
                    format!("stride={} padding={low}_{high} dilation={dilation}", window.stride)
                })
                .collect();
            write!(out, " {{groups={}, {}}}", op.feature_groups, windows.join("; "))
        }
        Op::CustomCall(op) => {
            write!(out, " {:?}{}", op.target, if op.has_side_effect { " {side effect}" } else { "" })
        }
        Op::Cumulative(op) => write!(out, " {{axis={}{}}}", op.axis, if op.reverse { ", reverse" } else { "" }),
        Op::DotGeneral(op) => {
            let dims = &op.dims;
            write!(out, " {{contract={:?}x{:?}", dims.lhs_contract, dims.rhs_contract)?;
            if !dims.lhs_batch.is_empty() {
                write!(out, ", batch={:?}x{:?}", dims.lhs_batch, dims.rhs_batch)?;
            }
            out.push('}');
            Ok(())
        }
        Op::Gather(op) => write!(out, " {{sizes={:?}, map={:?}}}", op.slice_sizes, op.dims.start_index_map),
        Op::Iota(op) => write!(out, " {{axis={}}}", op.axis),
        Op::Named(op) => write!(out, " {:?}", op.0),
        Op::Pad(op) => {
            let dims: Vec<String> =
                op.padding.iter().map(|dim| format!("{}_{}_{}", dim.low, dim.high, dim.interior)).collect();
            write!(out, " {{{}}}", dims.join("x"))
        }
        Op::RaggedDot(op) => write!(out, " {{{:?}, batch={}}}", op.mode, op.batch_count),
        Op::Reduce(op) => write!(out, " {{axes={:?}}}", op.axes),
        Op::ReduceWindow(op) => write_window(out, &op.window),
        Op::Reshard(op) if op.keeps_partial => write!(out, " {:?} partial", op.spec),
        Op::Reshard(op) => write!(out, " {:?}", op.spec),
        Op::Reverse(op) => write!(out, " {{axes={:?}}}", op.axes),
        Op::Roll(op) => write!(out, " {{axis={}, shift={}}}", op.axis, op.shift),
        Op::Scan(op) => write!(
            out,
            " {{length={}, invariants={}, carries={}{}{}}}",
            op.length,
            op.invariant_count,
            op.carry_count,
            if op.reverse { ", reverse" } else { "" },
            if op.unroll > 1 { format!(", unroll={}", op.unroll) } else { String::new() }
        ),
        Op::Scatter(op) => write!(out, " {{map={:?}}}", op.dims.start_index_map),
        Op::Slice(op) => {
            let dims: Vec<String> =
                op.ranges.iter().map(|range| format!("{}:{}:{}", range.start, range.limit, range.stride)).collect();
            write!(out, " {{{}}}", dims.join(", "))
        }
        Op::Sort(op) => {
            let order = if op.descending { ", descending" } else { "" };
            write!(out, " {{axis={}, keys={}{order}}}", op.axis, op.key_count)
        }
        Op::Splat(op) => write!(out, " {}", op.number()),
        Op::Transpose(op) => write!(out, " {{{:?}}}", op.permutation),
        Op::While(op) => write!(out, " {{invariants={}}}", op.invariant_count),
        Op::WithAxes(op) => {
            write!(out, " {:?}", op.names)?;
            if !op.gathered.is_empty() {
                write!(out, " gathered={:?}", op.gathered)?;
            }
            if op.keeps_partial {
                out.write_str(" partial")?;
            }
            match op.role {
                Role::Compute => Ok(()),
                role => write!(out, " role={role:?}"),
            }
        }
        Op::Checkpoint(op) => write!(out, " {{{:?}}}", op.policy),
        // These have no attributes, or show them in their types.
        Op::Barrier(_)
        | Op::Binary(_)
        | Op::BitcastConvert(_)
        | Op::Call(_)
        | Op::Cond(_)
        | Op::Clamp(_)
        | Op::Constant(_)
        | Op::Convert(_)
        | Op::CustomVjp(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice(_)
        | Op::MoveTo(_)
        | Op::Reshape(_)
        | Op::Select(_)
        | Op::StopGradient(_)
        | Op::Threefry(_)
        | Op::TopK(_)
        | Op::Unary(_) => Ok(()),
    }
}

/// Windows as HLO writes them: `size=3x2 stride=1x2 pad=0_0x1_1 lhs_dilate=1x2 rhs_dilate=1x1`, without what is 1 or 0.
fn write_window(out: &mut String, window: &[crate::ops::WindowDim]) -> fmt::Result {
    let list = |number: fn(&crate::ops::WindowDim) -> String| window.iter().map(number).collect::<Vec<_>>().join("x");
    write!(out, " {{size={}", list(|dim| dim.size.to_string()))?;
    if window.iter().any(|dim| dim.stride != 1) {
        write!(out, " stride={}", list(|dim| dim.stride.to_string()))?;
    }
    if window.iter().any(|dim| (dim.low, dim.high) != (0, 0)) {
        write!(out, " pad={}", list(|dim| format!("{}_{}", dim.low, dim.high)))?;
    }
    if window.iter().any(|dim| dim.base_dilation != 1) {
        write!(out, " lhs_dilate={}", list(|dim| dim.base_dilation.to_string()))?;
    }
    if window.iter().any(|dim| dim.window_dilation != 1) {
        write!(out, " rhs_dilate={}", list(|dim| dim.window_dilation.to_string()))?;
    }
    out.push('}');
    Ok(())
}
