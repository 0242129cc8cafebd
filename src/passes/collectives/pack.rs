//! Transfers that run beside a loop, as one buffer.

use rustc_hash::FxHashSet;

use crate::ir::{BodyCache, DType, Graph, GraphBuilder, GraphCopy, NodeRef, Phase, TensorType, Value};
use crate::ops::{AllGather, Barrier, Concatenate, Devices, Group, Op, ReduceScatter, Transpose};
use meshloom_hlo::CollectiveKind;

/// The lanes of a TPU's vector unit: a row of a buffer has a multiple of them.
const LANES: usize = 128;

/// The most columns of a buffer: so many that libtpu keeps the reduce-scatter of most matrices of such rows as it is
/// (see [`ReduceScatter::form_of_one`]), and so few that parts are hardly padded.
const MOST_COLUMNS: usize = 8192;

/// Makes one all-gather, or one reduce-scatter, of all that can run beside a loop, in every region by itself. Its
/// members have the same kind, group, element type and phase; their dimensions may differ. A collective can run beside
/// a loop of known length if it stands in front of it, behind the loop before, and the loop does not depend on it; and
/// if the loop itself has no collectives but permutes. The collectives of a busy loop take the same SparseCores: libtpu
/// 0.0.51 then waits for the transfer under way before the loop begins, and the copies would be in vain.
///
/// An asynchronous collective that is under way while a loop runs is hidden. Where a plugin has only one under way at a
/// time, as libtpu has on SparseCores, one loop hides one collective, so the collectives that could run beside it have
/// to be one. The price is copies: sent values are put together, and received values are taken apart. `limit` is the
/// most bytes, of operands or of results, that one buffer has; the graph is left as it is if it is 0.
///
/// Parts stand one after the other in a matrix, each padded to whole rows. No gathered value changes; sums are those of
/// the back end's reduce-scatter. No transfer is packed beside a loop without products, which would hide none.
pub fn pack_collectives(graph: &Graph, limit: u64) -> Graph {
    if limit == 0 { graph.clone() } else { pack(graph, limit, &mut BodyCache::default()) }
}

fn pack(graph: &Graph, limit: u64, bodies: &mut BodyCache) -> Graph {
    let mut copy = GraphCopy::with_inputs(graph);
    let mut segment: Vec<NodeRef<'_>> = Vec::new();
    for node in graph.nodes() {
        let plan = match node.op().trip_count() {
            Some(_) => plan(graph, &segment, node, limit),
            None => Packing::default(),
        };
        if !plan.packs.is_empty() {
            write_beside(&mut copy, &segment, &plan, node, limit, bodies);
            segment.clear();
            continue;
        }
        if node.op().trip_count().is_some() {
            segment.drain(..).for_each(|node| write_node(&mut copy, node, limit, bodies));
        }
        segment.push(node);
    }
    segment.into_iter().for_each(|node| write_node(&mut copy, node, limit, bodies));
    copy.finish()
}

/// The packs of the nodes in front of a loop; the default has none.
#[derive(Default)]
struct Packing<'g> {
    /// The collectives that become one, a list for each pack.
    packs: Vec<Vec<Transfer<'g>>>,
    /// The nodes that depend on the packs, which come after them.
    later: FxHashSet<u32>,
}

/// A collective that moves parts of one value.
#[derive(Clone, Copy)]
struct Transfer<'g> {
    node: NodeRef<'g>,
    operand: Value,
    result: Value,
    group: &'g Group,
    dim: usize,
    gathers: bool,
}

