//! HLO modules: the protobuf types XLA reads.

pub mod proto;
