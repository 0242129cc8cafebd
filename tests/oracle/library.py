"""Writes library.safetensors: random numbers, sorting, selection and grouped products, as JAX computes them.

Random numbers are those of the default generator (threefry2x32) with `jax_threefry_partitionable`, from key(42) unless the
meaning says otherwise. Run with `--check` to compare with the file instead of writing it.
"""

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_threefry_partitionable", True)

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax, random

import tensor_file

BF16 = ml_dtypes.bfloat16
KEY = random.key(42, impl="threefry2x32")
CASES = {}


def case(name, meaning, *outs):
    assert name not in CASES, name
    CASES[name] = (meaning, [np.asarray(out) for out in outs])


# Keys

case("key", "the words of key(0x123456789abcdef0)", random.key_data(random.key(0x123456789ABCDEF0)))
case("split", "split into 5", random.key_data(random.split(KEY, 5)))
for number in (0, 7, 0xFFFFFFFF):
    case(f"fold_in_{number}", "the number folded in", random.key_data(random.fold_in(KEY, np.uint32(number))))

# Draws

FLOATS = {"bf16": BF16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
for name, dtype in {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}.items():
    case(f"bits_{name}", "[3, 5] words", random.bits(KEY, (3, 5), dtype))
case("bits_scalar", "one word", random.bits(KEY, (), np.uint32))
case("bits_rank4", "[2, 1, 3, 4] words", random.bits(KEY, (2, 1, 3, 4), np.uint32))
for name, dtype in FLOATS.items():
    case(f"uniform_{name}", "[4, 6] in [0, 1)", random.uniform(KEY, (4, 6), dtype))
    # Of f16 the range is scaled exactly: on CPUs with arithmetic of that type, XLA may multiply and add in one rounding.
    high = 2.0 if name == "f16" else 3.0
    case(f"uniform_in_{name}", f"[4, 6] in [-2, {high:g})", random.uniform(KEY, (4, 6), dtype, -2.0, high))
    case(f"normal_{name}", "[16, 16]", random.normal(KEY, (16, 16), dtype))
    case(f"gumbel_{name}", "[4, 6]", random.gumbel(KEY, (4, 6), dtype))
for name in ("f32", "f64"):
    case(f"exponential_{name}", "[4, 6]", random.exponential(KEY, (4, 6), FLOATS[name]))
    truncated = random.truncated_normal(KEY, -1.0, 2.0, (16, 16), FLOATS[name])
    case(f"truncated_normal_{name}", "[16, 16] within (-1, 2)", truncated)
case("bernoulli", "[64] with probability 0.3", random.bernoulli(KEY, np.float32(0.3), (64,)))
LOGITS = np.linspace(-2, 2, 30, dtype=np.float32).reshape(6, 5)
case("categorical", "one of 5 for each of 6 rows of logits linspace(-2, 2, 30)", random.categorical(KEY, jnp.array(LOGITS)).astype(np.int32))
INTEGERS = {
    "s32": (np.int32, -5, 17),
    "s32_whole": (np.int32, -(2**31), 2**31),
    "s32_empty": (np.int32, 4, 4),
    "u32": (np.uint32, 3, 4000000000),
    "u8": (np.uint8, 0, 256),
    "s8": (np.int8, -128, 100),
    "s64": (np.int64, -(10**15), 10**17),
    "u64": (np.uint64, 1, 10**18),
}
for name, (dtype, low, high) in INTEGERS.items():
    case(f"randint_{name}", f"[24] in [{low}, {high})", random.randint(KEY, (24,), low, high, dtype))
case("permutation", "of 0..100", random.permutation(KEY, jnp.arange(100, dtype=np.int32)))
ROWS = np.arange(14, dtype=np.float32).reshape(7, 2)
case("shuffle", "rows of [7, 2]", random.permutation(KEY, jnp.array(ROWS)))

# Sorting and selection

TIES = np.array([[3, 1, np.nan, 1, -0.0, 0.0, -np.inf, 3, np.inf, -np.nan, 0.0, -0.0]], np.float32)
INDEX = np.arange(12, dtype=np.int32)[None]
case("sort", "keys and positions, NaN last, -0 equal to 0, stable", TIES, *lax.sort((TIES, INDEX), num_keys=1, is_stable=True))
case("argsort_descending", "stable, NaN first", TIES, jnp.argsort(TIES, axis=-1, descending=True).astype(np.int32))
MINOR = np.array([[2, 2, 1, 1, 0, 0, 5, 4, 3, 2, 1, 0]], np.int32)
case(
    "sort_two_keys",
    "lexicographic by two keys, with positions",
    TIES,
    MINOR,
    *lax.sort((TIES, MINOR, INDEX), num_keys=2, is_stable=True),
)
case("top_k", "the 12 largest in IEEE's total order and where they are: of equals the first", TIES, *lax.top_k(TIES, 12))

# Grouped products

GENERATOR = np.random.default_rng(0)
LEFT = GENERATOR.integers(-4, 5, (8, 4)).astype(np.float32)
RIGHT = GENERATOR.integers(-4, 5, (3, 4, 5)).astype(np.float32)
OTHER = GENERATOR.integers(-4, 5, (8, 5)).astype(np.float32)
CONTRACTED = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(([0], [0]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)
for name, sizes in {"full": [3, 0, 5], "short": [2, 1, 1], "none": [0, 0, 0]}.items():
    sizes = np.array(sizes, np.int32)
    case(f"ragged_rows_{name}", "ragged_dot(in0, in1, sizes in2)", LEFT, RIGHT, sizes, lax.ragged_dot(LEFT, RIGHT, sizes))
    contracted = lax.ragged_dot_general(LEFT, OTHER, sizes, CONTRACTED)
    case(f"ragged_contracted_{name}", "for each group, in0^T in1 over its rows", LEFT, OTHER, sizes, contracted)

# Convolution

SEQUENCE = GENERATOR.integers(-4, 5, (2, 7, 3)).astype(np.float32)
TAPS = GENERATOR.integers(-4, 5, (4, 3)).astype(np.float32)
case(
    "causal_depthwise",
    "in0 [batch, length, features] with in1 [width, features]",
    SEQUENCE,
    TAPS,
    lax.conv_general_dilated(
        SEQUENCE, TAPS[:, None, :], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=3
    ),
)


def accept_rounding(tensors, stored):
    """Takes stored numbers of 16 bits for those one unit of the last place away, where a logarithm or a root rounds."""
    for name, value in tensors.items():
        have = stored.get(name)
        if name.startswith(("normal_", "gumbel_")) and value.dtype.itemsize == 2 and have is not None and have.shape == value.shape:
            bits, stored_bits = (np.asarray(numbers).view(np.int16).astype(int) for numbers in (value, have))
            tensors[name] = np.where(abs(bits - stored_bits) <= 1, have, np.asarray(value))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    tensors, metadata = {}, {"made_by": "tests/oracle/library.py"}
    for name, (meaning, values) in CASES.items():
        metadata[name] = meaning
        tensors |= {f"{name}.{index}": value for index, value in enumerate(values)}
    path = Path(__file__).parent / "library.safetensors"
    if arguments.check:
        accept_rounding(tensors, tensor_file.decode(path.read_bytes())[0])
    tensor_file.write_or_check(path, tensors, metadata, arguments.check)



if __name__ == "__main__":
    main()
