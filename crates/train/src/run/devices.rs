//! The devices that a config runs on: a client of its platform, and the config as they settle it.

use crate::Error;
use crate::config::{self, ConfigError, RunConfig};
use meshloom::hlo::message::counted;
use meshloom::pjrt::{Client, ClientOptions, Platform, PlatformKind, ProcessPlace, check_present};

/// The devices of a run.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The config, in which the platform and the number of devices are settled.
    pub config: RunConfig,
    /// The client.
    pub client: Client,
    /// What the user should know of the choice.
    pub notes: Vec<String>,
}

impl RunConfig {
    /// Opens the devices that the config runs on: on the CPU as many as its mesh has, elsewhere those that there are,
    /// of which a smaller mesh takes the first.
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
    /// As there; or the place is not one of so many processes.
    pub fn open_as(&self, process: Option<&ProcessPlace>) -> Result<Devices, Error> {
        let (client, notes) =
            self.open_client(process, |config| Ok(config.mesh()?.device_count() / config.target.processes))?;
        Ok(self.with_client(client, notes)?)
    }

    /// As [`RunConfig::open`], on the devices of a client that was opened before, with what the user should know of its
    /// choice.
    ///
    /// # Errors
    /// As of [`RunConfig::on_client`].
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
    /// As of [`RunConfig::open`].
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
        if let Some(kind) = self.target.platform.kind() {
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
        if self.target.platform.kind().is_some_and(|own| own != kind) {
            let reason = format!("the client is of {kind}; open one by `RunConfig::open`");
            return Err(config::invalid("target.platform", self.target.platform.name(), &reason));
        }
        let config = self.with_platform(kind);
        match config.knows_devices() {
            true => Ok(config),
            false => config.on_devices(config.devices_of_mesh(client.devices().len())),
        }
    }

    /// This config with every choice made that the platform and its devices make: reading what it is written as gives
    /// the same run.
    ///
    /// # Errors
    /// The mesh does not fit.
    pub fn resolved_on(&self, platform: &Platform) -> Result<RunConfig, ConfigError> {
        let mut config = self.with_platform(platform.kind());
        config.mesh.axes = config.mesh()?.to_string();
        config.target.compiler_options = self.compiler_option_list(platform);
        config.target.compiler_preset = config::CompilerPreset::None;
        Ok(config)
    }

    fn with_platform(&self, kind: PlatformKind) -> RunConfig {
        let mut config = self.clone();
        config.target.platform = config::Platform::of(kind);
        config
    }
}
