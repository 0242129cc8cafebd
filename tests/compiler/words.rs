//! Words: in a crate, a type name has one meaning; and some words have one in all crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::Item;

use super::structure::{root, sources};

/// Names that files of one crate define each for itself: the crate, the names, and why.
const TWINS: &[(&str, &str, &str)] = &[
    (
        "crates/hlo",
        "Attribute Attributes Elements Fault Leaf Lexer Operation Parser Printer Region Result Scope Value",
        "HLO and StableHLO are two languages: each is read and written by types of its own",
    ),
    ("crates/hlo-dump", "Answer", "the JSON of a command, which no other file sees"),
    ("crates/cli", "Answer Row", "the JSON of a command, and a row of its table, which no other file sees"),
    ("crates/train", "Subword", "a tokenizer of the feature `tokenizers`, and what stands in its place without it"),
];

/// Words that are taken: the crates with a type of this name, separated by blanks, and its meaning.
const TAKEN: &[(&str, &str, &str)] = &[
    ("Beginning", "crates/train", "the way in which a replica begins"),
    ("Found", "", "a type is named for what was found"),
    ("GiveUp", "crates/cluster", "why a call that has waited should fail"),
    ("Half", "", "a half of what: `Halves` are those of a differentiated function"),
    ("Line", "", "a timeline, a chain of devices, a line of metrics"),
    ("Part", "", "a part is what one device holds of a split value; a type is named for what it is a part of"),
    (
        "Place",
        "crates/analysis crates/train",
        "a computation that a module runs, reached in one way; where a key was written",
    ),
    ("Preset", "", "a list of rules with a name, `RulePreset`"),
    ("Run", "crates/train", "a run config, checked, with everything that follows from it"),
    ("Source", "src", "where a value comes from that an edge brings into a region"),
    ("Walk", "crates/analysis", "everything that a module runs"),
];

/// Folders whose items may have `preset` in their names: there it is a list of rules.
const OF_PRESETS: [&str; 3] = ["src/sharding", "crates/train/src/config", "crates/plan"];

/// The files that define each name of a crate: type names, and those of all items in lower case.
#[derive(Default)]
struct Defined {
    types: BTreeMap<String, BTreeSet<String>>,
    items: BTreeMap<String, BTreeSet<String>>,
}

impl Defined {
    fn add(&mut self, file: &str, items: &[Item]) {
        for item in items {
            let (name, is_type) = match item {
                Item::Struct(item) => (&item.ident, true),
                Item::Enum(item) => (&item.ident, true),
                Item::Union(item) => (&item.ident, true),
                Item::Trait(item) => (&item.ident, true),
                Item::Type(item) => (&item.ident, true),
                Item::Fn(item) => (&item.sig.ident, false),
                Item::Const(item) => (&item.ident, false),
                Item::Static(item) => (&item.ident, false),
                Item::Mod(item) => {
                    self.add(file, item.content.as_ref().map_or(&[], |(_, items)| items));
                    (&item.ident, false)
                }
                _ => continue,
            };
            let name = name.to_string();
            self.items.entry(name.to_lowercase()).or_default().insert(file.to_owned());
            if is_type {
                self.types.entry(name).or_default().insert(file.to_owned());
            }
        }
    }
}

/// Each crate of ours, with the names that its files define.
fn crates() -> BTreeMap<String, Defined> {
    let root = root();
    let entries = fs::read_dir(root.join("crates")).expect("crates").map(|entry| entry.expect("an entry").path());
    let packages = entries.map(|path| (path.join("src"), path)).chain([(root.join("src"), root.join("src"))]);
    let from_root = |path: &Path| path.strip_prefix(&root).expect("below the root").display().to_string();
    let mut found = BTreeMap::new();
    for (src, package) in packages.filter(|(src, _)| src.exists()) {
        let defined: &mut Defined = found.entry(from_root(&package)).or_default();
        for path in
            sources(&src).iter().filter(|path| !["sys.rs", "generated.rs"].iter().any(|name| path.ends_with(name)))
        {
            let text = fs::read_to_string(path).expect("a source file");
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            defined.add(&from_root(path), &file.items);
        }
    }
    found
}

#[test]
fn a_type_name_has_one_meaning_in_its_crate() {
    let (mut wrong, mut needed) = (Vec::new(), BTreeSet::new());
    for (package, defined) in &crates() {
        let twins = defined.types.iter().filter(|(_, files)| files.len() > 1);
        for (name, files) in twins {
            let exception =
                TWINS.iter().position(|(of, names, _)| of == package && names.split(' ').any(|it| it == name));
            match exception {
                Some(exception) => _ = needed.insert(exception),
                None => wrong.push(format!("{name}: {}", files.iter().cloned().collect::<Vec<_>>().join(", "))),
            }
        }
        println!("{package}: {} type names", defined.types.len());
    }
    assert!(wrong.is_empty(), "names of several types; give each its own, or a reason in TWINS:\n{}", wrong.join("\n"));
    assert_eq!(needed.len(), TWINS.len(), "a reason in TWINS is not needed any more: {needed:?}");
}

#[test]
fn taken_words_have_one_meaning() {
    let (all, mut wrong) = (crates(), Vec::new());
    for (word, homes, meaning) in TAKEN {
        for (package, defined) in &all {
            let files: Vec<&str> = defined.types.get(*word).into_iter().flatten().map(String::as_str).collect();
            match homes.split(' ').any(|home| home == package) {
                true if files.is_empty() => wrong.push(format!("{word} ({meaning}): not in {package} any more")),
                true => {}
                false if files.is_empty() => {}
                false => wrong.push(format!("{word} means: {meaning}. Another name for {}", files.join(", "))),
            }
        }
    }
    for (item, files) in all.values().flat_map(|defined| &defined.items).filter(|(item, _)| item.contains("preset")) {
        let others = files.iter().filter(|file| !OF_PRESETS.iter().any(|folder| file.starts_with(folder)));
        wrong.extend(others.map(|file| format!("{item} ({file}): a preset is a list of rules; call it otherwise")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
