//! Reading boxes of quantized tensors as numbers. Only the values of the box are read, and the scales that they need.

use std::ops::Range;

use super::decode::{E2M1, e8m0};
use super::error::WeightsError;
use super::files::{Files, buffer};
use super::header::Stored;
use super::region;
use super::tensor::{MXFP4_BYTES, MXFP4_ELEMENTS};

/// Reads a box of a tensor in FP8: each element is its value times the scale of its block. Values and box are `[..,
/// rows, columns]`.
pub(crate) fn read_fp8_blocks(
    files: &Files,
    (values, scales): (&Stored, &Stored),
    [block_rows, block_columns]: [usize; 2],
    region: &[Range<usize>],
    out: &mut [f32],
) -> Result<(), WeightsError> {
    let [outer @ .., rows, columns] = region else { return Ok(()) };
    if out.is_empty() {
        return Ok(());
    }
    files.read_numbers(values, region, out)?;

    let scale_rows = blocks(rows, block_rows);
    let scale_columns = blocks(columns, block_columns);
    let scale_region = [outer, &[scale_rows.clone(), scale_columns.clone()]].concat();
    let mut factors = buffer(&values.name, region::elements(&scale_region))?;
    files.read_numbers(scales, &scale_region, &mut factors)?;

    for (number, line) in out.chunks_exact_mut(columns.len()).enumerate() {
        let (matrix, row) = (number / rows.len(), rows.start + number % rows.len());
        let factor_row = matrix * scale_rows.len() + row / block_rows - scale_rows.start;
        let factors = &factors[factor_row * scale_columns.len()..][..scale_columns.len()];
        let mut rest = line;
        // The first block may begin before the box.
        let mut length = block_columns - columns.start % block_columns;
        for factor in factors {
            let (block, after) = rest.split_at_mut(length.min(rest.len()));
            block.iter_mut().for_each(|element| *element *= factor);
            (rest, length) = (after, block_columns);
        }
    }
    Ok(())
}

/// Rows that are read and transposed together: their elements for one column fill several cache lines of the result,
/// and what is read stays in a cache.
const BAND_ROWS: usize = 64;

/// Reads a box of a tensor in MXFP4: each element is its value times the scale of its group. Blocks are `[.., rows,
/// groups, 16]`, and each byte has two elements, the first one in the lower bits. The box is `[.., 32 * groups, rows]`,
/// as in gpt-oss without quantization. `convert_moe_packed_tensors` of transformers does the same.
pub(crate) fn read_mxfp4(
    files: &Files,
    (blocks_tensor, scales): (&Stored, &Stored),
    region: &[Range<usize>],
    out: &mut [f32],
) -> Result<(), WeightsError> {
    let [outer @ .., columns, rows] = region else { return Ok(()) };
    if out.is_empty() {
        return Ok(());
    }
    let groups = blocks(columns, MXFP4_ELEMENTS);
    let scale_count = BAND_ROWS.min(rows.len()) * groups.len();
    let mut codes: Vec<u8> = buffer(&blocks_tensor.name, scale_count * MXFP4_BYTES)?;
    let mut scale_codes: Vec<u8> = buffer(&blocks_tensor.name, scale_count)?;

    for (matrix, out) in out.chunks_exact_mut(columns.len() * rows.len()).enumerate() {
        let index = index(outer, matrix).into_iter().map(|at| at..at + 1);
        let mut part: Vec<Range<usize>> = index.chain([rows.clone(), groups.clone(), 0..MXFP4_BYTES]).collect();
        for start in rows.clone().step_by(BAND_ROWS) {
            let band = start..rows.end.min(start + BAND_ROWS);
            part[outer.len()] = band.clone();
            let scale_codes = &mut scale_codes[..band.len() * groups.len()];
            let codes = &mut codes[..scale_codes.len() * MXFP4_BYTES];
            files.read_bytes(blocks_tensor, &part, codes)?;
            files.read_bytes(scales, &part[..=outer.len() + 1], scale_codes)?;
            let out = &mut out[start - rows.start..];
            transpose_band((codes, scale_codes), groups.len(), columns, (rows.len(), band.len()), out);
        }
    }
    Ok(())
}

/// The indices of an element of a box, which is the `number`-th in row-major order.
fn index(region: &[Range<usize>], number: usize) -> Vec<usize> {
    let mut rest = number;
    let mut index: Vec<usize> = region.iter().map(|range| range.start).collect();
    for (at, range) in index.iter_mut().zip(region).rev() {
        *at += rest % range.len();
        rest /= range.len();
    }
    index
}

/// Dequantizes a band of rows. The codes and scales are those of whole groups. Writes them as columns of `out`.
fn transpose_band(
    (codes, scale_codes): (&[u8], &[u8]),
    groups: usize,
    columns: &Range<usize>,
    (out_rows, band_rows): (usize, usize),
    out: &mut [f32],
) {
    let first_group = columns.start / MXFP4_ELEMENTS;
    let scales: Vec<f32> = scale_codes.iter().map(|code| e8m0(*code)).collect();
    for (column, line) in columns.clone().zip(out.chunks_mut(out_rows)) {
        let group = column / MXFP4_ELEMENTS - first_group;
        let byte = group * MXFP4_BYTES + column % MXFP4_ELEMENTS / 2;
        let shift = 4 * (column % 2);
        let rows = codes.chunks_exact(groups * MXFP4_BYTES).zip(scales.chunks_exact(groups));
        for (element, (codes, scales)) in line[..band_rows].iter_mut().zip(rows) {
            *element = E2M1[usize::from(codes[byte] >> shift & 15)] * scales[group];
        }
    }
}

/// The blocks that a range has elements of.
fn blocks(range: &Range<usize>, block: usize) -> Range<usize> {
    range.start / block..range.end.div_ceil(block)
}
