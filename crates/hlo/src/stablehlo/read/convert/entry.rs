//! The function that the program is: its arguments and results say how they are split and which buffers they share.

use rustc_hash::FxHashMap;

use super::super::attribute::{Attribute, Attributes, Value};
use super::super::operation::{Argument, Operation, Region};
use super::body::{Body, Site};
use super::{Converter, shardy};
use crate::parse::Result;
use crate::proto::hlo_buffer_donor_proto::BufferDonorEntryProto;
use crate::proto::hlo_input_output_alias_proto::AliasEntryProto;
use crate::proto::op_sharding::Type;
use crate::proto::{
    HloBufferDonorProto, HloInputOutputAliasProto, HloModuleProto, HloModuleProtoWithConfig, Kind, OpSharding,
    ProgramShapeProto, ShapeProto,
};
use crate::sort;
use crate::stablehlo::names::HOST_MEMORY;

/// The functions that a function calls at any depth, and itself, callees first.
pub(super) fn callees_first<'a, 'o>(
    entry: &'o Operation<'a>,
    functions: &FxHashMap<&'o str, &'o Operation<'a>>,
) -> Result<Vec<&'o str>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        Open,
        Done,
    }
    let name = entry.symbol(&["sym_name"])?;
    let mut states: FxHashMap<&'o str, State> = [(name, State::Open)].into_iter().collect();
    let mut order = Vec::new();
    let mut stack = vec![(name, callees(entry)?)];
    while let Some((name, waiting)) = stack.last_mut() {
        let Some((callee, caller)) = waiting.pop() else {
            states.insert(name, State::Done);
            order.push(*name);
            stack.pop();
            continue;
        };
        match states.get(callee) {
            Some(State::Done) => {}
            Some(State::Open) => {
                return caller.fault(format!("@{callee} calls itself, which a program of XLA cannot do"));
            }
            None => match functions.get(callee) {
                Some(function) => {
                    states.insert(callee, State::Open);
                    stack.push((callee, callees(function)?));
                }
                None => return caller.fault(format!("the text has no function @{callee} with a body")),
            },
        }
    }
    Ok(order)
}

