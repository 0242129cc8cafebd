//! The attributes of each opcode, in the order in which XLA prints them.

use super::shape::element_type_name;
use super::{Layouts, Printer, number};
use crate::proto::precision_config::{Algorithm, Precision};
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{
    ConvolutionDimensionNumbers, ConvolutionKind, CustomCallApiVersion, CustomCallSchedule, DotDimensionNumbers,
    FftType, HloInstructionProto, OutputOperandAliasing, PaddingConfig, PaddingType, PrecisionConfig, RandomAlgorithm,
    RandomDistribution, SparsityConfig, TriState, Window, WindowDimension,
};

/// Dimension numbers at or beyond this are not printed in convolution labels: no shape has so many.
const MAX_LABELS: usize = 64;

impl Printer<'_> {
    /// Appends what the instruction's opcode adds, each attribute preceded by ", ".
    pub(super) fn attributes(&mut self, instruction: &HloInstructionProto) {
        match instruction.opcode.as_str() {
            "all-gather" | "all-gather-start" => {
                self.collective(instruction);
                self.list("dimensions", &instruction.dimensions);
                self.flag("use_global_device_ids", instruction.use_global_device_ids);
            }
            "all-reduce" | "all-reduce-start" => {
                self.collective(instruction);
                self.flag("use_global_device_ids", instruction.use_global_device_ids);
            }
            "all-to-all" => {
                self.collective(instruction);
                if !instruction.dimensions.is_empty() {
                    self.list("dimensions", &instruction.dimensions);
                }
            }
            "batch-norm-training" | "batch-norm-inference" | "batch-norm-grad" => {
                self.attribute("epsilon");
                number::write_short(&mut self.out, f64::from(instruction.epsilon));
                self.integer("feature_index", instruction.feature_index);
            }
            "broadcast" | "concatenate" | "get-dimension-size" | "map" | "reduce" | "reverse"
            | "set-dimension-size" | "transpose" => self.list("dimensions", &instruction.dimensions),
            "cholesky" => {
                let lower = instruction.cholesky_options.as_deref().is_some_and(|options| options.lower);
                self.flag("lower", lower);
            }
            "collective-broadcast" | "ragged-all-to-all" => self.collective(instruction),
            "collective-permute" | "collective-permute-start" => self.collective_permute(instruction),
            "compare" => self.compare(instruction),
            "convolution" => self.convolution(instruction),
            "copy-start" => {
                use crate::proto::hlo_instruction_proto::OptionalCrossProgramPrefetchIndex as Index;
                if let Some(Index::CrossProgramPrefetchIndex(index)) = instruction.optional_cross_program_prefetch_index
                {
                    self.integer("cross_program_prefetch_index", index.into());
                }
            }
            "custom-call" => self.custom_call(instruction),
            "domain" => self.domain(instruction),
            "dot" | "scaled-dot" => {
                self.dot_dimensions(instruction.dot_dimension_numbers.as_deref());
                self.precision(instruction.precision_config.as_deref());
            }
            "dynamic-slice" => self.list("dynamic_slice_sizes", &instruction.dynamic_slice_sizes),
            "fft" => {
                self.attribute("fft_type");
                self.text(FftType::try_from(instruction.fft_type).unwrap_or(FftType::Fft).as_str_name());
                self.list("fft_length", &instruction.fft_length);
            }
            "fusion" => {
                self.attribute("kind");
                self.text(&instruction.fusion_kind);
                self.aliasing(&instruction.output_operand_aliasing);
            }
            "gather" => self.gather(instruction),
            "get-tuple-element" => self.integer("index", instruction.tuple_index),
            "infeed" => self.config("infeed_config", &instruction.infeed_config),
            "iota" => self.integer("iota_dimension", instruction.dimensions.first().copied().unwrap_or(0)),
            "outfeed" => {
                self.attribute("outfeed_shape");
                self.optional_shape(instruction.outfeed_shape.as_deref(), Layouts::All);
                self.config("outfeed_config", &instruction.outfeed_config);
            }
            "pad" => self.pad(instruction.padding_config.as_ref()),
            "parameter" => {
                let replication = instruction.parameter_replication.as_deref();
                if let Some(replication) = replication.filter(|list| !list.replicated_at_leaf_buffers.is_empty()) {
                    self.attribute("parameter_replication");
                    self.booleans(&replication.replicated_at_leaf_buffers);
                }
            }
            "ragged-dot" => self.ragged_dot(instruction),
            "recv" | "recv-done" | "send" | "send-done" => {
                self.channel(instruction);
                self.flag("is_host_transfer", instruction.is_host_transfer);
            }
            "reduce-precision" => {
                self.integer("exponent_bits", instruction.exponent_bits.into());
                self.integer("mantissa_bits", instruction.mantissa_bits.into());
            }
            "reduce-scatter" => {
                self.collective(instruction);
                self.flag("use_global_device_ids", instruction.use_global_device_ids);
                self.list("dimensions", &instruction.dimensions);
            }
            "reduce-window" | "select-and-scatter" => self.window(instruction.window.as_ref()),
            "reshape" => {
                if let Some(&dimension) = instruction.dimensions.first() {
                    self.integer("inferred_dimension", dimension);
                }
            }
            "rng" => {
                let distribution = RandomDistribution::try_from(instruction.distribution).unwrap_or_default();
                self.attribute("distribution");
                self.text(&distribution.as_str_name().to_ascii_lowercase());
            }
            "rng-bit-generator" => {
                let algorithm = RandomAlgorithm::try_from(instruction.rng_algorithm).unwrap_or_default();
                self.attribute("algorithm");
                self.text(&algorithm.as_str_name().to_ascii_lowercase());
            }
            "rng-get-and-update-state" => self.integer("delta", instruction.delta),
            "scan" => {
                self.list("dimensions", &instruction.dimensions);
                self.integer("num_carries", instruction.num_carries);
                self.flag("is_reverse", instruction.is_reverse);
                match TriState::try_from(instruction.is_associative) {
                    Ok(TriState::True) => self.text(", is_associative=true"),
                    Ok(TriState::False) => self.text(", is_associative=false"),
                    _ => {}
                }
            }
            "scatter" => self.scatter(instruction),
            "slice" => self.slice(instruction),
            "sort" => {
                self.list("dimensions", &instruction.dimensions);
                self.flag("is_stable", instruction.is_stable);
            }
            "topk" => {
                self.integer("k", instruction.k);
                self.attribute("largest");
                self.text(if instruction.largest { "true" } else { "false" });
            }
            "triangular-solve" => self.triangular_solve(instruction),
            _ => {}
        }
    }

    fn integer(&mut self, name: &str, value: i64) {
        self.attribute(name);
        self.number(value);
    }

    fn list(&mut self, name: &str, values: &[i64]) {
        self.attribute(name);
        self.shape_index(values);
    }

    fn flag(&mut self, name: &str, value: bool) {
        if value {
            self.attribute(name);
            self.text("true");
        }
    }

    fn config(&mut self, name: &str, config: &[u8]) {
        if !config.is_empty() {
            self.attribute(name);
            self.quoted(config);
        }
    }

    fn channel(&mut self, instruction: &HloInstructionProto) {
        // All-reduces of old writers carry theirs in the other field.
        let id = if instruction.channel_id > 0 { instruction.channel_id } else { instruction.all_reduce_id };
        if id > 0 {
            self.integer("channel_id", id);
        }
    }

    fn collective(&mut self, instruction: &HloInstructionProto) {
        self.channel(instruction);
        self.text(", ");
        self.replica_groups(instruction);
        self.flag("constrain_layout", instruction.constrain_layout);
    }

    fn collective_permute(&mut self, instruction: &HloInstructionProto) {
        self.channel(instruction);
        self.attribute("source_target_pairs");
        self.text("{");
        for (index, pair) in instruction.source_target_pairs.iter().enumerate() {
            if index > 0 {
                self.text(",");
            }
            self.shape_index(&[pair.source, pair.target]);
        }
        self.text("}");
        if !instruction.dynamic_slice_sizes.is_empty() {
            // The sizes of all slices follow each other; each slice has as many as the input has dimensions.
            let rank = self
                .operand(instruction, 0)
                .and_then(|operand| operand.shape.as_ref())
                .map(|shape| shape.tuple_shapes.first().unwrap_or(shape).dimensions.len())
                .filter(|&rank| rank > 0)
                .unwrap_or(instruction.dynamic_slice_sizes.len());
            self.attribute("slice_sizes");
            self.text("{");
            for (index, sizes) in instruction.dynamic_slice_sizes.chunks(rank).enumerate() {
                if index > 0 {
                    self.text(",");
                }
                self.shape_index(sizes);
            }
            self.text("}");
        }
    }

    fn compare(&mut self, instruction: &HloInstructionProto) {
        self.attribute("direction");
        self.text(&instruction.comparison_direction);
        let operand = self.operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
        let element_type = operand.map_or("", |shape| element_type_name(shape.element_type));
        let default = match element_type.as_bytes().first() {
            Some(b'f' | b'b' | b'c') => "FLOAT",
            Some(b's') => "SIGNED",
            _ => "UNSIGNED",
        };
        if !instruction.comparison_type.is_empty() && instruction.comparison_type != default {
            self.attribute("type");
            self.text(&instruction.comparison_type);
        }
    }

    fn window(&mut self, window: Option<&Window>) {
        if let Some(window) = window.filter(|window| !window.dimensions.is_empty()) {
            self.attribute("window");
            self.text("{");
            let dimensions = window.dimensions.as_slice();
            self.window_field("size", dimensions, |printer, dimension| printer.number(dimension.size));
            if dimensions.iter().any(|dimension| dimension.stride != 1) {
                self.window_field(" stride", dimensions, |printer, dimension| printer.number(dimension.stride));
            }
            if dimensions.iter().any(|dimension| dimension.padding_low != 0 || dimension.padding_high != 0) {
                self.window_field(" pad", dimensions, |printer, dimension| {
                    printer.number(dimension.padding_low);
                    printer.text("_");
                    printer.number(dimension.padding_high);
                });
            }
            if dimensions.iter().any(|dimension| dimension.base_dilation != 1) {
                self.window_field(" lhs_dilate", dimensions, |printer, dimension| {
                    printer.number(dimension.base_dilation);
                });
            }
            if dimensions.iter().any(|dimension| dimension.window_dilation != 1) {
                self.window_field(" rhs_dilate", dimensions, |printer, dimension| {
                    printer.number(dimension.window_dilation);
                });
            }
            if dimensions.iter().any(|dimension| dimension.window_reversal) {
                self.window_field(" rhs_reversal", dimensions, |printer, dimension| {
                    printer.number(dimension.window_reversal.into());
                });
            }
            self.text("}");
        }
    }

    fn window_field(
        &mut self,
        name: &str,
        dimensions: &[WindowDimension],
        mut write: impl FnMut(&mut Self, &WindowDimension),
    ) {
        self.text(name);
        self.text("=");
        for (index, dimension) in dimensions.iter().enumerate() {
            if index > 0 {
                self.text("x");
            }
            write(self, dimension);
        }
    }

    fn convolution(&mut self, instruction: &HloInstructionProto) {
        self.window(instruction.window.as_ref());
        if let Some(numbers) = instruction.convolution_dimension_numbers.as_deref() {
            self.convolution_labels(numbers);
        }
        self.group_counts(instruction);
        let kind = ConvolutionKind::try_from(instruction.conv_kind).unwrap_or_default();
        if kind != ConvolutionKind::Unset {
            let name = kind.as_str_name();
            self.attribute("convolution_kind");
            self.text(&name.strip_prefix("CONVOLUTION_KIND_").unwrap_or(name).to_ascii_lowercase());
        }
        if let Some(config) = instruction.sparsity_config.as_deref() {
            self.sparsity(config);
        }
        self.precision(instruction.precision_config.as_deref());
    }

    /// `sparsity_config={lhs={sparsity=2x4 dimension=1 stride=2}}`.
    fn sparsity(&mut self, config: &SparsityConfig) {
        let sides = [("lhs", &config.lhs), ("rhs", &config.rhs)];
        let mut sides = sides.into_iter().filter_map(|(name, side)| Some((name, side.as_ref()?))).peekable();
        if sides.peek().is_none() {
            return;
        }
        self.attribute("sparsity_config");
        self.text("{");
        for (index, (name, side)) in sides.enumerate() {
            if index > 0 {
                self.text(", ");
            }
            self.text(name);
            self.text("={sparsity=");
            self.numbers(&[side.num_non_zero, side.block_size], "x");
            self.text(" dimension=");
            self.number(side.dimension);
            self.text(" stride=");
            self.number(side.stride);
            self.text("}");
        }
        self.text("}");
    }

    fn group_counts(&mut self, instruction: &HloInstructionProto) {
        for (name, count) in [
            ("feature_group_count", instruction.feature_group_count),
            ("batch_group_count", instruction.batch_group_count),
        ] {
            // Unset means 1.
            if !matches!(count, 0 | 1) {
                self.integer(name, count);
            }
        }
    }

    /// `dim_labels=b01f_01io->b01f`.
    fn convolution_labels(&mut self, numbers: &ConvolutionDimensionNumbers) {
        self.attribute("dim_labels");
        self.labels(
            ('b', numbers.input_batch_dimension),
            ('f', numbers.input_feature_dimension),
            &numbers.input_spatial_dimensions,
        );
        self.text("_");
        self.labels(
            ('i', numbers.kernel_input_feature_dimension),
            ('o', numbers.kernel_output_feature_dimension),
            &numbers.kernel_spatial_dimensions,
        );
        self.text("->");
        self.labels(
            ('b', numbers.output_batch_dimension),
            ('f', numbers.output_feature_dimension),
            &numbers.output_spatial_dimensions,
        );
    }

    fn labels(&mut self, first: (char, i64), second: (char, i64), spatial: &[i64]) {
        let mut labels: Vec<String> = Vec::new();
        let mut place = |dimension: i64, label: String| {
            let Some(position) = usize::try_from(dimension).ok().filter(|&position| position < MAX_LABELS) else {
                return;
            };
            if labels.len() <= position {
                labels.resize(position + 1, "?".to_string());
            }
            labels[position] = label;
        };
        place(first.1, first.0.to_string());
        place(second.1, second.0.to_string());
        for (index, &dimension) in spatial.iter().enumerate() {
            place(dimension, index.to_string());
        }
        self.text(&labels.concat());
    }

    fn precision(&mut self, config: Option<&PrecisionConfig>) {
        let Some(config) = config else { return };
        if config.operand_precision.iter().any(|&precision| precision != Precision::Default as i32) {
            self.attribute("operand_precision");
            self.text("{");
            for (index, precision) in config.operand_precision().enumerate() {
                if index > 0 {
                    self.text(",");
                }
                self.text(match precision {
                    Precision::Default => "default",
                    Precision::High => "high",
                    Precision::Highest => "highest",
                });
            }
            self.text("}");
        }
        if config.algorithm() != Algorithm::AlgUnset {
            let name = config.algorithm().as_str_name();
            self.attribute("algorithm");
            self.text(&name.strip_prefix("ALG_").unwrap_or(name).to_ascii_lowercase());
        }
    }

    fn dot_dimensions(&mut self, numbers: Option<&DotDimensionNumbers>) {
        let Some(numbers) = numbers else { return };
        if !numbers.lhs_batch_dimensions.is_empty() {
            self.list("lhs_batch_dims", &numbers.lhs_batch_dimensions);
        }
        self.list("lhs_contracting_dims", &numbers.lhs_contracting_dimensions);
        if !numbers.rhs_batch_dimensions.is_empty() {
            self.list("rhs_batch_dims", &numbers.rhs_batch_dimensions);
        }
        self.list("rhs_contracting_dims", &numbers.rhs_contracting_dimensions);
    }

    fn ragged_dot(&mut self, instruction: &HloInstructionProto) {
        if let Some(numbers) = instruction.ragged_dot_dimension_numbers.as_deref() {
            self.dot_dimensions(numbers.dot_dimension_numbers.as_ref());
            self.list("lhs_ragged_dims", &numbers.lhs_ragged_dimensions);
            if !numbers.rhs_group_dimensions.is_empty() {
                self.list("rhs_group_dims", &numbers.rhs_group_dimensions);
            }
        }
        self.precision(instruction.precision_config.as_deref());
    }

    fn gather(&mut self, instruction: &HloInstructionProto) {
        if let Some(numbers) = instruction.gather_dimension_numbers.as_deref() {
            self.list("offset_dims", &numbers.offset_dims);
            self.list("collapsed_slice_dims", &numbers.collapsed_slice_dims);
            self.list("start_index_map", &numbers.start_index_map);
            if !numbers.operand_batching_dims.is_empty() {
                self.list("operand_batching_dims", &numbers.operand_batching_dims);
            }
            if !numbers.start_indices_batching_dims.is_empty() {
                self.list("start_indices_batching_dims", &numbers.start_indices_batching_dims);
            }
            self.integer("index_vector_dim", numbers.index_vector_dim);
        }
        self.list("slice_sizes", &instruction.gather_slice_sizes);
        self.flag("indices_are_sorted", instruction.indices_are_sorted);
    }

    fn scatter(&mut self, instruction: &HloInstructionProto) {
        if let Some(numbers) = instruction.scatter_dimension_numbers.as_deref() {
            self.list("update_window_dims", &numbers.update_window_dims);
            self.list("inserted_window_dims", &numbers.inserted_window_dims);
            self.list("scatter_dims_to_operand_dims", &numbers.scatter_dims_to_operand_dims);
            if !numbers.input_batching_dims.is_empty() {
                self.list("input_batching_dims", &numbers.input_batching_dims);
            }
            if !numbers.scatter_indices_batching_dims.is_empty() {
                self.list("scatter_indices_batching_dims", &numbers.scatter_indices_batching_dims);
            }
            self.integer("index_vector_dim", numbers.index_vector_dim);
        }
        self.flag("indices_are_sorted", instruction.indices_are_sorted);
        self.flag("unique_indices", instruction.unique_indices);
    }

    fn slice(&mut self, instruction: &HloInstructionProto) {
        let strided = instruction.slice_dimensions.iter().any(|dimension| dimension.stride != 1);
        self.attribute("slice");
        self.text("{");
        for (index, dimension) in instruction.slice_dimensions.iter().enumerate() {
            if index > 0 {
                self.text(", ");
            }
            self.text("[");
            self.number(dimension.start);
            self.text(":");
            self.number(dimension.limit);
            if strided {
                self.text(":");
                self.number(dimension.stride);
            }
            self.text("]");
        }
        self.text("}");
    }

    /// `padding=0_1x2_2`, with the interior padding of all dimensions if any has some.
    fn pad(&mut self, config: Option<&PaddingConfig>) {
        let dimensions = config.map(|config| config.dimensions.as_slice()).unwrap_or_default();
        let interior = dimensions.iter().any(|dimension| dimension.interior_padding != 0);
        self.attribute("padding");
        for (index, dimension) in dimensions.iter().enumerate() {
            if index > 0 {
                self.text("x");
            }
            self.number(dimension.edge_padding_low);
            self.text("_");
            self.number(dimension.edge_padding_high);
            if interior {
                self.text("_");
                self.number(dimension.interior_padding);
            }
        }
    }

    fn domain(&mut self, instruction: &HloInstructionProto) {
        // XLA names the two sides from the inside in its protos and from the outside in its text.
        if let (Some(operand_side), Some(user_side)) =
            (instruction.domain_entry_sharding.as_deref(), instruction.domain_exit_sharding.as_deref())
        {
            self.text(", domain={kind=\"sharding\", entry=");
            self.sharding(user_side);
            self.text(", exit=");
            self.sharding(operand_side);
            self.text("}");
        }
    }

    fn triangular_solve(&mut self, instruction: &HloInstructionProto) {
        let Some(options) = instruction.triangular_solve_options.as_deref() else { return };
        self.flag("left_side", options.left_side);
        self.flag("lower", options.lower);
        self.flag("unit_diagonal", options.unit_diagonal);
        if options.transpose_a() != Transpose::Invalid {
            self.attribute("transpose_a");
            self.text(options.transpose_a().as_str_name());
        }
    }

    fn custom_call(&mut self, instruction: &HloInstructionProto) {
        self.window(instruction.window.as_ref());
        if let Some(numbers) = instruction.convolution_dimension_numbers.as_deref() {
            self.convolution_labels(numbers);
        }
        self.group_counts(instruction);
        self.precision(instruction.precision_config.as_deref());
        let padding = PaddingType::try_from(instruction.padding_type).unwrap_or_default();
        if padding != PaddingType::PaddingInvalid {
            self.attribute("padding_type");
            self.text(padding.as_str_name());
        }
        self.attribute("custom_call_target");
        self.quoted(instruction.custom_call_target.as_bytes());
        if instruction.constrain_layout {
            self.attribute("operand_layout_constraints");
            self.text("{");
            for (index, shape) in instruction.operand_shapes_with_layout.iter().enumerate() {
                if index > 0 {
                    self.text(", ");
                }
                self.shape_with(shape, Layouts::All);
            }
            self.text("}");
        }
        self.flag("custom_call_has_side_effect", instruction.custom_call_has_side_effect);
        if let Some(literal) = instruction.literal.as_deref() {
            self.attribute("literal");
            self.literal_with_shape(literal);
        }
        self.aliasing(&instruction.output_operand_aliasing);
        let schedule = CustomCallSchedule::try_from(instruction.custom_call_schedule).unwrap_or_default();
        if schedule != CustomCallSchedule::ScheduleNone {
            self.attribute("schedule");
            self.text(schedule.as_str_name());
        }
        let version = CustomCallApiVersion::try_from(instruction.custom_call_api_version).unwrap_or_default();
        // Unset reads as the original version.
        if !matches!(version, CustomCallApiVersion::ApiVersionOriginal | CustomCallApiVersion::ApiVersionUnspecified) {
            self.attribute("api_version");
            self.text(version.as_str_name());
        }
    }

    /// `output_to_operand_aliasing={{0}: (1, {})}`.
    fn aliasing(&mut self, aliasing: &[OutputOperandAliasing]) {
        if aliasing.is_empty() {
            return;
        }
        self.attribute("output_to_operand_aliasing");
        self.text("{");
        for (index, alias) in aliasing.iter().enumerate() {
            if index > 0 {
                self.text(", ");
            }
            self.shape_index(&alias.output_shape_index);
            self.text(": (");
            self.number(alias.operand_index);
            self.text(", ");
            self.shape_index(&alias.operand_shape_index);
            self.text(")");
        }
        self.text("}");
    }
}
