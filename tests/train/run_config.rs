//! The run config: from TOML and overrides to a config, or to an error that helps.

use insta::assert_snapshot;
use meshloom::hlo::PlatformKind;
use meshloom::ir::{DType, Name};
use meshloom::ops::RematPolicy;
use meshloom::optim::{AdamW, Decay, LearningRate, Muon, Optimizer};
use meshloom::pjrt::{DebugValue, ErrorCode, PjrtError, Platform};
use meshloom::transform::pipeline::{Costs, PipelineOptions, Schedule, WeightPlan};
use meshloom_train::config::{OptimizerConfig, PartitionMode, PipelineConfig, RuleSource, RunConfig};
use meshloom_train::run::{DropoutConfig, TrainStep};

pub fn read(text: &str, overrides: &[&str]) -> RunConfig {
    read_or_refuse(text, overrides).unwrap_or_else(|message| panic!("{message}"))
}

pub fn read_or_refuse(text: &str, overrides: &[&str]) -> Result<RunConfig, String> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    RunConfig::from_toml_with(text, "run.toml", &overrides).map_err(|error| error.to_string())
}

fn example(name: &str) -> String {
    support::path(format!("examples/configs/{name}.toml")).display().to_string()
}

#[test]
fn the_default_file_is_the_default() {
    let config = RunConfig::load(example("default"), &[]).unwrap();
    assert_eq!(config, RunConfig::default());
    assert_eq!(RunConfig::from_toml("", "").unwrap(), RunConfig::default());
    // It names every key, those of the optional sections as comments.
    let text = std::fs::read_to_string(example("default")).unwrap();
    let uncommented: String = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
        .collect();
    let full = read(&uncommented, &["mesh.axes=diloco=2,stage=2,fsdp=2"]);
    assert_eq!(full.pipeline, Some(PipelineConfig::default()));
    assert_eq!(full.diloco, Some(Default::default()));
    for line in full.to_toml().lines().filter_map(|line| line.split_once(" = ")) {
        assert!(uncommented.contains(&format!("\n{} = ", line.0)), "{} is missing", line.0);
    }
    let keys = uncommented.lines().filter(|line| line.contains(" = ") && !line.starts_with('#'));
    keys.for_each(|line| assert!(line.contains(" # "), "{line} has no comment"));
}

#[test]
fn example_configs() {
    for (name, mesh) in [("fsdp8", "fsdp=8"), ("data8", "data=8"), ("one-device", "data=1,fsdp=1")] {
        let config = RunConfig::load(example(name), &[]).unwrap();
        assert_eq!(config.mesh().unwrap().to_string(), mesh);
        assert_eq!(config.model, RunConfig::default().model);
    }
}

#[test]
fn compiler_options_have_types() {
    let options = ["flag=true", "number=-3", "share=0.5", "name=a=b"];
    let config = read("", &[&format!("target.compiler_options={options:?}")]);
    let expected = [
        ("flag", DebugValue::Bool(true)),
        ("name", DebugValue::Text("a=b".to_owned())),
        ("number", DebugValue::Int(-3)),
        ("share", DebugValue::Float(0.5)),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value)).into();
    assert_eq!(config.compiler_options(&Platform::of_any_plugin(PlatformKind::Cpu)).unwrap(), expected);
}

#[test]
fn pipeline_example_configs() {
    for (name, mesh, layers) in
        [("pipeline-bsw", "stage=2,data=2,fsdp=2", 4), ("pipeline-4-stages", "stage=4,fsdp=2", 8)]
    {
        let config = RunConfig::load(example(name), &[]).unwrap();
        assert_eq!(config.mesh().unwrap().to_string(), mesh);
        assert_eq!(config.pipeline_options().unwrap().unwrap().layers(), layers);
    }
    // Configs for a topology do not fit the devices at hand; their mesh is checked with as many devices as the topology
    // has.
    let config = RunConfig::load(example("llama-70b-v5p"), &[]).unwrap().on_devices(128).unwrap();
    assert_eq!(config.pipeline_options().unwrap().unwrap().layers(), 80);
}

