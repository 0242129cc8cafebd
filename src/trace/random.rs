//! Random numbers from keys, as traced computation.
//!
//! A draw is a function of its key and of the logical position of each element. It does not depend on mesh, layout or
//! earlier draws. Two draws from one key are equal, so use a key once; [`Key::split`] and [`Key::fold_in`] make new
//! ones.
//!
//! ```
//! # use meshloom::trace::{Function, Key, TensorSpec};
//! # use meshloom::ir::DType::F32;
//! // Noise that differs in every step.
//! let function = Function::trace("noisy", (TensorSpec::new(F32, [8, 4]), Key::spec()), |(x, key)| {
//!     let [scale_key, noise_key] = key.split();
//!     x + noise_key.normal(F32, [8, 4]) * scale_key.uniform(F32, [])
//! })?;
//! # Ok::<(), meshloom::Error>(())
//! ```
//!
//! The generator is [`Threefry`] over counters made of positions. The bits, and everything computed from them by exact
//! operations, equal those of JAX with its default generator (`threefry2x32`) and the default
//! `jax_threefry_partitionable`. Draws have no gradient in the key; scaled and shifted draws are reparameterized as
//! usual.

use std::cmp::Ordering;
use std::ops::Range;
use std::panic::Location;

use super::context::{self, CallSite, apply, apply_many, composite};
use super::tensor::splat;
use super::{Tensor, TensorSpec, TraceErrorKind, arange, full, iota, sort_together, stack, zeros};
use crate::ir::{DType, Literal, TensorType};
use crate::ops::{ArgReduce, ArgReduceKind, Threefry};

crate::tree! {
    /// A key of random numbers: two words, `u32[2]`. It is a tree of one leaf, so it can be an input, a carry or a
    /// stacked value of a scan; any other `u32[2]` is not taken for a key.
    pub struct Key<T> {
        data: T,
    }
}

impl<T: Copy> Copy for Key<T> {}

/// The words of a seed, high before low.
fn seed_words(seed: u64) -> Literal {
    Literal::vector(&[(seed >> 32) as u32, seed as u32])
}

impl Key<TensorSpec> {
    /// A key as an input of a traced function.
    pub fn spec() -> Key<TensorSpec> {
        Key { data: TensorSpec::new(DType::U32, [2]) }
    }
}

impl Key<Literal> {
    /// The key of a seed, as a host value.
    pub fn from_seed(seed: u64) -> Key<Literal> {
        Key { data: seed_words(seed) }
    }
}

impl<T> Key<T> {
    /// The words.
    pub fn into_data(self) -> T {
        self.data
    }
}

/// A constant with all bits of a 64-bit word, of an unsigned type.
fn constant_word(ty: &TensorType, word: u64) -> Tensor {
    if ty.dtype != DType::U64 {
        return full(ty.dtype, &ty.dims, word as f64);
    }
    super::constant(Literal::scalar(word)).broadcast_to(&ty.dims)
}

/// Refuses a range whose start is above its end, or NaN.
#[track_caller]
fn check_range(range: &Range<f64>) -> Option<Tensor> {
    if matches!(range.start.partial_cmp(&range.end), Some(Ordering::Less | Ordering::Equal)) {
        return None;
    }
    let expected = "one whose start is not above its end";
    Some(fail("the range of a random number", expected, format!("{range:?}")))
}

#[track_caller]
fn fail(what: &str, expected: &str, found: String) -> Tensor {
    let (what, expected) = (what.to_owned(), expected.to_owned());
    context::fail(TraceErrorKind::Mismatch { what, expected, found }, Location::caller())
}

/// The counter of each element: its row-major position, in two words, high before low.
fn counters(dims: &[usize]) -> [Tensor; 2] {
    let narrow = TensorType::new(DType::U32, dims);
    let is_wide = narrow.element_count() > u32::MAX as usize;
    let ty = if is_wide { narrow.with_dtype(DType::U64) } else { narrow };
    let position = positions(&ty, 0..dims.len());
    if is_wide {
        [(position >> 32.0).convert(DType::U32), position.convert(DType::U32)]
    } else {
        [position.zeros_like(), position]
    }
}

