//! Where elements are: lists of positions in row-major order, computed once for a whole tensor, and what moves elements
//! by them.

use meshloom::ir::{Literal, TensorType};
use meshloom::ops::{GatherDims, PadDim};

/// How far apart neighbours along each dimension are.
pub fn strides(dims: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim] as isize;
    }
    strides
}

/// The position of every index of a shape, in row-major order, when an index counts `strides` from `base`.
pub fn positions(base: isize, dims: &[usize], strides: &[isize]) -> Vec<isize> {
    let mut all = vec![base];
    for (&size, &stride) in dims.iter().zip(strides) {
        let mut next = Vec::with_capacity(all.len() * size);
        for start in all {
            for index in 0..size as isize {
                next.push(start + index * stride);
            }
        }
        all = next;
    }
    all
}

/// The positions of a shape whose dimensions in `axes` count, with the strides in the same order; the others do not.
pub fn positions_along(dims: &[usize], axes: &[usize], strides: &[isize]) -> Vec<isize> {
    let mut all = vec![0; dims.len()];
    axes.iter().zip(strides).for_each(|(&axis, &stride)| all[axis] = stride);
    positions(0, dims, &all)
}

/// The elements at these positions, as a literal.
pub fn pick(source: &Literal, ty: &TensorType, from: &[isize]) -> Literal {
    fn each<const WIDTH: usize>(bytes: &[u8], from: &[isize]) -> Vec<u8> {
        let (elements, _) = bytes.as_chunks::<WIDTH>();
        from.iter().map(|&position| elements[position as usize]).collect::<Vec<_>>().into_flattened()
    }
    let bytes = match ty.dtype.byte_count() {
        1 => each::<1>(source.bytes(), from),
        2 => each::<2>(source.bytes(), from),
        4 => each::<4>(source.bytes(), from),
        _ => each::<8>(source.bytes(), from),
    };
    Literal::from_bytes(ty.clone(), bytes).expect("a position for each element")
}

/// Puts elements where the positions say, one after the other.
pub fn put(target: &mut [u8], source: &Literal, from: &[isize], to: &[isize]) {
    let width = source.ty().dtype.byte_count();
    for (&from, &to) in from.iter().zip(to) {
        let (from, to) = (from as usize * width, to as usize * width);
        target[to..to + width].copy_from_slice(&source.bytes()[from..from + width]);
    }
}

/// Puts all elements of `source` into a box of a tensor of `dims`, whose first element is at `start`.
pub fn paste(target: &mut [u8], dims: &[usize], source: &Literal, start: &[usize]) {
    let strides = strides(dims);
    let base = strides.iter().zip(start).map(|(stride, &start)| stride * start as isize).sum();
    let from: Vec<isize> = (0..source.ty().element_count() as isize).collect();
    put(target, source, &from, &positions(base, &source.ty().dims, &strides));
}

/// A box of a tensor.
pub fn cut(source: &Literal, start: &[usize], sizes: &[usize]) -> Literal {
    let strides = strides(&source.ty().dims);
    let base = strides.iter().zip(start).map(|(stride, &start)| stride * start as isize).sum();
    pick(source, &TensorType::new(source.ty().dtype, sizes), &positions(base, sizes, &strides))
}

/// Tensors joined along a dimension.
pub fn concatenate(parts: &[&Literal], axis: usize) -> Literal {
    let mut ty = parts[0].ty().clone();
    ty.dims[axis] = parts.iter().map(|part| part.ty().dims[axis]).sum();
    let mut bytes = vec![0; ty.byte_count()];
    let mut start = vec![0; ty.rank()];
    for part in parts {
        paste(&mut bytes, &ty.dims, part, &start);
        start[axis] += part.ty().dims[axis];
    }
    Literal::from_bytes(ty, bytes).expect("as many bytes as the type has")
}

