//! Elementwise ops: rows of a table, plus compare, select and conversions.
//!
//! All operands of an elementwise op have exactly the same dimensions; broadcasting is an op of its own.

mod expansion;

pub(crate) use expansion::erf_inv_f32;

use super::rules::*;
use super::{Linear, Operands, expect_same_types};

/// The element types that an elementwise op takes. No op takes 4-bit integers: convert them to `s8` first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandClass {
    /// Floating point.
    Float,
    /// Floating point and signed integers.
    FloatOrSigned,
    /// Floating point and integers.
    Numeric,
    /// Integers.
    Integer,
    /// Integers and `pred`.
    Bits,
}

impl OperandClass {
    /// Whether the class contains a type.
    pub fn contains(self, dtype: DType) -> bool {
        match self {
            _ if is_packed(dtype) => false,
            OperandClass::Float => dtype.is_float(),
            OperandClass::FloatOrSigned => dtype.is_float() || dtype.is_signed_integer(),
            OperandClass::Numeric => dtype != DType::Pred,
            OperandClass::Integer => dtype.is_integer(),
            OperandClass::Bits => !dtype.is_float(),
        }
    }

    pub(super) fn check(self, operand: usize, ty: &TensorType) -> Result<(), TypeError> {
        if self.contains(ty.dtype) {
            return Ok(());
        }
        let expected = match self {
            OperandClass::Float => "a floating-point type",
            OperandClass::FloatOrSigned => "a floating-point or signed integer type",
            OperandClass::Numeric => "a number type",
            OperandClass::Integer => "an integer type",
            OperandClass::Bits => "an integer type or pred",
        };
        let narrow = if is_packed(ty.dtype) { " of at least 8 bits" } else { "" };
        Err(TypeError::DType { operand, expected: format!("{expected}{narrow}"), found: ty.dtype })
    }
}

/// Whether elements have less than a byte. They are kept and moved so, but computed with as a wider type.
pub(super) fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::S4 | DType::U4)
}

/// The result of a row's gradient expression. It is `None` where the derivative is zero almost everywhere.
type Gradient = Result<Option<Value>, OpError>;

// The facts of the rows: the amount of computation, and whether the result is zero where all operands are.
const CHEAP: Facts<'static> = Facts::ELEMENTWISE;
const CHEAP_ZERO: Facts<'static> = CHEAP.zero_of(Operands::All);
const COSTLY: Facts<'static> = Facts::COSTLY;
const COSTLY_ZERO: Facts<'static> = COSTLY.zero_of(Operands::All);
const PRODUCT: Facts<'static> = CHEAP.linear(Linear::Each(Operands::All));
const QUOTIENT: Facts<'static> = CHEAP.linear(Linear::OfFloats(Operands::These(&[0])));
const SUM: Facts<'static> = CHEAP.linear(Linear::Together(Operands::All));

macro_rules! unary_table {
    ($($(#[$doc:meta])* $kind:ident $name:literal $class:ident $facts:ident |$b:pat_param, $ct:pat_param, $x:pat_param, $y:pat_param| $vjp:expr;)*) => {
        /// The functions of one operand.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum UnaryKind { $($(#[$doc])* $kind,)* }

        impl UnaryKind {
            /// Every row of the table.
            pub const ALL: &'static [UnaryKind] = &[$(UnaryKind::$kind,)*];

            /// HLO's opcode where there is one.
            pub const fn name(self) -> &'static str {
                match self { $(UnaryKind::$kind => $name,)* }
            }

            /// The element types that it takes.
            pub const fn class(self) -> OperandClass {
                match self { $(UnaryKind::$kind => OperandClass::$class,)* }
            }

            /// The facts that passes ask for.
            const fn facts(self) -> Facts<'static> {
                match self { $(UnaryKind::$kind => $facts,)* }
            }

            /// Cotangent of the operand `x` from that of the result `y`.
            fn gradient(self, builder: &mut GraphBuilder, ct: Value, x: Value, y: Value) -> Gradient {
                match self { $(UnaryKind::$kind => {
                    let ($b, $ct, $x, $y) = (builder, ct, x, y);
                    $vjp
                })* }
            }
        }
    };
}

