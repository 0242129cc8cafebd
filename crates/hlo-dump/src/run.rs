//! The interface to run configs. The feature `configs` implements it.

use anyhow::{Context, Result};
use maud::Markup;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProtoWithConfig;
use meshloom_hlo::{PlatformKind, Stage};

use crate::arguments::Input;
use crate::emitted::Ahead;
use crate::report::shardings::Row;
use crate::traffic::series::Syncs;

/// The functions that a program with run configs and plugins has.
pub struct Configs {
    /// Whether text that is not HLO may be a run config.
    pub is_config: fn(&str) -> bool,
    /// Reads a config, which messages call by a name, with overrides, and lowers its program to a stage.
    pub read: fn(&str, &str, Stage, &[String]) -> Result<(Box<dyn Run>, HloModuleProtoWithConfig)>,
    /// Compiles an input ahead of time for a target, which must have rates if they are needed.
    pub ahead: fn(&Input, Option<&str>, bool) -> Result<Ahead>,
}

/// The functions of this build, if it has them.
pub const CONFIGS: Option<Configs> = {
    #[cfg(feature = "configs")]
    let configs = Some(crate::configs::CONFIGS);
    #[cfg(not(feature = "configs"))]
    let configs = None;
    configs
};

/// Returns the functions of this build, or the error of a part of the program that needs them.
pub fn configs(what: &str) -> Result<Configs> {
    let missing = || {
        format!(
            "{what} needs the feature `configs`, which this hlo-dump is built without; `cargo install hlo-dump` builds one \
             that has it"
        )
    };
    CONFIGS.with_context(missing)
}

/// A run config and its program, as commands ask about them.
pub trait Run {
    #[cfg(feature = "configs")]
    fn config(&self) -> &meshloom_train::config::RunConfig;

    /// The compiler that the config's program is for, if the config states it.
    fn backend(&self) -> Option<PlatformKind>;

    /// The mesh of the program: that of one replica, if the program is for one. Before sharding, it is the mesh that
    /// the program is to be spread over.
    fn mesh(&self) -> Option<&Mesh>;

    /// The number of train steps in one execution of the program.
    fn steps_per_call(&self) -> u64;

    /// The schedule of the replicas' syncs, if the config has them sync now and then.
    fn syncs(&self) -> Result<Option<Syncs>>;

    /// The reasons why the tensors of a name are sharded as they are: so many of them at most.
    fn explain(&self, tensor: &str, most: usize) -> Result<Said>;

    fn graph_text(&self) -> String;

    /// The implementation of each op that has several.
    fn kernels(&self) -> Result<Said>;

    /// Values that our partitioner had to gather for an op, each as a sentence.
    fn gathered_for_ops(&self) -> Vec<String>;

    /// The shardings of values by the rules; `None` if XLA is to decide, or if there is one device.
    fn shardings(&self) -> Option<Vec<Row>>;

    /// The schedule of the config's pipeline, as a section of the report's page.
    fn pipeline_section(&self) -> Result<Option<Markup>>;
}

/// An answer that only a run config can give, in both forms in which commands print.
pub struct Said {
    /// The list of the answer's parts.
    pub json: serde_json::Value,
    pub lines: Vec<String>,
}
