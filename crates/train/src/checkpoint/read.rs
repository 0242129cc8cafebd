//! Opening a checkpoint, which checks every byte of it, and reading the boxes that devices need.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::form::{self, RunLeaf, Segment};
use super::manifest::{About, Header, Manifest, StoredLeaf, StoredPiece, read_manifest};
use super::{CheckpointError, FORMAT, MANIFEST, VERSION, folder, sums};
use crate::data::DataDigest;
use crate::model_folder::{MODEL, step_of};
use meshloom::hlo::files;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, ArraySpec, Client, ShardBox, ShardLayout, shared_runs};
use meshloom::trace::{MapTree, Param, Tree};

/// The prefix of the paths of parameters that several replicas have agreed on.
const OUTER_PARAMS: &str = "outer.params.";

/// The prefix of the paths of parameters in a state.
pub(super) const PARAMS: &str = "params.";

/// The number of bytes that are read at once where the needed parts of a piece are small.
const BUFFER_BYTES: usize = 1 << 18;

/// A checkpoint whose files are as they were written.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
}

/// The action to take where the newest checkpoint of a directory cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// An error is returned, which names the checkpoint before it.
    #[default]
    Refuse,
    /// The newest checkpoint that can be used is taken.
    Older,
}

/// The checkpoint to go on from.
#[derive(Debug)]
pub struct FoundCheckpoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The faults of the newer checkpoints, which cannot be used.
    pub skipped: Vec<CheckpointError>,
}

/// Returns the checkpoint that a path means: itself, or the newest complete one in a directory of checkpoints.
///
/// # Errors
/// There is no checkpoint, or it cannot be used. With [`Fallback::Older`], no checkpoint can be used.
pub fn find(path: impl AsRef<Path>, fallback: Fallback) -> Result<FoundCheckpoint, CheckpointError> {
    let path = path.as_ref();
    if step_of(path).is_some() || path.join(MANIFEST).exists() {
        return Ok(FoundCheckpoint { checkpoint: Checkpoint::open(path)?, skipped: Vec::new() });
    }
    check_directory(path)?;
    let directory = path.to_owned();
    let mut folders = folder::list(path)?.into_iter().rev().map(|(_, folder)| folder).peekable();
    if folders.peek().is_none() {
        return Err(CheckpointError::None(directory));
    }
    let mut failures = Vec::new();
    while let Some(folder) = folders.next() {
        match (Checkpoint::open(folder), fallback) {
            (Ok(checkpoint), _) => return Ok(FoundCheckpoint { checkpoint, skipped: failures }),
            (Err(error), Fallback::Older) => failures.push(error),
            (Err(source), Fallback::Refuse) => {
                return Err(CheckpointError::Newest { source: Box::new(source), previous: folders.next() });
            }
        }
    }
    Err(CheckpointError::AllDamaged { directory, failures })
}

