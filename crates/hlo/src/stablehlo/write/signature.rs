//! The head of the module, and those of its functions.

use super::attributes::{Attributes, array, brackets, dictionary, quoted};
use super::error::{Result, WriteError};
use super::printer::{Printer, Signature, Value, parameter_shapes, parameters, shape_of};
use super::types::{self, Type};
use crate::proto::hlo_input_output_alias_proto::AliasEntryProto;
use crate::proto::{HloComputationProto, HloInstructionProto, Kind, OpSharding, ShapeProto};
use crate::stablehlo::names::HOST_MEMORY;

/// An array of a parameter, by their numbers, and the attribute that gives its buffer away.
type Given = ((i64, usize), (&'static str, String));

impl<'a> Printer<'a, '_> {
    /// The attributes of the module.
    pub(super) fn header(&self) -> Attributes {
        let mut attributes = vec![
            ("mhlo.num_partitions", format!("{} : i32", self.options.partitions)),
            ("mhlo.num_replicas", format!("{} : i32", self.options.replicas)),
        ];
        if let Some(frontend) = self.module.frontend_attributes.as_ref().filter(|frontend| !frontend.map.is_empty()) {
            attributes.push(("mhlo.frontend_attributes", dictionary(&frontend.map)));
        }
        let must: Vec<String> = self.aliases_of(Kind::MustAlias).filter_map(|alias| self.must_alias(alias)).collect();
        if !must.is_empty() {
            attributes.push(("mhlo.input_output_alias", format!("[{}]", must.join(", "))));
        }
        attributes
    }

    /// The head of a function, and the values of its parameters. The entry, which has no name of its own, also
    /// states the buffers that its results take, and how its parameters and results are sharded.
    pub(super) fn signature(
        &mut self,
        computation: &'a HloComputationProto,
        name: Option<&str>,
    ) -> std::result::Result<(Signature, Vec<Value>), WriteError> {
        let is_entry = name.is_none();
        let root = computation.instructions.iter().find(|instruction| instruction.id == computation.root_id);
        let Some(root) = root else {
            let problem = format!("computation {:?} has no root", computation.name);
            return Err(WriteError::MalformedModule { problem });
        };
        let result_shape = shape_of(root).map_err(|fault| fault.at(computation, root))?;
        let results = types::leaves(result_shape).map_err(|fault| fault.at(computation, root))?;
        let mut values = Vec::new();
        let mut arguments = Vec::new();
        let aliases = if is_entry { self.aliases(result_shape)? } else { Vec::new() };
        for parameter in parameters(computation)? {
            let value = self.parameter(parameter).map_err(|fault| fault.at(computation, parameter))?;
            let program = self.module.host_program_shape.as_ref().filter(|_| is_entry);
            let number = usize::try_from(parameter.parameter_number).ok();
            let shape = program.and_then(|program| program.parameters.get(number?));
            let shapes = shape.map(types::leaf_shapes).unwrap_or_default();
            let location = self.location(parameter);
            for (leaf, argument) in value.iter().enumerate() {
                let mut attributes = Vec::new();
                if is_entry {
                    attributes = parameter_attributes(parameter, leaf, value.len());
                    attributes.extend(shapes.get(leaf).and_then(|shape| layout_attribute(shape)));
                    let place = (parameter.parameter_number, leaf);
                    let taken = aliases.iter().filter(|(parameter, _)| *parameter == place);
                    attributes.extend(taken.map(|(_, attribute)| attribute.clone()));
                }
                arguments.push((argument.clone(), attributes, location.clone()));
            }
            values.push(value);
        }
        let program = self.module.host_program_shape.as_ref().filter(|_| is_entry);
        let result_shape = program.and_then(|program| program.result.as_ref());
        let result_shapes = result_shape.map(types::leaf_shapes).unwrap_or_default();
        let result = |(index, ty): (usize, &Type)| {
            let mut attributes = Vec::new();
            if is_entry {
                let sharding = root.sharding.as_deref();
                let sharding = sharding.and_then(|sharding| leaf_sharding(sharding, index, results.len()));
                attributes.extend(sharding.map(sharding_attribute));
                attributes.extend(result_shapes.get(index).and_then(|shape| layout_attribute(shape)));
            }
            (ty.clone(), attributes)
        };
        let results = results.iter().enumerate().map(result).collect();
        let name = name.unwrap_or("main").to_owned();
        Ok((Signature { name, is_public: is_entry, arguments, results }, values))
    }

    fn aliases_of(&self, kind: Kind) -> impl Iterator<Item = &AliasEntryProto> {
        let aliases = self.module.input_output_alias.iter().flat_map(|aliases| &aliases.entries);
        aliases.filter(move |alias| alias.kind == kind as i32)
    }

    /// A result that has to take the buffer of a parameter, as XLA's module attribute says it: by the numbers that they
    /// have when all tuples are taken apart. The result is `None` where there is no such result or parameter; other
    /// code reports that.
    fn must_alias(&self, alias: &AliasEntryProto) -> Option<String> {
        let entry = self.computation(self.module.entry_computation_id).ok()?;
        let root = entry.instructions.iter().find(|instruction| instruction.id == entry.root_id)?;
        let result = root.shape.as_ref()?;
        let (output, _) = types::at_index(result, &alias.output_shape_index)?;
        // One result is not a tuple of one.
        let output = if types::leaf_count(result) == 1 { Vec::new() } else { vec![output as i64] };
        let number = usize::try_from(alias.parameter_number).ok()?;
        let shapes = parameter_shapes(entry).ok()?;
        let (within, _) = types::at_index(shapes.get(number)?, &alias.parameter_shape_index)?;
        let argument = shapes.iter().take(number).map(|shape| types::leaf_count(shape)).sum::<usize>() + within;
        Some(format!(
            "{{alias = {{kind = \"must_alias\", parameter_index = array<i64>, parameter_number = {argument} : i64}}, \
             output_index = {}}}",
            array(&output)
        ))
    }

    fn parameter(&mut self, parameter: &HloInstructionProto) -> Result<Value> {
        let types = types::leaves(shape_of(parameter)?)?;
        Ok(types.into_iter().map(|ty| self.argument(ty)).collect())
    }

    /// The attribute of each array of a parameter whose buffer a result may take, or that is given away.
    fn aliases(&self, result: &ShapeProto) -> std::result::Result<Vec<Given>, WriteError> {
        let mut found: Vec<Given> = Vec::new();
        let wrong = |problem: String| WriteError::MalformedModule { problem };
        let parameter = |number: i64, index: &[i64]| {
            let entry = self.computation(self.module.entry_computation_id).ok();
            let parameter = entry.and_then(|entry| {
                entry.instructions.iter().find(|found| found.opcode == "parameter" && found.parameter_number == number)
            });
            let place = parameter.and_then(|found| types::at_index(found.shape.as_ref()?, index));
            match place {
                Some((leaf, _)) => Ok((number, leaf)),
                None => Err(wrong(format!(
                    "it gives away the buffer of parameter {number} at {}, which it does not have",
                    brackets(index)
                ))),
            }
        };
        for alias in self.module.input_output_alias.iter().flat_map(|aliases| &aliases.entries) {
            let Some((output, _)) = types::at_index(result, &alias.output_shape_index) else {
                let index = brackets(&alias.output_shape_index);
                return Err(wrong(format!("it has an alias of result {index}, which it does not have")));
            };
            let place = parameter(alias.parameter_number, &alias.parameter_shape_index)?;
            // Aliases that are required are written on the module.
            if alias.kind == Kind::MustAlias as i32 {
                continue;
            }
            if found.iter().any(|(taken, _)| *taken == place) {
                return Err(wrong(format!("two results alias parameter {}", alias.parameter_number)));
            }
            found.push((place, ("tf.aliasing_output", format!("{output} : i32"))));
        }
        for donor in self.module.buffer_donor.iter().flat_map(|donors| &donors.entries) {
            let place = parameter(donor.parameter_number, &donor.parameter_shape_index)?;
            found.push((place, ("jax.buffer_donor", "true".to_owned())));
        }
        Ok(found)
    }
}

/// The attributes of an array of a parameter of the entry: its sharding, its memory, its frontend attributes.
fn parameter_attributes(parameter: &HloInstructionProto, leaf: usize, leaves: usize) -> Attributes {
    let mut attributes = Vec::new();
    let sharding = parameter.sharding.as_deref();
    attributes.extend(sharding.and_then(|sharding| leaf_sharding(sharding, leaf, leaves)).map(sharding_attribute));
    if let Some(frontend) = parameter.frontend_attributes.as_ref().filter(|frontend| !frontend.map.is_empty()) {
        attributes.push(("mhlo.frontend_attributes", dictionary(&frontend.map)));
    }
    let layout = parameter.shape.as_ref().and_then(|shape| shape.layout.as_ref());
    let (number, name) = HOST_MEMORY;
    if layout.is_some_and(|layout| layout.memory_space == number) {
        attributes.push(("mhlo.memory_kind", format!("\"{name}\"")));
    }
    attributes
}

/// The layout of an array of a parameter or result of the program, if it is not row-major.
fn layout_attribute(shape: &ShapeProto) -> Option<(&'static str, String)> {
    let layout = shape.layout.as_ref()?;
    let is_row_major = layout.minor_to_major.windows(2).all(|pair| pair[0] > pair[1]);
    let order: Vec<String> = layout.minor_to_major.iter().map(i64::to_string).collect();
    (!is_row_major).then(|| ("mhlo.layout_mode", format!("\"{{{}}}\"", order.join(","))))
}

/// The sharding of one array of several that have a sharding together.
fn leaf_sharding(sharding: &OpSharding, leaf: usize, leaves: usize) -> Option<&OpSharding> {
    match sharding.tuple_shardings.as_slice() {
        [] => Some(sharding),
        shardings if shardings.len() == leaves => shardings.get(leaf),
        _ => None,
    }
}

fn sharding_attribute(sharding: &OpSharding) -> (&'static str, String) {
    ("mhlo.sharding", quoted(crate::text::print_sharding(sharding).as_bytes()))
}
