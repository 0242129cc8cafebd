//! Tests of programs that are not partitioned: no command passes their figures off as those of a device.

use crate::dump::command::{check_refused, prints, run, with_input};

const CONFIG: &str = "examples/configs/default.toml";
const SAYS: &str = "not partitioned yet: global shapes";

/// Inputs that XLA or meshloom has yet to partition, and what leads to the partitioned program.
const UNPARTITIONED: [(&[&str], &str); 6] = [
    (&["tests/foreign/fsdp_mlp.unoptimized.txt"], "meshloom compile tests/foreign/fsdp_mlp.unoptimized.txt --target"),
    (&["tests/foreign/moe.unoptimized.txt"], "lowered.compile()"),
    (&["tests/foreign/xla_dump", "--stage", "traced"], "take --stage partitioned or --stage compiled"),
    (&[CONFIG, "--stage", "traced"], "take --stage partitioned"),
    (&[CONFIG, "--stage", "sharded"], "take --stage partitioned"),
    (&[CONFIG, "--set", "partition.mode=gspmd"], "take --stage compiled"),
];

const PARTITIONED: [&[&str]; 5] = [
    &["tests/foreign/fsdp_mlp.partitioned.txt"],
    &["tests/foreign/moe.optimized.pb"],
    &["tests/foreign/xla_dump"],
    &[CONFIG],
    &[CONFIG, "--set", "mesh.axes=data=1", "--set", "target.devices=1", "--stage", "traced"],
];

fn with<'a>(command: &'a str, input: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&[command], input, more].concat()
}

#[test]
fn limits_are_for_partitioned_programs() {
    for (input, fix) in UNPARTITIONED {
        let check = with("check", input, &["--max-collective-bytes", "1KiB"]);
        check_refused(&check, SAYS);
        check_refused(&check, fix);
        check_refused(&check, "--allow-unpartitioned");
        let allowed = run(&with("check", input, &["--max-memory", "1GiB", "--allow-unpartitioned"]));
        assert_eq!(allowed.status, 0, "{input:?}: {}", allowed.err);
        assert!(allowed.out.contains(SAYS), "{input:?}: {}", allowed.out);
    }
    for input in PARTITIONED {
        let ran = run(&with("check", input, &["--max-memory", "1GiB"]));
        assert_eq!(ran.status, 0, "{input:?}: {}", ran.err);
    }
}

#[test]
fn every_command_says_whose_figures_they_are() {
    let commands = ["collectives", "memory", "cost"];
    for command in commands {
        for (input, fix) in UNPARTITIONED {
            let text = prints(&with(command, input, &[]));
            assert!(text.contains(SAYS) && text.contains(fix), "{command} {input:?}: {text}");
            assert!(!text.contains("memory of each device"), "{command} {input:?}: {text}");
            let json = run(&with(command, input, &["--json"])).json();
            assert_eq!(json["partitioned"], false, "{command} {input:?}");
        }
        for input in PARTITIONED {
            let text = prints(&with(command, input, &[]));
            assert!(!text.contains("not partitioned"), "{command} {input:?}: {text}");
            assert_eq!(run(&with(command, input, &["--json"])).json()["partitioned"], true, "{command} {input:?}");
        }
    }
    let text = "tests/foreign/fsdp_mlp.unoptimized.txt";
    assert!(prints(&["collectives", text]).contains("each device sends 0 B, without what XLA will add"));
    let lowered = std::fs::read(support::path(text)).expect("a module");
    let ran = with_input(&["collectives", "-"], &lowered);
    assert!(ran.out.contains("`meshloom compile - --target TARGET"), "{}", ran.out);
    assert!(prints(&["traffic", text, "--over", "data"]).contains(SAYS));
    assert!(prints(&["diff", text, "tests/foreign/fsdp_mlp.partitioned.txt"]).contains(SAYS));
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    prints(&["report", text, "-o", page.to_str().expect("a path")]);
    assert!(std::fs::read_to_string(page).expect("a page").contains(SAYS));
}
