//! Gather and scatter, against loops over XLA's definition.

use meshloom::ir::DType::{self, *};
use meshloom::ir::OpName;
use meshloom::ops::*;

use crate::harness::*;

/// One set of dimension numbers with sizes and start indices, some out of range.
struct Case {
    dims: GatherDims,
    operand: &'static [usize],
    slice: &'static [usize],
    indices: &'static [usize],
    starts: &'static [f64],
}

fn axes(list: &[usize]) -> AxisList {
    list.into()
}

fn cases() -> Vec<Case> {
    let dims = |offset: &[usize], collapsed: &[usize], map: &[usize], vector| GatherDims {
        offset_dims: axes(offset),
        collapsed_dims: axes(collapsed),
        start_index_map: axes(map),
        index_vector_dim: vector,
        ..GatherDims::default()
    };
    let batched = |dims: GatherDims, operand: &[usize], indices: &[usize]| GatherDims {
        operand_batch_dims: axes(operand),
        indices_batch_dims: axes(indices),
        ..dims
    };
    vec![
        // Rows of a table, as an embedding does; duplicates, and indices on both sides of the range.
        Case {
            dims: dims(&[1], &[0], &[0], 1),
            operand: &[5, 3],
            slice: &[1, 3],
            indices: &[7],
            starts: &[4.0, 0.0, 4.0, 7.0, -1.0, 2.0, 100.0],
        },
        Case {
            dims: dims(&[2], &[0], &[0], 2),
            operand: &[4, 2],
            slice: &[1, 2],
            indices: &[2, 3],
            starts: &[3.0, 3.0, -2.0, 0.0, 1.0, 9.0],
        },
        // Two components in another order than the dimensions; windows that overlap and leave the operand.
        Case {
            dims: dims(&[0, 2], &[], &[1, 0], 1),
            operand: &[4, 5],
            slice: &[2, 3],
            indices: &[4, 2],
            starts: &[1.0, 1.0, 2.0, 2.0, 3.0, 0.0, -1.0, 3.0],
        },
        // The components come first.
        Case {
            dims: dims(&[1], &[0], &[0, 1], 0),
            operand: &[4, 5],
            slice: &[1, 2],
            indices: &[2, 3],
            starts: &[0.0, 3.0, 3.0, 1.0, 3.0, 4.0],
        },
        // One element a row: a batch dimension.
        Case {
            dims: batched(dims(&[], &[1], &[1], 2), &[0], &[0]),
            operand: &[3, 4],
            slice: &[1, 1],
            indices: &[3, 2],
            starts: &[0.0, 3.0, 1.0, 1.0, 9.0, -4.0],
        },
        // Two batch dimensions, crosswise, and a window.
        Case {
            dims: batched(dims(&[1], &[], &[1], 3), &[0, 2], &[2, 0]),
            operand: &[2, 5, 3],
            slice: &[1, 2, 1],
            indices: &[3, 2, 2],
            starts: &[0.0, 1.0, 2.0, 3.0, 4.0, -1.0, 3.0, 3.0, 0.0, 0.0, 2.0, 9.0],
        },
        // A single index without dimensions.
        Case { dims: dims(&[0], &[0], &[0], 0), operand: &[4, 2], slice: &[1, 2], indices: &[], starts: &[2.0] },
        // No component at all: the whole operand, twice. Four elements, so that halves of it have two: with one, XLA's
        // CPU compiler drops all updates but one (JAX's `scatter_add` shows it too).
        Case { dims: dims(&[1], &[], &[], 1), operand: &[4], slice: &[4], indices: &[2, 0], starts: &[] },
    ]
}

impl Case {
    fn starts(&self, dtype: DType) -> Tensor {
        let mut tensor = Tensor::new(dtype, self.indices, self.starts);
        if !dtype.is_signed_integer() {
            // A negative start becomes one that is far out of range on the other side.
            let largest = 2f64.powi(dtype.bit_count() as i32) - 1.0;
            let fix = |&start: &f64| if start < 0.0 { largest } else { start };
            tensor = Tensor::new(dtype, self.indices, &self.starts.iter().map(fix).collect::<Vec<_>>());
        }
        tensor
    }

    fn window_dims(&self) -> Vec<usize> {
        let left_out =
            |dim: &usize| self.dims.collapsed_dims.contains(dim) || self.dims.operand_batch_dims.contains(dim);
        (0..self.operand.len()).filter(|dim| !left_out(dim)).collect()
    }