impl Checkpoint {
    /// Opens the checkpoint in a folder and reads all of its files once, to see that each byte is as it was written.
    ///
    /// # Errors
    /// The folder holds none, one of another version, or a damaged one: the error names the file.
    pub fn open(folder: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let folder = folder.as_ref().to_owned();
        check_directory(&folder)?;
        let path = folder.join(MANIFEST);
        let text = read_manifest(&path)?;
        check_header(&path, &text)?;
        let sums = sums::Sums::read(&folder)?;
        sums.check_bytes(MANIFEST, &text)?;
        let damaged = |reason| CheckpointError::Damaged { path: path.clone(), reason };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        manifest.check().map_err(damaged)?;
        sums.check_files(&[&manifest.files[..], &manifest.model_files].concat())?;
        Ok(Checkpoint { folder, manifest })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the published model that the run is of, without weights: `config.json`, tokenizer and so on.
    pub fn model_folder(&self) -> Option<PathBuf> {
        (!self.manifest.model_files.is_empty()).then(|| self.folder.join(MODEL))
    }

    /// The run and the place in it.
    pub fn about(&self) -> &About {
        &self.manifest.about
    }

    /// The paths of values that have numbers which are not finite: a run that goes on from them cannot.
    pub fn not_finite(&self) -> &[String] {
        &self.manifest.not_finite
    }

    /// Whether it has parameters without the state of a run, as of a model that was imported.
    pub fn has_parameters_alone(&self) -> bool {
        self.about().step == 0 && self.manifest.leaves.iter().all(|leaf| leaf.path.starts_with(PARAMS))
    }

    /// The data that the run read; empty if it is not known.
    pub(crate) fn data_digests(&self) -> &[DataDigest] {
        &self.manifest.data_digests
    }

    /// The values: path and type, of all layers together.
    pub fn values(&self) -> impl Iterator<Item = (&str, TensorType)> {
        self.manifest.leaves.iter().filter_map(|leaf| Some((leaf.path.as_str(), leaf.ty()?)))
    }

    /// Bytes of all files with values.
    pub fn byte_count(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }

    /// Checks that it has the values of a state, of its types, and no others.
    ///
    /// # Errors
    /// The first that is missing or of another type, or all that are too many.
    pub fn check<T: Tree<Leaf = Param>>(&self, declared: &T) -> Result<(), CheckpointError> {
        if self.has_parameters_alone() {
            return Err(CheckpointError::ParametersAlone(self.folder.clone()));
        }
        let leaves = form::leaves(declared, "")?;
        leaves.iter().try_for_each(|leaf| self.stored(leaf).map(|_| ()))?;
        let known: HashSet<&str> = leaves.iter().map(|leaf| leaf.path.as_str()).collect();
        let all = self.manifest.leaves.iter().map(|leaf| leaf.path.clone());
        let mut paths: Vec<String> = all.filter(|path| !known.contains(path.as_str())).collect();
        if paths.is_empty() {
            return Ok(());
        }
        paths.sort();
        Err(CheckpointError::Unexpected { folder: self.folder.clone(), paths })
    }

    /// Reads a state onto devices: `specs` are the types and layouts of the leaves, `devices` those of the layouts'
    /// boxes. The host reads one device's part at a time and holds no more than that.
    ///
    /// # Errors
    /// As [`Checkpoint::check`], except for surplus values; a file cannot be read; or the plugin fails.
    pub fn load<T: Tree<Leaf = Param>>(
        &self,
        declared: &T,
        specs: &[ArraySpec],
        client: &Client,
        devices: &[usize],
    ) -> Result<Vec<Array>, CheckpointError> {
        let leaves = form::leaves(declared, "")?;
        if leaves.len() > specs.len() {
            return Err(CheckpointError::Count { expected: leaves.len(), found: specs.len() });
        }
        let load = |(leaf, ArraySpec { layout, .. }): (&RunLeaf, &ArraySpec)| {
            let stored = self.stored(leaf)?;
            let part = |index| self.read_part(leaf, stored, layout, index);
            Array::put_parts(client, leaf.own_ty.clone(), layout, devices, part)
        };
        leaves.iter().zip(specs).map(load).collect()
    }

    /// Reads values to the host. `prefix` is what their paths in the checkpoint have before those declared: `params.`
    /// for parameters alone.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    pub fn load_on_host<T>(
        &self,
        declared: &T,
        prefix: &str,
    ) -> Result<<T as MapTree<Literal>>::Mapped, CheckpointError>
    where
        T: Tree<Leaf = Param> + MapTree<Literal>,
    {
        let leaves = form::leaves(declared, prefix)?;
        let whole = |leaf: &RunLeaf| {
            let layout = ShardLayout::replicated(&leaf.own_ty.dims, 1);
            self.read_part(leaf, self.stored(leaf)?, &layout, 0)
        };
        let literals = leaves.iter().map(whole).collect::<Result<Vec<_>, _>>()?;
        let found = literals.len();
        declared.fill(literals).map_err(|error| CheckpointError::Count { expected: error.expected, found })
    }