/// The counter of each element where rows have numbers of their own: that of its row (the first dimension), and its
/// row-major position within the row.
fn counters_by_row(dims: &[usize], rows: Tensor) -> [Tensor; 2] {
    let ty = TensorType::new(DType::U32, dims);
    let is_numbered = !dims.is_empty() && rows.dims()[..] == dims[..1];
    if !is_numbered || dims[1..].iter().product::<usize>() > u32::MAX as usize {
        let expected = format!("for each row of at most 2^32 elements of {ty} one number");
        return [fail("the row numbers of a random draw", &expected, rows.ty().to_string()); 2];
    }
    let position = positions(&ty, 1..dims.len());
    [rows.convert(DType::U32).broadcast_like(position, 0), position]
}

/// The counter of each element of a parameter: its row-major position within its layer, after the number of the layer.
/// The leading `stacked` dimensions run over layers, from number `first` on, every `step`-th.
fn counters_by_layer(dims: &[usize], stacked: usize, [first, step]: [u32; 2]) -> [Tensor; 2] {
    let ty = TensorType::new(DType::U32, dims);
    let place = positions(&ty, 0..stacked);
    let place = if step == 1 { place } else { place * constant_word(&ty, step.into()) };
    let layer = place + constant_word(&ty, first.into());
    if dims[stacked..].iter().product::<usize>() <= u32::MAX as usize {
        return [layer, positions(&ty, stacked..dims.len())];
    }
    let position = positions(&ty.with_dtype(DType::U64), stacked..dims.len());
    let above = (position >> 32.0).convert(DType::U32) << f64::from(LAYER_BITS);
    [layer | above, position.convert(DType::U32)]
}

/// The layer's bits of a counter's first word; those above are the upper bits of the position.
const LAYER_BITS: u32 = 16;

/// The counter of one element, as [`counters_by_layer`] has it.
pub(super) fn counter_in_layer(layer: u32, position: u64) -> [u32; 2] {
    [layer | ((position >> 32) as u32) << LAYER_BITS, position as u32]
}

/// The row-major position of each element within some of the dimensions.
fn positions(ty: &TensorType, within: Range<usize>) -> Tensor {
    let mut stride = 1;
    let mut position = None;
    for axis in within.rev() {
        let size = ty.dims[axis];
        let mut steps = iota(ty.dtype, &ty.dims, axis as i32);
        if stride > 1 {
            steps = steps * constant_word(ty, stride);
        }
        position = Some(position.map_or(steps, |sum: Tensor| sum + steps));
        stride *= size.max(1) as u64;
    }
    position.unwrap_or_else(|| zeros(ty.dtype, &ty.dims))
}

/// Two random words for each counter.
fn threefry(key: Key<Tensor>, counters: [Tensor; 2]) -> [Tensor; 2] {
    let ty = key.data.ty();
    if ty != TensorType::new(DType::U32, &[2]) && key.data.value != context::POISON {
        let expected = "one key, u32[2]; run over a stack of keys with `scan`";
        return [fail("the key of a random draw", expected, ty.to_string()); 2];
    }
    let dims = counters[1].dims();
    words_of([0, 1].map(|word| key.data.index(word).broadcast_to(&dims)), counters)
}

/// [`Threefry`] of the words of a key and of a counter: all `u32` of the same dimensions.
pub(crate) fn words_of(key: [Tensor; 2], counters: [Tensor; 2]) -> [Tensor; 2] {
    let words = apply_many(Threefry.into(), &[key, counters].concat(), 2, Location::caller());
    [words[0], words[1]]
}