/// A function that is called, and by which op.
type Call<'a, 'o> = (&'o str, &'o Operation<'a>);

/// The functions that one calls, the first last.
fn callees<'a, 'o>(function: &'o Operation<'a>) -> Result<Vec<Call<'a, 'o>>> {
    let mut found = Vec::new();
    let mut waiting: Vec<&'o Region<'a>> = function.regions.iter().collect();
    while let Some(region) = waiting.pop() {
        for operation in &region.operations {
            match operation.name.as_ref() {
                "func.call" => found.push((operation.symbol(&["callee", "symbol"])?, operation)),
                "stablehlo.composite" => found.push((operation.symbol(&["decomposition"])?, operation)),
                "mhlo.async_start" => found.push((operation.symbol(&["called_computation"])?, operation)),
                _ => {}
            }
            if let Some(called) = operation.attributes.get("called_computations") {
                for item in called.list("called_computations")? {
                    found.push((item.symbol("called_computations")?, operation));
                }
            }
            waiting.extend(&operation.regions);
        }
    }
    found.reverse();
    Ok(found)
}

impl<'a> Converter<'a, '_> {
    /// Converts the entry, the last computation, and what its signature says of the module.
    pub(super) fn entry(&mut self, function: &Operation<'a>) -> Result<HloModuleProtoWithConfig> {
        let region = function.region(0)?;
        let mut body = Body::default();
        let mut module = HloModuleProto::default();
        let (mut aliases, mut donors) = (Vec::new(), Vec::new());
        let result_count = function.types.results.as_ref().map_or(0, |results| results.len());
        let (argument_attributes, result_attributes) = signature_attributes(function)?;
        for (number, (argument, attributes)) in region.arguments.iter().zip(&argument_attributes).enumerate() {
            self.parameter(&mut body, argument, attributes)?;
            let number = number as i64;
            if let Some(result) = attributes.get("tf.aliasing_output") {
                let index = result.integer("tf.aliasing_output")?;
                // The only result is not in a tuple.
                let output_shape_index = if result_count == 1 { Vec::new() } else { vec![index] };
                let kind = Kind::MayAlias.into();
                aliases.push(AliasEntryProto {
                    output_shape_index,
                    parameter_number: number,
                    kind,
                    ..Default::default()
                });
            }
            if let Some(donor) = attributes.get("jax.buffer_donor")
                && donor.boolean("jax.buffer_donor")?
            {
                donors.push(BufferDonorEntryProto { parameter_number: number, ..Default::default() });
            }
        }
        sort::by(&mut aliases, |one, other| one.output_shape_index.cmp(&other.output_shape_index));
        module.input_output_alias = (!aliases.is_empty()).then_some(HloInputOutputAliasProto { entries: aliases });
        module.buffer_donor = (!donors.is_empty()).then_some(HloBufferDonorProto { entries: donors });
        let results = self.block(&mut body, region, function)?;
        let root = self.results(&mut body, &results, &result_attributes)?;
        let name = self.function_name(function)?;
        self.add(body, name, root);
        Ok(HloModuleProtoWithConfig { hlo_module: Some(module), config: None })
    }

    /// `mhlo.input_output_alias` of the module, with the aliases that are a must: `[{alias = {kind = "must_alias",
    /// parameter_index = array<i64>, parameter_number = 1 : i64}, output_index = array<i64: 1>}]`.
    pub(super) fn stated_aliases(&self, attribute: &Attribute<'a>) -> Result<Vec<AliasEntryProto>> {
        const NAME: &str = "mhlo.input_output_alias";
        let expected = "[{alias = {kind = \"must_alias\", ...}, output_index = array<i64>}]";
        let field = |item: &Attribute<'a>, name: &str| match &item.value {
            Value::Dictionary(fields) => match fields.get(name) {
                Some(field) => Ok(field.clone()),
                None => item.fault(NAME, expected),
            },
            _ => item.fault(NAME, expected),
        };
        let entry = |item: &Attribute<'a>| {
            let alias = field(item, "alias")?;
            let kind = match field(&alias, "kind")?.string("kind")?.as_str() {
                "must_alias" => Kind::MustAlias,
                _ => Kind::MayAlias,
            };
            Ok(AliasEntryProto {
                output_shape_index: self.integers_of(&field(item, "output_index")?, "output_index")?,
                parameter_number: field(&alias, "parameter_number")?.integer("parameter_number")?,
                parameter_shape_index: self.integers_of(&field(&alias, "parameter_index")?, "parameter_index")?,
                kind: kind.into(),
            })
        };
        attribute.list(NAME)?.iter().map(entry).collect()
    }

    fn parameter(&mut self, body: &mut Body<'a>, argument: &Argument<'a>, attributes: &Attributes<'a>) -> Result<()> {
        body.metadata = self.frames.metadata(argument.location);
        let mut shape = ShapeProto::clone(&argument.shape);
        let (number, name) = HOST_MEMORY;
        if let (Some(kind), Some(layout)) = (attributes.get("mhlo.memory_kind"), &mut shape.layout)
            && kind.string("mhlo.memory_kind")? == name
        {
            layout.memory_space = number;
        }
        let place = body.parameter(argument.name, shape);
        body.define(argument.name, [place].into_iter().collect());
        let sharding = self.sharding(attributes)?;
        let mut map = self.frontend_attributes(attributes)?;
        let Some(instruction) = body.instructions.get_mut(place) else { return Ok(()) };
        if let Some((sharding, text)) = sharding {
            instruction.sharding = Some(sharding.into());
            map.map.extend(text.map(|text| (shardy::SHARDING.to_owned(), text)));
        }
        instruction.frontend_attributes = (!map.map.is_empty()).then_some(map);
        Ok(())
    }

    /// The sharding that an argument or a result states, and Shardy's text of it.
    fn sharding(&mut self, attributes: &Attributes<'a>) -> Result<Option<(OpSharding, Option<String>)>> {
        if let Some(attribute) = attributes.get("sdy.sharding") {
            let (sharding, text) = self.meshes.of_value(&mut self.parser, attribute, &self.manual)?;
            return Ok(Some((sharding, Some(text))));
        }
        match attributes.get("mhlo.sharding") {
            Some(attribute) => Ok(Some((shardy::from_text(attribute)?, None))),
            None => Ok(None),
        }
    }

    /// The root: the results, each behind a custom call that states Shardy's sharding of it, as XLA writes them.
    fn results(&mut self, body: &mut Body<'a>, results: &[Site], attributes: &[Attributes<'a>]) -> Result<Site> {
        let (mut places, mut shardings) = (Vec::new(), Vec::new());
        for (index, &place) in results.iter().enumerate() {
            let stated = attributes.get(index).map(|attributes| self.sharding(attributes)).transpose()?;
            let (sharding, text) = match stated {
                Some(Some((sharding, text))) => (Some(sharding), text),
                Some(None) | None => (None, None),
            };
            places.push(match text {
                Some(text) => shardy::result_sharding(body, place, &text),
                None => place,
            });
            shardings.push(sharding);
        }
        let has_shardings = shardings.iter().any(Option::is_some);
        let unknown = || OpSharding { r#type: Type::Unknown.into(), ..OpSharding::default() };
        let (root, sharding) = match (places.as_slice(), shardings.as_slice()) {
            (&[place], [sharding]) => match sharding {
                // A value may have a sharding of its own, so the result is not the value itself.
                Some(sharding) => {
                    let tuple = body.tuple(&[place]);
                    (body.elements(tuple).first().copied().unwrap_or(place), Some(sharding.clone()))
                }
                None => (place, None),
            },
            _ => {
                let tuple_shardings = shardings.into_iter().map(|sharding| sharding.unwrap_or_else(unknown)).collect();
                let all = OpSharding { r#type: Type::Tuple.into(), tuple_shardings, ..OpSharding::default() };
                (body.tuple(&places), has_shardings.then_some(all))
            }
        };
        if let (Some(sharding), Some(instruction)) = (sharding, body.instructions.get_mut(root)) {
            instruction.sharding = Some(sharding.into());
        }
        Ok(root)
    }
}

/// The attributes of the program's arguments, and of its results. The generic form has them beside the attributes of
/// the function.
fn signature_attributes<'a>(function: &Operation<'a>) -> Result<(Vec<Attributes<'a>>, Vec<Attributes<'a>>)> {
    let own = function.region(0)?.arguments.iter().map(|argument| &argument.attributes);
    let listed = dictionaries(&function.attributes, "arg_attrs");
    let arguments = own.enumerate().map(|(number, own)| listed.get(number).unwrap_or(own).clone()).collect();
    let results = match function.result_attributes.is_empty() {
        true => dictionaries(&function.attributes, "res_attrs"),
        false => function.result_attributes.clone(),
    };
    Ok((arguments, results))
}

