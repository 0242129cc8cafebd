//! meshloom's pipeline against the same one in JAX, partitioned by XLA (benches/jax/pipeline.py), over eight or two CPU
//! devices: the gradient of a mean square through eight or four Llama-like layers, from the same weights and inputs.
//!
//! ```text
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench pipeline              # everything, three rounds
//! MESHLOOM_BENCH_PYTHON=python3 cargo bench --bench pipeline -- 10 B bsw  # ten rounds of one
//! ```
//!
//! Configs: A is 8 layers over 4 stages x 2 fsdp, 8 microbatches; B 4 layers over 2 stages x 2 data x 2 fsdp, 4
//! microbatches; C 4 layers over 2 stages of one device each, 8 microbatches; all two repeats, two chunks or two
//! layers per stage (four repeats in forms called 4), everything rematerialized but where a form is called kept.
//! Where stages branch, JAX's is the circular one. JAX's process steps in turn with ours, so that both see the same
//! machine; ratios are ours / JAX's. The traffic is read off both compiled modules by the same analysis. The frontend
//! is from closure to serialized HLO here, trace and lowering there; each is the first in its process. Without a
//! Python that has JAX, ours alone is printed.
//!
//! The last table has all forms. Where devices share cores, the time of the process' threads counts what is executed,
//! so it should be as the simulator's work: that of all items, and of bubbles where stages do not branch. With a core
//! for each device, a step should take as the simulator's time: work and waiting. Both are relative to `bsw`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use meshloom::analysis::{Devices, ModuleCollective, ModuleCollectives, collectives};
use meshloom::compile::{CompiledFunction, LowerOptions, compile, lower};
use meshloom::hlo::parse::parse;
use meshloom::hlo::table::Table;
use meshloom::ir::DType::{F32, S32};
use meshloom::ir::{AxisNames, Literal};
use meshloom::ops::RematPolicy;
use meshloom::pjrt::{Array, Client};
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{Function, Init, MapTree, Param, Tensor, TensorSpec, Tree, initialize, value_and_grad};
use meshloom::transform::pipeline::{
    Costs, PipelineInput, PipelineLoss, PipelineOptions, Schedule, StackedWeights, WeightPlan, pipeline_with_loss,
};
use meshloom_benches::jax::Jax;
use meshloom_benches::median;
use meshloom_nn::{
    Angles, Architecture, DecoderConfig, GroupedConfig, LayerConfig, Layers, RowInputs, Stack, TokenPlaces,
    rows_of_weight,
};
use serde::Deserialize;

const MIB: f64 = (1 << 20) as f64;

const MICROBATCH: usize = 4;
const LENGTH: usize = 256;
const EMBED: usize = 512;

const BATCH_AXES: [&str; 3] = ["activation_embed_and_logits_batch", "activation_length", "activation_embed"];
const STREAM: [&str; 3] = ["activation_batch", "activation_norm_length", "activation_embed"];

meshloom::tree! {
    struct Inputs<T> {
        layers: Layers<T>,
        x: T,
        positions: T,
        segments: T,
    }

    struct Outputs<T> {
        loss: T,
        gradients: Layers<T>,
    }
}

/// A mesh and a schedule.
struct Case {
    name: &'static str,
    mesh: &'static str,
    devices: usize,
    stages: usize,
    microbatches: usize,
}

const CASES: [Case; 3] = [
    Case { name: "A", mesh: "stage=4,data=1,fsdp=2", devices: 8, stages: 4, microbatches: 8 },
    Case { name: "B", mesh: "stage=2,data=2,fsdp=2", devices: 8, stages: 2, microbatches: 4 },
    Case { name: "C", mesh: "stage=2,data=1,fsdp=1", devices: 2, stages: 2, microbatches: 8 },
];

/// A form of the pipeline.
struct Form {
    name: &'static str,
    weights: WeightPlan,
    schedule: Schedule,
    keeps_everything: bool,
    /// The other options that it sets.
    change: fn(&mut PipelineOptions),
    /// The name of the form in benches/jax/pipeline.py, or of the form that it is compared with; empty without one.
    jax: &'static str,
}

