//! Matrix products over groups of rows, as routed experts need them.
//!
//! Rows of the left operand belong to groups of consecutive rows, whose sizes are data: the first `sizes[0]` rows to
//! group 0, and so on. Rows beyond the sum of the sizes belong to no group. Sizes must not be negative; a group that
//! would reach beyond the last row ends there.
//!
//! The three forms are each other's gradients, so the family is closed under differentiation, and no matrix is ever
//! transposed.

use smallvec::SmallVec;

use super::rules::*;
use super::{InstructionId, Precision, ReduceKind, WindowDim, batch_in_front, window_proto};
use crate::hlo::proto;

meshloom_hlo::words! {
    /// The dimension that the groups divide.
    #[derive(PartialOrd, Ord)]
    pub enum RaggedMode {
        /// `[m,k], [g,k,n] -> [m,n]`: each row times the matrix of its group; zero for a row of no group.
        Rows = "rows",
        /// `[m,k], [g,n,k] -> [m,n]`: each row times the transposed matrix of its group; zero for a row of no group.
        Transposed = "transposed",
        /// `[m,k], [m,n] -> [g,k,n]`: for each group, the sum of the outer products of its rows; zero for an empty
        /// group.
        Contracted = "contracted",
    }
}

crate::ir::word_attribute!(RaggedMode);

/// The form in which a grouped product is emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RaggedForm {
    /// A dot over rows masked by group.
    #[default]
    Masked,
    /// XLA's instruction `ragged-dot`, for libtpu: without leading dimensions, with sizes of type `s32`. It does not
    /// write rows of no group, so the result has any numbers there.
    Instruction,
}

crate::ir::word_attribute!(RaggedForm { Masked = "masked", Instruction = "instruction" });

/// `ragged-dot(lhs, rhs, group_sizes)`: a matrix product by groups of rows, see [`RaggedMode`]. The sizes are `[g]`, of
/// a signed integer type.
///
/// All operands and the result have `batch_count` further leading dimensions. After those, everything but the matrices
/// `[g,k,n]` has `block_count` dimensions more: blocks of rows, each divided into groups by sizes of its own, that
/// share the matrices. So `Rows` is `[*batch,*blocks,m,k], [*batch,g,k,n], [*batch,*blocks,g] -> [*batch,*blocks,m,n]`,
/// `Transposed` the same with `[*batch,g,n,k]`, and `Contracted` sums over the blocks. They are the prefix dimensions
/// of XLA's instruction (`RaggedDotDimensionNumbers`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RaggedDot {
    /// The dimension that the groups divide.
    pub mode: RaggedMode,
    /// Number of leading dimensions that run in step in all operands and the result.
    pub batch_count: usize,
    /// Number of dimensions after the leading ones that the matrices do not have.
    pub block_count: usize,
    /// Element type of the result and of the accumulation.
    pub dtype: DType,
    /// Precision of the multiplications.
    pub precision: Precision,
    /// The form in which it is emitted; [`kernels`](crate::kernels) chooses it for the program of one device.
    pub form: RaggedForm,
}

crate::ir::op_text!(RaggedDot = "ragged-dot" {
    mode: bare,
    batch_count: optional("batch", 0),
    block_count: optional("blocks", 1),
    dtype: result,
    precision: optional("precision", Precision::Default),
    form: optional("form", RaggedForm::Masked),
});

/// The sizes of the dimensions of a [`RaggedDot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaggedSizes {
    /// Leading dimensions of everything.
    pub batch: Dims,
    /// Further leading dimensions, which matrices do not have.
    pub blocks: Dims,
    /// `m`, of each block.
    pub rows: usize,
    /// `k`.
    pub inner: usize,
    /// `n`.
    pub columns: usize,
    /// `g`.
    pub groups: usize,
}

impl RaggedSizes {
    /// The dimensions of matrices.
    fn of_batch(&self, own: &[usize]) -> Dims {
        self.batch.iter().chain(own).copied().collect()
    }

    /// The dimensions of all other tensors.
    fn of_blocks(&self, own: &[usize]) -> Dims {
        self.batch.iter().chain(&self.blocks).chain(own).copied().collect()
    }
}

