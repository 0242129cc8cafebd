//! Computations: `%name (parameters) -> result { instructions }, execution_thread="..."`.

use memchr::memchr;
use rustc_hash::{FxHashMap, FxHashSet};

use super::error::{Result, fault};
use super::shape::{copy, is_compatible};
use super::{ATTRIBUTE, Parser};
use crate::proto::{HloComputationProto, HloInstructionProto, ProgramShapeProto, ShapeProto};
use crate::suggest::did_you_mean;

/// No line of HLO in real programs is shorter. It bounds what a text of empty lines can make us reserve.
const SHORT_LINE: usize = 48;

/// Names that a table has room for at most, to be used again.
const MAX_SPARE_NAMES: usize = 1024;

/// The number of lines up to the next line that starts with a closing brace: about the number of instructions of the
/// computation, so that their list need not grow by copying. Each byte is read once.
#[derive(Default)]
pub(super) struct Blocks {
    end: usize,
}

impl Blocks {
    fn instructions_from(&mut self, bytes: &[u8], position: usize) -> usize {
        if position < self.end {
            return 0;
        }
        let mut lines = 0;
        let mut end = position;
        while let Some(length) = memchr(b'\n', &bytes[end..]) {
            end += length + 1;
            if bytes.get(end) == Some(&b'}') {
                break;
            }
            lines += 1;
        }
        self.end = end.max(position + 1);
        lines.min((end - position) / SHORT_LINE + 1)
    }
}

/// A computation under construction.
pub(crate) struct Scope<'a> {
    /// Added to the place of an instruction it gives its id.
    pub(super) first_id: i64,
    pub(super) instructions: Vec<HloInstructionProto>,
    /// Where the instruction of a name is.
    pub(super) names: FxHashMap<&'a str, usize>,
    pub(super) root: Option<usize>,
    /// Where the `get-tuple-element` is that `%x#1` stands for, by the place of `x` and the index.
    pub(super) elements: FxHashMap<(usize, i64), usize>,
    /// Instructions without a name, by place.
    pub(super) unnamed: Vec<usize>,
    /// Whether there is one instruction, whose operands become parameters.
    pub(super) is_single: bool,
    /// How many such parameters there are.
    pub(super) parameters: i64,
}

impl Scope<'_> {
    pub(crate) fn id(&self, place: usize) -> i64 {
        self.first_id + place as i64
    }
}

/// The id of the first instruction of a computation: XLA has the computation's id in the upper half.
fn first_id(computation: usize) -> i64 {
    (computation as i64) << 32
}

impl<'a> Parser<'a> {
    /// A computation that stands by itself. True if it is marked as the entry.
    pub(super) fn computation(&mut self) -> Result<bool> {
        let is_entry = self.lexer.eat_word("ENTRY");
        let name_start = self.lexer.here();
        let name = self.lexer.name("the name of a computation")?;
        let signature = if self.lexer.peek() == Some(b'(') {
            let result_start = self.signature()?;
            Some(result_start)
        } else {
            None
        };
        let id = self.body(name)?;
        if let (Some((start, result)), Some(shape)) = (signature, self.result_of(id))
            && !is_compatible(&result, shape)
        {
            return fault(start, format!("the result of {name} is not of the shape of its root"));
        }
        while self.lexer.eat(b',') {
            let start = self.lexer.here();
            match self.lexer.attribute_name()? {
                "execution_thread" => self.computations[id].execution_thread = self.lexer.string()?,
                other => self.pass_over(start, (ATTRIBUTE, "a computation"), other, ["execution_thread"])?,
            }
        }
        if self.computation_ids.insert(name, id).is_some() {
            return fault(name_start, format!("there are two computations named {name}"));
        }
        Ok(is_entry)
    }

    pub(super) fn result_of(&self, id: usize) -> Option<&ShapeProto> {
        self.computations.get(id)?.program_shape.as_ref()?.result.as_ref()
    }

    /// `(x: f32[2], y: s32[]) -> f32[2]`: where the shape of the result starts, and that shape.
    fn signature(&mut self) -> Result<(usize, ShapeProto)> {
        self.list(b'(', b')', |parser| {
            parser.lexer.name("the name of a parameter")?;
            // XLA takes it without, too.
            parser.lexer.eat(b':');
            parser.shape()?;
            Ok(())
        })?;
        if !self.lexer.eat_symbol("->") {
            return self.lexer.unexpected("\"->\" before the shape of the result");
        }
        let start = self.lexer.here();
        Ok((start, self.shape()?))
    }

