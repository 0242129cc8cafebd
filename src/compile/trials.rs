//! Constraints, tried one by one: the module is partitioned again with each of them.

use meshloom_analysis::{CostOptions, Devices, cost, memory};
use meshloom_hlo::mesh::{Mesh, MeshAxis};
use meshloom_hlo::proto::HloModuleProto;

use super::constrain::{ConstraintSite, SiteKind, constrained, constraint_sites};
use super::{Error, LowerOptions, Lowered, lower_module};
use crate::ir::Spec;

/// The most mesh axes whose combinations are tried.
const MOST_AXES: usize = 4;

/// The figures of one device in a run of a partitioned program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFigures {
    /// The bytes that it sends, at most.
    pub moved_bytes: u64,
    /// The bytes that it holds at the peak, estimated.
    pub peak: u64,
    /// The operations that it computes.
    pub operations: u64,
}

impl DeviceFigures {
    /// Returns the figures of a program; `None` if a loop runs an unknown number of times, so that nothing can be
    /// compared.
    ///
    /// # Errors
    /// The program has no ledger, or its memory cannot be estimated.
    pub fn of(lowered: &Lowered) -> Result<Option<DeviceFigures>, Error> {
        let Some(moved_bytes) = lowered.collectives().moved_bytes()?.bound() else { return Ok(None) };
        let module = lowered.module.decode()?;
        let devices = Devices::partitioned(lowered.mesh().map_or(1, Mesh::device_count));
        let operations = cost(&module, &CostOptions::devices(devices)).total.flops;
        Ok(Some(DeviceFigures { moved_bytes, peak: memory(&module)?.peak, operations }))
    }
}

/// A constraint that was tried.
#[derive(Clone, Debug)]
pub struct ConstraintTrial {
    /// The spec; `None` if a stated constraint was left out.
    pub spec: Option<Spec>,
    /// The figures of the program with it.
    pub figures: DeviceFigures,
}

/// Tries constraints on a module, a bounded number of them.
pub struct ConstraintTrials<'m> {
    module: &'m HloModuleProto,
    /// The same with the specs of all results as they are, so that no constraint seems to save what the next reader of
    /// a result would then pay.
    pinned: HloModuleProto,
    mesh: &'m Mesh,
    base: DeviceFigures,
    left: usize,
    count: usize,
}

