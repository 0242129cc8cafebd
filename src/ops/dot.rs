//! Tensor contraction.

use super::rules::*;
use super::shape::inverse;
use super::{AxisList, OperandClass, ReduceKind, after_batch, batch_in_front, complement, to_i64, with_batch};
use crate::hlo::proto;

/// The dimensions that a dot pairs up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DotDims {
    /// Left dimensions that run in step with `rhs_batch` and stand first in the result.
    pub lhs_batch: AxisList,
    /// Right partners of `lhs_batch`.
    pub rhs_batch: AxisList,
    /// Left dimensions summed over, in step with `rhs_contract`.
    pub lhs_contract: AxisList,
    /// Right partners of `lhs_contract`.
    pub rhs_contract: AxisList,
}

/// The dimensions of both sides that pair up: `[2]x[0]`.
#[derive(PartialEq)]
struct Pairs(AxisList, AxisList);

impl crate::ir::Attribute for Pairs {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        self.0.write(out);
        out.push("x");
        self.1.write(out);
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<Pairs, crate::ir::GraphTextError> {
        let lhs = AxisList::read(reader)?;
        reader.expect("x")?;
        Ok(Pairs(lhs, AxisList::read(reader)?))
    }
}

impl crate::ir::Attributes for DotDims {
    fn write_attributes(&self, out: &mut crate::ir::Printer<'_>) {
        out.key(&Pairs(self.lhs_contract.clone(), self.rhs_contract.clone()), "contract");
        let batch = Pairs(self.lhs_batch.clone(), self.rhs_batch.clone());
        out.optional(&batch, "batch", Pairs(AxisList::new(), AxisList::new()));
    }

    fn read_attributes(reader: &mut crate::ir::OpReader<'_>) -> Result<DotDims, crate::ir::GraphTextError> {
        let Pairs(lhs_contract, rhs_contract) = reader.key("contract")?;
        let Pairs(lhs_batch, rhs_batch) = reader.optional("batch", Pairs(AxisList::new(), AxisList::new()))?;
        Ok(DotDims { lhs_batch, rhs_batch, lhs_contract, rhs_contract })
    }
}

/// How exactly `f32` operands are multiplied on hardware that has less than `f32` multipliers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The backend's choice.
    #[default]
    Default,
    /// More passes.
    High,
    /// As many passes as full `f32` takes.
    Highest,
}

crate::ir::word_attribute!(Precision { Default = "default", High = "high", Highest = "highest" });

/// `dot(lhs, rhs)`: products summed over the contracted dimensions. Result dimensions: batch, free left, free right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DotGeneral {
    /// The dimensions that pair up.
    pub dims: Box<DotDims>,
    /// Element type of the result and of the accumulation.
    pub dtype: DType,
    /// Precision of the multiplications.
    pub precision: Precision,
}

crate::ir::op_text!(DotGeneral = "dot" {
    dims: several,
    dtype: result,
    precision: optional("precision", Precision::Default),
});

impl Precision {
    /// The attribute of an instruction with two operands; `None` where the default needs none.
    pub(super) fn config(self) -> Option<proto::PrecisionConfig> {
        let precision = match self {
            Precision::Default => return None,
            Precision::High => proto::precision_config::Precision::High,
            Precision::Highest => proto::precision_config::Precision::Highest,
        };
        Some(proto::PrecisionConfig {
            operand_precision: vec![precision.into(); 2],
            ..proto::PrecisionConfig::default()
        })
    }
}

impl DotDims {
    /// The same with the sides exchanged.
    fn swapped(&self) -> DotDims {
        DotDims {
            lhs_batch: self.rhs_batch.clone(),
            rhs_batch: self.lhs_batch.clone(),
            lhs_contract: self.rhs_contract.clone(),
            rhs_contract: self.lhs_contract.clone(),
        }
    }

    fn lhs_free(&self, rank: usize) -> AxisList {
        complement(&[&self.lhs_batch[..], &self.lhs_contract[..]].concat(), rank)
    }

    fn rhs_free(&self, rank: usize) -> AxisList {
        complement(&[&self.rhs_batch[..], &self.rhs_contract[..]].concat(), rank)
    }

    /// For each dimension of the result of operands of these ranks, the only operand that has it, and its number there;
    /// `None` for a batch dimension, which both have.
    pub(crate) fn free_dims(&self, ranks: [usize; 2]) -> impl Iterator<Item = Option<(usize, usize)>> {
        let batch = std::iter::repeat_n(None, self.lhs_batch.len());
        let left = self.lhs_free(ranks[0]).into_iter().map(|dim| Some((0, dim)));
        batch.chain(left).chain(self.rhs_free(ranks[1]).into_iter().map(|dim| Some((1, dim))))
    }
}

