//! The kernels of products over groups of rows, interpreted, against loops over rows.

use super::numbers::{Random, assert_near, bound};
use meshloom::hlo::DType;
use meshloom_mosaic::grouped::{COMPUTE, FIRST, Grouped, GroupedBlocks, LAST};
use meshloom_mosaic::{Kernel, KernelError};
use support::interpret::mosaic::{Array, run_kernel};

const BOTH: [DType; 2] = [DType::F32, DType::BF16];

fn grouped(dtype: DType, rows: usize, inner: usize, columns: usize, groups: usize) -> Grouped {
    let blocks = GroupedBlocks { rows: 16, inner: inner.min(128), columns: columns.min(128) };
    Grouped { dtype, rows, inner, columns, groups, blocks }
}

/// The groups of rows.
fn group_of(bounds: &[i32], row: usize) -> Option<usize> {
    bounds.windows(2).position(|range| (range[0]..range[1]).contains(&(row as i32)))
}

/// A list of visits, as the kernels take it.
#[derive(Default)]
struct Visits {
    count: usize,
    row_block: Vec<i32>,
    group: Vec<i32>,
    start: Vec<i32>,
    end: Vec<i32>,
    flags: Vec<i32>,
}

/// Lists visits by block of rows, or by group. Group `g` has the rows from `bounds[g]` to `bounds[g + 1]`.
fn visits_of(of: &Grouped, bounds: &[i32], by_rows: bool) -> Visits {
    let (size, blocks) = (of.blocks.rows as i32, (of.rows / of.blocks.rows) as i32);
    let groups = of.groups as i32;
    let mut visits = Visits::default();
    for outer in 0..if by_rows { blocks } else { groups } {
        let pair = |inner| if by_rows { (outer, inner) } else { (inner, outer) };
        let rows = |group: i32| (bounds[group as usize], bounds[group as usize + 1]);
        let mut own: Vec<(i32, i32, (i32, i32), i32)> = Vec::new();
        for (block, group) in (0..if by_rows { groups } else { blocks }).map(pair) {
            let (start, end) = rows(group);
            if start < end && start < (block + 1) * size && end > block * size {
                own.push((block, group, (start, end), COMPUTE));
            }
        }
        if own.is_empty() {
            // The matrix, or the block, that is at hand already.
            own.push(match by_rows {
                true => (outer, visits.group.last().copied().unwrap_or(0), (0, 0), 0),
                false => (visits.row_block.last().copied().unwrap_or(0), outer, rows(outer), 0),
            });
        }
        let last = own.len() - 1;
        own[0].3 |= FIRST;
        own[last].3 |= LAST;
        for (block, group, (start, end), flags) in own {
            visits.count += 1;
            visits.row_block.push(block);
            visits.group.push(group);
            visits.start.push(start);
            visits.end.push(end);
            visits.flags.push(flags);
        }
    }
    let Visits { row_block, group, start, end, flags, .. } = &mut visits;
    for list in [row_block, group, start, end, flags] {
        list.resize(of.visit_count(), 0);
    }
    visits
}

/// Runs the kernel. If it read the entries after the counted visits, it would leave the arrays.
fn run(kernel: &Kernel, visits: &Visits, arrays: [&Array; 2]) -> Array {
    let Visits { count, row_block, group, start, end, flags } = visits;
    let list = |numbers: &Vec<i32>| {
        let (counted, rest) = numbers.split_at(*count);
        Array::scalars(&[counted, &vec![i32::MAX; rest.len()]].concat())
    };
    let count = Array::new(DType::S32, &[], &[*count as f64]);
    let lists = [row_block, group, start, end, flags].map(list);
    let operands: Vec<Array> = [count].into_iter().chain(lists).chain(arrays.map(Array::clone)).collect();
    let mut results = run_kernel(kernel, &operands);
    results.remove(0)
}

