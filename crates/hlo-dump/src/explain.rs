//! `hlo-dump explain`: the reason for a tensor's sharding.

use anyhow::{Result, anyhow, bail};
use meshloom_analysis::{StatedFrom, TracedStep, trace_sharding};
use meshloom_hlo::Stage;
use meshloom_hlo::source::op_name;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Explain, Input};
use crate::input::{Loaded, load};
use crate::output::{self, BOLD, DIM, line, paint};
use crate::run::Said;
use crate::source;

/// The most tensors that are shown. A name that more tensors share does not tell them apart.
const MOST: usize = 8;

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The name that was asked for.
    tensor: &'a str,
    /// The chain of origins, from a run config.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<crate::run::Explained>>")]
    explanations: Option<serde_json::Value>,
    /// The way to a stated sharding, from HLO.
    #[serde(skip_serializing_if = "Option::is_none")]
    stated: Option<Vec<StatedFrom>>,
}

pub fn run(arguments: &Explain, json: bool) -> Result<()> {
    let Input { path, reading } = &arguments.input;
    if let Some(stage) = reading.stage.filter(|stage| !matches!(stage, Stage::Sharded | Stage::Partitioned))
        && !source::is_folder(path)
    {
        bail!("--stage {stage} is for dump folders here: the shardings of a run config are those of its stage sharded");
    }
    let tensor = arguments.tensor.as_str();
    if tensor.trim().is_empty() {
        bail!("the tensor has no name; write a parameter's path, a scope, an instruction's name, or file:line");
    }
    let loaded = load(&arguments.input)?;
    let (explained, stated) = match &loaded.run {
        Some(run) => (Some(run.explain(tensor, MOST)?), None),
        None => (None, Some(traced(&loaded, tensor)?)),
    };
    let (explanations, lines) = explained.map(|Said { json, lines }| (json, lines)).unzip();
    if json {
        return output::json("hlo-dump/explain", &loaded.found(&Answer { tensor, explanations, stated }));
    }
    line(&paint(BOLD, &loaded.title()));
    lines.iter().flatten().for_each(|text| line(text));
    for stated in stated.iter().flatten() {
        line("");
        print_stated(stated);
    }
    // Whether the module is partitioned is the same for all.
    match stated.as_deref().unwrap_or_default() {
        [] => {}
        [first, ..] if first.partitioned => {
            line(&paint(DIM, "the module is partitioned already: shapes are those of one device's part"));
        }
        all if all.iter().any(|stated| stated.steps.len() > 1) => {
            line(&paint(DIM, "XLA propagates from what is stated, and keeps no record of it"));
        }
        _ => {}
    }
    Ok(())
}

fn traced(loaded: &Loaded, tensor: &str) -> Result<Vec<StatedFrom>> {
    let traced = trace_sharding(&loaded.module, loaded.mesh.as_ref(), tensor, MOST + 1);
    let mut found = traced.map_err(|error| match has_names(loaded) {
        true => anyhow::Error::from(error),
        false => anyhow!(
            "{error}. The program has no names and lines of its source: `lowered.as_text(debug_info=True)` keeps them in JAX"
        ),
    })?;
    if found.len() > MOST {
        output::note(&format!("more than {MOST} tensors are called \"{tensor}\"; these are the first {MOST}"));
        found.truncate(MOST);
    }
    Ok(found)
}

/// Whether the program keeps names of its source.
fn has_names(loaded: &Loaded) -> bool {
    let mut all = loaded.module.computations.iter().flat_map(|computation| &computation.instructions);
    all.any(|it| !op_name(it).is_empty())
}

fn print_stated(stated: &StatedFrom) {
    let last = stated.steps.len().saturating_sub(1);
    for (depth, step) in stated.steps.iter().enumerate() {
        let TracedStep { name, opcode, shape, sharding, axes, op_name, source } = step;
        let indent = "  ".repeat(depth);
        let from = output::whence(source.as_deref(), op_name);
        line(&format!("{indent}{}  {opcode} {shape}  {}", paint(BOLD, &format!("%{name}")), paint(DIM, &from)));
        match (axes, sharding) {
            (Some(axes), Some(sharding)) => {
                line(&format!("{indent}  states {sharding}, which is {}", output::spec(axes)))
            }
            (None, Some(sharding)) => line(&format!("{indent}  states {sharding}")),
            _ if depth == last => line(&format!("{indent}  nothing near it states a sharding")),
            _ => {}
        }
    }
}
