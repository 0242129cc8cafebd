//! Arithmetic, comparison, elementwise functions, reductions and contractions on [`Tensor`].

use std::ops;
use std::panic::Location;

use super::context::{self, CallSite, apply, composite};
use super::tensor::splat;
use super::{Axes, DotOptions, Tensor};
use crate::ops::{
    ArgReduce, ArgReduceKind, AxisList, Barrier, Binary, BinaryKind, Compare, Direction, DotDims, DotGeneral, Reduce,
    ReduceKind, Select, Unary, UnaryKind,
};

/// Something that takes part in an elementwise operation with a tensor: a tensor or a Rust number.
///
/// A number takes the tensor's element type, which must [hold](crate::ir::DType::holds) it: `x * 0.5` is an error where
/// `x` is `s32`. Division of integers truncates, as Rust's does.
pub trait Operand: Copy {
    /// The operand as a tensor; a number takes the type of `other`.
    fn tensor(self, other: Tensor, place: CallSite) -> Tensor;

    /// The operand itself if it is a tensor, or `None` if it is a number.
    fn own(self) -> Option<Tensor> {
        None
    }
}

impl Operand for Tensor {
    fn tensor(self, _: Tensor, _: CallSite) -> Tensor {
        self
    }

    fn own(self) -> Option<Tensor> {
        Some(self)
    }
}

impl Operand for f64 {
    #[track_caller]
    fn tensor(self, other: Tensor, place: CallSite) -> Tensor {
        splat(other.ty(), self, place)
    }
}

impl Operand for i32 {
    #[track_caller]
    fn tensor(self, other: Tensor, place: CallSite) -> Tensor {
        splat(other.ty(), self.into(), place)
    }
}

/// A tensor that is repeated to the dimensions of the other operand, as NumPy does: dimensions are matched from the
/// back, missing ones and those of size 1 repeat. [`Tensor::broadcast`] asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Broadcast(Tensor);

impl Operand for Broadcast {
    #[track_caller]
    fn tensor(self, other: Tensor, place: CallSite) -> Tensor {
        if other.value == context::POISON { other } else { self.0.broadcast_to_at(&other.dims(), place) }
    }

    fn own(self) -> Option<Tensor> {
        Some(self.0)
    }
}

/// Repeats whichever of two tensors has no dimensions to those of the other.
#[track_caller]
pub(super) fn align(x: Tensor, y: Tensor, place: CallSite) -> (Tensor, Tensor) {
    let (x_dims, y_dims) = (x.dims(), y.dims());
    match (x_dims.is_empty(), y_dims.is_empty()) {
        (true, false) => (x.broadcast_at(&y_dims, AxisList::new(), place), y),
        (false, true) => (x, y.broadcast_at(&x_dims, AxisList::new(), place)),
        _ => (x, y),
    }
}

#[track_caller]
pub(super) fn binary(kind: BinaryKind, x: Tensor, y: Tensor, place: CallSite) -> Tensor {
    let (x, y) = align(x, y, place);
    apply(Binary(kind), &[x, y], place)
}

#[track_caller]
fn compare(direction: Direction, x: Tensor, y: Tensor, place: CallSite) -> Tensor {
    let (x, y) = align(x, y, place);
    apply(Compare(direction), &[x, y], place)
}

macro_rules! operators {
    ($($trait:ident $method:ident $kind:ident;)*) => {$(
        impl<T: Operand> ops::$trait<T> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: T) -> Tensor {
                let place = Location::caller();
                binary(BinaryKind::$kind, self, other.tensor(self, place), place)
            }
        }
        impl ops::$trait<Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                let place = Location::caller();
                binary(BinaryKind::$kind, self.tensor(other, place), other, place)
            }
        }
    )*};
}

operators! {
    Add add Add;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
    Div div Divide;
    Mul mul Multiply;
    Rem rem Remainder;
    Shl shl ShiftLeft;
    Shr shr ShiftRightLogical;
    Sub sub Subtract;
}

impl ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        apply(Unary(UnaryKind::Negate), &[self], Location::caller())
    }
}

impl ops::Not for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn not(self) -> Tensor {
        apply(Unary(UnaryKind::Not), &[self], Location::caller())
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident $kind:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self) -> Tensor {
                apply(Unary(UnaryKind::$kind), &[self], Location::caller())
            }
        )*}
    };
}

