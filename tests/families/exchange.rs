//! Published checkpoints in and out: bit for bit, on any mesh, and nothing left out in silence.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use meshloom::ir::{DType, Literal};
use meshloom::pjrt::Array;
use meshloom::trace::Tree;
use meshloom_models::families::Published;
use meshloom_models::published::{ExportOptions, Exported, PublishedWeights};
use meshloom_models::weights::WeightsError;
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::generate::LogitsProgram;
use meshloom_train::published::{StoredModel, export, import};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use support::cases::cases;
use support::eight_devices::{client, relative_error};
use support::text_files::TextFiles;
use tempfile::TempDir;

use super::golden::{CASES, Golden};
use super::runs::{ONE_DEVICE, RUN, RUN_CASES};

/// Tensors as they are stored.
type Stored = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub fn folder(case: &str) -> PathBuf {
    support::path(format!("tests/oracle/families/{case}"))
}

/// All tensors of a folder, whatever the number of files.
fn stored(folder: &Path) -> Stored {
    let mut tensors = Stored::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("model"))
            && path.extension().is_some_and(|end| end == "safetensors")
        {
            let bytes = fs::read(&path).expect("a file");
            for (name, view) in SafeTensors::deserialize(&bytes).expect("a safetensors file").tensors() {
                tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            }
        }
    }
    tensors
}

/// A folder of a published model with these tensors, and the config of a case.
fn published(case: &str, tensors: &Stored) -> TempDir {
    let made = tempfile::tempdir().expect("a folder");
    fs::copy(folder(case).join("config.json"), made.path().join("config.json")).expect("copied");
    write(made.path(), tensors);
    made
}

fn write(folder: &Path, tensors: &Stored) {
    let view = |dtype: Dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).expect("a tensor");
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| (name, view(*dtype, shape, bytes.as_slice())));
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("written");
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entry = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (!name.contains(".safetensors")).then(|| (name, fs::read(path).expect("a file")))
    };
    fs::read_dir(folder).expect("a folder").filter_map(|found| entry(found.expect("an entry").path())).collect()
}

fn open(folder: &Path) -> StoredModel {
    StoredModel::open(folder, &[]).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// Every tensor bit for bit, every other file byte for byte, in one file and in several.
#[test]
fn what_is_imported_is_exported_again() {
    for case in CASES {
        let made = tempfile::tempdir().expect("a folder");
        let (checkpoint, exported) = (made.path().join("checkpoint"), made.path().join("exported"));
        let source = published(case, &stored(&folder(case)));
        fs::write(source.path().join("tokenizer.json"), "{}").expect("a file");
        fs::write(source.path().join("generation_config.json"), "{\"eos_token_id\": [1]}\n").expect("a file");
        let imported = import(source.path(), &checkpoint, &[]).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(imported.skipped, Vec::<String>::new(), "{case}");
        let original = stored(source.path());
        let files_of_source = files(source.path());
        // The checkpoint has all that is needed.
        drop(source);
        let max_shard_bytes = if case == "llama3" { 20_000 } else { 1 << 30 };
        let options = ExportOptions { max_shard_bytes, ..ExportOptions::default() };
        let model = open(&checkpoint);
        let Exported { tensors, .. } = export(&model, &exported, options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(tensors, original.len(), "{case}");
        assert!(stored(&exported) == original, "{case}: other tensors");
        assert!(files(&exported) == files_of_source, "{case}: other files");
        let has_index = exported.join("model.safetensors.index.json").exists();
        assert_eq!(has_index, case == "llama3", "{case}");
        let elements: usize = original.values().map(|(_, shape, _)| shape.iter().product::<usize>()).sum();
        assert_eq!(imported.parameters, elements, "{case}");
    }
}

/// One word for each token, so that any small vocabulary has text.
fn tokenizer(vocab: usize) -> String {
    let word = |token: usize| format!("\"{}\": {token}", char::from(b'0' + token as u8).escape_default());
    let words: Vec<String> = (0..vocab.min(40)).map(word).collect();
    format!(
        r#"{{"version": "1.0", "added_tokens": [], "model": {{"type": "WordLevel", "unk_token": "0", "vocab": {{{}}}}},
            "pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": "."}}, "behavior": "Isolated", "invert": false}}}}"#,
        words.join(", ")
    )
}

