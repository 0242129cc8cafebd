//! The findings as text.

use meshloom_analysis::{SlicedWhole, WholeBy};
use meshloom_hlo::table::Table;

use super::differences::Difference;
use super::sides::Other;
use super::tried::{Advice, Benefit, Tried};
use super::{Findings, KindSums};
use crate::input::Loaded;
use crate::moved::Moved;
use crate::output::{self, BOLD, DIM, WARN, line, paint};

pub fn print(program: &Loaded, other: Option<&Other>, found: &Findings, limit: usize) {
    line(&paint(BOLD, &program.title()));
    match other {
        Some(other) => line(&paint(BOLD, &format!("against {}", other.title))),
        None => line(&paint(DIM, "--against FILE or --target TARGET puts what XLA makes of it beside")),
    }
    line("");
    print_sums(&found.by_kind, &found.all);
    let theirs = found.all.theirs.as_ref().and_then(|theirs| theirs.moved_bytes().most);
    if let Some(scattered) = found.theirs_scattered.filter(|scattered| Some(*scattered) != theirs) {
        let scattered = output::bytes(scattered);
        line(&format!("XLA's would send {scattered} once sums are scattered, as later passes for TPU and GPU do"));
    }
    let of_theirs = match (other, found.peak_theirs) {
        (None, _) => String::new(),
        (Some(_), Some(peak)) => format!(", and {} with XLA's", output::bytes(peak)),
        (Some(_), None) => "; XLA's module is compiled, which makes its peak another one".to_owned(),
    };
    line(&format!("estimated peak: {} with ours{of_theirs}", output::bytes(found.peak)));
    if !found.has_scopes {
        line(&paint(DIM, "the program has no scopes; `lowered.as_text(debug_info=True)` has them, and source lines"));
    }
    if other.is_some() {
        print_differences(&found.differences, limit);
        print_sliced(&found.sliced_wholes, limit);
    }
    print_advice(&found.tried, other.is_some_and(|other| other.compiler.is_some()), other.is_some());
}

fn print_sums(by_kind: &[KindSums], all: &KindSums) {
    let times = |moved: &Moved| output::bounds_of_count(moved.executions());
    let sent = |moved: &Moved| output::bounds_of_bytes(moved.moved_bytes());
    let ratio = |ratio: f64| format!("{ratio:.3}");
    let theirs = |sums: &KindSums, text: &dyn Fn(&Moved) -> String| sums.theirs.as_ref().map(text).unwrap_or_default();
    let table = Table::of(by_kind.iter().chain([all]))
        .text("collective", |sums| sums.kind)
        .text("axes", |sums| &sums.axes)
        .number("ours, times", |sums| times(&sums.ours))
        .number("bytes sent", |sums| sent(&sums.ours))
        .number("XLA's, times", |sums| theirs(sums, &times))
        .number("bytes sent", |sums| theirs(sums, &sent))
        .number("ratio", |sums| sums.ratio.filter(|_| sums.kind == all.kind).map_or(String::new(), ratio));
    output::table(table, 0);
}

fn print_differences(differences: &[Difference], limit: usize) {
    line("");
    if differences.is_empty() {
        return line("both send the same");
    }
    line(&paint(BOLD, "what one sends and the other does not"));
    let more = |it: &&Difference| match it.more_bytes {
        Some(bytes) if bytes < 0 => format!("-{}", output::bytes(bytes.unsigned_abs())),
        Some(bytes) => format!("+{}", output::bytes(bytes.unsigned_abs())),
        None => "?".to_owned(),
    };
    let times = |moved: &Moved| match output::bounds_of_count(moved.executions()) {
        times if times == "0" => "-".to_owned(),
        times => times,
    };
    let table = Table::of(differences)
        .text("collective", |it| it.kind)
        .text("axes", |it| &it.axes)
        .flexible("of", |it| &it.tensor)
        .number("ours, times", |it| times(&it.ours))
        .number("XLA's, times", |it| times(&it.theirs))
        .number("XLA sends", more)
        .flexible("where from", |it| &it.from);
    output::table(table, limit);
}

