//! Makes `crates/hlo/src/proto/generated.rs`, the Rust of XLA's messages, from `proto/*.proto`, so that no build runs a
//! code generator.
//!
//! ```text
//! cargo run --manifest-path proto/generator/Cargo.toml             # after a change of the proto files
//! cargo run --manifest-path proto/generator/Cargo.toml -- --check  # fails if the file is not what it would be
//! ```
//!
//! The first line of the file is a digest of what it was made from and of what it says. The tests compare that, so that
//! they need no generator.

use std::error::Error;
use std::fs;
use std::path::Path;

use protox::prost_reflect::prost_types::FileDescriptorProto;
use protox::prost_reflect::prost_types::source_code_info::Location;
use sha2::{Digest, Sha256};

const FILES: [&str; 4] = ["hlo.proto", "xla_data.proto", "xla.proto", "compile_options.proto"];

/// Message fields that few instructions have and that are large. Boxed, they cost a pointer in every message instead of
/// their own size.
const BOXED_FIELDS: &[&str] = &[
    ".xla.HloInstructionProto.collective_device_list",
    ".xla.HloInstructionProto.dot_dimension_numbers",
    ".xla.HloInstructionDetails.gather_dimension_numbers",
    ".xla.HloInstructionProto.iota_collective_device_list",
    ".xla.HloInstructionProto.literal",
    ".xla.HloInstructionProto.mesh_axes_replica_group_list",
    ".xla.HloInstructionProto.metadata",
    ".xla.HloInstructionProto.original_value",
    ".xla.HloInstructionProto.precision_config",
    ".xla.HloInstructionDetails.scatter_dimension_numbers",
    ".xla.HloInstructionProto.sharding",
    ".xla.HloInstructionProto.statistics_viz",
    ".xla.HloInstructionDetails.backend_config_payload",
    ".xla.HloInstructionDetails.block_scaling_config",
    ".xla.HloInstructionDetails.cholesky_options",
    ".xla.HloInstructionDetails.convolution_dimension_numbers",
    ".xla.HloInstructionDetails.domain_entry_sharding",
    ".xla.HloInstructionDetails.domain_exit_sharding",
    ".xla.HloInstructionDetails.outfeed_shape",
    ".xla.HloInstructionDetails.parameter_replication",
    ".xla.HloInstructionDetails.ragged_dot_dimension_numbers",
    ".xla.HloInstructionDetails.result_accuracy",
    ".xla.HloInstructionDetails.sparsity_config",
    ".xla.HloInstructionDetails.triangular_solve_options",
    ".xla.OpMetadata.metadata_payload",
    ".xla.OpMetadata.profile_info",
    ".xla.OpSharding.named_sharding",
    ".xla.OpSharding.tile_shape",
    ".xla.ShapeProto.layout",
];

/// Fields of an instruction that few opcodes have. They are in a message of their own, `HloInstructionDetails`, which an
/// instruction that has one of them points to: the bytes stay the same, and a module takes half the memory.
const RARE_FIELDS: &[&str] = &[
    "all_reduce_id",
    "async_execution_thread",
    "backend_config_payload",
    "batch_group_count",
    "block_scaling_config",
    "cholesky_options",
    "comparison_order",
    "comparison_type",
    "constrain_layout",
    "conv_kind",
    "convolution_dimension_numbers",
    "custom_call_api_version",
    "custom_call_has_side_effect",
    "custom_call_schedule",
    "custom_call_target",
    "delta",
    "distribution",
    "domain_entry_sharding",
    "domain_exit_sharding",
    "dynamic_slice_sizes",
    "epsilon",
    "exponent_bits",
    "feature_group_count",
    "feature_index",
    "fft_length",
    "fft_type",
    "gather_dimension_numbers",
    "gather_slice_sizes",
    "has_dynamic_root",
    "indices_are_sorted",
    "infeed_config",
    "is_associative",
    "is_composite",
    "is_cross_program_prefetch",
    "is_host_transfer",
    "is_reverse",
    "is_stable",
    "k",
    "largest",
    "mantissa_bits",
    "operand_shapes_with_layout",
    "outfeed_config",
    "outfeed_shape",
    "output_operand_aliasing",
    "padding_config",
    "padding_type",
    "parameter_replication",
    "ragged_dot_dimension_numbers",
    "result_accuracy",
    "rng_algorithm",
    "scatter_dimension_numbers",
    "slice_dimensions",
    "sparsity_config",
    "triangular_solve_options",
    "unique_indices",
];

