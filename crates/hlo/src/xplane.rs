//! Profiles as XLA's profilers record them: `XSpace`, a file `*.xplane.pb`.
//!
//! A profile has planes, of hosts and of devices; a plane has lines, as of threads or streams; a line has events. Names
//! and constant attributes ("stats") stand once in a plane's tables. Only the fields that are needed are here. Source:
//! `xla/tsl/profiler/protobuf/xplane.proto`; names of planes, lines and stats:
//! `xla/tsl/profiler/utils/xplane_schema.cc`.

use std::collections::BTreeMap;

use prost::Message;

use crate::limits::Limits;
use crate::wire::{fields, fields_of_start};

/// The plane of a run's own events: one for each call of its train step. The prefix is that of XLA's `xplane_schema.h`
/// for planes of programs.
pub const CALLS_PLANE: &str = "/device:CUSTOM:meshloom";

/// The plane that has the programs.
pub const PROGRAMS_PLANE: &str = "/host:metadata";

/// The stat of a program that is its serialized `HloProto`.
pub const PROGRAM_STAT: &str = "Hlo Proto";

/// The stat of a program or event that is the program's number.
pub const PROGRAM_ID_STAT: &str = "program_id";

/// A profile.
#[derive(Clone, PartialEq, Message)]
pub struct XSpace {
    /// The planes of hosts, of devices, and of metadata about both.
    #[prost(message, repeated, tag = "1")]
    pub planes: Vec<XPlane>,
    /// The hosts that it was recorded on.
    #[prost(string, repeated, tag = "4")]
    pub hostnames: Vec<String>,
}

/// The events of one device or one host.
#[derive(Clone, PartialEq, Message)]
pub struct XPlane {
    /// The name, such as `/device:TPU:0`, `/host:CPU`, `/host:metadata`.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The lines: one for each thread, stream or kind of event.
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<XLine>,
    /// The metadata of events, by [`XEvent::metadata_id`].
    #[prost(btree_map = "int64, message", tag = "4")]
    pub event_metadata: BTreeMap<i64, XEventMetadata>,
    /// Names of stats, and texts that stats refer to.
    #[prost(btree_map = "int64, message", tag = "5")]
    pub stat_metadata: BTreeMap<i64, XStatMetadata>,
    /// Stats of the whole plane.
    #[prost(message, repeated, tag = "6")]
    pub stats: Vec<XStat>,
}

/// A sequence of events. They may be nested.
#[derive(Clone, PartialEq, Message)]
pub struct XLine {
    /// Unique in the plane.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// The name, such as `XLA Ops`, or the name of a thread.
    #[prost(string, tag = "2")]
    pub name: String,
    /// When it begins: nanoseconds since 1970, or since the profile began.
    #[prost(int64, tag = "3")]
    pub timestamp_ns: i64,
    /// The events.
    #[prost(message, repeated, tag = "4")]
    pub events: Vec<XEvent>,
}

/// Something that took time.
#[derive(Clone, PartialEq, Message)]
pub struct XEvent {
    /// Key in [`XPlane::event_metadata`].
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    /// Picoseconds from the line's beginning.
    #[prost(int64, tag = "2")]
    pub offset_ps: i64,
    /// Picoseconds that it took.
    #[prost(int64, tag = "3")]
    pub duration_ps: i64,
    /// Stats of this event alone.
    #[prost(message, repeated, tag = "4")]
    pub stats: Vec<XStat>,
}

/// The metadata that events share.
#[derive(Clone, PartialEq, Message)]
pub struct XEventMetadata {
    /// Its own key.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// The event's name. For an instruction on a TPU it is its HLO text.
    #[prost(string, tag = "2")]
    pub name: String,
    /// A shorter name, if there is one.
    #[prost(string, tag = "4")]
    pub display_name: String,
    /// Stats of all these events.
    #[prost(message, repeated, tag = "5")]
    pub stats: Vec<XStat>,
}

