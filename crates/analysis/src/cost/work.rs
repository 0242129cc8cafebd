//! The operations, and the bytes read and written, of one execution of an instruction.
//!
//! Operations are counted as in `HloCostAnalysis` (hlo_cost_analysis.cc in XLA); comments mark what differs.

use std::cell::RefCell;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::operands::{Operands, bytes_of, elements_of};
use super::{Work, convolution, custom_call};
use crate::async_collectives::is_in_chain;
use crate::chips::Arithmetic;
use crate::index::{Computation, Module};
use crate::size::product;
use meshloom_hlo::opcode;
use meshloom_hlo::proto::{DotDimensionNumbers, HloInstructionProto};

/// Deeper nests of fusions than any compiler makes.
const DEPTH_LIMIT: usize = 64;

/// Constants of more elements are read from memory by the fusion they are in.
const IMMEDIATE_ELEMENTS: u64 = 8;

/// Counts the work of a module's instructions. The work of a called computation is counted once and kept.
pub(crate) struct Counter<'m, 'a> {
    module: &'m Module<'a>,
    inside: RefCell<FxHashMap<i64, Work>>,
    reads: RefCell<FxHashMap<i64, Rc<OperandReads>>>,
}

/// Bytes that a computation reads as a fusion.
#[derive(Default)]
struct OperandReads {
    total: u64,
    /// The bytes that are read of each parameter, by its number.
    parameters: FxHashMap<i64, u64>,
    /// Whether it is a part of an asynchronous collective's chain.
    is_in_chain: bool,
}

impl<'m, 'a> Counter<'m, 'a> {
    pub(crate) fn new(module: &'m Module<'a>) -> Counter<'m, 'a> {
        Counter { module, inside: RefCell::default(), reads: RefCell::default() }
    }

    /// The work of an instruction and its contents; zero for an instruction that only runs other computations, whose
    /// instructions count themselves.
    pub(crate) fn work(&self, computation: &Computation<'a>, instruction: &HloInstructionProto) -> Work {
        self.work_at(computation, instruction, 0)
    }

    fn work_at(&self, computation: &Computation<'a>, instruction: &HloInstructionProto, depth: usize) -> Work {
        let operands = Operands { computation, instruction };
        let opcode = instruction.opcode.as_str();
        match opcode {
            "fusion" => self.fusion(&operands, depth),
            "custom-call" => custom_call::work(&operands),
            _ if is_free(opcode) => Work::default(),
            _ => self.computed(&operands, depth).with_bytes(moved(&operands)),
        }
    }

    /// Operations, without bytes.
    fn computed(&self, operands: &Operands<'_, 'a>, depth: usize) -> Work {
        let Operands { instruction, .. } = *operands;
        let results = || operands.result_elements();
        let first = || operands.elements(0);
        let simple = |flops| Work::flops(flops, Arithmetic::of_elements(operands.result_type()));
        match instruction.opcode.as_str() {
            "dot" | "scaled-dot" => simple_dot(operands, instruction.dot_dimension_numbers.as_deref(), results()),
            "ragged-dot" => ragged_dot(operands),
            "convolution" => Work::flops(convolution::flops(operands), operands.arithmetic()),
            // The transform makes complex multiplications, of four multiplications and additions each.
            "fft" => {
                let levels = product(instruction.fft_length.iter().map(|&size| i64::from(log2_floor(size))));
                simple(first().saturating_mul(levels).saturating_mul(8))
            }
            "triangular-solve" => simple(operands.elements(1).saturating_mul(operands.last_size(0)).saturating_mul(2)),
            "cholesky" => simple(first().saturating_mul(operands.last_size(0)) / 3),
            // Two values are added for each element, as in a group of two.
            "all-reduce" | "all-reduce-start" => simple(results()),
            // A merge sort makes this many comparisons.
            "sort" => simple(first().saturating_mul(u64::from(log2_ceiling(first())))),
            "rng" | "rng-bit-generator" => Work { transcendentals: results(), ..Work::default() },
            "map" => self.applied(instruction, 0, results(), depth),
            "reduce" => self.applied(instruction, 0, first().saturating_sub(operands.first_result_elements()), depth),
            "reduce-window" => {
                let window = operands.window_elements().saturating_sub(1);
                self.applied(instruction, 0, window.saturating_mul(operands.first_result_elements()), depth)
            }
            "select-and-scatter" => {
                let source = operands.elements(1);
                let selected = source.saturating_mul(operands.window_elements().saturating_sub(1));
                self.applied(instruction, 0, selected, depth).plus(self.applied(instruction, 1, source, depth))
            }
            // The operands are the target, the indices and the updates.
            "scatter" => {
                let first_update = operands.count().div_ceil(2);
                self.applied(instruction, 0, operands.elements(first_update), depth)
            }
            opcode if opcode::is_transcendental(opcode) => Work { transcendentals: results(), ..Work::default() },
            opcode if opcode::is_arithmetic(opcode) => simple(results()),
            _ => Work::default(),
        }
    }

