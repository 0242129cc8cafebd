//! The streams that a command reads and prints to: the process's own, or memory of a caller within the process.
//!
//! Each thread that runs a command has its own streams, so commands may run at the same time. Other threads only
//! compute, and show progress by [`Busy`], which looks at the stream before they start.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::io::{Cursor, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};

use meshloom_analysis::Redaction;
use meshloom_hlo::message::shown;
use meshloom_hlo::read::Limits;

use crate::arguments::Units;

/// The caller of a command that runs within a process.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The bytes that the command reads as its standard input.
    pub input: Vec<u8>,
    /// The program that compiles in a process of its own: its `main` calls `meshloom::pjrt::worker::run_if_asked`
    /// first. The default is the program of `MESHLOOM_WORKER`, or else the one that runs the command.
    pub worker: Option<PathBuf>,
    /// The folder, without links in its path, below which all files are that the command may read. It then writes no
    /// file, reads no run config and compiles nothing.
    pub below: Option<PathBuf>,
}

/// The output of a command, and its exit status.
#[derive(Clone, Debug)]
pub struct Ran {
    /// 0 if the command is done, 1 if it found something, 2 for an error.
    pub status: u8,
    /// The bytes printed to the standard output.
    pub out: Vec<u8>,
    /// The bytes printed to the standard error.
    pub err: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// The streams of a command, and the way in which it prints to them.
struct Streams {
    place: StreamsOf,
    color: ColorChoice,
    units: Units,
    /// The most bytes of an input, if the user states it.
    max_size: Option<u64>,
    /// The depth to which computations may call each other, if the user states it.
    max_depth: Option<usize>,
    /// The pseudonyms, if names are secret.
    redaction: Option<Redaction>,
}

enum StreamsOf {
    Process,
    Memory(Box<MemoryStreams>),
}

struct MemoryStreams {
    input: Cursor<Vec<u8>>,
    out: Vec<u8>,
    err: Vec<u8>,
    worker: Option<PathBuf>,
    below: Option<PathBuf>,
}

impl Streams {
    const fn of(place: StreamsOf) -> Streams {
        Streams {
            place,
            color: ColorChoice::Auto,
            units: Units::Both,
            max_size: None,
            max_depth: None,
            redaction: None,
        }
    }
}

thread_local! {
    static STREAMS: RefCell<Streams> = const { RefCell::new(Streams::of(StreamsOf::Process)) };
}

/// Runs a command in this thread, with the caller's streams in place of the process's.
pub fn within(caller: Caller, command: impl FnOnce() -> u8) -> Ran {
    /// Puts the former streams back, even when a command panics.
    struct Before(Option<Streams>);

    impl Before {
        fn back(&mut self) -> Option<Streams> {
            Some(STREAMS.replace(self.0.take()?))
        }
    }

    impl Drop for Before {
        fn drop(&mut self) {
            self.back();
        }
    }

    let Caller { input, worker, below } = caller;
    let memory = MemoryStreams { input: Cursor::new(input), out: Vec::new(), err: Vec::new(), worker, below };
    let mut before = Before(Some(STREAMS.replace(Streams::of(StreamsOf::Memory(Box::new(memory))))));
    let status = command();
    let (out, err) = match before.back() {
        Some(Streams { place: StreamsOf::Memory(memory), .. }) => (memory.out, memory.err),
        _ => Default::default(),
    };
    Ran { status, out, err }
}

pub fn set_color(color: ColorChoice) {
    STREAMS.with_borrow_mut(|streams| streams.color = color);
}

pub fn units() -> Units {
    STREAMS.with_borrow(|streams| streams.units)
}

pub fn set_units(units: Units) {
    STREAMS.with_borrow_mut(|streams| streams.units = units);
}

pub fn limits() -> Limits {
    STREAMS.with_borrow(|streams| {
        let limits = streams.max_size.map_or_else(Limits::default, Limits::up_to);
        Limits { call_depth: streams.max_depth.unwrap_or(limits.call_depth), ..limits }
    })
}

pub fn set_limits(max_size: Option<u64>, max_depth: Option<usize>) {
    STREAMS.with_borrow_mut(|streams| (streams.max_size, streams.max_depth) = (max_size, max_depth));
}

/// Has names redacted, by a key if it is not empty; or not, where there is none.
pub fn set_redaction(key: Option<&str>) {
    let redaction = key.map(|key| Redaction::new(Some(key).filter(|key| !key.is_empty())));
    STREAMS.with_borrow_mut(|streams| streams.redaction = redaction);
}

/// Whether names are secret.
pub fn is_redacting() -> bool {
    redacted(|_| ()).is_some()
}

/// Returns what is made with the pseudonyms, if names are secret.
pub fn redacted<T>(make: impl FnOnce(&mut Redaction) -> T) -> Option<T> {
    STREAMS.with_borrow_mut(|streams| streams.redaction.as_mut().map(make))
}

pub fn worker() -> Option<PathBuf> {
    STREAMS.with_borrow(|streams| match &streams.place {
        StreamsOf::Process => None,
        StreamsOf::Memory(memory) => memory.worker.clone(),
    })
}

/// The folder below which all files are that the command may read; `None` if it may read any.
pub fn below() -> Option<PathBuf> {
    STREAMS.with_borrow(|streams| match &streams.place {
        StreamsOf::Process => None,
        StreamsOf::Memory(memory) => memory.below.clone(),
    })
}

/// Whether the streams are the process's own.
#[cfg(feature = "mcp")]
pub fn are_of_process() -> bool {
    STREAMS.with_borrow(|streams| matches!(streams.place, StreamsOf::Process))
}

/// Whether a stream is a terminal. Memory is none.
pub fn is_terminal(stream: Stream) -> bool {
    STREAMS.with_borrow(|streams| match (&streams.place, stream) {
        (StreamsOf::Memory(_), _) => false,
        (StreamsOf::Process, Stream::Out) => std::io::stdout().is_terminal(),
        (StreamsOf::Process, Stream::Err) => std::io::stderr().is_terminal(),
    })
}

/// The mark before and behind a style in text that is printed. It differs from run to run, so that no name in an
/// input can have a style.
pub fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("\u{1}{:016x}\u{1}", RandomState::new().hash_one(0u8)))
}

