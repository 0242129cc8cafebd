//! `hlo-dump partition`: a program that XLA has not partitioned yet, partitioned by meshloom, and what it then moves
//! and holds.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use meshloom::compile::{LowerOptions, lower_module};
use meshloom_analysis::{ModuleCollective, Partitioning};
use prost::Message;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments;
use crate::input::{Loaded, load};
use crate::moved::Moved;
use crate::output::{self, line};
use crate::{collectives, memory, show};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The collectives of the partitioned program.
    collectives: &'a [ModuleCollective],
    #[serde(flatten)]
    all: Moved,
    /// The estimated bytes that a device needs.
    peak: u64,
    /// The seconds from the module to the partitioned one.
    seconds: f64,
    /// The file that has the partitioned module.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

pub fn run(arguments: &arguments::Partition, json: bool) -> Result<()> {
    let loaded = unpartitioned(&arguments.input)?;
    let start = Instant::now();
    let lowered = lower_module(&loaded.module, &LowerOptions::default()).with_context(|| loaded.name.clone())?;
    let seconds = start.elapsed().as_secs_f64();
    let module = lowered.module.decode()?;
    let partitioning = Partitioning::of(&module, loaded.devices);
    let after = Loaded { module, partitioning, ..loaded };
    let found = collectives::of(&after);
    let peak = memory::of(&after)?.peak;
    if let Some(path) = &arguments.output {
        write(path, &after)?;
    }
    if json {
        let output = arguments.output.as_ref().map(|path| path.display().to_string());
        let all = Moved::of(found.execution_bounds(), found.moved_bounds());
        let answer = Answer { collectives: &found.entries, all, peak, seconds, output };
        return output::json("hlo-dump/partition", &after.found(&answer));
    }
    after.print_title();
    collectives::print(&found.entries, &found.conditionals, arguments.limit);
    collectives::print_total(&after, &found, found.entries.len());
    line(&format!("{} at the peak, estimated", output::bytes(peak)));
    // The time differs from run to run, so the output does not have it.
    output::note(&format!("partitioned in {}", output::seconds(seconds)));
    if let Some(path) = &arguments.output {
        line(&format!("{}: the partitioned module", path.display()));
    }
    Ok(())
}

/// Loads a program of several devices that XLA has yet to partition.
pub fn unpartitioned(input: &arguments::Input) -> Result<Loaded> {
    let loaded = load(input)?;
    if loaded.run.is_some() {
        bail!("{}: a run config is partitioned as it says: `hlo-dump collectives` shows the result", loaded.name);
    }
    if loaded.device_count() < 2 {
        bail!("{}: the program is for one device, so there is nothing to partition", loaded.name);
    }
    if !loaded.partitioning.is_pending() {
        bail!(
            "{}: the module is the program of one device already; give what comes before XLA's partitioner, such as \
             the text of `lowered` in JAX",
            loaded.name
        );
    }
    Ok(loaded)
}

fn write(path: &Path, loaded: &Loaded) -> Result<()> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("txt") => output::write(path, show::text(loaded, true)),
        Some("mlir") => output::write(path, show::stablehlo(loaded, true)?),
        Some("mlirbc") => output::write(path, show::artifact(loaded, None)?),
        _ => output::write(path, loaded.module.encode_to_vec()),
    }
}
