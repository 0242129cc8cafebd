"""Causal attention with its gradient in JAX on one CPU device, to stand beside meshloom's (benches/attention.rs).

One row, 8 heads of 64, f32: `jax.nn.dot_product_attention`, its value and the gradients of queries, keys and values.

    python benches/jax/attention.py --serve --length 2048    prints `ready <MiB of temporaries>`; then for each line on stdin
                                                             runs it once and prints `<seconds> <value>`
"""

import argparse
import sys
import time

import jax

jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp

HEADS, WIDTH = 8, 64


def number(seed, length):
    """The numbers of the bench: `[1, length, heads, width]`, made of `[1, heads, length, width]`."""
    index = jnp.arange(HEADS * length * WIDTH)
    values = ((index * (7 + seed) % 97) / 48.5 - 1.0) * 0.7
    return values.reshape(1, HEADS, length, WIDTH).transpose(0, 2, 1, 3).astype(jnp.float32)


def loss(operands, weights):
    return (jax.nn.dot_product_attention(*operands, is_causal=True) * weights).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true", required=True)
    parser.add_argument("--length", type=int, required=True)
    arguments = parser.parse_args()
    query, key, value, weights = (number(seed, arguments.length) for seed in range(4))
    inputs = ((query, key, value), weights)
    step = jax.jit(jax.value_and_grad(loss)).lower(*inputs).compile()
    jax.block_until_ready(step(*inputs))
    print("ready", step.memory_analysis().temp_size_in_bytes / 2**20, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        result = jax.block_until_ready(step(*inputs))
        print(time.perf_counter() - start, float(result[0]), flush=True)


if __name__ == "__main__":
    main()
