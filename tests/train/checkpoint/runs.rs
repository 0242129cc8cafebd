//! Training runs that stop and go on.

use std::collections::BTreeMap;
use std::path::Path;

use meshloom::trace::Tree;
use meshloom_train::Trainer;
use meshloom_train::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Fallback, Start, find};
use meshloom_train::config::RunConfig;

use support::cases::cases;
use support::configs::{self, BOOK, CIRCULAR, DROPOUT, MIXED, NARROW, ON_TOKENS, ONE_DEVICE, SHORT_RUN, TOKENIZER};
use support::eight_devices::{client, relative_error};
use support::text_files::TextFiles;

const FOUR: &[&str] = &["mesh.axes=\"fsdp=2,tensor=2\"", "target.devices=4"];
const STAGES: &[&str] = &["mesh.axes=\"stage=4,fsdp=2\"", "pipeline.repeats=1"];
const DILOCO: &[&str] = &["mesh.axes=\"diloco=2,fsdp=4\"", "diloco.sync_period=3", "diloco.replicas=2"];
const STREAMING: &[&str] = &[
    "mesh.axes=\"diloco=2,fsdp=4\"",
    "diloco.sync_period=3",
    "diloco.replicas=2",
    "diloco.streaming=true",
    "diloco.fragments=3",
    "diloco.overlap_steps=1",
    "diloco.overlap_alpha=0.5",
];

fn config(overrides: &[&[&str]]) -> RunConfig {
    configs::config(&[&[SHORT_RUN], overrides].concat())
}

fn trainer(config: &RunConfig) -> Trainer {
    Trainer::new(config, &client()).expect("a trainer")
}

fn resume(config: &RunConfig, folder: &Path) -> Trainer {
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    Trainer::resume(config, &client(), &checkpoint).unwrap_or_else(|error| panic!("{:?}: {error}", config.mesh))
}

/// Saves the state of a trainer to a new directory; returns the checkpoint's folder.
fn save(trainer: &Trainer, directory: &Path) -> std::path::PathBuf {
    let mut checkpointer = Checkpointer::new(&super::state::config(directory, 0), Start::Fresh).expect("a directory");
    trainer.save_checkpoint(&mut checkpointer).expect("saved");
    checkpointer.finish().expect("written");
    find(directory, Fallback::Refuse).expect("it is there").checkpoint.folder().to_owned()
}

/// The bits of the losses and gradient norms of the next steps.
fn numbers(trainer: &mut Trainer, steps: usize) -> Vec<[u64; 2]> {
    let each = (0..steps).map(|_| trainer.step().map(|metrics| [metrics.loss.to_bits(), metrics.grad_norm.to_bits()]));
    each.collect::<Result<_, _>>().expect("steps")
}

/// The state's values as they are on the devices.
fn state(trainer: &Trainer) -> BTreeMap<String, Vec<u8>> {
    let state = trainer.state();
    let value = |array: meshloom::pjrt::Array| array.get().expect("a value").bytes().to_vec();
    state.paths().into_iter().zip(state.leaves().into_iter().map(value)).collect()
}

/// The state with all layers of a parameter together.
fn together(trainer: &Trainer) -> BTreeMap<String, Vec<u8>> {
    let mut all: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (path, bytes) in state(trainer) {
        let parts = path.split('.').filter(|part| part.parse::<usize>().is_err());
        all.entry(parts.collect::<Vec<_>>().join(".")).or_default().extend(bytes);
    }
    all
}

