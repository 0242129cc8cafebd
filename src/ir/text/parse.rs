//! Reading graphs.

use std::sync::Arc;

use meshloom_hlo::TensorType;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::suggest::did_you_mean;
use rustc_hash::FxHashMap;

use super::reader::Result;
use super::{Attribute, OpReader, Reader};
use crate::ir::entities::{Name, Node, Origin, Value};
use crate::ir::graph::{AxisNames, Definition, Graph, NodeData, PortInfo, ValueData};
use crate::ir::spec::{Role, Spec};
use crate::ir::verify::verify_alone;
use crate::ops::Op;

/// How deeply bodies may be nested, so that no text exhausts the stack.
const DEEPEST: usize = 64;

/// The graphs of a text, as far as they have been read.
struct Parser<'t> {
    /// The place where each body begins, and the body once it is read.
    bodies: FxHashMap<u32, (Reader<'t>, Option<Arc<Graph>>)>,
    /// Numbers of the bodies that are being read.
    open: Vec<u32>,
}

pub(super) fn parse(text: &str) -> Result<Graph> {
    let mut reader = Reader::new(text);
    let mesh = read_mesh(&mut reader)?;
    reader.mesh = mesh.as_ref();
    let main = reader;
    skip_graph(&mut reader)?;
    let mut parser = Parser { bodies: FxHashMap::default(), open: Vec::new() };
    while !reader.is_at_end() {
        let start = reader;
        reader.expect("@")?;
        let number = reader.integer("the number of a body")?;
        if parser.bodies.insert(number, (reader, None)).is_some() {
            return Err(start.fail(format!("there are two bodies @{number}")));
        }
        skip_graph(&mut reader)?;
    }
    let graph = parser.graph(main)?;
    match parser.bodies.iter().find(|(_, (_, graph))| graph.is_none()) {
        Some((number, (start, _))) => Err(start.fail(format!("nothing uses the body @{number}"))),
        None => Ok(graph),
    }
}

/// Reads `mesh "data=2,fsdp=4"`, if the text begins so.
fn read_mesh(reader: &mut Reader<'_>) -> Result<Option<Mesh>> {
    let mut ahead = *reader;
    if !ahead.eat_word("mesh") || !ahead.sees("\"") {
        return Ok(None);
    }
    let start = ahead;
    let text = ahead.string()?;
    let mut axes = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let axis = part.split_once('=').and_then(|(name, size)| Some((name.trim(), size.trim().parse().ok()?)));
        axes.push(axis.ok_or_else(|| start.fail(format!("`{part}` is no mesh axis; expected `NAME=SIZE`")))?);
    }
    let mesh = Mesh::new(axes).map_err(|error| start.fail(error.to_string()))?;
    *reader = ahead;
    Ok(Some(mesh))
}

fn skip_graph(reader: &mut Reader<'_>) -> Result<()> {
    let start = reader.clone_after_blanks();
    reader.name("a graph: `NAME(INPUTS) { NODES }`")?;
    for (open, close) in [("(", ")"), ("{", "}")] {
        reader.expect(open)?;
        if reader.split_before(close.as_bytes(), false).is_none() {
            return Err(start.fail(format!("the graph has no closing `{close}`")));
        }
        reader.expect(close)?;
    }
    Ok(())
}

impl<'t> Parser<'t> {
    fn body(&mut self, number: u32, place: Reader<'t>) -> Result<Arc<Graph>> {
        let Some((start, graph)) = self.bodies.get(&number) else {
            return Err(place.fail(format!("there is no body @{number}")));
        };
        if let Some(graph) = graph {
            return Ok(graph.clone());
        }
        if self.open.contains(&number) {
            return Err(place.fail(format!("the body @{number} contains itself")));
        }
        if self.open.len() >= DEEPEST {
            return Err(place.fail("bodies are nested too deeply"));
        }
        let start = *start;
        self.open.push(number);
        let graph = Arc::new(self.graph(start)?);
        self.open.pop();
        self.bodies.insert(number, (start, Some(graph.clone())));
        Ok(graph)
    }

