//! A profile of some steps of a run, where TensorBoard's profile plugin and XProf look for it:
//! `DIR/plugins/profile/RUN/meshloom.xplane.pb`.
//!
//! The file is what the plugin's profiler records, and a plane with an event for each call of the train step. A plugin
//! without a profiler records nothing; then the compiled programs that were called are written in its place, so that
//! `hlo-dump report` can open the file. An `XSpace` is a list of planes, so the parts are one after another.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use meshloom::compile::Program;
use meshloom::hlo::proto::HloProto;
use meshloom::hlo::xplane::{
    CALLS_PLANE, PROGRAM_ID_STAT, PROGRAM_STAT, PROGRAMS_PLANE, StatValue, XEvent, XEventMetadata, XLine, XPlane,
    XSpace, XStat, XStatMetadata,
};
use meshloom::pjrt::{Client, PjrtError, Profile, Profiler, ProfilerOptions};
use prost::Message;

/// The reason why a run cannot be profiled.
#[derive(thiserror::Error)]
pub enum ProfileError {
    /// The directory's fault.
    #[error("--profile: {}: cannot be written: {source}", path.display())]
    Unwritable {
        /// The folder of the profile.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The run has no such steps.
    #[error(
        "the steps {first}..{last} are to be profiled, but this run has {from}..{to}; give steps of it by --profile-steps A..B"
    )]
    NotReached {
        /// The first step to profile.
        first: u64,
        /// The last one.
        last: u64,
        /// The first step of the run.
        from: u64,
        /// Its last one.
        to: u64,
    },
    /// The plugin's profiler failed, or the file could not be written.
    #[error(transparent)]
    Plugin(#[from] PjrtError),
}

meshloom::hlo::debug_is_message!(ProfileError);

/// Records the calls that have the steps of a range.
pub struct StepProfile {
    file: PathBuf,
    /// The first and the last step.
    steps: (u64, u64),
    steps_per_call: u64,
    recording: Option<Recording>,
    is_done: bool,
}

struct Recording {
    /// The profiler of the plugin; `None` if it has none.
    profiler: Option<Profiler>,
    started: SystemTime,
    call: SystemTime,
    events: Vec<XEvent>,
    names: Vec<XEventMetadata>,
    /// The programs that were called, if the plugin does not record them, by how many steps they do.
    programs: Vec<(i64, XEventMetadata)>,
}

impl StepProfile {
    /// Creates a profile of the steps from the first to the last, both included, of a run that has done `run.start`
    /// steps and ends after `run.end`.
    /// `run.end`.
    ///
    /// # Errors
    /// The run does not have all of the steps, or the directory cannot be written.
    pub fn create(
        directory: impl AsRef<Path>,
        (first, last): (u64, u64),
        run: Range<u64>,
        steps_per_call: u64,
    ) -> Result<StepProfile, ProfileError> {
        if first <= run.start || last > run.end || last < first {
            return Err(ProfileError::NotReached { first, last, from: run.start + 1, to: run.end });
        }
        let seconds = nanoseconds(UNIX_EPOCH, SystemTime::now()) / 1_000_000_000;
        let name = format!("{seconds:010}.{}", std::process::id());
        let folder = directory.as_ref().join("plugins").join("profile").join(name);
        // Now, and not when the steps have been recorded.
        let probe = std::fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
        probe.map_err(|source| ProfileError::Unwritable { path: folder.clone(), source })?;
        let file = folder.join("meshloom.xplane.pb");
        Ok(StepProfile { file, steps: (first, last), steps_per_call, recording: None, is_done: false })
    }

    /// Is called before a call of the program, after `done` steps. Starts to record if the call may have the first
    /// step. Returns the error to tell the user if the plugin has no profiler.
    ///
    /// # Errors
    /// The plugin's profiler does not start.
    pub fn before_call(&mut self, done: u64, client: &Client) -> Result<Option<PjrtError>, ProfileError> {
        if let Some(recording) = &mut self.recording {
            recording.call = SystemTime::now();
            return Ok(None);
        }
        if self.is_done || done + self.steps_per_call.max(1) < self.steps.0 {
            return Ok(None);
        }
        let (profiler, missing) = match Profiler::start(client.plugin(), &ProfilerOptions::default()) {
            Ok(profiler) => (Some(profiler), None),
            Err(error @ PjrtError::Unimplemented { .. }) => (None, Some(error)),
            Err(error) => return Err(error.into()),
        };
        let now = SystemTime::now();
        self.recording = Some(Recording {
            profiler,
            started: now,
            call: now,
            events: Vec::new(),
            names: Vec::new(),
            programs: Vec::new(),
        });
        Ok(missing)
    }