/// Prints text with marked styles. Other control characters in it are shown, and not sent.
pub fn print(stream: Stream, text: &str) -> std::io::Result<()> {
    let parts = text.split(mark()).enumerate();
    // Every second part is a style.
    let safe: String = parts.map(|(place, part)| if place % 2 == 0 { shown(part) } else { part.into() }).collect();
    print_styled(stream, &safe)
}

/// Prints the program's own text. Styles are left out if `--color` or the stream does not have them.
pub fn print_styled(stream: Stream, text: &str) -> std::io::Result<()> {
    STREAMS.with_borrow_mut(|Streams { place, color, .. }| match (place, stream) {
        (StreamsOf::Process, Stream::Out) => AutoStream::new(std::io::stdout(), *color).write_all(text.as_bytes()),
        (StreamsOf::Process, Stream::Err) => AutoStream::new(std::io::stderr(), *color).write_all(text.as_bytes()),
        (StreamsOf::Memory(memory), _) => {
            let printed = if stream == Stream::Out { &mut memory.out } else { &mut memory.err };
            AutoStream::new(printed, *color).write_all(text.as_bytes())
        }
    })
}

/// Writes bytes to the standard output, unchanged.
pub fn write(bytes: &[u8]) -> std::io::Result<()> {
    STREAMS.with_borrow_mut(|streams| match &mut streams.place {
        StreamsOf::Process => std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()),
        StreamsOf::Memory(memory) => memory.out.write_all(bytes),
    })
}

/// Reads the rest of the standard input, up to a limit of bytes.
pub fn read(limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    STREAMS.with_borrow_mut(|streams| match &mut streams.place {
        StreamsOf::Process => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        StreamsOf::Memory(memory) => (&mut memory.input).take(limit).read_to_end(&mut bytes),
    })?;
    Ok(bytes)
}

/// A line on a terminal that names the work in progress, until it is dropped. Any thread may change it.
pub struct Busy {
    is_seen: bool,
}

impl Busy {
    pub fn new(doing: &str) -> Busy {
        let busy = Busy { is_seen: is_terminal(Stream::Err) };
        busy.say(doing);
        busy
    }

    pub fn say(&self, doing: &str) {
        if self.is_seen {
            eprint!("\r\x1b[2K{}", shown(doing));
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.say("");
    }
}