impl DotGeneral {
    /// The cotangent of the left operand, from that of the result, in which the right one's free dimensions are
    /// `free_in_ct`.
    fn of_left(
        &self,
        builder: &mut GraphBuilder,
        [ct, lhs, rhs]: [Value; 3],
        free_in_ct: std::ops::Range<usize>,
    ) -> Result<Value, OpError> {
        let dims = &*self.dims;
        let (free, rhs_free) = (dims.lhs_free(builder.ty(lhs).rank()), dims.rhs_free(builder.ty(rhs).rank()));
        // Own contracted dimensions come out in the order of their partners, the other operand's free dimensions.
        let mut partners: Vec<(&usize, &usize)> = dims.rhs_contract.iter().zip(&dims.lhs_contract).collect();
        partners.sort_unstable();
        let contracted = || partners.iter().map(|(_, own)| *own);
        let ct_first: AxisList = dims.lhs_batch.iter().chain(&free).chain(contracted()).copied().collect();
        let ct_last: AxisList = dims.lhs_batch.iter().chain(contracted()).chain(&free).copied().collect();
        let (mut operands, mut order) = ([ct, rhs], ct_first);
        let mut product = DotDims {
            lhs_batch: (0..dims.lhs_batch.len()).collect(),
            rhs_batch: dims.rhs_batch.clone(),
            lhs_contract: free_in_ct.collect(),
            rhs_contract: rhs_free,
        };
        // The operands are ordered so that the product comes out in the right order and needs no transpose, if either
        // order does.
        if ct_last.is_sorted() && !order.is_sorted() {
            (product, order) = (product.swapped(), ct_last);
            operands.reverse();
        }
        let product = builder.push1(DotGeneral { dims: Box::new(product), ..self.clone() }, &operands)?;
        builder.transpose(product, &inverse(&order))
    }
}

