//! Ops without operands.

use super::Op;
use super::complement;
use super::rules::*;
use crate::ir::{Graph, Literal, Value};
use meshloom_hlo::number_bytes;

/// A dense constant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constant(pub Box<Literal>);

impl crate::ir::Attributes for Constant {
    fn write_attributes(&self, out: &mut crate::ir::Printer<'_>) {
        out.constant(&self.0);
    }

    fn read_attributes(reader: &mut crate::ir::OpReader<'_>) -> Result<Constant, crate::ir::GraphTextError> {
        Ok(Constant(Box::new(reader.constant()?)))
    }
}

crate::ir::op_text!(Constant = "constant");

impl Primitive for Constant {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 0)?;
        Ok(one(self.0.ty().clone()))
    }

    rules!(facts: SOURCE, derivatives: none, factors: replicated, batch: never, partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        context.literal(&self.0);
    }
}

/// A number that an op has as an attribute. Two numbers are equal if their bits are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number(u64);

impl Number {
    /// This number.
    pub const fn new(number: f64) -> Number {
        Number(number.to_bits())
    }

    /// Its value.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl crate::ir::Attribute for Number {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        self.get().write(out);
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<Number, crate::ir::GraphTextError> {
        f64::read(reader).map(Number::new)
    }
}

/// A tensor whose elements are all one number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Splat {
    /// Type of the result.
    pub ty: TensorType,
    /// The number: 0.0 and -0.0 are different constants.
    number: Number,
}

impl crate::ir::Attributes for Splat {
    fn write_attributes(&self, out: &mut crate::ir::Printer<'_>) {
        out.lead(&self.number());
    }

    fn read_attributes(reader: &mut crate::ir::OpReader<'_>) -> Result<Splat, crate::ir::GraphTextError> {
        Ok(Splat::new(reader.result()?, reader.lead()?))
    }
}

crate::ir::op_text!(Splat = "splat");

impl Splat {
    /// A splat of `number`, which is rounded to the element type on emission.
    pub fn new(ty: TensorType, number: f64) -> Splat {
        Splat { ty, number: Number::new(number) }
    }

    /// The number.
    pub fn number(&self) -> f64 {
        self.number.get()
    }

    /// The number as bytes of the element type; out-of-range integers saturate.
    pub fn element_bytes(&self) -> ([u8; 8], usize) {
        (number_bytes(self.ty.dtype, self.number()), self.ty.dtype.byte_count())
    }
}

impl Graph {
    /// The number that all elements of a value are, where a [`Splat`] makes it.
    pub(crate) fn splat(&self, value: Value) -> Option<f64> {
        match self.defining_node(value)?.op() {
            Op::Splat(splat) => Some(splat.number()),
            _ => None,
        }
    }

    /// Whether a value is known to be zero everywhere.
    pub(crate) fn is_zero(&self, value: Value) -> bool {
        self.splat(value) == Some(0.0)
    }
}

impl Primitive for Splat {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 0)?;
        Ok(one(self.ty.clone()))
    }

    rules!(facts = Facts { is_made_anywhere: true, ..Facts::SOURCE });
    rules!(derivatives: none, factors: pointwise, batch: never);

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let ty = TensorType { dtype: self.ty.dtype, dims: context.result_dims(0).clone() };
        context.apply(Splat::new(ty, self.number()))
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let (bytes, count) = self.element_bytes();
        let scalar = context.scalar_constant(self.ty.dtype, &bytes[..count]);
        if self.ty.rank() == 0 {
            context.set_result(0, scalar);
        } else {
            context.begin_with("broadcast", 0, &[scalar]);
            context.finish();
        }
    }
}

/// Positions along one dimension: element `[.., i, ..]` is `i`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Iota {
    /// Type of the result; not `pred`.
    pub ty: TensorType,
    /// The dimension counted.
    pub axis: usize,
}

crate::ir::op_text!(Iota = "iota" { ty: result, axis: key("axis") });

impl Primitive for Iota {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 0)?;
        if self.axis >= self.ty.rank() {
            return Err(TypeError::Axis { axis: self.axis as i64, rank: self.ty.rank() });
        }
        refuse_if!(self.ty.dtype == DType::Pred, "positions cannot be of type pred");
        Ok(one(self.ty.clone()))
    }

    rules!(facts = Facts { is_made_anywhere: true, ..Facts::SOURCE });
    rules!(derivatives: none, batch: never);

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        for dim in complement(&[self.axis], self.ty.rank()) {
            rule.add(results[0].dims[dim], FactorKind::Parallel, &[], &[(0, dim)]);
        }
        rule.with_rest_replicated(operands, results)
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        let (dims, axes) = (context.result_dims(0).clone(), context.result_axes(0, self.axis));
        if axes.is_empty() {
            return context.apply(Iota { ty: TensorType { dtype: self.ty.dtype, dims }, axis: self.axis });
        }
        let positions = context.positions(&dims, self.axis, &axes)?;
        let positions = context.builder.convert(positions, self.ty.dtype)?;
        context.push_result(positions);
        Ok(())
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        context.begin("iota").dimensions.push(self.axis as i64);
        context.finish();
    }
}

impl Import for Constant {
    const OPCODES: &'static [&'static str] = &["constant"];

    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let proto = context.instruction().literal.as_deref();
        let Some(literal) = proto.and_then(meshloom_hlo::literal_of_proto) else { return Ok(None) };
        // A scalar is a splat, if its number says all of it.
        if let ([number], 0) = (literal.to_f64_vec().as_slice(), literal.ty().rank()) {
            let splat = Splat::new(literal.ty().clone(), *number);
            let (bytes, count) = splat.element_bytes();
            if bytes[..count] == *literal.bytes() {
                return applied(context, Some(splat.into()));
            }
        }
        applied(context, Some(Constant(Box::new(literal)).into()))
    }
}

// The rule of `Constant` makes scalars, and that of `BroadcastInDim` the others.
import!(Splat: in_parts);

import!(Iota: "iota" => |context| {
    let axis = usize::try_from(*context.instruction().dimensions.first()?).ok()?;
    Some(Iota { ty: context.result_types().first()?.clone(), axis })
});
