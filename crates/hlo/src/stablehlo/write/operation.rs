//! The op that each opcode becomes.

use std::rc::Rc;

use super::attributes::{
    self, Attributes, array, brackets, dilations, dimension_numbers, matrix, number, window, window_of, window_reversal,
};
use super::error::{Result, malformed, no_form};
use super::printer::{Op, Printer, Scope, Value, shape_of};
use super::types::{self, Type, at_index, leaf_count};
use super::{control, literal};
use crate::device_groups::DeviceGroups;
use crate::opcode;
use crate::proto::hlo_instruction_proto::SliceDimensions;
use crate::proto::padding_config::PaddingConfigDimension;
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{
    ConvolutionDimensionNumbers, FftType, HloInstructionProto, RandomAlgorithm, RandomDistribution, ShapeProto,
    SparsityConfig,
};
use crate::shape::element_count;
use crate::stablehlo::names;
use crate::syntax::default_comparison;
use crate::syntax::opcodes::{Mark, Operation};

impl<'a> Printer<'a> {
    /// Writes an instruction; gives its value.
    pub(super) fn operation(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        match instruction.opcode.as_str() {
            "tuple" => scope.operands(instruction),
            "get-tuple-element" => element(scope, instruction),
            "constant" => self.constant(instruction),
            // Where a value lies is the compiler's business, how it is sharded is not.
            "copy" if instruction.sharding.is_some() => self.sharded(scope, instruction),
            "copy" => scope.operand(instruction, 0),
            "opt-barrier" => self.simple(scope, instruction, "optimization_barrier", Vec::new()),
            "while" => self.while_loop(scope, instruction),
            "conditional" => self.conditional(scope, instruction),
            "call" => self.call(scope, instruction),
            "map" => self.map(scope, instruction),
            "reduce" => self.reduce(scope, instruction),
            "reduce-window" => self.reduce_window(scope, instruction),
            "select-and-scatter" => self.select_and_scatter(scope, instruction),
            "sort" => self.sort(scope, instruction),
            "scatter" => self.scatter(scope, instruction),
            "custom-call" => self.custom_call(scope, instruction),
            "all-gather"
            | "all-reduce"
            | "all-to-all"
            | "collective-broadcast"
            | "collective-permute"
            | "reduce-scatter" => self.collective(scope, instruction),
            "rng" => self.random(scope, instruction),
            "ragged-dot" => {
                let attributes = ragged_dot(instruction)?;
                self.with_regions(scope, instruction, "chlo.ragged_dot", attributes, Vec::new())
            }
            "topk" => {
                let own = [("k", number(instruction.k)), ("largest", instruction.largest.to_string())];
                self.extension(scope, instruction, "topk", &own)
            }
            opcode => match own_attributes(scope, instruction, opcode)? {
                Some((name, attributes)) => self.simple(scope, instruction, name, attributes),
                None => self.plain(scope, instruction, opcode),
            },
        }
    }

    /// An op of StableHLO that takes the operands of the instruction.
    fn simple(
        &mut self,
        scope: &Scope<'a>,
        instruction: &'a HloInstructionProto,
        name: &str,
        attributes: Attributes,
    ) -> Result<Value> {
        self.with_regions(scope, instruction, &format!("stablehlo.{name}"), attributes, Vec::new())
    }

    /// An op that carries nothing but operands.
    fn plain(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto, opcode: &str) -> Result<Value> {
        let Some(name) = names::name(opcode) else { return no_form(instead_of(opcode)) };
        if let Some((_, later)) = name.split_once("chlo.").filter(|(before, _)| before.is_empty()) {
            return self.extension(scope, instruction, later, &[]);
        }
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        let accuracy = attributes::accuracy(instruction).map(|accuracy| ("result_accuracy", accuracy));
        let op = Op::new(name, &operands, &results).with(accuracy.into_iter().collect());
        let is_elementwise = Operation::has_mark(opcode, Mark::Same)
            && (opcode::is_arithmetic(opcode) || opcode::is_transcendental(opcode));
        let op = if is_elementwise { op.elementwise() } else { op };
        self.op(instruction, op, &self.common(instruction))
    }

