"""Golden values of ops whose meaning is easy to get subtly wrong: clamping, ties, signs, NaN, rounding.

Each case is `<case>.in0`, `<case>.in1`, ... and `<case>.out0`; the metadata says for each case what it computes, with its
attributes. Values of smooth functions are computed in f64 and rounded to f32; everything else is exact. JAX's own f32 run is
compared with what is stored, so that no case pins down something XLA does not do.

    python tests/oracle/ops.py            writes tests/oracle/ops.safetensors
    python tests/oracle/ops.py --check    compares with the file that is there
"""

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

import tensor_file

BF16 = ml_dtypes.bfloat16
INF, NAN = np.inf, np.nan
S32_MIN, S32_MAX = -(2**31), 2**31 - 1

CASES = {}


def case(name, meaning, function, *inputs, smooth=False, tolerance=0.0):
    """Registers a case. A `smooth` function is stored as computed in f64; its f32 run must agree to `tolerance`."""
    assert name not in CASES, name
    inputs = [np.asarray(x) for x in inputs]
    out = np.asarray(jax.jit(function)(*inputs))
    if smooth:
        exact_inputs = (x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs)
        truth = np.asarray(jax.jit(function)(*exact_inputs))
        with np.errstate(over="ignore"):
            truth = truth.astype(np.float32)
        np.testing.assert_allclose(out, truth, rtol=tolerance, atol=0, equal_nan=True, err_msg=name)
        out = truth
    CASES[name] = (meaning, inputs, out)


def f32(*values):
    return np.array(values, np.float32)


def s32(*values):
    return np.array(values, np.int32)


def u32(*values):
    return np.array(values, np.uint32)


def numbers(*shape, scale=1.0):
    """Distinct small numbers that f32 sums exactly, in no particular order."""
    count = int(np.prod(shape))
    values = np.random.default_rng(count).permutation(count) - count // 2
    return (values * scale).reshape(shape).astype(np.float32)


# Gather, scatter and dynamic slices

OUT_OF_RANGE = s32(3, -1, 0, 7, 100, 3, S32_MIN, S32_MAX)

case(
    "gather_rows_clip",
    "rows of in0 at in1; an index out of range is clamped into [0, rows - 1], a negative one to 0",
    lambda table, index: table.at[index].get(mode="clip", wrap_negative_indices=False),
    numbers(8, 3),
    OUT_OF_RANGE,
)
case(
    "gather_rows_clip_2d",
    "rows of in0 at each element of in1 [2, 3]: result [2, 3, 2]",
    lambda table, index: table.at[index].get(mode="clip", wrap_negative_indices=False),
    numbers(5, 2),
    s32(0, 4, 5, -3, 2, 2).reshape(2, 3),
)
case(
    "gather_rows_clip_vjp",
    "cotangent of in0 [8, 3] for gather_rows_clip with indices in1 and result cotangent in2: rows are clamped, then added",
    lambda table, index, cotangent: jax.vjp(lambda t: t.at[index].get(mode="clip", wrap_negative_indices=False), table)[
        1
    ](cotangent)[0],
    numbers(8, 3),
    OUT_OF_RANGE,
    numbers(8, 3),
)
case(
    "scatter_add_duplicates",
    "in0 with row i of in2 added at row in1[i]; duplicate indices add up",
    lambda operand, index, updates: operand.at[index].add(
        updates, mode="promise_in_bounds", wrap_negative_indices=False
    ),
    numbers(6, 2),
    s32(1, 4, 1, 1, 0, 4),
    numbers(6, 2, scale=0.5),
)
case(
    "scatter_add_out_of_range",
    "as scatter_add_duplicates; an update whose index is out of range is dropped, also a negative one",
    lambda operand, index, updates: operand.at[index].add(updates, mode="drop", wrap_negative_indices=False),
    numbers(4, 2),
    s32(0, 4, -1, 3, 3, S32_MAX),
    numbers(6, 2),
)
case(
    "take_along_last",
    "element in1[i] of row i of in0 (a batched gather), clamped",
    lambda x, index: jnp.take_along_axis(x, jnp.clip(index, 0, 3)[:, None], axis=-1)[:, 0],
    numbers(5, 4),
    s32(0, 3, 9, -2, 1),
)

