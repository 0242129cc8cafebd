//! Loads a module from a command-line argument.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use meshloom_analysis::memory::{OutOfMemory, may_be_out_of_memory, out_of_memory};
use meshloom_analysis::{Devices, Partitioning, device_count, longest_program, mesh_of};
use meshloom_hlo::mesh::{Mesh, MeshError};
use meshloom_hlo::proto::{BufferAssignmentProto, HloModuleConfigProto, HloModuleProto};
use meshloom_hlo::read::{self, ReadError};
use meshloom_hlo::xplane::{ProfiledProgram, XSpace};
use meshloom_hlo::{PlatformKind, Stage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Input, Reading};
use crate::folder;
use crate::output::{BOLD, Busy, WARN, line, note, paint, plural};
use crate::run::{ConfigRun, Reader, missing};
use crate::source::{self, STANDARD_INPUT, read_all};
use crate::streams;

#[cfg(feature = "configs")]
const READER: Option<Reader> = Some(crate::configs::READER);
#[cfg(not(feature = "configs"))]
const READER: Option<Reader> = None;

/// A module, with everything that is known of it.
pub struct Loaded {
    /// The name of the input: a path, or "standard input".
    pub name: String,
    pub module: HloModuleProto,
    pub config: Option<HloModuleConfigProto>,
    pub buffers: Option<BufferAssignmentProto>,
    /// The stage that a dump folder has: the program before XLA did anything, which states how arguments are split.
    pub before: Option<PathBuf>,
    pub mesh: Option<Mesh>,
    pub devices: Devices,
    pub partitioning: Partitioning,
    /// The form of the input: "HLO text", "run config".
    pub form: &'static str,
    pub stage: Option<Stage>,
    pub run: Option<Box<dyn ConfigRun>>,
    pub profile: Option<Profile>,
}

/// A profile, and the program in it that is meant.
pub struct Profile {
    pub space: XSpace,
    /// The profile's number for the program; `None` if the profile has no program.
    pub program: Option<i64>,
}

/// The JSON of an input: its description, and the findings of a command.
#[derive(JsonSchema, Serialize)]
pub struct AnswerOfInput<'a, T> {
    #[serde(flatten)]
    input: Described<'a>,
    #[serde(flatten)]
    answer: &'a T,
}

/// A program that was read.
#[derive(JsonSchema, Serialize)]
pub struct Described<'a> {
    /// The input, as it was given.
    input: &'a str,
    /// The form of the input: `HLO text`, `run config`, `program of a profile` and others.
    form: &'a str,
    /// The name of the module.
    module: &'a str,
    /// The stage of the program, if the input has several: `traced`, `compiled` and others.
    stage: Option<&'a str>,
    /// The axes of the mesh with their sizes, major to minor: `data=2,fsdp=4`; null if no mesh is known.
    mesh: Option<String>,
    /// The number of devices that the program is for.
    devices: u64,
    /// Whether the module is the program of one device.
    partitioned: bool,
}

