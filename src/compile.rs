//! The pass order: from a traced graph to a module, and from a module to a program that runs.
//!
//! ```text
//! traced -> passes of PASSES -> sharded -> emitted -> compiled
//! ```
//!
//! Each pass is timed. The verifier runs over what the passes have made; if it finds a defect, it runs after each of
//! them.

mod error;
mod function;
mod report;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::Error;
use crate::hlo::{Annotation, EmitOptions, EmittedModule, GroupFormat, emit};
use crate::ir::{Graph, PortInfo, TensorType, verify};
use crate::partition::{Fallback, Ledger, Partitioned, partition};
use crate::passes::{self, CollectiveLimits, Rewrite};
use crate::pjrt::{Array, ArraySpec, Client, CompileOptions, Device, Executable, ShardLayout};
use crate::sharding::{
    DevicePlace, Diagnostic, Mesh, RuleSets, ShardingTable, annotate, pad_uneven, propagate_with_sub_axes,
};
use crate::suggest::did_you_mean;
use crate::trace::{MapTree, Tree};

pub use error::ArgumentError;
pub use function::{CompiledFunction, compile};

/// A pass that needs nothing but the graph.
pub struct Pass {
    /// Name, by which it is switched off.
    pub name: &'static str,
    /// What it does, in a few words.
    pub description: &'static str,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    /// Part of the walk that writes a graph anew. Passes of this kind that stand next to each other share one walk, in
    /// which each sees what the others make.
    Rewrite(Rewrite),
    /// As [`Step::Rewrite`], within limits.
    LimitedRewrite(fn(&CollectiveLimits) -> Rewrite),
    /// Anything else.
    Graph(fn(&Graph) -> Graph),
    /// Anything else, within limits.
    LimitedGraph(fn(&Graph, &CollectiveLimits) -> Graph),
}

impl Step {
    fn run(&self, graph: &Graph, limits: &CollectiveLimits) -> Graph {
        match self {
            Step::Rewrite(rewrite) => rewrite.run(graph),
            Step::LimitedRewrite(rewrite) => rewrite(limits).run(graph),
            Step::Graph(run) => run(graph),
            Step::LimitedGraph(run) => run(graph, limits),
        }
    }
}

impl Pass {
    /// Runs this pass alone.
    pub fn run(&self, graph: &Graph, limits: &CollectiveLimits) -> Graph {
        self.step.run(graph, limits)
    }
}

/// The graph-to-graph passes, in the order they run.
///
/// Why this order: what is written out several times is there for all others to see. All but the first and the last
/// are done in one walk, node by node, so that none has to wait for another to be through: folding feeds algebra, both feed the clean-up of scans (a carry to which zero is added does not change),
/// and that feeds them (a constant that is made in the body is folded there). Within the walk, a node is without
/// markers before it is folded, folded before it is simplified, and merged when nothing is left to simplify; a scan's
/// body is done before anything is moved out of it, and what is moved out is merged with what is there. Dead code is
/// last: each pass before leaves nodes that nothing reads any more, and ports of scans that nothing needs.
pub const PASSES: &[Pass] = &[
    Pass { name: "unroll", description: "writes scans with an unroll factor out", step: Step::Graph(passes::unroll) },
    Pass {
        name: "markers",
        description: "drops names and gradient stops, writes checkpoints and custom gradients in place",
        step: Step::Rewrite(passes::ERASE_MARKERS),
    },
    Pass {
        name: "constant-folding",
        description: "computes small constants and splats",
        step: Step::Rewrite(passes::FOLD_CONSTANTS),
    },
    Pass {
        name: "algebra",
        description: "applies identities that hold for every bit",
        step: Step::Rewrite(passes::SIMPLIFY),
    },
    Pass {
        name: "scan-operands",
        description: "makes constants in scan bodies, takes out carries and outputs that do not change",
        step: Step::Rewrite(passes::SCAN_OPERANDS),
    },
    Pass {
        name: "loop-invariants",
        description: "moves what every iteration computes alike in front of the loop, if it is small",
        step: Step::Rewrite(passes::HOIST_SMALL),
    },
    Pass {
        name: "common-subexpressions",
        description: "merges nodes with equal ops and operands, and equal bodies",
        step: Step::Rewrite(passes::MERGE),
    },
    Pass {
        name: "dead-code",
        description: "drops what no output depends on",
        step: Step::Graph(passes::eliminate_dead_code),
    },
];

