//! Derivatives of scatters that do not add: they set, multiply, or take the maximum or minimum. The op itself is in
//! `gather.rs`, with the derivatives of those that add.

use super::rules::*;
use super::{BinaryKind, Direction, Gather, Iota, Reshape, Scatter, ScatterKind, Splat};

impl Scatter {
    /// Gathers from `source`, a tensor of the operand's dimensions, the element at the place of each element of the
    /// updates; zero for updates that are dropped.
    pub(super) fn gather(
        &self,
        builder: &mut GraphBuilder,
        source: Value,
        indices: Value,
        updates: Value,
    ) -> Result<Value, OpError> {
        let (operand, updates) = (builder.ty(source).clone(), builder.ty(updates).clone());
        let slice_sizes = self.slice_sizes(&operand, &updates);
        let gather = Gather { dims: self.dims.clone(), slice_sizes: slice_sizes.clone(), promise: self.promise };
        let gathered = builder.push1(gather, &[source, indices])?;
        if self.promise.in_bounds {
            return Ok(gathered);
        }
        // The gather reads a neighbour in place of an element outside.
        let inside = self.dims.inside(builder, indices, &operand.dims, &slice_sizes)?;
        self.dims.only(builder, gathered, inside)
    }

    fn with_kind(&self, kind: ScatterKind) -> Scatter {
        Scatter { kind, ..self.clone() }
    }

    /// A replaced element gets no cotangent. An update gets the cotangent of the place that it was written to.
    pub(super) fn vjp_of_set(&self, context: &mut VjpContext<'_>, ct: Value) -> Result<(), OpError> {
        let (indices, updates) = (context.operand(1), context.operand(2));
        context.set_with(0, |builder| {
            let zeros = builder.zeros_like(updates);
            builder.push1(self.clone(), &[ct, indices, zeros])
        })?;
        context.set_with(2, |builder| {
            let gradient = self.gather(builder, ct, indices, updates)?;
            if self.promise.unique {
                return Ok(gradient);
            }
            let written = self.was_written(builder, ct, indices, updates)?;
            builder.or_zero(written, gradient)
        })
    }

    /// Whether each element of the updates is in the result, and not replaced by another with the same index. Numbers
    /// that are scattered in place of the updates tell, since the backend chooses among duplicates by position. (The
    /// idea is JAX's, `_scatter_jvp`.)
    fn was_written(
        &self,
        builder: &mut GraphBuilder,
        like_operand: Value,
        indices: Value,
        updates: Value,
    ) -> Result<Value, OpError> {
        let (operand, updates) = (builder.ty(like_operand).clone(), builder.ty(updates).clone());
        let count = updates.element_count();
        let dtype = if i32::try_from(count).is_ok() { DType::S32 } else { DType::S64 };
        let numbers = builder.push1(Iota { ty: TensorType::new(dtype, &[count]), axis: 0 }, &[])?;
        let numbers = builder.push1(Reshape { dims: updates.dims }, &[numbers])?;
        let nobody = builder.push1(Splat::new(operand.with_dtype(dtype), -1.0), &[])?;
        let scattered = builder.push1(self.clone(), &[nobody, indices, numbers])?;
        let found = self.gather(builder, scattered, indices, numbers)?;
        builder.compare(Direction::Eq, found, numbers)
    }

    /// The operand's slope is the product of the updates. An update's slope is the product of all others, which only
    /// the operand is when no index repeats.
    pub(super) fn vjp_of_multiply(&self, context: &mut VjpContext<'_>, ct: Value) -> Result<(), OpError> {
        let [operand, indices, updates] = [0, 1, 2].map(|index| context.operand(index));
        context.set_with(0, |builder| builder.push1(self.clone(), &[ct, indices, updates]))?;
        context.set_with(2, |builder| {
            self.expect_unique(builder, [operand, indices, updates])?;
            let product = builder.mul(ct, operand)?;
            self.gather(builder, product, indices, updates)
        })
    }

    pub(super) fn jvp_of_multiply(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        context.linear_in(self.clone(), &[0])?;
        let Some(tangent) = context.tangent(2) else { return Ok(()) };
        let [operand, indices, updates] = [0, 1, 2].map(|index| context.operand(index));
        let builder = &mut *context.builder;
        self.expect_unique(builder, [operand, indices, updates])?;
        let factors = self.gather(builder, operand, indices, updates)?;
        let product = builder.mul(tangent, factors)?;
        let zeros = builder.zeros_like(operand);
        let tangent = builder.push1(self.with_kind(ScatterKind::Add), &[zeros, indices, product])?;
        context.add(0, tangent)
    }

    /// The elements that attain the extremum, as ones among zeros: those of the operand, those of the updates, and the
    /// number of them at each place.
    fn attained(
        &self,
        builder: &mut GraphBuilder,
        [operand, indices, updates]: [Value; 3],
        result: Value,
    ) -> Result<[Value; 3], OpError> {
        let dtype = builder.ty(operand).dtype;
        let is_operand = builder.compare(Direction::Eq, operand, result)?;
        let of_operand = builder.convert(is_operand, dtype)?;
        let extremum = self.gather(builder, result, indices, updates)?;
        // An update that is dropped may equal the zero gathered for it: the scatter below drops it again.
        let is_update = builder.compare(Direction::Eq, updates, extremum)?;
        let of_updates = builder.convert(is_update, dtype)?;
        let count = builder.push1(self.with_kind(ScatterKind::Add), &[of_operand, indices, of_updates])?;
        Ok([of_operand, of_updates, count])
    }

    /// All that attain the extremum of a place share its cotangent equally, as in a reduction.
    pub(super) fn vjp_of_extremum(&self, context: &mut VjpContext<'_>, ct: Value) -> Result<(), OpError> {
        let operands = [0, 1, 2].map(|index| context.operand(index));
        let result = context.result(0);
        let [of_operand, of_updates, count] = self.attained(context.builder, operands, result)?;
        let share = context.builder.div(ct, count)?;
        context.set_with(0, |builder| builder.mul(share, of_operand))?;
        context.set_with(2, |builder| {
            let shares = self.gather(builder, share, operands[1], operands[2])?;
            builder.mul(shares, of_updates)
        })
    }

    pub(super) fn jvp_of_extremum(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let operands = [0, 1, 2].map(|index| context.operand(index));
        let (tangents, result) = ([context.tangent(0), context.tangent(2)], context.result(0));
        let builder = &mut *context.builder;
        let [of_operand, of_updates, count] = self.attained(builder, operands, result)?;
        let mut total = match tangents[0] {
            Some(tangent) => builder.mul(tangent, of_operand)?,
            None => builder.zeros_like(operands[0]),
        };
        if let Some(tangent) = tangents[1] {
            let chosen = builder.binary(BinaryKind::Multiply, tangent, of_updates)?;
            total = builder.push1(self.with_kind(ScatterKind::Add), &[total, operands[1], chosen])?;
        }
        let tangent = builder.div(total, count)?;
        context.set(0, tangent);
        Ok(())
    }

    /// Refuses a product if several of its factors may stand at one place.
    fn expect_unique(&self, builder: &GraphBuilder, operands: [Value; 3]) -> Result<(), OpError> {
        if self.promise.unique {
            return Ok(());
        }
        let reason = "the slope of an update is not defined where indices repeat; promise that they are unique";
        let types = operands.map(|value| builder.ty(value).clone()).to_vec();
        Err(OpError::new("scatter-multiply", TypeError::Attribute(reason.to_owned()), types, builder.origin()))
    }
}
