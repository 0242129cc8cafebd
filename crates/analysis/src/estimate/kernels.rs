//! The time that one execution of each instruction takes to compute, after a compiler has fused what it will.

use super::hardware::Hardware;
use crate::chips::Arithmetic;
use crate::cost::Counter;
use crate::fused::{computed_in_readers, computed_with_readers};
use crate::index::{Computation, Module};
use crate::size::shape_bytes;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::proto::HloInstructionProto;

/// Cheap arithmetic is repeated for up to this many readers, rather than written and read again.
const MOST_READERS: u32 = 3;

/// The times of the instructions of a module's computations.
pub(super) struct Kernels<'m, 'a> {
    module: &'m Module<'a>,
    counter: Counter<'m, 'a>,
    hardware: &'m Hardware,
}

/// The work of a value that its readers compute.
#[derive(Clone, Copy, Default)]
struct Inside {
    flops: f64,
    bytes: f64,
}

impl<'m, 'a> Kernels<'m, 'a> {
    pub(super) fn new(module: &'m Module<'a>, hardware: &'m Hardware) -> Kernels<'m, 'a> {
        Kernels { module, counter: Counter::new(module), hardware }
    }

    /// Returns the seconds of each instruction of a computation, by position. They are 0 for an instruction that costs
    /// nothing, is part of its readers, or only runs other computations.
    pub(super) fn seconds(&self, number: usize) -> Vec<f64> {
        let computation = &self.module.computations()[number];
        let mut is_inside = computed_in_readers(computation, MOST_READERS);
        let is_shared = computed_with_readers(computation, &is_inside);
        is_inside.iter_mut().zip(&is_shared).for_each(|(inside, &shared)| *inside |= shared);
        let mut inside = vec![Inside::default(); is_inside.len()];
        let mut seconds = vec![0.0; is_inside.len()];
        for (position, instruction) in computation.instructions().iter().enumerate() {
            let work = self.counter.work(computation, instruction);
            // The sums include work and reads through values that are never in memory.
            let (mut flops, mut bytes) = (work.flops as f64, work.bytes() as f64);
            let reads_slices = matches!(instruction.opcode.as_str(), "dynamic-slice" | "gather" | "slice");
            for operand in computation.operand_positions(instruction) {
                if !is_inside[operand] || work.bytes() == 0 {
                    continue;
                }
                let own = computation.instructions()[operand].shape.as_ref().and_then(shape_bytes).unwrap_or(0) as f64;
                // The kernel that all readers are part of computes it once: it is counted with the first.
                let Inside { flops: more, bytes: read } =
                    if is_shared[operand] { std::mem::take(&mut inside[operand]) } else { inside[operand] };
                flops += more;
                // A slice of a value that is computed on the way computes no more than the slice.
                if !reads_slices {
                    bytes = (bytes - own).max(0.0) + read.min(4.0 * own);
                }
            }
            if is_inside[position] {
                let own = instruction.shape.as_ref().and_then(shape_bytes).unwrap_or(0) as f64;
                // The value's operands are read, and the value is not written.
                inside[position] = Inside { flops, bytes: (bytes - own).max(0.0) };
                continue;
            }
            if work.flops == 0 && work.transcendentals == 0 && work.bytes() == 0 {
                continue;
            }
            let reads_inside = computation.operand_positions(instruction).any(|it| is_inside[it]);
            if !reads_inside && self.is_bitcast(computation, instruction) {
                continue;
            }
            seconds[position] = self.of_kernel(computation, instruction, flops, bytes, work.arithmetic());
        }
        seconds
    }

    /// Whether an instruction gives its operand other dimensions without moving it. On TPU the two minor dimensions are
    /// tiled; others are only counted differently.
    fn is_bitcast(&self, computation: &Computation<'a>, instruction: &HloInstructionProto) -> bool {
        if instruction.opcode != "reshape" {
            return false;
        }
        let operand = computation.operand(instruction, 0).and_then(|operand| operand.shape.as_ref());
        let (Some(from), Some(to)) = (operand, instruction.shape.as_ref()) else { return false };
        let minor = |dimensions: &[i64]| dimensions.iter().rev().copied().take(2).collect::<Vec<_>>();
        self.hardware.chip.backend != PlatformKind::Tpu || minor(&from.dimensions) == minor(&to.dimensions)
    }

    fn of_kernel(
        &self,
        computation: &Computation<'a>,
        instruction: &HloInstructionProto,
        flops: f64,
        bytes: f64,
        arithmetic: Option<Arithmetic>,
    ) -> f64 {
        let Hardware { chip, reached, .. } = self.hardware;
        let rate = arithmetic.and_then(|arithmetic| chip.matrix_rate(arithmetic));
        let filled = self.filled(computation, instruction);
        let computing = rate.map_or(0.0, |rate| flops / (rate * reached.products * filled));
        let cached = reached.cache.filter(|cache| bytes <= cache.bytes).map(|cache| cache.bandwidth);
        let memory = || chip.device_memory_bandwidth().map(|rate| rate * reached.memory);
        let moving = cached.or_else(memory).map_or(0.0, |rate| bytes / rate);
        computing.max(moving) + reached.kernel
    }

    /// Returns the part of the matrix unit's tiles that a product fills.
    fn filled(&self, computation: &Computation<'a>, instruction: &HloInstructionProto) -> f64 {
        let Some(numbers) = instruction.dot_dimension_numbers.as_deref().filter(|_| instruction.opcode == "dot") else {
            return 1.0;
        };
        let sizes = |position: usize, batch: &[i64], contracting: &[i64]| {
            let shape = computation.operand(instruction, position)?.shape.as_ref()?;
            let product = |is: &dyn Fn(&i64) -> bool| {
                let sizes = (0i64..).zip(&shape.dimensions).filter(|(dimension, _)| is(dimension));
                sizes.map(|(_, &size)| size.max(1) as u64).product::<u64>()
            };
            let free = product(&|dimension| !batch.contains(dimension) && !contracting.contains(dimension));
            Some((free, product(&|dimension| contracting.contains(dimension))))
        };
        let left = sizes(0, &numbers.lhs_batch_dimensions, &numbers.lhs_contracting_dimensions);
        let right = sizes(1, &numbers.rhs_batch_dimensions, &numbers.rhs_contracting_dimensions);
        let (Some((rows, contracted)), Some((columns, _))) = (left, right) else { return 1.0 };
        let part = |size: u64| size as f64 / size.next_multiple_of(self.hardware.reached.tile) as f64;
        // A product with a few rows is bound by memory, as the bytes say; its rows are not padded in addition.
        let rows = if rows < self.hardware.reached.tile { 1.0 } else { part(rows) };
        rows * part(columns.max(1)) * part(contracted.max(1))
    }
}
