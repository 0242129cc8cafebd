//! First values of parameters.

use sha2::{Digest, Sha256};

use crate::ir::Literal;
use crate::trace::{Init, InitError, MapTree, Param, Path, Tree};

/// Draws the first values of all parameters. A parameter's value depends on the seed and its path alone: not on the
/// other parameters, not on the mesh, and not on whether layers are stacked (layer 3 of a stacked `layers.mlp.up` is
/// drawn as `layers.3.mlp.up`).
///
/// # Errors
/// A parameter's type does not [hold](crate::ir::DType::holds) its first value: nothing is rounded to an integer.
pub fn initialize<T: Tree<Leaf = Param> + MapTree<Literal>>(params: &T, seed: u64) -> Result<T::Mapped, InitError> {
    let mut refused = None;
    params.visit(&mut Path::default(), &mut |path, param| {
        if refused.is_none() {
            refused = check(&path.to_string(), param).err();
        }
    });
    match refused {
        Some(error) => Err(error),
        None => Ok(params.map(|path, param| first_value(&path.to_string(), param, seed))),
    }
}

fn check(path: &str, param: &Param) -> Result<(), InitError> {
    let (path, ty) = (path.to_owned(), param.spec.ty.clone());
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

fn first_value(path: &str, param: &Param, seed: u64) -> Literal {
    let ty = &param.spec.ty;
    let deviation = match param.init {
        Init::Constant(number) => return Literal::from_fn(ty.clone(), |_| number),
        Init::Normal(deviation) => deviation,
    };
    let mut numbers = Vec::with_capacity(ty.element_count());
    if param.stacked_dims > 0 {
        let count: usize = ty.dims[..param.stacked_dims].iter().product();
        for layer in 0..count {
            draw(deviation, &layer_path(path, layer), seed, ty.element_count() / count, &mut numbers);
        }
    } else {
        draw(deviation, path, seed, ty.element_count(), &mut numbers);
    }
    Literal::from_fn(ty.clone(), |index| numbers[index])
}

/// The path that a layer's parameter has where layers are not stacked: `layers.3.mlp.up` for layer 3 of
/// `layers.mlp.up`.
fn layer_path(stacked: &str, layer: usize) -> String {
    let parts: Vec<&str> = stacked.split('.').collect();
    let end = parts.iter().position(|&part| part == "layers").map_or(parts.len(), |position| position + 1);
    let (stack, rest) = parts.split_at(end);
    [&stack.join("."), &layer.to_string(), &rest.join(".")].map(String::as_str).join(".")
}

/// Appends `count` numbers, which depend on the seed and the path.
fn draw(deviation: f64, path: &str, seed: u64, count: usize, numbers: &mut Vec<f64>) {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(path.as_bytes());
    let digest = hash.finalize();
    let mut key = [0; 8];
    key.copy_from_slice(&digest[..8]);
    let mut state = u64::from_le_bytes(key);
    numbers.extend((0..count).map(|_| deviation * truncated_normal(&mut state)));
}

/// SplitMix64 (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators"): the next 64 random bits.
pub fn next_bits(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in (0, 1]: never 0, so that its logarithm is finite.
pub fn uniform(state: &mut u64) -> f64 {
    ((next_bits(state) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}

/// A standard normal number within three deviations, by Box and Muller.
fn truncated_normal(state: &mut u64) -> f64 {
    loop {
        let (radius, angle) = ((-2.0 * uniform(state).ln()).sqrt(), std::f64::consts::TAU * uniform(state));
        let number = radius * angle.cos();
        if number.abs() <= 3.0 {
            return number;
        }
    }
}
