//! The op that makes the first number which is not finite in a step: `meshloom train --find-nan`.
//!
//! The step is run again, from the state before it and on its batch, as a program that says what its values are
//! ([`probe`]). Back from the loss and the gradient norm, through values with such numbers, stands the op that made
//! them. If it is a loop, a branch or a call, the next program looks at its body, until an op without a body is found.
//! Numbers that are infinite on purpose, as those of masks, lead to no result that is not finite, so they are on no
//! such way.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use meshloom::ir::{Definition, Graph, Literal, Origin, TensorType, Value};
use meshloom::ops::Op;
use meshloom::passes::erase_markers;
use meshloom::passes::probe::{self, ProbedLoop};
use meshloom::pjrt::Array;
use meshloom::trace::Tree;

use super::Trainer;
use crate::error::{Error, Execution};
use crate::run::{Calls, Dataset, Model, execute, laid_out_for};

/// The first number that is not finite, and its maker.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstNotFinite {
    /// An op, or an input.
    pub maker: Maker,
    /// The type of the value that has the number.
    pub ty: TensorType,
    /// True for NaN; else the number is infinite.
    pub is_nan: bool,
    /// The op whose infinite number became NaN there, where there is one.
    pub infinite: Option<Maker>,
    /// The loops around the op, the outermost first: scope, iteration from 1, and how many there are.
    pub loops: Vec<(String, (usize, usize))>,
    /// The devices of this process whose copies have the number, where not all have it.
    pub devices: Vec<usize>,
}

/// The maker of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Maker {
    /// An input of the step: a part of the state, by its path.
    Input(String),
    /// An op.
    Op {
        /// Its name.
        name: String,
        /// Its scope, such as `backward/layers/attention`.
        scope: String,
        /// The user's `file:line`.
        source: Option<String>,
    },
}

impl Maker {
    fn of(graph: &Graph, value: Value) -> Maker {
        match graph.definition(value) {
            Definition::Input(index) => Maker::Input(graph.input_info()[index as usize].path.to_string()),
            Definition::Result(node, _) => {
                let node = graph.node(node);
                let origin = node.origin();
                Maker::Op { name: node.op().name().to_owned(), scope: scope_of(origin), source: origin.source() }
            }
        }
    }
}

fn scope_of(origin: Origin) -> String {
    format!("{}{}", origin.phase.prefix(), origin.scope.path())
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Maker::Input(path) => write!(f, "the value {path:?}, before the step"),
            Maker::Op { name, scope, source } => {
                write!(f, "{name}")?;
                if !scope.is_empty() {
                    write!(f, " in {scope}")?;
                }
                source.as_ref().map_or(Ok(()), |source| write!(f, " ({source})"))
            }
        }
    }
}

impl fmt::Display for FirstNotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_nan { "NaN" } else { "an infinite number" };
        match &self.maker {
            input @ Maker::Input(_) => write!(f, "{input}, has {what}")?,
            op @ Maker::Op { .. } => write!(f, "{op} makes {what}, in a value of type {}", self.ty)?,
        }
        for (scope, (iteration, length)) in &self.loops {
            write!(f, ", in iteration {iteration} of {length} of the loop {scope}")?;
        }
        if let Some(infinite) = &self.infinite {
            write!(f, ", of an infinite number by {infinite}")?;
        }
        if !self.devices.is_empty() {
            let devices: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
            write!(f, "; only copies on these devices have it: {}", devices.join(", "))?;
        }
        Ok(())
    }
}

/// The result of probing a value's numbers.
struct Probed {
    /// [`probe::FINITE`], [`probe::INFINITE`] or [`probe::NAN`], for each iteration of the loops around it, in the
    /// order of the slices.
    kinds: Vec<f64>,
    /// The devices whose numbers are not finite, if other devices have only finite ones.
    devices: Vec<usize>,
}

/// The results of probing the values of a level.
struct Level {
    of_value: HashMap<Value, Probed>,
    loops: Vec<ProbedLoop>,
}

