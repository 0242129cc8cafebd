//! `hlo-dump memory`: the device memory that a program needs, and the values that fill it; also of a program that ran
//! out of memory, by XLA's message.

use anyhow::{Result, bail};
use meshloom_analysis::memory::{
    MemoryForm, OutOfMemory, RanOutWhile, Remedy, RemedyKind, UpperMemory, memory_of_assignment, remedies,
    remedies_of_message, upper,
};
use meshloom_analysis::{Chip, LiveBuffer, ModuleMemory, OtherSpace, memory};
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Memory, Reading};
use crate::input::{Loaded, ProgramOrMessage, load_or_message, load_path, read_before};
use crate::output::{self, BOLD, DIM, WARN, line, paint};
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
    /// The message that the program ran out of memory, if the input has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_memory: Option<&'a OutOfMemory>,
    /// The remedies, the one that saves most first; with `--remedies` or a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedies: Option<&'a [Remedy]>,
}

/// The JSON of a message without its program.
#[derive(JsonSchema, Serialize)]
pub struct MessageAnswer<'a> {
    /// The message.
    out_of_memory: &'a OutOfMemory,
    /// The bytes that are missing; null if it is not known how many there are.
    missing: Option<u64>,
    /// The remedies, the one that saves most first.
    remedies: &'a [Remedy],
}

pub fn run(arguments: &Memory, json: bool) -> Result<()> {
    let reading = &arguments.input.reading;
    match (load_or_message(&arguments.input)?, &arguments.program) {
        (ProgramOrMessage::Program(_), Some(program)) => bail!(
            "--program {} belongs to an out-of-memory message, and the input is a program itself",
            program.display()
        ),
        (ProgramOrMessage::Program(loaded), None) => of_program(arguments, &loaded, None, json),
        (ProgramOrMessage::Message(message), Some(program)) => {
            of_program(arguments, &load_path(program, reading)?, Some(&message), json)
        }
        (ProgramOrMessage::Message(message), None) => {
            check_reading(reading)?;
            of_message(arguments, message, json)
        }
    }
}

fn of_program(arguments: &Memory, loaded: &Loaded, message: Option<&OutOfMemory>, json: bool) -> Result<()> {
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    check_scope(arguments.scope.as_deref(), loaded)?;
    let mut found = of(loaded)?;
    // A compiler that refuses a program knows its peak better than an estimate.
    let peak = message.filter(|message| device_bytes(message).is_some()).map_or(found.peak, |message| message.needed);
    let remedies = (arguments.remedies || message.is_some()).then(|| remedies_of(loaded, peak)).transpose()?;
    select(arguments, &mut found.live_at_peak);
    let chip_bytes = chip.and_then(Chip::device_memory);
    let upper = upper(&found, chip.map(|chip| chip.backend).or_else(|| loaded.backend()));
    if json {
        let (chip, remedies) = (chip.map(|chip| chip.name), remedies.as_deref());
        let answer = Answer { memory: &found, upper, chip, chip_bytes, out_of_memory: message, remedies };
        return output::json("hlo-dump/memory", &loaded.found(&answer));
    }
    if let Some(message) = message {
        print_message(message);
        line("");
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
    print_live(&found.live_at_peak, arguments.limit);
    if let Some(remedies) = &remedies {
        let there_is = chip_bytes.or_else(|| message.and_then(device_bytes));
        print_remedies(remedies, there_is, arguments.limit);
        if loaded.device_count() > 1 && loaded.mesh.is_none() {
            output::note("the mesh is not known, so no argument is split over an axis: --mesh names the axes");
        }
    }
    Ok(())
}

/// Returns what would be smaller, with savings taken off this peak.
fn remedies_of(loaded: &Loaded, peak: u64) -> Result<Vec<Remedy>> {
    let before = loaded.before.as_deref().map(read_before).transpose()?.flatten();
    Ok(remedies(&loaded.module, Some(peak), before.as_ref(), loaded.mesh.as_ref())?)
}

/// Leaves the values that are asked for.
fn select(arguments: &Memory, live: &mut Vec<LiveBuffer>) {
    let all = live.len();
    live.retain(|buffer| {
        arguments.min_bytes.is_none_or(|least| buffer.bytes >= least)
            && arguments.scope.as_ref().is_none_or(|scope| buffer.op_name.contains(scope.as_str()))
    });
    let options =
        [given("--min-bytes", &arguments.min_bytes.map(output::human_bytes)), given("--scope", &arguments.scope)];
    note_if_empty(live.len(), all, "buffer", options);
}

/// Refuses options that a message without its program cannot follow.
fn check_reading(reading: &Reading) -> Result<()> {
    let Reading { mesh, stage, module, pass, function, set, .. } = reading;
    let options = [
        ("--mesh", mesh.is_some()),
        ("--stage", stage.is_some()),
        ("--module", module.is_some()),
        ("--pass", pass.is_some()),
        ("--function", function.is_some()),
        ("--set", !set.is_empty()),
    ];
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => bail!("{option} is for a program, and this is an out-of-memory message: add --program"),
        None => Ok(()),
    }
}

