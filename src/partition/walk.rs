//! The walk over a graph.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::linear::is_widening;
use super::manual::ManualAxes;
use super::plan::{Step, plan};
use super::reshard::reshard;
use super::{Fallback, PartitionError, shared, without};
use crate::ir::{Axes, DType, Graph, GraphBuilder, InternalError, NodeRef, OpError, Spec, TensorType, Value};
use crate::ops::{
    AxisIndex, BroadcastInDim, Class, Direction, Group, ManualBorder, Op, PartitionContext, PartitionPorts, Passage,
    Primitive, Select,
};
use crate::sharding::Shardings;
use meshloom_hlo::mesh::{Mesh, MeshAxis};

/// The program of one device, and the values that could not be split.
#[derive(Clone, Debug)]
pub struct LocalProgram {
    /// The graph, of local shapes.
    pub graph: Graph,
    /// Values that were joined because an op cannot work on their parts.
    pub fallbacks: Vec<Fallback>,
}

/// Partitions a graph whose values have these specs. Ports keep the specs that they have in `graph`; without one, an
/// input is whole on every device, and an output lies as propagation leaves it.
///
/// # Errors
/// A dimension does not divide by the axes of its spec.
pub fn partition(graph: &Graph, mesh: &Mesh, shardings: &Shardings) -> Result<LocalProgram, PartitionError> {
    let mut builder = GraphBuilder::new(graph.name());
    let mut program = WholeProgram { calls: Calls::default(), fallbacks: Vec::new(), manual: ManualAxes::of(graph) };
    let mut inputs = Vec::new();
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        let ty = graph.ty(input);
        let spec = info.spec.clone().unwrap_or_else(|| Spec::replicated(ty.rank()));
        let local = TensorType { dtype: ty.dtype, dims: spec.local_dims(mesh, &ty.dims)? };
        inputs.push((builder.input(local, info.clone()), spec));
    }
    let mut walk = Partitioning::new(mesh, graph, shardings, &mut builder, &mut program, &inputs);
    walk.nodes()?;
    let (mut outputs, mut ports) = (Vec::new(), graph.output_info().to_vec());
    for (&output, info) in graph.outputs().iter().zip(&mut ports) {
        let spec = info.spec.get_or_insert_with(|| shardings.spec(output).clone());
        outputs.push(walk.get(output, spec)?);
    }
    Ok(LocalProgram { graph: builder.finish(outputs, ports), fallbacks: program.fallbacks })
}

/// Functions partitioned so far, by address and the specs of their operands; with the specs of their results.
pub(super) type Calls = FxHashMap<(*const Graph, Vec<Spec>), (std::sync::Arc<Graph>, Vec<Spec>)>;

/// A local value, and the spec by which local values make up the global one.
pub(super) type Version = (Value, Spec);

/// The facts about a program that its graph and the bodies in it share.
pub(super) struct WholeProgram {
    pub(super) calls: Calls,
    pub(super) fallbacks: Vec<Fallback>,
    pub(super) manual: ManualAxes,
}

pub(super) struct Partitioning<'a, 'b> {
    pub(super) mesh: &'a Mesh,
    pub(super) graph: &'a Graph,
    pub(super) shardings: &'a Shardings,
    pub(super) builder: &'b mut GraphBuilder,
    pub(super) program: &'b mut WholeProgram,
    /// For each value of the global graph the versions that have been made of it, the first one first. Values that are
    /// made where they are needed (splats and iotas) have none.
    versions: Vec<SmallVec<[Version; 1]>>,
    /// How often each value is read: by nodes and as an output.
    pub(super) uses: Vec<u32>,
}

impl<'a, 'b> Partitioning<'a, 'b> {
    pub(super) fn new(
        mesh: &'a Mesh,
        graph: &'a Graph,
        shardings: &'a Shardings,
        builder: &'b mut GraphBuilder,
        program: &'b mut WholeProgram,
        inputs: &[Version],
    ) -> Partitioning<'a, 'b> {
        let mut versions = vec![SmallVec::new(); graph.value_count()];
        for (&input, version) in graph.inputs().iter().zip(inputs) {
            versions[input.index()].push(version.clone());
        }
        let mut uses = vec![0; graph.value_count()];
        let read = graph.nodes().flat_map(|node| node.operands()).chain(graph.outputs());
        read.for_each(|value| uses[value.index()] += 1);
        Partitioning { mesh, graph, shardings, builder, program, versions, uses }
    }