/// A run that stops after `before` steps and goes on is the run that did not stop: every loss, every norm, all of the
/// state.
fn check_resume(overrides: &[&[&str]], before: usize, after: usize) {
    let config = config(overrides);
    let mut whole = trainer(&config);
    numbers(&mut whole, before);
    let directory = tempfile::tempdir().expect("a folder");
    let (folder, saved) = (save(&whole, directory.path()), state(&whole));
    let expected = numbers(&mut whole, after);
    let mut resumed = resume(&config, &folder);
    assert_eq!(resumed.steps_done(), before as u64);
    assert!(state(&resumed) == saved, "{overrides:?}: the state is another");
    assert_eq!(resumed.warnings(), whole.warnings());
    assert_eq!(numbers(&mut resumed, after), expected, "{overrides:?}");
    assert!(state(&resumed) == state(&whole), "{overrides:?}: the last state is another");
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    check_resume(&[MIXED, DROPOUT], 3, 4);
}

/// Saving is nothing that a run notices.
#[test]
fn a_run_that_saves_has_the_same_bits() {
    let config = config(&[MIXED, DROPOUT]);
    let expected = numbers(&mut trainer(&config), 4);
    let directory = tempfile::tempdir().expect("a folder");
    let checkpoints = super::state::config(directory.path(), 2);
    let mut checkpointer = Checkpointer::new(&checkpoints, Start::Fresh).expect("a directory");
    let mut trainer = trainer(&config);
    let saving = (0..4).flat_map(|_| {
        let numbers = numbers(&mut trainer, 1);
        trainer.save_checkpoint(&mut checkpointer).expect("saved");
        numbers
    });
    assert_eq!(saving.collect::<Vec<_>>(), expected);
}

#[test]
fn in_bf16_as_well() {
    for narrow in cases("train resumes in bf16", 0, [["model.param_dtype=bf16", "model.compute_dtype=bf16"]]) {
        check_resume(&[MIXED, &narrow], 2, 2);
    }
}

#[test]
fn a_resumed_pipeline_has_the_same_bits() {
    check_resume(&[CIRCULAR, DROPOUT], 2, 2);
}

/// This test is in the full tier alone; replicas that stream, below, are in the small tier.
#[test]
fn resumed_replicas_have_the_same_bits() {
    for replicas in cases("train resumes of replicas", 0, [DILOCO]) {
        // Before a sync, and between two.
        check_resume(&[replicas], 2, 5);
    }
}

#[test]
fn a_fragment_under_way_is_part_of_the_state() {
    // Fragments are sent after each step and merged one step later: one is always under way.
    check_resume(&[STREAMING], 4, 5);
}

/// From mesh to mesh, from form to form, and back: the same state all the way, and the same numbers as far as the order
/// of additions allows.
#[test]
fn any_mesh_goes_on_from_any() {
    let directory = tempfile::tempdir().expect("a folder");
    let first = config(&[MIXED, DROPOUT]);
    let mut trainer = trainer(&first);
    numbers(&mut trainer, 3);
    let expected = together(&trainer);
    let mut folder = save(&trainer, &directory.path().join("0"));
    let next = f64::from_bits(numbers(&mut trainer, 1)[0][0]);
    // The last one goes on to the first one's mesh.
    let forms: [&[&str]; 6] = [
        CIRCULAR,
        FOUR,
        STAGES,
        ONE_DEVICE,
        &["mesh.axes=\"fsdp=8\"", "model.scan_layers=false"],
        &["mesh.axes=\"tensor=4\"", "target.devices=4", "train.microbatches=2", "rules.strict=false"],
    ];
    for (number, form) in cases("train resumes on meshes", 2, forms).into_iter().chain([MIXED]).enumerate() {
        let config = config(&[form, DROPOUT]);
        let mut resumed = resume(&config, &folder);
        assert!(together(&resumed) == expected, "{form:?}: the state is another");
        assert!(!resumed.warnings().iter().any(|text| text.contains("checkpoint")), "{:?}", resumed.warnings());
        folder = save(&resumed, &directory.path().join((number + 1).to_string()));
        let loss = f64::from_bits(numbers(&mut resumed, 1)[0][0]);
        let error = relative_error(&[loss], &[next]);
        assert!(error <= 1e-5, "{form:?}: the next loss differs by {error:.1e}");
    }
}