    /// The dimensions of the result or updates.
    fn result(&self) -> Vec<usize> {
        let mut batch = (0..self.indices.len()).filter(|&dim| dim != self.dims.index_vector_dim);
        let mut window = self.window_dims().into_iter();
        let rank = batch.clone().count() + window.len();
        (0..rank)
            .map(|dim| {
                if self.dims.offset_dims.contains(&dim) {
                    self.slice[window.next().unwrap()]
                } else {
                    self.indices[batch.next().unwrap()]
                }
            })
            .collect()
    }

    /// For an element of the result or updates: where its window starts, as given, and its place in the window.
    fn locate(&self, starts: &Tensor, result: &[usize]) -> (Vec<f64>, Vec<usize>) {
        let batch: Vec<usize> =
            (0..result.len()).filter(|dim| !self.dims.offset_dims.contains(dim)).map(|dim| result[dim]).collect();
        let position = |component: Option<usize>| {
            let mut index = batch.clone();
            if self.dims.index_vector_dim < self.indices.len() {
                index.insert(self.dims.index_vector_dim, component.unwrap_or(0));
            }
            index
        };
        let mut origin = vec![0.0; self.operand.len()];
        for (component, &axis) in self.dims.start_index_map.iter().enumerate() {
            origin[axis] = starts.at(&position(Some(component)));
        }
        for (&own, &partner) in self.dims.operand_batch_dims.iter().zip(&self.dims.indices_batch_dims) {
            origin[own] = position(None)[partner] as f64;
        }
        let mut offset = vec![0; self.operand.len()];
        for (&dim, &place) in self.window_dims().iter().zip(&self.dims.offset_dims) {
            offset[dim] = result[place];
        }
        (origin, offset)
    }

    fn gather(&self) -> Gather {
        let promise = IndexPromise::default();
        Gather { dims: Box::new(self.dims.clone()), slice_sizes: self.slice.into(), promise }
    }

    fn scatter(&self, kind: ScatterKind) -> Scatter {
        Scatter { dims: Box::new(self.dims.clone()), kind, promise: IndexPromise::default() }
    }
}

/// All index types with one element type, and one with all others.
fn index_types(dtype: DType) -> Vec<DType> {
    if dtype == F32 { vec![S8, S32, S64, U8, U32] } else { vec![S32] }
}

pub fn gather() -> Entry {
    let mut cases = cases();
    let rows = cases[0].gather();
    let change = |f: &dyn Fn(&mut Gather)| {
        let mut op = rows.clone();
        f(&mut op);
        op
    };
    let mut entry = Entry::new("gather")
        .accept(cases[5].gather(), "f32[2,5,3] s32[3,2,2] -> f32[3,2,2,2]")
        .accept(rows.clone(), "pred[5,3] u8[0] -> pred[0,3]")
        .reject(rows.clone(), "f32[5,3]", "expected 2 operands, found 1")
        .reject(rows.clone(), "f32[5,3] f32[7]", "the element type of operand 1 must be an integer type, found f32")
        .reject(rows.clone(), "f32[5] s32[7]", "operand 0 must have 2 dimensions, found 1")
        .reject(rows.clone(), "f32[] s32[7]", "axis 0 is out of range")
        .reject(rows.clone(), "f32[5,2] s32[7]", "a slice of 3 elements does not fit dimension 1 of size 2")
        .reject(rows.clone(), "f32[5,3] s32[]", "axis 1 is out of range or repeated for an operand with 0 dimensions")
        .reject(rows.clone(), "f32[5,3] s32[7,2]", "each index has 2 components, but 1 operand dimensions are indexed")
        .reject(change(&|op| op.slice_sizes[0] = 2), "f32[5,3] s32[7]", "which is collapsed or a batch dimension")
        .reject(
            change(&|op| op.dims.offset_dims = axes(&[])),
            "f32[5,3] s32[7]",
            "the window keeps 1 dimensions, but 0",
        )
        .reject(change(&|op| op.dims.offset_dims = axes(&[2])), "f32[5,3] s32[7]", "axis 2 is out of range")
        .reject(change(&|op| op.dims.offset_dims = axes(&[1, 0])), "f32[5,3] s32[7]", "dimensions must increase")
        .reject(change(&|op| op.dims.collapsed_dims = axes(&[0, 0])), "f32[5,3] s32[7]", "axis 0 is out of range")
        .reject(change(&|op| op.dims.start_index_map = axes(&[2])), "f32[5,3] s32[7]", "axis 2 is out of range")
        .reject(change(&|op| op.dims.index_vector_dim = 9), "f32[5,3] s32[7]", "axis 9 is out of range")
        .reject(cases[4].gather(), "f32[3,4] s32[4,2]", "dimension 0 of operand 1 must have size 3, found 4")
        .reject(
            change(&|op| op.dims.operand_batch_dims = axes(&[1])),
            "f32[5,3] s32[7]",
            "each batch dimension needs a partner",
        );
    for case in &cases {
        for dtype in DType::ALL {
            for index in index_types(dtype) {
                let (x, starts) = (distinct(dtype, case.operand), case.starts(index));
                let y = Tensor::from_fn(dtype, &case.result(), |result| {
                    let (origin, offset) = case.locate(&starts, result);
                    let place = |dim: usize| {
                        let last = (case.operand[dim] - case.slice[dim]) as f64;
                        origin[dim].clamp(0.0, last) as usize + offset[dim]
                    };
                    x.at(&(0..case.operand.len()).map(place).collect::<Vec<_>>())
                });
                entry = entry.run(case.gather(), &[x, starts], [y], 0.0);
            }
        }
        for index in [S32, U8] {
            entry = entry.gradient(case.gather(), &[f64s(case.operand), case.starts(index)]);
        }
    }
    // Limits that the index type cannot hold.
    let wide = Case {
        dims: GatherDims { start_index_map: axes(&[0, 1]), index_vector_dim: 1, ..cases[2].dims.clone() },
        operand: &[300, 2],
        slice: &[2, 1],
        indices: &[3, 2],
        starts: &[100.0, 1.0, 127.0, 0.0, -3.0, 0.0],
    };
    let inside = Case { starts: &[4.0, 0.0, 4.0, 1.0, 2.0, 3.0, 0.0], ..cases.swap_remove(0) };
    let op = Gather { promise: IndexPromise { in_bounds: true, ..IndexPromise::default() }, ..inside.gather() };
    entry
        .gradient(op, &[f64s(inside.operand), inside.starts(S32)])
        .gradient_in(wide.gather(), &[f64s(wide.operand), wide.starts(S8)], &[0])
        .with_vjp_snapshot()
}

