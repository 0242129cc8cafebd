//! `compile --overlap` and `check --min-overlap`: the transfers that a compiled schedule hides.

use std::cmp::Ordering;

use anyhow::{Context, Result, bail};
use meshloom_analysis::{AxisPart, Chip, CollectiveOverlap, CostOptions, Hidden, ModuleOverlap, overlap, slice_count};

use meshloom_hlo::mesh::Mesh;

use crate::collectives::{axes_text, where_from};
use crate::input::Loaded;
use crate::output;

pub fn of(loaded: &Loaded, chip: &Chip) -> Result<ModuleOverlap> {
    let slices = slice_count(&loaded.module);
    let slice_devices = (slices > 1).then(|| loaded.device_count() / slices);
    let options = CostOptions { slice_devices, ..CostOptions::devices(loaded.devices).on(chip) };
    overlap(&loaded.module, loaded.mesh.as_ref(), &options).with_context(|| loaded.name.clone())
}

/// Returns `83.1 %`, or a dash where nothing is sent.
pub fn share_text(hidden: Hidden) -> String {
    hidden.share().map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

/// Compares collectives so that the most exposed come first.
pub fn by_exposed(a: &CollectiveOverlap, b: &CollectiveOverlap) -> Ordering {
    b.hidden.exposed_seconds.total_cmp(&a.hidden.exposed_seconds)
}

pub fn axis<'a>(name: &str, loaded: &'a Loaded) -> Result<(AxisPart, &'a Mesh)> {
    let Some(mesh) = &loaded.mesh else {
        bail!("--min-overlap {name}: the module names no mesh; add --mesh, such as --mesh data=2,fsdp=4")
    };
    let part = AxisPart::parse(name, mesh).with_context(|| format!("--min-overlap {name}"))?;
    Ok((part, mesh))
}

/// Returns the hidden share over an axis, or of all, and the exposed collectives, the most exposed first. A collective
/// that does not state which devices take part may cross any axis.
pub fn over(found: &ModuleOverlap, axis: Option<&str>, loaded: &Loaded) -> Result<(Hidden, Vec<String>)> {
    let mut transfers: Vec<&CollectiveOverlap> = found.transfers.iter().collect();
    if let Some(name) = axis {
        let (part, mesh) = self::axis(name, loaded)?;
        transfers.retain(|it| it.collective.crosses(&part, mesh).unwrap_or(true));
    }
    transfers.sort_by(|a, b| by_exposed(a, b));
    let sum = Hidden::sum(transfers.iter().map(|it| it.hidden));
    let describe = |it: &&CollectiveOverlap| {
        let (kind, axes) = (it.collective.kind.name(), axes_text(&it.collective));
        let (exposed, all) = (output::seconds(it.hidden.exposed_seconds), output::seconds(it.hidden.seconds));
        format!("{kind} over {axes}: {exposed} of {all} exposed: {}", where_from(&it.collective))
    };
    let exposed = transfers.iter().filter(|it| it.hidden.exposed_seconds > 0.0).map(describe).collect();
    Ok((sum, exposed))
}
