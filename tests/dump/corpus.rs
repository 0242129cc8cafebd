//! Files of others, which the repository does not have: every command on each of them.

use std::collections::BTreeMap;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hlo_dump::Caller;
use support::host_memory::growth;

/// The memory that each command may take beside 20 times the size of a file.
const MEMORY: u64 = 200 << 20;

/// Each command with its options. The others run where the first one reads a file.
const COMMANDS: [(&str, &[&str]); 6] = [
    ("collectives", &[]),
    ("memory", &[]),
    ("cost", &["--chip", "v5p"]),
    ("show", &["--full"]),
    ("show", &["--emit", "svg"]),
    ("lock", &[]),
];

#[derive(Default)]
struct Source {
    files: usize,
    read: usize,
    /// The refusals of `collectives` by their messages, with an example of each.
    refused: BTreeMap<String, (usize, PathBuf)>,
}

/// Reads `FOLDER/SOURCE/FILE` for each source, prints a table of the files read and refused, and the slowest runs.
/// No command may panic, or take more memory than 20 times the file and 200 MiB.
#[test]
#[ignore = "needs a folder of folders of programs in MESHLOOM_CORPUS_FOLDER"]
fn files_of_others() {
    let folder = PathBuf::from(std::env::var("MESHLOOM_CORPUS_FOLDER").expect("a folder"));
    let (mut sources, mut slowest, mut wrong) = (BTreeMap::<String, Source>::new(), Vec::new(), Vec::new());
    for path in entries(&folder).iter().flat_map(|source| entries(source)) {
        let name = path.parent().and_then(Path::file_name).expect("a source").to_string_lossy().into_owned();
        let source = sources.entry(name).or_default();
        source.files += 1;
        let size = fs::metadata(&path).expect("a file").len();
        for (command, options) in COMMANDS {
            let arguments = [&[command, path.to_str().expect("a path in UTF-8")], options].concat();
            let start = Instant::now();
            let (ran, taken) = growth(|| catch_unwind(|| hlo_dump::run(&arguments, Caller::default())));
            slowest.push((start.elapsed(), arguments.join(" ")));
            if taken > 20 * size + MEMORY {
                wrong.push(format!("{} takes {taken} bytes of memory", arguments.join(" ")));
            }
            let Ok(ran) = ran else {
                wrong.push(format!("{} panics", arguments.join(" ")));
                break;
            };
            if command != "collectives" {
                continue;
            }
            if ran.status == 2 {
                let message = String::from_utf8_lossy(&ran.err);
                source.refused.entry(class(&message)).or_insert((0, path.clone())).0 += 1;
                break;
            }
            source.read += 1;
        }
        slowest.sort_by_key(|(taken, _)| std::cmp::Reverse(*taken));
        slowest.truncate(10);
    }
    for (name, Source { files, read, refused }) in &sources {
        println!("{name}: {read} of {files} are read");
        let mut refused: Vec<_> = refused.iter().collect();
        refused.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (class, (count, example)) in refused {
            println!("  {count} {class} ({})", example.file_name().unwrap_or_default().to_string_lossy());
        }
    }
    for (taken, run) in slowest.iter().filter(|(taken, _)| *taken > Duration::from_millis(100)) {
        println!("{:.2} s: {run}", taken.as_secs_f64());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    found
}

/// A message without what differs from file to file: the place before it, numbers, and names.
fn class(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let said = line.split_once("column ").and_then(|(_, rest)| rest.split_once(": ")).map_or(line, |(_, said)| said);
    let is_name = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit() || "%@/\"".contains(letter));
    said.split(' ').map(|word| if is_name(&word) { "_" } else { word }).take(18).collect::<Vec<_>>().join(" ")
}