unary_table! {
    /// Absolute value. Its slope is the sign: 0 at 0.
    Abs "abs" FloatOrSigned CHEAP_ZERO |b, ct, x, _| { let s = b.unary(UnaryKind::Sign, x)?; b.mul(ct, s).map(Some) };
    /// Angle whose cosine this is, from 0 to pi.
    Acos "acos" Float COSTLY |b, ct, x, _| {
        let slope = inverse_leg(b, x, 1.0)?;
        let product = b.mul(ct, slope)?;
        b.neg(product).map(Some)
    };
    /// Number, 0 or above, whose hyperbolic cosine this is.
    Acosh "acosh" Float COSTLY |b, ct, x, _| { let slope = inverse_leg(b, x, -1.0)?; b.mul(ct, slope).map(Some) };
    /// Angle whose sine this is, from -pi / 2 to pi / 2.
    Asin "asin" Float COSTLY_ZERO |b, ct, x, _| { let slope = inverse_leg(b, x, 1.0)?; b.mul(ct, slope).map(Some) };
    /// Number whose hyperbolic sine this is.
    Asinh "asinh" Float COSTLY_ZERO |b, ct, x, _| {
        let square = b.mul(x, x)?;
        let sum = b.shift(square, 1.0)?;
        let slope = b.unary(UnaryKind::Rsqrt, sum)?;
        b.mul(ct, slope).map(Some)
    };
    /// Angle whose tangent this is, from -pi / 2 to pi / 2.
    Atan "atan" Float COSTLY_ZERO |b, ct, x, _| { let square = b.mul(x, x)?; let sum = b.shift(square, 1.0)?; b.div(ct, sum).map(Some) };
    /// Number whose hyperbolic tangent this is.
    Atanh "atanh" Float COSTLY_ZERO |b, ct, x, _| { let product = legs(b, x, 1.0)?; b.div(ct, product).map(Some) };
    /// Cube root, also of negative numbers.
    Cbrt "cbrt" Float COSTLY_ZERO |b, ct, _, y| {
        let square = b.mul(y, y)?;
        let triple = b.scale(square, 3.0)?;
        b.div(ct, triple).map(Some)
    };
    /// Smallest integer not below.
    Ceil "ceil" Float CHEAP_ZERO |_, _, _, _| Ok(None);
    /// Cosine.
    Cosine "cosine" Float COSTLY |b, ct, x, _| { let s = b.unary(UnaryKind::Sine, x)?; let n = b.neg(s)?; b.mul(ct, n).map(Some) };
    /// Hyperbolic cosine.
    Cosh "cosh" Float COSTLY |b, ct, x, _| { let slope = b.unary(UnaryKind::Sinh, x)?; b.mul(ct, slope).map(Some) };
    /// Number of zero bits above the highest bit that is set.
    CountLeadingZeros "count-leading-zeros" Integer CHEAP |_, _, _, _| Ok(None);
    /// Error function.
    Erf "erf" Float COSTLY_ZERO |b, ct, x, _| {
        let square = b.mul(x, x)?;
        let exponent = b.neg(square)?;
        let bell = b.unary(UnaryKind::Exponential, exponent)?;
        let slope = b.scale(bell, std::f64::consts::FRAC_2_SQRT_PI)?;
        b.mul(ct, slope).map(Some)
    };
    /// One less the error function, exact where that is near one.
    Erfc "erfc" Float COSTLY |b, ct, x, _| {
        let square = b.mul(x, x)?;
        let exponent = b.neg(square)?;
        let bell = b.unary(UnaryKind::Exponential, exponent)?;
        let slope = b.scale(bell, -std::f64::consts::FRAC_2_SQRT_PI)?;
        b.mul(ct, slope).map(Some)
    };
    /// Number whose error function this is.
    ErfInv "erf-inv" Float COSTLY_ZERO |b, ct, _, y| {
        let square = b.mul(y, y)?;
        let power = b.unary(UnaryKind::Exponential, square)?;
        let slope = b.scale(power, 1.0 / std::f64::consts::FRAC_2_SQRT_PI)?;
        b.mul(ct, slope).map(Some)
    };
    /// e to the power of the operand.
    Exponential "exponential" Float COSTLY |b, ct, _, y| b.mul(ct, y).map(Some);
    /// e to the power of the operand, less one, exact near zero.
    ExponentialMinusOne "exponential-minus-one" Float COSTLY_ZERO |b, ct, _, y| { let s = b.shift(y, 1.0)?; b.mul(ct, s).map(Some) };
    /// Largest integer not above.
    Floor "floor" Float CHEAP_ZERO |_, _, _, _| Ok(None);
    /// Whether the operand is neither infinite nor NaN; the result is `pred`.
    IsFinite "is-finite" Float CHEAP |_, _, _, _| Ok(None);
    /// Natural logarithm.
    Log "log" Float COSTLY |b, ct, x, _| b.div(ct, x).map(Some);
    /// Natural logarithm of one plus the operand, exact near zero.
    LogPlusOne "log-plus-one" Float COSTLY_ZERO |b, ct, x, _| { let s = b.shift(x, 1.0)?; b.div(ct, s).map(Some) };
    /// 1 / (1 + exp(-x)).
    Logistic "logistic" Float COSTLY |b, ct, _, y| {
        let complement = b.reverse_sub(1.0, y)?;
        let slope = b.mul(y, complement)?;
        b.mul(ct, slope).map(Some)
    };
    /// Sign change.
    Negate "negate" Numeric SUM |b, ct, _, _| b.neg(ct).map(Some);
    /// Bitwise (or logical, for `pred`) complement.
    Not "not" Bits CHEAP |_, _, _, _| Ok(None);
    /// Number of bits that are set.
    PopulationCount "popcnt" Integer CHEAP |_, _, _, _| Ok(None);
    /// Nearest integer, halves away from zero.
    RoundNearestAwayFromZero "round-nearest-afz" Float CHEAP_ZERO |_, _, _, _| Ok(None);
    /// Nearest integer, halves to even.
    RoundNearestEven "round-nearest-even" Float CHEAP_ZERO |_, _, _, _| Ok(None);
    /// One over the square root.
    Rsqrt "rsqrt" Float COSTLY |b, ct, x, y| {
        let ratio = b.div(y, x)?;
        let slope = b.scale(ratio, -0.5)?;
        b.mul(ct, slope).map(Some)
    };
    /// -1, 0 or 1 by sign; zeros keep theirs. The slope is 0, at 0 too.
    Sign "sign" FloatOrSigned CHEAP_ZERO |_, _, _, _| Ok(None);
    /// Sine.
    Sine "sine" Float COSTLY_ZERO |b, ct, x, _| { let c = b.unary(UnaryKind::Cosine, x)?; b.mul(ct, c).map(Some) };
    /// Hyperbolic sine.
    Sinh "sinh" Float COSTLY_ZERO |b, ct, x, _| { let slope = b.unary(UnaryKind::Cosh, x)?; b.mul(ct, slope).map(Some) };
    /// Square root.
    Sqrt "sqrt" Float COSTLY_ZERO |b, ct, _, y| { let half = b.scale(ct, 0.5)?; b.div(half, y).map(Some) };
    /// Tangent.
    Tan "tan" Float COSTLY_ZERO |b, ct, _, y| {
        let square = b.mul(y, y)?;
        let slope = b.shift(square, 1.0)?;
        b.mul(ct, slope).map(Some)
    };
    /// Hyperbolic tangent.
    Tanh "tanh" Float COSTLY_ZERO |b, ct, _, y| {
        let square = b.mul(y, y)?;
        let slope = b.reverse_sub(1.0, square)?;
        b.mul(ct, slope).map(Some)
    };
}