#[test]
fn round_trip() {
    let text = r#"
        [model]
        layers = 8
        compute_dtype = "bf16"
        [model.family]
        kind = "mixtral"
        experts = 4
        [train]
        learning_rate = 1
        schedule = "wsd"
        [train.optimizer]
        kind = "muon"
        momentum = 0.5
        [mesh]
        axes = "diloco=2, stage=2, fsdp=-1"
        [rules]
        list = [["embed", ["fsdp"]], ["mlp", "fsdp"], ["norm", []], ["kv"]]
        strict = false
        [rules.params]
        preset = "decoder"
        [rules.optimizer]
        list = []
        [remat]
        policy = "save"
        names = ["a\"quoted\" name", "b"]
        [pipeline]
        layers_per_stage = 2
        delay_forwarding = true
        remat = "full"
        [diloco]
        streaming = true
    "#;
    let config = read(text, &[]);
    let written = config.to_toml();
    assert_eq!(read(&written, &[]), config);
    for part in [
        "[model.family]\nkind = \"mixtral\"\nexperts = 4\nexperts_per_token = 2\nmoe_mlp = 384\n",
        "[train.schedule]\nkind = \"wsd\"\nfloor = 0.1\ndecay_steps = 20\n",
        "[train.optimizer]\nkind = \"muon\"\nmomentum = 0.5\nrms = 0.2\nbeta1 = 0.9\n",
        "list = [[\"embed\", [\"fsdp\"]], [\"mlp\", [\"fsdp\"]], [\"norm\", []], [\"kv\", []]]\noverride = []\nstrict = false\n",
        "[rules.params]\npreset = \"decoder\"\n",
        "[rules.optimizer]\nlist = []\n",
        "[remat]\npolicy = \"save\"\nnames = ['a\"quoted\" name', \"b\"]\n",
        "[pipeline.remat]\npolicy = \"full\"\n",
    ] {
        assert!(written.contains(part), "{part} is not in {written}");
    }
    assert!(!written.contains("[diloco.apart]") && !written.contains("q_lora"), "{written}");
}

/// A word stands for a section of that kind, wherever it is written.
#[test]
fn words_stand_for_kinds() {
    let muon = "[train.optimizer]\nkind = \"muon\"\nmomentum = 0.5\n";
    let momentum = |text: &str, overrides: &[&str]| match read(text, overrides).train.optimizer {
        OptimizerConfig::Muon { momentum, .. } => Some(momentum),
        OptimizerConfig::AdamW { .. } => None,
    };
    assert_eq!(momentum("[train]\noptimizer = \"muon\"\n", &[]), Some(0.95));
    assert_eq!(momentum(muon, &[]), Some(0.5));
    assert_eq!(momentum("[train]\noptimizer = \"muon\"\n", &["train.optimizer.momentum=0.5"]), Some(0.5));
    // A word replaces what the file says, but not what other overrides say, in whatever order.
    assert_eq!(momentum(muon, &["train.optimizer=adamw"]), None);
    assert_eq!(momentum("", &["train.optimizer.momentum=0.5", "train.optimizer=muon"]), Some(0.5));
    assert_eq!(momentum("", &["train.optimizer=muon", "train.optimizer.momentum=0.5"]), Some(0.5));
    // `true` adds a section that is not there.
    let least = |overrides: &[&str]| {
        let apart = read("", &[&["diloco.replicas=2"], overrides].concat()).diloco.expect("a section").apart;
        apart.map(|apart| apart.min_replicas)
    };
    assert_eq!(least(&["diloco.apart=true"]), Some(1));
    assert_eq!(least(&["diloco.apart.min_replicas=2", "diloco.apart=true"]), Some(2));
    assert_eq!(
        read("[diloco]\napart = false\n", &["mesh.axes=diloco=2,fsdp=4"]).diloco.expect("a section").apart,
        None
    );
}

