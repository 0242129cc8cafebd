//! The values of attributes, each parsed into its fields.

use super::Parser;
use super::computation::Scope;
use super::error::{Result, fault, hint};
use super::table::Attribute;
use crate::proto::hlo_instruction_proto::{OptionalCrossProgramPrefetchIndex, SliceDimensions};
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{
    ConvolutionKind, CustomCallApiVersion, CustomCallSchedule, DotDimensionNumbers, FftType, FrontendAttributes,
    GatherDimensionNumbers, HloInstructionProto, OutputOperandAliasing, PaddingType, RandomAlgorithm,
    RandomDistribution, ScatterDimensionNumbers, SourceTarget, TriState, TriangularSolveOptions,
};

const DIRECTIONS: &[(&str, &str)] =
    &[("EQ", "EQ"), ("NE", "NE"), ("LT", "LT"), ("LE", "LE"), ("GT", "GT"), ("GE", "GE")];

const COMPARISONS: &[(&str, &str)] =
    &[("FLOAT", "FLOAT"), ("TOTALORDER", "TOTALORDER"), ("SIGNED", "SIGNED"), ("UNSIGNED", "UNSIGNED")];

const FUSION_KINDS: &[(&str, &str)] =
    &[("kLoop", "kLoop"), ("kInput", "kInput"), ("kOutput", "kOutput"), ("kCustom", "kCustom")];

const FFT_TYPES: &[(&str, FftType)] =
    &[("FFT", FftType::Fft), ("IFFT", FftType::Ifft), ("RFFT", FftType::Rfft), ("IRFFT", FftType::Irfft)];

const DISTRIBUTIONS: &[(&str, RandomDistribution)] = &[
    ("rng_uniform", RandomDistribution::RngUniform),
    ("rng_normal", RandomDistribution::RngNormal),
    ("rng_invalid", RandomDistribution::RngInvalid),
];

const RANDOM_ALGORITHMS: &[(&str, RandomAlgorithm)] = &[
    ("rng_default", RandomAlgorithm::RngDefault),
    ("rng_three_fry", RandomAlgorithm::RngThreeFry),
    ("rng_philox", RandomAlgorithm::RngPhilox),
];

const TRANSPOSES: &[(&str, Transpose)] = &[
    ("NO_TRANSPOSE", Transpose::NoTranspose),
    ("TRANSPOSE", Transpose::Transpose),
    ("ADJOINT", Transpose::Adjoint),
    ("TRANSPOSE_INVALID", Transpose::Invalid),
];

const PADDING_TYPES: &[(&str, PaddingType)] = &[
    ("PADDING_INVALID", PaddingType::PaddingInvalid),
    ("PADDING_VALID", PaddingType::PaddingValid),
    ("PADDING_SAME", PaddingType::PaddingSame),
];

const SCHEDULES: &[(&str, CustomCallSchedule)] = &[
    ("SCHEDULE_NONE", CustomCallSchedule::ScheduleNone),
    ("SCHEDULE_LATEST", CustomCallSchedule::ScheduleLatest),
    ("SCHEDULE_EARLIEST", CustomCallSchedule::ScheduleEarliest),
];

const API_VERSIONS: &[(&str, CustomCallApiVersion)] = &[
    ("API_VERSION_ORIGINAL", CustomCallApiVersion::ApiVersionOriginal),
    ("API_VERSION_STATUS_RETURNING", CustomCallApiVersion::ApiVersionStatusReturning),
    ("API_VERSION_STATUS_RETURNING_UNIFIED", CustomCallApiVersion::ApiVersionStatusReturningUnified),
    ("API_VERSION_TYPED_FFI", CustomCallApiVersion::ApiVersionTypedFfi),
];

const CONVOLUTION_KINDS: &[(&str, ConvolutionKind)] = &[
    ("unset", ConvolutionKind::Unset),
    ("fprop", ConvolutionKind::Fprop),
    ("dgrad", ConvolutionKind::Dgrad),
    ("wgrad", ConvolutionKind::Wgrad),
];

