//! Whole train steps of decoders, over random meshes with random rules: eight devices, partitioned by meshloom and by XLA,
//! compute what one does.

mod eight_devices;
#[path = "support/random.rs"]
mod random;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use eight_devices::{client, relative_error};
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::{DType, Literal};
use meshloom::nn::{Batch, DecoderConfig};
use meshloom::ops::RematPolicy;
use meshloom::optim::{AdamW, WarmupCosine};
use meshloom::pjrt::{CompileOptions, DebugValue};
use meshloom::sharding::{Mesh, Rule, RuleSets, Rules};
use meshloom::trace::Tree;
use meshloom::train::step::{DropoutConfig, StepFunction, TrainStep, aliases};
use random::Random;

const MESHES: [&str; 7] =
    ["a=8", "a=2,b=4", "a=4,b=2", "a=2,b=2,c=2", "a=2,b=1,c=2,d=2", "a=1,b=2,c=4", "a=2,b=2,c=1,d=2"];

const NAMES: [&str; 17] = [
    "activation_batch",
    "activation_length",
    "activation_norm_length",
    "activation_kv_length",
    "activation_embed",
    "activation_heads",
    "activation_kv_heads",
    "activation_kv",
    "activation_mlp",
    "activation_vocab",
    "embed",
    "heads",
    "kv_heads",
    "kv",
    "mlp",
    "vocab",
    "layers",
];

/// A model with its train step's inputs, and what comes out on one device.
struct Model {
    function: StepFunction,
    inputs: Vec<Literal>,
    expected: Vec<Vec<f64>>,
}

fn quick() -> std::collections::BTreeMap<String, DebugValue> {
    [("xla_backend_optimization_level".to_owned(), DebugValue::Int(0))].into()
}

fn run(lowered: &Lowered, inputs: &[Literal]) -> Result<Vec<Vec<f64>>, String> {
    let options =
        CompileOptions { debug_options: quick(), ..lowered.compile_options(&client()).expect("eight devices") };
    let program = lowered.compile_with(&client(), &options).map_err(|error| error.to_string())?;
    let arguments = program.put(0, &inputs.to_vec()).map_err(|error| error.to_string())?;
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).map_err(|error| error.to_string())?;
    Ok(outputs.iter().map(|output| output.get().expect("a result").to_f64_vec()).collect())
}

fn model(scan_layers: bool, remat: RematPolicy, tied: bool, dropout: f64) -> Model {
    let model = DecoderConfig {
        layers: 2,
        embed: 32,
        heads: 8,
        kv_heads: 4,
        head_dim: 8,
        mlp: 48,
        vocab: 64,
        tied_embeddings: tied,
        param_dtype: DType::F32,
        compute_dtype: DType::F32,
        scan_layers,
        remat,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    };
    let step = TrainStep {
        model,
        // Without it, a first step is the sign of the gradient, and rounding decides on the sign of what is almost zero.
        optimizer: AdamW { epsilon: 1e-2, ..AdamW::default() },
        schedule: WarmupCosine { peak: 1e-2, warmup: 2, steps: 10, floor: 0.1 },
        clip_norm: 1.0,
        batch: 8,
        seq: 16,
        dropout: DropoutConfig { rate: dropout, seed: 3 },
    };
    let function = step.trace().expect("a traced step");
    let tokens = |factor: i32| {
        let values: Vec<i32> = (0..8 * 16).map(|index| (index * factor + index / 7) % 64).collect();
        Literal::from_slice(&[8, 16], &values).expect("a batch")
    };
    let numbered = |f: &dyn Fn(i32) -> i32| {
        Literal::from_slice(&[8, 16], &(0..8 * 16).map(f).collect::<Vec<i32>>()).expect("a batch")
    };
    let batch = Batch {
        tokens: tokens(5),
        targets: tokens(11),
        segment_ids: numbered(&|index| index % 16 / 9),
        positions: numbered(&|index| index % 16),
        weights: Literal::from_slice(&[8, 16], &(0..128).map(|index| ((index % 5) as f32) / 4.0).collect::<Vec<f32>>())
            .expect("weights"),
    };
    let mut inputs = step.initialize(1).leaves();
    inputs.extend(batch.leaves());
    let lowered = lower(function.graph(), &LowerOptions::default()).expect("it lowers");
    let expected = run(&lowered, &inputs).expect("it runs");
    Model { function, inputs, expected }
}

