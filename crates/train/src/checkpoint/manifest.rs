//! The manifest: what a checkpoint holds, and where.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CheckpointError, RecordedConfig};
use crate::data::DataDigest;
use crate::model_folder::MODEL;
use meshloom::hlo::files;
use meshloom::ir::{DType, TensorType};
use meshloom::pjrt::{ShardBox, ShardLayout};
use meshloom_models::published::is_kept;

/// The longest manifest that is read: some million pieces.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// The run and the place in it that a checkpoint is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Steps done.
    pub step: u64,
    /// Steps among them that changed nothing, because their numbers were not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_steps: u64,
    /// The loss on the validation set, in nats per target, if there was an evaluation after this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Seed of the parameters, of the order of the data and of what drops: all random numbers follow from it and the
    /// step.
    pub seed: u64,
    /// The next batch, which follows from the seed and this position.
    pub data: DataPosition,
    /// The mesh, as the config has it.
    pub mesh: String,
    /// Devices of the mesh.
    pub devices: usize,
    /// The run config.
    pub config: RecordedConfig,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Where a run is in its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// Number of the next batch, from 0.
    pub next_batch: u64,
    /// Sequences of a batch.
    pub batch: usize,
    /// Tokens of a sequence.
    pub seq: usize,
}

/// The fields that every version of the format has.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    pub format: String,
    pub version: u64,
}

/// The file `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u64,
    /// The version of meshloom that wrote it.
    pub meshloom: String,
    #[serde(flatten)]
    pub about: About,
    /// The data that the run read. Empty if the data is not text, or if an older version wrote the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_digests: Vec<DataDigest>,
    /// The files of the published model that the run trains, in the folder [`MODEL`]; empty for other runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_files: Vec<StoredFile>,
    pub files: Vec<StoredFile>,
    pub leaves: Vec<StoredLeaf>,
    /// The paths of values that have numbers which are not finite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_finite: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredFile {
    pub name: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredLeaf {
    pub path: String,
    pub dtype: String,
    pub dims: Vec<usize>,
    /// Whether the first dimension is that of replicas.
    pub has_replicas: bool,
    pub pieces: Vec<StoredPiece>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredPiece {
    /// Index of the file.
    pub file: usize,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// The box: its first index in each dimension ..
    pub start: Vec<usize>,
    /// .. and its sizes.
    pub dims: Vec<usize>,
}

impl StoredPiece {
    pub(super) fn shard(&self) -> ShardBox {
        self.start.iter().zip(&self.dims).map(|(&start, &size)| start..start + size).collect()
    }
}

impl StoredLeaf {
    /// The type; `None` for an unknown element type.
    pub(super) fn ty(&self) -> Option<TensorType> {
        Some(TensorType::new(DType::from_name(&self.dtype)?, &self.dims))
    }

    /// Number of replicas, where there are any.
    pub(super) fn replicas(&self) -> Option<usize> {
        self.dims.first().copied().filter(|_| self.has_replicas)
    }

    /// Checks that the pieces are the whole value, each once, and lie within their files. The sizes may be anything.
    fn check(&self, files: &[StoredFile]) -> Result<(), String> {
        let ty = self.ty().ok_or_else(|| format!("unknown element type {:?}", self.dtype))?;
        if bytes_of(ty.dtype, &self.dims).is_none() || (self.has_replicas && self.dims.is_empty()) {
            return Err(format!("the dimensions {:?} are not possible", self.dims));
        }
        let piece = |piece: &StoredPiece| {
            let file = files.get(piece.file)?;
            let end = piece.offset.checked_add(bytes_of(ty.dtype, &piece.dims)?)?;
            let fits = |(&start, &size): (&usize, &usize)| start.checked_add(size).is_some();
            let possible = piece.start.len() == piece.dims.len() && piece.start.iter().zip(&piece.dims).all(fits);
            (end <= file.bytes && possible).then(|| piece.shard())
        };
        let boxes =
            self.pieces.iter().map(|each| piece(each).ok_or_else(|| format!("the piece {each:?} is not possible")));
        let boxes = boxes.collect::<Result<Vec<_>, _>>()?;
        // Each piece is no larger than its file, but there may be any number of them.
        let elements = |dims: &[usize]| dims.iter().product::<usize>();
        let held = self.pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(elements(&piece.dims)));
        if held != Some(elements(&self.dims)) {
            return Err(format!("its pieces are not {} elements", elements(&self.dims)));
        }
        let layout = ShardLayout::from_boxes(&self.dims, boxes).map_err(|error| error.to_string())?;
        layout.covering_devices().map(|_| ()).map_err(|error| error.to_string())
    }
}

/// Bytes of a value, if the number can be.
fn bytes_of(dtype: DType, dims: &[usize]) -> Option<u64> {
    let bytes = dims.iter().try_fold(dtype.byte_count(), |product, &size| product.checked_mul(size))?;
    isize::try_from(bytes).ok().map(|bytes| bytes as u64)
}

impl Manifest {
    /// Checks that it makes sense by itself: names, boxes and sizes.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut names = std::collections::HashSet::new();
        for file in &self.files {
            // A manifest cannot make us read anything outside of the folder.
            let plain = file.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
            if !plain || !file.name.starts_with("shard-") || !names.insert(file.name.as_str()) {
                return Err(format!("{:?} is not the name of one of its files", file.name));
            }
        }
        let of_model = |name: &str| name.strip_prefix(MODEL)?.strip_prefix('/').map(is_kept);
        if let Some(file) = self.model_files.iter().find(|file| of_model(&file.name) != Some(true)) {
            return Err(format!("{:?} is not the name of a file of a published model", file.name));
        }
        let mut paths = std::collections::HashSet::new();
        for leaf in &self.leaves {
            leaf.check(&self.files).map_err(|reason| format!("{}: {reason}", leaf.path))?;
            if !paths.insert(leaf.path.as_str()) {
                return Err(format!("{} is there twice", leaf.path));
            }
        }
        Ok(())
    }
}

pub(super) fn read_manifest(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let foreign = |reason: String| CheckpointError::Foreign { path: path.to_owned(), reason };
    files::read(path, MAX_MANIFEST_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => foreign("it is missing".to_owned()),
        io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => foreign(error.to_string()),
        _ => CheckpointError::Read { path: path.to_owned(), source: error },
    })
}
