//! Sorting and selection of the largest.
//!
//! A sort moves its operands by one permutation, so its derivatives are moves by the same permutation: forward, the
//! tangents ride along as further operands; backward, sorting by the permutation itself undoes it. Neither needs a
//! gather, and both split over every other dimension as the sort does.

use smallvec::SmallVec;

use super::rules::*;
use super::{
    Gather, GatherDims, IndexPromise, InstructionId, Iota, Operands, Scatter, ScatterKind, SliceDim, Zeros,
    slice_dimensions,
};

/// Positions that a sort or top-k gives: each lies within the operand, and occurs once.
const PERMUTATION: IndexPromise = IndexPromise { sorted: false, unique: true, in_bounds: true };

/// Sorts its operands together along one dimension, by the first `key_count` of them in lexicographic order. The sort
/// is stable: equal keys stay in order.
///
/// Operands have the same dimensions and any element types; results have the operands' types. Floating-point keys are
/// in total order, in which -0 equals 0 and NaN, whatever its sign, is the largest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The dimension sorted along.
    pub axis: usize,
    /// Number of leading operands that are keys.
    pub key_count: usize,
    /// Whether the largest come first.
    pub descending: bool,
}

crate::ir::op_text!(Sort = "sort" { axis: key("axis"), key_count: key("keys"), descending: flag("descending") });

/// Positions along a dimension, as `s32`.
fn positions(builder: &mut GraphBuilder, dims: &[usize], axis: usize) -> Result<Value, OpError> {
    builder.push1(Iota { ty: TensorType::new(DType::S32, dims), axis }, &[])
}

impl Primitive for Sort {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let Some(first) = operands.first() else {
            return Err(TypeError::OperandCount { expected: self.key_count.max(1), found: 0 });
        };
        if self.axis >= first.rank() {
            return Err(TypeError::Axis { axis: self.axis as i64, rank: first.rank() });
        }
        if self.key_count == 0 || self.key_count > operands.len() {
            return Err(TypeError::Attribute(format!(
                "it sorts by {} keys, but has {} operands; give at least one key and no more than there are operands",
                self.key_count,
                operands.len()
            )));
        }
        for (index, ty) in operands.iter().enumerate() {
            expect_dims(index, ty, &first.dims)?;
        }
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    rules!(facts = Facts { zeros: Zeros::Matching, ..Facts::KERNEL });
    rules!(factors: whole_axis, batch: axis, partition: unchanged);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let count = context.operand_count();
        let wanted: SmallVec<[(usize, Value); 4]> = (0..count)
            .filter(|&index| context.needs(index))
            .filter_map(|index| Some((index, context.cotangent(index)?)))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let dims = context.operand_type(0).dims.clone();
        let positions = positions(context.builder, &dims, self.axis)?;
        let mut operands: SmallVec<[Value; 4]> = (0..self.key_count).map(|index| context.operand(index)).collect();
        operands.push(positions);
        let permutation = context.builder.push(self.clone(), &operands)?[self.key_count];
        let mut operands: SmallVec<[Value; 4]> = SmallVec::from_slice(&[permutation]);
        operands.extend(wanted.iter().map(|&(_, ct)| ct));
        let undo = Sort { axis: self.axis, key_count: 1, descending: false };
        let gradients = context.builder.push(undo, &operands)?;
        for (&(index, _), &gradient) in wanted.iter().zip(&gradients[1..]) {
            context.set(index, gradient);
        }
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let count = context.operand_count();
        let moving: SmallVec<[(usize, Value); 4]> =
            (0..count).filter_map(|index| Some((index, context.tangent(index)?))).collect();
        let mut operands: SmallVec<[Value; 4]> = (0..self.key_count).map(|index| context.operand(index)).collect();
        operands.extend(moving.iter().map(|&(_, tangent)| tangent));
        let sorted = context.builder.push(self.clone(), &operands)?;
        for (&(index, _), &tangent) in moving.iter().zip(&sorted[self.key_count..]) {
            context.set(index, tangent);
        }
        Ok(())
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let types: Vec<TensorType> =
            (0..context.result_count()).map(|index| TensorType::scalar(context.operand_type(index).dtype)).collect();
        // Each operand has two scalars: one of the element that would come first, and one of the other.
        let parameters: Vec<&TensorType> = types.iter().flat_map(|ty| [ty, ty]).collect();
        let direction = if self.descending { "GT" } else { "LT" };
        let names: Vec<&str> = types.iter().map(|ty| ty.dtype.name()).collect();
        let name = format!("sort_{}_{}_{}", direction.to_ascii_lowercase(), self.key_count, names.join("_"));
        let keys = &types[..self.key_count];
        let comparator =
            context.computation(&name, &parameters, &[&TensorType::scalar(DType::Pred)], &|context, inputs| {
                vec![lexicographic(context, direction, keys, inputs)]
            });
        let operands = context.operand_ids();
        let instruction = context.begin_all("sort", &operands);
        instruction.dimensions.push(self.axis as i64);
        instruction.is_stable = true;
        instruction.called_computation_ids.push(comparator);
        context.finish_all();
    }
}

/// Whether the first of each pair of inputs comes before the second.
///
/// Its form, and that of [`canonical`], is the one that XLA's GPU backend recognizes as a total order when it replaces
/// a sort by a radix sort (`sort_rewriter.cc`).
fn lexicographic(
    context: &mut dyn EmitContext,
    direction: &str,
    keys: &[TensorType],
    inputs: &[InstructionId],
) -> InstructionId {
    let flag = TensorType::scalar(DType::Pred);
    let mut before = None;
    for (index, ty) in keys.iter().enumerate().rev() {
        let pair = [canonical(context, ty, inputs[2 * index]), canonical(context, ty, inputs[2 * index + 1])];
        let order = if ty.dtype.is_float() { "TOTALORDER" } else { ty.dtype.comparison_type() };
        let own = context.compare(direction, order, ty, pair);
        before = Some(match before {
            None => own,
            Some(later) => {
                let equal = context.compare("EQ", order, ty, pair);
                let tie = context.instruction("and", &flag, &[equal, later]);
                context.instruction("or", &flag, &[own, tie])
            }
        });
    }
    before.unwrap_or_else(|| context.fail("at least one key"))
}

