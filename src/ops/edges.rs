//! The data flow of ops with regions: where values enter a region, go round in it and leave it.
//!
//! An op with regions says with [`Op::edges`] how its operands and results hang together with the inputs and outputs of
//! its bodies, and with [`Op::executions`] how often each body runs. A pass that only follows values asks there and
//! never matches on a region op, so that it treats them all, and one that is added later, alike.
//!
//! An [`Edge`] is one value on its whole way through an op. It may have several ends, since branches share their
//! operands, and since a loop's carry is one value before, in and after an iteration:
//!
//! | op | edge | source | inputs | outputs | target |
//! |---|---|---|---|---|---|
//! | `call`, `checkpoint` | argument `i` | operand `i` | `i` | | |
//! | | result `k` | | | `k` | result `k` |
//! | `cond` | choice | operand 0 | | | control |
//! | | argument `i` | operand `i + 1` | `i` of every branch | | |
//! | | result `k` | | | `k` of every branch | result `k` |
//! | `custom-vjp` | argument `i` | operand `i` | `i` of primal and forward rule | | |
//! | | result `k` | | | `k` of primal and forward rule | result `k` |
//! | | residual | | of the backward rule | of the forward rule | |
//! | | cotangent of a result | cotangent | of the backward rule | | |
//! | | cotangent of an operand | | | of the backward rule | cotangent |
//! | `scan` | invariant `i` | operand `i` | `i` | | |
//! | | carry `c` | its operand | its input | `c` | result `c` |
//! | | slices | its operand, sliced | its input | | |
//! | | stack | | | its output | its result, stacked |
//! | `while` | invariant `i` | operand `i` | `i` of condition and body | | |
//! | | carry `c` | its operand | its input of condition and body | `c` of the body | result `c` |
//! | | whether to go on | | | 0 of the condition | control |
//!
//! These statements hold for every op:
//! - Each operand is the source of exactly one edge, and each result is the target of exactly one; each input and
//!   output of each body is on exactly one.
//! - All ends of an edge have the same type, except that the ends of a [sliced](Edge::sliced) edge outside the regions
//!   have one dimension more.
//! - The source feeds the inputs when the op begins. An edge from an operand to a result is carried: after each
//!   iteration the outputs feed the inputs of the next. The target gets the last values of the outputs; if no body has
//!   run, it gets the source.
//! - A body reads nothing else and gives nothing else: a region is closed.
//!
//! [`Op::edges`]: super::Op::edges
//! [`Op::executions`]: super::Op::executions

use smallvec::SmallVec;

use crate::ir::Graph;

/// How often a region runs each time its op does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executions {
    /// Once.
    Once,
    /// Once or not at all: the op has several such regions and runs one of them.
    AtMostOnce,
    /// The region runs this many times, one after the other.
    Times(usize),
    /// The region runs at most this many times, maybe never, one after the other.
    AtMost(usize),
    /// Any number of times, maybe none, one after the other.
    Unknown,
    /// Never: differentiation puts it in the place of the op.
    InDerivative,
}

impl Executions {
    /// Whether the number of runs is decided only while the program runs, so that nothing can be kept of each run.
    pub fn is_open(self) -> bool {
        matches!(self, Executions::AtMost(_) | Executions::Unknown)
    }
}

/// An input or output of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The index of the region in [`Op::regions`](super::Op::regions).
    pub region: usize,
    /// The index among the region's inputs or outputs.
    pub index: usize,
}

/// The source of a value that an edge brings into regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: a region makes it.
    Inside,
    /// The operand with this index.
    Operand(usize),
    /// The cotangent of the result with this index.
    Cotangent(usize),
}

/// The destination of a value that an edge takes out of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nowhere: only regions read it.
    Inside,
    /// It decides which region runs, or whether one runs again. So it decides about every result, though it is part of
    /// none.
    Control,
    /// The result with this index.
    Result(usize),
    /// The cotangent of the operand with this index.
    Cotangent(usize),
}

/// One value on its way through an op with regions. The [module](crate::ops::edges) lists the statements that hold for
/// all edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The value that feeds the inputs at first.
    pub source: Source,
    /// The region inputs that have the value.
    pub inputs: SmallVec<[Port; 2]>,
    /// The region outputs that make the value, or make it anew for the next iteration.
    pub outputs: SmallVec<[Port; 2]>,
    /// The destination of the value at last.
    pub target: Target,
    /// Whether each iteration has a slice of its own: outside, the value has a leading dimension, whose size is the
    /// number of iterations; an input is one slice of it, and an output is stacked to it.
    pub sliced: bool,
}

impl Edge {
    pub(super) fn new(source: Source, target: Target) -> Edge {
        Edge { source, inputs: SmallVec::new(), outputs: SmallVec::new(), target, sliced: false }
    }

    /// Creates the edge of an operand that enters the same input of some regions.
    pub(super) fn argument(operand: usize, index: usize, regions: impl Iterator<Item = usize>) -> Edge {
        let inputs = regions.map(|region| Port { region, index }).collect();
        Edge { inputs, ..Edge::new(Source::Operand(operand), Target::Inside) }
    }

    /// Creates the edge of the output of some regions that is the result with the same index.
    pub(super) fn result_of(index: usize, regions: impl Iterator<Item = usize>) -> Edge {
        let outputs = regions.map(|region| Port { region, index }).collect();
        Edge { outputs, ..Edge::new(Source::Inside, Target::Result(index)) }
    }

    /// The operand that the edge begins with.
    pub fn operand(&self) -> Option<usize> {
        match self.source {
            Source::Operand(index) => Some(index),
            Source::Inside | Source::Cotangent(_) => None,
        }
    }

    /// The result that the edge ends in.
    pub fn result(&self) -> Option<usize> {
        match self.target {
            Target::Result(index) => Some(index),
            Target::Inside | Target::Control | Target::Cotangent(_) => None,
        }
    }

    /// Whether the edge is a loop's carry: a value that one iteration gives the next.
    pub fn is_carried(&self) -> bool {
        self.operand().is_some() && self.result().is_some()
    }
}

/// The edges of an op whose only region takes the operands and returns the results.
pub(super) fn plain_edges(body: &Graph) -> Vec<Edge> {
    let inputs = (0..body.inputs().len()).map(|index| Edge::argument(index, index, 0..1));
    inputs.chain((0..body.outputs().len()).map(|index| Edge::result_of(index, 0..1))).collect()
}

/// The edges of a loop's invariants and carries. These regions have them as inputs, and the last region returns the
/// carries first.
pub(super) fn loop_edges(invariant_count: usize, carry_count: usize, regions: std::ops::Range<usize>) -> Vec<Edge> {
    let last = regions.end - 1;
    let edge = |index: usize| {
        let mut edge = Edge::argument(index, index, regions.clone());
        if let Some(carry) = index.checked_sub(invariant_count) {
            edge.outputs.push(Port { region: last, index: carry });
            edge.target = Target::Result(carry);
        }
        edge
    };
    (0..invariant_count + carry_count).map(edge).collect()
}
