//! Dense host values.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::narrow::{F8E4M3FN, F8E5M2, S4, U4, to_odd};
use super::types::{DType, TensorType};
use crate::proto::LiteralProto;
use crate::shape::{is_row_major, shape, tensor_type};
use crate::syntax::elements::{element_bytes, set_element_bytes};

/// A Rust scalar that is the host form of a [`DType`].
pub trait Element: bytemuck::NoUninit + bytemuck::AnyBitPattern + PartialEq + Send + Sync {
    /// The element type it stands for.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident, $to:expr, $from:expr;)*) => {
        $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })*

        fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
            fn each<T: Element>(bytes: &[u8], convert: impl Fn(T) -> f64) -> Vec<f64> {
                bytes.chunks_exact(size_of::<T>()).map(|chunk| convert(bytemuck::pod_read_unaligned(chunk))).collect()
            }
            match dtype {
                DType::Pred => each(bytes, |x: u8| x.into()),
                $(DType::$dtype => each::<$rust>(bytes, $to),)*
            }
        }

        fn put_number(dtype: DType, number: f64, element: &mut [u8]) {
            fn put<T: Element>(number: f64, convert: impl Fn(f64) -> T, element: &mut [u8]) {
                element.copy_from_slice(bytemuck::bytes_of(&convert(number)));
            }
            match dtype {
                DType::Pred => element.copy_from_slice(&[u8::from(number != 0.0)]),
                $(DType::$dtype => put::<$rust>(number, $from, element),)*
            }
        }
    };
}

elements! {
    i8 => S8, f64::from, |number| number as i8;
    i16 => S16, f64::from, |number| number as i16;
    i32 => S32, f64::from, |number| number as i32;
    i64 => S64, |x| x as f64, |number| number as i64;
    u8 => U8, f64::from, |number| number as u8;
    u16 => U16, f64::from, |number| number as u16;
    u32 => U32, f64::from, |number| number as u32;
    u64 => U64, |x| x as f64, |number| number as u64;
    S4 => S4, S4::to_f64, S4::from_f64;
    U4 => U4, U4::to_f64, U4::from_f64;
    F8E4M3FN => F8E4M3FN, F8E4M3FN::to_f64, F8E4M3FN::from_f64;
    F8E5M2 => F8E5M2, F8E5M2::to_f64, F8E5M2::from_f64;
    half::bf16 => BF16, half::bf16::to_f64, |number| half::bf16::from_f32(to_odd(number));
    half::f16 => F16, half::f16::to_f64, |number| half::f16::from_f32(to_odd(number));
    f32 => F32, f64::from, |number| number as f32;
    f64 => F64, |x| x, |number| number;
}

/// A dense, immutable host tensor: row-major bytes in native (little-endian) order. Cloning shares the bytes.
///
/// `pred` is one byte an element, 0 or 1. So are 4-bit integers, in its low bits: that is how PJRT takes and gives
/// them.
#[derive(Clone)]
pub struct Literal {
    ty: TensorType,
    bytes: Arc<[u8]>,
}

impl Literal {
    /// A literal from raw row-major bytes.
    ///
    /// # Errors
    /// There are not as many bytes as the type takes.
    pub fn from_bytes(ty: TensorType, bytes: impl Into<Arc<[u8]>>) -> Result<Literal, LiteralError> {
        let bytes = bytes.into();
        if bytes.len() != ty.byte_count() {
            return Err(LiteralError { expected: ty.byte_count(), found: bytes.len(), what: "bytes", ty });
        }
        Ok(Literal { ty, bytes })
    }

    /// A literal from row-major elements.
    ///
    /// # Errors
    /// The number of elements is not the product of `dims`.
    pub fn from_slice<T: Element>(dims: &[usize], elements: &[T]) -> Result<Literal, LiteralError> {
        Literal::from_elements(TensorType::new(T::DTYPE, dims), elements.len(), bytemuck::cast_slice(elements))
    }

