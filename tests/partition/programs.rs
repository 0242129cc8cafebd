//! Whole train steps of decoders, over random meshes with random rules: many devices compute what one does.
//!
//! A few run on eight devices of the CPU plugin, partitioned by meshloom and some by XLA. Many more run on host values,
//! by the reference interpreter, on meshes of other sizes too: XLA takes seconds to compile a small model, and the
//! interpreter takes a fraction of a second to run it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::partition::decoder_cases::{Case, Model, Sizes, Variant};
use meshloom::compile::{LowerOptions, Lowered, PartitionMode, Partitioned, lower};
use meshloom::emit::ProgramForm;
use meshloom::ir::Literal;
use meshloom::ops::RematPolicy;
use meshloom::passes::{CollectiveLimits, CollectiveMatmul};
use meshloom_train::run::aliases;
use support::cases::{cases, seed};
use support::eight_devices::{compile, relative_error};
use support::interpret::interpret;
use support::random::Random;
use support::spmd::run_local;

const OF_EIGHT: [&str; 7] =
    ["a=8", "a=2,b=4", "a=4,b=2", "a=2,b=2,c=2", "a=2,b=1,c=2,d=2", "a=1,b=2,c=4", "a=2,b=2,c=1,d=2"];

const OF_OTHER_SIZES: [&str; 14] = [
    "a=2,b=3",
    "a=3,b=2",
    "a=6",
    "a=12",
    "a=3,b=4",
    "a=4,b=3",
    "a=2,b=2,c=3",
    "a=16",
    "a=4,b=4",
    "a=2,b=8",
    "a=2,b=4,c=2",
    "a=2,b=2,c=2,d=2",
    "a=2,b=3,c=4",
    "a=2,b=2,c=3,d=2",
];

const LARGE: Sizes = Sizes {
    name: "large",
    batch: 8,
    length: 16,
    embed: 32,
    heads: 8,
    kv_heads: 4,
    head_dim: 8,
    mlp: 48,
    vocab: 64,
    layers: 2,
};

/// Sizes to interpret: with groups of heads, without, and with sizes that three divides.
const SMALL: [Sizes; 3] = [
    Sizes {
        name: "grouped",
        batch: 8,
        length: 8,
        embed: 16,
        heads: 8,
        kv_heads: 4,
        head_dim: 4,
        mlp: 24,
        vocab: 32,
        layers: 2,
    },
    Sizes {
        name: "heads",
        batch: 8,
        length: 8,
        embed: 16,
        heads: 8,
        kv_heads: 8,
        head_dim: 4,
        mlp: 24,
        vocab: 32,
        layers: 2,
    },
    Sizes {
        name: "thirds",
        batch: 6,
        length: 12,
        embed: 12,
        heads: 6,
        kv_heads: 3,
        head_dim: 4,
        mlp: 24,
        vocab: 36,
        layers: 3,
    },
];

/// Cases of interpretation that failed, and why. They run before the random ones.
const KEPT: &[(&str, &str)] = &[];

/// A model, and what its train step gives on one device.
struct Reference {
    model: Model,
    expected: Vec<Vec<f64>>,
}

impl Reference {
    fn of(variant: &Variant) -> Reference {
        let model = variant.model();
        let expected = numbers(&interpret(model.function.graph(), &model.inputs));
        Reference { model, expected }
    }
}

fn numbers(literals: &[Literal]) -> Vec<Vec<f64>> {
    literals.iter().map(Literal::to_f64_vec).collect()
}

fn run(lowered: &Lowered, inputs: &[Literal]) -> Result<Vec<Vec<f64>>, String> {
    let program = compile(lowered).map_err(|error| error.to_string())?;
    let arguments = program.put(0, &inputs.to_vec()).map_err(|error| error.to_string())?;
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).map_err(|error| error.to_string())?;
    Ok(outputs.iter().map(|output| output.get().expect("a result").to_f64_vec()).collect())
}

fn lowered(model: &Model, case: &Case, partition: PartitionMode, form: ProgramForm) -> Result<Lowered, String> {
    let rules = case.rules();
    let options = LowerOptions {
        sharding: Some((&case.mesh, &rules)),
        aliases: aliases(&model.function),
        partition,
        form,
        without: case.without(),
        limits: CollectiveLimits { matmul: CollectiveMatmul::On, ..CollectiveLimits::default() },
        levels: case.levels(),
        ..LowerOptions::default()
    };
    lower(model.function.graph(), &options).map_err(|error| error.to_string())
}

fn compare(found: &[Vec<f64>], reference: &Reference) -> Result<(), String> {
    for (index, (found, expected)) in found.iter().zip(&reference.expected).enumerate() {
        let error = relative_error(found, expected);
        if error > 1e-5 {
            let output = &reference.model.function.graph().output_info()[index].path;
            return Err(format!("`{output}` is off by {error:.1e}"));
        }
    }
    Ok(())
}

