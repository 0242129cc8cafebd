//! The interface to run configs. The feature `configs` implements it.

use anyhow::Result;
use maud::Markup;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProtoWithConfig;
use meshloom_hlo::{PlatformKind, Stage};
use schemars::JsonSchema;
use serde::Serialize;

/// The reader of run configs.
pub struct Reader {
    /// Whether text that is not HLO may be a run config.
    pub is_config: fn(&str) -> bool,
    /// Reads a config, which messages call by a name, with overrides, and lowers its program to a stage.
    pub read: fn(&str, &str, Stage, &[String]) -> Result<LoweredConfig>,
}

/// A run config with its program.
pub type LoweredConfig = (Box<dyn ConfigRun>, HloModuleProtoWithConfig);

/// Returns the error of a part of the program that needs run configs or plugins, where it is built without them.
pub fn missing(what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what} needs the feature `configs`, which this hlo-dump is built without; `cargo install hlo-dump` builds one \
         that has it"
    )
}

/// A run config and its program, as commands ask about them.
pub trait ConfigRun {
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

/// A value that states its sharding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Its name in the program, or the path of an argument.
    pub value: String,
    pub shape: String,
    /// The axes of each dimension, as the program states them.
    pub sharding: String,
    pub device_bytes: Option<u64>,
    /// The bytes of the whole value, if they differ from those of a part.
    pub whole_bytes: Option<u64>,
    /// The reason: a rule, an annotation, an op; or the place where it is written.
    pub origin: String,
}

/// The reason for the sharding of one tensor of a run config, as JSON has it.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema of what the compiler serializes")]
pub struct Explained {
    /// The steps from the tensor to the origin of its sharding.
    steps: Vec<ExplainedBy>,
}

/// A step to the origin of a sharding.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema of what the compiler serializes")]
#[schemars(rename = "ExplainedStep")]
struct ExplainedBy {
    /// The path of a parameter; scope and op of any other value.
    name: String,
    /// Its type, with global dimensions.
    r#type: String,
    /// The mesh axes of its dimensions.
    spec: String,
    /// Where they come from.
    because: String,
    /// The source line as `file:line`, if there is one.
    source: Option<String>,
}

/// The implementation of an op of a run config's program, as JSON has it.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema of what `configs` serializes")]
pub struct Kernel {
    /// The name of the op.
    op: String,
    /// The types of its operands on one device, of the first three.
    operands: String,
    /// The name of the implementation.
    implementation: String,
    /// How it works on these operands; may be empty.
    how: String,
    /// The number of times that it stands in the program; a loop counts once.
    count: usize,
}

/// The steps at which the replicas of DiLoCo send their updates, and the form of these.
#[derive(JsonSchema, Serialize)]
pub struct Syncs {
    /// The number of steps until everything repeats.
    pub period: usize,
    /// The number of steps from one sync, of whatever fragment, to the next.
    pub steps_between_syncs: usize,
    /// The number of parts in which parameters are sent.
    pub fragments: usize,
    /// The number of steps from sending to use.
    pub overlap_steps: usize,
    /// The form in which values are sent.
    pub transport: &'static str,
    /// The event after a step.
    #[serde(skip)]
    pub after_step: Box<dyn Fn(usize) -> Event>,
}

/// The fragment that is sent after a step, and the one that comes in: `all` or `fragment 2`.
pub type Event = (Option<String>, Option<String>);
