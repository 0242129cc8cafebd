//! The pass order: from a traced graph to a module, and from a module to a program that runs.
//!
//! ```text
//! traced -> passes of PASSES -> sharded -> emitted -> compiled
//! ```
//!
//! Each pass is timed. The verifier runs over what the passes have made; if it finds a defect, it runs after each of
//! them.

mod function;
mod report;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::Error;
use crate::hlo::{EmitOptions, EmittedModule, GroupFormat, emit};
use crate::ir::{Graph, verify};
use crate::partition::{Ledger, Partitioned, partition};
use crate::passes::{self, Rewrite};
use crate::pjrt::{Array, ArraySpec, Client, CompileOptions, Device, Executable, ShardLayout};
use crate::sharding::{Diagnostic, Mesh, RuleSets, Spec, annotate, propagate};
use crate::suggest::did_you_mean;
use crate::trace::{MapTree, Tree};

pub use function::{CompiledFunction, compile};

/// A pass that needs nothing but the graph.
pub struct Pass {
    /// Name, by which it is switched off.
    pub name: &'static str,
    /// What it does, in a few words.
    pub description: &'static str,
    step: Step,
}

enum Step {
    /// Part of the walk that writes a graph anew. Passes of this kind that stand next to each other share one walk, in
    /// which each sees what the others make.
    Rewrite(Rewrite),
    /// Anything else.
    Graph(fn(&Graph) -> Graph),
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

/// How a graph is lowered.
#[derive(Clone, Debug, Default)]
pub struct LowerOptions<'a> {
    /// The mesh and the rules by which logical axis names are sharded over it; none for one device.
    pub sharding: Option<(&'a Mesh, &'a RuleSets)>,
    /// Pairs of (output, input) that share a buffer: the input is donated.
    pub aliases: Vec<(usize, usize)>,
    /// Names of passes of [`PASSES`] that do not run.
    pub without: &'a [&'a str],
    /// Whether meshloom partitions the graph over the mesh, rather than XLA.
    pub explicit: bool,
    /// How collectives name their devices. The compact forms make the module's size independent of the mesh, but only the
    /// plugins of one generation each read them: [`GroupFormat::read_by`] says which. Lists are read by all.
    pub groups: GroupFormat,
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

/// A graph on its way to a plugin.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The graph of global shapes, with specs on its ports.
    pub graph: Graph,
    /// The program of one device, where meshloom partitioned it.
    pub local: Option<Graph>,
    /// The module.
    pub module: EmittedModule,
    /// The mesh it is partitioned over, if any.
    pub mesh: Option<Mesh>,
    /// Pairs of (output, input) that share a buffer.
    pub aliases: Vec<(usize, usize)>,
    /// What rules warned of.
    pub diagnostics: Vec<Diagnostic>,
    /// Time of each pass, in order.
    pub timings: Vec<PassTiming>,
}