/// The name of a stat.
#[derive(Clone, PartialEq, Message)]
pub struct XStatMetadata {
    /// Its own key.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// The name, or a text that stats refer to.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// An attribute.
#[derive(Clone, PartialEq, Message)]
pub struct XStat {
    /// Key in [`XPlane::stat_metadata`].
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    /// The value.
    #[prost(oneof = "StatValue", tags = "2, 3, 4, 5, 6, 7")]
    pub value: Option<StatValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum StatValue {
    /// A number.
    #[prost(double, tag = "2")]
    Double(f64),
    /// A number.
    #[prost(uint64, tag = "3")]
    Unsigned(u64),
    /// A number.
    #[prost(int64, tag = "4")]
    Signed(i64),
    /// A text.
    #[prost(string, tag = "5")]
    Text(String),
    /// A message, as of a program.
    #[prost(bytes = "vec", tag = "6")]
    Bytes(Vec<u8>),
    /// The name of an entry of [`XPlane::stat_metadata`] is the text.
    #[prost(uint64, tag = "7")]
    Reference(u64),
}

/// The reason why something cannot be read as a profile.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ProfileError {
    /// It is something else.
    #[error("it is no profile, which is an XSpace (*.xplane.pb) with planes such as /host:CPU or /device:TPU:0")]
    Other,
    /// It would take far more memory than it has bytes.
    #[error(
        "decoded, it takes {found} bytes, and the limit is {limit}; a profile of real events is smaller; \
         `read::Limits`, or --max-size of hlo-dump, raises it"
    )]
    TooLarge {
        /// The bytes that it takes, about.
        found: u64,
        limit: u64,
    },
    /// It is broken.
    #[error("it cannot be decoded as a profile (XSpace): {reason}; is it complete?")]
    Broken { reason: String },
}

crate::debug_is_message!(ProfileError);

/// A program that a profile contains.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledProgram<'a> {
    /// The plugin's number for it, which the stat `program_id` of its events repeats.
    pub id: i64,
    /// The name of its module and the number: `jit_step(14)`.
    pub name: &'a str,
    /// A serialized `HloProto` of the compiled module.
    pub bytes: &'a [u8],
}

/// A call of a run's train step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfiledCall<'a> {
    /// Such as `step 3`.
    pub name: &'a str,
    /// The number of its program in the profile.
    pub program: Option<i64>,
    /// From the beginning to the losses.
    pub seconds: f64,
}

impl XSpace {
    /// Whether bytes have a plane with a plane's name, as a profile has; they need not be all of it.
    pub fn is_profile(bytes: &[u8]) -> bool {
        fn all(bytes: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
            let fields = fields_of_start(bytes).map_while(|field| field);
            fields.filter(move |field| field.number == number).filter_map(|field| field.bytes)
        }
        let is_name = |name: &[u8]| name.starts_with(b"/host:") || name.starts_with(b"/device:");
        all(bytes, 1).any(|plane| all(plane, 2).next().is_some_and(is_name))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// It is something else or cut off, or takes far more memory than it has bytes.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<XSpace, ProfileError> {
        if !XSpace::is_profile(bytes) {
            return Err(ProfileError::Other);
        }
        let (found, limit) = (decoded_bytes(bytes), limits.decoded_limit(bytes.len()));
        if found > limit {
            return Err(ProfileError::TooLarge { found, limit });
        }
        XSpace::decode(bytes).map_err(|error| ProfileError::Broken { reason: error.to_string() })
    }

    /// The calls of a train step that [`CALLS_PLANE`] has.
    pub fn calls(&self) -> impl Iterator<Item = ProfiledCall<'_>> {
        self.planes.iter().filter(|plane| plane.name == CALLS_PLANE).flat_map(|plane| {
            let program = plane.stat_id(PROGRAM_ID_STAT);
            plane.lines.iter().flat_map(|line| &line.events).map(move |event| ProfiledCall {
                name: plane.event_metadata.get(&event.metadata_id).map_or("", |metadata| &metadata.name),
                program: plane.stat(event, program).and_then(XStat::number),
                seconds: event.duration_ps.max(0) as f64 * 1e-12,
            })
        })
    }

    /// The programs that ran, if they were recorded too.
    pub fn programs<'a>(&'a self) -> Vec<ProfiledProgram<'a>> {
        let planes = self.planes.iter().filter(|plane| plane.name == PROGRAMS_PLANE);
        let entries = planes.flat_map(|plane| plane.event_metadata.values().map(move |metadata| (plane, metadata)));
        let program = |(plane, metadata): (&'a XPlane, &'a XEventMetadata)| {
            let stat = metadata.stats.iter().find(|stat| plane.stat_name(stat) == PROGRAM_STAT)?;
            let Some(StatValue::Bytes(bytes)) = &stat.value else { return None };
            // The key of the entry is a number of the profile's own, unlike this.
            let id = metadata.stats.iter().find(|stat| plane.stat_name(stat) == PROGRAM_ID_STAT)?.number()?;
            Some(ProfiledProgram { id, name: &metadata.name, bytes })
        };
        entries.filter_map(program).collect()
    }
}

