"""The JAX programs whose lowered modules `lowered.py` stores, beside those of `foreign_programs.py`: between them they
have the ops that models are made of, in the forms in which JAX prints them."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from foreign_programs import array, constrained, f32


def one(shape, dtype=f32):
    """An argument of a program for one device."""
    return jax.ShapeDtypeStruct(shape, dtype)


def exchange(mesh):
    """Mesh data=2, expert=4. Every kind of collective once, in a shard_map: rows are exchanged, gathered, summed and
    scattered, and moved on by one."""

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(("data", "expert")), P("expert")), out_specs=P(("data", "expert")), check_vma=False)
    def f(x, w):
        exchanged = lax.all_to_all(x, "expert", 1, 0, tiled=True)
        within = lax.all_to_all(exchanged, "expert", 0, 0, tiled=True)
        whole = lax.all_gather(w, "expert", axis=0, tiled=True)
        partial = jnp.dot(within, whole[: within.shape[1]], precision="highest")
        summed = lax.psum_scatter(partial, "expert", scatter_dimension=0, tiled=True)
        largest = lax.pmax(jnp.max(summed), ("data", "expert"))
        moved = lax.ppermute(summed, "data", [(0, 1), (1, 0)])
        two = lax.psum((summed, moved.astype(jnp.bfloat16)), "data")
        return (two[0] + two[1].astype(f32)) / largest + lax.axis_index("expert").astype(f32)

    return jax.jit(f, donate_argnums=0).trace(array(mesh, (64, 16), ("data", "expert")), array(mesh, (16, 16), "expert"))


LAYERS, BATCH, LENGTH, HEADS, HEAD, HIDDEN = 4, 8, 12, 4, 8, 40
MODEL = HEADS * HEAD


def transformer(mesh):
    """Mesh data=2, tensor=4. The train step of a decoder of four layers in a scan, each recomputed in the backward pass; heads
    and hidden width are split over tensor, rows over data."""

    def norm(x, scale):
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale

    def layer(x, weights):
        with jax.named_scope("attention"):
            query, key, value = jnp.einsum("bld,cdhk->cblhk", norm(x, weights["scale"]), weights["qkv"])
            scores = jnp.einsum("blhk,bmhk->bhlm", query, key) / HEAD**0.5
            scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
            mixed = jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), value)
            x = x + jnp.einsum("blhk,hkd->bld", mixed, weights["out"])
        with jax.named_scope("mlp"):
            hidden = jax.nn.gelu(norm(x, weights["scale"]) @ weights["up"], approximate=False)
            x = x + hidden @ weights["down"]
        return constrained(mesh, x, "data"), None

    def step(weights, x, y):
        def loss(weights):
            predicted, _ = lax.scan(jax.checkpoint(layer), x, weights)
            return jnp.mean((predicted - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    rows = array(mesh, (BATCH, LENGTH, MODEL), "data")
    weights = {
        "scale": array(mesh, (LAYERS, MODEL)),
        "qkv": array(mesh, (LAYERS, 3, MODEL, HEADS, HEAD), None, None, None, "tensor"),
        "out": array(mesh, (LAYERS, HEADS, HEAD, MODEL), None, "tensor"),
        "up": array(mesh, (LAYERS, MODEL, HIDDEN), None, None, "tensor"),
        "down": array(mesh, (LAYERS, HIDDEN, MODEL), None, "tensor"),
    }
    return jax.jit(step, donate_argnums=0).trace(weights, rows, rows)


def convolution(_):
    """One device. Strides, padding and dilations; the largest and the mean of windows; and the gradient."""

    def loss(image, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        found = lax.conv_general_dilated(image, kernel, (2, 1), [(1, 0), (0, 2)], rhs_dilation=(1, 2), dimension_numbers=dimensions)
        found = lax.reduce_window(jax.nn.relu(found), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        found = lax.reduce_window(found, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 4
        return jnp.sum(found[:, ::-1] * found)

    return jax.jit(jax.grad(loss, (0, 1))).trace(one((4, 16, 16, 3)), one((3, 3, 3, 8)))


def embedding(_):
    """One device. Rows of a table, the best of their scores, and what is added to the table by its gradient."""

    def loss(table, tokens):
        rows = table[tokens]
        best, places = lax.top_k(rows @ table.T, 3)
        order = jnp.argsort(best.sum(axis=-1), axis=1)
        sorted_rows = jnp.take_along_axis(rows, order[..., None], axis=1)
        return jnp.sum(jnp.cumsum(sorted_rows, axis=1)) + best.sum(), places

    def step(table, tokens):
        (value, places), gradient = jax.value_and_grad(loss, has_aux=True)(table, tokens)
        return value, places, lax.dynamic_update_slice(gradient, table[:1], (tokens[0, 0], 0))

    return jax.jit(step).trace(one((50, 16)), one((4, 7), jnp.int32))


def control(_):
    """One device. A loop of as many iterations as an argument says, with branches and random numbers in it."""

    @functools.partial(lax.composite, name="meshloom.scaled")
    def scaled(x, factor):
        return x * factor

    def body(carried):
        step, x, key = carried
        key, now = jax.random.split(key)
        x = lax.cond(x.sum() > 0, lambda x: x * jax.random.uniform(now, x.shape), lambda x: x + 1, x)
        x = lax.switch(step % 3, [jnp.sin, jnp.tan, lambda x: jnp.pad(x[1:-1], 1, constant_values=2)], x)
        _, bits = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (8,), dtype=jnp.uint32)
        x, bits = lax.optimization_barrier((x, bits))
        return step + 1, scaled(x, 0.5) + (bits >> 30).astype(f32), key

    def f(key, count, x):
        count, x, _ = lax.while_loop(lambda carried: carried[0] < count, body, (0, x, key))
        small = x.astype(jnp.float8_e4m3fn).astype(jnp.bfloat16)
        return count, x, small, lax.bitcast_convert_type(x, jnp.int32)

    return jax.jit(f).trace(one((2,), jnp.uint32), one((), jnp.int32), one((8,)))


# Name of a program -> how to trace it on a mesh, and the mesh's axes.
PROGRAMS = {
    "control": (control, {}),
    "convolution": (convolution, {}),
    "embedding": (embedding, {}),
    "exchange": (exchange, {"data": 2, "expert": 4}),
    "transformer": (transformer, {"data": 2, "tensor": 4}),
}