    fn graph(&mut self, mut reader: Reader<'t>) -> Result<Graph> {
        let start = reader.clone_after_blanks();
        let name = reader.name("the graph's name")?;
        let mut read = GraphText::default();
        let inputs = reader.list("(", ")", |reader| {
            let place = reader.clone_after_blanks();
            let value = reader.value()?;
            reader.expect(":")?;
            let definition = Definition::Input(read.input_count);
            read.input_count += 1;
            read.define(place, value, reader.tensor_type()?, definition)?;
            Ok((value, read_port(reader)?))
        })?;
        reader.expect("{")?;
        while !reader.eat_word("return") {
            self.node(&mut reader, &mut read)?;
        }
        let mut outputs = Vec::new();
        if !reader.sees("}") {
            outputs = reader.one_or_more(|reader| Ok((read.operand(reader)?, read_port(reader)?)))?;
        }
        reader.expect("}")?;
        let graph = read.finish(start, name, inputs, outputs)?;
        verify_alone(&graph).map_err(|error| start.fail(error.to_string()))?;
        Ok(graph)
    }

    /// Reads one line: `%2, %3 = name %0, %1 LEAD {ATTRIBUTES} @0 @1 : f32[4], s32[]`.
    fn node(&mut self, reader: &mut Reader<'t>, read: &mut GraphText<'t>) -> Result<()> {
        let start = reader.clone_after_blanks();
        let mut results = Vec::new();
        if !reader.sees("=") {
            results = reader.one_or_more(|reader| Ok((reader.clone_after_blanks(), reader.value()?)))?;
        }
        reader.expect("=")?;
        let place = reader.clone_after_blanks();
        let name = reader.word("the name of an op")?;
        let operand_start = read.operand_pool.len();
        if reader.sees("%") {
            let operands = reader.one_or_more(|reader| read.operand(reader))?;
            read.operand_pool.extend(operands);
        }
        let attributes = reader
            .split_before(b"@:", true)
            .ok_or_else(|| reader.expected("attributes, then `:` and the result types"))?;
        let mut bodies = Vec::new();
        while reader.sees("@") {
            let place = reader.clone_after_blanks();
            reader.expect("@")?;
            let number = reader.integer("the number of a body")?;
            bodies.push(self.body(number, place)?);
        }
        reader.expect(":")?;
        let mut types = Vec::new();
        for index in 0..results.len() {
            if index > 0 {
                reader.expect(",")?;
            }
            types.push(reader.tensor_type()?);
        }
        let op = read_op(place, name, attributes, bodies, &types)?;
        let operands = &read.operand_pool[operand_start..];
        let operand_types: Vec<&TensorType> = operands.iter().map(|value| &read.values[value].0).collect();
        let inferred = op.infer(&operand_types).map_err(|error| place.fail(format!("{name}: {error}")))?;
        if *inferred != *types {
            return Err(place.fail(format!("{name} yields {:?}, not {types:?}", &inferred[..])));
        }
        let node = Node(read.nodes.len() as u32);
        for (index, ((place, value), ty)) in results.iter().zip(types).enumerate() {
            read.define(*place, *value, ty, Definition::Result(node, index as u32))?;
        }
        let results = results.into_iter().map(|(_, value)| value).collect();
        read.nodes.push(NodeText { place: start, op, operands: operand_start..read.operand_pool.len(), results });
        Ok(())
    }
}

fn read_port(reader: &mut Reader<'_>) -> Result<PortInfo> {
    let mut info = PortInfo::default();
    if reader.sees("\"") {
        info.path = reader.string()?.into();
    }
    if reader.sees("{") {
        let axes = reader.list("{", "}", |reader| match reader.eat_word("_") {
            true => Ok(Name::default()),
            false => Ok(Name::new(&reader.name("the name of an axis, or `_`")?)),
        })?;
        info.axes = AxisNames::from_vec(axes);
    }
    if reader.eat_word("role") {
        reader.expect("=")?;
        info.role = Role::read(reader)?;
    }
    if reader.eat_word("spec") {
        reader.expect("=")?;
        info.spec = Some(Spec::read(reader)?);
    }
    Ok(info)
}

struct NodeText<'t> {
    place: Reader<'t>,
    op: Op,
    operands: std::ops::Range<usize>,
    results: Vec<u32>,
}

