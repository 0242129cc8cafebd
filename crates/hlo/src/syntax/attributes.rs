//! The attributes of instructions: their names, where their values are in the proto, and what kind of values they are.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::Kind;
use super::groups::ReplicaGroups;
use super::ranges::{GroupCount, OneDimension, Slices, Thread};
use super::special::{
    BackendConfig, Calls, ChannelId, ComparisonOrder, ComparisonType, Computations, ControlPredecessors, Domain, Mode,
    OperandLayoutConstraints, SliceSizes, Special, StatedShape, place_call,
};
use super::window::Padding;
use super::words::{Direction, FusionKind};
use crate::parse::{Parser, Result, Scope};
use crate::proto::precision_config::{Algorithm as DotAlgorithm, Precision};
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{
    ConvolutionKind as KindOfConvolution, CustomCallApiVersion, CustomCallSchedule, FftType as TransformType,
    HloInstructionProto, PaddingType as TypeOfPadding, RandomAlgorithm as RandomBits, RandomDistribution, TriState,
};
use crate::text::Printer;

/// Declares the attributes. After the name each row says where the value is:
/// - `[field]`, or `[field: Kind]` for a kind that its type does not say;
/// - `[field of part]` for a field of an optional message, or `[field of outer part]` for one inside of two;
/// - `[call 0]` for the first computation that the instruction calls;
/// - `[by Name]` for values that need more than their field: see [`Special`].
macro_rules! attributes {
    ($($variant:ident $name:literal [$($how:tt)*],)*) => {
        /// An attribute, which stands after the operands of an instruction. Several have the same name, in different
        /// opcodes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Attribute {
            $($variant,)*
        }

        const ATTRIBUTES: &[(&str, Attribute)] = &[$(($name, Attribute::$variant),)*];

        const _: () = assert!(ATTRIBUTES.len() <= 128, "a set of attributes has 128 bits");

        impl Printer<'_> {
            /// Prints an attribute after `, `. One that is optional is left out if it says nothing.
            pub(crate) fn attribute(
                &mut self,
                attribute: Attribute,
                instruction: &HloInstructionProto,
                is_optional: bool,
            ) {
                match attribute {
                    $(Attribute::$variant => print_value!(self, instruction, $name, is_optional, $($how)*),)*
                }
            }
        }

        impl<'a> Parser<'a> {
            /// Reads the value of an attribute.
            pub(crate) fn attribute(
                &mut self,
                scope: &Scope<'a>,
                attribute: Attribute,
                target: &mut HloInstructionProto,
            ) -> Result<()> {
                match attribute {
                    $(Attribute::$variant => read_value!(self, scope, target, $($how)*),)*
                }
                Ok(())
            }
        }
    };
}

macro_rules! print_value {
    ($printer:ident, $instruction:ident, $name:literal, $is_optional:ident, call $place:literal) => {
        if let Some(&id) = $instruction.called_computation_ids.get($place) {
            $printer.text(concat!(", ", $name, "="));
            $printer.computation_name(id);
        }
    };
    ($printer:ident, $instruction:ident, $name:literal, $is_optional:ident, by $special:ident) => {
        $special::print($printer, $instruction, concat!(", ", $name, "="))
    };
    ($printer:ident, $instruction:ident, $name:literal, $is_optional:ident,
        $field:ident of $($part:ident)+ $(: $kind:ty)?
    ) => {
        if let Some(part) = Some($instruction)$(.and_then(|part| part.$part.as_ref()))+ {
            print_value!($printer, part, $name, $is_optional, $field $(: $kind)?);
        }
    };
    ($printer:ident, $instruction:ident, $name:literal, $is_optional:ident, $field:ident $(: $kind:ty)?) => {
        if !<super::kind!($($kind)?) as Kind<_>>::is_omitted(&$instruction.$field, $is_optional) {
            $printer.text(concat!(", ", $name, "="));
            <super::kind!($($kind)?) as Kind<_>>::print(&$instruction.$field, $printer);
        }
    };
}