/// A run that starts from a folder.
pub fn run_config(init: &Path, files: &TextFiles, settings: &[&str]) -> RunConfig {
    let text = |key: &str, path: &Path| format!("{key}={:?}", path.display().to_string());
    let mut overrides = vec![
        text("train.init", init),
        format!("data.sources=[{:?}]", files.path("text.txt").display().to_string()),
        text("data.cache", &files.cache()),
        text("data.tokenizer", &files.path("tokenizer.json")),
        "model.seq=16".to_owned(),
        "train.batch=8".to_owned(),
        "target.compile_cache=".to_owned(),
        support::configs::UNOPTIMIZED.to_owned(),
    ];
    overrides.extend(settings.iter().map(|&text| text.to_owned()));
    RunConfig::from_overrides(&overrides).unwrap_or_else(|error| panic!("{error}"))
}

pub fn text_files(vocab: usize) -> TextFiles {
    let text: String = (0..4000_u32).map(|at| char::from(b'0' + (at * at % 37) as u8)).collect();
    TextFiles::new(&[("text.txt", text.as_bytes()), ("tokenizer.json", tokenizer(vocab).as_bytes())])
}

/// Checks that a trainer, before its first step, has the parameters of the published model that it starts from, in any
/// form of layers; all replicas have them.
pub fn check_start(case: &'static str, trainer: &Trainer) {
    let golden = Golden::load(case);
    let model = trainer.run().model();
    let expected = golden.params(model, &|name| golden.weight(name));
    let expected: BTreeMap<String, Literal> = Tree::paths(&expected)
        .into_iter()
        .zip(expected.leaves())
        .map(|(path, it)| (path, it.convert(DType::F32)))
        .collect();
    let state = trainer.state();
    let mut found = 0;
    for (path, array) in Tree::paths(state).into_iter().zip(state.leaves()) {
        let value = || array.get().expect("on the host");
        if let Some(path) = path.strip_prefix("params.").or_else(|| path.strip_prefix("outer.params.")) {
            assert!(value() == expected[path], "{case}: {path}");
            found += 1;
        } else if let Some(path) = path.strip_prefix("inner.params.") {
            let (value, one) = (value(), expected[path].bytes());
            assert!(value.bytes() == one.repeat(value.bytes().len() / one.len()), "{case}: {path} of replicas");
        }
    }
    assert_eq!(found, expected.len(), "{case}");
}

/// Checks what a run reads from a published model for each device: the part that its train step takes, in any form of
/// layers. The programs of the run are not compiled.
fn check_parts(case: &'static str, settings: &[&str]) {
    let golden = Golden::load(case);
    let files = text_files(golden.published.architecture.vocab);
    let config = run_config(&folder(case), &files, settings);
    let (_, lowered) = config.lower_train_step().unwrap_or_else(|error| panic!("{case} {settings:?}: {error}"));
    let (inputs, _) = lowered.port_specs().expect("layouts");
    let model = config.train_step().expect("a step").model;
    let expected = golden.params(&model, &|name| golden.weight(name));
    let weights = PublishedWeights::open(&folder(case), &golden.published).unwrap_or_else(|error| panic!("{error}"));
    // The parameters are the first inputs.
    for ((path, expected), spec) in Tree::paths(&expected).into_iter().zip(expected.leaves()).zip(&inputs) {
        let devices: Vec<usize> = (0..spec.layout.device_count()).collect();
        let read = |device: usize| {
            let part = weights.read_part(&path, &spec.ty.dims, &spec.layout.value_part(device))?;
            Ok::<_, meshloom_train::Error>(part.convert(spec.ty.dtype))
        };
        let array = Array::put_parts(&client(), spec.ty.clone(), &spec.layout, &devices, read);
        let found = array.unwrap_or_else(|error| panic!("{case} {settings:?}: {path}: {error}")).get();
        assert!(found.expect("on the host") == expected.convert(DType::F32), "{case} {settings:?}: {path}");
    }
}

