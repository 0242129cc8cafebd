//! Every spec of a program has an origin that can be told: a rule, a constraint, or that nothing says anything.

use meshloom::sharding::Explanation;
use support::configs::lowered_step;

fn explain(overrides: &[&str], query: &str) -> Vec<Explanation> {
    lowered_step(&[overrides]).explain(query, usize::MAX).unwrap_or_else(|error| panic!("{error}"))
}

fn ends(explanation: &Explanation) -> &str {
    &explanation.steps.last().expect("a step").because
}

#[test]
fn a_parameter_is_sharded_by_its_rules() {
    let found = explain(&["mesh.axes=fsdp=4,tensor=2"], "state.params.layers.attention.wq");
    assert_eq!(found[0].steps.len(), 1);
    assert_eq!(found[0].steps[0].spec, "[_, fsdp, tensor, _]");
    for rule in ["embed -> (fsdp,expert) (preset decoder)", "heads -> tensor (preset decoder)"] {
        assert!(ends(&found[0]).contains(rule), "{}", ends(&found[0]));
    }
    let list = r#"rules.list=[["embed",["fsdp"]],["activation_batch",["fsdp"]]]"#;
    let found = explain(&["mesh.axes=fsdp=8", "rules.preset=none", list], "params.embedding");
    let end = ends(&found[0]);
    assert!(end.contains("embed -> fsdp (rules.list[0])") && end.contains("no rule for vocab"), "{end}");
}

/// In every scope of the model, forwards and backwards, in bodies of loops and outside of them.
#[test]
fn every_chain_ends_where_something_is_stated() {
    let model = ["mesh.axes=data=2,fsdp=2,tensor=2", "remat.policy=full"];
    let mut chains = 0;
    for scope in [
        "layers/attention",
        "backward/layers/attention",
        "recompute/layers/attention",
        "layers/mlp",
        "backward/layers/mlp",
        "embedding",
        "loss",
        "backward/loss",
        "head",
        "optimizer",
    ] {
        for explanation in explain(&model, scope) {
            let end = ends(&explanation);
            let stated = ["its axes are", "the constraint", "nothing says anything", "of the program"];
            assert!(stated.iter().any(|text| end.contains(text)), "{scope}: {explanation:#?}");
            chains += 1;
        }
    }
    assert!(chains > 200, "{chains}");
}

#[test]
fn a_chain_crosses_into_loops() {
    let found = explain(&["mesh.axes=data=2,fsdp=4"], "layers/attention");
    let through_loop = |it: &Explanation| it.steps.iter().any(|step| step.because.contains("through layers/scan"));
    assert!(found.iter().any(through_loop));
    let axes = |spec: &str| -> bool { spec.contains("data") || spec.contains("fsdp") };
    for step in found.iter().flat_map(|it| it.steps.iter().take(it.steps.len() - 1)) {
        assert!(axes(&step.spec), "a step that passes axes on has some: {step:?}");
    }
}

/// The optimizer's line names every parameter, and each is told by its own names.
#[test]
fn a_constraint_is_that_of_the_tensor() {
    let shape_rank = |ty: &str| ty.split_once('[').map(|(_, dims)| dims.split(',').count());
    let mut told = 0;
    for path in ["state.params.layers.attention.wq", "state.params.layers.mlp.gate", "state.params.embedding"] {
        for explanation in explain(&["mesh.axes=data=2,fsdp=4"], path) {
            let last = explanation.steps.last().expect("a step");
            let Some((_, names)) = last.because.split_once("its axes are [") else { continue };
            let names = names.split(']').next().expect("a list").split(' ').count();
            assert_eq!(Some(names), shape_rank(&last.ty), "{path}: {last:?}");
            told += 1;
        }
    }
    assert!(told >= 3, "{told}");
}

/// The optimizer has rules of its own, and its constraints are told by them.
#[test]
fn a_constraint_is_told_by_the_rules_of_its_role() {
    let rules = ["mesh.axes=fsdp=8", "rules.optimizer.preset=none", r#"rules.optimizer.list=[["mlp",["fsdp"]]]"#];
    let found = explain(&rules, "optimizer/reshard");
    let gates: Vec<&str> = found.iter().map(ends).filter(|end| end.contains("[layers embed mlp]")).collect();
    assert!(!gates.is_empty(), "{found:#?}");
    assert!(gates.iter().any(|end| end.contains("mlp -> fsdp (rules.optimizer.list[0])")), "{gates:?}");
}