    fn constant(&mut self, instruction: &'a HloInstructionProto) -> Result<Value> {
        let Some(value) = instruction.literal.as_deref() else { return malformed("a constant has no value") };
        let shape = value.shape.as_ref().map_or_else(|| shape_of(instruction), Ok)?;
        if types::is_tuple(shape) {
            return no_form("a constant of several arrays; make them constants of their own, and a tuple of those");
        }
        let results = [types::leaf(shape)?];
        let dense = literal::dense(value, shape)?;
        let count = element_count(shape).map_or(i64::MAX, |count| count as i64);
        if count >= names::LARGE_SPLAT
            && let Some(element) = literal::splat(&dense)
        {
            let scalar: Type = format!("tensor<{}>", types::element_name(shape)?).into();
            let one = self.line(
                instruction,
                &format!("stablehlo.constant {element} : {scalar}"),
                std::slice::from_ref(&scalar),
            );
            let attributes = vec![("broadcast_dimensions", array(&[]))];
            return self.op(instruction, Op::new("stablehlo.broadcast_in_dim", &one, &results).with(attributes), &[]);
        }
        let start = self.out.len();
        let mut value = self.line(instruction, &format!("stablehlo.constant {dense}"), &results);
        if count <= names::REPEATED {
            let line = self.out.get(start..).and_then(|line| line.split_once(" = "));
            let text: Option<Rc<str>> = line.map(|(_, text)| text.into());
            value.iter_mut().for_each(|leaf| leaf.constant.clone_from(&text));
        }
        Ok(value)
    }

    /// Random numbers of the state that the device keeps. The shape is an operand.
    fn random(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let distribution = match RandomDistribution::try_from(instruction.distribution) {
            Ok(RandomDistribution::RngUniform) => "UNIFORM",
            Ok(RandomDistribution::RngNormal) => "NORMAL",
            _ => return malformed(format!("its distribution {} is unknown", instruction.distribution)),
        };
        let shape = shape_of(instruction)?;
        let ty = format!("tensor<{}xi64>", shape.dimensions.len());
        let sizes = match shape.dimensions.as_slice() {
            [] => format!("stablehlo.constant dense<> : {ty}"),
            sizes => format!("stablehlo.constant dense<{}> : {ty}", brackets(sizes)),
        };
        let mut operands = scope.operands(instruction)?;
        operands.extend(self.line(instruction, &sizes, &[ty.into()]));
        let results = [types::leaf(shape)?];
        let attributes = vec![("rng_distribution", format!("#stablehlo<rng_distribution {distribution}>"))];
        let op = Op::new("stablehlo.rng", &operands, &results).with(attributes);
        self.op(instruction, op, &self.common(instruction))
    }

    fn collective(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let opcode = instruction.opcode.as_str();
        let operand_count = instruction.operand_ids.len();
        let mut attributes = Vec::new();
        let mut regions = Vec::new();
        match (opcode, instruction.dimensions.as_slice()) {
            ("all-gather", &[dim]) => attributes.push(("all_gather_dim", number(dim))),
            ("reduce-scatter", &[dim]) if operand_count == 1 => attributes.push(("scatter_dimension", number(dim))),
            ("reduce-scatter", [_]) => {
                return no_form("it has several operands; write a reduce-scatter for each, or lay them side by side");
            }
            ("all-to-all", &[dim]) => {
                attributes.push(("split_dimension", number(dim)));
                attributes.push(("concat_dimension", number(dim)));
                attributes.push(("split_count", number(group_size(instruction)?)));
            }
            ("all-to-all", []) => {
                return no_form("it exchanges a tuple; lay the parts along a dimension, and exchange along it");
            }
            ("all-gather" | "reduce-scatter" | "all-to-all", dims) => {
                return malformed(format!("one dimension is expected, {} are found", dims.len()));
            }
            _ => {}
        }
        if opcode == "collective-permute" {
            if operand_count != 1 || !instruction.dynamic_slice_sizes.is_empty() {
                return no_form("it sends several arrays, or slices of them; write a collective-permute for each");
            }
            let pairs = instruction.source_target_pairs.iter().map(|pair| vec![pair.source, pair.target]);
            attributes.push(("source_target_pairs", matrix(&pairs.collect::<Vec<_>>(), 2)));
        } else {
            attributes.push(("replica_groups", groups(instruction)?));
        }
        if instruction.channel_id > 0 {
            let handle = format!("#stablehlo.channel_handle<handle = {}, type = 1>", instruction.channel_id);
            attributes.push(("channel_handle", handle));
        }
        if instruction.use_global_device_ids {
            if !matches!(opcode, "all-gather" | "all-reduce" | "reduce-scatter") {
                return no_form(
                    "only gathers and reductions may number devices globally; leave use_global_device_ids out",
                );
            }
            attributes.push(("use_global_device_ids", String::new()));
        }
        if matches!(opcode, "all-reduce" | "reduce-scatter") {
            regions.push(control::region(instruction, 0)?);
        }
        let name = format!("stablehlo.{}", opcode.replace('-', "_"));
        self.with_regions(scope, instruction, &name, attributes, regions)
    }
}