#[test]
fn overrides() {
    let config = read(
        "[rules]\npreset = \"decoder\"\n[train]\nsteps = 3\n",
        &[
            "train.steps=7",
            "model.compute_dtype=bf16",
            "mesh.axes=data=2,fsdp=-1",
            " train.learning_rate = 1e-4 ",
            "model.tied_embeddings=true",
            "data.sources=[\"/some/where else.txt\", \"more\"]",
            "data.weights=[3, 0.5]",
            "rules.list=[[\"embed\", [\"fsdp\"]]]",
            "partition.mode=\"explicit\"",
            "remat.policy=save",
            "remat.names=[\"attention\"]",
        ],
    );
    assert_eq!((config.train.steps, config.train.learning_rate), (7, 1e-4));
    assert_eq!(config.model.compute_dtype, DType::BF16);
    assert_eq!(config.mesh().unwrap().to_string(), "data=2,fsdp=4");
    assert!(config.model.tied_embeddings);
    assert_eq!(config.data.sources, ["/some/where else.txt", "more"]);
    assert_eq!(config.data.weights, [3.0, 0.5]);
    assert!(matches!(config.rules.source(), RuleSource::List(rules) if rules.len() == 1));
    assert_eq!(config.partition.mode, PartitionMode::Explicit);
    // The last one wins.
    assert_eq!(read("", &["train.seed=1", "train.seed=2"]).train.seed, 2);
}

/// The program has its numbers as `f32`: one that becomes 0 or infinite there is refused where it is written.
#[test]
fn numbers_are_those_of_f32() {
    for setting in [
        "train.optimizer.epsilon=1e-50",
        "train.learning_rate=1e39",
        "train.clip_norm=1e-60",
        "train.weight_decay=1e39",
        "train.z_loss=1e39",
        "train.optimizer.beta1=1e-50",
        "train.schedule.floor=1e-50",
        "model.norm_epsilon=1e39",
    ] {
        let (key, value) = setting.split_once('=').expect("a key");
        let reason = "f32 cannot hold it; give a number from 1.1754944e-38 to 3.4028235e38";
        let found = read_or_refuse("", &[setting]).expect_err(setting);
        assert_eq!(found, format!("--set {setting}: {key} is {value}: {reason}"));
    }
    // Seconds are not part of the program.
    read("", &["train.time_limit=1e39", "train.weight_decay=0", "train.learning_rate=1e-30"]);
}

/// One GPU is a number, several are a text.
#[test]
fn visible_devices_are_numbers() {
    for (value, expected, written) in
        [("1", &[1][..], "\"1\""), ("0,1", &[0, 1], "\"0,1\""), ("\"2, 3\"", &[2, 3], "\"2,3\""), ("\"\"", &[], "\"\"")]
    {
        let config = read("", &["target.platform=cuda", &format!("target.visible_devices={value}")]);
        assert_eq!(config.target.visible_devices, expected);
        let options = config.client_options(PlatformKind::Cuda).unwrap();
        assert_eq!(options.visible_devices, (!expected.is_empty()).then(|| expected.to_vec()));
        assert!(config.to_toml().contains(&format!("\nvisible_devices = {written}\n")), "{}", config.to_toml());
        assert_eq!(read(&config.to_toml(), &[]), config);
    }
}

/// Evaluations of the config's own text need `validation.sources`; another model may have its own.
#[test]
fn evaluations_of_the_own_text_need_a_set() {
    let error = read("[validation]\nevery = 5\n", &[]).check_validation().unwrap_err();
    assert_snapshot!(error, @"run.toml:2:9: validation.every is 5: there is nothing to evaluate on; set validation.sources to files that are not trained on");
    read("", &["validation.every=5", "validation.sources=[\"more.txt\"]"]).check_validation().unwrap();
    read("", &[]).check_validation().unwrap();
}

/// An error of a plugin or the system about a value of `[target]` names its key.
#[test]
fn errors_of_the_target_name_the_key() {
    let options = "target.compiler_options=[\"foo=1\",\"xla_a=no\"]";
    let config = read("", &[options]);
    let refused = |message: &str| PjrtError::Plugin {
        function: "PJRT_Client_Compile".into(),
        code: ErrorCode::InvalidArgument,
        message: message.to_owned(),
    };
    let reason = "the plugin's compiler refuses it";
    for (message, option) in [
        ("No such compile option: 'foo'", "foo=1"),
        ("While setting option xla_a, 'no' is not a valid bool value.", "xla_a=no"),
    ] {
        let expected = format!("--set {options}: target.compiler_options is {option:?}: {reason}: {message}");
        assert_eq!(config.compile_error(refused(message)).to_string(), expected);
    }
    for other in ["No such compile option: 'food'", "a shape of foo is wrong"] {
        assert_eq!(config.compile_error(refused(other)).to_string(), refused(other).to_string());
    }
    let cache = "target.compile_cache=/proc/no/such";
    let error = read("", &[cache]).compile_cache().map(drop).unwrap_err().to_string();
    let expected = format!("--set {cache}: target.compile_cache is \"/proc/no/such\": cannot create /proc/no/such: ");
    assert!(
        error.starts_with(&expected)
            && error.ends_with("give a folder that can be written, auto, or nothing for no cache"),
        "{error}"
    );
}

