//! Ops with regions. A region becomes a computation.
//!
//! A region may use values that are defined around it, and a computation has only its parameters. Small constants are
//! repeated in it, as XLA does, so that a loop's bound stays one. Loops and branches carry the rest along; other
//! regions have none.

use rustc_hash::FxHashSet;
use smallvec::smallvec;

use super::super::super::names;
use super::super::attribute::Value;
use super::super::operation::{Operand, Operation, Region};
use super::body::{Body, Site, Sites};
use super::{Conversion, Converter, Rule, one_or_tuple};
use crate::parse::{Result, tuple};
use crate::proto::{HloInstructionProto, ScatterDimensionNumbers, ShapeProto, TriState};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("stablehlo.while", while_loop),
    ("stablehlo.if", conditional),
    ("stablehlo.case", conditional),
    ("stablehlo.reduce", reduce),
    ("stablehlo.sort", sort),
    ("stablehlo.map", map),
    ("stablehlo.scatter", scatter),
    ("chlo.scan", scan),
    ("mhlo.scan", scan),
    ("mhlo.fusion", fusion),
];

/// The names that regions use and that are defined around them, each once.
fn captured<'a>(regions: &[Region<'a>]) -> Vec<Operand<'a>> {
    let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
    for region in regions {
        collect(region, &mut FxHashSet::default(), &mut |operand: &Operand<'a>| {
            if seen.insert((operand.name, operand.number)) {
                found.push(*operand);
            }
        });
    }
    found
}

fn collect<'a>(region: &Region<'a>, defined: &mut FxHashSet<&'a str>, found: &mut impl FnMut(&Operand<'a>)) {
    // Sibling regions may use a name for different things.
    let mut added = Vec::new();
    let mut define = |defined: &mut FxHashSet<&'a str>, name: &'a str| {
        if defined.insert(name) {
            added.push(name);
        }
    };
    for argument in &region.arguments {
        define(defined, argument.name);
    }
    for operation in &region.operations {
        operation.operands.iter().filter(|operand| !defined.contains(operand.name)).for_each(&mut *found);
        for region in &operation.regions {
            collect(region, defined, found);
        }
        for (name, _) in &operation.results {
            define(defined, name);
        }
    }
    for name in added {
        defined.remove(name);
    }
}

fn is_small(constant: &HloInstructionProto) -> bool {
    let sizes = constant.shape.as_ref().map_or(&[] as &[_], |shape| &shape.dimensions);
    sizes.iter().fold(1i64, |count, &size| count.saturating_mul(size)) <= names::REPEATED
}

/// The values that regions capture: those carried into them, and constants.
struct Captured<'a> {
    carried: Vec<(Operand<'a>, Site)>,
    constants: Vec<(Operand<'a>, HloInstructionProto)>,
}

impl<'a> Captured<'a> {
    fn of(body: &Body<'a>, regions: &[Region<'a>]) -> Result<Captured<'a>> {
        let mut all = Captured { carried: Vec::new(), constants: Vec::new() };
        for operand in captured(regions) {
            let place = body.operand(&operand)?;
            match body.instructions.get(place) {
                Some(instruction) if instruction.opcode == "constant" && is_small(instruction) => {
                    all.constants.push((operand, instruction.clone()));
                }
                _ => all.carried.push((operand, place)),
            }
        }
        Ok(all)
    }

    fn places(&self) -> impl Iterator<Item = Site> {
        self.carried.iter().map(|(_, place)| *place)
    }

    /// Repeats in the computation of a region the constants that it uses.
    fn define_constants(&self, inner: &mut Body<'a>, region: &Region<'a>) {
        let used: FxHashSet<_> =
            captured(std::slice::from_ref(region)).iter().map(|operand| (operand.name, operand.number)).collect();
        for (operand, constant) in &self.constants {
            if !used.contains(&(operand.name, operand.number)) {
                continue;
            }
            let place = inner.push(constant.clone());
            inner.define_one(operand, place);
        }
    }
}