/// Two words as one tensor with a last dimension of 2.
fn join(words: [Tensor; 2]) -> Tensor {
    stack(&words, -1)
}

fn random_bits(key: Key<Tensor>, dtype: DType, counters: [Tensor; 2]) -> Tensor {
    if !dtype.is_unsigned_integer() {
        return fail("the type of random bits", "an unsigned integer type", dtype.to_string());
    }
    let [high, low] = threefry(key, counters);
    if dtype == DType::U64 {
        let (high, low) = (high.convert(dtype), low.convert(dtype));
        return (high << 32.0) | low;
    }
    (high ^ low).convert(dtype)
}

/// Uniform in `[0, 1)`, at the positions of a tensor.
fn unit(key: Key<Tensor>, dtype: DType, dims: &[usize]) -> Tensor {
    unit_at(key, dtype, counters(dims))
}

/// Uniform in `[0, 1)`: random bits as the mantissa of a number in `[1, 2)`.
fn unit_at(key: Key<Tensor>, dtype: DType, counters: [Tensor; 2]) -> Tensor {
    let (word, drawn, mantissa_bits, one) = match dtype {
        // As JAX does, 7 bits of mantissa are drawn from 8, not 16.
        DType::BF16 => (DType::U16, DType::U8, 7, u64::from(half::bf16::ONE.to_bits())),
        DType::F16 => (DType::U16, DType::U16, 10, u64::from(half::f16::ONE.to_bits())),
        DType::F32 => (DType::U32, DType::U32, 23, u64::from(1f32.to_bits())),
        DType::F64 => (DType::U64, DType::U64, 52, 1f64.to_bits()),
        _ => return fail("the type of a random number", "bf16, f16, f32 or f64", dtype.to_string()),
    };
    let bits = random_bits(key, drawn, counters).convert(word);
    let spare = 8 * drawn.byte_count() - mantissa_bits;
    let number = (bits >> spare as f64) | constant_word(&bits.ty(), one);
    number.bitcast_convert(dtype) - 1.0
}

/// Uniform in `[low, high)`, which have the dimensions of the result.
fn between(unit: Tensor, low: Tensor, high: Tensor) -> Tensor {
    let extent = high - low;
    // Rounding must not lead below the range.
    low.maximum(unit * extent + low)
}

fn uniform(key: Key<Tensor>, dtype: DType, dims: &[usize], range: Range<f64>) -> Tensor {
    let unit = unit(key, dtype, dims);
    if range == (0.0..1.0) { unit } else { between(unit, unit.full_like(range.start), unit.full_like(range.end)) }
}

/// `sqrt(2) * erf_inv(x)`, at least in `f32`.
fn normal_of(x: Tensor) -> Tensor {
    let dtype = x.dtype();
    std::f64::consts::SQRT_2 * x.convert(dtype.at_least_f32()).erf_inv().convert(dtype)
}

fn gumbel(key: Key<Tensor>, dtype: DType, dims: &[usize]) -> Tensor {
    // Zero is left out, whose logarithm is infinite.
    let uniform = uniform(key, dtype, dims, smallest_normal(dtype)..1.0);
    -(-uniform.log()).log()
}

/// Row `index` of a stack of keys.
fn key_at(keys: Tensor, index: usize) -> Key<Tensor> {
    Key { data: keys.index(index as i64) }
}

fn split(key: Key<Tensor>, count: usize) -> Tensor {
    join(threefry(key, counters(&[count])))
}

/// Sorts `x` along its only dimension by fresh random keys, until no two elements are likely to have had equal keys
/// all along.
fn shuffle(key: Key<Tensor>, x: Tensor) -> Tensor {
    let count = x.dims().first().copied().unwrap_or(0);
    let rounds = (3.0 * (count.max(1) as f64).ln() / f64::from(u32::MAX).ln()).ceil() as usize;
    let (mut key, mut x) = (key, x);
    for _ in 0..rounds {
        let keys = split(key, 2);
        key = key_at(keys, 0);
        let order = random_bits(key_at(keys, 1), DType::U32, counters(&[count]));
        x = sort_together(&[order, x], 0, 1)[1];
    }
    x
}

