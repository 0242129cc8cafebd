//! The traffic of one program by step, and of the same config in other forms.

use std::num::NonZeroU64;

use anyhow::{Result, bail};
use meshloom_analysis::{Amount, Bounds};
use meshloom_analysis::{AxisPart, StepTraffic, Traffic as Found, counter_names, step_inputs, traffic};
use meshloom_hlo::suggest::did_you_mean;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_step;
use crate::arguments::Traffic;
use crate::input::Loaded;
use crate::moved::Moved;
use crate::output;
use crate::run::{Event, Syncs};

pub const TIME_MODEL: &str = "* a model: the bytes at the stated rate, with nothing else on the link";
pub const SPREAD_MODEL: &str = "* a model of overlap: each transfer goes evenly with the steps between sending and use, and the periods before \
                                were alike";

/// The traffic of one form of a program.
#[derive(JsonSchema, Serialize)]
pub struct Series {
    /// The name of its form: `streaming+int4`.
    pub name: String,
    /// The overrides by which its config differs from the one given.
    overrides: Vec<String>,
    /// The schedule of DiLoCo, if it is used.
    schedule: Option<Syncs>,
    /// The inputs of the program that count steps, by number.
    step_inputs: Vec<i64>,
    /// The number of collectives over the axis, all branches together.
    collectives: usize,
    /// The number of them in a loop whose trip count is not known.
    #[serde(skip)]
    in_unknown_loops: usize,
    /// The steps, one by one.
    #[serde(rename = "steps")]
    pub rows: Vec<StepRow>,
    /// The bytes of the step with most, at most; null if the number is not known.
    peak_bytes: Option<u64>,
    /// The bytes of the step with most, at least.
    peak_bytes_least: u64,
    /// The bytes in all steps, at most; null if the number is not known.
    total_bytes: Option<u64>,
    /// The bytes in all steps, at least.
    total_bytes_least: u64,
}

/// A step. The first is step 1, with no step done before.
#[derive(JsonSchema, Serialize)]
pub struct StepRow {
    /// Its number.
    pub step: u64,
    /// The DiLoCo fragment that is sent after it: `all` or `fragment 2`.
    sent: Option<String>,
    /// The DiLoCo fragment that comes in after it: `all` or `fragment 2`.
    applied: Option<String>,
    #[serde(flatten)]
    all: Moved,
    /// The bytes of them that collectives in loops send, at most; null if the number is not known.
    moved_bytes_in_loops: Option<u64>,
    /// The time that the bytes need at the stated rate, by the model.
    pub seconds: Option<f64>,
    /// The bytes if each transfer is spread evenly over the steps between sending and use, by the model.
    pub spread_bytes: Option<f64>,
}

impl StepRow {
    pub(crate) fn of(found: &StepTraffic, (sent, applied): Event) -> StepRow {
        let StepTraffic { counter, executions, moved_bytes, moved_in_loops } = found;
        StepRow {
            step: counter + 1,
            sent,
            applied,
            all: Moved::of(*executions, *moved_bytes),
            moved_bytes_in_loops: moved_in_loops.most,
            seconds: None,
            spread_bytes: None,
        }
    }

    pub fn most(&self) -> Option<u64> {
        self.moved_bytes().most
    }

    pub fn moved_bytes(&self) -> Bounds {
        self.all.moved_bytes()
    }

    pub fn executions(&self) -> Bounds {
        self.all.executions()
    }

    pub fn in_loops(&self) -> Option<Bounds> {
        self.moved_bytes_in_loops.map(|bytes| Bounds { least: bytes, most: Some(bytes) })
    }

    /// Returns `fragment 2 sent, fragment 1 used`.
    pub fn event(&self) -> String {
        let sent = self.sent.as_ref().map(|name| format!("{name} sent"));
        let applied = self.applied.as_ref().map(|name| format!("{name} used"));
        sent.into_iter().chain(applied).collect::<Vec<_>>().join(", ")
    }