/// The passes over the program of one device, in the order they run. Two of them are those of [`PASSES`], again.
///
/// Why this order: what cancels need be neither hoisted nor combined; what is gathered in front of two loops is gathered
/// once; and no live collective is combined with a dead one.
pub const LOCAL_PASSES: &[Pass] = &[
    Pass {
        name: "gather-slice",
        description: "takes out collectives that undo each other, and does two reductions as one",
        step: Step::Graph(passes::cancel_collectives),
    },
    Pass {
        name: "hoist-gathers",
        description: "gathers what a loop does not change in front of it, if memory allows",
        step: Step::LimitedRewrite(|limits| passes::hoisting(limits.hoisted_bytes)),
    },
    Pass {
        name: "algebra",
        description: "applies algebraic identities once more: in parts, dimensions may have a single element",
        step: Step::Rewrite(passes::SIMPLIFY),
    },
    Pass {
        name: "common-subexpressions",
        description: "merges nodes with equal ops and operands, and equal bodies",
        step: Step::Rewrite(passes::MERGE),
    },
    Pass {
        name: "dead-code",
        description: "drops what no output depends on",
        step: Step::Graph(passes::eliminate_dead_code),
    },
    Pass {
        name: "combine-collectives",
        description: "makes one collective of several of a kind that are ready together",
        step: Step::LimitedGraph(|graph, limits| passes::combine_collectives(graph, limits.combined_bytes)),
    },
];

/// How a graph is lowered.
#[derive(Clone, Debug, Default)]
pub struct LowerOptions<'a> {
    /// The mesh and the rules by which logical axis names are sharded over it; none for one device.
    pub sharding: Option<(&'a Mesh, &'a RuleSets)>,
    /// Pairs of (output, input) that share a buffer: the input is donated.
    pub aliases: Vec<(usize, usize)>,
    /// Names of passes of [`PASSES`] and [`LOCAL_PASSES`] that do not run.
    pub without: &'a [&'a str],
    /// How much memory fewer collectives may cost.
    pub limits: CollectiveLimits,
    /// Whether meshloom partitions the graph over the mesh, rather than XLA.
    pub explicit: bool,
    /// Refuses a graph of which a value would have to be gathered because an op cannot work on its parts.
    pub deny_replication: bool,
    /// How a graph that XLA partitions says how values are sharded.
    pub annotation: Annotation,
    /// How collectives name their devices. The compact forms make the module's size independent of the mesh, but only the
    /// plugins of one generation each read them: [`GroupFormat::read_by`] says which. Lists are read by all.
    pub groups: GroupFormat,
    /// Lets the plugin run collectives that do not depend on each other in any order, or at once, as it is best for GPU and TPU. The
    /// CPU plugins' virtual devices may then wait for each other for ever, so by default they run in the order of the program.
    pub overlap_collectives: bool,
    /// Leaves out the verifier.
    pub skip_verifier: bool,
    /// Leaves source lines and scope paths out of the module.
    pub omit_metadata: bool,
    /// Moves the values that a checkpoint offloads into the host's memory. The plugins for GPU and TPU have such a memory;
    /// without this, and on a CPU, whose memory is the host's, they stay where they are.
    pub host_memory: bool,
}

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
    /// Of its inputs.
    pub inputs: Vec<TensorType>,
    /// Of its outputs.
    pub outputs: Vec<TensorType>,
}

impl Ports {
    fn of(graph: &Graph) -> Ports {
        Ports { inputs: graph.input_types().cloned().collect(), outputs: graph.output_types().cloned().collect() }
    }
}

