//! The part of a global value that each device holds, and functions that copy such parts.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::PjrtError;
use meshloom_hlo::{DType, Dims, TensorType};

/// A box of a global value: one range for each dimension.
pub type ShardBox = Vec<Range<usize>>;

/// For each device, in the order of an executable's devices, the box of the global value that it holds. Devices with
/// equal boxes hold copies. Where some of the devices are other processes', it knows which are this one's. Cloning
/// shares the boxes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardLayout {
    dims: Dims,
    /// The value's own dimensions, where those above are padded.
    value_dims: Option<Dims>,
    boxes: Arc<[ShardBox]>,
    /// The devices of this process, in order, where there are others.
    own: Option<Arc<[usize]>>,
}

impl ShardLayout {
    /// Every device holds the whole value of these global dimensions.
    pub fn replicated(dims: &[usize], device_count: usize) -> ShardLayout {
        let whole: ShardBox = dims.iter().map(|&size| 0..size).collect();
        ShardLayout {
            dims: Dims::from_slice(dims),
            value_dims: None,
            boxes: vec![whole; device_count].into(),
            own: None,
        }
    }

    /// One box for each device, each within the global dimensions.
    pub fn from_boxes(dims: &[usize], boxes: Vec<ShardBox>) -> Result<ShardLayout, PjrtError> {
        let invalid = |reason| Err(PjrtError::Layout { reason });
        for (device, shard) in boxes.iter().enumerate() {
            if shard.len() != dims.len() {
                return invalid(format!(
                    "the box of device {device} has {} ranges, expected {}",
                    shard.len(),
                    dims.len()
                ));
            }
            for (dim, (range, &size)) in shard.iter().zip(dims).enumerate() {
                if range.start > range.end || range.end > size {
                    return invalid(format!(
                        "the box of device {device} has {range:?} in dimension {dim}, expected a range within 0..{size}"
                    ));
                }
            }
        }
        Ok(ShardLayout { dims: Dims::from_slice(dims), value_dims: None, boxes: boxes.into(), own: None })
    }

    /// The same layout for values no larger than its dimensions. Missing elements at the end of a dimension are padded
    /// with zeros when values are put on devices, and cut off when they are read.
    ///
    /// # Errors
    /// The values are larger, or of another rank.
    pub fn with_value_dims(mut self, dims: &[usize]) -> Result<ShardLayout, PjrtError> {
        if dims.len() != self.dims.len() || dims.iter().zip(&self.dims).any(|(own, padded)| own > padded) {
            let reason = format!("values of dimensions {dims:?} do not fit into {:?}", self.dims);
            return Err(PjrtError::Layout { reason });
        }
        self.value_dims = (dims != &self.dims[..]).then(|| Dims::from_slice(dims));
        Ok(self)
    }

    /// The same layout in a process that has only these of its devices, in ascending order.
    ///
    /// # Errors
    /// There are no such devices, or they are in another order.
    pub fn with_own(mut self, own: &[usize]) -> Result<ShardLayout, PjrtError> {
        let in_order = own.is_sorted_by(|left, right| left < right);
        if !in_order || own.last().is_some_and(|&last| last >= self.boxes.len()) {
            let reason = format!("a process cannot have the devices {own:?} of {}", self.boxes.len());
            return Err(PjrtError::Layout { reason });
        }
        self.own = (own.len() < self.boxes.len()).then(|| own.into());
        Ok(self)
    }

    /// The same layout, as if this process had all devices.
    #[must_use]
    pub fn of_all(mut self) -> ShardLayout {
        self.own = None;
        self
    }

    /// The devices of this process, in order.
    pub fn own_devices(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        let count = self.own.as_ref().map_or(self.boxes.len(), |own| own.len());
        (0..count).map(|index| self.own.as_ref().map_or(index, |own| own[index]))
    }

