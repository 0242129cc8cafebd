//! The table of all primitives. One op, one place: everything the compiler must know about an op stands in one file.
//! (Scatters have a second one, `scatter_derivatives.rs`, for their longer derivatives.)
//!
//! [`Primitive`] has no default bodies, so a missing rule is a compile error, and no pass lists ops: they ask for their
//! [`Facts`]. The contexts in which rules run ([`EmitContext`] and the like) are declared here too, and provided by the
//! pass that applies the rule. Ops with regions ([`Scan`], [`While`], [`Cond`], [`Call`], [`Checkpoint`],
//! [`CustomVjp`]) are [`RegionOp`]s: they have [data-flow edges](Edge) instead of rules, which is all that most passes
//! need to know of them.

mod attention;
mod build;
mod collective;
mod clamp;
mod constant;
mod context;
mod convolution;
mod custom_call;
mod cumulative;
mod dot;
mod dynamic;
pub mod edges;
mod elementwise;
mod factor;
mod factor_text;
mod facts;
mod flow;
mod gather;
mod group;
mod identity;
mod kernel;
mod parts;
mod ragged;
mod random;
mod reduce;
mod reduce_window;
mod region;
mod remat;
mod roll;
mod rules;
mod reduce_scatter_form;
mod scatter_derivatives;
mod shape;
mod sort;

use std::sync::Arc;

use smallvec::SmallVec;

pub use attention::{
    Attention, AttentionForm, AttentionGradient, AttentionSizes, KeyExchange, LOWEST, PlaceOrder, UNSEEN,
};
pub use clamp::Clamp;
pub use collective::{AllGather, AllReduce, AllToAll, AxisIndex, CollectivePermute, ReduceScatter};
pub use constant::{Constant, Iota, Number, Splat};
pub use context::{
    BatchContext, Batched, ComputationId, EmitBody, EmitCollectives, EmitContext, EmitDefinition, ImportContext,
    InstructionId, JvpContext, PartitionContext, Recognize, Recognized, VjpContext,
};
pub(crate) use context::{Import, combiner};
pub(crate) use context::{PartitionPorts, Stretch, aligned, batch_in_front};
pub use convolution::{Convolution, Window};
pub use cumulative::{Cumulative, CumulativeKind};
pub use custom_call::{CustomCall, CustomCallApi, KernelCost, MemoryLayout};
pub use dot::{DotDims, DotGeneral, Precision};
pub use dynamic::{DynamicSlice, DynamicUpdateSlice};
pub use edges::{Edge, Executions, Port, Source, Target};
pub(crate) use elementwise::erf_inv_f32;
pub use elementwise::{
    Binary, BinaryKind, BitcastConvert, Compare, Convert, Direction, OperandClass, Select, Unary, UnaryKind,
};
pub use factor::{DimFactors, Factor, FactorIndex, FactorKind, FactorRule, TensorFactors};
pub use factor_text::{FactorRuleProblem, RuleText, RuleTextError};
pub use facts::{Class, Devices, Effect, Facts, Linear, Operands, Zeros};
pub(crate) use flow::{Analysis, Flow, ValueFacts};
pub use gather::{Gather, GatherDims, IndexPromise, Scatter, ScatterKind};
pub use group::Group;
pub use identity::{Barrier, MoveTo, Named, Reshard, StopGradient, WithAxes};
pub use kernel::{KernelCall, KernelGradient, KernelImplementation, KernelNameError, KernelRef, KernelRules};
pub use meshloom_hlo::ReduceKind;
pub use ragged::{RaggedDot, RaggedForm, RaggedMode, RaggedSizes};
pub use random::Threefry;
pub use reduce::{ArgReduce, ArgReduceKind, Reduce};
pub use reduce_scatter_form::ReduceScatterForm;
pub use reduce_window::{ArgReduceWindow, ReduceWindow, WindowDim};
pub use region::{Bodies, Call, Checkpoint, Cond, CustomVjp, Often, RegionOp, Scan, While};
pub use remat::{Memory, RematPolicy};
pub use roll::Roll;
pub use shape::{BroadcastInDim, Concatenate, Pad, PadDim, Reshape, Reverse, Slice, SliceDim, Transpose};
pub use sort::{Sort, TopK};

use reduce_window::window_proto;
use shape::slice_dimensions;

use crate::ir::{
    Attributes, Dims, Graph, GraphTextError, OpError, OpName, OpReader, OpText, Printer, TensorType, TypeError,
};

/// A few axis numbers.
pub type AxisList = SmallVec<[usize; 4]>;

/// The types of an op's results.
pub type ResultTypes = SmallVec<[TensorType; 1]>;

