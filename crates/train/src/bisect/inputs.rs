//! The inputs that programs run with: values drawn by name from a seed, or read from a file.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use meshloom::hlo::{DType, Literal, TensorType, number_bytes};
use serde_json::{Map, Value, json};

use super::BisectError;
use crate::next_bits;

/// How inputs are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// The seed.
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

/// Named values of a safetensors file.
///
/// # Errors
/// The file is not a safetensors file, or it has a type that is not known here.
pub fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, Literal>, BisectError> {
    let wrong = |reason: &str| BisectError::Inputs { reason: reason.to_owned() };
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| wrong("it is too short for safetensors"))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (header, data) = rest.split_at_checked(length).ok_or_else(|| wrong("its header is cut off"))?;
    let header: Map<String, Value> =
        serde_json::from_slice(header).map_err(|error| wrong(&format!("its header is no JSON: {error}")))?;
    let types = header.get("__metadata__").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut found = BTreeMap::new();
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let numbers = |value: Option<&Value>| -> Option<Vec<usize>> {
            let numbers = value?.as_array()?.iter();
            numbers.map(|number| usize::try_from(number.as_u64()?).ok()).collect()
        };
        let stored = entry.get("dtype").and_then(Value::as_str).unwrap_or_default();
        let stated = types.get(name).and_then(Value::as_str).and_then(DType::from_name);
        let dtype = stated.or_else(|| DType::ALL.into_iter().rev().find(|&dtype| stored_name(dtype) == stored));
        let dtype =
            dtype.ok_or_else(|| wrong(&format!("{name:?} has the type {stored:?}, which is not known here")))?;
        let dims = numbers(entry.get("shape")).ok_or_else(|| wrong(&format!("{name:?} has no shape")))?;
        let offsets = numbers(entry.get("data_offsets")).unwrap_or_default();
        let part = match offsets[..] {
            [start, end] => data.get(start..end),
            _ => None,
        };
        let part = part.ok_or_else(|| wrong(&format!("{name:?} lies outside of the file")))?;
        let literal = Literal::from_bytes(TensorType::new(dtype, &dims), part.to_vec());
        found.insert(name.clone(), literal.map_err(|error| wrong(&format!("{name:?}: {error}")))?);
    }
    Ok(found)
}