    /// Is called after a call of `program` that went from `before` steps to `done` and whose losses have been read.
    /// Writes the profile and returns its file, if the call had the last step.
    ///
    /// # Errors
    /// The plugin's profiler fails, or the file cannot be written.
    pub fn after_call(&mut self, before: u64, done: u64, program: &Program) -> Result<Option<PathBuf>, ProfileError> {
        let Some(recording) = &mut self.recording else { return Ok(None) };
        recording.add(before + 1, done);
        recording.keep(program, (done - before) as i64)?;
        if done < self.steps.1 {
            return Ok(None);
        }
        self.is_done = true;
        let Some(recording) = self.recording.take() else { return Ok(None) };
        recording.finish()?.write(&self.file)?;
        Ok(Some(self.file.clone()))
    }
}

impl Recording {
    fn add(&mut self, first: u64, last: u64) {
        // The plugin's profiler numbers programs itself.
        let program = self.profiler.is_none().then(|| stat(PROGRAM_ID, StatValue::Signed((last + 1 - first) as i64)));
        let name = if first == last { format!("step {first}") } else { format!("steps {first} to {last}") };
        let metadata_id = self.names.len() as i64 + 1;
        self.names.push(XEventMetadata { id: metadata_id, name, ..XEventMetadata::default() });
        self.events.push(XEvent {
            metadata_id,
            offset_ps: 1000 * nanoseconds(self.started, self.call),
            duration_ps: 1000 * nanoseconds(self.call, SystemTime::now()),
            stats: [Some(stat(STEP_NUMBER, StatValue::Signed(first as i64))), program].into_iter().flatten().collect(),
        });
    }

    /// Keeps the program of a call of so many steps.
    fn keep(&mut self, program: &Program, steps: i64) -> Result<(), PjrtError> {
        if self.profiler.is_some() || self.programs.iter().any(|(id, _)| *id == steps) {
            return Ok(());
        }
        let module = program.executable().optimized_hlo()?.decode()?;
        let name = format!("{}({steps})", module.name);
        let bytes = HloProto { hlo_module: Some(module), ..HloProto::default() }.encode_to_vec();
        let stats = vec![stat(PROGRAM, StatValue::Bytes(bytes)), stat(PROGRAM_ID, StatValue::Signed(steps))];
        self.programs.push((steps, XEventMetadata { id: steps, name, stats, ..XEventMetadata::default() }));
        Ok(())
    }

    fn finish(self) -> Result<Profile, PjrtError> {
        let mut bytes = match self.profiler {
            Some(profiler) => profiler.stop()?.bytes,
            None => Vec::new(),
        };
        let started = nanoseconds(UNIX_EPOCH, self.started);
        let line = XLine { id: 1, name: "steps".to_owned(), timestamp_ns: started, events: self.events };
        let names = [(STEP_NUMBER, "step_num"), (PROGRAM_ID, PROGRAM_ID_STAT), (PROGRAM, PROGRAM_STAT)];
        let stat_metadata = names.map(|(id, name)| (id, XStatMetadata { id, name: name.to_owned() }));
        let calls = XPlane {
            name: CALLS_PLANE.to_owned(),
            lines: vec![line],
            event_metadata: self.names.into_iter().map(|name| (name.id, name)).collect(),
            stat_metadata: stat_metadata.clone().into(),
            stats: Vec::new(),
        };
        let programs = XPlane {
            name: PROGRAMS_PLANE.to_owned(),
            lines: Vec::new(),
            event_metadata: self.programs.into_iter().collect(),
            stat_metadata: stat_metadata.into(),
            stats: Vec::new(),
        };
        let planes = [calls, programs].into_iter().filter(|plane| !plane.event_metadata.is_empty()).collect();
        bytes.extend(XSpace { planes, hostnames: Vec::new() }.encode_to_vec());
        Ok(Profile { bytes })
    }
}

/// Keys of the stats: what numbers a step, what numbers a program, and a program.
const STEP_NUMBER: i64 = 1;
const PROGRAM_ID: i64 = 2;
const PROGRAM: i64 = 3;

fn stat(metadata_id: i64, value: StatValue) -> XStat {
    XStat { metadata_id, value: Some(value) }
}

/// Returns the nanoseconds from one time to another; 0 if the clock was set back.
fn nanoseconds(from: SystemTime, to: SystemTime) -> i64 {
    to.duration_since(from).map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}
