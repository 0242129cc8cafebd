//! HLO modules: the protobuf types that XLA reads, and their text form.

pub mod proto;
pub mod text;