    pub(super) fn nodes(&mut self) -> Result<(), PartitionError> {
        for node in self.graph.nodes() {
            self.builder.set_origin(node.origin());
            match node.op() {
                op if is_made_in_place(op) => {}
                Op::Reshard(reshard) => {
                    let operand = node.operands()[0];
                    let mut wanted = match reshard.open.is_empty() {
                        true => reshard.spec.clone(),
                        false => self.shardings.spec(node.result()).clone(),
                    };
                    if let (true, Some((_, found))) = (reshard.keeps_partial, self.first(operand)) {
                        let used: Axes = wanted.used_axes().collect();
                        wanted = wanted.with_unreduced(without(found.unreduced(), &used));
                    }
                    let value = self.get(operand, &wanted)?;
                    self.set(node.result(), value, wanted.clone());
                    // It is the same value, so the versions of the operand serve as well.
                    let others = self.versions[operand.index()].clone();
                    let complete =
                        others.into_iter().filter(|(_, spec)| spec.unreduced().is_empty() && *spec != wanted);
                    self.versions[node.result().index()].extend(complete);
                }
                Op::ManualBorder(border) => self.border(node, border)?,
                op => match (op.region_kind(), op.as_primitive()) {
                    (Some(region), _) => self.region(node, region)?,
                    (None, Some(primitive)) => self.primitive(node, primitive)?,
                    (None, None) => {
                        return Err(InternalError::new(op.name(), "a partitioning rule").at(node.origin()).into());
                    }
                },
            }
        }
        Ok(())
    }

    /// A value enters a manual region or leaves it: what a device holds of it is the same on both sides.
    fn border(&mut self, node: NodeRef<'_>, border: &ManualBorder) -> Result<(), PartitionError> {
        let operand = node.operands()[0];
        let (wanted, result) = match border.passage {
            Passage::Enter => {
                let part = self.shardings.spec(node.result()).clone();
                (border.whole_of(&part), part)
            }
            Passage::Leave => {
                let part = self.spec_at_hand(operand, self.shardings.spec(operand)).with_unreduced([]);
                let whole = border.whole_of(&part);
                (part, whole)
            }
        };
        let local = self.get(operand, &wanted)?;
        let expected = result.local_dims(self.mesh, &border.dims)?;
        if self.builder.ty(local).dims != expected {
            let expected = format!("parts of {expected:?}, not of {:?}", self.builder.ty(local).dims);
            return Err(InternalError::new("manual-border", expected).at(node.origin()).into());
        }
        self.set(node.result(), local, result);
        Ok(())
    }

    pub(super) fn set(&mut self, value: Value, local: Value, spec: Spec) {
        self.versions[value.index()].push((local, spec));
    }

    /// The first version of a value; `None` of one that is made where it is needed.
    pub(super) fn first(&self, value: Value) -> Option<&Version> {
        self.versions[value.index()].first()
    }

    pub(super) fn versions(&self, value: Value) -> &[Version] {
        &self.versions[value.index()]
    }

    /// A value in a spec, from the version from which it is cheapest.
    pub(super) fn get(&mut self, value: Value, spec: &Spec) -> Result<Value, PartitionError> {
        if let Some((local, _)) = self.versions[value.index()].iter().find(|(_, other)| other == spec) {
            return Ok(*local);
        }
        let ty = self.graph.ty(value);
        if let Some((node, primitive)) = self.made_in_place(value) {
            let local = self.make(node, primitive, spec)?;
            self.set(value, local, spec.clone());
            return Ok(local);
        }
        let again = match self.spread_again(value, spec)? {
            None => self.get_narrow(value, spec)?,
            again => again,
        };
        if let Some(local) = again {
            self.set(value, local, spec.clone());
            return Ok(local);
        }
        // A value that is not a partial sum becomes one on the way, if that is asked for.
        let asked = |from: &Spec| spec.clone().with_unreduced(shared(spec.unreduced(), from.unreduced()));
        let plans = self.versions[value.index()].iter().map(|(local, from)| {
            let target = asked(from);
            Ok((plan(self.mesh, &ty.dims, ty.dtype.byte_count(), from, &target)?, *local, target))
        });
        let plans: SmallVec<[_; 1]> =
            plans.collect::<Result<_, InternalError>>().map_err(|error| self.located(error, value))?;
        let cheapest = plans.into_iter().min_by_key(|(plan, ..)| (plan.bytes_sent, plan.steps.len()));
        let (plan, local, reached) = cheapest
            .ok_or_else(|| self.located(InternalError::new(value, "a local value of what has been computed"), value))?;
        // A collective that adds up a sum belongs to the node that made the parts; one that moves a value, to the node
        // that wants it elsewhere.
        let reduces = plan.steps.iter().any(|step| matches!(step, Step::AllReduce { .. } | Step::ReduceScatter { .. }));
        let outer = self.builder.origin();
        if let (true, Some(node)) = (reduces, self.graph.defining_node(value)) {
            self.builder.set_origin(node.origin());
        }
        let mut local = reshard(self.builder, self.mesh, local, &plan)?;
        self.builder.set_origin(outer);
        let missing = without(spec.unreduced(), reached.unreduced());
        if !missing.is_empty() {
            local = self.on_first(local, &missing, 0.0)?;
        }
        self.set(value, local, spec.clone());
        Ok(local)
    }

    /// The node of a value that is made where it is needed, as it has no operands.
    fn made_in_place(&self, value: Value) -> Option<(NodeRef<'a>, &'a dyn Primitive)> {
        let node = self.graph.defining_node(value).filter(|node| is_made_in_place(node.op()))?;
        Some((node, node.op().as_primitive()?))
    }

    /// An error about a value, with the user's line that it comes from.
    fn located(&self, error: InternalError, value: Value) -> InternalError {
        error.at(self.graph.defining_node(value).map_or_else(|| self.builder.origin(), |node| node.origin()))
    }

