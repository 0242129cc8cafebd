//! `hlo-dump traffic`: what crosses an axis of the mesh, at which step.
//!
//! Bytes come from the program, from the branch that each step takes ([`meshloom_hlo::analysis::traffic()`]). For a
//! run config with DiLoCo, the schedule adds the fragment. Times and the line of overlap are a model and are marked so.

mod picture;
mod series;

use anyhow::{Context, Result, bail};
use meshloom_hlo::analysis::AxisPart;
use serde::Serialize;

use self::series::{Row, Series};
use crate::arguments::{Input, Reading, Traffic};
use crate::input::{Described, Loaded, load};
use crate::output::{self, BOLD, Column, DIM, Table, line, paint};

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    input: Described<'a>,
    axis: &'a str,
    /// Bits that a device sends in a second, if the model was asked for.
    bits_per_second: Option<f64>,
    series: &'a [Series],
}

pub fn run(arguments: &Traffic, json: bool) -> Result<()> {
    let first = by_step(&arguments.input)?;
    let axis = axis(arguments, &first)?;
    let series = series::all(arguments, &first, &axis)?;
    if let Some(path) = &arguments.svg {
        let drawing = picture::svg(&series, &axis.to_string());
        std::fs::write(path, drawing).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if json {
        let bits_per_second = arguments.gbps.map(|gbps| gbps * 1e9);
        let axis = axis.to_string();
        return output::json(
            "traffic",
            &Answer { input: first.describe(), axis: &axis, bits_per_second, series: &series },
        );
    }
    line(&paint(BOLD, &first.title()));
    line(&format!("what each device sends over {axis}, by step"));
    let most = series.iter().flat_map(|it| &it.rows).filter_map(Row::most).max().unwrap_or(0);
    series.iter().for_each(|it| print(it, most));
    print_comparison(&series);
    Ok(())
}

/// The input; of a run config, the program of a single step, however many a call has.
fn by_step(input: &Input) -> Result<Loaded> {
    let loaded = load(input)?;
    if loaded.steps_per_execution() == 1 {
        return Ok(loaded);
    }
    let one = std::iter::once("train.steps_per_call=1".to_owned());
    let reading = Reading { set: input.reading.set.iter().cloned().chain(one).collect(), ..input.reading.clone() };
    load(&Input { path: input.path.clone(), reading })
}

/// The axis that was asked for; else the one over which replicas are spread.
fn axis(arguments: &Traffic, loaded: &Loaded) -> Result<AxisPart> {
    let Some(mesh) = &loaded.mesh else {
        bail!("the module names no mesh; add --mesh, such as --mesh diloco=2,fsdp=4")
    };
    match &arguments.over {
        Some(name) => Ok(AxisPart::parse(name, mesh)?),
        None => match ["diloco", "replica"].into_iter().find(|name| mesh.axis(name).is_some()) {
            Some(name) => Ok(AxisPart::parse(name, mesh)?),
            None => bail!("the mesh {mesh} has no axis diloco or replica: say which one is slow, as --over data"),
        },
    }
}

const BAR: usize = 32;

/// A bar of eighths of characters.
fn bar(bytes: u64, most: u64) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    if most == 0 {
        return String::new();
    }
    // What is not nothing is to be seen.
    let eighths = (bytes as f64 / most as f64 * (8 * BAR) as f64).round().max(f64::from(u8::from(bytes > 0))) as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(PARTS[eighths % 8]);
    }
    bar
}

fn print(series: &Series, most: u64) {
    line("");
    line(&paint(BOLD, &series.title()));
    let mut table = Table::new(&[
        ("step", Column::Number),
        ("after it", Column::Text),
        ("collectives", Column::Number),
        ("sends", Column::Number),
        ("", Column::Text),
        ("in loops", Column::Number),
        ("on the link*", Column::Number),
        ("spread over the overlap*", Column::Number),
    ]);
    let rows = folded(&series.rows);
    for (steps, row) in &rows {
        table.row(vec![
            steps.clone(),
            row.event(),
            output::bounds_of_count(row.executions()),
            output::bounds_of_bytes(row.moved_bytes()),
            bar(row.most().unwrap_or(0), most),
            row.in_loops().filter(|it| it.most != Some(0)).map(output::bounds_of_bytes).unwrap_or_default(),
            row.seconds.map(output::seconds).unwrap_or_default(),
            row.spread_bytes.map(|bytes| output::human_bytes(bytes.round() as u64)).unwrap_or_default(),
        ]);
    }
    table.print();
    line(&series.summary());
    if rows.iter().any(|(_, row)| row.seconds.is_some()) {
        line(&paint(DIM, series::TIME_MODEL));
    }
    if rows.iter().any(|(_, row)| row.spread_bytes.is_some()) {
        line(&paint(DIM, series::SPREAD_MODEL));
    }
    if let Some(undecided) = series.undecided() {
        line(&paint(DIM, &undecided));
    }
}

/// Rows that follow one another and are alike, as one: `4..7`.
fn folded(rows: &[Row]) -> Vec<(String, &Row)> {
    let runs = rows.chunk_by(Row::is_like);
    let name = |run: &[Row]| match run {
        [only] => only.step.to_string(),
        run => format!("{}..{}", run[0].step, run[run.len() - 1].step),
    };
    runs.map(|run| (name(run), &run[0])).collect()
}

/// The series beside one another: peaks and totals.
fn print_comparison(series: &[Series]) {
    let [first, _, ..] = series else { return };
    let mut table = Table::new(&[
        ("compared", Column::Text),
        ("most in a step", Column::Number),
        ("of the first", Column::Number),
        ("in all steps", Column::Number),
        ("of the first", Column::Number),
    ]);
    let share = |part: Option<u64>, whole: Option<u64>| match (part, whole) {
        (Some(part), Some(whole)) if whole > 0 => format!("{:.3}", part as f64 / whole as f64),
        _ => String::new(),
    };
    for it in series {
        table.row(vec![
            it.name.clone(),
            it.peak_bytes.map_or("?".to_owned(), output::bytes),
            share(it.peak_bytes, first.peak_bytes),
            it.total_bytes.map_or("?".to_owned(), output::bytes),
            share(it.total_bytes, first.total_bytes),
        ]);
    }
    line("");
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion() {
        assert_eq!(bar(0, 100), "");
        assert_eq!(bar(100, 100), "█".repeat(BAR));
        assert_eq!(bar(50, 100), "█".repeat(BAR / 2));
        assert_eq!(bar(1, 1_000_000), "▏", "little is not nothing");
        assert_eq!(bar(5, 0), "");
    }
}