fn print_sliced(sliced: &[SlicedWhole], limit: usize) {
    if sliced.is_empty() {
        return;
    }
    line("");
    line(&paint(BOLD, "made whole on every device by XLA, which then keeps a part"));
    let by = |it: &&SlicedWhole| match it.by {
        WholeBy::Gather => "gathered",
        WholeBy::MaskedSum => "gathered by a sum",
        WholeBy::Sum => "summed",
        WholeBy::ScatteredSum => "summed, to be scattered",
    };
    let axes = |it: &&SlicedWhole| {
        let axes = it.axes.iter().flatten().map(ToString::to_string);
        axes.collect::<Vec<_>>().join(",")
    };
    let table = Table::of(sliced)
        .text("", by)
        .text("axes", axes)
        .flexible("whole", |it| &it.whole)
        .flexible("part", |it| &it.part)
        .number("times", |it| output::amount(it.executions))
        .number("bytes sent", |it| output::amount_of_bytes(it.moved_bytes))
        .flexible("where from", |it| output::whence(it.source.as_deref(), &it.op_name));
    output::table(table, limit);
    if sliced.iter().any(|it| matches!(it.by, WholeBy::Gather | WholeBy::MaskedSum)) {
        line(&paint(WARN, "a value that is gathered so is XLA's involuntary full rematerialization"));
    }
}

fn print_advice(tried: &Tried, is_compiled: bool, is_compared: bool) {
    line("");
    if tried.is_unknown {
        return line("a loop runs an unknown number of times, so no constraint was tried");
    }
    let times = output::plural(tried.trials as u64, "constraint");
    let cut = if tried.is_cut { "; --trials N tries more" } else { "" };
    let vain = match tried.compiled_in_vain {
        0 => String::new(),
        count => {
            format!("; XLA was asked about {count}, and sends no less with one of them alone")
        }
    };
    if tried.advice.is_empty() {
        return line(&format!("{times} tried, and none that is worth telling{vain}{cut}"));
    }
    line(&paint(BOLD, &format!("{times} tried, and worth telling{vain}{cut}")));
    for advice in &tried.advice {
        print_one(advice, is_compared);
    }
    if let Some(Advice { compiled: Some([before, after]), together: true, .. }) = tried.advice.first() {
        line(&format!("XLA sends {} with all of them, compiled again and its sums scattered", change(*before, *after)));
    }
    if !is_compiled {
        line(&paint(
            DIM,
            "ours was partitioned again with each; XLA may decide otherwise, which --target TARGET tells",
        ));
    }
}

fn print_one(advice: &Advice, is_compared: bool) {
    let spec = match (&advice.spec, &advice.stated) {
        (Some(spec), Some(stated)) => format!("{spec} in place of {stated}"),
        (Some(spec), None) => spec.clone(),
        (None, stated) => format!("no constraint in place of {}", stated.as_deref().unwrap_or("the stated one")),
    };
    let how = match advice.on {
        "input" => "in_shardings",
        "result" => "out_shardings",
        _ => "with_sharding_constraint",
    };
    let whence = output::whence(advice.source.as_deref(), &advice.op_name);
    let at = if whence.is_empty() { String::new() } else { format!(" at {whence}") };
    line(&format!("{how} {spec}"));
    line(&format!("  on {} %{}{at}", advice.tensor, advice.name));
    let (before, after) = (advice.before, advice.after);
    let mut ours = format!(
        "  ours sends {}, and holds {}",
        change(before.moved_bytes, after.moved_bytes),
        change(before.peak, after.peak)
    );
    if advice.benefit == Benefit::SharedWork {
        let [less, more] = [after.operations, before.operations].map(|count| output::count(count as f64));
        ours += &format!(", and computes {less} operations instead of {more}");
    }
    if advice.benefit == Benefit::AsOurs && is_compared {
        ours += "; XLA has a collective here that ours has not";
    }
    line(&ours);
    if let Some([before, after]) = advice.compiled.filter(|_| !advice.together) {
        line(&format!("  XLA sends {}, compiled again and its sums scattered", change(before, after)));
    }
}

/// Returns `4.50 KiB instead of 6.00 KiB`.
fn change(before: u64, after: u64) -> String {
    match before == after {
        true => format!("{} as before", output::bytes(after)),
        false => format!("{} instead of {}", output::bytes(after), output::bytes(before)),
    }
}
