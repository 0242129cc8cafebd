//! Folders of weights, made without the writer under test, and random numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use meshloom_models::weights::{FP8_BLOCK, Weights, WeightsError};
use safetensors::{Dtype, View};
use tempfile::TempDir;

/// A tensor with its bytes.
#[derive(Clone)]
pub struct Raw {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Raw {
    /// A tensor of random bytes.
    pub fn random(dtype: Dtype, shape: &[usize], random: &mut Random) -> Raw {
        let count = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Raw { dtype, shape: shape.to_vec(), bytes: (0..count).map(|_| random.below(256) as u8).collect() }
    }

    /// A tensor of F32.
    pub fn numbers(shape: &[usize], numbers: &[f32]) -> Raw {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Raw { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }
}

impl View for &Raw {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (&self.bytes).into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A file as the `safetensors` crate writes it.
pub fn serialized(tensors: &[(&str, &Raw)]) -> Vec<u8> {
    safetensors::serialize(tensors.iter().copied(), None).unwrap()
}

/// A file with a header and data.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

/// An index of tensors and their files.
pub fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let map: BTreeMap<_, _> = map.iter().copied().collect();
    serde_json::to_vec(&serde_json::json!({"metadata": {}, "weight_map": map})).unwrap()
}

/// A folder of files.
pub fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// The weights of a folder with one file.
pub fn weights(tensors: &[(&str, &Raw)]) -> (TempDir, Weights) {
    let folder = folder(&[("model.safetensors", serialized(tensors))]);
    let weights = open(folder.path()).unwrap();
    (folder, weights)
}

pub fn open(folder: &Path) -> Result<Weights, WeightsError> {
    Weights::open(folder, FP8_BLOCK)
}

/// The message of an error, without the path of the folder.
pub fn message<T>(folder: &Path, result: Result<T, WeightsError>) -> String {
    let error = result.err().expect("this is refused");
    let said = error.to_string();
    assert!(format!("{error:?}").starts_with(&said), "the message is what is printed");
    said.replace(&format!("{}/", folder.display()), "").replace(&folder.display().to_string(), "FOLDER")
}

/// Random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A box in a shape. Some are empty, some the whole of a dimension.
    pub fn region(&mut self, shape: &[usize]) -> Vec<Range<usize>> {
        let mut range = |size: usize| {
            let (a, b) = (self.below(size + 1), self.below(size + 1));
            if self.below(3) == 0 { 0..size } else { a.min(b)..a.max(b) }
        };
        shape.iter().map(|size| range(*size)).collect()
    }
}

/// The elements of a box of a tensor, taken one by one.
pub fn cut<T: Copy>(all: &[T], shape: &[usize], region: &[Range<usize>]) -> Vec<T> {
    let count: usize = region.iter().map(Range::len).product();
    let mut cut = Vec::with_capacity(count);
    for number in 0..count {
        let (mut rest, mut stride, mut position) = (number, 1, 0);
        for (range, size) in region.iter().zip(shape).rev() {
            position += (range.start + rest % range.len()) * stride;
            (rest, stride) = (rest / range.len(), stride * size);
        }
        cut.push(all[position]);
    }
    cut
}

/// The bits of numbers, to compare NaN as well.
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits() }).collect()
}