    /// The index of a device among those of this process; `None` for a device of another process.
    pub fn own_index(&self, device: usize) -> Option<usize> {
        match &self.own {
            None => (device < self.boxes.len()).then_some(device),
            Some(own) => own.binary_search(&device).ok(),
        }
    }

    /// The global dimensions, padded.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The dimensions of the values.
    pub fn value_dims(&self) -> &[usize] {
        self.value_dims.as_ref().unwrap_or(&self.dims)
    }

    /// The box of the values within the padded dimensions; none where nothing is padded.
    pub(super) fn value_box(&self) -> Option<ShardBox> {
        self.value_dims.as_ref().map(|dims| dims.iter().map(|&size| 0..size).collect())
    }

    /// The box of each device.
    pub fn boxes(&self) -> &[ShardBox] {
        &self.boxes
    }

    /// The part of the box with this index that holds values: the box without its padding.
    pub fn value_part(&self, index: usize) -> ShardBox {
        let clip = |(range, &size): (&Range<usize>, &usize)| range.start.min(size)..range.end.min(size);
        self.boxes[index].iter().zip(self.value_dims()).map(clip).collect()
    }

    /// The number of devices that hold a part.
    pub fn device_count(&self) -> usize {
        self.boxes.len()
    }

    /// The type of the part that a device holds; `None` if there is no such device.
    pub fn local_type(&self, dtype: DType, device: usize) -> Option<TensorType> {
        self.boxes.get(device).map(|shard| box_type(dtype, shard))
    }

    /// Whether every device holds the whole value.
    pub fn is_replicated(&self) -> bool {
        self.boxes.iter().all(|shard| self.is_whole(shard))
    }

    fn is_whole(&self, shard: &ShardBox) -> bool {
        shard.iter().zip(&self.dims).all(|(range, &size)| *range == (0..size))
    }

    /// The first of this process's devices of each distinct box that is not empty, which is what must be read to have
    /// the whole value.
    ///
    /// # Errors
    /// When the boxes do not cover the value, or two of them overlap without being equal.
    pub fn covering_devices(&self) -> Result<Vec<usize>, PjrtError> {
        let mut seen = HashSet::new();
        let holds_something = |shard: &ShardBox| shard.iter().all(|range| !range.is_empty());
        let devices: Vec<usize> =
            self.own_devices().filter(|&d| holds_something(&self.boxes[d]) && seen.insert(&self.boxes[d])).collect();
        let covered: usize = devices.iter().map(|&device| volume(&self.boxes[device])).sum();
        let total: usize = self.dims.iter().product();
        if covered < total {
            let whose = if self.own.is_some() { "this process's shards" } else { "the shards" };
            let reason = format!("{whose} hold {covered} of the {total} elements of the value");
            return Err(PjrtError::Layout { reason });
        }
        // Shardings cut each dimension at the same places everywhere, so nearly always no box contains a cut of
        // another, and then distinct boxes cannot overlap; equal volume is coverage. Only odd layouts are compared box
        // by box.
        if covered > total || !self.is_grid(&devices) {
            for (position, &first) in devices.iter().enumerate() {
                for &second in &devices[position + 1..] {
                    if overlap(&self.boxes[first], &self.boxes[second]) {
                        let reason = format!("the boxes of devices {first} and {second} overlap but are not equal");
                        return Err(PjrtError::Layout { reason });
                    }
                }
            }
        }
        Ok(devices)
    }

    fn is_grid(&self, devices: &[usize]) -> bool {
        (0..self.dims.len()).all(|dim| {
            let ranges: BTreeSet<_> =
                devices.iter().map(|&device| (self.boxes[device][dim].start, self.boxes[device][dim].end)).collect();
            ranges.iter().zip(ranges.iter().skip(1)).all(|(left, right)| left.1 <= right.0)
        })
    }
}

/// The type of the part in a box.
pub(super) fn box_type(dtype: DType, shard: &[Range<usize>]) -> TensorType {
    TensorType { dtype, dims: shard.iter().map(ExactSizeIterator::len).collect() }
}

