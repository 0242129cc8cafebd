//! The messages of XLA that say that a program ran out of memory.
//!
//! A message stands somewhere in a text, such as the log of a run whose lines have stamps before them. Compilers for
//! TPUs refuse a program that is too large, older ones with its largest values. The allocator of a GPU or a CPU fails
//! while the program runs; XLA then adds the values at the peak of the program that wanted memory. Each form is a row
//! of a table here; the lines of values are the same in all.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::remat::{folded_name, names};
use super::{BufferKind, LiveBuffer, Remedy, RemedyKind};

/// The place where memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RanOutWhile {
    /// The compiler counted more than the device has.
    Compiling,
    /// An allocation failed in a run.
    Running,
}

/// An amount that a message states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatedBytes {
    /// The part of memory that it is the amount of.
    pub of: &'static str,
    /// The bytes, as exact as the message is.
    pub bytes: u64,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutOfMemory {
    /// Where memory ran out.
    pub ran_out_while: RanOutWhile,
    /// The bytes that are needed: of the program, or of the allocation that failed.
    pub needed: u64,
    /// The bytes that the device has, or free when the allocation failed.
    pub there_is: Option<u64>,
    /// The memory that ran out, if it has a name: `hbm`; `vmem` and others on the chip have no remedies here.
    pub space: Option<String>,
    /// The name of the module, if the message states it.
    pub module: Option<String>,
    /// Other amounts, in the order of the message.
    pub stated: Vec<StatedBytes>,
    /// The largest values that the message lists, largest first; mostly 15 or 20 of them.
    pub live: Vec<LiveBuffer>,
}

impl OutOfMemory {
    /// Returns the bytes that are missing, if it is known how many there are.
    pub fn missing(&self) -> Option<u64> {
        Some(self.needed.saturating_sub(self.there_is?))
    }

    fn stated(&self, of: &str) -> Option<u64> {
        self.stated.iter().rfind(|stated| stated.of == of).map(|stated| stated.bytes)
    }
}

/// The beginnings of messages. Each has the text before the bytes that are needed, the text between them and the bytes
/// of the device, and where memory ran out.
const HEADS: [(&str, &str, RanOutWhile); 9] = [
    ("Used ", " of ", RanOutWhile::Compiling),
    ("Ran out of memory on HBM, the total memory required for ", "exceeds available HBM (", RanOutWhile::Compiling),
    ("TPU TensorCore Hbm usage: ", "exceeding available bytes: ", RanOutWhile::Compiling),
    ("Allocation (size=", "would exceed memory (size=", RanOutWhile::Compiling),
    ("Attempting to reserve ", "There are ", RanOutWhile::Running),
    ("Attempting to allocate ", "There are ", RanOutWhile::Running),
    ("ran out of memory trying to allocate ", "", RanOutWhile::Running),
    ("Out of memory while trying to allocate ", "", RanOutWhile::Running),
    ("Out of memory allocating ", "", RanOutWhile::Running),
];

/// The amounts of lines that follow: the text before the number, and what it is the amount of.
const AMOUNTS: [(&str, &str); 17] = [
    ("reserved ", "reserved"),
    ("program ", "the program"),
    ("arguments ", ARGUMENTS),
    ("Output size ", OUTPUTS),
    ("shares ", SHARED),
    ("global ", "global values"),
    ("scoped ", "scratch memory of kernels"),
    ("HLO temp ", TEMPORARIES),
    ("parameter allocation: ", ARGUMENTS),
    ("constant allocation: ", CONSTANTS),
    ("maybe_live_out allocation: ", OUTPUTS),
    ("preallocated temp allocation: ", TEMPORARIES),
    ("total allocation: ", TOTAL),
    ("total fragmentation: ", "gaps between values"),
    ("Limit: ", LIMIT),
    ("InUse: ", "in use by the allocator"),
    ("MaxInUse: ", "most that was in use"),
];

const ARGUMENTS: &str = "arguments";
const OUTPUTS: &str = "outputs";
const SHARED: &str = "outputs in donated arguments";
const TEMPORARIES: &str = "temporaries";
const CONSTANTS: &str = "constants";
const TOTAL: &str = "the program in all";
const LIMIT: &str = "limit of the allocator";