macro_rules! read_value {
    ($parser:ident, $scope:ident, $target:ident, call $place:literal) => {{
        let id = $parser.called()?;
        place_call($target, $place, id);
    }};
    ($parser:ident, $scope:ident, $target:ident, by $special:ident) => {
        $special::read($parser, $scope, $target)?
    };
    ($parser:ident, $scope:ident, $target:ident, $field:ident $(of $($part:ident)+)? $(: $kind:ty)?) => {{
        let value = <super::kind!($($kind)?) as Kind<_>>::read($parser)?;
        $target$($(.$part.get_or_insert_default())+)?.$field = value;
    }};
}

attributes! {
    Metadata "metadata" [metadata],
    Sharding "sharding" [sharding],
    BackendConfig "backend_config" [by BackendConfig],
    FrontendAttributes "frontend_attributes" [frontend_attributes],
    ControlPredecessors "control-predecessors" [by ControlPredecessors],
    Statistics "statistics" [statistics_viz],
    Origin "origin" [original_value],
    ParameterReplication "parameter_replication" [replicated_at_leaf_buffers of parameter_replication],
    ResultAccuracy "result_accuracy" [result_accuracy],
    Algorithm "algorithm" [algorithm of precision_config: DotAlgorithm],
    RandomAlgorithm "algorithm" [rng_algorithm: RandomBits],
    ApiVersion "api_version" [custom_call_api_version: CustomCallApiVersion],
    AsyncExecutionThread "async_execution_thread" [async_execution_thread: Thread],
    BatchGroupCount "batch_group_count" [batch_group_count: GroupCount],
    Body "body" [call 0],
    BranchComputations "branch_computations" [called_computation_ids: Computations],
    CalledComputations "called_computations" [called_computation_ids: Computations],
    Calls "calls" [by Calls],
    ChannelId "channel_id" [by ChannelId],
    CollapsedSliceDims "collapsed_slice_dims" [collapsed_slice_dims of gather_dimension_numbers],
    Condition "condition" [call 1],
    ConstrainLayout "constrain_layout" [constrain_layout],
    ConvolutionKind "convolution_kind" [conv_kind: KindOfConvolution],
    CrossProgramPrefetchIndex "cross_program_prefetch_index" [optional_cross_program_prefetch_index],
    CustomCallHasSideEffect "custom_call_has_side_effect" [custom_call_has_side_effect],
    CustomCallTarget "custom_call_target" [custom_call_target],
    Delta "delta" [delta],
    DimLabels "dim_labels" [convolution_dimension_numbers],
    Dimensions "dimensions" [dimensions],
    Direction "direction" [comparison_direction: Direction],
    Distribution "distribution" [distribution: RandomDistribution],
    Domain "domain" [by Domain],
    DynamicSliceSizes "dynamic_slice_sizes" [dynamic_slice_sizes],
    Epsilon "epsilon" [epsilon],
    HasDynamicRoot "has_dynamic_root" [has_dynamic_root],
    ExponentBits "exponent_bits" [exponent_bits],
    FalseComputation "false_computation" [call 1],
    FeatureGroupCount "feature_group_count" [feature_group_count: GroupCount],
    FeatureIndex "feature_index" [feature_index],
    FftLength "fft_length" [fft_length],
    FftType "fft_type" [fft_type: TransformType],
    Index "index" [tuple_index],
    GatherIndexVectorDim "index_vector_dim" [index_vector_dim of gather_dimension_numbers],
    ScatterIndexVectorDim "index_vector_dim" [index_vector_dim of scatter_dimension_numbers],
    IndicesAreSorted "indices_are_sorted" [indices_are_sorted],
    InfeedConfig "infeed_config" [infeed_config],
    InferredDimension "inferred_dimension" [dimensions: OneDimension],
    InputBatchingDims "input_batching_dims" [input_batching_dims of scatter_dimension_numbers],
    InsertedWindowDims "inserted_window_dims" [inserted_window_dims of scatter_dimension_numbers],
    IotaDimension "iota_dimension" [dimensions: OneDimension],
    IsAssociative "is_associative" [is_associative: TriState],
    IsComposite "is_composite" [is_composite],
    IsHostTransfer "is_host_transfer" [is_host_transfer],
    IsReverse "is_reverse" [is_reverse],
    IsStable "is_stable" [is_stable],
    K "k" [k],
    Kind "kind" [fusion_kind: FusionKind],
    Largest "largest" [largest],
    LeftSide "left_side" [left_side of triangular_solve_options],
    LhsBatchDims "lhs_batch_dims" [lhs_batch_dimensions of dot_dimension_numbers],
    RaggedLhsBatchDims "lhs_batch_dims" [
        lhs_batch_dimensions of ragged_dot_dimension_numbers dot_dimension_numbers
    ],
    LhsContractingDims "lhs_contracting_dims" [lhs_contracting_dimensions of dot_dimension_numbers],
    RaggedLhsContractingDims "lhs_contracting_dims" [
        lhs_contracting_dimensions of ragged_dot_dimension_numbers dot_dimension_numbers
    ],
    LhsRaggedDims "lhs_ragged_dims" [lhs_ragged_dimensions of ragged_dot_dimension_numbers],
    Literal "literal" [literal],
    CholeskyLower "lower" [lower of cholesky_options],
    Lower "lower" [lower of triangular_solve_options],
    MantissaBits "mantissa_bits" [mantissa_bits],
    Mode "mode" [by Mode],
    NumCarries "num_carries" [num_carries],
    OffsetDims "offset_dims" [offset_dims of gather_dimension_numbers],
    OperandBatchingDims "operand_batching_dims" [operand_batching_dims of gather_dimension_numbers],
    OperandLayoutConstraints "operand_layout_constraints" [by OperandLayoutConstraints],
    OperandPrecision "operand_precision" [operand_precision of precision_config: Precision],
    Order "order" [by ComparisonOrder],
    OutfeedConfig "outfeed_config" [outfeed_config],
    OutfeedShape "outfeed_shape" [outfeed_shape: StatedShape],
    OutputToOperandAliasing "output_to_operand_aliasing" [output_operand_aliasing],
    Padding "padding" [padding_config: Padding],
    PaddingType "padding_type" [padding_type: TypeOfPadding],
    ReplicaGroups "replica_groups" [by ReplicaGroups],
    RhsBatchDims "rhs_batch_dims" [rhs_batch_dimensions of dot_dimension_numbers],
    RaggedRhsBatchDims "rhs_batch_dims" [
        rhs_batch_dimensions of ragged_dot_dimension_numbers dot_dimension_numbers
    ],
    RhsContractingDims "rhs_contracting_dims" [rhs_contracting_dimensions of dot_dimension_numbers],
    RaggedRhsContractingDims "rhs_contracting_dims" [
        rhs_contracting_dimensions of ragged_dot_dimension_numbers dot_dimension_numbers
    ],
    RhsGroupDims "rhs_group_dims" [rhs_group_dimensions of ragged_dot_dimension_numbers],
    Scatter "scatter" [call 1],
    ScatterDimsToOperandDims "scatter_dims_to_operand_dims" [
        scatter_dims_to_operand_dims of scatter_dimension_numbers
    ],
    ScatterIndicesBatchingDims "scatter_indices_batching_dims" [
        scatter_indices_batching_dims of scatter_dimension_numbers
    ],
    Schedule "schedule" [custom_call_schedule: CustomCallSchedule],
    Select "select" [call 0],
    Slice "slice" [slice_dimensions: Slices],
    SparsityConfig "sparsity_config" [sparsity_config],
    GatherSliceSizes "slice_sizes" [gather_slice_sizes],
    SliceSizes "slice_sizes" [by SliceSizes],
    SourceTargetPairs "source_target_pairs" [source_target_pairs],
    StartIndexMap "start_index_map" [start_index_map of gather_dimension_numbers],
    StartIndicesBatchingDims "start_indices_batching_dims" [start_indices_batching_dims of gather_dimension_numbers],
    ToApply "to_apply" [call 0],
    TransposeA "transpose_a" [transpose_a of triangular_solve_options: Transpose],
    TrueComputation "true_computation" [call 0],
    Type "type" [by ComparisonType],
    UniqueIndices "unique_indices" [unique_indices],
    UnitDiagonal "unit_diagonal" [unit_diagonal of triangular_solve_options],
    UpdateWindowDims "update_window_dims" [update_window_dims of scatter_dimension_numbers],
    UseGlobalDeviceIds "use_global_device_ids" [use_global_device_ids],
    Window "window" [window],
}

