//! Logical names that only the rules have, or only the tensors.

use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, lower};
use meshloom::hlo::suggest::misspelled;
use meshloom::ir::DType;
use meshloom::sharding::{Mesh, Role, Rule, RuleFile, RuleSets, Rules, annotate};
use meshloom::trace::{Function, TensorSpec};
use meshloom_train::config::RunConfig;

const ROWS: &str = "act_batch";

/// A two-layer network: its parameters are named `embed mlp` and `mlp embed`, its activations `act_batch act_embed` and
/// `act_batch NAME`.
fn network(hidden: &'static str) -> Function<(TensorSpec, TensorSpec, TensorSpec), TensorSpec> {
    let spec = |dims: [usize; 2], axes: [&str; 2]| TensorSpec::new(DType::F32, dims).with_axes(&axes);
    let param = |dims, axes| TensorSpec { role: Role::Params, ..spec(dims, axes) };
    let inputs =
        (spec([8, 16], [ROWS, "act_embed"]), param([16, 32], ["embed", "mlp"]), param([32, 16], ["mlp", "embed"]));
    Function::trace("network", inputs, |(x, up, down)| {
        let hidden = x.matmul(up).with_axes([ROWS, hidden]).tanh();
        hidden.matmul(down).with_axes([ROWS, "act_embed"])
    })
    .expect("it traces")
}

/// Rules for the network as lines of "name axis axis".
fn rules(text: &str) -> Vec<Rule> {
    let rule = |(index, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (name, axes) = (words.next().expect("a name"), words.collect());
        Rule { name, axes, origin: format!("list[{index}]"), published: false }
    };
    text.lines().enumerate().map(rule).collect()
}

const GOOD: &str = "act_batch fsdp\nact_embed\nact_mlp tensor\nembed fsdp\nmlp tensor";

/// The error, or what the diagnostics say; without source lines.
fn check(hidden: &'static str, sets: &RuleSets) -> String {
    let mesh = Mesh::parse("fsdp=2,tensor=4", 8).expect("a mesh");
    match annotate(network(hidden).graph(), &mesh, sets, &[]) {
        Err(error) => format!("error: {}", without_line(&error.to_string())),
        Ok(annotated) => annotated.diagnostics.iter().map(|line| without_line(&format!("{line}\n"))).collect(),
    }
}