/// Returns the value of an element after an update. If an index is repeated, the CPU backend keeps the last update.
fn combine(kind: ScatterKind, old: f64, new: f64) -> f64 {
    match kind {
        ScatterKind::Add => old + new,
        ScatterKind::Max => old.max(new),
        ScatterKind::Min => old.min(new),
        ScatterKind::Multiply => old * new,
        ScatterKind::Set => new,
    }
}

/// Few and small enough numbers for products of several to be exact.
fn small(dtype: DType, dims: &[usize]) -> Tensor {
    let values = distinct(dtype, dims);
    Tensor::from_fn(
        dtype,
        dims,
        |index| if dtype == Pred { values.at(index) } else { values.at(index).rem_euclid(3.0) + 1.0 },
    )
}

/// Zeros and ones.
fn bits(dtype: DType, dims: &[usize]) -> Tensor {
    let values = distinct(dtype, dims);
    Tensor::from_fn(dtype, dims, |index| values.at(index).rem_euclid(2.0))
}

fn scattered(case: &Case, kind: ScatterKind, x: &Tensor, starts: &Tensor, updates: &Tensor) -> Tensor {
    let mut result = x.clone();
    // Index by index, whatever the order of dimensions.
    let mut order = indices(&case.result());
    order.sort_by_key(|index| {
        (0..index.len()).filter(|dim| !case.dims.offset_dims.contains(dim)).map(|dim| index[dim]).collect::<Vec<_>>()
    });
    for index in order {
        let (origin, offset) = case.locate(starts, &index);
        let fits = |dim: usize| (0.0..=(case.operand[dim] - case.slice[dim]) as f64).contains(&origin[dim]);
        if !(0..case.operand.len()).all(fits) {
            continue;
        }
        let place = |position, dim: usize| position * case.operand[dim] + origin[dim] as usize + offset[dim];
        let position = (0..case.operand.len()).fold(0, place);
        result.values[position] = combine(kind, result.values[position], updates.at(&index));
    }
    Tensor::new(x.ty.dtype, x.dims(), &result.values)
}

