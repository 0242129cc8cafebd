//! Lock files: what they say of a program, what of a change is worse, and which files are none.

use std::fs;

use crate::dump::command::{check_refused, run};

const STEP: &str = "tests/foreign/fsdp_mlp.optimized.txt";
const MESH: [&str; 2] = ["--mesh", "data=2,fsdp=4"];

fn lock(input: &str) -> String {
    let ran = run(&[&["lock", input], &MESH[..]].concat());
    assert_eq!(ran.status, 0, "{}", ran.err);
    ran.out
}

/// Runs a check of the step with a lock of this text.
fn held_to<T>(text: &str, run: impl FnOnce(&[&str]) -> T) -> T {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("traffic.lock");
    fs::write(&path, text).expect("a file");
    run(&[&["check", STEP, "--lock", path.to_str().expect("a path")], &MESH[..]].concat())
}

/// The executions and bytes are those of tests/foreign/expected.toml: two gathers of 768 bytes over four devices send
/// 3 x 768 each. The peak is that of `memory`.
#[test]
fn a_lock_has_a_line_for_each_origin() {
    let expected = "# hlo-dump lock 1\n\
                    devices\t8\n\
                    mesh\tdata=2,fsdp=4\n\
                    peak\t15028\n\
                    all-gather\tfsdp\t2\t4608\tjit(fsdp_mlp)/jvp(mlp)\tforeign_programs.py:constrained\n";
    let found = lock(STEP);
    assert!(found.starts_with(expected), "{found}");
    assert_eq!(found.lines().count(), 6, "{found}");
    // The form of the input changes no line.
    assert_eq!(lock("tests/foreign/fsdp_mlp.optimized.pb"), found);
    let json = run(&[&["lock", STEP, "--json"], &MESH[..]].concat()).json();
    assert_eq!(json["schema"], "hlo-dump/lock/1");
    assert_eq!(json["collectives"][0]["moved_bytes"], 4608);
}

#[test]
fn what_got_worse_is_said_in_words() {
    let text = lock(STEP);
    let check = |text: &str| held_to(text, run);
    assert_eq!(check(&text).status, 0);
    let gather = "all-gather\tfsdp\t2\t4608";
    for (change, words) in [
        (
            text.replace(gather, "all-gather\tfsdp\t1\t2304"),
            "runs 2 times and sends 4.50 KiB (4,608), and before runs 1 time",
        ),
        (
            text.replace(gather, "all-gather\tdata\t2\t4608"),
            "new: all-gather over fsdp (foreign_programs.py:constrained, jit(fsdp_mlp)/jvp(mlp)), which runs 2 times",
        ),
        (
            text.replace("peak\t15028", "peak\t15000"),
            "the peak of memory is 14.7 KiB (15,028), and was 14.6 KiB (15,000)",
        ),
    ] {
        let ran = check(&change);
        assert_eq!(ran.status, 1, "{change}\n{}{}", ran.out, ran.err);
        assert!(ran.out.contains(words), "{words}\n{}", ran.out);
    }
    // A better program breaks nothing, but is worth a new lock.
    let ran = check(&text.replace(gather, "all-gather\tfsdp\t3\t6912"));
    assert_eq!(ran.status, 0, "{}", ran.out);
    assert!(ran.err.contains("better than the lock") && ran.err.contains("and before runs 3 times"), "{}", ran.err);
    // An unknown number may be any.
    assert_eq!(check(&text.replace(gather, "all-gather\tfsdp\t?\t?")).status, 0);
}

#[test]
fn locks_that_cannot_be_compared_are_refused() {
    let text = lock(STEP);
    let refuses = |text: &str, expected| held_to(text, |check| check_refused(check, expected));
    refuses(&text.replace("data=2,fsdp=4", "data=4,fsdp=2"), "the lock is of 8 devices, mesh data=4,fsdp=2");
    refuses("HloModule step", "the first line is not \"# hlo-dump lock 1\"");
    refuses(&text.replace("\t4608", "\tmany"), "traffic.lock:5: this is no line of a lock");
    refuses(&text.replace("peak\t", "peak "), "traffic.lock:4: this is no line of a lock");
    check_refused(&["check", STEP, "--lock", "no-such.lock"], "--lock no-such.lock: cannot open it");
    check_refused(&["lock", "tests/foreign/fsdp_mlp.unoptimized.txt"], "a lock is of the program of one device");
}
