//! The words that StableHLO and HLO have for the same things, once for both directions.

use crate::proto::PrimitiveType;
use crate::syntax::opcodes::{Mark, Operation};

/// The dialects that have an opcode as an op that carries nothing but operands, and whose result has a stated type in
/// both languages.
fn dialects(operation: &Operation) -> &'static [&'static str] {
    match operation.name {
        // Older texts have the second name: `stablehlo.tan` came later.
        "tan" => &["stablehlo", "chlo"],
        _ if operation.has(Mark::Stable) => &["stablehlo"],
        _ if operation.has(Mark::Higher) => &["chlo", "mhlo"],
        _ => &[],
    }
}

/// The opcode of a plain op, which is named with its dialect.
pub fn opcode(name: &str) -> Option<&'static str> {
    let (dialect, op) = name.split_once('.').filter(|(_, op)| !op.contains('-'))?;
    let operation = match op.contains('_') {
        true => Operation::from_name(&op.replace('_', "-")),
        false => Operation::from_name(op),
    }?;
    dialects(operation).contains(&dialect).then_some(operation.name)
}

/// The name of a plain op with its dialect, by its opcode.
pub fn name(opcode: &str) -> Option<String> {
    let dialect = dialects(Operation::from_name(opcode)?).first()?;
    Some(format!("{dialect}.{}", opcode.replace('-', "_")))
}

/// The names of all plain ops.
pub fn names() -> impl Iterator<Item = String> {
    Operation::names().filter_map(name).chain(["chlo.tan".to_owned()])
}

/// Elements of a constant at most that is repeated in each region that uses it: a region is a few bytes of text.
pub(crate) const REPEATED: i64 = 16;

/// A splat of this many elements is a scalar that is broadcast, as XLA has it: what a text states in a line may be
/// larger than any memory.
pub(crate) const LARGE_SPLAT: i64 = 32;

/// The number that XLA gives the host's memory in layouts, and what JAX calls it.
pub(crate) const HOST_MEMORY: (i64, &str) = (5, "pinned_host");

/// The directions of a comparison, which both languages write alike.
pub(crate) const DIRECTIONS: [&str; 6] = ["EQ", "NE", "LT", "LE", "GT", "GE"];

/// The kinds of a comparison. HLO leaves out the usual one of an element type; StableHLO may, and JAX does not.
pub(crate) const COMPARISONS: [&str; 4] = ["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"];

/// Element types as MLIR names them.
const ELEMENTS: &[(&str, PrimitiveType)] = &[
    ("f32", PrimitiveType::F32),
    ("i32", PrimitiveType::S32),
    ("i1", PrimitiveType::Pred),
    ("bf16", PrimitiveType::Bf16),
    ("ui32", PrimitiveType::U32),
    ("i64", PrimitiveType::S64),
    ("ui64", PrimitiveType::U64),
    ("f16", PrimitiveType::F16),
    ("f64", PrimitiveType::F64),
    ("complex<f32>", PrimitiveType::C64),
    ("complex<f64>", PrimitiveType::C128),
    ("i2", PrimitiveType::S2),
    ("i4", PrimitiveType::S4),
    ("i8", PrimitiveType::S8),
    ("i16", PrimitiveType::S16),
    ("ui1", PrimitiveType::U1),
    ("ui2", PrimitiveType::U2),
    ("ui4", PrimitiveType::U4),
    ("ui8", PrimitiveType::U8),
    ("ui16", PrimitiveType::U16),
    ("f8E5M2", PrimitiveType::F8e5m2),
    ("f8E5M2FNUZ", PrimitiveType::F8e5m2fnuz),
    ("f8E3M4", PrimitiveType::F8e3m4),
    ("f8E8M0FNU", PrimitiveType::F8e8m0fnu),
    ("f8E4M3", PrimitiveType::F8e4m3),
    ("f8E4M3FN", PrimitiveType::F8e4m3fn),
    ("f8E4M3B11FNUZ", PrimitiveType::F8e4m3b11fnuz),
    ("f8E4M3FNUZ", PrimitiveType::F8e4m3fnuz),
    ("f4E2M1FN", PrimitiveType::F4e2m1fn),
    ("f6E2M3FN", PrimitiveType::F6e2m3fn),
    ("f6E3M2FN", PrimitiveType::F6e3m2fn),
];

/// The element type of a name.
pub fn element(name: &str) -> Option<PrimitiveType> {
    ELEMENTS.iter().find(|(candidate, _)| *candidate == name).map(|(_, element)| *element)
}

/// The name of an element type; none for one that StableHLO does not have.
pub fn element_name(element: PrimitiveType) -> Option<&'static str> {
    ELEMENTS.iter().find(|(_, candidate)| *candidate == element).map(|(name, _)| *name)
}

/// The names of all element types.
pub fn element_names() -> impl Iterator<Item = &'static str> {
    ELEMENTS.iter().map(|(name, _)| *name)
}