impl<'g> Transfer<'g> {
    fn of(node: NodeRef<'g>) -> Option<Transfer<'g>> {
        let (group, dim, gathers) = match node.op() {
            Op::AllGather(AllGather { group, dim }) => (group, *dim, true),
            Op::ReduceScatter(ReduceScatter { group, dim }) => (group, *dim, false),
            _ => return None,
        };
        let (&[operand], result) = (node.operands(), node.results().next()?) else { return None };
        Some(Transfer { node, operand, result, group, dim, gathers })
    }

    /// The properties that transfers of one buffer share.
    fn key(&self, graph: &Graph) -> (&'g Group, bool, DType, Phase) {
        (self.group, self.gathers, graph.ty(self.operand).dtype, self.node.origin().phase)
    }

    /// The number of parts that stand one below the other before the exchange, and after it.
    fn parts(&self) -> (usize, usize) {
        if self.gathers { (1, self.group.size) } else { (self.group.size, 1) }
    }

    /// The type of the part that each device has when the value is cut.
    fn part<'t>(&self, graph: &'t Graph) -> &'t TensorType {
        graph.ty(if self.gathers { self.operand } else { self.result })
    }

    /// The type of the value of all devices.
    fn whole<'t>(&self, graph: &'t Graph) -> &'t TensorType {
        graph.ty(if self.gathers { self.result } else { self.operand })
    }
}

/// Plans the packs of a segment, given the loop behind it.
fn plan<'g>(graph: &'g Graph, segment: &[NodeRef<'g>], repeated: NodeRef<'g>, limit: u64) -> Packing<'g> {
    let count = segment.iter().filter(|&&node| Transfer::of(node).is_some()).count();
    if count < 2 || is_busy(repeated.op()) || !multiplies(repeated.op()) {
        return Packing::default();
    }
    let mut needed: FxHashSet<Value> = repeated.operands().iter().copied().collect();
    for node in segment.iter().rev() {
        if node.results().any(|result| needed.contains(&result)) {
            needed.extend(node.operands());
        }
    }
    // A node that depends on a member is none itself: it could not be ready together with it.
    let mut packs: Vec<Vec<Transfer<'g>>> = Vec::new();
    let mut dependent: FxHashSet<Value> = FxHashSet::default();
    for &node in segment {
        let is_dependent = node.operands().iter().any(|operand| dependent.contains(operand));
        let member = Transfer::of(node).filter(|found| !is_dependent && !needed.contains(&found.result));
        if let Some(member) = member {
            let bytes =
                |pack: &[Transfer<'_>]| -> u64 { pack.iter().map(|of| of.whole(graph).byte_count() as u64).sum() };
            let has_room = |pack: &Vec<Transfer<'_>>| {
                pack[0].key(graph) == member.key(graph) && bytes(pack).saturating_add(bytes(&[member])) <= limit
            };
            match packs.iter_mut().find(|pack| has_room(pack)) {
                Some(pack) => pack.push(member),
                None => packs.push(vec![member]),
            }
        }
        if member.is_some() || is_dependent {
            dependent.extend(node.results());
        }
    }
    packs.retain(|pack| pack.len() > 1);
    let mut later = FxHashSet::default();
    let mut dependent: FxHashSet<Value> = packs.iter().flatten().map(|member| member.result).collect();
    for node in segment {
        if !node.operands().iter().any(|operand| dependent.contains(operand)) {
            continue;
        }
        // Nodes that have effects stay in their order.
        if node.op().has_side_effect() {
            return Packing::default();
        }
        dependent.extend(node.results());
        later.insert(node.id.index() as u32);
    }
    Packing { packs, later }
}

/// Whether the bodies of an op have collectives other than permutes.
fn is_busy(op: &Op) -> bool {
    let exchanges = |op: &Op| match op.facts().devices {
        Devices::Exchange(kind, _) => kind != CollectiveKind::CollectivePermute,
        Devices::Alone | Devices::Rank(_) | Devices::Unknown => false,
    };
    op.regions().any(|body| body.nodes().any(|node| exchanges(node.op()) || is_busy(node.op())))
}

/// Whether the bodies of an op have products: a loop that only moves elements hides nothing.
fn multiplies(op: &Op) -> bool {
    let is_product =
        |op: &Op| matches!(op, Op::DotGeneral(_) | Op::RaggedDot(_) | Op::Convolution(_) | Op::CustomCall(_));
    op.regions().any(|body| body.nodes().any(|node| is_product(node.op()) || multiplies(node.op())))
}

