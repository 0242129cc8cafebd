//! `hlo-dump memory`: the device memory that a program needs, and the values that fill it.

use anyhow::Result;
use meshloom_analysis::memory::{MemoryForm, UpperMemory, memory_of_assignment, upper};
use meshloom_analysis::{Chip, ModuleMemory, OtherSpace, memory};
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Memory;
use crate::input::{Loaded, load};
use crate::output::{self, DIM, line, paint};
use crate::selection::{check_scope, given, note_if_empty};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    #[serde(flatten)]
    memory: &'a ModuleMemory,
    /// The upper bound; `None` for a compiled module.
    upper: Option<UpperMemory>,
    /// The chip that `--chip` names.
    chip: Option<&'a str>,
    /// The memory of a device of that chip; null if it is not known.
    chip_bytes: Option<u64>,
}

pub fn run(arguments: &Memory, json: bool) -> Result<()> {
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    let loaded = load(&arguments.input)?;
    check_scope(arguments.scope.as_deref(), &loaded)?;
    let mut found = of(&loaded)?;
    let all = found.live_at_peak.len();
    found.live_at_peak.retain(|buffer| {
        arguments.min_bytes.is_none_or(|least| buffer.bytes >= least)
            && arguments.scope.as_ref().is_none_or(|scope| buffer.op_name.contains(scope.as_str()))
    });
    let options =
        [given("--min-bytes", &arguments.min_bytes.map(output::human_bytes)), given("--scope", &arguments.scope)];
    note_if_empty(found.live_at_peak.len(), all, "buffer", options);
    let chip_bytes = chip.and_then(Chip::device_memory);
    let upper = upper(&found, chip.map(|chip| chip.backend).or_else(|| loaded.backend()));
    if json {
        let chip = chip.map(|chip| chip.name);
        return output::json("hlo-dump/memory", &loaded.found(&Answer { memory: &found, upper, chip, chip_bytes }));
    }
    loaded.print_title();
    print_sums(&found, upper.as_ref(), loaded.partitioning.is_pending());
    if let Some(there_is) = chip_bytes {
        let peak = upper.map_or(found.peak, |upper| upper.peak);
        line(&output::verdict(peak, there_is, &format!("a device's {}", output::bytes(there_is))));
    } else if let Some(chip) = chip {
        output::note(&format!("how much memory {} has is not known, so the peak is compared with nothing", chip.name));
    }
    line("");
    let buffers = Table::of(&found.live_at_peak)
        .flexible("live at the peak", |buffer| format!("%{}", buffer.name))
        .text("", |buffer| buffer.kind.name())
        .number("bytes", |buffer| output::bytes(buffer.bytes))
        .flexible("shape", |buffer| &buffer.shape)
        .flexible("where from", |buffer| output::whence(buffer.source.as_deref(), &buffer.op_name));
    output::table(buffers, arguments.limit);
    Ok(())
}

/// Returns the memory of an input: by the compiler's own assignment if there is one.
pub fn of(loaded: &Loaded) -> Result<ModuleMemory> {
    match &loaded.buffers {
        Some(buffers) if !buffers.buffer_allocations.is_empty() => Ok(memory_of_assignment(&loaded.module, buffers)),
        _ => Ok(memory(&loaded.module)?),
    }
}

/// Returns the most that a device needs as far as is known: for a module that is not compiled, with the margin of its
/// compiler.
pub fn most(loaded: &Loaded) -> Result<(u64, Option<UpperMemory>)> {
    let found = of(loaded)?;
    let upper = upper(&found, loaded.backend());
    Ok((upper.map_or(found.peak, |upper| upper.peak), upper))
}

fn print_sums(found: &ModuleMemory, upper: Option<&UpperMemory>, global: bool) {
    let from = match found.form {
        MemoryForm::Assignment => "as the compiler assigned it",
        MemoryForm::Scheduled => "estimated from the schedule",
        MemoryForm::Unscheduled => "estimated from the order of the instructions, as there is no schedule",
        MemoryForm::Uncompiled => "estimated: the module is not compiled, so what will be fused is guessed",
    };
    let of = if global { "memory of one device that holds everything" } else { "memory of each device" };
    let margin = upper.map(|upper| format!("; at most, with the margin for {}", upper.backend.name()));
    line(&paint(DIM, &format!("{of}, {from}{}", margin.unwrap_or_default())));
    let rows = [
        ("arguments", found.arguments, upper.map(|upper| upper.arguments)),
        ("outputs", found.outputs, upper.map(|upper| upper.outputs)),
        ("  of them in donated arguments", found.aliased, upper.map(|upper| upper.aliased)),
        ("temporaries", found.temporaries, upper.map(|upper| upper.temporaries)),
        ("peak", found.peak, upper.map(|upper| upper.peak)),
    ];
    let table = Table::of(rows).text("", |(name, ..)| *name).number("bytes", |(_, bytes, _)| output::bytes(*bytes));
    let table = match upper {
        Some(_) => table.number("at most", |(.., most)| most.map(output::bytes).unwrap_or_default()),
        None => table,
    };
    output::table(table, 0);
    for OtherSpace { space, name, bytes } in &found.other_spaces {
        line(&paint(DIM, &format!("besides, at most {} at once in {name} (S({space}))", output::bytes(*bytes))));
    }
}
