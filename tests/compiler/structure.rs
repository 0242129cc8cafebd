//! The structure of the workspace: who imports whom, what users pay for, and what no source file may contain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use support::counts::process;

/// The imports that are allowed against the direction of ARCHITECTURE.md, each with its reason.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("ir", "ops", "a node holds an `Op`, whose regions are graphs; builder and verifier call its typing rule")];

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The Rust files below a folder.
pub(super) fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the code of a file, without comments.
pub(super) fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source file");
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The modules of the compiler in order, each with those it may import, as ARCHITECTURE.md lists them.
fn allowed() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let block = text.split("```text imports\n").nth(1).and_then(|rest| rest.split("```").next());
    let line = |line: &str| {
        let (module, imports) = line.split_once(':').expect("a line `module: imports`");
        (module.to_owned(), imports.split_whitespace().map(str::to_owned).collect())
    };
    block.expect("the block of imports").lines().map(line).collect()
}

/// The modules that each module of the compiler names as `crate::module`, with a file that does.
fn imports(modules: &[&str]) -> BTreeMap<(String, String), String> {
    let src = root().join("src");
    let mut found = BTreeMap::new();
    for path in sources(&src) {
        let relative = path.strip_prefix(&src).expect("below src").display().to_string();
        let module = relative.split(['/', '.']).next().unwrap_or_default().to_owned();
        for rest in code(&path).split("crate::").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // The error of the crate stands in `compile`, above all others.
            let name = if name == "Error" { "compile".to_owned() } else { name };
            if name != module && modules.contains(&name.as_str()) {
                found.insert((module.clone(), name), relative.clone());
            }
        }
    }
    found.retain(|(module, _), _| module != "lib");
    found
}

#[test]
fn no_module_imports_one_above_it() {
    let allowed = allowed();
    let modules: Vec<&str> = allowed.iter().map(|(module, _)| module.as_str()).collect();
    let on_disk: BTreeSet<String> = fs::read_dir(root().join("src"))
        .expect("src")
        .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|name| name != "lib")
        .collect();
    assert_eq!(
        modules.iter().map(|&module| module.to_owned()).collect::<BTreeSet<_>>(),
        on_disk,
        "modules of ARCHITECTURE.md"
    );
    for (index, (module, imports)) in allowed.iter().enumerate() {
        let above: Vec<_> = imports.iter().filter(|import| !modules[..index].contains(&import.as_str())).collect();
        assert!(above.is_empty(), "ARCHITECTURE.md lets {module} import {above:?}, which stand above it");
    }
    let found = imports(&modules);
    let is_exception = |from: &str, to: &str| EXCEPTIONS.iter().any(|(a, b, _)| (*a, *b) == (from, to));
    let wrong: Vec<String> = found
        .iter()
        .filter(|((from, to), _)| {
            let listed = allowed.iter().any(|(module, imports)| module == from && imports.contains(to));
            !listed && !is_exception(from, to)
        })
        .map(|((from, to), file)| format!("{from} imports {to} (src/{file})"))
        .collect();
    assert!(wrong.is_empty(), "imports that ARCHITECTURE.md does not list:\n{}", wrong.join("\n"));
    for (from, imports) in &allowed {
        for to in imports {
            assert!(
                found.contains_key(&(from.clone(), to.clone())),
                "ARCHITECTURE.md: {from} does not import {to} any more"
            );
        }
    }
    for (from, to, reason) in EXCEPTIONS {
        assert!(
            found.contains_key(&((*from).to_owned(), (*to).to_owned())),
            "{from} -> {to} ({reason}) is not needed any more"
        );
    }
}

/// The crates that a package and its features bring along.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = process(cargo)
        .current_dir(root())
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn users_of_the_library_pay_for_no_program() {
    let meshloom = tree(&["-p", "meshloom"]);
    for heavy in ["clap", "indicatif", "tokenizers", "insta", "proptest", "divan", "prost-build", "protox", "toml"] {
        assert!(!meshloom.contains(heavy), "meshloom needs {heavy}");
    }
    assert!(!tree(&["-p", "meshloom", "--no-default-features"]).contains("zip"));
    let train = tree(&["-p", "meshloom-train", "--no-default-features"]);
    for heavy in ["clap", "indicatif", "tokenizers", "zip"] {
        assert!(!train.contains(heavy), "meshloom-train without features needs {heavy}");
    }
    // The main job builds nothing that only runs of several processes need, and no C.
    let program = tree(&["-p", "meshloom-cli", "--all-features", "--edges", "normal,build"]);
    for heavy in ["meshloom-cluster", "tokio", "tonic", "rustls", "ring", "cc", "cmake", "layout-rs"] {
        assert!(!program.contains(heavy), "meshloom-cli needs {heavy}");
    }
    // So `meshloom-hlo` knows no other crate of ours: `meshloom-analysis` stands above it.
    let dump = tree(&["-p", "hlo-dump", "--no-default-features"]);
    let dump: Vec<_> = dump.into_iter().filter(|name| name.starts_with("meshloom")).collect();
    assert_eq!(dump, ["meshloom-analysis", "meshloom-hlo"]);
    let pjrt: Vec<_> = tree(&["-p", "meshloom-pjrt"]).into_iter().filter(|name| name.starts_with("meshloom")).collect();
    assert_eq!(pjrt, ["meshloom-analysis", "meshloom-hlo", "meshloom-pjrt", "meshloom-process"]);
}