fn of_message(arguments: &Memory, mut message: OutOfMemory, json: bool) -> Result<()> {
    let chip = arguments.chip.as_deref().map(Chip::parse).transpose()?;
    let remedies = remedies_of_message(&message);
    select(arguments, &mut message.live);
    if json {
        let missing = message.missing();
        let answer = MessageAnswer { out_of_memory: &message, missing, remedies: &remedies };
        return output::json("hlo-dump/memory", &answer);
    }
    print_message(&message);
    if !message.live.is_empty() {
        line("");
        print_live(&message.live, arguments.limit);
    }
    let there_is = chip.and_then(Chip::device_memory).or_else(|| device_bytes(&message));
    if !remedies.is_empty() {
        print_remedies(&remedies, there_is, arguments.limit);
    }
    line("");
    line(&paint(
        DIM,
        "for all values and remedies, add --program with the program, or with the folder of XLA's dumps \
         (XLA_FLAGS=--xla_dump_to=FOLDER)",
    ));
    Ok(())
}

/// Returns the memory of the device, if the message states it and not what was free.
fn device_bytes(message: &OutOfMemory) -> Option<u64> {
    message.there_is.filter(|_| message.ran_out_while == RanOutWhile::Compiling)
}

fn print_message(message: &OutOfMemory) {
    let (doing, needed, there_is) = match message.ran_out_while {
        RanOutWhile::Compiling => ("while compiling", "needed", "there is"),
        RanOutWhile::Running => ("in a run", "needed by one allocation", "free"),
    };
    let module = message.module.as_ref().map(|module| format!(": {module}")).unwrap_or_default();
    let space = message.space.as_ref().filter(|space| *space != "hbm");
    let of = space.map(|space| format!(" of {space}")).unwrap_or_default();
    line(&paint(BOLD, &format!("out of memory{of} {doing}{module}")));
    if space.is_some() {
        line(&paint(
            WARN,
            "this memory is on the chip: what a kernel needs there, no remedy of the program makes smaller",
        ));
    }
    let amounts = [(needed, Some(message.needed)), (there_is, message.there_is), ("missing", message.missing())];
    let stated = message.stated.iter().map(|stated| (stated.of, Some(stated.bytes)));
    let rows = amounts.into_iter().chain(stated).filter_map(|(of, bytes)| Some((of, bytes?)));
    let table = Table::of(rows).text("", |(of, _)| *of).number("bytes", |(_, bytes)| output::bytes(*bytes));
    output::table(table, 0);
}

fn print_live(live: &[LiveBuffer], limit: usize) {
    let padding = |buffer: &LiveBuffer| if buffer.padding > 0 { output::bytes(buffer.padding) } else { String::new() };
    let name = |buffer: &LiveBuffer| if buffer.name.is_empty() { String::new() } else { format!("%{}", buffer.name) };
    let buffers = Table::of(live)
        .flexible("live at the peak", |buffer| name(buffer))
        .text("", |buffer| buffer.kind.name())
        .number("bytes", |buffer| output::bytes(buffer.bytes))
        .number("padding", |buffer| padding(buffer))
        .flexible("shape", |buffer| &buffer.shape)
        .flexible("where from", |buffer| output::whence(buffer.source.as_deref(), &buffer.op_name));
    output::table(buffers, limit);
}

fn print_remedies(remedies: &[Remedy], there_is: Option<u64>, limit: usize) {
    line("");
    if remedies.is_empty() {
        line("nothing was found that would make it smaller");
        return;
    }
    let what = |remedy: &&Remedy| match (remedy.kind, &remedy.axis) {
        (RemedyKind::Remat, _) => format!("compute {} again in the backward pass (jax.checkpoint)", remedy.of),
        (RemedyKind::Donation, _) if remedy.of.is_empty() => "donate the arguments that outputs replace".to_owned(),
        (RemedyKind::Donation, _) => format!("donate {}", remedy.of),
        (RemedyKind::MeshAxis, Some(axis)) => format!("split {} over {axis}", remedy.of),
        (RemedyKind::MeshAxis, None) => format!("split {}", remedy.of),
        (RemedyKind::Padding, _) => format!("other dimensions for {}", remedy.of),
    };
    let verdict = |remedy: &&Remedy| match there_is {
        Some(there_is) if remedy.peak <= there_is => "fits",
        Some(_) => "does not fit",
        None => "",
    };
    let table = Table::of(remedies)
        .flexible("remedy (estimates)", what)
        .number("values", |remedy| remedy.values)
        .number("saves", |remedy| output::bytes(remedy.saves))
        .number("then at peak", |remedy| output::bytes(remedy.peak))
        .text("", verdict);
    output::table(table, limit);
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
