//! The walk over the program of one device, and what becomes known of its values.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::layout::{ANYWHERE, Begin, FIRST, Layouts};
use crate::ir::{AxisSet, DType, Dims, Graph, Node, NodeRef, Spec, Value};
use crate::ops::{BinaryKind, Op};

/// The meaning of a value of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    /// The global value that it is a part of.
    pub(super) whole: Value,
    /// Where the part of each device begins, along each dimension.
    pub(super) begins: SmallVec<[Begin; 4]>,
    /// The axes over which the values of the devices add up to the part.
    pub(super) partial: AxisSet,
}

/// The knowledge of a value of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Finding {
    pub(super) meanings: SmallVec<[Meaning; 2]>,
    /// The number that all its elements are.
    pub(super) uniform: Option<f64>,
    /// The integer on each device, of a value of one element.
    pub(super) known: Option<Arc<[i64]>>,
}

impl Finding {
    pub(super) fn is_empty(&self) -> bool {
        self.meanings.is_empty() && self.uniform.is_none() && self.known.is_none()
    }

    /// Adds a meaning, if it is new and there are few.
    pub(super) fn add(&mut self, meaning: Meaning) {
        if self.meanings.len() < MOST_MEANINGS && !self.meanings.contains(&meaning) {
            self.meanings.push(meaning);
        }
    }
}

/// How many meanings of a value are kept.
const MOST_MEANINGS: usize = 16;

/// A global graph, and the nodes that read each of its values.
pub(super) struct Whole<'g> {
    pub(super) graph: &'g Graph,
    pub(super) readers: FxHashMap<Value, Vec<Node>>,
    pub(super) iotas: Vec<Node>,
    pub(super) constants: Vec<Node>,
}

impl<'g> Whole<'g> {
    pub(super) fn new(graph: &'g Graph) -> Whole<'g> {
        let mut readers: FxHashMap<Value, Vec<Node>> = FxHashMap::default();
        let (mut iotas, mut constants) = (Vec::new(), Vec::new());
        for node in graph.nodes() {
            for &operand in node.operands() {
                let of_value = readers.entry(operand).or_default();
                if of_value.last() != Some(&node.id) {
                    of_value.push(node.id);
                }
            }
            match node.op() {
                Op::Iota(_) => iotas.push(node.id),
                Op::Constant(_) => constants.push(node.id),
                _ => {}
            }
        }
        Whole { graph, readers, iotas, constants }
    }

    pub(super) fn readers(&self, value: Value) -> &[Node] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }
}

/// The facts of all values of a graph.
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn of(&self, value: Value) -> &Finding {
        &self.0[value.index()]
    }

    /// The first op in front of a value that has no meaning while its operands have one.
    pub(super) fn stuck(&self, local: &Graph, value: Value) -> Option<String> {
        let mut needed = vec![false; local.value_count()];
        needed[value.index()] = true;
        for node in local.nodes().rev() {
            if node.results().any(|result| needed[result.index()] && self.of(result).is_empty()) {
                node.operands().iter().for_each(|operand| needed[operand.index()] = true);
            }
        }
        let is_stuck = |node: &NodeRef<'_>| {
            node.results().any(|result| needed[result.index()] && self.of(result).is_empty())
                && node.operands().iter().all(|&operand| !self.of(operand).is_empty())
        };
        let node = local.nodes().find(is_stuck)?;
        let types: Vec<String> = node.operands().iter().map(|&operand| local.ty(operand).to_string()).collect();
        let mut why = format!("`{}` of {}", node.op().name(), types.join(", "));
        let scope = node.origin().scope.path();
        if !scope.is_empty() {
            why.push_str(&format!(" in scope `{scope}`"));
        }
        why.push_str(" is matched with no global value");
        Some(why)
    }
}

/// The proof under way.
pub(super) struct Prover {
    pub(super) layouts: Layouts,
    /// How deep in loops.
    pub(super) depth: usize,
}

impl Prover {
    pub(super) fn new(layouts: Layouts) -> Prover {
        Prover { layouts, depth: 0 }
    }

    /// The dimensions and beginnings of the parts of a value; `None` if they are not even.
    pub(super) fn tile(&mut self, spec: &Spec, dims: &[usize]) -> Option<(Dims, SmallVec<[Begin; 4]>)> {
        if !spec.unreduced().is_empty() || spec.rank() != dims.len() {
            return None;
        }
        let (mut local, mut begins) = (Dims::new(), SmallVec::new());
        for (dim, &size) in dims.iter().enumerate() {
            let mesh = &self.layouts.mesh;
            let parts = spec.part_count(mesh, dim);
            if !size.is_multiple_of(parts) {
                return None;
            }
            let part = size / parts;
            let places =
                (0..mesh.device_count()).map(|device| (spec.part_index(mesh, device, dim) * part) as i64).collect();
            local.push(part);
            begins.push(self.layouts.number(places));
        }
        Some((local, begins))
    }