/// Copies a segment and the loop behind it: the nodes that depend on no pack, the exchanges, the loop, and the rest.
/// Received values are taken apart behind the loop, and not before it ends: else libtpu ends the exchange in front of
/// the loop.
fn write_beside<'g>(
    copy: &mut GraphCopy<'g>,
    segment: &[NodeRef<'g>],
    plan: &Packing<'g>,
    repeated: NodeRef<'g>,
    limit: u64,
    bodies: &mut BodyCache,
) {
    let packed: FxHashSet<u32> = plan.packs.iter().flatten().map(|member| member.node.id.index() as u32).collect();
    let mut later = Vec::new();
    for &node in segment {
        let id = node.id.index() as u32;
        match (packed.contains(&id), plan.later.contains(&id)) {
            (true, _) => {}
            (_, true) => later.push(node),
            _ => write_node(copy, node, limit, bodies),
        }
    }
    let exchanged: Vec<Exchanged> = plan.packs.iter().map(|pack| exchange(copy, pack)).collect();
    write_node(copy, repeated, limit, bodies);
    let buffers = exchanged.iter().map(|it| it.buffer);
    let graph = copy.source;
    let smallest = repeated.results().min_by_key(|&result| graph.ty(result).byte_count());
    let held: Vec<Value> = buffers.chain(smallest.map(|result| copy.map.get(result))).collect();
    let types: Vec<TensorType> = held.iter().map(|&value| copy.builder.ty(value).clone()).collect();
    let held = copy.builder.push_from(repeated.origin(), Op::from(Barrier), &held, types).to_vec();
    if let (Some(result), Some(&after)) = (smallest, held.last()) {
        copy.map.set(result, after);
    }
    for ((pack, exchanged), buffer) in plan.packs.iter().zip(exchanged).zip(held) {
        take_apart(copy, pack, &Exchanged { buffer, ..exchanged });
    }
    later.into_iter().for_each(|node| write_node(copy, node, limit, bodies));
}

fn write_node<'g>(copy: &mut GraphCopy<'g>, node: NodeRef<'g>, limit: u64, bodies: &mut BodyCache) {
    bodies.copy(copy, node, |body, bodies| pack(body, limit, bodies));
}

/// A buffer that was exchanged: parts that stand one below the other, each of whole rows.
struct Exchanged {
    /// `[parts * rows, columns]`.
    buffer: Value,
    rows: Vec<usize>,
    columns: usize,
}

/// Pushes one collective in the place of several, with the ops that put their operands together.
fn exchange(copy: &mut GraphCopy<'_>, pack: &[Transfer<'_>]) -> Exchanged {
    let (graph, outer, first) = (copy.source, copy.builder.origin(), pack[0]);
    let (before, after) = first.parts();
    let sizes: Vec<usize> = pack.iter().map(|member| member.part(graph).element_count()).collect();
    let columns = columns(&sizes);
    let rows: Vec<usize> = sizes.iter().map(|size| size.div_ceil(columns)).collect();
    let all_rows: usize = rows.iter().sum();
    let dtype = graph.ty(first.operand).dtype;
    let ty = |dims: &[usize]| TensorType::new(dtype, dims);
    copy.builder.set_origin(first.node.origin());
    let builder = &mut copy.builder;
    let mut parts = Vec::with_capacity(pack.len());
    for ((member, &size), &rows) in pack.iter().zip(&sizes).zip(&rows) {
        let mut value = copy.map.get(member.operand);
        if !first.gathers {
            value = parts_first(builder, value, member.dim, before);
        }
        if size < rows * columns {
            value = builder.reshape_to(value, ty(&[before, size]));
            value = builder.zeros_around(value, 1, 0, rows * columns - size);
        }
        parts.push(builder.reshape_to(value, ty(&[before, rows, columns])));
    }
    let joined = builder.push_typed(Concatenate { axis: 1 }.into(), &parts, [ty(&[before, all_rows, columns])])[0];
    let buffer = builder.reshape_to(joined, ty(&[before * all_rows, columns]));
    let group = first.group.clone();
    let op: Op =
        if first.gathers { AllGather { group, dim: 0 }.into() } else { ReduceScatter { group, dim: 0 }.into() };
    let buffer = builder.push_typed(op, &[buffer], [ty(&[after * all_rows, columns])])[0];
    copy.builder.set_origin(outer);
    Exchanged { buffer, rows, columns }
}