const fn circular(name: &'static str, weights: WeightPlan, jax: &'static str) -> Form {
    Form { name, weights, schedule: Schedule::Circular, keeps_everything: false, change: |_| (), jax }
}

const fn branching(name: &'static str, schedule: Schedule, keeps_everything: bool) -> Form {
    Form { name, weights: WeightPlan::GatherOnce, schedule, keeps_everything, change: |_| (), jax: "window" }
}

/// The sliding window with other options.
const fn window(name: &'static str, change: fn(&mut PipelineOptions), jax: &'static str) -> Form {
    Form { change, ..circular(name, WeightPlan::SlidingWindow, jax) }
}

const FORMS: [Form; 17] = [
    circular("per-iteration", WeightPlan::PerIteration, "circular"),
    circular("gather-once", WeightPlan::GatherOnce, "once"),
    circular("bsw", WeightPlan::SlidingWindow, "window"),
    circular("bsw-split", WeightPlan::SplitSlidingWindow, "window"),
    Form { keeps_everything: true, ..circular("bsw-kept", WeightPlan::SlidingWindow, "window") },
    window("bsw-gathered", |options| options.keep_gathered = true, "window"),
    window("bsw-iterations", |options| options.scan_iterations = false, "window"),
    // With twice the layers, as two repeats have no loop: the second is to be compared with the first.
    window("bsw-4", |options| options.repeats = 4, ""),
    window("bsw-4-repeats", |options| (options.repeats, options.scan_repeats) = (4, false), ""),
    branching("gpipe", Schedule::Gpipe, false),
    branching("1f1b", Schedule::OneForwardOneBackward, false),
    branching("interleaved", Schedule::Interleaved, false),
    branching("zb-v", Schedule::ZeroBubbleVee, false),
    branching("1f1b-kept", Schedule::OneForwardOneBackward, true),
    branching("interleaved-kept", Schedule::Interleaved, true),
    branching("zb-h1-kept", Schedule::ZeroBubbleOne, true),
    branching("zb-v-kept", Schedule::ZeroBubbleVee, true),
];

impl Form {
    /// Repeats, chunks and layers per stage.
    fn parts(&self) -> (usize, usize, usize) {
        match self.schedule {
            Schedule::Circular => (2, 1, 1),
            Schedule::Interleaved | Schedule::ZeroBubbleVee => (1, 2, 1),
            _ => (1, 1, 2),
        }
    }
}

impl Case {
    fn pipeline(&self, form: &Form) -> PipelineOptions {
        let (repeats, chunks, layers_per_stage) = form.parts();
        let mut options = PipelineOptions {
            stages: self.stages,
            repeats,
            chunks,
            layers_per_stage,
            microbatches: self.microbatches,
            weights: form.weights,
            schedule: form.schedule,
            remat: if form.keeps_everything { RematPolicy::None } else { RematPolicy::Full },
            ..PipelineOptions::default()
        };
        (form.change)(&mut options);
        options
    }

    /// Returns the time of a step by the simulator, in forward passes of one layer: with shared cores, and with a core
    /// for each device. A backward pass takes two, half of it for weights, and one more where it repeats the forward
    /// pass.
    fn predicted(&self, form: &Form) -> anyhow::Result<[f64; 2]> {
        let pipeline = self.pipeline(form);
        let of_layer = [1.0, if form.keeps_everything { 1.0 } else { 2.0 }, 1.0];
        // The layers of a stage, with all its chunks.
        let layers = (pipeline.layers_per_stage * pipeline.chunks) as f64;
        let [forward, backward, weights] = of_layer.map(|cost| cost * layers);
        if !form.schedule.branches() {
            // Iterations take as long whether an item is real or not.
            let takes = pipeline.iterations() as f64 * (forward + backward + weights);
            return Ok([takes, takes]);
        }
        let found = pipeline.table()?.simulate(&Costs::even(forward, backward, weights))?;
        Ok([found.ideal, found.time])
    }

