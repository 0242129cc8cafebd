//! The constraints that are tried, and those of them that are worth telling.

use std::cmp::Reverse;

use anyhow::Result;
use indexmap::IndexSet;
use meshloom::compile::{
    ConstraintSite, ConstraintTrial, ConstraintTrials, DeviceFigures, Lowered, SiteKind, constrained, constraint_sites,
    shares_work,
};
use meshloom::ir::Spec;
use meshloom_analysis::{SlicedWhole, WholeBy};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;
use schemars::JsonSchema;
use serde::Serialize;

use super::differences::Difference;
use super::sides::{Compiler, PartitionedSide};
use crate::input::Loaded;

/// The most constraints that are told, and the most that XLA is asked about.
const MOST_ADVICE: usize = 5;
const MOST_COMPILED: usize = 12;

/// The most differences, and the most values of each, for which a constraint is looked for.
const MOST_DIFFERENCES: usize = 6;
const MOST_VALUES: usize = 2;

/// The reason for a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Benefit {
    /// A device sends less with it.
    LessTraffic,
    /// Devices share work that each did for itself.
    SharedWork,
    /// Meshloom sends no more with it, and XLA has a collective at this value that ours has not.
    AsOurs,
}

/// A constraint that the program was partitioned with.
#[derive(JsonSchema, Serialize)]
pub struct Advice {
    /// The kind of value that it would be on: `input`, `result`, `stated` (in place of a constraint that the program
    /// has) or `value`.
    pub on: &'static str,
    /// The reason for it.
    pub benefit: Benefit,
    /// The name of the instruction.
    pub name: String,
    /// The type of the value, with global dimensions.
    pub tensor: String,
    /// The scope path and op of its metadata.
    pub op_name: String,
    /// Its source line as `file:line`, if the module has it.
    pub source: Option<String>,
    /// The spec that the program states here, as a `PartitionSpec` of JAX; null if it states none.
    pub stated: Option<String>,
    /// The spec that was tried; null if the stated constraint was left out.
    pub spec: Option<String>,
    /// The figures of meshloom's program as it is.
    pub before: Figures,
    /// The figures of meshloom's program with the constraint.
    pub after: Figures,
    /// The bytes that a device sends with XLA's program as it is and with the constraint, both compiled here; as in
    /// `theirs_scattered`.
    pub compiled: Option<[u64; 2]>,
    /// Whether XLA was given all of these constraints together, because none of them alone makes it send less.
    pub together: bool,
}

/// The figures of a device.
#[derive(Clone, Copy, JsonSchema, Serialize)]
pub struct Figures {
    /// The bytes that it sends.
    pub moved_bytes: u64,
    /// The bytes that it needs, estimated.
    pub peak: u64,
    /// The operations that it computes.
    pub operations: u64,
}

impl From<DeviceFigures> for Figures {
    fn from(DeviceFigures { moved_bytes, peak, operations }: DeviceFigures) -> Figures {
        Figures { moved_bytes, peak, operations }
    }
}

/// All trials of a program.
#[derive(Default)]
pub struct Tried {
    pub advice: Vec<Advice>,
    pub trials: usize,
    pub compiled_in_vain: usize,
    /// Whether nothing could be tried, since a loop runs an unknown number of times.
    pub is_unknown: bool,
    /// Whether there was more to try.
    pub is_cut: bool,
}

/// A constraint that is worth telling.
struct Candidate<'s> {
    site: &'s ConstraintSite,
    trial: ConstraintTrial,
    benefit: Benefit,
}