/// The op of an opcode that has attributes of its own and no computation; none for other opcodes.
fn own_attributes(
    scope: &Scope<'_>,
    instruction: &HloInstructionProto,
    opcode: &str,
) -> Result<Option<(&'static str, Attributes)>> {
    let dimension = || match instruction.dimensions.as_slice() {
        &[dimension] => Ok(number(dimension)),
        several => malformed(format!("one dimension is expected, {} are found", several.len())),
    };
    Ok(Some(match opcode {
        "batch-norm-grad" => ("batch_norm_grad", normalization(instruction)),
        "batch-norm-inference" => ("batch_norm_inference", normalization(instruction)),
        "batch-norm-training" => ("batch_norm_training", normalization(instruction)),
        "broadcast" => ("broadcast_in_dim", vec![("broadcast_dimensions", array(&instruction.dimensions))]),
        "cholesky" => {
            let is_lower = instruction.cholesky_options.as_ref().is_some_and(|options| options.lower);
            ("cholesky", vec![("lower", is_lower.to_string())])
        }
        "compare" => ("compare", comparison(scope, instruction)?),
        "concatenate" => ("concatenate", vec![("dimension", dimension()?)]),
        "convolution" => ("convolution", convolution(scope, instruction)?),
        "dot" => ("dot_general", dot(instruction)?),
        "dynamic-slice" => {
            let sizes = array(&instruction.dynamic_slice_sizes);
            starts_are_scalars(scope, instruction, 1)?;
            ("dynamic_slice", vec![("slice_sizes", sizes)])
        }
        "dynamic-update-slice" => {
            starts_are_scalars(scope, instruction, 2)?;
            return Ok(None);
        }
        "fft" => {
            let ty = match FftType::try_from(instruction.fft_type) {
                Ok(FftType::Fft) => "FFT",
                Ok(FftType::Ifft) => "IFFT",
                Ok(FftType::Rfft) => "RFFT",
                Ok(FftType::Irfft) => "IRFFT",
                Err(_) => return malformed(format!("its type {} is unknown", instruction.fft_type)),
            };
            let ty = format!("#stablehlo<fft_type {ty}>");
            ("fft", vec![("fft_type", ty), ("fft_length", array(&instruction.fft_length))])
        }
        "gather" => ("gather", gather(instruction)?),
        "get-dimension-size" => ("get_dimension_size", vec![("dimension", dimension()?)]),
        "iota" => ("iota", vec![("iota_dimension", dimension()?)]),
        "pad" => ("pad", padding(instruction)),
        "reduce-precision" => {
            let bits = |bits: i32| format!("{bits} : i32");
            let exponent = ("exponent_bits", bits(instruction.exponent_bits));
            ("reduce_precision", vec![exponent, ("mantissa_bits", bits(instruction.mantissa_bits))])
        }
        "reverse" => ("reverse", vec![("dimensions", array(&instruction.dimensions))]),
        "rng-bit-generator" => {
            let algorithm = match RandomAlgorithm::try_from(instruction.rng_algorithm) {
                Ok(RandomAlgorithm::RngDefault) => "DEFAULT",
                Ok(RandomAlgorithm::RngThreeFry) => "THREE_FRY",
                Ok(RandomAlgorithm::RngPhilox) => "PHILOX",
                _ => return no_form(format!("algorithm {} is not one of StableHLO's", instruction.rng_algorithm)),
            };
            let algorithm = format!("#stablehlo<rng_algorithm {algorithm}>");
            ("rng_bit_generator", vec![("rng_algorithm", algorithm)])
        }
        "set-dimension-size" => ("set_dimension_size", vec![("dimension", dimension()?)]),
        "slice" => {
            let field = |field: fn(&SliceDimensions) -> i64| {
                array(&instruction.slice_dimensions.iter().map(field).collect::<Vec<_>>())
            };
            let attributes = vec![
                ("start_indices", field(|dimension| dimension.start)),
                ("limit_indices", field(|dimension| dimension.limit)),
                ("strides", field(|dimension| dimension.stride)),
            ];
            ("slice", attributes)
        }
        "transpose" => ("transpose", vec![("permutation", array(&instruction.dimensions))]),
        "triangular-solve" => ("triangular_solve", triangular_solve(instruction)?),
        _ => return Ok(None),
    }))
}