/// Finds the last message in a text; `None` if there is none.
pub fn out_of_memory(text: &str) -> Option<OutOfMemory> {
    let quoted = text.contains("Peak buffers:\\n") || text.contains("allocations in hbm:\\n");
    let unquoted = quoted.then(|| text.replace("\\n", "\n").replace("\\t", " ").replace("\\\"", "\""));
    let text = unquoted.as_deref().unwrap_or(text);
    let mut reading: Option<MessageReading> = None;
    for line in text.lines() {
        if let Some(next) = head(line) {
            match &mut reading {
                // A program and its log say the same twice, and an allocator says what follows from its failure.
                Some(reading) if reading.is_same(&next) => reading.join(next),
                _ => reading = Some(MessageReading::of(next)),
            }
        }
        if let Some(reading) = &mut reading {
            reading.line(line);
        }
    }
    Some(reading?.finish())
}

/// Whether a text may contain a message.
pub fn may_be_out_of_memory(text: &str) -> bool {
    text.contains("Ran out of memory in memory space ") || HEADS[1..].iter().any(|(before, ..)| text.contains(before))
}

fn head(line: &str) -> Option<OutOfMemory> {
    let (rest, between, ran_out_while) =
        HEADS.iter().find_map(|&(before, between, when)| Some((line.split_once(before)?.1, between, when)))?;
    // `HLO temporaries (17.89G) exceeds`: the number may follow its name.
    let needed = size(rest).or_else(|| size(rest.split_once('(')?.1))?;
    // The allocator's number is rounded, and exact beside it.
    let exact = rest.split_once("(rounded to ").and_then(|(_, exact)| size(exact));
    let there_is = (!between.is_empty()).then(|| size(rest.split_once(between)?.1)).flatten();
    let space = match between {
        // `Used 21.95G of 15.48G hbm. Exceeded ..`: these words stand in other lines too.
        " of " => Some(rest.split_once(between)?.1.split_once(' ')?.1.split_once('.')?.0.to_owned()),
        _ => None,
    };
    if space.as_ref().is_some_and(|space| there_is.is_none() || !space.ends_with("mem") && space != "hbm") {
        return None;
    }
    let sparse = rest.split_once("SparseCore Hbm usage ").and_then(|(_, sparse)| size(sparse)).unwrap_or(0);
    let module = rest.split_once("HLO module: ").map(|(_, name)| {
        let end = name.find(|letter: char| letter.is_whitespace() || letter == '"').unwrap_or(name.len());
        name[..end].trim_end_matches('.').to_owned()
    });
    let needed = exact.unwrap_or(needed).saturating_add(sparse);
    Some(OutOfMemory { ran_out_while, needed, there_is, space, module, stated: Vec::new(), live: Vec::new() })
}

/// Reads `17.89G`, `530.00M`, `384.0KiB`, `0B`, `size=123)` or `6291456 bytes.` at the start of a text.
fn size(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    let unit = match text[number.len()..].trim_start().chars().next() {
        Some('K') => 1u64 << 10,
        Some('M') => 1 << 20,
        Some('G') => 1 << 30,
        Some('T') => 1 << 40,
        _ => 1,
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit),
        Err(_) => number.parse::<f64>().ok().map(|number| (number * unit as f64).round() as u64),
    }
}

/// Returns what follows a text in a line, where the text begins the line or follows a stamp or a blank.
fn after<'l>(line: &'l str, text: &str) -> Option<&'l str> {
    let mut from = 0;
    while let Some(at) = line.get(from..)?.find(text) {
        let at = from + at;
        let before = line[..at].chars().next_back();
        if before.is_none_or(|letter| letter.is_whitespace() || matches!(letter, ']' | ':' | '>' | '|')) {
            return Some(line[at + text.len()..].trim());
        }
        from = at + text.len();
    }
    None
}

/// A message that is being read.
struct MessageReading {
    found: OutOfMemory,
    buffers: Vec<Listed>,
    in_list: bool,
    in_report: bool,
    /// The tables of slots that have begun.
    slots: usize,
}

/// A value that a message lists.
#[derive(Default)]
struct Listed {
    bytes: u64,
    plain: Option<u64>,
    padding: u64,
    shape: String,
    operator: String,
    label: String,
    kind: Option<BufferKind>,
}

