//! Collectives: how the parts that the devices have change.

use smallvec::SmallVec;

use super::layout::{ANYWHERE, Begin};
use super::walk::{Finding, Findings, Meaning, Prover, Whole};
use crate::ir::{Graph, NodeRef, Value};
use crate::ops::{Group, Op, ReduceKind};

impl Prover {
    pub(super) fn exchange(
        &mut self,
        whole: &Whole<'_>,
        local: &Graph,
        facts: &Findings,
        node: NodeRef<'_>,
    ) -> Vec<Finding> {
        let mut found = vec![Finding::default(); node.results().count()];
        if let Op::AxisIndex(index) = node.op() {
            let mut ranks = vec![0; self.layouts.mesh.device_count()];
            for devices in index.group.devices(&self.layouts.mesh) {
                devices.into_iter().enumerate().for_each(|(rank, device)| ranks[device] = rank as i64);
            }
            found[0].known = Some(ranks.into());
            return found;
        }
        for (index, (&operand, result)) in node.operands().iter().zip(node.results()).enumerate() {
            for meaning in facts.of(operand).meanings.clone() {
                if let Some(moved) = self.moved(local, node.op(), operand, &meaning) {
                    self.admit(whole, local, result, moved, &mut found[index]);
                }
            }
        }
        found
    }

    /// The meaning of a collective's result, from that of its operand.
    fn moved(&mut self, local: &Graph, op: &Op, operand: Value, meaning: &Meaning) -> Option<Meaning> {
        let dims = &local.ty(operand).dims;
        match op {
            Op::AllGather(gather) => {
                let apart = (gather.group.axis_set() & meaning.partial).is_empty();
                let begins = self.joined(meaning, &gather.group, gather.dim, dims[gather.dim] as i64)?;
                apart.then(|| Meaning { begins, ..meaning.clone() })
            }
            Op::AllReduce(reduce) => {
                let axes = reduce.group.axis_set();
                let alike = meaning.begins.iter().all(|&begin| (self.layouts.axes(begin) & axes).is_empty());
                match reduce.kind {
                    ReduceKind::Sum if axes & meaning.partial == axes && alike => {
                        Some(Meaning { partial: meaning.partial.without(axes), ..meaning.clone() })
                    }
                    // Equal values combine to themselves.
                    ReduceKind::Max | ReduceKind::Min | ReduceKind::And | ReduceKind::Or
                        if meaning.partial.is_empty() && alike =>
                    {
                        Some(meaning.clone())
                    }
                    _ => None,
                }
            }
            Op::ReduceScatter(scatter) => {
                let axes = scatter.group.axis_set();
                if axes & meaning.partial != axes {
                    return None;
                }
                let part = (dims[scatter.dim] / scatter.group.size) as i64;
                let mut begins = meaning.begins.clone();
                if begins[scatter.dim] != ANYWHERE {
                    let mut places = self.layouts.begins(begins[scatter.dim]).to_vec();
                    for devices in scatter.group.devices(&self.layouts.mesh) {
                        for (rank, device) in devices.into_iter().enumerate() {
                            places[device] += rank as i64 * part;
                        }
                    }
                    begins[scatter.dim] = self.layouts.number(places);
                }
                Some(Meaning { begins, partial: meaning.partial.without(axes), ..meaning.clone() })
            }
            Op::CollectivePermute(permute) => {
                let mut sources = vec![None; self.layouts.mesh.device_count()];
                for devices in permute.group.devices(&self.layouts.mesh) {
                    for &(source, target) in &permute.pairs {
                        sources[*devices.get(target as usize)?] = devices.get(source as usize).copied();
                    }
                }
                // A device that no other sends to gets zeros. Terms of a sum are not followed here.
                let sources: Vec<usize> = sources.into_iter().collect::<Option<_>>()?;
                if !meaning.partial.is_empty() {
                    return None;
                }
                let mut begins: SmallVec<[Begin; 4]> = SmallVec::new();
                for &begin in &meaning.begins {
                    begins.push(match begin {
                        ANYWHERE => ANYWHERE,
                        begin => {
                            let before = self.layouts.begins(begin);
                            let after = sources.iter().map(|&source| before[source]).collect();
                            self.layouts.number(after)
                        }
                    });
                }
                Some(Meaning { begins, ..meaning.clone() })
            }
            _ => None,
        }
    }

    /// The beginnings after the parts of each group are joined along a dimension; `None` if they do not follow each
    /// other, or differ in another dimension.
    fn joined(&mut self, meaning: &Meaning, group: &Group, dim: usize, part: i64) -> Option<SmallVec<[Begin; 4]>> {
        let axes = group.axis_set();
        let mut begins = meaning.begins.clone();
        let others = begins.iter().enumerate().filter(|&(other, _)| other != dim);
        if others.into_iter().any(|(_, &begin)| !(self.layouts.axes(begin) & axes).is_empty()) {
            return None;
        }
        if begins[dim] == ANYWHERE {
            return Some(begins);
        }
        let mut places = self.layouts.begins(begins[dim]).to_vec();
        for devices in group.devices(&self.layouts.mesh) {
            let first = places[devices[0]];
            for (rank, device) in devices.into_iter().enumerate() {
                if places[device] != first + rank as i64 * part {
                    return None;
                }
                places[device] = first;
            }
        }
        begins[dim] = self.layouts.number(places);
        Some(begins)
    }
}