/// The advice for an opcode that has no counterpart in StableHLO.
pub(super) fn instead_of(opcode: &str) -> &'static str {
    match opcode {
        "fusion" | "bitcast" | "add-dependency" | "domain" => {
            "a compiler's passes make it; give the module as it was before they ran"
        }
        "infeed" | "outfeed" | "send" | "send-done" | "recv" | "recv-done" => {
            "transfers to the host are not written; give the values as parameters and results"
        }
        opcode if ["-start", "-done", "-update"].iter().any(|end| opcode.ends_with(end)) => {
            "asynchronous operations are made by a compiler's passes; use the opcode of what they do"
        }
        _ => "no op of StableHLO does the same; write it with other opcodes, or give the plugin the module as HLO",
    }
}

fn element(scope: &Scope<'_>, instruction: &HloInstructionProto) -> Result<Value> {
    let value = scope.operand(instruction, 0)?;
    let shape = scope.operand_shape(instruction, 0)?;
    let Some((before, part)) = at_index(shape, &[instruction.tuple_index]) else {
        return malformed(format!("its operand has no element {}", instruction.tuple_index));
    };
    match value.get(before..before + leaf_count(part)) {
        Some(leaves) => Ok(leaves.to_vec()),
        None => malformed("its operand has another shape than it states"),
    }
}

fn gather(instruction: &HloInstructionProto) -> Result<Attributes> {
    let Some(numbers) = instruction.gather_dimension_numbers.as_deref() else {
        return malformed("it has no dimension numbers");
    };
    let numbers = dimension_numbers(
        "gather",
        &[
            ("offset_dims", &numbers.offset_dims),
            ("collapsed_slice_dims", &numbers.collapsed_slice_dims),
            ("operand_batching_dims", &numbers.operand_batching_dims),
            ("start_indices_batching_dims", &numbers.start_indices_batching_dims),
            ("start_index_map", &numbers.start_index_map),
        ],
        numbers.index_vector_dim,
    );
    Ok(vec![
        ("dimension_numbers", numbers),
        ("slice_sizes", array(&instruction.gather_slice_sizes)),
        ("indices_are_sorted", instruction.indices_are_sorted.to_string()),
    ])
}

fn dot(instruction: &HloInstructionProto) -> Result<Attributes> {
    let Some(numbers) = instruction.dot_dimension_numbers.as_deref() else {
        return malformed("it has no dimension numbers");
    };
    let lists = [
        ("lhs_batching_dimensions", &numbers.lhs_batch_dimensions),
        ("rhs_batching_dimensions", &numbers.rhs_batch_dimensions),
        ("lhs_contracting_dimensions", &numbers.lhs_contracting_dimensions),
        ("rhs_contracting_dimensions", &numbers.rhs_contracting_dimensions),
    ];
    let mut attributes = vec![("dot_dimension_numbers", numbered("stablehlo.dot", &lists))];
    // An algorithm decides alone: XLA does not look at the precisions then, and StableHLO forbids them.
    attributes.push(match attributes::algorithm(instruction)? {
        Some(algorithm) => ("algorithm", algorithm),
        None => match attributes::precision(instruction, "stablehlo")? {
            Some(precision) => ("precision_config", precision),
            None => return Ok(attributes),
        },
    });
    Ok(attributes)
}