impl Loaded {
    pub fn describe(&self) -> Described<'_> {
        Described {
            input: &self.name,
            form: self.form,
            module: &self.module.name,
            stage: self.stage.map(Stage::name),
            mesh: self.mesh.as_ref().map(Mesh::to_string),
            devices: self.device_count(),
            partitioned: !self.partitioning.is_pending(),
        }
    }

    pub fn found<'a, T>(&'a self, answer: &'a T) -> AnswerOfInput<'a, T> {
        AnswerOfInput { input: self.describe(), answer }
    }

    pub fn device_count(&self) -> u64 {
        self.devices.replicas.saturating_mul(self.devices.partitions)
    }

    pub fn instruction_count(&self) -> u64 {
        self.module.computations.iter().map(|computation| computation.instructions.len() as u64).sum()
    }

    /// Whether there are several devices and no mesh names them.
    pub fn is_nameless(&self) -> bool {
        self.mesh.is_none() && self.device_count() > 1
    }

    pub fn backend(&self) -> Option<PlatformKind> {
        self.run.as_ref().and_then(|run| run.backend())
    }

    pub fn steps_per_execution(&self) -> u64 {
        self.run.as_ref().map_or(1, |run| run.steps_per_call())
    }

    /// Returns `jit_step (HLO text, 8 devices, data=2,fsdp=4)`.
    pub fn title(&self) -> String {
        let stage = self.stage.map(|stage| format!("{stage}, ")).unwrap_or_default();
        let mesh = self.mesh.as_ref().map(|mesh| format!(", {mesh}")).unwrap_or_default();
        let devices = plural(self.device_count(), "device");
        format!("{} ({stage}{}, {devices}{mesh})", self.module.name, self.form)
    }

    pub fn argument(&self) -> &str {
        if self.name == STANDARD_INPUT { "-" } else { &self.name }
    }

    /// Prints the title, and below it a warning that applies to everything that follows.
    pub fn print_title(&self) {
        line(&paint(BOLD, &self.title()));
        if let Some(warning) = self.unpartitioned() {
            line(&paint(WARN, &warning));
        }
    }

    /// Returns a warning that the module is not the program of one device, with the way to that program; `None` if it
    /// is.
    pub fn unpartitioned(&self) -> Option<String> {
        let Partitioning::Pending { instruction, along } = &self.partitioning else { return None };
        let partitioned = match (&self.run, self.stage) {
            (Some(_), Some(Stage::Partitioned)) => "XLA partitions it: take --stage compiled".to_owned(),
            (Some(_), _) => "take --stage partitioned".to_owned(),
            (None, Some(_)) => "take --stage partitioned or --stage compiled, if the folder has them".to_owned(),
            (None, None) => format!(
                "take the text of `lowered.compile()` in JAX, or `meshloom compile {} --target TARGET -o FILE`",
                self.argument()
            ),
        };
        let along = match along.as_deref() {
            None => {
                return Some(format!(
                    "not partitioned yet: global shapes (such as that of %{instruction}), and collectives are missing; \
                     {partitioned}"
                ));
            }
            Some([]) => "some axes of the mesh".to_owned(),
            Some(axes) => axes.join(","),
        };
        Some(format!(
            "not partitioned yet along {along}: shapes (such as that of %{instruction}) are whole along it, so bytes and \
             operations are too high, and collectives over it are missing; {partitioned}"
        ))
    }
}

pub fn load(input: &Input) -> Result<Loaded> {
    load_path(&input.path, &input.reading)
}

pub fn load_path(path: &Path, reading: &Reading) -> Result<Loaded> {
    let name = source::name(path);
    without_secrets(load_named(path, &name, reading).map_err(|error| in_input(error, &name))?, &name)
}

/// Refuses a run config where names are secret.
fn without_secrets(loaded: Loaded, name: &str) -> Result<Loaded> {
    if loaded.run.is_some() && streams::is_redacting() {
        bail!(
            "{name}: --redact is for HLO, and this is a run config; `hlo-dump show CONFIG --emit proto --output FILE` \
             writes its HLO"
        );
    }
    Ok(loaded)
}

/// Returns the error of loading an input, with the input's name before it. If names are secret it says no more than
/// where it is: it may quote the input.
pub fn in_input(error: anyhow::Error, name: &str) -> anyhow::Error {
    if !streams::is_redacting() {
        let is_named = error.to_string().starts_with(&format!("{name}:"));
        return if is_named { error } else { error.context(name.to_owned()) };
    }
    let text = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(ReadError::Text(error)) => Some(format!(" (line {}, column {})", error.line, error.column)),
        _ => None,
    });
    let place = text.unwrap_or_default();
    anyhow!("{name}: it cannot be loaded{place}; the reason may have names in it, so it is told without --redact only")
}

/// A program, or XLA's message that one ran out of memory.
pub enum ProgramOrMessage {
    Program(Box<Loaded>),
    Message(OutOfMemory),
}

