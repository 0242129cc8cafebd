//! Custom calls: kernels, functions of other languages, and what XLA has beyond StableHLO.

use super::attributes::{Attributes, brackets, layout, number, quoted};
use super::error::{Result, malformed, no_form};
use super::printer::{Leaf, Op, Printer, Scope, Value, shape_of};
use super::types::{self, Type, is_token, is_tuple};
use crate::braces::braced_length;
use crate::proto::payload::PayloadSource;
use crate::proto::{CustomCallApiVersion, HloInstructionProto, OutputOperandAliasing, PaddingType, ShapeProto};

/// The calling convention in which the configuration is a dictionary.
const TYPED: i32 = CustomCallApiVersion::ApiVersionTypedFfi as i32;

impl<'a> Printer<'a, '_> {
    pub(super) fn custom_call(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let is_of_convolution = instruction.window.is_some()
            || instruction.convolution_dimension_numbers.is_some()
            || instruction.feature_group_count > 1
            || instruction.batch_group_count > 1
            || instruction.padding_type != PaddingType::PaddingInvalid as i32;
        // Readers of text state the default for each operand.
        let is_precise = instruction.precision_config.as_deref().is_some_and(|config| {
            config.algorithm != 0 || config.operand_precision.iter().any(|&precision| precision != 0)
        });
        if is_of_convolution || instruction.literal.is_some() || is_precise {
            return no_form(
                "a custom call of StableHLO has neither a window, a precision nor a literal; state them in its \
                 configuration",
            );
        }
        let mut operands = Vec::with_capacity(instruction.operand_ids.len());
        for index in 0..instruction.operand_ids.len() {
            let value = scope.operand(instruction, index)?;
            let shape = scope.operand_shape(instruction, index)?;
            match is_tuple(shape) {
                true => operands.extend(self.pack(instruction, shape, &mut value.into_iter())?),
                false => operands.extend(value),
            }
        }
        let version = match instruction.custom_call_api_version {
            0 => CustomCallApiVersion::ApiVersionOriginal as i32,
            version => version,
        };
        let configuration = self.configuration(instruction, version)?;
        let has_side_effect = instruction.custom_call_has_side_effect;
        let mut attributes = callee(&instruction.custom_call_target, version, has_side_effect, configuration);
        attributes.extend(self.called_functions(instruction)?);
        attributes.extend(layouts(instruction)?);
        attributes.extend(aliases(instruction));
        self.call_foreign(instruction, &operands, attributes, self.common(instruction))
    }

    /// A custom call that XLA reads as an op of its own, which StableHLO does not have.
    pub(super) fn extension(
        &mut self,
        scope: &Scope<'a>,
        instruction: &'a HloInstructionProto,
        name: &str,
        own: &[(&str, String)],
    ) -> Result<Value> {
        let operands = scope.operands(instruction)?;
        let results = types::leaves(shape_of(instruction)?)?;
        let own: Vec<String> = own.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let mut discardable = self.common(instruction);
        discardable.push(("mhlo.attributes", format!("{{{}}}", own.join(", "))));
        discardable.push(("mhlo.version", number(1)));
        let attributes = vec![("call_target_name", quoted(format!("mhlo.{name}").as_bytes()))];
        let op = Op::new("stablehlo.custom_call", &operands, &results).with(attributes);
        self.op(instruction, op.marked(discardable))
    }

    /// Writes the call that tells the partitioner how a value is sharded.
    pub(super) fn sharded(&mut self, scope: &Scope<'a>, instruction: &'a HloInstructionProto) -> Result<Value> {
        let operands = scope.operands(instruction)?;
        let version = CustomCallApiVersion::ApiVersionOriginal as i32;
        let attributes = callee("Sharding", version, false, quoted(b""));
        self.call_foreign(instruction, &operands, attributes, self.common(instruction))
    }

    fn call_foreign(
        &mut self,
        instruction: &'a HloInstructionProto,
        operands: &Value,
        attributes: Attributes,
        discardable: Attributes,
    ) -> Result<Value> {
        let shape = shape_of(instruction)?;
        let is_flat = !shape.tuple_shapes.iter().any(is_tuple) && shape.tuple_shapes.len() != 1;
        if is_flat {
            let results = types::leaves(shape)?;
            let op = Op::new("stablehlo.custom_call", operands, &results).with(attributes);
            return self.op(instruction, op.marked(discardable));
        }
        // Several results are a plain tuple to the callee, so this one stays what it is.
        let packed = [types::packed(shape)?];
        let op = Op::new("stablehlo.custom_call", operands, &packed).with(attributes);
        let tuple = self.op(instruction, op.marked(discardable))?;
        self.unpack(instruction, shape, tuple)
    }

    /// One value of a tuple of arrays.
    fn pack(
        &mut self,
        instruction: &'a HloInstructionProto,
        shape: &ShapeProto,
        leaves: &mut dyn Iterator<Item = Leaf>,
    ) -> Result<Value> {
        if !is_tuple(shape) {
            return match leaves.next() {
                Some(leaf) => Ok(vec![leaf]),
                None => malformed("an operand has another shape than it states"),
            };
        }
        let mut parts = Vec::with_capacity(shape.tuple_shapes.len());
        for part in &shape.tuple_shapes {
            parts.extend(self.pack(instruction, part, leaves)?);
        }
        self.op(instruction, Op::new("stablehlo.tuple", &parts, &[types::packed(shape)?]))
    }

    /// The arrays of a tuple.
    fn unpack(&mut self, instruction: &'a HloInstructionProto, shape: &ShapeProto, value: Value) -> Result<Value> {
        if !is_tuple(shape) {
            return Ok(value);
        }
        let mut leaves = Vec::new();
        for (index, part) in shape.tuple_shapes.iter().enumerate() {
            let ty: [Type; 1] = [types::packed(part)?];
            let attributes = vec![("index", format!("{index} : i32"))];
            let op = Op::new("stablehlo.get_tuple_element", &value, &ty).with(attributes);
            let element = self.op(instruction, op)?;
            leaves.extend(self.unpack(instruction, part, element)?);
        }
        Ok(leaves)
    }

    /// The configuration: a string, or in the newest convention a dictionary.
    fn configuration(&self, instruction: &HloInstructionProto, version: i32) -> Result<String> {
        let payload = instruction.backend_config_payload.as_deref().and_then(|payload| payload.payload_source.as_ref());
        let bytes: &[u8] = match payload {
            Some(PayloadSource::Value(value)) => value,
            Some(PayloadSource::Id(id)) => {
                match usize::try_from(*id).ok().and_then(|id| self.module.payloads.get(id)) {
                    Some(payload) => payload,
                    None => {
                        return malformed(format!("its configuration is payload {id}, which the module does not have"));
                    }
                }
            }
            None => &instruction.backend_config,
        };
        if version != TYPED {
            return Ok(quoted(bytes));
        }
        if bytes.is_empty() {
            return Ok("{}".to_owned());
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if braced_length(bytes) == Some(bytes.len()) => Ok(text.to_owned()),
            _ => malformed(
                "its calling convention takes a dictionary `{name = value}` as configuration, and it has none",
            ),
        }
    }

    fn called_functions(&mut self, instruction: &HloInstructionProto) -> Result<Attributes> {
        if instruction.called_computation_ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids = instruction.called_computation_ids.iter();
        let symbols = ids.map(|&id| self.function_symbol(id)).collect::<Result<Vec<String>>>()?;
        Ok(vec![("called_computations", format!("[{}]", symbols.join(", ")))])
    }
}

