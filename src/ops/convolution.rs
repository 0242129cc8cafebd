//! Convolutions (correlations, as everywhere in machine learning: the kernel is not reversed).
//!
//! Layouts are fixed: input `[batch, features, space..]`, kernel `[out_features, features / groups, space..]`, result
//! `[batch, out_features, space..]`. The gradient in the input is a convolution of the cotangent with the reversed
//! kernel, that in the kernel one of the input with the cotangent; feature groups are moved into place by reshapes, so
//! that the family is closed under differentiation and batching.

use super::reduce_window::windows_of;
use super::rules::*;
use super::shape::inverse;
use super::{AxisList, Precision, ReduceKind, Reverse, WindowDim, window_proto};
use crate::hlo::proto;

/// How the kernel moves along one dimension of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Distance of two positions of the kernel.
    pub stride: usize,
    /// Zeros before the input; a negative number cuts elements off.
    pub padding_low: i64,
    /// Zeros after the input; a negative number cuts elements off.
    pub padding_high: i64,
    /// Distance of two elements of the input: zeros stand between them.
    pub input_dilation: usize,
    /// Distance of two elements of the kernel.
    pub kernel_dilation: usize,
}

/// The text is one entry of a list: `stride=2 pad=0_1 lhs_dilate=1 rhs_dilate=1`, without the numbers that are 1, and
/// without the padding if it is zero.
impl crate::ir::Attribute for Window {
    fn write(&self, out: &mut crate::ir::Printer<'_>) {
        out.words(&[
            ("stride", self.stride),
            ("lhs_dilate", self.input_dilation),
            ("rhs_dilate", self.kernel_dilation),
        ]);
        out.padding(self.padding_low, self.padding_high);
    }

    fn read(reader: &mut crate::ir::Reader<'_>) -> Result<Window, crate::ir::GraphTextError> {
        let [stride, input_dilation, kernel_dilation] = reader.words(["stride", "lhs_dilate", "rhs_dilate"])?;
        let (padding_low, padding_high) = reader.padding()?;
        Ok(Window { stride, padding_low, padding_high, input_dilation, kernel_dilation })
    }
}

impl Default for Window {
    /// The window whose positions are all those at which the kernel lies inside.
    fn default() -> Window {
        Window { stride: 1, padding_low: 0, padding_high: 0, input_dilation: 1, kernel_dilation: 1 }
    }
}

/// The extent of `size` elements at a distance.
fn dilated(size: usize, dilation: usize) -> i64 {
    if size == 0 { 0 } else { (size as i64 - 1).saturating_mul(dilation as i64).saturating_add(1) }
}

impl Window {
    /// Number of positions of a kernel of `kernel` elements over an input of `input`.
    fn positions(&self, input: usize, kernel: usize) -> usize {
        let padded =
            dilated(input, self.input_dilation).saturating_add(self.padding_low).saturating_add(self.padding_high);
        let room = padded.saturating_sub(dilated(kernel, self.kernel_dilation));
        if room < 0 { 0 } else { room as usize / self.stride + 1 }
    }

    /// The window of the gradient in the input: a convolution of the cotangent with the reversed kernel.
    fn for_input(&self, input: usize, kernel: usize) -> Window {
        let low = dilated(kernel, self.kernel_dilation) - 1 - self.padding_low;
        let cotangent = dilated(self.positions(input, kernel), self.stride);
        let whole = dilated(input, self.input_dilation) + dilated(kernel, self.kernel_dilation) - 1;
        Window {
            stride: self.input_dilation,
            padding_low: low,
            padding_high: whole - cotangent - low,
            input_dilation: self.stride,
            kernel_dilation: self.kernel_dilation,
        }
    }

    /// The window of the gradient in the kernel: a convolution of the input with the cotangent.
    fn for_kernel(&self, input: usize, kernel: usize) -> Window {
        let cotangent = dilated(self.positions(input, kernel), self.stride);
        let extent = dilated(kernel, self.kernel_dilation) - 1;
        Window {
            stride: self.kernel_dilation,
            padding_low: self.padding_low,
            padding_high: cotangent + extent - dilated(input, self.input_dilation) - self.padding_low,
            input_dilation: self.input_dilation,
            kernel_dilation: self.stride,
        }
    }
}

