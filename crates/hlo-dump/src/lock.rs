//! `hlo-dump lock`: what a program moves and holds, as a file that is checked in, so that a change shows up in review.
//!
//! A line has no number of a source line and no path of a folder, so that edits elsewhere change nothing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use meshloom_analysis::{ModuleCollective, ModuleCollectives, Redaction};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::arguments;
use crate::collectives::{self, axes_of, scope_of};
use crate::input::{Loaded, load};
use crate::source::{self, read_all};
use crate::{memory, output, streams};

const FIRST_LINE: &str = "# hlo-dump lock 1";

/// The beginning of the line that says which pseudonyms a lock has in place of names.
const REDACTED: &str = "# redacted ";

/// The traffic and memory of a program.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct TrafficLock {
    /// The kind of pseudonyms in place of names, if there are any.
    #[serde(skip)]
    redacted: Option<String>,
    #[serde(skip)]
    devices: u64,
    /// `-` if no mesh is known.
    #[serde(skip)]
    mesh: String,
    /// The bytes that a device needs.
    peak: u64,
    /// The collectives by kind and origin, sorted.
    #[serde(serialize_with = "as_rows")]
    #[schemars(with = "Vec<LockRow<'static>>")]
    collectives: BTreeMap<Origin, Sent>,
}

/// The kind of a collective and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
struct Origin {
    /// The kind: `all-gather`, `all-reduce` and others.
    kind: String,
    /// The mesh axes, or else the devices in short.
    axes: String,
    /// The scope path, without the op.
    scope: String,
    /// The function in the source, or else the file.
    function: String,
}

/// The sums over all collectives of an origin: at most, and nothing where they are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
struct Sent {
    /// The most executions in one run of the program; null if the number is not known.
    executions: Option<u64>,
    /// The most bytes that one device sends in them; null if the number is not known.
    moved_bytes: Option<u64>,
}

/// The collectives of one kind and origin.
#[derive(JsonSchema, Serialize)]
struct LockRow<'a> {
    #[serde(flatten)]
    origin: &'a Origin,
    #[serde(flatten)]
    sent: &'a Sent,
}

fn as_rows<S: Serializer>(collectives: &BTreeMap<Origin, Sent>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(collectives.iter().map(|(origin, sent)| LockRow { origin, sent }))
}

pub fn run(arguments: &arguments::Lock, json: bool) -> Result<()> {
    let loaded = load(&arguments.input)?;
    let lock = TrafficLock::of(&loaded, &collectives::of(&loaded))?;
    if json {
        return output::json("hlo-dump/lock", &loaded.found(&lock));
    }
    match &arguments.output {
        Some(path) => {
            output::write(path, lock.text())?;
            loaded.print_title();
            let lines = output::plural(lock.collectives.len() as u64, "line");
            output::line(&format!("{}: {lines} of collectives, and the peak of memory", path.display()));
        }
        None => output::bytes_as_they_are(lock.text().as_bytes())?,
    }
    Ok(())
}

impl TrafficLock {
    /// The lock of a program with these collectives.
    pub fn of(loaded: &Loaded, found: &ModuleCollectives) -> Result<TrafficLock> {
        if let Some(warning) = loaded.unpartitioned() {
            bail!("{}: {warning}; a lock is of the program of one device", loaded.name);
        }
        let mut collectives: BTreeMap<Origin, Vec<ModuleCollective>> = BTreeMap::new();
        for entry in &found.entries {
            collectives.entry(Origin::of(entry)).or_default().push(entry.clone());
        }
        let sum = |(origin, entries): (Origin, Vec<ModuleCollective>)| {
            let all = found.some(entries);
            let sent = Sent { executions: all.execution_bounds().most, moved_bytes: all.moved_bounds().most };
            (origin, sent)
        };
        Ok(TrafficLock {
            redacted: streams::redacted(|redaction| redaction.kind()),
            devices: loaded.device_count(),
            mesh: loaded.mesh.as_ref().map_or("-".to_owned(), ToString::to_string),
            peak: memory::most(loaded)?.0,
            collectives: collectives.into_iter().map(sum).collect(),
        })
    }

    /// The file.
    fn text(&self) -> String {
        let redacted = self.redacted.as_ref().map(|kind| format!("{REDACTED}{kind}\n")).unwrap_or_default();
        let mut text =
            format!("{FIRST_LINE}\n{redacted}devices\t{}\nmesh\t{}\npeak\t{}\n", self.devices, self.mesh, self.peak);
        for (Origin { kind, axes, scope, function }, sent) in &self.collectives {
            let [executions, bytes] =
                [sent.executions, sent.moved_bytes].map(|it| it.map_or("?".to_owned(), |it| it.to_string()));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{kind}\t{axes}\t{executions}\t{bytes}\t{scope}\t{function}");
        }
        text
    }