/// A value that is not finite, in an iteration.
struct NotFiniteValue {
    value: Value,
    iteration: usize,
    /// The value whose infinite number became NaN there.
    infinite: Option<Value>,
}

impl Level {
    /// The iterations in the order in which they run.
    fn order(&self) -> Vec<usize> {
        let count: usize = self.loops.iter().map(|each| each.length).product();
        let slice_of = |mut run: usize| {
            let (mut slice, mut stride) = (0, 1);
            for each in self.loops.iter().rev() {
                let index = run % each.length;
                run /= each.length;
                slice += stride * if each.reverse { each.length - 1 - index } else { index };
                stride *= each.length;
            }
            slice
        };
        (0..count).map(slice_of).collect()
    }

    /// Returns the iteration of each loop, from 1, and the number of its iterations.
    fn iterations(&self, mut slice: usize) -> Vec<(usize, usize)> {
        let mut iterations = Vec::new();
        for each in self.loops.iter().rev() {
            iterations.push((slice % each.length + 1, each.length));
            slice /= each.length;
        }
        iterations.reverse();
        iterations
    }

    /// The first value that is not finite on a way of such values to those that are wanted. An input of the step comes
    /// before any op: no state is infinite on purpose.
    fn first(&self, (level, is_step): (&Graph, bool), wanted: &[Value]) -> Option<NotFiniteValue> {
        let kind = |value: &Value, iteration: usize| {
            self.of_value.get(value).map_or(probe::FINITE, |judged| judged.kinds[iteration])
        };
        let is_nan = |value: &Value, iteration| kind(value, iteration) == probe::NAN;
        let is_bad = |value: &Value, iteration| kind(value, iteration) != probe::FINITE;
        // An op may make an infinite number on purpose, but not NaN.
        let order = self.order();
        let with_nan = order.iter().find(|&&iteration| wanted.iter().any(|value| is_nan(value, iteration)));
        let with_any = || order.iter().find(|&&iteration| wanted.iter().any(|value| is_bad(value, iteration)));
        let iteration = *with_nan.or_else(with_any)?;
        let on_way = ways_back(level, wanted, |value| is_bad(value, iteration));
        let nan = on_way.iter().filter(|value| is_nan(value, iteration)).min();
        let is_input = |value: &&Value| is_step && matches!(level.definition(**value), Definition::Input(_));
        let input = on_way.iter().filter(is_input).min();
        let value = *input.or(nan).or_else(|| on_way.iter().min())?;
        let is_infinite = |value: &Value| kind(value, iteration) == probe::INFINITE;
        let operands = level.defining_node(value).map_or(&[][..], |node| node.operands());
        let infinite = nan.and_then(|_| ways_back(level, operands, is_infinite).into_iter().min());
        Some(NotFiniteValue { value, iteration, infinite })
    }
}

/// All values from which such values lead to the wanted ones, which are among them.
fn ways_back(level: &Graph, wanted: &[Value], is_such: impl Fn(&Value) -> bool) -> HashSet<Value> {
    let mut found: HashSet<Value> = HashSet::new();
    let mut left: Vec<Value> = wanted.to_vec();
    while let Some(value) = left.pop() {
        if is_such(&value) && found.insert(value) {
            left.extend(level.defining_node(value).into_iter().flat_map(|node| node.operands().iter().copied()));
        }
    }
    found
}