fn check_trainer(case: &'static str, settings: &[&str]) {
    let files = text_files(Golden::load(case).published.architecture.vocab);
    let config = run_config(&folder(case), &files, settings);
    let trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{case} {settings:?}: {error}"));
    check_start(case, &trainer);
}

/// Tests of `runs` check trainers that start like this.
#[test]
fn runs_start_from_published_models_on_meshes() {
    let all = [
        ("deepseek_v3", ["mesh.axes=fsdp=2,expert=4", "rules.strict=false"]),
        ("gpt_oss", ["mesh.axes=fsdp=4,tensor=2", "rules.strict=false"]),
        // Some parts are padded.
        ("deepseek_v3", ["mesh.axes=fsdp=8", "rules.uneven=true"]),
        ("gemma2", ["mesh.axes=fsdp=8", "model.scan_layers=false"]),
    ];
    all.iter().for_each(|(case, settings)| check_parts(case, settings));
    for (case, settings) in cases("families starts on meshes, compiled", 0, all) {
        check_trainer(case, &settings);
    }
}

#[test]
fn runs_start_from_published_models_in_pipelines_and_replicas() {
    let pipeline = ["mesh.axes=stage=2,fsdp=4", "pipeline.microbatches=2", "pipeline.repeats=1"];
    let gemma = ("gemma2", [&pipeline[..], &["pipeline.layers_per_stage=2"]].concat());
    let qwen = ("qwen3", [&pipeline[..], &["pipeline.layers=2"]].concat());
    let replicas = ("qwen2", vec!["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2"]);
    [&gemma, &qwen].into_iter().for_each(|(case, settings)| check_parts(case, settings));
    for (case, settings) in cases("families starts in pipelines and replicas, compiled", 0, [gemma, qwen, replicas]) {
        check_trainer(case, &settings);
    }
}

/// The logits of a stored model for some tokens.
fn logits(folder: &Path, overrides: &[&str]) -> Vec<f64> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let model = StoredModel::open(folder, &overrides).unwrap_or_else(|error| panic!("{error}"));
    let rows = [vec![3, 1, 4, 1, 5, 9, 2, 6], vec![2, 7, 1]];
    let program = LogitsProgram::new(&model, &client(), &rows).unwrap_or_else(|error| panic!("{error}"));
    let mut found = Vec::new();
    let write = |logits: &[f32]| {
        found.extend(logits.iter().map(|&logit| f64::from(logit)));
        Ok(())
    };
    program.run(write).unwrap_or_else(|error| panic!("{error}"));
    let [count, length, vocab] = program.shape();
    assert_eq!((count, length, found.len()), (2, 8, 16 * vocab));
    let (first, second) = found.split_at(8 * vocab);
    let (own, behind) = second.split_at(3 * vocab);
    assert!(first.iter().chain(own).all(|logit| logit.is_finite()));
    assert!(behind.iter().all(|logit| logit.is_nan()), "places behind the end of a row are NaN");
    [first, own].concat()
}

/// The logits of golden files, on one device and on a mesh, of folders and of checkpoints.
#[test]
fn logits_are_those_of_transformers() {
    let all = [("gemma3_text", "fsdp=2,context=4"), ("gpt_oss", "fsdp=2,expert=4"), ("deepseek_v3", "fsdp=8")];
    for (case, mesh) in cases("families logits of folders", 1, all) {
        let golden = Golden::load(case);
        let (dims, tokens) = &golden.expected["tokens"];
        let rows: Vec<Vec<i32>> =
            tokens.chunks(dims[1]).map(|row| row.iter().map(|&token| token as i32).collect()).collect();
        let expected: Vec<f64> = golden.expected["logits"].1.iter().map(|&logit| logit.into()).collect();
        let mesh = format!("mesh.axes={mesh}");
        for overrides in [vec![], vec![mesh, "target.devices=8".to_owned()]] {
            let model = StoredModel::open(folder(case), &overrides).unwrap_or_else(|error| panic!("{error}"));
            let program = LogitsProgram::new(&model, &client(), &rows).unwrap_or_else(|error| panic!("{error}"));
            let mut found = Vec::new();
            let write = |logits: &[f32]| {
                found.extend(logits.iter().map(|&logit| f64::from(logit)));
                Ok(())
            };
            program.run(write).unwrap_or_else(|error| panic!("{error}"));
            let error = relative_error(&found, &expected);
            assert!(error <= super::golden::BOUND, "{case} {overrides:?}: {error:.1e}");
        }
    }
}