/// Dimensions that the mesh does not divide are padded on the devices, and not in the checkpoint.
#[test]
fn padding_is_not_saved() {
    let uneven: &[&str] = &["rules.uneven=true", "model.mlp=60", "model.embed=36"];
    let directory = tempfile::tempdir().expect("a folder");
    let fsdp: &[&str] = &["mesh.axes=\"fsdp=8\""];
    let mut trainer = trainer(&config(&[uneven, fsdp]));
    numbers(&mut trainer, 2);
    let is_padded = |array: meshloom::pjrt::Array| array.layout().dims() != array.ty().dims.as_slice();
    assert!(trainer.state().leaves().into_iter().any(is_padded));
    let folder = save(&trainer, &directory.path().join("0"));
    let declared = config(&[uneven, fsdp]).resolve().expect("a run").state();
    let saved = Checkpoint::open(&folder).expect("a checkpoint").load_on_host(&declared, "").expect("values");
    let saved = saved.leaves().into_iter().map(|literal| literal.bytes().to_vec());
    assert!(declared.paths().into_iter().zip(saved).collect::<BTreeMap<_, _>>() == state(&trainer));
    for one in cases("train padded resumes on one device", 0, [ONE_DEVICE]) {
        let on_one = resume(&config(&[uneven, one]), &folder);
        assert!(state(&on_one) == state(&trainer));
        save(&on_one, &directory.path().join("1"));
        let mut back = resume(&config(&[uneven, fsdp]), &folder);
        assert!(state(&back) == state(&trainer));
        numbers(&mut back, 1);
    }
    let mut back = resume(&config(&[uneven, fsdp]), &folder);
    assert!(state(&back) == state(&trainer));
    assert_eq!(numbers(&mut back, 2), numbers(&mut trainer, 2));
}

#[test]
fn other_runs_are_refused_or_warned_of() {
    let directory = tempfile::tempdir().expect("a folder");
    let trainer = trainer(&config(&[DROPOUT, ONE_DEVICE]));
    let folder = save(&trainer, directory.path());
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    assert_eq!(checkpoint.about().config.text(), config(&[DROPOUT, ONE_DEVICE]).to_toml());
    let error = |overrides: &[&str]| match Trainer::resume(
        &config(&[DROPOUT, ONE_DEVICE, overrides]),
        &client(),
        &checkpoint,
    ) {
        Err(meshloom_train::Error::Checkpoint(error)) => *error,
        Err(error) => panic!("{overrides:?}: {error}"),
        Ok(_) => panic!("{overrides:?} is taken"),
    };
    let wider = error(&["model.mlp=128"]);
    let text = "params.layers.mlp.gate is f32[4,32,64] in ";
    assert!(
        wider.to_string().starts_with(text) && wider.to_string().contains("but f32[4,32,128] in the run"),
        "{wider}"
    );
    assert!(matches!(error(&["model.vocab=320"]), CheckpointError::Type { path, .. } if path == "params.embedding"));
    assert!(matches!(error(&["model.layers=2"]), CheckpointError::Type { .. }));
    assert!(matches!(error(&["model.param_dtype=bf16"]), CheckpointError::Type { .. }));
    let tied = error(&["model.tied_embeddings=true"]).to_string();
    assert!(tied.contains("optimizer.first.head, optimizer.second.head and params.head that the run lacks"), "{tied}");
    let muon = error(&["train.optimizer=muon"]).to_string();
    assert!(muon.contains("has no optimizer.momentum.layers.attention.wq"), "{muon}");
    // Parameters alone go into any run of the model.
    let mut others = self::trainer(&config(&[STREAMING, &["train.seed=3"]]));
    others.load_parameters_of(&checkpoint).expect("the same model");
    let (params, own) = (state(&others), state(&trainer));
    for (path, bytes) in own.iter().filter_map(|(path, bytes)| Some((path.strip_prefix("params.")?, bytes))) {
        assert!(params[&format!("outer.params.{path}")] == *bytes, "{path}");
        assert!(params[&format!("inner.params.{path}")] == bytes.repeat(2), "{path}");
    }
    let of_replicas = Checkpoint::open(save(&others, &directory.path().join("replicas"))).expect("a checkpoint");
    let mut single = self::trainer(&config(&[DROPOUT, ONE_DEVICE, &["train.seed=1"]]));
    single.load_parameters_of(&of_replicas).expect("the same model");
    let is_param = |(path, _): &(&String, &Vec<u8>)| path.starts_with("params.");
    assert!(state(&single).iter().filter(is_param).eq(own.iter().filter(is_param)));

    let replicas = error(&["mesh.axes=\"diloco=2\"", "target.devices=2", "diloco.replicas=2"]).to_string();
    assert!(replicas.contains("has no inner.params.embedding"), "{replicas}");

    let text = format!("data.sources=[{:?}]", support::path("README.md"));
    // Another schedule or form is another program.
    let others = cases("train resumes of other programs", 0, ["train.steps=50", "train.microbatches=2"]);
    let changed = config(&[DROPOUT, ONE_DEVICE, &["train.seed=1", &text], &others]);
    let resumed = Trainer::resume(&changed, &client(), &checkpoint).expect("it goes on otherwise");
    let warnings: Vec<&str> = resumed.warnings().iter().filter_map(|text| text.split(" in the run").next()).collect();
    let sources = format!("data.sources is [{:?}], but was [{BOOK:?}]", support::path("README.md"));
    let mut expected = vec![&*sources, "train.seed is 1, but was 0"];
    expected.extend(others.contains(&"train.steps=50").then_some("train.steps is 50, but was 40"));
    assert_eq!(warnings, expected);
}

