//! The op that each opcode becomes.

use super::attributes::{
    self, Attributes, array, brackets, dilations, dimension_numbers, field, matrix, number, window, window_of,
    window_reversal, window_sizes,
};
use super::control;
use super::error::{Result, malformed, no_form};
use super::literal::Dense;
use super::printer::{Op, Parameters, Printer, Region, Scope, Value, shape_of};
use super::types::{self, at_index, leaf_count};
use crate::device_groups::DeviceGroups;
use crate::opcode;
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{
    ConvolutionDimensionNumbers, DotDimensionNumbers, FftType, HloInstructionProto, RandomAlgorithm,
    RandomDistribution, ShapeProto, SparsityConfig, WindowDimension,
};
use crate::stablehlo::names;
use crate::syntax::default_comparison;
use crate::syntax::opcodes::{Mark, Operation};

impl<'a> Printer<'a, '_> {
    /// Writes an instruction; gives its value.
    pub(super) fn operation(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        match instruction.opcode.as_str() {
            "tuple" => scope.operands(instruction),
            "get-tuple-element" => element(scope, instruction),
            "constant" => self.constant(instruction),
            // Where a value lies is the compiler's business, how it is sharded is not.
            "copy" if instruction.sharding.is_some() => self.sharded(scope, instruction),
            "copy" => scope.operand(instruction, 0),
            "conditional" => self.conditional(scope, instruction),
            "call" => self.call(scope, instruction),
            "custom-call" => self.custom_call(scope, instruction),
            "rng" => self.random(scope, instruction),
            "topk" => {
                let own = [("k", number(instruction.k)), ("largest", instruction.largest.to_string())];
                self.extension(scope, instruction, "topk", &own)
            }
            opcode => match own_attributes(scope, instruction, opcode)? {
                Some(attributes) => self.attributed(scope, instruction, attributes),
                None => self.plain(scope, instruction, opcode),
            },
        }
    }

    /// An op that takes the operands of the instruction, and whose called computations are regions with arguments of
    /// their own.
    fn attributed(
        &mut self,
        scope: &Scope<'a>,
        instruction: &'a HloInstructionProto,
        attributes: Attributes,
    ) -> Result<Value> {
        let name = match instruction.opcode.as_str() {
            "broadcast" => "stablehlo.broadcast_in_dim".to_owned(),
            "dot" => "stablehlo.dot_general".to_owned(),
            "opt-barrier" => "stablehlo.optimization_barrier".to_owned(),
            "ragged-dot" => "chlo.ragged_dot".to_owned(),
            opcode => format!("stablehlo.{}", opcode.replace('-', "_")),
        };
        let called: &[usize] = match instruction.opcode.as_str() {
            // HLO has the body first.
            "while" => &[1, 0],
            "select-and-scatter" => &[0, 1],
            "all-reduce" | "map" | "reduce" | "reduce-scatter" | "reduce-window" | "scatter" | "sort" => &[0],
            _ => &[],
        };
        let region = |&index: &usize| {
            Ok(Region { computation: control::called(instruction, index)?, parameters: Parameters::Arguments })
        };
        let regions = called.iter().map(region).collect::<Result<_>>()?;
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        let op = Op::new(&name, &operands, &results).with(attributes).over(regions);
        self.op(instruction, op.marked(self.common(instruction)))
    }

    /// An op that carries nothing but operands.
    fn plain(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto, opcode: &str) -> Result<Value> {
        let Some(name) = names::name(opcode) else { return no_form(instead_of(opcode)) };
        if let Some(later) = name.strip_prefix("chlo.") {
            return self.extension(scope, instruction, later, &[]);
        }
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        let accuracy = attributes::accuracy(instruction).map(|accuracy| ("result_accuracy", accuracy));
        let op = Op::new(&name, &operands, &results).with(accuracy.into_iter().collect());
        let op = op.marked(self.common(instruction));
        let is_elementwise = Operation::has_mark(opcode, Mark::Same)
            && (opcode::is_arithmetic(opcode) || opcode::is_transcendental(opcode));
        self.op(instruction, if is_elementwise { op.elementwise() } else { op })
    }

    fn constant(&mut self, instruction: &'a HloInstructionProto) -> Result<Value> {
        let Some(value) = instruction.literal.as_deref() else { return malformed("a constant has no value") };
        let shape = value.shape.as_ref().map_or_else(|| shape_of(instruction), Ok)?;
        if types::is_tuple(shape) {
            return no_form("a constant of several arrays; make them constants of their own, and a tuple of those");
        }
        let value = Dense::of(value, shape)?;
        let Some(element) = value.large_splat() else { return self.constant_op(instruction, value) };
        let one = self.constant_op(instruction, element)?;
        let attributes = vec![("broadcast_dimensions", array(&[]))];
        self.op(instruction, Op::new("stablehlo.broadcast_in_dim", &one, &[value.ty]).with(attributes))
    }

    /// Random numbers of the state that the device keeps. The shape is an operand.
    fn random(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let distribution = match RandomDistribution::try_from(instruction.distribution) {
            Ok(known @ (RandomDistribution::RngUniform | RandomDistribution::RngNormal)) => word(known.as_str_name()),
            _ => return malformed(format!("its distribution {} is unknown", instruction.distribution)),
        };
        let shape = shape_of(instruction)?;
        let mut operands = scope.operands(instruction)?;
        operands.extend(self.constant_op(instruction, Dense::numbers(&shape.dimensions))?);
        let results = [types::leaf(shape)?];
        let attributes = vec![("rng_distribution", format!("#stablehlo<rng_distribution {distribution}>"))];
        let op = Op::new("stablehlo.rng", &operands, &results).with(attributes);
        self.op(instruction, op.marked(self.common(instruction)))
    }
}