for suffix, starts in {"inside": (1, 2), "high": (3, 9), "negative": (-5, -1), "extreme": (S32_MIN, S32_MAX)}.items():
    case(
        f"dynamic_slice_{suffix}",
        "slice [2, 3] of in0 [4, 5] starting at (in1, in2), clamped so that the slice lies inside; negative is 0",
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3), allow_negative_indices=False),
        numbers(4, 5),
        np.int32(starts[0]),
        np.int32(starts[1]),
    )
    case(
        f"dynamic_update_slice_{suffix}",
        "in0 [4, 5] with in1 [2, 3] written at (in2, in3), clamped so that the update lies inside; negative is 0",
        lambda x, update, i, j: lax.dynamic_update_slice(x, update, (i, j), allow_negative_indices=False),
        numbers(4, 5),
        numbers(2, 3, scale=100.0),
        np.int32(starts[0]),
        np.int32(starts[1]),
    )

# Conversions and bf16

# 1 + k/256 is half way between two bf16 numbers for odd k: ties go to the even one. Then the same a little above and below.
BF16_TRICKY = f32(
    0.0, -0.0, 1.0, 1 + 1 / 256, 1 + 3 / 256, 1 + 5 / 256, -1 - 1 / 256, -1 - 3 / 256,
    np.nextafter(np.float32(1 + 1 / 256), np.float32(2)), np.nextafter(np.float32(1 + 3 / 256), np.float32(1)),
    3.14159265, 1e-30, -1e30, 65504.0, 65535.0, 16777217.0, 3.3895314e38, 3.3961775e38, 3.4028235e38, -3.4028235e38,
    INF, -INF, NAN,
)  # fmt: skip
case(
    "convert_f32_bf16",
    "convert to bf16: nearest, ties to even, overflow to infinity",
    lambda x: x.astype(BF16),
    BF16_TRICKY,
)
case(
    "convert_f32_bf16_f32",
    "convert to bf16 and back to f32: the rounding must stay",
    lambda x: lax.reduce_precision(x, 8, 7),
    BF16_TRICKY,
)
case(
    "convert_f32_s32",
    "convert to s32: toward zero",
    lambda x: x.astype(jnp.int32),
    f32(0.0, 0.5, -0.5, 0.99, -0.99, 1.5, 2.5, -1.5, -2.5, 16777216.0, 2147483520.0, -2147483648.0),
)
case(
    "convert_s32_f32",
    "convert to f32: nearest, ties to even",
    lambda x: x.astype(jnp.float32),
    s32(0, -1, 16777216, 16777217, 16777219, -16777217, S32_MAX, S32_MIN),
)
case("convert_u32_f32", "convert to f32", lambda x: x.astype(jnp.float32), u32(0, 1, 2**31, 2**32 - 1, 16777217))
case("convert_s32_u32", "convert to u32: the bits stay", lambda x: x.astype(jnp.uint32), s32(0, -1, S32_MIN, S32_MAX))
case(
    "convert_f32_pred", "convert to pred: not equal to 0", lambda x: x != 0, f32(0.0, -0.0, 0.5, -3.0, 1e-30, INF, NAN)
)

# Multiples of 1/8 below 16: products and sums are exact in f32 and do not fit bf16.
LEFT, RIGHT = (numbers(5, 16, scale=0.125).astype(BF16), numbers(16, 4, scale=0.125).astype(BF16))
case(
    "dot_bf16_f32",
    "in0 [5, 16] times in1 [16, 4], bf16 operands, f32 result (exact)",
    lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32),
    LEFT,
    RIGHT,
)
case(
    "dot_bf16_f32_bf16",
    "dot_bf16_f32 converted to bf16: one rounding, at the end",
    lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32).astype(BF16),
    LEFT,
    RIGHT,
)

