//! The weights of a folder.

use std::ops::Range;
use std::path::Path;

use meshloom::hlo::suggest::did_you_mean;

use super::error::WeightsError;
use super::files::{Files, buffer, element_bytes};
use super::ledger::Ledger;
use super::natural::natural;
use super::quantized::{read_fp8_blocks, read_mxfp4};
use super::region;
use super::tensor::{Parts, Tensor, assemble};

/// The sizes of a block in FP8 where the `quantization_config.weight_block_size` of config.json does not say others.
pub const FP8_BLOCK: [usize; 2] = [128, 128];

/// The weights of a folder. Opening them reads only the headers.
///
/// Every method takes `&self`, and threads may read at once.
#[derive(Debug)]
pub struct Weights {
    files: Files,
    /// In natural order of their names.
    tensors: Vec<Tensor>,
}

impl Weights {
    /// Opens the folder of a checkpoint: the file `model.safetensors`, or else those that
    /// `model.safetensors.index.json` names. (transformers looks for them in this order too.) A tensor in FP8 has
    /// scales for blocks of `fp8_block` rows and columns: see [`FP8_BLOCK`].
    ///
    /// The author of the files is not trusted. Headers must say exactly where each byte belongs, and an index can only
    /// name files of the folder. The user's links are: a file of the folder may be a link to a file elsewhere, as in
    /// the cache of the Hugging Face Hub, where all files of a snapshot are links.
    ///
    /// # Errors
    ///
    /// If there are no such files, one of them cannot be read or is damaged, or index and files do not have the same
    /// tensors. If the parts of a quantized tensor do not fit.
    pub fn open(folder: &Path, fp8_block: [usize; 2]) -> Result<Weights, WeightsError> {
        let (files, stored) = Files::open(folder)?;
        let tensors = assemble(stored, fp8_block).map_err(|(tensor, fault)| {
            let folder = folder.to_owned();
            WeightsError::Quantization { folder, tensor, fault }
        })?;
        Ok(Weights { files, tensors })
    }

    /// All tensors, in natural order of their names: layer 2 comes before layer 10.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of a name.
    ///
    /// # Errors
    ///
    /// There is no such tensor.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, WeightsError> {
        let found = self.tensors.binary_search_by(|tensor| natural(tensor.name(), name));
        found.map(|index| &self.tensors[index]).map_err(|_| self.unknown(name))
    }

    pub(crate) fn unknown(&self, name: &str) -> WeightsError {
        let suggestion = did_you_mean(name, self.tensors.iter().map(Tensor::name));
        WeightsError::Unknown { folder: self.files.folder.clone(), tensor: name.to_owned(), suggestion }
    }

    /// Checks that a tensor is of the shape that a model has for it.
    ///
    /// # Errors
    ///
    /// The tensor has another shape, or does not exist.
    pub fn expect_shape(&self, name: &str, expected: &[usize]) -> Result<(), WeightsError> {
        let found = self.tensor(name)?.shape();
        if found == expected {
            return Ok(());
        }
        let (expected, found) = (expected.to_vec(), found.to_vec());
        Err(WeightsError::Shape { folder: self.files.folder.clone(), tensor: name.to_owned(), expected, found })
    }

    /// Reads a box of a tensor as numbers, in row-major order. The box has a range for each dimension of
    /// [`Tensor::shape`]; [`whole`](super::whole) is that of all elements. Quantized tensors are dequantized.
    ///
    /// It reads the bytes of the box and the scales that it needs, nothing else of the file, and apart from the result
    /// holds a few hundred KiB at a time, or, of a quantized tensor, the scales of the box or 64 rows of its codes.
    ///
    /// # Errors
    ///
    /// There is no such tensor, the box is not in it, the dtype is not F32, BF16, F16 or F8_E4M3, the file cannot be
    /// read, or there is no memory for the numbers.
    pub fn read(&self, name: &str, region: &[Range<usize>]) -> Result<Vec<f32>, WeightsError> {
        let tensor = self.tensor_with(name, region)?;
        let mut out = buffer(name, region::elements(region))?;
        match &tensor.parts {
            Parts::Plain(values) => self.files.read_numbers(values, region, &mut out)?,
            Parts::Fp8Blocks { values, scales, block } => {
                read_fp8_blocks(&self.files, (values, scales), *block, region, &mut out)?;
            }
            Parts::Mxfp4 { blocks, scales } => read_mxfp4(&self.files, (blocks, scales), region, &mut out)?,
        }
        Ok(out)
    }

    /// Reads the bytes of a box of a tensor that is not quantized, in row-major order. They are those of its dtype,
    /// little-endian. It needs no other memory.
    ///
    /// # Errors
    ///
    /// There is no such tensor, it is quantized, the box is not in it, the elements are not whole bytes, the file
    /// cannot be read, or there is no memory for the bytes.
    pub fn read_bytes(&self, name: &str, region: &[Range<usize>]) -> Result<Vec<u8>, WeightsError> {
        let tensor = self.tensor_with(name, region)?;
        let Parts::Plain(values) = &tensor.parts else {
            return Err(WeightsError::NotBytes { tensor: name.to_owned(), encoding: tensor.encoding() });
        };
        let mut out = buffer(name, region::elements(region) * element_bytes(values)?)?;
        self.files.read_bytes(values, region, &mut out)?;
        Ok(out)
    }

    /// The bytes of tensors that were read so far: what a test of a loader looks at.
    pub fn bytes_read(&self) -> u64 {
        self.files.bytes_read()
    }

    /// A ledger of all tensors; none of them is used yet.
    pub fn ledger(&self) -> Ledger {
        Ledger::new(&self.files.folder, self.tensors.iter().map(|tensor| tensor.name().to_owned()))
    }

    fn tensor_with(&self, name: &str, region: &[Range<usize>]) -> Result<&Tensor, WeightsError> {
        let tensor = self.tensor(name)?;
        if !region::fits(tensor.shape(), region) {
            let (tensor, shape) = (name.to_owned(), tensor.shape().to_vec());
            return Err(WeightsError::Region { tensor, shape, region: region.to_vec() });
        }
        Ok(tensor)
    }
}
