//! The opcodes: what each has between its parentheses, and which attributes, in the order in which XLA prints them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::attributes::{Attribute, Attributes};

/// The content of an opcode's parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operands {
    /// The number of a parameter.
    Number,
    /// The value of a constant.
    Value,
    /// This many operands.
    Exactly(usize),
    /// Any number of operands.
    Any,
}

/// How an opcode uses an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// `!`: it must be there, and always prints.
    Required,
    /// `+`: it may be left out, but always prints.
    Printed,
    /// `?`: it may be left out, and prints if it says something.
    Optional,
    /// `-`: it is read, and never prints.
    Read,
    /// `>`: it prints if it says something, but XLA does not read it.
    Unread,
}

/// Another property of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The result has the shape of the first operand.
    Same,
    /// It is arithmetic or logic on each element.
    Arithmetic,
    /// It is a transcendental function of each element.
    Transcendental,
    /// StableHLO has it as an op that carries nothing but operands.
    Stable,
    /// So has the dialect `chlo`, to which StableHLO leaves it.
    Higher,
}

/// One opcode.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) operands: Operands,
    marks: &'static [Mark],
    /// Beside the common ones.
    pub(crate) attributes: &'static [(Attribute, Use)],
    pub(crate) allowed: Attributes,
    pub(crate) required: Attributes,
}

impl Operation {
    pub(crate) fn from_name(name: &str) -> Option<&'static Operation> {
        static BY_NAME: LazyLock<FxHashMap<&str, &Operation>> =
            LazyLock::new(|| Operation::all().map(|operation| (operation.name, operation)).collect());
        BY_NAME.get(name).copied()
    }

    fn all() -> impl Iterator<Item = &'static Operation> {
        OPERATIONS.iter().copied().flatten()
    }

    /// The names of all opcodes, in order.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        Operation::all().map(|operation| operation.name).collect::<BTreeSet<_>>().into_iter()
    }

    /// Whether an opcode has a mark; one that is not in the table has none.
    pub(crate) fn has(&self, mark: Mark) -> bool {
        self.marks.contains(&mark)
    }

    pub(crate) fn has_mark(opcode: &str, mark: Mark) -> bool {
        Operation::from_name(opcode).is_some_and(|operation| operation.has(mark))
    }
}

/// The attributes of a row that have certain uses, besides others.
const fn used(attributes: &[(Attribute, Use)], from: Attributes, is_used: [bool; 5]) -> Attributes {
    let mut set = from;
    let mut index = 0;
    while index < attributes.len() {
        let (attribute, usage) = attributes[index];
        if is_used[usage as usize] {
            set = set.with(attribute);
        }
        index += 1;
    }
    set
}

macro_rules! usage {
    (!) => {
        Use::Required
    };
    (+) => {
        Use::Printed
    };
    (?) => {
        Use::Optional
    };
    (-) => {
        Use::Read
    };
    (>) => {
        Use::Unread
    };
}

/// A row of the table: opcodes, operands, marks, attributes.
macro_rules! operations {
    ($($($name:literal)+ $operands:ident $(($count:literal))? $($mark:ident)* [$($attribute:ident $usage:tt)*])*) => {
        &[$({
            const ATTRIBUTES: &[(Attribute, Use)] = &[$((Attribute::$attribute, usage!($usage)),)*];
            const OPERANDS: Operands = Operands::$operands $(($count))?;
            const MARKS: &[Mark] = &[$(Mark::$mark),*];
            &[$(Operation {
                name: $name,
                operands: OPERANDS,
                marks: MARKS,
                attributes: ATTRIBUTES,
                allowed: used(ATTRIBUTES, Attributes::COMMON, [true, true, true, true, false]),
                required: used(ATTRIBUTES, Attributes::NONE, [true, false, false, false, false]),
            }),+]
        },)*]
    };
}