    /// `{ instructions }`: adds a computation and gives its id.
    pub(super) fn body(&mut self, name: &str) -> Result<usize> {
        let start = self.lexer.here();
        self.lexer.expect(b'{', "before the instructions of a computation")?;
        let expected = self.blocks.instructions_from(self.lexer.bytes(), start);
        let opened_as = self.computations.len();
        let mut scope = self.open_scope(expected);
        loop {
            self.instruction(&mut scope)?;
            if self.lexer.eat(b'}') {
                break;
            }
        }
        if !scope.unnamed.is_empty() {
            let names = scope.instructions.iter_mut().map(|instruction| &mut instruction.name);
            name_apart(names.collect(), &scope.unnamed);
        }
        let Scope { instructions, mut names, root, .. } = scope;
        // To clear a table takes as long as it is large, and most computations are small.
        if names.capacity() <= MAX_SPARE_NAMES {
            names.clear();
            self.spare_names.push(names);
        }
        let root = root.unwrap_or(instructions.len().saturating_sub(1));
        self.add_computation(name, instructions, root, opened_as, start)
    }

    /// A computation without instructions, which will be the next one, unless others come in between.
    pub(super) fn open_scope(&mut self, expected: usize) -> Scope<'a> {
        let mut names = self.spare_names.pop().unwrap_or_default();
        names.reserve(expected);
        Scope {
            first_id: first_id(self.computations.len()),
            instructions: Vec::with_capacity(expected),
            names,
            root: None,
            elements: FxHashMap::default(),
            unnamed: Vec::new(),
            is_single: false,
            parameters: 0,
        }
    }

    /// Adds a computation that was the `opened_as`th when its instructions got their ids.
    pub(super) fn add_computation(
        &mut self,
        name: &str,
        mut instructions: Vec<HloInstructionProto>,
        root: usize,
        opened_as: usize,
        start: usize,
    ) -> Result<usize> {
        let id = self.computations.len();
        if id != opened_as {
            renumber(&mut instructions, first_id(id) - first_id(opened_as));
        }
        let parameters = instructions.iter().filter(|instruction| instruction.opcode == "parameter");
        let copied = parameters.chain(instructions.get(root)).filter_map(|instruction| instruction.shape.as_ref());
        self.memory.take(size_of::<HloComputationProto>(), start)?;
        copied.into_iter().try_for_each(|shape| self.memory.take_shape(shape, start))?;
        let program_shape = program_shape(&instructions, root, start)?;
        self.is_hidden.push(false);
        self.computations.push(HloComputationProto {
            name: name.to_string(),
            instructions,
            program_shape: Some(program_shape),
            id: id as i64,
            root_id: first_id(id) + root as i64,
            ..Default::default()
        });
        Ok(id)
    }

    /// The name of a computation above, or the body of one. The latter is called `_`, as in XLA.
    pub(crate) fn called(&mut self) -> Result<i64> {
        if self.lexer.peek() == Some(b'{') {
            let id = self.nested(|parser| parser.body("_"))?;
            self.unnamed.push(id);
            return Ok(id as i64);
        }
        let start = self.lexer.here();
        let name = self.lexer.name("the name of a computation")?;
        match self.computation_ids.get(name) {
            Some(&id) => Ok(id as i64),
            None => {
                let near = did_you_mean(name, self.computation_ids.keys().copied());
                fault(start, format!("no computation above is named {name}{near}; callees come before their callers"))
            }
        }
    }
}

/// Moves the ids of a computation's instructions.
fn renumber(instructions: &mut [HloInstructionProto], by: i64) {
    for instruction in instructions {
        instruction.id += by;
        let operands = instruction.operand_ids.iter_mut();
        operands.chain(&mut instruction.control_predecessor_ids).for_each(|id| *id += by);
    }
}

fn program_shape(instructions: &[HloInstructionProto], root: usize, start: usize) -> Result<ProgramShapeProto> {
    let mut parameters: Vec<&HloInstructionProto> =
        instructions.iter().filter(|instruction| instruction.opcode == "parameter").collect();
    parameters.sort_by_key(|parameter| parameter.parameter_number);
    for (number, parameter) in parameters.iter().enumerate() {
        if parameter.parameter_number != number as i64 {
            let count = parameters.len();
            return fault(
                start,
                format!("the {count} parameters of this computation are not numbered from 0: {number} is missing"),
            );
        }
    }
    Ok(ProgramShapeProto {
        parameters: parameters.iter().map(|parameter| parameter.shape.as_ref().map(copy).unwrap_or_default()).collect(),
        result: instructions.get(root).and_then(|root| root.shape.as_ref().map(copy)),
        parameter_names: parameters.iter().map(|parameter| parameter.name.clone()).collect(),
    })
}

/// Adds numbers to names that were made up here, until nothing else has them.
pub(super) fn name_apart(mut names: Vec<&mut String>, made_up: &[usize]) {
    let mut is_given = vec![true; names.len()];
    made_up.iter().for_each(|&place| is_given[place] = false);
    let given = names.iter().zip(is_given).filter(|(_, is_given)| *is_given);
    let mut taken: FxHashSet<String> = given.map(|(name, _)| (*name).clone()).collect();
    let mut numbers: FxHashMap<String, usize> = FxHashMap::default();
    for &place in made_up {
        let name = &mut *names[place];
        let number = numbers.entry(name.clone()).or_default();
        let mut candidate = name.clone();
        while !taken.insert(candidate.clone()) {
            *number += 1;
            candidate = format!("{name}.{number}");
        }
        *name = candidate;
    }
}
