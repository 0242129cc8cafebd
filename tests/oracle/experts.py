"""Writes experts.safetensors: routed experts and latent attention with their gradients, as JAX computes them.

Every expert is applied to every token, in f64 from f32 inputs; results are rounded to f32. Run with `--check` to compare with the file
instead of writing it.
"""

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
import numpy as np

import tensor_file

PATH = Path(__file__).parent / "experts.safetensors"
BATCH, LENGTH, EMBED, EXPERTS, MLP = 2, 6, 8, 8, 4
HEADS, Q_LORA, KV_LORA, NOPE, ROPE, VALUE = 2, 6, 5, 4, 2, 3
THETA, EPSILON = 10000.0, 1e-5


def silu(x):
    return x * jax.nn.sigmoid(x)


def swiglu(x, gate, up, down):
    return (silu(x @ gate) * (x @ up)) @ down


def experts(inputs, chosen_count, scoring, scale):
    """The block's result and its load-balance loss."""
    x, router, gate, up, down, *shared = inputs
    logits = x @ router
    scores = jax.nn.softmax(logits, -1) if scoring == "softmax" else jax.nn.sigmoid(logits)
    top, places = jax.lax.top_k(scores, chosen_count)
    weights = scale * top / (top.sum(-1, keepdims=True) + 1e-20)
    each = jax.vmap(lambda *weights: swiglu(x, *weights), out_axes=2)(gate, up, down)
    mask = jax.nn.one_hot(places, EXPERTS)
    result = jnp.einsum("btk,btkx,btxe->bte", weights, mask, each)
    if shared:
        result = result + swiglu(x, *shared)
    probability = (scores / scores.sum(-1, keepdims=True)).mean(1)
    fraction = mask.sum(2).mean(1) / chosen_count
    return result, EXPERTS * (fraction * probability).sum(-1).mean()


def rms_norm(x, scale):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale


def rotate(x, positions):
    """x is [batch, length, heads, width]."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (-2.0 * jnp.arange(half) / x.shape[-1])
    angles = positions[:, :, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    turned = first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)
    return jnp.concatenate(turned, -1)


def attention(inputs, has_query_lora):
    x, *weights = inputs
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (BATCH, LENGTH)).astype(jnp.float64)
    if has_query_lora:
        wq_a, q_norm, *weights = weights
        source = rms_norm(x @ wq_a, q_norm)
    else:
        source = x
    wq_b, wkv_a, wk_rope, kv_norm, wkv_b, wo = weights
    query = jnp.einsum("btr,rhd->bthd", source, wq_b)
    query = jnp.concatenate([query[..., :NOPE], rotate(query[..., NOPE:], positions)], -1)
    made = jnp.einsum("btr,rhd->bthd", rms_norm(x @ wkv_a, kv_norm), wkv_b)
    turned = rotate((x @ wk_rope)[:, :, None], positions)
    key = jnp.concatenate([made[..., :NOPE], jnp.broadcast_to(turned, (BATCH, LENGTH, HEADS, ROPE))], -1)
    scores = jnp.einsum("bthd,bshd->bhts", query, key) / np.sqrt(NOPE + ROPE)
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), made[..., NOPE:])
    return jnp.einsum("bthd,hde->bte", mixed, wo), jnp.zeros(())


STREAM = (BATCH, LENGTH, EMBED)
ROUTED = [STREAM, (EMBED, EXPERTS), (EXPERTS, EMBED, MLP), (EXPERTS, EMBED, MLP), (EXPERTS, MLP, EMBED)]
SHARED = [(EMBED, 2 * MLP), (EMBED, 2 * MLP), (2 * MLP, EMBED)]
LATENT = [(EMBED, KV_LORA), (EMBED, ROPE), (KV_LORA,), (KV_LORA, HEADS, NOPE + VALUE), (HEADS, VALUE, EMBED)]
NARROW = [STREAM, (EMBED, Q_LORA), (Q_LORA,), (Q_LORA, HEADS, NOPE + ROPE), *LATENT]
CASES = {
    "softmax": (ROUTED, lambda inputs: experts(inputs, 3, "softmax", 1.0)),
    "sigmoid": (ROUTED + SHARED, lambda inputs: experts(inputs, 2, "sigmoid", 2.5)),
    "latent": (NARROW, lambda inputs: attention(inputs, True)),
    "latent_wide": ([STREAM, (EMBED, HEADS, NOPE + ROPE), *LATENT], lambda inputs: attention(inputs, False)),
}


def tensors():
    """Each case's inputs, the probe that its result is multiplied by, result, loss, and gradients of `sum(result * probe) + 3 * loss`."""
    stored = {}
    for name, (shapes, function) in CASES.items():
        random = np.random.default_rng(7)
        inputs = [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
        probe = random.uniform(-1, 1, STREAM).astype(np.float32)
        wide = [jnp.asarray(x, jnp.float64) for x in inputs]

        def objective(inputs):
            result, loss = function(inputs)
            return (result * probe).sum() + 3 * loss

        result, loss = function(wide)
        outputs = [result, loss, *jax.grad(objective)(wide)]
        for kind, values in (("in", [*inputs, probe]), ("out", outputs)):
            stored |= {f"{name}.{kind}{i:02}": np.asarray(x, np.float32) for i, x in enumerate(values)}
    return stored


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    tensor_file.write_or_check(PATH, tensors(), {}, arguments.check)


if __name__ == "__main__":
    main()