impl Tried {
    /// Tries constraints on a program, at most so many; where XLA differs first, then on what the program leaves open
    /// or states itself, the largest values first.
    pub fn of(
        program: &Loaded,
        (lowered, base): (&Lowered, Option<DeviceFigures>),
        (differences, sliced): (&[Difference], &[SlicedWhole]),
        compiler: Option<&Compiler>,
        most: usize,
    ) -> Result<Tried> {
        let Some(mesh) = lowered.mesh() else { return Ok(Tried::default()) };
        let Some(base) = base else { return Ok(Tried { is_unknown: true, ..Tried::default() }) };
        let mut sites = constraint_sites(&program.module, mesh);
        sites.sort_by_key(|site| Reverse(site.ty.byte_count()));
        let mut trials = ConstraintTrials::new(&program.module, lowered, mesh, base, most);
        let mut candidates: Vec<Candidate<'_>> = Vec::new();
        let values = where_xla_differs(&sites, differences, sliced);
        let others = (0..sites.len()).filter(|&at| sites[at].kind != SiteKind::Value && !values.contains(&at));
        let mut is_cut = false;
        for at in values.iter().copied().chain(others) {
            if trials.is_over() {
                is_cut = true;
                break;
            }
            let site = &sites[at];
            let Some(trial) = trials.search(site)? else { continue };
            let benefit = match (trial.figures, values.contains(&at)) {
                (after, _) if is_clearly_less(base.moved_bytes, after.moved_bytes) => Benefit::LessTraffic,
                (after, _) if shares_work(base, after) => Benefit::SharedWork,
                (_, true) => Benefit::AsOurs,
                _ => continue,
            };
            candidates.push(Candidate { site, trial, benefit });
        }
        // The order of XLA's differences stays, and what is good for both comes first.
        candidates.sort_by_key(|it| {
            let DeviceFigures { moved_bytes, peak, operations } = it.trial.figures;
            (it.benefit != Benefit::LessTraffic, moved_bytes, operations, peak)
        });
        let (advice, compiled_in_vain) = told(program, mesh, base, &candidates, compiler)?;
        Ok(Tried { advice, trials: trials.count(), compiled_in_vain, is_unknown: false, is_cut })
    }
}

/// Whether a device sends at least a hundredth less.
fn is_clearly_less(before: u64, after: u64) -> bool {
    after.saturating_mul(100) <= before.saturating_mul(99) && after < before
}

/// Returns the numbers of the sites where XLA has a collective that ours has not, those with most bytes first.
fn where_xla_differs(sites: &[ConstraintSite], differences: &[Difference], sliced: &[SlicedWhole]) -> IndexSet<usize> {
    // A sum that later passes scatter is no difference that a constraint could mend.
    let (scattered, sliced): (Vec<_>, Vec<_>) = sliced.iter().partition(|it| it.by == WholeBy::ScatteredSum);
    let is_scattered = |it: &&Difference| {
        it.kind == "all-reduce" && scattered.iter().any(|sum| sum.op_name == it.op_name && sum.source == it.source)
    };
    let more = differences.iter().filter(|it| it.more_bytes.is_none_or(|bytes| bytes > 0) && !is_scattered(it));
    let of_differences = more.map(|it| (it.op_name.as_str(), it.source.as_deref(), it.tensor.as_str()));
    let of_sliced = sliced.iter().map(|it| (it.op_name.as_str(), it.source.as_deref(), it.whole.as_str()));
    let mut found = IndexSet::new();
    for (op_name, source, tensor) in of_differences.chain(of_sliced).take(MOST_DIFFERENCES) {
        let names = names(op_name);
        // A collective of several values has the line of one of them.
        let is_line = |site: &ConstraintSite| {
            names.len() > 1 || site.source.is_none() || source.is_none() || site.source.as_deref() == source
        };
        let is_there = |site: &ConstraintSite| names.contains(&site.op_name) && is_line(site);
        let mut there: Vec<usize> = (0..sites.len()).filter(|&at| is_there(&sites[at])).collect();
        // The shape tells apart the products of one line. XLA may also move a part of the value.
        let is_whole = |at: &usize| sites[*at].ty.to_string() == tensor;
        if there.iter().any(is_whole) {
            there.retain(is_whole);
        }
        // A constraint in front of another one decides nothing.
        let deciding = |at: usize| sites.iter().position(|site| sites[at].is_constrained_by(site)).unwrap_or(at);
        found.extend(there.into_iter().map(deciding).take(MOST_VALUES));
    }
    found
}