impl<'a> Converter<'a, '_> {
    /// The computation of a region whose arguments are its parameters, such as that of a reduction: its id.
    pub(super) fn applied(
        &mut self,
        body: &Body<'a>,
        operation: &Operation<'a>,
        region: usize,
        name: &str,
    ) -> Result<i64> {
        let region = operation.region(region)?;
        let captured = Captured::of(body, std::slice::from_ref(region))?;
        if let Some((operand, _)) = captured.carried.first() {
            return operation.fault(format!(
                "its region uses %{}, which is computed outside of it; a region that is applied to elements has only its \
                 arguments and constants",
                operand.name
            ));
        }
        let name = if name.contains('.') { name.to_owned() } else { body.name(name) };
        self.own(operation, region, &captured, &name)
    }

    /// The computation of the first region, under a name that the text gives it.
    pub(super) fn named(&mut self, body: &Body<'a>, operation: &Operation<'a>, name: &str) -> Result<i64> {
        let region = operation.region(0)?;
        let captured = Captured::of(body, std::slice::from_ref(region))?;
        match captured.carried.first() {
            Some((operand, _)) => {
                operation.fault(format!("its region uses %{}, which is no argument of it", operand.name))
            }
            None => self.own(operation, region, &captured, name),
        }
    }

    /// The computation of a region that has its arguments as parameters.
    fn own(
        &mut self,
        operation: &Operation<'a>,
        region: &Region<'a>,
        captured: &Captured<'a>,
        name: &str,
    ) -> Result<i64> {
        let mut inner = Body::default();
        region.arguments.iter().for_each(|argument| inner.argument(argument));
        captured.define_constants(&mut inner, region);
        let results = self.block(&mut inner, region, operation)?;
        let root = inner.joined(&results);
        let name = self.unique(name);
        Ok(self.add(inner, name, root) as i64)
    }

    /// The computation that applies an op to two scalars: its id.
    pub(super) fn applied_op(&mut self, body: &Body<'a>, operation: &Operation<'a>, applied: &str) -> Result<i64> {
        let Some(opcode) = names::opcode(applied) else {
            return operation.fault(format!("it applies {applied}, which is no op of two elements"));
        };
        let element = ShapeProto { dimensions: Vec::new(), ..operation.result_type()?.clone() };
        let scalar = crate::parse::array(element.element_type(), Vec::new());
        let mut inner = Body::default();
        let (left, right) = (inner.parameter("lhs", scalar.clone()), inner.parameter("rhs", scalar.clone()));
        inner.begin(&Operation::default(), body.metadata.clone());
        let root = inner.simple(opcode, scalar, &[left, right]);
        inner.check_from(root, operation)?;
        let name = self.unique(&body.name("reducer"));
        Ok(self.add(inner, name, root) as i64)
    }

    /// The computation of a region of a loop or a branch. It has one parameter: all values that are carried into it,
    /// those of the loop first. It returns the results of the region and, if asked to, the values that are carried for
    /// the captures.
    fn carrying(
        &mut self,
        body: &Body<'a>,
        operation: &Operation<'a>,
        region: usize,
        name: &str,
        captured: &Captured<'a>,
        returns_captures: bool,
    ) -> Result<i64> {
        let region = operation.region(region)?;
        let mut inner = Body::default();
        inner.metadata = body.metadata.clone();
        let arguments = region.arguments.iter().map(|argument| ShapeProto::clone(&argument.shape));
        let shapes: Vec<ShapeProto> = arguments.chain(captured.places().map(|place| body.shape(place))).collect();
        let only = shapes.len() == 1;
        let names = region.arguments.iter().map(|argument| argument.name);
        let names: Vec<&str> = names.chain(captured.carried.iter().map(|(operand, _)| operand.name)).collect();
        let places: Sites = match (only, shapes) {
            (true, mut shapes) => shapes
                .pop()
                .map(|shape| inner.parameter(names.first().unwrap_or(&"value"), shape))
                .into_iter()
                .collect(),
            (false, shapes) => {
                let state = inner.parameter("state", tuple(shapes));
                inner.named_elements(state, &names)
            }
        };
        let mut rest = places.iter().copied();
        for (argument, place) in region.arguments.iter().zip(&mut rest) {
            inner.define(argument.name, smallvec![place]);
        }
        let carried: Sites = rest.collect();
        for ((operand, _), &place) in captured.carried.iter().zip(&carried) {
            inner.define_one(operand, place);
        }
        captured.define_constants(&mut inner, region);
        let mut results = self.block(&mut inner, region, operation)?;
        if returns_captures {
            results.extend_from_slice(&carried);
        }
        let root = inner.joined(&results);
        let name = self.unique(&body.name(name));
        Ok(self.add(inner, name, root) as i64)
    }
}

fn while_loop(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operands, operation) = (op.operands()?, op.operation);
    let captured = Captured::of(op.body, &operation.regions)?;
    for region in 0..2 {
        let arguments = operation.region(region)?.arguments.len();
        if arguments != operands.len() {
            return operation.fault(format!("it has {} values, and its region {arguments} arguments", operands.len()));
        }
    }
    let condition = op.converter.carrying(op.body, operation, 0, "condition", &captured, false)?;
    let step = op.converter.carrying(op.body, operation, 1, "body", &captured, true)?;
    let all: Sites = operands.iter().copied().chain(captured.places()).collect();
    let state = op.body.joined(&all);
    let shape = op.body.shape(state);
    let mut instruction = op.body.instruction("while", shape, &[state]);
    instruction.called_computation_ids = vec![step, condition];
    let place = op.body.push(instruction);
    let mut results = op.body.results(place, all.len());
    results.truncate(operands.len());
    Ok(results)
}

