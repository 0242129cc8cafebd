//! The interface to a run config and its program. `configs` implements it; without that feature it has no
//! implementation.

use anyhow::Result;
use maud::Markup;
#[cfg(feature = "configs")]
pub use meshloom::sharding::Explanation;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::mesh::Mesh;
use serde::Serialize;

/// The way from a tensor's sharding to its reason. Without run configs there is none.
#[cfg(not(feature = "configs"))]
#[derive(PartialEq, Serialize)]
pub enum Explanation {}

/// A run config and its program, as commands ask about them.
pub trait Run {
    /// The config itself.
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
    fn diloco(&self) -> Result<Option<Diloco>>;

    /// The reasons why the tensors of a name are sharded as they are.
    fn explain(&self, tensor: &str) -> Result<Vec<Explanation>>;

    /// Meshloom's own graph, as text.
    fn graph_text(&self) -> String;

    /// The implementation of each op that has several.
    fn kernels(&self) -> Vec<KernelRow>;

    /// Values that our partitioner had to gather for an op, each as a sentence.
    fn gathered_for_ops(&self) -> Vec<String>;

    /// The shardings of values by the rules; `None` if XLA is to decide, or if there is one device.
    fn shardings(&self) -> Option<Vec<ShardingRow>>;

    /// The schedule of the config's pipeline, as a section of the report's page.
    fn pipeline_section(&self) -> Result<Option<Markup>>;
}

/// The implementation of an op, with its operands on one device.
#[derive(Serialize)]
pub struct KernelRow {
    pub op: String,
    pub operands: String,
    pub implementation: String,
    pub how: String,
    /// The number of such ops in the program.
    pub count: usize,
}

/// The steps at which the replicas of DiLoCo send their updates, and the form of these.
#[derive(Serialize)]
pub struct Diloco {
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

/// A value that states its sharding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardingRow {
    /// Its name in the program, or the path of an argument.
    pub value: String,
    /// The type and dimensions.
    pub shape: String,
    /// The axes of each dimension, as the program states them.
    pub sharding: String,
    /// The bytes of a device's part.
    pub device_bytes: Option<u64>,
    /// The bytes of the whole value, if they differ from those of a part.
    pub whole_bytes: Option<u64>,
    /// The reason: a rule, an annotation, an op; or the place where it is written.
    pub origin: String,
}
