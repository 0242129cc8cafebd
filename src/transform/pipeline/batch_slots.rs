//! Where the rows of a batch lie while microbatches enter a pipeline, and leave it.

use super::PipelineOptions;
use crate::ir::{AxisNames, Name};
use crate::ops::WithAxes;
use crate::trace::{Tensor, zeros};

/// `[B, ..]` as `[S, M/S, mb, ..]`, where microbatches fill the slots.
fn split_rows(options: &PipelineOptions, rows: Tensor) -> Tensor {
    let &PipelineOptions { stages, microbatches, .. } = options;
    let dims = rows.dims();
    let cut = [stages, dims[0] / microbatches, microbatches / stages];
    let order: Vec<i32> = [0, 2, 1].into_iter().chain(3..dims.len() as i32 + 2).collect();
    rows.reshape([&cut, &dims[1..]].concat()).transpose(&order[..])
}

/// `[B, ..]` as `[M, mb, ..]`, where microbatches do not fill the slots.
fn rows_by_microbatch(options: &PipelineOptions, rows: Tensor) -> Tensor {
    let dims = rows.dims();
    let cut = [dims[0] / options.microbatches, options.microbatches];
    let order: Vec<i32> = [1, 0].into_iter().chain(2..dims.len() as i32 + 1).collect();
    rows.reshape([&cut, &dims[1..]].concat()).transpose(&order[..])
}

/// Inputs as they enter a pipeline: `[S, M/S, mb, ..]`. Where microbatches do not fill the slots, there are zeros
/// behind the last, and microbatch `m` has the rows `row M + m`.
pub(super) fn into_slots(options: &PipelineOptions, x: Tensor, names: &AxisNames) -> Tensor {
    let &PipelineOptions { stages, microbatches, .. } = options;
    let split = match microbatches.is_multiple_of(stages) {
        true => split_rows(options, x),
        false => {
            let (rows, slots) = (rows_by_microbatch(options, x), microbatches.div_ceil(stages));
            let padded = rows.pad(0, 0, (stages * slots - microbatches) as i64, 0.0);
            // The rows can be padded, and cut again on the way back, only while they are whole.
            let whole = [&[Name::new("")], &names[1..]].concat();
            let padded = padded.with_logical_axes(WithAxes::new(whole.into()));
            padded.reshape([&[stages, slots], without_first(&rows.dims(), 1)].concat())
        }
    };
    let names = [&names[..1], &[Name::new("")], &names[1..]].concat();
    split.with_logical_axes(WithAxes::new(names.into()))
}

/// Dimensions without the first ones. A tensor that stands for an error has none.
pub(super) fn without_first(dims: &[usize], count: usize) -> &[usize] {
    dims.get(count..).unwrap_or_default()
}

/// Results as they have left a pipeline, `[S, M/S, mb, ..]`, as a batch like `x`.
pub(super) fn out_of_slots(options: &PipelineOptions, io: Tensor, x: Tensor, names: &AxisNames) -> Tensor {
    // With one repeat, results take the slots that inputs leave, and the first is ready after `lag` iterations.
    let io = if options.repeats == 1 { in_order(options, io, options.lag()) } else { io };
    if !options.microbatches.is_multiple_of(options.stages) {
        let dims = io.dims();
        let all = io.reshape([&[dims[0] * dims[1]], without_first(&dims, 2)].concat());
        // The rows can be cut only while they are whole.
        let whole = [&[Name::new("")], &names[1..]].concat();
        let rows = all.with_logical_axes(WithAxes::new(whole.into())).slice(0, 0..options.microbatches);
        let order: Vec<i32> = [1, 0].into_iter().chain(2..rows.rank() as i32).collect();
        return rows.transpose(&order[..]).reshape(x.dims());
    }
    let order: Vec<i32> = [0, 2, 1].into_iter().chain(3..io.rank() as i32).collect();
    io.transpose(&order[..]).reshape(x.dims())
}

/// `[S, M/S, mb, ..]`, the first slot of which was written `late` iterations after the first.
pub(super) fn in_order(options: &PipelineOptions, io: Tensor, late: usize) -> Tensor {
    match late % options.microbatches.div_ceil(options.stages) {
        0 => io,
        late => io.roll(1, -(late as i64)),
    }
}

/// Rows by microbatches, `[M, mb, ..]`.
pub(super) fn by_microbatch(options: &PipelineOptions, rows: Tensor) -> Tensor {
    if !options.microbatches.is_multiple_of(options.stages) {
        return rows_by_microbatch(options, rows);
    }
    let split = split_rows(options, rows);
    split.reshape([&[options.microbatches], &split.dims()[2..]].concat())
}

/// `[..]` as `[S, ..]`.
pub(super) fn on_every_stage(options: &PipelineOptions, x: Tensor) -> Tensor {
    let dims = [&[options.stages], &x.dims()[..]].concat();
    let axes: Vec<i32> = (1..dims.len() as i32).collect();
    x.broadcast_like(zeros(x.dtype(), &dims), &axes[..])
}
