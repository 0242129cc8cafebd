//! Instructions that no op is, by the meaning of their opcodes in XLA: sorts and folds by a computation of their own,
//! and comparisons in IEEE's total order.

use std::cmp::Ordering;

use meshloom::hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom::import::import;
use meshloom::ir::{DType, Graph, Literal, TensorType};
use meshloom::ops::Opaque;

use crate::interpret;

/// The results of an instruction.
pub fn opaque(op: &Opaque, operands: &[&Literal], types: &[&TensorType]) -> Vec<Literal> {
    let (instruction, computations) = op.code.decode().expect("an instruction");
    let body = || {
        let entry_computation_id = instruction.called_computation_ids[0];
        let computations = computations.clone();
        let module = HloModuleProto { computations, entry_computation_id, ..HloModuleProto::default() };
        import(&module).expect("a computation of plain ops").graph
    };
    match instruction.opcode.as_str() {
        "sort" => sort(&instruction, &body(), operands),
        "reduce" => {
            let is_folded = |dim: usize| instruction.dimensions.contains(&(dim as i64));
            let dims = &operands[0].ty().dims;
            let kept: Vec<usize> = (0..dims.len()).filter(|&dim| !is_folded(dim)).collect();
            let folded: Vec<usize> = (0..dims.len()).filter(|&dim| is_folded(dim)).collect();
            let steps: Vec<usize> = folded.iter().map(|&dim| dims[dim]).collect();
            fold(&body(), operands, types, &steps, |place, step| {
                let mut from = vec![0; dims.len()];
                kept.iter().zip(place).for_each(|(&dim, &at)| from[dim] = at);
                folded.iter().zip(step).for_each(|(&dim, &at)| from[dim] = at);
                Some(from)
            })
        }
        "reduce-window" => {
            let window = &instruction.window.as_ref().expect("a window").dimensions;
            let dims = &operands[0].ty().dims;
            let steps: Vec<usize> = window.iter().map(|dim| dim.size as usize).collect();
            fold(&body(), operands, types, &steps, |place, step| {
                let along = |(((window, &at), &step), &size): (((_, &usize), &usize), &usize)| {
                    let window: &meshloom::hlo::proto::WindowDimension = window;
                    let at =
                        at as i64 * window.stride + step as i64 * window.window_dilation.max(1) - window.padding_low;
                    // Between the elements of a dilated base lie holes.
                    let dilation = window.base_dilation.max(1);
                    usize::try_from(at / dilation).ok().filter(|&to| at % dilation == 0 && at >= 0 && to < size)
                };
                window.iter().zip(place).zip(step).zip(dims).map(along).collect()
            })
        }
        "compare" => {
            let is = |order: Option<Ordering>| match instruction.comparison_direction.as_str() {
                "LT" => order.is_some_and(Ordering::is_lt),
                "LE" => order.is_some_and(Ordering::is_le),
                "GT" => order.is_some_and(Ordering::is_gt),
                "GE" => order.is_some_and(Ordering::is_ge),
                "EQ" => order.is_some_and(Ordering::is_eq),
                _ => order.is_none_or(Ordering::is_ne),
            };
            let orders: Vec<Option<Ordering>> = match instruction.comparison_type.as_str() {
                "TOTALORDER" => {
                    let [left, right] = [0, 1].map(|index| total_order(operands[index]));
                    left.iter().zip(&right).map(|(left, right)| Some(left.cmp(right))).collect()
                }
                // No op compares integers of four bits.
                _ => {
                    let [left, right] = [0, 1].map(|index| operands[index].to_f64_vec());
                    left.iter().zip(&right).map(|(left, right)| left.partial_cmp(right)).collect()
                }
            };
            let bytes: Vec<u8> = orders.into_iter().map(|order| u8::from(is(order))).collect();
            vec![Literal::from_bytes(types[0].clone(), bytes).expect("a flag for each element")]
        }
        opcode => panic!("{opcode} of {} has no interpreter", operands[0].ty()),
    }
}

