//! The opcodes: how many operands each takes and which attributes, as in XLA's parser.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

/// Declares [`Attribute`] and the names of its variants.
macro_rules! attributes {
    ($($variant:ident $name:literal,)*) => {
        /// What can stand after the operands of an instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Attribute {
            $($variant,)*
        }

        const ATTRIBUTES: &[(&str, Attribute)] = &[$(($name, Attribute::$variant),)*];
    };
}

attributes! {
    Metadata "metadata",
    Sharding "sharding",
    BackendConfig "backend_config",
    FrontendAttributes "frontend_attributes",
    ControlPredecessors "control-predecessors",
    Statistics "statistics",
    Origin "origin",
    ParameterReplication "parameter_replication",
    ResultAccuracy "result_accuracy",
    Algorithm "algorithm",
    ApiVersion "api_version",
    AsyncExecutionThread "async_execution_thread",
    BatchGroupCount "batch_group_count",
    Body "body",
    BranchComputations "branch_computations",
    CalledComputations "called_computations",
    Calls "calls",
    ChannelId "channel_id",
    CollapsedSliceDims "collapsed_slice_dims",
    Condition "condition",
    ConstrainLayout "constrain_layout",
    ConvolutionKind "convolution_kind",
    CrossProgramPrefetchIndex "cross_program_prefetch_index",
    CustomCallHasSideEffect "custom_call_has_side_effect",
    CustomCallTarget "custom_call_target",
    Delta "delta",
    DimLabels "dim_labels",
    Dimensions "dimensions",
    Direction "direction",
    Distribution "distribution",
    Domain "domain",
    DynamicSliceSizes "dynamic_slice_sizes",
    Epsilon "epsilon",
    ExponentBits "exponent_bits",
    FalseComputation "false_computation",
    FeatureGroupCount "feature_group_count",
    FeatureIndex "feature_index",
    FftLength "fft_length",
    FftType "fft_type",
    Index "index",
    IndexVectorDim "index_vector_dim",
    IndicesAreSorted "indices_are_sorted",
    InfeedConfig "infeed_config",
    InferredDimension "inferred_dimension",
    InputBatchingDims "input_batching_dims",
    InsertedWindowDims "inserted_window_dims",
    IotaDimension "iota_dimension",
    IsAssociative "is_associative",
    IsComposite "is_composite",
    IsHostTransfer "is_host_transfer",
    IsReverse "is_reverse",
    IsStable "is_stable",
    K "k",
    Kind "kind",
    Largest "largest",
    LeftSide "left_side",
    LhsBatchDims "lhs_batch_dims",
    LhsContractingDims "lhs_contracting_dims",
    LhsRaggedDims "lhs_ragged_dims",
    Literal "literal",
    Lower "lower",
    MantissaBits "mantissa_bits",
    Mode "mode",
    NumCarries "num_carries",
    OffsetDims "offset_dims",
    OperandBatchingDims "operand_batching_dims",
    OperandLayoutConstraints "operand_layout_constraints",
    OperandPrecision "operand_precision",
    OutfeedConfig "outfeed_config",
    OutfeedShape "outfeed_shape",
    OutputToOperandAliasing "output_to_operand_aliasing",
    Padding "padding",
    PaddingType "padding_type",
    ReplicaGroups "replica_groups",
    RhsBatchDims "rhs_batch_dims",
    RhsContractingDims "rhs_contracting_dims",
    RhsGroupDims "rhs_group_dims",
    Scatter "scatter",
    ScatterDimsToOperandDims "scatter_dims_to_operand_dims",
    ScatterIndicesBatchingDims "scatter_indices_batching_dims",
    Schedule "schedule",
    Select "select",
    Slice "slice",
    SparsityConfig "sparsity_config",
    SliceSizes "slice_sizes",
    SourceTargetPairs "source_target_pairs",
    StartIndexMap "start_index_map",
    StartIndicesBatchingDims "start_indices_batching_dims",
    ToApply "to_apply",
    TransposeA "transpose_a",
    TrueComputation "true_computation",
    Type "type",
    UniqueIndices "unique_indices",
    UnitDiagonal "unit_diagonal",
    UpdateWindowDims "update_window_dims",
    UseGlobalDeviceIds "use_global_device_ids",
    Window "window",
}

