//! Memory as a table.

use std::fmt;

use super::ModuleMemory;
use meshloom_hlo::table::Table;

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
        writeln!(f, "peak {peak}; its largest:")?;
        let table = Table::of(self.live_at_peak.iter().take(SHOWN))
            .text("value", |value| value.label())
            .number("bytes", |value| value.bytes)
            .text("source", |value| value.source.as_deref().unwrap_or_default());
        write!(f, "{table}")
    }
}