/// An elementwise function of one operand. The result has the operand's type (`pred` for `is-finite`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unary(pub UnaryKind);

crate::ir::op_text!(Unary = name of UnaryKind::ALL, |kind| kind.name() => { 0 });

impl Primitive for Unary {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        self.0.class().check(0, operands[0])?;
        let dtype = if self.0 == UnaryKind::IsFinite { DType::Pred } else { operands[0].dtype };
        Ok(one(operands[0].with_dtype(dtype)))
    }

    fn facts(&self) -> Facts<'_> {
        self.0.facts()
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let (x, y) = (context.operand(0), context.result(0));
        if let Some(ct) = context.cotangent(0)
            && let Some(gradient) = self.0.gradient(context.builder, ct, x, y)?
        {
            context.set(0, gradient);
        }
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let (x, y) = (context.operand(0), context.result(0));
        // The derivative acts on each element by itself, so it is its own transpose.
        if let Some(tangent) = context.tangent(0)
            && let Some(tangent) = self.0.gradient(context.builder, tangent, x, y)?
        {
            context.set(0, tangent);
        }
        Ok(())
    }

    rules!(factors: pointwise, batch: unchanged, partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        if !expansion::emit(self.0, context) {
            context.simple(self.name());
        }
    }
}

macro_rules! binary_table {
    ($($(#[$doc:meta])* $kind:ident $name:literal $class:ident $facts:ident
        |$b:pat_param, $ct:pat_param, $x:pat_param, $y:pat_param, $z:pat_param| $lhs:expr, $rhs:expr;)*) => {
        /// The functions of two operands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum BinaryKind { $($(#[$doc])* $kind,)* }

        impl BinaryKind {
            /// Every row of the table.
            pub const ALL: &'static [BinaryKind] = &[$(BinaryKind::$kind,)*];

            /// HLO's opcode.
            pub const fn name(self) -> &'static str {
                match self { $(BinaryKind::$kind => $name,)* }
            }

            /// The element types that it takes.
            pub const fn class(self) -> OperandClass {
                match self { $(BinaryKind::$kind => OperandClass::$class,)* }
            }

            /// The facts that passes ask for.
            const fn facts(self) -> Facts<'static> {
                match self { $(BinaryKind::$kind => $facts,)* }
            }

            /// Cotangent of operand `index` (0: `x`, 1: `y`) from that of the result `z`.
            fn gradient(
                self, index: usize, builder: &mut GraphBuilder, ct: Value, x: Value, y: Value, z: Value,
            ) -> Gradient {
                match self { $(BinaryKind::$kind => {
                    let ($b, $ct, $x, $y, $z) = (builder, ct, x, y, z);
                    if index == 0 { $lhs } else { $rhs }
                })* }
            }
        }
    };
}