impl Attribute {
    pub(crate) fn name(self) -> &'static str {
        ATTRIBUTES[self as usize].0
    }

    /// Whether every opcode may have it.
    pub(crate) fn is_common(self) -> bool {
        Attributes::COMMON.contains(self)
    }
}

/// A set of attributes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Attributes(u128);

impl Attributes {
    pub(crate) const NONE: Attributes = Attributes(0);

    /// The attributes that any opcode may have. XLA's parser takes a result accuracy only on elementwise functions of
    /// one operand; the field is there on all instructions, and its printer prints it on all.
    pub(crate) const COMMON: Attributes = Attributes::of(&[
        Attribute::Metadata,
        Attribute::Sharding,
        Attribute::BackendConfig,
        Attribute::FrontendAttributes,
        Attribute::ControlPredecessors,
        Attribute::Statistics,
        Attribute::Origin,
        Attribute::ParameterReplication,
        Attribute::ResultAccuracy,
    ]);

    /// The attributes whose values are computations.
    pub(crate) const CALLS: Attributes = Attributes::of(&[
        Attribute::Body,
        Attribute::BranchComputations,
        Attribute::CalledComputations,
        Attribute::Calls,
        Attribute::Condition,
        Attribute::FalseComputation,
        Attribute::Scatter,
        Attribute::Select,
        Attribute::ToApply,
        Attribute::TrueComputation,
    ]);