/// The bounds that `meshloom config` prints of a number hold: the bound itself is taken, and a number beyond it is
/// refused in the same words.
#[test]
fn what_is_allowed_is_what_is_taken() {
    let mut bounded = 0;
    for section in RunConfig::default().describe() {
        for key in &section.keys {
            let allowed = key.allowed.as_str();
            let number = |text: &str| text.split(' ').find_map(|word| word.parse::<f64>().ok());
            let least = ["at least ", "from "].iter().find_map(|word| number(allowed.split_once(word)?.1));
            let most = allowed.split_once(" to ").and_then(|(_, most)| number(most)).map(|most| most + 1.0);
            let limit = allowed.split_once("less than ").and_then(|(_, limit)| number(limit));
            let odd = least.filter(|_| allowed.starts_with("an even")).map(|least| least + 1.0);
            let zero = allowed.ends_with("greater than 0").then_some(0.0);
            let beyond = [least.map(|least| least - 1.0), most, limit, odd, zero];
            let (name, is_integer) = (format!("{}.{}", section.name, key.name), allowed.contains("integer"));
            // The key of another kind needs that kind.
            let kind = key.meaning.strip_prefix("With ").and_then(|rest| rest.split([',', ':']).next());
            let kind = kind.map(|kind| format!("{}.{}={kind}", section.name, section.keys[0].name));
            let found = |value: &str| {
                let set: Vec<&str> = kind.as_deref().into_iter().chain([value]).collect();
                read_or_refuse("", &set).err().unwrap_or_default()
            };
            for value in beyond.into_iter().flatten() {
                let text = if is_integer { format!("{value}") } else { format!("{value:?}") };
                let expected = format!("--set {name}={text}: {name} is {text}: it must be {allowed}");
                assert_eq!(found(&format!("{name}={text}")), expected);
                bounded += 1;
            }
            if let Some(least) = least {
                let found = found(&format!("{name}={least}"));
                assert!(!found.contains(&format!("it must be {allowed}")), "{found}");
            }
        }
    }
    assert!(bounded > 40, "{bounded} keys have a bound");
}

/// A name that no value of the model has would keep nothing.
#[test]
fn names_to_keep_exist() {
    let config = read("", &["remat.policy=save", "remat.names=[\"mlp_hiden\"]"]);
    let error = config.lower_train_step().expect_err("no such name").to_string();
    let expected =
        "remat.names is \"mlp_hiden\": no value of the model has this name (did you mean \"mlp_hidden\"?); there are ";
    assert!(error.starts_with(expected) && error.contains("attention_mixed"), "{error}");
    read("", &["remat.policy=save", "remat.names=[\"mlp_hidden\"]"]).lower_train_step().expect("it exists");
    let own = |name: &str| {
        let name = format!("pipeline.remat.names=[\"{name}\"]");
        read("", &["mesh.axes=stage=2,fsdp=4", "pipeline.remat=save", &name]).lower_train_step()
    };
    let error = own("mlp_hiden").expect_err("no such value").to_string();
    assert!(error.starts_with("pipeline.remat.names is \"mlp_hiden\": no value of the model has this name"), "{error}");
    own("mlp_hidden").expect("it exists");
}

