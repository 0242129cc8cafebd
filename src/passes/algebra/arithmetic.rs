//! Identities of elementwise ops.

use super::super::rewrite::{Match, RewriteRule};
use super::rules;
use crate::ir::{DType, Value, Values};
use crate::ops::{
    Binary, BinaryKind, BitcastConvert, Compare, Convert, Direction, Op, ReduceKind, Select, Splat, Unary, UnaryKind,
};

rules! {
    ADD {
        "x + -0 = x", "also for x = -0 and x = 0",
            |node| if node.dtype().is_float() { beside(node, -0.0) } else { None };
        "x + 0 = x", "integers; other numbers that are never -0, for which it is 0",
            |node| beside(node, 0.0).filter(|&x| node.dtype().is_integer() || never_negative_zero(node, x, 4));
        "x + -y = x - y", "so IEEE 754 defines subtraction; integers wrap alike", |node| {
            let y = negated(node, 1)?;
            node.push(Binary(BinaryKind::Subtract), &[node.operand(0), y])
        };
        "-x + y = y - x", "as above, with operands exchanged: addition commutes", |node| {
            let x = negated(node, 0)?;
            node.push(Binary(BinaryKind::Subtract), &[node.operand(1), x])
        };
    }
    SUBTRACT {
        "x - 0 = x", "also for x = -0: -0 + -0 = -0", |node| node.is(node.operand(1), 0.0).then(|| node.operand(0));
        "-0 - x = -x", "also for x = 0 and x = -0; integers have one zero", |node| {
            let zero = if node.dtype().is_float() { -0.0 } else { 0.0 };
            node.is(node.operand(0), zero).then_some(())?;
            node.push(Unary(UnaryKind::Negate), &[node.operand(1)])
        };
        "x - -y = x + y", "so IEEE 754 defines subtraction; integers wrap alike", |node| {
            let y = negated(node, 1)?;
            node.push(Binary(BinaryKind::Add), &[node.operand(0), y])
        };
        "x - x = 0", "integers; an infinity less itself is NaN",
            |node| (node.dtype().is_integer() && node.operand(0) == node.operand(1)).then(|| node.push_splat(0.0));
    }
    MULTIPLY {
        "x * 1 = x", "one is neutral for every number", |node| beside(node, 1.0);
        "x * -1 = -x", "the sign changes, and nothing is rounded", |node| {
            // As an unsigned number, -1 would be read as 0.
            let x = if is_signed(node.dtype()) { beside(node, -1.0)? } else { return None };
            node.push(Unary(UnaryKind::Negate), &[x])
        };
        "x * 0 = 0", "integers; NaN and infinity times zero are NaN", |node| {
            if node.dtype().is_integer() { beside(node, 0.0)? } else { return None };
            Some(node.push_splat(0.0))
        };
        "-x * -y = x * y", "two changes of sign undo each other", |node| {
            let (x, y) = (negated(node, 0)?, negated(node, 1)?);
            node.push(Binary(BinaryKind::Multiply), &[x, y])
        };
    }
    DIVIDE {
        "x / 1 = x", "one is neutral for every number", |node| node.is(node.operand(1), 1.0).then(|| node.operand(0));
        "x / -1 = -x", "the sign changes; the smallest integer overflows to itself both ways", |node| {
            (is_signed(node.dtype()) && node.is(node.operand(1), -1.0)).then_some(())?;
            node.push(Unary(UnaryKind::Negate), &[node.operand(0)])
        };
        "x / 2^k = x * 2^-k", "both round the same exact number, if 2^-k is a normal number", |node| {
            let inverse = exact_inverse(node.dtype(), node.splat(node.operand(1))?.number())?;
            let inverse = node.push_splat(inverse);
            node.push(Binary(BinaryKind::Multiply), &[node.operand(0), inverse])
        };
        "-x / -y = x / y", "not for integers, whose smallest has no negative", |node| {
            let (x, y) = (negated(node, 0)?, negated(node, 1)?);
            node.dtype().is_float().then_some(())?;
            node.push(Binary(BinaryKind::Divide), &[x, y])
        };
    }
    MAXIMUM {
        "max(x, x) = x", "also for NaN", |node| equal_operands(node);
        "max(x, lowest) = x", "NaN wins over all", |node| beside(node, ReduceKind::Max.identity(node.dtype()));
    }
    MINIMUM {
        "min(x, x) = x", "also for NaN", |node| equal_operands(node);
        "min(x, highest) = x", "NaN wins over all", |node| beside(node, ReduceKind::Min.identity(node.dtype()));
    }
    AND {
        "x & x = x", "bit by bit", |node| equal_operands(node);
        "x & all ones = x", "bit by bit", |node| beside(node, ReduceKind::And.identity(node.dtype()));
        "x & 0 = 0", "bit by bit", |node| beside(node, 0.0).map(|_| node.push_splat(0.0));
    }
    OR {
        "x | x = x", "bit by bit", |node| equal_operands(node);
        "x | 0 = x", "bit by bit", |node| beside(node, 0.0);
        "x | all ones = all ones", "bit by bit", |node| {
            let ones = ReduceKind::And.identity(node.dtype());
            beside(node, ones).map(|_| node.push_splat(ones))
        };
    }
    XOR {
        "x ^ 0 = x", "bit by bit", |node| beside(node, 0.0);
        "x ^ x = 0", "bit by bit", |node| equal_operands(node).map(|_| node.push_splat(0.0));
    }
    SHIFT {
        "x << 0 = x, x >> 0 = x", "no bit moves", |node| node.is(node.operand(1), 0.0).then(|| node.operand(0));
    }
    NEGATE {
        "-(-x) = x", "the sign changes twice, also of zero; integers wrap back", |node| negated(node, 0);
    }
    ABS {
        "|-x| = |x|", "the sign is dropped anyway; the smallest integer is its own negative", |node| {
            let x = negated(node, 0)?;
            node.push(Unary(UnaryKind::Abs), &[x])
        };
        "||x|| = |x|", "there is no sign to drop, or it is that of the smallest integer, which stays",
            |node| made_by_unary(node, &[UnaryKind::Abs]);
    }
    SIGN {
        "sign(sign(x)) = sign(x)", "the sign of -1, 0, -0, 1 and NaN is itself",
            |node| made_by_unary(node, &[UnaryKind::Sign]);
    }
    ROUND {
        "round(whole) = whole", "ceil, floor and round leave whole numbers, infinities, NaN and -0 as they are",
            |node| made_by_unary(node, &[
                UnaryKind::Ceil, UnaryKind::Floor, UnaryKind::RoundNearestEven, UnaryKind::Sign,
            ]);
    }
    NOT {
        "!!x = x", "bit by bit", |node| match node.made_by(node.operand(0))? {
            (Op::Unary(Unary(UnaryKind::Not)), operands) => Some(operands[0]),
            _ => None,
        };
        "!(x < y) = x >= y", "`==`, `!=`: always; the others are false for NaN, so not for floats",
            made by (Op::Compare(Compare(direction)), &[x, y]) => |node| {
            let (direction, is_float) = (*direction, node.ty_of(x).dtype.is_float());
            let inverse = inverse(direction);
            (!is_float || matches!(direction, Direction::Eq | Direction::Ne)).then_some(())?;
            node.push(Compare(inverse), &[x, y])
        };
    }
    COMPARE {
        "x == x is true, x < x is false", "not for floating point: NaN is not equal to itself", |node| {
            let x = equal_operands(node)?;
            let Op::Compare(Compare(direction)) = node.op else { return None };
            let holds = matches!(direction, Direction::Eq | Direction::Ge | Direction::Le);
            (!node.ty_of(x).dtype.is_float()).then(|| node.push_splat(f64::from(u8::from(holds))))
        };
        "(p == true) = p, (p != false) = p", "pred has two values", |node| {
            (node.ty_of(node.operand(0)).dtype == DType::Pred).then_some(())?;
            match node.op {
                Op::Compare(Compare(Direction::Eq)) => beside(node, 1.0),
                Op::Compare(Compare(Direction::Ne)) => beside(node, 0.0),
                _ => None,
            }
        };
    }
    SELECT {
        "select(p, x, x) = x", "they are the same",
            |node| (node.operand(1) == node.operand(2)).then(|| node.operand(1));
        "select(true, x, y) = x", "the choice is known", |node| node.is(node.operand(0), 1.0).then(|| node.operand(1));
        "select(false, x, y) = y", "the choice is known", |node| node.is(node.operand(0), 0.0).then(|| node.operand(2));
        "select(!p, x, y) = select(p, y, x)", "the opposite choice of the opposite",
            made by (Op::Unary(Unary(UnaryKind::Not)), &[p]) => |node| {
            node.push(Select, &[p, node.operand(2), node.operand(1)])
        };
        "select(p, true, false) = p", "pred has two values", |node| {
            let (on_true, on_false) = (node.operand(1), node.operand(2));
            let applies = node.dtype() == DType::Pred && node.is(on_true, 1.0) && node.is(on_false, 0.0);
            applies.then(|| node.operand(0))
        };
        "select(p, select(p, x, y), z) = select(p, x, z)", "where the inner choice is read, it is known", |node| {
            let x = chosen_again(node, 1)?;
            node.push(Select, &[node.operand(0), x, node.operand(2)])
        };
        "select(p, x, select(p, y, z)) = select(p, x, z)", "where the inner choice is read, it is known", |node| {
            let z = chosen_again(node, 2)?;
            node.push(Select, &[node.operand(0), node.operand(1), z])
        };
    }
    CONVERT {
        "convert(x) = x", "to the type it has",
            |node| (node.ty_of(node.operand(0)).dtype == node.dtype()).then(|| node.operand(0));
        "convert(convert(x)) = convert(x)", "if the type between holds every number of the first",
            made by (Op::Convert(Convert(between)), &[x]) => |node| {
            (passes_through(node.ty_of(x).dtype, *between, node.dtype())).then_some(())?;
            node.push(Convert(node.dtype()), &[x])
        };
    }
    BITCAST {
        "bitcast(x) = x", "to the type it has",
            |node| (node.ty_of(node.operand(0)).dtype == node.dtype()).then(|| node.operand(0));
        "bitcast(bitcast(x)) = bitcast(x)", "the bits stay what they are",
            made by (Op::BitcastConvert(_), &[x]) => |node| {
            node.push(BitcastConvert(node.dtype()), &[x])
        };
    }
}

