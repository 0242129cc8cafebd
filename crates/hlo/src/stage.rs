//! The stages of a program on its way to a plugin.

use std::str::FromStr;

use crate::suggest::did_you_mean;
use crate::words;

words! {
    /// A stage of a program. Each adds one thing to the stage before.
    #[derive(PartialOrd, Ord)]
    pub enum Stage {
        /// The forward pass, as the closure was recorded: of one replica, if there are several.
        Traced = "traced",
        /// Forward pass, backward pass and update.
        Differentiated = "differentiated",
        /// After the graph-to-graph passes.
        Transformed = "transformed",
        /// Global shapes, with the specs of the rules as annotations.
        Sharded = "sharded",
        /// The program of one device, with its collectives.
        Partitioned = "partitioned",
        /// The program that the plugin compiled.
        Compiled = "compiled",
    }
}

impl Stage {
    /// Returns the words by which the names of XLA's dumps say that they are of this stage, the best first; only
    /// meshloom's own programs have the stages without any.
    pub const fn words_of_dumps(self) -> &'static [&'static str] {
        match self {
            Stage::Compiled => &["after_optimizations"],
            Stage::Partitioned => {
                &["after_spmd-partitioning", "after_spmd-partitioner", "after_spmd_partitioner", "after_spmd-simplify"]
            }
            Stage::Sharded => &["after_sharding-propagation", "after_shardy", "before_spmd-partitioning"],
            Stage::Traced => &["before_optimizations"],
            Stage::Transformed | Stage::Differentiated => &[],
        }
    }
}

/// Reads the name of a stage, or the word that XLA's dumps have for it: `cpu_after_optimizations`.
impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Stage, String> {
        let names = || Stage::ALL.iter().map(|stage| stage.name());
        let of_dumps = |stage: &Stage| stage.words_of_dumps().iter().any(|word| text.ends_with(word));
        Stage::named(text).or_else(|| Stage::ALL.into_iter().find(of_dumps)).ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(", ");
            format!("there is no stage \"{text}\"{}; there are {all}", did_you_mean(text, names()))
        })
    }
}
