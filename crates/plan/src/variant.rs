//! The parts of a config that a search replaces.

use std::fmt;

use meshloom::ops::KeyExchange;
use meshloom_nn::ContextOrder;
use meshloom_train::config::{PipelineConfig, RunConfig};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::plan::{Plan, pipeline_settings, write_pipeline};

/// The part of a config that is another.
#[derive(Clone, Debug, PartialEq)]
pub enum Variant {
    /// Nothing.
    Configured,
    /// Mesh, pipeline, rematerialization, and all else that a search chooses.
    Plan(Box<Plan>),
    /// The section `[pipeline]`.
    Pipeline(Box<PipelineConfig>),
    /// How queries meet keys of other devices, and the order in which a row's tokens are spread over the devices.
    Sequence(KeyExchange, ContextOrder),
}

impl From<Plan> for Variant {
    fn from(plan: Plan) -> Variant {
        Variant::Plan(Box::new(plan))
    }
}

impl Variant {
    /// The plan, if a search chose all of it.
    pub fn plan(&self) -> Option<&Plan> {
        if let Variant::Plan(plan) = self { Some(plan) } else { None }
    }

    /// Returns a config with this variant.
    pub fn apply(&self, base: &RunConfig) -> RunConfig {
        let mut config = base.clone();
        match self {
            Variant::Configured => {}
            Variant::Plan(plan) => return plan.apply(base),
            Variant::Pipeline(pipeline) => config.pipeline = Some((**pipeline).clone()),
            Variant::Sequence(exchange, order) => {
                (config.kernels.context, config.kernels.context_order) = (*exchange, *order);
            }
        }
        config
    }

    /// The keys that it sets, as `--set` takes them.
    pub fn settings(&self) -> Vec<String> {
        match self {
            Variant::Configured => Vec::new(),
            Variant::Plan(plan) => plan.settings(),
            Variant::Pipeline(pipeline) => {
                let mut all = pipeline_settings(pipeline);
                if let Some(policy) = &pipeline.remat {
                    all.push(format!("pipeline.remat={}", policy.name()));
                }
                // Where stages branch, it is never on.
                if pipeline.schedule.branches() {
                    all.push("pipeline.delay_forwarding=false".to_owned());
                }
                all
            }
            Variant::Sequence(exchange, order) => {
                vec![format!("kernels.context={exchange}"), format!("kernels.context_order={order}")]
            }
        }
    }
}

/// In short: `stage=2,fsdp=4, remat none, 1f1b, M 8`; `circular, M 4, R 2, bsw`; `ring, striped`.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Configured => write!(f, "as configured"),
            Variant::Plan(plan) => write!(f, "{plan}"),
            Variant::Pipeline(pipeline) => {
                write_pipeline(f, pipeline, true)?;
                match &pipeline.remat {
                    Some(policy) => write!(f, ", remat {}", policy.name()),
                    None => Ok(()),
                }
            }
            Variant::Sequence(exchange, order) => write!(f, "keys {exchange}, tokens {order}"),
        }
    }
}

/// Its name and its settings.
impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Variant", 2)?;
        object.serialize_field("name", &self.to_string())?;
        object.serialize_field("settings", &self.settings())?;
        object.end()
    }
}