fn smallest_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::MIN_POSITIVE.to_f64(),
        DType::F64 => f64::MIN_POSITIVE,
        // bf16 has the exponents of f32.
        _ => f32::MIN_POSITIVE.into(),
    }
}

/// The number next to -1 towards 0.
fn above_minus_one(dtype: DType) -> f64 {
    let mantissa_bits = match dtype {
        DType::BF16 => 7,
        DType::F16 => 10,
        DType::F32 => 23,
        _ => 52,
    };
    -1.0 + 0.5f64.powi(mantissa_bits + 1)
}

/// A number to fold into a key: a Rust number, or an integer tensor without dimensions, such as the step.
pub trait Fold {
    /// The number as a tensor.
    #[doc(hidden)]
    fn tensor(self, place: CallSite) -> Tensor;
}

impl Fold for u32 {
    fn tensor(self, place: CallSite) -> Tensor {
        splat(TensorType::scalar(DType::U32), self.into(), place)
    }
}

impl Fold for Tensor {
    fn tensor(self, _: CallSite) -> Tensor {
        self
    }
}

/// Draws. Unless said otherwise, a floating-point `dtype` is `bf16`, `f16`, `f32` or `f64`.
impl Key<Tensor> {
    /// The key of a seed.
    #[track_caller]
    pub fn new(seed: u64) -> Key<Tensor> {
        Key { data: super::constant(seed_words(seed)) }
    }

    /// A key from its words, `u32[2]`.
    #[track_caller]
    pub fn from_data(data: Tensor) -> Key<Tensor> {
        let ty = data.ty();
        if ty == TensorType::new(DType::U32, &[2]) || data.value == context::POISON {
            return Key { data };
        }
        Key { data: fail("the words of a key", "u32[2]", ty.to_string()) }
    }

    /// `N` new keys.
    #[track_caller]
    pub fn split<const N: usize>(self) -> [Key<Tensor>; N] {
        composite(Location::caller(), || {
            let keys = split(self, N);
            std::array::from_fn(|index| key_at(keys, index))
        })
    }

    /// `count` new keys, stacked: to be run over by a scan or batched over.
    #[track_caller]
    pub fn split_stacked(self, count: usize) -> Key<Tensor> {
        Key { data: composite(Location::caller(), || split(self, count)) }
    }

    /// The new key for a number: of a step, a layer, a place in the program.
    #[track_caller]
    pub fn fold_in(self, number: impl Fold) -> Key<Tensor> {
        let place = Location::caller();
        let joined = composite(place, || {
            let number = number.tensor(place).convert(DType::U32);
            join(threefry(self, [zeros(DType::U32, []), number]))
        });
        Key { data: joined }
    }

    /// The new keys for numbers of two words each, high before low, in one draw.
    #[track_caller]
    pub(super) fn fold_in_each(self, numbers: &[[u32; 2]]) -> Vec<Key<Tensor>> {
        composite(Location::caller(), || {
            let word = |word: usize| numbers.iter().map(|number| number[word]).collect::<Vec<u32>>();
            let words = [0, 1].map(|index| super::constant(Literal::vector(&word(index))));
            let keys = join(threefry(self, words));
            (0..numbers.len()).map(|index| key_at(keys, index)).collect()
        })
    }

    /// Random `u32` bits. Each element's depend on its layer and its position within the layer. The leading
    /// `stacked` dimensions run over layers, from number `first` on.
    #[track_caller]
    pub(super) fn bits_by_layer(self, dims: &[usize], stacked: usize, layers: [u32; 2]) -> Tensor {
        composite(Location::caller(), || random_bits(self, DType::U32, counters_by_layer(dims, stacked, layers)))
    }