/// Other contents under the same names are other data, which no key of the config shows.
#[test]
fn changed_data_is_warned_of() {
    let tokenizer = std::fs::read(TOKENIZER).expect("a tokenizer");
    let files = TextFiles::new(&[
        ("a.txt", b"once upon a time"),
        ("b.txt", b"there was a text"),
        ("tokenizer.json", &tokenizer),
    ]);
    let sources = format!("data.sources={:?}", ["b.txt", "a.txt", "*.txt"].map(|name| files.path(name)));
    let tokenizer_key = format!("data.tokenizer={:?}", files.path("tokenizer.json"));
    let config = files.config(&[NARROW, ON_TOKENS, &[&sources, &tokenizer_key]]);
    let directory = tempfile::tempdir().expect("a folder");
    let folder = save(&trainer(&config), directory.path());
    let warnings = || {
        let resumed = resume(&config, &folder);
        let about_data = resumed.warnings().iter().filter(|text| text.starts_with("data."));
        about_data.map(|text| files.without_folder(text)).collect::<Vec<_>>()
    };
    assert_eq!(warnings(), Vec::<String>::new());
    // A file, what else the glob matches, and the tokenizer.
    files.write("a.txt", b"once upon another time");
    files.write("c.txt", b"and one more");
    files.write("tokenizer.json", &[&tokenizer[..], b"\n"].concat());
    let changed = |what: &str| {
        format!(
            "{what}, but what it names has changed since the run that wrote the checkpoint: this run continues with what \
             is there now"
        )
    };
    let names = [
        "data.sources has \"DIR/files/a.txt\"",
        "data.sources has \"DIR/files/*.txt\"",
        "data.tokenizer has \"DIR/files/tokenizer.json\"",
    ];
    assert_eq!(warnings(), names.map(changed));
    // Older versions wrote no digests.
    let path = folder.join("manifest.json");
    let mut manifest: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&std::fs::read(&path).expect("a manifest")).expect("JSON");
    assert_eq!(manifest.remove("data_digests").and_then(|digests| Some(digests.as_array()?.len())), Some(4));
    std::fs::write(&path, serde_json::to_vec(&manifest).expect("JSON")).expect("written");
    super::damage::seal(&folder);
    assert_eq!(warnings(), Vec::<String>::new());
}
