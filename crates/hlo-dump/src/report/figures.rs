//! The figures at the top of the page, and their assumptions at its end.

use maud::{Markup, html};
use meshloom_analysis::Amount;
use meshloom_analysis::ModuleCost;
use meshloom_analysis::memory::{MemoryForm, upper};
use meshloom_hlo::mesh::Mesh;

use super::Page;
use crate::collectives::uncounted_text;
use crate::output::{bounds_of_count, human_bytes, human_count, plural, seconds, thousands};

pub fn figures(report: &Page) -> Markup {
    let Page { loaded, chip, cost, collectives, .. } = report;
    let figure = |label: &str, value: String, detail: String| {
        html! { div.figure { span { (label) } strong { (value) } small { (detail) } } }
    };
    let mesh = loaded.mesh.as_ref().map_or("no mesh is named".to_owned(), Mesh::to_string);
    let computations = format!("in {}", plural(loaded.module.computations.len() as u64, "computation"));
    let moved = collectives.moved_bounds();
    let sent = match moved.amount() {
        Amount::Exactly(bytes) => human_bytes(bytes),
        Amount::AtMost(bytes) => format!("≤ {}", human_bytes(bytes)),
        Amount::Unknown if moved.least > 0 => format!("≥ {}", human_bytes(moved.least)),
        Amount::Unknown => "unknown".to_owned(),
    };
    let runs = collectives.execution_bounds();
    let runs = match runs.amount() {
        Amount::Exactly(count) => plural(count, "run"),
        _ => format!("{} runs", bounds_of_count(runs)),
    };
    let flops = cost.total.flops;
    html! {
        div.figures {
            (figure("devices", thousands(loaded.device_count()), mesh))
            (figure("instructions", thousands(loaded.instruction_count()), computations))
            (figure(
                "operations",
                format!("{}FLOP", human_count(flops as f64)),
                format!("{} on each device", thousands(flops)),
            ))
            (figure("moved", sent, format!("sent by one device in {runs}")))
            @if let Ok(memory) = &report.memory {
                @let most = upper(memory, Some(chip.backend)).map(|upper| upper.peak);
                @let share = chip.device_memory().map(|bytes| 100.0 * most.unwrap_or(memory.peak) as f64 / bytes as f64);
                @let of = share.filter(|share| *share >= 0.1).map(|share| format!(", {share:.1} % of a {}", chip.name));
                @let detail = match most {
                    Some(most) => format!("estimated; at most {}", human_bytes(most)),
                    None => plural(memory.peak, "byte"),
                };
                @let detail = format!("{detail}{}", of.unwrap_or_default());
                (figure("peak memory", human_bytes(memory.peak), detail))
            }
            @if let (Some(roofline), Some(step)) = (&cost.roofline, &report.step) {
                @let (least, most) = (seconds(roofline.overlapped_seconds), seconds(roofline.serial_seconds));
                (figure(
                    "step, estimated",
                    seconds(step.seconds),
                    format!(
                        "on {}, {} bound; {least} if all overlaps, {most} if nothing",
                        roofline.chip, roofline.bound
                    ),
                ))
            }
        }
    }
}

pub fn notes(report: &Page) -> Markup {
    let mut notes: Vec<String> = report.loaded.unpartitioned().into_iter().collect();
    if report.loaded.is_nameless() {
        notes.push("The module names no mesh: --mesh data=2,fsdp=4 would name the axes.".to_owned());
    }
    notes.extend(uncounted_text(&report.collectives.uncounted));
    notes.extend(of_cost(&report.cost));
    notes.extend(of_memory(report));
    html! {
        @if !notes.is_empty() {
            section id="notes" {
                h2 { "What these figures take for granted" }
                ul { @for note in &notes { li { (note) } } }
            }
        }
    }
}

fn of_memory(report: &Page) -> Option<String> {
    let form = match &report.memory {
        Ok(memory) => memory.form,
        Err(error) => return Some(format!("Memory is not shown: {error}.")),
    };
    let note = match form {
        MemoryForm::Assignment => return None,
        MemoryForm::Scheduled => "Memory is estimated from the schedule of the module.",
        MemoryForm::Unscheduled => "Memory is estimated: the module has no schedule, and its order stands for one.",
        MemoryForm::Uncompiled => "Memory is estimated: the module is not compiled, and what will be fused is guessed.",
    };
    Some(note.to_owned())
}

fn of_cost(cost: &ModuleCost) -> Vec<String> {
    let assumed = &cost.assumptions;
    let mut notes = Vec::new();
    if !assumed.loops_counted_once.is_empty() {
        let names = assumed.loops_counted_once.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let count = assumed.loops_counted_once.len();
        let loops = plural(count as u64, "loop");
        notes.push(format!("Of {loops} it is not known how often they run; each counts once: {names}."));
    }
    if assumed.branches {
        notes.push("Of the branches of a conditional, the most expensive one counts.".to_owned());
    }
    if assumed.merged {
        notes.push("Calls of calls can be reached in too many ways to keep apart: each computation is one.".to_owned());
    }
    for call in assumed.unknown_calls.iter().take(8) {
        let times = if call.instructions == 1 { String::new() } else { format!(" ({} of them)", call.instructions) };
        notes.push(format!(
            "What custom call {}{times} computes is not known: its operations do not count.",
            call.target
        ));
    }
    notes
}
