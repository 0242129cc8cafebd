//! The meaning of `[target]`: the platform, its options, and the number of devices.

use std::collections::BTreeMap;

use super::error::{ConfigError, invalid, invalid_described};
use super::section::write_section;
use super::{Auto, PartitionMode, RunConfig};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::mesh::MeshError;
use meshloom::pjrt::{self, ClientOptions, DebugValue, PjrtError};
use meshloom::sharding::Mesh;

impl RunConfig {
    /// Whether the config says itself how many devices there are. Elsewhere the plugin knows
    /// ([`RunConfig::on_devices`], [`RunConfig::on_client`]).
    pub(crate) fn knows_devices(&self) -> bool {
        self.target.topology.is_empty() && self.target.platform == Auto::Chosen(PlatformKind::Cpu)
    }

    /// Returns the number of devices that the mesh takes of the `there` that exist: all of them, if one of its sizes is
    /// -1 or it is too large.
    pub(crate) fn devices_of_mesh(&self, there: usize) -> usize {
        match Mesh::parse(&self.mesh.axes, there) {
            Err(MeshError::DeviceCount { product, .. }) if product < there => product,
            _ => there,
        }
    }

    /// Returns the options with which a client of a platform is created, except for the number of virtual devices.
    ///
    /// # Errors
    /// A key is set whose option the platform does not have, or it has a value that is not possible.
    pub fn client_options(&self, platform: PlatformKind) -> Result<ClientOptions, ConfigError> {
        let target = &self.target;
        let options = ClientOptions {
            // More threads cost time. Fragments that travel while steps run need them.
            collectives_at_once: (platform == PlatformKind::Cpu && self.diloco.is_none()).then_some(2),
            memory_fraction: Some(target.memory_fraction).filter(|&fraction| fraction != 0.0),
            preallocate: target.preallocate.chosen(),
            visible_devices: Some(target.visible_devices.clone()).filter(|numbers| !numbers.is_empty()),
            ..ClientOptions::of(platform)
        };
        match options.check() {
            Ok(()) => Ok(options),
            // The keys are named as the options are.
            Err(PjrtError::InvalidOption { option, value, expected }) => {
                let key = format!("target.{option}");
                // As it was written: an option may have another type than its key.
                let value = write_section(target).get(&option).map_or(value, ToString::to_string);
                Err(invalid_described(&key, value, &format!("expected {expected}")).because(["target.platform"]))
            }
            Err(error) => Err(invalid("target.platform", target.platform.to_string(), &error.to_string())),
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
        match self.target.platform.chosen().filter(|_| self.target.topology.is_empty()) {
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

    /// The options of the plugin's compiler as a list of `target.compiler_options` would have them.
    pub(crate) fn compiler_option_list(&self, platform: &pjrt::Platform) -> Vec<String> {
        let own = &self.target.compiler_options;
        let preset = platform.chip_options().filter(|_| self.target.compiler_preset);
        let name = |option: &str| option.split('=').next().map(str::to_owned);
        let is_own = |option: &&str| own.iter().any(|other| name(other) == name(option));
        let options = preset.into_iter().flat_map(pjrt::ChipOptions::options).filter(|option| !is_own(option));
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
