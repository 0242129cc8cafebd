//! Element types, shapes and tensor types.

use std::fmt;

use smallvec::SmallVec;

use crate::proto::PrimitiveType;

/// The sizes of a tensor's dimensions, major to minor. A scalar has none.
pub type Dims = SmallVec<[usize; 6]>;

/// Declares the element types: each with its type in HLO's messages.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $dtype:ident = $element:ident,)*) => {
        /// The type of one element, named as in XLA's text form (`xla_data.proto`, `PrimitiveType`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $($(#[$doc])* $dtype,)*
        }

        impl DType {
            /// Every element type, in declaration order.
            pub const ALL: [DType; 17] = [$(DType::$dtype,)*];

            /// The type in HLO's messages.
            pub(crate) const fn element(self) -> PrimitiveType {
                match self {
                    $(DType::$dtype => PrimitiveType::$element,)*
                }
            }
        }
    };
}

dtypes! {
    /// Boolean, one byte.
    Pred = Pred,
    /// Signed 4-bit integer. On the host each has a byte of its own.
    S4 = S4,
    /// Signed 8-bit integer.
    S8 = S8,
    /// Signed 16-bit integer.
    S16 = S16,
    /// Signed 32-bit integer.
    S32 = S32,
    /// Signed 64-bit integer.
    S64 = S64,
    /// Unsigned 4-bit integer. On the host each has a byte of its own.
    U4 = U4,
    /// Unsigned 8-bit integer.
    U8 = U8,
    /// Unsigned 16-bit integer.
    U16 = U16,
    /// Unsigned 32-bit integer.
    U32 = U32,
    /// Unsigned 64-bit integer.
    U64 = U64,
    /// 8-bit floating point: 4 exponent bits, 3 mantissa bits, no infinities.
    F8E4M3FN = F8e4m3fn,
    /// 8-bit floating point: 5 exponent bits, 2 mantissa bits.
    F8E5M2 = F8e5m2,
    /// Brain floating point: 8 exponent bits, 7 mantissa bits.
    BF16 = Bf16,
    /// IEEE 754 half precision.
    F16 = F16,
    /// IEEE 754 single precision.
    F32 = F32,
    /// IEEE 754 double precision.
    F64 = F64,
}

impl DType {
    /// The name in HLO text: `f32`, `pred`, ...
    pub const fn name(self) -> &'static str {
        self.element().hlo_name()
    }

    /// The type with that HLO name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of one element on the host.
    #[inline]
    pub const fn byte_count(self) -> usize {
        match self {
            DType::Pred | DType::S4 | DType::U4 | DType::S8 | DType::U8 | DType::F8E4M3FN | DType::F8E5M2 => 1,
            DType::S16 | DType::U16 | DType::BF16 | DType::F16 => 2,
            DType::S32 | DType::U32 | DType::F32 => 4,
            DType::S64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// Bits of one element that count; a `pred` has one.
    pub const fn bit_count(self) -> usize {
        match self {
            DType::Pred => 1,
            DType::S4 | DType::U4 => 4,
            dtype => 8 * dtype.byte_count(),
        }
    }

    /// Whether values of this type have gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F8E4M3FN | DType::F8E5M2 | DType::BF16 | DType::F16 | DType::F32 | DType::F64)
    }

    /// The type in which sums and other long computations over values of a floating-point type are done: `f64` for
    /// `f64`, else `f32`.
    #[must_use]
    pub const fn at_least_f32(self) -> DType {
        if matches!(self, DType::F64) { DType::F64 } else { DType::F32 }
    }

    /// The smallest number of the type: an infinity where it has one. The value for `s64` is exact.
    pub const fn lowest(self) -> f64 {
        match self {
            DType::S4 => -8.0,
            DType::S8 => i8::MIN as f64,
            DType::S16 => i16::MIN as f64,
            DType::S32 => i32::MIN as f64,
            DType::S64 => i64::MIN as f64,
            DType::F8E4M3FN => -448.0,
            DType::F8E5M2 | DType::BF16 | DType::F16 | DType::F32 | DType::F64 => f64::NEG_INFINITY,
            DType::Pred | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => 0.0,
        }
    }

    /// The largest number of the type: an infinity where it has one. The values for 64-bit integers are one too high.
    pub const fn highest(self) -> f64 {
        match self {
            DType::Pred => 1.0,
            DType::S4 => 7.0,
            DType::S8 => i8::MAX as f64,
            DType::S16 => i16::MAX as f64,
            DType::S32 => i32::MAX as f64,
            DType::S64 => i64::MAX as f64,
            DType::U4 => 15.0,
            DType::U8 => u8::MAX as f64,
            DType::U16 => u16::MAX as f64,
            DType::U32 => u32::MAX as f64,
            DType::U64 => u64::MAX as f64,
            DType::F8E4M3FN => 448.0,
            DType::F8E5M2 | DType::BF16 | DType::F16 | DType::F32 | DType::F64 => f64::INFINITY,
        }
    }

    /// Whether this is a signed or unsigned integer type (`pred` is neither).
    pub const fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// Whether this is a signed integer type.
    pub const fn is_signed_integer(self) -> bool {
        matches!(self, DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64)
    }

    /// The order in which HLO compares elements of the type, in which NaN is unordered.
    pub const fn comparison_type(self) -> &'static str {
        if self.is_float() {
            "FLOAT"
        } else if self.is_signed_integer() {
            "SIGNED"
        } else {
            "UNSIGNED"
        }
    }

    /// Whether this is an unsigned integer type.
    pub const fn is_unsigned_integer(self) -> bool {
        matches!(self, DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and dimension sizes of one value.
///
/// The text form is HLO's without layout: `f32[16,256]`, `s32[]`.
#[derive(PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimension sizes, major to minor.
    pub dims: Dims,
}

// Types are copied more often than anything else, and `SmallVec` clones element by element where this copies bytes.
impl Clone for TensorType {
    #[inline]
    fn clone(&self) -> TensorType {
        TensorType { dtype: self.dtype, dims: Dims::from_slice(&self.dims) }
    }
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType { dtype, dims: Dims::from_slice(dims) }
    }

    /// The type of a single element without dimensions.
    pub fn scalar(dtype: DType) -> TensorType {
        TensorType { dtype, dims: Dims::new() }
    }

    /// Number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements; 1 for a scalar, 0 when any dimension is empty; the largest number where it cannot be
    /// counted.
    #[inline]
    pub fn element_count(&self) -> usize {
        if self.dims.contains(&0) {
            return 0;
        }
        self.dims.iter().fold(1, |count: usize, &size| count.saturating_mul(size))
    }

    /// Bytes of the dense value; the largest number where they cannot be counted.
    #[inline]
    pub fn byte_count(&self) -> usize {
        self.element_count().saturating_mul(self.dtype.byte_count())
    }

    /// Whether sizes and bytes are numbers that XLA, which counts in signed 64-bit integers, can represent.
    pub fn is_addressable(&self) -> bool {
        const LIMIT: usize = isize::MAX as usize;
        self.dims.iter().all(|&size| size <= LIMIT) && self.byte_count() <= LIMIT
    }

    /// The same dimensions with another element type.
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType { dtype, dims: self.dims.clone() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (index, size) in self.dims.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{size}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
