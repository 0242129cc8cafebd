//! From files to rows: formats, lines that cannot be used, the token cache, windows, weights.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;

use insta::assert_snapshot;
use meshloom::ir::Literal;
use meshloom_train::data::{TextDataset, Tokenized};
use meshloom_train::tokenizer::Tokenizer;
use meshloom_train::tokenizer::decode_bytes;
use support::configs::TOKENIZER;
use support::text_files::{TextFiles, gzip, zstd};

fn bytes() -> Tokenizer {
    Tokenizer::bytes()
}

fn open(files: &TextFiles, settings: &[&str]) -> TextDataset {
    files.open(&bytes(), 16, settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

#[track_caller]
fn error(files: &TextFiles, tokenizer: &Tokenizer, settings: &[&str]) -> String {
    files.without_folder(files.open(tokenizer, 16, settings).map(drop).expect_err("refused"))
}

fn texts(dataset: &TextDataset) -> Vec<String> {
    let document = |number| dataset.document(number).unwrap().expect("a document");
    (0..dataset.document_count()).map(|number| decode_bytes(&document(number))).collect()
}

/// Returns the texts of the segments of a row.
fn segments(batch: &meshloom_train::data::Batch, row: usize, length: usize) -> Vec<String> {
    let tokens: Vec<i32> = batch.tokens.to_vec().unwrap();
    let ids: Vec<i32> = batch.segment_ids.to_vec().unwrap();
    let range = row * length..(row + 1) * length;
    let of = |id: i32| range.clone().filter(|&at| ids[at] == id).map(|at| tokens[at]).collect::<Vec<_>>();
    (1..=ids[range.clone()].iter().copied().max().unwrap_or(0)).map(|id| decode_bytes(&of(id))).collect()
}

/// JSON Lines of documents `document 0`, `document 1`, ...
fn numbered(count: usize) -> Vec<u8> {
    (0..count).map(|number| format!("{{\"text\": \"document {number}\"}}\n")).collect::<String>().into_bytes()
}

// Formats.

#[test]
fn every_format_has_the_same_documents() {
    let paragraph = |letter: &str| format!("{}\u{e9}\n\n", letter.repeat(200));
    let text = ["a", "b", "c"].map(paragraph);
    let lines: String = text.iter().map(|text| serde_json::json!({"id": 3, "text": text}).to_string() + "\n").collect();
    // A line of its own, more fields of every kind, escapes, an empty line, and no line end at the end.
    let lines =
        "\u{feff}".to_owned() + &lines + "  \n" + r#"{"more": [{"text": 1}, null], "text": "caf\u00e9 \ud83d\ude00"}"#;
    let escaped = "caf\u{e9} \u{1f600}";
    for (ending, compress) in
        [("", (|bytes: &[u8]| bytes.to_vec()) as fn(&[u8]) -> Vec<u8>), (".gz", gzip), (".zst", zstd)]
    {
        let plain = TextFiles::new(&[(&format!("a.txt{ending}"), &compress(text.concat().as_bytes()))]);
        assert_eq!(texts(&open(&plain, &[])), text, "txt{ending}");
        for name in ["a.jsonl", "a.NDJSON"] {
            let json = TextFiles::new(&[(&format!("{name}{ending}"), &compress(lines.as_bytes()))]);
            let dataset = open(&json, &[]);
            assert_eq!(texts(&dataset), [&text[0], &text[1], &text[2], escaped], "{name}{ending}");
            assert_eq!(dataset.byte_count(), (text.concat().len() + escaped.len()) as u64);
        }
    }
}

#[test]
fn another_field() {
    let files = TextFiles::new(&[("a.jsonl", b"{\"text\": \"no\", \"body\": \"yes\"}\n")]);
    assert_eq!(texts(&open(&files, &["data.field=body"])), ["yes"]);
    assert_eq!(texts(&open(&files, &[])), ["no"]);
}

#[test]
fn files_folders_and_globs() {
    let json = |text: &str| format!("{{\"text\": \"{text}\"}}\n").into_bytes();
    let files = TextFiles::new(&[
        ("b.jsonl", &json("b")),
        ("a/2.txt", b"a2"),
        ("a/10.md", b"a10"),
        ("a/deep/1.ndjson.gz", &gzip(&json("deep"))),
        ("a/picture.png", b"no text"),
        (".hidden/x.txt", b"hidden"),
        ("odd[1].log", b"odd"),
    ]);
    let of = |patterns: &[&str]| {
        let sources: Vec<String> = patterns.iter().map(|name| files.path(name).display().to_string()).collect();
        texts(&open(&files, &[&format!("data.sources={sources:?}")]))
    };
    assert_eq!(of(&[""]), ["a10", "a2", "deep", "b"]);
    assert_eq!(of(&["b.jsonl", "a"]), ["b", "a10", "a2", "deep"]);
    assert_eq!(of(&["*/*.txt", "*.jsonl"]), ["a2", "b"]);
    assert_eq!(of(&["a/**/*.gz"]), ["deep"]);
    // A name of a file wins over what it says as a glob, and a file that is named need not end like text.
    assert_eq!(of(&["odd[1].log"]), ["odd"]);
}

/// A text is read piece by piece, and is what it was whatever the pieces.
#[test]
fn documents_longer_than_a_chunk() {
    let long = "x".repeat(9 << 20) + "\n\n" + &"y ".repeat(3 << 20) + "\n\nend";
    let files = TextFiles::new(&[("a.txt.zst", &zstd(long.as_bytes()))]);
    assert!(texts(&open(&files, &[])).concat() == long);
}

/// Frames that the program `zstd` has made: `zstd -19 --long=31` of what it got by a pipe, with a window of 2 GiB and a
/// checksum; one to skip; and `zstd --no-check` of a file, which states its length.
const FRAMES: &[u8] = include_bytes!("zstd/frames.jsonl.zst");

#[test]
fn frames_of_the_program_zstd() {
    let files = TextFiles::new(&[("a.jsonl.zst", FRAMES)]);
    let expected: Vec<String> = (0..40).map(|number| format!("document {number}")).collect();
    assert_eq!(texts(&open(&files, &[])), expected);

    let wrong = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frames = FRAMES.to_vec();
        change(&mut frames);
        let message = error(&TextFiles::new(&[("a.jsonl.zst", &frames)]), &bytes(), &[]);
        let rest = message.strip_prefix("DIR/files/a.jsonl.zst:").expect("the file");
        rest.strip_suffix("; it is damaged or cut off: fetch it again").expect("the advice").to_owned()
    };
    // Behind the magic number of a frame is what it has, then the size of its window, or the length.
    let (to_skip, second) = (92, 105);
    assert_snapshot!(wrong(&|frames| frames[5] = 22 << 3), @"1: the file cannot be read from this line on: a frame has a window of 4294967296 bytes, and 2147483648 are the most that is read");
    assert_snapshot!(wrong(&|frames| frames[4] |= 0b1000), @"1: the file cannot be read from this line on: a bit is set in the header of a frame that no version of zstd has");
    assert_snapshot!(wrong(&|frames| frames[4] |= 0b1), @"1: the file cannot be read from this line on: a frame needs a dictionary, and none is known");
    assert_snapshot!(wrong(&|frames| frames[to_skip - 1] ^= 1), @"21: the file cannot be read from this line on: a frame does not have the checksum that it states");
    assert_snapshot!(wrong(&|frames| frames[second + 5] += 1), @"41: the file cannot be read from this line on: a frame of 481 bytes has 480");
    assert_snapshot!(wrong(&|frames| frames.truncate(second - 1)), @"21: the file cannot be read from this line on: it ends within a frame");
    assert_snapshot!(wrong(&|frames| frames.truncate(second + 3)), @"21: the file cannot be read from this line on: it ends within a frame");
    assert_snapshot!(wrong(&|frames| frames.truncate(FRAMES.len() - 1)), @"21: the file cannot be read from this line on: it ends within a frame");
    assert_snapshot!(wrong(&|frames| frames.push(b'x')), @"41: the file cannot be read from this line on: it ends within a frame");
    assert_snapshot!(wrong(&|frames| frames.extend(b"more text")), @"41: the file cannot be read from this line on: what should be a frame of zstd does not begin as one");
}

// Lines that cannot be used.

#[test]
fn bad_lines_are_named_or_left_out() {
    let good = "{\"text\": \"good\"}\n";
    let subword = Tokenizer::load(TOKENIZER).unwrap();
    let long = "words ".repeat(40);
    let text = [long.as_bytes(), b"\n\nfirst\nbad \xff line\nlast\n"].concat();
    let after = |bad: &[u8]| [good.as_bytes(), b"\n", bad, b"\n", good.as_bytes()].concat();
    let bad: [(&str, Vec<u8>, &str); 8] = [
        (
            "a.jsonl",
            after(b"{\"text\": "),
            ":3: it is not a JSON object with a string as \"text\": EOF while parsing a value, column 8",
        ),
        (
            "a.jsonl",
            after(b"{\"text\": \"x\"} more"),
            ":3: it is not a JSON object with a string as \"text\": trailing characters, column 15",
        ),
        (
            "a.jsonl",
            after(b"[\"text\"]"),
            ":3: it is not a JSON object with a string as \"text\": invalid type: sequence, expected an object",
        ),
        ("a.jsonl", after(b"{\"body\": \"x\"}"), ":3: the object has no field \"text\"; data.field names the field"),
        (
            "a.jsonl",
            after(b"{\"text\": 3}"),
            ":3: it is not a JSON object with a string as \"text\": invalid type: integer `3`, expected a string, column 10",
        ),
        (
            "a.jsonl",
            after(b"{\"text\": null}"),
            ":3: it is not a JSON object with a string as \"text\": invalid type: null, expected a string, column 13",
        ),
        ("a.jsonl", after(b"{\"text\": \"\xff\"}"), ":3: the line is not UTF-8 at its byte 11"),
        ("a.txt", text, ":4: the line is not UTF-8 at its byte 5"),
    ];
    for (name, text, message) in &bad {
        for (ending, text) in [("", text.clone()), (".gz", gzip(text)), (".zst", zstd(text))] {
            let name = &format!("{name}{ending}");
            let files = TextFiles::new(&[(name, &text)]);
            let advice = "; mend the line, or set data.bad_lines = \"skip\" to leave out such lines";
            assert_eq!(error(&files, &subword, &[]), format!("DIR/files/{name}{message}{advice}"));
            // Left out and counted; also when the tokens come from the cache, which errors do not fall for.
            for tokenized in [1, 0] {
                let dataset = files.open(&subword, 16, &["data.bad_lines=skip"]).unwrap();
                assert_eq!(dataset.tokenized_files(), tokenized);
                let [skipped] = dataset.skipped_lines() else { panic!("{:?}", dataset.skipped_lines()) };
                assert_eq!((skipped.count, format!(":{}: {}", skipped.line, skipped.reason)), (1, message.to_string()));
                let document = |number| subword.decode(&dataset.document(number).unwrap().unwrap());
                match name.starts_with("a.txt") {
                    true => assert_eq!(document(1), "first\nlast\n"),
                    false => assert_eq!([document(0), document(1)], ["good", "good"]),
                }
                assert_eq!(dataset.document_count(), 2);
            }
            assert_eq!(error(&files, &subword, &[]), format!("DIR/files/{name}{message}{advice}"));
        }
    }
    // Bytes need no characters.
    assert_eq!(open(&TextFiles::new(&[("a.txt", &bad[7].1)]), &[]).byte_count(), bad[7].1.len() as u64);
}

/// A file that is cut off is an error under every policy, because the missing part is unknown.
#[test]
fn damaged_files_are_named_with_the_line() {
    let lines = numbered(20_000);
    for (name, compressed) in [("a.jsonl.gz", gzip(&lines)), ("a.jsonl.zst", zstd(&lines))] {
        for kept in [compressed.len() - 1, compressed.len() / 4] {
            let files = TextFiles::new(&[(name, &compressed[..kept])]);
            for policy in ["data.bad_lines=error", "data.bad_lines=skip"] {
                let message = error(&files, &bytes(), &[policy]);
                let rest = message.strip_prefix(&format!("DIR/files/{name}:")).unwrap_or_else(|| panic!("{message}"));
                let (line, rest) = rest.split_once(": ").unwrap();
                let line: u64 = line.parse().unwrap();
                assert!((1..=20_001).contains(&line) && (line > 10_000) == (kept > compressed.len() / 2), "{message}");
                assert!(rest.starts_with("the file cannot be read from this line on: "), "{message}");
                assert!(rest.ends_with("; it is damaged or cut off: fetch it again"), "{message}");
            }
            // Nothing is left of it.
            assert_eq!(fs::read_dir(files.cache()).unwrap().count(), 0);
        }
        let mut changed = compressed.clone();
        changed[compressed.len() / 3] ^= 0x55;
        let message = error(&TextFiles::new(&[(name, &changed)]), &bytes(), &[]);
        assert!(message.contains("damaged or cut off"), "{message}");
    }
}

#[test]
fn what_is_no_text_is_refused() {
    let files = TextFiles::new(&[("empty.txt", b""), ("blank.jsonl", b"\n\n"), ("sub/picture.png", b"x")]);
    let of = |name: &str| {
        let sources = format!("data.sources=[{:?}]", files.path(name));
        error(&files, &bytes(), &[&sources])
    };
    assert_snapshot!(of("empty.txt"), @r#"the text "DIR/files/empty.txt" has 0 tokens in 0 documents, but a document of at least 2 is needed to predict one from another; add to data.sources"#);
    assert_snapshot!(of("blank.jsonl"), @r#"the text "DIR/files/blank.jsonl" has 0 tokens in 0 documents, but a document of at least 2 is needed to predict one from another; add to data.sources"#);
    assert_snapshot!(of("missing.txt"), @r#"cannot read the text "DIR/files/missing.txt": No such file or directory (os error 2); data.sources names it"#);
    assert_snapshot!(of("*.gz"), @r#"data.sources has "DIR/files/*.gz", but no file matches it"#);
    assert_snapshot!(of("sub"), @r#"data.sources has "DIR/files/sub", but no file below it ends in one of .txt, .md, .jsonl, .ndjson, alone or with .gz or .zst"#);
    // The position depends on the folder's name.
    let no_glob = of("***");
    assert!(
        no_glob.starts_with("data.sources has \"DIR/files/***\", but it is no glob: Pattern syntax error"),
        "{no_glob}"
    );
    let cache = format!("data.cache={:?}", files.path("empty.txt"));
    assert_snapshot!(error(&files, &bytes(), &[&cache]), @r#"cannot create "DIR/files/empty.txt" in the token cache: File exists (os error 17); set data.cache to a folder that can be written"#);
}

/// Bytes of another format are tokens as well, so the first of them are looked at; also of what an older version has
/// left in the cache.
#[test]
fn other_formats_are_refused() {
    let text = b"text enough for a document";
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("a.txt", gzip(text), "a gzip file, but is read as text; rename it, so that it ends in .gz"),
        ("a.md", zstd(text), "a zstd file, but is read as text; rename it, so that it ends in .zst"),
        ("a.bz2", b"BZh91AY&SY".to_vec(), "a bzip2 file, but is read as text; unpack it"),
        ("a.xz", b"\xfd7zXZ\0\0\x04".to_vec(), "an xz file, but is read as text; unpack it"),
        ("a.zip", b"PK\x03\x04\x14\0".to_vec(), "a zip file, but is read as text; unpack it"),
        (
            "a.parquet",
            b"PAR1\x15\x04".to_vec(),
            "a Parquet file, but is read as text; write its text to a file that ends in .jsonl",
        ),
    ];
    for (name, contents, what) in cases {
        let files = TextFiles::new(&[(name, &contents)]);
        let source = format!("data.sources=[{:?}]", files.path("*"));
        assert_eq!(error(&files, &bytes(), &[&source]), format!("DIR/files/{name} is {what}; data.sources names it"));
        let validation = format!("validation.sources=[{:?}]", files.path(name));
        let config = files.config(&[&[&validation]]);
        let sources = (&config.data, &config.validation.sources[..]);
        let refused = TextDataset::open_validation(sources, &bytes(), 16, &|_| ()).map(drop).expect_err("refused");
        assert!(refused.to_string().ends_with("; validation.sources names it"), "{refused}");
        assert!(!files.cache().exists() || fs::read_dir(files.cache()).unwrap().count() == 0);
    }
    // Text may begin with a part of them, or be shorter than they are.
    for text in ["PAR", "PK is short for", "BZ"] {
        assert_eq!(texts(&open(&TextFiles::new(&[("a.txt", text.as_bytes())]), &[])), [text]);
    }
}

/// Only a token behind another of its document is a target, in rows of any form and length.
#[test]
fn text_without_targets_is_refused() {
    let one = b"{\"text\": \"a\"}\n".repeat(100);
    let files = TextFiles::new(&[("one.jsonl", &one), ("more.jsonl", b"{\"text\": \"abcde\"}\n{\"text\": \"ab\"}\n")]);
    let sources =
        |names: &[&str]| format!("data.sources={:?}", names.iter().map(|name| files.path(name)).collect::<Vec<_>>());
    let (alone, both) = (sources(&["one.jsonl"]), sources(&["one.jsonl", "more.jsonl"]));
    let message = "the text \"DIR/files/one.jsonl\" has 100 tokens in 100 documents, but a document of at least 2 is \
                   needed to predict one from another; add to data.sources";
    for rows in ["data.documents=packed", "data.documents=one-per-row"] {
        assert_eq!(error(&files, &bytes(), &[&alone, rows]), message);
        // Without weights they are one source.
        for length in [1, 2, 3, 64] {
            let dataset = files.open(&bytes(), length, &[&both, rows]).unwrap();
            let batch = dataset.batch(0, 0, dataset.rows_per_epoch(0).unwrap() as usize).unwrap();
            let targets: f64 = Literal::to_f64_vec(&batch.weights).iter().sum();
            assert_eq!(targets, (dataset.token_count() - dataset.document_count()) as f64, "{rows}, {length}");
            assert_eq!(targets, 5.0);
        }
        assert_eq!(error(&files, &bytes(), &[&both, rows, "data.weights=[1, 9]"]), message);
    }
}

// The cache.

#[test]
fn files_are_tokenized_once() {
    let files = TextFiles::new(&[("a.txt", b"one document"), ("b.jsonl", &numbered(3))]);
    let subword = Tokenizer::load(TOKENIZER).unwrap();
    let tokenized = |tokenizer: &Tokenizer, settings: &[&str]| {
        let dataset = files.open(tokenizer, 16, settings).unwrap();
        (dataset.tokenized_files(), texts(&dataset))
    };
    let (first, before) = tokenized(&bytes(), &[]);
    assert_eq!((first, before.len()), (2, 4));
    assert_eq!(tokenized(&bytes(), &[]), (0, before.clone()));
    // Rows of another form, another seed or window are made of the same tokens.
    assert_eq!(tokenized(&bytes(), &["data.documents=one-per-row", "data.shuffle_window=1"]).0, 0);
    // Another tokenizer; another field, which only JSON has; other contents; the same contents elsewhere.
    assert_eq!(tokenized(&subword, &[]).0, 2);
    assert_eq!(tokenized(&subword, &[]).0, 0);
    let other = Tokenizer::from_json(&[fs::read(TOKENIZER).unwrap(), b"\n".to_vec()].concat(), "other").unwrap();
    assert_eq!(tokenized(&other, &[]).0, 2);
    files.write("b.jsonl", b"{\"text\": \"x\", \"body\": \"y\"}");
    assert_eq!(tokenized(&bytes(), &[]).0, 1);
    assert_eq!(tokenized(&bytes(), &["data.field=body"]), (1, vec!["one document".to_owned(), "y".to_owned()]));
    files.write("c.txt", b"one document");
    assert_eq!(tokenized(&bytes(), &[]).0, 0);
    // Every entry that is damaged, anywhere, is found so and made again.
    let entries: Vec<_> = fs::read_dir(files.cache()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 8);
    for damage in [
        (|bytes: &mut Vec<u8>| bytes[0] ^= 1) as fn(&mut Vec<u8>),
        |bytes| *bytes.last_mut().unwrap() ^= 1,
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.truncate(20),
        |bytes| bytes.clear(),
        |bytes| bytes.push(0),
    ] {
        for path in &entries {
            let mut bytes = fs::read(path).unwrap();
            damage(&mut bytes);
            fs::write(path, bytes).unwrap();
        }
        // a.txt and c.txt are the same, and each is made.
        let texts = vec!["one document".to_owned(), "x".to_owned(), "one document".to_owned()];
        assert_eq!(tokenized(&bytes(), &[]), (3, texts));
        assert_eq!(tokenized(&bytes(), &[]).0, 0);
    }
    assert_eq!(fs::read_dir(files.cache()).unwrap().count(), 8, "no temporary file is left");
}

/// Progress is in bytes of the files that are read, compressed as they are, and ends at their sum.
#[test]
fn progress_is_in_bytes_of_files() {
    let contents = [gzip(&numbered(3000)), zstd(&numbered(3000)), numbered(9)];
    let [gz, zst, plain] = &contents;
    let files = TextFiles::new(&[("a.jsonl.gz", gz), ("b.jsonl.zst", zst), ("c.jsonl", plain)]);
    for expected in [contents.concat().len() as u64, 0] {
        let most = Mutex::new(0);
        TextDataset::open_with(&files.config(&[]).data, &bytes(), 16, &|Tokenized { done, total }| {
            assert!(done <= total && total == expected, "{done} of {total}");
            let mut most = most.lock().unwrap();
            *most = done.max(*most);
        })
        .unwrap();
        assert_eq!(*most.lock().unwrap(), expected);
    }
}

/// Tokens are kept under a file's digest only if they are of that file, even if another process writes to it meanwhile.
#[test]
fn a_file_that_grows_is_not_kept() {
    let files = TextFiles::new(&[("a.txt", b"one document")]);
    let grown = Mutex::new(false);
    let opened = TextDataset::open_with(&files.config(&[]).data, &bytes(), 16, &|_| {
        let mut grown = grown.lock().unwrap();
        if !std::mem::replace(&mut *grown, true) {
            fs::write(files.path("a.txt"), "one document and more").unwrap();
        }
    });
    let error = files.without_folder(opened.unwrap_err());
    assert!(error.starts_with("the text \"DIR/files/a.txt\" changed while it was read"), "{error}");
    files.write("a.txt", b"one document");
    assert_eq!(texts(&open(&files, &[])), ["one document"]);
}

/// Threads stand for processes: nothing is shared but the folder.
#[test]
fn a_cache_can_be_shared() {
    let files = TextFiles::new(&[("a.jsonl", &numbered(500)), ("b.jsonl", &numbered(400))]);
    let opened = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| texts(&open(&files, &[])))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(opened[0].len(), 900);
    assert!(opened.iter().all(|texts| *texts == opened[0]));
    assert_eq!(fs::read_dir(files.cache()).unwrap().count(), 2);
}

// Rows.

#[test]
fn documents_in_rows_of_their_own() {
    let files =
        TextFiles::new(&[("a.jsonl", b"{\"text\": \"abcde\"}\n{\"text\": \"\"}\n{\"text\": \"vwxyzVWXYZ!\"}\n")]);
    let dataset = files.open(&bytes(), 5, &["data.documents=one-per-row"]).unwrap();
    // The empty one has no row, and the longer one three.
    assert_eq!(dataset.rows_per_epoch(0), Some(4));
    let batch = dataset.batch(0, 0, 4).unwrap();
    let rows: Vec<Vec<String>> = (0..4).map(|row| segments(&batch, row, 5)).collect();
    let (short, long) = (vec!["abcde".to_owned()], ["vwxyz", "VWXYZ", "!"].map(|part| vec![part.to_owned()]));
    let short_first = [std::slice::from_ref(&short), &long].concat();
    let long_first = [&long, std::slice::from_ref(&short)].concat();
    assert!(rows == short_first || rows == long_first, "{rows:?}");
    // The target of a row's last token is the document's next, where there is one.
    let targets: Vec<f64> = Literal::to_f64_vec(&batch.targets);
    let start = if rows == short_first { 5 } else { 0 };
    assert_eq!(targets[start + 4], f64::from(b'V'));
    assert_eq!(Literal::to_f64_vec(&batch.weights).iter().sum::<f64>(), 4.0 + 10.0);
}

/// The order of documents in memory is that of one window, whatever the number of documents; every epoch has each once.
#[test]
fn a_shuffle_takes_one_window() {
    const COUNT: usize = 10_000;
    let files =
        TextFiles::new(&[("a.jsonl", &numbered(7_000)), ("b.jsonl", &numbered(COUNT)[numbered(7_000).len()..])]);
    let settings = ["data.documents=one-per-row", "data.shuffle_window=2048"];
    let dataset = files.open(&bytes(), 16, &settings).unwrap();
    let mut orders = Vec::new();
    for epoch in 0..2 {
        let (mut order, mut most) = (Vec::new(), 0);
        for step in epoch * 100..(epoch + 1) * 100 {
            let batch = dataset.batch(3, step, 100).unwrap();
            order.extend((0..100).map(|row| segments(&batch, row, 16).concat()));
            most = most.max(dataset.documents_in_memory());
        }
        assert_eq!(most, 2048);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), COUNT);
        orders.push(order);
    }
    assert_ne!(orders[0], orders[1]);
    // Documents of a window come from blocks that were drawn, in an order that was drawn.
    let number = |text: &String| text.strip_prefix("document ").unwrap().parse::<usize>().unwrap();
    let start: Vec<usize> = orders[0][..2048].iter().map(number).collect();
    let blocks: BTreeSet<usize> =
        start.iter().map(|number| if *number < 7000 { number / 1024 } else { 7 + (number - 7000) / 1024 }).collect();
    assert!(blocks.len() <= 3, "{blocks:?}");
    assert!(start.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 20);
    // A dataset that begins anywhere reads the same.
    let other = files.open(&bytes(), 16, &settings).unwrap();
    for step in [150, 20, 199, 0, 101] {
        assert_eq!(other.batch(3, step, 100).unwrap(), dataset.batch(3, step, 100).unwrap());
    }
    // In packed rows, some go on from one window into the next.
    let packed = files.open(&bytes(), 16, &["data.shuffle_window=1024"]).unwrap();
    let rows = packed.rows_per_epoch(0).unwrap();
    assert_eq!(rows, packed.token_count().div_ceil(16));
    let all = packed.batch(3, 0, rows as usize).unwrap();
    assert_eq!(
        Literal::to_f64_vec(&all.segment_ids).iter().filter(|id| **id > 0.0).count() as u64,
        packed.token_count()
    );
    let ends = Literal::to_f64_vec(&all.weights).iter().filter(|weight| **weight == 0.0).count() as u64;
    assert_eq!(ends, COUNT as u64 + rows * 16 - packed.token_count(), "each document ends once");
}

#[test]
fn rows_follow_the_weights() {
    let files = TextFiles::new(&[("a.txt", b"aaaaaaaaaa"), ("b.txt", b"bbbbbb"), ("c.txt", b"ccccccccccc")]);
    let sources = ["a.txt", "b.txt", "c.txt"].map(|name| files.path(name).display().to_string());
    let sources = format!("data.sources={sources:?}");
    for weights in [[1.0, 1.0, 1.0], [3.0, 1.0, 0.5], [0.7, 0.2, 0.1], [0.000001, 0.5, 0.499999], [5.0, 300.0, 7.0]] {
        let dataset = files.open(&bytes(), 4, &[&sources, &format!("data.weights={weights:?}")]).unwrap();
        let total: f64 = weights.iter().sum();
        let mut counts = [0.0; 3];
        for row in 0..3000u64 {
            counts[dataset.source_of_row(row)] += 1.0;
            for (count, weight) in counts.iter().zip(weights) {
                let share = (row + 1) as f64 * weight / total;
                assert!((count - share).abs() < 1.0, "{weights:?}: {counts:?} after {} rows", row + 1);
            }
        }
        // A row is of its source, and the rows of a source are its epochs in turn, whatever the others do.
        let batch = dataset.batch(1, 2, 60).unwrap();
        let mut read = [0usize; 3];
        (0..120).for_each(|row| read[dataset.source_of_row(row)] += 1);
        for row in 0..60 {
            let source = dataset.source_of_row(120 + row as u64);
            let length = [[4, 4, 2].as_slice(), &[4, 2], &[4, 4, 3]][source];
            let letter = ["a", "b", "c"][source];
            assert_eq!(segments(&batch, row, 4), [letter.repeat(length[read[source] % length.len()])]);
            read[source] += 1;
        }
    }
    // Without weights all are one source.
    let together = files.open(&bytes(), 4, &[&sources]).unwrap();
    assert_eq!((together.rows_per_epoch(0), together.rows_per_epoch(1)), (Some(7), None));
}
