//! The devices that a config runs on: a client of its platform, and the config as they settle it.

use crate::Error;
use crate::config::{self, ConfigError, RunConfig};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::mesh::MeshError;
use meshloom::hlo::message::counted;
use meshloom::pjrt::ahead_of_time::WorkerFailure;
use meshloom::pjrt::{
    Client, ClientOptions, CompileCache, ErrorCode, PjrtError, Platform, ProcessPlace, Topology, check_present,
};
use meshloom::sharding::Mesh;

/// The most bytes that the programs in a compile cache take.
const CACHE_LIMIT: u64 = 4 << 30;

/// The devices of a run.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The config, in which the platform and the number of devices are settled.
    pub config: RunConfig,
    /// The client.
    pub client: Client,
    /// Notes for the user about the choice.
    pub notes: Vec<String>,
}

impl RunConfig {
    /// Opens the devices that the config runs on. The CPU gives as many as the mesh has. On other platforms all devices
    /// are opened, and a smaller mesh takes the first of them.
    ///
    /// # Errors
    /// The platform has no devices here, or lacks an option that the config sets; its plugin cannot be had, or makes no
    /// client; or the mesh does not fit the devices. Nothing has been written then.
    pub fn open(&self) -> Result<Devices, Error> {
        self.open_as(None)
    }

    /// As [`RunConfig::open`], as one of the processes that the config says there are.
    ///
    /// # Errors
    /// The errors are those of [`RunConfig::open`]. It is also an error if the place is not one of so many processes.
    pub fn open_as(&self, process: Option<&ProcessPlace>) -> Result<Devices, Error> {
        let (client, notes) =
            self.open_client(process, |config| Ok(config.mesh()?.device_count() / config.target.processes))?;
        Ok(self.with_client(client, notes)?)
    }

    /// As [`RunConfig::open`], on the devices of a client that was opened before, with what the user should know of its
    /// choice.
    ///
    /// # Errors
    /// The errors are those of [`RunConfig::on_client`].
    pub fn with_client(&self, client: Client, mut notes: Vec<String>) -> Result<Devices, ConfigError> {
        let config = self.on_client(&client)?;
        let there = client.devices().len();
        let used = match config.crossing_processes() {
            1 => config.device_total(),
            _ => config.target.devices,
        };
        if used < there {
            notes.push(format!("the mesh takes the first {used} of {}", counted(there, "device")));
        }
        Ok(Devices { config, client, notes })
    }

    /// A client of the config's platform for one device, and what the user should know of the choice.
    ///
    /// # Errors
    /// The errors are those of [`RunConfig::open`].
    pub fn open_one(&self) -> Result<(Client, Vec<String>), Error> {
        self.open_client(None, |_| Ok(1))
    }

    fn open_client(
        &self,
        process: Option<&ProcessPlace>,
        cpu_devices: impl Fn(&RunConfig) -> Result<usize, ConfigError>,
    ) -> Result<(Client, Vec<String>), Error> {
        self.check_runnable()?;
        let open = |kind| -> Result<Client, Error> {
            let mut options = ClientOptions { process: process.cloned(), ..self.client_options(kind)? };
            if kind == PlatformKind::Cpu {
                options.device_count = Some(cpu_devices(&self.with_platform(kind))?);
            }
            Ok(Client::open(&options)?)
        };
        let mut notes = Vec::new();
        if let Some(kind) = self.target.platform.chosen() {
            return Ok((open(kind)?, notes));
        }
        for kind in [PlatformKind::Tpu, PlatformKind::Cuda] {
            if check_present(kind).is_err() {
                continue;
            }
            match open(kind) {
                Ok(client) => return Ok((client, notes)),
                Err(error @ Error::Config(_)) => return Err(error),
                Err(error) => notes.push(format!("target.platform = \"auto\" passes over {kind}: {error}")),
            }
        }
        Ok((open(PlatformKind::Cpu)?, notes))
    }

    /// This config on the devices of a client.
    ///
    /// # Errors
    /// The client is of another platform than the config says, or the mesh does not fit its devices.
    pub fn on_client(&self, client: &Client) -> Result<RunConfig, ConfigError> {
        let kind = client.platform().kind();
        if self.target.platform.chosen().is_some_and(|own| own != kind) {
            let reason = format!("the client is of {kind}; open one by `RunConfig::open`");
            return Err(config::invalid("target.platform", self.target.platform.to_string(), &reason));
        }
        let config = self.with_platform(kind);
        match config.knows_devices() {
            true => Ok(config),
            false => config.on_devices(config.devices_of_mesh(client.devices().len())),
        }
    }

    /// Returns this config with every choice made that the platform and its devices decide. If it is written and read
    /// again, it gives the same run.
    ///
    /// # Errors
    /// The mesh does not fit.
    pub fn resolved_on(&self, platform: &Platform) -> Result<RunConfig, ConfigError> {
        let mut config = self.with_platform(platform.kind());
        config.mesh.axes = config.mesh()?.to_string();
        config.target.compiler_options = self.compiler_option_list(platform);
        config.target.compiler_preset = false;
        Ok(config)
    }

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
        Ok(platform.chosen().ok_or_else(|| config::invalid("target.platform", platform.to_string(), reason))?)
    }

    /// Returns this config for a program that is only inspected, so no plugin is asked for devices. Their number is
    /// that of its topology, or else that of its mesh.
    ///
    /// # Errors
    /// There is no such topology; a size of the mesh is -1, which needs a known number of devices; or the mesh does not
    /// fit.
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
                Err(config::invalid("mesh.axes", &self.mesh.axes, &reason).because(["target.platform"]).into())
            }
            Err(MeshError::DeviceCount { product, .. }) => Ok(self.on_devices(product)?),
            // The call reports the fault of the text.
            _ => Ok(self.on_devices(0)?),
        }
    }

    /// The cache in which the trainer keeps compiled programs, if it does.
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
                    self.placed(config::invalid("target.compile_cache", folder, &reason))
                })?;
                Ok(Some(limited(cache)))
            }
        }
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
            Some(option) => self.placed(config::invalid("target.compiler_options", option, &reason)).into(),
            None => error,
        }
    }

    fn with_platform(&self, kind: PlatformKind) -> RunConfig {
        let mut config = self.clone();
        config.target.platform = config::Auto::Chosen(kind);
        config
    }
}
