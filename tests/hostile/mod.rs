//! Inputs that strangers have made to do harm, for every reader: each is an error or is read, in memory and time that
//! its size allows.
//!
//! | kind | what it is |
//! |---|---|
//! | wide | many of something, something deep, sizes that are claimed, bombs of gzip and zstd |
//! | truncated, flipped | a real file that ends early, or with bits changed |
//! | other types, huge numbers, dangling | a real file with one value replaced |
//! | mixed | the mutations of `hlo::mutated` |
//! | doubled | a piece of a real file, many times |
//! | special | a pipe, a socket, a device, a folder, or a link to one, under the file's name |
//!
//! The same number gives the same input; `MESHLOOM_SEED` draws others, `MESHLOOM_HOSTILE=NUMBER` runs one alone and
//! keeps it, and `MESHLOOM_HOSTILE=each` prints each number before it runs, for those that end the process.
//! Memory is that of the allocator in the reading thread. Time is reported; only a reader that does not come back at
//! all fails. Both are printed with `--nocapture`.

mod inputs;
mod named;
mod readers;
mod wide;

use std::collections::BTreeMap;
use std::io::PipeReader;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use support::cases::{cases, more_than_few, seed};
use support::random::Random;

/// Inputs in all.
const INPUTS: usize = 20_000;

/// Bytes that a reader may take for each byte of its input, decompressed, and in any case.
const MULTIPLE: u64 = 20;
const ANY: u64 = 200_000_000;

/// A reader that takes so long hangs.
const HANGS: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reader {
    HloText,
    HloProto,
    Compressed,
    StableHlo,
    Profile,
    Safetensors,
    Parameters,
    ModelConfig,
    Tokenizer,
    Generation,
    Manifest,
    Sums,
    Rules,
    RunConfig,
    Hardware,
    Lines,
    CompressedData,
}

impl Reader {
    pub const ALL: [Reader; 17] = [
        Reader::HloText,
        Reader::HloProto,
        Reader::Compressed,
        Reader::StableHlo,
        Reader::Profile,
        Reader::Safetensors,
        Reader::Parameters,
        Reader::ModelConfig,
        Reader::Tokenizer,
        Reader::Generation,
        Reader::Manifest,
        Reader::Sums,
        Reader::Rules,
        Reader::RunConfig,
        Reader::Hardware,
        Reader::Lines,
        Reader::CompressedData,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Wide,
    Truncated,
    Flipped,
    OtherTypes,
    HugeNumbers,
    Dangling,
    Mixed,
    Doubled,
    Special,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Wide,
        Kind::Truncated,
        Kind::Flipped,
        Kind::OtherTypes,
        Kind::HugeNumbers,
        Kind::Dangling,
        Kind::Mixed,
        Kind::Doubled,
        Kind::Special,
    ];
}

/// The time and memory that an input took.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// The fault of the reader; `None` if there is none.
    fault: Option<&'static str>,
    /// Bytes of the input, decompressed.
    size: u64,
    memory: u64,
    time: Duration,
    accepted: bool,
}

/// Puts something special in the place of the file.
fn put_special(path: &Path, pipe: &PipeReader, random: &mut Random) {
    match random.below(7) {
        0 => symlink("/dev/zero", path).unwrap(),
        1 => fs::create_dir(path).unwrap(),
        2 => drop(UnixListener::bind(path).unwrap()),
        // No process writes to the pipe, and none closes it.
        3 => symlink(format!("/proc/self/fd/{}", pipe.as_raw_fd()), path).unwrap(),
        4 => symlink(path, path).unwrap(),
        5 => symlink("/dev/tty", path).unwrap(),
        _ => symlink("nothing", path).unwrap(),
    }
}

/// The bytes that an input stands for, up to what any reader decompresses.
fn plain_size(bytes: &[u8]) -> u64 {
    let count = |mut reader: Box<dyn std::io::Read + '_>| {
        let mut chunk = vec![0; 1 << 16];
        let mut sum = 0u64;
        while let Ok(count @ 1..) = reader.read(&mut chunk) {
            sum += count as u64;
            if sum >= 256 << 20 {
                break;
            }
        }
        sum
    };
    let decompressed = match bytes {
        [0x1f, 0x8b, ..] => count(Box::new(flate2::read::MultiGzDecoder::new(bytes))),
        _ => 0,
    };
    decompressed.max(bytes.len() as u64)
}

