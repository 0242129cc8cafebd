//! Published checkpoints in and out: folders of transformers with a `config.json` and safetensors.
//!
//! [`PublishedWeights`] reads boxes of parameters out of the tensors that a family gives them, and [`export`] writes
//! parameters as transformers reads them. The other files of such a folder are its [`ModelFiles`].

mod dtypes;
mod export;
mod model_files;
mod names;
mod tensor_layout;

pub use export::{ExportOptions, Exported, export};
pub use model_files::{ModelFile, ModelFiles, is_kept};

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::trace::{LayerNumbers, LayerPath};

use crate::families::{Published, TensorsOf};
use crate::parameters::own_dtype;
use crate::weights::{Encoding, FP8_BLOCK, Weights, WeightsError};
use dtypes::{DTYPES, Dtypes};
use names::Names;

/// The weights of a published model. Only headers are read before a part of a parameter is asked for.
#[derive(Debug)]
pub struct PublishedWeights {
    weights: Weights,
    /// The parameters by the name that all layers share.
    parameters: HashMap<String, PublishedParameter>,
    /// The types of the tensors, by their names in a folder of the decoder alone.
    dtypes: HashMap<String, DType>,
    skipped: Vec<String>,
}

/// A parameter of all layers that have it.
#[derive(Debug)]
struct PublishedParameter {
    /// The type that holds the elements of all layers: that of the tensors, if they have one; `bf16` of quantized ones.
    dtype: DType,
    layers: BTreeMap<Option<usize>, TensorsOf>,
}

impl PublishedWeights {
    /// Opens the weights of a folder, which must be those of this model: each tensor is used once, or it is one that
    /// the model leaves out on purpose.
    ///
    /// # Errors
    /// A file is missing or damaged; or the folder has other tensors than the model, or of other shapes or types.
    pub fn open(folder: &Path, published: &Published) -> Result<PublishedWeights, WeightsError> {
        let weights = Weights::open(folder, published.fp8_block.unwrap_or(FP8_BLOCK))?;
        let names = Names::of(&weights);
        let mut ledger = weights.ledger();
        let patterns = names.skipped(published);
        patterns.iter().for_each(|pattern| ledger.skip(pattern));
        let mut parameters: HashMap<String, PublishedParameter> = HashMap::new();
        let mut of_tensors: HashMap<String, DType> = HashMap::new();
        for mut parameter in published.tensors() {
            let mut dtypes = Vec::new();
            for part in &mut parameter.parts {
                let name = std::mem::take(&mut part.tensor);
                part.tensor = names.in_folder(&name);
                let dtype = dtype_of(&weights, &part.tensor)?;
                // Two parameters can be of one tensor, such as gate and up.
                if of_tensors.insert(name, dtype).is_none() && ledger.take(&part.tensor) {
                    weights.expect_shape(&part.tensor, &part.dims)?;
                }
                dtypes.push(dtype);
            }
            let entry = parameters.entry(parameter.name.clone());
            let of_all = entry.or_insert_with(|| PublishedParameter {
                dtype: dtypes.first().copied().unwrap_or(DType::F32),
                layers: BTreeMap::new(),
            });
            if dtypes.iter().any(|&dtype| dtype != of_all.dtype) {
                of_all.dtype = DType::F32;
            }
            of_all.layers.insert(parameter.layer, parameter);
        }
        let skipped = ledger.finish()?;
        Ok(PublishedWeights { weights, parameters, dtypes: of_tensors, skipped })
    }

    /// The tensors of the folder that no parameter is made of: they are left out on purpose.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// The files of the model, with the types of these tensors.
    pub fn with_dtypes(&self, files: ModelFiles) -> ModelFiles {
        files.with(DTYPES, &Dtypes::of(&self.dtypes).text())
    }