binary_table! {
    /// Sum.
    Add "add" Numeric SUM |_, ct, _, _, _| Ok(Some(ct)), Ok(Some(ct));
    /// Bitwise (or logical, for `pred`) and.
    And "and" Bits CHEAP |_, _, _, _, _| Ok(None), Ok(None);
    /// Angle of the point (y, x), whose first operand is the ordinate: the arc tangent of x / y in the right quadrant.
    Atan2 "atan2" Float COSTLY_ZERO |b, ct, x, y, _| {
        let norm = squared_norm(b, x, y)?;
        let slope = b.div(y, norm)?;
        b.mul(ct, slope).map(Some)
    }, {
        let norm = squared_norm(b, x, y)?;
        let slope = b.div(x, norm)?;
        let product = b.mul(ct, slope)?;
        b.neg(product).map(Some)
    };
    /// Quotient; integers round towards zero.
    Divide "divide" Numeric QUOTIENT |b, ct, _, y, z| b.div(ct, y).map(Some), {
        let ratio = b.div(z, y)?;
        let product = b.mul(ct, ratio)?;
        b.neg(product).map(Some)
    };
    /// Larger of two; NaN if either is. Ties share the gradient.
    Maximum "maximum" Numeric CHEAP_ZERO |b, ct, x, y, z| extremum(b, ct, x, y, z).map(Some), extremum(b, ct, y, x, z).map(Some);
    /// Smaller of two; NaN if either is. Ties share the gradient.
    Minimum "minimum" Numeric CHEAP_ZERO |b, ct, x, y, z| extremum(b, ct, x, y, z).map(Some), extremum(b, ct, y, x, z).map(Some);
    /// Product.
    Multiply "multiply" Numeric PRODUCT |b, ct, x, y, _| b.mul(ct, y).map(Some), b.mul(ct, x).map(Some);
    /// Bitwise (or logical, for `pred`) or.
    Or "or" Bits CHEAP |_, _, _, _, _| Ok(None), Ok(None);
    /// x to the power of y.
    Power "power" Float COSTLY |b, ct, x, y, z| {
        // The slope in x is y x^(y - 1); where y is 0, it is 0 for every x: x^0 is 1, also where x is infinite or NaN.
        let lower = b.shift(y, -1.0)?;
        let zero = b.zeros_like(y);
        let is_zero = b.compare(Direction::Eq, y, zero)?;
        let exponent = b.push1(Select, &[is_zero, zero, lower])?;
        let power = b.binary(BinaryKind::Power, x, exponent)?;
        let slope = b.mul(y, power)?;
        b.mul(ct, slope).map(Some)
    }, {
        // The slope in y is z log x; where x is 0, so is z, and the limit is 0.
        let zero = b.zeros_like(x);
        let is_zero = b.compare(Direction::Eq, x, zero)?;
        let one = b.splat_like(x, 1.0);
        let safe = b.push1(Select, &[is_zero, one, x])?;
        let log = b.unary(UnaryKind::Log, safe)?;
        let slope = b.mul(log, z)?;
        b.mul(ct, slope).map(Some)
    };
    /// Remainder with the sign of the dividend.
    Remainder "remainder" Numeric COSTLY |b, ct, x, y, z| Ok(Some(ct)), {
        // z = x - y * trunc(x / y), and trunc(x / y) = (x - z) / y is constant almost everywhere.
        let whole = b.sub(x, z)?;
        let quotient = b.div(whole, y)?;
        let rounded = b.unary(UnaryKind::RoundNearestEven, quotient)?;
        let product = b.mul(ct, rounded)?;
        b.neg(product).map(Some)
    };
    /// Bits moved up; zero for a shift of the width or more.
    ShiftLeft "shift-left" Integer CHEAP |_, _, _, _, _| Ok(None), Ok(None);
    /// Bits moved down, copies of the sign bit moved in.
    ShiftRightArithmetic "shift-right-arithmetic" Integer CHEAP |_, _, _, _, _| Ok(None), Ok(None);
    /// Bits moved down, zeros moved in.
    ShiftRightLogical "shift-right-logical" Integer CHEAP |_, _, _, _, _| Ok(None), Ok(None);
    /// Difference.
    Subtract "subtract" Numeric SUM |b, ct, _, _, _| Ok(Some(ct)), b.neg(ct).map(Some);
    /// Bitwise (or logical, for `pred`) exclusive or.
    Xor "xor" Bits CHEAP |_, _, _, _, _| Ok(None), Ok(None);
}

