//! Types: `tensor<2x3xf32>`, `tuple<...>`, `!stablehlo.token`.

use std::rc::Rc;

use super::error::{Result, malformed, no_form};
use crate::proto::{PrimitiveType, ShapeProto};
pub(super) use crate::shape::is_tuple;
use crate::stablehlo::names;

/// The text of a type.
pub(super) type Type = Rc<str>;

pub(super) fn element(shape: &ShapeProto) -> PrimitiveType {
    PrimitiveType::try_from(shape.element_type).unwrap_or_default()
}

pub(super) fn is_token(shape: &ShapeProto) -> bool {
    element(shape) == PrimitiveType::Token
}

/// The name of the element type of an array.
pub(super) fn element_name(shape: &ShapeProto) -> Result<&'static str> {
    let found = element(shape);
    match names::element_name(found) {
        Some(name) => Ok(name),
        None => no_form(format!("the type {} is not one of StableHLO's; convert to another type", found.hlo_name())),
    }
}

/// The type of an array or token.
pub(super) fn leaf(shape: &ShapeProto) -> Result<Type> {
    match element(shape) {
        PrimitiveType::Token => return Ok("!stablehlo.token".into()),
        PrimitiveType::Tuple => return malformed("an array is expected, a tuple found"),
        _ => {}
    }
    let name = element_name(shape)?;
    let is_dynamic = |dimension: usize| shape.is_dynamic_dimension.get(dimension).copied().unwrap_or(false);
    let mut text = String::from("tensor<");
    for (dimension, size) in shape.dimensions.iter().enumerate() {
        match is_dynamic(dimension) {
            true => text.push('?'),
            false => text.push_str(&size.to_string()),
        }
        text.push('x');
    }
    text.push_str(name);
    if (0..shape.dimensions.len()).any(is_dynamic) {
        let bound = |(dimension, size): (usize, &i64)| match is_dynamic(dimension) {
            true => size.to_string(),
            false => "?".to_owned(),
        };
        let bounds: Vec<String> = shape.dimensions.iter().enumerate().map(bound).collect();
        text.push_str(&format!(", #stablehlo.bounds<{}>", bounds.join(", ")));
    }
    text.push('>');
    Ok(text.into())
}

/// The types of the arrays and tokens in a shape, in order.
pub(super) fn leaves(shape: &ShapeProto) -> Result<Vec<Type>> {
    if !is_tuple(shape) {
        return Ok(vec![leaf(shape)?]);
    }
    let mut types = Vec::with_capacity(shape.tuple_shapes.len());
    for part in &shape.tuple_shapes {
        types.extend(leaves(part)?);
    }
    Ok(types)
}

/// The number of arrays and tokens in a shape.
pub(super) fn leaf_count(shape: &ShapeProto) -> usize {
    if is_tuple(shape) { shape.tuple_shapes.iter().map(leaf_count).sum() } else { 1 }
}

/// The arrays and tokens of a shape, in order.
pub(super) fn leaf_shapes(shape: &ShapeProto) -> Vec<&ShapeProto> {
    let (mut leaves, mut stack) = (Vec::new(), vec![shape]);
    while let Some(shape) = stack.pop() {
        match is_tuple(shape) {
            true => stack.extend(shape.tuple_shapes.iter().rev()),
            false => leaves.push(shape),
        }
    }
    leaves
}

/// The number of arrays and tokens before the part of a shape that an index names, and the part.
pub(super) fn at_index<'s>(shape: &'s ShapeProto, index: &[i64]) -> Option<(usize, &'s ShapeProto)> {
    let (mut before, mut part) = (0, shape);
    for &index in index {
        let index = usize::try_from(index).ok()?;
        let parts = is_tuple(part).then_some(&part.tuple_shapes)?;
        before += parts.get(..index)?.iter().map(leaf_count).sum::<usize>();
        part = parts.get(index)?;
    }
    Some((before, part))
}

/// The type of a value that stays a tuple.
pub(super) fn packed(shape: &ShapeProto) -> Result<Type> {
    if !is_tuple(shape) {
        return leaf(shape);
    }
    let parts = shape.tuple_shapes.iter().map(packed).collect::<Result<Vec<Type>>>()?;
    Ok(format!("tuple<{}>", parts.join(", ")).into())
}