unary_methods! {
    /// Absolute value.
    abs Abs;
    /// Angle whose cosine this is, from 0 to pi.
    acos Acos;
    /// Number whose hyperbolic cosine this is.
    acosh Acosh;
    /// Angle whose sine this is, from -pi / 2 to pi / 2.
    asin Asin;
    /// Number whose hyperbolic sine this is.
    asinh Asinh;
    /// Angle whose tangent this is, from -pi / 2 to pi / 2.
    atan Atan;
    /// Number whose hyperbolic tangent this is.
    atanh Atanh;
    /// Cube root, also of negative numbers.
    cbrt Cbrt;
    /// Smallest integer not below.
    ceil Ceil;
    /// Cosine.
    cos Cosine;
    /// Hyperbolic cosine.
    cosh Cosh;
    /// Number of bits that are set.
    count_ones PopulationCount;
    /// Error function.
    erf Erf;
    /// One less the error function, which it is exact beside where that is near one: `x.erfc()` of 5 is 1.5e-12.
    erfc Erfc;
    /// Number whose error function this is: infinite at -1 and 1, NaN beyond.
    erf_inv ErfInv;
    /// e to the power of each element.
    exp Exponential;
    /// e to the power of each element, less one; exact near zero.
    exp_m1 ExponentialMinusOne;
    /// Largest integer not above.
    floor Floor;
    /// Whether each element is neither infinite nor NaN.
    is_finite IsFinite;
    /// Number of zero bits above the highest one that is set.
    leading_zeros CountLeadingZeros;
    /// Natural logarithm.
    log Log;
    /// Natural logarithm of one plus each element; exact near zero.
    log_1p LogPlusOne;
    /// 1 / (1 + exp(-x)).
    logistic Logistic;
    /// Nearest integer, halves to even.
    round RoundNearestEven;
    /// Nearest integer, halves away from zero.
    round_half_away RoundNearestAwayFromZero;
    /// One over the square root.
    rsqrt Rsqrt;
    /// -1, 0 or 1 by sign.
    sign Sign;
    /// Sine.
    sin Sine;
    /// Hyperbolic sine.
    sinh Sinh;
    /// Square root.
    sqrt Sqrt;
    /// Tangent.
    tan Tan;
    /// Hyperbolic tangent.
    tanh Tanh;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident $kind:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, other: impl Operand) -> Tensor {
                let place = Location::caller();
                binary(BinaryKind::$kind, self, other.tensor(self, place), place)
            }
        )*}
    };
}

binary_methods! {
    /// Angle of the point (other, self), from -pi to pi: the arc tangent of self / other in the right quadrant.
    atan2 Atan2;
    /// The larger of two; NaN if either is.
    maximum Maximum;
    /// The smaller of two; NaN if either is.
    minimum Minimum;
    /// This tensor to the power of `other`.
    pow Power;
    /// Bits moved down, copies of the sign bit moved in.
    shift_right_arithmetic ShiftRightArithmetic;
}

macro_rules! comparison_methods {
    ($($(#[$doc:meta])* $method:ident $direction:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, other: impl Operand) -> Tensor {
                let place = Location::caller();
                compare(Direction::$direction, self, other.tensor(self, place), place)
            }
        )*}
    };
}

comparison_methods! {
    /// Whether each element is equal.
    equal Eq;
    /// Whether each element is greater.
    greater Gt;
    /// Whether each element is greater or equal.
    greater_equal Ge;
    /// Whether each element is less.
    less Lt;
    /// Whether each element is less or equal.
    less_equal Le;
    /// Whether each element is different.
    not_equal Ne;
}

/// A tensor whose reductions keep the dimensions that they fold, with size 1. [`Tensor::keep_dims`] makes it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct KeepDims(Tensor);

impl KeepDims {
    /// As [`Tensor::mean`].
    #[track_caller]
    pub fn mean(self, axes: impl Axes) -> Tensor {
        self.fold(axes, Location::caller(), |x, axes| x.mean(axes))
    }

    /// As [`Tensor::variance`].
    #[track_caller]
    pub fn variance(self, axes: impl Axes) -> Tensor {
        self.fold(axes, Location::caller(), |x, axes| x.variance(axes))
    }

    #[track_caller]
    fn fold(self, axes: impl Axes, place: CallSite, f: impl FnOnce(Tensor, &[i32]) -> Tensor) -> Tensor {
        composite(place, || {
            let axes = self.0.axes(axes, place);
            let folded = f(self.0, &axes.iter().map(|&axis| axis as i32).collect::<Vec<_>>());
            let mut dims = self.0.dims();
            axes.iter().for_each(|&axis| dims[axis] = 1);
            folded.reshape_at(&dims, place)
        })
    }
}

