//! The forms in which the program of one device is emitted.

use meshloom_hlo::LOCAL_SHAPES;
use meshloom_hlo::proto::FrontendAttributes;
use rustc_hash::FxHashSet;

use super::Emitter;
use super::sharding::mesh_attribute;
use crate::ir::{DType, Graph, InternalError, TensorType};
use crate::ops::{InstructionId, Op, RaggedDot, RaggedForm};

/// The form in which the module of a partitioned program says that it is the program of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramForm {
    /// Parameters and results have the shapes of whole values, with shardings in tiles. The program lies in a region
    /// that XLA's partitioner leaves alone (`SPMDFullToShardShape`), and `partition-id` is the number of the device.
    #[default]
    Manual,
    /// Parameters and results have the shapes of one device, and nothing is annotated. If the program needs the number
    /// of the device, that is one more parameter, the last. The module is compiled with `use_shardy_partitioner`:
    /// libtpu then takes `ragged-dot`, over which it ends the process otherwise. A program of several processes with
    /// collectives of meshloom's own between them is in this form: XLA knows the devices of one process.
    Local,
}

impl Emitter<'_> {
    /// Whether the module has the shapes of one device of several.
    pub(super) fn is_local(&self) -> bool {
        self.options.partitioned && self.options.form == ProgramForm::Local && self.options.mesh.is_some()
    }

    /// Whether the program lies in a manual region.
    pub(super) fn enters_region(&self) -> bool {
        self.options.partitioned && !self.is_local()
    }

    pub(super) fn module_attributes(&self) -> Option<FrontendAttributes> {
        let mesh = self.options.mesh?;
        if !self.is_local() {
            return self.options.annotation.module_attributes(mesh);
        }
        let mut attributes = mesh_attribute(mesh);
        attributes.map.insert(LOCAL_SHAPES.to_owned(), "true".to_owned());
        Some(attributes)
    }

    /// Adds the parameter of the entry that is the number of the device. Each device has one element of an array over
    /// all devices.
    pub(super) fn place_parameter(&mut self) {
        self.writer.parameter(&TensorType::new(DType::U32, &[1]), PLACE);
        self.writer.set_name(PLACE);
        let parameter = self.writer.commit();
        let place = self.writer.instruction("reshape", &TensorType::scalar(DType::U32), &[parameter]);
        self.set_place(Some(place));
    }

    /// The number of the device, if one of these bodies needs it. A computation of them then takes it besides its
    /// inputs.
    pub(super) fn place_for(&mut self, bodies: &[&Graph]) -> Option<InstructionId> {
        if !bodies.iter().any(|body| self.uses_place(body)) {
            return None;
        }
        let place = self.place();
        if place.is_none() {
            let error = InternalError::new(self.op_name, "the number of the device in the open computation");
            self.defect.get_or_insert(error);
        }
        place
    }

    /// The number of the device in the open computation, if a parameter says it.
    pub(super) fn place(&self) -> Option<InstructionId> {
        self.places.last().copied().flatten()
    }

    /// States the value that is the number of the device in the open computation.
    pub(super) fn set_place(&mut self, place: Option<InstructionId>) {
        if let Some(last) = self.places.last_mut() {
            *last = place;
        }
    }
}

/// The name of the parameter that is the number of the device.
const PLACE: &str = "device_place";

/// Whether a graph has an op that a module with annotations cannot have: libtpu ends its process over it.
pub(crate) fn needs_local_form(graph: &Graph) -> bool {
    has_op(graph, &|op| matches!(op, Op::RaggedDot(RaggedDot { form: RaggedForm::Instruction, .. })))
}

/// Whether a graph, or a region in it, has an op for which `is_meant` holds. Each body is looked into once.
pub(super) fn has_op(graph: &Graph, is_meant: &impl Fn(&Op) -> bool) -> bool {
    let mut seen: FxHashSet<*const Graph> = FxHashSet::default();
    let mut left = vec![graph];
    while let Some(graph) = left.pop() {
        if !seen.insert(std::ptr::from_ref(graph)) {
            continue;
        }
        for node in graph.nodes() {
            if is_meant(node.op()) {
                return true;
            }
            left.extend(node.op().regions().map(|body| &**body));
        }
    }
    false
}