    /// The parameters of a model, of several replicas those that they agree on, as far as they are stored most
    /// precisely: as master copies, where there are any.
    ///
    /// # Errors
    /// One is missing, or of other dimensions, or no floating-point numbers where such are declared.
    pub(crate) fn parameters(
        &self,
        declared: &impl Tree<Leaf = Param>,
    ) -> Result<ParameterLeaves<'_>, CheckpointError> {
        let stored = |path: &str| self.manifest.leaves.iter().find(|stored| stored.path == path);
        let has_replicas = self.manifest.leaves.iter().any(|leaf| leaf.path.starts_with(OUTER_PARAMS));
        let prefixes: &[&str] = if has_replicas { &[OUTER_PARAMS] } else { &["master.", "params."] };
        let mut leaves = Vec::new();
        for (own_path, mut leaf) in declared.paths().into_iter().zip(form::leaves(declared, "")?) {
            let mut paths = prefixes.iter().map(|prefix| format!("{prefix}{}", leaf.path));
            let found = paths.find(|path| stored(path).is_some());
            // If no value is stored, the path with the last prefix is the one that is missing.
            leaf.path = found.unwrap_or_else(|| format!("{}{}", prefixes[prefixes.len() - 1], leaf.path));
            let ty = stored(&leaf.path).and_then(StoredLeaf::ty);
            if let Some(ty) = ty.filter(|ty| ty.dtype.is_float() && leaf.ty.dtype.is_float()) {
                (leaf.ty.dtype, leaf.own_ty.dtype) = (ty.dtype, ty.dtype);
            }
            let stored = self.stored(&leaf)?;
            leaves.push((own_path, leaf, stored));
        }
        Ok(ParameterLeaves { checkpoint: self, leaves })
    }

    /// The value that a leaf is, which must be of its type.
    fn stored(&self, leaf: &RunLeaf) -> Result<&StoredLeaf, CheckpointError> {
        let (folder, path) = (self.folder.clone(), leaf.path.clone());
        let Some(stored) = self.manifest.leaves.iter().find(|stored| stored.path == leaf.path) else {
            let suggestion = did_you_mean(&path, self.manifest.leaves.iter().map(|leaf| leaf.path.as_str()));
            return Err(CheckpointError::Missing { folder, path, suggestion });
        };
        let (expected, found) = (leaf.replicas(), stored.replicas());
        if expected != found {
            return Err(CheckpointError::Replicas { folder, path, expected, found });
        }
        match stored.ty() {
            Some(found) if found != leaf.ty => {
                Err(CheckpointError::Type { folder, path, expected: Box::new(leaf.ty.clone()), found: Box::new(found) })
            }
            _ => Ok(stored),
        }
    }

    /// Reads what a device holds of a leaf, with zeros where that is padded.
    fn read_part(
        &self,
        leaf: &RunLeaf,
        stored: &StoredLeaf,
        layout: &ShardLayout,
        device: usize,
    ) -> Result<Literal, CheckpointError> {
        let view = leaf.view(layout, device);
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, view.byte_count()).collect();
        // The allocation is new, so nothing else refers to it yet.
        let target = Arc::get_mut(&mut bytes).unwrap_or_default();
        for segment in leaf.segments(layout, device) {
            for piece in &stored.pieces {
                if let Some(copy) = Copy::between(piece, &segment, &view) {
                    let path = self.folder.join(&self.manifest.files[piece.file].name);
                    copy.read(&path, piece.offset, &view, target)
                        .map_err(|source| CheckpointError::Read { path, source })?;
                }
            }
        }
        if view.dtype == DType::Pred {
            // A literal's are 0 or 1, whatever is there.
            target.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        let ty = layout.local_type(view.dtype, device).unwrap_or(view);
        Literal::from_bytes(ty.clone(), bytes).map_err(|_| CheckpointError::Damaged {
            path: self.folder.join(MANIFEST),
            reason: format!("{} is not of the size of {ty}", leaf.path),
        })
    }
}