    pub fn is_like(&self, other: &StepRow) -> bool {
        (self.executions().most, self.moved_bytes()) == (other.executions().most, other.moved_bytes())
            && (&self.sent, &self.applied) == (&other.sent, &other.applied)
            && self.spread_bytes == other.spread_bytes
    }
}

impl Series {
    /// Returns `streaming: 3 fragments, one every 2 steps, used 1 step later, f32`.
    pub fn title(&self) -> String {
        let Some(form) = &self.schedule else { return self.name.clone() };
        let Syncs { period, steps_between_syncs, fragments, overlap_steps, transport, .. } = form;
        let late = match overlap_steps {
            0 => String::new(),
            steps => format!(", used {} later", output::plural(*steps as u64, "step")),
        };
        match fragments {
            1 => format!("{}: all every {}{late}, {transport}", self.name, output::plural(*period as u64, "step")),
            count => format!(
                "{}: {count} fragments, one every {}{late}, {transport}",
                self.name,
                output::plural(*steps_between_syncs as u64, "step")
            ),
        }
    }

    pub fn peak(&self) -> Bounds {
        Bounds { least: self.peak_bytes_least, most: self.peak_bytes }
    }

    pub fn total(&self) -> Bounds {
        Bounds { least: self.total_bytes_least, most: self.total_bytes }
    }

    pub fn summary(&self) -> String {
        let (peak, total) = (output::most(self.peak(), output::bytes), output::most(self.total(), output::bytes));
        match self.rows.len() {
            _ if self.total_bytes.is_none() && self.total_bytes_least == 0 => {
                "how much a step sends is not known".to_owned()
            }
            1 => format!("every step sends {total}"),
            steps => format!("at most {peak} in a step, {total} in {steps} steps"),
        }
    }

    /// Explains why bytes have bounds.
    pub fn undecided(&self) -> Vec<String> {
        let has_open_branches =
            self.rows.iter().any(|row| row.most().is_some_and(|most| most != row.moved_bytes().least));
        let branches = has_open_branches.then(|| match self.step_inputs.as_slice() {
            [] => "no input is known to count steps, so which branches are taken is not; --step-input NAME names it"
                .to_owned(),
            _ => "some branches depend on more than the number of the step".to_owned(),
        });
        let loops = (self.in_unknown_loops > 0).then(|| {
            let (runs, what) = (if self.in_unknown_loops == 1 { "runs" } else { "run" }, "collective");
            let what = output::plural(self.in_unknown_loops as u64, what);
            format!("{what} {runs} in a loop whose trip count is not known before it runs")
        });
        branches.into_iter().chain(loops).collect()
    }
}

/// Returns the program that was given, or each form of it that was asked for.
pub fn all(arguments: &Traffic, first: &Loaded, axis: &AxisPart) -> Result<Vec<Series>> {
    if arguments.compare.is_empty() {
        let name = if first.run.is_some() { "as configured" } else { "the program" };
        return Ok(vec![series(arguments, first, axis, (name, Vec::new()))?]);
    }
    if first.run.is_none() {
        bail!("--compare changes a run config, and this is {}", first.form);
    }
    let each = arguments.compare.iter().map(|name| {
        let overrides = overrides(name)?;
        let loaded = by_step(&arguments.input.with(&overrides))?;
        series(arguments, &loaded, axis, (name, overrides))
    });
    each.collect()
}

/// Returns the overrides for a name such as `streaming+int4` in a run config.
pub fn overrides(name: &str) -> Result<Vec<String>> {
    let one = |word: &str| match word {
        "vanilla" => Ok(vec!["diloco.streaming=false".to_owned()]),
        "streaming" => Ok(vec!["diloco.streaming=true".to_owned()]),
        "f32" | "bf16" | "f8" | "int4" => Ok(vec![format!("diloco.transport={word}")]),
        _ => match word.split_once('=') {
            Some(("microbatches", count)) => Ok(vec![format!("train.microbatches={count}")]),
            Some(("fragments", count)) => Ok(vec![format!("diloco.fragments={count}")]),
            Some(("overlap", steps)) => Ok(vec![format!("diloco.overlap_steps={steps}")]),
            _ => bail!(
                "--compare {name}: \"{word}\" is none of vanilla, streaming, f32, bf16, f8, int4, fragments=N, overlap=N, \
                 microbatches=N, which may be joined: streaming+int4"
            ),
        },
    };
    let all: Result<Vec<Vec<String>>> = name.split('+').map(one).collect();
    Ok(all?.concat())
}

