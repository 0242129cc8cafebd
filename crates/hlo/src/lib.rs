#![doc = include_str!("../README.md")]
// A library neither panics nor prints.
#![warn(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]

mod braces;
mod collective_config;
mod collective_kind;
pub mod crossing;
pub mod device_groups;
mod element_type;
pub mod files;
mod group_format;
#[doc(hidden)]
pub mod internals;
mod limits;
mod literal;
pub mod mesh;
pub mod message;
mod narrow;
mod number;
pub mod opcode;
pub mod parse;
mod passed_over;
mod platform_kind;
pub mod proto;
pub mod read;
mod reduce_kind;
mod shape;
mod small_float;
pub mod sort;
pub mod source;
mod stage;
pub mod stablehlo;
pub mod suggest;
mod syntax;
pub mod table;
pub mod text;
mod types;
pub mod wire;
mod words;
pub mod xplane;

pub use collective_config::CollectiveConfig;
pub use collective_kind::CollectiveKind;
pub use group_format::{ApiVersion, GroupFormat};
pub use literal::{Element, Literal, LiteralError, all_finite, literal_of_proto, literal_proto, number_bytes};
pub use narrow::{F8E4M3FN, F8E5M2, S4, U4};
pub use passed_over::PassedOver;
pub use platform_kind::PlatformKind;
pub use reduce_kind::ReduceKind;
pub use shape::{element_type, is_row_major, is_tuple, shape, tensor_type, tuple_shape};
pub use stage::Stage;
pub use types::{DType, Dims, TensorType};

/// Frontend attribute of a module whose parameters and results have the shapes of one device of several, not those of
/// whole values.
pub const LOCAL_SHAPES: &str = "local_shapes";
