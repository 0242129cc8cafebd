//! The tables of passes, and how they run.

use std::borrow::Cow;
use std::fmt;

use meshloom_hlo::suggest::did_you_mean;

use super::Error;
use crate::ir::{Graph, verify};
use crate::passes::{self, CollectiveLimits, CollectiveMatmul, Rewrite};

/// A pass that needs only the graph.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Name, by which it is switched off.
    pub name: &'static str,
    /// The action of the pass, in a few words.
    pub description: &'static str,
    pub(super) step: PassStep,
}

#[derive(Clone, Copy)]
pub(super) enum PassStep {
    /// A part of the walk that writes a graph anew. Passes of this kind that stand next to each other share one walk,
    /// in which each sees the nodes that the others make.
    Rewrite(Rewrite),
    /// As [`PassStep::Rewrite`], within limits.
    LimitedRewrite(fn(&CollectiveLimits) -> Rewrite),
    /// Anything else.
    Graph(fn(&Graph) -> Graph),
    /// Anything else, within limits.
    LimitedGraph(fn(&Graph, &CollectiveLimits) -> Graph),
    /// Collective matmul, which is left out where it is off.
    Matmul,
}

impl PassStep {
    fn run(&self, graph: &Graph, limits: &CollectiveLimits) -> Graph {
        match self {
            PassStep::Rewrite(rewrite) => rewrite.run(graph),
            PassStep::LimitedRewrite(rewrite) => rewrite(limits).run(graph),
            PassStep::Graph(run) => run(graph),
            PassStep::LimitedGraph(run) => run(graph, limits),
            PassStep::Matmul => passes::collective_matmul(graph, limits.matmul),
        }
    }
}

impl Pass {
    /// A pass of the caller's own ([`LowerOptions::further`](super::LowerOptions::further)).
    pub const fn of(name: &'static str, description: &'static str, run: fn(&Graph) -> Graph) -> Pass {
        Pass { name, description, step: PassStep::Graph(run) }
    }

    /// Runs this pass alone.
    pub fn run(&self, graph: &Graph, limits: &CollectiveLimits) -> Graph {
        self.step.run(graph, limits)
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({}: {})", self.name, self.description)
    }
}

/// A table with a name, a description and a step in each row.
macro_rules! passes {
    ($($name:literal: $description:literal, $step:expr;)*) => {
        &[$(Pass { name: $name, description: $description, step: $step }),*]
    };
}

/// The graph-to-graph passes, in the order they run.
///
/// The order has these reasons: scans are written out first, so that all other passes see the copies. All passes but
/// the first and the last are done in one walk, node by node, so that none has to wait for another to be through:
/// folding feeds algebra, both feed the clean-up of scans (a carry to which zero is added does not change), and that
/// feeds them (a constant that is made in the body is folded there). Within the walk, a node is without markers before
/// it is folded, folded before it is simplified, and merged when nothing is left to simplify; a scan's body is done
/// before anything is moved out of it, and moved nodes are merged with the nodes outside. Dead code is last: each pass
/// before leaves nodes that nothing reads any more, and ports of scans that nothing needs.
pub const PASSES: &[Pass] = passes! {
    "unroll": "writes scans with an unroll factor out", PassStep::Graph(passes::unroll);
    "markers": "drops names and gradient stops, writes checkpoints and custom gradients in place",
        PassStep::Rewrite(passes::ERASE_MARKERS);
    "constant-folding": "computes small constants and splats", PassStep::Rewrite(passes::FOLD_CONSTANTS);
    "algebra": "applies identities that hold for every bit", PassStep::Rewrite(passes::SIMPLIFY);
    "scan-operands": "makes constants in scan bodies, takes out carries and outputs that do not change",
        PassStep::Rewrite(passes::SCAN_OPERANDS);
    "loop-invariants": "moves what every iteration computes alike in front of the loop, if it is small",
        PassStep::Rewrite(passes::HOIST_SMALL);
    "common-subexpressions": "merges nodes with equal ops and operands, and equal bodies", PassStep::Rewrite(passes::MERGE);
    "dead-code": "drops what no output depends on", PassStep::Graph(passes::eliminate_dead_code);
};