impl MessageReading {
    fn of(found: OutOfMemory) -> MessageReading {
        MessageReading { found, buffers: Vec::new(), in_list: false, in_report: false, slots: 0 }
    }

    fn slot(&mut self, line: &str) {
        /// The most slots that are kept.
        const MOST_SLOTS: usize = 1000;
        let columns: Vec<&str> = line.splitn(5, ';').map(str::trim).collect();
        if let [_, bytes, _, _, shape] = columns[..]
            && let Some(bytes) = size(bytes)
            && self.buffers.len() < MOST_SLOTS
        {
            self.buffers.push(Listed { bytes, shape: shape.to_owned(), ..Listed::default() });
        }
    }

    fn is_same(&self, next: &OutOfMemory) -> bool {
        let found = &self.found;
        let is_near = found.needed.abs_diff(next.needed) <= found.needed / 100;
        found.ran_out_while == next.ran_out_while && is_near
    }

    fn join(&mut self, next: OutOfMemory) {
        self.found.there_is = self.found.there_is.or(next.there_is);
        self.found.module = self.found.module.take().or(next.module);
        self.in_list = false;
    }

    fn line(&mut self, line: &str) {
        /// The most values that are kept: no message has as many.
        const MOST_BUFFERS: usize = 10_000;
        if line.contains("cumulative_size;") {
            // A report has slots, the largest first, each with the types of the values that lie in it one by one.
            self.in_report = self.slots == 0;
            self.slots += 1;
            return;
        }
        if self.in_report && !self.in_list {
            self.slot(line);
        }
        if line.contains("Largest program allocations in ") || line.contains("Peak buffers:") {
            // Lists of other memories follow the one that ran out.
            self.in_list = !line.contains("allocations in ") || line.contains("in hbm");
            if self.in_list {
                self.buffers.clear();
            }
            return;
        }
        if !self.in_list {
            self.amounts(line);
            return;
        }
        let starts = after(line, "Size: ").and_then(size);
        if let Some(bytes) = starts.filter(|_| self.buffers.len() < MOST_BUFFERS) {
            self.buffers.push(Listed { bytes, ..Listed::default() });
            return;
        }
        let Some(buffer) = self.buffers.last_mut() else { return };
        let text = |key: &str| after(line, key);
        if let Some(operator) = text("Operator: ") {
            buffer.operator = operator.to_owned();
        } else if let Some(shape) = text("Entry Parameter Subshape: ") {
            (buffer.shape, buffer.kind) = (shape.to_owned(), Some(BufferKind::Argument));
        } else if let Some(shape) = text("Shape: ") {
            buffer.shape = shape.to_owned();
        } else if let Some(plain) = text("Unpadded size: ").and_then(size) {
            buffer.plain = Some(plain);
        } else if let Some(padding) = text("Extra memory due to padding: ").and_then(size) {
            buffer.padding = padding;
        } else if let Some(label) = text("XLA label: ").or_else(|| text("XLA Label: ")) {
            buffer.label = label.to_owned();
        } else if let Some(kind) = text("Allocation type: ") {
            buffer.kind = Some(kind_of(kind));
        }
    }

    fn amounts(&mut self, line: &str) {
        /// The most amounts that are kept.
        const MOST_AMOUNTS: usize = 64;
        for (before, of) in AMOUNTS {
            let is_new = |bytes: &u64| !self.found.stated.contains(&StatedBytes { of, bytes: *bytes });
            // A word alone stands in many lines of a log: a unit must follow its number.
            let has_unit = |rest: &&str| {
                let unit = rest.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
                before.ends_with(": ") || unit.starts_with(['B', 'K', 'M', 'G', 'T'])
            };
            let found = after(line, before).filter(has_unit).and_then(size).filter(is_new);
            if let Some(bytes) = found.filter(|_| self.found.stated.len() < MOST_AMOUNTS) {
                self.found.stated.push(StatedBytes { of, bytes });
            }
        }
    }

    fn finish(self) -> OutOfMemory {
        let mut found = self.found;
        let free = found.stated(LIMIT).zip(found.stated("in use by the allocator"));
        found.there_is = found.there_is.or(free.map(|(limit, used)| limit.saturating_sub(used)));
        found.live = self.buffers.into_iter().map(Listed::buffer).collect();
        found.live.sort_by_key(|buffer| Reverse(buffer.bytes));
        found
    }
}