    /// Random bits of an unsigned integer type.
    #[track_caller]
    pub fn bits(self, dtype: DType, dims: impl AsRef<[usize]>) -> Tensor {
        composite(Location::caller(), || random_bits(self, dtype, counters(dims.as_ref())))
    }

    /// Uniform in `[0, 1)`.
    #[track_caller]
    pub fn uniform(self, dtype: DType, dims: impl AsRef<[usize]>) -> Tensor {
        composite(Location::caller(), || unit(self, dtype, dims.as_ref()))
    }

    /// Uniform in a range.
    #[track_caller]
    pub fn uniform_in(self, dtype: DType, dims: impl AsRef<[usize]>, range: Range<f64>) -> Tensor {
        if let Some(failed) = check_range(&range) {
            return failed;
        }
        composite(Location::caller(), || uniform(self, dtype, dims.as_ref(), range))
    }

    /// Normal with mean 0 and variance 1.
    #[track_caller]
    pub fn normal(self, dtype: DType, dims: impl AsRef<[usize]>) -> Tensor {
        composite(Location::caller(), || normal_of(uniform(self, dtype, dims.as_ref(), above_minus_one(dtype)..1.0)))
    }

    /// Normal with mean 0 and variance 1, conditioned on lying strictly within a range. The type is `f32` or `f64`.
    #[track_caller]
    pub fn truncated_normal(self, dtype: DType, dims: impl AsRef<[usize]>, range: Range<f64>) -> Tensor {
        if let Some(failed) = check_range(&range) {
            return failed;
        }
        let (low, high) = match dtype {
            DType::F32 => ((range.start as f32).next_up().into(), (range.end as f32).next_down().into()),
            DType::F64 => (range.start.next_up(), range.end.next_down()),
            _ => return fail("the type of a truncated normal", "f32 or f64", dtype.to_string()),
        };
        composite(Location::caller(), || {
            let root = full(dtype, &dims, std::f64::consts::SQRT_2);
            let [from, to] = [range.start, range.end].map(|end| (root.full_like(end) / root).erf());
            normal_of(between(unit(self, dtype, dims.as_ref()), from, to)).maximum(low).minimum(high)
        })
    }

    /// True with a probability. The probability's resolution is 2^-23.
    #[track_caller]
    pub fn bernoulli(self, probability: f64, dims: impl AsRef<[usize]>) -> Tensor {
        composite(Location::caller(), || unit(self, DType::F32, dims.as_ref()).less(probability))
    }

    /// Random words, `u32` of `dims`, for rows (the first of `dims`) with numbers of their own: `rows`, integers `[n]`.
    /// A word depends on the row's number and the position within the row, wherever the row lies.
    #[track_caller]
    pub fn words_by_row(self, dims: impl AsRef<[usize]>, rows: Tensor) -> Tensor {
        composite(Location::caller(), || random_bits(self, DType::U32, counters_by_row(dims.as_ref(), rows)))
    }

    /// As [`Key::bernoulli`], for rows (the first of `dims`) with numbers of their own: `rows`, integers `[n]`. A draw
    /// depends on the row's number and the position within the row, wherever the row lies.
    #[track_caller]
    pub fn bernoulli_by_row(self, probability: f64, dims: impl AsRef<[usize]>, rows: Tensor) -> Tensor {
        composite(Location::caller(), || {
            unit_at(self, DType::F32, counters_by_row(dims.as_ref(), rows)).less(probability)
        })
    }

    /// Standard Gumbel: `-log(-log(u))`.
    #[track_caller]
    pub fn gumbel(self, dtype: DType, dims: impl AsRef<[usize]>) -> Tensor {
        composite(Location::caller(), || gumbel(self, dtype, dims.as_ref()))
    }

