//! Generators for the model of a run's config.

use super::{Generator, GeneratorOptions};
use crate::Error;
use crate::assign::Source;
use crate::checkpoint::Checkpoint;
use crate::config::{Placement, RunConfig};
use meshloom::compile::LowerOptions;
use meshloom::nn::{DecoderConfig, GeneratingDecoder};
use meshloom::pjrt::Client;

impl RunConfig {
    /// A generator for the config's decoder, with the parameters of a checkpoint, on one device.
    ///
    /// # Errors
    /// The checkpoint's parameters are not those of the config's model, or the plugin refuses the program.
    pub fn generator_on_one_device(
        &self,
        client: &Client,
        checkpoint: &Checkpoint,
        options: GeneratorOptions,
    ) -> Result<Generator, Error> {
        let lowering = self.lower_options(client.platform());
        self.generator_of(client, &self.decoder()?.on_one_device(), &lowering, checkpoint, options)
    }

    /// The same over the config's mesh, by its rules. Rows are filled up to a multiple of the devices that they are
    /// spread over.
    ///
    /// # Errors
    /// As of [`RunConfig::generator_on_one_device`]; or mesh, rules and model do not fit together.
    pub fn generator(
        &self,
        client: &Client,
        checkpoint: &Checkpoint,
        options: GeneratorOptions,
    ) -> Result<Generator, Error> {
        let config = RunConfig { pipeline: None, diloco: None, ..self.on_client(client)? };
        let placement = config.placement()?;
        let decoder = config.decoder_on(&placement)?;
        let rows = options.rows.next_multiple_of(placement.parts("activation_batch").max(1));
        let options = GeneratorOptions { rows, ..options };
        let Placement { mesh, rules } = placement;
        if mesh.device_count() == 1 {
            return config.generator_on_one_device(client, checkpoint, options);
        }
        let lowering = LowerOptions { sharding: Some((&mesh, &rules)), ..config.lower_options(client.platform()) };
        config.generator_of(client, &decoder, &lowering, checkpoint, options)
    }

    fn generator_of(
        &self,
        client: &Client,
        decoder: &DecoderConfig,
        lowering: &LowerOptions<'_>,
        checkpoint: &Checkpoint,
        options: GeneratorOptions,
    ) -> Result<Generator, Error> {
        let options = GeneratorOptions {
            debug_options: self.compiler_options(client.platform())?,
            cache: self.compile_cache()?,
            time_limit: self.train.time_limit,
            ..options
        };
        let declared = GeneratingDecoder::new(decoder, options.capacity).config().parameters();
        let source = Source::checkpoint(checkpoint, &declared)?;
        let made =
            Generator::new(client, decoder, lowering, options, |path, dims, shard| source.part(path, dims, shard));
        made.map_err(|error| self.compile_error(error))
    }
}
