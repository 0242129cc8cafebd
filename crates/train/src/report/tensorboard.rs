//! Scalars as an event file, which TensorBoard and its readers open.
//!
//! An event file is a series of records, each a length, a checksum of it, a message and a checksum of that (TFRecord).
//! The messages are `tensorflow.Event`. Source: TensorFlow, `tensorflow/core/lib/io/record_writer.cc`,
//! `tensorflow/core/util/event.proto`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<SummaryValues>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
struct SummaryValues {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.START`: readers drop what an earlier file has of this step and of later ones.
const START: i32 = 1;

/// An event file cannot be written.
#[derive(thiserror::Error)]
#[error("cannot write events to {path:?}: {source}; give a directory that exists or can be made")]
pub struct EventsError {
    /// The directory or the file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

meshloom::hlo::debug_is_message!(EventsError);

/// Writes scalars to a new event file. Each step is handed to the system at once, so a run that is stopped loses none.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates a new file in a directory, which is made if it does not exist. If the run continues after `done` steps,
    /// its events replace those of later steps in an earlier file.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn create(directory: impl AsRef<Path>, done: u64) -> Result<EventWriter, EventsError> {
        let directory = directory.as_ref();
        let failed = |source| EventsError { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let now = seconds(SystemTime::now());
        let name = format!("events.out.tfevents.{:010}.meshloom.{}", now as u64, std::process::id());
        let path = directory.join(name);
        // Readers go by the order of the names; one second's second file must not empty the first.
        let file = File::options().append(true).create(true).open(&path).map_err(failed)?;
        let mut writer = EventWriter { path, file };
        writer.put(&first_record(now))?;
        if done > 0 {
            writer.put(&start_record(now, done + 1))?;
        }
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the numbers of a step, by name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), EventsError> {
        self.put(&scalars_record(seconds(SystemTime::now()), step, values))
    }

    fn put(&mut self, record: &[u8]) -> Result<(), EventsError> {
        let written = self.file.write_all(record);
        written.map_err(|source: io::Error| EventsError { path: self.path.clone(), source })
    }
}

/// The first record of a file.
pub(crate) fn first_record(wall_time: f64) -> Vec<u8> {
    record(&Event { wall_time, file_version: Some("brain.Event:2".to_owned()), ..Event::default() })
}

/// The record that says that a run begins at a step.
pub(crate) fn start_record(wall_time: f64, step: u64) -> Vec<u8> {
    let session_log = Some(SessionLog { status: START });
    record(&Event { wall_time, step: step as i64, session_log, ..Event::default() })
}

/// The record of the numbers of a step, by name.
pub(crate) fn scalars_record(wall_time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let value = |&(tag, number): &(&str, f64)| SummaryValue { tag: tag.to_owned(), simple_value: Some(number as f32) };
    let summary = Some(SummaryValues { value: values.iter().map(value).collect() });
    record(&Event { wall_time, step: step as i64, summary, ..Event::default() })
}

/// A record with its length and checksums.
fn record(event: &Event) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(checksum(&length).to_le_bytes());
    record.extend(&message);
    record.extend(checksum(&message).to_le_bytes());
    record
}

/// CRC-32C, turned and shifted so that the checksum of bytes with checksums in them is another.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C, bit by bit, as a record is short.
fn crc32c(bytes: &[u8]) -> u32 {
    let next_bit = |sum: u32, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), next_bit))
}

/// Since 1970.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