# Integers: what XLA defines for division by zero and overflow included

DIVIDENDS = s32(7, 7, -7, -7, 0, 1, -1, 5, -5, 0, S32_MIN, S32_MAX, S32_MIN, S32_MIN)
DIVISORS = s32(2, -2, 2, -2, 3, 2, 2, 0, 0, 0, -1, -1, 1, S32_MAX)
case("divide_s32", "toward zero; x / 0 is -1; min / -1 is min", lax.div, DIVIDENDS, DIVISORS)
case("remainder_s32", "sign of the dividend; x % 0 is x; min % -1 is 0", lax.rem, DIVIDENDS, DIVISORS)
case("divide_u32", "x / 0 is the largest u32", lax.div, u32(7, 2**32 - 1, 5, 0), u32(2, 3, 0, 0))
case("remainder_u32", "x % 0 is x", lax.rem, u32(7, 2**32 - 1, 5, 0), u32(2, 10, 0, 0))
case("multiply_s32", "wraps", lax.mul, s32(S32_MAX, S32_MIN, 65536, -3), s32(2, -1, 65536, 7))
case("negate_s32", "wraps", lax.neg, s32(S32_MIN, S32_MAX, 0, 5))
case("abs_s32", "abs of min is min", lax.abs, s32(S32_MIN, S32_MAX, 0, -5))

SHIFTED, AMOUNTS = s32(1, 1, -1, -8, 12345, S32_MIN, -1, 5, -5), s32(0, 31, 1, 2, 5, 31, 32, 40, 33)
case("shift_left_s32", "32 or more gives 0", lax.shift_left, SHIFTED, AMOUNTS)
case(
    "shift_right_arithmetic_s32",
    "fills with the sign, also at 32 or more",
    lax.shift_right_arithmetic,
    SHIFTED,
    AMOUNTS,
)
case("shift_right_logical_s32", "fills with 0; 32 or more gives 0", lax.shift_right_logical, SHIFTED, AMOUNTS)
case(
    "shift_right_logical_u32",
    "fills with 0; 32 or more gives 0",
    lax.shift_right_logical,
    SHIFTED.astype(np.uint32),
    AMOUNTS.astype(np.uint32),
)

# Reductions along a dim

TIES = np.array(
    [[1, 3, 3, 2], [5, 5, 5, 5], [-1, -2, -1, -3], [0.0, -0.0, 0.0, -0.0], [1, NAN, 3, NAN], [-INF, -INF, -INF, -INF]],
    np.float32,
)
case(
    "argmax_last",
    "index of the first largest in each row of in0, s32; NaN is larger than all",
    lambda x: lax.argmax(x, 1, jnp.int32),
    TIES,
)
case(
    "argmin_last",
    "index of the first smallest in each row of in0, s32; NaN is smaller than all",
    lambda x: lax.argmin(x, 1, jnp.int32),
    TIES,
)
# Without the row of zeros: which zero a reduction returns is not defined.
ROWS = TIES[[0, 1, 2, 4, 5]]
case("reduce_max_last", "largest in each row of in0; NaN wins", lambda x: jnp.max(x, axis=1), ROWS)
case("reduce_min_last", "smallest in each row of in0; NaN wins", lambda x: jnp.min(x, axis=1), ROWS)
case("cumsum_first", "cumulative sum of in0 [5, 3] along dim 0, inclusive", lambda x: lax.cumsum(x, 0), numbers(5, 3))
case(
    "cumsum_last_reverse",
    "cumulative sum of in0 [3, 6] along dim 1 from the end",
    lambda x: lax.cumsum(x, 1, reverse=True),
    numbers(3, 6),
)
case("cumsum_s32", "cumulative sum, wraps", lambda x: lax.cumsum(x, 0), s32(S32_MAX, 1, -1, 5, S32_MIN))

# Elementwise with exact results

