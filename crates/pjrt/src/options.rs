//! Compile options, checked and in their wire form.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use prost::Message;
use serde::{Deserialize, Serialize};

use super::error::PjrtError;
use meshloom_hlo::mesh::{DevicePlace, Mesh, MeshError, device_order};
use meshloom_hlo::message::counted;
use meshloom_hlo::proto;

/// The value of an XLA debug option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DebugValue {
    /// Text, or the name of an enum's value.
    Text(String),
    /// Yes or no.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
}

impl DebugValue {
    /// The value that a text stands for: of the first type that it reads as.
    pub fn parse(text: &str) -> DebugValue {
        let number = || text.parse().map(DebugValue::Int).or_else(|_| text.parse().map(DebugValue::Float));
        text.parse().map(DebugValue::Bool).or_else(|_| number()).unwrap_or_else(|_| DebugValue::Text(text.to_owned()))
    }
}

/// The text that [`DebugValue::parse`] reads.
impl fmt::Display for DebugValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DebugValue::Text(text) => text.fmt(f),
            DebugValue::Bool(value) => value.fmt(f),
            DebugValue::Int(value) => value.fmt(f),
            DebugValue::Float(value) => value.fmt(f),
        }
    }
}

/// The processes on whose devices a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Span {
    /// The devices of the process that compiles it.
    #[default]
    Process,
    /// The devices of all processes, which the client of each knows. All of them compile it.
    Clients,
    /// The devices of this number of processes. Each process has a client of its own devices alone and compiles the
    /// same module for them. Devices are numbered through all processes.
    Each(usize),
}

/// The language in which a plugin is given a program. Modules are HLO here; for the other language they are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProgramFormat {
    /// A serialized `HloModuleProto`.
    #[default]
    Hlo,
    /// StableHLO text ([`meshloom_hlo::stablehlo`]), for plugins that take nothing else. A module for which StableHLO
    /// has no words is refused.
    StableHlo,
}

impl ProgramFormat {
    /// PJRT's name for the format.
    pub fn name(self) -> &'static str {
        match self {
            ProgramFormat::Hlo => "hlo",
            ProgramFormat::StableHlo => "mlir",
        }
    }
}