impl Attribute {
    pub(super) fn name(self) -> &'static str {
        ATTRIBUTES[self as usize].0
    }

    pub(super) fn from_name(name: &str) -> Option<Attribute> {
        static BY_NAME: LazyLock<FxHashMap<&str, Attribute>> = LazyLock::new(|| ATTRIBUTES.iter().copied().collect());
        // For a while it was printed so.
        BY_NAME.get(if name == "conv_kind" { "convolution_kind" } else { name }).copied()
    }

    /// Whether every opcode may have it.
    pub(super) fn is_common(self) -> bool {
        Attributes::COMMON.contains(self)
    }
}

/// A set of attributes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Attributes(u128);

impl Attributes {
    /// What any opcode may have. XLA's parser takes a result accuracy only on elementwise functions of one operand;
    /// the field is there on all instructions, and its printer prints it on all.
    const COMMON: Attributes = Attributes::of(&[
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

    const fn of(attributes: &[Attribute]) -> Attributes {
        let mut bits = 0;
        let mut index = 0;
        while index < attributes.len() {
            bits |= 1 << attributes[index] as u8;
            index += 1;
        }
        Attributes(bits)
    }

    pub(super) fn contains(self, attribute: Attribute) -> bool {
        self.0 & (1 << attribute as u8) != 0
    }

    pub(super) fn insert(&mut self, attribute: Attribute) {
        self.0 |= 1 << attribute as u8;
    }

    /// The first attribute of this set that `others` lacks.
    pub(super) fn first_not_in(self, others: Attributes) -> Option<Attribute> {
        let missing = self.0 & !others.0;
        ATTRIBUTES.get(missing.trailing_zeros() as usize).filter(|_| missing != 0).map(|&(_, attribute)| attribute)
    }

    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        ATTRIBUTES.iter().filter(move |(_, attribute)| self.contains(*attribute)).map(|(name, _)| *name)
    }
}

/// What stands between an opcode's parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    /// The number of a parameter.
    Number,
    /// The value of a constant.
    Value,
    /// This many operands.
    Exactly(usize),
    /// Any number of operands.
    Any,
}

/// One opcode.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) operands: Operands,
    /// Beside the common ones.
    optional: Attributes,
    pub(super) required: Attributes,
}

impl Operation {
    pub(super) fn allowed(&self) -> Attributes {
        Attributes(self.optional.0 | self.required.0 | Attributes::COMMON.0)
    }

    pub(super) fn from_name(name: &str) -> Option<&'static Operation> {
        static BY_NAME: LazyLock<FxHashMap<&str, &Operation>> =
            LazyLock::new(|| OPERATIONS.iter().map(|operation| (operation.name, operation)).collect());
        BY_NAME.get(name).copied()
    }

    /// The names of all opcodes.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        OPERATIONS.iter().map(|operation| operation.name)
    }
}

/// A row of the table: opcode, operands, required attributes, optional attributes.
macro_rules! operations {
    ($($name:literal $operands:ident $(($count:literal))? [$($required:ident)*] [$($optional:ident)*])*) => {
        &[$(Operation {
            name: $name,
            operands: Operands::$operands $(($count))?,
            required: Attributes::of(&[$(Attribute::$required,)*]),
            optional: Attributes::of(&[$(Attribute::$optional,)*]),
        },)*]
    };
}