/// The rules of an op without regions.
pub trait Primitive: OpName {
    /// The typing rule: result types from operand types, or the reason why these do not fit. The builder and the
    /// verifier use it.
    ///
    /// # Errors
    /// The first operand or attribute that does not fit.
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError>;

    /// The properties of the op that passes ask for besides its rules.
    fn facts(&self) -> Facts<'_>;

    /// The reverse-mode rule: operand cotangents from result cotangents, as nodes.
    ///
    /// # Errors
    /// [`TypeError::NotDifferentiable`] for an op without a gradient.
    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError>;

    /// The forward-mode rule: result tangents from operand tangents, as nodes.
    ///
    /// # Errors
    /// [`TypeError::NotDifferentiable`] for an op without a derivative.
    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError>;

    /// The factor rule, for operands and results of these types.
    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule;

    /// The batching rule: the results for a batch of examples, from operands; at least one operand is batched.
    ///
    /// # Errors
    /// The batched results have more bytes than can be addressed.
    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError>;

    /// The partitioning rule: this device's part of the results from its parts of the operands, as nodes. The parts are
    /// those that the axes given to the factors of [`Primitive::factors`] make; these nodes must behave as
    /// [`FactorKind::Parallel`] and [`FactorKind::Reduction`] say of a split factor, and they do the work of splitting
    /// a factor of kind [`FactorKind::Permutation`] or [`FactorKind::Indexed`].
    ///
    /// # Errors
    /// A node refuses its operands, which would be a defect.
    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError>;

    /// Emits the op as HLO instructions.
    fn emit(&self, context: &mut dyn EmitContext);
}