fn volume(shard: &[Range<usize>]) -> usize {
    shard.iter().map(ExactSizeIterator::len).product()
}

fn overlap(left: &ShardBox, right: &ShardBox) -> bool {
    left.iter().zip(right).all(|(left, right)| left.start < right.end && right.start < left.end)
}

/// Copies a box out of a dense global value.
pub(super) fn copy_out(global: &[u8], ty: &TensorType, shard: &ShardBox) -> Vec<u8> {
    let mut local = Vec::with_capacity(volume(shard) * ty.dtype.byte_count());
    runs(ty, shard).for_each(|run| local.extend_from_slice(&global[run]));
    local
}

/// Copies a dense box into a dense global value.
pub(super) fn copy_in(global: &mut [u8], ty: &TensorType, shard: &ShardBox, local: &[u8]) {
    let mut rest = local;
    runs(ty, shard).for_each(|run| {
        let (bytes, after) = rest.split_at(run.len());
        global[run].copy_from_slice(bytes);
        rest = after;
    });
}

/// The longest contiguous byte ranges of a box in a row-major value, in the order of the box's own elements.
pub fn runs<'a>(ty: &TensorType, shard: &'a [Range<usize>]) -> Runs<'a> {
    Runs::new(ty, shard, first_run_dim(ty, shard))
}

/// The first dimension whose indices lie next to one another in a box, with all that follow: those that the box spans
/// whole, and the one before them.
fn first_run_dim(ty: &TensorType, shard: &[Range<usize>]) -> usize {
    let mut dim = shard.len();
    while dim > 0 && shard[dim - 1] == (0..ty.dims[dim - 1]) {
        dim -= 1;
    }
    dim.saturating_sub(1)
}

/// Byte ranges of a box in one dense value and of a box of the same size in another, pairwise, as long as both are
/// contiguous: what to copy from the first to the second. Both are of the same element type.
pub fn shared_runs(
    (from, from_box): (&TensorType, &[Range<usize>]),
    (to, to_box): (&TensorType, &[Range<usize>]),
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let dim = first_run_dim(from, from_box).max(first_run_dim(to, to_box));
    Runs::new(from, from_box, dim).zip(Runs::new(to, to_box, dim))
}

/// The byte ranges of a box in a row-major value, one for each index of the dimensions before `outer`.
pub struct Runs<'a> {
    shard: &'a [Range<usize>],
    /// Bytes from one index to the next, for each dimension.
    strides: SmallVec<[usize; 8]>,
    length: usize,
    index: SmallVec<[usize; 8]>,
    /// Where the next run begins.
    next: Option<usize>,
}

impl<'a> Runs<'a> {
    fn new(ty: &TensorType, shard: &'a [Range<usize>], outer: usize) -> Runs<'a> {
        let rank = ty.dims.len();
        let mut strides = SmallVec::from_elem(ty.dtype.byte_count(), rank);
        for dim in (1..rank).rev() {
            strides[dim - 1] = strides[dim] * ty.dims[dim];
        }
        let length = match shard.get(outer) {
            Some(range) => range.len() * strides[outer],
            None => ty.dtype.byte_count(),
        };
        let start = shard.iter().zip(&strides).map(|(range, stride)| range.start * stride).sum();
        let next = (volume(shard) > 0).then_some(start);
        Runs { shard, strides, length, index: SmallVec::from_elem(0, outer), next }
    }

    /// Where the run after the one at `offset` begins.
    fn after(&mut self, mut offset: usize) -> Option<usize> {
        for dim in (0..self.index.len()).rev() {
            self.index[dim] += 1;
            offset += self.strides[dim];
            if self.index[dim] < self.shard[dim].len() {
                return Some(offset);
            }
            offset -= self.index[dim] * self.strides[dim];
            self.index[dim] = 0;
        }
        None
    }
}

impl Iterator for Runs<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let start = self.next?;
        self.next = self.after(start);
        Some(start..start + self.length)
    }
}
