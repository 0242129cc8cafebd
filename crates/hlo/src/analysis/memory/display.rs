//! Memory as a table.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};

use super::ModuleMemory;

/// Rows of the table; the rest is small.
const SHOWN: usize = 20;

/// The sums, and a table of the largest values at the peak.
impl fmt::Display for ModuleMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModuleMemory { arguments, outputs, aliased, temporaries, peak, .. } = self;
        writeln!(
            f,
            "arguments {arguments}, outputs {outputs} ({aliased} of them in arguments), temporaries {temporaries}"
        )?;
        writeln!(f, "peak {peak}, of which the largest:")?;
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["value", "bytes", "source"]);
        for value in self.live_at_peak.iter().take(SHOWN) {
            table.add_row([
                value.label().to_owned(),
                value.bytes.to_string(),
                value.source.clone().unwrap_or_default(),
            ]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        write!(f, "{table}")
    }
}