/// All three products, with groups at these bounds.
#[track_caller]
fn check(of: &Grouped, bounds: &[i32]) {
    let &Grouped { dtype, rows, inner, columns, groups, .. } = of;
    let random = &mut Random::new(rows as u64 + 1);
    let (lhs, rhs) = (random.array(dtype, &[rows, inner]), random.array(dtype, &[rows, columns]));
    let matrices = random.array(dtype, &[groups, inner, columns]);
    let (mut by_rows, mut by_groups) = (vec![0.0; rows * columns], vec![0.0; groups * inner * columns]);
    let mut exchanged = vec![0.0; groups * inner * columns];
    for (row, group) in (0..rows).filter_map(|row| Some((row, group_of(bounds, row)?))) {
        for (k, n) in (0..inner).flat_map(|k| (0..columns).map(move |n| (k, n))) {
            let place = (group * inner + k) * columns + n;
            by_rows[row * columns + n] += lhs.data()[row * inner + k] * matrices.data()[place];
            by_groups[place] += lhs.data()[row * inner + k] * rhs.data()[row * columns + n];
        }
    }
    for (place, &number) in matrices.data().iter().enumerate() {
        let (group, k, n) = (place / (inner * columns), place / columns % inner, place % columns);
        exchanged[(group * columns + n) * inner + k] = number;
    }
    let exchanged = Array::new(dtype, &[groups, columns, inner], &exchanged);
    let (count, bound) = (of.visit_count(), bound(dtype));
    let visits = visits_of(of, bounds, true);
    assert_eq!(visits.flags.len(), count);
    for (matrices, transposed) in [(&matrices, false), (&exchanged, true)] {
        let kernel = of.by_rows(count, transposed).expect("a kernel");
        let result = run(&kernel, &visits, [&lhs, matrices]);
        assert_near(&format!("{of:?} by rows, {bounds:?}, transposed {transposed}"), &result, &by_rows, bound);
        for row in (0..rows).filter(|&row| group_of(bounds, row).is_none()) {
            assert!(result.data()[row * columns..][..columns].iter().all(|&x| x == 0.0), "row {row} of no group");
        }
    }
    let visits = visits_of(of, bounds, false);
    assert_eq!(visits.flags.len(), count);
    let result = run(&of.by_groups(count).expect("a kernel"), &visits, [&lhs, &rhs]);
    assert_near(&format!("{of:?} by groups, {bounds:?}"), &result, &by_groups, bound);
}

#[test]
fn groups_of_whole_blocks() {
    for dtype in BOTH {
        check(&grouped(dtype, 64, 24, 40, 3), &[0, 16, 48, 64]);
    }
}

#[test]
fn groups_that_share_blocks() {
    for dtype in BOTH {
        check(&grouped(dtype, 64, 24, 40, 5), &[0, 3, 10, 37, 40, 64]);
    }
}

#[test]
fn several_blocks_of_everything() {
    for dtype in BOTH {
        check(&grouped(dtype, 48, 256, 384, 3), &[0, 20, 21, 48]);
    }
}

#[test]
fn empty_groups() {
    for dtype in BOTH {
        check(&grouped(dtype, 32, 16, 16, 5), &[0, 0, 7, 7, 32, 32]);
    }
}

#[test]
fn all_rows_in_one_group() {
    for group in 0..3 {
        let bounds = [0, 1, 2, 3].map(|index| if index > group { 48 } else { 0 });
        check(&grouped(DType::F32, 48, 16, 16, 3), &bounds);
    }
    check(&grouped(DType::F32, 48, 16, 16, 1), &[0, 48]);
}

/// Blocks without a row of any group are written, too.
#[test]
fn rows_of_no_group() {
    for dtype in BOTH {
        for bounds in [[0, 5, 9, 20], [40, 41, 60, 60], [64, 64, 64, 64], [0, 0, 0, 0], [80, 80, 80, 80]] {
            check(&grouped(dtype, 80, 16, 24, 3), &bounds);
        }
    }
}

