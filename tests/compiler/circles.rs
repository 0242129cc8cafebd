//! Circles of modules: of two modules of a crate, one stands above the other, or they need nothing of each other.
//!
//! In each folder of a crate, the modules are compared: a module is a file, or a folder with all that is below it. One
//! needs another if a file of it names an item that a file of the other defines, wherever the item is shown
//! (`pub use`). A folder's `mod.rs`, or `x.rs` beside `x/`, is the face of the folder: what it and the files below it
//! need of each other counts for nothing, nor does a `mod` line. If no folder has a circle, the files of the crate have
//! none either, but for those of faces with what is below them.
//!
//! The test reads the needs of a file from its names: imports and paths, and those in the tokens of macros. A method
//! that is called on a value names nothing, so it is not seen.

mod names;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use names::{Names, Needs};

use super::structure::root;

/// Circles that stay: the folder, its modules, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("src", "ir ops", "a node holds an `Op`, and an op with regions holds graphs of nodes: one recursive type"),
    (
        "crates/hlo/src/stablehlo/read",
        "attribute location operation parser types",
        "a descent: each kind of syntax reads by the parser, which reads each kind",
    ),
    ("crates/hlo/src", "parse syntax text", "each word of the syntax knows how it is read and how it is written"),
];

/// A module needs another by these names: "file > file: names".
type Edges = BTreeMap<(String, String), Vec<String>>;

/// A circle of modules of one folder.
struct Circle {
    folder: PathBuf,
    modules: BTreeSet<String>,
    /// A way round that begins where the least has to change: for each step the names by which a module needs the next.
    way: Vec<String>,
}

/// The files that crates begin with, below `base`, each with the folder of its modules.
fn crates(base: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = |folder: &Path| -> BTreeSet<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
    };
    let packages = entries(&base.join("crates")).into_iter().chain([base.to_owned()]);
    let mut found = Vec::new();
    for src in packages.map(|package| package.join("src")) {
        found.extend(["lib.rs", "main.rs"].map(|file| (src.join(file), src.clone())));
        for program in entries(&src.join("bin")) {
            let folder = if program.is_dir() { program.clone() } else { src.join("bin") };
            found.push((if program.is_dir() { program.join("main.rs") } else { program }, folder));
        }
    }
    found.retain(|(file, _)| file.exists());
    found
}

/// Where a file stands among the modules below a folder: the names on the way to it.
fn place_of(file: &Path, root: &Path, folder: &Path) -> Vec<String> {
    if file == root {
        return Vec::new();
    }
    let place = file.strip_prefix(folder).unwrap_or(file).with_extension("");
    let mut place: Vec<String> = place.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    place.pop_if(|name| name == "mod");
    place
}

/// For each folder of a crate: which of its modules needs which other.
fn folders(needs: &Needs, root: &Path, folder: &Path) -> BTreeMap<PathBuf, Edges> {
    let mut folders: BTreeMap<PathBuf, Edges> = BTreeMap::new();
    for ((from, to), names) in needs {
        let (from, to) = (place_of(from, root, folder), place_of(to, root, folder));
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) else { continue };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let need = format!("{} > {}: {}", from[shared..].join("/"), to[shared..].join("/"), names.join(", "));
        let edges = folders.entry(folder.join(from[..shared].join("/"))).or_default();
        edges.entry((a.clone(), b.clone())).or_default().push(need);
    }
    folders
}

/// The modules that can be reached from one, each with that before it on the shortest way.
fn reached<'e>(edges: &'e Edges, from: &str) -> BTreeMap<&'e str, &'e str> {
    let mut before = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(at) = next.pop_front() {
        // The edges of a module stand side by side.
        let of_module = edges.range((at.to_owned(), String::new())..).take_while(|((module, _), _)| module == at);
        for ((module, other), _) in of_module {
            if !before.contains_key(other.as_str()) {
                before.insert(other.as_str(), module.as_str());
                next.push_back(other);
            }
        }
    }
    before
}

/// The circle with this edge that is shortest.
fn round<'e>((from, to): (&'e str, &'e str), before: &BTreeMap<&'e str, &'e str>) -> Vec<&'e str> {
    let mut way = vec![from];
    while let Some(&at) = way.last().filter(|&&at| at != to).and_then(|last| before.get(last)) {
        way.push(at);
    }
    way.push(from);
    way.reverse();
    way
}

/// The first lines, and how many more there are.
fn shortened(lines: &[String]) -> Vec<String> {
    const SHOWN: usize = 4;
    let more = lines.len().checked_sub(SHOWN).filter(|more| *more > 0).map(|more| format!("and {more} files more"));
    lines.iter().take(SHOWN).cloned().chain(more).collect()
}

/// The circles of the modules of a folder.
fn circles_in(folder: &Path, edges: &Edges) -> Vec<Circle> {
    let modules: BTreeSet<&str> = edges.keys().map(|(module, _)| module.as_str()).collect();
    let reached: BTreeMap<&str, _> = modules.iter().map(|&name| (name, reached(edges, name))).collect();
    let mut circles: Vec<Circle> = Vec::new();
    for (name, before) in reached.iter().filter(|(name, before)| before.contains_key(*name)) {
        if circles.iter().any(|circle| circle.modules.contains(*name)) {
            continue;
        }
        let is_mutual = |other: &&str| reached.get(other).is_some_and(|before| before.contains_key(name));
        let around: BTreeSet<&str> = before.keys().copied().filter(is_mutual).collect();
        // Few edges mostly go against the order of the rest.
        let inside = edges.iter().filter(|((a, b), _)| around.contains(a.as_str()) && around.contains(b.as_str()));
        let least = inside.min_by_key(|(_, needs)| needs.iter().map(String::len).sum::<usize>());
        let round = least.map(|((a, b), _)| round((a, b), &reached[b.as_str()])).unwrap_or_default();
        let steps = round.windows(2).filter_map(|step| edges.get(&(step[0].to_owned(), step[1].to_owned())));
        let way = steps.flat_map(|needs| shortened(needs)).collect();
        let modules = around.into_iter().map(str::to_owned).collect();
        circles.push(Circle { folder: folder.to_owned(), modules, way });
    }
    circles
}