/// `convolution(input, kernel)`: see the module for the layouts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// How the kernel moves, for each dimension of space.
    pub windows: Box<[Window]>,
    /// Number of groups into which input and output features are divided; each output group sees its input group alone.
    /// As many groups as features is a depthwise convolution.
    pub feature_groups: usize,
    /// Element type of the result and of the accumulation.
    pub dtype: DType,
    /// Precision of the multiplications.
    pub precision: Precision,
}

crate::ir::op_text!(Convolution = "convolution" {
    windows: key("window"),
    feature_groups: optional("groups", 1),
    dtype: result,
    precision: optional("precision", Precision::Default),
});

impl Convolution {
    fn check_windows(&self, input: &TensorType, kernel: &TensorType) -> Result<(), TypeError> {
        for (dim, window) in self.windows.iter().enumerate() {
            refuse_if!(
                window.stride == 0 || window.input_dilation == 0 || window.kernel_dilation == 0,
                "stride and dilations of dimension {dim} of space must be positive"
            );
            let (size, kernel) = (input.dims[dim + 2], kernel.dims[dim + 2]);
            let padded = dilated(size, window.input_dilation)
                .saturating_add(window.padding_low)
                .saturating_add(window.padding_high);
            let limit = 1 << 31;
            let small = |number: i64| number.unsigned_abs() < limit;
            if kernel == 0 || padded < 0 {
                let message = format!(
                    "dimension {dim} of space needs a kernel of at least one element and an input of no less than none; \
                     they have {kernel} and {padded}"
                );
                return Err(TypeError::Attribute(message));
            }
            let extents = [dilated(kernel, window.kernel_dilation), padded, window.stride as i64];
            refuse_if!(
                !small(window.padding_low) || !small(window.padding_high) || !extents.into_iter().all(small),
                "dimension {dim} of space is larger than 2^31 once padded and dilated"
            );
        }
        Ok(())
    }

    /// The op with other windows, for a gradient in `dtype`.
    fn other(
        &self,
        dtype: DType,
        input: &TensorType,
        kernel: &TensorType,
        window: fn(&Window, usize, usize) -> Window,
    ) -> Convolution {
        let each = |(dim, own): (usize, &Window)| window(own, input.dims[dim + 2], kernel.dims[dim + 2]);
        Convolution { windows: self.windows.iter().enumerate().map(each).collect(), dtype, ..self.clone() }
    }

    /// Turns `[groups * a, b, space..]` into `[groups * b, a, space..]`: the factor of groups stays in front.
    fn swap_features(&self, builder: &mut GraphBuilder, x: Value) -> Result<Value, OpError> {
        let dims = builder.ty(x).dims.clone();
        let groups = self.feature_groups;
        if groups == 1 {
            let order: AxisList = [1, 0].into_iter().chain(2..dims.len()).collect();
            return builder.transpose(x, &order);
        }
        let own = dims[0] / groups;
        let split: Dims = [groups, own].iter().chain(&dims[1..]).copied().collect();
        let order: AxisList = [0, 2, 1].into_iter().chain(3..split.len()).collect();
        let joined: Dims = [groups * dims[1], own].iter().chain(&dims[2..]).copied().collect();
        let x = builder.reshape(x, &split)?;
        let x = builder.transpose(x, &order)?;
        builder.reshape(x, &joined)
    }

    fn gradient_in_input(&self, context: &mut VjpContext<'_>, ct: Value) -> Result<Value, OpError> {
        let (input, kernel) = (context.operand_type(0).clone(), context.operand_type(1).clone());
        let own = context.operand(1);
        let builder = &mut *context.builder;
        let swapped = self.swap_features(builder, own)?;
        let reversed = builder.push1(Reverse { axes: (2..kernel.rank()).collect() }, &[swapped])?;
        builder.push1(self.other(input.dtype, &input, &kernel, Window::for_input), &[ct, reversed])
    }

