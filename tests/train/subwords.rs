//! Tokenizers in the forms of published families, against transformers (tests/oracle/subwords.py), and the text of
//! tokens that come one at a time.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use insta::assert_snapshot;
use meshloom_train::next_bits;
use meshloom_train::tokenizer::{TextStream, Tokenizer, stop_tokens};

#[derive(serde::Deserialize)]
struct Golden {
    texts: Vec<String>,
    tokenizers: BTreeMap<String, Columns>,
}

/// For each text: its tokens, those with special ones around it, and the text of the latter without and with special
/// tokens, where it is another.
#[derive(serde::Deserialize)]
struct Columns {
    plain: Vec<Vec<i32>>,
    special: Vec<Vec<i32>>,
    skipped: Vec<Option<String>>,
    kept: Vec<Option<String>>,
}

fn golden() -> Golden {
    let file = std::fs::File::open(support::path("tests/oracle/subwords/golden.json.gz")).expect("the golden file");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("it is compressed");
    serde_json::from_str(&text).expect("the golden file")
}

fn load(name: &str) -> Tokenizer {
    let file = support::path(format!("tests/oracle/subwords/{name}.json"));
    Tokenizer::load(file).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn tokens_and_texts_are_those_of_transformers() {
    let Golden { texts, tokenizers } = golden();
    assert_eq!((texts.len(), tokenizers.len()), (1000, 6));
    for (name, expected) in &tokenizers {
        let tokenizer = load(name);
        for (number, text) in texts.iter().enumerate() {
            let what = format!("{name}, text {number}, {text:?}");
            let special = tokenizer.encode_with_special(text).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), expected.plain[number], "{what}");
            assert_eq!(special, expected.special[number], "{what}");
            let same = |found: &Option<String>| found.as_ref().unwrap_or(text).clone();
            assert_eq!(tokenizer.decode(&special), same(&expected.skipped[number]), "{what}");
            assert_eq!(tokenizer.decode_with_special(&special), same(&expected.kept[number]), "{what}");
        }
    }
}

/// The texts of a stream, joined.
fn streamed(mut stream: TextStream<'_>, tokens: &[i32], what: &str) -> String {
    let mut joined = String::new();
    for &token in tokens {
        let added = stream.push(token);
        // The replacement of half a character may only appear once it is known that the other half does not follow.
        assert!(!added.ends_with('\u{fffd}'), "{what}: {joined:?}, then {added:?}");
        joined += &added;
    }
    joined + &stream.finish()
}

fn check_stream(tokenizer: &Tokenizer, tokens: &[i32], what: &str) {
    assert_eq!(streamed(tokenizer.stream(), tokens, what), tokenizer.decode(tokens), "{what}: {tokens:?}");
}

#[test]
fn texts_of_a_stream_are_those_of_all_tokens() {
    let Golden { texts, tokenizers } = golden();
    for (name, expected) in &tokenizers {
        let tokenizer = load(name);
        for (text, tokens) in texts.iter().zip(&expected.special) {
            check_stream(&tokenizer, tokens, &format!("{name}, {text:?}"));
        }
    }
    let bytes = Tokenizer::bytes();
    for text in &texts {
        check_stream(&bytes, &bytes.encode(text).unwrap(), &format!("bytes, {text:?}"));
    }
}

/// Any tokens, also those that no text has: halves of characters, wrong bytes, special ones and none at all.
#[test]
fn texts_of_a_stream_are_those_of_any_tokens() {
    let mut state = 5;
    let mut below = |most: u64| next_bits(&mut state) % most;
    for name in ["llama-3", "qwen", "llama-2", "mistral", "gemma", "unigram", "bytes"] {
        let tokenizer = if name == "bytes" { Tokenizer::bytes() } else { load(name) };
        let count = tokenizer.vocabulary_size() as u64 + 3;
        for number in 0..1500 {
            // Mostly bytes and special tokens, which have low numbers, or one of the last.
            let mut token = || match below(4) {
                0 => below(count),
                1 => count - 1 - below(8),
                _ => below(270),
            };
            let tokens: Vec<i32> = (0..12).map(|_| token() as i32 - i32::from(number % 50 == 0)).collect();
            check_stream(&tokenizer, &tokens, name);
        }
    }
}

/// A character of several tokens appears with its last; one of bytes in a run, once the run has ended.
#[test]
fn text_appears_when_a_character_is_whole() {
    let pieces = |name: &str, text: &str| {
        let tokenizer = load(name);
        let mut stream = tokenizer.stream();
        let mut pieces: Vec<String> =
            tokenizer.encode_with_special(text).unwrap().into_iter().map(|token| stream.push(token)).collect();
        pieces.push(stream.finish());
        format!("{pieces:?}")
    };
    let found = [pieces("llama-3", "the 🦀!"), pieces("llama-2", "the 🦀!"), pieces("gemma", "🦀🦀")];
    assert_snapshot!(found.join("\n"), @r#"
    ["", "the", " ", "", "🦀", "!", ""]
    ["", "the", " ", "", "", "", "", "🦀!", ""]
    ["", "", "", "", "", "", "", "", "", "🦀🦀"]
    "#);
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn special_tokens_are_those_of_the_files() {
    let (llama_3, gemma) = (load("llama-3"), load("gemma"));
    assert_eq!(llama_3.token("<|eot_id|>"), Some(899));
    assert_eq!(llama_3.token("<|no_such_token|>"), None);
    assert_eq!((Tokenizer::bytes().token("A"), Tokenizer::bytes().token("é")), (Some(65), None));
    let folder = tempfile::tempdir().unwrap();
    let open = |tokenizer: &Tokenizer| match stop_tokens(folder.path(), tokenizer) {
        Ok(stops) => format!("{stops:?}"),
        Err(error) => error.to_string().replace(&folder.path().display().to_string(), "folder"),
    };
    let mut found = vec![open(&llama_3)];
    let settings = r#"{"bos_token": {"content": "<bos>", "lstrip": false}, "eos_token": "<eos>", "pad_token": null}"#;
    write(folder.path(), "tokenizer_config.json", settings);
    found.extend([open(&gemma), open(&llama_3)]);
    write(
        folder.path(),
        "config.json",
        r#"{"eos_token_id": null, "text_config": {"eos_token_id": 7}, "pad_token_id": 0}"#,
    );
    found.push(open(&gemma));
    write(folder.path(), "generation_config.json", r#"{"eos_token_id": [1, 106], "bos_token_id": -1}"#);
    found.push(open(&gemma));
    for wrong in [r#"{"eos_token_id": "x"}"#, r#"{"eos_token_id": [1, -1]}"#, "[]", r#"{"a": 1, "a": 2}"#] {
        write(folder.path(), "generation_config.json", wrong);
        found.push(open(&gemma));
    }
    assert_snapshot!(found.join("\n"), @r#"
    []
    [1]
    "folder/tokenizer_config.json" has "eos_token" = "<eos>", but the tokenizer has no such token; take the tokenizer.json beside the file
    [7]
    [1, 106]
    "folder/generation_config.json" has "eos_token_id" = "x", but it must be the number of a token, or a list of such
    "folder/generation_config.json" has "eos_token_id" = [1,-1], but it must be the number of a token, or a list of such
    "folder/generation_config.json" is not a JSON object that can be read: it is another value
    "folder/generation_config.json" is not a JSON object that can be read: the key "a" is there twice; keep one at line 1 column 12
    "#);
}
