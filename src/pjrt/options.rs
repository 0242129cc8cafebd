//! Compile options, checked and in their wire form.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use prost::Message;

use super::error::PjrtError;
use crate::hlo::proto;

/// The value of an XLA debug option.
#[derive(Clone, Debug, PartialEq)]
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

/// How to compile a module.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// Copies of the program that run side by side.
    pub num_replicas: usize,
    /// Devices that each copy is partitioned over.
    pub num_partitions: usize,
    /// Whether XLA's SPMD partitioner runs. More than one partition needs it, also for a module with all sharding manual.
    pub use_spmd_partitioning: bool,
    /// Whether Shardy propagates instead of GSPMD. Only for modules with Shardy's annotations: some plugins abort on others.
    pub use_shardy_partitioner: bool,
    /// Device ids by replica and partition; by default the client's devices in order.
    pub device_assignment: Option<Vec<Vec<i32>>>,
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
            num_replicas: 1,
            num_partitions: 1,
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            device_assignment: None,
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

    /// Devices that the program runs on.
    pub fn device_count(&self) -> usize {
        self.num_replicas.saturating_mul(self.num_partitions)
    }

    /// These options with what the platform needs to compute what HLO says.
    pub(super) fn for_platform(&self, platform: &str) -> CompileOptions {
        let mut options = self.clone();
        if platform == "cpu" {
            // Some builds of the CPU compiler drop the NaN of one operand of a maximum unless told not to.
            const FAST_MIN_MAX: &str = "xla_cpu_enable_fast_min_max";
            options.debug_options.entry(FAST_MIN_MAX.into()).or_insert(DebugValue::Bool(false));
        }
        options
    }

    /// Checks the options against the devices there are, and fills in the assignment.
    pub(super) fn assignment(&self, device_ids: &[i32]) -> Result<Vec<Vec<i32>>, PjrtError> {
        let invalid = |option: &str, value: &dyn fmt::Debug, expected: String| {
            Err(PjrtError::InvalidOption { option: option.into(), value: format!("{value:?}"), expected })
        };
        for (option, value) in [("num_replicas", self.num_replicas), ("num_partitions", self.num_partitions)] {
            if value == 0 {
                return invalid(option, &value, "at least 1".into());
            }
        }
        if self.device_count() > device_ids.len() {
            let expected = format!(
                "at most {} devices, which is what the client has; create it with more, or partition over fewer",
                device_ids.len()
            );
            return invalid("num_replicas * num_partitions", &self.device_count(), expected);
        }
        if self.num_partitions > 1 && !self.use_spmd_partitioning {
            let expected = format!("true, because num_partitions is {}", self.num_partitions);
            return invalid("use_spmd_partitioning", &false, expected);
        }
        let Some(assignment) = &self.device_assignment else {
            let partitions = device_ids[..self.device_count()].chunks(self.num_partitions);
            return Ok(partitions.map(<[i32]>::to_vec).collect());
        };
        let well_formed = assignment.len() == self.num_replicas
            && assignment.iter().all(|partitions| partitions.len() == self.num_partitions);
        if !well_formed {
            let expected = format!("{} replicas of {} device ids", self.num_replicas, self.num_partitions);
            return invalid("device_assignment", assignment, expected);
        }
        let mut seen = HashSet::new();
        for id in assignment.iter().flatten() {
            if !device_ids.contains(id) {
                return invalid("device_assignment", id, format!("ids of the client's devices, {device_ids:?}"));
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