    /// A value that has been spread out along dimensions, spread out once more in another spec, so that only its
    /// operand is moved. The result is `None` if that would move as much.
    fn spread_again(&mut self, value: Value, spec: &Spec) -> Result<Option<Value>, PartitionError> {
        let Some(node) = self.graph.defining_node(value) else { return Ok(None) };
        let Op::BroadcastInDim(broadcast) = node.op() else { return Ok(None) };
        if !spec.unreduced().is_empty() || self.versions(value).is_empty() {
            return Ok(None);
        }
        let operand = node.operands()[0];
        let source = Spec::new(broadcast.mapping.iter().map(|&dim| spec.dim(dim).into()));
        let cost = |value: Value, spec: &Spec| -> Result<u64, InternalError> {
            let ty = self.graph.ty(value);
            let plans = self.versions(value).iter();
            let plans = plans.map(|(_, from)| plan(self.mesh, &ty.dims, ty.dtype.byte_count(), from, spec));
            let costs: SmallVec<[u64; 1]> = plans.map(|plan| Ok(plan?.bytes_sent)).collect::<Result<_, _>>()?;
            // A value without versions is made where it is needed, and moves nothing.
            Ok(costs.into_iter().min().unwrap_or(0))
        };
        if self.graph.ty(operand).rank() > 0 && cost(operand, &source)? >= cost(value, spec)? {
            return Ok(None);
        }
        let local = self.get(operand, &source)?;
        let dims = spec.local_dims(self.mesh, &self.graph.ty(value).dims)?;
        let op = BroadcastInDim { dims, mapping: broadcast.mapping.clone() };
        Ok(Some(self.builder.push1(op, &[local])?))
    }

    /// A sum over devices of widened numbers, taken before they are widened, so that half as much is moved.
    fn get_narrow(&mut self, value: Value, spec: &Spec) -> Result<Option<Value>, PartitionError> {
        let Some(node) = self.graph.defining_node(value) else { return Ok(None) };
        let &[operand] = node.operands() else { return Ok(None) };
        let Op::Convert(convert) = node.op() else { return Ok(None) };
        let (Some((_, wide)), Some((_, narrow))) = (self.first(value), self.first(operand)) else { return Ok(None) };
        let sums = wide.unreduced().iter().any(|axis| !spec.unreduced().contains(axis));
        if !sums || wide != narrow || !is_widening(self.graph.ty(operand), convert.0) {
            return Ok(None);
        }
        let local = self.get(operand, spec)?;
        Ok(Some(self.builder.push1(convert.clone(), &[local])?))
    }

    /// The local part of a splat or an iota.
    fn make(&mut self, node: NodeRef<'_>, primitive: &dyn Primitive, spec: &Spec) -> Result<Value, PartitionError> {
        let ty = self.graph.ty(node.result());
        let outer = self.builder.origin();
        self.builder.set_origin(node.origin());
        let ports = PartitionPorts {
            operands: &[],
            operand_types: &[],
            operand_specs: &[],
            result_types: &[ty],
            result_specs: std::slice::from_ref(spec),
            result_dims: &[spec.local_dims(self.mesh, &ty.dims)?],
        };
        let made = PartitionContext::results(self.builder, self.mesh, primitive, ports)?[0];
        let made = self.on_first(made, spec.unreduced(), 0.0)?;
        self.builder.set_origin(outer);
        Ok(made)
    }

    /// The value on the first device along `axes`, and `other` on the others.
    pub(super) fn on_first(&mut self, value: Value, axes: &[MeshAxis], other: f64) -> Result<Value, OpError> {
        if axes.is_empty() || self.builder.graph().is_zero(value) && other == 0.0 {
            return Ok(value);
        }
        let rank = self.builder.push1(AxisIndex { group: Group::new(self.mesh, axes) }, &[])?;
        let zero = self.builder.splat(TensorType::scalar(DType::S32), 0.0);
        let first = self.builder.compare(Direction::Eq, rank, zero)?;
        let dims = self.builder.ty(value).dims.clone();
        let first = self.builder.broadcast(first, &dims, &[])?;
        let nothing = self.builder.splat_like(value, other);
        self.builder.push1(Select, &[first, value, nothing])
    }

    /// The spec in which a value is at hand; `otherwise` for a value that is made where it is needed.
    pub(super) fn spec_at_hand(&self, value: Value, otherwise: &Spec) -> Spec {
        self.first(value).map_or(otherwise, |(_, spec)| spec).clone()
    }

    /// Enters the local results of a node, with their specs.
    pub(super) fn set_results(
        &mut self,
        node: NodeRef<'_>,
        locals: impl IntoIterator<Item = Value>,
        specs: impl IntoIterator<Item = Spec>,
    ) {
        for ((result, local), spec) in node.results().zip(locals).zip(specs) {
            self.set(result, local, spec);
        }
    }
}

/// Whether an op's result is made where it is needed, as the op has no operands.
fn is_made_in_place(op: &Op) -> bool {
    let facts = op.facts();
    facts.class == Class::Source && facts.is_made_anywhere
}