LEFT_NAN, RIGHT_NAN = f32(1, NAN, 2, NAN, -INF, INF, 3, -4), f32(2, 1, NAN, NAN, NAN, 1, 3, -5)
case("maximum_nan", "NaN in either operand gives NaN", lax.max, LEFT_NAN, RIGHT_NAN)
case("minimum_nan", "NaN in either operand gives NaN", lax.min, LEFT_NAN, RIGHT_NAN)
case(
    "clamp",
    "in1 clamped into [in0, in2]: min(max(in1, in0), in2); NaN stays; the upper bound wins where bounds cross",
    lax.clamp,
    f32(-1, -1, -1, -1, 2),
    f32(-3, 0.5, 7, NAN, 0),
    f32(1, 1, 1, 1, 1),
)
for name, function in {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}.items():
    case(
        f"compare_{name}",
        "pred; NaN is unequal to all and unordered; -0 equals 0",
        function,
        f32(1, 2, NAN, NAN, 0.0, INF, -INF),
        f32(2, 2, 1, NAN, -0.0, INF, INF),
    )

HALVES = f32(
    0.5,
    1.5,
    2.5,
    3.5,
    -0.5,
    -1.5,
    -2.5,
    0.49999997,
    -0.49999997,
    0.0,
    -0.0,
    0.7,
    -0.7,
    8388607.5,
    16777216.0,
    INF,
    -INF,
    NAN,
)
case(
    "round_nearest_even",
    "to the nearest integer, halves to even; -0.5 gives -0",
    lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    HALVES,
)
case("floor", "down; keeps -0", lax.floor, HALVES)
case("ceil", "up; -0.5 gives -0", lax.ceil, HALVES)
case("sign_f32", "-1, 0 or 1; keeps the sign of 0; NaN stays", lax.sign, f32(-3, -0.0, 0.0, 1e-30, 2, INF, -INF, NAN))
case("sign_s32", "-1, 0 or 1", lax.sign, s32(-7, 0, 7, S32_MIN, S32_MAX))
case(
    "select_nan",
    "in1 where in0, else in2; a NaN not selected does not leak",
    lambda p, x, y: lax.select(p, x, y),
    np.array([True, False, True, False]),
    f32(1, NAN, NAN, 4),
    f32(NAN, 2, 3, NAN),
)
case(
    "divide_f32",
    "IEEE: x / 0 is infinite with the signs' product, 0 / 0 is NaN",
    lax.div,
    f32(1, -1, 1, 0, INF, INF, 1),
    f32(0.0, 0.0, -0.0, 0, INF, 2, INF),
)
case(
    "remainder_f32",
    "sign of the dividend; x % 0 and inf % x are NaN; x % inf is x",
    lax.rem,
    f32(5.5, -5.5, 5.5, -5.5, 1, INF, 3, -6),
    f32(2, 2, -2, -2, 0, 2, INF, 3),
)

# Elementwise, smooth: compare with a tolerance of a few units in the last place

