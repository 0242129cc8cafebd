//! A checkpoint of the parameters of a published model, and a published model of those of a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshloom::trace::{LayerPath, MapTree, Param};
use meshloom_models::families::Published;
use meshloom_models::published::{self, ExportOptions, Exported, ModelFiles, PublishedWeights};
use meshloom_models::weights::whole;
use meshloom_nn::DecoderConfig;

use super::StoredModel;
use crate::Error;
use crate::checkpoint::{self, About, CheckpointError, DataPosition, ParameterReader, RecordedConfig};
use crate::config::invalid;

/// The result of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The checkpoint.
    pub folder: PathBuf,
    /// Number of parameters.
    pub parameters: usize,
    /// Tensors that were left out on purpose.
    pub skipped: Vec<String>,
}

/// Makes a checkpoint of the parameters of a published model, in the types that they are published in (`bf16` where
/// they are quantized), in a directory that has none yet. One layer of a parameter at a time is in memory. A run starts
/// from it by `train.init`. The layers that predict further tokens are left out unless an override sets
/// `train.further_token_weight`.
///
/// # Errors
/// The folder's config or weights cannot be used, or the directory cannot be written or has checkpoints.
pub fn import(folder: impl AsRef<Path>, directory: impl AsRef<Path>, overrides: &[String]) -> Result<Imported, Error> {
    let folder = folder.as_ref();
    let StoredModel { config, .. } = StoredModel::open(folder, overrides)?;
    let published = match config.published_in_use() {
        Some(published) => published,
        None => Published::open(folder)?,
    };
    let weights = Arc::new(PublishedWeights::open(folder, &published)?);
    // Each layer by itself is read by itself.
    let decoder = DecoderConfig { scan_layers: false, ..DecoderConfig::new(published.architecture.clone()) };
    let declared = decoder.parameters().map(|path, param: &Param| {
        let mut param = param.clone();
        let name = LayerPath::of(&path.to_string(), false).name;
        param.spec.ty.dtype = weights.dtype(&name).unwrap_or(param.spec.ty.dtype);
        param
    });
    let about = About {
        step: 0,
        skipped_steps: 0,
        validation_loss: None,
        seed: config.train.seed,
        data: DataPosition { next_batch: 0, batch: config.train.batch, seq: config.model.seq },
        mesh: config.mesh.axes.clone(),
        devices: config.device_total(),
        config: RecordedConfig::of(&config),
    };
    let read: ParameterReader = {
        let weights = weights.clone();
        Arc::new(move |path, dims| {
            weights.read_part(path, dims, &whole(dims)).map_err(|error| CheckpointError::Source(Box::new(error)))
        })
    };
    let files = weights.with_dtypes(ModelFiles::read(folder)?);
    let written = checkpoint::write_parameters(directory.as_ref(), about, files, &declared, read)?;
    let leaves = meshloom::trace::Tree::leaves(&declared);
    let parameters = leaves.iter().map(|param: &Param| param.spec.ty.element_count()).sum();
    Ok(Imported { folder: written, parameters, skipped: weights.skipped().to_vec() })
}

/// Writes the model of a checkpoint to a folder that has no weights, as transformers reads it: `config.json`, the other
/// files of the published model, and safetensors. One tensor at a time is in memory.
///
/// # Errors
/// The model is not one of `model.preset` or `model.config`; the checkpoint cannot be read; or the folder cannot be
/// written.
pub fn export(model: &StoredModel, folder: impl AsRef<Path>, options: ExportOptions) -> Result<Exported, Error> {
    let config = &model.config;
    let Some(published) = &config.published_in_use() else {
        let reason = "only models of model.preset or model.config have a form that transformers reads";
        return Err(config.placed(invalid("model.family", config.model.family.name(), reason)).into());
    };
    let decoder = DecoderConfig { scan_layers: false, ..DecoderConfig::new(published.architecture.clone()) };
    let source = model.source(&decoder.parameters())?;
    let files = source.with_dtypes(config.model_files()?);
    let part = |path: &str, dims: &[usize], region: &[_]| source.part(path, dims, region);
    published::export(published, (folder.as_ref(), files), options, |path| source.dtype(path), part)
}
