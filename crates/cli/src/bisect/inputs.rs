//! The inputs that programs run with: values drawn by name from a seed, or read from a file.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Context, Result};
use meshloom::hlo::{DType, Literal, TensorType, number_bytes};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};

use meshloom_train::next_bits;

#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    pub seed: u64,
    /// Floating-point numbers are from the first to the second, integers from 0 to 7.
    pub range: (f64, f64),
    /// Whether every fifth floating-point number is NaN, an infinity, -0 or a very small one.
    pub special: bool,
}

impl Default for Draw {
    fn default() -> Draw {
        Draw { seed: 0, range: (-1.0, 1.0), special: false }
    }
}

/// Values by the name of the parameter, and how others are drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs {
    pub(super) draw: Draw,
    pub(super) given: BTreeMap<String, Literal>,
}

impl Inputs {
    /// The value of a parameter: the same in each program that has one of this name and type.
    pub(super) fn value(&self, name: &str, ty: &TensorType) -> Literal {
        match self.given.get(name).filter(|literal| literal.ty() == ty) {
            Some(literal) => literal.clone(),
            None => self.draw.value(name, ty),
        }
    }
}

impl Draw {
    /// The value of a parameter, which depends only on its name, its type and the seed.
    pub fn value(&self, name: &str, ty: &TensorType) -> Literal {
        /// The values that compilers may treat in another way than other numbers.
        const SPECIAL: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-42];
        let mut hasher = DefaultHasher::new();
        (self.seed, name).hash(&mut hasher);
        let mut state = hasher.finish();
        let (least, most) = self.range;
        let width = ty.dtype.byte_count();
        let mut bytes = Vec::with_capacity(ty.byte_count());
        for index in 0..ty.element_count() {
            let bits = next_bits(&mut state);
            let number = match ty.dtype {
                DType::Pred => (bits & 1) as f64,
                dtype if !dtype.is_float() => (bits % 8) as f64,
                _ if self.special && index % 5 == 0 => SPECIAL[(bits % 5) as usize],
                _ => least + (most - least) * ((bits >> 11) as f64 / (1u64 << 53) as f64),
            };
            bytes.extend_from_slice(&number_bytes(ty.dtype, number)[..width]);
        }
        Literal::from_bytes(ty.clone(), bytes).unwrap_or_else(|_| Literal::from_fn(ty.clone(), |_| 0.0))
    }
}

/// The names of element types in safetensors. 4-bit integers are kept one in a byte, and named in the metadata.
fn stored_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Pred => "BOOL",
        DType::S4 | DType::S8 => "I8",
        DType::U4 | DType::U8 => "U8",
        DType::S16 => "I16",
        DType::U16 => "U16",
        DType::S32 => "I32",
        DType::U32 => "U32",
        DType::S64 => "I64",
        DType::U64 => "U64",
        DType::F8E4M3FN => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::BF16 => "BF16",
        DType::F16 => "F16",
        DType::F32 => "F32",
        DType::F64 => "F64",
    }
}

/// Named values as a safetensors file. Each is also named with its type in HLO, in the metadata.
pub fn write_safetensors(values: &[(String, Literal)]) -> Vec<u8> {
    let mut header = Map::new();
    let types = values.iter().map(|(name, literal)| (name.clone(), json!(literal.ty().dtype.name())));
    header.insert("__metadata__".to_owned(), Value::Object(types.collect()));
    let mut start = 0;
    for (name, literal) in values {
        let end = start + literal.bytes().len();
        let (dtype, shape) = (stored_name(literal.ty().dtype), literal.ty().dims.to_vec());
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
        start = end;
    }
    let mut text = Value::Object(header).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let parts = values.iter().map(|(_, literal)| literal.bytes());
    let length = (text.len() as u64).to_le_bytes();
    [&length[..], text.as_bytes()].into_iter().chain(parts).flatten().copied().collect()
}

const NOT_READ: &str = "the inputs cannot be read";

pub fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, Literal>> {
    let (_, header) = SafeTensors::read_metadata(bytes).context(NOT_READ)?;
    let types = header.metadata().clone().unwrap_or_default();
    let value = |(name, view): (String, TensorView<'_>)| {
        let stored = view.dtype().to_string();
        let stated = types.get(&name).and_then(|dtype| DType::from_name(dtype));
        let dtype = stated.or_else(|| DType::ALL.into_iter().rev().find(|&dtype| stored_name(dtype) == stored));
        let unknown = || format!("{NOT_READ}: {name:?} has the type {stored:?}, which is not known here");
        let ty = TensorType::new(dtype.with_context(unknown)?, view.shape());
        let literal = Literal::from_bytes(ty, view.data().to_vec());
        Ok((name.clone(), literal.with_context(|| format!("{NOT_READ}: {name:?}"))?))
    };
    SafeTensors::deserialize(bytes).context(NOT_READ)?.tensors().into_iter().map(value).collect()
}