ODD = f32(
    0.0,
    -0.0,
    1e-30,
    -1e-30,
    1e-8,
    -1e-8,
    1e-4,
    -1e-4,
    0.01,
    0.3,
    -0.3,
    0.5,
    1,
    -1,
    1.5,
    -2.5,
    3.9,
    -4.1,
    9,
    -9,
    20,
    -20,
    INF,
    -INF,
    NAN,
)
case("erf", "erf", lax.erf, ODD, smooth=True, tolerance=1e-6)
case("tanh", "tanh", lax.tanh, ODD, smooth=True, tolerance=1e-6)
case("logistic", "1 / (1 + exp(-x))", lax.logistic, np.append(ODD, f32(50, -50, 80, -80)), smooth=True, tolerance=2e-6)
case("expm1", "exp(x) - 1 without cancellation", lax.expm1, np.append(ODD, f32(80, 100)), smooth=True, tolerance=1e-6)
case("exp", "exp", lax.exp, np.append(ODD, f32(80, 100, -80)), smooth=True, tolerance=1e-6)
case(
    "sin",
    "sin",
    lax.sin,
    f32(0.0, -0.0, 1e-8, 0.5, -1.5707964, 3.1415927, 100.0, -8191.0, 131071.0, INF, NAN),
    smooth=True,
    tolerance=1e-6,
)
case(
    "cos",
    "cos",
    lax.cos,
    f32(0.0, -0.0, 1e-8, 0.5, -1.5707964, 3.1415927, 100.0, -8191.0, 131071.0, INF, NAN),
    smooth=True,
    tolerance=1e-6,
)
case(
    "log1p",
    "log(1 + x) without cancellation",
    lax.log1p,
    f32(
        0.0,
        -0.0,
        1e-30,
        -1e-30,
        1e-8,
        -1e-8,
        1e-4,
        -1e-4,
        0.5,
        -0.5,
        -0.9999999,
        -1.0,
        -1.5,
        1e10,
        3e38,
        INF,
        -INF,
        NAN,
    ),
    smooth=True,
    tolerance=1e-6,
)
POSITIVE = f32(0.0, -0.0, 1e-30, 1e-8, 0.25, 2, 3, 1e10, 3e38, -1, INF, -INF, NAN)
case("log", "log; of 0 is -infinity, of a negative NaN", lax.log, POSITIVE, smooth=True, tolerance=1e-6)
case("sqrt", "sqrt; of -0 is -0", lax.sqrt, POSITIVE, smooth=True, tolerance=1e-6)
case("rsqrt", "1 / sqrt(x); of 0 is infinity with its sign", lax.rsqrt, POSITIVE, smooth=True, tolerance=1e-6)
case(
    "power",
    "in0 to the power in1: x^0 and 1^x are 1 even for NaN; a negative base needs an integer exponent",
    lax.pow,
    f32(2, 2, -2, -2, -2, 0, 0, -0.0, -0.0, 1, NAN, NAN, INF, INF, -INF, -INF, 0.5, 0.5, -1, 1.0001, 10, 4),
    f32(3, -1.5, 3, 2, 0.5, 0, -1, -1, 3, NAN, 0, 1, 0, -1, 3, 2, INF, -INF, INF, 10000, -20, 0.5),
    smooth=True,
    tolerance=2e-6,
)  # fmt: skip
case(
    "softmax_masked",
    "softmax over the last dim of where(in1, in0, -1e30), as attention computes it",
    lambda x, mask: jax.nn.softmax(jnp.where(mask, x, -1e30), axis=-1),
    numbers(3, 5),
    np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]], np.bool_),
    smooth=True,
    tolerance=1e-6,
)


# 8-bit floating point, as bits: what Rust's readers of safetensors know best

E4M3FN, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def f8_tricky(dtype):
    """Every number of the type, what lies half way between neighbours, a little to either side of that, and beyond."""
    numbers = np.unique(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))
    finite = numbers[np.isfinite(numbers)]
    halfway = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(halfway, np.float32(end)) for end in (-INF, INF)]
    edge = np.max(finite) + (finite[-1] - finite[-2]) / 2
    beyond = np.nextafter(f32(edge, edge), f32(-INF, INF))
    odd = f32(edge, -edge, 1e30, -1e30, INF, -INF, NAN, -0.0)
    return np.concatenate([finite, halfway, *near, beyond, -beyond, odd])