    fn model(&self, form: &Form) -> DecoderConfig {
        let pipeline = self.pipeline(form);
        let layer = LayerConfig::llama(GroupedConfig::llama(8, 4, 64, 10_000.0), 1536, 1e-5);
        let architecture = Architecture::llama(EMBED, 256, Stack::uniform(layer, pipeline.layers()), 1e-5);
        DecoderConfig { remat: RematPolicy::Full, pipeline: Some(pipeline), ..DecoderConfig::new(architecture) }
    }

    fn declared(&self, form: &Form) -> anyhow::Result<Inputs<Param>> {
        let layers = self.model(form).parameters().layers;
        let rows = MICROBATCH * self.microbatches;
        let of_tokens = || Param::new(S32, [rows, LENGTH], &BATCH_AXES[..2], Init::Constant(0.0));
        let x = Param::new(F32, [rows, LENGTH, EMBED], &BATCH_AXES, Init::Normal(1.0));
        Ok(Inputs { layers, x, positions: of_tokens(), segments: of_tokens() })
    }

    /// Drawn weights and activations, in rows of two packed segments.
    fn values(&self, form: &Form) -> anyhow::Result<Inputs<Literal>> {
        let rows = MICROBATCH * self.microbatches;
        let boundary = |row: usize| 1 + (row * 37) % (LENGTH - 1);
        let tokens = |value: fn(usize, usize) -> usize| {
            let numbers: Vec<i32> =
                (0..rows * LENGTH).map(|at| value(at % LENGTH, boundary(at / LENGTH)) as i32).collect();
            Literal::from_slice(&[rows, LENGTH], &numbers).context("as many as there are tokens")
        };
        let positions = tokens(|at, boundary| if at < boundary { at } else { at - boundary })?;
        let segments = tokens(|at, boundary| 1 + usize::from(at >= boundary))?;
        Ok(Inputs { positions, segments, ..initialize(&self.declared(form)?, 0)? })
    }

    /// The loss and its gradients, of all weights.
    fn trace(&self, form: &Form) -> anyhow::Result<Function<Inputs<TensorSpec>, Outputs<TensorSpec>>> {
        let model = self.model(form);
        let options = model.pipeline.clone().unwrap_or_default();
        let declared = self.declared(form)?;
        let names: Vec<AxisNames> = declared.layers.leaves().into_iter().map(|param| param.spec.axes).collect();
        let specs = declared.map(|_, param| param.spec.clone());
        let function = Function::trace("pipeline", specs, |Inputs { layers, x, positions, segments }| {
            let (loss, gradients) = value_and_grad(layers, |weights| {
                let stacked = StackedWeights::new(weights, names).used_on(rows_of_weight);
                let input = PipelineInput { x, names: STREAM.to_vec(), rows: (positions, segments) };
                let layer = |x: Tensor, layers: Layers<Tensor>, (positions, segments): (Tensor, Tensor), _| {
                    let cycle = &model.architecture.stack.cycle;
                    let angles = Angles::new(positions, cycle);
                    let rows = RowInputs { angles: &angles, tokens: TokenPlaces::of_rows(segments) };
                    (model.layer(&cycle[0], x, &layers.0[0].layers[0], rows, None).0, ())
                };
                let weights = StackedWeights::new((), Vec::new());
                let head = PipelineLoss { weights, names: STREAM.to_vec(), penalties: Vec::new() };
                let count = x.ty().element_count() as f64;
                pipeline_with_loss(&options, stacked, input, layer, head, |y, (), _| y.square().sum(..) / count).0
            });
            Outputs { loss, gradients }
        });
        Ok(function?)
    }
}

/// The figures by which both sides are compared.
struct Figures {
    frontend_seconds: f64,
    compile_seconds: f64,
    temporary_bytes: f64,
    collectives: ModuleCollectives,
}

/// One of them.
type Figure = fn(&Figures) -> f64;

/// Our program with its inputs on the devices.
struct Ours {
    compiled: CompiledFunction<Inputs<TensorSpec>, Outputs<TensorSpec>>,
    inputs: Inputs<Array>,
    figures: Figures,
}

