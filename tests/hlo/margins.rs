//! The margins of modules that are not compiled, against XLA's figures for the calibration set.

use std::fmt::Write as _;
use std::sync::Mutex;

use meshloom::analysis::memory::{Margin, MemoryForm, UpperMemory, upper};
use meshloom::analysis::{ModuleMemory, memory};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::proto::HloModuleProto;
use support::calibration::{Calibration, Figures, programs, table};

use crate::hlo::memory::check_page;
use crate::hlo::programs::text;

/// A program on a platform: the estimate, what it is at most, and XLA's figures.
struct Row {
    name: &'static str,
    estimate: ModuleMemory,
    upper: UpperMemory,
    xla: Figures,
}

impl Row {
    /// XLA's temporaries, by the estimate.
    fn short_by(&self) -> f64 {
        self.xla.temporaries as f64 / self.estimate.temporaries.max(1) as f64
    }

    /// The bound for all of it, by XLA's figure.
    fn too_high_by(&self) -> f64 {
        self.upper.peak as f64 / self.xla.total() as f64
    }

    /// The same, without the parts that weigh most in small programs: the bytes that every margin has, and what XLA may
    /// have put into the memory on the chip, which it does not count.
    fn too_high_without_constants(&self, backend: PlatformKind) -> f64 {
        let on_chip = match backend {
            PlatformKind::Tpu => (self.upper.peak - self.upper.arguments - Margin::of(backend).bytes).min(ON_CHIP),
            _ => 0,
        };
        (self.upper.peak - Margin::of(backend).bytes) as f64 / (self.xla.total() + on_chip) as f64
    }
}

/// The module that is emitted for a platform.
fn emitted(program: &Calibration, platform: PlatformKind) -> HloModuleProto {
    program.lower(platform).module.decode().expect("a module")
}