/// The attributes of a custom call that describe its callee.
fn callee(target: &str, version: i32, has_side_effect: bool, configuration: String) -> Attributes {
    vec![
        ("call_target_name", quoted(target.as_bytes())),
        ("api_version", format!("{version} : i32")),
        ("has_side_effect", has_side_effect.to_string()),
        ("backend_config", configuration),
    ]
}

/// The layouts that the callee asks for, if it does.
fn layouts(instruction: &HloInstructionProto) -> Result<Attributes> {
    fn order(shape: &ShapeProto) -> Result<String> {
        if is_tuple(shape) {
            return no_form("its layouts are those of a tuple; give it the arrays one by one");
        }
        if is_token(shape) {
            return Ok(layout(&[]));
        }
        let stated = shape.layout.as_ref().map(|layout| &layout.minor_to_major);
        match stated.filter(|order| order.len() == shape.dimensions.len()) {
            Some(order) => Ok(layout(order)),
            None => Ok(layout(&(0..shape.dimensions.len() as i64).rev().collect::<Vec<_>>())),
        }
    }
    if !instruction.constrain_layout {
        return Ok(Vec::new());
    }
    let operands = instruction.operand_shapes_with_layout.iter().map(order).collect::<Result<Vec<_>>>()?;
    let shape = shape_of(instruction)?;
    let results = match is_tuple(shape) {
        true => shape.tuple_shapes.iter().map(order).collect::<Result<Vec<_>>>()?,
        false => vec![order(shape)?],
    };
    Ok(vec![
        ("operand_layouts", format!("[{}]", operands.join(", "))),
        ("result_layouts", format!("[{}]", results.join(", "))),
    ])
}

/// The attribute that pairs results with the operands whose buffers they take.
fn aliases(instruction: &HloInstructionProto) -> Attributes {
    if instruction.output_operand_aliasing.is_empty() {
        return Vec::new();
    }
    let alias = |alias: &OutputOperandAliasing| {
        format!(
            "#stablehlo.output_operand_alias<output_tuple_indices = {}, operand_index = {}, \
             operand_tuple_indices = {}>",
            brackets(&alias.output_shape_index),
            alias.operand_index,
            brackets(&alias.operand_shape_index)
        )
    };
    let aliases: Vec<String> = instruction.output_operand_aliasing.iter().map(alias).collect();
    vec![("output_operand_aliases", format!("[{}]", aliases.join(", ")))]
}
