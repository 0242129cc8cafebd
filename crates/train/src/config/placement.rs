//! The placement of a run: the mesh, the rules, and the rows of a batch.

use super::error::{self, ConfigError};
use super::{MeshConfig, RunConfig};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::message::counted;
use meshloom::sharding::{Mesh, RuleProblem, RuleSets, ShardingError};

/// The sections `[mesh]` and `[rules]`, parsed.
pub(crate) struct Placement {
    pub(crate) mesh: Mesh,
    pub(crate) rules: RuleSets,
}

/// How a rule splits a dimension that it does not divide.
pub(super) struct Split {
    pub(super) parts: usize,
    pub(super) rule: String,
    pub(super) mesh: String,
}

impl Placement {
    /// The devices along a mesh axis; 1 if there is no such axis.
    pub(crate) fn axis_size(&self, name: &str) -> usize {
        self.mesh.axis(name).map_or(1, |axis| self.mesh.size(axis))
    }

    /// Returns the number of devices that the rules spread a dimension of this name over.
    pub(crate) fn parts(&self, name: &str) -> usize {
        let rule = self.rules.compute.rules().iter().find(|rule| rule.name == name);
        rule.into_iter().flat_map(|rule| &rule.axes).map(|axis| self.axis_size(axis)).product()
    }

    /// Returns the first dimension that the rules split into parts that do not divide it. Other errors are reported
    /// with the program at hand.
    pub(super) fn uneven_split(&self, tensor: &str, names: &[Option<&str>], dims: &[usize]) -> Option<(usize, Split)> {
        let resolved = self.rules.compute.resolve(&self.mesh, tensor, names, dims, &mut Vec::new());
        let Err(ShardingError::Rule { problem, .. }) = resolved else { return None };
        let RuleProblem::NotDivisible { dim, parts, rule, mesh, .. } = *problem else { return None };
        Some((dim, Split { parts, rule, mesh }))
    }
}

impl RunConfig {
    /// Mesh and rules. All that a config resolves to needs them, so that this is where one that code has changed shows.
    pub(crate) fn placement(&self) -> Result<Placement, ConfigError> {
        self.check_published()?;
        Ok(Placement { mesh: self.mesh()?, rules: self.rule_sets()? })
    }

    /// The device mesh that the config asks for.
    pub fn mesh(&self) -> Result<Mesh, ConfigError> {
        let MeshConfig { axes, dcn } = &self.mesh;
        let mesh = Mesh::parse(axes, self.device_total()).map_err(|error| {
            let target = &self.target;
            let hint = match (self.knows_devices(), target.topology.as_str()) {
                (true, _) if target.processes > 1 => {
                    format!("{error} (each of {} processes has target.devices = {})", target.processes, target.devices)
                }
                (true, _) => format!("{error} (target.devices is {})", target.devices),
                (false, topology) => {
                    let has = if topology.is_empty() { target.platform.to_string() } else { topology.to_owned() };
                    format!(
                        "{error} ({has} has {}; --set mesh.axes=data=-1 takes all)",
                        counted(self.device_total(), "device")
                    )
                }
            };
            let devices = self.knows_devices().then_some("target.devices");
            error::invalid("mesh.axes", axes, &hint).because(devices)
        })?;
        if self.crossing_processes() > 1 {
            mesh.at_processes(self.crossing_processes())
                .map_err(|error| error::invalid("mesh.axes", axes, &error.to_string()).because(["target.processes"]))?;
        }
        mesh.with_dcn(dcn).map_err(|error| error::invalid("mesh.dcn", dcn, &error.to_string()))
    }

    /// The axis rules that the config asks for.
    pub fn rule_sets(&self) -> Result<RuleSets, ConfigError> {
        self.rules.rule_sets()
    }

    /// Returns the config without the keys in which the processes of a run may differ: each may see other GPUs of its
    /// host.
    pub(crate) fn shared(&self) -> RunConfig {
        let mut config = self.clone();
        config.target.visible_devices = Vec::new();
        config
    }

    /// Devices of all processes.
    pub fn device_total(&self) -> usize {
        self.target.devices.saturating_mul(self.target.processes)
    }

    /// Processes between which collectives go by meshloom's own way, because the plugins of CPUs have none; 1
    /// elsewhere.
    pub(crate) fn crossing_processes(&self) -> usize {
        let on_cpu = self.target.topology.is_empty() && self.target.platform.chosen() == Some(PlatformKind::Cpu);
        if on_cpu { self.target.processes } else { 1 }
    }

    /// Number of replicas that train on their own.
    pub(crate) fn replicas(&self) -> usize {
        self.diloco.as_ref().map_or(1, |diloco| diloco.replicas)
    }

    /// Rows of the batch that each replica trains on.
    pub(crate) fn rows_of_replica(&self) -> usize {
        self.train.batch / self.replicas().max(1)
    }

    /// Whether this run is one of several replicas that are runs of their own.
    pub(crate) fn is_apart(&self) -> bool {
        self.diloco.as_ref().is_some_and(|diloco| diloco.apart.is_some())
    }

    /// Rows of the batch that this run trains on.
    pub(crate) fn rows_of_run(&self) -> usize {
        if self.is_apart() { self.rows_of_replica() } else { self.train.batch }
    }

    /// Rows whose gradient is computed at once: a microbatch of `train.microbatches`.
    pub(crate) fn rows_at_once(&self) -> usize {
        self.rows_of_replica() / self.train.microbatches.max(1)
    }

    /// Rows that a layer works on at once: a microbatch of the pipeline, if there is one.
    pub(crate) fn rows_of_layer(&self) -> usize {
        self.rows_at_once() / self.pipeline.as_ref().map_or(1, |pipeline| pipeline.microbatches.max(1))
    }
}