/// A floating-point key with one NaN, and one zero.
fn canonical(context: &mut dyn EmitContext, ty: &TensorType, key: InstructionId) -> InstructionId {
    if !ty.dtype.is_float() {
        return key;
    }
    let is_nan = context.compare("NE", "FLOAT", ty, [key, key]);
    let zero = context.number(ty.dtype, 0.0);
    let is_zero = context.compare("EQ", "FLOAT", ty, [key, zero]);
    let key = context.instruction("select", ty, &[is_zero, zero, key]);
    let nan = context.number(ty.dtype, f64::NAN);
    context.instruction("select", ty, &[is_nan, nan, key])
}

/// The `k` largest elements along the last dimension, largest first, and their positions (`s32`). Equal elements stay
/// in order. Floating-point elements are in IEEE's total order: -NaN, -inf, .., -0, 0, .., inf, NaN.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    /// The number of elements.
    pub k: usize,
}

crate::ir::op_text!(TopK = "topk" { k: key("k") });

impl Primitive for TopK {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let operand = operands[0];
        if operand.dtype == DType::Pred {
            return Err(TypeError::DType { operand: 0, expected: "a number type".to_owned(), found: operand.dtype });
        }
        let Some(&size) = operand.dims.last() else {
            return Err(TypeError::Axis { axis: -1, rank: 0 });
        };
        refuse_if!(self.k > size, "the {} largest of {size} elements do not exist", self.k);
        let mut dims = operand.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = self.k;
        }
        let mut results = one(TensorType { dtype: operand.dtype, dims: dims.clone() });
        results.push(TensorType { dtype: DType::S32, dims });
        Ok(results)
    }

    rules!(facts = Facts::KERNEL.zero_of(Operands::All));
    rules!(batch: unchanged, partition: unchanged);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let ty = context.operand_type(0).clone();
        let zeros = context.builder.splat(ty.clone(), 0.0);
        // No position is chosen twice, so adding is as good as setting.
        let scatter = Scatter {
            dims: Box::new(GatherDims::along_last(ty.rank() - 1, ty.rank())),
            kind: ScatterKind::Add,
            promise: PERMUTATION,
        };
        let gradient = context.builder.push1(scatter, &[zeros, context.result(1), ct])?;
        context.set(0, gradient);
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let Some(tangent) = context.tangent(0) else { return Ok(()) };
        let rank = context.operand_type(0).rank();
        let gather = Gather {
            dims: Box::new(GatherDims::along_last(rank - 1, rank)),
            slice_sizes: Dims::from_elem(1, rank),
            promise: PERMUTATION,
        };
        let moved = context.builder.push1(gather, &[tangent, context.result(1)])?;
        context.set(0, moved);
        Ok(())
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        let Some((&size, leading)) = operands[0].dims.split_last() else { return rule };
        for (dim, &size) in leading.iter().enumerate() {
            rule.add(size, FactorKind::Parallel, &[(0, dim)], &[(0, dim), (1, dim)]);
        }
        let last = leading.len();
        rule.add(size, FactorKind::Replicated, &[(0, last)], &[]);
        rule.add(self.k, FactorKind::Replicated, &[], &[(0, last), (1, last)]);
        rule
    }

    /// A sort with positions, and a slice: the form that every plugin takes and that XLA's `topk_rewriter.cc`
    /// recognizes. XLA also has an instruction `topk`, which the CPU plugins take; it is not used because TPU and GPU
    /// are untried.
    fn emit(&self, context: &mut dyn EmitContext) {
        let ty = context.operand_type(0).clone();
        let axis = ty.rank().saturating_sub(1);
        let positions_type = ty.with_dtype(DType::S32);
        let (scalar, index) = (TensorType::scalar(ty.dtype), TensorType::scalar(DType::S32));
        let flag = TensorType::scalar(DType::Pred);
        let parameters = [&scalar, &scalar, &index, &index];
        let comparator =
            context.computation(&format!("topk_{}", ty.dtype), &parameters, &[&flag], &|context, inputs| {
                let order = if scalar.dtype.is_float() { "TOTALORDER" } else { scalar.dtype.comparison_type() };
                vec![context.compare("GT", order, &scalar, [inputs[0], inputs[1]])]
            });
        let operand = context.operand_id(0);
        let positions = context.positions(&positions_type, axis);
        let sort = context.begin_tuple("sort", &[&ty, &positions_type], &[operand, positions]);
        sort.dimensions.push(axis as i64);
        sort.is_stable = true;
        sort.called_computation_ids.push(comparator);
        let sorted = context.commit();
        for (result, ty) in [&ty, &positions_type].into_iter().enumerate() {
            let element = context.element(sorted, result, ty);
            let limits = context.result_type(result).dims.clone();
            let kept: Vec<SliceDim> = limits.iter().map(|&limit| SliceDim::whole(limit)).collect();
            context.begin_with("slice", result, &[element]).slice_dimensions.extend(slice_dimensions(&kept));
            let id = context.commit();
            context.set_result(result, id);
        }
    }
}

import!(Sort: in_parts);
import!(TopK: "topk" => |context| {
    let instruction = context.instruction();
    let k = usize::try_from(instruction.k).ok()?;
    instruction.largest.then_some(TopK { k })
});