    /// A `pred` literal from row-major elements.
    ///
    /// # Errors
    /// The number of elements is not the product of `dims`.
    pub fn from_bools(dims: &[usize], elements: &[bool]) -> Result<Literal, LiteralError> {
        Literal::from_elements(TensorType::new(DType::Pred, dims), elements.len(), bytemuck::cast_slice(elements))
    }

    fn from_elements(ty: TensorType, found: usize, bytes: &[u8]) -> Result<Literal, LiteralError> {
        if found != ty.element_count() {
            return Err(LiteralError { expected: ty.element_count(), found, what: "elements", ty });
        }
        Literal::from_bytes(ty, bytes)
    }

    /// A scalar.
    pub fn scalar<T: Element>(element: T) -> Literal {
        Literal { ty: TensorType::scalar(T::DTYPE), bytes: bytemuck::bytes_of(&element).into() }
    }

    /// A literal of one dimension.
    pub fn vector<T: Element>(elements: &[T]) -> Literal {
        Literal { ty: TensorType::new(T::DTYPE, &[elements.len()]), bytes: bytemuck::cast_slice(elements).into() }
    }

    /// A literal of two dimensions, from its rows.
    pub fn matrix<T: Element, const N: usize>(rows: &[[T; N]]) -> Literal {
        let ty = TensorType::new(T::DTYPE, &[rows.len(), N]);
        Literal { ty, bytes: bytemuck::cast_slice(rows.as_flattened()).into() }
    }

    /// A literal of the numbers that `f` gives for each row-major position, converted to the element type; out-of-range
    /// integers saturate.
    pub fn from_fn(ty: TensorType, f: impl Fn(usize) -> f64) -> Literal {
        let mut bytes = vec![0; ty.byte_count()];
        for (index, element) in bytes.chunks_exact_mut(ty.dtype.byte_count()).enumerate() {
            put_number(ty.dtype, f(index), element);
        }
        Literal { ty, bytes: bytes.into() }
    }

    /// Copies of it, along a new leading dimension.
    #[must_use]
    pub fn repeated(&self, count: usize) -> Literal {
        let mut ty = self.ty.clone();
        ty.dims.insert(0, count);
        Literal { ty, bytes: self.bytes.repeat(count).into() }
    }

    /// Its elements converted to an element type: floating-point numbers round to nearest, integers saturate.
    #[must_use]
    pub fn convert(self, dtype: DType) -> Literal {
        if dtype == self.ty.dtype {
            return self;
        }
        let numbers = self.to_f64_vec();
        Literal::from_fn(self.ty.with_dtype(dtype), |index| numbers[index])
    }

