//! A computation while it is made.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::super::operation::{Argument, Operand, Operation};
use crate::parse::{Result, fault, is_compatible, tuple};
use crate::proto::{HloComputationProto, HloInstructionProto, OpMetadata, ProgramShapeProto, ShapeProto};
use crate::suggest::did_you_mean;
use crate::syntax::opcodes::{Operands, Operation as Opcode};
use crate::text::{Layouts, print_shape};

/// The place of an instruction in its computation.
pub(super) type Site = usize;

/// The places of the results of an op.
pub(super) type Sites = SmallVec<[Site; 1]>;

#[derive(Default)]
pub(super) struct Body<'a> {
    pub(super) instructions: Vec<HloInstructionProto>,
    /// The instructions that the names of the text stand for.
    values: FxHashMap<&'a str, Sites>,
    parameters: i64,
    /// The metadata of the op that is converted.
    pub(super) metadata: Option<Box<OpMetadata>>,
    /// The stem of its instructions' names: the name of its result, if that is more than a number.
    stem: String,
    number: String,
    position: usize,
    /// Constants that only describe an instruction; they are dropped unless an instruction uses them.
    pub(super) asides: Vec<Site>,
}

impl<'a> Body<'a> {
    /// Begins with the instructions of an op.
    pub(super) fn begin(&mut self, operation: &Operation<'a>, metadata: Option<Box<OpMetadata>>) {
        let result = operation.results.first().map_or("", |(name, _)| *name);
        self.set_name(result);
        self.metadata = metadata;
        self.position = operation.position;
    }

    fn set_name(&mut self, result: &str) {
        let (stem, number) = match result.starts_with(|letter: char| letter.is_ascii_digit()) {
            true => ("", result),
            false => (result, ""),
        };
        let allowed = |letter: char| {
            if letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-') { letter } else { '_' }
        };
        self.stem.clear();
        self.stem.extend(stem.chars().map(allowed));
        self.number.clear();
        self.number.extend(number.chars().map(allowed));
    }

