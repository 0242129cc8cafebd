//! From a traced graph to a module.

use std::time::Instant;

use meshloom_hlo::mesh::Mesh;

use super::passes::{LOCAL_PASSES, PASSES, Pass, check_pass_names, run_passes, schedule, verify_passes};
use super::stages::{LoweredProgram, PassTiming, Ports};
use super::{AliasProblem, ArgumentError, Error, LowerOptions, Lowered, PartitionMode, Partitioned, Sharded};
use crate::emit::{EmitOptions, ProgramForm, emit, needs_local_form};
use crate::ir::{Graph, verify};
use crate::kernels::{KernelUse, expand};
use crate::partition::{self, PartitionError, pad_uneven};
use crate::passes::{CollectiveLevels, collectives_by_process};
use crate::sharding::{RuleSets, annotate, cut_axes, propagate_with_sub_axes};

/// Runs all passes and emits the module.
///
/// # Errors
/// `without` names something that is not a pass; `aliases` names an output or input that does not exist, a pair of
/// different types, or one of them twice; rules, mesh and program do not fit together; or a pass breaks an invariant,
/// which is a defect.
pub fn lower(graph: &Graph, options: &LowerOptions<'_>) -> Result<Lowered, Error> {
    check_pass_names(options.without, options.further)?;
    check_aliases(graph, &options.aliases)?;
    let mut lowering = Lowering { options, timings: Vec::new(), kernels: Vec::new(), start: Instant::now() };
    let mut graph = lowering.passes(graph, PASSES)?;
    if !options.further.is_empty() {
        graph = lowering.passes(&graph, options.further)?;
    }
    let program = match options.sharding {
        None => LoweredProgram::OneDevice(lowering.kernels(&graph)?),
        Some((mesh, rules)) => {
            let sharded = Box::new(lowering.shard(graph, mesh, rules)?);
            match options.partition {
                PartitionMode::Annotated(_) if options.processes > 1 => {
                    return Err(ArgumentError::Processes { processes: options.processes }.into());
                }
                PartitionMode::Annotated(annotation) => LoweredProgram::Annotated { sharded, annotation },
                PartitionMode::Explicit => {
                    let partitioned = Box::new(lowering.partition(&sharded, rules)?);
                    LoweredProgram::Explicit { sharded, partitioned }
                }
            }
        }
    };
    lowering.emit(program)
}

/// Checks that an output and an input exist, have one type, and share a buffer with no other: otherwise XLA ends the
/// process.
fn check_aliases(graph: &Graph, aliases: &[(usize, usize)]) -> Result<(), Error> {
    let (inputs, outputs) = (graph.inputs(), graph.outputs());
    let (mut of_inputs, mut of_outputs) = (vec![None; inputs.len()], vec![None; outputs.len()]);
    for (index, &(output, input)) in aliases.iter().enumerate() {
        let refuse = |reason| Err(ArgumentError::Alias { output, input, reason }.into());
        let (Some(&of_output), Some(&of_input)) = (outputs.get(output), inputs.get(input)) else {
            let (inputs, outputs) = (inputs.len(), outputs.len());
            return refuse(AliasProblem::Missing { inputs, outputs });
        };
        let (of_output, of_input) = (graph.ty(of_output), graph.ty(of_input));
        if of_output != of_input {
            return refuse(AliasProblem::Types { output: of_output.clone(), input: of_input.clone() });
        }
        let earlier = [of_outputs[output].replace(index), of_inputs[input].replace(index)];
        if let Some(earlier) = earlier.into_iter().flatten().min() {
            let (output, input) = aliases[earlier];
            return refuse(AliasProblem::Twice { output, input });
        }
    }
    Ok(())
}

/// Emits a graph as it was traced, for one device: no pass runs.
///
/// # Errors
/// The options give a mesh and rules, or `aliases` that [`lower`] would refuse; or an op does not emit all its results,
/// which is a defect.
pub fn lower_as_traced(graph: &Graph, options: &LowerOptions<'_>) -> Result<Lowered, Error> {
    if options.sharding.is_some() {
        let (function, instead) = ("lower_as_traced", "lower");
        return Err(ArgumentError::Unfollowed { function, field: "sharding", instead }.into());
    }
    check_pass_names(options.without, options.further)?;
    check_aliases(graph, &options.aliases)?;
    let lowering = Lowering { options, timings: Vec::new(), kernels: Vec::new(), start: Instant::now() };
    lowering.emit(LoweredProgram::OneDevice(graph.clone()))
}

/// A graph that is being lowered, and the time of each pass.
struct Lowering<'a> {
    options: &'a LowerOptions<'a>,
    timings: Vec<PassTiming>,
    kernels: Vec<KernelUse>,
    start: Instant,
}

