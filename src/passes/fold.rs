//! Constant folding.

use smallvec::SmallVec;

use super::evaluate::evaluate;
use super::rewrite::{LARGEST_FOLDED, Match, Rewrite, RewriteRule};
use crate::ir::{Literal, TensorType, Value};
use crate::ops::{Class, Constant, Op, Splat};

/// Computes nodes whose operands are constants, in their own element type. Only results that [`evaluate`] knows are
/// folded: those that are the same on every back end.
///
/// The operands and the result have at most [`LARGEST_FOLDED`] elements, except that a result which is made of splats
/// alone and has equal elements is a splat of any size.
pub(crate) const FOLD_CONSTANTS: Rewrite = Rewrite { folding: Some(rules), ..Rewrite::NOTHING };

const RULES: &[RewriteRule] = &[
    RewriteRule {
        name: "op(splats) = splat",
        argument: "every element of the result is computed from the same numbers, so one is computed for all",
        apply: fold_splats,
    },
    RewriteRule {
        name: "op(constants) = constant",
        argument: "the host computes what every back end computes",
        apply: fold_constants,
    },
];

fn rules(op: &Op) -> &'static [RewriteRule] {
    match op.facts().class {
        // The bytes of the constant may be those of a splat.
        Class::Source if matches!(op, Op::Constant(_)) => &RULES[1..],
        Class::Source | Class::Identity => &[],
        Class::Broadcast | Class::Elementwise | Class::Fold | Class::Kernel | Class::Movement | Class::Reshape => RULES,
    }
}

/// A constant of one element as a splat of another shape; `None` for an integer that a splat cannot hold.
fn splat(element: &Literal, ty: &TensorType) -> Option<Splat> {
    let splat = Splat::new(ty.clone(), element.to_f64_vec().first().copied()?);
    let (bytes, width) = splat.element_bytes();
    (bytes[..width] == *element.bytes()).then_some(splat)
}

fn fold_splats(node: &mut Match<'_, '_>) -> Option<Value> {
    let splats: Option<SmallVec<[Splat; 3]>> =
        node.operands().iter().map(|&operand| node.splat(operand).cloned()).collect();
    let splats = splats?;
    let scalar = |splat: &Splat| evaluate(&Splat::new(TensorType::scalar(splat.ty.dtype), splat.number()).into(), &[]);
    let first = scalar(splats.first()?)?;
    let facts = node.op.facts();
    let element = if facts.class == Class::Elementwise {
        let scalars: Option<SmallVec<[Literal; 3]>> = splats.iter().map(scalar).collect();
        evaluate(node.op, &scalars?.iter().collect::<SmallVec<[&Literal; 3]>>())?
    } else {
        // All elements are one number, whatever is moved where.
        let picked = facts.picks?.of(splats.len());
        picked.iter().all(|&index| scalar(&splats[index]).as_ref() == Some(&first)).then_some(first)?
    };
    let splat = splat(&element, node.ty)?;
    node.push(splat, &[])
}

fn fold_constants(node: &mut Match<'_, '_>) -> Option<Value> {
    let small = |ty: &TensorType| ty.element_count() <= LARGEST_FOLDED;
    if !small(node.ty) {
        return None;
    }
    // Most nodes have an operand that is no constant, which is found before any value is computed.
    let constant = |&operand: &Value| {
        small(node.ty_of(operand)) && node.made_by(operand).is_some_and(|(op, _)| op.facts().is_constant())
    };
    if !node.operands().iter().all(constant) {
        return None;
    }
    let literal = |&operand: &Value| evaluate(node.made_by(operand)?.0, &[]);
    let literals: SmallVec<[Literal; 3]> = node.operands().iter().map(literal).collect::<Option<_>>()?;
    let result = evaluate(node.op, &literals.iter().collect::<SmallVec<[&Literal; 3]>>())?;
    let width = result.ty().dtype.byte_count();
    let mut elements = result.bytes().chunks_exact(width);
    let first = elements.next();
    if let Some(first) = first
        && elements.all(|element| element == first)
    {
        let element = Literal::from_bytes(TensorType::scalar(result.ty().dtype), first).ok()?;
        if let Some(splat) = splat(&element, node.ty) {
            return node.push(splat, &[]);
        }
    }
    // A constant that does not become a splat stays as it is.
    if matches!(node.op, Op::Constant(_)) { None } else { node.push(Constant(Box::new(result)), &[]) }
}