    /// Element type and dimensions.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The row-major bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements; `None` when `T` is not the element type.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        (T::DTYPE == self.ty.dtype)
            .then(|| self.bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// All elements as `f64`, whatever the element type (64-bit integers are rounded).
    pub fn to_f64_vec(&self) -> Vec<f64> {
        numbers(self.ty.dtype, &self.bytes)
    }
}

/// Whether all numbers of an element type in these bytes are finite; integers always are.
pub fn all_finite(dtype: DType, bytes: &[u8]) -> bool {
    // Numbers whose exponent bits are all set. Without a branch per number, so that they are compared many at once.
    fn none<const N: usize, T: Element>(bytes: &[u8], is_special: impl Fn(T) -> bool) -> bool {
        let (chunks, _) = bytes.as_chunks::<N>();
        !chunks.iter().fold(false, |found, chunk| found | is_special(bytemuck::pod_read_unaligned(chunk)))
    }
    match dtype {
        DType::F8E4M3FN => none::<1, u8>(bytes, |bits| bits & 0x7f == 0x7f),
        DType::F8E5M2 => none::<1, u8>(bytes, |bits| bits & 0x7c == 0x7c),
        DType::BF16 => none::<2, u16>(bytes, |bits| bits & 0x7f80 == 0x7f80),
        DType::F16 => none::<2, u16>(bytes, |bits| bits & 0x7c00 == 0x7c00),
        DType::F32 => none::<4, u32>(bytes, |bits| bits & 0x7f80_0000 == 0x7f80_0000),
        DType::F64 => none::<8, u64>(bytes, |bits| bits & 0x7ff0 << 48 == 0x7ff0 << 48),
        DType::Pred | DType::S4 | DType::U4 | DType::S8 | DType::S16 | DType::S32 | DType::S64 => true,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => true,
    }
}

/// A dense literal as a message has it.
pub fn literal_proto(ty: &TensorType, bytes: &[u8]) -> LiteralProto {
    let mut literal = LiteralProto { shape: Some(shape(ty)), ..LiteralProto::default() };
    match ty.dtype {
        // One a byte, in its low bits.
        DType::S4 | DType::U4 => {
            let low: Vec<u8> = bytes.iter().map(|byte| byte & 15).collect();
            set_element_bytes(&mut literal, ty.dtype.element(), &low);
        }
        dtype => set_element_bytes(&mut literal, dtype.element(), bytes),
    }
    literal
}

/// The literal that a message has; `None` for a type that is none of [`TensorType`]'s, for elements that were left out,
/// and for an order other than row-major.
pub fn literal_of_proto(proto: &LiteralProto) -> Option<Literal> {
    let shape = proto.shape.as_ref()?;
    let ty = tensor_type(shape).filter(|_| is_row_major(shape))?;
    let (mut bytes, _) = element_bytes(proto, ty.dtype.element())?;
    if ty.dtype == DType::S4 {
        // One a byte, with its sign.
        bytes.iter_mut().for_each(|byte| *byte = ((*byte << 4) as i8 >> 4) as u8);
    }
    Literal::from_bytes(ty, bytes).ok()
}

/// Host values that are more or fewer than a literal of their type takes.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("a literal of type {ty} takes {expected} {what}, but {found} are given")]
pub struct LiteralError {
    /// The type of the literal.
    pub ty: TensorType,
    /// `elements` or `bytes`.
    pub what: &'static str,
    /// The number that the type takes.
    pub expected: usize,
    /// The number that is given.
    pub found: usize,
}

crate::debug_is_message!(LiteralError);

/// The bytes of a number in an element type. Only the first bytes are used, as many as the type has; out-of-range
/// integers saturate.
pub fn number_bytes(dtype: DType, number: f64) -> [u8; 8] {
    let mut bytes = [0; 8];
    put_number(dtype, number, &mut bytes[..dtype.byte_count()]);
    bytes
}

/// The least positive number of `f8e4m3fn`: no floating-point type has a greater one.
const F8E4M3FN_LEAST: f64 = 1.0 / 512.0;

impl DType {
    /// Whether a number can stand for itself in this type: exactly in an integer type or `pred` (0 or 1); in a
    /// floating-point type after rounding, which must neither overflow nor leave nothing of it.
    pub fn holds(self, number: f64) -> bool {
        if !self.is_float() {
            let in_range = match self {
                DType::S64 | DType::U64 => self.lowest() <= number && number < self.highest(),
                _ => self.lowest() <= number && number <= self.highest(),
            };
            return in_range && number.fract() == 0.0;
        }
        // Every traced number comes by here: most are between the least and the largest that all types have.
        if number == 0.0 || number.is_nan() || (F8E4M3FN_LEAST..=DType::F8E4M3FN.highest()).contains(&number.abs()) {
            return true;
        }
        let held = Literal::from_fn(TensorType::scalar(self), |_| number).to_f64_vec();
        held.iter().all(|&held| held == number || (number.is_finite() && held.is_finite() && held != 0.0))
    }
}

// Bit equality: what common-subexpression elimination needs (it must not merge 0.0 with -0.0 and may merge equal NaNs).
impl PartialEq for Literal {
    fn eq(&self, other: &Literal) -> bool {
        self.ty == other.ty && self.bytes == other.bytes
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ty.hash(state);
        self.bytes.hash(state);
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.ty, self.to_f64_vec())
    }
}