/// Keys and mesh become the form of a pipeline.
#[test]
fn pipeline_options() {
    assert_eq!(read("", &[]).pipeline_options().unwrap(), None);
    let overrides = [
        "mesh.axes=stage=4,fsdp=2",
        "mesh.dcn=stage=2",
        "model.layers=16",
        "model.scan_layers=false",
        "train.batch=32",
        "remat.policy=dots",
        "pipeline.microbatches=8",
        "pipeline.layers_per_stage=2",
        "pipeline.weights=bsw-split",
        "pipeline.delay_forwarding=true",
        "pipeline.scan_repeats=false",
        "pipeline.keep_gathered=true",
    ];
    let expected = PipelineOptions {
        // The stages within a slice and those across slices.
        stages: 4,
        repeats: 2,
        chunks: 1,
        microbatches: 8,
        layers_per_stage: 2,
        weights: WeightPlan::SplitSlidingWindow,
        schedule: Schedule::Circular,
        delay_forwarding: true,
        scan_iterations: true,
        scan_repeats: false,
        scan_layers: false,
        keep_gathered: true,
        remat: RematPolicy::Dots,
        costs: None,
    };
    assert_eq!(read("", &overrides).pipeline_options().unwrap().as_ref(), Some(&expected));
    // A policy of the pipeline's own; that of the layers around it stays.
    let own = |keys: &[&str]| read("", &[&overrides[..], keys].concat());
    let full = own(&["pipeline.remat=full"]);
    assert_eq!(full.remat, RematPolicy::Dots);
    let expected = PipelineOptions { remat: RematPolicy::Full, ..expected };
    assert_eq!(full.pipeline_options().unwrap().as_ref(), Some(&expected));
    let costs = |numbers: &str| own(&[&format!("pipeline.costs={numbers}")]).pipeline_options().unwrap().unwrap().costs;
    assert_eq!(costs("[1, 2.5, 1]"), Some(Costs::even(1.0, 2.5, 1.0)));
    assert!(
        matches!(costs(&format!("[{}]", ["1, 2, 1"; 8].join(", "))), Some(Costs::PerVirtualStage(each)) if each.len() == 8)
    );
    let saved = own(&["pipeline.remat=save", "pipeline.remat.names=[\"attention_mixed\"]"]);
    let expected = PipelineOptions { remat: RematPolicy::Save(vec![Name::new("attention_mixed")]), ..expected };
    assert_eq!(saved.pipeline_options().unwrap(), Some(expected));
    // A config that was changed since it was read is checked again.
    let mut changed = read("", &overrides);
    changed.pipeline.as_mut().unwrap().microbatches = 4;
    assert_snapshot!(changed.pipeline_options().unwrap_err(), @"pipeline.microbatches is 4: a microbatch comes round after 8 iterations (stages * delay), but the first stage needs it after the 4 microbatches of a repeat: use at least 8 microbatches, or one repeat");
}