/// How to compile a module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileOptions {
    /// The language in which the plugin is given the program.
    pub format: ProgramFormat,
    /// Copies of the program that run side by side.
    pub num_replicas: usize,
    /// Devices that each copy is partitioned over.
    pub num_partitions: usize,
    /// Whether XLA's SPMD partitioner runs. More than one partition needs it, also for a module with all sharding
    /// manual.
    pub use_spmd_partitioning: bool,
    /// Whether Shardy propagates instead of GSPMD. Only for modules with Shardy's annotations or none: some plugins
    /// abort on others.
    pub use_shardy_partitioner: bool,
    /// Device ids by replica and partition; by default the devices of the client or topology, in order.
    pub device_assignment: Option<Vec<Vec<i32>>>,
    /// Whose devices these are.
    pub span: Span,
    /// For each parameter (or one for all) whether propagation may change a sharding that it does not state.
    pub allow_propagation_to_parameters: Vec<bool>,
    /// For each output (or one for all) whether propagation may choose its sharding.
    pub allow_propagation_to_outputs: Vec<bool>,
    /// XLA debug options by name (`xla_cpu_enable_fast_math`). The plugin refuses names it does not know.
    pub debug_options: BTreeMap<String, DebugValue>,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            format: ProgramFormat::default(),
            num_replicas: 1,
            num_partitions: 1,
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            device_assignment: None,
            span: Span::Process,
            allow_propagation_to_parameters: Vec::new(),
            allow_propagation_to_outputs: Vec::new(),
            debug_options: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// Options for one program partitioned over this many devices.
    pub fn partitioned(num_partitions: usize) -> CompileOptions {
        CompileOptions { num_partitions, use_spmd_partitioning: num_partitions > 1, ..CompileOptions::default() }
    }

    /// Options for one program partitioned over a mesh, on the devices that [`device_order`] picks.
    ///
    /// # Errors
    /// The mesh does not fit the devices.
    pub fn over_mesh(mesh: &Mesh, devices: &[DevicePlace]) -> Result<CompileOptions, MeshError> {
        let order = device_order(mesh, devices)?;
        Ok(CompileOptions { device_assignment: Some(vec![order]), ..CompileOptions::partitioned(mesh.device_count()) })
    }

    /// The same, for a module that Shardy is to partition or that has no annotations, or one that GSPMD is to.
    #[must_use]
    pub fn with_shardy(mut self, shardy: bool) -> CompileOptions {
        self.use_shardy_partitioner = shardy && self.num_partitions > 1;
        self
    }

    /// The same, with the program given to the plugin in a language.
    #[must_use]
    pub fn with_format(self, format: ProgramFormat) -> CompileOptions {
        CompileOptions { format, ..self }
    }

    /// Devices that the program runs on.
    pub fn device_count(&self) -> usize {
        self.num_replicas.saturating_mul(self.num_partitions)
    }

    /// Checks what can be checked without devices and program.
    pub(super) fn check(&self) -> Result<(), PjrtError> {
        for (option, value) in [("num_replicas", self.num_replicas), ("num_partitions", self.num_partitions)] {
            if value == 0 {
                return invalid(option, &value, "at least 1".into());
            }
        }
        if self.num_partitions > 1 && !self.use_spmd_partitioning {
            let expected = format!("true, because num_partitions is {}", self.num_partitions);
            return invalid("use_spmd_partitioning", &false, expected);
        }
        for (name, value) in &self.debug_options {
            if name.is_empty() {
                return invalid("debug_options", name, "the name of an XLA option".into());
            }
            if let DebugValue::Float(number) = value
                && !number.is_finite()
            {
                return invalid(name, number, "a finite number".into());
            }
        }
        Ok(())
    }

    /// Checks the number of devices and their assignment against the devices there are, and fills in the assignment.
    pub(super) fn assignment(&self, device_ids: &[i32], owner: &str) -> Result<Vec<Vec<i32>>, PjrtError> {
        if self.device_count() > device_ids.len() {
            let expected = format!(
                "at most {}, which is what {owner} has; take one with more, or partition over fewer",
                counted(device_ids.len(), "device")
            );
            return invalid("num_replicas * num_partitions", &self.device_count(), expected);
        }
        let Some(assignment) = &self.device_assignment else {
            let partitions = device_ids[..self.device_count()].chunks(self.num_partitions);
            return Ok(partitions.map(<[i32]>::to_vec).collect());
        };
        let well_formed = assignment.len() == self.num_replicas
            && assignment.iter().all(|partitions| partitions.len() == self.num_partitions);
        if !well_formed {
            let (replicas, ids) = (counted(self.num_replicas, "replica"), counted(self.num_partitions, "device id"));
            let expected = format!("{replicas} of {ids}");
            return invalid("device_assignment", assignment, expected);
        }
        let mut seen = HashSet::new();
        for id in assignment.iter().flatten() {
            if !device_ids.contains(id) {
                return invalid("device_assignment", id, format!("ids of {owner}'s devices, {}", ids_text(device_ids)));
            }
            if !seen.insert(id) {
                return invalid("device_assignment", id, "each device once".into());
            }
        }
        Ok(assignment.clone())
    }

    /// A serialized `CompileOptionsProto`.
    pub(super) fn encode(&self, assignment: &[Vec<i32>]) -> Vec<u8> {
        use proto::option_override_proto::Value;
        let computation_devices = (0..self.num_partitions)
            .map(|partition| proto::device_assignment_proto::ComputationDevice {
                replica_device_ids: assignment.iter().map(|replica| replica[partition].into()).collect(),
            })
            .collect();
        let build = proto::ExecutableBuildOptionsProto {
            // Zero would mean the first device, not any.
            device_ordinal: -1,
            num_replicas: self.num_replicas as i64,
            num_partitions: self.num_partitions as i64,
            use_spmd_partitioning: self.use_spmd_partitioning,
            use_shardy_partitioner: self.use_shardy_partitioner,
            allow_spmd_sharding_propagation_to_parameters: self.allow_propagation_to_parameters.clone(),
            allow_spmd_sharding_propagation_to_output: self.allow_propagation_to_outputs.clone(),
            device_assignment: Some(proto::DeviceAssignmentProto {
                replica_count: self.num_replicas as i32,
                computation_count: self.num_partitions as i32,
                computation_devices,
            }),
            ..Default::default()
        };
        let overrides = self.debug_options.iter().map(|(name, value)| {
            let value = match value {
                DebugValue::Text(text) => Value::StringField(text.clone()),
                DebugValue::Bool(bool) => Value::BoolField(*bool),
                DebugValue::Int(int) => Value::IntField(*int),
                DebugValue::Float(float) => Value::DoubleField(*float),
            };
            (name.clone(), proto::OptionOverrideProto { value: Some(value) })
        });
        proto::CompileOptionsProto {
            executable_build_options: Some(build),
            env_option_overrides: overrides.collect(),
            ..Default::default()
        }
        .encode_to_vec()
    }
}

fn invalid<T>(option: &str, value: &dyn fmt::Debug, expected: String) -> Result<T, PjrtError> {
    Err(PjrtError::option(option, format!("{value:?}"), expected))
}

/// The first of a long list of ids.
fn ids_text(ids: &[i32]) -> String {
    const SHOWN: usize = 16;
    let more = if ids.len() > SHOWN { format!(" and {} more", ids.len() - SHOWN) } else { String::new() };
    format!("{:?}{more}", &ids[..ids.len().min(SHOWN)])
}