impl Ours {
    fn new(case: &Case, form: &Form, client: &Client) -> anyhow::Result<Ours> {
        let mesh = Mesh::parse(case.mesh, case.devices)?;
        let rules = RuleSets::uniform(Rules::preset("decoder", false)?);
        let options =
            LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, ..LowerOptions::default() };
        let start = Instant::now();
        let function = case.trace(form)?;
        lower(function.graph(), &options)?;
        let frontend_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let compiled = compile(&function, client, &options)?;
        let compile_seconds = start.elapsed().as_secs_f64();
        let inputs = compiled.put(&case.values(form)?)?;
        let executable = compiled.program().executable();
        let module = executable.optimized_hlo()?.decode()?;
        let figures = Figures {
            frontend_seconds,
            compile_seconds,
            temporary_bytes: executable.memory_stats()?.temporary as f64,
            collectives: collectives(&module, Devices::partitioned(case.devices)).along(&mesh),
        };
        Ok(Ours { compiled, inputs, figures })
    }

    /// One step: its seconds and loss.
    fn step(&self) -> anyhow::Result<(Seconds, f64)> {
        let (start, before) = (Instant::now(), processor_seconds("self"));
        let Outputs { loss, gradients } = self.compiled.run(&self.inputs)?;
        gradients.leaves().iter().try_for_each(Array::block_until_ready)?;
        let loss = loss.get()?.to_f64_vec();
        let seconds = Seconds { wall: start.elapsed().as_secs_f64(), processor: processor_seconds("self") - before };
        Ok((seconds, loss.first().copied().unwrap_or(f64::NAN)))
    }
}

/// The seconds of a step: on the clock, and of all threads of the process.
#[derive(Clone, Copy)]
struct Seconds {
    wall: f64,
    processor: f64,
}

/// Returns the seconds that the threads of a process have computed so far; NaN on systems without `/proc`.
fn processor_seconds(process: &str) -> f64 {
    // Fields after the name, which is in parentheses; in hundredths of a second on every Linux.
    let found = std::fs::read_to_string(format!("/proc/{process}/stat")).ok().and_then(|text| {
        let (_, fields) = text.rsplit_once(')')?;
        let mut times = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
        Some((times.next()? + times.next()?) / 100.0)
    });
    found.unwrap_or(f64::NAN)
}

/// The message of JAX's script when it is ready.
#[derive(Deserialize)]
struct Ready {
    lower_seconds: f64,
    compile_seconds: f64,
    temp_bytes: f64,
}