#[test]
fn a_topology_is_not_run_on() {
    let error = read("", &["target.topology=v5p:8x8x8"]).check_runnable().unwrap_err();
    assert_snapshot!(error, @r#"target.topology is "v5p:8x8x8": a topology is compiled for, not run on; use `meshloom compile`, or target.topology = """#);
}

#[test]
fn mesh_must_fit_the_topology() {
    let config = read("", &["target.topology=v5p:8x8x8"]);
    assert_snapshot!(config.on_devices(512).unwrap_err(), @r#"mesh.axes is "data=2,fsdp=4": mesh "data=2,fsdp=4" has 8 devices, but there are 512; change a size, or give one axis -1 to fill up (v5p:8x8x8 has 512 devices; --set mesh.axes=data=-1 takes all)"#);
    let fitting = read("", &["target.topology=v5p:8x8x8", "mesh.axes=data=8,fsdp=-1", "train.batch=512"])
        .on_devices(512)
        .unwrap();
    assert_eq!(fitting.mesh().unwrap().to_string(), "data=8,fsdp=64");
}

#[test]
fn missing_file() {
    let error = RunConfig::load("no/such/run.toml", &[]).unwrap_err();
    assert_snapshot!(error, @r#"cannot read the config "no/such/run.toml": No such file or directory (os error 2); give the path of a TOML file"#);
}

/// The rules of a config split what they say.
#[test]
fn rule_sets() {
    let config = read("[rules.optimizer]\nlist = [[\"embed\", [\"data\", \"fsdp\"]]]", &[]);
    let (mesh, rules) = (config.mesh().unwrap(), config.rule_sets().unwrap());
    let spec = |rules: &meshloom::sharding::Rules| {
        let spec = rules.resolve(&mesh, "w", &[Some("embed"), Some("mlp")], &[256, 768], &mut Vec::new()).unwrap();
        spec.display(&mesh).to_string()
    };
    let specs = [spec(&rules.params), spec(&rules.compute), spec(&rules.optimizer)];
    assert_eq!(specs, ["[fsdp, _]", "[fsdp, _]", "[(data,fsdp), _]"]);

    // Overrides come first: those of a role before those of all, and all of them before the source.
    let text = "[rules]\noverride = [[\"mlp\", \"data\"]]\n[rules.compute]\noverride = [[\"embed\"]]\n\
                [rules.params]\nlist = []\n[rules.optimizer]\noverride = [[\"mlp\", \"fsdp\"], [\"embed\"]]\n";
    let config = read(text, &[]);
    let rules = config.rule_sets().unwrap();
    let specs = [spec(&rules.params), spec(&rules.compute), spec(&rules.optimizer)];
    assert_eq!(specs, ["[_, data]", "[_, data]", "[_, fsdp]"]);
    assert_eq!(read(&config.to_toml(), &[]), config);
}

/// The constants of optimizer, schedule and model are those of the keys.
#[test]
fn constants_are_keys() {
    let settings = [
        "model.rope_theta=5e5",
        "model.norm_epsilon=1e-6",
        "train.z_loss=1e-4",
        "model.seq=32",
        "model.dropout=0.125",
        "model.attention_dropout=0.25",
        "train.batch=48",
        "train.steps=90",
        "train.seed=5",
        "train.microbatches=3",
        "train.learning_rate=0.5",
        "train.warmup=7",
        "train.choice_bias_rate=0.002",
        "train.master_copies=false",
        "train.clip_norm=2.5",
        "train.schedule=wsd",
        "train.schedule.decay_steps=30",
        "train.schedule.floor=0.0625",
        "train.optimizer=muon",
        "train.optimizer.beta1=0.8",
        "train.optimizer.beta2=0.9",
        "train.optimizer.epsilon=1e-10",
        "train.optimizer.momentum=0.9",
        "train.optimizer.rms=0.3",
        "train.weight_decay=0.2",
        r#"train.no_decay=["embedding","*.wo"]"#,
    ];
    let step = read("", &settings).train_step().unwrap();
    let architecture = &step.model.architecture;
    let layer = &architecture.stack.cycle[0];
    let epsilons = [layer.norm.epsilon, architecture.final_norm.epsilon];
    assert_eq!((layer.rope().theta, epsilons, step.model.z_loss), (5e5, [1e-6; 2], 1e-4));
    let no_decay = vec!["embedding".to_owned(), "*.wo".to_owned()];
    let adamw = AdamW { beta1: 0.8, beta2: 0.9, epsilon: 1e-10, weight_decay: 0.2, no_decay };
    let expected = TrainStep {
        model: step.model.clone(),
        optimizer: Optimizer::Muon(Muon { momentum: 0.9, rms: 0.3, adamw }),
        schedule: LearningRate { peak: 0.5, warmup: 7, steps: 90, floor: 0.0625, decay: Decay::Last(30) },
        clip_norm: 2.5,
        batch: 48,
        seq: 32,
        microbatches: 3,
        dropout: DropoutConfig { rate: 0.125, attention_rate: 0.25, seed: 5 },
        master_copies: false,
        choice_bias_rate: 0.002,
    };
    assert_eq!(step, expected);
    read("", &settings).resolve().unwrap();
    let error = read("", &[r#"train.no_decay=["embedding","layers.w?"]"#]).resolve().unwrap_err().to_string();
    assert!(error.contains(r#": train.no_decay is "layers.w?": no parameter has a path like this"#), "{error}");
    let near = |pattern: &str| {
        let error = read(&format!("[train]\nno_decay = [{pattern:?}]\n"), &[]).resolve().map(drop).unwrap_err();
        error.to_string()
    };
    assert_snapshot!(near("*nrm*"), @r#"run.toml:2:12: train.no_decay is "*nrm*": no parameter has a path like this (did you mean "*norm*"?)"#);
    assert_snapshot!(near("embeding"), @r#"run.toml:2:12: train.no_decay is "embeding": no parameter has a path like this (did you mean "embedding"?)"#);
    assert_snapshot!(near("zzz*"), @r#"run.toml:2:12: train.no_decay is "zzz*": no parameter has a path like this"#);
}
