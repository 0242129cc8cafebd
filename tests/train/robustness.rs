//! Random bytes, and valid files with something changed, as inputs: an answer or a typed error, never a panic, and
//! never more memory than the file has.

use std::fs;
use std::sync::OnceLock;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom_models::parameters::{LoadOptions, ParameterFile, save};
use meshloom_train::config::RunConfig;
use meshloom_train::tokenizer::Tokenizer;
use proptest::prelude::*;
use proptest::sample::Index;
use support::cases::cases;
use support::text_files::TextFiles;

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
    /// A run of digits becomes another number.
    Number(Index, u64),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let special = prop_oneof![
        Just(0),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(1 << 40),
        Just(i64::MAX as u64),
        Just(u64::MAX),
        any::<u64>()
    ];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Flip(at, byte)),
        (at(), 1..64usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (at(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..64usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        (at(), special).prop_map(|(at, number)| Change::Number(at, number)),
        at().prop_map(Change::Cut),
    ]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 1..5)
}

fn apply(bytes: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes {
        if bytes.is_empty() {
            return bytes;
        }
        let length = bytes.len();
        match change {
            Change::Flip(at, byte) => bytes[at.index(length)] ^= byte,
            Change::Remove(at, count) => {
                let at = at.index(length);
                bytes.drain(at..(at + count).min(length));
            }
            Change::Insert(at, new) => {
                let at = at.index(length);
                bytes.splice(at..at, new.iter().copied());
            }
            Change::Repeat(at, count) => {
                let at = at.index(length);
                let part = bytes[at..(at + count).min(length)].to_vec();
                bytes.splice(at..at, part);
            }
            Change::Number(at, number) => {
                let at = at.index(length);
                let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else {
                    continue;
                };
                let end =
                    bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(length, |end| start + end);
                bytes.splice(start..end, number.to_string().into_bytes());
            }
            Change::Cut(at) => bytes.truncate(at.index(length)),
        }
    }
    bytes
}

// safetensors

fn valid_parameters() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("valid.safetensors");
        let zeros = |dtype, dims: &[usize]| {
            let ty = TensorType::new(dtype, dims);
            Literal::from_bytes(ty.clone(), vec![0u8; ty.byte_count()]).expect("zeros")
        };
        save(&file, &vec![zeros(DType::F32, &[3, 2]), zeros(DType::BF16, &[5]), zeros(DType::Pred, &[])])
            .expect("written");
        fs::read(&file).expect("the file")
    })
}

/// Opens the bytes as a parameter file and reads all of it.
fn read_parameters(bytes: &[u8]) -> Result<usize, String> {
    thread_local! {
        static DIRECTORY: tempfile::TempDir = tempfile::tempdir().expect("a directory");
    }
    let path = DIRECTORY.with(|directory| directory.path().join("changed.safetensors"));
    fs::write(&path, bytes).expect("written");
    let file = ParameterFile::open(&path).map_err(|error| error.to_string())?;
    let options = LoadOptions { convert: true, ignore_unexpected: true };
    let expected = [("0", DType::F32, vec![3, 2]), ("1", DType::BF16, vec![5]), ("2", DType::Pred, vec![])];
    let mut read = 0;
    for (name, dtype, dims) in expected {
        let literal = file.read(name, &TensorType::new(dtype, &dims), options).map_err(|error| error.to_string())?;
        read += literal.bytes().len();
    }
    Ok(read)
}