/// `if` and `case`: a computation for each branch.
fn conditional(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let (operands, operation) = (op.operands()?, op.operation);
    let &[selector] = operands.as_slice() else {
        return operation.fault("expected one operand, which selects a branch");
    };
    let is_if = operation.name == "stablehlo.if";
    if is_if && operation.regions.len() != 2 || operation.regions.is_empty() {
        let (expected, found) = (if is_if { "2" } else { "some" }, operation.regions.len());
        return operation.fault(format!("expected {expected} regions, found {found}"));
    }
    let (mut branches, mut all) = (Vec::new(), vec![selector]);
    for (number, region) in operation.regions.iter().enumerate() {
        let captured = Captured::of(op.body, std::slice::from_ref(region))?;
        let name = match (is_if, number) {
            (true, 0) => "true_branch".to_owned(),
            (true, _) => "false_branch".to_owned(),
            (false, number) => format!("branch_{number}"),
        };
        branches.push(op.converter.carrying(op.body, operation, number, &name, &captured, false)?);
        let places: Sites = captured.places().collect();
        all.push(op.body.joined(&places));
    }
    let shapes = operation.result_shapes()?;
    let count = shapes.len();
    let mut instruction = op.body.instruction("conditional", one_or_tuple(shapes), &all);
    instruction.called_computation_ids = branches;
    let place = op.body.push(instruction);
    Ok(op.body.results(place, count))
}

fn reduce(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimensions = op.integers(&["dimensions"])?;
    let reducer = match op.operation.attributes.get("applies").map(|attribute| &attribute.value) {
        Some(Value::Word(applied)) => op.converter.applied_op(op.body, op.operation, applied)?,
        _ => op.applied(0, "reducer")?,
    };
    op.calling("reduce", vec![reducer], |instruction| instruction.dimensions = dimensions)
}

fn sort(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let comparator = op.applied(0, "comparator")?;
    let dimension = op.operation.optional_integer("dimension")?.unwrap_or(-1);
    let rank = op.operation.result_types()?.first().map_or(0, |shape| shape.dimensions.len() as i64);
    let dimension = if dimension < 0 { dimension.saturating_add(rank) } else { dimension };
    let is_stable = op.operation.flag("is_stable")?;
    op.calling("sort", vec![comparator], |instruction| {
        instruction.dimensions = vec![dimension];
        if is_stable {
            instruction.is_stable = true;
        }
    })
}

fn map(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let dimensions = op.integers(&["dimensions"])?;
    let applied = op.applied(0, "mapped")?;
    op.calling("map", vec![applied], |instruction| instruction.dimensions = dimensions)
}

/// `#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], ...>`
fn scatter(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let numbers = op.numbers("scatter_dimension_numbers")?;
    let numbers = ScatterDimensionNumbers {
        update_window_dims: numbers.list("update_window_dims"),
        inserted_window_dims: numbers.list("inserted_window_dims"),
        scatter_dims_to_operand_dims: numbers.list("scatter_dims_to_operand_dims"),
        index_vector_dim: numbers.one("index_vector_dim"),
        input_batching_dims: numbers.list("input_batching_dims"),
        scatter_indices_batching_dims: numbers.list("scatter_indices_batching_dims"),
    };
    let combiner = op.applied(0, "combiner")?;
    let (sorted, unique) = (op.operation.flag("indices_are_sorted")?, op.operation.flag("unique_indices")?);
    op.calling("scatter", vec![combiner], |instruction| {
        instruction.scatter_dimension_numbers = Some(numbers.into());
        if sorted {
            instruction.indices_are_sorted = true;
        }
        if unique {
            instruction.unique_indices = true;
        }
    })
}

/// The results are the outputs and then the carries, in a tuple even if there is only one.
fn scan(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let operation = op.operation;
    let dimension = operation.integer(&["dimension"])?;
    let num_carries = match *op.integers(&["operandSegmentSizes", "operand_segment_sizes"])? {
        [_, carries] => carries,
        // Bytecode leaves out zeros at the end.
        [_] => 0,
        _ => return operation.fault("expected the numbers of inputs and of carries as operandSegmentSizes"),
    };
    let is_reverse = operation.flag("is_reverse")?;
    let is_associative = match operation.attributes.get("is_associative") {
        None => TriState::Unspecified,
        Some(stated) if stated.boolean("is_associative")? => TriState::True,
        Some(_) => TriState::False,
    };
    let scanned = op.applied(0, "scanned")?;
    let shapes = operation.result_shapes()?;
    let mut instruction = op.body.instruction("scan", tuple(shapes), &op.operands()?);
    instruction.called_computation_ids = vec![scanned];
    instruction.dimensions = vec![dimension];
    if num_carries > 0 {
        instruction.num_carries = num_carries;
    }
    if is_reverse {
        instruction.is_reverse = true;
    }
    if is_associative != TriState::Unspecified {
        instruction.is_associative = is_associative.into();
    }
    let place = op.body.push(instruction);
    Ok(op.body.elements(place))
}

/// `fusion_kind = #mhlo<fusion_kind kLoop>`
fn fusion(op: &mut Conversion<'_, '_, '_>) -> Result<Sites> {
    let kind = op.operation.attributes.get("fusion_kind").map(|kind| op.converter.last_word(kind)).transpose()?;
    let kind = kind.map_or("kLoop", |(word, _)| word).to_owned();
    let fused = op.applied(0, "fused_computation")?;
    op.calling("fusion", vec![fused], |instruction| instruction.fusion_kind = kind)
}
