//! First values of parameters.
//!
//! A number depends on the seed, the parameter's path, its layer and its position within the layer: not on the other
//! parameters, not on mesh or pipeline, and not on whether layers are stacked. Layer 3 of a stacked `layers.mlp.up` is
//! drawn as `layers.3.mlp.up`.
//!
//! Numbers are drawn in `f32` and rounded to the parameter's type, by [`Threefry`] over counters, and made normal by
//! the inverse of the error function.

use std::panic::Location;

use sha2::{Digest, Sha256};

use super::context::{composite, fail};
use super::error::{InitError, TraceErrorKind};
use super::handle::Tensor;
use super::layer_path::LayerPath;
use super::random::{Key, counter_in_layer};
use super::tensor::{Init, Param, full};
use super::tree::{MapTree, Tree};
use crate::ir::{DType, Literal};
use crate::ops::{Threefry, erf_inv_f32};

/// erf(3 / sqrt(2)): the probability that a normal number is within three deviations.
const WITHIN_THREE: f64 = 0.997_300_203_936_739_8;

/// The number of lowest bits of the 32 drawn that are left out, so that `f32` holds the rest exactly.
const SPARE_BITS: u32 = 9;
/// The count of numbers that are left. They become the odd numbers from minus this to this, so that none is zero.
const NUMBERS: i32 = 1 << (32 - SPARE_BITS);

/// The first values of parameters on the host, for small models and for tests: those of [`first_values`], but for
/// rounding.
///
/// # Errors
/// A parameter's type does not [hold](DType::holds) its first value: nothing is rounded to an integer.
pub fn initialize<T: Tree<Leaf = Param> + MapTree<Literal>>(params: &T, seed: u64) -> Result<T::Mapped, InitError> {
    check(params)?;
    let key = [(seed >> 32) as u32, seed as u32];
    Ok(params.map(|path, param| {
        let ty = param.spec.ty.clone();
        let deviation = match param.init {
            Init::Constant(number) => return Literal::from_fn(ty, |_| number),
            Init::Normal(deviation) => deviation,
        };
        let (path, [first, step]) = place_of(&path.to_string(), param);
        let key = Threefry::evaluate(key, words(&path));
        let of_layer: usize = ty.dims[param.stacked_dims..].iter().product();
        Literal::from_fn(ty, |index| {
            let counter = counter_in_layer((first + index / of_layer * step) as u32, (index % of_layer) as u64);
            let [high, low] = Threefry::evaluate(key, counter);
            deviation * f64::from(normal_on_host(high ^ low))
        })
    }))
}

/// The first values of parameters within a trace, from the key of a seed. Compiled over a mesh, each device draws its
/// own part and nothing is sent.
///
/// ```
/// use meshloom::prelude::*;
/// use meshloom::trace::{Key, first_values};
///
/// # fn main() -> Result<(), meshloom::Error> {
/// let params = (Param::new(F32, [8, 4], &["embed", "mlp"], Init::Normal(0.02)),);
/// let function = Function::trace("init", Key::spec(), |key| first_values(&params, key))?;
/// let init = compile(&function, &Client::cpu(1)?, &LowerOptions::default())?;
/// let (weight,) = init.call(&Key::from_seed(7))?;
/// assert_eq!(weight.ty().dims.as_slice(), [8, 4]);
/// # Ok(())
/// # }
/// ```
///
/// A parameter whose type does not hold its first value is an error of the trace.
#[track_caller]
pub fn first_values<T>(params: &T, key: Key<Tensor>) -> <T as MapTree<Tensor>>::Mapped
where
    T: Tree<Leaf = Param> + MapTree<Tensor>,
{
    let place = Location::caller();
    if let Err(error) = check(params) {
        let failed = fail(TraceErrorKind::Other(error.to_string()), place);
        return params.map(|_, _| failed);
    }
    let declared = params.paths().into_iter().zip(params.leaves());
    let places: Vec<(String, [usize; 2])> = declared.map(|(path, param)| place_of(&path, &param)).collect();
    let words: Vec<[u32; 2]> = places.iter().map(|(path, _)| words(path)).collect();
    composite(place, || {
        let keys = key.fold_in_each(&words);
        let mut keys = keys.into_iter().zip(&places);
        params.map(|_, param| {
            let ty = &param.spec.ty;
            match (param.init, keys.next()) {
                (Init::Normal(deviation), Some((key, &(_, layers)))) => {
                    let bits = key.bits_by_layer(&ty.dims, param.stacked_dims, layers.map(|number| number as u32));
                    (normal(bits).convert(ty.dtype.at_least_f32()) * deviation).convert(ty.dtype)
                }
                (Init::Constant(number) | Init::Normal(number), _) => full(ty.dtype, &ty.dims, number),
            }
        })
    })
}

fn check(params: &impl Tree<Leaf = Param>) -> Result<(), InitError> {
    params.paths().into_iter().zip(params.leaves()).try_for_each(|(path, param)| check_one(path, &param))
}

fn check_one(path: String, param: &Param) -> Result<(), InitError> {
    let ty = param.spec.ty.clone();
    match param.init {
        Init::Constant(number) if !ty.dtype.holds(number) => Err(InitError::Constant { path, ty, number }),
        Init::Normal(deviation)
            if !(ty.dtype.is_float()
                && (0.0..f64::INFINITY).contains(&deviation)
                && ty.dtype.holds(3.0 * deviation)) =>
        {
            Err(InitError::Normal { path, ty, deviation })
        }
        Init::Constant(_) | Init::Normal(_) => Ok(()),
    }
}

/// Where a parameter's numbers are drawn: the path that all layers share, the number of its only or first layer, and
/// how many numbers on the next is.
fn place_of(path: &str, param: &Param) -> (String, [usize; 2]) {
    let LayerPath { name, numbers } = LayerPath::of(path, param.stacked_dims > 0);
    (name, numbers.map_or([0, 1], |numbers| [numbers.first, numbers.step.unwrap_or(1)]))
}

/// The words that are folded into the key of a seed for a parameter with this path.
fn words(path: &str) -> [u32; 2] {
    let digest = Sha256::digest(path.as_bytes());
    [0, 4].map(|start| digest[start..start + 4].iter().fold(0, |word, &byte| word << 8 | u32::from(byte)))
}

/// Standard normal numbers within three deviations, `f32`, of random bits, `u32`.
fn normal(bits: Tensor) -> Tensor {
    let odd = (bits >> f64::from(SPARE_BITS)).convert(DType::S32) * 2 + (1 - NUMBERS);
    let x = odd.convert(DType::F32) * (WITHIN_THREE / f64::from(NUMBERS));
    std::f64::consts::SQRT_2 * x.erf_inv()
}

/// The same of one number on the host.
fn normal_on_host(bits: u32) -> f32 {
    let odd = (bits >> SPARE_BITS) as i32 * 2 + (1 - NUMBERS);
    let x = odd as f32 * (WITHIN_THREE / f64::from(NUMBERS)) as f32;
    (std::f64::consts::SQRT_2 * erf_inv_f32(f64::from(x))) as f32
}