/// The operand of a commutative op beside a constant.
fn beside(node: &Match<'_, '_>, number: f64) -> Option<Value> {
    let (x, y) = (node.operand(0), node.operand(1));
    if node.is(y, number) {
        Some(x)
    } else if node.is(x, number) {
        Some(y)
    } else {
        None
    }
}

fn equal_operands(node: &Match<'_, '_>) -> Option<Value> {
    (node.operand(0) == node.operand(1)).then(|| node.operand(0))
}

/// The x of an operand -x.
fn negated(node: &Match<'_, '_>, index: usize) -> Option<Value> {
    match node.made_by(node.operand(index))? {
        (Op::Unary(Unary(UnaryKind::Negate)), operands) => Some(operands[0]),
        _ => None,
    }
}

/// The operand itself, if one of these functions made it.
fn made_by_unary(node: &Match<'_, '_>, kinds: &[UnaryKind]) -> Option<Value> {
    match node.made_by(node.operand(0))?.0 {
        Op::Unary(Unary(kind)) if kinds.contains(kind) => Some(node.operand(0)),
        _ => None,
    }
}

/// Operand `index` of a select, if that operand is itself a select by the same choice: its value under this choice.
fn chosen_again(node: &Match<'_, '_>, index: usize) -> Option<Value> {
    match node.made_by(node.operand(index))? {
        (Op::Select(_), operands) if operands[0] == node.operand(0) => Some(operands[index]),
        _ => None,
    }
}

