//! The train step of a config, compiled for hardware that is not there.

use crate::Error;
use crate::config::RunConfig;
use meshloom::compile::Lowered;
use meshloom::pjrt::ahead_of_time::{self, CompiledAhead, DescribedTopology, Settings};
use meshloom::pjrt::{CompileOptions, DeviceDescription, Topology};
use meshloom::sharding::Mesh;
use meshloom::trace::Tree;

/// A train step compiled ahead of time.
#[derive(Clone, Debug)]
pub struct StepAhead {
    /// The devices of the topology.
    pub devices: Vec<DeviceDescription>,
    /// How the config arranges them.
    pub mesh: Mesh,
    /// Number of parameters of the model.
    pub parameter_count: usize,
    /// The step before XLA.
    pub lowered: Lowered,
    /// The options of the plugin's compiler: those of the chip and the config's own, each `name=value`.
    pub compiler_options: Vec<String>,
    /// The step after XLA.
    pub compiled: CompiledAhead,
}

impl StepAhead {
    /// Compiles the train step that a config describes for its `target.topology`.
    ///
    /// # Errors
    /// There is no such topology, `mesh.axes` does not fit its devices, model and rules do not fit the mesh, or the
    /// plugin refuses the program, dies over it, or takes too long.
    pub fn compile(config: &RunConfig, settings: &Settings) -> Result<StepAhead, Error> {
        let topology = Topology::parse(&config.target.topology)?;
        let DescribedTopology { devices, platform, .. } = ahead_of_time::describe(&topology, settings)?;
        let config = config.on_devices(devices.len())?;
        let mesh = config.mesh()?;
        let run = config.resolve()?;
        let (_, lowered) = run.lower(config.calls(), &platform)?;
        let params = run.model().parameters();
        let parameter_count = params.leaves().iter().map(|param| param.spec.ty.element_count()).sum();
        let places: Vec<_> = devices.iter().map(DeviceDescription::place).collect();
        let debug_options = config.compiler_options(&platform)?;
        let options = lowered.options_on(&places)?.with_format(config.target.format);
        let options = CompileOptions { debug_options, ..options };
        let compiled = ahead_of_time::compile(&topology, &lowered.module.bytes, &options, settings)
            .map_err(|error| config.compile_error(error))?;
        let compiler_options = config.compiler_option_list(&platform);
        Ok(StepAhead { devices, mesh, parameter_count, lowered, compiler_options, compiled })
    }
}
