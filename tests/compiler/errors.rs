//! What errors print: `main` shows the `Debug` of one that it returns.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::DType;
use meshloom::pjrt::PjrtError;
use meshloom::sharding::{Mesh, Rules};
use meshloom::trace::{Function, TensorSpec};
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