    /// Returns the work of a computation of scalars that is applied this many times. Values inside it have no memory.
    fn applied(&self, instruction: &HloInstructionProto, position: usize, times: u64, depth: usize) -> Work {
        let callee = instruction.called_computation_ids.get(position).copied();
        callee.map_or_else(Work::default, |callee| self.inside(callee, depth)).computed_only().times(times)
    }

    /// Returns the work of a fusion: it computes its contents, reads its inputs and writes its outputs.
    fn fusion(&self, operands: &Operands<'_, 'a>, depth: usize) -> Work {
        let callees = &operands.instruction.called_computation_ids;
        let inside = callees.first().map_or_else(Work::default, |&callee| self.inside(callee, depth));
        let Some(callee) = self.module.callee(operands.instruction, 0) else { return inside };
        let reads = self.fusion_reads(callee, depth);
        inside.computed_only().with_bytes((reads.total, fusion_writes(operands, callee, reads.is_in_chain)))
    }

    /// Returns the operations of all instructions of a computation.
    fn inside(&self, callee: i64, depth: usize) -> Work {
        if let Some(known) = self.inside.borrow().get(&callee) {
            return *known;
        }
        // A computation that calls itself has no work of its own.
        let Some(computation) = self.module.number(callee).map(|number| &self.module.computations()[number]) else {
            return Work::default();
        };
        if depth >= DEPTH_LIMIT {
            return Work::default();
        }
        self.inside.borrow_mut().insert(callee, Work::default());
        let work = computation.instructions().iter().fold(Work::default(), |work, instruction| {
            let inner = match instruction.opcode.as_str() {
                "call" | "fusion" | "async-start" => instruction
                    .called_computation_ids
                    .first()
                    .map_or_else(Work::default, |&callee| self.inside(callee, depth + 1)),
                _ => self.work_at(computation, instruction, depth + 1),
            };
            work.plus(inner.computed_only())
        });
        self.inside.borrow_mut().insert(callee, work);
        work
    }

    /// Returns the bytes that a fusion reads: of each parameter the bytes that its users read, and constants that are
    /// too large to be part of the code (`FusionParameterReadBytes`, hlo_cost_analysis.cc in XLA).
    fn fusion_reads(&self, callee: &Computation<'a>, depth: usize) -> Rc<OperandReads> {
        let id = callee.proto().id;
        if let Some(known) = self.reads.borrow().get(&id) {
            return known.clone();
        }
        // A fusion that contains itself reads nothing there.
        self.reads.borrow_mut().insert(id, Rc::default());
        let users = callee.readers();
        let mut reads =
            OperandReads { is_in_chain: callee.instructions().iter().any(is_in_chain), ..OperandReads::default() };
        let passes_on = callee.root().filter(|root| reads.is_in_chain && root.opcode == "tuple").map(|root| root.id);
        for (position, instruction) in callee.instructions().iter().enumerate() {
            let bytes = match instruction.opcode.as_str() {
                "parameter" => self.read_by_users((callee, passes_on), &users, position, depth),
                "constant" if elements_of(instruction) > IMMEDIATE_ELEMENTS => bytes_of(instruction),
                _ => continue,
            };
            reads.total = reads.total.saturating_add(bytes);
            if instruction.opcode == "parameter" {
                reads.parameters.insert(instruction.parameter_number, bytes);
            }
        }
        let reads = Rc::new(reads);
        self.reads.borrow_mut().insert(id, reads.clone());
        reads
    }

