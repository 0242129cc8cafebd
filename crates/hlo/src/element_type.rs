//! The element types of HLO: their names and sizes.

use crate::proto::PrimitiveType;

/// Declares the names of types, and the bits of an element, which are 0 for a type without a known size.
macro_rules! element_types {
    ($($($variant:ident $name:literal $bits:literal),+;)*) => {
        impl PrimitiveType {
            /// The name in HLO text: `f32`, `f8e4m3fn`, `pred`.
            pub(crate) const fn hlo_name(self) -> &'static str {
                match self {
                    $($(PrimitiveType::$variant => $name,)+)*
                    PrimitiveType::Tuple => "tuple",
                    PrimitiveType::Buffer => "b",
                }
            }

            /// The type of a name that shapes start with; those of tuples and buffers start otherwise.
            pub(crate) fn from_hlo_name(name: &str) -> Option<PrimitiveType> {
                match name {
                    $($($name => Some(PrimitiveType::$variant),)+)*
                    _ => None,
                }
            }

            /// Bits of an element; `None` for a type that no array has.
            pub fn bits(self) -> Option<u64> {
                let bits = match self {
                    $($(PrimitiveType::$variant => $bits,)+)*
                    PrimitiveType::Tuple | PrimitiveType::Buffer => 0,
                };
                (bits > 0).then_some(bits)
            }
        }
    };
}

// The most frequent ones come first: names are compared in this order.
element_types! {
    F32 "f32" 32, S32 "s32" 32, Pred "pred" 8, Bf16 "bf16" 16, U32 "u32" 32;
    S64 "s64" 64, U64 "u64" 64, F16 "f16" 16, F64 "f64" 64, C64 "c64" 64, C128 "c128" 128;
    S1 "s1" 1, S2 "s2" 2, S4 "s4" 4, S8 "s8" 8, S16 "s16" 16;
    U1 "u1" 1, U2 "u2" 2, U4 "u4" 4, U8 "u8" 8, U16 "u16" 16;
    F8e5m2 "f8e5m2" 8, F8e5m2fnuz "f8e5m2fnuz" 8, F8e3m4 "f8e3m4" 8, F8e8m0fnu "f8e8m0fnu" 8;
    F8e4m3 "f8e4m3" 8, F8e4m3fn "f8e4m3fn" 8, F8e4m3b11fnuz "f8e4m3b11fnuz" 8, F8e4m3fnuz "f8e4m3fnuz" 8;
    F4e2m1fn "f4e2m1fn" 4, F6e3m2fn "f6e3m2fn" 0, F6e2m3fn "f6e2m3fn" 0;
    Token "token" 0, OpaqueType "opaque" 0, Invalid "invalid" 0;
}
