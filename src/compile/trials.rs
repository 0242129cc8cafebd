//! Constraints, tried one by one: the module is partitioned again with each of them.

use meshloom_analysis::{CostOptions, Devices, cost, memory};
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProto;

use super::constrain::{ConstraintSite, SiteKind, constrained};
use super::{Error, LowerOptions, Lowered, lower_module};
use crate::ir::Spec;

/// What one device does in a run of a partitioned program.
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
    mesh: &'m Mesh,
    base: DeviceFigures,
    left: usize,
    count: usize,
}

impl<'m> ConstraintTrials<'m> {
    /// Begins with a module, its mesh and what it does as it is; `most` is the number of times that it may be
    /// partitioned again.
    pub fn new(module: &'m HloModuleProto, mesh: &'m Mesh, base: DeviceFigures, most: usize) -> ConstraintTrials<'m> {
        ConstraintTrials { module, mesh, base, left: most, count: 0 }
    }

    /// Returns the number of programs that were partitioned.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether no more may be tried.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Looks for the spec of a site with which a device sends least, computing no more than without it. It adds one
    /// mesh axis at a time to one dimension, as long as that sends no more; of an input, also as long as it shares out
    /// the work. Returns `None` if no spec is as good as none.
    pub fn search(&mut self, site: &ConstraintSite) -> Option<ConstraintTrial> {
        let mut best: Option<ConstraintTrial> = None;
        let mut spec = site.spec.clone().unwrap_or_else(|| Spec::replicated(site.ty.rank()));
        for _ in self.mesh.axes() {
            let mut specs: Vec<Option<Spec>> = self.with_one_more(site, &spec).into_iter().map(Some).collect();
            if site.kind == SiteKind::Stated && best.is_none() {
                specs.push(None);
            }
            let current = best.as_ref().map_or(self.base, |best| best.figures);
            let mut tried = Vec::new();
            for spec in specs {
                let Some(figures) = self.measure(site, spec.as_ref()) else { continue };
                tried.push(ConstraintTrial { spec, figures });
            }
            let Some(next) = choose(site.kind, current, tried) else { break };
            let is_left_out = next.spec.is_none();
            spec = next.spec.clone().unwrap_or(spec);
            best = Some(next);
            if is_left_out {
                break;
            }
        }
        best
    }

    /// The specs with one more axis on one dimension that it divides.
    fn with_one_more(&self, site: &ConstraintSite, spec: &Spec) -> Vec<Spec> {
        let unused = self.mesh.axes().filter(|axis| !spec.used_axes().any(|used| used == *axis));
        let on_each = |axis| {
            (0..site.ty.rank()).filter_map(move |dim| {
                let parts = spec.part_count(self.mesh, dim) * self.mesh.size(axis);
                let divides = site.ty.dims.get(dim).is_some_and(|size| *size > 0 && size.is_multiple_of(parts));
                divides.then(|| spec.clone().with_dim(dim, spec.dim(dim).iter().copied().chain([axis])))
            })
        };
        unused.flat_map(on_each).collect()
    }

    /// Returns the figures with a constraint; `None` if it cannot be partitioned so, or if enough was tried.
    fn measure(&mut self, site: &ConstraintSite, spec: Option<&Spec>) -> Option<DeviceFigures> {
        self.left = self.left.checked_sub(1)?;
        self.count += 1;
        let module = constrained(self.module, self.mesh, site, spec);
        let lowered = lower_module(&module, &LowerOptions::default()).ok()?;
        DeviceFigures::of(&lowered).ok().flatten()
    }
}

/// Returns the best of what was tried, if it is as good as what there is.
fn choose(kind: SiteKind, current: DeviceFigures, tried: Vec<ConstraintTrial>) -> Option<ConstraintTrial> {
    // A device that computes everything sends nothing, which is no gain.
    let as_cheap = tried.iter().filter(|it| it.figures.operations <= current.operations);
    let least = as_cheap.min_by_key(|it| (it.figures.moved_bytes, it.figures.operations, it.figures.peak));
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
