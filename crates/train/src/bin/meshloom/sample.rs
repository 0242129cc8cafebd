//! `meshloom sample`: text from the model of a checkpoint.

use anyhow::Result;
use meshloom_train::checkpoint::{self, Fallback};
use meshloom_train::config::RunConfig;
use meshloom_train::sample::Sampler;
use meshloom_train::tokenizer::Tokenizer;

use crate::arguments::Sample;

/// What a sample continues unless told otherwise.
pub const PROMPT: &str = "It was ";

/// How freely tokens are drawn unless told otherwise.
pub const TEMPERATURE: f64 = 0.8;

/// A text to be continued.
pub struct Text<'a> {
    pub prompt: &'a str,
    /// Tokens to add.
    pub length: usize,
    pub temperature: f64,
    pub seed: u64,
}

impl Text<'_> {
    /// The prompt and what a model makes of it.
    pub fn continued(&self, sampler: &Sampler, tokenizer: &Tokenizer) -> Result<String> {
        let tokens = tokenizer.encode(self.prompt)?;
        let added = sampler.continue_text(&tokens, self.length, self.temperature, self.seed)?;
        Ok(format!("{}{}", self.prompt, tokenizer.decode(&added)))
    }
}

pub fn run(arguments: &Sample) -> Result<()> {
    let checkpoint = checkpoint::find(&arguments.checkpoint, Fallback::Refuse)?.checkpoint;
    let config = RunConfig::from_toml_with(&checkpoint.about().config, "the checkpoint's config", &arguments.set)?;
    config.check_runnable()?;
    let tokenizer = config.load_tokenizer()?;
    let (client, notes) = config.open_one()?;
    for note in notes {
        eprintln!("warning: {note}");
    }
    let sampler = Sampler::of_checkpoint(&client, &config, &checkpoint)?;
    let &Sample { length, temperature, .. } = arguments;
    let text =
        Text { prompt: &arguments.prompt, length, temperature, seed: arguments.seed.unwrap_or(config.train.seed) };
    println!("{}", text.continued(&sampler, &tokenizer)?);
    Ok(())
}
