//! Generators of stored models.

use super::{Generator, GeneratorOptions};
use crate::Error;
use crate::published::StoredModel;
use crate::tokenizer::{self, Tokenizer};
use meshloom::compile::LowerOptions;
use meshloom::pjrt::Client;
use meshloom_nn::GeneratingDecoder;

impl StoredModel {
    /// A generator with the parameters of the model, over the mesh of its config and by its rules. Rows are filled up
    /// to a multiple of the devices that they are spread over. The config says what the plugin is told and how long
    /// programs may take.
    ///
    /// # Errors
    /// Mesh, rules and model do not fit together, the parameters cannot be read, or the plugin refuses the program.
    pub fn generator(&self, client: &Client, options: GeneratorOptions) -> Result<Generator, Error> {
        let config = self.config.on_client(client)?;
        let placement = config.placement()?;
        let decoder = config.decoder_on(&placement)?;
        let options = GeneratorOptions {
            rows: options.rows.next_multiple_of(placement.parts("activation_batch").max(1)),
            format: config.target.format,
            debug_options: config.compiler_options(client.platform())?,
            cache: config.compile_cache()?,
            time_limit: config.train.time_limit,
            ..options
        };
        // As with other programs beside the train step, which is held to the rules.
        let rules = placement.rules.clone().with_strict(false);
        let sharding = (placement.mesh.device_count() > 1).then_some((&placement.mesh, &rules));
        let lowering = LowerOptions { sharding, ..config.lower_options(client.platform()) };
        let declared = GeneratingDecoder::new(&decoder, options.capacity).config().parameters();
        let source = self.source(&declared)?;
        let read = |path: &str, dims: &[usize], shard: &[_]| source.part(path, dims, shard);
        Generator::new(client, &decoder, &lowering, options, read).map_err(|error| config.compile_error(error))
    }

    /// Whether it is a published model, or was made of one, so that special tokens stand around its texts.
    pub fn is_of_published(&self) -> bool {
        self.model_folder().is_some()
    }

    /// The tokens that end texts of a published model: see [`tokenizer::stop_tokens`]. Other models have none.
    ///
    /// # Errors
    /// A file of the model cannot be read, or says something else than tokens.
    pub fn stop_tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<i32>, Error> {
        let Some(folder) = self.model_folder() else { return Ok(Vec::new()) };
        Ok(tokenizer::stop_tokens(folder, tokenizer)?)
    }
}