#[rustfmt::skip]
const OPERATIONS: &[Operation] = operations! {
    "abs" Exactly(1) [] []
    "acos" Exactly(1) [] []
    "acosh" Exactly(1) [] []
    "add" Exactly(2) [] []
    "add-dependency" Exactly(2) [] []
    "after-all" Any [] []
    "all-gather" Any [Dimensions] [ReplicaGroups ChannelId ConstrainLayout UseGlobalDeviceIds]
    "all-gather-done" Exactly(1) [] []
    "all-gather-start" Any [Dimensions] [ReplicaGroups ChannelId ConstrainLayout UseGlobalDeviceIds]
    "all-reduce" Any [ToApply] [ReplicaGroups ChannelId ConstrainLayout UseGlobalDeviceIds Mode]
    "all-reduce-done" Exactly(1) [] []
    "all-reduce-start" Any [ToApply] [ReplicaGroups ChannelId ConstrainLayout UseGlobalDeviceIds Mode]
    "all-to-all" Any [] [ReplicaGroups ChannelId ConstrainLayout Dimensions]
    "and" Exactly(2) [] []
    "asin" Exactly(1) [] []
    "asinh" Exactly(1) [] []
    "async-done" Any [] [AsyncExecutionThread Calls]
    "async-start" Any [Calls] [AsyncExecutionThread OutputToOperandAliasing]
    "async-update" Any [] [AsyncExecutionThread Calls]
    "atan2" Exactly(2) [] []
    "atanh" Exactly(1) [] []
    "batch-norm-grad" Exactly(5) [Epsilon FeatureIndex] []
    "batch-norm-inference" Exactly(5) [Epsilon FeatureIndex] []
    "batch-norm-training" Exactly(3) [Epsilon FeatureIndex] []
    "bitcast" Exactly(1) [] []
    "bitcast-convert" Exactly(1) [] []
    "broadcast" Exactly(1) [] [Dimensions]
    "call" Any [ToApply] [IsComposite]
    "cbrt" Exactly(1) [] []
    "ceil" Exactly(1) [] []
    "cholesky" Exactly(1) [] [Lower]
    "clamp" Exactly(3) [] []
    "collective-broadcast" Any [] [ReplicaGroups ChannelId]
    "collective-permute" Any [SourceTargetPairs] [ChannelId SliceSizes]
    "collective-permute-done" Exactly(1) [] []
    "collective-permute-start" Any [SourceTargetPairs] [ChannelId SliceSizes]
    "compare" Exactly(2) [Direction] [Type]
    "complex" Exactly(2) [] []
    "concatenate" Any [Dimensions] []
    "conditional" Any [] [TrueComputation FalseComputation BranchComputations]
    "constant" Value [] []
    "convert" Exactly(1) [] []
    "convolution" Exactly(2) [DimLabels] [Window FeatureGroupCount BatchGroupCount ConvolutionKind SparsityConfig OperandPrecision Algorithm]
    "copy" Exactly(1) [] []
    "copy-done" Exactly(1) [] []
    "copy-start" Exactly(1) [] [CrossProgramPrefetchIndex]
    "cosh" Exactly(1) [] []
    "cosine" Exactly(1) [] []
    "count-leading-zeros" Exactly(1) [] []
    "custom-call" Any [CustomCallTarget] [Window DimLabels FeatureGroupCount BatchGroupCount OperandLayoutConstraints CustomCallHasSideEffect ToApply CalledComputations OutputToOperandAliasing PaddingType Literal OperandPrecision Algorithm Schedule ApiVersion]
    "divide" Exactly(2) [] []
    "domain" Exactly(1) [Domain] []
    "dot" Exactly(2) [] [LhsContractingDims RhsContractingDims LhsBatchDims RhsBatchDims OperandPrecision Algorithm]
    "dynamic-reshape" Any [] []
    "dynamic-slice" Any [DynamicSliceSizes] []
    "dynamic-update-slice" Any [] []
    "erf" Exactly(1) [] []
    "exponential" Exactly(1) [] []
    "exponential-minus-one" Exactly(1) [] []
    "fft" Exactly(1) [FftType FftLength] []
    "floor" Exactly(1) [] []
    "fusion" Any [Calls Kind] [OutputToOperandAliasing]
    "gather" Exactly(2) [OffsetDims CollapsedSliceDims StartIndexMap IndexVectorDim SliceSizes] [IndicesAreSorted OperandBatchingDims StartIndicesBatchingDims]
    "get-dimension-size" Exactly(1) [Dimensions] []
    "get-tuple-element" Exactly(1) [Index] []
    "imag" Exactly(1) [] []
    "infeed" Exactly(1) [] [InfeedConfig]
    "iota" Exactly(0) [IotaDimension] []
    "is-finite" Exactly(1) [] []
    "log" Exactly(1) [] []
    "log-plus-one" Exactly(1) [] []
    "logistic" Exactly(1) [] []
    "map" Any [ToApply] [Dimensions]
    "maximum" Exactly(2) [] []
    "minimum" Exactly(2) [] []
    "multiply" Exactly(2) [] []
    "negate" Exactly(1) [] []
    "not" Exactly(1) [] []
    "opt-barrier" Exactly(1) [] []
    "or" Exactly(2) [] []
    "outfeed" Exactly(2) [] [OutfeedConfig OutfeedShape]
    "pad" Exactly(2) [Padding] []
    "parameter" Number [] []
    "partition-id" Exactly(0) [] []
    "popcnt" Exactly(1) [] []
    "power" Exactly(2) [] []
    "ragged-all-to-all" Any [] [ReplicaGroups ChannelId Dimensions]
    "ragged-dot" Exactly(3) [] [LhsContractingDims RhsContractingDims LhsBatchDims RhsBatchDims LhsRaggedDims RhsGroupDims OperandPrecision Algorithm]
    "real" Exactly(1) [] []
    "recv" Exactly(1) [] [ChannelId IsHostTransfer]
    "recv-done" Exactly(1) [] [ChannelId IsHostTransfer]
    "reduce" Any [ToApply Dimensions] []
    "reduce-precision" Exactly(1) [ExponentBits MantissaBits] []
    "reduce-scatter" Any [ToApply Dimensions] [ReplicaGroups ChannelId ConstrainLayout UseGlobalDeviceIds Mode]
    "reduce-window" Any [ToApply] [Window]
    "remainder" Exactly(2) [] []
    "replica-id" Exactly(0) [] []
    "reshape" Exactly(1) [] [InferredDimension]
    "reverse" Exactly(1) [Dimensions] []
    "rng" Any [Distribution] []
    "rng-bit-generator" Any [Algorithm] []
    "rng-get-and-update-state" Exactly(0) [Delta] []
    "round-nearest-afz" Exactly(1) [] []
    "round-nearest-even" Exactly(1) [] []
    "rsqrt" Exactly(1) [] []
    "scaled-dot" Exactly(4) [] [LhsContractingDims RhsContractingDims LhsBatchDims RhsBatchDims OperandPrecision Algorithm]
    "scan" Any [ToApply Dimensions NumCarries] [IsReverse IsAssociative]
    "scatter" Any [UpdateWindowDims InsertedWindowDims ScatterDimsToOperandDims IndexVectorDim ToApply] [IndicesAreSorted UniqueIndices InputBatchingDims ScatterIndicesBatchingDims]
    "select" Exactly(3) [] []
    "select-and-scatter" Exactly(3) [Select Scatter] [Window]
    "send" Exactly(2) [] [ChannelId IsHostTransfer]
    "send-done" Exactly(1) [] [ChannelId IsHostTransfer]
    "set-dimension-size" Exactly(2) [Dimensions] []
    "shift-left" Exactly(2) [] []
    "shift-right-arithmetic" Exactly(2) [] []
    "shift-right-logical" Exactly(2) [] []
    "sign" Exactly(1) [] []
    "sine" Exactly(1) [] []
    "sinh" Exactly(1) [] []
    "slice" Exactly(1) [Slice] []
    "sort" Any [Dimensions ToApply] [IsStable]
    "sqrt" Exactly(1) [] []
    "stochastic-convert" Exactly(2) [] []
    "subtract" Exactly(2) [] []
    "tan" Exactly(1) [] []
    "tanh" Exactly(1) [] []
    "topk" Exactly(1) [K] [Largest]
    "transpose" Exactly(1) [Dimensions] []
    "triangular-solve" Exactly(2) [] [LeftSide Lower UnitDiagonal TransposeA]
    "tuple" Any [] []
    "while" Exactly(1) [Condition Body] []
    "xor" Exactly(2) [] []
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert!(ATTRIBUTES.len() <= 128, "a set of attributes has 128 bits");
        for &(name, attribute) in ATTRIBUTES {
            assert_eq!(attribute.name(), name);
            assert_eq!(Attribute::from_name(name), Some(attribute));
        }
        for name in Operation::names() {
            assert_eq!(Operation::from_name(name).map(|operation| operation.name), Some(name));
        }
    }
}