/// Gives the arguments and results of the program the layouts that they state.
pub(super) fn set_layouts(function: &Operation<'_>, program: &mut ProgramShapeProto) -> Result<()> {
    let (arguments, results) = signature_attributes(function)?;
    for (shape, attributes) in program.parameters.iter_mut().zip(&arguments) {
        set_layout(shape, attributes)?;
    }
    match (&mut program.result, results.as_slice()) {
        (Some(result), [only]) => set_layout(result, only),
        (Some(result), several) => {
            let mut each = result.tuple_shapes.iter_mut().zip(several);
            each.try_for_each(|(shape, attributes)| set_layout(shape, attributes))
        }
        (None, _) => Ok(()),
    }
}

/// `mhlo.layout_mode = "{0,1}"`; `"default"` and `"auto"` leave the layout to the compiler.
fn set_layout(shape: &mut ShapeProto, attributes: &Attributes<'_>) -> Result<()> {
    const NAME: &str = "mhlo.layout_mode";
    let Some(stated) = attributes.get(NAME) else { return Ok(()) };
    let text = stated.string(NAME)?;
    let Some(list) = text.strip_prefix('{').and_then(|text| text.split('}').next()) else { return Ok(()) };
    let order: Option<Vec<i64>> = list.split(',').map(|number| number.trim().parse().ok()).collect();
    let rank = shape.dimensions.len();
    let is_order =
        |order: &Vec<i64>| order.len() == rank && (0..rank as i64).all(|dimension| order.contains(&dimension));
    match (order.filter(is_order), &mut shape.layout) {
        (Some(order), Some(layout)) => layout.minor_to_major = order,
        (None, _) if rank > 0 => return stated.fault(NAME, "an order of all dimensions, like \"{0,1}\","),
        _ => {}
    }
    Ok(())
}

/// The attributes by which XLA keeps that layouts are left to the compiler, which no shape says: `out_layout_modes =
/// "default;auto"`.
pub(super) fn layout_modes(function: &Operation<'_>) -> Result<Vec<(String, String)>> {
    const NAME: &str = "mhlo.layout_mode";
    let (arguments, results) = signature_attributes(function)?;
    let mut found = Vec::new();
    for (name, ports) in [("arg_layout_modes", &arguments), ("out_layout_modes", &results)] {
        let mode = |attributes: &Attributes<'_>| match attributes.get(NAME) {
            Some(stated) => Ok(stated.string(NAME)?.to_owned()),
            None => Ok("default".to_owned()),
        };
        let modes = ports.iter().map(mode).collect::<Result<Vec<String>>>()?;
        if modes.iter().any(|mode| mode == "auto") {
            found.push((name.to_owned(), modes.join(";")));
        }
    }
    Ok(found)
}

/// The dictionaries in the list that an attribute has; empty if there is no such attribute.
fn dictionaries<'a>(attributes: &Attributes<'a>, name: &str) -> Vec<Attributes<'a>> {
    let Some(Value::List(items)) = attributes.get(name).map(|attribute| &attribute.value) else { return Vec::new() };
    let dictionary = |item: &Attribute<'a>| match &item.value {
        Value::Dictionary(attributes) => attributes.clone(),
        _ => Attributes::default(),
    };
    items.iter().map(dictionary).collect()
}