macro_rules! reduction_methods {
    ($($(#[$doc:meta])* $method:ident $kind:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, axes: impl Axes) -> Tensor {
                let axes = self.axes(axes, Location::caller());
                apply(Reduce { kind: ReduceKind::$kind, axes }, &[self], Location::caller())
            }
        )*}

        impl KeepDims {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, axes: impl Axes) -> Tensor {
                self.fold(axes, Location::caller(), |x, axes| x.$method(axes))
            }
        )*}
    };
}

reduction_methods! {
    /// Whether all elements along the axes are true.
    all And;
    /// Whether any element along the axes is true.
    any Or;
    /// The largest element along the axes.
    max Max;
    /// The smallest element along the axes.
    min Min;
    /// The product along the axes.
    prod Prod;
    /// The sum along the axes.
    sum Sum;
}

impl Tensor {
    /// This tensor with reductions that keep the dimensions that they fold: `x.keep_dims().sum(-1)`.
    pub fn keep_dims(self) -> KeepDims {
        KeepDims(self)
    }

    /// This tensor as an operand that NumPy's rules repeat to the dimensions of the other one.
    ///
    /// ```
    /// # use meshloom::prelude::*;
    /// let function = Function::trace("center", TensorSpec::new(F32, [4, 8]), |x| x - x.keep_dims().mean(-1).broadcast())?;
    /// assert_eq!(function.outputs().ty.to_string(), "f32[4,8]");
    /// # Ok::<(), meshloom::Error>(())
    /// ```
    pub fn broadcast(self) -> Broadcast {
        Broadcast(self)
    }

    /// Position (`s32`) of the largest element along an axis; the first of equals.
    #[track_caller]
    pub fn argmax(self, axis: i32) -> Tensor {
        self.arg_reduce(ArgReduceKind::Max, axis, Location::caller())
    }

    /// Position (`s32`) of the smallest element along an axis; the first of equals.
    #[track_caller]
    pub fn argmin(self, axis: i32) -> Tensor {
        self.arg_reduce(ArgReduceKind::Min, axis, Location::caller())
    }

    #[track_caller]
    fn arg_reduce(self, kind: ArgReduceKind, axis: i32, place: CallSite) -> Tensor {
        let Some(axis) = self.axis(axis, place) else { return self };
        apply(ArgReduce { kind, axis }, &[self], place)
    }

    /// Each element times itself.
    #[track_caller]
    pub fn square(self) -> Tensor {
        binary(BinaryKind::Multiply, self, self, Location::caller())
    }

    /// One over each element, of a floating-point tensor.
    #[track_caller]
    pub fn recip(self) -> Tensor {
        let place = Location::caller();
        self.expect_float("the reciprocal");
        binary(BinaryKind::Divide, splat(self.ty(), 1.0, place), self, place)
    }

    /// Elementwise choice by this `pred` tensor. Where one of the three has no dimensions, it is repeated. One of the
    /// choices may be a number, of the type of the other.
    #[track_caller]
    pub fn select(self, on_true: impl Operand, on_false: impl Operand) -> Tensor {
        let place = Location::caller();
        let Some(choice) = on_true.own().or(on_false.own()) else {
            let expected = "one that is a tensor, whose type the other takes".to_owned();
            return self.mismatch("the choices of a select", expected, "two numbers".to_owned(), place);
        };
        let (on_true, on_false) = (on_true.tensor(choice, place), on_false.tensor(choice, place));
        let (on_true, on_false) = align(on_true, on_false, place);
        let (chosen, on_true) = align(self, on_true, place);
        let (chosen, on_false) = align(chosen, on_false, place);
        apply(Select, &[chosen, on_true, on_false], place)
    }

    /// Matrix product over the last dimension of this tensor and the first of `other`: `[.., k]` by `[k, ..]`.
    #[track_caller]
    pub fn matmul(self, other: Tensor) -> Tensor {
        let dims = DotDims {
            lhs_contract: AxisList::from_slice(&[self.rank().saturating_sub(1)]),
            rhs_contract: AxisList::from_slice(&[0]),
            ..DotDims::default()
        };
        self.dot_general(other, dims, DotOptions::default())
    }

    /// Products of elements summed over contracted dimensions. `options` says in which type they are accumulated and
    /// returned (an element type alone will do), and how exactly they are multiplied.
    #[track_caller]
    pub fn dot_general(self, other: Tensor, dims: DotDims, options: impl Into<DotOptions>) -> Tensor {
        let DotOptions { dtype, precision } = options.into();
        let op = DotGeneral { dims: Box::new(dims), dtype: dtype.unwrap_or(self.dtype()), precision };
        apply(op, &[self, other], Location::caller())
    }

    /// The same value, computed no earlier than asked for and not merged with other computation.
    #[track_caller]
    pub fn barrier(self) -> Tensor {
        apply(Barrier, &[self], Location::caller())
    }
}