struct Case {
    model: usize,
    mesh: Mesh,
    rules: RuleSets,
    text: String,
}

fn random_rules(random: &mut Random, mesh: &Mesh, text: &mut String) -> Rules {
    let mut rules = Vec::new();
    let mut names = NAMES.to_vec();
    random.shuffle(&mut names);
    for name in names {
        if random.below(5) < 2 {
            continue;
        }
        let mut axes: Vec<String> = mesh.axis_names().map(str::to_owned).collect();
        random.shuffle(&mut axes);
        axes.truncate(1 + random.below(2));
        let _ = write!(text, "{name}={axes:?} ");
        rules.push(Rule { name: name.to_owned(), axes, origin: format!("rule {}", rules.len()) });
    }
    Rules::new(rules, false).expect("rules")
}

fn random_case(random: &mut Random, models: usize) -> Case {
    let mesh = Mesh::parse(MESHES[random.below(MESHES.len())], 8).expect("a mesh");
    let mut text = format!("{mesh}: ");
    let compute = random_rules(random, &mesh, &mut text);
    let mut rules = RuleSets::uniform(compute);
    // Parameters and optimizer state may lie elsewhere than where they are used.
    if random.below(3) == 0 {
        text.push_str("\n  params: ");
        rules.params = random_rules(random, &mesh, &mut text);
    }
    if random.below(3) == 0 {
        text.push_str("\n  optimizer: ");
        rules.optimizer = random_rules(random, &mesh, &mut text);
    }
    Case { model: random.below(models), mesh, rules, text }
}

fn check(model: &Model, case: &Case, with_gspmd: bool) -> Result<(), String> {
    for explicit in [true, false].into_iter().take(1 + usize::from(with_gspmd)) {
        let options = LowerOptions {
            sharding: Some((&case.mesh, &case.rules)),
            aliases: aliases(&model.function),
            explicit,
            ..LowerOptions::default()
        };
        let lowered = lower(model.function.graph(), &options).map_err(|error| error.to_string())?;
        let found = run(&lowered, &model.inputs)?;
        for (index, (found, expected)) in found.iter().zip(&model.expected).enumerate() {
            let error = relative_error(found, expected);
            if error > 1e-5 {
                let output = &model.function.graph().output_info()[index].path;
                let by = if explicit { "meshloom" } else { "GSPMD" };
                return Err(format!("partitioned by {by}: `{output}` is off by {error:.1e}"));
            }
        }
    }
    Ok(())
}

/// Seeds and numbers of cases can be given, to look for rarer failures: `MESHLOOM_SEED`, `MESHLOOM_CASES`.
fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_rules_on_random_meshes() {
    let models = [
        model(true, RematPolicy::None, false, 0.0),
        model(true, RematPolicy::Full, false, 0.1),
        model(true, RematPolicy::Dots, true, 0.0),
        model(false, RematPolicy::None, true, 0.1),
    ];
    let mut random = Random(setting("MESHLOOM_SEED", 1) as u64);
    let cases: Vec<Case> = (0..setting("MESHLOOM_CASES", 60)).map(|_| random_case(&mut random, models.len())).collect();
    // XLA's own partitioner takes as long again.
    let gspmd_every = setting("MESHLOOM_GSPMD_EVERY", 4).max(1);
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { break };
                    if let Err(error) = check(&models[case.model], case, index % gspmd_every == 0) {
                        let problem = format!("case {index}, model {}, {}\n  {error}", case.model, case.text);
                        println!("{problem}");
                        problems.lock().expect("a lock").push(problem);
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().expect("a lock");
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
}