    /// `passes_on` is the root of a part of an asynchronous collective's chain, which hands on what is under way.
    fn read_by_users(
        &self,
        (callee, passes_on): (&Computation<'a>, Option<i64>),
        users: &[Vec<usize>],
        position: usize,
        depth: usize,
    ) -> u64 {
        let value = &callee.instructions()[position];
        let whole = bytes_of(value);
        let (mut bytes, mut read_whole) = (0u64, false);
        for &user in &users[position] {
            let user = &callee.instructions()[user];
            // The device does not read what a transfer takes along, or what is only handed on.
            if is_in_chain(user) || passes_on == Some(user.id) {
                continue;
            }
            let is_first = user.operand_ids.first() == Some(&value.id);
            bytes = bytes.saturating_add(match user.opcode.as_str() {
                "slice" => bytes_of(user),
                "dynamic-slice" if is_first => bytes_of(user),
                // XLA counts the whole table, however few rows are read.
                "gather" if is_first => bytes_of(user).min(whole),
                // The updated elements are not read.
                "dynamic-update-slice" if is_first => 0,
                "get-tuple-element" => match callee.position(user.id) {
                    Some(part) if depth < DEPTH_LIMIT => {
                        self.read_by_users((callee, passes_on), users, part, depth + 1)
                    }
                    _ => 0,
                },
                "broadcast" | "reshape" => whole,
                "fusion" => self.read_by_fusion(value, user, depth),
                // The other users read it together.
                _ if read_whole => 0,
                _ => {
                    read_whole = true;
                    whole
                }
            });
        }
        bytes
    }

    /// Returns the bytes that a fusion in a fusion reads of a value.
    fn read_by_fusion(&self, value: &HloInstructionProto, fusion: &HloInstructionProto, depth: usize) -> u64 {
        let Some(inner) = self.module.callee(fusion, 0).filter(|_| depth < DEPTH_LIMIT) else { return bytes_of(value) };
        let reads = self.fusion_reads(inner, depth + 1);
        let numbers = (0..).zip(&fusion.operand_ids).filter(|(_, id)| **id == value.id);
        let bytes = numbers.map(|(number, _)| reads.parameters.get(&number).copied().unwrap_or(0));
        bytes.fold(0, u64::saturating_add)
    }
}

/// Returns the bytes that a fusion writes: those it updates in place, else its results. A part of an asynchronous
/// collective's chain also hands on what is under way.
fn fusion_writes(operands: &Operands<'_, '_>, callee: &Computation<'_>, is_chain: bool) -> u64 {
    let Some(root) = callee.root() else { return operands.result_bytes() };
    let written = |part: &HloInstructionProto| match part.opcode.as_str() {
        "parameter" if is_chain => 0,
        _ if is_in_chain(part) => 0,
        "dynamic-update-slice" => callee.operand(part, 1).map_or(0, bytes_of),
        _ => bytes_of(part),
    };
    match root.opcode.as_str() {
        "tuple" => callee.operands(root).flatten().map(written).fold(0, u64::saturating_add),
        _ => written(root),
    }
}

/// Returns the bytes read and written. Slices and gathers read what they return; updates write what they are given.
fn moved(operands: &Operands<'_, '_>) -> (u64, u64) {
    let result = operands.result_bytes();
    let from =
        |first: usize| (first..operands.count()).map(|position| operands.bytes(position)).fold(0, u64::saturating_add);
    match operands.instruction.opcode.as_str() {
        "slice" => (result, result),
        "dynamic-slice" => (result.saturating_add(from(1)), result),
        "gather" => (result.saturating_add(operands.bytes(1)), result),
        "dynamic-update-slice" => (operands.bytes(1).saturating_add(from(2)), operands.bytes(1)),
        // The old elements, the indices and the updates are read; the sums are written.
        "scatter" => {
            let count = operands.count() / 2;
            let updates = from(count + 1);
            (updates.saturating_mul(2).saturating_add(operands.bytes(count)), updates)
        }
        // One triangle is half of a matrix.
        "triangular-solve" => ((operands.bytes(0) / 2).saturating_add(operands.bytes(1)), result),
        "cholesky" => (operands.bytes(0) / 2, result / 2),
        _ => (operands.all_bytes(), result),
    }
}

/// Whether an opcode computes nothing itself: it names or groups values, waits, or runs other computations.
fn is_free(opcode: &str) -> bool {
    match opcode {
        "add-dependency" | "after-all" | "async-done" | "async-start" | "async-update" | "bitcast" | "call"
        | "conditional" | "constant" | "domain" | "get-dimension-size" | "get-tuple-element" | "opt-barrier"
        | "parameter" | "partition-id" | "replica-id" | "scan" | "tuple" | "while" => true,
        _ => opcode.ends_with("-done"),
    }
}

/// Whether an opcode computes each element of its result from the same elements of its operands.
pub(crate) fn is_by_element(opcode: &str) -> bool {
    opcode::is_arithmetic(opcode) || opcode::is_transcendental(opcode)
}

/// Returns the operations of a product: a multiplication and an addition for each element of the result and of the
/// contracted dimensions.
fn simple_dot(operands: &Operands<'_, '_>, numbers: Option<&DotDimensionNumbers>, results: u64) -> Work {
    let contracted = contracted(operands, numbers);
    Work::flops(results.saturating_mul(contracted).saturating_mul(2), operands.arithmetic())
}

fn contracted(operands: &Operands<'_, '_>, numbers: Option<&DotDimensionNumbers>) -> u64 {
    let Some(left) = operands.shape(0) else { return 0 };
    let numbers = numbers.map_or(&[][..], |numbers| &numbers.lhs_contracting_dimensions);
    let size = |&dimension: &i64| usize::try_from(dimension).ok().and_then(|dimension| left.dimensions.get(dimension));
    product(numbers.iter().filter_map(size).copied())
}

/// Each row of the left operand is multiplied with one group of the right one. If the contracted dimension is cut into
/// groups, each group has a result of its own, and all of them together contract it once. (XLA leaves out a dimension
/// of the result in every case.)
fn ragged_dot(operands: &Operands<'_, '_>) -> Work {
    let Some(ragged) = operands.instruction.ragged_dot_dimension_numbers.as_deref() else { return Work::default() };
    let numbers = ragged.dot_dimension_numbers.as_ref();
    let cut = numbers.is_some_and(|numbers| {
        ragged.lhs_ragged_dimensions.iter().any(|dimension| numbers.lhs_contracting_dimensions.contains(dimension))
    });
    let results = match operands.first_result() {
        Some(result) if cut => product(result.dimensions.iter().skip(1).copied()),
        _ => operands.result_elements(),
    };
    simple_dot(operands, numbers, results)
}

fn log2_floor(number: i64) -> u32 {
    u64::try_from(number).ok().and_then(u64::checked_ilog2).unwrap_or(0)
}

fn log2_ceiling(number: u64) -> u32 {
    number.checked_next_power_of_two().map_or(64, u64::trailing_zeros)
}
