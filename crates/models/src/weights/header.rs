//! The header of a safetensors file: 8 bytes with its length N (little-endian), then N bytes of JSON, which say the
//! dtype, shape and place of each tensor in the rest of the file. See
//! <https://github.com/huggingface/safetensors#format>.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use meshloom::hlo::files;
use meshloom::ir::{DType, TensorType};
use meshloom::pjrt::runs;
use safetensors::Dtype;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;
use serde::{Deserialize, Serialize};

use super::fault::{FileFault, MAX_HEADER_BYTES};
use super::json::{Entries, METADATA};

const LENGTH_BYTES: u64 = 8;

/// A tensor as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The index of its file.
    pub file: usize,
    /// Its bytes, counted from the start of the file.
    pub bytes: Range<u64>,
}

/// The description of a tensor in the header.
#[derive(Serialize, Deserialize)]
#[serde(expecting = "an object with dtype, shape and data_offsets")]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    /// The first byte and the end, counted from the end of the header.
    data_offsets: [u64; 2],
}

/// The number of bytes of a tensor, or `None` if it is not whole or too large to be counted. If it is counted, no
/// product of some of the sizes overflows.
pub(crate) fn byte_count(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    // A zero counts as one at first: the products of the other sizes are strides of boxes.
    let elements = shape.iter().try_fold(1, |product: usize, size| product.checked_mul(*size.max(&1)))?;
    let bits = u64::try_from(elements).ok()?.checked_mul(dtype.bitsize() as u64)?;
    match shape.contains(&0) {
        true => Some(0),
        false => bits.is_multiple_of(8).then_some(bits / 8),
    }
}

/// Opens a file, which is the one of this index. The tensors are in the order of their bytes, which cover the file
/// behind the header without overlaps and holes.
pub(crate) fn open(path: &Path, index: usize) -> Result<(File, Vec<Stored>), FileFault> {
    let mut file = files::open(path).map_err(FileFault::Read)?;
    let file_bytes = file.metadata().map_err(FileFault::Read)?.len();
    let Some(rest) = file_bytes.checked_sub(LENGTH_BYTES) else {
        return Err(FileFault::Empty(file_bytes));
    };
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(FileFault::Read)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(FileFault::HeaderTooLong(length));
    }
    if length > rest {
        return Err(FileFault::HeaderCut { length, rest });
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(FileFault::Read)?;
    let Entries::<Entry>(entries) = serde_json::from_slice(&text).map_err(FileFault::Header)?;

    let data = LENGTH_BYTES + length..file_bytes;
    let stored = entries.into_iter().map(|(name, entry)| entry.check(name, index, &data));
    let mut stored = stored.collect::<Result<Vec<Stored>, FileFault>>()?;
    stored.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    check_cover(&stored, &data)?;
    Ok((file, stored))
}

impl Entry {
    /// Checks what the header says of a tensor in the `data` of a file.
    fn check(self, tensor: String, file: usize, data: &Range<u64>) -> Result<Stored, FileFault> {
        let Entry { dtype: found, shape, data_offsets: [begin, end] } = self;
        let Ok(dtype) = Dtype::deserialize(IntoDeserializer::<ValueError>::into_deserializer(found.as_str())) else {
            return Err(FileFault::UnknownDtype { tensor, found });
        };
        if begin > end {
            return Err(FileFault::Reversed { tensor, begin, end });
        }
        let data_bytes = data.end - data.start;
        if end > data_bytes {
            return Err(FileFault::PastEnd { tensor, end, data_bytes });
        }
        let found = end - begin;
        match byte_count(dtype, &shape) {
            None => Err(FileFault::Uncountable { tensor, dtype, shape }),
            Some(expected) if expected != found => Err(FileFault::Size { tensor, dtype, shape, expected, found }),
            Some(_) => {
                let bytes = data.start + begin..data.start + end;
                Ok(Stored { name: tensor, dtype, shape, file, bytes })
            }
        }
    }
}

/// Checks that each byte of `data` is that of one tensor. They are sorted by their bytes.
fn check_cover(stored: &[Stored], data: &Range<u64>) -> Result<(), FileFault> {
    let mut covered = data.start;
    for (index, Stored { name, bytes, .. }) in stored.iter().enumerate() {
        if bytes.start < covered {
            // No data comes before the first tensor, so there is another one.
            let other = stored[index.saturating_sub(1)].name.clone();
            return Err(FileFault::Overlap { tensor: name.clone(), other });
        }
        if bytes.start > covered {
            return Err(FileFault::Hole { tensor: name.clone(), bytes: bytes.start - covered });
        }
        covered = bytes.end;
    }
    match data.end - covered {
        0 => Ok(()),
        bytes => Err(FileFault::Trailing(bytes)),
    }
}

impl Stored {
    /// The elements of a box, as runs that are beside one another in the tensor. The box must lie in it.
    pub fn runs<'r>(&self, region: &'r [Range<usize>]) -> impl Iterator<Item = Range<usize>> + use<'r> {
        runs(&TensorType::new(DType::U8, &self.shape), region)
    }

    /// Reads the bytes of a box. It must lie in the tensor and have as many elements, of `size` bytes, as `out`.
    pub fn read(&self, file: &File, size: usize, region: &[Range<usize>], out: &mut [u8]) -> io::Result<()> {
        let mut out = out;
        for run in self.runs(region) {
            let (bytes, rest) = std::mem::take(&mut out).split_at_mut(run.len() * size);
            file.read_exact_at(bytes, self.bytes.start + (run.start * size) as u64)?;
            out = rest;
        }
        Ok(())
    }
}

/// Returns the header of a file with these tensors in this order, its length included, or `None` if it is too long. The
/// bytes of the first tensor follow the header.
pub(crate) fn write<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize], u64)>) -> Option<Vec<u8>> {
    // transformers wants to know the framework, and reads weights of PyTorch alone by default.
    let mut text = format!(r#"{{"{METADATA}":{{"format":"pt"}}"#);
    let mut begin = 0u64;
    for (name, dtype, shape, bytes) in tensors {
        let end = begin.checked_add(bytes)?;
        let entry = Entry { dtype: dtype.to_string(), shape: shape.to_vec(), data_offsets: [begin, end] };
        text += &format!(",{}:{}", serde_json::to_string(name).ok()?, serde_json::to_string(&entry).ok()?);
        begin = end;
    }
    text.push('}');
    // Readers that map the file want the tensors aligned.
    let length = text.len().next_multiple_of(8);
    let mut header = (length as u64).to_le_bytes().to_vec();
    header.extend(text.bytes());
    header.resize(LENGTH_BYTES as usize + length, b' ');
    (length as u64 <= MAX_HEADER_BYTES).then_some(header)
}

/// Sorts tensors as files have them that hold parameters, the widest types first, so that every tensor is aligned.
/// Returns the header of such a file, or `None` if it is too long.
pub fn arrange<T>(tensors: &mut [(Dtype, String, T)], ty: impl Fn(&T) -> TensorType) -> Option<Vec<u8>> {
    tensors.sort_by(|(left, left_name, _), (right, right_name, _)| right.cmp(left).then(left_name.cmp(right_name)));
    let types: Vec<TensorType> = tensors.iter().map(|(_, _, tensor)| ty(tensor)).collect();
    let entries = tensors.iter().zip(&types);
    write(entries.map(|((dtype, name, _), ty)| (name.as_str(), *dtype, &ty.dims[..], ty.byte_count() as u64)))
}