fn run(number: usize, scratch: &Path, pipe: &PipeReader) -> (Reader, Kind, Taken) {
    let reader = Reader::ALL[number % Reader::ALL.len()];
    let turn = number / Reader::ALL.len();
    // Special files are few, and so are large ones: most are mistakes in small files.
    let kind = match turn % 24 {
        0..5 => Kind::Wide,
        5..7 => Kind::Doubled,
        7 if turn.is_multiple_of(5) => Kind::Special,
        other => Kind::ALL[1 + other % 6],
    };
    let mut random = Random((seed(1) << 32) ^ number as u64);
    // From a kilobyte to four megabytes, most of them small.
    let most = if more_than_few() { 12.0 } else { 6.0 };
    let size = (1024.0 * (random.unit() * most).exp2()) as usize;
    let input = inputs::input(reader, kind, size, &mut random);
    let folder = scratch.join("input");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    let path = folder.join(readers::name(reader));
    readers::prepare(reader, &folder, &input);
    match kind {
        Kind::Special => put_special(&path, pipe, &mut random),
        _ => fs::write(&path, &input).unwrap(),
    }
    let mut taken = Taken { size: if kind == Kind::Special { 0 } else { plain_size(&input) }, ..Taken::default() };
    drop(input);
    let started = Instant::now();
    let mut result = None;
    let measured = allocation_counter::measure(|| {
        result = Some(catch_unwind(AssertUnwindSafe(|| readers::run(reader, &folder, &mut random))));
    });
    taken.time = started.elapsed();
    taken.memory = measured.bytes_max;
    match result.expect("it ran") {
        Ok(Ok(())) => taken.accepted = true,
        Ok(Err(_)) => {}
        Err(_) => taken.fault = Some("it panics"),
    }
    if kind == Kind::Special && taken.accepted {
        taken.fault = Some("a special file is read");
    }
    if taken.memory > MULTIPLE * taken.size + ANY {
        taken.fault = taken.fault.or(Some("it takes too much memory"));
    }
    (reader, kind, taken)
}

#[test]
fn hostile_inputs_are_refused_or_read_within_their_means() {
    let chosen = env::var("MESHLOOM_HOSTILE").unwrap_or_default();
    let (only, says_each): (Option<usize>, bool) = (chosen.parse().ok(), chosen == "each");
    let numbers = cases("hostile inputs", 340, 0..INPUTS);
    let numbers = only.map_or(numbers, |only| vec![only]);
    let (say, said) = channel();
    let count = numbers.len();
    let worker = thread::Builder::new().stack_size(8 << 20).spawn(move || {
        let mut scratch = tempfile::tempdir().expect("a folder");
        if only.is_some() {
            scratch.disable_cleanup(true);
            println!("the input is in {}", scratch.path().display());
        }
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        for number in numbers {
            if says_each {
                eprintln!("input {number}");
            }
            let done = run(number, scratch.path(), &pipe);
            if say.send((number, done)).is_err() {
                return;
            }
        }
    });
    let worker = worker.expect("a thread");
    let mut found: BTreeMap<Reader, Vec<(usize, Taken)>> = BTreeMap::new();
    let (mut last, mut faults) = (None, Vec::new());
    loop {
        match said.recv_timeout(HANGS) {
            Ok((number, (reader, kind, taken))) => {
                last = Some(number);
                if let Some(fault) = taken.fault {
                    let Taken { size, memory, .. } = taken;
                    faults.push(format!(
                        "MESHLOOM_HOSTILE={number} ({reader:?}, {kind:?}): {fault}; {size} bytes take {memory}"
                    ));
                }
                found.entry(reader).or_default().push((number, taken));
            }
            Err(RecvTimeoutError::Timeout) => panic!("the input after {last:?} hangs"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
    println!("| reader | inputs | read | most memory beyond {ANY} bytes, as a multiple | most memory | longest, ms |");
    println!("|---|---|---|---|---|---|");
    for (reader, all) in &found {
        let accepted = all.iter().filter(|(_, taken)| taken.accepted).count();
        let multiple = |taken: &Taken| taken.memory.saturating_sub(ANY) as f64 / taken.size.max(1) as f64;
        let most = all.iter().map(|(_, taken)| multiple(taken)).fold(0.0, f64::max);
        let memory = all.iter().max_by_key(|(_, taken)| taken.memory).expect("some");
        let longest = all.iter().max_by_key(|(_, taken)| taken.time).expect("some");
        println!(
            "| {reader:?} | {} | {accepted} | {most:.1} | {} of {} ({}) | {} of {} ({}) |",
            all.len(),
            memory.1.memory,
            memory.1.size,
            memory.0,
            longest.1.time.as_millis(),
            longest.1.size,
            longest.0
        );
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(found.values().map(Vec::len).sum::<usize>(), count);
    assert!(only.is_some() || found.values().all(|all| !all.is_empty()) && found.len() == Reader::ALL.len());
}