/// The passes over the program of one device, in the order they run. Three of them are those of [`PASSES`], again.
///
/// The order has these reasons: collectives that cancel need be neither hoisted nor combined; a value that is gathered
/// in front of two loops is gathered once; no live collective is combined with a dead one; the readers of a gathered
/// value are known when equal nodes are one and dead ones gone, before a gather that could be a ring is sent with
/// another; a loop whose gathers have become rings can have a buffer beside it; and packed collectives are not combined
/// with more.
pub const LOCAL_PASSES: &[Pass] = passes! {
    "gather-slice": "takes out collectives that undo each other, and does two reductions as one",
        PassStep::Graph(passes::cancel_collectives);
    "hoist-gathers": "gathers what a loop does not change in front of it, if memory allows",
        PassStep::LimitedRewrite(|limits| passes::hoisting(limits.hoisted_bytes));
    "algebra": "applies algebraic identities once more: in parts, dimensions may have a single element",
        PassStep::Rewrite(passes::SIMPLIFY);
    "scan-carries": "carries values without the dimensions of one element that iterations take off and put back",
        PassStep::Rewrite(passes::SCAN_CARRIES);
    "common-subexpressions": "merges nodes with equal ops and operands, and equal bodies", PassStep::Rewrite(passes::MERGE);
    "dead-code": "drops what no output depends on", PassStep::Graph(passes::eliminate_dead_code);
    "collective-matmul":
        "cuts products beside all-gathers and reduce-scatters, and sends while it multiplies, where asked", PassStep::Matmul;
    "pack-collectives": "makes one transfer of all that can run beside a loop, where one loop hides only one",
        PassStep::LimitedGraph(|graph, limits| passes::pack_collectives(graph, limits.packed_bytes));
    "combine-collectives": "makes one collective of several of a kind that are ready together",
        PassStep::LimitedGraph(|graph, limits| {
            passes::combine_collectives(graph, limits.combined_bytes, limits.all_reduce_bytes)
        });
};

/// Checks that the names of passes to leave out are names of passes, of ours or of the caller's.
pub(super) fn check_pass_names(without: &[&str], further: &[Pass]) -> Result<(), Error> {
    let known = || PASSES.iter().chain(LOCAL_PASSES).chain(further).map(|pass| pass.name);
    match without.iter().find(|&&name| !known().any(|pass| pass == name)) {
        None => Ok(()),
        Some(&name) => Err(Error::UnknownPass { name: name.to_owned(), suggestion: did_you_mean(name, known()) }),
    }
}

/// The steps of a table that run, each with the name under which it is timed: rewrites that share a walk as one.
pub(super) fn schedule(table: &[Pass], without: &[&str], limits: &CollectiveLimits) -> Vec<(&'static str, PassStep)> {
    let mut steps: Vec<(&'static str, PassStep)> = Vec::new();
    let is_off = |step: PassStep| matches!(step, PassStep::Matmul) && limits.matmul == CollectiveMatmul::Off;
    let runs = |pass: &&Pass| !without.contains(&pass.name) && !is_off(pass.step);
    for pass in table.iter().filter(runs) {
        let step = match pass.step {
            PassStep::LimitedRewrite(rewrite) => PassStep::Rewrite(rewrite(limits)),
            step => step,
        };
        match (steps.last_mut(), step) {
            (Some((name, PassStep::Rewrite(before))), PassStep::Rewrite(rewrite)) => {
                (*name, *before) = ("rewrite", before.and(rewrite));
            }
            (_, step) => steps.push((pass.name, step)),
        }
    }
    steps
}

/// Runs the passes; `done` gets the name and the result of each.
pub(super) fn run_passes<'g>(
    graph: &'g Graph,
    steps: &[(&'static str, PassStep)],
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

/// Verifies the result of the passes. One look at it is enough as long as nothing is wrong; if something is, the passes
/// run again and are verified one by one, to tell which is at fault.
pub(super) fn verify_passes(
    before: &Graph,
    after: &Graph,
    steps: &[(&'static str, PassStep)],
    limits: &CollectiveLimits,
) -> Result<(), Error> {
    let refuse = |pass| move |source| Error::Verify { pass, source };
    let Err(source) = verify(after) else { return Ok(()) };
    verify(before).map_err(refuse("the program as it was traced"))?;
    run_passes(before, steps, limits, |pass, graph| verify(graph).map_err(refuse(pass)))?;
    Err(Error::Verify { pass: "the passes", source })
}