/// The word that StableHLO has for a number, by its name in a proto.
fn word(name: &'static str) -> &'static str {
    name.strip_prefix("RNG_").unwrap_or(name)
}

fn collective(instruction: &HloInstructionProto) -> Result<Attributes> {
    let opcode = instruction.opcode.as_str();
    let operand_count = instruction.operand_ids.len();
    let mut attributes = Vec::new();
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
            return no_form("only gathers and reductions may number devices globally; leave use_global_device_ids out");
        }
        attributes.push(("use_global_device_ids", String::new()));
    }
    Ok(attributes)
}

/// The attributes of an opcode that has some of its own or calls computations; `None` for other opcodes.
fn own_attributes(scope: &Scope<'_>, instruction: &HloInstructionProto, opcode: &str) -> Result<Option<Attributes>> {
    let dimension = || match instruction.dimensions.as_slice() {
        &[dimension] => Ok(number(dimension)),
        several => malformed(format!("one dimension is expected, {} are found", several.len())),
    };
    Ok(Some(match opcode {
        "all-gather"
        | "all-reduce"
        | "all-to-all"
        | "collective-broadcast"
        | "collective-permute"
        | "reduce-scatter" => collective(instruction)?,
        "batch-norm-grad" | "batch-norm-inference" | "batch-norm-training" => normalization(instruction),
        "broadcast" => vec![("broadcast_dimensions", array(&instruction.dimensions))],
        "cholesky" => {
            let is_lower = instruction.cholesky_options.as_ref().is_some_and(|options| options.lower);
            vec![("lower", is_lower.to_string())]
        }
        "compare" => comparison(scope, instruction)?,
        "concatenate" | "get-dimension-size" | "set-dimension-size" => vec![("dimension", dimension()?)],
        "convolution" => convolution(scope, instruction)?,
        "dot" => dot(instruction)?,
        "dynamic-slice" => {
            starts_are_scalars(scope, instruction, 1)?;
            vec![("slice_sizes", array(&instruction.dynamic_slice_sizes))]
        }
        "dynamic-update-slice" => {
            starts_are_scalars(scope, instruction, 2)?;
            return Ok(None);
        }
        "fft" => {
            let Ok(ty) = FftType::try_from(instruction.fft_type) else {
                return malformed(format!("its type {} is unknown", instruction.fft_type));
            };
            let ty = format!("#stablehlo<fft_type {}>", ty.as_str_name());
            vec![("fft_type", ty), ("fft_length", array(&instruction.fft_length))]
        }
        "gather" => gather(instruction)?,
        "iota" => vec![("iota_dimension", dimension()?)],
        "map" => {
            let rank = shape_of(instruction)?.dimensions.len() as i64;
            vec![("dimensions", array(&(0..rank).collect::<Vec<_>>()))]
        }
        "opt-barrier" | "while" => Vec::new(),
        "pad" => padding(instruction),
        "ragged-dot" => ragged_dot(instruction)?,
        "reduce" | "reverse" => vec![("dimensions", array(&instruction.dimensions))],
        "reduce-precision" => {
            let bits = |bits: i32| format!("{bits} : i32");
            let exponent = ("exponent_bits", bits(instruction.exponent_bits));
            vec![exponent, ("mantissa_bits", bits(instruction.mantissa_bits))]
        }
        "reduce-window" => reduce_window(scope, instruction)?,
        "rng-bit-generator" => {
            let Ok(algorithm) = RandomAlgorithm::try_from(instruction.rng_algorithm) else {
                return no_form(format!("algorithm {} is not one of StableHLO's", instruction.rng_algorithm));
            };
            vec![("rng_algorithm", format!("#stablehlo<rng_algorithm {}>", word(algorithm.as_str_name())))]
        }
        "scatter" => scatter(instruction)?,
        "select-and-scatter" => select_and_scatter(scope, instruction)?,
        "slice" => {
            let dimensions = &instruction.slice_dimensions;
            vec![
                ("start_indices", field(dimensions, |dimension| dimension.start)),
                ("limit_indices", field(dimensions, |dimension| dimension.limit)),
                ("strides", field(dimensions, |dimension| dimension.stride)),
            ]
        }
        "sort" => vec![("dimension", dimension()?), ("is_stable", instruction.is_stable.to_string())],
        "transpose" => vec![("permutation", array(&instruction.dimensions))],
        "triangular-solve" => triangular_solve(instruction)?,
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
    let mut attributes = vec![("dot_dimension_numbers", numbered("stablehlo.dot", numbers, &[]))];
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

fn reduce_window(scope: &Scope<'_>, instruction: &HloInstructionProto) -> Result<Attributes> {
    let rank = scope.operand_shape(instruction, 0)?.dimensions.len();
    let dimensions = window_of(instruction, rank)?;
    if dimensions.iter().any(|dimension| dimension.window_reversal) {
        return no_form("its window is reversed; reverse the operand and the result");
    }
    let mut attributes = vec![("window_dimensions", window_sizes(dimensions))];
    attributes.extend(window(dimensions));
    attributes.extend(dilations(dimensions, ["base_dilations", "window_dilations"]));
    Ok(attributes)
}

fn select_and_scatter(scope: &Scope<'_>, instruction: &HloInstructionProto) -> Result<Attributes> {
    let rank = scope.operand_shape(instruction, 0)?.dimensions.len();
    let dimensions = window_of(instruction, rank)?;
    let is_changed = |of: &WindowDimension| of.base_dilation > 1 || of.window_dilation > 1 || of.window_reversal;
    if dimensions.iter().any(is_changed) {
        return no_form("its window is dilated or reversed; write it as a reduce-window and a scatter");
    }
    let mut attributes = vec![("window_dimensions", window_sizes(dimensions))];
    attributes.extend(window(dimensions));
    Ok(attributes)
}

fn scatter(instruction: &HloInstructionProto) -> Result<Attributes> {
    let Some(numbers) = instruction.scatter_dimension_numbers.as_deref() else {
        return malformed("it has no dimension numbers");
    };
    let dimension_numbers = dimension_numbers(
        "scatter",
        &[
            ("update_window_dims", &numbers.update_window_dims),
            ("inserted_window_dims", &numbers.inserted_window_dims),
            ("input_batching_dims", &numbers.input_batching_dims),
            ("scatter_indices_batching_dims", &numbers.scatter_indices_batching_dims),
            ("scatter_dims_to_operand_dims", &numbers.scatter_dims_to_operand_dims),
        ],
        numbers.index_vector_dim,
    );
    Ok(vec![
        ("scatter_dimension_numbers", dimension_numbers),
        ("indices_are_sorted", instruction.indices_are_sorted.to_string()),
        ("unique_indices", instruction.unique_indices.to_string()),
    ])
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
    let own = [
        ("lhs_ragged_dimensions", &numbers.lhs_ragged_dimensions),
        ("rhs_group_dimensions", &numbers.rhs_group_dimensions),
    ];
    let mut attributes = vec![("ragged_dot_dimension_numbers", numbered("chlo.ragged_dot", dot, &own))];
    attributes.extend(attributes::precision(instruction, "chlo")?.map(|precision| ("precision_config", precision)));
    Ok(attributes)
}

/// `#stablehlo.dot<lhs_batching_dimensions = [], ...>`.
fn numbered(name: &str, numbers: &DotDimensionNumbers, own: &[(&str, &Vec<i64>)]) -> String {
    let lists = [
        ("lhs_batching_dimensions", &numbers.lhs_batch_dimensions),
        ("rhs_batching_dimensions", &numbers.rhs_batch_dimensions),
        ("lhs_contracting_dimensions", &numbers.lhs_contracting_dimensions),
        ("rhs_contracting_dimensions", &numbers.rhs_contracting_dimensions),
    ];
    let parts: Vec<String> =
        lists.iter().chain(own).map(|(name, list)| format!("{name} = {}", brackets(list))).collect();
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
    // Newer XLA has the order in a field of its own.
    let kind = if kind == "FLOAT" && instruction.comparison_order == "TOTAL" { "TOTALORDER" } else { kind };
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
    vec![
        ("edge_padding_low", field(dimensions, |dimension| dimension.edge_padding_low)),
        ("edge_padding_high", field(dimensions, |dimension| dimension.edge_padding_high)),
        ("interior_padding", field(dimensions, |dimension| dimension.interior_padding)),
    ]
}

fn triangular_solve(instruction: &HloInstructionProto) -> Result<Attributes> {
    let options = instruction.triangular_solve_options.clone().unwrap_or_default();
    let transpose = match Transpose::try_from(options.transpose_a) {
        Ok(Transpose::Invalid) | Err(_) => {
            return malformed(format!("its transpose {} is unknown", options.transpose_a));
        }
        Ok(transpose) => transpose.as_str_name(),
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
