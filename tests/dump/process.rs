//! A process of `hlo-dump` prints and returns the same as a command within a process, so other tests need no process.

use std::fs::File;
use std::process::Stdio;
use std::thread;

use crate::dump::command::{Ran, command, process, run, with_input};

const CONFIG: &str = "examples/configs/default.toml";
const TEXT: &str = "tests/foreign/fsdp_mlp.partitioned.txt";

/// The cases are: success with a note, a violation, a refusal by a command in colours, and one by the command line.
#[test]
fn a_process_prints_what_a_command_gives() {
    let cases: [(i32, &[&str]); 4] = [
        (0, &["memory", TEXT, "--chip", "cpu"]),
        (1, &["check", CONFIG, "--max-collective-bytes", "1KiB"]),
        (2, &["collectives", TEXT, "--kind", "gather", "--color", "always"]),
        (2, &["show", TEXT, "--emit", "grph"]),
    ];
    for (status, arguments) in cases {
        let ran = process(arguments);
        assert_eq!(ran.status, status, "{arguments:?}: {ran:?}");
        assert_eq!(ran, run(arguments), "{arguments:?}");
        // Pipes get colours only where they are asked for.
        let colours = format!("{}{}", ran.out, ran.err).contains('\u{1b}');
        assert_eq!(colours, arguments.contains(&"always"), "{ran:?}");
    }
}

#[test]
fn a_process_reads_its_standard_input() {
    let arguments = ["show", "-", "--emit", "proto"];
    let file = File::open(support::path(TEXT)).expect("a module");
    let output = command(&arguments).stdin(file).output().expect("hlo-dump starts");
    let bytes = std::fs::read(support::path(TEXT)).expect("a module");
    let within = hlo_dump::run(arguments, hlo_dump::Caller { input: bytes.clone(), ..Default::default() });
    // The output is bytes that are not text.
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &within.out));
    assert!(within.status == 0 && String::from_utf8(within.out).is_err());
    // A command that is told to read nothing finds nothing.
    assert!(run(&["show", "-"]).err.contains("it is empty") && with_input(&["show", "-"], &bytes).status == 0);
}

/// A reader may go away, as in `hlo-dump .. | head`: there is no error, and no message.
#[test]
fn a_reader_may_go_away() {
    // The first command prints bytes, the second one lines.
    for arguments in [&["show", TEXT][..], &["collectives", TEXT]] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let ran = Ran::of(child.wait_with_output().expect("it ends"));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{arguments:?}");
    }
}

/// Commands that run in threads at the same time each print to their own caller, in its own units and colours.
#[test]
fn commands_run_beside_each_other() {
    let form = |form: &[&'static str]| [&["memory", TEXT], form].concat();
    let forms =
        [form(&["--units", "exact"]), form(&["--units", "human", "--color", "always"]), form(&["--json"]), form(&[])];
    let alone = forms.each_ref().map(|arguments| run(arguments));
    for (number, ran) in alone.iter().enumerate() {
        assert!(ran.status == 0 && alone[..number].iter().all(|other| other.out != ran.out), "{ran:?}");
    }
    thread::scope(|scope| {
        for _ in 0..3 {
            for (arguments, alone) in forms.iter().zip(&alone) {
                scope.spawn(move || (0..5).for_each(|_| assert_eq!(&run(arguments), alone, "{arguments:?}")));
            }
        }
    });
}
