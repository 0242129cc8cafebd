//! Collectives between processes, as custom calls ([`meshloom_hlo::crossing`]): for plugins that have none.

use meshloom_hlo::crossing::{Crossing, CrossingKind, TARGET};
use meshloom_hlo::{proto, shape};

use super::node::NodeEmitter;
use super::{EmitOptions, Emitter};
use crate::ir::{DType, Graph, TensorType};
use crate::ops::{Devices, EmitContext, Group, InstructionId, Op};

impl Emitter<'_> {
    /// Whether the devices of a group lie in several processes.
    pub(super) fn crosses(&self, group: &Group) -> bool {
        let EmitOptions { mesh, processes, .. } = self.options;
        let mesh = mesh.filter(|_| processes > 1);
        mesh.is_some_and(|mesh| group.axes.iter().any(|&axis| mesh.crosses(axis, processes)))
    }

    /// Whether an op needs the number of its device as a value.
    pub(super) fn takes_place(&self, op: &Op) -> bool {
        match op.facts().devices {
            Devices::Rank(_) => true,
            Devices::Exchange(_, group) => self.crosses(group),
            Devices::Alone | Devices::Unknown => false,
        }
    }

    /// Whether calls between processes are ordered by the number of the device, which each takes and gives.
    pub(super) fn orders_by_place(&self) -> bool {
        self.options.processes > 1
    }

    /// Whether a graph, or a region in it, needs the number of its device as a value.
    pub(super) fn uses_place(&self, graph: &Graph) -> bool {
        self.is_local() && super::form::has_op(graph, &|op| self.takes_place(op))
    }
}

impl NodeEmitter<'_, '_> {
    /// A collective of each operand over a group that crosses processes. Operands stay as they are; where the parts of
    /// a dimension go to different members, they get one more dimension in front, which counts the members.
    pub(super) fn emit_crossing(&mut self, group: &Group, kind: CrossingKind, dim: usize) {
        let size = group.size;
        let is_cut = matches!(kind, CrossingKind::AllToAll | CrossingKind::ReduceScatter(_));
        let gathers = matches!(kind, CrossingKind::AllGather | CrossingKind::AllToAll);
        let types: Vec<TensorType> =
            (0..self.operand_ids().len()).map(|index| self.operand_type(index).clone()).collect();
        let mut operands = self.operand_ids();
        let (mut sent, mut received) = (types.clone(), types.clone());
        for (index, ty) in types.iter().enumerate() {
            if is_cut {
                operands[index] = self.parts_first(ty, operands[index], dim, size);
                sent[index].dims[dim] /= size;
                received[index] = sent[index].clone();
                sent[index].dims.insert(0, size);
            }
            if gathers {
                received[index].dims.insert(0, size);
            }
        }
        let results = self.call_crossing(group, kind, (&operands, &sent), &received);
        for (index, result) in results.into_iter().enumerate() {
            let mut part = received[index].clone();
            if gathers {
                part.dims.remove(0);
            }
            let result = if gathers { self.parts_into(&part, result, dim, size) } else { result };
            self.set_result(index, result);
        }
    }

    /// The call takes the number of the device and gives it again, and the next call takes that: so the calls of a
    /// device follow each other, in whatever computations they are. XLA's CPU runtime keeps no other order between
    /// them: it begins each instruction that has its operands. It does keep XLA's collectives in order, and a call that
    /// waits holds none of its threads. So each device begins every call that all devices can begin.
    fn call_crossing(
        &mut self,
        group: &Group,
        kind: CrossingKind,
        (operands, sent): (&[InstructionId], &[TensorType]),
        received: &[TensorType],
    ) -> Vec<InstructionId> {
        let EmitOptions { mesh, processes, .. } = self.emitter.options;
        let crossing = Crossing {
            kind,
            axes: group.axes.iter().map(|axis| axis.index()).collect(),
            mesh: mesh.into_iter().flat_map(|mesh| mesh.axes().map(|axis| mesh.size(axis))).collect(),
            processes,
        };
        let Some(place) = self.emitter.place() else {
            let missing = self.fail("a parameter with the number of the device");
            return vec![missing; received.len()];
        };
        let operands: Vec<InstructionId> = operands.iter().copied().chain([place]).collect();
        let place_type = TensorType::scalar(DType::U32);
        let shapes = sent.iter().chain([&place_type]).map(shape).collect();
        let results: Vec<&TensorType> = received.iter().chain([&place_type]).collect();
        let channel = self.next_channel();
        self.begin_tuple("custom-call", &results, &operands);
        let instruction = self.emitter.writer.attributes();
        instruction.custom_call_target.push_str(TARGET);
        instruction.backend_config = crossing.backend_config().into_bytes();
        instruction.custom_call_api_version = proto::CustomCallApiVersion::ApiVersionTypedFfi.into();
        // The call has no side effect: its result follows from the operands of all devices. XLA may merge equal calls
        // and leave out results that are not read, on all processes alike. And in a module without annotations its
        // partitioner refuses side effects.
        instruction.constrain_layout = true;
        instruction.operand_shapes_with_layout = shapes;
        self.mark_collective(crossing.collective().name(), channel);
        let call = self.commit();
        let place = self.element(call, received.len(), &place_type);
        self.emitter.set_place(Some(place));
        received.iter().enumerate().map(|(index, ty)| self.element(call, index, ty)).collect()
    }
}
