//! README and docs quote the output that the programs print.
//!
//! A block of `console` has commands, `$ hlo-dump ..` or `$ meshloom ..`, each with its output below. A line `...`
//! stands for any lines, `[..]` for any part of a line: for what depends on the machine, and for what is left out.
//! `MESHLOOM_UPDATE=1` writes the blocks again that leave nothing out.

use std::fs;
use std::process::Stdio;

use support::counts::process;

use crate::dump::command::prints;

/// Blocks of `text` that are no output of a command, or of one that takes more than ten seconds: by the page and the
/// beginning of the block, with the reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("docs/checkpoints.md", "checkpoints/", "a folder"),
    ("docs/bisect.md", "$ meshloom bisect fold.txt", "a command that exits with 1; tests/dump/bisect.rs has its like"),
    ("docs/in-ci.md", "# hlo-dump lock 1", "a program that JAX compiles; tests/dump/lock.rs has its like"),
    ("docs/in-ci.md", "jit_train_step (HLO text", "a check that fails; tests/dump/lock.rs has its like"),
    ("docs/in-ci.md", "E       AssertionError", "Python; python/tests/test_hlo_dump.py has its like"),
    ("docs/in-pytest.md", "E       AssertionError", "Python; python/tests/test_hlo_dump.py has its like"),
    ("docs/jax-in-five-minutes.md", "jit_step (HloModuleProto", "Python; tests/oracle/python_module.py has its like"),
    ("docs/jax-in-five-minutes.md", "jit_step (HloModuleProto", "the same with a line more"),
    ("docs/memory.md", "MESHLOOM_TEST_PLUGINS=all", "a command that compiles for minutes"),
    ("docs/memory.md", "MESHLOOM_WRITE_DOCS=1", "a command that writes the page"),
    ("docs/partitioning.md", "Graph + specs", "a diagram"),
    ("docs/pipeline-schedules.md", "forward      0", "timelines, which tests/transform has"),
    ("docs/pipeline-schedules.md", "forward    0", "timelines, which tests/transform has"),
    ("docs/pipeline-schedules.md", "forward and backward   0", "timelines, which tests/transform has"),
    ("docs/pipeline-schedules.md", "forward and backward    0", "timelines, which tests/transform has"),
    ("docs/pipeline.md", "gather 0", "a diagram"),
    ("docs/python.md", "jit_step (HloModuleProto", "Python; tests/oracle/python_module.py has its like"),
    ("docs/python.md", "AssertionError: jit_step", "Python; python/tests/test_hlo_dump.py has its like"),
    ("docs/releasing.md", "source", "a diagram"),
    ("docs/sharding.md", "mesh fsdp=2", "rows of a table, which tests/sharding/presets.rs compares"),
    ("docs/slow-links.md", "$ hlo-dump check psdp.txt", "programs that take XLA minutes to compile"),
    ("docs/training.md", "3279104 parameters", "the main job: two minutes; tests/train has its losses"),
    (
        "docs/training.md",
        "error: step 2 changed",
        "the end of a run, shortened; tests/train/not_finite.rs has its like",
    ),
    ("docs/slow-links.md", "%send.3", "a program that takes XLA minutes to compile, shortened"),
];

/// The pages that quote commands.
const QUOTING: [&str; 6] = [
    "README.md",
    "SKILL.md",
    "docs/hlo-dump.md",
    "docs/jax-program.md",
    "docs/reading-a-partitioned-program.md",
    "docs/slow-links.md",
];

/// A command of a page, and the output that the page quotes.
struct Quoted {
    command: String,
    output: String,
}

/// The blocks of a page: their language, and the text between the fences.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, text.join("\n")));
        }
    }
    blocks
}

fn quoted(block: &str) -> Vec<Quoted> {
    let mut all: Vec<Quoted> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => all.push(Quoted { command: command.to_owned(), output: String::new() }),
            (None, Some(last)) => last.output.extend([line, "\n"]),
            (None, None) => panic!("a console block begins with a command, not with: {line}"),
        }
    }
    all
}

