//! The train step of a config at each stage on its way to a plugin.

use std::fmt;
use std::str::FromStr;

use meshloom::hlo::suggest::did_you_mean;

/// A stage of a program. Each adds one thing to the stage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The forward pass, as the closure was recorded: of one replica, if there are several.
    Traced,
    /// Forward pass, backward pass and update.
    Differentiated,
    /// After the graph-to-graph passes.
    Transformed,
    /// Global shapes, with the specs of the rules as annotations.
    Sharded,
    /// The program of one device, with its collectives.
    Partitioned,
    /// What the plugin made of it.
    Compiled,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 6] =
        [Stage::Traced, Stage::Differentiated, Stage::Transformed, Stage::Sharded, Stage::Partitioned, Stage::Compiled];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Traced => "traced",
            Stage::Differentiated => "differentiated",
            Stage::Transformed => "transformed",
            Stage::Sharded => "sharded",
            Stage::Partitioned => "partitioned",
            Stage::Compiled => "compiled",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Stage, String> {
        let names = || Stage::ALL.iter().map(|stage| stage.name());
        Stage::ALL.into_iter().find(|stage| stage.name() == text).ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(", ");
            format!("there is no stage \"{text}\"{}; there are {all}", did_you_mean(text, names()))
        })
    }
}