for name, dtype in {"f8e4m3fn": E4M3FN, "f8e5m2": E5M2}.items():
    every = np.arange(256, dtype=np.uint8)
    case(
        f"convert_f32_{name}",
        f"in0 converted to {name}, as bits: nearest, ties to even; beyond the range NaN for f8e4m3fn, infinity for f8e5m2",
        lambda x, dtype=dtype: lax.bitcast_convert_type(x.astype(dtype), jnp.uint8),
        f8_tricky(dtype),
    )
    case(
        f"convert_{name}_f32",
        f"every {name}, given as bits, converted to f32",
        lambda x, dtype=dtype: lax.bitcast_convert_type(x, dtype).astype(jnp.float32),
        every,
    )
    for operation, function in {"add": lax.add, "multiply": lax.mul}.items():
        # One rounding, of the exact result: products and sums of these fit f16.
        left, right = np.meshgrid(np.arange(0x28, 0x48, 3, dtype=np.uint8), np.arange(0xB0, 0xC8, 5, dtype=np.uint8))
        case(
            f"{operation}_{name}",
            f"{operation} of two {name}, all as bits",
            lambda x, y, dtype=dtype, function=function: lax.bitcast_convert_type(
                function(lax.bitcast_convert_type(x, dtype), lax.bitcast_convert_type(y, dtype)), jnp.uint8
            ),
            left.ravel(),
            right.ravel(),
        )
    case(
        f"dot_{name}_f32",
        f"in0 [3, 8] times in1 [8, 2], {name} given as bits, accumulated in f32 (exact)",
        lambda x, y, dtype=dtype: jnp.dot(
            lax.bitcast_convert_type(x, dtype), lax.bitcast_convert_type(y, dtype), preferred_element_type=jnp.float32
        ),
        (numbers(3, 8) / 2).astype(dtype).view(np.uint8),
        (numbers(8, 2) / 2).astype(dtype).view(np.uint8),
    )
case(
    "dot_s8_s32",
    "in0 [3, 8] times in1 [8, 2], s8 operands, s32 result: nothing wraps",
    lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.int32),
    (numbers(3, 8) * 10).astype(np.int8),
    (numbers(8, 2) * 15).astype(np.int8),
)

# Reads and writes by index: modes and kinds

case(
    "gather_rows_fill",
    "rows of in0 at in1; 0.5 for an index out of range, a negative one too",
    lambda table, index: table.at[index].get(mode="fill", fill_value=0.5, wrap_negative_indices=False),
    numbers(8, 3),
    OUT_OF_RANGE,
)
for kind in ["set", "max", "min", "multiply"]:
    case(
        f"scatter_{kind}_out_of_range",
        f"in0 with in2 [6, 2] written at rows in1 ({kind}); an update out of range is dropped, a negative index is one; of "
        "several values set at one place the last stays on the CPU",
        lambda operand, index, updates, kind=kind: getattr(operand.at[index], kind)(
            updates, mode="drop", wrap_negative_indices=False
        ),
        numbers(4, 2),
        s32(0, 4, -1, 3, 3, S32_MAX),
        numbers(6, 2, scale=0.5),
    )
case(
    "scatter_set_vjp",
    "cotangent of in2 [6, 2] for in0 with in2 set at rows in1, cotangent in3 [4, 2]: an update that was dropped or replaced "
    "has none",
    lambda operand, index, updates, cotangent: jax.vjp(
        lambda u: operand.at[index].set(u, mode="drop", wrap_negative_indices=False), updates
    )[1](cotangent)[0],
    numbers(4, 2),
    s32(0, 4, -1, 3, 3, 1),
    numbers(6, 2),
    numbers(4, 2, scale=0.25),
)

# Running folds and windows

LOGS = f32(-INF, -1000, 3, 1000, 999.5, -2, 1001, 0).reshape(2, 4)
case(
    "cumlogsumexp_last",
    "running log(sum(exp)) of in0 [2, 4] along dim 1",
    lambda x: lax.cumlogsumexp(x, 1),
    LOGS,
    smooth=True,
    tolerance=1e-6,
)
case(
    "cumlogsumexp_reverse",
    "as cumlogsumexp_last, from the end",
    lambda x: lax.cumlogsumexp(x, 1, reverse=True),
    LOGS,
    smooth=True,
    tolerance=1e-6,
)
case("cummax_nan", "running maximum along dim 1; NaN stays", lambda x: lax.cummax(x, 1), TIES[[0, 1, 2, 4, 5]])
case("cummin_reverse", "running minimum along dim 0 from the end", lambda x: lax.cummin(x, 0, reverse=True), numbers(7))
case("cumprod_first", "running product along dim 0", lambda x: lax.cumprod(x, 0), f32(2, -1, 0.5, 4, 0, 3))
for name, (operation, start) in {"max": (lax.max, -INF), "sum": (lax.add, 0.0)}.items():
    case(
        f"reduce_window_{name}",
        f"{name} over windows of in0 [6, 5]: size 2 x 3, strides 2 x 1, padding (1, 0) x (0, 2), base dilation 1 x 2, window "
        "dilation 2 x 1; a window without elements gives the start value",
        lambda x, operation=operation, start=start: lax.reduce_window(
            x, np.float32(start), operation, (2, 3), (2, 1), ((1, 0), (0, 2)), (1, 2), (2, 1)
        ),
        numbers(6, 5),
    )
