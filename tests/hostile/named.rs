//! The faults that an attack found, each with the error that names what raises the limit, or what must be another.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;

use hlo_dump::{Caller, Ran};
use meshloom::hlo::files;
use meshloom::sharding::RuleFile;
use meshloom_models::families::Published;
use meshloom_train::config::RunConfig;
use meshloom_train::tokenizer::Tokenizer;
use support::text_files::{TextFiles, gzip, zstd};

const MODULE: &str = "HloModule m\n\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n";

fn dump(words: &[&str], input: &[u8]) -> Ran {
    hlo_dump::run(words.iter().copied(), Caller { input: input.to_vec(), ..Caller::default() })
}

#[track_caller]
fn refused(words: &[&str], input: &[u8], says: &str) {
    let ran = dump(words, input);
    let error = String::from_utf8(ran.err).expect("text");
    assert_eq!(ran.status, 2, "{error}");
    assert!(error.contains(says), "{error}");
}

#[test]
fn a_bomb_of_gzip_is_refused_and_may_be_allowed() {
    let plain = [MODULE.as_bytes(), &vec![b'\n'; 1 << 20]].concat();
    let bomb = gzip(&plain);
    refused(&["collectives", "-", "--max-size", "100KiB"], &bomb, "decompressed, it has more than 102400 bytes");
    refused(&["collectives", "-", "--max-size", "100KiB"], &bomb, "--max-size of hlo-dump, raises it");
    assert_eq!(dump(&["collectives", "-", "--max-size", "2MiB"], &bomb).status, 0);
    assert_eq!(dump(&["collectives", "-"], &bomb).status, 0);
}

#[test]
fn a_module_far_larger_than_its_text_is_refused() {
    let tuple = format!("HloModule m\n\nENTRY e {{\n  t = ({}f32[]) parameter(0)\n}}\n", "f32[],".repeat(1 << 17));
    refused(&["show", "-"], tuple.as_bytes(), "takes more than 40.0 MiB of memory");
    refused(&["show", "-"], tuple.as_bytes(), "--max-size of hlo-dump, raises the limit");
    assert_eq!(dump(&["collectives", "-", "--max-size", "1GiB"], tuple.as_bytes()).status, 0);
    let constant = "module @m {\n func.func @main() -> tensor<4xi64> {\n  %0 = stablehlo.iota dim = 0 : tensor<4xi64>\n  \
                    %1 = \"stablehlo.transpose\"(%0) {permutation = dense<0> : tensor<200000000xi64>} : \
                    (tensor<4xi64>) -> tensor<4xi64>\n  return %1 : tensor<4xi64>\n }\n}\n";
    refused(&["show", "-"], constant.as_bytes(), "takes more than 40.0 MiB of memory");
}

#[test]
fn calls_nest_as_deep_as_is_allowed() {
    let mut text = "HloModule m\n\nw0 {\n  ROOT x = s32[] parameter(0)\n}\n".to_owned();
    for number in 1..=2000 {
        let before = number - 1;
        text += &format!("w{number} {{\n  x = s32[] parameter(0)\n  ROOT c = s32[] call(x), to_apply=w{before}\n}}\n");
    }
    text += "ENTRY e {\n  x = s32[] parameter(0)\n  ROOT c = s32[] call(x), to_apply=w2000\n}\n";
    refused(&["collectives", "-"], text.as_bytes(), "more than 1000 deep");
    refused(&["collectives", "-"], text.as_bytes(), "--max-depth of hlo-dump");
    assert_eq!(dump(&["collectives", "-", "--max-depth", "3000"], text.as_bytes()).status, 0);
}

#[test]
fn escapes_in_names_are_shown() {
    let text = "HloModule m\n\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n";
    let mut module = meshloom::hlo::parse::parse(text).expect("a module").hlo_module.expect("a module");
    module.computations[0].instructions[0].name = "a\u{1b}[2J\u{9b}31m\u{202e}".to_owned();
    let bytes = prost::Message::encode_to_vec(&module);
    for words in [&["show", "-", "--full"][..], &["show", "-", "--json"], &["memory", "-"], &["show", "-"]] {
        let ran = dump(&[words, &["--color", "always"]].concat(), &bytes);
        assert_eq!(ran.status, 0, "{words:?}");
        let out = String::from_utf8(ran.out).expect("text");
        // Without --full, names are renumbered as they stand.
        assert!(out.contains("\\u001b[2J"), "{words:?}: {out}");
        for sent in ["\u{1b}[2J", "\u{9b}", "\u{202e}"] {
            assert!(
                !out.contains(sent) && !ran.err.windows(sent.len()).any(|part| part == sent.as_bytes()),
                "{words:?}"
            );
        }
    }
    let error = dump(&["show", "\u{1b}[2Jnothing", "--color", "always"], b"").err;
    let error = String::from_utf8(error).expect("text");
    assert!(error.contains("\\u001b[2Jnothing") && error.contains("\u{1b}[31m"), "{error:?}");
}