/// On the plugin's devices.
fn check_by_running(reference: &Reference, case: &Case, with_others: bool) -> Result<(), String> {
    let all = [
        ("meshloom", PartitionMode::Explicit, ProgramForm::Manual),
        ("GSPMD", PartitionMode::GSPMD, ProgramForm::Manual),
        ("meshloom, in the local form", PartitionMode::Explicit, ProgramForm::Local),
    ];
    for (by, partition, form) in all.into_iter().take(if with_others { 3 } else { 1 }) {
        let lowered = lowered(&reference.model, case, partition, form)?;
        let found = run(&lowered, &reference.model.inputs)?;
        compare(&found, reference).map_err(|error| format!("partitioned by {by}: {error}"))?;
    }
    Ok(())
}

/// On host values.
fn check_by_interpreting(reference: &Reference, case: &Case) -> Result<(), String> {
    let check = || {
        let lowered = lowered(&reference.model, case, PartitionMode::Explicit, ProgramForm::Manual)?;
        let Some(Partitioned { graph: local, mesh, .. }) = lowered.partitioned() else {
            return Err("there is no local graph".to_owned());
        };
        compare(&numbers(&run_local(local, mesh, &reference.model.inputs)?), reference)
    };
    let panicked = |payload: Box<dyn std::any::Any + Send>| {
        let text = payload.downcast_ref::<String>().cloned();
        Err(text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    };
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(panicked)
}

/// The random numbers of a case. `MESHLOOM_SEED` gives other cases.
fn random_of(number: u64) -> Random {
    Random((seed(1) << 32) + number)
}

/// The case that `MESHLOOM_CASE` has the text form of, to look into one failure alone; or the others.
fn only(models: &[Variant], others: impl FnOnce() -> Vec<Case>) -> Vec<Case> {
    std::env::var("MESHLOOM_CASE").map_or_else(|_| others(), |text| vec![Case::parse(&text, models)])
}

/// Checks every case, on two threads; each failure is printed when it is found.
fn check_all(cases: &[Case], check: impl Fn(usize, &Case) -> Result<(), String> + Sync) {
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { break };
                    if let Err(error) = check(index, case) {
                        let problem = format!("case {index}: {case}\n  {error}");
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

#[test]
fn random_rules_on_random_meshes() {
    let variant = |scanned, remat, tied, dropout, chunked| {
        let sizes = LARGE;
        Variant { sizes, scanned, remat, tied, dropout, chunked }
    };
    let models = [
        variant(true, RematPolicy::None, false, false, false),
        variant(true, RematPolicy::Full, false, true, true),
        variant(true, RematPolicy::Dots, true, false, true),
        variant(false, RematPolicy::None, true, true, false),
    ];
    let references: Vec<OnceLock<Reference>> = models.iter().map(|_| OnceLock::new()).collect();
    let cases = only(&models, || {
        let numbers = cases("partition random steps by XLA", 3, 0..60);
        let case = |number| Case::random(&mut random_of(number), &models, &OF_EIGHT).without_dead_code();
        numbers.into_iter().map(case).collect()
    });
    let check = |case: &Case, with_others: bool| {
        // A simpler case may have a model that is none of these.
        let model = models.iter().position(|model| *model == case.model);
        model.map_or(Ok(()), |model| {
            check_by_running(references[model].get_or_init(|| Reference::of(&models[model])), case, with_others)
        })
    };
    // XLA's own partitioner and the other form take as long again, each.
    check_all(&cases, |index, case| {
        check(case, index % 4 == 0).map_err(|error| {
            // That takes minutes, so it is done for one case alone.
            let is_asked = std::env::var("MESHLOOM_CASE").is_ok();
            let simplest = is_asked.then(|| case.clone().minimised(|case| check(case, false).is_err()));
            simplest.map_or(error.clone(), |simplest| format!("{error}\n  at its simplest: {simplest}"))
        })
    });
}

/// As above, interpreted: smaller models, more of them, and more meshes. A failing case is made as simple as can be.
#[test]
fn random_rules_by_interpretation() {
    let mut models = Variant::all(&SMALL);
    let small = models.len();
    // For kept cases, and to look into those that failed when they ran.
    models.extend(Variant::all(&[LARGE]));
    let references: Vec<OnceLock<Reference>> = models.iter().map(|_| OnceLock::new()).collect();
    let check = |case: &Case| {
        let model = models.iter().position(|model| *model == case.model).expect("one of the models");
        check_by_interpreting(references[model].get_or_init(|| Reference::of(&models[model])), case)
    };
    let meshes = [&OF_EIGHT[..], &OF_OTHER_SIZES].concat();
    let cases = only(&models, || {
        let kept = KEPT.iter().map(|(case, _)| Case::parse(case, &models));
        let numbers = cases("partition random steps", 80, 0..1000);
        let random = numbers.into_iter().map(|number| Case::random(&mut random_of(number), &models[..small], &meshes));
        kept.chain(random).collect()
    });
    check_all(&cases, |_, case| {
        check(case).map_err(|error| {
            let simplest = case.clone().minimised(|case| check(case).is_err());
            let cause = check(&simplest).err().unwrap_or_default();
            format!("{error}\n  at its simplest: {simplest}\n  {cause}")
        })
    });
}

/// Cases say in their text form all there is to them.
#[test]
fn cases_are_parsed() {
    let models = Variant::all(&SMALL);
    let mut random = Random(7);
    for _ in 0..20 {
        let text = Case::random(&mut random, &models, &OF_OTHER_SIZES).to_string();
        assert_eq!(Case::parse(&text, &models).to_string(), text);
    }
}