/// A product of rows in groups, each with a matrix of its own. StableHLO leaves it to the dialect above it.
fn ragged_dot(instruction: &HloInstructionProto) -> Result<Attributes> {
    let numbers = instruction.ragged_dot_dimension_numbers.as_deref();
    let Some((numbers, dot)) = numbers.and_then(|numbers| Some((numbers, numbers.dot_dimension_numbers.as_ref()?)))
    else {
        return malformed("it has no dimension numbers");
    };
    if attributes::algorithm(instruction)?.is_some() {
        return no_form("a ragged product of StableHLO has no algorithm; leave it out");
    }
    let lists = [
        ("lhs_batching_dimensions", &dot.lhs_batch_dimensions),
        ("rhs_batching_dimensions", &dot.rhs_batch_dimensions),
        ("lhs_contracting_dimensions", &dot.lhs_contracting_dimensions),
        ("rhs_contracting_dimensions", &dot.rhs_contracting_dimensions),
        ("lhs_ragged_dimensions", &numbers.lhs_ragged_dimensions),
        ("rhs_group_dimensions", &numbers.rhs_group_dimensions),
    ];
    let mut attributes = vec![("ragged_dot_dimension_numbers", numbered("chlo.ragged_dot", &lists))];
    attributes.extend(attributes::precision(instruction, "chlo")?.map(|precision| ("precision_config", precision)));
    Ok(attributes)
}

/// `#stablehlo.dot<lhs_batching_dimensions = [], ...>`.
fn numbered(name: &str, lists: &[(&str, &Vec<i64>)]) -> String {
    let parts: Vec<String> = lists.iter().map(|(name, list)| format!("{name} = {}", brackets(list))).collect();
    format!("#{name}<{}>", parts.join(", "))
}

fn convolution(scope: &Scope<'_>, instruction: &HloInstructionProto) -> Result<Attributes> {
    let Some(numbers) = instruction.convolution_dimension_numbers.as_deref() else {
        return malformed("it has no dimension numbers");
    };
    let is_sparse = instruction.sparsity_config.as_ref().is_some_and(|config| **config != SparsityConfig::default());
    if is_sparse || attributes::algorithm(instruction)?.is_some() {
        return no_form("a convolution of StableHLO is dense and has no algorithm; leave them out");
    }
    let rank = scope.operand_shape(instruction, 0)?.dimensions.len();
    let dimensions = window_of(instruction, rank.saturating_sub(2))?;
    let mut found = vec![("dimension_numbers", convolution_numbers(numbers, rank)?)];
    found.extend(window(dimensions));
    found.extend(dilations(dimensions, ["lhs_dilation", "rhs_dilation"]));
    found.push(("window_reversal", window_reversal(dimensions)));
    found.push(("feature_group_count", number(instruction.feature_group_count.max(1))));
    found.push(("batch_group_count", number(instruction.batch_group_count.max(1))));
    found.extend(attributes::precision(instruction, "stablehlo")?.map(|precision| ("precision_config", precision)));
    Ok(found)
}

/// `#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>`.
fn convolution_numbers(numbers: &ConvolutionDimensionNumbers, rank: usize) -> Result<String> {
    let labels = |first: (&str, i64), second: (&str, i64), spatial: &[i64]| {
        let mut labels = vec![String::new(); rank];
        let spatial = spatial.iter().enumerate().map(|(index, &dimension)| (index.to_string(), dimension));
        let named = [first, second].map(|(name, dimension)| (name.to_owned(), dimension));
        for (name, dimension) in named.into_iter().chain(spatial) {
            match usize::try_from(dimension).ok().and_then(|dimension| labels.get_mut(dimension)) {
                Some(label) => *label = name,
                None => return malformed(format!("its dimension numbers name dimension {dimension} of {rank}")),
            }
        }
        match labels.iter().position(String::is_empty) {
            None => Ok(labels.join(", ")),
            Some(unnamed) => malformed(format!("its dimension numbers do not name dimension {unnamed}")),
        }
    };
    let input = labels(
        ("b", numbers.input_batch_dimension),
        ("f", numbers.input_feature_dimension),
        &numbers.input_spatial_dimensions,
    )?;
    let kernel = labels(
        ("i", numbers.kernel_input_feature_dimension),
        ("o", numbers.kernel_output_feature_dimension),
        &numbers.kernel_spatial_dimensions,
    )?;
    let output = labels(
        ("b", numbers.output_batch_dimension),
        ("f", numbers.output_feature_dimension),
        &numbers.output_spatial_dimensions,
    )?;
    Ok(format!("#stablehlo.conv<[{input}]x[{kernel}]->[{output}]>"))
}

