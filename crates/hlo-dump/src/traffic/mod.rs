//! `hlo-dump traffic`: the bytes that cross an axis of the mesh at each step.
//!
//! Bytes come from the program, from the branch that each step takes ([`meshloom_analysis::traffic()`]). For a
//! run config with DiLoCo, the schedule adds the fragment. Times and the line of overlap are a model and are marked so.

mod picture;
pub mod series;

use anyhow::{Context, Result, bail};
use meshloom_analysis::AxisPart;
use meshloom_hlo::table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use self::series::{Series, StepRow};
use crate::arguments::{Input, Traffic};
use crate::input::{Loaded, load};
use crate::output::{self, BOLD, DIM, line, paint};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The mesh axis, or the part of one.
    axis: String,
    /// Bits that a device sends in a second, if the model was asked for.
    bits_per_second: Option<f64>,
    /// The traffic of the program; with `--compare`, of each form of it.
    series: &'a [Series],
}

pub fn run(arguments: &Traffic, json: bool) -> Result<()> {
    let first = by_step(&arguments.input)?;
    let axis = axis(arguments, &first)?;
    let series = series::all(arguments, &first, &axis)?;
    if let Some(path) = &arguments.svg {
        output::write(path, picture::svg(&series, &axis.to_string()))?;
    }
    if json {
        let bits_per_second = arguments.gbps.map(|gbps| gbps * 1e9);
        let answer = Answer { axis: axis.to_string(), bits_per_second, series: &series };
        return output::json("hlo-dump/traffic", &first.found(&answer));
    }
    first.print_title();
    line(&format!("what each device sends over {axis}, by step"));
    let most = series.iter().flat_map(|it| &it.rows).filter_map(StepRow::most).max().unwrap_or(0);
    series.iter().for_each(|it| print(it, most, arguments.limit));
    print_comparison(&series);
    Ok(())
}

/// Loads the input; for a run config, the program of a single step, however many steps a call has.
fn by_step(input: &Input) -> Result<Loaded> {
    let loaded = load(input)?;
    if loaded.steps_per_execution() == 1 {
        return Ok(loaded);
    }
    load(&input.with(&["train.steps_per_call=1".to_owned()]))
}

/// Returns the axis that was asked for; else the one over which replicas are spread.
fn axis(arguments: &Traffic, loaded: &Loaded) -> Result<AxisPart> {
    let Some(mesh) = &loaded.mesh else {
        bail!("the module names no mesh; add --mesh, such as --mesh diloco=2,fsdp=4")
    };
    match &arguments.over {
        Some(name) => AxisPart::parse(name, mesh).with_context(|| format!("--over {name}")),
        None => match ["diloco", "replica"].into_iter().find(|name| mesh.axis(name).is_some()) {
            Some(name) => Ok(AxisPart::parse(name, mesh)?),
            None => bail!("the mesh {mesh} has no axis diloco or replica: say which one is slow, as --over data"),
        },
    }
}

/// The width of a whole bar, in characters.
pub const BAR: usize = 32;

/// Returns a bar of eighths of characters.
pub fn bar(bytes: u64, most: u64) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    if most == 0 {
        return String::new();
    }
    // An amount above zero is always visible.
    let eighths = (bytes as f64 / most as f64 * (8 * BAR) as f64).round().max(f64::from(u8::from(bytes > 0))) as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(PARTS[eighths % 8]);
    }
    bar
}

fn print(series: &Series, most: u64, limit: usize) {
    line("");
    line(&paint(BOLD, &series.title()));
    let rows = folded(&series.rows);
    let in_loops = |row: &StepRow| row.in_loops().filter(|it| it.most != Some(0)).map(output::bounds_of_bytes);
    let spread = |row: &StepRow| row.spread_bytes.map(|bytes| output::human_bytes(bytes.round() as u64));
    let table = Table::of(&rows)
        .number("step", |(steps, _)| steps)
        .text("after it", |(_, row)| row.event())
        .number("collectives", |(_, row)| output::bounds_of_count(row.executions()))
        .number("sends", |(_, row)| output::bounds_of_bytes(row.moved_bytes()))
        .text("", |(_, row)| bar(row.most().unwrap_or(0), most))
        .number("in loops", |(_, row)| in_loops(row).unwrap_or_default())
        .number("on the link*", |(_, row)| row.seconds.map(output::seconds).unwrap_or_default())
        .number("spread over the overlap*", |(_, row)| spread(row).unwrap_or_default());
    output::table(table, limit);
    line(&series.summary());
    if rows.iter().any(|(_, row)| row.seconds.is_some()) {
        line(&paint(DIM, series::TIME_MODEL));
    }
    if rows.iter().any(|(_, row)| row.spread_bytes.is_some()) {
        line(&paint(DIM, series::SPREAD_MODEL));
    }
    series.undecided().iter().for_each(|why| line(&paint(DIM, why)));
}

/// Returns rows that follow one another and are alike as one: `4..7`.
fn folded(rows: &[StepRow]) -> Vec<(String, &StepRow)> {
    let runs = rows.chunk_by(StepRow::is_like);
    let name = |run: &[StepRow]| match run {
        [only] => only.step.to_string(),
        run => format!("{}..{}", run[0].step, run[run.len() - 1].step),
    };
    runs.map(|run| (name(run), &run[0])).collect()
}

/// Prints the series beside one another: peaks and totals.
fn print_comparison(series: &[Series]) {
    let [first, _, ..] = series else { return };
    let share = |part: Option<u64>, whole: Option<u64>| match (part, whole) {
        (Some(part), Some(whole)) if whole > 0 => format!("{:.3}", part as f64 / whole as f64),
        _ => String::new(),
    };
    let table = Table::of(series)
        .text("compared", |it| &it.name)
        .number("most in a step", |it| output::most(it.peak(), output::bytes))
        .number("of the first", |it| share(it.peak().most, first.peak().most))
        .number("in all steps", |it| output::most(it.total(), output::bytes))
        .number("of the first", |it| share(it.total().most, first.total().most));
    line("");
    output::table(table, 0);
}