fn is_signed(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_signed_integer()
}

/// Whether no element can be -0, by the op that makes it; `depth` bounds the search.
fn never_negative_zero(node: &Match<'_, '_>, value: Value, depth: usize) -> bool {
    let Some((op, operands)) = node.made_by(value) else { return false };
    let all = |operands: &[Value]| depth > 0 && operands.iter().all(|&x| never_negative_zero(node, x, depth - 1));
    match op {
        // These functions have no negative results, or no negative result that is zero.
        Op::Unary(Unary(UnaryKind::Abs | UnaryKind::Exponential | UnaryKind::Logistic)) => true,
        Op::Iota(_) => true,
        Op::Splat(splat) => splat.element_bytes() != Splat::new(splat.ty.clone(), -0.0).element_bytes(),
        // The product is a square, or one of two numbers of the same sign.
        Op::Binary(Binary(BinaryKind::Multiply)) => operands[0] == operands[1],
        // A sum is -0 only if both terms are; a difference x - y only if x is.
        Op::Binary(Binary(BinaryKind::Add)) => {
            depth > 0 && operands.iter().any(|&x| never_negative_zero(node, x, depth - 1))
        }
        Op::Binary(Binary(BinaryKind::Subtract)) => all(&operands[..1]),
        // An integer zero has no sign.
        Op::Convert(_) => !node.ty_of(operands[0]).dtype.is_float(),
        op => op.facts().picks.is_some_and(|which| {
            all(&which.of(operands.len()).iter().map(|&index| operands[index]).collect::<Values>())
        }),
    }
}