fn comparison(scope: &Scope<'_>, instruction: &HloInstructionProto) -> Result<Attributes> {
    let direction = instruction.comparison_direction.as_str();
    if !names::DIRECTIONS.contains(&direction) {
        return malformed(format!("its direction is {direction:?}; it is one of {}", names::DIRECTIONS.join(", ")));
    }
    let kind = match instruction.comparison_type.as_str() {
        "" => default_comparison(Some(scope.operand_shape(instruction, 0)?)),
        kind if names::COMPARISONS.contains(&kind) => kind,
        kind => return malformed(format!("its type is {kind:?}; it is one of {}", names::COMPARISONS.join(", "))),
    };
    Ok(vec![
        ("comparison_direction", format!("#stablehlo<comparison_direction {direction}>")),
        ("compare_type", format!("#stablehlo<comparison_type {kind}>")),
    ])
}

fn normalization(instruction: &HloInstructionProto) -> Attributes {
    let epsilon = attributes::Decimal(f64::from(instruction.epsilon));
    vec![("epsilon", format!("{epsilon:e} : f32")), ("feature_index", number(instruction.feature_index))]
}

fn padding(instruction: &HloInstructionProto) -> Attributes {
    let dimensions = instruction.padding_config.as_ref().map_or(&[][..], |config| &config.dimensions);
    let field = |field: fn(&PaddingConfigDimension) -> i64| array(&dimensions.iter().map(field).collect::<Vec<_>>());
    vec![
        ("edge_padding_low", field(|dimension| dimension.edge_padding_low)),
        ("edge_padding_high", field(|dimension| dimension.edge_padding_high)),
        ("interior_padding", field(|dimension| dimension.interior_padding)),
    ]
}

fn triangular_solve(instruction: &HloInstructionProto) -> Result<Attributes> {
    let options = instruction.triangular_solve_options.clone().unwrap_or_default();
    let transpose = match Transpose::try_from(options.transpose_a) {
        Ok(Transpose::NoTranspose) => "NO_TRANSPOSE",
        Ok(Transpose::Transpose) => "TRANSPOSE",
        Ok(Transpose::Adjoint) => "ADJOINT",
        _ => return malformed(format!("its transpose {} is unknown", options.transpose_a)),
    };
    Ok(vec![
        ("left_side", options.left_side.to_string()),
        ("lower", options.lower.to_string()),
        ("unit_diagonal", options.unit_diagonal.to_string()),
        ("transpose_a", format!("#stablehlo<transpose {transpose}>")),
    ])
}

/// Refuses the form in which one operand has all the positions at which a slice starts.
fn starts_are_scalars(scope: &Scope<'_>, instruction: &HloInstructionProto, first: usize) -> Result<()> {
    let is_scalar = |shape: &ShapeProto| shape.dimensions.is_empty();
    for index in first..instruction.operand_ids.len() {
        if !is_scalar(scope.operand_shape(instruction, index)?) {
            return no_form("one operand has all its start indices; give each index as a scalar operand");
        }
    }
    Ok(())
}

/// More devices than any real program has; a few bytes may claim any number of them.
const MAX_DEVICES: u64 = 1 << 20;

/// The groups of a collective as a matrix; shorter ones are filled up with -1.
fn groups(instruction: &HloInstructionProto) -> Result<String> {
    let groups = DeviceGroups::of(instruction);
    let devices = match &groups {
        DeviceGroups::One => return Ok("dense<> : tensor<0x0xi64>".to_owned()),
        DeviceGroups::Iota { dims, .. } => dims.iter().fold(1, |product: u64, &size| product.saturating_mul(size)),
        DeviceGroups::Lists(lists) => (lists.len() as u64).saturating_mul(groups.size().unwrap_or(0)),
        DeviceGroups::Unreadable => return malformed("its groups of devices cannot be read"),
    };
    if devices > MAX_DEVICES {
        return malformed(format!("its groups have {devices} members, and {MAX_DEVICES} are written at most"));
    }
    let Some(lists) = groups.lists() else { return malformed("its groups of devices cannot be read") };
    let size = lists.iter().map(Vec::len).max().unwrap_or(0);
    let row = |list: &Vec<u64>| {
        let mut row: Vec<i64> = list.iter().map(|&device| device as i64).collect();
        row.resize(size, -1);
        row
    };
    Ok(matrix(&lists.iter().map(row).collect::<Vec<_>>(), size))
}

/// Members of the groups of an all-to-all, which says into how many parts it splits.
fn group_size(instruction: &HloInstructionProto) -> Result<i64> {
    match DeviceGroups::of(instruction).size() {
        Some(size) => Ok(size as i64),
        None => no_form("it is among all devices without saying how many they are; state its groups"),
    }
}
