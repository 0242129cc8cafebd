//! The names in ARCHITECTURE.md and the links between pages: each leads to something that is there.

use std::fs;
use std::path::{Path, PathBuf};

use super::structure::{code, root, sources};

/// Words that define an item, in front of its name.
const DEFINING: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"];

/// Names on the page that the standard library defines.
const OF_STD: [&str; 1] = ["Debug"];

/// The pages whose links are followed: all but the changelog, which names pages as they were.
fn pages() -> Vec<PathBuf> {
    let folders = [root(), root().join("docs"), root().join("examples")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    paths.filter(|path| is_page(path) && !path.ends_with("CHANGELOG.md")).collect()
}

/// The lines of a page that are not in a block of code.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// Whether a character may stand in an identifier.
fn is_of_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether the code defines an item, a field or a variant of this name.
fn defines(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let word = before.trim_end().rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default();
        !before.ends_with(is_of_name)
            && !after.starts_with(is_of_name)
            && (DEFINING.contains(&word) || after.starts_with(':') && !after.starts_with("::"))
    })
}

/// Returns what is wrong with a name, if anything. `files` are the sources: their paths from the root, and their code.
fn problem(name: &str, files: &[(String, String)]) -> Option<&'static str> {
    let is_name = |text: &str| !text.is_empty() && text.chars().all(is_of_name);
    if name.contains('/') && !name.contains(char::is_whitespace) {
        return (!root().join(name).exists()).then_some("there is no such path");
    }
    if let Some(name) = name.strip_suffix('!').filter(|name| is_name(name)) {
        return (!files.iter().any(|(_, code)| defines(code, name))).then_some("there is no such macro");
    }
    let parts: Vec<&str> = name.split("::").collect();
    if !parts.iter().all(|part| is_name(part)) {
        return None;
    }
    let is_type = |name: &str| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    match parts[..] {
        [item] if OF_STD.contains(&item) => None,
        [item] if is_type(item) => {
            (!files.iter().any(|(_, code)| defines(code, item))).then_some("there is no such type")
        }
        [.., owner, item] => {
            let is_owned = |(path, code): &&(String, String)| match is_type(owner) {
                true => code.split(|c| !is_of_name(c)).any(|word| word == owner),
                false => path.split(['/', '.']).any(|part| part == owner),
            };
            (!files.iter().filter(is_owned).any(|(_, code)| defines(code, item))).then_some("there is no such item")
        }
        _ => None,
    }
}

#[test]
fn the_architecture_names_what_is_there() {
    let folders = ["src", "crates", "tests", "examples"];
    let paths = folders.iter().flat_map(|folder| sources(&root().join(folder)));
    let from_root = |path: &Path| path.strip_prefix(root()).expect("below the root").display().to_string();
    let files: Vec<_> = paths.map(|path| (from_root(&path), code(&path))).collect();
    let prose = prose(&root().join("ARCHITECTURE.md"));
    let names = prose.split('`').skip(1).step_by(2);
    let wrong = names.filter_map(|name| Some(format!("`{name}`: {}", problem(name, &files)?)));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n{}", wrong.join("\n"));
    for (name, is_there) in [("ops::Primitive", true), ("RunConfig::load", true), ("ops::Nowhere", false)] {
        assert_eq!(problem(name, &files).is_none(), is_there, "{name}");
    }
}

/// The name of a heading in a link, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|&c| is_of_name(c) || c == ' ' || c == '-');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        for link in prose(&page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let has_heading = || prose(&target).lines().any(|line| line.starts_with('#') && anchor(line) == heading);
            if !target.exists() || !heading.is_empty() && !has_heading() {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}