    /// The reason why a value is not shown to be the part of a global value; `None` if it is.
    pub(super) fn missing(
        &self,
        facts: &Findings,
        whole: &Graph,
        output: Value,
        local: &Graph,
        own: Value,
        wanted: Option<&[Begin]>,
    ) -> Option<String> {
        let fact = facts.of(own);
        let same_type = whole.ty(output).dtype == local.ty(own).dtype;
        if let (Some(number), Some(expected), true) = (fact.uniform, whole.splat(output), same_type)
            && number.to_bits() == expected.to_bits()
            && wanted.is_some()
        {
            return None;
        }
        let of_output: Vec<&Meaning> = fact.meanings.iter().filter(|meaning| meaning.whole == output).collect();
        if of_output.is_empty() {
            return Some("no proof that it is a part of the global result".to_owned());
        }
        let complete: Vec<&&Meaning> = of_output.iter().filter(|meaning| meaning.partial.is_empty()).collect();
        if complete.is_empty() {
            return Some("it is a part of a sum over devices that is not added up".to_owned());
        }
        let fits = |meaning: &&&Meaning| match wanted {
            None => self.makes_up(meaning, &whole.ty(output).dims, &local.ty(own).dims),
            Some(wanted) => {
                meaning.begins.iter().zip(wanted).all(|(&found, &wanted)| found == wanted || found == ANYWHERE)
            }
        };
        match complete.iter().any(fits) {
            true => None,
            false => Some("it is another part of the global result than the stated sharding asks for".to_owned()),
        }
    }

    /// Whether the parts of all devices make up the global value, where no sharding is stated.
    fn makes_up(&self, meaning: &Meaning, dims: &[usize], parts: &[usize]) -> bool {
        let mut places = std::collections::BTreeSet::new();
        for device in 0..self.layouts.mesh.device_count() {
            let begins = meaning.begins.iter().map(|&begin| self.layouts.begins(begin)[device]);
            places.insert(begins.collect::<Vec<i64>>());
        }
        let aligned = |place: &Vec<i64>| place.iter().zip(parts).all(|(&begin, &part)| begin % part.max(1) as i64 == 0);
        let count: usize = dims.iter().zip(parts).map(|(size, part)| size / (*part).max(1)).product();
        let even = dims.iter().zip(parts).all(|(size, part)| size.is_multiple_of(*part));
        even && places.iter().all(aligned) && places.len() == count
    }

    /// The facts of the values of a program whose inputs are these parts.
    pub(super) fn program(
        &mut self,
        whole: &Graph,
        local: &Graph,
        inputs: Vec<(Value, SmallVec<[Begin; 4]>)>,
    ) -> Findings {
        let fact = |(whole, begins)| Finding {
            meanings: [Meaning { whole, begins, partial: AxisSet::default() }].into_iter().collect(),
            ..Finding::default()
        };
        self.walk(&Whole::new(whole), local, inputs.into_iter().map(fact).collect())
    }

    pub(super) fn walk(&mut self, whole: &Whole<'_>, local: &Graph, inputs: Vec<Finding>) -> Findings {
        let mut facts = Findings(vec![Finding::default(); local.value_count()]);
        for (&input, fact) in local.inputs().iter().zip(inputs) {
            facts.0[input.index()] = fact;
        }
        for node in local.nodes() {
            let found = self.node(whole, local, &facts, node);
            for (result, fact) in node.results().zip(found) {
                facts.0[result.index()] = fact;
            }
        }
        facts
    }

    fn node(&mut self, whole: &Whole<'_>, local: &Graph, facts: &Findings, node: NodeRef<'_>) -> Vec<Finding> {
        let count = node.results().count();
        let mut found = vec![Finding::default(); count];
        match node.op() {
            Op::Splat(splat) => {
                found[0].uniform = Some(splat.number());
                let number = splat.number();
                let is_integer = splat.ty.rank() == 0 && matches!(splat.ty.dtype, DType::S32 | DType::U32);
                if is_integer && number.fract() == 0.0 && number.abs() < 4e9 {
                    found[0].known = Some(vec![number as i64; self.layouts.mesh.device_count()].into());
                }
            }
            Op::Iota(iota) => {
                for &id in &whole.iotas {
                    let Op::Iota(other) = whole.graph.node(id).op() else { continue };
                    let fits = iota.ty.dims.iter().zip(&other.ty.dims).all(|(part, size)| part <= size);
                    if iota.axis == other.axis
                        && iota.ty.dtype == other.ty.dtype
                        && iota.ty.rank() == other.ty.rank()
                        && fits
                    {
                        let begin = |dim| if dim == iota.axis { FIRST } else { ANYWHERE };
                        let begins = (0..iota.ty.rank()).map(begin).collect();
                        found[0].add(Meaning {
                            whole: whole.graph.node(id).result(),
                            begins,
                            partial: AxisSet::default(),
                        });
                    }
                }
            }
            Op::Constant(_) => {
                for &id in &whole.constants {
                    if whole.graph.node(id).op() == node.op() {
                        let begins = SmallVec::from_elem(FIRST, local.ty(node.result()).rank());
                        found[0].add(Meaning {
                            whole: whole.graph.node(id).result(),
                            begins,
                            partial: AxisSet::default(),
                        });
                    }
                }
            }
            Op::While(_) => return self.loops(whole, local, facts, node),
            Op::AllGather(_)
            | Op::AllReduce(_)
            | Op::ReduceScatter(_)
            | Op::CollectivePermute(_)
            | Op::AxisIndex(_) => return self.exchange(whole, local, facts, node),
            op if op.as_primitive().is_some() => {
                found[0].known = self.known(local, facts, node);
                if found[0].known.is_none() {
                    self.cut(whole, local, facts, node, &mut found[0]);
                }
                self.matched(whole, local, facts, node, &mut found);
                // A number spread out, or in other dimensions, is the number.
                if let (Op::BroadcastInDim(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_), &[operand]) =
                    (op, node.operands())
                {
                    found[0].uniform = facts.of(operand).uniform;
                }
            }
            _ => {}
        }
        found
    }