pub fn scatter(kind: ScatterKind) -> Entry {
    let cases = cases();
    let rows = cases[0].scatter(kind);
    let mut narrow = rows.clone();
    narrow.dims.offset_dims = axes(&[]);
    // A product has a gradient in its updates only where indices do not repeat.
    let promise = IndexPromise { unique: kind == ScatterKind::Multiply, ..IndexPromise::default() };
    let windows = Scatter { promise, ..cases[5].scatter(kind) };
    let mut entry = Entry::new(rows.name().replace('-', "_"))
        .accept(windows, "f32[2,5,3] s32[3,2,2] f32[3,2,2,2] -> f32[2,5,3]")
        .accept(rows.clone(), "s32[5,3] u32[0] s32[0,2] -> s32[5,3]")
        .reject(rows.clone(), "f32[5,3] s32[7]", "expected 3 operands, found 2")
        .reject(rows.clone(), "f32[5,3] s32[7] s32[7,3]", "the element type of operand 2 must be f32, found s32")
        .reject(
            rows.clone(),
            "f32[5,3] f32[7] f32[7,3]",
            "the element type of operand 1 must be an integer type, found f32",
        )
        .reject(rows.clone(), "f32[5,3] s32[7] f32[6,3]", "dimension 0 of operand 2 must have size 7, found 6")
        .reject(rows.clone(), "f32[5,3] s32[7] f32[7]", "axis 1 is out of range")
        .reject(rows.clone(), "f32[5,3] s32[7] f32[7,3,1]", "operand 2 must have 2 dimensions, found 3")
        .reject(rows.clone(), "f32[5,3] s32[7] f32[7,4]", "a window of 4 elements does not fit dimension 1 of size 3")
        .reject(rows.clone(), "f32[5,3] s32[7,2] f32[7,3]", "each index has 2 components")
        .reject(narrow, "f32[5,3] s32[7] f32[7]", "the window keeps 1 operand dimensions, but 0 offset dimensions");
    entry = match kind {
        ScatterKind::Set => entry.accept(rows, "pred[5,3] s32[7] pred[7,3] -> pred[5,3]"),
        _ => entry.reject(
            rows,
            "pred[5,3] s32[7] pred[7,3]",
            "the element type of operand 0 must be a number type, found pred",
        ),
    };
    for case in &cases {
        let takes = |dtype: &DType| kind == ScatterKind::Set || OperandClass::Numeric.contains(*dtype);
        for dtype in DType::ALL.into_iter().filter(takes) {
            for index in index_types(dtype) {
                let starts = case.starts(index);
                let is_f8 = matches!(dtype, F8E4M3FN | F8E5M2);
                let numbers = match kind {
                    ScatterKind::Multiply => small,
                    // Eight bits do not hold many sums.
                    ScatterKind::Add if is_f8 => bits,
                    _ => distinct,
                };
                let (x, updates) = (numbers(dtype, case.operand), numbers(dtype, &case.result()));
                let y = scattered(case, kind, &x, &starts, &updates);
                entry = entry.run(case.scatter(kind), &[x, starts, updates], [y], 0.0);
            }
        }
        for index in if case.dims.offset_dims.len() == 1 { vec![S32, U8] } else { vec![S32] } {
            let operands = [f64s(case.operand), case.starts(index), random(F64, &case.result(), 0.0, 1.0)];
            if kind == ScatterKind::Multiply {
                // The slope of an update that shares its place is not defined.
                entry = entry.gradient_in(case.scatter(kind), &operands, &[0]);
                continue;
            }
            entry = entry
                .gradient(case.scatter(kind), &operands)
                .gradient_in(case.scatter(kind), &operands, &[0])
                .gradient_in(case.scatter(kind), &operands, &[2]);
        }
    }
    entry = promised(entry, kind);
    if kind == ScatterKind::Multiply {
        let operands = "f64[5,3] s32[7] f64[7,3]";
        entry = entry.refuse_gradient_in(cases[0].scatter(kind), operands, 2, "promise that they are unique");
    }
    entry.with_vjp_snapshot()
}

/// Indices that are all different, increase and are in range, and an op that knows it.
fn promised(mut entry: Entry, kind: ScatterKind) -> Entry {
    let case = Case { indices: &[3], starts: &[0.0, 2.0, 3.0], ..cases().swap_remove(0) };
    for in_bounds in [false, true] {
        let op = Scatter { promise: IndexPromise { sorted: true, unique: true, in_bounds }, ..case.scatter(kind) };
        let (x, starts, updates) = (small(F32, case.operand), case.starts(S32), small(F32, &case.result()));
        let y = scattered(&case, kind, &x, &starts, &updates);
        let operands = [f64s(case.operand), starts.clone(), random(F64, &case.result(), 0.0, 1.0)];
        entry = entry.run(op.clone(), &[x, starts, updates], [y], 0.0).gradient(op, &operands);
    }
    entry
}
