//! A checkpoint of the parameters of a published model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshloom::trace::{LayerPath, MapTree, Param};
use meshloom_nn::DecoderConfig;

use super::{PublishedWeights, StoredModel};
use crate::Error;
use crate::checkpoint::{self, About, CheckpointError, DataPosition, ModelFiles, ParameterSource, RecordedConfig};
use crate::families::Published;

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
    let read: ParameterSource = {
        let weights = weights.clone();
        Arc::new(move |path, dims| {
            let whole: Vec<_> = dims.iter().map(|&size| 0..size).collect();
            weights.read_part(path, dims, &whole).map_err(|error| CheckpointError::Source(Box::new(error)))
        })
    };
    let files = weights.with_dtypes(ModelFiles::read(folder)?);
    let written = checkpoint::write_parameters(directory.as_ref(), about, files, &declared, read)?;
    let leaves = meshloom::trace::Tree::leaves(&declared);
    let parameters = leaves.iter().map(|param: &Param| param.spec.ty.element_count()).sum();
    Ok(Imported { folder: written, parameters, skipped: weights.skipped().to_vec() })
}