    pub(crate) const BRANCHES: Attributes = Attributes::of(&[Attribute::BranchComputations]);
    pub(crate) const TRUE_OR_FALSE: Attributes =
        Attributes::of(&[Attribute::TrueComputation, Attribute::FalseComputation]);

    const fn of(attributes: &[Attribute]) -> Attributes {
        let mut set = Attributes::NONE;
        let mut index = 0;
        while index < attributes.len() {
            set = set.with(attributes[index]);
            index += 1;
        }
        set
    }

    pub(crate) const fn with(self, attribute: Attribute) -> Attributes {
        Attributes(self.0 | 1 << attribute as u8)
    }

    pub(crate) fn contains(self, attribute: Attribute) -> bool {
        self.0 & (1 << attribute as u8) != 0
    }

    pub(crate) fn and(self, others: Attributes) -> Attributes {
        Attributes(self.0 & others.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn first(self) -> Option<Attribute> {
        ATTRIBUTES.get(self.0.trailing_zeros() as usize).map(|&(_, attribute)| attribute)
    }

    /// The first attribute of this set that `others` lacks.
    pub(crate) fn first_not_in(self, others: Attributes) -> Option<Attribute> {
        Attributes(self.0 & !others.0).first()
    }

    /// The attribute of a name.
    pub(crate) fn named(self, name: &str) -> Option<Attribute> {
        static BY_NAME: LazyLock<FxHashMap<&str, Attributes>> = LazyLock::new(|| {
            let mut by_name: FxHashMap<&str, Attributes> = FxHashMap::default();
            for &(name, attribute) in ATTRIBUTES {
                let set = by_name.entry(name).or_default();
                *set = set.with(attribute);
            }
            by_name
        });
        // XLA printed this name for a while.
        let name = if name == "conv_kind" { "convolution_kind" } else { name };
        self.and(*BY_NAME.get(name)?).first()
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        ATTRIBUTES.iter().filter(move |(_, attribute)| self.contains(*attribute)).map(|(name, _)| *name)
    }
}
