//! Writing a checkpoint: files, manifest and checksums into an unfinished folder, which then gets its name.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::folder::{Directory, Observer, failed, nobody, sync_folder};
use super::manifest::{About, Manifest, StoredFile, StoredLeaf};
use super::snapshot::{FilePieces, Piece, Snapshot};
use super::{CheckpointError, FORMAT, MANIFEST, Phase, SUMS, VERSION};
use crate::data::{DataDigest, Hashing, hex};
use crate::model_folder::MODEL;
use crate::peers::Peers;
use meshloom::hlo::all_finite;
use meshloom::pjrt::runs;
use meshloom_models::parameters::stored_dtype;
use meshloom_models::published::{ModelFile, ModelFiles};
use meshloom_models::weights::arrange;

/// The number of bytes that are handed to the system at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The contents of a checkpoint besides its values.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub about: About,
    pub digests: Vec<DataDigest>,
    pub model: ModelFiles,
}

impl Contents {
    /// The contents of a checkpoint without data and without files of a model.
    pub(super) fn of(about: About) -> Contents {
        Contents { about, digests: Vec::new(), model: ModelFiles::default() }
    }
}

/// Writes a checkpoint. It gets the name of a checkpoint only when all of it is on disk; the path is that name.
///
/// The processes of a run write it together, each its own part, in a directory that they share. The first makes the
/// folder and gives it its name.
pub(super) fn write(
    directory: &Directory,
    contents: Contents,
    snapshot: Snapshot,
    (tell, peers): (&Observer, Option<&dyn Peers>),
) -> Result<PathBuf, CheckpointError> {
    let step = contents.about.step;
    let number = peers.map_or(0, Peers::number);
    let meet = |what: &str| {
        let name = directory.path().file_name().unwrap_or_default().to_string_lossy();
        let barrier = |peers: &dyn Peers| peers.barrier(&format!("the checkpoint of step {step} in {name} is {what}"));
        peers.map_or(Ok(()), barrier).map_err(CheckpointError::from)
    };
    let unfinished = if number == 0 { directory.start(step)? } else { directory.unfinished(step) };
    if number == 0 {
        tell(Phase::FolderMade);
    }
    let complete = |mut values: Values| {
        meet("written")?;
        for other in 1..peers.map_or(1, Peers::count) {
            values.merge(Values::told(&unfinished, other)?);
        }
        fill(&unfinished, contents, values, tell)?;
        directory.complete(&unfinished, step, tell)
    };
    meet("begun")?;
    if number > 0 {
        if !unfinished.is_dir() {
            return Err(CheckpointError::NotShared(unfinished));
        }
        write_values(&unfinished, snapshot, tell)?.tell(&unfinished, number)?;
        meet("written")?;
        return Ok(directory.complete_name(step));
    }
    let written = write_values(&unfinished, snapshot, tell).and_then(complete);
    if written.is_err() {
        // The first error is the one to report. If the folder cannot be deleted now, the next run deletes it.
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    written
}

/// The values that a process has written.
#[derive(Debug, Serialize, Deserialize)]
struct Values {
    leaves: Vec<StoredLeaf>,
    /// Each with its number and its line in the list of checksums.
    files: Vec<(usize, StoredFile, String)>,
    /// The paths of leaves with numbers that are not finite.
    not_finite: BTreeSet<String>,
}

impl Values {
    fn place(folder: &Path, number: usize) -> PathBuf {
        folder.join(format!("{PART}{number}.json"))
    }

    /// Leaves it in the folder for the process that finishes the checkpoint.
    fn tell(&self, folder: &Path, number: usize) -> Result<(), CheckpointError> {
        let path = Values::place(folder, number);
        let text = serde_json::to_vec(self).map_err(|error| failed("write", &path, error.into()))?;
        HashedFile::whole(&path, "", &text, &nobody()).map(drop)
    }

    /// Takes what another process has left.
    fn told(folder: &Path, number: usize) -> Result<Values, CheckpointError> {
        let path = Values::place(folder, number);
        let text = std::fs::read(&path).map_err(|source| CheckpointError::Read { path: path.clone(), source })?;
        let values = serde_json::from_slice(&text)
            .map_err(|error| CheckpointError::Damaged { path: path.clone(), reason: error.to_string() })?;
        std::fs::remove_file(&path).map_err(|source| failed("delete", &path, source))?;
        Ok(values)
    }

    /// Adds what another process has written of the same leaves.
    fn merge(&mut self, other: Values) {
        for (own, other) in self.leaves.iter_mut().zip(other.leaves) {
            own.pieces.extend(other.pieces);
        }
        self.not_finite.extend(other.not_finite);
        self.files.extend(other.files);
        self.files.sort_by_key(|(number, ..)| *number);
    }
}

/// The prefix of the files in which processes report what they have written.
const PART: &str = ".part-";

/// Writes the files of values and waits until they are on the disk.
fn write_values(folder: &Path, snapshot: Snapshot, tell: &Observer) -> Result<Values, CheckpointError> {
    let Snapshot { mut leaves, files, file_count } = snapshot;
    let (mut stored, mut not_finite) = (Vec::new(), BTreeSet::new());
    for FilePieces { file: number, pieces } in files {
        let name = format!("shard-{number:05}-of-{file_count:05}.safetensors");
        let mut file = HashedFile::create(&folder.join(&name))?;
        for (leaf, piece, is_finite) in write_pieces(&mut file, pieces, number, |piece| &leaves[piece.leaf].path)? {
            leaves[leaf].pieces.push(piece);
            if !is_finite {
                not_finite.insert(leaves[leaf].path.clone());
            }
        }
        let bytes = file.bytes;
        let sum = file.finish(&name, tell)?;
        stored.push((number, StoredFile { name, bytes }, sum));
    }
    Ok(Values { leaves, files: stored, not_finite })
}

/// Writes the files other than those of values into a folder and waits until they are on the disk.
fn fill(
    folder: &Path,
    Contents { about, digests, model }: Contents,
    Values { leaves, files, not_finite }: Values,
    tell: &Observer,
) -> Result<(), CheckpointError> {
    let (mut stored, mut sums) = (Vec::new(), String::new());
    for (_, file, sum) in files {
        stored.push(file);
        sums += &sum;
    }
    let of_model = write_model_files(folder, &model, &mut sums, tell)?;
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        version: VERSION,
        meshloom: env!("CARGO_PKG_VERSION").to_owned(),
        about,
        data_digests: digests,
        model_files: of_model,
        files: stored,
        leaves,
        not_finite: not_finite.into_iter().collect(),
    };
    let text =
        serde_json::to_vec_pretty(&manifest).map_err(|error| failed("write", &folder.join(MANIFEST), error.into()))?;
    sums += &HashedFile::whole(&folder.join(MANIFEST), MANIFEST, &text, tell)?;
    HashedFile::whole(&folder.join(SUMS), SUMS, sums.as_bytes(), tell)?;
    sync_folder(folder)?;
    tell(Phase::FolderSynced);
    Ok(())
}

