//! Parameters in safetensors files, and tokenizer files.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::trace::{MapTree, TensorSpec, Tree};
use meshloom_models::parameters::{LoadOptions, ParameterError, ParameterFile, load, save};
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;
use meshloom_train::generate::{ContinuedText, GenerateOptions, GeneratorOptions, Request, SamplingOptions};
use meshloom_train::tokenizer::Tokenizer;
use safetensors::SafeTensors;
use support::configs::{self, BOOK, DROPOUT, NARROW, ON_TOKENS, SHORT_RUN, TOKENIZER};
use support::eight_devices::client;
use support::text_files::TextFiles;

// Parameters.

/// A value of any type, whose bytes are all different where they can be.
fn value(dtype: DType, dims: &[usize]) -> Literal {
    let ty = TensorType::new(dtype, dims);
    let limit = if dtype == DType::Pred { 2 } else { 251 };
    let bytes: Vec<u8> = (0..ty.byte_count()).map(|index| (index % limit) as u8).collect();
    Literal::from_bytes(ty, bytes).expect("as many bytes as the type has")
}

fn spec(literal: &Literal) -> TensorSpec {
    TensorSpec::new(literal.ty().dtype, &literal.ty().dims)
}

/// Types that the format has no name for.
const NOT_IN_FILES: [DType; 2] = [DType::S4, DType::U4];

#[test]
fn types_that_files_cannot_hold_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("narrow.safetensors");
    for dtype in NOT_IN_FILES {
        let error = save(&file, &vec![value(dtype, &[3])]).expect_err("no such type").to_string();
        assert!(error.contains(&format!("is of type {dtype}, which safetensors files cannot hold")), "{error}");
        assert!(!file.exists());
    }
}

#[test]
fn every_type_is_read_back_as_it_was_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("all.safetensors");
    let values: Vec<Literal> = (DType::ALL.into_iter())
        .filter(|dtype| !NOT_IN_FILES.contains(dtype))
        .flat_map(|dtype| [&[][..], &[3], &[2, 0], &[2, 3, 5]].map(|dims| value(dtype, dims)))
        .collect();
    save(&file, &values).unwrap_or_else(|error| panic!("{error}"));
    let specs: Vec<TensorSpec> = values.iter().map(spec).collect();
    let read = load(&file, &specs, LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read, values);
    // The crate that defines the format reads it too, under the same names.
    let bytes = fs::read(&file).expect("the file");
    let parsed = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    assert_eq!(parsed.len(), values.len());
    for (path, value) in values.paths().iter().zip(&values) {
        assert_eq!(parsed.tensor(path).expect("by its path").data(), value.bytes(), "{path}");
    }
    // Nothing else is left in the directory.
    assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 1);
}

meshloom::tree! {
    struct Model<T> {
        weight: T,
        bias: T,
    }
}

fn model(weight: Literal, bias: Literal) -> Model<Literal> {
    Model { weight, bias }
}

/// Loads the saved parameters into another model, and returns the error.
fn refusal(saved: &Model<Literal>, wanted: &Model<TensorSpec>, options: LoadOptions) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("model.safetensors");
    save(&file, saved).expect("written");
    let error = load(&file, wanted, options).map(drop).expect_err("it must be refused").to_string();
    error.replace(&directory.path().display().to_string(), "DIR")
}

#[test]
fn differences_are_named_by_path() {
    let saved = model(value(DType::F32, &[2, 3]), value(DType::F32, &[3]));
    let wanted = |weight: &str, bias: &str| {
        let ty = |text: &str| {
            let (dtype, dims) = text.trim_end_matches(']').split_once('[').expect("a type");
            let dims: Vec<usize> = dims.split(',').map(|size| size.parse().expect("a size")).collect();
            TensorSpec::new(DType::from_name(dtype).expect("a type"), dims)
        };
        Model { weight: ty(weight), bias: ty(bias) }
    };
    let strict = LoadOptions::default();
    let convert = LoadOptions { convert: true, ..strict };
    let cases = [
        (
            wanted("f32[3,2]", "f32[3]"),
            strict,
            "weight is f32[2,3] in \"DIR/model.safetensors\", but the model has f32[3,2]",
        ),
        (
            wanted("f32[2,3]", "f32[4]"),
            convert,
            "bias is f32[3] in \"DIR/model.safetensors\", but the model has f32[4]",
        ),
        (
            wanted("bf16[2,3]", "f32[3]"),
            strict,
            "has bf16[2,3]; convert it on loading (--convert, or `LoadOptions::convert`)",
        ),
        (
            wanted("s32[2,3]", "f32[3]"),
            convert,
            "weight is f32[2,3] in \"DIR/model.safetensors\", but the model has s32[2,3]",
        ),
    ];
    for (wanted, options, message) in cases {
        let error = refusal(&saved, &wanted, options);
        assert!(error.contains(message), "{error:?} has no {message:?}");
    }
}

