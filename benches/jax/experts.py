"""Routed experts on a CPU device in plain JAX: `jax.lax.ragged_dot` over choices sorted by expert.

    python benches/jax/experts.py --experts 8 --per-token 2 --steps 5
    python benches/jax/experts.py --experts 8 --per-token 2 --serve

One block: router, three grouped products, and the gradient of the mean square of its result in the tokens and all
weights. `--serve` answers as step.py's does.
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def numbers(shape, factor, scale):
    """The same numbers as benches/experts.rs makes."""
    index = np.arange(np.prod(shape), dtype=np.int64)
    return jnp.asarray((((index * factor) % 9973) / 9973.0 - 0.5) * scale, jnp.float32).reshape(shape)


def block(x, router, gate, up, down, per_token):
    batch, length, embed = x.shape
    count = gate.shape[0]
    tokens = x.reshape(batch * length, embed)
    weights, experts = jax.lax.top_k(jax.nn.softmax(tokens @ router), per_token)
    weights = weights / weights.sum(-1, keepdims=True)
    experts = experts.reshape(-1)
    choice = jnp.argsort(experts, stable=True)
    sizes = jnp.bincount(experts, length=count).astype(jnp.int32)
    token = choice // per_token
    rows = tokens[token]
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
    results = jax.lax.ragged_dot(hidden * weights.reshape(-1)[choice][:, None], down, sizes)
    return jnp.zeros_like(tokens).at[token].add(results).reshape(x.shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, required=True)
    parser.add_argument("--per-token", type=int, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--embed", type=int, default=256)
    parser.add_argument("--mlp", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help="one step per line on stdin")
    options = parser.parse_args()

    count, embed, mlp = options.experts, options.embed, options.mlp
    inputs = (
        numbers((options.batch, options.length, embed), 7919, 4.0),
        numbers((embed, count), 6131, 1.0),
        numbers((count, embed, mlp), 4441, 0.5),
        numbers((count, embed, mlp), 3571, 0.5),
        numbers((count, mlp, embed), 2741, 0.5),
    )
    step = jax.jit(jax.value_and_grad(lambda *x: jnp.mean(block(*x, options.per_token) ** 2), argnums=range(5)))
    begin = time.perf_counter()
    step = step.lower(*inputs).compile()
    compile_seconds = time.perf_counter() - begin

    def run():
        begin = time.perf_counter()
        loss, _ = jax.block_until_ready(step(*inputs))
        return f"{time.perf_counter() - begin:.6f} {float(loss):.9g}"

    if options.serve:
        run()
        print(f"ready {compile_seconds:.6f}", flush=True)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            print(run(), flush=True)
        return
    for _ in range(options.steps):
        print(run())


if __name__ == "__main__":
    main()