#[test]
fn random_groups() {
    let random = &mut Random::new(1);
    for index in 0..40 {
        let groups = 1 + random.below(6);
        let of =
            grouped(BOTH[index % 2], 16 * (1 + random.below(5)), 8 + random.below(20), 8 + random.below(20), groups);
        let mut bounds: Vec<i32> = (0..=groups).map(|_| random.below(of.rows + 1) as i32).collect();
        bounds.sort_unstable();
        check(&of, &bounds);
    }
}

/// Rows of other groups may hold anything, in either factor.
#[test]
fn nothing_passes_between_groups() {
    let of = grouped(DType::F32, 16, 16, 16, 2);
    let bounds = [0, 6, 10];
    let with_nan = |seed| {
        let mut data = Random::new(seed).array(DType::F32, &[16, 16]).data().to_vec();
        data[10 * 16..].fill(f64::NAN);
        Array::new(DType::F32, &[16, 16], &data)
    };
    let visits = visits_of(&of, &bounds, false);
    let kernel = of.by_groups(of.visit_count()).expect("a kernel");
    let result = run(&kernel, &visits, [&with_nan(1), &with_nan(2)]);
    assert!(result.data().iter().all(|number| number.is_finite()));
}

#[test]
fn visits_are_listed_by_block_and_by_group() {
    let of = grouped(DType::F32, 48, 16, 16, 3);
    let bounds = [0, 20, 20, 30];
    let visits = visits_of(&of, &bounds, true);
    assert_eq!(visits.count, 4);
    assert_eq!(visits.row_block, [0, 1, 1, 2, 0, 0, 0]);
    assert_eq!(visits.group, [0, 0, 2, 2, 0, 0, 0]);
    assert_eq!(visits.start, [0, 0, 20, 0, 0, 0, 0]);
    assert_eq!(visits.end, [20, 20, 30, 0, 0, 0, 0]);
    assert_eq!(visits.flags, [7, 5, 6, 3, 0, 0, 0]);
    let visits = visits_of(&of, &bounds, false);
    assert_eq!(visits.count, 4);
    assert_eq!(visits.row_block, [0, 1, 1, 1, 0, 0, 0]);
    assert_eq!(visits.group, [0, 0, 1, 2, 0, 0, 0]);
    assert_eq!(visits.flags, [5, 6, 3, 7, 0, 0, 0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let of = grouped(DType::F32, 48, 16, 16, 3);
    let odd = Grouped { rows: 50, ..of.clone() };
    let error = odd.by_groups(4).map(|_| ());
    assert_eq!(error, Err(KernelError::Blocks { operand: "lhs", dims: vec![50, 16], block: vec![16, 16] }));
    let tiles = Grouped { inner: 192, blocks: GroupedBlocks { inner: 96, ..of.blocks }, ..of.clone() };
    let error = tiles.by_rows(4, false).map(|_| ());
    assert_eq!(error, Err(KernelError::Tiles { operand: "lhs", axis: 1, size: 96, tile: 128 }));
    let empty = Grouped { groups: 0, ..of.clone() };
    assert!(matches!(empty.by_rows(4, false), Err(KernelError::Range { .. })));
}

/// Matrices are cut without padding; a width that cannot be is not one for the kernels.
#[test]
fn blocks_divide_matrices() {
    let blocks = |rows, inner, columns| Some(GroupedBlocks { rows, inner, columns });
    assert_eq!(GroupedBlocks::new(DType::BF16, 8192, 2048, 64, 8), blocks(128, 512, 64));
    assert_eq!(GroupedBlocks::new(DType::BF16, 65536, 1408, 768, 8), blocks(512, 128, 384));
    assert_eq!(GroupedBlocks::new(DType::F32, 8192, 1024, 384, 64), blocks(128, 256, 128));
    assert_eq!(GroupedBlocks::new(DType::F32, 48, 100, 384, 64), blocks(48, 100, 128));
    assert_eq!(GroupedBlocks::new(DType::BF16, 8192, 2880, 64, 8), None);
}