impl<'a> Parser<'a> {
    /// Reads the value of `attribute` into `target`.
    pub(super) fn attribute(
        &mut self,
        scope: &mut Scope<'a>,
        attribute: Attribute,
        target: &mut HloInstructionProto,
    ) -> Result<()> {
        use Attribute as A;
        match attribute {
            A::Metadata => target.metadata = Some(Box::new(self.metadata()?)),
            A::Sharding => target.sharding = Some(Box::new(self.sharding()?)),
            A::BackendConfig => target.backend_config = self.lexer.quoted_or_braced()?,
            A::FrontendAttributes => {
                target.frontend_attributes = Some(FrontendAttributes { map: self.frontend_attributes()? });
            }
            A::ControlPredecessors => target.control_predecessor_ids = self.instruction_names(scope)?,
            A::Statistics => target.statistics_viz = Some(Box::new(self.statistics()?)),
            A::Origin => target.original_value = Some(Box::new(self.original_value()?)),
            A::ParameterReplication => {
                let replication = target.parameter_replication.get_or_insert_default();
                replication.replicated_at_leaf_buffers = self.booleans()?;
            }
            A::ResultAccuracy => target.result_accuracy = Some(Box::new(self.result_accuracy()?)),

            A::Body | A::Select | A::TrueComputation | A::ToApply | A::Calls => {
                let id = self.called()?;
                place_call(target, 0, id);
            }
            A::Condition | A::Scatter | A::FalseComputation => {
                let id = self.called()?;
                place_call(target, 1, id);
            }
            A::BranchComputations | A::CalledComputations => {
                let mut ids = Vec::new();
                self.list(b'{', b'}', |parser| {
                    ids.push(parser.called()?);
                    Ok(())
                })?;
                target.called_computation_ids = ids;
            }

            A::ReplicaGroups => self.replica_groups(target)?,
            A::SourceTargetPairs => target.source_target_pairs = self.pairs()?,
            A::ChannelId => target.channel_id = self.lexer.integer()?,
            A::UseGlobalDeviceIds => target.use_global_device_ids = self.lexer.boolean()?,
            A::ConstrainLayout => target.constrain_layout = self.lexer.boolean()?,
            // It says what channel_id and use_global_device_ids say; XLA reads it and forgets it.
            A::Mode => drop(self.lexer.expect_word("a mode of device groups")?),
            A::IsHostTransfer => target.is_host_transfer = self.lexer.boolean()?,
            A::AsyncExecutionThread => target.async_execution_thread = self.lexer.string()?,
            A::CrossProgramPrefetchIndex => {
                let index = self.lexer.small_integer()?;
                target.optional_cross_program_prefetch_index =
                    Some(OptionalCrossProgramPrefetchIndex::CrossProgramPrefetchIndex(index));
            }

            A::Dimensions => target.dimensions = self.integers(b'{', b'}')?,
            A::IotaDimension | A::InferredDimension => target.dimensions = vec![self.lexer.integer()?],
            A::Index => target.tuple_index = self.lexer.integer()?,
            A::DynamicSliceSizes => target.dynamic_slice_sizes = self.integers(b'{', b'}')?,
            A::Slice => target.slice_dimensions = self.slice()?,
            A::SliceSizes if target.opcode == "gather" => target.gather_slice_sizes = self.integers(b'{', b'}')?,
            A::SliceSizes => target.dynamic_slice_sizes = self.integer_lists()?.concat(),
            A::Padding => target.padding_config = Some(self.padding()?),
            A::Window => target.window = Some(self.window()?),
            A::DimLabels => target.convolution_dimension_numbers = Some(Box::new(self.dimension_labels()?)),
            A::FeatureGroupCount => target.feature_group_count = self.lexer.integer()?,
            A::BatchGroupCount => target.batch_group_count = self.lexer.integer()?,
            A::ConvolutionKind => target.conv_kind = self.choice("kind of convolution", CONVOLUTION_KINDS)?.into(),
            A::SparsityConfig => target.sparsity_config = Some(Box::new(self.sparsity()?)),
            A::OperandPrecision => {
                target.precision_config.get_or_insert_default().operand_precision = self.precisions()?;
            }
            A::Algorithm if target.opcode == "rng-bit-generator" => {
                target.rng_algorithm = self.choice("algorithm", RANDOM_ALGORITHMS)?.into();
            }
            A::Algorithm => {
                target.precision_config.get_or_insert_default().algorithm = self.dot_algorithm()?;
            }

            A::LhsContractingDims => dot(target).lhs_contracting_dimensions = self.integers(b'{', b'}')?,
            A::RhsContractingDims => dot(target).rhs_contracting_dimensions = self.integers(b'{', b'}')?,
            A::LhsBatchDims => dot(target).lhs_batch_dimensions = self.integers(b'{', b'}')?,
            A::RhsBatchDims => dot(target).rhs_batch_dimensions = self.integers(b'{', b'}')?,
            A::LhsRaggedDims => {
                let numbers = target.ragged_dot_dimension_numbers.get_or_insert_default();
                numbers.lhs_ragged_dimensions = self.integers(b'{', b'}')?;
            }
            A::RhsGroupDims => {
                let numbers = target.ragged_dot_dimension_numbers.get_or_insert_default();
                numbers.rhs_group_dimensions = self.integers(b'{', b'}')?;
            }

            A::OffsetDims => gather(target).offset_dims = self.integers(b'{', b'}')?,
            A::CollapsedSliceDims => gather(target).collapsed_slice_dims = self.integers(b'{', b'}')?,
            A::StartIndexMap => gather(target).start_index_map = self.integers(b'{', b'}')?,
            A::OperandBatchingDims => gather(target).operand_batching_dims = self.integers(b'{', b'}')?,
            A::StartIndicesBatchingDims => gather(target).start_indices_batching_dims = self.integers(b'{', b'}')?,
            A::UpdateWindowDims => scatter(target).update_window_dims = self.integers(b'{', b'}')?,
            A::InsertedWindowDims => scatter(target).inserted_window_dims = self.integers(b'{', b'}')?,
            A::ScatterDimsToOperandDims => {
                scatter(target).scatter_dims_to_operand_dims = self.integers(b'{', b'}')?;
            }
            A::InputBatchingDims => scatter(target).input_batching_dims = self.integers(b'{', b'}')?,
            A::ScatterIndicesBatchingDims => {
                scatter(target).scatter_indices_batching_dims = self.integers(b'{', b'}')?;
            }
            A::IndexVectorDim if target.opcode == "gather" => {
                gather(target).index_vector_dim = self.lexer.integer()?;
            }
            A::IndexVectorDim => scatter(target).index_vector_dim = self.lexer.integer()?,
            A::IndicesAreSorted => target.indices_are_sorted = self.lexer.boolean()?,
            A::UniqueIndices => target.unique_indices = self.lexer.boolean()?,

            A::Direction => target.comparison_direction = self.choice("direction", DIRECTIONS)?.to_string(),
            A::Type => target.comparison_type = self.choice("type of comparison", COMPARISONS)?.to_string(),
            A::Kind => target.fusion_kind = self.choice("kind of fusion", FUSION_KINDS)?.to_string(),
            A::FftType => target.fft_type = self.choice("type of transform", FFT_TYPES)?.into(),
            A::FftLength => target.fft_length = self.integers(b'{', b'}')?,
            A::Distribution => target.distribution = self.choice("distribution", DISTRIBUTIONS)?.into(),
            A::Delta => target.delta = self.lexer.integer()?,
            A::ExponentBits => target.exponent_bits = self.lexer.small_integer()?,
            A::MantissaBits => target.mantissa_bits = self.lexer.small_integer()?,
            A::Epsilon => target.epsilon = self.number()? as f32,
            A::FeatureIndex => target.feature_index = self.lexer.integer()?,
            A::K => target.k = self.lexer.integer()?,
            A::Largest => target.largest = self.lexer.boolean()?,
            A::IsStable => target.is_stable = self.lexer.boolean()?,
            A::IsComposite => target.is_composite = self.lexer.boolean()?,
            A::NumCarries => target.num_carries = self.lexer.integer()?,
            A::IsReverse => target.is_reverse = self.lexer.boolean()?,
            A::IsAssociative => {
                target.is_associative = if self.lexer.boolean()? { TriState::True } else { TriState::False }.into();
            }
            A::LeftSide => triangular(target).left_side = self.lexer.boolean()?,
            A::UnitDiagonal => triangular(target).unit_diagonal = self.lexer.boolean()?,
            A::TransposeA => triangular(target).transpose_a = self.choice("transposition", TRANSPOSES)?.into(),
            A::Lower if target.opcode == "cholesky" => {
                target.cholesky_options.get_or_insert_default().lower = self.lexer.boolean()?;
            }
            A::Lower => triangular(target).lower = self.lexer.boolean()?,
            A::Domain => self.domain(target)?,

            A::InfeedConfig => target.infeed_config = self.lexer.quoted()?,
            A::OutfeedConfig => target.outfeed_config = self.lexer.quoted()?,
            A::OutfeedShape => target.outfeed_shape = Some(Box::new(self.shape()?)),
            A::CustomCallTarget => target.custom_call_target = self.lexer.string()?,
            A::CustomCallHasSideEffect => target.custom_call_has_side_effect = self.lexer.boolean()?,
            A::OperandLayoutConstraints => {
                let mut shapes = Vec::new();
                self.list(b'{', b'}', |parser| {
                    shapes.push(parser.shape()?);
                    Ok(())
                })?;
                target.constrain_layout = true;
                target.operand_shapes_with_layout = shapes;
            }
            A::OutputToOperandAliasing => target.output_operand_aliasing = self.aliasing()?,
            A::PaddingType => target.padding_type = self.choice("type of padding", PADDING_TYPES)?.into(),
            A::Literal => target.literal = Some(Box::new(self.literal_with_shape()?)),
            A::Schedule => target.custom_call_schedule = self.choice("schedule", SCHEDULES)?.into(),
            A::ApiVersion => target.custom_call_api_version = self.choice("API version", API_VERSIONS)?.into(),
        }
        Ok(())
    }

