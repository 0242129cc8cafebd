//! A topology as the plugin describes it. Made in a child process only: a plugin may end its process over one.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::super::api::{Arguments, Owned, slice};
use super::super::compiled::Compiled;
use super::super::device::DeviceDescription;
use super::super::error::PjrtError;
use super::super::executable::raw_program;
use super::super::plugin::Plugin;
use super::super::program::{Language, ProgramInfo};
use super::super::sys::*;
use super::Topology;

/// A plugin's description of a topology.
pub(in super::super) struct TopologyDescription {
    raw: Owned<PJRT_TopologyDescription>,
    plugin: Arc<Plugin>,
}

impl TopologyDescription {
    /// Asks the plugin for the topology.
    ///
    /// # Errors
    /// The plugin knows no such topology.
    pub(in super::super) fn new(plugin: &Arc<Plugin>, topology: &Topology) -> Result<TopologyDescription, PjrtError> {
        let (name, options) = topology.create_arguments();
        let raw_options: Vec<_> = options.iter().map(|(name, value)| value.to_raw(name)).collect();
        let arguments = PJRT_TopologyDescription_Create_Args {
            topology_name: name.as_ptr().cast(),
            topology_name_size: name.len(),
            create_options: raw_options.as_ptr(),
            num_options: raw_options.len(),
            ..Arguments::new()
        };
        // SAFETY: name and options outlive the call. The description is then ours.
        let raw = unsafe { Owned::new(plugin.api(), plugin.api().call(arguments)?.topology) };
        Ok(TopologyDescription { raw, plugin: plugin.clone() })
    }

    /// Its devices, in the plugin's order.
    pub(in super::super) fn devices(&self) -> Result<Vec<DeviceDescription>, PjrtError> {
        let (api, topology) = (self.raw.api(), self.raw.raw());
        // SAFETY: the topology is live, and owns the descriptions.
        unsafe {
            let answer =
                api.call(PJRT_TopologyDescription_GetDeviceDescriptions_Args { topology, ..Arguments::new() })?;
            let list = slice(answer.descriptions, answer.num_descriptions);
            list.iter().map(|&raw| DeviceDescription::read(api, raw)).collect()
        }
    }

    /// Compiles a serialized `HloModuleProto` for it, which the plugin is given in a language, with a serialized
    /// `CompileOptionsProto`.
    pub(in super::super) fn compile(
        &self,
        module: &[u8],
        language: &Language,
        options: &[u8],
    ) -> Result<Compiled, PjrtError> {
        ProgramInfo::read(module, true)?.check_plugin(&self.plugin)?;
        let code = language.code(module)?;
        let program = raw_program(&code, language.format);
        let arguments = PJRT_Compile_Args {
            topology: self.raw.raw(),
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Arguments::new()
        };
        // SAFETY: the topology is live, and program and options outlive the call; there is no client, which the header
        // allows. The executable is then ours.
        unsafe { Ok(Compiled::owned(&self.plugin, self.raw.api().call(arguments)?.executable)) }
    }
}