/// Loads a program. A text that is none may have XLA's message somewhere, as a log does.
pub fn load_or_message(input: &Input) -> Result<ProgramOrMessage> {
    let (path, reading) = (&input.path, &input.reading);
    let name = source::name(path);
    if source::admitted(path)?.is_dir() {
        return Ok(ProgramOrMessage::Program(Box::new(load(input)?)));
    }
    let bytes = read_all(path).map_err(|error| in_input(error, &name))?;
    match load_bytes(&bytes, path, &name, reading) {
        Ok(loaded) => Ok(ProgramOrMessage::Program(Box::new(without_secrets(loaded, &name)?))),
        Err(error) => match out_of_memory(&String::from_utf8_lossy(&bytes)) {
            Some(mut message) => {
                streams::redacted(|redaction| redaction.message(&mut message));
                Ok(ProgramOrMessage::Message(message))
            }
            None => Err(in_input(error, &name)),
        },
    }
}

fn load_named(path: &Path, name: &str, reading: &Reading) -> Result<Loaded> {
    if source::admitted(path)?.is_dir() {
        return load_folder(path, reading);
    }
    load_bytes(&read_all(path)?, path, name, reading)
}

fn load_bytes(bytes: &[u8], path: &Path, name: &str, reading: &Reading) -> Result<Loaded> {
    let waiting = busy(name, bytes.len());
    if XSpace::is_profile(bytes) {
        if reading.pass.is_some() {
            bail!("--pass chooses a file of an XLA dump folder, and this is a profile");
        }
        let space = XSpace::read(bytes, &streams::limits()).with_context(|| name.to_owned())?;
        drop(waiting);
        return from_profile(space, name, reading);
    }
    if reading.module.is_some() || reading.pass.is_some() {
        bail!(
            "--module chooses a program of an XLA dump folder or a profile, and --pass a file of a dump folder; this is a file of HLO or a config"
        );
    }
    if reading.run_config {
        let text = std::str::from_utf8(bytes).ok().context("a run config is UTF-8 text, and this is not")?;
        return from_config(text, name, reading);
    }
    let found = read::read_function(bytes, &streams::limits(), reading.function.as_deref());
    drop(waiting);
    match found {
        Ok(found) => from_hlo(found, name, reading, || Ok(None)),
        Err(error) => from_config(&not_hlo(path, bytes, error)?, name, reading),
    }
}