impl<M: Model, D: Dataset<M>> Trainer<M, D> {
    /// Finds what makes loss or gradient norm of a step other than finite, from the present state on the batch of that
    /// step: after [`NotFinite`](crate::error::NotFinite), of its first step. Returns none if they are finite.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn find_nan(&mut self, step: u64) -> Result<Option<FirstNotFinite>, Error> {
        let function = self.run.step.trace(Calls::Single)?;
        let graph = erase_markers(function.graph());
        let batch = self.batch_of(step)?.leaves();
        // The loss and the gradient norm come after the state.
        let numbers = graph.outputs().len().saturating_sub(2);
        let mut ways = vec![Vec::new()];
        let mut wanted = graph.outputs()[numbers..].to_vec();
        let mut found = None;
        // One of the bodies of an op has the number: that of the branch which ran.
        while let Some(way) = ways.pop() {
            let Some(level) = probe::level(&graph, &way) else { continue };
            let judged = self.judge_level(step, (&graph, &way), &batch)?;
            let wanted_here: Vec<Value> = match (&found, way.last()) {
                (Some((_, result)), Some(_)) => level.outputs().get(*result).copied().into_iter().collect(),
                _ => std::mem::take(&mut wanted),
            };
            let Some(place) = judged.first((level, way.is_empty()), &wanted_here) else { continue };
            let Some(of_value) = judged.of_value.get(&place.value) else { continue };
            let first = FirstNotFinite {
                maker: Maker::of(level, place.value),
                ty: level.ty(place.value).clone(),
                is_nan: of_value.kinds[place.iteration] == probe::NAN,
                infinite: place.infinite.map(|value| Maker::of(level, value)),
                loops: loops_of(&graph, &way).into_iter().zip(judged.iterations(place.iteration)).collect(),
                devices: of_value.devices.clone(),
            };
            ways.clear();
            let mut result = 0;
            if let Definition::Result(node, index) = level.definition(place.value) {
                let op = level.node(node).op();
                result = index as usize;
                if probe::can_probe(op) {
                    ways.extend((0..op.regions().count()).map(|region| [&way[..], &[(node, region)]].concat()));
                }
            }
            found = Some((first, result));
        }
        Ok(found.map(|(first, _)| first))
    }

    /// Judges the values of a level, from the present state.
    fn judge_level(
        &self,
        step: u64,
        (graph, way): (&Graph, &probe::Way),
        batch: &Vec<Literal>,
    ) -> Result<Level, Error> {
        let probe = probe::probe(graph, way)?;
        let program = self.compile_beside_step(&probe.graph)?;
        let mut arguments = self.state.leaves();
        arguments.extend(program.put(arguments.len(), batch)?);
        let arguments = laid_out_for(&program, arguments)?;
        let time_limit = self.run.config().train.time_limit;
        let arguments: Vec<&Array> = arguments.iter().collect();
        let outputs = execute(Execution::Step(step), &program, &arguments, time_limit)?;
        let judged = probe.values.iter().zip(&outputs).map(|(&value, kinds)| Ok((value, judged(kinds)?)));
        Ok(Level { of_value: judged.collect::<Result<_, Error>>()?, loops: probe.loops })
    }
}

/// Reads what a program says of a value. Copies of what should be the same may differ.
fn judged(kinds: &Array) -> Result<Probed, Error> {
    let layout = kinds.layout();
    let own: Vec<usize> = layout.own_devices().collect();
    let is_whole = |device: usize| layout.boxes()[device].iter().map(Range::len).eq(kinds.ty().dims.iter().copied());
    if !own.iter().all(|&device| is_whole(device)) {
        return Ok(Probed { kinds: kinds.get()?.to_f64_vec(), devices: Vec::new() });
    }
    let mut worst = vec![probe::FINITE; kinds.ty().element_count()];
    let mut devices = Vec::new();
    for &device in &own {
        let here = kinds.shard(device)?.to_f64_vec();
        if here.iter().any(|kind| *kind != probe::FINITE) {
            devices.push(device);
        }
        worst.iter_mut().zip(here).for_each(|(worst, kind)| *worst = worst.max(kind));
    }
    if devices.len() == own.len() {
        devices.clear();
    }
    Ok(Probed { kinds: worst, devices })
}

/// The scopes of the loops on a way.
fn loops_of(graph: &Graph, way: &probe::Way) -> Vec<String> {
    let mut scopes = Vec::new();
    for (depth, &(node, _)) in way.iter().enumerate() {
        let Some(level) = probe::level(graph, &way[..depth]) else { break };
        let node = level.node(node);
        if matches!(node.op(), Op::Scan(_)) {
            scopes.push(scope_of(node.origin()));
        }
    }
    scopes
}