    fn gradient_in_kernel(&self, context: &mut VjpContext<'_>, ct: Value) -> Result<Value, OpError> {
        let (input, kernel) = (context.operand_type(0).clone(), context.operand_type(1).clone());
        let own = context.operand(0);
        let builder = &mut *context.builder;
        let swap: AxisList = [1, 0].into_iter().chain(2..input.rank()).collect();
        // Features and batch trade places: within a group, the sum runs over the batch.
        let mut by_feature = builder.transpose(own, &swap)?;
        if self.feature_groups > 1 {
            by_feature = self.swap_features(builder, by_feature)?;
            by_feature = builder.transpose(by_feature, &swap)?;
        }
        let ct = builder.transpose(ct, &swap)?;
        let op = self.other(input.dtype, &input, &kernel, Window::for_kernel);
        let gradient = builder.push1(op, &[by_feature, ct])?;
        builder.transpose(gradient, &swap)
    }
}

impl Primitive for Convolution {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 2)?;
        let (input, kernel) = (operands[0], operands[1]);
        if !input.dtype.is_float() || !self.dtype.is_float() {
            let expected = format!("a floating-point type that can be accumulated in {}", self.dtype);
            return Err(TypeError::DType { operand: 0, expected, found: input.dtype });
        }
        expect_dtype(1, kernel, input.dtype)?;
        let rank = self.windows.len() + 2;
        for (operand, ty) in operands.iter().enumerate() {
            if ty.rank() != rank {
                let expected = format!("{rank} (batch, features and {} of space)", self.windows.len());
                return Err(TypeError::Rank { operand, expected, found: ty.rank() });
            }
        }
        let groups = self.feature_groups;
        refuse_if!(
            groups == 0 || !input.dims[1].is_multiple_of(groups) || !kernel.dims[0].is_multiple_of(groups),
            "{} input and {} output features cannot be divided into {groups} groups",
            input.dims[1],
            kernel.dims[0]
        );
        if kernel.dims[1] != input.dims[1] / groups {
            let (expected, found) = (input.dims[1] / groups, kernel.dims[1]);
            return Err(TypeError::Size { operand: 1, dim: 1, expected, found });
        }
        self.check_windows(input, kernel)?;
        let mut dims = Dims::from_slice(&[input.dims[0], kernel.dims[0]]);
        let spaces = input.dims[2..].iter().zip(&kernel.dims[2..]);
        dims.extend(self.windows.iter().zip(spaces).map(|(window, (&size, &kernel))| window.positions(size, kernel)));
        Ok(one(TensorType { dtype: self.dtype, dims }))
    }

    rules!(facts: PRODUCT, jvp: linear);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let dtype = context.operand_type(0).dtype;
        let result_is_empty = context.builder.ty(ct).element_count() == 0;
        let ct = context.builder.convert(ct, dtype)?;
        for operand in 0..2 {
            if !context.needs(operand) {
                continue;
            }
            let gradient = match operand {
                // XLA does not take a convolution with an empty kernel.
                _ if result_is_empty => context.builder.splat(context.operand_type(operand).clone(), 0.0),
                0 => self.gradient_in_input(context, ct)?,
                _ => self.gradient_in_kernel(context, ct)?,
            };
            context.set(operand, gradient);
        }
        Ok(())
    }

    /// Space is not split: windows overlap.
    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        use FactorKind::{Parallel, Reduction, Replicated};
        let mut rule = FactorRule::empty(operands, results);
        let (input, kernel) = (operands[0], operands[1]);
        rule.add(input.dims[0], Parallel, &[(0, 0)], &[(0, 0)]);
        // Groups are the major part of the features on both sides.
        if self.feature_groups > 1 {
            rule.add(self.feature_groups, Parallel, &[(0, 1), (1, 0)], &[(0, 1)]);
        }
        if kernel.dims[1] != 1 || self.feature_groups == 1 {
            rule.add(kernel.dims[1], Reduction(ReduceKind::Sum), &[(0, 1), (1, 1)], &[]);
        }
        let out = kernel.dims[0] / self.feature_groups;
        if out != 1 || self.feature_groups == 1 {
            rule.add(out, Parallel, &[(1, 0)], &[(0, 1)]);
        }
        for dim in 2..input.rank() {
            rule.add(input.dims[dim], Replicated, &[(0, dim)], &[]);
            rule.add(kernel.dims[dim], Replicated, &[(1, dim)], &[]);
            rule.add(results[0].dims[dim], Replicated, &[], &[(0, dim)]);
        }
        rule
    }

    /// A batch of inputs goes into the batch dimension. A batch of kernels goes into the output features of each group,
    /// and a batch of both into the groups.
    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let size = context.size;
        let (input, kernel) = (context.operand(0), context.operand(1));
        let (input_dims, kernel_dims) = (context.example_type(0).dims, context.example_type(1).dims);
        let join = |builder: &mut GraphBuilder, x: Value, axis: usize| -> Result<Value, OpError> {
            let mut dims = builder.ty(x).dims.clone();
            let joined = dims.remove(axis);
            dims[axis] *= joined;
            builder.reshape(x, &dims)
        };
        let batched = [context.is_batched(0), context.is_batched(1)];
        let builder = &mut *context.builder;
        // The place of the batch in the result, and the parts into which that dimension falls.
        let (op, operands, axis, parts): (Convolution, [Value; 2], usize, Dims) = match batched {
            [true, false] => {
                let input = join(builder, input, 0)?;
                (self.clone(), [input, kernel], 0, Dims::from_slice(&[size, input_dims[0]]))
            }
            [false, _] => {
                let groups = self.feature_groups;
                let own = kernel_dims[0] / groups;
                // The group stays major: [batch, groups, out, ..] becomes [groups, batch, out, ..].
                let split: Dims = [size, groups, own].iter().chain(&kernel_dims[1..]).copied().collect();
                let kernel = builder.reshape(kernel, &split)?;
                let order: AxisList = [1, 0].into_iter().chain(2..split.len()).collect();
                let kernel = builder.transpose(kernel, &order)?;
                let joined: Dims = [groups * size * own].iter().chain(&kernel_dims[1..]).copied().collect();
                let kernel = builder.reshape(kernel, &joined)?;
                (self.clone(), [input, kernel], 1, Dims::from_slice(&[groups, size, own]))
            }
            [true, true] => {
                let order: AxisList = [1, 0].into_iter().chain(2..input_dims.len() + 1).collect();
                let input = builder.transpose(input, &order)?;
                let (input, kernel) = (join(builder, input, 1)?, join(builder, kernel, 0)?);
                let op = Convolution { feature_groups: self.feature_groups * size, ..self.clone() };
                (op, [input, kernel], 1, Dims::from_slice(&[size, kernel_dims[0]]))
            }
        };
        let result = builder.push1(op, &operands)?;
        let mut split = builder.ty(result).dims.clone();
        split.remove(axis);
        split.insert_from_slice(axis, &parts);
        let split_value = builder.reshape(result, &split)?;
        let lead = if parts.len() == 3 { axis + 1 } else { axis };
        let order: AxisList = [lead].into_iter().chain((0..split.len()).filter(|&dim| dim != lead)).collect();
        let mut moved = builder.transpose(split_value, &order)?;
        if parts.len() == 3 {
            // [batch, n, groups, out, ..] becomes [batch, n, groups * out, ..].
            moved = join(builder, moved, 2)?;
        }
        context.push_result(moved, true);
        Ok(())
    }

    fn partition(&self, context: &mut PartitionContext<'_>) -> Result<(), OpError> {
        // The number of groups whose features this device has.
        let feature_groups = context.operand_dims(0)[1] / context.operand_dims(1)[1].max(1);
        context.apply(Convolution { feature_groups: feature_groups.max(1), ..self.clone() })
    }

    fn emit(&self, context: &mut dyn EmitContext) {
        let space: Vec<i64> = (0..self.windows.len()).map(|dim| dim as i64 + 2).collect();
        let numbers = proto::ConvolutionDimensionNumbers {
            input_batch_dimension: 0,
            input_feature_dimension: 1,
            input_spatial_dimensions: space.clone(),
            kernel_output_feature_dimension: 0,
            kernel_input_feature_dimension: 1,
            kernel_spatial_dimensions: space.clone(),
            output_batch_dimension: 0,
            output_feature_dimension: 1,
            output_spatial_dimensions: space,
        };
        let dimension = |(&window, &size): (&Window, &usize)| WindowDim {
            size,
            stride: window.stride,
            low: window.padding_low,
            high: window.padding_high,
            window_dilation: window.kernel_dilation,
            base_dilation: window.input_dilation,
        };
        let dims = self.windows.iter().zip(&context.operand_type(1).dims[2..]);
        let window = window_proto(&dims.map(dimension).collect::<Vec<_>>());
        let precision = self.precision.config();
        let instruction = context.begin("convolution");
        instruction.convolution_dimension_numbers = Some(numbers.into());
        instruction.window = Some(window);
        instruction.feature_group_count = self.feature_groups as i64;
        instruction.batch_group_count = 1;
        instruction.precision_config = precision.map(Into::into);
        context.finish();
    }
}