    /// A word that is one of a few.
    fn choice<T: Copy>(&mut self, what: &str, choices: &[(&str, T)]) -> Result<T> {
        let start = self.lexer.here();
        let word = self.lexer.expect_word(what)?;
        match choices.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => Ok(*value),
            None => {
                let near = hint(word, choices.iter().map(|(name, _)| *name));
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                fault(start, format!("unknown {what} \"{word}\"{near}; it is one of {}", names.join(", ")))
            }
        }
    }

    /// `{true,false}`.
    pub(super) fn booleans(&mut self) -> Result<Vec<bool>> {
        let mut values = Vec::new();
        self.list(b'{', b'}', |parser| {
            values.push(parser.lexer.boolean()?);
            Ok(())
        })?;
        Ok(values)
    }

    /// `{{0,1},{2,3}}`.
    pub(super) fn integer_lists(&mut self) -> Result<Vec<Vec<i64>>> {
        let mut lists = Vec::new();
        self.list(b'{', b'}', |parser| {
            lists.push(parser.integers(b'{', b'}')?);
            Ok(())
        })?;
        Ok(lists)
    }

    fn pairs(&mut self) -> Result<Vec<SourceTarget>> {
        let mut pairs = Vec::new();
        self.list(b'{', b'}', |parser| {
            parser.lexer.expect(b'{', "before a pair of devices")?;
            let source = parser.lexer.integer()?;
            parser.lexer.expect(b',', "between the devices of a pair")?;
            let target = parser.lexer.integer()?;
            parser.lexer.expect(b'}', "after a pair of devices")?;
            pairs.push(SourceTarget { source, target });
            Ok(())
        })?;
        Ok(pairs)
    }

    /// `{[0:4], [1:8:2]}`: start, limit and stride.
    fn slice(&mut self) -> Result<Vec<SliceDimensions>> {
        let mut dimensions = Vec::new();
        self.list(b'{', b'}', |parser| {
            parser.lexer.expect(b'[', "before the range of a dimension")?;
            let start = parser.lexer.integer()?;
            parser.lexer.expect(b':', "after the start of a range")?;
            let limit = parser.lexer.integer()?;
            let stride = if parser.lexer.eat(b':') { parser.lexer.integer()? } else { 1 };
            parser.lexer.expect(b']', "after the range of a dimension")?;
            dimensions.push(SliceDimensions { start, limit, stride });
            Ok(())
        })?;
        Ok(dimensions)
    }

    /// `{{0}: (1, {}), ...}`.
    fn aliasing(&mut self) -> Result<Vec<OutputOperandAliasing>> {
        let mut aliases = Vec::new();
        self.list(b'{', b'}', |parser| {
            let output_shape_index = parser.integers(b'{', b'}')?;
            parser.lexer.expect(b':', "after the index of an output")?;
            parser.lexer.expect(b'(', "before the operand of an alias")?;
            let operand_index = parser.lexer.integer()?;
            parser.lexer.expect(b',', "after the operand of an alias")?;
            let operand_shape_index = parser.integers(b'{', b'}')?;
            parser.lexer.expect(b')', "after the operand of an alias")?;
            aliases.push(OutputOperandAliasing { output_shape_index, operand_index, operand_shape_index });
            Ok(())
        })?;
        Ok(aliases)
    }

    /// `{kind="sharding", entry={...}, exit={...}}`.
    fn domain(&mut self, target: &mut HloInstructionProto) -> Result<()> {
        self.lexer.expect(b'{', "before the parts of a domain")?;
        loop {
            let start = self.lexer.here();
            match self.lexer.attribute_name()? {
                "kind" => {
                    let start = self.lexer.here();
                    let kind = self.lexer.string()?;
                    if kind != "sharding" {
                        return fault(start, format!("a domain is of kind \"sharding\", found {kind:?}"));
                    }
                }
                // XLA names the two sides from the inside in its protos and from the outside in its text.
                "entry" => target.domain_exit_sharding = Some(Box::new(self.sharding()?)),
                "exit" => target.domain_entry_sharding = Some(Box::new(self.sharding()?)),
                other => return fault(start, format!("a domain has kind, entry and exit, found \"{other}\"")),
            }
            self.lexer.eat(b',');
            if self.lexer.eat(b'}') {
                return Ok(());
            }
        }
    }
}

/// Sets the id of the `place`th called computation.
fn place_call(target: &mut HloInstructionProto, place: usize, id: i64) {
    if target.called_computation_ids.len() <= place {
        target.called_computation_ids.resize(place + 1, id);
    }
    target.called_computation_ids[place] = id;
}

/// The dimension numbers of a dot; a ragged one has them inside its own.
fn dot(target: &mut HloInstructionProto) -> &mut DotDimensionNumbers {
    if target.opcode == "ragged-dot" {
        target.ragged_dot_dimension_numbers.get_or_insert_default().dot_dimension_numbers.get_or_insert_default()
    } else {
        target.dot_dimension_numbers.get_or_insert_default()
    }
}

fn gather(target: &mut HloInstructionProto) -> &mut GatherDimensionNumbers {
    target.gather_dimension_numbers.get_or_insert_default()
}

fn scatter(target: &mut HloInstructionProto) -> &mut ScatterDimensionNumbers {
    target.scatter_dimension_numbers.get_or_insert_default()
}

fn triangular(target: &mut HloInstructionProto) -> &mut TriangularSolveOptions {
    target.triangular_solve_options.get_or_insert_default()
}
