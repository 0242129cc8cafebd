//! Messages between a program and its workers.

use std::fs;
use std::path::PathBuf;

use meshloom::pjrt::internals::{decode_message, read_message, write_message};
use meshloom::pjrt::{CompileOptions, DebugValue, DeviceDescription, NamedValue};
use serde::{Deserialize, Serialize};

const REQUEST: &str = "request";
const ANSWER: &str = "answer";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Request {
    parent: u32,
    plugin: PathBuf,
    topology: String,
    task: Task,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Task {
    Describe,
    Compile { module: Vec<u8>, options: CompileOptions },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    Described(Vec<DeviceDescription>, (i32, i32)),
    Failed(String),
}

fn request() -> Request {
    let debug_options = [("a".to_owned(), DebugValue::Float(0.5)), ("b".to_owned(), DebugValue::Bool(true))];
    let options = CompileOptions { debug_options: debug_options.into(), ..CompileOptions::partitioned(8) };
    let task = Task::Compile { module: vec![1, 2, 255], options };
    Request { parent: 7, plugin: "/some/plugin.so".into(), topology: "v5e:2x4".into(), task }
}

fn answer() -> Answer {
    let attributes = [("coords".to_owned(), NamedValue::Ints(vec![1, 2, -3]))].into();
    let device = DeviceDescription { id: 3, kind: "kind".into(), description: String::new(), attributes };
    Answer::Described(vec![device], (0, 81))
}

#[test]
fn messages_make_the_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    write_message(folder.path(), REQUEST, &request()).expect("write");
    assert_eq!(read_message::<Request>(folder.path(), REQUEST), Ok(request()));
    write_message(folder.path(), ANSWER, &answer()).expect("write");
    assert_eq!(read_message::<Answer>(folder.path(), ANSWER), Ok(answer()));
    let names = fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(names, 2, "no other file is left");
}

#[test]
fn damaged_messages_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    write_message(folder.path(), REQUEST, &request()).expect("write");
    let good = fs::read(folder.path().join(REQUEST)).expect("the file");
    for cut in 0..good.len() {
        assert!(decode_message::<Request>(&good[..cut]).is_err(), "cut off at {cut}");
    }
    for position in 0..good.len() {
        let mut bad = good.clone();
        bad[position] ^= 1;
        assert!(decode_message::<Request>(&bad).is_err(), "changed at {position}");
    }
    let reason = decode_message::<Request>(b"meshloom worker message 0 of 0.0\n").expect_err("another version");
    assert_eq!(reason, "it is not a message of this version of meshloom");
}
