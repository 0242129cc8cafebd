//! The collectives of a program as emitted, beside those of the program that a plugin made of it, by kind and mesh
//! axes.

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use meshloom_analysis::{Chip, ModuleCollective, ModuleCollectives};
use meshloom_hlo::table::Table;
use serde::Serialize;

use crate::collectives::{self, axes_of};
use crate::input::Loaded;
use crate::moved::Moved;
use crate::output::{self, BOLD, line, paint};

#[derive(Serialize)]
pub struct KindOverAxes {
    pub kind: &'static str,
    #[serde(flatten)]
    pub sums: Sums,
}

/// The sums of collectives over some axes, before and after a plugin.
#[derive(Serialize)]
pub struct Sums {
    pub axes: String,
    pub emitted: Moved,
    pub compiled: Moved,
    /// Compiled bytes over emitted bytes; `None` if one of them is not known, or if nothing was emitted.
    pub ratio: Option<f64>,
}

impl Sums {
    fn of(axes: String, emitted: &ModuleCollectives, compiled: &ModuleCollectives) -> Sums {
        let moved = |found: &ModuleCollectives| Moved::of(found.execution_bounds(), found.moved_bounds());
        let (emitted, compiled) = (moved(emitted), moved(compiled));
        let bytes = emitted.moved_bytes().most.zip(compiled.moved_bytes().most);
        let ratio = match bytes {
            Some((0, 0)) => Some(1.0),
            Some((0, _)) | None => None,
            Some((emitted, compiled)) => Some(compiled as f64 / emitted as f64),
        };
        Sums { axes, emitted, compiled, ratio }
    }

    fn ratio_text(&self) -> String {
        match (self.ratio, self.emitted.moved_bytes().most) {
            (Some(ratio), _) => format!("{ratio:.3}"),
            (None, Some(0)) => "new".to_owned(),
            (None, _) => "?".to_owned(),
        }
    }
}

/// A program before and after a plugin compiled it.
pub struct Ahead {
    /// The collectives before; `None` if XLA is to partition the program.
    pub emitted: Option<ModuleCollectives>,
    pub after: Loaded,
    /// The chip that it was compiled for, if the chip's rates are published.
    pub chip: Option<&'static Chip>,
}

impl Ahead {
    pub fn chip(&self) -> Result<&'static Chip> {
        self.chip.with_context(|| format!("{}: no rates are published for its chip", self.after.name))
    }

    pub fn compared(&self) -> Result<Emitted> {
        let Some(before) = &self.emitted else {
            bail!(
                "--compiled-as-emitted: {}: XLA partitions this program, so no collective was emitted that the compiled \
                 ones could be held to; use partition.mode=explicit",
                self.after.name
            );
        };
        Ok(Emitted::compared(before, &collectives::of(&self.after)))
    }
}

#[derive(Serialize)]
pub struct Emitted {
    pub by_kind: Vec<KindOverAxes>,
    pub by_axes: Vec<Sums>,
    pub all: Sums,
}

impl Emitted {
    /// Compares two programs. An asynchronous collective counts where it starts. A collective that the plugin made
    /// another kind of counts as one fewer of its own kind and one more of the other.
    pub fn compared(emitted: &ModuleCollectives, compiled: &ModuleCollectives) -> Emitted {
        let of_kind = groups(emitted, compiled, |entry| (entry.kind.name(), axes_of(entry)));
        let of_axes = groups(emitted, compiled, axes_of);
        Emitted {
            by_kind: of_kind
                .into_iter()
                .map(|((kind, axes), [before, after])| KindOverAxes { kind, sums: Sums::of(axes, &before, &after) })
                .collect(),
            by_axes: of_axes.into_iter().map(|(axes, [before, after])| Sums::of(axes, &before, &after)).collect(),
            all: Sums::of("all".to_owned(), emitted, compiled),
        }
    }

    pub fn print(&self) {
        line(&paint(BOLD, "collectives as emitted, and as compiled"));
        let kinds = self.by_kind.iter().map(|row| (row.kind, &row.sums));
        let table = Table::of(kinds.chain([("in all", &self.all)]))
            .text("collective", |(kind, _)| *kind)
            .text("axes", |(_, sums)| &sums.axes)
            .number("emitted, times", |(_, sums)| output::bounds_of_count(sums.emitted.executions()))
            .number("bytes sent", |(_, sums)| output::bounds_of_bytes(sums.emitted.moved_bytes()))
            .number("compiled, times", |(_, sums)| output::bounds_of_count(sums.compiled.executions()))
            .number("bytes sent", |(_, sums)| output::bounds_of_bytes(sums.compiled.moved_bytes()))
            .number("ratio", |(_, sums)| sums.ratio_text());
        output::table(table, 0);
    }
}

/// Returns the collectives of two programs that are alike in something, in the order of the first.
fn groups<K: std::hash::Hash + Eq>(
    before: &ModuleCollectives,
    after: &ModuleCollectives,
    key: impl Fn(&ModuleCollective) -> K,
) -> IndexMap<K, [ModuleCollectives; 2]> {
    let mut groups: IndexMap<K, [Vec<ModuleCollective>; 2]> = IndexMap::new();
    for (side, found) in [before, after].into_iter().enumerate() {
        for entry in &found.entries {
            groups.entry(key(entry)).or_default()[side].push(entry.clone());
        }
    }
    let of_both = |[one, other]: [Vec<ModuleCollective>; 2]| [before.some(one), after.some(other)];
    groups.into_iter().map(|(key, entries)| (key, of_both(entries))).collect()
}
