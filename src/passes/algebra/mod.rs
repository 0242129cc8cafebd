//! Identities: each rule is a row, with the argument why it changes no bit of the result.
//!
//! Rules hold for NaN, infinities and signed zeros. Two things are left open, as in XLA: the payload and sign of a NaN,
//! and whether a back end flushes subnormal numbers to zero in arithmetic (`x * 1` may flush one, `x` does not). If
//! IEEE 754 makes an identity false for one value, as `x + 0 = x` is for -0, the rule is confined to integers or to
//! operands that cannot have that value.
//!
//! No rule looks through a barrier, a reshard or declared axes: a program that has one wants the value as it is there.
//! No rule depends on the readers of a value, so none duplicates work that other nodes read too.

mod arithmetic;
mod movement;

use super::rewrite::{Rewrite, RewriteRule};
use crate::ops::{BinaryKind, Op, UnaryKind};

/// Applies the identities of [`algebra_rules`].
pub(crate) const SIMPLIFY: Rewrite = Rewrite { algebra: Some(rules_of), ..Rewrite::NOTHING };

/// Rows of rules, one table for each op: the name, the argument, then the replacement of the node. `given PATTERN =>`
/// confines a row to nodes with such an op, `made by PATTERN =>` to those whose first operand is the only result of
/// such an op and such operands.
macro_rules! rules {
    ($($table:ident { $(
        $name:literal, $argument:literal, $(given $op:pat_param =>)? $(made by $made:pat_param =>)?
        |$node:ident| $apply:expr;
    )* })*) => {
        $(pub(super) const $table: &[RewriteRule] = &[$(RewriteRule {
            name: $name,
            argument: $argument,
            apply: |$node| {
                $(let $op = $node.op else { return None };)?
                $(let $made = $node.made_by($node.operand(0))? else { return None };)?
                $apply
            },
        }),*];)*

        /// All of them.
        pub(super) const ALL: &[&[RewriteRule]] = &[$($table),*];
    };
}
use rules;

fn rules_of(op: &Op) -> &'static [RewriteRule] {
    match op {
        Op::Binary(op) => match op.0 {
            BinaryKind::Add => arithmetic::ADD,
            BinaryKind::And => arithmetic::AND,
            BinaryKind::Divide => arithmetic::DIVIDE,
            BinaryKind::Maximum => arithmetic::MAXIMUM,
            BinaryKind::Minimum => arithmetic::MINIMUM,
            BinaryKind::Multiply => arithmetic::MULTIPLY,
            BinaryKind::Or => arithmetic::OR,
            BinaryKind::ShiftLeft | BinaryKind::ShiftRightArithmetic | BinaryKind::ShiftRightLogical => {
                arithmetic::SHIFT
            }
            BinaryKind::Subtract => arithmetic::SUBTRACT,
            BinaryKind::Xor => arithmetic::XOR,
            _ => &[],
        },
        Op::BitcastConvert(_) => arithmetic::BITCAST,
        Op::BroadcastInDim(_) => movement::BROADCAST,
        Op::Compare(_) => arithmetic::COMPARE,
        Op::Concatenate(_) => movement::CONCATENATE,
        Op::Convert(_) => arithmetic::CONVERT,
        Op::DynamicSlice(_) => movement::DYNAMIC_SLICE,
        Op::DynamicUpdateSlice(_) => movement::DYNAMIC_UPDATE_SLICE,
        Op::Pad(_) => movement::PAD,
        Op::Reduce(_) => movement::REDUCE,
        Op::Reshape(_) => movement::RESHAPE,
        Op::Reverse(_) => movement::REVERSE,
        Op::Select(_) => arithmetic::SELECT,
        Op::Slice(_) => movement::SLICE,
        Op::Transpose(_) => movement::TRANSPOSE,
        Op::Unary(op) => match op.0 {
            UnaryKind::Abs => arithmetic::ABS,
            UnaryKind::Negate => arithmetic::NEGATE,
            UnaryKind::Not => arithmetic::NOT,
            UnaryKind::Sign => arithmetic::SIGN,
            UnaryKind::Ceil | UnaryKind::Floor | UnaryKind::RoundNearestEven => arithmetic::ROUND,
            _ => &[],
        },
        _ => &[],
    }
}

/// Every rule of the `algebra` pass.
pub fn algebra_rules() -> impl Iterator<Item = &'static RewriteRule> {
    arithmetic::ALL.iter().chain(movement::ALL).copied().flatten()
}