impl Lowering<'_> {
    fn done(&mut self, pass: &'static str, graph: &Graph) {
        let time = self.start.elapsed();
        self.timings.push(PassTiming { pass, time, node_count: graph.total_node_count() });
        tracing::debug!(pass, ?time, "pass done");
        self.start = Instant::now();
    }

    /// As [`Lowering::done`], once the verifier has looked at the graph.
    fn verified(&mut self, pass: &'static str, graph: &Graph) -> Result<(), Error> {
        if !self.options.skip_verifier {
            verify(graph).map_err(|source| Error::Verify { pass, source })?;
        }
        self.done(pass, graph);
        Ok(())
    }

    fn passes(&mut self, graph: &Graph, table: &[Pass]) -> Result<Graph, Error> {
        let limits = &self.options.limits;
        let steps = schedule(table, self.options.without, limits);
        let run = run_passes(graph, &steps, limits, |name, graph| {
            self.done(name, graph);
            Ok(())
        })?;
        if !self.options.skip_verifier {
            verify_passes(graph, &run, &steps, limits)?;
            self.done("verify", &run);
        }
        Ok(run.into_owned())
    }

    fn shard(&mut self, graph: Graph, mesh: &Mesh, rules: &RuleSets) -> Result<Sharded, Error> {
        let aliases = &self.options.aliases;
        let annotated = annotate(&graph, mesh, rules, aliases)?;
        let (graph, unpadded) = match pad_uneven(&annotated.graph, mesh, aliases, self.options.exact_ports)? {
            Some(padded) => (padded, Some(Ports::of(&annotated.graph))),
            None => (annotated.graph, None),
        };
        self.verified("shard", &graph)?;
        let (table, diagnostics) = (annotated.table, annotated.diagnostics);
        Ok(Sharded { graph, unpadded, mesh: mesh.clone(), table, diagnostics })
    }

    fn partition(&mut self, sharded: &Sharded, rules: &RuleSets) -> Result<Partitioned, Error> {
        let levels = self.options.levels.as_ref().and_then(|levels| CollectiveLevels::new(&sharded.mesh, levels));
        let parts = match (self.options.processes, &levels) {
            (0 | 1, levels) => levels.as_ref().map(|levels| levels.parts.clone()),
            (processes, _) => Some(sharded.mesh.at_processes(processes)?),
        };
        let cut = parts.and_then(|parts| cut_axes(&sharded.graph, &sharded.mesh, &parts));
        let (graph, mesh) = cut.as_ref().map_or((&sharded.graph, &sharded.mesh), |(graph, mesh)| (graph, mesh));
        let propagated = propagate_with_sub_axes(graph, mesh);
        self.done("propagate", &sharded.graph);
        let partition::LocalProgram { graph, fallbacks } =
            partition::partition(&propagated.graph, &propagated.mesh, &propagated.shardings)?;
        if self.options.deny_replication && !fallbacks.is_empty() {
            let setting = rules.compute.settings().replication;
            return Err(PartitionError::Replication { fallbacks, setting }.into());
        }
        self.done("partition", &graph);
        let graph = self.passes(&graph, LOCAL_PASSES)?;
        let mut graph = self.kernels(&graph)?;
        if let Some(levels) = levels {
            graph = levels.write(&graph, &propagated.mesh);
            self.verified("collective-levels", &graph)?;
        }
        if self.options.processes > 1 {
            graph = collectives_by_process(&graph, &propagated.mesh, self.options.processes);
            self.verified("collectives-by-process", &graph)?;
        }
        Ok(Partitioned { graph, mesh: propagated.mesh, fallbacks })
    }

    /// Replaces ops that have several implementations by one of these, in the program of one device.
    fn kernels(&mut self, graph: &Graph) -> Result<Graph, Error> {
        let limits = &self.options.limits;
        let steps = schedule(PASSES, self.options.without, limits);
        let tidy = |graph: &Graph| match run_passes(graph, &steps, limits, |_, _| Ok(())) {
            Ok(tidied) => tidied.into_owned(),
            Err(_) => graph.clone(),
        };
        let (expanded, uses) = expand(graph, &self.options.kernels, &tidy)?;
        self.kernels = uses;
        self.verified("kernels", &expanded)?;
        Ok(expanded)
    }

    fn emit(mut self, program: LoweredProgram) -> Result<Lowered, Error> {
        let options = self.options;
        let form = self.form(&program);
        let graph = program.emitted();
        let emit_options = EmitOptions {
            mesh: program.emitted_mesh(),
            aliases: &options.aliases,
            omit_metadata: options.omit_metadata,
            partitioned: program.partitioned().is_some(),
            form,
            annotation: program.annotation(),
            groups: options.groups,
            overlap_collectives: options.overlap_collectives,
            host_memory: options.host_memory,
            processes: options.processes,
        };
        let module = emit(graph, emit_options)?;
        self.timings.push(PassTiming {
            pass: "emit",
            time: self.start.elapsed(),
            node_count: graph.total_node_count(),
        });
        let aliases = options.aliases.clone();
        let processes = if program.is_over_several() { options.processes.max(1) } else { 1 };
        Ok(Lowered { program, module, form, processes, aliases, timings: self.timings, kernels: self.kernels })
    }

    /// The form in which the module is written: as the options say, or the local form where an instruction needs it.
    fn form(&self, program: &LoweredProgram) -> ProgramForm {
        if program.partitioned().is_none() || !program.is_over_several() {
            return ProgramForm::Manual;
        }
        if needs_local_form(program.emitted()) || self.options.processes > 1 {
            ProgramForm::Local
        } else {
            self.options.form
        }
    }
}
