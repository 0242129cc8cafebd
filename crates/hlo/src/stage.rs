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

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Stage, String> {
        let names = || Stage::ALL.iter().map(|stage| stage.name());
        Stage::named(text).ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(", ");
            format!("there is no stage \"{text}\"{}; there are {all}", did_you_mean(text, names()))
        })
    }
}