/// Returns the names of a collective, which has several if XLA put several together: `a/(b:c)` is `a/b` and `a/c`, and
/// `a;b` both.
fn names(op_name: &str) -> Vec<String> {
    let of_one = |name: &str| -> Vec<String> {
        match name.strip_suffix(')').and_then(|name| name.split_once("/(")) {
            Some((around, names)) if names.contains(':') => {
                names.split(':').map(|name| format!("{around}/{name}")).collect()
            }
            _ => vec![name.to_owned()],
        }
    };
    op_name.split(';').filter(|name| !name.is_empty()).flat_map(of_one).collect()
}

/// Returns the constraints to tell, and how many XLA was asked about in vain.
fn told(
    program: &Loaded,
    mesh: &Mesh,
    base: DeviceFigures,
    candidates: &[Candidate<'_>],
    compiler: Option<&Compiler>,
) -> Result<(Vec<Advice>, usize)> {
    let (mut advice, mut in_vain) = (Vec::new(), 0);
    let sent = |compiler: &Compiler, module: &HloModuleProto| -> Result<Option<u64>> {
        Ok(PartitionedSide::of(compiler.compile(program, module)?, None, program)?.scattered_bytes())
    };
    let before = compiler.map(|compiler| sent(compiler, &program.module)).transpose()?.flatten();
    let Some((compiler, before)) = compiler.zip(before) else {
        let told = candidates.iter().take(MOST_ADVICE);
        return Ok((told.map(|it| it.advice(mesh, base, None)).collect(), 0));
    };
    // XLA may refuse what meshloom takes; then nothing is known of its bytes.
    let less = |module: &HloModuleProto| match sent(compiler, module) {
        Ok(Some(after)) if after < before => Some(after),
        _ => None,
    };
    let candidates = &candidates[..candidates.len().min(MOST_COMPILED)];
    for it in candidates {
        match less(&constrained(&program.module, mesh, it.site, it.trial.spec.as_ref())) {
            Some(after) => advice.push(it.advice(mesh, base, Some([before, after]))),
            None => in_vain += 1,
        }
    }
    if advice.is_empty() && candidates.len() > 1 {
        let all = candidates
            .iter()
            .fold(program.module.clone(), |module, it| constrained(&module, mesh, it.site, it.trial.spec.as_ref()));
        if let Some(after) = less(&all) {
            let each = |it: &Candidate<'_>| Advice { together: true, ..it.advice(mesh, base, Some([before, after])) };
            return Ok((candidates.iter().map(each).collect(), in_vain));
        }
    }
    advice.sort_by_key(|it| it.compiled.map(|[_, after]| after));
    advice.truncate(MOST_ADVICE);
    Ok((advice, in_vain))
}

impl Candidate<'_> {
    fn advice(&self, mesh: &Mesh, base: DeviceFigures, compiled: Option<[u64; 2]>) -> Advice {
        let Candidate { site, trial, benefit } = self;
        Advice {
            on: match site.kind {
                SiteKind::Input => "input",
                SiteKind::Result => "result",
                SiteKind::Stated => "stated",
                SiteKind::Value => "value",
            },
            benefit: *benefit,
            name: site.name.clone(),
            tensor: site.ty.to_string(),
            op_name: site.op_name.clone(),
            source: site.source.clone(),
            stated: site.spec.as_ref().map(|spec| partition_spec(spec, mesh)),
            spec: trial.spec.as_ref().map(|spec| partition_spec(spec, mesh)),
            before: base.into(),
            after: trial.figures.into(),
            compiled,
            together: false,
        }
    }
}

/// Returns a spec as JAX writes it: `P(('data', 'fsdp'), None)`.
fn partition_spec(spec: &Spec, mesh: &Mesh) -> String {
    let dim = |axes: &meshloom::ir::Axes| {
        let names: Vec<String> = mesh.names_of(axes).into_iter().map(|name| format!("'{name}'")).collect();
        match names.as_slice() {
            [] => "None".to_owned(),
            [name] => name.clone(),
            names => format!("({})", names.join(", ")),
        }
    };
    format!("P({})", spec.dims().iter().map(dim).collect::<Vec<_>>().join(", "))
}