    /// Reads a file that [`TrafficLock::text`] wrote.
    pub fn read(path: &Path) -> Result<TrafficLock> {
        let name = source::name(path);
        let bytes = read_all(path).with_context(|| format!("--lock {name}"))?;
        let text = String::from_utf8(bytes).with_context(|| format!("--lock {name}"))?;
        let mut lines = text.lines().zip(1usize..);
        if lines.next().is_none_or(|(line, _)| line.trim_end() != FIRST_LINE) {
            bail!("--lock {name}: the first line is not \"{FIRST_LINE}\"; `hlo-dump lock INPUT -o FILE` writes one");
        }
        let redacted = text.lines().find_map(|line| line.strip_prefix(REDACTED)).map(|kind| kind.trim_end().to_owned());
        let collectives = BTreeMap::new();
        let mut lock = TrafficLock { redacted, devices: 0, mesh: String::new(), peak: 0, collectives };
        for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#')) {
            lock.add(line).ok_or_else(|| {
                let line = source::shown(line);
                anyhow!("--lock {name}:{number}: this is no line of a lock: {line:?}; write the file anew with `hlo-dump lock`")
            })?;
        }
        if lock.redacted.is_none() {
            streams::redacted(|redaction| lock.redact(redaction));
        }
        Ok(lock)
    }

    /// Takes the names out of a lock that was written with them.
    fn redact(&mut self, redaction: &mut Redaction) {
        self.redacted = Some(redaction.kind());
        let named = std::mem::take(&mut self.collectives).into_iter().map(|(origin, sent)| {
            let (scope, function) = (redaction.text(&origin.scope), redaction.text(&origin.function));
            (Origin { scope, function, ..origin }, sent)
        });
        self.collectives = named.collect();
    }

    /// Takes a line; nothing if it is none.
    fn add(&mut self, line: &str) -> Option<()> {
        let amount = |text: &str| if text == "?" { Some(None) } else { text.parse().ok().map(Some) };
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["devices", devices] => self.devices = devices.parse().ok()?,
            ["mesh", mesh] => self.mesh = mesh.to_owned(),
            ["peak", peak] => self.peak = peak.parse().ok()?,
            [kind, axes, executions, bytes, scope, function] => {
                let [kind, axes, scope, function] = [kind, axes, scope, function].map(str::to_owned);
                let sent = Sent { executions: amount(executions)?, moved_bytes: amount(bytes)? };
                self.collectives.insert(Origin { kind, axes, scope, function }, sent);
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns sentences about what got worse, and about what got better, in a program whose lock is `after`.
    ///
    /// # Errors
    /// The locks are of other devices, or name things otherwise, so that they cannot be compared.
    pub fn compare(&self, after: &TrafficLock) -> Result<[Vec<String>; 2]> {
        if self.redacted != after.redacted {
            let kind = |lock: &TrafficLock| match &lock.redacted {
                Some(kind) => format!("pseudonyms {kind}"),
                None => "names as they are".to_owned(),
            };
            bail!(
                "the lock has {}, and the program {}; give --redact=KEY as it was given when the lock was written",
                kind(self),
                kind(after)
            );
        }
        if (&self.devices, &self.mesh) != (&after.devices, &after.mesh) {
            bail!(
                "the lock is of {} devices, mesh {}, and the program of {}, mesh {}; write it anew, or name the mesh as \
                 it was then with --mesh",
                self.devices,
                self.mesh,
                after.devices,
                after.mesh
            );
        }
        let [mut worse, mut better] = [Vec::new(), Vec::new()];
        if after.peak != self.peak {
            let change =
                format!("the peak of memory is {}, and was {}", output::bytes(after.peak), output::bytes(self.peak));
            if after.peak > self.peak { &mut worse } else { &mut better }.push(change);
        }
        let origins =
            self.collectives.keys().chain(after.collectives.keys().filter(|it| !self.collectives.contains_key(it)));
        for origin in origins {
            let (old, new) = (self.collectives.get(origin), after.collectives.get(origin));
            match (old, new) {
                (Some(old), None) => better.push(format!("gone: {origin}, which {}", old.text())),
                (None, Some(new)) => worse.push(format!("new: {origin}, which {}", new.text())),
                (Some(old), Some(new)) if old != new => {
                    let list = if new.is_worse_than(*old) { &mut worse } else { &mut better };
                    list.push(format!("{origin} {}, and before {}", new.text(), old.text()));
                }
                _ => {}
            }
        }
        Ok([worse, better])
    }
}

impl Origin {
    fn of(entry: &ModuleCollective) -> Origin {
        let word = |text: &str| match text {
            "" => "-".to_owned(),
            text => text.replace(['\t', '\n', '\r'], " "),
        };
        Origin {
            kind: entry.kind.name().to_owned(),
            axes: word(&axes_of(entry)),
            scope: word(scope_of(entry).unwrap_or_default()),
            function: word(&entry.function),
        }
    }
}

/// `all-gather over fsdp (model.py:mlp, jit(step)/mlp)`
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} over {} ({}, {})", self.kind, self.axes, self.function, self.scope)
    }
}

impl Sent {
    fn text(self) -> String {
        let times = self.executions.map_or("runs an unknown number of times".to_owned(), |times| {
            format!("runs {}", output::plural(times, "time"))
        });
        let bytes = self.moved_bytes.map_or("an unknown number of bytes".to_owned(), output::bytes);
        format!("{times} and sends {bytes}")
    }

    /// Whether it sends more or runs more often. An unknown number may be any.
    fn is_worse_than(self, other: Sent) -> bool {
        let more = |new: Option<u64>, old: Option<u64>| new.unwrap_or(u64::MAX) > old.unwrap_or(u64::MAX);
        more(self.moved_bytes, other.moved_bytes) || more(self.executions, other.executions)
    }
}
