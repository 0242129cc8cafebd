//! Tensors as a model has them: those that are stored, and quantized ones, which are stored in two parts.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;

use super::fault::QuantizationFault;
use super::header::{Stored, byte_count};
use super::natural::natural;

/// A tensor of a model.
#[derive(Debug)]
pub struct Tensor {
    name: String,
    shape: Vec<usize>,
    pub(crate) parts: Parts,
}

/// The storage form of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Its elements, one after the other.
    Plain(Dtype),
    /// Its elements in F8_E4M3, and one scale for each block of the last two dimensions.
    Fp8Blocks {
        /// The sizes of a block. Blocks at the ends of a dimension may have less.
        block: [usize; 2],
    },
    /// Its elements in E2M1, and one scale for every 32 in a row.
    Mxfp4,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Plain(dtype) => dtype.fmt(f),
            Encoding::Fp8Blocks { block: [rows, columns] } => write!(f, "F8_E4M3 in blocks of {rows} x {columns}"),
            Encoding::Mxfp4 => f.write_str("MXFP4"),
        }
    }
}

/// The stored tensors that make up one of a model.
#[derive(Debug)]
pub(crate) enum Parts {
    Plain(Stored),
    /// Values `[.., rows, columns]`, scales with one element for each block.
    Fp8Blocks {
        values: Stored,
        scales: Stored,
        block: [usize; 2],
    },
    /// Blocks `[.., rows, groups, 16]`, scales `[.., rows, groups]`.
    Mxfp4 {
        blocks: Stored,
        scales: Stored,
    },
}

impl Tensor {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The sizes of its dimensions, without quantization; row-major.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How it is stored.
    pub fn encoding(&self) -> Encoding {
        match self.parts {
            Parts::Plain(Stored { dtype, .. }) => Encoding::Plain(dtype),
            Parts::Fp8Blocks { block, .. } => Encoding::Fp8Blocks { block },
            Parts::Mxfp4 { .. } => Encoding::Mxfp4,
        }
    }
}

/// The fault of a tensor, with its name.
pub(crate) type Faulty = (String, Box<QuantizationFault>);

/// The ending that the name of the scales of a tensor in FP8 has after the name of the tensor.
const FP8_SCALES: &str = "_scale_inv";
const MXFP4_BLOCKS: &str = "_blocks";
const MXFP4_SCALES: &str = "_scales";

/// The bytes of the elements that have one scale in MXFP4, and how many they are.
pub(crate) const MXFP4_BYTES: usize = 16;
pub(crate) const MXFP4_ELEMENTS: usize = 32;

/// Puts stored tensors together to those of a model, in natural order of their names.
pub(crate) fn assemble(mut stored: BTreeMap<String, Stored>, block: [usize; 2]) -> Result<Vec<Tensor>, Faulty> {
    let mut tensors = Vec::with_capacity(stored.len());
    for name in stored.keys().cloned().collect::<Vec<_>>() {
        let is_codes = stored.get(&name).is_some_and(|tensor| tensor.dtype == Dtype::U8);
        if let Some(base) = name.strip_suffix(FP8_SCALES) {
            let fault = |fault| (base.to_owned(), Box::new(fault));
            let (values, scales) = take_both(&mut stored, base, &name).map_err(fault)?;
            tensors.push(fp8_blocks(values, scales, block).map_err(fault)?);
        } else if is_codes && let Some(base) = name.strip_suffix(MXFP4_BLOCKS) {
            let fault = |fault| (base.to_owned(), Box::new(fault));
            if stored.contains_key(base) {
                return Err(fault(QuantizationFault::Twice(name.clone())));
            }
            let (blocks, scales) = take_both(&mut stored, &name, &format!("{base}{MXFP4_SCALES}")).map_err(fault)?;
            tensors.push(mxfp4(base, blocks, scales).map_err(fault)?);
        } else if is_codes && let Some(base) = name.strip_suffix(MXFP4_SCALES) {
            // Its blocks come first in the order of names and would have taken it.
            let lacking = format!("{base}{MXFP4_BLOCKS}");
            return Err((base.to_owned(), Box::new(QuantizationFault::Half { found: name.clone(), lacking })));
        }
    }
    tensors.extend(stored.into_iter().map(|(name, stored)| Tensor {
        name,
        shape: stored.shape.clone(),
        parts: Parts::Plain(stored),
    }));
    tensors.sort_by(|a, b| natural(&a.name, &b.name));
    Ok(tensors)
}