/// Libraries have no tests of their own, since Cargo would compile each a second time for them: the programs in this
/// folder test them.
#[test]
fn libraries_have_no_tests_of_their_own() {
    let crates = fs::read_dir(root().join("crates")).expect("crates").map(|entry| entry.expect("an entry").path());
    for package in crates.chain([root()]) {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("TOML");
        let bins = manifest.get("bin").and_then(toml::Value::as_array).cloned().unwrap_or_default();
        let in_folder = fs::read_dir(package.join("src/bin")).map_or(0, Iterator::count);
        let programs = in_folder + usize::from(package.join("src/main.rs").exists());
        assert_eq!(bins.len(), programs, "{}: programs have a [[bin]] with `test = false`", package.display());
        let library = package.join("src/lib.rs").exists().then(|| manifest.get("lib"));
        for target in bins.iter().map(Some).chain(library) {
            let is_tested = target.and_then(|target| target.get("test")).and_then(toml::Value::as_bool);
            assert_eq!(is_tested, Some(false), "{}: write `test = false` into [lib] and [[bin]]", package.display());
        }
        for path in sources(&package.join("src")) {
            let code = code(&path);
            for test in ["cfg(test)", "not(test)", "#[test]"] {
                assert!(!code.contains(test), "{}: {test}; tests stand in the folder tests", path.display());
            }
        }
    }
}

/// Every source file that is written by hand.
fn hand_written() -> Vec<PathBuf> {
    let folders = ["src", "crates", "tests", "examples", "benches"];
    let files = folders.iter().flat_map(|folder| sources(&root().join(folder)));
    files.filter(|path| !["sys.rs", "generated.rs"].iter().any(|name| path.ends_with(name))).collect()
}

/// Each promise names tests, by the path of a module or of a function, and they are there.
#[test]
fn promises_name_tests() {
    let is_there = |path: &str| {
        let parts: Vec<&str> = path.split("::").collect();
        let module = |parts: &[&str]| {
            let place = support::path("tests").join(parts.join("/"));
            let files = [place.with_extension("rs"), place.join("mod.rs")];
            files.iter().find_map(|file| fs::read_to_string(file).ok())
        };
        let (name, file) = parts.split_last().expect("a part");
        module(&parts).or_else(|| module(file).filter(|text| text.contains(&format!("fn {name}(")))).is_some()
    };
    for page in ["SECURITY.md", "docs/promises.md"] {
        let text = fs::read_to_string(support::path(page)).expect("the page");
        let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("| promise")).collect();
        let rows = rows.iter().filter(|line| line.starts_with("| ") && !line.starts_with("| promise"));
        let mut count = 0;
        for row in rows.filter(|row| row.matches('|').count() == 3) {
            let tests = row.split('|').nth(2).unwrap_or_default().split('`').skip(1).step_by(2);
            let tests: Vec<&str> = tests.filter(|name| name.contains("::")).collect();
            assert!(!tests.is_empty(), "{page}: no test is named: {row}");
            for test in tests {
                assert!(is_there(test), "{page}: there is no test {test}");
            }
            count += 1;
        }
        assert!(count > 10, "{page}: {count} promises");
    }
}