#[test]
fn missing_and_unexpected_parameters_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("model.safetensors");
    save(&file, &model(value(DType::F32, &[2]), value(DType::F32, &[3]))).expect("written");
    meshloom::tree! {
        struct Other<T> {
            weights: T,
        }
    }
    meshloom::tree! {
        struct Part<T> {
            bias: T,
        }
    }
    let spec = |size| TensorSpec::new(DType::F32, [size]);
    let message = |result: Result<(), ParameterError>| result.expect_err("refused").to_string();
    let missing = message(load(&file, &Other { weights: spec(2) }, LoadOptions::default()).map(drop));
    assert!(missing.contains("has no parameter weights (did you mean \"weight\"?)"), "{missing}");
    let unexpected = message(load(&file, &Part { bias: spec(3) }, LoadOptions::default()).map(drop));
    assert!(unexpected.contains("has parameter weight that the model lacks"), "{unexpected}");
    let options = LoadOptions { ignore_unexpected: true, ..LoadOptions::default() };
    let part = load(&file, &Part { bias: spec(3) }, options).expect("a part");
    assert_eq!(part.bias, value(DType::F32, &[3]));
    // One value alone has no path.
    let nameless = message(save(&file, &value(DType::F32, &[2])));
    assert!(nameless.contains("the path \"\" does not name one parameter"), "{nameless}");
}

#[test]
fn a_write_that_fails_leaves_the_old_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("model.safetensors");
    let old = model(value(DType::F32, &[2]), value(DType::F32, &[3]));
    save(&file, &old).expect("written");
    // A directory stands in the way of the second target.
    let blocked = directory.path().join("blocked");
    fs::create_dir(&blocked).expect("a directory");
    let error = save(&blocked, &old).expect_err("no file").to_string();
    assert!(error.contains("cannot write the parameters to"), "{error}");
    assert!(save(directory.path().join("nowhere/model.safetensors"), &old).is_err());
    let read = load(&file, &old.map(|_, leaf| spec(leaf)), LoadOptions::default()).expect("the old file");
    assert_eq!(read.leaves(), old.leaves());
    assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 2);
}

#[test]
fn floats_convert_only_on_request() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("model.safetensors");
    let numbers = [1.0f32, -2.5, 1.0 + 1.0 / 256.0, 65536.0];
    save(&file, &vec![Literal::vector(&numbers)]).expect("written");
    let options = LoadOptions { convert: true, ..LoadOptions::default() };
    let wide = load(&file, &vec![TensorSpec::new(DType::F64, [4])], options).expect("converted");
    assert_eq!(wide[0], Literal::vector(&numbers.map(f64::from)));
    let narrow = load(&file, &vec![TensorSpec::new(DType::BF16, [4])], options).expect("converted");
    assert_eq!(narrow[0], Literal::vector(&numbers.map(half::bf16::from_f32)));
}

fn config(overrides: &[&str]) -> RunConfig {
    configs::config(&[SHORT_RUN, DROPOUT, overrides])
}

fn host(trainer: &Trainer) -> Vec<Literal> {
    trainer.state().params().leaves().iter().map(|array| array.get().expect("a value")).collect()
}

/// Parameters trained on eight devices go to one device and back, bit for bit.
#[test]
fn sharded_parameters_are_gathered_and_spread() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trained.safetensors");
    let (eight, one) = (config(&[]), config(&["mesh.axes=\"data=1\"", "target.devices=1"]));
    let mut trained = Trainer::new(&eight, &client()).expect("a trainer");
    trained.step().expect("a step");
    trained.save_parameters(&file).expect("written");
    let mut single = Trainer::new(&one, &client()).expect("a trainer");
    assert_ne!(host(&single), host(&trained));
    single.load_parameters(&file, LoadOptions::default()).expect("loaded");
    assert_eq!(host(&single), host(&trained));
    single.step().expect("a step with what was loaded");
    let mut spread = Trainer::new(&eight, &client()).expect("a trainer");
    spread.load_parameters(&file, LoadOptions::default()).expect("loaded");
    assert_eq!(host(&spread), host(&trained));
    let layouts = |trainer: &Trainer| -> Vec<_> {
        trainer.state().params().leaves().iter().map(|array| array.layout().clone()).collect()
    };
    assert_eq!(layouts(&spread), layouts(&trained));
    let other = config(&["model.embed=64"]).train_step().expect("a step").initialize(0).expect("it draws").params;
    save(&file, &other).expect("written");
    let error = spread.load_parameters(&file, LoadOptions::default()).expect_err("other sizes").to_string();
    assert!(error.starts_with("embedding is f32[256,64] in"), "{error}");
    assert_eq!(host(&spread), host(&trained));
}

// Tokenizers.