/// Opcodes that are alike are in one row.
#[rustfmt::skip]
const OPERATIONS: &[&[Operation]] = operations! {
    "abs" "ceil" "count-leading-zeros" "floor" "negate" "not" "popcnt" "round-nearest-afz" "round-nearest-even"
        "sign" Exactly(1) Same Arithmetic Stable []
    "cbrt" "cosine" "exponential" "exponential-minus-one" "log" "log-plus-one" "logistic" "rsqrt" "sine" "sqrt" "tan"
        "tanh" Exactly(1) Same Transcendental Stable []
    "acos" "acosh" "asin" "asinh" "atanh" "cosh" "erf" "sinh" Exactly(1) Same Transcendental Higher []
    "add" "and" "divide" "maximum" "minimum" "multiply" "or" "remainder" "shift-left" "shift-right-arithmetic"
        "shift-right-logical" "subtract" "xor" Exactly(2) Same Arithmetic Stable []
    "atan2" "power" Exactly(2) Same Transcendental Stable []
    "bitcast-convert" "convert" "imag" "is-finite" "real" Exactly(1) Arithmetic Stable []
    "clamp" "select" Exactly(3) Arithmetic Stable []
    "mulhi" Exactly(2) Same Arithmetic []
    "complex" Exactly(2) Arithmetic Stable []
    "stochastic-convert" Exactly(2) Arithmetic []
    "add-dependency" Exactly(2) Same []
    "after-all" "dynamic-update-slice" "tuple" Any Stable []
    "dynamic-reshape" Any []
    "all-gather-done" "all-reduce-done" "bitcast" "collective-permute-done" "copy-done" Exactly(1) []
    "constant" Value []
    "copy" "opt-barrier" Exactly(1) Same []
    "partition-id" "replica-id" Exactly(0) Stable []
    "all-gather" "all-gather-start" Any [ChannelId? ReplicaGroups+ ConstrainLayout? Dimensions! UseGlobalDeviceIds?]
    "all-reduce" "all-reduce-start" Any [
        ChannelId? ReplicaGroups+ ConstrainLayout? UseGlobalDeviceIds? ToApply! Mode-
    ]
    "all-to-all" Any [ChannelId? ReplicaGroups+ ConstrainLayout? Dimensions?]
    "async-done" Any [AsyncExecutionThread- OutputToOperandAliasing- Calls-]
    "async-start" Any [AsyncExecutionThread? OutputToOperandAliasing? Calls!]
    "async-update" Any [AsyncExecutionThread- OutputToOperandAliasing? Calls-]
    "batch-norm-grad" "batch-norm-inference" Exactly(5) [Epsilon! FeatureIndex!]
    "batch-norm-training" Exactly(3) [Epsilon! FeatureIndex!]
    "broadcast" Exactly(1) [Dimensions+]
    "call" Any [ToApply! IsComposite?]
    "cholesky" Exactly(1) Same [CholeskyLower?]
    "collective-broadcast" Any [ChannelId? ReplicaGroups+ ConstrainLayout> HasDynamicRoot?]
    "collective-permute" "collective-permute-start" Any [ChannelId? SourceTargetPairs! SliceSizes?]
    "compare" Exactly(2) Arithmetic [Direction! Type? Order?]
    "concatenate" Any [Dimensions!]
    "conditional" Any [TrueComputation+ FalseComputation+ BranchComputations+]
    "convolution" Any [
        Window? DimLabels! FeatureGroupCount? BatchGroupCount? ConvolutionKind? SparsityConfig? OperandPrecision?
        Algorithm?
    ]
    "copy-start" Exactly(1) [CrossProgramPrefetchIndex?]
    "custom-call" Any [
        Window? DimLabels? FeatureGroupCount? BatchGroupCount? OperandPrecision? Algorithm? PaddingType?
        CustomCallTarget! OperandLayoutConstraints? CustomCallHasSideEffect? Literal? OutputToOperandAliasing?
        Schedule? ApiVersion? ToApply- CalledComputations?
    ]
    "domain" Exactly(1) Same [Domain!]
    "dot" Exactly(2) [
        LhsBatchDims? LhsContractingDims+ RhsBatchDims? RhsContractingDims+ OperandPrecision? Algorithm?
    ]
    "dynamic-slice" Any [DynamicSliceSizes!]
    "fft" Exactly(1) [FftType! FftLength!]
    "fusion" Any [Kind! OutputToOperandAliasing? Calls!]
    "gather" Exactly(2) [
        OffsetDims! CollapsedSliceDims! StartIndexMap! OperandBatchingDims? StartIndicesBatchingDims?
        GatherIndexVectorDim! GatherSliceSizes! IndicesAreSorted?
    ]
    "get-dimension-size" "transpose" Exactly(1) [Dimensions!]
    "get-tuple-element" Exactly(1) [Index!]
    "infeed" Exactly(1) [InfeedConfig?]
    "iota" Exactly(0) [IotaDimension!]
    "map" Any [Dimensions+ ToApply!]
    "outfeed" Exactly(2) [OutfeedShape+ OutfeedConfig?]
    "pad" Exactly(2) [Padding!]
    "parameter" Number [ParameterReplication?]
    "ragged-all-to-all" Any [ChannelId? ReplicaGroups+ ConstrainLayout> Dimensions-]
    "ragged-dot" Exactly(3) [
        RaggedLhsBatchDims? RaggedLhsContractingDims+ RaggedRhsBatchDims? RaggedRhsContractingDims+ LhsRaggedDims+
        RhsGroupDims? OperandPrecision? Algorithm?
    ]
    "recv" "recv-done" "send-done" Exactly(1) [ChannelId? IsHostTransfer?]
    "reduce" Any [Dimensions! ToApply!]
    "reduce-precision" Exactly(1) Arithmetic [ExponentBits! MantissaBits!]
    "reduce-scatter" Any [ChannelId? ReplicaGroups+ ConstrainLayout? UseGlobalDeviceIds? Dimensions! ToApply! Mode-]
    "reduce-window" Any [Window? ToApply!]
    "reshape" Exactly(1) Stable [InferredDimension?]
    "reverse" Exactly(1) Same [Dimensions!]
    "rng" Any [Distribution!]
    "rng-bit-generator" Any [RandomAlgorithm!]
    "rng-get-and-update-state" Exactly(0) [Delta!]
    "scaled-dot" Exactly(4) [
        LhsBatchDims? LhsContractingDims+ RhsBatchDims? RhsContractingDims+ OperandPrecision? Algorithm?
    ]
    "scan" Any [Dimensions! NumCarries! IsReverse? IsAssociative? ToApply!]
    "scatter" Any Same [
        UpdateWindowDims! InsertedWindowDims! ScatterDimsToOperandDims! InputBatchingDims? ScatterIndicesBatchingDims?
        ScatterIndexVectorDim! IndicesAreSorted? UniqueIndices? ToApply!
    ]
    "select-and-scatter" Exactly(3) [Window? Select! Scatter!]
    "send" Exactly(2) [ChannelId? IsHostTransfer?]
    "set-dimension-size" Exactly(2) [Dimensions!]
    "slice" Exactly(1) [Slice!]
    "sort" Any Same [Dimensions! IsStable? ToApply!]
    "topk" Exactly(1) [K! Largest+ IsStable?]
    "triangular-solve" Exactly(2) [LeftSide? Lower? UnitDiagonal? TransposeA?]
    "while" Exactly(1) Same [Condition! Body!]
};