/// Where the generated code has the fields of an instruction.
const INSTRUCTION: &str = "pub struct HloInstructionProto {\n";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let code = generate(&root.join("proto"))?;
    let mut files = FILES.map(|file| format!("proto/{file}")).to_vec();
    files.push("proto/generator/src/main.rs".to_owned());
    let mut digest = Sha256::new();
    for file in files {
        digest.update(fs::read(root.join(file))?);
    }
    digest.update(&code);
    let made: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let made = format!("// Made by proto/generator, digest {made}\n{code}");
    let path = root.join("crates/hlo/src/proto/generated.rs");
    if std::env::args().nth(1).as_deref() != Some("--check") {
        fs::write(&path, made)?;
    } else if fs::read_to_string(&path)? != made {
        return Err(format!("{} is not what is made of the proto files", path.display()).into());
    }
    Ok(())
}

/// The Rust of the messages.
fn generate(folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut descriptors = protox::compile(FILES, [folder])?;
    let has_instruction = |file: &&mut FileDescriptorProto| file.name() == "hlo.proto";
    let file = descriptors.file.iter_mut().find(has_instruction).ok_or("hlo.proto is not compiled")?;
    let tags = move_rare_fields(file)?;
    let mut config = prost_build::Config::new();
    // A module must encode to the same bytes every time, so maps are ordered.
    config.btree_map(["."]);
    for field in BOXED_FIELDS {
        config.boxed(field);
    }
    let out = tempfile::tempdir()?;
    config.out_dir(out.path());
    config.compile_fds(descriptors)?;
    let code = fs::read_to_string(out.path().join("xla.rs"))?;
    add_details(&code, &tags)
}

/// Moves the rare fields of an instruction into a new message; their tags.
fn move_rare_fields(file: &mut FileDescriptorProto) -> Result<Vec<String>, Box<dyn Error>> {
    let details_at = file.message_type.len();
    let at = file.message_type.iter().position(|message| message.name() == "HloInstructionProto");
    let at = at.ok_or("hlo.proto has no HloInstructionProto")?;
    let message = &mut file.message_type[at];
    let is_rare: Vec<bool> = message.field.iter().map(|field| RARE_FIELDS.contains(&field.name())).collect();
    let mut details = message.clone();
    details.name = Some("HloInstructionDetails".to_string());
    details.nested_type.clear();
    details.oneof_decl.clear();
    details.field.retain(|field| RARE_FIELDS.contains(&field.name()));
    message.field.retain(|field| !RARE_FIELDS.contains(&field.name()));
    assert_eq!(details.field.len(), RARE_FIELDS.len(), "a rare field of HloInstructionProto is not in hlo.proto");
    let tags = details.field.iter().map(|field| field.number().to_string()).collect();
    file.message_type.push(details);
    if let Some(info) = &mut file.source_code_info {
        // Comments are found by the places of what they are about: 4 are messages, 2 are fields.
        for location in &mut info.location {
            match location.path.as_mut_slice() {
                [4, message, 2, field, ..] if *message == at as i32 => {
                    let rare = is_rare[*field as usize];
                    let before = is_rare[..*field as usize].iter().filter(|&&other| other == rare).count();
                    *message = if rare { details_at as i32 } else { *message };
                    *field = before as i32;
                }
                _ => {}
            }
        }
        info.location.push(Location { path: vec![4, details_at as i32], ..Default::default() });
        info.location.sort_by(|one, other| one.path.cmp(&other.path));
    }
    Ok(tags)
}

/// Adds the pointer to the details to the generated struct. To prost it is a oneof: any of its fields may be there, which a type of
/// ours reads and writes.
fn add_details(code: &str, tags: &[String]) -> Result<String, Box<dyn Error>> {
    if code.matches(INSTRUCTION).count() != 1 {
        return Err("the generated code has no HloInstructionProto where it is expected".into());
    }
    let field = format!(
        "{INSTRUCTION}    /// The fields that few opcodes have; they can be used as if they were here.\n    \
         #[prost(oneof = \"Details\", tags = \"{}\")]\n    pub details: ::core::option::Option<Details>,\n",
        tags.join(", ")
    );
    Ok(code.replace(INSTRUCTION, &field))
}