/// About how many bytes a decoded profile takes: two bytes of it can be an empty event.
fn decoded_bytes(bytes: &[u8]) -> u64 {
    #[derive(Clone, Copy)]
    enum StatKind {
        Space,
        Plane,
        Line,
        Event,
        /// An entry of a table, in which the second field is the value.
        Entry,
        Metadata,
        Other,
    }
    // A node of a tree has room for eleven entries, and may be half empty.
    const ENTRY: usize = 2 * (size_of::<XEventMetadata>() + size_of::<i64>());
    let mut sum = 0;
    let mut stack = vec![(bytes, StatKind::Space)];
    while let Some((bytes, kind)) = stack.pop() {
        // Strings and bytes are copied.
        sum += bytes.len() as u64;
        for field in fields(bytes).map_while(|field| field) {
            let Some(content) = field.bytes else { continue };
            let (size, inner) = match (kind, field.number) {
                (StatKind::Space, 1) => (size_of::<XPlane>(), StatKind::Plane),
                (StatKind::Plane, 3) => (size_of::<XLine>(), StatKind::Line),
                (StatKind::Plane, 4 | 5) => (ENTRY, StatKind::Entry),
                (StatKind::Line, 4) => (size_of::<XEvent>(), StatKind::Event),
                (StatKind::Plane, 6) | (StatKind::Event, 4) | (StatKind::Metadata, 5) => {
                    (size_of::<XStat>(), StatKind::Other)
                }
                (StatKind::Entry, 2) => (0, StatKind::Metadata),
                (StatKind::Space, _) => (size_of::<String>(), StatKind::Other),
                _ => continue,
            };
            sum += size as u64;
            if !matches!(inner, StatKind::Other) {
                stack.push((content, inner));
            }
        }
    }
    sum
}

impl XPlane {
    /// The name of a stat; empty if the plane does not say.
    pub fn stat_name(&self, stat: &XStat) -> &str {
        self.stat_metadata.get(&stat.metadata_id).map_or("", |metadata| &metadata.name)
    }

    /// The key of the stats of a name.
    pub fn stat_id(&self, name: &str) -> Option<i64> {
        self.stat_metadata.iter().find(|(_, metadata)| metadata.name == name).map(|(&id, _)| id)
    }

    /// The text that a stat has or refers to.
    pub fn text<'a>(&'a self, stat: &'a XStat) -> Option<&'a str> {
        match stat.value.as_ref()? {
            StatValue::Text(text) => Some(text),
            StatValue::Reference(id) => self.stat_metadata.get(&(*id as i64)).map(|metadata| metadata.name.as_str()),
            _ => None,
        }
    }

    /// An event's own stat, or the one that it has in common with others.
    pub fn stat<'a>(&'a self, event: &'a XEvent, id: Option<i64>) -> Option<&'a XStat> {
        let id = id?;
        let of = |stats: &'a [XStat]| stats.iter().find(|stat| stat.metadata_id == id);
        of(&event.stats).or_else(|| of(&self.event_metadata.get(&event.metadata_id)?.stats))
    }
}

impl XStat {
    /// The number, if it is a whole one.
    pub fn number(&self) -> Option<i64> {
        match self.value {
            Some(StatValue::Signed(number)) => Some(number),
            Some(StatValue::Unsigned(number)) => Some(number as i64),
            _ => None,
        }
    }
}