/// `sign (1 - x)(1 + x)`, which loses nothing near 1.
fn legs(b: &mut GraphBuilder, x: Value, sign: f64) -> Result<Value, OpError> {
    // This is not the opposite of `1 - x`, which at 1 would be -0, and one over its root minus infinity.
    let below = if sign < 0.0 { b.shift(x, -1.0)? } else { b.reverse_sub(1.0, x)? };
    let above = b.shift(x, 1.0)?;
    b.mul(below, above)
}

/// One over the root of [`legs`].
fn inverse_leg(b: &mut GraphBuilder, x: Value, sign: f64) -> Result<Value, OpError> {
    let product = legs(b, x, sign)?;
    b.unary(UnaryKind::Rsqrt, product)
}

fn squared_norm(b: &mut GraphBuilder, x: Value, y: Value) -> Result<Value, OpError> {
    let (x, y) = (b.mul(x, x)?, b.mul(y, y)?);
    b.add(x, y)
}

/// The share of `ct` that reaches `x`, one of the two operands of a maximum or minimum with result `z`.
fn extremum(b: &mut GraphBuilder, ct: Value, x: Value, other: Value, z: Value) -> Result<Value, OpError> {
    let half = b.scale(ct, 0.5)?;
    let tie = b.compare(Direction::Eq, x, other)?;
    let share = b.push1(Select, &[tie, half, ct])?;
    let chosen = b.compare(Direction::Eq, x, z)?;
    b.or_zero(chosen, share)
}

