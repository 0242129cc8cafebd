//! `hlo-dump advise`: what meshloom and XLA make of one program, side by side, and the constraints that would change
//! it.
//!
//! Nothing is guessed: a constraint is listed if the program was partitioned again with it. XLA's answer is known if a
//! plugin compiles it again (`--target`).

mod differences;
mod print;
mod sides;
mod tried;

use anyhow::{Context, Result, bail};
use meshloom::compile::{DeviceFigures, LowerOptions, lower_module};
use meshloom_analysis::{SlicedWhole, sliced_wholes};
use meshloom_hlo::source::op_name;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Advise;
use crate::emitted::Emitted;
use crate::moved::Moved;
use crate::{output, partition};
use differences::{Difference, differences};
use sides::{Other, PartitionedSide};
use tried::{Advice, Tried};

#[derive(JsonSchema, Serialize)]
pub struct Answer<'a> {
    /// The program that XLA partitioned: the input as it was given, or the target; null without `--against` and
    /// `--target`.
    against: Option<&'a str>,
    /// Sums of collectives by kind and mesh axes.
    by_kind: &'a [KindSums],
    /// The sum of all collectives.
    all: &'a KindSums,
    /// The bytes that a device sends with XLA's program if later passes make reduce-scatters of the sums to be
    /// scattered, as those for TPU and GPU do; null if it is not known.
    theirs_scattered: Option<u64>,
    /// The estimated bytes that a device needs with meshloom's partitioning.
    peak: u64,
    /// The same with XLA's; null if it is not known, or estimated in another way because the module is compiled.
    peak_theirs: Option<u64>,
    /// The collectives that only one of them has, or that send more with one, by scope: first those with which XLA
    /// sends most.
    differences: &'a [Difference],
    /// The values that XLA makes whole on devices that then keep a part each.
    sliced_wholes: &'a [SlicedWhole],
    /// The constraints that were tried and would change something.
    advice: &'a [Advice],
    /// The number of times that the program was partitioned again.
    trials: usize,
    /// The number of constraints with which XLA was asked again and sends no less.
    compiled_in_vain: usize,
}

/// The collectives of one kind over some mesh axes, by both partitioners.
#[derive(JsonSchema, Serialize)]
pub struct KindSums {
    /// The kind, or `all`.
    kind: &'static str,
    /// The mesh axes, or else the devices in short.
    axes: String,
    /// The sums of meshloom's program.
    ours: Moved,
    /// The sums of XLA's program; null if it is not known.
    theirs: Option<Moved>,
    /// XLA's bytes over ours; null if one of them is not known, or if ours are 0.
    ratio: Option<f64>,
}

/// Everything that is printed.
struct Findings {
    by_kind: Vec<KindSums>,
    all: KindSums,
    theirs_scattered: Option<u64>,
    peak: u64,
    peak_theirs: Option<u64>,
    differences: Vec<Difference>,
    sliced_wholes: Vec<SlicedWhole>,
    tried: Tried,
    /// Whether the program says where its instructions come from.
    has_scopes: bool,
}

pub fn run(arguments: &Advise, json: bool) -> Result<()> {
    let program = partition::unpartitioned(&arguments.input)?;
    let lowered = lower_module(&program.module, &LowerOptions::default()).with_context(|| program.name.clone())?;
    if lowered.mesh().is_none() {
        bail!(
            "{}: no value of the program is split, so each device runs all of it; state the sharding of an input",
            program.name
        );
    }
    let base = DeviceFigures::of(&lowered)?;
    let ours = PartitionedSide::of(lowered.module.decode()?, None, &program)?;
    let other = Other::of(arguments, &program)?;
    let theirs = other.as_ref().map(|other| &other.side);
    let (by_kind, all) = sums(&ours, theirs);
    let differences = theirs.map(|theirs| differences(&ours, theirs)).unwrap_or_default();
    let sliced_wholes = theirs.map(|it| sliced_wholes(&it.module, &it.found)).unwrap_or_default();
    let compiler = other.as_ref().and_then(|other| other.compiler.as_ref());
    let tried = Tried::of(&program, (&lowered, base), (&differences, &sliced_wholes), compiler, arguments.trials)?;
    let peak_theirs = theirs.filter(|it| it.memory.form == ours.memory.form).map(|it| it.memory.peak);
    let peak = ours.memory.peak;
    let mut instructions = program.module.computations.iter().flat_map(|it| &it.instructions);
    let has_scopes = instructions.any(|it| op_name(it).contains('/'));
    let found = Findings {
        by_kind,
        all,
        theirs_scattered: theirs.and_then(PartitionedSide::scattered_bytes),
        peak,
        peak_theirs,
        differences,
        sliced_wholes,
        tried,
        has_scopes,
    };
    let against = other.as_ref().map(|other| other.name.as_str());
    if json {
        let answer = Answer {
            against,
            by_kind: &found.by_kind,
            all: &found.all,
            theirs_scattered: found.theirs_scattered,
            peak,
            peak_theirs,
            differences: &found.differences,
            sliced_wholes: &found.sliced_wholes,
            advice: &found.tried.advice,
            trials: found.tried.trials,
            compiled_in_vain: found.tried.compiled_in_vain,
        };
        return output::json("hlo-dump/advise", &program.found(&answer));
    }
    print::print(&program, other.as_ref(), &found, arguments.limit);
    Ok(())
}

/// Returns the sums of both by kind and axes, and of all collectives.
fn sums(ours: &PartitionedSide, theirs: Option<&PartitionedSide>) -> (Vec<KindSums>, KindSums) {
    let nothing = ours.found.some(Vec::new());
    let compared = Emitted::compared(&ours.found, theirs.map_or(&nothing, |theirs| &theirs.found));
    let is_known = theirs.is_some();
    let row = |(kind, sums): (&'static str, crate::emitted::Sums)| KindSums {
        kind,
        axes: sums.axes,
        ours: sums.emitted,
        theirs: is_known.then_some(sums.compiled),
        ratio: sums.ratio.filter(|_| is_known),
    };
    let by_kind = compared.by_kind.into_iter().map(|it| row((it.kind, it.sums))).collect();
    (by_kind, row(("all", compared.all)))
}