/// The passes that run, each with the name under which it is timed: rewrites that share a walk as one.
fn schedule(without: &[&str]) -> Result<Vec<(&'static str, Step)>, Error> {
    for &name in without {
        if !PASSES.iter().any(|pass| pass.name == name) {
            let suggestion = did_you_mean(name, PASSES.iter().map(|pass| pass.name));
            return Err(Error::UnknownPass { name: name.to_owned(), suggestion });
        }
    }
    let mut steps: Vec<(&'static str, Step)> = Vec::new();
    for pass in PASSES.iter().filter(|pass| !without.contains(&pass.name)) {
        match (steps.last_mut(), &pass.step) {
            (Some((name, Step::Rewrite(before))), Step::Rewrite(rewrite)) => {
                (*name, *before) = ("rewrite", before.and(*rewrite));
            }
            (_, Step::Rewrite(rewrite)) => steps.push((pass.name, Step::Rewrite(*rewrite))),
            (_, Step::Graph(run)) => steps.push((pass.name, Step::Graph(*run))),
        }
    }
    Ok(steps)
}

/// Runs the passes; `done` gets the name and the result of each.
fn run_passes<'g>(
    graph: &'g Graph,
    steps: &[(&'static str, Step)],
    mut done: impl FnMut(&'static str, &Graph) -> Result<(), Error>,
) -> Result<Cow<'g, Graph>, Error> {
    let mut current = Cow::Borrowed(graph);
    for (name, step) in steps {
        current = Cow::Owned(match step {
            Step::Rewrite(rewrite) => rewrite.run(&current),
            Step::Graph(run) => run(&current),
        });
        done(name, &current)?;
    }
    Ok(current)
}

/// Verifies what the passes have made. One look at the result is enough as long as nothing is wrong; if something is,
/// they run again and are verified one by one, to tell which is at fault.
fn verify_passes(before: &Graph, after: &Graph, steps: &[(&'static str, Step)]) -> Result<(), Error> {
    let refuse = |pass| move |source| Error::Verify { pass, source };
    let Err(source) = verify(after) else { return Ok(()) };
    verify(before).map_err(refuse("the program as it was traced"))?;
    run_passes(before, steps, |pass, graph| verify(graph).map_err(refuse(pass)))?;
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
    let steps = schedule(options.without)?;
    let run = run_passes(graph, &steps, |name, graph| {
        done(name, graph);
        Ok(())
    })?;
    if !options.skip_verifier {
        verify_passes(graph, &run, &steps)?;
        done("verify", &run);
    }
    let mut graph = run.into_owned();
    let mut diagnostics = Vec::new();
    if let Some((mesh, rules)) = options.sharding {
        let annotated = annotate(&graph, mesh, rules, &options.aliases)?;
        diagnostics = annotated.diagnostics;
        graph = annotated.graph;
        if !options.skip_verifier {
            verify(&graph).map_err(|source| Error::Verify { pass: "shard", source })?;
        }
        done("shard", &graph);
    }
    let mesh = options.sharding.map(|(mesh, _)| mesh);
    let mut local = None;
    if let (Some(mesh), true) = (mesh, options.explicit) {
        let shardings = propagate(&graph, mesh);
        done("propagate", &graph);
        let Partitioned { graph: partitioned, fallbacks: _ } = partition(&graph, mesh, &shardings)?;
        done("partition", &partitioned);
        let partitioned = passes::eliminate_dead_code(&passes::eliminate_common_subexpressions(&partitioned));
        done("clean-up", &partitioned);
        local = Some(partitioned);
    }
    let emit_options = EmitOptions {
        mesh,
        aliases: &options.aliases,
        omit_metadata: options.omit_metadata,
        partitioned: local.is_some(),
        groups: options.groups,
        host_memory: options.host_memory,
    };
    let module = emit(local.as_ref().unwrap_or(&graph), emit_options);
    timings.push(PassTiming { pass: "emit", time: start.elapsed(), node_count: graph.total_node_count() });
    let aliases = options.aliases.clone();
    Ok(Lowered { graph, local, module, mesh: mesh.cloned(), aliases, diagnostics, timings })
}

impl Lowered {
    /// How an input or output is laid out over the devices.
    fn array_spec(&self, value: crate::ir::Value, spec: Option<&Spec>) -> Result<ArraySpec, Error> {
        let ty = self.graph.ty(value).clone();
        let layout = match (&self.mesh, spec) {
            (Some(mesh), Some(spec)) => ShardLayout::from_boxes(&ty.dims, spec.boxes(mesh, &ty.dims)?)?,
            (mesh, _) => ShardLayout::replicated(&ty.dims, mesh.as_ref().map_or(1, Mesh::device_count)),
        };
        Ok(ArraySpec { ty, layout })
    }

    /// Compiles the module on a client.
    ///
    /// # Errors
    /// The client has too few devices, or the plugin refuses the module.
    pub fn compile(&self, client: &Client) -> Result<Program, Error> {
        self.compile_with(client, &self.compile_options(client)?)
    }

    /// What the module asks of a compiler: as many partitions as the mesh has devices, in the order that suits the mesh.
    ///
    /// # Errors
    /// The client has too few devices.
    pub fn compile_options(&self, client: &Client) -> Result<CompileOptions, Error> {
        let Some(mesh) = &self.mesh else { return Ok(CompileOptions::default()) };
        let usable = client.devices().iter().filter(|device| device.addressable);
        Ok(CompileOptions::over_mesh(mesh, &usable.map(Device::place).collect::<Vec<_>>())?)
    }

    /// Compiles the module on a client, with options that start from [`Lowered::compile_options`].
    ///
    /// # Errors
    /// As [`Lowered::compile`]; or the plugin does not know an option.
    pub fn compile_with(&self, client: &Client, options: &CompileOptions) -> Result<Program, Error> {
        let graph = &self.graph;
        let executable = client.compile(&self.module.bytes, options)?;
        let specs = |values: &[crate::ir::Value], info: &[crate::ir::PortInfo]| {
            let each = values.iter().zip(info).map(|(&value, info)| self.array_spec(value, info.spec.as_ref()));
            each.collect::<Result<Vec<_>, _>>()
        };
        let inputs = specs(graph.inputs(), graph.input_info())?;
        let outputs = specs(graph.outputs(), graph.output_info())?;
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
                return Err(crate::error::TraceError::other(format!(
                    "the program has {} inputs, but {} are given",
                    self.inputs.len(),
                    first + leaves.len()
                )));
            };
            let executable = &self.executable;
            arrays.push(Array::put_on(executable.client(), literal, &spec.layout, executable.devices())?);
        }
        let mut arrays = arrays.into_iter();
        let first = arrays.next();
        let Some(first) = first else {
            return Err(crate::error::TraceError::other("there are no literals to put".to_owned()));
        };
        let mut arrays = [first.clone()].into_iter().chain(arrays);
        // One array was made for each leaf.
        Ok(literals.map(|_, _| arrays.next().unwrap_or_else(|| first.clone())))
    }

    /// Starts an execution; results are ready when read. Donated arguments cannot be used again.
    ///
    /// # Errors
    /// An argument has another type or layout than the program's input, or has been donated.
    pub fn run(&self, arguments: &[&Array]) -> Result<Vec<Array>, Error> {
        Ok(self.executable.run(arguments, &self.outputs)?)
    }
}