    /// Exponential with rate 1.
    #[track_caller]
    pub fn exponential(self, dtype: DType, dims: impl AsRef<[usize]>) -> Tensor {
        composite(Location::caller(), || -(-unit(self, dtype, dims.as_ref())).log_1p())
    }

    /// A position along the last dimension of `logits`, `s32`, with probability in proportion to `exp(logit)`; one for
    /// each row.
    #[track_caller]
    pub fn categorical(self, logits: Tensor) -> Tensor {
        let (ty, place) = (logits.ty(), Location::caller());
        let axis = ty.rank().saturating_sub(1);
        composite(place, || {
            let noisy = gumbel(self, ty.dtype, &ty.dims) + logits;
            apply(ArgReduce { kind: ArgReduceKind::Max, axis }, &[noisy], place)
        })
    }

    /// Integers in a range, nearly uniform: the bias is at most the range's extent over 2^64 (2^128 for 64-bit types).
    /// An empty range gives its start. Numbers of the range that the type cannot hold are cut off.
    ///
    /// As in JAX, twice the bits of the type (at least 32) are drawn and taken modulo the extent.
    #[track_caller]
    pub fn randint(self, dtype: DType, dims: impl AsRef<[usize]>, range: Range<i64>) -> Tensor {
        if !dtype.is_integer() {
            return fail("the type of random integers", "an integer type", dtype.to_string());
        }
        let (low, extent) = clip(dtype, range);
        let word = if dtype.byte_count() == 8 { DType::U64 } else { DType::U32 };
        let ty = TensorType::new(word, dims.as_ref());
        // 2^bits modulo the extent, by squaring so as not to overflow.
        let half = 1u64 << (4 * word.byte_count());
        let mask = if word == DType::U64 { u64::MAX } else { u32::MAX.into() };
        let root = half.checked_rem(extent).unwrap_or(half);
        let square = root.wrapping_mul(root) & mask;
        let factor = square.checked_rem(extent).unwrap_or(square);
        let wide = if dtype.is_signed_integer() || dtype.byte_count() < 4 { signed(word) } else { word };
        composite(Location::caller(), || {
            let keys = split(self, 2);
            let [high, rest] = [0, 1].map(|row| random_bits(key_at(keys, row), word, counters(&ty.dims)));
            let modulus = constant_word(&ty, extent);
            let factor = constant_word(&ty, factor);
            let offset = ((high % modulus) * factor + rest % modulus) % modulus;
            let start = constant_word(&ty, low as u64 & mask).convert(wide);
            (start + offset.convert(wide)).convert(dtype)
        })
    }

    /// The numbers below `count` in random order, `s32`.
    #[track_caller]
    pub fn permutation(self, count: usize) -> Tensor {
        composite(Location::caller(), || shuffle(self, arange(DType::S32, count)))
    }

    /// `x` with its leading dimension in random order.
    #[track_caller]
    pub fn shuffle(self, x: Tensor) -> Tensor {
        composite(Location::caller(), || match x.dims().as_slice() {
            [] => fail("what is shuffled", "a tensor with a dimension", x.ty().to_string()),
            [_] => shuffle(self, x),
            &[count, ..] => x.take(0, shuffle(self, arange(DType::S32, count))),
        })
    }
}

fn signed(word: DType) -> DType {
    if word == DType::U64 { DType::S64 } else { DType::S32 }
}

/// The start of the part of a range that a type holds, and its extent modulo two to the power of the type's (at least
/// 32) bits; 1 for an empty range.
fn clip(dtype: DType, range: Range<i64>) -> (i64, u64) {
    let bits = 8 * dtype.byte_count() as u32;
    let (least, greatest): (i128, i128) =
        if dtype.is_signed_integer() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let low = i128::from(range.start).clamp(least, greatest);
    let high = i128::from(range.end).clamp(least, greatest + 1);
    let extent = if high > low { (high - low) as u64 } else { 1 };
    (low as i64, if bits == 64 { extent } else { extent & u64::from(u32::MAX) })
}