/// The padded tensor: of each dimension, what stays inside is a range of the operand's indices.
pub fn pad(padding: &[PadDim], operand: &Literal, value: &Literal, ty: &TensorType) -> Literal {
    let mut bytes = value.bytes().repeat(ty.element_count());
    let (from_strides, to_strides) = (strides(&operand.ty().dims), strides(&ty.dims));
    let (mut from, mut to, mut sizes, mut steps) = (0, 0, Vec::new(), Vec::new());
    for (dim, padding) in padding.iter().enumerate() {
        let (size, step) = (operand.ty().dims[dim] as i64, padding.interior as i64 + 1);
        let inside = |&index: &i64| (0..ty.dims[dim] as i64).contains(&(padding.low + index * step));
        let first = (0..size).find(inside).unwrap_or(0);
        sizes.push((0..size).filter(inside).count());
        from += first as isize * from_strides[dim];
        to += (padding.low + first * step) as isize * to_strides[dim];
        steps.push(step as isize * to_strides[dim]);
    }
    put(&mut bytes, operand, &positions(from, &sizes, &from_strides), &positions(to, &sizes, &steps));
    Literal::from_bytes(ty.clone(), bytes).expect("as many bytes as the type has")
}

/// Where a slice of `sizes` starts, moved back until it fits.
pub fn starts(indices: &[&Literal], dims: &[usize], sizes: &[usize]) -> Vec<usize> {
    let start = |((index, &dim), &size): ((&&Literal, &usize), &usize)| {
        (index.to_f64_vec()[0] as i64).clamp(0, (dim - size) as i64) as usize
    };
    indices.iter().zip(dims).zip(sizes).map(start).collect()
}

/// Where the windows of a gather or scatter are in the operand.
pub struct Windows {
    /// For each element of the result or updates, the window it belongs to.
    window: Vec<isize>,
    /// For each element of the result or updates, its place in the window.
    place: Vec<isize>,
    /// For each window where it starts: moved back until it fits, and whether it was there before.
    start: Vec<(isize, bool)>,
}

impl Windows {
    /// The windows of `sizes` in an operand of `dims`, for a result or updates of type `updates`.
    pub fn new(numbers: &GatherDims, indices: &Literal, dims: &[usize], sizes: &[usize], updates: &[usize]) -> Windows {
        let (operand_strides, ty) = (strides(dims), indices.ty());
        let batch_axes: Vec<usize> = (0..updates.len()).filter(|dim| !numbers.offset_dims.contains(dim)).collect();
        let batch: Vec<usize> = batch_axes.iter().map(|&dim| updates[dim]).collect();
        let left_out = |dim: &usize| numbers.collapsed_dims.contains(dim) || numbers.operand_batch_dims.contains(dim);
        let kept: Vec<isize> = (0..dims.len()).filter(|dim| !left_out(dim)).map(|dim| operand_strides[dim]).collect();

        // The indices' batch dimensions: all but that of the components.
        let of_indices: Vec<usize> = (0..ty.rank()).filter(|&dim| dim != numbers.index_vector_dim).collect();
        let index_strides = strides(&ty.dims);
        let own: Vec<isize> = of_indices.iter().map(|&dim| index_strides[dim]).collect();
        let first = positions(0, &batch, &own);
        let paired = |dim: &usize| {
            let pair = numbers.indices_batch_dims.iter().position(|partner| partner == dim);
            pair.map_or(0, |pair| operand_strides[numbers.operand_batch_dims[pair]])
        };
        let in_step = positions(0, &batch, &of_indices.iter().map(paired).collect::<Vec<_>>());
        let component_stride = index_strides.get(numbers.index_vector_dim).copied().unwrap_or(0);
        let numbers_at = indices.to_f64_vec();
        let start = |(&first, &in_step): (&isize, &isize)| {
            let (mut start, mut fits) = (in_step, true);
            for (component, &axis) in numbers.start_index_map.iter().enumerate() {
                let wanted = numbers_at[(first + component as isize * component_stride) as usize] as i64;
                let at = wanted.clamp(0, (dims[axis] - sizes[axis]) as i64);
                fits &= at == wanted;
                start += at as isize * operand_strides[axis];
            }
            (start, fits)
        };
        Windows {
            window: positions_along(updates, &batch_axes, &strides(&batch)),
            place: positions_along(updates, &numbers.offset_dims, &kept),
            start: first.iter().zip(&in_step).map(start).collect(),
        }
    }

    /// For each element of the result or updates its position in the operand, if its window is moved to where it fits;
    /// and whether it had to be.
    pub fn positions(&self) -> impl Iterator<Item = (isize, bool)> {
        self.window.iter().zip(&self.place).map(|(&window, &place)| {
            let (start, fits) = self.start[window as usize];
            (start + place, fits)
        })
    }

    /// Returns the number of the window of each element of the result or updates, in row-major order.
    pub fn numbers(&self) -> impl Iterator<Item = isize> {
        self.window.iter().copied()
    }
}