/// Returns the program of a profile: the one that is asked for, or the one that took most of the time.
fn from_profile(mut space: XSpace, name: &str, reading: &Reading) -> Result<Loaded> {
    let programs = space.programs();
    let names = || programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    let base = |program: &ProfiledProgram<'_>| program.name.split('(').next().unwrap_or_default().to_owned();
    let longest = || {
        let (module, id) = longest_program(&space)?;
        programs.iter().rfind(|it| id.map_or_else(|| base(it) == module, |id| it.id == id))
    };
    let last_called = || {
        let called = space.calls().filter_map(|call| call.program).last()?;
        programs.iter().find(|program| program.id == called)
    };
    let program = match &reading.module {
        Some(wanted) => programs
            .iter()
            .rfind(|program| program.name == wanted || base(program) == *wanted || program.id.to_string() == *wanted),
        None => longest().or_else(last_called).or(programs.first().filter(|_| programs.len() == 1)),
    };
    let program = match (program, &reading.module) {
        (Some(program), _) => program,
        (None, _) if programs.is_empty() => bail!(
            "the profile has no program; give the compiled module and the profile: `hlo-dump report MODULE --profile {name}`"
        ),
        (None, Some(wanted)) => bail!("--module {wanted}: the profile has no such program; it has {}", names()),
        (None, None) => bail!("no event of the profile says its program; choose one with --module: {}", names()),
    };
    let function = reading.function.as_deref();
    let found =
        read::read_function(program.bytes, &streams::limits(), function).with_context(|| program.name.to_owned())?;
    let id = program.id;
    let reading = Reading { module: None, ..reading.clone() };
    let loaded = from_hlo(found, name, &reading, || Ok(None))?;
    streams::redacted(|redaction| redaction.profile(&mut space));
    Ok(Loaded { form: "program of a profile", profile: Some(Profile { space, program: Some(id) }), ..loaded })
}

pub fn load_profile(path: &Path) -> Result<Profile> {
    let read = || -> Result<XSpace> { Ok(XSpace::read(&read_all(path)?, &streams::limits())?) };
    let mut space = read().with_context(|| source::name(path))?;
    streams::redacted(|redaction| redaction.profile(&mut space));
    Ok(Profile { space, program: None })
}

fn busy(name: &str, bytes: usize) -> Option<Busy> {
    const LARGE: usize = 16 << 20;
    (bytes >= LARGE).then(|| Busy::new(&format!("reading {name} ({} MB)", bytes / 1_000_000)))
}

/// Returns the text of a run config, if the user has named the file as one. A config tells compilers what to do and
/// where files go, so the content of a file does not make it one.
fn not_hlo(path: &Path, bytes: &[u8], error: ReadError) -> Result<String> {
    let text = std::str::from_utf8(bytes).ok();
    let is_named = path.extension().is_some_and(|extension| extension == "toml");
    match text.filter(|_| is_named) {
        Some(text) => Ok(text.to_owned()),
        None if text.is_some_and(|text| READER.is_some_and(|it| (it.is_config)(text)))
            && matches!(error, ReadError::OtherText { .. }) =>
        {
            Err(anyhow!(
                "this is TOML, as run configs are, and a run config tells compilers what to do: if it is one and you trust \
             it, give --run-config, or name the file .toml"
            ))
        }
        None if text.is_some_and(may_be_out_of_memory) => {
            Err(anyhow::Error::from(error).context("XLA's out-of-memory message is read by `hlo-dump memory`"))
        }
        None => Err(error.into()),
    }
}

fn load_folder(path: &Path, reading: &Reading) -> Result<Loaded> {
    let chosen = folder::choose(path, reading)?;
    let bytes = read_all(&chosen.file)?;
    let name = source::name(&chosen.file);
    let waiting = busy(&name, bytes.len());
    let function = reading.function.as_deref();
    let found = read::read_function(&bytes, &streams::limits(), function).with_context(|| name.clone());
    let beside = chosen.proto.as_ref().filter(|_| found.as_ref().map_or(true, |found| found.buffers.is_none()));
    let beside = beside.map(|proto| Ok::<_, anyhow::Error>(read::read(&read_all(proto)?, &streams::limits()).ok()));
    drop(waiting);
    // The text states the number of devices; the proto beside it has the buffers.
    let found = match (found, beside.transpose()?.flatten()) {
        // The buffers refer to instructions by the proto's ids.
        (Ok(found), Some(beside)) => read::ReadModule { form: found.form, config: found.config, ..beside },
        (Err(error), Some(beside)) => {
            let why = streams::redacted(|_| "the text cannot be read".to_owned()).unwrap_or(format!("{error:#}"));
            note(&format!("the proto beside it is read instead: {why}"));
            beside
        }
        (found, None) => found?,
    };
    // A compiled module does not state its mesh.
    let mesh_before = || {
        let Some(unoptimized) = &chosen.unoptimized else { return Ok(None) };
        Ok(read_before(unoptimized)?.and_then(|before| mesh_of(&before)))
    };
    let mut loaded = from_hlo(found, &name, &Reading { stage: None, ..reading.clone() }, mesh_before)?;
    loaded.stage = chosen.stage;
    loaded.before = chosen.unoptimized;
    // The name of the file states the stage, whatever the module looks like.
    if chosen.stage.is_some_and(|stage| stage >= Stage::Partitioned) && loaded.partitioning.is_pending() {
        loaded.partitioning = Partitioning::Done;
    }
    Ok(loaded)
}

/// Reads the program before XLA did anything; `None` if the file is not readable as one.
pub fn read_before(unoptimized: &Path) -> Result<Option<HloModuleProto>> {
    let before = read::read(&read_all(unoptimized)?, &streams::limits());
    Ok(before.ok().map(|before| before.module))
}

/// Returns a module, with the mesh that it names or, if it names none, the one that `mesh_before` finds elsewhere.
fn from_hlo(
    found: read::ReadModule,
    name: &str,
    reading: &Reading,
    mesh_before: impl FnOnce() -> Result<Option<Mesh>>,
) -> Result<Loaded> {
    if let Some(stage) = reading.stage {
        bail!(
            "--stage {stage} is for run configs and dump folders; a file of HLO is one stage, and `meshloom compile` compiles it"
        );
    }
    if !reading.set.is_empty() {
        bail!("--set is for run configs, and this is {}", found.form.name());
    }
    let read::ReadModule { mut module, mut config, mut buffers, form, passed_over } = found;
    let is_redacted = streams::redacted(|redaction| {
        redaction.module(&mut module);
        config.iter_mut().for_each(|config| redaction.config(config));
        buffers.iter_mut().for_each(|buffers| redaction.buffers(buffers));
    });
    if !passed_over.is_empty() {
        let parts = is_redacted.map(|()| plural(passed_over.count() as u64, "part"));
        note(&format!("passed over, as not known here: {}", parts.unwrap_or_else(|| passed_over.to_string())));
    }
    let devices = device_count(&module, config.as_ref());
    let count = devices.replicas.saturating_mul(devices.partitions);
    let named = mesh_of(&module).map_or_else(mesh_before, |mesh| Ok(Some(mesh)))?;
    let named = named.filter(|mesh| count == 1 || mesh.device_count() as u64 == count);
    let mesh = match (&reading.mesh, named) {
        (Some(text), named) => {
            let given = mesh_for(text, count)?;
            if let Some(named) = named.filter(|named| *named != given) {
                bail!("--mesh {text}: the module names its mesh, {named}; leave --mesh out");
            }
            Some(given)
        }
        (None, named) => named,
    };
    let devices = match &mesh {
        // A module that names no device is for all devices of the mesh.
        Some(mesh) if count == 1 => Devices::partitioned(mesh.device_count()),
        _ => devices,
    };
    let partitioning = Partitioning::of(&module, devices);
    let form = form.name();
    let name = name.to_owned();
    Ok(Loaded {
        name,
        module,
        config,
        buffers,
        before: None,
        mesh,
        devices,
        partitioning,
        form,
        stage: None,
        run: None,
        profile: None,
    })
}

/// Returns a mesh for a module of this many devices. A module with one device may name none, and takes any mesh.
fn mesh_for(text: &str, devices: u64) -> Result<Mesh> {
    let devices = usize::try_from(devices).unwrap_or(usize::MAX);
    if devices == 1 && !text.contains("-1") {
        let sizes = text.split(',').filter_map(|axis| axis.split_once('=')?.1.trim().parse::<usize>().ok());
        let product = sizes.fold(1usize, usize::saturating_mul);
        return Mesh::parse(text, product).context("--mesh");
    }
    Mesh::parse(text, devices).map_err(|error| {
        let is_count = matches!(error, MeshError::DeviceCount { .. } | MeshError::FillDoesNotDivide { .. });
        let why = if is_count { "--mesh: the module says for how many devices it is" } else { "--mesh" };
        anyhow::Error::from(error).context(why)
    })
}

fn from_config(text: &str, name: &str, reading: &Reading) -> Result<Loaded> {
    if streams::below().is_some() {
        bail!("a run config names files and says what compilers do, so `hlo-dump mcp` reads none");
    }
    if reading.function.is_some() {
        bail!("--function chooses a function of StableHLO, and this is a run config");
    }
    if reading.mesh.is_some() {
        bail!("--mesh names the axes of HLO; a run config has its own: --set mesh.axes=data=2,fsdp=4");
    }
    let stage = reading.stage.unwrap_or(Stage::Partitioned);
    let reader = READER.ok_or_else(|| missing("a run config"))?;
    let (run, program) = (reader.read)(text, name, stage, &[&reading.set[..], &reading.config_set].concat())?;
    let mesh = run.mesh().cloned();
    let devices = Devices::partitioned(mesh.as_ref().map_or(1, Mesh::device_count));
    let module = program.hlo_module.ok_or_else(|| anyhow!("the plugin gave no module"))?;
    Ok(Loaded {
        name: name.to_owned(),
        partitioning: Partitioning::of(&module, devices),
        module,
        config: program.config,
        buffers: None,
        before: None,
        devices,
        mesh,
        form: "run config",
        stage: Some(stage),
        run: Some(run),
        profile: None,
    })
}