/// A graph on its way to a plugin.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The graph of global shapes, with specs on its ports; uneven dimensions are padded.
    pub graph: Graph,
    /// The types of its ports before they were padded, if any was.
    pub unpadded: Option<Ports>,
    /// The program of one device, where meshloom partitioned it.
    pub local: Option<Graph>,
    /// The mesh of the local program: that below, with axes cut into sub-axes where that saves traffic.
    pub local_mesh: Option<Mesh>,
    /// The module.
    pub module: EmittedModule,
    /// The mesh it is partitioned over, if any.
    pub mesh: Option<Mesh>,
    /// Pairs of (output, input) that share a buffer.
    pub aliases: Vec<(usize, usize)>,
    /// Every parameter and every value with axis names: type, names, spec, bytes, source line and rules, to be printed or
    /// looked into. None without a mesh.
    pub debug_sharding: Option<ShardingTable>,
    /// How the module says how values are sharded.
    pub annotation: Annotation,
    /// What rules warned of.
    pub diagnostics: Vec<Diagnostic>,
    /// Values that every device has to hold whole, because an op cannot work on their parts.
    pub fallbacks: Vec<Fallback>,
    /// Time of each pass, in order.
    pub timings: Vec<PassTiming>,
}

/// Names of passes to leave out must be names of passes.
fn check_pass_names(without: &[&str]) -> Result<(), Error> {
    let known = || PASSES.iter().chain(LOCAL_PASSES).map(|pass| pass.name);
    match without.iter().find(|&&name| !known().any(|pass| pass == name)) {
        None => Ok(()),
        Some(&name) => Err(Error::UnknownPass { name: name.to_owned(), suggestion: did_you_mean(name, known()) }),
    }
}