fn tokenizer() -> Tokenizer {
    Tokenizer::load(TOKENIZER).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn text_comes_back_from_its_tokens() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocabulary_size(), 1024);
    for text in
        ["It was a truth universally acknowledged,\n\nthat", "  two  spaces", "caf\u{e9} \u{1f600} \u{4e2d}", ""]
    {
        let tokens = tokenizer.encode(text).expect("tokens");
        assert_eq!(tokenizer.decode(&tokens), text);
        assert_eq!(Tokenizer::bytes().decode(&Tokenizer::bytes().encode(text).expect("bytes")), text);
    }
    let words = tokenizer.encode("the sister of Elizabeth").expect("tokens");
    assert!(words.len() <= 8, "it has learned no words: {words:?}");
}

#[test]
fn documents_are_those_of_the_text_in_tokens() {
    let tokenizer = tokenizer();
    let text: Vec<u8> = fs::read(BOOK).expect("the text").into_iter().take(60_000).collect();
    let files = TextFiles::new(&[("text.txt", &text)]);
    let bytes = files.open(&Tokenizer::bytes(), 32, &[]).expect("a dataset");
    let dataset = files.open(&tokenizer, 32, &[]).expect("a dataset");
    assert_eq!(dataset.document_count(), bytes.document_count());
    assert_eq!(dataset.byte_count(), bytes.token_count());
    assert!(dataset.token_count() * 2 < bytes.token_count(), "{} tokens", dataset.token_count());
    let batch = dataset.batch(0, 0, 4).expect("a batch");
    let [tokens, targets, weights] = [&batch.tokens, &batch.targets, &batch.weights].map(Literal::to_f64_vec);
    // The target of a token is the next one of its row, where both are of one document.
    let follows = (0..127).filter(|at| at % 32 != 31 && weights[*at] == 1.0).all(|at| targets[at] == tokens[at + 1]);
    assert!(follows, "{tokens:?} {targets:?}");
    // Rows of one document after the other are the text of documents.
    let row: Vec<i32> = tokens[..32].iter().map(|&token| token as i32).collect();
    let decoded = tokenizer.decode(&row);
    let whole = String::from_utf8(text).expect("UTF-8");
    let piece: String = decoded.chars().take(20).collect();
    assert!(whole.contains(&piece), "{piece:?} is not in the text");
}

#[test]
fn tokenizers_that_do_not_fit_are_refused() {
    let message = |overrides: &[&str]| config(overrides).load_tokenizer().map(drop).expect_err("refused").to_string();
    let own = format!("data.tokenizer={TOKENIZER:?}");
    let small = message(&[&own, "model.vocab=512"]);
    assert!(
        small.contains("has token values up to 1023, but model.vocab is 512; set model.vocab to at least 1024"),
        "{small}"
    );
    let absent = message(&["data.tokenizer=\"absent.json\""]);
    assert!(absent.contains("cannot read the tokenizer \"absent.json\""), "{absent}");
    let text = format!("data.tokenizer={BOOK:?}");
    assert!(message(&[&text]).contains("is not a tokenizer.json that can be read"), "{}", message(&[&text]));
}

#[test]
fn a_run_trains_on_tokens() {
    let own = format!("data.tokenizer={TOKENIZER:?}");
    let book = std::fs::read(BOOK).expect("the book");
    let files = TextFiles::new(&[("part.txt", &book[..200_000])]);
    let config = files.config(&[NARROW, ON_TOKENS, &[&own]]);
    let mut trainer = Trainer::new(&config, &client()).expect("a trainer");
    assert!(trainer.dataset().unigram_entropy() > 5.0, "{}", trainer.dataset().unigram_entropy());
    let losses: Vec<f64> = (0..6).map(|_| trainer.step().expect("a step").loss).collect();
    assert!(losses[0] > 6.5 && losses[5] < losses[0] - 0.3, "{losses:?}");
    let prompt = trainer.tokenizer().encode("It was").expect("tokens");
    let mut generator = trainer.generator(GeneratorOptions::new(1, 16)).expect("a generator");
    let options = GenerateOptions { length: 4, sampling: SamplingOptions::default(), stop_tokens: Vec::new() };
    let mut stream = ContinuedText::behind(&prompt, trainer.tokenizer(), &[]);
    let mut text = String::new();
    let made = generator.generate(&[Request { prompt, seed: 0 }], &options, |_, token| {
        text.push_str(&stream.push(token));
        ControlFlow::Continue(())
    });
    let tokens = &made.expect("a text")[0].tokens;
    assert_eq!(tokens.len(), 4);
    assert_eq!(text + &stream.finish(), trainer.tokenizer().decode(tokens));
}

/// The header is all that is read before names and types are known to fit.
#[test]
fn a_file_lists_its_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let file: &Path = &directory.path().join("model.safetensors");
    save(file, &model(value(DType::BF16, &[2]), value(DType::F32, &[3]))).expect("written");
    assert_eq!(ParameterFile::open(file).expect("a file").names(), ["bias", "weight"]);
}