fn series(
    arguments: &Traffic,
    loaded: &Loaded,
    axis: &AxisPart,
    (name, overrides): (&str, Vec<String>),
) -> Result<Series> {
    let Some(mesh) = &loaded.mesh else { bail!("the module names no mesh") };
    let diloco = loaded.run.as_ref().map_or(Ok(None), |run| run.syncs())?;
    let inputs = step_inputs(&loaded.module, arguments.step_input.as_deref());
    if let (Some(name), []) = (&arguments.step_input, inputs.as_slice()) {
        let names = counter_names(&loaded.module);
        let near = did_you_mean(name, names.iter().map(String::as_str));
        bail!("--step-input {name}: no input of whole numbers has this name{near}; there are {}", names.join(", "));
    }
    let period = diloco.as_ref().map_or(1, |diloco| diloco.period as u64);
    let steps = arguments.steps.map_or(period, NonZeroU64::get);
    let Found { collectives, steps: found } = traffic(&loaded.module, loaded.devices, (mesh, axis), &inputs, 0..steps);
    let event = |step: u64| {
        let at = usize::try_from(step).unwrap_or(usize::MAX);
        diloco.as_ref().map(|diloco| (diloco.after_step)(at)).unwrap_or_default()
    };
    let mut rows: Vec<StepRow> = found.iter().map(|found| StepRow::of(found, event(found.counter + 1))).collect();
    if let Some(gbps) = arguments.gbps {
        rows.iter_mut().for_each(|row| row.seconds = row.most().map(|bytes| bytes as f64 * 8.0 / (gbps * 1e9)));
    }
    if let Some(diloco) = &diloco {
        spread(&mut rows, diloco.overlap_steps, diloco.period);
    }
    let bytes = rows.iter().map(StepRow::most);
    let peak_bytes = bytes.clone().try_fold(0, |most: u64, it| Some(most.max(it?)));
    let total_bytes = bytes.clone().try_fold(0u64, |sum, it| Some(sum.saturating_add(it?)));
    Ok(Series {
        name: name.to_owned(),
        overrides,
        schedule: diloco,
        step_inputs: inputs.iter().map(|(parameter, _)| *parameter).collect(),
        collectives: collectives.len(),
        in_unknown_loops: collectives.iter().filter(|entry| entry.executions == Amount::Unknown).count(),
        peak_bytes_least: rows.iter().map(|row| row.moved_bytes().least).max().unwrap_or(0),
        peak_bytes,
        total_bytes_least: rows.iter().fold(0, |sum, row| sum.saturating_add(row.moved_bytes().least)),
        total_bytes,
        rows,
    })
}

/// Applies the model of overlap: the bytes sent after a step travel in equal parts during the `tau` steps that follow.
/// It shows the steady state, so the first steps include bytes that the previous period sent.
pub(crate) fn spread(rows: &mut [StepRow], overlap: usize, period: usize) {
    // The model needs a whole period, to know what was sent before the first step.
    if overlap == 0 || rows.len() < period {
        return;
    }
    let sent: Option<Vec<u64>> = rows.iter().map(StepRow::most).collect();
    let Some(sent) = sent else { return };
    for (index, row) in rows.iter_mut().enumerate() {
        let before = (1..=overlap).map(|back| match index.checked_sub(back) {
            Some(at) => sent[at],
            None => sent[(index + period * overlap.div_ceil(period) - back) % period],
        });
        row.spread_bytes = Some(before.sum::<u64>() as f64 / overlap as f64);
    }
}