    /// The name of an instruction of this op.
    pub(super) fn name(&self, what: &str) -> String {
        match (self.stem.as_str(), self.number.as_str()) {
            // Names of HLO have numbers from 1 on.
            ("", "" | "0") => what.to_owned(),
            ("", number) => format!("{what}.{number}"),
            (stem, _) if stem.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_') => {
                stem.to_owned()
            }
            (stem, _) => format!("{what}.{stem}"),
        }
    }

    pub(super) fn push(&mut self, mut instruction: HloInstructionProto) -> Site {
        let place = self.instructions.len();
        instruction.id = place as i64;
        if instruction.name.is_empty() {
            instruction.name = self.name(&instruction.opcode);
        }
        if instruction.metadata.is_none() {
            instruction.metadata.clone_from(&self.metadata);
        }
        self.instructions.push(instruction);
        place
    }

    /// An instruction with operands, which is not here yet.
    pub(super) fn instruction(&self, opcode: &str, shape: ShapeProto, operands: &[Site]) -> HloInstructionProto {
        HloInstructionProto {
            opcode: opcode.to_owned(),
            shape: Some(shape),
            operand_ids: operands.iter().map(|&place| place as i64).collect(),
            ..HloInstructionProto::default()
        }
    }

    /// Adds an instruction that has nothing but operands.
    pub(super) fn simple(&mut self, opcode: &str, shape: ShapeProto, operands: &[Site]) -> Site {
        let instruction = self.instruction(opcode, shape, operands);
        self.push(instruction)
    }

    pub(super) fn shape(&self, place: Site) -> ShapeProto {
        self.instructions.get(place).and_then(|it| it.shape.clone()).unwrap_or_default()
    }

    pub(super) fn parameter(&mut self, name: &str, shape: ShapeProto) -> Site {
        self.set_name(name);
        let mut instruction = self.instruction("parameter", shape, &[]);
        instruction.parameter_number = self.parameters;
        self.parameters += 1;
        self.push(instruction)
    }

    /// A parameter for an argument of a region, under its name.
    pub(super) fn argument(&mut self, argument: &Argument<'a>) {
        let place = self.parameter(argument.name, ShapeProto::clone(&argument.shape));
        self.define(argument.name, smallvec![place]);
    }

    /// A tuple of values.
    pub(super) fn tuple(&mut self, places: &[Site]) -> Site {
        let shape = tuple(places.iter().map(|&place| self.shape(place)).collect());
        self.simple("tuple", shape, places)
    }

    /// One value as itself, several as a tuple.
    pub(super) fn joined(&mut self, places: &[Site]) -> Site {
        match places {
            [place] => *place,
            places => self.tuple(places),
        }
    }

    /// The elements of a tuple.
    pub(super) fn elements(&mut self, place: Site) -> Sites {
        let shapes = self.shape(place).tuple_shapes;
        let element = |(index, shape): (usize, ShapeProto)| {
            let mut instruction = self.instruction("get-tuple-element", shape, &[place]);
            instruction.tuple_index = index as i64;
            self.push(instruction)
        };
        shapes.into_iter().enumerate().map(element).collect()
    }

    /// The values of an instruction with this number of results: itself, or the elements of its tuple.
    pub(super) fn results(&mut self, place: Site, count: usize) -> Sites {
        if count == 1 { smallvec![place] } else { self.elements(place) }
    }

    /// Gives names of the text to values.
    pub(super) fn bind(&mut self, operation: &Operation<'a>, places: &[Site]) -> Result<()> {
        let mut rest = places;
        for (name, count) in &operation.results {
            let Some((these, others)) = rest.split_at_checked(*count) else {
                return operation.fault(format!("it has {} results, and the text names more", places.len()));
            };
            self.define(name, these.into());
            rest = others;
        }
        Ok(())
    }

    pub(super) fn define(&mut self, name: &'a str, places: Sites) {
        self.values.insert(name, places);
    }

    /// Gives one result of a name that has several to a place; the others are not known here.
    pub(super) fn define_one(&mut self, operand: &Operand<'a>, place: Site) {
        let places = self.values.entry(operand.name).or_default();
        if places.len() <= operand.number {
            places.resize(operand.number + 1, Site::MAX);
        }
        places[operand.number] = place;
    }

    /// The sites of names, to be given back to them with [`Body::restore`].
    pub(super) fn saved(&self, names: impl Iterator<Item = &'a str>) -> Vec<(&'a str, Option<Sites>)> {
        names.map(|name| (name, self.values.get(name).cloned())).collect()
    }

    pub(super) fn restore(&mut self, saved: Vec<(&'a str, Option<Sites>)>) {
        for (name, places) in saved.into_iter().rev() {
            match places {
                Some(places) => self.values.insert(name, places),
                None => self.values.remove(name),
            };
        }
    }

    /// The elements of a tuple, each with a name of its own.
    pub(super) fn named_elements(&mut self, place: Site, names: &[&str]) -> Sites {
        let places = self.elements(place);
        for (&place, name) in places.iter().zip(names) {
            self.set_name(name);
            let name = self.name("get-tuple-element");
            if let Some(instruction) = self.instructions.get_mut(place) {
                instruction.name = name;
            }
        }
        places
    }

    /// The value that an op reads.
    pub(super) fn operand(&self, operand: &Operand<'a>) -> Result<Site> {
        match self.values.get(operand.name) {
            Some(places) => match places.get(operand.number) {
                Some(&place) if place != Site::MAX => Ok(place),
                _ => fault(
                    operand.position,
                    format!("%{} has {} results, and none of number {}", operand.name, places.len(), operand.number),
                ),
            },
            None => {
                let near = did_you_mean(operand.name, self.values.keys().copied());
                fault(operand.position, format!("%{} is not defined before this place{near}", operand.name))
            }
        }
    }

    pub(super) fn operands(&self, operation: &Operation<'a>) -> Result<Sites> {
        operation.operands.iter().map(|operand| self.operand(operand)).collect()
    }

    /// Whether operands have the types that the text states for them, where it states one for each.
    pub(super) fn check_types(&self, operation: &Operation<'a>) -> Result<()> {
        let is_list = matches!(operation.name.as_ref(), "stablehlo.while" | "stablehlo.optimization_barrier");
        if operation.types.results.is_none() && !is_list && !operation.is_return() {
            return Ok(());
        }
        let (operands, stated) = (&operation.operands, &operation.types.inputs);
        if operands.len() != stated.len() {
            return operation.fault(format!(
                "it has {} operands, and the text has {} types",
                operands.len(),
                stated.len()
            ));
        }
        for (operand, stated) in operands.iter().zip(stated) {
            let place = self.operand(operand)?;
            let found = self.instructions.get(place).and_then(|it| it.shape.as_ref());
            if !found.is_some_and(|found| is_compatible(found, stated)) {
                let print = |shape: &ShapeProto| print_shape(shape, Layouts::None);
                let (found, stated) = (found.map(print).unwrap_or_default(), print(stated));
                return fault(
                    operand.position,
                    format!("%{} is {found} in HLO's words, and the type says {stated}", operand.name),
                );
            }
        }
        Ok(())
    }

    /// Whether every instruction has as many operands as its opcode takes.
    pub(super) fn check_from(&self, first: Site, operation: &Operation<'_>) -> Result<()> {
        for instruction in self.instructions.iter().skip(first) {
            let expected = Opcode::from_name(&instruction.opcode).map(|opcode| opcode.operands);
            let found = instruction.operand_ids.len();
            if let Some(Operands::Exactly(count)) = expected.filter(|expected| *expected != Operands::Exactly(found)) {
                return operation.fault(format!("expected {count} operands, found {found}"));
            }
        }
        Ok(())
    }

    /// The computation, with a root, as the one of an id.
    pub(super) fn finish(mut self, name: String, id: usize, root: Site) -> HloComputationProto {
        if !self.asides.is_empty() {
            let operands = self.instructions.iter().flat_map(|it| &it.operand_ids).copied();
            let used: FxHashSet<i64> = operands.chain([root as i64]).collect();
            let asides = std::mem::take(&mut self.asides);
            self.instructions.retain(|it| used.contains(&it.id) || !asides.iter().any(|&place| place as i64 == it.id));
        }
        let result = self.instructions.iter().find(|it| it.id == root as i64).and_then(|root| root.shape.clone());
        let first = (id as i64) << 32;
        for instruction in &mut self.instructions {
            instruction.id += first;
            instruction.operand_ids.iter_mut().for_each(|operand| *operand += first);
        }
        let parameters = || self.instructions.iter().filter(|it| it.opcode == "parameter");
        let program_shape = ProgramShapeProto {
            parameters: parameters().map(|it| it.shape.clone().unwrap_or_default()).collect(),
            result,
            parameter_names: parameters().map(|it| it.name.clone()).collect(),
        };
        HloComputationProto {
            name,
            instructions: self.instructions,
            program_shape: Some(program_shape),
            id: id as i64,
            root_id: first + root as i64,
            ..HloComputationProto::default()
        }
    }
}
