//! What a program needs of one device's memory, by liveness over its local graph.
//!
//! # The model
//!
//! - Arguments and outputs keep their buffers from start to end. An output that is aliased with a donated argument lies
//!   in that argument's buffer; if the argument is read after the output is made, the output waits in a buffer of its
//!   own.
//! - Any other value has a buffer from the node that makes it to the last node that reads it (`liveness.rs`), where
//!   nodes run in the order of the graph.
//! - Elementwise ops and data movement are computed inside their readers: such a value has no buffer if all its readers
//!   are such ops or reductions, and if it has one reader or is cheap to repeat. A reshape is its operand. A barrier is
//!   its operands. Constants, iotas and broadcasts cost nothing.
//! - An op that can work in place (elementwise, dynamic update) takes over the buffers of operands that it is the last
//!   to read.
//! - A scan or while holds its carries once, besides what an iteration makes of them; it takes over the buffers of the
//!   initial carries if nothing else reads them. Invariants and stacked inputs are read in place, one slice at a time;
//!   stacked outputs are whole from the start. The most that one iteration needs counts once.
//! - The largest branch counts. A called function needs its memory while it runs.
//!
//! XLA orders, fuses and shares buffers in its own way, so its figure for temporaries differs, mostly by further fusion
//! and by scratch memory of single ops. Arguments and outputs are equal to the byte.

mod liveness;

use std::cmp::Reverse;
use std::fmt;

use meshloom_hlo::table::Table;
use serde::Serialize;

use crate::ir::{Graph, Origin, PortInfo};
use liveness::{Liveness, Place};

/// A value that is in memory when most is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveValue {
    /// The path of an argument or output; else scope and op.
    pub name: String,
    /// Bytes on one device.
    pub bytes: u64,
    /// The user's source line as `file:line`, if a user wrote it.
    pub source: Option<String>,
}

impl LiveValue {
    fn made_by(op: &str, bytes: u64, origin: Origin) -> LiveValue {
        let scope = origin.scope.path();
        let name = if scope.is_empty() { op.to_owned() } else { format!("{scope}/{op}") };
        let source = origin.location.map(|location| format!("{}:{}", location.file(), location.line()));
        LiveValue { name, bytes, source }
    }
}

/// What a program needs of each device's memory, in bytes. Serialized, the object that `hlo-dump memory --json` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All arguments.
    pub arguments: u64,
    /// All outputs, those in donated arguments too.
    pub outputs: u64,
    /// The outputs that lie in donated arguments.
    #[serde(skip)]
    pub aliased: u64,
    /// The most that all other values take at any time.
    pub temporaries: u64,
    /// The most at any time: arguments, outputs that are not in them, and temporaries.
    pub peak: u64,
    /// What is in memory at that time, largest first; together as large as the peak.
    pub live_at_peak: Vec<LiveValue>,
}

impl Memory {
    /// The memory of a local graph; `aliases` are pairs of (output, input) that share a buffer.
    pub fn of(graph: &Graph, aliases: &[(usize, usize)]) -> Memory {
        let mut live = Vec::new();
        let mut add = |what: &str, index: usize, info: &PortInfo, bytes: u64| {
            let name = if info.path.is_empty() { format!("{what} {index}") } else { info.path.to_string() };
            live.push(LiveValue { name, bytes, source: None });
        };
        let (mut arguments, mut outputs, mut aliased) = (0, 0, 0);
        for (index, (ty, info)) in graph.input_types().zip(graph.input_info()).enumerate() {
            arguments += ty.byte_count() as u64;
            add("argument", index, info, ty.byte_count() as u64);
        }
        let is_aliased = |output: usize| aliases.iter().any(|&(aliased, _)| aliased == output);
        for (index, (ty, info)) in graph.output_types().zip(graph.output_info()).enumerate() {
            outputs += ty.byte_count() as u64;
            if is_aliased(index) {
                aliased += ty.byte_count() as u64;
            } else {
                add("output", index, info, ty.byte_count() as u64);
            }
        }
        let inputs = vec![Place::Elsewhere; graph.inputs().len()];
        let elsewhere = vec![true; graph.outputs().len()];
        let mut liveness = Liveness::default();
        let peak = liveness.peak(graph, &inputs, &elsewhere, aliases);
        live.extend(liveness.live_at(graph, &inputs, &elsewhere, aliases, &peak));
        live.retain(|value| value.bytes > 0);
        live.sort_by_key(|value| Reverse(value.bytes));
        let peak = peak.bytes;
        Memory {
            arguments,
            outputs,
            aliased,
            temporaries: peak,
            peak: arguments + outputs - aliased + peak,
            live_at_peak: live,
        }
    }
}

/// The sums, and a table of the largest values at the peak.
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Rows of the table; the rest is small.
        const SHOWN: usize = 20;
        let Memory { arguments, outputs, aliased, temporaries, peak, live_at_peak } = self;
        writeln!(
            f,
            "arguments {arguments}, outputs {outputs} ({aliased} of them in arguments), temporaries {temporaries}"
        )?;
        writeln!(f, "peak {peak}, of which the largest:")?;
        let table = Table::of(live_at_peak.iter().take(SHOWN))
            .text("value", |value| &value.name)
            .number("bytes", |value| value.bytes)
            .text("source", |value| value.source.as_deref().unwrap_or_default());
        write!(f, "{table}")
    }
}