impl Primitive for DotGeneral {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 2)?;
        let (lhs, rhs, dims) = (operands[0], operands[1], &*self.dims);
        expect_dtype(1, rhs, lhs.dtype)?;
        let one_class = lhs.dtype.is_float() == self.dtype.is_float();
        // XLA refuses to accumulate integers in a narrower type.
        let narrower = lhs.dtype.is_integer() && self.dtype.bit_count() < lhs.dtype.bit_count();
        let computes = |dtype| OperandClass::Numeric.contains(dtype);
        if !computes(lhs.dtype) || !computes(self.dtype) || !one_class || narrower {
            return Err(TypeError::DType {
                operand: 0,
                expected: format!("a type that can be accumulated in {}", self.dtype),
                found: lhs.dtype,
            });
        }
        refuse_if!(
            dims.lhs_batch.len() != dims.rhs_batch.len() || dims.lhs_contract.len() != dims.rhs_contract.len(),
            "each batch or contracted dimension needs a partner"
        );
        expect_axes(&[&dims.lhs_batch[..], &dims.lhs_contract[..]].concat(), lhs.rank())?;
        expect_axes(&[&dims.rhs_batch[..], &dims.rhs_contract[..]].concat(), rhs.rank())?;
        let pairs = dims.lhs_batch.iter().zip(&dims.rhs_batch);
        for (&left, &right) in pairs.chain(dims.lhs_contract.iter().zip(&dims.rhs_contract)) {
            if lhs.dims[left] != rhs.dims[right] {
                return Err(TypeError::Size {
                    operand: 1,
                    dim: right,
                    expected: lhs.dims[left],
                    found: rhs.dims[right],
                });
            }
        }
        let mut result: Dims = dims.lhs_batch.iter().map(|&axis| lhs.dims[axis]).collect();
        result.extend(dims.lhs_free(lhs.rank()).iter().map(|&axis| lhs.dims[axis]));
        result.extend(dims.rhs_free(rhs.rank()).iter().map(|&axis| rhs.dims[axis]));
        Ok(one(TensorType { dtype: self.dtype, dims: result }))
    }

    rules!(facts: PRODUCT, jvp: linear, partition: unchanged);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let operands = [context.operand(0), context.operand(1)];
        // Products with a cotangent are made in the operands' own type, accumulated by the backend in its wider one.
        // Eight bits do not span what cotangents do: there the operands are widened.
        let own = context.operand_type(0).dtype;
        let dtype = if own.byte_count() == 1 { self.dtype } else { own };
        let ct = context.builder.convert(ct, dtype)?;
        let [lhs, rhs] = operands.map(|operand| context.builder.convert(operand, dtype));
        let (lhs, rhs, batch) = (lhs?, rhs?, self.dims.lhs_batch.len());
        let right_start = batch + self.dims.lhs_free(context.operand_type(0).rank()).len();
        let (left_in_ct, right_in_ct) = (batch..right_start, right_start..context.builder.ty(ct).rank());
        let widened = DotGeneral { dtype, ..self.clone() };
        context.set_with(0, |builder| {
            let gradient = widened.of_left(builder, [ct, lhs, rhs], right_in_ct)?;
            builder.convert(gradient, own)
        })?;
        let swapped = DotGeneral { dims: Box::new(self.dims.swapped()), ..widened.clone() };
        context.set_with(1, |builder| {
            let gradient = swapped.of_left(builder, [ct, rhs, lhs], left_in_ct)?;
            builder.convert(gradient, own)
        })
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let (lhs, rhs, dims) = (operands[0], operands[1], &*self.dims);
        let mut rule = FactorRule::empty(operands, results);
        let mut place = 0..results[0].rank();
        for ((&left, &right), place) in dims.lhs_batch.iter().zip(&dims.rhs_batch).zip(&mut place) {
            rule.add(lhs.dims[left], FactorKind::Parallel, &[(0, left), (1, right)], &[(0, place)]);
        }
        for (left, place) in dims.lhs_free(lhs.rank()).into_iter().zip(&mut place) {
            rule.add(lhs.dims[left], FactorKind::Parallel, &[(0, left)], &[(0, place)]);
        }
        for (right, place) in dims.rhs_free(rhs.rank()).into_iter().zip(&mut place) {
            rule.add(rhs.dims[right], FactorKind::Parallel, &[(1, right)], &[(0, place)]);
        }
        for (&left, &right) in dims.lhs_contract.iter().zip(&dims.rhs_contract) {
            rule.add(lhs.dims[left], FactorKind::Reduction(ReduceKind::Sum), &[(0, left), (1, right)], &[]);
        }
        rule
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let (lhs, rhs) = (context.is_batched(0), context.is_batched(1));
        if lhs && rhs {
            let dims = DotDims {
                lhs_batch: with_batch(&self.dims.lhs_batch),
                rhs_batch: with_batch(&self.dims.rhs_batch),
                lhs_contract: after_batch(&self.dims.lhs_contract),
                rhs_contract: after_batch(&self.dims.rhs_contract),
            };
            return context.all(DotGeneral { dims: Box::new(dims), ..self.clone() });
        }
        // With one operand for all examples, the batch is a free dimension of the other: one larger product.
        let shifted = |axes: &AxisList, batched: bool| if batched { after_batch(axes) } else { axes.clone() };
        let dims = DotDims {
            lhs_batch: shifted(&self.dims.lhs_batch, lhs),
            rhs_batch: shifted(&self.dims.rhs_batch, rhs),
            lhs_contract: shifted(&self.dims.lhs_contract, lhs),
            rhs_contract: shifted(&self.dims.rhs_contract, rhs),
        };
        let lhs_free = self.dims.lhs_free(context.example_type(0).rank()).len();
        let place = self.dims.lhs_batch.len() + if lhs { 0 } else { lhs_free };
        let operands = [context.operand(0), context.operand(1)];
        let product = context.builder.push1(DotGeneral { dims: Box::new(dims), ..self.clone() }, &operands)?;
        let product = batch_in_front(context.builder, product, place)?;
        context.push_result(product, true);
        Ok(())
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let list = |axes: &AxisList| to_i64(axes).collect();
        let numbers = proto::DotDimensionNumbers {
            lhs_contracting_dimensions: list(&self.dims.lhs_contract),
            rhs_contracting_dimensions: list(&self.dims.rhs_contract),
            lhs_batch_dimensions: list(&self.dims.lhs_batch),
            rhs_batch_dimensions: list(&self.dims.rhs_batch),
        };
        let instruction = context.begin("dot");
        instruction.dot_dimension_numbers = Some(numbers.into());
        instruction.precision_config = self.precision.config().map(Into::into);
        context.finish();
    }
}

impl Precision {
    /// The precision that both operands of an instruction have; `None` for one that no variant is.
    pub(super) fn of_config(config: Option<&proto::PrecisionConfig>) -> Option<Precision> {
        let Some(config) = config else { return Some(Precision::Default) };
        let is = |precision: Precision| {
            let all = precision.config().map(|config| config.operand_precision).unwrap_or_default();
            let stated = &config.operand_precision;
            *stated == all || all.is_empty() && stated.iter().all(|&one| one == 0)
        };
        let found = [Precision::Default, Precision::High, Precision::Highest].into_iter().find(|&one| is(one));
        found.filter(|_| config.algorithm == 0)
    }
}

import!(DotGeneral: "dot" => |context| {
    let dtype = context.result_types().first()?.dtype;
    let instruction = context.instruction();
    let numbers = instruction.dot_dimension_numbers.as_deref()?;
    let dims = DotDims {
        lhs_batch: axes(&numbers.lhs_batch_dimensions)?,
        rhs_batch: axes(&numbers.rhs_batch_dimensions)?,
        lhs_contract: axes(&numbers.lhs_contracting_dimensions)?,
        rhs_contract: axes(&numbers.rhs_contracting_dimensions)?,
    };
    let precision = Precision::of_config(instruction.precision_config.as_deref())?;
    Some(DotGeneral { dims: Box::new(dims), dtype, precision })
});
