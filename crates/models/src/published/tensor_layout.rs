//! Moves elements between a parameter and the tensors of a published checkpoint, whatever their type: by bytes.

use std::ops::Range;

use crate::families::{Form, TensorPart};
use crate::weights::whole;

/// Side of a tile, in elements: the lines of both sides of a transposition stay in the cache.
const TILE: usize = 64;

/// Calls a function of elements of `$size` bytes.
macro_rules! of_size {
    ($size:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $size {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            4 => $function::<4>($($argument),*),
            _ => $function::<8>($($argument),*),
        }
    };
}

/// Appends a box of a parameter of these dimensions, taken out of the tensor that holds it, to `into`. `read` gives the
/// bytes of a box of the tensor, whose elements have `size` bytes.
pub(super) fn take<E>(
    part: &TensorPart,
    (dims, shard): (&[usize], &[Range<usize>]),
    size: usize,
    read: impl FnOnce(&[Range<usize>]) -> Result<Vec<u8>, E>,
    into: &mut Vec<u8>,
) -> Result<(), E> {
    match &part.form {
        Form::Same if part.dims == dims => into.extend(read(shard)?),
        Form::Same => {
            // The same elements in a row, such as a bias of all heads: small.
            let all = read(&whole(&part.dims))?;
            for place in places(dims, shard) {
                into.extend(&all[place * size..][..size]);
            }
        }
        Form::Alternating(first) => {
            let mut wide = shard.to_vec();
            if let Some(last) = wide.last_mut() {
                *last = 2 * last.start..2 * last.end;
            }
            let both = read(&wide)?;
            let own = both.chunks_exact(size).skip(*first).step_by(2);
            own.for_each(|element| into.extend(element));
        }
        Form::Transposed | Form::Rows(_) => {
            let split = split_of(dims, part.dims[1]);
            let inputs = places(&dims[..split], &shard[..split]);
            let outputs = places(&dims[split..], &shard[split..]);
            let rows = match &part.form {
                Form::Rows(rows) => outputs.into_iter().map(|output| rows[output]).collect(),
                _ => outputs,
            };
            let (lines, columns) = (bounds(&rows), bounds(&inputs));
            let found = read(&[lines.clone(), columns.clone()])?;
            let from = Box2 { elements: &found, width: columns.len(), first: (lines.start, columns.start) };
            of_size!(size, transposed(&from, &inputs, &rows, into));
        }
    }
    Ok(())
}

/// Puts a whole parameter, or the share of it that is of this tensor, into the bytes of the tensor.
pub(super) fn put(part: &TensorPart, elements: &[u8], size: usize, tensor: &mut [u8]) {
    match &part.form {
        Form::Same => tensor.copy_from_slice(elements),
        Form::Alternating(first) => {
            let own = tensor.chunks_exact_mut(size).skip(*first).step_by(2);
            own.zip(elements.chunks_exact(size)).for_each(|(place, element)| place.copy_from_slice(element));
        }
        Form::Transposed => {
            let rows: Vec<usize> = (0..part.dims[0]).collect();
            of_size!(size, put_rows(elements, &rows, part.dims[1], tensor));
        }
        Form::Rows(rows) => of_size!(size, put_rows(elements, rows, part.dims[1], tensor)),
    }
}

/// Returns how many leading dimensions are the inputs of a product.
fn split_of(dims: &[usize], inputs: usize) -> usize {
    let products = dims.iter().scan(1, |product, &size| {
        let before = *product;
        *product *= size;
        Some(before)
    });
    products.take_while(|&product| product < inputs).count()
}

/// The places of the elements of a box in a row-major value of these dimensions, in their order.
pub(super) fn places(dims: &[usize], shard: &[Range<usize>]) -> Vec<usize> {
    dims.iter().zip(shard).fold(vec![0], |places, (&size, range)| {
        places.into_iter().flat_map(|place| range.clone().map(move |index| place * size + index)).collect()
    })
}

/// The least range that has all of these.
fn bounds(places: &[usize]) -> Range<usize> {
    let first = places.iter().min().copied().unwrap_or_default();
    first..places.iter().max().map_or(first, |last| last + 1)
}

/// A box of a matrix.
struct Box2<'a> {
    elements: &'a [u8],
    width: usize,
    /// Its first row and column.
    first: (usize, usize),
}

/// Appends `[inputs, rows]` of a box of a matrix `[rows, inputs]`.
fn transposed<const N: usize>(from: &Box2<'_>, inputs: &[usize], rows: &[usize], into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + inputs.len() * rows.len() * N, 0);
    let (found, target) = (from.elements.as_chunks::<N>().0, into[start..].as_chunks_mut::<N>().0);
    for (tile, rows_of_tile) in rows.chunks(TILE).enumerate() {
        let lines: Vec<&[[u8; N]]> =
            rows_of_tile.iter().map(|row| &found[(row - from.first.0) * from.width..][..from.width]).collect();
        for (at, input) in inputs.iter().enumerate() {
            let column = input - from.first.1;
            let target = &mut target[at * rows.len() + tile * TILE..][..lines.len()];
            target.iter_mut().zip(&lines).for_each(|(place, line)| *place = line[column]);
        }
    }
}

/// Puts `[inputs, outputs]` into rows of a matrix `[rows, inputs]`.
fn put_rows<const N: usize>(elements: &[u8], rows: &[usize], inputs: usize, tensor: &mut [u8]) {
    let (elements, tensor) = (elements.as_chunks::<N>().0, tensor.as_chunks_mut::<N>().0);
    for tile in (0..inputs).step_by(TILE) {
        let inputs_of_tile = tile..(tile + TILE).min(inputs);
        for (output, row) in rows.iter().enumerate() {
            for input in inputs_of_tile.clone() {
                tensor[row * inputs + input] = elements[input * rows.len() + output];
            }
        }
    }
}
