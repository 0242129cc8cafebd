//! What `[target]` means: the platform, its options, and the number of devices.

use std::collections::BTreeMap;

use super::error::{ConfigError, invalid, invalid_described};
use super::value::Keys;
use super::{CompilerPreset, PartitionMode, PlatformChoice, Preallocate, ProgramLanguage, RunConfig};
use crate::Error;
use meshloom::hlo::PlatformKind;
use meshloom::hlo::mesh::MeshError;
use meshloom::pjrt::ahead_of_time::WorkerFailure;
use meshloom::pjrt::{self, ClientOptions, CompileCache, DebugValue, ErrorCode, PjrtError, ProgramFormat, Topology};
use meshloom::sharding::Mesh;

/// The most bytes that the programs in a compile cache take.
const CACHE_LIMIT: u64 = 4 << 30;

impl From<ProgramLanguage> for ProgramFormat {
    fn from(language: ProgramLanguage) -> ProgramFormat {
        match language {
            ProgramLanguage::Hlo => ProgramFormat::Hlo,
            ProgramLanguage::Stablehlo => ProgramFormat::StableHlo,
        }
    }
}

impl RunConfig {
    /// The platform that the config's program is for: that of its topology, if it has one.
    ///
    /// # Errors
    /// There is no such topology; or the platform is `auto`, which only a machine's devices settle.
    pub fn platform_kind(&self) -> Result<PlatformKind, Error> {
        if !self.target.topology.is_empty() {
            return Ok(Topology::parse(&self.target.topology)?.platform());
        }
        let platform = self.target.platform;
        let reason = "which platform has devices shows when the program runs; give cpu, cuda or tpu to look at it";
        Ok(platform.kind().ok_or_else(|| invalid("target.platform", platform.name(), reason))?)
    }

    /// Whether the config says itself how many devices there are. Elsewhere the plugin knows
    /// ([`RunConfig::on_devices`], [`RunConfig::on_client`]).
    pub(crate) fn knows_devices(&self) -> bool {
        self.target.topology.is_empty() && self.target.platform == PlatformChoice::Of(PlatformKind::Cpu)
    }

    /// How many devices the mesh takes of those that there are: all, if one of its sizes is -1 or it is too large.
    pub(crate) fn devices_of_mesh(&self, there: usize) -> usize {
        match Mesh::parse(&self.mesh.axes, there) {
            Err(MeshError::DeviceCount { product, .. }) if product < there => product,
            _ => there,
        }
    }

    /// This config for a program that is only looked at, so that no plugin is asked for devices: there are as many as
    /// its topology has, or else its mesh.
    ///
    /// # Errors
    /// There is no such topology; a size of the mesh is -1, which fills up devices that nobody knows; or the mesh does
    /// not fit.
    pub fn on_stated_devices(&self) -> Result<RunConfig, Error> {
        if self.knows_devices() {
            return Ok(self.clone());
        }
        if !self.target.topology.is_empty() {
            return Ok(self.on_devices(Topology::parse(&self.target.topology)?.device_count())?);
        }
        match Mesh::parse(&self.mesh.axes, 0) {
            Err(MeshError::FillDoesNotDivide { .. }) => {
                let platform = self.target.platform;
                let reason = format!(
                    "-1 fills up the devices of {platform}, which are not asked here; give every size, or \
                     target.topology"
                );
                Err(invalid("mesh.axes", &self.mesh.axes, &reason).because(["target.platform"]).into())
            }
            Err(MeshError::DeviceCount { product, .. }) => Ok(self.on_devices(product)?),
            // It says what is wrong with the text.
            _ => Ok(self.on_devices(0)?),
        }
    }

    /// What a client of a platform is created with, except for the number of virtual devices.
    ///
    /// # Errors
    /// A key is set whose option the platform has not, or to what it cannot be.
    pub fn client_options(&self, platform: PlatformKind) -> Result<ClientOptions, ConfigError> {
        let target = &self.target;
        let options = ClientOptions {
            // More threads cost time. Fragments that travel while steps run need them.
            collectives_at_once: (platform == PlatformKind::Cpu && self.diloco.is_none()).then_some(2),
            memory_fraction: Some(target.memory_fraction).filter(|&fraction| fraction != 0.0),
            preallocate: match target.preallocate {
                Preallocate::Plugin => None,
                Preallocate::Yes => Some(true),
                Preallocate::No => Some(false),
            },
            visible_devices: Some(target.visible_devices.clone()).filter(|numbers| !numbers.is_empty()),
            ..ClientOptions::of(platform)
        };
        match options.check() {
            Ok(()) => Ok(options),
            // The keys are named as the options are.
            Err(PjrtError::InvalidOption { option, value, expected }) => {
                let key = format!("target.{option}");
                // As it was written: an option may have another type than its key.
                let written = target.write().into_iter().flatten().find(|(name, _)| *name == option);
                let value = written.map_or(value, |(_, value)| value.to_string());
                Err(invalid_described(&key, value, &format!("expected {expected}")).because(["target.platform"]))
            }
            Err(error) => Err(invalid("target.platform", target.platform.name(), &error.to_string())),
        }
    }