#[test]
fn parameter_files_that_claim_too_much_are_refused() {
    assert_eq!(read_parameters(valid_parameters()), Ok(24 + 10 + 1));
    let with_header = |length: u64, header: &str| [&length.to_le_bytes(), header.as_bytes()].concat();
    let whole = |header: &str| with_header(header.len() as u64, header);
    let cases = [
        (vec![], "it has 0 bytes"),
        (
            with_header(u64::MAX, "{}"),
            "its header has 18446744073709551615 bytes by its first 8 bytes, and at most 100000000 are allowed",
        ),
        (with_header(99_000_000, "{}"), "its header has 99000000 bytes, but only 2 are there"),
        (whole("[]"), "is not a safetensors file, or damaged"),
        (whole("{}"), "has no parameter 0"),
        (
            whole(r#"{"0":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#),
            "is not a safetensors file, or damaged",
        ),
        (
            whole(r#"{"0":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}"#),
            "is not a safetensors file, or damaged",
        ),
        (whole(r#"{"0":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#), "is not a safetensors file, or damaged"),
        (whole(&format!("{{\"{}\":1}}", "[".repeat(100_000))), "is not a safetensors file, or damaged"),
        (whole(&"[".repeat(100_000)), "is not a safetensors file, or damaged"),
    ];
    for (bytes, message) in cases {
        let error = read_parameters(&bytes).expect_err("refused");
        assert!(error.contains(message), "{error:?} has no {message:?}");
    }
}

// Tokenizers

fn valid_tokenizer() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| fs::read(support::configs::TOKENIZER).expect("the tokenizer"))
}

/// The text of an error, which names the file that it is about.
fn naming(file: &str, error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    assert!(text.contains(file), "{text:?} does not name {file}");
    text
}

/// Reads the bytes as a tokenizer and uses it.
fn use_tokenizer(bytes: &[u8]) -> Result<(), String> {
    let tokenizer = Tokenizer::from_json(bytes, "changed").map_err(|error| naming("changed", &error))?;
    let tokens = tokenizer.encode("It was a truth\n\u{e9}\u{1f600}").map_err(|error| error.to_string())?;
    tokenizer.decode(&tokens);
    tokenizer.decode(&[-1, 0, i32::MAX]);
    Ok(())
}

/// Tries odd values in the place of each part of a tokenizer.
#[test]
fn odd_tokenizers_give_errors_or_work() {
    assert_eq!(use_tokenizer(valid_tokenizer()), Ok(()));
    let valid: serde_json::Value = serde_json::from_slice(valid_tokenizer()).expect("JSON");
    let parts = [
        (
            "padding",
            r#"{"strategy":{"Fixed":1000000000000},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"x"}"#,
        ),
        ("truncation", r#"{"direction":"Right","max_length":0,"strategy":"LongestFirst","stride":7}"#),
        (
            "added_tokens",
            r#"[{"id":4294967295,"content":"It","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#,
        ),
        (
            "added_tokens",
            r#"[{"id":1,"content":"","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":false}]"#,
        ),
        ("normalizer", r#"{"type":"Precompiled","precompiled_charsmap":"AAAA"}"#),
        ("normalizer", r#"{"type":"Replace","pattern":{"Regex":"(a|a)*$"},"content":"b"}"#),
        ("normalizer", r#"{"type":"Replace","pattern":{"Regex":"("},"content":"b"}"#),
        ("pre_tokenizer", r#"{"type":"Split","pattern":{"Regex":""},"behavior":"Isolated","invert":false}"#),
        ("pre_tokenizer", "null"),
        ("decoder", "null"),
        ("post_processor", r#"{"type":"BertProcessing","sep":["x",4000000000],"cls":["y",1]}"#),
        ("model", r#"{"type":"WordLevel","vocab":{},"unk_token":"?"}"#),
        ("model", r#"{"type":"Unigram","unk_id":7,"vocab":[["a",0.0]],"byte_fallback":true}"#),
        ("model", r#"{"type":"Unigram","unk_id":0,"vocab":[],"byte_fallback":false}"#),
        (
            "model",
            r#"{"type":"WordPiece","vocab":{"a":3000000000},"unk_token":"?","continuing_subword_prefix":"","max_input_chars_per_word":0}"#,
        ),
        ("model", r#"{"type":"BPE","vocab":{"a":0},"merges":["a b"]}"#),
    ];
    let mut refused = 0;
    for (key, part) in parts {
        let mut changed = valid.clone();
        changed[key] = serde_json::from_str(part).expect("JSON");
        refused += usize::from(use_tokenizer(changed.to_string().as_bytes()).is_err());
    }
    assert!(refused >= 6, "only {refused} are refused");
}

// TOML

/// Reads the text as a run config and asks it what can be asked without running it: what is taken can be written, read
/// again, and used.
fn use_config(text: &str) -> Result<(), String> {
    let config = RunConfig::from_toml(text, "changed.toml").map_err(|error| naming("changed.toml", &error))?;
    let written = config.to_toml();
    let again = RunConfig::from_toml(&written, "written.toml").unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(again, config);
    config.mesh().unwrap_or_else(|error| panic!("{error}\n{text}"));
    config.rule_sets().unwrap_or_else(|error| panic!("{error}\n{text}"));
    Ok(())
}

const VALID_CONFIG: &str = include_str!("../../examples/configs/default.toml");

/// A config with as many layers as there may be is taken, and one with more is refused at once: nothing walks through
/// them.
#[test]
fn layers_without_number_are_not_walked_through() {
    for family in ["llama", "mixtral", "deepseek"] {
        let with = |layers: i64| use_config(&format!("[model]\nfamily = {family:?}\nlayers = {layers}\n"));
        assert_eq!(with(1000), Ok(()), "{family}");
        let refused = with(i64::MAX).expect_err(family);
        assert!(
            refused.contains("model.layers is 9223372036854775807: it must be an integer from 1 to 1000"),
            "{refused}"
        );
    }
}

/// Returns the options of proptest: all cases, or few of them.
fn configured(name: &str, few: usize, all: u32) -> ProptestConfig {
    let cases = cases(name, few, 0..all).len() as u32;
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(configured("train changed files", 300, 2000))]

    #[test]
    fn random_bytes_are_no_parameters(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(read_parameters(&bytes).is_err());
    }

    #[test]
    fn changed_parameter_files_are_read_or_refused(changes in changes()) {
        if let Ok(read) = read_parameters(&apply(valid_parameters(), &changes)) {
            prop_assert_eq!(read, 35);
        }
    }

    #[test]
    fn random_bytes_are_no_config(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        // Most inputs are not TOML; the few that are have no key.
        if use_config(&String::from_utf8_lossy(&bytes)).is_ok() {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            prop_assert_eq!(RunConfig::from_toml(&text, "random.toml").expect("it was taken"), RunConfig::default());
        }
    }

    #[test]
    fn changed_configs_are_read_or_refused(changes in changes()) {
        let changed = apply(VALID_CONFIG.as_bytes(), &changes);
        let used = use_config(&String::from_utf8_lossy(&changed));
        prop_assert!(used.is_ok() || changed != VALID_CONFIG.as_bytes(), "{:?}", used);
    }

    #[test]
    fn random_bytes_are_no_tokenizer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(use_tokenizer(&bytes).is_err());
    }
}

proptest! {
    // Each case writes files and reads them in ways that differ.
    #![proptest_config(configured("train random texts", 20, 60))]

    #[test]
    fn any_bytes_are_text_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
        let tokenizer = TOKENIZER.get_or_init(|| Tokenizer::from_json(valid_tokenizer(), "valid").expect("a tokenizer"));
        // As text, as lines of JSON, and as what should be compressed.
        for name in ["random.txt", "random.jsonl", "random.txt.gz", "random.jsonl.zst"] {
            let files = TextFiles::new(&[(name, &bytes)]);
            for tokenizer in [tokenizer, &Tokenizer::bytes()] {
                for bad_lines in ["error", "skip"] {
                    if let Ok(dataset) = files.open(tokenizer, 7, &[&format!("data.bad_lines={bad_lines}")]) {
                        let batch = dataset.batch(0, 3, 2).expect("a batch");
                        prop_assert_eq!(batch.tokens.ty().element_count(), 14);
                    }
                }
            }
        }
    }
}

proptest! {
    // Each case reads a file of 20 kB.
    #![proptest_config(configured("train changed tokenizers", 100, 300))]

    #[test]
    fn changed_tokenizers_work_or_are_refused(changes in changes()) {
        let changed = apply(valid_tokenizer(), &changes);
        let used = use_tokenizer(&changed);
        prop_assert!(used.is_ok() || changed != valid_tokenizer(), "{:?}", used);
    }
}