/// JAX's process, on the same inputs.
fn start_jax(case: &Case, variant: &str, inputs: &Inputs<Literal>) -> anyhow::Result<(Jax, Figures)> {
    let folder = std::env::temp_dir().join(format!("meshloom-bench-pipeline-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let found = start_jax_in(&folder, case, variant, inputs);
    std::fs::remove_dir_all(&folder)?;
    found
}

fn start_jax_in(folder: &Path, case: &Case, variant: &str, inputs: &Inputs<Literal>) -> anyhow::Result<(Jax, Figures)> {
    let [data, module]: [PathBuf; 2] = ["inputs.bin", "compiled.txt"].map(|name| folder.join(name));
    let bytes: Vec<u8> = inputs.leaves().iter().flat_map(|literal| literal.bytes().to_vec()).collect();
    std::fs::write(&data, bytes)?;
    let path = |path: &Path| path.display().to_string();
    let options = ["--config", case.name, "--variant", variant, "--data", &path(&data), "--hlo", &path(&module)];
    let (jax, ready) = Jax::start("pipeline.py", &options.map(str::to_owned))?;
    let ready: Ready = serde_json::from_str(&ready).context("what JAX says when it is ready")?;
    let module = parse(&std::fs::read_to_string(&module)?)?.hlo_module.context("a module")?;
    let figures = Figures {
        frontend_seconds: ready.lower_seconds,
        compile_seconds: ready.compile_seconds,
        temporary_bytes: ready.temp_bytes,
        collectives: collectives(&module, Devices::partitioned(case.devices))
            .along(&Mesh::parse(case.mesh, case.devices)?),
    };
    Ok((jax, figures))
}

/// Medians over steps, taken in turns. The first of each side is left out: memory is touched for the first time.
fn alternate(ours: &Ours, jax: &mut Option<Jax>, rounds: usize) -> anyhow::Result<[Option<Seconds>; 2]> {
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let (own, loss) = ours.step()?;
        let other = jax.as_mut().map(|jax| -> anyhow::Result<_> {
            let process = jax.process().to_string();
            let before = processor_seconds(&process);
            let (wall, expected) = jax.step()?;
            Ok((Seconds { wall, processor: processor_seconds(&process) - before }, expected))
        });
        let other = other.transpose()?;
        if let Some((_, expected)) = other {
            let error = (loss - expected).abs() / expected.abs();
            ensure!(error <= 1e-5, "the losses are {loss} and JAX's {expected}");
        }
        if round > 0 {
            all[0].push(own);
            all[1].extend(other.map(|(seconds, _)| seconds));
        }
    }
    let medians = |steps: &Vec<Seconds>| {
        let of = |figure: fn(&Seconds) -> f64| median(&steps.iter().map(figure).collect::<Vec<_>>());
        (!steps.is_empty()).then(|| Seconds { wall: of(|step| step.wall), processor: of(|step| step.processor) })
    };
    Ok([medians(&all[0]), medians(&all[1])])
}

fn moved(found: &ModuleCollectives) -> f64 {
    found.moved_bytes().bound().map_or(f64::NAN, |bytes| bytes as f64)
}

/// A figure of both sides, and the ratio.
fn row(what: &str, ours: f64, theirs: Option<f64>, unit: f64, digits: usize) -> [String; 4] {
    let show = |value: f64| format!("{:.digits$}", value / unit);
    let ratio = theirs.map_or("-".to_owned(), |theirs| format!("{:.4}", ours / theirs));
    [what.to_owned(), show(ours), theirs.map_or("-".to_owned(), show), ratio]
}

fn print_figures(ours: &Figures, jax: Option<&Figures>, [own, other]: [Option<Seconds>; 2]) {
    let figures: [(&str, Figure, f64, usize); 4] = [
        ("frontend, ms", |figures| figures.frontend_seconds, 1e-3, 1),
        ("compile, s", |figures| figures.compile_seconds, 1.0, 2),
        ("temporaries, MiB", |figures| figures.temporary_bytes, MIB, 1),
        ("moved, MiB", |figures| moved(&figures.collectives), MIB, 1),
    ];
    let rows = figures.map(|(what, figure, unit, digits)| row(what, figure(ours), jax.map(figure), unit, digits));
    let step = |what, of: fn(Seconds) -> f64| row(what, own.map_or(f64::NAN, of), other.map(of), 1.0, 3);
    let steps = [step("step (median), s", |it| it.wall), step("of all threads, s", |it| it.processor)];
    let rows: Vec<_> = rows.into_iter().chain(steps).collect();
    let table = Table::of(&rows)
        .text("", |[what, ..]| what)
        .number("meshloom", |[_, ours, ..]| ours)
        .number("JAX", |[_, _, theirs, _]| theirs)
        .number("ratio", |[.., ratio]| ratio);
    println!("{table}");
}

/// Kind and axes of a collective.
fn label(entry: &ModuleCollective) -> String {
    let parts = entry.axes.iter().flatten().map(ToString::to_string);
    format!("{} over {}", entry.kind.name(), parts.collect::<Vec<_>>().join(","))
}

/// Prints the collectives by kind and axes: instructions in loops and outside, executions, bytes sent.
fn print_collectives(ours: &Figures, jax: Option<&Figures>) {
    let sides: Vec<&ModuleCollectives> = std::iter::once(ours).chain(jax).map(|side| &side.collectives).collect();
    let mut labels: Vec<String> = sides.iter().flat_map(|side| side.entries.iter().map(label)).collect();
    labels.sort();
    labels.dedup();
    let cell = |wanted: &str, side: &ModuleCollectives| {
        let entries: Vec<_> = side.entries.iter().filter(|entry| label(entry) == wanted).collect();
        let in_loops = entries.iter().filter(|entry| entry.loop_depth > 0).count();
        let executed: u64 = entries.iter().filter_map(|entry| entry.executions.bound()).sum();
        let bytes: u64 = entries.iter().filter_map(|entry| entry.total_moved_bytes().bound()).sum();
        format!("{:.2} ({in_loops} + {}, {executed})", bytes as f64 / MIB, entries.len() - in_loops)
    };
    let mut table = Table::of(&labels).text("moved MiB (in loops + outside, executed)", |wanted| *wanted);
    for (number, name) in ["meshloom", "JAX"].into_iter().enumerate() {
        table = table.number(name, |wanted| sides.get(number).map(|side| cell(wanted, side)).unwrap_or_default());
    }
    println!("{table}");
}

/// A form in the last table.
struct Measured {
    form: &'static str,
    own: Option<Seconds>,
    jax: Option<Seconds>,
    predicted: [f64; 2],
    temporary_bytes: f64,
    moved: f64,
}

/// All forms of a case, beside what the simulator says, relative to the first.
fn print_forms(all: &[Measured]) {
    let Some(first) = all.iter().find(|it| it.form == "bsw").or(all.first()) else { return };
    let base = first.own;
    let ratio = |of: Option<Seconds>, figure: fn(Seconds) -> f64| match (of, base) {
        (Some(of), Some(base)) => format!("{:.2}", figure(of) / figure(base)),
        _ => "-".to_owned(),
    };
    let seconds =
        |of: Option<Seconds>, figure: fn(Seconds) -> f64| of.map_or("-".to_owned(), |of| format!("{:.2}", figure(of)));
    let table = Table::of(all)
        .text("relative to bsw", |it| it.form)
        .number("threads, s", |it| seconds(it.own, |own| own.processor))
        .number("ratio", |it| ratio(it.own, |own| own.processor))
        .number("simulated", |it| format!("{:.2}", it.predicted[0] / first.predicted[0]))
        .number("step, s", |it| seconds(it.own, |own| own.wall))
        .number("ratio", |it| ratio(it.own, |own| own.wall))
        .number("simulated", |it| format!("{:.2}", it.predicted[1] / first.predicted[1]))
        .number("JAX's threads, s", |it| seconds(it.jax, |jax| jax.processor))
        .number("JAX's step, s", |it| seconds(it.jax, |jax| jax.wall))
        .number("temporaries, MiB", |it| format!("{:.1}", it.temporary_bytes / MIB))
        .number("moved, MiB", |it| format!("{:.1}", it.moved / MIB));
    println!("\n{table}");
}

fn measure(case: &Case, form: &Form, rounds: usize, client: &Client) -> anyhow::Result<Measured> {
    println!("\n{}, {}: {}, JAX's {}", case.name, case.mesh, form.name, form.jax);
    let ours = Ours::new(case, form, client)?;
    let started = match form.jax {
        "" => Err(anyhow!("its script has no such form")),
        variant => start_jax(case, variant, &case.values(form)?),
    };
    let (mut jax, figures) = match started {
        Ok((jax, figures)) => (Some(jax), Some(figures)),
        Err(error) => {
            println!("JAX is left out: {error:#}");
            (None, None)
        }
    };
    let seconds @ [own, other] = alternate(&ours, &mut jax, rounds)?;
    print_figures(&ours.figures, figures.as_ref(), seconds);
    print_collectives(&ours.figures, figures.as_ref());
    Ok(Measured {
        form: form.name,
        own,
        jax: other,
        predicted: case.predicted(form)?,
        temporary_bytes: ours.figures.temporary_bytes,
        moved: moved(&ours.figures.collectives),
    })
}

fn main() -> anyhow::Result<()> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(3).max(1);
    let asked = |known: &[&str], name: &str| {
        let mut chosen = arguments.iter().filter(|argument| known.contains(&argument.as_str())).peekable();
        chosen.peek().is_none() || chosen.any(|argument| argument == name)
    };
    let (cases, forms) = (CASES.map(|case| case.name), FORMS.map(|form| form.name));
    for case in CASES.iter().filter(|case| asked(&cases, case.name)) {
        let client = Client::cpu(case.devices)?;
        let asked = FORMS.iter().filter(|form| asked(&forms, form.name));
        let all = asked.map(|form| measure(case, form, rounds, &client)).collect::<anyhow::Result<Vec<_>>>()?;
        print_forms(&all);
    }
    Ok(())
}
