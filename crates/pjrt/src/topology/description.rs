//! A topology as the plugin describes it. Made in a child process only: a plugin may end its process over one.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::super::api::{Api, Arguments, sized, slice};
use super::super::compiled::Compiled;
use super::super::device::DeviceDescription;
use super::super::error::PjrtError;
use super::super::plugin::Plugin;
use super::super::program::ProgramInfo;
use super::super::sys::*;
use super::Topology;

/// An owned `PJRT_TopologyDescription`.
pub(in super::super) struct TopologyDescription {
    raw: *mut PJRT_TopologyDescription,
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
        let mut arguments = PJRT_TopologyDescription_Create_Args {
            topology_name: name.as_ptr().cast(),
            topology_name_size: name.len(),
            create_options: raw_options.as_ptr(),
            num_options: raw_options.len(),
            ..Arguments::new()
        };
        // SAFETY: name and options outlive the call. The description is then ours.
        unsafe { plugin.api().call(&mut arguments)? };
        Ok(TopologyDescription { raw: arguments.topology, plugin: plugin.clone() })
    }

    /// Its devices, in the plugin's order.
    pub(in super::super) fn devices(&self) -> Result<Vec<DeviceDescription>, PjrtError> {
        let mut arguments =
            PJRT_TopologyDescription_GetDeviceDescriptions_Args { topology: self.raw, ..Arguments::new() };
        // SAFETY: the topology is live, and owns the descriptions.
        unsafe {
            self.api().call(&mut arguments)?;
            let list = slice(arguments.descriptions, arguments.num_descriptions);
            list.iter().map(|&raw| DeviceDescription::read(self.api(), raw)).collect()
        }
    }

    /// Compiles a serialized `HloModuleProto` for it, with a serialized `CompileOptionsProto`.
    pub(in super::super) fn compile(&self, module: &[u8], options: &[u8]) -> Result<Compiled, PjrtError> {
        ProgramInfo::read(module, true)?.check_plugin(&self.plugin)?;
        let format = "hlo";
        let program = sized!(
            PJRT_Program,
            PJRT_Program_STRUCT_SIZE {
                // The plugin only reads it.
                code: module.as_ptr().cast_mut().cast(),
                code_size: module.len(),
                format: format.as_ptr().cast(),
                format_size: format.len(),
            }
        );
        let mut arguments = PJRT_Compile_Args {
            topology: self.raw,
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Arguments::new()
        };
        // SAFETY: the topology is live, and program and options outlive the call; there is no client, which the header
        // allows. The executable is then ours.
        unsafe {
            self.api().call(&mut arguments)?;
            Ok(Compiled::owned(&self.plugin, arguments.executable))
        }
    }

    fn api(&self) -> Api {
        self.plugin.api()
    }
}

impl Drop for TopologyDescription {
    fn drop(&mut self) {
        let arguments = PJRT_TopologyDescription_Destroy_Args { topology: self.raw, ..Arguments::new() };
        // SAFETY: the description is live and ours, and not used again.
        unsafe { self.api().destroy(arguments) };
    }
}
