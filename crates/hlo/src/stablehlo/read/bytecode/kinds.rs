//! The numbers of kinds of attributes and types that code asks for by name.

pub(in crate::stablehlo) const DICTIONARY: u64 = BUILTIN_CODES.dictionary;
pub(in crate::stablehlo) const UNIT: u8 = 7;
pub(in crate::stablehlo) const RESOURCE: u64 = 16;
pub(in crate::stablehlo) const DENSE: u64 = BUILTIN_CODES.dense;
pub(in crate::stablehlo) const VHLO_TENSOR: u64 = VHLO_CODES.dense;
pub(in crate::stablehlo) const INTEGER_TYPE: u64 = 0;

/// The numbers of a dialect's kinds that its tables have no template for.
pub(in crate::stablehlo) struct OwnCodes {
    pub(in crate::stablehlo) dictionary: u64,
    pub(in crate::stablehlo) integer: u64,
    pub(in crate::stablehlo) float: u64,
    pub(in crate::stablehlo) dense: u64,
    /// The types of arrays, without an encoding and with one.
    pub(in crate::stablehlo) tensors: [u64; 2],
}

pub(in crate::stablehlo) const BUILTIN_CODES: OwnCodes =
    OwnCodes { dictionary: 1, integer: 8, float: 9, dense: 18, tensors: [13, 14] };
pub(in crate::stablehlo) const VHLO_CODES: OwnCodes =
    OwnCodes { dictionary: 6, integer: 9, float: 8, dense: 15, tensors: [20, 21] };

/// The numbers of kinds that only MLIR's own dialect has: a symbol, an array of numbers, and those of locations.
pub(in crate::stablehlo) mod builtin {
    pub(in crate::stablehlo) const SYMBOL: u64 = 4;
    pub(in crate::stablehlo) const CALL_SITE: u64 = 10;
    pub(in crate::stablehlo) const FILE: u64 = 11;
    pub(in crate::stablehlo) const FUSED: u64 = 12;
    pub(in crate::stablehlo) const NAMED: u64 = 14;
    pub(in crate::stablehlo) const UNKNOWN: u64 = 15;
    pub(in crate::stablehlo) const ARRAY: u64 = 17;
}
