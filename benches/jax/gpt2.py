"""GPT-2 with its training loop in JAX, on one device and on a mesh, to stand beside examples/12_gpt2.rs.

Needs jax and optax:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python benches/jax/gpt2.py
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

LAYERS, EMBED, HEADS, VOCAB, LENGTH, BATCH = 2, 64, 4, 128, 32, 8


def init(key):
    keys = iter(jax.random.split(key, 6))
    normal = lambda *shape: 0.02 * jax.random.normal(next(keys), shape)
    norm = lambda *shape: {"scale": jnp.ones(shape), "bias": jnp.zeros(shape)}
    dense = lambda *shape: {"weight": normal(LAYERS, *shape), "bias": jnp.zeros((LAYERS, *shape[1:]))}
    layers = {
        "norm1": norm(LAYERS, EMBED),
        "qkv": dense(EMBED, 3, HEADS, EMBED // HEADS),
        "out": dense(EMBED, EMBED),
        "norm2": norm(LAYERS, EMBED),
        "up": dense(EMBED, 4 * EMBED),
        "down": dense(4 * EMBED, EMBED),
    }
    return {
        "tokens": normal(VOCAB, EMBED),
        "positions": 0.5 * normal(LENGTH, EMBED),
        "layers": layers,
        "norm": norm(EMBED),
    }


def shardings(params, mesh):
    specs = {
        "qkv": {"weight": P(None, None, None, "tensor"), "bias": P(None, None, "tensor")},
        "out": {"weight": P(None, "tensor"), "bias": P()},
        "up": {"weight": P(None, None, "tensor"), "bias": P(None, "tensor")},
        "down": {"weight": P(None, "tensor"), "bias": P()},
    }
    whole = jax.tree.map(lambda _: P(), params)
    specs = {**whole, "tokens": P("tensor"), "layers": {**whole["layers"], **specs}}
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def layer_norm(x, p):
    return jax.nn.standardize(x, epsilon=1e-5) * p["scale"] + p["bias"]


def block(x, p):
    qkv = jnp.einsum("bte,echd->btchd", layer_norm(x, p["norm1"]), p["qkv"]["weight"]) + p["qkv"]["bias"]
    mixed = jax.nn.dot_product_attention(*(qkv[:, :, i] for i in range(3)), is_causal=True)
    x = x + mixed.reshape(x.shape) @ p["out"]["weight"] + p["out"]["bias"]
    hidden = jax.nn.gelu(layer_norm(x, p["norm2"]) @ p["up"]["weight"] + p["up"]["bias"])
    return x + hidden @ p["down"]["weight"] + p["down"]["bias"], None


def loss_of(params, rows):
    x = params["tokens"][rows[:, :-1]] + params["positions"]
    x, _ = jax.lax.scan(block, x, params["layers"])
    logits = layer_norm(x, params["norm"]) @ params["tokens"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()


def main():
    decays = lambda params: jax.tree.map_with_path(lambda path, p: p.ndim - ("layers" in str(path)) >= 2, params)
    adamw = optax.adamw(1e-2, b2=0.95, weight_decay=0.1, mask=decays)

    def train_step(params, state, rows):
        loss, gradients = jax.value_and_grad(loss_of)(params, rows)
        updates, state = adamw.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    for data, tensor in [(1, 1), (2, 4)]:
        devices = jax.devices()[: data * tensor]
        mesh = jax.make_mesh((data, tensor), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=devices)
        params = init(jax.random.key(0))
        params = jax.device_put(params, shardings(params, mesh))
        state = adamw.init(params)
        rows = jnp.tile(jnp.arange(LENGTH + 1) * 7 % VOCAB, (BATCH, 1))
        rows = jax.device_put(rows, NamedSharding(mesh, P("data")))
        step = jax.jit(train_step, donate_argnums=(0, 1))
        for number in range(21):
            params, state, loss = step(params, state, rows)
            if number % 10 == 0:
                print(f"data={data},tensor={tensor} step {number}: loss {loss}")


main()