fn write_model_files(
    folder: &Path,
    model: &ModelFiles,
    sums: &mut String,
    tell: &Observer,
) -> Result<Vec<StoredFile>, CheckpointError> {
    let own = folder.join(MODEL);
    let mut stored = Vec::new();
    for ModelFile { name, bytes } in model.iter() {
        if stored.is_empty() {
            std::fs::create_dir(&own).map_err(|source| failed("create", &own, source))?;
        }
        let name = format!("{MODEL}/{name}");
        *sums += &HashedFile::whole(&folder.join(&name), &name, bytes, tell)?;
        stored.push(StoredFile { bytes: bytes.len() as u64, name });
    }
    if !stored.is_empty() {
        sync_folder(&own)?;
    }
    Ok(stored)
}

/// Writes a safetensors file. Returns where each piece is, with the index of its leaf, and whether its numbers are
/// finite.
fn write_pieces<'a>(
    file: &mut HashedFile,
    pieces: Vec<Piece>,
    index: usize,
    path: impl Fn(&Piece) -> &'a String,
) -> Result<Vec<(usize, super::manifest::StoredPiece, bool)>, CheckpointError> {
    let named = pieces.into_iter().filter_map(|piece| {
        let name = format!("{}{}", path(&piece), describe(&piece));
        Some((stored_dtype(piece.view.dtype)?, name, piece))
    });
    let mut named: Vec<(Dtype, String, Piece)> = named.collect();
    let too_long = || failed("write", &file.path, io::Error::other("the paths are too long for a file"));
    let header = arrange(&mut named, Piece::ty).ok_or_else(too_long)?;
    file.write(&header)?;
    let mut placed = Vec::with_capacity(named.len());
    for (_, _, piece) in named {
        let start = piece.stored(index, file.bytes);
        let values = (piece.held)()?;
        let mut is_finite = true;
        for run in runs(&piece.view, &piece.segment.local) {
            let bytes = &values.bytes()[run];
            is_finite &= all_finite(piece.view.dtype, bytes);
            file.write(bytes)?;
        }
        placed.push((piece.leaf, start, is_finite));
    }
    Ok(placed)
}

/// A box as text: `[0:2,8:16]`.
fn describe(piece: &Piece) -> String {
    let ranges: Vec<String> =
        piece.segment.stored.iter().map(|range| format!("{}:{}", range.start, range.end)).collect();
    format!("[{}]", ranges.join(","))
}

/// A file whose bytes are hashed on their way.
struct HashedFile {
    path: PathBuf,
    out: BufWriter<Hashing<File>>,
    bytes: u64,
}

impl HashedFile {
    fn create(path: &Path) -> Result<HashedFile, CheckpointError> {
        let file = File::create_new(path).map_err(|source| failed("create", path, source))?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, Hashing { to: file, hash: Sha256::new() });
        Ok(HashedFile { path: path.to_owned(), out, bytes: 0 })
    }

    /// Writes a file and waits until it is on the disk. Returns its line in the list of checksums.
    fn whole(path: &Path, name: &str, bytes: &[u8], tell: &Observer) -> Result<String, CheckpointError> {
        let mut file = HashedFile::create(path)?;
        file.write(bytes)?;
        file.finish(name, tell)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|source| failed("write", &self.path, source))
    }

    /// Waits until the file is on the disk. Returns its line in the list of checksums.
    fn finish(self, name: &str, tell: &Observer) -> Result<String, CheckpointError> {
        let HashedFile { path, out, .. } = self;
        let Hashing { to: file, hash } =
            out.into_inner().map_err(|error| failed("write", &path, error.into_error()))?;
        tell(Phase::FileWritten);
        file.sync_all().map_err(|source| failed("sync", &path, source))?;
        tell(Phase::FileSynced);
        Ok(format!("{}  {name}\n", hex(&hash.finalize())))
    }
}
