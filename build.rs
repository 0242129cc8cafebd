//! Compiles `proto/*.proto` to Rust with protox, so that no `protoc` is needed.

use std::error::Error;

/// Message fields that few instructions have and that are large. Boxed, they cost a pointer in every
/// `HloInstructionProto` instead of their own size.
const BOXED_FIELDS: &[&str] = &[
    ".xla.HloInstructionProto.backend_config_payload",
    ".xla.HloInstructionProto.block_scaling_config",
    ".xla.HloInstructionProto.cholesky_options",
    ".xla.HloInstructionProto.collective_device_list",
    ".xla.HloInstructionProto.convolution_dimension_numbers",
    ".xla.HloInstructionProto.domain_entry_sharding",
    ".xla.HloInstructionProto.domain_exit_sharding",
    ".xla.HloInstructionProto.dot_dimension_numbers",
    ".xla.HloInstructionProto.gather_dimension_numbers",
    ".xla.HloInstructionProto.iota_collective_device_list",
    ".xla.HloInstructionProto.literal",
    ".xla.HloInstructionProto.mesh_axes_replica_group_list",
    ".xla.HloInstructionProto.metadata",
    ".xla.HloInstructionProto.original_value",
    ".xla.HloInstructionProto.outfeed_shape",
    ".xla.HloInstructionProto.parameter_replication",
    ".xla.HloInstructionProto.precision_config",
    ".xla.HloInstructionProto.ragged_dot_dimension_numbers",
    ".xla.HloInstructionProto.result_accuracy",
    ".xla.HloInstructionProto.scatter_dimension_numbers",
    ".xla.HloInstructionProto.sharding",
    ".xla.HloInstructionProto.sparsity_config",
    ".xla.HloInstructionProto.statistics_viz",
    ".xla.HloInstructionProto.triangular_solve_options",
    ".xla.OpSharding.named_sharding",
    ".xla.OpSharding.tile_shape",
    ".xla.ShapeProto.layout",
];

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["hlo.proto", "xla_data.proto", "xla.proto", "compile_options.proto"];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    let mut config = prost_build::Config::new();
    // A module must encode to the same bytes every time, so maps are ordered.
    config.btree_map(["."]);
    for field in BOXED_FIELDS {
        config.boxed(field);
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
