//! Rule files of MaxText's shape: what they mean, and what is wrong with those that mean nothing.

use insta::assert_snapshot;
use meshloom::sharding::{Mesh, RuleFile};
use meshloom_train::config::RunConfig;

fn path(name: &str) -> String {
    support::path(format!("tests/rule_files/{name}.yml")).display().to_string()
}

fn read(name: &str) -> RuleFile {
    let text = std::fs::read_to_string(path(name)).expect("a file");
    RuleFile::parse(&text, "rules.yml").unwrap_or_else(|error| panic!("{error}"))
}

/// The specs that a file gives tensors on a mesh, each written as `name:size`.
fn check(name: &str, mesh: &str, tensors: &[&str]) -> String {
    let sizes = mesh.split(',').filter_map(|axis| axis.split_once('=')).map(|(_, size)| size.parse::<usize>().unwrap());
    let mesh = Mesh::parse(mesh, sizes.product()).expect("a mesh");
    let rules = read(name).into_rules(true).expect("rules");
    rules.check_mesh(&mesh).unwrap_or_else(|error| panic!("{error}"));
    let mut text = String::new();
    for tensor in tensors {
        let dims = || tensor.split_whitespace().map(|dim| dim.split_once(':').expect("name:size"));
        let names: Vec<Option<&str>> = dims().map(|(name, _)| Some(name)).collect();
        let sizes: Vec<usize> = dims().map(|(_, size)| size.parse().expect("a size")).collect();
        text += &match rules.resolve(&mesh, tensor, &names, &sizes, &mut Vec::new()) {
            Ok(spec) => format!("{tensor}: {}\n", spec.display(&mesh)),
            Err(error) => format!("error: {error}\n"),
        };
    }
    text
}

