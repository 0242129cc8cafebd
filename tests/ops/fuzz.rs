//! No op panics on operands that make no sense.

use meshloom::ir::{DType, TensorType};
use meshloom::ops::Op;
use proptest::prelude::*;

use crate::table::entries;
use support::cases::cases;

/// Mostly small sizes, so that some fit; and some that overflow all that is computed from them.
fn size() -> impl Strategy<Value = usize> {
    const HUGE: &[usize] = &[usize::MAX, usize::MAX / 2, 1 << 62, 1 << 32, 1 << 31];
    prop_oneof![20 => 0..6usize, 1 => prop::sample::select(HUGE)]
}

fn operand() -> impl Strategy<Value = TensorType> {
    let dtype = prop::sample::select(&[DType::F32, DType::S32, DType::Pred, DType::BF16, DType::U8][..]);
    (dtype, prop::collection::vec(size(), 0..5)).prop_map(|(dtype, dims)| TensorType::new(dtype, &dims))
}

/// An op of the table with its operand types.
fn known() -> impl Strategy<Value = (Op, Vec<TensorType>)> {
    let mut all = Vec::new();
    for entry in entries() {
        let rejects = entry.rejects.iter().map(|case| (case.op.clone(), case.operands.clone()));
        all.extend(entry.accepts.iter().map(|case| (case.op.clone(), case.operands.clone())).chain(rejects));
    }
    prop::sample::select(all)
}

fn tries() -> u32 {
    cases("ops fuzz", 4000, 0..20_000).len() as u32
}

proptest! {
    #![proptest_config(ProptestConfig { cases: tries(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operands_do_not_panic((op, _) in known(), operands in prop::collection::vec(operand(), 0..6)) {
        let _ = op.infer(&operands.iter().collect::<Vec<_>>());
    }

    /// Operands that nearly fit get further.
    #[test]
    fn changed_operands_do_not_panic(
        (op, mut operands) in known(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), size()), 1..3),
    ) {
        for (operand, dim, size) in changes {
            if operands.is_empty() {
                break;
            }
            let index = operand.index(operands.len());
            let dims = &mut operands[index].dims;
            if dims.is_empty() {
                dims.push(size);
            } else {
                let dim = dim.index(dims.len());
                dims[dim] = size;
            }
        }
        let results = op.infer(&operands.iter().collect::<Vec<_>>());
        // The bytes of an accepted type can be counted.
        for ty in results.iter().flatten() {
            prop_assert!(ty.byte_count() <= isize::MAX as usize);
        }
    }
}