/// A model that was trained on is exported in the type of its config.json, with its files, and is the same model.
#[test]
fn trained_models_are_exported() {
    cases("families of runs", 1, RUN_CASES).into_iter().for_each(check_export);
}

fn check_export(case: &'static str) {
    let made = tempfile::tempdir().expect("a folder");
    let (checkpoints, exported) = (made.path().join("checkpoints"), made.path().join("exported"));
    let files = text_files(48);
    let own = format!("checkpoint.dir={:?}", checkpoints.display().to_string());
    let settings = [&RUN[..], &ONE_DEVICE, &[&own]].concat();
    let config = run_config(&folder(case), &files, &settings);
    let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..20 {
        trainer.step().expect("a step");
    }
    let start = meshloom_train::checkpoint::Start::Fresh;
    let mut checkpointer = meshloom_train::checkpoint::Checkpointer::new(&config.checkpoint, start).expect("a place");
    trainer.save_checkpoint(&mut checkpointer).expect("saved");
    checkpointer.finish().expect("written");

    let f32_options = ExportOptions { dtype: Some(DType::F32), ..ExportOptions::default() };
    export(&open(&checkpoints), &exported, f32_options).unwrap_or_else(|error| panic!("{error}"));
    let [own, theirs] = [&checkpoints, &exported].map(|folder| logits(folder, &[]));
    assert_eq!(own, theirs);
    // Training has changed it.
    let before = logits(&folder(case), &[]);
    assert!(relative_error(&own, &before) > 1e-2);

    let narrow = made.path().join("narrow");
    export(&open(&checkpoints), &narrow, ExportOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let (published, wide) = (stored(&folder(case)), stored(&exported));
    let (mut rounded, narrow) = (0, stored(&narrow));
    assert!(narrow.keys().eq(wide.keys()));
    for (name, (dtype, shape, bytes)) in narrow {
        assert_eq!((dtype, &shape), (published[&name].0, &published[&name].1), "{name}");
        let wide = &wide[&name].2;
        if dtype == Dtype::BF16 {
            let words = wide.chunks(4).map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")));
            let expected: Vec<u8> = words.flat_map(|word| half::bf16::from_f32(word).to_le_bytes()).collect();
            assert!(bytes == expected, "{name} is not its f32, rounded");
            rounded += 1;
        } else {
            assert!(bytes == *wide, "{name}");
        }
    }
    assert!(rounded > 0, "no tensor is narrower");
}

/// Returns the error of a run that starts from a folder.
fn refusal(folder: &Path, case: &str) -> String {
    let published = Published::open(folder).unwrap_or_else(|error| panic!("{case}: {error}"));
    match PublishedWeights::open(folder, &published) {
        Ok(_) => panic!("{case}: it is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_tensor_counts() {
    let whole = stored(&folder("qwen2"));
    let changed = |change: &dyn Fn(&mut Stored)| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        let made = published("qwen2", &tensors);
        refusal(made.path(), "qwen2").replace(&made.path().display().to_string(), "DIR")
    };
    let [first, second] = ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"];
    let missing = changed(&|tensors| {
        tensors.remove(first);
        tensors.remove(second);
    });
    assert!(missing.contains("do not fit; missing: 2 tensors"), "{missing}");
    assert!(missing.contains(first) && missing.contains(second), "{missing}");
    let more = changed(&|tensors| {
        let bias = tensors[first].clone();
        tensors.insert("model.layers.0.self_attn.o_proj.bias".to_owned(), bias);
    });
    assert!(more.contains("do not fit; unused: tensor model.layers.0.self_attn.o_proj.bias;"), "{more}");
    let shape = changed(&|tensors| tensors.get_mut(second).expect("a tensor").1.reverse());
    assert!(shape.contains(second) && shape.contains("but the model needs"), "{shape}");
    let integers = changed(&|tensors| {
        let (dtype, shape, bytes) = tensors.get_mut(first).expect("a tensor");
        (*dtype, *bytes) = (Dtype::U16, vec![0; 2 * shape[0]]);
    });
    assert!(integers.contains("which is not read as numbers"), "{integers}");
}

/// Tensors that a model leaves out are left out by name, and reported.
#[test]
fn what_is_left_out_is_said() {
    let mut tensors = stored(&folder("qwen3"));
    let rotary = "model.layers.0.self_attn.rotary_emb.inv_freq";
    tensors.insert(rotary.to_owned(), (Dtype::F32, vec![2], vec![0; 8]));
    let is_tied = Published::open(&folder("qwen3")).expect("a model").architecture.tied_embeddings;
    let mut skipped = vec![rotary.to_owned()];
    if is_tied {
        tensors.insert("lm_head.weight".to_owned(), tensors["model.embed_tokens.weight"].clone());
        skipped.insert(0, "lm_head.weight".to_owned());
    }
    let made = published("qwen3", &tensors);
    let model = Published::open(made.path()).expect("a model");
    let weights = PublishedWeights::open(made.path(), &model).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(weights.skipped(), skipped);
}

/// The decoder of a model that also sees is read by its names there, and exported as a model of its own.
#[test]
fn decoders_within_larger_models_are_read() {
    let plain = stored(&folder("gemma3_text"));
    for prefix in ["language_model.model.", "model.language_model."] {
        let renamed = plain.iter().map(|(name, tensor)| {
            let rest = name.strip_prefix("model.").expect("tied: all are within the model");
            (format!("{prefix}{rest}"), tensor.clone())
        });
        let mut tensors: Stored = renamed.collect();
        tensors.insert("vision_tower.patch.weight".to_owned(), (Dtype::F32, vec![1], vec![0; 4]));
        let made = published("gemma3_text", &tensors);
        fs::copy(folder("gemma3_text").join("config.multimodal.json"), made.path().join("config.json"))
            .expect("copied");
        let exported = made.path().join("exported");
        let model = open(made.path());
        export(&model, &exported, ExportOptions::default()).unwrap_or_else(|error| panic!("{prefix}: {error}"));
        assert!(stored(&exported) == plain, "{prefix}");
        let architecture = Published::open(&exported).expect("a model").architecture;
        assert_eq!(architecture, Published::open(&folder("gemma3_text")).expect("a model").architecture);
    }
}

/// FP8 blocks and MXFP4 are read as bf16, in the layout of the parameters; exported, they are no longer quantized.
#[test]
fn quantized_weights_are_dequantized() {
    // Any bytes but NaN.
    let codes =
        |count: usize| -> Vec<u8> { (0..count).map(|at| (at * 37 % 127) as u8 | ((at % 2) << 7) as u8).collect() };
    let mut tensors = stored(&folder("deepseek_v3"));
    let name = "model.layers.2.mlp.experts.3.up_proj.weight";
    let (dtype, shape, bytes) = tensors.get_mut(name).expect("a tensor");
    let (rows, columns) = (shape[0], shape[1]);
    (*dtype, *bytes) = (Dtype::F8_E4M3, codes(rows * columns));
    let quantized = bytes.clone();
    let block = [8, 16];
    let blocks = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
    let scales: Vec<f32> = (0..blocks[0] * blocks[1]).map(|at| 0.25 + at as f32).collect();
    let scale_bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    tensors.insert(format!("{name}_scale_inv"), (Dtype::F32, blocks.to_vec(), scale_bytes));
    let made = published("deepseek_v3", &tensors);
    let config = fs::read_to_string(made.path().join("config.json")).expect("a file");
    let section = r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 16]}, "#;
    fs::write(made.path().join("config.json"), config.replacen('{', section, 1)).expect("written");
    let exported = made.path().join("exported");
    export(&open(made.path()), &exported, ExportOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let found = &stored(&exported)[name];
    assert_eq!((found.0, &found.1[..]), (Dtype::BF16, &[rows, columns][..]));
    for (at, word) in found.2.chunks(2).enumerate() {
        let scale = scales[at / columns / block[0] * blocks[1] + at % columns / block[1]];
        let expected = half::bf16::from_f32(f8_e4m3(quantized[at]) * scale);
        assert_eq!(half::bf16::from_le_bytes([word[0], word[1]]), expected, "element {at}");
    }
    let text = fs::read_to_string(exported.join("config.json")).expect("a file");
    assert!(!text.contains("quantization_config"), "{text}");

    let mut tensors = stored(&folder("gpt_oss"));
    let name = "model.layers.1.mlp.experts.gate_up_proj";
    let (_, shape, _) = tensors.remove(name).expect("a tensor");
    let (experts, inputs, outputs) = (shape[0], shape[1], shape[2]);
    assert_eq!(inputs, 32);
    let blocks: Vec<u8> = (0..experts * outputs * 16).map(|at| (at * 89 % 256) as u8).collect();
    let exponents: Vec<u8> = (0..experts * outputs).map(|at| 124 + (at % 6) as u8).collect();
    tensors.insert(format!("{name}_blocks"), (Dtype::U8, vec![experts, outputs, 1, 16], blocks.clone()));
    tensors.insert(format!("{name}_scales"), (Dtype::U8, vec![experts, outputs, 1], exponents.clone()));
    let made = published("gpt_oss", &tensors);
    let exported = made.path().join("exported");
    export(&open(made.path()), &exported, ExportOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let found = &stored(&exported)[name];
    assert_eq!(found.1, [experts, inputs, outputs]);
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (at, word) in found.2.chunks(2).enumerate() {
        let (row, input) = (at / (inputs * outputs) * outputs + at % outputs, at / outputs % inputs);
        let code = (blocks[row * 16 + input / 2] >> (4 * (input % 2))) & 15;
        let sign = if code < 8 { 1.0 } else { -1.0 };
        let expected = sign * E2M1[usize::from(code % 8)] * 2_f32.powi(i32::from(exponents[row]) - 127);
        assert_eq!(half::bf16::from_le_bytes([word[0], word[1]]).to_f32(), expected, "element {at}");
    }
}

/// A number of F8_E4M3 that is not NaN: a sign, four bits of exponent, three of mantissa.
fn f8_e4m3(code: u8) -> f32 {
    let sign = if code < 128 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from((code >> 3) & 15), f32::from(code & 7) / 8.0);
    let magnitude = if exponent == 0 { mantissa * 2_f32.powi(-6) } else { (1.0 + mantissa) * 2_f32.powi(exponent - 7) };
    sign * magnitude
}

/// Devices read no more than their parts: together, each byte once.
#[test]
fn devices_read_their_parts() {
    let published = Published::open(&folder("mixtral")).expect("a model");
    let weights = PublishedWeights::open(&folder("mixtral"), &published).unwrap_or_else(|error| panic!("{error}"));
    let decoder = meshloom_nn::DecoderConfig::new(published.architecture.clone());
    let declared = decoder.parameters();
    let total: usize = stored(&folder("mixtral")).values().map(|(_, _, bytes)| bytes.len()).sum();
    for (path, param) in Tree::paths(&declared).into_iter().zip(declared.leaves()) {
        let dims = &param.spec.ty.dims;
        // Rows of the stream's width, as fsdp cuts them.
        let cut = param.spec.axes.iter().position(|axis| axis.text() == "embed");
        for device in 0..4 {
            let part = |dim: usize, size: usize| match Some(dim) == cut {
                true => device * size / 4..(device + 1) * size / 4,
                false if cut.is_none() && dim == 0 && device > 0 => 0..0,
                false => 0..size,
            };
            let shard: Vec<_> = dims.iter().enumerate().map(|(dim, &size)| part(dim, size)).collect();
            if shard.iter().all(|range| !range.is_empty()) {
                weights.read_part(&path, dims, &shard).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
    }
    assert_eq!(weights.bytes_read(), total as u64);
}

#[test]
fn wrong_folders_are_refused() {
    let made = tempfile::tempdir().expect("a folder");
    let checkpoint = made.path().join("checkpoint");
    import(folder("llama2"), &checkpoint, &[]).unwrap_or_else(|error| panic!("{error}"));
    let said = |error: meshloom_train::Error| error.to_string().replace(&made.path().display().to_string(), "DIR");
    let again = import(folder("llama2"), &checkpoint, &[]).expect_err("it has one");
    assert!(said(again).starts_with("\"DIR/checkpoint\" has checkpoints of another run"));
    let files = text_files(56);
    let resumed = |init: &Path| {
        let found = meshloom_train::checkpoint::find(&checkpoint, Default::default()).expect("a checkpoint").checkpoint;
        Trainer::resume(&run_config(init, &files, &["mesh.axes=fsdp=8"]), &client(), &found).map(drop)
    };
    let error = said(resumed(&checkpoint).expect_err("there is no run"));
    assert!(error.contains("has parameters alone") && error.contains("train.init"), "{error}");
    let nothing = StoredModel::open(made.path(), &[]).expect_err("no model");
    assert!(said(nothing).starts_with("\"DIR\" has no model: give a checkpoint"));
    // The folder holds another model than the one of [model].
    let preset =
        run_config(&folder("llama2"), &files, &["mesh.axes=fsdp=8", "model.preset=llama-3.2-1b", "model.seq=8"]);
    let error = said(Trainer::new(&preset, &client()).map(drop).expect_err("another model"));
    assert!(error.contains("it is of another model than [model] says"), "{error}");
    let occupied = export(&open(&checkpoint), folder("llama2"), ExportOptions::default()).expect_err("it has weights");
    assert!(
        matches!(&occupied, meshloom_train::Error::Weights(error) if matches!(**error, WeightsError::Occupied { .. }))
    );
}

/// The layers that predict further tokens are left out by name, or kept with their copies of table and head.
#[test]
fn further_layers_are_left_out_or_kept() {
    let source = support::path(super::further::FOLDER);
    let whole = stored(&source);
    let is_further = |name: &str| name.starts_with("model.layers.4.") || name.starts_with("model.layers.5.");
    let is_copy = |name: &str| name.contains("embed_tokens") || name.contains("shared_head.head");
    for (settings, left_out) in [
        (vec![], &|name: &str| is_further(name)),
        (vec!["train.further_token_weight=0.3".to_owned()], &|name: &str| is_further(name) && is_copy(name)),
    ] as [(Vec<String>, &dyn Fn(&str) -> bool); 2]
    {
        let made = tempfile::tempdir().expect("a folder");
        let (checkpoint, exported) = (made.path().join("checkpoint"), made.path().join("exported"));
        let imported = import(&source, &checkpoint, &settings).unwrap_or_else(|error| panic!("{error}"));
        let expected: Vec<String> = whole.keys().filter(|name| left_out(name)).cloned().collect();
        let skipped: BTreeSet<String> = imported.skipped.into_iter().collect();
        assert!(skipped.iter().eq(&expected), "{settings:?}: {skipped:?}");
        export(&open(&checkpoint), &exported, ExportOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let is_kept = |name: &&String| !settings.is_empty() || !is_further(name);
        let kept: Stored = whole.keys().filter(is_kept).map(|name| (name.clone(), whole[name].clone())).collect();
        assert!(stored(&exported) == kept, "{settings:?}: other tensors");
        // The further layers have no part in the logits.
        assert_eq!(logits(&checkpoint, &[]), logits(&source, &[]), "{settings:?}");
    }
}
