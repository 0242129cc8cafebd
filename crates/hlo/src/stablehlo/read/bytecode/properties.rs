//! The attributes that each op has as its properties, in the order in which they are encoded.

use super::file::OpName;

/// The names of the properties of an op. A `?` follows one that may be left out, a `+` one that older writers do not
/// know, a `*` the sizes of segments. An op that is not known has `None`.
pub(in crate::stablehlo) fn of(op: &OpName<'_>) -> Option<&'static str> {
    let find = |name: &str| TABLE.iter().find(|(op, _)| *op == name).map(|(_, names)| *names);
    let full = format!("{}.{}", op.dialect, op.name);
    let without_version = super::file::without_version(op.name);
    let broadcasts = op.dialect == "chlo" && op.name.starts_with("broadcast_");
    // The first forms of functions of one number have nothing but an operand.
    let is_first = op.dialect == "vhlo" && op.name.ends_with("_v1");
    find(&full)
        .or_else(|| find(&format!("{}.{without_version}", op.dialect)))
        .filter(|names| !(is_first && *names == "result_accuracy"))
        .or_else(|| broadcasts.then_some("broadcast_dimensions?"))
}

/// Ops of VHLO have a version in their names where another one has other properties.
const TABLE: &[(&str, &str)] = &[
    ("vhlo.all_gather", "all_gather_dim channel_id replica_groups use_global_device_ids"),
    ("vhlo.all_reduce", "channel_id replica_groups use_global_device_ids"),
    ("vhlo.all_to_all", "channel_id concat_dimension replica_groups split_count split_dimension"),
    ("vhlo.batch_norm_grad", "epsilon feature_index"),
    ("vhlo.batch_norm_inference", "epsilon feature_index"),
    ("vhlo.batch_norm_training", "epsilon feature_index"),
    ("vhlo.broadcast_in_dim", "broadcast_dimensions"),
    ("vhlo.broadcast", "broadcast_sizes"),
    ("vhlo.call", "callee"),
    ("vhlo.cbrt", "result_accuracy"),
    ("vhlo.cholesky", "lower"),
    ("vhlo.collective_broadcast_v1", "channel_id replica_groups"),
    ("vhlo.collective_broadcast", "channel_id has_dynamic_root replica_groups"),
    ("vhlo.collective_reduce", "channel_id has_dynamic_root replica_groups use_global_device_ids"),
    ("vhlo.collective_permute", "channel_id source_target_pairs"),
    ("vhlo.compare", "compare_type comparison_direction"),
    ("vhlo.composite", "composite_attributes decomposition name version"),
    ("vhlo.concatenate", "dimension"),
    ("vhlo.constant", "value"),
    (
        "vhlo.convolution",
        "batch_group_count feature_group_count input_batch_dimension input_feature_dimension \
         input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension \
         kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension \
         output_spatial_dimensions padding precision_config rhs_dilation window_reversal window_strides",
    ),
    ("vhlo.cosine", "result_accuracy"),
    ("vhlo.cross-replica-sum", "replica_groups"),
    (
        "vhlo.custom_call_v1",
        "api_version backend_config call_target_name called_computations has_side_effect operand_layouts \
         output_operand_aliases result_layouts",
    ),
    (
        "vhlo.custom_call",
        "api_version backend_config call_target_name called_computations has_side_effect operand_layouts \
         output_operand_aliases result_layouts result_tilings",
    ),
    ("vhlo.dot", "precision_config"),
    (
        "vhlo.dot_general_v1",
        "lhs_batching_dimensions lhs_contracting_dimensions precision_config rhs_batching_dimensions \
         rhs_contracting_dimensions",
    ),
    (
        "vhlo.dot_general",
        "accumulation_type allow_imprecise_accumulation lhs_batching_dimensions lhs_component_count \
         lhs_contracting_dimensions lhs_precision_type num_primitive_operations precision_config \
         rhs_batching_dimensions rhs_component_count rhs_contracting_dimensions rhs_precision_type",
    ),
    ("vhlo.dynamic_broadcast_in_dim", "broadcast_dimensions known_expanding_dimensions known_nonexpanding_dimensions"),
    (
        "vhlo.dynamic_conv_v1",
        "batch_group_count feature_group_count input_batch_dimension input_feature_dimension \
         input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension \
         kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension \
         output_spatial_dimensions padding precision_config rhs_dilation window_reversal window_strides",
    ),
    (
        "vhlo.dynamic_conv",
        "batch_group_count feature_group_count input_batch_dimension input_feature_dimension \
         input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension \
         kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension \
         output_spatial_dimensions precision_config rhs_dilation window_reversal window_strides",
    ),
    ("vhlo.dynamic_gather_v1", "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims start_index_map"),
    (
        "vhlo.dynamic_gather",
        "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims \
         start_index_map start_indices_batching_dims",
    ),
    ("vhlo.dynamic_iota", "iota_dimension"),
    ("vhlo.dynamic_slice", "slice_sizes"),
    ("vhlo.einsum", "einsum_config"),
    ("vhlo.exponential_minus_one", "result_accuracy"),
    ("vhlo.exponential", "result_accuracy"),
    ("vhlo.fft", "fft_length fft_type"),
    ("vhlo.func", "arg_attrs function_type res_attrs sym_name sym_visibility"),
    (
        "vhlo.gather_v1",
        "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims slice_sizes start_index_map",
    ),
    (
        "vhlo.gather",
        "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims slice_sizes \
         start_index_map start_indices_batching_dims",
    ),
    ("vhlo.get_dimension_size", "dimension"),
    ("vhlo.get_tuple_element", "index"),
    ("vhlo.infeed", "infeed_config layout"),
    ("vhlo.iota", "iota_dimension"),
    ("vhlo.log_plus_one", "result_accuracy"),
    ("vhlo.logistic", "result_accuracy"),
    ("vhlo.log", "result_accuracy"),
    ("vhlo.map", "dimensions"),
    ("vhlo.outfeed", "outfeed_config"),
    ("vhlo.pad", "edge_padding_high edge_padding_low interior_padding"),
    ("vhlo.recv_v1", "channel_id channel_type is_host_transfer"),
    ("vhlo.recv", "channel_id channel_type is_host_transfer source_target_pairs"),
    ("vhlo.reduce", "dimensions"),
    ("vhlo.reduce_precision", "exponent_bits mantissa_bits"),
    ("vhlo.reduce_scatter", "channel_id replica_groups scatter_dimension use_global_device_ids"),
    ("vhlo.reduce_window", "base_dilations padding window_dilations window_dimensions window_strides"),
    ("vhlo.reverse", "dimensions"),
    ("vhlo.rng_bit_generator", "rng_algorithm"),
    ("vhlo.rng", "rng_distribution"),
    ("vhlo.rsqrt", "result_accuracy"),
    (
        "vhlo.scatter_v1",
        "index_vector_dim indices_are_sorted inserted_window_dims scatter_dims_to_operand_dims unique_indices \
         update_window_dims",
    ),
    (
        "vhlo.scatter",
        "index_vector_dim indices_are_sorted input_batching_dims inserted_window_dims \
         scatter_dims_to_operand_dims scatter_indices_batching_dims unique_indices update_window_dims",
    ),
    ("vhlo.select_and_scatter", "padding window_dimensions window_strides"),
    ("vhlo.send_v1", "channel_id channel_type is_host_transfer"),
    ("vhlo.send", "channel_id channel_type is_host_transfer source_target_pairs"),
    ("vhlo.set_dimension_size", "dimension"),
    ("vhlo.sine", "result_accuracy"),
    ("vhlo.slice", "limit_indices start_indices strides"),
    ("vhlo.sort", "dimension is_stable"),
    ("vhlo.sqrt", "result_accuracy"),
    ("vhlo.tan", "result_accuracy"),
    ("vhlo.tanh", "result_accuracy"),
    ("vhlo.torch_index_select", "batch_dims dim"),
    ("vhlo.transpose", "permutation"),
    ("vhlo.triangular_solve", "left_side lower transpose_a unit_diagonal"),
    ("vhlo.unary_einsum", "einsum_config"),
    ("stablehlo.constant", "value"),
    ("stablehlo.iota", "iota_dimension"),
    ("stablehlo.dynamic_iota", "iota_dimension"),
    ("stablehlo.cbrt", "result_accuracy?"),
    ("stablehlo.cosine", "result_accuracy?"),
    ("stablehlo.exponential", "result_accuracy?"),
    ("stablehlo.exponential_minus_one", "result_accuracy?"),
    ("stablehlo.log", "result_accuracy?"),
    ("stablehlo.log_plus_one", "result_accuracy?"),
    ("stablehlo.logistic", "result_accuracy?"),
    ("stablehlo.rsqrt", "result_accuracy?"),
    ("stablehlo.sine", "result_accuracy?"),
    ("stablehlo.sqrt", "result_accuracy?"),
    ("stablehlo.tan", "result_accuracy?"),
    ("stablehlo.tanh", "result_accuracy?"),
    ("stablehlo.infeed", "infeed_config? layout?"),
    ("stablehlo.outfeed", "outfeed_config?"),
    ("stablehlo.send", "channel_handle is_host_transfer? source_target_pairs?+"),
    ("stablehlo.recv", "channel_handle is_host_transfer? source_target_pairs?+"),
    ("stablehlo.all_gather", "all_gather_dim channel_handle? replica_groups use_global_device_ids?"),
    ("stablehlo.all_reduce", "channel_handle? replica_groups use_global_device_ids?"),
    ("stablehlo.reduce_scatter", "channel_handle? replica_groups scatter_dimension use_global_device_ids?"),
    ("stablehlo.all_to_all", "channel_handle? concat_dimension replica_groups split_count split_dimension"),
    ("stablehlo.reduce", "dimensions"),
    ("stablehlo.get_tuple_element", "index"),
    ("stablehlo.compare", "compare_type? comparison_direction"),
    ("stablehlo.slice", "limit_indices start_indices strides"),
    ("stablehlo.dynamic_slice", "slice_sizes"),
    ("stablehlo.batch_norm_grad", "epsilon feature_index"),
    ("stablehlo.batch_norm_inference", "epsilon feature_index"),
    ("stablehlo.batch_norm_training", "epsilon feature_index"),
    ("stablehlo.broadcast", "broadcast_sizes"),
    ("stablehlo.broadcast_in_dim", "broadcast_dimensions"),
    (
        "stablehlo.dynamic_broadcast_in_dim",
        "broadcast_dimensions known_expanding_dimensions? known_nonexpanding_dimensions?",
    ),
    ("stablehlo.cholesky", "lower?"),
    ("stablehlo.concatenate", "dimension"),
    ("stablehlo.collective_broadcast", "channel_handle? has_dynamic_root?+ replica_groups"),
    ("stablehlo.collective_reduce", "channel_handle? has_dynamic_root?+ replica_groups use_global_device_ids?"),
    ("stablehlo.collective_permute", "channel_handle? source_target_pairs"),
    ("stablehlo.composite", "composite_attributes? decomposition name version?"),
    (
        "stablehlo.convolution",
        "batch_group_count dimension_numbers feature_group_count lhs_dilation? padding? precision_config? \
         rhs_dilation? window_reversal? window_strides?",
    ),
    ("stablehlo.cross-replica-sum", "replica_groups"),
    (
        "stablehlo.custom_call",
        "api_version? backend_config? call_target_name called_computations? has_side_effect? operand_layouts? \
         output_operand_aliases? result_layouts? result_tilings?+",
    ),
    ("stablehlo.dot", "precision_config?"),
    ("stablehlo.dot_general", "algorithm? dot_dimension_numbers precision_config?"),
    ("stablehlo.einsum", "einsum_config"),
    ("stablehlo.unary_einsum", "einsum_config"),
    ("stablehlo.fft", "fft_length fft_type"),
    ("stablehlo.gather", "dimension_numbers indices_are_sorted? slice_sizes"),
    ("stablehlo.get_dimension_size", "dimension"),
    ("stablehlo.map", "dimensions"),
    ("stablehlo.scatter", "indices_are_sorted? scatter_dimension_numbers unique_indices?"),
    ("stablehlo.select_and_scatter", "padding? window_dimensions? window_strides?"),
    ("stablehlo.set_dimension_size", "dimension"),
    ("stablehlo.sort", "dimension? is_stable?"),
    ("stablehlo.reverse", "dimensions"),
    ("stablehlo.pad", "edge_padding_high edge_padding_low interior_padding"),
    ("stablehlo.transpose", "permutation"),
    ("stablehlo.triangular_solve", "left_side lower transpose_a unit_diagonal"),
    ("stablehlo.reduce_window", "base_dilations? padding? window_dilations? window_dimensions window_strides?"),
    ("stablehlo.torch_index_select", "batch_dims dim"),
    ("stablehlo.rng", "rng_distribution"),
    ("stablehlo.rng_bit_generator", "rng_algorithm"),
    ("stablehlo.reduce_precision", "exponent_bits mantissa_bits"),
    ("stablehlo.dynamic_gather", "dimension_numbers indices_are_sorted?"),
    (
        "stablehlo.dynamic_conv",
        "batch_group_count dimension_numbers feature_group_count lhs_dilation? precision_config? rhs_dilation? \
         window_reversal? window_strides?",
    ),
    ("chlo.constant", "value"),
    ("chlo.constant_like", "value"),
    ("chlo.broadcast_compare", "broadcast_dimensions? compare_type? comparison_direction"),
    ("chlo.ragged_dot", "precision_config? ragged_dot_dimension_numbers"),
    ("chlo.top_k", "is_stable?+ k"),
    ("chlo.scan", "dimension is_associative? is_reverse? scan_dim_size? operandSegmentSizes* resultSegmentSizes*"),
    ("sdy.mesh", "mesh sym_name"),
    ("sdy.sharding_constraint", "sharding"),
    ("sdy.reshard", "sharding"),
    ("sdy.manual_computation", "in_shardings manual_axes out_shardings"),
    ("sdy.sharding_group", "group_id"),
    ("sdy.constant", "value"),
    ("sdy.data_flow_edge", "sharding?"),
    ("sdy.propagation_barrier", "allowed_direction"),
    ("sdy.named_computation", "in_shardings? name out_shardings?"),
    ("sdy.all_gather", "gathering_axes out_sharding"),
    ("sdy.all_slice", "out_sharding slicing_axes"),
    ("sdy.all_to_all", "out_sharding params"),
    ("sdy.collective_permute", "out_sharding"),
    ("sdy.all_reduce", "out_sharding reduction_axes reduction_op?"),
    ("sdy.reduce_scatter", "out_sharding reduce_scatter_axes reduction_op?"),
    ("sdy.sharded_to_unreduced", "axes out_sharding"),
    ("sdy.replicated_to_unreduced", "axes out_sharding"),
    ("arith.constant", "value"),
    ("func.func", "arg_attrs? function_type no_inline? res_attrs? sym_name sym_visibility?"),
    ("func.call", "arg_attrs? callee no_inline? res_attrs?"),
    ("builtin.module", "sym_name? sym_visibility?"),
];