/// Elements as integers in IEEE's total order.
fn total_order(literal: &Literal) -> Vec<i64> {
    let width = literal.ty().dtype.byte_count();
    assert!(literal.ty().dtype.is_float(), "a total order of {}", literal.ty());
    let key = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[8 - width..].copy_from_slice(bytes);
        let bits = i64::from_le_bytes(wide);
        bits ^ (((bits >> 63) as u64) >> 1) as i64
    };
    literal.bytes().chunks_exact(width).map(key).collect()
}

fn element(literal: &Literal, at: usize) -> Literal {
    let dtype: DType = literal.ty().dtype;
    let width = dtype.byte_count();
    Literal::from_bytes(TensorType::scalar(dtype), &literal.bytes()[at * width..(at + 1) * width]).expect("an element")
}

fn place_of(mut at: usize, dims: &[usize]) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (dim, &size) in dims.iter().enumerate().rev() {
        place[dim] = at % size;
        at /= size;
    }
    place
}

fn offset(place: &[usize], dims: &[usize]) -> usize {
    place.iter().zip(dims).fold(0, |offset, (&at, &size)| offset * size + at)
}

fn sort(instruction: &HloInstructionProto, less: &Graph, operands: &[&Literal]) -> Vec<Literal> {
    let dims = &operands[0].ty().dims;
    let axis = instruction.dimensions[0] as usize;
    let is_less = |left: usize, right: usize| {
        let pair = |operand: &&Literal| [element(operand, left), element(operand, right)];
        interpret(less, &operands.iter().flat_map(pair).collect::<Vec<_>>())[0].bytes()[0] != 0
    };
    let count: usize = dims.iter().product();
    let mut order: Vec<usize> = vec![0; count];
    for start in (0..count).filter(|&at| place_of(at, dims)[axis] == 0) {
        let along = |step: usize| {
            let mut place = place_of(start, dims);
            place[axis] = step;
            offset(&place, dims)
        };
        let mut line: Vec<usize> = (0..dims[axis]).map(along).collect();
        line.sort_by(|&left, &right| match (is_less(left, right), is_less(right, left)) {
            (true, _) => Ordering::Less,
            (_, true) => Ordering::Greater,
            _ => Ordering::Equal,
        });
        line.into_iter().enumerate().for_each(|(step, from)| order[along(step)] = from);
    }
    operands.iter().map(|operand| gathered(operand.ty(), order.iter().map(|&from| element(operand, from)))).collect()
}

fn gathered(ty: &TensorType, elements: impl Iterator<Item = Literal>) -> Literal {
    let bytes: Vec<u8> = elements.flat_map(|element| element.bytes().to_vec()).collect();
    Literal::from_bytes(ty.clone(), bytes).expect("as many elements as the type has")
}

/// Folds elements into each place of the results, from the initial values that are the second half of the operands.
/// `source` says which element a step takes; `None` for one beyond the border.
fn fold(
    body: &Graph,
    operands: &[&Literal],
    types: &[&TensorType],
    steps: &[usize],
    source: impl Fn(&[usize], &[usize]) -> Option<Vec<usize>>,
) -> Vec<Literal> {
    let (arrays, initial) = operands.split_at(operands.len() / 2);
    let mut results: Vec<Vec<Literal>> = vec![Vec::new(); types.len()];
    for place in (0..types[0].element_count()).map(|at| place_of(at, &types[0].dims)) {
        let mut carry: Vec<Literal> = initial.iter().map(|&literal| literal.clone()).collect();
        for step in (0..steps.iter().product()).map(|at| place_of(at, steps)) {
            let Some(from) = source(&place, &step) else { continue };
            let own = arrays.iter().map(|array| element(array, offset(&from, &array.ty().dims)));
            carry = interpret(body, &carry.into_iter().chain(own).collect::<Vec<_>>());
        }
        results.iter_mut().zip(carry).for_each(|(result, element)| result.push(element));
    }
    results.into_iter().zip(types).map(|(elements, ty)| gathered(ty, elements.into_iter())).collect()
}