/// The rows of each platform, in the order of the set.
fn rows() -> Vec<(PlatformKind, Vec<Row>)> {
    let (figures, programs) = (table(), programs());
    let all: Vec<(PlatformKind, &Calibration)> = PlatformKind::ALL
        .into_iter()
        .flat_map(|backend| programs.iter().map(move |program| (backend, program)))
        .collect();
    let (next, found) = (Mutex::new(all.into_iter().enumerate()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some((nth, (backend, program))) = next.lock().expect("the programs").next() else { return };
            let Some(&xla) = figures.get(&(program.name.to_owned(), backend.name().to_owned())) else { continue };
            let module = emitted(program, backend);
            let estimate = memory(&module).expect("its memory");
            let upper = upper(&estimate, Some(backend)).expect("it is not compiled");
            let row = Row { name: program.name, estimate, upper, xla };
            found.lock().expect("the rows").push((nth, backend, row));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().expect("the rows");
    found.sort_by_key(|(nth, ..)| *nth);
    let mut by_backend: Vec<(PlatformKind, Vec<Row>)> = PlatformKind::ALL.map(|backend| (backend, Vec::new())).into();
    for (_, backend, row) in found {
        let own = by_backend.iter_mut().find(|(other, _)| *other == backend);
        own.expect("a backend").1.push(row);
    }
    by_backend
}

/// The memory on a v5e's chip. XLA does not count what lies in it, which matters less the larger a program is: margins
/// are for larger ones, as if they had none of it.
const ON_CHIP: u64 = 128 << 20;

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The most by which the bound of all memory may exceed XLA's figure, constants apart.
fn worst(backend: PlatformKind) -> f64 {
    match backend {
        PlatformKind::Cpu => 1.65,
        PlatformKind::Cuda => 2.3,
        PlatformKind::Tpu => 1.8,
    }
}

/// XLA needs no more than the bound, for every program and platform, and the bound is not far above.
#[test]
fn bounds_of_emitted_modules_hold() {
    let mut page = "\
| platform | programs | XLA's temporaries by the estimate: least, median, most | margin of temporaries \
| bound of all memory by XLA's figure: least, median, most |
|---|---|---|---|---|
"
    .to_owned();
    for (backend, rows) in rows() {
        let (name, margin, worst) = (backend.name(), Margin::of(backend), worst(backend));
        assert!(rows.len() >= 30, "{name}: {}", rows.len());
        for row in &rows {
            let Row { name: program, estimate, upper, xla } = row;
            let place = format!("{program} on {name}: {upper:?} for XLA's {xla:?}, estimated {}", estimate.temporaries);
            println!("{place}: {:.3}", row.too_high_without_constants(backend));
            assert_eq!(estimate.form, MemoryForm::Uncompiled);
            assert!(upper.temporaries >= xla.temporaries, "{place}");
            assert!(upper.arguments >= xla.arguments && upper.peak >= xla.total(), "{place}");
            assert!(estimate.temporaries <= upper.temporaries && estimate.peak <= upper.peak, "{place}");
            assert!(row.too_high_without_constants(backend) <= worst, "{place}");
        }
        let short = sorted(rows.iter().map(Row::short_by));
        let high = sorted(rows.iter().map(Row::too_high_by));
        let text = |values: &[f64]| {
            let [least, median, most] = [values[0], values[values.len() / 2], values[values.len() - 1]];
            format!("{least:.2}, {median:.2}, {most:.2}")
        };
        let margin_text = format!("{} % and {} bytes", margin.percent, margin.bytes);
        writeln!(page, "| {name} | {} | {} | {margin_text} | {} |", rows.len(), text(&short), text(&high))
            .expect("text");
        // The margin is what the set needs, and not much more.
        let needed = rows.iter().map(|row| {
            let is_larger = backend == PlatformKind::Tpu && row.estimate.temporaries > ON_CHIP;
            let xla = row.xla.temporaries + if is_larger { ON_CHIP } else { 0 };
            let beyond = xla.saturating_sub(row.estimate.temporaries + margin.bytes);
            100.0 * beyond as f64 / row.estimate.temporaries.max(1) as f64
        });
        let needed = sorted(needed).pop().unwrap_or_default();
        println!("{name}: {needed:.1} % needed");
        assert!(margin.percent as f64 >= needed, "{name}: {needed:.1} % needed");
        assert!(margin.percent as f64 - needed <= 5.0, "{name}: {needed:.1} % would do");
    }
    check_page("margins", &page);
}

/// Without a backend, the largest; for a compiled module, none.
#[test]
fn unknown_backends_and_compiled_modules() {
    let source = "ENTRY main { x = f32[3,16] parameter(0)  ROOT y = f32[3,16] tanh(x) }";
    let module = text(&format!("HloModule m\n{source}"));
    let estimate = memory(&module).expect("its memory");
    let peaks = PlatformKind::ALL.map(|backend| upper(&estimate, Some(backend)).expect("a bound").peak);
    let any = upper(&estimate, None).expect("a bound");
    assert_eq!(any.peak, peaks.into_iter().max().expect("three"));
    let tpu = upper(&estimate, Some(PlatformKind::Tpu)).expect("a bound");
    assert_eq!((tpu.arguments, tpu.outputs), (8 * 128 * 4, 8 * 128 * 4));
    let compiled = text(&format!("HloModule m, is_scheduled=true\n{source}"));
    assert_eq!(upper(&memory(&compiled).expect("its memory"), None), None);
}

/// Parameters and results around a manual region have global shapes: a device's part is padded, as it is given and not
/// as it is reshaped, which would take more.
#[test]
fn devices_have_parts_of_arguments() {
    let source = "HloModule m, num_partitions=4, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY main {
  whole = f32[4,3,16] parameter(0), sharding={devices=[4,1,1]<=[4]}
  same = f32[4,3,16] custom-call(whole), custom_call_target=\"Sharding\", sharding={devices=[4,1,1]<=[4]}
  part = f32[1,3,16] custom-call(same), custom_call_target=\"SPMDFullToShardShape\", sharding={manual}
  rows = f32[48,1] reshape(part), sharding={manual}
  made = f32[48,1] tanh(rows), sharding={manual}
  result = f32[1,3,16] reshape(made), sharding={manual}
  kept = f32[1,3,16] custom-call(result), custom_call_target=\"Sharding\", sharding={manual}
  all = f32[4,3,16] custom-call(kept), custom_call_target=\"SPMDShardToFullShape\", sharding={devices=[4,1,1]<=[4]}
  ROOT results = (f32[4,3,16]) tuple(all)
}";
    let estimate = memory(&text(source)).expect("its memory");
    let part = 3 * 16 * 4;
    assert_eq!((estimate.arguments, estimate.outputs, estimate.aliased), (part, part + 8, part));
    let tpu = upper(&estimate, Some(PlatformKind::Tpu)).expect("a bound");
    // One tile instead of four, and the pointer of the tuple.
    let tile = 8 * 128 * 4;
    assert_eq!((tpu.arguments, tpu.outputs, tpu.aliased), (tile, tile + 512, tile));
}