/// Runs the command and returns its standard output.
fn printed(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let text = match words[..] {
        ["hlo-dump", ref arguments @ ..] => prints(arguments),
        ["meshloom", ref arguments @ ..] => {
            let mut run = process(support::program::hlo_dump().with_file_name("meshloom"));
            run.args(arguments).current_dir(support::path("")).env_remove("RUST_LOG").stdin(Stdio::null());
            let output = run.output().unwrap_or_else(|error| panic!("{command}: {error}"));
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("text")
        }
        _ => panic!("no program of ours: {command}"),
    };
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Whether a line is as quoted, where `[..]` stands for anything.
fn is_line(quoted: &str, found: &str) -> bool {
    let mut parts = quoted.split("[..]");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = found.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether lines are as quoted, where `...` stands for any number of them.
fn is_text(quoted: &[&str], found: &[&str]) -> bool {
    match quoted {
        [] => found.is_empty(),
        ["...", rest @ ..] => (0..=found.len()).any(|skipped| is_text(rest, &found[skipped..])),
        [line, rest @ ..] => {
            found.split_first().is_some_and(|(first, others)| is_line(line.trim_end(), first) && is_text(rest, others))
        }
    }
}

/// Counts the lines of a text that are a command with its output below.
fn commands(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("$ ")).count()
}

fn pages() -> Vec<String> {
    let docs = fs::read_dir(support::path("docs")).expect("docs");
    let docs = docs.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let mut pages: Vec<String> = docs.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    pages.extend(["README.md", "SKILL.md"].map(str::to_owned));
    pages.sort();
    pages
}

#[test]
fn pages_quote_what_is_printed() {
    let is_update = std::env::var_os("MESHLOOM_UPDATE").is_some();
    let (mut wrong, mut quoting, mut not_run) = (Vec::new(), Vec::new(), 0);
    for path in pages() {
        let page = fs::read_to_string(support::path(&path)).expect("a page");
        let mut updated = page.clone();
        let (mut run, mut left) = (0, 0);
        for (language, block) in blocks(&page) {
            if language == "text" {
                let known = NOT_RUN.iter().any(|(page, start, _)| *page == path && block.starts_with(start));
                assert!(known, "{path}: a block of `text` that is neither run nor listed here: {block}");
                not_run += 1;
                left += commands(&block);
            }
            for Quoted { command, output } in quoted(if language == "console" { &block } else { "" }) {
                run += 1;
                let found = printed(&command);
                let lines = |text: &'_ str| text.lines().map(str::to_owned).collect::<Vec<_>>();
                let (quoted, printed) = (lines(&output), lines(&found));
                let quoted: Vec<&str> = quoted.iter().map(String::as_str).collect();
                if is_text(&quoted, &printed.iter().map(String::as_str).collect::<Vec<_>>()) {
                    continue;
                }
                let is_whole = !output.contains("[..]") && !quoted.contains(&"...");
                if is_update && is_whole {
                    updated = updated.replace(&format!("$ {command}\n{output}"), &format!("$ {command}\n{found}"));
                } else {
                    let shown: String = found.chars().take(4000).collect();
                    wrong.push(format!("{path}: `{command}` prints\n{shown}"));
                }
            }
        }
        assert_eq!(run + left, commands(&page), "{path}: a command stands in a block that is not run");
        if run > 0 {
            quoting.push(path.clone());
        }
        if updated != page {
            fs::write(support::path(&path), updated).expect("the page is written");
        }
    }
    assert!(wrong.is_empty(), "{}\nMESHLOOM_UPDATE=1 writes what leaves nothing out", wrong.join("\n"));
    assert_eq!(not_run, NOT_RUN.len(), "a block listed here is gone");
    assert_eq!(quoting, QUOTING, "the pages that quote commands are not those of QUOTING");
}

#[test]
fn what_is_left_out_may_be_anything() {
    assert!(is_text(&["a", "...", "d[..]f"], &["a", "b", "c", "def"]));
    assert!(is_text(&["...", "x[..]y[..]"], &["x1y2"]));
    assert!(!is_text(&["a", "...", "d"], &["a", "b"]));
    assert!(!is_text(&["a"], &["a", "b"]));
    assert!(!is_text(&["x[..]y"], &["xz"]));
}
