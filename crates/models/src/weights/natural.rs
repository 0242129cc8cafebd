//! The order in which a person lists names: `layers.2` before `layers.10`.

use std::cmp::Ordering;

/// Compares names, each run of digits in them as one number. Only equal names are equal: `a1` comes before `a01`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        let order = match (digits(left), digits(right)) {
            (0, _) | (_, 0) => match (left.split_first(), right.split_first()) {
                (Some((x, left_rest)), Some((y, right_rest))) => {
                    (left, right) = (left_rest, right_rest);
                    x.cmp(y)
                }
                _ if left.is_empty() && right.is_empty() => return a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
                _ => return left.len().cmp(&right.len()),
            },
            (x, y) => {
                let (x, left_rest) = left.split_at(x);
                let (y, right_rest) = right.split_at(y);
                (left, right) = (left_rest, right_rest);
                let (x, y) = (number(x), number(y));
                x.len().cmp(&y.len()).then_with(|| x.cmp(y))
            }
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// How many digits the name starts with.
fn digits(name: &[u8]) -> usize {
    name.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// The digits without leading zeros. A number may have more of them than an integer type holds.
fn number(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}