#[test]
fn a_stream_of_the_process_is_read_and_other_pipes_are_not() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(MODULE.as_bytes()).expect("written");
    drop(writer);
    let own = format!("/dev/fd/{}", reader.as_raw_fd());
    assert_eq!(dump(&["show", &own], b"").status, 0);
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("config.json");
    std::os::unix::fs::symlink(&own, &link).expect("a link");
    let error = Published::open(folder.path()).map(drop).expect_err("refused").to_string();
    assert!(error.contains("a pipe, socket or device, and only regular files are read"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, [b'x'; 11]).expect("written");
    let error = files::read(&file, 10).expect_err("too large").to_string();
    assert!(error.contains("it has more than 10 B") && error.contains("MESHLOOM_MAX_SIZE=SIZE"), "{error}");
    assert_eq!(files::read(&file, 11).expect("read").len(), 11);
}

#[test]
fn sizes_are_judged_before_anything_is_built() {
    for (key, value, says) in [
        (
            "head_dim",
            "9223372036854775806",
            "model.head_dim is 9223372036854775806: it must be an even integer from 2 to 65536",
        ),
        ("head_dim", "1099511627776", "model.head_dim"),
        ("layers", "1099511627776", "model.layers"),
        ("vocab", "4294967296", "model.vocab"),
    ] {
        let error = RunConfig::from_overrides(&[format!("model.{key}={value}")]).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
    let sizes = ["model.embed=2000000000", "model.vocab=2000000000"].map(str::to_owned);
    let error = RunConfig::from_overrides(&sizes).expect_err("refused").to_string();
    assert!(error.contains("more than can be addressed"), "{error}");
    let experts = ["model.family=mixtral", "model.family.experts=2000000"].map(str::to_owned);
    let error = RunConfig::from_overrides(&experts).expect_err("refused").to_string();
    assert!(error.contains("model.family.experts"), "{error}");
    let published = |key: &str| {
        format!(
            "{{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_size\":8,\
             \"num_hidden_layers\":2,\"vocab_size\":256,{key}}}"
        )
    };
    assert!(Published::parse("config.json", &published("\"head_dim\":16")).is_ok());
    let error = Published::parse("config.json", &published("\"head_dim\":1048576")).map(drop).expect_err("refused");
    assert!(error.to_string().contains("\"head_dim\" = 1048576, but it must be at most 65536"), "{error}");
}

#[test]
fn rules_of_a_tokenizer_do_not_let_a_text_grow() {
    let with = |rules: &str| {
        let model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}";
        Tokenizer::from_json(format!("{{\"version\":\"1.0\",{rules},\"model\":{model}}}").as_bytes(), "t.json")
    };
    let doubling = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}";
    let rules = |kind: &str, list: &str, count: usize| {
        format!("\"{kind}\":{{\"type\":\"Sequence\",\"{list}\":[{}]}}", vec![doubling; count].join(","))
    };
    assert!(with(&rules("normalizer", "normalizers", 6)).is_ok());
    for (kind, list) in [("normalizer", "normalizers"), ("decoder", "decoders")] {
        let error = with(&rules(kind, list, 7)).map(drop).expect_err("refused").to_string();
        assert!(error.contains(&format!("its {kind} makes 128 bytes of each byte")), "{error}");
    }
}

#[test]
fn a_bomb_of_compressed_data_is_refused_and_may_be_allowed() {
    let text = format!("{{\"text\": \"{}\"}}\n", "a".repeat(17 << 20));
    for (name, bytes) in [("a.jsonl.zst", zstd(text.as_bytes())), ("a.jsonl.gz", gzip(text.as_bytes()))] {
        let files = TextFiles::new(&[(name, &bytes)]);
        let error = files.open(&Tokenizer::bytes(), 16, &[]).map(drop).expect_err("refused").to_string();
        assert!(error.contains("it has more than 16.0 MiB; data.max_expansion raises the limit"), "{error}");
        assert!(files.open(&Tokenizer::bytes(), 16, &["data.max_expansion=100000"]).is_ok(), "{name}");
    }
}

#[test]
fn rule_files_nest_so_deep() {
    for text in [format!("? {}\n", "- ".repeat(100_000)), format!("logical_axis_rules: {}", "[".repeat(100))] {
        assert!(RuleFile::parse(&text, "rules.yml").is_err());
    }
    let error = RuleFile::parse(&"- ".repeat(100), "rules.yml").map(drop).expect_err("refused").to_string();
    assert!(error.contains("nested more than 64 levels deep"), "{error}");
}