/// Pushes the results of the collectives that became one.
fn take_apart(copy: &mut GraphCopy<'_>, pack: &[Transfer<'_>], exchanged: &Exchanged) {
    let (graph, outer, first) = (copy.source, copy.builder.origin(), pack[0]);
    let &Exchanged { buffer, ref rows, columns } = exchanged;
    let (_, after) = first.parts();
    let dtype = graph.ty(first.operand).dtype;
    let ty = |dims: &[usize]| TensorType::new(dtype, dims);
    copy.builder.set_origin(first.node.origin());
    let builder = &mut copy.builder;
    let moved = builder.reshape_to(buffer, ty(&[after, rows.iter().sum(), columns]));
    let mut start = 0;
    for (member, &rows) in pack.iter().zip(rows) {
        let part = member.part(graph);
        let mut value = builder.slice_dim(moved, 1, start..start + rows);
        start += rows;
        if part.element_count() < rows * columns {
            value = builder.reshape_to(value, ty(&[after, rows * columns]));
            value = builder.slice_dim(value, 1, 0..part.element_count());
        }
        value = match first.gathers {
            true => parts_into(builder, value, part, member.dim, after),
            false => builder.reshape_to(value, part.clone()),
        };
        copy.map.set(member.result, value);
    }
    copy.builder.set_origin(outer);
}

/// The number of columns of a buffer of parts of these sizes: as many as possible while all padding together is at most
/// a 64th of them.
fn columns(sizes: &[usize]) -> usize {
    let all: usize = sizes.iter().sum();
    let padding = |columns: usize| sizes.iter().map(|size| size.next_multiple_of(columns)).sum::<usize>() - all;
    let mut columns = MOST_COLUMNS;
    while columns > LANES && padding(columns) > all / 64 {
        columns /= 2;
    }
    columns
}

/// A value with a dimension cut into parts, which a dimension in front of all others counts.
fn parts_first(builder: &mut GraphBuilder, value: Value, dim: usize, count: usize) -> Value {
    let mut cut = builder.ty(value).clone();
    cut.dims[dim] /= count;
    cut.dims.insert(dim, count);
    let rank = cut.rank();
    let value = builder.reshape_to(value, cut);
    let order: Vec<usize> = std::iter::once(dim).chain((0..rank).filter(|&other| other != dim)).collect();
    transpose(builder, value, &order)
}

/// The inverse of [`parts_first`]: from parts of a type, one after the other, the value whose dimension they make up.
fn parts_into(builder: &mut GraphBuilder, value: Value, part: &TensorType, dim: usize, count: usize) -> Value {
    let (mut stacked, mut whole) = (part.clone(), part.clone());
    stacked.dims.insert(0, count);
    whole.dims[dim] *= count;
    let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..stacked.rank()).collect();
    let value = builder.reshape_to(value, stacked);
    let value = transpose(builder, value, &order);
    builder.reshape_to(value, whole)
}

fn transpose(builder: &mut GraphBuilder, value: Value, order: &[usize]) -> Value {
    if order.is_sorted() {
        return value;
    }
    let ty = builder.ty(value);
    let moved = TensorType { dtype: ty.dtype, dims: order.iter().map(|&from| ty.dims[from]).collect() };
    builder.push_typed(Transpose { permutation: order.into() }.into(), &[value], [moved])[0]
}
