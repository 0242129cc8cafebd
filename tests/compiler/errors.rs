//! Tests of the text of errors: Rust prints the `Debug` of an error that `main` returns.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use meshloom::compile::{LowerOptions, compile, lower};
use meshloom::ir::{DType, Literal};
use meshloom::optim::{AdamW, AdamWState, Decay, LearningRate, Sgd, clip_by_global_norm, global_norm};
use meshloom::pjrt::{Client, PjrtError};
use meshloom::sharding::{Mesh, Rules};
use meshloom::trace::{Function, Init, Param, TensorSpec};
use meshloom_train::config::RunConfig;

use super::structure::{code, root, sources};

/// Errors of every crate, as a program meets them.
#[test]
fn debug_is_the_message() {
    let spec = TensorSpec::new(DType::F32, [2, 3]);
    let trace = Function::trace("f", spec.clone(), |x| x.matmul(x)).map(drop).expect_err("2 is not 3");
    let function = Function::trace("f", spec, |x| x).expect("it traces");
    let options = LowerOptions { without: &["algebr"], ..LowerOptions::default() };
    let rules = Rules::preset("decodr", true).expect_err("a typo");
    let config = RunConfig::from_overrides(&["train.steps=0".to_owned()]).expect_err("no steps");
    let missing = std::io::Error::other("the disk is gone");
    let errors: Vec<Box<dyn std::error::Error>> = vec![
        Box::new(trace.clone()),
        Box::new(meshloom::Error::from(trace)),
        Box::new(lower(function.graph(), &options).expect_err("a typo")),
        Box::new(Mesh::parse("data=0", 8).expect_err("no devices")),
        Box::new(meshloom::Error::from(rules.clone())),
        Box::new(rules),
        Box::new(meshloom::hlo::parse::parse("HloModule").expect_err("no module")),
        Box::new(PjrtError::Io { action: "read", path: "plugin.so".into(), source: missing }),
        Box::new(meshloom_train::Error::from(config)),
    ];
    for error in errors {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}

struct Outer(std::io::Error);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no step was taken")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

meshloom::hlo::debug_is_message!(Outer);

/// A source that says something new follows; one that the message contains does not.
#[test]
fn sources_follow_the_message() {
    let said = |source: &str| format!("{:?}", Outer(std::io::Error::other(source)));
    assert_eq!(said("the disk is full"), "no step was taken\n  because the disk is full");
    assert_eq!(said("no step"), "no step was taken");
}

/// No public error derives `Debug`, which would print its fields.
#[test]
fn every_error_prints_its_message() {
    let (mut errors, mut printed) = (BTreeSet::new(), BTreeSet::new());
    for folder in ["src", "crates"] {
        for path in sources(&root().join(folder)) {
            if path.components().any(|part| part == std::path::Component::Normal("examples".as_ref())) {
                continue;
            }
            let code = code(&path);
            let file = |name: &str| (Path::new(&path).display().to_string(), name.to_owned());
            let word = |rest: &str| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
            for rest in code.split("thiserror::Error)]").skip(1) {
                let item = rest.split("pub enum ").nth(1).into_iter().chain(rest.split("pub struct ").nth(1));
                let first = item.max_by_key(|rest| rest.len()).expect("an item");
                errors.insert(file(&word(first)));
            }
            errors.extend(code.split("std::error::Error for ").skip(1).map(|rest| file(&word(rest))));
            printed.extend(code.split("debug_is_message!(").skip(1).map(|rest| file(&word(rest))));
        }
    }
    assert!(errors.len() > 30, "only {} are found", errors.len());
    let missing: Vec<_> = errors.difference(&printed).collect();
    assert!(missing.is_empty(), "these need `debug_is_message!`: {missing:#?}");
}

/// A donated argument is called by its path in the user's tree.
#[test]
fn a_donated_input_is_called_by_its_path() {
    let spec = TensorSpec::new(DType::F32, [4]);
    let function = Function::trace("f", (spec.clone(), spec), |(a, b)| (a + b, b)).expect("it traces");
    let options = LowerOptions { aliases: vec![(0, 1)], ..LowerOptions::default() };
    let compiled = compile(&function, &Client::cpu(1).expect("a client"), &options).expect("it compiles");
    let value = || Literal::vector(&[1f32, 2.0, 3.0, 4.0]);
    let inputs = compiled.put(&(value(), value())).expect("they fit");
    compiled.run(&inputs).expect("it runs");
    let again = compiled.run(&inputs).map(drop).expect_err("it is gone").to_string();
    assert!(again.starts_with("argument 1 (\"1\")"), "{again}");
}

/// The ops of an optimizer or a schedule have the user's line, and so do its errors.
#[test]
fn places_are_the_callers() {
    let spec = |dims: &[usize]| TensorSpec::new(DType::F32, dims);
    let adamw = AdamW { weight_decay: 0.0, ..AdamW::default() };
    let update = |gradient: &[usize]| {
        let param = Param::new(DType::F32, [4], &["embed"], Init::Constant(0.0));
        let schedule = LearningRate { peak: 0.1, warmup: 2, steps: 4, floor: 0.1, decay: Decay::Cosine };
        let specs = (spec(&[4]), spec(gradient), TensorSpec::new(DType::S32, []));
        Function::trace("update", specs, |(weight, gradient, step)| {
            let state = AdamWState { first: weight, second: weight };
            let norm = global_norm(&gradient);
            let clipped = clip_by_global_norm(&gradient, norm, 1.0);
            let (new, state) = adamw.update(&param, &weight, &clipped, &state, step, schedule.rate(step));
            let (other, velocity) = Sgd { momentum: 0.9, nesterov: true }.update(&new, &clipped, &state.first, 0.1);
            (other, velocity, state)
        })
    };
    let function = update(&[4]).expect("it traces");
    let sources: BTreeSet<String> = function.graph().nodes().filter_map(|node| node.origin().source()).collect();
    assert!(!sources.is_empty() && sources.iter().all(|source| source.contains("errors.rs:")), "{sources:?}");
    let refused = update(&[3]).map(drop).expect_err("3 is not 4").to_string();
    assert!(refused.contains("tests/compiler/errors.rs:"), "{refused}");
}
