//! The values of a checkpoint, cut into what goes into each file: copied from devices before, or read one by one while
//! they are written.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::CheckpointError;
use super::form::{RunLeaf, Segment};
use super::manifest::{StoredLeaf, StoredPiece};
use meshloom::ir::{Literal, TensorType};
use meshloom::pjrt::{Array, HostCopy, ShardLayout};
use meshloom_models::parameters::stored_dtype;

/// The values of a state. Each part is there once.
pub(super) struct Snapshot {
    /// The leaves; their pieces are not placed yet.
    pub leaves: Vec<StoredLeaf>,
    /// The files that this process writes.
    pub files: Vec<FilePieces>,
    /// The number of files, over all processes.
    pub file_count: usize,
}

pub(super) struct FilePieces {
    pub file: usize,
    pub pieces: Vec<Piece>,
}

/// A box of a value, within what a device held.
pub(super) struct Piece {
    pub leaf: usize,
    /// Its box in the value and in the bytes.
    pub segment: Segment,
    /// The type by which the bytes are arranged.
    pub view: TensorType,
    /// Reads the value that it is cut out of: the part that a device held, or a whole one.
    pub held: Held,
}

/// Reads the values that a piece is cut out of: those on the host, or stored ones when they are written.
pub(super) type Held = Box<dyn Fn() -> Result<Literal, CheckpointError> + Send>;

impl Piece {
    /// Returns the place of the piece in the value and in a file.
    pub(super) fn stored(&self, file: usize, offset: u64) -> StoredPiece {
        let ranges = self.segment.stored.iter();
        let (start, dims) = ranges.map(|range| (range.start, range.len())).unzip();
        StoredPiece { file, offset, start, dims }
    }

    pub(super) fn ty(&self) -> TensorType {
        let dims: Vec<usize> = self.segment.stored.iter().map(ExactSizeIterator::len).collect();
        TensorType::new(self.view.dtype, &dims)
    }
}

impl Snapshot {
    /// Copies the part of a state that this process holds and is to write to the host. All copies run at once, and the
    /// call waits for them. The layouts decide which process writes which part, so all processes decide alike.
    pub(super) fn take(declared: &[RunLeaf], arrays: &[Array]) -> Result<Snapshot, CheckpointError> {
        if declared.len() != arrays.len() {
            return Err(CheckpointError::Count { expected: declared.len(), found: arrays.len() });
        }
        let mut leaves = Leaves::default();
        let mut load = Vec::new();
        let mut writing = BTreeSet::new();
        let mut copies: Vec<(usize, usize, &RunLeaf, &Array, HostCopy)> = Vec::new();
        for (leaf, array) in declared.iter().zip(arrays) {
            if leaf.own_ty != *array.ty() {
                let (expected, found) = (Box::new(leaf.own_ty.clone()), Box::new(array.ty().clone()));
                return Err(CheckpointError::Declared { path: leaf.path.clone(), expected, found });
            }
            let index = leaves.add(leaf)?;
            for device in writers(array.layout(), &mut load)? {
                // A device may hold nothing but padding.
                if leaf.segments(array.layout(), device).is_empty() {
                    continue;
                }
                writing.insert(device);
                if array.layout().own_index(device).is_some() {
                    copies.push((index, device, leaf, array, array.start_copy(device)?));
                }
            }
        }
        let mut files: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
        for (index, device, leaf, array, copy) in copies {
            let (held, view) = (copy.finish()?, leaf.view(array.layout(), device));
            let piece = |segment| {
                let held = held.clone();
                Piece { leaf: index, segment, view: view.clone(), held: Box::new(move || Ok(held.clone())) }
            };
            let pieces = leaf.segments(array.layout(), device).into_iter().map(piece);
            files.entry(device).or_default().extend(pieces);
        }
        let file_count = writing.len();
        let numbered = writing.into_iter().enumerate();
        let files =
            numbered.filter_map(|(file, device)| Some(FilePieces { file, pieces: files.remove(&device)? })).collect();
        Ok(Snapshot { leaves: leaves.stored, files, file_count })
    }

    /// Values that are read one by one while they are written: `read` makes of a leaf, by its number, how its whole
    /// value is read. A file has about `bytes_of_file`.
    pub(super) fn of_leaves<R>(
        declared: &[RunLeaf],
        bytes_of_file: usize,
        read: impl Fn(usize) -> R,
    ) -> Result<Snapshot, CheckpointError>
    where
        R: Fn() -> Result<Literal, CheckpointError> + Send + 'static,
    {
        let mut leaves = Leaves::default();
        let mut files = vec![Vec::new()];
        let mut bytes = 0;
        for (number, leaf) in declared.iter().enumerate() {
            let index = leaves.add(leaf)?;
            let layout = ShardLayout::replicated(&leaf.own_ty.dims, 1);
            let own_bytes = leaf.own_ty.byte_count();
            if bytes > 0 && bytes + own_bytes > bytes_of_file {
                files.push(Vec::new());
                bytes = 0;
            }
            bytes += own_bytes;
            let view = leaf.view(&layout, 0);
            let piece = |segment| Piece { leaf: index, segment, view: view.clone(), held: Box::new(read(number)) };
            let pieces = leaf.segments(&layout, 0).into_iter().map(piece);
            if let Some(file) = files.last_mut() {
                file.extend(pieces);
            }
        }
        let file_count = files.len();
        let files = files.into_iter().enumerate().map(|(file, pieces)| FilePieces { file, pieces }).collect();
        Ok(Snapshot { leaves: leaves.stored, files, file_count })
    }
}

/// The leaves so far. Layers that are apart are one.
#[derive(Default)]
struct Leaves {
    stored: Vec<StoredLeaf>,
    index: HashMap<String, usize>,
}

impl Leaves {
    fn add(&mut self, leaf: &RunLeaf) -> Result<usize, CheckpointError> {
        let dtype = leaf.ty.dtype;
        if stored_dtype(dtype).is_none() {
            return Err(CheckpointError::Unsupported { path: leaf.path.clone(), dtype });
        }
        Ok(*self.index.entry(leaf.path.clone()).or_insert_with(|| {
            self.stored.push(StoredLeaf {
                path: leaf.path.clone(),
                dtype: dtype.name().to_owned(),
                dims: leaf.ty.dims.to_vec(),
                has_replicas: leaf.has_replicas,
                pieces: Vec::new(),
            });
            self.stored.len() - 1
        }))
    }
}

/// Returns, for each distinct box, the device that has least to write so far among those that hold it. `load` is the
/// number of elements that each device has to write.
fn writers(layout: &ShardLayout, load: &mut Vec<usize>) -> Result<Vec<usize>, CheckpointError> {
    let boxes = layout.boxes();
    load.resize(load.len().max(boxes.len()), 0);
    let mut holders: HashMap<_, Vec<usize>> = HashMap::new();
    for (device, shard) in boxes.iter().enumerate() {
        holders.entry(shard).or_default().push(device);
    }
    let mut writers = Vec::new();
    for device in layout.clone().of_all().covering_devices()? {
        let of_box = holders.get(&boxes[device]).into_iter().flatten();
        let writer = of_box.copied().min_by_key(|&device| load[device]).unwrap_or(device);
        load[writer] += boxes[writer].iter().map(ExactSizeIterator::len).product::<usize>();
        writers.push(writer);
    }
    Ok(writers)
}