    /// Bytes of tensors that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.weights.bytes_read()
    }

    /// The type of a parameter by the name that all layers share, as of [`PublishedWeights::read_part`].
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.parameters.get(name).map(|parameter| parameter.dtype)
    }

    /// A box of a parameter of these dimensions, by its path in a decoder, however that holds its layers. It is of the
    /// type of the tensors; `bf16` of quantized ones, and `f32` if layers differ.
    ///
    /// # Errors
    /// A file cannot be read, or the model has no such parameter.
    pub fn read_part(&self, path: &str, dims: &[usize], shard: &[Range<usize>]) -> Result<Literal, WeightsError> {
        let unknown = || WeightsError::Region { tensor: path.to_owned(), shape: dims.to_vec(), region: shard.to_vec() };
        // A path without numbers stands for the layers from the first on.
        let LayerPath { name, numbers } = LayerPath::of(path, true);
        let parameter = self.parameters.get(&name).ok_or_else(|| self.weights.unknown(path))?;
        let numbers = numbers.filter(|_| !parameter.layers.contains_key(&None));
        // The first layers may have one of this name and of another form.
        let own = parameter.layers.get(&numbers.map(|numbers| numbers.first)).ok_or_else(unknown)?;
        let leading = dims.len().checked_sub(own.dims.len()).ok_or_else(unknown)?;
        let (stack, rest) = shard.split_at_checked(leading).ok_or_else(unknown)?;
        let layers: Vec<Option<usize>> = match numbers {
            None => vec![None],
            Some(LayerNumbers { first, step }) => {
                let places = tensor_layout::places(&dims[..leading], stack);
                places.into_iter().map(|place| Some(first + place * step.unwrap_or(1))).collect()
            }
        };
        let mut bytes = Vec::new();
        for layer in layers {
            self.read_layer(parameter, parameter.layers.get(&layer).ok_or_else(unknown)?, rest, &mut bytes)?;
        }
        let sizes: Vec<usize> = shard.iter().map(ExactSizeIterator::len).collect();
        Literal::from_bytes(TensorType::new(parameter.dtype, &sizes), bytes).map_err(|_| unknown())
    }

    fn read_layer(
        &self,
        parameter: &PublishedParameter,
        of_layer: &TensorsOf,
        shard: &[Range<usize>],
        into: &mut Vec<u8>,
    ) -> Result<(), WeightsError> {
        let dims = &of_layer.dims[..];
        let (parts, dims, shard) = match &of_layer.parts[..] {
            [part] => (std::slice::from_ref(part), dims, shard),
            // Each expert is a tensor of its own.
            parts => (&parts[shard[0].clone()], &dims[1..], &shard[1..]),
        };
        parts.iter().try_for_each(|part| {
            let read = |region: &[Range<usize>]| self.read(&part.tensor, region, parameter.dtype);
            tensor_layout::take(part, (dims, shard), parameter.dtype.byte_count(), read, into)
        })
    }

    /// The bytes of a box of a tensor, of this type.
    fn read(&self, tensor: &str, region: &[Range<usize>], dtype: DType) -> Result<Vec<u8>, WeightsError> {
        let is_same = |stored| own_dtype(stored) == Some(dtype);
        match self.weights.tensor(tensor)?.encoding() {
            Encoding::Plain(stored) if is_same(stored) => Ok(self.weights.read_bytes(tensor, region)?),
            _ => {
                let numbers = self.weights.read(tensor, region)?;
                Ok(Literal::vector(&numbers).convert(dtype).bytes().to_vec())
            }
        }
    }
}

fn dtype_of(weights: &Weights, tensor: &str) -> Result<DType, WeightsError> {
    // A tensor that is missing is reported with all others.
    let Ok(found) = weights.tensor(tensor) else { return Ok(DType::F32) };
    match found.encoding() {
        Encoding::Plain(stored) => {
            let dtype = own_dtype(stored).filter(|dtype| [DType::F32, DType::BF16, DType::F16].contains(dtype));
            dtype.ok_or_else(|| WeightsError::NotNumbers { tensor: tensor.to_owned(), dtype: stored })
        }
        Encoding::Fp8Blocks { .. } | Encoding::Mxfp4 => Ok(DType::BF16),
    }
}