impl RaggedDot {
    /// The sizes of its dimensions, by the types of operands that it takes.
    pub fn sizes(&self, operands: &[&TensorType]) -> RaggedSizes {
        let (b, r) = (self.batch_count, self.leading_count());
        let columns = operands[1].rank() - if self.mode == RaggedMode::Transposed { 2 } else { 1 };
        RaggedSizes {
            batch: Dims::from_slice(&operands[0].dims[..b]),
            blocks: Dims::from_slice(&operands[0].dims[b..r]),
            rows: operands[0].dims[r],
            inner: operands[0].dims[r + 1],
            columns: operands[1].dims[columns],
            groups: operands[2].dims[r],
        }
    }

    /// Number of dimensions before those of the rows.
    fn leading_count(&self) -> usize {
        self.batch_count + self.block_count
    }

    /// The same op in another mode and type.
    fn other(&self, mode: RaggedMode, dtype: DType) -> RaggedDot {
        RaggedDot { mode, dtype, ..self.clone() }
    }
}

impl Primitive for RaggedDot {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 3)?;
        let (lhs, rhs, groups) = (operands[0], operands[1], operands[2]);
        let (b, r) = (self.batch_count, self.leading_count());
        if !lhs.dtype.is_float() || !self.dtype.is_float() {
            let expected = format!("a floating-point type that can be accumulated in {}", self.dtype);
            return Err(TypeError::DType { operand: 0, expected, found: lhs.dtype });
        }
        expect_dtype(1, rhs, lhs.dtype)?;
        if !groups.dtype.is_signed_integer() {
            let expected = "a signed integer type".to_owned();
            return Err(TypeError::DType { operand: 2, expected, found: groups.dtype });
        }
        let rhs_rank = if self.mode == RaggedMode::Contracted { r + 2 } else { b + 3 };
        for (operand, (ty, rank)) in [(lhs, r + 2), (rhs, rhs_rank), (groups, r + 1)].into_iter().enumerate() {
            expect_rank(operand, ty, rank)?;
        }
        if self.form == RaggedForm::Instruction && r > 0 {
            let found = meshloom_hlo::message::counted(r, "leading dimension");
            let reason = format!("the instruction takes no leading dimensions, found {found}; use RaggedForm::Masked");
            return Err(TypeError::Attribute(reason));
        }
        if self.form == RaggedForm::Instruction {
            expect_dtype(2, groups, DType::S32)?;
        }
        let sizes = self.sizes(operands);
        expect_dims(2, groups, &sizes.of_blocks(&[sizes.groups]))?;
        let matrices = sizes.of_batch(&[sizes.groups, sizes.inner, sizes.columns]);
        let columns = sizes.of_blocks(&[sizes.rows, sizes.columns]);
        let (rhs_dims, dims) = match self.mode {
            RaggedMode::Rows => (matrices, columns),
            RaggedMode::Transposed => (sizes.of_batch(&[sizes.groups, sizes.columns, sizes.inner]), columns),
            RaggedMode::Contracted => (columns, matrices),
        };
        expect_dims(1, rhs, &rhs_dims)?;
        Ok(one(TensorType { dtype: self.dtype, dims }))
    }

    rules!(facts: PRODUCT, jvp: linear, partition: unchanged);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let (lhs, rhs, sizes) = (context.operand(0), context.operand(1), context.operand(2));
        // Products with a cotangent are made in the operands' own type, as for a dot.
        let dtype = context.operand_type(0).dtype;
        let ct = context.builder.convert(ct, dtype)?;
        let [rows, transposed, contracted] = RaggedMode::ALL.map(|mode| self.other(mode, dtype));
        let (to_lhs, to_rhs) = match self.mode {
            RaggedMode::Rows => ((transposed, [ct, rhs]), (contracted, [lhs, ct])),
            RaggedMode::Transposed => ((rows, [ct, rhs]), (contracted, [ct, lhs])),
            RaggedMode::Contracted => ((transposed, [rhs, ct]), (rows, [lhs, ct])),
        };
        for (index, (op, [left, right])) in [to_lhs, to_rhs].into_iter().enumerate() {
            context.set_with(index, |builder| builder.push1(op, &[left, right, sizes]))?;
        }
        Ok(())
    }

    /// Rows and groups are not split: the group of a row depends on all sizes.
    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        use FactorKind::{Parallel, Reduction, Replicated};
        let mut rule = FactorRule::empty(operands, results);
        let (b, r) = (self.batch_count, self.leading_count());
        for dim in 0..b {
            rule.add(operands[0].dims[dim], Parallel, &[(0, dim), (1, dim), (2, dim)], &[(0, dim)]);
        }
        for dim in b..r {
            let size = operands[0].dims[dim];
            match self.mode {
                RaggedMode::Rows | RaggedMode::Transposed => {
                    rule.add(size, Parallel, &[(0, dim), (2, dim)], &[(0, dim)])
                }
                RaggedMode::Contracted => {
                    rule.add(size, Reduction(ReduceKind::Sum), &[(0, dim), (1, dim), (2, dim)], &[])
                }
            };
        }
        let RaggedSizes { rows, inner, columns, groups, .. } = self.sizes(operands);
        match self.mode {
            RaggedMode::Rows | RaggedMode::Transposed => {
                let is_transposed = usize::from(self.mode == RaggedMode::Transposed);
                rule.add(rows, Replicated, &[(0, r)], &[(0, r)]);
                rule.add(groups, Replicated, &[(1, b), (2, r)], &[]);
                rule.add(inner, Reduction(ReduceKind::Sum), &[(0, r + 1), (1, b + 1 + is_transposed)], &[]);
                rule.add(columns, Parallel, &[(1, b + 2 - is_transposed)], &[(0, r + 1)]);
            }
            RaggedMode::Contracted => {
                rule.add(rows, Replicated, &[(0, r), (1, r)], &[]);
                rule.add(groups, Replicated, &[(2, r)], &[(0, b)]);
                rule.add(inner, Parallel, &[(0, r + 1)], &[(0, b + 1)]);
                rule.add(columns, Parallel, &[(1, r + 1)], &[(0, b + 2)]);
            }
        }
        rule
    }

    /// Matrices that all examples share are not repeated: an example is then one more block of rows.
    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        if self.mode == RaggedMode::Contracted || context.is_batched(1) {
            return context.all(RaggedDot { batch_count: self.batch_count + 1, ..self.clone() });
        }
        let b = self.batch_count;
        let [rows, sizes] = [context.aligned(0)?, context.aligned(2)?];
        let rows = batch_behind(context.builder, rows, b)?;
        let sizes = batch_behind(context.builder, sizes, b)?;
        let op = RaggedDot { block_count: self.block_count + 1, ..self.clone() };
        let product = context.builder.push1(op, &[rows, context.operand(1), sizes])?;
        let product = batch_in_front(context.builder, product, b)?;
        context.push_result(product, true);
        Ok(())
    }

    /// The masked form, which is the plain one, is emitted as a dot over rows masked by group. The mask costs `g`
    /// copies of the left operand where the backend does not fuse it, and `g` times the products. `crate::kernels` puts
    /// a loop over blocks of rows in its place where that is faster.
    ///
    /// XLA's own instruction `ragged-dot` costs neither on TPU. The CPU plugins do not run it.
    fn emit(&self, context: &mut dyn EmitContext) {
        if self.form == RaggedForm::Instruction {
            return self.emit_instruction(context);
        }
        let operand_types: Vec<TensorType> = (0..3).map(|index| context.operand_type(index).clone()).collect();
        let sizes = self.sizes(&operand_types.iter().collect::<Vec<_>>());
        let (b, r) = (self.batch_count, self.leading_count());
        let dims = sizes.of_blocks(&[sizes.groups, sizes.rows, sizes.inner]);
        let masked_type = TensorType { dtype: operand_types[0].dtype, dims };
        let mask = self.membership(context, &masked_type, &operand_types[2]);
        let mapping: Vec<usize> = (0..r).chain([r + 1, r + 2]).collect();
        let lhs = context.operand_id(0);
        let rows = context.broadcast(&masked_type, lhs, &mapping);
        let zero = context.number(masked_type.dtype, 0.0);
        let zeros = context.repeat(&masked_type, zero);
        let masked = context.instruction("select", &masked_type, &[mask, rows, zeros]);
        let rhs = context.operand_id(1);
        let batch: Vec<usize> = (0..b).collect();
        let blocks: Vec<usize> = (b..r).collect();
        let i64s = |axes: &[usize]| axes.iter().map(|&axis| axis as i64).collect::<Vec<i64>>();
        let (lhs_contract, rhs_contract) = match self.mode {
            RaggedMode::Rows => (i64s(&[r, r + 2]), i64s(&[b, b + 1])),
            RaggedMode::Transposed => (i64s(&[r, r + 2]), i64s(&[b, b + 2])),
            RaggedMode::Contracted => (i64s(&[&blocks[..], &[r + 1]].concat()), i64s(&[&blocks[..], &[r]].concat())),
        };
        let numbers = proto::DotDimensionNumbers {
            lhs_contracting_dimensions: lhs_contract,
            rhs_contracting_dimensions: rhs_contract,
            lhs_batch_dimensions: i64s(&batch),
            rhs_batch_dimensions: i64s(&batch),
        };
        let precision = self.precision.config();
        let dot = context.begin_with("dot", 0, &[masked, rhs]);
        dot.dot_dimension_numbers = Some(numbers.into());
        dot.precision_config = precision.map(Into::into);
        context.finish();
    }
}