/// The parameters of a model in a checkpoint, by their paths in the model.
pub(crate) struct ParameterLeaves<'a> {
    checkpoint: &'a Checkpoint,
    leaves: Vec<(String, RunLeaf, &'a StoredLeaf)>,
}

impl ParameterLeaves<'_> {
    pub(crate) fn dtype(&self, path: &str) -> Option<DType> {
        let found = self.leaves.iter().find(|(own, ..)| own == path);
        found.map(|(_, leaf, _)| leaf.own_ty.dtype)
    }

    /// A box of a parameter of these dimensions, in the type that it is stored in.
    pub(crate) fn read_part(
        &self,
        path: &str,
        dims: &[usize],
        shard: &[Range<usize>],
    ) -> Result<Literal, CheckpointError> {
        let folder = self.checkpoint.folder.clone();
        let Some((_, leaf, stored)) = self.leaves.iter().find(|(own, ..)| own == path) else {
            return Err(CheckpointError::Missing { folder, path: path.to_owned(), suggestion: String::new() });
        };
        let layout = ShardLayout::from_boxes(dims, vec![shard.to_vec()])?;
        self.checkpoint.read_part(leaf, stored, &layout, 0)
    }
}

/// The intersection of a piece and a part of a device's value.
struct Copy {
    piece: TensorType,
    from: ShardBox,
    to: ShardBox,
}

impl Copy {
    fn between(piece: &StoredPiece, segment: &Segment, view: &TensorType) -> Option<Copy> {
        let (held, wanted) = (piece.shard(), &segment.stored);
        let common: ShardBox =
            held.iter().zip(wanted).map(|(left, right)| left.start.max(right.start)..left.end.min(right.end)).collect();
        if common.iter().any(Range::is_empty) {
            return None;
        }
        let moved = |(common, (base, start)): (&Range<usize>, (&Range<usize>, usize))| {
            common.start - base.start + start..common.end - base.start + start
        };
        let starts = segment.local.iter().map(|range| range.start);
        Some(Copy {
            piece: TensorType::new(view.dtype, &piece.dims),
            from: common.iter().zip(held.iter().map(|base| (base, 0))).map(moved).collect(),
            to: common.iter().zip(wanted.iter().zip(starts)).map(moved).collect(),
        })
    }

    /// Reads it from the piece that begins at `offset` of a file.
    fn read(&self, path: &Path, offset: u64, view: &TensorType, target: &mut [u8]) -> io::Result<()> {
        let mut file = BufReader::with_capacity(BUFFER_BYTES, files::open(path)?);
        file.seek(SeekFrom::Start(offset))?;
        let mut position = 0;
        for (from, to) in shared_runs((&self.piece, &self.from), (view, &self.to)) {
            file.seek_relative((from.start - position) as i64)?;
            file.read_exact(&mut target[to])?;
            position = from.end;
        }
        Ok(())
    }
}

fn check_directory(path: &Path) -> Result<(), CheckpointError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            Err(CheckpointError::Foreign { path: path.to_owned(), reason: "it is a file, not a folder".to_owned() })
        }
        Err(source) => Err(CheckpointError::Read { path: path.to_owned(), source }),
    }
}

/// Checks the part of a manifest that is the same in all versions.
fn check_header(path: &Path, text: &[u8]) -> Result<(), CheckpointError> {
    let path = path.to_owned();
    match serde_json::from_slice::<Header>(text) {
        Err(error) => Err(CheckpointError::Foreign { path, reason: error.to_string() }),
        Ok(header) if header.format != FORMAT => {
            let reason = format!("its format is {:?}, not {FORMAT:?}", header.format);
            Err(CheckpointError::Foreign { path, reason })
        }
        Ok(header) if header.version != VERSION => {
            Err(CheckpointError::Version { path, found: header.version, expected: VERSION })
        }
        Ok(_) => Ok(()),
    }
}
