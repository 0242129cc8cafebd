//! `hlo-dump memory`: what a program needs of each device's memory, and what fills it.

use anyhow::{Result, bail};
use meshloom_hlo::analysis::memory::{LiveBuffer, MemoryForm, memory_of_assignment};
use meshloom_hlo::analysis::{Chip, ModuleMemory, memory};
use serde::Serialize;

use crate::arguments::Memory;
use crate::input::{Described, Loaded, load};
use crate::output::{self, BAD, BOLD, Column, DIM, GOOD, Table, line, paint};

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    input: Described<'a>,
    #[serde(flatten)]
    memory: &'a ModuleMemory,
    chip: Option<&'a str>,
    chip_bytes: Option<u64>,
}

pub fn run(arguments: &Memory, json: bool) -> Result<()> {
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    let loaded = load(&arguments.input)?;
    let mut found = of(&loaded)?;
    found.live_at_peak.retain(|buffer| {
        arguments.min_bytes.is_none_or(|least| buffer.bytes >= least)
            && arguments.scope.as_ref().is_none_or(|scope| buffer.op_name.contains(scope.as_str()))
    });
    let chip_bytes = chip.and_then(Chip::device_memory);
    if json {
        let chip = chip.map(|chip| chip.name);
        return output::json("memory", &Answer { input: loaded.describe(), memory: &found, chip, chip_bytes });
    }
    line(&paint(BOLD, &loaded.title()));
    print_sums(&found);
    if let Some(there_is) = chip_bytes {
        let part = 100.0 * found.peak as f64 / there_is as f64;
        let (style, verdict) = if found.peak <= there_is { (GOOD, "fits") } else { (BAD, "does not fit") };
        line(&paint(style, &format!("{verdict}: {part:.1} % of a device's {}", output::bytes(there_is))));
    } else if let Some(chip) = chip {
        bail!("how much memory {} has is not known", chip.name);
    }
    line("");
    print_buffers(&found.live_at_peak, arguments.limit);
    Ok(())
}

/// The memory of an input: by the compiler's own assignment where there is one.
pub fn of(loaded: &Loaded) -> Result<ModuleMemory> {
    match &loaded.buffers {
        Some(buffers) if !buffers.buffer_allocations.is_empty() => Ok(memory_of_assignment(&loaded.module, buffers)),
        _ => Ok(memory(&loaded.module)?),
    }
}

fn print_sums(found: &ModuleMemory) {
    let from = match found.form {
        MemoryForm::Assignment => "as the compiler assigned it",
        MemoryForm::Scheduled => "estimated from the schedule",
        MemoryForm::Unscheduled => "estimated from the order of the instructions, as there is no schedule",
        MemoryForm::Uncompiled => "estimated: the module is not compiled, so what will be fused is guessed",
    };
    line(&paint(DIM, &format!("memory of each device, {from}")));
    let rows = [
        ("arguments", found.arguments),
        ("outputs", found.outputs),
        ("  of them in donated arguments", found.aliased),
        ("temporaries", found.temporaries),
        ("peak", found.peak),
    ];
    let mut table = Table::new(&[("", Column::Text), ("bytes", Column::Number)]);
    for (name, bytes) in rows {
        table.row(vec![name.to_owned(), output::bytes(bytes)]);
    }
    table.print();
}

fn print_buffers(buffers: &[LiveBuffer], limit: usize) {
    let header = [
        ("live at the peak", Column::Flexible),
        ("", Column::Text),
        ("bytes", Column::Number),
        ("shape", Column::Flexible),
        ("where from", Column::Flexible),
    ];
    let mut table = Table::new(&header);
    for buffer in buffers {
        let from = [buffer.source.clone().unwrap_or_default(), buffer.op_name.clone()].join(" ");
        table.row(vec![
            format!("%{}", buffer.name),
            buffer.kind.name().to_owned(),
            output::bytes(buffer.bytes),
            buffer.shape.clone(),
            from.trim().to_owned(),
        ]);
    }
    table.limit(limit).print();
}
