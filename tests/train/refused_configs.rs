//! Configs that are refused, each with its message.

use super::run_config::read_or_refuse;

/// The text of a file, overrides, and the message that refuses them; behind it may come what `..` stands for.
type Case = (&'static str, &'static [&'static str], &'static str);

/// Every config that cannot be is refused with the place, the key, what was found and what is expected.
#[test]
fn configs_are_refused_with_a_reason() {
    let mut wrong = Vec::new();
    for cases in [OVERRIDES, UNKNOWN_KEYS, WRONG_TYPES, KINDS, IMPOSSIBLE, PIPELINES_AND_REPLICAS] {
        for &(text, overrides, expected) in cases {
            let found = read_or_refuse(text, overrides).map_or_else(|message| message, |_| "taken".to_owned());
            let is_met = expected.strip_suffix("..").map_or(found == expected, |start| found.starts_with(start));
            if !is_met {
                wrong.push(format!("{text:?} {overrides:?}\n  found    {found}\n  expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Overrides that are none, or whose keys or values are wrong.
const OVERRIDES: &[Case] = &[
    (
        "",
        &["train.steps"],
        r#""train.steps" is not an override: it has no "="; write section.key=value, as in train.steps=100"#,
    ),
    (
        "",
        &["steps=3"],
        r#""steps=3" is not an override: its key has no section (of a section with kinds, name the key: remat.policy=save); write section.key=value, as in train.steps=100"#,
    ),
    (
        "",
        &["train.=3"],
        r#""train.=3" is not an override: a part of its key is empty; write section.key=value, as in train.steps=100"#,
    ),
    ("", &["train.stepps=3"], r#"--set train.stepps=3: unknown key train.stepps (did you mean "steps"?); allowed: .."#),
    (
        "",
        &["train.steps=many"],
        r#"--set train.steps=many: train.steps is "many" (a string), but must be an integer of at least 1"#,
    ),
    (
        "",
        &["train.steps="],
        r#"--set train.steps=: train.steps is "" (a string), but must be an integer of at least 1"#,
    ),
    (
        "",
        &["train.steps.more=3"],
        "--set train.steps.more=3: train.steps is a table, but must be an integer of at least 1",
    ),
    (
        "",
        &["remat.names=[\"a\""],
        r#""remat.names=[\"a\"" is not an override: unclosed array, expected `]`; write section.key=value, as in train.steps=100"#,
    ),
];

/// Keys that do not exist, with the nearest one that does.
const UNKNOWN_KEYS: &[Case] = &[
    (
        "[model]\n  hed_dim = 4\n",
        &[],
        r#"run.toml:2:3: unknown key model.hed_dim (did you mean "head_dim"?); allowed: .."#,
    ),
    ("[modle]\n", &[], r#"run.toml:1:2: unknown key modle (did you mean "model"?); allowed: .."#),
    ("layers = 4\n", &[], r#"run.toml:1:1: unknown key layers (did you mean "model.layers"?); allowed: .."#),
    (
        "[train]\nfurther_token_weight = 0.3\n",
        &[],
        "run.toml:2:24: train.further_token_weight is 0.3: the model has no layers that predict further tokens; published ones do whose config.json has num_nextn_predict_layers",
    ),
    (
        "[train]\nlayers = 4\n",
        &[],
        r#"run.toml:2:1: unknown key train.layers (did you mean "model.layers"?); allowed: .."#,
    ),
    ("[mesh]\nzzz = 4\n", &[], "run.toml:2:1: unknown key mesh.zzz; allowed: .."),
    (
        "[rules.param]\npreset = \"decoder\"\n",
        &[],
        r#"run.toml:1:8: unknown key rules.param (did you mean "params"?); allowed: .."#,
    ),
    (
        "[rules.params]\npresets = \"decoder\"\n",
        &[],
        r#"run.toml:2:1: unknown key rules.params.presets (did you mean "preset"?); allowed: .."#,
    ),
    (
        "model = { layers = 2, lyers = 2 }\n",
        &[],
        r#"run.toml:1:23: unknown key model.lyers (did you mean "layers"?); allowed: .."#,
    ),
    (
        "[data]\ntext = \"a.txt\"\n",
        &[],
        r#"run.toml:2:1: unknown key data.text (it is data.sources now, a list: data.sources = ["file.txt"]); allowed: .."#,
    ),
];

/// Values of another type than their keys.
const WRONG_TYPES: &[Case] = &[
    (
        "[data]\nsources = \"a.txt\"",
        &[],
        r#"run.toml:2:11: data.sources is "a.txt" (a string), but must be an array of strings"#,
    ),
    (
        "[data]\nweights = [1, \"2\"]",
        &[],
        r#"run.toml:2:11: data.weights is [1, "2"] (an array), but must be an array of finite numbers"#,
    ),
    (
        "[data]\ndocuments = \"rows\"",
        &[],
        r#"run.toml:2:13: data.documents is "rows": it must be one of "packed", "one-per-row""#,
    ),
    ("model = 3", &[], "run.toml:1:9: model is 3 (an integer), but must be a section, [model]"),
    (
        "[model]\nlayers = \"4\"",
        &[],
        r#"run.toml:2:10: model.layers is "4" (a string), but must be an integer from 1 to 1000"#,
    ),
    (
        "[model]\nlayers = 4.0",
        &[],
        "run.toml:2:10: model.layers is 4.0 (a float), but must be an integer from 1 to 1000",
    ),
    ("[model]\nlayers = -4", &[], "run.toml:2:10: model.layers is -4: it must be an integer from 1 to 1000"),
    ("[model.layers]\n", &[], "run.toml:1:1: model.layers is a table, but must be an integer from 1 to 1000"),
    ("[model]\nscan_layers = 1", &[], "run.toml:2:15: model.scan_layers is 1 (an integer), but must be true or false"),
    (
        "[model]\nparam_dtype = \"s32\"",
        &[],
        r#"run.toml:2:15: model.param_dtype is "s32": it must be one of "bf16", "f16", "f32", "f64""#,
    ),
    (
        "[model]\nfamily = \"lama\"",
        &[],
        r#"run.toml:2:10: model.family is "lama": it must be one of "llama", "mixtral", "deepseek" (did you mean "llama"?)"#,
    ),
    (
        "[train]\nlearning_rate = nan",
        &[],
        "run.toml:2:17: train.learning_rate is nan: it must be a number of at least 0",
    ),
    ("[train]\nseed = 99999999999999999999", &[], "run.toml:2:8: this number is too large: integers have 64 bits"),
    (
        "[rules]\nlist = [[\"embed\", 3]]",
        &[],
        r#"run.toml:2:8: rules.list is [["embed", 3]]: it must be an array of rules, each a logical name and its mesh axes, as in [["embed", ["fsdp"]], ["norm", []]]; rule 0 is ["embed", 3]"#,
    ),
    (
        "[rules]\nlist = \"embed\"",
        &[],
        r#"run.toml:2:8: rules.list is "embed" (a string), but must be an array of rules, each a logical name and its mesh axes, as in [["embed", ["fsdp"]], ["norm", []]]"#,
    ),
    (
        "[rules]\nparams = \"decoder\"",
        &[],
        r#"run.toml:2:10: rules.params is "decoder" (a string), but must be a section, [rules.params]"#,
    ),
    (
        "[remat]\npolicy = \"save\"\nnames = [\"a\", 1]",
        &[],
        r#"run.toml:3:9: remat.names is ["a", 1] (an array), but must be an array of strings"#,
    ),
    (
        "[target]\ncompiler_options = [\"fast\"]",
        &[],
        r#"run.toml:2:20: target.compiler_options is "fast": it must be name=value, as in xla_cpu_enable_fast_math=true"#,
    ),
    ("[model\nlayers = 4", &[], "run.toml:1:7: this is not TOML: unclosed table, expected `]`"),
    ("[model]\nlayers = 4\nlayers = 5", &[], "run.toml:3:1: this is not TOML: duplicate key"),
];

/// Values that are not possible, alone or beside others.
const IMPOSSIBLE: &[Case] = &[
    ("", &["model.layers=0"], "--set model.layers=0: model.layers is 0: it must be an integer from 1 to 1000"),
    ("", &["model.embed=0"], "--set model.embed=0: model.embed is 0: it must be an integer from 1 to 2147483647"),
    (
        "",
        &["model.kv_heads=3"],
        "--set model.kv_heads=3: model.heads is 8: it must be a multiple of model.kv_heads, which is 3",
    ),
    (
        "",
        &["model.head_dim=33"],
        "--set model.head_dim=33: model.head_dim is 33: it must be an even integer from 2 to 65536",
    ),
    (
        "",
        &["model.vocab=128"],
        r#"--set model.vocab=128: model.vocab is 128: it must be at least 256 with data.tokenizer = "bytes""#,
    ),
    (
        "",
        &["model.dropout=1.0"],
        "--set model.dropout=1.0: model.dropout is 1.0: it must be a number of at least 0 and less than 1",
    ),
    (
        "",
        &["data.sources=[]"],
        "--set data.sources=[]: data.sources is []: it must have at least one file, folder or glob",
    ),
    (
        "",
        &["data.sources=[\"a\", \"\"]"],
        r#"--set data.sources=["a", ""]: data.sources is ["a", ""]: none may be empty; give files, folders or globs"#,
    ),
    ("", &["data.field="], r#"--set data.field=: data.field is "": it must not be empty"#),
    (
        "",
        &["data.shuffle_window=0"],
        "--set data.shuffle_window=0: data.shuffle_window is 0: it must be an integer of at least 1",
    ),
    (
        "",
        &["data.weights=[1, 2]"],
        "--set data.weights=[1, 2]: data.weights is [1.0, 2.0]: there must be as many as in data.sources, which has 1",
    ),
    (
        "",
        &["data.weights=[0]"],
        "--set data.weights=[0]: data.weights is [0.0]: each must be more than 0, at most 1e9 and have at most 6 decimals, unlike 0",
    ),
    (
        "",
        &["data.sources=[\"a\", \"b\"]", "data.weights=[0.333333, 0.666668]"],
        "--set data.weights=[0.333333, 0.666668]: data.weights is [0.333333, 0.666668]: in units of their last digit they add up to 1000001, but at most 1000000 is possible; give them fewer digits",
    ),
    (
        "",
        &["validation.batches=0"],
        "--set validation.batches=0: validation.batches is 0: it must be an integer of at least 1",
    ),
    (
        "",
        &["train.microbatches=3"],
        "--set train.microbatches=3: train.batch is 16: it must be a multiple of train.microbatches, which is 3",
    ),
    (
        "",
        &["train.learning_rate=-1"],
        "--set train.learning_rate=-1: train.learning_rate is -1.0: it must be a number of at least 0",
    ),
    ("", &["train.clip_norm=0"], "--set train.clip_norm=0: train.clip_norm is 0.0: it must be a number greater than 0"),
    (
        "",
        &["train.optimizer.beta2=1"],
        "--set train.optimizer.beta2=1: train.optimizer.beta2 is 1.0: it must be a number of at least 0 and less than 1",
    ),
    (
        "",
        &["train.optimizer.epsilon=0"],
        "--set train.optimizer.epsilon=0: train.optimizer.epsilon is 0.0: it must be a number greater than 0",
    ),
    (
        "",
        &["train.schedule.floor=2"],
        "--set train.schedule.floor=2: train.schedule.floor is 2.0: it must be a number from 0 to 1",
    ),
    (
        "",
        &["model.loss_chunks=5"],
        "--set model.loss_chunks=5: model.loss_chunks is 5: it must divide model.seq, which is 256; or be 0, to be chosen",
    ),
    (
        "",
        &["mesh.axes=context=8", "model.loss_chunks=64"],
        r#"--set model.loss_chunks=64: model.loss_chunks is 64: it must divide 32, which are the positions of model.seq = 256 on each of 8 devices of the mesh "context=8"; or be 0, to be chosen"#,
    ),
    ("", &["train.z_loss=-1"], "--set train.z_loss=-1: train.z_loss is -1.0: it must be a number of at least 0"),
    (
        "",
        &["train.optimizer=lion"],
        r#"--set train.optimizer=lion: train.optimizer is "lion": it must be one of "adamw", "muon""#,
    ),
    (
        "",
        &["train.schedule=wsd", "train.schedule.decay_steps=190"],
        "--set train.schedule.decay_steps=190: train.schedule.decay_steps is 190: with train.warmup, which is 20, it must fit into train.steps, which is 200",
    ),
    (
        "",
        &["train.schedule.decay_steps=10"],
        r#"--set train.schedule.decay_steps=10: unknown key train.schedule.decay_steps (it is a key of kind "wsd", and the kind here is "cosine"); allowed: .."#,
    ),
    (
        "",
        &["model.rope_theta=0"],
        "--set model.rope_theta=0: model.rope_theta is 0.0: it must be a number greater than 0",
    ),
    (
        "",
        &["mesh.axes=data=3"],
        r#"--set mesh.axes=data=3: mesh.axes is "data=3": mesh "data=3" has 3 devices, but there are 8; change a size, or give one axis -1 to fill up (target.devices is 8)"#,
    ),
    (
        "",
        &["target.devices=1"],
        r#"--set target.devices=1: mesh.axes is "data=2,fsdp=4": mesh "data=2,fsdp=4" has 8 devices, but there are 1; change a size, or give one axis -1 to fill up (target.devices is 1)"#,
    ),
    (
        "",
        &["mesh.dcn=fdsp=2"],
        r#"--set mesh.dcn=fdsp=2: mesh.dcn is "fdsp=2": the mesh "data=2,fsdp=4" has no axis "fdsp" (did you mean "fsdp"?)"#,
    ),
    (
        "",
        &["mesh.dcn=fsdp=3"],
        r#"--set mesh.dcn=fsdp=3: mesh.dcn is "fsdp=3": dcn "fsdp=3": axis "fsdp" has size 4, which 3 does not divide; a part of an axis crosses slices"#,
    ),
    (
        "",
        &["rules.override=[[\"embed\", \"fdsp\"]]"],
        r#"--set rules.override=[["embed", "fdsp"]]: rules.override is a list of one rule: rule embed -> fdsp (rules.override[0]) names mesh axis "fdsp", which the mesh "data=2,fsdp=4" does not have (did you mean "fsdp"?); or use rules.strict = false to ignore "fdsp""#,
    ),
    (
        "",
        &["rules.compute.override=[[\"mlp\", [\"data\", \"data\"]]]"],
        r#"--set rules.compute.override=[["mlp", ["data", "data"]]]: rules.compute.override is a list of one rule: rule mlp -> (data,data) (rules.compute.override[0]) names mesh axis "data" twice; an axis can split a dimension once"#,
    ),
    (
        "",
        &["train.batch=12"],
        r#"--set train.batch=12: train.batch is 12: it must be a multiple of 8: rule activation_batch -> (replica,data,fsdp,expert) (preset decoder) splits it over the mesh "data=2,fsdp=4"; or allow it to be padded by rules.uneven = true"#,
    ),
    (
        "",
        &["mesh.axes=context=8", "model.seq=60"],
        r#"--set model.seq=60: model.seq is 60: it must be a multiple of 8: rule activation_length -> context (preset decoder) splits it over the mesh "context=8"; or allow it to be padded by rules.uneven = true"#,
    ),
    (
        "",
        &["rules.preset=encoder"],
        r#"--set rules.preset=encoder: rules.preset is "encoder": it must be one of "decoder", "decoder-all-reduce" (did you mean "decoder"?)"#,
    ),
    (
        "",
        &["rules.list=[[\"embed\", [\"fdsp\"]]]"],
        r#"--set rules.list=[["embed", ["fdsp"]]]: rules.list is a list of one rule: rule embed -> fdsp (rules.list[0]) names mesh axis "fdsp", which the mesh "data=2,fsdp=4" does not have (did you mean "fsdp"?); or use rules.strict = false to ignore "fdsp""#,
    ),
    (
        "",
        &["rules.params.list=[[\"embed\", [\"fsdp\", \"fsdp\"]]]"],
        r#"--set rules.params.list=[["embed", ["fsdp", "fsdp"]]]: rules.params.list is a list of one rule: rule embed -> (fsdp,fsdp) (rules.params.list[0]) names mesh axis "fsdp" twice; an axis can split a dimension once"#,
    ),
    (
        "",
        &["remat.policy=save"],
        "--set remat.policy=save: remat.names is []: it must have the names of the values to keep",
    ),
    (
        "",
        &["remat.names=[\"a\"]"],
        r#"--set remat.names=["a"]: unknown key remat.names (it is a key of policy "save" or "offload", and the policy here is "none"); allowed: .."#,
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.costs=[1, 2]"],
        r#"--set pipeline.costs=[1, 2]: pipeline.costs is [1.0, 2.0]: it must have three numbers, or three for each chunk of each stage"#,
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.costs=[1, 2, 1, 1, 2, 1, 1, 2, 1]"],
        "--set pipeline.costs=[1, 2, 1, 1, 2, 1, 1, 2, 1]: pipeline.costs is [1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0]: costs are given for 3 virtual stages, but there are 4",
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.remat=save"],
        "--set pipeline.remat=save: pipeline.remat.names is []: it must have the names of the values to keep",
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.remat=full", "pipeline.remat.names=[\"a\"]"],
        r#"--set pipeline.remat.names=["a"]: unknown key pipeline.remat.names (it is a key of policy "save" or "offload", and the policy here is "full"); allowed: .."#,
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.remat=some"],
        r#"--set pipeline.remat=some: pipeline.remat is "some": it must be one of "none", "full", "dots", "save", "offload""#,
    ),
    (
        "",
        &["train.batch=67108864", "model.seq=32"],
        "--set train.batch=67108864: train.batch is 67108864: times model.seq, which is 32, it must be at most 2147483647; lower one of them",
    ),
    (
        "",
        &["model.seq=999999999999"],
        "--set model.seq=999999999999: train.batch is 16: times model.seq, which is 999999999999, it must be at most 2147483647; lower one of them",
    ),
    (
        "",
        &["target.memory_fraction=1.5"],
        "--set target.memory_fraction=1.5: target.memory_fraction is 1.5: it must be a number from 0 to 1",
    ),
    (
        "",
        &["target.preallocate=true"],
        r#"--set target.preallocate=true: target.preallocate is true: expected no value: cpu has no such option, only cuda"#,
    ),
    (
        "",
        &["target.visible_devices=all"],
        r#"--set target.visible_devices=all: target.visible_devices is "all": it must be integers with commas between them, as in "0,1", or one integer"#,
    ),
    (
        "",
        &["target.visible_devices=-1"],
        r#"--set target.visible_devices=-1: target.visible_devices is -1: it must be integers with commas between them, as in "0,1", or one integer"#,
    ),
    (
        "",
        &["kernels.attention=cudnn"],
        r#"--set kernels.attention=cudnn: kernels.attention is "cudnn": it is for cuda, but the platform is cpu; "auto" takes what it has"#,
    ),
    (
        "",
        &["target.platform=tpu", "kernels.attention=cudnn"],
        r#"--set kernels.attention=cudnn: kernels.attention is "cudnn": it is for cuda, but the platform is tpu; "auto" takes what it has"#,
    ),
    (
        "",
        &["kernels.experts=mosaic"],
        r#"--set kernels.experts=mosaic: kernels.experts is "mosaic": it is for tpu, but the platform is cpu; "auto" takes what it has"#,
    ),
    (
        "",
        &["kernels.experts=ragged-dot"],
        r#"--set kernels.experts=ragged-dot: kernels.experts is "ragged-dot": it is for tpu, but the platform is cpu; "auto" takes what it has"#,
    ),
    (
        "",
        &["target.platform=gpu"],
        r#"--set target.platform=gpu: target.platform is "gpu": it must be one of "auto", "cpu", "cuda", "tpu""#,
    ),
    (
        "[model]\nheads = 6\n",
        &[],
        "run.toml:2:9: model.heads is 6: it must be a multiple of model.kv_heads, which is 4",
    ),
    (
        "[rules]\npreset = \"decoder\"\nlist = []\n",
        &[],
        "run.toml:3:8: rules.list is a list of 0 rules: rules.preset is given too; rules come from one of preset, file, list",
    ),
];

/// Pipelines and replicas that are not possible.
const PIPELINES_AND_REPLICAS: &[Case] = &[
    (
        "",
        &["mesh.axes=stage=2,fsdp=4"],
        r#"--set mesh.axes=stage=2,fsdp=4: mesh.axes is "stage=2,fsdp=4": an axis "stage" needs a section [pipeline]; add one, or give its devices to another axis"#,
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=3"],
        "--set pipeline.repeats=3: model.layers is 4: it must be stages * pipeline.repeats * pipeline.layers_per_stage, which is 2 * 3 * 1 = 6",
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.microbatches=3"],
        "--set pipeline.microbatches=3: pipeline.microbatches is 3: the number of microbatches, 3, is no multiple of the 2 stages, which several repeats need; use 2 or 4",
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.microbatches=6"],
        "--set pipeline.microbatches=6: pipeline.microbatches is 6: it must divide train.batch / train.microbatches, which is 16",
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.schedule=gpipe"],
        r#"--set pipeline.schedule=gpipe: pipeline.schedule is "gpipe": the schedule gpipe has one repeat, not 2: set repeats to 1, or use the schedule circular"#,
    ),
    (
        "",
        &["pipeline.repeats=1"],
        r#"--set pipeline.repeats=1: pipeline.repeats is 1: a pipeline needs a mesh axis "stage" of more than one device, or more than one repeat; give one of them, or drop the section [pipeline]"#,
    ),
    (
        "",
        &["mesh.axes=stage=4", "target.devices=4", "model.layers=8", "pipeline.delay_forwarding=true"],
        r#"run.toml: pipeline.microbatches is 4: a microbatch comes round after 8 iterations (stages * delay), but the first stage needs it after the 4 microbatches of a repeat: use at least 8 microbatches, or one repeat"#,
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.microbatches=1"],
        "--set pipeline.microbatches=1: pipeline.microbatches is 1: the number of microbatches, 1, is no multiple of the 2 stages, which several repeats need; use 2",
    ),
    (
        "",
        &[
            "mesh.axes=stage=2,fsdp=4",
            "pipeline.repeats=1",
            "pipeline.schedule=1f1b",
            "model.layers=2",
            "pipeline.repeats=2",
        ],
        r#"--set pipeline.schedule=1f1b: pipeline.schedule is "1f1b": the schedule 1f1b has one repeat, not 2: set repeats to 1, or use the schedule circular"#,
    ),
    (
        "",
        &[
            "mesh.axes=stage=2,fsdp=4",
            "pipeline.repeats=1",
            "pipeline.schedule=1f1b",
            "model.layers=2",
            "pipeline.weights=per-iteration",
        ],
        r#"--set pipeline.weights=per-iteration: pipeline.weights is "per-iteration": the schedule 1f1b does not go with weights gathered per iteration: use "gather-once" or "bsw", which are the same for one repeat"#,
    ),
    (
        "",
        &[
            "mesh.axes=stage=2,fsdp=4",
            "pipeline.repeats=1",
            "pipeline.schedule=1f1b",
            "model.layers=2",
            "pipeline.delay_forwarding=true",
        ],
        "--set pipeline.delay_forwarding=true: pipeline.delay_forwarding is true: the schedule 1f1b does not go with delayed forwarding: its transfers overlap with the other direction's compute anyway",
    ),
    (
        "",
        &[
            "mesh.axes=stage=2,fsdp=4",
            "pipeline.repeats=1",
            "pipeline.schedule=1f1b",
            "model.layers=2",
            "model.layers=3",
        ],
        "--set model.layers=3: model.layers is 3: it must be stages * pipeline.repeats * pipeline.layers_per_stage, which is 2 * 1 * 1 = 2; or give pipeline.layers = 2, and the other layers run around it",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4"],
        r#"--set mesh.axes=diloco=2,fsdp=4: mesh.axes is "diloco=2,fsdp=4": an axis "diloco" needs a section [diloco]: add it, or give its devices to another axis"#,
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=4"],
        r#"--set diloco.replicas=4: diloco.replicas is 4: it must be the size of the mesh axis "diloco", which is 2"#,
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.outer_momentum=1"],
        "--set diloco.outer_momentum=1: diloco.outer_momentum is 1.0: it must be a number of at least 0 and less than 1",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.streaming=true", "diloco.fragments=4"],
        "--set diloco.fragments=4: diloco.fragments is 4: fragments - 1 must divide model.layers: 4; or set diloco.uneven_fragments = true",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.streaming=true", "diloco.uneven_fragments=true", "diloco.fragments=6"],
        "--set diloco.fragments=6: diloco.fragments is 6: fragments - 1 must be at most model.layers: 4",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.transport=int4", "diloco.block=33"],
        "--set diloco.block=33: diloco.block is 33: it must be an even integer from 2 to 2147483647",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2", "train.microbatches=16"],
        "--set train.microbatches=16: train.microbatches is 16: it must divide the rows of a replica, train.batch / diloco.replicas, which are 8",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2", "train.batch=12"],
        r#"--set train.batch=12: train.batch is 12: it must be a multiple of 8 (4 for each of the 2 replicas): rule activation_batch -> (replica,data,fsdp,expert) (preset decoder) splits it over the mesh "diloco=2,fsdp=4"; or allow it to be padded by rules.uneven = true"#,
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.streaming=true", "diloco.overlap_steps=18"],
        "--set diloco.overlap_steps=18: diloco.overlap_steps is 18: a fragment comes in 18 steps after it is sent, but is sent again after 18: overlap fewer steps",
    ),
    (
        "",
        &["mesh.axes=diloco=2,fsdp=4", "diloco.streaming=true", "model.scan_layers=false"],
        "--set model.scan_layers=false: model.scan_layers is false: diloco.streaming needs it to be true",
    ),
];

/// Sections whose keys depend on their kind.
const KINDS: &[Case] = &[
    (
        "",
        &["model.family.experts_per_token=9"],
        r#"--set model.family.experts_per_token=9: unknown key model.family.experts_per_token (it is a key of kind "mixtral" or "deepseek", and the kind here is "llama"); allowed: kind"#,
    ),
    (
        "[train.optimizer]\nkind = \"adamw\"\nmomentum = 0.9",
        &[],
        r#"run.toml:3:1: unknown key train.optimizer.momentum (it is a key of kind "muon", and the kind here is "adamw"); allowed: kind, beta1, beta2, epsilon"#,
    ),
    (
        "",
        &["train.optimizer.kind=lion"],
        r#"--set train.optimizer.kind=lion: train.optimizer.kind is "lion": it must be one of "adamw", "muon""#,
    ),
    (
        "[train]\noptimizer = 3",
        &[],
        r#"run.toml:2:13: train.optimizer is 3 (an integer), but must be one of "adamw", "muon", or a section, [train.optimizer]"#,
    ),
    (
        "[train]\nmomentum = 0.9",
        &[],
        r#"run.toml:2:1: unknown key train.momentum (did you mean "train.optimizer.momentum"?); allowed: .."#,
    ),
    (
        "",
        &["train.optimizer=muon", "train.optimizer.momentm=0.9"],
        r#"--set train.optimizer.momentm=0.9: unknown key train.optimizer.momentm (did you mean "momentum"?); allowed: .."#,
    ),
    (
        "",
        &["train.optimizer.momentum=2", "train.optimizer=muon"],
        "--set train.optimizer.momentum=2: train.optimizer.momentum is 2.0: it must be a number of at least 0 and less than 1",
    ),
    (
        "",
        &["mesh.axes=stage=2,fsdp=4", "pipeline.remat=3"],
        r#"--set pipeline.remat=3: pipeline.remat is 3 (an integer), but must be one of "none", "full", "dots", "save", "offload", or a section, [pipeline.remat]"#,
    ),
];
