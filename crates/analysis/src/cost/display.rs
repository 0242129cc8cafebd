//! A cost as a table.

use std::fmt;

use super::{InstructionCost, ModuleCost};
use meshloom_hlo::sort;
use meshloom_hlo::table::Table;

/// Rows of the table; the rest is small.
const SHOWN: usize = 20;

/// The sums, and a table of the instructions that take longest, or compute most.
impl fmt::Display for ModuleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.total;
        writeln!(
            f,
            "flops {}, transcendentals {}, bytes {}, sent {}",
            total.flops,
            total.transcendentals,
            total.bytes(),
            total.link_bytes
        )?;
        if let Some(roofline) = &self.roofline {
            writeln!(
                f,
                "{}: {:.3e} s if everything overlaps, {:.3e} s if nothing does; {} bound",
                roofline.chip, roofline.overlapped_seconds, roofline.serial_seconds, roofline.bound
            )?;
        }
        let mut entries: Vec<&InstructionCost> = self.instructions.iter().collect();
        let weight = |entry: &InstructionCost| entry.seconds.map_or(entry.total.flops as f64, |seconds| seconds.serial);
        sort::by(&mut entries, |a, b| weight(b).total_cmp(&weight(a)));
        let table = Table::of(entries.into_iter().take(SHOWN))
            .text("instruction", |entry| &entry.name)
            .number("flops", |entry| entry.work.flops)
            .number("bytes", |entry| entry.work.bytes())
            .number("sent", |entry| entry.work.link_bytes)
            .number("times", |entry| entry.executions)
            .text("bound", |entry| entry.bound.map(|bound| bound.to_string()).unwrap_or_default())
            .text("source", |entry| entry.source.as_deref().unwrap_or_default());
        write!(f, "{table}")
    }
}
