//! Writes the parameters of a model as transformers reads them.

use std::collections::HashMap;
use std::iter::once;
use std::ops::Range;
use std::path::Path;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::trace::{LayerNumbers, LayerPath};
use serde_json::Value;

use super::dtypes::{DTYPES, Dtypes};
use super::{ModelFiles, tensor_layout};
use crate::families::{CONFIG, Published, TensorPart, TensorsOf};
use crate::parameters::stored_dtype;
use crate::weights::{MAX_SHARD_BYTES, TensorSpec, WeightsError, whole, write_weights};

/// How parameters are written.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// The type of all tensors; without it, for each tensor the type in which it was published, else the one that
    /// `config.json` says, else the one in which it is stored.
    pub dtype: Option<DType>,
    /// The most bytes of tensors in a file.
    pub max_shard_bytes: u64,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions { dtype: None, max_shard_bytes: MAX_SHARD_BYTES }
    }
}

/// The size of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Number of tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A tensor and the shares of parameters that it consists of.
struct Target<'p> {
    name: &'p str,
    dims: &'p [usize],
    shares: Vec<ExportShare<'p>>,
}

/// A parameter, or the share of one, that a tensor contains.
struct ExportShare<'p> {
    parameter: &'p TensorsOf,
    part: &'p TensorPart,
    /// The number of the share, if the parameter is spread over several tensors.
    index: Option<usize>,
}

/// Writes a model to a folder that has no weights, as transformers reads it: `config.json`, the other files of the
/// published model, and safetensors. One tensor at a time is in memory.
///
/// Parameters are asked for by their paths in a decoder whose layers are each by itself: `dtype` says the type in which
/// one is stored, and `part` gives a box of one of these dimensions, in any type.
///
/// # Errors
/// A parameter cannot be read, or the folder cannot be written.
pub fn export<E: From<WeightsError>>(
    published: &Published,
    (folder, model_files): (&Path, ModelFiles),
    options: ExportOptions,
    dtype: impl Fn(&str) -> Result<DType, E>,
    part: impl Fn(&str, &[usize], &[Range<usize>]) -> Result<Literal, E>,
) -> Result<Exported, E> {
    let dtypes = Dtypes::read(&model_files);
    let parameters = published.tensors();
    let targets = targets(&parameters);
    let own = |target: &Target<'_>| match options.dtype {
        Some(dtype) => Ok(dtype),
        None => dtype_of(target, dtypes.as_ref(), published, &dtype),
    };
    let copies = published.copies();
    let names = |target: &Target<'_>| -> Vec<String> {
        let copies = copies.iter().filter(|(_, original)| *original == target.name).map(|(copy, _)| copy.clone());
        once(target.name.to_owned()).chain(copies).collect()
    };
    let (mut specs, mut of_spec) = (Vec::new(), Vec::new());
    for target in &targets {
        let dtype = own(target)?;
        let spec = target.spec(dtype)?;
        for name in names(target) {
            specs.push(TensorSpec { name, ..spec.clone() });
            of_spec.push((target, dtype));
        }
    }
    let (mut of_spec, mut bytes) = (of_spec.into_iter(), 0);
    let bytes_of = |_: &TensorSpec| -> Result<Vec<u8>, E> {
        let read = of_spec.next().map(|(target, dtype)| target.read(dtype, &part));
        let tensor = read.transpose()?.unwrap_or_default();
        bytes += tensor.len() as u64;
        Ok(tensor)
    };
    let complete = || -> Result<(), E> { Ok(files(model_files, published).write(folder)?) };
    write_weights(folder, &specs, options.max_shard_bytes, bytes_of, complete)?;
    Ok(Exported { tensors: specs.len(), bytes })
}

/// Returns every tensor with the shares that it consists of.
fn targets(parameters: &[TensorsOf]) -> Vec<Target<'_>> {
    let mut targets: Vec<Target<'_>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for parameter in parameters {
        for (number, part) in parameter.parts.iter().enumerate() {
            let index = (parameter.parts.len() > 1).then_some(number);
            let place = *known.entry(&part.tensor).or_insert_with(|| {
                targets.push(Target { name: &part.tensor, dims: &part.dims, shares: Vec::new() });
                targets.len() - 1
            });
            targets[place].shares.push(ExportShare { parameter, part, index });
        }
    }
    targets
}

impl Target<'_> {
    fn spec(&self, dtype: DType) -> Result<TensorSpec, WeightsError> {
        let reason = "safetensors files have no such type; give another";
        let unsupported = || WeightsError::Declared { tensor: self.name.to_owned(), reason };
        let stored = stored_dtype(dtype).ok_or_else(unsupported)?;
        Ok(TensorSpec { name: self.name.to_owned(), dtype: stored, shape: self.dims.to_vec() })
    }

    fn read<E>(
        &self,
        dtype: DType,
        part: impl Fn(&str, &[usize], &[Range<usize>]) -> Result<Literal, E>,
    ) -> Result<Vec<u8>, E> {
        let size = dtype.byte_count();
        let ty = TensorType::new(dtype, self.dims);
        let mut tensor = vec![0; ty.byte_count()];
        for share in &self.shares {
            let elements = part(&share.path(), &share.parameter.dims, &share.shard())?.convert(dtype);
            tensor_layout::put(share.part, elements.bytes(), size, &mut tensor);
        }
        Ok(tensor)
    }
}

impl ExportShare<'_> {
    /// The path of the parameter in a decoder whose layers are each by itself.
    fn path(&self) -> String {
        let numbers = self.parameter.layer.map(|first| LayerNumbers { first, step: None });
        LayerPath { name: self.parameter.name.clone(), numbers }.to_string()
    }

    fn shard(&self) -> Vec<Range<usize>> {
        let mut shard = whole(&self.parameter.dims);
        if let (Some(index), Some(first)) = (self.index, shard.first_mut()) {
            *first = index..index + 1;
        }
        shard
    }
}

fn dtype_of<E>(
    target: &Target<'_>,
    known: Option<&Dtypes>,
    published: &Published,
    stored: impl Fn(&str) -> Result<DType, E>,
) -> Result<DType, E> {
    let is_choice_bias = || target.shares.iter().any(|share| share.parameter.name == CHOICE_BIAS);
    let said = known.and_then(|known| known.get(target.name));
    // Transformers keeps it in f32, whatever the file says of the model.
    let said = said.or_else(|| published.dtype.map(|dtype| if is_choice_bias() { DType::F32 } else { dtype }));
    if let Some(dtype) = said {
        return Ok(dtype);
    }
    let dtypes = target.shares.iter().map(|share| stored(&share.path())).collect::<Result<Vec<_>, _>>()?;
    let first = dtypes.first().copied().filter(|first| dtypes.iter().all(|dtype| dtype == first));
    Ok(first.unwrap_or(DType::F32))
}

/// The bias of the choice of experts.
const CHOICE_BIAS: &str = "layers.mlp.choice_bias";

/// The files beside the weights. Weights are not quantized, and what the text says of that is left out.
fn files(files: ModelFiles, published: &Published) -> ModelFiles {
    let files = files.without(DTYPES);
    let mut object = published.object();
    let is_quantized = object.remove("quantization_config").is_some();
    let of_folder = files.iter().find(|file| file.name == CONFIG).map(|file| file.bytes.clone());
    let is_same = of_folder.is_some_and(|bytes| *bytes == *published.text.as_bytes());
    if is_same && !is_quantized {
        return files;
    }
    let text = if is_quantized { format!("{:#}\n", Value::Object(object)) } else { published.text.clone() };
    files.with(CONFIG, &text)
}