#[derive(Default)]
struct GraphText<'t> {
    input_count: u32,
    values: FxHashMap<u32, (TensorType, Definition)>,
    operand_pool: Vec<u32>,
    nodes: Vec<NodeText<'t>>,
}

impl<'t> GraphText<'t> {
    fn define(&mut self, place: Reader<'t>, value: u32, ty: TensorType, definition: Definition) -> Result<()> {
        match self.values.insert(value, (ty, definition)) {
            Some(_) => Err(place.fail(format!("%{value} is defined twice"))),
            None => Ok(()),
        }
    }

    fn operand(&self, reader: &mut Reader<'t>) -> Result<u32> {
        let place = reader.clone_after_blanks();
        let value = reader.value()?;
        match self.values.contains_key(&value) {
            true => Ok(value),
            false => Err(place.fail(format!("%{value} is not defined before it is used"))),
        }
    }

    /// Finishes the graph. Its values keep their numbers, except that gaps are closed.
    fn finish(
        self,
        start: Reader<'t>,
        name: String,
        inputs: Vec<(u32, PortInfo)>,
        outputs: Vec<(u32, PortInfo)>,
    ) -> Result<Graph> {
        if u32::try_from(self.operand_pool.len().max(self.values.len())).is_err() {
            return Err(start.fail("the graph is too large"));
        }
        let mut values: Vec<(u32, (TensorType, Definition))> = self.values.into_iter().collect();
        values.sort_unstable_by_key(|(number, _)| *number);
        let places: FxHashMap<u32, Value> =
            values.iter().zip(0..).map(|((number, _), place)| (*number, Value(place))).collect();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for NodeText { place, op, operands, results } in self.nodes {
            let first = results.first().map_or(0, |result| places[result].0);
            if !results.iter().map(|result| places[result].0).eq(first..first + results.len() as u32) {
                return Err(place.fail("the results of a node must have numbers that follow each other"));
            }
            nodes.push(NodeData {
                op,
                operands: (operands.start as u32, operands.len() as u32),
                results: (first, results.len() as u32),
                origin: Origin::default(),
            });
        }
        let has_side_effect = nodes.iter().any(|node| node.op.has_side_effect());
        let (inputs, input_info) = inputs.into_iter().map(|(value, info)| (places[&value], info)).unzip();
        let (outputs, output_info) = outputs.into_iter().map(|(value, info)| (places[&value], info)).unzip();
        Ok(Graph {
            name: name.into(),
            values: values.into_iter().map(|(_, (ty, definition))| ValueData { ty, definition }).collect(),
            nodes,
            operand_pool: self.operand_pool.iter().map(|value| places[value]).collect(),
            inputs,
            input_info,
            outputs,
            output_info,
            has_side_effect,
        })
    }
}

fn read_op<'t>(
    place: Reader<'t>,
    name: &'t str,
    attributes: Reader<'t>,
    bodies: Vec<Arc<Graph>>,
    types: &'t [TensorType],
) -> Result<Op> {
    let mut rest = attributes;
    let lead = rest.split_before(b"{", true).unwrap_or(rest);
    let mut items = Vec::new();
    if rest.eat("{") {
        let inside = rest.split_before(b"}", true).ok_or_else(|| rest.expected("attributes, then `}`"))?;
        rest.expect("}")?;
        rest.expect_end()?;
        items = inside.split_at_commas();
    }
    let mut reader = OpReader { place, name, lead, items, bodies, types, keys: Vec::new() };
    let Some(op) = Op::read_text(&mut reader) else {
        return Err(place.fail(format!("there is no op `{name}`{}", did_you_mean(name, Op::text_names()))));
    };
    let op = op?;
    reader.lead.expect_end()?;
    if let Some(item) = reader.items.first_mut() {
        let item = item.clone_after_blanks();
        let word = Reader::word(&mut { item }, "").unwrap_or_default();
        let suggestion = did_you_mean(word, reader.keys.iter().copied());
        let attribute = item.rest().trim_end();
        return Err(item.fail(format!("`{name}` has no attribute `{attribute}`{suggestion}")));
    }
    match reader.bodies.is_empty() {
        true => Ok(op),
        false => Err(place.fail(format!("`{name}` has {} bodies too many", reader.bodies.len()))),
    }
}