/// The order of an array's dimensions in which batch and features, or the features of a kernel, stand first.
fn order(first: i64, second: i64, space: &[i64]) -> Option<AxisList> {
    let all: Vec<i64> = [first, second].into_iter().chain(space.iter().copied()).collect();
    axes(&all)
}

impl Import for Convolution {
    const OPCODES: &'static [&'static str] = &["convolution"];

    /// Operands and result in another order of dimensions are transposed.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let (&[input, kernel], [result]) = (context.operands(), context.result_types()) else { return Ok(None) };
        let (dtype, result) = (result.dtype, result.clone());
        let instruction = context.instruction();
        let found = || {
            let numbers = instruction.convolution_dimension_numbers.as_deref()?;
            let orders = [
                order(
                    numbers.input_batch_dimension,
                    numbers.input_feature_dimension,
                    &numbers.input_spatial_dimensions,
                )?,
                order(
                    numbers.kernel_output_feature_dimension,
                    numbers.kernel_input_feature_dimension,
                    &numbers.kernel_spatial_dimensions,
                )?,
                order(
                    numbers.output_batch_dimension,
                    numbers.output_feature_dimension,
                    &numbers.output_spatial_dimensions,
                )?,
            ];
            let window = |dim: WindowDim| Window {
                stride: dim.stride,
                padding_low: dim.low,
                padding_high: dim.high,
                input_dilation: dim.base_dilation,
                kernel_dilation: dim.window_dilation,
            };
            let windows = windows_of(instruction.window.as_ref()?)?.into_iter().map(window).collect();
            let feature_groups = usize::try_from(instruction.feature_group_count.max(1)).ok()?;
            let precision = Precision::of_config(instruction.precision_config.as_deref())?;
            let op = Convolution { windows, feature_groups, dtype, precision };
            (instruction.batch_group_count <= 1).then_some((op, orders))
        };
        let Some((op, [of_input, of_kernel, of_result])) = found() else { return Ok(None) };
        let builder = context.builder();
        let sizes = [(input, &of_input), (kernel, &of_kernel)].map(|(value, order)| {
            let ty = builder.ty(value);
            let dims = order.iter().map(|&dim| ty.dims.get(dim).copied()).collect::<Option<Dims>>()?;
            (dims.len() == ty.rank()).then_some(TensorType { dtype: ty.dtype, dims })
        });
        let [Some(of_input_type), Some(of_kernel_type)] = sizes else { return Ok(None) };
        let is_order = |order: &AxisList, rank: usize| order.len() == rank && (0..rank).all(|dim| order.contains(&dim));
        if !is_order(&of_result, result.rank()) {
            return Ok(None);
        }
        let back = inverse(&of_result);
        let fits = op.infer(&[&of_input_type, &of_kernel_type]).is_ok_and(|types| {
            let found = &types[0];
            found.rank() == result.rank() && back.iter().map(|&dim| found.dims[dim]).eq(result.dims.iter().copied())
        });
        if !fits {
            return Ok(None);
        }
        let (input, kernel) = (builder.transpose(input, &of_input)?, builder.transpose(kernel, &of_kernel)?);
        let folded = builder.push1(op, &[input, kernel])?;
        Ok(Some(Values::from_slice(&[builder.transpose(folded, &back)?])))
    }
}