fn kind_of(allocation: &str) -> BufferKind {
    let allocation = allocation.to_ascii_lowercase();
    if allocation.contains("argument") || allocation.contains("parameter") {
        BufferKind::Argument
    } else if allocation.contains("output") || allocation.contains("live-out") {
        BufferKind::Output
    } else {
        BufferKind::Temporary
    }
}

impl Listed {
    fn buffer(self) -> LiveBuffer {
        let quoted = |key: &str| Some(self.operator.split_once(key)?.1.split_once('"')?.0.to_owned());
        // A parameter's op has its path, in quotes that are escaped.
        let op_name = quoted("op_name=\"").unwrap_or_default().replace("\\'", "'");
        let line = self.operator.split_once("source_line=").map(|(_, line)| {
            let end = line.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(line.len());
            line[..end].to_owned()
        });
        let source = quoted("source_file=\"").map(|file| match line {
            Some(line) if !line.is_empty() => format!("{file}:{line}"),
            _ => file,
        });
        let name = self.label.split([' ', '=']).next().unwrap_or_default().trim_start_matches('%').to_owned();
        let shape = match self.shape.split_once('{') {
            Some((shape, _)) if !shape.starts_with('(') => shape.to_owned(),
            _ => self.shape.clone(),
        };
        let padding = self.padding.max(self.plain.map_or(0, |plain| self.bytes.saturating_sub(plain)));
        // The amounts are rounded.
        let padding = if padding <= self.bytes / 100 { 0 } else { padding };
        let kind = self.kind.unwrap_or(BufferKind::Temporary);
        LiveBuffer { name, kind, bytes: self.bytes, padding, shape, computation: String::new(), op_name, source }
    }
}

/// Returns what the values that a message lists show of remedies, the best first: at least as much, since most values
/// are not listed.
pub fn remedies_of_message(message: &OutOfMemory) -> Vec<Remedy> {
    let needed = message.stated(TOTAL).unwrap_or(message.needed);
    let remedy = |kind, of: String, values: usize, saves: u64| {
        let saves = saves.min(needed);
        Remedy { kind, of, axis: None, values: values as u64, saves, peak: needed - saves }
    };
    // The bytes of each layer, by the scope that layers have in common.
    let mut scopes: BTreeMap<String, BTreeMap<String, (usize, u64)>> = BTreeMap::new();
    let is_saved = |buffer: &&LiveBuffer| {
        buffer.kind == BufferKind::Temporary
            && buffer.op_name.contains("jvp(")
            && !buffer.op_name.contains("transpose(")
    };
    for buffer in message.live.iter().filter(is_saved) {
        let names = names(&buffer.op_name);
        for depth in 1..=names.len() {
            let folded = names[..depth].iter().map(|name| folded_name(name)).collect::<Vec<_>>().join("/");
            let (count, sum) = scopes.entry(folded).or_default().entry(names[..depth].join("/")).or_default();
            (*count, *sum) = (*count + 1, sum.saturating_add(buffer.bytes));
        }
    }
    let mut found = Vec::new();
    for (scope, layers) in scopes {
        let all = layers.values().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        // One layer is computed again at a time.
        let most = layers.values().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        found.push(remedy(RemedyKind::Remat, scope, layers.values().map(|(count, _)| count).sum(), all - most));
    }
    if let Some((arguments, outputs)) = message.stated(ARGUMENTS).zip(message.stated(OUTPUTS)) {
        let parts = [CONSTANTS, TEMPORARIES].map(|of| message.stated(of).unwrap_or(0));
        let sum = parts.into_iter().fold(arguments.saturating_add(outputs), u64::saturating_add);
        let shared = message.stated(SHARED).or_else(|| Some(sum.saturating_sub(message.stated(TOTAL)?))).unwrap_or(0);
        found.push(remedy(RemedyKind::Donation, String::new(), 0, arguments.min(outputs).saturating_sub(shared)));
    }
    found.extend(super::remedies::padded(&message.live, needed));
    found.retain(|remedy| remedy.saves > 0);
    found.sort_by(|a, b| (Reverse(a.saves), a.kind, &a.of).cmp(&(Reverse(b.saves), b.kind, &b.of)));
    found
}
