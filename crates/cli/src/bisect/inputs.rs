//! The inputs that programs run with: values drawn by name from a seed, or read from a file.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Context, Result};
use meshloom::hlo::{DType, Literal, TensorType, number_bytes};
use meshloom_models::parameters::from_bytes;

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

/// Named values of a safetensors file.
pub fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, Literal>> {
    from_bytes(bytes).context("the inputs cannot be read")
}
