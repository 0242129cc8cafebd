//! A cost as a table.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

use super::{InstructionCost, ModuleCost};

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
        entries.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["instruction", "flops", "bytes", "sent", "times", "bound", "source"]);
        for entry in entries.into_iter().take(SHOWN) {
            table.add_row([
                entry.name.clone(),
                entry.work.flops.to_string(),
                entry.work.bytes().to_string(),
                entry.work.link_bytes.to_string(),
                entry.executions.to_string(),
                entry.bound.map(|bound| bound.to_string()).unwrap_or_default(),
                entry.source.clone().unwrap_or_default(),
            ]);
        }
        for column in 1..=4 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        write!(f, "{table}")
    }
}