/// An elementwise function of two operands of one type, which is also the result's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binary(pub BinaryKind);

crate::ir::op_text!(Binary = name of BinaryKind::ALL, |kind| kind.name() => { 0 });

impl Primitive for Binary {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 2)?;
        self.0.class().check(0, operands[0])?;
        expect_same_types(operands)?;
        Ok(one(operands[0].clone()))
    }

    fn facts(&self) -> Facts<'_> {
        self.0.facts()
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let (x, y, z) = (context.operand(0), context.operand(1), context.result(0));
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        for index in 0..2 {
            if context.needs(index)
                && let Some(gradient) = self.0.gradient(index, context.builder, ct, x, y, z)?
            {
                context.set(index, gradient);
            }
        }
        Ok(())
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        let (x, y, z) = (context.operand(0), context.operand(1), context.result(0));
        // The derivatives act on each element by itself, so they are their own transposes.
        for index in 0..2 {
            if let Some(tangent) = context.tangent(index)
                && let Some(tangent) = self.0.gradient(index, context.builder, tangent, x, y, z)?
            {
                context.add(0, tangent)?;
            }
        }
        Ok(())
    }

    rules!(factors: pointwise, batch: unchanged, partition: unchanged, emit: simple);
}

meshloom_hlo::words! {
    /// The relations of [`Compare`], by HLO's names.
    #[derive(PartialOrd, Ord)]
    pub enum Direction {
        /// Equal.
        Eq = "EQ",
        /// Not equal.
        Ne = "NE",
        /// Greater or equal.
        Ge = "GE",
        /// Greater.
        Gt = "GT",
        /// Less or equal.
        Le = "LE",
        /// Less.
        Lt = "LT",
    }
}

/// Elementwise comparison of two operands of one type; the result is `pred`. A NaN compares unequal to everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Compare(pub Direction);

crate::ir::word_attribute!(Direction);
crate::ir::op_text!(Compare = "compare" { 0: bare });

impl Primitive for Compare {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 2)?;
        if operands[0].dtype != DType::Pred {
            OperandClass::Numeric.check(0, operands[0])?;
        }
        expect_same_types(operands)?;
        Ok(one(operands[0].with_dtype(DType::Pred)))
    }

    rules!(facts: ELEMENTWISE, derivatives: none, factors: pointwise, batch: unchanged, partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        let comparison_type = context.operand_type(0).dtype.comparison_type();
        let instruction = context.begin(self.name());
        instruction.comparison_direction.push_str(self.0.name());
        instruction.comparison_type.push_str(comparison_type);
        context.finish();
    }
}

/// `select(pred, on_true, on_false)`: elementwise choice. All three have the same dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Select;

crate::ir::op_text!(Select = "select" {});

impl Primitive for Select {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 3)?;
        expect_dtype(0, operands[0], DType::Pred)?;
        expect_dims(1, operands[1], &operands[0].dims)?;
        expect_dtype(2, operands[2], operands[1].dtype)?;
        expect_dims(2, operands[2], &operands[0].dims)?;
        Ok(one(operands[1].clone()))
    }

    fn facts(&self) -> Facts<'_> {
        const CHOSEN: Operands = Operands::These(&[1, 2]);
        Facts { picks: Some(CHOSEN), ..Facts::ELEMENTWISE.linear(Linear::Together(CHOSEN)) }
    }

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let Some(ct) = context.cotangent(0) else { return Ok(()) };
        let chosen = context.operand(0);
        let zero = context.builder.zeros_like(ct);
        context.set_with(1, |builder| builder.push1(Select, &[chosen, ct, zero]))?;
        context.set_with(2, |builder| builder.push1(Select, &[chosen, zero, ct]))
    }

    rules!(jvp: linear, factors: pointwise, batch: unchanged, partition: unchanged, emit: simple);
}

/// Converts every element to another type: rounding to nearest even, integers truncated towards zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convert(pub DType);

crate::ir::op_text!(Convert = "convert" { 0: result });