fn without_line(text: &str) -> String {
    let Some((before, rest)) = text.split_once("names.rs:") else { return text.to_owned() };
    format!("{before}names.rs:LINE{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

fn list(text: &str) -> RuleSets {
    RuleSets::uniform(Rules::new(rules(text), true).expect("rules"))
}

/// The case that was found: bytes moved more than doubled, without a warning.
#[test]
fn a_misspelled_rule_is_an_error() {
    assert_eq!(check("act_mlp", &list(GOOD)), "");
    let typo = GOOD.replace("act_mlp", "act_mpl");
    assert_snapshot!(check("act_mlp", &list(&typo)), @r#"error: no tensor has the logical axis of rule act_mpl -> tensor (list[2]); did you mean "act_mlp", as "the value named at tests/sharding/names.rs:LINE" has it?; or use `Rules::with_strict(false)` to let the rule split nothing"#);
    // The slip is found also if another rule serves the tensor.
    assert_snapshot!(check("act_mlp", &list(&format!("act_mpl fsdp\n{GOOD}"))), @r#"error: no tensor has the logical axis of rule act_mpl -> fsdp (list[0]); did you mean "act_mlp", as "the value named at tests/sharding/names.rs:LINE" has it?; or use `Rules::with_strict(false)` to let the rule split nothing"#);
    // Lenient, it is a warning.
    assert_snapshot!(check("act_mlp", &list(&typo).with_strict(false)), @r#"
    no tensor has the logical axis of rule act_mpl -> tensor (list[2]); did you mean "act_mlp", as "the value named at tests/sharding/names.rs:LINE" has it?; the rules are not strict, so meshloom will let the rule split nothing
    "#);
}

/// The same slip on the side of the model: every other tensor has the right name.
#[test]
fn a_misspelled_axis_of_a_tensor_is_an_error() {
    assert_snapshot!(check("act_mpl", &list(GOOD)), @r#"error: no tensor has the logical axis of rule act_mlp -> tensor (list[2]); did you mean "act_mpl", as "the value named at tests/sharding/names.rs:LINE" has it?; or use `Rules::with_strict(false)` to let the rule split nothing"#);
    // The rules may be a preset's: the name is the model's.
    let mesh = Mesh::parse("data=8", 8).expect("a mesh");
    let spec = TensorSpec::new(DType::F32, [8, 16]).with_axes(&["activation_bacth", ""]);
    let function = Function::trace("f", spec, |x| x * 2.0).expect("it traces");
    let sets = RuleSets::preset("decoder", true).expect("a preset");
    let refused = lower(function.graph(), &LowerOptions { sharding: Some((&mesh, &sets)), ..LowerOptions::default() });
    assert_snapshot!(refused.expect_err("a typo"), @r#"tensor "input 0 of `f`" has logical axis "activation_bacth", which no rule names; did you mean "activation_batch", as rule activation_batch -> (replica,data,fsdp,expert) (preset decoder) has it?; or use `Rules::with_strict(false)` to leave the dimension unsplit"#);
}

/// A large parameter with a name that no rule has is worth a line, once for each name: also where the rules are
/// published, which are silent about the names that they lack.
#[test]
fn a_large_parameter_without_a_rule_is_said() {
    let mesh = Mesh::parse("fsdp=8", 8).expect("a mesh");
    let said = |sets: &RuleSets, rows: usize, role: Role| -> String {
        let param = |axes: [&str; 2]| TensorSpec { role, ..TensorSpec::new(DType::F32, [rows, 256]).with_axes(&axes) };
        let inputs = (param(["fields", "embed"]), param(["fields", "embed"]), param(["rows", "embed"]));
        let function = Function::trace("f", inputs, |(a, b, c)| a + b + c).expect("it traces");
        let annotated = annotate(function.graph(), &mesh, sets, &[]).expect("it is no error");
        annotated.diagnostics.iter().map(|line| format!("{line}\n")).collect()
    };
    let preset = RuleSets::preset("decoder", true).expect("a preset");
    assert_snapshot!(said(&preset, 1025, Role::Params), @r#"
    parameter "0" of 1.00 MiB has logical axis "fields", which no rule names, so it is not split along it; add a rule for "fields" with mesh axes, or with none if it is to stay whole
    parameter "2" of 1.00 MiB has logical axis "rows", which no rule names, so it is not split along it; add a rule for "rows" with mesh axes, or with none if it is to stay whole
    "#);
    // A parameter of exactly 1 MiB, and a large value that is not a parameter, are not reported.
    assert_eq!(said(&preset, 1024, Role::Params), "");
    assert_eq!(said(&preset, 1025, Role::Compute), "");
    // A rule without axes states that this is meant.
    assert_eq!(said(&list("embed fsdp\nfields\nrows"), 1025, Role::Params), "");
    // With the user's own rules, small parameters are in the list of names without rules.
    assert_snapshot!(said(&list("embed fsdp\nrows"), 1025, Role::Params), @r#"parameter "0" of 1.00 MiB has logical axis "fields", which no rule names, so it is not split along it; add a rule for "fields" with mesh axes, or with none if it is to stay whole"#);
    assert_snapshot!(said(&list("embed fsdp\nrows"), 1024, Role::Params), @"no rule names logical axis fields, so dimensions of that name stay unsplit");
}

/// Every way to write a rule, with a slip in each name in turn.
#[test]
fn every_slip_in_every_source_is_found() {
    type Source = (&'static str, fn(&str) -> RuleSets);
    let sources: [Source; 4] = [
        ("a list", list),
        ("rules before a preset", |text| {
            let rules = Rules::preset("decoder", true).and_then(|preset| preset.with_first(rules(text)));
            RuleSets::uniform(rules.expect("rules"))
        }),
        ("from_pairs", |text| {
            let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
            let pairs: Vec<(&str, &[&str])> = lines.iter().map(|words| (words[0], &words[1..])).collect();
            RuleSets::uniform(Rules::from_pairs(&pairs).expect("rules"))
        }),
        ("one role each", |text| {
            let none = || Rules::new(rules(GOOD), true).expect("rules");
            let (params, compute): (Vec<Rule>, Vec<Rule>) =
                rules(text).into_iter().partition(|rule| !rule.name.starts_with("act"));
            let of = |rules| Rules::new(rules, true).expect("rules");
            RuleSets { params: of(params), compute: of(compute), optimizer: none() }
        }),
    ];
    for (source, sets) in sources {
        for name in ["act_batch", "act_embed", "act_mlp", "embed", "mlp"] {
            for slip in slips(name) {
                let lines = GOOD.lines().map(|line| match line.split_once(' ').unwrap_or((line, "")) {
                    (own, axes) if own == name => format!("{slip} {axes}"),
                    _ => line.to_owned(),
                });
                let text = lines.collect::<Vec<_>>().join("\n");
                let said = check("act_mlp", &sets(&text));
                let meant = format!("did you mean \"{name}\"");
                assert!(said.starts_with("error: ") && said.contains(&meant), "{source}, {slip}: {said}");
            }
        }
    }
}

/// Names one slip of the pen away: two letters swapped, one left out, one twice.
fn slips(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let last = letters.len() - 1;
    let (mut swapped, mut doubled) = (letters.clone(), letters.clone());
    swapped.swap(last - 1, last);
    doubled.push(letters[last]);
    [swapped, doubled, letters[..last].to_vec()].map(String::from_iter).to_vec()
}

/// A mismatch that is not a misspelling is a line of the warnings. Presets and files are for many models, and give
/// none.
#[test]
fn other_mismatches_are_lines() {
    assert_snapshot!(check("act_mlp", &list(&format!("{GOOD}\nheads tensor\nkv_heads tensor"))), @"no tensor of this program has the logical axis of rules heads -> tensor (list[5]) and kv_heads -> tensor (list[6])");
    let without: String = GOOD.lines().filter(|line| !line.contains("act_")).collect::<Vec<_>>().join("\n");
    assert_snapshot!(check("act_mlp", &list(&format!("act_batch fsdp\n{without}"))), @"no rule names logical axes act_embed and act_mlp, so dimensions of that name stay unsplit");
    let before = Rules::preset("decoder", true).and_then(|preset| preset.with_first(rules(GOOD))).expect("rules");
    assert_eq!(check("act_mlp", &RuleSets::uniform(before)), "");
}

#[test]
fn names_that_are_meant_are_no_slips() {
    for (name, other) in [
        ("activation_length", "activation_kv_length"),
        ("activation_kv", "activation_kv_heads"),
        ("q_lora", "kv_lora"),
        ("x", "y"),
        ("fc1", "fc2"),
        ("layer_10", "layer_11"),
        ("batch_a", "batch_b"),
        ("embed", "embed_no_exp"),
        ("heads", "kv_heads"),
    ] {
        assert_eq!(misspelled(name, [other]), None, "{name} {other}");
    }
    for (name, meant) in [
        ("act_mpl", "act_mlp"),
        ("activaton_length", "activation_length"),
        ("activation-mlp", "activation_mlp"),
        ("actmlp", "act_mlp"),
        ("Embed", "embed"),
        ("head", "heads"),
        ("fc_biass", "fc_bias"),
    ] {
        assert_eq!(misspelled(name, ["other", meant]), Some(meant), "{name}");
    }
}

/// A config's own rules are checked in the same way, and its messages speak of keys.
#[test]
fn in_the_run_config() {
    let refused = |rules: &str, strict: &str| {
        let overrides = [format!("rules.override={rules}"), format!("rules.strict={strict}")];
        let config = RunConfig::from_overrides(&overrides).expect("a config");
        match config.lower_train_step() {
            Ok((_, lowered)) => lowered.warnings().collect::<Vec<_>>().join("\n"),
            Err(error) => error.to_string(),
        }
    };
    assert_snapshot!(refused(r#"[["embde", ["fsdp"]]]"#, "true"), @r#"no tensor has the logical axis of rule embde -> fsdp (rules.override[0]); did you mean "embed", as "state.params.embedding" has it?; or use rules.strict = false to let the rule split nothing"#);
    assert_snapshot!(refused(r#"[["embde", ["fsdp"]]]"#, "false"), @r#"no tensor has the logical axis of rule embde -> fsdp (rules.override[0]); did you mean "embed", as "state.params.embedding" has it?; the rules are not strict, so meshloom will let the rule split nothing"#);
    assert_eq!(refused(r#"[["embed", ["fsdp"]]]"#, "true"), "");
}

/// A rule that is there but found its axis taken is not called missing.
#[test]
fn a_rule_that_lost_its_axis_is_not_missing() {
    let mesh = Mesh::parse("fsdp=2,tensor=4", 8).expect("a mesh");
    let sets = list("act_batch fsdp\nact_embed fsdp\nact_mlp tensor\nembed fsdp\nmlp tensor").with_strict(false);
    let table = annotate(network("act_mlp").graph(), &mesh, &sets, &[]).expect("lenient rules").table;
    assert_snapshot!(table.origin(&table.rows[0]), @"list[0]; another dimension has the axes of every rule for act_embed");
    let sets = list("act_batch fsdp");
    let sets = RuleSets { params: sets.params.clone(), compute: Rules::new(rules(GOOD), true).expect("rules"), ..sets };
    let table = annotate(network("act_mlp").graph(), &mesh, &sets, &[]).expect("rules").table;
    assert_snapshot!(table.origin(&table.rows[1]), @"no rule for embed, mlp");
}

/// A whole config of MaxText is a rule file: keys that are not about rules are skipped, and reported.
#[test]
fn a_whole_config_is_a_rule_file() {
    let text = "\
model_name: 'llama'
steps: 150_001
mesh_axes: ['data', 'fsdp', 'tensor']
logical_axis_rules: [['activation_batch', ['data', 'fsdp']], ['embed', 'fsdp'], [\"up\", []]]
data_sharding: [['data', 'fsdp', 'tensor']]
input_data_sharding_logical_axes: ['activation_embed_and_logits_batch', 'activation_norm_length']
sharding_tolerance: 0.02
debug_sharding: False
ici_fsdp_parallelism: -1
tokenizer: {path: 'tokenizer.model', bos: true}
";
    let file = RuleFile::parse(text, "base.yml").expect("a rule file");
    assert_eq!(file.input_axes, ["activation_embed_and_logits_batch", "activation_norm_length"]);
    let skipped = ["model_name", "steps", "sharding_tolerance", "debug_sharding", "ici_fsdp_parallelism", "tokenizer"];
    assert_eq!(file.skipped, skipped);
    let rules = file.into_rules(true).expect("rules");
    let mesh = Mesh::parse("data=2,fsdp=4", 8).expect("a mesh");
    let notes = RuleSets::uniform(rules).check_mesh(&mesh).expect("they fit");
    assert_eq!(notes.len(), 1);
    assert_snapshot!(notes[0], @"base.yml has more than rules and mesh axes; skipped: keys model_name, steps, sharding_tolerance, debug_sharding, ici_fsdp_parallelism and tokenizer");
    // A key that is nearly one of a rule file is not skipped, and neither is one that is not a name.
    for wrong in ["logical_axis_rule: []\n", "input_data_sharding_logical_axis: []\n", "3: 4\n"] {
        let refused = RuleFile::parse(&format!("{wrong}{text}"), "base.yml").expect_err("refused").to_string();
        assert!(refused.contains("unknown key"), "{refused}");
    }
    let wrong = text.replace("['activation_embed_and_logits_batch', 'activation_norm_length']", "3");
    assert_snapshot!(RuleFile::parse(&wrong, "base.yml").expect_err("a number"), @"base.yml:6:35: input_data_sharding_logical_axes is 3 (an integer), but must be a logical axis name, or a list of them");
}