    /// Where the trainer keeps compiled programs, if it does.
    ///
    /// # Errors
    /// The folder cannot be made. Meshloom's own is done without then, with a warning.
    pub fn compile_cache(&self) -> Result<Option<CompileCache>, Error> {
        let limited = |cache: CompileCache| cache.with_limit(CACHE_LIMIT);
        match self.target.compile_cache.as_str() {
            "" => Ok(None),
            "auto" => match CompileCache::of_user() {
                Ok(cache) => Ok(Some(limited(cache))),
                Err(error) => {
                    tracing::warn!("compiled programs are not cached: {error}");
                    Ok(None)
                }
            },
            folder => {
                let cache = CompileCache::at(folder).map_err(|error| {
                    let reason = format!("{error}; give a folder that can be written, auto, or nothing for no cache");
                    self.placed(invalid("target.compile_cache", folder, &reason))
                })?;
                Ok(Some(limited(cache)))
            }
        }
    }

    pub(super) fn validate_target(&self) -> Result<(), ConfigError> {
        parsed(&self.target.compiler_options)?;
        let mode = self.partition.mode;
        if self.crossing_processes() > 1 && mode != PartitionMode::Explicit {
            let reason = "XLA partitions no program over several processes of CPUs; give explicit";
            return Err(invalid("partition.mode", mode.name(), reason).because(["target.processes"]));
        }
        // With a topology there is no client.
        match self.target.platform.kind().filter(|_| self.target.topology.is_empty()) {
            Some(kind) => self.client_options(kind).map(drop),
            None => Ok(()),
        }
    }

    /// The options of the plugin's compiler, by name: those that suit the platform's chip, if the config wants them,
    /// and `target.compiler_options`, which win.
    ///
    /// # Errors
    /// One is not `name=value`.
    pub fn compiler_options(&self, platform: &pjrt::Platform) -> Result<BTreeMap<String, DebugValue>, ConfigError> {
        parsed(&self.compiler_option_list(platform))
    }

    /// An error of compiling, which names the key if the plugin refuses one of `target.compiler_options`.
    pub fn compile_error(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        let Error::Compiler(meshloom::Error::Pjrt(source)) = &error else { return error };
        let mut source: &PjrtError = source;
        if let PjrtError::Worker { failure, .. } = source
            && let WorkerFailure::Refused(refused) = &**failure
        {
            source = refused;
        }
        let is_refused = |name: &str| match source {
            PjrtError::Plugin { code: ErrorCode::InvalidArgument, message, .. } => {
                let mut words = message.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                message.contains("option") && words.any(|word| word == name)
            }
            PjrtError::InvalidOption { option, .. } => option == name,
            _ => false,
        };
        let options = &self.target.compiler_options;
        let refused = options.iter().find(|option| option.split_once('=').is_some_and(|(name, _)| is_refused(name)));
        let reason = match source {
            PjrtError::Plugin { message, .. } => format!("the plugin's compiler refuses it: {message}"),
            source => source.to_string(),
        };
        match refused {
            Some(option) => self.placed(invalid("target.compiler_options", option, &reason)).into(),
            None => error,
        }
    }

    /// The same as the config's own list would have them.
    pub(crate) fn compiler_option_list(&self, platform: &pjrt::Platform) -> Vec<String> {
        let own = &self.target.compiler_options;
        let preset = match self.target.compiler_preset {
            CompilerPreset::Chip => platform.preset(),
            CompilerPreset::None => None,
        };
        let name = |option: &str| option.split('=').next().map(str::to_owned);
        let is_own = |option: &&str| own.iter().any(|other| name(other) == name(option));
        let options = preset.into_iter().flat_map(pjrt::Preset::options).filter(|option| !is_own(option));
        options.map(str::to_owned).chain(own.iter().cloned()).collect()
    }
}

/// Options by name, of texts `name=value`.
fn parsed(options: &[String]) -> Result<BTreeMap<String, DebugValue>, ConfigError> {
    let named = |option: &String| match option.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), DebugValue::parse(value))),
        _ => Err(invalid(
            "target.compiler_options",
            option,
            "it must be name=value, as in xla_cpu_enable_fast_math=true",
        )),
    };
    options.iter().map(named).collect()
}