case(
    "reduce_window_max_vjp",
    "cotangent of in0 [6, 5] for maxima over windows of 2 x 2 elements two apart, cotangent in1 [3, 2]",
    lambda x, cotangent: jax.vjp(
        lambda x: lax.reduce_window(x, np.float32(-INF), lax.max, (2, 2), (2, 2), "VALID"), x
    )[1](cotangent)[0],
    numbers(6, 5),
    numbers(3, 2),
)
case("reduce_prod", "product of each row of in0", lambda x: jnp.prod(x, axis=1), f32(2, -3, 4, 0, 5, 6).reshape(2, 3))

# More elementwise functions

case(
    "round_nearest_afz",
    "to the nearest integer, halves away from zero",
    lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    # The one below one half is left out: XLA's CPU backend adds one half and truncates.
    HALVES[[*range(7), *range(9, len(HALVES))]],
)
case("count_leading_zeros", "zero bits above the highest that is set", lax.clz, s32(0, 1, -1, 255, S32_MAX, S32_MIN))
case("popcnt", "bits that are set", lax.population_count, s32(0, 1, -1, 255, S32_MAX, S32_MIN))
case(
    "atan2",
    "angle of (in1, in0)",
    lax.atan2,
    f32(1, 1, -1, -1, 0, 0, 2, -2, INF, INF),
    f32(1, -1, 1, -1, 1, -1, 0, 0, INF, -INF),
    smooth=True,
    tolerance=1e-6,
)
UNIT = f32(-1, -0.999, -0.5, -1e-4, 0, 1e-8, 0.3, 0.75, 0.9999, 1, 1.5, NAN)
FAR = f32(-1e30, -88, -10, -1, -0.3, -1e-4, 0, 1e-8, 0.7, 1, 2, 20, 88, 1e30, INF, -INF, NAN)
SMOOTH = {
    "acos": UNIT, "asin": UNIT, "atanh": UNIT, "erf_inv": UNIT, "asinh": FAR, "atan": FAR, "cosh": FAR, "sinh": FAR,
    "acosh": f32(1, 1.0001, 1.5, 20, 1e30, INF, 0.5, -3, NAN), "cbrt": FAR,
    "erfc": f32(-INF, -1e30, -4, -1, -0.3, -1e-4, 0, 1e-8, 0.3, 0.7, 1, 1.7, 2.5, 3.53, 5, 7.7, 9, 11, 1e30, INF, NAN), "tan": f32(0, -0.5, 1, 3, 1e-8, 100, INF, NAN),
}  # fmt: skip
for name, points in SMOOTH.items():
    # Near 1 the single-precision polynomial meets a rounded 1 - x^2.
    case(name, name, getattr(lax, name), points, smooth=True, tolerance=5e-6 if name == "erf_inv" else 3e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()

    tensors, metadata = {}, {"made_by": "tests/oracle/ops.py"}
    for name, (meaning, inputs, out) in CASES.items():
        metadata[name] = meaning
        tensors |= {f"{name}.in{i}": value for i, value in enumerate(inputs)}
        tensors[f"{name}.out0"] = out
    tensor_file.write_or_check(Path(__file__).parent / "ops.safetensors", tensors, metadata, arguments.check)


if __name__ == "__main__":
    main()
