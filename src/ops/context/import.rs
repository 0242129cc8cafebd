//! The context in which an op's import rule runs: the inverse of its emission.

use std::sync::Arc;

use meshloom_hlo::proto::{HloComputationProto, HloInstructionProto};

use crate::ir::{DType, Graph, GraphBuilder, OpError, TensorType, Value, Values};
use crate::ops::{Op, ReduceKind};

/// One instruction as the import rules of ops see it.
pub trait ImportContext {
    /// The instruction.
    fn instruction(&self) -> &HloInstructionProto;

    /// The values that it reads. A tuple is the list of its arrays.
    fn operands(&self) -> &[Value];

    /// The types of its results. A tuple is the list of its arrays.
    fn result_types(&self) -> &[TensorType];

    /// A computation that it calls.
    fn computation(&self, index: usize) -> Option<&HloComputationProto>;

    /// The graph of a computation that it calls; `None` if that cannot be imported, which is then the reason why the
    /// instruction cannot be.
    fn body(&mut self, index: usize) -> Option<Arc<Graph>>;

    /// The number of iterations of the instruction, a loop, if that is known before it runs.
    fn iterations(&self) -> Option<usize>;

    /// The graph under construction.
    fn builder(&mut self) -> &mut GraphBuilder;
}

/// The result of an import rule: the values of the instruction, or `None` if it is not the op.
pub type Recognized = Result<Option<Values>, OpError>;

/// An import rule.
pub type Recognize = fn(&mut dyn ImportContext) -> Recognized;

/// The import rule of an op: how its instruction is recognized. Every op states one.
pub(crate) trait Import {
    /// The opcodes of the instructions that may be this op; none for an op whose emission is several instructions,
    /// which are imported one by one.
    const OPCODES: &'static [&'static str];

    /// Makes nodes of an instruction with one of these opcodes.
    fn recognize(context: &mut dyn ImportContext) -> Recognized;
}

/// States that instructions of these opcodes, whatever they carry, are the op that a function makes of the context.
macro_rules! import {
    ($op:ty: $($opcode:literal),* => $make:expr) => {
        impl crate::ops::Import for $op {
            const OPCODES: &'static [&'static str] = &[$($opcode),*];

            fn recognize(context: &mut dyn crate::ops::ImportContext) -> crate::ops::Recognized {
                let make: fn(&mut dyn crate::ops::ImportContext) -> Option<$op> = $make;
                let made = make(context);
                crate::ops::context::applied(context, made.map(crate::ops::Op::from))
            }
        }
    };
    ($($op:ty),*: in_parts) => {$(
        impl crate::ops::Import for $op {
            const OPCODES: &'static [&'static str] = &[];

            fn recognize(_: &mut dyn crate::ops::ImportContext) -> crate::ops::Recognized {
                Ok(None)
            }
        }
    )*};
}
pub(in crate::ops) use import;

/// Appends an op on all operands of the instruction. An op whose results have other types than the instruction's is
/// none.
pub(in crate::ops) fn applied(context: &mut dyn ImportContext, op: Option<Op>) -> Recognized {
    let Some(op) = op else { return Ok(None) };
    let operands = Values::from_slice(context.operands());
    let types: Vec<TensorType> = operands.iter().map(|&value| context.builder().ty(value).clone()).collect();
    let fits = match op.infer(&types.iter().collect::<Vec<_>>()) {
        Ok(results) => results.as_slice() == context.result_types(),
        Err(_) => false,
    };
    if !fits {
        return Ok(None);
    }
    context.builder().push(op, &operands).map(Some)
}

/// Numbers of dimensions; `None` if one of them is negative.
pub(in crate::ops) fn axes<C: FromIterator<usize>>(numbers: &[i64]) -> Option<C> {
    numbers.iter().map(|&number| usize::try_from(number).ok()).collect()
}

/// The opcode that a computation applies to its two scalar parameters and does nothing else: that of a reduction, and
/// the element type.
pub(crate) fn combiner(computation: &HloComputationProto) -> Option<(ReduceKind, DType)> {
    let [first, second, root] = computation.instructions.as_slice() else { return None };
    let is_parameter = |it: &HloInstructionProto| it.opcode == "parameter";
    let mut read = root.operand_ids.clone();
    read.sort_unstable();
    let mut parameters = [first.id, second.id];
    parameters.sort_unstable();
    let is_plain = is_parameter(first) && is_parameter(second) && root.id == computation.root_id && read == parameters;
    let ty = meshloom_hlo::tensor_type(root.shape.as_ref()?)?;
    (is_plain && ty.rank() == 0).then_some((ReduceKind::named(&root.opcode)?, ty.dtype))
}