impl Primitive for Convert {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        Ok(one(operands[0].with_dtype(self.0)))
    }

    rules!(facts = Facts::ELEMENTWISE.linear(Linear::OfFloats(Operands::All)));
    rules!(factors: pointwise, batch: unchanged, partition: unchanged, emit: simple);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let dtype = context.operand_type(0).dtype;
        context.pull_back(|builder, ct| builder.convert(ct, dtype))
    }

    fn jvp(&self, context: &mut JvpContext<'_>) -> Result<(), OpError> {
        // An integer has no tangent, neither as operand nor as result.
        if self.0.is_float() { context.linear(self) } else { Ok(()) }
    }
}

/// Reinterprets the bits of every element as another type of the same width.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BitcastConvert(pub DType);

crate::ir::op_text!(BitcastConvert = "bitcast-convert" { 0: result });

impl Primitive for BitcastConvert {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let dtype = operands[0].dtype;
        let refuse = |reason| Err(TypeError::Attribute(format!("cannot reinterpret {dtype} as {}: {reason}", self.0)));
        if (dtype == DType::Pred) != (self.0 == DType::Pred) {
            return refuse("pred has no bits of its own");
        }
        if dtype.bit_count() != self.0.bit_count() {
            return refuse("the widths differ");
        }
        Ok(one(operands[0].with_dtype(self.0)))
    }

    rules!(facts: ELEMENTWISE, derivatives: refused, factors: pointwise, batch: unchanged, partition: unchanged);
    rules!(emit: simple);
}

/// The names of a table's rows, and other opcodes.
macro_rules! names {
    ($kind:ident $(, $other:literal)*) => {{
        const OTHERS: &[&str] = &[$($other),*];
        const NAMES: [&str; $kind::ALL.len() + OTHERS.len()] = {
            let mut names = [""; $kind::ALL.len() + OTHERS.len()];
            let mut row = 0;
            while row < names.len() {
                let other = row.checked_sub($kind::ALL.len());
                names[row] = if let Some(other) = other { OTHERS[other] } else { $kind::ALL[row].name() };
                row += 1;
            }
            names
        };
        &NAMES
    }};
}

impl Import for Unary {
    const OPCODES: &'static [&'static str] = names!(UnaryKind, "custom-call");

    /// Functions of the dialect `chlo` that HLO has no opcode for are custom calls.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let instruction = context.instruction();
        let name = match instruction.custom_call_target.strip_prefix("chlo.") {
            Some(target) => target.replace('_', "-"),
            None => instruction.opcode.clone(),
        };
        let kind = UnaryKind::ALL.iter().find(|kind| kind.name() == name);
        applied(context, kind.map(|&kind| Unary(kind).into()))
    }
}

impl Import for Binary {
    const OPCODES: &'static [&'static str] = names!(BinaryKind);

    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let opcode = context.instruction().opcode.as_str();
        let kind = BinaryKind::ALL.iter().find(|kind| kind.name() == opcode);
        applied(context, kind.map(|&kind| Binary(kind).into()))
    }
}

import!(Compare: "compare" => |context| {
    let instruction = context.instruction();
    // An order of all bit patterns is another comparison.
    let direction = Direction::named(&instruction.comparison_direction)?;
    (instruction.comparison_type != "TOTALORDER").then_some(Compare(direction))
});

impl Import for Select {
    const OPCODES: &'static [&'static str] = &["select"];

    /// One choice may be for all elements.
    fn recognize(context: &mut dyn ImportContext) -> Recognized {
        let (&[choice, on_true, on_false], [result]) = (context.operands(), context.result_types()) else {
            return Ok(None);
        };
        let dims = result.dims.clone();
        let builder = context.builder();
        if builder.ty(choice).rank() > 0 || dims.is_empty() {
            return applied(context, Some(Select.into()));
        }
        let choices = builder.broadcast(choice, &dims, &[])?;
        builder.push(Select, &[choices, on_true, on_false]).map(Some)
    }
}

import!(Convert: "convert" => |context| Some(Convert(context.result_types().first()?.dtype)));
import!(BitcastConvert: "bitcast-convert" => |context| Some(BitcastConvert(context.result_types().first()?.dtype)));