/// 1 / number, if that is exact and neither of the two is subnormal.
fn exact_inverse(dtype: DType, number: f64) -> Option<f64> {
    const MANTISSA: u64 = (1 << 52) - 1;
    // The largest power of two whose inverse is a normal number, and the other way round.
    let largest = match dtype {
        DType::F16 => 14,
        DType::BF16 | DType::F32 => 126,
        DType::F64 => 1022,
        _ => return None,
    };
    let limit = 2f64.powi(largest);
    let in_range = number.abs() <= limit && number.abs() >= limit.recip();
    (in_range && number.to_bits() & MANTISSA == 0).then(|| number.recip())
}

fn inverse(direction: Direction) -> Direction {
    match direction {
        Direction::Eq => Direction::Ne,
        Direction::Ne => Direction::Eq,
        Direction::Ge => Direction::Lt,
        Direction::Gt => Direction::Le,
        Direction::Le => Direction::Gt,
        Direction::Lt => Direction::Ge,
    }
}

/// Whether converting by way of a type gives the same as converting at once.
fn passes_through(from: DType, between: DType, to: DType) -> bool {
    let widens = |narrow: DType, wide: DType| {
        matches!(
            (narrow, wide),
            (DType::BF16 | DType::F16, DType::F32) | (DType::BF16 | DType::F16 | DType::F32, DType::F64)
        )
    };
    if from == DType::Pred {
        // 0 and 1 are in every type.
        return between.is_integer() || matches!(between, DType::BF16 | DType::F16 | DType::F32 | DType::F64);
    }
    if from.is_float() {
        // The number is the same, so it is rounded the same. A back end may round `f64` to the narrow types in two
        // steps, but then it does so either way, as `from` is `f64` in neither case or `to` is not narrow.
        return widens(from, between);
    }
    let (Some(bits), signed) = (integer_bits(from), from.is_signed_integer()) else { return false };
    // Whether an integer type holds every number of the first. A negative number in an unsigned type wraps around.
    let holds = |other: DType| {
        integer_bits(other).is_some_and(|other_bits| match (signed, other.is_signed_integer()) {
            (true, true) | (false, false) => bits <= other_bits,
            (false, true) => bits < other_bits,
            (true, false) => false,
        })
    };
    if between.is_integer() {
        // Back ends round to narrow types by way of `f32`, and so alike from any integer type, as long as that is
        // exact.
        return holds(between) && (integer_bits(to).is_some() || to == DType::Pred || to.is_float() && bits <= 24);
    }
    // An integer held exactly is rounded once, as it would be at once; but out of range of an integer type it would
    // saturate instead of wrapping.
    bits <= mantissa_bits(between) && (to.is_float() || to == DType::Pred || holds(to))
}

fn integer_bits(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::S8 | DType::U8 => 8,
        DType::S16 | DType::U16 => 16,
        DType::S32 | DType::U32 => 32,
        DType::S64 | DType::U64 => 64,
        _ => return None,
    })
}

/// The most bits that an integer may have to be held exactly; 0 for a type that is not floating-point.
fn mantissa_bits(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F32 => 24,
        DType::F64 => 53,
        _ => 0,
    }
}