#[test]
fn fsdp_only() {
    let tensors = ["layers:4 embed:64 mlp:96", "activation_batch:16 activation_length:32 activation_embed:64"];
    assert_snapshot!(check("fsdp-only", "fsdp=8", &tensors), @r"
    layers:4 embed:64 mlp:96: [_, fsdp, _]
    activation_batch:16 activation_length:32 activation_embed:64: [fsdp, _, _]
    ");
    let rules = read("fsdp-only").rules;
    assert_snapshot!(rules[2], @"embed -> fsdp (rules.yml:7)");
}

#[test]
fn pipelined_experts() {
    let tensors = [
        "activation_batch:16 activation_length:32 activation_embed:64",
        "activation_batch:16 activation_norm_length:32 activation_embed:64",
        "activation_batch:16 activation_length:32 activation_mlp:64",
        "layers:4 embed:64 heads:8 kv:16",
        "layers:4 exp:8 embed:64 mlp:96",
        "layers:4 norm:64",
        "vocab:256 embed:64",
    ];
    assert_snapshot!(check("pipelined-experts", "data=2,fsdp=2,context=2,tensor=2,expert=2", &tensors), @r"
    activation_batch:16 activation_length:32 activation_embed:64: [(data,fsdp,expert), context, _]
    activation_batch:16 activation_norm_length:32 activation_embed:64: [(data,fsdp,expert), context, _]
    activation_batch:16 activation_length:32 activation_mlp:64: [(data,fsdp,expert), context, tensor]
    layers:4 embed:64 heads:8 kv:16: [_, (fsdp,expert), tensor, _]
    layers:4 exp:8 embed:64 mlp:96: [_, expert, fsdp, tensor]
    layers:4 norm:64: [_, _]
    vocab:256 embed:64: [tensor, (fsdp,expert)]
    ");
    // An axis that the mesh does not have is as one of size 1.
    assert_snapshot!(check("pipelined-experts", "stage=2,expert=4", &tensors), @r"
    activation_batch:16 activation_length:32 activation_embed:64: [expert, _, _]
    activation_batch:16 activation_norm_length:32 activation_embed:64: [expert, _, _]
    activation_batch:16 activation_length:32 activation_mlp:64: [expert, _, _]
    layers:4 embed:64 heads:8 kv:16: [stage, expert, _, _]
    layers:4 exp:8 embed:64 mlp:96: [stage, expert, _, _]
    layers:4 norm:64: [stage, _]
    vocab:256 embed:64: [_, expert]
    ");
    assert_snapshot!(check("pipelined-experts", "stage=2,tensor=8", &["embed:64 kv_heads:4 kv:8"]), @r#"error: tensor "embed:64 kv_heads:4 kv:8": dimension 1 ("kv_heads") of size 4 cannot be split 8 ways by rule kv_heads -> tensor (rules.yml:19) on the mesh "stage=2,tensor=8"; give these axes a size that divides it and the other devices to another axis, or have every device hold all key and value heads, by the rules ["kv_heads", []] and ["activation_kv_heads", []] before this one; or use `Rules::with_strict(false)` to leave the dimension unsplit"#);
}

/// Several names want `tensor`, or `expert`: the first rule has it, and the others go on to their next rules, or stay
/// whole, in strict rules too.
#[test]
fn large_experts() {
    let tensors = [
        "activation_batch:16 activation_length:32 activation_embed:64",
        "activation_batch:16 activation_heads:8 activation_length:32 activation_kv:16",
        "activation_batch_no_exp_moe:16 activation_norm_length_moe:32 activation_embed_moe:64",
        "vocab:256 activation_embed:64",
        "layers:4 embed:64 q_lora:16",
        "layers:4 embed:64 kv_lora:16",
        "layers:4 exp:8 embed_no_exp_moe:64 mlp:96",
    ];
    assert_snapshot!(check("large-experts", "stage=2,fsdp=2,context=2,tensor=2,expert=2", &tensors), @r#"
    activation_batch:16 activation_length:32 activation_embed:64: [(fsdp,expert), context, tensor]
    activation_batch:16 activation_heads:8 activation_length:32 activation_kv:16: [(fsdp,expert), tensor, context, _]
    activation_batch_no_exp_moe:16 activation_norm_length_moe:32 activation_embed_moe:64: [fsdp, context, tensor]
    vocab:256 activation_embed:64: [_, tensor]
    layers:4 embed:64 q_lora:16: [stage, (fsdp,expert), _]
    layers:4 embed:64 kv_lora:16: [stage, (fsdp,expert), _]
    layers:4 exp:8 embed_no_exp_moe:64 mlp:96: [stage, expert, fsdp, tensor]
    "#);
    // Not those of another length, by the user's own rule.
    let own = |key: &str| {
        let rules = format!("rules.file={}", path("large-experts"));
        let settings =
            [&rules, key, "mesh.axes=stage=2,expert=2,tensor=2", "pipeline.repeats=2", "model.family=mixtral"];
        let config = RunConfig::from_overrides(&settings.map(str::to_owned)).expect("a config");
        config.lower_train_step().expect_err("refused").to_string().replace(&path("large-experts"), "RULES")
    };
    assert_snapshot!(own("rules.override=[[\"heads\", [\"expert\"]]]"), @r#"tensor "state.params.layers.attention.wq": dimension 2 ("embed") stays unsplit, because rule embed -> (fsdp,expert) (RULES:40) wants mesh axis "expert", which dimension 3 already has by rule heads -> expert (rules.override[0]); add a rule for "embed" with other axes, or with none; or use rules.strict = false to leave the dimension unsplit"#);
}

#[test]
fn context_as_experts() {
    let tensors = [
        "activation_batch:16 activation_length:32 activation_embed:64",
        "activation_batch:16 activation_kv_heads:8 activation_kv_length:32 activation_kv:16",
        "exp:8 embed:64 mlp:96",
        "embed:64 mlp:96",
    ];
    assert_snapshot!(check("context-as-experts", "fsdp=2,context=2,expert=2", &tensors), @r"
    activation_batch:16 activation_length:32 activation_embed:64: [(fsdp,expert), context, _]
    activation_batch:16 activation_kv_heads:8 activation_kv_length:32 activation_kv:16: [(fsdp,expert), _, _, _]
    exp:8 embed:64 mlp:96: [(context,expert), fsdp, _]
    embed:64 mlp:96: [(fsdp,context,expert), _]
    ");
    let file = read("context-as-experts");
    assert_eq!(file.data_sharding, [vec!["data", "stage", "fsdp", "expert"], vec!["context"]]);
    assert_eq!(file.context_sharding.as_deref(), Some("context"));
}

#[test]
fn wrong_files() {
    let wrong = |text: &str| match RuleFile::parse(text, "rules.yml").and_then(|file| file.into_rules(true)) {
        Ok(rules) => format!("{:?}", rules.rules()),
        Err(error) => error.to_string(),
    };
    assert_snapshot!(wrong(""), @"rules.yml:1:1: there is no logical_axis_rules; a rule file needs it, as in logical_axis_rules: [['embed', ['fsdp']]]");
    assert_snapshot!(wrong("mesh_axes: ['fsdp']\n"), @"rules.yml:1:1: there is no logical_axis_rules; a rule file needs it, as in logical_axis_rules: [['embed', ['fsdp']]]");
    assert_snapshot!(wrong("mesh_axis: ['fsdp']\nlogical_axis_rules: []\n"), @r#"rules.yml:1:1: unknown key "mesh_axis" (did you mean "mesh_axes"?); a rule file has mesh_axes, logical_axis_rules, data_sharding, context_sharding, input_data_sharding_logical_axes"#);
    assert_snapshot!(wrong("logical_axis_rules: []\n3: 4\n"), @r#"rules.yml:2:1: unknown key "3 (an integer)"; a rule file has mesh_axes, logical_axis_rules, data_sharding, context_sharding, input_data_sharding_logical_axes"#);
    assert_snapshot!(wrong("- logical_axis_rules\n"), @"rules.yml:1:1: the file is a list of 1, but must be a mapping with the key logical_axis_rules");
    assert_snapshot!(wrong("logical_axis_rules: embed\n"), @r#"rules.yml:1:21: logical_axis_rules is "embed" (a string), but must be a list of rules, as in [['embed', ['fsdp']], ['norm', []]]"#);
    assert_snapshot!(wrong("logical_axis_rules:\n  embed: fsdp\n"), @"rules.yml:2:3: logical_axis_rules is a mapping, but must be a list of rules, as in [['embed', ['fsdp']], ['norm', []]]");
    assert_snapshot!(wrong("logical_axis_rules:\n  - [embed, fsdp, tensor]\n"), @"rules.yml:2:5: an element of logical_axis_rules is a list of 3, but must be a rule: a logical name and a mesh axis, a list of mesh axes or nothing, as in ['embed', ['fsdp']]");
    assert_snapshot!(wrong("logical_axis_rules:\n  - [3, fsdp]\n"), @"rules.yml:2:6: the name of a rule is 3 (an integer), but must be a logical axis name");
    assert_snapshot!(wrong("logical_axis_rules:\n  - [embed, 3]\n"), @r#"rules.yml:2:13: the mesh axes of "embed" is 3 (an integer), but must be a list of mesh axes, as in ['data', 'fsdp']"#);
    assert_snapshot!(wrong("logical_axis_rules:\n  - [embed, [fsdp, true]]\n"), @r#"rules.yml:2:20: an element of the mesh axes of "embed" is true (a boolean), but must be a mesh axis"#);
    assert_snapshot!(wrong("logical_axis_rules:\n  - [embed, [fsdp, fsdp]]\n"), @r#"rules.yml:2:20: the mesh axes of "embed" names mesh axis "fsdp" twice; an axis can split a dimension once"#);
    assert_snapshot!(wrong("mesh_axes: fsdp\nlogical_axis_rules: []\n"), @r#"rules.yml:1:12: mesh_axes is "fsdp" (a string), but must be a list of mesh axes, as in ['data', 'fsdp']"#);
    assert_snapshot!(wrong("mesh_axes: [fsdp, fsdp]\nlogical_axis_rules: []\n"), @r#"rules.yml:1:19: mesh_axes names mesh axis "fsdp" twice; an axis can split a dimension once"#);
    assert_snapshot!(wrong("mesh_axes: [data, fsdp]\nlogical_axis_rules:\n  - [embed, fdsp]\n"), @r#"rules.yml:3:13: rule embed -> fdsp (rules.yml:3) names mesh axis "fdsp", which is not in mesh_axes (did you mean "fsdp"?); mesh_axes has data, fsdp"#);
    assert_snapshot!(wrong("mesh_axes: [data]\ndata_sharding: [[data, tensor]]\nlogical_axis_rules: []\n"), @r#"rules.yml:2:24: data_sharding names mesh axis "tensor", which is not in mesh_axes; mesh_axes has data"#);
    assert_snapshot!(wrong("mesh_axes: [data]\ndata_sharding: 3\nlogical_axis_rules: []\n"), @"rules.yml:2:16: data_sharding is 3 (an integer), but must be a list with a list of mesh axes for each dimension of the batch, as in [['data', 'fsdp']]");
    assert_snapshot!(wrong("mesh_axes: [data]\ncontext_sharding: context\nlogical_axis_rules: []\n"), @r#"rules.yml:2:19: context_sharding names mesh axis "context", which is not in mesh_axes; mesh_axes has data"#);
    assert_snapshot!(wrong("logical_axis_rules: [['embed', ['fsdp']\n"), @"rules.yml:2:1: this is not YAML: while parsing a flow sequence, expected ',' or ']'");
    assert_snapshot!(wrong("logical_axis_rules: []\nlogical_axis_rules: []\n"), @"rules.yml:2:1: this is not YAML: duplicated key in mapping");
}

/// A config reads its rules from a file, for all roles or one.
#[test]
fn in_the_run_config() {
    let read = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|&text| text.replace("RULES", &path("fsdp-only"))).collect();
        RunConfig::from_overrides(&overrides)
    };
    let config = read(&["rules.file=RULES", "mesh.axes=fsdp=8"]).expect("a config");
    let rules = config.rule_sets().expect("rules");
    assert_eq!((rules.params.rules().len(), rules.optimizer.rules()), (4, rules.params.rules()));
    assert!(rules.params.rules()[0].origin.ends_with("tests/rule_files/fsdp-only.yml:5"));
    let config = read(&["rules.optimizer.file=RULES", "mesh.axes=fsdp=8"]).expect("a config");
    let rules = config.rule_sets().expect("rules");
    assert_eq!((rules.optimizer.rules().len(), rules.params.rules().len() > 4), (4, true));

    let refused =
        |overrides: &[&str]| read(overrides).expect_err("refused").to_string().replace(&path("fsdp-only"), "RULES");
    assert_snapshot!(refused(&["rules.file=no/such/rules.yml"]), @r#"--set rules.file=no/such/rules.yml: rules.file is "no/such/rules.yml": it cannot be read: No such file or directory (os error 2); give the path of a rule file, from the working directory on, or an absolute one"#);
    assert_snapshot!(refused(&["rules.file=RULES", "mesh.axes=fsdp=8", "train.batch=12"]), @r#"--set train.batch=12: train.batch is 12: it must be a multiple of 8: rule activation_batch -> fsdp (RULES:5) splits it over the mesh "fsdp=8"; or allow it to be padded by rules.uneven = true"#);
    // The file's axes are not all of this mesh, and what is left over is found with the program at hand.
    let config = read(&["rules.file=RULES"]).expect("a config");
    let error = config.lower_train_step().expect_err("data is in no rule").to_string();
    assert_snapshot!(error, @r#"mesh axis "data" of size 2 splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh "data=2,fsdp=4"; or use rules.strict = false to let them"#);
}