impl<'m> ConstraintTrials<'m> {
    /// Begins with a module, the program that it is lowered to, its mesh and what that does; `most` is the number of
    /// times that the module may be partitioned again.
    pub fn new(
        module: &'m HloModuleProto,
        lowered: &Lowered,
        mesh: &'m Mesh,
        base: DeviceFigures,
        most: usize,
    ) -> ConstraintTrials<'m> {
        let mut pinned = module.clone();
        let results = lowered.graph().output_info();
        for site in constraint_sites(module, mesh) {
            let spec = site.result.and_then(|at| results.get(at)?.spec.as_ref());
            if let Some(spec) = spec {
                pinned = constrained(&pinned, mesh, &site, Some(spec));
            }
        }
        ConstraintTrials { module, pinned, mesh, base, left: most, count: 0 }
    }

    /// Returns the number of programs that were partitioned.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether no more may be tried.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Looks for the spec of a site with which a device sends least, computing no more than without it; for an input,
    /// also for one that shares out the work. It splits one dimension at a time over some axes of the mesh, as long as
    /// that is better than before. Returns `None` if no spec is as good as none.
    ///
    /// # Errors
    /// The memory of a partitioned program cannot be estimated.
    pub fn search(&mut self, site: &ConstraintSite) -> Result<Option<ConstraintTrial>, Error> {
        let mut best: Option<ConstraintTrial> = None;
        let mut spec = site.spec.clone().unwrap_or_else(|| Spec::replicated(site.ty.rank()));
        for _ in 0..site.ty.rank() {
            let mut specs: Vec<Option<Spec>> = self.with_one_dim_more(site, &spec).into_iter().map(Some).collect();
            if site.kind == SiteKind::Stated && best.is_none() {
                specs.push(None);
            }
            let mut tried = Vec::new();
            for spec in specs {
                let Some(figures) = self.measure(site, spec.as_ref())? else { continue };
                tried.push(ConstraintTrial { spec, figures });
            }
            let Some(next) = choose(site.kind, best.as_ref().map_or(self.base, |best| best.figures), tried) else {
                break;
            };
            // More axes are better only if they save something; on an input, that may be work.
            let is_better = |best: &ConstraintTrial| {
                let (old, new) = (best.figures, next.figures);
                new.moved_bytes < old.moved_bytes || site.kind == SiteKind::Input && new.operations < old.operations
            };
            if !best.as_ref().is_none_or(is_better) {
                break;
            }
            let next_spec = next.spec.clone();
            best = Some(next);
            let Some(next_spec) = next_spec else { break };
            spec = next_spec;
        }
        Ok(best)
    }

    /// The specs with one dimension split over more axes, in their order in the mesh, that divide it.
    fn with_one_dim_more(&self, site: &ConstraintSite, spec: &Spec) -> Vec<Spec> {
        let unused: Vec<MeshAxis> =
            self.mesh.axes().filter(|axis| !spec.used_axes().any(|used| used == *axis)).collect();
        let mut specs = Vec::new();
        for chosen in 1..1usize << unused.len().min(MOST_AXES) {
            let axes = || unused.iter().enumerate().filter(move |(at, _)| chosen >> at & 1 == 1).map(|(_, axis)| *axis);
            for (dim, &size) in site.ty.dims.iter().enumerate() {
                let parts = axes().fold(spec.part_count(self.mesh, dim), |parts, axis| parts * self.mesh.size(axis));
                if size > 0 && size.is_multiple_of(parts) {
                    specs.push(spec.clone().with_dim(dim, spec.dim(dim).iter().copied().chain(axes())));
                }
            }
        }
        specs
    }

    /// Returns the figures with a constraint; `None` if it cannot be partitioned so, or if enough was tried.
    fn measure(&mut self, site: &ConstraintSite, spec: Option<&Spec>) -> Result<Option<DeviceFigures>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.count += 1;
        // Results follow from how an input is split, and are then split themselves.
        let follows = matches!(site.kind, SiteKind::Input | SiteKind::Result);
        let module = if follows { self.module } else { &self.pinned };
        match lower_module(&constrained(module, self.mesh, site, spec), &LowerOptions::default()) {
            Ok(lowered) => DeviceFigures::of(&lowered),
            Err(_) => Ok(None),
        }
    }
}

/// Returns the best of what was tried, if it is as good as what there is.
fn choose(kind: SiteKind, current: DeviceFigures, tried: Vec<ConstraintTrial>) -> Option<ConstraintTrial> {
    // A device that computes everything sends nothing, which is no gain.
    let as_cheap = tried.iter().filter(|it| it.figures.operations <= current.operations);
    // Among specs that send as much, the one that says least is preferred, but not to say nothing; on an input, the one
    // that saves most work.
    let axes = |trial: &ConstraintTrial| match (kind, &trial.spec) {
        (SiteKind::Input, _) => 0,
        (_, None) => usize::MAX,
        (_, Some(spec)) => spec.used_axes().count(),
    };
    // A spec that changes no work is one that meshloom gives the value anyway.
    let is_other_work = |it: &ConstraintTrial| kind != SiteKind::Input && it.figures.operations != current.operations;
    let key = |it: &&ConstraintTrial| {
        let DeviceFigures { moved_bytes, peak, operations } = it.figures;
        (moved_bytes, axes(it), is_other_work(it), operations, peak)
    };
    let least = as_cheap.min_by_key(key);
    if let Some(least) = least.filter(|it| it.figures.moved_bytes <= current.moved_bytes) {
        return Some(least.clone());
    }
    let shared = tried.iter().filter(|_| kind == SiteKind::Input);
    let shared = shared.filter(|it| shares_work(current, it.figures));
    shared.min_by_key(|it| (it.figures.operations, it.figures.moved_bytes, it.figures.peak)).cloned()
}

/// Whether devices have clearly less to compute than before: they did the same work side by side.
pub fn shares_work(before: DeviceFigures, after: DeviceFigures) -> bool {
    after.operations.saturating_mul(4) <= before.operations.saturating_mul(3)
}
