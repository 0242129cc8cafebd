//! The results of the stages of lowering, each in a type of its own.

use std::ops::Deref;
use std::time::Duration;

use meshloom_hlo::mesh::Mesh;

use crate::emit::{Annotation, EmittedModule, ProgramForm};
use crate::ir::{Graph, TensorType};
use crate::kernels::KernelUse;
use crate::partition::Fallback;
use crate::sharding::{Diagnostic, ShardingTable};

/// How long one pass took.
#[derive(Clone, Copy, Debug)]
pub struct PassTiming {
    /// Name of the pass; "rewrite" for those that share a walk.
    pub pass: &'static str,
    /// Time it took.
    pub time: Duration,
    /// Nodes after it, those in regions once each.
    pub node_count: usize,
}

/// The types of a graph's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The types of its inputs.
    pub inputs: Vec<TensorType>,
    /// The types of its outputs.
    pub outputs: Vec<TensorType>,
}

impl Ports {
    pub(super) fn of(graph: &Graph) -> Ports {
        Ports { inputs: graph.input_types().cloned().collect(), outputs: graph.output_types().cloned().collect() }
    }
}

/// A graph whose ports and named values have specs. Its shapes are global.
#[derive(Clone, Debug)]
pub struct Sharded {
    /// The graph; uneven dimensions are padded.
    pub graph: Graph,
    /// The types of its ports before they were padded; `None` if none was padded.
    pub unpadded: Option<Ports>,
    /// The mesh that the specs refer to.
    pub mesh: Mesh,
    /// Every parameter and every value with axis names: type, names, spec, bytes, source line and rules.
    pub table: ShardingTable,
    /// The warnings of the rules.
    pub diagnostics: Vec<Diagnostic>,
}

/// The program of one device: its shapes are local and its collectives explicit.
#[derive(Clone, Debug)]
pub struct Partitioned {
    /// The program.
    pub graph: Graph,
    /// The mesh of its collectives: that of the rules, with axes cut into sub-axes where that saves traffic.
    pub mesh: Mesh,
    /// Values that every device has to hold whole, because an op cannot work on their parts.
    pub fallbacks: Vec<Fallback>,
}

/// The stage that a program has reached when it is emitted.
#[derive(Clone, Debug)]
pub enum LoweredProgram {
    /// For one device: nothing is sharded.
    OneDevice(Graph),
    /// For XLA to partition.
    Annotated {
        /// The graph with its specs.
        sharded: Box<Sharded>,
        /// How the module states them.
        annotation: Annotation,
    },
    /// Partitioned by meshloom.
    Explicit {
        /// The graph with its specs.
        sharded: Box<Sharded>,
        /// The program of one device.
        partitioned: Box<Partitioned>,
    },
}

impl LoweredProgram {
    /// The graph of global shapes, with specs on its ports where there is a mesh.
    pub fn graph(&self) -> &Graph {
        match self {
            LoweredProgram::OneDevice(graph) => graph,
            LoweredProgram::Annotated { sharded, .. } | LoweredProgram::Explicit { sharded, .. } => &sharded.graph,
        }
    }

    /// The graph with its specs; `None` for one device.
    pub fn sharded(&self) -> Option<&Sharded> {
        match self {
            LoweredProgram::OneDevice(_) => None,
            LoweredProgram::Annotated { sharded, .. } | LoweredProgram::Explicit { sharded, .. } => Some(sharded),
        }
    }

    /// The program of one device, where meshloom partitioned it.
    pub fn partitioned(&self) -> Option<&Partitioned> {
        match self {
            LoweredProgram::Explicit { partitioned, .. } => Some(partitioned),
            LoweredProgram::OneDevice(_) | LoweredProgram::Annotated { .. } => None,
        }
    }

    /// The graph that the module was written from.
    pub fn emitted(&self) -> &Graph {
        self.partitioned().map_or(self.graph(), |partitioned| &partitioned.graph)
    }

    /// The mesh that the program is sharded over; `None` for one device.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.sharded().map(|sharded| &sharded.mesh)
    }

    pub(super) fn is_over_several(&self) -> bool {
        self.mesh().is_some_and(|mesh| mesh.device_count() > 1)
    }

    /// The mesh of the emitted program's collectives: [`LoweredProgram::mesh`], cut into sub-axes where meshloom
    /// partitioned it.
    pub fn emitted_mesh(&self) -> Option<&Mesh> {
        self.partitioned().map(|partitioned| &partitioned.mesh).or(self.mesh())
    }

    /// The way in which the module states shardings. A manual region is entered by tiles.
    pub fn annotation(&self) -> Annotation {
        match self {
            LoweredProgram::Annotated { annotation, .. } => *annotation,
            LoweredProgram::OneDevice(_) | LoweredProgram::Explicit { .. } => Annotation::Tiles,
        }
    }

    /// All that is worth a warning, as text.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let rules = self.sharded().into_iter().flat_map(|sharded| &sharded.diagnostics).map(ToString::to_string);
        let fallbacks = self.partitioned().into_iter().flat_map(|partitioned| &partitioned.fallbacks);
        rules.chain(fallbacks.map(ToString::to_string))
    }
}

/// A program and the module that it became.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The program.
    pub program: LoweredProgram,
    /// The module.
    pub module: EmittedModule,
    /// How it is written, where meshloom partitioned it over several devices.
    pub form: ProgramForm,
    /// [`LowerOptions::processes`](super::LowerOptions::processes) of a program over several devices; otherwise 1.
    pub processes: usize,
    /// Pairs of (output, input) that share a buffer.
    pub aliases: Vec<(usize, usize)>,
    /// Time of each pass, in order.
    pub timings: Vec<PassTiming>,
    /// The implementations of the ops that have several. The list is empty where XLA partitions, which gets plain
    /// forms.
    pub kernels: Vec<KernelUse>,
}

impl Lowered {
    /// Whether the module is compiled with XLA's Shardy partitioner: its annotations are Shardy's, or it has none.
    pub fn needs_shardy(&self) -> bool {
        self.annotation().is_shardy() || self.form == ProgramForm::Local
    }
}

/// A lowered program has all methods of its program.
impl Deref for Lowered {
    type Target = LoweredProgram;

    fn deref(&self) -> &LoweredProgram {
        &self.program
    }
}