/// The circles of all crates below `base`, and the paths that are not understood.
fn circles(base: &Path) -> (Vec<Circle>, Vec<String>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for (file, folder) in crates(base) {
        let (needs, lost) = Names::read(&file, &folder).needs();
        unknown.extend(lost);
        for (folder, edges) in folders(&needs, &file, &folder) {
            found.extend(circles_in(folder.strip_prefix(base).expect("below the base"), &edges));
        }
    }
    (found, unknown)
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn no_modules_need_each_other() {
    let (circles, unknown) = circles(&root());
    assert!(unknown.is_empty(), "paths that lead nowhere:\n{}", unknown.join("\n"));
    let is_exception = |circle: &Circle| {
        let is_it =
            |folder: &str, modules: &str| circle.folder == Path::new(folder) && circle.modules == words(modules);
        EXCEPTIONS.iter().any(|(folder, modules, _)| is_it(folder, modules))
    };
    let wrong = circles.iter().filter(|circle| !is_exception(circle)).map(|Circle { folder, modules, way }| {
        let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
        format!("{}: {} need each other; a way round:\n  {}", folder.display(), modules.join(", "), way.join("\n  "))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "move an item to the module that is below, or into one below both:\n{}",
        wrong.join("\n")
    );
    for (folder, modules, reason) in EXCEPTIONS {
        let is_it = |circle: &Circle| circle.folder == Path::new(folder) && words(modules).is_subset(&circle.modules);
        assert!(circles.iter().any(is_it), "{folder}: {modules} ({reason}): they need each other no more");
    }
}

/// A crate of these files, whose circles are looked for.
fn circles_of(files: &[(&str, &str)]) -> Vec<(String, String)> {
    let base = tempfile::tempdir().expect("a folder");
    for (file, text) in files {
        let path = base.path().join("src").join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }
    let (circles, unknown) = circles(base.path());
    assert_eq!(unknown, Vec::<String>::new());
    circles.into_iter().map(|circle| (circle.folder.display().to_string(), circle.way.join(" | "))).collect()
}

/// The ways in which `b` can name `a::One`, which itself names `b::two`.
#[test]
fn a_circle_is_found_however_it_is_written() {
    let ways = [
        "use crate::a::One; pub fn two(_: One) {}",
        "use super::a; pub fn two(_: a::One) {}",
        "use super::*; pub fn two(_: One) {}",
        "use crate::{a::{self as other}}; pub fn two() { other::One::new(); }",
        "pub fn two() { use crate::One; }",
        "pub fn two() { println!(\"{:?}\", crate::One::default()); }",
        "pub fn two() { if let Some(crate::a::One { .. }) = None {} }",
        "#[serde(with = \"crate::a::One\")] pub struct Three; pub fn two() {}",
        "macro_rules! one { () => { $crate::a::One }; } pub fn two() { one!(); }",
        "pub fn two() { crate::a::made(); }",
        "pub fn two() { say!(); }",
    ];
    let a = "pub struct One; macro_rules! make { () => { pub fn made() {} }; } make!(); macro_rules! say { () => {}; } \
             pub fn one() { crate::b::two(); }";
    for b in ways {
        let found = circles_of(&[("lib.rs", "#[macro_use] mod a; mod b; pub use a::One;"), ("a.rs", a), ("b.rs", b)]);
        assert_eq!(found.len(), 1, "{b}: {found:?}");
        let (folder, way) = &found[0];
        assert!(folder == "src" && way.contains("a > b: two") && way.contains("b > a: "), "{b}: {way}");
    }
}

#[test]
fn what_is_below_a_module_is_no_circle_with_it() {
    let lib = ("lib.rs", "mod a; mod b;");
    let face = "mod c; pub use c::Two; pub struct One; pub fn one() { c::three(); }";
    let below = "use super::One; pub struct Two; pub fn three() -> Option<One> { None }";
    let other = ("b.rs", "use crate::a::Two; pub fn four(_: Two) {}");
    assert_eq!(circles_of(&[lib, ("a/mod.rs", face), ("a/c.rs", below), other]), []);
    assert_eq!(circles_of(&[lib, ("a.rs", face), ("a/c.rs", below), other]), []);
    // A file below a folder counts for the folder.
    let back = format!("{below} fn back() {{ crate::b::four(Two); }}");
    let found = circles_of(&[lib, ("a/mod.rs", face), ("a/c.rs", &back), other]);
    assert_eq!(found, [("src".to_owned(), "b > a/c: Two | a/c > b: four".to_owned())]);
    // A variable is no item, even if one has its name.
    let local = ("b.rs", "use crate::a::*; pub fn four() { let one = 1; let _ = one; }");
    assert_eq!(circles_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", "pub fn one() { crate::b::four(); }"), local]), []);
}
