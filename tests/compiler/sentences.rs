//! The English of comments and pages: every sentence begins with its subject.

use std::fs;
use std::path::Path;

use super::structure::{root, sources};

/// Words that begin a sentence in place of its subject.
const IN_PLACE_OF_A_SUBJECT: [&str; 11] =
    ["What", "Of", "Those", "None", "Nobody", "Which", "That", "Whatever", "Why", "Who", "Whoever"];

/// A few of these words are a subject themselves, in front of a verb.
const PRONOUNS: [&str; 3] = ["That", "Those", "None"];

const VERBS: [&str; 24] = [
    "is", "are", "was", "were", "has", "have", "does", "do", "can", "may", "must", "would", "will", "makes", "costs",
    "holds", "means", "needs", "takes", "gives", "happens", "keeps", "leaves", "follows",
];

/// Phrases that a plain sentence does without, in comments, pages and messages.
const PHRASES: [&str; 5] = ["that there is", "that there are", "of which", "nobody", "what is no "];

/// Strings that are no sentences: files with the word in them, and why.
const WORDS: [(&str, &str); 3] = [
    ("crates/hlo/src/crossing.rs", "a permute in which no device sends, in the text of a crossing"),
    ("crates/cluster/src/join.rs", "the name of a launcher that is not there"),
    ("crates/cluster/examples/crossing.rs", "the reason to give up in an example"),
];

/// Folders and files whose sentences are checked.
const PLACES: [&str; 6] = ["src", "crates", "tests", "benches", "examples", "docs"];

/// Returns the paragraphs of comments in Rust, or of text in Markdown, each with its first line.
fn paragraphs(path: &Path) -> Vec<(usize, String)> {
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut found, mut paragraph, mut is_code) = (Vec::new(), (0, String::new()), false);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let text = match is_rust {
            true => line.strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim()).unwrap_or_default(),
            false => line,
        };
        is_code ^= text.starts_with("```");
        let is_text = !is_code && !text.is_empty() && !text.starts_with(['#', '|', '`']);
        let (is_item, text) = match text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")) {
            Some(item) => (true, item),
            None => (false, text),
        };
        if (!is_text || is_item) && !paragraph.1.is_empty() {
            found.push(std::mem::take(&mut paragraph));
        }
        if is_text {
            if paragraph.1.is_empty() {
                paragraph.0 = number + 1;
            }
            paragraph.1.extend([text, " "]);
        }
    }
    found.push(paragraph);
    found
}

/// Whether a sentence has no subject in front, or a phrase of the list.
fn stumbles(sentence: &str) -> bool {
    let mut words = sentence.split_whitespace().map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()));
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let has_subject = PRONOUNS.contains(&first) && VERBS.contains(&second) || (first, second) == ("Of", "course");
    let is_question = sentence.trim_end_matches('*').ends_with('?');
    IN_PLACE_OF_A_SUBJECT.contains(&first) && !has_subject && !is_question
        || PHRASES.iter().any(|phrase| sentence.contains(phrase))
}

/// Returns the sentences of a paragraph. A colon ends one as well.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for word in paragraph.split_whitespace() {
        if let Some(sentence) = sentences.last_mut() {
            sentence.extend([word, " "]);
        }
        if word.trim_end_matches('*').ends_with(['.', '!', '?', ':']) {
            sentences.push(String::new());
        }
    }
    sentences.iter().map(|sentence| sentence.trim().to_owned()).collect()
}

#[test]
fn sentences_begin_with_their_subject() {
    let root = root();
    let mut files: Vec<_> = PLACES.iter().flat_map(|place| sources(&root.join(place))).collect();
    let pages = fs::read_dir(root.join("docs")).expect("docs").chain(fs::read_dir(&root).expect("the root"));
    let pages = pages.map(|entry| entry.expect("an entry").path());
    files.extend(pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut wrong = Vec::new();
    for path in files.iter().filter(|path| !path.ends_with("sys.rs")) {
        for (line, paragraph) in paragraphs(path) {
            let stumbling = sentences(&paragraph).into_iter().filter(|sentence| stumbles(sentence));
            wrong.extend(stumbling.map(|sentence| format!("{}:{line}: {sentence}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{} sentences without a subject in front:\n{}", wrong.len(), wrong.join("\n"));
}

/// The strings of a file of Rust, with their lines.
fn strings(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let strings = |line: &str| line.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
    lines.map(|(number, line)| (number + 1, strings(line))).collect()
}

#[test]
fn messages_are_plain() {
    let root = root();
    let files = ["src", "crates"].iter().flat_map(|folder| sources(&root.join(folder)));
    let mut wrong = Vec::new();
    for path in files.filter(|path| !WORDS.iter().any(|(file, _)| path.ends_with(file))) {
        let found = strings(&path).into_iter().filter(|(_, text)| PHRASES.iter().any(|phrase| text.contains(phrase)));
        wrong.extend(found.map(|(line, text)| format!("{}:{line}: {text}", path.display())));
    }
    assert!(wrong.is_empty(), "messages to rewrite:\n{}", wrong.join("\n"));
}

#[test]
fn a_sentence_without_its_subject_is_found() {
    for sentence in
        ["What an op sees.", "Of what.", "`None` of other runs.", "Nobody reads it.", "It has two, one of which stays."]
    {
        assert!(stumbles(sentence), "{sentence}");
    }
    for sentence in ["That is the step.", "Of course.", "What is a step?", "The step.", "`None` is allowed."] {
        assert!(!stumbles(sentence), "{sentence}");
    }
}