    /// The integers that the devices compute from their places.
    fn known(&self, local: &Graph, facts: &Findings, node: NodeRef<'_>) -> Option<Arc<[i64]>> {
        let ty = local.ty(node.result());
        let wrap = |number: i64| match ty.dtype {
            DType::S32 => Some(i64::from(number as i32)),
            DType::U32 => Some(i64::from(number as u32)),
            _ => None,
        };
        if ty.element_count() != 1 {
            return None;
        }
        let operand = |index: usize| facts.of(*node.operands().get(index)?).known.clone();
        match node.op() {
            Op::Reshape(_) | Op::Convert(_) => operand(0)?.iter().map(|&number| wrap(number)).collect(),
            Op::Binary(binary) => {
                let (left, right) = (operand(0)?, operand(1)?);
                let compute = |(&left, &right): (&i64, &i64)| {
                    wrap(match binary.0 {
                        BinaryKind::Add => left.checked_add(right)?,
                        BinaryKind::Subtract => left.checked_sub(right)?,
                        BinaryKind::Multiply => left.checked_mul(right)?,
                        BinaryKind::Divide if right > 0 => left.checked_div(right)?,
                        BinaryKind::Remainder if right > 0 => left.checked_rem(right)?,
                        BinaryKind::Minimum => left.min(right),
                        BinaryKind::Maximum => left.max(right),
                        _ => return None,
                    })
                };
                left.iter().zip(right.iter()).map(compute).collect()
            }
            _ => None,
        }
    }

    /// A slice of a part is a part that begins further on.
    fn cut(&mut self, whole: &Whole<'_>, local: &Graph, facts: &Findings, node: NodeRef<'_>, found: &mut Finding) {
        let &[operand, ref starts @ ..] = node.operands() else { return };
        let devices = self.layouts.mesh.device_count();
        let (dims, rank) = (&local.ty(operand).dims, local.ty(operand).rank());
        let offsets: Option<Vec<Vec<i64>>> = match node.op() {
            Op::Slice(slice) if slice.ranges.iter().all(|range| range.stride == 1) => {
                Some(slice.ranges.iter().map(|range| vec![range.start as i64; devices]).collect())
            }
            Op::DynamicSlice(slice) if starts.len() == rank => {
                let of_dim = |dim: usize| {
                    let last = (dims[dim] - slice.sizes[dim]) as i64;
                    if last == 0 {
                        return Some(vec![0; devices]);
                    }
                    let known = facts.of(starts[dim]).known.clone()?;
                    Some(known.iter().map(|&start| start.clamp(0, last)).collect())
                };
                (0..rank).map(of_dim).collect()
            }
            _ => None,
        };
        let Some(offsets) = offsets else { return };
        for meaning in facts.of(operand).meanings.clone() {
            let mut begins: SmallVec<[Begin; 4]> = SmallVec::new();
            for (&begin, offsets) in meaning.begins.iter().zip(&offsets) {
                begins.push(match begin {
                    ANYWHERE => ANYWHERE,
                    begin => {
                        let before = self.layouts.begins(begin);
                        let after = before.iter().zip(offsets).map(|(before, offset)| before + offset).collect();
                        self.layouts.number(after)
                    }
                });
            }
            self.admit(whole, local, node.result(), Meaning { begins, ..meaning }, found);
        }
    }

    /// Adds a meaning whose parts do not depend on the axes over which they add up, and lie within the global value.
    pub(super) fn admit(&self, whole: &Whole<'_>, local: &Graph, result: Value, meaning: Meaning, found: &mut Finding) {
        let (ty, own) = (whole.graph.ty(meaning.whole), local.ty(result));
        let fits = ty.rank() == own.rank()
            && ty.dtype == own.dtype
            && meaning.begins.len() == ty.rank()
            && meaning.begins.iter().zip(ty.dims.iter().zip(&own.dims)).all(|(&begin, (&size, &part))| {
                let is_within = |&begin: &i64| begin >= 0 && begin as usize + part <= size;
                (self.layouts.axes(begin) & meaning.partial).is_empty()
                    && self.layouts.begins(begin).iter().all(is_within)
            });
        if fits {
            found.add(meaning);
        }
    }
}