/// The steps of a table that run, each with the name under which it is timed: rewrites that share a walk as one.
fn schedule(table: &[Pass], without: &[&str], limits: &CollectiveLimits) -> Vec<(&'static str, Step)> {
    let mut steps: Vec<(&'static str, Step)> = Vec::new();
    for pass in table.iter().filter(|pass| !without.contains(&pass.name)) {
        let step = match pass.step {
            Step::LimitedRewrite(rewrite) => Step::Rewrite(rewrite(limits)),
            step => step,
        };
        match (steps.last_mut(), step) {
            (Some((name, Step::Rewrite(before))), Step::Rewrite(rewrite)) => {
                (*name, *before) = ("rewrite", before.and(rewrite));
            }
            (_, step) => steps.push((pass.name, step)),
        }
    }
    steps
}

/// Runs the passes; `done` gets the name and the result of each.
fn run_passes<'g>(
    graph: &'g Graph,
    steps: &[(&'static str, Step)],
    limits: &CollectiveLimits,
    mut done: impl FnMut(&'static str, &Graph) -> Result<(), Error>,
) -> Result<Cow<'g, Graph>, Error> {
    let mut current = Cow::Borrowed(graph);
    for (name, step) in steps {
        current = Cow::Owned(step.run(&current, limits));
        done(name, &current)?;
    }
    Ok(current)
}

/// Verifies what the passes have made. One look at the result is enough as long as nothing is wrong; if something is,
/// they run again and are verified one by one, to tell which is at fault.
fn verify_passes(
    before: &Graph,
    after: &Graph,
    steps: &[(&'static str, Step)],
    limits: &CollectiveLimits,
) -> Result<(), Error> {
    let refuse = |pass| move |source| Error::Verify { pass, source };
    let Err(source) = verify(after) else { return Ok(()) };
    verify(before).map_err(refuse("the program as it was traced"))?;
    run_passes(before, steps, limits, |pass, graph| verify(graph).map_err(refuse(pass)))?;
    Err(Error::Verify { pass: "the passes", source })
}

/// Runs all passes and emits the module.
///
/// # Errors `without` names no pass; rules, mesh and program do not fit together; or a pass breaks an invariant, which
/// is a defect.
pub fn lower(graph: &Graph, options: &LowerOptions<'_>) -> Result<Lowered, Error> {
    let mut timings = Vec::new();
    let mut start = Instant::now();
    let mut done = |pass: &'static str, graph: &Graph| {
        let time = start.elapsed();
        timings.push(PassTiming { pass, time, node_count: graph.total_node_count() });
        tracing::debug!(pass, ?time, "pass done");
        start = Instant::now();
    };
    check_pass_names(options.without)?;
    let limits = &options.limits;
    let steps = schedule(PASSES, options.without, limits);
    let run = run_passes(graph, &steps, limits, |name, graph| {
        done(name, graph);
        Ok(())
    })?;
    if !options.skip_verifier {
        verify_passes(graph, &run, &steps, limits)?;
        done("verify", &run);
    }
    let mut graph = run.into_owned();
    let (mut table, mut diagnostics, mut logical) = (None, Vec::new(), None);
    if let Some((mesh, rules)) = options.sharding {
        let annotated = annotate(&graph, mesh, rules, &options.aliases)?;
        (table, diagnostics) = (Some(annotated.table), annotated.diagnostics);
        graph = annotated.graph;
        if let Some(padded) = pad_uneven(&graph, mesh, &options.aliases)? {
            logical = Some(Ports::of(&graph));
            graph = padded;
        }
        if !options.skip_verifier {
            verify(&graph).map_err(|source| Error::Verify { pass: "shard", source })?;
        }
        done("shard", &graph);
    }
    let mesh = options.sharding.map(|(mesh, _)| mesh);
    let (mut local, mut local_mesh, mut fallbacks) = (None, None, Vec::new());
    if let (Some(mesh), true) = (mesh, options.explicit) {
        let propagated = propagate_with_sub_axes(&graph, mesh);
        done("propagate", &graph);
        let Partitioned { graph: partitioned, fallbacks: found } =
            partition(&propagated.graph, &propagated.mesh, &propagated.shardings)?;
        if options.deny_replication && !found.is_empty() {
            return Err(Error::Replication(found));
        }
        fallbacks = found;
        done("partition", &partitioned);
        let steps = schedule(LOCAL_PASSES, options.without, limits);
        let run = run_passes(&partitioned, &steps, limits, |name, graph| {
            done(name, graph);
            Ok(())
        })?;
        if !options.skip_verifier {
            verify_passes(&partitioned, &run, &steps, limits)?;
            done("verify", &run);
        }
        local = Some(run.into_owned());
        local_mesh = Some(propagated.mesh);
    }
    let emit_options = EmitOptions {
        mesh: local_mesh.as_ref().or(mesh),
        aliases: &options.aliases,
        omit_metadata: options.omit_metadata,
        partitioned: local.is_some(),
        annotation: options.annotation,
        groups: options.groups,
        overlap_collectives: options.overlap_collectives,
        host_memory: options.host_memory,
    };
    let module = emit(local.as_ref().unwrap_or(&graph), emit_options);
    timings.push(PassTiming { pass: "emit", time: start.elapsed(), node_count: graph.total_node_count() });
    // A manual region is entered by tiles.
    let annotation = if local.is_some() { Annotation::Tiles } else { options.annotation };
    Ok(Lowered {
        graph,
        unpadded: logical,
        local,
        local_mesh,
        module,
        mesh: mesh.cloned(),
        aliases: options.aliases.clone(),
        annotation,
        debug_sharding: table,
        diagnostics,
        fallbacks,
        timings,
    })
}

impl Lowered {
    /// All that is worth a warning, as text.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let rules = self.diagnostics.iter().map(ToString::to_string);
        rules.chain(self.fallbacks.iter().map(ToString::to_string))
    }

    /// How inputs or outputs are laid out over the devices: those of these types (padded), and of those that the user knows.
    fn array_specs<'t>(
        &self,
        padded: impl Iterator<Item = &'t TensorType>,
        types: impl Iterator<Item = &'t TensorType>,
        info: &[PortInfo],
    ) -> Result<Vec<ArraySpec>, Error> {
        let one = |((padded, ty), info): ((&TensorType, &TensorType), &PortInfo)| {
            let layout = match (self.local_mesh.as_ref().or(self.mesh.as_ref()), &info.spec) {
                (Some(mesh), Some(spec)) => ShardLayout::from_boxes(&padded.dims, spec.boxes(mesh, &padded.dims)?)?,
                (mesh, _) => ShardLayout::replicated(&padded.dims, mesh.map_or(1, Mesh::device_count)),
            };
            Ok(ArraySpec { ty: ty.clone(), layout: layout.with_value_dims(&ty.dims)? })
        };
        padded.zip(types).zip(info).map(one).collect()
    }

    /// Compiles the module on a client.
    ///
    /// # Errors
    /// The client has too few devices, or the plugin refuses the module.
    pub fn compile(&self, client: &Client) -> Result<Program, Error> {
        self.compile_with(client, &self.compile_options(client)?)
    }

    /// What the module asks of a compiler for a client's devices.
    ///
    /// # Errors
    /// The client has too few devices.
    pub fn compile_options(&self, client: &Client) -> Result<CompileOptions, Error> {
        let usable = client.devices().iter().filter(|device| device.addressable);
        self.options_on(&usable.map(Device::place).collect::<Vec<_>>())
    }

    /// What the module asks of a compiler: as many partitions as the mesh has devices, in the order that suits the mesh.
    ///
    /// # Errors
    /// There are too few devices.
    pub fn options_on(&self, devices: &[DevicePlace]) -> Result<CompileOptions, Error> {
        let Some(mesh) = &self.mesh else { return Ok(CompileOptions::default()) };
        Ok(CompileOptions::over_mesh(mesh, devices)?.annotated(self.annotation))
    }

    /// Compiles the module on a client, with options that start from [`Lowered::compile_options`].
    ///
    /// # Errors
    /// As [`Lowered::compile`]; or the plugin does not know an option.
    pub fn compile_with(&self, client: &Client, options: &CompileOptions) -> Result<Program, Error> {
        let graph = &self.graph;
        let executable = client.compile(&self.module.bytes, options)?;
        let ports = self.unpadded.clone().unwrap_or_else(|| Ports::of(graph));
        // Where the local program leaves its outputs, if nobody asked for them elsewhere, only it knows.
        let local = self.local.as_ref().unwrap_or(graph);
        let inputs = self.array_specs(graph.input_types(), ports.inputs.iter(), local.input_info())?;
        let outputs = self.array_specs(graph.output_types(), ports.outputs.iter(), local.output_info())?;
        Ok(Program { executable, inputs, outputs, collectives: self.collectives() })
    }
}

/// A compiled function of arrays.
#[derive(Clone)]
pub struct Program {
    executable: Executable,
    inputs: Vec<ArraySpec>,
    outputs: Vec<ArraySpec>,
    collectives: Ledger,
}

impl Program {
    /// The executable.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Type and layout of each input.
    pub fn inputs(&self) -> &[ArraySpec] {
        &self.inputs
    }

    /// Type and layout of each output.
    pub fn outputs(&self) -> &[ArraySpec] {
        &self.outputs
    }

    /// Copies a tree of literals to the devices, laid out as the inputs from index `first` on.
    ///
    /// # Errors
    /// The plugin is out of memory, or there are more literals than inputs.
    pub fn put<L>(&self, first: usize, literals: &L) -> Result<L::Mapped, Error>
    where
        L: Tree<Leaf = crate::ir::Literal> + MapTree<Array>,
    {
        let leaves = literals.leaves();
        let mut arrays = Vec::with_capacity(leaves.len());
        for (index, literal) in leaves.iter().enumerate() {
            let Some(spec) = self.inputs.get(first + index) else {
                let given = first + leaves.len();
                return Err(ArgumentError::Count { inputs: self.inputs.len(), given }.into());
            };
            let executable = &self.executable;
            arrays.push(Array::put_on(executable.client(), literal, &spec.layout, executable.devices())?);
        }
        Ok(literals.fill(arrays)?)
    }

    /// Starts an execution; results are ready when read. Donated arguments cannot be used again.
    ///
    /// # Errors
    /// An argument has another type or layout than the program's input, or has been donated.
    pub fn run(&self, arguments: &[&Array]) -> Result<Vec<Array>, Error> {
        Ok(self.executable.run(arguments, &self.outputs)?)
    }
}