macro_rules! op_table {
    (
        primitives { $($(#[$doc:meta])* $primitive:ident,)* }
        regions { $($(#[$region_doc:meta])* $region:ident,)* }
    ) => {
        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $($(#[$doc])* $primitive($primitive),)*
            $($(#[$region_doc])* $region($region),)*
        }

        /// An op with regions. A match on it names every kind, so that none is overlooked where each is treated in its
        /// own way.
        #[derive(Clone, Copy, Debug)]
        pub enum RegionKind<'a> {
            $($(#[$region_doc])* $region(&'a $region),)*
        }

        $(impl From<$primitive> for Op {
            fn from(op: $primitive) -> Op { Op::$primitive(op) }
        })*
        $(impl From<$region> for Op {
            fn from(op: $region) -> Op { Op::$region(op) }
        })*

        impl Op {
            /// The name of every variant. Tests use it to show that none was forgotten.
            pub const VARIANTS: &'static [&'static str] =
                &[$(stringify!($primitive),)* $(stringify!($region),)*];

            /// The variant's name, without its attributes.
            pub fn variant(&self) -> &'static str {
                match self {
                    $(Op::$primitive(_) => stringify!($primitive),)*
                    $(Op::$region(_) => stringify!($region),)*
                }
            }

            /// The rules of an op without regions; `None` for an op with regions.
            pub fn as_primitive(&self) -> Option<&dyn Primitive> {
                match self {
                    $(Op::$primitive(op) => Some(op),)*
                    $(Op::$region(_) => None,)*
                }
            }

            /// The kind of an op with regions; `None` for an op without.
            pub fn region_kind(&self) -> Option<RegionKind<'_>> {
                match self {
                    $(Op::$primitive(_) => None,)*
                    $(Op::$region(op) => Some(RegionKind::$region(op)),)*
                }
            }

            /// The rules of an op with regions; `None` for an op without.
            pub fn as_region(&self) -> Option<&dyn RegionOp> {
                match self {
                    $(Op::$primitive(_) => None,)*
                    $(Op::$region(op) => Some(op),)*
                }
            }

            /// The properties of the op that passes ask for besides its rules.
            pub fn facts(&self) -> Facts<'_> {
                match self {
                    $(Op::$primitive(op) => op.facts(),)*
                    $(Op::$region(op) => Facts::of_bodies(&op.bodies()),)*
                }
            }

            /// The opcodes of the instructions that each op may be, with the import rule of the op.
            pub(crate) const IMPORT_RULES: &'static [(&'static [&'static str], Recognize)] = &[
                $(($primitive::OPCODES, $primitive::recognize),)*
                $(($region::OPCODES, $region::recognize),)*
            ];

            /// The name in text forms and messages.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$primitive(op) => op.name(),)*
                    $(Op::$region(op) => op.name(),)*
                }
            }

            /// Writes the attributes, as the op states them.
            pub(crate) fn write_text(&self, out: &mut Printer<'_>) {
                match self {
                    $(Op::$primitive(op) => op.write_attributes(out),)*
                    $(Op::$region(op) => op.write_attributes(out),)*
                }
            }

            /// Reads the attributes of the op that has the reader's name; `None` if there is no such op.
            pub(crate) fn read_text(reader: &mut OpReader<'_>) -> Option<Result<Op, GraphTextError>> {
                $(if $primitive::names().any(|name| name == reader.name()) {
                    return Some($primitive::read_attributes(reader).map(Op::from));
                })*
                $(if $region::names().any(|name| name == reader.name()) {
                    return Some($region::read_attributes(reader).map(Op::from));
                })*
                None
            }

            pub(crate) fn text_names() -> Vec<&'static str> {
                let mut names = Vec::new();
                $(names.extend($primitive::names());)*
                $(names.extend($region::names());)*
                names
            }

            /// Result types from operand types.
            ///
            /// # Errors
            /// The first operand or attribute that does not fit.
            pub fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
                let results = match self {
                    $(Op::$primitive(op) => op.infer(operands),)*
                    $(Op::$region(op) => op.infer(operands),)*
                }?;
                match results.iter().find(|ty| !ty.is_addressable()) {
                    Some(ty) => Err(TypeError::Attribute(format!("the result {ty} has more bytes than can be addressed"))),
                    None => Ok(results),
                }
            }
        }
    };
}

op_table! {
    primitives {
        /// Joins the parts of a group of devices.
        AllGather,
        /// Combines the values of a group of devices.
        AllReduce,
        /// Exchanges parts within a group of devices.
        AllToAll,
        /// Values mixed by the softmax of scaled products of queries and keys.
        Attention,
        /// The cotangents of an attention's operands.
        AttentionGradient,
        /// Position of the largest or smallest element along an axis.
        ArgReduce,
        /// This device's rank in its group.
        AxisIndex,
        /// Position of the largest or smallest element of each window.
        ArgReduceWindow,
        /// Keeps its results from being merged with, or moved across, other computation.
        Barrier,
        /// Elementwise function of two operands.
        Binary,
        /// Reinterprets bits as another type of the same width.
        BitcastConvert,
        /// Repeats a tensor along new dimensions.
        BroadcastInDim,
        /// Sends values from device to device.
        CollectivePermute,
        /// Keeps a tensor between two bounds.
        Clamp,
        /// Elementwise comparison.
        Compare,
        /// Joins tensors along a dimension.
        Concatenate,
        /// A dense constant.
        Constant,
        /// Converts between element types.
        Convert,
        /// Windowed products summed over features.
        Convolution,
        /// Calls code that the plugin knows by name.
        CustomCall,
        /// Running folds along a dimension.
        Cumulative,
        /// Tensor contraction with batch dimensions.
        DotGeneral,
        /// A slice at a computed position.
        DynamicSlice,
        /// Replaces a slice at a computed position.
        DynamicUpdateSlice,
        /// Slices at many computed positions.
        Gather,
        /// Positions along a dimension.
        Iota,
        /// Calls a kernel that has a definition in other ops, and implementations for platforms.
        KernelCall,
        /// Moves a value to the host's memory or back.
        MoveTo,
        /// Gives a value a name that checkpoint policies refer to.
        Named,
        /// Adds a border or holes.
        Pad,
        /// A matrix product whose rows belong to groups with matrices of their own.
        RaggedDot,
        /// Folds dimensions.
        Reduce,
        /// Adds up the values of a group of devices, and gives each its part.
        ReduceScatter,
        /// Folds windows that slide over a tensor.
        ReduceWindow,
        /// The same elements with other dimensions.
        Reshape,
        /// Demands a sharding at exactly this place.
        Reshard,
        /// Reverses the order along dimensions.
        Reverse,
        /// Shifts a dimension cyclically.
        Roll,
        /// Combines updates into a tensor at many computed positions.
        Scatter,
        /// Chooses elementwise between two tensors.
        Select,
        /// A strided sub-tensor.
        Slice,
        /// Sorts tensors together along a dimension.
        Sort,
        /// A tensor whose elements are all the same constant.
        Splat,
        /// Identity without a gradient.
        StopGradient,
        /// Pseudo-random words from key and counter words.
        Threefry,
        /// The largest elements along the last dimension, and where they are.
        TopK,
        /// Permutes dimensions.
        Transpose,
        /// Elementwise function of one operand.
        Unary,
        /// Declares logical axis names.
        WithAxes,
    }
    regions {
        /// Calls a function that is emitted once.
        Call,
        /// Runs a body whose intermediate values are recomputed in the backward pass.
        Checkpoint,
        /// Runs one of several branches.
        Cond,
        /// Runs a function with a hand-written backward rule.
        CustomVjp,
        /// A loop with carried, stacked and invariant values.
        Scan,
        /// A loop that runs as long as a condition holds.
        While,
    }
}

impl Op {
    /// The bodies of an op with regions; empty for an op without.
    #[inline]
    pub fn regions(&self) -> impl Iterator<Item = &Arc<Graph>> {
        self.as_region().map(RegionOp::bodies).unwrap_or_default().into_iter()
    }

    /// The same op with its bodies replaced; `None` for an op without regions.
    pub(crate) fn map_regions(&self, mut f: impl FnMut(&Arc<Graph>) -> Arc<Graph>) -> Option<Op> {
        Some(self.as_region()?.with_bodies(&mut f))
    }

    /// Whether running the op does something besides giving results. Such an op runs once for each time it is reached:
    /// no pass may drop, merge or move it, even if its results are not read.
    pub fn has_side_effect(&self) -> bool {
        self.facts().effect == Effect::Side
    }
}

impl Op {
    /// As [`Op::map_regions`], but `f` gets each region's number and body, and may fail.
    pub(crate) fn try_map_regions<E>(
        &self,
        mut f: impl FnMut(usize, &Arc<Graph>) -> Result<Arc<Graph>, E>,
    ) -> Result<Option<Op>, E> {
        let bodies = self.regions().enumerate().map(|(region, body)| f(region, body));
        let mut bodies = bodies.collect::<Result<SmallVec<[Arc<Graph>; 3]>, E>>()?.into_iter();
        Ok(self.map_regions(|body| bodies.next().unwrap_or_else(|| body.clone())))
    }
}

/// Checks the number of operands.
pub(crate) fn expect_operands(operands: &[&TensorType], expected: usize) -> Result<(), TypeError> {
    if operands.len() == expected { Ok(()) } else { Err(TypeError::OperandCount { expected, found: operands.len() }) }
}

pub(crate) fn expect_same_types(operands: &[&TensorType]) -> Result<(), TypeError> {
    let Some((first, rest)) = operands.split_first() else { return Ok(()) };
    for (index, ty) in rest.iter().enumerate() {
        expect_dtype(index + 1, ty, first.dtype)?;
        expect_dims(index + 1, ty, &first.dims)?;
    }
    Ok(())
}

/// Checks one operand's element type.
pub(crate) fn expect_dtype(operand: usize, ty: &TensorType, expected: crate::ir::DType) -> Result<(), TypeError> {
    if ty.dtype == expected {
        Ok(())
    } else {
        Err(TypeError::DType { operand, expected: expected.to_string(), found: ty.dtype })
    }
}

/// Checks one operand's number of dimensions.
pub(crate) fn expect_rank(operand: usize, ty: &TensorType, expected: usize) -> Result<(), TypeError> {
    let found = ty.rank();
    if found == expected { Ok(()) } else { Err(TypeError::Rank { operand, expected: expected.to_string(), found }) }
}

/// Checks one operand's dimensions.
pub(crate) fn expect_dims(operand: usize, ty: &TensorType, expected: &[usize]) -> Result<(), TypeError> {
    expect_rank(operand, ty, expected.len())?;
    for (dim, (&found, &expected)) in ty.dims.iter().zip(expected).enumerate() {
        if found != expected {
            return Err(TypeError::Size { operand, dim, expected, found });
        }
    }
    Ok(())
}

/// Checks that axes are in range and occur once each.
pub(crate) fn expect_axes(axes: &[usize], rank: usize) -> Result<(), TypeError> {
    for (index, &axis) in axes.iter().enumerate() {
        if axis >= rank || axes[..index].contains(&axis) {
            return Err(TypeError::Axis { axis: axis as i64, rank });
        }
    }
    Ok(())
}

pub(crate) fn one(ty: TensorType) -> ResultTypes {
    let mut types = ResultTypes::new();
    types.push(ty);
    types
}

/// The axes below `rank` that are not listed.
pub(crate) fn complement(axes: &[usize], rank: usize) -> AxisList {
    (0..rank).filter(|axis| !axes.contains(axis)).collect()
}

/// The axes of an example in a batch, whose leading dimension is none of them.
pub(crate) fn after_batch(axes: &[usize]) -> AxisList {
    axes.iter().map(|axis| axis + 1).collect()
}

/// The leading dimension of a batch, then the axes of an example.
pub(crate) fn with_batch(axes: &[usize]) -> AxisList {
    std::iter::once(0).chain(after_batch(axes)).collect()
}

/// The sizes of a batch of examples of sizes `dims`.
pub(crate) fn batched_dims(size: usize, dims: &[usize]) -> Dims {
    std::iter::once(size).chain(dims.iter().copied()).collect()
}

/// Axes or sizes as HLO's messages have them.
pub(crate) fn to_i64(numbers: &[usize]) -> impl Iterator<Item = i64> + '_ {
    numbers.iter().map(|&number| number as i64)
}