#[test]
fn files_and_comments_are_not_too_long() {
    let mut long = Vec::new();
    for path in hand_written() {
        let text = fs::read_to_string(&path).expect("a source file");
        let lines = text.lines().count();
        if lines > 800 {
            long.push(format!("{}: {lines} lines", path.display()));
        }
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.trim_start_matches(['/', '!', ' ']);
            is_code ^= comment.starts_with("```");
            // A row of a table is one line, however long it is, and code is as it is typed.
            if !is_code && !comment.starts_with('|') && line.chars().count() > 120 {
                long.push(format!("{}:{}: a comment of more than 120 columns", path.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The calls that only `support` may make in tests, each with its replacement.
const ONLY_SUPPORT: [(&str, &str); 4] = [
    ("Command::new(", "support::counts::process(..): processes are counted"),
    ("every_case()", "support::cases: it says which test"),
    ("some_of(", "support::cases::cases(..): the full tier runs all"),
    ("by_number(", "support::cases::cases(..): the full tier runs all"),
];

/// Words in names of variables that would choose how many cases a test runs.
const OF_CASES: [&str; 6] = ["CASES", "KILLS", "EVERY", "COUNT", "SEED", "SHARE"];

/// Files that are exempt, each with the reason.
const EXEMPT: [(&str, &str); 3] = [
    ("support/", "it is what others use"),
    ("compiler/structure.rs", "it names what is looked for"),
    ("train/checkpoint/directory.rs", "processes that do nothing, as many as there is time for"),
];

/// Tests start processes and choose cases by `support` alone. Processes that are not counted would exceed no budget,
/// and cases that another variable chooses would be in neither tier.
#[test]
fn tests_count_their_processes_and_choose_cases_in_one_way() {
    let tests = root().join("tests");
    let is_exempt = |file: &str| EXEMPT.iter().any(|(exempt, _)| file.starts_with(exempt));
    let mut wrong = Vec::new();
    for path in sources(&tests) {
        let file = path.strip_prefix(&tests).expect("in tests").display().to_string();
        if is_exempt(&file) {
            continue;
        }
        for (number, line) in code(&path).lines().enumerate() {
            let place = format!("tests/{file}:{}", number + 1);
            let found = ONLY_SUPPORT.iter().filter(|(pattern, _)| line.contains(pattern));
            wrong.extend(found.map(|(pattern, instead)| format!("{place}: `{pattern}`: use {instead}")));
            // The name of a variable stands in quotes, or is the name of a constant.
            let is_variable = line.contains("env::var") || line.contains("const ") && line.contains(": &str = \"");
            let names = line.split(|c: char| !c.is_ascii_uppercase() && c != '_').filter(|_| is_variable);
            let of_cases = names.filter(|name| OF_CASES.iter().any(|word| name.contains(word)));
            wrong.extend(of_cases.map(|name| format!("{place}: `{name}`: use support::cases")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lines that are neither blank nor comment; of Python without the text at the top of the file.
fn code_lines(path: &str) -> usize {
    let text = fs::read_to_string(support::path(path)).expect("a source file");
    let code = if path.ends_with(".py") { text.splitn(3, "\"\"\"").last().unwrap_or(&text) } else { &text };
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//") && !line.starts_with('#');
    code.lines().map(str::trim).filter(is_code).count()
}

#[test]
fn a_model_of_ones_own_takes_hardly_more_lines_than_in_jax() {
    let (ours, jax) = (code_lines("examples/12_gpt2.rs"), code_lines("benches/jax/gpt2.py"));
    assert!(ours * 10 <= jax * 13, "{ours} lines, and {jax} in JAX");
}

/// The patterns that answer a case that cannot happen with a value, each with the code to write instead.
const MADE_UP: [(&str, &str); 10] = [
    ("debug_assert", "return an InternalError: in release the program goes on"),
    (".ok().flatten()", "carry the error up"),
    (".next().unwrap_or(", "a missing element is an InternalError; in a trace, use trace::refill"),
    (".next().unwrap_or_default", "a missing element is an InternalError; in a trace, use trace::refill"),
    (".pop().unwrap_or(", "a missing element is an InternalError"),
    (".pop().unwrap_or_default", "a missing element is an InternalError"),
    (".nth(index).unwrap_or", "a missing element is an InternalError"),
    ("unwrap_or(Tensor::POISONED)", "say what is missing with trace::fail_internal"),
    ("unwrap_or_else(||Literal::scalar", "a literal of the wrong type is no answer"),
    ("_=>Ok(vec![None", "a gradient that is not known is not zero: return an InternalError"),
];

/// Where a default is the meaning: file, what is written there, and why.
const MEANT: [(&str, &str, &str); 3] = [
    ("src/partition/ledger/select.rs", ".next().unwrap_or(", "a name without a separator is its own first part"),
    ("src/sharding/explain.rs", ".next().unwrap_or_default", "a message about a program without ports has no example"),
    ("src/transform/pipeline/timeline/mod.rs", ".next().unwrap_or(", "a repeat that no phase uses spans nothing"),
];

#[test]
fn no_value_is_made_up_for_what_cannot_happen() {
    let root = root();
    let (mut wrong, mut meant) = (Vec::new(), Vec::new());
    for path in ["src", "crates/nn/src"].iter().flat_map(|folder| sources(&root.join(folder))) {
        let code: String = code(&path).split_whitespace().collect();
        let file = path.strip_prefix(&root).expect("below the root").display().to_string();
        for (pattern, instead) in MADE_UP.into_iter().filter(|(pattern, _)| code.contains(pattern)) {
            match MEANT.iter().find(|(of, what, _)| *of == file && *what == pattern) {
                Some(exception) => meant.push(exception),
                None => wrong.push(format!("{file}: `{pattern}`: {instead}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(meant.len(), MEANT.len(), "an exception is not needed any more: {MEANT:?} against {meant:?}");
}
