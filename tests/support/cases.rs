//! Chooses the cases that a test runs: few in the small tier, all in the full tier.
//!
//! | `MESHLOOM_EVERY_CASE` | a test with cases runs |
//! |---|---|
//! | not set | a few of them, spread over all: the small tier |
//! | `1` | all of them: the full tier |
//! | `3/10` | the third of ten shares of all of them |
//! | a name that [`cases`] is called with | all of them in the test that uses the name, a few in the others |

use std::io::Write;
use std::sync::OnceLock;
use std::{env, fs, thread};

const VARIABLE: &str = "MESHLOOM_EVERY_CASE";

/// The variable that names a file. Each call adds a line to it: the test program, the test, the name of its cases, how
/// many of them the small tier takes, and how many there are. `.ci/run` makes `tests/full_tier.tsv` of the lines, from
/// which it knows the tests with further cases in the full tier.
const LIST: &str = "MESHLOOM_LIST_CASES";

/// Adds a line to the list, if there is one. Libtest names a thread after the test that it runs.
fn list(name: &str, few: usize, all: usize) {
    let Some(path) = env::var_os(LIST).filter(|path| !path.is_empty()) else { return };
    let program = env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_stem()?.to_str()?.split_once('-')).map(|(name, _)| name);
    let (program, thread) = (program.unwrap_or("?"), thread::current());
    let line = format!("{program}\t{}\t{name}\t{few}\t{all}\n", thread.name().unwrap_or("?"));
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of cases can be written");
}

/// The choice that the variable makes.
#[derive(Debug)]
enum Tier {
    Small,
    Full,
    /// One share, from 0, and the number of shares.
    Share(usize, usize),
    Named(String),
}

fn tier() -> &'static Tier {
    static TIER: OnceLock<Tier> = OnceLock::new();
    TIER.get_or_init(|| {
        let value = env::var(VARIABLE).unwrap_or_default();
        let share = || {
            let (number, count) = value.split_once('/')?;
            let (number, count): (usize, usize) = (number.parse().ok()?, count.parse().ok()?);
            assert!((1..=count).contains(&number), "{VARIABLE}={value}: shares count from 1 to {count}");
            Some(Tier::Share(number - 1, count))
        };
        match value.as_str() {
            "" => Tier::Small,
            "1" => Tier::Full,
            _ => share().unwrap_or_else(|| Tier::Named(value.clone())),
        }
    })
}

/// Whether any test runs more than its few cases. Programs are then compiled with the usual options, and budgets are
/// not enforced.
pub fn more_than_few() -> bool {
    !matches!(tier(), Tier::Small)
}

/// Whether the test of this name runs all of its cases. It is for cases that are not a list, such as a larger model or
/// more tries.
pub fn every_case(name: &str) -> bool {
    list(name, 0, 0);
    match tier() {
        Tier::Small => false,
        Tier::Full | Tier::Share(..) => true,
        Tier::Named(named) => named == name,
    }
}

/// Returns the cases that a test runs. In the small tier these are `few` of `all`, spread evenly, with the first among
/// them; otherwise the variable decides. The name consists of the test's program and the subject of the cases, as in
/// `train kills`.
pub fn cases<T>(name: &str, few: usize, all: impl IntoIterator<Item = T>) -> Vec<T> {
    let all: Vec<T> = all.into_iter().collect();
    let count = all.len();
    let few = few.min(count);
    list(name, few, count);
    let is_chosen = |index: usize| match tier() {
        Tier::Full => true,
        Tier::Share(number, shares) => index % shares == *number,
        Tier::Named(named) if named == name => true,
        // An index is chosen if it is the first of its part, where `all` is cut into `few` parts.
        Tier::Small | Tier::Named(_) => few > 0 && (index == 0 || index * few / count != (index - 1) * few / count),
    };
    all.into_iter().enumerate().filter(|(index, _)| is_chosen(*index)).map(|(_, case)| case).collect()
}

/// Returns the number that chooses among random cases: `MESHLOOM_SEED`, or else `usual`.
pub fn seed(usual: u64) -> u64 {
    let set = env::var("MESHLOOM_SEED").ok().filter(|value| !value.is_empty());
    set.map_or(usual, |value| value.parse().unwrap_or_else(|_| panic!("MESHLOOM_SEED={value}: not a whole number")))
}