fn take_both(
    stored: &mut BTreeMap<String, Stored>,
    values: &str,
    scales: &str,
) -> Result<(Stored, Stored), QuantizationFault> {
    let half = |found: &str, lacking: &str| QuantizationFault::Half { found: found.into(), lacking: lacking.into() };
    match (stored.remove(values), stored.remove(scales)) {
        (Some(values), Some(scales)) => Ok((values, scales)),
        (None, _) => Err(half(scales, values)),
        (_, None) => Err(half(values, scales)),
    }
}

/// A tensor as DeepSeek-V3 has them (arXiv 2412.19437, section 3.3.2).
fn fp8_blocks(values: Stored, scales: Stored, block: [usize; 2]) -> Result<Tensor, QuantizationFault> {
    expect_dtype(&values, &[Dtype::F8_E4M3], "F8_E4M3")?;
    expect_dtype(&scales, &[Dtype::F32, Dtype::BF16, Dtype::F16], "F32, BF16 or F16")?;
    let [.., rows, columns] = values.shape[..] else {
        let part = values.name;
        return Err(QuantizationFault::Values { part, expected: "[.., rows, columns]", found: values.shape });
    };
    if block.contains(&0) {
        return Err(QuantizationFault::Block(block));
    }
    let mut expected = values.shape.clone();
    let rank = expected.len();
    expected[rank - 2..].copy_from_slice(&[rows.div_ceil(block[0]), columns.div_ceil(block[1])]);
    if scales.shape != expected {
        let (found, values) = (scales.shape, values.shape);
        return Err(QuantizationFault::Scales { scales: scales.name, expected, found, values, block: Some(block) });
    }
    let (name, shape) = (values.name.clone(), values.shape.clone());
    Ok(Tensor { name, shape, parts: Parts::Fp8Blocks { values, scales, block } })
}

/// A tensor as gpt-oss has them: blocks `[.., out, in / 32, 16]`, which stand for `[.., in, out]`.
fn mxfp4(name: &str, blocks: Stored, scales: Stored) -> Result<Tensor, QuantizationFault> {
    expect_dtype(&scales, &[Dtype::U8], "U8")?;
    let shape = match blocks.shape[..] {
        [ref outer @ .., rows, groups, MXFP4_BYTES] => {
            groups.checked_mul(MXFP4_ELEMENTS).map(|columns| [outer, &[columns, rows]].concat())
        }
        _ => None,
    };
    // As numbers they need more bytes than in the file.
    let Some(shape) = shape.filter(|shape| byte_count(Dtype::F32, shape).is_some()) else {
        let expected = "[.., rows, groups, 16] of a size that memory can have";
        return Err(QuantizationFault::Values { part: blocks.name, expected, found: blocks.shape });
    };
    let expected = &blocks.shape[..blocks.shape.len() - 1];
    if scales.shape != expected {
        let (expected, found) = (expected.to_vec(), scales.shape);
        return Err(QuantizationFault::Scales {
            scales: scales.name,
            expected,
            found,
            values: blocks.shape,
            block: None,
        });
    }
    Ok(Tensor { name: name.to_owned(), shape, parts: Parts::Mxfp4 { blocks, scales } })
}

fn expect_dtype(part: &Stored, allowed: &[Dtype], expected: &'static str) -> Result<(), QuantizationFault> {
    if allowed.contains(&part.dtype) {
        return Ok(());
    }
    Err(QuantizationFault::Dtype { part: part.name.clone(), expected, found: part.dtype })
}
