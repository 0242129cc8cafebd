//! Parts of the crate that the project's own tests look at one by one. Nothing here is for users, and any version may
//! change or remove it.

pub use crate::opcode::names as opcodes;
use crate::syntax::opcodes::{Operation, Use};

/// The names that StableHLO and HLO have for the same ops and types.
pub mod stablehlo_names {
    pub use crate::stablehlo::names::{element, element_name, element_names, name, names, opcode};
}

/// Returns the opcode that has this name.
pub fn opcode(name: &str) -> Option<&'static str> {
    Operation::from_name(name).map(|operation| operation.name)
}

/// Returns the attributes that an opcode has beside the common ones: number, name, and whether the parser reads it.
pub fn attributes(opcode: &str) -> Vec<(u8, &'static str, bool)> {
    let attributes = Operation::from_name(opcode).map_or(&[][..], |operation| operation.attributes);
    attributes.iter().map(|&(attribute, usage)| (attribute as u8, attribute.name(), usage != Use::Unread)).collect()
}

/// Returns the number of the attribute that the parser reads by this name in an opcode.
pub fn attribute_named(opcode: &str, name: &str) -> Option<u8> {
    Operation::from_name(opcode)?.allowed.named(name).map(|attribute| attribute as u8)
}