impl RaggedDot {
    fn emit_instruction(&self, context: &mut dyn EmitContext) {
        let (lhs_contracting, rhs_contracting) = match self.mode {
            RaggedMode::Rows => (1, 1),
            RaggedMode::Transposed => (1, 2),
            RaggedMode::Contracted => (0, 0),
        };
        let numbers = proto::RaggedDotDimensionNumbers {
            dot_dimension_numbers: Some(proto::DotDimensionNumbers {
                lhs_contracting_dimensions: vec![lhs_contracting],
                rhs_contracting_dimensions: vec![rhs_contracting],
                ..proto::DotDimensionNumbers::default()
            }),
            lhs_ragged_dimensions: vec![0],
            // Contracted rows have no dimension of groups but the result's.
            rhs_group_dimensions: if self.mode == RaggedMode::Contracted { Vec::new() } else { vec![0] },
        };
        let precision = self.precision.config();
        let product = context.begin("ragged-dot");
        product.ragged_dot_dimension_numbers = Some(numbers.into());
        product.precision_config = precision.map(Into::into);
        context.finish();
    }

    /// Whether row `m` is in group `g`: `pred` `[.., g, m, k]`.
    fn membership(&self, context: &mut dyn EmitContext, masked: &TensorType, sizes: &TensorType) -> InstructionId {
        let r = self.leading_count();
        let ends = cumulative_sum(context, sizes);
        let own = context.operand_id(2);
        let starts = context.instruction("subtract", sizes, &[ends, own]);
        let wide = masked.with_dtype(sizes.dtype);
        let positions = context.positions(&wide, r + 1);
        let mapping: Vec<usize> = (0..=r).collect();
        let starts = context.broadcast(&wide, starts, &mapping);
        let ends = context.broadcast(&wide, ends, &mapping);
        let after = context.compare("LE", "SIGNED", &wide, [starts, positions]);
        let before = context.compare("LT", "SIGNED", &wide, [positions, ends]);
        context.instruction("and", &masked.with_dtype(DType::Pred), &[after, before])
    }
}

/// `value`, whose leading dimension is the batch, with that dimension behind `count` others.
fn batch_behind(builder: &mut GraphBuilder, value: Value, count: usize) -> Result<Value, OpError> {
    let rank = builder.ty(value).rank();
    let order: SmallVec<[usize; 6]> = (1..=count).chain([0]).chain(count + 1..rank).collect();
    builder.transpose(value, &order)
}

/// The inclusive cumulative sum of operand 2 along its last dimension, as a window that reaches back to the start.
fn cumulative_sum(context: &mut dyn EmitContext, ty: &TensorType) -> InstructionId {
    let combiner = context.combiner("add", ty.dtype);
    let (operand, zero) = (context.operand_id(2), context.number(ty.dtype, 0.0));
    let last = ty.rank() - 1;
    let mut window = vec![WindowDim::ONE; ty.rank()];
    let size = ty.dims[last].max(1);
    window[last] = WindowDim { size, low: size as i64 - 1, ..WindowDim::ONE };
    let instruction = context.begin_typed("reduce-window", ty, &[operand, zero]);
    instruction.window = Some(window_proto(&window));
    instruction.called_computation_ids.push(combiner);
    context.commit()
}

import!(RaggedDot: in_parts);
